/* SPDX-License-Identifier: Apache-2.0 */
/* Files of bytes that somebody else has, and may use for something else at any time, and where in them what we read
 * lies (ptc_admin_locate). Counted; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The file in which a job's bytes lie, open for reading. */
struct ptc_fs_chunk_file {
	struct ptc_fs_chunk_file *next; /* private, as is refs */
	unsigned refs;
	char uuid[37]; /* of the job */
	int fd;
	uint64_t dev, ino;
};
/* A reference to the job's newest one that is in use; NULL: none is. */
struct ptc_fs_chunk_file *ptc_fs_chunk_file_get(const char *uuid);
/* Takes fd over, also when there is no memory (then NULL). */
struct ptc_fs_chunk_file *ptc_fs_chunk_file_new(const char *uuid, int fd, uint64_t dev, uint64_t ino);
void ptc_fs_chunk_file_unref(struct ptc_fs_chunk_file *f); /* NULL ok */

struct ptc_fs_span {
	uint64_t at, bytes;       /* of the file */
	uint32_t chunk, reserved; /* which one it lies in, all of it */
};
struct ptc_fs_chunk { /* what was read is right if each block it was taken from has its checksum (proto/direct_read.h)
			 ... */
	uint64_t at;
	uint64_t use_at, use; /* ... and these 8 bytes are then as they were */
	uint64_t sums[16];
};
struct ptc_fs_spans {
	unsigned refs; /* private */
	struct ptc_fs_chunk_file *file;
	size_t n;
	uint64_t bytes; /* of all */
	uint64_t *ends; /* of each span, in what they are all together */
	struct ptc_fs_span *v;
	size_t nchunks;
	struct ptc_fs_chunk *chunks;
};
/* Takes over the reference to file, v and chunks (ptc_free), also when there is no memory (then NULL). */
struct ptc_fs_spans *ptc_fs_spans_new(struct ptc_fs_chunk_file *file, struct ptc_fs_span *v, size_t n,
				      struct ptc_fs_chunk *chunks, size_t nchunks);
void ptc_fs_spans_ref(struct ptc_fs_spans *s);
void ptc_fs_spans_unref(struct ptc_fs_spans *s); /* NULL ok */
/* Bytes [off, off + len) of what they are together, each block verified as it was read. False: damaged, not they any
 * more, or not to be had; buf has anything. */
bool ptc_fs_spans_read(const struct ptc_fs_spans *s, uint64_t off, void *buf, size_t len);
