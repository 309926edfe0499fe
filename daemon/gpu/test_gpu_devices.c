/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA_VISIBLE_DEVICES as the driver reads it. */
#include "base/alloc.h"
#include "daemon/gpu/gpu_devices.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N 4

static struct ptc_gpu_device devices[N];

static int setup(void **state)
{
	static const char *const uuids[N] = { "GPU-aa000000-1", "GPU-aa110000-2", "GPU-bb000000-3", "MIG-cc000000-4" };

	memset(devices, 0, sizeof devices);
	for (unsigned i = 0; i < N; i++) {
		snprintf(devices[i].uuid, sizeof devices[i].uuid, "%s", uuids[i]);
		devices[i].index = i;
	}
	devices[3].kind = PTC_GPU_MIG;
	return 0;
}

/* `want` names the visible devices in CUDA's order. */
static void expect(const char *value, const char *want)
{
	char got[N + 1] = "";

	ptc_gpu_devices_show(devices, N, value);
	for (int place = 0; place < N; place++)
		for (int i = 0; i < N; i++)
			if (devices[i].visible == place)
				got[strlen(got)] = (char)('0' + i);
	if (strcmp(got, want) != 0)
		fail_msg("CUDA_VISIBLE_DEVICES=%s shows \"%s\", not \"%s\"", value ? value : "(unset)", got, want);
}

static void test_indices(void **state)
{
	expect(NULL, "0123");
	expect("", "");
	expect("0,1,2", "012");
	expect("2,0", "20");
	expect(" 1 , 0", "10");
	expect("1gpu2,2ampere", "12");
}

static void test_end_of_list(void **state)
{
	expect("-1", "");
	expect("0,-1,1", "0");
	expect("1,9,0", "1");
	expect("0,,1", "0");
	expect("0,x,1", "0");
	expect("99999999999999999999", "");
}

static void test_repeated(void **state)
{
	expect("0,1,0", "");
	expect("GPU-bb,GPU-bb000000-3", "");
	expect("2,GPU-bb", "");
}

static void test_uuids(void **state)
{
	expect("GPU-bb", "2");
	expect("GPU-BB", "2");
	expect("GPU-aa", "");
	expect("GPU-aa1,GPU-aa0", "10");
	expect("GPU-bb000000-3,GPU-dd,GPU-aa0", "2");
	expect("MIG-cc", "3");
	expect("GPU-", "");
	expect("3", ""); /* an instance has no index */
}

static void test_json(void **state)
{
	struct ptc_error none = PTC_ERROR_INIT;
	char *text;

	snprintf(devices[0].name, sizeof devices[0].name, "a \"name\"\n");
	ptc_gpu_devices_show(devices, N, "1");
	text = ptc_gpu_devices_json(devices, 2, &none);
	assert_non_null(strstr(text, "\"name\":\"a \\\"name\\\"\\n\""));
	assert_non_null(strstr(text, "\"cuda_index\":0"));
	assert_null(strstr(text, "why"));
	ptc_free(text);
	ptc_error_set(&none, PTC_ENODEVICES, "no driver");
	text = ptc_gpu_devices_json(devices, 0, &none);
	assert_string_equal(
		text, "{\"version\":1,\"devices\":[],\"kernels\":\"none: PTC_GPU_KERNELS=off\",\"why\":\"no driver\"}");
	ptc_free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_indices, setup),  cmocka_unit_test_setup(test_end_of_list, setup),
		cmocka_unit_test_setup(test_repeated, setup), cmocka_unit_test_setup(test_uuids, setup),
		cmocka_unit_test_setup(test_json, setup),
	};

	setenv("PTC_GPU_KERNELS", "off", 1); /* whatever this build has */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
