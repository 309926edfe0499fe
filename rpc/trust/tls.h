/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates: which files a connection uses, whether they will do, and what
 * a server at an address makes of them. Functions that read files or connect
 * block; any thread. Failure modes: a file that cannot be used (named in err). */
#pragma once

#include "rpc/rpc.h"

/* PEM files; every TCP listener and every TCP channel uses them (mutual TLS). */
struct ptc_rpc_tls {
	const char *ca_path;
	const char *cert_path;
	const char *key_path;
	const char *member;   /* DNS name that certificates of this cluster's nodes carry; NULL: PTC_RPC_MEMBER */
	const char *crl_path; /* certificates that the authority has revoked; read again when it changes; NULL: none */
};
#define PTC_RPC_MEMBER "ptc-node"

/* The files of certificates have been replaced: listeners read them at their next connection, channels that renew at
 * their next call, for which they make a connection; calls under way go on where they are. What cannot be used is
 * logged, and the old stays. Any thread. */
void ptc_rpc_tls_renew(void);

/* Would these files do, now and here: can they be read, is the key the certificate's; and, with a node, has this
 * authority signed it, does it allow both ends of a connection, does it carry that node's name and the members', is it
 * not revoked? Any thread; reads files. On failure *which is the one to mend: "ca", "cert", "key" or "crl". */
int ptc_rpc_tls_check(const struct ptc_rpc_tls *tls, const char *node_or_null, const char **which,
		      struct ptc_error *err);

/* One connection to HOST:PORT that says it wants HTTP/2 and shows this certificate (cert_path NULL: none). Blocking;
 * the process ignores SIGPIPE. */
enum ptc_rpc_probe {
	PTC_RPC_PROBE_SILENT,  /* nobody there, or no answer in time */
	PTC_RPC_PROBE_REFUSED, /* the handshake failed, or the connection ended after it */
	PTC_RPC_PROBE_LET_IN,  /* the server went on to HTTP/2 */
};
int ptc_rpc_tls_probe(const char *address, const struct ptc_rpc_tls *tls, int timeout_ms,
		      enum ptc_rpc_probe *ret_answer, struct ptc_error *err);
/* Would a server that lets in `stranger` let in more than members? It is one who has all that `own`, shown to that
 * server by us, has, but for the members' name: the authority, a key, time and uses that fit. */
int ptc_rpc_tls_check_stranger(const struct ptc_rpc_tls *stranger, const struct ptc_rpc_tls *own,
			       struct ptc_error *err);
/* Were these two certificates issued in one name (by one authority, as far as that can be told)? */
int ptc_rpc_tls_same_issuer(const char *cert_path, const char *other_path, bool *ret_same, struct ptc_error *err);
