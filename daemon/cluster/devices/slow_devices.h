/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that one job has left because its ranks were slow there, until a stated time (`on_straggler: drain`), or
 * because the replicas of its ranks there were wrong (`on_difference`), until an operator gives them back: the keys
 * /ptc/jobs/UUID/slow/NODE/INDEX. The job's controller writes and removes them; so does an operator (`device bad
 * --undo`). Times are of the wall clock, because daemons on several machines read them.
 *
 * Plain data of the caller; all zeros: there are none. No thread. Failure modes: PTC_ENOMEM, PTC_ELIMIT; a key or
 * document that is malformed. */
#pragma once

#include "base/limits.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_SLOW_LEAF        "slow/" /* behind /ptc/jobs/UUID/ */
#define PTC_SLOW_LEAF_BYTES  (PTC_NAME_MAX + 24)
#define PTC_SLOW_DEVICES_MAX 4096 /* of a job, which leaves no more devices at a time */

struct ptc_slow_device {
	char node[PTC_NAME_MAX + 1];
	uint32_t device;
	int64_t since_ms, until_ms; /* Unix time; since_ms is equal for those that were left together */
	bool differs;               /* replicas were wrong there: no time and no want of devices gives it back */
	bool seen;                  /* in the listing under way */
};
#define PTC_SLOW_FOR_GOOD_MS (INT64_C(100) * 366 * 86400000) /* until_ms - since_ms of such a device */
struct ptc_slow_devices {
	struct ptc_slow_device *v; /* in no order */
	size_t n;
};
void ptc_slow_devices_done(struct ptc_slow_devices *d);
/* The entry of the device whose time is not over; NULL: there is none. */
const struct ptc_slow_device *ptc_slow_device_find(const struct ptc_slow_devices *d, const char *node, uint32_t device,
						   int64_t now_ms);
/* A number of the devices whose time is not over, whatever their order; 0: there is none. */
uint64_t ptc_slow_devices_key(const struct ptc_slow_devices *d, int64_t now_ms);
/* key: "slow/NODE/INDEX". Adds the entry, or replaces the one of that device, as seen. */
int ptc_slow_device_put(struct ptc_slow_devices *d, const char *key, const char *json, size_t len,
			struct ptc_error *err);
void ptc_slow_device_delete(struct ptc_slow_devices *d, const char *key);
void ptc_slow_devices_unseen(struct ptc_slow_devices *d); /* a listing begins */
void ptc_slow_devices_listed(struct ptc_slow_devices *d); /* it is complete: what was not seen goes */
void ptc_slow_device_key(const struct ptc_slow_device *s, char ret_key[PTC_SLOW_LEAF_BYTES]);
char *ptc_slow_device_encode(const struct ptc_slow_device *s); /* JSON for ptc_free; NULL: out of memory */
