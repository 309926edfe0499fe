/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a spec: what cannot be laid out is refused, what is probably not
 * meant is reported. Finds the rule that wins for an item. Pure; no allocation
 * outlives a call. */
#pragma once

#include "reshard/spec/spec.h"

/* Ambiguous, overlapping, uncovered or impossible rules: tensor, axis and sizes in err. Independent of any
 * configuration. */
int ptc_spec_lint(const struct ptc_spec *s, struct ptc_error *err);
/* What lint lets pass and is probably not meant: tensors that no rule covers or that rules contend for (wrong); rules
 * that match nothing, or leave it all to earlier ones (a note). One line each, borrowed for the call. */
typedef void (*ptc_review_fn)(void *arg, bool wrong, const char *text);
int ptc_spec_review(const struct ptc_spec *s, ptc_review_fn fn, void *arg, struct ptc_error *err);
/* What configurations leave uncut that is probably not meant so: a degree that cuts nothing, large tensors whole on
 * every rank, experts that the ep axis does not part. Without a configuration: what no degree of tp would cut. */
struct ptc_config;
int ptc_spec_review_cuts(const struct ptc_spec *s, const struct ptc_config *const *configs, size_t nconfigs,
			 ptc_review_fn fn, void *arg, struct ptc_error *err);

/* ---- for the rooms of reshard/ ---- */

/* Everything a layout trusts, except that each rule fits the tensors it wins (ptc_rule_fits). */
int ptc_spec_check(const struct ptc_spec *s, struct ptc_error *err);
/* The rule fits the item's shape and name. *ret_layer: its layer for PTC_PLACE_LAYER, else -1; *ret_expert likewise
 * where the rule has expert. rule may be NULL. */
int ptc_rule_fits(const struct ptc_spec *s, size_t item, const struct ptc_rule *rule, int64_t *ret_layer,
		  int64_t *ret_expert, struct ptc_error *err);
/* The number of the field that a rule derives from; 0: there is none of that name. */
size_t ptc_rule_master(const struct ptc_spec *s, const struct ptc_rule *r);
/* The rules of one tensor's items: ret[0] for the parameter, ret[f] for field f; NULL where none applies. */
void ptc_spec_tensor_rules(const struct ptc_spec *s, size_t tensor, const struct ptc_rule *ret[1 + PTC_MAX_FIELDS]);
/* "[4096, 1024]" into buf; returns buf. */
const char *ptc_shape_text(const struct ptc_tensor *t, char *buf, size_t size);
