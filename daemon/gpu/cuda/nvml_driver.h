/* SPDX-License-Identifier: Apache-2.0 */
/* NVML, found at run time like the CUDA driver: it lists the node's devices without a context on any of them. The
 * declarations of its binary interface are ours, because Debian's main section has no header of it. Its names are
 * versioned.
 *
 * ptc_nvml_open loads and starts NVML once for the process and never unloads it. Any thread. Failure modes: there is no
 * library (PTC_ENODEVICES); it lacks a function (PTC_EVERSION); the driver is not loaded or does not match. */
#pragma once

#include "base/status.h"

#define PTC_NVML_LIBRARY "libnvidia-ml.so.1"

#define NVML_UUID_SIZE 96
#define NVML_NAME_SIZE 96

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_RESET_REQUIRED = 16,
	NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
	NVML_ERROR_UNKNOWN = 999,
	NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1,
	NVML_VOLATILE_ECC = 0,
	NVML_DEVICE_MIG_ENABLE = 1,
};

typedef struct {
	unsigned long long total, free, used; /* bytes */
} nvmlMemory_t;

typedef struct {
	char busIdLegacy[16];
	unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

typedef struct {
	unsigned pid;
	unsigned long long usedGpuMemory; /* bytes; all ones: unknown */
	unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

/* X(field, symbol, parameters) */
#define PTC_NVML_FUNCTIONS(X)                                                                                          \
	X(init, nvmlInit_v2, (void))                                                                                   \
	X(count, nvmlDeviceGetCount_v2, (unsigned *count))                                                             \
	X(by_index, nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvmlDevice_t *device))                             \
	X(uuid, nvmlDeviceGetUUID, (nvmlDevice_t device, char *text, unsigned size))                                   \
	X(name, nvmlDeviceGetName, (nvmlDevice_t device, char *text, unsigned size))                                   \
	X(memory, nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t * memory))                               \
	X(pci, nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, nvmlPciInfo_t * pci))                                    \
	X(ecc_errors, nvmlDeviceGetTotalEccErrors,                                                                     \
	  (nvmlDevice_t device, int type, int counter, unsigned long long *count))                                     \
	X(remapped_rows, nvmlDeviceGetRemappedRows,                                                                    \
	  (nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed))      \
	X(processes, nvmlDeviceGetComputeRunningProcesses_v3,                                                          \
	  (nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes))                                        \
	X(mig_mode, nvmlDeviceGetMigMode, (nvmlDevice_t device, unsigned *current, unsigned *pending))                 \
	X(mig_count, nvmlDeviceGetMaxMigDeviceCount, (nvmlDevice_t device, unsigned *count))                           \
	X(mig_by_index, nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t device, unsigned index, nvmlDevice_t *mig))

#define PTC_NVML_FIELD(field, symbol, parameters) nvmlReturn_t(*field) parameters;
struct ptc_nvml {
	const char *(*text)(nvmlReturn_t result); /* nvmlErrorString */
	PTC_NVML_FUNCTIONS(PTC_NVML_FIELD)
};

int ptc_nvml_open(const struct ptc_nvml **ret, struct ptc_error *err);
