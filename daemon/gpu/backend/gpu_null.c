/* SPDX-License-Identifier: Apache-2.0 */
/* The backend `null`, for a node without a usable driver, and what both backends share. Happy path: none. attach says
 * why there is no GPU. Since no device can be attached, nothing else is called. */
#include "base/check.h"
#include "daemon/gpu/backend/gpu_ops.h"

#include <inttypes.h>
#include <stdarg.h>

static int null_status = PTC_ENODEVICES;
static const char *null_why = "";

int(ptc_gpu_fail)(struct ptc_gpu_failure *f, int status, enum ptc_gpu_blame blame, const char *fmt, ...)
{
	va_list ap;

	f->fault = (struct ptc_cuda_fault){ status, blame, false };
	va_start(ap, fmt);
	ptc_error_vset(&f->err, status, fmt, ap);
	va_end(ap);
	return status;
}

int ptc_gpu_budget_take(struct ptc_gpu_budget *b, uint64_t bytes, struct ptc_error *err)
{
	uint64_t used = atomic_load(&b->used);

	do {
		if (used > b->max || bytes > b->max - used)
			return ptc_error_set(err, PTC_ENOSPC,
					     "%" PRIu64 " bytes of pinned memory, %" PRIu64 " of %" PRIu64
					     " are in use; raise the ceiling of pinned memory",
					     bytes, used, b->max);
	} while (!atomic_compare_exchange_weak(&b->used, &used, used + bytes));
	return 0;
}

void ptc_gpu_budget_give(struct ptc_gpu_budget *b, uint64_t bytes)
{
	ptc_require(atomic_fetch_sub(&b->used, bytes) >= bytes);
}

static int null_attach(const char *uuid, unsigned copiers, struct ptc_gpu_budget *budget, struct ptc_gpu **ret,
		       struct ptc_gpu_failure *f)
{
	int rc = ptc_gpu_fail(f, null_status, PTC_GPU_BLAME_NODE, "device %s: %s", uuid, null_why);

	f->fault.sticky = true; /* a driver that comes later is found by the next process */
	return rc;
}

static const struct ptc_gpu_ops *null_ops(int status, const char *why)
{
	static const struct ptc_gpu_ops ops = { .name = "null", .attach = null_attach };

	null_status = status;
	null_why = why;
	return &ops;
}

const struct ptc_gpu_ops *ptc_gpu_backend(const char **ret_why)
{
	static struct ptc_error err = PTC_ERROR_INIT;
	const struct ptc_cuda *cu;
	int rc = ptc_cuda_open(&cu, &err);

	*ret_why = err.text;
	return rc ? null_ops(rc, err.text) : &ptc_gpu_cuda_ops;
}
