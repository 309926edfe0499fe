/* SPDX-License-Identifier: Apache-2.0 */
/* Chunk files of the daemon, and the places in them that hold the bytes of a read (ptc_admin_locate). The daemon owns
 * these files and may reuse their bytes at any time, so every read is verified. Counted; any thread. */
#pragma once

#include "base/memory/chunk_read.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The file that has a job's bytes, open for reading. */
struct ptc_fs_chunk_file {
	struct ptc_fs_chunk_file *next; /* private, as is refs */
	unsigned refs;
	char uuid[37]; /* the job's */
	int fd;
	uint64_t dev, ino;
};
/* Returns a reference to the job's newest file that is in use; NULL: there is none. */
struct ptc_fs_chunk_file *ptc_fs_chunk_file_get(const char *uuid);
/* Takes fd over, also if memory is short (then NULL). */
struct ptc_fs_chunk_file *ptc_fs_chunk_file_new(const char *uuid, int fd, uint64_t dev, uint64_t ino);
void ptc_fs_chunk_file_unref(struct ptc_fs_chunk_file *f); /* NULL ok */

struct ptc_fs_span {
	uint64_t at, bytes;       /* a range of the file */
	uint32_t chunk, reserved; /* the chunk that has all of the range */
};
struct ptc_fs_spans {
	unsigned refs; /* private */
	struct ptc_fs_chunk_file *file;
	size_t n;
	uint64_t bytes; /* sum of all spans */
	uint64_t *ends; /* the end of each span, counted in the spans' joined bytes */
	struct ptc_fs_span *v;
	size_t nchunks;
	struct ptc_chunk_sums *chunks;
};
/* Takes over the reference to file, and v and chunks (ptc_free), also if memory is short (then NULL). */
struct ptc_fs_spans *ptc_fs_spans_new(struct ptc_fs_chunk_file *file, struct ptc_fs_span *v, size_t n,
				      struct ptc_chunk_sums *chunks, size_t nchunks);
void ptc_fs_spans_ref(struct ptc_fs_spans *s);
void ptc_fs_spans_unref(struct ptc_fs_spans *s); /* NULL ok */
/* Reads bytes [off, off + len) of the spans' joined bytes, and verifies each block. false: a block is damaged, was
 * reused or cannot be read; buf is then undefined. */
bool ptc_fs_spans_read(const struct ptc_fs_spans *s, uint64_t off, void *buf, size_t len);
