/* SPDX-License-Identifier: Apache-2.0 */
/* Three kinds of assertion, by what happens next, and overflow-checked
 * arithmetic for numbers that come from outside. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Noreturn void ptc_check_abort(const char *file, int line, const char *func, const char *what);
void ptc_check_note(const char *file, int line, const char *func, const char *what);

/* Always checked; a failure means going on would risk state, so abort. */
#define ptc_require(x) ((x) ? (void)0 : ptc_check_abort(__FILE__, __LINE__, __func__, #x))

/* Debug builds only (cmake preset dev and asan-ubsan define PTC_DEBUG). */
#ifdef PTC_DEBUG
#define ptc_assert(x) ptc_require(x)
#else
#define ptc_assert(x) ((void)sizeof(!(x)))
#endif

/* "if (ptc_fails(n < max)) return PTC_EINTERNAL;": logged, recoverable. */
#define ptc_fails(x) (__builtin_expect(!(x), 0) ? (ptc_check_note(__FILE__, __LINE__, __func__, #x), true) : false)

/* true on overflow; *ret is then unspecified (same contract as C23 ckd_*). */
#define ptc_ckd_add(ret, a, b) __builtin_add_overflow((a), (b), (ret))
#define ptc_ckd_sub(ret, a, b) __builtin_sub_overflow((a), (b), (ret))
#define ptc_ckd_mul(ret, a, b) __builtin_mul_overflow((a), (b), (ret))

#define PTC_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define PTC_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define PTC_MAX(a, b)    ((a) > (b) ? (a) : (b))
