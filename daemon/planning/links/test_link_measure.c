/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of measurements against nodes that this program plays: how many calls are in flight, on how many threads, what
 * becomes of nodes that do not answer, and when the caller goes. */
#include "daemon/planning/links/links.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/thread.h"
#include "proto/pb.h"

#include "ptc.pb-c.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NODES  700 /* more pairs in a round than calls may be in flight */
#define SILENT 3   /* this one never answers */

struct asked {
	char to[PTC_NAME_MAX + 1], from[PTC_NAME_MAX + 1];
	ptc_rpc_done_fn cb;
	void *arg;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct asked v[PTC_LINK_CALLS + 1], last;
	size_t n, most, threads, calls;
	bool stop;
	atomic_bool cancelled; /* the call that asked for the measurement */
	size_t hold_at;        /* when so many calls have been made, the next one waits before it is; 0: none does */
	bool held, go;
} net = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };

int __wrap_ptc_channels_get(struct ptc_channels *c, const char *node, const char *address, bool bulk, unsigned lane,
			    struct ptc_rpc_channel **ret_channel, struct ptc_error *err);
int __wrap_ptc_channels_get(struct ptc_channels *c, const char *node, const char *address, bool bulk, unsigned lane,
			    struct ptc_rpc_channel **ret_channel, struct ptc_error *err)
{
	(void)c, (void)address, (void)bulk, (void)lane, (void)err;
	pthread_mutex_lock(&net.lock);
	net.held = net.hold_at && net.calls == net.hold_at;
	pthread_cond_broadcast(&net.cond);
	while (net.held && !net.go)
		pthread_cond_wait(&net.cond, &net.lock);
	pthread_mutex_unlock(&net.lock);
	*ret_channel = (struct ptc_rpc_channel *)(uintptr_t)node; /* the node is the connection */
	return 0;
}

bool __wrap_ptc_rpc_call_cancelled(const struct ptc_rpc_call *call);
bool __wrap_ptc_rpc_call_cancelled(const struct ptc_rpc_call *call)
{
	(void)call;
	return atomic_load(&net.cancelled);
}

static size_t threads(void)
{
	DIR *d = opendir("/proc/self/task");
	size_t n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

void __wrap_ptc_rpc_unary_async(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel, const char *method,
				const void *request, size_t len, int timeout_ms, ptc_rpc_done_fn cb, void *arg);
void __wrap_ptc_rpc_unary_async(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel, const char *method,
				const void *request, size_t len, int timeout_ms, ptc_rpc_done_fn cb, void *arg)
{
	ProtobufCMessage *m;
	struct asked *a;

	(void)client, (void)timeout_ms;
	assert_string_equal(method, "/ptc.v1.Peer/Measure");
	assert_int_equal(ptc_pb_decode(&ptc__v1__measure_request__descriptor, request, len, &m, NULL), 0);
	pthread_mutex_lock(&net.lock);
	assert_true(net.n < PTC_LINK_CALLS);
	a = &net.v[net.n++];
	*a = (struct asked){ .cb = cb, .arg = arg };
	snprintf(a->to, sizeof a->to, "%s", (const char *)channel);
	snprintf(a->from, sizeof a->from, "%s", ((Ptc__V1__MeasureRequest *)m)->node);
	net.last = *a;
	net.most = PTC_MAX(net.most, net.n);
	net.threads = PTC_MAX(net.threads, threads());
	net.calls++;
	pthread_cond_broadcast(&net.cond);
	pthread_mutex_unlock(&net.lock);
	ptc_pb_free(m);
}

static double rate(const char *from, const char *to)
{
	return 1000 + atoi(from + 1) + atoi(to + 1) / 1000.0;
}

static void answer(const struct asked *a)
{
	Ptc__V1__MeasureReply reply = PTC__V1__MEASURE_REPLY__INIT;
	void *data;
	size_t len;

	if (atoi(a->to + 1) == SILENT || atoi(a->from + 1) == SILENT) {
		a->cb(a->arg, PTC_ETIMEOUT, NULL, NULL, 0);
		return;
	}
	reply.bytes_s = rate(a->from, a->to);
	assert_int_equal(ptc_pb_encode(&reply.base, &data, &len, NULL), 0);
	a->cb(a->arg, 0, NULL, data, len);
	ptc_free(data);
}

/* The loop: answers the oldest call. */
static void *loop_main(void *arg)
{
	pthread_mutex_lock(&net.lock);
	for (;;) {
		struct asked a;

		while (net.n == 0 && !net.stop)
			pthread_cond_wait(&net.cond, &net.lock);
		if (net.n == 0)
			break;
		a = net.v[0];
		memmove(net.v, net.v + 1, --net.n * sizeof *net.v);
		pthread_mutex_unlock(&net.lock);
		answer(&a);
		pthread_mutex_lock(&net.lock);
	}
	pthread_mutex_unlock(&net.lock);
	return arg;
}

static void a_round_has_bounded_calls_and_no_threads(void **state)
{
	struct ptc_link_node *nodes = ptc_calloc(NODES, sizeof *nodes);
	struct ptc_links links, failed;
	size_t before;
	pthread_t loop;

	(void)state;
	for (int i = 0; i < NODES; i++)
		snprintf(nodes[i].name, sizeof nodes[i].name, "n%d", i);
	assert_int_equal(ptc_thread_start(&loop, "loop", loop_main, NULL, NULL), 0);
	before = threads();
	assert_int_equal(ptc_links_measure(NULL, NULL, NULL, nodes, NODES, &links, &failed, NULL), 0);
	assert_true(net.most > 1 && net.most <= PTC_LINK_CALLS);
	assert_int_equal(net.threads, before);
	assert_true(links.n > NODES);
	for (size_t i = 0; i < links.n; i++) {
		assert_float_equal(links.v[i].bytes_s, rate(links.v[i].from, links.v[i].to), 1e-9);
		assert_int_not_equal(atoi(links.v[i].from + 1), SILENT);
	}
	for (size_t i = 0; i < failed.n; i++)
		assert_true(atoi(failed.v[i].from + 1) == SILENT || atoi(failed.v[i].to + 1) == SILENT);
	assert_true(failed.n > 0);
	assert_int_equal(net.calls, links.n + PTC_LINK_SILENT); /* then it is asked no more */
	pthread_mutex_lock(&net.lock);
	net.stop = true;
	pthread_cond_signal(&net.cond);
	pthread_mutex_unlock(&net.lock);
	pthread_join(loop, NULL);
	ptc_free(links.v);
	ptc_free(failed.v);
	ptc_free(nodes);
}

struct measuring {
	struct ptc_link_node nodes[4];
	int rc;
	struct ptc_error err;
};

static void *measure_main(void *arg)
{
	struct measuring *m = arg;
	struct ptc_links links, failed;

	m->rc = ptc_links_measure(NULL, NULL, NULL, m->nodes, PTC_ARRAY_LEN(m->nodes), &links, &failed, &m->err);
	return arg;
}

static void measure_begin(struct measuring *m, pthread_t *thread)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(m->nodes); i++)
		snprintf(m->nodes[i].name, sizeof m->nodes[i].name, "m%zu", SILENT + 1 + i);
	net.n = net.calls = 0;
	atomic_store(&net.cancelled, false);
	assert_int_equal(ptc_thread_start(thread, "measure", measure_main, m, NULL), 0);
}

static void wait_calls(size_t calls)
{
	pthread_mutex_lock(&net.lock);
	while (net.calls < calls)
		pthread_cond_wait(&net.cond, &net.lock);
	pthread_mutex_unlock(&net.lock);
}

/* No answer comes: so it is for a daemon that stops, whose loop has stopped already. */
static void without_its_caller_it_ends(void **state)
{
	struct measuring m = { .err = PTC_ERROR_INIT };
	pthread_t thread;

	(void)state;
	measure_begin(&m, &thread);
	wait_calls(2);
	atomic_store(&net.cancelled, true);
	pthread_join(thread, NULL);
	assert_int_equal(m.rc, PTC_ECANCELED);
	print_message("%s\n", m.err.text);
	assert_int_equal(net.calls, 2); /* no round has followed */
	for (size_t i = 0; i < 2; i++)
		net.v[i].cb(net.v[i].arg, PTC_ECANCELED, NULL, NULL, 0);
	assert_int_equal(net.calls, 2);
}

/* The loop has an answer and is about to ask the other way round, when the caller goes and frees its nodes. */
static void an_answer_outlives_the_nodes(void **state)
{
	struct measuring m = { .err = PTC_ERROR_INIT };
	pthread_t thread, loop;
	struct asked first;

	(void)state;
	net.hold_at = 2;
	net.stop = net.held = net.go = false;
	measure_begin(&m, &thread);
	wait_calls(2);
	first = net.v[0];
	assert_int_equal(ptc_thread_start(&loop, "loop", loop_main, NULL, NULL), 0);
	pthread_mutex_lock(&net.lock);
	while (!net.held)
		pthread_cond_wait(&net.cond, &net.lock);
	pthread_mutex_unlock(&net.lock);
	atomic_store(&net.cancelled, true);
	pthread_join(thread, NULL);
	memset(m.nodes, 0, sizeof m.nodes);
	pthread_mutex_lock(&net.lock);
	net.hold_at = 0;
	net.go = net.stop = true;
	pthread_cond_broadcast(&net.cond);
	pthread_mutex_unlock(&net.lock);
	pthread_join(loop, NULL);
	assert_int_equal(net.calls, 3);
	assert_string_equal(net.last.to, first.from);
	assert_string_equal(net.last.from, first.to);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_round_has_bounded_calls_and_no_threads),
		cmocka_unit_test(without_its_caller_it_ends),
		cmocka_unit_test(an_answer_outlives_the_nodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
