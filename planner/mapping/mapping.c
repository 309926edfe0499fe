/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of an assignment, the bound, and the search for the best. */
#include "planner/mapping/mapping.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The matrix, made symmetric by the slower direction. */
static double link_of(const struct ptc_link_matrix *m, uint32_t a, uint32_t b)
{
	double x = m->bytes_s[(size_t)a * m->n + b], y = m->bytes_s[(size_t)b * m->n + a];

	return PTC_MIN(x, y);
}

/* The slowest link of all rings of `size` ranks that lie `stride` apart. */
static double slowest_ring(const struct ptc_link_matrix *m, const uint32_t *device, uint32_t world, uint32_t size,
			   uint32_t stride)
{
	double least = INFINITY;

	for (uint32_t r = 0; r < world && size > 1; r++) {
		uint32_t at = r / stride % size, next = at + 1 < size ? r + stride : r - (size - 1) * stride;

		least = PTC_MIN(least, link_of(m, device[r], device[next]));
	}
	return least;
}

static double slowest_boundary(const struct ptc_link_matrix *m, const uint32_t *device, uint32_t world, uint32_t stage)
{
	double least = INFINITY;

	for (uint32_t r = 0; r + stage < world; r++)
		least = PTC_MIN(least, link_of(m, device[r], device[r + stage]));
	return least;
}

static double over(double bytes, double bytes_s)
{
	return isinf(bytes_s) || bytes <= 0 ? 0 : bytes / bytes_s;
}

/* The seconds of a given assignment. */
static double seconds_of(const struct ptc_link_matrix *m, const struct ptc_cand *c, const struct ptc_mapping_traffic *t,
			 const uint32_t *device)
{
	uint32_t world = ptc_cand_devices(c), cp = c->tp, dp = c->tp * c->cp, pp = dp * c->dp;

	return over(t->tp, slowest_ring(m, device, world, c->tp, 1)) +
	       over(t->cp, slowest_ring(m, device, world, c->cp, cp)) +
	       over(t->dp, slowest_ring(m, device, world, c->dp, dp)) +
	       over(t->pp, c->pp > 1 ? slowest_boundary(m, device, world, pp) : INFINITY);
}

/* Links of a class in an assignment, each pair counted once. */
static uint64_t links_of(uint32_t world, uint32_t size)
{
	return size < 2 ? 0 : size == 2 ? world / 2 : world;
}

PTC_COMPARE(descending, double, PTC_ORDER(*b, *a))

/* A class that uses k different links cannot have all of them faster than the k-th fastest there is. */
static double bound_of(const double *sorted, uint64_t npairs, const struct ptc_cand *c,
		       const struct ptc_mapping_traffic *t)
{
	uint32_t world = ptc_cand_devices(c);
	const struct {
		double bytes;
		uint64_t links;
	} classes[] = { { t->tp, links_of(world, c->tp) },
			{ t->cp, links_of(world, c->cp) },
			{ t->dp, links_of(world, c->dp) },
			{ t->pp, world - c->tp * c->cp * c->dp } };
	double sum = 0;

	for (size_t i = 0; i < PTC_ARRAY_LEN(classes); i++)
		if (classes[i].links && classes[i].links <= npairs)
			sum += over(classes[i].bytes, sorted[classes[i].links - 1]);
	return sum;
}

static int bound(const struct ptc_link_matrix *m, const struct ptc_cand *c, const struct ptc_mapping_traffic *t,
		 double *ret)
{
	uint64_t npairs = (uint64_t)m->n * (m->n - 1) / 2, k = 0;
	double *sorted = ptc_reallocarray(NULL, npairs + 1, sizeof *sorted);

	if (!sorted)
		return PTC_ENOMEM;
	for (uint32_t a = 0; a < m->n; a++)
		for (uint32_t b = a + 1; b < m->n; b++)
			sorted[k++] = link_of(m, a, b);
	qsort(sorted, npairs, sizeof *sorted, descending);
	*ret = bound_of(sorted, npairs, c, t);
	ptc_free(sorted);
	return 0;
}

struct search {
	const struct ptc_link_matrix *m;
	const struct ptc_cand *c;
	const struct ptc_mapping_traffic *t;
	uint32_t world, nblocks;
	const uint32_t *start; /* nblocks + 1: first device of each block; they lie in order */
	const double *fast;    /* nblocks * nblocks: the fastest link between two blocks */
	uint32_t *order;       /* of blocks */
	uint32_t *all;         /* devices in that order: ranks, then idle ones */
	uint32_t *best;
	double seconds; /* of best */
};

static void lay_out(struct search *s)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < s->nblocks; i++)
		for (uint32_t d = s->start[s->order[i]]; d < s->start[s->order[i] + 1]; d++)
			s->all[at++] = d;
}

static void consider(struct search *s)
{
	double now = seconds_of(s->m, s->c, s->t, s->all);

	if (now < s->seconds * (1 - 1e-12)) {
		s->seconds = now;
		memcpy(s->best, s->all, s->m->n * sizeof *s->best);
	}
}

/* Every order of the blocks from `from` on, in lexicographic order. */
static void every_order(struct search *s, uint32_t from)
{
	if (from == s->nblocks) {
		lay_out(s);
		consider(s);
		return;
	}
	for (uint32_t i = from; i < s->nblocks; i++) {
		uint32_t picked = s->order[i];

		memmove(s->order + from + 1, s->order + from, (i - from) * sizeof *s->order);
		s->order[from] = picked;
		every_order(s, from + 1);
		memmove(s->order + from, s->order + from + 1, (i - from) * sizeof *s->order);
		s->order[i] = picked;
	}
}

static void swap(uint32_t *v, uint32_t i, uint32_t j)
{
	uint32_t x = v[i];

	v[i] = v[j];
	v[j] = x;
}

/* Swaps of two of v[0..n) as long as one helps; at most `evaluations`. */
static void improve(struct search *s, uint32_t *v, uint32_t n, bool blocks, uint64_t evaluations)
{
	for (bool again = true; again;) {
		again = false;
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t j = i + 1; j < n; j++) {
				double before = s->seconds;

				if (!evaluations--)
					return;
				swap(v, i, j);
				if (blocks)
					lay_out(s);
				consider(s);
				if (s->seconds < before)
					again = true;
				else
					swap(v, i, j);
			}
	}
}

/* Some blocks start an order that goes on with the block best connected to the last one. */
static double between(const struct search *s, uint32_t a, uint32_t b)
{
	return s->fast[(size_t)a * s->nblocks + b];
}

static void chain(struct search *s, uint32_t start)
{
	for (uint32_t i = 0; i < s->nblocks; i++)
		s->order[i] = i;
	swap(s->order, 0, start);
	for (uint32_t i = 1; i < s->nblocks; i++) {
		uint32_t best = i;

		for (uint32_t j = i + 1; j < s->nblocks; j++)
			if (between(s, s->order[i - 1], s->order[j]) > between(s, s->order[i - 1], s->order[best]))
				best = j;
		swap(s->order, i, best);
	}
	lay_out(s);
	consider(s);
}

/* Work is bounded by matrix reads, so that 1,024 devices take a second: the cost of an assignment
 * reads at most 4 links for each rank. */
static uint64_t budget(const struct search *s)
{
	return 1 + (UINT64_C(1) << 26) / (4 * (uint64_t)s->world);
}

static void search(struct search *s)
{
	for (uint32_t i = 0; i < s->nblocks; i++)
		s->order[i] = i;
	if (s->nblocks <= PTC_MAPPING_EXACT) {
		every_order(s, 0);
		memcpy(s->all, s->best, s->m->n * sizeof *s->all);
	} else {
		uint32_t start = 0;

		lay_out(s);
		consider(s);
		improve(s, s->order, s->nblocks, true, budget(s) / 2);
		for (uint32_t i = 0; i < PTC_MIN(s->nblocks, 8); i++, start += s->nblocks / 8)
			chain(s, PTC_MIN(start, s->nblocks - 1));
		memcpy(s->all, s->best, s->m->n * sizeof *s->all);
	}
	if (s->nblocks < s->m->n || s->nblocks > PTC_MAPPING_EXACT)
		improve(s, s->all, s->m->n, false, budget(s));
}

static int check(const struct ptc_link_matrix *m, const struct ptc_cand *c, uint32_t *ret_nblocks,
		 struct ptc_error *err)
{
	uint32_t nblocks = m->n;

	if (!m->n || m->n > PTC_MAPPING_MAX_DEVICES)
		return ptc_error_set(err, PTC_EINVAL, "the matrix has %u devices; it must have 1..%d", m->n,
				     PTC_MAPPING_MAX_DEVICES);
	if (ptc_cand_devices(c) > m->n)
		return ptc_error_set(err, PTC_ENODEVICES, "%u ranks need more than %u devices", ptc_cand_devices(c),
				     m->n);
	for (uint32_t a = 0; a < m->n; a++)
		for (uint32_t b = 0; b < m->n; b++) {
			double x = m->bytes_s[(size_t)a * m->n + b];

			if (a != b && !(isfinite(x) && x > 0))
				return ptc_error_set(err, PTC_EINVAL,
						     "the rate from device %u to %u is missing or not positive", a, b);
		}
	for (uint32_t d = 0; m->block && d < m->n; d++) {
		if (m->block[d] > (d ? m->block[d - 1] + 1 : 0) || (d && m->block[d] < m->block[d - 1]))
			return ptc_error_set(err, PTC_EINVAL, "blocks of devices must ascend from 0 by 1");
		nblocks = m->block[d] + 1;
	}
	*ret_nblocks = nblocks;
	return 0;
}

static void read_blocks(const struct ptc_link_matrix *m, uint32_t nblocks, uint32_t *start, double *fast)
{
	for (uint32_t d = 0; d < m->n; d++)
		start[(m->block ? m->block[d] : d) + 1] = d + 1;
	for (uint32_t a = 0; a < m->n; a++)
		for (uint32_t b = 0; b < m->n; b++) {
			double *at =
				&fast[(size_t)(m->block ? m->block[a] : a) * nblocks + (m->block ? m->block[b] : b)];

			if (a != b)
				*at = PTC_MAX(*at, link_of(m, a, b));
		}
}

int ptc_mapping_find(const struct ptc_link_matrix *m, const struct ptc_cand *c, const struct ptc_mapping_traffic *t,
		     uint32_t *device, struct ptc_mapping *ret, struct ptc_error *err)
{
	struct search s = { .m = m, .c = c, .t = t, .world = ptc_cand_devices(c), .seconds = INFINITY };
	uint32_t *numbers;
	double *fast, least = 0;
	int rc = check(m, c, &s.nblocks, err);

	if (rc)
		return rc;
	numbers = ptc_calloc(4 * (size_t)m->n + 1, sizeof *numbers);
	fast = ptc_calloc((size_t)s.nblocks * s.nblocks, sizeof *fast);
	if (!numbers || !fast || bound(m, c, t, &least)) {
		rc = ptc_nomem(err);
		goto done;
	}
	s.order = numbers;
	s.all = s.order + m->n;
	s.best = s.all + m->n;
	read_blocks(m, s.nblocks, s.best + m->n, fast);
	s.start = s.best + m->n;
	s.fast = fast;
	search(&s);
	memcpy(device, s.best, s.world * sizeof *device);
	*ret = (struct ptc_mapping){ s.seconds, least, s.nblocks <= PTC_MAPPING_EXACT && s.nblocks == m->n };
done:
	ptc_free(numbers);
	ptc_free(fast);
	return rc;
}
