/* SPDX-License-Identifier: Apache-2.0 */
/* The loop bridge and asynchronous calls. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "base/test_leaks.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#define POSTERS 4
#define POSTS   5000

struct env {
	uv_loop_t uv;
	struct ptc_loop *loop;
};

static int setup(void **state)
{
	struct env *e = ptc_calloc(1, sizeof *e);

	assert_int_equal(uv_loop_init(&e->uv), 0);
	assert_int_equal(ptc_loop_new(&e->uv, &e->loop, NULL), 0);
	*state = e;
	return 0;
}

static int teardown(void **state)
{
	struct env *e = *state;

	ptc_loop_free(e->loop);
	uv_run(&e->uv, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&e->uv), 0);
	ptc_free(e);
	return 0;
}

/* ---- the bridge -------------------------------------------------------------- */

struct poster {
	struct env *env;
	pthread_t thread;
	pthread_t loop_thread;
	int next; /* loop thread: what must come next */
	int calls;
	bool wrong;
};

struct item {
	struct poster *from;
	int number;
};

static void on_item(void *arg)
{
	struct item *it = arg;

	it->from->wrong |= it->number != it->from->next++ || !pthread_equal(pthread_self(), it->from->loop_thread);
	ptc_free(it);
}

static void on_call(void *arg)
{
	((struct poster *)arg)->calls++;
}

static void *poster_main(void *arg)
{
	struct poster *p = arg;

	for (int i = 0; i < POSTS; i++) {
		struct item *it = ptc_malloc(sizeof *it);

		*it = (struct item){ p, i };
		ptc_require(ptc_loop_post(p->env->loop, on_item, it) == 0);
		if (i % 500 == 0) {
			int before = p->calls;

			ptc_require(ptc_loop_call(p->env->loop, on_call, p) == 0);
			p->wrong |= p->calls != before + 1 || p->next != i + 1;
		}
	}
	return NULL;
}

static void posts_arrive_in_order(void **state)
{
	struct env *e = *state;
	struct poster p[POSTERS];
	int left = POSTERS * POSTS;

	for (int i = 0; i < POSTERS; i++) {
		p[i] = (struct poster){ .env = e, .loop_thread = pthread_self() };
		assert_int_equal(pthread_create(&p[i].thread, NULL, poster_main, &p[i]), 0);
	}
	while (left > 0) {
		uv_run(&e->uv, UV_RUN_ONCE);
		left = POSTERS * POSTS;
		for (int i = 0; i < POSTERS; i++)
			left -= p[i].next;
	}
	for (int i = 0; i < POSTERS; i++) {
		pthread_join(p[i].thread, NULL);
		assert_false(p[i].wrong);
	}
}

static void count(void *arg)
{
	(*(int *)arg)++;
}

static void stop_within(void *arg)
{
	ptc_loop_stop(((struct env *)arg)->loop);
}

static void stop_drains_then_refuses(void **state)
{
	struct env *e = *state;
	int n = 0;

	assert_int_equal(ptc_loop_post(e->loop, count, &n), 0);
	assert_int_equal(ptc_loop_post(e->loop, stop_within, e), 0);
	assert_int_equal(ptc_loop_post(e->loop, count, &n), 0);
	assert_int_equal(ptc_loop_post(e->loop, count, &n), 0);
	uv_run(&e->uv, UV_RUN_ONCE);
	assert_int_equal(n, 3);
	assert_int_equal(ptc_loop_post(e->loop, count, &n), PTC_ECANCELED);
	assert_int_equal(ptc_loop_call(e->loop, count, &n), PTC_ECANCELED);
	uv_run(&e->uv, UV_RUN_NOWAIT);
	assert_int_equal(n, 3);
}

/* ---- asynchronous calls -------------------------------------------------------- */

#define CALLS 200

struct done {
	int calls, ok, canceled, peer;
	int want;
	struct env *env;
	struct ptc_rpc_client *client; /* freed from within a callback when set */
	pthread_t loop_thread;
};

static void on_done(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len)
{
	struct done *d = arg;

	ptc_require(pthread_equal(pthread_self(), d->loop_thread));
	d->calls++;
	d->ok += status == 0 && len == 5 && memcmp(reply, "abcde", 5) == 0;
	d->canceled += status == PTC_ECANCELED;
	d->peer += status == PTC_EPEER;
	ptc_require((status == 0) == (err == NULL));
	if (status && status != PTC_ECANCELED)
		print_message("%s\n", err->text);
	if (d->client) {
		struct ptc_rpc_client *c = d->client;

		d->client = NULL;
		ptc_rpc_client_free(c);
	}
}

static int h_echo(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	char buf[64];
	struct ptc_rpc_part p = { .data = buf };
	int rc = ptc_rpc_call_recv(call, &m, err);

	if (rc || !m)
		return rc;
	p.len = ptc_rpc_message_read(m, buf, sizeof buf);
	return ptc_rpc_call_send(call, &p, 1, err);
}

static int h_wait(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	while (!ptc_rpc_call_cancelled(call))
		usleep(1000);
	return PTC_ECANCELED;
}

/* As many messages as the request's byte says, each with its number; then it waits, where the second byte says so. */
static int h_count(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	unsigned char ask[2] = { 0 };
	int rc = ptc_rpc_call_recv(call, &m, err);

	if (rc || !m)
		return rc;
	ptc_rpc_message_read(m, ask, sizeof ask);
	for (unsigned char i = 0; i < ask[0] && rc == 0; i++)
		rc = ptc_rpc_call_send(call, &(struct ptc_rpc_part){ .data = &i, .len = 1 }, 1, err);
	if (rc == 0 && ask[1] == 'e')
		rc = ptc_error_set(err, PTC_EDIGEST, "after %u messages", ask[0]);
	return rc == 0 && ask[1] == 'w' ? h_wait(arg, call, err) : rc;
}

struct pair {
	struct ptc_rpc_server *srv;
	struct ptc_rpc_channel *ch;
};

static struct pair pair_new(void)
{
	struct ptc_rpc_server_opts so = { .max_calls = 8 };
	struct ptc_rpc_channel_opts co = { .insecure = true };
	struct pair p;
	char target[64];
	int port;

	assert_int_equal(ptc_rpc_server_new(&so, &p.srv, NULL), 0);
	assert_int_equal(ptc_rpc_server_method(p.srv, "/t.T/Echo", 1u << PTC_ROLE_NODE, h_echo, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_method(p.srv, "/t.T/Wait", 1u << PTC_ROLE_NODE, h_wait, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_method(p.srv, "/t.T/Count", 1u << PTC_ROLE_NODE, h_count, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_listen_insecure(p.srv, "localhost:0", &port, NULL), 0);
	assert_int_equal(ptc_rpc_server_start(p.srv, NULL), 0);
	snprintf(target, sizeof target, "localhost:%d", port);
	co.target = target;
	assert_int_equal(ptc_rpc_channel_new(&co, &p.ch, NULL), 0);
	return p;
}

static void pair_free(struct pair *p)
{
	ptc_rpc_channel_free(p->ch);
	ptc_rpc_server_free(p->srv, 100);
}

static void async_calls_complete_on_the_loop(void **state)
{
	struct env *e = *state;
	struct ptc_rpc_client *c;
	struct pair p = pair_new();
	struct done d = { .loop_thread = pthread_self() };
	char request[] = "abcde";

	assert_int_equal(ptc_rpc_client_new(e->loop, &c, NULL), 0);
	for (int i = 0; i < CALLS; i++)
		ptc_rpc_unary_async(c, p.ch, "/t.T/Echo", request, 5, 20000, on_done, &d);
	ptc_rpc_unary_async(c, p.ch, "not a method", request, 5, 20000, on_done, &d);
	memset(request, 'x', 5); /* it was copied */
	assert_int_equal(d.calls, 0);
	while (d.calls < CALLS + 1)
		uv_run(&e->uv, UV_RUN_ONCE);
	assert_int_equal(d.ok, CALLS);
	ptc_rpc_client_free(c);
	pair_free(&p);
	assert_int_equal(d.calls, CALLS + 1);
}

/* ---- the pool ---------------------------------------------------------------- */

struct work {
	pthread_barrier_t both;
	pthread_t loop_thread;
	atomic_int ran, wrong;
};

static void work_fn(void *arg)
{
	struct work *w = arg;
	sigset_t mask;

	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	if (pthread_equal(pthread_self(), w->loop_thread) || sigismember(&mask, SIGTERM) != 1)
		atomic_fetch_add(&w->wrong, 1);
	pthread_barrier_wait(&w->both); /* two at once, while the loop does something else */
	atomic_fetch_add(&w->ran, 1);
}

static void work_runs_beside_the_loop(void **state)
{
	struct work w = { .loop_thread = pthread_self() };
	struct env *e = *state;

	pthread_barrier_init(&w.both, NULL, 2);
	for (int i = 0; i < 4; i++)
		assert_int_equal(ptc_loop_work(e->loop, work_fn, &w), 0);
	ptc_loop_stop(e->loop); /* what was accepted runs, also when the loop is over */
	assert_int_equal(ptc_loop_work(e->loop, work_fn, &w), PTC_ECANCELED);
	while (atomic_load(&w.ran) < 4)
		usleep(1000);
	assert_int_equal(atomic_load(&w.wrong), 0);
	uv_run(&e->uv, UV_RUN_NOWAIT);
	pthread_barrier_destroy(&w.both);
}

/* ---- answers that stream ----------------------------------------------------- */

struct counting {
	atomic_int seen;   /* messages, in order */
	int refuse_at;     /* -1: none */
	bool on_loop, off; /* a message came on the loop's thread; another one than the next */
	pthread_t loop_thread;
	int calls, status;
	char text[PTC_ERROR_MAX];
};

static int on_number(void *arg, struct ptc_rpc_message *m, struct ptc_error *err)
{
	struct counting *c = arg;
	unsigned char n = 255;

	c->on_loop |= pthread_equal(pthread_self(), c->loop_thread);
	c->off |= ptc_rpc_message_read(m, &n, 1) != 1 || n != atomic_load(&c->seen);
	if (atomic_load(&c->seen) == c->refuse_at)
		return ptc_error_set(err, PTC_EDIGEST, "number %d is refused", n);
	atomic_fetch_add(&c->seen, 1);
	return 0;
}

static void on_counted(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len)
{
	struct counting *c = arg;

	assert_true(pthread_equal(pthread_self(), c->loop_thread));
	assert_null(reply);
	assert_int_equal(len, 0);
	c->calls++;
	c->status = status;
	snprintf(c->text, sizeof c->text, "%s", status ? err->text : "");
}

static struct ptc_rpc_async *numbers(struct ptc_rpc_client *c, struct pair *p, const char ask[2], int refuse_at,
				     struct counting *ret)
{
	*ret = (struct counting){ .refuse_at = refuse_at, .loop_thread = pthread_self() };
	return ptc_rpc_stream_async(c, p->ch, "/t.T/Count", ask, 2, on_number, on_counted, ret);
}

static void streams_come_message_by_message(void **state)
{
	struct env *e = *state;
	struct pair p = pair_new();
	struct ptc_rpc_client *c;
	struct counting n[4];

	assert_int_equal(ptc_rpc_client_new(e->loop, &c, NULL), 0);
	numbers(c, &p, "\x64.", -1, &n[0]);
	numbers(c, &p, "\x00.", -1, &n[1]);
	numbers(c, &p,
		"\x07"
		"e",
		-1, &n[2]);
	numbers(c, &p,
		"\x64"
		"w",
		3, &n[3]); /* the peer would go on for ever */
	while (n[0].calls + n[1].calls + n[2].calls + n[3].calls < 4)
		uv_run(&e->uv, UV_RUN_ONCE);
	assert_int_equal(n[0].status, 0);
	assert_int_equal(n[0].seen, 100);
	assert_int_equal(n[1].status, 0);
	assert_int_equal(n[1].seen, 0);
	assert_int_equal(n[2].status, PTC_EDIGEST);
	assert_int_equal(n[2].seen, 7);
	assert_non_null(strstr(n[2].text, "after 7 messages"));
	assert_int_equal(n[3].status, PTC_EDIGEST);
	assert_int_equal(n[3].seen, 3);
	assert_string_equal(n[3].text, "number 3 is refused");
	for (int i = 0; i < 4; i++)
		assert_false(n[i].on_loop || n[i].off);
	ptc_rpc_client_free(c);
	pair_free(&p);
	for (int i = 0; i < 4; i++)
		assert_int_equal(n[i].calls, 1);
}

static void a_stream_is_cancelled_by_its_caller_or_with_the_client(void **state)
{
	struct env *e = *state;
	struct pair p = pair_new();
	struct ptc_rpc_client *c;
	struct counting n[3];
	struct ptc_rpc_async *call;

	assert_int_equal(ptc_rpc_client_new(e->loop, &c, NULL), 0);
	call = numbers(c, &p,
		       "\x02"
		       "w",
		       -1, &n[0]);
	numbers(c, &p,
		"\x02"
		"w",
		-1, &n[1]);
	numbers(c, &p,
		"\xff"
		"w",
		-1, &n[2]);
	while (atomic_load(&n[0].seen) < 2 || atomic_load(&n[1].seen) < 2)
		usleep(1000);
	ptc_rpc_async_cancel(call);
	while (n[0].calls == 0)
		uv_run(&e->uv, UV_RUN_ONCE);
	assert_int_equal(n[0].status, PTC_ECANCELED);
	assert_int_equal(n[1].calls, 0);
	ptc_rpc_client_free(c);
	for (int i = 1; i < 3; i++) {
		assert_int_equal(n[i].calls, 1);
		assert_int_equal(n[i].status, PTC_ECANCELED);
	}
	uv_run(&e->uv, UV_RUN_NOWAIT);
	pair_free(&p);
}

static void a_stream_that_cannot_begin_calls_back(void **state)
{
	struct env *e = *state;
	struct pair p = pair_new();
	struct ptc_rpc_client *c;
	struct counting n[4];

	assert_int_equal(ptc_rpc_client_new(e->loop, &c, NULL), 0);
	n[3] = (struct counting){ .refuse_at = -1, .loop_thread = pthread_self() };
	ptc_rpc_async_cancel(ptc_rpc_stream_async(c, p.ch, "not a method", "\x01.", 2, on_number, on_counted, &n[3]));
	for (int at = 1; at <= 3; at++) {
		ptc_alloc_fail_at((uint64_t)at);
		numbers(c, &p, "\x01.", -1, &n[at - 1]);
		while (n[at - 1].calls == 0)
			uv_run(&e->uv, UV_RUN_ONCE);
		ptc_alloc_fail_at(0);
		assert_int_equal(n[at - 1].calls, 1);
	}
	assert_int_equal(n[0].status, PTC_ENOMEM);
	assert_int_equal(n[3].calls, 1);
	assert_int_equal(n[3].status, PTC_EINVAL);
	ptc_rpc_client_free(c);
	pair_free(&p);
}

static void freeing_cancels_each_exactly_once(void **state)
{
	struct env *e = *state;
	struct ptc_rpc_client *c;
	struct pair p = pair_new();
	struct done d = { .loop_thread = pthread_self() };

	assert_int_equal(ptc_rpc_client_new(e->loop, &c, NULL), 0);
	for (int i = 0; i < 20; i++)
		ptc_rpc_unary_async(c, p.ch, i % 2 ? "/t.T/Wait" : "/t.T/Echo", "abcde", 5, 20000, on_done, &d);
	usleep(100000); /* some are complete, their drain is posted, none has run */
	ptc_rpc_client_free(c);
	assert_int_equal(d.calls, 20);
	assert_int_equal(d.canceled, 20);
	uv_run(&e->uv, UV_RUN_NOWAIT); /* the posted drain finds nothing */
	assert_int_equal(d.calls, 20);
	pair_free(&p);
}

static void client_freed_by_a_callback(void **state)
{
	struct env *e = *state;
	struct pair p = pair_new();
	struct done d = { .loop_thread = pthread_self() };

	assert_int_equal(ptc_rpc_client_new(e->loop, &d.client, NULL), 0);
	struct ptc_rpc_client *c = d.client;

	for (int i = 0; i < 5; i++)
		ptc_rpc_unary_async(c, p.ch, i ? "/t.T/Wait" : "/t.T/Echo", "abcde", 5, 20000, on_done, &d);
	while (d.calls < 5)
		uv_run(&e->uv, UV_RUN_ONCE);
	assert_int_equal(d.ok, 1);
	assert_int_equal(d.canceled, 4);
	pair_free(&p);
}

static void stopped_loop_leaves_callbacks_to_free(void **state)
{
	struct env *e = *state;
	struct ptc_rpc_client *c;
	struct pair p = pair_new();
	struct done d = { .loop_thread = pthread_self() };

	assert_int_equal(ptc_rpc_client_new(e->loop, &c, NULL), 0);
	ptc_loop_stop(e->loop);
	ptc_rpc_unary_async(c, p.ch, "/t.T/Echo", "abcde", 5, 20000, on_done, &d);
	ptc_rpc_unary_async(c, p.ch, "bad", "abcde", 5, 20000, on_done, &d);
	usleep(50000);
	assert_int_equal(d.calls, 0);
	ptc_rpc_client_free(c);
	assert_int_equal(d.canceled, 2);
	pair_free(&p);
}

/* Every allocation of starting a call fails in turn: one callback each time. */
static void out_of_memory_calls_back_too(void **state)
{
	struct env *e = *state;
	struct ptc_rpc_client *c;
	struct pair p = pair_new();
	struct done d = { .loop_thread = pthread_self() };

	assert_int_equal(ptc_rpc_client_new(e->loop, &c, NULL), 0);
	for (int at = 1; at <= 3; at++) {
		int before = d.calls;

		ptc_alloc_fail_at((uint64_t)at);
		ptc_rpc_unary_async(c, p.ch, "/t.T/Echo", "abcde", 5, 20000, on_done, &d);
		while (d.calls == before)
			uv_run(&e->uv, UV_RUN_ONCE);
		ptc_alloc_fail_at(0);
		assert_int_equal(d.calls, before + 1);
	}
	ptc_rpc_client_free(c);
	pair_free(&p);
}

int main(void)
{
#define WITH(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		WITH(posts_arrive_in_order),
		WITH(stop_drains_then_refuses),
		WITH(async_calls_complete_on_the_loop),
		WITH(streams_come_message_by_message),
		WITH(a_stream_is_cancelled_by_its_caller_or_with_the_client),
		WITH(a_stream_that_cannot_begin_calls_back),
		WITH(work_runs_beside_the_loop),
		WITH(freeing_cancels_each_exactly_once),
		WITH(client_freed_by_a_callback),
		WITH(stopped_loop_leaves_callbacks_to_free),
		WITH(out_of_memory_calls_back_too),
	};
	int failed;

	ptc_rpc_init();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	ptc_rpc_shutdown();
	return test_leaks(failed);
}
