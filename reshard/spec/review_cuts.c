/* SPDX-License-Identifier: Apache-2.0 */
/* Reports tensors that configurations leave uncut. Happy path: tensors form a group if they have one shape and one
 * rule, and their names differ in numbers only. For each configuration, the degrees that the rules name tell what a
 * rank holds. Large groups that are whole on a rank are reported once. Only parameters are looked at: fields follow
 * them. Failure mode: memory. */
#include "reshard/spec/config.h"
#include "reshard/spec/lint.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of what a rank holds of the parameters: what is less is not worth a line. Routers and low-rank projections are about
 * that. */
#define LARGE_PERCENT 1

struct group {
	const struct ptc_tensor *first;
	const struct ptc_rule *rule;
	size_t n;
	int64_t bytes; /* of all */
	bool told;
};

struct cuts {
	const struct ptc_spec *s;
	struct group *groups;
	size_t ngroups;
	bool any;                       /* configurations at all; else one stands in for them */
	bool told[PTC_AXIS_CP + 1], pp; /* axes that were said to cut nothing */
	ptc_review_fn fn;
	void *arg;
};

/* In the sort: a tensor and the rule that rules it. */
struct ruled {
	const struct ptc_tensor *t;
	const struct ptc_rule *rule;
};

/* Names in which runs of digits count as equal. */
static int compare_forms(const char *a, const char *b)
{
	static const char digits[] = "0123456789";

	while (*a && *b) {
		size_t na = strspn(a, digits), nb = strspn(b, digits);

		if (na && nb) {
			a += na;
			b += nb;
			continue;
		}
		if (*a != *b)
			break;
		a++;
		b++;
	}
	return (unsigned char)*a - (unsigned char)*b;
}

static int by_group(const void *pa, const void *pb)
{
	const struct ruled *a = pa, *b = pb;
	int c;

	if (a->rule != b->rule)
		return a->rule < b->rule ? -1 : 1;
	if (a->t->dtype != b->t->dtype || a->t->ndim != b->t->ndim)
		return a->t->dtype != b->t->dtype ? (a->t->dtype < b->t->dtype ? -1 : 1)
						  : (a->t->ndim < b->t->ndim ? -1 : 1);
	for (uint32_t d = 0; d < a->t->ndim; d++)
		if (a->t->shape[d] != b->t->shape[d])
			return a->t->shape[d] < b->t->shape[d] ? -1 : 1;
	c = compare_forms(a->t->name, b->t->name);
	return c;
}

/* The sort is by form only: of a group, the first is the least by name. */
static void add_to_group(struct cuts *c, const struct ruled *v, size_t i)
{
	struct group *g = c->ngroups ? &c->groups[c->ngroups - 1] : NULL;
	size_t item = (size_t)(v[i].t - c->s->tensors) * (1 + c->s->nfields);

	if (!g || by_group(&v[i - 1], &v[i])) {
		g = &c->groups[c->ngroups++];
		*g = (struct group){ .first = v[i].t, .rule = v[i].rule };
	}
	g->first = v[i].t < g->first ? v[i].t : g->first;
	g->bytes += ptc_item_bytes(c->s, item);
	g->n++;
}

static int find_groups(struct cuts *c)
{
	const struct ptc_rule *rules[1 + PTC_MAX_FIELDS];
	struct ruled *v = ptc_calloc(c->s->ntensors, sizeof *v);

	c->groups = ptc_calloc(c->s->ntensors, sizeof *c->groups);
	if (!v || !c->groups) {
		ptc_free(v);
		return PTC_ENOMEM;
	}
	for (size_t t = 0; t < c->s->ntensors; t++) {
		ptc_spec_tensor_rules(c->s, t, rules);
		v[t] = (struct ruled){ &c->s->tensors[t], rules[0] };
	}
	qsort(v, c->s->ntensors, sizeof *v, by_group);
	for (size_t t = 0; t < c->s->ntensors; t++)
		add_to_group(c, v, t);
	ptc_free(v);
	return 0;
}

static bool cuts_over(const struct ptc_rule *r, enum ptc_axis axis)
{
	return ptc_rule_names_axis(r, axis) || (axis == PTC_AXIS_EP && r && r->expert);
}

static int64_t degree(const struct ptc_config *c, enum ptc_axis axis)
{
	const uint32_t degrees[] = { 1, c->tp, c->ep, c->etp, c->dp, c->cp };

	return degrees[axis];
}

/* In how many parts the rule cuts a parameter. */
static int64_t parts_of(const struct ptc_rule *r, const struct ptc_config *c)
{
	int64_t n = 1;

	for (enum ptc_axis a = PTC_AXIS_TP; a <= PTC_AXIS_CP; a++)
		n *= cuts_over(r, a) ? degree(c, a) : 1;
	if (c->zero == 3 && (!r || r->shard != PTC_SHARD_NONE))
		n *= (ptc_rule_is_expert(r) ? ptc_config_edp(c) : c->dp * c->cp) / PTC_MAX(c->replicas, 1u);
	return n;
}

/* What a rank of a middling stage has of a group. */
static int64_t on_a_rank(const struct group *g, const struct ptc_config *c)
{
	return g->bytes / parts_of(g->rule, c) / (g->rule && g->rule->place == PTC_PLACE_LAYER ? c->pp : 1);
}

/* Several dims that are more than 1: no norm, no bias. */
static bool is_matrix(const struct ptc_tensor *t)
{
	uint32_t dims = 0;

	for (uint32_t d = 0; d < t->ndim; d++)
		dims += t->shape[d] > 1;
	return dims > 1;
}

static bool is_meant_whole(const struct ptc_rule *r)
{
	return !r || r->whole || r->carry == PTC_CARRY_REPLICATE || r->carry == PTC_CARRY_MAX ||
	       r->carry == PTC_CARRY_REFUSE;
}

/* Names are all there is to tell experts by: "experts.3.w1", "experts.gate_up_proj", but no shared expert or router. */
static bool is_named_expert(const struct ptc_tensor *t)
{
	return is_matrix(t) && strstr(t->name, "expert") && !strstr(t->name, "shared") && !strstr(t->name, "router");
}

/* "tensor "a" [4, 4] and 31 more like it, 1.0 GiB"; returns buf. */
static const char *group_text(const struct group *g, char *buf, size_t size)
{
	char shape[256], bytes[PTC_UNITS_MAX], more[48] = "";

	if (g->n > 1)
		snprintf(more, sizeof more, " and %zu more like it", g->n - 1);
	snprintf(buf, size, "tensor \"%s\" %s%s, %s", g->first->name,
		 ptc_shape_text(g->first->ndim, g->first->shape, shape, sizeof shape), more,
		 ptc_units_print_bytes((uint64_t)g->bytes, bytes));
	return buf;
}

static void tell_group(const struct cuts *c, struct group *g, bool wrong, const char *config, const char *what)
{
	char text[2 * PTC_TENSOR_NAME_MAX + 2048], group[PTC_TENSOR_NAME_MAX + 512];

	g->told = true;
	snprintf(text, sizeof text, "%s%s%s: rule %zu (\"%s\") %s", config, *config ? ": " : "",
		 group_text(g, group, sizeof group), (size_t)(g->rule - c->s->rules), g->rule->match, what);
	c->fn(c->arg, wrong, text);
}

/* No rule names the axis, and its degree is more than 1. */
static void review_degree(struct cuts *c, const struct ptc_config *k, enum ptc_axis axis, const char *name,
			  const char *config)
{
	char text[PTC_TENSOR_NAME_MAX + 512], bytes[PTC_UNITS_MAX];
	int64_t all = 0;

	if (degree(k, axis) < 2 || c->told[axis])
		return;
	for (size_t i = 0; i < c->s->nrules; i++)
		if (cuts_over(&c->s->rules[i], axis) && c->s->rules[i].fields)
			return;
	for (size_t i = 0; i < c->ngroups; i++) {
		if (cuts_over(c->groups[i].rule, axis))
			return;
		all += on_a_rank(&c->groups[i], k);
	}
	c->told[axis] = true;
	snprintf(text, sizeof text,
		 "%s: %s=%lld cuts nothing: no tensor's rule names it; %lld ranks would each hold the same %s", config,
		 name, (long long)degree(k, axis), (long long)degree(k, axis),
		 ptc_units_print_bytes((uint64_t)all, bytes));
	c->fn(c->arg, true, text);
}

static void review_stages(struct cuts *c, const struct ptc_config *k, const char *config)
{
	char text[PTC_CONFIG_TEXT_MAX + 512], bytes[PTC_UNITS_MAX];
	int64_t all = 0;

	if (k->pp < 2 || c->pp)
		return;
	for (size_t i = 0; i < c->ngroups; i++) {
		if (c->groups[i].rule && c->groups[i].rule->place != PTC_PLACE_ALL)
			return;
		all += on_a_rank(&c->groups[i], k);
	}
	c->pp = true;
	snprintf(text, sizeof text,
		 "%s: pp=%u places nothing: no tensor's rule says on which stage it is (layer); every stage would hold "
		 "the same %s",
		 config, k->pp, ptc_units_print_bytes((uint64_t)all, bytes));
	c->fn(c->arg, true, text);
}

/* Are there ranks that would hold the same of it and need not? Of a rule that splits, the axes are 1: with tp alone
 * that is how dense tensors are whole, but experts are so where neither ep nor etp was given. */
static bool is_degree_lost(const struct ptc_rule *r, const struct ptc_config *c)
{
	if (r->splits[0].axis != PTC_AXIS_NONE || r->expert)
		return ptc_rule_is_expert(r) && c->tp > 1;
	return c->tp > 1 || c->ep > 1 || c->etp > 1;
}

static void review_groups(struct cuts *c, const struct ptc_config *k, const char *config)
{
	int64_t all = 0;

	for (size_t i = 0; i < c->ngroups; i++)
		all += on_a_rank(&c->groups[i], k);
	for (size_t i = 0; i < c->ngroups; i++) {
		struct group *g = &c->groups[i];
		bool splits = g->rule && (g->rule->splits[0].axis != PTC_AXIS_NONE || g->rule->expert);

		if (g->told || is_meant_whole(g->rule))
			continue;
		if (is_named_expert(g->first) && !cuts_over(g->rule, PTC_AXIS_EP) &&
		    (k->ep > 1 || parts_of(g->rule, k) == 1))
			tell_group(c, g, true, config,
				   "does not divide it over the ep axis, though its name is an expert's: every rank "
				   "would hold all experts; write expert or a split over ep, or split: {axis: none} if "
				   "you want that");
		else if (is_matrix(g->first) && parts_of(g->rule, k) == 1 && is_degree_lost(g->rule, k) &&
			 on_a_rank(g, k) * 100 / LARGE_PERCENT >= all && all)
			tell_group(c, g, !splits, config,
				   splits ? "leaves it whole, because the axes that it splits over are 1 here"
					  : "leaves it whole: every rank of its stage would hold all of it; split it, "
					    "or write split: {axis: none} if you want that");
	}
}

int ptc_spec_review_cuts(const struct ptc_spec *s, const struct ptc_config *const *configs, size_t nconfigs,
			 ptc_review_fn fn, void *arg, struct ptc_error *err)
{
	struct cuts c = { .s = s, .fn = fn, .arg = arg };
	struct ptc_config *any = ptc_calloc(1, sizeof *any);
	char *text = ptc_calloc(1, PTC_CONFIG_TEXT_MAX);
	int rc = any && text ? find_groups(&c) : PTC_ENOMEM;

	if (!rc && !nconfigs && !(rc = ptc_config_parse("tp=2", any, err)))
		review_groups(&c, any, "");
	for (size_t i = 0; i < nconfigs && !rc; i++) {
		if (ptc_config_format(configs[i], text, PTC_CONFIG_TEXT_MAX))
			text[0] = '\0';
		review_degree(&c, configs[i], PTC_AXIS_TP, "tp", text);
		review_degree(&c, configs[i], PTC_AXIS_EP, "ep", text);
		review_degree(&c, configs[i], PTC_AXIS_ETP, "etp", text);
		review_stages(&c, configs[i], text);
		review_groups(&c, configs[i], text);
	}
	ptc_free(any);
	ptc_free(text);
	ptc_free(c.groups);
	return rc == PTC_ENOMEM ? ptc_error_set(err, rc, "out of memory") : rc;
}
