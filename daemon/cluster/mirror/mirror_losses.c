/* SPDX-License-Identifier: Apache-2.0 */
/* How often nodes were lost, kept in etcd for daemons that have not seen it (daemon/cluster/loss/quarantine_doc.h).
 *
 * Happy path: a node is lost or comes back, and the daemon of the first node that is up, by name, writes it down; all
 * others read it. One document for each node, until the node is forgotten.
 *
 * Failure modes: that daemon does not write (the next ones do, each PATIENCE_NS later); another one has written
 * meanwhile (what it has written counts, and is written over if it has fewer losses than this daemon knows of); etcd
 * does not answer (again after PATIENCE_NS); a document that cannot be read (a line says so, and it is written
 * over). */
#include "daemon/cluster/mirror/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "daemon/cluster/loss/quarantine_doc.h"

#include <stdio.h>
#include <string.h>

#define PATIENCE_NS INT64_C(2000000000)

/* text NULL: etcd has none. */
static void take(struct ptc_node *n, const char *text, size_t len, int64_t revision)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_quarantine now = { 0 };

	if (text && ptc_quarantine_decode(text, len, ptc_sys_now_ns(), ptc_sys_realtime_ms(), &now, &err) != 0)
		ptc_warn("etcd", "losses of node %s: %s", n->doc.name, err.text);
	n->quarantine.kept.revision = revision;
	n->quarantine.kept.seen = text != NULL;
	ptc_quarantine_take(&n->quarantine, &now);
}

void ptc_cluster_losses_event(struct ptc_node *n, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	const bool writing = n->quarantine.kept.writing;

	if (kind == PTC_WATCH_PUT)
		take(n, kv->value ? kv->value : "", kv->len, kv->mod_revision);
	else /* the node is being forgotten */
		n->quarantine = (struct ptc_quarantine){ .kept.writing = writing };
}

void ptc_cluster_losses_synced(struct ptc_node *n)
{
	if (!n->quarantine.kept.seen)
		take(n, NULL, 0, 0);
}

struct keeping {
	struct ptc_node *node; /* nodes are only added */
	char key[128], own[128], *text;
	int64_t revision, own_revision;
	int rc;
	bool ok;
	struct ptc_etcd_kvs now; /* if not ok */
};

static void keep_work(void *arg, struct ptc_etcd *e)
{
	struct keeping *k = arg;
	const struct ptc_etcd_compare cmp[] = { { k->own, PTC_ETCD_CREATE_REV, k->own_revision },
						{ k->key, PTC_ETCD_MOD_REV, k->revision } };
	const struct ptc_etcd_op op = { .key = k->key, .value = k->text, .len = strlen(k->text) };

	k->rc = ptc_etcd_txn(e, cmp, PTC_ARRAY_LEN(cmp), &op, 1, "etcd.losses", &k->ok, NULL, NULL);
	if (k->rc == 0 && !k->ok)
		k->rc = ptc_etcd_get(e, k->key, false, 1, &k->now, NULL);
}

/* What was written comes with the watch. */
static void kept(void *arg)
{
	struct keeping *k = arg;

	k->node->quarantine.kept.writing = false;
	k->node->quarantine.kept.ahead_ns = 0;
	if (k->rc == 0 && !k->ok && k->now.n)
		take(k->node, k->now.kv[0].value, k->now.kv[0].len, k->now.kv[0].mod_revision);
	else if (k->rc == 0 && !k->ok)
		take(k->node, NULL, 0, 0);
	ptc_etcd_kvs_done(&k->now);
	ptc_free(k->text);
	ptc_free(k);
}

static void keep(struct ptc_cluster *c, struct ptc_node *n, int64_t own_revision, int64_t now_ns)
{
	struct keeping *k = ptc_calloc(1, sizeof *k);

	if (!k)
		return; /* at the next tick */
	k->node = n;
	k->own_revision = own_revision;
	k->revision = n->quarantine.kept.revision;
	k->text = ptc_quarantine_encode(&n->quarantine, now_ns, ptc_sys_realtime_ms());
	snprintf(k->key, sizeof k->key, LOSSES_PREFIX "%s", n->doc.name);
	snprintf(k->own, sizeof k->own, NODES_PREFIX "/%s", c->opts.node.name);
	n->quarantine.kept.writing = k->text && ptc_cluster_run(c, OWN_LANE, keep_work, kept, k) == 0;
	if (n->quarantine.kept.writing)
		return;
	ptc_free(k->text);
	ptc_free(k);
}

/* How many nodes that are up write before this one. */
static int64_t turn(const struct ptc_cluster *c)
{
	int64_t before = 0;

	for (size_t i = 0; i < c->nnodes; i++)
		before += c->nodes[i]->up && strcmp(c->nodes[i]->doc.name, c->opts.node.name) < 0;
	return before;
}

/* 0: its key is not there. */
static int64_t own_revision(const struct ptc_cluster *c)
{
	for (size_t i = 0; i < c->nnodes; i++)
		if (strcmp(c->nodes[i]->doc.name, c->opts.node.name) == 0)
			return c->nodes[i]->up ? c->nodes[i]->create_revision : 0;
	return 0;
}

void ptc_cluster_keep_losses(struct ptc_cluster *c, int64_t now_ns)
{
	const int64_t own = own_revision(c);

	if (!c->opts.node_quarantine_ns || !ptc_cluster_synced(c) || !ptc_cluster_lease(c) || !own)
		return;
	for (size_t i = 0; i < c->nnodes; i++) {
		struct ptc_node *n = c->nodes[i];
		int64_t *ahead_ns = &n->quarantine.kept.ahead_ns;

		if (n->forgotten || !ptc_quarantine_ahead(&n->quarantine)) {
			*ahead_ns = 0;
			continue;
		}
		if (!*ahead_ns)
			*ahead_ns = now_ns;
		if (!n->quarantine.kept.writing && now_ns - *ahead_ns >= turn(c) * PATIENCE_NS)
			keep(c, n, own, now_ns);
	}
}
