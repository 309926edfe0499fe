/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of nodes as a matrix: the slowest link, and links that have changed. A pair that was not measured has no link;
 * of two directions the slower one counts. Pure. */
#include "daemon/planning/links/links.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

#define CHANGED 1.25 /* times, either way: less is what a shared link does anyway */

struct ptc_link_sets {
	size_t n;
	double *bytes_s; /* n * n, symmetric; 0: not known */
};

static size_t index_of(const char *const *names, size_t n, const char *name)
{
	size_t i = 0;

	while (i < n && strcmp(names[i], name) != 0)
		i++;
	return i;
}

struct ptc_link_sets *ptc_link_sets_new(const struct ptc_links *pairs, const char *const *names, size_t n)
{
	struct ptc_link_sets *s = ptc_calloc(1, sizeof *s);

	if (!s || !(s->bytes_s = ptc_calloc(n * n + 1, sizeof *s->bytes_s)))
		return ptc_link_sets_free(s);
	s->n = n;
	for (size_t i = 0; i < pairs->n; i++) {
		const struct ptc_link *p = &pairs->v[i];
		size_t a = index_of(names, n, p->from), b = index_of(names, n, p->to);
		double v = p->bytes_s;

		if (a == n || b == n || a == b || !(v > 0))
			continue;
		if (s->bytes_s[a * n + b] > 0)
			v = PTC_MIN(v, s->bytes_s[a * n + b]);
		s->bytes_s[a * n + b] = s->bytes_s[b * n + a] = v;
	}
	return s;
}

struct ptc_link_sets *ptc_link_sets_free(struct ptc_link_sets *s)
{
	if (s)
		ptc_free(s->bytes_s);
	ptc_free(s);
	return NULL;
}

void ptc_link_sets_matrix(const struct ptc_link_sets *s, double unknown, double *ret)
{
	for (size_t i = 0; i < s->n * s->n; i++)
		ret[i] = s->bytes_s[i] > 0 ? s->bytes_s[i] : unknown;
}

PTC_BY_VALUE(ascending, double)

double ptc_link_sets_median(const struct ptc_link_sets *s)
{
	double *v = ptc_calloc(s->n * s->n + 1, sizeof *v), middle = 0;
	size_t known = 0;

	for (size_t a = 0; v && a < s->n; a++)
		for (size_t b = a + 1; b < s->n; b++)
			if (s->bytes_s[a * s->n + b] > 0)
				v[known++] = s->bytes_s[a * s->n + b];
	if (known) {
		qsort(v, known, sizeof *v, ascending);
		middle = v[known / 2];
	}
	ptc_free(v);
	return middle;
}

static double slowest(const struct ptc_link_sets *s, const bool *leave, size_t *ret_a, size_t *ret_b)
{
	double least = 0;

	for (size_t a = 0; a < s->n; a++)
		for (size_t b = a + 1; b < s->n; b++) {
			double v = s->bytes_s[a * s->n + b];

			if (leave[a] || leave[b] || !(v > 0) || (least > 0 && v >= least))
				continue;
			least = v;
			*ret_a = a;
			*ret_b = b;
		}
	return least;
}

double ptc_link_sets_slowest(const struct ptc_link_sets *s, const bool *leave)
{
	size_t a, b;

	return slowest(s, leave, &a, &b);
}

/* Of a node's links to those that stay. */
static double average(const struct ptc_link_sets *s, const bool *leave, size_t a)
{
	double sum = 0;
	size_t n = 0;

	for (size_t b = 0; b < s->n; b++)
		if (!leave[b] && s->bytes_s[a * s->n + b] > 0) {
			sum += s->bytes_s[a * s->n + b];
			n++;
		}
	return n ? sum / (double)n : 0;
}

bool ptc_link_sets_leave(const struct ptc_link_sets *s, bool *leave)
{
	size_t a = 0, b = 0, stay = 0;

	for (size_t i = 0; i < s->n; i++)
		stay += !leave[i];
	if (stay < 2 || !(slowest(s, leave, &a, &b) > 0))
		return false;
	leave[average(s, leave, a) < average(s, leave, b) ? a : b] = true;
	return true;
}

/* ---- changes ---- */

static int add_change(struct ptc_link_changes *to, const struct ptc_link *pair, double was, double is)
{
	struct ptc_link_change *c;

	if (!PTC_MORE(to->v, to->n))
		return PTC_ENOMEM;
	c = &to->v[to->n++];
	*c = (struct ptc_link_change){ .was = was, .is = is };
	memcpy(c->from, pair->from, sizeof c->from);
	memcpy(c->to, pair->to, sizeof c->to);
	return 0;
}

static const struct ptc_link *same_link(const struct ptc_links *pairs, size_t n, const struct ptc_link *of)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(pairs->v[i].from, of->from) == 0 && strcmp(pairs->v[i].to, of->to) == 0)
			return &pairs->v[i];
	return NULL;
}

static bool has_node(const struct ptc_link_node *nodes, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(nodes[i].name, name) == 0)
			return true;
	return false;
}

int ptc_links_keep(struct ptc_links *pairs, const struct ptc_links *was, const struct ptc_link_node *nodes, size_t n)
{
	const size_t now = pairs->n;

	for (size_t i = 0; i < was->n && pairs->n < PTC_LINK_PAIRS; i++) {
		const struct ptc_link *p = &was->v[i];

		if (same_link(pairs, now, p) || !has_node(nodes, n, p->from) || !has_node(nodes, n, p->to))
			continue;
		if (!PTC_MORE(pairs->v, pairs->n))
			return PTC_ENOMEM;
		pairs->v[pairs->n++] = *p;
	}
	return 0;
}

static double bandwidth(const struct ptc_links *pairs, const struct ptc_link *of)
{
	const struct ptc_link *same = same_link(pairs, pairs->n, of);

	return same ? same->bytes_s : 0;
}

int ptc_links_changed(const struct ptc_links *was, const struct ptc_links *is, struct ptc_link_changes *ret)
{
	struct ptc_link_changes out = { 0 };

	for (size_t i = 0; i < is->n; i++) {
		double now = is->v[i].bytes_s, before = bandwidth(was, &is->v[i]);

		if (!(before > 0 && now > 0 && (now > before * CHANGED || before > now * CHANGED)))
			continue;
		if (add_change(&out, &is->v[i], before, now) != 0) {
			ptc_free(out.v);
			return PTC_ENOMEM;
		}
	}
	*ret = out;
	return 0;
}

/* ---- what switches show ---- */

#define HALVED 2

static int take_link(struct ptc_link *pair, double is, struct ptc_link_changes *changed)
{
	double was = pair->bytes_s, measured = pair->measured_bytes_s > 0 ? pair->measured_bytes_s : was;
	double seen = pair->seen_bytes_s, now = is * HALVED < seen ? PTC_MIN(is, measured) : measured;

	pair->measured_bytes_s = measured;
	pair->seen_bytes_s = PTC_MAX(seen, is);
	pair->bytes_s = now;
	return was > 0 && (now > was * HALVED || was > now * HALVED) ? add_change(changed, pair, was, now) : 0;
}

int ptc_links_saw(struct ptc_links *pairs, const struct ptc_link_use *uses, size_t n, struct ptc_link_changes *changed,
		  bool *ret_any)
{
	bool any = false;
	int rc = 0;

	for (size_t i = 0; i < n; i++) {
		double is = uses[i].seconds > 0 ? (double)uses[i].bytes / uses[i].seconds : 0;

		for (size_t k = 0; k < pairs->n && is > 0; k++) {
			struct ptc_link *pair = &pairs->v[k];

			if (strcmp(pair->from, uses[i].from) != 0 || strcmp(pair->to, uses[i].to) != 0)
				continue;
			if (rc == 0)
				rc = take_link(pair, is, changed);
			any = true;
		}
	}
	*ret_any = any;
	return rc;
}

/* ---- as JSON ---- */

#define LINK(member, kind, ...)   PTC_ROW(struct ptc_link, #member, member, kind, __VA_ARGS__)
#define CHANGE(member, kind, ...) PTC_ROW(struct ptc_link_change, #member, member, kind, __VA_ARGS__)

static const struct ptc_member link_rows[] = {
	LINK(from, TEXT),
	LINK(to, TEXT),
	LINK(bytes_s, REAL),
	LINK(latency_s, REAL, .optional = true),
	LINK(measured_ms, I64, PTC_IF(struct ptc_link, measured_ms)),
	LINK(measured_bytes_s, REAL, PTC_IF(struct ptc_link, measured_bytes_s)),
	LINK(seen_bytes_s, REAL, PTC_IF(struct ptc_link, seen_bytes_s)),
};
const struct ptc_members ptc_link_members = PTC_MEMBERS(link_rows, struct ptc_link);
static const struct ptc_member way_rows[] = { LINK(from, TEXT), LINK(to, TEXT) };
const struct ptc_members ptc_link_way_members = PTC_MEMBERS(way_rows, struct ptc_link);
static const struct ptc_member change_rows[] = { CHANGE(from, TEXT), CHANGE(to, TEXT), CHANGE(was, REAL),
						 CHANGE(is, REAL) };
const struct ptc_members ptc_link_change_members = PTC_MEMBERS(change_rows, struct ptc_link_change);
