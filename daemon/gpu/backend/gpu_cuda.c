/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's backend: contexts and mapped memory.
 *
 * Happy path: attach finds the device by its UUID (the order of CUDA's indices depends on the environment), retains its
 * primary context and makes the ring; map opens IPC handles or maps imported descriptors; detach undoes all of it.
 *
 * Failure modes: the driver's, through ptc_cuda_check. A half-made device or mapping is undone before the call returns.
 */
#include "base/alloc.h"
#include "base/check.h"
#include "daemon/gpu/backend/gpu_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The UUID without its kind: "GPU-" and "MIG-" are NVML's words, CUDA has the number alone. */
static const char *number_of(const char *uuid)
{
	const char *dash = strchr(uuid, '-');

	return dash ? dash + 1 : uuid;
}

static int find_device(struct ptc_gpu *g, struct ptc_gpu_failure *f)
{
	char uuid[PTC_GPU_UUID_SIZE];
	int count = 0;
	int rc = ptc_gpu_check(g, g->cu->cuDeviceGetCount(&count), f, "count devices");

	if (rc)
		return rc;
	for (int i = 0; i < count; i++) {
		rc = ptc_gpu_check(g, g->cu->cuDeviceGet(&g->device, i), f, "find device %d", i);
		if (rc == 0)
			rc = ptc_gpu_uuid(g->cu, g->device, uuid, &f->err);
		if (rc)
			return rc;
		if (strcmp(number_of(uuid), number_of(g->uuid)) == 0)
			return 0;
	}
	return ptc_gpu_fail(f, PTC_ENODEVICES, PTC_GPU_BLAME_DEVICE,
			    "no device %s: the driver shows %d others; see nvidia-smi and CUDA_VISIBLE_DEVICES",
			    g->uuid, count);
}

static int make_slot(struct ptc_gpu *g, struct ptc_gpu_slot *slot, struct ptc_gpu_failure *f)
{
	int rc = ptc_gpu_check(g, g->cu->cuEventCreate(&slot->done, CU_EVENT_DISABLE_TIMING), f,
			       "device %s: make an event", g->uuid);

	if (rc == 0)
		rc = ptc_gpu_check(g, g->cu->cuEventCreate(&slot->packed, CU_EVENT_DISABLE_TIMING), f,
				   "device %s: make an event", g->uuid);
	if (rc == 0)
		rc = ptc_gpu_check(g,
				   g->cu->cuMemHostAlloc((void **)&slot->bytes, PTC_GPU_SLOT_BYTES,
							 CU_MEMHOSTALLOC_PORTABLE),
				   f, "device %s: pin %" PRIu64 " bytes", g->uuid, PTC_GPU_SLOT_BYTES);
	return rc;
}

static int make_stream(struct ptc_gpu *g, CUstream *ret, struct ptc_gpu_failure *f)
{
	return ptc_gpu_check(g, g->cu->cuStreamCreateWithPriority(ret, CU_STREAM_NON_BLOCKING, 0), f,
			     "device %s: make a stream", g->uuid);
}

static int make_copier(struct ptc_gpu *g, struct ptc_gpu_copier *c, struct ptc_gpu_failure *f)
{
	int rc = make_stream(g, &c->stream, f);

	if (rc == 0)
		rc = make_stream(g, &c->link[PTC_GPU_OUT], f);
	if (rc == 0)
		rc = make_stream(g, &c->link[PTC_GPU_IN], f);
	for (unsigned i = 0; i < PTC_GPU_SLOTS && rc == 0; i++)
		rc = make_slot(g, &c->slots[i], f);
	return rc;
}

static int make_copiers(struct ptc_gpu *g, unsigned n, struct ptc_gpu_failure *f)
{
	int rc;

	ptc_require(n > 0 && n <= PTC_GPU_COPIERS_MAX);
	rc = ptc_gpu_budget_take(g->budget, n * PTC_GPU_COPIER_BYTES, &f->err);
	if (rc) {
		f->fault = (struct ptc_cuda_fault){ rc, PTC_GPU_BLAME_REQUEST, false };
		return rc;
	}
	g->ring_counted = n * PTC_GPU_COPIER_BYTES;
	g->ncopiers = n;
	rc = make_stream(g, &g->stream, f);
	for (unsigned i = 0; i < n && rc == 0; i++)
		rc = make_copier(g, &g->copiers[i], f);
	return rc;
}

/* Undoes a mapping as far as it was made; the first failure counts. */
static CUresult undo(struct ptc_gpu *g, struct ptc_gpu_memory *m)
{
	CUresult first = CUDA_SUCCESS, result;

	if (!m->base)
		return CUDA_SUCCESS;
	if (m->path == PTC_GPU_PATH_IPC)
		return g->cu->cuIpcCloseMemHandle(m->base);
	if (m->path == PTC_GPU_PATH_OWN)
		return g->cu->cuMemFree(m->base);
	for (uint64_t i = 0; i < m->mapped; i++) {
		result = g->cu->cuMemUnmap(m->base + i * m->handle_bytes, m->handle_bytes);
		first = first ? first : result;
	}
	result = g->cu->cuMemAddressFree(m->base, m->bytes);
	return first ? first : result;
}

/* What the driver does not let go of ends with the process. */
static int ended(struct ptc_gpu *g, CUresult result, struct ptc_gpu_failure *f, const char *what)
{
	int rc = ptc_gpu_check(g, result, f, "device %s: %s", g->uuid, what);

	if (rc)
		f->fault.sticky = true;
	return rc;
}

static int cuda_unmap(struct ptc_gpu *g, struct ptc_gpu_memory *m, struct ptc_gpu_failure *f)
{
	CUresult result = undo(g, m);

	for (struct ptc_gpu_memory **at = &g->memory; *at; at = &(*at)->next)
		if (*at == m) {
			*at = m->next;
			break;
		}
	ptc_free(m);
	return ended(g, result, f, "unmap memory");
}

static void drop_stream(struct ptc_gpu *g, CUstream stream)
{
	if (stream)
		g->cu->cuStreamDestroy(stream);
}

static void drop_slot(struct ptc_gpu *g, struct ptc_gpu_slot *slot)
{
	if (slot->bytes)
		g->cu->cuMemFreeHost(slot->bytes);
	if (slot->done)
		g->cu->cuEventDestroy(slot->done);
	if (slot->packed)
		g->cu->cuEventDestroy(slot->packed);
}

/* Of a half-made device too. What the driver says now changes nothing: the process is about to let go of the device. */
static void cuda_detach(struct ptc_gpu *g)
{
	struct ptc_gpu_failure ignored;

	drop_stream(g, g->stream);
	for (unsigned i = 0; i < g->ncopiers; i++) {
		drop_stream(g, g->copiers[i].stream);
		drop_stream(g, g->copiers[i].link[PTC_GPU_OUT]);
		drop_stream(g, g->copiers[i].link[PTC_GPU_IN]);
	}
	while (g->memory)
		(void)cuda_unmap(g, g->memory, &ignored);
	ptc_gpu_kernels_done(g);
	for (unsigned i = 0; i < g->ncopiers * PTC_GPU_SLOTS; i++)
		drop_slot(g, &g->copiers[i / PTC_GPU_SLOTS].slots[i % PTC_GPU_SLOTS]);
	if (g->ring_counted)
		ptc_gpu_budget_give(g->budget, g->ring_counted);
	if (g->context) {
		g->cu->cuCtxSetCurrent(NULL);
		g->cu->cuDevicePrimaryCtxRelease(g->device);
	}
	ptc_free(g);
}

static int cuda_enter(struct ptc_gpu *g, struct ptc_gpu_failure *f)
{
	return ptc_gpu_check(g, g->cu->cuCtxSetCurrent(g->context), f, "device %s: use its context", g->uuid);
}

static int cuda_attach(const char *uuid, unsigned copiers, struct ptc_gpu_budget *budget, struct ptc_gpu **ret,
		       struct ptc_gpu_failure *f)
{
	struct ptc_gpu *g = ptc_calloc(1, sizeof *g);
	CUcontext context = NULL;
	int pitch = 0, rc;

	if (!g)
		return ptc_gpu_fail(f, PTC_ENOMEM, PTC_GPU_BLAME_REQUEST, "out of memory");
	g->budget = budget;
	snprintf(g->uuid, sizeof g->uuid, "%s", uuid);
	rc = ptc_cuda_open(&g->cu, &f->err);
	if (rc) {
		ptc_free(g);
		f->fault = (struct ptc_cuda_fault){ rc, PTC_GPU_BLAME_NODE, false };
		return rc;
	}
	rc = find_device(g, f);
	if (rc == 0)
		rc = ptc_gpu_check(g, g->cu->cuDevicePrimaryCtxRetain(&context, g->device), f,
				   "device %s: make a context", g->uuid);
	if (rc)
		goto err_detach;
	g->context = context;
	rc = cuda_enter(g, f);
	if (rc == 0)
		rc = ptc_gpu_check(g, g->cu->cuDeviceGetAttribute(&pitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH, g->device), f,
				   "device %s: ask for its longest row", g->uuid);
	if (rc == 0)
		rc = make_copiers(g, copiers, f);
	if (rc)
		goto err_detach;
	g->max_pitch = (uint64_t)pitch;
	*ret = g;
	return 0;

err_detach:
	cuda_detach(g);
	return rc;
}

/* What the rank says of its allocation is not believed: a copy beyond it would end this process. */
static int check_size(struct ptc_gpu *g, const struct ptc_gpu_export *e, const struct ptc_gpu_memory *m,
		      struct ptc_gpu_failure *f)
{
	CUdeviceptr base;
	size_t size;
	int rc = ptc_gpu_check(g, g->cu->cuMemGetAddressRange(&base, &size, m->base), f,
			       "device %s: ask for the size of mapped memory", g->uuid);

	if (rc)
		return rc;
	if (m->base >= base && m->base - base <= size && e->bytes <= size - (m->base - base))
		return 0;
	return ptc_gpu_fail(f, PTC_EINVAL, PTC_GPU_BLAME_RANK,
			    "process %" PRIu32 " binds %" PRIu64 " bytes of an allocation of %zu", e->pid, e->bytes,
			    size);
}

static int map_ipc(struct ptc_gpu *g, const struct ptc_gpu_export *e, struct ptc_gpu_memory *m,
		   struct ptc_gpu_failure *f)
{
	struct ptc_gpu_failure closing;
	CUipcMemHandle handle;
	int rc;

	memcpy(handle.reserved, e->ipc, sizeof handle.reserved);
	rc = ptc_gpu_check(g, g->cu->cuIpcOpenMemHandle(&m->base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), f,
			   "device %s: map memory of process %" PRIu32, g->uuid, e->pid);
	if (rc)
		return rc;
	rc = check_size(g, e, m, f);
	if (rc && ended(g, g->cu->cuIpcCloseMemHandle(m->base), &closing, "unmap memory") != 0)
		f->fault.sticky = true;
	return rc;
}

/* Lists memory that was made, or frees what was not. */
static int made(struct ptc_gpu *g, struct ptc_gpu_memory *m, int rc, struct ptc_gpu_memory **ret)
{
	if (rc) {
		ptc_free(m);
		return rc;
	}
	m->context = g->context;
	m->device = g->device;
	m->next = g->memory;
	g->memory = m;
	*ret = m;
	return 0;
}

static int cuda_map(struct ptc_gpu *g, const struct ptc_gpu_export *e, struct ptc_gpu_memory **ret,
		    struct ptc_gpu_failure *f)
{
	struct ptc_gpu_memory *m = ptc_calloc(1, sizeof *m);
	int rc;

	if (!m)
		return ptc_gpu_fail(f, PTC_ENOMEM, PTC_GPU_BLAME_REQUEST, "out of memory");
	m->path = e->path;
	m->bytes = e->bytes;
	m->handles = e->handles;
	m->handle_bytes = e->handle_bytes;
	if (e->path == PTC_GPU_PATH_IPC)
		rc = map_ipc(g, e, m, f);
	else
		rc = ptc_gpu_check(g, g->cu->cuMemAddressReserve(&m->base, m->bytes, 0, 0, 0), f,
				   "device %s: reserve %" PRIu64 " bytes of addresses", g->uuid, m->bytes);
	return made(g, m, rc, ret);
}

/* The handle may be released at once: the mapping holds the memory. */
static int map_handle(struct ptc_gpu *g, struct ptc_gpu_memory *m, int fd, struct ptc_gpu_failure *f)
{
	CUmemGenericAllocationHandle handle;
	CUresult result;
	int rc;

	rc = ptc_gpu_check(g,
			   g->cu->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
								 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
			   f, "device %s: import a handle", g->uuid);
	if (rc)
		return rc;
	result = g->cu->cuMemMap(m->base + m->mapped * m->handle_bytes, m->handle_bytes, 0, handle, 0);
	if (result == CUDA_SUCCESS)
		m->mapped++;
	g->cu->cuMemRelease(handle);
	return ptc_gpu_check(g, result, f, "device %s: map a handle of %" PRIu64 " bytes", g->uuid, m->handle_bytes);
}

static int cuda_map_handles(struct ptc_gpu *g, struct ptc_gpu_memory *m, const int *fds, unsigned n,
			    struct ptc_gpu_failure *f)
{
	CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, g->device }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	int rc = 0;

	if (n > m->handles - m->mapped)
		return ptc_gpu_fail(f, PTC_EINVAL, PTC_GPU_BLAME_REQUEST, "%u handles where %" PRIu64 " are missing", n,
				    m->handles - m->mapped);
	for (unsigned i = 0; i < n && rc == 0; i++)
		rc = map_handle(g, m, fds[i], f);
	if (rc || m->mapped < m->handles)
		return rc;
	return ptc_gpu_check(g, g->cu->cuMemSetAccess(m->base, m->bytes, &access, 1), f,
			     "device %s: get access to %" PRIu64 " bytes", g->uuid, m->bytes);
}

#define BESIDE_FREE 16 /* a part of the device's memory that a trainer beside kept memory can still get */

static int room_beside(struct ptc_gpu *g, uint64_t bytes, struct ptc_gpu_failure *f)
{
	size_t free = 0, total = 0;
	int rc = ptc_gpu_check(g, g->cu->cuMemGetInfo(&free, &total), f, "device %s: ask for free memory", g->uuid);

	if (rc || (bytes <= free && free - bytes >= total / BESIDE_FREE))
		return rc;
	return ptc_gpu_fail(f, PTC_ENOSPC, PTC_GPU_BLAME_REQUEST,
			    "device %s: a copy of %" PRIu64 " bytes has no room there: %zu of %zu bytes are free, and "
			    "%zu have to stay so for the ranks",
			    g->uuid, bytes, free, total, total / BESIDE_FREE);
}

static int needs_kernels(struct ptc_gpu *g, struct ptc_gpu_failure *f)
{
	bool kernels;
	int rc = ptc_gpu_kernels_ready(g, &kernels, f);

	return rc || kernels ? rc
			     : ptc_gpu_fail(f, PTC_ENODEVICES, PTC_GPU_BLAME_REQUEST,
					    "device %s: nothing is kept there without kernels for digests", g->uuid);
}

static int cuda_keep(struct ptc_gpu *g, uint64_t bytes, bool beside, struct ptc_gpu_memory **ret,
		     struct ptc_gpu_failure *f)
{
	struct ptc_gpu_memory *m;
	int rc = beside ? room_beside(g, bytes, f) : needs_kernels(g, f);

	if (rc)
		return rc;
	m = ptc_calloc(1, sizeof *m);
	if (!m)
		return ptc_gpu_fail(f, PTC_ENOMEM, PTC_GPU_BLAME_REQUEST, "out of memory");
	m->path = PTC_GPU_PATH_OWN;
	m->bytes = bytes;
	rc = ptc_gpu_check(g, g->cu->cuMemAlloc(&m->base, bytes), f, "device %s: keep %" PRIu64 " bytes", g->uuid,
			   bytes);
	return made(g, m, rc, ret);
}

static int cuda_pin(struct ptc_gpu *g, void *p, uint64_t bytes, struct ptc_gpu_failure *f)
{
	return ptc_gpu_check(g, g->cu->cuMemHostRegister(p, bytes, CU_MEMHOSTREGISTER_PORTABLE), f,
			     "device %s: pin %" PRIu64 " bytes of host memory", g->uuid, bytes);
}

static int cuda_unpin(struct ptc_gpu *g, void *p, struct ptc_gpu_failure *f)
{
	return ended(g, g->cu->cuMemHostUnregister(p), f, "unpin host memory");
}

const struct ptc_gpu_ops ptc_gpu_cuda_ops = {
	.name = "cuda",
	.attach = cuda_attach,
	.detach = cuda_detach,
	.map = cuda_map,
	.map_handles = cuda_map_handles,
	.unmap = cuda_unmap,
	.pin = cuda_pin,
	.unpin = cuda_unpin,
	.enter = cuda_enter,
	.packs = ptc_gpu_cuda_packs,
	.kernels = ptc_gpu_kernels_ready,
	.copy = ptc_gpu_cuda_copy,
	.copied = ptc_gpu_cuda_copied,
	.keep = cuda_keep,
	.copy_within = ptc_gpu_cuda_copy_within,
	.digest = ptc_gpu_cuda_digest,
};
