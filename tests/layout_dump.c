/* SPDX-License-Identifier: Apache-2.0 */
/* Says what reshard/ puts at each element of each rank's buffers, for
 * tests/test_layout.py to compare with its oracle, and checks that digests of
 * the parts add up to that of the whole. Lines on standard input:
 *   spec JSON      a job description, for what follows; where it is refused, so is each configuration of it
 *   job PATH       the same in a file, which may name rule sets
 *   bucket N       overrides the buckets of that job's buffers: N elements, whatever dp is (0: no limit)
 *   config TEXT    answered on standard output, little-endian:
 *                  u32 status; if not 0, u32 length and the error's text; else
 *                  u32 world, u32 items, and per rank and item: i32 ndim (-1: the item is not on the rank), i64 dims,
 *                  and per element i64: its number in the global tensor, -1 padding, -2 in no region, -3 in two. */
#include "base/alloc.h"
#include "base/sys/sys.h"
#include "formats/job/job.h"
#include "reshard/layout/layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOB_FILE_MAX (64u << 20)

static void put(const void *data, size_t n)
{
	if (n && fwrite(data, n, 1, stdout) != 1) {
		perror("layout-dump");
		exit(1);
	}
}

static void put_u32(uint32_t v)
{
	put(&v, sizeof v);
}

static void paint(const struct ptc_tensor *t, const struct ptc_region *r, int64_t *buf, int64_t n)
{
	int64_t count = ptc_box_volume(&r->box);

	for (int64_t e = 0; e < count; e++) {
		int64_t rest = e, pos = r->buf_off, global = 0, scale = 1;

		for (uint32_t d = t->ndim; d-- > 0;) {
			int64_t x = rest % r->box.ext[d];

			rest /= r->box.ext[d];
			pos += x * r->buf_stride[d];
			global += (r->box.off[d] + x) * scale;
			scale *= t->shape[d];
		}
		if (pos < 0 || pos >= n) {
			fprintf(stderr, "layout-dump: tensor %s: a region ends outside its buffer\n", t->name);
			exit(1);
		}
		buf[pos] = buf[pos] != -2 ? -3 : r->padding ? -1 : global;
	}
}

static void put_rank(const struct ptc_spec *spec, const struct ptc_layout *l, uint32_t rank)
{
	struct ptc_rank_layout rl;
	size_t at = 0;

	if (ptc_layout_rank(l, rank, &rl, NULL))
		exit(1);
	for (uint32_t i = 0; i < ptc_spec_items(spec); i++) {
		struct ptc_local_shape shape;
		int64_t n = 1, *buf;

		if (!ptc_layout_local_shape(l, rank, i, &shape)) {
			put_u32(UINT32_MAX);
			continue;
		}
		put_u32(shape.ndim);
		put(shape.shape, shape.ndim * sizeof *shape.shape);
		for (uint32_t d = 0; d < shape.ndim; d++)
			n *= shape.shape[d];
		buf = ptc_malloc((size_t)n * sizeof *buf);
		if (n && !buf)
			exit(1);
		for (int64_t e = 0; e < n; e++)
			buf[e] = -2;
		for (; at < rl.nregions && rl.regions[at].item == i; at++)
			paint(&spec->tensors[i / (1 + spec->nfields)], &rl.regions[at], buf, n);
		put(buf, (size_t)n * sizeof *buf);
		ptc_free(buf);
	}
	if (at != rl.nregions) {
		fprintf(stderr, "layout-dump: rank %" PRIu32 " has regions of items it has not\n", rank);
		exit(1);
	}
	ptc_rank_layout_done(&rl);
}

/* One item's digest as a node with all ranks would report it: over the disjoint boxes that the ranks need. */
static uint64_t needs_digest(const struct ptc_needs *needs, size_t *at, uint32_t item, const uint8_t *data,
			     const struct ptc_box *whole, uint8_t *scratch)
{
	uint64_t sum = 0;

	for (; *at < needs->n && needs->v[*at].item == item; ++*at) {
		const struct ptc_box *box = &needs->v[*at].box;

		ptc_box_copy(scratch, box, data, whole, box);
		sum ^= ptc_box_digest(scratch, box, whole->ndim, whole->ext);
	}
	return sum;
}

/* Digests do not depend on how tensors are cut. */
static void check_digests(const struct ptc_spec *spec, const struct ptc_layout *l)
{
	struct ptc_allocation a = { ptc_calloc(ptc_layout_world(l), sizeof *a.ranks), ptc_layout_world(l) };
	struct ptc_needs needs = { 0 };
	size_t at = 0;

	if (!a.ranks || ptc_layout_node_needs(l, &a, 0, &needs, NULL))
		exit(1);
	for (uint32_t i = 0; i < ptc_spec_items(spec); i++) {
		struct ptc_box whole = { 0 };
		size_t bytes = (size_t)ptc_item_bytes(spec, i);
		uint8_t *data = ptc_malloc(2 * bytes + 1);
		uint64_t sum;

		if (!data || ptc_item_byte_shape(spec, i, &whole.ndim, whole.ext, NULL))
			exit(1);
		for (size_t k = 0; k < bytes; k++)
			data[k] = (uint8_t)((k + i + 1) * UINT64_C(0x9e3779b97f4a7c15) >> 40);
		sum = needs_digest(&needs, &at, i, data, &whole, data + bytes);
		if (bytes && sum != ptc_box_digest(data, &whole, whole.ndim, whole.ext)) {
			fprintf(stderr, "layout-dump: item %" PRIu32 ": the digests of its boxes are not its digest\n",
				i);
			exit(1);
		}
		ptc_free(data);
	}
	ptc_needs_done(&needs);
	ptc_allocation_done(&a);
}

static void put_error(const struct ptc_error *err)
{
	put_u32(1);
	put_u32((uint32_t)strlen(err->text));
	put(err->text, strlen(err->text));
}

static void put_layout(const struct ptc_spec *spec, const char *text)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_layout *l = NULL;
	struct ptc_config config;
	int rc = ptc_config_parse(text, &config, &err);

	if (rc == 0)
		rc = ptc_layout_new(spec, &config, &l, &err);
	if (rc) {
		put_error(&err);
		return;
	}
	put_u32(0);
	put_u32(ptc_layout_world(l));
	put_u32((uint32_t)ptc_spec_items(spec));
	for (uint32_t rank = 0; rank < ptc_layout_world(l); rank++)
		put_rank(spec, l, rank);
	check_digests(spec, l);
	ptc_layout_free(l);
}

static int read_job(const char *path, struct ptc_job_desc *job, struct ptc_error *err)
{
	const char *dir = getenv("PTC_RULES_DIR");
	char *data = NULL;
	size_t len = 0;
	int rc = ptc_sys_read_file(path, JOB_FILE_MAX, &data, &len, err);

	if (rc == 0)
		rc = ptc_job_from_yaml(path, data, len, NULL, dir ? dir : "", job, err);
	ptc_free(data);
	return rc;
}

int main(void)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };
	char *line = NULL;
	size_t cap = 0;
	int status = 0;

	while (getline(&line, &cap, stdin) > 0) {
		line[strcspn(line, "\n")] = '\0';
		if (!strncmp(line, "spec ", 5)) {
			ptc_job_desc_done(&job);
			status = ptc_job_from_json(line + 5, strlen(line + 5), &job, &err);
		} else if (!strncmp(line, "job ", 4)) {
			ptc_job_desc_done(&job);
			status = read_job(line + 4, &job, &err);
		} else if (!strncmp(line, "bucket ", 7)) {
			job.spec.buffers.bucket = strtoll(line + 7, NULL, 10);
			job.spec.buffers.bucket_per_dp = 0;
		} else if (!strncmp(line, "config ", 7)) {
			if (status)
				put_error(&err);
			else
				put_layout(&job.spec, line + 7);
			fflush(stdout);
		} else {
			fprintf(stderr, "usage: layout-dump < LINES of \"spec JSON\", \"job PATH\", \"bucket N\" and "
					"\"config TEXT\"\n");
			return 2;
		}
	}
	ptc_job_desc_done(&job);
	free(line); /* getline's */
	return fflush(stdout) ? 1 : 0;
}
