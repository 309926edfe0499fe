/* SPDX-License-Identifier: Apache-2.0 */
/* What other rooms may ask of the cluster at any time: what it is made of, tasks off the loop, waits for changes of the
 * mirror, and the size of etcd's database.
 *
 * Happy path: a wait is entered on the loop, and then sleeps on its own thread. After each change of the mirror the
 * loop asks it again whether it holds.
 *
 * Failure modes: the wait's time is over, its caller has gone, or the daemon stops (cluster.h); no memory for a task.
 */
#include "daemon/cluster/mirror/internal.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#define GONE_LOOK_MS 200 /* gRPC tells only the call's own thread that its caller is gone */

/* Somebody who waits, on his stack. */
struct wait {
	const struct ptc_cluster_wait *what;
	struct ptc_cluster *c;
	bool holds;
	struct wait *next;
};

struct ptc_etcd *ptc_cluster_etcd(struct ptc_cluster *c)
{
	return c->etcd;
}

struct ptc_loop *ptc_cluster_loop(const struct ptc_cluster *c)
{
	return c->opts.loop;
}

const struct ptc_cluster_quota *ptc_cluster_quota(const struct ptc_cluster *c)
{
	return &c->opts.quota;
}

struct ptc_addresses *ptc_cluster_addresses(const struct ptc_cluster *c)
{
	return c->addresses;
}

int64_t ptc_cluster_lease(struct ptc_cluster *c)
{
	return atomic_load(&c->lease_id);
}

int64_t ptc_cluster_store_since(const struct ptc_cluster *c)
{
	return atomic_load(&c->store_since);
}

int64_t ptc_cluster_coordination_epoch(const struct ptc_cluster *c)
{
	return c->coordination_epoch;
}

uint64_t ptc_cluster_epoch(const struct ptc_cluster *c)
{
	return c->epoch;
}

const char *ptc_cluster_self(const struct ptc_cluster *c)
{
	return c->opts.node.name;
}

const char *ptc_cluster_boot_id(const struct ptc_cluster *c)
{
	return c->opts.node.boot_id;
}

bool ptc_cluster_synced(const struct ptc_cluster *c)
{
	return c->nodes_synced && c->jobs_synced;
}

bool ptc_cluster_listed(const struct ptc_cluster *c)
{
	return c->listed;
}

/* ---- tasks ------------------------------------------------------------------ */

int ptc_cluster_steps(struct ptc_cluster *c, const char *lane, const struct ptc_task_step *steps,
		      void (*done)(void *arg), void *arg)
{
	return ptc_tasks_run(c->tasks, lane, 0, steps, done, arg);
}

int ptc_cluster_run_later(struct ptc_cluster *c, const char *lane, int64_t delay_ms,
			  void (*work)(void *arg, struct ptc_etcd *etcd), void (*done)(void *arg), void *arg)
{
	const struct ptc_task_step steps[] = { { PTC_TASK_ETCD, work }, { 0 } };

	return ptc_tasks_run(c->tasks, lane, delay_ms, steps, done, arg);
}

int ptc_cluster_run(struct ptc_cluster *c, const char *lane, void (*work)(void *arg, struct ptc_etcd *etcd),
		    void (*done)(void *arg), void *arg)
{
	return ptc_cluster_run_later(c, lane, 0, work, done, arg);
}

/* ---- waits ------------------------------------------------------------------ */

void ptc_cluster_changed(struct ptc_cluster *c)
{
	bool any = false;

	pthread_mutex_lock(&c->waits.lock);
	for (struct wait *w = c->waits.head; w; w = w->next)
		any |= w->holds = w->holds || w->what->holds(w->what->arg);
	if (any)
		pthread_cond_broadcast(&c->waits.wake);
	pthread_mutex_unlock(&c->waits.lock);
}

static void wait_begins(void *arg)
{
	struct wait *w = arg;
	struct ptc_cluster *c = w->c;

	pthread_mutex_lock(&c->waits.lock);
	w->holds = w->what->holds(w->what->arg);
	w->next = c->waits.head;
	c->waits.head = w;
	pthread_mutex_unlock(&c->waits.lock);
}

static void wait_ends_locked(struct ptc_cluster *c, const struct wait *w)
{
	struct wait **at = &c->waits.head;

	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
}

/* Without the lock, for which the loop would wait. */
static bool is_gone(struct ptc_cluster *c, const struct ptc_cluster_wait *what)
{
	bool gone;

	pthread_mutex_unlock(&c->waits.lock);
	gone = what->gone(what->gone_arg);
	pthread_mutex_lock(&c->waits.lock);
	return gone;
}

int ptc_cluster_wait(struct ptc_cluster *c, const struct ptc_cluster_wait *what)
{
	int64_t end = ptc_sys_now_ns() + what->ms * 1000000;
	struct wait w = { .what = what, .c = c };
	int rc = ptc_loop_call(c->opts.loop, wait_begins, &w);

	if (rc)
		return PTC_ECANCELED;
	pthread_mutex_lock(&c->waits.lock);
	while (rc == 0 && !w.holds) {
		int64_t now = ptc_sys_now_ns(), look = now + GONE_LOOK_MS * INT64_C(1000000);

		if (now >= end)
			rc = PTC_ETIMEOUT;
		else if (what->gone && is_gone(c, what))
			rc = PTC_ECANCELED;
		else if (!w.holds)
			ptc_cond_wait_until(&c->waits.wake, &c->waits.lock, what->gone ? PTC_MIN(end, look) : end);
	}
	wait_ends_locked(c, &w);
	pthread_mutex_unlock(&c->waits.lock);
	return rc;
}

/* ---- the database ----------------------------------------------------------- */

static void look_work(void *arg, struct ptc_etcd *e)
{
	struct ptc_cluster *c = arg;
	struct ptc_etcd_size s;

	if (ptc_etcd_size(e, &s, NULL) != 0)
		return;
	atomic_store(&c->database.bytes, s.bytes);
	atomic_store(&c->database.used, s.used);
	if (atomic_exchange(&c->database.full, s.full) == s.full)
		return;
	if (s.full)
		ptc_error_log(
			"etcd",
			"its database has come to its quota: nothing can be committed until it is smaller and its "
			"alarm disarmed (\"etcd is full\" in docs/install.md)");
	else
		ptc_info("etcd", "its database takes writes again");
}

void ptc_cluster_look(struct ptc_cluster *c)
{
	ptc_cluster_run(c, OWN_LANE, look_work, NULL, c); /* no memory: the next time */
}

struct ptc_cluster_database ptc_cluster_database(struct ptc_cluster *c)
{
	return (struct ptc_cluster_database){ .bytes = atomic_load(&c->database.bytes),
					      .used = atomic_load(&c->database.used),
					      .full = atomic_load(&c->database.full) };
}
