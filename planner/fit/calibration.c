/* SPDX-License-Identifier: Apache-2.0 */
/* Calibrates the time model by measured steps. First the coefficients are fitted. A Gaussian process then interpolates
 * the errors that they leave: configurations whose degrees differ by less than about one doubling have similar errors.
 * The reach of errors and the noise of a measurement are fixed (PTC_FIT_SETTINGS). The size of errors is that of the
 * errors left by the coefficients, but at least the fixed size (25 %). */
#include "planner/fit/coefs.h"
#include "planner/fit/solve.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/number/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FEATURES 8

struct ptc_calibration {
	struct ptc_coefs coefs;
	size_t n;
	struct ptc_cand *cands; /* n: what was measured */
	double *x;              /* n rows of FEATURES */
	double *factor;         /* n by n: Cholesky's of the covariance */
	double *weight;         /* n: the covariance's inverse times the errors */
	double *noise;          /* n: of each row */
	double common;          /* error of all rows, the median: another machine or program than the prior's */
	double usual;           /* of the coefficients' errors; at least the noise */
	double size;            /* of errors, as they are thought to be alike */
	double spread;          /* of the errors that are left; at least the noise */
	struct ptc_fit_settings set;
};

/* Of all layers, by their number. */
static double recomputed(const struct ptc_model *m, const struct ptc_cand *c)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < m->layers && c->recompute_others; i++)
		sum += ptc_cand_recompute(c, m->kind[i]);
	return c->recompute_others ? (double)sum / m->layers : c->recompute;
}

static void features(const struct ptc_work *w, const struct ptc_cand *c, double *x)
{
	const struct ptc_model *m = w->model;

	x[0] = log2(c->tp);
	x[1] = log2(c->pp);
	x[2] = log2((double)c->dp * c->cp);
	x[3] = log2(c->micro_batch);
	x[4] = log2(w->global_batch) / 2;
	x[5] = log2(m->hidden);
	x[6] = log2((double)m->layers * m->seq);
	x[7] = recomputed(m, c) + 2.0 * c->zero + log2(c->vpp) + log2(c->ep);
}

static double alike(const struct ptc_calibration *cal, const double *a, const double *b)
{
	double d = 0;

	for (int i = 0; i < FEATURES; i++)
		d += (a[i] - b[i]) * (a[i] - b[i]);
	return exp(-d / (2 * cal->set.reach * cal->set.reach));
}

static int check_rows(const struct ptc_fit_row *rows, size_t n, struct ptc_error *err)
{
	if (!rows || !n)
		return ptc_error_set(err, PTC_EINVAL, "calibration: no measured step");
	if (n > PTC_FIT_MAX_ROWS)
		return ptc_error_set(err, PTC_ELIMIT, "calibration: more than %d measured steps", PTC_FIT_MAX_ROWS);
	for (size_t i = 0; i < n; i++) {
		char text[PTC_CAND_TEXT_MAX];
		struct ptc_estimate e;
		int rc = ptc_estimate(rows[i].work, &rows[i].cand, &e, err);

		ptc_cand_format(&rows[i].cand, text);
		if (rc)
			return ptc_error_wrap(err, "the measured step of %s", text);
		if (!isfinite(rows[i].noise) || rows[i].noise < 0)
			return ptc_error_set(err, PTC_EINVAL, "the noise of the measured step of %s is negative", text);
		if (!isfinite(rows[i].step_s) || rows[i].step_s <= 0)
			return ptc_error_set(err, PTC_EINVAL, "the measured step of %s is not a positive time", text);
	}
	return 0;
}

/* A row that is off by more than three times what is usual counts as noisier, by the square: published tables
 * have rows that took twice as long as their neighbours, which say nothing of these. */
static double noise_of(const struct ptc_calibration *cal, size_t i)
{
	double off = fabs(cal->weight[i]) / (3 * cal->usual);

	return cal->noise[i] * fmax(1, off * off);
}

/* From the errors, which stand in weight. */
static void covariance(struct ptc_calibration *cal)
{
	for (size_t i = 0; i < cal->n; i++)
		for (size_t j = 0; j <= i; j++)
			cal->factor[i * cal->n + j] =
				cal->size * cal->size * alike(cal, cal->x + i * FEATURES, cal->x + j * FEATURES) +
				(i == j ? noise_of(cal, i) * noise_of(cal, i) : 0);
}

PTC_BY_VALUE(ascending, double)

/* Takes the median out of the errors: a common factor says nothing of one configuration against another. */
static double centre(double *left, size_t n, double *sorted)
{
	double median;

	memcpy(sorted, left, n * sizeof *left);
	qsort(sorted, n, sizeof *sorted, ascending);
	median = (sorted[n / 2] + sorted[(n - 1) / 2]) / 2;
	for (size_t i = 0; i < n; i++)
		left[i] -= median;
	return median;
}

/* A standard deviation by the median, which single rows that are far off do not move. `sorted` is room for n. */
static double size_of(const double *left, size_t n, double least, double *sorted)
{
	for (size_t i = 0; i < n; i++)
		sorted[i] = fabs(left[i]);
	qsort(sorted, n, sizeof *sorted, ascending);
	return fmax(least, 1.4826 * sorted[n / 2]);
}

/* What the neighbours do not explain of each row when it is left out: its weight over the diagonal of
 * the inverse. Their spread is the honest error where there are no neighbours. */
static double left_out_spread(const struct ptc_calibration *cal, double *column)
{
	double sum = 0;

	for (size_t i = 0; i < cal->n; i++) {
		double inverse = 0;

		memset(column, 0, cal->n * sizeof *column);
		column[i] = 1;
		ptc_cholesky_forward(cal->factor, cal->n, column);
		for (size_t k = i; k < cal->n; k++)
			inverse += column[k] * column[k];
		sum += cal->weight[i] * cal->weight[i] / (inverse * inverse);
	}
	return sqrt(sum / (double)cal->n);
}

/* Where all steps are off by more than a factor of two, the machine is none that the prior is of: coefficients are
 * fitted to steps without that factor. Returns its logarithm, or 0; the rows are the caller's to change. */
static double take_out_factor(struct ptc_fit_row *rows, const struct ptc_coefs *prior, size_t n, double *left,
			      double *sorted)
{
	double off;

	ptc_fit_residuals(rows, n, prior, left);
	off = -centre(left, n, sorted);
	if (fabs(off) < log(2))
		return 0;
	for (size_t i = 0; i < n; i++)
		rows[i].step_s *= exp(-off);
	return off;
}

static int fit(const struct ptc_fit_row *given, const struct ptc_coefs *prior, struct ptc_calibration *cal,
	       struct ptc_error *err)
{
	ptc_auto_free struct ptc_fit_row *rows = ptc_calloc(cal->n, sizeof *rows);
	ptc_auto_free double *column = ptc_calloc(cal->n, sizeof *column);
	double off;

	if (!rows || !column)
		return ptc_nomem(err);
	memcpy(rows, given, cal->n * sizeof *rows);
	off = take_out_factor(rows, prior, cal->n, cal->weight, column);
	ptc_fit_coefs(rows, cal->n, prior, cal->set.prior, cal->weight, &cal->coefs);
	for (size_t i = 0; i < cal->n; i++) {
		features(rows[i].work, &rows[i].cand, cal->x + i * FEATURES);
		cal->cands[i] = rows[i].cand;
		cal->noise[i] = rows[i].noise > 0 ? rows[i].noise : cal->set.noise;
		cal->weight[i] = -cal->weight[i]; /* log(measured / predicted) */
	}
	cal->common = off + centre(cal->weight, cal->n, column);
	cal->usual = size_of(cal->weight, cal->n, cal->set.noise, column);
	cal->size = fmax(cal->set.size, cal->usual);
	covariance(cal);
	ptc_cholesky(cal->factor, cal->n); /* the noise keeps it positive definite */
	ptc_cholesky_forward(cal->factor, cal->n, cal->weight);
	ptc_cholesky_back(cal->factor, cal->n, cal->weight);
	cal->spread = fmax(cal->set.noise, left_out_spread(cal, column));
	return 0;
}

int ptc_calibration_new(const struct ptc_fit_row *rows, size_t n, const struct ptc_coefs *prior,
			struct ptc_calibration **ret, struct ptc_error *err)
{
	static const struct ptc_fit_settings set = PTC_FIT_SETTINGS;

	return ptc_calibration_new_set(rows, n, prior, &set, ret, err);
}

int ptc_calibration_new_set(const struct ptc_fit_row *rows, size_t n, const struct ptc_coefs *prior,
			    const struct ptc_fit_settings *set, struct ptc_calibration **ret, struct ptc_error *err)
{
	struct ptc_calibration *cal;
	struct ptc_coefs start;
	int rc = check_rows(rows, n, err);

	if (rc)
		return rc;
	ptc_coefs_default(&start);
	cal = ptc_calloc(1, sizeof *cal);
	if (!cal)
		return ptc_nomem(err);
	cal->n = n;
	cal->set = *set;
	cal->cands = ptc_calloc(n, sizeof *cal->cands);
	cal->x = ptc_calloc(n * FEATURES, sizeof *cal->x);
	cal->factor = ptc_calloc(n * n, sizeof *cal->factor);
	cal->weight = ptc_calloc(n, sizeof *cal->weight);
	cal->noise = ptc_calloc(n, sizeof *cal->noise);
	rc = cal->cands && cal->x && cal->factor && cal->weight && cal->noise
		     ? fit(rows, prior ? prior : &start, cal, err)
		     : ptc_nomem(err);
	if (rc) {
		ptc_calibration_free(cal);
		return rc;
	}
	*ret = cal;
	return 0;
}

struct ptc_calibration *ptc_calibration_free(struct ptc_calibration *cal)
{
	if (!cal)
		return NULL;
	ptc_free(cal->cands);
	ptc_free(cal->x);
	ptc_free(cal->factor);
	ptc_free(cal->weight);
	ptc_free(cal->noise);
	ptc_free(cal);
	return NULL;
}

const struct ptc_coefs *ptc_calibration_coefs(const struct ptc_calibration *cal)
{
	return &cal->coefs;
}

double ptc_calibration_factor(const struct ptc_calibration *cal, const struct ptc_work *w, const struct ptc_cand *c,
			      double *ret_sd)
{
	double x[FEATURES], mean = cal->common, near = 0, noise = cal->set.noise;

	features(w, c, x);
	for (size_t i = 0; i < cal->n; i++) {
		double k = alike(cal, x, cal->x + i * FEATURES);

		mean += cal->size * cal->size * k * cal->weight[i];
		noise = k > near ? cal->noise[i] : noise;
		near = fmax(near, k);
	}
	/* Beside a measured configuration its noise, far from all of them what the rows showed, doubled:
	 * nothing says that the model errs there as it does here. */
	*ret_sd = fmin(PTC_UNCALIBRATED_SD, noise * near + 2 * cal->spread * (1 - near));
	return exp(mean);
}

static bool same(const double *a, const double *b)
{
	for (int i = 0; i < FEATURES; i++)
		if (a[i] < b[i] || a[i] > b[i])
			return false;
	return true;
}

size_t ptc_calibration_measured(const struct ptc_calibration *cal, const struct ptc_work *w, struct ptc_cand *ret,
				size_t max)
{
	size_t found = 0;

	for (size_t i = 0; i < cal->n && found < max; i++) {
		double x[FEATURES];

		features(w, &cal->cands[i], x); /* equal to the row's only if batch, hidden size and layers are */
		if (same(x, cal->x + i * FEATURES))
			ret[found++] = cal->cands[i];
	}
	return found;
}
