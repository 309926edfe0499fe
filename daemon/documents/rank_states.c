/* SPDX-License-Identifier: Apache-2.0 */
/* Decides the rank state (blobs, cursors) of a new generation's ranks in a switch. Happy path: the state document of
 * the snapshot is read, and the job's rules decide (formats/job/blob_rules.h). If ranks of the new generation get
 * other blobs than the snapshot has, a state document of their own is written beside it. It is made anew from etcd's
 * documents whenever it is needed; equal bytes have one name.
 *
 * Failure modes: a blob that a rule refuses, or that has to be carried and
 * cannot be (PTC_ESTATE naming it); etcd. */
#include "daemon/documents/documents.h"

#include "base/alloc.h"
#include "base/number/fence.h"
#include "formats/job/job.h"
#include "formats/json.h"

#include <stdio.h>

int ptc_rank_states_check(const struct ptc_documents *docs, const struct ptc_meta_doc *meta,
			  const struct ptc_state *state, struct ptc_error *err)
{
	const struct ptc_job_desc *desc;
	void *ref;
	int rc = ptc_specs_get(docs->specs, meta->uuid, meta->spec_hash, &desc, &ref, err);

	if (rc)
		return rc;
	rc = ptc_blobs_check(&desc->blobs, state, err);
	ptc_specs_release(ref);
	return rc;
}

static int write_next(const struct ptc_rank_states_ask *ask, const struct ptc_state *next, struct ptc_etcd *e,
		      struct ptc_rank_states *b, struct ptc_error *err)
{
	char *json, lock[96];
	size_t len;
	int rc = ptc_state_doc_encode(next, &json, &len, err);

	if (rc)
		return rc;
	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", ask->meta->uuid);
	if (e)
		rc = ptc_blob_put(e, ask->meta->uuid,
				  &(struct ptc_etcd_compare){ lock, PTC_ETCD_CREATE_REV,
							      ptc_fence_revision(ask->fence) },
				  json, len, b->hash, err);
	ptc_free(json);
	return rc;
}

static int apply_rules(const struct ptc_rank_states_ask *ask, const struct ptc_state *state, struct ptc_etcd *e,
		       struct ptc_rank_states *b, struct ptc_error *err)
{
	struct ptc_config from, to;
	struct ptc_state next = { 0 };
	const struct ptc_job_desc *desc;
	bool changed = false;
	void *ref;
	int rc = ptc_specs_get(ask->docs->specs, ask->meta->uuid, ask->meta->spec_hash, &desc, &ref, err);

	if (rc)
		return rc;
	rc = ptc_config_parse(ask->from, &from, err);
	if (rc == 0)
		rc = ptc_config_parse(ask->to, &to, err);
	if (rc == 0)
		rc = ptc_blobs_apply(&(struct ptc_blobs_switch){ &desc->blobs, state, &from, &to }, &b->review,
				     &changed, &next, err);
	if (rc == 0 && (changed || ask->data_hash)) /* no snapshot has a state whose data goes on elsewhere */
		rc = write_next(ask, changed ? &next : state, e, b, err);
	ptc_state_done(&next);
	ptc_specs_release(ref);
	return rc;
}

/* hash "": an empty one. */
static int read_state(const struct ptc_documents *docs, const struct ptc_meta_doc *meta, const char *hash,
		      struct ptc_state *ret, struct ptc_error *err)
{
	char *json;
	size_t len;
	int rc = hash[0] ? ptc_blob_get(ptc_cluster_etcd(docs->cluster), meta->uuid, hash, PTC_STATE_DOC_MAX_BYTES,
					&json, &len, err)
			 : 0;

	if (rc || !hash[0])
		return rc;
	rc = ptc_state_doc_decode(json, len, ret, err);
	ptc_free(json);
	return rc;
}

/* What a job had consumed, the ledger says; where its data goes on, its state. */
static int check_ends(const struct ptc_manifest_doc *m, const struct ptc_state *s, struct ptc_error *err)
{
	for (size_t i = 0; i < s->ncursors; i++)
		if (!ptc_ledger_ends_at(&m->ledger, s->cursors[i].name, s->cursors[i].position))
			return ptc_error_set(
				err, PTC_ESTATE,
				"cursor \"%.100s\" of snapshot %llu: no step is on record that came to its "
				"position %llu, so what lies between cannot be skipped",
				s->cursors[i].name, (unsigned long long)m->snapshot,
				(unsigned long long)s->cursors[i].position);
	return 0;
}

int ptc_rank_states_skips(const struct ptc_documents *docs, const struct ptc_meta_doc *meta,
			  const struct ptc_manifest_doc *to, const struct ptc_manifest_doc *now, struct ptc_error *err)
{
	struct ptc_state there = { 0 }, here = { 0 };
	int rc = read_state(docs, meta, to->state_hash, &there, err);

	if (rc == 0)
		rc = read_state(docs, meta, now->state_hash, &here, err);
	if (rc == 0)
		rc = check_ends(to, &there, err);
	if (rc == 0)
		rc = check_ends(now, &here, err);
	if (rc == 0)
		rc = ptc_state_go_on(&there, &here, err);
	ptc_state_done(&there);
	ptc_state_done(&here);
	return rc;
}

int ptc_rank_states_switch(const struct ptc_rank_states_ask *ask, const struct ptc_state *state, struct ptc_etcd *e,
			   struct ptc_rank_states *ret, struct ptc_error *err)
{
	struct ptc_rank_states b = { 0 };
	struct ptc_state read = { 0 }, data = { 0 };
	int rc = state ? 0 : read_state(ask->docs, ask->meta, ask->hash, &read, err);

	if (rc == 0 && ask->data_hash)
		rc = read_state(ask->docs, ask->meta, ask->data_hash, &data, err);
	if (rc == 0 && ask->data_hash)
		rc = ptc_state_go_on(&read, &data, err);
	ptc_state_done(&data);
	if (rc == 0)
		rc = apply_rules(ask, state ? state : &read, e, &b, err);
	ptc_state_done(&read);
	if (rc == 0)
		*ret = b;
	return rc;
}

#define REVIEW(member, kind) PTC_ROW(struct ptc_blobs_review, #member, member, kind)
static const struct ptc_member review_rows[] = { REVIEW(gone, U64),       REVIEW(without, U32), REVIEW(group, U64),
						 REVIEW(replicated, U64), REVIEW(reset, U64),   REVIEW(text, TEXT) };
const struct ptc_members ptc_blobs_review_members = PTC_MEMBERS(review_rows, struct ptc_blobs_review);
