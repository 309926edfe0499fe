/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/homes/homes.h"

#include "base/alloc.h"
#include "base/check.h"
#include "client/admin/admin_locate.h"
#include "formats/json.h"

#include <string.h>

struct home {
	struct ptc_admin *admin; /* of home 0: the caller's */
	char node[PTC_NAME_MAX + 1];
	uint32_t *ranks;
	size_t nranks;
};

struct ctl_homes {
	const struct ptc_spec *spec;
	const struct ptc_layout *layout;
	struct ptc_layout *own; /* it is this one, then */
	struct home v[CTL_HOMES_MAX];
	size_t n;
};

struct ctl_homes *ctl_homes_free(struct ctl_homes *h)
{
	if (!h)
		return NULL;
	for (size_t i = 0; i < h->n; i++) {
		ptc_free(h->v[i].ranks);
		if (i)
			ptc_admin_close(h->v[i].admin);
	}
	ptc_layout_free(h->own);
	ptc_free(h);
	return NULL;
}

struct ptc_admin *ctl_homes_admin(const struct ctl_homes *h, size_t home)
{
	return h->v[home].admin;
}

/* ---- who they are ---- */

static void home_add(struct ctl_homes *h, const char *node, struct ptc_admin *admin)
{
	struct home *home = &h->v[h->n++];

	*home = (struct home){ .admin = admin };
	strcpy(home->node, node);
}

/* A path may lead to another daemon, for example in a container. So whoever answers there says its node. */
static bool is_node(struct ptc_admin *admin, const struct ctl_homes_of *of, const char *node)
{
	struct ptc_admin_near *near;
	bool same;

	if (ptc_admin_near_ask(admin, of->job, of->import_id, true, &near, NULL))
		return false;
	same = !strcmp(near->node, node);
	ptc_admin_near_done(near);
	return same;
}

static void homes_add(struct ctl_homes *h, const struct ctl_homes_of *of, const struct ptc_admin_near *near)
{
	for (size_t i = 0; i < near->n && h->n < CTL_HOMES_MAX; i++) {
		struct ptc_admin *admin;

		if (strlen(near->nodes[i]) > PTC_NAME_MAX ||
		    ptc_admin_near_open(of->c->admin, near->sockets[i], &admin, NULL))
			continue;
		if (is_node(admin, of, near->nodes[i]))
			home_add(h, near->nodes[i], admin);
		else
			ptc_admin_close(admin);
	}
}

static bool rank_add(struct ctl_homes *h, const char *node, uint32_t rank)
{
	for (size_t i = 0; i < h->n; i++) {
		struct home *home = &h->v[i];
		uint32_t *ranks;

		if (strcmp(home->node, node) != 0)
			continue;
		ranks = ptc_reallocarray(home->ranks, home->nranks + 1, sizeof *ranks);
		if (!ranks)
			return false;
		home->ranks = ranks;
		ranks[home->nranks++] = rank;
	}
	return true;
}

static bool ranks_add(struct ctl_homes *h, const char *ranks_json)
{
	json_t *rows = json_loads(ranks_json, 0, NULL);
	bool fine = json_array_size(rows) == ptc_layout_world(h->layout);

	for (size_t i = 0; fine && i < json_array_size(rows); i++) {
		const json_t *row = json_array_get(rows, i);
		const char *node = json_string_value(json_object_get(row, "node"));
		const uint64_t rank = ptc_json_count(row, "rank");

		fine = node && rank < ptc_layout_world(h->layout) && rank_add(h, node, (uint32_t)rank);
	}
	json_decref(rows);
	return fine;
}

static bool lay_out(struct ctl_homes *h, const char *config)
{
	struct ptc_config parsed;

	if (h->layout)
		return true;
	if (ptc_config_parse(config, &parsed, NULL) || ptc_layout_new(h->spec, &parsed, &h->own, NULL))
		return false;
	h->layout = h->own;
	return true;
}

static bool homes_find(struct ctl_homes *h, const struct ctl_homes_of *of, const struct ptc_admin_near *near)
{
	if (!near->n || strlen(near->node) > PTC_NAME_MAX)
		return false;
	home_add(h, near->node, of->c->admin);
	homes_add(h, of, near);
	return h->n > 1 && lay_out(h, near->config) && ranks_add(h, of->import_id ? near->ranks_json : of->ranks_json);
}

struct ctl_homes *ctl_homes_new(const struct ctl_homes_of *of)
{
	struct ptc_admin_near *near;
	struct ctl_homes *h;

	if (ptc_admin_near_ask(of->c->admin, of->job, of->import_id, false, &near, NULL))
		return NULL;
	h = ptc_calloc(1, sizeof *h);
	if (h) {
		h->spec = of->spec;
		h->layout = of->layout;
		if (!homes_find(h, of, near))
			h = ctl_homes_free(h);
	}
	ptc_admin_near_done(near);
	return h;
}

/* ---- what they have ---- */

void ctl_homes_place(const struct ctl_homes *h, uint32_t item, struct ctl_placed *ret)
{
	*ret = (struct ctl_placed){ 0 };
	if (!h || ptc_item_byte_shape(h->spec, item, &ret->ndim, ret->shape, NULL))
		return;
	ret->bytes = (uint64_t)ptc_item_bytes(h->spec, item);
	if (ret->bytes < CTL_HOMES_RUN)
		return;
	for (size_t i = 0; i < h->n; i++)
		if (ptc_layout_ranks_needs(h->layout, h->v[i].ranks, h->v[i].nranks, item, item + 1, SIZE_MAX,
					   &ret->needs[i], NULL)) {
			ctl_placed_done(ret);
			return;
		}
	ret->homes = h;
}

void ctl_placed_done(struct ctl_placed *p)
{
	for (size_t i = 0; i < CTL_HOMES_MAX; i++)
		ptc_needs_done(&p->needs[i]);
	p->homes = NULL;
}

uint64_t ctl_run_in_box(const struct ptc_box *box, uint32_t ndim, const int64_t *shape, uint64_t offset)
{
	int64_t at = (int64_t)offset, inner = 1, behind = 0, run = 0;
	bool whole = true; /* the box has all of the dims after this one */

	for (uint32_t d = ndim; d-- > 0;) {
		const int64_t c = at % shape[d], end = box->off[d] + box->ext[d];

		at /= shape[d];
		if (c < box->off[d] || c >= end)
			return 0;
		if (whole)
			run = (end - c) * inner - behind;
		behind += c * inner;
		inner *= shape[d];
		whole = whole && box->ext[d] == shape[d];
	}
	return (uint64_t)run;
}

static uint64_t run_of(const struct ctl_placed *p, size_t home, uint64_t offset)
{
	const struct ptc_needs *needs = &p->needs[home];
	uint64_t most = 0;

	if (needs->bytes == (int64_t)p->bytes) /* disjoint boxes, so that is all of it */
		return p->bytes - offset;
	for (size_t i = 0; i < needs->n; i++)
		most = PTC_MAX(most, ctl_run_in_box(&needs->v[i].box, p->ndim, p->shape, offset));
	return most;
}

size_t ctl_placed_at(const struct ctl_placed *p, uint64_t offset, uint64_t *length)
{
	uint64_t most = 0;
	size_t best = 0;

	for (size_t i = 0; p->homes && i < p->homes->n; i++) {
		const uint64_t run = run_of(p, i, offset);

		if (run > most) {
			most = run;
			best = i;
		}
	}
	if (most < CTL_HOMES_RUN && most < *length)
		return 0;
	*length = PTC_MIN(*length, most);
	return best;
}
