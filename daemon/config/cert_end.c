/* SPDX-License-Identifier: Apache-2.0 */
/* Remembers when the certificates in use end. Happy path: the ends are read when certificates are taken into use; the
 * earliest is kept for status and metrics, and told in time. So a file that was replaced, but not reloaded, or not
 * accepted, ends no warning. Failure modes: cert_end.h. */
#include "daemon/config/cert_end.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#define DAY_MS INT64_C(86400000)

static atomic_int_least64_t tls_ms, coordinator_ms; /* the ends; 0: there is none in use */

static void take(const struct ptc_daemon_tls *tls, atomic_int_least64_t *in_use)
{
	int64_t ends;

	if (tls->cert && ptc_rpc_tls_ends(tls->cert, &ends, NULL) == 0)
		atomic_store(in_use, ends);
}

void ptc_cert_end_taken(const struct ptc_daemon_config *cfg)
{
	if (cfg->insecure_loopback)
		return;
	take(&cfg->tls, &tls_ms);
	if (!cfg->coordinator.local)
		take(&cfg->coordinator.tls, &coordinator_ms);
}

static void look(const char *key, const struct ptc_daemon_tls *tls, const atomic_int_least64_t *in_use)
{
	const int64_t used = atomic_load(in_use), left = used - ptc_sys_realtime_ms();
	const enum ptc_log_level level = left <= 0 ? PTC_LOG_ERROR : PTC_LOG_WARN;
	char when[48] = "has ended";
	int64_t ends;
	bool newer;

	if (!used)
		return;
	if (left > 0)
		snprintf(when, sizeof when, "ends in %" PRId64 " days", left / DAY_MS);
	newer = ptc_rpc_tls_ends(tls->cert, &ends, NULL) == 0 && ends > used;
	if (newer)
		ptc_log(level, "ptcd", "%s.cert: the certificate in use %s, and %s holds a newer one; send ptcd SIGHUP",
			key, when, tls->cert);
	else if (left <= PTC_CERT_WARN_DAYS * DAY_MS)
		ptc_log(level, "ptcd", "%s.cert: %s %s; have it signed anew, and send ptcd SIGHUP", key, tls->cert,
			when);
}

void ptc_cert_end_look(const struct ptc_daemon_config *cfg)
{
	look("tls", &cfg->tls, &tls_ms);
	look("coordinator.tls", &cfg->coordinator.tls, &coordinator_ms);
}

int64_t ptc_cert_end_ms(void)
{
	const int64_t tls = atomic_load(&tls_ms), coordinator = atomic_load(&coordinator_ms);

	return tls && coordinator ? PTC_MIN(tls, coordinator) : tls + coordinator;
}
