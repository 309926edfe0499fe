/* SPDX-License-Identifier: Apache-2.0 */
/* Suspects nodes that have not answered, and this node's own network.
 *
 * Happy path: a node does not answer a call, and not when it is asked once more. Its machine and some others get
 * connections. If one of them takes or refuses one, this node's network works, so the silent node's lease is revoked,
 * and nobody waits for its end.
 *
 * If none of them answers, this node may be the one that is cut off, though it reaches etcd by another network. Then it
 * revokes no lease: that of a node that has died ends by itself. It looks again each second. If two nodes or more are
 * still up when leases of nodes that have died must have ended, they live and this node's network has failed: it gives
 * its jobs' locks back, for a node that the others answer, and takes none until a machine answers it.
 *
 * Failure modes: a node on this machine, to which no network leads: it is suspected alone. No address is known of any
 * machine: no lease is revoked. The looking is a task on a thread of libuv's pool; the rest is on the loop. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "daemon/cluster/loss/addresses.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define MS           INT64_C(1000000)
#define AGAIN_NS     (1000 * MS)
#define WANT_NS      (10000 * MS)
#define MARGIN_MS    1000 /* etcd needs up to half a second to notice that a lease has ended */
#define SUSPECTS_MAX 8    /* in a look */
#define OTHERS_MAX   8    /* .. and of all nodes that are up */

struct suspect {
	struct ptc_controllers *all;
	struct suspect *next;
	uint32_t node;
	int64_t lease, begun_ns;
	bool looked_for; /* by the look under way */
	char name[PTC_NAME_MAX + 1];
	char why[PTC_ERROR_MAX];
};

struct ptc_suspicion {
	struct ptc_controllers *all;
	struct suspect *waiting; /* for a look */
	bool looking;
	bool yields;
	int64_t alone_ns; /* no machine has answered since then; 0: one has, or nobody was asked */
	int64_t over_ns;  /* .. and until then, the last time */
	int64_t next_ns, want_ns;
	/* The look's. */
	size_t n, nsuspects; /* the suspects come first */
	struct ptc_machine_asked v[SUSPECTS_MAX + OTHERS_MAX];
	struct pollfd fds[PTC_MACHINE_ADDRESSES * (SUSPECTS_MAX + OTHERS_MAX)];
	bool heard;
	size_t silent; /* of the others */
};

/* ---- on a thread of the pool ---- */

static void look(void *arg, struct ptc_etcd *e)
{
	struct ptc_suspicion *s = arg;

	(void)e;
	for (size_t i = 0; i < s->n; i++) /* no network leads to ourselves */
		if (ptc_machine_is_own(&s->v[i].at))
			s->v[i].at.n = 0;
	ptc_machines_ask(s->v, s->n, s->fds);
	s->heard = false;
	s->silent = 0;
	for (size_t i = 0; i < s->n; i++) {
		s->heard |= s->v[i].answer == PTC_MACHINE_TAKES || s->v[i].answer == PTC_MACHINE_REFUSES;
		s->silent += i >= s->nsuspects && s->v[i].answer == PTC_MACHINE_SILENT;
	}
}

/* ---- on the loop ---- */

static void revoke(void *arg, struct ptc_etcd *etcd)
{
	struct suspect *s = arg;

	ptc_etcd_revoke(etcd, s->lease, NULL); /* gone already: just as well */
}

static bool is_up(const struct suspect *s)
{
	const struct ptc_node *n = ptc_cluster_node(s->all->cluster, s->node);

	return n->up && n->lease == s->lease && !atomic_load(s->all->stopping);
}

/* guilty: it has left a question unanswered, and this node's network works. */
static void condemn(struct suspect *s, bool guilty)
{
	guilty = guilty && is_up(s);
	if (guilty)
		ptc_warn("node", "node=%s does not answer (%s); revoking its lease", s->name, s->why);
	if (!guilty || ptc_cluster_run(s->all->cluster, "revoke", revoke, ptc_free, s) != 0)
		ptc_free(s);
}

/* Those that the look was for. Who was asked while no machine answered is not to blame: if it does not answer now
 * either, it is suspected again. */
static void condemn_all(struct ptc_suspicion *s, bool heard)
{
	struct suspect **at = &s->waiting;

	while (*at) {
		struct suspect *one = *at;

		if (!one->looked_for) {
			at = &one->next;
			continue;
		}
		*at = one->next;
		condemn(one, heard && !s->alone_ns && one->begun_ns > s->over_ns);
	}
}

static void not_alone(struct ptc_suspicion *s)
{
	if (s->yields)
		ptc_info("node", "another machine answers again, or no other node is up: this node takes locks again");
	if (s->alone_ns)
		s->over_ns = ptc_sys_now_ns();
	s->alone_ns = 0;
	s->yields = false;
}

/* Nobody has answered, and so many are up. */
static void alone(struct ptc_suspicion *s, int64_t now_ns)
{
	int64_t ended_ns = (2 * s->all->lease_ttl_ms + MARGIN_MS) * MS;

	if (!s->alone_ns) {
		ptc_warn("node",
			 "a node does not answer, and neither does any other machine: perhaps this node's network "
			 "has failed, so no lease is revoked");
		s->alone_ns = now_ns;
	}
	if (s->yields || s->silent < 2 || now_ns - s->alone_ns < ended_ns)
		return;
	ptc_warn(
		"node",
		"no other machine has answered for %lld s, and %zu of them renew their leases: this node's network has "
		"failed, and it gives its jobs' locks back",
		(long long)((now_ns - s->alone_ns) / 1000000000), s->silent);
	s->yields = true;
}

static void release(struct ptc_suspicion *s)
{
	for (struct suspect *one = s->waiting, *next; one; one = next) {
		next = one->next;
		ptc_free(one);
	}
	ptc_free(s);
}

static void looked(void *arg)
{
	struct ptc_suspicion *s = arg;
	int64_t now = ptc_sys_now_ns();

	if (!s->all->suspicion) { /* the daemon ends */
		release(s);
		return;
	}
	s->looking = false;
	s->next_ns = now + AGAIN_NS;
	condemn_all(s, s->heard);
	if (s->heard || !s->silent)
		not_alone(s);
	else
		alone(s, now);
}

static void add(struct ptc_suspicion *s, uint32_t node)
{
	struct ptc_controllers *all = s->all;

	(void)ptc_addresses_know(ptc_cluster_addresses(all->cluster), ptc_cluster_node(all->cluster, node)->doc.address,
				 &s->v[s->n++].at);
}

static bool is_other(const struct ptc_controllers *all, uint32_t node)
{
	const struct ptc_node *n = ptc_cluster_node(all->cluster, node);

	return n->up && strcmp(n->doc.name, all->node) != 0;
}

/* Some of all that are up, evenly: neighbours may have gone together. */
static void add_others(struct ptc_suspicion *s)
{
	size_t nodes = ptc_cluster_nnodes(s->all->cluster), others = 0, k = 0;

	for (uint32_t i = 0; i < nodes; i++)
		others += is_other(s->all, i);
	for (uint32_t i = 0; i < nodes; i++) {
		if (!is_other(s->all, i))
			continue;
		if (k * OTHERS_MAX / others != (k + 1) * OTHERS_MAX / others)
			add(s, i);
		k++;
	}
}

static void begin(struct ptc_suspicion *s)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_COMPUTE, look }, { 0 } };

	s->n = 0;
	for (struct suspect *one = s->waiting; one; one = one->next) {
		one->looked_for = true;
		if (s->n < SUSPECTS_MAX)
			add(s, one->node);
	}
	s->nsuspects = s->n;
	add_others(s);
	s->looking = ptc_cluster_steps(s->all->cluster, "suspicion", steps, looked, s) == 0;
	if (!s->looking)
		condemn_all(s, false);
}

/* Their names have to be known before they are needed. */
static void want(struct ptc_controllers *all)
{
	size_t nodes = ptc_cluster_nnodes(all->cluster);

	for (uint32_t i = 0; all->n && i < nodes; i++)
		if (is_other(all, i))
			ptc_addresses_want(ptc_cluster_addresses(all->cluster),
					   ptc_cluster_node(all->cluster, i)->doc.address);
}

void ptc_suspicion_tick(struct ptc_controllers *all)
{
	struct ptc_suspicion *s = all->suspicion;
	int64_t now = ptc_sys_now_ns();

	if (!s) {
		s = all->suspicion = ptc_calloc(1, sizeof *s);
		ptc_require(s);
		s->all = all;
	}
	if (now >= s->want_ns) {
		s->want_ns = now + WANT_NS;
		want(all);
	}
	if (!s->looking && (s->waiting || (s->alone_ns && now >= s->next_ns)))
		begin(s);
}

bool ptc_suspicion_yields(const struct ptc_controllers *all)
{
	return all->suspicion && all->suspicion->yields;
}

void ptc_suspicion_free(struct ptc_controllers *all)
{
	struct ptc_suspicion *s = all->suspicion;

	all->suspicion = NULL;
	if (s && !s->looking)
		release(s);
}

/* ---- a node ---- */

/* No network leads there. */
static bool is_here(const struct ptc_controllers *all, const struct ptc_node *n)
{
	struct ptc_machine_at at;

	return strncmp(n->doc.address, "unix:", 5) == 0 ||
	       (ptc_addresses_know(ptc_cluster_addresses(all->cluster), n->doc.address, &at) &&
		ptc_machine_is_own(&at));
}

static void suspected(void *arg, int status, const struct ptc_error *err)
{
	struct suspect *s = arg;
	struct ptc_suspicion *of = s->all->suspicion;
	bool silent = status == PTC_EPEER || status == PTC_ETIMEOUT;

	if (!silent || !of || !is_up(s)) {
		ptc_free(s);
		return;
	}
	snprintf(s->why, sizeof s->why, "%s", err->text);
	if (is_here(s->all, ptc_cluster_node(s->all->cluster, s->node))) {
		condemn(s, true);
		return;
	}
	s->next = of->waiting;
	of->waiting = s;
	if (!of->looking)
		begin(of);
}

/* lease: the one the node had when the request that failed was sent; a newer one belongs to a newer life. */
void ptc_controller_suspect(struct ptc_controller *ctl, uint32_t node, int64_t lease)
{
	struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, node);
	struct suspect *s;

	if (!n->up || !lease || n->lease != lease || strcmp(n->doc.name, ctl->all->node) == 0)
		return;
	s = ptc_calloc(1, sizeof *s);
	if (!s)
		return;
	*s = (struct suspect){ .all = ctl->all, .node = node, .lease = lease, .begun_ns = ptc_sys_now_ns() };
	snprintf(s->name, sizeof s->name, "%s", n->doc.name);
	if (ptc_controller_probe(ctl->all, n, suspected, s) != 0)
		ptc_free(s);
}
