/* SPDX-License-Identifier: Apache-2.0 */
/* Random copies of several threads by few copiers, while another thread makes calls of the driver fail, kills ptc-gpu,
 * and unmaps. What is asserted: a copy that is answered with success has all of its bytes, and no other ones;
 * of one that is answered with failure nothing is under way any more. PTC_SEED is the first seed, PTC_ROUNDS how many.
 */
#include "daemon/gpu/client/test_gpu_world.h"

#include "base/log.h"

#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { WALKERS = 5, STEPS = 20, PARTS = 3, ENDS_MAX = 3 };
#define ROOM    ((uint64_t)5 << 20) /* of each walker, on both sides */
#define PART    (ROOM / PARTS)
#define STEP    ((uint64_t)1 << 20) /* of page-locked memory */
#define BEFORE  0xee
#define FAILED  0x11
#define RETRIES 60

struct random_world {
	struct world *w;
	struct test_rank *r;
	uint64_t address, locked, seed;
	struct ptc_gpu_export e;
	pthread_mutex_t lock;
	unsigned epoch; /* how often both have been mapped */
	struct ptc_gpu_ref m, host;
	int directions; /* 0, 1: one of them; 2: both */
	_Atomic bool over;
	_Atomic unsigned good, bad;
	unsigned ends; /* of processes: so many are allowed within a minute */
};

struct walker {
	struct random_world *x;
	uint64_t at, seed;
	unsigned char *device, *expected; /* what is there; what has to be in host memory */
	const char *wrong;
	pthread_t thread;
};

static uint64_t below(uint64_t *seed, uint64_t n)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (*seed >> 33) % n;
}

static void nap(uint64_t us)
{
	nanosleep(&(struct timespec){ .tv_nsec = (long)us * 1000 }, NULL);
}

/* Within a part's room on both sides, which begins at `at`: bytes in one piece, long rows, or short ones. */
static struct ptc_gpu_part random_part(uint64_t *seed, uint64_t at)
{
	uint64_t width = 1 + below(seed, PART), gap = below(seed, 300), device, other;
	struct ptc_gpu_part p;

	if (below(seed, 3) == 0)
		return world_flat(at + below(seed, PART - width + 1), at + below(seed, PART - width + 1), width);
	width = 1 + below(seed, below(seed, 2) ? 30000 : 200);
	p = (struct ptc_gpu_part){ .width = width, .height = 1, .depth = 1 };
	p.device_row = width + gap;
	p.other_row = width + below(seed, 300);
	p.height = 1 + below(seed, PART / (width + 300));
	p.device_slice = p.device_row * p.height;
	p.other_slice = p.other_row * p.height;
	device = PART - p.device_slice;
	other = PART - p.other_slice;
	p.device_at = at + below(seed, device + 1);
	p.other_at = at + below(seed, other + 1);
	return p;
}

static void move(const struct ptc_gpu_part *p, bool out, unsigned char *device, unsigned char *host)
{
	for (uint64_t y = 0; y < p->height; y++) {
		unsigned char *d = device + p->device_at + y * p->device_row,
			      *h = host + p->other_at + y * p->other_row;

		memcpy(out ? h : d, out ? d : h, p->width);
	}
}

/* ---- what is mapped ---- */

static void map_again(struct random_world *x, unsigned epoch)
{
	const char *uuid = x->locked ? x->e.uuid : NULL;
	struct ptc_gpu_outcome o;
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = 1;

	pthread_mutex_lock(&x->lock);
	for (int i = 0; i < RETRIES && rc && x->epoch == epoch; i++) {
		uint64_t locked = 0;

		if (i)
			nap(2000);
		rc = ptc_gpu_client_unmap_host(x->w->c, x->host, x->locked, &o, NULL);
		if (rc == PTC_ESTATE) /* copies of others use it */
			continue;
		rc = ptc_gpu_client_map_host(x->w->c, x->w->chunks_fd, x->w->chunk_bytes,
					     x->locked == x->w->chunk_bytes ? uuid : NULL, &x->host, &o, &err);
		while (rc == 0 && uuid && x->locked < x->w->chunk_bytes && locked < x->locked)
			rc = ptc_gpu_client_lock(x->w->c, x->host, uuid, STEP, &locked, &o, &err);
		if (rc == 0)
			rc = world_bind(x->w, x->r, x->address, &x->e, &x->m);
	}
	x->epoch += rc == 0;
	pthread_mutex_unlock(&x->lock);
}

static int copy(struct walker *k, enum ptc_gpu_direction direction, const struct ptc_gpu_part *parts, uint32_t n)
{
	struct random_world *x = k->x;
	struct ptc_gpu_part there[PARTS];
	struct ptc_gpu_ref m, host;
	struct ptc_gpu_outcome o;
	struct ptc_error err = PTC_ERROR_INIT;
	unsigned epoch;
	int rc;

	for (uint32_t i = 0; i < n; i++) {
		there[i] = parts[i];
		there[i].device_at += k->at;
		there[i].other_at += k->at;
	}
	pthread_mutex_lock(&x->lock);
	epoch = x->epoch;
	m = x->m;
	host = x->host;
	pthread_mutex_unlock(&x->lock);
	rc = ptc_gpu_client_copy(x->w->c, direction, m, host, there, n, NULL, &o, &err);
	if (rc == 0)
		x->good++;
	else
		x->bad++;
	if (rc && !err.text[0])
		k->wrong = "a failure without a word on why";
	if (rc == PTC_ESTATE || rc == PTC_ENOTFOUND || rc == PTC_EIO)
		map_again(x, epoch);
	return rc;
}

/* ---- copies ---- */

static bool all(const unsigned char *p, unsigned char value)
{
	return p[0] == value && memcmp(p, p + 1, ROOM - 1) == 0;
}

static void step_out(struct walker *k, const struct ptc_gpu_part *parts, uint32_t n)
{
	unsigned char *host = k->x->w->chunks + k->at;
	int rc;

	memset(host, BEFORE, ROOM);
	rc = copy(k, PTC_GPU_OUT, parts, n);
	if (rc) {
		memset(host, FAILED, ROOM);
		nap(below(&k->seed, 2000));
		if (!all(host, FAILED))
			k->wrong = "bytes of a copy out that had failed came later";
		return;
	}
	memset(k->expected, BEFORE, ROOM);
	for (uint32_t i = 0; i < n; i++)
		move(&parts[i], true, k->device, k->expected);
	if (memcmp(host, k->expected, ROOM) != 0)
		k->wrong = "a copy out that succeeded has not its bytes";
}

/* A failed one may have written bytes, and is followed by one of everything. */
static void step_in(struct walker *k, const struct ptc_gpu_part *parts, uint32_t n)
{
	unsigned char *host = k->x->w->chunks + k->at;
	struct ptc_gpu_part whole = world_flat(0, 0, ROOM);
	int rc = 1;

	for (int i = 0; i < RETRIES && rc; i++) {
		uint64_t salt = below(&k->seed, 1000);

		for (uint64_t b = 0; b < ROOM; b++)
			host[b] = test_gpu_byte(salt, b);
		rc = copy(k, PTC_GPU_IN, parts, n);
		if (rc == 0)
			break;
		parts = &whole;
		n = 1;
	}
	if (rc)
		k->wrong = "a copy in fails for ever";
	for (uint32_t i = 0; i < n && !rc; i++)
		move(&parts[i], false, k->device, host);
}

static void *walk(void *arg)
{
	struct walker *k = arg;
	struct ptc_gpu_part parts[PARTS], whole = world_flat(0, 0, ROOM);

	for (int i = 0; i < STEPS && !k->wrong; i++) {
		uint32_t n = 1 + (uint32_t)below(&k->seed, PARTS);
		int direction = k->x->directions == 2 ? (int)below(&k->seed, 2) : k->x->directions;

		for (uint32_t p = 0; p < n; p++)
			parts[p] = random_part(&k->seed, p * PART);
		(direction == PTC_GPU_OUT ? step_out : step_in)(k, parts, n);
	}
	for (int i = 0; i < RETRIES && !k->wrong; i++) {
		memset(k->x->w->chunks + k->at, BEFORE, ROOM);
		if (copy(k, PTC_GPU_OUT, &whole, 1) != 0)
			continue;
		if (memcmp(k->x->w->chunks + k->at, k->device, ROOM) != 0)
			k->wrong = "the device does not have what was copied in";
		return NULL;
	}
	k->wrong = k->wrong ? k->wrong : "a copy out fails for ever";
	return NULL;
}

/* ---- what disturbs ---- */

/* The next call of a function. After a failure to wait for a stream ptc-gpu ends, too. */
static void arm(struct random_world *x, uint64_t *seed)
{
	static const char *const functions[] = { "cuEventSynchronize", "cuMemcpyDtoHAsync",  "cuMemcpyHtoDAsync",
						 "cuMemcpy3DAsync",    "cuEventRecord",      "cuStreamWaitEvent",
						 "cuLaunchKernel",     "cuStreamSynchronize" };
	uint64_t which = below(seed, sizeof functions / sizeof *functions);
	bool sticky = below(seed, 6) == 0, ends = sticky || which == 7;
	char rule[128];

	if (world_has(x->w, "faults") || (ends && x->ends == ENDS_MAX))
		return;
	x->ends += ends;
	x->w->may_leave |= ends;
	snprintf(rule, sizeof rule, "%s 0 %s once\n", functions[which], sticky ? "719 sticky" : "1");
	world_faults(x->w, rule);
}

static void disturb(struct random_world *x, uint64_t *seed)
{
	struct ptc_gpu_part p = world_flat(below(seed, ROOM), 0, ROOM);
	struct ptc_gpu_outcome o;
	struct ptc_gpu_stats s;
	struct ptc_gpu_ref m;
	uint64_t value;
	uint32_t missing;

	switch (below(seed, 11)) {
	case 0:
		if (x->ends == ENDS_MAX || ptc_gpu_client_stats(x->w->c, &s, &o, NULL) || s.pid <= 0)
			return;
		x->ends++;
		x->w->may_leave = true;
		kill(s.pid, SIGKILL);
		return;
	case 1:
		(void)ptc_gpu_client_unmap_host(x->w->c, x->host, x->locked, &o, NULL);
		return;
	case 2:
		(void)ptc_gpu_client_close(x->w->c, x->m, &o, NULL);
		return;
	case 3:
		(void)ptc_gpu_client_digest(x->w->c, x->m, &p, 1, &value, &o, NULL);
		return;
	case 4:
		if (ptc_gpu_client_bind(x->w->c, &x->e, &m, &missing, &o, NULL) == 0)
			(void)ptc_gpu_client_close(x->w->c, m, &o, NULL);
		return;
	default:
		arm(x, seed);
	}
}

static void *trouble(void *arg)
{
	struct random_world *x = arg;
	uint64_t seed = x->seed;

	while (!x->over) {
		pthread_mutex_lock(&x->lock);
		disturb(x, &seed);
		pthread_mutex_unlock(&x->lock);
		nap(200 + below(&seed, 6000));
	}
	return NULL;
}

/* ---- a round ---- */

static void begin(struct random_world *x, uint64_t *seed)
{
	struct ptc_gpu_client_config config = { .pinned_max = 64 << 20, .hang_ms = 60000 };
	uint64_t bytes = WALKERS * ROOM;

	config.copiers = 1 + (unsigned)below(seed, 2);
	*x = (struct random_world){ .w = world_begin(&config), .lock = PTHREAD_MUTEX_INITIALIZER, .seed = *seed };
	if (below(seed, 2))
		world_kernels("off");
	x->directions = (int)below(seed, 3);
	x->r = world_rank(x->w, 0);
	x->address = rank_alloc(x->r, RANK_PLAIN, bytes, 0, 1);
	x->e = rank_export(x->r, x->address, bytes);
	world_chunks(x->w, bytes, false);
	x->host = x->w->host;
	switch (below(seed, 4)) {
	case 0:
		x->locked = bytes;
		break;
	case 1:
		x->locked = bytes / 2 / STEP * STEP;
		break;
	default:
		break;
	}
	map_again(x, 0);
	assert_int_equal(x->epoch, 1);
}

static void round_of(uint64_t seed)
{
	struct walker walkers[WALKERS];
	const char *wrong = NULL;
	struct random_world x;
	pthread_t t;

	begin(&x, &seed);
	for (unsigned i = 0; i < WALKERS; i++) {
		walkers[i] = (struct walker){ .x = &x, .at = i * ROOM, .seed = seed + i };
		walkers[i].device = malloc(ROOM);
		walkers[i].expected = malloc(ROOM);
		assert_true(walkers[i].device && walkers[i].expected);
		for (uint64_t b = 0; b < ROOM; b++)
			walkers[i].device[b] = test_gpu_byte(1, walkers[i].at + b);
	}
	for (unsigned i = 0; i < WALKERS; i++)
		assert_int_equal(pthread_create(&walkers[i].thread, NULL, walk, &walkers[i]), 0);
	assert_int_equal(pthread_create(&t, NULL, trouble, &x), 0);
	for (unsigned i = 0; i < WALKERS; i++) {
		pthread_join(walkers[i].thread, NULL);
		wrong = wrong ? wrong : walkers[i].wrong;
		free(walkers[i].device);
		free(walkers[i].expected);
	}
	x.over = true;
	pthread_join(t, NULL);
	print_message("%u copies succeeded, %u failed\n", x.good, x.bad);
	if (wrong)
		fail_msg("%s", wrong);
	world_end(x.w);
}

void test_random(void **state)
{
	const char *first = getenv("PTC_SEED"), *rounds = getenv("PTC_ROUNDS");
	uint64_t seed = first ? strtoull(first, NULL, 10) : (uint64_t)time(NULL) * 1000;
	int n = rounds ? atoi(rounds) : 8;

	(void)state;
	ptc_log_level_set(PTC_LOG_ERROR);
	for (int i = 0; i < n; i++) {
		print_message("PTC_SEED=%" PRIu64 " PTC_ROUNDS=1\n", seed + (uint64_t)i);
		round_of(seed + (uint64_t)i);
	}
	ptc_log_level_set(PTC_LOG_INFO);
}
