/* SPDX-License-Identifier: Apache-2.0 */
/* The long values of a manifest's text: one digest for each tensor, and the list of each file's tensors. A JSON tree of
 * them has 50 times their size and takes most of the time of reading and writing a manifest. So these values are found
 * in the text, and read and written directly; a tree is made of the rest.
 *
 * A value is taken only if it has the compact form that we write. Anything else in its place is left to the reader of
 * the rest, which reports the error. Pure; any thread. Failure mode: PTC_ENOMEM. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_long_value {
	bool digests;          /* the member "digests"; false: "items" of an element of "files" */
	size_t file;           /* the number of that element */
	const char *from, *to; /* between the quotes, or the brackets */
};
/* Set text and end, zero the rest. */
struct ptc_long_scan {
	const char *at, *end;
	unsigned depth; /* private, as all below */
	bool in_files;
	size_t nfiles;
};
/* The next one in the text; false: there is none. */
bool ptc_long_next(struct ptc_long_scan *s, struct ptc_long_value *ret);
/* Reads the value; ptc_free it. Of an empty one *ret is not NULL either. PTC_EINVAL: it has other digits than ours. */
int ptc_long_digests(const struct ptc_long_value *v, uint64_t **ret, size_t *ret_n);
int ptc_long_items(const struct ptc_long_value *v, uint32_t **ret, size_t *ret_n);
/* Appends what goes between the quotes, or the brackets. */
void ptc_long_put_digests(struct ptc_buf *b, const uint64_t *v, size_t n);
void ptc_long_put_items(struct ptc_buf *b, const uint32_t *v, size_t n);
