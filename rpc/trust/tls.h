/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates: the files that a connection uses, checks of these files, and probes of servers. Functions that read
 * files or connect block. Any thread. Failure mode: a file cannot be used; err names it. */
#pragma once

#include "rpc/rpc.h"

/* Paths of PEM files. Every TCP listener and every TCP channel uses them (mutual TLS). */
struct ptc_rpc_tls {
	const char *ca_path;
	const char *cert_path;
	const char *key_path;
	const char *member;   /* DNS name in the certificates of this cluster's nodes; NULL: PTC_RPC_MEMBER */
	const char *crl_path; /* list of the certificates that the authority has revoked, read again when it changes;
				 NULL: none */
};
#define PTC_RPC_MEMBER "ptc-node"

/* Tells this process that certificate files were replaced. A listener reads them at its next connection. A channel with
 * `renews` reads them at its next call, for which it makes a new connection. Calls under way keep their connections. A
 * file that cannot be used is logged, and the old certificate stays in use. Any thread. */
void ptc_rpc_tls_renew(void);

/* Checks whether these files can be used here and now: they can be read, and the key is the certificate's. With a node,
 * also: the authority signed the certificate; the certificate allows both ends of a connection, carries the node's name
 * and the members', and is not revoked. On failure *which is the file to mend: "ca", "cert", "key" or "crl". Reads
 * files; any thread. */
int ptc_rpc_tls_check(const struct ptc_rpc_tls *tls, const char *node_or_null, const char **which,
		      struct ptc_error *err);

/* When the certificate in the file ends, or the first of those that follow it there. Unix time. */
int ptc_rpc_tls_ends(const char *cert_path, int64_t *ret_ms, struct ptc_error *err);

/* Makes one connection to HOST:PORT that asks for HTTP/2 and shows this certificate (cert_path NULL: none). Blocks. The
 * process must ignore SIGPIPE. */
enum ptc_rpc_probe {
	PTC_RPC_PROBE_SILENT,  /* no server, or no answer in time */
	PTC_RPC_PROBE_REFUSED, /* the handshake failed, or the connection ended after it */
	PTC_RPC_PROBE_LET_IN,  /* the server went on to HTTP/2 */
};
int ptc_rpc_tls_probe(const char *address, const struct ptc_rpc_tls *tls, int timeout_ms,
		      enum ptc_rpc_probe *ret_answer, struct ptc_error *err);
/* Checks whether `stranger` is a fit certificate for this test: if a server accepts it, the server accepts more than
 * members. It must have all that `own`, our certificate for that server, has, except the members' name: the authority,
 * a matching key, valid times and uses. */
int ptc_rpc_tls_check_stranger(const struct ptc_rpc_tls *stranger, const struct ptc_rpc_tls *own,
			       struct ptc_error *err);
/* Whether one authority issued both certificates, as far as their issuer names tell. */
int ptc_rpc_tls_same_issuer(const char *cert_path, const char *other_path, bool *ret_same, struct ptc_error *err);
