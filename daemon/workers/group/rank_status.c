/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the states of the ranks here, for a person (`ptcctl status`). Happy path: JSON built under the lock from what
 * is known. Names of reports come from shared memory that the rank writes: they are copied, bounded and escaped.
 * Failure modes: out of memory. */
#include "daemon/workers/group/internal.h"
#include "daemon/workers/group/rank_status.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const state_names[] = {
	[PTC_SLOT_SPAWNED] = "spawned",   [PTC_SLOT_WAITING] = "waiting", [PTC_SLOT_BUILDING] = "building",
	[PTC_SLOT_DECLARED] = "declared", [PTC_SLOT_RUNNING] = "running", [PTC_SLOT_STOPPED] = "stopped",
	[PTC_SLOT_ENDING] = "ending",     [PTC_SLOT_EXITED] = "exited",
};

static void put_string(struct ptc_buf *b, const char *s)
{
	ptc_buf_puts(b, "\"");
	for (const unsigned char *p = (const unsigned char *)s; *p; p++) {
		if (*p == '"' || *p == '\\')
			ptc_buf_printf(b, "\\%c", *p);
		else if (*p < 0x20 || *p >= 0x7f)
			ptc_buf_printf(b, "\\u%04x", *p);
		else
			ptc_buf_append(b, p, 1);
	}
	ptc_buf_puts(b, "\"");
}

static void put_reports(struct ptc_buf *b, struct ptc_local_page *page)
{
	uint32_t n = atomic_load_explicit(&page->nreports, memory_order_acquire);
	bool first = true;

	for (uint32_t i = 0; i < PTC_MIN(n, (uint32_t)PTC_LOCAL_REPORTS); i++) {
		uint64_t bits = atomic_load_explicit(&page->reports[i].bits, memory_order_relaxed);
		char name[PTC_LOCAL_REPORT_NAME];
		double value;

		memcpy(name, page->reports[i].name, sizeof name);
		name[sizeof name - 1] = '\0';
		memcpy(&value, &bits, sizeof value);
		if (!*name)
			continue;
		ptc_buf_puts(b, first ? "" : ", ");
		put_string(b, name);
		if (isfinite(value))
			ptc_buf_printf(b, ": %.17g", value);
		else
			ptc_buf_puts(b, ": null"); /* JSON has no other word for it */
		first = false;
	}
}

static void put_label(struct ptc_buf *b, const struct ptc_process_label *l)
{
	if (l->incarnation)
		ptc_buf_printf(b, ", \"world\": %u, \"since_ms\": %lld", l->world, (long long)l->since_ms);
}

/* Who copies what it has declared on devices, and why if that is not ptc-gpu. */
static void put_device(struct ptc_buf *b, const struct group *g, const struct declared *d,
		       const struct ptc_local_page *page)
{
	static const char *const paths[] = {
		[DEVICE_UNTRIED] = "untried", [DEVICE_MAPPED] = "ptc-gpu", [DEVICE_BY_RANK] = "rank"
	};
	uint32_t marks = page ? atomic_load(&page->marks) : PTC_LOCAL_MARKS_NONE;
	uint64_t step;

	ptc_buf_printf(b, "\"device_memory\": {\"copied_by\": \"%s\", \"marks\": \"%s\"", paths[d->path],
		       marks == PTC_LOCAL_MARKS_PROVEN ? "proven"
		       : marks                         ? "unproven"
						       : "none");
	if (page && ptc_local_device_step(page, &step))
		ptc_buf_printf(b, ", \"device_step\": %llu, \"device_whole\": %s", (unsigned long long)step,
			       atomic_load(&page->device) & 1 ? "true" : "false");
	if (d->path == DEVICE_BY_RANK) {
		ptc_buf_puts(b, ", \"why\": ");
		put_string(b, d->device_why);
	}
	if (g->async.known)
		ptc_buf_printf(b, ", \"copy\": \"%s\"", g->async.done ? "async" : "lean");
	if (g->async.known && !g->async.done) {
		ptc_buf_puts(b, ", \"copy_why\": ");
		put_string(b, g->async.why);
	}
	ptc_buf_puts(b, "}, ");
}

/* Whether its memory could be taken were a node lost; and why not. Nothing before it trains: that may still change. */
static void put_survives(struct ptc_buf *b, const struct worker *k)
{
	const char *why;

	if (!k->page || !k->declared || (k->phase != WORKER_RUNNING && k->phase != WORKER_STOPPED))
		return;
	why = ptc_worker_never_held(k);
	ptc_buf_printf(b, "\"survives\": %s, ", why ? "false" : "true");
	if (!why)
		return;
	ptc_buf_puts(b, "\"survives_not\": ");
	put_string(b, why);
	ptc_buf_puts(b, ", ");
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* One step of many that takes far longer, as one with an evaluation, does not change it. */
static double median_step(const struct worker *k)
{
	double steps[WORKERS_STEPS];
	unsigned n = PTC_MIN(k->nsteps, (unsigned)WORKERS_STEPS);

	memcpy(steps, k->last_steps, sizeof steps);
	qsort(steps, n, sizeof *steps, by_size);
	return n ? steps[(n - 1) / 2] : 0;
}

static void put_slot(struct ptc_buf *b, struct ptc_workers *w, const struct group *g, size_t i)
{
	const struct worker *k = g->slots[i].worker;
	enum ptc_slot_state state = ptc_group_slot_state(g, i);
	int64_t stalled, hung;
	pid_t copier;
	uint64_t step;

	ptc_buf_printf(b,
		       "{\"rank\": %u, \"generation\": %llu, \"incarnation\": %llu, \"state\": \"%s\", \"pid\": %d, ",
		       g->slots[i].rank.rank, (unsigned long long)g->desc.key.generation,
		       (unsigned long long)g->desc.key.incarnation, state_names[state], k ? (int)k->process.pid : 0);
	if (k && k->page && ptc_local_step(k->page, &step))
		ptc_buf_printf(b, "\"step\": %llu, \"whole\": %s, ", (unsigned long long)step,
			       ptc_local_all_whole(k->page) ? "true" : "false");
	else
		ptc_buf_puts(b, "\"step\": null, ");
	if (k && k->step_seconds > 0)
		ptc_buf_printf(b, "\"step_seconds\": %.6g, ", k->step_seconds);
	else
		ptc_buf_puts(b, "\"step_seconds\": null, ");
	ptc_buf_printf(b, "\"start_step\": %llu, ", (unsigned long long)g->start_step);
	if (k && k->nsteps)
		ptc_buf_printf(b, "\"median_step_seconds\": %.6g, ", median_step(k));
	if (k && (stalled = ptc_worker_stalled_ns(w, k, ptc_sys_now_ns())))
		ptc_buf_printf(b, "\"stalled_s\": %lld, ", (long long)(stalled / 1000000000));
	if (k && (hung = ptc_copiers_hung_ns(&w->copiers, g->job->uuid, k->pid, &copier)))
		ptc_buf_printf(b, "\"hangs_s\": %lld, ", (long long)(hung / 1000000000));
	if (k && !k->ended)
		ptc_buf_printf(b, "\"on_device\": %u, ", g->slots[i].rank.device);
	else
		ptc_buf_puts(b, "\"on_device\": null, ");
	if (k && k->declared && k->declared->ndevices)
		put_device(b, g, k->declared, k->page);
	if (k)
		put_survives(b, k);
	ptc_buf_puts(b, "\"reports\": {");
	if (k && k->page)
		put_reports(b, k->page);
	ptc_buf_puts(b, "}, \"cgroup\": ");
	put_string(b, k ? k->process.cgroup : "");
	ptc_buf_puts(b, ", \"log\": ");
	if (k) {
		char path[320];

		snprintf(path, sizeof path, "%s/log", k->process.dir);
		put_string(b, path);
	} else {
		ptc_buf_puts(b, "null");
	}
	if (k)
		put_label(b, &k->label);
	ptc_buf_puts(b, "}");
}

/* Of an incarnation that has ended, or of none yet: its log is here. */
static void put_seatless(struct ptc_buf *b, const struct ptc_process_label *l, const struct worker *lives)
{
	enum ptc_slot_state state = lives ? PTC_SLOT_WAITING : PTC_SLOT_EXITED;

	ptc_buf_printf(b, "{\"rank\": %u, \"generation\": %llu, \"incarnation\": %llu, \"state\": \"%s\"", l->rank,
		       (unsigned long long)l->generation, (unsigned long long)l->incarnation, state_names[state]);
	if (lives && lives->ran && lives->device != UINT32_MAX)
		ptc_buf_printf(b, ", \"on_device\": %u", lives->device);
	else
		ptc_buf_puts(b, ", \"on_device\": null");
	put_label(b, l);
	ptc_buf_puts(b, "}");
}

/* Without a rank: no caller takes it for one. */
static void put_standby(struct ptc_buf *b, const struct worker *k, bool *first)
{
	if (!k->standby || k->ended || k->exit_wanted)
		return;
	ptc_buf_printf(b,
		       "%s{\"rank\": %u, \"generation\": 0, \"incarnation\": 0, \"state\": \"%s\", \"pid\": %d, "
		       "\"step\": null, \"on_device\": null}",
		       *first ? "" : ", ", UINT32_MAX, k->phase == WORKER_WAITING ? "standby" : "standby starts",
		       (int)k->process.pid);
	*first = false;
}

static void put_past(struct ptc_buf *b, const struct worker *k, bool *first)
{
	if (!k->group && k->label.incarnation) {
		ptc_buf_puts(b, *first ? "" : ", ");
		put_seatless(b, &k->label, k->ended ? NULL : k);
		*first = false;
	}
	for (unsigned i = 0; i < k->nbefore; i++) {
		ptc_buf_puts(b, *first ? "" : ", ");
		put_seatless(b, &k->before[i], NULL);
		*first = false;
	}
}

int ptc_workers_json(struct ptc_workers *w, const char *uuid, char **ret_json, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	struct job *job;
	bool first = true;

	ptc_buf_puts(&b, "[");
	pthread_mutex_lock(&w->lock);
	job = ptc_workers_job_locked(w, uuid);
	for (struct group *g = job ? job->groups : NULL; g; g = g->next)
		for (size_t i = 0; i < g->desc.nranks; i++) {
			ptc_buf_puts(&b, first ? "" : ", ");
			put_slot(&b, w, g, i);
			first = false;
		}
	for (const struct worker *k = job ? job->workers : NULL; k; k = k->next) {
		put_past(&b, k, &first);
		put_standby(&b, k, &first);
	}
	pthread_mutex_unlock(&w->lock);
	ptc_buf_puts(&b, "]");
	if (ptc_buf_failed(&b)) {
		ptc_buf_done(&b);
		return ptc_nomem(err);
	}
	*ret_json = ptc_buf_steal(&b, NULL);
	return 0;
}

uint64_t ptc_workers_pinned(const struct ptc_workers *w)
{
	return ptc_device_copier_pinned(w->gpu);
}

struct ptc_workers_sum ptc_workers_sum(struct ptc_workers *w, const char *uuid)
{
	struct ptc_workers_sum sum = { 0 };
	struct job *job;
	uint64_t step;

	pthread_mutex_lock(&w->lock);
	job = ptc_workers_job_locked(w, uuid);
	for (struct group *g = job ? job->groups : NULL; g; g = g->next)
		for (size_t i = 0; i < g->desc.nranks; i++) {
			const struct worker *k = g->slots[i].worker;

			sum.ranks += k && k->process.pid > 0;
			sum.step_seconds = k ? PTC_MAX(sum.step_seconds, k->step_seconds) : sum.step_seconds;
			if (!k || !k->page || !ptc_local_step(k->page, &step))
				continue;
			sum.step = sum.stepped ? PTC_MIN(sum.step, step) : step;
			sum.stepped = true;
		}
	pthread_mutex_unlock(&w->lock);
	return sum;
}

void ptc_workers_each_rank(struct ptc_workers *w, void (*fn)(void *arg, const struct ptc_rank_given *r), void *arg)
{
	pthread_mutex_lock(&w->lock);
	for (const struct job *job = w->jobs; job; job = job->next)
		for (const struct group *g = job->groups; g; g = g->next)
			for (size_t i = 0; i < g->desc.nranks; i++) {
				const struct worker *k = g->slots[i].worker;

				if (k && !k->ended)
					fn(arg, &(struct ptc_rank_given){ .device = g->ranks[i].device,
									  .job = g->desc.job,
									  .uid = job->uid,
									  .rank = g->ranks[i].rank,
									  .pid = k->process.pid });
			}
	pthread_mutex_unlock(&w->lock);
}

/* The i-th of a process's incarnations, the last first, and where it ends in its log. NULL: it is not known to have had
 * so many. */
static const struct ptc_process_label *label_at(const struct worker *k, unsigned i, uint64_t *ret_end)
{
	*ret_end = i == 0 ? UINT64_MAX : i == 1 ? k->label.begin : 0;
	if (i > k->nbefore || !k->label.incarnation)
		return NULL;
	if (i > 1)
		*ret_end = k->before[k->nbefore - i + 1].begin;
	return i ? &k->before[k->nbefore - i] : &k->label;
}

struct found_log {
	const struct worker *k;
	const struct ptc_process_label *label;
	uint64_t end;
};

/* Its newest process in the incarnation; 0: in any. */
static struct found_log find_log(const struct job *job, uint32_t rank, uint64_t incarnation)
{
	struct found_log found = { 0 };

	for (const struct worker *k = job->workers; k; k = k->next) {
		const struct ptc_process_label *l;
		uint64_t end;

		for (unsigned i = 0; (l = label_at(k, i, &end)); i++) {
			if (l->rank != rank || (incarnation && l->incarnation != incarnation))
				continue;
			if (!found.k || l->since_ms > found.label->since_ms ||
			    (l->since_ms == found.label->since_ms && k->number > found.k->number))
				found = (struct found_log){ k, l, end };
		}
	}
	return found;
}

int ptc_workers_log(struct ptc_workers *w, const char *uuid, uint32_t rank, uint64_t incarnation,
		    struct ptc_worker_log *ret_log, struct ptc_error *err)
{
	struct ptc_worker_log log = { .rank = rank };
	struct found_log f = { 0 };
	struct job *job;
	int n = 0;

	pthread_mutex_lock(&w->lock);
	job = ptc_workers_job_locked(w, uuid);
	if (job)
		f = find_log(job, rank, incarnation);
	if (f.k) {
		n = snprintf(log.path, sizeof log.path, "%s/log", f.k->process.dir);
		log.begin = f.label->begin;
		log.end = f.end;
		log.incarnation = f.label->incarnation;
		log.over = f.k->ended || f.end != UINT64_MAX;
		log.number = f.k->number;
	}
	pthread_mutex_unlock(&w->lock);
	if (!log.number)
		return ptc_error_set(err, PTC_ENOTFOUND, "rank %u of job %s has no log here", rank, uuid);
	if ((size_t)n >= sizeof log.path)
		return ptc_error_set(err, PTC_ELIMIT, "the log's path is too long");
	*ret_log = log;
	return 0;
}

void ptc_workers_log_look(struct ptc_workers *w, const char *uuid, struct ptc_worker_log *log)
{
	const struct ptc_process_label *l = NULL;
	uint64_t end = UINT64_MAX;
	const struct worker *k;
	unsigned i = 0;

	pthread_mutex_lock(&w->lock);
	k = ptc_worker_find_locked(w, uuid, log->number);
	log->over = !k || k->ended;
	while (k && (l = label_at(k, i, &end)) && l->incarnation != log->incarnation)
		i++;
	if (k && !l) /* so long ago that it is not remembered: what is, has begun after it */
		end = i > 1 ? k->before[0].begin : k->label.begin;
	if (k && (!l || i)) {
		log->end = PTC_MIN(log->end, end);
		log->over = true;
	}
	pthread_mutex_unlock(&w->lock);
}
