/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of replicas that differ within a node: a node makes one while it captures, and the controller joins those of
 * all nodes. Happy path: each box is listed. Failure modes: a rank differs in too many boxes (those with the lowest
 * numbers are kept, whatever the order in which they come); a node lists what is not its own (left out); memory. */
#include "daemon/agent/geometry/replica_votes.h"

#include "base/alloc.h"
#include "base/check.h"

#include "ptc.pb-c.h"

/* What is listed of one rank. */
struct listed {
	struct ptc_differing *it, *last; /* of the box; of the one with the highest number */
	size_t n;
};

static struct listed of_rank(const struct ptc_differing_list *l, uint32_t rank, uint32_t need)
{
	struct listed r = { 0 };

	for (size_t i = 0; i < l->n; i++) {
		struct ptc_differing *d = &l->v[i];

		if (d->rank != rank)
			continue;
		r.n++;
		if (d->need == need)
			r.it = d;
		if (!r.last || d->need > r.last->need)
			r.last = d;
	}
	return r;
}

/* What differs from that box on is not known. */
static void end_before(struct ptc_differing_list *l, uint32_t rank, uint32_t need)
{
	for (size_t i = 0; i < l->n; i++) {
		struct ptc_differing *d = &l->v[i];

		if (d->rank != rank)
			continue;
		d->before = d->more ? PTC_MIN(d->before, need) : need;
		d->more = true;
	}
}

bool ptc_differing_wants(struct ptc_differing_list *l, uint32_t rank, uint32_t need)
{
	const struct listed r = of_rank(l, rank, need);

	if (r.it || r.n < PTC_DIFFERING_MAX || need < r.last->need)
		return true;
	end_before(l, rank, need);
	return false;
}

int ptc_differing_note(struct ptc_differing_list *l, uint32_t rank, uint32_t item, uint32_t need, uint64_t difference,
		       struct ptc_error *err)
{
	struct listed r = of_rank(l, rank, need);
	struct ptc_differing d = { .rank = rank, .item = item, .need = need };

	if (!ptc_differing_wants(l, rank, need))
		return 0;
	if (!r.it && r.n < PTC_DIFFERING_MAX) {
		if (!PTC_ROOM(l->v, l->n + 1, l->cap))
			return ptc_nomem(err);
		r.it = &l->v[l->n++];
		*r.it = d;
	} else if (!r.it) {
		end_before(l, rank, r.last->need);
		d.more = true;
		d.before = r.last->before;
		r.it = r.last;
		*r.it = d;
	}
	r.it->difference ^= difference;
	return 0;
}

int ptc_differing_add(struct ptc_differing_list *l, const struct ptc_geometry *g, uint32_t node,
		      const struct Ptc__V1__PullReply *said, struct ptc_error *err)
{
	const struct ptc_allocation *at = &g->allocation;
	size_t most = 0;

	for (uint32_t rank = 0; rank < at->world; rank++)
		most += at->ranks[rank].node == node ? PTC_DIFFERING_MAX : 0;
	for (size_t i = 0; i < said->n_differing && most; i++) {
		const Ptc__V1__Differing *d = said->differing[i];

		if (d->rank >= at->world || at->ranks[d->rank].node != node || d->item >= ptc_spec_items(g->spec))
			continue;
		if (!PTC_ROOM(l->v, l->n + 1, l->cap))
			return ptc_nomem(err);
		l->v[l->n++] = (struct ptc_differing){ d->rank, d->item, d->need, d->difference, d->more, d->before };
		most--;
	}
	return 0;
}
