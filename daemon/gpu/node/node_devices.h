/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of this node that ptcd gives to jobs, GPUs or virtual ones: their identities, and their health when
 * ptc-gpu last looked.
 *
 * Device number i is the i-th device that CUDA_VISIBLE_DEVICES in ptcd's environment leaves, in CUDA's order; or it is
 * a virtual device. The numbers stay as they were at the start: a device that is not found any more is listed as lost.
 *
 * Owner: the caller of _new. Threads: any. Failure modes of _new: ptc-gpu cannot be run; it shows no device
 * (PTC_ENODEVICES with its reason); there are more than PTC_NODE_DEVICES_MAX. A later look that fails changes nothing.
 */
#pragma once

#include "base/buf.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_NODE_DEVICES_MAX 64

struct ptc_node_devices;

#define PTC_NODE_DEVICE_USES_MAX 64

struct ptc_node_device_use {
	int64_t pid;
	bool known;
	uint64_t bytes; /* of the device's memory, if known */
};

struct ptc_node_device {
	char uuid[48]; /* as NVML writes it: "GPU-…", "MIG-…"; "": a virtual device */
	char kind[8];  /* gpu, mig, virtual */
	char name[96], bus[32];
	char health[16], why[96]; /* health: ok, ecc, reset-required, lost or check; why: the reason if it is not ok */
	bool dead;                /* lost, and the driver answers: no process can use it any more */
	unsigned index;           /* NVML's index */
	unsigned processes;       /* number of processes with a context on it */
	uint64_t memory_bytes, free_bytes;
	struct ptc_node_device_use uses[PTC_NODE_DEVICE_USES_MAX]; /* of these processes, as far as NVML lists them */
	size_t nuses;
};

/* Finds the devices with ptc-gpu. */
int ptc_node_devices_find(struct ptc_node_devices **ret, struct ptc_error *err);
/* Makes n virtual devices. */
int ptc_node_devices_virtual(size_t n, struct ptc_node_devices **ret, struct ptc_error *err);
struct ptc_node_devices *ptc_node_devices_free(struct ptc_node_devices *d); /* NULL ok */

size_t ptc_node_devices_count(const struct ptc_node_devices *d);
void ptc_node_devices_get(struct ptc_node_devices *d, size_t i, struct ptc_node_device *ret);
/* The UUIDs with commas between, for CUDA_VISIBLE_DEVICES of ranks; so device i is CUDA's i. NULL: the devices are
 * virtual. Lives with d. */
const char *ptc_node_devices_ids(const struct ptc_node_devices *d);
/* Asks ptc-gpu now, and waits for it. A failure changes nothing. */
int ptc_node_devices_refresh(struct ptc_node_devices *d, struct ptc_error *err);
/* Lets a thread ask ptc-gpu again if the last look is older than max_age_ms. Returns at once. */
void ptc_node_devices_look(struct ptc_node_devices *d, int64_t max_age_ms);

/* Takes over the verdict of the node's health command for each device: the reason why it is not well ("": it is well),
 * as health "check". If the driver says that a device is not well, its health stays the driver's. The verdict holds
 * until the next call. */
#define PTC_NODE_DEVICE_WHY 96
void ptc_node_devices_verdict(struct ptc_node_devices *d, char (*why)[PTC_NODE_DEVICE_WHY]);

/* Those that are not well, as "1:ecc,3:lost"; cut off where the room ends. */
void ptc_node_devices_unhealthy(struct ptc_node_devices *d, char *ret, size_t size);

/* Adds the members of device i's JSON object, without braces. */
void ptc_node_devices_json(struct ptc_node_devices *d, size_t i, struct ptc_buf *b);
