/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses, mutual TLS, and the identity of a certificate's holder.
 *
 * Happy path: PEM files are read when a listener or channel begins, and again after ptc_rpc_tls_renew (tls.h). gRPC's
 * core verifies the chain against the CA in both directions. After the handshake the client checks the name
 * (expect_node, see client.h) in our verifier. For each call the server reads the caller's name from the URI names of
 * the certificate.
 *
 * Failure modes: unreadable PEM (PTC_EIO, PTC_ENOTFOUND); a certificate with
 * no name of ours, or with two, is PTC_ROLE_NONE on a server and refused by a
 * client that expects a node; so are a node's without the members' DNS name
 * and a revoked one (trust.c). A key that does not fit its certificate shows at
 * listen time on a server and at the first call on a client. */
#include "rpc/trust/creds.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <grpc/support/string_util.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define URI_NODE  "ptc://node/"
#define URI_ADMIN "ptc://admin/"
#define URI_OURS  "ptc://"
#define MAX_URIS  16 /* names of ours are 1; others may stand beside */

/* ---- addresses ------------------------------------------------------------ */

static bool host_is_loopback(const char *host, size_t len)
{
	static const char *const names[] = { "localhost", "[::1]" };
	unsigned a, b, c, d;
	char text[PTC_RPC_ADDRESS_MAX];
	int used = 0;

	for (size_t i = 0; i < PTC_ARRAY_LEN(names); i++)
		if (len == strlen(names[i]) && strncmp(host, names[i], len) == 0)
			return true;
	snprintf(text, sizeof text, "%.*s", (int)len, host);
	return sscanf(text, "%3u.%3u.%3u.%3u%n", &a, &b, &c, &d, &used) == 4 && text[used] == '\0' && a == 127 &&
	       b < 256 && c < 256 && d < 256;
}

int ptc_rpc_address_check(const char *address, bool *ret_loopback, struct ptc_error *err)
{
	const char *colon = strrchr(address, ':');
	size_t len = strlen(address);
	char *end = NULL;
	long port = -1;

	if (len >= PTC_RPC_ADDRESS_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "address longer than %d bytes", PTC_RPC_ADDRESS_MAX - 1);
	if (colon && colon != address && colon[1] >= '0' && colon[1] <= '9')
		port = strtol(colon + 1, &end, 10);
	if (port < 0 || port > 65535 || *end != '\0' || strchr(address, '/') || strncmp(address, "unix", 4) == 0)
		return ptc_error_set(err, PTC_EINVAL, "address \"%s\" is not HOST:PORT", address);
	if (memchr(address, ':', (size_t)(colon - address)) && (address[0] != '[' || colon[-1] != ']'))
		return ptc_error_set(err, PTC_EINVAL, "address \"%s\": write an IPv6 host as [HOST]:PORT", address);
	*ret_loopback = host_is_loopback(address, (size_t)(colon - address));
	return 0;
}

/* ---- names in certificates -------------------------------------------------- */

static bool name_ok(const char *name)
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");

	return n > 0 && n <= PTC_NAME_MAX && name[n] == '\0';
}

static enum ptc_role uri_role(const char *uri, const char **ret_name)
{
	enum ptc_role role = PTC_ROLE_NONE;
	const char *name = "";

	if (strncmp(uri, URI_NODE, strlen(URI_NODE)) == 0) {
		role = PTC_ROLE_NODE;
		name = uri + strlen(URI_NODE);
	} else if (strncmp(uri, URI_ADMIN, strlen(URI_ADMIN)) == 0) {
		role = PTC_ROLE_ADMIN;
		name = uri + strlen(URI_ADMIN);
	}
	if (!name_ok(name))
		return PTC_ROLE_NONE;
	*ret_name = name;
	return role;
}

/* The identity in a certificate's URI names. There must be exactly one name of ours; otherwise PTC_ROLE_NONE. */
static void identity_from_uris(const char *const *uris, size_t nuris, struct ptc_rpc_identity *ret_id)
{
	struct ptc_rpc_identity id = { .role = PTC_ROLE_NONE };
	size_t ours = 0;

	for (size_t i = 0; i < nuris; i++) {
		const char *name = "";

		if (strncmp(uris[i], URI_OURS, strlen(URI_OURS)) != 0)
			continue;
		ours++;
		id.role = uri_role(uris[i], &name);
		snprintf(id.name, sizeof id.name, "%s", name);
	}
	if (ours != 1 || id.role == PTC_ROLE_NONE)
		id = (struct ptc_rpc_identity){ .role = PTC_ROLE_NONE };
	*ret_id = id;
}

static bool is_tls(const grpc_auth_context *ctx)
{
	grpc_auth_property_iterator it =
		grpc_auth_context_find_properties_by_name(ctx, GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
	const grpc_auth_property *p = grpc_auth_property_iterator_next(&it);

	return p && (strcmp(p->value, GRPC_SSL_TRANSPORT_SECURITY_TYPE) == 0 ||
		     strcmp(p->value, GRPC_TLS_TRANSPORT_SECURITY_TYPE) == 0);
}

static void identity_from_context(const grpc_auth_context *ctx, struct ptc_rpc_identity *ret_id)
{
	grpc_auth_property_iterator it = grpc_auth_context_find_properties_by_name(ctx, GRPC_PEER_URI_PROPERTY_NAME);
	const char *uris[MAX_URIS];
	const grpc_auth_property *p;
	size_t n = 0;
	bool odd = false;

	while ((p = grpc_auth_property_iterator_next(&it)) != NULL) {
		odd |= n == MAX_URIS || strlen(p->value) != p->value_length;
		if (n < MAX_URIS)
			uris[n++] = p->value;
	}
	if (!odd)
		identity_from_uris(uris, n, ret_id);
}

static bool is_member(const grpc_auth_context *ctx, const struct ptc_rpc_trust *trust)
{
	grpc_auth_property_iterator it = grpc_auth_context_find_properties_by_name(ctx, GRPC_PEER_DNS_PROPERTY_NAME);
	const char *want = ptc_rpc_trust_member(trust);
	const grpc_auth_property *p;

	while ((p = grpc_auth_property_iterator_next(&it)) != NULL)
		if (p->value_length == strlen(want) && memcmp(p->value, want, p->value_length) == 0)
			return true;
	return false;
}

static bool is_revoked(const grpc_auth_context *ctx, struct ptc_rpc_trust *trust)
{
	grpc_auth_property_iterator it =
		grpc_auth_context_find_properties_by_name(ctx, GRPC_X509_PEM_CERT_PROPERTY_NAME);
	const grpc_auth_property *p = grpc_auth_property_iterator_next(&it);

	return ptc_rpc_trust_revoked(trust, p ? p->value : NULL, p ? p->value_length : 0);
}

void ptc_rpc_identity_from_call(grpc_call *call, struct ptc_rpc_trust *trust_or_null, bool *ret_tls,
				struct ptc_rpc_identity *ret_id, const char **ret_why)
{
	grpc_auth_context *ctx = grpc_call_auth_context(call);
	struct ptc_rpc_identity id = { .role = PTC_ROLE_NONE };

	*ret_why = "its certificate names no ptc node or admin";
	*ret_tls = ctx && is_tls(ctx) && trust_or_null;
	if (*ret_tls)
		identity_from_context(ctx, &id);
	if (id.role == PTC_ROLE_NODE && !is_member(ctx, trust_or_null)) {
		*ret_why =
			"its certificate names a node, but lacks the DNS name of this cluster's members (tls.member)";
		id.role = PTC_ROLE_NONE;
	}
	if (id.role != PTC_ROLE_NONE && is_revoked(ctx, trust_or_null)) {
		*ret_why = "its certificate is revoked (tls.crl)";
		id.role = PTC_ROLE_NONE;
	}
	*ret_id = id.role == PTC_ROLE_NONE ? (struct ptc_rpc_identity){ .role = PTC_ROLE_NONE } : id;
	if (ctx)
		grpc_auth_context_release(ctx);
}

bool ptc_rpc_peer_revoked(grpc_call *call, struct ptc_rpc_trust *trust)
{
	grpc_auth_context *ctx = grpc_call_auth_context(call);
	bool revoked = ctx && is_tls(ctx) && is_revoked(ctx, trust); /* not connected yet: the connection is verified */

	if (ctx)
		grpc_auth_context_release(ctx);
	return revoked;
}

/* ---- what a client accepts --------------------------------------------------- */

struct verifier {
	grpc_tls_certificate_verifier_external external;
	grpc_tls_certificate_verifier *host_name; /* the core's own host name check */
	struct ptc_rpc_trust *trust;
	char expect_node[PTC_NAME_MAX + 1]; /* "": any node, or a matching host name */
};

/* What a node's certificate lacks to be taken for a member's; NULL: nothing. */
static const char *lacks(const struct verifier *v, const grpc_tls_custom_verification_check_request *request)
{
	const char *want = ptc_rpc_trust_member(v->trust), *pem = request->peer_info.peer_cert;
	bool member = false;

	for (size_t i = 0; i < request->peer_info.san_names.dns_names_size; i++)
		member = member || strcmp(request->peer_info.san_names.dns_names[i], want) == 0;
	if (!member)
		return "lacks the DNS name of this cluster's members";
	return ptc_rpc_trust_revoked(v->trust, pem, pem ? strlen(pem) : 0) ? "is revoked" : NULL;
}

static int verify(void *user_data, grpc_tls_custom_verification_check_request *request,
		  grpc_tls_on_custom_verification_check_done_cb callback, void *callback_arg,
		  grpc_status_code *sync_status, char **sync_error_details)
{
	struct verifier *v = user_data;
	struct ptc_rpc_identity id;
	const char *why = NULL;
	char text[256];

	identity_from_uris((const char *const *)request->peer_info.san_names.uri_names,
			   request->peer_info.san_names.uri_names_size, &id);
	*sync_status = GRPC_STATUS_OK;
	if (id.role == PTC_ROLE_NODE && (!*v->expect_node || strcmp(id.name, v->expect_node) == 0)) {
		why = lacks(v, request);
		if (!why)
			return 1;
	}
	if (!*v->expect_node && id.role == PTC_ROLE_NONE)
		return grpc_tls_certificate_verifier_verify(v->host_name, request, callback, callback_arg, sync_status,
							    sync_error_details);
	if (why)
		snprintf(text, sizeof text, "its certificate, of node %s, %s (%s)", id.name, why,
			 ptc_rpc_trust_member(v->trust));
	else
		snprintf(text, sizeof text, "its certificate is for %s%s%s, expected %s%s",
			 id.role == PTC_ROLE_NODE    ? "node "
			 : id.role == PTC_ROLE_ADMIN ? "admin "
						     : "no ptc node",
			 id.name, "", *v->expect_node ? "node " : "a node", v->expect_node);
	*sync_status = GRPC_STATUS_UNAUTHENTICATED;
	*sync_error_details = gpr_strdup(text);
	return 1;
}

static void verify_cancel(void *user_data, grpc_tls_custom_verification_check_request *request)
{
	(void)user_data; /* verify() always answers at once: nothing is ever under way */
	(void)request;
}

static void verify_free(void *user_data)
{
	struct verifier *v = user_data;

	grpc_tls_certificate_verifier_release(v->host_name);
	ptc_rpc_trust_free(v->trust);
	ptc_free(v);
}

static int verifier_new(const struct ptc_rpc_tls *tls, const char *expect_node, grpc_tls_certificate_verifier **ret,
			struct ptc_error *err)
{
	struct verifier *v;
	int rc;

	if (expect_node && !name_ok(expect_node))
		return ptc_error_set(err, PTC_EINVAL, "\"%s\" is not a node name", expect_node);
	v = ptc_calloc(1, sizeof *v);
	if (!v)
		return ptc_nomem(err);
	rc = ptc_rpc_trust_new(tls, &v->trust, err);
	if (rc) {
		ptc_free(v);
		return rc;
	}
	if (expect_node)
		snprintf(v->expect_node, sizeof v->expect_node, "%s", expect_node);
	v->host_name = grpc_tls_certificate_verifier_host_name_create();
	v->external = (grpc_tls_certificate_verifier_external){
		.user_data = v, .verify = verify, .cancel = verify_cancel, .destruct = verify_free
	};
	*ret = grpc_tls_certificate_verifier_external_create(&v->external);
	return 0;
}

/* ---- credentials ---------------------------------------------------------------- */

struct pem {
	char *ca, *cert, *key;
};

static void pem_done(struct pem *pem)
{
	if (pem->key)
		explicit_bzero(pem->key, strlen(pem->key));
	ptc_free(pem->ca);
	ptc_free(pem->cert);
	ptc_free(pem->key);
}

static int pem_read(const char *path, const char *what, char **ret_text, struct ptc_error *err)
{
	size_t len;
	int rc;

	if (!path)
		return ptc_error_set(err, PTC_EINVAL, "TLS needs a %s", what);
	rc = ptc_sys_read_file(path, PTC_RPC_PEM_MAX, ret_text, &len, err);
	if (rc)
		return rc;
	if (!*ret_text || !strstr(*ret_text, "-----BEGIN "))
		return ptc_error_set(err, PTC_EINVAL, "%s: not a PEM file (%s)", path, what);
	return 0;
}

static int pem_load(const struct ptc_rpc_tls *tls, struct pem *ret_pem, struct ptc_error *err)
{
	struct pem pem = { NULL, NULL, NULL };
	int rc = pem_read(tls->ca_path, "CA certificate", &pem.ca, err);

	if (!rc)
		rc = pem_read(tls->cert_path, "certificate", &pem.cert, err);
	if (!rc)
		rc = pem_read(tls->key_path, "private key", &pem.key, err);
	if (rc)
		pem_done(&pem);
	else
		*ret_pem = pem;
	return rc;
}

int ptc_rpc_creds_client(const struct ptc_rpc_tls *tls, const char *expect_node, grpc_channel_credentials **ret_creds,
			 struct ptc_error *err)
{
	grpc_tls_certificate_verifier *verifier = NULL;
	grpc_tls_certificate_provider *provider;
	grpc_tls_credentials_options *options;
	grpc_tls_identity_pairs *pairs;
	struct pem pem;
	int rc = pem_load(tls, &pem, err);

	if (rc)
		return rc;
	rc = verifier_new(tls, expect_node, &verifier, err);
	if (rc) {
		pem_done(&pem);
		return rc;
	}
	pairs = grpc_tls_identity_pairs_create();
	grpc_tls_identity_pairs_add_pair(pairs, pem.key, pem.cert);
	provider = grpc_tls_certificate_provider_static_data_create(pem.ca, pairs);
	options = grpc_tls_credentials_options_create();
	grpc_tls_credentials_options_set_certificate_provider(options, provider);
	grpc_tls_credentials_options_watch_root_certs(options);
	grpc_tls_credentials_options_watch_identity_key_cert_pairs(options);
	grpc_tls_credentials_options_set_verify_server_cert(options, 1);
	/* Names are checked by the verifier at the handshake, not per call by host. */
	grpc_tls_credentials_options_set_check_call_host(options, 0);
	grpc_tls_credentials_options_set_certificate_verifier(options, verifier);
	*ret_creds = grpc_tls_credentials_create(options);
	grpc_tls_certificate_provider_release(provider);
	grpc_tls_certificate_verifier_release(verifier);
	pem_done(&pem);
	return 0;
}

/* ---- renewed files ------------------------------------------------------------- */

static atomic_uint renewals;

void ptc_rpc_tls_renew(void)
{
	atomic_fetch_add(&renewals, 1);
}

unsigned ptc_rpc_tls_renewals(void)
{
	return atomic_load(&renewals);
}

struct ptc_rpc_renewal {
	struct ptc_rpc_renewal *next; /* of the same server */
	char *ca, *cert, *key;        /* paths */
	bool first;
	unsigned seen; /* the core's lock is held while it asks */
};

struct ptc_rpc_renewal *ptc_rpc_renewal_free(struct ptc_rpc_renewal *r)
{
	while (r) {
		struct ptc_rpc_renewal *next = r->next;

		ptc_free(r->ca);
		ptc_free(r->cert);
		ptc_free(r->key);
		ptc_free(r);
		r = next;
	}
	return NULL;
}

/* Asked by the core at each connection. */
static grpc_ssl_certificate_config_reload_status fetch(void *user_data, grpc_ssl_server_certificate_config **ret_config)
{
	struct ptc_rpc_renewal *r = user_data;
	const struct ptc_rpc_tls tls = { .ca_path = r->ca, .cert_path = r->cert, .key_path = r->key };
	const unsigned now = ptc_rpc_tls_renewals();
	struct ptc_error err = PTC_ERROR_INIT;
	grpc_ssl_pem_key_cert_pair pair;
	struct pem pem;

	if (!r->first && r->seen == now)
		return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
	r->first = false;
	r->seen = now;
	if (pem_load(&tls, &pem, &err) != 0) {
		ptc_error_log("rpc", "cannot read the new certificate, so connections keep the old one: %s", err.text);
		return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
	}
	pair = (grpc_ssl_pem_key_cert_pair){ .private_key = pem.key, .cert_chain = pem.cert };
	*ret_config = grpc_ssl_server_certificate_config_create(pem.ca, &pair, 1);
	pem_done(&pem);
	return *ret_config ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
}

int ptc_rpc_creds_server(const struct ptc_rpc_tls *tls, struct ptc_rpc_renewal **ret_renewal,
			 grpc_server_credentials **ret_creds, struct ptc_error *err)
{
	struct ptc_rpc_renewal *r;
	struct pem pem;
	int rc = pem_load(tls, &pem, err); /* for its error: the core reads them when it listens */

	if (rc)
		return rc;
	pem_done(&pem);
	r = ptc_calloc(1, sizeof *r);
	if (r) {
		r->ca = ptc_strdup(tls->ca_path);
		r->cert = ptc_strdup(tls->cert_path);
		r->key = ptc_strdup(tls->key_path);
		r->first = true;
	}
	if (!r || !r->ca || !r->cert || !r->key) {
		ptc_rpc_renewal_free(r);
		return ptc_nomem(err);
	}
	*ret_creds = grpc_ssl_server_credentials_create_with_options(
		grpc_ssl_server_credentials_create_options_using_config_fetcher(
			GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, fetch, r));
	r->next = *ret_renewal;
	*ret_renewal = r;
	return 0;
}
