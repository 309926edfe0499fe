/* SPDX-License-Identifier: Apache-2.0 */
/* The content of one rule, and whether two rules are equal. Comparisons; nothing can fail. */
#include "reshard/spec/rule.h"

#include <string.h>

bool ptc_rule_names_axis(const struct ptc_rule *r, enum ptc_axis axis)
{
	for (size_t i = 0; r && i < PTC_MAX_SPLITS && r->splits[i].axis != PTC_AXIS_NONE; i++)
		if (r->splits[i].axis == axis)
			return true;
	return false;
}

bool ptc_rule_is_expert(const struct ptc_rule *r)
{
	return r && (r->expert || ptc_rule_names_axis(r, PTC_AXIS_EP) || ptc_rule_names_axis(r, PTC_AXIS_ETP));
}

static bool same_numbers(const int64_t *a, size_t na, const int64_t *b, size_t nb)
{
	return na == nb && (!na || !memcmp(a, b, na * sizeof *a));
}

static bool same_text(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : a == b;
}

static bool same_split(const struct ptc_split *a, const struct ptc_split *b)
{
	return a->axis == b->axis && a->dim == b->dim && a->kind == b->kind && a->ratio == b->ratio &&
	       a->interleave == b->interleave && a->unit == b->unit && a->pad_to == b->pad_to &&
	       same_numbers(a->blocks, a->nblocks, b->blocks, b->nblocks) && !a->units == !b->units &&
	       (!a->units || same_numbers(a->units, a->nblocks, b->units, b->nblocks)) &&
	       same_numbers(a->permute, a->npermute, b->permute, b->npermute);
}

bool ptc_rule_same_place(const struct ptc_rule *a, const struct ptc_rule *b)
{
	for (size_t i = 0; i < PTC_MAX_SPLITS; i++)
		if (!same_split(&a->splits[i], &b->splits[i]))
			return false;
	return a->place == b->place && a->layer_offset == b->layer_offset && a->shard == b->shard &&
	       a->shard_dim == b->shard_dim && same_text(a->layer, b->layer) && same_text(a->expert, b->expert) &&
	       same_numbers(a->experts, a->nexperts, b->experts, b->nexperts);
}
