/* SPDX-License-Identifier: Apache-2.0 */
/* Gather: bytes of items in order, wherever they are.
 *
 * Happy path: a range that lies on this node as a whole is given as it lies in the store. Any other range is cut into
 * windows. So is the rest of a range whose bytes turn out to be strided or damaged. Each window is a transfer
 * (transfer/transfer.h) into memory, from this node's own table and the nodes that have the rest. The next window's
 * requests are sent before the current window is handed to the sink, so that senders read and pack while the sink
 * writes; what they send waits in the transport. Many small ranges make one window: each node is asked once for
 * everything that it has of them. If ranges fall into more pieces than the ticket covers, they are read in several
 * windows, and delivered together. Memory: one window and one scratch buffer, ticketed.
 *
 * Failure modes: those of a transfer; PTC_ECANCELED, if the caller goes while other nodes are asked, or while a ticket
 * is waited for; PTC_ECORRUPT where the bytes of the last replica are damaged; a range outside the
 * item (PTC_EINVAL); the sink's own code. */
#include "daemon/agent/calls/agent_state.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/gateway/gateway.h"
#include "daemon/agent/tables/tables.h"
#include "daemon/agent/transfer/transfer.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/number/search.h"

#include <string.h>

#define GATHER_WINDOW_MAX (8u << 20)
#define GATHER_SCRATCH    (1u << 20)
#define HERE_SPANS        64 /* a message of PTC_BULK_MESSAGE_BYTES lies in four chunks at most, where it is one box */

struct gather {
	struct ptc_transfer transfer;
	struct ptc_table *table; /* NULL: nothing of it here */
	struct ptc_staging *memory;
	uint8_t *data; /* of the window that is completed, until it is delivered */
	uint8_t *scratch;
	uint64_t window; /* most bytes of one */
	/* the window */
	const struct ptc_item_range *ranges;
	size_t nranges, most_pieces;
	uint64_t first; /* where its bytes begin in data */
	struct ptc_boxes boxes;
	int64_t *at; /* where each box begins in data */
	size_t at_cap;
	struct ptc_heal_tries tries; /* of the window's local parts */
};

/* ---- the destination: a window ---- */

/* Boxes, and parts, that are ticketed for many ranges: most are whole items, of one box on one node. */
static size_t most_pieces(size_t ranges)
{
	return PTC_MIN(2 * ranges + 1024, (size_t)PTC_READ_MANY_RANGES);
}

/* PTC_ELIMIT: several ranges, which are then read in several windows. One alone has no more pieces than any read of its
 * item. */
static int check_pieces(const struct gather *ga, struct ptc_error *err)
{
	if (ga->nranges == 1 || PTC_MAX(ga->boxes.n, ga->transfer.parts.n) <= ga->most_pieces)
		return 0;
	return ptc_error_set(err, PTC_ELIMIT, "%zu ranges fall into more than %zu pieces", ga->nranges,
			     ga->most_pieces);
}

/* at: where the range begins in data. */
static int range_plan(struct gather *ga, const struct ptc_item_range *range, int64_t at, struct ptc_error *err)
{
	const int64_t end = at + (int64_t)range->length;
	struct ptc_transfer *t = &ga->transfer;
	const uint32_t turn = (uint32_t)(ga->ranges->offset / GATHER_WINDOW_MAX);
	size_t i = ga->boxes.n;
	int64_t shape[PTC_MAX_DIMS], *places;
	uint32_t ndim;
	int rc = ptc_geometry_shape(t->g, range->item, &ndim, shape, err);

	if (rc)
		return rc;
	rc = ptc_box_from_range(ndim, shape, (int64_t)range->offset, (int64_t)range->length, &ga->boxes);
	if (!rc && ga->at_cap < ga->boxes.n) {
		places = ptc_reallocarray(ga->at, ga->boxes.cap, sizeof *places);
		ga->at = places ? places : ga->at;
		ga->at_cap = places ? ga->boxes.cap : ga->at_cap;
		rc = places ? 0 : PTC_ENOMEM;
	}
	if (rc)
		return ptc_error_set(err, rc, "no memory to cut a range");
	rc = check_pieces(ga, err);
	for (; !rc && i < ga->boxes.n; i++) {
		ga->at[i] = at;
		at += ptc_box_volume(&ga->boxes.v[i]);
		rc = ptc_transfer_cover(t, range->item, i, &ga->boxes.v[i], t->self, turn, err);
		if (rc == 0)
			rc = check_pieces(ga, err);
	}
	if (!rc && ptc_fails(at == end))
		rc = ptc_error_set(err, PTC_EINTERNAL,
				   "internal error: the pieces of a range do not have its %llu bytes",
				   (unsigned long long)range->length);
	return rc;
}

static int window_plan(void *arg, struct ptc_transfer *t, struct ptc_error *err)
{
	struct gather *ga = arg;
	int64_t at = (int64_t)ga->first;
	int rc = 0;

	ga->tries = (struct ptc_heal_tries){ .n = 0 };
	ga->boxes.n = 0;
	for (size_t i = 0; !rc && i < ga->nranges; at += (int64_t)ga->ranges[i++].length)
		rc = range_plan(ga, &ga->ranges[i], at, err);
	return rc;
}

static int part_begin(void *arg, unsigned thread, const struct ptc_part *part, struct ptc_transfer_dst *ret,
		      struct ptc_error *err)
{
	struct gather *ga = arg;

	ret->outer = ga->boxes.v[part->to];
	ret->iov[0] = (struct iovec){ ga->data + ga->at[part->to], (size_t)ptc_box_volume(&ret->outer) };
	ret->niov = 1;
	return 0;
}

static int part_read(struct gather *ga, const struct ptc_part *part, struct ptc_error *err)
{
	uint8_t *base = ga->data + ga->at[part->to];
	const struct ptc_box *outer = &ga->boxes.v[part->to];
	struct ptc_boxes pieces = { 0 };
	struct ptc_runs runs;
	int rc = 0;

	ptc_runs_init(&runs, outer, &part->box, &part->box);
	if (runs.count == 1)
		return ptc_table_read(ga->table, part->item, &part->box, base + runs.a_off, err);
	if (ptc_box_chop(&part->box, GATHER_SCRATCH, &pieces))
		rc = ptc_error_set(err, PTC_ENOMEM, "no memory to cut a box");
	for (size_t i = 0; !rc && i < pieces.n; i++) {
		rc = ptc_table_read(ga->table, part->item, &pieces.v[i], ga->scratch, err);
		if (!rc)
			ptc_box_copy(base, outer, ga->scratch, &pieces.v[i], &pieces.v[i]);
	}
	ptc_boxes_done(&pieces);
	return rc;
}

/* Our own part of the window. Not here, or damaged and not healed: another replica may do. */
static int part_local(void *arg, const struct ptc_part *part, struct ptc_error *err)
{
	struct gather *ga = arg;
	int rc;

	do
		rc = part_read(ga, part, err);
	while (ptc_agent_heals(ga->transfer.agent, ga->transfer.g->uuid, rc, &ga->tries));
	return rc;
}

static int deliver(const struct gather *ga, uint64_t len, ptc_sink_fn sink, void *arg, struct ptc_error *err)
{
	int rc = 0;

	for (uint64_t at = 0; !rc && at < len; at += PTC_BULK_MESSAGE_BYTES)
		rc = sink(arg, ga->data + at, (size_t)PTC_MIN(len - at, (uint64_t)PTC_BULK_MESSAGE_BYTES), err);
	return rc;
}

/* ---- the whole ---- */

bool ptc_caller_gone(void *caller)
{
	return caller && ptc_rpc_call_cancelled(caller);
}

int ptc_item_range_check(const struct ptc_geometry *g, const struct ptc_item_range *range, struct ptc_error *err)
{
	uint64_t bytes;

	if (range->item >= ptc_spec_items(g->spec))
		return ptc_error_set(err, PTC_EINVAL, "there is no item %u; the job has %zu items", range->item,
				     ptc_spec_items(g->spec));
	bytes = (uint64_t)ptc_item_bytes(g->spec, range->item);
	if (range->offset > bytes || range->length > bytes - range->offset)
		return ptc_error_set(err, PTC_EINVAL, "bytes %llu to %llu of item %u exceed its %llu bytes",
				     (unsigned long long)range->offset,
				     (unsigned long long)range->offset + range->length, range->item,
				     (unsigned long long)bytes);
	return 0;
}

/* most: bytes of all ranges. *ret_bytes: so many they are. */
static int gather_init(struct gather *ga, struct ptc_agent *agent, const struct ptc_geometry *g, const char *uuid,
		       uint64_t most, struct ptc_rpc_call *caller, uint64_t *ret_bytes, struct ptc_error *err)
{
	static const struct ptc_transfer_to window = { .plan = window_plan, .begin = part_begin, .local = part_local };
	const size_t piece = sizeof(struct ptc_box) + sizeof(int64_t) + sizeof(struct ptc_part);
	const struct ptc_table_key key = ptc_geometry_key(g);
	struct ptc_transfer *t = &ga->transfer;
	uint64_t bytes = 0;
	int rc = strcmp(uuid, g->uuid)
			 ? ptc_error_set(err, PTC_EINVAL, "the layout is of job %s, but the call is for job %.40s",
					 g->uuid, uuid)
			 : 0;

	for (size_t i = 0; !rc && i < ga->nranges; bytes += ga->ranges[i++].length) {
		rc = ptc_item_range_check(g, &ga->ranges[i], err);
		if (!rc && ga->ranges[i].length > most - bytes)
			rc = ptc_error_set(err, PTC_ELIMIT,
					   "the ranges of one call have more than %llu bytes; ask for fewer",
					   (unsigned long long)most);
	}
	*ret_bytes = rc ? 0 : bytes;
	if (rc || !bytes)
		return rc;
	*t = (struct ptc_transfer){ .agent = agent, .g = g, .snapshot = g->snapshot, .says_damaged = true };
	t->caller = caller;
	t->to = &window;
	t->arg = ga;
	t->usable = ptc_malloc(g->nnodes);
	if (!t->usable)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu nodes", g->nnodes);
	memset(t->usable, true, g->nnodes);
	if (ptc_geometry_node(g, agent->node, &t->self, NULL))
		t->self = UINT32_MAX;
	else if (ptc_agent_table_open(agent, &key, &ga->table, &t->why))
		t->usable[t->self] = false;
	/* with the scratch half of all at most: one client that reads slowly does not keep all others waiting */
	ga->window = PTC_MIN(agent->gate.limit / 2 - GATHER_SCRATCH, (uint64_t)GATHER_WINDOW_MAX);
	ga->window = PTC_MIN(ga->window, bytes);
	rc = ptc_staging_new(&agent->gate,
			     (size_t)(ga->window + PTC_MIN(bytes, (uint64_t)GATHER_SCRATCH)) + ga->most_pieces * piece,
			     ptc_caller_gone, caller, &ga->memory, err);
	if (rc)
		return rc;
	ga->data = ga->memory->data;
	ga->scratch = ga->data + ga->window;
	return 0;
}

static void gather_done(struct gather *ga)
{
	ptc_transfer_done(&ga->transfer);
	ptc_boxes_done(&ga->boxes);
	ptc_free(ga->at);
	ptc_table_unref(ga->table);
	ptc_free(ga->transfer.usable);
	ptc_staging_release(ga->memory);
}

/* ---- what lies here in one run ---- */

struct here {
	struct ptc_rpc_part parts[1 + HERE_SPANS]; /* the first is the taker's */
	size_t n;                                  /* of the others */
};

static void unref_table(void *table)
{
	ptc_table_unref(table);
}

/* Adds a box as it lies in the store, verified. False: it is strided, not here, or damaged. */
static bool here_add(const struct gather *ga, struct here *h, uint32_t item, const struct ptc_box *box)
{
	struct iovec spans[HERE_SPANS];
	int n = 0;

	if (ptc_table_read_iov(ga->table, item, box, spans, (int)(HERE_SPANS - h->n), &n, NULL) != 0)
		return false;
	for (int i = 0; i < n; i++)
		h->parts[++h->n] = (struct ptc_rpc_part){ spans[i].iov_base, spans[i].iov_len, unref_table,
							  ptc_table_ref(ga->table) };
	return n > 0;
}

/* Whether this node has all of the range. Otherwise others had better be asked at once. */
static bool all_here(const struct gather *ga, const struct ptc_item_range *range, uint32_t ndim, const int64_t *shape,
		     struct ptc_boxes *boxes)
{
	if (ptc_box_from_range(ndim, shape, (int64_t)range->offset, (int64_t)range->length, boxes))
		return false;
	for (size_t i = 0; i < boxes->n; i++)
		if (ptc_table_has(ga->table, range->item, &boxes->v[i]) != ptc_box_volume(&boxes->v[i]))
			return false;
	return true;
}

/* Gives the range's first bytes, and takes them off the range, as long as they lie here. The rest is for a transfer,
 * which heals, and asks other nodes. */
static int gather_here(const struct gather *ga, struct ptc_item_range *range, ptc_parts_fn take, void *arg,
		       struct ptc_error *err)
{
	struct ptc_boxes boxes = { 0 };
	int64_t shape[PTC_MAX_DIMS];
	uint32_t ndim;
	bool whole;
	int rc = ptc_geometry_shape(ga->transfer.g, range->item, &ndim, shape, err);

	whole = !rc && all_here(ga, range, ndim, shape, &boxes);
	while (!rc && whole && range->length) {
		const uint64_t len = PTC_MIN(range->length, (uint64_t)PTC_BULK_MESSAGE_BYTES);
		struct here h = { .n = 0 };

		boxes.n = 0;
		if (ptc_box_from_range(ndim, shape, (int64_t)range->offset, (int64_t)len, &boxes))
			rc = ptc_error_set(err, PTC_ENOMEM, "no memory to cut a range");
		for (size_t i = 0; !rc && whole && i < boxes.n; i++)
			whole = here_add(ga, &h, range->item, &boxes.v[i]);
		if (rc || !whole) {
			while (h.n)
				unref_table(h.parts[h.n--].arg);
			break;
		}
		rc = take(arg, h.parts, 1 + h.n, err);
		range->offset += len;
		range->length -= len;
	}
	ptc_boxes_done(&boxes);
	return rc;
}

int ptc_agent_gather(struct ptc_agent *agent, const struct ptc_geometry *g, const char *uuid, uint32_t item,
		     uint64_t offset, uint64_t length, ptc_sink_fn sink, ptc_parts_fn take, void *arg,
		     struct ptc_rpc_call *caller, struct ptc_error *err)
{
	struct ptc_item_range now = { item, offset, length };
	struct gather ga = { .ranges = &now, .nranges = 1 };
	int rc = gather_init(&ga, agent, g, uuid, length, caller, &length, err);

	now.length = length;
	if (!rc && length && take && ga.table)
		rc = gather_here(&ga, &now, take, arg, err);
	now.length = PTC_MIN(now.length, ga.window);
	if (!rc && now.length)
		rc = ptc_transfer_open(&ga.transfer, err);
	while (!rc && now.length) {
		const uint64_t len = now.length;

		rc = ptc_transfer_drain(&ga.transfer, err);
		now.offset += len;
		now.length = PTC_MIN(ga.window, offset + length - now.offset);
		if (!rc && now.length)
			rc = ptc_transfer_open(&ga.transfer, err);
		if (rc == 0)
			rc = deliver(&ga, len, sink, arg, err);
	}
	gather_done(&ga);
	return rc;
}

/* Ranges one after the other, as many at a time as have no more pieces than are ticketed for. */
static int gather_groups(struct gather *ga, const struct ptc_item_range *end, struct ptc_error *err)
{
	int rc = 0;

	while (!rc && ga->ranges < end) {
		struct ptc_error why = PTC_ERROR_INIT;

		ga->nranges = PTC_MIN(ga->nranges, (size_t)(end - ga->ranges));
		rc = ptc_transfer_open(&ga->transfer, &why);
		if (rc == 0)
			rc = ptc_transfer_drain(&ga->transfer, &why);
		if (rc == PTC_ELIMIT && ga->nranges > 1) {
			ga->nranges /= 2;
			rc = 0;
			continue;
		}
		if (rc)
			return ptc_error_set(err, rc, "%s", why.text);
		for (size_t i = 0; i < ga->nranges; i++)
			ga->first += ga->ranges[i].length;
		ga->ranges += ga->nranges;
	}
	return rc;
}

int ptc_agent_gather_many(struct ptc_agent *agent, const struct ptc_geometry *g, const char *uuid,
			  const struct ptc_item_range *ranges, size_t n, uint64_t most, ptc_sink_fn sink, void *arg,
			  struct ptc_rpc_call *caller, struct ptc_error *err)
{
	struct gather ga = { .ranges = ranges, .nranges = n, .most_pieces = most_pieces(n) };
	uint64_t bytes;
	int rc = gather_init(&ga, agent, g, uuid, most, caller, &bytes, err);

	if (!rc && ga.window < bytes)
		rc = ptc_error_set(err, PTC_ELIMIT, "this node has no memory for %llu bytes at once; ask for fewer",
				   (unsigned long long)bytes);
	rc = rc || !bytes ? rc : gather_groups(&ga, ranges + n, err);
	if (rc == 0)
		rc = deliver(&ga, bytes, sink, arg, err);
	gather_done(&ga);
	return rc;
}
