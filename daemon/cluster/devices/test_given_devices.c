/* SPDX-License-Identifier: Apache-2.0 */
/* The document of devices against a table of bits: random gifts and takings; who may have what, by the rule alone; what
 * is encoded is decoded again, and what is malformed is refused. */
#include "daemon/cluster/devices/given_devices.h"
#include "daemon/cluster/devices/unhealthy.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/test_seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define JOBS    5
#define NODES   3
#define DEVICES 4

static const bool shares[JOBS] = { false, true, true, false, true };

static const char *uuid(unsigned job)
{
	static char text[JOBS][PTC_DEVICES_UUID];

	snprintf(text[job], sizeof text[job], "%08u-0000-4000-8000-000000000000", job);
	return text[job];
}

static struct ptc_device_given given(unsigned job, unsigned node, unsigned device)
{
	struct ptc_device_given g = { .device = device, .shares = shares[job] };

	snprintf(g.node, sizeof g.node, "n%u", node);
	snprintf(g.uuid, sizeof g.uuid, "%s", uuid(job));
	return g;
}

typedef bool table[JOBS][NODES][DEVICES];

static void check(const struct ptc_devices_doc *d, table has)
{
	size_t n = 0;

	for (unsigned j = 0; j < JOBS; j++) {
		for (unsigned k = 0; k < NODES * DEVICES; k++) {
			struct ptc_device_given g = given(j, k / DEVICES, k % DEVICES);
			bool taken = false, mine = has[j][k / DEVICES][k % DEVICES];
			const struct ptc_device_given *by;

			for (unsigned o = 0; o < JOBS; o++)
				taken |= o != j && has[o][k / DEVICES][k % DEVICES] && !(shares[o] && shares[j]);
			assert_int_equal(ptc_devices_has(d, g.node, g.device, g.uuid), mine);
			by = ptc_devices_taken(d, g.node, g.device, g.uuid, g.shares);
			assert_int_equal(by != NULL, taken);
			assert_true(!by || (strcmp(by->uuid, g.uuid) != 0 && strcmp(by->node, g.node) == 0 &&
					    by->device == g.device));
			n += mine;
		}
	}
	assert_int_equal(d->n, n);
	for (unsigned node = 0; node < NODES; node++) {
		const struct ptc_device_given *g;
		char name[8];
		size_t of = 0;

		snprintf(name, sizeof name, "n%u", node);
		g = ptc_devices_of_node(d, name, &of);
		for (size_t i = 0; i < of; i++)
			assert_string_equal(g[i].node, name);
		n -= of;
	}
	assert_int_equal(n, 0);
}

static void check_again(const struct ptc_devices_doc *d, table has)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_devices_doc again;
	char *json = ptc_devices_doc_encode(d), *second;

	assert_non_null(json);
	if (ptc_devices_doc_decode(json, strlen(json), &again, &err))
		fail_msg("%s: %s", err.text, json);
	check(&again, has);
	second = ptc_devices_doc_encode(&again);
	assert_string_equal(json, second);
	ptc_devices_doc_done(&again);
	ptc_free(json);
	ptc_free(second);
}

static bool keep_even(void *arg, const struct ptc_device_given *g)
{
	(void)arg;
	return g->device % 2 == 0;
}

static void test_random(void **state)
{
	struct ptc_devices_doc d = { 0 };
	table has = { 0 };

	(void)state;
	srand((unsigned)ptc_test_seed());
	for (int i = 0; i < 400; i++) {
		unsigned job = (unsigned)rand() % JOBS, n = (unsigned)rand() % 5, what = (unsigned)rand() % 4;
		struct ptc_device_given more[5];
		bool any = false;

		for (unsigned k = 0; k < n && what; k++) {
			unsigned node = k % NODES, device = (unsigned)rand() % DEVICES;

			device = k < NODES ? device : (device + 1) % DEVICES; /* each other than those before */
			if (k >= NODES && more[k - NODES].device == device)
				device = (device + 1) % DEVICES;
			more[k] = given(job, node, device);
			has[job][node][device] = true;
		}
		if (what) {
			assert_int_equal(ptc_devices_add(&d, more, n), 0);
		} else {
			for (unsigned k = 0; k < NODES * DEVICES; k++) {
				bool goes = n % 2 == 0 || k % DEVICES % 2;

				any |= goes && has[job][k / DEVICES][k % DEVICES];
				has[job][k / DEVICES][k % DEVICES] &= !goes;
			}
			assert_int_equal(ptc_devices_take(&d, uuid(job), n % 2 ? keep_even : NULL, NULL), any);
		}
		check(&d, has);
		if (i % 20 == 0)
			check_again(&d, has);
	}
	ptc_devices_doc_done(&d);
}

/* As many devices as docs/decisions/0021 says, of nodes with the longest names. */
static void test_fits(void **state)
{
	struct ptc_devices_doc d = { 0 };
	struct ptc_device_given more[8];
	char *json;

	(void)state;
	for (unsigned node = 0; node < 1024; node++) {
		for (unsigned k = 0; k < 8; k++) {
			more[k] = given(0, node, k);
			snprintf(more[k].node, sizeof more[k].node, "%063u", node);
		}
		assert_int_equal(ptc_devices_add(&d, more, 8), 0);
	}
	assert_int_equal(d.n, 8192);
	json = ptc_devices_doc_encode(&d);
	assert_non_null(json);
	assert_in_range(strlen(json), 1, PTC_DEVICES_MAX_BYTES / 2);
	ptc_free(json);
	ptc_devices_doc_done(&d);
}

static void refuse(const char *json, const char *why)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_devices_doc d;

	if (ptc_devices_doc_decode(json, strlen(json), &d, &err) == 0)
		fail_msg("accepted: %s", json);
	if (!strstr(err.text, why))
		fail_msg("\"%s\" does not say \"%s\": %s", err.text, why, json);
}

#define JOB "00000001-0000-4000-8000-000000000000"

static void test_malformed(void **state)
{
	(void)state;
	refuse("[", "document of devices");
	refuse("{\"version\":1}", "document of devices: \"jobs\" is missing");
	refuse("{\"version\":1,\"jobs\":[]}", "\"jobs\" must be a map");
	refuse("{\"version\":1,\"jobs\":{\"short\":{\"shares\":true,\"nodes\":{}}}}", "at least 36 bytes");
	refuse("{\"version\":1,\"jobs\":{\"" JOB "0\":{\"shares\":true,\"nodes\":{}}}}", "at most 36 bytes");
	refuse("{\"version\":1,\"jobs\":{\"" JOB "\":{\"nodes\":{}}}}", "\"shares\" is missing");
	refuse("{\"version\":1,\"jobs\":{\"" JOB "\":{\"shares\":true,\"nodes\":{\"a\":3}}}}", "\"a\" must be a list");
	refuse("{\"version\":1,\"jobs\":{\"" JOB "\":{\"shares\":true,\"nodes\":{\"\":[]}}}}", "at least 1 bytes");
	refuse("{\"version\":1,\"jobs\":{\"" JOB "\":{\"shares\":true,\"nodes\":{\"a\":[-1]}}}}",
	       "\"a\" must be a whole");
	refuse("{\"version\":1,\"jobs\":{\"" JOB "\":{\"shares\":true,\"nodes\":{\"a\":[64]}}}}", "number in 0..63");
	refuse("{\"version\":1,\"jobs\":{\"" JOB "\":{\"shares\":true,\"nodes\":{\"a\":[1,1]}}}}",
	       "job " JOB " has device 1 of node a twice");
	refuse("{\"version\":9,\"jobs\":{}}", "version");
}

static void test_well(void **state)
{
	static const char *const text[] = { "", "1:ecc", "11:lost,1:reset-required", "x", ",,1:", ":ecc", "1" };
	static const char *const one[] = { NULL, "ecc", "reset-required", NULL, "", NULL, NULL };
	char health[PTC_HEALTH_BYTES];

	(void)state;
	for (size_t i = 0; i < PTC_ARRAY_LEN(text); i++) {
		health[0] = '\0';
		assert_int_equal(ptc_device_well(text[i], 1, health), one[i] == NULL);
		assert_string_equal(health, one[i] ? one[i] : "");
		assert_true(ptc_device_well(text[i], 0, NULL) && ptc_device_well(text[i], 111, NULL));
		assert_int_equal(ptc_device_well(text[i], 11, NULL), i != 2);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_well),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_fits),
		cmocka_unit_test(test_malformed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
