/* SPDX-License-Identifier: Apache-2.0 */
/* The controller's transactions in etcd: the intent, both commits, halts, and the end of an aborted switch (the
 * barrier key). Each is a task of the job's lane. The task carries copies of everything that it needs (txn_content.c),
 * and brings its outcome back to the loop. Long documents are encoded on the pool for computation.
 *
 * Happy path: blobs that are too long for a transaction are written first. (They are content-addressed, so writing them
 * twice is harmless.) Then one Txn writes the rest. It compares the lock's create_revision (we are still the
 * controller), the record's mod_revision (nobody else committed) and, for the second commit, the keys of the nodes that
 * hold the new generation. A first commit of ranks that were held compares the keys of the nodes that gave their
 * memory.
 *
 * Failure modes: a compare failed (CONFLICT); the outcome is not known (UNKNOWN: the core reloads the keys). */
#include "daemon/controller/committing/internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/check.h"
#include "base/number/fence.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

#define FIXED_COMPARES 6 /* lock, record, intent, barrier, devices, older */

/* ---- in the job's lane ---------------------------------------------------------- */

static void txn_free(struct txn *t)
{
	ptc_manifest_doc_done(&t->manifest);
	ptc_free(t->manifest_json);
	ptc_free(t->older_json);
	ptc_free(t->copies_json);
	ptc_copies_doc_done(&t->copies);
	ptc_free(t->generation_json);
	ptc_free(t->from_config);
	ptc_free(t->to_config);
	ptc_free(t->nodes);
	ptc_device_claim_done(&t->claim);
	ptc_event_line_free(t->event, t->outcome == PTC_TXN_OK);
	ptc_controller_unref(t->ctl);
	ptc_free(t);
}

/* A document that a transaction is about to name: part of that transaction, or, too long for it, written before. */
struct named {
	char *json, key[PTC_BLOB_KEY];
	struct ptc_etcd_op op; /* without key: it is written already */
};

static int name_blob(struct txn *t, struct ptc_etcd *e, struct named *n, char ret_hash[PTC_HASH_HEX],
		     struct ptc_error *err)
{
	const size_t len = strlen(n->json);

	n->op = (struct ptc_etcd_op){ 0 };
	if (ptc_blob_op(t->uuid, n->json, len, ret_hash, n->key, &n->op))
		return 0;
	return ptc_controller_put_blob(t->uuid, t->fence, e, n->json, len, ret_hash, err);
}

static int run_txn(struct txn *t, struct ptc_etcd *e, const struct ptc_etcd_op *ops, size_t nops, const char *point,
		   struct ptc_error *err)
{
	struct ptc_etcd_compare cmp[MAX_NODE_COMPARES + FIXED_COMPARES];
	char lock[96], record[96], intent[96], barrier[96], older[96];
	bool ok = false;
	size_t n = 0;
	int rc;

	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", t->uuid);
	snprintf(record, sizeof record, "/ptc/jobs/%s/record", t->uuid);
	snprintf(intent, sizeof intent, "/ptc/jobs/%s/intent", t->uuid);
	snprintf(barrier, sizeof barrier, "/ptc/jobs/%s/barrier", t->uuid);
	cmp[n++] = (struct ptc_etcd_compare){ lock, PTC_ETCD_CREATE_REV, ptc_fence_revision(t->fence) };
	cmp[n++] = (struct ptc_etcd_compare){ record, PTC_ETCD_MOD_REV, t->record_revision };
	cmp[n++] = (struct ptc_etcd_compare){ intent, PTC_ETCD_MOD_REV, t->intent_revision };
	cmp[n++] = (struct ptc_etcd_compare){ barrier, PTC_ETCD_MOD_REV, t->barrier_revision };
	if (t->claim.json)
		cmp[n++] = (struct ptc_etcd_compare){ PTC_DEVICES_KEY, PTC_ETCD_MOD_REV, t->claim.revision };
	snprintf(older, sizeof older, "/ptc/jobs/%s/older", t->uuid);
	if (t->supersedes || t->goes_back)
		cmp[n++] = (struct ptc_etcd_compare){ older, PTC_ETCD_MOD_REV, t->older_revision };
	for (size_t i = 0; i < t->nnodes; i++)
		cmp[n++] = (struct ptc_etcd_compare){ t->nodes[i].key, PTC_ETCD_CREATE_REV, t->nodes[i].revision };
	rc = ptc_etcd_txn(e, cmp, n, ops, nops, point, &ok, &t->revision, err);
	t->outcome = rc ? PTC_TXN_UNKNOWN : ok ? PTC_TXN_OK : PTC_TXN_CONFLICT;
	return rc;
}

static int switch_rank_states(struct txn *t, struct ptc_etcd *e, struct ptc_error *err)
{
	struct ptc_rank_states_ask ask = { .docs = &t->ctl->all->docs,
					   .meta = &t->meta,
					   .from = t->from_config,
					   .to = t->to_config,
					   .hash = t->state_hash,
					   .data_hash = t->intent.skip_data ? t->data_hash : NULL,
					   .fence = t->fence };

	return ptc_rank_states_switch(&ask, NULL, e, &t->rank_states, err);
}

/* With the devices of its ranks. Refused, and nothing is written, if another job has one. */
static int put_intent(struct txn *t, struct ptc_etcd *e, const struct ptc_etcd_op *intent,
		      const struct ptc_etcd_op *generation, struct ptc_error *err)
{
	struct ptc_etcd_op ops[3];
	unsigned tries = 0;
	size_t n;
	int rc;

	do {
		rc = ptc_device_claim_read(&t->claim, e, err);
		if (rc)
			return rc;
		t->outcome = PTC_TXN_CONFLICT;
		if (t->claim.status)
			return 0;
		n = 0;
		ops[n++] = *intent;
		if (generation->key)
			ops[n++] = *generation;
		if (t->claim.json)
			ops[n++] = (struct ptc_etcd_op){ .key = PTC_DEVICES_KEY,
							 .value = t->claim.json,
							 .len = strlen(t->claim.json) };
		rc = run_txn(t, e, ops, n, "etcd.intent", err);
	} while (rc == 0 && t->outcome == PTC_TXN_CONFLICT && ++tries < PTC_DEVICE_TRIES &&
		 ptc_device_claim_moved(&t->claim, e));
	return rc;
}

static int do_intent(struct txn *t, struct ptc_etcd *e, struct ptc_error *err)
{
	struct named generation = { .json = t->generation_json };
	char key[96], *json;
	int rc = t->too_many       ? ptc_error_set(err, PTC_ELIMIT,
						   "too many nodes are lost for one switch to go on without them")
		 : t->source_gone  ? ptc_error_set(err, PTC_ENOTFOUND, "the job does not keep snapshot %llu any more",
						   (unsigned long long)t->intent.source)
		 : generation.json ? name_blob(t, e, &generation, t->intent.generation_hash, err)
				   : 0;

	if (rc == 0 && t->to_config)
		rc = switch_rank_states(t, e, err);
	if (rc)
		return rc;
	json = ptc_intent_doc_encode(&t->intent);
	if (!json)
		return ptc_nomem(err);
	snprintf(key, sizeof key, "/ptc/jobs/%s/intent", t->uuid);
	rc = put_intent(t, e, &(struct ptc_etcd_op){ .key = key, .value = json, .len = strlen(json) }, &generation.op,
			err);
	ptc_free(json);
	return rc;
}

/* A commit: the record, its manifest if that is new, and what else the kind of it does. */
static int put_record(struct txn *t, struct ptc_etcd *e, const struct ptc_etcd_op *manifest, bool unintend,
		      const char *point, struct ptc_error *err)
{
	struct ptc_etcd_op ops[5] = { { 0 } };
	char record[96], intent[96], older[96], *json = ptc_record_doc_encode(&t->record);
	size_t n = 0;
	int rc;

	if (!json)
		return ptc_nomem(err);
	ptc_require(strlen(json) <= PTC_RECORD_MAX_BYTES);
	snprintf(record, sizeof record, "/ptc/jobs/%s/record", t->uuid);
	snprintf(intent, sizeof intent, "/ptc/jobs/%s/intent", t->uuid);
	ops[n++] = (struct ptc_etcd_op){ .key = record, .value = json, .len = strlen(json) };
	if (unintend)
		ops[n++] = (struct ptc_etcd_op){ .key = intent };
	if (manifest && manifest->key)
		ops[n++] = *manifest;
	snprintf(older, sizeof older, "/ptc/jobs/%s/older", t->uuid);
	if (t->older_json || (t->supersedes && t->older_revision))
		ops[n++] = (struct ptc_etcd_op){ .key = older,
						 .value = t->older_json,
						 .len = t->older_json ? strlen(t->older_json) : 0 };
	if (t->event)
		ops[n++] = ptc_event_line_op(t->event);
	rc = run_txn(t, e, ops, n, point, err);
	ptc_free(json);
	return rc;
}

/* What of the older snapshots stays, by the job's description. */
static int make_older(struct txn *t, struct ptc_etcd *e, struct ptc_error *err)
{
	int rc = 0;

	ptc_older_keep(&t->ctl->all->docs, &t->meta, t->older_most, &t->older, &t->asked);
	if (t->bridge.snapshot && t->asked.count > 1 && !t->older.bridge.snapshot) {
		if (t->copies_json)
			rc = ptc_controller_put_blob(t->uuid, t->fence, e, t->copies_json, strlen(t->copies_json),
						     t->bridge.copies_hash, err);
		t->older.bridge = t->bridge;
	}
	if (rc == 0 && !ptc_older_doc_empty(&t->older) && !(t->older_json = ptc_older_doc_encode(&t->older)))
		rc = ptc_nomem(err);
	return rc;
}

static int do_commit(struct txn *t, struct ptc_etcd *e, struct ptc_error *err)
{
	bool first = t->kind == PTC_TXN_COMMIT1;
	struct named manifest = { .json = t->manifest_json };
	int rc = t->supersedes ? make_older(t, e, err) : 0;

	if (rc)
		return rc;
	if (!manifest.json)
		return ptc_nomem(err);
	rc = name_blob(t, e, &manifest, t->record.manifest_hash, err);
	if (rc == 0)
		rc = put_record(t, e, &manifest.op, !first || t->intent.kind == PTC_SWITCH_SNAPSHOT,
				first ? "etcd.commit1" : "etcd.commit2", err);
	return rc;
}

/* Moves the barrier on as well: an INTENT or COMMIT still on its way fails from here on. */
static int do_clear(struct txn *t, struct ptc_etcd *e, struct ptc_error *err)
{
	char intent[96], barrier[96], record[96], *json = NULL;
	ptc_auto_free char *value = ptc_barrier_doc_encode(&(struct ptc_barrier_doc){ t->intent.id });
	struct ptc_etcd_op ops[3] = { { 0 } };
	size_t n = 2;
	int rc;

	if (!value)
		return ptc_nomem(err);
	snprintf(intent, sizeof intent, "/ptc/jobs/%s/intent", t->uuid);
	snprintf(barrier, sizeof barrier, "/ptc/jobs/%s/barrier", t->uuid);
	snprintf(record, sizeof record, "/ptc/jobs/%s/record", t->uuid);
	ops[0] = (struct ptc_etcd_op){ .key = intent };
	ops[1] = (struct ptc_etcd_op){ .key = barrier, .value = value, .len = strlen(value) };
	if (t->new_incarnation) {
		json = ptc_record_doc_encode(&t->record);
		if (!json)
			return ptc_nomem(err);
		ops[n++] = (struct ptc_etcd_op){ .key = record, .value = json, .len = strlen(json) };
	}
	rc = run_txn(t, e, ops, n, "etcd.clear", err);
	ptc_free(json);
	return rc;
}

/* Of a large model it has megabytes. */
static void txn_encode(void *arg, struct ptc_etcd *e)
{
	struct txn *t = arg;

	(void)e;
	if (t->kind == PTC_TXN_COMMIT1 || t->kind == PTC_TXN_COMMIT2)
		t->manifest_json = ptc_manifest_doc_encode(&t->manifest);
	if (t->copies.nparts) /* NULL, for want of memory: a bridge without copies */
		t->copies_json = ptc_copies_doc_encode(&t->copies);
}

static void txn_work(void *arg, struct ptc_etcd *e)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct txn *t = arg;
	int rc;

	t->outcome = PTC_TXN_UNKNOWN;
	if (t->kind == PTC_TXN_INTENT)
		rc = do_intent(t, e, &err);
	else if (t->kind == PTC_TXN_CLEAR)
		rc = do_clear(t, e, &err);
	else if (t->kind == PTC_TXN_HALT)
		rc = put_record(t, e, NULL, false, "etcd.halt", &err);
	else
		rc = do_commit(t, e, &err);
	if (rc) {
		ptc_warn("job", "job=%s etcd: %s", t->uuid, err.text);
		snprintf(t->said, sizeof t->said, "%.255s", err.text);
	}
}

/* ---- back on the loop --------------------------------------------------------------- */

static void adopt_record(struct ptc_controller *ctl, const struct txn *t)
{
	ptc_recovery_saw(ctl, &t->record);
	ctl->has_record = true;
	ctl->record = t->record;
	ctl->record_revision = t->revision;
	ctl->view.from_generation = t->record.generation;
	ctl->view.from_snapshot = t->record.snapshot;
	ctl->view.from_incarnation = t->record.incarnation;
}

static void adopt(struct ptc_controller *ctl, struct txn *t)
{
	if (t->kind == PTC_TXN_INTENT) {
		ctl->intent = t->intent;
		ctl->intent_revision = t->revision;
		ctl->rank_states = t->rank_states;
		return;
	}
	if (t->kind == PTC_TXN_CLEAR) {
		ctl->intent_revision = 0;
		ctl->barrier_revision = t->revision;
		if (t->new_incarnation)
			adopt_record(ctl, t);
		return;
	}
	if (t->kind == PTC_TXN_COMMIT2 || t->intent.kind == PTC_SWITCH_SNAPSHOT)
		ctl->intent_revision = 0;
	adopt_record(ctl, t);
	if (t->kind == PTC_TXN_HALT)
		return;
	if (t->supersedes)
		ptc_older_adopt(ctl, &t->older, t->older_json ? t->revision : 0, t->copies_json ? &t->copies : NULL);
	ptc_manifest_doc_done(&ctl->view.manifest);
	ctl->view.manifest = t->manifest;
	memset(&t->manifest, 0, sizeof t->manifest);
	ptc_copy_keeper_committed(ctl);
	ptc_copy_keeper_saw_commit(ctl, &t->asked);
}

static void txn_done(void *arg)
{
	struct txn *t = arg;
	struct ptc_job_event ev = { .kind = PTC_EV_TXN, .seq = t->seq, .outcome = t->outcome };

	if (!t->ctl->gone) {
		if (t->outcome == PTC_TXN_OK)
			adopt(t->ctl, t);
		if (t->claim.status) /* heard when the outcome is known */
			ptc_controller_step(t->ctl, &(struct ptc_job_event){ .kind = PTC_EV_ABORT,
									     .status = t->claim.status,
									     .text = t->claim.text });
		memcpy(t->ctl->etcd_said, t->said, sizeof t->said);
		ptc_controller_step(t->ctl, &ev);
	}
	txn_free(t);
}

/* ---- from the loop ------------------------------------------------------------------ */

void ptc_controller_txn(struct ptc_controller *ctl, const struct ptc_job_update *up)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_COMPUTE, txn_encode },
						      { PTC_TASK_ETCD, txn_work },
						      { 0 } };
	struct txn *t = ptc_calloc(1, sizeof *t);

	ptc_require(t); /* a lost step of the protocol would stop the job for good; a restart resumes it */
	t->ctl = ptc_controller_ref(ctl);
	t->seq = up->seq;
	t->kind = up->txn;
	memcpy(t->uuid, ctl->uuid, sizeof t->uuid);
	t->fence = ctl->fence;
	t->record_revision = ctl->record_revision;
	t->intent_revision = ctl->intent_revision;
	t->barrier_revision = ctl->barrier_revision;
	t->intent = ctl->intent;
	ptc_require(ptc_txn_fill(ctl, t, up) == 0);
	ptc_require(ptc_cluster_steps(ctl->all->cluster, ctl->uuid, steps, txn_done, t) == 0);
}
