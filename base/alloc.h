/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator that all of ptc uses, and the bound on its memory. protobuf-c and jansson get the same functions. So
 * tests can make each allocation fail in turn, and can fail on a leaked byte. Thread-safe.
 *
 * Failure mode: no memory, or the bound is reached. A function then returns NULL or false and changes nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *ptc_malloc(size_t size);
void *ptc_calloc(size_t count, size_t size); /* NULL if count * size overflows */
void *ptc_realloc(void *p, size_t size);     /* on failure p stays as it was */
/* realloc for `count` elements of `size` bytes each; NULL if count * size overflows. */
void *ptc_reallocarray(void *p, size_t count, size_t size);
void ptc_free(void *p); /* NULL ok */

/* Makes room for at least `need` elements in the array `v`, which has room for `cap`; sets both. The room grows by half
 * at least. false: out of memory; v and cap are unchanged. */
#define PTC_ROOM(v, need, cap)                                                                                         \
	({                                                                                                             \
		void *ptc_v_ = (v);                                                                                    \
		size_t ptc_cap_ = (cap);                                                                               \
		bool ptc_fits_ = ptc_grow(&ptc_v_, &ptc_cap_, need, sizeof *(v));                                      \
		(v) = ptc_v_;                                                                                          \
		(cap) = (__typeof__(cap))ptc_cap_;                                                                     \
		ptc_fits_;                                                                                             \
	})
/* Makes room for one more element in an array of n elements. The room doubles when n is a power of two, so no `cap` is
 * needed. Use nothing else to grow this array. false: out of memory. */
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
/* Formats into new memory; ptc_free it. NULL: out of memory. */
char *ptc_asprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* For tests. fail_at > 0: the fail_at-th allocation from now returns NULL, once. 0: no allocation is made to fail. */
void ptc_alloc_fail_at(uint64_t fail_at);
uint64_t ptc_alloc_count(void); /* allocations since start */
int64_t ptc_alloc_live(void);   /* blocks allocated and not freed */

/* Sets the bound. An allocation returns NULL if it would make the sum of all live ones exceed `limit` bytes, counted as
 * the C library rounds them. UINT64_MAX, the default: no bound. Memory that other libraries allocate does not count. */
void ptc_alloc_limit_set(uint64_t limit);
/* The last allocation that the bound refused to this thread, once: false if there was none since the last call. */
struct ptc_alloc_refusal {
	uint64_t size, free, limit; /* bytes: asked for, free at that time, the bound */
};
bool ptc_alloc_refused(struct ptc_alloc_refusal *ret);
uint64_t ptc_alloc_bytes(void); /* live bytes, counted as for the bound */
uint64_t ptc_alloc_peak(void);  /* the greatest value of ptc_alloc_bytes so far */
/* For programs that move many bytes. The C library then keeps about `most` bytes of freed memory (64 MiB at most) in
 * each of two arenas. Otherwise it returns freed memory to the system, and each page is faulted in and cleared again,
 * which costs a third of a bulk stream's CPU time. This changes malloc for the whole process, so no library calls it.
 * Call it before any thread starts. */
void ptc_alloc_keep(uint32_t most);
/* Returns the freed memory that the C library keeps to the system. Takes milliseconds; later use faults the pages in
 * again. */
void ptc_alloc_trim(void);
