/* SPDX-License-Identifier: Apache-2.0 */
/* libptcadmin without a daemon: structs of older and newer programs, and what a missing daemon answers. */
#include "base/status.h"

#include <ptc/admin_plan.h>
#include <ptc/admin_state.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct ptc_admin *opened(void)
{
	struct ptc_admin_opts opts = { .size = sizeof opts, .socket = "/nonexistent/control.sock", .timeout_ms = 2000 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_admin *a = NULL;

	if (ptc_admin_open(&opts, &a, &err))
		fail_msg("%s", err.text);
	return a;
}

/* A program that was built with a later header, which has one member more. */
struct later {
	struct ptc_admin_target t;
	uint64_t member;
};

static void test_sizes(void **state)
{
	struct ptc_admin *a = opened();
	struct later later = { .t = { .size = sizeof later, .job = "j", .gpus = 1 } };
	struct ptc_admin_target t = { .job = "j", .gpus = 1 };
	struct ptc_error err = PTC_ERROR_INIT;
	char *json = NULL;

	assert_int_equal(ptc_admin_plan(a, &t, &json, &err), PTC_EINVAL);
	assert_non_null(strstr(err.text, "struct ptc_admin_target"));
	t.size = sizeof t - 8;
	assert_int_equal(ptc_admin_resize(a, &t, NULL, NULL, &err), PTC_EINVAL);
	assert_int_equal(ptc_admin_plan(a, NULL, &json, &err), PTC_EINVAL);
	/* what it leaves zero may stay unknown; what it sets may not */
	assert_int_equal(ptc_admin_plan(a, &later.t, &json, &err), PTC_EPEER);
	later.member = 1;
	assert_int_equal(ptc_admin_plan(a, &later.t, &json, &err), PTC_EVERSION);
	assert_int_equal(ptc_admin_run(a, &later.t, NULL, NULL, &err), PTC_EVERSION);
	assert_non_null(strstr(err.text, "does not know"));
	assert_null(json);
	ptc_admin_close(a);
}

/* Every function that takes a struct looks at its size before anything else. */
static void test_every_struct(void **state)
{
	struct ptc_admin *a = opened();
	struct ptc_admin_opts opts = { .socket = "/x" };
	struct ptc_admin_target target = { .job = "j" };
	struct ptc_admin_logs logs = { .job = "j" };
	struct ptc_admin_samples samples = { .dataset = "d" };
	struct ptc_admin_ranges_fn fn = { .ahead = 1 };
	struct ptc_admin_import *import = NULL;
	struct ptc_admin *other = NULL;

	assert_int_equal(ptc_admin_open(&opts, &other, NULL), PTC_EINVAL);
	assert_int_equal(ptc_admin_run(a, &target, NULL, NULL, NULL), PTC_EINVAL);
	assert_int_equal(ptc_admin_import_begin(a, &target, &import, NULL), PTC_EINVAL);
	assert_int_equal(ptc_admin_logs(a, &logs, NULL, NULL, NULL), PTC_EINVAL);
	assert_int_equal(ptc_admin_dataset_read(a, &samples, NULL, NULL, NULL), PTC_EINVAL);
	assert_int_equal(ptc_admin_read_ranges(a, "j", NULL, NULL, 0, &fn, NULL), PTC_EINVAL);
	assert_null(other);
	assert_null(import);
	ptc_admin_close(a);
}

static void test_no_daemon(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_admin *a = opened();
	struct ptc_admin_export *e = NULL;
	char *json = NULL;

	assert_int_equal(ptc_admin_status(a, "j", &json, &err), PTC_EPEER);
	assert_int_equal(err.code, PTC_EPEER);
	assert_true(err.text[0] && !strchr(err.text, '\n'));
	assert_int_equal(ptc_admin_export_info(a, "j", &e, NULL), PTC_EPEER);
	assert_null(e);
	assert_null(json);
	assert_null(ptc_admin_export_done(NULL));
	assert_null(ptc_admin_import_done(NULL));
	assert_null(ptc_admin_close(NULL));
	assert_string_equal(ptc_admin_version(), PTC_VERSION);
	assert_string_equal(ptc_status_name(PTC_EPEER), "peer");
	ptc_admin_close(a);
}

/* The check value that base/number/digest.h states, whole and in parts. */
static void test_digest(void **state)
{
	static const char digits[] = "123456789";
	const uint64_t whole = 0xf1d27d0a6c25edc8u;

	assert_true(ptc_admin_digest(0, digits, 9) == whole);
	for (size_t cut = 0; cut <= 9; cut++)
		assert_true(ptc_admin_digest(ptc_admin_digest(0, digits, cut), &digits[cut], 9 - cut) == whole);
}

/* ---- without a daemon ---- */

#define SPEC                                                                                                           \
	"{\"version\":1,\"name\":\"j\",\"tensors\":[{\"name\":\"w\",\"dtype\":\"BF16\",\"shape\":[6,4]}],\"fields\":{" \
	"\"m\":"                                                                                                       \
	"{\"dtype\":\"F32\"}},\"rules\":[{\"match\":\"w\",\"split\":{\"axis\":\"tp\",\"dim\":0}}],\"gpus\":{\"2\":"    \
	"\"tp=2\"}}"

static struct ptc_admin_spec *spec_of(const char *json)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_admin_spec *s = NULL;

	if (ptc_admin_spec_from_json(json, strlen(json), &s, &err))
		fail_msg("%s", err.text);
	return s;
}

static void test_spec(void **state)
{
	struct ptc_admin_item item = { .size = sizeof item };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_admin_spec *s = spec_of(SPEC), *again;
	char *config = NULL, *json = NULL, *second = NULL;
	size_t len, second_len;

	assert_string_equal(ptc_admin_spec_name(s), "j");
	assert_int_equal(ptc_admin_spec_items(s), 2);
	assert_int_equal(ptc_admin_spec_item(s, 0, &item, &err), 0);
	assert_string_equal(item.field, "param");
	assert_string_equal(item.dtype, "BF16");
	assert_int_equal(ptc_admin_spec_item(s, 1, &item, &err), 0);
	assert_string_equal(item.tensor, "w");
	assert_string_equal(item.field, "m");
	assert_string_equal(item.dtype, "F32");
	assert_int_equal(item.bytes, 6 * 4 * 4);
	assert_true(item.ndim == 2 && item.shape[0] == 6 && item.shape[1] == 4);
	assert_int_equal(ptc_admin_spec_item(s, 2, &item, &err), PTC_EINVAL);
	item.size = 8;
	assert_int_equal(ptc_admin_spec_item(s, 0, &item, &err), PTC_EINVAL);
	assert_int_equal(ptc_admin_spec_config(s, 2, &config, &err), 0);
	assert_string_equal(config, "tp=2");
	assert_int_equal(ptc_admin_spec_config(s, 3, &config, &err), PTC_ENOTFOUND);
	assert_int_equal(ptc_admin_spec_json(s, &json, &len, &err), 0);
	again = spec_of(json);
	assert_int_equal(ptc_admin_spec_json(again, &second, &second_len, &err), 0);
	assert_true(len == second_len && !memcmp(json, second, len));
	ptc_admin_free(config);
	ptc_admin_free(json);
	ptc_admin_free(second);
	assert_null(ptc_admin_spec_free(again));
	assert_null(ptc_admin_spec_free(s));
	assert_null(ptc_admin_spec_free(NULL));
	again = NULL;
	assert_int_equal(ptc_admin_spec_read("/nonexistent/job.yaml", NULL, &again, &err), PTC_ENOTFOUND);
	assert_int_equal(ptc_admin_spec_from_json("{", 1, &again, &err), PTC_EINVAL);
	assert_null(again);
}

/* Rows that a rank has of w and of w's m, added up; and the buffers they lie in. */
static int add_rows(void *arg, const struct ptc_admin_region *r)
{
	int64_t *rows = arg;

	assert_true(r->size >= sizeof *r && r->ndim == 2 && r->offset[1] == 0 && r->extent[1] == 4 && !r->padding);
	assert_true(r->buffer_offset == 0 && r->buffer_stride[0] == 4 && r->buffer_stride[1] == 1);
	for (int64_t row = r->offset[0]; row < r->offset[0] + r->extent[0]; row++)
		rows[6 * r->item + row]++;
	return 0;
}

static int refuse(void *arg, const struct ptc_admin_region *r)
{
	return PTC_ECANCELED;
}

static void test_layout(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_admin_spec *s = spec_of(SPEC);
	struct ptc_admin_layout *l = NULL, *none = NULL;
	int64_t rows[12] = { 0 };

	assert_int_equal(ptc_admin_layout_new(s, "tp=3", &l, &err), 0);
	assert_int_equal(ptc_admin_layout_new(s, "tp=", &none, &err), PTC_EINVAL);
	assert_int_equal(ptc_admin_layout_new(s, NULL, &none, &err), PTC_EINVAL);
	assert_int_equal(ptc_admin_layout_new(s, "tp=4", &none, &err), PTC_ELAYOUT);
	assert_null(none);
	ptc_admin_spec_free(s); /* the layout keeps it */
	assert_int_equal(ptc_admin_layout_world(l), 3);
	for (uint32_t rank = 0; rank < 3; rank++)
		assert_int_equal(ptc_admin_layout_rank(l, rank, add_rows, rows, &err), 0);
	for (size_t i = 0; i < 12; i++)
		assert_int_equal(rows[i], 1);
	assert_int_equal(ptc_admin_layout_rank(l, 0, refuse, NULL, &err), PTC_ECANCELED);
	assert_int_equal(ptc_admin_layout_rank(l, 3, add_rows, rows, &err), PTC_EINVAL);
	assert_null(ptc_admin_layout_free(l));
	assert_null(ptc_admin_layout_free(NULL));
}

/* From one rank on node 0 to two, with node 0 to be left: all of it moves, half to each of two devices of node 1. */
static void test_moves(void **state)
{
	const bool first[2] = { true, false };
	struct ptc_admin_cluster cluster = {
		.size = sizeof cluster, .nodes = 2, .devices_per_node = 2, .drained = first
	};
	struct ptc_admin_move move = { .size = sizeof move };
	struct ptc_admin_totals totals = { .size = sizeof totals };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_admin_spec *s = spec_of(SPEC);
	struct ptc_admin_layout *from = NULL, *to = NULL;
	struct ptc_admin_moves *m = NULL, *none = NULL;
	uint64_t bytes = 0, n = 0;

	assert_int_equal(ptc_admin_layout_new(s, "tp=1", &from, &err), 0);
	assert_int_equal(ptc_admin_layout_new(s, "tp=2", &to, &err), 0);
	assert_int_equal(ptc_admin_moves_plan(from, to, &cluster, &m, &err), 0);
	cluster.failed = first;
	assert_int_equal(ptc_admin_moves_plan(from, to, &cluster, &none, &err), PTC_ELOST);
	cluster.nodes = 0;
	assert_int_equal(ptc_admin_moves_plan(from, to, &cluster, &none, &err), PTC_EINVAL);
	cluster = (struct ptc_admin_cluster){ .size = sizeof cluster, .nodes = 1, .devices_per_node = 1 };
	assert_int_equal(ptc_admin_moves_plan(from, to, &cluster, &none, &err), PTC_ENODEVICES);
	cluster.devices_per_node = 65;
	assert_int_equal(ptc_admin_moves_plan(from, to, &cluster, &none, &err), PTC_EINVAL);
	assert_null(none);
	ptc_admin_spec_free(s); /* the moves keep all of these */
	ptc_admin_layout_free(from);
	ptc_admin_layout_free(to);
	for (; ptc_admin_moves_next(m, &move, &err) == 1; n++) {
		assert_int_equal(move.kind, PTC_ADMIN_MOVE_BETWEEN);
		assert_true(move.from.node == 0 && move.to.node == 1 && move.extent[0] == 3 && move.extent[1] == 4);
		assert_int_equal(move.offset[0], 3 * move.to.rank);
		bytes += move.bytes;
	}
	assert_int_equal(bytes, 6 * 4 * (2 + 4));
	assert_int_equal(ptc_admin_moves_totals(m, &totals, &err), 0);
	assert_true(totals.between_nodes == bytes && totals.moves == n && totals.bound == bytes && totals.bound_exact);
	ptc_admin_moves_rewind(m);
	assert_int_equal(ptc_admin_moves_next(m, &move, &err), 1);
	move.size = 1;
	assert_int_equal(ptc_admin_moves_next(m, &move, &err), PTC_EINVAL);
	assert_null(ptc_admin_moves_free(m));
	assert_null(ptc_admin_moves_free(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),  cmocka_unit_test(test_every_struct), cmocka_unit_test(test_no_daemon),
		cmocka_unit_test(test_digest), cmocka_unit_test(test_spec),         cmocka_unit_test(test_layout),
		cmocka_unit_test(test_moves),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
