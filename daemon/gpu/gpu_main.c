/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-gpu: the process that calls the CUDA driver and NVML, so that ptcd need not. These calls have a price: a context
 * of half a gigabyte, waits that cannot be interrupted, errors that last until the process ends. This process pays it,
 * and ptcd can replace this process.
 *
 *   ptc-gpu --list                       the node's devices as JSON, then exit
 *   ptc-gpu --serve --pinned BYTES       ptcd's requests on descriptor 3 (gpu_wire.h)
 *
 * Failure modes: wrong arguments, exit 2; what fails otherwise is one line on stderr, exit 1. */
#include "base/alloc.h"
#include "base/sys/fault.h"
#include "base/log.h"
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

static int serve(const char *pinned)
{
	struct ptc_error err = PTC_ERROR_INIT;
	unsigned long long bytes;
	char *end;

	errno = 0;
	bytes = strtoull(pinned, &end, 10);
	if (errno || end == pinned || *end || pinned[0] == '-')
		return 2;
	if (fcntl(PTC_GPU_FD, F_GETFD) < 0) {
		ptc_error_log("gpu", "descriptor %d is not open: only ptcd starts ptc-gpu --serve", PTC_GPU_FD);
		return 1;
	}
	if (ptc_gpu_serve(PTC_GPU_FD, bytes, &err) == 0)
		return 0;
	ptc_error_log("gpu", "%s", err.text);
	return 1;
}

int main(int argc, char **argv)
{
	int rc = 2;

	ptc_sys_standard_fds();
	ptc_fault_init();
	if (argc == 2 && strcmp(argv[1], "--list") == 0)
		rc = list();
	else if (argc == 4 && strcmp(argv[1], "--serve") == 0 && strcmp(argv[2], "--pinned") == 0)
		rc = serve(argv[3]);
	if (rc == 2)
		fprintf(stderr, "usage: ptc-gpu --list | --serve --pinned BYTES\n");
	return rc;
}
