/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the hold word, frozen, whole, published read. Failure modes: group_hold.h. What a rank has published is
 * read as all of its memory is, by the copier, so addresses that it makes up give an error, or bytes of its own. */
#include "daemon/workers/group/group_hold.h"

#include "daemon/workers/copier/copier.h"
#include "daemon/workers/group/internal.h"
#include "daemon/workers/process/freeze.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MS           INT64_C(1000000)
#define NAP_NS       (2 * MS)
#define AGAIN_NS     (2 * MS) /* a rank that goes on to its next boundary is looked at again after */
#define SETTLE_STEPS 2        /* so many steps may an update take */

/* ---- one rank ---------------------------------------------------------------------- */

static bool can_hold(const struct worker *k)
{
	return k && !k->ended && !k->reaping && k->page && k->declared &&
	       (k->phase == WORKER_RUNNING || k->phase == WORKER_STOPPED);
}

static void thaw_worker(struct worker *k)
{
	if (k->hold.asked)
		ptc_process_thaw(&k->process);
	k->hold.asked = k->hold.frozen = k->hold.read = false;
	k->hold.kept = ptc_rank_state_unref(k->hold.kept);
}

static void freeze_worker(struct worker *k)
{
	struct ptc_error err = PTC_ERROR_INIT;

	k->hold.asked = true;
	if (ptc_process_freeze(&k->process, &err) == 0)
		return;
	ptc_warn("workers", "job %s: process %d cannot be frozen: %s", k->job->uuid, (int)k->process.pid, err.text);
	k->hold.failed = true;
}

/* One look. True: nothing more is to come of it. */
static bool look(const struct group *g, struct worker *k, int64_t now)
{
	bool late = now >= g->held_from_ns + MS * WORKERS_SETTLE_MS +
				   (int64_t)(k->step_seconds * SETTLE_STEPS * 1e9);

	if (k->hold.failed)
		return true;
	if (!k->hold.asked && (ptc_local_whole(k->page) || late) && now >= k->hold.again_ns)
		freeze_worker(k);
	if (k->hold.asked && !k->hold.frozen)
		k->hold.frozen = ptc_process_frozen(&k->process);
	if (!k->hold.frozen)
		return false;
	if (ptc_local_whole(k->page) || late)
		return true;
	thaw_worker(k); /* it has begun an update before it saw that it must not: to the next boundary */
	k->hold.again_ns = now + AGAIN_NS;
	return false;
}

/* ---- the group ---------------------------------------------------------------------- */

static bool look_all(struct group *g, int64_t now)
{
	bool settled = true;

	for (size_t i = 0; i < g->desc.nranks; i++)
		if (can_hold(g->slots[i].worker))
			settled = look(g, g->slots[i].worker, now) && settled;
	return settled;
}

void ptc_group_hold_locked(struct ptc_workers *w, struct group *g, int64_t ms)
{
	int64_t now = ptc_sys_now_ns();

	if (g->ending || g->removed)
		return;
	if (!g->held_from_ns)
		g->held_from_ns = now;
	g->held_until_ns = PTC_MIN(PTC_MAX(g->held_until_ns, now + ms * MS), g->held_from_ns + WORKERS_HELD_MAX_MS * MS);
	for (size_t i = 0; i < g->desc.nranks; i++)
		if (can_hold(g->slots[i].worker))
			atomic_exchange(&g->slots[i].worker->page->hold, 1);
	look_all(g, now);
	ptc_workers_wake(w);
}

void ptc_group_let_go_locked(struct ptc_workers *w, struct group *g)
{
	if (!g->held_from_ns)
		return;
	g->held_from_ns = g->held_until_ns = 0;
	for (size_t i = 0; i < g->desc.nranks; i++) {
		struct worker *k = g->slots[i].worker;

		if (!k)
			continue;
		if (k->page)
			atomic_exchange(&k->page->hold, 0);
		if (k->leaving && k->page)
			atomic_exchange(&k->page->leaving, PTC_LOCAL_LET_GO);
		if (k->leaving)
			g->said_failed = false; /* how it ends is told yet */
		k->leaving = k->hold.failed = false;
		k->hold.again_ns = 0;
		thaw_worker(k);
	}
	ptc_workers_changed_locked(w);
}

void ptc_workers_holds_locked(struct ptc_workers *w, int64_t now_ns)
{
	for (struct job *job = w->jobs; job; job = job->next)
		for (struct group *g = job->groups; g; g = g->next) {
			if (!g->held_from_ns)
				continue;
			if (now_ns < g->held_until_ns ||
			    (g->viewed && now_ns < g->held_from_ns + WORKERS_HELD_MAX_MS * MS)) {
				look_all(g, now_ns);
				continue;
			}
			ptc_warn("workers", "job %s: its ranks were held for %.1f s, and nobody has asked for them: "
					    "they go on",
				 g->desc.job, (double)(now_ns - g->held_from_ns) / 1e9);
			ptc_group_let_go_locked(w, g);
		}
}

void ptc_workers_let_all_go_locked(struct ptc_workers *w)
{
	for (struct job *job = w->jobs; job; job = job->next)
		for (struct group *g = job->groups; g; g = g->next)
			ptc_group_let_go_locked(w, g);
}

/* ---- what a frozen rank has published -------------------------------------------------- */

struct reader {
	struct ptc_workers *w;
	char uuid[37];
	uid_t uid;
	pid_t pid;
	struct ptc_slot_copying copying;
	uint8_t *room;
};

#define ROOM_BYTES                                                                                                     \
	((PTC_LOCAL_BLOBS_MAX + PTC_LOCAL_CURSORS_MAX) * sizeof(struct ptc_local_kept) + PTC_LOCAL_BLOB_MAX)

static int reader_open(struct reader *r, struct ptc_error *err)
{
	struct ptc_slot_memory *m = &r->copying.memory[0];
	void *room = MAP_FAILED;
	struct stat st;

	r->copying.memory[1].fd = -1;
	m->fd = memfd_create("ptc-kept", MFD_CLOEXEC);
	if (m->fd >= 0 && ftruncate(m->fd, (off_t)ROOM_BYTES) == 0 && fstat(m->fd, &st) == 0)
		room = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (room == MAP_FAILED)
		return ptc_error_errno(err, errno, "no memory to read what ranks carry");
	m->base = r->room = room;
	m->bytes = ROOM_BYTES;
	m->writable = m->once = true;
	m->dev = st.st_dev;
	m->ino = st.st_ino;
	return 0;
}

static void reader_close(struct reader *r)
{
	if (r->room) {
		ptc_copiers_forget(&r->w->copiers, r->uuid, &r->copying.memory[0]);
		munmap(r->room, ROOM_BYTES);
	}
	ptc_close(&r->copying.memory[0].fd);
}

static int read_bytes(struct reader *r, uint64_t address, void *to, size_t len, struct ptc_error *err)
{
	struct iovec there = { (void *)(uintptr_t)address, len }, here = { to, len };
	struct ptc_copy_call call = { .uuid = r->uuid,
				      .uid = r->uid,
				      .pid = r->pid,
				      .op = PTC_COPY_READ,
				      .there = &there,
				      .here = &here,
				      .nthere = 1,
				      .nhere = 1,
				      .copying = &r->copying };
	uint64_t moved;
	int e = 0, rc;

	if (!len)
		return 0;
	rc = ptc_copiers_call(&r->w->copiers, &call, &e, &moved, err);
	return rc || !e ? rc : ptc_error_errno(err, e, "cannot read what process %d carries", (int)r->pid);
}

static int add_kept(struct reader *r, const struct ptc_local_kept *k, bool blob, struct rank_state **to,
		    struct ptc_error *err)
{
	uint8_t *data = r->room + ROOM_BYTES - PTC_LOCAL_BLOB_MAX;
	int rc = 0;

	if (memchr(k->name, 0, sizeof k->name) == NULL || memchr(k->tag, 0, sizeof k->tag) == NULL ||
	    ptc_local_short_error(k->name) ||
	    (blob && (k->len > PTC_LOCAL_BLOB_MAX || !k->scope || k->scope > PTC_LOCAL_SCOPE_MAX)))
		return ptc_error_set(err, PTC_EINVAL, "process %d carries what is no blob or cursor", (int)r->pid);
	if (blob)
		rc = read_bytes(r, k->address, data, k->len, err);
	if (rc)
		return rc;
	rc = blob ? ptc_rank_state_set_blob(to, &(struct ptc_local_blob){ k->name, (uint8_t)k->scope, data, k->len })
		  : ptc_rank_state_set_cursor(to, &(struct ptc_local_cursor){ k->name, k->tag, k->address });
	return rc ? ptc_nomem(err) : 0;
}

static int read_kept(struct reader *r, const struct ptc_local_published *p, struct rank_state **to,
		     struct ptc_error *err)
{
	struct ptc_local_kept *v = (struct ptc_local_kept *)r->room;
	int rc;

	if (p->nblobs > PTC_LOCAL_BLOBS_MAX || p->ncursors > PTC_LOCAL_CURSORS_MAX)
		return ptc_error_set(err, PTC_EINVAL, "process %d carries too much", (int)r->pid);
	rc = read_bytes(r, p->address, v, (p->nblobs + p->ncursors) * sizeof *v, err);
	for (uint32_t i = 0; !rc && i < p->nblobs + p->ncursors; i++)
		rc = add_kept(r, &v[i], i < p->nblobs, to, err);
	return rc;
}

/* The one of the two that holds at that step. */
static bool published_at(struct ptc_local_page *page, uint64_t step, struct ptc_local_published *ret)
{
	bool found = false;

	for (int i = 0; i < 2; i++) {
		const struct ptc_local_published *p = &page->published[i];
		uint64_t from = atomic_load(&p->from);

		if (!from || from > step + 1 || (found && from < ret->from))
			continue;
		atomic_store(&ret->from, from);
		ret->address = p->address;
		ret->nblobs = p->nblobs;
		ret->ncursors = p->ncursors;
		found = true;
	}
	return found;
}

/* Without the lock while the copier works: the process may end meanwhile. */
static void read_worker_locked(struct ptc_workers *w, struct group *g, size_t i)
{
	struct worker *k = g->slots[i].worker;
	struct reader r = { .w = w, .uid = g->job->uid, .pid = k->pid };
	struct ptc_error err = PTC_ERROR_INIT;
	struct rank_state *kept = ptc_rank_state_new();
	struct ptc_local_published p;
	unsigned number = k->number;
	uint64_t step;
	int rc = kept ? 0 : ptc_nomem(&err);

	memcpy(r.uuid, g->job->uuid, sizeof r.uuid);
	k->hold.read = true;
	if (!ptc_local_step(k->page, &step) || !published_at(k->page, step, &p)) {
		ptc_rank_state_unref(kept);
		return;
	}
	pthread_mutex_unlock(&w->lock);
	if (!rc)
		rc = reader_open(&r, &err);
	if (!rc)
		rc = read_kept(&r, &p, &kept, &err);
	reader_close(&r);
	pthread_mutex_lock(&w->lock);
	k = g->slots[i].worker;
	if (rc)
		ptc_warn("workers", "job %s: rank %u: %s", g->desc.job, g->slots[i].rank.rank, err.text);
	if (rc || !k || k->number != number || !k->hold.frozen || k->hold.kept) {
		ptc_rank_state_unref(kept);
		return;
	}
	k->hold.kept = kept;
	k->hold.kept_step = step;
}

static void read_all_locked(struct ptc_workers *w, struct group *g)
{
	for (size_t i = 0; i < g->desc.nranks && g->held_from_ns; i++) {
		struct worker *k = g->slots[i].worker;

		if (can_hold(k) && k->hold.frozen && !k->hold.read)
			read_worker_locked(w, g, i);
	}
}

const char *ptc_worker_not_held(const struct worker *k)
{
	uint64_t step = 0;

	if (!can_hold(k))
		return "its process has ended, or is not in training";
	if (atomic_load(&k->page->survives) == PTC_LOCAL_SURVIVES_NOT_SAID)
		return "its program does not promise that its memory is whole (ptc_survive)";
	if (!k->hold.frozen)
		return "its process could not be frozen";
	if (!ptc_local_whole(k->page) || !ptc_local_step(k->page, &step))
		return "it was in the middle of an update, and has not come to a boundary in time";
	if (atomic_load(&k->page->survives) != PTC_LOCAL_SURVIVES_YES)
		return "its program says that its state cannot be taken there";
	if (atomic_load(&k->page->marked) != step + 1)
		return "no update was marked in its last step (ptc_update_begin)";
	if (k->phase == WORKER_STOPPED && (k->finished || *k->refused))
		return "it has finished, or has refused its state";
	return k->hold.kept && k->hold.kept_step == step ? NULL : "what it carries beside tensors could not be read";
}

/* ---- calls ------------------------------------------------------------------------------ */

/* Looks more often than the loop does. */
static int settle_locked(struct ptc_workers *w, struct group *g, const struct ptc_wait *wait, struct ptc_error *err)
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

int ptc_workers_hold(struct ptc_workers *w, const struct ptc_group_key *key, int64_t ms, const struct ptc_wait *wait,
		     struct ptc_error *err)
{
	struct group *g;
	int rc;

	pthread_mutex_lock(&w->lock);
	g = ptc_group_find_locked(w, key);
	rc = g && !g->ending ? 0 : ptc_group_missing(key, err);
	if (!rc) {
		ptc_group_ref(g);
		ptc_group_hold_locked(w, g, ms);
		rc = settle_locked(w, g, wait, err);
		if (!rc)
			read_all_locked(w, g);
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
