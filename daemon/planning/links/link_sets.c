/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of nodes as a matrix. A pair that was not measured is none; the slower direction counts. Pure. */
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

	while (i < n && (!name || strcmp(names[i], name) != 0))
		i++;
	return i;
}

static const char *text(const json_t *o, const char *key)
{
	return json_string_value(json_object_get(o, key));
}

struct ptc_link_sets *ptc_link_sets_new(const json_t *pairs, const char *const *names, size_t n)
{
	struct ptc_link_sets *s = ptc_calloc(1, sizeof *s);
	const json_t *p;
	size_t i;

	if (!s || !(s->bytes_s = ptc_calloc(n * n + 1, sizeof *s->bytes_s)))
		return ptc_link_sets_free(s);
	s->n = n;
	json_array_foreach(pairs, i, p) {
		size_t a = index_of(names, n, text(p, "from")), b = index_of(names, n, text(p, "to"));
		double v = json_number_value(json_object_get(p, "bytes_s"));

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

static double bandwidth(const json_t *pairs, const char *from, const char *to)
{
	const json_t *p;
	size_t i;

	json_array_foreach(pairs, i, p) {
		const char *a = text(p, "from"), *b = text(p, "to");

		if (a && b && strcmp(a, from) == 0 && strcmp(b, to) == 0)
			return json_number_value(json_object_get(p, "bytes_s"));
	}
	return 0;
}

static bool has_name(const json_t *names, const char *name)
{
	const json_t *v;
	size_t i;

	json_array_foreach(names, i, v)
		if (strcmp(json_string_value(v), name) == 0)
			return true;
	return false;
}

void ptc_links_keep(json_t *pairs, const json_t *was, const json_t *nodes)
{
	const size_t now = json_array_size(pairs);
	json_t *p;
	size_t i;

	json_array_foreach(was, i, p) {
		const char *from = text(p, "from"), *to = text(p, "to");
		bool measured = false;

		for (size_t k = 0; from && to && k < now && !measured; k++) {
			const json_t *q = json_array_get(pairs, k);

			measured = !strcmp(text(q, "from"), from) && !strcmp(text(q, "to"), to);
		}
		if (from && to && !measured && has_name(nodes, from) && has_name(nodes, to) &&
		    json_array_size(pairs) < PTC_LINK_PAIRS)
			json_array_append(pairs, p);
	}
}

json_t *ptc_links_changed(const json_t *was, const json_t *is)
{
	json_t *out = json_array();
	const json_t *p;
	size_t i;

	json_array_foreach(is, i, p) {
		const char *from = text(p, "from"), *to = text(p, "to");
		double now = json_number_value(json_object_get(p, "bytes_s"));
		double before = from && to ? bandwidth(was, from, to) : 0;

		if (before > 0 && now > 0 && (now > before * CHANGED || before > now * CHANGED))
			json_array_append_new(out, json_pack("{s:s, s:s, s:f, s:f}", "from", from, "to", to, "was",
							     before, "is", now));
	}
	return out;
}

/* ---- what switches show ---- */

#define HALVED 2

static double of(const json_t *o, const char *key, double absent)
{
	const json_t *v = json_object_get(o, key);

	return v ? json_number_value(v) : absent;
}

static void take_link(json_t *pair, double is, json_t *changed)
{
	double was = of(pair, "bytes_s", 0), measured = of(pair, "measured_bytes_s", was);
	double seen = of(pair, "seen_bytes_s", 0), now = is * HALVED < seen ? PTC_MIN(is, measured) : measured;

	json_object_set_new(pair, "measured_bytes_s", json_real(measured));
	json_object_set_new(pair, "seen_bytes_s", json_real(PTC_MAX(seen, is)));
	json_object_set_new(pair, "bytes_s", json_real(now));
	if (was > 0 && (now > was * HALVED || was > now * HALVED))
		json_array_append_new(changed, json_pack("{s:O, s:O, s:f, s:f}", "from", json_object_get(pair, "from"),
							 "to", json_object_get(pair, "to"), "was", was, "is", now));
}

static bool of_pair(const json_t *pair, const json_t *row)
{
	const char *from = text(pair, "from"), *to = text(pair, "to"), *a = text(row, "from"), *b = text(row, "to");

	return from && to && a && b && strcmp(from, a) == 0 && strcmp(to, b) == 0;
}

bool ptc_links_saw(json_t *pairs, const json_t *links, json_t *changed)
{
	const json_t *row;
	json_t *pair;
	bool any = false;
	size_t i, k;

	json_array_foreach(links, i, row) {
		double seconds = of(row, "seconds", 0), is = seconds > 0 ? of(row, "bytes", 0) / seconds : 0;

		json_array_foreach(pairs, k, pair)
			if (is > 0 && of_pair(pair, row)) {
				take_link(pair, is, changed);
				any = true;
			}
	}
	return any;
}
