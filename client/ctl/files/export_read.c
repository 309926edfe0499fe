/* SPDX-License-Identifier: Apache-2.0 */
/* The items of one file, in its order, each checked as its last byte has come.
 * Failure: PTC_EDIGEST or PTC_EPEER naming the tensor. */
#include "client/ctl/files/export.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <inttypes.h>

struct reader {
	struct ctl_out *out;
	const struct ptc_state_file *file;
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
	uint32_t item = r->file->items[i];
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

int ctl_read_items(struct ctl_out *out, const struct ptc_state_file *file, struct ptc_error *err)
{
	ptc_auto_free struct ptc_admin_range *ranges = ptc_calloc(PTC_MAX(file->n, 1), sizeof *ranges);
	struct reader r = { out, file };
	const struct ptc_admin_ranges_fn fn = {
		.size = sizeof fn, .data = on_data, .end = on_end, .stop = on_wait, .arg = &r
	};
	struct ctl_export *ex = out->ex;

	if (!ranges)
		return ptc_nomem(err);
	for (size_t i = 0; i < file->n; i++)
		ranges[i] = (struct ptc_admin_range){ file->ranked, file->rank, file->items[i], 0, file->bytes[i] };
	out->digest = 0;
	out->bytes = 0;
	return ptc_admin_read_ranges(ex->c->admin, ex->job, ex->info, ranges, file->n, &fn, err);
}
