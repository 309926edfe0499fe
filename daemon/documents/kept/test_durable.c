/* SPDX-License-Identifier: Apache-2.0 */
/* Durable documents: what is read is what was written; bytes that are changed or cut off are refused, every one. */
#include "daemon/documents/kept/durable.h"

#include "base/alloc.h"
#include "base/number/digest.h"
#include "base/number/fence.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void add(struct ptc_kept_job *j, const char *bytes, size_t len)
{
	char hash[PTC_HASH_HEX], *data = ptc_malloc(len + 1);

	assert_non_null(data);
	memcpy(data, bytes, len);
	data[len] = '\0';
	ptc_content_hash(data, len, hash);
	assert_int_equal(ptc_kept_job_add(j, hash, data, len), 0);
}

static void encoded(char **ret_data, size_t *ret_len)
{
	static char meta[] = "{\"version\":1,\"name\":\"j\"}", record[] = "{\"version\":1,\"step\":7}", older[] = "{}";
	struct ptc_kept_job blobs = { 0 };
	struct ptc_durable d = { .epoch = 3, .revision = 99, .blobs = &blobs };

	d.key[PTC_DURABLE_META] = meta;
	d.key[PTC_DURABLE_RECORD] = record;
	d.key[PTC_DURABLE_OLDER] = older;
	add(&blobs, "a\0b", 3);
	add(&blobs, "", 0);
	add(&blobs, "{\"manifest\":1}", 14);
	assert_int_equal(ptc_durable_encode(&d, ret_data, ret_len), 0);
	ptc_kept_job_empty(&blobs);
	ptc_free(blobs.v);
}

static void test_round_trip(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_durable d;
	char *data;
	size_t len;

	(void)state;
	encoded(&data, &len);
	assert_int_equal(ptc_durable_decode("j", data, len, &d, &err), 0);
	assert_int_equal(d.epoch, 3);
	assert_int_equal(d.revision, 99);
	assert_string_equal(d.key[PTC_DURABLE_META], "{\"version\":1,\"name\":\"j\"}");
	assert_string_equal(d.key[PTC_DURABLE_RECORD], "{\"version\":1,\"step\":7}");
	assert_null(d.key[PTC_DURABLE_COPIES]);
	assert_string_equal(d.key[PTC_DURABLE_OLDER], "{}");
	assert_int_equal(d.own->n, 3);
	assert_int_equal(d.own->v[0].len, 3);
	assert_memory_equal(d.own->v[0].data, "a\0b", 4);
	assert_int_equal(d.own->v[1].len, 0);
	assert_memory_equal(d.own->v[2].data, "{\"manifest\":1}", 15);
	ptc_durable_done(&d);
	ptc_free(data);
}

/* Blobs follow the header, so a change of one is found by its hash; what is cut off never adds up. */
static void test_damage(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_durable d;
	char *data;
	size_t len;

	(void)state;
	encoded(&data, &len);
	for (size_t n = 0; n < len; n++)
		assert_int_not_equal(ptc_durable_decode("j", data, n, &d, &err), 0);
	for (size_t at = len - 17; at < len; at++) {
		data[at] ^= 1;
		assert_int_equal(ptc_durable_decode("j", data, len, &d, &err), PTC_ECORRUPT);
		data[at] ^= 1;
	}
	for (size_t at = 0; at < len; at++) { /* whatever becomes of the header: no crash, no leak */
		data[at] ^= 4;
		if (ptc_durable_decode("j", data, len, &d, &err) == 0)
			ptc_durable_done(&d);
		data[at] ^= 4;
	}
	ptc_free(data);
}

/* A header, then the bytes of its blobs; the header's length is before it. */
static void framed(const char *header, const char *blobs, char data[512], size_t *ret_len)
{
	const size_t len = strlen(header);

	assert_true(len < 256);
	memcpy(data, (const char[4]){ (char)len }, 4);
	memcpy(data + 4, header, len);
	memcpy(data + 4 + len, blobs, strlen(blobs));
	*ret_len = 4 + len + strlen(blobs);
}

#define KEYS "\"keys\":{\"meta\":\"{}\",\"record\":\"{}\"}"
#define HASH "0123456789abcdef0123456789abcdef"

static void test_bytes(void **state)
{
	static char meta[] = "{}", record[] = "{}", copies[] = "[]";
	struct ptc_kept_job blobs = { 0 };
	struct ptc_durable d = { .epoch = 3, .revision = 99, .blobs = &blobs };
	char hash[PTC_HASH_HEX], header[256], want[512], *data;
	size_t len, want_len;

	(void)state;
	d.key[PTC_DURABLE_META] = meta;
	d.key[PTC_DURABLE_RECORD] = record;
	d.key[PTC_DURABLE_COPIES] = copies;
	add(&blobs, "ab", 2);
	ptc_content_hash("ab", 2, hash);
	snprintf(header, sizeof header,
		 "{\"version\":1,\"epoch\":3,\"revision\":99,\"keys\":{\"meta\":\"{}\",\"record\":\"{}\","
		 "\"copies\":\"[]\"},\"blobs\":[[\"%s\",2]]}",
		 hash);
	framed(header, "ab", want, &want_len);
	assert_int_equal(ptc_durable_encode(&d, &data, &len), 0);
	assert_int_equal(len, want_len);
	assert_memory_equal(data, want, len);
	ptc_kept_job_empty(&blobs);
	ptc_free(blobs.v);
	ptc_free(data);
}

static void test_wrong_members(void **state)
{
	static const struct {
		const char *header, *says;
		int code;
	} bad[] = {
		{ "{\"version\":1,\"epoch\":\"3\"}", "j: \"epoch\" must be a whole number", PTC_EINVAL },
		{ "{\"version\":1,\"epoch\":3,\"revision\":9,\"keys\":[]}", "j: \"keys\" must be a map", PTC_EINVAL },
		{ "{\"version\":1,\"epoch\":3,\"revision\":9,\"keys\":{\"meta\":\"\"}}", "j: \"record\" is missing",
		  PTC_EINVAL },
		{ "{\"version\":1,\"epoch\":3,\"revision\":9," KEYS "}", "j: \"blobs\" is missing", PTC_EINVAL },
		{ "{\"version\":1,\"epoch\":3,\"revision\":9," KEYS ",\"blobs\":[[\"00\",2]]}",
		  "j: \"blobs\" must be a text of at least 32 bytes", PTC_EINVAL },
		{ "{\"version\":1,\"epoch\":3,\"revision\":9," KEYS ",\"blobs\":[[\"" HASH "\",\"2\"]]}",
		  "j: \"blobs\" must be a whole number", PTC_EINVAL },
		{ "{\"version\":1,\"epoch\":3,\"revision\":9," KEYS ",\"blobs\":[[\"" HASH "\",3]]}",
		  "j: the committed documents that it keeps are damaged", PTC_ECORRUPT },
		{ "{\"version\":3,\"epoch\":3,\"revision\":9," KEYS ",\"blobs\":[]}", "j: ", PTC_EVERSION },
	};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_durable d;
		char data[512];
		size_t len;

		framed(bad[i].header, "ab", data, &len);
		assert_int_equal(ptc_durable_decode("j", data, len, &d, &err), bad[i].code);
		if (!strstr(err.text, bad[i].says))
			fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].says);
	}
}

/* What a node reads of a complete note of revision 5 with "same" and "first", and of a second one with "same" and
 * "second", whose base has `revision` and, if `there`, "same". */
static void two_notes(int64_t revision, bool there, int64_t base_revision, struct ptc_durable *ret_whole,
		      struct ptc_durable *ret_later, size_t *ret_len)
{
	static char meta[] = "m", record[] = "r";
	struct ptc_kept_job first = { 0 }, second = { 0 };
	struct ptc_durable d = { .epoch = 3, .revision = 5, .key = { meta, record }, .blobs = &first };
	struct ptc_durable_base base = { .epoch = 3, .revision = base_revision };
	char data[1024], *whole, *at = data;
	struct ptc_durable_form f;
	size_t len;

	add(&first, "first", 5);
	if (there)
		add(&first, "same", 4);
	add(&second, "same", 4);
	add(&second, "second", 6);
	assert_int_equal(ptc_durable_encode(&d, &whole, &len), 0);
	assert_int_equal(ptc_durable_decode("j", whole, len, ret_whole, NULL), 0);
	d.revision = revision;
	d.blobs = &second;
	base.blobs = second.v;
	base.nblobs = 1;
	assert_int_equal(ptc_durable_form(&d, &base, &f), 0);
	assert_true(f.len < sizeof data);
	for (size_t i = 0; i < f.nparts; i++)
		at = mempcpy(at, f.parts[i].iov_base, f.parts[i].iov_len);
	assert_null(memmem(data, f.len, "same", 4));
	*ret_len = f.len;
	assert_int_equal(ptc_durable_decode("j", data, f.len, ret_later, NULL), 0);
	ptc_durable_form_done(&f);
	ptc_free(whole);
	ptc_kept_job_empty(&first);
	ptc_kept_job_empty(&second);
	ptc_free(first.v);
	ptc_free(second.v);
}

static void test_second_note(void **state)
{
	struct ptc_durable d, later;
	char *data;
	size_t len;

	(void)state;
	two_notes(6, true, 5, &d, &later, &len);
	assert_int_equal(ptc_durable_join("j", &d, &later, NULL), 0);
	assert_int_equal(d.revision, 6);
	assert_int_equal(d.own->n, 2);
	assert_int_equal(d.own->bytes, 10);
	assert_string_equal(d.own->v[0].data, "second");
	assert_string_equal(d.own->v[1].data, "same");
	assert_int_equal(d.base.revision, 0);
	assert_int_equal(ptc_durable_encode(&d, &data, &len), 0); /* as a whole, for who knows one note only */
	ptc_durable_done(&d);
	assert_int_equal(ptc_durable_decode("j", data, len, &d, NULL), 0);
	assert_int_equal(d.own->n, 2);
	ptc_free(data);
	ptc_durable_done(&d);
}

static void test_second_note_does_not_count(void **state)
{
	static const struct {
		int64_t revision, base;
		bool there;
		int code;
	} cases[] = {
		{ 4, 3, true, 0 },             /* the complete one was written after it */
		{ 5, 5, true, 0 },             /* or at the same commit */
		{ 6, 4, true, PTC_ECORRUPT },  /* its base is another one */
		{ 6, 5, false, PTC_ECORRUPT }, /* its base lacks what it needs */
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_durable d, later;
		size_t len;

		two_notes(cases[i].revision, cases[i].there, cases[i].base, &d, &later, &len);
		assert_int_equal(ptc_durable_join("j", &d, &later, &err), cases[i].code);
		if (cases[i].code)
			assert_string_equal(err.text, "j: the committed documents that it keeps are damaged");
		else
			assert_string_equal(d.own->v[0].data, "first");
		ptc_durable_done(&d);
	}
}

static void test_later(void **state)
{
	const struct ptc_durable a = { .epoch = 1, .revision = 5 }, b = { .epoch = 0, .revision = 1 << 30 },
				 c = { .epoch = 1, .revision = 6 };

	(void)state;
	assert_true(ptc_durable_later(&a, &b));
	assert_false(ptc_durable_later(&b, &a));
	assert_true(ptc_durable_later(&c, &a));
	assert_false(ptc_durable_later(&a, &a));
}

/* A fresh etcd's low revisions are above all of the one before; in epoch 0 nothing changes. */
static void test_fences(void **state)
{
	const int64_t last = (INT64_C(1) << PTC_FENCE_REVISION_BITS) - 1;

	(void)state;
	assert_int_equal(ptc_fence(0, 1234), 1234);
	assert_true(ptc_fence(1, 1) > ptc_fence(0, last));
	assert_true(ptc_fence(2, 0) > ptc_fence(1, last));
	assert_int_equal(ptc_fence_revision(ptc_fence(7, last)), last);
	assert_int_equal(ptc_fence_epoch(ptc_fence(7, last)), 7);
	assert_true(ptc_fence(PTC_EPOCH_MAX, last) > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_damage),
		cmocka_unit_test(test_bytes),       cmocka_unit_test(test_wrong_members),
		cmocka_unit_test(test_later),       cmocka_unit_test(test_fences),
		cmocka_unit_test(test_second_note), cmocka_unit_test(test_second_note_does_not_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
