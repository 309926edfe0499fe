/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: unhealthy.h. */
#include "daemon/cluster/devices/unhealthy.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

bool ptc_device_well(const char *unhealthy, uint32_t device, char ret_health[PTC_HEALTH_BYTES])
{
	char key[16];
	size_t len = (size_t)snprintf(key, sizeof key, "%u:", (unsigned)device);

	for (const char *at = unhealthy, *end; *at; at = end + (*end == ',')) {
		end = at + strcspn(at, ",");
		if (strncmp(at, key, len) != 0)
			continue;
		if (ret_health)
			snprintf(ret_health, PTC_HEALTH_BYTES, "%.*s", (int)(end - at - (ptrdiff_t)len), at + len);
		return false;
	}
	return true;
}
