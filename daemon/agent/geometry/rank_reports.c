/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of ranks on other nodes, from the wire into a merge or a state document. Happy path: numbers counted and
 * checked, strings borrowed.
 *
 * Failure modes: lists whose lengths contradict each other, an unknown dtype, impossible names (PTC_EINVAL, PTC_ELIMIT
 * naming the rank), and whatever the merge refuses. */
#include "daemon/agent/geometry/rank_reports.h"
#include "proto/ptc.pb-c.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "formats/names.h"

/* A scalar's box has no offsets: it is written as one offset and one extent, so that "none" can be told from "it". */
static int tensor_read(uint32_t rank, const Ptc__V1__RankTensor *t, struct ptc_declared_tensor *ret,
		       struct ptc_error *err)
{
	size_t per_box = t->n_shape ? t->n_shape : 1;
	int rc = ptc_name_check_tensor(t->name, err);

	if (rc) {
		ptc_error_wrap(err, "rank %u", rank);
		return rc;
	}
	*ret = (struct ptc_declared_tensor){ .name = t->name,
					     .ndim = (uint32_t)t->n_shape,
					     .shape = t->shape,
					     .tied = t->tied,
					     .nboxes = t->n_offsets / per_box,
					     .off = t->offsets,
					     .ext = t->extents };
	if (!ptc_dtype_parse(t->dtype, &ret->dtype))
		return ptc_error_set(err, PTC_ELAYOUT,
				     "tensor \"%.300s\": rank %u declares the unknown dtype \"%.40s\"", t->name, rank,
				     t->dtype);
	if (t->n_shape > PTC_MAX_DIMS)
		return ptc_error_set(err, PTC_ELIMIT, "tensor \"%.300s\": rank %u declares %zu dims, which is too many",
				     t->name, rank, t->n_shape);
	if (t->n_offsets % per_box || t->n_extents != t->n_offsets)
		return ptc_error_set(err, PTC_EINVAL,
				     "tensor \"%.300s\": rank %u sent %zu offsets, %zu extents for %zu dims", t->name,
				     rank, t->n_offsets, t->n_extents, t->n_shape);
	if (!t->n_shape && t->n_offsets == 1 && (t->offsets[0] != 0 || t->extents[0] != 1))
		return ptc_error_set(
			err, PTC_EINVAL,
			"tensor \"%.300s\": rank %u sent a scalar whose box is not at offset 0 with extent 1", t->name,
			rank);
	return 0;
}

int ptc_agent_declared_add(struct ptc_declared_merge *m, const struct Ptc__V1__RankLayout *rank, struct ptc_error *err)
{
	struct ptc_declared_tensor *v = NULL;
	int rc = 0;

	if (rank->n_tensors > PTC_MAX_TENSORS)
		return ptc_error_set(err, PTC_ELIMIT, "rank %u declares %zu tensors, which is too many", rank->rank,
				     rank->n_tensors);
	v = ptc_calloc(rank->n_tensors ? rank->n_tensors : 1, sizeof *v);
	if (!v)
		return ptc_nomem(err);
	for (size_t i = 0; !rc && i < rank->n_tensors; i++)
		rc = tensor_read(rank->rank, rank->tensors[i], &v[i], err);
	if (rc == 0)
		rc = ptc_declared_merge_add(m, rank->rank, v, rank->n_tensors, err);
	ptc_free(v);
	return rc;
}

int ptc_agent_state_add(struct ptc_state *s, const struct ptc_config *config, const struct Ptc__V1__RankState *rank,
			struct ptc_error *err)
{
	struct ptc_state_blob *blobs;
	struct ptc_state_cursor *cursors;
	int rc;

	if (rank->n_blobs > PTC_STATE_BLOBS || rank->n_cursors > PTC_STATE_CURSORS)
		return ptc_error_set(err, PTC_ELIMIT,
				     "rank %u has %zu blobs and %zu cursors; at most %d and %d are possible",
				     rank->rank, rank->n_blobs, rank->n_cursors, PTC_STATE_BLOBS, PTC_STATE_CURSORS);
	blobs = ptc_calloc(PTC_STATE_BLOBS, sizeof *blobs);
	cursors = ptc_calloc(PTC_STATE_CURSORS, sizeof *cursors);
	rc = blobs && cursors ? 0 : ptc_nomem(err);
	for (size_t i = 0; !rc && i < rank->n_blobs; i++)
		blobs[i] = (struct ptc_state_blob){ rank->blobs[i]->name, rank->blobs[i]->scope,
						    rank->blobs[i]->data.data, rank->blobs[i]->data.len };
	for (size_t i = 0; !rc && i < rank->n_cursors; i++)
		cursors[i] = (struct ptc_state_cursor){ rank->cursors[i]->name, rank->cursors[i]->tag,
							rank->cursors[i]->position, 0 };
	if (rc == 0)
		rc = ptc_state_add(s, config, rank->rank, blobs, rank->n_blobs, cursors, rank->n_cursors, err);
	ptc_free(blobs);
	ptc_free(cursors);
	return rc;
}
