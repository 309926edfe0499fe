/* SPDX-License-Identifier: Apache-2.0 */
/* Filling the error object that is used at every API, CLI and RPC boundary. The object itself and the
 * codes are in <ptc/error.h>, which is installed with libptcadmin. */
#pragma once

#include "base/include/ptc/error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Stores code and text; returns code, so that "return ptc_error_set(...)" reads well. */
int ptc_error_set(struct ptc_error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* PTC_ENOMEM and its text: the one way to say so. */
int ptc_nomem(struct ptc_error *err);
int ptc_error_vset(struct ptc_error *err, int code, const char *fmt, va_list ap);
/* Same with ": strerror(errnum)" appended; code is derived from errnum (ENOSPC, ENOMEM, EACCES, ENOENT, EEXIST, else
 * PTC_EIO). */
int ptc_error_errno(struct ptc_error *err, int errnum, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "context: " before the text already there; returns err's code (PTC_EINTERNAL for NULL: keep the code yourself
 * then). */
int ptc_error_wrap(struct ptc_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A code from the wire: itself if known, else PTC_EINTERNAL. 0 stays 0. */
int ptc_status_from_wire(int code);

#ifdef __cplusplus
}
#endif
