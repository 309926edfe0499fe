/* SPDX-License-Identifier: Apache-2.0 */
/* How a node's document names the devices that are not well, and so given to no rank: "1:ecc,3:lost"
 * (daemon/gpu/node writes it). "": there are none. Pure; no failure modes: what is malformed names no device. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PTC_HEALTH_BYTES    16
#define PTC_UNHEALTHY_BYTES 1280 /* 64 devices, each with PTC_HEALTH_BYTES and a number */

/* Whether a device may be given to ranks. If not, ret_health (NULL ok) gets its health. */
bool ptc_device_well(const char *unhealthy, uint32_t device, char ret_health[PTC_HEALTH_BYTES]);
