/* SPDX-License-Identifier: Apache-2.0 */
/* Strangers and users who take what they can: connections, descriptors, calls. As root the attackers are other users,
 * each a process of its own; else they are ours, and what needs several users is left out. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"
#include "rpc/test_certs.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define CALL_MS     10000
#define ALL_ROLES   0xfu
#define UID         54400 /* the first attacker's; nobody has these */
#define PATH_MAX_UN 100

static char dir[] = "/tmp/ptc-test-rpc-XXXXXX";
static char self[4096];

struct paths {
	char ca[64], crt[64], key[64];
	struct ptc_rpc_tls tls;
};

static struct ptc_rpc_tls *creds(struct paths *p, const char *name)
{
	snprintf(p->ca, sizeof p->ca, "%s/ca.crt", dir);
	snprintf(p->crt, sizeof p->crt, "%s/%s.crt", dir, name);
	snprintf(p->key, sizeof p->key, "%s/%s.key", dir, name);
	p->tls = (struct ptc_rpc_tls){ .ca_path = p->ca, .cert_path = p->crt, .key_path = p->key };
	return &p->tls;
}

/* ---- the server -------------------------------------------------------------------- */

static atomic_int mistaken; /* calls that came with another's identity */
static atomic_int slow_calls;

/* The request is the caller's uid; a "s" behind it makes the call slow. */
static int h_who(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	const struct ptc_rpc_identity *id = ptc_rpc_call_identity(call);
	char text[64] = "";
	struct ptc_rpc_part p = { .data = text };
	struct ptc_rpc_message *m;
	int rc = ptc_rpc_call_recv(call, &m, err);

	if (rc)
		return rc;
	if (m)
		text[ptc_rpc_message_read(m, text, sizeof text - 1)] = '\0';
	if (id->role == PTC_ROLE_USER && strtoul(text, NULL, 10) != id->uid)
		atomic_fetch_add(&mistaken, 1);
	if (strchr(text, 's')) {
		atomic_fetch_add(&slow_calls, 1);
		usleep(100000);
	}
	p.len = (size_t)snprintf(text, sizeof text, "%u", id->uid);
	return ptc_rpc_call_send(call, &p, 1, err);
}

static struct ptc_rpc_server *server_new(const struct ptc_rpc_server_opts *so)
{
	struct ptc_rpc_server *srv;

	assert_int_equal(ptc_rpc_server_new(so, &srv, NULL), 0);
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Who", ALL_ROLES, h_who, NULL, NULL), 0);
	return srv;
}

static struct ptc_rpc_server *server_unix(const struct ptc_rpc_server_opts *so, char path[PATH_MAX_UN])
{
	struct ptc_rpc_server *srv = server_new(so);

	snprintf(path, PATH_MAX_UN, "%s/s.sock", dir);
	assert_int_equal(ptc_rpc_server_listen_unix(srv, path, 0666, false, NULL), 0);
	assert_int_equal(ptc_rpc_server_start(srv, NULL), 0);
	return srv;
}

static int call_who(const struct ptc_rpc_channel_opts *co, const char *request, uid_t *ret_uid, struct ptc_error *err)
{
	struct ptc_rpc_channel *ch;
	char text[32];
	void *reply;
	size_t len;
	int rc = ptc_rpc_channel_new(co, &ch, err);

	if (rc)
		return rc;
	rc = ptc_rpc_unary(ch, "/t.T/Who", request, strlen(request), CALL_MS, NULL, 0, &reply, &len, err);
	if (!rc) {
		snprintf(text, sizeof text, "%.*s", (int)len, (char *)reply);
		*ret_uid = (uid_t)strtoul(text, NULL, 10);
		ptc_free(reply);
	}
	ptc_rpc_channel_free(ch);
	return rc;
}

/* We are answered, as our own user; says how long that took. */
static int64_t answer_ms(const char *path)
{
	char target[PATH_MAX_UN + 5], uid[16];
	struct ptc_rpc_channel_opts co = { .target = target };
	struct ptc_error err = PTC_ERROR_INIT;
	int64_t began = ptc_sys_now_ns();
	uid_t got;

	snprintf(target, sizeof target, "unix:%s", path);
	snprintf(uid, sizeof uid, "%u", getuid());
	if (call_who(&co, uid, &got, &err) != 0)
		fail_msg("%s", err.text);
	assert_int_equal(got, getuid());
	return (ptc_sys_now_ns() - began) / 1000000;
}

/* ---- attackers: this program again, as another user ------------------------------------ */

static int connect_unix(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
	if (connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0)
		return fd;
	close(fd);
	return -1;
}

/* Connections that say nothing, until standard input ends. */
static int child_hold(const char *path, int n)
{
	int open = 0;
	char c;

	for (int i = 0; i < n; i++)
		open += connect_unix(path) >= 0;
	printf("%d\n", open);
	fflush(stdout);
	return read(0, &c, 1) < 0;
}

/* Calls one after the other, each on a connection of its own; says how many were answered, and as whom wrongly. */
static int child_calls(const char *path, int n, const char *suffix)
{
	char target[PATH_MAX_UN + 5], request[32];
	struct ptc_rpc_channel_opts co = { .target = target };
	struct ptc_error err = PTC_ERROR_INIT;
	int answered = 0, wrong = 0;
	uid_t got;

	ptc_rpc_init();
	snprintf(target, sizeof target, "unix:%s", path);
	snprintf(request, sizeof request, "%u%s", getuid(), suffix);
	for (int i = 0; i < n; i++) {
		if (call_who(&co, request, &got, &err) != 0) {
			fprintf(stderr, "user %u: %s\n", getuid(), err.text);
			continue;
		}
		answered++;
		wrong += got != getuid();
	}
	printf("%d\n", wrong ? -wrong : answered);
	ptc_rpc_shutdown();
	return 0;
}

static int child_unread(const char *path, int n);

/* Calls whose request never comes. */
static int child_mute(const char *path, int n)
{
	char target[PATH_MAX_UN + 5], c;
	struct ptc_rpc_channel_opts co = { .target = target };
	struct ptc_rpc_channel *ch;
	int open = 0;

	ptc_rpc_init();
	snprintf(target, sizeof target, "unix:%s", path);
	if (ptc_rpc_channel_new(&co, &ch, NULL) != 0)
		return 9;
	for (int i = 0; i < n; i++) {
		struct ptc_rpc_stream *s;

		open += ptc_rpc_stream_open(ch, "/t.T/Who", 0, NULL, 0, &s, NULL) == 0;
	}
	printf("%d\n", open);
	fflush(stdout);
	c = (char)(read(0, &c, 1) < 0);
	_exit(c);
}

/* Connections to a TCP port as fast as can be, without end; keeps the last n open, and says nothing. */
static int child_loop(const char *port, int n)
{
	struct sockaddr_in addr = { .sin_family = AF_INET,
				    .sin_port = htons((uint16_t)atoi(port)),
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct pollfd in = { .fd = 0, .events = POLLIN };
	int fd[512];

	memset(fd, -1, sizeof fd);
	printf("0\n");
	fflush(stdout);
	for (unsigned i = 0; poll(&in, 1, 0) == 0; i = (i + 1) % (unsigned)n) {
		if (fd[i] >= 0)
			close(fd[i]);
		fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (fd[i] >= 0)
			(void)!connect(fd[i], (struct sockaddr *)&addr, sizeof addr);
	}
	return 0;
}

static int child_main(char **argv)
{
	uid_t uid = (uid_t)atoi(argv[2]);
	int n = atoi(argv[4]);

	if (geteuid() == 0 && (setgid(uid) != 0 || setuid(uid) != 0))
		return 9;
	if (strcmp(argv[1], "--hold") == 0)
		return child_hold(argv[3], n);
	if (strcmp(argv[1], "--loop") == 0)
		return child_loop(argv[3], n);
	if (strcmp(argv[1], "--mute") == 0)
		return child_mute(argv[3], n);
	if (strcmp(argv[1], "--unread") == 0)
		return child_unread(argv[3], n);
	return child_calls(argv[3], n, strcmp(argv[1], "--slow") == 0 ? "s" : "");
}

struct child {
	pid_t pid;
	int in, out;
};

static struct child child_start(const char *what, uid_t uid, const char *path, int n)
{
	char uid_text[16], n_text[16];
	char *argv[] = { self, (char *)(uintptr_t)what, uid_text, (char *)(uintptr_t)path, n_text, NULL };
	struct child c;
	int in[2], out[2];

	snprintf(uid_text, sizeof uid_text, "%u", uid);
	snprintf(n_text, sizeof n_text, "%d", n);
	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	c = (struct child){ .pid = fork(), .in = in[1], .out = out[0] };
	if (c.pid == 0) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		execv(self, argv);
		_exit(9);
	}
	close(in[0]);
	close(out[1]);
	return c;
}

static int child_said(const struct child *c)
{
	char text[32] = "";
	size_t len = 0;

	for (ssize_t n; len < sizeof text - 1 && (n = read(c->out, text + len, sizeof text - 1 - len)) > 0;) {
		len += (size_t)n;
		if (text[len - 1] == '\n')
			break;
	}
	assert_true(len > 0);
	return atoi(text);
}

static void child_end(struct child *c, int signal)
{
	int status;

	if (signal)
		kill(c->pid, signal);
	close(c->in);
	close(c->out);
	assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
	assert_true(signal || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

static bool other_users(void)
{
	if (getuid() == 0)
		return true;
	print_message("not root: there are no other users to try this with\n");
	return false;
}

/* ---- unix --------------------------------------------------------------------------- */

/* Twice as many users as there would be numbers for, one after the other, each with all that it may have. */
static void numbers_are_given_back(void **state)
{
	struct ptc_rpc_server_opts so = { .max_calls = 4 };
	char path[PATH_MAX_UN];
	struct ptc_rpc_server *srv;

	if (!other_users())
		return;
	srv = server_unix(&so, path);
	for (uid_t i = 0; i < 40; i++) {
		struct child hold = child_start("--hold", UID + i, path, 260), calls;

		assert_true(child_said(&hold) > 0);
		child_end(&hold, 0);
		calls = child_start("--calls", UID + i, path, 1);
		if (child_said(&calls) != 1)
			fail_msg("user %u is refused", UID + i);
		child_end(&calls, 0);
	}
	assert_int_equal(atomic_load(&mistaken), 0);
	ptc_rpc_server_free(srv, 0);
}

/* Callers of many users come, wait and are killed, so that numbers go from hand to hand while calls of theirs are still
 * in the core: nobody is taken for another. */
static void nobody_is_mistaken(void **state)
{
	struct ptc_rpc_server_opts so = { .max_calls = 2 };
	char path[PATH_MAX_UN];
	struct ptc_rpc_server *srv;
	struct child slow[12], calls[6];

	if (!other_users())
		return;
	srv = server_unix(&so, path);
	for (uid_t round = 0; round < 4; round++) {
		int before = atomic_load(&slow_calls);

		for (uid_t i = 0; i < PTC_ARRAY_LEN(slow); i++)
			slow[i] = child_start("--slow", UID + 100 * round + i, path, 50);
		while (atomic_load(&slow_calls) < before + 3)
			usleep(1000);
		for (uid_t i = 0; i < PTC_ARRAY_LEN(slow); i++)
			child_end(&slow[i], SIGKILL);
		for (uid_t i = 0; i < PTC_ARRAY_LEN(calls); i++)
			calls[i] = child_start("--calls", UID + 50 + 100 * round + i, path, 5);
		for (uid_t i = 0; i < PTC_ARRAY_LEN(calls); i++) {
			assert_int_equal(child_said(&calls[i]), 5);
			child_end(&calls[i], 0);
		}
	}
	assert_int_equal(atomic_load(&mistaken), 0);
	ptc_rpc_server_free(srv, 1000);
}

/* Users who hold all connections that they can get, and give none back, keep neither another user out nor root. */
static void hogs_leave_room(void **state)
{
	struct ptc_rpc_server_opts so = { .max_calls = 4 };
	struct ptc_rpc_connections now;
	char path[PATH_MAX_UN];
	struct ptc_rpc_server *srv;
	struct child hog[6], calls;
	int64_t worst = 0;

	if (!other_users())
		return;
	srv = server_unix(&so, path);
	for (uid_t i = 0; i < PTC_ARRAY_LEN(hog); i++) {
		hog[i] = child_start("--hold", UID + i, path, 300);
		child_said(&hog[i]);
		worst = PTC_MAX(worst, answer_ms(path));
	}
	for (int i = 0; i < 6000; i++, usleep(10000)) {
		ptc_rpc_connections(&now);
		assert_true(now.users <= now.max_users);
		if (now.refused > 0 && now.shed > 0)
			break;
	}
	print_message("%u connections of users, at most %u; %llu refused, %llu shed; root waited %lld ms at most\n",
		      now.users, now.max_users, (unsigned long long)now.refused, (unsigned long long)now.shed,
		      (long long)worst);
	assert_true(now.refused > 0 && now.shed > 0);
	calls = child_start("--calls", UID + 99, path, 10);
	assert_int_equal(child_said(&calls), 10);
	child_end(&calls, 0);
	for (uid_t i = 0; i < PTC_ARRAY_LEN(hog); i++)
		child_end(&hog[i], 0);
	ptc_rpc_server_free(srv, 0);
}

/* ---- calls ------------------------------------------------------------------------------ */

#define PART  (256 * 1024)
#define STEPS 40

static atomic_int stepping, released, bulk_calls;

static void step_release(void *arg)
{
	atomic_fetch_sub(&stepping, 1);
	atomic_fetch_add(&released, 1);
	ptc_free(arg);
}

/* Forty messages, as its caller takes them; then on and on without one. */
static int step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	static char bytes[PART];
	int *n = arg;

	while (*n < STEPS && !ptc_rpc_call_full(call)) {
		struct ptc_rpc_part p[2] = { { .data = n, .len = sizeof *n }, { .data = bytes, .len = PART } };
		int rc = ptc_rpc_call_send(call, p, 2, err);

		if (rc)
			return rc;
		++*n;
	}
	ptc_rpc_call_again(call, *n < STEPS ? 0 : 1000);
	return 0;
}

static int h_steps(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	int *n = ptc_calloc(1, sizeof *n);

	atomic_fetch_add(&stepping, 1);
	ptc_rpc_call_follow(call, 0, step, n, step_release);
	return 0;
}

/* Sends until its caller is gone. */
static int h_bulk(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	static char bytes[PART];
	struct ptc_rpc_part p = { .data = bytes, .len = PART };
	int rc;

	atomic_fetch_add(&bulk_calls, 1);
	while ((rc = ptc_rpc_call_send(call, &p, 1, err)) == 0)
		;
	return rc;
}

/* Answers each message. */
static int echo_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_part p = { .data = "", .len = 1 };
	struct ptc_rpc_message *m;
	int rc, sent = 0;

	(void)arg;
	while (!sent && (rc = ptc_rpc_call_recv_within(call, 10, &m, err)) == 0 && m)
		sent = ptc_rpc_call_send(call, &p, 1, err);
	if (sent || rc != PTC_ETIMEOUT)
		return sent ? sent : rc;
	ptc_rpc_call_again(call, 2);
	return 0;
}

static int h_echo(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	(void)arg, (void)err;
	atomic_fetch_add(&stepping, 1);
	ptc_rpc_call_follow(call, 0, echo_step, ptc_calloc(1, 1), step_release);
	return 0;
}

/* Sends a message each time that somebody wakes it, and never by itself. */
static struct ptc_rpc_call *_Atomic sleeper;

static int woken_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_part p = { .data = arg, .len = 1 };
	int rc = ptc_rpc_call_send(call, &p, 1, err);

	ptc_rpc_call_again(call, PTC_RPC_WOKEN);
	atomic_store(&sleeper, call);
	return rc;
}

static int h_sleep(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	(void)arg, (void)err;
	atomic_fetch_add(&stepping, 1);
	ptc_rpc_call_follow(call, PTC_RPC_WOKEN, woken_step, ptc_calloc(1, 1), step_release);
	ptc_rpc_call_wake(call); /* before it waits: not lost */
	return 0;
}

/* One message as large as a spec may be. */
static int h_large(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_part p = { .len = 8u << 20 };
	char *bytes = ptc_calloc(1, p.len);
	int rc;

	p.data = bytes;
	rc = ptc_rpc_call_send(call, &p, 1, err);
	ptc_free(bytes);
	return rc;
}

static struct ptc_rpc_server *server_calls(char path[PATH_MAX_UN])
{
	struct ptc_rpc_server_opts so = { .max_calls = 16, .max_calls_per_user = 8, .stall_ms = 60000 };
	static const struct {
		const char *name;
		ptc_rpc_handler_fn fn;
		enum ptc_rpc_kind kind;
	} methods[] = { { "/t.T/Steps", h_steps, PTC_RPC_BRIEF },
			{ "/t.T/Bulk", h_bulk, PTC_RPC_BULK },
			{ "/t.T/Echo", h_echo, PTC_RPC_BULK },
			{ "/t.T/Sleep", h_sleep, PTC_RPC_BRIEF },
			{ "/t.T/Large", h_large, PTC_RPC_BRIEF } };
	struct ptc_rpc_server *srv = server_new(&so);

	ptc_rpc_server_method_kind(srv, "/t.T/Who", PTC_RPC_BRIEF);
	for (size_t i = 0; i < PTC_ARRAY_LEN(methods); i++) {
		assert_int_equal(ptc_rpc_server_method(srv, methods[i].name, ALL_ROLES, methods[i].fn, NULL, NULL), 0);
		ptc_rpc_server_method_kind(srv, methods[i].name, methods[i].kind);
	}
	snprintf(path, PATH_MAX_UN, "%s/s.sock", dir);
	assert_int_equal(ptc_rpc_server_listen_unix(srv, path, 0666, false, NULL), 0);
	assert_int_equal(ptc_rpc_server_start(srv, NULL), 0);
	return srv;
}

/* Calls that are never read, until standard input ends; a third of each kind. */
static int child_unread(const char *path, int n)
{
	static const char *const methods[] = { "/t.T/Bulk", "/t.T/Steps", "/t.T/Large" };
	char target[PATH_MAX_UN + 5], c;
	struct ptc_rpc_channel_opts co = { .target = target };
	struct ptc_rpc_channel *ch;
	struct ptc_rpc_part p = { .data = "", .len = 0 };
	int open = 0;

	ptc_rpc_init();
	snprintf(target, sizeof target, "unix:%s", path);
	for (int i = 0; i < n; i++) {
		struct ptc_rpc_stream *s;

		if (i % 8 == 0 && ptc_rpc_channel_new(&co, &ch, NULL) != 0)
			return 9;
		if (ptc_rpc_stream_open(ch, methods[i % 3], 0, NULL, 0, &s, NULL) != 0)
			continue;
		open += i % 4 == 3 || ptc_rpc_stream_send(s, &p, 1, NULL) == 0; /* some never send a request */
	}
	printf("%d\n", open);
	fflush(stdout);
	c = (char)(read(0, &c, 1) < 0);
	_exit(c); /* as one who is killed: nothing is taken apart */
}

/* Users with all calls that they get, and who read none of them, keep neither each other nor root waiting: all are
 * answered while such calls are held, for the server ends them after stall_ms, which is longer than CALL_MS. */
static void readers_who_do_not_read(void **state)
{
	struct child bad[3], calls;
	char path[PATH_MAX_UN];
	struct ptc_rpc_server *srv;
	int64_t worst = 0;
	int running, waiting;

	if (!other_users())
		return;
	srv = server_calls(path);
	for (uid_t i = 0; i < PTC_ARRAY_LEN(bad); i++)
		bad[i] = child_start("--unread", UID + i, path, 40);
	for (uid_t i = 0; i < PTC_ARRAY_LEN(bad); i++)
		child_said(&bad[i]);
	for (int i = 0; i < 50; i++)
		worst = PTC_MAX(worst, answer_ms(path));
	calls = child_start("--calls", UID + 50, path, 10);
	assert_int_equal(child_said(&calls), 10);
	child_end(&calls, 0);
	for (int i = 0; i < 6000; i++, usleep(10000)) {
		ptc_rpc_server_load(srv, &running, &waiting);
		if (running <= 10 && waiting >= 6)
			break;
	}
	print_message("%d bulk calls began, %d calls run, %d wait; root waited %lld ms at most\n",
		      atomic_load(&bulk_calls), running, waiting, (long long)worst);
	assert_true(running <= 10 && waiting >= 6); /* five eighths are bulk calls, which do have a thread */
	for (uid_t i = 0; i < PTC_ARRAY_LEN(bad); i++)
		child_end(&bad[i], 0);
	for (int i = 0; i < 6000 && (atomic_load(&stepping) || running || waiting); i++, usleep(10000))
		ptc_rpc_server_load(srv, &running, &waiting);
	assert_int_equal(atomic_load(&stepping), 0);
	assert_int_equal(running + waiting, 0);
	ptc_rpc_server_free(srv, 1000);
}

/* A few users have all calls that users can have, and their requests never come: another one is answered all the same.
 */
static void users_with_all_calls(void **state)
{
	struct ptc_rpc_server_opts so = { .max_calls = 4, .max_calls_per_user = 64, .stall_ms = 60000 };
	struct child bad[6], calls;
	char path[PATH_MAX_UN];
	struct ptc_rpc_server *srv;
	int running, waiting = 0;

	if (!other_users())
		return;
	srv = server_new(&so);
	ptc_rpc_server_method_kind(srv, "/t.T/Who", PTC_RPC_BRIEF);
	snprintf(path, sizeof path, "%s/s.sock", dir);
	assert_int_equal(ptc_rpc_server_listen_unix(srv, path, 0666, false, NULL), 0);
	assert_int_equal(ptc_rpc_server_start(srv, NULL), 0);
	for (uid_t i = 0; i < PTC_ARRAY_LEN(bad); i++) {
		bad[i] = child_start("--mute", UID + i, path, 64);
		assert_int_equal(child_said(&bad[i]), 64);
	}
	for (int i = 0; i < 500 && waiting < 282; i++, usleep(10000)) /* five eighths of 452 */
		ptc_rpc_server_load(srv, &running, &waiting);
	assert_true(waiting >= 282);
	calls = child_start("--calls", UID + 50, path, 10);
	assert_int_equal(child_said(&calls), 10);
	child_end(&calls, 0);
	for (uid_t i = 0; i < PTC_ARRAY_LEN(bad); i++)
		child_end(&bad[i], 0);
	ptc_rpc_server_free(srv, 1000);
}

/* Each wake brings one message, whether the call waits or runs; without one there is none. */
static void a_call_that_is_woken(void **state)
{
	char path[PATH_MAX_UN], target[PATH_MAX_UN + 5];
	struct ptc_rpc_server *srv = server_calls(path);
	struct ptc_rpc_channel_opts co = { .target = target };
	struct ptc_rpc_part none = { .data = "", .len = 0 };
	struct ptc_rpc_channel *ch;
	struct ptc_rpc_message *m;
	struct ptc_rpc_stream *s;
	int was = atomic_load(&released);

	(void)state;
	snprintf(target, sizeof target, "unix:%s", path);
	assert_int_equal(ptc_rpc_channel_new(&co, &ch, NULL), 0);
	assert_int_equal(ptc_rpc_stream_open(ch, "/t.T/Sleep", CALL_MS, NULL, 0, &s, NULL), 0);
	assert_int_equal(ptc_rpc_stream_send(s, &none, 1, NULL), 0);
	for (int i = 0; i < 100; i++) {
		struct ptc_rpc_call *call;

		assert_int_equal(ptc_rpc_stream_recv(s, &m, NULL), 0);
		ptc_rpc_message_done(m);
		while (!(call = atomic_exchange(&sleeper, NULL)))
			usleep(100); /* the step has sent, and is about to say so */
		assert_false(ptc_rpc_stream_ready(s));
		ptc_rpc_call_wake(call);
	}
	assert_int_equal(ptc_rpc_stream_recv(s, &m, NULL), 0);
	ptc_rpc_message_done(m);
	ptc_rpc_stream_free(s);
	for (int i = 0; atomic_load(&released) == was && i < CALL_MS; i++)
		usleep(1000); /* also a call that nobody wakes any more ends with its caller */
	assert_int_equal(atomic_load(&released), was + 1);
	ptc_rpc_channel_free(ch);
	assert_null(ptc_rpc_server_free(srv, 0));
}

/* More bulk calls than get a thread, whose caller waits for the last before it sends to the others again. */
static void bulk_steps(void **state)
{
	char path[PATH_MAX_UN], target[PATH_MAX_UN + 5];
	struct ptc_rpc_channel_opts co = { .target = target, .bulk = true };
	struct ptc_rpc_server *srv = server_calls(path);
	struct ptc_rpc_part p = { .data = "", .len = 1 };
	const size_t n = getuid() ? 6 : 24; /* of a user, one place in three is for brief calls */
	struct ptc_rpc_channel *ch;
	struct ptc_rpc_message *m;
	struct ptc_rpc_stream *s[24];

	(void)state;
	snprintf(target, sizeof target, "unix:%s", path);
	assert_int_equal(ptc_rpc_channel_new(&co, &ch, NULL), 0);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(ptc_rpc_stream_open(ch, "/t.T/Echo", 6 * CALL_MS, NULL, 0, &s[i], NULL), 0);
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < n; i++)
			assert_int_equal(ptc_rpc_stream_send(s[i], &p, 1, NULL), 0);
		for (size_t i = n; i-- > 0;) {
			assert_int_equal(ptc_rpc_stream_recv(s[i], &m, NULL), 0);
			assert_non_null(m);
			ptc_rpc_message_done(m);
		}
	}
	for (size_t i = n; i-- > 0;) {
		assert_int_equal(ptc_rpc_stream_half_close(s[i], NULL), 0);
		assert_int_equal(ptc_rpc_stream_finish(s[i], NULL), 0);
		ptc_rpc_stream_free(s[i]);
	}
	ptc_rpc_channel_free(ch);
	ptc_rpc_server_free(srv, 1000);
	assert_int_equal(atomic_load(&stepping), 0);
}

/* More calls in steps than there are threads: each message comes once and in order, however slowly it is taken; each
 * ends when its caller goes, and when the server does. */
static void steps(void **state)
{
	char path[PATH_MAX_UN], target[PATH_MAX_UN + 5];
	struct ptc_rpc_channel_opts co = { .target = target, .bulk = true };
	struct ptc_rpc_server *srv = server_calls(path);
	struct ptc_rpc_part p = { .data = "", .len = 0 };
	struct ptc_rpc_channel *ch;
	struct ptc_rpc_message *m;
	struct ptc_rpc_stream *s[24];
	int before = atomic_load(&released), n;

	snprintf(target, sizeof target, "unix:%s", path);
	assert_int_equal(ptc_rpc_channel_new(&co, &ch, NULL), 0);
	for (size_t i = 0; i < (getuid() ? 6 : PTC_ARRAY_LEN(s)); i++) {
		assert_int_equal(ptc_rpc_stream_open(ch, "/t.T/Steps", 0, NULL, 0, &s[i], NULL), 0);
		assert_int_equal(ptc_rpc_stream_send(s[i], &p, 1, NULL), 0);
	}
	for (int k = 0; k < STEPS; k++)
		for (size_t i = 0; i < (getuid() ? 6 : PTC_ARRAY_LEN(s)); i++) {
			assert_int_equal(ptc_rpc_stream_recv(s[i], &m, NULL), 0);
			assert_int_equal(ptc_rpc_message_read(m, &n, sizeof n), sizeof n);
			assert_int_equal(n, k);
			assert_int_equal(ptc_rpc_message_len(m), PART + sizeof n);
		}
	ptc_rpc_stream_free(s[0]);
	for (int i = 0; i < 6000 && atomic_load(&released) == before; i++)
		usleep(10000);
	assert_int_equal(atomic_load(&released), before + 1);
	srv = ptc_rpc_server_free(srv, 100);
	assert_int_equal(atomic_load(&stepping), 0);
	for (size_t i = 1; i < (getuid() ? 6 : PTC_ARRAY_LEN(s)); i++) {
		assert_int_not_equal(ptc_rpc_stream_recv(s[i], &m, NULL), 0);
		ptc_rpc_stream_free(s[i]);
	}
	ptc_rpc_channel_free(ch);
}

#define TOGETHER 2
static atomic_int together, alone;

/* Ends once all are in here at the same time, each on a thread of its own. */
static int meet_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	int64_t until = ptc_sys_now_ns() + 5 * INT64_C(1000000000);

	atomic_fetch_add(&together, 1);
	while (atomic_load(&together) < TOGETHER && ptc_sys_now_ns() < until)
		usleep(100);
	if (atomic_load(&together) < TOGETHER)
		atomic_fetch_add(&alone, 1);
	return 0;
}

/* All steps are due at one time: at the tenth of a second that *arg counts, so that one look finds them all ready. */
static int h_meet(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	int64_t now;

	do
		now = ptc_sys_now_ns();
	while (now % 1000000 > 2000);
	ptc_rpc_call_follow(call, (int)(*(const int64_t *)arg - now / 1000000), meet_step, NULL, NULL);
	return 0;
}

/* Two calls become ready while one thread is idle: it is woken for both, takes one, and sees to it that the other has a
 * thread too. */
static void calls_that_are_ready_at_once(void **state)
{
	char path[PATH_MAX_UN], target[PATH_MAX_UN + 5];
	struct ptc_rpc_channel_opts co = { .target = target };
	struct ptc_rpc_server_opts so = { .max_calls = 8 };
	struct ptc_rpc_part p = { .data = "", .len = 0 };

	for (int round = 0; round < 30; round++) {
		struct ptc_rpc_stream *s[TOGETHER];
		struct ptc_rpc_server *srv = server_new(&so);
		int64_t due_ms = ptc_sys_now_ns() / 1000000 + 150;
		struct ptc_rpc_channel *ch;
		struct ptc_rpc_message *m;

		atomic_store(&together, 0);
		assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Meet", ALL_ROLES, h_meet, &due_ms, NULL), 0);
		ptc_rpc_server_method_kind(srv, "/t.T/Meet", PTC_RPC_BRIEF);
		snprintf(path, sizeof path, "%s/meet%d.sock", dir, round);
		snprintf(target, sizeof target, "unix:%s", path);
		assert_int_equal(ptc_rpc_server_listen_unix(srv, path, 0666, false, NULL), 0);
		assert_int_equal(ptc_rpc_server_start(srv, NULL), 0);
		assert_int_equal(ptc_rpc_channel_new(&co, &ch, NULL), 0);
		for (int i = 0; i < TOGETHER; i++) {
			assert_int_equal(ptc_rpc_stream_open(ch, "/t.T/Meet", CALL_MS, NULL, 0, &s[i], NULL), 0);
			assert_int_equal(ptc_rpc_stream_send(s[i], &p, 1, NULL), 0);
			usleep(30000); /* its thread is idle again, which nothing shows, and takes part in what comes */
		}
		for (int i = 0; i < TOGETHER; i++) {
			assert_int_equal(ptc_rpc_stream_recv(s[i], &m, NULL), 0);
			assert_null(m);
			ptc_rpc_stream_free(s[i]);
		}
		ptc_rpc_channel_free(ch);
		ptc_rpc_server_free(srv, 0);
		assert_int_equal(atomic_load(&alone), 0);
	}
}

/* ---- TCP ------------------------------------------------------------------------------ */

static int connect_tcp(int port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET,
				    .sin_port = htons((uint16_t)port),
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0)
		return fd;
	close(fd);
	return -1;
}

static int64_t member_ms(int port)
{
	char target[40];
	struct paths p;
	struct ptc_rpc_channel_opts co = { .target = target, .tls = creds(&p, "n2"), .expect_node = "n1" };
	struct ptc_error err = PTC_ERROR_INIT;
	int64_t began = ptc_sys_now_ns();
	uid_t got;

	snprintf(target, sizeof target, "127.0.0.1:%d", port);
	if (call_who(&co, "", &got, &err) != 0)
		fail_msg("%s", err.text);
	return (ptc_sys_now_ns() - began) / 1000000;
}

static struct ptc_rpc_server *server_tls(int *ret_port)
{
	struct ptc_rpc_server *srv = server_new(&(struct ptc_rpc_server_opts){ .max_calls = 4 });
	struct paths p;

	assert_int_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", creds(&p, "n1"), ret_port, NULL), 0);
	assert_int_equal(ptc_rpc_server_start(srv, NULL), 0);
	return srv;
}

/* Two thousand connections that say nothing: few are kept, and a member is let in at any time. */
static void strangers_are_bounded(void **state)
{
	struct ptc_rpc_connections now = { 0 };
	int fd[2000], port;
	struct ptc_rpc_server *srv = server_tls(&port);
	int64_t worst = 0;

	for (size_t i = 0; i < PTC_ARRAY_LEN(fd); i++) {
		fd[i] = connect_tcp(port);
		assert_true(fd[i] >= 0);
		if (i % 200 == 199)
			worst = PTC_MAX(worst, member_ms(port));
	}
	for (int i = 0; i < 6000 && now.shed < PTC_ARRAY_LEN(fd) / 2; i++, usleep(10000))
		ptc_rpc_connections(&now);
	print_message("%u strangers, at most %u; %llu shed; a member waited %lld ms at most\n", now.strangers,
		      now.max_strangers, (unsigned long long)now.shed, (long long)worst);
	assert_true(now.strangers <= now.max_strangers);
	assert_true(now.shed >= PTC_ARRAY_LEN(fd) / 2);
	assert_true(now.bytes < 64u << 20);
	for (size_t i = 0; i < PTC_ARRAY_LEN(fd); i++)
		close(fd[i]);
	ptc_rpc_server_free(srv, 0);
}

/* Somebody connects faster than a member's handshake is through, and says nothing: members are let in each time. */
static void strangers_who_connect_in_a_loop(void **state)
{
	int port;
	struct ptc_rpc_server *srv = server_tls(&port);
	int64_t worst = 0;
	struct child loop;
	char text[16];

	snprintf(text, sizeof text, "%d", port);
	loop = child_start("--loop", UID, text, 400);
	child_said(&loop);
	for (int i = 0; i < 12; i++)
		worst = PTC_MAX(worst, member_ms(port));
	print_message("a member waited %lld ms at most\n", (long long)worst);
	child_end(&loop, 0);
	ptc_rpc_server_free(srv, 0);
}

/* Accepting fails for want of a descriptor; afterwards the listener still listens. */
static void listener_survives_without_descriptors(void **state)
{
	struct rlimit was, none;
	int port, knock[8], top;
	struct ptc_rpc_server *srv = server_tls(&port);

	member_ms(port);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
	for (size_t i = 0; i < PTC_ARRAY_LEN(knock); i++)
		knock[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	top = dup(0);
	none = was;
	none.rlim_cur = 3; /* what is open stays so */
	close(top);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	for (size_t i = 0; i < PTC_ARRAY_LEN(knock); i++) {
		struct sockaddr_in addr = { .sin_family = AF_INET,
					    .sin_port = htons((uint16_t)port),
					    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

		assert_int_equal(connect(knock[i], (struct sockaddr *)&addr, sizeof addr), 0);
	}
	usleep(300000); /* the listener tries, fails and waits, several times: nobody is accepted, so nothing shows it
			 */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
	member_ms(port);
	for (size_t i = 0; i < PTC_ARRAY_LEN(knock); i++)
		close(knock[i]);
	ptc_rpc_server_free(srv, 0);
}

/* A stranger has 15 seconds; a member stays. */
static void strangers_run_out_of_time(void **state)
{
	int port, fd;
	char got;
	struct ptc_rpc_server *srv;
	struct timeval longer = { .tv_sec = 25 };
	const char *full = getenv("PTC_TEST_LONG");

	if (!full || !*full)
		return;
	srv = server_tls(&port);
	fd = connect_tcp(port);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &longer, sizeof longer), 0);
	assert_int_equal(recv(fd, &got, sizeof got, 0), 0);
	close(fd);
	ptc_rpc_server_free(srv, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers_are_given_back),
		cmocka_unit_test(nobody_is_mistaken),
		cmocka_unit_test(hogs_leave_room),
		cmocka_unit_test(readers_who_do_not_read),
		cmocka_unit_test(users_with_all_calls),
		cmocka_unit_test(steps),
		cmocka_unit_test(bulk_steps),
		cmocka_unit_test(a_call_that_is_woken),
		cmocka_unit_test(calls_that_are_ready_at_once),
		cmocka_unit_test(strangers_are_bounded),
		cmocka_unit_test(strangers_who_connect_in_a_loop),
		cmocka_unit_test(listener_survives_without_descriptors),
		cmocka_unit_test(strangers_run_out_of_time),
	};
	int failed;

	if (argc == 5)
		return child_main(argv);
	signal(SIGPIPE, SIG_IGN);
	if (!realpath(argv[0], self) || !mkdtemp(dir) || chmod(dir, 0711) != 0)
		return 1;
	test_ca(dir, "ca");
	test_cert(dir, "ca", "n1", "URI:ptc://node/n1,DNS:ptc-node,IP:127.0.0.1", 2);
	test_cert(dir, "ca", "n2", "URI:ptc://node/n2,DNS:ptc-node", 2);
	ptc_rpc_init();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	ptc_rpc_shutdown();
	ptc_sys_remove_tree(dir, NULL, NULL);
	return failed;
}
