/* SPDX-License-Identifier: Apache-2.0 */
/* The search against trying everything: an oracle that calls ptc_estimate for each combination of
 * degrees, in plain loops, and knows nothing of bounds. Frontiers the same way. PTC_TEST_SEED=n
 * PTC_CASES=1 repeats the case that a failure prints. */
#include "planner/search/fastest.h"

#include "base/alloc.h"
#include "base/check.h"
#include "planner/test_planner_rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CASES 600

struct instance {
	struct ptc_model model;
	struct ptc_cluster_profile cluster;
	struct ptc_work work;
	struct ptc_space space;
	uint32_t devices;
	double memory;
};

static void random_degrees(struct ptc_degrees *d, uint32_t most)
{
	d->n = 0;
	for (uint32_t v = 1; v <= most; v++)
		if (v == 1 || rnd(2))
			d->v[d->n++] = v;
}

static void random_model(struct ptc_model *m)
{
	uint32_t heads = 1u << rnd(5);

	ptc_model_gpt(m, 1 + rnd(14), heads * 64, heads, heads * 256, rnd(3) ? 1000 + rnd(50000) : 0, 128u << rnd(4));
	m->flash = rnd(2);
	if (rnd(3) == 0 && m->layers > 1) { /* some layers have experts */
		m->nkinds = 2;
		m->kinds[1] = m->kinds[0];
		m->kinds[1].ffn = 0;
		m->kinds[1].experts = 4u << rnd(2);
		m->kinds[1].topk = 1 + rnd(2);
		m->kinds[1].expert_ffn = heads * 128;
		for (uint32_t i = 0; i < m->layers; i++)
			m->kind[i] = i % 2;
	} else if (rnd(3) == 0 && m->layers > 1) { /* an encoder, and layers that look at it */
		uint32_t end = 1 + rnd(m->layers - 1);

		m->nkinds = 2;
		m->kinds[1] = m->kinds[0];
		m->kinds[0].seq = 128u << rnd(4);
		m->kinds[1].cross = true;
		for (uint32_t i = end; i < m->layers; i++)
			m->kind[i] = 1;
	}
}

static void random_instance(struct instance *x, uint64_t seed)
{
	rng_begin(seed);
	memset(x, 0, sizeof *x);
	random_model(&x->model);
	x->devices = 1 + rnd(16);
	x->cluster.per_node = 1u << rnd(4);
	x->cluster.nkinds = 1;
	ptc_device_kind_known(rnd(2) ? "A100-80GB" : "V100-16GB", &x->cluster.kinds[0]);
	x->cluster.kinds[0].nodes = 16;
	x->cluster.intra_bytes_s = 1e9 * (1 + rnd(300));
	x->cluster.node_bytes_s = 1e9 * (1 + rnd(100));
	x->cluster.intra_latency_s = 2e-5;
	x->cluster.node_latency_s = 5e-5;
	x->work = (struct ptc_work){ .model = &x->model,
				     .cluster = &x->cluster,
				     .global_batch = 1 + rnd(96),
				     .reduce_bytes = 2,
				     .uneven = rnd(2),
				     .encoder_apart = rnd(2),
				     .sequence_parallel = rnd(2),
				     .schedule = rnd(4) ? PTC_SCHEDULE_1F1B : PTC_SCHEDULE_GPIPE };
	ptc_coefs_default(&x->work.coefs);
	ptc_memory_rules_default(&x->work.memory);
	x->work.memory.reserve_bytes = 0;
	random_degrees(&x->space.vpp, 3);
	random_degrees(&x->space.cp, 2);
	random_degrees(&x->space.ep, 4);
	random_degrees(&x->space.etp, 2);
	random_degrees(&x->space.micro_batch, 8);
	x->space.zero = 1 | (uint8_t)rnd(16);
	x->space.recompute = 1 | (uint8_t)rnd(8);
	x->space.recompute_by_kind = rnd(2);
	x->space.tp_across_nodes = rnd(2);
	x->space.exact_batch = rnd(2);
	/* From too little for anything to more than anything takes. */
	x->memory = ptc_model_params(&x->model) * 18 * (0.02 + rnd(100) / 40.0) + 1e8 * rnd(20);
}

static bool in(const struct ptc_degrees *d, uint32_t v)
{
	for (uint32_t i = 0; i < d->n; i++)
		if (d->v[i] == v)
			return true;
	return false;
}

static bool allowed(const struct instance *x, const struct ptc_cand *c)
{
	const struct ptc_space *s = &x->space;
	uint32_t once = c->micro_batch * c->dp;

	if (ptc_cand_devices(c) > x->devices || (!s->tp_across_nodes && c->tp > x->cluster.per_node))
		return false;
	if (!in(&s->vpp, c->vpp) || !in(&s->cp, c->cp) || !in(&s->ep, c->ep) || !in(&s->etp, c->etp))
		return false;
	if (!in(&s->micro_batch, c->micro_batch) || !(s->zero & 1 << c->zero) || !(s->recompute & 1 << c->recompute) ||
	    (c->recompute_others && !(s->recompute & 1 << (c->recompute_others - 1))))
		return false;
	if (once >= x->work.global_batch + c->micro_batch || (s->exact_batch && x->work.global_batch % once))
		return false;
	return c->micro_batch <= x->work.global_batch;
}

typedef void (*each_fn)(void *arg, const struct ptc_choice *c);

/* Innermost axes of the oracle's loops. */
static void try_rest(const struct instance *x, struct ptc_cand c, each_fn fn, void *arg)
{
	for (c.micro_batch = 1; c.micro_batch <= 8; c.micro_batch++)
		for (c.recompute = 0; c.recompute < 3; c.recompute++)
			for (c.recompute_others = 0; c.recompute_others <= (x->space.recompute_by_kind ? 3 : 0);
			     c.recompute_others++)
				for (c.zero = 0; c.zero < 4; c.zero++) {
					struct ptc_choice new = { .cand = c };

					if (allowed(x, &c) && !ptc_estimate(&x->work, &c, &new.est, NULL))
						fn(arg, &new);
				}
}

static void try_all(const struct instance *x, each_fn fn, void *arg)
{
	struct ptc_cand c;

	for (c.tp = 1; c.tp <= x->devices; c.tp++)
		for (c.cp = 1; c.cp <= 2; c.cp++)
			for (c.dp = 1; c.dp <= x->devices; c.dp++)
				for (c.pp = 1; c.tp * c.cp * c.dp * c.pp <= x->devices; c.pp++)
					for (c.ep = 1; c.ep <= 4; c.ep++)
						for (c.etp = 1; c.etp <= 2; c.etp++)
							for (c.vpp = 1; c.vpp <= 3; c.vpp++)
								try_rest(x, c, fn, arg);
}

struct best {
	struct ptc_choice c;
	double memory;
	bool some;
	size_t fit;
};

static void keep_best(void *arg, const struct ptc_choice *c)
{
	struct best *b = arg;

	if (c->est.memory_bytes > b->memory)
		return;
	b->fit++;
	if (!b->some || ptc_choice_compare(c, &b->c) < 0)
		b->c = *c;
	b->some = true;
}

static void test_exhaustive(void **state)
{
	static struct instance x;
	uint64_t fitting = 0, vetoed = 0;

	for (uint64_t n = 0; n < cases(CASES); n++) {
		struct best b = { .memory = 0 };
		struct ptc_choice got[8];
		size_t ngot = 0;
		struct ptc_search_limits limits = { .keep = 8 };
		struct ptc_error err = PTC_ERROR_INIT;
		int rc;

		random_instance(&x, seed_of(n));
		b.memory = limits.memory_bytes = x.memory;
		limits.devices = x.devices;
		try_all(&x, keep_best, &b);
		rc = ptc_search(&x.work, &x.space, &limits, NULL, got, &ngot, &err);
		if ((rc == 0) != b.some ||
		    (b.some && (ptc_cand_compare(&got[0].cand, &b.c.cand) || got[0].est.step_s != b.c.est.step_s ||
				got[0].est.memory_bytes != b.c.est.memory_bytes))) {
			char is[PTC_CAND_TEXT_MAX] = "nothing", want[PTC_CAND_TEXT_MAX] = "nothing";

			if (!rc)
				ptc_cand_format(&got[0].cand, is);
			if (b.some)
				ptc_cand_format(&b.c.cand, want);
			fail_msg("PTC_TEST_SEED=%llu PTC_CASES=1: found %s, the best is %s; %s",
				 (unsigned long long)seed_of(n), is, want, err.text);
		}
		for (size_t i = 1; i < ngot; i++)
			assert_true(ptc_choice_compare(&got[i - 1], &got[i]) < 0);
		fitting += b.some;
		vetoed += !b.some;
	}
	if (cases(CASES) == CASES) { /* both outcomes were met */
		assert_true(fitting > CASES / 2);
		assert_true(vetoed > CASES / 50);
	}
}

struct points {
	struct ptc_choice v[1u << 18];
	size_t n;
	double memory;
};

static void collect(void *arg, const struct ptc_choice *c)
{
	struct points *p = arg;

	if (c->est.memory_bytes <= p->memory && p->n < PTC_ARRAY_LEN(p->v))
		p->v[p->n++] = *c;
}

/* For each n: the frontier's points are feasible, none is dominated, and the fastest at each memory is the oracle's. */
static void check_frontier(const struct instance *x, const struct ptc_frontier *f, const struct points *all, uint32_t n)
{
	size_t count;
	const struct ptc_frontier_point *v = ptc_frontier_get(f, n, &count);
	double fastest = INFINITY;

	for (size_t i = 0; i < all->n; i++)
		if (ptc_cand_devices(&all->v[i].cand) <= n)
			fastest = PTC_MIN(fastest, all->v[i].est.step_s);
	assert_true((count == 0) == isinf(fastest));
	assert_true(!count || v[0].step_s == fastest);
	for (size_t i = 0; i < count; i++) {
		double best = INFINITY;

		assert_true(ptc_cand_devices(&v[i].cand) <= n);
		assert_true(i == 0 || (v[i].step_s > v[i - 1].step_s && v[i].memory_bytes < v[i - 1].memory_bytes));
		for (size_t j = 0; j < all->n; j++)
			if (ptc_cand_devices(&all->v[j].cand) <= n && all->v[j].est.memory_bytes <= v[i].memory_bytes)
				best = PTC_MIN(best, all->v[j].est.step_s);
		assert_true(v[i].step_s == best);
		assert_ptr_equal(ptc_frontier_best(f, n, v[i].memory_bytes), &v[i]);
	}
}

static void test_frontier(void **state)
{
	static struct instance x;
	static struct points all;
	int64_t live = ptc_alloc_live();

	for (uint64_t n = 0; n < cases(60); n++) {
		struct ptc_frontier *f;
		struct ptc_error err = PTC_ERROR_INIT;
		double slower = INFINITY;

		random_instance(&x, seed_of(n) + 100000);
		x.devices = PTC_MIN(x.devices, 8);
		all.n = 0;
		all.memory = x.cluster.kinds[0].memory_bytes;
		try_all(&x, collect, &all);
		assert_int_equal(ptc_frontier_new(&x.work, &x.space, x.devices, &f, &err), 0);
		for (uint32_t k = 1; k <= x.devices; k++) {
			const struct ptc_frontier_point *p = ptc_frontier_best(f, k, INFINITY);

			check_frontier(&x, f, &all, k);
			if (!p)
				continue;
			assert_true(p->step_s <= slower); /* more devices never make it slower */
			slower = p->step_s;
		}
		ptc_frontier_free(f);
	}
	assert_int_equal(ptc_alloc_live(), live);
}

/* A GPT of 175e9 parameters over tp, pp, dp, cp, vpp, ZeRO and recomputation: the work that ptc-bench planner times. */
static void large_instance(struct instance *x)
{
	memset(x, 0, sizeof *x);
	ptc_model_gpt(&x->model, 96, 12288, 96, 49152, 51200, 2048);
	x->model.flash = true;
	x->cluster.per_node = 8;
	x->cluster.nkinds = 1;
	ptc_device_kind_known("H100-80GB", &x->cluster.kinds[0]);
	x->cluster.kinds[0].nodes = 1280;
	x->cluster.intra_bytes_s = x->cluster.node_bytes_s = 400e9;
	x->work = (struct ptc_work){
		.model = &x->model, .cluster = &x->cluster, .global_batch = 1536, .reduce_bytes = 2, .uneven = true
	};
	ptc_coefs_default(&x->work.coefs);
	ptc_memory_rules_default(&x->work.memory);
	x->space = (struct ptc_space){
		.zero = 1 | 2 | 8, .recompute = 7, .vpp = { 4, { 1, 2, 3, 4 } }, .cp = { 3, { 1, 2, 4 } }
	};
}

/* Step times that a search and a frontier may compute: half more than they do. Each takes a tenth of a microsecond, so
 * that the seconds of docs/planner.md hold. Look-ups compute none. */
static void test_work_is_bounded(void **state)
{
	static const struct {
		uint32_t devices;
		uint64_t most;
	} counts[] = { { 48, 90000 }, { 1024, 220000 }, { 10240, 3200000 } };
	static struct instance x;
	struct ptc_choice best;
	struct ptc_frontier *f;
	uint64_t all;

	large_instance(&x);
	for (size_t i = 0; i < PTC_ARRAY_LEN(counts); i++) {
		uint64_t timed = 0;
		struct ptc_search_limits limits = { .devices = counts[i].devices, .keep = 1, .timed = &timed };
		size_t n;

		assert_int_equal(0, ptc_search(&x.work, &x.space, &limits, NULL, &best, &n, NULL));
		if (!timed || timed > counts[i].most)
			fail_msg("%u devices: %llu step times, at most %llu", counts[i].devices,
				 (unsigned long long)timed, (unsigned long long)counts[i].most);
	}
	assert_int_equal(0, ptc_frontier_new(&x.work, &x.space, 1024, &f, NULL));
	all = ptc_frontier_timed(f);
	if (!all || all > 2500000)
		fail_msg("a frontier of %llu step times", (unsigned long long)all);
	for (uint32_t n = 1; n <= 1024; n++)
		ptc_frontier_best(f, n, 40e9);
	assert_int_equal(all, ptc_frontier_timed(f));
	ptc_frontier_free(f);
}

/* Each allocation fails in turn: one error, nothing leaks. */
static void test_no_memory(void **state)
{
	static struct instance x;
	int64_t live = ptc_alloc_live();
	int rc = PTC_ENOMEM;

	random_instance(&x, 5);
	x.memory = 1e15;
	for (uint64_t at = 1; rc; at++) {
		struct ptc_frontier *f;
		struct ptc_error err = PTC_ERROR_INIT;

		ptc_alloc_fail_at(at);
		rc = ptc_frontier_new(&x.work, &x.space, x.devices, &f, &err);
		ptc_alloc_fail_at(0);
		assert_true(!rc || err.code == PTC_ENOMEM);
		if (!rc)
			ptc_frontier_free(f);
		assert_int_equal(ptc_alloc_live(), live);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exhaustive),
		cmocka_unit_test(test_frontier),
		cmocka_unit_test(test_work_is_bounded),
		cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
