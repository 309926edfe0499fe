/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whose certificates count: the DNS name of this cluster's nodes, and the list of revoked certificates.
 *
 * Happy path: a trust is made with the listener or channel that it serves, and then reads the file of revoked
 * certificates. A caller looks at the file once a second at most, and reads it again when it has changed.
 *
 * Failure modes: at the beginning a file that cannot be read, holds none or two lists, or is not signed by the
 * authority (one line); later the same is logged once, and the list read last stays in force. */
#include "rpc/trust/creds.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define LOOK_EVERY_NS INT64_C(1000000000)

struct ptc_rpc_trust {
	char *member, *ca_path, *crl_path; /* crl_path NULL: nothing is revoked */
	pthread_mutex_t lock;
	X509_CRL *crl;                /* under lock */
	struct stat seen;             /* under lock: the file as it was looked at last */
	atomic_int_least64_t next_ns; /* when to look again */
	atomic_uint epoch;
};

static int read_list(const char *path, X509_CRL **ret_crl, struct ptc_error *err)
{
	ptc_auto_free char *text = NULL;
	X509_CRL *crl = NULL, *second = NULL;
	size_t len;
	BIO *bio;
	int rc = ptc_sys_read_file(path, PTC_RPC_CRL_MAX, &text, &len, err);

	if (rc)
		return rc;
	bio = BIO_new_mem_buf(text ? text : "", (int)len);
	if (bio) {
		crl = PEM_read_bio_X509_CRL(bio, NULL, NULL, NULL);
		second = crl ? PEM_read_bio_X509_CRL(bio, NULL, NULL, NULL) : NULL;
	}
	BIO_free(bio);
	ERR_clear_error();
	if (crl && !second) {
		*ret_crl = crl;
		return 0;
	}
	X509_CRL_free(crl);
	X509_CRL_free(second);
	return ptc_error_set(err, PTC_EINVAL, "%s holds %s; write one, in PEM format", path,
			     second ? "more than one list of revoked certificates" : "no list of revoked certificates");
}

/* Has one of the authority's certificates signed the list? */
static int check_signed(X509_CRL *crl, const char *path, const char *ca_path, struct ptc_error *err)
{
	ptc_auto_free char *text = NULL;
	bool found = false;
	size_t len;
	X509 *ca;
	BIO *bio;
	int rc = ptc_sys_read_file(ca_path, PTC_RPC_PEM_MAX, &text, &len, err);

	if (rc)
		return rc;
	bio = BIO_new_mem_buf(text ? text : "", (int)len);
	while (bio && !found && (ca = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
		found = X509_NAME_cmp(X509_get_subject_name(ca), X509_CRL_get_issuer(crl)) == 0 &&
			X509_CRL_verify(crl, X509_get0_pubkey(ca)) == 1;
		X509_free(ca);
	}
	BIO_free(bio);
	ERR_clear_error();
	if (found)
		return 0;
	return ptc_error_set(err, PTC_EINVAL,
			     "%s is not signed by the authority in %s; give the list that this authority made", path,
			     ca_path);
}

int ptc_rpc_crl_read(const char *path, const char *ca_path, void **ret_crl, struct ptc_error *err)
{
	X509_CRL *crl = NULL;
	int rc = read_list(path, &crl, err);

	if (rc)
		return rc;
	rc = check_signed(crl, path, ca_path, err);
	if (rc || !ret_crl) {
		X509_CRL_free(crl);
		return rc;
	}
	*ret_crl = crl;
	return 0;
}

int ptc_rpc_trust_new(const struct ptc_rpc_tls *tls, struct ptc_rpc_trust **ret_trust, struct ptc_error *err)
{
	struct ptc_rpc_trust *t = ptc_calloc(1, sizeof *t);
	void *crl = NULL;
	int rc = 0;

	if (!t)
		return ptc_nomem(err);
	pthread_mutex_init(&t->lock, NULL);
	t->member = ptc_strdup(tls->member ? tls->member : PTC_RPC_MEMBER);
	t->ca_path = ptc_strdup(tls->ca_path ? tls->ca_path : "");
	t->crl_path = tls->crl_path ? ptc_strdup(tls->crl_path) : NULL;
	if (!t->member || !t->ca_path || (tls->crl_path && !t->crl_path))
		rc = ptc_nomem(err);
	if (!rc && t->crl_path) {
		ptc_sys_file_changed(t->crl_path, &t->seen); /* first: what is written while it is read is seen later */
		rc = ptc_rpc_crl_read(t->crl_path, t->ca_path, &crl, err);
	}
	t->crl = crl;
	if (rc) {
		ptc_rpc_trust_free(t);
		return rc;
	}
	*ret_trust = t;
	return 0;
}

struct ptc_rpc_trust *ptc_rpc_trust_free(struct ptc_rpc_trust *t)
{
	if (!t)
		return NULL;
	X509_CRL_free(t->crl);
	pthread_mutex_destroy(&t->lock);
	ptc_free(t->member);
	ptc_free(t->ca_path);
	ptc_free(t->crl_path);
	ptc_free(t);
	return NULL;
}

const char *ptc_rpc_trust_member(const struct ptc_rpc_trust *t)
{
	return t->member;
}

static void look_locked(struct ptc_rpc_trust *t)
{
	struct ptc_error err = PTC_ERROR_INIT;
	void *crl;

	if (!ptc_sys_file_changed(t->crl_path, &t->seen))
		return;
	if (ptc_rpc_crl_read(t->crl_path, t->ca_path, &crl, &err) != 0) {
		ptc_error_log("rpc", "tls.crl: %s; the list that was read before stays in force", err.text);
		return;
	}
	X509_CRL_free(t->crl);
	t->crl = crl;
	atomic_fetch_add(&t->epoch, 1);
	ptc_info("rpc", "tls.crl: %s was read again", t->crl_path);
}

unsigned ptc_rpc_trust_epoch(struct ptc_rpc_trust *t)
{
	int64_t now, next;

	if (!t->crl_path)
		return 0;
	now = ptc_sys_now_ns();
	next = atomic_load_explicit(&t->next_ns, memory_order_relaxed);
	if (now >= next && atomic_compare_exchange_strong(&t->next_ns, &next, now + LOOK_EVERY_NS)) {
		pthread_mutex_lock(&t->lock);
		look_locked(t);
		pthread_mutex_unlock(&t->lock);
	}
	return atomic_load(&t->epoch);
}

bool ptc_rpc_trust_revoked(struct ptc_rpc_trust *t, const char *pem, size_t len)
{
	X509_REVOKED *entry = NULL;
	bool revoked = true; /* what cannot be read is nobody's */
	X509 *cert = NULL;
	BIO *bio;

	if (!t->crl_path)
		return false;
	ptc_rpc_trust_epoch(t);
	bio = pem ? BIO_new_mem_buf(pem, (int)len) : NULL;
	if (bio)
		cert = PEM_read_bio_X509(bio, NULL, NULL, NULL);
	if (cert) {
		pthread_mutex_lock(&t->lock);
		revoked = X509_CRL_get0_by_cert(t->crl, &entry, cert) == 1;
		pthread_mutex_unlock(&t->lock);
	}
	X509_free(cert);
	BIO_free(bio);
	ERR_clear_error();
	return revoked;
}
