/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of members: a struct of every kind is written as it should be and read back, and what cannot be is refused
 * with the names of document and member. Every allocation that fails is one error, and leaves nothing behind. */
#include "formats/members.h"

#include "base/alloc.h"
#include "base/check.h"
#include "formats/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct point {
	uint32_t x[2];
};
struct score {
	char *name;
	double value;
};
struct maybe {
	bool known;
	uint64_t value;
};
struct all {
	uint32_t narrow;
	uint64_t wide, hex;
	int64_t sign;
	int whole;
	bool flag, said;
	double real;
	enum { RED, GREEN } colour;
	char text[4], later[8];
	char *string;
	struct point one, *many, few[2];
	size_t nmany;
	uint32_t nfew;
	char **names;
	uint32_t nnames;
	struct score *scores;
	struct maybe maybes[3];
	uint8_t *bytes;
	size_t nscores, nmaybes, nbytes;
	bool has_mark, has_inner;
	int64_t mark, inner;
};
static const char *const colours[] = { "red", "green" };
#define IS(member, ...) PTC_ROW(struct all, #member, member, __VA_ARGS__)

static const struct ptc_member point_rows[] = { PTC_ROW(struct point, NULL, x, U32, .max = 9) };
static const struct ptc_members point = PTC_TUPLE(point_rows, struct point);
static const struct ptc_member name_rows[] = { { NULL, PTC_IS_STRING, .size = sizeof(char *), .max = 3 } };
static const struct ptc_members name = PTC_MEMBERS(name_rows, char *);
static const struct ptc_member score_rows[] = { PTC_ROW(struct score, NULL, name, STRING, .max = 4),
						PTC_ROW(struct score, NULL, value, NUMBER) };
static const struct ptc_members score = PTC_MEMBERS(score_rows, struct score);
static const struct ptc_member maybe_rows[] = { PTC_ROW(struct maybe, NULL, value, U64, PTC_SEEN(struct maybe, known),
							.null = true) };
static const struct ptc_members maybe = PTC_MEMBERS(maybe_rows, struct maybe);
static const struct ptc_member inner_rows[] = { IS(inner, I64, PTC_SEEN(struct all, has_inner)) };
static const struct ptc_members inner = PTC_MEMBERS(inner_rows, struct all);
static const struct ptc_member rows[] = {
	IS(narrow, U32, .min = 1),
	IS(wide, U64, .max = 1000),
	IS(hex, HEX),
	IS(sign, I64),
	IS(whole, INT),
	IS(flag, BOOL),
	IS(real, REAL, .max = 1),
	IS(colour, WORD, .words = colours, .max = 1),
	IS(text, TEXT, .min = 2),
	IS(later, TEXT, PTC_IF(struct all, said)),
	IS(string, STRING, .max = 5),
	{ "empty", PTC_IS_EMPTY, .optional = true },
	IS(one, MAP, .of = &point),
	IS(many, LIST, .min = 1, .max = 3, PTC_COUNT(struct all, nmany), .of = &point),
	IS(few, ARRAY, .optional = true, PTC_COUNT(struct all, nfew), .of = &point),
	IS(names, LIST, PTC_COUNT(struct all, nnames), .of = &name),
	IS(scores, KEYED, .max = 4, PTC_COUNT(struct all, nscores), .of = &score),
	IS(maybes, ARRAY, PTC_COUNT(struct all, nmaybes), .of = &maybe),
	IS(bytes, BYTES, .min = 1, PTC_COUNT(struct all, nbytes)),
	IS(mark, I64, PTC_SEEN(struct all, has_mark), .null = true),
	{ NULL, PTC_IS_MAP, PTC_IF(struct all, has_inner), .of = &inner },
};
static const struct ptc_members all = PTC_MEMBERS(rows, struct all);

static const char good[] =
	"{\"narrow\":4294967295,\"wide\":1000,\"hex\":\"00000000000000ff\",\"sign\":-5,\"whole\":-6,"
	"\"flag\":true,\"real\":0.5,\"colour\":\"green\",\"text\":\"abc\",\"string\":\"\\n\\u0001\","
	"\"empty\":{},\"one\":[[1,2]],\"many\":[[[3,4]],[[5,6]]],\"few\":[[[7,8]]],\"names\":[\"x\",\"yz\"],"
	"\"scores\":{\"a\":-40,\"b\":0.5,\"c\":null},\"maybes\":[0,null],\"bytes\":\"00f1\",\"mark\":0,\"inner\":7}";

static int read_it(const char *json, struct all *ret, struct ptc_error *err)
{
	json_t *root = NULL;
	int rc = ptc_json_load("thing", json, strlen(json), &root, err);

	*ret = (struct all){ 0 };
	if (rc == 0)
		rc = ptc_members_from_json("thing", &all, root, ret, err);
	json_decref(root);
	return rc;
}

static char *again(const struct all *a)
{
	json_t *root = ptc_members_to_json(&all, a);
	char *text = root ? ptc_json_text(root) : NULL;

	json_decref(root);
	return text;
}

static void every_kind_comes_back(void **state)
{
	int64_t live = ptc_alloc_live();
	struct ptc_error err = PTC_ERROR_INIT;
	struct all a;
	char *text;

	if (read_it(good, &a, &err))
		fail_msg("%s", err.text);
	assert_true(a.narrow == UINT32_MAX && a.wide == 1000 && a.hex == 255 && a.sign == -5 && a.whole == -6);
	assert_true(a.flag && a.real == 0.5 && a.colour == GREEN && !a.said);
	assert_true(a.nmany == 2 && a.many[1].x[1] == 6 && a.nfew == 1 && a.few[0].x[0] == 7 && a.nnames == 2);
	assert_string_equal(a.string, "\n\001");
	assert_true(a.nscores == 3 && a.scores[0].value == -40 && a.scores[1].value == 0.5 && isnan(a.scores[2].value));
	assert_string_equal(a.scores[2].name, "c");
	assert_true(a.nbytes == 2 && a.bytes[0] == 0 && a.bytes[1] == 0xf1);
	assert_true(a.nmaybes == 2 && a.maybes[0].known && !a.maybes[1].known);
	assert_true(a.has_mark && a.mark == 0 && a.has_inner && a.inner == 7);
	text = again(&a);
	assert_string_equal(text, good);
	ptc_free(text);
	a.has_mark = a.has_inner = false;
	text = again(&a);
	assert_non_null(strstr(text, "\"bytes\":\"00f1\",\"mark\":null}"));
	ptc_free(text);
	a.said = true;
	snprintf(a.later, sizeof a.later, "now");
	text = again(&a);
	assert_non_null(strstr(text, "\"text\":\"abc\",\"later\":\"now\",\"string\""));
	ptc_free(text);
	memcpy(a.text, "\xff", 2);
	assert_null(again(&a)); /* not UTF-8 */
	ptc_members_done(&all, &a);
	ptc_members_done(&all, &a);
	assert_true(!a.string && !a.many && !a.nmany && !a.nnames);
	assert_int_equal(ptc_alloc_live(), live);
}

static const struct {
	const char *what, *with, *says;
	int code; /* 0: PTC_EINVAL */
} bad[] = {
	{ "4294967295", "4294967296", "thing: \"narrow\" must be a whole number in 1..4294967295" },
	{ "4294967295", "0", "\"narrow\" must be a whole number in 1.." },
	{ "4294967295", "\"1\"", "\"narrow\" must be a whole number" },
	{ "4294967295", "1.5", "\"narrow\" must be a whole number" },
	{ "1000", "1001", "\"wide\" must be a whole number in 0..1000" },
	{ "1000", "-1", "\"wide\" must be" },
	{ "-6", "2147483648", "\"whole\" must be" },
	{ "00000000000000ff", "00000000000000fF", "\"hex\" must be 16 hexadecimal digits" },
	{ "00000000000000ff", "0ff", "\"hex\" must be" },
	{ "true", "1", "\"flag\" must be true or false" },
	{ "0.5", "-0.5", "\"real\" must be a number in 0..1" },
	{ "0.5", "1.5", "\"real\" must be a number in 0..1" },
	{ "0.5", "\"1\"", "\"real\" must be a number in 0..1" },
	{ "\"green\"", "\"blue\"", "\"colour\" is \"blue\", which is not a known word" },
	{ "\"green\"", "1", "\"colour\" is \"\"" },
	{ "\"abc\"", "\"abcd\"", "\"text\" must be a text of at most 3 bytes" },
	{ "\"abc\"", "null", "\"text\" must be a text" },
	{ "\"abc\"", "\"a\"", "\"text\" must be a text of at least 2 bytes" },
	{ "\"text\":\"abc\",", "", "\"text\" is missing" },
	{ "\"\\n\\u0001\"", "\"123456\"", "\"string\" must be a text of at most 5 bytes" },
	{ "[[1,2]]", "[[1,2],3]", "\"one\" must be a list of 1 members" },
	{ "[[1,2]]", "[[1]]", "\"one\" must be a list of 2 numbers" },
	{ "[[1,2]]", "[[1,10]]", "\"one\" must be a whole number in 0..9" },
	{ "[[[3,4]],[[5,6]]]", "[]", "\"many\" must be a list of 1 members or more" },
	{ "[[[3,4]],[[5,6]]]", "{}", "\"many\" must be a list" },
	{ "[[[3,4]],[[5,6]]]", "[[[3,4]],[[5,6]],[[5,6]],[[5,6]]]", "\"many\" has more than 3 members", PTC_ELIMIT },
	{ "[[[7,8]]]", "[[[7,8]],[[7,8]],[[7,8]]]", "\"few\" has more than 2 members", PTC_ELIMIT },
	{ "0.5,\"c\"", "\"\",\"c\"", "thing: \"b\" must be a number" },
	{ "\"a\"", "\"abcde\"", "\"scores\" must be a text of at most 4 bytes" },
	{ "{\"a\":-40,\"b\":0.5,\"c\":null}", "[]", "\"scores\" must be a map" },
	{ "\"c\":null", "\"c\":1,\"d\":1,\"e\":1", "\"scores\" has more than 4 members", PTC_ELIMIT },
	{ "00f1", "00f", "\"bytes\" must be hexadecimal digits of 1 bytes or more" },
	{ "00f1", "00F1", "\"bytes\" must be hexadecimal digits" },
	{ "00f1", "", "\"bytes\" must be hexadecimal digits" },
	{ "\"00f1\"", "1", "\"bytes\" must be hexadecimal digits" },
	{ "[0,null]", "[0,-1]", "\"maybes\" must be a whole number" },
	{ "\"inner\":7", "\"inner\":null", "\"inner\" must be a whole number" },
	{ "\"yz\"", "\"wxyz\"", "\"names\" must be a text of at most 3 bytes" },
};

static void what_cannot_be_is_named(void **state)
{
	int64_t live = ptc_alloc_live();

	for (size_t i = 0; i < PTC_ARRAY_LEN(bad); i++) {
		const char *at = strstr(good, bad[i].what);
		struct ptc_error err = PTC_ERROR_INIT;
		struct all a;
		char json[512];

		assert_non_null(at);
		snprintf(json, sizeof json, "%.*s%s%s", (int)(at - good), good, bad[i].with, at + strlen(bad[i].what));
		assert_int_equal(read_it(json, &a, &err), bad[i].code ? bad[i].code : PTC_EINVAL);
		if (!strstr(err.text, bad[i].says))
			fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].says);
		ptc_members_done(&all, &a);
	}
	assert_int_equal(ptc_alloc_live(), live);
}

static void a_document_has_its_version(void **state)
{
	static const char doc[] = "{\"version\":3,\"inner\":7}";
	struct ptc_error err = PTC_ERROR_INIT;
	struct all a = { 0 };

	assert_int_equal(0, ptc_members_from_text("thing", 2, 2, &inner, doc, strlen(doc), &a, &err));
	assert_true(a.has_inner && a.inner == 7);
	assert_int_equal(PTC_EVERSION, ptc_members_from_text("thing", 1, 1, &inner, doc, strlen(doc), &a, &err));
	assert_non_null(strstr(err.text, "thing: version 3; this ptc"));
	assert_int_equal(0, ptc_members_from_text("thing", 0, 0, &inner, "{}", 2, &a, NULL));
	assert_false(a.has_inner);
	assert_int_equal(PTC_EINVAL, ptc_members_from_text("thing", 0, 0, &inner, "{", 1, &a, &err));
	a = (struct all){ 0 };
	assert_int_equal(PTC_EINVAL, ptc_members_from_text("thing", 0, 0, &all, good, strlen(good) - 1, &a, NULL));
}

static void what_was_read_before_an_error_is_freed(void **state)
{
	static const char doc[] = "{\"names\":[\"x\"],\"inner\":\"\"}";
	static const struct ptc_member two_rows[] = { IS(names, LIST, PTC_COUNT(struct all, nnames), .of = &name),
						      IS(inner, I64) };
	static const struct ptc_members two = PTC_MEMBERS(two_rows, struct all);
	int64_t live = ptc_alloc_live();
	struct all a = { 0 };

	assert_int_equal(PTC_EINVAL, ptc_members_from_text("thing", 0, 0, &two, doc, strlen(doc), &a, NULL));
	assert_true(!a.names && !a.nnames);
	assert_int_equal(ptc_alloc_live(), live);
}

static void out_of_memory(void **state)
{
	int64_t live = ptc_alloc_live();
	int rc = PTC_ENOMEM;

	for (uint64_t n = 1; rc; n++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct all a;
		char *text;

		ptc_alloc_fail_at(n);
		rc = read_it(good, &a, &err);
		ptc_alloc_fail_at(0);
		if (rc && (rc != PTC_ENOMEM || n > 800))
			fail_msg("allocation %d: %d \"%s\"", (int)n, rc, err.text);
		for (uint64_t k = 1; !rc; k++) {
			ptc_alloc_fail_at(k);
			text = again(&a);
			ptc_alloc_fail_at(0);
			if (text) {
				assert_string_equal(text, good);
				ptc_free(text);
				break;
			}
			assert_true(k < 800);
		}
		ptc_members_done(&all, &a);
		assert_int_equal(ptc_alloc_live(), live);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_kind_comes_back),
		cmocka_unit_test(what_cannot_be_is_named),
		cmocka_unit_test(a_document_has_its_version),
		cmocka_unit_test(what_was_read_before_an_error_is_freed),
		cmocka_unit_test(out_of_memory),
	};

	ptc_json_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
