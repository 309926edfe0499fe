/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that fill struct ptc_error, which every API, CLI and RPC boundary uses. The struct and the codes are in
 * <ptc/error.h>, which is installed with libptcadmin. Every function accepts a NULL err. */
#pragma once

#include "base/include/ptc/error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Stores code and text. Returns code, so that "return ptc_error_set(...)" reads well. */
int ptc_error_set(struct ptc_error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Stores PTC_ENOMEM with its text, and returns the code. Report lack of memory by this function only. */
int ptc_nomem(struct ptc_error *err);
int ptc_error_vset(struct ptc_error *err, int code, const char *fmt, va_list ap);
/* Does the same and appends ": strerror(errnum)". The code follows from errnum: ENOSPC, ENOMEM, EACCES, ENOENT and
 * EEXIST have codes of their own, all others are PTC_EIO. */
int ptc_error_errno(struct ptc_error *err, int errnum, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "context: " before the text of err, and returns err's code. If err is NULL, it returns PTC_EINTERNAL, so keep
 * the code yourself. */
int ptc_error_wrap(struct ptc_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Turns a code from the wire into a known one: an unknown code becomes PTC_EINTERNAL. 0 stays 0. */
int ptc_status_from_wire(int code);

#ifdef __cplusplus
}
#endif

/* For clang-tidy, which reads one file at a time: a function that reports an error never returns 0. A header that
 * declares such a function says so in the same way; its definition then has the name in brackets. */
#ifdef __clang_analyzer__
#define PTC_NEVER_0(call)                                                                                              \
	({                                                                                                             \
		int ptc_code_ = (call);                                                                                \
		__builtin_assume(ptc_code_ != 0);                                                                      \
		ptc_code_;                                                                                             \
	})
#define ptc_error_set(...)   PTC_NEVER_0(ptc_error_set(__VA_ARGS__))
#define ptc_error_vset(...)  PTC_NEVER_0(ptc_error_vset(__VA_ARGS__))
#define ptc_error_errno(...) PTC_NEVER_0(ptc_error_errno(__VA_ARGS__))
#define ptc_error_wrap(...)  PTC_NEVER_0(ptc_error_wrap(__VA_ARGS__))
#define ptc_nomem(err)       PTC_NEVER_0(ptc_nomem(err))
#endif
