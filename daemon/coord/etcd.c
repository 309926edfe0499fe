/* SPDX-License-Identifier: Apache-2.0 */
/* The client of etcd itself: endpoints, one unary call, and the life of its threads.
 *
 * Happy path: the endpoint that answered last is asked; its answer comes back.
 *
 * Failure modes. A repeatable call goes round the endpoints until one answers or the deadline passes (PTC_ECOORD). A
 * call that must happen at most once is sent only to an endpoint that has just answered a read, and is never sent
 * again. If the answer of such a call is lost, the outcome is unknown, and the error says so (PTC_ETIMEOUT for a silent
 * server, else PTC_ECOORD). What etcd refuses comes back as PTC_EINVAL, PTC_ENOTFOUND or PTC_ELIMIT with etcd's own
 * words. */
#include "daemon/coord/etcd_i.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/count.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <signal.h>
#include <string.h>
#include <time.h>

#define DEFAULT_TIMEOUT_MS 5000
#define ROUND_PAUSE_MS     50 /* between rounds over all endpoints; a refused connection fails at once */

static int64_t now_ms(void)
{
	return ptc_sys_now_ns() / 1000000;
}

static int endpoint_open(struct ptc_etcd_endpoint *ep, const char *target, const struct ptc_etcd_opts *opts,
			 struct ptc_error *err)
{
	bool local = strncmp(target, "unix:", 5) == 0;
	struct ptc_rpc_channel_opts copts = {
		.target = target,
		.tls = local ? NULL : opts->tls,
		.insecure = opts->insecure && !local && !opts->tls,
		.renews = true,
		.quiet_idle = true,
	};

	if (!local && !opts->tls && !opts->insecure)
		return ptc_error_set(err, PTC_EPERM, "etcd endpoint %s: TCP needs tls: {ca, cert, key}", target);
	ep->target = ptc_strdup(target);
	if (!ep->target)
		return ptc_nomem(err);
	return ptc_rpc_channel_new(&copts, &ep->channel, err);
}

int ptc_etcd_new(const struct ptc_etcd_opts *opts, struct ptc_etcd **ret_etcd, struct ptc_error *err)
{
	struct ptc_etcd *e;
	int rc = 0;

	if (opts->nendpoints == 0 || opts->nendpoints > PTC_ETCD_MAX_MEMBERS)
		return ptc_error_set(err, PTC_EINVAL, "etcd: %zu endpoints; there must be 1 to %d", opts->nendpoints,
				     PTC_ETCD_MAX_MEMBERS);
	e = ptc_calloc(1, sizeof *e);
	if (!e)
		return ptc_nomem(err);
	pthread_mutex_init(&e->lock, NULL);
	e->timeout_ms = opts->timeout_ms > 0 ? opts->timeout_ms : DEFAULT_TIMEOUT_MS;
	e->ep = ptc_calloc(opts->nendpoints, sizeof *e->ep);
	if (!e->ep)
		rc = ptc_nomem(err);
	for (size_t i = 0; i < opts->nendpoints && !rc; i++, e->nep++)
		rc = endpoint_open(&e->ep[i], opts->endpoints[i], opts, err);
	if (rc) {
		ptc_etcd_free(e);
		return rc;
	}
	*ret_etcd = e;
	return 0;
}

struct ptc_etcd *ptc_etcd_free(struct ptc_etcd *e)
{
	if (!e)
		return NULL;
	while (e->tasks)
		ptc_etcd_task_stop(e->tasks);
	for (size_t i = 0; e->ep && i < e->nep; i++) {
		ptc_rpc_channel_free(e->ep[i].channel);
		ptc_free(e->ep[i].target);
	}
	ptc_free(e->ep);
	pthread_mutex_destroy(&e->lock);
	ptc_free(e);
	return NULL;
}

/* ---- one call --------------------------------------------------------- */

/* Did the server say no (as opposed to: did we not hear from it)? */
static bool refused(int code)
{
	switch (code) {
	case PTC_EINVAL:
	case PTC_ENOTFOUND:
	case PTC_EEXIST:
	case PTC_ELIMIT:
	case PTC_EPERM:
	case PTC_ESTATE:
	case PTC_EVERSION:
	case PTC_ENOMEM:
	case PTC_ENOSPC:
		return true;
	default:
		return false;
	}
}

struct attempt {
	const char *method;
	const void *request;
	size_t len;
};

static int attempt(struct ptc_etcd *e, const struct attempt *a, size_t which, int timeout_ms, void **ret_reply,
		   size_t *ret_len, struct ptc_error *err)
{
	const int64_t from_ns = ptc_sys_now_ns();
	int rc = ptc_rpc_unary(e->ep[which].channel, a->method, a->request, a->len, timeout_ms, NULL, 0, ret_reply,
			       ret_len, err);

	if (rc == 0 || refused(rc))
		ptc_histogram_add(&ptc_etcd_times, ptc_sys_now_ns() - from_ns);
	else
		ptc_count_add(PTC_COUNT_ETCD_ERRORS, 1);
	if (rc == 0) {
		atomic_store(&e->preferred, which);
		atomic_store(&e->healthy, true);
		atomic_store(&e->answered_ms, ptc_sys_realtime_ms());
	} else {
		if (!refused(rc))
			atomic_store(&e->healthy, false);
		if (err &&
		    strstr(err->text, "database space exceeded")) /* etcd's own words; of everybody's next write, too */
			rc = ptc_error_set(err, PTC_ENOSPC,
					   "it takes no writes: its database has reached its quota; see \"etcd is "
					   "full\" in docs/install.md");
		ptc_error_wrap(err, "etcd at %s", e->ep[which].target);
	}
	return rc;
}

/* Round and round over the endpoints until one answers or the deadline passes. */
static int attempt_all(struct ptc_etcd *e, const struct attempt *a, int64_t deadline_ms, void **ret_reply,
		       size_t *ret_len, struct ptc_error *err)
{
	const struct timespec pause = { 0, ROUND_PAUSE_MS * 1000000L };
	struct ptc_error last = PTC_ERROR_INIT;
	size_t first = atomic_load(&e->preferred);

	ptc_require(e->nep > 0); /* ptc_etcd_new */
	for (size_t i = 0;; i++) {
		int64_t left = deadline_ms - now_ms();
		size_t others = i < e->nep ? e->nep - i : 1;
		int rc;

		if (left <= 0)
			break;
		rc = attempt(e, a, (first + i) % e->nep, (int)PTC_MAX(left / (int64_t)others, 1), ret_reply, ret_len,
			     &last);
		if (rc == 0)
			return 0;
		if (refused(rc))
			return ptc_error_set(err, rc, "%s", last.text);
		if ((i + 1) % e->nep == 0)
			nanosleep(&pause, NULL);
	}
	return ptc_error_set(err, PTC_ECOORD, "%s",
			     last.code ? last.text : "etcd: the time limit passed before the request was sent");
}

bool ptc_etcd_unreachable(const struct ptc_etcd *e, int64_t *ret_answered_ms)
{
	*ret_answered_ms = atomic_load(&e->answered_ms);
	return !atomic_load(&e->healthy);
}

int ptc_etcd_probe(struct ptc_etcd *e, int64_t deadline_ms, struct ptc_error *err)
{
	Ptc__Etcd__RangeRequest range = PTC__ETCD__RANGE_REQUEST__INIT;
	struct attempt a = { .method = "/etcdserverpb.KV/Range" };
	ptc_auto_free void *request = NULL;
	ptc_auto_free void *reply = NULL;
	size_t len;
	int rc;

	range.key = ptc_etcd_bytes("/", 1);
	range.limit = 1;
	rc = ptc_pb_encode(&range.base, &request, &a.len, err);
	if (rc)
		return rc;
	a.request = request;
	rc = attempt_all(e, &a, deadline_ms, &reply, &len, err);
	if (rc)
		ptc_error_wrap(err, "nothing was sent");
	return rc;
}

static int attempt_once(struct ptc_etcd *e, const struct attempt *a, int64_t deadline_ms, void **ret_reply,
			size_t *ret_len, struct ptc_error *err)
{
	int64_t left;
	int rc;

	if (!atomic_load(&e->healthy)) {
		rc = ptc_etcd_probe(e, deadline_ms, err);
		if (rc)
			return rc;
	}
	left = deadline_ms - now_ms();
	if (left <= 0)
		return ptc_error_set(err, PTC_ECOORD, "nothing was sent: etcd answered too late");
	rc = attempt(e, a, atomic_load(&e->preferred), (int)left, ret_reply, ret_len, err);
	if (rc == 0 || refused(rc))
		return rc;
	ptc_error_wrap(err, "outcome unknown, read it back");
	if (rc != PTC_ETIMEOUT)
		rc = PTC_ECOORD;
	if (err)
		err->code = rc;
	return rc;
}

int ptc_etcd_call(struct ptc_etcd *e, enum ptc_etcd_effect effect, const char *method, const ProtobufCMessage *request,
		  const ProtobufCMessageDescriptor *reply_type, int timeout_ms, ProtobufCMessage **ret_reply,
		  struct ptc_error *err)
{
	int64_t deadline_ms = now_ms() + (timeout_ms > 0 ? timeout_ms : e->timeout_ms);
	struct attempt a = { .method = method };
	ptc_auto_free void *data = NULL;
	ptc_auto_free void *reply = NULL;
	size_t len = 0;
	int rc = ptc_pb_encode(request, &data, &a.len, err);

	if (rc)
		return rc;
	if (a.len > PTC_ETCD_MESSAGE_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "a request of %zu bytes to etcd; at most %u are sent", a.len,
				     PTC_ETCD_MESSAGE_MAX);
	a.request = data;
	if (effect == PTC_ETCD_ONCE)
		rc = attempt_once(e, &a, deadline_ms, &reply, &len, err);
	else
		rc = attempt_all(e, &a, deadline_ms, &reply, &len, err);
	if (rc)
		return rc;
	rc = ptc_pb_decode(reply_type, reply, len, ret_reply, err);
	if (rc && effect == PTC_ETCD_ONCE) /* done, but we cannot say what */
		return ptc_error_set(err, PTC_ECOORD, "outcome unknown, read it back: etcd's answer cannot be read");
	return rc;
}

/* ---- threads ---------------------------------------------------------- */

static void *task_main(void *arg)
{
	struct ptc_etcd_task *t = arg;

	t->run(t);
	return NULL;
}

int ptc_etcd_task_start(struct ptc_etcd_task *t, struct ptc_etcd *e, const char *name,
			void (*run)(struct ptc_etcd_task *t), struct ptc_error *err)
{
	int rc;

	t->e = e;
	t->run = run;
	pthread_mutex_init(&t->lock, NULL);
	ptc_cond_init(&t->wake);
	rc = ptc_thread_start(&t->thread, name, task_main, t, err);
	if (rc) {
		ptc_etcd_task_done(t);
		return rc;
	}
	t->running = true;
	pthread_mutex_lock(&e->lock);
	t->next = e->tasks;
	e->tasks = t;
	pthread_mutex_unlock(&e->lock);
	return 0;
}

void ptc_etcd_task_stop(struct ptc_etcd_task *t)
{
	struct ptc_etcd_task **p;

	if (!t->running)
		return;
	pthread_mutex_lock(&t->lock);
	t->stop = true;
	if (t->stream) /* still open: the thread takes it out, under the lock, before it frees it */
		ptc_rpc_stream_cancel(t->stream);
	pthread_cond_broadcast(&t->wake);
	pthread_mutex_unlock(&t->lock);
	pthread_join(t->thread, NULL);
	t->running = false;
	pthread_mutex_lock(&t->e->lock);
	for (p = &t->e->tasks; *p && *p != t; p = &(*p)->next)
		;
	if (*p)
		*p = t->next;
	pthread_mutex_unlock(&t->e->lock);
	t->e = NULL;
}

void ptc_etcd_task_done(struct ptc_etcd_task *t)
{
	pthread_mutex_destroy(&t->lock);
	pthread_cond_destroy(&t->wake);
}

bool ptc_etcd_task_wait(struct ptc_etcd_task *t, int64_t ms)
{
	int64_t until = ptc_sys_now_ns() + PTC_MAX(ms, 0) * 1000000;
	bool stop;

	pthread_mutex_lock(&t->lock);
	while (!t->stop && ptc_cond_wait_until(&t->wake, &t->lock, until))
		;
	stop = t->stop;
	pthread_mutex_unlock(&t->lock);
	return stop;
}

bool ptc_etcd_task_stream(struct ptc_etcd_task *t, struct ptc_rpc_stream *s)
{
	bool go;

	pthread_mutex_lock(&t->lock);
	go = !t->stop;
	t->stream = s;
	pthread_mutex_unlock(&t->lock);
	return go;
}
