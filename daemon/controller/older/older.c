/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, keeps and drops the snapshots that a job keeps beside the committed one (`keep`), and the bridge. See
 * controller_work.h. Happy path: a commit makes the record's snapshot an older one, prunes the list by `keep`, and
 * writes both in one transaction. Finish tells the record's nodes which tables stay. Other nodes are told once the job
 * is idle. The bridge goes when the record's copies are complete.
 *
 * Failure modes: a switch or a copy finds no room. Then a separate transaction takes the bridge from the document or,
 * for a switch, the oldest snapshot; it succeeds only if nothing else has changed. After that, nodes are told. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/fence.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct ptc_older ptc_older_of_record(const struct ptc_controller *ctl)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	struct ptc_older o = { .generation = ctl->record.generation,
			       .snapshot = ctl->record.snapshot,
			       .step = ctl->record.step };

	memcpy(o.manifest_hash, ctl->record.manifest_hash, sizeof o.manifest_hash);
	memcpy(o.generation_hash, ctl->view.manifest.generation_hash, sizeof o.generation_hash);
	memcpy(o.state_hash, ctl->view.manifest.state_hash, sizeof o.state_hash);
	memcpy(o.layout_hash, g->layout_hash, sizeof o.layout_hash);
	for (size_t i = 0; i < g->nnodes; i++)
		if (ptc_manifest_placed(&ctl->view.manifest, g->nodes[i]) && ptc_older_node_add(&o, g->nodes[i]) != 0)
			o.snapshot = 0; /* too many */
	return o;
}

void ptc_older_keep(const struct ptc_documents *docs, const struct ptc_meta_doc *meta, size_t most,
		    struct ptc_older_doc *doc, struct ptc_job_copies *ret_copies)
{
	struct ptc_error err = PTC_ERROR_INIT;
	const struct ptc_job_desc *desc;
	void *ref;

	*ret_copies = (struct ptc_job_copies){ 0 };
	if (ptc_specs_get(docs->specs, meta->uuid, meta->spec_hash, &desc, &ref, &err) != 0) {
		ptc_warn("job", "job=%s all older snapshots stay, for its description cannot be read now: %s",
			 meta->name, err.text);
		return;
	}
	ptc_older_prune(doc, desc->keep.last, desc->keep.every, most);
	*ret_copies = desc->copies;
	ptc_specs_release(ref);
}

bool ptc_older_kept(const struct ptc_controller *ctl, uint64_t snapshot)
{
	const struct ptc_older_doc *d = &ctl->older.doc;
	const struct ptc_older *o = ptc_older_find(d, snapshot);

	return o && !(o == &d->bridge && ctl->older.dropping);
}

int ptc_older_aim(struct ptc_controller *ctl)
{
	ptc_generation_doc_done(&ctl->source.to);
	if (ptc_generation_doc_copy(&ctl->view.to, &ctl->source.to) != 0)
		return PTC_ENOMEM;
	return ptc_view_nodes(&ctl->source);
}

void ptc_older_tell_ranks(struct ptc_controller *ctl)
{
	struct ptc_older_kept *k = &ctl->older;

	for (uint32_t i = 0; i < ptc_cluster_nnodes(ctl->all->cluster); i++) {
		const char *name = ptc_cluster_node(ctl->all->cluster, i)->doc.name;

		if (ptc_controller_ranks_on(ctl, name) && !ptc_older_has(&k->tell, name) &&
		    ptc_older_node_add(&k->tell, name) != 0)
			k->tell_all = true;
	}
}

#define LONG_NAMES "the names of its nodes are longer together than the list of snapshots can have them"

/* Once for a generation. If the layout alone has each region often enough, nothing is lost by it. */
static void tell_unnamed(struct ptc_controller *ctl)
{
	struct ptc_older_kept *k = &ctl->older;

	if (k->asked < 2 || k->bare == ctl->record.generation || k->unnamed == ctl->record.generation)
		return;
	k->unnamed = ctl->record.generation;
	ptc_event(ctl->all->cluster, ctl->uuid, "bridge_dropped",
		  "snapshot %" PRIu64 " of step %" PRIu64 " goes as soon as there is a newer one, for " LONG_NAMES
		  "; until there are copies again, the loss "
		  "of a node may cost the job its state",
		  ctl->record.snapshot, ctl->record.step);
}

void ptc_older_no_bridge(struct ptc_controller *ctl)
{
	ctl->older.no_room = ctl->record.generation;
	tell_unnamed(ctl);
}

void ptc_older_check_names(struct ptc_controller *ctl)
{
	if (!ptc_older_of_record(ctl).snapshot)
		tell_unnamed(ctl);
}

const char *ptc_older_why_none(const struct ptc_controller *ctl)
{
	const struct ptc_older_kept *k = &ctl->older;

	if (k->unnamed && k->unnamed == ctl->record.generation)
		return LONG_NAMES;
	return k->no_room && k->no_room == ctl->record.generation && !k->doc.bridge.snapshot ? "a node had no room"
											     : "";
}

uint32_t *ptc_older_sources(struct ptc_controller *ctl, uint32_t *ret_n)
{
	const struct ptc_generation_doc *g = &ctl->source.from;
	uint32_t *v = ptc_calloc(g->nnodes, sizeof *v), n = 0;

	for (size_t i = 0; v && i < g->nnodes; i++)
		if (ptc_view_placed(&ctl->source, g->nodes[i]) &&
		    ptc_cluster_find_node(ctl->all->cluster, g->nodes[i], &v[n]))
			n++;
	*ret_n = n;
	return v;
}

/* Tables that a document does not name any more. by_commit: the record's nodes hear of it by the commit's Finish. */
static void want_told(struct ptc_controller *ctl, const struct ptc_older *gone, const struct ptc_copies_doc *copies,
		      bool by_commit)
{
	struct ptc_older_kept *k = &ctl->older;

	for (uint32_t i = 0; i < ptc_cluster_nnodes(ctl->all->cluster); i++) {
		const char *name = ptc_cluster_node(ctl->all->cluster, i)->doc.name;

		if ((ptc_older_has(gone, name) || (copies && ptc_copies_keeper(copies, name))) &&
		    !(by_commit && ptc_controller_ranks_on(ctl, name)) && !ptc_older_has(&k->tell, name) &&
		    ptc_older_node_add(&k->tell, name) != 0)
			k->tell_all = true;
	}
}

static bool same_bridge(const struct ptc_older *a, const struct ptc_older *b)
{
	return a->generation == b->generation && a->snapshot == b->snapshot;
}

static void tell_dropped(struct ptc_controller *ctl, const struct ptc_older *bridge, const char *node, bool gone)
{
	ptc_event(ctl->all->cluster, ctl->uuid, "bridge_dropped",
		  "snapshot %" PRIu64 " of step %" PRIu64 " is dropped, for node %s %s; until the copies of snapshot "
		  "%" PRIu64 " are complete, the loss of a node may cost the job its state",
		  bridge->snapshot, bridge->step, node, gone ? "does not have its part of it any more" : "has no room",
		  ctl->record.snapshot);
}

static void adopt(struct ptc_controller *ctl, const struct ptc_older_doc *doc, int64_t revision,
		  struct ptc_copies_doc *copies, bool by_commit)
{
	struct ptc_older_kept *k = &ctl->older;

	for (size_t i = 0; i < k->doc.n; i++)
		if (!ptc_older_table(doc, k->doc.v[i].generation, k->doc.v[i].snapshot))
			want_told(ctl, &k->doc.v[i], NULL, by_commit);
	if (!same_bridge(&k->doc.bridge, &doc->bridge)) {
		if (k->doc.bridge.snapshot)
			want_told(ctl, &k->doc.bridge, &k->copies, by_commit);
		if (k->yielded[0])
			tell_dropped(ctl, &k->doc.bridge, k->yielded, k->gone);
		k->yielded[0] = '\0';
		ptc_copies_doc_done(&k->copies);
		if (copies && doc->bridge.snapshot) {
			k->copies = *copies;
			*copies = (struct ptc_copies_doc){ 0 };
		}
	}
	k->doc = *doc;
	k->revision = revision;
}

void ptc_older_adopt(struct ptc_controller *ctl, const struct ptc_older_doc *doc, int64_t revision,
		     struct ptc_copies_doc *copies)
{
	adopt(ctl, doc, revision, copies, true);
}

size_t ptc_older_tables_max(const struct ptc_older_kept *k)
{
	return k->doc.n + 1 + k->copies.nkeepers + k->copies.nold;
}

void ptc_older_tables(const struct ptc_older_kept *k, const char *node, ptc_copies_table_fn fn, void *arg)
{
	for (size_t i = 0; i < k->doc.n; i++)
		if (ptc_older_has(&k->doc.v[i], node))
			fn(arg, k->doc.v[i].generation, k->doc.v[i].snapshot);
	ptc_older_bridge_tables(k, node, fn, arg);
}

void ptc_older_bridge_tables(const struct ptc_older_kept *k, const char *node, ptc_copies_table_fn fn, void *arg)
{
	const struct ptc_older *b = &k->doc.bridge;

	if (!b->snapshot)
		return;
	if (ptc_older_has(b, node) && ptc_older_table(&k->doc, b->generation, b->snapshot) == b)
		fn(arg, b->generation, b->snapshot);
	for (size_t i = 0; i < k->copies.nkeepers; i++)
		if (strcmp(k->copies.keepers[i].node, node) == 0)
			fn(arg, k->copies.keepers[i].generation, k->copies.keepers[i].table);
}

/* ---- room ---- */

struct yields {
	const struct ptc_copies_keeper *kept; /* the node's copies of the record's snapshot, which may be sources */
	ptc_copies_table_fn fn;
	void *arg;
};

static void yields_add(void *arg, uint64_t generation, uint64_t snapshot)
{
	const struct yields *y = arg;

	if (!y->kept || y->kept->generation != generation || y->kept->table != snapshot)
		y->fn(y->arg, generation, snapshot);
}

void ptc_older_yields(const struct ptc_controller *ctl, const char *node, ptc_copies_table_fn fn, void *arg)
{
	struct yields y = { ptc_copies_keeper(&ctl->view.copies, node), fn, arg };

	if (ctl->older.doc.bridge.snapshot != ctl->intent.source)
		ptc_older_bridge_tables(&ctl->older, node, yields_add, &y);
}

struct shed {
	struct ptc_controller *ctl;
	struct ptc_older_doc doc;
	struct ptc_older gone;
	bool bridge;                 /* that is what goes, and not an entry */
	bool yielded, lacks;         /* for a node has dropped its tables already; lacks: not for want of room */
	char node[PTC_NAME_MAX + 1]; /* which has no room; "": the bridge is not needed any more */
	int64_t fence, record_revision, older_revision, revision;
	bool ok;
	/* not ok: the document that etcd has, for the answer may have been lost only */
	bool seen;
	struct ptc_older_doc now;
	int64_t now_revision;
	struct ptc_error err;
};

static void see(struct shed *s, struct ptc_etcd *e, const char *key)
{
	struct ptc_etcd_kvs kvs = { 0 };

	if (ptc_etcd_get(e, key, false, 0, &kvs, NULL) != 0)
		return;
	s->seen = !kvs.n || ptc_older_doc_decode(kvs.kv[0].value, kvs.kv[0].len, &s->now, NULL) == 0;
	s->now_revision = kvs.n ? kvs.kv[0].mod_revision : 0;
	ptc_etcd_kvs_done(&kvs);
}

static void shed_work(void *arg, struct ptc_etcd *e)
{
	struct shed *s = arg;
	char lock[96], record[96], intent[96], older[96];
	const struct ptc_etcd_compare cmp[] = { { lock, PTC_ETCD_CREATE_REV, ptc_fence_revision(s->fence) },
						{ record, PTC_ETCD_MOD_REV, s->record_revision },
						{ intent, PTC_ETCD_MOD_REV, 0 },
						{ older, PTC_ETCD_MOD_REV, s->older_revision } };
	const bool empty = ptc_older_doc_empty(&s->doc);
	char *json = empty ? NULL : ptc_older_doc_encode(&s->doc);
	const struct ptc_etcd_op op = { .key = older, .value = json, .len = json ? strlen(json) : 0 };

	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", s->ctl->uuid);
	snprintf(record, sizeof record, "/ptc/jobs/%s/record", s->ctl->uuid);
	snprintf(intent, sizeof intent, "/ptc/jobs/%s/intent", s->ctl->uuid);
	snprintf(older, sizeof older, "/ptc/jobs/%s/older", s->ctl->uuid);
	if (!empty && !json)
		ptc_nomem(&s->err);
	else
		ptc_etcd_txn(e, cmp, PTC_ARRAY_LEN(cmp), &op, 1, "etcd.older", &s->ok, &s->revision, &s->err);
	if (!s->ok)
		see(s, e, older);
	if (!s->ok && s->node[0])
		ptc_warn("job", "job=%s snapshot %" PRIu64 " stays, although node %s %s: %s", s->ctl->uuid,
			 s->gone.snapshot, s->node, s->lacks ? "lacks its part" : "has no room",
			 s->err.code ? s->err.text : "the job's record has changed meanwhile");
	ptc_free(json);
}

static void tell_shed(struct ptc_controller *ctl, const struct shed *s)
{
	if (s->bridge && s->node[0])
		tell_dropped(ctl, &s->gone, s->node, s->lacks);
	else if (!s->bridge)
		ptc_event(ctl->all->cluster, ctl->uuid, "snapshot_dropped",
			  "snapshot %" PRIu64 " of step %" PRIu64 " is not kept any more: a switch found no room",
			  s->gone.snapshot, s->gone.step);
}

/* Whether the document has no longer what was to go. */
static bool lacks(const struct ptc_older_doc *d, const struct shed *s)
{
	return s->bridge ? !same_bridge(&d->bridge, &s->gone)
			 : !ptc_older_table(d, s->gone.generation, s->gone.snapshot);
}

static void note_yielded(struct ptc_controller *ctl, const char *node, bool gone)
{
	snprintf(ctl->older.yielded, sizeof ctl->older.yielded, "%s", node);
	ctl->older.gone = gone;
}

static void shed_done(void *arg)
{
	struct shed *s = arg;
	struct ptc_controller *ctl = s->ctl;

	ctl->older.dropping = ctl->older.dropping && !s->bridge;
	if (s->seen && lacks(&s->now, s)) { /* only the answer was lost */
		s->ok = true;
		s->doc = s->now;
		s->revision = s->now_revision;
	}
	if (!ctl->gone && s->ok) {
		if (!s->bridge)
			ctl->older.most = s->doc.n;
		else if (s->node[0] && !s->lacks)
			ctl->older.no_room = ctl->record.generation;
		adopt(ctl, &s->doc, ptc_older_doc_empty(&s->doc) ? 0 : s->revision, NULL, false);
		tell_shed(ctl, s);
		ctl->untidy = true; /* its documents */
	} else if (!ctl->gone && s->seen && s->now_revision != ctl->older.revision) {
		adopt(ctl, &s->now, s->now_revision, NULL, false);
		ctl->untidy = true;
	}
	if (!s->ok && s->bridge && s->yielded && same_bridge(&ctl->older.doc.bridge, &s->gone))
		note_yielded(ctl, s->node, s->lacks); /* again */
	if (s->ok && !ctl->gone) /* ranks may wait for it: snapshots that are due are not left out any more */
		ctl->soon(ctl, 0);
	ptc_controller_unref(ctl);
	ptc_free(s);
}

/* Takes the entry `at` from the document, or the bridge (at: doc.n). node: which has no room; "": none lacks it. */
static void shed(struct ptc_controller *ctl, size_t at, const char *node, bool yielded)
{
	const struct ptc_older_doc *d = &ctl->older.doc;
	struct shed *s = ptc_calloc(1, sizeof *s);
	const bool bridge = at == d->n;

	ptc_require(s);
	*s = (struct shed){ .ctl = ptc_controller_ref(ctl),
			    .doc = *d,
			    .gone = bridge ? d->bridge : d->v[at],
			    .bridge = bridge,
			    .yielded = yielded,
			    .lacks = yielded && ctl->older.gone,
			    .fence = ctl->fence,
			    .record_revision = ctl->record_revision,
			    .older_revision = ctl->older.revision };
	snprintf(s->node, sizeof s->node, "%s", node);
	if (bridge)
		s->doc.bridge = (struct ptc_older){ 0 };
	else
		ptc_older_drop_one(&s->doc, at);
	ctl->older.dropping |= bridge;
	/* the job's own lane: after what its switches have written */
	ptc_require(ptc_cluster_run(ctl->all->cluster, ctl->uuid, shed_work, shed_done, s) == 0);
}

/* To the core a node that is told anew is one that has a new process: it gets Finish, which names what stays. No call
 * beside the core's, for that would end what a node still does for the last Finish. */
void ptc_older_tick(struct ptc_controller *ctl)
{
	const struct ptc_older tell = ctl->older.tell;
	const bool all = ctl->older.tell_all;
	char node[PTC_NAME_MAX + 1];

	if (!ptc_controller_idle(ctl))
		return;
	if (ctl->older.yielded[0] && !ctl->older.dropping) {
		snprintf(node, sizeof node, "%s", ctl->older.yielded);
		ctl->older.yielded[0] = '\0';
		shed(ctl, ctl->older.doc.n, node, true);
	}
	if (!tell.nodes[0] && !all)
		return;
	ctl->older.tell = (struct ptc_older){ 0 };
	ctl->older.tell_all = false;
	ptc_controller_ref(ctl);
	for (uint32_t i = 0; i < ctl->nknown && !ctl->gone; i++)
		if (ctl->known[i].up && (all || ptc_older_has(&tell, ptc_cluster_node(ctl->all->cluster, i)->doc.name)))
			ptc_controller_step(ctl, &(struct ptc_job_event){ .kind = PTC_EV_NODE_UP, .node = i });
	ptc_controller_unref(ctl);
}

void ptc_older_bridged(struct ptc_controller *ctl)
{
	if (ctl->older.doc.bridge.snapshot && !ctl->older.dropping)
		shed(ctl, ctl->older.doc.n, "", false);
}

struct tables {
	uint64_t generation, snapshot; /* looked for; snapshot 0: any */
	bool found;
};

static void find_table(void *arg, uint64_t generation, uint64_t snapshot)
{
	struct tables *t = arg;

	t->found |= !t->snapshot || (t->generation == generation && t->snapshot == snapshot);
}

void ptc_older_yielded(struct ptc_controller *ctl, const char *node, uint64_t generation, uint64_t snapshot)
{
	struct tables t = { generation, snapshot, false };

	if (snapshot)
		ptc_older_bridge_tables(&ctl->older, node, find_table, &t);
	if (!t.found)
		return;
	ctl->older.no_room = ctl->record.generation;
	note_yielded(ctl, node, false);
}

void ptc_older_bridge_gone(struct ptc_controller *ctl, const struct ptc_older *bridge, const char *node)
{
	if (same_bridge(&ctl->older.doc.bridge, bridge) && !ctl->older.yielded[0] && !ctl->older.dropping)
		note_yielded(ctl, node, true);
}

/* Whether it has a table there that goes with it, and is not the `source` of a switch. */
static bool bridge_on(const struct ptc_controller *ctl, const char *node, uint64_t source)
{
	const struct ptc_older *b = &ctl->older.doc.bridge;
	struct tables any = { 0 };

	if (b->snapshot && !ctl->older.dropping && b->snapshot != source)
		ptc_older_bridge_tables(&ctl->older, node, find_table, &any);
	return any.found;
}

bool ptc_older_bridge_yields(struct ptc_controller *ctl, const char *node)
{
	if (!bridge_on(ctl, node, 0))
		return false;
	shed(ctl, ctl->older.doc.n, node, false);
	return true;
}

void ptc_older_make_room(struct ptc_controller *ctl, uint32_t node, char *text, size_t size)
{
	const struct ptc_older_doc *d = &ctl->older.doc;
	const size_t len = strlen(text);
	const char *name;
	struct ptc_older gone;
	bool bridge;
	size_t at;

	if (node == PTC_JOB_NO_NODE) /* it was not a node's store that had no room */
		return;
	name = ptc_cluster_node(ctl->all->cluster, node)->doc.name;
	bridge = bridge_on(ctl, name, ctl->intent.source);
	at = bridge ? d->n : ptc_older_oldest_on(d, name, ctl->intent.source);
	if (at == d->n && !bridge)
		return;
	gone = bridge ? d->bridge : d->v[at];
	if (bridge)
		snprintf(text + len, size - len,
			 "; the snapshot that bridges the time until there are copies (%" PRIu64 ", step %" PRIu64
			 ") goes now: ask again",
			 gone.snapshot, gone.step);
	else
		snprintf(text + len, size - len,
			 "; the oldest snapshot that is kept there (%" PRIu64 ", step %" PRIu64 ") goes now: ask again",
			 gone.snapshot, gone.step);
	shed(ctl, at, name, false);
}
