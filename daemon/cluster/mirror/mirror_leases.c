/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes' leases are about to end, of those that a controller asks about, and whether their machines are silent
 * then (daemon/cluster/loss/lease_end.h).
 *
 * Happy path: etcd is asked each second or two for what a node's lease has left, and the lease is renewed. If it is
 * not, the node's machine is given connections; when the lease ends, the node is unreachable at once, or it is known
 * that its machine is there. While one node's lease is about to end, and its machine is silent, all other nodes are
 * asked about, too: most may have gone together.
 *
 * Failure modes: etcd does not answer (asked again after RETRY_NS; what it said before counts until then); no address
 * is known of a name, our own machine, too many nodes at once: nothing can be told, and the look after the lease's end
 * decides (daemon/controller/loss/unreachable.c). No lease is revoked here, although etcd takes up to half a second to
 * notice its end: its answers leave fractions of a second out (docs/decisions/0074). */
#include "daemon/cluster/mirror/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "daemon/cluster/loss/addresses.h"

#include <stdio.h>
#include <string.h>

#define S          INT64_C(1000000000)
#define ASKED_MAX  64 /* leases in one task; the rest is asked for after it */
#define LOOKS_MAX  32 /* nodes looked at at the same time, for each takes PTC_LEASE_END_MAX descriptors */
#define ASK_MS     1000
#define RETRY_NS   S
#define WANTED_NS  (3 * S) /* a controller has asked within that */
#define LEASE_LANE "leases"

struct asked {
	struct ptc_node *node; /* nodes are only added */
	int64_t lease, asked_ns;
	struct ptc_etcd_left left;
	bool looks, heard;
};

struct asking {
	struct ptc_cluster *cluster;
	size_t n;
	struct asked v[ASKED_MAX];
};

/* ---- on a thread that may wait for etcd ---- */

static void ask_work(void *arg, struct ptc_etcd *e)
{
	struct asking *a = arg;

	for (size_t i = 0; i < a->n; i++) {
		struct asked *v = &a->v[i];

		v->asked_ns = ptc_sys_now_ns();
		if (ptc_etcd_lease_left(e, v->lease, ASK_MS, &v->left, NULL) != 0)
			return; /* the others would wait for nothing, too */
		v->heard = true;
	}
}

/* ---- on the loop ---- */

static void take(struct ptc_cluster *c, struct asked *v)
{
	struct ptc_node *n = v->node;
	struct ptc_machine_at at;
	bool looks;

	n->end->asking = false;
	if (!v->heard || v->left.left_s < 0 || !n->up || n->lease != v->lease) {
		n->end->next_ns = ptc_sys_now_ns() + RETRY_NS;
		return;
	}
	looks = v->looks && ptc_lease_end_is_near(v->left.left_s, v->left.ttl_s) &&
		ptc_addresses_know(c->addresses, n->doc.address, &at) && !ptc_machine_is_own(&at);
	if (ptc_lease_end_heard(n->end, v->lease, v->left.left_s, v->left.ttl_s, looks ? &at : NULL, v->asked_ns))
		ptc_info("node",
			 "node=%s has not renewed its lease, of which it has less than %lld s: its machine is asked",
			 n->doc.name, (long long)v->left.left_s + 1);
	ptc_lease_end_look(n->end, ptc_sys_now_ns());
}

static void asked(void *arg)
{
	struct asking *a = arg;

	for (size_t i = 0; i < a->n; i++)
		take(a->cluster, &a->v[i]);
	ptc_free(a);
}

static void add(struct asking *a, struct ptc_node *n, bool looks)
{
	struct asked *v = &a->v[a->n++];

	*v = (struct asked){ .node = n, .lease = n->lease, .looks = looks && !n->end->ending };
	ptc_addresses_want(a->cluster->addresses, n->doc.address);
	n->end->asking = true;
}

static bool is_due(const struct ptc_cluster *c, const struct ptc_node *n, bool any_ends, int64_t now_ns)
{
	const struct ptc_lease_end *e = n->end;

	return n->up && n->lease && e && !e->asking && now_ns >= e->next_ns &&
	       (any_ends || (e->wanted_ns && now_ns - e->wanted_ns < WANTED_NS)) &&
	       strcmp(n->doc.name, c->opts.node.name) != 0;
}

uint32_t ptc_cluster_doubtful(const struct ptc_cluster *c)
{
	uint32_t n = 0;

	for (size_t i = 0; i < c->nnodes; i++)
		n += c->nodes[i]->up && ptc_lease_end_doubtful(c->nodes[i]->end);
	return n;
}

static struct ptc_lease_end *end_of(struct ptc_node *n)
{
	if (!n->end)
		n->end = ptc_calloc(1, sizeof *n->end);
	return n->end;
}

static struct asking *new_asking(struct ptc_cluster *c)
{
	struct asking *a = ptc_calloc(1, sizeof *a);

	if (a)
		a->cluster = c;
	return a;
}

/* NULL: no question is due, or there is no memory for it. */
static struct asking *collect(struct ptc_cluster *c, int64_t now_ns)
{
	bool any = ptc_cluster_doubtful(c) > 0;
	struct asking *a = NULL;
	uint32_t looks = 0;

	for (size_t i = 0; i < c->nnodes; i++) {
		if (any && c->nodes[i]->up)
			(void)end_of(c->nodes[i]);
		looks += c->nodes[i]->end && c->nodes[i]->end->ending;
	}
	for (size_t i = 0; i < c->nnodes; i++) {
		if (!is_due(c, c->nodes[i], any, now_ns))
			continue;
		if (!a)
			a = new_asking(c);
		if (!a || a->n == ASKED_MAX)
			break;
		add(a, c->nodes[i], looks++ < LOOKS_MAX);
	}
	return a;
}

void ptc_cluster_leases_tick(struct ptc_cluster *c, int64_t now_ns)
{
	struct asking *a;

	for (size_t i = 0; i < c->nnodes; i++)
		if (c->nodes[i]->up && c->nodes[i]->end)
			ptc_lease_end_look(c->nodes[i]->end, now_ns);
	a = ptc_cluster_synced(c) ? collect(c, now_ns) : NULL;
	if (!a || ptc_cluster_run(c, LEASE_LANE, ask_work, asked, a) == 0)
		return;
	for (size_t i = 0; i < a->n; i++)
		a->v[i].node->end->asking = false;
	ptc_free(a);
}

void ptc_cluster_watch_lease(struct ptc_cluster *c, uint32_t node)
{
	struct ptc_lease_end *e = end_of(c->nodes[node]);

	if (e) /* without memory the look after the lease's end has to do */
		e->wanted_ns = ptc_sys_now_ns();
}

void ptc_cluster_lease_ended(struct ptc_node *n)
{
	uint32_t tried;

	if (!n->end)
		return;
	tried = n->end->n;
	n->unreachable = ptc_lease_end_silent(n->end, n->down_ns);
	if (n->unreachable)
		ptc_info("node",
			 "node=%s nothing on its machine has answered %u connections, of which the first began before "
			 "its lease ended",
			 n->doc.name, (unsigned)tried);
	ptc_lease_end_reset(n->end);
}
