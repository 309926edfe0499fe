/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose connection is closed before anything was sent: made again, of every kind, and heard by the handler once.
 * Between the client and a real server stands a gate, which closes the first connections as a listener does that has
 * too many, and passes on the others' bytes. */
#include "base/alloc.h"
#include "base/sys/sys.h"
#include "base/test_leaks.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#define SHED      3     /* connections that are closed at first */
#define CALL_MS   60000 /* deadline: nothing here waits for it */
#define ALL_ROLES ((1u << PTC_ROLE_USER) | (1u << PTC_ROLE_NODE) | (1u << PTC_ROLE_ADMIN))

static atomic_int heard; /* calls that a handler began */

struct gate {
	int listener, stop[2];
	atomic_int closed, shed; /* so far; how many are closed in all, -1: all */
	atomic_bool cut;         /* ends what is connected */
	struct sockaddr_in server;
	pthread_t thread;
};

struct fixture {
	uv_loop_t uv;
	struct ptc_loop *loop;
	struct ptc_rpc_client *client;
	struct ptc_rpc_server *srv;
	struct ptc_rpc_channel *ch;
	struct gate gate;
};

/* ---- the gate ------------------------------------------------------------------------ */

static bool pass(int from, int to)
{
	char buf[4096];
	ssize_t n = read(from, buf, sizeof buf);

	for (ssize_t at = 0, m; n > 0 && at < n; at += m)
		if ((m = send(to, buf + at, (size_t)(n - at), MSG_NOSIGNAL)) <= 0)
			return false;
	return n > 0;
}

/* One connection at a time, which is what a channel has. */
static void *gate_main(void *arg)
{
	struct gate *g = arg;
	int fd[2] = { -1, -1 };

	for (;;) {
		struct pollfd p[] = { { g->stop[0], POLLIN, 0 },
				      { g->listener, POLLIN, 0 },
				      { fd[0], POLLIN, 0 },
				      { fd[1], POLLIN, 0 } };
		bool over = false;

		poll(p, 4, 20);
		if (p[0].revents)
			break;
		over = atomic_load(&g->cut) || (p[2].revents && !pass(fd[0], fd[1])) ||
		       (p[3].revents && !pass(fd[1], fd[0]));
		for (int i = 0; over && i < 2; i++) {
			if (fd[i] >= 0)
				close(fd[i]);
			fd[i] = -1;
		}
		if (!p[1].revents || fd[0] >= 0)
			continue;
		fd[0] = accept(g->listener, NULL, NULL);
		if (atomic_load(&g->shed) < 0 || atomic_load(&g->closed) < atomic_load(&g->shed)) {
			close(fd[0]);
			fd[0] = -1;
			atomic_fetch_add(&g->closed, 1);
			continue;
		}
		fd[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		assert_int_equal(connect(fd[1], (struct sockaddr *)&g->server, sizeof g->server), 0);
	}
	for (int i = 0; i < 2; i++)
		if (fd[i] >= 0)
			close(fd[i]);
	return NULL;
}

static int gate_open(struct gate *g, int server_port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof a;

	g->server = a;
	g->server.sin_port = htons((uint16_t)server_port);
	g->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(g->listener, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(g->listener, 16), 0);
	assert_int_equal(getsockname(g->listener, (struct sockaddr *)&a, &len), 0);
	assert_int_equal(pipe(g->stop), 0);
	atomic_init(&g->closed, 0);
	atomic_init(&g->shed, SHED);
	atomic_init(&g->cut, false);
	assert_int_equal(pthread_create(&g->thread, NULL, gate_main, g), 0);
	return ntohs(a.sin_port);
}

static void gate_close(struct gate *g)
{
	assert_int_equal(write(g->stop[1], "", 1), 1);
	pthread_join(g->thread, NULL);
	close(g->stop[0]);
	close(g->stop[1]);
	close(g->listener);
}

/* ---- the server ------------------------------------------------------------------------ */

/* Sends each message back, to the end. */
static int h_echo(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	char buf[64];
	int rc;

	atomic_fetch_add(&heard, 1);
	while ((rc = ptc_rpc_call_recv(call, &m, err)) == 0 && m) {
		struct ptc_rpc_part p = { .data = buf, .len = ptc_rpc_message_read(m, buf, sizeof buf) };

		rc = ptc_rpc_call_send(call, &p, 1, err);
		if (rc)
			break;
	}
	return rc;
}

static int h_wait(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	atomic_fetch_add(&heard, 1);
	while (!ptc_rpc_call_cancelled(call))
		usleep(1000);
	return ptc_error_set(err, PTC_ECANCELED, "waited until cancelled");
}

static int setup(void **state)
{
	struct fixture *f = ptc_calloc(1, sizeof *f);
	struct ptc_rpc_server_opts so = { .max_calls = 16 };
	struct ptc_rpc_channel_opts co = { .insecure = true };
	char target[64];
	int port;

	atomic_store(&heard, 0);
	uv_loop_init(&f->uv);
	assert_int_equal(ptc_loop_new(&f->uv, &f->loop, NULL), 0);
	assert_int_equal(ptc_rpc_client_new(f->loop, &f->client, NULL), 0);
	assert_int_equal(ptc_rpc_server_new(&so, &f->srv, NULL), 0);
	assert_int_equal(ptc_rpc_server_method(f->srv, "/t.T/Echo", ALL_ROLES, h_echo, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_method(f->srv, "/t.T/Wait", ALL_ROLES, h_wait, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_listen_insecure(f->srv, "127.0.0.1:0", &port, NULL), 0);
	assert_int_equal(ptc_rpc_server_start(f->srv, NULL), 0);
	snprintf(target, sizeof target, "127.0.0.1:%d", gate_open(&f->gate, port));
	co.target = target;
	assert_int_equal(ptc_rpc_channel_new(&co, &f->ch, NULL), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	ptc_rpc_client_free(f->client);
	ptc_rpc_channel_free(f->ch);
	gate_close(&f->gate);
	ptc_rpc_server_free(f->srv, 2000);
	uv_run(&f->uv, UV_RUN_NOWAIT);
	ptc_loop_free(f->loop);
	uv_run(&f->uv, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&f->uv), 0);
	ptc_free(f);
	return 0;
}

/* ---- calls that complete on the loop ------------------------------------------------------ */

struct done {
	int calls, status;
	char got[64];
	size_t n;
};

static void on_done(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len)
{
	struct done *d = arg;

	d->calls++;
	d->status = status;
	if (status == 0 && reply) {
		memcpy(d->got, reply, len);
		d->n = len;
	}
}

static int on_message(void *arg, struct ptc_rpc_message *m, struct ptc_error *err)
{
	struct done *d = arg;

	d->n += ptc_rpc_message_read(m, d->got + d->n, sizeof d->got - d->n);
	return 0;
}

static void run_until(struct fixture *f, const struct done *d)
{
	while (!d->calls)
		uv_run(&f->uv, UV_RUN_ONCE);
}

static void expect_answer(struct fixture *f, const struct done *d)
{
	assert_int_equal(d->status, 0);
	assert_int_equal(d->n, 5);
	assert_memory_equal(d->got, "hello", 5);
	assert_int_equal(atomic_load(&f->gate.closed), SHED);
	assert_int_equal(atomic_load(&heard), 1);
}

static void asynchronous(void **state)
{
	struct fixture *f = *state;
	struct done d = { 0 };

	ptc_rpc_unary_async(f->client, f->ch, "/t.T/Echo", "hello", 5, CALL_MS, on_done, &d);
	run_until(f, &d);
	expect_answer(f, &d);
}

static void answered_by_a_stream(void **state)
{
	struct fixture *f = *state;
	struct done d = { 0 };

	ptc_rpc_stream_async(f->client, f->ch, "/t.T/Echo", "hello", 5, on_message, on_done, &d);
	run_until(f, &d);
	expect_answer(f, &d);
}

static void cancelled_while_it_waits(void **state)
{
	struct fixture *f = *state;
	struct done d[2] = { { 0 }, { 0 } };
	struct ptc_rpc_async *call;

	atomic_store(&f->gate.shed, -1);
	call = ptc_rpc_stream_async(f->client, f->ch, "/t.T/Echo", "hello", 5, on_message, on_done, &d[0]);
	ptc_rpc_unary_async(f->client, f->ch, "/t.T/Echo", "hello", 5, CALL_MS, on_done, &d[1]);
	while (atomic_load(&f->gate.closed) < SHED)
		usleep(1000);
	ptc_rpc_async_cancel(call);
	run_until(f, &d[0]);
	assert_int_not_equal(d[0].status, 0);
	f->client = ptc_rpc_client_free(f->client);
	assert_int_equal(d[1].calls, 1);
	assert_int_equal(d[1].status, PTC_ECANCELED);
	assert_int_equal(d[0].calls, 1);
	assert_int_equal(atomic_load(&heard), 0);
}

/* A handler has heard of the call, so it is not made again, though the connection is closed. */
static void not_once_it_was_sent(void **state)
{
	struct fixture *f = *state;
	struct done d[2] = { { 0 }, { 0 } };
	struct ptc_rpc_part part = { .data = "hello", .len = 5 };
	struct ptc_rpc_message *m = NULL;
	struct ptc_rpc_stream *s;

	atomic_store(&f->gate.shed, 0);
	ptc_rpc_unary_async(f->client, f->ch, "/t.T/Wait", "hello", 5, CALL_MS, on_done, &d[0]);
	ptc_rpc_stream_async(f->client, f->ch, "/t.T/Wait", "hello", 5, on_message, on_done, &d[1]);
	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Wait", CALL_MS, NULL, 0, &s, NULL), 0);
	assert_int_equal(ptc_rpc_stream_send(s, &part, 1, NULL), 0);
	while (atomic_load(&heard) < 3)
		uv_run(&f->uv, UV_RUN_NOWAIT);
	atomic_store(&f->gate.cut, true);
	run_until(f, &d[0]);
	run_until(f, &d[1]);
	assert_int_equal(d[0].status, PTC_EPEER);
	assert_int_equal(d[1].status, PTC_EPEER);
	assert_int_equal(ptc_rpc_stream_recv(s, &m, NULL), PTC_EPEER);
	ptc_rpc_stream_free(s);
	assert_int_equal(atomic_load(&heard), 3);
}

/* ---- streams ------------------------------------------------------------------------------- */

static void streams(void **state)
{
	struct fixture *f = *state;
	struct ptc_rpc_message *m;
	struct ptc_rpc_stream *s;
	char buf[8];

	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Echo", 0, NULL, 0, &s, NULL), 0);
	for (int i = 0; i < 3; i++) {
		struct ptc_rpc_part part = { .data = &"abc"[i], .len = 1 };

		assert_int_equal(ptc_rpc_stream_send(s, &part, 1, NULL), 0);
		assert_int_equal(ptc_rpc_stream_recv(s, &m, NULL), 0);
		assert_non_null(m);
		assert_int_equal(ptc_rpc_message_read(m, buf, sizeof buf), 1);
		assert_int_equal(buf[0], "abc"[i]);
	}
	assert_int_equal(ptc_rpc_stream_half_close(s, NULL), 0);
	assert_int_equal(ptc_rpc_stream_finish(s, NULL), 0);
	ptc_rpc_stream_free(s);
	assert_int_equal(atomic_load(&f->gate.closed), SHED);
	assert_int_equal(atomic_load(&heard), 1);
}

static void *cancel_main(void *arg)
{
	struct fixture *f = ((void **)arg)[0];

	while (atomic_load(&f->gate.closed) < SHED)
		usleep(1000);
	ptc_rpc_stream_cancel(((void **)arg)[1]);
	return NULL;
}

static void a_stream_is_cancelled_by_another_thread(void **state)
{
	struct fixture *f = *state;
	struct ptc_rpc_part part = { .data = "x", .len = 1 };
	struct ptc_rpc_stream *s;
	pthread_t t;

	atomic_store(&f->gate.shed, -1);
	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Echo", 0, NULL, 0, &s, NULL), 0);
	assert_int_equal(pthread_create(&t, NULL, cancel_main, (void *[]){ f, s }), 0);
	assert_int_not_equal(ptc_rpc_stream_send(s, &part, 1, NULL), 0);
	pthread_join(t, NULL);
	ptc_rpc_stream_free(s);
	assert_int_equal(atomic_load(&heard), 0);
}

/* A listener that goes on closing connections: the call fails, some seconds later, as it did at once before. */
static void given_up(void **state)
{
	struct fixture *f = *state;
	struct ptc_error err = PTC_ERROR_INIT;
	struct done d = { 0 };
	struct ptc_rpc_part part = { .data = "x", .len = 1 };
	struct ptc_rpc_stream *s;

	atomic_store(&f->gate.shed, -1);
	ptc_rpc_unary_async(f->client, f->ch, "/t.T/Echo", "hello", 5, 300, on_done, &d);
	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Echo", 300, NULL, 0, &s, NULL), 0);
	assert_int_not_equal(ptc_rpc_stream_send(s, &part, 1, &err), 0);
	assert_true(err.code == PTC_EPEER || err.code == PTC_ETIMEOUT);
	ptc_rpc_stream_free(s);
	run_until(f, &d);
	assert_true(d.status == PTC_EPEER || d.status == PTC_ETIMEOUT);
	assert_int_equal(atomic_load(&heard), 0);
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(asynchronous),
		CASE(answered_by_a_stream),
		CASE(cancelled_while_it_waits),
		CASE(not_once_it_was_sent),
		CASE(streams),
		CASE(a_stream_is_cancelled_by_another_thread),
		CASE(given_up),
	};
	int failed;

	ptc_rpc_init();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	ptc_rpc_shutdown();
	return test_leaks(failed);
}
