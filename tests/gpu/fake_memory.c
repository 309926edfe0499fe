/* SPDX-License-Identifier: Apache-2.0 */
/* The fake driver: allocations, sharing, host memory (fake_cuda.h). */
#include "tests/gpu/fake_cuda.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEADER    ((size_t)4096)
#define ALIGNMENT ((size_t)4096)

static size_t rounded(size_t n)
{
	return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- ranges ---- */

struct fake_range *fake_range_add(enum fake_kind kind, void *base, size_t size)
{
	struct fake_range *r = calloc(1, sizeof *r);

	if (!r)
		abort();
	r->kind = kind;
	r->base = (uintptr_t)base;
	r->size = size;
	r->context = fake_current();
	r->device = r->context ? r->context->device : 0;
	r->buffer = ++fake.next_id;
	r->next = fake.ranges;
	fake.ranges = r;
	return r;
}

struct fake_range *fake_range_at(uintptr_t address)
{
	for (struct fake_range *r = fake.ranges; r; r = r->next)
		if (address >= r->base && address - r->base < r->size)
			return r;
	return NULL;
}

void fake_range_remove(struct fake_range *r)
{
	for (struct fake_range **at = &fake.ranges; *at; at = &(*at)->next)
		if (*at == r) {
			*at = r->next;
			break;
		}
	if (r->header)
		munmap(r->header, HEADER);
	free(r);
}

void fake_context_ends(CUcontext context)
{
	struct fake_range *next;

	for (struct fake_range *r = fake.ranges; r; r = next) {
		next = r->next;
		if (r->kind == FAKE_REGISTERED && r->context == context)
			fake_range_remove(r);
	}
}

CUresult fake_device_check(CUdeviceptr at, size_t size, const char *when)
{
	uintptr_t address = (uintptr_t)at, end = address + size;

	while (address < end) {
		struct fake_range *r = fake_range_at(address);

		if (!r || r->kind >= FAKE_HOST || (r->kind == FAKE_VMM && !r->access))
			return fake.dead = fake_wrong(CUDA_ERROR_ILLEGAL_ADDRESS, "%s: 0x%zx is no device memory", when,
						      address);
		if (r->header && atomic_load(&r->header->freed))
			return fake.dead = fake_wrong(CUDA_ERROR_ILLEGAL_ADDRESS, "%s: 0x%zx was freed by its owner",
						      when, address);
		if (r->kind != FAKE_VMM && r->context != fake_current() &&
		    !(r->context->refs && fake.peers[fake_current()->device][r->device]))
			return fake_wrong(CUDA_ERROR_INVALID_CONTEXT, "%s: memory of another context", when);
		address = r->base + r->size;
	}
	return CUDA_SUCCESS;
}

bool fake_pinned(const void *p, size_t size)
{
	struct fake_range *r = fake_range_at((uintptr_t)p);

	return r && r->kind >= FAKE_HOST && (uintptr_t)p + size <= r->base + r->size;
}

/* ---- allocations ---- */

void *fake_bytes(CUdeviceptr address)
{
	struct fake_range *r = fake_range_at((uintptr_t)address);

	return r && r->apart ? r->apart + (address - r->base) : (void *)(uintptr_t)address;
}

/* Memory that was mapped at *base gets another address, where nothing is; *ret_apart: where it is. */
static void set_apart(void **base, size_t size, char **ret_apart)
{
	*ret_apart = NULL;
	if (!getenv("PTC_FAKE_GPU_APART"))
		return;
	*ret_apart = *base;
	*base = mmap(NULL, rounded(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (*base == MAP_FAILED)
		abort();
}

static void unmap(struct fake_range *r)
{
	munmap((void *)r->base, rounded(r->size));
	if (r->apart)
		munmap(r->apart, rounded(r->size));
}

/* A file of a header and `size` bytes, mapped. */
static struct fake_range *map_shared(enum fake_kind kind, int fd, size_t size)
{
	struct fake_header *header = mmap(NULL, HEADER, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	void *base = mmap(NULL, rounded(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)HEADER);
	struct fake_range *r;
	char *apart = NULL;

	if (header == MAP_FAILED || base == MAP_FAILED)
		abort();
	if (kind == FAKE_ALLOC)
		set_apart(&base, size, &apart);
	r = fake_range_add(kind, base, size);
	r->apart = apart;
	r->header = header;
	return r;
}

/* What all processes together have of a device by cuMemAlloc. */
static size_t taken(int device)
{
	struct fake_header h;
	struct dirent *e;
	char file[512];
	size_t all = 0;
	DIR *d = opendir(fake.dir);

	while (d && (e = readdir(d))) {
		int fd = -1;

		if (strncmp(e->d_name, "alloc-", 6) == 0) {
			snprintf(file, sizeof file, "%s/%.200s", fake.dir, e->d_name);
			fd = open(file, O_RDONLY | O_CLOEXEC);
		}
		if (fd < 0)
			continue;
		if (pread(fd, &h, sizeof h, 0) == sizeof h && h.device == device && !atomic_load(&h.freed))
			all += h.size;
		close(fd);
	}
	if (d)
		closedir(d);
	return all;
}

static bool has_room(int device, size_t size)
{
	const char *room = getenv("PTC_FAKE_GPU_ROOM");

	return size <= fake.memory - fake.used[device] && (!room || taken(device) + size <= strtoull(room, NULL, 10));
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t size)
{
	struct fake_range *r;
	char file[512];
	int device, fd;

	ENTER(cuMemAlloc, true);
	device = fake_current()->device;
	if (size == 0 || !has_room(device, size))
		LEAVE(size ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE);
	snprintf(file, sizeof file, "%s/alloc-%d-%llu", fake.dir, (int)getpid(), ++fake.next_id);
	fd = open(file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)(HEADER + rounded(size))) != 0)
		abort();
	r = map_shared(FAKE_ALLOC, fd, size);
	close(fd);
	snprintf(r->file, sizeof r->file, "%s", strrchr(file, '/') + 1);
	r->header->size = size;
	r->header->device = device;
	fake.used[device] += size;
	*address = r->base;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemFree(CUdeviceptr address)
{
	struct fake_range *r;
	char file[512];

	ENTER(cuMemFree, true);
	r = fake_range_at((uintptr_t)address);
	if (!r || r->kind != FAKE_ALLOC || r->base != address)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "cuMemFree of what is no allocation"));
	atomic_store(&r->header->freed, 1);
	snprintf(file, sizeof file, "%s/%s", fake.dir, r->file);
	unlink(file);
	unmap(r);
	fake.used[r->device] -= r->size;
	fake_range_remove(r);
	LEAVE(CUDA_SUCCESS);
}

/* For the whole device, as far as one process knows; DIR/free-N says it for all. */
CUresult cuMemGetInfo(size_t *free, size_t *total)
{
	char file[512];
	FILE *f;

	ENTER(cuMemGetInfo, true);
	*total = fake.memory;
	*free = fake.memory - fake.used[fake_current()->device];
	snprintf(file, sizeof file, "%s/free-%d", fake.dir, fake_current()->device);
	f = fopen(file, "re");
	if (f) {
		if (fscanf(f, "%zu", free) != 1)
			abort();
		fclose(f);
	}
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream)
{
	struct fake_range *r;
	char *apart;
	void *p;

	ENTER(cuMemAllocAsync, true);
	p = mmap(NULL, rounded(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	set_apart(&p, size, &apart);
	r = fake_range_add(FAKE_POOL, p, size);
	r->apart = apart;
	*address = r->base;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	struct fake_range *r;

	ENTER(cuMemFreeAsync, true);
	r = fake_range_at((uintptr_t)address);
	if (!r || r->kind != FAKE_POOL)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "cuMemFreeAsync of what is not of a pool"));
	unmap(r);
	fake_range_remove(r);
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
	struct fake_range *r;

	ENTER(cuMemGetAddressRange, true);
	r = fake_range_at((uintptr_t)address);
	if (!r || r->kind >= FAKE_HOST)
		LEAVE(CUDA_ERROR_NOT_FOUND);
	*base = r->base;
	*size = r->size;
	LEAVE(CUDA_SUCCESS);
}

/* CUDA's number of a device in this process. */
static int ordinal(int device)
{
	for (int i = 0; i < fake.ndevices; i++)
		if (fake.visible[i] == device)
			return i;
	return -1;
}

static void attribute(const struct fake_range *r, CUpointer_attribute name, void *value)
{
	bool device = r->kind < FAKE_HOST;

	if (name == CU_POINTER_ATTRIBUTE_CONTEXT)
		*(CUcontext *)value = r->kind == FAKE_VMM ? NULL : r->context;
	else if (name == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)
		*(void **)value = r->kind == FAKE_POOL ? value : NULL;
	else if (name == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
		*(CUmemorytype *)value = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
	else if (name == CU_POINTER_ATTRIBUTE_BUFFER_ID)
		*(unsigned long long *)value = r->buffer;
	else if (name == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
		*(unsigned long long *)value = r->kind == FAKE_VMM && !getenv("PTC_FAKE_GPU_NO_FDS");
	else if (name == CU_POINTER_ATTRIBUTE_IS_MANAGED)
		*(bool *)value = false;
	else if (name == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
		*(int *)value = ordinal(r->device);
	else if (name == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
		*(bool *)value = r->kind == FAKE_ALLOC;
	else if (name == CU_POINTER_ATTRIBUTE_MAPPING_SIZE)
		*(size_t *)value = r->kind == FAKE_VMM ? r->size : 0;
	else if (name == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)
		*(CUdeviceptr *)value = r->kind == FAKE_VMM ? r->base : 0;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr address)
{
	struct fake_range *r;

	ENTER(cuPointerGetAttributes, true);
	r = fake_range_at((uintptr_t)address);
	for (unsigned i = 0; r && i < count; i++)
		attribute(r, attributes[i], data[i]);
	LEAVE(CUDA_SUCCESS); /* CUDA gives zeros for memory it does not know */
}

/* ---- sharing ---- */

struct ipc {
	char file[56];
	int32_t pid;
};

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
	struct fake_range *r;
	struct ipc ipc = { .pid = getpid() };

	ENTER(cuIpcGetMemHandle, true);
	r = fake_range_at((uintptr_t)address);
	if (!r || r->kind != FAKE_ALLOC || getenv("PTC_FAKE_GPU_NO_IPC"))
		LEAVE(r ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE);
	memcpy(ipc.file, r->file, sizeof ipc.file);
	memcpy(handle->reserved, &ipc, sizeof ipc);
	LEAVE(CUDA_SUCCESS);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
	struct fake_range *r;
	struct fake_header h;
	struct ipc ipc;
	char file[512];
	int fd;

	ENTER(cuIpcOpenMemHandle, true);
	memcpy(&ipc, handle.reserved, sizeof ipc);
	if (ipc.pid == getpid())
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_CONTEXT, "an IPC handle opened where it was made"));
	snprintf(file, sizeof file, "%s/%.*s", fake.dir, (int)sizeof ipc.file, ipc.file);
	fd = open(file, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		LEAVE(CUDA_ERROR_INVALID_HANDLE);
	if (pread(fd, &h, sizeof h, 0) != sizeof h)
		abort();
	for (r = fake.ranges; r; r = r->next)
		if (r->kind == FAKE_IPC && strcmp(r->file, ipc.file) == 0) {
			close(fd);
			LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "an IPC handle opened twice"));
		}
	r = map_shared(FAKE_IPC, fd, h.size);
	close(fd);
	snprintf(r->file, sizeof r->file, "%s", ipc.file);
	*address = r->base;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	struct fake_range *r;

	ENTER(cuIpcCloseMemHandle, true);
	r = fake_range_at((uintptr_t)address);
	if (!r || r->kind != FAKE_IPC || r->base != address)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "cuIpcCloseMemHandle of what is not open"));
	munmap((void *)r->base, rounded(r->size));
	fake_range_remove(r);
	LEAVE(CUDA_SUCCESS);
}

/* A handle is a descriptor of ours, and its number plus one. */
static CUmemGenericAllocationHandle handle_of(int fd)
{
	if (fd < 0)
		abort();
	fake.handles++;
	return (CUmemGenericAllocationHandle)fd + 1;
}

static int again(CUmemGenericAllocationHandle handle)
{
	return fcntl((int)handle - 1, F_DUPFD_CLOEXEC, 0);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
				       CUmemAllocationGranularity_flags option)
{
	ENTER(cuMemGetAllocationGranularity, false);
	*granularity = FAKE_GRANULARITY;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
		     unsigned long long flags)
{
	int fd;

	ENTER(cuMemCreate, true);
	if (size % FAKE_GRANULARITY || prop->location.id != fake_current()->device)
		LEAVE(CUDA_ERROR_INVALID_VALUE);
	if (prop->requestedHandleTypes && getenv("PTC_FAKE_GPU_NO_EXPORT"))
		LEAVE(CUDA_ERROR_NOT_SUPPORTED);
	fd = memfd_create("fake-vmm", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)(HEADER + size)) != 0)
		abort();
	*handle = handle_of(fd);
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	ENTER(cuMemRelease, true);
	if (fake.handles == 0 || close((int)handle - 1) != 0)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "cuMemRelease of what is no handle"));
	fake.handles--;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	struct fake_range *r;

	ENTER(cuMemRetainAllocationHandle, true);
	r = fake_range_at((uintptr_t)address);
	if (!r || r->kind != FAKE_VMM)
		LEAVE(CUDA_ERROR_INVALID_VALUE);
	*handle = handle_of(again(r->handle));
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
				      CUmemAllocationHandleType type, unsigned long long flags)
{
	ENTER(cuMemExportToShareableHandle, true);
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		LEAVE(CUDA_ERROR_NOT_SUPPORTED);
	*(int *)shareable = again(handle);
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
					CUmemAllocationHandleType type)
{
	int fd;

	ENTER(cuMemImportFromShareableHandle, true);
	fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		LEAVE(CUDA_ERROR_INVALID_VALUE);
	*handle = handle_of(fd);
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint,
			     unsigned long long flags)
{
	void *p;

	ENTER(cuMemAddressReserve, true);
	if (size % FAKE_GRANULARITY)
		LEAVE(CUDA_ERROR_INVALID_VALUE);
	p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
	fake.reservations++;
	*address = (uintptr_t)p;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
	ENTER(cuMemAddressFree, true);
	for (struct fake_range *r = fake.ranges; r; r = r->next)
		if (r->base >= address && r->base < address + size)
			LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "cuMemAddressFree of addresses with memory"));
	munmap((void *)(uintptr_t)address, size);
	fake.reservations--;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	struct fake_header *header;
	struct fake_range *r;
	void *p;

	ENTER(cuMemMap, true);
	if (size % FAKE_GRANULARITY || offset || fake_range_at((uintptr_t)address))
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "cuMemMap where there is memory, or of odd size"));
	if (lseek((int)handle - 1, 0, SEEK_END) != (off_t)(HEADER + size))
		LEAVE(CUDA_ERROR_INVALID_VALUE);
	p = mmap((void *)(uintptr_t)address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)handle - 1,
		 (off_t)HEADER);
	header = mmap(NULL, HEADER, PROT_READ | PROT_WRITE, MAP_SHARED, (int)handle - 1, 0);
	if (p == MAP_FAILED || header == MAP_FAILED)
		abort();
	r = fake_range_add(FAKE_VMM, p, size);
	r->header = header;
	r->handle = (unsigned long long)again(handle) + 1;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
	struct fake_range *r;

	ENTER(cuMemUnmap, true);
	r = fake_range_at((uintptr_t)address);
	if (!r || r->kind != FAKE_VMM || r->base != address || r->size != size)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "cuMemUnmap of what is not mapped"));
	if (mmap((void *)r->base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) ==
	    MAP_FAILED)
		LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
	close((int)r->handle - 1);
	fake_range_remove(r);
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
	uintptr_t at = (uintptr_t)address;

	ENTER(cuMemSetAccess, true);
	while (at < address + size) {
		struct fake_range *r = fake_range_at(at);

		if (!r || r->kind != FAKE_VMM)
			LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "cuMemSetAccess beyond what is mapped"));
		r->access = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		at = r->base + r->size;
	}
	LEAVE(CUDA_SUCCESS);
}

/* ---- host memory ---- */

CUresult cuMemHostAlloc(void **p, size_t size, unsigned flags)
{
	ENTER(cuMemHostAlloc, true);
	*p = mmap(NULL, rounded(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*p == MAP_FAILED)
		LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
	fake_range_add(FAKE_HOST, *p, size);
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemFreeHost(void *p)
{
	struct fake_range *r;

	ENTER(cuMemFreeHost, true);
	r = fake_range_at((uintptr_t)p);
	if (!r || r->kind != FAKE_HOST)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost of what was not allocated"));
	munmap(p, rounded(r->size));
	fake_range_remove(r);
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemHostRegister(void *p, size_t size, unsigned flags)
{
	ENTER(cuMemHostRegister, true);
	if (fake_range_at((uintptr_t)p))
		LEAVE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	fake_range_add(FAKE_REGISTERED, p, size);
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemHostUnregister(void *p)
{
	struct fake_range *r;

	ENTER(cuMemHostUnregister, true);
	r = fake_range_at((uintptr_t)p);
	if (!r || r->kind != FAKE_REGISTERED)
		LEAVE(fake_wrong(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "cuMemHostUnregister of other memory"));
	fake_range_remove(r);
	LEAVE(CUDA_SUCCESS);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *address, void *p, unsigned flags)
{
	ENTER(cuMemHostGetDevicePointer, true);
	if (!fake_pinned(p, 1))
		LEAVE(CUDA_ERROR_INVALID_VALUE);
	*address = (uintptr_t)p;
	LEAVE(CUDA_SUCCESS);
}
