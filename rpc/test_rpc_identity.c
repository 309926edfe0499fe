/* SPDX-License-Identifier: Apache-2.0 */
/* Who is who: unix sockets and certificates, and who is turned away. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "base/test_leaks.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"
#include "rpc/test_certs.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define CALL_MS   10000
#define ALL_ROLES 0xfu
#define OTHER_UID 54321
#define OTHER_GID 54322

static char dir[] = "/tmp/ptc-test-rpc-XXXXXX";
static char self[4096];

struct paths {
	char ca[64], crt[64], key[64];
	struct ptc_rpc_tls tls;
};

static struct ptc_rpc_tls *creds(struct paths *p, const char *ca, const char *name)
{
	snprintf(p->ca, sizeof p->ca, "%s/%s.crt", dir, ca);
	snprintf(p->crt, sizeof p->crt, "%s/%s.crt", dir, name);
	snprintf(p->key, sizeof p->key, "%s/%s.key", dir, name);
	p->tls = (struct ptc_rpc_tls){ .ca_path = p->ca, .cert_path = p->crt, .key_path = p->key };
	return &p->tls;
}

/* Says who the caller is: "ROLE uid gid name". */
static int h_who(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	const struct ptc_rpc_identity *id = ptc_rpc_call_identity(call);
	char text[160];
	struct ptc_rpc_part p = { .data = text };
	struct ptc_rpc_message *m;
	int rc = ptc_rpc_call_recv(call, &m, err);

	if (rc)
		return rc;
	p.len = (size_t)snprintf(text, sizeof text, "%d %u %u %s", id->role, id->uid, id->gid, id->name);
	return ptc_rpc_call_send(call, &p, 1, err);
}

static int who(const struct ptc_rpc_channel_opts *co, char *ret_text, struct ptc_error *err)
{
	struct ptc_rpc_channel *ch;
	void *reply;
	size_t len;
	int rc = ptc_rpc_channel_new(co, &ch, err);

	if (rc)
		return rc;
	rc = ptc_rpc_unary(ch, "/t.T/Who", "", 0, CALL_MS, NULL, 0, &reply, &len, err);
	if (!rc) {
		snprintf(ret_text, 160, "%.*s", (int)len, (char *)reply);
		ptc_free(reply);
	}
	ptc_rpc_channel_free(ch);
	return rc;
}

static struct ptc_rpc_server *server(void)
{
	struct ptc_rpc_server_opts so = { .max_calls = 8 };
	struct ptc_rpc_server *srv;

	assert_int_equal(ptc_rpc_server_new(&so, &srv, NULL), 0);
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Who", ALL_ROLES, h_who, NULL, NULL), 0);
	return srv;
}

/* ---- unix ----------------------------------------------------------------------- */

/* Child mode, another user: prints what the server says of us. */
static int child_main(const char *path, uid_t uid, gid_t gid)
{
	char target[160], text[160] = "";
	struct ptc_rpc_channel_opts co = { .target = target };
	struct ptc_error err = PTC_ERROR_INIT;
	int rc;

	if (setgid(gid) != 0 || setuid(uid) != 0)
		return 9;
	snprintf(target, sizeof target, "unix:%s", path);
	ptc_rpc_init();
	rc = who(&co, text, &err);
	printf("%d %s\n", rc, text);
	ptc_rpc_shutdown();
	return 0;
}

static void as_other_user(const char *path, int *ret_rc, char *ret_text)
{
	char cmd[5000];
	FILE *f;

	snprintf(cmd, sizeof cmd, "'%s' --child '%s'", self, path);
	f = popen(cmd, "re");
	assert_non_null(f);
	ret_text[0] = '\0';
	assert_true(fscanf(f, "%d %159[^\n]", ret_rc, ret_text) >= 1);
	assert_int_equal(pclose(f), 0);
}

static void unix_caller_is_its_uid(void **state)
{
	struct ptc_rpc_server *srv = server();
	char path[128], target[160], text[160], want[160];
	struct ptc_rpc_channel_opts co = { .target = target };
	struct ptc_error err = PTC_ERROR_INIT;
	struct stat st;
	int rc;

	snprintf(path, sizeof path, "%s/user.sock", dir);
	snprintf(target, sizeof target, "unix:%s", path);
	assert_int_equal(ptc_rpc_server_listen_unix(srv, path, 0666, false, &err), 0);
	assert_int_equal(ptc_rpc_server_start(srv, &err), 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0666);
	snprintf(want, sizeof want, "%d %u %u ", PTC_ROLE_USER, getuid(), getgid());
	assert_int_equal(who(&co, text, &err), 0);
	assert_string_equal(text, want);
	if (getuid() == 0) {
		assert_int_equal(chmod(dir, 0711), 0);
		snprintf(want, sizeof want, "%d %u %u ", PTC_ROLE_USER, OTHER_UID, OTHER_GID);
		for (int i = 0; i < 3; i++) { /* alternating users never share an identity */
			as_other_user(path, &rc, text);
			assert_int_equal(rc, 0);
			assert_string_equal(text, want);
			assert_int_equal(who(&co, text, &err), 0);
			assert_string_not_equal(text, want);
		}
		assert_int_equal(chmod(dir, 0700), 0);
	} else {
		print_message("not root: callers of other users are not tried\n");
	}
	ptc_rpc_server_free(srv, 0);
	assert_int_equal(stat(path, &st), -1);
}

static void unix_as_node(void **state)
{
	struct ptc_rpc_server *srv = server();
	char path[128], target[160], text[160], want[160];
	struct ptc_rpc_channel_opts co = { .target = target };
	struct ptc_error err = PTC_ERROR_INIT;
	int rc;

	snprintf(path, sizeof path, "%s/peer.sock", dir);
	snprintf(target, sizeof target, "unix:%s", path);
	assert_int_equal(chmod(dir, 0711), 0);
	assert_int_equal(ptc_rpc_server_listen_unix(srv, path, 0666, true, &err), PTC_EPERM);
	assert_int_equal(chmod(dir, 0700), 0);
	assert_int_equal(ptc_rpc_server_listen_unix(srv, path, 0666, true, &err), 0);
	assert_int_equal(ptc_rpc_server_start(srv, &err), 0);
	snprintf(want, sizeof want, "%d 0 0 ", PTC_ROLE_NODE);
	assert_int_equal(who(&co, text, &err), 0);
	assert_string_equal(text, want);
	if (getuid() == 0) { /* even when the directory lets others in by mistake */
		assert_int_equal(chmod(dir, 0711), 0);
		as_other_user(path, &rc, text);
		assert_int_equal(rc, PTC_EPEER);
		assert_int_equal(chmod(dir, 0700), 0);
	}
	ptc_rpc_server_free(srv, 0);
}

static void unix_stale_live_and_other_files(void **state)
{
	struct ptc_rpc_server *a = server(), *b = server();
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	char path[100], longer[300];
	struct ptc_error err = PTC_ERROR_INIT;
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(path, sizeof path, "%s/stale.sock", dir);
	snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
	close(fd);
	assert_int_equal(ptc_rpc_server_listen_unix(a, path, 0600, true, &err), 0);
	assert_int_equal(ptc_rpc_server_listen_unix(b, path, 0600, true, &err), PTC_EEXIST);
	ptc_rpc_server_free(a, 0);
	assert_int_equal(access(path, F_OK), -1);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	close(fd);
	assert_int_equal(ptc_rpc_server_listen_unix(b, path, 0600, true, &err), PTC_EEXIST);
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(ptc_rpc_server_listen_unix(b, "relative", 0600, false, &err), PTC_EINVAL);
	snprintf(longer, sizeof longer, "%s/%0200d", dir, 1);
	assert_int_equal(ptc_rpc_server_listen_unix(b, longer, 0600, false, &err), PTC_ELIMIT);
	ptc_rpc_server_free(b, 0);
	unlink(path);
}

/* More connections than there may be at a time (a user has a quarter of them, root all): the rest are closed, and
 * once the first are gone there is room again. test_rpc_bounds.c has other users. */
static void unix_connections_are_bounded(void **state)
{
	struct ptc_rpc_server *srv = server();
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	char target[160], text[160];
	struct ptc_rpc_channel_opts co = { .target = target };
	struct ptc_error err = PTC_ERROR_INIT;
	int fd[1100], rc = -1;

	snprintf(addr.sun_path, sizeof addr.sun_path, "%s/many.sock", dir);
	snprintf(target, sizeof target, "unix:%s", addr.sun_path);
	assert_int_equal(ptc_rpc_server_listen_unix(srv, addr.sun_path, 0600, false, &err), 0);
	assert_int_equal(ptc_rpc_server_start(srv, &err), 0);
	for (size_t i = 0; i < PTC_ARRAY_LEN(fd); i++) {
		fd[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		assert_int_equal(connect(fd[i], (struct sockaddr *)&addr, sizeof addr), 0);
	}
	assert_int_equal(who(&co, text, &err), PTC_EPEER);
	for (size_t i = 0; i < PTC_ARRAY_LEN(fd); i++)
		close(fd[i]);
	for (int i = 0; i < 3000 && rc; i++, usleep(20000))
		rc = who(&co, text, &err);
	assert_int_equal(rc, 0);
	ptc_rpc_server_free(srv, 0);
}

/* ---- TLS -------------------------------------------------------------------------- */

struct tls_case {
	const char *ca, *name; /* the client's */
	const char *expect_node;
	const char *want; /* NULL: refused with code */
	int code;
	const char *text; /* part of the error */
};

static const struct tls_case tls_cases[] = {
	{ "ca", "n2", "n1", "2 0 0 n2", 0, NULL },
	{ "ca", "n2", NULL, "2 0 0 n2", 0, NULL },
	{ "ca", "op", "n1", "3 0 0 op", 0, NULL },
	{ "ca", "n2", "n3", NULL, PTC_EPEER, "certificate is for node n1, expected node n3" },
	{ "ca", "plain", "n1", NULL, PTC_EPERM, "names no ptc node" },
	{ "ca", "both", "n1", NULL, PTC_EPERM, "names no ptc node" },
	{ "ca", "badname", "n1", NULL, PTC_EPERM, "names no ptc node" },
	{ "ca", "outsider", "n1", NULL, PTC_EPERM, "lacks the DNS name of this cluster's members" },
	{ "ca", "similar", "n1", NULL, PTC_EPERM, "lacks the DNS name of this cluster's members" },
	{ "ca", "expired", "n1", NULL, PTC_EPEER, NULL },
	{ "ca", "stranger", "n1", NULL, PTC_EPEER, NULL }, /* the server does not know its CA */
	{ "ca2", "n2", "n1", NULL, PTC_EPEER, NULL },      /* the client does not know the server's */
	{ "ca", "n2", "../n1", NULL, PTC_EINVAL, "node name" },
	{ "ca", "missing", "n1", NULL, PTC_ENOTFOUND, "missing.crt" },
	{ "ca", "junk", "n1", NULL, PTC_EINVAL, "not a PEM file" },
};

static void tls_one(const struct tls_case *c, const char *target)
{
	struct ptc_rpc_channel_opts co = { .target = target, .expect_node = c->expect_node };
	struct ptc_error err = PTC_ERROR_INIT;
	struct paths p;
	char text[160] = "";
	int rc;

	co.tls = creds(&p, c->ca, c->name);
	rc = who(&co, text, &err);
	print_message("%s of %s, expecting %s: %d %s\n", c->name, c->ca, c->expect_node, rc, rc ? err.text : text);
	assert_int_equal(rc, c->want ? 0 : c->code);
	if (c->want)
		assert_string_equal(text, c->want);
	if (c->text)
		assert_non_null(strstr(err.text, c->text));
}

static struct ptc_rpc_server *tls_server(const char *name, char target[64])
{
	struct ptc_rpc_server *srv = server();
	struct ptc_error err = PTC_ERROR_INIT;
	struct paths p;
	int port;

	assert_int_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", creds(&p, "ca", name), &port, &err), 0);
	assert_int_equal(ptc_rpc_server_start(srv, &err), 0);
	snprintf(target, 64, "127.0.0.1:%d", port);
	return srv;
}

static void tls_callers(void **state)
{
	char target[64], text[160];
	struct ptc_rpc_server *srv = tls_server("n1", target);
	struct ptc_rpc_channel_opts co = { .target = target, .insecure = true };
	struct ptc_error err = PTC_ERROR_INIT;

	for (size_t i = 0; i < sizeof tls_cases / sizeof tls_cases[0]; i++)
		tls_one(&tls_cases[i], target);
	/* No certificate at all. */
	assert_int_equal(who(&co, text, &err), PTC_EPEER);
	ptc_rpc_server_free(srv, 0);
}

/* Which servers a client without expect_node accepts: nodes, and others whose host name fits. */
static void tls_servers(void **state)
{
	static const struct {
		const char *name, *expect;
		int code;
	} cases[] = {
		{ "host", NULL, 0 },
		{ "host", "n1", PTC_EPEER },
		{ "elsewhere", NULL, PTC_EPEER },
		{ "op", NULL, PTC_EPEER },
		{ "op", "op", PTC_EPEER },
		{ "outsider", NULL, PTC_EPEER },
		{ "outsider", "n5", PTC_EPEER },
		{ "expired", NULL, PTC_EPEER },
		{ "expired", "n4", PTC_EPEER },
	};

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char target[64], text[160];
		struct ptc_rpc_server *srv = tls_server(cases[i].name, target);
		struct ptc_rpc_channel_opts co = { .target = target, .expect_node = cases[i].expect };
		struct ptc_error err = PTC_ERROR_INIT;
		struct paths p;
		int rc;

		co.tls = creds(&p, "ca", "n2");
		rc = who(&co, text, &err);
		print_message("server %s, expecting %s: %d %s\n", cases[i].name, cases[i].expect, rc, err.text);
		assert_int_equal(rc, cases[i].code);
		ptc_rpc_server_free(srv, 0);
	}
}

static int h_echo(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	struct ptc_rpc_part p = { .data = "echo", .len = 4 };
	int rc = 0;

	while (rc == 0 && (rc = ptc_rpc_call_recv(call, &m, err)) == 0 && m) {
		ptc_rpc_message_done(m);
		rc = ptc_rpc_call_send(call, &p, 1, err);
	}
	return rc;
}

static void become(const char *file, const char *name)
{
	test_sh("cd %s && cp %s.crt %s.crt && cp %s.key %s.key", dir, name, file, name, file);
}

static void one_echo(struct ptc_rpc_stream *s)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_part p = { .data = "x", .len = 1 };
	struct ptc_rpc_message *m;

	assert_int_equal(ptc_rpc_stream_send(s, &p, 1, &err), 0);
	assert_int_equal(ptc_rpc_stream_recv(s, &m, &err), 0);
	assert_non_null(m);
	ptc_rpc_message_done(m);
}

/* Who the server says that the caller is; -: it is not reached. */
static const char *seen(struct ptc_rpc_channel *ch, struct ptc_error *err)
{
	static char text[160];
	void *reply;
	size_t len;

	snprintf(text, sizeof text, "-");
	if (ptc_rpc_unary(ch, "/t.T/Who", "", 0, CALL_MS, NULL, 0, &reply, &len, err) == 0) {
		snprintf(text, sizeof text, "%.*s", (int)len, (char *)reply);
		ptc_free(reply);
	}
	return text;
}

/* Files are replaced under a server and its callers: each end shows the new one to connections made from then on, and a
 * stream goes on. What cannot be used is not taken. */
static void tls_files_are_renewed(void **state)
{
	struct ptc_rpc_server *srv = server();
	struct ptc_error err = PTC_ERROR_INIT;
	struct paths server_paths, client_paths;
	struct ptc_rpc_channel *a, *b;
	struct ptc_rpc_stream *s;
	char target[64];
	int port;
	struct ptc_rpc_channel_opts co = { .target = target, .expect_node = "n1", .renews = true };

	become("srv", "n1");
	become("cli", "n2");
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Echo", ALL_ROLES, h_echo, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", creds(&server_paths, "ca", "srv"), &port, &err),
			 0);
	assert_int_equal(ptc_rpc_server_start(srv, &err), 0);
	snprintf(target, sizeof target, "127.0.0.1:%d", port);
	co.tls = creds(&client_paths, "ca", "cli");
	assert_int_equal(ptc_rpc_channel_new(&co, &a, &err), 0);
	assert_string_equal(seen(a, &err), "2 0 0 n2");
	assert_int_equal(ptc_rpc_stream_open(a, "/t.T/Echo", 0, NULL, 0, &s, &err), 0);
	one_echo(s);

	become("cli", "op");
	assert_string_equal(seen(a, &err), "2 0 0 n2"); /* nobody has said so */
	ptc_rpc_tls_renew();
	assert_string_equal(seen(a, &err), "3 0 0 op");
	one_echo(s);

	become("srv", "n2");
	ptc_rpc_tls_renew();
	assert_string_equal(seen(a, &err), "-");
	assert_non_null(strstr(err.text, "certificate is for node n2, expected node n1"));
	co.expect_node = "n2";
	assert_int_equal(ptc_rpc_channel_new(&co, &b, &err), 0);
	assert_string_equal(seen(b, &err), "3 0 0 op");

	become("srv", "junk");
	become("cli", "junk");
	ptc_rpc_tls_renew();
	assert_string_equal(seen(b, &err), "3 0 0 op");
	become("cli", "n1");
	ptc_rpc_tls_renew(); /* a new connection, to a server that has nothing better than before */
	assert_string_equal(seen(b, &err), "2 0 0 n1");
	one_echo(s);
	ptc_rpc_stream_free(s);
	ptc_rpc_channel_free(a);
	ptc_rpc_channel_free(b);
	ptc_rpc_server_free(srv, 0);
}

static void tls_bad_files(void **state)
{
	struct ptc_rpc_server *srv = server();
	struct ptc_rpc_tls tls = { 0 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct paths p, q;
	int port;

	assert_int_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", &tls, &port, &err), PTC_EINVAL);
	creds(&p, "ca", "n1");
	creds(&q, "ca", "n2");
	p.tls.key_path = q.key; /* does not fit */
	assert_int_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", &p.tls, &port, &err), PTC_EIO);
	print_message("%s\n", err.text);
	assert_int_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", creds(&p, "ca", "missing"), &port, &err),
			 PTC_ENOTFOUND);
	ptc_rpc_server_free(srv, 0);
}

/* ---- revocation --------------------------------------------------------------------- */

/* Sends one byte whenever it gets one. */
static int h_answer(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	int rc = 0;

	while (!rc && !(rc = ptc_rpc_call_recv(call, &m, err)) && m)
		rc = ptc_rpc_call_send(call, &(struct ptc_rpc_part){ .data = "x", .len = 1 }, 1, err);
	return rc;
}

static atomic_int ticks_released;

static void tick_release(void *arg)
{
	atomic_fetch_add(&ticks_released, 1);
}

/* A call that goes on in steps, without a thread: it sends one byte in each. */
static int tick(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	int rc = ptc_rpc_call_send(call, &(struct ptc_rpc_part){ .data = "x", .len = 1 }, 1, err);

	if (!rc)
		ptc_rpc_call_again(call, 20);
	return rc;
}

static int h_ticks(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	ptc_rpc_call_follow(call, 0, tick, NULL, tick_release);
	return 0;
}

static int echo(struct ptc_rpc_stream *s)
{
	struct ptc_rpc_message *m;
	int rc = ptc_rpc_stream_send(s, &(struct ptc_rpc_part){ .data = "x", .len = 1 }, 1, NULL);

	return rc ? rc : ptc_rpc_stream_recv(s, &m, NULL);
}

/* A file with a list takes effect while the server runs, on connections and calls that are open too; one that cannot be
 * used changes nothing. */
static void a_revoked_certificate_ends(void **state)
{
	struct ptc_rpc_server *srv = server();
	char target[64], text[160], crl[160];
	struct ptc_rpc_channel_opts co = { .target = target, .expect_node = "n1" };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_channel *open;
	struct ptc_rpc_stream *s;
	struct paths p, q;
	int port, rc = 0;

	snprintf(crl, sizeof crl, "%s/list.crl", dir);
	test_crl(dir, "ca", "list", "");
	creds(&p, "ca", "n1")->crl_path = crl;
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Echo", ALL_ROLES, h_answer, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", &p.tls, &port, &err), 0);
	assert_int_equal(ptc_rpc_server_start(srv, &err), 0);
	snprintf(target, sizeof target, "127.0.0.1:%d", port);
	co.tls = creds(&q, "ca", "n2");
	assert_int_equal(ptc_rpc_channel_new(&co, &open, &err), 0);
	assert_int_equal(ptc_rpc_stream_open(open, "/t.T/Echo", CALL_MS, NULL, 0, &s, &err), 0);
	assert_int_equal(echo(s), 0);

	test_sh("cd %s && cp list.crl good && echo junk >list.crl", dir);
	usleep(1200000); /* nothing is to happen when the file is looked at, once a second: nothing can be waited for */
	assert_int_equal(echo(s), 0);
	assert_int_equal(who(&co, text, &err), 0);
	test_crl(dir, "ca2", "list", "stranger"); /* of another authority */
	assert_int_equal(who(&co, text, &err), 0);

	test_crl(dir, "ca", "list", "plain n2");
	for (int i = 0; i < 3000 && rc == 0; i++, usleep(20000))
		rc = who(&co, text, &err);
	assert_int_equal(rc, PTC_EPERM);
	assert_non_null(strstr(err.text, "is revoked"));
	for (int i = 0; i < 3000 && (rc = echo(s)) == 0; i++) /* what was on its way comes */
		usleep(20000);
	assert_int_not_equal(rc, 0);
	ptc_rpc_stream_free(s);
	ptc_rpc_channel_free(open);
	co.tls = creds(&q, "ca", "op"); /* others go on */
	assert_int_equal(who(&co, text, &err), 0);

	creds(&q, "ca", "op")->crl_path = crl; /* a client does not call a revoked server */
	test_crl(dir, "ca", "list", "n1");
	assert_int_equal(who(&co, text, &err), PTC_EPEER);
	assert_non_null(strstr(err.text, "is revoked"));
	ptc_rpc_server_free(srv, 0);
}

/* The other direction: a node whose certificate is revoked while we are connected to it is called no more, and what is
 * open to it ends; the node itself knows nothing of the list. */
static void an_open_channel_ends(void **state)
{
	struct ptc_rpc_server *srv = server();
	char target[64], crl[160];
	struct ptc_rpc_channel_opts co = { .target = target, .expect_node = "n1", .renews = true };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_channel *ch;
	struct ptc_rpc_stream *s;
	struct paths p, q;
	void *reply;
	size_t len;
	int port, rc = 0;

	(void)state;
	snprintf(crl, sizeof crl, "%s/out.crl", dir);
	test_crl(dir, "ca", "out", "");
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Echo", ALL_ROLES, h_answer, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", creds(&p, "ca", "n1"), &port, &err), 0);
	assert_int_equal(ptc_rpc_server_start(srv, &err), 0);
	snprintf(target, sizeof target, "127.0.0.1:%d", port);
	co.tls = creds(&q, "ca", "n2");
	q.tls.crl_path = crl;
	assert_int_equal(ptc_rpc_channel_new(&co, &ch, &err), 0);
	assert_int_equal(ptc_rpc_stream_open(ch, "/t.T/Echo", CALL_MS, NULL, 0, &s, &err), 0);
	assert_int_equal(echo(s), 0);

	test_crl(dir, "ca", "out", "n2"); /* somebody else: all goes on */
	for (int i = 0; i < 80; i++, usleep(20000))
		assert_int_equal(echo(s), 0);

	test_crl(dir, "ca", "out", "n1");
	for (int i = 0; i < 3000 && rc == 0; i++, usleep(20000))
		rc = echo(s);
	assert_int_equal(rc, PTC_EPEER);
	assert_int_equal(ptc_rpc_stream_finish(s, &err), PTC_EPEER);
	assert_non_null(strstr(err.text, "certificate is revoked"));
	ptc_rpc_stream_free(s);
	assert_int_equal(ptc_rpc_unary(ch, "/t.T/Who", NULL, 0, CALL_MS, NULL, 0, &reply, &len, &err), PTC_EPEER);
	assert_non_null(strstr(err.text, "is revoked"));
	ptc_rpc_channel_free(ch);
	ptc_rpc_server_free(srv, 0);
}

struct held {
	struct ptc_rpc_channel *ch;
	struct ptc_error err;
	atomic_bool entered, go;
	int rc;
};

static int h_held(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct held *h = arg;
	struct ptc_rpc_message *m;
	int rc = ptc_rpc_call_recv(call, &m, err);

	atomic_store(&h->entered, true);
	while (!atomic_load(&h->go))
		usleep(1000);
	return rc ? rc : ptc_rpc_call_send(call, &(struct ptc_rpc_part){ .data = "x", .len = 1 }, 1, err);
}

static void *ask_held(void *arg)
{
	struct held *h = arg;
	void *reply;
	size_t len;

	h->rc = ptc_rpc_unary(h->ch, "/t.T/Held", "", 0, CALL_MS, NULL, 0, &reply, &len, &h->err);
	if (!h->rc)
		ptc_free(reply);
	return NULL;
}

/* What a node answers after its certificate was revoked does not count, though it was asked before. */
static void an_answer_that_comes_late(void **state)
{
	struct ptc_rpc_server *srv = server();
	char target[64], crl[160];
	struct ptc_rpc_channel_opts co = { .target = target, .expect_node = "n1", .renews = true };
	struct ptc_error err = PTC_ERROR_INIT;
	struct held h = { .err = PTC_ERROR_INIT };
	pthread_t asking;
	struct paths p, q;
	int port;

	(void)state;
	snprintf(crl, sizeof crl, "%s/late.crl", dir);
	test_crl(dir, "ca", "late", "");
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Held", ALL_ROLES, h_held, &h, NULL), 0);
	assert_int_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", creds(&p, "ca", "n1"), &port, &err), 0);
	assert_int_equal(ptc_rpc_server_start(srv, &err), 0);
	snprintf(target, sizeof target, "127.0.0.1:%d", port);
	creds(&q, "ca", "n2")->crl_path = crl;
	co.tls = &q.tls;
	assert_int_equal(ptc_rpc_channel_new(&co, &h.ch, &err), 0);
	assert_int_equal(pthread_create(&asking, NULL, ask_held, &h), 0);
	while (!atomic_load(&h.entered))
		usleep(1000);
	test_crl(dir, "ca", "late", "n1");
	for (int i = 0; i < 3000 && strcmp(seen(h.ch, &err), "-") != 0; i++)
		usleep(20000);
	assert_non_null(strstr(err.text, "is revoked"));
	atomic_store(&h.go, true);
	assert_int_equal(pthread_join(asking, NULL), 0);
	assert_int_equal(h.rc, PTC_EPEER);
	assert_non_null(strstr(h.err.text, "certificate is revoked"));
	ptc_rpc_channel_free(h.ch);
	ptc_rpc_server_free(srv, 0);
}

/* A call waits for a thread while its caller's certificate is revoked: it is refused, and told why. */
static void a_call_that_waited_is_told_why(void **state)
{
	struct ptc_rpc_server_opts so = { .max_calls = 1 };
	struct ptc_rpc_server *srv;
	char target[64], crl[160];
	struct ptc_rpc_channel_opts co = { .target = target, .expect_node = "n1" };
	struct ptc_error err = PTC_ERROR_INIT;
	struct held on_server = { .err = PTC_ERROR_INIT },
		    h[2] = { { .err = PTC_ERROR_INIT }, { .err = PTC_ERROR_INIT } };
	pthread_t asking[2];
	struct paths p, q;
	int port, running, waiting = 0;

	(void)state;
	snprintf(crl, sizeof crl, "%s/waited.crl", dir);
	test_crl(dir, "ca", "waited", "");
	creds(&p, "ca", "n1")->crl_path = crl;
	assert_int_equal(ptc_rpc_server_new(&so, &srv, &err), 0);
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Held", ALL_ROLES, h_held, &on_server, NULL), 0);
	assert_int_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", &p.tls, &port, &err), 0);
	assert_int_equal(ptc_rpc_server_start(srv, &err), 0);
	snprintf(target, sizeof target, "127.0.0.1:%d", port);
	co.tls = creds(&q, "ca", "n2");
	for (int i = 0; i < 2; i++) {
		assert_int_equal(ptc_rpc_channel_new(&co, &h[i].ch, &err), 0);
		assert_int_equal(pthread_create(&asking[i], NULL, ask_held, &h[i]), 0);
		while (!atomic_load(&on_server.entered))
			usleep(1000);
	}
	for (int i = 0; i < 60000 && waiting != 1; i++, usleep(1000)) /* the second one has come */
		ptc_rpc_server_load(srv, &running, &waiting);
	assert_int_equal(waiting, 1);
	test_crl(dir, "ca", "waited", "n2");
	usleep(1200000); /* the file is looked at once a second, and calls hear of it when they begin or go on */
	atomic_store(&on_server.go, true);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(asking[i], NULL), 0);
		ptc_rpc_channel_free(h[i].ch);
	}
	assert_int_equal(h[0].rc, PTC_ECANCELED); /* it had begun */
	assert_int_equal(h[1].rc, PTC_EPERM);
	assert_non_null(strstr(h[1].err.text, "is revoked"));
	ptc_rpc_server_free(srv, 0);
}

/* Where no other connection can be made, because our own certificate was replaced by junk, the one that there is serves
 * no call to a node whose certificate is revoked. */
static void an_old_channel_looks_at_the_list(void **state)
{
	struct ptc_rpc_server *srv = server();
	char target[64], crl[160];
	struct ptc_rpc_channel_opts co = { .target = target, .expect_node = "n1", .renews = true };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_channel *ch;
	struct ptc_rpc_stream *s;
	struct paths p, q;
	int port;

	(void)state;
	snprintf(crl, sizeof crl, "%s/spoilt.crl", dir);
	test_crl(dir, "ca", "spoilt", "");
	become("spoilt", "n2");
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Echo", ALL_ROLES, h_answer, NULL, NULL), 0);
	assert_int_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", creds(&p, "ca", "n1"), &port, &err), 0);
	assert_int_equal(ptc_rpc_server_start(srv, &err), 0);
	snprintf(target, sizeof target, "127.0.0.1:%d", port);
	creds(&q, "ca", "spoilt")->crl_path = crl;
	co.tls = &q.tls;
	assert_int_equal(ptc_rpc_channel_new(&co, &ch, &err), 0);
	assert_string_equal(seen(ch, &err), "2 0 0 n2");
	become("spoilt", "junk");
	test_crl(dir, "ca", "spoilt", "n1");
	for (int i = 0; i < 3000 && strcmp(seen(ch, &err), "-") != 0; i++)
		usleep(20000);
	assert_string_equal(seen(ch, &err), "-");
	assert_non_null(strstr(err.text, "certificate is revoked"));
	assert_int_equal(ptc_rpc_stream_open(ch, "/t.T/Echo", CALL_MS, NULL, 0, &s, &err), 0);
	assert_int_equal(echo(s), PTC_EPEER);
	assert_int_equal(ptc_rpc_stream_finish(s, &err), PTC_EPEER);
	assert_non_null(strstr(err.text, "certificate is revoked"));
	ptc_rpc_stream_free(s);
	ptc_rpc_channel_free(ch);
	ptc_rpc_server_free(srv, 0);
}

/* So does one that goes on in steps: it neither receives nor waits for a thread, where it would be seen. */
static void a_revoked_certificate_ends_steps(void **state)
{
	struct ptc_rpc_server *srv = server();
	char target[64], crl[160];
	struct paths p, q;
	struct ptc_rpc_channel_opts co = { .target = target, .expect_node = "n1", .tls = creds(&q, "ca", "n2") };
	struct ptc_rpc_message *m;
	struct ptc_rpc_channel *ch;
	struct ptc_rpc_stream *s;
	int port, rc = 0, n = 0;

	snprintf(crl, sizeof crl, "%s/steps.crl", dir);
	test_crl(dir, "ca", "steps", "");
	creds(&p, "ca", "n1")->crl_path = crl;
	assert_int_equal(ptc_rpc_server_method(srv, "/t.T/Ticks", ALL_ROLES, h_ticks, NULL, NULL), 0);
	ptc_rpc_server_method_kind(srv, "/t.T/Ticks", PTC_RPC_BRIEF);
	assert_int_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", &p.tls, &port, NULL), 0);
	assert_int_equal(ptc_rpc_server_start(srv, NULL), 0);
	snprintf(target, sizeof target, "127.0.0.1:%d", port);
	assert_int_equal(ptc_rpc_channel_new(&co, &ch, NULL), 0);
	assert_int_equal(ptc_rpc_stream_open(ch, "/t.T/Ticks", 60000, NULL, 0, &s, NULL), 0);
	assert_int_equal(ptc_rpc_stream_send(s, &(struct ptc_rpc_part){ .data = "", .len = 0 }, 1, NULL), 0);
	for (int i = 0; i < 10; i++)
		assert_int_equal(ptc_rpc_stream_recv(s, &m, NULL), 0);
	test_crl(dir, "ca", "steps", "n2");
	while (rc == 0 && n++ < 1000) /* 20 s of them; the list is looked at once a second */
		rc = ptc_rpc_stream_recv(s, &m, NULL);
	assert_int_not_equal(rc, 0);
	assert_true(n < 1000);
	for (int i = 0; i < 6000 && !atomic_load(&ticks_released); i++)
		usleep(10000);
	assert_int_equal(atomic_load(&ticks_released), 1);
	ptc_rpc_stream_free(s);
	ptc_rpc_channel_free(ch);
	ptc_rpc_server_free(srv, 0);
}

static void lists_that_will_not_do(void **state)
{
	static const struct {
		const char *make, *says;
	} cases[] = {
		{ "rm -f bad.crl", "bad.crl" },
		{ ": >bad.crl", "holds no list" },
		{ "cp ca.crt bad.crl", "holds no list" },
		{ "cat one.crl one.crl >bad.crl", "more than one list" },
		{ "cp other.crl bad.crl", "is not signed by the authority" },
	};
	struct paths p;
	char crl[160];

	test_crl(dir, "ca", "one", "op");
	test_crl(dir, "ca2", "other", "");
	snprintf(crl, sizeof crl, "%s/bad.crl", dir);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ptc_rpc_server *srv = server();
		struct ptc_error err = PTC_ERROR_INIT;
		const char *which = "";

		test_sh("cd %s && %s", dir, cases[i].make);
		creds(&p, "ca", "n1")->crl_path = crl;
		assert_int_not_equal(ptc_rpc_tls_check(&p.tls, "n1", &which, &err), 0);
		print_message("%s: %s\n", which, err.text);
		assert_string_equal(which, "crl");
		assert_non_null(strstr(err.text, cases[i].says));
		assert_int_not_equal(ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", &p.tls, NULL, &err), 0);
		ptc_rpc_server_free(srv, 0);
	}
}

/* ---- what a probe finds ------------------------------------------------------------- */

static void probes_tell_who_is_let_in(void **state)
{
	char target[64];
	struct ptc_rpc_server *srv = tls_server("n1", target);
	struct ptc_rpc_tls none = { 0 };
	struct ptc_error err = PTC_ERROR_INIT;
	enum ptc_rpc_probe answer;
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof a;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct paths p;

	assert_int_equal(ptc_rpc_tls_probe(target, &none, CALL_MS, &answer, &err), 0);
	assert_int_equal(answer, PTC_RPC_PROBE_REFUSED);
	assert_int_equal(ptc_rpc_tls_probe(target, creds(&p, "ca2", "stranger"), CALL_MS, &answer, &err), 0);
	assert_int_equal(answer, PTC_RPC_PROBE_REFUSED);
	assert_int_equal(ptc_rpc_tls_probe(target, creds(&p, "ca", "plain"), CALL_MS, &answer, &err), 0);
	assert_int_equal(answer, PTC_RPC_PROBE_LET_IN); /* and is told, of each call, that he is nobody */
	assert_int_equal(ptc_rpc_tls_probe(target, creds(&p, "ca", "junk"), CALL_MS, &answer, &err), PTC_EINVAL);
	ptc_rpc_server_free(srv, 0);
	assert_int_equal(ptc_rpc_tls_probe(target, &none, CALL_MS, &answer, &err), 0);
	assert_int_equal(answer, PTC_RPC_PROBE_SILENT);
	/* one that takes connections and says nothing */
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	snprintf(target, sizeof target, "localhost:%d", ntohs(a.sin_port));
	assert_int_equal(ptc_rpc_tls_probe(target, &none, 200, &answer, &err), 0);
	assert_int_equal(answer, PTC_RPC_PROBE_SILENT);
	close(fd);
}

static void strangers_that_prove_something(void **state)
{
	static const struct {
		const char *name, *says;
	} cases[] = {
		{ "plain", NULL },
		{ "op", NULL },
		{ "outsider", NULL },
		{ "n2", "carries the DNS name ptc-node of members" },
		{ "expired", "carries the DNS name" },
		{ "old", "expired" },
		{ "stranger", "carries the DNS name" },
		{ "foreigner", "of another authority" },
		{ "forged", "forged.crt against" },
		{ "server", "may not be used by a client" },
		{ "missing", "missing.crt" },
	};
	struct paths own, p;

	creds(&own, "ca", "n1");
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		int rc = ptc_rpc_tls_check_stranger(creds(&p, "ca", cases[i].name), &own.tls, &err);

		print_message("%s: %d %s\n", cases[i].name, rc, err.text);
		assert_int_equal(rc == 0, cases[i].says == NULL);
		if (cases[i].says)
			assert_non_null(strstr(err.text, cases[i].says));
	}
}

static void make_certs(void)
{
	test_ca(dir, "ca");
	test_ca(dir, "ca2");
	test_cert(dir, "ca", "n1", "URI:ptc://node/n1,DNS:ptc-node,DNS:localhost,IP:127.0.0.1", 2);
	test_cert(dir, "ca", "n2", "URI:ptc://node/n2,DNS:ptc-node", 2);
	test_cert(dir, "ca", "op", "URI:ptc://admin/op,IP:127.0.0.1", 2);
	test_cert(dir, "ca", "plain", "DNS:localhost", 2);
	test_cert(dir, "ca", "both", "URI:ptc://node/n1,URI:ptc://admin/op,DNS:ptc-node", 2);
	test_cert(dir, "ca", "badname", "URI:ptc://node/a/b,DNS:ptc-node", 2);
	test_cert(dir, "ca", "expired", "URI:ptc://node/n4,DNS:ptc-node", -1);
	test_cert(dir, "ca", "outsider", "URI:ptc://node/n5,DNS:localhost,IP:127.0.0.1", 2);
	test_cert(dir, "ca", "similar",
		  "URI:ptc://node/n5,DNS:*.ptc-node,DNS:ptc-node.example,DNS:PTC-NODE,URI:DNS:ptc-node", 2);
	test_cert(dir, "ca2", "stranger", "URI:ptc://node/n1,DNS:ptc-node", 2);
	test_cert(dir, "ca", "host", "IP:127.0.0.1", 2);
	test_cert(dir, "ca", "elsewhere", "IP:127.0.0.2,DNS:example.org", 2);
	test_cert(dir, "ca", "old", "DNS:old", -1);
	test_cert(dir, "ca2", "foreigner", "DNS:foreigner", 2);
	test_sh("cd %s && mkdir false", dir); /* an authority that only calls itself by that name */
	test_sh("cd %s/false && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "
		"'/CN=ca' "
		"-keyout ../false-ca.key -out ../false-ca.crt 2>/dev/null",
		dir);
	test_cert(dir, "false-ca", "forged", "DNS:forged", 2);
	test_cert(dir, "ca", "server", "DNS:server", 2);
	test_sh("cd %s && printf 'subjectAltName=DNS:server\nextendedKeyUsage=serverAuth\n' >server.ext && openssl "
		"x509 -req -in "
		"server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile server.ext -out server.crt "
		"2>/dev/null",
		dir);
	test_sh("cd %s && echo junk | tee junk.crt >junk.key", dir);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unix_caller_is_its_uid),
		cmocka_unit_test(unix_as_node),
		cmocka_unit_test(unix_stale_live_and_other_files),
		cmocka_unit_test(unix_connections_are_bounded),
		cmocka_unit_test(tls_callers),
		cmocka_unit_test(tls_servers),
		cmocka_unit_test(tls_files_are_renewed),
		cmocka_unit_test(tls_bad_files),
		cmocka_unit_test(a_revoked_certificate_ends),
		cmocka_unit_test(an_open_channel_ends),
		cmocka_unit_test(an_answer_that_comes_late),
		cmocka_unit_test(a_call_that_waited_is_told_why),
		cmocka_unit_test(an_old_channel_looks_at_the_list),
		cmocka_unit_test(a_revoked_certificate_ends_steps),
		cmocka_unit_test(lists_that_will_not_do),
		cmocka_unit_test(probes_tell_who_is_let_in),
		cmocka_unit_test(strangers_that_prove_something),
	};
	int failed;

	if (argc == 3 && strcmp(argv[1], "--child") == 0)
		return child_main(argv[2], OTHER_UID, OTHER_GID);
	if (!realpath(argv[0], self) || !mkdtemp(dir))
		return 1;
	make_certs();
	signal(SIGPIPE, SIG_IGN);
	ptc_rpc_init();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	/* A channel whose handshake failed is taken apart by the core when its backoff ends. */
	for (int i = 0; i < 6000 && ptc_alloc_live() != 0; i++)
		usleep(10000);
	ptc_rpc_shutdown();
	ptc_sys_remove_tree(dir, NULL, NULL);
	return test_leaks(failed);
}
