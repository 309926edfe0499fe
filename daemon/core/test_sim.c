/* SPDX-License-Identifier: Apache-2.0 */
/* The simulation: one crash at every step of a reference run, then thousands of random ones, then seeded bugs that it
 * has to find. PTC_TEST_SEED=N replays one seed with a trace; PTC_TEST_LONG=1 runs a hundred times as many. */
#include "daemon/core/sim.h"

#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t first_seed = 1;

static uint64_t scale(void)
{
	const char *v = getenv("PTC_TEST_LONG");
	return v && strcmp(v, "1") == 0 ? 100 : 1;
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

static void crash_at_every_step(uint64_t seed, uint32_t restart_ms)
{
	struct sim_opts ref = { .seed = seed };
	struct sim_result r;
	sim_run(&ref, &r);
	if (!r.ok)
		explain(ref, &r);
	uint64_t steps = r.steps, runs = 0;
	assert_true(steps > 80);
	for (uint64_t step = 1; step <= steps; step++) {
		for (unsigned victim = 0; victim < SIM_VICTIM_COUNT; victim++) {
			for (int after = 0; after < 2; after++, runs++) {
				struct sim_opts o = { .seed = seed, .step = step, .victim = victim };
				o.after = after;
				o.restart_ms = restart_ms;
				sim_run(&o, &r);
				if (!r.ok)
					explain(o, &r);
			}
		}
	}
	printf("seed %llu: %llu steps, %llu runs\n", (unsigned long long)seed, (unsigned long long)steps,
	       (unsigned long long)runs);
}

static void test_crash_quick_restart(void **state)
{
	for (uint64_t i = 0; i < PTC_MIN(scale(), 10); i++)
		crash_at_every_step(first_seed + i, 60);
}

static void test_crash_slow_restart(void **state)
{
	for (uint64_t i = 0; i < PTC_MIN(scale(), 10); i++)
		crash_at_every_step(first_seed + i, 2500);
}

/* Longer away than the switch waits. */
static void test_crash_gives_up(void **state)
{
	crash_at_every_step(first_seed, 6000);
}

static void test_random(void **state)
{
	struct sim_result r, sum = { 0 };
	const char *one = getenv("PTC_TEST_SEED");
	uint64_t n = one ? 1 : 2000 * scale(), from = one ? strtoull(one, NULL, 0) : first_seed;
	for (uint64_t seed = from; seed < from + n; seed++) {
		struct sim_opts o = { .seed = seed, .faults = true, .trace = one != NULL };
		sim_run(&o, &r);
		if (!r.ok)
			explain(o, &r);
		sum.commits += r.commits;
		sum.aborts += r.aborts;
		sum.conflicts += r.conflicts;
		sum.unknowns += r.unknowns;
		sum.events += r.events;
	}
	printf("%llu seeds from %llu: %llu events, %u commits, %u aborts, %u conflicts, %u unknown outcomes\n",
	       (unsigned long long)n, (unsigned long long)from, (unsigned long long)sum.events, sum.commits, sum.aborts,
	       sum.conflicts, sum.unknowns);
	if (one)
		return;
	/* the run has to have met what it is for */
	assert_true(sum.commits > n && sum.aborts > n / 2 && sum.conflicts > n / 10 && sum.unknowns > n / 2);
}

static void test_replay(void **state)
{
	for (uint64_t seed = first_seed; seed < first_seed + 20; seed++) {
		struct sim_opts o = { .seed = seed, .faults = true };
		struct sim_result a, b, c;
		sim_run(&o, &a);
		sim_run(&o, &b);
		assert_true(a.hash == b.hash && a.events == b.events && a.time_ms == b.time_ms);
		o.seed += 1000000;
		sim_run(&o, &c);
		assert_true(a.hash != c.hash);
	}
}

/* The checker can fail: each seeded bug is found within so many seeds. */
static void test_finds_bugs(void **state)
{
	static const char *const names[SIM_BUG_COUNT] = {
		[SIM_BUG_EARLY_COMMIT] = "early commit",   [SIM_BUG_GUESS_UNKNOWN] = "guess unknown",
		[SIM_BUG_SKIP_FINISH] = "skip finish",     [SIM_BUG_OLD_LIFE] = "old life",
		[SIM_BUG_NO_FENCE] = "no fence",           [SIM_BUG_NO_SEQ] = "no seq",
		[SIM_BUG_NO_COMPARE] = "no compare",       [SIM_BUG_NO_TOUCH] = "no touch",
		[SIM_BUG_UNSYNCED_SEAL] = "unsynced seal",
	};
	int missed = 0;
	for (int bug = SIM_BUG_NONE + 1; bug < SIM_BUG_COUNT; bug++) {
		struct sim_result r = { .ok = true };
		uint64_t seed = first_seed;
		for (; seed < first_seed + 3000; seed++) {
			struct sim_opts o = { .seed = seed, .faults = true, .bug = (enum sim_bug)bug };
			sim_run(&o, &r);
			if (!r.ok)
				break;
		}
		printf("%-14s %s (seed %llu): %s\n", names[bug], r.ok ? "MISSED" : "found", (unsigned long long)seed,
		       r.why);
		missed += r.ok;
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
		cmocka_unit_test(test_replay),
		cmocka_unit_test(test_finds_bugs),
	};
	const struct CMUnitTest one[] = { cmocka_unit_test(test_random) };
	if (getenv("PTC_TEST_SEED"))
		return cmocka_run_group_tests(one, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
