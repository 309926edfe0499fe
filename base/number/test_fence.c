/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a fence, and that they are checked: each variant that breaks one is found. */
#include "base/number/fence.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define REVISION_MAX ((INT64_C(1) << PTC_FENCE_REVISION_BITS) - 1)

struct variant {
	const char *what;
	int64_t (*make)(int64_t epoch, int64_t revision);
	int64_t (*revision)(int64_t fence);
	int64_t (*epoch)(int64_t fence);
};

static int64_t without_epoch(int64_t epoch, int64_t revision)
{
	return epoch * 0 + revision;
}
static int64_t revision_first(int64_t epoch, int64_t revision)
{
	return revision << (62 - PTC_FENCE_REVISION_BITS) | epoch;
}
static int64_t fewer_bits(int64_t epoch, int64_t revision)
{
	return epoch << (PTC_FENCE_REVISION_BITS - 1) | revision;
}
static int64_t more_bits(int64_t epoch, int64_t revision)
{
	return (int64_t)((uint64_t)epoch << (PTC_FENCE_REVISION_BITS + 2) | (uint64_t)revision);
}
static int64_t from_one(int64_t epoch, int64_t revision)
{
	return ptc_fence(epoch + 1, revision);
}
static int64_t added(int64_t epoch, int64_t revision)
{
	return epoch + revision;
}
static int64_t whole(int64_t fence)
{
	return fence;
}
static int64_t narrow(int64_t fence)
{
	return (int32_t)fence;
}
static int64_t no_epoch(int64_t fence)
{
	return fence * 0;
}

/* NULL: all rules hold. */
static const char *broken(const struct variant *v)
{
	static const int64_t epochs[] = { 0, 1, 2, 1000, PTC_EPOCH_MAX }, revisions[] = {
		0, 1, 2, INT64_C(1) << 31, INT64_C(1) << 32, REVISION_MAX - 1, REVISION_MAX
	};
	const size_t nepochs = sizeof epochs / sizeof *epochs, nrevisions = sizeof revisions / sizeof *revisions;

	for (size_t e = 0; e < nepochs; e++)
		for (size_t r = 0; r < nrevisions; r++) {
			int64_t fence = v->make(epochs[e], revisions[r]);

			if (fence < 0)
				return "it is a number of at least 0";
			if (epochs[e] == 0 && fence != revisions[r])
				return "in epoch 0 it is the revision alone, as before there were epochs";
			if (v->revision(fence) != revisions[r])
				return "transactions compare the revision";
			if (v->epoch(fence) != epochs[e])
				return "it has its epoch";
			if (r && v->make(epochs[e], revisions[r - 1]) >= fence)
				return "it grows with the revision";
			if (e && v->make(epochs[e - 1], REVISION_MAX) >= fence)
				return "each fence of an epoch is above all of the epoch before";
		}
	return NULL;
}

static void test_rules(void **state)
{
	const struct variant real = { "as it is", ptc_fence, ptc_fence_revision, ptc_fence_epoch };

	(void)state;
	assert_null(broken(&real));
}

static void test_finds_bugs(void **state)
{
	static const struct variant bugs[] = {
		{ "no epoch in it", without_epoch, ptc_fence_revision, no_epoch },
		{ "the revision first", revision_first, ptc_fence_revision, ptc_fence_epoch },
		{ "fewer bits", fewer_bits, ptc_fence_revision, ptc_fence_epoch },
		{ "more bits", more_bits, ptc_fence_revision, ptc_fence_epoch },
		{ "epochs from 1", from_one, ptc_fence_revision, ptc_fence_epoch },
		{ "a sum", added, whole, no_epoch },
		{ "the whole fence as revision", ptc_fence, whole, ptc_fence_epoch },
		{ "a revision of 32 bits", ptc_fence, narrow, ptc_fence_epoch },
		{ "no epoch read", ptc_fence, ptc_fence_revision, no_epoch },
	};

	(void)state;
	for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
		const char *rule = broken(&bugs[i]);

		printf("%-28s %s\n", bugs[i].what, rule ? rule : "MISSED");
		assert_non_null(rule);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_rules), cmocka_unit_test(test_finds_bugs) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
