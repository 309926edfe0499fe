/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: a run appears with a new incarnation; after its first steps windows of steps are timed, each from one
 * change of the step to another; the median of the last few is the configuration's step time. An event compares the
 * first window of an incarnation with the prediction. Failure: a rank that does not answer is asked again; a result
 * that cannot be written is written with the next window. */
#include "daemon/planning/measuring.h"
#include "daemon/planning/remembered.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/fence.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"
#include "daemon/cluster/job_events.h"
#include "formats/ranks/rank_rows.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define RUNS       128 /* jobs that one daemon measures */
#define NOTES      64
#define NOTE_LOOKS 10  /* by then a job is listed again that was listed last while it was switched */
#define LINKS      256 /* of switches since the last look */
#define CREATED    16  /* jobs made since the last look; of more the planner computes when it is asked */
#define TICK_MS    1000
#define SLOW_NS    INT64_C(10000000000) /* between looks at what is measured */
#define ANSWER_MS  1000
#define WARM_STEPS 3 /* an incarnation's first steps allocate, compile, fill caches */
#define MANY_STEPS 20
#define WINDOW_NS  INT64_C(2000000000) /* of many steps */
#define FEW_STEPS  3
#define LONG_NS    INT64_C(30000000000) /* of few */
#define WINDOWS    5
#define GONE_NS    INT64_C(10000000000) /* devices away for longer have gone: ptcd may have started again */
#define CHANGED    0.05                 /* of a step time: worth another write */
#define SPREAD     3                    /* windows that show how much steps differ */
#define NOISE_MIN  0.03                 /* runs of one configuration differ by as much */

struct note {
	char uuid[PTC_UUID_TEXT];
	uint64_t generation;
	struct ptc_measured_pause pause;
	unsigned looks; /* that did not find its run */
};
struct watched {
	struct ptc_measuring_run run; /* its config is ours */
	bool listed;                  /* in this tick */
	bool wanted;                  /* the planner is asked about the job: it has a model, or a space */
	bool timing;
	uint64_t from_step, seen_step; /* of the window; last seen */
	int64_t from_ns, next_ns;
	double windows[WINDOWS], written_s, peak_bytes, host_bytes;
	size_t nwindows, written_windows;
	uint64_t steps;
	uint32_t devices;                   /* of the cluster, as last noted; 0: not yet */
	int64_t fewer_ns;                   /* since when there are fewer; 0: there are not */
	struct ptc_measured_pause switched; /* the switch that made this generation; zeros: none, or told */
};
struct ptc_measuring {
	struct ptc_measuring_opts opts;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	atomic_bool stop;
	struct note notes[NOTES];
	size_t nnotes;
	struct created {
		char uuid[PTC_UUID_TEXT], spec_hash[PTC_HASH_HEX];
	} created[CREATED]; /* to be prepared */
	size_t ncreated;
	struct ptc_link_use *links; /* of switches, to be compared with what is known */
	size_t nlinks;
	/* the thread's own */
	int64_t changed_ms, looked_ns; /* when links had changed, and when that was asked last */
	bool asked;
	char (*jobs)[PTC_UUID_TEXT]; /* those that exist, for list_jobs */
	size_t njobs;
	struct watched w[RUNS];
	size_t n;
	struct ptc_measuring_run found[RUNS];
	size_t nfound;
	struct ptc_planning_shape shape;
};

/* ---- one look ---- */

/* Nothing where the node does not answer. */
static struct ptc_rank_rows ask_ranks(struct ptc_measuring *m, const struct ptc_measuring_run *r)
{
	Ptc__V1__JobRequest req = PTC__V1__JOB_REQUEST__INIT;
	struct ptc_rank_rows rows = { 0 };
	struct ptc_rpc_channel *channel;
	ProtobufCMessage *reply = NULL;

	if (!r->address[0] || ptc_channels_get(m->opts.channels, r->node, r->address, false, 0, &channel, NULL) != 0)
		return rows;
	req.version = PTC_WIRE_VERSION;
	req.job = (char *)(uintptr_t)r->uuid; /* packing only reads */
	if (ptc_pb_unary(channel, "/ptc.v1.Peer/Ranks", &req.base, ANSWER_MS, NULL, 0, &ptc__v1__document__descriptor,
			 &reply, NULL) == 0)
		(void)ptc_rank_rows_decode(((Ptc__V1__Document *)reply)->json, &rows, NULL);
	ptc_pb_free(reply);
	return rows;
}

/* The least step of the run's ranks there; false: none has one. */
static bool least_step(const struct ptc_rank_rows *rows, const struct ptc_measuring_run *r, uint64_t *ret_step,
		       double *peak, double *host)
{
	bool any = false;

	for (size_t i = 0; i < rows->n; i++) {
		const struct ptc_rank_row *row = &rows->v[i];

		if (row->generation != r->generation || row->incarnation != r->incarnation || !row->has_step)
			continue;
		*ret_step = any ? PTC_MIN(*ret_step, row->step) : row->step;
		any = true;
		*peak = PTC_MAX(*peak, isfinite(row->peak_bytes) ? row->peak_bytes : 0);
		*host = PTC_MAX(*host, (double)row->memory_peak);
	}
	return any;
}

static double median(const double *v, size_t n)
{
	double s[WINDOWS];

	ptc_require(n > 0 && n <= WINDOWS);
	for (size_t i = 0; i < n; i++) {
		size_t at = i;

		for (; at > 0 && s[at - 1] > v[i]; at--)
			s[at] = s[at - 1];
		s[at] = v[i];
	}
	return n % 2 ? s[n / 2] : (s[n / 2 - 1] + s[n / 2]) / 2;
}

/* By the median of what windows are off, as a standard deviation. 0: not known, for what else a machine does may last
 * for a window or two. */
static double noise_of(const double *v, size_t n)
{
	double middle = median(v, n), off[WINDOWS];

	if (n < SPREAD)
		return 0;
	for (size_t i = 0; i < n; i++)
		off[i] = fabs(v[i] / middle - 1);
	return PTC_MIN(1.0, PTC_MAX(NOISE_MIN, 1.4826 * median(off, n)));
}

/* True: a window has closed. A window begins and ends where the step is seen to change, so that it is off by a look. */
static bool saw_step(struct watched *w, uint64_t step, int64_t now_ns)
{
	uint64_t done = step - w->from_step;
	int64_t ns = now_ns - w->from_ns;
	bool moved = step > w->seen_step;

	if (step < w->seen_step || (!w->timing && !w->seen_step)) { /* seen for the first time */
		w->timing = false;
		w->from_step = w->seen_step = step;
		return false;
	}
	w->seen_step = step;
	if (!moved || (!w->timing && done < WARM_STEPS))
		return false;
	if (w->timing && !((done >= MANY_STEPS && ns >= WINDOW_NS) || (done >= FEW_STEPS && ns >= LONG_NS)))
		return false;
	if (w->timing) {
		memmove(&w->windows[1], &w->windows[0], (WINDOWS - 1) * sizeof *w->windows);
		w->windows[0] = (double)ns / 1e9 / (double)done;
		w->nwindows = PTC_MIN(w->nwindows + 1, (size_t)WINDOWS);
		w->steps += done;
	}
	moved = w->timing;
	w->timing = true;
	w->from_step = step;
	w->from_ns = now_ns;
	return moved;
}

/* ---- what follows ---- */

static int write_doc(struct ptc_measuring *m, const struct ptc_measuring_run *r, const struct ptc_measured_doc *d,
		     struct ptc_error *err)
{
	char lock[96], key[PTC_MEASURED_KEY], *json = ptc_measured_encode(d);
	struct ptc_etcd_op op = { .key = key, .value = json };
	bool ok = false;
	int rc;

	if (!json)
		return ptc_nomem(err);
	op.len = strlen(json);
	ptc_planning_measured_key(r->uuid, key);
	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", r->uuid);
	rc = ptc_etcd_txn(ptc_cluster_etcd(m->opts.docs->cluster),
			  &(struct ptc_etcd_compare){ lock, PTC_ETCD_CREATE_REV, ptc_fence_revision(r->fence) }, 1, &op,
			  1, "etcd.measured", &ok, NULL, err);
	ptc_free(json);
	return rc ? rc : ok ? 0 : ptc_error_set(err, PTC_EFENCED, "another daemon controls the job now");
}

/* What would have been said of this configuration before it was measured here. */
static bool predict(struct ptc_measuring *m, const struct watched *w, struct ptc_choice *ret)
{
	const struct ptc_measuring_run *r = &w->run;
	struct ptc_planning_ask ask = {
		.uuid = r->uuid, .spec_hash = r->spec_hash, .now = r->config, .shape = m->shape
	};
	struct ptc_config *config = ptc_calloc(1, sizeof *config);
	struct ptc_job_work *work = NULL;
	const struct ptc_declared *declared;
	const struct ptc_layout *layout;
	void *ref = NULL, *held = NULL;
	bool yes;

	yes = config && ptc_config_parse(r->config, config, NULL) == 0 &&
	      ptc_specs_get(m->opts.docs->specs, r->uuid, r->spec_hash, &ask.desc, &ref, NULL) == 0;
	if (yes && r->layout_hash[0] &&
	    ptc_layouts_get(m->opts.docs->layouts, r->uuid, r->layout_hash, &declared, &layout, &held, NULL) == 0) {
		ask.held = &declared->spec;
		ask.held_id = r->layout_hash;
	}
	yes = yes && ptc_planning_work(m->opts.planning, &ask, &work, NULL) == 0 &&
	      ptc_job_work_predict(work, config, NULL, NULL, ret, NULL) == 0;
	ptc_planning_work_release(work);
	if (held)
		ptc_layouts_release(held);
	ptc_specs_release(ref);
	ptc_free(config);
	return yes;
}

/* "tp=2: a step takes 0.210 s, 0.200 s were predicted (5 % less); the pause was 2.1 s, 3 s ...; a device had ..." */
static void tell(struct ptc_measuring *m, struct watched *w, double step_s, const struct ptc_choice *predicted)
{
	double pause = w->switched.pause_s, was = predicted->est.step_s;
	char text[512];
	size_t at;

	at = (size_t)snprintf(text, sizeof text,
			      "%s: a step takes %.4g s, predicted %.4g s +- %.0f %% (off by %+.0f %%)", w->run.config,
			      step_s, was, 100 * predicted->sd, 100 * (was / step_s - 1));
	if (pause > 0 && at < sizeof text)
		at += (size_t)snprintf(text + at, sizeof text - at, "; the pause took %.3g s", pause);
	if (pause > 0 && w->switched.predicted && at < sizeof text)
		at += (size_t)snprintf(text + at, sizeof text - at, ", predicted %.3g s", w->switched.predicted_s);
	if (at < sizeof text)
		at += (size_t)snprintf(text + at, sizeof text - at, "; memory of a device: predicted %.3g GB",
				       predicted->est.memory_bytes / 1e9);
	if (at < sizeof text && w->peak_bytes > 0)
		snprintf(text + at, sizeof text - at, ", reported %.3g GB", w->peak_bytes / 1e9);
	else if (at < sizeof text)
		snprintf(text + at, sizeof text - at, ", none was reported");
	ptc_event(m->opts.docs->cluster, w->run.uuid, "measured", "%s", text);
}

/* A row of the document; the first of an incarnation is an event, too. */
static void write_step(struct ptc_measuring *m, struct watched *w, double step_s)
{
	struct ptc_measured_row row = {
		.step_s = step_s,
		.noise = noise_of(w->windows, w->nwindows),
		.peak_bytes = w->peak_bytes,
		.host_bytes = w->host_bytes,
		.steps = w->steps,
		.time_ms = ptc_sys_realtime_ms(),
	};
	struct ptc_measured_doc *d = ptc_calloc(1, sizeof *d);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_choice predicted;
	bool known, told = w->written_s > 0;

	if (!d || strlen(w->run.config) >= sizeof row.config)
		goto out;
	known = !told && predict(m, w, &predicted); /* before the row is one of those that calibrate */
	snprintf(row.config, sizeof row.config, "%s", w->run.config);
	ptc_free(ptc_planning_measured(m->opts.planning, w->run.uuid, d));
	ptc_measured_add(d, &row);
	d->devices = PTC_MAX(d->devices, w->devices);
	if (write_doc(m, &w->run, d, &err) != 0) {
		ptc_debug("planning", "job=%s not measured: %s", w->run.uuid, err.text);
		goto out;
	}
	w->written_s = step_s;
	w->written_windows = w->nwindows;
	if (known)
		tell(m, w, step_s, &predicted);
	w->switched = (struct ptc_measured_pause){ 0 };
out:
	ptc_free(d);
}

/* Devices have gone: how often they do says what idle ones are worth. */
static void note_devices(struct ptc_measuring *m, struct watched *w)
{
	struct ptc_measured_doc *d = NULL;
	uint32_t is = m->shape.devices;
	int64_t now = ptc_sys_now_ns();

	if (!w->wanted || !is)
		return;
	if (!w->devices && (d = ptc_calloc(1, sizeof *d))) {
		ptc_free(ptc_planning_measured(m->opts.planning, w->run.uuid, d));
		w->devices = d->devices; /* as it was before this run, which a loss may have begun */
	}
	if (is >= w->devices) {
		w->devices = is;
		w->fewer_ns = 0;
	} else if (!w->fewer_ns) {
		w->fewer_ns = now;
	} else if (now - w->fewer_ns >= GONE_NS && (d || (d = ptc_calloc(1, sizeof *d)))) {
		ptc_free(ptc_planning_measured(m->opts.planning, w->run.uuid, d));
		d->devices = w->devices;
		ptc_measured_devices(d, is, ptc_sys_realtime_ms());
		if (write_doc(m, &w->run, d, NULL) == 0) {
			w->devices = is;
			w->fewer_ns = 0;
		}
	}
	ptc_free(d);
}

static void look(struct ptc_measuring *m, struct watched *w)
{
	int64_t now = ptc_sys_now_ns();
	uint64_t step = 0;
	struct ptc_rank_rows rows;
	double step_s;

	if (!w->wanted || now < w->next_ns)
		return;
	rows = ask_ranks(m, &w->run);
	now = ptc_sys_now_ns();
	w->next_ns = w->written_s > 0 ? now + SLOW_NS : 0;
	if (least_step(&rows, &w->run, &step, &w->peak_bytes, &w->host_bytes) && saw_step(w, step, now)) {
		step_s = median(w->windows, w->nwindows);
		if (!(fabs(step_s / w->written_s - 1) <= CHANGED) || /* also when nothing was written */
		    (w->written_windows < SPREAD && w->nwindows >= SPREAD))
			write_step(m, w, step_s);
	}
	ptc_rank_rows_done(&rows);
}

/* ---- notes of switches ---- */

static struct watched *find(struct ptc_measuring *m, const char *uuid)
{
	for (size_t i = 0; i < m->n; i++)
		if (strcmp(m->w[i].run.uuid, uuid) == 0)
			return &m->w[i];
	return NULL;
}

/* A resize counts as a change; a run's pause is not one. */
static void add_change(struct ptc_measuring *m, struct watched *w, const struct ptc_measured_pause *pause)
{
	struct ptc_measured_change c = { .time_ms = ptc_sys_realtime_ms(),
					 .pause_s = pause->pause_s,
					 .moving_s = pause->moving_s };
	struct ptc_measured_doc *d = ptc_calloc(1, sizeof *d);

	if (d && pause->resize) {
		ptc_free(ptc_planning_measured(m->opts.planning, w->run.uuid, d));
		ptc_measured_change_add(d, &c);
		d->devices = PTC_MAX(d->devices, w->devices);
		write_doc(m, &w->run, d, NULL);
	}
	ptc_free(d);
}

/* Once its run is listed; a note of a generation that is gone is dropped. True: the note is done with. */
static bool take_note(struct ptc_measuring *m, struct note *n)
{
	struct watched *w = find(m, n->uuid);

	if (!w)
		return ++n->looks == NOTE_LOOKS; /* it does not run */
	if (w->run.generation < n->generation)
		return false;
	if (w->wanted && w->run.generation == n->generation) {
		add_change(m, w, &n->pause);
		w->switched = n->pause;
	}
	return true;
}

static void take_notes(struct ptc_measuring *m)
{
	struct note notes[NOTES];
	size_t n, left = 0;

	pthread_mutex_lock(&m->lock);
	n = m->nnotes;
	memcpy(notes, m->notes, n * sizeof *notes);
	m->nnotes = 0;
	pthread_mutex_unlock(&m->lock);
	for (size_t i = 0; i < n; i++)
		if (!take_note(m, &notes[i]))
			notes[left++] = notes[i];
	pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < left; i++)
		if (m->nnotes < NOTES)
			m->notes[m->nnotes++] = notes[i];
	pthread_mutex_unlock(&m->lock);
}

void ptc_measuring_switched(struct ptc_measuring *m, const char *uuid, uint64_t generation,
			    const struct ptc_measured_pause *pause)
{
	struct note n = { .generation = generation, .pause = *pause };

	if (!m)
		return;
	snprintf(n.uuid, sizeof n.uuid, "%s", uuid);
	pthread_mutex_lock(&m->lock);
	if (m->nnotes < NOTES) /* else nobody has looked for a minute: the change is not counted */
		m->notes[m->nnotes++] = n;
	pthread_mutex_unlock(&m->lock);
}

/* ---- jobs that are new ---- */

void ptc_measuring_created(struct ptc_measuring *m, const char *uuid, const char *spec_hash)
{
	if (!m)
		return;
	pthread_mutex_lock(&m->lock);
	if (m->ncreated < CREATED) {
		struct created *c = &m->created[m->ncreated++];

		snprintf(c->uuid, sizeof c->uuid, "%s", uuid);
		snprintf(c->spec_hash, sizeof c->spec_hash, "%s", spec_hash);
	}
	pthread_mutex_unlock(&m->lock);
}

static void prepare(struct ptc_measuring *m)
{
	struct created created[CREATED];
	size_t n;

	pthread_mutex_lock(&m->lock);
	n = m->ncreated;
	memcpy(created, m->created, n * sizeof *created);
	m->ncreated = 0;
	pthread_mutex_unlock(&m->lock);
	for (size_t i = 0; i < n && !atomic_load(&m->stop); i++) {
		const struct ptc_job_desc *desc;
		void *ref;

		if (ptc_specs_get(m->opts.docs->specs, created[i].uuid, created[i].spec_hash, &desc, &ref, NULL) != 0)
			continue;
		ptc_planning_prepare(m->opts.planning, created[i].uuid, created[i].spec_hash, desc, &m->shape,
				     &m->stop);
		ptc_specs_release(ref);
	}
}

/* ---- links ---- */

void ptc_measuring_links(struct ptc_measuring *m, const struct ptc_link_use *uses, size_t n)
{
	if (!m)
		return;
	pthread_mutex_lock(&m->lock);
	if (m->nlinks < LINKS)
		for (size_t i = 0; i < n && PTC_MORE(m->links, m->nlinks); i++)
			m->links[m->nlinks++] = uses[i];
	pthread_mutex_unlock(&m->lock);
}

static void list_jobs(void *arg)
{
	struct ptc_measuring *m = arg;
	struct ptc_cluster *c = m->opts.docs->cluster;

	m->jobs = ptc_calloc(ptc_cluster_njobs(c) + 1, sizeof *m->jobs);
	m->njobs = 0;
	for (size_t i = 0; m->jobs && i < ptc_cluster_njobs(c); i++)
		if (ptc_cluster_job(c, i)->has_record)
			memcpy(m->jobs[m->njobs++], ptc_cluster_job(c, i)->uuid, sizeof m->jobs[0]);
}

/* One line in each job's log, of the first of them. */
static void tell_links(struct ptc_measuring *m, const struct ptc_link_changes *changed)
{
	const struct ptc_link_change *c = changed->v;

	if (ptc_loop_call(m->opts.loop, list_jobs, m) != 0)
		return;
	for (size_t i = 0; i < m->njobs; i++)
		ptc_event(m->opts.docs->cluster, m->jobs[i], "links",
			  "a switch has shown that %zu links have changed: from %s to %s %.3g GB/s, it was %.3g GB/s",
			  changed->n, c->from, c->to, c->is / 1e9, c->was / 1e9);
	ptc_free(m->jobs);
	m->jobs = NULL;
}

static void compare_links(struct ptc_measuring *m)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_link_changes changed = { 0 };
	struct ptc_link_use *links;
	size_t n;

	pthread_mutex_lock(&m->lock);
	links = m->links;
	n = m->nlinks;
	m->links = NULL;
	m->nlinks = 0;
	pthread_mutex_unlock(&m->lock);
	if (!links)
		return;
	if (ptc_planning_links_saw(m->opts.planning, links, n, &changed, &err) != 0)
		ptc_debug("planning", "links are not compared: %s", err.text);
	if (changed.n) {
		tell_links(m, &changed);
		m->looked_ns = 0;
	}
	ptc_free(changed.v);
	ptc_free(links);
}

struct replan {
	struct ptc_measuring *m;
	const char *uuid;
};

static void ask_replan(void *arg)
{
	struct replan *r = arg;

	r->m->opts.replan(r->m->opts.arg, r->uuid);
}

static bool wants_replan(struct ptc_measuring *m, const struct ptc_measuring_run *r)
{
	const struct ptc_job_desc *desc;
	void *ref;
	bool yes;

	if (ptc_specs_get(m->opts.docs->specs, r->uuid, r->spec_hash, &desc, &ref, NULL) != 0)
		return false;
	yes = desc->replan_on_links;
	ptc_specs_release(ref);
	return yes;
}

/* Whichever daemon has seen it: each asks its own jobs. */
static void look_for_changes(struct ptc_measuring *m)
{
	int64_t now = ptc_sys_now_ns(), ms;

	if (!m->n || (m->looked_ns && now - m->looked_ns < SLOW_NS))
		return;
	m->looked_ns = now;
	ms = ptc_planning_links_changed_ms(m->opts.planning);
	if (m->asked && ms > m->changed_ms)
		for (size_t i = 0; i < m->n; i++) {
			struct replan r = { m, m->w[i].run.uuid };

			if (wants_replan(m, &m->w[i].run))
				ptc_loop_call(m->opts.loop, ask_replan, &r);
		}
	m->asked = true;
	m->changed_ms = ms;
}

/* ---- the thread ---- */

static void list_runs(void *arg)
{
	struct ptc_measuring *m = arg;

	m->nfound = m->opts.runs(m->opts.arg, m->found, RUNS);
	ptc_planning_shape_done(&m->shape);
	m->shape = ptc_planning_shape(m->opts.docs->cluster);
}

static bool has_model(struct ptc_measuring *m, const struct ptc_measuring_run *r)
{
	const struct ptc_job_desc *desc;
	void *ref;
	bool yes;

	if (ptc_specs_get(m->opts.docs->specs, r->uuid, r->spec_hash, &desc, &ref, NULL) != 0)
		return false;
	yes = desc->model || desc->space;
	ptc_specs_release(ref);
	return yes;
}

static void watched_done(struct watched *w)
{
	ptc_free(w->run.config);
}

static void watch(struct ptc_measuring *m, struct ptc_measuring_run *r)
{
	struct watched *w = find(m, r->uuid);

	if (w && w->run.incarnation == r->incarnation && w->run.generation == r->generation) {
		ptc_free(w->run.config);
		w->run = *r; /* its fence and address may be others */
		w->listed = true;
		return;
	}
	if (w)
		watched_done(w);
	else if (m->n < RUNS)
		w = &m->w[m->n++];
	if (!w) {
		ptc_free(r->config);
		return;
	}
	*w = (struct watched){ .run = *r, .listed = true, .wanted = has_model(m, r) };
}

static void tick(struct ptc_measuring *m)
{
	size_t kept = 0;

	if (ptc_loop_call(m->opts.loop, list_runs, m) != 0)
		return;
	for (size_t i = 0; i < m->n; i++)
		m->w[i].listed = false;
	for (size_t i = 0; i < m->nfound; i++)
		watch(m, &m->found[i]);
	for (size_t i = 0; i < m->n; i++)
		if (m->w[i].listed)
			m->w[kept++] = m->w[i];
		else
			watched_done(&m->w[i]);
	m->n = kept;
	take_notes(m);
	look_for_changes(m);
	compare_links(m);
	for (size_t i = 0; i < m->n && !atomic_load(&m->stop); i++) {
		note_devices(m, &m->w[i]);
		look(m, &m->w[i]);
	}
	prepare(m);
}

static void *measure(void *arg)
{
	struct ptc_measuring *m = arg;

	pthread_mutex_lock(&m->lock);
	while (!atomic_load(&m->stop)) {
		ptc_cond_wait_ms(&m->wake, &m->lock, TICK_MS);
		if (atomic_load(&m->stop))
			break;
		pthread_mutex_unlock(&m->lock);
		tick(m);
		pthread_mutex_lock(&m->lock);
	}
	pthread_mutex_unlock(&m->lock);
	return NULL;
}

int ptc_measuring_new(const struct ptc_measuring_opts *opts, struct ptc_measuring **ret, struct ptc_error *err)
{
	struct ptc_measuring *m = ptc_calloc(1, sizeof *m);
	int rc;

	if (!m)
		return ptc_nomem(err);
	m->opts = *opts;
	pthread_mutex_init(&m->lock, NULL);
	ptc_cond_init(&m->wake);
	rc = ptc_thread_start(&m->thread, "ptc-measuring", measure, m, err);
	if (rc) {
		pthread_cond_destroy(&m->wake);
		pthread_mutex_destroy(&m->lock);
		ptc_free(m);
		return rc;
	}
	*ret = m;
	return 0;
}

struct ptc_measuring *ptc_measuring_free(struct ptc_measuring *m)
{
	if (!m)
		return NULL;
	pthread_mutex_lock(&m->lock);
	atomic_store(&m->stop, true);
	pthread_cond_signal(&m->wake);
	pthread_mutex_unlock(&m->lock);
	pthread_join(m->thread, NULL);
	for (size_t i = 0; i < m->n; i++)
		watched_done(&m->w[i]);
	ptc_free(m->links);
	ptc_planning_shape_done(&m->shape);
	pthread_cond_destroy(&m->wake);
	pthread_mutex_destroy(&m->lock);
	ptc_free(m);
	return NULL;
}
