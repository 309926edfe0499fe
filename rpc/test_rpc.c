/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of every kind over a plain loopback server, cancellation, limits,
 * shutdown under load, and what a bad peer can do. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sys/sys.h"
#include "base/test_leaks.h"
#include "base/test_seed.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#define ALL_ROLES ((1u << PTC_ROLE_USER) | (1u << PTC_ROLE_NODE) | (1u << PTC_ROLE_ADMIN))
#define PART      ((size_t)2 << 20)
#define CALL_MS   20000

static atomic_int released, sent_parts, begun, cut_seen, ended_seen; /* begun: handlers of Sum, Bidi and Wait */
static char *bulk;

struct fixture {
	struct ptc_rpc_server *srv;
	struct ptc_rpc_channel *ch;
	char target[64];
	int port;
};

static void on_release(void *arg)
{
	assert_ptr_equal(arg, bulk);
	atomic_fetch_add(&released, 1);
}

static bool within(int ms, atomic_int *a, int value)
{
	for (int64_t end = ptc_sys_now_ns() + (int64_t)ms * 1000000; ptc_sys_now_ns() < end; usleep(2000))
		if (atomic_load(a) == value)
			return true;
	return atomic_load(a) == value;
}

static void until_more(atomic_int *a, int than)
{
	for (int64_t end = ptc_sys_now_ns() + CALL_MS * INT64_C(1000000); ptc_sys_now_ns() < end; usleep(1000))
		if (atomic_load(a) > than)
			return;
	fail_msg("still %d after %d ms", than, CALL_MS);
}

/* ---- handlers ------------------------------------------------------------------- */

static int send_bytes(struct ptc_rpc_call *call, const void *data, size_t len, struct ptc_error *err)
{
	struct ptc_rpc_part p = { .data = data, .len = len };

	return ptc_rpc_call_send(call, &p, 1, err);
}

/* Replies with what came; metadata "prefix" goes before it. */
static int h_echo(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	const char *prefix = ptc_rpc_call_meta(call, "prefix");
	struct ptc_rpc_part p[2] = { { .data = prefix, .len = prefix ? strlen(prefix) : 0 }, { NULL, 0, NULL, NULL } };
	struct ptc_rpc_message *m;
	int rc = ptc_rpc_call_recv(call, &m, err);
	char *copy;

	if (rc)
		return rc;
	assert_non_null(m);
	p[1].len = ptc_rpc_message_len(m);
	copy = ptc_malloc(p[1].len + 1);
	assert_int_equal(ptc_rpc_message_read(m, copy, p[1].len + 1), p[1].len);
	p[1].data = copy;
	rc = ptc_rpc_call_send(call, p, 2, err);
	ptc_free(copy);
	return rc;
}

static int h_fail(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	(void)call;
	return ptc_error_set(err, *(int *)arg, "tensor \"h.3\": 100%% of it\nis wrong, \xc3\xa4");
}

/* Counts messages and bytes until the caller half-closes. */
static int h_sum(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	unsigned long long sum[2] = { 0, 0 };
	const void *p;
	size_t n;
	int rc;

	atomic_fetch_add(&begun, 1);
	while ((rc = ptc_rpc_call_recv(call, &m, err)) == 0 && m) {
		sum[0]++;
		while ((n = ptc_rpc_message_next(m, &p)) > 0)
			for (size_t i = 0; i < n; i++)
				sum[1] += ((const uint8_t *)p)[i];
	}
	atomic_fetch_add(rc ? &cut_seen : &ended_seen, 1);
	return rc ? rc : send_bytes(call, sum, sizeof sum, err);
}

/* Echoes each message as it comes. */
static int h_bidi(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	char buf[256];
	int rc;

	atomic_fetch_add(&begun, 1);
	while ((rc = ptc_rpc_call_recv(call, &m, err)) == 0 && m) {
		size_t n = ptc_rpc_message_read(m, buf, sizeof buf);

		rc = send_bytes(call, buf, n, err);
		if (rc)
			break;
	}
	atomic_fetch_add(rc ? &cut_seen : &ended_seen, 1);
	return rc;
}

/* Sends arg's number of bulk parts without copying (negative: without end). */
static int h_bulk(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	int count = *(int *)arg, rc = 0;

	for (int i = 0; (count < 0 || i < count) && !rc; i++) {
		uint32_t head = (uint32_t)i;
		struct ptc_rpc_part p[2] = { { .data = &head, .len = sizeof head },
					     { .data = bulk, .len = PART, .release = on_release, .arg = bulk } };

		atomic_fetch_add(&sent_parts, 1);
		rc = ptc_rpc_call_send(call, p, 2, err);
	}
	if (rc)
		atomic_fetch_add(&cut_seen, 1);
	return rc;
}

static int h_wait(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	atomic_fetch_add(&begun, 1);
	while (!ptc_rpc_call_cancelled(call))
		usleep(1000);
	atomic_fetch_add(&cut_seen, 1);
	return ptc_error_set(err, PTC_ECANCELED, "waited until cancelled");
}

static int count_endless = -1, count_ten = 10, code_layout = PTC_ELAYOUT, code_odd = -12345;

static const struct {
	const char *name;
	ptc_rpc_handler_fn fn;
	void *arg;
} methods[] = {
	{ "/t.T/Echo", h_echo, NULL },
	{ "/t.T/Fail", h_fail, &code_layout },
	{ "/t.T/Odd", h_fail, &code_odd },
	{ "/t.T/Sum", h_sum, NULL },
	{ "/t.T/Bidi", h_bidi, NULL },
	{ "/t.T/Ten", h_bulk, &count_ten },
	{ "/t.T/Endless", h_bulk, &count_endless },
	{ "/t.T/Wait", h_wait, NULL },
};

static int setup(void **state)
{
	struct fixture *f = ptc_calloc(1, sizeof *f);
	struct ptc_rpc_server_opts so = { .max_calls = 16, .max_message_bytes = 4u << 20 };
	struct ptc_rpc_channel_opts co = { .insecure = true, .bulk = true, .max_message_bytes = 4u << 20 };

	atomic_store(&released, 0);
	atomic_store(&sent_parts, 0);
	atomic_store(&begun, 0);
	atomic_store(&cut_seen, 0);
	atomic_store(&ended_seen, 0);
	assert_int_equal(ptc_rpc_server_new(&so, &f->srv, NULL), 0);
	for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
		assert_int_equal(ptc_rpc_server_method(f->srv, methods[i].name, ALL_ROLES, methods[i].fn,
						       methods[i].arg, NULL),
				 0);
	assert_int_equal(ptc_rpc_server_method(f->srv, "/t.T/Admin", 1u << PTC_ROLE_ADMIN, h_echo, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_listen_insecure(f->srv, "127.0.0.1:0", &f->port, NULL), 0);
	assert_int_equal(ptc_rpc_server_start(f->srv, NULL), 0);
	snprintf(f->target, sizeof f->target, "127.0.0.1:%d", f->port);
	co.target = f->target;
	assert_int_equal(ptc_rpc_channel_new(&co, &f->ch, NULL), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	ptc_rpc_channel_free(f->ch);
	ptc_rpc_server_free(f->srv, 2000);
	assert_int_equal(atomic_load(&released), atomic_load(&sent_parts));
	ptc_free(f);
	return 0;
}

static int unary(struct fixture *f, const char *method, const char *request, char **ret_text, struct ptc_error *err)
{
	size_t len;
	void *reply;
	int rc = ptc_rpc_unary(f->ch, method, request, strlen(request), CALL_MS, NULL, 0, &reply, &len, err);

	if (!rc) {
		*ret_text = ptc_strndup(reply, len);
		ptc_free(reply);
	}
	return rc;
}

/* ---- unary ------------------------------------------------------------------------ */

static void echoes(void **state)
{
	struct ptc_rpc_meta meta = { "prefix", "hello " };
	struct fixture *f = *state;
	struct ptc_error err = PTC_ERROR_INIT;
	void *reply;
	size_t len;

	assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Echo", "world", 5, CALL_MS, &meta, 1, &reply, &len, &err), 0);
	assert_int_equal(len, 11);
	assert_memory_equal(reply, "hello world", 11);
	ptc_free(reply);
	assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Echo", "", 0, CALL_MS, NULL, 0, &reply, &len, &err), 0);
	assert_int_equal(len, 0);
	ptc_free(reply);
}

static void carries_status(void **state)
{
	struct fixture *f = *state;
	struct ptc_error err = PTC_ERROR_INIT;
	char *text;

	assert_int_equal(unary(f, "/t.T/Fail", "", &text, &err), PTC_ELAYOUT);
	assert_string_equal(err.text, "tensor \"h.3\": 100% of it is wrong, \xc3\xa4");
	assert_int_equal(err.code, PTC_ELAYOUT);
	assert_int_equal(unary(f, "/t.T/Odd", "", &text, &err), PTC_EINTERNAL);
	assert_int_equal(unary(f, "/t.T/Nope", "", &text, &err), PTC_EVERSION);
	assert_non_null(strstr(err.text, "/t.T/Nope"));
	assert_int_equal(unary(f, "/t.T/Admin", "", &text, &err), PTC_EPERM);
}

static void refuses_bad_arguments(void **state)
{
	struct ptc_rpc_meta bad = { "Upper Case", "x" }, many[40];
	struct fixture *f = *state;
	struct ptc_error err = PTC_ERROR_INIT;
	void *reply;
	size_t len;

	for (size_t i = 0; i < 40; i++)
		many[i] = (struct ptc_rpc_meta){ "k", "v" };
	assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Echo", "", 0, 0, NULL, 0, &reply, &len, &err), PTC_EINVAL);
	assert_int_equal(ptc_rpc_unary(f->ch, "t.T/Echo", "", 0, 1, NULL, 0, &reply, &len, &err), PTC_EINVAL);
	assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Echo", "", 0, 1000, &bad, 1, &reply, &len, &err), PTC_EINVAL);
	assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Echo", "", 0, 1000, many, 40, &reply, &len, &err), PTC_ELIMIT);
	assert_int_equal(ptc_rpc_server_method(f->srv, "/t.T/Late", 1, h_echo, NULL, &err), PTC_ESTATE);
}

/* On a busy machine the deadline may pass before the server has begun: again, until it has. */
static void deadline(void **state)
{
	struct fixture *f = *state;
	struct ptc_error err = PTC_ERROR_INIT;
	void *reply;
	size_t len;

	for (int ms = 200; !atomic_load(&begun) && ms < CALL_MS; ms *= 2)
		assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Wait", "", 0, ms, NULL, 0, &reply, &len, &err),
				 PTC_ETIMEOUT);
	assert_non_null(strstr(err.text, f->target));
	assert_true(atomic_load(&begun) > 0);
	assert_true(within(CALL_MS, &cut_seen, atomic_load(&begun)));
}

static void unreachable(void **state)
{
	struct ptc_rpc_channel_opts co = { .target = "127.0.0.1:1", .insecure = true };
	struct ptc_rpc_channel *ch;
	struct ptc_error err = PTC_ERROR_INIT;
	void *reply;
	size_t len;

	assert_int_equal(ptc_rpc_channel_new(&co, &ch, &err), 0);
	assert_int_equal(ptc_rpc_unary(ch, "/t.T/Echo", "", 0, CALL_MS, NULL, 0, &reply, &len, &err), PTC_EPEER);
	assert_non_null(strstr(err.text, "127.0.0.1:1"));
	ptc_rpc_channel_free(ch);
}

static void limits(void **state)
{
	struct fixture *f = *state;
	struct ptc_error err = PTC_ERROR_INIT;
	size_t big = (4u << 20) + 1, len;
	char *data = ptc_calloc(1, big);
	void *reply;

	assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Echo", data, big, CALL_MS, NULL, 0, &reply, &len, &err),
			 PTC_ELIMIT);
	assert_non_null(strstr(err.text, "larger than max"));
	assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Echo", data, big - 1, CALL_MS, NULL, 0, &reply, &len, &err), 0);
	assert_int_equal(len, big - 1);
	ptc_free(reply);
	/* Too much metadata. */
	memset(data, 'x', 60000);
	data[60000] = '\0';
	struct ptc_rpc_meta meta = { "prefix", data };

	assert_int_equal(ptc_rpc_unary(f->ch, "/t.T/Echo", "", 0, CALL_MS, &meta, 1, &reply, &len, &err), PTC_ELIMIT);
	ptc_free(data);
}

/* ---- streams ----------------------------------------------------------------------- */

static void bulk_stream(void **state)
{
	struct fixture *f = *state;
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m;
	struct ptc_error err = PTC_ERROR_INIT;
	char *dst = ptc_malloc(PART);
	uint32_t head, i = 0;

	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Ten", CALL_MS, NULL, 0, &s, &err), 0);
	assert_int_equal(ptc_rpc_stream_half_close(s, &err), 0);
	for (; ptc_rpc_stream_recv(s, &m, &err) == 0 && m; i++) {
		assert_int_equal(ptc_rpc_message_len(m), PART + sizeof head);
		assert_int_equal(ptc_rpc_message_read(m, &head, sizeof head), sizeof head);
		assert_int_equal(head, i);
		assert_int_equal(ptc_rpc_message_read(m, dst, PART + 5), PART);
		assert_int_equal(ptc_rpc_message_read(m, dst, 1), 0);
		assert_memory_equal(dst, bulk, PART);
		memset(dst, 0, PART);
		if (i % 2)
			assert_null(ptc_rpc_message_done(m));
	}
	assert_int_equal(i, 10);
	assert_int_equal(ptc_rpc_stream_recv(s, &m, &err), 0);
	assert_null(m);
	assert_int_equal(ptc_rpc_stream_finish(s, &err), 0);
	assert_int_equal(ptc_rpc_stream_finish(s, &err), 0);
	ptc_rpc_stream_free(s);
	ptc_free(dst);
	assert_true(within(CALL_MS, &released, 10));
}

static void finish_drops_unread(void **state)
{
	struct fixture *f = *state;
	struct ptc_rpc_stream *s;
	struct ptc_error err = PTC_ERROR_INIT;

	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Ten", CALL_MS, NULL, 0, &s, &err), 0);
	assert_int_equal(ptc_rpc_stream_finish(s, &err), 0);
	ptc_rpc_stream_free(s);
	assert_true(within(CALL_MS, &released, 10));
}

/* Where it is asked for, a caller that stops reading is cut off, and one that reads slowly is not. */
static void stalled_reader(void **state)
{
	struct ptc_rpc_server_opts so = { .max_calls = 4, .stall_ms = 1500 };
	struct ptc_rpc_channel_opts co = { .insecure = true };
	struct ptc_rpc_server *srv;
	struct ptc_rpc_channel *ch;
	struct ptc_rpc_message *m;
	struct ptc_rpc_stream *s;
	char target[64];
	int port, cut = atomic_load(&cut_seen);

	(void)state;
	assert_int_equal(ptc_rpc_server_new(&so, &srv, NULL), 0);
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Endless", ALL_ROLES, h_bulk, &count_endless, NULL), 0);
	assert_int_equal(ptc_rpc_server_listen_insecure(srv, "127.0.0.1:0", &port, NULL), 0);
	assert_int_equal(ptc_rpc_server_start(srv, NULL), 0);
	snprintf(target, sizeof target, "127.0.0.1:%d", port);
	co.target = target;
	assert_int_equal(ptc_rpc_channel_new(&co, &ch, NULL), 0);
	assert_int_equal(ptc_rpc_stream_open(ch, "/t.T/Endless", CALL_MS, NULL, 0, &s, NULL), 0);
	assert_int_equal(ptc_rpc_stream_half_close(s, NULL), 0);
	for (int i = 0; i < 30; i++) {
		assert_int_equal(ptc_rpc_stream_recv(s, &m, NULL), 0);
		usleep(100000);
	}
	assert_int_equal(atomic_load(&cut_seen), cut);
	assert_true(within(CALL_MS, &cut_seen, cut + 1));
	ptc_rpc_stream_free(s);
	ptc_rpc_channel_free(ch);
	ptc_rpc_server_free(srv, 1000);
	assert_true(within(CALL_MS, &released, atomic_load(&sent_parts)));
}

static void client_stream(void **state)
{
	struct fixture *f = *state;
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m;
	struct ptc_error err = PTC_ERROR_INIT;
	unsigned long long sum[2], want = 0;

	for (size_t i = 0; i < PART; i++)
		want += (uint8_t)bulk[i];
	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Sum", CALL_MS, NULL, 0, &s, &err), 0);
	for (int i = 0; i < 5; i++) {
		struct ptc_rpc_part p = { .data = bulk, .len = PART, .release = on_release, .arg = bulk };

		atomic_fetch_add(&sent_parts, 1);
		assert_int_equal(ptc_rpc_stream_send(s, &p, 1, &err), 0);
	}
	assert_int_equal(ptc_rpc_stream_half_close(s, &err), 0);
	assert_int_equal(ptc_rpc_stream_half_close(s, &err), PTC_ESTATE);
	assert_int_equal(ptc_rpc_stream_recv(s, &m, &err), 0);
	assert_int_equal(ptc_rpc_message_read(m, sum, sizeof sum), sizeof sum);
	assert_int_equal(sum[0], 5);
	assert_true(sum[1] == 5 * want);
	assert_int_equal(ptc_rpc_stream_finish(s, &err), 0);
	assert_int_equal(atomic_load(&ended_seen), 1);
	ptc_rpc_stream_free(s);
}

static void bidi(void **state)
{
	struct fixture *f = *state;
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m;
	struct ptc_error err = PTC_ERROR_INIT;
	char text[32], back[32];

	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Bidi", CALL_MS, NULL, 0, &s, &err), 0);
	for (int i = 0; i < 100; i++) {
		struct ptc_rpc_part p = { .data = text };

		p.len = (size_t)snprintf(text, sizeof text, "message %d", i);
		assert_int_equal(ptc_rpc_stream_send(s, &p, 1, &err), 0);
		assert_int_equal(ptc_rpc_stream_recv(s, &m, &err), 0);
		assert_int_equal(ptc_rpc_message_read(m, back, sizeof back), p.len);
		assert_memory_equal(back, text, p.len);
	}
	assert_int_equal(ptc_rpc_stream_half_close(s, &err), 0);
	assert_int_equal(ptc_rpc_stream_recv(s, &m, &err), 0);
	assert_null(m);
	ptc_rpc_stream_free(s);
	assert_true(within(CALL_MS, &ended_seen, 1));
}

/* A stream of a failing method says so in recv, never by a quiet end. */
static void failure_is_not_an_end(void **state)
{
	struct fixture *f = *state;
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_part p = { .data = "x", .len = 1 };
	int rc = 0;

	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Fail", CALL_MS, NULL, 0, &s, &err), 0);
	assert_int_equal(ptc_rpc_stream_recv(s, &m, &err), PTC_ELAYOUT);
	for (int i = 0; i < 100 && !rc; i++)
		rc = ptc_rpc_stream_send(s, &p, 1, &err);
	assert_int_equal(rc, PTC_ELAYOUT);
	assert_int_equal(ptc_rpc_stream_finish(s, &err), PTC_ELAYOUT);
	ptc_rpc_stream_free(s);
}

/* ---- cancellation --------------------------------------------------------------------- */

static void client_frees_midway(void **state)
{
	struct fixture *f = *state;
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m;
	struct ptc_error err = PTC_ERROR_INIT;

	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Endless", 0, NULL, 0, &s, &err), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(ptc_rpc_stream_recv(s, &m, &err), 0);
	ptc_rpc_stream_free(s);
	assert_true(within(CALL_MS, &cut_seen, 1));
	assert_true(within(CALL_MS, &released, atomic_load(&sent_parts)));
}

/* Every handler that has begun has ended, and no call is left that could begin. */
static bool all_over(const struct ptc_rpc_server *srv)
{
	int running, waiting;

	ptc_rpc_server_load(srv, &running, &waiting);
	return running + waiting == 0 && atomic_load(&cut_seen) + atomic_load(&ended_seen) == atomic_load(&begun);
}

/* A caller that is cut off must not look like one that half-closes. Repeated, at any time of the call: it is a race.
 * Half of them wait until the handler has begun; the others may be cut off before the server takes them. */
static void cut_off_is_not_half_close(const char *method, struct fixture *f, bool first_reply)
{
	struct ptc_error err = PTC_ERROR_INIT;
	int rounds = 60;

	for (int i = 0; i < rounds; i++) {
		struct ptc_rpc_part p = { .data = "abc", .len = 3 };
		struct ptc_rpc_stream *s;
		struct ptc_rpc_message *m;
		int before = atomic_load(&begun);

		assert_int_equal(ptc_rpc_stream_open(f->ch, method, 0, NULL, 0, &s, &err), 0);
		assert_int_equal(ptc_rpc_stream_send(s, &p, 1, &err), 0);
		if (first_reply)
			assert_int_equal(ptc_rpc_stream_recv(s, &m, &err), 0);
		if (i % 2)
			until_more(&begun, before);
		usleep((useconds_t)(i * 37 % 2000));
		ptc_rpc_stream_free(s);
	}
	for (int i = 0; i < CALL_MS && !all_over(f->srv); i++)
		usleep(1000);
	assert_true(all_over(f->srv));
	assert_int_equal(atomic_load(&ended_seen), 0);
	assert_true(atomic_load(&cut_seen) >= rounds / 2);
}

static void cut_off_upload(void **state)
{
	cut_off_is_not_half_close("/t.T/Sum", *state, false);
}

static void cut_off_bidi(void **state)
{
	cut_off_is_not_half_close("/t.T/Bidi", *state, true);
}

static void *cancel_soon(void *arg)
{
	until_more(&begun, 0);
	usleep(20000); /* the other thread receives, as a rule */
	ptc_rpc_stream_cancel(arg);
	return NULL;
}

static void cancel_from_another_thread(void **state)
{
	struct fixture *f = *state;
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m;
	struct ptc_error err = PTC_ERROR_INIT;
	pthread_t t;

	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Wait", 0, NULL, 0, &s, &err), 0);
	assert_int_equal(pthread_create(&t, NULL, cancel_soon, s), 0);
	assert_int_equal(ptc_rpc_stream_recv(s, &m, &err), PTC_ECANCELED);
	pthread_join(t, NULL);
	ptc_rpc_stream_free(s);
	assert_true(within(CALL_MS, &cut_seen, 1));
}

/* A peer whose connection lives, and which never says what it is asked for. */
static void patience_ends(void **state)
{
	struct fixture *f = *state;
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m;
	struct ptc_error err = PTC_ERROR_INIT;

	assert_int_equal(ptc_rpc_stream_open(f->ch, "/t.T/Wait", CALL_MS, NULL, 0, &s, &err), 0);
	ptc_rpc_stream_patience(s, 1000);
	assert_int_equal(ptc_rpc_stream_recv(s, &m, &err), PTC_ETIMEOUT);
	assert_non_null(strstr(err.text, "has said nothing for 1 s"));
	assert_true(within(CALL_MS, &cut_seen, 1)); /* the peer is told */
	ptc_rpc_stream_free(s);
}

/* ---- many calls, shutdown ---------------------------------------------------------------- */

struct load {
	struct fixture *f;
	const char *method;
	int rc;
	atomic_int *started;
};

static void *load_main(void *arg)
{
	struct load *l = arg;
	struct ptc_rpc_channel_opts co = { .target = l->f->target, .insecure = true, .bulk = true };
	struct ptc_rpc_channel *ch;
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m;
	struct ptc_error err = PTC_ERROR_INIT;
	char *dst = ptc_malloc(PART);
	bool first = true;

	l->rc = ptc_rpc_channel_new(&co, &ch, &err);
	if (!l->rc)
		l->rc = ptc_rpc_stream_open(ch, l->method, 0, NULL, 0, &s, &err);
	while (!l->rc && (l->rc = ptc_rpc_stream_recv(s, &m, &err)) == 0 && m) {
		ptc_rpc_message_read(m, dst, PART);
		if (first)
			atomic_fetch_add(l->started, 1);
		first = false;
	}
	ptc_rpc_stream_free(s);
	ptc_rpc_channel_free(ch);
	ptc_free(dst);
	return NULL;
}

static void shutdown_under_load(void **state)
{
	struct fixture *f = *state;
	struct load l[24];
	pthread_t t[24];
	atomic_int started = 0;

	for (int i = 0; i < 24; i++) { /* more than there are threads */
		l[i] = (struct load){ .f = f, .method = "/t.T/Endless", .started = &started };
		assert_int_equal(pthread_create(&t[i], NULL, load_main, &l[i]), 0);
	}
	assert_true(within(CALL_MS, &started, 16));
	f->srv = ptc_rpc_server_free(f->srv, 300); /* which no caller can hold up: all of them are endless */
	for (int i = 0; i < 24; i++) {
		pthread_join(t[i], NULL);
		assert_int_not_equal(l[i].rc, 0);
	}
	assert_int_equal(atomic_load(&cut_seen), 16);
}

static void more_calls_than_threads(void **state)
{
	struct fixture *f = *state;
	struct load l[40];
	pthread_t t[40];
	atomic_int started = 0;

	for (int i = 0; i < 40; i++) {
		l[i] = (struct load){ .f = f, .method = "/t.T/Ten", .started = &started };
		assert_int_equal(pthread_create(&t[i], NULL, load_main, &l[i]), 0);
	}
	for (int i = 0; i < 40; i++) {
		pthread_join(t[i], NULL);
		assert_int_equal(l[i].rc, 0);
	}
}

static void grace_lets_calls_end(void **state)
{
	struct fixture *f = *state;
	struct load l = { .f = f, .method = "/t.T/Ten" };
	atomic_int started = 0;
	pthread_t t;

	l.started = &started;
	assert_int_equal(pthread_create(&t, NULL, load_main, &l), 0);
	assert_true(within(CALL_MS, &started, 1));
	f->srv = ptc_rpc_server_free(f->srv, 10000);
	pthread_join(t, NULL);
	assert_int_equal(l.rc, 0);
}

static int count_dir(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* What has just ended goes a moment later. */
static int least_dir(const char *path)
{
	int least = count_dir(path);

	for (int i = 0; i < 30; i++, usleep(10000))
		least = PTC_MIN(least, count_dir(path));
	return least;
}

static void leaves_no_threads_or_fds(void **state)
{
	int threads = 0, fds = 0;
	void *inner = NULL;

	for (int i = 0; i < 6; i++) {
		char *text;

		setup(&inner);
		assert_int_equal(unary(inner, "/t.T/Echo", "x", &text, NULL), 0);
		ptc_free(text);
		teardown(&inner);
		if (i == 2) { /* the core's own threads have settled */
			threads = least_dir("/proc/self/task");
			fds = least_dir("/proc/self/fd");
		}
	}
	for (int i = 0; i < CALL_MS / 10; i++, usleep(10000))
		if (count_dir("/proc/self/task") <= threads + 1 && count_dir("/proc/self/fd") <= fds)
			break;
	assert_true(count_dir("/proc/self/task") <= threads + 1); /* the core's pool varies by one */
	assert_true(count_dir("/proc/self/fd") <= fds);
}

/* ---- bad peers ------------------------------------------------------------------------------ */

static int raw_connect(const struct fixture *f)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)f->port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	return fd;
}

static void garbage(void **state)
{
	static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
	struct fixture *f = *state;
	char *text, noise[512];

	srand((unsigned)ptc_test_seed());
	for (int i = 0; i < 60; i++) {
		int fd = raw_connect(f);
		ssize_t n = 0;

		for (size_t k = 0; k < sizeof noise; k++)
			noise[k] = (char)rand();
		if (i % 2)
			n = send(fd, preface, sizeof preface - 1, MSG_NOSIGNAL);
		if (i % 3 && n >= 0)
			n = send(fd, noise, sizeof noise, MSG_NOSIGNAL);
		if (i % 4 == 0)
			usleep(2000);
		close(fd);
	}
	assert_int_equal(unary(f, "/t.T/Echo", "still here", &text, NULL), 0);
	assert_string_equal(text, "still here");
	ptc_free(text);
}

struct closer {
	int fd;
};

/* Reads a little of what the client says, then closes. */
static void *closer_main(void *arg)
{
	int l = ((struct closer *)arg)->fd;

	for (int i = 0; i < 2; i++) {
		char buf[64];
		int fd = accept(l, NULL, NULL);
		ssize_t n = read(fd, buf, sizeof buf);

		if (n > 0 && i)
			n = send(fd, "no http here at all, just text, long enough for a frame", 54, MSG_NOSIGNAL);
		close(fd);
	}
	return NULL;
}

static void peer_that_closes_or_talks_nonsense(void **state)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t len = sizeof a;
	struct closer c = { .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };
	struct ptc_rpc_channel_opts co = { .insecure = true };
	struct ptc_error err = PTC_ERROR_INIT;
	char target[64];
	pthread_t t;

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(c.fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(c.fd, 4), 0);
	assert_int_equal(getsockname(c.fd, (struct sockaddr *)&a, &len), 0);
	snprintf(target, sizeof target, "127.0.0.1:%d", ntohs(a.sin_port));
	co.target = target;
	assert_int_equal(pthread_create(&t, NULL, closer_main, &c), 0);
	for (int i = 0; i < 2; i++) {
		struct ptc_rpc_channel *ch;
		void *reply;
		size_t n;

		assert_int_equal(ptc_rpc_channel_new(&co, &ch, &err), 0);
		assert_int_equal(ptc_rpc_unary(ch, "/t.T/Echo", "x", 1, CALL_MS, NULL, 0, &reply, &n, &err), PTC_EPEER);
		assert_non_null(strstr(err.text, target));
		ptc_rpc_channel_free(ch);
	}
	pthread_join(t, NULL);
	close(c.fd);
}

/* ---- addresses -------------------------------------------------------------------------------- */

static void plain_tcp_only_on_loopback(void **state)
{
	static const char *const off[] = {
		"10.0.0.1:7000", "example.org:7000", "0.0.0.0:7000", "[::]:7000", "127.0.0.1.example.org:70",
		"localhost.x:1", "1127.0.0.1:5",     "127.0.0.300:5"
	};
	static const char *const bad[] = {
		"nohost", ":1", "h:", "h:x", "h:70000", "unix:/x", "dns:///h:1", "::1:80", ""
	};
	struct ptc_rpc_server_opts so = { .max_calls = 1 };
	struct ptc_rpc_channel *ch;
	struct ptc_rpc_server *srv;
	struct ptc_error err;
	int port;

	assert_int_equal(ptc_rpc_server_new(&so, &srv, NULL), 0);
	for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
		struct ptc_rpc_channel_opts co = { .target = off[i], .insecure = true };

		assert_int_equal(ptc_rpc_channel_new(&co, &ch, &err), PTC_EPERM);
		assert_int_equal(ptc_rpc_server_listen_insecure(srv, off[i], &port, &err), PTC_EPERM);
		co.insecure = false; /* and TCP without either is refused too */
		assert_int_equal(ptc_rpc_channel_new(&co, &ch, &err), PTC_EPERM);
	}
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct ptc_rpc_channel_opts co = { .target = bad[i], .insecure = true };

		assert_int_equal(ptc_rpc_server_listen_insecure(srv, bad[i], &port, &err), PTC_EINVAL);
		if (strcmp(bad[i], "unix:/x") != 0)
			assert_int_equal(ptc_rpc_channel_new(&co, &ch, &err), PTC_EINVAL);
	}
	ptc_rpc_server_free(srv, 0);
}

static void port_in_use(void **state)
{
	struct ptc_rpc_server_opts so = { .max_calls = 1 };
	struct fixture *f = *state;
	struct ptc_rpc_server *srv;
	struct ptc_error err;
	int port;

	assert_int_equal(ptc_rpc_server_new(&so, &srv, NULL), 0);
	assert_int_equal(ptc_rpc_server_listen_insecure(srv, f->target, &port, &err), PTC_EIO);
	print_message("%s\n", err.text);
	assert_non_null(strstr(err.text, "in use"));
	ptc_rpc_server_free(srv, 0);
}

/* ---- health -------------------------------------------------------------------------------------- */

static int health(struct fixture *f, const char *service)
{
	char request[128];
	struct ptc_error err;
	uint8_t *reply;
	size_t n = 0, len;
	int rc;

	if (*service) {
		n = (size_t)snprintf(request, sizeof request, "\n%c%s", (char)strlen(service), service);
		request[1] = (char)strlen(service);
	}
	rc = ptc_rpc_unary(f->ch, "/grpc.health.v1.Health/Check", request, n, CALL_MS, NULL, 0, (void **)&reply, &len,
			   &err);
	if (!rc) {
		assert_int_equal(len, 2);
		assert_int_equal(reply[0], 8);
		rc = reply[1];
		ptc_free(reply);
	}
	return rc;
}

static void health_check(void **state)
{
	struct fixture *f = *state;
	struct ptc_error err;
	void *reply;
	size_t len;

	assert_int_equal(health(f, ""), 2);
	ptc_rpc_server_serving(f->srv, true);
	assert_int_equal(health(f, ""), 1);
	assert_int_equal(health(f, "t.T"), 1);
	assert_int_equal(health(f, "grpc.health.v1.Health"), 1);
	assert_int_equal(health(f, "t"), PTC_ENOTFOUND);
	assert_int_equal(health(f, "t.T/Echo"), PTC_ENOTFOUND);
	assert_int_equal(ptc_rpc_unary(f->ch, "/grpc.health.v1.Health/Check", "\n\x7fx", 3, CALL_MS, NULL, 0, &reply,
				       &len, &err),
			 PTC_EINVAL);
}

static int watched(struct ptc_rpc_stream *s)
{
	struct ptc_rpc_message *m;
	uint8_t b[2];

	assert_int_equal(ptc_rpc_stream_recv(s, &m, NULL), 0);
	assert_non_null(m);
	assert_int_equal(ptc_rpc_message_read(m, b, 2), 2);
	return b[1];
}

/* More than the server has threads; and a call is answered beside them. */
static void health_watch(void **state)
{
	struct fixture *f = *state;
	struct ptc_rpc_part p = { .data = "", .len = 0 };
	struct ptc_rpc_stream *s[40];

	for (int i = 0; i < 40; i++) {
		assert_int_equal(ptc_rpc_stream_open(f->ch, "/grpc.health.v1.Health/Watch", 0, NULL, 0, &s[i], NULL),
				 0);
		assert_int_equal(ptc_rpc_stream_send(s[i], &p, 1, NULL), 0);
		assert_int_equal(watched(s[i]), 2);
	}
	assert_int_equal(health(f, ""), 2);
	ptc_rpc_server_serving(f->srv, true);
	for (int i = 0; i < 40; i++)
		assert_int_equal(watched(s[i]), 1);
	for (int i = 0; i < 40; i++)
		ptc_rpc_stream_free(s[i]);
}

int main(void)
{
#define WITH(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		WITH(echoes),
		WITH(carries_status),
		WITH(refuses_bad_arguments),
		WITH(deadline),
		cmocka_unit_test(unreachable),
		WITH(limits),
		WITH(bulk_stream),
		WITH(finish_drops_unread),
		WITH(client_stream),
		WITH(bidi),
		WITH(failure_is_not_an_end),
		WITH(client_frees_midway),
		WITH(cut_off_upload),
		WITH(cut_off_bidi),
		WITH(cancel_from_another_thread),
		WITH(patience_ends),
		WITH(shutdown_under_load),
		WITH(more_calls_than_threads),
		WITH(grace_lets_calls_end),
		cmocka_unit_test(leaves_no_threads_or_fds),
		cmocka_unit_test(stalled_reader),
		WITH(garbage),
		cmocka_unit_test(peer_that_closes_or_talks_nonsense),
		cmocka_unit_test(plain_tcp_only_on_loopback),
		WITH(port_in_use),
		WITH(health_check),
		WITH(health_watch),
	};
	int failed;

	bulk = ptc_malloc(PART);
	for (size_t i = 0; i < PART; i++)
		bulk[i] = (char)(i * 2654435761u >> 13);
	ptc_rpc_init();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	ptc_rpc_shutdown();
	ptc_free(bulk);
	return test_leaks(failed);
}
