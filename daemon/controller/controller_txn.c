/* SPDX-License-Identifier: Apache-2.0 */
/* The controller's durable steps. Each is a task of the job's lane. The task carries copies of everything that it
 * needs, and brings its outcome back to the loop. The pool that computes encodes and compares long documents.
 *
 * Happy path: blobs that are too long for a transaction are written first. (They are content-addressed, so writing them
 * twice is harmless.) Then one Txn writes the rest. It compares the lock's create_revision (we are still the
 * controller), the record's mod_revision (nobody else committed) and, for the second commit, the keys of the nodes that
 * hold the new generation. Failure modes: a compare failed (CONFLICT); the outcome is not known (UNKNOWN: the core
 * reloads the keys). */
#include "daemon/controller/internal.h"
#include "daemon/agent/geometry/digest_merge.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/fault.h"
#include "base/number/fence.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>
#include <uv.h>

#define FIXED_COMPARES    6   /* lock, record, intent, barrier, devices, older */
#define MAX_NODE_COMPARES 100 /* leaves room for those in one Txn */
#define RELOAD_RETRY_MS   500

struct txn {
	struct ptc_controller *ctl;
	uint64_t seq;
	enum ptc_job_txn kind;
	char uuid[PTC_UUID_TEXT];
	int64_t fence, record_revision, intent_revision, barrier_revision;
	struct ptc_intent_doc intent;
	struct ptc_record_doc record;
	struct ptc_manifest_doc manifest; /* shares nothing with the controller */
	char *manifest_json;              /* of a commit */
	char *generation_json;
	struct ptc_event_line *event; /* of a commit; NULL: none */
	bool new_incarnation;
	/* a commit by which the record's snapshot becomes an older one: what the document is to be */
	bool supersedes;
	struct ptc_older_doc older;
	char *older_json; /* NULL: there is no such document afterwards */
	size_t older_most;
	int64_t older_revision;
	bool too_many; /* nodes were left out for the intent to name */
	struct ptc_device_claim claim;
	/* INTENT of a job whose ranks do not run: what they carry is known */
	struct ptc_meta_doc meta;
	char state_hash[PTC_HASH_HEX], data_hash[PTC_HASH_HEX], *from_config, *to_config;
	struct ptc_rank_states rank_states;
	struct {
		char key[128];
		int64_t revision;
	} * nodes;
	size_t nnodes;
	/* outcome */
	enum ptc_txn_outcome outcome;
	int64_t revision;
	char said[256];
};

static void txn_free(struct txn *t)
{
	ptc_manifest_doc_done(&t->manifest);
	ptc_free(t->manifest_json);
	ptc_free(t->older_json);
	ptc_free(t->generation_json);
	ptc_free(t->from_config);
	ptc_free(t->to_config);
	ptc_free(t->nodes);
	ptc_device_claim_done(&t->claim);
	ptc_event_line_free(t->event, t->outcome == PTC_TXN_OK);
	ptc_controller_unref(t->ctl);
	ptc_free(t);
}

/* ---- in the job's lane ---------------------------------------------------------- */

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
	if (t->supersedes)
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

static int do_commit(struct txn *t, struct ptc_etcd *e, struct ptc_error *err)
{
	bool first = t->kind == PTC_TXN_COMMIT1;
	struct named manifest = { .json = t->manifest_json };
	int rc;

	if (!manifest.json)
		return ptc_nomem(err);
	if (t->supersedes)
		ptc_older_keep(&t->ctl->all->docs, &t->meta, t->older_most, &t->older);
	if (t->older.n && !(t->older_json = ptc_older_doc_encode(&t->older)))
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
	char intent[96], barrier[96], record[96], value[64], *json = NULL;
	struct ptc_etcd_op ops[3] = { { 0 } };
	size_t n = 2;
	int rc;

	snprintf(intent, sizeof intent, "/ptc/jobs/%s/intent", t->uuid);
	snprintf(barrier, sizeof barrier, "/ptc/jobs/%s/barrier", t->uuid);
	snprintf(record, sizeof record, "/ptc/jobs/%s/record", t->uuid);
	snprintf(value, sizeof value, "{\"version\":1,\"cleared\":%llu}", (unsigned long long)t->intent.id);
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
		ptc_older_adopt(ctl, &t->older, t->older_json ? t->revision : 0);
	ptc_manifest_doc_done(&ctl->view.manifest);
	ctl->view.manifest = t->manifest;
	memset(&t->manifest, 0, sizeof t->manifest);
	ptc_copy_keeper_committed(ctl);
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

static int copy_files(const struct ptc_file_doc *src, size_t n, struct ptc_manifest_doc *m)
{
	m->files = ptc_calloc(n, sizeof *m->files);
	if (!m->files)
		return PTC_ENOMEM;
	for (; m->nfiles < n; m->nfiles++) {
		struct ptc_file_doc *f = &m->files[m->nfiles];
		const struct ptc_file_doc *s = &src[m->nfiles];

		*f = *s;
		f->field = ptc_strdup(s->field);
		f->name = ptc_strdup(s->name);
		f->items = ptc_reallocarray(NULL, s->nitems, sizeof *f->items);
		if (!f->field || !f->name || !f->items) {
			m->nfiles++;
			return PTC_ENOMEM;
		}
		memcpy(f->items, s->items, s->nitems * sizeof *f->items);
	}
	return 0;
}

static int copy_layouts(const struct ptc_manifest_doc *old, struct ptc_manifest_doc *m)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < old->nlayouts; i++)
		rc = ptc_manifest_layout_add(m, old->layouts[i].config, old->layouts[i].layout_hash);
	return rc;
}

/* Whose state the switch carries: the record's, or of a rollback the older snapshot's. */
static const struct ptc_view *source_of(const struct ptc_controller *ctl)
{
	return ctl->intent.source ? &ctl->source : &ctl->view;
}

/* A client sends the state. */
static bool is_sent(const struct ptc_controller *ctl)
{
	return ctl->intent.kind == PTC_SWITCH_IMPORT && !ctl->intent.source;
}

/* The tag with the micro steps that the configuration gave its ranks, for a program that does not write them there.
 * NULL: there is nothing to add, or no room for it. */
static char *with_micro_steps(const char *tag, const struct ptc_ledger_order *said, const struct ptc_config *config)
{
	char steps[PTC_MICRO_TEXT_MAX];
	char *longer;

	ptc_micro_runs_format(&config->micro_steps, steps);
	if (!steps[0] || said->micro_steps.n || said->by_length)
		return NULL;
	longer = ptc_asprintf("%s%cmicro_steps=%s", tag, strchr(tag, ';') ? ',' : ';', steps);
	if (longer && strlen(longer) <= PTC_STATE_NAME_MAX)
		return longer;
	ptc_free(longer);
	return NULL;
}

/* What the old snapshot had consumed and, when ranks were captured, what they have since. */
static int make_ledger(struct ptc_controller *ctl, bool captured, struct ptc_manifest_doc *m)
{
	const struct ptc_manifest_doc *old = &source_of(ctl)->manifest;
	bool import = is_sent(ctl);
	struct ptc_config config = { 0 };
	int rc = ptc_ledger_copy(import ? &ctl->imported.ledger : &old->ledger, &m->ledger);

	if (rc == 0 && ctl->intent.skip_data)
		rc = ptc_ledger_skip(&m->ledger, &ctl->view.manifest.ledger, m->generation, old->step);
	if (rc || !captured)
		return rc;
	rc = ptc_config_parse(ctl->view.from.config, &config, NULL);
	for (size_t i = 0; rc == 0 && i < ctl->cursors.n; i++) {
		struct ptc_ledger_entry e = ctl->cursors.v[i];
		struct ptc_ledger_order order = { 0 };
		ptc_auto_free char *tag = NULL;

		ptc_ledger_tag(e.tag, &order); /* a tag that says nothing is one, too */
		e.generation = m->generation;
		e.first_step = old->step;
		e.end_step = m->step;
		e.dp = config.dp;
		e.micro = order.micro ? order.micro : config.micro_batch;
		e.batch = order.batch ? order.batch : config.global_batch;
		tag = with_micro_steps(e.tag, &order, &config);
		if (tag)
			e.tag = tag;
		rc = ptc_ledger_note(&m->ledger, &e);
	}
	return rc;
}

/* The first commit's snapshot is where the nodes are that gave it. */
static int make_placement(struct ptc_controller *ctl, struct ptc_manifest_doc *m)
{
	const struct ptc_generation_doc *g = &ctl->view.from;
	uint32_t node;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < g->nnodes; i++)
		if (!ptc_cluster_find_node(ctl->all->cluster, g->nodes[i], &node) || !ptc_job_gives(ctl->core, node))
			rc = ptc_manifest_without_add(m, g->nodes[i]);
	return rc;
}

/* Whoever goes on with the switch must not take for its part what these nodes have, which nobody has cleaned for it. */
static void make_without(struct ptc_controller *ctl, struct txn *t)
{
	const struct ptc_generation_doc *g = &ctl->view.from;
	uint32_t node;

	for (size_t i = 0; i < g->nnodes; i++)
		if (ptc_manifest_placed(&ctl->view.manifest, g->nodes[i]) &&
		    ptc_cluster_find_node(ctl->all->cluster, g->nodes[i], &node) && !ptc_job_gives(ctl->core, node) &&
		    ptc_intent_without_add(&t->intent, g->nodes[i]) != 0)
			t->too_many = true;
}

/* The manifest of the commit. Digests are those just compared: of the new generation (second commit), or of what was
 * captured from ranks (first); else they are what they were. */
static int make_manifest(struct ptc_controller *ctl, struct txn *t, uint64_t step)
{
	const struct ptc_manifest_doc *old = &source_of(ctl)->manifest;
	const struct ptc_generation_doc *to = &ctl->view.to;
	bool second = t->kind == PTC_TXN_COMMIT2, captured = !second && ctl->intent.run_from;
	bool import = is_sent(ctl);
	const uint64_t *digests = second || captured ? ctl->digests : old->digests;
	size_t n = second || captured ? ctl->ndigests : old->ndigests;
	struct ptc_manifest_doc *m = &t->manifest;
	int rc;

	m->generation = t->record.generation;
	m->snapshot = t->record.snapshot;
	if (import)
		t->record.step = ctl->imported.step;
	else
		t->record.step = captured ? step : ctl->intent.to_snapshot ? old->step : 0;
	m->step = t->record.step;
	if (ctl->intent.leaves && t->kind == PTC_TXN_COMMIT1)
		t->record.reached = t->record.step;
	memcpy(m->spec_hash, ctl->meta.spec_hash, sizeof m->spec_hash);
	memcpy(m->generation_hash, second ? ctl->intent.generation_hash : old->generation_hash,
	       sizeof m->generation_hash);
	memcpy(m->state_hash,
	       import                               ? ctl->imported.state_hash
	       : captured                           ? ctl->state_hash
	       : second && ctl->rank_states.hash[0] ? ctl->rank_states.hash
						    : old->state_hash,
	       sizeof m->state_hash);
	m->digests = ptc_reallocarray(NULL, n, sizeof *m->digests);
	if (!m->digests)
		return PTC_ENOMEM;
	if (n)
		memcpy(m->digests, digests, n * sizeof *m->digests);
	m->ndigests = n;
	rc = make_ledger(ctl, captured, m);
	if (rc == 0)
		rc = copy_layouts(&ctl->view.manifest, m); /* the newest that are known */
	if (rc == 0 && !second)
		rc = make_placement(ctl, m);
	if (rc == 0 && second && to->layout_hash[0])
		rc = ptc_manifest_layout_add(m, to->config, to->layout_hash);
	if (rc)
		return rc;
	return import ? copy_files(ctl->imported.files, ctl->imported.nfiles, m)
		      : copy_files(old->files, old->nfiles, m);
}

/* What the record will say of generation, snapshot and ranks. */
static void make_record(struct ptc_controller *ctl, struct txn *t)
{
	const struct ptc_intent_doc *in = &ctl->intent;
	struct ptc_record_doc *r = &t->record;

	*r = ctl->record;
	if (t->kind == PTC_TXN_COMMIT1) {
		r->generation = in->from_generation;
		r->snapshot = in->to_snapshot;
		if (in->kind == PTC_SWITCH_SNAPSHOT && !in->run_to)
			r->run = in->end;
		if (in->held || in->leaves)
			ptc_recovery_halts(ctl, r);
	} else if (t->kind == PTC_TXN_COMMIT2) {
		r->generation = in->to_generation;
		r->snapshot = in->to_snapshot;
		if (in->run_to)
			r->run = PTC_RUN_LIVE;
		if (in->run_to)
			r->incarnation = in->id;
		if (in->run_to)
			ptc_recovery_starts(r);
	} else if (t->kind == PTC_TXN_HALT) {
		r->run = in->end;
		ptc_recovery_halts(ctl, r);
	} else if (t->new_incarnation) {
		ptc_sys_random(&r->incarnation, sizeof r->incarnation, NULL);
		r->incarnation = (r->incarnation & PTC_ID_MASK) | 1;
	}
	if (t->kind == PTC_TXN_COMMIT2 || t->kind == PTC_TXN_HALT ||
	    (t->kind == PTC_TXN_COMMIT1 && in->kind == PTC_SWITCH_SNAPSHOT))
		r->switch_id = in->id;
}

/* The record gets another state: by the first commit of a switch that has captured ranks, and by a rollback's. */
static void make_older(struct ptc_controller *ctl, struct txn *t)
{
	struct ptc_older was = ptc_older_of_record(ctl);

	t->supersedes = was.snapshot && ((t->kind == PTC_TXN_COMMIT1 && ctl->intent.run_from) ||
					 (t->kind == PTC_TXN_COMMIT2 && ctl->intent.source));
	if (!t->supersedes)
		return;
	t->meta = ctl->meta;
	t->older = ctl->older.doc;
	t->older_most = ctl->older.most;
	t->older_revision = ctl->older.revision;
	ptc_older_add(&t->older, &was);
}

/* Nodes that hold the new generation must be the ones that answered. */
static int make_compares(struct ptc_controller *ctl, struct txn *t)
{
	const struct ptc_generation_doc *g = &ctl->view.to;

	t->nodes = ptc_calloc(MAX_NODE_COMPARES, sizeof *t->nodes);
	if (!t->nodes)
		return PTC_ENOMEM;
	for (size_t i = 0; i < g->nnodes && t->nnodes < MAX_NODE_COMPARES; i++) {
		uint32_t n;

		if (!ptc_cluster_find_node(ctl->all->cluster, g->nodes[i], &n))
			continue;
		snprintf(t->nodes[t->nnodes].key, sizeof t->nodes[0].key, "/ptc/nodes/%s", g->nodes[i]);
		t->nodes[t->nnodes++].revision = n < ctl->nknown ? ctl->known[n].revision : 0;
	}
	return 0;
}

/* Where ranks run, AGREE sees to it. */
static int make_rank_states(struct ptc_controller *ctl, struct txn *t)
{
	const struct ptc_view *from = source_of(ctl);

	if (ctl->intent.run_from || !ctl->intent.to_snapshot || !from->from.config)
		return 0;
	t->meta = ctl->meta;
	memcpy(t->state_hash, from->manifest.state_hash, sizeof t->state_hash);
	memcpy(t->data_hash, ctl->view.manifest.state_hash, sizeof t->data_hash);
	t->from_config = ptc_strdup(from->from.config);
	t->to_config = ptc_strdup(ctl->view.to.config);
	return t->from_config && t->to_config ? 0 : PTC_ENOMEM;
}

static int txn_fill(struct ptc_controller *ctl, struct txn *t, const struct ptc_job_update *up)
{
	int rc = 0;

	t->new_incarnation = t->kind == PTC_TXN_CLEAR && up->new_incarnation;
	make_record(ctl, t);
	if (t->kind == PTC_TXN_INTENT && !ctl->intent.source)
		make_without(ctl, t);
	if (t->kind == PTC_TXN_INTENT)
		rc = ptc_device_claim_make(ctl, &t->claim);
	if (rc)
		return rc;
	if (t->kind == PTC_TXN_INTENT && ctl->view.to.world) {
		t->generation_json = ptc_generation_doc_encode(&ctl->view.to);
		rc = t->generation_json ? make_rank_states(ctl, t) : PTC_ENOMEM;
	} else if (t->kind == PTC_TXN_COMMIT1 || t->kind == PTC_TXN_COMMIT2) {
		make_older(ctl, t);
		rc = make_manifest(ctl, t, up->step);
	}
	if (rc == 0 && t->kind == PTC_TXN_COMMIT2)
		rc = make_compares(ctl, t);
	if (rc == 0 && t->kind == PTC_TXN_COMMIT2)
		t->event = ptc_recovery_event(ctl, &t->record);
	return rc;
}

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
	ptc_require(txn_fill(ctl, t, up) == 0);
	ptc_require(ptc_cluster_steps(ctl->all->cluster, ctl->uuid, steps, txn_done, t) == 0);
}

/* ---- digests ----------------------------------------------------------------------------- */

struct check {
	struct ptc_ctl_task task;
	struct ptc_view view; /* a copy: to generation only */
	struct ptc_merge merge;
	uint64_t *items, *expected;
	size_t nitems, nexpected;
	bool import; /* expected is what the client sent, of every item; else the snapshot's */
};

static void check_release(struct ptc_ctl_task *t)
{
	struct check *c = (struct check *)t;

	ptc_merge_done(&c->merge);
	ptc_view_done(&c->view);
	ptc_free(c->items);
	ptc_free(c->expected);
}

void ptc_merge_done(struct ptc_merge *m)
{
	for (size_t i = 0; i < m->nanswers; i++) {
		ptc_free(m->answers[i].need_index);
		ptc_free(m->answers[i].digests);
	}
	ptc_free(m->answers);
	memset(m, 0, sizeof *m);
}

/* The digests are needed once; the counts of bytes stay for the summary. */
void ptc_merge_take(struct ptc_merge *m, struct ptc_controller *ctl)
{
	m->answers = ptc_calloc(ctl->npulls, sizeof *m->answers);
	ptc_require(m->answers);
	for (; m->nanswers < ctl->npulls; m->nanswers++) {
		struct ptc_pull_result *p = &ctl->pulls[m->nanswers];
		struct answer *a = &m->answers[m->nanswers];

		snprintf(a->node, sizeof a->node, "%s", ptc_cluster_node(ctl->all->cluster, p->node)->doc.name);
		a->need_index = p->need_index;
		a->digests = p->digests;
		a->n = p->n;
		p->need_index = NULL;
		p->digests = NULL;
		p->n = 0;
	}
}

int ptc_merge_digests(const struct ptc_merge *m, const struct ptc_geometry *g, const uint64_t *expected,
		      size_t nexpected, uint64_t **ret_items, size_t *ret_nitems, struct ptc_error *err)
{
	size_t nitems = ptc_spec_items(g->spec);
	uint64_t *items = ptc_calloc(nitems, sizeof *items);
	struct ptc_digests *d = NULL;
	int rc = items ? ptc_digests_new(g, &d, err) : ptc_nomem(err);

	if (rc == 0 && ptc_fault("digests.merge"))
		rc = ptc_error_set(err, PTC_EIO, "fault point digests.merge");
	for (size_t n = 0; rc == 0 && n < g->nnodes; n++) {
		bool answered = false;

		for (size_t i = 0; rc == 0 && i < m->nanswers; i++) {
			const struct answer *a = &m->answers[i];

			if (strcmp(g->nodes[n], a->node) != 0)
				continue;
			rc = ptc_digests_add(d, (uint32_t)n, a->need_index, a->digests, a->n, err);
			answered = true;
		}
		if (m->some && !answered && rc == 0)
			ptc_digests_leave_out(d, (uint32_t)n);
	}
	if (rc == 0 && expected && nexpected != nitems)
		rc = ptc_error_set(err, PTC_EDIGEST, "the import has %zu digests, but the job has %zu items", nexpected,
				   nitems);
	if (rc == 0)
		rc = ptc_digests_merge(d, expected, items, err);
	ptc_digests_free(d);
	if (rc) {
		ptc_free(items);
		return rc;
	}
	*ret_items = items;
	*ret_nitems = nitems;
	return 0;
}

/* What rules reset is not the snapshot's any more: it is zeros, whose digest is 0. */
static void expect_resets(struct check *c, const struct ptc_geometry *g)
{
	for (size_t i = 0; !c->import && i < PTC_MIN(c->nexpected, ptc_spec_items(g->spec)); i++)
		if (ptc_layout_resets(g->layout, (uint32_t)i))
			c->expected[i] = 0;
}

static void check_work(void *arg, struct ptc_etcd *e)
{
	struct ptc_geometry g;
	struct check *c = arg;

	(void)e;
	c->task.status = ptc_view_geometry(c->task.ctl->all->agent, &c->view, true, &g, &c->task.err);
	if (c->task.status)
		return;
	expect_resets(c, &g);
	c->task.status =
		ptc_merge_digests(&c->merge, &g, c->expected, c->nexpected, &c->items, &c->nitems, &c->task.err);
	ptc_geometry_done(&g);
}

static void check_adopt(struct ptc_ctl_task *t)
{
	struct check *c = (struct check *)t;

	ptc_free(t->ctl->digests);
	t->ctl->digests = c->items;
	t->ctl->ndigests = c->nitems;
	c->items = NULL;
}

void ptc_controller_check_digests(struct ptc_controller *ctl, uint64_t seq)
{
	bool import = is_sent(ctl);
	const struct ptc_manifest_doc *old = &source_of(ctl)->manifest;
	const uint64_t *expected = import ? ctl->imported.digests : old->digests;
	size_t n = import ? ctl->imported.ndigests : old->ndigests;
	struct check *c = ptc_ctl_task_new(ctl, sizeof *c, seq);

	c->task.answer = PTC_EV_DIGESTS;
	c->task.adopt = check_adopt;
	c->task.release = check_release;
	c->import = import;
	c->view.meta = ctl->meta;
	c->view.to_generation = ctl->intent.to_generation;
	c->view.to_snapshot = ctl->intent.to_snapshot;
	c->view.to_incarnation = ctl->intent.run_to ? ctl->intent.id : 0;
	c->expected = ptc_reallocarray(NULL, n, sizeof *c->expected);
	ptc_require(c->expected && ptc_generation_doc_copy(&ctl->view.to, &c->view.to) == 0 &&
		    ptc_view_nodes(&c->view) == 0);
	memcpy(c->expected, expected, n * sizeof *c->expected);
	c->nexpected = n;
	ptc_merge_take(&c->merge, ctl);
	ptc_ctl_task_run(&c->task, (const struct ptc_task_step[]){ { PTC_TASK_COMPUTE, check_work }, { 0 } });
}

/* ---- load ---------------------------------------------------------------------------------- */

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
	struct ptc_copies_doc copies;
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
		intent = (struct ptc_switch){
			.id = l->intent.id,
			.kind = l->intent.kind,
			.from_generation = l->intent.from_generation,
			.from_snapshot = l->intent.from_snapshot,
			.to_generation = l->intent.to_generation,
			.to_snapshot = l->intent.to_snapshot,
			.from_nodes = from,
			.nfrom = nfrom,
			.to_nodes = to,
			.nto = (uint32_t)ctl->view.to.nnodes,
			.run_from = l->intent.run_from,
			.run_to = l->intent.run_to,
			.stop = l->intent.stop,
			.held = l->intent.held,
			.stored = stored,
		};
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
		ctl->older.doc = l->older;
		ctl->older.revision = l->older_revision;
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
