/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the votes of ranks that hold the same part of a tensor. Happy path: all digests are equal. Failure modes: no
 * digest has more than half of the votes. A group has as many ranks as there are replicas, so pairs are compared. */
#include "daemon/agent/geometry/replica_votes.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdlib.h>

static size_t votes_for(const struct ptc_replica_vote *v, size_t n, uint64_t digest)
{
	size_t votes = 0;

	for (size_t i = 0; i < n; i++)
		votes += !v[i].unknown && v[i].digest == digest;
	return votes;
}

static const struct ptc_replica_vote *lowest(const struct ptc_replica_vote *v, size_t n)
{
	const struct ptc_replica_vote *low = v;

	for (size_t i = 1; i < n; i++)
		if (v[i].rank < low->rank)
			low = &v[i];
	return low;
}

static bool right_digest(const struct ptc_replica_vote *v, size_t n, bool primary, uint64_t *ret)
{
	if (primary) {
		*ret = lowest(v, n)->digest;
		return !lowest(v, n)->unknown;
	}
	for (size_t i = 0; i < n; i++) {
		if (v[i].unknown || votes_for(v, n, v[i].digest) * 2 <= n)
			continue;
		*ret = v[i].digest;
		return true;
	}
	return false;
}

bool ptc_replica_votes(struct ptc_replica_vote *v, size_t n, bool primary, size_t *ret_nodd)
{
	uint64_t right;

	*ret_nodd = 0;
	for (size_t i = 0; i < n; i++)
		v[i].odd = false;
	if (!right_digest(v, n, primary, &right))
		return false;
	for (size_t i = 0; i < n; i++) {
		v[i].odd = !v[i].unknown && v[i].digest != right;
		*ret_nodd += v[i].odd;
	}
	return true;
}

/* ---- all ranks of a generation ---------------------------------------------------------- */

struct search {
	const struct ptc_geometry *g;
	const struct ptc_differing_list *listed;
	bool primary;
	struct ptc_replica_vote *votes; /* room for each rank */
	struct ptc_odd_rank *odd;       /* by rank; of == 0: it is not */
	size_t nodd;
	struct ptc_error undecided; /* of bytes of which too little is known to say which are right; "": of none */
};

/* The vote of a rank whose node has said `digest` of its box number need. */
static struct ptc_replica_vote vote(const struct search *s, uint32_t rank, uint32_t need, uint64_t digest)
{
	struct ptc_replica_vote v = { .rank = rank, .digest = digest };

	for (size_t i = 0; i < s->listed->n; i++) {
		const struct ptc_differing *d = &s->listed->v[i];

		if (d->rank == rank && d->need == need) {
			v.digest ^= d->difference;
			v.unknown = false;
			return v;
		}
		v.unknown |= d->rank == rank && d->more && need >= d->before;
	}
	return v;
}

/* Boxes of nodes are cut so that a rank holds all of one, or nothing. */
static int holds(const struct search *s, uint32_t rank, uint32_t item, const struct ptc_box *box, bool *ret,
		 struct ptc_error *err)
{
	struct ptc_needs needs = { 0 };
	struct ptc_box common;
	int rc = ptc_layout_ranks_needs(s->g->layout, &rank, 1, item, item + 1, SIZE_MAX, &needs, err);

	*ret = false;
	for (size_t i = 0; !rc && i < needs.n; i++)
		*ret |= ptc_box_intersect(&needs.v[i].box, box, &common);
	ptc_needs_done(&needs);
	return rc;
}

/* Whether all ranks may have the same bytes of the box. */
static bool agree(const struct search *s, uint32_t item, const struct ptc_replica_said *v, size_t n)
{
	for (size_t i = 1; i < n; i++)
		if (v[i].digest != v[0].digest)
			return false;
	for (size_t i = 0; i < s->listed->n; i++)
		if (s->listed->v[i].item == item)
			return false;
	return true;
}

static void note_odd(struct search *s, uint32_t item, size_t nvotes, size_t nodd)
{
	for (size_t i = 0; i < nvotes; i++) {
		struct ptc_odd_rank *o = &s->odd[s->votes[i].rank];

		if (!s->votes[i].odd || o->of)
			continue;
		*o = (struct ptc_odd_rank){ s->votes[i].rank, item, (uint32_t)(nvotes - nodd), (uint32_t)nvotes };
		s->nodd++;
	}
}

static int group(void *arg, uint32_t item, const struct ptc_box *box, const struct ptc_replica_said *v, size_t n,
		 struct ptc_error *err)
{
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	struct search *s = arg;
	const struct ptc_allocation *at = &s->g->allocation;
	size_t nvotes = 0, nodd;
	bool unknown = false;
	int rc = 0;

	if (agree(s, item, v, n))
		return 0;
	for (size_t i = 0; i < n; i++)
		for (uint32_t rank = 0; !rc && rank < at->world; rank++) {
			bool has = false;

			if (at->ranks[rank].node == v[i].node)
				rc = holds(s, rank, item, box, &has, err);
			if (has)
				s->votes[nvotes++] = vote(s, rank, v[i].box, v[i].digest);
		}
	if (rc || !nvotes)
		return rc;
	for (size_t i = 0; i < nvotes; i++)
		unknown |= s->votes[i].unknown;
	if (!ptc_replica_votes(s->votes, nvotes, s->primary, &nodd)) {
		rc = ptc_error_set(unknown ? &s->undecided : err, PTC_EDIGEST,
				   "replicas of \"%.600s\" differ, and of its %zu replicas no more than half are equal",
				   ptc_geometry_item_name(s->g, item, name, sizeof name), nvotes);
		return unknown ? 0 : rc; /* boxes that are listed may tell */
	}
	note_odd(s, item, nvotes, nodd);
	return 0;
}

int ptc_odd_ranks(struct ptc_digests *d, const struct ptc_geometry *g, const struct ptc_differing_list *listed,
		  bool primary, struct ptc_odd_rank **ret, size_t *ret_n, struct ptc_error *err)
{
	const uint32_t world = g->allocation.world;
	struct search s = { .g = g, .listed = listed, .primary = primary };
	size_t k = 0;
	int rc;

	s.votes = ptc_reallocarray(NULL, world, sizeof *s.votes);
	s.odd = ptc_calloc(world, sizeof *s.odd);
	rc = s.votes && s.odd ? ptc_digests_replicas(d, group, &s, err) : ptc_nomem(err);
	if (!rc && !s.nodd && s.undecided.text[0])
		rc = ptc_error_set(err, PTC_EDIGEST, "%s", s.undecided.text);
	if (!rc && !primary && 2 * s.nodd >= world)
		rc = ptc_error_set(err, PTC_ELIMIT, "%zu of %u ranks differ from the others", s.nodd, world);
	for (uint32_t r = 0; !rc && r < world; r++)
		if (s.odd[r].of)
			s.odd[k++] = s.odd[r];
	ptc_free(s.votes);
	if (rc) {
		ptc_free(s.odd);
		return rc;
	}
	*ret = s.odd;
	*ret_n = k;
	return 0;
}
