/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the processes of a group's ranks, with their environment, and gives them their generation. Happy path: start
 * spawns missing processes and waits until all have asked for a generation. build gives each a slot, writes the
 * group's file, tells the processes, and waits for their declarations. Failure modes: a process that ends meanwhile
 * (ESTATE with rank, status, end of log), a declaration that is refused (ELAYOUT), time (ETIMEOUT naming the ranks
 * that are late). Both may be called again, and go on from where they were. */
#include "daemon/workers/group/internal.h"
#include "daemon/workers/process/priority.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define SPAWN_KILL_MS 5000

int ptc_group_dead_locked(struct ptc_workers *w, struct group *g, struct ptc_error *err)
{
	for (size_t i = 0; i < g->desc.nranks; i++) {
		const struct worker *k = g->slots[i].worker;

		if (k && ptc_worker_gone(k))
			return ptc_group_not_started_locked(w, g, k, g->slots[i].rank.rank, err);
		if (g->slots[i].exited)
			return ptc_error_set(err, PTC_ESTATE, "rank %u has exited", g->slots[i].rank.rank);
	}
	return 0;
}

int ptc_group_wait_connected_locked(struct ptc_workers *w, struct group *g, struct ptc_error *err)
{
	struct ptc_wait wait = { .timeout_ms = WORKERS_CONNECTED_MS };
	int64_t deadline = ptc_workers_deadline(&wait);

	for (;;) {
		const struct worker *late = NULL;
		int rc;

		for (size_t i = 0; i < g->desc.nranks && g->built; i++) {
			const struct worker *k = g->slots[i].worker;

			if (k && !k->ended && !k->left && k->ran &&
			    ((k->phase < WORKER_BUILDING && !k->conn) || k->phase < k->resumes))
				late = k;
		}
		if (!late)
			return 0;
		rc = ptc_workers_pause_locked(w, &wait, deadline, err);
		if (rc)
			return ptc_error_wrap(err, "rank %u (pid %d) has not connected again since ptcd was restarted",
					      g->slots[late->slot].rank.rank, (int)late->process.pid);
	}
}

/* ---- processes ------------------------------------------------------------------ */

/* Ours come last and win; what the description has of the same name is left out. */
static bool ours(const struct ptc_workers *w, const char *entry)
{
	static const char *const names[] = {
		"PTC_WORKER_SOCKET=", "PTC_WORKER_TOKEN=", "PTC_JOB=",          "RANK=",
		"WORLD_SIZE=",        "LOCAL_RANK=",       "LOCAL_WORLD_SIZE=", "NODE_RANK="
	};
	static const char *const devices[] = { "PTC_DEVICES=", "CUDA_VISIBLE_DEVICES=", "CUDA_DEVICE_ORDER=" };

	for (size_t i = 0; i < PTC_ARRAY_LEN(names); i++)
		if (strncmp(entry, names[i], strlen(names[i])) == 0)
			return true;
	for (size_t i = 0; w->env.device_ids && i < PTC_ARRAY_LEN(devices); i++)
		if (strncmp(entry, devices[i], strlen(devices[i])) == 0)
			return true;
	return false;
}

static const char **environment(const struct ptc_workers *w, const struct group *g, const struct slot *slot,
				const char *token, struct ptc_buf *text)
{
	const struct ptc_group_desc *d = &g->desc;
	const char **list, *p;
	size_t n = 0, at = 0;

	ptc_buf_printf(text, "PTC_WORKER_SOCKET=%s%cPTC_WORKER_TOKEN=%s%cPTC_JOB=%s%c", g->job->socket, 0, token, 0,
		       d->job, 0);
	/* With rebuild a process may be any rank, and another one later; with standby, too: it asks ptc_next. */
	if (slot)
		ptc_buf_printf(text, "RANK=%u%cWORLD_SIZE=%u%cLOCAL_RANK=%u%cLOCAL_WORLD_SIZE=%zu%cNODE_RANK=%u%c",
			       slot->rank.rank, 0, d->world, 0, slot->rank.local_rank, 0, d->nranks, 0, d->node_rank,
			       0);
	/* All of the node's, so that device i is CUDA's i whichever rank a process becomes. */
	if (w->env.device_ids)
		ptc_buf_printf(text, "PTC_DEVICES=%s%cCUDA_VISIBLE_DEVICES=%s%cCUDA_DEVICE_ORDER=PCI_BUS_ID%c",
			       w->env.device_ids, 0, w->env.device_ids, 0, 0);
	while (d->env[n])
		n++;
	list = ptc_buf_failed(text) ? NULL : ptc_calloc(n + 16, sizeof *list);
	if (!list)
		return NULL;
	for (size_t i = 0; i < n; i++)
		if (!ours(w, d->env[i]))
			list[at++] = d->env[i];
	for (p = text->data; p < text->data + text->len; p += strlen(p) + 1)
		list[at++] = p;
	return list;
}

static int make_token(char ret[PTC_LOCAL_TOKEN + 1], struct ptc_error *err)
{
	uint8_t b[PTC_LOCAL_TOKEN / 2];
	int rc = ptc_sys_random(b, sizeof b, err);

	for (size_t i = 0; !rc && i < sizeof b; i++)
		snprintf(ret + 2 * i, 3, "%02x", b[i]);
	return rc;
}

/* It may take as long as a file system does to find the working directory. k may connect before we know its pid, and is
 * sent away to try again (rank_hello.c). */
int ptc_worker_spawn_locked(struct ptc_workers *w, const struct group *g, const struct slot *slot, struct worker *k,
			    struct ptc_error *err)
{
	char token[PTC_LOCAL_TOKEN + 1] = "", cgroup_name[96];
	struct ptc_process process = { .pidfd = -1 };
	struct ptc_buf text = PTC_BUF_INIT;
	ptc_auto_free char *dir = ptc_asprintf("%s/processes/%u", g->job->dir, k->number);
	const bool low = g->desc.low; /* it may change while nobody has the lock */
	const uint64_t log_bytes = g->desc.log_bytes ? g->desc.log_bytes : WORKERS_LOG_BYTES;
	const char **env = NULL;
	int rc = make_token(token, err);

	if (!rc) {
		env = environment(w, g, slot, token, &text);
		rc = env && dir ? 0 : ptc_nomem(err);
	}
	snprintf(cgroup_name, sizeof cgroup_name, "ptc-%.36s-%u", g->job->uuid, k->number);
	memcpy(k->process.token, token, sizeof token);
	k->spawning = true;
	pthread_mutex_unlock(&w->lock);
	if (!rc)
		rc = ptc_process_spawn(&(struct ptc_spawn){ .dir = dir,
							    .argv = g->desc.argv,
							    .env = env,
							    .cwd = g->desc.cwd,
							    .uid = g->desc.uid,
							    .token = token,
							    .cgroup = *w->cgroup ? w->cgroup : NULL,
							    .cgroup_name = cgroup_name,
							    .log_bytes = log_bytes,
							    .low = low },
				       &process, err);
	/* Too late to be told of, but it may run. */
	if (rc && dir && ptc_process_adopt(dir, &process, NULL) == 0) {
		ptc_process_signal(&process, SIGKILL, NULL);
		ptc_process_wait(&process, SPAWN_KILL_MS);
		ptc_process_remove(&process, false);
		ptc_process_done(&process);
	}
	pthread_mutex_lock(&w->lock);
	k->spawning = false;
	if (!rc)
		k->process = process;
	k->low = !rc && low;
	if (!rc && process.pidfd < 0)
		ptc_worker_exited_locked(w, k); /* already */
	ptc_free(env);
	ptc_buf_done(&text);
	return rc;
}

static void remove_task(struct ptc_workers *w, void *arg)
{
	(void)w;
	ptc_process_remove(arg, false);
	ptc_free(arg);
}

/* Of a process that has ended. It may wait for its helper, so not here. */
static void remove_files_locked(struct ptc_workers *w, const struct ptc_process *p)
{
	struct ptc_process *copy = ptc_malloc(sizeof *copy);

	if (!copy)
		return; /* found and removed after the next start */
	*copy = *p;
	if (!ptc_workers_task_locked(w, remove_task, copy))
		ptc_free(copy);
}

static void remember_label(struct worker *k)
{
	if (k->nbefore == WORKERS_LABELS)
		memmove(k->before, k->before + 1, (--k->nbefore) * sizeof k->before[0]);
	k->before[k->nbefore++] = k->label;
}

/* Whose log it is from now on; a process that was a rank before has told of that in it. */
static void label_locked(const struct group *g, size_t slot, struct worker *k)
{
	struct ptc_process_label label = ptc_group_label(g, slot);
	ptc_auto_free char *path = ptc_asprintf("%s/log", k->process.dir);
	struct stat st;

	if (k->label.incarnation == label.incarnation)
		label.begin = k->label.begin;
	else if (k->label.incarnation && path && stat(path, &st) == 0)
		label.begin = (uint64_t)st.st_size;
	if (k->label.incarnation && k->label.incarnation != label.incarnation)
		remember_label(k);
	k->label = label;
	if (!ptc_process_label_write(k->process.dir, &label))
		ptc_debug("workers", "%s: whose log it is could not be written down", k->process.dir);
}

/* Oldest ended processes that nobody refers to; their logs with them. */
static void forget_old_locked(struct ptc_workers *w, struct job *job)
{
	size_t ended = 0;

	for (const struct worker *k = job->workers; k; k = k->next)
		ended += k->ended && !k->group;
	while (ended > WORKERS_LOGS_KEPT) {
		struct worker *oldest = NULL;

		for (struct worker *k = job->workers; k; k = k->next)
			if (k->ended && !k->group && (!oldest || k->number < oldest->number))
				oldest = k;
		remove_files_locked(w, &oldest->process);
		ptc_worker_remove_locked(oldest);
		ended--;
	}
}

int ptc_worker_make_locked(struct ptc_workers *w, struct job *job, struct worker **ret, struct ptc_error *err)
{
	forget_old_locked(w, job);
	if (job->nworkers >= WORKERS_PROCESSES_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "job %s: more than %d processes on this node", job->uuid,
				     WORKERS_PROCESSES_MAX);
	*ret = ptc_worker_new_locked(job, job->last_number + 1);
	if (!*ret)
		return ptc_nomem(err);
	job->last_number++;
	return 0;
}

static bool any_stands_by(const struct job *job)
{
	const struct worker *k = job->workers;

	while (k && !ptc_worker_stands_by(k))
		k = k->next;
	return k != NULL;
}

/* Ends those of g's program whose files are not what they were. Without the lock for a while. */
static void drop_changed_locked(struct ptc_workers *w, const struct group *g)
{
	struct job *job = g->job;
	struct ptc_program_files now;

	if (!job->standby.like || !ptc_group_same_program(&job->standby.like->desc, &g->desc) || !any_stands_by(job))
		return;
	pthread_mutex_unlock(&w->lock);
	ptc_program_look(g->desc.cwd, g->desc.uid, g->desc.argv, &now);
	pthread_mutex_lock(&w->lock);
	for (struct worker *k = job->workers; k; k = k->next) {
		if (!ptc_worker_stands_by(k) || k->spawning || memcmp(&k->files, &now, sizeof now) == 0)
			continue;
		ptc_info("workers", "job=%s a process that waited ends (pid %d): its program has changed since",
			 job->uuid, (int)k->process.pid);
		ptc_worker_want_exit_locked(w, k, WORKERS_GIVEN_UP_MS);
	}
}

/* A process that has waited is g's from now on, like one that is started for it. NULL: there is none. */
static struct worker *take_standby_locked(struct ptc_workers *w, const struct group *g)
{
	struct worker *k = ptc_group_find_standby_locked(g);

	if (!k)
		return NULL;
	k->standby = false;
	if (!g->desc.low)
		ptc_worker_raise_locked(w, k);
	return k;
}

/* named: its process is that rank from the beginning; else any may get the slot, and this one only gets its log's name.
 * One that waits is taken before another is started. */
static int spawn_one_locked(struct ptc_workers *w, struct group *g, size_t slot, bool named, struct ptc_error *err)
{
	struct worker *k = take_standby_locked(w, g);
	bool waits = k != NULL;
	int rc = waits ? 0 : ptc_worker_make_locked(w, g->job, &k, err);

	if (rc)
		return rc;
	k->spawned_generation = g->desc.key.generation;
	k->spawned_incarnation = g->desc.key.incarnation;
	if (named) {
		g->slots[slot].number = k->number;
		rc = ptc_group_save(g, err);
	}
	if (!rc && !waits)
		rc = ptc_worker_spawn_locked(w, g, named && !g->desc.standby_ms ? &g->slots[slot] : NULL, k, err);
	if (rc && waits)
		ptc_worker_want_exit_locked(w, k, WORKERS_GIVEN_UP_MS);
	else if (rc)
		ptc_worker_remove_locked(k);
	if (rc)
		return rc;
	label_locked(g, slot, k);
	if (g->ending || g->removed) {
		ptc_worker_want_exit_locked(w, k, ptc_group_grace_ms(g));
		return ptc_error_set(err, PTC_ESTATE, "the generation was ended while its processes were started");
	}
	if (named) {
		k->group = g;
		k->slot = slot;
		g->slots[slot].worker = k;
	}
	ptc_workers_wake(w);
	return 0;
}

static bool spawned_for(const struct worker *k, const struct group *g)
{
	return ptc_group_is(g, k->spawned_generation, k->spawned_incarnation);
}

/* What exited before it ran is replaced. */
static void clear_dead_locked(struct group *g)
{
	for (size_t i = 0; i < g->desc.nranks && !g->built; i++) {
		struct slot *s = &g->slots[i];

		if (s->worker && !ptc_worker_usable(s->worker))
			ptc_worker_detach_locked(s->worker);
		s->exited = false;
	}
	for (struct worker *k = g->job->workers; k; k = k->next)
		if (spawned_for(k, g) && k->ended)
			k->spawned_generation = 0;
}

static bool lacks_some_locked(const struct ptc_workers *w, const struct group *g)
{
	size_t i = 0;

	if (g->desc.mode == PTC_MODE_REBUILD)
		return ptc_group_lacks_locked(w, g, false) > 0;
	while (i < g->desc.nranks && g->slots[i].worker)
		i++;
	return i < g->desc.nranks;
}

static int spawn_missing_locked(struct ptc_workers *w, struct group *g, struct ptc_error *err)
{
	int rc = 0;

	clear_dead_locked(g);
	if (lacks_some_locked(w, g))
		drop_changed_locked(w, g);
	if (g->desc.mode == PTC_MODE_REBUILD) {
		size_t lacks = ptc_group_lacks_locked(w, g, false);

		for (size_t i = g->desc.nranks - lacks; !rc && i < g->desc.nranks; i++)
			rc = spawn_one_locked(w, g, i, false, err);
		return rc;
	}
	for (size_t i = 0; !rc && i < g->desc.nranks; i++)
		if (!g->slots[i].worker)
			rc = spawn_one_locked(w, g, i, true, err);
	return rc;
}

static int spawn_group_locked(struct ptc_workers *w, struct group *g, struct ptc_error *err)
{
	int rc = 0;

	while (g->spawning && !rc)
		rc = ptc_workers_pause_locked(w, NULL, 0, err);
	if (rc)
		return rc;
	g->spawning = true;
	rc = spawn_missing_locked(w, g, err);
	g->spawning = false;
	ptc_workers_changed_locked(w);
	return rc;
}

/* ---- start ---------------------------------------------------------------------- */

static int check_desc(const struct ptc_group_desc *d, struct ptc_error *err)
{
	if (!d->nranks || d->nranks > WORKERS_PROCESSES_MAX / 2)
		return ptc_error_set(err, PTC_ELIMIT, "the job has %zu ranks on this node; 1 to %d are possible",
				     d->nranks, WORKERS_PROCESSES_MAX / 2);
	if (!d->argv || !d->argv[0] || !d->env)
		return ptc_error_set(err, PTC_EINVAL, "job %s has no command to run", d->job);
	for (size_t i = 0; i < d->nranks; i++)
		for (size_t j = i + 1; j < d->nranks; j++)
			if (d->ranks[i].rank == d->ranks[j].rank)
				return ptc_error_set(err, PTC_EINVAL, "rank %u is named twice", d->ranks[i].rank);
	return 0;
}

static int find_or_make_locked(struct ptc_workers *w, const struct ptc_group_desc *desc, struct group **ret,
			       struct ptc_error *err)
{
	struct group *g;
	struct job *job;
	int rc = check_desc(desc, err);

	if (!rc)
		rc = ptc_workers_job_make_locked(w, desc->key.uuid, desc->uid, &job, err);
	if (rc)
		return rc;
	g = ptc_group_find_in(job, &desc->key);
	if (g && g->ending)
		return ptc_error_set(err, PTC_ESTATE,
				     "generation %llu, incarnation %llu has ended here; use another incarnation",
				     (unsigned long long)desc->key.generation,
				     (unsigned long long)desc->key.incarnation);
	if (!g) {
		rc = ptc_group_new(desc, &g, err);
		if (rc)
			return rc;
		g->job = job;
		job->held++;
		rc = ptc_group_save(g, err);
		if (rc) {
			ptc_group_free(g);
			return rc;
		}
		g->next = job->groups;
		job->groups = g;
	}
	job->shares = g->desc.share_devices;
	g->desc.low = desc->low;
	g->desc.standby_ms = desc->standby_ms;
	*ret = g;
	return 0;
}

/* Appends a rank to what is late. */
static void late(struct ptc_buf *b, const struct worker *k, uint32_t rank, bool named)
{
	if (b->len > 300)
		return;
	ptc_buf_printf(b, "%s", b->len ? ", " : "");
	if (named)
		ptc_buf_printf(b, "rank %u ", rank);
	ptc_buf_printf(b, "(pid %d)", k ? (int)k->process.pid : 0);
}

/* 1: all are there; 0: not yet; or an error. */
static int started_locked(struct ptc_workers *w, struct group *g, struct ptc_buf *who, struct ptc_error *err)
{
	bool all = true;

	if (g->desc.mode == PTC_MODE_RESTART) {
		int rc = ptc_group_dead_locked(w, g, err);

		for (size_t i = 0; i < g->desc.nranks && !rc; i++)
			if (!g->slots[i].worker || !ptc_worker_present(g->slots[i].worker)) {
				late(who, g->slots[i].worker, g->slots[i].rank.rank, true);
				all = false;
			}
		return rc ? rc : all;
	}
	for (const struct worker *k = g->job->workers; k; k = k->next) {
		if (spawned_for(k, g) && ptc_worker_gone(k))
			return ptc_group_not_started_locked(w, g, k, UINT32_MAX, err);
		if (ptc_group_serves(g, k, false) && !ptc_worker_present(k))
			late(who, k, 0, false);
	}
	return ptc_group_lacks_locked(w, g, true) == 0;
}

static int wait_started_locked(struct ptc_workers *w, struct group *g, const struct ptc_wait *wait, int64_t deadline,
			       struct ptc_error *err)
{
	for (;;) {
		struct ptc_buf who = PTC_BUF_INIT;
		int rc = g->removed ? ptc_group_missing(&g->desc.key, err) : started_locked(w, g, &who, err);

		if (!rc) {
			rc = ptc_workers_pause_locked(w, wait, deadline, err);
			if (rc)
				ptc_error_wrap(err, "waiting for processes to come to ptc_next: %s",
					       who.data ? who.data : "");
		}
		ptc_buf_done(&who);
		if (rc)
			return rc < 0 ? rc : 0;
	}
}

/* Of a death that the call had no time to tell, worker events are made now. */
static void no_more_waited_locked(struct ptc_workers *w, struct group *g)
{
	g->waited--;
	if (g->waited || !g->built || g->ending || g->removed || g->said_not_started)
		return;
	for (size_t i = 0; i < g->desc.nranks; i++)
		if (g->slots[i].worker && g->slots[i].worker->ended)
			ptc_group_failed_locked(w, g, g->slots[i].worker, i, NULL);
}

int ptc_workers_start(struct ptc_workers *w, const struct ptc_group_desc *desc, const struct ptc_wait *wait,
		      struct ptc_error *err)
{
	int64_t deadline = ptc_workers_deadline(wait);
	struct group *g;
	int rc;

	pthread_mutex_lock(&w->lock);
	rc = find_or_make_locked(w, desc, &g, err);
	if (!rc) {
		ptc_group_ref(g);
		if (!g->built)
			rc = ptc_group_wait_others_locked(w, g, wait, deadline, err);
		if (!rc && !g->built)
			rc = spawn_group_locked(w, g, err);
		if (!rc) {
			g->waited++;
			rc = wait_started_locked(w, g, wait, deadline, err);
			no_more_waited_locked(w, g);
		}
		g->started = true;
		ptc_group_unref_locked(g);
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

int ptc_workers_start_step(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t start_step,
			   struct ptc_error *err)
{
	struct group *g;
	int rc = 0;

	if (start_step > PTC_LOCAL_STEP_MAX)
		return ptc_error_set(err, PTC_EINVAL, "step %llu is too large", (unsigned long long)start_step);
	pthread_mutex_lock(&w->lock);
	g = ptc_group_find_locked(w, key);
	if (!g) {
		rc = ptc_group_missing(key, err);
	} else if (g->start_step != start_step) {
		uint64_t before = g->start_step;

		g->start_step = start_step;
		rc = ptc_group_save(g, err);
		if (rc)
			g->start_step = before;
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* ---- build ---------------------------------------------------------------------- */

/* A few system calls for each of its threads, in a task or by the caller who has no lock. */
static void raise_task(struct ptc_workers *w, void *arg)
{
	(void)w;
	ptc_priority_raise(arg);
	ptc_free(arg);
}

void ptc_worker_raise_locked(struct ptc_workers *w, struct worker *k)
{
	struct ptc_process *copy = k->low ? ptc_malloc(sizeof *copy) : NULL;

	if (!k->low)
		return;
	k->low = false;
	if (copy)
		*copy = k->process;
	if (copy && ptc_workers_task_locked(w, raise_task, copy))
		return;
	ptc_free(copy);
	ptc_priority_raise(&k->process);
}

/* rebuild: waiting processes take the slots. 1: all slots have one; 0: some process is not there yet. */
static int slot_locked(const struct ptc_workers *w, struct group *g)
{
	for (size_t i = 0; i < g->desc.nranks; i++) {
		struct slot *s = &g->slots[i];
		struct worker *k = s->worker ? s->worker : ptc_group_free_worker_locked(w, g, s->rank.device);

		/* A new one is for a slot whose device no process has. */
		if (!k || (!s->worker && !k->ran && ptc_group_one_comes_locked(w, g, s->rank.device)))
			return 0;
		k->group = g;
		k->slot = i;
		s->worker = k;
		s->number = k->number;
		label_locked(g, i, k);
	}
	return 1;
}

static void leave_slots_locked(struct group *g)
{
	for (size_t i = 0; i < g->desc.nranks; i++)
		if (g->slots[i].worker)
			ptc_worker_detach_locked(g->slots[i].worker);
}

static int tell_locked(struct ptc_workers *w, struct group *g, uint64_t start_step, bool has_state,
		       struct ptc_error *err)
{
	int rc;

	g->built = true;
	g->start_step = start_step;
	g->has_state = has_state;
	rc = ptc_group_save(g, err);
	if (rc) {
		g->built = false;
		if (g->desc.mode == PTC_MODE_REBUILD)
			leave_slots_locked(g);
		return rc;
	}
	for (size_t i = 0; i < g->desc.nranks; i++)
		ptc_worker_advance_locked(w, g->slots[i].worker);
	return 0;
}

/* Kept for ranks that are not told yet, also where an earlier ptcd has built the group: it has known. */
static int give_locked(struct ptc_workers *w, struct group *g, const struct ptc_rank_state *rank_states,
		       struct ptc_error *err)
{
	int rc = 0;

	if (g->given)
		return 0;
	if (rank_states && !g->rank_states)
		g->rank_states = ptc_calloc(g->desc.nranks, sizeof g->rank_states[0]);
	if (rank_states && !g->rank_states)
		return ptc_nomem(err);
	for (size_t i = 0; !rc && rank_states && i < g->desc.nranks; i++)
		if (!g->rank_states[i])
			rc = ptc_rank_state_make(&rank_states[i], &g->rank_states[i], err);
	g->given = !rc;
	for (size_t i = 0; !rc && g->built && i < g->desc.nranks; i++)
		if (g->slots[i].worker)
			ptc_worker_advance_locked(w, g->slots[i].worker);
	return rc;
}

/* Waits until every slot has a waiting process and tells them. */
static int assign_locked(struct ptc_workers *w, struct group *g, uint64_t start_step, bool has_state,
			 const struct ptc_wait *wait, int64_t deadline, struct ptc_error *err)
{
	int rc = g->built ? 0 : spawn_group_locked(w, g, err);

	while (!rc && !g->built) {
		struct ptc_buf who = PTC_BUF_INIT;

		rc = g->removed ? ptc_group_missing(&g->desc.key, err) : started_locked(w, g, &who, err);
		ptc_buf_done(&who);
		if (rc < 0)
			return rc;
		if (rc == 1 && (g->desc.mode == PTC_MODE_RESTART || slot_locked(w, g)))
			return tell_locked(w, g, start_step, has_state, err);
		rc = ptc_workers_pause_locked(w, wait, deadline, err);
		if (rc)
			ptc_error_wrap(err, "waiting for processes of the generation before to come to ptc_next");
	}
	return rc;
}

/* memory: it counts when its tensors have memory. */
static bool has_declared(const struct worker *k, bool memory)
{
	return k && (k->phase >= WORKER_DECLARED || (k->phase == WORKER_BUILDING && k->layout && !memory));
}

static int declared_locked(struct ptc_workers *w, struct group *g, bool memory, struct ptc_buf *who,
			   struct ptc_error *err)
{
	bool all = true;
	int rc;

	if (g->removed || g->ending)
		return ptc_error_set(err, PTC_ESTATE, "the generation was ended while its ranks built");
	if (*g->refused)
		return ptc_error_set(err, PTC_ELAYOUT, "%s", g->refused);
	rc = ptc_group_dead_locked(w, g, err);
	for (size_t i = 0; i < g->desc.nranks && !rc; i++)
		if (!has_declared(g->slots[i].worker, memory)) {
			late(who, g->slots[i].worker, g->slots[i].rank.rank, true);
			all = false;
		}
	return rc ? rc : all;
}

static int build(struct ptc_workers *w, const struct ptc_group_desc *desc, bool memory, uint64_t start_step,
		 bool has_state, const struct ptc_rank_state *rank_states, const struct ptc_wait *wait,
		 struct ptc_error *err)
{
	int64_t deadline = ptc_workers_deadline(wait);
	struct group *g;
	int rc;

	if (start_step > PTC_LOCAL_STEP_MAX)
		return ptc_error_set(err, PTC_EINVAL, "step %llu is too large", (unsigned long long)start_step);
	pthread_mutex_lock(&w->lock);
	rc = find_or_make_locked(w, desc, &g, err);
	if (!rc) {
		ptc_group_ref(g);
		g->waited++;
		for (size_t i = 0; i < g->desc.nranks && !g->desc.low; i++)
			if (g->slots[i].worker)
				ptc_worker_raise_locked(w, g->slots[i].worker);
		rc = give_locked(w, g, has_state ? rank_states : NULL, err);
		if (rc == 0)
			rc = assign_locked(w, g, start_step, has_state, wait, deadline, err);
		ptc_group_patience_locked(g, wait);
		while (!rc) {
			struct ptc_buf who = PTC_BUF_INIT;

			rc = declared_locked(w, g, memory, &who, err);
			if (!rc) {
				rc = ptc_workers_pause_locked(w, wait, deadline, err);
				if (rc)
					ptc_error_wrap(err, "waiting for ranks to build and declare: %s",
						       who.data ? who.data : "");
			}
			ptc_buf_done(&who);
		}
		no_more_waited_locked(w, g);
		ptc_group_unref_locked(g);
	}
	pthread_mutex_unlock(&w->lock);
	return rc < 0 ? rc : 0;
}

int ptc_workers_build(struct ptc_workers *w, const struct ptc_group_desc *desc, uint64_t start_step, bool has_state,
		      const struct ptc_rank_state *rank_states, const struct ptc_wait *wait, struct ptc_error *err)
{
	return build(w, desc, true, start_step, has_state, rank_states, wait, err);
}

int ptc_workers_build_layout(struct ptc_workers *w, const struct ptc_group_desc *desc, uint64_t start_step,
			     bool has_state, const struct ptc_rank_state *rank_states, const struct ptc_wait *wait,
			     struct ptc_error *err)
{
	return build(w, desc, false, start_step, has_state, rank_states, wait, err);
}
