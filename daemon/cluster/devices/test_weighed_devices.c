/* SPDX-License-Identifier: Apache-2.0 */
/* The document of weighed devices: written, read again, of the next version, and refused. */
#include "daemon/cluster/devices/weighed_devices.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/test_leaks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void written_and_read(void **state)
{
	static const char text[] =
		"{\"version\":1,\"nodes\":{\"n1\":8,\"n0\":4294967295},\"stays\":\"it does not pay\",\"failed\":true}",
			  next[] = "{\"version\":2,\"nodes\":{},\"later\":1}";
	struct ptc_weighed_doc d;
	char *json;

	(void)state;
	assert_int_equal(0, ptc_weighed_doc_decode(text, strlen(text), &d, NULL));
	assert_true(d.n == 2 && d.v[0].devices == 8 && d.v[1].devices == UINT32_MAX);
	assert_string_equal("n1", d.v[0].node);
	assert_string_equal("it does not pay", d.stays);
	assert_true(d.failed);
	json = ptc_weighed_doc_encode(&d);
	assert_string_equal(text, json);
	ptc_free(json);
	ptc_weighed_doc_done(&d);
	assert_int_equal(0, ptc_weighed_doc_decode(next, strlen(next), &d, NULL));
	assert_true(d.n == 0 && !d.stays[0] && !d.failed);
	ptc_weighed_doc_done(&d);
}

static void malformed_ones_are_refused(void **state)
{
	static const struct {
		const char *json, *says;
		int code;
	} bad[] = {
		{ "{\"version\":4,\"nodes\":{}}", "weighed devices: version 4", PTC_EVERSION },
		{ "{\"nodes\":{}}", "weighed devices: no version", PTC_EINVAL },
		{ "{\"version\":1}", "\"nodes\" is missing", PTC_EINVAL },
		{ "{\"version\":1,\"nodes\":[]}", "\"nodes\" must be a map", PTC_EINVAL },
		{ "{\"version\":1,\"nodes\":{\"n0\":1,\"n1\":-1}}", "weighed devices: \"n1\" must be a whole number",
		  PTC_EINVAL },
		{ "{\"version\":1,\"nodes\":{\"n0\":\"8\"}}", "\"n0\" must be a whole number", PTC_EINVAL },
		{ "{\"version\":1,\"nodes\":{\"n0\":1,\"n0\":1}}", "weighed devices", PTC_EINVAL },
	};

	(void)state;
	for (size_t i = 0; i < PTC_ARRAY_LEN(bad); i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_weighed_doc d;

		assert_int_equal(bad[i].code, ptc_weighed_doc_decode(bad[i].json, strlen(bad[i].json), &d, &err));
		if (!strstr(err.text, bad[i].says))
			fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].says);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(written_and_read),
		cmocka_unit_test(malformed_ones_are_refused),
	};

	return test_leaks(cmocka_run_group_tests(tests, NULL, NULL));
}
