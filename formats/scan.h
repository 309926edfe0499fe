/* SPDX-License-Identifier: Apache-2.0 */
/* Reading canonical JSON that we have written ourselves: no white space, keys
 * in a fixed order, numbers without leading zeros. What is read so is what
 * would be written again, and nothing is built in between. Every reader
 * returns 0, or a negative code with "WHAT: byte N: ..." in err. */
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
/* Whether text comes next; if so it is taken. */
bool ptc_scan_is(struct ptc_scan *s, const char *text);
int ptc_scan_text(struct ptc_scan *s, const char *text); /* it must come next */
int ptc_scan_end(struct ptc_scan *s);
int ptc_scan_number(struct ptc_scan *s, uint64_t max, uint64_t *ret);
/* A string literal of at most max bytes, which are UTF-8 without NUL; ptc_free it. */
int ptc_scan_string(struct ptc_scan *s, size_t max, char **ret);
/* The document begins {"version":n; one that is not from oldest to one above ours is PTC_EVERSION. */
int ptc_scan_version(struct ptc_scan *s, uint64_t oldest, uint64_t ours, uint64_t *ret_version);
/* The document ends here. Members that a later version has added before its end are passed over (formats/json.h,
 * "needs"). */
int ptc_scan_close(struct ptc_scan *s, bool later);
int ptc_scan_fail(struct ptc_scan *s, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
