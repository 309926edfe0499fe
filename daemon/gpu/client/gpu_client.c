/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: a call has a waiter on its stack. It puts the waiter into the list, sends the request and sleeps. For
 * each process a thread reads answers, and wakes the waiter for which an answer is.
 *
 *   NONE --start--> RUNNING --socket closed, killed--> ENDING --nobody waits any more--> NONE
 *
 * ENDING: the reading thread kills the process and waits for its end. Only then does it wake the waiters, because the
 * process could still write to their memory before. The socket is closed when the last waiter has gone. After a sticky
 * answer, new calls wait until those under way have ended; then the process is ended.
 *
 * Failure modes: ptc-gpu cannot be started, or ends too often (PTC_ESTATE, with why the last one ended); it does not
 * answer and is killed (PTC_ETIMEOUT); it does not even end then: outcome.unsafe, and the process is left behind. */
#include "daemon/gpu/client/gpu_client.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/helper.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"
#include "daemon/gpu/client/gpu_child.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HANG_MS_DEFAULT  30000
#define GONE_MS          2000 /* a process that was killed and has not ended by then hangs in the driver */
#define LEFT_MAX         4    /* such processes; with so many the node needs help, not one more */
#define STARTS_MAX       5    /* in STARTS_MS; more are refused: each costs a driver's start and would fail again */
#define STARTS_MS        60000
#define SLOWEST_BYTES_MS 100000 /* 100 MB/s */

enum state { NONE, RUNNING, ENDING };

struct waiter {
	struct waiter *next;
	uint64_t id;
	pthread_cond_t woken;
	bool answered, ended; /* one of them */
	bool unsafe;
	struct ptc_gpu_answer a;
};

struct ptc_gpu_client {
	char path[PTC_HELPER_PATH];
	uint64_t pinned_max;
	unsigned copiers;
	int64_t hang_ms;
	pthread_mutex_t send_lock; /* taken without `lock` */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum state state;
	uint32_t life;
	uint32_t version; /* that this life's process speaks */
	struct left {
		uint32_t life;
		struct ptc_gpu_child child;
	} left[LEFT_MAX]; /* that could not be ended */
	unsigned nleft;
	struct ptc_gpu_child child;
	pthread_t reader;
	bool reader_made;           /* to be joined */
	bool closing;               /* _free */
	bool poisoned;              /* a sticky error: no new requests for this process */
	char why[PTC_GPU_TEXT_MAX]; /* its end was wanted for this reason; "" none */
	struct ptc_error ended;     /* what is said of the last process that ended */
	uint64_t next_id;
	struct waiter *waiters;
	unsigned calls; /* from the waiter's entry until its caller has left */
	int64_t starts[STARTS_MAX];
};

/* ---- processes that are left behind ---- */

/* Forgets those that have ended at last. */
static void reap_locked(struct ptc_gpu_client *c)
{
	char how[64];

	for (unsigned i = 0; i < c->nleft;) {
		if (!ptc_gpu_child_ended(&c->left[i].child, 0, how, sizeof how)) {
			i++;
			continue;
		}
		ptc_child_close(&c->left[i].child.process);
		c->left[i] = c->left[--c->nleft];
	}
}

static bool left_locked(struct ptc_gpu_client *c, uint32_t life)
{
	reap_locked(c);
	for (unsigned i = 0; i < c->nleft; i++)
		if (c->left[i].life == life)
			return true;
	return false;
}

/* ---- the reading thread ---- */

static void answer(struct ptc_gpu_client *c, const struct ptc_gpu_answer *a)
{
	pthread_mutex_lock(&c->lock);
	for (struct waiter *w = c->waiters; w; w = w->next)
		if (w->id == a->id && !w->answered) {
			w->a = *a;
			w->a.text[sizeof w->a.text - 1] = '\0';
			w->answered = true;
			pthread_cond_signal(&w->woken);
			break;
		}
	if (a->sticky && !c->poisoned) {
		c->poisoned = true;
		snprintf(c->why, sizeof c->why, "%.400s", a->text);
	}
	pthread_mutex_unlock(&c->lock);
}

/* Says once how the process ended, wakes who waits, and lets the next one start when all of them have left. */
static void finish(struct ptc_gpu_client *c)
{
	char how[64] = "does not end: it hangs in the driver";
	bool gone;

	ptc_gpu_child_kill(&c->child); /* it may have closed its socket and gone on */
	gone = ptc_gpu_child_ended(&c->child, GONE_MS, how, sizeof how);
	pthread_mutex_lock(&c->lock);
	c->state = ENDING;
	if (gone && c->why[0])
		snprintf(how, sizeof how, "was ended");
	ptc_error_set(&c->ended, PTC_EIO, "ptc-gpu (process %d) %s%s%s", (int)c->child.process.pid, how,
		      c->why[0] ? ": " : "", c->why);
	if (c->closing)
		ptc_debug("gpu", "%s", c->ended.text);
	else
		ptc_warn("gpu", "%s; what it had mapped has to be bound again", c->ended.text);
	for (struct waiter *w = c->waiters; w; w = w->next) {
		w->ended = true;
		w->unsafe = !gone;
		pthread_cond_signal(&w->woken);
	}
	while (c->calls)
		pthread_cond_wait(&c->changed, &c->lock);
	close(c->child.socket);
	if (gone)
		ptc_child_close(&c->child.process);
	else
		c->left[c->nleft++] = (struct left){ c->life, c->child };
	c->state = NONE;
	c->poisoned = false;
	c->why[0] = '\0';
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

static void *read_answers(void *arg)
{
	struct ptc_gpu_client *c = arg;
	struct ptc_gpu_answer a;
	int fds[PTC_GPU_FDS_MAX];
	unsigned nfds;
	long got;

	while ((got = ptc_gpu_receive(c->child.socket, &a, sizeof a, fds, &nfds)) == (long)sizeof a &&
	       ptc_version_reads(a.version, PTC_GPU_OLDEST, PTC_GPU_VERSION))
		answer(c, &a);
	if (got > 0) {
		pthread_mutex_lock(&c->lock);
		snprintf(c->why, sizeof c->why, "%.300s is of another version than ptcd; install one package", c->path);
		pthread_mutex_unlock(&c->lock);
	}
	finish(c);
	return NULL;
}

/* ---- calls ---- */

static struct timespec deadline(int64_t ms)
{
	int64_t at = ptc_sys_now_ns() + ms * 1000000;

	return (struct timespec){ .tv_sec = at / 1000000000, .tv_nsec = at % 1000000000 };
}

/* The process is to end; the reading thread sees its socket closed. */
static void end_locked(struct ptc_gpu_client *c, const char *why)
{
	if (c->state != RUNNING)
		return;
	if (!c->why[0])
		snprintf(c->why, sizeof c->why, "%s", why);
	ptc_gpu_child_kill(&c->child);
	shutdown(c->child.socket, SHUT_RDWR); /* a process that cannot be killed keeps its end open */
}

static void enter_locked(struct ptc_gpu_client *c, struct waiter *w, uint64_t id)
{
	*w = (struct waiter){ .next = c->waiters, .id = id };
	ptc_cond_init(&w->woken);
	c->waiters = w;
	c->calls++;
}

static void leave_locked(struct ptc_gpu_client *c, struct waiter *w)
{
	for (struct waiter **at = &c->waiters; *at; at = &(*at)->next)
		if (*at == w) {
			*at = w->next;
			break;
		}
	pthread_cond_destroy(&w->woken);
	c->calls--;
	if (c->calls == 0 && c->poisoned)
		end_locked(c, "");
	if (c->calls == 0)
		pthread_cond_broadcast(&c->changed);
}

/* Until the answer or the end of the process. */
static void wait_locked(struct ptc_gpu_client *c, struct waiter *w, int64_t ms, const char *what)
{
	struct timespec until = deadline(ms);
	char why[128];

	while (!w->answered && !w->ended) {
		if (pthread_cond_timedwait(&w->woken, &c->lock, &until) == 0 || w->answered || w->ended)
			continue;
		snprintf(why, sizeof why, "it did not answer to \"%s\" in %" PRId64 " ms", what, ms);
		end_locked(c, why);
		until = deadline(ms + 2 * GONE_MS); /* finish() wakes us before */
	}
}

/* Starts are counted, so that a process that ends at once does not use up the node. */
static int may_start_locked(struct ptc_gpu_client *c, struct ptc_error *err)
{
	int64_t now = ptc_sys_now_ns(), oldest = c->starts[c->life % STARTS_MAX];

	reap_locked(c);
	if (c->nleft == LEFT_MAX)
		return ptc_error_set(err, PTC_ESTATE, "%d ptc-gpu processes hang in the driver; reboot the node",
				     LEFT_MAX);
	if (oldest == 0 || now - oldest >= (int64_t)STARTS_MS * 1000000) {
		c->starts[c->life % STARTS_MAX] = now;
		return 0;
	}
	return ptc_error_set(err, PTC_ESTATE, "ptc-gpu ended %d times in %d s; the last one: %s", STARTS_MAX,
			     STARTS_MS / 1000, c->ended.text);
}

/* The thread that reads answers; without it the process is of no use. */
static int start_reader_locked(struct ptc_gpu_client *c, struct ptc_error *err)
{
	char how[64];
	int rc;

	if (c->reader_made)
		pthread_join(c->reader, NULL); /* it has set NONE as the last thing it did */
	rc = ptc_thread_start(&c->reader, "ptc-gpu-answers", read_answers, c, err);
	c->reader_made = rc == 0;
	if (rc == 0)
		return 0;
	ptc_gpu_child_kill(&c->child);
	(void)ptc_gpu_child_ended(&c->child, GONE_MS, how, sizeof how);
	ptc_child_close(&c->child.process);
	close(c->child.socket);
	c->state = NONE;
	return rc;
}

static int start_locked(struct ptc_gpu_client *c, struct ptc_error *err)
{
	struct waiter w;
	int rc = may_start_locked(c, err);

	if (rc == 0)
		rc = ptc_gpu_child_start(c->path, c->pinned_max, c->copiers, &c->child, err);
	if (rc)
		return rc;
	c->life++;
	c->state = RUNNING;
	enter_locked(c, &w, 0);
	rc = start_reader_locked(c, err);
	if (rc == 0) {
		wait_locked(c, &w, c->hang_ms, "start");
		if (!w.answered)
			rc = ptc_error_set(err, PTC_EIO, "%s", c->ended.text);
		c->version = w.a.version;
	}
	leave_locked(c, &w);
	return rc;
}

static int ready_locked(struct ptc_gpu_client *c, struct ptc_error *err)
{
	while (c->state == ENDING || c->poisoned)
		pthread_cond_wait(&c->changed, &c->lock);
	return c->state == RUNNING ? 0 : start_locked(c, err);
}

struct call {
	const char *what;
	struct ptc_gpu_head head;
	const struct ptc_gpu_part *parts;
	const int *fds;
	unsigned nfds;
	uint32_t life;  /* of the references in it, 0: of any; afterwards the one that answered */
	uint32_t since; /* the version that knows it; 0: any does */
	int unknown;    /* the status, where ptc-gpu's is older; 0: PTC_EVERSION */
	uint64_t bytes; /* that it may take the time of */
};

static int outcome_of(const struct ptc_gpu_client *c, const struct waiter *w, struct ptc_gpu_outcome *o,
		      struct ptc_error *err)
{
	if (w->answered) {
		o->blame = (enum ptc_gpu_blame)w->a.blame;
		return w->a.status ? ptc_error_set(err, ptc_status_from_wire(w->a.status), "%s", w->a.text) : 0;
	}
	o->blame = PTC_GPU_BLAME_REQUEST;
	o->unsafe = w->unsafe;
	return ptc_error_set(err, PTC_EIO, "%s", c->ended.text);
}

/* Sends a call and waits for its answer. */
static int run(struct ptc_gpu_client *c, struct call *k, struct ptc_gpu_answer *ret, struct ptc_gpu_outcome *o,
	       struct ptc_error *err)
{
	struct waiter w;
	int rc;

	*o = (struct ptc_gpu_outcome){ .blame = PTC_GPU_BLAME_REQUEST };
	pthread_mutex_lock(&c->lock);
	rc = ready_locked(c, err);
	if (rc == 0 && k->life && k->life != c->life)
		rc = ptc_error_set(err, PTC_ESTATE, "%s: the ptc-gpu that had it mapped has ended; bind it again",
				   k->what);
	if (rc == 0 && c->version < k->since)
		rc = ptc_error_set(err, k->unknown ? k->unknown : PTC_EVERSION,
				   "%s: ptc-gpu is of an older package than ptcd, and cannot", k->what);
	if (rc) {
		pthread_mutex_unlock(&c->lock);
		return rc;
	}
	k->life = c->life;
	k->head.version = PTC_GPU_VERSION;
	k->head.id = ++c->next_id;
	enter_locked(c, &w, k->head.id);
	pthread_mutex_unlock(&c->lock);

	/* Not under `lock`: where the socket is full, answers have to be read for it to empty. A process that is gone
	 * is seen by the reading thread. */
	pthread_mutex_lock(&c->send_lock);
	(void)ptc_gpu_send(c->child.socket, &k->head, sizeof k->head, k->parts, k->head.nparts * sizeof *k->parts,
			   k->fds, k->nfds);
	pthread_mutex_unlock(&c->send_lock);

	pthread_mutex_lock(&c->lock);
	wait_locked(c, &w, c->hang_ms + (int64_t)(k->bytes / SLOWEST_BYTES_MS), k->what);
	rc = outcome_of(c, &w, o, err);
	if (rc == 0)
		*ret = w.a;
	leave_locked(c, &w);
	pthread_mutex_unlock(&c->lock);
	return rc;
}

int ptc_gpu_client_map_host(struct ptc_gpu_client *c, int fd, uint64_t bytes, const char *pin_uuid,
			    struct ptc_gpu_ref *ret, struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	struct call k = { .what = "map host memory", .fds = &fd, .nfds = 1, .bytes = bytes };
	struct ptc_gpu_answer a;
	int rc;

	k.head.op = PTC_GPU_MAP_HOST;
	k.head.bytes = bytes;
	if (pin_uuid) {
		k.head.flags = PTC_GPU_PIN;
		snprintf(k.head.bind.uuid, sizeof k.head.bind.uuid, "%s", pin_uuid);
	}
	rc = run(c, &k, &a, o, err);
	if (rc == 0)
		*ret = (struct ptc_gpu_ref){ k.life, a.ref };
	return rc;
}

int ptc_gpu_client_lock(struct ptc_gpu_client *c, struct ptc_gpu_ref host, const char *uuid, uint64_t step,
			uint64_t *ret_locked, struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	struct call k = { .what = "page-lock host memory", .life = host.life, .since = PTC_GPU_SINCE_2, .bytes = step };
	struct ptc_gpu_answer a;
	int rc;

	k.head.op = PTC_GPU_LOCK;
	k.head.host = host.number;
	k.head.bytes = step;
	snprintf(k.head.bind.uuid, sizeof k.head.bind.uuid, "%s", uuid);
	rc = run(c, &k, &a, o, err);
	if (rc == 0)
		*ret_locked = a.value;
	return rc;
}

/* Whether the reference's process is there to be asked. One that is about to end is waited for: what it has mapped is
 * gone only when it is. */
static bool there(struct ptc_gpu_client *c, struct ptc_gpu_ref ref)
{
	bool is;

	pthread_mutex_lock(&c->lock);
	while (ref.life == c->life && (c->state == ENDING || c->poisoned))
		pthread_cond_wait(&c->changed, &c->lock);
	is = ref.life == c->life && c->state == RUNNING;
	pthread_mutex_unlock(&c->lock);
	return is;
}

bool ptc_gpu_client_lives(struct ptc_gpu_client *c, struct ptc_gpu_ref ref)
{
	struct ptc_gpu_stats now;
	struct ptc_gpu_outcome o;

	/* A process that was killed a moment ago is seen by its silence only. */
	return there(c, ref) && ptc_gpu_client_stats(c, &now, &o, NULL) == 0 && now.life == ref.life;
}

/* Ends what a reference names. What went with its process needs no end, unless that process is left behind. */
static int end(struct ptc_gpu_client *c, struct call *k, struct ptc_gpu_ref ref, struct ptc_gpu_outcome *o,
	       struct ptc_error *err)
{
	struct ptc_gpu_answer a;
	bool left_behind;
	int rc = 0;

	*o = (struct ptc_gpu_outcome){ 0 };
	k->life = ref.life;
	if (there(c, ref))
		rc = run(c, k, &a, o, err);
	if (there(c, ref))
		return rc;
	pthread_mutex_lock(&c->lock);
	left_behind = left_locked(c, ref.life);
	pthread_mutex_unlock(&c->lock);
	if (!left_behind)
		return 0;
	o->unsafe = true;
	return ptc_error_set(err, PTC_ETIMEOUT,
			     "%s: a ptc-gpu that hangs in the driver may have the memory mapped; keep it", k->what);
}

int ptc_gpu_client_unmap_host(struct ptc_gpu_client *c, struct ptc_gpu_ref host, uint64_t locked,
			      struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	struct call k = { .what = "unmap host memory", .bytes = locked };

	k.head.op = PTC_GPU_UNMAP_HOST;
	k.head.host = host.number;
	return end(c, &k, host, o, err);
}

int ptc_gpu_client_bind(struct ptc_gpu_client *c, const struct ptc_gpu_export *e, struct ptc_gpu_ref *ret,
			uint32_t *ret_missing, struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	struct call k = { .what = "bind memory" };
	struct ptc_gpu_answer a;
	int rc;

	k.head.op = PTC_GPU_BIND;
	k.head.bind = *e;
	rc = run(c, &k, &a, o, err);
	if (rc)
		return rc;
	*ret = (struct ptc_gpu_ref){ k.life, a.ref };
	*ret_missing = a.count;
	return 0;
}

int ptc_gpu_client_handles(struct ptc_gpu_client *c, struct ptc_gpu_ref memory, const int *fds, unsigned n,
			   uint32_t *ret_missing, struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	struct call k = { .what = "bind handles", .life = memory.life, .fds = fds, .nfds = n };
	struct ptc_gpu_answer a;
	int rc;

	if (n == 0 || n > PTC_GPU_FDS_MAX)
		return ptc_error_set(err, PTC_EINVAL, "%u descriptors; between 1 and %d can be bound at once", n,
				     PTC_GPU_FDS_MAX);
	k.head.op = PTC_GPU_HANDLES;
	k.head.memory = memory.number;
	rc = run(c, &k, &a, o, err);
	if (rc == 0)
		*ret_missing = a.count;
	return rc;
}

/* The boxes' bytes; boxes that overflow are refused by ptc-gpu. */
static uint64_t bytes_of(const struct ptc_gpu_part *parts, uint32_t nparts)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < nparts; i++)
		bytes += parts[i].width * parts[i].height * parts[i].depth;
	return PTC_MIN(bytes, (uint64_t)1 << 40);
}

static int check_count(uint32_t nparts, struct ptc_error *err)
{
	if (nparts > 0 && nparts <= PTC_GPU_PARTS_MAX)
		return 0;
	return ptc_error_set(err, PTC_EINVAL, "%" PRIu32 " boxes; between 1 and %d can be asked for at once", nparts,
			     PTC_GPU_PARTS_MAX);
}

static void put_guard(struct ptc_gpu_head *h, const struct ptc_gpu_guard *guard)
{
	if (!guard)
		return;
	h->flags |= PTC_GPU_GUARD;
	h->guard_host = guard->host.number;
	h->guard_at = guard->at;
	h->guard_value = guard->value;
}

int ptc_gpu_client_copy(struct ptc_gpu_client *c, enum ptc_gpu_direction direction, struct ptc_gpu_ref memory,
			struct ptc_gpu_ref host, const struct ptc_gpu_part *parts, uint32_t nparts,
			const struct ptc_gpu_guard *guard, struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	struct call k = { .what = direction == PTC_GPU_OUT ? "copy out" : "copy in",
			  .life = memory.life,
			  .parts = parts };
	struct ptc_gpu_answer a;
	int rc = check_count(nparts, err);

	if (rc)
		return rc;
	if (host.life != memory.life || (guard && guard->host.life != memory.life))
		return ptc_error_set(err, PTC_ESTATE, "%s: the ptc-gpu that had it mapped has ended; bind it again",
				     k.what);
	k.bytes = bytes_of(parts, nparts);
	k.head.op = direction == PTC_GPU_OUT ? PTC_GPU_COPY_OUT : PTC_GPU_COPY_IN;
	k.head.nparts = nparts;
	k.head.memory = memory.number;
	k.head.host = host.number;
	put_guard(&k.head, guard);
	return run(c, &k, &a, o, err);
}

int ptc_gpu_client_keep(struct ptc_gpu_client *c, const char *uuid, uint64_t bytes, bool beside,
			struct ptc_gpu_ref *ret, struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	struct call k = { .what = "keep memory" };
	struct ptc_gpu_answer a;
	int rc;

	k.head.op = PTC_GPU_KEEP;
	k.head.flags = beside ? PTC_GPU_BESIDE : 0;
	k.head.bytes = bytes;
	snprintf(k.head.bind.uuid, sizeof k.head.bind.uuid, "%s", uuid);
	rc = run(c, &k, &a, o, err);
	if (rc == 0)
		*ret = (struct ptc_gpu_ref){ k.life, a.ref };
	return rc;
}

static uint32_t device_of(struct ptc_gpu_ref memory)
{
	return (memory.number - 1) / PTC_GPU_MEMORY_MAX;
}

static int within(struct ptc_gpu_client *c, enum ptc_gpu_op op, struct ptc_gpu_ref to, struct ptc_gpu_ref from,
		  const struct ptc_gpu_part *parts, uint32_t nparts, const struct ptc_gpu_guard *guard,
		  struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	struct call k = { .what = "copy on the device", .life = to.life, .parts = parts };
	struct ptc_gpu_answer a;
	int rc = check_count(nparts, err);

	if (rc)
		return rc;
	if (from.life != to.life || (guard && guard->host.life != to.life))
		return ptc_error_set(err, PTC_ESTATE, "%s: the ptc-gpu that had it mapped has ended; bind it again",
				     k.what);
	k.bytes = bytes_of(parts, nparts);
	if (op == PTC_GPU_SHADOW)
		k.since = PTC_GPU_SINCE_2;
	if (op == PTC_GPU_COPY_WITHIN && device_of(to) != device_of(from)) {
		k.since = PTC_GPU_SINCE_2;
		k.unknown = PTC_ENODEVICES; /* as if the devices could not read each other */
	}
	k.head.op = op;
	k.head.nparts = nparts;
	k.head.memory = to.number;
	k.head.host = from.number;
	put_guard(&k.head, guard);
	return run(c, &k, &a, o, err);
}

int ptc_gpu_client_copy_within(struct ptc_gpu_client *c, struct ptc_gpu_ref to, struct ptc_gpu_ref from,
			       const struct ptc_gpu_part *parts, uint32_t nparts, struct ptc_gpu_outcome *o,
			       struct ptc_error *err)
{
	return within(c, PTC_GPU_COPY_WITHIN, to, from, parts, nparts, NULL, o, err);
}

int ptc_gpu_client_shadow(struct ptc_gpu_client *c, struct ptc_gpu_ref to, struct ptc_gpu_ref from,
			  const struct ptc_gpu_part *parts, uint32_t nparts, const struct ptc_gpu_guard *guard,
			  struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	return within(c, PTC_GPU_SHADOW, to, from, parts, nparts, guard, o, err);
}

int ptc_gpu_client_digest(struct ptc_gpu_client *c, struct ptc_gpu_ref memory, const struct ptc_gpu_part *parts,
			  uint32_t nparts, uint64_t *ret_digest, struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	struct call k = { .what = "digest", .life = memory.life, .parts = parts };
	struct ptc_gpu_answer a;
	int rc = check_count(nparts, err);

	if (rc)
		return rc;
	k.bytes = bytes_of(parts, nparts);
	k.head.op = PTC_GPU_DIGEST;
	k.head.nparts = nparts;
	k.head.memory = memory.number;
	rc = run(c, &k, &a, o, err);
	if (rc == 0)
		*ret_digest = a.value;
	return rc;
}

int ptc_gpu_client_close(struct ptc_gpu_client *c, struct ptc_gpu_ref memory, struct ptc_gpu_outcome *o,
			 struct ptc_error *err)
{
	struct call k = { .what = "close memory" };

	k.head.op = PTC_GPU_CLOSE;
	k.head.memory = memory.number;
	return end(c, &k, memory, o, err);
}

int ptc_gpu_client_stats(struct ptc_gpu_client *c, struct ptc_gpu_stats *ret, struct ptc_gpu_outcome *o,
			 struct ptc_error *err)
{
	struct call k = { .what = "statistics" };
	struct ptc_gpu_answer a;
	int rc;

	k.head.op = PTC_GPU_STATS;
	rc = run(c, &k, &a, o, err);
	if (rc)
		return rc;
	*ret = (struct ptc_gpu_stats){ a.value, a.more, a.count, k.life, 0 };
	pthread_mutex_lock(&c->lock);
	if (c->life == k.life)
		ret->pid = c->child.process.pid;
	pthread_mutex_unlock(&c->lock);
	return 0;
}

/* ---- life ---- */

int ptc_gpu_client_new(const struct ptc_gpu_client_config *config, struct ptc_gpu_client **ret, struct ptc_error *err)
{
	struct ptc_gpu_client *c = ptc_calloc(1, sizeof *c);
	int rc = 0;

	if (!c)
		return ptc_nomem(err);
	if (config->program)
		snprintf(c->path, sizeof c->path, "%s", config->program);
	else
		rc = ptc_helper_find("ptc-gpu", "PTC_GPU", c->path, err);
	if (rc) {
		ptc_free(c);
		return rc;
	}
	c->pinned_max = config->pinned_max;
	c->copiers = config->copiers ? config->copiers : ptc_gpu_copiers();
	c->hang_ms = config->hang_ms ? config->hang_ms : HANG_MS_DEFAULT;
	pthread_mutex_init(&c->lock, NULL);
	pthread_mutex_init(&c->send_lock, NULL);
	ptc_cond_init(&c->changed);
	*ret = c;
	return 0;
}

struct ptc_gpu_client *ptc_gpu_client_free(struct ptc_gpu_client *c)
{
	struct timespec until;

	if (!c)
		return NULL;
	until = deadline(c->hang_ms);
	pthread_mutex_lock(&c->lock);
	c->closing = true;
	if (c->state == RUNNING)
		shutdown(c->child.socket, SHUT_WR); /* it unmaps everything and ends */
	while (c->state != NONE)
		if (pthread_cond_timedwait(&c->changed, &c->lock, &until) != 0) {
			end_locked(c, "it did not end");
			until = deadline(2 * GONE_MS);
		}
	pthread_mutex_unlock(&c->lock);
	if (c->reader_made)
		pthread_join(c->reader, NULL);
	reap_locked(c);
	for (unsigned i = 0; i < c->nleft; i++)
		ptc_child_close(&c->left[i].child.process);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->send_lock);
	pthread_mutex_destroy(&c->lock);
	ptc_free(c);
	return NULL;
}
