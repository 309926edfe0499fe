/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of other nodes' datasets on this node's disk: a file of fixed size. A write that was cut off does no harm.
 *
 * Happy path: open (an earlier one's content is still there), put, get, close. Failure modes: if anything but open
 * fails, the sample counts as not there. That includes a block whose checksum does not match its content (a torn write,
 * a disk that lies, somebody's editor). If there is no disk space, nothing more is put. open: another ptcd has the file
 * (PTC_EEXIST), or it cannot be made.
 *
 * A sample is kept in pieces of PTC_CACHE_PIECE bytes, each for itself. A piece has PTC_CACHE_WAYS places, which follow
 * from its name; the oldest of those goes. No index is held in memory, nothing is read at start, nothing is synced. Any
 * thread. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PTC_CACHE_PIECE 16384u
#define PTC_CACHE_WAYS  8
#define PTC_CACHE_MIN   (16u << 20)

struct ptc_cache;
struct ptc_cache_name {
	char reader[33]; /* ptc_dataset_doc_reader */
	uid_t uid;       /* the dataset's owner */
	uint64_t sample;
	uint64_t piece; /* bytes from PTC_CACHE_PIECE * piece on */
};

/* dir is made, mode 0700. bytes: of the file, at least PTC_CACHE_MIN. */
int ptc_cache_open(const char *dir, uint64_t bytes, struct ptc_cache **ret_cache, struct ptc_error *err);
struct ptc_cache *ptc_cache_close(struct ptc_cache *c); /* NULL ok */
/* len: PTC_CACHE_PIECE, less where the sample ends. size: of the whole sample. */
void ptc_cache_put(struct ptc_cache *c, const struct ptc_cache_name *name, uint64_t size, const void *data, size_t len);
/* Whether the cache has an entry for the piece; *ret_size: bytes of the sample. The piece's bytes are not looked at, so
 * they may be damaged. */
bool ptc_cache_peek(struct ptc_cache *c, const struct ptc_cache_name *name, uint64_t *ret_size);
/* buf has room for PTC_CACHE_PIECE; *ret_len bytes of it are set. */
bool ptc_cache_get(struct ptc_cache *c, const struct ptc_cache_name *name, void *buf, size_t *ret_len,
		   uint64_t *ret_size);
