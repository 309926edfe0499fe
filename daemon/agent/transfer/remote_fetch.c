/* SPDX-License-Identifier: Apache-2.0 */
/* Fetching replicas that count from the nodes that have them, into extents or to a callback.
 *
 * Happy path: one transfer. Each part has exactly one source, and this node asks it until it has captured the part.
 * Failure modes: those of a transfer (transfer.c). */
#include "daemon/agent/transfer/remote_primary.h"

#include "base/check.h"

#define REMOTE_WAIT_MS 600000

int ptc_remote_ask(const struct ptc_remote_fetch *f, const struct ptc_parts *regions, size_t i, uint32_t node,
		   struct ptc_parts *parts, struct ptc_error *err)
{
	size_t end = i + 1 < regions->n ? regions->v[i + 1].to : f->n;
	int rc = 0;

	for (size_t k = regions->v[i].to; !rc && k < end; k++)
		rc = ptc_parts_push(parts, node, f->boxes[k].item, k, &f->boxes[k].box, err);
	return rc;
}

static int fetch_begin(void *arg, unsigned thread, const struct ptc_part *part, struct ptc_transfer_dst *ret,
		       struct ptc_error *err)
{
	const struct ptc_remote_fetch *job = arg;
	int64_t bytes = ptc_box_volume(&part->box);

	ret->outer = part->box;
	if (!job->take)
		return ptc_extent_spans(job->table, job->extents[part->to], part->item, &part->box, ret->iov,
					PTC_ARRAY_LEN(ret->iov), &ret->niov, err);
	ret->iov[0] = (struct iovec){ ret->scratch, (size_t)bytes };
	ret->niov = 1;
	return ptc_fails(bytes <= PTC_REMOTE_TAKE_BYTES)
		       ? ptc_error_set(err, PTC_EINTERNAL, "a box of item %u is too large", part->item)
		       : 0;
}

static int fetch_end(void *arg, const struct ptc_part *part, const struct ptc_transfer_dst *dst, struct ptc_error *err)
{
	const struct ptc_remote_fetch *job = arg;

	return job->take ? job->take(job->take_arg, part, dst->scratch, err) : 0;
}

int ptc_remote_fetch(const struct ptc_remote_fetch *job, struct ptc_parts *parts, struct ptc_error *err)
{
	static const struct ptc_transfer_to to = { .begin = fetch_begin, .end = fetch_end };
	struct ptc_transfer t = { .agent = job->agent,
				  .g = job->g,
				  .snapshot = job->snapshot,
				  .begun = true,
				  .self = job->self,
				  .threads = 1, /* boxes that are taken go to one place */
				  .scratch_bytes = job->take ? PTC_REMOTE_TAKE_BYTES : 0,
				  .wait_ms = REMOTE_WAIT_MS,
				  .to = &to,
				  .arg = (void *)(uintptr_t)job,
				  .stop = job->stop,
				  .tick = job->tick,
				  .owner = job->owner,
				  .what = "the fetch of replicas that count",
				  .parts = *parts };

	*parts = (struct ptc_parts){ 0 };
	return ptc_transfer_run(&t, err);
}
