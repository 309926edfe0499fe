/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gpu/client/test_gpu_rank.h"

#include "base/check.h"
#include "daemon/gpu/gpu_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define OWNED_MAX 16

#define FIELD(name, version, parameters) CUresult(*name) parameters;
static struct {
	PTC_CUDA_CLIENT_FUNCTIONS(FIELD)
	PTC_CUDA_TRAINER_FUNCTIONS(FIELD)
} more;

struct owned {
	uint64_t address, bytes, handle_bytes;
	enum test_rank_kind kind;
};

static const struct ptc_cuda *cu;
static CUdevice device;
static CUstream stream;
static struct owned owned[OWNED_MAX];
static uint64_t *page;

static CUresult map_handles(struct owned *o)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				     .location = { CU_MEM_LOCATION_TYPE_DEVICE, device } };
	CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr base;

	ptc_require(!cu->cuMemAddressReserve(&base, o->bytes, 0, 0, 0));
	for (uint64_t at = 0; at < o->bytes; at += o->handle_bytes) {
		CUmemGenericAllocationHandle handle;

		ptc_require(!more.cuMemCreate(&handle, o->handle_bytes, &prop, 0));
		ptc_require(!cu->cuMemMap(base + at, o->handle_bytes, 0, handle, 0));
		ptc_require(!cu->cuMemRelease(handle));
	}
	o->address = base;
	return cu->cuMemSetAccess(base, o->bytes, &access, 1);
}

static int allocate(const struct test_rank_order *q, struct test_rank_reply *a)
{
	struct owned *o = owned;
	CUdeviceptr address;
	CUresult result;

	while (o->bytes)
		ptc_require(++o < owned + OWNED_MAX);
	*o = (struct owned){ 0, q->bytes, q->handle_bytes, q->kind };
	if (q->kind == RANK_VMM) {
		result = map_handles(o);
	} else {
		result = q->kind == RANK_PLAIN ? cu->cuMemAlloc(&address, q->bytes)
					       : more.cuMemAllocAsync(&address, q->bytes, stream);
		o->address = address;
	}
	ptc_require(!result);
	for (uint64_t i = 0; i < q->bytes; i++) /* the fake driver's device memory is host memory */
		((unsigned char *)(uintptr_t)o->address)[i] = test_gpu_byte(q->value, i);
	a->address = o->address;
	return 0;
}

static int release(const struct test_rank_order *q)
{
	struct owned *o = owned;

	while (o->address != q->address)
		ptc_require(++o < owned + OWNED_MAX);
	if (o->kind == RANK_PLAIN)
		ptc_require(!cu->cuMemFree(o->address));
	else if (o->kind == RANK_POOL)
		ptc_require(!more.cuMemFreeAsync(o->address, stream));
	for (uint64_t at = 0; o->kind == RANK_VMM && at < o->bytes; at += o->handle_bytes)
		ptc_require(!cu->cuMemUnmap(o->address + at, o->handle_bytes));
	if (o->kind == RANK_VMM)
		ptc_require(!cu->cuMemAddressFree(o->address, o->bytes));
	*o = (struct owned){ 0 };
	return 0;
}

static int differs(const struct test_rank_order *q)
{
	for (uint64_t i = 0; i < q->bytes; i++)
		if (((unsigned char *)(uintptr_t)q->address)[i] != test_gpu_byte(q->value, i))
			return 1;
	return 0;
}

static void make_page(int *ret_fd)
{
	*ret_fd = memfd_create("page", MFD_CLOEXEC);
	ptc_require(*ret_fd >= 0 && ftruncate(*ret_fd, 4096) == 0);
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd, 0);
	ptc_require(page != MAP_FAILED);
	ptc_require(!cu->cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
}

static int mark(uint64_t value, struct ptc_error *err)
{
	CUdeviceptr word;

	ptc_require(!cu->cuMemHostGetDevicePointer(&word, page, 0));
	return ptc_cuda_check(cu, cu->cuStreamWriteValue64(stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT), NULL,
			      err, "write a mark");
}

static int obey(const struct test_rank_order *q, struct test_rank_reply *a, int *fds, unsigned *nfds,
		struct ptc_error *err)
{
	switch (q->op) {
	case RANK_ALLOC:
		return allocate(q, a);
	case RANK_EXPORT:
		return ptc_gpu_export(cu, q->address, q->bytes, &a->e, err);
	case RANK_FDS:
		*nfds = q->count;
		return ptc_gpu_export_fds(cu, q->address, &q->e, q->first, q->count, fds, err);
	case RANK_FREE:
		return release(q);
	case RANK_CHECK:
		return differs(q);
	case RANK_PAGE:
		*nfds = 1;
		make_page(fds);
		return 0;
	case RANK_MARK:
		return mark(q->value, err);
	case RANK_STEP:
		more.cuStreamQuery(stream);
		return 0;
	}
	return PTC_EINVAL;
}

static void start(int ordinal)
{
	struct ptc_error err = PTC_ERROR_INIT;
	CUcontext context;

	ptc_require(!ptc_cuda_open(&cu, &err));
#define RESOLVE(name, version, parameters) ptc_require(!ptc_cuda_resolve(#name, version, (void **)&more.name, &err));
	PTC_CUDA_CLIENT_FUNCTIONS(RESOLVE)
	PTC_CUDA_TRAINER_FUNCTIONS(RESOLVE)
	ptc_require(!cu->cuDeviceGet(&device, ordinal));
	ptc_require(!cu->cuDevicePrimaryCtxRetain(&context, device));
	ptc_require(!cu->cuCtxSetCurrent(context));
	ptc_require(!cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
}

int test_rank_main(int ordinal)
{
	int fds[PTC_GPU_FDS_MAX];
	struct test_rank_order q;
	unsigned nfds;

	start(ordinal);
	while (ptc_gpu_receive(PTC_GPU_FD, &q, sizeof q, fds, &nfds) == (long)sizeof q) {
		struct test_rank_reply a = { 0 };
		struct ptc_error err = PTC_ERROR_INIT;

		nfds = 0;
		a.rc = obey(&q, &a, fds, &nfds, &err);
		nfds = a.rc ? 0 : nfds;
		snprintf(a.text, sizeof a.text, "%.255s", err.text);
		ptc_require(ptc_gpu_send(PTC_GPU_FD, &a, sizeof a, NULL, 0, fds, nfds) == 0);
		for (unsigned i = 0; i < nfds; i++)
			close(fds[i]);
	}
	if (page)
		ptc_require(!cu->cuMemHostUnregister(page));
	for (struct owned *o = owned; o < owned + OWNED_MAX; o++)
		if (o->bytes)
			release(&(struct test_rank_order){ .address = o->address });
	ptc_require(!cu->cuStreamDestroy(stream) && !cu->cuDevicePrimaryCtxRelease(device));
	return 0;
}
