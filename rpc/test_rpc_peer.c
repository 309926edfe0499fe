/* SPDX-License-Identifier: Apache-2.0 */
/* A small peer for tests, in a process of its own.
 *   rpc_peer serve DIR KEEPALIVE_MS   listens with TLS (DIR/ca.crt, n1.crt, n1.key), plain on loopback and on
 *                                     DIR/peer.sock; prints "TLS-PORT PLAIN-PORT"; ends when stdin does
 *   rpc_peer pull TARGET              opens an endless stream, reads one message, prints "1", then sleeps */
#include "base/alloc.h"
#include "base/sys/sys.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROLES ((1u << PTC_ROLE_USER) | (1u << PTC_ROLE_NODE) | (1u << PTC_ROLE_ADMIN))

static char block[1 << 20];

static int send_bytes(struct ptc_rpc_call *call, const void *data, size_t len, struct ptc_error *err)
{
	struct ptc_rpc_part p = { .data = data, .len = len };

	return ptc_rpc_call_send(call, &p, 1, err);
}

/* Every message back as it comes: unary and bidi. */
static int h_echo(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	int rc;

	while ((rc = ptc_rpc_call_recv(call, &m, err)) == 0 && m) {
		size_t len = ptc_rpc_message_len(m);
		char *copy = ptc_malloc(len + 1);

		ptc_rpc_message_read(m, copy, len);
		rc = send_bytes(call, copy, len, err);
		ptc_free(copy);
		if (rc)
			break;
	}
	return rc;
}

static int h_who(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	const struct ptc_rpc_identity *id = ptc_rpc_call_identity(call);
	const char *note = ptc_rpc_call_meta(call, "note");
	char text[256];
	int n = snprintf(text, sizeof text, "%d %u %s %s", id->role, id->uid, id->name, note ? note : "-");

	return send_bytes(call, text, (size_t)n, err);
}

static int h_fail(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENODEVICES, "8 devices asked for, 4 known: \xc3\xa4");
}

static int h_endless(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	int rc = 0;

	while (!rc)
		rc = send_bytes(call, block, sizeof block, err);
	return rc;
}

static int fail(const struct ptc_error *err)
{
	fprintf(stderr, "rpc_peer: %s\n", err->text);
	return 1;
}

static int serve(const char *dir, int keepalive_ms)
{
	static const struct {
		const char *name;
		ptc_rpc_handler_fn fn;
	} methods[] = {
		{ "/t.T/Echo", h_echo }, { "/t.T/Who", h_who }, { "/t.T/Fail", h_fail }, { "/t.T/Endless", h_endless }
	};
	struct ptc_rpc_server_opts so = { .max_calls = 8, .max_message_bytes = 1u << 20, .keepalive_ms = keepalive_ms };
	char ca[256], crt[256], key[256], sock[256];
	struct ptc_rpc_tls tls = { .ca_path = ca, .cert_path = crt, .key_path = key };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_server *srv;
	int port[2], rc;

	snprintf(ca, sizeof ca, "%s/ca.crt", dir);
	snprintf(crt, sizeof crt, "%s/n1.crt", dir);
	snprintf(key, sizeof key, "%s/n1.key", dir);
	snprintf(sock, sizeof sock, "%s/peer.sock", dir);
	rc = ptc_rpc_server_new(&so, &srv, &err);
	if (rc)
		return fail(&err);
	for (size_t i = 0; i < sizeof methods / sizeof methods[0] && !rc; i++)
		rc = ptc_rpc_server_method(srv, methods[i].name, ROLES, methods[i].fn, NULL, &err);
	if (rc || ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", &tls, &port[0], &err) ||
	    ptc_rpc_server_listen_insecure(srv, "127.0.0.1:0", &port[1], &err) ||
	    ptc_rpc_server_listen_unix(srv, sock, 0600, false, &err) || ptc_rpc_server_start(srv, &err))
		return fail(&err);
	ptc_rpc_server_serving(srv, true);
	printf("%d %d\n", port[0], port[1]);
	fflush(stdout);
	while (getchar() != EOF)
		;
	ptc_rpc_server_free(srv, 100);
	return 0;
}

static int pull(const char *target)
{
	struct ptc_rpc_channel_opts co = { .target = target, .insecure = true };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_channel *ch;
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m;

	if (ptc_rpc_channel_new(&co, &ch, &err) || ptc_rpc_stream_open(ch, "/t.T/Endless", 0, NULL, 0, &s, &err) ||
	    ptc_rpc_stream_recv(s, &m, &err))
		return fail(&err);
	printf("1\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
	ptc_rpc_stream_free(s);
	ptc_rpc_channel_free(ch);
	return 0;
}

int main(int argc, char **argv)
{
	int rc = 2;

	ptc_rpc_init();
	if (argc == 4 && strcmp(argv[1], "serve") == 0)
		rc = serve(argv[2], atoi(argv[3]));
	else if (argc == 3 && strcmp(argv[1], "pull") == 0)
		rc = pull(argv[2]);
	ptc_rpc_shutdown();
	return rc;
}
