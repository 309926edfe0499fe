/* SPDX-License-Identifier: Apache-2.0 */
/* Answers tests/test_plan.py with what reshard/ plans. Lines on standard input:
 *   spec JSON                     as in layout_dump.c; for what follows
 *   plan FROM TO NNODES WORLD (NODE DEVICE)... N (NODE DEVICE)... USABLE PINNED RACKS
 * with the old ranks' devices, those that may be used, then one digit per node
 * each (RACKS: - for none). One line of JSON for each plan:
 * {"error": text}, or {"now": [[node, device], ...], "gap": bytes,
 * "groups": [TP groups, split, across racks],
 * "totals": [kept, in_place, within, between], "reset": bytes, "derived": bytes, "nodes": [[in, out, within, peak],
 * ...], "moves": [[kind, item, src node, src rank, dst rank, [offset], [extent]], ...]} in elements. */
#include "base/alloc.h"
#include "formats/job/job.h"
#include "reshard/place/place.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NODES   64
#define MAX_DEVICES 256

struct question {
	struct ptc_config from, to;
	uint32_t nnodes;
	struct ptc_device was[MAX_DEVICES], may[MAX_DEVICES];
	uint32_t nwas, nmay;
	bool usable[MAX_NODES], pinned[MAX_NODES], in_racks;
	uint32_t racks[MAX_NODES];
};

static const struct ptc_spec *spec;
static bool any;

static int put_move(void *arg, const struct ptc_move *m)
{
	struct ptc_box e;

	ptc_item_elements(spec, m->item, &m->box, &e);
	printf("%s[%d,%u,%u,%u,%u,[", any ? "," : "", m->kind, m->item, m->src_node, m->src_rank, m->dst_rank);
	for (uint32_t d = 0; d < e.ndim; d++)
		printf("%s%" PRId64, d ? "," : "", e.off[d]);
	printf("],[");
	for (uint32_t d = 0; d < e.ndim; d++)
		printf("%s%" PRId64, d ? "," : "", e.ext[d]);
	printf("]]");
	any = true;
	return 0;
}

static void put_plan(const struct ptc_plan *p, const struct ptc_allocation *now, int64_t gap,
		     const struct ptc_groups *g)
{
	printf("],\"now\":[");
	for (uint32_t r = 0; r < now->world; r++)
		printf("%s[%u,%u]", r ? "," : "", now->ranks[r].node, now->ranks[r].index);
	printf("],\"nodes\":[");
	for (uint32_t n = 0; n < p->nnodes; n++)
		printf("%s[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", n ? "," : "", p->in_bytes[n],
		       p->out_bytes[n], p->within_bytes[n], p->peak_bytes[n]);
	printf("],\"groups\":[%u,%u,%u]", g->n, g->split, g->across);
	printf(",\"gap\":%" PRId64 ",\"reset\":%" PRId64 ",\"derived\":%" PRId64 ",\"totals\":[%" PRId64 ",%" PRId64
	       ",%" PRId64 ",%" PRId64 "]}\n",
	       gap, p->reset, p->derived, p->kept, p->in_place, p->within_node, p->between_nodes);
}

static int answer(const struct question *q, struct ptc_layout **from, struct ptc_layout **to,
		  struct ptc_change **change, struct ptc_allocation *now, struct ptc_error *err)
{
	struct ptc_allocation was = { NULL, q->nwas };
	struct ptc_device *copy = ptc_calloc(q->nwas, sizeof *copy);
	struct ptc_place_opts place = { .devices = q->may,
					.ndevices = q->nmay,
					.nnodes = q->nnodes,
					.usable = q->usable,
					.pinned = q->pinned,
					.racks = q->in_racks ? q->racks : NULL };
	struct ptc_plan_opts opts = { .fn = put_move, .keep = true };
	struct ptc_plan *plan = NULL;
	int64_t gap = 0;
	struct ptc_groups groups;
	int rc = ptc_layout_new(spec, &q->from, from, err);

	memcpy(copy, q->was, q->nwas * sizeof *copy);
	was.ranks = copy;
	if (!rc)
		rc = ptc_layout_new(spec, &q->to, to, err);
	if (!rc)
		rc = ptc_change_new(*from, *to, change, err);
	if (!rc)
		rc = ptc_change_place(*change, &was, &place, now, &gap, err);
	if (!rc)
		rc = ptc_place_groups(&q->to, now, &place, &groups, err);
	if (!rc) {
		printf("{\"moves\":[");
		any = false;
		rc = ptc_plan_stream(*change, &was, now, q->nnodes, q->usable, &opts, &plan, err);
		if (rc)
			printf("],");
	}
	if (!rc)
		put_plan(plan, now, gap, &groups);
	else if (!*change || !now->ranks)
		putchar('{');
	ptc_plan_free(plan);
	ptc_free(copy);
	return rc;
}

static void put_text(const char *s)
{
	for (; *s; s++)
		if (*s == '"' || *s == '\\')
			printf("\\%c", *s);
		else
			putchar(*s);
}

static uint32_t number(char **at)
{
	return (uint32_t)strtoul(*at, at, 10);
}

static uint32_t devices(char **at, struct ptc_device *v)
{
	uint32_t n = number(at);

	for (uint32_t i = 0; i < n && i < MAX_DEVICES; i++) {
		v[i].node = number(at);
		v[i].index = number(at);
	}
	return n;
}

static void plan(char *line)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct question q = { 0 };
	struct ptc_layout *from = NULL, *to = NULL;
	struct ptc_change *change = NULL;
	struct ptc_allocation now = { 0 };
	char *text = strtok(line, " "), *next = strtok(NULL, " "), *at = strtok(NULL, ""), *flags[3] = { 0 };
	int rc = ptc_config_parse(text, &q.from, &err);

	if (!rc)
		rc = ptc_config_parse(next, &q.to, &err);
	q.nnodes = number(&at);
	q.nwas = devices(&at, q.was);
	q.nmay = devices(&at, q.may);
	for (int i = 0; i < 3; i++)
		flags[i] = strtok(i ? NULL : at, " ");
	q.in_racks = flags[2][0] != '-';
	for (uint32_t n = 0; n < q.nnodes; n++) {
		q.usable[n] = flags[0][n] == '1';
		q.pinned[n] = flags[1][n] == '1';
		q.racks[n] = q.in_racks ? (uint32_t)(flags[2][n] - '0') : 0;
	}
	if (rc)
		putchar('{');
	else
		rc = answer(&q, &from, &to, &change, &now, &err);
	if (rc) {
		printf("\"error\":\"");
		put_text(err.text);
		printf("\"}\n");
	}
	ptc_allocation_done(&now);
	ptc_change_free(change);
	ptc_layout_free(from);
	ptc_layout_free(to);
}

int main(void)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };
	char *line = NULL;
	size_t cap = 0;

	while (getline(&line, &cap, stdin) > 0) {
		line[strcspn(line, "\n")] = '\0';
		if (!strncmp(line, "spec ", 5)) {
			ptc_job_desc_done(&job);
			spec = ptc_job_from_json(line + 5, strlen(line + 5), &job, &err) ? NULL : &job.spec;
		} else if (!strncmp(line, "plan ", 5)) {
			if (spec) {
				plan(line + 5);
			} else {
				printf("{\"error\":\"");
				put_text(err.text);
				printf("\"}\n");
			}
			fflush(stdout);
		} else {
			fprintf(stderr, "usage: plan-dump < LINES of \"spec JSON\" and \"plan ...\"\n");
			spec = NULL;
			return 2;
		}
	}
	spec = NULL;
	ptc_job_desc_done(&job);
	free(line); /* getline's */
	if (ptc_alloc_live())
		fprintf(stderr, "plan-dump: %" PRId64 " blocks were not freed\n", ptc_alloc_live());
	return ptc_alloc_live() ? 1 : 0;
}
