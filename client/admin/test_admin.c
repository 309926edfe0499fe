// SPDX-License-Identifier: Apache-2.0
/* libptcadmin without a daemon: structs of older and newer programs, and what a missing daemon answers. */
#include "base/status.h"

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
	const uint64_t whole = 0xf1d27d0a6c25edc8u;

	assert_true(ptc_admin_digest(0, "123456789", 9) == whole);
	for (size_t cut = 0; cut <= 9; cut++)
		assert_true(ptc_admin_digest(ptc_admin_digest(0, "123456789", cut), "123456789" + cut, 9 - cut) ==
			    whole);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_every_struct),
		cmocka_unit_test(test_no_daemon),
		cmocka_unit_test(test_digest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
