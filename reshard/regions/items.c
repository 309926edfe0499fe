/* SPDX-License-Identifier: Apache-2.0 */
/* The places of items: each one's rule, pipeline stage and place on the ep axis, and the ranks that hold the same
 * (cells). Failure modes: rules and configuration contradict each other (PTC_ELAYOUT naming tensor and numbers),
 * memory. */
#include "reshard/regions/internal.h"
#include "reshard/spec/lint.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* Layer -> stage of pp*vpp, for all layers. */
static int map_stages(const struct ptc_config *c, int64_t layers, uint32_t *stages, struct ptc_error *err)
{
	uint32_t all = c->pp * PTC_MAX(c->vpp, 1u);
	int64_t sum = 0, at = 0;

	for (uint32_t i = 0; i < c->nstages; i++)
		sum += c->stages[i];
	if (c->nstages && sum != layers)
		return ptc_error_set(err, PTC_ELAYOUT, "configuration: stages sum to %lld, the model has %lld layers",
				     (long long)sum, (long long)layers);
	for (uint32_t s = 0; s < all; s++) {
		int64_t n = c->nstages ? c->stages[s] : layers / all + (s < layers % all);

		while (n-- > 0)
			stages[at++] = s;
	}
	return 0;
}

/* The place of expert e in the order that the rule, or else the configuration, states. */
static int64_t expert_place(const struct ptc_layout *l, const struct ptc_rule *r, int64_t e)
{
	const struct ptc_config *c = &l->config;

	for (size_t i = 0; i < r->nexperts; i++)
		if (r->experts[i] == e)
			return (int64_t)i;
	for (uint32_t i = 0; !r->nexperts && i < c->nexperts; i++)
		if ((int64_t)c->experts[i] == e)
			return i;
	return e;
}

/* Tensors of one expert each: how many experts the item's rule has, and so on which rank of the ep axis the item is. */
static int place_expert(struct ptc_layout *l, uint32_t item, const int64_t *experts, struct ptc_error *err)
{
	const struct ptc_rule *r = l->items[item].rule;
	size_t given = r->nexperts ? r->nexperts : l->config.nexperts;
	int64_t n = experts[r - l->spec->rules];
	char name[PTC_ITEM_NAME_SIZE];

	ptc_item_name(l->spec, item, name, sizeof name);
	if (given && (int64_t)given != n)
		return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": rule \"%s\" has %lld experts, %s orders %zu",
				     name, r->match, (long long)n, r->nexperts ? "the rule" : "the configuration",
				     given);
	if (n % l->config.ep)
		return ptc_error_set(err, PTC_ELAYOUT,
				     "tensor \"%s\": the %lld experts of rule \"%s\" are not divisible by ep %u", name,
				     (long long)n, r->match, l->config.ep);
	l->items[item].ep = (uint32_t)(expert_place(l, r, l->items[item].ep) / (n / l->config.ep));
	return 0;
}

/* Looks up every item's rule; items[].ep is the expert until it is placed. experts counts, per
 * rule. */
static int find_rules(struct ptc_layout *l, int64_t *ret_layers, int64_t *experts, struct ptc_error *err)
{
	const struct ptc_rule *rules[1 + PTC_MAX_FIELDS];
	char name[PTC_ITEM_NAME_SIZE];
	int64_t layers = 0, layer = -1, expert = -1;

	for (size_t item = 0; item < l->nitems; item++) {
		size_t f = item % (1 + l->spec->nfields);
		int rc = 0;

		if (f == 0)
			ptc_spec_tensor_rules(l->spec, item / (1 + l->spec->nfields), rules);
		if (f == 0 || rules[f] != rules[f - 1]) /* what fits the parameter fits its fields */
			rc = ptc_rule_fits(l->spec, item, rules[f], &layer, &expert, err);
		if (rc)
			return rc;
		if (rules[f] && rules[f]->carry == PTC_CARRY_REFUSE)
			return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": rule \"%s\" refuses to lay it out",
					     ptc_item_name(l->spec, item, name, sizeof name), rules[f]->match);
		l->items[item].rule = rules[f];
		ptc_ways_finalize(l, (uint32_t)item);
		l->items[item].layer = layer < 0 ? 0 : (uint32_t)layer;
		l->items[item].ep = expert < 0 ? 0 : (uint32_t)expert;
		layers = PTC_MAX(layers, layer + 1);
		if (expert >= 0)
			experts[rules[f] - l->spec->rules] = PTC_MAX(experts[rules[f] - l->spec->rules], expert + 1);
	}
	*ret_layers = layers;
	return 0;
}

int ptc_items_place(struct ptc_layout *l, struct ptc_error *err)
{
	int64_t layers = 0, *experts = ptc_calloc(l->spec->nrules, sizeof *experts);
	uint32_t *stages = NULL;
	int rc = experts ? find_rules(l, &layers, experts, err) : PTC_ENOMEM;

	if (!rc && !(stages = ptc_calloc((size_t)layers, sizeof *stages)))
		rc = PTC_ENOMEM;
	if (rc == PTC_ENOMEM)
		ptc_error_set(err, rc, "layout: out of memory");
	if (!rc)
		rc = map_stages(&l->config, layers, stages, err);
	for (uint32_t i = 0; i < l->nitems && !rc; i++) {
		const struct ptc_rule *r = l->items[i].rule;

		if (r && r->place == PTC_PLACE_LAYER) {
			l->items[i].chunk = stages[l->items[i].layer];
			l->items[i].stage = l->items[i].chunk % l->config.pp;
		}
		if (r && r->expert)
			rc = place_expert(l, i, experts, err);
	}
	ptc_free(stages);
	ptc_free(experts);
	return rc;
}

/* What decides which parts a rank has, most significant first. */
struct cell_key {
	uint32_t v[8], rank;
};
enum { KEY_ZERO, KEY_PP, KEY_TP, KEY_DP, KEY_CP, KEY_EP, KEY_ETP, KEY_EDP };

static int by_key(const void *pa, const void *pb)
{
	const struct cell_key *a = pa, *b = pb;

	for (size_t i = 0; i < PTC_ARRAY_LEN(a->v); i++)
		if (a->v[i] != b->v[i])
			return a->v[i] < b->v[i] ? -1 : 1;
	return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Which ways cut anything, for dense and for expert items. */
static void find_ways(const struct ptc_layout *l, bool used[2][PTC_WAYS])
{
	uint32_t cuts[2] = { 0 };

	for (uint32_t item = 0; item < l->nitems; item++) {
		const struct ptc_layout_item *i = &l->items[item];

		cuts[i->expert] |= i->cuts;
		used[1][PTC_AXIS_EP] |= i->rule && i->rule->expert;
	}
	for (uint32_t way = PTC_AXIS_TP; way < PTC_WAYS; way++)
		for (size_t k = 0; k < 2; k++)
			used[k][way] |= cuts[k] >> way & 1;
}

static struct cell_key key_of(const struct ptc_layout *l, uint32_t rank, bool used[2][PTC_WAYS])
{
	uint32_t at[2][PTC_WAYS];
	struct cell_key k = { .rank = rank };

	ptc_regions_indices(l, rank, false, at[0]);
	ptc_regions_indices(l, rank, true, at[1]);
	k.v[KEY_ZERO] = used[0][PTC_BY_ZERO] ? at[0][PTC_BY_ZERO] : 0;
	k.v[KEY_PP] = ptc_config_coords(&l->config, rank).pp;
	k.v[KEY_TP] = at[0][PTC_AXIS_TP];
	k.v[KEY_DP] = used[0][PTC_AXIS_DP] || used[1][PTC_AXIS_DP] ? at[0][PTC_AXIS_DP] : 0;
	k.v[KEY_CP] = used[0][PTC_AXIS_CP] || used[1][PTC_AXIS_CP] ? at[0][PTC_AXIS_CP] : 0;
	k.v[KEY_EP] = used[1][PTC_AXIS_EP] ? at[1][PTC_AXIS_EP] : 0;
	k.v[KEY_ETP] = used[1][PTC_AXIS_ETP] ? at[1][PTC_AXIS_ETP] : 0;
	k.v[KEY_EDP] = used[1][PTC_BY_ZERO] ? at[1][PTC_BY_ZERO] : 0;
	return k;
}

int ptc_items_cells(struct ptc_layout *l, struct ptc_error *err)
{
	struct cell_key *keys = ptc_calloc(l->world, sizeof *keys);
	bool used[2][PTC_WAYS] = { { false } };

	l->rank_cells = ptc_calloc(l->world, sizeof *l->rank_cells);
	l->cell_ranks = ptc_calloc(l->world, sizeof *l->cell_ranks);
	if (!keys || !l->rank_cells || !l->cell_ranks) {
		ptc_free(keys);
		return ptc_nomem(err);
	}
	find_ways(l, used);
	for (uint32_t r = 0; r < l->world; r++)
		keys[r] = key_of(l, r, used);
	qsort(keys, l->world, sizeof *keys, by_key);
	for (uint32_t i = 0; i < l->world; i++) {
		if (!i || memcmp(keys[i].v, keys[i - 1].v, sizeof keys[i].v) != 0)
			l->cell_ranks[l->ncells++] = keys[i].rank;
		l->rank_cells[keys[i].rank] = l->ncells - 1;
	}
	ptc_free(keys);
	return 0;
}
