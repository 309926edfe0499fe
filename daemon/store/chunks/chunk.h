/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks environment of one job: taking, freeing and summing chunks, giving their blocks back,
 * huge pages. Failure modes: chunk.c, huge_chunks.c. */
#pragma once

#include "daemon/store/chunks/store_state.h"

/* chunk.c */
char *ptc_store_job_dir(const struct job *j); /* the directory of its chunks; the caller frees it; NULL: no memory */
int ptc_store_chunks_create(struct job *j, struct ptc_error *err);
int ptc_store_chunks_open(struct job *j, struct ptc_error *err);
void ptc_store_chunks_close(struct job *j);
int ptc_store_chunks_reopen(const struct job *j, int flags);         /* a descriptor of its own; -1: errno */
int ptc_store_chunks_finalize(struct job *j, struct ptc_error *err); /* after the tables have been loaded */
/* wlock held. How many chunks may have blocks. */
uint64_t ptc_store_chunks_max(const struct ptc_store *s);
/* wlock held. Until at most `max` chunks have blocks, or those that are in use: free ones of other jobs than `but` lose theirs. */
void ptc_store_chunks_yield(struct ptc_store *s, const struct job *but, uint64_t max);
/* wlock held. Takes n free chunks (refs 0 -> 1), making new ones where needed. All or nothing. */
int ptc_store_chunks_take(struct job *j, size_t n, struct chunk **ret_chunks, struct ptc_error *err);
void ptc_store_chunk_map(struct chunk *c);
/* wlock held. At least n free chunks have blocks, and these are in our page table. */
int ptc_store_chunks_warm(struct job *j, size_t n, struct ptc_error *err);
void ptc_store_chunk_put_locked(struct job *j, struct chunk *c); /* drops one reference */
/* wlock held. Gives blocks of free chunks back to the file system until at most leave of them have any. */
int ptc_store_chunks_trim(struct job *j, size_t leave, struct ptc_error *err);
/* Where in the file the chunk's page header lies, CHUNK_PAD + PAGE_HEADER before its bytes. */
int ptc_store_chunk_page(const struct job *j, const struct chunk *c, uint64_t *ret_off, struct ptc_error *err);
/* wlock held. Tells huge_chunks.c that something is being done with the job; chunks: also with blocks it did not have. */
void ptc_store_huge_changed(struct job *j, bool chunks);
void ptc_store_chunk_sum(struct chunk *c);
/* Of blocks (a mask) whose bytes are there: those not summed early yet. One thread for each block. */
void ptc_store_chunk_sum_early(struct chunk *c, uint16_t blocks);
/* Never 0. Whoever knows it and has read the chunk's bytes in the file since, and then finds it unchanged, has read what they were. */
uint64_t ptc_store_chunk_use(struct chunk *c);
void ptc_store_chunk_fresh(struct chunk *c);
void ptc_store_chunk_use_locked(struct job *j, struct chunk *c); /* at open: refs 0 -> 1 of a cold one, else +1 */

/* huge_chunks.c */
void ptc_store_huge_begin(struct ptc_store *s);
void ptc_store_huge_end(struct ptc_store *s);
