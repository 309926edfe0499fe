/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged blocks of a node's store. This room lists the known ones, heals one with bytes that the caller brings, and
 * reads sealed tables in small steps to find damage before a reader does.
 *
 * Happy path of healing: ptc_store_damaged names a block. ptc_block_open copies it and tells which boxes lie in it. The
 * caller puts another node's bytes of these boxes. If the block then matches its checksum (ptc_block_right),
 * ptc_block_heal writes it in place. The checksum is older than the damage, so it proves the bytes, and it stays. A
 * crash in the middle leaves a block that does not match, as before, and the block is healed again.
 *
 * A block also has bytes that no table lists any more. If these are damaged, no node has a copy, and no bytes make the
 * checksum match. The caller then proves the live bytes by digests, and ptc_block_renew writes them and makes a new
 * checksum: bytes, msync on a disk, one commit. A crash before the commit leaves the old checksum, which the block does
 * not match.
 *
 * Failure modes: memory does not keep written bytes (PTC_EIO). A dropped table that a reader still uses has bytes in
 * the block (PTC_ESTATE from renew; it can be healed later). A commit fails (the block stays damaged).
 *
 * Threads: any. A block belongs to one thread; two threads must not heal the same block at once. */
#pragma once

#include "daemon/store/store.h"

/* Gives the known damaged blocks of a job's sealed tables; uuid NULL: of all jobs. ptc_free *ret. */
int ptc_store_damaged(struct ptc_store *s, const char *uuid, struct ptc_store_damage **ret, size_t *ret_n,
		      struct ptc_error *err);

struct ptc_block;
/* Opens the damaged block with the boxes that the table of key `prefer` has in it. If that table has none, takes the
 * table that d names, or another. *ret NULL: the block is right again, or no table lists it any more. The block has a
 * reference to the table. */
int ptc_block_open(struct ptc_store *s, const struct ptc_store_damage *d, const struct ptc_table_key *prefer,
		   struct ptc_block **ret, struct ptc_error *err);
struct ptc_block *ptc_block_free(struct ptc_block *b); /* NULL ok */
const struct ptc_table_key *ptc_block_key(const struct ptc_block *b);
/* The live boxes in the block, disjoint by item; all their bytes lie in the block. Borrowed. */
const struct ptc_store_box *ptc_block_parts(const struct ptc_block *b, size_t *ret_n);
/* Puts the bytes of a part, row-major and compact. Nothing is written to the store yet. */
void ptc_block_put(struct ptc_block *b, size_t part, const void *data);
void ptc_block_get(struct ptc_block *b, size_t part, void *data); /* the bytes of a part as the store had them */
void ptc_block_reset(struct ptc_block *b);                        /* forgets all puts */
bool ptc_block_right(const struct ptc_block *b);
int ptc_block_heal(struct ptc_block *b, struct ptc_error *err); /* PTC_ECORRUPT: the block is not right */
/* PTC_ESTATE: a part was not put, or another table has live bytes in the block that were not put. */
int ptc_block_renew(struct ptc_block *b, struct ptc_error *err);

/* ---- the scrubber: its position, which belongs to one thread ---- */
struct ptc_scrub;
struct ptc_scrub *ptc_scrub_new(void); /* NULL: out of memory */
struct ptc_scrub *ptc_scrub_free(struct ptc_scrub *c);
struct ptc_scrub_step {
	uint64_t bytes;      /* verified by this step */
	unsigned damaged;    /* blocks that do not match; ptc_store_opts.damaged reports them */
	bool round;          /* the last table is done, so the next step begins with the first */
	uint64_t round_left; /* estimate: bytes of chunks from here to the end of the round */
};
/* Verifies up to max_bytes more, but at least one chunk, of the blocks of sealed tables. It holds no lock while it
 * reads. */
int ptc_scrub_step(struct ptc_store *s, struct ptc_scrub *c, uint64_t max_bytes, struct ptc_scrub_step *ret,
		   struct ptc_error *err);
