/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that is stopped (SIGSTOP: its kernel still acknowledges, it never
 * answers) is given up after twice the keepalive time, on both sides, and
 * memory lent to a send comes back. An idle connection is kept. */
#include "base/alloc.h"
#include "base/sys/sys.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"
#include "rpc/test_certs.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define KEEPALIVE_MS 500
#define GIVE_UP_MS   6000 /* 2 x 500, and room for a busy machine; the default would be 20 s */
#define PART         ((size_t)2 << 20)

static char dir[] = "/tmp/ptc-test-rpc-XXXXXX";
static char peer_path[4096];
static char *bulk;
static atomic_int borrowed, released;
static atomic_bool over; /* h_endless has returned */

struct child {
	pid_t pid;
	int in; /* its stdin: closing ends it */
	FILE *out;
};

/* vfork and exec at once: no copy of the core ever runs. */
static struct child child_start(const char *a, const char *b, const char *c)
{
	int in[2], out[2];
	struct child ch;

	ptc_require(pipe(in) == 0 && pipe(out) == 0);
	ch.pid = vfork();
	ptc_require(ch.pid >= 0);
	if (ch.pid == 0) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		close(in[1]);
		close(out[0]);
		execl(peer_path, peer_path, a, b, c, (char *)NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	ch.in = in[1];
	ch.out = fdopen(out[0], "r");
	return ch;
}

static void child_end(struct child *ch)
{
	kill(ch->pid, SIGCONT);
	close(ch->in);
	fclose(ch->out);
	waitpid(ch->pid, NULL, 0);
}

static void stopped_server(void **state)
{
	struct child ch = child_start("serve", dir, "500");
	struct ptc_rpc_channel_opts co = { .insecure = true, .keepalive_ms = KEEPALIVE_MS };
	struct ptc_error err = PTC_ERROR_INIT;
	char target[64];
	struct ptc_rpc_channel *channel;
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m = NULL;
	int tls, port, rc = 0;
	int64_t t0;

	assert_int_equal(fscanf(ch.out, "%d %d", &tls, &port), 2);
	snprintf(target, sizeof target, "127.0.0.1:%d", port);
	co.target = target;
	assert_int_equal(ptc_rpc_channel_new(&co, &channel, &err), 0);
	assert_int_equal(ptc_rpc_stream_open(channel, "/t.T/Endless", 0, NULL, 0, &s, &err), 0);
	assert_int_equal(ptc_rpc_stream_recv(s, &m, &err), 0);
	kill(ch.pid, SIGSTOP);
	t0 = ptc_sys_now_ns();
	while (!rc)
		rc = ptc_rpc_stream_recv(s, &m, &err);
	print_message("after %d ms: %s\n", (int)((ptc_sys_now_ns() - t0) / 1000000), err.text);
	assert_int_equal(rc, PTC_EPEER);
	assert_true(ptc_sys_now_ns() - t0 < INT64_C(1000000) * GIVE_UP_MS);
	ptc_rpc_stream_free(s);
	ptc_rpc_channel_free(channel);
	child_end(&ch);
}

static void on_release(void *arg)
{
	atomic_fetch_add(&released, 1);
}

static int h_endless(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	int rc = 0;

	while (!rc) {
		struct ptc_rpc_part p = { .data = bulk, .len = PART, .release = on_release };

		atomic_fetch_add(&borrowed, 1);
		rc = ptc_rpc_call_send(call, &p, 1, err);
	}
	atomic_store(&over, true);
	return rc;
}

/* Parts of the bulk that have not come back. */
static int unreleased(void)
{
	const int back = atomic_load(&released);

	return atomic_load(&borrowed) - back;
}

static void stopped_client(void **state)
{
	struct ptc_rpc_server_opts so = { .max_calls = 4, .keepalive_ms = KEEPALIVE_MS };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_server *srv;
	struct child ch;
	char target[64];
	int port, one, most = 0;
	int64_t t0;

	assert_int_equal(ptc_rpc_server_new(&so, &srv, &err), 0);
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Endless", 1u << PTC_ROLE_NODE, h_endless, NULL, &err), 0);
	assert_int_equal(ptc_rpc_server_listen_insecure(srv, "127.0.0.1:0", &port, &err), 0);
	assert_int_equal(ptc_rpc_server_start(srv, &err), 0);
	snprintf(target, sizeof target, "127.0.0.1:%d", port);
	ch = child_start("pull", target, NULL);
	assert_int_equal(fscanf(ch.out, "%d", &one), 1);
	kill(ch.pid, SIGSTOP);
	t0 = ptc_sys_now_ns();
	while (!atomic_load(&over) && ptc_sys_now_ns() - t0 < INT64_C(1000000) * GIVE_UP_MS) {
		most = PTC_MAX(most, unreleased());
		usleep(1000);
	}
	while (unreleased() > 0 && ptc_sys_now_ns() - t0 < INT64_C(1000000) * GIVE_UP_MS)
		usleep(1000);
	print_message("lent memory back after %d ms\n", (int)((ptc_sys_now_ns() - t0) / 1000000));
	assert_true(atomic_load(&over));
	assert_true(most > 0);
	assert_int_equal(unreleased(), 0);
	ptc_rpc_server_free(srv, 100);
	child_end(&ch);
}

/* Quiet for many keepalive times, with and without a call: the server must not answer too_many_pings. */
static void idle_connection_is_kept(void **state)
{
	struct child ch = child_start("serve", dir, "10000");
	struct ptc_rpc_channel_opts co = { .insecure = true, .keepalive_ms = KEEPALIVE_MS };
	struct ptc_rpc_part part = { .data = "x", .len = 1 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_channel *channel;
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m;
	char target[64];
	int tls, port;

	assert_int_equal(fscanf(ch.out, "%d %d", &tls, &port), 2);
	snprintf(target, sizeof target, "127.0.0.1:%d", port);
	co.target = target;
	assert_int_equal(ptc_rpc_channel_new(&co, &channel, &err), 0);
	assert_int_equal(ptc_rpc_stream_open(channel, "/t.T/Echo", 0, NULL, 0, &s, &err), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(ptc_rpc_stream_send(s, &part, 1, &err), 0);
		assert_int_equal(ptc_rpc_stream_recv(s, &m, &err), 0);
		sleep(2);
	}
	assert_int_equal(ptc_rpc_stream_half_close(s, &err), 0);
	assert_int_equal(ptc_rpc_stream_finish(s, &err), 0);
	ptc_rpc_stream_free(s);
	ptc_rpc_channel_free(channel);
	child_end(&ch);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stopped_server),
		cmocka_unit_test(stopped_client),
		cmocka_unit_test(idle_connection_is_kept),
	};
	int failed;

	if (argc != 2 || !mkdtemp(dir))
		return 1;
	snprintf(peer_path, sizeof peer_path, "%s", argv[1]);
	bulk = ptc_calloc(1, PART);
	test_ca(dir, "ca");
	test_cert(dir, "ca", "n1", "URI:ptc://node/n1,DNS:ptc-node", 2);
	ptc_rpc_init();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	ptc_rpc_shutdown();
	ptc_free(bulk);
	ptc_sys_remove_tree(dir, NULL, NULL);
	return failed;
}
