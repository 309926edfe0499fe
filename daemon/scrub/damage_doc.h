/* SPDX-License-Identifier: Apache-2.0 */
/* /ptc/jobs/UUID/damage/NODE: a job's blocks on a node that are damaged and could not be healed. Plain data of the
 * caller, any thread.
 *
 * Failure modes: PTC_EINVAL (the document is malformed; the error names the member), PTC_ENOMEM. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct ptc_damaged_block {
	uint64_t generation, item; /* item: its number in the generation's description */
	const char *text;          /* "rows 64 to 127: block 1 of chunk 3 ..." */
};
struct ptc_damage_doc {
	uint64_t blocks;                /* damaged ones, in all */
	struct ptc_damaged_block *list; /* the first of them */
	size_t n;
};
char *ptc_damage_doc_encode(const struct ptc_damage_doc *d); /* ptc_free it; NULL: out of memory */
/* On failure *ret is empty. */
int ptc_damage_doc_decode(const char *json, size_t len, struct ptc_damage_doc *ret, struct ptc_error *err);
void ptc_damage_doc_done(struct ptc_damage_doc *d);
