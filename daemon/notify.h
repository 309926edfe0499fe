/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* sd_notify(3)'s protocol: one datagram to $NOTIFY_SOCKET; nothing when it is unset. */
void ptc_notify(const char *state);
