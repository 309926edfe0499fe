/* SPDX-License-Identifier: Apache-2.0 */
/* See alloc.h. */
#include "base/alloc.h"

#include "base/check.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FEW 8 /* a growing array begins with; a power of two */

static atomic_uint_fast64_t count;
static atomic_int_fast64_t live;
static atomic_int_fast64_t fail_in; /* 0: off; 1: the next one fails */
static atomic_uint_fast64_t bytes, peak;
static atomic_uint_fast64_t limit = UINT64_MAX;

static bool must_fail(void)
{
	atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
	if (atomic_load_explicit(&fail_in, memory_order_relaxed) <= 0)
		return false;
	return atomic_fetch_sub_explicit(&fail_in, 1, memory_order_relaxed) == 1;
}

/* Before the memory is there, so that threads at the same time cannot pass the bound together. */
static bool reserve(uint64_t n)
{
	uint64_t now = atomic_fetch_add_explicit(&bytes, n, memory_order_relaxed) + n;
	uint64_t most = atomic_load_explicit(&peak, memory_order_relaxed);

	if (now > atomic_load_explicit(&limit, memory_order_relaxed)) {
		atomic_fetch_sub_explicit(&bytes, n, memory_order_relaxed);
		return false;
	}
	while (now > most &&
	       !atomic_compare_exchange_weak_explicit(&peak, &most, now, memory_order_relaxed, memory_order_relaxed))
		;
	return true;
}

/* For the message: what this thread was refused last. */
static _Thread_local struct ptc_alloc_refusal refused;

static bool reserve_or_say(uint64_t n)
{
	uint64_t most = atomic_load_explicit(&limit, memory_order_relaxed), now;

	if (reserve(n))
		return true;
	now = atomic_load_explicit(&bytes, memory_order_relaxed);
	refused = (struct ptc_alloc_refusal){ n, now < most ? most - now : 0, most };
	return false;
}

/* Asked for n bytes, counted as what p really takes. */
static void *settle(void *p, uint64_t n)
{
	uint64_t real = p ? malloc_usable_size(p) : 0;

	atomic_fetch_add_explicit(&bytes, real - n, memory_order_relaxed); /* modulo 2^64 */
	return p;
}

static void *counted(void *p, uint64_t n)
{
	if (p)
		atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
	return settle(p, n);
}

void *ptc_malloc(size_t size)
{
	if (must_fail() || !reserve_or_say(size))
		return NULL;
	return counted(malloc(size ? size : 1), size);
}

void *ptc_calloc(size_t n, size_t size)
{
	size_t all;

	if (must_fail() || ptc_ckd_mul(&all, n, size) || !reserve_or_say(all))
		return NULL;
	return counted(calloc(n ? n : 1, size ? size : 1), all);
}

void *ptc_realloc(void *p, size_t size)
{
	uint64_t before;
	void *q;

	if (!p)
		return ptc_malloc(size);
	if (must_fail() || !reserve_or_say(size))
		return NULL;
	before = malloc_usable_size(p);
	q = realloc(p, size ? size : 1);
	return settle(q, q ? size + before : size);
}

void *ptc_reallocarray(void *p, size_t n, size_t size)
{
	size_t all;

	if (ptc_ckd_mul(&all, n, size))
		return NULL;
	return ptc_realloc(p, all);
}

bool ptc_grow(void **v, size_t *cap, size_t need, size_t size)
{
	size_t want = PTC_MAX(need, *cap + *cap / 2 + FEW);
	void *more;

	if (need <= *cap)
		return true;
	more = ptc_reallocarray(*v, want, size);
	if (!more)
		return false;
	*v = more;
	*cap = want;
	return true;
}

bool ptc_grow_one(void **v, size_t n, size_t size)
{
	size_t cap = n;

	if (n && (n < FEW || (n & (n - 1))))
		return true;
	return ptc_grow(v, &cap, n ? 2 * n : FEW, size);
}

void ptc_free(void *p)
{
	if (!p)
		return;
	atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
	atomic_fetch_sub_explicit(&bytes, malloc_usable_size(p), memory_order_relaxed);
	free(p);
}

char *ptc_strndup(const char *s, size_t n)
{
	size_t len = strnlen(s, n);
	char *copy = ptc_malloc(len + 1);

	if (!copy)
		return NULL;
	memcpy(copy, s, len);
	copy[len] = '\0';
	return copy;
}

char *ptc_strdup(const char *s)
{
	return ptc_strndup(s, strlen(s));
}

char *ptc_asprintf(const char *fmt, ...)
{
	va_list ap;
	char *s;
	int len;

	va_start(ap, fmt);
	len = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	s = len < 0 ? NULL : ptc_malloc((size_t)len + 1);
	if (!s)
		return NULL;
	va_start(ap, fmt);
	vsnprintf(s, (size_t)len + 1, fmt, ap);
	va_end(ap);
	return s;
}

void ptc_alloc_fail_at(uint64_t fail_at)
{
	atomic_store(&fail_in, (int_fast64_t)fail_at);
}

uint64_t ptc_alloc_count(void)
{
	return atomic_load(&count);
}

int64_t ptc_alloc_live(void)
{
	return atomic_load(&live);
}

void ptc_alloc_limit_set(uint64_t most)
{
	atomic_store(&limit, most);
}

bool ptc_alloc_refused(struct ptc_alloc_refusal *ret)
{
	if (!refused.limit)
		return false;
	*ret = refused;
	refused = (struct ptc_alloc_refusal){ 0 };
	return true;
}

uint64_t ptc_alloc_bytes(void)
{
	return atomic_load(&bytes);
}

uint64_t ptc_alloc_peak(void)
{
	return atomic_load(&peak);
}

void ptc_alloc_keep(uint32_t most)
{
	mallopt(M_ARENA_MAX, 2); /* each may keep as much, and slices are freed by other threads than took them */
	mallopt(M_MMAP_THRESHOLD, (int)(most / 2));
	mallopt(M_TRIM_THRESHOLD, (int)most);
}

void ptc_alloc_trim(void)
{
	malloc_trim(0);
}
