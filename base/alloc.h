/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator seam. Everything in ptc allocates through here, and
 * protobuf-c and jansson are given it too, so that tests can make each
 * allocation fail in turn and fail on a leaked byte. Thread-safe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *ptc_malloc(size_t size);
void *ptc_calloc(size_t count, size_t size); /* overflow-checked */
void *ptc_realloc(void *p, size_t size);     /* on failure p is untouched */
/* realloc for count elements of size bytes, overflow-checked. */
void *ptc_reallocarray(void *p, size_t count, size_t size);
void ptc_free(void *p); /* NULL is fine */

/* Growing arrays. Room for at least `need` elements in the array `v`, which has room for `cap` (both are set); it grows
 * by half at least. false: out of memory, and neither has changed. */
#define PTC_ROOM(v, need, cap)                                                                                         \
	({                                                                                                             \
		void *ptc_v_ = (v);                                                                                    \
		size_t ptc_cap_ = (cap);                                                                               \
		bool ptc_fits_ = ptc_grow(&ptc_v_, &ptc_cap_, need, sizeof *(v));                                      \
		(v) = ptc_v_;                                                                                          \
		(cap) = (__typeof__(cap))ptc_cap_;                                                                     \
		ptc_fits_;                                                                                             \
	})
/* Room for one more element in an array of n that no other call makes larger: it grows at powers of two, and needs no
 * `cap`. */
#define PTC_MORE(v, n)                                                                                                 \
	({                                                                                                             \
		void *ptc_v_ = (v);                                                                                    \
		bool ptc_fits_ = ptc_grow_one(&ptc_v_, n, sizeof *(v));                                                \
		(v) = ptc_v_;                                                                                          \
		ptc_fits_;                                                                                             \
	})
bool ptc_grow(void **v, size_t *cap, size_t need, size_t size);
bool ptc_grow_one(void **v, size_t n, size_t size);
char *ptc_strdup(const char *s);
char *ptc_strndup(const char *s, size_t n);
/* vasprintf over the seam; NULL when out of memory. */
char *ptc_asprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Test side. fail_at > 0: the fail_at-th allocation from now returns NULL
 * (once); 0 switches injection off. */
void ptc_alloc_fail_at(uint64_t fail_at);
uint64_t ptc_alloc_count(void); /* allocations since start */
int64_t ptc_alloc_live(void);   /* blocks allocated and not freed */

/* The bound. Allocations that would take more than limit bytes in all (as the C library rounds them) return NULL;
 * UINT64_MAX, the default: no bound. What other libraries allocate for themselves does not count. */
void ptc_alloc_limit_set(uint64_t limit);
uint64_t ptc_alloc_bytes(void); /* allocated and not freed */
uint64_t ptc_alloc_peak(void);  /* the most there were */
/* For programs that move much: the C library keeps freed memory, some `most` bytes (64 MiB at most) in each of two
 * arenas, instead of giving it back and having each page faulted in and cleared again (a third of a bulk stream's CPU
 * time). The whole process's malloc is affected, so a library does not call it. Before any thread. */
void ptc_alloc_keep(uint32_t most);
/* Gives what the C library keeps of freed memory back to the system. Takes milliseconds; the next use faults it in. */
void ptc_alloc_trim(void);
