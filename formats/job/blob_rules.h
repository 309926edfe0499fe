/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of ranks' blobs (formats/state/state_doc.h) in a switch: "blobs" of
 * job.yaml (docs/job.md), and the decision by it. The first rule whose pattern
 * fits a blob's name counts:
 *
 *   none        restored where the coordinates (tp, pp, dp, cp) exist. What has no place stays in the state document,
 * for a later configuration that has it again, until ranks give a new one carry       as none, but each blob must find
 * its place and each new rank have one; else the switch is refused replicate   a rank that has none of its own is given
 * that of the lowest rank which has one reset       no rank of the new generation has one refuse      no rank may give
 * one
 *
 * A rank is gone when its coordinates exist in the old configuration and not in the new one, and new the other way
 * round. A job's blob (PTC_STATE_JOB) finds its place always: only reset and refuse are of it, too. A blob of scope
 * PTC_STATE_TP finds its place wherever its tensor-parallel group has one and all ranks of that have the same bytes;
 * else it is as a rank's own. Failure modes: PTC_ESTATE naming blob, rule and ranks; PTC_ELIMIT where replicas come to
 * more than a state document holds; PTC_ENOMEM. Pure. */
#pragma once

#include "formats/state/state_doc.h"

#define PTC_BLOB_RULES_MAX 256 /* of a job; a rank has PTC_STATE_BLOBS names */

enum ptc_blob_fate { PTC_FATE_NONE, PTC_FATE_CARRY, PTC_FATE_REPLICATE, PTC_FATE_RESET, PTC_FATE_REFUSE };
const char *ptc_blob_fate_name(enum ptc_blob_fate fate); /* as job.yaml says it; NULL for none */

struct ptc_blob_rule {
	char *match; /* glob over the blob's name, as a rule's of reshard/spec/rule.h */
	enum ptc_blob_fate fate;
};
struct ptc_blob_rules {
	struct ptc_blob_rule *v;
	size_t n;
};
void ptc_blob_rules_done(struct ptc_blob_rules *r); /* NULL ok; zeroes it */
/* Whether nothing fits `later` that does not fit `earlier`; false where that cannot be told from the patterns. */
bool ptc_blob_rule_shadows(const char *earlier, const char *later);

/* What ranks gave: PTC_ESTATE where a rule refuses one of it. */
int ptc_blobs_check(const struct ptc_blob_rules *rules, const struct ptc_state *state, struct ptc_error *err);

#define PTC_BLOBS_TEXT 1536
/* What a switch does not bring to where it was. */
struct ptc_blobs_review {
	uint64_t gone;             /* per-rank blobs of ranks that are gone, and not carried */
	uint32_t without;          /* new ranks that have none of some name which other ranks have one of */
	uint64_t replicated;       /* per-rank blobs that are another rank's */
	uint64_t group;            /* per-rank blobs that are those of ranks which differ in tp only (PTC_STATE_TP) */
	uint64_t reset;            /* blobs, a job's too */
	char text[PTC_BLOBS_TEXT]; /* all of it in one line; "": there is nothing to say */
};
struct ptc_blobs_switch {
	const struct ptc_blob_rules *rules;
	const struct ptc_state *state; /* of the snapshot */
	const struct ptc_config *from, *to;
};
/* *ret_changed: the new generation has another state document, which is in *ret_state then; else that is left as it is.
 * Its ranks are numbered by the new configuration, those without a place in it come after. */
int ptc_blobs_apply(const struct ptc_blobs_switch *sw, struct ptc_blobs_review *ret_review, bool *ret_changed,
		    struct ptc_state *ret_state, struct ptc_error *err);
