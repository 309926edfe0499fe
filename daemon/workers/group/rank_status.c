/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the states of ranks here, for other daemons (`ptcctl status`). Happy path: rows are made under the lock from
 * what is known, and written by the table that reads them. Names of reports come from shared memory that the rank
 * writes: they are copied and bounded. Failure modes: out of memory. */
#include "daemon/workers/group/internal.h"
#include "daemon/workers/group/rank_status.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "formats/json.h"
#include "formats/names.h"
#include "formats/ranks/rank_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const state_names[] = {
	[PTC_SLOT_SPAWNED] = "spawned",   [PTC_SLOT_WAITING] = "waiting", [PTC_SLOT_BUILDING] = "building",
	[PTC_SLOT_DECLARED] = "declared", [PTC_SLOT_RUNNING] = "running", [PTC_SLOT_STOPPED] = "stopped",
	[PTC_SLOT_ENDING] = "ending",     [PTC_SLOT_EXITED] = "exited",
};

/* A row of the answer, and the texts that it points to. */
struct said {
	struct ptc_rank_row row;
	struct ptc_rank_report reports[PTC_LOCAL_REPORTS];
	char names[PTC_LOCAL_REPORTS][PTC_LOCAL_REPORT_NAME], log[320], whys[3][320];
};

/* Copies a text that may be cut in the middle of a character, or comes from the rank. JSON takes UTF-8 only. */
static const char *utf8(char *to, size_t size, const char *from)
{
	snprintf(to, size, "%.*s", (int)size - 1, from);
	for (char *c = ptc_name_is_utf8(to) ? to + strlen(to) : to; *c; c++)
		if ((unsigned char)*c >= 0x80)
			*c = '?';
	return to;
}

/* *list NULL: out of memory. */
static void put(json_t **list, const struct ptc_rank_row *row)
{
	if (json_array_append_new(*list, ptc_members_to_json(&ptc_rank_row_answer, row)) == 0)
		return;
	json_decref(*list);
	*list = NULL;
}

static void say_reports(struct said *s, struct ptc_local_page *page)
{
	const uint32_t n = atomic_load_explicit(&page->nreports, memory_order_acquire);

	for (uint32_t i = 0; i < PTC_MIN(n, (uint32_t)PTC_LOCAL_REPORTS); i++) {
		const uint64_t bits = atomic_load_explicit(&page->reports[i].bits, memory_order_relaxed);
		struct ptc_rank_report *r = &s->reports[s->row.nreports];

		r->name = utf8(s->names[i], sizeof s->names[i], page->reports[i].name);
		memcpy(&r->value, &bits, sizeof r->value);
		s->row.nreports += *r->name != '\0';
	}
	s->row.reports = s->reports;
}

/* Who copies what it has declared on devices, and why if that is not ptc-gpu. */
static void say_device(struct said *s, const struct group *g, const struct declared *d,
		       const struct ptc_local_page *page)
{
	static const char *const paths[] = {
		[DEVICE_UNTRIED] = "untried", [DEVICE_MAPPED] = "ptc-gpu", [DEVICE_BY_RANK] = "rank"
	};
	const uint32_t marks = page ? atomic_load(&page->marks) : PTC_LOCAL_MARKS_NONE;
	struct ptc_rank_memory *m = &s->row.memory;

	m->copied_by = paths[d->path];
	m->marks = marks == PTC_LOCAL_MARKS_PROVEN ? "proven" : marks ? "unproven" : "none";
	m->has_step = page && ptc_local_device_step(page, &m->step);
	m->whole = m->has_step && (atomic_load(&page->device) & 1);
	if (d->path == DEVICE_BY_RANK)
		m->why = utf8(s->whys[0], sizeof s->whys[0], d->device_why);
	if (g->async.known)
		m->copy = g->async.done ? "async" : "lean";
	if (g->async.known && !g->async.done)
		m->copy_why = utf8(s->whys[1], sizeof s->whys[1], g->async.why);
}

/* The rank writes it: no text but one line, and it may change while we read. */
static const char *broken_promise(struct said *s, const struct ptc_local_page *page)
{
	char why[PTC_LOCAL_BROKEN_WHY + 1] = "", text[sizeof s->whys[2]];

	memcpy(why, page->broken_why, PTC_LOCAL_BROKEN_WHY);
	for (char *c = why; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = ' ';
	snprintf(text, sizeof text, "its promise is broken: %s", why);
	return utf8(s->whys[2], sizeof s->whys[2], text);
}

/* Whether its memory could be taken were a node lost; and why not. Nothing before it trains: that may still change. */
static void say_survives(struct said *s, const struct worker *k)
{
	if (!k->page || !k->declared || (k->phase != WORKER_RUNNING && k->phase != WORKER_STOPPED))
		return;
	s->row.says_survives = true;
	s->row.survives_broken = atomic_load(&k->page->broken);
	s->row.survives_not = s->row.survives_broken ? broken_promise(s, k->page) : ptc_worker_never_held(k);
	s->row.survives = !s->row.survives_not;
	s->row.has_sampled = ptc_local_of_step(&k->page->sampled, &s->row.sampled);
	s->row.has_checked = ptc_local_of_step(&k->page->checked, &s->row.checked);
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

/* Of a slot that has a process, or had one. */
static void say_process(struct said *s, struct ptc_workers *w, const struct group *g, size_t i)
{
	const struct worker *k = g->slots[i].worker;
	struct ptc_rank_row *r = &s->row;
	pid_t copier;

	r->pid = k->process.pid;
	r->program_pid = k->pid;
	r->has_step = k->page && ptc_local_step(k->page, &r->step);
	r->has_whole = r->has_step;
	r->whole = r->has_step && ptc_local_all_whole(k->page);
	r->step_s = k->step_seconds > 0 ? k->step_seconds : 0;
	r->median_step_s = median_step(k);
	r->stalled_s = ptc_worker_stalled_ns(w, k, ptc_sys_now_ns());
	r->has_stalled = r->stalled_s != 0;
	r->stalled_s /= 1000000000;
	r->hangs_s = ptc_copiers_hung_ns(&w->copiers, g->job->uuid, k->pid, &copier);
	r->has_hangs = r->hangs_s != 0;
	r->hangs_s /= 1000000000;
	r->on_device = !k->ended;
	r->device = g->slots[i].rank.device;
	if (k->declared && k->declared->ndevices)
		say_device(s, g, k->declared, k->page);
	say_survives(s, k);
	if (k->page)
		say_reports(s, k->page);
	if (!k->ended && r->pid > 0)
		r->memory_peak = ptc_process_memory_peak(k->pid > 0 ? k->pid : k->process.pid, k->process.cgroup);
	r->cgroup = k->process.cgroup;
	snprintf(s->log, sizeof s->log, "%s/log", k->process.dir);
	r->log = s->log;
	r->world = k->label.incarnation ? k->label.world : 0;
	r->since_ms = (uint64_t)k->label.since_ms;
}

static void put_slot(json_t **list, struct ptc_workers *w, const struct group *g, size_t i)
{
	struct said s = { .row = { .rank = g->slots[i].rank.rank,
				   .generation = g->desc.key.generation,
				   .incarnation = g->desc.key.incarnation,
				   .slot = true,
				   .says_device = true,
				   .has_start = true,
				   .start_step = g->start_step,
				   .cgroup = "" } };

	snprintf(s.row.state, sizeof s.row.state, "%s", state_names[ptc_group_slot_state(g, i)]);
	if (g->slots[i].worker)
		say_process(&s, w, g, i);
	put(list, &s.row);
}

/* Of an incarnation that has ended, or of none yet: its log is here. */
static void put_seatless(json_t **list, const struct ptc_process_label *l, const struct worker *lives)
{
	struct ptc_rank_row row = { .rank = l->rank,
				    .generation = l->generation,
				    .incarnation = l->incarnation,
				    .says_device = true,
				    .on_device = lives && lives->ran && lives->device != UINT32_MAX,
				    .device = lives ? lives->device : 0,
				    .world = l->incarnation ? l->world : 0,
				    .since_ms = (uint64_t)l->since_ms };

	snprintf(row.state, sizeof row.state, "%s", state_names[lives ? PTC_SLOT_WAITING : PTC_SLOT_EXITED]);
	put(list, &row);
}

/* Without a rank: no caller takes it for one. */
static void put_standby(json_t **list, const struct worker *k)
{
	struct ptc_rank_row row = { .rank = UINT32_MAX, .slot = true, .pid = k->process.pid, .says_device = true };

	if (!k->standby || k->ended || k->exit_wanted)
		return;
	snprintf(row.state, sizeof row.state, "%s", k->phase == WORKER_WAITING ? "standby" : "standby starts");
	put(list, &row);
}

static void put_past(json_t **list, const struct worker *k)
{
	if (!k->group && k->label.incarnation)
		put_seatless(list, &k->label, k->ended ? NULL : k);
	for (unsigned i = 0; i < k->nbefore; i++)
		put_seatless(list, &k->before[i], NULL);
}

int ptc_workers_json(struct ptc_workers *w, const char *uuid, char **ret_json, struct ptc_error *err)
{
	json_t *list = json_array();
	struct job *job;
	char *text;

	pthread_mutex_lock(&w->lock);
	job = ptc_workers_job_locked(w, uuid);
	for (struct group *g = job ? job->groups : NULL; g; g = g->next)
		for (size_t i = 0; i < g->desc.nranks; i++)
			put_slot(&list, w, g, i);
	for (const struct worker *k = job ? job->workers : NULL; k; k = k->next) {
		put_past(&list, k);
		put_standby(&list, k);
	}
	pthread_mutex_unlock(&w->lock);
	text = list ? ptc_json_text(list) : NULL;
	json_decref(list);
	if (!text)
		return ptc_nomem(err);
	*ret_json = text;
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
