/* SPDX-License-Identifier: Apache-2.0 */
/* Reading tables: pieces, bytes, places in the chunk file, digests. Terms, failure modes and
 * threads: store.h. */
#pragma once

#include "base/limits.h"
#include "base/status.h"
#include "daemon/store/store_key.h"

#include <stdbool.h>
#include <sys/uio.h>

/* Pieces of one item that intersect box, in no particular order; the union says what this node has. */
struct ptc_piece {
	uint32_t item, extent;
	struct ptc_box live, extent_box;
};
int ptc_table_pieces(struct ptc_table *t, uint32_t item, const struct ptc_box *box, struct ptc_piece **ret_pieces,
		     size_t *ret_n, struct ptc_error *err); /* ptc_free it */
/* All pieces of the table (sorted by item). Borrowed while the reference is held. */
const struct ptc_piece *ptc_table_all_pieces(struct ptc_table *t, size_t *ret_n);

/* What every function below hands out, copies or digests of a sealed table is verified each time, block by block; where it is copied or
 * digested, right before. PTC_ENOTFOUND when a part of box is not here. Errors about an item begin with "item N". */
/* Reads box, row-major compact, into dst. */
int ptc_table_read(struct ptc_table *t, uint32_t item, const struct ptc_box *box, void *dst, struct ptc_error *err);
/* The same while a table is being filled, of what is filled already; PTC_ESTATE where a part is not. Blocks are verified that have
 * sums: those of chunks that are still written to have none yet. */
int ptc_table_read_filled(struct ptc_table *t, uint32_t item, const struct ptc_box *box, void *dst,
			  struct ptc_error *err);
/* Without a copy: if box's bytes are one run inside one chunk after another, returns up to niov spans that stay valid while a
 * reference to t is held, verified; *ret_n = 0 when it is strided or not coverable so (use ptc_table_read). */
int ptc_table_read_iov(struct ptc_table *t, uint32_t item, const struct ptc_box *box, struct iovec *iov, int niov,
		       int *ret_n, struct ptc_error *err);
/* Calls fn for each part of box (sealed table) that lies in one extent: the extent's memory as spans from its first byte, which
 * stay valid while a reference to t is held, and the part, of which alone the blocks are verified. PTC_ENOTFOUND, before any call, when
 * a part of box is not here. fn returns nonzero to stop. */
#define PTC_EXTENT_SPANS (PTC_EXTENT_MAX_BYTES / PTC_CHUNK_BYTES + 3)
typedef int (*ptc_extent_fn)(void *arg, const struct ptc_box *extent_box, const struct ptc_box *part,
			     const struct iovec *spans, int nspans, struct ptc_error *err);
int ptc_table_each_extent(struct ptc_table *t, uint32_t item, const struct ptc_box *box, ptc_extent_fn fn, void *arg,
			  struct ptc_error *err);
/* The file in which a sealed table's bytes lie, opened anew for reading only (the caller closes it), and where we have it in memory: a
 * span of it at p lies p - *ret_base bytes from the file's beginning. */
int ptc_table_file(struct ptc_table *t, int *ret_fd, const uint8_t **ret_base, uint64_t *ret_bytes,
		   struct ptc_error *err);
/* The same of a table that is being filled, opened for writing too, for a process that fills extents for us (ptc_table_extent_iov) and has
 * only that. The caller closes it once the process has it. As long as any process has it, a store that is opened on these chunks gives out none
 * of the job's (PTC_ESTATE): a process that outlives us may still write to what we had given out. */
int ptc_table_file_writable(struct ptc_table *t, int *ret_fd, const uint8_t **ret_base, uint64_t *ret_bytes,
			    struct ptc_error *err);
/* Where box's bytes (sealed table) lie in that file, in box's row-major order: for another process of this node, which may read them
 * there at any time, also when the reference to t is gone. It has read box's bytes if every block that it took them from has its
 * checksum, and it then finds `use` in the 8 bytes at use_at; else the bytes are damaged, or the chunk is somebody else's now (or was
 * once in between). Nothing is verified here. PTC_ELIMIT: more than max or max_chunks; PTC_ESTATE: the file is not in memory, where
 * reading it waits for nothing; PTC_ENOTFOUND: a part of box is not here. */
#define PTC_CHUNK_BLOCKS 16
struct ptc_span {
	uint64_t at, bytes;
	uint32_t chunk, reserved; /* which of the chunks it lies in */
};
struct ptc_span_chunk {
	uint64_t
		at; /* of its first byte; its blocks of PTC_BLOCK_BYTES follow, the last one is what is left of PTC_CHUNK_BYTES */
	uint64_t use_at, use;
	uint64_t sums[PTC_CHUNK_BLOCKS];
};
struct ptc_spans { /* the caller's memory, to which is added */
	struct ptc_span *v;
	size_t n, max;
	struct ptc_span_chunk *chunks;
	size_t nchunks, max_chunks;
};
int ptc_table_spans(struct ptc_table *t, uint32_t item, const struct ptc_box *box, struct ptc_spans *spans,
		    struct ptc_error *err);
/* Digest contribution of box (see base/number/digest.h) for a tensor of that byte shape; reads in place. */
int ptc_table_digest(struct ptc_table *t, uint32_t item, const struct ptc_box *box, uint32_t ndim, const int64_t *shape,
		     uint64_t *ret_digest, struct ptc_error *err);
/* The same of a part of an extent whose bytes are there but which need not be filled or sealed: while they are still in the
 * processor's cache it costs half. They are the caller's to keep still; nothing is verified. */
int ptc_table_digest_extent(struct ptc_table *t, uint32_t extent, const struct ptc_box *part, uint32_t ndim,
			    const int64_t *shape, uint64_t *ret_digest, struct ptc_error *err);
/* Verifies every block of every piece against meta, ignoring what was verified before. *ret_bytes read. First bad block: PTC_ECORRUPT. */
int ptc_table_scrub(struct ptc_table *t, int64_t *ret_bytes, struct ptc_error *err);
