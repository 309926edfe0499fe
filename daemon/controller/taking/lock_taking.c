/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which daemon controls a job: takes the locks of jobs that nobody controls, and gives them back. A node of an
 * older version may not be able to read a job that a newer one has written. Such a node must not control the job,
 * because no switch of the job could go on. [loop], but for the steps that wait for etcd.
 *
 * Happy path: a lock is free; this node waits for its turn, reads the job's keys and description, and takes the lock.
 *
 * Failure modes:
 * - The keys, or what they name, cannot be read: this node leaves the lock to others, and tries again after a wait
 *   that grows, or once the job's keys have changed.
 * - Only the description cannot be read: this node waits as above. If no other node takes the lock meanwhile, this
 *   node takes it, so that the job can be stopped and deleted. It gives the lock back when another node comes up, and
 *   from time to time.
 * - No other node answers this one (suspicion.c): it takes no locks.
 * - etcd or memory fails: tried again in the next round. */
#include "daemon/controller/taking/lock_taking.h"

#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/number/fence.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

#define PER_PLACE    2  /* ticks of 200 ms: how much later the next node tries */
#define AGAIN        10 /* ticks: then it tries once more */
#define BEHIND       25 /* ticks: how much later a node tries that could not read the job; twice that after each try */
#define TRIES_MAX    6
#define HELD_NS      INT64_C(10000000000) /* how long it keeps a lock that others may be able to use; grows likewise */
#define TAKING_LANES 2 /* descriptions are long: of the threads that wait for etcd, others stay free */

/* What this node knows of its tries for the lock of one job. */
struct ptc_lock_wait {
	unsigned ticks, tries;     /* since the lock is free, or since the last try; of a job that cannot be read */
	bool reading, description; /* a try is under way; `why` is of the job's description alone */
	uint64_t documents;        /* of the view, when `why` was found */
	char known[PTC_HASH_HEX];  /* description that this node could read; "": it has not looked */
	char why[512];             /* "": it can read the job, or has not looked */
};

struct lock_try {
	struct ptc_controllers *all;
	struct ptc_meta_doc meta;
	int64_t lease;
	bool known, anyway; /* the description has been read before; the lock is taken though it cannot be read */
	uint64_t documents; /* as in the job's view, when this began */
	int status;
	bool description; /* only that could not be read */
	struct ptc_error err;
};

/* Of a document: what it says is not for this version, or for nobody. Other failures may be over the next time. */
static bool cannot_read(int status)
{
	return status == PTC_EVERSION || status == PTC_EINVAL || status == PTC_ECORRUPT || status == PTC_ELIMIT;
}

/* As far as this node knows, it cannot read the job as it is now. */
static bool waits(const struct ptc_job_view *j)
{
	const struct ptc_lock_wait *w = j->lock_wait;

	return w && w->why[0] && (w->description || w->documents == j->documents);
}

const char *ptc_lock_unreadable_why(const struct ptc_job_view *j)
{
	return waits(j) ? j->lock_wait->why : "";
}

static int read_keys(const struct ptc_etcd_kvs *kvs, size_t prefix, int64_t *ret_created, struct ptc_error *err)
{
	struct ptc_copies_doc copies = { 0 };
	union {
		struct ptc_record_doc record;
		struct ptc_intent_doc intent;
		struct ptc_older_doc older;
	} doc = { 0 };
	int rc = 0;

	*ret_created = 0;
	for (size_t i = 0; rc == 0 && i < kvs->n; i++) {
		const struct ptc_etcd_kv *kv = &kvs->kv[i];
		const char *leaf = kv->key + prefix;

		if (strcmp(leaf, "meta") == 0)
			*ret_created = kv->create_revision;
		else if (strcmp(leaf, "record") == 0)
			rc = ptc_record_doc_decode(kv->value, kv->len, &doc.record, err);
		else if (strcmp(leaf, "intent") == 0)
			rc = ptc_intent_doc_decode(kv->value, kv->len, &doc.intent, err);
		else if (strcmp(leaf, "older") == 0)
			rc = ptc_older_doc_decode(kv->value, kv->len, &doc.older, err);
		else if (strcmp(leaf, "copies") == 0)
			rc = ptc_copies_doc_decode(kv->value, kv->len, &copies, err);
	}
	ptc_copies_doc_done(&copies);
	return rc;
}

static int read_description(struct lock_try *t)
{
	const struct ptc_job_desc *desc;
	void *ref;
	int rc =
		t->known ? 0 : ptc_specs_get(t->all->docs.specs, t->meta.uuid, t->meta.spec_hash, &desc, &ref, &t->err);

	if (rc == 0 && !t->known)
		ptc_specs_release(ref);
	t->known = rc == 0;
	t->description = rc != 0;
	return rc;
}

/* Nobody writes these keys while the lock is free, so what has been read holds when the lock is taken. */
static void lock_work(void *arg, struct ptc_etcd *e)
{
	struct lock_try *t = arg;
	ptc_auto_free char *value = NULL;
	char prefix[96], key[112], meta[112];
	struct ptc_lock_doc doc;
	struct ptc_etcd_kvs kvs = { 0 };
	int64_t created = 0;
	bool ok;

	snprintf(prefix, sizeof prefix, "/ptc/jobs/%s/", t->meta.uuid);
	snprintf(key, sizeof key, "%slock", prefix);
	snprintf(meta, sizeof meta, "%smeta", prefix);
	t->status = ptc_etcd_get(e, prefix, true, 0, &kvs, &t->err);
	if (t->status == 0)
		t->status = read_keys(&kvs, strlen(prefix), &created, &t->err);
	ptc_etcd_kvs_done(&kvs);
	if (t->status == 0 && created)
		t->status = read_description(t);
	if (!created || (cannot_read(t->status) && !(t->description && t->anyway)))
		return;
	/* the job must still exist, or a lock would outlive it */
	snprintf(doc.node, sizeof doc.node, "%s", t->all->node);
	value = ptc_lock_doc_encode(&doc);
	if (!value)
		return; /* at the next look */
	ptc_etcd_txn(e,
		     (struct ptc_etcd_compare[]){ { key, PTC_ETCD_CREATE_REV, 0 },
						  { meta, PTC_ETCD_CREATE_REV, created } },
		     2, &(struct ptc_etcd_op){ .key = key, .value = value, .len = strlen(value), .lease = t->lease }, 1,
		     "etcd.lock", &ok, NULL, NULL); /* the watch tells who got it */
}

static bool has_wait(struct ptc_job_view *j)
{
	if (!j->lock_wait)
		j->lock_wait = ptc_calloc(1, sizeof *j->lock_wait);
	return j->lock_wait;
}

static void cannot(struct ptc_job_view *j, uint64_t documents, const char *node, const char *why, bool description)
{
	struct ptc_lock_wait *w = j->lock_wait;
	char text[sizeof w->why];

	snprintf(text, sizeof text, "node %s cannot read job %s, and leaves its control to other nodes: %s", node,
		 j->meta.name, why);
	if (strcmp(w->why, text) != 0) { /* once, not at each try */
		ptc_warn("job", "job=%s %s", j->uuid, text);
		memcpy(w->why, text, sizeof w->why);
		w->tries = 0;
	}
	w->description = description;
	w->tries += w->tries < TRIES_MAX;
	w->documents = documents;
	w->ticks = 0;
}

static void lock_done(void *arg)
{
	struct lock_try *t = arg;
	struct ptc_job_view *j = ptc_cluster_find_uuid(t->all->cluster, t->meta.uuid);

	if (j) {
		j->lock_wait->reading = false;
		if (t->known)
			memcpy(j->lock_wait->known, t->meta.spec_hash, sizeof j->lock_wait->known);
		if (cannot_read(t->status))
			cannot(j, t->documents, t->all->node, t->err.text, t->description);
		else if (t->known && j->lock_wait->description)
			j->lock_wait->why[0] = '\0';
	}
	ptc_free(t);
}

/* Daemons try for a free lock one after the other, in an order that differs by job. */
static unsigned place(struct ptc_controllers *all, const char *uuid)
{
	unsigned before = 0, mine = 0;

	for (const char *p = all->node; *p; p++)
		mine = mine * 31 + (unsigned char)*p + (unsigned char)uuid[0];
	for (uint32_t i = 0; i < ptc_cluster_nnodes(all->cluster); i++) {
		const struct ptc_node *n = ptc_cluster_node(all->cluster, i);
		unsigned other = 0;

		for (const char *p = n->doc.name; *p; p++)
			other = other * 31 + (unsigned char)*p + (unsigned char)uuid[0];
		before += n->up && other < mine;
	}
	return before;
}

/* Whether it is this node's turn to try for the job's lock, which has been free for some ticks. */
static bool is_due(struct ptc_controllers *all, struct ptc_job_view *j)
{
	struct ptc_lock_wait *w = j->lock_wait;
	unsigned due = 1 + PER_PLACE * place(all, j->uuid);

	if (waits(j))
		due += BEHIND << (w->tries - 1);
	return ++w->ticks % (due + AGAIN) == due;
}

static void try_for(struct ptc_controllers *all, struct ptc_job_view *j, int64_t lease)
{
	struct lock_try *t = ptc_calloc(1, sizeof *t);
	char lane[PTC_LANE_MAX];

	if (!t)
		return;
	t->all = all;
	t->meta = j->meta;
	t->lease = lease;
	t->known = strcmp(j->lock_wait->known, j->meta.spec_hash) == 0;
	t->anyway = waits(j);
	t->documents = j->documents;
	snprintf(lane, sizeof lane, "locks-%d", j->uuid[0] % TAKING_LANES);
	j->lock_wait->reading = true;
	if (ptc_cluster_run(all->cluster, lane, lock_work, lock_done, t) != 0) {
		j->lock_wait->reading = false;
		ptc_free(t);
	}
}

/* ---- giving back ------------------------------------------------------------------- */

struct giving {
	struct ptc_controller *ctl;
	bool ok;
};

static void give_work(void *arg, struct ptc_etcd *e)
{
	struct giving *g = arg;
	char lock[96];
	bool ok;

	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", g->ctl->uuid);
	g->ok = ptc_etcd_txn(e,
			     &(struct ptc_etcd_compare){ lock, PTC_ETCD_CREATE_REV, ptc_fence_revision(g->ctl->fence) },
			     1, &(struct ptc_etcd_op){ .key = lock }, 1, "etcd.lock", &ok, NULL, NULL) == 0;
}

/* The mirror tells that the lock is gone, which ends the controller. */
static void give_done(void *arg)
{
	struct giving *g = arg;
	struct ptc_controller *ctl = g->ctl;

	ctl->tenure.gives_back = g->ok;
	ptc_controller_unref(ctl);
	ptc_free(g);
}

static bool give_back(struct ptc_controller *ctl)
{
	struct giving *g = ctl->tenure.gives_back ? NULL : ptc_calloc(1, sizeof *g);

	if (!g)
		return ctl->tenure.gives_back;
	g->ctl = ptc_controller_ref(ctl);
	ctl->tenure.gives_back = ptc_cluster_run(ctl->all->cluster, ctl->uuid, give_work, give_done, g) == 0;
	if (!ctl->tenure.gives_back) {
		ptc_controller_unref(ctl);
		ptc_free(g);
	}
	return ctl->tenure.gives_back;
}

bool ptc_lock_unreadable(struct ptc_controller *ctl, int status, const char *why)
{
	struct ptc_job_view *j = ptc_cluster_find_uuid(ctl->all->cluster, ctl->uuid);

	if (!j || !cannot_read(status) || !has_wait(j))
		return false;
	if (!ctl->tenure.gives_back) /* else this is another look, before the mirror tells that the lock is gone */
		cannot(j, j->documents, ctl->all->node, why, false);
	return give_back(ctl);
}

void ptc_lock_readable(struct ptc_controller *ctl)
{
	struct ptc_job_view *j = ptc_cluster_find_uuid(ctl->all->cluster, ctl->uuid);

	if (j && j->lock_wait && !j->lock_wait->description)
		j->lock_wait->why[0] = '\0';
}

/* This node controls a job whose description it cannot read, because no other did. */
static void offer(struct ptc_controller *ctl)
{
	struct ptc_job_view *j = ptc_cluster_find_uuid(ctl->all->cluster, ctl->uuid);
	struct ptc_cluster *c = ctl->all->cluster;
	int64_t now = ptc_sys_now_ns();
	unsigned up = 0;
	bool due;

	if (!j || !waits(j) || !j->lock_wait->description || ctl->gone || ctl->tenure.gives_back)
		return;
	for (uint32_t i = 0; i < ptc_cluster_nnodes(c); i++)
		up += ptc_cluster_node(c, i)->up;
	due = ctl->tenure.since_ns &&
	      (up > ctl->tenure.up || (up > 1 && now - ctl->tenure.since_ns >= HELD_NS << (j->lock_wait->tries - 1)));
	if (!ctl->tenure.since_ns)
		ctl->tenure.since_ns = now;
	if (!due)
		ctl->tenure.up = up;
	if (!due || !ptc_controller_idle(ctl))
		return;
	j->lock_wait->tries += j->lock_wait->tries < TRIES_MAX;
	j->lock_wait->ticks = 0;
	ptc_info("job", "job=%s gives its lock back: another node may be able to read the job", j->meta.name);
	give_back(ctl);
}

void ptc_locks_tick(struct ptc_controllers *all)
{
	int64_t lease = ptc_cluster_lease(all->cluster);
	bool yields = ptc_suspicion_yields(all);

	for (size_t i = 0; i < all->n; i++)
		if (yields)
			give_back(all->list[i]);
		else
			offer(all->list[i]);
	if (yields)
		return;
	for (size_t i = 0; lease && ptc_cluster_synced(all->cluster) && i < ptc_cluster_njobs(all->cluster); i++) {
		struct ptc_job_view *j = ptc_cluster_job(all->cluster, i);

		if (!has_wait(j))
			return;
		if (!j->has_meta || j->has_lock)
			j->lock_wait->ticks = 0;
		else if (!j->lock_wait->reading && is_due(all, j))
			try_for(all, j, lease);
	}
}
