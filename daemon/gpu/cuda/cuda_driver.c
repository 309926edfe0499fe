/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: dlopen, cuDriverGetVersion by dlsym, cuGetProcAddress_v2 by dlsym, every function through it, cuInit.
 *
 * Failure modes: cuda_driver.h. A failed open is remembered: the driver is not tried again by this process, because
 * cuInit gives its first answer for ever. */
#include "daemon/gpu/cuda/cuda_driver.h"

#include "base/check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef CUresult (*get_version_fn)(int *version);
typedef CUresult (*get_address_fn)(const char *name, void **ret, int version, cuuint64_t flags,
				   CUdriverProcAddressQueryResult *ret_status);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct ptc_cuda table;
static struct ptc_error failed;
static get_address_fn get_address;

/* What each result means for whoever asked; results that are not listed break the request alone. */
static const struct meaning {
	CUresult result;
	struct ptc_cuda_fault fault;
	const char *advice;
} meanings[] = {
	{ CUDA_ERROR_OUT_OF_MEMORY,
	  { PTC_ENOMEM, PTC_GPU_BLAME_REQUEST, false },
	  "the device or the node is out of memory; end a process that uses it" },
	{ CUDA_ERROR_STUB_LIBRARY,
	  { PTC_ENODEVICES, PTC_GPU_BLAME_NODE, false },
	  "libcuda.so.1 is a toolkit's stub; install the NVIDIA driver" },
	{ CUDA_ERROR_DEVICE_UNAVAILABLE,
	  { PTC_EIO, PTC_GPU_BLAME_DEVICE, false },
	  "the device is in exclusive use or gone; see nvidia-smi" },
	{ CUDA_ERROR_NO_DEVICE,
	  { PTC_ENODEVICES, PTC_GPU_BLAME_NODE, false },
	  "the driver shows no device; see nvidia-smi and CUDA_VISIBLE_DEVICES" },
	{ CUDA_ERROR_INVALID_DEVICE,
	  { PTC_ENODEVICES, PTC_GPU_BLAME_DEVICE, false },
	  "the driver no longer has this device; see nvidia-smi" },
	{ CUDA_ERROR_MAP_FAILED,
	  { PTC_ESTATE, PTC_GPU_BLAME_RANK, false },
	  "the memory cannot be mapped; the process that owns it may have ended" },
	{ CUDA_ERROR_INVALID_HANDLE,
	  { PTC_ESTATE, PTC_GPU_BLAME_RANK, false },
	  "the memory was freed or its process has ended" },
	{ CUDA_ERROR_ECC_UNCORRECTABLE,
	  { PTC_EIO, PTC_GPU_BLAME_DEVICE, true },
	  "an uncorrectable memory error; drain the node and reset the device" },
	{ CUDA_ERROR_NVLINK_UNCORRECTABLE,
	  { PTC_EIO, PTC_GPU_BLAME_DEVICE, true },
	  "an uncorrectable NVLink error; drain the node and reset the device" },
	{ CUDA_ERROR_CONTAINED,
	  { PTC_EIO, PTC_GPU_BLAME_DEVICE, true },
	  "a contained memory error; drain the node and reset the device" },
	{ CUDA_ERROR_ILLEGAL_ADDRESS,
	  { PTC_EIO, PTC_GPU_BLAME_REQUEST, true },
	  "memory was used that is not mapped; ptc-gpu has to start again" },
	{ CUDA_ERROR_LAUNCH_TIMEOUT,
	  { PTC_EIO, PTC_GPU_BLAME_REQUEST, true },
	  "a kernel ran too long; ptc-gpu has to start again" },
	{ CUDA_ERROR_CONTEXT_IS_DESTROYED,
	  { PTC_EIO, PTC_GPU_BLAME_REQUEST, true },
	  "the context is gone; ptc-gpu has to start again" },
	{ CUDA_ERROR_HARDWARE_STACK_ERROR,
	  { PTC_EIO, PTC_GPU_BLAME_DEVICE, true },
	  "the device failed; see the kernel log for Xid" },
	{ CUDA_ERROR_LAUNCH_FAILED,
	  { PTC_EIO, PTC_GPU_BLAME_REQUEST, true },
	  "ptc-gpu's context failed; it has to start again" },
	{ CUDA_ERROR_MPS_CLIENT_TERMINATED,
	  { PTC_EIO, PTC_GPU_BLAME_REQUEST, true },
	  "the MPS server ended this client; ptc-gpu has to start again" },
	{ CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
	  { PTC_ENODEVICES, PTC_GPU_BLAME_REQUEST, false },
	  "the devices cannot read each other's memory" },
	{ CUDA_ERROR_TOO_MANY_PEERS,
	  { PTC_ENODEVICES, PTC_GPU_BLAME_REQUEST, false },
	  "the device cannot read the memory of so many others" },
	{ CUDA_ERROR_NOT_PERMITTED,
	  { PTC_EPERM, PTC_GPU_BLAME_REQUEST, false },
	  "the driver does not permit it here (container, MIG or other user)" },
	{ CUDA_ERROR_NOT_SUPPORTED,
	  { PTC_ESTATE, PTC_GPU_BLAME_REQUEST, false },
	  "the driver does not support it here (container, MIG or virtual machine)" },
	{ CUDA_ERROR_SYSTEM_NOT_READY,
	  { PTC_ENODEVICES, PTC_GPU_BLAME_NODE, false },
	  "the fabric manager is not ready; start nvidia-fabricmanager" },
	{ CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
	  { PTC_EVERSION, PTC_GPU_BLAME_NODE, false },
	  "the driver's library and kernel module are of different versions; reboot the node" },
	{ CUDA_ERROR_UNKNOWN,
	  { PTC_EIO, PTC_GPU_BLAME_DEVICE, true },
	  "the device failed; see the kernel log for Xid" },
};

static const struct meaning *meaning_of(CUresult result)
{
	static const struct meaning other = { 0, { PTC_EIO, PTC_GPU_BLAME_REQUEST, false }, "refused by the driver" };

	for (size_t i = 0; i < PTC_ARRAY_LEN(meanings); i++)
		if (meanings[i].result == result)
			return &meanings[i];
	return &other;
}

struct ptc_cuda_fault ptc_cuda_fault(CUresult result)
{
	if (result == CUDA_SUCCESS)
		return (struct ptc_cuda_fault){ 0, PTC_GPU_BLAME_NONE, false };
	return meaning_of(result)->fault;
}

int ptc_cuda_check(const struct ptc_cuda *cu, CUresult result, struct ptc_cuda_fault *ret_fault, struct ptc_error *err,
		   const char *fmt, ...)
{
	const struct meaning *m = meaning_of(result);
	const char *name = NULL;
	char what[256];
	va_list ap;

	if (result == CUDA_SUCCESS)
		return 0;
	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	if (ret_fault)
		*ret_fault = m->fault;
	if (!cu || cu->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
		name = "CUDA error";
	return ptc_error_set(err, m->fault.status, "%s: %s (%d): %s", what, name, result, m->advice);
}

static int resolve(const char *name, int version, void **ret)
{
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	CUresult result = get_address(name, ret, version, CU_GET_PROC_ADDRESS_DEFAULT, &status);

	if (result == CUDA_SUCCESS && status == CU_GET_PROC_ADDRESS_SUCCESS && *ret)
		return 0;
	return ptc_error_set(&failed, PTC_EVERSION,
			     "%s has no %s of CUDA %d.%d; install an NVIDIA driver of CUDA %d.%d or newer",
			     PTC_CUDA_LIBRARY, name, version / 1000, version % 1000 / 10, PTC_CUDA_VERSION_MIN / 1000,
			     PTC_CUDA_VERSION_MIN % 1000 / 10);
}

static int resolve_all(void)
{
	int rc;

#define RESOLVE(name, version, parameters)                                                                             \
	rc = resolve(#name, version, (void **)&table.name);                                                            \
	if (rc)                                                                                                        \
		return rc;
	PTC_CUDA_FUNCTIONS(RESOLVE)
#undef RESOLVE
	return 0;
}

static void load(void)
{
	get_version_fn get_version;
	void *library = dlopen(PTC_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	int version = 0;

	if (!library) {
		ptc_error_set(&failed, PTC_ENODEVICES, "no NVIDIA driver on this node: %s", dlerror());
		return;
	}
	get_version = (get_version_fn)dlsym(library, "cuDriverGetVersion");
	get_address = (get_address_fn)dlsym(library, "cuGetProcAddress_v2");
	if (get_version && ptc_cuda_check(NULL, get_version(&version), NULL, &failed, "%s does not report its version",
					  PTC_CUDA_LIBRARY) != 0)
		return;
	if (!get_address || version < PTC_CUDA_VERSION_MIN) {
		ptc_error_set(&failed, PTC_EVERSION,
			      "the NVIDIA driver supports CUDA %d.%d; install one that supports %d.%d or newer",
			      version / 1000, version % 1000 / 10, PTC_CUDA_VERSION_MIN / 1000,
			      PTC_CUDA_VERSION_MIN % 1000 / 10);
		return;
	}
	if (resolve_all() != 0)
		return;
	table.version = version;
	ptc_cuda_check(&table, table.cuInit(0), NULL, &failed, "the NVIDIA driver does not start");
}

int ptc_cuda_open(const struct ptc_cuda **ret, struct ptc_error *err)
{
	pthread_once(&once, load);
	if (failed.code)
		return ptc_error_set(err, failed.code, "%s", failed.text);
	*ret = &table;
	return 0;
}

int ptc_cuda_resolve(const char *name, int version, void **ret, struct ptc_error *err)
{
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	const struct ptc_cuda *cu;
	int rc = ptc_cuda_open(&cu, err);

	if (rc)
		return rc;
	if (get_address(name, ret, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS || !*ret)
		return ptc_error_set(err, PTC_EVERSION, "%s has no %s", PTC_CUDA_LIBRARY, name);
	return 0;
}
