/* SPDX-License-Identifier: Apache-2.0 */
/* The simulation: one crash at every step of a reference run, then thousands of random ones, then seeded bugs that it
 * has to find. PTC_TEST_SEED=N (with PTC_TEST_KIND=live or another of main's kinds) replays one seed with a
 * trace; PTC_TEST_KIND alone runs the random seeds of that kind; PTC_TEST_LONG=1 runs three times as many,
 * PTC_TEST_CAMPAIGN=1 eighty times. */
#include "daemon/core/sim/sim.h"

#include "base/check.h"
#include "base/test_seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t first_seed = 1;
/* Some bugs are met by one seed in some thousand. */
static const struct {
	int bug;
	uint64_t seed;
} rare_bugs[] = {
	{ SIM_BUG_FORGET_FENCE, 3256135390 }, { SIM_BUG_FORGET_LEFT_OUT, 12680 }, { SIM_BUG_BACK_SHED, 2670 },
	{ SIM_BUG_YIELD_ANY, 1972 },          { SIM_BUG_ASKS_ALL, 129563 },       { SIM_BUG_DUE_FREE, 117853 },
};

static uint64_t scale(void)
{
	return ptc_test_size(1, 3, 80);
}

/* Runs again with a trace what failed. */
static void explain(struct sim_opts o, const struct sim_result *r)
{
	struct sim_result again;
	printf("seed %llu step %llu victim %u %s restart %u: %s\n", (unsigned long long)o.seed,
	       (unsigned long long)o.step, o.victim, o.after ? "after" : "before", o.restart_ms, r->why);
	o.trace = true;
	sim_run(&o, &again);
	fail_msg("%s", r->why);
}

/* before: also with the fault before the update, not only after it. */
static void crash_at_every_step(struct sim_opts ref, unsigned victims, bool before)
{
	struct sim_result r;
	sim_run(&ref, &r);
	if (!r.ok)
		explain(ref, &r);
	uint64_t steps = r.steps, runs = 0;
	assert_true(steps > 80);
	for (uint64_t step = 1; step <= steps; step++) {
		for (unsigned victim = 0; victim < victims; victim++) {
			for (int after = !before; after < 2; after++, runs++) {
				struct sim_opts o = ref;
				o.step = step;
				o.victim = victim;
				o.after = after;
				sim_run(&o, &r);
				if (!r.ok)
					explain(o, &r);
			}
		}
	}
	printf("seed %llu: %llu steps, %llu runs\n", (unsigned long long)ref.seed, (unsigned long long)steps,
	       (unsigned long long)runs);
}

static void test_crash_quick_restart(void **state)
{
	for (uint64_t i = 0; i < PTC_MIN(scale(), 10); i++)
		crash_at_every_step((struct sim_opts){ .seed = first_seed + i, .restart_ms = 60 }, SIM_VICTIM_STATE,
				    true);
}

static void test_crash_slow_restart(void **state)
{
	for (uint64_t i = 0; i < PTC_MIN(scale(), 10); i++)
		crash_at_every_step((struct sim_opts){ .seed = first_seed + i, .restart_ms = 2500 }, SIM_VICTIM_STATE,
				    true);
}

/* Longer away than the switch waits. */
static void test_crash_gives_up(void **state)
{
	crash_at_every_step((struct sim_opts){ .seed = first_seed, .restart_ms = 6000 }, SIM_VICTIM_STATE, true);
}

/* One machine, or what it holds, is lost at any step: all that was there twice is still there, and the job goes on. */
static void test_loss_at_every_step(void **state)
{
	static const uint32_t restart_ms[] = { 60, 2500, 6000 };
	for (size_t i = 0; i < PTC_ARRAY_LEN(restart_ms); i++)
		crash_at_every_step((struct sim_opts){ .seed = first_seed, .lose = true, .restart_ms = restart_ms[i] },
				    SIM_VICTIM_LOSS_COUNT, true);
}

enum kind {
	STATE,
	LOSE,
	LIVE,
	RECOVER,
	SURVIVE,
	SEVERAL,
	SEVERAL_SURVIVE,
	KEEP,
	KEEP_LIVE,
	BRIDGE,
	BRIDGE_LIVE,
	YIELD,
	YIELD_LIVE
};

static const struct sim_opts kind_opts[] = {
	[STATE] = { .faults = true },
	[LOSE] = { .faults = true, .lose = true },
	[LIVE] = { .faults = true, .live = true },
	[RECOVER] = { .faults = true, .live = true, .lose = true },
	[SURVIVE] = { .faults = true, .live = true, .lose = true, .survive = true },
	[SEVERAL] = { .faults = true, .live = true, .several = true },
	[SEVERAL_SURVIVE] = { .faults = true, .live = true, .lose = true, .survive = true, .several = true },
	[KEEP] = { .faults = true, .keep = true },
	[KEEP_LIVE] = { .faults = true, .live = true, .keep = true },
	[BRIDGE] = { .faults = true, .lose = true, .bridge = true },
	[BRIDGE_LIVE] = { .faults = true, .live = true, .lose = true, .bridge = true },
	[YIELD] = { .faults = true, .lose = true, .bridge = true, .tight = true },
	[YIELD_LIVE] = { .faults = true, .live = true, .lose = true, .bridge = true, .tight = true },
};

static void run_random(enum kind kind, uint64_t n)
{
	const struct sim_opts *of = &kind_opts[kind];
	bool tight = of->tight, bridge = of->bridge, live = of->live, survive = of->survive;
	struct sim_result r, sum = { 0 };
	const char *one = getenv("PTC_TEST_SEED");
	uint64_t from = ptc_test_seed();
	n = one ? 1 : n * scale();
	for (uint64_t seed = from; seed < from + n; seed++) {
		struct sim_opts o = *of;
		o.seed = seed;
		o.trace = one != NULL;
		sim_run(&o, &r);
		if (!r.ok)
			explain(o, &r);
		sum.commits += r.commits;
		sum.aborts += r.aborts;
		sum.conflicts += r.conflicts;
		sum.unknowns += r.unknowns;
		sum.new_incarnations += r.new_incarnations;
		sum.disagreed += r.disagreed;
		sum.events += r.events;
		sum.destroyed += r.destroyed;
		sum.left_out += r.left_out;
		sum.recovered += r.recovered;
		sum.survived += r.survived, sum.let_on += r.let_on;
		sum.rollbacks += r.rollbacks;
		sum.copies += r.copies;
		sum.went_back += r.went_back;
		sum.yielded += r.yielded;
		sum.yields_told += r.yields_told;
		sum.due += r.due;
		sum.left_out_due += r.left_out_due;
	}
	printf("%llu seeds from %llu: %llu events, %u commits, %u aborts, %u conflicts, %u unknown outcomes, %u "
	       "incarnations anew, %u captures that differed\n",
	       (unsigned long long)n, (unsigned long long)from, (unsigned long long)sum.events, sum.commits, sum.aborts,
	       sum.conflicts, sum.unknowns, sum.new_incarnations, sum.disagreed);
	if (kind == LOSE || kind == RECOVER || survive)
		printf("%u tables destroyed, %u first commits that left a node out, %u recoveries, %u from memory, %u "
		       "ranks let on\n",
		       sum.destroyed, sum.left_out, sum.recovered, sum.survived, sum.let_on);
	if (kind == KEEP || kind == KEEP_LIVE)
		printf("%u rollbacks\n", sum.rollbacks);
	if (bridge)
		printf("%u tables destroyed, %u copies, %u times back to a copy or the bridge\n", sum.destroyed,
		       sum.copies, sum.went_back);
	if (tight)
		printf("%u tables dropped for want of room, %u bridges that went for it\n", sum.yielded,
		       sum.yields_told);
	if (bridge && live)
		printf("%u snapshots that were due, %u left out\n", sum.due, sum.left_out_due);
	if (one)
		return;
	/* the run has to have met what it is for */
	assert_true(sum.commits > n && sum.aborts > n / 2 && sum.conflicts > n / 10 && sum.unknowns > n / 2);
	assert_true(kind != KEEP || sum.rollbacks > n / 3);
	assert_true(kind != KEEP_LIVE || sum.rollbacks > n / 20);
	assert_true(!bridge || (sum.copies > n && sum.went_back > n / 20));
	assert_true(!tight || (sum.yielded > n / (live ? 10 : 4) && sum.yields_told > n / (live ? 20 : 8)));
	assert_true(!bridge || !live || (sum.due > n && sum.left_out_due > n));
	assert_true(!survive || (sum.survived > n / 10 && sum.let_on > n / 400));
	assert_true(kind != LOSE || (sum.destroyed > n && sum.left_out > n / 4));
	assert_true(kind != RECOVER || (sum.destroyed > n / 3 && sum.left_out > n / 10 && sum.recovered > n / 15));
	assert_true((kind != LIVE && kind != SEVERAL) || sum.new_incarnations > n / 20);
	assert_true(kind != LIVE || sum.disagreed > n / 300);
}

static void run_seed(enum kind kind, uint64_t seed)
{
	struct sim_opts o = kind_opts[kind];
	struct sim_result r;

	o.seed = seed;
	sim_run(&o, &r);
	if (!r.ok)
		explain(o, &r);
}

static void test_random(void **state)
{
	run_random(STATE, 1000);
}

static void test_lose_random(void **state)
{
	run_random(LOSE, 2000);
}

static void test_live_random(void **state)
{
	run_random(LIVE, 1000);
}

static void test_recover_random(void **state)
{
	run_seed(RECOVER, 1373274933); /* a node comes back when all has been quiet, and the job starts again */
	run_random(RECOVER, 1000);
}

static void test_survive_random(void **state)
{
	run_random(SURVIVE, 1000);
}

static void test_several_random(void **state)
{
	run_random(SEVERAL, 1000);
}

static void test_several_survive_random(void **state)
{
	run_random(SEVERAL_SURVIVE, 1000);
}

static void test_keep_random(void **state)
{
	run_random(KEEP, 500);
}

static void test_keep_live_random(void **state)
{
	run_random(KEEP_LIVE, 500);
}

static void test_bridge_random(void **state)
{
	run_random(BRIDGE, 1000);
}

static void test_bridge_live_random(void **state)
{
	run_random(BRIDGE_LIVE, 1000);
}

static void test_yield_random(void **state)
{
	run_random(YIELD, 500);
}

static void test_yield_live_random(void **state)
{
	/* a rank ends a step whose ptcd is away, so nobody hears of it; that of the other rank stands */
	run_seed(YIELD_LIVE, 1154293585);
	run_random(YIELD_LIVE, 500);
}

static void test_live_crash(void **state)
{
	static const struct {
		uint32_t restart_ms;
		bool before;
	} rows[] = { { 60, true }, { 2500, false }, { 6000, false } };
	for (size_t i = 0; i < PTC_ARRAY_LEN(rows); i++) {
		struct sim_opts o = { .seed = first_seed, .live = true, .restart_ms = rows[i].restart_ms };
		crash_at_every_step(o, SIM_VICTIM_COUNT, rows[i].before);
	}
}

static void test_replay(void **state)
{
	for (uint64_t seed = first_seed; seed < first_seed + 40; seed++) {
		struct sim_opts o = { .seed = seed, .faults = true, .live = seed & 1 };
		struct sim_result a, b, c;
		sim_run(&o, &a);
		sim_run(&o, &b);
		assert_true(a.hash == b.hash && a.events == b.events && a.time_ms == b.time_ms);
		o.seed += 1000000;
		sim_run(&o, &c);
		assert_true(a.hash != c.hash);
	}
}

static const char *const bug_names[SIM_BUG_COUNT] = {
	[SIM_BUG_NO_COVER] = "no cover",
	[SIM_BUG_FORGET_LEFT_OUT] = "forget left out",
	[SIM_BUG_PLACE_ALL] = "place all",
	[SIM_BUG_PULL_LEFT_OUT] = "pull left out",
	[SIM_BUG_SEAL_NOTHING] = "seal nothing",
	[SIM_BUG_DROP_RETURNED] = "drop returned",
	[SIM_BUG_COMMIT_LOST] = "commit lost",
	[SIM_BUG_COMMIT_RETURNED] = "commit returned",
	[SIM_BUG_SKIP_STAND] = "skip stand",
	[SIM_BUG_DROP_FILLED] = "drop filled",
	[SIM_BUG_COUNT_RETURNED] = "count returned",
	[SIM_BUG_SKIP_RETURNED] = "skip returned",
	[SIM_BUG_NOT_GIVEN_UP] = "not given up",
	[SIM_BUG_REVIVED] = "revived",
	[SIM_BUG_START_EMPTY] = "start empty",
	[SIM_BUG_OLD_RANKS] = "old ranks",
	[SIM_BUG_CAPTURE_ANEW] = "capture anew",
	[SIM_BUG_HELD_ANEW] = "held anew",
	[SIM_BUG_NO_HALT] = "no halt",
	[SIM_BUG_NOT_ASKED] = "not asked",
	[SIM_BUG_STORE_UNSEEN] = "store unseen",
	[SIM_BUG_LOST_TRAINS] = "lost trains",
	[SIM_BUG_PASSED_NEEDED] = "passed needed",
	[SIM_BUG_FORGET_FENCE] = "forget fence",
	[SIM_BUG_HELD_RUNS] = "held runs",
	[SIM_BUG_HELD_STEP] = "held step",
	[SIM_BUG_HELD_ALONE] = "held alone",
	[SIM_BUG_HELD_PLACE] = "held place",
	[SIM_BUG_HELD_KEYS] = "held keys",
	[SIM_BUG_LET_ON_EARLY] = "let on early",
	[SIM_BUG_OLDER_FORGOTTEN] = "older forgotten",
	[SIM_BUG_OLDER_LATE] = "older late",
	[SIM_BUG_OLDER_RECORD] = "older record",
	[SIM_BUG_BRIDGE_EARLY] = "bridge early",
	[SIM_BUG_BRIDGE_NEWEST] = "bridge newest",
	[SIM_BUG_BRIDGE_COPY] = "bridge copy",
	[SIM_BUG_BRIDGE_DOWN] = "bridge down",
	[SIM_BUG_YIELD_UNTOLD] = "yield untold",
	[SIM_BUG_YIELD_STAYS] = "yield stays",
	[SIM_BUG_YIELD_ANY] = "yield any",
	[SIM_BUG_YIELD_MARK] = "yield mark",
	[SIM_BUG_YIELD_SOURCE] = "yield source",
	[SIM_BUG_YIELD_COPY] = "yield copy",
	[SIM_BUG_YIELD_BLIND] = "yield blind",
	[SIM_BUG_BACK_SHED] = "back shed",
	[SIM_BUG_SHED_LATE] = "shed late",
	[SIM_BUG_LEAVE_MORE] = "leave more",
	[SIM_BUG_LEAVE_STAYS] = "leave stays",
	[SIM_BUG_LEAVE_DOWN] = "leave down",
	[SIM_BUG_FIRST_RANK] = "first rank",
	[SIM_BUG_HELD_PART] = "held part",
	[SIM_BUG_ASKS_ALL] = "asks all",
	[SIM_BUG_DUE_FREE] = "due free",
	[SIM_BUG_NO_AGREE] = "no agree",
	[SIM_BUG_ONE_ROUND] = "one round",
	[SIM_BUG_EARLY_STOP] = "early stop",
	[SIM_BUG_OLD_CAPTURE] = "old capture",
	[SIM_BUG_EARLY_BUILD] = "early build",
	[SIM_BUG_NO_NEW_INCARNATION] = "no new_incarnation",
	[SIM_BUG_FINISH_ANY_INCARNATION] = "any incarnation",
	[SIM_BUG_START_LOST] = "start lost",
	[SIM_BUG_START_BUILT] = "start built",
	[SIM_BUG_EARLY_COMMIT] = "early commit",
	[SIM_BUG_GUESS_UNKNOWN] = "guess unknown",
	[SIM_BUG_SKIP_FINISH] = "skip finish",
	[SIM_BUG_OLD_LIFE] = "old life",
	[SIM_BUG_NO_FENCE] = "no fence",
	[SIM_BUG_NO_SEQ] = "no seq",
	[SIM_BUG_NO_COMPARE] = "no compare",
	[SIM_BUG_NO_TOUCH] = "no touch",
	[SIM_BUG_UNSYNCED_SEAL] = "unsynced seal",
};

static uint64_t bug_seed(int bug)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(rare_bugs); i++) {
		if (rare_bugs[i].bug == bug)
			return rare_bugs[i].seed;
	}
	return first_seed;
}

static struct sim_opts bug_opts(int bug)
{
	struct sim_opts o = { .faults = true, .bug = (enum sim_bug)bug };
	o.several = bug >= SIM_BUG_FIRST_RANK;
	o.bridge = bug >= SIM_BUG_BRIDGE_EARLY && !o.several;
	o.tight = bug >= SIM_BUG_YIELD_UNTOLD && bug < SIM_BUG_DUE_FREE;
	o.keep = bug >= SIM_BUG_OLDER_FORGOTTEN && !o.bridge && !o.several;
	o.lose = (bug >= SIM_BUG_NO_COVER && bug < SIM_BUG_NO_AGREE) ||
		 (bug >= SIM_BUG_NO_HALT && !o.keep && bug != SIM_BUG_FIRST_RANK);
	o.live = bug >= SIM_BUG_NO_AGREE && !o.keep && (!o.bridge || bug >= SIM_BUG_YIELD_ANY);
	o.survive = bug >= SIM_BUG_HELD_RUNS && !o.keep && !o.bridge && bug != SIM_BUG_FIRST_RANK;
	return o;
}

/* The checker can fail: each seeded bug is found within so many seeds. Without the bug, that seed finds nothing. */
static void test_finds_bugs(void **state)
{
	int missed = 0;
	for (int bug = SIM_BUG_NONE + 1; bug < SIM_BUG_COUNT; bug++) {
		struct sim_result r = { .ok = true };
		struct sim_opts o = bug_opts(bug);
		const uint64_t from = bug_seed(bug);
		for (o.seed = from; o.seed < from + 3000; o.seed++) {
			sim_run(&o, &r);
			if (!r.ok)
				break;
		}
		printf("%-14s %s (seed %llu): %s\n", bug_names[bug], r.ok ? "MISSED" : "found",
		       (unsigned long long)o.seed, r.why);
		missed += r.ok;
		o.bug = SIM_BUG_NONE;
		sim_run(&o, &r);
		if (!r.ok)
			explain(o, &r);
	}
	assert_int_equal(missed, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crash_quick_restart),
		cmocka_unit_test(test_crash_slow_restart),
		cmocka_unit_test(test_crash_gives_up),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_loss_at_every_step),
		cmocka_unit_test(test_lose_random),
		cmocka_unit_test(test_live_crash),
		cmocka_unit_test(test_live_random),
		cmocka_unit_test(test_recover_random),
		cmocka_unit_test(test_survive_random),
		cmocka_unit_test(test_several_random),
		cmocka_unit_test(test_several_survive_random),
		cmocka_unit_test(test_keep_random),
		cmocka_unit_test(test_keep_live_random),
		cmocka_unit_test(test_bridge_random),
		cmocka_unit_test(test_bridge_live_random),
		cmocka_unit_test(test_yield_random),
		cmocka_unit_test(test_yield_live_random),
		cmocka_unit_test(test_replay),
		cmocka_unit_test(test_finds_bugs),
	};
	const struct {
		const char *kind;
		struct CMUnitTest test[1];
	} kinds[] = {
		{ "state", { cmocka_unit_test(test_random) } },
		{ "live", { cmocka_unit_test(test_live_random) } },
		{ "lose", { cmocka_unit_test(test_lose_random) } },
		{ "recover", { cmocka_unit_test(test_recover_random) } },
		{ "survive", { cmocka_unit_test(test_survive_random) } },
		{ "several", { cmocka_unit_test(test_several_random) } },
		{ "several-survive", { cmocka_unit_test(test_several_survive_random) } },
		{ "keep", { cmocka_unit_test(test_keep_random) } },
		{ "keep-live", { cmocka_unit_test(test_keep_live_random) } },
		{ "bridge", { cmocka_unit_test(test_bridge_random) } },
		{ "bridge-live", { cmocka_unit_test(test_bridge_live_random) } },
		{ "yield", { cmocka_unit_test(test_yield_random) } },
		{ "yield-live", { cmocka_unit_test(test_yield_live_random) } },
	};
	const char *kind = getenv("PTC_TEST_KIND");
	if (!kind && getenv("PTC_TEST_SEED"))
		kind = "state";
	for (size_t i = 0; kind && i < PTC_ARRAY_LEN(kinds); i++) {
		if (strcmp(kind, kinds[i].kind) == 0)
			return cmocka_run_group_tests(kinds[i].test, NULL, NULL);
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
