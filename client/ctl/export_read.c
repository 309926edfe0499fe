// SPDX-License-Identifier: Apache-2.0
/* The items of one file, in its order. A read costs a round trip, which for
 * small tensors is nearly all of it, so a few are begun ahead of the one whose
 * bytes are written: at most AHEAD_ITEMS, and small ones only, at most
 * AHEAD_BYTES together; so what waits in the transport has a bound whatever
 * the tensors' sizes. Failure: PTC_EDIGEST or PTC_EPEER naming the tensor. A
 * daemon that has too many calls of this user open refuses one more; then
 * fewer are begun ahead and the item is asked for again, for some seconds. */
#include "client/ctl/export.h"

#include "base/check.h"

#include <inttypes.h>
#include <time.h>

#define AHEAD_ITEMS   16
#define AHEAD_BYTES   (4u << 20)
#define REFUSED_MAX   40  /* times in a row that a read is refused */
#define REFUSED_PAUSE 100 /* ms */

struct ahead {
	struct ctl_export *ex;
	const struct ctl_source *src;
	struct ptc_admin_reading *ring[AHEAD_ITEMS];
	size_t first, next; /* items [first, next) are begun */
	uint64_t bytes;     /* of those */
	size_t most;        /* so many at once */
	int refused;
};

void ctl_pause(int ms)
{
	const struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	nanosleep(&t, NULL);
}

static int begin(struct ahead *a, size_t i, struct ptc_error *err)
{
	const struct ctl_source *src = a->src;
	struct ptc_admin_reading **ret = &a->ring[i % AHEAD_ITEMS];
	struct ctl_export *ex = a->ex;

	if (!src->bytes[i])
		return 0;
	if (src->ranked)
		return ptc_admin_read_rank_begin(ex->c->admin, ex->job, &ex->info, src->rank, src->items[i], ret, err);
	return ptc_admin_read_begin(ex->c->admin, ex->job, &ex->info, src->items[i], 0, src->bytes[i], ret, err);
}

static int begin_more(struct ahead *a, struct ptc_error *err)
{
	int rc = 0;

	while (!rc && a->next < a->src->n && a->next - a->first < a->most) {
		uint64_t bytes = a->src->bytes[a->next];

		if (a->next > a->first && a->bytes + bytes > AHEAD_BYTES)
			break;
		rc = begin(a, a->next, err);
		if (!rc) {
			a->bytes += bytes;
			a->next++;
		}
	}
	return rc;
}

static void drop(struct ahead *a)
{
	for (size_t i = 0; i < AHEAD_ITEMS; i++)
		a->ring[i] = ptc_admin_read_end(a->ring[i]);
	a->next = a->first;
	a->bytes = 0;
}

/* Bytes came as many as they should, and they are what was committed (of a rank's part there is no digest). */
static int check(const struct ahead *a, const struct ctl_out *out, struct ptc_error *err)
{
	const struct ctl_source *src = a->src;
	const struct ptc_spec *spec = &a->ex->desc.spec;
	char text[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	const char *name = ptc_item_name(spec, src->items[a->first], text, sizeof(text));

	if (src->ranked && out->bytes != src->bytes[a->first])
		return ptc_error_set(err, PTC_EPEER,
				     "rank %" PRIu32 ", tensor \"%s\": its node sent %" PRIu64 " bytes of %" PRIu64,
				     src->rank, name, out->bytes, src->bytes[a->first]);
	if (!src->ranked && out->digest != a->ex->info.digests[src->items[a->first]])
		return ptc_error_set(err, PTC_EDIGEST,
				     "tensor \"%s\": digest %016" PRIx64 ", committed was %016" PRIx64, name,
				     out->digest, a->ex->info.digests[src->items[a->first]]);
	return 0;
}

/* The next item into the file. PTC_ELIMIT with out->bytes 0: refused before it began. */
static int take(struct ahead *a, struct ctl_out *out, struct ptc_error *err)
{
	size_t slot = a->first % AHEAD_ITEMS;
	int rc = begin_more(a, err);

	out->digest = 0;
	out->bytes = 0;
	if (!rc && a->ring[slot])
		rc = ptc_admin_read_take(a->ring[slot], ctl_out_receive, out, err);
	if (!rc)
		rc = check(a, out, err);
	if (rc)
		return rc;
	a->ring[slot] = ptc_admin_read_end(a->ring[slot]);
	a->bytes -= a->src->bytes[a->first++];
	a->refused = 0;
	return 0;
}

int ctl_read_items(struct ctl_out *out, const struct ctl_source *src, struct ptc_error *err)
{
	struct ahead a = { .ex = out->ex, .src = src, .most = AHEAD_ITEMS };
	int rc = 0;

	while (!rc && a.first < src->n) {
		rc = take(&a, out, err);
		if (rc != PTC_ELIMIT || out->bytes || a.refused++ == REFUSED_MAX || ctl_interrupted())
			continue;
		drop(&a);
		a.most = PTC_MAX(a.most / 2, (size_t)1);
		ctl_pause(REFUSED_PAUSE);
		rc = 0;
	}
	drop(&a);
	return rc;
}
