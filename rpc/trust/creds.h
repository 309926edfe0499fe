/* SPDX-License-Identifier: Apache-2.0 */
/* Credentials for the C core, and checks of peers' certificates. For the rooms of rpc/ only. */
#pragma once

#include "rpc/internal.h"
#include "rpc/trust/tls.h"

/* ---- credentials and addresses ------------------------------------------- */

struct ptc_rpc_trust;

/* Checks an address: "host:port" with a numeric port and no scheme. *ret_loopback: the host is this machine's loopback.
 */
int ptc_rpc_address_check(const char *address, bool *ret_loopback, struct ptc_error *err);
int ptc_rpc_creds_client(const struct ptc_rpc_tls *tls, const char *expect_node, grpc_channel_credentials **ret_creds,
			 struct ptc_error *err);
/* *ret_renewal: the state by which a listener reads renewed files. Free it after the server. */
struct ptc_rpc_renewal;
int ptc_rpc_creds_server(const struct ptc_rpc_tls *tls, struct ptc_rpc_renewal **ret_renewal,
			 grpc_server_credentials **ret_creds, struct ptc_error *err);
struct ptc_rpc_renewal *ptc_rpc_renewal_free(struct ptc_rpc_renewal *r); /* NULL ok */
unsigned ptc_rpc_tls_renewals(void);                                     /* how often ptc_rpc_tls_renew was called */
/* The identity in a TLS call's auth context. *ret_tls: the call came over TLS. With PTC_ROLE_NONE, *ret_why says what
 * the certificate lacks. */
void ptc_rpc_identity_from_call(grpc_call *call, struct ptc_rpc_trust *trust_or_null, bool *ret_tls,
				struct ptc_rpc_identity *ret_id, const char **ret_why);
/* Whether the peer of our call is on the list of revoked certificates now. */
bool ptc_rpc_peer_revoked(grpc_call *call, struct ptc_rpc_trust *trust);

/* ---- trust.c: whose certificates count ------------------------------------ */

int ptc_rpc_trust_new(const struct ptc_rpc_tls *tls, struct ptc_rpc_trust **ret_trust, struct ptc_error *err);
struct ptc_rpc_trust *ptc_rpc_trust_free(struct ptc_rpc_trust *t); /* NULL ok */
const char *ptc_rpc_trust_member(const struct ptc_rpc_trust *t);
/* A number that grows each time the list of revoked certificates has been read again. Cheap. Any thread. */
unsigned ptc_rpc_trust_epoch(struct ptc_rpc_trust *t);
/* Whether the authority has revoked this certificate. Without a list, none is revoked. With a list, bytes that are not
 * a certificate count as revoked. Any thread. */
bool ptc_rpc_trust_revoked(struct ptc_rpc_trust *t, const char *pem, size_t len);
/* Reads a list of revoked certificates, which one of the authority's certificates must have signed. *ret_crl is an
 * X509_CRL. ret_crl NULL: only checks the file. */
int ptc_rpc_crl_read(const char *path, const char *ca_path, void **ret_crl, struct ptc_error *err);
