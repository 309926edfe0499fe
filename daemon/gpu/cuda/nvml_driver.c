/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: dlopen, dlsym of each function, nvmlInit. Failure modes: nvml_driver.h. */
#include "daemon/gpu/cuda/nvml_driver.h"

#include <dlfcn.h>
#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct ptc_nvml table;
static struct ptc_error failed;

static int resolve(void *library, const char *symbol, void **ret)
{
	*ret = dlsym(library, symbol);
	if (*ret)
		return 0;
	return ptc_error_set(&failed, PTC_EVERSION, "%s has no %s; install an NVIDIA driver of CUDA 12.0 or newer",
			     PTC_NVML_LIBRARY, symbol);
}

static int resolve_all(void *library)
{
	int rc = resolve(library, "nvmlErrorString", (void **)&table.text);

	if (rc)
		return rc;
#define RESOLVE(field, symbol, parameters)                                                                             \
	rc = resolve(library, #symbol, (void **)&table.field);                                                         \
	if (rc)                                                                                                        \
		return rc;
	PTC_NVML_FUNCTIONS(RESOLVE)
#undef RESOLVE
	return 0;
}

static void load(void)
{
	void *library = dlopen(PTC_NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	nvmlReturn_t result;

	if (!library) {
		ptc_error_set(&failed, PTC_ENODEVICES, "no NVIDIA driver on this node: %s", dlerror());
		return;
	}
	if (resolve_all(library) != 0)
		return;
	result = table.init();
	if (result == NVML_ERROR_LIB_RM_VERSION_MISMATCH)
		ptc_error_set(&failed, PTC_EVERSION, "NVML does not start: %s; reboot the node", table.text(result));
	else if (result != NVML_SUCCESS)
		ptc_error_set(&failed, PTC_ENODEVICES, "NVML does not start: %s (%d); see nvidia-smi",
			      table.text(result), result);
}

int ptc_nvml_open(const struct ptc_nvml **ret, struct ptc_error *err)
{
	pthread_once(&once, load);
	if (failed.code)
		return ptc_error_set(err, failed.code, "%s", failed.text);
	*ret = &table;
	return 0;
}
