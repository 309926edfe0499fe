/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which call runs on which thread, and how many calls a user may have.
 *
 *   free -> accepting -> ready <-> running <-> waiting (<-> looked at) ; running -> free
 *
 * One thread at a time waits in the core for the next call. When a call comes, another thread takes its place, and it
 * goes on with the call. More threads do not wait there, because each would take part in polling, and passing sockets
 * around among many is slow. At most max_calls threads run calls. There is one thread more, so calls are always
 * accepted, and callers with priority are recognized at once. A call that waits for its caller or for a time has no
 * thread. The waiter looks at such a call, soon at first and then less and less often, and when somebody wakes the
 * call; it makes the call ready. All of this is in one lock; scans are of some hundred entries.
 *
 * Who may run, where users are bounded (max_calls_per_user): an eighth of the threads is reserved for root, and an
 * eighth for users. The brief calls of one user have at most an eighth. All bulk calls have at most five eighths. While
 * half of these are free, one user may have max_calls_per_user bulk calls; after that, only a few. Among calls that may
 * run, root's and nodes' come first, then the oldest. Where users are not bounded, nodes call, too: an eighth of the
 * threads is for their bulk calls, because imports of clients wait until another node has taken their bytes (Put).
 *
 * Who may come: users together have five eighths of the room for calls, root has a quarter, and one user has
 * max_calls_per_user. The last place of each is for bulk calls: brief ones may wait for bulk ones of the same user, as
 * the calls of imports do that wait for their data. A third of a user's places is for brief calls, so that `ptcctl
 * status`, or the begin of another import, is not refused because of imports under way. If a user finds no room,
 * another call is ended for him: the oldest waiting call of the user who has the most calls, and more than he has. A
 * bulk call that has begun is not ended so.
 *
 * Failure modes: no thread can be started (calls wait longer; at start PTC_EIO); more calls than there is room for:
 * calls of users are refused (PTC_ELIMIT) before they take the room that is kept for others; all other calls wait in
 * the core. */
#include "rpc/server/internal.h"

#include "base/alloc.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <string.h>
#include <time.h>

#define ROOT_PART      8 /* this part of threads and of room is root's and nodes' */
#define BRIEF_SHARE    3 /* one in so many places of a user is for brief calls */
#define BULK_FEW       4 /* bulk calls of one user when bulk threads are scarce */
#define WAITER_IDLE_MS 1000

/* ---- who may run --------------------------------------------------------------------- */

static int part(int of)
{
	return of >= ROOT_PART ? of / ROOT_PART : of > 1;
}

struct load {
	int users, bulk, clients_bulk, mine, mine_bulk; /* clients: all but nodes */
};

static struct load load_locked(const struct ptc_rpc_call *call)
{
	const struct ptc_rpc_server *srv = call->srv;
	struct load l = { 0 };

	for (int i = 0; i < srv->ncalls; i++) {
		const struct ptc_rpc_call *c = srv->calls[i];
		bool bulk;

		if (c->state != PTC_RPC_RUNNING)
			continue;
		bulk = c->kind == PTC_RPC_BULK;
		l.users += ptc_rpc_call_is_user(c);
		l.bulk += bulk;
		l.clients_bulk += bulk && c->identity.role != PTC_ROLE_NODE;
		if (c->identity.role != call->identity.role || c->identity.uid != call->identity.uid)
			continue;
		l.mine += !bulk;
		l.mine_bulk += bulk;
	}
	return l;
}

static bool may_run_locked(const struct ptc_rpc_call *call)
{
	const struct ptc_rpc_server *srv = call->srv;
	int n = srv->max_calls, most = PTC_MAX(1, n * 5 / 8), scarce = PTC_MIN(BULK_FEW, srv->max_calls_per_user);
	struct load l = load_locked(call);

	if (srv->running >= n)
		return false;
	if (call->kind == PTC_RPC_BULK && l.bulk >= most)
		return false;
	if (call->refused)
		return true;
	if (!srv->max_calls_per_user) /* nodes call here, too, and imports of clients wait for their Puts */
		return call->kind != PTC_RPC_BULK || call->identity.role == PTC_ROLE_NODE ||
		       l.clients_bulk < PTC_MAX(1, most - part(n));
	if (!ptc_rpc_call_is_user(call))
		return call->identity.role != PTC_ROLE_USER || l.mine + l.mine_bulk < n - part(n);
	if (l.users >= n - part(n))
		return false;
	if (call->kind == PTC_RPC_BULK)
		return l.mine_bulk < (l.bulk * 2 < most ? srv->max_calls_per_user : scarce);
	return l.mine < PTC_MAX(2, part(n));
}

static struct ptc_rpc_call *ready_locked(struct ptc_rpc_server *srv)
{
	struct ptc_rpc_call *best = NULL;

	if (srv->running >= srv->max_calls)
		return NULL;
	for (int i = 0; i < srv->ncalls; i++) {
		struct ptc_rpc_call *c = srv->calls[i];

		if (c->state != PTC_RPC_READY)
			continue;
		if (best && (ptc_rpc_call_is_user(c) != ptc_rpc_call_is_user(best) ? ptc_rpc_call_is_user(c)
										   : c->turn > best->turn))
			continue;
		if (may_run_locked(c))
			best = c;
	}
	return best;
}

/* ---- who may come ------------------------------------------------------------------------ */

static int calls_of_locked(const struct ptc_rpc_server *srv, uid_t uid)
{
	int n = 0;

	for (int i = 0; i < srv->ncalls; i++)
		n += srv->calls[i]->counted && ptc_rpc_call_is_user(srv->calls[i]) &&
		     srv->calls[i]->identity.uid == uid;
	return n;
}

/* Ends a call of the user with the most, if that is more than `than`; of those without a thread, the one that has
 * waited longest. Whoever looks at it next finds it cancelled. */
static bool make_room_locked(struct ptc_rpc_server *srv, int than)
{
	struct ptc_rpc_call *victim = NULL;
	int most = than;

	for (int i = 0; i < srv->ncalls; i++) {
		struct ptc_rpc_call *c = srv->calls[i];
		int n;

		if ((c->state != PTC_RPC_WAITING && c->state != PTC_RPC_READY) || !c->counted ||
		    !ptc_rpc_call_is_user(c) || (c->kind == PTC_RPC_BULK && c->phase == PTC_RPC_STEPS))
			continue;
		n = calls_of_locked(srv, c->identity.uid);
		if (n > most || (victim && n == most && c->waiting_ns < victim->waiting_ns)) {
			victim = c;
			most = n;
		}
	}
	if (!victim)
		return false;
	victim->counted = false;
	victim->look_ns = 0;
	srv->unlooked = true;
	pthread_cond_signal(&srv->waiter_wake);
	grpc_call_cancel_with_status(victim->core, GRPC_STATUS_RESOURCE_EXHAUSTED,
				     "ended to make room: users have all calls that there can be, and you the most",
				     NULL);
	return true;
}

static void admit_locked(struct ptc_rpc_call *call)
{
	struct ptc_rpc_server *srv = call->srv;
	const bool bulk = call->kind == PTC_RPC_BULK;
	int all = 0, mine = 0, mine_bulk = 0, room = srv->max_calls_per_user - !bulk; /* the last is for bulk calls */
	int most = srv->max_open * (ptc_rpc_call_is_user(call) ? 5 : 2) / 8 - !bulk;
	bool fits;

	if (call->refused || !srv->max_calls_per_user || call->identity.role != PTC_ROLE_USER)
		return;
	for (int i = 0; i < srv->ncalls; i++) {
		const struct ptc_rpc_call *c = srv->calls[i];

		if (!c->counted || ptc_rpc_call_is_user(c) != ptc_rpc_call_is_user(call))
			continue;
		all++;
		mine += c->identity.uid == call->identity.uid;
		mine_bulk += c->identity.uid == call->identity.uid && c->kind == PTC_RPC_BULK;
	}
	if (all >= most && ptc_rpc_call_is_user(call) && make_room_locked(srv, mine + 1))
		all = most - 1;
	fits = mine < room && (!bulk || mine_bulk < room - srv->max_calls_per_user / BRIEF_SHARE);
	call->counted = all < most && (!ptc_rpc_call_is_user(call) || fits);
	if (call->counted)
		return;
	ptc_error_set(&call->err, PTC_ELIMIT,
		      all < most ? "too many calls of user %u at once; end some first"
				 : "too many calls of all users at once, and none has more than user %u; try again",
		      (unsigned)call->identity.uid);
	ptc_rpc_call_refuse(call, PTC_ELIMIT);
}

/* ---- threads -------------------------------------------------------------------------------- */

static void *worker_main(void *arg);

/* Wakes or starts a thread, as there is something to do. */
static void wake_locked(struct ptc_rpc_server *srv, struct ptc_error *err)
{
	if (srv->idle > 0) {
		pthread_cond_signal(&srv->wake);
		return;
	}
	if (srv->nthreads <= srv->max_calls &&
	    ptc_thread_start(&srv->threads[srv->nthreads], "ptc-rpc-call", worker_main, srv, err) == 0)
		srv->nthreads++;
}

static struct ptc_rpc_call *free_locked(struct ptc_rpc_server *srv)
{
	struct ptc_rpc_call *call;

	for (int i = 0; i < srv->ncalls; i++)
		if (srv->calls[i]->state == PTC_RPC_FREE)
			return srv->calls[i];
	if (srv->ncalls == srv->max_open)
		return NULL;
	call = ptc_calloc(1, sizeof *call);
	if (!call)
		return NULL;
	call->srv = srv;
	call->cq = grpc_completion_queue_create_for_next(NULL);
	srv->calls[srv->ncalls++] = call;
	return call;
}

static void free_call_locked(struct ptc_rpc_call *call)
{
	struct ptc_rpc_server *srv = call->srv;

	*call = (struct ptc_rpc_call){ .srv = srv, .cq = call->cq };
	if (--srv->busy == 0)
		pthread_cond_broadcast(&srv->quiet);
}

static void run_locked(struct ptc_rpc_call *call)
{
	struct ptc_rpc_server *srv = call->srv;
	bool over;

	call->state = PTC_RPC_RUNNING;
	srv->running++;
	/* Two that were woken one after the other may have been one thread: whatever is left to do has one of its own.
	 */
	if ((!srv->accepting && !srv->stopping) || ready_locked(srv))
		wake_locked(srv, NULL);
	pthread_mutex_unlock(&srv->lock);
	over = ptc_rpc_call_run(call);
	pthread_mutex_lock(&srv->lock);
	srv->running--;
	if (over) {
		free_call_locked(call);
		return;
	}
	call->state = PTC_RPC_WAITING;
	call->waiting_ns = call->look_ns = ptc_sys_now_ns();
	srv->unlooked = true;
	pthread_cond_signal(&srv->waiter_wake);
}

static void accept_locked(struct ptc_rpc_server *srv, struct ptc_rpc_call *call)
{
	bool accepted;

	srv->accepting = true;
	call->state = PTC_RPC_ACCEPTING;
	pthread_mutex_unlock(&srv->lock);
	accepted = ptc_rpc_call_accept(call);
	pthread_mutex_lock(&srv->lock);
	srv->accepting = false;
	if (!accepted) {
		call->state = PTC_RPC_FREE;
		srv->stopping = true; /* the core says so first */
		return;
	}
	srv->busy++;
	wake_locked(srv, NULL); /* to take this one's place */
	pthread_mutex_unlock(&srv->lock);
	ptc_rpc_call_begin(call);
	pthread_mutex_lock(&srv->lock);
	admit_locked(call);
	call->turn = ++srv->turn;
	call->state = PTC_RPC_READY;
}

static void *worker_main(void *arg)
{
	struct ptc_rpc_server *srv = arg;
	struct ptc_rpc_call *call;

	pthread_mutex_lock(&srv->lock);
	while (!srv->over) {
		if ((call = ready_locked(srv))) {
			run_locked(call);
		} else if (!srv->accepting && !srv->stopping && (call = free_locked(srv))) {
			accept_locked(srv, call);
		} else {
			srv->idle++;
			pthread_cond_wait(&srv->wake, &srv->lock);
			srv->idle--;
		}
	}
	pthread_mutex_unlock(&srv->lock);
	return NULL;
}

/* Looks at those whose time it is; when the next one's comes. */
static int64_t look_locked(struct ptc_rpc_server *srv)
{
	int64_t now = ptc_sys_now_ns(), next = now + WAITER_IDLE_MS * INT64_C(1000000);

	for (int i = 0; i < srv->ncalls; i++) {
		struct ptc_rpc_call *c = srv->calls[i];
		bool ready;

		if (c->state != PTC_RPC_WAITING)
			continue;
		if (c->look_ns <= now || c->look_now) {
			c->state = PTC_RPC_LOOKED;
			c->look_now = false;
			pthread_mutex_unlock(&srv->lock);
			ready = ptc_rpc_call_look(c, now);
			pthread_mutex_lock(&srv->lock);
			c->state = ready ? PTC_RPC_READY : PTC_RPC_WAITING;
			c->turn = ready ? ++srv->turn : c->turn;
			if (ready)
				wake_locked(srv, NULL);
		}
		if (c->state == PTC_RPC_WAITING)
			next = PTC_MIN(next, c->look_ns);
	}
	return next;
}

static void *waiter_main(void *arg)
{
	struct ptc_rpc_server *srv = arg;

	pthread_mutex_lock(&srv->lock);
	while (!srv->over) {
		int64_t next;

		srv->unlooked = false;
		next = look_locked(srv);
		if (!srv->over && !srv->unlooked)
			ptc_cond_wait_until(&srv->waiter_wake, &srv->lock, next);
	}
	pthread_mutex_unlock(&srv->lock);
	return NULL;
}

void ptc_rpc_call_wake(struct ptc_rpc_call *call)
{
	struct ptc_rpc_server *srv = call->srv;

	atomic_store(&call->woken, true);
	pthread_mutex_lock(&srv->lock);
	call->look_now = true; /* one look: while its caller takes nothing, the call stays as it is */
	srv->unlooked = true;
	pthread_cond_signal(&srv->waiter_wake);
	pthread_mutex_unlock(&srv->lock);
}

void ptc_rpc_server_load(const struct ptc_rpc_server *srv, int *ret_running, int *ret_waiting)
{
	/* const is the interface's promise; the lock is ours */
	union {
		const struct ptc_rpc_server *in;
		struct ptc_rpc_server *out;
	} s = { .in = srv };

	pthread_mutex_lock(&s.out->lock);
	*ret_running = srv->running;
	*ret_waiting = srv->busy - srv->running;
	pthread_mutex_unlock(&s.out->lock);
}

int ptc_rpc_schedule_start(struct ptc_rpc_server *srv, struct ptc_error *err)
{
	int rc = ptc_thread_start(&srv->waiter, "ptc-rpc-wait", waiter_main, srv, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&srv->lock);
	srv->waiter_started = true;
	wake_locked(srv, err);
	rc = srv->nthreads > 0 ? 0 : PTC_EIO;
	pthread_mutex_unlock(&srv->lock);
	return rc;
}

void ptc_rpc_schedule_stop(struct ptc_rpc_server *srv)
{
	pthread_mutex_lock(&srv->lock);
	srv->stopping = true;
	pthread_mutex_unlock(&srv->lock);
}

void ptc_rpc_schedule_join(struct ptc_rpc_server *srv)
{
	pthread_mutex_lock(&srv->lock);
	while (srv->busy > 0 && srv->nthreads > 0)
		pthread_cond_wait(&srv->quiet, &srv->lock);
	srv->over = true;
	pthread_cond_broadcast(&srv->wake);
	pthread_cond_broadcast(&srv->waiter_wake);
	pthread_mutex_unlock(&srv->lock);
	for (int i = 0; i < srv->nthreads; i++)
		pthread_join(srv->threads[i], NULL);
	if (srv->waiter_started)
		pthread_join(srv->waiter, NULL);
}
