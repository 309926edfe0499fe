/* SPDX-License-Identifier: Apache-2.0 */
/* When the first of this node's certificates ends. One for each process. Any thread. */
#pragma once

#include "daemon/config/daemon_config.h"

#define PTC_CERT_WARN_DAYS 14

/* Reads the certificates that the configuration names. From PTC_CERT_WARN_DAYS before the end of one, each look writes
 * a line to the log. Blocks. Failure mode: a file that cannot be read is passed over; handshakes and SIGHUP report it.
 */
void ptc_cert_end_look(const struct ptc_daemon_config *cfg);
int64_t ptc_cert_end_ms(void); /* by the last look; Unix time; 0: no look yet, or no certificate */
