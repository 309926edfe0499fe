/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what reshard/ says each rank holds, for tests/test_layout.py to
 * compare with its oracle: layout-dump JOB.YAML, then one configuration per
 * line on standard input. Per configuration: lines
 *   item RANK NAME NDIM DIM...                            its local tensor
 *   region RANK NAME PADDING BUF_OFF NDIM (OFF EXT STRIDE)...
 * and "end", or "error TEXT". Names have no spaces in that test. */
#include "formats/job.h"
#include "reshard/layout.h"

#include <stdio.h>
#include <string.h>

#define LINE_MAX_BYTES 16384

static void print_items(const struct ptc_spec *spec, const struct ptc_layout *l, uint32_t rank)
{
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	struct ptc_local_shape shape;

	for (uint32_t i = 0; i < ptc_spec_items(spec); i++) {
		if (!ptc_layout_local_shape(l, rank, i, &shape))
			continue;
		printf("item %u %s %u", rank, ptc_item_name(spec, i, name, sizeof name), shape.ndim);
		for (uint32_t d = 0; d < shape.ndim; d++)
			printf(" %lld", (long long)shape.shape[d]);
		printf("\n");
	}
}

static void print_regions(const struct ptc_spec *spec, const struct ptc_layout *l, uint32_t rank)
{
	struct ptc_rank_layout rl;
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];

	if (ptc_layout_rank(l, rank, &rl, NULL))
		return;
	for (size_t i = 0; i < rl.nregions; i++) {
		const struct ptc_region *r = &rl.regions[i];

		printf("region %u %s %d %lld %u", rank, ptc_item_name(spec, r->item, name, sizeof name), r->padding,
		       (long long)r->buf_off, r->box.ndim);
		for (uint32_t d = 0; d < r->box.ndim; d++)
			printf(" %lld %lld %lld", (long long)r->box.off[d], (long long)r->box.ext[d],
			       (long long)r->buf_stride[d]);
		printf("\n");
	}
	ptc_rank_layout_done(&rl);
}

static void dump(const struct ptc_spec *spec, const char *text)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_layout *l = NULL;
	struct ptc_config config;
	int rc = ptc_config_parse(text, &config, &err);

	if (rc == 0)
		rc = ptc_layout_new(spec, &config, &l, &err);
	for (uint32_t rank = 0; rc == 0 && rank < ptc_layout_world(l); rank++) {
		print_items(spec, l, rank);
		print_regions(spec, l, rank);
	}
	if (rc)
		printf("error %s\n", err.text);
	else
		printf("end\n");
	fflush(stdout);
	ptc_layout_free(l);
}

int main(int argc, char **argv)
{
	struct ptc_error err = PTC_ERROR_INIT;
	char line[LINE_MAX_BYTES];
	struct ptc_job_desc job;

	if (argc != 2 || ptc_job_read(argv[1], NULL, &job, &err)) {
		fprintf(stderr, "layout-dump: %s\n",
			argc == 2 ? err.text : "usage: layout-dump JOB.YAML <CONFIGURATIONS");
		return argc == 2 ? 1 : 2;
	}
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = '\0';
		dump(&job.spec, line);
	}
	ptc_job_desc_done(&job);
	return 0;
}
