/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose connection is closed before anything was sent, or whose request does not come: made again, of every kind,
 * and heard by the handler once. Calls that stand: the next ones have another connection. Between the client and a real
 * server stands a gate. It closes the first connections as a listener does that has too many, and passes on the others'
 * bytes; it can take away the flow control of some, as a bit that changes on the way may. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "base/test_leaks.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"
#include "rpc/test_certs.h"

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

#define SHED          3     /* connections that are closed at first */
#define CALL_MS       60000 /* deadline: nothing here waits for it */
#define LINKS         4
#define PREFACE       24
#define WINDOW_UPDATE 8
#define BIG           (256u << 10) /* HTTP/2 lets a connection send 65535 bytes until it is given more */
#define ALL_ROLES     ((1u << PTC_ROLE_USER) | (1u << PTC_ROLE_NODE) | (1u << PTC_ROLE_ADMIN))

static atomic_int heard; /* calls that a handler began */
static const uint8_t big[BIG];

/* What goes one way through a connection whose flow control is taken away. */
struct flow {
	size_t pass; /* so many more bytes belong to the frame */
	bool drops;  /* .. which does not go on */
	uint8_t head[9];
	size_t nhead;
};

struct link {
	int fd[2]; /* the client's, the server's; -1: not open */
	bool starved;
	struct flow flow[2]; /* from each */
};

struct gate {
	int listener, stop[2];
	atomic_int closed, shed;   /* so far; how many are closed in all, -1: all */
	atomic_int passed, starve; /* so far; of so many of them, the first ones, flow control is taken away */
	atomic_bool cut;           /* ends what is connected */
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

static int put(int to, const uint8_t *data, size_t n)
{
	ssize_t m = 0;

	for (size_t at = 0; at < n; at += (size_t)m)
		if ((m = send(to, data + at, n - at, MSG_NOSIGNAL)) <= 0)
			return -1;
	return 0;
}

/* Passes on bytes of HTTP/2, without the frames that give flow control. */
static int put_starved(struct flow *f, int to, const uint8_t *data, size_t n)
{
	for (size_t at = 0, m; at < n; at += m) {
		m = PTC_MIN(n - at, f->pass);
		if (m) {
			if (!f->drops && put(to, data + at, m) != 0)
				return -1;
			f->pass -= m;
			continue;
		}
		m = PTC_MIN(n - at, sizeof f->head - f->nhead);
		memcpy(f->head + f->nhead, data + at, m);
		f->nhead += m;
		if (f->nhead < sizeof f->head)
			continue;
		f->nhead = 0;
		f->pass = (size_t)f->head[0] << 16 | (size_t)f->head[1] << 8 | f->head[2];
		f->drops = f->head[3] == WINDOW_UPDATE;
		if (!f->drops && put(to, f->head, sizeof f->head) != 0)
			return -1;
	}
	return 0;
}

static bool pass(struct link *l, int from)
{
	uint8_t buf[4096];
	ssize_t n = read(l->fd[from], buf, sizeof buf);

	if (n <= 0)
		return false;
	return (l->starved ? put_starved(&l->flow[from], l->fd[!from], buf, (size_t)n)
			   : put(l->fd[!from], buf, (size_t)n)) == 0;
}

static void link_close(struct link *l)
{
	for (int i = 0; i < 2; i++) {
		if (l->fd[i] >= 0)
			close(l->fd[i]);
		l->fd[i] = -1;
	}
}

static void link_open(struct gate *g, struct link *l)
{
	int fd = accept(g->listener, NULL, NULL);

	if (atomic_load(&g->shed) < 0 || atomic_load(&g->closed) < atomic_load(&g->shed)) {
		close(fd);
		atomic_fetch_add(&g->closed, 1);
		return;
	}
	*l = (struct link){ .fd = { fd, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) },
			    .starved = atomic_fetch_add(&g->passed, 1) < atomic_load(&g->starve) };
	l->flow[0].pass = PREFACE; /* a client says this before its first frame */
	assert_int_equal(connect(l->fd[1], (struct sockaddr *)&g->server, sizeof g->server), 0);
}

static void *gate_main(void *arg)
{
	struct link link[LINKS];
	struct gate *g = arg;

	for (int i = 0; i < LINKS; i++)
		link[i] = (struct link){ .fd = { -1, -1 } };
	for (;;) {
		struct pollfd p[2 + 2 * LINKS] = { { g->stop[0], POLLIN, 0 }, { g->listener, POLLIN, 0 } };
		struct link *spare = NULL;

		for (int i = 0; i < 2 * LINKS; i++)
			p[2 + i] = (struct pollfd){ link[i / 2].fd[i % 2], POLLIN, 0 };
		poll(p, 2 + 2 * LINKS, 20);
		if (p[0].revents)
			break;
		for (int i = 0; i < LINKS; i++) {
			struct link *l = &link[i];

			if (l->fd[0] >= 0 && (atomic_load(&g->cut) || (p[2 + 2 * i].revents && !pass(l, 0)) ||
					      (p[3 + 2 * i].revents && !pass(l, 1))))
				link_close(l);
			if (l->fd[0] < 0)
				spare = l;
		}
		if (p[1].revents && spare)
			link_open(g, spare);
	}
	for (int i = 0; i < LINKS; i++)
		link_close(&link[i]);
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
	atomic_init(&g->passed, 0);
	atomic_init(&g->starve, 0);
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

/* Answers with many bytes, in one message. */
static int h_big(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	struct ptc_rpc_part p = { .data = big, .len = sizeof big };
	int rc = ptc_rpc_call_recv(call, &m, err);

	return rc ? rc : ptc_rpc_call_send(call, &p, 1, err);
}

/* Answers with the number of bytes that have come. */
static int h_count(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	char text[32];
	size_t n = 0;
	int rc;

	atomic_fetch_add(&heard, 1);
	while ((rc = ptc_rpc_call_recv(call, &m, err)) == 0 && m)
		n += ptc_rpc_message_len(m);
	snprintf(text, sizeof text, "%zu", n);
	return rc ? rc : ptc_rpc_call_send(call, &(struct ptc_rpc_part){ .data = text, .len = strlen(text) }, 1, err);
}

static int h_wait(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	atomic_fetch_add(&heard, 1);
	while (!ptc_rpc_call_cancelled(call))
		usleep(1000);
	return ptc_error_set(err, PTC_ECANCELED, "waited until cancelled");
}

static int setup_with(void **state, int stall_ms)
{
	struct fixture *f = ptc_calloc(1, sizeof *f);
	struct ptc_rpc_server_opts so = { .max_calls = 16, .stall_ms = stall_ms };
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
	assert_int_equal(ptc_rpc_server_method(f->srv, "/t.T/Big", ALL_ROLES, h_big, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_method(f->srv, "/t.T/Count", ALL_ROLES, h_count, NULL, NULL), 0);
	ptc_rpc_server_method_kind(f->srv, "/t.T/Count", PTC_RPC_BULK);
	assert_int_equal(ptc_rpc_server_listen_insecure(f->srv, "127.0.0.1:0", &port, NULL), 0);
	assert_int_equal(ptc_rpc_server_start(f->srv, NULL), 0);
	snprintf(target, sizeof target, "127.0.0.1:%d", gate_open(&f->gate, port));
	co.target = target;
	assert_int_equal(ptc_rpc_channel_new(&co, &f->ch, NULL), 0);
	*state = f;
	return 0;
}

static int setup(void **state)
{
	return setup_with(state, 0);
}

static int setup_stall(void **state)
{
	return setup_with(state, 300);
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

/* ---- connections that have lost their flow control ----------------------------------------------- */

static void starve(struct fixture *f, int n)
{
	atomic_store(&f->gate.shed, 0);
	atomic_store(&f->gate.starve, n);
}

static void counted(struct ptc_rpc_stream *s, const char *expected)
{
	struct ptc_rpc_message *m;
	char text[32] = "";

	assert_int_equal(ptc_rpc_stream_half_close(s, NULL), 0);
	assert_int_equal(ptc_rpc_stream_recv(s, &m, NULL), 0);
	assert_non_null(m);
	ptc_rpc_message_read(m, text, sizeof text - 1);
	assert_string_equal(text, expected);
	ptc_rpc_stream_free(s);
}

/* The server says so after a while; then the calls are made again over another connection. One whose owner does
 * something else first is not, and is told what, where, and what to do. */
static void a_request_that_does_not_come(void **state)
{
	struct fixture *f = *state;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_part part = { .data = big, .len = sizeof big };
	struct ptc_rpc_stream *s, *idle;
	struct ptc_rpc_message *m;
	struct done d = { 0 };

	starve(f, 1);
	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Count", 0, NULL, 0, &idle, NULL), 0);
	ptc_rpc_unary_async(f->client, f->ch, "/t.T/Count", big, sizeof big, CALL_MS, on_done, &d);
	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Count", 0, NULL, 0, &s, NULL), 0);
	assert_int_equal(ptc_rpc_stream_send(s, &part, 1, &err), 0);
	counted(s, "262144");
	run_until(f, &d);
	assert_int_equal(d.status, 0);
	assert_memory_equal(d.got, "262144", 6);
	assert_int_equal(ptc_rpc_stream_recv(idle, &m, &err), PTC_ETIMEOUT);
	print_message("%s\n", err.text);
	assert_non_null(strstr(err.text, "the request of /t.T/Count from ipv4:127.0.0.1:"));
	assert_non_null(strstr(err.text, " has not come whole within 10 s; ask again, over a new connection"));
	ptc_rpc_stream_free(idle);
	assert_int_equal(atomic_load(&heard), 2);
	assert_int_equal(atomic_load(&f->gate.passed), 2);
}

static int ask_big(struct fixture *f, int patience_ms)
{
	struct ptc_rpc_part part = { .data = "x", .len = 1 };
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m = NULL;
	int rc;

	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Big", 0, NULL, 0, &s, NULL), 0);
	ptc_rpc_stream_patience(s, patience_ms);
	assert_int_equal(ptc_rpc_stream_send(s, &part, 1, NULL), 0);
	rc = ptc_rpc_stream_recv(s, &m, NULL);
	if (rc == 0)
		assert_int_equal(ptc_rpc_message_len(m), BIG);
	ptc_rpc_stream_free(s);
	return rc;
}

static void after_patience_another_connection(void **state)
{
	struct fixture *f = *state;

	starve(f, 2);
	assert_int_equal(ask_big(f, 500), PTC_ETIMEOUT);
	assert_int_equal(ask_big(f, 500), PTC_ETIMEOUT);
	assert_int_equal(ask_big(f, CALL_MS), 0);
	assert_int_equal(ask_big(f, CALL_MS), 0);
	assert_int_equal(atomic_load(&f->gate.passed), 3);
}

/* A deadline of less than 5 s proves nothing. */
static void after_a_deadline_another_connection(void **state)
{
	struct fixture *f = *state;
	void *reply;
	size_t len;

	starve(f, 1);
	assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Big", "x", 1, 200, NULL, 0, &reply, &len, NULL), PTC_ETIMEOUT);
	assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Big", "x", 1, 5100, NULL, 0, &reply, &len, NULL), PTC_ETIMEOUT);
	assert_int_equal(atomic_load(&f->gate.passed), 1);
	assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Big", "x", 1, CALL_MS, NULL, 0, &reply, &len, NULL), 0);
	assert_int_equal(len, BIG);
	ptc_free(reply);
	assert_int_equal(atomic_load(&f->gate.passed), 2);
}

/* The server ends the call. No deadline has passed, and what was asked for may have been done. */
static void after_an_answer_that_stood_another_connection(void **state)
{
	struct fixture *f = *state;
	struct ptc_error err = PTC_ERROR_INIT;
	void *reply;
	size_t len;

	starve(f, 1);
	assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Big", "x", 1, CALL_MS, NULL, 0, &reply, &len, &err), PTC_ECANCELED);
	print_message("%s\n", err.text);
	assert_non_null(strstr(err.text, ": the caller has not taken what was sent to it"));
	assert_null(strstr(err.text, "again"));
	assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Big", "x", 1, CALL_MS, NULL, 0, &reply, &len, NULL), 0);
	ptc_free(reply);
	assert_int_equal(atomic_load(&f->gate.passed), 2);
}

static void *stood_main(void *arg)
{
	usleep(300000);
	ptc_rpc_stream_stood(arg);
	return NULL;
}

/* Its owner waits in a send, and another thread's watch ends that. A call under way keeps its connection. */
static void after_a_send_another_connection(void **state)
{
	struct fixture *f = *state;
	struct ptc_rpc_part part = { .data = big, .len = sizeof big }, small = { .data = "x", .len = 1 };
	struct ptc_rpc_stream *s, *other;
	pthread_t t;

	starve(f, 1);
	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Count", 0, NULL, 0, &other, NULL), 0);
	assert_int_equal(ptc_rpc_stream_send(other, &small, 1, NULL), 0);
	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Count", 0, NULL, 0, &s, NULL), 0);
	assert_int_equal(ptc_rpc_stream_send(s, &small, 1, NULL), 0);
	assert_int_equal(pthread_create(&t, NULL, stood_main, s), 0);
	assert_int_equal(ptc_rpc_stream_send(s, &part, 1, NULL), PTC_ECANCELED);
	pthread_join(t, NULL);
	ptc_rpc_stream_free(s);
	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Count", 0, NULL, 0, &s, NULL), 0);
	assert_int_equal(ptc_rpc_stream_send(s, &part, 1, NULL), 0);
	counted(s, "262144");
	counted(other, "1");
	assert_int_equal(atomic_load(&f->gate.passed), 2);
}

/* What the channel was made of is gone by then. */
static void over_tls_another_connection(void **state)
{
	char dir[] = "/tmp/ptc-test-again-XXXXXX", target[64], ca[64], crt[64], key[64];
	struct ptc_rpc_tls tls = { .ca_path = ca, .cert_path = crt, .key_path = key };
	struct ptc_rpc_channel_opts co = { .target = target, .expect_node = "n1", .tls = &tls };
	struct ptc_rpc_server_opts so = { .max_calls = 4 };
	struct ptc_rpc_part part = { .data = "x", .len = 1 };
	struct ptc_rpc_channel *ch;
	struct ptc_rpc_server *srv;
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m;
	struct gate gate;
	void *reply;
	size_t len;
	int port;

	(void)state;
	assert_non_null(mkdtemp(dir));
	test_ca(dir, "ca");
	test_cert(dir, "ca", "n1", "URI:ptc://node/n1,DNS:" PTC_RPC_MEMBER, 2);
	snprintf(ca, sizeof ca, "%s/ca.crt", dir);
	snprintf(crt, sizeof crt, "%s/n1.crt", dir);
	snprintf(key, sizeof key, "%s/n1.key", dir);
	assert_int_equal(ptc_rpc_server_new(&so, &srv, NULL), 0);
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Echo", ALL_ROLES, h_echo, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", &tls, &port, NULL), 0);
	assert_int_equal(ptc_rpc_server_start(srv, NULL), 0);
	snprintf(target, sizeof target, "127.0.0.1:%d", gate_open(&gate, port));
	atomic_store(&gate.shed, 0);
	assert_int_equal(ptc_rpc_channel_new(&co, &ch, NULL), 0);
	memset(ca, 0, sizeof ca);
	memset(crt, 0, sizeof crt);
	memset(key, 0, sizeof key);
	memset(target, 0, sizeof target);
	memset(&tls, 0, sizeof tls);
	assert_int_equal(ptc_rpc_stream_open(ch, "/t.T/Echo", 0, NULL, 0, &s, NULL), 0);
	assert_int_equal(ptc_rpc_stream_send(s, &part, 1, NULL), 0);
	assert_int_equal(ptc_rpc_stream_recv(s, &m, NULL), 0);
	ptc_rpc_stream_stood(s);
	ptc_rpc_stream_free(s);
	assert_int_equal(ptc_rpc_unary(ch, "/t.T/Echo", "hello", 5, CALL_MS, NULL, 0, &reply, &len, NULL), 0);
	assert_int_equal(len, 5);
	ptc_free(reply);
	assert_int_equal(atomic_load(&gate.passed), 2);
	ptc_rpc_channel_free(ch);
	gate_close(&gate);
	ptc_rpc_server_free(srv, 2000);
	test_sh("rm -r '%s'", dir);
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
		CASE(a_request_that_does_not_come),
		CASE(after_patience_another_connection),
		CASE(after_a_deadline_another_connection),
		cmocka_unit_test_setup_teardown(after_an_answer_that_stood_another_connection, setup_stall, teardown),
		CASE(after_a_send_another_connection),
		CASE(over_tls_another_connection),
	};
	int failed;

	ptc_rpc_init();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	ptc_rpc_shutdown();
	return test_leaks(failed);
}
