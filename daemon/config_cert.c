/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the certificates that a configuration names will do. Apart from config_check.c, which needs no rpc.
 * Failure modes: the first that will not, as one line that names the key. */
#include "daemon/config_i.h"

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

int ptc_daemon_config_check_certificates(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	int rc = check(cfg, "tls", &cfg->tls, cfg->node, err);

	if (rc == 0 && !cfg->coordinator.local)
		rc = check(cfg, "coordinator.tls", &cfg->coordinator.tls, NULL, err);
	return rc;
}
