/* SPDX-License-Identifier: Apache-2.0 */
/* The mirror's nodes: which there are, and which count as lost.
 *
 * Happy path: a node is added when its name is first seen, and stays. When its key goes it is down. If it stays down
 * for too long, or an operator says so, ptc_cluster_tick calls it lost (daemon/cluster/loss).
 *
 * Failure modes: more nodes than PTC_MAX_NODES (PTC_ELIMIT); no memory; an operator calls a node lost that is up
 * (PTC_ESTATE). */
#include "daemon/cluster/mirror/internal.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

size_t ptc_cluster_nnodes(const struct ptc_cluster *c)
{
	return c->nnodes;
}

struct ptc_node *ptc_cluster_node(struct ptc_cluster *c, uint32_t index)
{
	return c->nodes[index];
}

bool ptc_cluster_find_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index)
{
	for (size_t i = 0; i < c->nnodes; i++)
		if (strcmp(c->nodes[i]->doc.name, name) == 0) {
			*ret_index = (uint32_t)i;
			return true;
		}
	return false;
}

int ptc_cluster_intern_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index)
{
	struct ptc_node *n;

	if (ptc_cluster_find_node(c, name, ret_index))
		return 0;
	if (c->nnodes == PTC_MAX_NODES)
		return PTC_ELIMIT;
	if (!PTC_MORE(c->nodes, c->nnodes))
		return PTC_ENOMEM;
	n = ptc_calloc(1, sizeof *n);
	if (!n)
		return PTC_ENOMEM;
	snprintf(n->doc.name, sizeof n->doc.name, "%s", name);
	n->down_ns = ptc_sys_now_ns();
	c->nodes[c->nnodes] = n;
	*ret_index = (uint32_t)c->nnodes++;
	return 0;
}

void ptc_cluster_node_ended(struct ptc_cluster *c, struct ptc_node *n)
{
	uint32_t up = 0;

	if (!n->up)
		return;
	n->up = false;
	n->down_ns = ptc_sys_now_ns();
	for (size_t i = 0; i < c->nnodes; i++)
		up += c->nodes[i]->up;
	ptc_loss_node_ended(&c->loss, up, n->down_ns);
}

bool ptc_cluster_any_lost(const struct ptc_cluster *c)
{
	for (size_t i = 0; i < c->nnodes; i++)
		if (c->nodes[i]->lost)
			return true;
	return false;
}

int64_t ptc_cluster_lost_after_ns(const struct ptc_cluster *c)
{
	return c->loss.after_ns;
}

void ptc_cluster_tick(struct ptc_cluster *c)
{
	int64_t now = ptc_sys_now_ns();
	bool changed = false;

	ptc_loss_tick(&c->loss, ptc_cluster_synced(c) && ptc_cluster_lease(c), now);
	for (size_t i = 0; i < c->nnodes; i++) {
		struct ptc_node *n = c->nodes[i];
		bool lost = !n->up && ptc_loss_is(&c->loss, n->down_ns, n->declared, now);

		if (lost != n->lost)
			ptc_info("node", "node=%s %s", n->doc.name,
				 !lost         ? "counts as lost no longer"
				 : n->declared ? "is lost: an operator says so"
					       : "is lost: it has had no lease for too long");
		if (lost && !n->lost && !n->declared)
			ptc_quarantine_lost(&n->quarantine, now);
		changed = changed || lost != n->lost;
		n->lost = lost;
	}
	if (changed && ptc_cluster_synced(c)) {
		c->epoch++;
		c->opts.on_change(c->opts.arg, NULL);
	}
}

int ptc_cluster_declare_lost(struct ptc_cluster *c, const char *node, bool lost, struct ptc_error *err)
{
	static const char value[] = "{\"version\":1}";
	char key[128], alive[128];
	struct ptc_etcd_op op = { .key = key };
	bool ok = false;
	int rc;

	snprintf(key, sizeof key, LOST_PREFIX "%s", node);
	snprintf(alive, sizeof alive, NODES_PREFIX "/%s", node);
	if (lost) {
		op.value = value;
		op.len = strlen(value);
	}
	rc = ptc_etcd_txn(c->etcd, &(struct ptc_etcd_compare){ alive, PTC_ETCD_CREATE_REV, 0 }, lost ? 1 : 0, &op, 1,
			  "etcd.lost", &ok, NULL, err);
	if (rc == 0 && !ok)
		rc = ptc_error_set(err, PTC_ESTATE,
				   "node %s is up, so it is not lost: `ptcctl drain %s` moves jobs off it; or stop its "
				   "ptcd first",
				   node, node);
	return rc;
}

int ptc_cluster_mark_device(struct ptc_cluster *c, const char *node, uint32_t device, bool bad, struct ptc_error *err)
{
	static const char value[] = "{\"version\":1}";
	char key[128];

	snprintf(key, sizeof key, BAD_PREFIX "%s/%u", node, (unsigned)device);
	return bad ? ptc_etcd_put(c->etcd, key, value, strlen(value), 0, "etcd.lost", err)
		   : ptc_etcd_delete(c->etcd, key, false, "etcd.lost", err);
}
