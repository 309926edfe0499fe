/* SPDX-License-Identifier: Apache-2.0 */
/* What a transaction will say, copied from the controller on the loop: record, manifest, ledger, the document of older
 * snapshots, and the keys of nodes that it compares.
 *
 * Happy path: the content depends on the kind of transaction. A first commit has what was captured, a second commit
 * what the new generation has; an import has what the client says.
 *
 * Failure modes: no memory (PTC_ENOMEM; the caller ends the daemon, and its restart resumes the switch); the
 * configuration or the ledger cannot be read; more lost nodes than an intent can name (`too_many`). */
#include "daemon/controller/committing/internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

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
	const struct ptc_manifest_doc *old = &ptc_switch_source(ctl)->manifest;
	bool import = ptc_switch_is_sent(ctl);
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
	const struct ptc_manifest_doc *old = &ptc_switch_source(ctl)->manifest;
	const struct ptc_generation_doc *to = &ctl->view.to;
	bool second = t->kind == PTC_TXN_COMMIT2, captured = !second && ctl->intent.run_from;
	bool import = ptc_switch_is_sent(ctl);
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

/* The snapshot to which the job can go back until the record's has its copies. If those of the present record are not
 * known to be complete, the present bridge stays, for its own are. */
static int make_bridge(struct ptc_controller *ctl, struct txn *t, const struct ptc_older *was)
{
	const struct ptc_older_kept *k = &ctl->older;
	const bool captured = t->kind == PTC_TXN_COMMIT1;

	if (k->copied == ctl->record_revision || k->yielded[0])
		t->older.bridge = (struct ptc_older){ 0 };
	if (t->older.bridge.snapshot || k->no_room == ctl->record.generation ||
	    (captured && k->bare == ctl->record.generation))
		return 0;
	if (ctl->intent.source) { /* the state that the record gets; the one that it had is given up */
		const struct ptc_older *source = ptc_older_find(&k->doc, ctl->intent.source);

		if (source)
			t->bridge = *source;
		t->bridge.left = false;
		return 0;
	}
	t->bridge = *was;
	return ptc_copies_doc_copy(&ctl->view.copies, &t->copies);
}

/* The record gets another state: by the first commit of a switch that has captured ranks, and by a rollback's. The
 * second commit of a resize gives its state another generation. */
static int make_older(struct ptc_controller *ctl, struct txn *t)
{
	const bool second = t->kind == PTC_TXN_COMMIT2, back = second && ctl->intent.source;
	struct ptc_older was = ptc_older_of_record(ctl);

	t->supersedes = was.snapshot && (second ? back || ctl->intent.kind == PTC_SWITCH_RESIZE : ctl->intent.run_from);
	if (!was.snapshot && ctl->record.snapshot)
		ptc_older_no_bridge(ctl);
	if (!t->supersedes)
		return 0;
	t->meta = ctl->meta;
	t->older = ctl->older.doc;
	t->older_most = ctl->older.most;
	t->older_revision = ctl->older.revision;
	if (back || !second)
		ptc_older_add(&t->older, &was);
	if (back)
		ptc_older_go_back(&t->older, ctl->intent.source);
	return make_bridge(ctl, t, &was);
}

/* Nodes that hold the new generation must be the ones that answered. So must nodes that have captured ranks which they
 * held: one that has restarted may have lost its table. (Nobody asks it again, as the core does after FILLING; if its
 * key is another, the core asks all of them again.) */
static int make_compares(struct ptc_controller *ctl, struct txn *t)
{
	const bool held = t->kind == PTC_TXN_COMMIT1;
	const struct ptc_generation_doc *g = held ? &ctl->view.from : &ctl->view.to;

	t->nodes = ptc_calloc(MAX_NODE_COMPARES, sizeof *t->nodes);
	if (!t->nodes)
		return PTC_ENOMEM;
	for (size_t i = 0; i < g->nnodes && t->nnodes < MAX_NODE_COMPARES; i++) {
		uint32_t n;

		if (!ptc_cluster_find_node(ctl->all->cluster, g->nodes[i], &n) ||
		    (held && !ptc_job_gives(ctl->core, n)))
			continue;
		snprintf(t->nodes[t->nnodes].key, sizeof t->nodes[0].key, "/ptc/nodes/%s", g->nodes[i]);
		t->nodes[t->nnodes++].revision = n >= ctl->nknown ? 0
						 : held           ? ctl->known[n].captured
								  : ctl->known[n].revision;
	}
	return 0;
}

/* Where ranks run, AGREE sees to it. */
static int make_rank_states(struct ptc_controller *ctl, struct txn *t)
{
	const struct ptc_view *from = ptc_switch_source(ctl);

	if (ctl->intent.run_from || !ctl->intent.to_snapshot || !from->from.config)
		return 0;
	t->meta = ctl->meta;
	memcpy(t->state_hash, from->manifest.state_hash, sizeof t->state_hash);
	memcpy(t->data_hash, ctl->view.manifest.state_hash, sizeof t->data_hash);
	t->from_config = ptc_strdup(from->from.config);
	t->to_config = ptc_strdup(ctl->view.to.config);
	return t->from_config && t->to_config ? 0 : PTC_ENOMEM;
}

int ptc_txn_fill(struct ptc_controller *ctl, struct txn *t, const struct ptc_job_update *up)
{
	int rc = 0;

	t->new_incarnation = t->kind == PTC_TXN_CLEAR && up->new_incarnation;
	make_record(ctl, t);
	if (t->kind == PTC_TXN_INTENT && !ctl->intent.source)
		make_without(ctl, t);
	if (t->kind == PTC_TXN_INTENT && ctl->intent.source) {
		t->goes_back = true;
		t->source_gone = !ptc_older_table(&ctl->older.doc, ctl->source.from_generation, ctl->intent.source);
		t->older_revision = ctl->older.revision;
	}
	if (t->kind == PTC_TXN_INTENT)
		rc = ptc_device_claim_make(ctl, &t->claim);
	if (rc)
		return rc;
	if (t->kind == PTC_TXN_INTENT && ctl->view.to.world) {
		t->generation_json = ptc_generation_doc_encode(&ctl->view.to);
		rc = t->generation_json ? make_rank_states(ctl, t) : PTC_ENOMEM;
	} else if (t->kind == PTC_TXN_COMMIT1 || t->kind == PTC_TXN_COMMIT2) {
		rc = make_older(ctl, t);
		if (rc == 0)
			rc = make_manifest(ctl, t, up->step);
	}
	if (rc == 0 && (t->kind == PTC_TXN_COMMIT2 || (t->kind == PTC_TXN_COMMIT1 && ctl->intent.held)))
		rc = make_compares(ctl, t);
	if (rc == 0 && t->kind == PTC_TXN_COMMIT2)
		t->event = ptc_recovery_event(ctl, &t->record);
	return rc;
}
