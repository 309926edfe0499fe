/* SPDX-License-Identifier: Apache-2.0 */
/* The mirror's nodes: which there are, and which count as lost.
 *
 * Happy path: a node is added when its name is first seen, and stays. When its key goes it is down. If it stays down
 * for too long, or an operator says so, ptc_cluster_tick calls it lost (daemon/cluster/loss). Each node enters itself
 * into the register, /ptc/nodes-known/. So daemons that start later know nodes that are down, until one is forgotten.
 * A controller enters the nodes that its job names: after `cluster recover` the register is empty.
 *
 * Forgetting a node removes only its entry in the list and its marks. It does not stop the node from writing: etcd's
 * identity, the node's lease and fences do that. The node enters itself again when it takes a lease, which also removes
 * its mark "lost".
 *
 * Failure modes: more nodes than PTC_MAX_NODES (PTC_ELIMIT); no memory; an operator calls a node lost that is up, or
 * has it forgotten (PTC_ESTATE). */
#include "daemon/cluster/mirror/internal.h"

#include "base/alloc.h"
#include "base/check.h"
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
	ptc_cluster_lease_ended(n);
}

bool ptc_cluster_any_lost(const struct ptc_cluster *c)
{
	for (size_t i = 0; i < c->nnodes; i++)
		if (c->nodes[i]->lost || c->nodes[i]->unreachable || c->nodes[i]->closed)
			return true;
	return false;
}

int64_t ptc_cluster_lost_after_ns(const struct ptc_cluster *c)
{
	return c->loss.after_ns;
}

/* Of a node that this daemon has never seen up, it cannot know how long it has had no lease. */
bool ptc_cluster_early(const struct ptc_cluster *c, const struct ptc_node *n)
{
	uint32_t up = 0;

	for (size_t i = 0; i < c->nnodes; i++)
		up += c->nodes[i]->up;
	return !n->up && n->create_revision &&
	       ptc_loss_early_if(&c->loss, up, ptc_cluster_doubtful(c), ptc_sys_now_ns());
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
		if (lost && !n->declared && n->create_revision) /* else this daemon has never seen it up */
			ptc_quarantine_lost(&n->quarantine, n->create_revision, now);
		changed = changed || lost != n->lost;
		n->lost = lost;
	}
	ptc_cluster_keep_losses(c, now);
	ptc_cluster_leases_tick(c, now);
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

/* ---- the register ---- */

bool ptc_node_listed(const struct ptc_node *n)
{
	return n->up || n->drained || n->declared || n->marked || !n->forgotten;
}

static const char entry[] = "{\"version\":1}";

struct naming {
	struct ptc_node *node;
	char key[128];
	int rc;
};

/* The node has only run with a version that had no register, or before etcd was replaced. */
static void name_work(void *arg, struct ptc_etcd *e)
{
	struct naming *n = arg;
	const struct ptc_etcd_op enter = { .key = n->key, .value = entry, .len = strlen(entry) };
	struct ptc_error err = PTC_ERROR_INIT;
	bool ok;

	n->rc = ptc_etcd_txn(e, &(struct ptc_etcd_compare){ n->key, PTC_ETCD_CREATE_REV, 0 }, 1, &enter, 1, "etcd.lost",
			     &ok, NULL, &err);
	if (n->rc)
		ptc_debug("etcd", "%s is not written: %s", n->key, err.text); /* the next switch tries again */
}

static void named(void *arg)
{
	struct naming *n = arg;

	n->node->naming = n->rc == 0;
	ptc_free(n);
}

int ptc_cluster_name_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index)
{
	int rc = ptc_cluster_intern_node(c, name, ret_index);
	struct naming *n;

	if (rc)
		return rc;
	c->nodes[*ret_index]->forgotten = false;
	if (c->nodes[*ret_index]->known || c->nodes[*ret_index]->naming)
		return 0;
	n = ptc_calloc(1, sizeof *n);
	if (!n)
		return PTC_ENOMEM;
	n->node = c->nodes[*ret_index];
	snprintf(n->key, sizeof n->key, KNOWN_PREFIX "%s", name);
	n->node->naming = ptc_cluster_run(c, OWN_LANE, name_work, named, n) == 0;
	if (!n->node->naming)
		ptc_free(n);
	return 0;
}

/* The entry goes last: when others see that, the rest is gone. It is written first, for a node that is not in the
 * register, so that everybody sees it go. */
int ptc_cluster_forget(struct ptc_cluster *c, const char *node, struct ptc_error *err)
{
	char alive[128], known[128], lost[128], drained[128], bad[128], losses[128];
	const struct ptc_etcd_compare down = { alive, PTC_ETCD_CREATE_REV, 0 };
	const struct ptc_etcd_op enter = { .key = known, .value = entry, .len = strlen(entry) };
	const struct ptc_etcd_op ops[] = {
		{ .key = lost }, { .key = drained }, { .key = bad, .prefix = true }, { .key = losses }, { .key = known }
	};
	bool ok = false;
	int rc;

	snprintf(alive, sizeof alive, NODES_PREFIX "/%s", node);
	snprintf(known, sizeof known, KNOWN_PREFIX "%s", node);
	snprintf(lost, sizeof lost, LOST_PREFIX "%s", node);
	snprintf(drained, sizeof drained, NODES_PREFIX "-drained/%s", node);
	snprintf(bad, sizeof bad, BAD_PREFIX "%s/", node);
	snprintf(losses, sizeof losses, LOSSES_PREFIX "%s", node);
	rc = ptc_etcd_txn(c->etcd, &down, 1, &enter, 1, "etcd.lost", &ok, NULL, err);
	if (rc == 0 && ok)
		rc = ptc_etcd_txn(c->etcd, &down, 1, ops, PTC_ARRAY_LEN(ops), "etcd.lost", &ok, NULL, err);
	if (rc == 0 && !ok)
		rc = ptc_error_set(err, PTC_ESTATE, "node %s is up again, so it is not forgotten", node);
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
