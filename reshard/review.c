/* SPDX-License-Identifier: Apache-2.0 */
/* What is probably not meant though it has a meaning: tensors that no rule
 * covers, rules that an earlier one leaves nothing, and tensors that a less
 * specific rule takes from a more specific one that places them otherwise.
 * Time is tensors times rules. */
#include "reshard/internal.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Per rule: does it match any tensor, and does it rule any item? */
struct seen {
	bool matches, wins;
};

/* Characters of a glob that stand for themselves. */
static size_t literal(const char *glob)
{
	size_t n = 0;

	for (; *glob; glob++) {
		const char *end = *glob == '[' ? strchr(glob, ']') : NULL;

		if (end)
			glob = end;
		else
			n += *glob != '*' && *glob != '?';
	}
	return n;
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
	       same_numbers(a->blocks, a->nblocks, b->blocks, b->nblocks) &&
	       same_numbers(a->permute, a->npermute, b->permute, b->npermute);
}

bool ptc_rule_same_place(const struct ptc_rule *a, const struct ptc_rule *b)
{
	for (size_t i = 0; i < PTC_MAX_SPLITS; i++)
		if (!same_split(&a->splits[i], &b->splits[i]))
			return false;
	return a->place == b->place && a->shard == b->shard && a->shard_dim == b->shard_dim &&
	       same_text(a->layer, b->layer) && same_text(a->expert, b->expert) &&
	       same_numbers(a->experts, a->nexperts, b->experts, b->nexperts);
}

/* "[4096, 1024]" into buf; returns buf. */
static const char *shape_text(const struct ptc_tensor *t, char *buf, size_t size)
{
	size_t n = (size_t)snprintf(buf, size, "[");

	for (uint32_t d = 0; d < t->ndim && n < size; d++)
		n += (size_t)snprintf(buf + n, size - n, "%s%" PRId64, d ? ", " : "", t->shape[d]);
	if (n < size)
		snprintf(buf + n, size - n, "]");
	return buf;
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

static void review_tensor(const struct ptc_spec *s, size_t tensor, struct seen *seen, ptc_review_fn fn, void *arg)
{
	const struct ptc_rule *won[1 + PTC_MAX_FIELDS], *first = NULL;
	const struct ptc_tensor *t = &s->tensors[tensor];
	char shape[256];

	ptc_spec_tensor_rules(s, tensor, won);
	for (size_t f = 0; f <= s->nfields; f++)
		if (won[f])
			seen[won[f] - s->rules].wins = true;
	first = won[0];
	if (!first)
		tell(fn, arg, true,
		     "tensor \"%s\" %s is covered by no rule: it would be whole on every rank of every stage", t->name,
		     shape_text(t, shape, sizeof shape));
	for (size_t i = 0; i < s->nrules; i++) {
		const struct ptc_rule *r = &s->rules[i];

		if (!ptc_glob_match(r->match, strlen(r->match), t->name, strlen(t->name)))
			continue;
		seen[i].matches = true;
		if (first && !r->fields && r > first && literal(r->match) > literal(first->match) &&
		    !(r->carry == first->carry && ptc_rule_same_place(r, first)))
			tell(fn, arg, true,
			     "tensor \"%s\" %s is ambiguous: rule %zu (\"%s\") takes it, though rule %zu (\"%s\") is "
			     "made for "
			     "it more closely and places it otherwise; put that one first",
			     t->name, shape_text(t, shape, sizeof shape), (size_t)(first - s->rules), first->match, i,
			     r->match);
	}
}

int ptc_spec_review(const struct ptc_spec *s, ptc_review_fn fn, void *arg, struct ptc_error *err)
{
	struct seen *seen = ptc_calloc(s->nrules, sizeof *seen);

	if (!seen)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	for (size_t t = 0; t < s->ntensors; t++)
		review_tensor(s, t, seen, fn, arg);
	for (size_t i = 0; i < s->nrules; i++) {
		if (seen[i].matches && !seen[i].wins)
			tell(fn, arg, false,
			     "rule %zu (\"%s\") never applies: earlier rules take every tensor that it matches", i,
			     s->rules[i].match);
		else if (!seen[i].matches)
			tell(fn, arg, false, "rule %zu (\"%s\") matches no tensor", i, s->rules[i].match);
	}
	ptc_free(seen);
	return 0;
}
