/* SPDX-License-Identifier: Apache-2.0 */
/* Fits coefficients by Levenberg-Marquardt on logarithms: of coefficients, which stay positive, and of times, so that
 * each row counts by its relative error. Errors beyond 15 % count linearly (Huber), because single rows of published
 * tables are wrong. Cannot fail. */
#include "planner/fit/coefs.h"
#include "planner/fit/solve.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

#define HUBER 0.15
#define STEPS 60
#define P     PTC_COEFS

void ptc_fit_residuals(const struct ptc_fit_row *rows, size_t n, const struct ptc_coefs *coefs, double *ret)
{
	for (size_t i = 0; i < n; i++) {
		struct ptc_work w = *rows[i].work;
		struct ptc_estimate e;

		w.coefs = *coefs;
		ret[i] = ptc_estimate(&w, &rows[i].cand, &e, NULL) ? 0 : log(e.step_s / rows[i].step_s);
	}
}

static struct ptc_coefs exponentials(const double *x)
{
	struct ptc_coefs c;

	for (int i = 0; i < P; i++)
		c.v[i] = exp(x[i]);
	return c;
}

/* held: weight of the prior */
static double cost_of(const double *r, size_t n, const double *x, const double *x0, double held)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++) {
		double a = fabs(r[i]);

		sum += a < HUBER ? a * a / 2 : HUBER * (a - HUBER / 2);
	}
	for (int i = 0; i < P; i++)
		sum += held * (x[i] - x0[i]) * (x[i] - x0[i]) / 2;
	return sum;
}

/* One row's slopes enter the normal equations. */
static void add_row(double r, const double *slope, double *a, double *g)
{
	double weight = fabs(r) < HUBER ? 1 : HUBER / fabs(r);

	for (int i = 0; i < P; i++) {
		g[i] += weight * slope[i] * r;
		for (int j = 0; j <= i; j++)
			a[i * P + j] += weight * slope[i] * slope[j];
	}
}

static void normal_equations(const struct ptc_fit_row *rows, size_t n, const double *x, const double *x0, double held,
			     const double *r, double *a, double *g)
{
	const double d = 1e-4;

	memset(a, 0, P * P * sizeof *a);
	for (int i = 0; i < P; i++) {
		g[i] = held * (x[i] - x0[i]);
		a[i * P + i] = held;
	}
	for (size_t k = 0; k < n; k++) {
		double slope[P];

		for (int i = 0; i < P; i++) {
			double moved[P], after;
			struct ptc_coefs c;

			memcpy(moved, x, sizeof moved);
			moved[i] += d;
			c = exponentials(moved);
			ptc_fit_residuals(&rows[k], 1, &c, &after);
			slope[i] = (after - r[k]) / d;
		}
		add_row(r[k], slope, a, g);
	}
}

/* x moved by the solution of (A + lambda diag A) step = -g, each at most by a factor e. */
static void step_to(const double *a, const double *g, double lambda, const double *x, double *ret)
{
	double m[P * P], step[P];

	memcpy(m, a, sizeof m);
	for (int i = 0; i < P; i++) {
		m[i * P + i] *= 1 + lambda;
		step[i] = -g[i];
	}
	ptc_cholesky(m, P); /* the prior keeps it positive definite */
	ptc_cholesky_forward(m, P, step);
	ptc_cholesky_back(m, P, step);
	for (int i = 0; i < P; i++)
		ret[i] = x[i] + PTC_MAX(-1.0, PTC_MIN(1.0, step[i]));
}

void ptc_fit_coefs(const struct ptc_fit_row *rows, size_t n, const struct ptc_coefs *prior, double held,
		   double *residuals, struct ptc_coefs *ret)
{
	double x[P], x0[P], a[P * P], g[P], lambda = 1e-2, cost;
	struct ptc_coefs c = *prior;

	for (int i = 0; i < P; i++)
		x[i] = x0[i] = log(prior->v[i]);
	ptc_fit_residuals(rows, n, &c, residuals);
	cost = cost_of(residuals, n, x, x0, held);
	for (int step = 0; step < STEPS; step++) {
		double before = cost;

		normal_equations(rows, n, x, x0, held, residuals, a, g);
		while (lambda < 1e8) {
			double next[P], now;

			step_to(a, g, lambda, x, next);
			c = exponentials(next);
			ptc_fit_residuals(rows, n, &c, residuals);
			now = cost_of(residuals, n, next, x0, held);
			if (now < cost) {
				memcpy(x, next, sizeof x);
				cost = now;
				break;
			}
			lambda *= 4;
		}
		lambda = PTC_MAX(lambda / 6, 1e-6);
		if (before - cost <= 1e-7 * before)
			break;
	}
	*ret = exponentials(x);
	ptc_fit_residuals(rows, n, ret, residuals);
}
