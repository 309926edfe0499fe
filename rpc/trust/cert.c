/* SPDX-License-Identifier: Apache-2.0 */
/* Checks certificate files before anything listens or connects with them: at a handshake, the same mistakes would only
 * show as a closed connection and a number. Only this file, trust.c and probe.c look into certificates with OpenSSL.
 * Happy path: the three files are read, and the key belongs to the certificate. The authority has signed the
 * certificate, the certificate's time and uses fit, it has the node's name and the members' name, and it is not
 * revoked. Failure modes: the first of these that does not hold; the message says what to do about it. */
#include "rpc/trust/creds.h"

#include "base/check.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct files {
	X509 *cert;
	STACK_OF(X509) * chain; /* what follows it in its file: intermediate authorities */
	EVP_PKEY *key;
	X509_STORE *ca;
};

static void files_done(struct files *f)
{
	X509_free(f->cert);
	sk_X509_pop_free(f->chain, X509_free);
	EVP_PKEY_free(f->key);
	X509_STORE_free(f->ca);
	ERR_clear_error();
}

/* Nobody is there to type one. */
static int no_password(char *buf, int size, int writing, void *arg)
{
	(void)buf, (void)size, (void)writing, (void)arg;
	return 0;
}

/* A pipe without a writer would hold us for ever. */
static int open_file(const char *path, FILE **ret_file, struct ptc_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	*ret_file = NULL;
	if (fd < 0)
		return ptc_error_errno(err, errno, "cannot read %s", path);
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
		close(fd);
		return ptc_error_set(err, PTC_EINVAL, "%s is not a file", path);
	}
	*ret_file = fdopen(fd, "r");
	if (*ret_file)
		return 0;
	close(fd);
	return ptc_nomem(err);
}

static int read_cert(const char *path, struct files *f, struct ptc_error *err)
{
	ptc_auto_fclose FILE *file = NULL;
	int rc = open_file(path, &file, err);
	X509 *next;

	if (rc)
		return rc;
	f->cert = PEM_read_X509(file, NULL, no_password, NULL);
	f->chain = sk_X509_new_null();
	if (!f->cert || !f->chain)
		return ptc_error_set(err, PTC_EINVAL, "%s holds no certificate in PEM format", path);
	ERR_clear_error();
	while ((next = PEM_read_X509(file, NULL, no_password, NULL)))
		if (!sk_X509_push(f->chain, next))
			X509_free(next);
	if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
		return ptc_error_set(err, PTC_EINVAL, "%s holds a certificate that cannot be read after its first %d",
				     path, 1 + sk_X509_num(f->chain));
	return 0;
}

static int read_key(const char *path, struct files *f, struct ptc_error *err)
{
	ptc_auto_fclose FILE *file = NULL;
	int rc = open_file(path, &file, err);

	if (rc)
		return rc;
	f->key = PEM_read_PrivateKey(file, NULL, no_password, NULL);
	if (!f->key)
		return ptc_error_set(err, PTC_EINVAL, "%s holds no private key in PEM format, or one with a password",
				     path);
	return 0;
}

static int read_ca(const char *path, struct files *f, struct ptc_error *err)
{
	ptc_auto_fclose FILE *file = NULL;
	int rc = open_file(path, &file, err);

	if (rc)
		return rc;
	f->ca = X509_STORE_new();
	if (!f->ca || X509_STORE_load_locations(f->ca, path, NULL) != 1)
		return ptc_error_set(err, PTC_EINVAL, "%s holds no certificate in PEM format", path);
	return 0;
}

static int check_time(X509 *cert, const char *path, struct ptc_error *err)
{
	int why = X509_cmp_current_time(X509_get0_notBefore(cert)) > 0  ? X509_V_ERR_CERT_NOT_YET_VALID
		  : X509_cmp_current_time(X509_get0_notAfter(cert)) < 0 ? X509_V_ERR_CERT_HAS_EXPIRED
									: X509_V_OK;

	if (why == X509_V_OK)
		return 0;
	return ptc_error_set(err, PTC_EINVAL, "%s: %s; have it signed anew", path, X509_verify_cert_error_string(why));
}

static int check_signature(const struct files *f, const struct ptc_rpc_tls *tls, struct ptc_error *err)
{
	X509_STORE_CTX *ctx = X509_STORE_CTX_new();
	int why = X509_V_ERR_OUT_OF_MEM;

	if (ctx && X509_STORE_CTX_init(ctx, f->ca, f->cert, f->chain) == 1)
		why = X509_verify_cert(ctx) == 1 ? X509_V_OK : X509_STORE_CTX_get_error(ctx);
	X509_STORE_CTX_free(ctx);
	if (why == X509_V_OK)
		return 0;
	return ptc_error_set(err, PTC_EINVAL, "%s against %s: %s; have it signed anew, or give the right authority",
			     tls->cert_path, tls->ca_path, X509_verify_cert_error_string(why));
}

static int check_uses(X509 *cert, const char *path, struct ptc_error *err)
{
	if (X509_check_purpose(cert, X509_PURPOSE_SSL_SERVER, 0) == 1 &&
	    X509_check_purpose(cert, X509_PURPOSE_SSL_CLIENT, 0) == 1)
		return 0;
	return ptc_error_set(err, PTC_EINVAL,
			     "%s may not be used as both server and client; give it the extended key usages serverAuth "
			     "and clientAuth",
			     path);
}

/* How many names of ours it has, and one for a message; found: the one that is wanted is among them. */
static int names_of(X509 *cert, const char *want, bool *found, char *others, size_t size)
{
	GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
	int ours = 0;

	*found = false;
	others[0] = '\0';
	for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
		const GENERAL_NAME *n = sk_GENERAL_NAME_value(names, i);
		const char *uri;
		int len;

		if (n->type != GEN_URI)
			continue;
		uri = (const char *)ASN1_STRING_get0_data(n->d.uniformResourceIdentifier);
		len = ASN1_STRING_length(n->d.uniformResourceIdentifier);
		*found = *found || (len == (int)strlen(want) && memcmp(uri, want, (size_t)len) == 0);
		if (len < 6 || memcmp(uri, "ptc://", 6) != 0)
			continue;
		snprintf(others, size, "%.*s", len, uri);
		ours++;
	}
	GENERAL_NAMES_free(names);
	return ours;
}

static bool has_dns(X509 *cert, const char *want)
{
	GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
	bool found = false;

	for (int i = 0; i < sk_GENERAL_NAME_num(names) && !found; i++) {
		const GENERAL_NAME *n = sk_GENERAL_NAME_value(names, i);

		found = n->type == GEN_DNS && ASN1_STRING_length(n->d.dNSName) == (int)strlen(want) &&
			memcmp(ASN1_STRING_get0_data(n->d.dNSName), want, strlen(want)) == 0;
	}
	GENERAL_NAMES_free(names);
	return found;
}

static int check_member(X509 *cert, const struct ptc_rpc_tls *tls, const char *node, struct ptc_error *err)
{
	const char *member = tls->member ? tls->member : PTC_RPC_MEMBER;

	if (has_dns(cert, member))
		return 0;
	return ptc_error_set(
		err, PTC_EINVAL,
		"%s lacks the DNS name %s, by which nodes of this cluster are known; have it signed anew with "
		"subjectAltName=URI:ptc://node/%s,DNS:%s",
		tls->cert_path, member, node, member);
}

static int check_revoked(X509 *cert, const struct ptc_rpc_tls *tls, struct ptc_error *err)
{
	X509_REVOKED *entry;
	void *crl;
	bool revoked;
	int rc = ptc_rpc_crl_read(tls->crl_path, tls->ca_path, &crl, err);

	if (rc)
		return rc;
	revoked = X509_CRL_get0_by_cert(crl, &entry, cert) == 1;
	X509_CRL_free(crl);
	return revoked ? ptc_error_set(err, PTC_EINVAL, "%s is revoked by %s; have a new one signed", tls->cert_path,
				       tls->crl_path)
		       : 0;
}

static int check_name(X509 *cert, const char *path, const char *node, struct ptc_error *err)
{
	char want[128], others[128];
	bool found;
	int n;

	snprintf(want, sizeof want, "ptc://node/%s", node);
	n = names_of(cert, want, &found, others, sizeof others);
	if (found && n == 1)
		return 0;
	if (n > 1) /* to others it would be nobody */
		return ptc_error_set(err, PTC_EINVAL, "%s carries %d names of ptc's; it must carry %s alone", path, n,
				     want);
	return ptc_error_set(err, PTC_EINVAL, "%s carries %s as its URI name; this node's must be %s", path,
			     others[0] ? others : "no name of ptc's", want);
}

int ptc_rpc_tls_check(const struct ptc_rpc_tls *tls, const char *node_or_null, const char **which,
		      struct ptc_error *err)
{
	struct files f = { 0 };
	int rc;

	*which = "ca";
	rc = read_ca(tls->ca_path, &f, err);
	if (rc == 0) {
		*which = "cert";
		rc = read_cert(tls->cert_path, &f, err);
	}
	if (rc == 0) {
		*which = "key";
		rc = read_key(tls->key_path, &f, err);
	}
	if (rc == 0 && X509_check_private_key(f.cert, f.key) != 1)
		rc = ptc_error_set(err, PTC_EINVAL, "%s is not the key of %s", tls->key_path, tls->cert_path);
	if (rc == 0 && !node_or_null) {
		*which = "cert";
		rc = check_time(f.cert, tls->cert_path, err);
	}
	if (rc == 0 && node_or_null) { /* elsewhere another authority may judge us than the one by which we judge */
		*which = "cert";
		rc = check_signature(&f, tls, err);
		if (rc == 0)
			rc = check_uses(f.cert, tls->cert_path, err);
		if (rc == 0)
			rc = check_name(f.cert, tls->cert_path, node_or_null, err);
		if (rc == 0)
			rc = check_member(f.cert, tls, node_or_null, err);
	}
	if (rc == 0 && tls->crl_path) {
		*which = "crl";
		rc = check_revoked(f.cert, tls, err);
	}
	files_done(&f);
	return rc;
}

int ptc_rpc_tls_ends(const char *cert_path, int64_t *ret_ms, struct ptc_error *err)
{
	struct files f = { 0 };
	int rc = read_cert(cert_path, &f, err);
	int64_t ends = INT64_MAX;

	for (int i = -1; rc == 0 && i < sk_X509_num(f.chain); i++) {
		struct tm tm;

		if (ASN1_TIME_to_tm(X509_get0_notAfter(i < 0 ? f.cert : sk_X509_value(f.chain, i)), &tm) == 1)
			ends = PTC_MIN(ends, (int64_t)timegm(&tm) * 1000);
		else
			rc = ptc_error_set(err, PTC_EINVAL, "%s: its end is not a time", cert_path);
	}
	files_done(&f);
	if (rc == 0)
		*ret_ms = ends;
	return rc;
}

int ptc_rpc_tls_same_issuer(const char *cert_path, const char *other_path, bool *ret_same, struct ptc_error *err)
{
	struct files one = { 0 }, other = { 0 };
	int rc = read_cert(cert_path, &one, err);

	if (rc == 0)
		rc = read_cert(other_path, &other, err);
	if (rc == 0)
		*ret_same = X509_NAME_cmp(X509_get_issuer_name(one.cert), X509_get_issuer_name(other.cert)) == 0;
	files_done(&one);
	files_done(&other);
	return rc;
}

static int check_strange(const struct files *f, const struct ptc_rpc_tls *stranger, const struct ptc_rpc_tls *own,
			 struct ptc_error *err)
{
	const char *member = own->member ? own->member : PTC_RPC_MEMBER;

	if (X509_check_private_key(f->cert, f->key) != 1)
		return ptc_error_set(err, PTC_EINVAL, "%s is not the key of %s", stranger->key_path,
				     stranger->cert_path);
	if (has_dns(f->cert, member))
		return ptc_error_set(err, PTC_EINVAL, "%s carries the DNS name %s of members: it is no stranger's",
				     stranger->cert_path, member);
	if (X509_check_purpose(f->cert, X509_PURPOSE_SSL_CLIENT, 0) != 1)
		return ptc_error_set(err, PTC_EINVAL,
				     "%s may not be used by a client, so this alone would refuse it; give it the "
				     "extended key usage clientAuth",
				     stranger->cert_path);
	return 0;
}

int ptc_rpc_tls_check_stranger(const struct ptc_rpc_tls *stranger, const struct ptc_rpc_tls *own, struct ptc_error *err)
{
	const struct ptc_rpc_tls judged = { .ca_path = own->ca_path,
					    .cert_path = stranger->cert_path,
					    .crl_path = own->crl_path };
	struct files f = { 0 }, mine = { 0 };
	bool same = false;
	int rc = read_ca(own->ca_path, &f, err);

	if (rc == 0)
		rc = read_cert(stranger->cert_path, &f, err);
	if (rc == 0)
		rc = read_key(stranger->key_path, &f, err);
	if (rc == 0)
		rc = check_strange(&f, stranger, own, err);
	if (rc == 0)
		rc = check_time(f.cert, stranger->cert_path, err);
	if (rc == 0)
		rc = ptc_rpc_tls_same_issuer(stranger->cert_path, own->cert_path, &same, err);
	if (rc == 0 && !same)
		rc = ptc_error_set(err, PTC_EINVAL,
				   "%s is of another authority than %s, so its refusal proves nothing; use a "
				   "certificate of that authority",
				   stranger->cert_path, own->cert_path);
	if (rc == 0)
		rc = read_cert(own->cert_path, &mine, err);
	mine.ca = f.ca;
	if (rc == 0 &&
	    check_signature(&mine, own, NULL) == 0) /* else etcd's clients have another authority than etcd */
		rc = check_signature(&f, &judged, err);
	if (rc == 0 && judged.crl_path)
		rc = check_revoked(f.cert, &judged, err);
	mine.ca = NULL;
	files_done(&mine);
	files_done(&f);
	return rc;
}
