/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: declaration.h. Tensors are kept by places in growing arrays; pointers are made when
 * they are merged. */
#include "client/ctl/probe/declaration.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/search.h"
#include "proto/local_rules.h"

#include <string.h>

struct ctl_declared_tensor {
	size_t name, first; /* where its name and its numbers begin */
	enum ptc_dtype dtype;
	uint32_t ndim, nboxes;
	bool tied;
	int64_t shape[PTC_LOCAL_DIMS];
};

static int take_name(struct ctl_declaration *d, const struct ptc_local_tensor *t)
{
	size_t name = strlen(t->name), field = strlen(t->field), need = name + field + 2;
	char *at;

	if (!PTC_ROOM(d->names, d->names_len + need, d->names_cap))
		return PTC_ENOMEM;
	at = d->names + d->names_len;
	memcpy(at, t->name, name + 1);
	if (field) {
		at[name] = ':';
		memcpy(at + name + 1, t->field, field + 1);
	}
	d->names_len += field ? need : name + 1;
	return 0;
}

/* Checks the tensor, and keeps the numbers of its boxes. */
static int take_boxes(struct ctl_declaration *d, struct ptc_local_tensor *t, uint32_t bytes, struct ptc_error *err)
{
	ptc_auto_free struct ptc_local_box *boxes = ptc_calloc(t->nboxes + 1, sizeof *boxes);
	size_t numbers = (size_t)t->nboxes * t->ndim;
	const char *what;

	if (!boxes || !PTC_ROOM(d->off, d->nnumbers + numbers, d->off_cap) ||
	    !PTC_ROOM(d->ext, d->nnumbers + numbers, d->ext_cap))
		return ptc_nomem(err);
	what = ptc_local_tensor_error(t, bytes, boxes);
	if (what)
		return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%.200s%s%s\": %s", t->name, *t->field ? ":" : "",
				     t->field, what);
	for (uint32_t i = 0; i < t->nboxes; i++)
		for (uint32_t k = 0; k < t->ndim; k++) {
			d->off[d->nnumbers] = boxes[i].offset[k];
			d->ext[d->nnumbers++] = boxes[i].extent[k];
		}
	return 0;
}

int ctl_declaration_add(struct ctl_declaration *d, const void *message, size_t len, struct ptc_error *err)
{
	struct ctl_declared_tensor new = { .name = d->names_len, .first = d->nnumbers };
	struct ptc_local_tensor t;
	uint32_t bytes;
	int rc;

	if (!ptc_local_get_tensor(message, len, &t))
		return ptc_error_set(err, PTC_EINVAL,
				     "a declaration that cannot be read; is its libptc of this version?");
	d->memory += sizeof new + strlen(t.name) + strlen(t.field) + 2 + 2 * sizeof(int64_t) * t.nboxes *t.ndim;
	if (d->ntensors == PTC_LOCAL_TENSORS_MAX || d->memory > CTL_DECLARATION_BYTES)
		return ptc_error_set(err, PTC_ELIMIT,
				     "tensor \"%.200s\": a rank declares more than %u tensors, or boxes in %u MiB",
				     t.name, PTC_LOCAL_TENSORS_MAX, (unsigned)(CTL_DECLARATION_BYTES >> 20));
	bytes = ptc_dtype_parse(t.dtype, &new.dtype) ? ptc_local_dtype_bytes(t.dtype) : 0;
	rc = take_boxes(d, &t, bytes, err);
	if (rc)
		return rc;
	new.ndim = t.ndim;
	new.nboxes = t.nboxes;
	new.tied = t.flags & 1;
	memcpy(new.shape, t.shape, sizeof new.shape);
	if (take_name(d, &t) || !PTC_ROOM(d->tensors, d->ntensors + 1, d->tensors_cap))
		return ptc_nomem(err);
	d->tensors[d->ntensors++] = new;
	return 0;
}

int ctl_declaration_merge(const struct ctl_declaration *d, struct ptc_declared_merge *m, uint32_t rank,
			  struct ptc_error *err)
{
	ptc_auto_free struct ptc_declared_tensor *v = ptc_calloc(d->ntensors + 1, sizeof *v);

	if (!v)
		return ptc_nomem(err);
	for (size_t i = 0; i < d->ntensors; i++) {
		const struct ctl_declared_tensor *t = &d->tensors[i];

		v[i] = (struct ptc_declared_tensor){ .name = d->names + t->name,
						     .dtype = t->dtype,
						     .ndim = t->ndim,
						     .shape = t->shape,
						     .tied = t->tied,
						     .nboxes = t->nboxes,
						     .off = d->off ? d->off + t->first : NULL,
						     .ext = d->ext ? d->ext + t->first : NULL };
	}
	return ptc_declared_merge_add(m, rank, v, d->ntensors, err);
}

void ctl_declaration_clear(struct ctl_declaration *d)
{
	d->ntensors = d->names_len = d->nnumbers = 0;
	d->memory = 0;
}

void ctl_declaration_done(struct ctl_declaration *d)
{
	ptc_free(d->tensors);
	ptc_free(d->names);
	ptc_free(d->off);
	ptc_free(d->ext);
	memset(d, 0, sizeof *d);
}
