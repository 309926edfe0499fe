/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the fast candidates to go to, from where the job is now. The caller prices each switch
 * (the daemon has exact bytes from reshard/); a job gains only if the gain outlasts the pause.
 * Pure, deterministic; any thread. */
#pragma once

#include "planner/search/fastest.h"

#define PTC_CHOOSE_HORIZON_S 600 /* until the next change, where nothing else is known */
#define PTC_CHOOSE_WITHIN    0.10

enum ptc_objective { PTC_FOR_THROUGHPUT, PTC_FOR_MONEY, PTC_FOR_STATE_BYTES };

struct ptc_switch_price {
	double down_s;     /* the job stands still */
	double bytes;      /* moved */
	double peak_bytes; /* of a device or node while moving, beside ptc_choose_rules.room_bytes; 0: unknown */
};
/* 0, or an error that leaves this candidate out (its text is not shown). */
typedef int (*ptc_switch_price_fn)(void *arg, const struct ptc_cand *to, struct ptc_switch_price *ret);

struct ptc_choose_rules {
	enum ptc_objective objective;
	double horizon_s;             /* 0: PTC_CHOOSE_HORIZON_S */
	double within;                /* step times looked at: so much above the best; 0: PTC_CHOOSE_WITHIN */
	const struct ptc_choice *now; /* what runs, if it can go on; NULL: it must leave */
	double price_hour;            /* of a device, for money; a choice's own wins */
	double room_bytes;            /* memory of a switch; 0: not looked at */
	/* What was seen of losses; loss_every_s 0: not looked at. A configuration that leaves devices idle
	 * outlives small losses, and is not stopped for forced_down_s as often. */
	double loss_every_s, loss_devices; /* mean time between losses, mean number of devices lost */
	double forced_down_s;              /* pause of the switch that follows */
	uint32_t available;                /* devices there are, idle ones included */
	ptc_switch_price_fn price;         /* NULL: every switch is free */
	void *arg;
};
struct ptc_ranked {
	struct ptc_choice choice;
	struct ptc_switch_price price;
	double steps;        /* made until the horizon, less what losses are expected to cost */
	double money;        /* spent until then, per step made */
	double break_even_s; /* from when on the switch has paid against staying; INFINITY: never; 0: no need */
	bool stays;          /* it is what runs */
};
#define PTC_WHY_MAX 320
/* Best first into ret (room for n + 1); why: one sentence. PTC_ENODEVICES: no candidate is left. */
int ptc_choose(const struct ptc_choice *v, size_t n, const struct ptc_choose_rules *rules, struct ptc_ranked *ret,
	       size_t *ret_n, char why[PTC_WHY_MAX], struct ptc_error *err);
