/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's advice about a job: its candidates for a number of devices, or the best of each number in a range.
 *
 * Plain data of the caller, who frees what is owned with the _done functions; one of zeros is fine. Pure; any thread.
 * Failure mode: out of memory (NULL). */
#pragma once

#include "formats/members.h"
#include "planner/devices.h"
#include "planner/search/choose.h"

#define PTC_PLANNING_WHY_MAX (PTC_WHY_MAX + 1024)

enum ptc_advice_places { PTC_PLACED_BY_BYTES, PTC_PLACED_BY_LINKS };
/* Where the planner puts a candidate's ranks. */
struct ptc_advice_placed {
	enum ptc_advice_places by;
	double bytes_s[PTC_LINK_CLASSES]; /* of the slowest link that a class of traffic crosses; 0: none */
	double gap;
};
/* The parts of a step's time. */
struct ptc_advice_parts {
	double compute_s, tp_s, cp_s, ep_s, pp_s, bubble_s, dp_s, optimizer_s, fixed_s;
};
/* A candidate. */
struct ptc_advice_row {
	char *config; /* owned; NULL: there is no candidate */
	uint32_t devices, micro_batches;
	double step_s, error, samples_s, memory_bytes, state_bytes, activation_bytes;
	struct ptc_advice_parts parts;
	double pause_s;
	bool runs_now;
	bool priced; /* the next three are known */
	double moved_bytes, moved_bytes_least;
	bool moved_exact;
	bool is_placed; /* `placed` is known */
	struct ptc_advice_placed placed;
	bool pays; /* after break_even_s it has paid its pause back; false: never */
	double break_even_s;
};
void ptc_advice_row_done(struct ptc_advice_row *r);
extern const struct ptc_members ptc_advice_row_members;

/* The best for a number of devices. */
struct ptc_advice_count {
	uint32_t gpus;
	char *config; /* owned; NULL: nothing fits, and the rest is not known */
	uint32_t devices;
	double step_s, error, samples_s, memory_bytes;
	bool priced; /* the rest is known */
	double pause_s, moved_bytes;
	bool moved_exact;
};
struct ptc_advice_kind {
	char name[PTC_DEVICE_NAME_MAX + 1];
	uint32_t devices;
	bool memory_known;
	double memory_bytes, price_hour; /* price_hour 0: not known */
};
/* A configuration that has run, and its measured step. */
struct ptc_advice_measured {
	char *config; /* owned */
	double step_s;
	uint64_t steps; /* measured over so many */
	int64_t time_ms;
};
enum ptc_advice_model { PTC_MODEL_NONE, PTC_MODEL_INFERRED, PTC_MODEL_DESCRIBED };
struct ptc_advice {
	uint32_t gpus;
	bool calibrated, profiled, links_known; /* measured steps are used; devices, links are known */
	uint64_t measured_steps;
	double horizon_s;
	enum ptc_advice_model model;
	struct {
		uint32_t devices;
		bool frontier;
		uint64_t searches;
	} remembered;
	struct ptc_advice_kind *kinds; /* these lists are owned */
	size_t nkinds;
	/* of a number of devices: the best row first */
	char why[PTC_PLANNING_WHY_MAX];
	struct ptc_advice_row *rows;
	size_t nrows;
	struct ptc_advice_measured *measured;
	size_t nmeasured;
	/* of a range: one for each number; NULL: it is of one number */
	struct ptc_advice_count *counts;
	size_t ncounts;
};
void ptc_advice_done(struct ptc_advice *a);
json_t *ptc_advice_json(const struct ptc_advice *a);
