/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's messages, and the answers to them. Happy path: HELLO names the rank's process; every later message moves its
 * phase; advance() sends what follows from the phase and from the next step of the group.
 *
 *   CONNECTED -NEXT-> WAITING -generation-> BUILDING -DECLARED-> DECLARED -go-> RUNNING -STOPPED-> STOPPED
 *                        ^                     |                    |             |  ^               |  |
 *                        |                     |                    |             |  +----go on------+  |
 *                        +-------NEXT------- ENDING <---------------+-------------+---------------------+
 *
 * Failure modes: a token, user or process that does not fit, or a message that is not allowed now or not readable: the
 * answer is REFUSED, and the connection is closed. A message of a rank of an ended generation is skipped: the rank gets
 * ENDED, and can change nothing. */
#include "daemon/workers/process/cgroup.h"
#include "daemon/workers/session/internal.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- life ----------------------------------------------------------------------- */

struct worker *ptc_worker_new_locked(struct job *job, unsigned number)
{
	struct worker *k = ptc_calloc(1, sizeof *k);

	if (!k)
		return NULL;
	k->job = job;
	k->number = number;
	k->pidfd = k->page_fd = k->kept.fd = k->process.pidfd = -1;
	k->next = job->workers;
	job->workers = k;
	job->nworkers++;
	return k;
}

static void drop_generation(struct worker *k)
{
	k->declared = ptc_declared_unref(k->declared);
	k->layout = ptc_declared_unref(k->layout);
	k->rank_state = ptc_rank_state_unref(k->rank_state);
	k->restore = ptc_rank_state_unref(k->restore);
	k->staging = ptc_staging_unref(k->staging);
	k->hold.published = ptc_rank_state_unref(k->hold.published);
	k->hold.read = false;
	ptc_close(&k->kept.fd);
	k->go = k->finished = k->staged = k->get.active = false;
	k->seen = k->stale = false;
	k->resumes = WORKER_ABSENT;
	k->step_seconds = 0;
	k->nsteps = 0;
}

static void drop_page(struct worker *k)
{
	if (k->page)
		munmap(k->page, PTC_LOCAL_PAGE);
	ptc_close(&k->page_fd);
	k->page = NULL;
	k->page_fd = -1;
}

/* Killed, or aborted as by NCCL's watchdog: not by a fault of its own code. */
static bool cut_off(const struct worker *k)
{
	return k->status_known && WIFSIGNALED(k->status) &&
	       (WTERMSIG(k->status) == SIGKILL || WTERMSIG(k->status) == SIGABRT);
}

/* Whether its tensors on devices are still there, under handles that are ours, and a mark of the device says at which
 * step they are whole. */
static bool devices_outlived(const struct worker *k)
{
	const struct declared *d = k->declared;

	if (!d->ndevices || d->path != DEVICE_MAPPED || atomic_load(&k->page->marks) != PTC_LOCAL_MARKS_PROVEN)
		return false;
	for (size_t i = 0; i < d->ndevices; i++)
		if (d->devices[i].fd < 0)
			return false;
	return true;
}

/* Its memory on devices, or its blobs and cursors, are there still. */
static bool outlived(const struct worker *k)
{
	return cut_off(k) && k->group && k->group->built && !k->group->ending && !k->exit_wanted && k->page &&
	       k->declared && (k->phase == WORKER_RUNNING || k->phase == WORKER_STOPPED) &&
	       atomic_load(&k->page->survives) && (k->kept.fd >= 0 || devices_outlived(k));
}

void ptc_worker_detach_locked(struct worker *k)
{
	struct group *g = k->group;

	if (!g)
		return;
	if (k->outlived) {
		k->outlived = k->devices_outlived = false;
		drop_generation(k);
		drop_page(k);
	}
	if (k->ended)
		g->slots[k->slot].exited = true;
	g->slots[k->slot].worker = NULL;
	k->group = NULL;
}

void ptc_worker_remove_locked(struct worker *k)
{
	struct worker **at = &k->job->workers;

	ptc_worker_detach_locked(k);
	while (*at != k)
		at = &(*at)->next;
	*at = k->next;
	k->job->nworkers--;
	if (k->conn) {
		k->conn->worker = NULL;
		k->conn->broken = true;
	}
	drop_generation(k);
	drop_page(k);
	ptc_close(&k->pidfd);
	ptc_process_done(&k->process);
	ptc_free(k);
}

static void exited_locked(struct ptc_workers *w, struct worker *k, bool known, int status)
{
	k->ended = true;
	k->status_known = known;
	k->status = status;
	ptc_process_done(&k->process);
	if (k->page)
		ptc_local_step(k->page, &k->end_step);
	if (k->conn)
		k->conn->broken = true;
	if (k->group) {
		struct group *g = k->group;

		g->slots[k->slot].exited = true;
		if (g->built && !g->ending && !k->exit_wanted)
			ptc_group_failed_locked(w, g, k, k->slot, NULL);
	}
	/* Users of its memory have references of their own. */
	k->outlived = outlived(k);
	k->devices_outlived = k->outlived && devices_outlived(k);
	if (k->outlived) { /* of a rank that was held: what has been read of it still holds */
		k->hold.asked = k->hold.frozen = false;
		k->hold.read = k->hold.published != NULL;
	} else {
		drop_generation(k);
		drop_page(k);
	}
	ptc_close(&k->pidfd);
	ptc_workers_changed_locked(w);
}

struct reap {
	char uuid[37];
	unsigned number;
	struct ptc_process process; /* its pidfd is the worker's */
};

static void reap_task(struct ptc_workers *w, void *arg)
{
	struct reap *r = arg;
	struct worker *k;
	int status;
	bool known = ptc_process_status(&r->process, &status);

	/* Processes that it has left in its cgroup are killed with it, also if its helper was killed. */
	if (*r->process.cgroup)
		(void)ptc_cgroup_remove(r->process.cgroup, WORKERS_CGROUP_MS, NULL);
	pthread_mutex_lock(&w->lock);
	k = ptc_worker_find_locked(w, r->uuid, r->number);
	if (k && !k->ended)
		exited_locked(w, k, known, status);
	pthread_mutex_unlock(&w->lock);
	ptc_free(r);
}

/* Its helper may still be about to write down how it ended. */
void ptc_worker_exited_locked(struct ptc_workers *w, struct worker *k)
{
	struct reap *r;
	int status;
	bool known;

	if (k->ended || k->reaping)
		return;
	k->reaping = true;
	r = ptc_calloc(1, sizeof *r);
	if (r) {
		memcpy(r->uuid, k->job->uuid, sizeof r->uuid);
		r->number = k->number;
		r->process = k->process;
		if (ptc_workers_task_locked(w, reap_task, r))
			return;
		ptc_free(r);
	}
	known = ptc_process_status(&k->process, &status);
	exited_locked(w, k, known, status);
}

void ptc_worker_want_exit_locked(struct ptc_workers *w, struct worker *k, uint32_t grace_ms)
{
	int64_t now = ptc_sys_now_ns();

	if (k->ended || k->exit_wanted)
		return;
	k->exit_wanted = true;
	k->term_ns = now + (int64_t)grace_ms * 500000;
	k->kill_ns = now + (int64_t)grace_ms * 1000000;
	if (k->page)
		atomic_exchange(&k->page->stop, 0);
	ptc_worker_advance_locked(w, k);
	ptc_workers_wake(w);
}

static void see(struct worker *k, uint64_t step, int64_t now_ns)
{
	k->seen = true;
	k->seen_step = step;
	k->seen_ns = now_ns;
}

/* Steps between two stops count even if they all end between two samples; else one that hung would be the only one
 * known of a job that stops often. */
void ptc_worker_sample_locked(struct worker *k, int64_t now_ns)
{
	uint64_t step;

	if (!k->page || k->phase != WORKER_RUNNING || !ptc_local_step(k->page, &step)) {
		k->seen = false; /* how long it was held counts neither as a step nor as a stall */
		return;
	}
	if (k->seen && step > k->seen_step) {
		double each = (double)(now_ns - k->seen_ns) * 1e-9 / (double)(step - k->seen_step);

		k->step_seconds = k->step_seconds > 0 ? 0.7 * k->step_seconds + 0.3 * each : each;
		k->last_steps[k->nsteps++ % WORKERS_STEPS] = each;
	}
	if (!k->seen || step > k->seen_step)
		see(k, step, now_ns);
}

/* ---- what it is told -------------------------------------------------------------- */

static void send_rank_state(struct conn *c, const struct rank_state *rank_state)
{
	struct ptc_local_out out = { .grow = ptc_realloc };

	for (size_t i = 0; rank_state && i < rank_state->nblobs; i++) {
		const struct ptc_slot_blob *b = &rank_state->blobs[i];

		out.len = 0;
		ptc_local_put_blob(&out, &(struct ptc_local_blob){ b->name, (uint8_t)b->scope, b->data, b->len });
		ptc_conn_send_locked(c, PTC_LOCAL_BLOB, &out, -1);
	}
	for (size_t i = 0; rank_state && i < rank_state->ncursors; i++) {
		const struct ptc_slot_cursor *s = &rank_state->cursors[i];

		out.len = 0;
		ptc_local_put_cursor(&out, &(struct ptc_local_cursor){ s->name, s->tag, s->position });
		ptc_conn_send_locked(c, PTC_LOCAL_CURSOR, &out, -1);
	}
	ptc_free(out.data);
}

static void send_generation(struct worker *k)
{
	const struct ptc_group_desc *d = &k->group->desc;
	const struct ptc_group_rank *r = &k->group->slots[k->slot].rank;
	struct ptc_local_out out = { .grow = ptc_realloc };
	struct ptc_local_generation m = {
		.generation = d->key.generation,
		.incarnation = d->key.incarnation,
		.start_step = k->group->start_step,
		.has_state = k->group->has_state,
		.rank = r->rank,
		.world = d->world,
		.local_rank = r->local_rank,
		.local_world = (uint32_t)d->nranks,
		.node_rank = d->node_rank,
		.nodes = d->nodes,
		.device = r->device,
		.coordinates = { r->tp, r->pp, r->dp, r->cp },
		.zero = d->zero,
		.micro_batch = d->micro_batch,
		.global_batch = d->global_batch,
		.config = d->config,
		.job = d->job,
	};

	memcpy(m.degrees, d->degrees, sizeof m.degrees);
	drop_generation(k);
	k->generation = d->key.generation;
	k->incarnation = d->key.incarnation;
	k->device = r->device;
	k->rank = r->rank;
	k->ran = true;
	k->phase = WORKER_BUILDING;
	atomic_store(&k->page->staging, PTC_LOCAL_STAGE_FREE);
	atomic_exchange(&k->page->stop, PTC_LOCAL_NO_STOP);
	if (k->takes_state && k->group->rank_states) /* before it: once it knows its generation, it may ask for them */
		send_rank_state(k->conn, k->group->rank_states[k->slot]);
	ptc_local_put_generation(&out, &m);
	ptc_conn_send_locked(k->conn, PTC_LOCAL_GENERATION, &out, -1);
	ptc_free(out.data);
}

static void send_restored(struct worker *k)
{
	struct ptc_local_out out = { .grow = ptc_realloc };

	send_rank_state(k->conn, k->restore);
	ptc_local_put_restored(&out, &(struct ptc_local_restored){ k->restored, k->group->start_step });
	ptc_conn_send_locked(k->conn, PTC_LOCAL_RESTORED, &out, -1);
	ptc_free(out.data);
	/* Blobs and cursors that it does not set anew keep their values. */
	ptc_rank_state_unref(k->rank_state);
	k->rank_state = ptc_rank_state_ref(k->restore);
	k->phase = WORKER_RUNNING;
	k->seen = false;
}

static void send_number(struct worker *k, uint16_t type, uint64_t n)
{
	struct ptc_local_out out = { .grow = ptc_realloc };

	ptc_local_put_number(&out, n);
	ptc_conn_send_locked(k->conn, type, &out, -1);
	ptc_free(out.data);
}

static void send_ended(struct worker *k)
{
	struct ptc_local_out out = { .grow = ptc_realloc };

	/* Training that is over is not "ended" for it: ptc_finish answers 0. */
	if (k->phase == WORKER_STOPPED && k->finished && k->group && k->group->dropping) {
		send_number(k, PTC_LOCAL_FINISHED, k->stop_step);
	} else {
		ptc_local_put_ended(&out, k->generation, k->incarnation);
		ptc_conn_send_locked(k->conn, PTC_LOCAL_ENDED, &out, -1);
		ptc_free(out.data);
	}
	k->phase = WORKER_ENDING;
}

void ptc_worker_advance_locked(struct ptc_workers *w, struct worker *k)
{
	if (k->phase >= k->resumes)
		k->resumes = WORKER_ABSENT; /* it is there again */
	if (!k->conn || k->conn->closing || !k->page)
		return;
	if (ptc_worker_ending(k)) {
		/* A running rank asks at its next boundary; told now, it leaves whatever else it waits in. */
		atomic_exchange(&k->page->stop, 0);
		send_ended(k);
	} else if (k->phase == WORKER_WAITING && k->exit_wanted) {
		ptc_conn_send_locked(k->conn, PTC_LOCAL_EXIT, NULL, -1);
		k->phase = WORKER_ENDING;
	} else if (k->phase == WORKER_WAITING && k->group && k->group->built && !k->group->ending &&
		   (k->group->given || !k->group->has_state)) {
		send_generation(k);
	} else if (k->phase == WORKER_DECLARED && k->go) {
		send_restored(k);
	} else if (k->phase == WORKER_STOPPED && !k->finished && atomic_load(&k->page->stop) > k->stop_step) {
		k->phase = WORKER_RUNNING;
		k->staged = false;
		see(k, k->stop_step, ptc_sys_now_ns());
		send_number(k, PTC_LOCAL_GO, k->stop_step);
	} else {
		return;
	}
	ptc_workers_changed_locked(w);
}

/* ---- HELLO ------------------------------------------------------------------------- */

static int make_page(struct worker *k)
{
	int fd = memfd_create("ptc-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *map = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, PTC_LOCAL_PAGE) == 0 &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		map = mmap(NULL, PTC_LOCAL_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		int e = errno;

		ptc_close(&fd);
		return e;
	}
	k->page_fd = fd;
	k->page = map;
	k->page->magic = PTC_LOCAL_MAGIC;
	k->page->version = PTC_LOCAL_PAGE_VERSION;
	atomic_store(&k->page->knows_survivors, 1);
#if PTC_VERSION_RAISED
	k->page->added = PTC_VERSION_ADDED;
#endif
	atomic_store(&k->page->stop, PTC_LOCAL_NO_STOP);
	return 0;
}

/* A rank's own, from before, maybe of a ptcd of another version: it must be one that cannot be cut off under us. Takes
 * fd. */
static bool take_page(struct worker *k, int fd, uint32_t *ret_version)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct ptc_local_page *map;
	struct stat st;

	*ret_version = 0;
	if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW) ||
	    fstat(fd, &st) != 0 || st.st_size != PTC_LOCAL_PAGE)
		return false;
	map = mmap(NULL, PTC_LOCAL_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return false;
	*ret_version = map->magic == PTC_LOCAL_MAGIC ? map->version : 0;
	if (!ptc_version_reads(*ret_version, PTC_LOCAL_PAGE_OLDEST, PTC_LOCAL_PAGE_VERSION)) {
		munmap(map, PTC_LOCAL_PAGE);
		return false;
	}
	drop_page(k);
	atomic_store(&map->knows_survivors, 1);
	atomic_store(&map->hold, 0); /* of a ptcd that has gone */
	k->page = map;
	k->page_fd = fd;
	return true;
}

static bool same_token(const char *a, const char *b)
{
	unsigned char differ = 0;

	if (strlen(a) != PTC_LOCAL_TOKEN || strlen(b) != PTC_LOCAL_TOKEN)
		return false;
	for (size_t i = 0; i < PTC_LOCAL_TOKEN; i++)
		differ |= (unsigned char)(a[i] ^ b[i]);
	return !differ;
}

static struct worker *by_token(struct job *job, const char *token)
{
	for (struct worker *k = job->workers; k; k = k->next)
		if (!k->ended && same_token(k->process.token, token))
			return k;
	return NULL;
}

/* The process itself, or one of its session: a program may be started by a shell script. */
static bool its_process(const struct worker *k, pid_t pid)
{
	return pid == k->process.pid || getsid(pid) == k->process.pid;
}

/* NULL: refused, and told why. */
static struct worker *identify(struct conn *c, const struct ptc_local_hello *h)
{
	struct worker *k = by_token(c->job, h->token);

	if (h->protocol_min > PTC_LOCAL_PROTOCOL || h->protocol_max < PTC_LOCAL_OLDEST ||
	    h->protocol_min > h->protocol_max) {
		bool newer = h->protocol_min > PTC_LOCAL_PROTOCOL;

		ptc_conn_refuse_locked(c, PTC_LOCAL_R_VERSION,
				       "libptc %s speaks protocols %u to %u, this node's ptcd %s speaks %u to %u; %s",
				       h->version, h->protocol_min, h->protocol_max, PTC_VERSION, PTC_LOCAL_OLDEST,
				       PTC_LOCAL_PROTOCOL,
				       newer ? "upgrade ptcd on this node" : "start the job with a newer libptc");
		return NULL;
	}
	if (!k) {
		ptc_conn_refuse_locked(
			c, PTC_LOCAL_R_STALE,
			"the token names no process of this job; it belongs to an incarnation that has ended");
		return NULL;
	}
	if (k->spawning) {
		c->broken = true; /* it tries again; then we know its pid */
		return NULL;
	}
	if (!its_process(k, c->pid)) {
		ptc_conn_refuse_locked(c, PTC_LOCAL_R_REFUSED,
				       "the token was made for process %d and its session, not for process %d",
				       (int)k->process.pid, (int)c->pid);
		return NULL;
	}
	if (k->conn && k->pid != c->pid) {
		ptc_conn_refuse_locked(c, PTC_LOCAL_R_REFUSED, "process %d has the slot of this token already",
				       (int)k->pid);
		return NULL;
	}
	return k;
}

static void attach(struct worker *k, struct conn *c)
{
	if (k->conn) {
		k->conn->worker = NULL;
		k->conn->broken = true;
	}
	if (k->pid != c->pid || k->pidfd < 0) {
		ptc_close(&k->pidfd);
		k->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
		k->pid = c->pid;
	}
	k->conn = c;
	c->worker = k;
	k->left = false;
	k->get.active = false;
}

/* Speaks the highest protocol that both ends know; a rank of before an upgrade goes on with its own. */
static void welcome(struct worker *k, const struct ptc_local_hello *h, bool with_page)
{
	struct ptc_local_out out = { .grow = ptc_realloc };
	uint32_t protocol = h->protocol_max < PTC_LOCAL_PROTOCOL ? h->protocol_max : PTC_LOCAL_PROTOCOL;

	ptc_local_put_welcome(&out, &(struct ptc_local_welcome){ .protocol = protocol,
								 .pid = (uint64_t)getpid(),
								 .version = PTC_VERSION,
								 .features = PTC_LOCAL_TAKES_LAYOUT });
	ptc_conn_send_locked(k->conn, PTC_LOCAL_WELCOME, &out, with_page ? fcntl(k->page_fd, F_DUPFD_CLOEXEC, 0) : -1);
	ptc_free(out.data);
}

/* Its earlier messages belong to the connection before; it sends them again. */
static void begin_session(struct worker *k, const struct ptc_local_hello *h)
{
	bool go = k->go && k->generation == h->generation && k->incarnation == h->incarnation;
	struct rank_state *restore = k->restore;

	k->restore = NULL;
	drop_generation(k);
	/* Our messages are done in order by the thread that says HELLO: nothing of the connection before goes on. */
	k->fill.session++;
	k->fill.sent = k->fill.done = 0;
	k->fill.failed = false;
	k->fill.can = h->features & PTC_LOCAL_CAN_FILL;
	k->takes_state = h->features & PTC_LOCAL_CAN_TAKE_STATE;
	k->phase = WORKER_CONNECTED;
	if (h->resume_phase == PTC_LOCAL_NOWHERE) {
		ptc_rank_state_unref(restore);
		return;
	}
	k->go = go;
	k->restore = restore;
	k->generation = h->generation;
	k->incarnation = h->incarnation;
	k->phase = WORKER_BUILDING;
	k->resumes = WORKER_BUILDING + (h->resume_phase - PTC_LOCAL_BUILDS);
	/* A rank that claims a generation which it was not given has none. */
	k->stale = !k->group || !k->group->built || k->group->slots[k->slot].rank.rank != h->rank;
	k->ran |= !k->stale;
}

/* version 0: it is no page. */
static void refuse_page(struct conn *c, uint32_t version)
{
	if (!version) {
		ptc_conn_refuse_locked(c, PTC_LOCAL_R_REFUSED, "protocol: the shared page is not one of ours");
		return;
	}
	ptc_conn_refuse_locked(
		c, PTC_LOCAL_R_VERSION,
		"the rank's shared page is of version %u, this node's ptcd %s reads %u to %u; go back to a "
		"ptcd next to the one that made it, or stop the job and start it again",
		version, PTC_VERSION, PTC_LOCAL_PAGE_OLDEST, PTC_LOCAL_PAGE_VERSION + 1);
}

void ptc_worker_hello_locked(struct ptc_workers *w, struct conn *c, struct ptc_local_message *m)
{
	struct ptc_local_hello h;
	struct worker *k;
	bool had_page = m->fd >= 0;
	uint32_t page = 0;
	int e = 0;

	if (m->type != PTC_LOCAL_HELLO || !ptc_local_get_hello(m->data, m->len, &h)) {
		ptc_conn_refuse_locked(c, PTC_LOCAL_R_REFUSED, "protocol: the first message is not a HELLO");
		return;
	}
	k = identify(c, &h);
	if (!k)
		return;
	if (had_page) {
		if (!take_page(k, m->fd, &page)) {
			refuse_page(c, page);
			return;
		}
		m->fd = -1;
		atomic_store(&k->page->staging, PTC_LOCAL_STAGE_FREE);
	} else {
		drop_page(k);
		e = make_page(k);
	}
	if (e) {
		ptc_conn_refuse_locked(c, PTC_LOCAL_R_SYSTEM, "cannot make shared memory: %s", strerror(e));
		return;
	}
	attach(k, c);
	begin_session(k, &h);
	welcome(k, &h, !had_page);
	ptc_worker_advance_locked(w, k);
	ptc_workers_changed_locked(w);
}

/* ---- what it says -------------------------------------------------------------------- */

static bool on_next(struct ptc_workers *w, struct worker *k)
{
	struct group *g = k->group;

	if (k->phase == WORKER_WAITING)
		return false;
	if (g && ptc_worker_in_generation(k) && ptc_group_is(g, k->generation, k->incarnation) && !g->ending) {
		ptc_group_failed_locked(w, g, k, k->slot, "left its generation before it had ended");
		g->slots[k->slot].exited = true;
		ptc_worker_detach_locked(k);
	} else if (g && g->built &&
		   (k->phase == WORKER_CONNECTED
			    ? g->ending /* it had left already when it connected anew, or never had it */
			    : (g->ending || *g->refused) && ptc_group_is(g, k->generation, k->incarnation))) {
		if (g->desc.mode == PTC_MODE_RESTART)
			ptc_worker_want_exit_locked(w, k, ptc_group_grace_ms(g)); /* stays until it has exited */
		else
			ptc_worker_detach_locked(k);
	}
	drop_generation(k);
	k->phase = WORKER_WAITING;
	if (!k->exit_wanted)
		k->term_ns = k->kill_ns = 0;
	return true;
}

static void decline(struct worker *k, const struct ptc_error *err)
{
	struct ptc_local_out out = { .grow = ptc_realloc };
	struct group *g = k->group;

	if (g && !*g->refused)
		snprintf(g->refused, sizeof g->refused, "rank %u: %.900s", g->slots[k->slot].rank.rank, err->text);
	ptc_local_put_refusal(&out, PTC_LOCAL_R_REFUSED, err->text);
	ptc_conn_send_locked(k->conn, PTC_LOCAL_DECLINED, &out, -1);
	ptc_free(out.data);
	k->declared = ptc_declared_unref(k->declared);
	k->layout = ptc_declared_unref(k->layout);
	k->phase = WORKER_ENDING;
}

static bool on_tensor(struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_local_tensor t;

	if (k->phase != WORKER_BUILDING || !ptc_local_get_tensor(m->data, m->len, &t))
		return false;
	if (!k->declared)
		k->declared = ptc_declared_new();
	if (!k->declared || ptc_declared_add(k->declared, &t, &err))
		decline(k, &err);
	return true;
}

static bool on_device(struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_local_device d;

	if (k->phase != WORKER_BUILDING || !k->declared || !ptc_local_get_device(m->data, m->len, &d))
		return false;
	if (ptc_declared_add_device(k->declared, &d, m->fd, &err))
		decline(k, &err);
	return true;
}

/* The tensors so far are the rank's layout. They come again once they have memory. */
static bool on_layout(struct worker *k)
{
	if (k->layout || k->declared->ndevices)
		return false;
	k->layout = k->declared;
	k->declared = NULL;
	return true;
}

/* What its program has to promise of the configuration. A rank that runs has done so. */
static int promised(const struct worker *k, const struct ptc_local_declared *d, struct ptc_error *err)
{
	const struct group *g = k->group;
	bool recomputes = !g || !g->desc.recomputes || (d->does & PTC_LOCAL_DOES_RECOMPUTE);
	bool scheduled = !g || !g->desc.scheduled || (d->does & PTC_LOCAL_DOES_SCHEDULE);

	if ((recomputes && scheduled) || d->what == PTC_LOCAL_DECLARES_RUNNING)
		return 0;
	return ptc_error_set(
		err, PTC_EINVAL,
		"configuration %.200s has %s, and the program has not asked for it (%s) "
		"before it declared its state; leave it out of the configuration, or %s out of space: in job.yaml",
		g->desc.config, recomputes ? "schedule" : "recompute", recomputes ? "ptc_schedule" : "ptc_recompute",
		recomputes ? "vpp" : "recompute");
}

static bool on_declared(struct ptc_workers *w, struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_local_declared d;
	uint64_t what;

	if (k->phase != WORKER_BUILDING || !ptc_local_get_declared(m->data, m->len, &d))
		return false;
	what = d.what;
	if (!k->declared)
		k->declared = ptc_declared_new();
	if (!k->rank_state)
		k->rank_state = ptc_rank_state_new();
	if (!k->declared || !k->rank_state || promised(k, &d, &err) || ptc_declared_finish(k->declared, &err) ||
	    (k->layout && ptc_declared_same_layout(k->layout, k->declared, &err))) {
		decline(k, &err);
		return true;
	}
	if (what == PTC_LOCAL_DECLARES_LAYOUT)
		return on_layout(k);
	k->layout = ptc_declared_unref(k->layout);
	k->phase = what == PTC_LOCAL_DECLARES_RUNNING ? WORKER_RUNNING : WORKER_DECLARED;
	if (k->group->rank_states)
		k->group->rank_states[k->slot] = ptc_rank_state_unref(k->group->rank_states[k->slot]);
	if (k->declared->path == DEVICE_UNTRIED)
		ptc_worker_try_device(w, k); /* and then stages, where that has to be */
	else if (k->group->desc.fast_copy || k->declared->path == DEVICE_BY_RANK)
		ptc_worker_stage(w, k);
	return true;
}

static bool on_blob(struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_local_blob b;

	if (k->phase != WORKER_RUNNING || !ptc_local_get_blob(m->data, m->len, &b))
		return false;
	return ptc_rank_state_set_blob(&k->rank_state, &b) == 0;
}

static bool on_cursor(struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_local_cursor s;

	if (k->phase != WORKER_RUNNING || !ptc_local_get_cursor(m->data, m->len, &s))
		return false;
	return ptc_rank_state_set_cursor(&k->rank_state, &s) == 0;
}

static bool on_stopped(struct ptc_workers *w, struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_local_stopped s;

	if (k->phase != WORKER_RUNNING || !ptc_local_get_stopped(m->data, m->len, &s))
		return false;
	ptc_worker_sample_locked(k, ptc_sys_now_ns());
	k->phase = WORKER_STOPPED;
	k->stop_step = s.step;
	k->finished = s.finished;
	k->staged = s.staged && k->staging;
	snprintf(k->refused, sizeof k->refused, "%s", s.refused);
	k->later = *s.refused && s.later && !s.finished;
	ptc_worker_advance_locked(w, k);
	if (k->phase == WORKER_STOPPED)
		ptc_group_event_locked(w, k->group);
	return true;
}

/* Its memory may be wanted: it waits for us to say that it is not, and so do others here, which are about to fail as
 * well, some without a word. */
static bool on_leaves(struct ptc_workers *w, struct worker *k)
{
	struct group *g = k->group;

	if (k->phase != WORKER_RUNNING || !g || g->ending || !ptc_group_is(g, k->generation, k->incarnation)) {
		atomic_exchange(&k->page->leaving, PTC_LOCAL_LEAVE_GO);
		return true;
	}
	k->leaving = g->wants_hold = true;
	ptc_group_failed_locked(w, g, k, k->slot, NULL);
	return true;
}

/* Only a memfd is read without waiting for others; what it has is not to be believed before it is read. */
static bool on_keeps(struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_local_keeps s;
	int seals = m->fd >= 0 ? fcntl(m->fd, F_GET_SEALS) : -1;

	if (!ptc_local_get_keeps(m->data, m->len, &s) || seals < 0 || !(seals & F_SEAL_SHRINK))
		return false;
	ptc_close(&k->kept.fd);
	k->kept.fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 0); /* none is left: then it ends with the process */
	k->kept.address = s.address;
	k->kept.bytes = s.bytes;
	return true;
}

static bool on_filled(struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_local_filled f;

	if (!ptc_local_get_filled(m->data, m->len, &f) || f.id > k->fill.sent || f.id <= k->fill.done)
		return false;
	k->fill.done = f.id;
	if (f.failed)
		k->fill.failed = true;
	return true;
}

static bool on_rendezvous(struct ptc_workers *w, struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_local_rendezvous q;

	if (!ptc_local_get_rendezvous(m->data, m->len, &q) || ptc_local_short_error(q.key))
		return false;
	ptc_rendezvous_message_locked(w, k, m->type, &q);
	return true;
}

bool ptc_worker_gone(const struct worker *k)
{
	return k->ended || (k->left && ptc_sys_now_ns() - k->left_ns > WORKERS_LEFT_NS);
}

void ptc_worker_left_locked(struct ptc_workers *w, struct worker *k, int64_t now_ns)
{
	bool mine = k->group && ptc_group_is(k->group, k->generation, k->incarnation) && ptc_worker_in_generation(k);

	if (k->left && !k->ended && mine && !k->group->ending && !k->exit_wanted &&
	    now_ns - k->left_ns > WORKERS_LEFT_NS)
		ptc_group_failed_locked(w, k->group, k, k->slot, "closed its client before its generation had ended");
}

static bool on_bye(struct worker *k)
{
	k->left = true;
	k->left_ns = ptc_sys_now_ns();
	k->conn->closing = true;
	return true;
}

bool ptc_worker_message_locked(struct ptc_workers *w, struct worker *k, const struct ptc_local_message *m)
{
	bool ok;

	if (ptc_worker_ending(k))
		ptc_worker_advance_locked(w, k);
	/* Said before it had heard of its end. */
	if (k->phase == WORKER_ENDING && m->type != PTC_LOCAL_NEXT && m->type != PTC_LOCAL_BYE &&
	    m->type != PTC_LOCAL_FILLED)
		return m->type != PTC_LOCAL_HELLO;
	switch (m->type) {
	case PTC_LOCAL_NEXT:
		ok = on_next(w, k);
		break;
	case PTC_LOCAL_TENSOR:
		ok = on_tensor(k, m);
		break;
	case PTC_LOCAL_DEVICE:
		ok = on_device(k, m);
		break;
	case PTC_LOCAL_DECLARED:
		ok = on_declared(w, k, m);
		break;
	case PTC_LOCAL_BLOB:
		ok = on_blob(k, m);
		break;
	case PTC_LOCAL_CURSOR:
		ok = on_cursor(k, m);
		break;
	case PTC_LOCAL_STOPPED:
		ok = on_stopped(w, k, m);
		break;
	case PTC_LOCAL_RENDEZVOUS_PUT:
	case PTC_LOCAL_RENDEZVOUS_GET:
		ok = on_rendezvous(w, k, m);
		break;
	case PTC_LOCAL_BYE:
		ok = on_bye(k);
		break;
	case PTC_LOCAL_FILLED:
		ok = on_filled(k, m);
		break;
	case PTC_LOCAL_LEAVES:
		ok = on_leaves(w, k);
		break;
	case PTC_LOCAL_KEEPS:
		ok = on_keeps(k, m);
		break;
	default:
		ok = m->type > PTC_LOCAL_KEEPS && m->type < PTC_LOCAL_WELCOME; /* of a later protocol: passed over */
	}
	if (ok)
		ptc_worker_advance_locked(w, k);
	ptc_workers_changed_locked(w);
	return ok;
}
