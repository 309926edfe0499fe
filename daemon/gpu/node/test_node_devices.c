/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a node's devices, by a real ptc-gpu on the fake driver's NVML. */
#include "daemon/gpu/node/node_devices.h"

#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define UUID0 "GPU-d0d0d0d0-d0d0-d0d0-d0d0-d0d0d0d0d0d0"
#define UUID1 "GPU-d1d1d1d1-d1d1-d1d1-d1d1-d1d1d1d1d1d1"

static char dir[64];

static int setup(void **state)
{
	snprintf(dir, sizeof dir, "/tmp/ptc-node-XXXXXX");
	assert_non_null(mkdtemp(dir));
	return setenv("PTC_FAKE_GPU", dir, 1);
}

static int teardown(void **state)
{
	return rmdir(dir);
}

static struct ptc_node_devices *found(void)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_node_devices *d;

	if (ptc_node_devices_find(&d, &err))
		fail_msg("%s", err.text);
	return d;
}

static void test_all(void **state)
{
	struct ptc_node_devices *d = found();
	struct ptc_buf b = PTC_BUF_INIT;
	struct ptc_node_device v;

	assert_int_equal(ptc_node_devices_count(d), 2);
	assert_string_equal(ptc_node_devices_ids(d), UUID0 "," UUID1);
	ptc_node_devices_get(d, 1, &v);
	assert_string_equal(v.uuid, UUID1);
	assert_string_equal(v.kind, "gpu");
	assert_string_equal(v.health, "ok");
	assert_true(v.memory_bytes == 256u << 20 && v.free_bytes == 200u << 20 && v.index == 1);
	ptc_node_devices_json(d, 0, &b);
	assert_string_equal(b.data, "\"device\":0,\"kind\":\"gpu\",\"health\":\"ok\",\"uuid\":\"" UUID0
				    "\",\"name\":\"Fake \\\"GPU\\\" 0\",\"bus\":\"00000000:17:00.0\",\"index\":0,"
				    "\"memory_bytes\":268435456,\"free_bytes\":209715200,\"processes\":0");
	ptc_buf_done(&b);
	ptc_node_devices_free(d);
}

/* What is hidden from ptcd is no device of the node; the order is the variable's. */
static void test_visible(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_node_devices *d;

	setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
	d = found();
	assert_string_equal(ptc_node_devices_ids(d), UUID1 "," UUID0);
	ptc_node_devices_free(d);
	setenv("CUDA_VISIBLE_DEVICES", "GPU-d1", 1);
	d = found();
	assert_string_equal(ptc_node_devices_ids(d), UUID1);
	ptc_node_devices_free(d);
	setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
	assert_int_equal(ptc_node_devices_find(&d, &err), PTC_ENODEVICES);
	assert_string_equal(err.text, "none is visible: see CUDA_VISIBLE_DEVICES");
	unsetenv("CUDA_VISIBLE_DEVICES");
}

static void test_none(void **state)
{
	const char *path = getenv("LD_LIBRARY_PATH");
	char *before = strdup(path ? path : "");
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_node_devices *d;

	setenv("LD_LIBRARY_PATH", "/nonexistent", 1);
	assert_int_equal(ptc_node_devices_find(&d, &err), PTC_ENODEVICES);
	assert_non_null(strstr(err.text, "no NVIDIA driver on this node"));
	setenv("LD_LIBRARY_PATH", before, 1);
	free(before);
}

/* Of another program in ptc-gpu's place. */
static void test_malformed(void **state)
{
	static const char *const bad[][2] = {
		{ "{\"devices\":", "ptc-gpu --list" },
		{ "{\"version\":1}", "ptc-gpu --list: \"devices\" is missing" },
		{ "{\"devices\":[{\"uuid\":\"u\",\"index\":-1}]}", "\"index\" must be a whole number" },
		{ "{\"devices\":[{\"uuid\":\"u\",\"kind\":\"long kind\"}]}", "\"kind\" must be a text of at most 7" },
		{ "{\"devices\":[{\"uuid\":\"u\",\"pid_bytes\":[null,\"1\"]}]}", "\"pid_bytes\" must be a whole" },
		{ "{\"devices\":[{\"uuid\":\"u\",\"visible\":true,\"cuda_index\":64}]}", "more than 64 devices" },
		{ "{\"devices\":[{\"uuid\":\"u\",\"visible\":false}]}", "none is visible" },
	};
	const char *before = getenv("PTC_GPU");
	char *own = before ? strdup(before) : NULL, path[96];
	struct ptc_node_devices *d;

	snprintf(path, sizeof path, "%s/ptc-gpu", dir);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		FILE *f = fopen(path, "w");

		assert_non_null(f);
		fprintf(f, "#!/bin/sh\necho '%s'\n", bad[i][0]);
		fclose(f);
		assert_int_equal(chmod(path, 0700), 0);
		setenv("PTC_GPU", path, 1);
		assert_int_not_equal(ptc_node_devices_find(&d, &err), 0);
		if (!strstr(err.text, bad[i][1]))
			fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i][1]);
	}
	unlink(path);
	if (own)
		setenv("PTC_GPU", own, 1);
	free(own);
}

static void test_virtual(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_buf b = PTC_BUF_INIT;
	struct ptc_node_devices *d;

	assert_int_equal(ptc_node_devices_virtual(3, &d, &err), 0);
	assert_int_equal(ptc_node_devices_count(d), 3);
	assert_null(ptc_node_devices_ids(d));
	ptc_node_devices_json(d, 2, &b);
	assert_string_equal(b.data, "\"device\":2,\"kind\":\"virtual\",\"health\":\"ok\"");
	ptc_buf_done(&b);
	ptc_node_devices_look(d, 0);
	ptc_node_devices_free(d);
	assert_int_equal(ptc_node_devices_virtual(65, &d, &err), PTC_ELIMIT);
}

static bool becomes(struct ptc_node_devices *d, size_t i, const char *health)
{
	int64_t until = ptc_sys_now_ns() + INT64_C(60000000000);
	struct ptc_node_device v;

	do {
		ptc_node_devices_look(d, 0);
		usleep(5000);
		ptc_node_devices_get(d, i, &v);
	} while (strcmp(v.health, health) != 0 && ptc_sys_now_ns() < until);
	return strcmp(v.health, health) == 0;
}

static bool is_dead(struct ptc_node_devices *d, size_t i)
{
	struct ptc_node_device v;

	ptc_node_devices_get(d, i, &v);
	return v.dead;
}

/* Numbers stay when a device falls ill, is lost, or is shown no more. */
static void test_look(void **state)
{
	struct ptc_node_devices *d = found();
	char lost[96];
	FILE *f;

	setenv("PTC_FAKE_NVML", "1:ecc", 1);
	assert_true(becomes(d, 1, "ecc"));
	assert_true(becomes(d, 0, "ok"));
	unsetenv("PTC_FAKE_NVML");
	assert_true(becomes(d, 1, "ok"));
	setenv("PTC_FAKE_GPU_DEVICES", "1", 1);
	assert_true(becomes(d, 1, "lost"));
	assert_true(is_dead(d, 1));
	unsetenv("PTC_FAKE_GPU_DEVICES");
	assert_true(becomes(d, 1, "ok"));
	assert_false(is_dead(d, 1));
	setenv("PTC_FAKE_NVML_START", "18", 1); /* another driver has been installed: processes go on with theirs */
	assert_true(becomes(d, 1, "lost"));
	assert_false(is_dead(d, 1));
	unsetenv("PTC_FAKE_NVML_START");
	assert_true(becomes(d, 1, "ok"));
	snprintf(lost, sizeof lost, "%s/lost-0", dir);
	f = fopen(lost, "w");
	assert_non_null(f);
	fclose(f);
	assert_true(becomes(d, 0, "lost"));
	assert_true(is_dead(d, 0));
	unlink(lost);
	assert_true(becomes(d, 0, "ok"));
	assert_string_equal(ptc_node_devices_ids(d), UUID0 "," UUID1);
	ptc_node_devices_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_all, setup, teardown),
		cmocka_unit_test_setup_teardown(test_visible, setup, teardown),
		cmocka_unit_test_setup_teardown(test_none, setup, teardown),
		cmocka_unit_test_setup_teardown(test_malformed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_virtual, setup, teardown),
		cmocka_unit_test_setup_teardown(test_look, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
