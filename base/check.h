/* SPDX-License-Identifier: Apache-2.0 */
/* Three kinds of assertion, which differ by what happens on failure; and arithmetic that detects overflow, for numbers
 * that come from outside. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Noreturn void ptc_check_abort(const char *file, int line, const char *func, const char *what);
void ptc_check_note(const char *file, int line, const char *func, const char *what);

/* Always checked. A failure aborts the process, because going on could damage state. */
#define ptc_require(x) ((x) ? (void)0 : ptc_check_abort(__FILE__, __LINE__, __func__, #x))

/* Checked in debug builds only (the presets dev and asan-ubsan define PTC_DEBUG). */
#ifdef PTC_DEBUG
#define ptc_assert(x) ptc_require(x)
#else
#define ptc_assert(x) ((void)sizeof(!(x)))
#endif

/* "if (ptc_fails(n < max)) return PTC_EINTERNAL;": a failure is logged, and the caller goes on. */
#define ptc_fails(x) (__builtin_expect(!(x), 0) ? (ptc_check_note(__FILE__, __LINE__, __func__, #x), true) : false)

/* true on overflow; *ret is then unspecified (as with C23's ckd_*). */
#define ptc_ckd_add(ret, a, b) __builtin_add_overflow((a), (b), (ret))
#define ptc_ckd_mul(ret, a, b) __builtin_mul_overflow((a), (b), (ret))

#define PTC_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define PTC_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define PTC_MAX(a, b)    ((a) > (b) ? (a) : (b))
