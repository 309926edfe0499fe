/* SPDX-License-Identifier: Apache-2.0 */
/* NVML for tests: libnvidia-ml.so.1. It has the devices of the fake driver (fake_cuda.h), and
 *
 *   PTC_FAKE_NVML="N:WORD,..."   device N is: ecc, pending, failed, busy (two processes), full (more processes than can
 *                                be listed), mig (two instances stand for it), bare (supports nothing optional)
 *   PTC_FAKE_NVML_START=RESULT   the result of nvmlInit
 *   DIR/lost-N                   device N is lost; DIR/ecc-N: it has uncorrectable errors */
#include "daemon/gpu/cuda/nvml_driver.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICES_MAX 8

struct nvmlDevice_st {
	unsigned index;
	int instance; /* -1: the card */
};
static struct nvmlDevice_st cards[DEVICES_MAX], instances[DEVICES_MAX][2];

#define PROTOTYPE(field, symbol, parameters) __attribute__((visibility("default"))) nvmlReturn_t symbol parameters;
PTC_NVML_FUNCTIONS(PROTOTYPE)
__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result);

static bool is(unsigned index, const char *word)
{
	const char *all = getenv("PTC_FAKE_NVML");
	char what[32];

	snprintf(what, sizeof what, "%u:%s", index, word);
	return all && strstr(all, what);
}

static bool lost(unsigned index)
{
	const char *dir = getenv("PTC_FAKE_GPU");
	char file[512];

	snprintf(file, sizeof file, "%s/lost-%u", dir ? dir : ".", index);
	return access(file, F_OK) == 0;
}

nvmlReturn_t nvmlInit_v2(void)
{
	const char *result = getenv("PTC_FAKE_NVML_START");

	return result ? atoi(result) : NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	if (result == NVML_ERROR_GPU_IS_LOST)
		return "GPU is lost";
	return result == NVML_ERROR_LIB_RM_VERSION_MISMATCH ? "Driver/library version mismatch" : "Unknown Error";
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
	const char *n = getenv("PTC_FAKE_GPU_DEVICES");

	*count = n ? (unsigned)atoi(n) : 2;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	if (lost(index))
		return NVML_ERROR_GPU_IS_LOST;
	cards[index] = (struct nvmlDevice_st){ index, -1 };
	*device = &cards[index];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned size)
{
	unsigned b = 0xd0 + device->index;

	if (device->instance >= 0) {
		snprintf(text, size, "MIG-%02x%02x%02x%02x-0000-0000-0000-00000000000%d", b, b, b, b, device->instance);
		return NVML_SUCCESS;
	}
	snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b, b, b, b, b,
		 b, b, b, b, b, b, b, b, b, b, b);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned size)
{
	snprintf(text, size, "Fake \"GPU\" %u", device->index);
	return NVML_SUCCESS;
}

/* The file PTC_FAKE_GPU/NAME-INDEX; NULL: there is none. */
static FILE *open_told(const char *name, unsigned index)
{
	const char *dir = getenv("PTC_FAKE_GPU");
	char file[300];

	snprintf(file, sizeof file, "%s/%s-%u", dir ? dir : ".", name, index);
	return fopen(file, "re");
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	unsigned long long free_bytes = 200ull << 20;
	FILE *f = open_told("free", device->index);

	if (f && fscanf(f, "%llu", &free_bytes) != 1)
		free_bytes = 0;
	if (f)
		fclose(f);
	*memory = (nvmlMemory_t){ 256ull << 20, free_bytes, (256ull << 20) - free_bytes };
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	memset(pci, 0, sizeof *pci);
	snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", 0x17 + device->index);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *count)
{
	FILE *told;

	if (is(device->index, "bare"))
		return NVML_ERROR_NOT_SUPPORTED;
	told = open_told("ecc", device->index);
	*count = told || is(device->index, "ecc") ? 3 : 0;
	if (told)
		fclose(told);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
				       unsigned *pending, unsigned *failed)
{
	if (is(device->index, "bare"))
		return NVML_ERROR_NOT_SUPPORTED;
	*corrected = *uncorrected = 0;
	*pending = is(device->index, "pending");
	*failed = is(device->index, "failed");
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes)
{
	unsigned n = is(device->index, "busy") ? 2 : is(device->index, "full") ? 1000 : 0, room = *count;
	FILE *f = open_told("uses", device->index); /* a line PID BYTES of each process */

	if (is(device->index, "bare"))
		return NVML_ERROR_NO_PERMISSION;
	for (n = f ? 0 : n; f && n < room; n++)
		if (fscanf(f, "%u %llu", &processes[n].pid, &processes[n].usedGpuMemory) != 2)
			break;
	*count = n;
	if (f) {
		fclose(f);
		return NVML_SUCCESS;
	}
	if (n > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < n; i++)
		processes[i] = (nvmlProcessInfo_t){ .pid = 1000 + i, .usedGpuMemory = i ? ~0ull : 10ull << 20 };
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	if (is(device->index, "bare"))
		return NVML_ERROR_NOT_SUPPORTED;
	*current = *pending = is(device->index, "mig");
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
	*count = 7;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig)
{
	if (index >= 2)
		return NVML_ERROR_NOT_FOUND;
	instances[device->index][index] = (struct nvmlDevice_st){ device->index, (int)index };
	*mig = &instances[device->index][index];
	return NVML_SUCCESS;
}
