/* SPDX-License-Identifier: Apache-2.0 */
/* Unit tests of formats/tensors/safetensors.h. Vectors marked "safetensors" come from
 * the reference implementation's tests (safetensors/src/tensor.rs). */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "formats/tensors/safetensors.h"

#include <endian.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Length word, header and data_bytes of zeros. */
static void *file_of(const char *header, size_t data_bytes, size_t *ret_len)
{
	uint64_t n = strlen(header), word = htole64(n);
	char *file = ptc_calloc(1, 8 + n + data_bytes);

	memcpy(file, &word, 8);
	memcpy(file + 8, header, n);
	*ret_len = 8 + n + data_bytes;
	return file;
}

static int parse(const char *header, size_t data_bytes, struct ptc_st *st, struct ptc_error *err)
{
	size_t len;
	void *file = file_of(header, data_bytes, &len);
	int rc = ptc_st_parse(file, len, (int64_t)len, st, err);

	ptc_free(file);
	return rc;
}

static void refuse(const char *header, size_t data_bytes, int code, const char *part)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_st st = { 0 };
	int64_t live = ptc_alloc_live();

	assert_int_equal(parse(header, data_bytes, &st, &err), code);
	if (!strstr(err.text, part))
		fail_msg("\"%s\" does not contain \"%s\"", err.text, part);
	assert_null(strchr(err.text, '\n'));
	assert_null(st.tensors);
	assert_int_equal(ptc_alloc_live(), live);
}

/* safetensors: test_serialization, the golden bytes. */
static void test_golden(void **state)
{
	static const char golden[] =
		"\x40\0\0\0\0\0\0\0{\"attn.0\":{\"dtype\":\"F32\",\"shape\":[1,2,3],\"data_offsets\":[0,24]}} ";
	char file[8 + 64 + 24] = { 0 };
	struct ptc_buf b = PTC_BUF_INIT;
	struct ptc_st st = { 0 };

	memcpy(file, golden, sizeof(golden) - 1);
	assert_int_equal(ptc_st_parse(file, sizeof(file), sizeof(file), &st, NULL), 0);
	assert_int_equal(st.ntensors, 1);
	assert_string_equal(st.tensors[0].t.name, "attn.0");
	assert_int_equal(st.tensors[0].t.dtype, PTC_F32);
	assert_int_equal(st.tensors[0].t.ndim, 3);
	assert_int_equal(st.tensors[0].t.shape[2], 3);
	assert_int_equal(st.data_start, 72);
	assert_int_equal(st.data_bytes, 24);
	assert_int_equal(st.raw_len, 72);
	assert_memory_equal(st.raw, file, 72);
	assert_int_equal(ptc_st_write(&b, &st.tensors[0].t, 1, NULL, 0, NULL), 0);
	assert_int_equal(b.len, 72);
	assert_memory_equal(b.data, file, 72);
	ptc_buf_done(&b);
	ptc_st_done(&st);
}

/* Entries in any order; empty tensors, scalars, F4, metadata, white space around the JSON. */
static void test_orders(void **state)
{
	struct ptc_st st = { 0 };

	assert_int_equal(parse(" {\"z\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[8,12]},"
			       "\"__metadata__\":{\"format\":\"pt\",\"\":\"\"},"
			       "\"m\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[8,8]},"
			       "\"a\":{\"data_offsets\":[0,8],\"shape\":[],\"dtype\":\"C64\"},"
			       "\"f\":{\"dtype\":\"F4\",\"shape\":[3,2],\"data_offsets\":[12,15]}}\r\n\t ",
			       15, &st, NULL),
			 0);
	assert_int_equal(st.ntensors, 4);
	assert_string_equal(st.tensors[0].t.name, "z"); /* the header's order is kept */
	assert_string_equal(st.tensors[1].t.name, "m");
	assert_string_equal(st.tensors[st.by_offset[0]].t.name, "a");
	assert_string_equal(st.tensors[st.by_offset[1]].t.name, "m");
	assert_string_equal(st.tensors[st.by_offset[2]].t.name, "z");
	assert_string_equal(st.tensors[st.by_name[1]].t.name, "f");
	assert_int_equal(st.nmetadata, 2);
	assert_string_equal(st.metadata[0].key, "format");
	assert_ptr_equal(ptc_st_find(&st, "f"), &st.tensors[3]);
	assert_ptr_equal(ptc_st_find(&st, "a"), &st.tensors[2]);
	assert_null(ptc_st_find(&st, "b"));
	ptc_st_done(&st);
	assert_int_equal(parse("{}", 0, &st, NULL), 0);
	assert_int_equal(st.ntensors, 0);
	ptc_st_done(&st);
}

static void test_every_dtype(void **state)
{
	for (int t = 0; t < PTC_DTYPE_COUNT; t++) {
		struct ptc_tensor tensor = { .name = "x", .dtype = (enum ptc_dtype)t, .ndim = 2, .shape = { 3, 8 } };
		struct ptc_buf b = PTC_BUF_INIT;
		struct ptc_st st = { 0 };
		int64_t bytes = 3 * ptc_dtype_bits(tensor.dtype);

		assert_int_equal(ptc_st_write(&b, &tensor, 1, NULL, 0, NULL), 0);
		assert_int_equal(ptc_st_parse(b.data, b.len, (int64_t)b.len + bytes, &st, NULL), 0);
		assert_true(ptc_st_describes(&st, &tensor, 1));
		assert_int_equal(st.tensors[0].end, bytes);
		tensor.shape[0]++;
		assert_false(ptc_st_describes(&st, &tensor, 1));
		ptc_st_done(&st);
		ptc_buf_done(&b);
	}
}

static void test_write(void **state)
{
	struct ptc_tensor t[2] = { { .name = "a\"\\\xc3\xa9", .dtype = PTC_I16, .ndim = 1, .shape = { 3 } },
				   { .name = "b", .dtype = PTC_F64 } };
	struct ptc_st_pair meta = { (char *)(uintptr_t) "format", (char *)(uintptr_t) "p\nt" };
	struct ptc_buf b = PTC_BUF_INIT;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_st st = { 0 };

	ptc_buf_puts(&b, "xyz"); /* appends */
	assert_int_equal(ptc_st_write(&b, t, 2, &meta, 1, &err), 0);
	assert_int_equal((b.len - 3) % 8, 0);
	assert_int_equal(ptc_st_parse(b.data + 3, b.len - 3, (int64_t)b.len - 3 + 14, &st, &err), 0);
	assert_true(ptc_st_describes(&st, t, 2));
	assert_string_equal(st.metadata[0].value, "p\nt");
	assert_int_equal(ptc_st_find(&st, "b")->begin, 6);
	ptc_st_done(&st);
	t[1].name = t[0].name;
	assert_int_equal(ptc_st_write(&b, t, 2, NULL, 0, &err), PTC_EINVAL);
	t[1] = (struct ptc_tensor){ .name = "f", .dtype = PTC_F4, .ndim = 1, .shape = { 3 } };
	assert_int_equal(ptc_st_write(&b, t, 2, NULL, 0, &err), PTC_EINVAL);
	ptc_buf_done(&b);
}

#define T(name, dtype, shape, b, e)                                                                                    \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #b "," #e "]}"

static void test_bad_entries(void **state)
{
	refuse("{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 2, 6) "}", 6, PTC_EINVAL, "overlap");
	refuse("{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 0, 4) "}", 4, PTC_EINVAL, "overlap");
	refuse("{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 5, 9) "}", 9, PTC_EINVAL, "hole");
	refuse("{" T("a", "U8", "[4]", 1, 5) "}", 5, PTC_EINVAL, "hole");
	refuse("{" T("a", "U8", "[4]", 0, 4) "}", 3, PTC_EINVAL, "truncated");
	refuse("{" T("a", "U8", "[4]", 0, 4) "}", 5, PTC_EINVAL, "the file holds 5");
	refuse("{}", 1, PTC_EINVAL, "the file holds 1");
	refuse("{" T("a", "F32", "[4]", 0, 4) "}", 4, PTC_EINVAL, "need 16");
	refuse("{" T("a", "U8", "[4]", 4, 0) "}", 4, PTC_EINVAL, "not a range");
	refuse("{" T("a", "U8", "[4]", -4, 0) "}", 4, PTC_EINVAL, "not a range");
	refuse("{" T("a", "U9", "[4]", 0, 4) "}", 4, PTC_EINVAL, "unknown dtype \"U9\"");
	refuse("{" T("a", "F6_E2M3", "[3]", 0, 3) "}", 3, PTC_EINVAL, "not whole bytes");
	refuse("{" T("a", "U8", "[-1]", 0, 0) "}", 0, PTC_EINVAL, "not a size");
	refuse("{" T("a", "U8", "[1.0]", 0, 1) "}", 1, PTC_EINVAL, "not a size");
	refuse("{" T("a", "U8", "4", 0, 4) "}", 4, PTC_EINVAL, "not a list");
	refuse("{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1, PTC_ELIMIT, "9 dims");
	refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1, PTC_EINVAL,
	       "not an object of");
	refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, PTC_EINVAL, "not a pair");
	refuse("{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, PTC_EINVAL, "dtype");
	refuse("{\"a\":[]}", 0, PTC_EINVAL, "not an object of");
	refuse("{\"__metadata__\":{\"a\":1}}", 0, PTC_EINVAL, "not a string");
	refuse("{\"__metadata__\":[]}", 0, PTC_EINVAL, "not an object");
	/* safetensors: test_json_attack, names that repeat over the same bytes */
	refuse("{" T("a", "U8", "[1]", 0, 1) "," T("a", "U8", "[1]", 1, 2) "}", 2, PTC_EINVAL, "duplicate");
	/* safetensors: test_validation_overflow */
	refuse("{" T("a", "F32", "[2,18446744073709551614]", 0, 16) "}", 16, PTC_EINVAL, "");
	refuse("{" T("a", "F32", "[2,9223372036854775807]", 0, 16) "}", 16, PTC_EINVAL, "overflow");
	refuse("{" T("a", "F64", "[1152921504606846976]", 0, 0) "}", 0, PTC_EINVAL, "overflow");
}

static void test_bad_names(void **state)
{
	refuse("{" T("..", "U8", "[1]", 0, 1) "}", 1, PTC_EINVAL, "\"..\"");
	refuse("{" T("a/../../etc/passwd", "U8", "[1]", 0, 1) "}", 1, PTC_EINVAL, "\"..\"");
	refuse("{" T("/a", "U8", "[1]", 0, 1) "}", 1, PTC_EINVAL, "path component");
	refuse("{" T("", "U8", "[1]", 0, 1) "}", 1, PTC_EINVAL, "empty");
	refuse("{" T("a\\nb", "U8", "[1]", 0, 1) "}", 1, PTC_EINVAL, "control character");
	refuse("{" T("a\\u0000b", "U8", "[1]", 0, 1) "}", 1, PTC_EINVAL, "");
	refuse("{" T("\xff", "U8", "[1]", 0, 1) "}", 1, PTC_EINVAL, "0xff");
}

static void test_bad_headers(void **state)
{
	char file[16] = { 2, 0, 0, 0, 0, 0, 0, 0, '{', '}' };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_st st = { 0 };
	uint64_t word;

	refuse("[]", 0, PTC_EINVAL, "not a JSON object");
	refuse("", 0, PTC_EINVAL, "safetensors header");
	refuse("{} x", 0, PTC_EINVAL, "safetensors header");
	refuse("notjson", 0, PTC_EINVAL, "safetensors header");
	refuse("{\"a\n\":1}", 0, PTC_EINVAL, "safetensors header");
	refuse("{\"a\":", 0, PTC_EINVAL, "safetensors header");
	/* safetensors: test_header_too_small, _too_large, test_bad_length */
	for (size_t n = 0; n < 10; n++)
		assert_int_equal(ptc_st_parse(file, n, (int64_t)n, &st, &err), PTC_EINVAL);
	assert_int_equal(ptc_st_parse(file, 10, 10, &st, &err), 0);
	ptc_st_done(&st);
	assert_int_equal(ptc_st_parse(file, 9, 10, &st, &err), PTC_EINVAL);
	assert_int_equal(ptc_st_parse(file, 4, 10, &st, &err), PTC_EINVAL);
	word = htole64(UINT64_MAX);
	memcpy(file, &word, 8);
	assert_int_equal(ptc_st_parse(file, 10, 10, &st, &err), PTC_ELIMIT);
	word = htole64(100000001);
	memcpy(file, &word, 8);
	assert_int_equal(ptc_st_parse(file, 10, INT64_MAX, &st, &err), PTC_ELIMIT);
	word = htole64(100000000);
	memcpy(file, &word, 8);
	assert_int_equal(ptc_st_parse(file, 10, 10, &st, &err), PTC_EINVAL);
}

/* Every allocation fails once; nothing leaks and the error is the right one. jansson reports some of its failed
 * allocations as syntax errors, so those may be PTC_EINVAL. */
static void test_no_memory(void **state)
{
	static const char header[] = "{\"__metadata__\":{\"k\":\"v\"}," T("a", "U8", "[1]", 0, 1) "}";
	int64_t live = ptc_alloc_live();
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_st st = { 0 };
	size_t len;
	void *file = file_of(header, 1, &len);
	int failures = 0, rc;

	for (uint64_t at = 1;; at++) {
		ptc_alloc_fail_at(at);
		rc = ptc_st_parse(file, len, (int64_t)len, &st, &err);
		ptc_alloc_fail_at(0);
		if (!rc)
			break;
		failures++;
		assert_true(rc == PTC_ENOMEM || rc == PTC_EINVAL);
		assert_int_equal(ptc_alloc_live(), live + 1);
	}
	assert_true(failures > 10);
	ptc_st_done(&st);
	ptc_free(file);
}

/* Files and directories. */

struct temp {
	char dir[64];
};

static int make_temp(void **state)
{
	struct temp *t = malloc(sizeof *t);

	snprintf(t->dir, sizeof(t->dir), "/tmp/ptc-test-st.XXXXXX");
	*state = t;
	return mkdtemp(t->dir) ? 0 : -1;
}

static int drop_temp(void **state)
{
	struct temp *t = *state;
	int rc = ptc_sys_remove_tree(t->dir, "test", NULL);

	free(t);
	return rc;
}

static void put(const struct temp *t, const char *name, const void *data, size_t len)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", t->dir, name);
	assert_int_equal(ptc_sys_write_file(path, data, len, 0600, "test", NULL), 0);
}

static void put_st(const struct temp *t, const char *name, const char *header, size_t data_bytes)
{
	size_t len;
	void *file = file_of(header, data_bytes, &len);

	put(t, name, file, len);
	ptc_free(file);
}

static int read_set(const struct temp *t, const char *name, struct ptc_st_set *set, struct ptc_error *err)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", t->dir, name);
	return ptc_st_set_read(path, set, err);
}

static void refuse_index(const struct temp *t, const char *index, const char *part)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_st_set set = { 0 };
	int64_t live = ptc_alloc_live();

	put(t, PTC_ST_INDEX_NAME, index, strlen(index));
	assert_int_not_equal(read_set(t, "", &set, &err), 0);
	if (!strstr(err.text, part))
		fail_msg("\"%s\" does not contain \"%s\"", err.text, part);
	assert_int_equal(ptc_alloc_live(), live);
}

static void test_single_file(void **state)
{
	struct temp *t = *state;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_st_set set = { 0 };
	struct ptc_st st = { 0 };

	assert_int_equal(read_set(t, "", &set, &err), PTC_ENOTFOUND);
	assert_int_equal(read_set(t, "none", &set, &err), PTC_ENOTFOUND);
	put_st(t, "model.safetensors", "{" T("b", "U8", "[4]", 0, 4) "," T("a", "I8", "[1]", 4, 5) "}", 5);
	for (int as_dir = 0; as_dir < 2; as_dir++) {
		assert_int_equal(read_set(t, as_dir ? "" : "model.safetensors", &set, &err), 0);
		assert_int_equal(set.nfiles, 1);
		assert_string_equal(set.files[0].name, "model.safetensors");
		assert_null(set.index);
		assert_int_equal(set.nrefs, 2);
		assert_string_equal(ptc_st_set_tensor(&set, 0)->t.name, "a");
		assert_int_equal(set.data_bytes, 5);
		ptc_st_set_done(&set);
	}
	put(t, "short.safetensors", "abc", 3);
	assert_int_equal(read_set(t, "short.safetensors", &set, &err), PTC_EINVAL);
	assert_non_null(strstr(err.text, "short.safetensors"));
	assert_int_equal(ptc_st_read("/dev/null", &st, &err), PTC_EINVAL);
}

static void test_directory(void **state)
{
	static const char index[] =
		"{\"metadata\":{\"total_size\":9},\"weight_map\":{\"a\":\"m-2\",\"b\":\"m-1\",\"c\":\"m-2\"}}";
	struct temp *t = *state;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_st_set set = { 0 };

	put_st(t, "m-1", "{" T("b", "U8", "[4]", 0, 4) "}", 4);
	put_st(t, "m-2", "{" T("a", "U8", "[1]", 0, 1) "," T("c", "F32", "[1]", 1, 5) "}", 5);
	put(t, PTC_ST_INDEX_NAME, index, strlen(index));
	for (int as_dir = 0; as_dir < 2; as_dir++) {
		assert_int_equal(read_set(t, as_dir ? "" : PTC_ST_INDEX_NAME, &set, &err), 0);
		assert_int_equal(set.nfiles, 2);
		assert_int_equal(set.nrefs, 3);
		assert_int_equal(set.refs[1].file, 0);
		assert_string_equal(ptc_st_set_tensor(&set, 2)->t.name, "c");
		assert_int_equal(set.index_len, strlen(index));
		assert_memory_equal(set.index, index, set.index_len);
		ptc_st_set_done(&set);
	}
	refuse_index(t, "{\"weight_map\":{\"a\":\"m-2\",\"b\":\"m-1\"}}", "\"c\" of m-2 is not in the index");
	refuse_index(t, "{\"weight_map\":{\"a\":\"m-1\",\"b\":\"m-1\",\"c\":\"m-2\"}}", "the index says m-1");
	refuse_index(t, "{\"weight_map\":{\"a\":\"m-2\",\"b\":\"m-1\",\"c\":\"m-2\",\"d\":\"m-1\"}}",
		     "\"d\" is in the index, but not in m-1");
	refuse_index(t, "{\"weight_map\":{\"a\":\"../m-2\"}}", "not the name of a file");
	refuse_index(t, "{\"weight_map\":{\"a\":1}}", "not the name of a file");
	refuse_index(t, "{\"weight_map\":{\"a\":\"m-9\"}}", "m-9");
	refuse_index(t, "{\"weight_map\":[]}", "weight_map");
	refuse_index(t, "[]", "weight_map");
	refuse_index(t, "{", PTC_ST_INDEX_NAME);
	put_st(t, "m-1", "{" T("a", "U8", "[4]", 0, 4) "}", 4);
	refuse_index(t, "{\"weight_map\":{\"a\":\"m-1\",\"c\":\"m-2\"}}", "in both m-1 and m-2");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_orders),
		cmocka_unit_test(test_every_dtype),
		cmocka_unit_test(test_write),
		cmocka_unit_test(test_bad_entries),
		cmocka_unit_test(test_bad_names),
		cmocka_unit_test(test_bad_headers),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test_setup_teardown(test_single_file, make_temp, drop_temp),
		cmocka_unit_test_setup_teardown(test_directory, make_temp, drop_temp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
