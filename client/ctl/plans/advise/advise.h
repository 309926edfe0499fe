/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of `ptcctl advise`: the input that it has read, and functions that show the answer. */
#pragma once

#include "base/buf.h"
#include "client/ctl/line/ctl.h"
#include "planner/infer.h"
#include "planner/io/plan_doc.h"
#include "planner/search/choose.h"

struct ctl_advice {
	struct ptc_model model;
	struct ptc_plan_profile profile;
	struct ptc_space space;
	struct ptc_work work;              /* points to the two above */
	struct ptc_calibration *cal;       /* NULL: no measured step */
	size_t nsteps, npeaks;             /* measured, of this global batch */
	uint32_t first, last;              /* numbers of devices */
	char inferred[PTC_INFER_TEXT_MAX]; /* the model, where tensors say it; else "" */
	struct ptc_error no_model;         /* code 0: there is one; else why there is none */
	bool has_state;                    /* what lies where is described: what a switch moves is known */
	struct ctl_pricer *pricer;         /* NULL: nothing moves, or it is not known */
	struct ptc_buf *out;               /* what it finds, as JSON; NULL: as a table */
};
/* The bytes that a switch moves between nodes. If they are not exact, they are at most bytes, and at least bytes_least.
 */
struct ctl_moves {
	double bytes, bytes_least, seconds;
	bool exact;
};
/* advise_price.c: from `now`, on devices in order. arg of ctl_price, a ptc_switch_price_fn. */
struct ctl_pricer;
int ctl_pricer_new(const struct ctl *c, const struct ctl_advice *a, const struct ptc_cand *now, double pause_s,
		   struct ctl_pricer **ret, struct ptc_error *err);
struct ctl_pricer *ctl_pricer_free(struct ctl_pricer *p);
int ctl_price(void *arg, const struct ptc_cand *to, struct ptc_switch_price *ret);
/* Exact, if it is known what ranks hold under that configuration. An error: they cannot hold it so. */
int ctl_moves(const struct ctl_pricer *p, const struct ptc_cand *to, struct ctl_moves *ret);
/* The time that ctl_price has added for starting ranks. */
double ctl_pricer_pause(const struct ctl_pricer *p);

/* Advice without a model: measured configurations, and the same with other dp. why: the reason why there is no model.
 */
int ctl_advise_measured(const struct ctl_advice *a, const char *why, struct ptc_error *err);
/* advise_online.c: of a job that a daemon has. */
int ctl_advise_online(struct ctl *c, struct ptc_error *err);
/* advise_svg.c: what a daemon has said (docs/control.md, "advice") as a picture. */
int ctl_advice_svg(const char *json, struct ptc_error *err);

/* For advice->last devices; n of v, and the sentence why the first one is first. */
void ctl_advice_candidates(const struct ctl_advice *a, const struct ptc_ranked *v, size_t n, const char *why);
/* Begins, continues and ends a listing by number of devices; p NULL: nothing fits. */
void ctl_advice_counts_begin(const struct ctl_advice *a);
void ctl_advice_count(const struct ctl_advice *a, uint32_t n, const struct ptc_frontier_point *p);
void ctl_advice_counts_end(const struct ctl_advice *a);
