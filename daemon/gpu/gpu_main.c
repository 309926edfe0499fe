/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-gpu: the process that calls the CUDA driver and NVML, so that ptcd need not. These calls have a price: a context
 * of half a gigabyte, waits that cannot be interrupted, errors that last until the process ends. This process pays it,
 * and ptcd can replace this process.
 *
 *   ptc-gpu --list                       the node's devices as JSON, then exit
 *   ptc-gpu --serve --pinned BYTES       ptcd's requests on descriptor 3 (gpu_wire.h)
 *           [--copiers N]                copies of a device that run at once
 *
 * Failure modes: wrong arguments, exit 2; what fails otherwise is one line on stderr, exit 1. */
#include "base/alloc.h"
#include "base/log.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "daemon/gpu/gpu_devices.h"
#include "daemon/gpu/gpu_server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int list(void)
{
	static struct ptc_gpu_device devices[PTC_GPU_DEVICES_MAX];
	struct ptc_error err = PTC_ERROR_INIT;
	size_t n = 0;
	char *text;

	(void)ptc_gpu_devices_find(devices, PTC_GPU_DEVICES_MAX, &n, &err); /* the JSON says why there are none */
	text = ptc_gpu_devices_json(devices, n, &err);
	if (!text || puts(text) < 0 || fflush(stdout) != 0) {
		ptc_error_log("gpu", "cannot write the list of devices");
		return 1;
	}
	ptc_free(text);
	return 0;
}

static bool number_of(const char *text, unsigned long long *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	return !errno && end != text && !*end && text[0] != '-';
}

static int serve(const char *pinned, const char *copiers)
{
	struct ptc_error err = PTC_ERROR_INIT;
	unsigned long long bytes, n = 2; /* an older ptcd does not say it, and counts 16 MiB for each device */

	if (!number_of(pinned, &bytes) || (copiers && !number_of(copiers, &n)) || n < 1 || n > PTC_GPU_COPIERS_MAX)
		return 2;
	if (fcntl(PTC_GPU_FD, F_GETFD) < 0) {
		ptc_error_log("gpu", "descriptor %d is not open: only ptcd starts ptc-gpu --serve", PTC_GPU_FD);
		return 1;
	}
	if (ptc_gpu_serve(PTC_GPU_FD, bytes, (unsigned)n, &err) == 0)
		return 0;
	ptc_error_log("gpu", "%s", err.text);
	return 1;
}

static bool is(const char *arg, const char *name)
{
	return strcmp(arg, name) == 0;
}

int main(int argc, char **argv)
{
	int rc = 2;

	ptc_sys_standard_fds();
	ptc_fault_init();
	if (argc == 2 && is(argv[1], "--list"))
		rc = list();
	else if (argc >= 4 && is(argv[1], "--serve") && is(argv[2], "--pinned") &&
		 (argc == 4 || (argc == 6 && is(argv[4], "--copiers"))))
		rc = serve(argv[3], argc == 6 ? argv[5] : NULL);
	if (rc == 2)
		fprintf(stderr, "usage: ptc-gpu --list | --serve --pinned BYTES [--copiers 1..%d]\n",
			PTC_GPU_COPIERS_MAX);
	return rc;
}
