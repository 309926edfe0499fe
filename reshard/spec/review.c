/* SPDX-License-Identifier: Apache-2.0 */
/* Reports valid rules that are probably not meant: tensors that no rule covers, and rules to which an earlier one
 * leaves no tensor. Among the latter are rules for fewer tensors than the earlier rule, which places them otherwise:
 * the special rule should come first. Time is tensors times rules, memory rules squared. */
#include "reshard/spec/lint.h"

#include "reshard/spec/glob.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct review {
	const struct ptc_spec *s;
	uint32_t *matches, *wins; /* per rule: tensors that it matches; those of which it rules an item */
	uint32_t *both;           /* [a * rules + b], a < b: tensors that both match */
	uint32_t *taken; /* the same: 1 + the first tensor that a takes from b, which places it otherwise; 0: none */
	ptc_review_fn fn;
	void *arg;
};

const char *ptc_shape_text(uint32_t ndim, const int64_t *shape, char *buf, size_t size)
{
	size_t n = (size_t)snprintf(buf, size, "[");

	for (uint32_t d = 0; d < ndim && n < size; d++)
		n += (size_t)snprintf(buf + n, size - n, "%s%" PRId64, d ? ", " : "", shape[d]);
	if (n < size)
		snprintf(buf + n, size - n, "]");
	return buf;
}

const char *ptc_tensor_text(const struct ptc_tensor *t, char *buf, size_t size)
{
	size_t n = (size_t)snprintf(buf, size, "%s ", ptc_dtype_name(t->dtype));

	if (n < size)
		ptc_shape_text(t->ndim, t->shape, buf + n, size - n);
	return buf;
}

bool ptc_tensor_same(const struct ptc_tensor *a, const struct ptc_tensor *b)
{
	return a->dtype == b->dtype && a->ndim == b->ndim && !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape);
}

static void __attribute__((format(printf, 4, 5))) tell(ptc_review_fn fn, void *arg, bool wrong, const char *fmt, ...)
{
	char text[2 * PTC_TENSOR_NAME_MAX + 1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	fn(arg, wrong, text);
}

static bool places_alike(const struct ptc_rule *a, const struct ptc_rule *b)
{
	return a->carry == b->carry && ptc_rule_same_place(a, b);
}

/* hit: room for the numbers of the rules that match. */
static void review_tensor(struct review *v, size_t tensor, uint32_t *hit)
{
	const struct ptc_rule *won[1 + PTC_MAX_FIELDS], *rules = v->s->rules;
	const struct ptc_tensor *t = &v->s->tensors[tensor];
	size_t n = 0, nrules = v->s->nrules, first;
	char shape[256];

	ptc_spec_tensor_rules(v->s, tensor, won);
	for (size_t f = 0; f <= v->s->nfields; f++)
		if (won[f])
			v->wins[won[f] - rules]++;
	if (!won[0])
		tell(v->fn, v->arg, true,
		     "tensor \"%s\" %s is covered by no rule: it would be whole on every rank of every stage", t->name,
		     ptc_shape_text(t->ndim, t->shape, shape, sizeof shape));
	for (uint32_t i = 0; i < nrules; i++) {
		if (!ptc_glob_match(rules[i].match, strlen(rules[i].match), t->name, strlen(t->name)))
			continue;
		for (size_t k = 0; k < n; k++)
			v->both[hit[k] * nrules + i]++;
		v->matches[i]++;
		hit[n++] = i;
	}
	first = won[0] ? (size_t)(won[0] - rules) : nrules;
	for (size_t k = 0; k < n; k++)
		if (hit[k] > first && !rules[hit[k]].fields && !v->taken[first * nrules + hit[k]] &&
		    !places_alike(&rules[first], &rules[hit[k]]))
			v->taken[first * nrules + hit[k]] = (uint32_t)tensor + 1;
}

/* Is rule b, which comes after a, made for less than a, and all of that a's? Of a set's rules whoever names the set may
 * take what he wants by rules before it. */
static bool is_shadowed(const struct review *v, size_t a, size_t b)
{
	const struct ptc_rule *ra = &v->s->rules[a], *rb = &v->s->rules[b];

	if (v->both[a * v->s->nrules + b] != v->matches[b] || (rb->of_set && !ra->of_set))
		return false;
	if (v->matches[a] != v->matches[b])
		return true;
	return ptc_glob_contains(ra->match, rb->match) && !ptc_glob_contains(rb->match, ra->match);
}

static bool review_pairs(const struct review *v, size_t b)
{
	size_t n = v->s->nrules;
	bool any = false;
	char shape[256];

	for (size_t a = 0; a < b; a++) {
		uint32_t taken = v->taken[a * n + b];
		const struct ptc_tensor *t = taken ? &v->s->tensors[taken - 1] : NULL;

		if (!t || !is_shadowed(v, a, b))
			continue;
		any = true;
		tell(v->fn, v->arg, true,
		     "tensor \"%s\" %s is ambiguous: rule %zu (\"%s\") takes it, though rule %zu (\"%s\") fits it more "
		     "closely (%u of the %u tensors) and places it differently; put that one first",
		     t->name, ptc_shape_text(t->ndim, t->shape, shape, sizeof shape), a, v->s->rules[a].match, b,
		     v->s->rules[b].match, v->matches[b], v->matches[a]);
	}
	return any;
}

/* Rules of a named set need not all be for this job. */
static void review_rule(const struct review *v, size_t i)
{
	const struct ptc_rule *r = &v->s->rules[i];

	if (review_pairs(v, i) || v->wins[i] || r->of_set)
		return;
	if (v->matches[i])
		tell(v->fn, v->arg, false,
		     "rule %zu (\"%s\") never applies: earlier rules take every tensor that it matches", i, r->match);
	else
		tell(v->fn, v->arg, false, "rule %zu (\"%s\") matches no tensor", i, r->match);
}

int ptc_spec_review(const struct ptc_spec *s, ptc_review_fn fn, void *arg, struct ptc_error *err)
{
	size_t n = s->nrules;
	uint32_t *hit = ptc_calloc(n, sizeof *hit);
	struct review v = { .s = s,
			    .matches = ptc_calloc(n, sizeof *v.matches),
			    .wins = ptc_calloc(n, sizeof *v.wins),
			    .both = ptc_calloc(n * n, sizeof *v.both),
			    .taken = ptc_calloc(n * n, sizeof *v.taken),
			    .fn = fn,
			    .arg = arg };
	bool ok = hit && v.matches && v.wins && v.both && v.taken;

	for (size_t t = 0; ok && t < s->ntensors; t++)
		review_tensor(&v, t, hit);
	for (size_t i = 0; ok && i < n; i++)
		review_rule(&v, i);
	ptc_free(hit);
	ptc_free(v.matches);
	ptc_free(v.wins);
	ptc_free(v.both);
	ptc_free(v.taken);
	return ok ? 0 : ptc_nomem(err);
}
