/* SPDX-License-Identifier: Apache-2.0 */
/* A TLS stream as OpenSSL alone makes it: what the cipher, its records and the socket cost.
 *
 * Happy path: SSL_write from the sender's memory, SSL_read into the receiver's, records of 16 KiB.
 *
 * Failure modes: no certificate or key, a stream that broke: PTC_EIO or <= 0; no memory: PTC_ENOMEM. */
#include "tests/bench/measure.h"

#include "base/alloc.h"

#include <openssl/ssl.h>
#include <stdio.h>

struct measure_tls {
	SSL_CTX *ctx;
	SSL *ssl;
};

int measure_tls_new(const char *dir, int fd, bool server, struct measure_tls **ret, struct ptc_error *err)
{
	struct measure_tls *t = ptc_calloc(1, sizeof *t);
	char cert[256], key[256];

	if (t)
		t->ctx = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
	if (!t || !t->ctx)
		goto fail;
	snprintf(cert, sizeof cert, "%s/n0.crt", dir);
	snprintf(key, sizeof key, "%s/n0.key", dir);
	if (server && (SSL_CTX_use_certificate_chain_file(t->ctx, cert) != 1 ||
		       SSL_CTX_use_PrivateKey_file(t->ctx, key, SSL_FILETYPE_PEM) != 1)) {
		measure_tls_free(t);
		return ptc_error_set(err, PTC_EIO, "cannot use %s with %s", cert, key);
	}
	t->ssl = SSL_new(t->ctx);
	if (!t->ssl || SSL_set_fd(t->ssl, fd) != 1)
		goto fail;
	if (server)
		SSL_set_accept_state(t->ssl);
	else
		SSL_set_connect_state(t->ssl);
	*ret = t;
	return 0;
fail:
	measure_tls_free(t);
	return ptc_error_set(err, PTC_ENOMEM, "no memory for a TLS stream");
}

ssize_t measure_tls_write(struct measure_tls *t, const uint8_t *from, size_t n)
{
	size_t sent;

	return SSL_write_ex(t->ssl, from, n, &sent) == 1 ? (ssize_t)sent : -1;
}

ssize_t measure_tls_read(struct measure_tls *t, uint8_t *to, size_t n)
{
	size_t got;

	return SSL_read_ex(t->ssl, to, n, &got) == 1 ? (ssize_t)got : -1;
}

struct measure_tls *measure_tls_free(struct measure_tls *t)
{
	if (!t)
		return NULL;
	SSL_free(t->ssl);
	SSL_CTX_free(t->ctx);
	ptc_free(t);
	return NULL;
}
