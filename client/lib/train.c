/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: boundaries, updates, stops, steps and reports of a training loop. Happy path: a boundary publishes its step
 * in the shared page and reads the stop there: no system call, no lock. When the rank has come to the stop, it says so
 * and waits for GO or ENDED. With staging memory (copy: fast) it copies the declared memory first. Failure modes: the
 * program refuses the stop (the switch fails, and training goes on); steps are out of order (INVALID, nothing
 * published); the client has ended (`fatal`).
 *
 * A promise (ptc_survive): a boundary copies a few pieces of declared memory, and the update compares them as it
 * begins. If one has changed, or the program says that its own checks have failed, the promise is broken until
 * ptc_next; ptcd is told why in the shared page, and training goes on. */
#include "client/lib/internal.h"
#include "client/lib/copy/past_caches.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- copying into staging memory ---------------------------------------------- */

/* What ptcd has offered on this connection becomes ours. Our thread has mapped it, and by now most likely touched it.
 */
static void adopt_staging_locked(ptc_client *c)
{
	if (!c->offered.map)
		return;
	ptc_client_staging_done(&c->staging);
	c->staging = c->offered;
	c->offered = (struct staging){ 0 };
}

static uint8_t *staged_at(const struct staging *s, uint64_t low, uint64_t high)
{
	size_t a = 0, b = s->nspans;

	while (a < b) {
		size_t mid = a + (b - a) / 2;
		const struct ptc_local_span *p = &s->spans[mid];

		if (low < p->address)
			b = mid;
		else if (low >= p->address + p->bytes)
			a = mid + 1;
		else
			return high <= p->address + p->bytes ? s->map + p->offset + (low - p->address) : NULL;
	}
	return NULL;
}

static const uint8_t *memory(uint64_t address)
{
	return (const uint8_t *)(uintptr_t)address;
}

/* Rows of the longest run that is contiguous in memory. */
static void copy_box(const struct tensor *t, const struct ptc_local_box *b, uint8_t *to)
{
	int64_t index[PTC_DIMS_MAX] = { 0 };
	uint64_t run = t->element_bytes;
	uint32_t d, outer = t->ndim;

	while (outer > 0 && (b->extent[outer - 1] == 1 || (uint64_t)b->stride[outer - 1] == run)) {
		run *= (uint64_t)b->extent[outer - 1];
		outer--;
	}
	for (;;) {
		uint64_t at = 0;

		for (d = 0; d < outer; d++)
			at += (uint64_t)(index[d] * b->stride[d]);
		ptc_past_caches_copy(to + at, memory(b->address + at), run);
		for (d = outer; d-- > 0;) {
			if (++index[d] < b->extent[d])
				break;
			index[d] = 0;
		}
		if (d == UINT32_MAX)
			return;
	}
}

/* The caller's thread is stopped here, so tensors do not change; our own thread only reads them. Where another rank was
 * faster, the stop moves on: then nobody wants what is at this step, and whoever waits at the next stop would wait for
 * this copy. */
static bool stage(ptc_client *c, uint64_t step)
{
	uint32_t free_word = PTC_LOCAL_STAGE_FREE;
	uint64_t low, high;

	/* ptcd may still read what it was given at the last stop. */
	while (!atomic_compare_exchange_strong(&c->page->staging, &free_word, PTC_LOCAL_STAGE_FILLING)) {
		free_word = PTC_LOCAL_STAGE_FREE;
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	}
	for (size_t i = 0; i < c->ntensors; i++) {
		const struct tensor *t = &c->tensors[i];

		for (uint32_t j = 0; j < t->nboxes; j++) {
			const struct device_memory *on_device;
			uint8_t *to;

			ptc_local_box_span(t->ndim, t->element_bytes, &t->boxes[j], &low, &high);
			to = staged_at(&c->staging, low, high);
			if (!to || atomic_load(&c->page->stop) > step) {
				atomic_store(&c->page->staging, PTC_LOCAL_STAGE_FREE);
				return false;
			}
			on_device = ptc_device_at(&c->devices, low);
			if (on_device && ptc_device_read(on_device, to, low, high - low) != 0) {
				atomic_store(&c->page->staging, PTC_LOCAL_STAGE_FREE);
				return false;
			}
			if (!on_device)
				copy_box(t, &t->boxes[j], to);
		}
	}
	ptc_past_caches_end();
	atomic_store(&c->page->staging, PTC_LOCAL_STAGE_FREE);
	return true;
}

/* ---- marks of the device --------------------------------------------------------- */

static void marks_end(ptc_client *c)
{
	c->marks.on = false;
	atomic_store(&c->page->marks, PTC_LOCAL_MARKS_UNPROVEN);
}

int ptc_stream(ptc_client *c, void *stream)
{
	char why[256];
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	pthread_mutex_lock(&c->lock);
	rc = ptc_client_fatal_locked(c);
	if (!rc && !c->running && c->phase != PHASE_BUILDING)
		rc = ptc_client_fail(c, PTC_R_INVALID, "ptc_stream: only while this process has a generation");
	pthread_mutex_unlock(&c->lock);
	if (rc || (c->marks.on && c->marks.stream == stream))
		return rc ? rc : 1;
	if (atomic_load(&c->page->marks) != PTC_LOCAL_MARKS_NONE) {
		marks_end(c); /* marks of two streams come in any order */
		return 0;
	}
	rc = ptc_device_marks_begin(&c->marks, stream, c->page, PTC_LOCAL_PAGE, &c->page->device, why, sizeof why);
	atomic_store(&c->page->marks, rc ? PTC_LOCAL_MARKS_PROVEN : PTC_LOCAL_MARKS_NONE);
	if (!rc)
		(void)ptc_client_fail(c, PTC_R_SYSTEM, "ptc_stream: %s", why);
	return rc;
}

/* 0: the device will write it, or nobody relies on that any more. An update that goes into a graph has its mark there;
 * a boundary in one would say the same step at each launch. */
static int mark(ptc_client *c, uint64_t step, bool whole)
{
	char why[256];
	int rc = ptc_device_mark(&c->marks, ptc_local_mark(step, whole), why, sizeof why);

	if (rc == 0 && !whole)
		rc = ptc_device_mark_in_graph(&c->marks, c->marks.stream, why, sizeof why);
	if (rc == 1)
		return 0;
	marks_end(c);
	return rc ? ptc_client_fail(c, PTC_R_SYSTEM, "step %llu: %s", (unsigned long long)step, why) : 0;
}

int ptc_update_captured(ptc_client *c, void *stream)
{
	char why[256];
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	if (!c->running)
		return ptc_client_fail(c, PTC_R_INVALID,
				       "ptc_update_captured: no generation runs here; ptc_restore comes first");
	if (c->promise.made)
		return ptc_client_fail(
			c, PTC_R_INVALID,
			"ptc_update_captured: after ptc_survive call ptc_update_begin before each launch");
	if (!c->marks.on) { /* nor can they be later: this graph changes the state without one */
		marks_end(c);
		return 0;
	}
	rc = ptc_device_mark_in_graph(&c->marks, stream, why, sizeof why);
	if (rc == 1)
		return 1;
	if (rc == 0)
		return ptc_client_fail(c, PTC_R_INVALID, "ptc_update_captured: %s", why);
	marks_end(c);
	(void)ptc_client_fail(c, PTC_R_SYSTEM, "ptc_update_captured: %s", why);
	return 0;
}

/* ---- stopping ------------------------------------------------------------------ */

static int over_locked(ptc_client *c)
{
	int rc = ptc_client_fatal_locked(c);

	c->running = false;
	return rc ? rc : 1;
}

static bool runs(ptc_client *c)
{
	bool yes;

	pthread_mutex_lock(&c->lock);
	yes = c->phase == PHASE_RUNNING && !c->fatal;
	pthread_mutex_unlock(&c->lock);
	return yes;
}

/* 0: goes on, or finished; 1: the generation has ended. */
static int stop_here(ptc_client *c, uint64_t step, bool finishing)
{
	bool staged = false, refused;
	int rc = 0;

	snprintf(c->why, sizeof c->why, "the program's ptc_on_stop function does not say why");
	c->later = false;
	c->finishing = finishing;
	refused = (c->on_stop && c->on_stop(c->on_stop_arg, step) != 0) ||
		  !ptc_client_settle(c, step, c->why, sizeof c->why);
	if (refused && finishing && runs(c))
		return ptc_client_fail(c, PTC_R_REFUSED, "step %llu: the state cannot be taken: %s",
				       (unsigned long long)step, c->why);

	pthread_mutex_lock(&c->lock);
	adopt_staging_locked(c);
	if (c->phase == PHASE_RUNNING && !refused && c->staging.map && c->staging.link == c->link) {
		pthread_mutex_unlock(&c->lock);
		staged = stage(c, finishing ? PTC_LOCAL_NO_STOP : step);
		pthread_mutex_lock(&c->lock);
		/* A new ptcd, met meanwhile, has none of it. */
		staged = staged && c->staging.link == c->link;
	}
	if (c->phase == PHASE_RUNNING) {
		c->stop_step = step;
		c->stop_finished = finishing;
		c->stop_staged = staged;
		c->stop_later = refused && c->later;
		snprintf(c->stop_refused, sizeof c->stop_refused, "%s", refused ? c->why : "");
		c->sent.stopped = false;
		c->phase = PHASE_STOPPED;
		ptc_client_wake_locked(c);
	}
	while (c->phase == PHASE_STOPPED && !c->fatal)
		pthread_cond_wait(&c->changed, &c->lock);
	if (c->finished)
		c->running = false;
	else if (c->phase != PHASE_RUNNING || c->fatal)
		rc = over_locked(c);
	pthread_mutex_unlock(&c->lock);
	return rc;
}

static int wrong_step(ptc_client *c, const char *call, uint64_t step)
{
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): ptc_client_enter refuses NULL */
	if (!c->running)
		return ptc_client_fail(c, PTC_R_INVALID, "%s: no generation runs here; ptc_restore comes first", call);
	return ptc_client_fail(c, PTC_R_INVALID, "%s: step %llu, but the next one is %llu", call,
			       (unsigned long long)step, (unsigned long long)c->next_step);
}

int ptc_on_stop(ptc_client *c, int (*fn)(void *arg, uint64_t step), void *arg)
{
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	if (!c->running)
		return ptc_client_fail(c, PTC_R_INVALID,
				       "ptc_on_stop: no generation runs here; ptc_restore comes first");
	c->on_stop = fn;
	c->on_stop_arg = arg;
	return 0;
}

static int stop_why(ptc_client *c, const char *call, const char *why, bool later)
{
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	if (!why || !*why)
		return ptc_client_fail(c, PTC_R_INVALID, "%s: why is NULL or empty", call);
	snprintf(c->why, sizeof c->why, "%s", why);
	c->later = later;
	return 0;
}

int ptc_stop_refuse(ptc_client *c, const char *why)
{
	return stop_why(c, "ptc_stop_refuse", why, false);
}

int ptc_stop_later(ptc_client *c, const char *why)
{
	return stop_why(c, "ptc_stop_later", why, true);
}

int ptc_stop_holds(ptc_client *c)
{
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	if (!c->running)
		return ptc_client_fail(c, PTC_R_INVALID, "ptc_stop_holds: no generation runs here");
	return c->finishing || atomic_load(&c->page->stop) < c->next_step;
}

/* ---- steps -------------------------------------------------------------------------- */

int ptc_boundary(ptc_client *c, uint64_t step)
{
	int rc = 0;

	if (__builtin_expect(!c || !c->running || step != c->next_step || step > PTC_LOCAL_STEP_MAX, 0))
		return wrong_step(c, "ptc_boundary", step);
	if (__builtin_expect(ptc_client_forked(c), 0))
		return ptc_client_enter(c);
	if (__builtin_expect(c->marks.on, 0)) { /* a mark that fails publishes nothing */
		rc = mark(c, step, true);
		if (rc)
			return rc;
	}
	if (c->promise.made) /* no update has begun since the last one */
		ptc_promise_compare(&c->promise, c->page, c->next_step);
	c->next_step = step + 1;
	c->stepped = true;
	if (c->promise.made && (c->promise.said_at != c->promise.set_at || !atomic_load(&c->page->survives)))
		ptc_client_publish(c, step);
	if (__builtin_expect(!ptc_local_boundary(c->page, step), 0))
		rc = stop_here(c, step, false);
	if (c->promise.made && rc == 0)
		ptc_samples_take(&c->promise.samples);
	return rc;
}

/* ptcd sets `hold` for a while only; and should it be gone for good, the rank goes on. */
static void held(ptc_client *c)
{
	int64_t waited_ms = 0;

	while (!ptc_local_update_begin(c->page, c->next_step - 1)) {
		ptc_client_nap(&waited_ms);
		if (waited_ms > CLIENT_HELD_MAX_MS)
			atomic_exchange(&c->page->hold, 0);
	}
}

void ptc_update_begin(ptc_client *c)
{
	char why[256];

	if (!c || !c->running || ptc_client_forked(c))
		return;
	if (!c->stepped) { /* the program makes its graphs before its first step */
		if (c->marks.on && ptc_device_mark_in_graph(&c->marks, c->marks.stream, why, sizeof why) < 0)
			marks_end(c);
		return;
	}
	if (c->promise.made)
		ptc_promise_compare(&c->promise, c->page, c->next_step);
	if (__builtin_expect(!ptc_local_update_begin(c->page, c->next_step - 1), 0))
		held(c);
	if (c->marks.on)
		(void)mark(c, c->next_step - 1,
			   false); /* one that fails is no mark: what is wrong is told at the next stop */
}

/* ---- a promise, made ------------------------------------------------------------------------ */

/* What lies on devices is left out: it would be read by the stream whose work changes it, and waited for. Where memory
 * is short, nothing is looked at. */
static void find_memory(ptc_client *c)
{
	struct samples *s = &c->promise.samples;
	const struct ptc_local_generation *g = &c->generation;
	uint64_t low, high;
	bool ok = true;

	if (s->nboxes)
		return;
	for (size_t i = 0; i < c->ntensors && ok; i++) {
		const struct tensor *t = &c->tensors[i];

		for (uint32_t j = 0; j < t->nboxes && ok; j++) {
			ptc_local_box_span(t->ndim, t->element_bytes, &t->boxes[j], &low, &high);
			if (!ptc_device_at(&c->devices, low))
				ok = ptc_samples_add(s, t->name, t->field, t->ndim, t->element_bytes, &t->boxes[j]);
		}
	}
	if (!ok)
		ptc_samples_done(s);
	ptc_samples_begin(s, g->incarnation << 32 ^ g->generation << 16 ^ g->rank);
}

static int enter_running(ptc_client *c, const char *call)
{
	int rc = ptc_client_enter(c);

	if (!rc && !c->running)
		rc = ptc_client_fail(c, PTC_R_INVALID, "%s: no generation runs here; ptc_restore comes first", call);
	return rc;
}

int ptc_survive(ptc_client *c, int yes)
{
	int rc = enter_running(c, "ptc_survive");

	if (rc)
		return rc;
	if (yes && c->promise.broken)
		return ptc_client_fail(c, PTC_R_REFUSED, "ptc_survive: the promise is broken until ptc_next: %s",
				       c->promise.why);
	if (!yes) {
		ptc_promise_unpublish(&c->promise, c->page);
		c->promise.samples.ntaken = 0;
	} else if (ptc_client_keep(c)) {
		pthread_mutex_lock(&c->lock);
		ptc_client_wake_locked(c);
		pthread_mutex_unlock(&c->lock);
	}
	if (yes)
		find_memory(c);
	c->promise.made = yes != 0;
	return 0;
}

int ptc_survive_checked(ptc_client *c)
{
	int rc = enter_running(c, "ptc_survive_checked");

	if (!rc)
		atomic_store(&c->page->checked, c->next_step + 1);
	return rc;
}

const char *ptc_survive_broken(ptc_client *c, const char *why)
{
	if (enter_running(c, "ptc_survive_broken"))
		return NULL;
	if (why)
		ptc_promise_break(&c->promise, c->page, *why ? why : "the program does not say why");
	return c->promise.broken ? c->promise.why : NULL;
}

/* ---- the end, and reports ------------------------------------------------------------ */

int ptc_finish(ptc_client *c, uint64_t step)
{
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	if (!c->running || step > PTC_LOCAL_STEP_MAX ||
	    (step != c->next_step && !(c->stepped && step + 1 == c->next_step)))
		return wrong_step(c, "ptc_finish", step);
	rc = c->marks.on ? mark(c, step, true) : 0;
	if (rc)
		return rc;
	c->next_step = step + 1;
	c->stepped = true;
	ptc_local_boundary(c->page, step);
	return stop_here(c, step, true);
}

int ptc_report(ptc_client *c, const char *name, double value)
{
	int rc = ptc_client_enter(c);
	struct ptc_local_page *p;
	uint64_t bits;
	uint32_t n, i;

	if (rc)
		return rc;
	if (!name || !*name || strlen(name) >= PTC_LOCAL_REPORT_NAME || ptc_local_short_error(name))
		return ptc_client_fail(c, PTC_R_INVALID, "ptc_report: a name of 1 to %d bytes",
				       PTC_LOCAL_REPORT_NAME - 1);
	p = c->page;
	n = atomic_load_explicit(&p->nreports, memory_order_relaxed);
	for (i = 0; i < n && strcmp(p->reports[i].name, name) != 0; i++)
		;
	if (i == PTC_LOCAL_REPORTS)
		return ptc_client_fail(c, PTC_R_LIMIT, "ptc_report \"%s\": more than %d names", name,
				       PTC_LOCAL_REPORTS);
	if (i == n)
		snprintf(p->reports[i].name, sizeof p->reports[i].name, "%s", name);
	memcpy(&bits, &value, sizeof bits);
	atomic_store_explicit(&p->reports[i].bits, bits, memory_order_relaxed);
	if (i == n)
		atomic_store_explicit(&p->nreports, n + 1, memory_order_release);
	return 0;
}
