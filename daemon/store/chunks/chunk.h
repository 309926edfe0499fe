/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks of one job: taking, freeing and summing chunks, giving their blocks back, huge pages, and chunks that are
 * made ahead. Functions that want wlock say so. Failure modes: chunk.c, huge_chunks.c. */
#pragma once

#include "daemon/store/chunks/store_state.h"

/* chunk.c */
int ptc_store_chunks_create(struct job *j, struct ptc_error *err);
int ptc_store_chunks_open(struct job *j, struct ptc_error *err);
void ptc_store_chunks_close(struct job *j);
int ptc_store_chunks_reopen(const struct job *j, int flags);         /* a descriptor of its own; -1: errno */
int ptc_store_chunks_finalize(struct job *j, struct ptc_error *err); /* call it after the tables have been loaded */
/* Chunks in use, and free ones with blocks: of a job, or (NULL) of all. A table that goes frees chunks at any time,
 * whoever has wlock: so these numbers are only read under lock. */
struct chunk_counts {
	size_t used, warm;
};
struct chunk_counts ptc_store_chunks_count(struct ptc_store *s, const struct job *j_or_null);
/* wlock. The number of chunks that may have blocks. */
uint64_t ptc_store_chunks_max(const struct ptc_store *s);
/* By how many MiB memory.ceiling has to grow before there is room for so many more bytes of chunks. The tables' share,
 * 1/256 of it, grows, too (daemon/config/memory.h). */
static inline uint64_t ptc_store_raise_mib(uint64_t bytes)
{
	return (bytes + bytes / 255) / (1u << 20) + 1;
}
/* wlock. Gives blocks of free chunks back to the file system, for all jobs except `but`, until at most `max` chunks
 * have blocks or no free chunk of these jobs has. */
void ptc_store_chunks_yield(struct ptc_store *s, const struct job *but, uint64_t max);
/* wlock. Takes n free chunks (refs 0 -> 1), and makes new ones if it has to. All or nothing. */
int ptc_store_chunks_take(struct job *j, size_t n, struct chunk **ret_chunks, struct ptc_error *err);
void ptc_store_chunk_map(struct chunk *c);
/* wlock. Makes sure that at least n free chunks have blocks, and that these are in the page table. */
int ptc_store_chunks_warm(struct job *j, size_t n, struct ptc_error *err);
/* wlock. As ptc_store_chunks_warm, for n more chunks, a multiple of CHUNKS_GRAIN for which there is room. Takes no
 * blocks from other jobs. Returns how many got blocks. */
#define CHUNKS_GRAIN 8u
size_t ptc_store_chunks_ahead(struct job *j, size_t n);
/* wlock. Gives back blocks of n such chunks that are still unused. */
void ptc_store_chunks_behind(struct job *j, size_t n);
void ptc_store_chunk_put_locked(struct job *j, struct chunk *c); /* drops one reference */
/* wlock. Gives blocks of free chunks back to the file system, until at most `leave` free chunks have any. */
int ptc_store_chunks_trim(struct job *j, size_t leave, struct ptc_error *err);
/* The place of the chunk's page header in the file, CHUNK_PAD + PAGE_HEADER before its bytes. */
int ptc_store_chunk_page(const struct job *j, const struct chunk *c, uint64_t *ret_off, struct ptc_error *err);
/* Tells huge_chunks.c that the job changes. chunks: the job has got new blocks; wlock. */
void ptc_store_huge_changed(struct job *j, bool chunks);
void ptc_store_huge_read(struct job *j); /* tells it that the job is read */
/* The calling thread has claimed it. False: bytes have changed since they were said to be there. */
bool ptc_store_chunk_sum(struct chunk *c);
/* Remembers the checksum of bytes that lie in one block, which has none yet. Without memory it is not remembered. */
void ptc_store_chunk_part(struct job *j, struct chunk *c, uint32_t at, uint32_t bytes);
/* Forgets what is remembered of [at, end) of the chunk. */
void ptc_store_chunk_parts_drop_locked(struct chunk *c, uint32_t at, uint32_t end);
/* Makes checksums of the blocks in the mask, whose bytes are there, unless they have early checksums. One thread for
 * each block. */
void ptc_store_chunk_sum_early(struct chunk *c, uint16_t blocks);
/* The count of the chunk's uses, never 0. A process notes the count, reads the chunk's bytes in the file, and reads the
 * count again. If it is unchanged, the bytes are the chunk's. */
uint64_t ptc_store_chunk_use(struct chunk *c);
void ptc_store_chunk_use_locked(struct job *j,
				struct chunk *c); /* adds a reference; a free chunk counts as used from then on */

/* huge_fill.c */
/* wlock. Gives a range of the job's file its blocks in huge pages as far as it can, if the file is on tmpfs. */
void ptc_store_huge_fill(struct job *j, uint64_t off, uint64_t bytes);
/* Moves a mapped range into huge pages, and fills its holes: 0 or errno. Each huge page needs a page that is there. */
int ptc_store_huge_collapse(void *map, size_t bytes);

/* spare_chunks.c */
/* What a memory of `total` bytes with `left` free ones allows. */
enum spare { SPARE_LESS, SPARE_SAME, SPARE_MORE };
enum spare ptc_store_spare_of(uint64_t total, uint64_t left);
/* The same for the machine and for the file system of the chunks. */
enum spare ptc_store_spare_look(const struct ptc_store *s);
/* Whether there may be something to do, so that it pays to look. */
bool ptc_store_spare_due(struct ptc_store *s);
/* Makes some free chunks ahead for one job, or gives some back. false: there was nothing to do, or somebody else works.
 */
bool ptc_store_spare_step(struct ptc_store *s, enum spare allowed);

/* huge_chunks.c */
void ptc_store_huge_begin(struct ptc_store *s);
void ptc_store_huge_end(struct ptc_store *s);
