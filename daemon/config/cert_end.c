/* SPDX-License-Identifier: Apache-2.0 */
/* Looks when certificates end. Happy path: the earliest end is kept, for status and metrics, and told in time. Failure
 * modes: cert_end.h. */
#include "daemon/config/cert_end.h"

#include "base/log.h"
#include "base/sys/sys.h"

#include <inttypes.h>
#include <stdatomic.h>

#define DAY_MS INT64_C(86400000)

static atomic_int_least64_t first_end_ms;

static void look(const char *key, const struct ptc_daemon_tls *tls, int64_t *first)
{
	int64_t ends, left;

	if (!tls->cert || ptc_rpc_tls_ends(tls->cert, &ends, NULL) != 0)
		return;
	left = ends - ptc_sys_realtime_ms();
	if (!*first || ends < *first)
		*first = ends;
	if (left > PTC_CERT_WARN_DAYS * DAY_MS)
		return;
	if (left <= 0)
		ptc_error_log("ptcd", "%s.cert: %s has ended; have it signed anew, and send ptcd SIGHUP", key,
			      tls->cert);
	else
		ptc_warn("ptcd", "%s.cert: %s ends in %" PRId64 " days; have it signed anew, and send ptcd SIGHUP", key,
			 tls->cert, left / DAY_MS);
}

void ptc_cert_end_look(const struct ptc_daemon_config *cfg)
{
	int64_t first = 0;

	if (cfg->insecure_loopback)
		return;
	look("tls", &cfg->tls, &first);
	if (!cfg->coordinator.local)
		look("coordinator.tls", &cfg->coordinator.tls, &first);
	atomic_store(&first_end_ms, first);
}

int64_t ptc_cert_end_ms(void)
{
	return atomic_load(&first_end_ms);
}
