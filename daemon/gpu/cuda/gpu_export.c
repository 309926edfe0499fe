/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: cuPointerGetAttributes says what kind of allocation the address lies in; the allocation's own call then
 * gives the handle. Failure modes: gpu_export.h. */
#include "daemon/gpu/cuda/gpu_export.h"

#include "base/check.h"
#include "base/cleanup.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What the driver says of an address. */
struct pointer {
	CUcontext context;
	void *pool;
	CUmemorytype type;
	unsigned long long buffer, handle_types;
	uint32_t managed, ordinal, ipc;
	size_t mapping_bytes;
	CUdeviceptr mapping_base;
};

/* The attributes are of these types in CUDA's documentation; wider fields start as zero, so a narrower answer is right
 * too. */
static int ask(const struct ptc_cuda *cu, CUdeviceptr address, struct pointer *ret, struct ptc_error *err)
{
	CUpointer_attribute names[] = {
		CU_POINTER_ATTRIBUTE_CONTEXT,
		CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		CU_POINTER_ATTRIBUTE_BUFFER_ID,
		CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
		CU_POINTER_ATTRIBUTE_IS_MANAGED,
		CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
		CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
		CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
	};
	struct pointer p = { 0 };
	void *values[] = { &p.context, &p.pool,    &p.type, &p.buffer,        &p.handle_types,
			   &p.managed, &p.ordinal, &p.ipc,  &p.mapping_bytes, &p.mapping_base };
	int rc;

	rc = ptc_cuda_check(cu, cu->cuPointerGetAttributes(PTC_ARRAY_LEN(names), names, values, address), NULL, err,
			    "ask the driver about address 0x%llx", address);
	if (rc)
		return rc;
	*ret = p;
	return 0;
}

int ptc_gpu_uuid(const struct ptc_cuda *cu, CUdevice device, char ret_uuid[PTC_GPU_UUID_SIZE], struct ptc_error *err)
{
	CUuuid id;
	unsigned char b[sizeof id.bytes];
	int rc = ptc_cuda_check(cu, cu->cuDeviceGetUuid(&id, device), NULL, err, "ask for the device's UUID");

	if (rc)
		return rc;
	memcpy(b, id.bytes, sizeof b);
	snprintf(ret_uuid, PTC_GPU_UUID_SIZE,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3],
		 b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
	return 0;
}

int ptc_gpu_process_start(uint32_t pid, uint64_t *ret_start, struct ptc_error *err)
{
	ptc_auto_fclose FILE *f = NULL;
	char path[64], line[1024], state;
	const char *at;
	size_t n;

	snprintf(path, sizeof path, "/proc/%" PRIu32 "/stat", pid);
	f = fopen(path, "re");
	if (!f)
		return ptc_error_set(err, PTC_ENOTFOUND, "process %" PRIu32 " has ended", pid);
	n = fread(line, 1, sizeof line - 1, f);
	line[n] = '\0';
	at = strrchr(line, ')'); /* the name before it may hold anything */
	if (!at || sscanf(at, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64,
			  &state, ret_start) != 2)
		return ptc_error_set(err, PTC_EIO, "%s does not say when the process began", path);
	if (state == 'Z' || state == 'X')
		return ptc_error_set(err, PTC_ENOTFOUND, "process %" PRIu32 " has ended", pid);
	return 0;
}

/* Only its owner can copy it. */
static int by_trainer(struct ptc_gpu_export *e, const char *why)
{
	e->path = PTC_GPU_PATH_TRAINER;
	snprintf(e->why, sizeof e->why, "%s", why);
	return 0;
}

static int by_ipc(const struct ptc_cuda *cu, CUdeviceptr address, uint64_t bytes, struct ptc_gpu_export *e,
		  struct ptc_error *err)
{
	CUipcMemHandle handle;
	CUdeviceptr base = 0;
	CUresult result;
	size_t size = 0;
	int rc;

	rc = ptc_cuda_check(cu, cu->cuMemGetAddressRange(&base, &size, address), NULL, err,
			    "ask for the allocation of address 0x%llx", address);
	if (rc)
		return rc;
	if (bytes > size || address - base > size - bytes)
		return ptc_error_set(err, PTC_EINVAL,
				     "%" PRIu64 " bytes at 0x%llx go beyond their allocation of %zu bytes at 0x%llx",
				     bytes, address, size, base);
	result = cu->cuIpcGetMemHandle(&handle, base);
	if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED ||
	    result == CUDA_ERROR_OPERATING_SYSTEM)
		return by_trainer(e, "the driver gives no IPC handle here (container, MIG or virtual machine)");
	rc = ptc_cuda_check(cu, result, NULL, err, "share the allocation at 0x%llx", base);
	if (rc)
		return rc;
	memcpy(e->ipc, handle.reserved, sizeof e->ipc);
	e->path = PTC_GPU_PATH_IPC;
	e->bytes = size;
	e->offset = address - base;
	return 0;
}

/* Each handle under the range has a buffer number of its own: all of them make the key. */
static uint64_t mix(uint64_t key, uint64_t number)
{
	return (key ^ number) * UINT64_C(0x9E3779B97F4A7C15) + (key >> 29);
}

static int by_vmm(const struct ptc_cuda *cu, const struct pointer *first, CUdeviceptr address, uint64_t bytes,
		  struct ptc_gpu_export *e, struct ptc_error *err)
{
	CUdeviceptr end = address + bytes, at = first->mapping_base;
	uint64_t key = 0;

	e->handle_bytes = first->mapping_bytes;
	for (; at < end; at += e->handle_bytes) {
		struct pointer p;
		int rc = ask(cu, at, &p, err);

		if (rc)
			return rc;
		if (!(p.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
			return by_trainer(e, "memory was made without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
		if (p.mapping_base != at || p.mapping_bytes != e->handle_bytes)
			return by_trainer(e, "the range lies in handles of different sizes");
		if (++e->handles > PTC_GPU_HANDLES_MAX)
			return by_trainer(e, "the range lies in more than 65536 handles");
		key = mix(key, p.buffer);
	}
	e->path = PTC_GPU_PATH_VMM;
	e->buffer = key;
	e->bytes = e->handles * e->handle_bytes;
	e->offset = address - first->mapping_base;
	return 0;
}

int ptc_gpu_export(const struct ptc_cuda *cu, uint64_t address, uint64_t bytes, struct ptc_gpu_export *ret,
		   struct ptc_error *err)
{
	struct ptc_gpu_export e = { .pid = (uint32_t)getpid() };
	unsigned long long context = 0;
	struct pointer p;
	uint64_t end;
	CUdevice device;
	int rc = ask(cu, address, &p, err);

	if (rc)
		return rc;
	if (p.type != CU_MEMORYTYPE_DEVICE || bytes == 0 || ptc_ckd_add(&end, address, bytes))
		return ptc_error_set(err, PTC_EINVAL, "%" PRIu64 " bytes at 0x%" PRIx64 " are no device memory", bytes,
				     address);
	rc = ptc_cuda_check(cu, cu->cuDeviceGet(&device, (int)p.ordinal), NULL, err, "find device %u", p.ordinal);
	if (rc == 0)
		rc = ptc_gpu_uuid(cu, device, e.uuid, err);
	if (rc == 0)
		rc = ptc_gpu_process_start(e.pid, &e.process_start, err);
	if (rc == 0 && p.context)
		rc = ptc_cuda_check(cu, cu->cuCtxGetId(p.context, &context), NULL, err, "ask for the context's number");
	if (rc)
		return rc;
	e.context = context;
	e.buffer = p.buffer;
	e.bytes = bytes;
	if (p.managed)
		rc = by_trainer(&e, "managed memory cannot be shared");
	else if (p.pool)
		rc = by_trainer(&e, "memory of a stream-ordered pool cannot be shared by handle");
	else if (p.ipc)
		rc = by_ipc(cu, address, bytes, &e, err);
	else if (p.mapping_bytes)
		rc = by_vmm(cu, &p, address, bytes, &e, err);
	else
		rc = by_trainer(&e, "the driver offers no handle for this memory");
	if (rc)
		return rc;
	*ret = e;
	return 0;
}

static int export_fd(const struct ptc_cuda *cu, CUdeviceptr at, int *ret_fd, struct ptc_error *err)
{
	CUmemGenericAllocationHandle handle;
	CUresult result;
	int rc;

	rc = ptc_cuda_check(cu, cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at), NULL, err,
			    "find the handle at 0x%llx", at);
	if (rc)
		return rc;
	result = cu->cuMemExportToShareableHandle(ret_fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	cu->cuMemRelease(handle);
	return ptc_cuda_check(cu, result, NULL, err, "share the handle at 0x%llx", at);
}

int ptc_gpu_export_fds(const struct ptc_cuda *cu, uint64_t address, const struct ptc_gpu_export *e, uint64_t first,
		       unsigned count, int *ret_fds, struct ptc_error *err)
{
	unsigned n = 0;
	int rc = 0;

	if (count > PTC_GPU_FDS_MAX || first > e->handles || count > e->handles - first)
		return ptc_error_set(err, PTC_EINVAL, "handles %" PRIu64 " to %" PRIu64 " of %" PRIu64, first,
				     first + count, e->handles);
	for (; n < count && rc == 0; n++)
		rc = export_fd(cu, address - e->offset + (first + n) * e->handle_bytes, &ret_fds[n], err);
	if (rc == 0)
		return 0;
	for (n--; n > 0; n--)
		close(ret_fds[n - 1]);
	return rc;
}
