/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the hold word is set; the rank is frozen, and its state is whole; the blobs and cursors that it has
 * published are read. Failure modes: group_hold.h. The copier reads blobs and cursors, as all of a rank's memory. So an
 * address that the rank makes up gives an error, or bytes of its own. */
#include "daemon/workers/group/hold/group_hold.h"

#include "daemon/workers/copier/copier.h"
#include "daemon/workers/group/internal.h"
#include "daemon/workers/process/freeze.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MS           INT64_C(1000000)
#define NAP_NS       (2 * MS)
#define AGAIN_NS     (2 * MS) /* a rank that goes on to its next boundary is looked at again after */
#define UPDATE_STEPS 2        /* so many steps may an update take */

/* ---- one rank ---------------------------------------------------------------------- */

static bool can_hold(const struct worker *k)
{
	return k && !k->ended && !k->reaping && k->page && k->declared && atomic_load(&k->page->survives) &&
	       (k->phase == WORKER_RUNNING || k->phase == WORKER_STOPPED);
}

/* Where it is to be frozen: the update that it was let on for has ended. */
static bool is_there(const struct worker *k)
{
	uint64_t step;

	return ptc_local_whole(k->page) && ptc_local_step(k->page, &step) && step >= k->hold.goes_to;
}

static void thaw_worker(struct worker *k)
{
	if (k->hold.asked)
		ptc_process_thaw(&k->process);
	k->hold.asked = k->hold.frozen = k->hold.slow = k->hold.read = false;
	k->hold.published = ptc_rank_state_unref(k->hold.published);
}

static void freeze_worker(struct worker *k, int64_t now)
{
	struct ptc_error err = PTC_ERROR_INIT;

	k->hold.asked = true;
	k->hold.asked_ns = now;
	if (ptc_process_freeze(&k->process, &err) == 0)
		return;
	ptc_warn("workers", "job %s: process %d cannot be frozen: %s", k->job->uuid, (int)k->process.pid, err.text);
	k->hold.failed = true;
}

/* A thread that waits in the kernel, uninterruptibly, is frozen only when it wakes: it may write to memory until then.
 * False: the kernel has time left. A rank that is frozen later counts when its state is asked for again. */
static bool is_slow(struct worker *k, int64_t now)
{
	if (!k->hold.asked || now < k->hold.asked_ns + MS * WORKERS_FREEZE_MS)
		return false;
	if (!k->hold.slow)
		ptc_warn("workers",
			 "job %s: process %d is not frozen after %.0f s: a thread of it waits in the kernel, and "
			 "cannot be stopped there",
			 k->job->uuid, (int)k->process.pid, WORKERS_FREEZE_MS / 1e3);
	k->hold.slow = true;
	return true;
}

/* The state is whole, on its devices too. */
static bool device_is_there(const struct worker *k)
{
	return k->declared->ndevices ? ptc_local_all_whole(k->page) : ptc_local_whole(k->page);
}

/* One look. True: nothing more is to come of it. */
static bool look(const struct group *g, struct worker *k, int64_t now)
{
	int64_t from = k->hold.goes_to ? g->goes_on_ns : g->held_from_ns;
	bool late =
		k->leaving || now >= from + MS * WORKERS_UPDATE_MS + (int64_t)(k->step_seconds * UPDATE_STEPS * 1e9);

	if (k->hold.failed)
		return true;
	if (!k->hold.asked) /* it may have promised to survive after the others were told */
		atomic_exchange(&k->page->hold, 1);
	if (!k->hold.asked && (is_there(k) || late) && now >= k->hold.again_ns)
		freeze_worker(k, now);
	if (k->hold.asked && !k->hold.frozen)
		k->hold.frozen = ptc_process_frozen(&k->process, k->pid);
	if (!k->hold.frozen)
		return is_slow(k, now);
	if (late || device_is_there(k))
		return true;
	if (ptc_local_whole(k->page)) /* its device is on the way, and gets nothing more to do */
		return false;
	thaw_worker(k); /* it has begun an update before it saw that it must not: to the next boundary */
	k->hold.again_ns = now + AGAIN_NS;
	return false;
}

/* ---- the group ---------------------------------------------------------------------- */

static bool look_all(struct group *g, int64_t now)
{
	bool all = true;

	for (size_t i = 0; i < g->desc.nranks; i++) {
		struct worker *k = g->slots[i].worker;

		if (can_hold(k))
			all = look(g, k, now) && all;
		else if (k && k->reaping && !k->ended) /* what it has published may outlive it, and is read then */
			all = false;
	}
	return all;
}

/* Of each rank at the step before, unless it has said that it cannot. */
static void go_on(struct group *g, uint64_t to, int64_t now)
{
	g->goes_on_ns = now;
	for (size_t i = 0; i < g->desc.nranks; i++) {
		struct worker *k = g->slots[i].worker;
		uint64_t step;

		if (!can_hold(k) || !ptc_local_whole(k->page) || !ptc_local_step(k->page, &step) || step + 1 != to ||
		    k->hold.goes_to == to || ptc_worker_stays(k))
			continue;
		k->hold.goes_to = to;
		atomic_exchange(&k->page->hold_from, to);
		if (k->leaving)
			atomic_exchange(&k->page->leaving, PTC_LOCAL_LEAVE_UPDATES);
		k->leaving = false;
		thaw_worker(k);
	}
}

static void hold_locked(struct ptc_workers *w, struct group *g, int64_t ms, uint64_t to)
{
	int64_t now = ptc_sys_now_ns();

	if (g->ending || g->removed)
		return;
	if (!g->held_from_ns) {
		g->held_from_ns = now;
		g->held_most_ns = now + WORKERS_HELD_MAX_MS * MS;
	}
	g->held_until_ns = PTC_MIN(PTC_MAX(g->held_until_ns, now + ms * MS), g->held_most_ns);
	for (size_t i = 0; i < g->desc.nranks; i++)
		if (can_hold(g->slots[i].worker))
			atomic_exchange(&g->slots[i].worker->page->hold, 1);
	if (to)
		go_on(g, to, now);
	g->holding = !look_all(g, now);
	ptc_workers_wake(w);
}

/* ends: the ranks are ended next, and others go on from the step at which they were held. So none begins an update: one
 * that waits in ptc_update_begin stays there until its process ends. */
static void release_locked(struct ptc_workers *w, struct group *g, bool ends)
{
	if (!g->held_from_ns)
		return;
	g->held_from_ns = g->held_until_ns = 0;
	g->holding = false;
	for (size_t i = 0; i < g->desc.nranks; i++) {
		struct worker *k = g->slots[i].worker;

		if (!k)
			continue;
		if (k->page && !ends)
			atomic_exchange(&k->page->hold, 0);
		if (k->page)
			atomic_exchange(&k->page->hold_from, 0);
		if (ends && k->hold.frozen && !k->leaving)
			k->term_ns = ptc_sys_now_ns(); /* it comes to no boundary where it would be told */
		if (k->leaving && k->page)
			atomic_exchange(&k->page->leaving, PTC_LOCAL_LEAVE_GO);
		if (k->leaving && g->said_leaves)                /* else the cause has been told */
			g->said_failed = g->said_leaves = false; /* how it ends is told yet */
		k->leaving = k->hold.failed = false;
		k->hold.again_ns = 0;
		k->hold.goes_to = 0;
		thaw_worker(k);
	}
	ptc_workers_changed_locked(w);
}

void ptc_group_let_go_locked(struct ptc_workers *w, struct group *g)
{
	release_locked(w, g, false);
}

void ptc_group_end_held_locked(struct ptc_workers *w, struct group *g)
{
	release_locked(w, g, true);
}

/* For each process's helper, which counts from the last time. */
static void stays_frozen(const struct group *g)
{
	for (size_t i = 0; i < g->desc.nranks; i++)
		if (g->slots[i].worker && g->slots[i].worker->hold.asked)
			ptc_process_stays_frozen(&g->slots[i].worker->process);
}

/* From when somebody can decide, he has all of the time to find out about the ranks: while nobody could, it was made
 * longer from time to time only. */
static void decidable_locked(struct ptc_workers *w, int64_t now)
{
	for (struct job *job = w->jobs; job; job = job->next)
		for (struct group *g = job->groups; g; g = g->next) {
			if (!g->held_from_ns)
				continue;
			g->held_until_ns = PTC_MAX(g->held_until_ns, now + WORKERS_DECIDES_MS * MS);
			g->held_most_ns = PTC_MAX(g->held_most_ns, g->held_until_ns);
			stays_frozen(g);
		}
}

void ptc_workers_undecided(struct ptc_workers *w, bool undecided)
{
	pthread_mutex_lock(&w->lock);
	if (w->undecided && !undecided)
		decidable_locked(w, ptc_sys_now_ns());
	w->undecided = undecided;
	pthread_mutex_unlock(&w->lock);
}

/* Nobody can decide about the ranks. Those that have failed could do nothing but end, and nobody else can get their
 * devices. */
static void stay_held(struct group *g, int64_t now)
{
	if (g->held_until_ns > now + WORKERS_DECIDES_MS * MS / 2) /* as it is */
		return;
	ptc_info("workers", "job %s: etcd is unreachable, so its ranks stay held, by now for %.0f s", g->desc.job,
		 (double)(now - g->held_from_ns) / 1e9);
	g->held_until_ns = now + WORKERS_DECIDES_MS * MS;
	g->held_most_ns = now + WORKERS_HELD_MAX_MS * MS;
	stays_frozen(g);
}

bool ptc_workers_holds_locked(struct ptc_workers *w, int64_t now_ns)
{
	bool holding = false;

	for (struct job *job = w->jobs; job; job = job->next)
		for (struct group *g = job->groups; g; g = g->next) {
			if (g->wants_hold)
				hold_locked(w, g, WORKERS_LEAVES_MS, 0);
			g->wants_hold = false;
			if (!g->held_from_ns)
				continue;
			if (w->undecided)
				stay_held(g, now_ns);
			if (now_ns < g->held_until_ns || (g->viewed && now_ns < g->held_most_ns)) {
				g->holding = !look_all(g, now_ns);
				holding |= g->holding;
				continue;
			}
			ptc_warn("workers",
				 "job %s: its ranks were held for %.1f s, and nobody has asked for them: they go on",
				 g->desc.job, (double)(now_ns - g->held_from_ns) / 1e9);
			ptc_group_let_go_locked(w, g);
		}
	return holding;
}

void ptc_workers_let_all_go_locked(struct ptc_workers *w)
{
	for (struct job *job = w->jobs; job; job = job->next)
		for (struct group *g = job->groups; g; g = g->next)
			ptc_group_let_go_locked(w, g);
}

/* ---- what a frozen rank has published -------------------------------------------------- */

struct published {
	uint64_t from, address, bytes;
};

/* The later one that holds at that step. */
static bool published_at(struct ptc_local_page *page, uint64_t step, struct published *ret)
{
	*ret = (struct published){ 0 };
	for (int i = 0; i < 2; i++) {
		struct ptc_local_published *p = &page->published[i];
		struct published now = { atomic_load(&p->from), atomic_load(&p->address), atomic_load(&p->bytes) };

		if (now.from && now.from <= step + 1 && now.from > ret->from)
			*ret = now;
	}
	return ret->from != 0 && ret->bytes <= PTC_LOCAL_PUBLISHED_MAX;
}

static int parse(const uint8_t *data, uint64_t bytes, struct rank_state **to)
{
	uint64_t at = 0;
	int rc = 0;

	while (!rc && at < bytes) {
		uint32_t head[2] = { 0, UINT32_MAX };
		struct ptc_local_blob b;
		struct ptc_local_cursor c;

		if (bytes - at >= sizeof head)
			memcpy(head, data + at, sizeof head);
		at += sizeof head;
		if (at > bytes || head[1] > bytes - at)
			return PTC_EINVAL;
		if (head[0] == PTC_LOCAL_BLOB && ptc_local_get_blob(data + at, head[1], &b))
			rc = ptc_rank_state_set_blob(to, &b);
		else if (head[0] == PTC_LOCAL_CURSOR && ptc_local_get_cursor(data + at, head[1], &c))
			rc = ptc_rank_state_set_cursor(to, &c);
		else
			return PTC_EINVAL;
		at += head[1];
	}
	return rc;
}

struct reader {
	struct ptc_workers *w;
	char uuid[37];
	uid_t uid;
	pid_t pid;
	int kept; /* ours; what is published lies there, at kept_at; -1: in the process alone */
	uint64_t kept_at;
	int64_t late_ns; /* by then a copier has to be there that it can ask */
	struct ptc_slot_copying copying;
};

static void find_kept(struct reader *r, const struct worker *k, const struct published *p)
{
	uint64_t at = p->address - k->kept.address;

	if (k->kept.fd < 0 || p->address < k->kept.address || at > k->kept.bytes || p->bytes > k->kept.bytes - at)
		return;
	r->kept = fcntl(k->kept.fd, F_DUPFD_CLOEXEC, 0);
	r->kept_at = at;
}

/* Of a memfd; the rank, if it lives, cannot make it shorter, and is frozen. */
static int read_kept(const struct reader *r, const struct published *p, struct rank_state **to, struct ptc_error *err)
{
	ptc_auto_free uint8_t *data = ptc_malloc(p->bytes ? p->bytes : 1);
	uint64_t done = 0;

	if (!data)
		return ptc_nomem(err);
	while (done < p->bytes) {
		ssize_t n = pread(r->kept, data + done, p->bytes - done, (off_t)(r->kept_at + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return ptc_error_errno(err, n < 0 ? errno : EIO,
					       "cannot read the blobs and cursors that process %d has left",
					       (int)r->pid);
		done += (uint64_t)n;
	}
	return parse(data, p->bytes, to)
		       ? ptc_error_set(err, PTC_EINVAL, "process %d has published bytes that are no blobs and cursors",
				       (int)r->pid)
		       : 0;
}

/* Into memory of its own, for a copier that hangs may write to it later: it is unmapped here, not there. */
static int read_published(struct reader *r, const struct published *p, struct rank_state **to, struct ptc_error *err)
{
	struct ptc_slot_memory *m = &r->copying.memory[0];
	ptc_auto_close int fd = memfd_create("ptc-published", MFD_CLOEXEC);
	struct iovec there = { (void *)(uintptr_t)p->address, p->bytes }, here;
	struct ptc_copy_call call = { .uuid = r->uuid,
				      .uid = r->uid,
				      .pid = r->pid,
				      .op = PTC_COPY_READ,
				      .there = &there,
				      .here = &here,
				      .nthere = 1,
				      .nhere = 1,
				      .copying = &r->copying };
	void *room = MAP_FAILED;
	uint64_t moved;
	struct stat st;
	int e = 0, rc;

	if (!p->bytes)
		return 0;
	if (r->kept >= 0)
		return read_kept(r, p, to, err);
	if (fd >= 0 && ftruncate(fd, (off_t)p->bytes) == 0 && fstat(fd, &st) == 0)
		room = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (room == MAP_FAILED)
		return ptc_error_errno(err, errno, "no memory to read blobs and cursors");
	*m = (struct ptc_slot_memory){ fd, true, true, room, p->bytes, st.st_dev, st.st_ino };
	r->copying.memory[1].fd = -1;
	r->copying.hang_ms = WORKERS_PUBLISHED_MS;
	r->copying.start_ms = PTC_MAX((r->late_ns - ptc_sys_now_ns()) / MS, 1);
	here = (struct iovec){ room, p->bytes };
	rc = ptc_copiers_call(&r->w->copiers, &call, &e, &moved, err);
	if (!rc && e)
		rc = ptc_error_errno(err, e, "cannot read the memory of process %d", (int)r->pid);
	if (!rc && parse(room, p->bytes, to))
		rc = ptc_error_set(err, PTC_EINVAL, "process %d has published bytes that are no blobs and cursors",
				   (int)r->pid);
	ptc_copiers_forget(&r->w->copiers, r->uuid, m);
	munmap(room, p->bytes);
	return rc;
}

/* Without the lock while the copier works: the process may end meanwhile. From late_ns on the controller does not wait
 * for a further copy that may hang, nor for a copier that is not ready. */
static void read_worker_locked(struct ptc_workers *w, struct group *g, size_t i, int64_t late_ns)
{
	struct worker *k = g->slots[i].worker;
	struct reader r = { .w = w, .uid = g->job->uid, .pid = k->pid, .kept = -1, .late_ns = late_ns };
	struct ptc_error err = PTC_ERROR_INIT;
	struct rank_state *state;
	struct published p;
	unsigned number = k->number;
	uint64_t step;
	int rc;

	k->hold.read = true;
	if (!ptc_local_step(k->page, &step) || !published_at(k->page, step, &p))
		return;
	find_kept(&r, k, &p);
	if (r.kept < 0 && p.bytes && (k->outlived /* with the process */ || ptc_sys_now_ns() > late_ns))
		return;
	memcpy(r.uuid, g->job->uuid, sizeof r.uuid);
	pthread_mutex_unlock(&w->lock);
	state = ptc_rank_state_new();
	rc = state ? read_published(&r, &p, &state, &err) : ptc_nomem(&err);
	ptc_close(&r.kept);
	pthread_mutex_lock(&w->lock);
	k = g->slots[i].worker;
	if (rc)
		ptc_warn("workers", "job %s: rank %u: %s", g->desc.job, g->slots[i].rank.rank, err.text);
	if (rc || !k || k->number != number || !(k->hold.frozen || k->outlived) || k->hold.published) {
		ptc_rank_state_unref(state);
		return;
	}
	k->hold.published = state;
	k->hold.step = step;
}

/* False: there was nothing to read. Else the lock was away, and ranks may have ended meanwhile. */
static bool read_all_locked(struct ptc_workers *w, struct group *g)
{
	const int64_t late_ns = ptc_sys_now_ns() + WORKERS_LAST_READ_MS * MS;
	bool any = false;

	for (size_t i = 0; i < g->desc.nranks && g->held_from_ns; i++) {
		struct worker *k = g->slots[i].worker;

		if (k && !k->hold.read && ((can_hold(k) && k->hold.frozen) || k->outlived)) {
			read_worker_locked(w, g, i, late_ns);
			any = true;
		}
	}
	return any;
}

/* The step's update has been marked: the program does mark them. */
static bool has_marked(const struct group *g, const struct worker *k, uint64_t step)
{
	uint64_t marked = atomic_load(&k->page->marked);

	return marked == step || (step == g->start_step && !marked);
}

#define ENDED "its process has ended, or does not train"

/* Of a rank that has ended, whose devices have its memory still. Where its blobs and cursors have ended with it,
 * another rank has to have those of the job. */
static const char *not_outlived(const struct group *g, const struct worker *k)
{
	uint64_t step = 0;

	if (!k->devices_outlived)
		return ENDED;
	if (!ptc_local_step(k->page, &step) || !ptc_local_all_whole(k->page))
		return "it has ended in the middle of an update, or its device had not finished a step";
	if (!has_marked(g, k, step))
		return "no update was marked in its last step (ptc_update_begin)";
	if (k->phase == WORKER_STOPPED && (k->finished || *k->refused))
		return "it has finished, or refuses to have its state taken";
	if (k->hold.published && k->hold.step == step)
		return NULL;
	for (size_t i = 0; i < g->desc.nranks; i++) {
		const struct worker *other = g->slots[i].worker;

		if (other && !other->outlived && other->hold.step == step && !ptc_worker_not_held(g, other))
			return NULL;
	}
	return "its blobs and cursors have ended with it, and no rank beside it is held at its step";
}

bool ptc_worker_stays(const struct worker *k)
{
	return k && k->leaving && !(k->page && atomic_load(&k->page->ready));
}

const char *ptc_worker_never_held(const struct worker *k)
{
	if (k && k->page && atomic_load(&k->page->broken))
		return "its program's promise that its memory stays whole was found to be broken (`ptcctl status` says "
		       "why)";
	if (!can_hold(k))
		return "its program does not promise that its memory stays whole (ptc_survive)";
	if (k->declared->ndevices && k->declared->path != DEVICE_MAPPED)
		return "it alone can copy its device memory";
	if (k->declared->ndevices && atomic_load(&k->page->marks) != PTC_LOCAL_MARKS_PROVEN)
		return "its device writes no marks, or they prove nothing (ptc_stream)";
	return NULL;
}

const char *ptc_worker_not_held(const struct group *g, const struct worker *k)
{
	const char *why;
	uint64_t step = 0;

	if (k && k->outlived)
		return not_outlived(g, k);
	if (!k || k->ended || !k->page || !k->declared || (k->phase != WORKER_RUNNING && k->phase != WORKER_STOPPED))
		return ENDED;
	if ((why = ptc_worker_never_held(k)))
		return why;
	if (!k->hold.frozen || (k->hold.slow && !k->hold.read))
		return "its process could not be frozen";
	if (!ptc_process_frozen(&k->process, k->pid)) /* now: others may have thawed it (SIGCONT, ptc-exec) */
		return "its process is no longer frozen";
	if (!ptc_local_whole(k->page) || !ptc_local_step(k->page, &step))
		return "it was in the middle of an update, and has not come to a boundary in time";
	if (!device_is_there(k))
		return "its device has not finished the step that its program has reached";
	if (!has_marked(g, k, step))
		return "no update was marked in its last step (ptc_update_begin)";
	if (k->phase == WORKER_STOPPED && (k->finished || *k->refused))
		return "it has finished, or refuses to have its state taken";
	return k->hold.published && k->hold.step == step ? NULL : "its blobs and cursors could not be read";
}

/* ---- calls ------------------------------------------------------------------------------ */

/* Looks more often than the loop does. */
static int wait_frozen_locked(struct ptc_workers *w, struct group *g, const struct ptc_wait *wait,
			      struct ptc_error *err)
{
	while (g->held_from_ns && !look_all(g, ptc_sys_now_ns())) {
		if (wait && wait->cancelled && wait->cancelled(wait->arg))
			return ptc_error_set(err, PTC_ECANCELED, "the caller has gone");
		pthread_mutex_unlock(&w->lock);
		nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
		pthread_mutex_lock(&w->lock);
	}
	return 0;
}

int ptc_workers_hold(struct ptc_workers *w, const struct ptc_group_key *key, int64_t ms, uint64_t to,
		     const struct ptc_wait *wait, struct ptc_error *err)
{
	struct group *g;
	int rc;

	pthread_mutex_lock(&w->lock);
	g = ptc_group_find_locked(w, key);
	rc = g && !g->ending ? 0 : ptc_group_missing(key, err);
	if (!rc) {
		ptc_group_ref(g);
		hold_locked(w, g, ms, to);
		do
			rc = wait_frozen_locked(w, g, wait, err);
		while (!rc && read_all_locked(w, g));
		ptc_group_unref_locked(g);
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

int ptc_workers_let_go(struct ptc_workers *w, const struct ptc_group_key *key, struct ptc_error *err)
{
	struct group *g;
	int rc;

	pthread_mutex_lock(&w->lock);
	g = ptc_group_find_locked(w, key);
	rc = g ? 0 : ptc_group_missing(key, err);
	if (!rc)
		ptc_group_let_go_locked(w, g);
	pthread_mutex_unlock(&w->lock);
	return rc;
}
