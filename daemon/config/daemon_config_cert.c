/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the certificates of a configuration are usable, and that etcd turns strangers away. These checks need
 * rpc; those of daemon_config_check.c do not.
 *
 * etcd decides which jobs run as whom. A local etcd is started so that only members pass its handshake (etcd_child.c).
 * Other etcds are tried: each is shown no certificate at all, and then a stranger's certificate. This is
 * coordinator.stranger. If that is not set and etcd's clients have an authority of their own, this node's own
 * certificate is shown, because the cluster's authority has signed it.
 *
 * Failure modes: the first certificate that is not usable, as one line that names the key. A member of etcd that does
 * not answer is not tried, and the log says so. */
#include "daemon/config/internal.h"

#include "base/sys/sys.h"

#include <string.h>
#include <time.h>

#define PROBE_MS 3000
#define ETCD_MS  5000 /* daemon/coord/etcd.c */
#define PAUSE_MS 100

static int check(const struct ptc_daemon_config *cfg, const char *section, const struct ptc_daemon_tls *tls,
		 const char *node, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_rpc_tls files;
	const char *which;
	char key[64];
	int rc;

	if (!ptc_daemon_tls_rpc(tls, &files))
		return 0;
	rc = ptc_rpc_tls_check(&files, node, &which, &why);
	if (rc == 0)
		return 0;
	snprintf(key, sizeof key, "%s.%s", section, which);
	return ptc_daemon_config_error(cfg, key, err, rc, "%s", why.text);
}

/* Is there an etcd that this node reaches over TCP and did not start itself? */
static bool is_foreign(const struct ptc_daemon_config *cfg)
{
	for (size_t i = 0; i < cfg->coordinator.endpoints.n; i++)
		if (strncmp(cfg->coordinator.endpoints.v[i], "unix:", 5) != 0)
			return !cfg->coordinator.local && cfg->coordinator.tls.ca;
	return false;
}

/* Whose certificate proves that etcd turns strangers away; cert_path NULL: nobody's that we have. */
static int find_stranger(const struct ptc_daemon_config *cfg, struct ptc_rpc_tls *ret_tls, struct ptc_error *err)
{
	bool same = true;
	int rc = 0;

	*ret_tls = (struct ptc_rpc_tls){ .cert_path = cfg->coordinator.stranger.cert,
					 .key_path = cfg->coordinator.stranger.key };
	if (!ret_tls->cert_path && cfg->tls.ca)
		rc = ptc_rpc_tls_same_issuer(cfg->coordinator.tls.cert, cfg->tls.cert, &same, err);
	if (!rc && !same) {
		ret_tls->cert_path = cfg->tls.cert;
		ret_tls->key_path = cfg->tls.key;
	}
	return rc;
}

static int check_stranger(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_rpc_tls stranger, own;
	int rc = find_stranger(cfg, &stranger, err);

	if (rc)
		return rc;
	if (!stranger.cert_path)
		return ptc_daemon_config_error(
			cfg, "coordinator.stranger", err, PTC_EINVAL,
			"missing; name a certificate of etcd's authority that names no node, so that "
			"ptcd sees that etcd turns it away (docs/install.md), or write "
			"coordinator.unproved: yes");
	if (!cfg->coordinator.stranger.cert)
		return 0;
	if (!cfg->tls.ca) /* unix: between nodes: there is nobody else's name to compare */
		return 0;
	ptc_daemon_tls_rpc(&cfg->coordinator.tls, &own);
	own.member = cfg->tls.member;
	own.crl_path = strcmp(cfg->coordinator.tls.ca, cfg->tls.ca) == 0 ? cfg->tls.crl : NULL; /* of that authority */
	rc = ptc_rpc_tls_check_stranger(&stranger, &own, &why);
	return rc ? ptc_daemon_config_error(cfg, "coordinator.stranger.cert", err, rc, "%s", why.text) : 0;
}

int ptc_daemon_config_check_certificates(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	int rc = check(cfg, "tls", &cfg->tls, cfg->node, err);

	if (rc == 0 && !cfg->coordinator.local)
		rc = check(cfg, "coordinator.tls", &cfg->coordinator.tls, NULL, err);
	if (rc == 0 && is_foreign(cfg) && !cfg->coordinator.unproved)
		rc = check_stranger(cfg, err);
	return rc;
}

static int let_in(const struct ptc_daemon_config *cfg, const char *endpoint, const char *cert, struct ptc_error *err)
{
	if (!cert)
		return ptc_daemon_config_error(cfg, "coordinator.endpoints", err, PTC_EPERM,
					       "etcd at %s lets in whoever shows no certificate; start it with "
					       "--client-cert-auth and --trusted-ca-file (docs/install.md)",
					       endpoint);
	return ptc_daemon_config_error(
		cfg, "coordinator.endpoints", err, PTC_EPERM,
		"etcd at %s lets in %s, which names no node that may: every certificate of that "
		"authority could read and change all jobs; start etcd with "
		"--client-cert-allowed-hostname=%s, or give its clients an authority of their own "
		"(docs/install.md)",
		endpoint, cert, cfg->tls.member);
}

/* *ret_told: it answered, and turned both away. */
static int try_endpoint(const struct ptc_daemon_config *cfg, const char *endpoint, const struct ptc_rpc_tls *stranger,
			bool *ret_told, struct ptc_error *err)
{
	const struct ptc_rpc_tls nobody = { 0 }, *as[] = { &nobody, stranger };
	enum ptc_rpc_probe answer = PTC_RPC_PROBE_REFUSED;

	for (size_t i = 0; i < 2 && answer == PTC_RPC_PROBE_REFUSED; i++) {
		int rc = ptc_rpc_tls_probe(endpoint, as[i], PROBE_MS, &answer, err);

		if (rc)
			return rc;
		if (answer == PTC_RPC_PROBE_LET_IN)
			return let_in(cfg, endpoint, as[i]->cert_path, err);
	}
	*ret_told = answer == PTC_RPC_PROBE_REFUSED;
	return 0;
}

static bool is_tcp(const char *endpoint)
{
	return strncmp(endpoint, "unix:", 5) != 0;
}

int ptc_daemon_config_check_strangers(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	const struct timespec pause = { 0, PAUSE_MS * 1000000L };
	int64_t until = ptc_sys_now_ns() + ETCD_MS * INT64_C(1000000);
	bool told[PTC_DAEMON_ENDPOINTS_MAX] = { false }, any = false;
	char *const *endpoint = cfg->coordinator.endpoints.v;
	struct ptc_rpc_tls stranger;
	int rc;

	if (!is_foreign(cfg) || cfg->insecure_loopback)
		return 0;
	if (cfg->coordinator.unproved) {
		ptc_warn("etcd", "coordinator.unproved: that etcd turns strangers away was not tried");
		return 0;
	}
	rc = find_stranger(cfg, &stranger, err);
	do { /* an etcd that starts as we do is waited for, as long as the first request to it will be */
		for (size_t i = 0; i < cfg->coordinator.endpoints.n && rc == 0; i++) {
			if (is_tcp(endpoint[i]))
				rc = try_endpoint(cfg, endpoint[i], &stranger, &told[i], err);
			any = any || told[i];
		}
	} while (rc == 0 && !any && ptc_sys_now_ns() < until && nanosleep(&pause, NULL) == 0);
	for (size_t i = 0; i < cfg->coordinator.endpoints.n && rc == 0; i++)
		if (is_tcp(endpoint[i]) && !told[i])
			ptc_warn("etcd", "%s does not answer: whether it turns strangers away is not known",
				 endpoint[i]);
	return rc;
}
