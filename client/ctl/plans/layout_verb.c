/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl layout: where every element of every tensor lies. The document is
 * written as it is made, rank by rank (docs/plan.md). */
#include "client/ctl/plans/offline.h"
#include "client/ctl/plans/plans.h"

#include "base/alloc.h"
#include "base/check.h"
#include "client/ctl/show/show.h"

#include <inttypes.h>
#include <string.h>

static const struct ctl_option options[] = {
	CTL_OFFLINE_OPTIONS,
	{ "config", "CONFIG", "configuration, e.g. tp=2,pp=2,dp=1; required" },
	{ "nodes", "N", "number of nodes (default: as many as the ranks need)" },
	{ "rank", "R", "only this rank" },
	{ "layout", "FILE", "a live job's layout under this configuration (from ptcctl probe -o)" },
};

struct view {
	const struct ctl_offline *o;
	const struct ptc_layout *l;
	const struct ptc_config *config;
	struct ptc_allocation a;
	uint32_t first, end; /* ranks */
};

static void put_coords(const struct view *v, uint32_t rank)
{
	struct ptc_coords k = ptc_config_coords(v->config, rank);
	struct ptc_expert_coords e = ptc_config_expert_coords(v->config, rank);

	printf("{\"tp\":%u,\"pp\":%u,\"dp\":%u,\"cp\":%u", k.tp, k.pp, k.dp, k.cp);
	if (v->config->ep > 1 || v->config->etp > 1)
		printf(",\"etp\":%u,\"ep\":%u,\"edp\":%u", e.etp, e.ep, e.edp);
	putchar('}');
}

static void put_region(const struct view *v, const struct ptc_region *r)
{
	const struct ptc_spec *s = &v->o->job.spec;

	printf("{\"tensor\":%s,\"field\":\"%s\",\"offset\":", v->o->names[r->item / (1 + s->nfields)],
	       ctl_field_name(s, r->item));
	ctl_put_numbers(r->box.off, r->box.ndim);
	fputs(",\"extent\":", stdout);
	ctl_put_numbers(r->box.ext, r->box.ndim);
	printf(",\"buffer\":{\"offset\":%" PRId64 ",\"strides\":", r->buf_off);
	ctl_put_numbers(r->buf_stride, r->box.ndim);
	printf("},\"padding\":%s}", r->padding ? "true" : "false");
}

static int put_json(const struct view *v, struct ptc_error *err)
{
	char text[PTC_CONFIG_TEXT_MAX];

	if (ptc_config_format(v->config, text, sizeof text))
		return ptc_error_set(err, PTC_ELIMIT, "the configuration is too long to print");
	printf("{\"version\":1,\"config\":\"%s\",\"rank_order\":\"", text);
	for (int i = 0; i < 5; i++)
		printf("%s%.2s", i ? "-" : "", v->config->order[i]);
	fputs("\",\"ranks\":[", stdout);
	for (uint32_t rank = v->first; rank < v->end; rank++) {
		struct ptc_rank_layout regions;
		int rc = ptc_layout_rank(v->l, rank, &regions, err);

		if (rc)
			return rc;
		printf("%s{\"rank\":%u,\"coords\":", rank > v->first ? ",\n" : "\n", rank);
		put_coords(v, rank);
		printf(",\"node\":%u,\"device\":%u,\"regions\":[", v->a.ranks[rank].node, v->a.ranks[rank].index);
		for (size_t i = 0; i < regions.nregions; i++) {
			fputs(i ? ",\n" : "\n", stdout);
			put_region(v, &regions.regions[i]);
		}
		fputs("]}", stdout);
		ptc_rank_layout_done(&regions);
	}
	puts("]}");
	return 0;
}

/* "[0:4, 8:16]"; returns buf. */
static const char *box_text(const struct ptc_box *b, char *buf, size_t size)
{
	size_t n = (size_t)snprintf(buf, size, "[");

	for (uint32_t d = 0; d < b->ndim && n < size; d++)
		n += (size_t)snprintf(buf + n, size - n, "%s%" PRId64 ":%" PRId64, d ? ", " : "", b->off[d],
				      b->off[d] + b->ext[d]);
	if (n < size)
		snprintf(buf + n, size - n, "]");
	return buf;
}

static int64_t region_bytes(const struct ptc_spec *s, const struct ptc_region *r)
{
	return r->padding ? 0 : ptc_box_volume(&r->box) * ptc_dtype_bits(ptc_item_dtype(s, r->item)) / 8;
}

static void put_rank(const struct view *v, uint32_t rank, const struct ptc_rank_layout *l)
{
	const struct ptc_spec *s = &v->o->job.spec;
	struct ptc_coords k = ptc_config_coords(v->config, rank);
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2], text[512], size[32];
	int64_t bytes = 0;

	for (size_t i = 0; i < l->nregions; i++)
		bytes += region_bytes(s, &l->regions[i]);
	printf("rank %u (tp %u, pp %u, dp %u, cp %u) on node %u, device %u: %s\n", rank, k.tp, k.pp, k.dp, k.cp,
	       v->a.ranks[rank].node, v->a.ranks[rank].index, ctl_bytes((uint64_t)bytes, size, sizeof size));
	for (size_t i = 0; i < l->nregions; i++)
		printf("  %-40s %s%s\n", ptc_item_name(s, l->regions[i].item, name, sizeof name),
		       box_text(&l->regions[i].box, text, sizeof text), l->regions[i].padding ? " padding" : "");
}

static int put_table(const struct view *v, struct ptc_error *err)
{
	for (uint32_t rank = v->first; rank < v->end; rank++) {
		struct ptc_rank_layout regions;
		int rc = ptc_layout_rank(v->l, rank, &regions, err);

		if (rc)
			return rc;
		put_rank(v, rank, &regions);
		ptc_rank_layout_done(&regions);
	}
	return 0;
}

static int show(const struct ctl *c, struct ctl_offline *o, const char *config, struct ptc_error *err)
{
	const char *rank = ctl_option(c, "rank");
	struct view v = { .o = o };
	struct ptc_layout *l = NULL;
	uint64_t only = 0;
	int rc = ctl_offline_layout(o, &o->job.spec, "--config", config, &l, err);

	if (!rc) {
		v.l = l;
		v.config = ptc_layout_config(l);
		v.end = ptc_layout_world(l);
		rc = ctl_offline_cluster(c, v.end, o, err);
	}
	if (!rc)
		rc = ctl_offline_in_order(o, l, &v.a, err);
	if (!rc && rank)
		rc = ctl_number("--rank", rank, 0, v.end - 1, &only, err);
	if (!rc && rank) {
		v.first = (uint32_t)only;
		v.end = v.first + 1;
	}
	if (!rc)
		rc = c->json ? put_json(&v, err) : put_table(&v, err);
	ptc_allocation_done(&v.a);
	ptc_layout_free(l);
	return rc;
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *config = ctl_option(c, "config");
	struct ctl_offline o = { 0 };
	int rc;

	if (!config)
		return ctl_usage(err, "--config CONFIG is missing, e.g. --config tp=2,pp=2,dp=2");
	rc = ctl_offline_open(c, &o, err);
	if (!rc)
		rc = show(c, &o, config, err);
	ctl_offline_done(&o);
	return rc;
}

const struct ctl_verb ctl_layout = {
	.name = "layout",
	.args = "",
	.about = "Show which part of each tensor every rank has under a configuration",
	.help = "Reads the job's file, and asks no daemon. Rank 0 is on the first device of the first node,\n"
		"rank 1 on the next device, and so on. docs/plan.md describes the output of --format json.\n",
	CTL_OPTIONS(options),
	.min_args = 0,
	.max_args = 0,
	.run = run,
};
