/* SPDX-License-Identifier: Apache-2.0 */
/* ptcd's side of ptc-copy.
 *
 *   STARTING --ready--> IDLE or BUSY --closed, killed, ended by itself--> ENDING --waited for--> freed
 *
 * A copier is in the list from its start until it has been waited for and nobody refers to it. The caller that starts
 * it lets go of the lock meanwhile; others of the job wait. A request without an answer ends in one of two ways. If the
 * process is gone, it can write nowhere any more, and the request is made again. If it is not gone, the memory that the
 * request named is kept as long as the process. */
#include "daemon/workers/copier/copier.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/child.h"
#include "base/sys/helper.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define HANG_MS_DEFAULT 30000
#define LOOK_MS         100  /* how soon a caller sees that it is cancelled */
#define GONE_MS         1000 /* a process that was killed and has not ended by then hangs */
#define TRIES           5    /* of a request whose copier ends under it */

struct slot {
	int fd;
	bool busy;
	pid_t rank;                 /* whose memory the request is about */
	struct ptc_slot_kept *kept; /* of one that was given up */
};
struct memory_map {
	bool used, writable;
	unsigned busy; /* requests under way, mapping among them */
	bool mapped;
	uint64_t dev, ino;
};
struct copier {
	struct copier *next;
	char uuid[37];
	uint64_t number;
	unsigned refs;            /* callers */
	struct ptc_child process; /* pid 0: it has been waited for */
	bool ready, ending;
	int64_t hung_ns; /* since when; 0: it does not */
	unsigned nslots;
	struct slot slots[PTC_COPY_THREADS];
	struct memory_map maps[PTC_COPY_MAPS];
};

void ptc_slot_kept_unref(struct ptc_slot_kept *k)
{
	if (k && atomic_fetch_sub(&k->refs, 1) == 1)
		k->done(k);
}

void ptc_copiers_init(struct ptc_copiers *cs, int64_t hang_ms)
{
	*cs = (struct ptc_copiers){ .hang_ms = hang_ms ? hang_ms : HANG_MS_DEFAULT };
	ptc_require(!pthread_mutex_init(&cs->lock, NULL));
	ptc_cond_init(&cs->changed);
}

/* ---- ends ---- */

static void close_slots(struct copier *c)
{
	for (unsigned i = 0; i < c->nslots; i++)
		if (c->slots[i].fd >= 0 && !c->slots[i].busy) {
			close(c->slots[i].fd);
			c->slots[i].fd = -1;
		}
}

/* It gets no further request, and ends when its last answer is there. */
static void end_locked(struct copier *c)
{
	c->ending = true;
	close_slots(c);
}

static void kill_locked(struct copier *c)
{
	end_locked(c);
	if (c->process.pid)
		ptc_child_signal(&c->process, SIGKILL);
}

/* Whether nothing of it is left in the kernel. */
static bool gone_locked(struct copier *c)
{
	if (c->process.pid && ptc_child_wait(&c->process, 0, NULL)) {
		c->process.pid = 0;
		end_locked(c);
	}
	return !c->process.pid;
}

static struct copier *copier_free(struct copier *c)
{
	for (unsigned i = 0; i < c->nslots; i++) {
		ptc_close(&c->slots[i].fd);
		ptc_slot_kept_unref(c->slots[i].kept);
	}
	ptc_child_close(&c->process);
	ptc_free(c);
	return NULL;
}

/* Takes those out of the list that have gone. */
static struct copier *take_gone_locked(struct ptc_copiers *cs)
{
	struct copier *taken = NULL;

	for (struct copier **at = &cs->list; *at;) {
		struct copier *c = *at;

		if (!gone_locked(c) || c->refs) {
			at = &c->next;
			continue;
		}
		if (c->hung_ns)
			ptc_info("workers", "job %s: the process that hung in a rank's memory has ended", c->uuid);
		*at = c->next;
		c->next = taken;
		taken = c;
	}
	return taken;
}

void ptc_copiers_end(struct ptc_copiers *cs, bool (*wanted)(void *arg, const char *uuid), void *arg)
{
	pthread_mutex_lock(&cs->lock);
	for (struct copier *c = cs->list; c; c = c->next)
		if (!c->ending && !c->refs && !wanted(arg, c->uuid))
			end_locked(c);
	pthread_mutex_unlock(&cs->lock);
}

bool ptc_copiers_look(struct ptc_copiers *cs)
{
	struct copier *gone, *next;
	bool any;

	pthread_mutex_lock(&cs->lock);
	gone = take_gone_locked(cs);
	any = cs->list != NULL;
	pthread_mutex_unlock(&cs->lock);
	for (; gone; gone = next) {
		next = gone->next;
		copier_free(gone);
	}
	return any;
}

void ptc_copiers_done(struct ptc_copiers *cs)
{
	struct copier *next;

	pthread_mutex_lock(&cs->lock);
	cs->quit = true;
	for (struct copier *c = cs->list; c; c = c->next)
		kill_locked(c);
	pthread_mutex_unlock(&cs->lock);
	for (struct copier *c = cs->list; c; c = next) {
		next = c->next;
		if (c->process.pid && !c->hung_ns)
			(void)ptc_child_wait(&c->process, GONE_MS, NULL);
		(void)gone_locked(c);
		copier_free(c);
	}
	cs->list = NULL;
	pthread_cond_destroy(&cs->changed);
	pthread_mutex_destroy(&cs->lock);
}

int64_t ptc_copiers_hung_ns(struct ptc_copiers *cs, const char *uuid, pid_t rank, pid_t *ret_copier)
{
	int64_t ns = 0;

	pthread_mutex_lock(&cs->lock);
	for (struct copier *c = cs->list; c; c = c->next)
		for (unsigned i = 0; c->hung_ns && !strcmp(c->uuid, uuid) && i < c->nslots; i++)
			if (c->slots[i].busy && c->slots[i].rank == rank && !gone_locked(c)) {
				ns = PTC_MAX(ns, ptc_sys_now_ns() - c->hung_ns);
				*ret_copier = c->process.pid;
			}
	pthread_mutex_unlock(&cs->lock);
	return ns;
}

uint64_t ptc_copiers_number(struct ptc_copiers *cs, const char *uuid)
{
	uint64_t number = 0;

	pthread_mutex_lock(&cs->lock);
	for (const struct copier *c = cs->list; c; c = c->next)
		if (!strcmp(c->uuid, uuid) && !c->ending)
			number = c->number;
	pthread_mutex_unlock(&cs->lock);
	return number;
}

/* ---- begins ---- */

static unsigned slots_wanted(void)
{
	return PTC_MIN(PTC_MAX(ptc_thread_processors(), 2u), (unsigned)PTC_COPY_THREADS);
}

static int make_sockets(struct copier *c, int *theirs, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		int fds[2];

		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds))
			return errno;
		c->slots[i] = (struct slot){ .fd = fds[0] };
		c->nslots = i + 1;
		theirs[i] = fds[1];
	}
	return 0;
}

static int start_process(struct copier *c, uid_t uid, struct ptc_error *err)
{
	char path[PTC_HELPER_PATH], name[] = "ptc-copy", user[16], count[16];
	char *argv[] = { name, user, count, NULL };
	int theirs[PTC_COPY_THREADS], e;
	unsigned n = slots_wanted();
	int rc = ptc_helper_find("ptc-copy", "PTC_COPY", path, err);

	if (rc)
		return rc;
	snprintf(user, sizeof user, "%u", (unsigned)uid);
	snprintf(count, sizeof count, "%u", n);
	e = make_sockets(c, theirs, n);
	rc = e ? ptc_error_errno(err, e, "cannot start %s", path)
	       : ptc_child_start(
			 &(struct ptc_child_args){
				 .path = path, .argv = argv, .fds = theirs, .nfds = n, .session = true },
			 &c->process, err);
	for (unsigned i = 0; i < c->nslots; i++)
		close(theirs[i]);
	return rc;
}

static bool cancelled(const struct ptc_slot_copying *copying)
{
	return copying->wait && copying->wait->cancelled && copying->wait->cancelled(copying->wait->arg);
}

static int64_t limit_ms(const struct ptc_copiers *cs, const struct ptc_slot_copying *copying)
{
	return copying->hang_ms ? PTC_MIN(copying->hang_ms, cs->hang_ms) : cs->hang_ms;
}

/* A copier looks up its user's groups, which may take longer than any copy. */
static int64_t start_limit_ms(const struct ptc_copiers *cs, const struct ptc_slot_copying *copying)
{
	return copying->start_ms ? PTC_MIN(copying->start_ms, cs->hang_ms) : limit_ms(cs, copying);
}

/* How a wait for an answer ended. */
enum heard { HEARD, HEARD_END, HEARD_LATE, HEARD_CANCEL };

struct reply {
	struct ptc_copy_answer a;
	char text[PTC_COPY_TEXT_MAX + 1];
};

static enum heard hear(struct ptc_copiers *cs, const struct copier *c, int fd, const struct ptc_slot_copying *copying,
		       int64_t ms, struct reply *r)
{
	int64_t deadline = ptc_sys_now_ns() + ms * 1000000;
	struct pollfd p = { .fd = fd, .events = POLLIN };
	ssize_t n;

	while (poll(&p, 1, LOOK_MS) <= 0) {
		bool over;

		pthread_mutex_lock(&cs->lock);
		over = c->hung_ns != 0; /* what another thread of it hangs in keeps its end from us */
		pthread_mutex_unlock(&cs->lock);
		if (over)
			return HEARD_END;
		if (cs->quit || cancelled(copying))
			return HEARD_CANCEL;
		if (ptc_sys_now_ns() >= deadline)
			return HEARD_LATE;
	}
	memset(r, 0, sizeof *r);
	n = recv(fd, r, sizeof *r - 1, 0);
	return n >= (ssize_t)sizeof r->a && ptc_version_reads(r->a.version, PTC_COPY_OLDEST, PTC_COPY_VERSION)
		       ? HEARD
		       : HEARD_END;
}

static int start(struct ptc_copiers *cs, struct copier *c, const struct ptc_copy_call *call, struct ptc_error *err)
{
	struct reply r = { 0 };
	int rc = start_process(c, call->uid, err);

	if (rc)
		return rc;
	switch (hear(cs, c, c->slots[0].fd, call->copying, start_limit_ms(cs, call->copying), &r)) {
	case HEARD:
		return r.a.error ? ptc_error_set(err, ptc_status_from_wire(r.a.error), "%.500s", r.text) : 0;
	case HEARD_CANCEL:
		return ptc_error_set(err, PTC_ECANCELED, "cancelled");
	case HEARD_LATE:
		return ptc_error_set(err, PTC_ETIMEOUT, "ptc-copy (pid %d) has not become ready", (int)c->process.pid);
	default:
		if (r.a.version && !ptc_version_reads(r.a.version, PTC_COPY_OLDEST, PTC_COPY_VERSION))
			return ptc_error_set(
				err, PTC_EVERSION,
				"ptc-copy speaks version %u, this ptcd %u to %u: install both from one package",
				r.a.version, PTC_COPY_OLDEST, PTC_COPY_VERSION + 1);
		return ptc_error_set(err, PTC_EIO, "ptc-copy (pid %d) has ended at once", (int)c->process.pid);
	}
}

/* Lets go of the lock meanwhile. */
static int start_locked(struct ptc_copiers *cs, const struct ptc_copy_call *call, struct ptc_error *err)
{
	static _Atomic uint64_t numbers;
	struct copier *c = ptc_calloc(1, sizeof *c),
		      made = { .process = PTC_CHILD_NONE }; /* nobody else's until it is ready */
	int rc;

	if (!c)
		return ptc_nomem(err);
	snprintf(c->uuid, sizeof c->uuid, "%s", call->uuid);
	c->number = atomic_fetch_add(&numbers, 1) + 1;
	c->process = PTC_CHILD_NONE;
	c->refs = 1;
	c->next = cs->list;
	cs->list = c;
	pthread_mutex_unlock(&cs->lock);
	rc = start(cs, &made, call, err);
	pthread_mutex_lock(&cs->lock);
	c->process = made.process;
	c->nslots = made.nslots;
	memcpy(c->slots, made.slots, sizeof c->slots);
	c->refs--;
	c->ready = rc == 0;
	if (rc)
		kill_locked(c);
	pthread_cond_broadcast(&cs->changed);
	return rc ? ptc_error_wrap(err, "job %s: copying its ranks' memory as user %u", call->uuid, (unsigned)call->uid)
		  : 0;
}

/* ---- a request ---- */

struct exchange {
	struct copier *copier;
	struct slot *slot;
	unsigned map;
	const struct ptc_slot_memory *memory;
};

static int hangs_locked(struct ptc_copiers *cs, const struct ptc_copy_call *call, struct ptc_error *err)
{
	unsigned n = 0;

	for (struct copier *c = cs->list; c; c = c->next) {
		if (!c->hung_ns || strcmp(c->uuid, call->uuid) || gone_locked(c))
			continue;
		n++;
		for (unsigned i = 0; i < c->nslots; i++)
			if (c->slots[i].busy && c->slots[i].rank == call->pid)
				return ptc_error_set(err, PTC_ESTATE,
						     "process %d still hangs in its memory after %lld s; nothing more "
						     "of it is copied before that process has ended",
						     (int)c->process.pid,
						     (long long)((ptc_sys_now_ns() - c->hung_ns) / 1000000000));
	}
	if (n < PTC_COPIERS_HUNG)
		return 0;
	return ptc_error_set(err, PTC_ESTATE, "%u processes still hang in the memory of the job's ranks", n);
}

/* The job's copier that takes requests; NULL: none. */
static struct copier *current_locked(const struct ptc_copiers *cs, const char *uuid)
{
	for (struct copier *c = cs->list; c; c = c->next)
		if (!c->ending && !strcmp(c->uuid, uuid))
			return c;
	return NULL;
}

static bool same_memory(const struct memory_map *m, const struct ptc_slot_memory *of)
{
	return m->used && m->dev == of->dev && m->ino == of->ino && (m->writable || !of->writable);
}

/* The map of that memory, or one for it. NULL: all are taken; where nothing is under way in them the copier ends, for
 * another one. */
static struct memory_map *map_locked(struct copier *c, const struct ptc_slot_memory *of)
{
	struct memory_map *free_one = NULL;
	unsigned busy = 0;

	for (unsigned i = 0; i < PTC_COPY_MAPS; i++) {
		if (same_memory(&c->maps[i], of))
			return &c->maps[i];
		if (!c->maps[i].used && !c->maps[i].busy) /* else somebody still gives it back */
			free_one = &c->maps[i];
		busy += c->maps[i].busy;
	}
	if (!free_one && !busy)
		end_locked(c);
	if (free_one)
		*free_one =
			(struct memory_map){ .used = true, .writable = of->writable, .dev = of->dev, .ino = of->ino };
	return free_one;
}

/* A free socket of the job's copier, and the map; false: there is none now. A map that another caller is just making is
 * waited for. */
static bool take_locked(struct ptc_copiers *cs, const struct ptc_copy_call *call, struct exchange *t)
{
	struct copier *c = current_locked(cs, call->uuid);
	struct memory_map *m;

	if (!c || !c->ready)
		return false;
	for (unsigned i = 0; i < c->nslots; i++) {
		if (c->slots[i].busy)
			continue;
		m = map_locked(c, t->memory);
		if (!m || (m->busy && !m->mapped))
			return false;
		m->busy++;
		c->refs++;
		c->slots[i].busy = true;
		c->slots[i].rank = call->pid;
		*t = (struct exchange){ c, &c->slots[i], (unsigned)(m - c->maps), t->memory };
		return true;
	}
	return false;
}

static int take(struct ptc_copiers *cs, const struct ptc_copy_call *call, struct exchange *t, struct ptc_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&cs->lock);
	while (!rc && !(rc = hangs_locked(cs, call, err)) && !take_locked(cs, call, t)) {
		if (cs->quit || cancelled(call->copying))
			rc = ptc_error_set(err, PTC_ECANCELED, "cancelled");
		else if (!current_locked(cs, call->uuid))
			rc = start_locked(cs, call, err);
		else
			ptc_cond_wait_ms(&cs->changed, &cs->lock, LOOK_MS);
	}
	pthread_mutex_unlock(&cs->lock);
	return rc;
}

/* given_up: there was no answer, and may be none. */
static void put(struct ptc_copiers *cs, const struct exchange *t, struct ptc_slot_kept *kept, bool given_up)
{
	struct copier *c = t->copier;

	pthread_mutex_lock(&cs->lock);
	if (given_up && !gone_locked(c)) {
		if (kept)
			atomic_fetch_add(&kept->refs, 1);
		t->slot->kept = kept; /* and the slot stays busy, with its rank */
	} else {
		t->slot->busy = false;
		c->maps[t->map].busy--;
	}
	if (c->ending)
		close_slots(c);
	c->refs--;
	pthread_cond_broadcast(&cs->changed);
	pthread_mutex_unlock(&cs->lock);
}

static bool say(int fd, const struct ptc_copy_head *head, const struct ptc_copy_span *spans, int pass)
{
	size_t len = ((size_t)head->nthere + head->nhere) * sizeof *spans;
	struct iovec v[] = { { (void *)(uintptr_t)head, sizeof *head }, { (void *)(uintptr_t)spans, len } };
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 };

	if (pass >= 0) {
		struct cmsghdr *c = (struct cmsghdr *)control;

		m.msg_control = control;
		m.msg_controllen = sizeof control;
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &pass, sizeof pass);
	}
	return sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)(sizeof *head + len);
}

static enum heard ask(struct ptc_copiers *cs, const struct exchange *t, const struct ptc_copy_head *head,
		      const struct ptc_copy_span *spans, int pass, const struct ptc_slot_copying *copying,
		      struct reply *r)
{
	return say(t->slot->fd, head, spans, pass) ? hear(cs, t->copier, t->slot->fd, copying, limit_ms(cs, copying), r)
						   : HEARD_END;
}

/* Unless the copier has it. */
static enum heard map_memory(struct ptc_copiers *cs, const struct exchange *t, const struct ptc_slot_copying *copying,
			     struct reply *r)
{
	const struct ptc_copy_head head = { .version = PTC_COPY_VERSION,
					    .op = PTC_COPY_MAP,
					    .map = t->map,
					    .flags = t->memory->writable ? PTC_COPY_WRITABLE : 0,
					    .bytes = t->memory->bytes };
	struct memory_map *m = &t->copier->maps[t->map];
	enum heard h;
	bool mapped;

	pthread_mutex_lock(&cs->lock);
	mapped = m->mapped;
	pthread_mutex_unlock(&cs->lock);
	if (mapped)
		return HEARD;
	h = ask(cs, t, &head, NULL, t->memory->fd, copying, r);
	pthread_mutex_lock(&cs->lock);
	m->mapped = m->used = h == HEARD && !r->a.error;
	pthread_mutex_unlock(&cs->lock);
	return h;
}

static const struct ptc_slot_memory *memory_of(const struct ptc_slot_copying *c, const struct iovec *here)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(c->memory); i++) {
		const struct ptc_slot_memory *m = &c->memory[i];
		uintptr_t off = (uintptr_t)here->iov_base - (uintptr_t)m->base;

		if (m->fd >= 0 && off <= m->bytes && here->iov_len <= m->bytes - off)
			return m;
	}
	return NULL;
}

static uint32_t flags_of(enum ptc_copy_pages pages)
{
	if (pages == PTC_PAGES_MAPPED)
		return 0;
	return PTC_COPY_FRESH | (pages == PTC_PAGES_THERE ? PTC_COPY_THERE : 0);
}

static int make_request(const struct ptc_copy_call *call, const struct ptc_slot_memory **ret_memory,
			struct ptc_copy_request *q, struct ptc_error *err)
{
	const struct ptc_slot_memory *m = call->nhere ? memory_of(call->copying, &call->here[0]) : NULL;
	struct ptc_copy_span *s = q->spans;

	if (call->nthere > PTC_COPY_SPANS_MAX || call->nhere > PTC_COPY_SPANS_MAX)
		return ptc_error_set(err, PTC_EINTERNAL, "a copy has %zu and %zu spans, which is too many",
				     call->nthere, call->nhere);
	if (!m)
		return ptc_error_set(err, PTC_EINTERNAL,
				     "internal error: a copy uses no memory, or memory that no copier process has");
	q->head = (struct ptc_copy_head){ .version = PTC_COPY_VERSION,
					  .op = call->op,
					  .flags = flags_of(call->pages),
					  .pid = call->pid,
					  .nthere = (uint32_t)call->nthere,
					  .nhere = (uint32_t)call->nhere };
	for (size_t i = 0; i < call->nthere; i++)
		*s++ = (struct ptc_copy_span){ (uintptr_t)call->there[i].iov_base, call->there[i].iov_len };
	for (size_t i = 0; i < call->nhere; i++) {
		if (memory_of(call->copying, &call->here[i]) != m)
			return ptc_error_set(err, PTC_EINTERNAL,
					     "internal error: a copy uses memory that no copier process has");
		*s++ = (struct ptc_copy_span){ (uintptr_t)call->here[i].iov_base - (uintptr_t)m->base,
					       call->here[i].iov_len };
	}
	*ret_memory = m;
	return 0;
}

/* It has not answered (for after_ms, where it is late): it is ended, so that nothing it was asked is done later, if
 * that can be. 0: it is gone. */
static int give_up(struct ptc_copiers *cs, const struct exchange *t, enum heard how, int64_t after_ms,
		   struct ptc_error *err)
{
	struct copier *c = t->copier;
	pid_t pid;
	bool gone;

	pthread_mutex_lock(&cs->lock);
	pid = c->process.pid;
	kill_locked(c);
	pthread_mutex_unlock(&cs->lock);
	(void)ptc_child_wait(&c->process, GONE_MS, NULL);
	pthread_mutex_lock(&cs->lock);
	gone = gone_locked(c);
	if (!gone && !c->hung_ns) {
		c->hung_ns = ptc_sys_now_ns();
		ptc_warn(
			"workers",
			"job %s: process %d, which copies its ranks' memory, hangs in that of process %d and cannot be "
			"ended; what it may write to is kept until it has",
			c->uuid, (int)c->process.pid, (int)t->slot->rank);
	}
	pthread_mutex_unlock(&cs->lock);
	if (how == HEARD_CANCEL)
		return ptc_error_set(err, PTC_ECANCELED, "cancelled");
	if (how == HEARD_LATE)
		return ptc_error_set(
			err, PTC_ESTATE,
			"its memory has not answered for %.3g s; is it mapped from a file system that hangs?",
			(double)after_ms * 1e-3);
	return gone ? 0 : ptc_error_set(err, PTC_ESTATE, "the process that copies, %d, hangs", (int)pid);
}

int ptc_copiers_call(struct ptc_copiers *cs, const struct ptc_copy_call *call, int *ret_errno, uint64_t *ret_moved,
		     struct ptc_error *err)
{
	struct ptc_copy_request q;
	struct exchange t = { 0 };
	struct reply r;
	int rc = make_request(call, &t.memory, &q, err);

	for (int i = 0; !rc && i < TRIES; i++) {
		enum heard h;

		rc = take(cs, call, &t, err);
		if (rc)
			return rc;
		atomic_store(&call->copying->copier, t.copier->number);
		q.head.map = t.map;
		memset(&r.a, 0, sizeof r.a);
		h = map_memory(cs, &t, call->copying, &r);
		if (h == HEARD && !r.a.error)
			h = ask(cs, &t, &q.head, q.spans, -1, call->copying, &r);
		if (h != HEARD)
			rc = give_up(cs, &t, h, limit_ms(cs, call->copying), err);
		put(cs, &t, call->copying->kept, h != HEARD);
		if (h == HEARD) {
			*ret_errno = r.a.error;
			*ret_moved = r.a.moved;
			return 0;
		}
	}
	return rc ? rc : ptc_error_set(err, PTC_EIO, "the process that copies was ended %d times", TRIES);
}

/* ---- memory that goes ---- */

void ptc_copiers_forget(struct ptc_copiers *cs, const char *uuid, const struct ptc_slot_memory *memory)
{
	struct ptc_slot_copying patient = { .wait = NULL };
	struct exchange t = { .memory = memory };
	struct ptc_copy_head head = { .version = PTC_COPY_VERSION, .op = PTC_COPY_UNMAP };
	struct copier *c;
	struct reply r;

	pthread_mutex_lock(&cs->lock);
	c = current_locked(cs, uuid);
	for (unsigned i = 0; c && !t.copier && i < PTC_COPY_MAPS; i++)
		if (same_memory(&c->maps[i], memory) && c->maps[i].mapped && !c->maps[i].busy)
			t = (struct exchange){ .copier = c, .map = i, .memory = memory };
	for (unsigned i = 0; t.copier && !t.slot && i < c->nslots; i++)
		if (!c->slots[i].busy)
			t.slot = &c->slots[i];
	if (t.slot) {
		t.slot->busy = true;
		t.slot->rank = 0;
		c->refs++;
		c->maps[t.map].busy++;
		c->maps[t.map].mapped = false;
	}
	pthread_mutex_unlock(&cs->lock);
	if (!t.slot)
		return; /* it ends with the copier */
	head.map = t.map;
	if (ask(cs, &t, &head, NULL, -1, &patient, &r) != HEARD) {
		(void)give_up(cs, &t, HEARD_END, 0, NULL);
		put(cs, &t, NULL, true);
		return;
	}
	pthread_mutex_lock(&cs->lock);
	c->maps[t.map].used = false;
	pthread_mutex_unlock(&cs->lock);
	put(cs, &t, NULL, false);
}
