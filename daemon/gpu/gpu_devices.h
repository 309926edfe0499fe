/* SPDX-License-Identifier: Apache-2.0 */
/* The node's devices (GPUs, MIG devices), by NVML: their identity and their health. NVML needs no context on them.
 *
 * ptc_gpu_devices_find fills in every device of the node in NVML's order (by PCI address), and marks those that
 * CUDA_VISIBLE_DEVICES leaves. A device that does not answer is listed with health PTC_GPU_LOST. A node may have no
 * device. Failure modes: there is no driver, or it is too old (PTC_ENODEVICES, PTC_EVERSION). */
#pragma once

#include "daemon/gpu/cuda/gpu_export.h"

#define PTC_GPU_DEVICES_MAX   64 /* devices of a node: 8 cards of up to 7 instances each are 56 */
#define PTC_GPU_PROCESSES_MAX 64 /* processes of a device that are listed; the others are only counted */

enum ptc_gpu_kind { PTC_GPU_WHOLE, PTC_GPU_MIG };
enum ptc_gpu_health { PTC_GPU_HEALTHY, PTC_GPU_ECC, PTC_GPU_RESET, PTC_GPU_LOST };

struct ptc_gpu_device {
	char uuid[PTC_GPU_UUID_SIZE];
	char name[96];
	char bus[32];   /* PCI address; "": unknown */
	unsigned index; /* NVML's index; of a MIG instance: its card's */
	enum ptc_gpu_kind kind;
	enum ptc_gpu_health health;
	char why[96]; /* the reason, if the device is not healthy */
	uint64_t memory_bytes, free_bytes;
	unsigned nprocesses; /* number of processes with a context on it */
	uint32_t pids[PTC_GPU_PROCESSES_MAX];
	uint64_t pid_bytes[PTC_GPU_PROCESSES_MAX]; /* of the device's memory; UINT64_MAX: unknown */
	int visible;                               /* place among the devices that CUDA shows, from 0; -1: hidden */
};

int ptc_gpu_devices_find(struct ptc_gpu_device *ret, size_t max, size_t *ret_n, struct ptc_error *err);

/* Sets `visible` of each device as the driver reads CUDA_VISIBLE_DEVICES. NULL shows all. Elements are indices, UUIDs
 * or unambiguous beginnings of UUIDs ("GPU-8f", "MIG-…"). The first element that names no device, such as -1, ends the
 * list. A device that is named twice empties the list. Indices count in NVML's order. That is CUDA's order with
 * CUDA_DEVICE_ORDER=PCI_BUS_ID, and if all devices are of one model. MIG instances have no indices. */
void ptc_gpu_devices_show(struct ptc_gpu_device *devices, size_t n, const char *value);

/* The output of `ptc-gpu --list`: one JSON object; ptc_free it. NULL: out of memory. `none` says why there is no
 * device. */
char *ptc_gpu_devices_json(const struct ptc_gpu_device *devices, size_t n, const struct ptc_error *none);
