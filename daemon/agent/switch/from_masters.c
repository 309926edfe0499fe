/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters that are made from their masters here (state: derive). Happy path: once all other bytes of a table are
 * there, each missing box is read from the master in parts, rounded, and written. When an import is complete, each
 * imported parameter is compared with the rounded master: they must be equal, so that no later switch changes a bit.
 * Before the second commit the digests show once more that no bit has changed.
 *
 * Failure modes: an imported parameter is not the rounded master (PTC_EINVAL naming tensor and element); a master is
 * not here; memory. */
#include "daemon/agent/switch/internal.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"

#include "base/alloc.h"
#include "base/check.h"
#include "reshard/values/derive.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PART_BYTES (256 << 10) /* of the parameter, read and made at once */

struct maker {
	struct ptc_table *table;
	const struct ptc_geometry *g;
	ptc_stop_fn stop;
	void *arg;
	uint8_t *master, *param; /* of a part */
};

static int maker_init(struct maker *m, struct ptc_error *err)
{
	m->master = ptc_malloc(2 * PART_BYTES);
	m->param = ptc_malloc(PART_BYTES);
	if (m->master && m->param)
		return 0;
	ptc_free(m->master);
	ptc_free(m->param);
	return ptc_nomem(err);
}

static void maker_done(struct maker *m)
{
	ptc_free(m->master);
	ptc_free(m->param);
}

static int stopped(const struct maker *m, struct ptc_error *err)
{
	return m->stop(m->arg) ? ptc_error_set(err, PTC_ECANCELED, "the pull was cancelled") : 0;
}

static int make_part(struct maker *m, uint32_t item, const struct ptc_box *part, struct ptc_error *err)
{
	struct ptc_box from;
	uint32_t master;
	int rc = ptc_layout_master_box(m->g->layout, item, part, &from, err);

	if (rc)
		return rc;
	ptc_layout_master(m->g->layout, item, &master);
	rc = ptc_table_read_filled(m->table, master, &from, m->master, err);
	if (rc)
		return rc;
	ptc_derive_bf16(m->master, (size_t)ptc_box_volume(part) / 2, m->master);
	return ptc_table_write(m->table, item, part, m->master, err);
}

static int make_extent(struct maker *m, const struct ptc_store_box *box, uint32_t extent, struct ptc_error *err)
{
	struct ptc_boxes parts = { 0 };
	int rc = stopped(m, err);

	if (!rc && ptc_box_chop(&box->box, PART_BYTES, &parts))
		rc = ptc_nomem(err);
	if (!rc)
		ptc_table_extent_map(m->table, extent);
	for (size_t i = 0; !rc && i < parts.n; i++)
		rc = make_part(m, box->item, &parts.v[i], err);
	ptc_boxes_done(&parts);
	return rc ? rc : ptc_table_filled(m->table, extent, err);
}

int ptc_derived_make(struct ptc_table *table, const struct ptc_geometry *g, const struct ptc_fill *fill,
		     ptc_stop_fn stop, void *arg, struct ptc_error *err)
{
	struct maker m = { .table = table, .g = g, .stop = stop, .arg = arg };
	int rc = maker_init(&m, err);

	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < fill->missing.n; i++)
		rc = make_extent(&m, &fill->missing.v[i], fill->extents[i], err);
	maker_done(&m);
	return rc;
}

/* ---- what an import brought ---- */

/* Element n of a box, as "[3, 5]". */
static const char *element_text(const struct ptc_box *box, int64_t n, char *buf, size_t size)
{
	int64_t at[PTC_MAX_DIMS];
	size_t len = (size_t)snprintf(buf, size, "[");

	for (uint32_t d = box->ndim; d-- > 0; n /= box->ext[d])
		at[d] = box->off[d] + n % box->ext[d];
	for (uint32_t d = 0; d < box->ndim && len < size; d++)
		len += (size_t)snprintf(buf + len, size - len, "%s%" PRId64, d ? ", " : "", at[d]);
	if (len < size)
		snprintf(buf + len, size - len, "]");
	return buf;
}

static int differs(const struct maker *m, uint32_t item, const struct ptc_box *part, struct ptc_error *err)
{
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2], where[24 * PTC_MAX_DIMS];
	struct ptc_box elements;
	uint16_t is, makes;
	int64_t n = 0;

	while (!memcmp(m->param + 2 * n, m->master + 2 * n, 2))
		n++;
	memcpy(&is, m->param + 2 * n, 2);
	memcpy(&makes, m->master + 2 * n, 2);
	ptc_item_elements(m->g->spec, item, part, &elements);
	return ptc_error_set(err, PTC_EINVAL,
			     "\"%.400s\" cannot be derived: element %s is 0x%04x, and its master makes 0x%04x of it; "
			     "leave state derive out of its rule",
			     ptc_geometry_item_name(m->g, item, name, sizeof(name)),
			     element_text(&elements, n, where, sizeof(where)), is, makes);
}

static int check_part(struct maker *m, uint32_t item, uint32_t master, const struct ptc_box *part,
		      struct ptc_error *err)
{
	size_t bytes = (size_t)ptc_box_volume(part);
	struct ptc_box from;
	int rc = ptc_layout_master_box(m->g->layout, item, part, &from, err);

	if (rc == 0)
		rc = ptc_table_read(m->table, master, &from, m->master, err);
	if (rc == 0)
		rc = ptc_table_read(m->table, item, part, m->param, err);
	if (rc)
		return rc;
	ptc_derive_bf16(m->master, bytes / 2, m->master);
	return memcmp(m->param, m->master, bytes) ? differs(m, item, part, err) : 0;
}

/* What of a parameter this box of its master makes; every element of the master that is here is here of the parameter,
 * too. */
static int check_box(struct maker *m, uint32_t item, uint32_t master, const struct ptc_box *box, struct ptc_error *err)
{
	struct ptc_boxes parts = { 0 };
	struct ptc_box elements, bytes;
	int rc = stopped(m, err);

	if (rc)
		return rc;
	ptc_item_elements(m->g->spec, master, box, &elements);
	rc = ptc_item_byte_box(m->g->spec, item, &elements, &bytes, err);
	if (!rc && ptc_box_chop(&bytes, PART_BYTES, &parts))
		rc = ptc_nomem(err);
	for (size_t i = 0; !rc && i < parts.n; i++)
		rc = check_part(m, item, master, &parts.v[i], err);
	ptc_boxes_done(&parts);
	return rc;
}

int ptc_derived_check(struct ptc_table *table, const struct ptc_geometry *g, const struct ptc_needs *needs,
		      ptc_stop_fn stop, void *arg, struct ptc_error *err)
{
	struct maker m = { .table = table, .g = g, .stop = stop, .arg = arg };
	int rc = maker_init(&m, err);

	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < needs->n; i++) {
		const struct ptc_need *need = &needs->v[i];
		uint32_t param = need->item - need->item % (uint32_t)(1 + g->spec->nfields), master;

		if (ptc_layout_master(g->layout, param, &master) && master == need->item && !ptc_box_empty(&need->box))
			rc = check_box(&m, param, master, &need->box, err);
	}
	maker_done(&m);
	return rc;
}
