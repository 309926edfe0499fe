/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-bench-planner: the planner's searches for a GPT of 175e9 parameters (also on two kinds of devices, and for the
 * least money) and a mixture of experts, its frontier and its mapping, on one core. Prints one JSON array of what,
 * devices, CPU seconds and the answer; an argument N takes at most N devices. Fails with one line where a search does.
 */
#include "base/alloc.h"
#include "base/check.h"
#include "planner/mapping/slots.h"
#include "planner/search/fastest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct ptc_model model;
static struct ptc_cluster_profile cluster;
static bool begun;

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void put(const char *what, uint32_t devices, double s, const char *answer)
{
	printf("%s{\"what\":\"%s\",\"devices\":%u,\"seconds\":%.6f,\"answer\":\"%s\"}", begun ? ",\n" : "[\n", what,
	       devices, s, answer);
	begun = true;
}

static struct ptc_work work_of(bool experts)
{
	struct ptc_work w = {
		.model = &model, .cluster = &cluster, .global_batch = 1536, .reduce_bytes = 2, .uneven = true
	};

	ptc_coefs_default(&w.coefs);
	ptc_memory_rules_default(&w.memory);
	ptc_model_gpt(&model, 96, experts ? 4096 : 12288, experts ? 32 : 96, experts ? 16384 : 49152, 51200, 2048);
	model.flash = true;
	if (experts) { /* every second layer */
		model.nkinds = 2;
		model.kinds[1] = model.kinds[0];
		model.kinds[1].experts = 64;
		model.kinds[1].topk = 2;
		model.kinds[1].expert_ffn = 8192;
		model.kinds[1].ffn = 0;
		for (uint32_t i = 1; i < model.layers; i += 2)
			model.kind[i] = 1;
	}
	cluster.per_node = 8;
	cluster.nkinds = 1;
	ptc_device_kind_known("H100-80GB", &cluster.kinds[0]);
	cluster.kinds[0].nodes = 1280;
	cluster.intra_bytes_s = 400e9;
	cluster.node_bytes_s = 400e9;
	cluster.intra_latency_s = 2e-5;
	cluster.node_latency_s = 5e-5;
	return w;
}

/* tp, pp, dp, cp, vpp, ZeRO 0, 1, 3, all recomputations; with experts ep, too. */
static struct ptc_space space_of(bool experts)
{
	struct ptc_space s = {
		.zero = 1 | 2 | 8, .recompute = 7, .vpp = { 4, { 1, 2, 3, 4 } }, .cp = { 3, { 1, 2, 4 } }
	};

	if (experts)
		s.ep = (struct ptc_degrees){ 4, { 1, 2, 4, 8 } };
	return s;
}

/* Half of the nodes are of a second kind of device. */
static void two_kinds(struct ptc_work *w)
{
	ptc_device_kind_known("A100-80GB", &cluster.kinds[1]);
	cluster.nkinds = 2;
	cluster.kinds[0].nodes = cluster.kinds[1].nodes = 640;
	w->uneven_batch = true;
}

enum sort { DENSE, EXPERTS, KINDS, CHEAPEST, SORTS };

static int search(enum sort sort, uint32_t devices, struct ptc_error *err)
{
	static const char *const names[] = { "search, dense", "search, experts", "search, two kinds of devices",
					     "search, the cheapest" };
	struct ptc_work w = work_of(sort == EXPERTS);
	struct ptc_space s = space_of(sort == EXPERTS);
	struct ptc_search_limits limits = { .devices = devices, .keep = 20, .cheapest = sort == CHEAPEST };
	struct ptc_choice v[20];
	char text[PTC_CAND_TEXT_MAX];
	size_t n;
	double t;
	int rc;

	if (sort == KINDS)
		two_kinds(&w);
	t = seconds();
	rc = ptc_search(&w, &s, &limits, NULL, v, &n, err);
	if (rc)
		return rc;
	ptc_cand_format(&v[0].cand, text);
	put(names[sort], devices, seconds() - t, text);
	return 0;
}

static int frontier(uint32_t devices, struct ptc_error *err)
{
	struct ptc_work w = work_of(false);
	struct ptc_space s = space_of(false);
	struct ptc_frontier *f;
	char text[64];
	size_t points = 0, n;
	double t = seconds();
	int rc = ptc_frontier_new(&w, &s, devices, &f, err);

	if (rc)
		return rc;
	t = seconds() - t;
	for (uint32_t i = 1; i <= devices; i++) {
		ptc_frontier_get(f, i, &n);
		points += n;
	}
	snprintf(text, sizeof text, "%zu points", points);
	put("frontier, dense", devices, t, text);
	t = seconds();
	for (uint32_t i = 1; i <= devices; i++)
		points += ptc_frontier_best(f, i, 40e9) != NULL;
	snprintf(text, sizeof text, "each of %u counts", devices);
	put("look-ups, dense", devices, seconds() - t, points ? text : "none");
	ptc_frontier_free(f);
	return 0;
}

/* What a step takes with the slowest link of each class. */
static double placed_step_s(void *arg, const double bytes_s[PTC_LINK_CLASSES])
{
	const double *traffic = arg;
	double s = 0;

	for (int k = 0; k < PTC_LINK_CLASSES; k++)
		s += bytes_s[k] > 0 ? traffic[k] / bytes_s[k] : 0;
	return s;
}

/* Nodes of 8 devices; a tenth of the links between them is at half speed. */
static int mapping(uint32_t devices, struct ptc_error *err)
{
	uint32_t n = devices / 8;
	double traffic[PTC_LINK_CLASSES] = { [PTC_LINK_TP] = 100e9, [PTC_LINK_DP] = 10e9, [PTC_LINK_PP] = 1e9 };
	double *links = ptc_calloc((size_t)n * n, sizeof *links);
	uint32_t *each = ptc_calloc(2 * (size_t)n, sizeof *each);
	struct ptc_cand c = { 8, 1, devices / 16, 2, 1, 1, 1, 1, 0, 0 };
	struct ptc_on_kinds place = { 0 };
	struct ptc_slots slots = { 0 };
	struct ptc_nodes_ask ask = { .slots = &slots,
				     .nnodes = n,
				     .devices = each,
				     .bytes_s = links,
				     .horizon_s = 600,
				     .step_s = placed_step_s,
				     .arg = traffic };
	struct ptc_nodes got = { 0 };
	char text[64];
	double start = seconds();
	int rc = links && each ? ptc_slots_new(&c, &place, 8, &slots, err) : ptc_nomem(err);

	for (uint32_t a = 0; !rc && a < n; a++) {
		each[a] = 8;
		for (uint32_t b = 0; b < n; b++)
			links[(size_t)a * n + b] = (PTC_MIN(a, b) * 7 + PTC_MAX(a, b) * 13) % 10 ? 50e9 : 25e9;
	}
	if (!rc)
		rc = ptc_nodes_find(&ask, each + n, &got, err);
	snprintf(text, sizeof text, "%.3f s, gap %.2f", got.step_s, got.gap);
	if (!rc)
		put("mapping", devices, seconds() - start, text);
	ptc_slots_done(&slots);
	ptc_free(links);
	ptc_free(each);
	return rc;
}

int main(int argc, char **argv)
{
	static const uint32_t counts[] = { 64, 256, 1024, 10240 };
	uint32_t most = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 10240;
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = 0;

	for (size_t i = 0; i < sizeof counts / sizeof counts[0] && !rc; i++)
		for (int sort = 0; sort < SORTS && counts[i] <= most && !rc; sort++)
			rc = search((enum sort)sort, counts[i], &err);
	if (!rc)
		rc = frontier(most < 1024 ? most : 1024, &err);
	if (!rc)
		rc = mapping(most < 1024 ? most : 1024, &err);
	if (rc)
		fprintf(stderr, "ptc-bench-planner: %s\n", err.text);
	else
		puts("]");
	return rc ? 1 : 0;
}
