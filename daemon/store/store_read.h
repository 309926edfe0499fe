/* SPDX-License-Identifier: Apache-2.0 */
/* Reading tables: pieces, bytes, places in the chunk file, digests. Terms, failure modes and
 * threads: store.h. */
#pragma once

#include "base/limits.h"
#include "base/status.h"
#include "daemon/store/store_key.h"

#include <stdbool.h>
#include <sys/uio.h>

/* Gives the pieces of an item that intersect box, in no order. Together they are the part of box that this node has. */
struct ptc_piece {
	uint32_t item, extent;
	struct ptc_box live, extent_box;
};
int ptc_table_pieces(struct ptc_table *t, uint32_t item, const struct ptc_box *box, struct ptc_piece **ret_pieces,
		     size_t *ret_n, struct ptc_error *err); /* ptc_free it */
/* The number of bytes of box that this node has. */
int64_t ptc_table_has(struct ptc_table *t, uint32_t item, const struct ptc_box *box);
/* All pieces of the table, sorted by item. Borrowed as long as the caller has its reference. */
const struct ptc_piece *ptc_table_all_pieces(struct ptc_table *t, size_t *ret_n);

/* The functions below verify the blocks of a sealed table each time, right before they give, copy or digest bytes.
 * PTC_ENOTFOUND: a part of box is not here. Errors about an item begin with "item N". */
/* Reads box, row-major compact, into dst. */
int ptc_table_read(struct ptc_table *t, uint32_t item, const struct ptc_box *box, void *dst, struct ptc_error *err);
/* Remembers the last block that was verified; set it to zeros first. If a block holds many small boxes, reads that
 * follow each other then verify it once. The caller has a reference to the table. Use the struct for one request only,
 * because memory that was right once need not be right later. */
struct ptc_verified {
	const struct ptc_table *table;
	uint64_t begin, end; /* its place in the table's chunks */
};
int ptc_table_read_row(struct ptc_table *t, uint32_t item, const struct ptc_box *box, void *dst,
		       struct ptc_verified *seen, struct ptc_error *err);
/* Does the same with a begun table. PTC_ESTATE: a part of box is not filled yet. It verifies blocks that have
 * checksums; blocks of chunks that are still being filled have none yet. */
int ptc_table_read_filled(struct ptc_table *t, uint32_t item, const struct ptc_box *box, void *dst,
			  struct ptc_error *err);
/* Gives box without a copy, as up to niov verified spans, if its bytes are one run over neighbouring chunks. The spans
 * are valid as long as the caller has a reference to t. *ret_n = 0: box is strided or needs more spans; use
 * ptc_table_read. */
int ptc_table_read_iov(struct ptc_table *t, uint32_t item, const struct ptc_box *box, struct iovec *iov, int niov,
		       int *ret_n, struct ptc_error *err);
/* Calls fn for each part of box that lies in one extent of a sealed table. fn gets the part, and the extent's memory as
 * spans from its first byte. The spans are valid as long as the caller has a reference to t. Only the part's blocks are
 * verified. PTC_ENOTFOUND, before any call: a part of box is not here. fn returns nonzero to stop. The first span lies
 * in the table's chunk number `chunk`, each further one in the next chunk. */
#define PTC_EXTENT_SPANS (PTC_EXTENT_MAX_BYTES / PTC_CHUNK_BYTES + 3)
typedef int (*ptc_extent_fn)(void *arg, const struct ptc_box *extent_box, const struct ptc_box *part,
			     const struct iovec *spans, int nspans, size_t chunk, struct ptc_error *err);
int ptc_table_each_extent(struct ptc_table *t, uint32_t item, const struct ptc_box *box, ptc_extent_fn fn, void *arg,
			  struct ptc_error *err);
/* Does the same without verifying anything, for a process of this node that reads the bytes while the caller has its
 * reference, and compares them with the checksums of ptc_table_chunk. */
int ptc_table_each_unverified(struct ptc_table *t, uint32_t item, const struct ptc_box *box, ptc_extent_fn fn,
			      void *arg, struct ptc_error *err);
/* Opens the file of a sealed table's bytes for reading only; the caller closes it. *ret_base is the file's place in
 * memory: a span at p lies p - *ret_base bytes from the file's beginning. */
int ptc_table_file(struct ptc_table *t, int *ret_fd, const uint8_t **ret_base, uint64_t *ret_bytes,
		   struct ptc_error *err);
/* Does the same with a begun table, and opens the file for writing too, for a process that fills extents
 * (ptc_table_extent_iov). The caller closes the file once the process has it. As long as a process has the file open, a
 * store that is opened on these chunks gives out none of the job's chunks (PTC_ESTATE), because a process that outlives
 * ptcd may still write to them. */
int ptc_table_file_writable(struct ptc_table *t, int *ret_fd, const uint8_t **ret_base, uint64_t *ret_bytes,
			    struct ptc_error *err);
/* Gives the places of a sealed table's box in that file, in box's row-major order, for another process of this node.
 * That process may read the bytes at any time, also after the reference to t is gone. It has box's bytes if every block
 * has its checksum, and if it then finds `use` in the 8 bytes at use_at. Otherwise the bytes are damaged, or the chunk
 * has been given to somebody else. This call verifies nothing. PTC_ELIMIT: there are more than max spans or max_chunks
 * chunks. PTC_ESTATE: the file is not in memory, so a read could wait for a disk. PTC_ENOTFOUND: a part of box is not
 * here. */
#define PTC_CHUNK_BLOCKS 16
struct ptc_span {
	uint64_t at, bytes;
	uint32_t chunk, reserved; /* index of its chunk in `chunks` */
};
struct ptc_span_chunk {
	uint64_t at; /* of its first byte; blocks of PTC_BLOCK_BYTES follow, and the last block is the rest of
			PTC_CHUNK_BYTES */
	uint64_t use_at, use;
	uint64_t sums[PTC_CHUNK_BLOCKS];
};
struct ptc_spans { /* in the caller's memory; calls add to it */
	struct ptc_span *v;
	size_t n, max;
	struct ptc_span_chunk *chunks;
	size_t nchunks, max_chunks;
};
int ptc_table_spans(struct ptc_table *t, uint32_t item, const struct ptc_box *box, struct ptc_spans *spans,
		    struct ptc_error *err);
/* Whether two sealed tables of a job have box at the same places of the same chunks. False also if a table has it in
 * several pieces. */
bool ptc_table_same_place(const struct ptc_table *a, const struct ptc_table *b, uint32_t item,
			  const struct ptc_box *box);
/* Chunk number `chunk` of a sealed table. base: of ptc_table_file. */
void ptc_table_chunk(const struct ptc_table *t, size_t chunk, const uint8_t *base, struct ptc_span_chunk *ret);
/* Whether the file is in memory, so that a read cannot wait for a disk. */
bool ptc_table_in_memory(const struct ptc_table *t);
/* Gives the part of a tensor's digest that box contributes (base/number/digest.h). shape is in bytes. Reads in place.
 */
int ptc_table_digest(struct ptc_table *t, uint32_t item, const struct ptc_box *box, uint32_t ndim, const int64_t *shape,
		     uint64_t *ret_digest, struct ptc_error *err);
int ptc_table_digest_row(struct ptc_table *t, uint32_t item, const struct ptc_box *box, uint32_t ndim,
			 const int64_t *shape, uint64_t *ret_digest, struct ptc_verified *seen, struct ptc_error *err);
/* Does the same with a part of an unfilled extent whose bytes are there. While they are in the processor's cache, this
 * costs half as much as later. The caller makes sure that the bytes do not change. Nothing is verified. */
int ptc_table_digest_extent(struct ptc_table *t, uint32_t extent, const struct ptc_box *part, uint32_t ndim,
			    const int64_t *shape, uint64_t *ret_digest, struct ptc_error *err);
/* Verifies every block of every piece again. *ret_bytes: bytes read. go_on (NULL: it goes on) is asked before each
 * piece. PTC_ECORRUPT: names the first damaged block; PTC_ECANCELED: go_on said no. */
int ptc_table_scrub(struct ptc_table *t, bool (*go_on)(void *arg), void *arg, int64_t *ret_bytes,
		    struct ptc_error *err);
