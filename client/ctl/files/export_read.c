/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl export: the items of one file, in its order, each checked as its last byte has come. Large items that lie on
 * the daemon's own node, or on other nodes of this machine (client/ctl/homes), are read in their chunk files, where
 * each block is verified. All others, and whatever cannot be had there, come from the daemon, which also heals what is
 * damaged. Failure: PTC_EDIGEST or PTC_EPEER naming the tensor. */
#include "client/ctl/files/export.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "fusefs/source/chunk_file.h"
#include "fusefs/source/source_admin.h"

#include <inttypes.h>

#define DIRECT_MIN   (64u << 10) /* of an item */
#define DIRECT_BYTES (1u << 20)  /* at once; larger ones leave the processor's cache */
#define NOT_HERE     16          /* items that are not tried after one that lies elsewhere */

struct reader {
	struct ctl_out *out;
	const struct ptc_state_file *file;
	size_t first;    /* item of the call's first range */
	size_t again_at; /* the next item to try directly */
	uint8_t *buf;    /* DIRECT_BYTES; NULL: nothing is read directly */
};

static int on_data(void *arg, size_t i, const void *data, size_t len, struct ptc_error *err)
{
	const struct reader *r = arg;

	return ctl_out_receive(r->out, data, len, err);
}

/* Bytes came as many as they should, and they are what was committed (of a rank's part there is no digest). */
static int on_end(void *arg, size_t i, struct ptc_error *err)
{
	const struct reader *r = arg;
	struct ctl_out *out = r->out;
	const struct ptc_spec *spec = &out->ex->desc.spec;
	uint32_t item = r->file->items[i += r->first];
	char text[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	uint64_t digest = out->digest, bytes = out->bytes;

	out->digest = 0;
	out->bytes = 0;
	if (r->file->ranked && bytes != r->file->bytes[i])
		return ptc_error_set(err, PTC_EPEER,
				     "rank %" PRIu32 ", tensor \"%s\": its node sent %" PRIu64 " bytes of %" PRIu64,
				     r->file->rank, ptc_item_name(spec, item, text, sizeof(text)), bytes,
				     r->file->bytes[i]);
	if (!r->file->ranked && digest != out->ex->info->digests[item])
		return ptc_error_set(err, PTC_EDIGEST,
				     "tensor \"%s\": digest %016" PRIx64 ", committed was %016" PRIx64,
				     ptc_item_name(spec, item, text, sizeof(text)), digest,
				     out->ex->info->digests[item]);
	return 0;
}

static bool on_wait(void *arg)
{
	(void)arg;
	return ctl_interrupted();
}

/* ---- in the chunk file ---- */

static int locate(const struct reader *r, size_t home, uint32_t item, uint64_t offset, uint64_t length,
		  struct ptc_fs_spans **ret)
{
	const struct ctl_export *ex = r->out->ex;
	struct ptc_admin *admin = home ? ctl_homes_admin(ex->homes, home) : ex->c->admin;
	struct ptc_admin_piece piece = { .item = item, .offset = offset, .length = length };
	int rc = ptc_item_byte_shape(&ex->desc.spec, item, &piece.ndim, piece.shape, NULL);

	return rc ? rc : ptc_fs_admin_spans(admin, ex->info, &piece, 1, ret, NULL);
}

/* As much of an item as can be read so: *done bytes of it. Fails only if they cannot be written. */
static int read_direct(struct reader *r, size_t i, uint64_t *done, struct ptc_error *err)
{
	const uint64_t size = r->file->bytes[i];
	struct ctl_placed placed;
	bool here = true;
	int rc = 0;

	ctl_homes_place(r->out->ex->homes, r->file->items[i], &placed);
	while (*done < size && here && !rc) {
		uint64_t length = PTC_MIN(size - *done, (uint64_t)PTC_ADMIN_LOCATE_BYTES);
		const size_t home = ctl_placed_at(&placed, *done, &length);
		struct ptc_fs_spans *spans = NULL;

		here = !locate(r, home, r->file->items[i], *done, length, &spans) && spans->bytes == length;
		for (uint64_t at = 0; at < length && here && !rc;) {
			size_t n = (size_t)PTC_MIN(length - at, (uint64_t)DIRECT_BYTES);

			here = ptc_fs_spans_read(spans, at, r->buf, n);
			rc = here ? ctl_out_receive(r->out, r->buf, n, err) : 0;
			at += n;
			*done += here ? n : 0;
		}
		ptc_fs_spans_unref(spans);
	}
	ctl_placed_done(&placed);
	return rc;
}

/* Only where the layout is known. */
static void find_homes(struct ctl_export *ex)
{
	struct ctl_homes_of of = {
		.c = ex->c, .job = ex->job, .spec = &ex->desc.spec, .ranks_json = ex->info->ranks_json
	};

	ex->homes_sought = true;
	if (!of.ranks_json || (ex->info->declared && !ex->info->layout_len) ||
	    ptc_state_layout(of.spec, ex->info->config, ex->info->layout_json, ex->info->layout_len, &ex->declared,
			     &ex->layout, NULL))
		return;
	of.layout = ex->layout;
	ex->homes = ctl_homes_new(&of);
}

void ctl_export_homes_done(struct ctl_export *ex)
{
	ex->homes = ctl_homes_free(ex->homes);
	ex->layout = ptc_layout_free(ex->layout);
	ptc_declared_done(&ex->declared);
	ex->homes_sought = false;
}

static bool tried_directly(const struct reader *r, size_t i)
{
	return r->buf && i >= r->again_at && !r->file->ranked && r->file->bytes[i] >= DIRECT_MIN;
}

/* The items from i on that are read in one way; *i: the first of the others. */
static int read_some(struct reader *r, struct ptc_admin_range *ranges, const struct ptc_admin_ranges_fn *fn, size_t *i,
		     struct ptc_error *err)
{
	const struct ctl_export *ex = r->out->ex;
	uint64_t done = 0;
	int rc = tried_directly(r, *i) ? read_direct(r, *i, &done, err) : 0;
	bool whole = done && done == ranges[*i].length;

	r->first = *i;
	if (!rc && !whole && tried_directly(r, *i))
		r->again_at = *i + NOT_HERE;
	do
		++*i;
	while (!whole && *i < r->file->n && !tried_directly(r, *i));
	if (rc)
		return rc;
	if (whole)
		return on_end(r, 0, err);
	ranges[r->first].offset = done;
	ranges[r->first].length -= done;
	return ptc_admin_read_ranges(ex->c->admin, ex->job, ex->info, ranges + r->first, *i - r->first, fn, err);
}

int ctl_read_items(struct ctl_out *out, const struct ptc_state_file *file, struct ptc_error *err)
{
	ptc_auto_free struct ptc_admin_range *ranges = ptc_calloc(PTC_MAX(file->n, 1), sizeof *ranges);
	struct reader r = { .out = out, .file = file };
	const struct ptc_admin_ranges_fn fn = {
		.size = sizeof fn, .data = on_data, .end = on_end, .stop = on_wait, .arg = &r
	};
	int rc = 0;

	if (!ranges)
		return ptc_nomem(err);
	if (out->ex->info->uuid && out->ex->info->uuid[0])
		r.buf = ptc_malloc(DIRECT_BYTES);
	if (r.buf && !file->ranked && !out->ex->homes_sought && out->ex->total_bytes >= CTL_HOMES_RUN)
		find_homes(out->ex);
	for (size_t i = 0; i < file->n; i++)
		ranges[i] = (struct ptc_admin_range){ file->ranked, file->rank, file->items[i], 0, file->bytes[i] };
	out->digest = 0;
	out->bytes = 0;
	for (size_t i = 0; i < file->n && !rc;)
		rc = read_some(&r, ranges, &fn, &i, err);
	ptc_free(r.buf);
	return rc;
}
