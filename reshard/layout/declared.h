/* SPDX-License-Identifier: Apache-2.0 */
/* A layout that running ranks declare, instead of one from rules: each rank says which boxes of which tensors it holds.
 * Ranks that hold the same boxes share a class. A declared layout works wherever a layout from rules does
 * (reshard/layout/layout.h). Pure.
 *
 * Happy path: make one merge, add every rank in any order, and finish. The result is written as a document
 * (formats/state/layout_doc.h), from which every daemon makes the same layout. Equal declarations give equal results,
 * whatever their order.
 *
 * Failure modes; each message names the tensor and the ranks:
 * - PTC_ELAYOUT: two ranks contradict each other about dtype or shape
 * - PTC_ELAYOUT: boxes are out of range, overlap on one rank, or do not fall on whole bytes
 * - PTC_ELAYOUT: no rank holds some elements
 * - PTC_ELAYOUT: a name is on two pipeline stages, and a rank did not declare it tied
 * - PTC_ELIMIT: a limit is exceeded; PTC_EINVAL: the input is malformed */
#pragma once

#include "reshard/layout/layout.h"

/* One tensor's boxes in a class. */
struct ptc_declared_part {
	uint32_t tensor; /* index into spec.tensors */
	uint32_t nboxes; /* 0: the rank declared the name and holds no element of it */
	size_t first;    /* where the part's boxes begin in the class's v */
};
struct ptc_declared_class {
	struct ptc_declared_part *parts; /* by tensor; each tensor at most once */
	size_t nparts;
	/* per box: ndim offsets, then ndim extents. The boxes of a part are disjoint, row-major by offset */
	int64_t *v;
	size_t nv;
};
struct ptc_declared {
	struct ptc_spec spec; /* tensors in name order ("NAME", "NAME:FIELD"); no fields, no rules, no job name */
	struct ptc_config config;
	struct ptc_declared_class *classes; /* in the order of the lowest ranks that have them */
	size_t nclasses;
	uint32_t *ranks; /* rank -> class */
	uint32_t world;
};
void ptc_declared_done(struct ptc_declared *d); /* NULL ok; zeroes it */
/* Box k of a part. */
struct ptc_box ptc_declared_box(const struct ptc_declared *d, const struct ptc_declared_class *c,
				const struct ptc_declared_part *p, uint32_t k);
/* Checks all rules above. Use it for a declared layout that came from outside (a document). */
int ptc_declared_check(const struct ptc_declared *d, struct ptc_error *err);

/* Makes a layout of d, which has passed ptc_declared_check. The layout borrows d's spec, so d must outlive it.
 * ptc_layout_local_shape gives, for a rank that holds one box of the item: the box's extents; several boxes: one dim
 * with all elements, box after box; no box: one dim of 0. It gives false for a name that the rank has not declared. */
int ptc_layout_declared_new(const struct ptc_declared *d, struct ptc_layout **ret_layout, struct ptc_error *err);

/* ---- merging ---- */

/* One rank's declaration of one tensor. Borrowed during the call. */
struct ptc_declared_tensor {
	const char *name;
	enum ptc_dtype dtype;
	uint32_t ndim;
	const int64_t *shape; /* global */
	bool tied;
	size_t nboxes;
	const int64_t *off, *ext; /* ndim numbers per box, box after box; a scalar's one box has none */
};
struct ptc_declared_merge;
int ptc_declared_merge_new(const struct ptc_config *config, struct ptc_declared_merge **ret_merge,
			   struct ptc_error *err);
/* Adds a rank's declarations, in any order of tensors. Memory grows with the number of classes, not of ranks. Adding a
 * rank's same declarations again is fine. */
int ptc_declared_merge_add(struct ptc_declared_merge *m, uint32_t rank, const struct ptc_declared_tensor *tensors,
			   size_t ntensors, struct ptc_error *err);
/* Whether two ranks that were added hold the same boxes of the same tensors. */
bool ptc_declared_merge_alike(const struct ptc_declared_merge *m, uint32_t a, uint32_t b);
/* Adds a rank that holds the same boxes as rank `like` of the same pipeline stage, which was added before. */
int ptc_declared_merge_like(struct ptc_declared_merge *m, uint32_t rank, uint32_t like, struct ptc_error *err);
/* Checks that every rank was added and that the declarations fit together, and gives the result. Afterwards m can only
 * be freed. */
int ptc_declared_merge_finish(struct ptc_declared_merge *m, struct ptc_declared *ret_declared, struct ptc_error *err);
struct ptc_declared_merge *ptc_declared_merge_free(struct ptc_declared_merge *m); /* NULL ok */

/* Whether two layouts of the same configuration differ. text: the difference in the first such tensor by name.
 */
bool ptc_declared_differ(const struct ptc_declared *was, const struct ptc_declared *now, char *text, size_t size);
/* Checks that two specs describe the same state: the same names, dtypes and shapes. PTC_ELAYOUT: the message names the
 * first tensors that are missing, new or different. `what` says whose declarations `now` is, e.g. "configuration tp=2".
 */
int ptc_declared_same(const struct ptc_spec *before, const struct ptc_spec *now, const char *what,
		      struct ptc_error *err);
