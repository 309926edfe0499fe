/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a spec. An error is a spec that cannot be laid out; a remark is a spec that probably means something else.
 * Also finds the rule that wins for an item. Pure; no allocation outlives a call. */
#pragma once

#include "reshard/spec/spec.h"

/* Refuses ambiguous, overlapping, uncovered or impossible rules; err names tensor, axis and sizes. Does not depend on a
 * configuration. */
int ptc_spec_lint(const struct ptc_spec *s, struct ptc_error *err);
/* Reports what lint accepts but the user probably does not mean. `wrong`: tensors that no rule covers, or for which
 * rules contend. Notes: rules that match nothing, or leave all tensors to earlier rules. One line each, borrowed during
 * the call. */
typedef void (*ptc_review_fn)(void *arg, bool wrong, const char *text);
int ptc_spec_review(const struct ptc_spec *s, ptc_review_fn fn, void *arg, struct ptc_error *err);
/* Reports what these configurations leave uncut, probably by mistake: a degree that cuts nothing; large tensors whole
 * on every rank; experts that the ep axis does not divide. Without a configuration: tensors that no degree of tp would
 * cut. */
struct ptc_config;
int ptc_spec_review_cuts(const struct ptc_spec *s, const struct ptc_config *const *configs, size_t nconfigs,
			 ptc_review_fn fn, void *arg, struct ptc_error *err);

/* ---- for the rooms of reshard/ ---- */

/* Checks everything that a layout relies on, except that each rule fits the tensors that it wins (ptc_rule_fits). */
int ptc_spec_check(const struct ptc_spec *s, struct ptc_error *err);
/* Checks that the rule fits the item's shape and name. *ret_layer is the item's layer for PTC_PLACE_LAYER, else -1.
 * *ret_expert is its expert where the rule has `expert`, else -1. rule may be NULL. */
int ptc_rule_fits(const struct ptc_spec *s, size_t item, const struct ptc_rule *rule, int64_t *ret_layer,
		  int64_t *ret_expert, struct ptc_error *err);
/* The number of the field from which the rule derives; 0: there is no field of that name. */
size_t ptc_rule_master(const struct ptc_spec *s, const struct ptc_rule *r);
/* The rules that win for one tensor's items: ret[0] for the parameter, ret[f] for field f; NULL: no rule. */
void ptc_spec_tensor_rules(const struct ptc_spec *s, size_t tensor, const struct ptc_rule *ret[1 + PTC_MAX_FIELDS]);
/* Writes a shape such as "[4096, 1024]" into buf; returns buf. */
const char *ptc_shape_text(uint32_t ndim, const int64_t *shape, char *buf, size_t size);
const char *ptc_tensor_text(const struct ptc_tensor *t, char *buf, size_t size); /* the same, as "F32 [4096, 1024]" */
bool ptc_tensor_same(const struct ptc_tensor *a, const struct ptc_tensor *b);    /* in dtype and shape */
