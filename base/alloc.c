/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"

#include "base/check.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint_fast64_t count;
static atomic_int_fast64_t live;
static atomic_int_fast64_t fail_in; /* 0: off; 1: the next one fails */

static bool must_fail(void)
{
	atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
	if (atomic_load_explicit(&fail_in, memory_order_relaxed) <= 0)
		return false;
	return atomic_fetch_sub_explicit(&fail_in, 1, memory_order_relaxed) == 1;
}

static void *counted(void *p)
{
	if (p)
		atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
	return p;
}

void *ptc_malloc(size_t size)
{
	return must_fail() ? NULL : counted(malloc(size ? size : 1));
}

void *ptc_calloc(size_t n, size_t size)
{
	return must_fail() ? NULL : counted(calloc(n ? n : 1, size ? size : 1));
}

void *ptc_realloc(void *p, size_t size)
{
	void *q;

	if (!p)
		return ptc_malloc(size);
	if (must_fail())
		return NULL;
	q = realloc(p, size ? size : 1);
	return q;
}

void *ptc_reallocarray(void *p, size_t n, size_t size)
{
	size_t bytes;

	if (ptc_ckd_mul(&bytes, n, size))
		return NULL;
	return ptc_realloc(p, bytes);
}

void ptc_free(void *p)
{
	if (!p)
		return;
	atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
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
