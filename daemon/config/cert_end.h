/* SPDX-License-Identifier: Apache-2.0 */
/* When the first of the certificates that this node uses ends. A file that was replaced counts only once its
 * certificate is in use. One for each process. Any thread. */
#pragma once

#include "daemon/config/daemon_config.h"

#define PTC_CERT_WARN_DAYS 14

/* Reads and remembers the ends of the certificates that the configuration names, which are about to be taken into use.
 * Call it at the start, and when a reload has found new ones right, both times before anybody reads the files for
 * connections. Blocks. Failure mode: of a file that cannot be read, the end before stays; handshakes and SIGHUP report
 * the file. */
void ptc_cert_end_taken(const struct ptc_daemon_config *cfg);
/* Writes a line to the log for each certificate in use, from PTC_CERT_WARN_DAYS before its end, or if its file holds
 * one that ends later and that no reload has taken yet. Blocks. */
void ptc_cert_end_look(const struct ptc_daemon_config *cfg);
int64_t ptc_cert_end_ms(void); /* of those in use; Unix time; 0: there is none */
