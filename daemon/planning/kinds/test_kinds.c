/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of nodes by what they announce, and what is said of those that nobody knows. */
#include "daemon/planning/kinds/kinds.h"

#include "base/alloc.h"
#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct ptc_planning_node nodes[4];
static struct ptc_kinds kinds;
static uint8_t kind_of[4];
static struct ptc_plan_devices *known;

static void name(size_t i, uint32_t devices, const char *device, uint64_t bytes)
{
	nodes[i] = (struct ptc_planning_node){ .devices = devices, .device_bytes = bytes };
	snprintf(nodes[i].name, sizeof nodes->name, "n%zu", i);
	snprintf(nodes[i].device_name, sizeof nodes->device_name, "%s", device);
}

static int find(const struct ptc_cluster_profile *own, enum ptc_math dtype, struct ptc_error *err)
{
	struct ptc_kinds_ask ask = { nodes, 4, 8, known, own, dtype };

	return ptc_kinds_find(&ask, &kinds, kind_of, err);
}

/* Names as NVML has them, each beside the one that the installed file lists. */
static void names_of_drivers(void **state)
{
	static const struct {
		const char *driver, *listed;
		uint64_t bytes;
	} cases[] = {
		{ "NVIDIA H100 80GB HBM3", "H100-80GB", 85520809984 },
		{ "NVIDIA A100-SXM4-80GB", "A100-80GB", 85899345920 },
		{ "NVIDIA A100-PCIE-40GB", "A100-40GB", 42505076736 },
		{ "NVIDIA A100 80GB PCIe", "A100-80GB", 85197193216 },
		{ "NVIDIA H200", "H200-141GB", 150754820096 },
		{ "NVIDIA GH200 480GB", "GH200-96GB", 102005473280 },
		{ "NVIDIA B200", "B200", 191503532032 },
		{ "NVIDIA L40S", "L40S", 48305799168 },
		{ "Tesla T4", "T4", 15843721216 },
		{ "Tesla V100-SXM2-32GB", "V100-32GB", 34089730048 },
		{ "Tesla V100-SXM2-16GB", "V100-16GB", 16945512448 },
		{ "NVIDIA GeForce RTX 3090", "RTX-3090", 25769803776 },
		{ "h100-80gb", "H100-80GB", 0 },
	};
	static const char *const strange[] = { "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 NVL", "NVIDIA H100",
					       "80GB", "" };
	struct ptc_device_kind k;

	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		if (ptc_plan_device_named(known, cases[i].driver, (double)cases[i].bytes, PTC_MATH_16BIT, &k, NULL))
			fail_msg("%s is not known", cases[i].driver);
		assert_string_equal(k.name, cases[i].listed);
	}
	for (size_t i = 0; i < PTC_ARRAY_LEN(strange); i++)
		if (ptc_plan_device_named(known, strange[i], 100485038080, PTC_MATH_16BIT, &k, NULL) != PTC_ENOTFOUND)
			fail_msg("%s is taken for %s", strange[i], k.name);
}

static void kinds_of_nodes(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;

	name(0, 8, "NVIDIA H100 80GB HBM3", 85520809984);
	name(1, 8, "NVIDIA A100-SXM4-40GB", 42505076736);
	name(2, 8, "H100-80GB", 70000000000); /* its driver shows less than the data sheet */
	name(3, 0, "T4", 0);
	assert_int_equal(0, find(NULL, PTC_MATH_BF16, &err));
	assert_int_equal(2, kinds.n);
	assert_string_equal("H100-80GB", kinds.v[0].name);
	assert_true(kinds.v[0].flops == 989e12 && kinds.v[0].nodes == 2 && kinds.v[0].memory_bytes == 7e10);
	assert_true(kinds.v[1].memory_bytes == 40e9 && kinds.v[1].price_hour > 0);
	assert_true(kind_of[0] == 0 && kind_of[1] == 1 && kind_of[2] == 0 && kind_of[3] == PTC_KIND_NONE);
	assert_true(!kinds.assumed && kinds.memory_known && !kinds.said[0]);
	assert_int_equal(0, find(NULL, PTC_MATH_TF32, &err)); /* of which the program itself knows nothing */
	assert_true(kinds.v[0].flops == 494e12);
	assert_int_equal(PTC_EINVAL, find(NULL, PTC_MATH_FP8, &err));
	assert_string_equal("device A100-40GB does not compute fp8", err.text);
}

static void what_nobody_knows(void **state)
{
	struct ptc_cluster_profile own = { .nkinds = 1, .kinds = { { "Homemade", 1e12, 1e11, 5e9, 0, 1 } } };

	for (size_t i = 0; i < 4; i++)
		name(i, 4, "", 0);
	assert_int_equal(0, find(NULL, PTC_MATH_16BIT, NULL));
	assert_true(kinds.n == 1 && kinds.assumed && !kinds.memory_known && !kinds.said[0]);
	assert_int_equal(4, kinds.v[0].nodes);
	assert_int_equal(0, find(&own, PTC_MATH_16BIT, NULL)); /* as a profile of one kind says */
	assert_true(kinds.n == 1 && !kinds.assumed && kinds.memory_known && !kinds.said[0]);
	assert_string_equal("Homemade", kinds.v[0].name);
	own.kinds[1] = (struct ptc_device_kind){ "Slower", 1e11, 1e11, 5e9, 0, 1 };
	own.nkinds = 2;
	assert_int_equal(0, find(&own, PTC_MATH_16BIT, NULL));
	assert_string_equal("node n0 does not say what its devices are: Slower counts", kinds.said);
	name(1, 4, "Homemade", 0);
	name(2, 4, "Quantum 9", 3000000000);
	name(3, 4, "A100-80GB", 0);
	assert_int_equal(0, find(&own, PTC_MATH_16BIT, NULL));
	assert_int_equal(2, kinds.n); /* what nobody knows counts as the slowest that is there */
	assert_string_equal("device \"Quantum 9\" of node n2 is in no devices file, and counts as Homemade",
			    kinds.said);
	assert_true(kind_of[0] == 0 && kind_of[1] == 0 && kind_of[2] == 0 && kind_of[3] == 1);
	assert_true(kinds.v[0].memory_bytes == 3e9 && kinds.v[0].nodes == 3);
	name(1, 4, "", 0);
	name(3, 4, "", 4000000000);
	assert_int_equal(0, find(NULL, PTC_MATH_16BIT, NULL)); /* an A100, but for the memory that one of them has */
	assert_true(kinds.assumed && kinds.v[0].memory_bytes == 3e9);
}

static void files(void **state)
{
	struct ptc_plan_devices *own = NULL;
	struct ptc_error err = PTC_ERROR_INIT;

	assert_int_not_equal(0, ptc_kinds_load("/nowhere/devices.yaml", &own, &err));
	assert_non_null(strstr(err.text, "/nowhere/devices.yaml"));
	assert_int_equal(0, ptc_kinds_load(NULL, &own, &err)); /* the installed one, or those built in */
	assert_true(own->n > 10);
	ptc_free(own);
}

static int load(void **state)
{
	return ptc_kinds_load(DEVICES_YAML, &known, NULL);
}

static int drop(void **state)
{
	ptc_free(known);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_of_drivers),
		cmocka_unit_test(kinds_of_nodes),
		cmocka_unit_test(what_nobody_knows),
		cmocka_unit_test(files),
	};

	return cmocka_run_group_tests(tests, load, drop);
}
