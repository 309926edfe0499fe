/* SPDX-License-Identifier: Apache-2.0 */
/* Removes remains of daemons that died between two steps. Three things can be left:
 * - Chunks and ranks' folders of a job that was deleted while we did not look. ptc_tidy_store asks etcd about every job
 *   in our store and every folder, at start and after each re-listing, until each got an answer.
 * - Blobs of a job whose creation never came to its transaction. A key under /ptc/creating/ announces them; whoever
 *   sees the creator's life end removes both.
 * - Blobs of switches that were aborted or superseded. tidy_blobs removes them whenever a controller comes to rest.
 *
 * Failure modes: etcd is unreachable, or without its data (asked again; all->reconciled and ctl->untidy remember it);
 * this daemon does not control the job any more (every removal is a transaction that compares the lock). */
#include "base/alloc.h"
#include "daemon/store/store.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/fence.h"
#include "base/log.h"
#include "daemon/agent/switch/switch.h"
#include "daemon/controller/internal.h"
#include "daemon/documents/probed/probed.h"
#include "daemon/workers/group/rank_groups.h"

#include <stdio.h>
#include <string.h>

#define CREATING_PREFIX "/ptc/creating/"

/* ---- chunks -------------------------------------------------------------------- */

struct orphan {
	struct ptc_controllers *all;
	char uuid[PTC_UUID_TEXT];
	bool unknown; /* no answer, or no success: ask again */
};

/* A task of the job's lane: a job that etcd does not know (asked again, now) has been deleted; so are its bytes here.
 */
static void drop_orphan(void *arg, struct ptc_etcd *e)
{
	struct orphan *o = arg;
	struct ptc_etcd_kvs kvs = { 0 };
	struct ptc_error err = PTC_ERROR_INIT;
	char key[96];
	int rc;

	snprintf(key, sizeof key, "/ptc/jobs/%s/meta", o->uuid);
	rc = ptc_etcd_get(e, key, false, 1, &kvs, &err);
	if (rc == 0 && kvs.n == 0)
		rc = ptc_cluster_check(o->all->cluster, &err); /* one that lost its data knows no job */
	if (rc == 0 && kvs.n == 0) {
		ptc_workers_forget(o->all->workers, o->uuid);
		rc = ptc_agent_job_delete(o->all->agent, o->uuid, &err);
		if (rc == 0)
			ptc_info("store", "job=%s was deleted; its bytes are gone from this node", o->uuid);
	}
	if (rc)
		ptc_warn("store", "job=%s cannot be looked for or removed, trying again: %s", o->uuid, err.text);
	o->unknown = rc != 0;
	ptc_etcd_kvs_done(&kvs);
}

static void orphan_dropped(void *arg)
{
	struct orphan *o = arg;

	if (o->unknown)
		o->all->reconciled = false;
	ptc_free(o);
}

void ptc_tidy_job(struct ptc_controllers *all, const char *uuid)
{
	struct orphan *o = ptc_calloc(1, sizeof *o);

	if (!o) {
		all->reconciled = false;
		return;
	}
	o->all = all;
	snprintf(o->uuid, sizeof o->uuid, "%s", uuid);
	if (ptc_cluster_run(all->cluster, uuid, drop_orphan, orphan_dropped, o) != 0) {
		ptc_free(o);
		all->reconciled = false;
	}
}

static void found_job(void *arg, const char *uuid, uid_t uid, bool lost)
{
	struct ptc_controllers *all = arg;
	struct ptc_job_view *j = ptc_cluster_find_uuid(all->cluster, uuid);

	(void)uid;
	if (lost)
		ptc_error_log("store",
			      "job=%s: its chunks are gone from this node; what it held is lost unless replicated",
			      uuid);
	if (!j || !j->has_meta)
		ptc_tidy_job(all, uuid);
}

static void found_folder(void *arg, const char *uuid)
{
	found_job(arg, uuid, 0, false);
}

void ptc_tidy_store(struct ptc_controllers *all)
{
	struct ptc_error err = PTC_ERROR_INIT;

	all->reconciled = true;
	ptc_workers_jobs(all->workers, found_folder, all);
	if (ptc_store_jobs(all->store, found_job, all, &err) == 0)
		return;
	ptc_warn("store", "cannot list jobs: %s", err.text);
	all->reconciled = false;
}

/* ---- jobs that were being created ------------------------------------------------ */

void ptc_creation_key(const char *uuid, char ret_key[PTC_CREATION_KEY])
{
	snprintf(ret_key, PTC_CREATION_KEY, CREATING_PREFIX "%s", uuid);
}

int ptc_creation_begin(struct ptc_controllers *all, const char *uuid, uid_t uid, size_t bytes, struct ptc_error *err)
{
	char key[PTC_CREATION_KEY], user[PTC_USER_KEY];
	struct ptc_creation_doc doc = { .uid = uid };
	ptc_auto_free char *value = NULL, *size = ptc_announced_doc_encode(&(struct ptc_announced_doc){ bytes });
	bool ok;

	ptc_creation_key(uuid, key);
	ptc_quota_key(uid, uuid, user);
	snprintf(doc.node, sizeof doc.node, "%s", all->node);
	snprintf(doc.boot_id, sizeof doc.boot_id, "%s", ptc_cluster_boot_id(all->cluster));
	value = ptc_creation_doc_encode(&doc);
	if (!value || !size)
		return ptc_nomem(err);
	return ptc_etcd_txn(ptc_cluster_etcd(all->cluster), NULL, 0,
			    (struct ptc_etcd_op[]){ { .key = key, .value = value, .len = strlen(value) },
						    { .key = user, .value = size, .len = strlen(size) } },
			    2, "etcd.creating", &ok, NULL, err);
}

int ptc_creation_undo(struct ptc_etcd *e, const char *uuid, uid_t uid, struct ptc_error *err)
{
	char key[PTC_CREATION_KEY], blobs[96], user[PTC_USER_KEY];
	struct ptc_etcd_op ops[3] = { { .key = key }, { .key = blobs, .prefix = true }, { .key = user } };
	bool ok;

	ptc_quota_key(uid, uuid, user);
	ptc_creation_key(uuid, key);
	snprintf(blobs, sizeof blobs, "/ptc/blobs/%s/", uuid);
	/* the job's own transaction removes the key: then these blobs are in use */
	return ptc_etcd_txn(e, &(struct ptc_etcd_compare){ key, PTC_ETCD_VERSION, 1 }, 1, ops, 3, "etcd.uncreate", &ok,
			    NULL, err);
}

/* Whether the daemon that announced it still lives the same life. *ret_uid: for whom it was made. */
static bool creator_alive(struct ptc_etcd *e, const struct ptc_etcd_kv *kv, uid_t *ret_uid)
{
	struct ptc_etcd_kvs kvs = { 0 };
	struct ptc_creation_doc made;
	struct ptc_node_doc doc;
	char key[PTC_NAME_MAX + 32];
	bool alive = true;

	if (ptc_creation_doc_decode(kv->value, kv->len, &made, NULL) != 0)
		return true; /* of a version we do not speak: not ours to judge */
	*ret_uid = made.uid;
	snprintf(key, sizeof key, "/ptc/nodes/%s", made.node);
	if (ptc_etcd_get(e, key, false, 1, &kvs, NULL) == 0)
		alive = kvs.n == 1 && ptc_node_doc_decode(kvs.kv[0].value, kvs.kv[0].len, &doc, NULL) == 0 &&
			strcmp(doc.boot_id, made.boot_id) == 0;
	ptc_etcd_kvs_done(&kvs);
	return alive;
}

static void creations_work(void *arg, struct ptc_etcd *e)
{
	struct ptc_etcd_kvs kvs = { 0 };

	(void)arg;
	if (ptc_etcd_get(e, CREATING_PREFIX, true, 0, &kvs, NULL) != 0)
		return;
	for (size_t i = 0; i < kvs.n; i++) {
		uid_t uid = 0;

		if (!creator_alive(e, &kvs.kv[i], &uid))
			ptc_creation_undo(e, kvs.kv[i].key + strlen(CREATING_PREFIX), uid, NULL);
	}
	ptc_etcd_kvs_done(&kvs);
}

void ptc_tidy_creations(struct ptc_controllers *all)
{
	ptc_cluster_run(all->cluster, "creations", creations_work, NULL,
			NULL); /* no memory: at the next change of the nodes */
}

/* ---- blobs -------------------------------------------------------------------------- */

struct prune {
	struct ptc_controller *ctl;
	bool failed;
	char uuid[PTC_UUID_TEXT];
	int64_t fence;
	char keep[4][PTC_HASH_HEX];
	char **more; /* headers of imported files, layouts of configurations */
	size_t nmore;
	struct ptc_probed probed;
};

static void prune_free(struct prune *p)
{
	for (size_t i = 0; i < p->nmore; i++)
		ptc_free(p->more[i]);
	ptc_free(p->more);
	ptc_probed_done(&p->probed);
	ptc_controller_unref(p->ctl);
	ptc_free(p);
}

static bool is_kept(const struct prune *p, const char *key)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(p->keep); i++)
		if (p->keep[i][0] && strstr(key, p->keep[i]))
			return true;
	for (size_t i = 0; i < p->nmore; i++)
		if (strstr(key, p->more[i]))
			return true;
	for (size_t i = 0; i < p->probed.n; i++)
		if (strstr(key, p->probed.v[i].layout_hash))
			return true;
	return false;
}

/* All of them in one revision, or a hundred at a time. */
static void prune_work(void *arg, struct ptc_etcd *e)
{
	struct ptc_etcd_op ops[PTC_ETCD_TXN_OPS_MAX];
	struct ptc_etcd_compare cmp[2];
	struct ptc_etcd_kvs kvs = { 0 };
	struct prune *p = arg;
	char prefix[96], lock[96], probed[PTC_PROBED_KEY];
	size_t n = 0;
	bool ok = true;
	int rc;

	snprintf(prefix, sizeof prefix, "/ptc/blobs/%s/", p->uuid);
	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", p->uuid);
	ptc_probed_key(p->uuid, probed);
	rc = ptc_probed_read(e, p->uuid, &p->probed, NULL);
	cmp[0] = (struct ptc_etcd_compare){ lock, PTC_ETCD_CREATE_REV, ptc_fence_revision(p->fence) };
	cmp[1] = (struct ptc_etcd_compare){ probed, PTC_ETCD_MOD_REV, p->probed.revision };
	if (rc == 0)
		rc = ptc_etcd_get_keys(e, prefix, &kvs, NULL);
	for (size_t i = 0; rc == 0 && ok && i < kvs.n; i++) {
		if (!is_kept(p, kvs.kv[i].key))
			ops[n++] = (struct ptc_etcd_op){ .key = kvs.kv[i].key };
		if (n == 0 || (n < PTC_ETCD_TXN_OPS_MAX && i + 1 < kvs.n))
			continue;
		rc = ptc_etcd_txn(e, cmp, PTC_ARRAY_LEN(cmp), ops, n, "etcd.prune", &ok, NULL, NULL);
		n = 0;
	}
	ptc_etcd_kvs_done(&kvs);
	p->failed = rc != 0 || !ok; /* another layout was probed meanwhile, if it is not that we have lost the job */
}

static void pruned(void *arg)
{
	struct prune *p = arg;

	p->ctl->untidy |= p->failed;
	prune_free(p);
}

#define OLDER_HASHES 5 /* documents of one older snapshot */

/* What older snapshots have for themselves. */
static bool keep_older(struct prune *p, const struct ptc_older_doc *older)
{
	for (size_t i = 0; i <= older->n; i++) {
		const struct ptc_older *o = i < older->n ? &older->v[i] : &older->bridge;
		const char *hashes[] = { o->manifest_hash, o->generation_hash, o->layout_hash, o->state_hash,
					 o->copies_hash };

		for (size_t k = 0; k < PTC_ARRAY_LEN(hashes); k++) {
			if (!hashes[k][0])
				continue;
			p->more[p->nmore] = ptc_strdup(hashes[k]);
			if (!p->more[p->nmore])
				return false;
			p->nmore++;
		}
	}
	return true;
}

static bool keep_more(struct prune *p, const struct ptc_manifest_doc *m, const struct ptc_older_doc *older)
{
	p->more = ptc_calloc(m->nfiles + m->nlayouts + (older->n + 1) * OLDER_HASHES, sizeof *p->more);
	for (size_t i = 0; p->more && i < m->nfiles + m->nlayouts; i++) {
		const char *hash = i < m->nfiles ? m->files[i].header_hash : m->layouts[i - m->nfiles].layout_hash;

		p->more[i] = ptc_strdup(hash);
		if (!p->more[i])
			return false;
		p->nmore++;
	}
	return p->more && keep_older(p, older);
}

/* Removes the job's blobs that neither meta nor record names. Call it only if no switch is under way. */
static void tidy_blobs(struct ptc_controller *ctl)
{
	const struct ptc_manifest_doc *m = &ctl->view.manifest;
	struct prune *p = ctl->ahead ? NULL : ptc_calloc(1, sizeof *p);

	ctl->untidy = !p; /* a layout may be written down of which no intent says yet */
	if (!p)
		return;
	p->ctl = ptc_controller_ref(ctl);
	memcpy(p->uuid, ctl->uuid, sizeof p->uuid);
	p->fence = ctl->fence;
	memcpy(p->keep[0], ctl->meta.spec_hash, PTC_HASH_HEX);
	if (ctl->has_record) {
		memcpy(p->keep[1], ctl->record.manifest_hash, PTC_HASH_HEX);
		memcpy(p->keep[2], m->generation_hash, PTC_HASH_HEX);
		memcpy(p->keep[3], m->state_hash, PTC_HASH_HEX);
	}
	if (!keep_more(p, m, &ctl->older.doc) ||
	    ptc_cluster_run(ctl->all->cluster, ctl->uuid, prune_work, pruned, p) != 0) {
		ctl->untidy = true;
		prune_free(p);
	}
}

void ptc_controller_tidy(struct ptc_controller *ctl)
{
	if (ptc_controller_idle(ctl))
		tidy_blobs(ctl);
}
