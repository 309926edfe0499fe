/* SPDX-License-Identifier: Apache-2.0 */
/* The part of each rank, read from that rank's own node: one file per rank and field, with a canonical header, and
 * padding as zeros. Failure: PTC_EPEER where a node sends another number of bytes than the layout says (export_read.c).
 */
#include "client/ctl/files/export.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "reshard/layout/layout.h"

#include <inttypes.h>
#include <string.h>

static char *rank_path(const struct ctl_export *ex, const char *dir, uint32_t rank, size_t field)
{
	return ptc_asprintf("%s/rank-%" PRIu32 ".%s.safetensors", dir, rank,
			    ptc_state_field_name(&ex->desc.spec, field));
}

static int export_rank(struct ctl_export *ex, const struct ptc_layout *layout, uint32_t rank, size_t field,
		       const char *dir, struct ptc_error *err)
{
	ptc_auto_free char *path = rank_path(ex, dir, rank, field);
	struct ptc_state_file file = { 0 };
	int rc = path ? ptc_state_file_rank(layout, &ex->desc.spec, rank, field, &file, err) : ptc_nomem(err);

	if (!rc)
		rc = ctl_export_write(ex, path, &file, err);
	ptc_state_file_done(&file);
	return rc;
}

/* An earlier attempt read a generation with more ranks: its files must not stay beside those of another. */
static int remove_surplus(struct ctl_export *ex, uint32_t world, const char *dir, struct ptc_error *err)
{
	int rc = 0;

	for (uint32_t rank = world; rank < ex->written_ranks && !rc; rank++)
		for (size_t f = 0; f <= ex->desc.spec.nfields && !rc; f++) {
			ptc_auto_free char *path = rank_path(ex, dir, rank, f);

			rc = path ? ptc_sys_unlink(path, "export.discard", err) : ptc_nomem(err);
		}
	ex->written_ranks = 0;
	return rc;
}

int ctl_export_ranks(struct ctl_export *ex, const char *dir, struct ptc_error *err)
{
	struct ptc_layout *layout = NULL;
	struct ptc_declared declared;
	int rc = ptc_state_layout(&ex->desc.spec, ex->info->config, ex->info->layout_json, ex->info->layout_len,
				  &declared, &layout, err);

	if (rc)
		return rc;
	ex->total_bytes = 0; /* replicas and padding make it more than the state; not worth a sum */
	rc = remove_surplus(ex, ptc_layout_world(layout), dir, err);
	for (uint32_t rank = 0; rank < ptc_layout_world(layout) && !rc; rank++)
		for (size_t f = 0; f <= ex->desc.spec.nfields && !rc; f++)
			rc = export_rank(ex, layout, rank, f, dir, err);
	ptc_layout_free(layout);
	ptc_declared_done(&declared);
	return rc;
}
