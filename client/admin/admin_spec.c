/* SPDX-License-Identifier: Apache-2.0 */
/* Job descriptions and layouts for programs: handles that count their users, around formats/job and reshard/layout.
 * Happy path: read, lint, lay out, walk regions. Failure: what these rooms say, unchanged. */
#include "client/admin/offline_handles.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "client/admin/internal.h"
#include "reshard/spec/lint.h"

#include <string.h>

_Static_assert(PTC_ADMIN_DIMS_MAX == PTC_MAX_DIMS, "boxes are copied dim by dim");

/* ---- a description ---- */

static int check_tensors(const struct ptc_job_desc *job, struct ptc_error *err)
{
	return job->spec.ntensors ? ptc_spec_lint(&job->spec, err) : 0;
}

static int new_spec(struct ptc_admin_spec **ret_spec, struct ptc_error *err)
{
	struct ptc_admin_spec *s = ptc_calloc(1, sizeof *s);

	if (!s)
		return ptc_nomem(err);
	atomic_init(&s->users, 1);
	*ret_spec = s;
	return 0;
}

int ptc_admin_spec_read(const char *path, const struct ptc_admin_spec_opts *given, struct ptc_admin_spec **ret_spec,
			struct ptc_error *err)
{
	struct ptc_admin_spec_opts opts = { .size = sizeof opts };
	struct ptc_admin_spec *s = NULL;
	int rc = given ? PTC_ADMIN_TAKE(spec_opts, given, &opts, err) : 0;

	if (!rc && !path)
		rc = ptc_error_set(err, PTC_EINVAL, "the path of the job's file is missing");
	if (rc == 0)
		rc = new_spec(&s, err);
	if (rc == 0)
		rc = ptc_job_read(path, opts.rules_path ? opts.rules_path : "", &s->job, err);
	if (rc == 0)
		rc = check_tensors(&s->job, err);
	if (!rc && opts.cwd)
		rc = ptc_job_resolve_run(&s->job, opts.cwd, opts.environment, err);
	if (rc) {
		ptc_admin_spec_free(s);
		return rc;
	}
	*ret_spec = s;
	return 0;
}

int ptc_admin_spec_from_json(const void *json, size_t len, struct ptc_admin_spec **ret_spec, struct ptc_error *err)
{
	struct ptc_admin_spec *s = NULL;
	int rc = new_spec(&s, err);

	if (rc == 0)
		rc = ptc_job_from_json(json, len, &s->job, err);
	if (rc == 0)
		rc = check_tensors(&s->job, err);
	if (rc) {
		ptc_admin_spec_free(s);
		return rc;
	}
	*ret_spec = s;
	return 0;
}

struct ptc_admin_spec *ptc_admin_spec_free(struct ptc_admin_spec *spec)
{
	if (spec && atomic_fetch_sub(&spec->users, 1) == 1) {
		ptc_job_desc_done(&spec->job);
		ptc_free(spec);
	}
	return NULL;
}

int ptc_admin_spec_json(const struct ptc_admin_spec *spec, char **ret_json, size_t *ret_len, struct ptc_error *err)
{
	return ptc_job_to_json(&spec->job, ret_json, ret_len, err);
}

const char *ptc_admin_spec_name(const struct ptc_admin_spec *spec)
{
	return spec->job.spec.name;
}

int ptc_admin_spec_config(const struct ptc_admin_spec *spec, uint32_t gpus, char **ret_config, struct ptc_error *err)
{
	const struct ptc_config *config = ptc_job_config_for(&spec->job, gpus);
	ptc_auto_free char *text = config ? ptc_malloc(PTC_CONFIG_TEXT_MAX) : NULL;

	if (!config)
		return ptc_error_set(err, PTC_ENOTFOUND, "job %s has no configuration for %u devices in its table",
				     spec->job.spec.name, gpus);
	if (!text)
		return ptc_nomem(err);
	if (ptc_config_format(config, text, PTC_CONFIG_TEXT_MAX))
		return ptc_error_set(err, PTC_ELIMIT, "the configuration is too long to print");
	*ret_config = text;
	text = NULL;
	return 0;
}

uint32_t ptc_admin_spec_items(const struct ptc_admin_spec *spec)
{
	return (uint32_t)ptc_spec_items(&spec->job.spec);
}

int ptc_admin_spec_item(const struct ptc_admin_spec *spec, uint32_t item, struct ptc_admin_item *ret_item,
			struct ptc_error *err)
{
	const struct ptc_spec *s = &spec->job.spec;
	struct ptc_admin_item it = { .size = sizeof it };
	const struct ptc_tensor *t;
	size_t field;

	if (item >= ptc_spec_items(s))
		return ptc_error_set(err, PTC_EINVAL, "job %s has no item %u: it has %zu items", s->name, item,
				     ptc_spec_items(s));
	t = &s->tensors[item / (1 + s->nfields)];
	field = item % (1 + s->nfields);
	it.tensor = t->name;
	it.field = field ? s->fields[field - 1].name : "param";
	it.dtype = ptc_dtype_name(ptc_item_dtype(s, item));
	it.ndim = t->ndim;
	memcpy(it.shape, t->shape, t->ndim * sizeof(t->shape[0]));
	it.bytes = (uint64_t)ptc_item_bytes(s, item);
	return PTC_ADMIN_GIVE(item, ret_item, &it, err);
}

/* ---- a layout ---- */

int ptc_admin_layout_new(struct ptc_admin_spec *spec, const char *config, struct ptc_admin_layout **ret_layout,
			 struct ptc_error *err)
{
	struct ptc_admin_layout *l;
	struct ptc_config parsed;
	int rc;

	if (!spec->job.spec.ntensors)
		return ptc_error_set(err, PTC_ELAYOUT,
				     "job %s has no tensors; those of a live job are known once its ranks declare them",
				     spec->job.spec.name);
	rc = config ? ptc_config_parse(config, &parsed, err)
		    : ptc_error_set(err, PTC_EINVAL, "the configuration is missing, e.g. \"tp=2\"");
	if (rc)
		return rc;
	l = ptc_calloc(1, sizeof *l);
	if (!l)
		return ptc_nomem(err);
	rc = ptc_layout_new(&spec->job.spec, &parsed, &l->layout, err);
	if (rc) {
		ptc_free(l);
		return rc;
	}
	atomic_init(&l->users, 1);
	atomic_fetch_add(&spec->users, 1);
	l->spec = spec;
	*ret_layout = l;
	return 0;
}

struct ptc_admin_layout *ptc_admin_layout_free(struct ptc_admin_layout *l)
{
	if (l && atomic_fetch_sub(&l->users, 1) == 1) {
		ptc_layout_free(l->layout);
		ptc_admin_spec_free(l->spec);
		ptc_free(l);
	}
	return NULL;
}

uint32_t ptc_admin_layout_world(const struct ptc_admin_layout *layout)
{
	return ptc_layout_world(layout->layout);
}

static struct ptc_admin_region region_of(const struct ptc_region *r)
{
	struct ptc_admin_region out = { .size = sizeof out,
					.item = r->item,
					.ndim = r->box.ndim,
					.buffer_offset = r->buf_off,
					.padding = r->padding };

	for (uint32_t d = 0; d < r->box.ndim; d++) {
		out.offset[d] = r->box.off[d];
		out.extent[d] = r->box.ext[d];
		out.buffer_stride[d] = r->buf_stride[d];
	}
	return out;
}

int ptc_admin_layout_rank(const struct ptc_admin_layout *layout, uint32_t rank, ptc_admin_region_fn fn, void *arg,
			  struct ptc_error *err)
{
	struct ptc_rank_layout regions = { 0 };
	uint32_t world = ptc_layout_world(layout->layout);
	int rc;

	if (rank >= world)
		return ptc_error_set(err, PTC_EINVAL, "there is no rank %u, the configuration has ranks 0 to %u", rank,
				     world - 1);
	rc = ptc_layout_rank(layout->layout, rank, &regions, err);
	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < regions.nregions; i++) {
		struct ptc_admin_region region = region_of(&regions.regions[i]);

		rc = fn(arg, &region);
		if (rc)
			ptc_error_set(err, rc, "the callback ended the walk at item %u", region.item);
	}
	ptc_rank_layout_done(&regions);
	return rc;
}
