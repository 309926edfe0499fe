/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks candidates by throughput (steps made until the horizon), by money per step, or by bytes moved. Happy path: the
 * caller prices the switch to each candidate whose step time is close to the best, and the candidates are sorted. If
 * several have the best throughput, the one that moves the fewest bytes comes first. Failure modes: a candidate without
 * a price or without room is left out; PTC_ENODEVICES: none is left. */
#include "planner/search/choose.h"

#include "base/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SAME 1e-6 /* steps, relative: equally good, bytes decide */

static double horizon_of(const struct ptc_choose_rules *r)
{
	return r->horizon_s > 0 ? r->horizon_s : PTC_CHOOSE_HORIZON_S;
}

/* Staying and switching have made equally many steps. */
static double break_even(const struct ptc_choose_rules *r, const struct ptc_ranked *x)
{
	double was, is = x->choice.est.step_s;

	if (!r->now || x->stays)
		return 0;
	was = r->now->est.step_s;
	return is < was ? x->price.down_s * was / (was - is) : INFINITY;
}

/* Share of the time that goes into switches which losses force: one for as many losses as it takes to
 * use up the idle devices. */
static double forced_share(const struct ptc_choose_rules *r, const struct ptc_ranked *x)
{
	uint32_t used = ptc_cand_devices(&x->choice.cand);
	double idle = r->available > used ? r->available - used : 0, losses;

	if (!(r->loss_every_s > 0))
		return 0;
	losses = 1 + idle / PTC_MAX(1.0, r->loss_devices);
	return PTC_MIN(1.0, r->forced_down_s / (losses * r->loss_every_s));
}

static void value(const struct ptc_choose_rules *r, struct ptc_ranked *x)
{
	double h = horizon_of(r), price = x->choice.price_hour;

	x->steps = PTC_MAX(0.0, h - x->price.down_s) * (1 - forced_share(r, x)) / x->choice.est.step_s;
	if (!(price > 0)) /* none of the search's: devices of one price */
		price = ptc_cand_devices(&x->choice.cand) * (r->price_hour > 0 ? r->price_hour : 1);
	x->money = x->steps > 0 ? price * h / 3600 / x->steps : INFINITY;
	x->break_even_s = break_even(r, x);
}

/* > 0: a is better. */
static int better(const struct ptc_choose_rules *r, const struct ptc_ranked *a, const struct ptc_ranked *b)
{
	double x = a->steps, y = b->steps;

	if (r->objective == PTC_FOR_STATE_BYTES && a->price.bytes != b->price.bytes)
		return a->price.bytes < b->price.bytes ? 1 : -1;
	if (r->objective == PTC_FOR_MONEY && a->money != b->money)
		return a->money < b->money ? 1 : -1;
	if (x != y)
		return x > y ? 1 : -1;
	return -ptc_choice_compare(&a->choice, &b->choice);
}

static void sort(const struct ptc_choose_rules *r, struct ptc_ranked *v, size_t n)
{
	for (size_t i = 1; i < n; i++) {
		struct ptc_ranked x = v[i];
		size_t at = i;

		for (; at > 0 && better(r, &x, &v[at - 1]) > 0; at--)
			v[at] = v[at - 1];
		v[at] = x;
	}
}

/* Of those as good as the first, the one that moves the fewest bytes comes first. */
static void prefer_few_bytes(const struct ptc_choose_rules *r, struct ptc_ranked *v, size_t n)
{
	size_t best = 0;
	struct ptc_ranked x;

	if (r->objective != PTC_FOR_THROUGHPUT)
		return;
	for (size_t i = 1; i < n && v[i].steps >= v[0].steps * (1 - SAME); i++)
		if (v[i].price.bytes < v[best].price.bytes)
			best = i;
	x = v[best];
	memmove(v + 1, v, best * sizeof *v);
	v[0] = x;
}

static bool priced(const struct ptc_choose_rules *r, struct ptc_ranked *x)
{
	struct ptc_switch_price p = { 0 };

	if (!x->stays && r->price && r->price(r->arg, &x->choice.cand, &p))
		return false;
	if (r->room_bytes > 0 && p.peak_bytes > r->room_bytes)
		return false;
	x->price = p;
	return true;
}

static bool is_now(const struct ptc_choose_rules *r, const struct ptc_choice *c)
{
	return r->now && !ptc_cand_compare(&r->now->cand, &c->cand);
}

/* "tp=8,pp=2,dp=3 on 48 devices: 12.3 s a step; 3.0 GB move in 4.0 s, paid back after 40 s." */
static void explain(const struct ptc_choose_rules *r, const struct ptc_ranked *v, size_t n, char why[PTC_WHY_MAX])
{
	static const char *const most[] = { "the most steps", "the least money per step", "the fewest bytes moved" };
	const struct ptc_ranked *x = &v[0];
	char text[PTC_CAND_TEXT_MAX];
	size_t at;

	ptc_cand_format(&x->choice.cand, text);
	at = (size_t)snprintf(why, PTC_WHY_MAX, "%s: %s in the next %.0f s of %zu candidates", text, most[r->objective],
			      horizon_of(r), n);
	if (at >= PTC_WHY_MAX)
		return;
	if (x->stays)
		snprintf(why + at, PTC_WHY_MAX - at, "; it runs, and no switch pays its pause back");
	else if (!r->price)
		snprintf(why + at, PTC_WHY_MAX - at, "; what a switch costs is not counted");
	else if (r->now && isfinite(x->break_even_s))
		snprintf(why + at, PTC_WHY_MAX - at, "; %.3g GB move, a pause of %.3g s is paid back after %.3g s",
			 x->price.bytes / 1e9, x->price.down_s, x->break_even_s);
	else
		snprintf(why + at, PTC_WHY_MAX - at, "; %.3g GB move in a pause of %.3g s", x->price.bytes / 1e9,
			 x->price.down_s);
}

int ptc_choose(const struct ptc_choice *v, size_t n, const struct ptc_choose_rules *rules, struct ptc_ranked *ret,
	       size_t *ret_n, char why[PTC_WHY_MAX], struct ptc_error *err)
{
	double within = rules->within > 0 ? rules->within : PTC_CHOOSE_WITHIN, best = INFINITY;
	size_t kept = 0;

	if (rules->now) {
		ret[kept] = (struct ptc_ranked){ .choice = *rules->now, .stays = true };
		best = rules->now->est.step_s;
		kept++;
	}
	for (size_t i = 0; i < n; i++)
		best = PTC_MIN(best, v[i].est.step_s);
	for (size_t i = 0; i < n; i++) {
		if (is_now(rules, &v[i]) ||
		    (rules->objective != PTC_FOR_MONEY && v[i].est.step_s > best * (1 + within)))
			continue;
		ret[kept] = (struct ptc_ranked){ .choice = v[i] };
		kept += priced(rules, &ret[kept]);
	}
	if (!kept)
		return ptc_error_set(err, PTC_ENODEVICES, "no candidate can be reached from the present state");
	for (size_t i = 0; i < kept; i++)
		value(rules, &ret[i]);
	sort(rules, ret, kept);
	prefer_few_bytes(rules, ret, kept);
	explain(rules, ret, kept, why);
	*ret_n = kept;
	return 0;
}
