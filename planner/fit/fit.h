/* SPDX-License-Identifier: Apache-2.0 */
/* Calibrates the cost model by measured steps, in two stages. First, the model's coefficients are fitted to all rows;
 * where the rows say little, they stay near a prior. Then the remaining errors are interpolated between similar
 * configurations. That also says how far a prediction can be trusted. The object is immutable once made, and owns
 * copies of what it needs; any thread. */
#pragma once

#include "planner/cost/step.h"

#define PTC_FIT_MAX_ROWS 2048 /* solved exactly, in 32 MiB and a second at most */

/* A measured step. The work's model and cluster are borrowed during the call; its coefs are not used. */
struct ptc_fit_row {
	const struct ptc_work *work;
	struct ptc_cand cand;
	double step_s;
	double noise; /* of this step, relative; 0: as the settings say */
};

/* How much weight measured steps have. tests/planner_settings.py chose the values (docs/planner.md). */
struct ptc_fit_settings {
	double reach; /* doublings of a degree over which errors are alike */
	double size;  /* least size of an error that the coefficients leave, relative */
	double noise; /* noise of a measurement, relative: the difference between runs of one configuration */
	/* weight of the prior: a coefficient off by a factor e counts as much as a row off by the root of this */
	double prior;
};
#define PTC_FIT_SETTINGS                                                                                               \
	{                                                                                                              \
		0.7, 0.25, 0.12, 0.1                                                                                   \
	}

struct ptc_calibration;
/* Makes a calibration. prior NULL: ptc_coefs_default. PTC_EINVAL: there are no rows; or a row is impossible or its step
 * is not a positive number, and the message gives its place. */
int ptc_calibration_new(const struct ptc_fit_row *rows, size_t n, const struct ptc_coefs *prior,
			struct ptc_calibration **ret, struct ptc_error *err);
/* ptc_calibration_new with other settings than PTC_FIT_SETTINGS. */
int ptc_calibration_new_set(const struct ptc_fit_row *rows, size_t n, const struct ptc_coefs *prior,
			    const struct ptc_fit_settings *set, struct ptc_calibration **ret, struct ptc_error *err);
struct ptc_calibration *ptc_calibration_free(struct ptc_calibration *cal);
const struct ptc_coefs *ptc_calibration_coefs(const struct ptc_calibration *cal);
/* The factor by which to multiply a step time that was predicted with these coefficients. ret_sd: one standard
 * deviation of the result, relative (0.05: 5 %). */
double ptc_calibration_factor(const struct ptc_calibration *cal, const struct ptc_work *w, const struct ptc_cand *c,
			      double *ret_sd);

/* Writes at most max measured candidates of the work's own job (same model size and batch). Returns their number. */
size_t ptc_calibration_measured(const struct ptc_calibration *cal, const struct ptc_work *w, struct ptc_cand *ret,
				size_t max);

/* The deviation that is reported without a calibration: a factor of about two either way is common. */
#define PTC_UNCALIBRATED_SD 0.5

/* Corrects the memory rules by measured peaks of device memory. It fits the factor of the formulas' activations
 * (0.5..2) and the further bytes of each device (0..20 % of the largest peak), by least squares on relative errors. */
struct ptc_peak_row {
	const struct ptc_work *work;
	struct ptc_cand cand;
	double peak_bytes;
};
int ptc_fit_peaks(const struct ptc_peak_row *rows, size_t n, struct ptc_memory_rules *rules, struct ptc_error *err);
