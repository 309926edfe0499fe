/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* sd_notify(3)'s protocol: one datagram to $NOTIFY_SOCKET; nothing when it is unset. */
void ptc_notify(const char *state);
/* WATCHDOG=1 when it is due: twice as often as the unit asks ($WATCHDOG_USEC). Call it from the thread that systemd
 * shall watch, and only from there. */
void ptc_notify_watchdog(void);
