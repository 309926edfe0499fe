/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the document of copies in etcd. Happy path: one transaction. It compares that we hold the lock, that the
 * record is the one that was looked at, that no switch has begun, and that nobody else has written the document. Then
 * nodes drop the tables that the document names no more. A node that misses the call drops these tables at its next
 * Finish.
 *
 * Failure modes: a compare failed, or no answer came. Then the key is read, for the answer alone may be lost, and what
 * etcd has is taken over. If it does not show the outcome (etcd is unreachable, or may still get the request), nodes
 * keep the tables (ctl->maybe) until it is known, and the next round begins with reading the key. The document is too
 * long: nothing is named. */
#include "daemon/controller/copies/copy_keeper.h"
#include "proto/pb.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/fence.h"
#include "base/sys/fault.h"

#include "ptc.pb-c.h"

#include <stdio.h>
#include <string.h>

#define DROP_TIMEOUT_MS 10000

bool ptc_copy_keeper_emptied(const struct ptc_controller *ctl, const char *node)
{
	bool emptied = false;

	for (size_t i = 0; i < ctl->nemptied; i++)
		emptied |= strcmp(ctl->emptied[i], node) == 0;
	for (size_t i = 0; i < ctl->older.doc.n; i++)
		emptied = emptied && !ptc_older_has(&ctl->older.doc.v[i], node);
	return emptied;
}

void ptc_copy_keeper_committed(struct ptc_controller *ctl)
{
	ptc_require(ptc_view_copies(&ctl->view, &ctl->copies) == 0);
	for (size_t i = 0; i < ctl->nemptied; i++) /* the switch reads nothing from these */
		if (ptc_copy_keeper_emptied(ctl, ctl->emptied[i]))
			ptc_copies_doc_drop(&ctl->view.copies, ctl->emptied[i]);
	ptc_require(ctl->nemptied == 0 || ptc_view_nodes(&ctl->view) == 0);
}

struct dropping {
	const struct ptc_copies_doc *now;
	const struct ptc_older_kept *older;
	const char *node;
	Ptc__V1__TableKey *keys, **list;
	size_t n;
	uint64_t generation, table; /* looked for in now */
	bool found;
};

static void compare(void *arg, uint64_t generation, uint64_t table)
{
	struct dropping *d = arg;

	d->found = d->found || (generation == d->generation && table == d->table);
}

static void collect(void *arg, uint64_t generation, uint64_t table)
{
	struct dropping *d = arg;

	d->generation = generation;
	d->table = table;
	d->found = false;
	ptc_copies_tables(d->now, d->node, compare, d);
	ptc_older_tables(d->older, d->node, compare, d);
	if (d->found)
		return;
	ptc__v1__table_key__init(&d->keys[d->n]);
	d->keys[d->n].generation = generation;
	d->keys[d->n].snapshot = table;
	d->list[d->n] = &d->keys[d->n];
	d->n++;
}

static void dropped(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len)
{
	ptc_controller_unref(arg);
}

static void send_drop(struct ptc_controller *ctl, struct dropping *d)
{
	Ptc__V1__DropRequest req = PTC__V1__DROP_REQUEST__INIT;
	struct ptc_rpc_channel *channel;
	const struct ptc_node *n;
	void *data = NULL;
	size_t len = 0;
	uint32_t at;

	if (!ptc_cluster_find_node(ctl->all->cluster, d->node, &at))
		return;
	n = ptc_cluster_node(ctl->all->cluster, at);
	req.version = PTC_WIRE_VERSION;
	req.uuid = ctl->uuid;
	req.fence = ctl->fence;
	req.seq = ptc_job_take_seq(ctl->core);
	req.n_tables = d->n;
	req.tables = d->list;
	if (n->up && ptc_channels_get(ctl->all->channels, d->node, n->doc.address, false, 0, &channel, NULL) == 0 &&
	    ptc_pb_encode(&req.base, &data, &len, NULL) == 0)
		ptc_rpc_unary_async(ctl->all->client, channel, "/ptc.v1.Peer/Drop", data, len, DROP_TIMEOUT_MS, dropped,
				    ptc_controller_ref(ctl));
	ptc_free(data);
}

static void drop_on(struct ptc_controller *ctl, const struct ptc_copies_doc *was, const char *node)
{
	const size_t most = was->nkeepers + was->nold;
	struct dropping d = { .now = &ctl->copies,
			      .older = &ctl->older,
			      .node = node,
			      .keys = ptc_calloc(most, sizeof *d.keys),
			      .list = ptc_calloc(most, sizeof *d.list) };

	ptc_require(d.keys && d.list);
	ptc_copies_tables(was, node, collect, &d);
	if (d.n)
		send_drop(ctl, &d);
	ptc_free(d.keys);
	ptc_free(d.list);
}

/* Drops the tables that `was` names, and neither c->ctl->copies nor the bridge. */
static void drop_tables(struct ptc_copy_keeper *c, const struct ptc_copies_doc *was)
{
	for (size_t i = 0; i < was->nkeepers; i++)
		drop_on(c->ctl, was, was->keepers[i].node);
	for (size_t i = 0; i < was->nold; i++)
		if (!ptc_copies_keeper(was, was->old[i].node))
			drop_on(c->ctl, was, was->old[i].node);
}

struct name {
	struct ptc_controller *ctl;
	struct ptc_copy_keeper *c;
	bool reads; /* it writes nothing */
	char *json; /* NULL: the key goes */
	int64_t fence, record_revision, copies_revision, revision;
	bool ok, sent; /* sent: and nobody knows the outcome */
	int status;
	struct ptc_error err;
	/* not ok: the document that etcd has, and whether it is what was to be written */
	bool seen, ours;
	struct ptc_copies_doc now;
	int64_t now_revision;
};

static void see(struct name *n, struct ptc_etcd *e, const char *key)
{
	struct ptc_etcd_kvs kvs = { 0 };
	const size_t len = n->json ? strlen(n->json) : 0;
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = ptc_fault("copies.read") ? ptc_error_set(&err, PTC_ECOORD, "a test wants the document not to be read")
					  : ptc_etcd_get(e, key, false, 1, &kvs, &err);

	if (rc == 0 && kvs.n)
		rc = ptc_copies_doc_decode(kvs.kv[0].value, kvs.kv[0].len, &n->now, &err);
	n->seen = rc == 0;
	n->now_revision = kvs.n ? kvs.kv[0].mod_revision : 0;
	n->ours = n->seen && !n->reads && n->now_revision != n->copies_revision && !n->json == !kvs.n &&
		  (!kvs.n || (kvs.kv[0].len == len && memcmp(kvs.kv[0].value, n->json, len) == 0));
	if (rc && !n->status) {
		n->status = rc;
		n->err = err;
	}
	ptc_etcd_kvs_done(&kvs);
}

static void name_work(void *arg, struct ptc_etcd *e)
{
	struct name *n = arg;
	char lock[96], record[96], intent[96], key[96];
	const struct ptc_etcd_compare cmp[] = { { lock, PTC_ETCD_CREATE_REV, ptc_fence_revision(n->fence) },
						{ record, PTC_ETCD_MOD_REV, n->record_revision },
						{ intent, PTC_ETCD_MOD_REV, 0 },
						{ key, PTC_ETCD_MOD_REV, n->copies_revision } };
	const struct ptc_etcd_op op = { .key = key, .value = n->json, .len = n->json ? strlen(n->json) : 0 };

	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", n->ctl->uuid);
	snprintf(record, sizeof record, "/ptc/jobs/%s/record", n->ctl->uuid);
	snprintf(intent, sizeof intent, "/ptc/jobs/%s/intent", n->ctl->uuid);
	snprintf(key, sizeof key, "/ptc/jobs/%s/copies", n->ctl->uuid);
	if (n->json && strlen(n->json) > PTC_COPIES_MAX_BYTES) {
		n->status = ptc_error_set(&n->err, PTC_ELIMIT, "where they are takes more than %u bytes to write down",
					  PTC_COPIES_MAX_BYTES);
		return;
	}
	if (!n->reads)
		n->status =
			ptc_etcd_txn(e, cmp, PTC_ARRAY_LEN(cmp), &op, 1, "etcd.copies", &n->ok, &n->revision, &n->err);
	n->sent = n->status != 0;
	if (!n->ok)
		see(n, e, key);
}

/* What the controller knows of etcd's document. */
static void know(struct ptc_controller *ctl, struct ptc_copies_doc *now, int64_t revision)
{
	ptc_copies_doc_done(&ctl->copies);
	ctl->copies = *now;
	ctl->copies_revision = revision;
	*now = (struct ptc_copies_doc){ 0 };
	ptc_copy_keeper_committed(ctl);
}

static void known(struct ptc_controller *ctl)
{
	ptc_copies_doc_done(&ctl->maybe);
	ctl->maybe_record = 0;
}

static void note_maybe(struct ptc_controller *ctl, const struct ptc_copies_keeper *v, size_t n)
{
	struct ptc_copies_doc *d = &ctl->maybe;

	for (size_t i = 0; i < n; i++) {
		size_t at = 0;

		while (at < d->nold && (d->old[at].table != v[i].table || d->old[at].generation != v[i].generation ||
					strcmp(d->old[at].node, v[i].node) != 0))
			at++;
		if (at < d->nold)
			continue;
		ptc_require(PTC_MORE(d->old, d->nold));
		d->old[d->nold++] = v[i];
	}
}

/* It is not written, as far as can be told now. */
static void not_named(struct name *n)
{
	struct ptc_controller *ctl = n->ctl;
	const bool moved = n->seen && n->now_revision != n->copies_revision;

	/* what was sent before compared a document, and a record, that are no more */
	if (moved || (n->seen && ctl->maybe_record != ctl->record_revision))
		known(ctl);
	if (n->sent && !moved) {
		note_maybe(ctl, n->c->next.keepers, n->c->next.nkeepers);
		note_maybe(ctl, n->c->next.old, n->c->next.nold);
		ctl->maybe_record = n->record_revision;
	}
	if (n->seen && n->now_revision != ctl->copies_revision)
		know(ctl, &n->now, n->now_revision);
}

static void named(struct name *n)
{
	struct ptc_controller *ctl = n->ctl;
	struct ptc_copies_doc was = ctl->copies;

	ctl->copies = (struct ptc_copies_doc){ 0 };
	known(ctl);
	know(ctl, &n->c->next, n->json ? n->revision : 0);
	drop_tables(n->c, &was);
	ptc_copies_doc_done(&was);
}

static void name_done(void *arg)
{
	struct name *n = arg;
	struct ptc_controller *ctl = n->ctl;
	struct ptc_copy_keeper *c = n->c;

	if (n->ours) { /* only the answer was lost */
		n->ok = true;
		n->revision = n->now_revision;
	}
	if (!ctl->gone && n->ok)
		named(n);
	else if (!ctl->gone)
		not_named(n);
	if (n->reads)
		c->read(c, n->seen, n->err.text);
	else
		c->named(c, n->ok,
			 n->status ? n->err.text
			 : n->now_revision == n->copies_revision
				 ? "the job's record has changed meanwhile"
				 : "etcd has another document than the controller knew");
	ptc_copies_doc_done(&n->now);
	ptc_free(n->json);
	ptc_controller_unref(ctl);
	ptc_free(n);
}

static void run(struct ptc_copy_keeper *c, bool reads)
{
	struct ptc_controller *ctl = c->ctl;
	struct name *n = ptc_calloc(1, sizeof *n);
	bool empty = reads || (!c->next.nkeepers && !c->next.nold);

	ptc_require(n);
	*n = (struct name){ .ctl = ptc_controller_ref(ctl),
			    .c = c,
			    .reads = reads,
			    .fence = ctl->fence,
			    .record_revision = ctl->record_revision,
			    .copies_revision = ctl->copies_revision };
	n->json = empty ? NULL : ptc_copies_doc_encode(&c->next);
	ptc_require(empty || n->json);
	/* the job's own lane: after what its switches have written */
	ptc_require(ptc_cluster_run(ctl->all->cluster, ctl->uuid, name_work, name_done, n) == 0);
}

void ptc_copy_keeper_name(struct ptc_copy_keeper *c)
{
	run(c, false);
}

void ptc_copy_keeper_read(struct ptc_copy_keeper *c)
{
	run(c, true);
}
