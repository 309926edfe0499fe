/* SPDX-License-Identifier: Apache-2.0 */
/* The small documents, to the letter: written, read again, with members that are not known, and refused. */
#include "daemon/cluster/marks/mark_docs.h"

#include "base/alloc.h"
#include "base/test_leaks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Cut anywhere, the text is refused. */
#define AGAIN(name, value, text)                                                                                       \
	{                                                                                                              \
		const struct ptc_##name##_doc doc = value;                                                             \
		struct ptc_##name##_doc again = { 0 };                                                                 \
		static const char later[] = "{\"version\":1,\"later\":{}," text "}";                                   \
		char *json = ptc_##name##_doc_encode(&doc);                                                            \
                                                                                                                       \
		assert_string_equal("{\"version\":1," text "}", json);                                                 \
		for (size_t len = 0; len < strlen(json); len++)                                                        \
			assert_int_equal(PTC_EINVAL, ptc_##name##_doc_decode(json, len, &again, NULL));                \
		ptc_free(json);                                                                                        \
		assert_int_equal(0, ptc_##name##_doc_decode(later, strlen(later), &again, NULL));                      \
		json = ptc_##name##_doc_encode(&again);                                                                \
		assert_string_equal("{\"version\":1," text "}", json);                                                 \
		ptc_free(json);                                                                                        \
	}
#define VALUE(...)                                                                                                     \
	{                                                                                                              \
		__VA_ARGS__                                                                                            \
	}
#define REFUSED(name, json, part)                                                                                      \
	{                                                                                                              \
		struct ptc_##name##_doc doc;                                                                           \
		struct ptc_error err = PTC_ERROR_INIT;                                                                 \
                                                                                                                       \
		assert_int_equal(PTC_EINVAL, ptc_##name##_doc_decode(json, strlen(json), &doc, &err));                 \
		assert_non_null(strstr(err.text, part));                                                               \
	}

static void written_and_read(void **state)
{
	(void)state;
	AGAIN(lock, VALUE("n0"), "\"node\":\"n0\"")
	AGAIN(barrier, VALUE(9007199254740991), "\"cleared\":9007199254740991")
	AGAIN(creation, VALUE("n0", "01234567-89ab-cdef-0123-456789abcdef", 4294967294),
	      "\"node\":\"n0\",\"boot_id\":\"01234567-89ab-cdef-0123-456789abcdef\",\"uid\":4294967294")
	AGAIN(announced, VALUE(0), "\"bytes\":0")
	AGAIN(key, VALUE("0123456789abcdef"), "\"id\":\"0123456789abcdef\"")
}

static void malformed_ones_are_refused(void **state)
{
	(void)state;
	REFUSED(lock, "{\"version\":1}", "\"node\" is missing")
	REFUSED(lock, "{\"node\":1}", "node")
	REFUSED(lock, "\"n0\"", "lock document")
	REFUSED(barrier, "{\"cleared\":-1}", "cleared")
	REFUSED(barrier, "{\"cleared\":\"1\"}", "cleared")
	REFUSED(creation, "{\"node\":\"n0\",\"uid\":1}", "\"boot_id\" is missing")
	REFUSED(creation, "{\"node\":\"n0\",\"boot_id\":\"b\",\"uid\":-1}", "uid")
	REFUSED(creation, "{\"node\":\"n0\",\"boot_id\":\"0123456789012345678901234567890123456\",\"uid\":0}",
		"boot_id")
	REFUSED(announced, "{\"bytes\":1.5}", "bytes")
	REFUSED(key, "{\"id\":\"0123456789abcdef\"}", "/ptc/key: no version")
	REFUSED(key, "{\"version\":1,\"id\":\"0123456789abcde\"}", "\"id\" must be a text of at least 16 bytes")
	REFUSED(key, "{\"version\":1,\"id\":\"0123456789abcdef0\"}", "\"id\" must be a text of at most 16 bytes")
	REFUSED(key, "{\"version\":1}", "\"id\" is missing")
}

static void of_the_key_the_next_version_is_read(void **state)
{
	static const char next[] = "{\"version\":2,\"id\":\"0123456789abcdef\"}",
			  far[] = "{\"version\":4,\"id\":\"0123456789abcdef\"}";
	struct ptc_key_doc doc;

	(void)state;
	assert_int_equal(0, ptc_key_doc_decode(next, strlen(next), &doc, NULL));
	assert_int_equal(PTC_EVERSION, ptc_key_doc_decode(far, strlen(far), &doc, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(written_and_read),
		cmocka_unit_test(malformed_ones_are_refused),
		cmocka_unit_test(of_the_key_the_next_version_is_read),
	};

	return test_leaks(cmocka_run_group_tests(tests, NULL, NULL));
}
