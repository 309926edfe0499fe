/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of a damaged block from other nodes, and digests of what lies around them. Happy path: each part is covered by
 * boxes that nodes hold; each node is asked once for all of its boxes. Received bytes are not trusted: the caller
 * compares checksums or digests. Failure modes: a node does not answer in time, or refuses: it is not asked again for
 * this block, and other nodes are asked for its boxes; memory (nothing is put). */
#include "daemon/agent/healing/heal.h"

#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/tables/tables.h"
#include "daemon/agent/transfer/transfer.h"
#include "daemon/store/store_read.h"
#include "daemon/store/store_table.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

#define SOURCE_TIMEOUT_MS 10000
#define UNMARKED_MAX      4 /* a source may have healed itself since it refused */
#define DIGEST_BOX_BYTES  (256 << 10)
#define DIGEST_ASK_BOXES  256 /* asked for together: at most PTC_AGENT_REQUEST_BYTES */

int ptc_block_source_init(struct ptc_block_source *s, struct ptc_error *err)
{
	s->parts = ptc_block_parts(s->block, &s->nparts);
	s->bytes = ptc_calloc(s->nparts + 1, sizeof *s->bytes);
	s->whole = ptc_calloc(s->nparts + 1, sizeof *s->whole);
	s->usable = ptc_calloc(s->g->nnodes + 1, sizeof *s->usable);
	s->damaged = ptc_calloc(s->nparts * s->g->nnodes + 1, sizeof *s->damaged);
	if (!s->bytes || !s->whole || !s->usable || !s->damaged)
		return ptc_error_set(err, PTC_ENOMEM, "no memory to heal a block");
	for (size_t i = 0; i < s->nparts; i++) {
		s->bytes[i] = ptc_malloc((size_t)ptc_box_volume(&s->parts[i].box));
		if (!s->bytes[i])
			return ptc_error_set(err, PTC_ENOMEM, "no memory to heal a block");
	}
	for (size_t i = 0; i < s->g->nnodes; i++)
		s->usable[i] = strcmp(s->g->nodes[i], s->agent->node) != 0;
	return 0;
}

void ptc_block_source_done(struct ptc_block_source *s)
{
	for (size_t i = 0; s->bytes && i < s->nparts; i++)
		ptc_free(s->bytes[i]);
	ptc_free(s->bytes);
	ptc_free(s->whole);
	ptc_free(s->usable);
	ptc_free(s->damaged);
}

/* ---- asking one node ---- */

struct ask {
	struct ptc_block_source *s;
	const struct ptc_part *parts; /* all of one node; `to` is the asker's */
	size_t n;
	/* Where a part goes: memory for all of *ret_outer, compact. */
	uint8_t *(*place)(void *arg, size_t to, struct ptc_box *ret_outer);
	void (*done)(void *arg, size_t to); /* NULL: nothing */
	void *arg;
};

/* Nobody else is asked for what the node refuses. */
static int ask_plan(void *arg, struct ptc_transfer *t, struct ptc_error *err)
{
	const struct ask *a = arg;
	int rc = 0;

	if (t->failures)
		return ptc_error_set(err, t->why.code, "%s", t->why.text);
	for (size_t i = 0; !rc && i < a->n; i++) {
		const struct ptc_part *p = &a->parts[i];

		rc = ptc_parts_push(&t->parts, p->node, p->item, p->to, &p->box, err);
	}
	return rc;
}

static int ask_begin(void *arg, unsigned thread, const struct ptc_part *part, struct ptc_transfer_dst *ret,
		     struct ptc_error *err)
{
	const struct ask *a = arg;
	uint8_t *at = a->place(a->arg, part->to, &ret->outer);

	ret->iov[0] = (struct iovec){ at, (size_t)ptc_box_volume(&ret->outer) };
	ret->niov = 1;
	return 0;
}

static int ask_end(void *arg, const struct ptc_part *part, const struct ptc_transfer_dst *dst, struct ptc_error *err)
{
	const struct ask *a = arg;

	if (a->done)
		a->done(a->arg, part->to);
	return 0;
}

/* A node that fails is not usable any more, but for PTC_ECORRUPT: it may have what else is asked for. */
static int ask_node(struct ask *a)
{
	static const struct ptc_transfer_to to = { .plan = ask_plan, .begin = ask_begin, .end = ask_end };
	struct ptc_block_source *s = a->s;
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_transfer t = { .agent = s->agent,
				  .g = s->g,
				  .snapshot = s->g->snapshot,
				  .healing = true,
				  .self = UINT32_MAX,
				  .usable = s->usable,
				  .timeout_ms = SOURCE_TIMEOUT_MS,
				  .says_damaged = true,
				  .to = &to,
				  .arg = a };
	int rc;

	if (atomic_load(&s->agent->heal_stop))
		rc = ptc_error_set(&why, PTC_ECANCELED, "the daemon is stopping");
	else
		rc = ptc_transfer_open(&t, &why);
	if (rc == 0)
		rc = ptc_transfer_drain(&t, &why);
	ptc_transfer_done(&t);
	if (rc)
		s->why = why;
	s->usable[a->parts->node] = !rc || rc == PTC_ECORRUPT;
	return rc;
}

/* ---- the block's parts ---- */

/* Adds what nodes are to give of the part, if together they have all of it. */
static int part_cover(struct ptc_block_source *s, size_t part, uint32_t first, struct ptc_parts *out)
{
	const struct ptc_part want = { .item = s->parts[part].item, .to = part, .box = s->parts[part].box };
	bool *usable = ptc_calloc(s->g->nnodes + 1, sizeof *usable);
	struct ptc_item_replicas replicas = { 0 };
	size_t before = out->n;
	int rc = usable ? ptc_geometry_replicas(s->g, want.item, &replicas, &s->why) : PTC_ENOMEM;

	for (size_t i = 0; !rc && i < s->g->nnodes; i++)
		usable[i] = s->usable[i] && !s->damaged[part * s->g->nnodes + i];
	s->whole[part] = false;
	if (rc == 0)
		rc = ptc_parts_cover(&want, replicas.v, replicas.n, usable, first, 0, out, &s->whole[part], &s->why);
	ptc_item_replicas_done(&replicas);
	ptc_free(usable);
	if (rc || !s->whole[part]) {
		s->whole[part] = false;
		out->n = before;
	}
	return rc;
}

static uint8_t *part_place(void *arg, size_t to, struct ptc_box *ret_outer)
{
	struct ptc_block_source *s = arg;

	*ret_outer = s->parts[to].box;
	return s->bytes[to];
}

/* One after the other: of which of them the node has damaged bytes, too. One that finds none each time is not believed.
 */
static int ask_singly(struct ptc_block_source *s, const struct ptc_part *parts, size_t n)
{
	bool marked = false;
	int rc = PTC_ECORRUPT;

	for (size_t i = 0; rc == PTC_ECORRUPT && i < n; i++) {
		struct ask a = { .s = s, .parts = parts + i, .n = 1, .place = part_place, .arg = s };

		rc = ask_node(&a);
		if (rc == PTC_ECORRUPT)
			s->damaged[parts[i].to * s->g->nnodes + parts[i].node] = marked = true;
		else if (!rc)
			rc = PTC_ECORRUPT;
	}
	if (!marked && s->unmarked++ >= UNMARKED_MAX)
		s->usable[parts->node] = false;
	return rc;
}

static int ask_parts(struct ptc_block_source *s, const struct ptc_parts *all, uint32_t node)
{
	struct ptc_part *parts = ptc_reallocarray(NULL, all->n + 1, sizeof *parts);
	struct ask a = { .s = s, .parts = parts, .place = part_place, .arg = s };
	int rc = parts ? 0 : PTC_ENOMEM;

	for (size_t i = 0; !rc && i < all->n; i++)
		if (all->v[i].node == node)
			parts[a.n++] = all->v[i];
	rc = rc || !a.n ? rc : ask_node(&a);
	if (rc == PTC_ECORRUPT)
		rc = ask_singly(s, parts, a.n);
	if (rc && rc != PTC_ECORRUPT)
		s->usable[node] = false;
	ptc_free(parts);
	return rc;
}

/* *ret_first: whether the first node gives a part. */
static int parts_cover(struct ptc_block_source *s, uint32_t first, struct ptc_parts *out, bool *ret_first)
{
	int rc = 0;

	*ret_first = false;
	for (size_t i = 0; !rc && i < s->nparts; i++)
		rc = part_cover(s, i, first, out);
	for (size_t i = 0; i < out->n; i++)
		*ret_first |= out->v[i].node == first;
	return rc;
}

bool ptc_block_source_put(struct ptc_block_source *s, uint32_t first)
{
	bool given = true, failed = true;

	ptc_block_reset(s->block);
	while (failed && s->usable[first]) {
		struct ptc_parts parts = { 0 };
		int rc = parts_cover(s, first, &parts, &given);

		failed = false;
		for (uint32_t node = 0; !rc && given && !failed && node < s->g->nnodes; node++)
			failed = ask_parts(s, &parts, node) != 0;
		ptc_parts_done(&parts);
		if (rc == PTC_ENOMEM || !given)
			return false;
	}
	if (failed)
		return false;
	for (size_t i = 0; i < s->nparts; i++)
		if (s->whole[i])
			ptc_block_put(s->block, i, s->bytes[i]);
	return true;
}

bool ptc_block_source_local(struct ptc_block_source *s)
{
	struct ptc_table_key key = ptc_geometry_key(s->g);
	struct ptc_table *table;
	bool any = false;

	ptc_block_reset(s->block);
	if (ptc_table_open(s->agent->env.store, &key, &table, NULL) != 0)
		return false;
	for (size_t i = 0; i < s->nparts; i++) {
		s->whole[i] = ptc_table_read(table, s->parts[i].item, &s->parts[i].box, s->bytes[i], NULL) == 0;
		if (s->whole[i])
			ptc_block_put(s->block, i, s->bytes[i]);
		any |= s->whole[i];
	}
	ptc_table_unref(table);
	return any;
}

void ptc_block_source_found(struct ptc_block_source *s)
{
	ptc_block_reset(s->block);
	for (size_t i = 0; i < s->nparts; i++) {
		ptc_block_get(s->block, i, s->bytes[i]);
		ptc_block_put(s->block, i, s->bytes[i]);
		s->whole[i] = true;
	}
}

/* ---- digests around it ---- */

struct digesting {
	struct ptc_block_source *s;
	const struct ptc_part *parts; /* numbered by `to` */
	uint8_t *buffer;              /* DIGEST_BOX_BYTES */
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];
	uint64_t digest;
};

static uint8_t *digest_place(void *arg, size_t to, struct ptc_box *ret_outer)
{
	const struct digesting *d = arg;

	*ret_outer = d->parts[to].box;
	return d->buffer;
}

static void digest_done(void *arg, size_t to)
{
	struct digesting *d = arg;

	d->digest ^= ptc_box_digest(d->buffer, &d->parts[to].box, d->ndim, d->shape);
}

/* One box that one node has, in requests one after another: they share the buffer. */
static int digest_of_node(struct digesting *d, const struct ptc_part *part)
{
	struct ask a = { .s = d->s, .place = digest_place, .done = digest_done, .arg = d };
	struct ptc_boxes cut = { 0 };
	struct ptc_part *parts;
	uint64_t before = d->digest;
	int rc = ptc_box_chop(&part->box, DIGEST_BOX_BYTES, &cut);

	parts = ptc_reallocarray(NULL, cut.n + 1, sizeof *parts);
	rc = parts ? rc : PTC_ENOMEM;
	for (size_t i = 0; !rc && i < cut.n; i++)
		parts[i] = (struct ptc_part){ part->node, part->item, i, cut.v[i] };
	d->parts = parts;
	for (size_t i = 0; !rc && i < cut.n; i += a.n) {
		a.parts = parts + i;
		a.n = PTC_MIN(cut.n - i, (size_t)DIGEST_ASK_BOXES);
		rc = ask_node(&a);
	}
	if (rc)
		d->digest = before;
	ptc_free(parts);
	ptc_boxes_done(&cut);
	return rc;
}

/* From other nodes; a node that fails is not asked for the rest. */
static int digest_remote(struct digesting *d, uint32_t item, const struct ptc_box *box, struct ptc_error *err)
{
	struct ptc_part want = { .item = item };
	struct ptc_boxes todo = { 0 };
	struct ptc_item_replicas replicas = { 0 };
	int rc = ptc_geometry_replicas(d->s->g, item, &replicas, err);

	if (rc == 0)
		rc = ptc_boxes_push(&todo, box);
	while (!rc && todo.n) {
		struct ptc_parts parts = { 0 };
		bool all = false;

		want.box = todo.v[--todo.n];
		rc = ptc_parts_cover(&want, replicas.v, replicas.n, d->s->usable, UINT32_MAX, 0, &parts, &all, err);
		if (!rc && !all)
			rc = ptc_error_set(err, PTC_EPEER, "no other node has all of the tensor to compare its digest");
		for (size_t i = 0; !rc && i < parts.n; i++) {
			int failed = digest_of_node(d, &parts.v[i]);

			if (failed)
				d->s->usable[parts.v[i].node] = false;
			rc = failed == PTC_ENOMEM ? failed : failed ? ptc_boxes_push(&todo, &parts.v[i].box) : 0;
		}
		ptc_parts_done(&parts);
	}
	ptc_item_replicas_done(&replicas);
	ptc_boxes_done(&todo);
	return rc;
}

/* What this node's table has of the box; the rest to *ret_rest. */
static int digest_here(struct digesting *d, struct ptc_table *table, uint32_t item, const struct ptc_box *box,
		       struct ptc_boxes *ret_rest)
{
	struct ptc_piece *pieces = NULL;
	struct ptc_box *have;
	size_t n = 0, kept = 0;
	int rc = ptc_table_pieces(table, item, box, &pieces, &n, NULL);

	have = ptc_reallocarray(NULL, n + 1, sizeof *have);
	rc = have ? rc : PTC_ENOMEM;
	for (size_t i = 0; !rc && i < n; i++) {
		uint64_t digest;

		if (ptc_box_intersect(&pieces[i].live, box, &have[kept]) &&
		    ptc_table_digest(table, item, &have[kept], d->ndim, d->shape, &digest, NULL) == 0) {
			d->digest ^= digest;
			kept++;
		}
	}
	if (rc == 0)
		rc = ptc_boxes_missing(box, have, kept, ret_rest);
	ptc_free(pieces);
	ptc_free(have);
	return rc;
}

int ptc_block_source_digest(struct ptc_block_source *s, uint32_t item, const struct ptc_boxes *boxes,
			    uint64_t *ret_digest, struct ptc_error *err)
{
	struct digesting d = { .s = s, .buffer = ptc_malloc(DIGEST_BOX_BYTES) };
	struct ptc_table_key key = ptc_geometry_key(s->g);
	struct ptc_boxes rest = { 0 };
	struct ptc_table *table = NULL;
	int rc = d.buffer ? 0 : ptc_error_set(err, PTC_ENOMEM, "no memory to heal a block");

	if (rc == 0)
		rc = ptc_geometry_shape(s->g, item, &d.ndim, d.shape, err);
	if (rc == 0)
		rc = ptc_table_open(s->agent->env.store, &key, &table, err);
	for (size_t i = 0; !rc && i < boxes->n; i++)
		if (!ptc_box_empty(&boxes->v[i]))
			rc = digest_here(&d, table, item, &boxes->v[i], &rest);
	for (size_t i = 0; !rc && i < rest.n; i++)
		rc = digest_remote(&d, item, &rest.v[i], err);
	if (!rc)
		*ret_digest = d.digest;
	else if (rc == PTC_ENOMEM)
		ptc_error_set(err, rc, "no memory to heal a block");
	ptc_boxes_done(&rest);
	ptc_table_unref(table);
	ptc_free(d.buffer);
	return rc;
}
