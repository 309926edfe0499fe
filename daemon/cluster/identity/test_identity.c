/* SPDX-License-Identifier: Apache-2.0 */
/* Identities: what is written is read; which etcd fits a state directory. */
#include "daemon/cluster/identity/identity.h"

#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ID    "00000000-0000-0000-0000-000000000001"
#define OTHER "00000000-0000-0000-0000-000000000002"

static void test_text(void **state)
{
	struct ptc_identity i = { .id = ID }, got;
	char *text = ptc_identity_encode(&i);

	(void)state;
	assert_string_equal(text, "{\"version\":1,\"id\":\"" ID "\"}"); /* as before there were epochs */
	ptc_free(text);
	i.epoch = 7;
	text = ptc_identity_encode(&i);
	assert_int_equal(ptc_identity_decode("x", text, &got, NULL), 0);
	assert_string_equal(text, "{\"version\":1,\"id\":\"" ID "\",\"epoch\":7}");
	assert_string_equal(got.id, ID);
	assert_int_equal(got.epoch, 7);
	ptc_free(text);
}

static void test_refused(void **state)
{
	static const char *const bad[][2] = {
		{ "", "the name of a cluster: x: " },
		{ "[]", "must be a map" },
		{ "{\"version\":1}", "x: \"id\" is missing" },
		{ "{\"id\":7}", "x: \"id\" must be a text" },
		{ "{\"id\":\"short\"}", "x: \"id\" must be a text of at least 36 bytes" },
		{ "{\"id\":\"" ID "0\"}", "x: \"id\" must be a text of at most 36 bytes" },
		{ "{\"id\":\"" ID "\",\"epoch\":-1}", "x: \"epoch\" must be a whole number in 0..262143" },
		{ "{\"id\":\"" ID "\",\"epoch\":1000000}", "x: \"epoch\" must be a whole number" },
		{ "{\"id\":\"" ID "\",\"epoch\":\"7\"}", "x: \"epoch\" must be a whole number" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ptc_identity got = { .id = OTHER };
		struct ptc_error err = PTC_ERROR_INIT;

		assert_int_equal(ptc_identity_decode("x", bad[i][0], &got, &err), PTC_EINVAL);
		if (!strstr(err.text, bad[i][1]))
			fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i][1]);
		assert_string_equal(got.id, OTHER); /* untouched */
	}
}

static void test_fit(void **state)
{
	static const char e0[] = "{\"version\":1,\"id\":\"" ID "\"}",
			  e1[] = "{\"version\":1,\"id\":\"" ID "\",\"epoch\":1}",
			  other[] = "{\"version\":1,\"id\":\"" OTHER "\"}";

	(void)state;
	assert_int_equal(ptc_identity_fit(NULL, NULL), PTC_IDENTITY_SAME);
	assert_int_equal(ptc_identity_fit(NULL, e1), PTC_IDENTITY_SAME);
	assert_int_equal(ptc_identity_fit(e1, e1), PTC_IDENTITY_SAME);
	assert_int_equal(ptc_identity_fit(e0, NULL), PTC_IDENTITY_EMPTY);
	assert_int_equal(ptc_identity_fit(e0, e1), PTC_IDENTITY_BEHIND);
	assert_int_equal(ptc_identity_fit(e1, e0), PTC_IDENTITY_OLD);
	assert_int_equal(ptc_identity_fit(e0, other), PTC_IDENTITY_OTHER);
	assert_int_equal(ptc_identity_fit("{", e0), PTC_IDENTITY_OTHER);
	assert_int_equal(ptc_identity_fit(e0, "{"), PTC_IDENTITY_OTHER);
}

/* Only a later epoch of the same cluster says that an etcd has been replaced; and it is remembered. */
static void test_peer(void **state)
{
	static const char e0[] = "{\"version\":1,\"id\":\"" ID "\"}",
			  e1[] = "{\"version\":1,\"id\":\"" ID "\",\"epoch\":1}",
			  other[] = "{\"version\":1,\"id\":\"" OTHER "\",\"epoch\":1}";
	char dir[] = "/tmp/ptc-identity-XXXXXX", path[64];
	struct ptc_error err = PTC_ERROR_INIT;

	(void)state;
	assert_int_equal(ptc_identity_check_peer(e0, "node n1 is", e0, NULL), 0);
	assert_int_equal(ptc_identity_check_peer(e1, "node n1 is", e1, NULL), 0);
	assert_int_equal(ptc_identity_check_peer(e1, "node n1 is", e0, NULL), 0);
	assert_int_equal(ptc_identity_check_peer(e0, "node n1 is", other, NULL), 0);
	assert_int_equal(ptc_identity_check_peer(e0, "node n1 is", "{", NULL), 0);
	assert_int_equal(ptc_identity_check_peer(e0, "node n1 is", e1, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "node n1 is of coordination epoch 1, and this etcd of epoch 0"));

	assert_non_null(mkdtemp(dir));
	assert_int_equal(ptc_identity_check_told(dir, e0, NULL), 0);
	assert_int_equal(ptc_identity_told(dir, e1, NULL), 0);
	assert_int_equal(ptc_identity_check_told(dir, e0, NULL), PTC_ESTATE);
	assert_int_equal(ptc_identity_check_told(dir, e1, NULL), 0); /* it has rejoined */
	assert_int_equal(ptc_identity_check_told(dir, other, NULL), 0);
	assert_int_equal(ptc_identity_check_told(dir, NULL, NULL), 0);
	snprintf(path, sizeof path, "%s/replaced", dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_text), cmocka_unit_test(test_refused),
					    cmocka_unit_test(test_fit), cmocka_unit_test(test_peer) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
