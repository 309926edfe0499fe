/* SPDX-License-Identifier: Apache-2.0 */
/* Rank state in a switch. Happy path: the state document of the snapshot is read, and the job's rules decide
 * (formats/job/blob_rules.h). If ranks of the new generation get other blobs than the snapshot has, a state document of
 * their own is written beside it. It is made anew from etcd's documents whenever it is needed; equal bytes have one
 * name.
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
	if (rc == 0 && changed)
		rc = write_next(ask, &next, e, b, err);
	ptc_state_done(&next);
	ptc_specs_release(ref);
	return rc;
}

int ptc_rank_states_switch(const struct ptc_rank_states_ask *ask, const struct ptc_state *state, struct ptc_etcd *e,
			   struct ptc_rank_states *ret, struct ptc_error *err)
{
	struct ptc_rank_states b = { 0 };
	struct ptc_state read = { 0 };
	char *json;
	size_t len;
	int rc = 0;

	if (!state && ask->hash[0]) {
		rc = ptc_blob_get(ptc_cluster_etcd(ask->docs->cluster), ask->meta->uuid, ask->hash,
				  PTC_STATE_DOC_MAX_BYTES, &json, &len, err);
		if (rc)
			return rc;
		rc = ptc_state_doc_decode(json, len, &read, err);
		ptc_free(json);
	}
	if (rc == 0)
		rc = apply_rules(ask, state ? state : &read, e, &b, err);
	ptc_state_done(&read);
	if (rc == 0)
		*ret = b;
	return rc;
}

json_t *ptc_rank_states_json(const struct ptc_blobs_review *r)
{
	return r->text[0] ? json_pack("{s:I, s:I, s:I, s:I, s:I, s:s}", "gone", (json_int_t)r->gone, "without",
				      (json_int_t)r->without, "group", (json_int_t)r->group, "replicated",
				      (json_int_t)r->replicated, "reset", (json_int_t)r->reset, "text", r->text)
			  : NULL;
}
