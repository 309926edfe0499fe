/* SPDX-License-Identifier: Apache-2.0 */
/* What running ranks have declared, instead of rules: which boxes of which
 * tensors each rank holds. Ranks that hold the same share a class. A layout
 * made of it works wherever one made of rules does (reshard/layout/layout.h). Pure.
 *
 * Happy path: one merge, every rank added in any order, finish; then the
 * result is written down (formats/state/layout_doc.h), and every daemon makes the
 * same layout of it. Equal declarations give an equal result, whatever the
 * order they came in.
 *
 * Failure modes, all naming tensor and ranks: two ranks that contradict each
 * other about dtype or shape, boxes out of range, overlapping on one rank or
 * not on whole bytes, elements that no rank holds, a name on two pipeline
 * stages that somebody has not declared tied (PTC_ELAYOUT); limits
 * (PTC_ELIMIT); malformed input (PTC_EINVAL). */
#pragma once

#include "reshard/layout/layout.h"

/* One tensor's boxes in a class. */
struct ptc_declared_part {
	uint32_t tensor; /* index into spec.tensors */
	uint32_t nboxes; /* 0: the name exists on the rank, and it holds nothing of it */
	size_t first;    /* where its boxes begin in the class's v */
};
struct ptc_declared_class {
	struct ptc_declared_part *parts; /* by tensor, each at most once */
	size_t nparts;
	int64_t *v; /* per box: ndim offsets, ndim extents; boxes of a part disjoint, row-major by offset */
	size_t nv;
};
struct ptc_declared {
	struct ptc_spec spec; /* tensors in name order ("NAME", "NAME:FIELD"); no fields, no rules, no job name */
	struct ptc_config config;
	struct ptc_declared_class *classes; /* numbered by the lowest rank that has them */
	size_t nclasses;
	uint32_t *ranks; /* rank -> class */
	uint32_t world;
};
void ptc_declared_done(struct ptc_declared *d); /* NULL ok; zeroes it */
/* Box k of a part. */
struct ptc_box ptc_declared_box(const struct ptc_declared *d, const struct ptc_declared_class *c,
				const struct ptc_declared_part *p, uint32_t k);
/* Everything stated above, for one that came from outside (a document). */
int ptc_declared_check(const struct ptc_declared *d, struct ptc_error *err);

/* d has passed ptc_declared_check, and must outlive the layout, which borrows its spec. A rank's local tensor
 * (ptc_layout_local_shape): of one box, its extents; of several, these one after the other as one dim; of none, one dim
 * of 0; a name the rank has not declared: none. */
int ptc_layout_declared_new(const struct ptc_declared *d, struct ptc_layout **ret_layout, struct ptc_error *err);

/* ---- merging ---- */

/* What one rank says of one tensor. Borrowed during the call. */
struct ptc_declared_tensor {
	const char *name;
	enum ptc_dtype dtype;
	uint32_t ndim;
	const int64_t *shape; /* global */
	bool tied;
	size_t nboxes;
	const int64_t *off, *ext; /* ndim per box, one box after the other; a scalar's one box has none */
};
struct ptc_declared_merge;
int ptc_declared_merge_new(const struct ptc_config *config, struct ptc_declared_merge **ret_merge,
			   struct ptc_error *err);
/* Tensors in any order. Memory grows with distinct classes, not with ranks. The same again is fine. */
int ptc_declared_merge_add(struct ptc_declared_merge *m, uint32_t rank, const struct ptc_declared_tensor *tensors,
			   size_t ntensors, struct ptc_error *err);
/* Every rank was added, and the whole fits together. Uses m up, but for ptc_declared_merge_free. */
int ptc_declared_merge_finish(struct ptc_declared_merge *m, struct ptc_declared *ret_declared, struct ptc_error *err);
struct ptc_declared_merge *ptc_declared_merge_free(struct ptc_declared_merge *m); /* NULL ok */

/* Two specs describe the same state: same names, dtypes and shapes. PTC_ELAYOUT naming the first tensors that are
 * missing, new or different. what: whose declarations `now` is, e.g. "configuration tp=2". */
int ptc_declared_same(const struct ptc_spec *before, const struct ptc_spec *now, const char *what,
		      struct ptc_error *err);
