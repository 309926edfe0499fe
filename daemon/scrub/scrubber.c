/* SPDX-License-Identifier: Apache-2.0 */
/* The scrubber's thread: the pace at which idle chunks are read (scrub.rate, scrub.pause), and healing. Happy path:
 * the thread waits for as long as the bytes that it has just read may take at the configured rate. If the thread is
 * woken to heal blocks, it heals them. Then it reads on. Failure modes: scrub.h. */
#include "daemon/scrub/scrub.h"

#include "daemon/agent/healing/heal.h"
#include "daemon/store/scrub/store_heal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/number/count.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STEP_BYTES PTC_CHUNK_BYTES /* read in one go: a hundred microseconds of one core */
#define BUSY_MS    200             /* how soon to look again while a switch is under way */
#define IDLE_MS    100             /* ... after a failure, and between rounds at least */
#define RETRY_MS   30000           /* what could not be healed */
#define NICENESS   10

struct ptc_scrubber {
	struct ptc_scrubber_opts o;
	struct ptc_scrub *cursor;
	struct ptc_bad_blocks *bad;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool running, quit, woken;
	struct ptc_scrub_progress progress;
};

static int64_t now_ms(void)
{
	return ptc_sys_now_ns() / 1000000;
}

void ptc_scrubber_wake(struct ptc_scrubber *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->woken = true;
	pthread_cond_signal(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

/* False: to end. *ret_woken: there is something to heal. */
static bool wait_ms(struct ptc_scrubber *s, int64_t ms, bool *ret_woken)
{
	const int64_t until_ns = ptc_sys_now_ns() + ms * 1000000;
	bool go, in_time = true;

	pthread_mutex_lock(&s->lock);
	while (!s->quit && !s->woken && in_time)
		in_time = ptc_cond_wait_until(&s->cond, &s->lock, until_ns);
	*ret_woken = s->woken;
	s->woken = false;
	go = !s->quit;
	pthread_mutex_unlock(&s->lock);
	return go;
}

/* ---- healing ---- */

static void heal_jobs(struct ptc_scrubber *s)
{
	struct ptc_store_damage *v = NULL;
	size_t n = 0;

	if (ptc_store_damaged(s->o.store, NULL, &v, &n, NULL) != 0)
		return;
	for (size_t i = 0; i < n; i++) {
		struct ptc_error why = PTC_ERROR_INIT;
		struct ptc_heal_counts counts;

		if (i && strcmp(v[i].key.uuid, v[i - 1].key.uuid) == 0)
			continue;
		if (ptc_agent_heal(s->o.agent, v[i].key.uuid, &counts, &why) != 0)
			ptc_warn("scrub", "job=%s damaged blocks cannot be healed now: %s", v[i].key.uuid, why.text);
	}
	ptc_free(v);
}

static void heal(struct ptc_scrubber *s)
{
	uint64_t damaged;

	heal_jobs(s);
	ptc_bad_blocks_tell(s->bad, &damaged);
	pthread_mutex_lock(&s->lock);
	s->progress.damaged = damaged;
	pthread_mutex_unlock(&s->lock);
}

/* ---- reading ---- */

/* How long to wait after it. */
static int64_t scrub(struct ptc_scrubber *s)
{
	struct ptc_scrub_progress *p = &s->progress;
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_scrub_step step;
	bool empty;
	int rc;

	pthread_mutex_lock(&s->lock);
	p->paused = ptc_agent_busy(s->o.agent);
	empty = !p->round_bytes;
	pthread_mutex_unlock(&s->lock);
	if (p->paused)
		return BUSY_MS;
	rc = ptc_scrub_step(s->o.store, s->cursor, STEP_BYTES, &step, &why);
	if (rc) {
		ptc_warn("scrub", "reading idle chunks: %s", why.text);
		return IDLE_MS;
	}
	pthread_mutex_lock(&s->lock);
	p->bytes += step.bytes;
	p->round_bytes += step.bytes;
	p->round_left = step.round_left;
	p->found += step.damaged;
	if (step.round && !empty) {
		p->rounds++;
		p->round_ended_ms = ptc_sys_realtime_ms();
	}
	if (step.round)
		p->round_bytes = p->round_left = 0;
	pthread_mutex_unlock(&s->lock);
	if (step.round && p->damaged) /* what is right again is told, the rest is tried again */
		heal(s);
	if (step.round)
		return PTC_MAX((int64_t)s->o.pause_ms, (int64_t)IDLE_MS);
	return (int64_t)PTC_MAX(step.bytes * 1000 / s->o.rate, UINT64_C(1));
}

static void *scrubber_main(void *arg)
{
	struct ptc_scrubber *s = arg;
	int64_t next = 0, retry = now_ms() + RETRY_MS;
	bool woken;

	(void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS);
	heal(s);
	while (wait_ms(s, PTC_MAX(PTC_MIN(next, retry) - now_ms(), INT64_C(0)), &woken)) {
		if (woken || now_ms() >= retry) {
			heal(s);
			retry = now_ms() + RETRY_MS;
		}
		if (now_ms() >= next)
			next = s->o.rate ? now_ms() + scrub(s) : INT64_MAX;
	}
	return NULL;
}

/* ---- life ---- */

void ptc_scrubber_stop(struct ptc_scrubber *s)
{
	if (!s || !s->running)
		return;
	pthread_mutex_lock(&s->lock);
	s->quit = true;
	pthread_cond_signal(&s->cond);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	s->running = false;
}

struct ptc_scrubber *ptc_scrubber_free(struct ptc_scrubber *s)
{
	if (!s)
		return NULL;
	ptc_scrubber_stop(s);
	pthread_cond_destroy(&s->cond);
	pthread_mutex_destroy(&s->lock);
	ptc_scrub_free(s->cursor);
	ptc_bad_blocks_free(s->bad);
	ptc_free(s);
	return NULL;
}

int ptc_scrubber_new(const struct ptc_scrubber_opts *opts, struct ptc_scrubber **ret_scrubber, struct ptc_error *err)
{
	struct ptc_scrubber *s = ptc_calloc(1, sizeof *s);
	int rc;

	if (!s)
		return ptc_nomem(err);
	s->o = *opts;
	s->progress.rate = opts->rate;
	pthread_mutex_init(&s->lock, NULL);
	ptc_cond_init(&s->cond);
	s->cursor = ptc_scrub_new();
	s->bad = ptc_bad_blocks_new(opts->cluster, opts->store, opts->node);
	rc = s->cursor && s->bad ? ptc_thread_start(&s->thread, "ptc-scrub", scrubber_main, s, err)
				 : ptc_error_set(err, PTC_ENOMEM, "no memory for the scrubber");
	s->running = rc == 0;
	if (rc) {
		ptc_scrubber_free(s);
		return rc;
	}
	*ret_scrubber = s;
	return 0;
}

void ptc_scrubber_progress(struct ptc_scrubber *s, struct ptc_scrub_progress *ret)
{
	*ret = (struct ptc_scrub_progress){ .rate = 0 };
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	*ret = s->progress;
	pthread_mutex_unlock(&s->lock);
	ret->healed = ptc_count_get(PTC_COUNT_HEALED_BLOCKS);
}
