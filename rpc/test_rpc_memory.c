/* SPDX-License-Identifier: Apache-2.0 */
/* The process's quota: senders that nobody reads from fill the windows of their streams; with a quota all of them
 * together take little more than it, without one each takes its (small) window. The senders' bytes are one static
 * block, so what grows is what the core buffers. Afterwards a call goes through as ever. */
#include "base/alloc.h"
#include "base/sys/sys.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define STREAMS 48
#define PART    ((size_t)2 << 20)
#define MIB     (1 << 20)
#define QUOTA   (16 * MIB)

#ifndef __has_feature /* gcc, which defines the others */
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) ||               \
	__has_feature(thread_sanitizer)
#define SANITIZED true
#else
#define SANITIZED false
#endif

static char block[PART];
static atomic_int held, go_on;

static void nothing(void *arg)
{
	(void)arg;
}

/* Takes one message, then reads no more until told. */
static int h_hold(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	(void)arg;
	atomic_fetch_add(&held, 1);
	while (!atomic_load(&go_on) && !ptc_rpc_call_cancelled(call))
		usleep(5000);
	return ptc_error_set(err, PTC_ECANCELED, "held long enough");
}

static int h_echo(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_part part = { .data = block, .len = 5 };
	struct ptc_rpc_message *m;
	int rc = ptc_rpc_call_recv(call, &m, err);

	(void)arg;
	return rc ? rc : ptc_rpc_call_send(call, &part, 1, err);
}

static long anonymous_kib(void)
{
	char line[256];
	long kib = -1;
	FILE *f = fopen("/proc/self/status", "r");

	assert_non_null(f);
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "RssAnon: %ld", &kib) == 1)
			break;
	fclose(f);
	assert_true(kib > 0);
	return kib;
}

static void *sender(void *arg)
{
	struct ptc_rpc_part part = { .data = block, .len = PART, .release = nothing };
	struct ptc_rpc_stream *s;

	if (ptc_rpc_stream_open(arg, "/t.T/Pin", 0, NULL, 0, &s, NULL))
		return NULL;
	while (ptc_rpc_stream_send(s, &part, 1, NULL) == 0)
		;
	ptc_rpc_stream_free(s);
	return NULL;
}

/* KiB by which the process grew at most while STREAMS senders met a server that does not read. */
static long growth_kib(void)
{
	struct ptc_rpc_server *srv;
	struct ptc_rpc_channel *ch[STREAMS];
	pthread_t threads[STREAMS];
	char dir[] = "/tmp/ptc-rpc-XXXXXX", path[64], target[80];
	long before, most = 0;
	size_t len;
	void *reply;

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/s", dir);
	snprintf(target, sizeof target, "unix:%s", path);
	atomic_store(&held, 0);
	atomic_store(&go_on, 0);
	assert_int_equal(ptc_rpc_server_new(&(struct ptc_rpc_server_opts){ .max_calls = STREAMS + 4 }, &srv, NULL), 0);
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Pin", 1u << PTC_ROLE_USER, h_hold, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Echo", 1u << PTC_ROLE_USER, h_echo, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_listen_unix(srv, path, 0600, false, NULL), 0);
	assert_int_equal(ptc_rpc_server_start(srv, NULL), 0);
	before = anonymous_kib();
	for (int i = 0; i < STREAMS; i++) {
		struct ptc_rpc_channel_opts co = { .target = target, .bulk = true };

		assert_int_equal(ptc_rpc_channel_new(&co, &ch[i], NULL), 0);
		assert_int_equal(pthread_create(&threads[i], NULL, sender, ch[i]), 0);
	}
	for (int i = 0; i < 400; i++) {
		long now = anonymous_kib() - before;

		most = now > most ? now : most;
		usleep(5000);
	}
	atomic_store(&go_on, 1);
	for (int i = 0; i < STREAMS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(ptc_rpc_unary(ch[0], "/t.T/Echo", "x", 1, 10000, NULL, 0, &reply, &len, NULL), 0);
	assert_int_equal(len, 5);
	ptc_free(reply);
	for (int i = 0; i < STREAMS; i++)
		ptc_rpc_channel_free(ch[i]);
	ptc_rpc_server_free(srv, 2000);
	rmdir(dir);
	assert_true(atomic_load(&held) > 0);
	return most;
}

static void the_quota_bounds_what_is_buffered(void **state)
{
	long with, without;

	(void)state;
	ptc_rpc_memory_limit_set(QUOTA);
	with = growth_kib();
	ptc_alloc_trim();
	ptc_rpc_shutdown(); /* forgets the quota */
	ptc_rpc_init();
	without = growth_kib();
	print_message("%d streams nobody reads: %ld KiB with a quota of %d, %ld without\n", STREAMS, with, QUOTA / 1024,
		      without);
	if (SANITIZED)
		return; /* what is freed stays with the sanitizer for a while, so growth says nothing */
	assert_true(with < 3 * QUOTA / 1024 && with < without * 3 / 4);
	assert_true(without < STREAMS * 1536);   /* a server window each, whatever the connection carries */
	assert_true(without > 3 * QUOTA / 1024); /* else this shows nothing */
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(the_quota_bounds_what_is_buffered) };
	int failed;

	ptc_rpc_init();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	ptc_rpc_shutdown();
	return failed;
}
