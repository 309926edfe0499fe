/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake of boundary and stop, run by two threads as fast as they can: a rank that passes boundaries, and a ptcd
 * that arms stops at and around the step the rank is at. Each arm must end with the rank held exactly where it was told
 * to be. A rank that is not held there has trained past a stop everybody else waits at: the arm is lost.
 *
 *   test_litmus [ARMS [plain|load]]
 *
 * - plain: the step is published by a plain store, which is wrong. The run ends with the first lost arm, so it shows
 *   that this test finds lost arms. Both threads need a CPU of their own for that.
 * - load: two more threads for each CPU compete for it, so that both threads are interrupted anywhere.
 *
 * Prints the seed, which PTC_TEST_SEED sets. */
#include "daemon/workers/group/internal.h"

#include "base/check.h"
#include "base/sys/sys.h"
#include "base/test_seed.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARMS      100000
#define ARMS_MORE 300000  /* with PTC_TEST_LONG */
#define ARMS_ALL  1000000 /* with PTC_TEST_CAMPAIGN */
#define SPINS     200
#define LOST_NS   INT64_C(5000000000)
#define LOADS_MAX 64
#define PASS_MORE 3 /* boundaries beyond a stop that prove an arm lost at once */

static struct ptc_local_page page;
static bool plain;

static struct {
	_Alignas(64) _Atomic uint64_t stopped; /* step + 1 at which the rank waits; 0: it does not */
	_Alignas(64) _Atomic uint64_t go;      /* step + 1 that may be left */
	_Alignas(64) atomic_bool quit;
} x;

static void breathe(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#else
	atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void relax(int *spins)
{
	if (++*spins < SPINS)
		breathe();
	else
		sched_yield();
}

static bool boundary(uint64_t step)
{
	if (!plain)
		return ptc_local_boundary(&page, step);
	atomic_store_explicit(&page.state, ((step + 1) << 1) | 1, memory_order_release);
	return atomic_load_explicit(&page.stop, memory_order_acquire) > step;
}

/* As libptc: at a stop it says so, and waits to be told to go on. */
static void *rank(void *arg)
{
	(void)arg;
	for (uint64_t step = 0; !atomic_load_explicit(&x.quit, memory_order_relaxed); step++) {
		int spins = 0;

		if (boundary(step))
			continue;
		atomic_store(&x.stopped, step + 1);
		while (atomic_load(&x.go) != step + 1 && !atomic_load(&x.quit))
			relax(&spins);
	}
	return NULL;
}

/* What ptcd does when STOPPED arrives: a stop that has been replaced does not hold. */
static void serve(struct worker *k)
{
	uint64_t stopped = atomic_load(&x.stopped);

	if (!stopped)
		return;
	k->phase = WORKER_STOPPED;
	k->stop_step = stopped - 1;
	if (atomic_load(&page.stop) <= k->stop_step)
		return;
	k->phase = WORKER_RUNNING;
	atomic_store(&x.stopped, 0);
	atomic_store(&x.go, stopped);
}

/* The rank is held at `stop`. */
static bool held_at(struct worker *k, uint64_t stop)
{
	int64_t until = ptc_sys_now_ns() + LOST_NS;
	uint64_t step = 0;
	int spins = 0;

	for (;;) {
		serve(k);
		if (k->phase == WORKER_STOPPED)
			return k->stop_step == stop;
		if (ptc_local_step(&page, &step) && step > stop + PASS_MORE)
			return false;
		relax(&spins);
		if (spins % 1024 == 0 && ptc_sys_now_ns() > until)
			return false;
	}
}

static uint64_t next_random(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

static void *spin(void *arg)
{
	(void)arg;
	while (!atomic_load_explicit(&x.quit, memory_order_relaxed))
		breathe();
	return NULL;
}

/* Both rounds, at a step near the rank's. Returns whether it was held where it had to be. */
static bool arm_once(struct worker *k, uint64_t *seed, uint64_t *ret_late)
{
	bool published = false;
	uint64_t step = 0, stop;

	ptc_local_step(&page, &step);
	stop = step + next_random(seed) % 4;
	for (uint64_t i = next_random(seed) % 64; i > 0; i--)
		breathe();
	if (ptc_worker_arm(k, stop, &published, &step)) {
		++*ret_late;
		stop = step + 1;
		serve(k);
		if (ptc_worker_arm(k, stop, &published, &step))
			return false; /* round 2 may not fail */
	}
	return held_at(k, stop);
}

int main(int argc, char **argv)
{
	uint64_t seed = ptc_test_seed(), late = 0, lost = 0;
	long arms = argc > 1 ? strtol(argv[1], NULL, 10) : (long)ptc_test_size(ARMS, ARMS_MORE, ARMS_ALL);
	struct worker k = { .page = &page, .phase = WORKER_RUNNING };
	bool load = argc > 2 && strcmp(argv[2], "load") == 0;
	long nloads = load ? PTC_MIN(2 * sysconf(_SC_NPROCESSORS_ONLN), LOADS_MAX) : 0;
	pthread_t thread, loads[LOADS_MAX];

	plain = argc > 2 && strcmp(argv[2], "plain") == 0;
	seed |= 1;
	atomic_store(&page.stop, PTC_LOCAL_NO_STOP);
	ptc_require(pthread_create(&thread, NULL, rank, NULL) == 0);
	for (long i = 0; i < nloads; i++)
		ptc_require(pthread_create(&loads[i], NULL, spin, NULL) == 0);
	for (long i = 0; i < arms && !(plain && lost); i++) {
		lost += !arm_once(&k, &seed, &late);
		atomic_exchange(&page.stop, PTC_LOCAL_NO_STOP); /* release */
		serve(&k);
	}
	atomic_store(&x.quit, true);
	pthread_join(thread, NULL);
	for (long i = 0; i < nloads; i++)
		pthread_join(loads[i], NULL);
	printf("%ld arms, %llu of them in two rounds, %llu lost\n", arms, (unsigned long long)late,
	       (unsigned long long)lost);
	return lost > 0;
}
