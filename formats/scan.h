/* SPDX-License-Identifier: Apache-2.0 */
/* Reads canonical JSON, which our own writers make: no white space, keys in a fixed order, numbers without leading
 * zeros. The bytes read equal the bytes that would be written again. No tree is made. Every reader returns 0, or a
 * negative code with "WHAT: byte N: ..." in err. Not thread-safe. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_scan {
	const char *what; /* names the document in errors */
	const char *begin, *at, *end;
	struct ptc_error *err;
};
/* Whether `text` comes next; if so, goes past it. */
bool ptc_scan_is(struct ptc_scan *s, const char *text);
int ptc_scan_text(struct ptc_scan *s, const char *text); /* goes past `text`, which must come next */
int ptc_scan_number(struct ptc_scan *s, uint64_t max, uint64_t *ret);
/* Reads a string literal of at most max bytes, UTF-8 without NUL; ptc_free it. */
int ptc_scan_string(struct ptc_scan *s, size_t max, char **ret);
/* Reads the begin of a document, {"version":n. PTC_EVERSION: n is not from `oldest` to one above `ours`. */
int ptc_scan_version(struct ptc_scan *s, uint64_t oldest, uint64_t ours, uint64_t *ret_version);
/* Reads the end of a document. later: members before the end, which a later version has added, are skipped
 * (formats/json.h, "needs"). */
int ptc_scan_close(struct ptc_scan *s, bool later);
int ptc_scan_fail(struct ptc_scan *s, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#ifdef __clang_analyzer__
#define ptc_scan_fail(...) PTC_NEVER_0(ptc_scan_fail(__VA_ARGS__))
#endif
