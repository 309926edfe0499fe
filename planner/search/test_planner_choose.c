/* SPDX-License-Identifier: Apache-2.0 */
/* What a switch is worth: fewest bytes among equals, staying where a pause does not pay, and a trace
 * of devices coming and going, against what one who knows the future would do (dynamic programming,
 * written here). PTC_TEST_SEED=n repeats. */
#include "planner/search/choose.h"

#include "base/check.h"
#include "planner/test_planner_rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct ptc_choice choice(uint32_t tp, uint32_t pp, uint32_t dp, double step_s)
{
	struct ptc_choice c = { .cand = { tp, 1, dp, pp, 1, 1, 1, 1, 0, 0 } };

	c.est.step_s = step_s;
	return c;
}

struct table {
	const struct ptc_choice *v;
	const struct ptc_switch_price *price;
	size_t n;
};

static int from_table(void *arg, const struct ptc_cand *to, struct ptc_switch_price *ret)
{
	const struct table *t = arg;

	for (size_t i = 0; i < t->n; i++)
		if (!ptc_cand_compare(&t->v[i].cand, to)) {
			*ret = t->price[i];
			return ret->down_s < 0 ? PTC_EINVAL : 0;
		}
	return PTC_ENOTFOUND;
}

/* 64 -> 48 devices: two targets as fast as each other, and as long a pause; the smaller of planners.md's 4.2 (v) wins.
 */
static void test_shrink_takes_fewer_bytes(void **state)
{
	const struct ptc_choice v[] = { choice(8, 2, 3, 10), choice(8, 3, 2, 10), choice(4, 4, 3, 10.5) };
	const struct ptc_switch_price price[] = { { 20, 1.63e12, 0 }, { 20, 0.41e12, 0 }, { 20, 0.1e12, 0 } };
	struct table t = { v, price, 3 };
	struct ptc_choose_rules rules = { .price = from_table, .arg = &t };
	struct ptc_ranked got[4];
	char why[PTC_WHY_MAX];
	size_t n;

	assert_int_equal(ptc_choose(v, 3, &rules, got, &n, why, NULL), 0);
	assert_int_equal(n, 3);
	assert_int_equal(got[0].choice.cand.pp, 3);
	assert_non_null(strstr(why, "tp=8,pp=3,dp=2"));
	rules.objective = PTC_FOR_STATE_BYTES;
	assert_int_equal(ptc_choose(v, 3, &rules, got, &n, why, NULL), 0);
	assert_int_equal(got[0].choice.cand.tp, 4);
	rules.objective = PTC_FOR_MONEY; /* all take 48 devices: the most steps are the cheapest */
	rules.price_hour = 2;
	assert_int_equal(ptc_choose(v, 3, &rules, got, &n, why, NULL), 0);
	assert_true(got[0].choice.est.step_s == 10);
	assert_true(fabs(got[0].money - 48 * 2 * 600 / 3600.0 / (580 / 10.0)) < 1e-9);
}

static void test_pause_pays(void **state)
{
	const struct ptc_choice now = choice(1, 2, 8, 10), v[] = { choice(1, 2, 10, 8) };
	struct ptc_switch_price price[] = { { 60, 1e9, 0 } };
	struct table t = { v, price, 1 };
	struct ptc_choose_rules rules = { .price = from_table, .arg = &t, .now = &now };
	struct ptc_ranked got[2];
	char why[PTC_WHY_MAX];
	size_t n;

	assert_int_equal(ptc_choose(v, 1, &rules, got, &n, why, NULL), 0);
	assert_false(got[0].stays); /* 540/8 steps against 600/10 */
	assert_true(fabs(got[0].break_even_s - 300) < 1e-9);
	rules.horizon_s = 299; /* before it is paid back */
	assert_int_equal(ptc_choose(v, 1, &rules, got, &n, why, NULL), 0);
	assert_true(got[0].stays);
	assert_non_null(strstr(why, "no switch pays its pause back"));
	rules.horizon_s = 301;
	assert_int_equal(ptc_choose(v, 1, &rules, got, &n, why, NULL), 0);
	assert_false(got[0].stays);
}

/* A switch whose peak does not fit, or that cannot be priced, is left out. */
static void test_peak_of_the_switch(void **state)
{
	const struct ptc_choice v[] = { choice(8, 2, 3, 10), choice(8, 3, 2, 10.1), choice(2, 3, 8, 10.2) };
	const struct ptc_switch_price price[] = { { 1, 1e9, 90e9 }, { -1, 1e9, 0 }, { 1, 1e9, 70e9 } };
	struct table t = { v, price, 3 };
	struct ptc_choose_rules rules = { .price = from_table, .arg = &t, .room_bytes = 80e9 };
	struct ptc_ranked got[4];
	struct ptc_error err = PTC_ERROR_INIT;
	char why[PTC_WHY_MAX];
	size_t n;

	assert_int_equal(ptc_choose(v, 3, &rules, got, &n, why, &err), 0);
	assert_int_equal(n, 1);
	assert_int_equal(got[0].choice.cand.tp, 2);
	rules.room_bytes = 1e9;
	assert_int_equal(ptc_choose(v, 3, &rules, got, &n, why, &err), PTC_ENODEVICES);
}

/* ---- the trace ---- */

#define INTERVAL_S 60
#define INTERVALS  700
#define N_MIN      10
#define N_MAX      32

static uint32_t trace[INTERVALS];

/* A change every four minutes on average, of one to four devices either way. */
static void make_trace(uint64_t number)
{
	const char *s = getenv("PTC_TEST_SEED"); /* else the same traces in every run: some need 0.004 more */
	uint32_t n = 24;

	rng_begin((s ? strtoull(s, NULL, 0) : 20250311) + number);
	for (int i = 0; i < INTERVALS; i++) {
		if (!rnd(4)) {
			int32_t next = (int32_t)n + (rnd(2) ? 1 : -1) * (int32_t)(1 + rnd(4));

			n = (uint32_t)PTC_MIN(N_MAX, PTC_MAX(N_MIN, next));
		}
		trace[i] = n;
	}
}

static struct ptc_model model;
static struct ptc_cluster_profile cluster;
static struct ptc_choice table[N_MAX + 1]; /* the fastest for at most n devices */

/* GPT-1.5B on nodes of one V100 with 10 Gb/s, batch 128: dp and pp, as Parcae's. */
static void make_table(void)
{
	struct ptc_work w = {
		.model = &model, .cluster = &cluster, .global_batch = 128, .reduce_bytes = 2, .uneven = true
	};
	struct ptc_space space = { .tp = { 1, { 1 } }, .zero = 1, .recompute = 4, .micro_batch = { 1, { 1 } } };

	ptc_model_gpt(&model, 48, 1600, 25, 6400, 50257, 1024);
	cluster = (struct ptc_cluster_profile){ .per_node = 1, .nkinds = 1 };
	ptc_device_kind_known("V100-16GB", &cluster.kinds[0]);
	cluster.kinds[0].nodes = N_MAX;
	cluster.intra_bytes_s = cluster.node_bytes_s = 1e9;
	cluster.node_latency_s = 1e-4;
	ptc_coefs_default(&w.coefs);
	ptc_memory_rules_default(&w.memory);
	for (uint32_t n = N_MIN; n <= N_MAX; n++) {
		struct ptc_search_limits limits = { .devices = n, .keep = 1 };
		size_t count;

		assert_int_equal(ptc_search(&w, &space, &limits, NULL, &table[n], &count, NULL), 0);
	}
}

/* Steps made by one who knows the trace: best[c] is the most with configuration c at an interval's end. */
static double foresight(double down_s)
{
	double best[N_MAX + 1] = { 0 };

	for (int i = 0; i < INTERVALS; i++) {
		double most = -INFINITY, next[N_MAX + 1];

		for (uint32_t c = N_MIN; c <= N_MAX; c++)
			most = PTC_MAX(most, best[c]);
		for (uint32_t c = N_MIN; c <= N_MAX; c++) {
			const struct ptc_choice *x = &table[c];
			double come = most + (i ? (INTERVAL_S - down_s) : INTERVAL_S) / x->est.step_s;

			next[c] = ptc_cand_devices(&x->cand) > trace[i]
					  ? -INFINITY
					  : PTC_MAX(come, best[c] + INTERVAL_S / x->est.step_s);
		}
		memcpy(best, next, sizeof best);
	}
	{
		double most = 0;

		for (uint32_t c = N_MIN; c <= N_MAX; c++)
			most = PTC_MAX(most, best[c]);
		return most;
	}
}

static int constant(void *arg, const struct ptc_cand *to, struct ptc_switch_price *ret)
{
	*ret = (struct ptc_switch_price){ .down_s = *(const double *)arg };
	return 0;
}

#define RECENT 16 /* as many losses and changes does a daemon remember (daemon/planning/measured_doc.h) */

/* Of the last few things of a kind: when they were, and how many devices each took. */
struct recent {
	double at_s[RECENT], devices[RECENT];
	uint32_t n;
};

static void happens(struct recent *r, int i, double devices)
{
	if (r->n == RECENT) {
		r->n--;
		memmove(r->at_s, r->at_s + 1, r->n * sizeof *r->at_s);
		memmove(r->devices, r->devices + 1, r->n * sizeof *r->devices);
	}
	r->at_s[r->n] = i * INTERVAL_S;
	r->devices[r->n++] = devices;
}

/* The horizon of a daemon: the mean time between the job's own changes, not less than the default. */
static double own_horizon(const struct recent *changes)
{
	double all = changes->n < 3 ? 0 : changes->at_s[changes->n - 1] - changes->at_s[0];

	return PTC_MAX((double)PTC_CHOOSE_HORIZON_S, changes->n < 3 ? 0 : all / (changes->n - 1));
}

static void see_losses(const struct recent *losses, int i, struct ptc_choose_rules *ret)
{
	if (losses->n < 2)
		return;
	for (uint32_t k = 0; k < losses->n; k++)
		ret->loss_devices += losses->devices[k] / losses->n;
	ret->loss_every_s = (i * INTERVAL_S - losses->at_s[0]) / losses->n;
}

/* Steps made by ptc_choose at each interval, which knows what a daemon does. horizon 0: the daemon's; INFINITY: a
 * switch is thought free. blind: of losses nothing is known. */
static double by_choice(double down_s, double horizon_s, bool blind)
{
	struct ptc_choice now = table[trace[0]];
	struct recent losses = { .n = 0 }, changes = { .n = 0 };
	double steps = INTERVAL_S / now.est.step_s;

	for (int i = 1; i < INTERVALS; i++) {
		double thought = isinf(horizon_s) ? 0 : down_s, lost = 0;
		struct ptc_choose_rules rules = { .price = constant, .arg = &thought, .available = trace[i] };
		struct ptc_ranked got[N_MAX + 2];
		char why[PTC_WHY_MAX];
		size_t n;

		if (trace[i] < trace[i - 1])
			happens(&losses, i, trace[i - 1] - trace[i]);
		rules.horizon_s = isinf(horizon_s) ? 0 : horizon_s > 0 ? horizon_s : own_horizon(&changes);
		rules.forced_down_s = thought;
		if (!blind)
			see_losses(&losses, i, &rules);
		rules.now = ptc_cand_devices(&now.cand) <= trace[i] ? &now : NULL;
		assert_int_equal(ptc_choose(table + N_MIN, trace[i] - N_MIN + 1, &rules, got, &n, why, NULL), 0);
		if (ptc_cand_compare(&got[0].choice.cand, &now.cand)) {
			lost = down_s;
			happens(&changes, i, 0);
		}
		now = got[0].choice;
		assert_true(ptc_cand_devices(&now.cand) <= trace[i]);
		steps += (INTERVAL_S - lost) / now.est.step_s;
	}
	return steps;
}

/* ---- what anybody could do who does not know the trace ----
 *
 * make_trace's law is a Markov chain of the number of devices. Dynamic programming over that number and the
 * configuration that runs gives the policy with the most steps on average: no one who only knows the past does better.
 */
#define AHEAD 200 /* intervals: by then the policy does not change any more */

static uint8_t online[N_MAX + 1][N_MAX + 1]; /* the configuration to run, by devices and by what runs */

static double expected(double value[N_MAX + 1][N_MAX + 1], uint32_t n, uint32_t c)
{
	double sum = 0.75 * value[n][c];

	for (uint32_t k = 1; k <= 4; k++)
		sum += 0.25 / 8 * (value[PTC_MIN(N_MAX, n + k)][c] + value[PTC_MAX(N_MIN + k, n) - k][c]);
	return sum;
}

static void find_online(double down_s)
{
	static double value[N_MAX + 1][N_MAX + 1], later[N_MAX + 1][N_MAX + 1];

	memset(value, 0, sizeof value);
	for (int i = 0; i < AHEAD; i++) {
		for (uint32_t n = N_MIN; n <= N_MAX; n++) {
			uint32_t to = N_MIN;
			double go = -INFINITY;

			for (uint32_t c = N_MIN; c <= N_MAX; c++) {
				double v = (INTERVAL_S - down_s) / table[c].est.step_s + expected(value, n, c);

				if (ptc_cand_devices(&table[c].cand) > n || v <= go)
					continue;
				go = v;
				to = c;
			}
			for (uint32_t c = N_MIN; c <= N_MAX; c++) {
				bool may = ptc_cand_devices(&table[c].cand) <= n;
				double stay = INTERVAL_S / table[c].est.step_s + expected(value, n, c);

				later[n][c] = may ? PTC_MAX(stay, go) : go;
				online[n][c] = (uint8_t)(may && stay >= go ? c : to);
			}
		}
		memcpy(value, later, sizeof value);
	}
}

static double by_online(double down_s)
{
	uint32_t now = trace[0];
	double steps = INTERVAL_S / table[now].est.step_s;

	for (int i = 1; i < INTERVALS; i++) {
		uint32_t to = online[trace[i]][now];
		bool same = !ptc_cand_compare(&table[to].cand, &table[now].cand);

		steps += (INTERVAL_S - (same ? 0 : down_s)) / table[to].est.step_s;
		now = to;
	}
	return steps;
}

#define TRACES 9

struct shares { /* of perfect foresight, summed over traces */
	double own, four, brief, always, blind, online;
};

static struct shares share(double down_s)
{
	struct shares s = { 0 };

	find_online(down_s);
	for (uint64_t i = 0; i < TRACES; i++) {
		double best;

		make_trace(i);
		best = foresight(down_s) * TRACES;
		s.own += by_choice(down_s, 0, false) / best;
		s.four += by_choice(down_s, 240, false) / best;
		s.brief += by_choice(down_s, 60, false) / best;
		s.always += by_choice(down_s, INFINITY, false) / best;
		s.blind += by_choice(down_s, 0, true) / best;
		s.online += by_online(down_s) / best;
	}
	return s;
}

static void test_trace(void **state)
{
	static const double downs[] = { 10, 30, 60 };
	uint32_t idle = 0;

	print_message("traces of seed %s (PTC_TEST_SEED)\n",
		      getenv("PTC_TEST_SEED") ? getenv("PTC_TEST_SEED") : "20250311");
	make_table();
	for (uint32_t n = N_MIN; n <= N_MAX; n++) {
		assert_true(n == N_MIN || table[n].est.step_s <= table[n - 1].est.step_s);
		idle += ptc_cand_devices(&table[n].cand) < n;
	}
	assert_true(idle > 0); /* for some n devices stay idle because that is faster */
	for (size_t i = 0; i < PTC_ARRAY_LEN(downs); i++) {
		struct shares s = share(downs[i]);

		print_message(
			"pause %2.0f s: of perfect foresight %.4f as a daemon does it, %.3f with a horizon of 240 s, "
			"%.3f of 60 s, %.3f always the fastest, %.4f without losses, %.3f the best without foresight\n",
			downs[i], s.own, s.four, s.brief, s.always, s.blind, s.online);
		assert_true(s.own >= 0.96 && s.own <= 1 + 1e-9);
		assert_true(s.own >= s.blind);
		assert_true(s.own >= 0.985 * s.online &&
			    s.online <= 1 + 1e-9); /* whose policy knows the law of changes */
		if (downs[i] >= 30)                /* too short a horizon is worse than none */
			assert_true(s.brief < s.always && s.brief < s.own);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shrink_takes_fewer_bytes),
		cmocka_unit_test(test_pause_pays),
		cmocka_unit_test(test_peak_of_the_switch),
		cmocka_unit_test(test_trace),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
