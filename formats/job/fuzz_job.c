/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point: bytes as job.yaml, which may name built-in rule sets, as
 * a rule set that a job names, in a file of $PTC_RULES_DIR, as canonical JSON
 * and as a configuration. What a decoder accepts must survive a trip through
 * the canonical form unchanged, and rules that pass lint must give every rank
 * of small configurations its regions, or be refused. */
#include "base/alloc.h"
#include "base/check.h"
#include "formats/job/job.h"
#include "reshard/layout/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define SMALL 16 /* ranks */

/* Regions lie in their rank's buffers, and none is empty. */
static void check_rank(const struct ptc_spec *spec, const struct ptc_layout *l, uint32_t rank)
{
	struct ptc_rank_layout rl = { 0 };

	if (ptc_layout_rank(l, rank, &rl, NULL))
		return; /* a limit */
	for (size_t i = 0; i < rl.nregions; i++) {
		const struct ptc_region *r = &rl.regions[i];
		struct ptc_local_shape shape;
		int64_t last = r->buf_off, n = 1;

		ptc_require(r->item < ptc_spec_items(spec) && ptc_layout_local_shape(l, rank, r->item, &shape));
		for (uint32_t d = 0; d < shape.ndim; d++)
			n *= shape.shape[d];
		for (uint32_t d = 0; d < r->box.ndim; d++)
			last += (r->box.ext[d] - 1) * r->buf_stride[d];
		ptc_require(!ptc_box_empty(&r->box) && r->buf_off >= 0 && last < n);
	}
	ptc_rank_layout_done(&rl);
}

static void check_layouts(const struct ptc_job_desc *job)
{
	for (size_t i = 0; i < job->ngpus && job->gpus[i].n <= SMALL; i++) {
		struct ptc_layout *l = NULL;

		if (ptc_layout_new(&job->spec, &job->gpus[i].config, &l, NULL))
			continue;
		for (uint32_t r = 0; r < ptc_layout_world(l); r++)
			check_rank(&job->spec, l, r);
		ptc_layout_free(l);
	}
}

static void check_config(const uint8_t *data, size_t len)
{
	static char out[PTC_CONFIG_TEXT_MAX], again[PTC_CONFIG_TEXT_MAX];
	struct ptc_config c, c2;
	char *text = ptc_malloc(len + 1);

	if (!text)
		return;
	memcpy(text, data, len);
	text[len] = '\0';
	if (!ptc_config_parse(text, &c, NULL)) {
		ptc_require(ptc_config_format(&c, out, sizeof out) == 0);
		ptc_require(ptc_config_parse(out, &c2, NULL) == 0);
		ptc_require(ptc_config_format(&c2, again, sizeof again) == 0 && !strcmp(out, again));
	}
	ptc_free(text);
}

static void check_round_trip(struct ptc_job_desc *job)
{
	struct ptc_job_desc again = { 0 };
	char *json = NULL, *json2 = NULL;
	size_t n = 0, n2 = 0;

	ptc_require(ptc_job_to_json(job, &json, &n, NULL) == 0);
	ptc_require(ptc_job_from_json(json, n, &again, NULL) == 0);
	ptc_require(ptc_job_to_json(&again, &json2, &n2, NULL) == 0);
	ptc_require(n == n2 && !memcmp(json, json2, n));
	ptc_job_desc_done(&again);
	check_layouts(job);
	ptc_job_desc_done(job);
	ptc_free(json);
	ptc_free(json2);
}

static char folder[] = "/tmp/ptc-fuzz.XXXXXX", path[sizeof folder + 16];

static void remove_folder(void)
{
	rmdir(folder);
}

static void write_set(const uint8_t *data, size_t len)
{
	FILE *f;

	if (!path[0]) {
		ptc_require(mkdtemp(folder) && !atexit(remove_folder));
		snprintf(path, sizeof path, "%s/set.yaml", folder);
	}
	f = fopen(path, "w");
	ptc_require(f && fwrite(data, 1, len, f) == len && !fclose(f));
}

/* The bytes as set.yaml, named by a job with tensors of the names that sets are for; with its own parameters, and
 * another head. */
static void check_set(const uint8_t *data, size_t len)
{
	static const char *const uses[] = { "set", "{use: set, head: 2}", "[{match: s}, set]" };
	static char yaml[1024];
	struct ptc_job_desc job = { 0 };

	write_set(data, len);
	for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
		snprintf(yaml, sizeof yaml,
			 "{version: 1, name: j, fields: {m: {dtype: F32}}, gpus: {2: tp=2, 4: "
			 "'tp=2,dp=2,ep=2,zero=1'}, rules: %s, tensors: ["
			 "{name: model.embed_tokens.weight, dtype: F32, shape: [10, 4]}, {name: "
			 "h.0.attn.c_attn.weight, dtype: F32, shape: [4, 12]},"
			 "{name: model.layers.0.mlp.up_proj.weight, dtype: BF16, shape: [8, 4]},"
			 "{name: model.layers.0.block_sparse_moe.experts.0.w1.weight, dtype: F32, shape: [4, 4]},"
			 "{name: model.layers.0.block_sparse_moe.experts.1.w1.weight, dtype: F32, shape: [4, 4]},"
			 "{name: s, dtype: I64, shape: []}]}",
			 uses[i]);
		if (!ptc_job_from_yaml("fuzz.yaml", yaml, strlen(yaml), NULL, folder, &job, NULL))
			check_round_trip(&job);
	}
	unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct ptc_job_desc job = { 0 };

	check_config(data, len);
	if (!ptc_job_from_yaml("fuzz.yaml", data, len, NULL, "", &job, NULL))
		check_round_trip(&job);
	if (!ptc_job_from_json(data, len, &job, NULL))
		check_round_trip(&job);
	check_set(data, len);
	return 0;
}
