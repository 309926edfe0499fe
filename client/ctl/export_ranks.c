// SPDX-License-Identifier: Apache-2.0
/* What each rank holds, from that rank's own node: one file per rank and
 * field, canonical header, padding as zeros. Failure: PTC_EPEER where a node
 * sends another number of bytes than the layout says (export_read.c). */
#include "client/ctl/export.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys.h"
#include "reshard/layout.h"

#include <inttypes.h>
#include <string.h>

/* The rank's local tensors of a field. */
static size_t local_tensors(const struct ctl_export *ex, const struct ptc_layout *layout, uint32_t rank, size_t field,
			    struct ptc_tensor *tensors, uint32_t *items, uint64_t *bytes)
{
	const struct ptc_spec *spec = &ex->desc.spec;
	size_t n = 0;

	for (size_t t = 0; t < spec->ntensors; t++) {
		uint32_t item = (uint32_t)(t * (1 + spec->nfields) + field);
		struct ptc_local_shape local;
		struct ptc_box whole;

		if (!ptc_layout_local_shape(layout, rank, item, &local))
			continue;
		tensors[n] = (struct ptc_tensor){ .name = spec->tensors[t].name,
						  .dtype = ptc_item_dtype(spec, item),
						  .ndim = local.ndim };
		memcpy(tensors[n].shape, local.shape, sizeof(local.shape));
		whole = ptc_box_whole(local.ndim, local.shape);
		bytes[n] = (uint64_t)ptc_box_volume(&whole) * ptc_dtype_bits(tensors[n].dtype) / 8;
		items[n++] = item;
	}
	return n;
}

static char *rank_path(const struct ctl_export *ex, const char *dir, uint32_t rank, size_t field)
{
	return ptc_asprintf("%s/rank-%" PRIu32 ".%s.safetensors", dir, rank, ctl_export_field_name(ex, field));
}

static int export_rank(struct ctl_export *ex, const struct ptc_layout *layout, uint32_t rank, size_t field,
		       const char *dir, struct ptc_error *err)
{
	size_t room = PTC_MAX(ex->desc.spec.ntensors, 1);
	ptc_auto_free struct ptc_tensor *tensors = ptc_calloc(room, sizeof(*tensors));
	ptc_auto_free uint32_t *items = ptc_calloc(room, sizeof(*items));
	ptc_auto_free uint64_t *bytes = ptc_calloc(room, sizeof(*bytes));
	ptc_auto_free char *path = rank_path(ex, dir, rank, field);
	struct ctl_source src = { .items = items, .bytes = bytes, .ranked = true, .rank = rank };
	struct ptc_buf b = PTC_BUF_INIT;
	int rc;

	if (!tensors || !items || !bytes || !path)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	src.n = local_tensors(ex, layout, rank, field, tensors, items, bytes);
	rc = ptc_st_write(&b, tensors, src.n, NULL, 0, err);
	if (!rc)
		rc = ctl_export_write(ex, path, b.data, b.len, &src, err);
	ptc_buf_done(&b);
	return rc;
}

/* An earlier attempt read a generation with more ranks: its files must not stay beside those of another. */
static int remove_surplus(struct ctl_export *ex, uint32_t world, const char *dir, struct ptc_error *err)
{
	int rc = 0;

	for (uint32_t rank = world; rank < ex->written_ranks && !rc; rank++)
		for (size_t f = 0; f <= ex->desc.spec.nfields && !rc; f++) {
			ptc_auto_free char *path = rank_path(ex, dir, rank, f);

			rc = path ? ptc_sys_unlink(path, "export.discard", err)
				  : ptc_error_set(err, PTC_ENOMEM, "out of memory");
		}
	ex->written_ranks = 0;
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
	rc = remove_surplus(ex, ptc_layout_world(layout), dir, err);
	for (uint32_t rank = 0; rank < ptc_layout_world(layout) && !rc; rank++)
		for (size_t f = 0; f <= ex->desc.spec.nfields && !rc; f++)
			rc = export_rank(ex, layout, rank, f, dir, err);
	ptc_layout_free(layout);
	return rc;
}
