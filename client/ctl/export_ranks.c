// SPDX-License-Identifier: Apache-2.0
/* What each rank holds, from that rank's own node: one file per rank and
 * field, canonical header, padding as zeros. Failure: PTC_EPEER where a node
 * sends another number of bytes than the layout says. */
#include "client/ctl/export.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "reshard/layout.h"

#include <inttypes.h>
#include <string.h>

/* The rank's local tensors of a field. */
static size_t local_tensors(const struct ctl_export *ex, const struct ptc_layout *layout, uint32_t rank, size_t field,
			    struct ptc_tensor *tensors, uint32_t *items)
{
	const struct ptc_spec *spec = &ex->desc.spec;
	size_t n = 0;

	for (size_t t = 0; t < spec->ntensors; t++) {
		uint32_t item = (uint32_t)(t * (1 + spec->nfields) + field);
		struct ptc_local_shape local;

		if (!ptc_layout_local_shape(layout, rank, item, &local))
			continue;
		tensors[n] = (struct ptc_tensor){ .name = spec->tensors[t].name,
						  .dtype = ptc_item_dtype(spec, item),
						  .ndim = local.ndim };
		memcpy(tensors[n].shape, local.shape, sizeof(local.shape));
		items[n++] = item;
	}
	return n;
}

static int copy_local(struct ctl_out *out, uint32_t rank, const struct ptc_tensor *t, uint32_t item,
		      struct ptc_error *err)
{
	struct ptc_box whole = ptc_box_whole(t->ndim, t->shape);
	uint64_t want = (uint64_t)ptc_box_volume(&whole) * ptc_dtype_bits(t->dtype) / 8;
	int rc;

	out->bytes = 0;
	if (!want)
		return 0;
	rc = ptc_admin_read_rank(out->ex->c->admin, out->ex->job, &out->ex->info, rank, item, ctl_out_receive, out,
				 err);
	if (!rc && out->bytes != want)
		rc = ptc_error_set(err, PTC_EPEER,
				   "rank %" PRIu32 ", tensor \"%s\": its node sent %" PRIu64 " bytes of %" PRIu64, rank,
				   t->name, out->bytes, want);
	return rc;
}

static int export_rank(struct ctl_export *ex, const struct ptc_layout *layout, uint32_t rank, size_t field,
		       const char *dir, struct ptc_error *err)
{
	size_t room = PTC_MAX(ex->desc.spec.ntensors, 1), n;
	ptc_auto_free struct ptc_tensor *tensors = ptc_calloc(room, sizeof(*tensors));
	ptc_auto_free uint32_t *items = ptc_calloc(room, sizeof(*items));
	ptc_auto_free char *path =
		ptc_asprintf("%s/rank-%" PRIu32 ".%s.safetensors", dir, rank, ctl_export_field_name(ex, field));
	struct ptc_buf b = PTC_BUF_INIT;
	struct ctl_out out = { .fd = -1 };
	int rc;

	if (!tensors || !items || !path)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	n = local_tensors(ex, layout, rank, field, tensors, items);
	rc = ptc_st_write(&b, tensors, n, NULL, 0, err);
	if (!rc)
		rc = ctl_out_open(&out, ex, path, err);
	if (!rc)
		rc = ctl_out_write(&out, b.data, b.len, err);
	for (size_t i = 0; i < n && !rc; i++)
		rc = copy_local(&out, rank, &tensors[i], items[i], err);
	if (!rc)
		rc = ctl_out_publish(&out, err);
	ctl_out_done(&out);
	ptc_buf_done(&b);
	return rc;
}

int ctl_export_ranks(struct ctl_export *ex, const char *dir, struct ptc_error *err)
{
	struct ptc_layout *layout = NULL;
	struct ptc_config config;
	int rc = ptc_config_parse(ex->info.config, &config, err);

	if (!rc)
		rc = ptc_layout_new(&ex->desc.spec, &config, &layout, err);
	if (rc)
		return rc;
	ex->total_bytes = 0; /* replicas and padding make it more than the state; not worth a sum */
	for (uint32_t rank = 0; rank < ptc_layout_world(layout) && !rc; rank++)
		for (size_t f = 0; f <= ex->desc.spec.nfields && !rc; f++)
			rc = export_rank(ex, layout, rank, f, dir, err);
	ptc_layout_free(layout);
	return rc;
}
