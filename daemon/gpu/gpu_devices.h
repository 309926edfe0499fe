/* SPDX-License-Identifier: Apache-2.0 */
/* The node's devices, by NVML: who they are and how they are, with a context on none of them.
 *
 * ptc_gpu_devices_find fills in every device of the node in NVML's order (by PCI address) and marks those that
 * CUDA_VISIBLE_DEVICES leaves. A device that cannot be asked is listed with health PTC_GPU_LOST. Failure modes: no
 * driver (PTC_ENODEVICES, PTC_EVERSION); a node with none has none. */
#pragma once

#include "daemon/gpu/cuda/gpu_export.h"

#define PTC_GPU_DEVICES_MAX   64 /* of a node: 8 cards cut in 7 instances each */
#define PTC_GPU_PROCESSES_MAX 64 /* of a device that are listed; the rest is counted */

enum ptc_gpu_kind { PTC_GPU_WHOLE, PTC_GPU_MIG };
enum ptc_gpu_health { PTC_GPU_HEALTHY, PTC_GPU_ECC, PTC_GPU_RESET, PTC_GPU_LOST };

struct ptc_gpu_device {
	char uuid[PTC_GPU_UUID_SIZE];
	char name[96];
	char bus[32];   /* PCI address; "" unknown */
	unsigned index; /* NVML's; of a MIG instance: its card's */
	enum ptc_gpu_kind kind;
	enum ptc_gpu_health health;
	char why[96]; /* of a device that is not healthy */
	uint64_t memory_bytes, free_bytes;
	unsigned nprocesses; /* that have a context on it */
	uint32_t pids[PTC_GPU_PROCESSES_MAX];
	int visible; /* place among those CUDA shows, from 0; -1: hidden */
};

int ptc_gpu_devices_find(struct ptc_gpu_device *ret, size_t max, size_t *ret_n, struct ptc_error *err);

/* Which devices a value of CUDA_VISIBLE_DEVICES leaves, as the driver reads it: NULL leaves all; elements are indices,
 * UUIDs or unambiguous beginnings of UUIDs ("GPU-8f", "MIG-…"); the first that names no device, -1 among them, ends the
 * list; one named twice empties it. Sets `visible` of each. An index means NVML's order, which is CUDA's with
 * CUDA_DEVICE_ORDER=PCI_BUS_ID, and where all devices are of one model. MIG instances are no indices. */
void ptc_gpu_devices_show(struct ptc_gpu_device *devices, size_t n, const char *value);

/* What `ptc-gpu --list` prints: one JSON object, ptc_free it; NULL when out of memory. */
char *ptc_gpu_devices_json(const struct ptc_gpu_device *devices, size_t n, const struct ptc_error *none);
