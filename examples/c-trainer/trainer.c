/* SPDX-License-Identifier: Apache-2.0 */
/* Ridge regression with Adam, data and tensor parallel, as a job of ptcd: what a plain C program does with libptc.
 * README.md explains it. One program, two ways to run it:
 *
 *   started by ptcd       (ptcctl run): as many ranks as the configuration says, which may change while it trains
 *   c-trainer --alone     one process without ptcd: the reference that every other way of running must equal
 *
 * The model predicts y = x . w + b. Tensor parallel ranks hold parts of w and of its two Adam moments; b is on every
 * rank. Data parallel ranks compute different samples of each global batch. Everything is fp64. */
#define _POSIX_C_SOURCE 200809L
#include "net.h"

#include <ptc/ptc.h>

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct options {
	uint64_t steps, samples, features, batch, micro, seed;
	double rate, lambda;
	long sleep_ms, work_ms;
	int alone;
};

/* A parameter and what Adam keeps of it. */
struct parameter {
	double *value, *m, *v, *gradient;
	size_t n;
};

struct trainer {
	const struct options *o;
	ptc_client *c;
	struct ptc_generation gen;
	struct ptc_sampling sampling;
	struct group tensor, data; /* ranks with the other parts of w; ranks with the same part and other samples */
	struct parameter w, b;
	size_t first;        /* feature of w.value[0] */
	uint64_t base;       /* position in the data at the generation's first step: samples consumed or skipped */
	double loss_average; /* carried as a blob: no tensor, but state all the same */
	uint64_t *ids;       /* of this rank's samples of a step, for the log */
	double own_s;        /* own work since the start: steps, less the time in which others were waited for */
	size_t nids;
};

static void die(const char *what, const char *why)
{
	fprintf(stderr, "c-trainer: %s: %s\n", what, why);
	exit(1);
}

static void *need(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	if (!p)
		die("memory", strerror(errno));
	return p;
}

/* ---- data: computed from the sample's number, so that any rank can have any of it ------------------ */

static double noise(uint64_t seed, uint64_t a, uint64_t b)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15u + a * 0xbf58476d1ce4e5b9u + b * 0x94d049bb133111ebu;

	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	x ^= x >> 31;
	return (double)(x >> 11) * 0x1p-52 - 1.0; /* -1 .. 1 */
}

static double feature(const struct options *o, uint64_t sample, uint64_t j)
{
	return noise(o->seed, sample, j);
}

static double target(const struct options *o, uint64_t sample)
{
	double y = 0.5;

	for (uint64_t j = 0; j < o->features; j++)
		y += feature(o, sample, j) * noise(o->seed + 1, 0, j);
	return y + 0.01 * noise(o->seed + 2, sample, 0);
}

/* ---- one step --------------------------------------------------------------------------------------- */

static void parameter_new(struct parameter *p, size_t n)
{
	p->n = n;
	p->value = need(n, sizeof(double));
	p->m = need(n, sizeof(double));
	p->v = need(n, sizeof(double));
	p->gradient = need(n, sizeof(double));
}

static void parameter_free(struct parameter *p)
{
	free(p->value);
	free(p->m);
	free(p->v);
	free(p->gradient);
}

/* w . x of n samples, over the features of all tensor parallel ranks. */
static int predict(struct trainer *t, const uint64_t *ids, size_t n, double *p)
{
	for (size_t i = 0; i < n; i++) {
		p[i] = 0;
		for (size_t j = 0; j < t->w.n; j++)
			p[i] += t->w.value[j] * feature(t->o, ids[i], t->first + j);
	}
	return group_sum(&t->tensor, p, n);
}

/* As if a micro-batch took work_ms of computing, which tensor parallel ranks share. */
static void work(const struct trainer *t)
{
	long ns = t->o->work_ms * 1000000 / (long)t->gen.tp;
	const struct timespec nap = { ns / 1000000000, ns % 1000000000 };

	if (ns)
		nanosleep(&nap, NULL);
}

/* Not step times batch: after ptcctl rollback --skip-data a step has later samples than it had before. */
static uint64_t position_at(const struct trainer *t, uint64_t step)
{
	return t->base + (step - t->gen.start_step) * t->sampling.global_batch;
}

/* This rank's samples of the step: gradients and squared errors are sums over them. */
static int accumulate(struct trainer *t, uint64_t step, double *ret_squares)
{
	size_t n = t->sampling.micro_batch;
	uint64_t position = position_at(t, step), *ids = need(n, sizeof *ids);
	uint64_t steps = ptc_rank_micro_steps(&t->sampling, t->gen.dp_rank); /* replicas wait for none before the end */
	double *p = need(n, sizeof *p), squares = 0;
	float *weight = need(n, sizeof *weight);
	int rc = 0;

	t->nids = 0;
	for (uint64_t micro = 0; !rc && micro < steps; micro++) {
		rc = ptc_micro_batch(&t->sampling, position, micro, t->gen.dp_rank, ids, weight);
		if (!rc)
			rc = predict(t, ids, n, p);
		work(t);
		for (size_t i = 0; !rc && i < n; i++) {
			double error = p[i] + t->b.value[0] - target(t->o, ids[i]);

			if (weight[i] == 0)
				continue; /* padding: the global batch does not divide by the slots */
			t->ids[t->nids++] = ids[i];
			squares += error * error;
			t->b.gradient[0] += error;
			for (size_t j = 0; j < t->w.n; j++)
				t->w.gradient[j] += error * feature(t->o, ids[i], t->first + j);
		}
	}
	free(ids);
	free(p);
	free(weight);
	*ret_squares = squares;
	return rc;
}

static int step_gradients(struct trainer *t, uint64_t step, double *ret_loss)
{
	double scale = 1.0 / (double)t->sampling.global_batch, squares, norm = 0;

	memset(t->w.gradient, 0, t->w.n * sizeof(double));
	t->b.gradient[0] = 0;
	if (accumulate(t, step, &squares) || group_sum(&t->data, &squares, 1) ||
	    group_sum(&t->data, t->b.gradient, 1) || group_sum(&t->data, t->w.gradient, t->w.n))
		return -1;
	for (size_t j = 0; j < t->w.n; j++) {
		norm += t->w.value[j] * t->w.value[j];
		t->w.gradient[j] = t->w.gradient[j] * scale + t->o->lambda * t->w.value[j];
	}
	t->b.gradient[0] *= scale;
	if (group_sum(&t->tensor, &norm, 1))
		return -1;
	*ret_loss = 0.5 * (squares * scale + t->o->lambda * norm);
	return 0;
}

static void adam(struct parameter *p, uint64_t step, double rate)
{
	double c1 = 1 - pow(0.9, (double)step + 1), c2 = 1 - pow(0.999, (double)step + 1);

	for (size_t i = 0; i < p->n; i++) {
		p->m[i] = 0.9 * p->m[i] + 0.1 * p->gradient[i];
		p->v[i] = 0.999 * p->v[i] + 0.001 * p->gradient[i] * p->gradient[i];
		p->value[i] -= rate * (p->m[i] / c1) / (sqrt(p->v[i] / c2) + 1e-8);
	}
}

static void update(struct trainer *t, uint64_t step)
{
	double rate = t->o->rate / (1 + 0.01 * (double)step); /* a schedule that needs no state but the step */

	adam(&t->w, step, rate);
	adam(&t->b, step, rate);
}

/* One line of JSON per step, where the loss is computed. */
static void log_step(const struct trainer *t, uint64_t step, double loss)
{
	printf("{\"generation\": %llu, \"incarnation\": %llu, \"rank\": %u, \"tp_rank\": %u, \"step\": %llu, \"loss\": "
	       "%.17g, "
	       "\"average\": %.17g, \"samples\": [",
	       (unsigned long long)t->gen.generation, (unsigned long long)t->gen.incarnation, t->gen.rank,
	       t->gen.tp_rank, (unsigned long long)step, loss, t->loss_average);
	for (size_t i = 0; i < t->nids; i++)
		printf("%s%llu", i ? ", " : "", (unsigned long long)t->ids[i]);
	printf("]}\n");
	fflush(stdout);
}

/* ---- what ptcd has to know ----------------------------------------------------------------------------- */

static void declare(struct trainer *t, const char *name, const char *field, double *data, uint64_t size, uint64_t first,
		    size_t n, int scalar)
{
	int64_t shape[1] = { (int64_t)size };
	struct ptc_shard_box box = { .offset = { (int64_t)first }, .extent = { (int64_t)n } };
	struct ptc_tensor_desc d = { .size = sizeof d,
				     .name = name,
				     .field = field,
				     .dtype = "F64",
				     .ndim = scalar ? 0 : 1,
				     .shape = shape,
				     .boxes = &box,
				     .nboxes = n > 0,
				     .data = data };

	if (ptc_tensor_declare(t->c, &d) != 0)
		die("declare", ptc_error_text(t->c));
}

static void declare_parameter(struct trainer *t, const char *name, struct parameter *p, uint64_t size, uint64_t first,
			      int scalar)
{
	declare(t, name, NULL, p->value, size, first, p->n, scalar);
	declare(t, name, "exp_avg", p->m, size, first, p->n, scalar);
	declare(t, name, "exp_avg_sq", p->v, size, first, p->n, scalar);
}

static void cursor_tag(const struct trainer *t, char *buf, size_t size)
{
	snprintf(buf, size, "n=%llu,seed=%llu", (unsigned long long)t->o->samples, (unsigned long long)t->o->seed);
}

/* Called when this rank is about to wait at a boundary: what the snapshot carries beside tensors. */
static int at_stop(void *arg, uint64_t step)
{
	struct trainer *t = arg;
	char tag[160];
	size_t n;

	cursor_tag(t, tag, sizeof tag);
	n = strlen(tag); /* how they are divided, for ptcctl dataset proof; it may be another later */
	snprintf(tag + n, sizeof tag - n, ";batch=%llu,micro=%u", (unsigned long long)t->sampling.global_batch,
		 t->sampling.micro_batch);
	return ptc_cursor_set(t->c, "train", position_at(t, step), tag) ||
	       ptc_blob_set(t->c, "loss_average", PTC_BLOB_JOB, &t->loss_average, sizeof t->loss_average);
}

static void check_restored(struct trainer *t)
{
	char tag[160], mine[80];
	size_t len;

	cursor_tag(t, mine, sizeof mine);
	if (ptc_cursor_get(t->c, "train", &t->base, tag, sizeof tag) != 1 || strcspn(tag, ";") != strlen(mine) ||
	    strncmp(tag, mine, strlen(mine)) != 0)
		die("restore", "the snapshot is of other data");
	if (ptc_blob_get(t->c, "loss_average", PTC_BLOB_JOB, &t->loss_average, sizeof t->loss_average, &len) != 1)
		die("restore", "the snapshot has no loss_average");
}

/* ---- a generation ---------------------------------------------------------------------------------------- */

static void build(struct trainer *t)
{
	const struct options *o = t->o;
	uint64_t each = o->features / t->gen.tp, more = o->features % t->gen.tp, r = t->gen.tp_rank;

	t->sampling =
		(struct ptc_sampling){ .size = sizeof t->sampling,
				       .samples = o->samples,
				       .seed = o->seed,
				       .global_batch = t->gen.global_batch ? t->gen.global_batch : o->batch,
				       .micro_batch = t->gen.micro_batch ? t->gen.micro_batch : (uint32_t)o->micro,
				       .dp = t->gen.dp,
				       .config = t->gen.config };
	if (!ptc_micro_steps(&t->sampling))
		die("options", "batch sizes or the number of samples are out of range");
	t->first = (size_t)(r * each + (r < more ? r : more));
	parameter_new(&t->w, (size_t)(each + (r < more)));
	parameter_new(&t->b, 1);
	t->ids = need(ptc_micro_steps(&t->sampling) * t->sampling.micro_batch, sizeof *t->ids);
	t->loss_average = 0;
	t->base = 0;
}

static void join(struct trainer *t)
{
	char tensor[32], data[32];
	int one = getenv("PTC_PROBE") != NULL; /* ptcctl probe: there are no other ranks, and no step is computed */

	/* Tensor parallel ranks have the same dp_rank, and the other way round. */
	snprintf(tensor, sizeof tensor, "tensor/%u", t->gen.dp_rank);
	snprintf(data, sizeof data, "data/%u", t->gen.tp_rank);
	if (group_join(&t->tensor, t->c, tensor, one ? 0 : t->gen.tp_rank, one ? 1 : t->gen.tp) ||
	    group_join(&t->data, t->c, data, one ? 0 : t->gen.dp_rank, one ? 1 : t->gen.dp))
		die("join", t->c && *ptc_error_text(t->c) ? ptc_error_text(t->c) : strerror(errno));
}

static void one_step(struct trainer *t, uint64_t step)
{
	const struct timespec nap = { t->o->sleep_ms / 1000, t->o->sleep_ms % 1000 * 1000000 };
	double loss, began = seconds_now() - t->tensor.waited_s - t->data.waited_s;

	if (step_gradients(t, step, &loss))
		die("another rank is gone", strerror(errno));
	t->loss_average = step ? 0.9 * t->loss_average + 0.1 * loss : loss;
	log_step(t, step, loss);
	if (t->o->sleep_ms)
		nanosleep(&nap, NULL);
	if (t->c) {
		ptc_report(t->c, "loss", loss);
		ptc_update_begin(t->c); /* from here on the state is not whole */
	}
	update(t, step);
	t->own_s += seconds_now() - t->tensor.waited_s - t->data.waited_s - began;
	if (t->c)
		ptc_report(t->c, "own_seconds",
			   t->own_s); /* on_straggler of job.yaml compares it with that of others */
}

static void train(struct trainer *t)
{
	int rc = ptc_on_stop(t->c, at_stop, t);

	for (uint64_t step = t->gen.start_step; rc == 0; step++) {
		rc = ptc_boundary(t->c, step);
		if (rc == 0 && step == t->o->steps) {
			rc = ptc_finish(t->c, step);
			break;
		}
		if (rc == 0)
			one_step(t, step);
	}
	if (rc < 0)
		die("train", ptc_error_text(t->c));
}

static void generation(struct trainer *t)
{
	int rc;

	if (t->gen.pp != 1 || t->gen.cp != 1)
		die("configuration", "this model has one layer: pp and cp must be 1");
	build(t);
	join(t);
	declare_parameter(t, "w", &t->w, t->o->features, t->first, 0);
	declare_parameter(t, "b", &t->b, 0, 0, 1);
	rc = ptc_restore(t->c);
	if (rc < 0 && rc != PTC_R_STALE)
		die("restore", ptc_error_text(t->c));
	if (rc >= 0 && ptc_start_step(t->c, &t->gen.start_step))
		die("restore", ptc_error_text(t->c));
	if (rc == 1)
		check_restored(t);
	if (rc >= 0)
		train(t);
	group_leave(&t->tensor);
	group_leave(&t->data);
	parameter_free(&t->w);
	parameter_free(&t->b);
	free(t->ids);
}

static int with_ptcd(struct trainer *t)
{
	int rc;

	if (ptc_open(NULL, &t->c) != 0)
		die("ptc_open", ptc_error_text(NULL));
	t->gen.size = sizeof t->gen;
	while ((rc = ptc_next(t->c, &t->gen)) == 1)
		generation(t);
	if (rc < 0)
		die("ptc_next", ptc_error_text(t->c));
	ptc_close(t->c);
	return 0;
}

static int alone(struct trainer *t)
{
	t->gen = (struct ptc_generation){ .world = 1, .tp = 1, .dp = 1, .pp = 1, .cp = 1 };
	build(t);
	join(t);
	for (uint64_t step = 0; step < t->o->steps; step++)
		one_step(t, step);
	parameter_free(&t->w);
	parameter_free(&t->b);
	free(t->ids);
	return 0;
}

/* ---- options ------------------------------------------------------------------------------------------------ */

static uint64_t number(const char *name, const char *text, uint64_t least)
{
	char *end;
	unsigned long long v;

	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno || !*text || *end || *text == '-' || v < least)
		die(name, "not a number in range");
	return v;
}

static double real(const char *name, const char *text)
{
	char *end;
	double v = strtod(text, &end);

	if (!*text || *end || !(v >= 0))
		die(name, "not a number in range");
	return v;
}

static void parse(int argc, char **argv, struct options *o)
{
	for (int i = 1; i < argc; i++) {
		const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";

		i++;
		if (strcmp(name, "--alone") == 0) {
			o->alone = 1;
			i--;
		} else if (strcmp(name, "--steps") == 0) {
			o->steps = number(name, value, 0);
		} else if (strcmp(name, "--samples") == 0) {
			o->samples = number(name, value, 1);
		} else if (strcmp(name, "--features") == 0) {
			o->features = number(name, value, 1);
		} else if (strcmp(name, "--global-batch") == 0) {
			o->batch = number(name, value, 1);
		} else if (strcmp(name, "--micro-batch") == 0) {
			o->micro = number(name, value, 1);
		} else if (strcmp(name, "--seed") == 0) {
			o->seed = number(name, value, 0);
		} else if (strcmp(name, "--sleep-ms") == 0) {
			o->sleep_ms = (long)number(name, value, 0);
		} else if (strcmp(name, "--work-ms") == 0) {
			o->work_ms = (long)number(name, value, 0);
		} else if (strcmp(name, "--rate") == 0) {
			o->rate = real(name, value);
		} else if (strcmp(name, "--lambda") == 0) {
			o->lambda = real(name, value);
		} else {
			fprintf(stderr, "usage: c-trainer [--alone] [--steps N] [--samples N] [--features N] "
					"[--global-batch N] "
					"[--micro-batch N]\n                 [--seed N] [--sleep-ms N] [--work-ms N] "
					"[--rate X] "
					"[--lambda X]\n");
			exit(2);
		}
	}
}

int main(int argc, char **argv)
{
	struct options o = { .steps = 1000,
			     .samples = 1000,
			     .features = 37,
			     .batch = 24,
			     .micro = 4,
			     .seed = 7,
			     .rate = 0.05,
			     .lambda = 1e-4 };
	struct trainer t = { .o = &o };

	parse(argc, argv, &o);
	return o.alone ? alone(&t) : with_ptcd(&t);
}
