/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out whether a server lets a certificate in. The probe makes one connection of its own, with OpenSSL, because
 * gRPC's core tells a failed handshake from an unreachable server only by the words of its message.
 *
 * Happy path: connect, TLS handshake that offers h2, the first bytes of HTTP/2, the first byte of an answer. With
 * TLS 1.3 a server judges the client's certificate after the client's handshake is over: only that answer proves that
 * it was let in.
 *
 * Failure modes: no connection, or silence until the deadline (SILENT); an alert or an end (REFUSED); our own files
 * cannot be used (an error). */
#include "rpc/trust/creds.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
			      "\0\0\0\4\0\0\0\0"; /* and an empty SETTINGS frame, with the literal's own NUL */

static int left_ms(int64_t until_ns)
{
	int64_t left = (until_ns - ptc_sys_now_ns()) / 1000000;

	return left > 0 ? (int)left : 0;
}

static bool wait_fd(int fd, short events, int64_t until_ns)
{
	struct pollfd p = { fd, events, 0 };
	int n;

	do
		n = poll(&p, 1, left_ms(until_ns));
	while (n < 0 && errno == EINTR);
	return n > 0;
}

static int connect_one(const struct addrinfo *a, int64_t until_ns)
{
	int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), e = 0;
	socklen_t len = sizeof e;

	if (fd < 0)
		return -1;
	if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
		return fd;
	if (errno == EINPROGRESS && wait_fd(fd, POLLOUT, until_ns) &&
	    getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len) == 0 && e == 0)
		return fd;
	close(fd);
	return -1;
}

static int connect_to(const char *address, int64_t until_ns)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
	const char *colon = strrchr(address, ':');
	bool bracket = address[0] == '[';
	ptc_auto_free char *host = ptc_strndup(address + bracket, (size_t)(colon - address) - 2u * bracket);
	struct addrinfo *list = NULL;
	int fd = -1;

	if (!host || getaddrinfo(host, colon + 1, &hints, &list) != 0)
		return -1;
	for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
		fd = connect_one(a, until_ns);
	freeaddrinfo(list);
	return fd;
}

/* What OpenSSL waits for comes in time? false also where the connection has failed. */
static bool go_on(SSL *ssl, int result, int64_t until_ns)
{
	int want = SSL_get_error(ssl, result);

	return (want == SSL_ERROR_WANT_READ || want == SSL_ERROR_WANT_WRITE) &&
	       wait_fd(SSL_get_fd(ssl), want == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, until_ns);
}

static enum ptc_rpc_probe talk(SSL *ssl, int64_t until_ns)
{
	char answer[1];
	int n;

	while ((n = SSL_connect(ssl)) != 1)
		if (!go_on(ssl, n, until_ns))
			return left_ms(until_ns) ? PTC_RPC_PROBE_REFUSED : PTC_RPC_PROBE_SILENT;
	while ((n = SSL_write(ssl, preface, sizeof preface)) <= 0)
		if (!go_on(ssl, n, until_ns))
			return left_ms(until_ns) ? PTC_RPC_PROBE_REFUSED : PTC_RPC_PROBE_SILENT;
	while ((n = SSL_read(ssl, answer, sizeof answer)) <= 0)
		if (!go_on(ssl, n, until_ns))
			return left_ms(until_ns) ? PTC_RPC_PROBE_REFUSED : PTC_RPC_PROBE_SILENT;
	return PTC_RPC_PROBE_LET_IN;
}

/* The server's certificate is not looked at: what it does with ours is asked, and nothing is told to it. */
static int new_context(const struct ptc_rpc_tls *tls, SSL_CTX **ret_ctx, struct ptc_error *err)
{
	static const unsigned char h2[] = "\2h2";
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());

	if (!ctx)
		return ptc_nomem(err);
	SSL_CTX_set_verify(ctx, SSL_VERIFY_NONE, NULL);
	SSL_CTX_set_alpn_protos(ctx, h2, sizeof h2 - 1);
	if (tls->cert_path && (SSL_CTX_use_certificate_chain_file(ctx, tls->cert_path) != 1 ||
			       SSL_CTX_use_PrivateKey_file(ctx, tls->key_path, SSL_FILETYPE_PEM) != 1)) {
		SSL_CTX_free(ctx);
		ERR_clear_error();
		return ptc_error_set(err, PTC_EINVAL, "%s and %s are not a certificate and its key, in PEM format",
				     tls->cert_path, tls->key_path);
	}
	*ret_ctx = ctx;
	return 0;
}

int ptc_rpc_tls_probe(const char *address, const struct ptc_rpc_tls *tls, int timeout_ms,
		      enum ptc_rpc_probe *ret_answer, struct ptc_error *err)
{
	int64_t until_ns = ptc_sys_now_ns() + (int64_t)timeout_ms * 1000000;
	SSL_CTX *ctx = NULL;
	bool loopback;
	SSL *ssl;
	int fd, rc = ptc_rpc_address_check(address, &loopback, err);

	if (!rc)
		rc = new_context(tls, &ctx, err);
	if (rc)
		return rc;
	fd = connect_to(address, until_ns);
	ssl = SSL_new(ctx);
	*ret_answer = PTC_RPC_PROBE_SILENT;
	if (!ssl)
		rc = ptc_nomem(err);
	else if (fd >= 0 && SSL_set_fd(ssl, fd) == 1)
		*ret_answer = talk(ssl, until_ns);
	SSL_free(ssl);
	SSL_CTX_free(ctx);
	ptc_close(&fd);
	ERR_clear_error();
	return rc;
}
