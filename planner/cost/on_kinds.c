/* SPDX-License-Identifier: Apache-2.0 */
/* Placements of a candidate on one or two kinds of devices. There are three: all ranks are on one kind; the first
 * stages are on one kind and the rest on the other, with layers divided by speed; or whole replicas are on each kind,
 * with micro-batches by speed if the program can take them. All are costed, nothing is left out. */
#include "planner/cost/on_kinds.h"

#include "base/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void ptc_placer_init(struct ptc_placer *p, const struct ptc_work *w, double memory_bytes)
{
	p->work = *w;
	p->slowest_s = INFINITY;
	p->cheapest = false;
	p->of.tp = 0;
	for (uint32_t k = 0; k < w->cluster->nkinds; k++) {
		p->one[k] = *w->cluster;
		p->one[k].nkinds = 1;
		p->one[k].kinds[0] = w->cluster->kinds[k];
		p->alone[k] = *w;
		p->alone[k].cluster = &p->one[k];
		p->memory[k] = memory_bytes > 0 ? memory_bytes : w->cluster->kinds[k].memory_bytes;
		p->room[k] = w->cluster->kinds[k].nodes * w->cluster->per_node;
	}
}

struct best {
	struct ptc_placer *p;
	const struct ptc_cand *c;
	struct ptc_estimate *est;
	double full; /* of est; INFINITY: none yet */
};

/* A step has so many seconds of micro-batches at least; a hair less, for rounding. */
static bool too_slow(const struct best *b, double micro_batches_s)
{
	return (micro_batches_s + b->p->work.coefs.v[PTC_COEF_FIXED]) * (1 - 1e-9) > b->p->slowest_s;
}

double ptc_placed_price(const struct ptc_cluster_profile *cluster, const struct ptc_cand *c,
			const struct ptc_on_kinds *on)
{
	uint32_t all = ptc_cand_devices(c), first = all / (on->by_data ? c->dp : c->pp) * on->first;
	double x = cluster->kinds[on->kind[0]].price_hour, y = cluster->kinds[on->kind[1]].price_hour;

	if (!on->first)
		return all * x;
	return x > 0 && y > 0 ? first * x + (all - first) * y : 0;
}

/* What is the least of a placement: seconds, or money. */
static double value(const struct best *b, const struct ptc_estimate *est)
{
	double price = b->p->cheapest ? ptc_placed_price(b->p->work.cluster, b->c, &est->place) : 0;

	return price > 0 ? price * est->step_s : est->step_s;
}

/* What fits is better than what does not, then what is worth more; among what does not fit, the less full. */
static void offer(struct best *b, const struct ptc_estimate *est, double full)
{
	bool better = isinf(b->full);

	if (!better && full <= 1) {
		double is = value(b, est), was = value(b, b->est);

		better = b->full > 1 || is < was || (is == was && full < b->full);
	} else if (!better) {
		better = b->full > 1 && full < b->full;
	}
	if (!better)
		return;
	*b->est = *est;
	b->full = full;
}

/* Adds the fullest device's memory, of `share`'s kinds by device, and says how full it is. */
static double add_memory(const struct best *b, const struct ptc_work *w, const struct ptc_pipe *pipe,
			 const uint8_t *kind, struct ptc_estimate *est)
{
	double full = 0, peak = 0;

	for (uint32_t i = 0; i < b->c->pp; i++) {
		struct ptc_estimate one = { 0 };

		ptc_cost_device_memory(w, b->c, pipe, i, &one);
		peak = PTC_MAX(peak, one.peak_bytes);
		if (one.memory_bytes / b->p->memory[kind[i]] <= full)
			continue;
		full = one.memory_bytes / b->p->memory[kind[i]];
		est->memory_bytes = one.memory_bytes;
		est->state_bytes = one.state_bytes;
		est->activation_bytes = one.activation_bytes;
		est->fullest_stage = i;
	}
	est->peak_bytes = PTC_MAX(est->peak_bytes, peak);
	return full;
}

static void try_one_kind(struct best *b, uint8_t x)
{
	struct ptc_estimate est = { .place = { .kind = { x, x } } };
	const struct ptc_pipe *pipe = &b->p->pipe[x];

	ptc_cost_time(&b->p->work, b->c, pipe, &est);
	if (est.step_s > b->p->slowest_s)
		return;
	ptc_cost_memory(&b->p->work, b->c, pipe, &est);
	offer(b, &est, est.memory_bytes / b->p->memory[x]);
}

/* The first stages on kind x, the rest on y. */
static void try_stages(struct best *b, uint8_t x, uint8_t y, uint32_t first)
{
	const struct ptc_layers *const l[2] = { &b->p->layers[x], &b->p->layers[y] };
	struct ptc_estimate est = { .place = { { x, y }, false, first, { 0 } } };
	uint8_t which[PTC_MODEL_MAX_LAYERS], kind[PTC_MODEL_MAX_LAYERS];
	struct ptc_pipe pipe;

	for (uint32_t i = 0; i < b->c->pp; i++) {
		which[i] = i >= first;
		kind[i] = which[i] ? y : x;
	}
	ptc_cost_pipe_mixed(&b->p->work, b->c, l, which, &pipe);
	b->p->mixed_s[x > y][first] = pipe.busiest_s;
	ptc_cost_time(&b->p->work, b->c, &pipe, &est);
	offer(b, &est, add_memory(b, &b->p->work, &pipe, kind, &est));
}

struct side {
	struct ptc_work work; /* its global batch says how many micro-batches a replica takes */
	struct ptc_pipe pipe;
	struct ptc_estimate est;
	uint8_t kind;
};

static void take(const struct best *b, struct side *s, uint32_t micro_batches)
{
	s->work.global_batch = micro_batches * b->c->micro_batch * b->c->dp;
	memset(&s->est, 0, sizeof s->est);
	ptc_cost_time(&s->work, b->c, &s->pipe, &s->est);
}

/* The slower side's estimate is the whole's; its memory, the fuller's. */
static void offer_sides(struct best *b, struct side s[2], uint32_t first)
{
	uint8_t kind[PTC_MODEL_MAX_LAYERS];
	struct ptc_estimate est = s[s[1].est.step_s > s[0].est.step_s].est, fuller = { 0 };
	double full = 0;

	for (int i = 0; i < 2; i++) {
		struct ptc_estimate one = { 0 };
		double f;

		memset(kind, s[i].kind, b->c->pp);
		f = add_memory(b, &s[i].work, &s[i].pipe, kind, &one);
		one.peak_bytes = PTC_MAX(one.peak_bytes, fuller.peak_bytes);
		if (f > full)
			fuller = one;
		fuller.peak_bytes = one.peak_bytes;
		full = PTC_MAX(full, f);
	}
	est.memory_bytes = fuller.memory_bytes;
	est.peak_bytes = fuller.peak_bytes;
	est.state_bytes = fuller.state_bytes;
	est.activation_bytes = fuller.activation_bytes;
	est.fullest_stage = fuller.fullest_stage;
	est.place = (struct ptc_on_kinds){
		{ s[0].kind, s[1].kind }, true, first, { s[0].est.micro_batches, s[1].est.micro_batches }
	};
	offer(b, &est, full);
}

/* Micro-batches of a replica of the second side, so that all are taken. */
static uint32_t left_over(uint64_t all, uint32_t first, uint32_t rest, uint32_t m)
{
	return all > (uint64_t)first * m ? (uint32_t)((all - (uint64_t)first * m + rest - 1) / rest) : 1;
}

/* Ranks that exchange something in each micro-batch with all replicas (ZeRO 3, experts over dp) go through equally
 * many. */
static bool may_share(const struct best *b)
{
	return b->p->work.uneven_batch && b->c->vpp == 1 && b->c->zero < 3 &&
	       b->c->ep * b->c->etp <= b->c->tp * b->c->cp;
}

/* The more micro-batches the first side takes, the longer it takes and the shorter the second: the best is where
 * they meet. */
static void share_batch(struct best *b, struct side s[2], uint32_t first)
{
	const struct ptc_cand *c = b->c;
	uint32_t rest = c->dp - first, even = ptc_cost_micro_batches(&b->p->work, c);
	uint64_t all = (b->p->work.global_batch + (uint64_t)c->micro_batch - 1) / c->micro_batch;
	uint32_t low = 1, high = (uint32_t)PTC_MAX(1, (all + first - 1) / first);

	if (!may_share(b)) {
		take(b, &s[0], even);
		take(b, &s[1], even);
		offer_sides(b, s, first);
		return;
	}
	while (low < high) {
		uint32_t mid = (low + high) / 2;

		take(b, &s[0], mid);
		take(b, &s[1], left_over(all, first, rest, mid));
		if (s[0].est.step_s >= s[1].est.step_s)
			high = mid;
		else
			low = mid + 1;
	}
	for (uint32_t m = low > 1 ? low - 1 : 1; m <= low; m++) {
		take(b, &s[0], m);
		take(b, &s[1], left_over(all, first, rest, m));
		offer_sides(b, s, first);
	}
}

static double seconds_of(const struct ptc_layer_cost *k)
{
	return k->compute + k->tp + k->cp + k->ep;
}

static double slowness(const struct ptc_work *w, const struct ptc_layers *l)
{
	double sum = l->head_s;

	for (uint32_t i = 0; i < w->model->layers; i++)
		sum += seconds_of(&l->kind[w->model->kind[i]]);
	return sum;
}

/* How many times as long as on x anything takes on y, at least. */
static double least_ratio(const struct ptc_placer *p, uint8_t x, uint8_t y)
{
	const struct ptc_layers *a = &p->layers[x], *b = &p->layers[y];
	double least = a->head_s > 0 ? b->head_s / a->head_s : INFINITY;

	for (uint32_t k = 0; k < p->work.model->nkinds; k++)
		least = PTC_MIN(least, seconds_of(&b->kind[k]) / seconds_of(&a->kind[k]));
	return least;
}

/* Work in as many parts as stages, of which those on y take `ratio` times as long: no cut is faster than one that keeps
 * all equally busy. */
static void try_all_stages(struct best *b, uint8_t x, uint8_t y)
{
	const struct ptc_placer *p = b->p;
	const struct ptc_cand *c = b->c;
	uint64_t block = (uint64_t)c->tp * c->cp * c->dp;
	double ratio, all, m = ptc_cost_micro_batches(&p->work, c);

	if (c->pp < 2 || p->room[x] < block || p->room[y] < block || p->room[x] + p->room[y] < block * c->pp)
		return;
	ratio = least_ratio(p, x, y);
	all = p->work_s[x];
	for (uint32_t first = 1; first < c->pp; first++) {
		double known = p->work.cluster->nkinds == 2 ? p->mixed_s[x > y][first] : 0;

		if (first * block > p->room[x] || (c->pp - first) * block > p->room[y] ||
		    too_slow(b, m * PTC_MAX(known, all / (first + (c->pp - first) / ratio))))
			continue;
		try_stages(b, x, y, first);
	}
}

/* The busiest device's seconds at least, whatever the cut: of one stage a device the best cut's, else the mean. */
static double least_busy(const struct best *b, uint8_t x)
{
	const struct ptc_pipe *p = &b->p->pipe[x];

	return b->c->vpp > 1 ? p->all_s / b->c->pp : p->busiest_s;
}

/* Of so many replicas on x, by what they would do at best. */
static bool replicas_too_slow(const struct best *b, uint8_t x, uint8_t y, uint32_t first)
{
	const struct ptc_placer *p = b->p;
	double m = ptc_cost_micro_batches(&p->work, b->c), slower = PTC_MAX(least_busy(b, x), least_busy(b, y));
	double all = (double)p->work.global_batch / b->c->micro_batch;

	if (!may_share(b))
		return too_slow(b, m * slower);
	return too_slow(b, all / (first / least_busy(b, x) + (b->c->dp - first) / least_busy(b, y)));
}

/* Replicas of both kinds hold the same layers in their stages: cut as the slower kind wants it. */
static void try_replicas(struct best *b, uint8_t x, uint8_t y)
{
	const struct ptc_placer *p = b->p;
	const struct ptc_cand *c = b->c;
	uint32_t cut[PTC_MODEL_MAX_LAYERS], block = c->tp * c->cp * c->pp, most, least;
	uint8_t slower = p->work_s[y] > p->work_s[x] ? y : x;
	struct side s[2];

	if (c->dp < 2 || p->room[x] < block || p->room[y] < block ||
	    (uint64_t)p->room[x] + p->room[y] < (uint64_t)block * c->dp)
		return;
	most = PTC_MIN(c->dp - 1, p->room[x] / block);
	least = c->dp - PTC_MIN(c->dp - 1, p->room[y] / block);
	if (replicas_too_slow(b, x, y, slower == y ? most : least))
		return;
	ptc_cost_cut(&p->work, c, &p->layers[slower], cut);
	for (int i = 0; i < 2; i++) {
		s[i].kind = i ? y : x;
		s[i].work = p->alone[s[i].kind];
		s[i].work.stages = cut;
		s[i].work.nstages = c->pp * c->vpp;
		ptc_cost_pipe(&s[i].work, c, &p->layers[s[i].kind], &s[i].pipe);
	}
	for (uint32_t first = least; first <= most; first++)
		if (!replicas_too_slow(b, x, y, first))
			share_batch(b, s, first);
}

static bool same_layers(const struct ptc_cand *a, const struct ptc_cand *b)
{
	return a->tp == b->tp && a->cp == b->cp && a->ep == b->ep && a->etp == b->etp &&
	       a->micro_batch == b->micro_batch && a->recompute == b->recompute &&
	       a->recompute_others == b->recompute_others;
}

static void prepare(struct ptc_placer *p, const struct ptc_cand *c)
{
	bool layers = p->of.tp && same_layers(&p->of, c), pipe = layers && p->of.pp == c->pp && p->of.vpp == c->vpp;

	for (uint32_t k = 0; k < p->work.cluster->nkinds; k++) {
		if (!layers) {
			ptc_cost_layers(&p->alone[k], c, &p->layers[k]);
			p->work_s[k] = slowness(&p->work, &p->layers[k]);
		}
		if (!pipe)
			ptc_cost_pipe(&p->alone[k], c, &p->layers[k], &p->pipe[k]);
	}
	if (!pipe)
		for (int i = 0; i < 2; i++)
			memset(p->mixed_s[i], 0, c->pp * sizeof p->mixed_s[i][0]);
	p->of = *c;
}

double ptc_placer_best(struct ptc_placer *p, const struct ptc_cand *c, struct ptc_estimate *ret)
{
	struct best b = { p, c, ret, INFINITY };
	uint8_t n = (uint8_t)p->work.cluster->nkinds;

	prepare(p, c);
	for (uint8_t x = 0; x < n; x++)
		if (ptc_cand_devices(c) <= p->room[x])
			try_one_kind(&b, x);
	for (uint8_t x = 0; x < n; x++)
		for (uint8_t y = 0; y < n; y++)
			if (x != y)
				try_all_stages(&b, x, y);
	for (uint8_t x = 0; x < n; x++)
		for (uint8_t y = x + 1; y < n; y++)
			try_replicas(&b, x, y);
	return b.full;
}

void ptc_placed_format(const struct ptc_cluster_profile *cluster, const struct ptc_cand *c,
		       const struct ptc_on_kinds *on, char buf[PTC_PLACED_TEXT_MAX])
{
	const char *x = cluster->kinds[on->kind[0]].name, *y = cluster->kinds[on->kind[1]].name;

	if (!on->first)
		snprintf(buf, PTC_PLACED_TEXT_MAX, "%s", x);
	else if (on->by_data)
		snprintf(buf, PTC_PLACED_TEXT_MAX,
			 "replicas 1-%u on %s with %u micro-batches each, %u-%u on %s with %u micro-batches each",
			 on->first, x, on->micro_batches[0], on->first + 1, c->dp, y, on->micro_batches[1]);
	else
		snprintf(buf, PTC_PLACED_TEXT_MAX, "stages 1-%u on %s, %u-%u on %s", on->first, x, on->first + 1, c->pp,
			 y);
}

int ptc_placer_estimate(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_estimate *ret,
			struct ptc_error *err)
{
	struct ptc_placer p;

	ptc_placer_init(&p, w, 0);
	if (isinf(ptc_placer_best(&p, c, ret)))
		return ptc_error_set(err, PTC_ENODEVICES, "%u devices of at most two kinds are needed; there are fewer",
				     ptc_cand_devices(c));
	return 0;
}

void ptc_placed_layers(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_on_kinds *on, uint32_t *ret)
{
	struct ptc_layers x, y;
	const struct ptc_layers *const l[2] = { &x, &y };
	uint8_t which[PTC_MODEL_MAX_LAYERS];
	struct ptc_placer p;

	ptc_placer_init(&p, w, 0);
	ptc_cost_layers(&p.alone[on->kind[0]], c, &x);
	ptc_cost_layers(&p.alone[on->kind[1]], c, &y);
	for (uint32_t i = 0; i < c->pp; i++)
		which[i] = on->first && !on->by_data && i >= on->first;
	if (on->by_data) /* as the slower kind wants it */
		ptc_cost_cut(w, c, slowness(w, &y) > slowness(w, &x) ? &y : &x, ret);
	else
		ptc_cost_cut_mixed(w, c, l, which, ret);
}
