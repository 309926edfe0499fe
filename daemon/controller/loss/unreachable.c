/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out whether the machines of nodes that are down are there at all, and whether a ptcd listens on them. It looks
 * only at nodes that have or get ranks of a job that trains, and at nodes of jobs whose ranks were given up; for all
 * jobs of this daemon together. While such nodes are up, their leases are watched: then it is mostly known when a lease
 * ends whether the machine is there (daemon/cluster/mirror/mirror_leases.c), and what is here shows whether that has
 * changed since.
 *
 * Happy path: such a machine gets some connections, one after the other (ptc_machines_ask). If it neither takes nor
 * refuses any of them, the node is unreachable until a later look, or until it has a lease again. A ptcd that is
 * restarted, upgraded or stopped under its ranks is not: its kernel answers. If the kernel refuses the connections
 * of each look for PTC_REFUSED_NS, the node counts as `closed` until a connection is taken, or until the node has a
 * lease again.
 *
 * If there are more machines than a look takes, it takes those that were looked at longest ago, and the next look
 * follows at once.
 *
 * Failure modes: a name of which no address is known, a machine of our own that is silent, no memory: nothing can be
 * told, so the node is neither unreachable nor closed. If our own network is gone, all nodes are unreachable: whoever
 * acts on that first makes sure that other nodes have answered since. The looking is a task, which waits on a
 * thread of libuv's pool; the rest is on the loop. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "daemon/cluster/loss/addresses.h"

#include <poll.h>

#define MS           INT64_C(1000000)
#define AGAIN_NS     (1000 * MS) /* between looks, where nothing new is to be seen */
#define REFUSED_NS   (150 * MS)  /* between looks, where a machine refuses, and the node is not closed yet */
#define MACHINES_MAX 32          /* at a look, for each needs some descriptors (machines.h) */

struct asked {
	uint32_t node;
	int64_t down_ns; /* of the node, when the look began */
	int64_t last_ns; /* of the look before */
	bool own;
};

struct ptc_unreachable {
	struct ptc_controllers *all;
	bool asking;
	bool more;                  /* machines than there is room for in a look */
	int64_t next_ns, looked_ns; /* looked_ns: when the last look ended */
	size_t n;
	struct asked v[MACHINES_MAX];
	struct ptc_machine_asked machines[MACHINES_MAX]; /* of v[i] */
	struct pollfd fds[PTC_MACHINE_ADDRESSES * MACHINES_MAX];
};

/* ---- on a thread of the pool ---- */

static void look(void *arg, struct ptc_etcd *e)
{
	struct ptc_unreachable *a = arg;

	(void)e;
	for (size_t i = 0; i < a->n; i++)
		a->v[i].own = ptc_machine_is_own(&a->machines[i].at);
	ptc_machines_ask(a->machines, a->n, a->fds);
	a->looked_ns = ptc_sys_now_ns();
}

/* ---- on the loop ---- */

/* True: it is something else now than before. *ret_counts: it refuses, and is not closed yet. */
static bool take_answer(const struct ptc_unreachable *a, size_t i, bool *ret_counts)
{
	const enum ptc_machine answer = a->machines[i].answer;
	const struct asked *v = &a->v[i];
	struct ptc_node *n = ptc_cluster_node(a->all->cluster, v->node);
	bool unreachable = answer == PTC_MACHINE_SILENT && !v->own, closed, changed;

	if (n->up || n->down_ns != v->down_ns)
		return false;
	closed = ptc_refusals_saw(&n->refusals, answer == PTC_MACHINE_REFUSES, a->looked_ns);
	changed = n->unreachable != unreachable || n->closed != closed;
	n->unreachable = unreachable;
	n->closed = closed;
	*ret_counts |= n->refusals.n && !closed;
	return changed;
}

static void looked(void *arg)
{
	struct ptc_unreachable *a = arg;
	bool changed = false, counts = false;

	if (!a->all->unreachable) { /* the daemon ends */
		ptc_free(a);
		return;
	}
	for (size_t i = 0; i < a->n; i++)
		changed |= take_answer(a, i, &counts);
	a->asking = false;
	a->next_ns = changed || a->more ? 0 : ptc_sys_now_ns() + (counts ? REFUSED_NS : AGAIN_NS);
	for (size_t i = a->all->n; changed && i-- > 0;) {
		struct ptc_controller *ctl = i < a->all->n ? ptc_controller_ref(a->all->list[i]) : NULL;

		if (!ctl)
			continue;
		ptc_controller_tell_lost(ctl);
		ptc_leaving_tick(ctl);
		ptc_recovery_tick(ctl);
		ptc_controller_unref(ctl);
	}
}

/* Room for one more, whose last look was then. NULL: there is none, and all others are due before it. */
static struct asked *room_for(struct ptc_unreachable *a, int64_t last_ns)
{
	struct asked *latest = a->v;

	if (a->n < MACHINES_MAX)
		return &a->v[a->n++];
	a->more = true;
	for (size_t i = 1; i < a->n; i++)
		if (a->v[i].last_ns > latest->last_ns)
			latest = &a->v[i];
	return latest->last_ns > last_ns ? latest : NULL;
}

/* True: nobody has looked at it since it went down. */
static bool want(struct ptc_unreachable *a, const char *node)
{
	const struct ptc_node *n;
	struct asked *v;
	bool known = false;
	uint32_t at;

	if (!ptc_cluster_find_node(a->all->cluster, node, &at))
		return false;
	n = ptc_cluster_node(a->all->cluster, at);
	ptc_addresses_want(ptc_cluster_addresses(a->all->cluster), n->doc.address);
	if (n->up)
		ptc_cluster_watch_lease(a->all->cluster, at);
	for (size_t i = 0; i < a->n; i++)
		known |= a->v[i].node == at;
	if (known || n->up || !n->doc.address[0])
		return false;
	v = room_for(a, n->refusals.last_ns);
	if (v) {
		*v = (struct asked){ .node = at, .down_ns = n->down_ns, .last_ns = n->refusals.last_ns };
		(void)ptc_addresses_know(ptc_cluster_addresses(a->all->cluster), n->doc.address,
					 &a->machines[v - a->v].at);
	}
	return n->refusals.last_ns < n->down_ns;
}

static bool want_all(struct ptc_unreachable *a)
{
	struct ptc_controllers *all = a->all;
	bool fresh = false;

	a->n = 0;
	a->more = false;
	for (size_t i = 0; i < all->n; i++) {
		const struct ptc_controller *ctl = all->list[i];
		const struct ptc_generation_doc *g = ptc_controller_current(ctl);

		for (size_t k = 0; ctl->has_record && k < g->nnodes; k++)
			if (ctl->record.run == PTC_RUN_LIVE || ctl->record.recovery)
				fresh |= want(a, g->nodes[k]);
		for (size_t k = 0; k < ctl->view.to.nnodes; k++)
			if (ptc_controller_is_new(ctl, ctl->view.to.nodes[k]))
				fresh |= want(a, ctl->view.to.nodes[k]);
	}
	return fresh;
}

void ptc_unreachable_tick(struct ptc_controllers *all)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_COMPUTE, look }, { 0 } };
	struct ptc_unreachable *a = all->unreachable;

	if (a && a->asking)
		return;
	if (!a) {
		a = all->unreachable = ptc_calloc(1, sizeof *a);
		ptc_require(a);
		a->all = all;
	}
	if (!want_all(a) && ptc_sys_now_ns() < a->next_ns)
		return;
	a->asking = a->n > 0 && ptc_cluster_steps(all->cluster, "unreachable", steps, looked, a) == 0;
}

void ptc_unreachable_free(struct ptc_controllers *all)
{
	struct ptc_unreachable *a = all->unreachable;

	all->unreachable = NULL;
	if (a && !a->asking)
		ptc_free(a);
}
