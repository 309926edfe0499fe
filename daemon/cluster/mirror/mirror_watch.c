/* SPDX-License-Identifier: Apache-2.0 */
/* The watches of /ptc/nodes and /ptc/jobs: they hand each change to the loop, which puts it into the mirror.
 *
 * Happy path: a listing begins (reset), its keys arrive, and it ends (synced). Once both listings have ended, the owner
 * hears on_synced, and after that on_change of each change.
 *
 * Failure modes: etcd is unreachable (the mirror keeps what it knew until the next listing has ended); a key that the
 * listing lacks was deleted meanwhile (synced removes it); no memory (the daemon ends, for a mirror with a hole would
 * be silently wrong). */
#include "daemon/cluster/mirror/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/number/versions.h"
#include "base/sys/sys.h"

#include <string.h>

/* Every member that is up reads documents written from now on without skipping a part. A member that is down, and comes
 * back, reads them as documents of the next version. */
static void learn_versions(struct ptc_cluster *c)
{
	uint32_t lowest = c->opts.node.documents;

	for (size_t i = 0; i < c->nnodes; i++)
		if (c->nodes[i]->up)
			lowest = PTC_MIN(lowest, c->nodes[i]->doc.documents);
	if (lowest != ptc_version_members())
		ptc_info("cluster", "documents are written in version %u from now on", lowest);
	ptc_version_members_set(lowest);
}

static void node_put(struct ptc_cluster *c, const struct ptc_etcd_kv *kv)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_node_doc doc;
	uint32_t i;

	if (ptc_node_doc_decode(kv->value, kv->len, &doc, &err) != 0 || ptc_cluster_intern_node(c, doc.name, &i) != 0) {
		ptc_warn("etcd", "%s ignored: %s", kv->key, err.text);
		ptc_cluster_own_key_changed(c, kv->key + strlen(NODES_PREFIX "/"));
		return;
	}
	if (ptc_node_doc_near(&doc, &err) != 0)
		ptc_warn("etcd", "%s", err.text);
	if (c->nodes[i]->create_revision != kv->create_revision)
		c->opts.on_node_up(c->opts.arg, doc.name);
	if (!c->nodes[i]->up)
		ptc_quarantine_back(&c->nodes[i]->quarantine, c->nodes[i]->create_revision, c->opts.node_quarantine_ns,
				    ptc_sys_now_ns());
	if (!c->nodes[i]->up || c->nodes[i]->lease != kv->lease)
		ptc_lease_end_reset(c->nodes[i]->end);
	c->nodes[i]->doc = doc;
	c->nodes[i]->up = c->nodes[i]->seen = true;
	c->nodes[i]->lost = c->nodes[i]->unreachable = c->nodes[i]->closed = c->nodes[i]->forgotten = false;
	c->nodes[i]->refusals = (struct ptc_refusals){ 0 };
	c->nodes[i]->down_ns = 0;
	c->nodes[i]->create_revision = kv->create_revision;
	c->nodes[i]->lease = kv->lease;
}

static void set_known(struct ptc_node *n, bool known)
{
	n->known = n->seen_known = known;
	n->naming = false;
	n->forgotten = !known && !n->up;
	if (n->forgotten)
		n->quarantine = (struct ptc_quarantine){ 0 };
}

/* Nodes that nobody had forgotten must not take the room of those that are up, which are listed after them. */
#define REGISTERED_MAX (PTC_MAX_NODES / 2)

static void known_event(struct ptc_cluster *c, enum ptc_watch_kind kind, const char *name)
{
	bool put = kind == PTC_WATCH_PUT;
	uint32_t i;

	if (ptc_cluster_find_node(c, name, &i) ||
	    (put && c->nnodes < REGISTERED_MAX && ptc_cluster_intern_node(c, name, &i) == 0))
		set_known(c->nodes[i], put);
}

static void node_event(struct ptc_cluster *c, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	const char *drained = NODES_PREFIX "-drained/", *plain = NODES_PREFIX "/", *lost = LOST_PREFIX,
		   *bad = BAD_PREFIX;
	uint32_t i;

	if (strcmp(kv->key, PTC_DEVICES_KEY) == 0) {
		ptc_cluster_devices_event(c, kind, kv);
	} else if (strncmp(kv->key, drained, strlen(drained)) == 0) {
		if (ptc_cluster_intern_node(c, kv->key + strlen(drained), &i) == 0)
			c->nodes[i]->drained = c->nodes[i]->seen_drained = kind == PTC_WATCH_PUT;
	} else if (strncmp(kv->key, lost, strlen(lost)) == 0) {
		if (ptc_cluster_intern_node(c, kv->key + strlen(lost), &i) == 0)
			c->nodes[i]->declared = c->nodes[i]->seen_declared = kind == PTC_WATCH_PUT;
	} else if (strncmp(kv->key, LOSSES_PREFIX, strlen(LOSSES_PREFIX)) == 0) {
		if (c->opts.node_quarantine_ns && ptc_cluster_intern_node(c, kv->key + strlen(LOSSES_PREFIX), &i) == 0)
			ptc_cluster_losses_event(c->nodes[i], kind, kv);
	} else if (strncmp(kv->key, bad, strlen(bad)) == 0) {
		ptc_cluster_mark_event(c, kind, kv->key + strlen(bad));
	} else if (strncmp(kv->key, KNOWN_PREFIX, strlen(KNOWN_PREFIX)) == 0) {
		known_event(c, kind, kv->key + strlen(KNOWN_PREFIX));
	} else if (strncmp(kv->key, plain, strlen(plain)) == 0) {
		if (kind == PTC_WATCH_PUT)
			node_put(c, kv);
		else if (ptc_cluster_find_node(c, kv->key + strlen(plain), &i))
			ptc_cluster_node_ended(c, c->nodes[i]);
		if (kind == PTC_WATCH_DELETE)
			ptc_cluster_own_key_changed(c, kv->key + strlen(plain));
	}
}

struct change {
	struct ptc_cluster *c;
	enum ptc_watch_kind kind;
	bool jobs;
	struct ptc_etcd_kv kv;
};

/* A listing begins, and may take as long as etcd is unreachable: what we knew stays until it is complete. */
static void reset(struct ptc_cluster *c, bool jobs)
{
	for (size_t i = 0; jobs && i < c->njobs; i++) {
		memset(&c->jobs[i]->seen, 0, sizeof c->jobs[i]->seen);
		for (size_t k = 0; k < c->jobs[i]->nworkers; k++)
			c->jobs[i]->workers[k].seen = false;
		ptc_slow_devices_unseen(&c->jobs[i]->slow);
	}
	for (size_t i = 0; !jobs && i < c->nnodes; i++) {
		c->nodes[i]->seen = c->nodes[i]->seen_drained = c->nodes[i]->seen_declared = c->nodes[i]->seen_known =
			false;
		c->nodes[i]->seen_marked = 0;
		c->nodes[i]->quarantine.kept.seen = false;
	}
	c->seen_devices = c->seen_devices && jobs;
	if (jobs)
		c->jobs_synced = false;
	else
		c->nodes_synced = false;
}

/* Whatever was not in the listing was deleted while we did not look. */
static void synced(struct ptc_cluster *c, bool jobs)
{
	for (size_t i = 0; !jobs && i < c->nnodes; i++) {
		struct ptc_node *n = c->nodes[i];

		if (!n->seen)
			ptc_cluster_node_ended(c, n);
		n->drained = n->drained && n->seen_drained;
		n->declared = n->declared && n->seen_declared;
		n->marked &= n->seen_marked;
		ptc_cluster_losses_synced(n);
		if (n->known && !n->seen_known)
			set_known(n, false);
		if (!n->up)
			ptc_cluster_own_key_changed(c, n->doc.name);
	}
	for (size_t i = 0; jobs && i < c->njobs; i++) {
		struct ptc_job_view *j = c->jobs[i];

		j->changes++;
		j->has_meta = j->has_meta && j->seen.meta;
		j->has_record = j->has_record && j->seen.record;
		j->bad_record = j->bad_record && j->seen.record;
		j->has_intent = j->has_intent && j->seen.intent;
		j->has_lock = j->has_lock && j->seen.lock;
		if (!j->seen.copies)
			ptc_job_view_copies_delete(j);
		if (!j->seen.older)
			ptc_job_view_older_delete(j);
		ptc_slow_devices_listed(&j->slow);
		for (size_t k = j->nworkers; k-- > 0;)
			if (!j->workers[k].seen)
				ptc_job_view_worker_delete(j, &j->workers[k]);
	}
	if (jobs)
		c->jobs_synced = true;
	else
		c->nodes_synced = true;
	if (!jobs)
		learn_versions(c);
	if (!jobs && !c->seen_devices) {
		ptc_devices_doc_done(&c->devices);
		c->device_writes++;
	}
	if (!c->jobs_synced || !c->nodes_synced)
		return;
	c->listed = true;
	c->opts.on_synced(c->opts.arg);
}

static void apply(void *arg)
{
	struct change *ch = arg;
	struct ptc_cluster *c = ch->c;

	c->epoch += !ch->jobs;
	if (ch->kind == PTC_WATCH_RESET) {
		reset(c, ch->jobs);
	} else if (ch->kind == PTC_WATCH_SYNCED) {
		synced(c, ch->jobs);
	} else if (ch->jobs) {
		struct ptc_job_view *j = ptc_cluster_job_event(c, ch->kind, &ch->kv);

		if (j && c->jobs_synced && c->nodes_synced)
			c->opts.on_change(c->opts.arg, j);
	} else {
		node_event(c, ch->kind, &ch->kv);
		if (c->nodes_synced)
			learn_versions(c);
		if (c->jobs_synced && c->nodes_synced)
			c->opts.on_change(c->opts.arg, NULL);
	}
	ptc_cluster_changed(c);
	ptc_free(ch->kv.key);
	ptc_free(ch->kv.value);
	ptc_free(ch);
}

static void watched(struct ptc_cluster *c, bool jobs, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	struct change *ch = ptc_calloc(1, sizeof *ch);

	ptc_require(ch); /* a mirror with a hole would be silently wrong */
	ch->c = c;
	ch->kind = kind;
	ch->jobs = jobs;
	if (kv && (kind == PTC_WATCH_PUT || kind == PTC_WATCH_DELETE)) {
		ch->kv = *kv;
		ch->kv.key = ptc_strdup(kv->key);
		ch->kv.value = ptc_strndup(kv->value ? kv->value : "", kv->len);
		ptc_require(ch->kv.key && ch->kv.value);
	}
	if (ptc_loop_post(c->opts.loop, apply, ch) != 0) {
		ptc_free(ch->kv.key);
		ptc_free(ch->kv.value);
		ptc_free(ch);
	}
}

void ptc_cluster_watched_nodes(void *arg, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	watched(arg, false, kind, kv);
}

void ptc_cluster_watched_jobs(void *arg, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	watched(arg, true, kind, kv);
}
