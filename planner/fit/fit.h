/* SPDX-License-Identifier: Apache-2.0 */
/* Calibration by measured steps. Two stages: the coefficients of the model are fitted to all rows,
 * held near a prior where rows do not speak; then what the model still misses is interpolated
 * between configurations like each other, which also says how far a prediction can be trusted.
 * The object is immutable once made and owns copies of what it needs; any thread. */
#pragma once

#include "planner/cost/step.h"

#define PTC_FIT_MAX_ROWS 2048 /* solved exactly: 32 MiB and a second at most */

/* A measured step. The work's model and cluster are borrowed during the call; its coefs are not used. */
struct ptc_fit_row {
	const struct ptc_work *work;
	struct ptc_cand cand;
	double step_s;
};

/* How measured steps are believed; chosen by tests/planner_settings.py (docs/planner.md). */
struct ptc_fit_settings {
	double reach; /* doublings of a degree over which errors are alike */
	double size;  /* of an error that the coefficients leave, relative, at least */
	double noise; /* of a measurement, relative: runs of one configuration differ by as much */
	double prior; /* weight of the prior: a coefficient off by a factor e counts as a row off by its root */
};
#define PTC_FIT_SETTINGS                                                                                               \
	{                                                                                                              \
		0.7, 0.25, 0.12, 0.1                                                                                   \
	}

struct ptc_calibration;
/* NULL rows or n 0: PTC_EINVAL. A row that cannot be, or a step that is not a positive number, is
 * named by its place. prior NULL: ptc_coefs_default. */
int ptc_calibration_new(const struct ptc_fit_row *rows, size_t n, const struct ptc_coefs *prior,
			struct ptc_calibration **ret, struct ptc_error *err);
/* The same with other settings than PTC_FIT_SETTINGS. */
int ptc_calibration_new_set(const struct ptc_fit_row *rows, size_t n, const struct ptc_coefs *prior,
			    const struct ptc_fit_settings *set, struct ptc_calibration **ret, struct ptc_error *err);
struct ptc_calibration *ptc_calibration_free(struct ptc_calibration *cal);
const struct ptc_coefs *ptc_calibration_coefs(const struct ptc_calibration *cal);
/* What a step time predicted with these coefficients is to be multiplied by. ret_sd: one standard
 * deviation of the result, relative (0.05: 5 %). */
double ptc_calibration_factor(const struct ptc_calibration *cal, const struct ptc_work *w, const struct ptc_cand *c,
			      double *ret_sd);

/* The measured candidates of the work's own job (same model size and batch); at most max. Returns how many. */
size_t ptc_calibration_measured(const struct ptc_calibration *cal, const struct ptc_work *w, struct ptc_cand *ret,
				size_t max);

/* What is said of a prediction without any calibration: a factor of about two either way is common. */
#define PTC_UNCALIBRATED_SD 0.5

/* Measured peaks of device memory correct the rules: how many times the formulas' activations
 * (0.5..2), and what each device takes besides (0..20 % of the largest peak). Least squares on
 * relative errors. */
struct ptc_peak_row {
	const struct ptc_work *work;
	struct ptc_cand cand;
	double peak_bytes;
};
int ptc_fit_peaks(const struct ptc_peak_row *rows, size_t n, struct ptc_memory_rules *rules, struct ptc_error *err);
