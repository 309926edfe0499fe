/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the job's keys and the documents that they name, and starts the core with them: when the lock has been taken,
 * and when the outcome of a transaction is not known.
 *
 * Happy path: the job's keys are listed by one request, in the job's lane, so that all are of one moment. Blobs follow.
 * Back on the loop the controller takes everything over, and the core gets START.
 *
 * Failure modes: the lock is another's (LOCK_LOST); a document cannot be read, or etcd does not answer (tried again
 * each RELOAD_RETRY_MS, until this node gives the lock back: taking/). */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/fence.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <uv.h>

#define RELOAD_RETRY_MS 500

struct load {
	struct ptc_controller *ctl;
	uint64_t seq; /* of the RELOAD it answers; 0: the first */
	int64_t fence;
	int status; /* PTC_EFENCED: the lock is not ours */
	struct ptc_error err;
	bool has_record, has_intent;
	struct ptc_record_doc record;
	int64_t record_revision, intent_revision, barrier_revision, copies_revision;
	struct ptc_intent_doc intent;
	struct ptc_copies_doc copies, bridge;
	struct ptc_older_doc older;
	int64_t older_revision;
	struct ptc_view view, source; /* source: of a rollback */
	struct ptc_rank_states rank_states;
};

/* prefix: of all of the job's keys. Those of nodes have a slash behind it, whatever the nodes are called. */
static int load_keys(struct load *l, const struct ptc_etcd_kvs *kvs, const char *prefix)
{
	bool locked = false;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < kvs->n; i++) {
		const struct ptc_etcd_kv *kv = &kvs->kv[i];
		const char *leaf = kv->key + strlen(prefix);

		if (strcmp(leaf, "lock") == 0) {
			locked = kv->create_revision == ptc_fence_revision(l->fence);
		} else if (strcmp(leaf, "record") == 0) {
			rc = ptc_record_doc_decode(kv->value, kv->len, &l->record, &l->err);
			l->record_revision = kv->mod_revision;
			l->has_record = true;
		} else if (strcmp(leaf, "intent") == 0) {
			rc = ptc_intent_doc_decode(kv->value, kv->len, &l->intent, &l->err);
			l->intent_revision = kv->mod_revision;
			l->has_intent = true;
		} else if (strcmp(leaf, "barrier") == 0) {
			l->barrier_revision = kv->mod_revision;
		} else if (strcmp(leaf, "copies") == 0) {
			rc = ptc_copies_doc_decode(kv->value, kv->len, &l->copies, &l->err);
			l->copies_revision = kv->mod_revision;
		} else if (strcmp(leaf, "older") == 0) {
			rc = ptc_older_doc_decode(kv->value, kv->len, &l->older, &l->err);
			l->older_revision = kv->mod_revision;
		}
	}
	if (rc == 0 && !locked)
		rc = ptc_error_set(&l->err, PTC_EFENCED, "another daemon controls the job now; ask again");
	return rc;
}

/* Of a switch that is past the point where it was made first, or has no such point: made again, for it is not written
 * down where it lies. */
static int load_rank_states(struct load *l, struct ptc_etcd *e)
{
	const struct ptc_view *from = l->source.from.world ? &l->source : &l->view;
	struct ptc_rank_states_ask ask = { .docs = &l->ctl->all->docs,
					   .meta = &l->ctl->meta,
					   .from = from->from.config,
					   .to = l->view.to.config,
					   .hash = from->manifest.state_hash,
					   .data_hash = l->intent.skip_data ? l->view.manifest.state_hash : NULL,
					   .fence = l->fence };

	if (!l->has_record || !l->has_intent || !l->view.to.world ||
	    (l->intent.run_from && l->record.snapshot != l->intent.to_snapshot))
		return 0;
	return ptc_rank_states_switch(&ask, NULL, e, &l->rank_states, &l->err);
}

static void load_work(void *arg, struct ptc_etcd *e)
{
	struct load *l = arg;
	struct ptc_etcd_kvs kvs = { 0 };
	char prefix[96];

	snprintf(prefix, sizeof prefix, "/ptc/jobs/%s/", l->ctl->uuid);
	l->status = ptc_etcd_get(e, prefix, true, 0, &kvs, &l->err);
	if (l->status == 0)
		l->status = load_keys(l, &kvs, prefix);
	ptc_etcd_kvs_done(&kvs);
	if (l->status == 0)
		l->status = ptc_view_load(l->ctl->all->docs.kept, &l->ctl->meta, l->has_record ? &l->record : NULL,
					  l->has_intent ? &l->intent : NULL, &l->view, &l->err);
	if (l->status == 0 && l->has_intent && l->intent.source && ptc_older_find(&l->older, l->intent.source))
		l->status = ptc_view_older(l->ctl->all->docs.kept, &l->ctl->meta, &l->older, l->intent.source,
					   &l->source, &l->err);
	if (l->status == 0)
		l->status =
			ptc_bridge_copies(l->ctl->all->docs.kept, l->ctl->uuid, &l->older.bridge, &l->bridge, &l->err);
	if (l->status == 0)
		l->status = load_rank_states(l, e);
}

static void retry_fired(uv_timer_t *timer)
{
	struct ptc_controller *ctl = timer->data;

	ptc_controller_load(ctl, ctl->retry_seq);
}

static void start_core(struct ptc_controller *ctl, struct load *l)
{
	struct ptc_switch intent = { 0 };
	struct ptc_job_event ev = { .kind = PTC_EV_START, .seq = l->seq, .fence = ctl->fence };
	uint32_t nplaced, nfrom, *placed = ptc_controller_placed(ctl, NULL, &nplaced), *from = NULL, *to = NULL;
	bool stored = false;

	ptc_require(placed);

	ev.halted = l->has_record && ctl->intent.kind == PTC_SWITCH_HALT && l->record.run == ctl->intent.end;
	if (l->has_record) {
		ev.generation = l->record.generation;
		ev.snapshot = l->record.snapshot;
		ev.record_nodes = placed;
		ev.nrecord_nodes = nplaced;
	}
	if (l->has_intent) {
		stored = l->intent.source && ctl->source.from.world;
		from = stored ? ptc_older_sources(ctl, &nfrom) : ptc_controller_placed(ctl, &l->intent, &nfrom);
		to = ptc_controller_numbers(ctl, &ctl->view.to);
		ptc_require(from && to);
		intent = ptc_controller_switch(ctl, &l->intent, from, nfrom, to);
		intent.stored = stored;
		ev.intent = &intent;
	}
	ptc_controller_step(ctl, &ev);
	if (!ctl->gone)
		ptc_controller_tidy(ctl); /* an earlier controller may not have come to it */
	ptc_free(placed);
	ptc_free(from);
	ptc_free(to);
}

/* A re-read found no intent while our switch is under way: not written, or committed. What it goes to is known only
 * here; and when it is committed, `from` stays what it came from until DONE rolls on. */
static void keep_switch(struct ptc_controller *ctl, struct load *l)
{
	struct ptc_generation_doc from = l->view.from;

	if (l->has_intent || !ptc_job_switch(ctl->core))
		return;
	l->view.to = ctl->view.to;
	memset(&ctl->view.to, 0, sizeof ctl->view.to);
	if (l->has_record && l->record.generation == ctl->intent.to_generation) {
		l->view.from = ctl->view.from;
		ctl->view.from = from;
	}
	ptc_require(ptc_view_nodes(&l->view) == 0);
}

static void load_done(void *arg)
{
	struct load *l = arg;
	struct ptc_controller *ctl = l->ctl;

	if (ctl->gone) {
		ptc_view_done(&l->view);
	} else if (l->status == PTC_EFENCED) {
		ptc_controller_step(ctl, &(struct ptc_job_event){ .kind = PTC_EV_LOCK_LOST });
	} else if (l->status) { /* again by a timer: until then the lane is free. The end of the lock stops it */
		if (!ptc_lock_unreadable(ctl, l->status, l->err.text))
			ptc_warn("job", "job=%s cannot read its record, trying again: %s", ctl->uuid, l->err.text);
		ctl->retry_seq = l->seq;
		uv_timer_start(ctl->retry, retry_fired, RELOAD_RETRY_MS, 0);
	} else {
		ptc_lock_readable(ctl);
		keep_switch(ctl, l);
		ptc_view_done(&ctl->view);
		ctl->view = l->view;
		ctl->plan_hash[0] = '\0';
		ptc_recovery_saw(ctl, &l->record);
		ctl->has_record = l->has_record;
		ctl->record = l->record;
		ctl->record_revision = l->record_revision;
		ctl->intent_revision = l->intent_revision;
		ctl->barrier_revision = l->barrier_revision;
		ptc_copies_doc_done(&ctl->copies);
		ctl->copies = l->copies;
		ctl->copies_revision = l->copies_revision;
		memset(&l->copies, 0, sizeof l->copies);
		ctl->older.tell_all |= ctl->older.revision && ctl->older.revision != l->older_revision;
		ctl->older.doc = l->older;
		ctl->older.revision = l->older_revision;
		ptc_copies_doc_done(&ctl->older.copies);
		ctl->older.copies = l->bridge;
		memset(&l->bridge, 0, sizeof l->bridge);
		ptc_copy_keeper_committed(ctl);
		if (l->has_intent) {
			ptc_view_done(&ctl->source);
			ctl->source = l->source;
			memset(&l->source, 0, sizeof l->source);
			ptc_require(!ctl->source.from.world || ptc_older_aim(ctl) == 0);
			ctl->intent = l->intent;
			ctl->rank_states = l->rank_states;
			ptc_free(ctl->from_config);
			ctl->from_config = ptc_strdup(ctl->view.from.config ? ctl->view.from.config : "");
		}
		start_core(ctl, l);
	}
	ptc_controller_unref(ctl);
	ptc_copies_doc_done(&l->copies);
	ptc_copies_doc_done(&l->bridge);
	ptc_view_done(&l->source);
	ptc_free(l);
}

void ptc_controller_load(struct ptc_controller *ctl, uint64_t seq)
{
	struct load *l = ptc_calloc(1, sizeof *l);

	ptc_require(l);
	l->ctl = ptc_controller_ref(ctl);
	l->seq = seq;
	l->fence = ctl->fence;
	ptc_require(ptc_cluster_run(ctl->all->cluster, ctl->uuid, load_work, load_done, l) == 0);
}
