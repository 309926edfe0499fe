/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory for state (ptc/gpu.h). Happy path: one handle for each allocation, exportable as a descriptor, mapped
 * at addresses of its own; the mapping alone holds the handle. Failure modes: gpu.h. What was made before a failure is
 * undone. */
#include "ptc/gpu.h"
#include "client/lib/device/driver.h"

#include <pthread.h>
#include <stdlib.h>

#define cu ptc_device_driver

struct block {
	struct block *next;
	CUdeviceptr at;
	size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks; /* under lock */

/* Plain memory where handles cannot be exported. */
static CUresult create(struct block *b, int device, size_t size, CUmemGenericAllocationHandle *ret)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				     .location = { CU_MEM_LOCATION_TYPE_DEVICE, device } };
	size_t granularity = 0;
	CUresult result = cu.cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

	if (result)
		return result;
	if (!granularity || size > SIZE_MAX - granularity)
		return CUDA_ERROR_OUT_OF_MEMORY;
	b->bytes = (size + granularity - 1) / granularity * granularity;
	result = cu.cuMemCreate(ret, b->bytes, &prop, 0);
	if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED) {
		prop.requestedHandleTypes = 0;
		result = cu.cuMemCreate(ret, b->bytes, &prop, 0);
	}
	return result;
}

static CUresult map(struct block *b, int device, CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, device }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUresult result = cu.cuMemAddressReserve(&b->at, b->bytes, 0, 0, 0);

	if (result)
		return result;
	result = cu.cuMemMap(b->at, b->bytes, 0, handle, 0);
	if (!result) {
		result = cu.cuMemSetAccess(b->at, b->bytes, &access, 1);
		if (result)
			cu.cuMemUnmap(b->at, b->bytes);
	}
	if (result)
		cu.cuMemAddressFree(b->at, b->bytes);
	return result;
}

void *ptc_pool_alloc(ssize_t size, int device, void *stream)
{
	CUmemGenericAllocationHandle handle;
	struct block *b;
	CUdevice number;
	CUresult result;

	if (size <= 0 || !ptc_device_driver_loaded() || cu.cuDeviceGet(&number, device) != CUDA_SUCCESS)
		return NULL;
	b = calloc(1, sizeof *b);
	if (!b)
		return NULL;
	result = create(b, number, (size_t)size, &handle);
	if (!result) {
		result = map(b, number, handle);
		cu.cuMemRelease(handle);
	}
	if (result) {
		free(b);
		return NULL;
	}
	pthread_mutex_lock(&lock);
	b->next = blocks;
	blocks = b;
	pthread_mutex_unlock(&lock);
	return (void *)(uintptr_t)b->at;
}

static struct block *take(void *p)
{
	struct block *b = NULL;

	pthread_mutex_lock(&lock);
	for (struct block **at = &blocks; *at && !b; at = &(*at)->next)
		if ((*at)->at == (uintptr_t)p) {
			b = *at;
			*at = b->next;
			break;
		}
	pthread_mutex_unlock(&lock);
	return b;
}

/* What the driver does not take back stays the process'. */
void ptc_pool_free(void *p, size_t size, int device, void *stream)
{
	struct block *b = p ? take(p) : NULL;

	if (!b)
		return;
	cu.cuCtxSynchronize();
	if (cu.cuMemUnmap(b->at, b->bytes) == CUDA_SUCCESS)
		cu.cuMemAddressFree(b->at, b->bytes);
	free(b);
}
