/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger of consumed samples: what notes make of it, what it forgets when it is full, its document, tags, and every
 * allocation failing in turn. */
#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "formats/dataset/dataset_doc.h"
#include "formats/dataset/ledger.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SOURCE_HASH "43f8d74f93e44e1da02faf93164138b5"
#define TEXT(s)     ((char *)(uintptr_t)(s))

/* A snapshot of that generation says that a cursor, five samples a step, is at the end of a step. */
static int note(struct ptc_ledger *l, const char *cursor, uint64_t generation, uint64_t end_step)
{
	return ptc_ledger_note(l, &(struct ptc_ledger_entry){ .cursor = TEXT(cursor),
							      .tag = TEXT("n=7,seed=1"),
							      .generation = generation,
							      .end_step = end_step,
							      .end = 5 * end_step,
							      .dp = 2,
							      .micro = 3,
							      .batch = 5 });
}

static void is(const struct ptc_ledger_entry *e, const char *cursor, uint64_t generation, uint64_t first, uint64_t end)
{
	assert_string_equal(e->cursor, cursor);
	assert_int_equal(e->generation, generation);
	assert_int_equal(e->first_step, first);
	assert_int_equal(e->end_step, end);
	assert_int_equal(e->first, 5 * first);
	assert_int_equal(e->end, 5 * end);
}

static void notes(void **state)
{
	struct ptc_ledger l = { 0 };

	assert_int_equal(note(&l, "a", 1, 4), 0);
	assert_int_equal(note(&l, "b", 1, 4), 0);
	assert_int_equal(note(&l, "a", 1, 6), 0); /* grows */
	assert_int_equal(note(&l, "a", 2, 9), 0);
	assert_int_equal(note(&l, "b", 2, 9), 0);
	assert_int_equal(l.n, 4);
	is(&l.v[0], "a", 1, 0, 6);
	is(&l.v[1], "b", 1, 0, 4);
	is(&l.v[2], "a", 2, 6, 9);
	is(&l.v[3], "b", 2, 4, 9);
	assert_int_equal(ptc_ledger_position(&l, "a", 1, 11, 5), 55);
	assert_int_equal(ptc_ledger_position(&l, "c", 9, 11, 5), 10);
	ptc_ledger_done(&l);
}

static void skipped(const struct ptc_ledger_entry *e, const char *cursor, uint64_t generation, uint64_t step,
		    uint64_t first, uint64_t end)
{
	assert_string_equal(e->cursor, cursor);
	assert_string_equal(e->tag, "n=7,seed=1");
	assert_true(ptc_ledger_skipped(e));
	assert_int_equal(e->generation, generation);
	assert_int_equal(e->first_step, step);
	assert_int_equal(e->end_step, step);
	assert_int_equal(e->first, first);
	assert_int_equal(e->end, end);
}

/* Back to step 4 twice: what came in between is skipped, and what comes then goes on behind it. */
static void skips(void **state)
{
	struct ptc_ledger old = { 0 }, now = { 0 }, back, twice;
	const struct ptc_ledger empty = { 0 };

	assert_int_equal(note(&old, "a", 1, 4), 0);
	assert_int_equal(ptc_ledger_copy(&old, &now), 0);
	assert_int_equal(note(&now, "a", 1, 6), 0);
	assert_int_equal(note(&now, "a", 2, 9), 0);
	assert_int_equal(note(&now, "b", 2, 9), 0); /* one that the older snapshot did not have yet */
	assert_int_equal(ptc_ledger_copy(&old, &back), 0);
	assert_int_equal(ptc_ledger_skip(&back, &now, 3, 4), 0);
	assert_int_equal(back.n, 3);
	is(&back.v[0], "a", 1, 0, 4);
	skipped(&back.v[1], "a", 3, 4, 20, 45);
	skipped(&back.v[2], "b", 3, 4, 0, 45);
	assert_true(ptc_ledger_ends_at(&back, "a", 45) && ptc_ledger_ends_at(&back, "b", 45));
	assert_false(ptc_ledger_ends_at(&back, "a", 20) || ptc_ledger_ends_at(&back, "c", 0));
	assert_int_equal(ptc_ledger_position(&back, "a", 0, 6, 5), 55);
	/* of the same generation, too, an entry of ranks is another one */
	assert_int_equal(ptc_ledger_note(&back, &(struct ptc_ledger_entry){ .cursor = TEXT("a"),
									    .tag = TEXT("n=7,seed=1"),
									    .generation = 3,
									    .end_step = 6,
									    .end = 55,
									    .dp = 2,
									    .micro = 3,
									    .batch = 5 }),
			 0);
	assert_int_equal(back.n, 4);
	assert_int_equal(back.v[3].first_step, 4);
	assert_int_equal(back.v[3].first, 45);
	assert_int_equal(ptc_ledger_copy(&old, &twice), 0);
	assert_int_equal(ptc_ledger_skip(&twice, &back, 5, 4), 0);
	assert_int_equal(twice.n, 3);
	skipped(&twice.v[1], "b", 5, 4, 0, 45); /* as they are last in the other one */
	skipped(&twice.v[2], "a", 5, 4, 20, 55);
	/* forth, to what is ahead, and from what has consumed nothing: there is nothing to skip */
	assert_int_equal(ptc_ledger_skip(&back, &old, 6, 6), 0);
	assert_int_equal(ptc_ledger_skip(&back, &empty, 6, 6), 0);
	assert_int_equal(back.n, 4);
	ptc_ledger_done(&twice);
	ptc_ledger_done(&back);
	ptc_ledger_done(&now);
	ptc_ledger_done(&old);
}

/* The oldest go, are counted, and what is left joins up; so do copies and documents of it. */
static void forgets(void **state)
{
	struct ptc_ledger l = { 0 }, copy, again;
	json_t *json;

	for (uint64_t g = 1; g <= PTC_LEDGER_MAX / 2 + 10; g++) {
		assert_int_equal(note(&l, "a", g, 3 * g), 0);
		assert_int_equal(note(&l, "b", g, 3 * g), 0);
		assert_int_equal(l.n, PTC_MIN(2 * g, PTC_LEDGER_MAX));
		assert_int_equal(l.forgotten, 2 * g - l.n);
	}
	assert_int_equal(l.forgotten, 20);
	for (size_t i = 0; i < l.n; i++)
		is(&l.v[i], i % 2 ? "b" : "a", 11 + i / 2, 3 * (10 + i / 2), 3 * (11 + i / 2));
	assert_int_equal(note(&l, "b", PTC_LEDGER_MAX / 2 + 10, 3000), 0); /* one that goes on takes no place */
	assert_int_equal(l.forgotten, 20);
	assert_int_equal(ptc_ledger_copy(&l, &copy), 0);
	json = ptc_members_to_json(&ptc_ledger_members, &copy);
	assert_int_equal(ptc_ledger_from_json(json, &again), 0);
	assert_int_equal(again.forgotten, 20);
	assert_int_equal(again.n, PTC_LEDGER_MAX);
	is(&again.v[0], "a", 11, 30, 33);
	is(&again.v[PTC_LEDGER_MAX - 1], "b", PTC_LEDGER_MAX / 2 + 10, 3 * (PTC_LEDGER_MAX / 2 + 9), 3000);
	/* one more is no ledger of ours */
	json_array_append(json_object_get(json, "entries"), json_array_get(json_object_get(json, "entries"), 0));
	ptc_ledger_done(&again);
	assert_int_equal(ptc_ledger_from_json(json, &again), PTC_ELIMIT);
	json_decref(json);
	ptc_ledger_done(&copy);
	ptc_ledger_done(&l);
}

/* A note that fails, full or not, leaves the ledger as it was. */
static void out_of_memory(void **state)
{
	int64_t live = ptc_alloc_live();
	struct ptc_ledger l = { 0 }, copy;
	int rc = PTC_ENOMEM;

	for (uint64_t g = 1; g <= PTC_LEDGER_MAX; g++)
		assert_int_equal(note(&l, "a", g, g), 0);
	for (uint64_t n = 1; rc; n++) {
		ptc_alloc_fail_at(n);
		rc = note(&l, "a", PTC_LEDGER_MAX + 1, PTC_LEDGER_MAX + 1);
		ptc_alloc_fail_at(0);
		assert_int_equal(l.n, PTC_LEDGER_MAX);
		assert_int_equal(l.forgotten, rc == 0);
		assert_int_equal(l.v[0].generation, rc ? 1 : 2);
		assert_true(!rc || (rc == PTC_ENOMEM && n < 4));
	}
	ptc_alloc_fail_at(100);
	assert_int_equal(ptc_ledger_copy(&l, &copy), PTC_ENOMEM);
	ptc_alloc_fail_at(0);
	ptc_ledger_done(&l);
	assert_int_equal(ptc_alloc_live(), live);
}

static void tags(void **state)
{
	static const char mix[] = "0123456789abcdef0123456789abcdef";
	static const char *const bad[] = { "",
					   "n=5",
					   "seed=5",
					   "n=5,seed=",
					   "n=5,seed=x",
					   "n=99999999999999999999,seed=1",
					   "n=5,seed=1,sequential=2",
					   "mix=0123456789abcdef0123456789abcdef",
					   "mix=0123456789abcdef0123456789abcde,seed=1",
					   "mix=0123456789abcdef0123456789abcdef0,seed=1",
					   "mix=0123456789abcdef0123456789abcdef,n=3,seed=1",
					   "n=0,seed=1",
					   "n=5,seed=1;micro_steps=1x2:",
					   "n=5,seed=1;micro_steps=",
					   "n=00,seed=1;batch=2",
					   "mix=0123456789abcdef0123456789abcdef,n=0,seed=1" };
	struct ptc_ledger_order o;

	for (size_t i = 0; i < PTC_ARRAY_LEN(bad); i++)
		assert_false(ptc_ledger_tag(bad[i], &o));
	assert_true(ptc_ledger_tag("n=5,seed=6;counter,recounted,counted=0", &o));
	assert_false(o.counted);
	assert_true(ptc_ledger_tag("n=5,seed=6,block=7,other=x;counted,batch=8,micro=9,by_length=1", &o));
	assert_true(o.counted);
	assert_true(o.n == 5 && o.seed == 6 && o.block == 7 && o.batch == 8 && o.micro == 9 && o.by_length);
	assert_false(o.sequential || o.mix[0] || o.linear || o.square);
	assert_true(ptc_ledger_tag("n=5,seed=6;counted,batch=8,micro=9,by_length=1,linear=12,square=1", &o));
	assert_true(o.by_length && o.linear == 12 && o.square == 1);
	assert_false(ptc_ledger_tag("n=5,seed=6;by_length=1,linear=-1,square=1", &o));
	assert_true(ptc_ledger_tag("mix=0123456789abcdef0123456789abcdef,seed=6;counted,batch=8,micro=9", &o));
	assert_true(o.n == 0 && o.seed == 6 && o.batch == 8 && o.micro == 9);
	assert_string_equal(o.mix, mix);
	assert_int_equal(o.micro_steps.n, 0);
	assert_true(ptc_ledger_tag("n=5,seed=6;batch=8,micro=1,micro_steps=2x3:1x2,counted", &o));
	assert_true(o.counted && o.micro == 1 && o.micro_steps.n == 2 && o.micro_steps.v[1].steps == 2);
}

/* What names a source, nodes of all versions compare: it does not depend on the version that a document is written in.
 */
static void names_of_sources(void **state)
{
	static const char doc[] =
		"{\"version\":1,\"name\":\"tokens\",\"uid\":7,\"kind\":\"npy\",\"path\":\"/data/"
		"tokens.npy\",\"dtype\":\"uint16\","
		"\"record\":8,\"samples\":100,\"documents\":0,\"bytes\":1600,\"longest_bytes\":16,\"created_ms\":5,"
		"\"fingerprint\":{\"files\":[{\"suffix\":\"\",\"bytes\":1728,\"mtime_ns\":9,\"ends\":"
		"\"0123456789abcdef\"}]}}";
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_dataset_doc *d = ptc_malloc(sizeof *d);
	char first[33], other[33], *json;

	(void)state;
	assert_non_null(d);
	if (ptc_dataset_doc_decode(doc, sizeof doc - 1, d, &err))
		fail_msg("%s", err.text);
	assert_int_equal(ptc_dataset_doc_source(d, first), 0);
	assert_string_equal(first, SOURCE_HASH);
	ptc_version_members_set(0); /* a member of the version before */
	assert_int_equal(ptc_dataset_doc_source(d, other), 0);
	assert_string_equal(first, other);
	ptc_version_members_set(UINT32_MAX);
	json = ptc_asprintf("{\"version\":%d%.*s,\"later\":[1]}", PTC_DATASET_DOC_VERSION + 1, (int)sizeof doc - 14,
			    doc + 12);
	if (ptc_dataset_doc_decode(json, strlen(json), d, &err))
		fail_msg("%s", err.text);
	assert_int_equal(ptc_dataset_doc_source(d, other), 0);
	assert_string_equal(first, other);
	ptc_free(json);
	json = ptc_asprintf("{\"version\":%d%.*s}", PTC_DATASET_DOC_VERSION + 2, (int)sizeof doc - 14, doc + 12);
	assert_int_equal(ptc_dataset_doc_decode(json, strlen(json), d, &err), PTC_EVERSION);
	ptc_free(json);
	ptc_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(notes),         cmocka_unit_test(skips), cmocka_unit_test(forgets),
		cmocka_unit_test(out_of_memory), cmocka_unit_test(tags),  cmocka_unit_test(names_of_sources),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
