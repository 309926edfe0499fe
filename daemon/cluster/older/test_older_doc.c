/* SPDX-License-Identifier: Apache-2.0 */
/* The document of older snapshots: what is encoded is decoded again, what is malformed is refused, and pruning leaves
 * what a plain reading of `keep` says, for random histories with rollbacks. PTC_TEST_SEED replays one. */
#include "daemon/cluster/older/older_doc.h"

#include "base/alloc.h"
#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct ptc_older snap(uint64_t snapshot, uint64_t step)
{
	struct ptc_older o = { .generation = 1 + snapshot / 3, .snapshot = snapshot, .step = step };

	snprintf(o.manifest_hash, sizeof o.manifest_hash, "%032llx", (unsigned long long)snapshot);
	snprintf(o.generation_hash, sizeof o.generation_hash, "%s", "aa");
	assert_int_equal(ptc_older_node_add(&o, "n10"), 0);
	assert_int_equal(ptc_older_node_add(&o, "n2"), 0);
	assert_true(ptc_older_has(&o, "n10") && ptc_older_has(&o, "n2"));
	assert_false(ptc_older_has(&o, "n1") || ptc_older_has(&o, "") || ptc_older_has(&o, "n10 n2"));
	if (snapshot % 2)
		snprintf(o.state_hash, sizeof o.state_hash, "%s", "bb");
	return o;
}

static void test_again(void **state)
{
	struct ptc_older_doc d = { .n = 0 }, again;
	struct ptc_error err = PTC_ERROR_INIT;
	char *json, *second;

	(void)state;
	for (uint64_t i = 1; i <= PTC_OLDER_MAX + 5; i++) {
		struct ptc_older o = snap(i, 10 * i);

		ptc_older_add(&d, &o);
	}
	assert_int_equal(d.n, PTC_OLDER_MAX);
	assert_int_equal(d.v[0].snapshot, 6);
	json = ptc_older_doc_encode(&d);
	assert_int_equal(ptc_older_doc_decode(json, strlen(json), &again, &err), 0);
	assert_int_equal(again.n, d.n);
	assert_memory_equal(&again, &d, sizeof d);
	second = ptc_older_doc_encode(&again);
	assert_string_equal(json, second);
	for (size_t len = 0; len < strlen(json); len++)
		assert_int_not_equal(ptc_older_doc_decode(json, len, &again, NULL), 0);
	assert_ptr_equal(ptc_older_find(&d, 7), &d.v[1]);
	assert_null(ptc_older_find(&d, 5));
	ptc_free(json);
	ptc_free(second);
}

static void refuse(const char *json, const char *part)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_older_doc d;

	assert_int_not_equal(ptc_older_doc_decode(json, strlen(json), &d, &err), 0);
	if (!strstr(err.text, part))
		fail_msg("%s: %s", json, err.text);
}

#define ROW(g, s)                                                                                                      \
	"{\"generation\":" #g ",\"snapshot\":" #s                                                                      \
	",\"step\":1,\"nodes\":\"n\",\"manifest\":\"a\",\"of_generation\":\"b\"}"

static void test_refused(void **state)
{
	char long_list[32768] = "{\"version\":1,\"snapshots\":[";

	(void)state;
	refuse("{\"version\":9,\"snapshots\":[]}", "version");
	refuse("{\"version\":1}", "snapshots");
	refuse("{\"version\":1,\"snapshots\":[" ROW(0, 1) "]}", "generation");
	refuse("{\"version\":1,\"snapshots\":[" ROW(1, 0) "]}", "snapshot");
	refuse("{\"version\":1,\"snapshots\":[" ROW(1, 2) "," ROW(1, 2) "]}", "not in order");
	refuse("{\"version\":1,\"snapshots\":[" ROW(1, 3) "," ROW(2, 2) "]}", "not in order");
	for (int i = 1; i <= PTC_OLDER_MAX + 1; i++)
		snprintf(long_list + strlen(long_list), sizeof long_list - strlen(long_list),
			 "%s{\"generation\":1,\"snapshot\":%d,\"step\":1,\"nodes\":\"n\",\"manifest\":\"a\",\"of_"
			 "generation\":\"b\"}",
			 i > 1 ? "," : "", i);
	snprintf(long_list + strlen(long_list), sizeof long_list - strlen(long_list), "]}");
	refuse(long_list, "snapshots");
}

/* What `keep` says, read word by word: entry i stays if fewer than last - 1 are newer, or if no entry that stays comes
 * directly before it in its span. */
static bool stays(const struct ptc_older_doc *d, const bool *stay, size_t i, uint32_t last, uint64_t every)
{
	if (d->n - 1 - i < last - 1)
		return true;
	if (!every)
		return false;
	for (size_t k = i; k-- > 0;)
		if (stay[k])
			return d->v[k].step / every != d->v[i].step / every;
	return true;
}

static void test_prune(void **state)
{
	const char *seed = getenv("PTC_TEST_SEED");

	(void)state;
	srand(seed ? (unsigned)atoi(seed) : 1);
	for (int round = 0; round < 2000; round++) {
		struct ptc_older_doc d = { .n = 0 }, was;
		uint32_t last = 1 + (uint32_t)rand() % 6;
		uint64_t every = rand() % 3 ? (uint64_t)(1 + rand() % 50) : 0, step = 0;
		size_t most = rand() % 4 ? PTC_OLDER_MAX : (size_t)rand() % 5, n = 0, left = 0;
		bool stay[PTC_OLDER_MAX];

		for (uint64_t s = 1 + (uint64_t)rand() % 9; d.n < (size_t)rand() % 30; s += 1 + (uint64_t)rand() % 3) {
			struct ptc_older o = snap(s, step = rand() % 8 ? step + (uint64_t)rand() % 30 : step / 2);

			ptc_older_add(&d, &o);
		}
		was = d;
		ptc_older_prune(&d, last, every, most);
		for (size_t i = 0; i < was.n; i++)
			left += stay[i] = stays(&was, stay, i, last, every);
		for (size_t i = 0; i < was.n; i++) {
			if (!stay[i] || left-- > most)
				continue;
			assert_true(n < d.n);
			assert_int_equal(d.v[n++].snapshot, was.v[i].snapshot);
		}
		assert_int_equal(n, d.n);
	}
}

/* Where a node has no room: a snapshot that only others have makes none there, and the one that a rollback goes back to
 * is what the room is wanted for. */
static void test_room(void **state)
{
	struct ptc_older_doc d = { .n = 0 };

	(void)state;
	for (uint64_t i = 1; i <= 4; i++) {
		struct ptc_older o = { .generation = 1, .snapshot = 10 * i, .step = i };

		assert_int_equal(ptc_older_node_add(&o, i == 1 ? "a" : "b"), 0);
		assert_int_equal(ptc_older_node_add(&o, i == 3 ? "a" : "c"), 0);
		ptc_older_add(&d, &o);
	}
	assert_int_equal(ptc_older_oldest_on(&d, "a", 0), 0);
	assert_int_equal(ptc_older_oldest_on(&d, "a", 10), 2);
	assert_int_equal(ptc_older_oldest_on(&d, "b", 0), 1);
	assert_int_equal(ptc_older_oldest_on(&d, "b", 20), 2);
	assert_int_equal(ptc_older_oldest_on(&d, "c", 0), 0);
	assert_int_equal(ptc_older_oldest_on(&d, "d", 0), d.n);
	ptc_older_drop_one(&d, 2);
	assert_int_equal(ptc_older_oldest_on(&d, "a", 10), d.n); /* nothing there may go */
	ptc_older_drop_one(&d, 0);
	assert_true(d.n == 2 && d.v[0].snapshot == 20 && d.v[1].snapshot == 40);
}

/* The bridge is a part of its own: it needs no entry, is found by its number, and goes when the job goes back beyond
 * it. What the job has left it does not go back to by itself. */
static void test_bridge(void **state)
{
	struct ptc_older_doc d = { .n = 0 }, again;
	struct ptc_error err = PTC_ERROR_INIT;
	char *json;

	(void)state;
	assert_true(ptc_older_doc_empty(&d) && !ptc_older_before(&d, UINT64_MAX) && !ptc_older_find(&d, 0));
	d.bridge = snap(5, 50);
	snprintf(d.bridge.copies_hash, sizeof d.bridge.copies_hash, "%s", "cc");
	assert_false(ptc_older_doc_empty(&d));
	for (uint64_t i = 2; i <= 8; i += 2) {
		struct ptc_older o = snap(i, 10 * i);

		ptc_older_add(&d, &o);
	}
	d.v[3].left = true;
	json = ptc_older_doc_encode(&d);
	assert_int_equal(ptc_older_doc_decode(json, strlen(json), &again, &err), 0);
	assert_memory_equal(&again, &d, sizeof d);
	ptc_free(json);
	assert_ptr_equal(ptc_older_find(&d, 5), &d.bridge);
	assert_ptr_equal(ptc_older_table(&d, d.bridge.generation, 5), &d.bridge);
	assert_null(ptc_older_table(&d, d.bridge.generation + 1, 5));
	assert_ptr_equal(ptc_older_before(&d, UINT64_MAX), &d.v[2]);
	assert_ptr_equal(ptc_older_before(&d, 6), &d.bridge);
	assert_ptr_equal(ptc_older_before(&d, 5), &d.v[1]);
	assert_null(ptc_older_before(&d, 2));
	ptc_older_go_back(&d, 8);
	assert_false(d.v[3].left);
	ptc_older_go_back(&d, 5);
	assert_true(d.v[2].left && d.v[3].left && !d.v[1].left && d.bridge.snapshot == 5);
	ptc_older_go_back(&d, 4);
	assert_true(!d.bridge.snapshot && d.n == 4);
	assert_ptr_equal(ptc_older_before(&d, UINT64_MAX), &d.v[1]);
	refuse("{\"version\":1,\"snapshots\":[],\"bridge\":{\"generation\":1}}", "snapshot");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_again), cmocka_unit_test(test_refused), cmocka_unit_test(test_prune),
		cmocka_unit_test(test_room),  cmocka_unit_test(test_bridge),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
