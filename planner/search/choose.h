/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses one of the fast candidates for a job that runs now. The caller prices each switch (the daemon knows the exact
 * bytes from reshard/). A switch is worth its pause only if its gain until the horizon is greater than the pause's
 * cost. Pure, deterministic; any thread. */
#pragma once

#include "planner/search/fastest.h"

#define PTC_CHOOSE_HORIZON_S 600 /* time until the next change, if nothing else is known */
#define PTC_CHOOSE_WITHIN    0.10

enum ptc_objective { PTC_FOR_THROUGHPUT, PTC_FOR_MONEY, PTC_FOR_STATE_BYTES };

struct ptc_switch_price {
	double down_s;     /* how long the job stands still */
	double bytes;      /* bytes moved */
	double peak_bytes; /* of a device or node during the switch, beside ptc_choose_rules.room_bytes; 0: unknown */
};
/* Returns 0, or an error that leaves this candidate out (its text is not shown). */
typedef int (*ptc_switch_price_fn)(void *arg, const struct ptc_cand *to, struct ptc_switch_price *ret);

struct ptc_choose_rules {
	enum ptc_objective objective;
	double horizon_s; /* 0: PTC_CHOOSE_HORIZON_S */
	/* step times considered: up to this share above the best; 0: PTC_CHOOSE_WITHIN */
	double within;
	const struct ptc_choice *now; /* the running configuration, if it can go on; NULL: it must leave */
	double price_hour;            /* of a device, for PTC_FOR_MONEY; a choice's own price has priority */
	double room_bytes;            /* memory for a switch; 0: not considered */
	/* Observed losses; loss_every_s 0: they are not considered. A configuration with idle devices survives small
	 * losses, so it pauses for forced_down_s less often. */
	double loss_every_s, loss_devices; /* mean time between losses, mean number of devices lost */
	double forced_down_s;              /* pause of the switch after a loss */
	uint32_t available;                /* number of devices, idle ones included */
	ptc_switch_price_fn price;         /* NULL: every switch is free */
	void *arg;
};
struct ptc_ranked {
	struct ptc_choice choice;
	struct ptc_switch_price price;
	double steps; /* steps until the horizon, less the expected cost of losses */
	double money; /* money spent until then, per step */
	/* after this time the switch has paid off against staying; INFINITY: never; 0: no switch */
	double break_even_s;
	bool stays; /* it is the running configuration */
};
#define PTC_WHY_MAX 320
/* Ranks the candidates into ret, best first (room for n + 1). why: one sentence. PTC_ENODEVICES: no candidate is left.
 */
int ptc_choose(const struct ptc_choice *v, size_t n, const struct ptc_choose_rules *rules, struct ptc_ranked *ret,
	       size_t *ret_n, char why[PTC_WHY_MAX], struct ptc_error *err);
