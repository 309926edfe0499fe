/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and documents of devices that a job has left: what is written is read again; a listing drops what it has not; a
 * device counts until its time is over, and not in the millisecond of its end; what is malformed is refused. */
#include "daemon/cluster/devices/slow_devices.h"

#include "base/alloc.h"
#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void put(struct ptc_slow_devices *d, const char *node, uint32_t device, int64_t since_ms, int64_t until_ms)
{
	struct ptc_slow_device s = { .device = device, .since_ms = since_ms, .until_ms = until_ms };
	struct ptc_error err = PTC_ERROR_INIT;
	char key[PTC_SLOW_LEAF_BYTES], *json;

	memcpy(s.node, node, strlen(node) + 1);
	ptc_slow_device_key(&s, key);
	json = ptc_slow_device_encode(&s);
	assert_non_null(json);
	assert_int_equal(ptc_slow_device_put(d, key, json, strlen(json), &err), 0);
	ptc_free(json);
}

static void test_until(void **state)
{
	struct ptc_slow_devices d = { 0 };
	const struct ptc_slow_device *s;

	(void)state;
	assert_null(ptc_slow_device_find(&d, "n1", 0, 0));
	put(&d, "n1", 0, 1000, 5000);
	put(&d, "n1", 63, 1000, 6000);
	s = ptc_slow_device_find(&d, "n1", 0, 4999);
	assert_non_null(s);
	assert_true(s->since_ms == 1000 && s->until_ms == 5000);
	assert_null(ptc_slow_device_find(&d, "n1", 0, 5000));
	assert_non_null(ptc_slow_device_find(&d, "n1", 63, 5000));
	assert_null(ptc_slow_device_find(&d, "n1", 1, 0));
	assert_null(ptc_slow_device_find(&d, "n11", 0, 0));
	put(&d, "n1", 0, 7000, 9000); /* again: the later one counts */
	assert_int_equal(d.n, 2);
	assert_non_null(ptc_slow_device_find(&d, "n1", 0, 8999));
	ptc_slow_device_delete(&d, "slow/n1/0");
	ptc_slow_device_delete(&d, "slow/n1/0");
	ptc_slow_device_delete(&d, "slow/n2/0");
	assert_int_equal(d.n, 1);
	assert_null(ptc_slow_device_find(&d, "n1", 0, 0));
	ptc_slow_devices_done(&d);
	assert_int_equal(d.n, 0);
}

/* It says which devices are left now: not since when, nor in which order they were written down. */
static void test_key(void **state)
{
	struct ptc_slow_devices d = { 0 }, e = { 0 };
	uint64_t one, two;

	(void)state;
	assert_int_equal(ptc_slow_devices_key(&d, 0), 0);
	put(&d, "n1", 0, 1, 5);
	one = ptc_slow_devices_key(&d, 1);
	assert_int_not_equal(one, 0);
	put(&d, "n2", 0, 2, 9);
	two = ptc_slow_devices_key(&d, 1);
	assert_int_not_equal(two, one);
	put(&e, "n2", 0, 1, 7);
	put(&e, "n1", 0, 3, 8);
	assert_int_equal(ptc_slow_devices_key(&e, 1), two);
	assert_int_not_equal(ptc_slow_devices_key(&d, 5), two); /* the time of n1:0 is over */
	ptc_slow_device_delete(&d, "slow/n2/0");
	assert_int_equal(ptc_slow_devices_key(&d, 4), one);
	assert_int_equal(ptc_slow_devices_key(&d, 5), 0);
	ptc_slow_device_delete(&d, "slow/n1/0");
	put(&d, "n1", 1, 1, 5);
	assert_int_not_equal(ptc_slow_devices_key(&d, 1), one);
	ptc_slow_devices_done(&d);
	ptc_slow_devices_done(&e);
}

static void test_listing(void **state)
{
	struct ptc_slow_devices d = { 0 };

	(void)state;
	put(&d, "n1", 0, 1, 9);
	put(&d, "n2", 0, 1, 9);
	put(&d, "n3", 0, 1, 9);
	ptc_slow_devices_unseen(&d);
	assert_non_null(ptc_slow_device_find(&d, "n1", 0, 1)); /* until the listing is complete */
	put(&d, "n2", 0, 1, 9);
	put(&d, "n4", 0, 1, 9);
	ptc_slow_devices_listed(&d);
	assert_int_equal(d.n, 2);
	assert_non_null(ptc_slow_device_find(&d, "n2", 0, 1));
	assert_non_null(ptc_slow_device_find(&d, "n4", 0, 1));
	ptc_slow_devices_done(&d);
}

static void test_refused(void **state)
{
	static const char good[] = "{\"version\":1,\"since_ms\":1,\"until_ms\":2}";
	static const struct {
		const char *key, *json;
		int rc;
	} k[] = {
		{ "slow/n1", good, PTC_EINVAL },
		{ "slow//0", good, PTC_EINVAL },
		{ "slow/n1/", good, PTC_EINVAL },
		{ "slow/n1/-1", good, PTC_EINVAL },
		{ "slow/n1/1x", good, PTC_EINVAL },
		{ "slow/n1/64", good, PTC_EINVAL },
		{ "slow/n1/0", "{", PTC_EINVAL },
		{ "slow/n1/0", "{\"version\":1,\"since_ms\":1}", PTC_EINVAL },
		{ "slow/n1/0", "{\"version\":99,\"since_ms\":1,\"until_ms\":2}", PTC_EVERSION },
		{ "slow/n1/0", "{\"version\":1,\"needs\":[\"x\"],\"since_ms\":1,\"until_ms\":2}", PTC_EVERSION },
	};
	struct ptc_slow_devices d = { 0 };

	(void)state;
	for (size_t i = 0; i < PTC_ARRAY_LEN(k); i++) {
		struct ptc_error err = PTC_ERROR_INIT;

		assert_int_equal(ptc_slow_device_put(&d, k[i].key, k[i].json, strlen(k[i].json), &err), k[i].rc);
		assert_true(err.text[0] != '\0');
	}
	assert_int_equal(d.n, 0);
	ptc_slow_devices_done(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_until),
		cmocka_unit_test(test_key),
		cmocka_unit_test(test_listing),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
