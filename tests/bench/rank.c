/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-bench-rank: a training process that does nothing but hold state and stop when asked.
 *
 *   ptc-bench-rank --hidden H --layers L --rows R --log DIR [--sleep MICROSECONDS] [--spin N] [--huge 1]
 *
 * Its tensors are those of bench_state.py: BF16 parameters, F32 exp_avg and exp_avg_sq, cut by tp and pp, replicated
 * over dp. Element i of a tensor is a number made of i and the tensor's name, so that what was restored is checked,
 * every byte, by the rank itself.
 *
 * Happy path: at each stop it measures how long ptc_boundary kept it, then copies the same bytes with memcpy to memory
 * that is there (the limit); after ptc_restore it does the same in the other direction. A JSON line each goes to DIR.
 * With --huge its memory is in huge pages from the start, as numpy's is. With --spin it measures boundaries at which
 * nothing is pending, N at a time, and finishes.
 *
 * Failure modes: one line on stderr and exit 1; a restored byte that is wrong is such a line. */
#include "ptc/ptc.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define TENSORS_MAX  8192
#define BLOCKS_MAX   3
#define SPIN_ROUNDS  11
#define HUGE_BYTES   (2u << 20)
#define KERNEL_BYTES (8u << 20)
#define QUIET_STEPS  200 /* after a stop ptcd works on what it has copied; then it is quiet */

struct options {
	int64_t hidden, layers, rows, sleep_us, spin, huge;
	const char *log;
};

/* What this rank has of a tensor: equal blocks of rows (or columns) of a matrix, one behind the other in memory. */
struct part {
	char name[64];
	const char *field;
	uint32_t ndim, nblocks, width; /* width: bytes of an element */
	uint64_t seed;
	int64_t shape[2];
	struct ptc_shard_box boxes[BLOCKS_MAX];
	size_t bytes;
	uint8_t *data, *twin;
};

struct rank {
	const struct options *options;
	ptc_client *client;
	struct ptc_generation gen;
	struct part *parts;
	size_t nparts, bytes;
	int restored;
	double restore_cpu; /* CPU seconds of all threads in ptc_restore */
	bool stopped;       /* in this boundary */
	struct {
		uint64_t step;
		double seconds; /* 0: none to be logged */
	} stall;
	FILE *log;
};

static _Noreturn void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("ptc-bench-rank: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	exit(1);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- state ------------------------------------------------------------------------ */

static uint64_t seed_of(const char *name, const char *field)
{
	uint64_t h = UINT64_C(1469598103934665603);

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * UINT64_C(1099511628211);
	for (; field && *field; field++)
		h = (h ^ (uint8_t)*field) * UINT64_C(1099511628211);
	return h;
}

static uint32_t value(const struct part *p, int64_t i)
{
	return (uint32_t)((p->seed + (uint64_t)i) * UINT64_C(0x9E3779B97F4A7C15) >> 40);
}

/* Fills (check false), or finds the first element that is not what it must be: its index, or -1. */
static int64_t walk(const struct part *p, bool check)
{
	uint8_t *at = p->data;

	for (uint32_t b = 0; b < p->nblocks; b++) {
		const struct ptc_shard_box *box = &p->boxes[b];
		int64_t columns = p->ndim == 2 ? box->extent[1] : 1, whole = p->ndim == 2 ? p->shape[1] : 1;
		int64_t first = p->ndim == 2 ? box->offset[1] : 0;

		for (int64_t r = 0; r < box->extent[0]; r++)
			for (int64_t c = 0; c < columns; c++, at += p->width) {
				int64_t i = (box->offset[0] + r) * whole + first + c;
				uint32_t v = value(p, i);

				if (!check)
					memcpy(at, &v, p->width);
				else if (memcmp(at, &v, p->width) != 0)
					return i;
			}
	}
	return -1;
}

static uint8_t *memory(size_t bytes, bool huge)
{
	uint8_t *p = aligned_alloc(HUGE_BYTES, (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);

	if (!p)
		die("no memory for %zu bytes", bytes);
	if (huge)
		madvise(p, bytes, MADV_HUGEPAGE);
	memset(p, 1, bytes); /* its pages are there before anything is measured */
	return p;
}

/* dim: the one that tp cuts, -1: none. blocks: of equal size, each cut by itself. */
static void add(struct rank *k, const char *name, int64_t rows, int64_t columns, int dim, uint32_t blocks)
{
	static const char *const fields[] = { NULL, "exp_avg", "exp_avg_sq" };
	int64_t tp = dim < 0 ? 1 : k->gen.tp, at = dim < 0 ? 0 : k->gen.tp_rank;

	for (size_t f = 0; f < 3; f++) {
		struct part *p = &k->parts[k->nparts++];
		int64_t shape[2] = { rows, columns };

		if (k->nparts == TENSORS_MAX)
			die("more than %d tensors", TENSORS_MAX);
		snprintf(p->name, sizeof p->name, "%s", name);
		p->field = fields[f];
		p->seed = seed_of(name, fields[f]);
		p->width = f ? 4 : 2;
		p->ndim = columns ? 2 : 1;
		memcpy(p->shape, shape, sizeof shape);
		p->nblocks = dim < 0 ? 1 : blocks;
		for (uint32_t b = 0; b < p->nblocks; b++) {
			struct ptc_shard_box *box = &p->boxes[b];
			size_t n = p->width;

			memcpy(box->extent, shape, sizeof shape);
			if (dim >= 0) {
				int64_t block = shape[dim] / p->nblocks;

				if (block % tp)
					die("tensor %s: %" PRId64 " is not divisible by tp %" PRId64, name, block, tp);
				box->extent[dim] = block / tp;
				box->offset[dim] = b * block + at * (block / tp);
			}
			for (uint32_t d = 0; d < p->ndim; d++)
				n *= (size_t)box->extent[d];
			box->data_offset = p->bytes;
			p->bytes += n;
		}
		p->data = memory(p->bytes, k->options->huge);
		p->twin = memory(p->bytes, k->options->huge);
		walk(p, false);
		k->bytes += p->bytes;
	}
}

static void add_layer(struct rank *k, int64_t i)
{
	int64_t h = k->options->hidden;
	const struct {
		const char *name;
		int64_t rows, columns;
		int dim;
		uint32_t blocks;
	} t[] = {
		{ "norm1.weight", h, 0, -1, 1 },     { "attn.qkv.weight", 3 * h, h, 0, 3 },
		{ "attn.qkv.bias", 3 * h, 0, 0, 3 }, { "attn.out.weight", h, h, 1, 1 },
		{ "norm2.weight", h, 0, -1, 1 },     { "mlp.up.weight", 4 * h, h, 0, 1 },
		{ "mlp.up.bias", 4 * h, 0, 0, 1 },   { "mlp.down.weight", h, 4 * h, 1, 1 },
		{ "mlp.down.bias", h, 0, -1, 1 },
	};

	for (size_t n = 0; n < sizeof t / sizeof t[0]; n++) {
		char name[64];

		snprintf(name, sizeof name, "h.%" PRId64 ".%s", i, t[n].name);
		add(k, name, t[n].rows, t[n].columns, t[n].dim, t[n].blocks);
	}
}

static void declare(struct rank *k)
{
	for (size_t i = 0; i < k->nparts; i++) {
		const struct part *p = &k->parts[i];
		struct ptc_tensor_desc d = { .size = sizeof d,
					     .name = p->name,
					     .field = p->field,
					     .dtype = p->width == 2 ? "BF16" : "F32",
					     .ndim = p->ndim,
					     .shape = p->shape,
					     .boxes = p->boxes,
					     .nboxes = p->nblocks,
					     .data = p->data };

		if (ptc_tensor_declare(k->client, &d))
			die("%s", ptc_error_text(k->client));
	}
}

static void build(struct rank *k)
{
	const struct options *o = k->options;
	int64_t each = o->layers / k->gen.pp;

	if (o->layers % k->gen.pp)
		die("%" PRId64 " layers do not divide into %u stages", o->layers, k->gen.pp);
	k->parts = calloc(TENSORS_MAX, sizeof k->parts[0]);
	if (!k->parts)
		die("out of memory");
	for (int64_t i = k->gen.pp_rank * each; i < (k->gen.pp_rank + 1) * each; i++)
		add_layer(k, i);
	if (k->gen.pp_rank == 0)
		add(k, "embed.weight", o->rows, o->hidden, 0, 1);
	if (k->gen.pp_rank + 1 == k->gen.pp)
		add(k, "norm.weight", o->hidden, 0, -1, 1);
	declare(k);
}

static void tear_down(struct rank *k)
{
	for (size_t i = 0; i < k->nparts; i++) {
		free(k->parts[i].data);
		free(k->parts[i].twin);
	}
	free(k->parts);
	k->parts = NULL;
	k->nparts = k->bytes = 0;
}

static void check(const struct rank *k)
{
	for (size_t i = 0; i < k->nparts; i++) {
		int64_t wrong = walk(&k->parts[i], true);

		if (wrong >= 0)
			die("rank %u: tensor \"%s\" field \"%s\": element %" PRId64 " is not what it was", k->gen.rank,
			    k->parts[i].name, k->parts[i].field ? k->parts[i].field : "", wrong);
	}
}

/* ---- measuring --------------------------------------------------------------------- */

/* The limit: the same bytes between memory that is there. */
static double copy_all(const struct rank *k, bool out)
{
	double began = now();

	for (size_t i = 0; i < k->nparts; i++)
		memcpy(out ? k->parts[i].twin : k->parts[i].data, out ? k->parts[i].data : k->parts[i].twin,
		       k->parts[i].bytes);
	return now() - began;
}

/* What the kernel needs to copy them between processes' memory (here: from our own), the least that `copy: lean` can
 * cost. */
static double kernel_copy_all(const struct rank *k)
{
	double began = now();

	for (size_t i = 0; i < k->nparts; i++)
		for (size_t at = 0; at < k->parts[i].bytes;) {
			size_t n = k->parts[i].bytes - at < KERNEL_BYTES ? k->parts[i].bytes - at : KERNEL_BYTES;
			struct iovec from = { k->parts[i].data + at, n }, to = { k->parts[i].twin + at, n };
			ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);

			if (got <= 0)
				die("process_vm_readv: %s", strerror(errno));
			at += (size_t)got;
		}
	return now() - began;
}

/* The limit of a boundary: its two accesses, to a page of our own. */
static double exchange_ns(int64_t n)
{
	static _Alignas(64) _Atomic uint64_t state;
	static _Alignas(64) _Atomic uint64_t stop = UINT64_MAX;
	double began = now();

	for (int64_t i = 0; i < n; i++) {
		atomic_exchange(&state, (uint64_t)i);
		if (atomic_load(&stop) <= (uint64_t)i)
			break;
	}
	return (now() - began) * 1e9 / (double)n;
}

static void spin(struct rank *k)
{
	uint64_t step = k->gen.start_step;

	for (int round = 0; round < SPIN_ROUNDS; round++) {
		double limit = exchange_ns(k->options->spin), began = now(), both;

		for (int64_t i = 0; i < k->options->spin; i++)
			if (ptc_boundary(k->client, step++))
				die("a boundary stopped: %s", ptc_error_text(k->client));
		both = (now() - began) * 1e9 / (double)k->options->spin;
		fprintf(k->log, "{\"what\": \"boundary\", \"ns\": %.3f, \"limit_ns\": %.3f}\n", both, limit);
	}
	if (ptc_finish(k->client, step - 1) < 0)
		die("%s", ptc_error_text(k->client));
}

static void log_stall(const struct rank *k)
{
	double limit, kernel;

	limit = copy_all(k, true);
	kernel = kernel_copy_all(k);
	fprintf(k->log,
		"{\"what\": \"stall\", \"rank\": %u, \"step\": %" PRIu64
		", \"seconds\": %.6f, \"limit_seconds\": %.6f, \"kernel_seconds\": %.6f, \"bytes\": %zu}\n",
		k->gen.rank, k->stall.step, k->stall.seconds, limit, kernel, k->bytes);
}

/* Some steps later, so that no stop waits for it. */
static void log_restored(const struct rank *k)
{
	double limit, kernel;

	if (k->restored)
		check(k);
	kernel = kernel_copy_all(k); /* there first ... */
	limit = copy_all(k, false);  /* ... and back */
	fprintf(k->log,
		"{\"what\": \"restore\", \"rank\": %u, \"restored\": %s, \"limit_seconds\": %.6f, "
		"\"kernel_seconds\": %.6f, \"restore_cpu_seconds\": %.6f, \"bytes\": %zu}\n",
		k->gen.rank, k->restored ? "true" : "false", limit, kernel, k->restore_cpu, k->bytes);
}

static int at_stop(void *arg, uint64_t step)
{
	struct rank *k = arg;

	(void)step;
	k->stopped = true;
	return 0;
}

/* ---- lock-step ---- */

/* Ranks end each step together, as those of a trainer do in their all-reduce. Else they drift apart on a busy machine,
 * and a stop takes as long as the slowest needs for all steps up to the fastest one's. All ranks are on one machine:
 * they share this, in a file beside the logs, and sleep until the last one has come. */
struct together {
	_Atomic uint64_t arrived; /* of all steps */
	_Atomic uint32_t ended;   /* steps that all have ended; what they sleep on */
	_Atomic uint32_t left;    /* a rank has left the generation, and ends no more steps */
};

static struct together *together_open(const struct rank *k)
{
	struct together *t;
	char path[4096];
	int fd;

	snprintf(path, sizeof path, "%s/together-g%" PRIu64 "-l%" PRIu64, k->options->log, k->gen.generation,
		 k->gen.incarnation);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof *t) != 0)
		die("%s: %s", path, strerror(errno));
	t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (t == MAP_FAILED)
		die("%s: %s", path, strerror(errno));
	close(fd);
	return t;
}

static void together_close(struct together *t)
{
	atomic_store(&t->left, 1);
	syscall(SYS_futex, &t->ended, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	munmap(t, sizeof *t);
}

/* n: steps that this rank has ended. Who waits for a rank that has left goes on, to a boundary that says so. */
static void together_end(struct together *t, uint32_t n, uint32_t world)
{
	static const struct timespec look = { .tv_nsec = 50000000 };
	uint32_t ended;

	if (atomic_fetch_add(&t->arrived, 1) + 1 == (uint64_t)n * world) {
		atomic_store(&t->ended, n);
		syscall(SYS_futex, &t->ended, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	}
	while ((ended = atomic_load(&t->ended)) < n && !atomic_load(&t->left))
		syscall(SYS_futex, &t->ended, FUTEX_WAIT, ended, &look, NULL, 0);
}

/* Until the generation ends. */
static void train(struct rank *k)
{
	struct together *t = together_open(k);

	k->stall.seconds = 0;
	if (ptc_on_stop(k->client, at_stop, k))
		die("%s", ptc_error_text(k->client));
	for (uint64_t step = k->gen.start_step;; step++) {
		double began = now(), s;
		int rc;

		k->stopped = false;
		rc = ptc_boundary(k->client, step);

		s = now() - began;
		if (rc < 0)
			die("%s", ptc_error_text(k->client));
		if (rc)
			break;
		if (k->stopped) {
			/* Where another rank was faster, arming takes two stops in a row, and both are waited at. */
			k->stall.seconds = s + (step == k->stall.step + 1 ? k->stall.seconds : 0);
			k->stall.step = step;
		}
		if (step == k->gen.start_step + QUIET_STEPS)
			log_restored(k);
		if (k->stall.seconds > 0 && step == k->stall.step + QUIET_STEPS) {
			log_stall(k);
			k->stall.seconds = 0;
		}
		ptc_update_begin(k->client);
		usleep((useconds_t)k->options->sleep_us);
		together_end(t, (uint32_t)(step - k->gen.start_step) + 1, k->gen.world);
	}
	together_close(t);
}

static void run(struct rank *k)
{
	char path[4096];
	double cpu;
	int rc;

	build(k);
	snprintf(path, sizeof path, "%s/g%" PRIu64 "-l%" PRIu64 "-r%u.jsonl", k->options->log, k->gen.generation,
		 k->gen.incarnation, k->gen.rank);
	k->log = fopen(path, "a");
	if (!k->log)
		die("%s: cannot be written", path);
	setvbuf(k->log, NULL, _IOLBF, 0);
	for (size_t i = 0; k->gen.has_state && i < k->nparts; i++)
		memset(k->parts[i].data, 0, k->parts[i].bytes); /* what is right must come from ptcd */
	cpu = cpu_now();
	rc = ptc_restore(k->client);
	k->restore_cpu = cpu_now() - cpu;
	if (rc < 0) {
		fprintf(stderr, "ptc-bench-rank: %s\n", ptc_error_text(k->client));
	} else {
		k->restored = rc;
		if (ptc_start_step(k->client, &k->gen.start_step))
			die("%s", ptc_error_text(k->client));
		if (k->options->spin)
			spin(k);
		else
			train(k);
	}
	fclose(k->log);
	tear_down(k);
}

static int64_t number(const char *s)
{
	char *end;
	long long v = strtoll(s, &end, 10);

	if (*end || v < 0)
		die("\"%s\" is not a number", s);
	return v;
}

int main(int argc, char **argv)
{
	struct options o = { .sleep_us = 2000 };
	struct rank k = { .options = &o, .gen = { .size = sizeof k.gen } };
	int rc;

	for (int i = 1; i < argc; i += 2) {
		const struct {
			const char *name;
			int64_t *to;
		} known[] = { { "--hidden", &o.hidden },  { "--layers", &o.layers }, { "--rows", &o.rows },
			      { "--sleep", &o.sleep_us }, { "--spin", &o.spin },     { "--huge", &o.huge } };
		size_t n = 0;

		if (i + 1 == argc)
			die("%s needs a value", argv[i]);
		if (!strcmp(argv[i], "--log")) {
			o.log = argv[i + 1];
			continue;
		}
		while (n < sizeof known / sizeof known[0] && strcmp(known[n].name, argv[i]) != 0)
			n++;
		if (n == sizeof known / sizeof known[0])
			die("unknown option %s", argv[i]);
		*known[n].to = number(argv[i + 1]);
	}
	if (!o.hidden || !o.layers || !o.rows || !o.log)
		die("--hidden, --layers, --rows and --log are needed");
	if (ptc_open(NULL, &k.client))
		die("%s", ptc_error_text(NULL));
	while ((rc = ptc_next(k.client, &k.gen)) == 1)
		run(&k);
	if (rc < 0)
		die("%s", ptc_error_text(k.client));
	ptc_close(k.client);
	return 0;
}
