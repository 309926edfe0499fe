// SPDX-License-Identifier: Apache-2.0
/* What a person sees of ranks here. Happy path: JSON built under the lock from what is known. Names of reports come from shared
 * memory that the rank writes: they are copied, bounded and escaped. Failure modes: out of memory. */
#include "daemon/workers/internal.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const state_names[] = {
	[PTC_SEAT_SPAWNED] = "spawned",   [PTC_SEAT_WAITING] = "waiting", [PTC_SEAT_BUILDING] = "building",
	[PTC_SEAT_DECLARED] = "declared", [PTC_SEAT_RUNNING] = "running", [PTC_SEAT_STOPPED] = "stopped",
	[PTC_SEAT_ENDING] = "ending",     [PTC_SEAT_EXITED] = "exited",
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
	if (l->launch)
		ptc_buf_printf(b, ", \"world\": %u, \"since_ms\": %lld", l->world, (long long)l->since_ms);
}

static void put_seat(struct ptc_buf *b, const struct group *g, size_t i)
{
	const struct worker *k = g->seats[i].worker;
	enum ptc_seat_state state = ptc_group_seat_state(g, i);
	uint64_t step;

	ptc_buf_printf(b, "{\"rank\": %u, \"generation\": %llu, \"launch\": %llu, \"state\": \"%s\", \"pid\": %d, ",
		       g->seats[i].rank.rank, (unsigned long long)g->desc.key.generation,
		       (unsigned long long)g->desc.key.launch, state_names[state], k ? (int)k->process.pid : 0);
	if (k && k->page && ptc_local_step(k->page, &step))
		ptc_buf_printf(b, "\"step\": %llu, ", (unsigned long long)step);
	else
		ptc_buf_puts(b, "\"step\": null, ");
	if (k && k->step_seconds > 0)
		ptc_buf_printf(b, "\"step_seconds\": %.6g, ", k->step_seconds);
	else
		ptc_buf_puts(b, "\"step_seconds\": null, ");
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

/* Of a launch that has ended, or of none yet: its log is here. */
static void put_seatless(struct ptc_buf *b, const struct worker *k)
{
	ptc_buf_printf(b, "{\"rank\": %u, \"generation\": %llu, \"launch\": %llu, \"state\": \"%s\"", k->label.rank,
		       (unsigned long long)k->label.generation, (unsigned long long)k->label.launch,
		       state_names[k->ended ? PTC_SEAT_EXITED : PTC_SEAT_WAITING]);
	put_label(b, &k->label);
	ptc_buf_puts(b, "}");
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
			put_seat(&b, g, i);
			first = false;
		}
	for (const struct worker *k = job ? job->workers : NULL; k; k = k->next) {
		if (k->group || !k->label.launch)
			continue;
		ptc_buf_puts(&b, first ? "" : ", ");
		put_seatless(&b, k);
		first = false;
	}
	pthread_mutex_unlock(&w->lock);
	ptc_buf_puts(&b, "]");
	if (ptc_buf_failed(&b)) {
		ptc_buf_done(&b);
		return ptc_grow_failed(err);
	}
	*ret_json = ptc_buf_steal(&b, NULL);
	return 0;
}

/* Its newest process in the launch; 0: in any. */
static const struct worker *find_log(const struct job *job, uint32_t rank, uint64_t launch)
{
	const struct worker *found = NULL;

	for (const struct worker *k = job->workers; k; k = k->next) {
		const struct ptc_process_label *l = &k->label;

		if (!l->launch || l->rank != rank || (launch && l->launch != launch))
			continue;
		if (!found || l->since_ms > found->label.since_ms ||
		    (l->since_ms == found->label.since_ms && k->number > found->number))
			found = k;
	}
	return found;
}

int ptc_workers_log(struct ptc_workers *w, const char *uuid, uint32_t rank, uint64_t launch,
		    struct ptc_worker_log *ret_log, struct ptc_error *err)
{
	struct ptc_worker_log log = { .rank = rank, .end = UINT64_MAX };
	const struct worker *k = NULL;
	struct job *job;
	int n = 0;

	pthread_mutex_lock(&w->lock);
	job = ptc_workers_job_locked(w, uuid);
	if (job)
		k = find_log(job, rank, launch);
	if (k) {
		n = snprintf(log.path, sizeof log.path, "%s/log", k->process.dir);
		log.begin = k->label.begin;
		log.launch = k->label.launch;
		log.over = k->ended;
		log.number = k->number;
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
	const struct worker *k;

	pthread_mutex_lock(&w->lock);
	k = ptc_worker_find_locked(w, uuid, log->number);
	log->over = !k || k->ended;
	if (k && k->label.launch != log->launch) {
		log->end = PTC_MIN(log->end, k->label.begin);
		log->over = true;
	}
	pthread_mutex_unlock(&w->lock);
}
