/* SPDX-License-Identifier: Apache-2.0 */
/* Credentials as the C core takes them, and whose certificates count. For the
 * rooms of rpc/; nobody else includes it. */
#pragma once

#include "rpc/internal.h"
#include "rpc/trust/tls.h"

/* ---- credentials and addresses ------------------------------------------- */

struct ptc_rpc_trust;

/* "host:port" with a numeric port and no scheme. *ret_loopback: the host is this machine's loopback. */
int ptc_rpc_address_check(const char *address, bool *ret_loopback, struct ptc_error *err);
int ptc_rpc_creds_client(const struct ptc_rpc_tls *tls, const char *expect_node, grpc_channel_credentials **ret_creds,
			 struct ptc_error *err);
/* *ret_renewal: what a listener reads renewed files by; free it when the server is no more. */
struct ptc_rpc_renewal;
int ptc_rpc_creds_server(const struct ptc_rpc_tls *tls, struct ptc_rpc_renewal **ret_renewal,
			 grpc_server_credentials **ret_creds, struct ptc_error *err);
struct ptc_rpc_renewal *ptc_rpc_renewal_free(struct ptc_rpc_renewal *r); /* NULL ok */
unsigned ptc_rpc_tls_renewals(void);                                     /* how often ptc_rpc_tls_renew was called */
/* Identity of a certificate's URI names: exactly one of ours, or PTC_ROLE_NONE. */
void ptc_rpc_identity_from_uris(const char *const *uris, size_t nuris, struct ptc_rpc_identity *ret_id);
/* From a TLS call's auth context; *ret_tls tells whether the call came over TLS at all. With PTC_ROLE_NONE *ret_why
 * says what the certificate lacks. */
void ptc_rpc_identity_from_call(grpc_call *call, struct ptc_rpc_trust *trust_or_null, bool *ret_tls,
				struct ptc_rpc_identity *ret_id, const char **ret_why);
/* The peer of a call that we have made: on the list now. */
bool ptc_rpc_peer_revoked(grpc_call *call, struct ptc_rpc_trust *trust);

/* ---- trust.c: whose certificates count ------------------------------------ */

int ptc_rpc_trust_new(const struct ptc_rpc_tls *tls, struct ptc_rpc_trust **ret_trust, struct ptc_error *err);
struct ptc_rpc_trust *ptc_rpc_trust_ref(struct ptc_rpc_trust *t);
struct ptc_rpc_trust *ptc_rpc_trust_free(struct ptc_rpc_trust *t); /* counted; NULL ok */
const char *ptc_rpc_trust_member(const struct ptc_rpc_trust *t);
/* Any thread. Grows when the list of revoked certificates has been read again; cheap. */
unsigned ptc_rpc_trust_epoch(struct ptc_rpc_trust *t);
/* Any thread. Has the authority revoked this certificate? Without a list nothing is; with one, what is no certificate
 * is. */
bool ptc_rpc_trust_revoked(struct ptc_rpc_trust *t, const char *pem, size_t len);
/* The list in a file, signed by one of the authority's certificates; an X509_CRL. ret_crl NULL: only whether it will
 * do. */
int ptc_rpc_crl_read(const char *path, const char *ca_path, void **ret_crl, struct ptc_error *err);
