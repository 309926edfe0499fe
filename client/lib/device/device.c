/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the program has loaded libcuda.so.1, so dlopen finds it without loading anything, and the driver tells
 * what kind of memory an address is. Failure modes: device.h. */
#include "client/lib/device/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device_driver ptc_device_driver;
#define cu ptc_device_driver

typedef CUresult (*get_address_fn)(const char *name, void **ret, int version, cuuint64_t flags,
				   CUdriverProcAddressQueryResult *ret_status);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum { UNKNOWN, LOADED, UNUSABLE } driver; /* under lock; LOADED and UNUSABLE are for ever */

static bool resolve(get_address_fn get, const char *name, int version, void **ret)
{
	CUdriverProcAddressQueryResult status;

	return get(name, ret, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) == CUDA_SUCCESS && *ret;
}

/* An older driver than CUDA 12's has no cuGetProcAddress_v2; ptcd could not use it either. */
static bool resolve_all(void *library)
{
	get_address_fn get = (get_address_fn)dlsym(library, "cuGetProcAddress_v2");

#define RESOLVE(name, version, parameters)                                                                             \
	if (!get || !resolve(get, #name, version, (void **)&cu.name))                                                  \
		return false;
	PTC_DEVICE_USED(RESOLVE)
	PTC_CUDA_CLIENT_FUNCTIONS(RESOLVE)
#undef RESOLVE
	return true;
}

/* Whether the program uses the driver by now. */
bool ptc_device_driver_loaded(void)
{
	void *library;
	bool yes;

	pthread_mutex_lock(&lock);
	if (driver == UNKNOWN) {
		library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
		if (library)
			driver = resolve_all(library) ? LOADED : UNUSABLE;
	}
	yes = driver == LOADED;
	pthread_mutex_unlock(&lock);
	return yes;
}

int ptc_device_failed(const char *what, CUresult result, char *why, size_t size)
{
	const char *name = "unknown";

	cu.cuGetErrorName(result, &name);
	snprintf(why, size, "%s: the CUDA driver says %s (%d)", what, name, result);
	return -1;
}

/* What the driver says of an address; wider fields begin as zero, so a narrower answer is right too. */
struct pointer {
	CUcontext context;
	void *pool;
	unsigned type, managed, ordinal, ipc;
	unsigned long long buffer, handle_types;
	size_t mapping_bytes;
	CUdeviceptr mapping_base;
};

static CUresult ask(CUdeviceptr address, struct pointer *p)
{
	CUpointer_attribute names[] = {
		CU_POINTER_ATTRIBUTE_CONTEXT,           CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE,       CU_POINTER_ATTRIBUTE_IS_MANAGED,
		CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
		CU_POINTER_ATTRIBUTE_BUFFER_ID,         CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
		CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
	};
	void *values[] = { &p->context, &p->pool,   &p->type,          &p->managed,      &p->ordinal,
			   &p->ipc,     &p->buffer, &p->mapping_bytes, &p->mapping_base, &p->handle_types };

	memset(p, 0, sizeof *p);
	return cu.cuPointerGetAttributes(sizeof names / sizeof names[0], names, values, address);
}

static int name_device(unsigned ordinal, char ret[PTC_LOCAL_UUID_MAX + 1], char *why, size_t why_size)
{
	CUuuid id;
	unsigned char b[16];
	CUdevice device;
	CUresult result = cu.cuDeviceGet(&device, (int)ordinal);

	result = result ? result : cu.cuDeviceGetUuid(&id, device);
	if (result)
		return ptc_device_failed("ask for a device's UUID", result, why, why_size);
	memcpy(b, id.bytes, sizeof b);
	snprintf(ret, PTC_LOCAL_UUID_MAX + 1,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3],
		 b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
	return 0;
}

static void by_rank(struct device_memory *m, uint64_t low, uint64_t high, const char *why)
{
	m->address = low;
	m->bytes = high - low;
	snprintf(m->why, sizeof m->why, "%s", why);
}

static int share(struct device_memory *m, uint64_t low, uint64_t high, char *why, size_t why_size)
{
	CUipcMemHandle handle;
	CUdeviceptr base = 0;
	size_t size = 0;
	CUresult result = cu.cuMemGetAddressRange(&base, &size, low);

	if (result)
		return ptc_device_failed("ask for the allocation", result, why, why_size);
	if (high - base > size) {
		snprintf(why, why_size, "it goes beyond its allocation of %zu bytes at 0x%llx", size, base);
		return -1;
	}
	result = cu.cuIpcGetMemHandle(&handle, base);
	if (result) { /* whatever the reason is: the rank's own copies need no handle */
		by_rank(m, low, high, "the driver gives no IPC handle here (container, MIG or virtual machine)");
		return 0;
	}
	memcpy(m->ipc, handle.reserved, sizeof m->ipc);
	m->address = base;
	m->bytes = size;
	return 0;
}

/* Each handle under the range is memory of its own. */
static int share_handles(struct device_memory *m, uint64_t low, uint64_t high, struct device_list *ret, char *why,
			 size_t why_size)
{
	struct device_list found = { 0 };
	struct pointer p;
	uint64_t at = low;
	bool all = true, room = true;

	while (all && room && at < high) {
		if (ask(at, &p) != CUDA_SUCCESS || !p.mapping_bytes ||
		    !(p.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
			all = false;
			break;
		}
		m->address = p.mapping_base;
		m->bytes = p.mapping_bytes;
		m->buffer = p.buffer;
		m->descriptor = true;
		room = found.n < PTC_LOCAL_HANDLES_MAX && ptc_device_add(&found, m);
		at = p.mapping_base + p.mapping_bytes;
	}
	all = all && room;
	for (size_t i = 0; all && i < found.n; i++)
		room = room && ptc_device_add(ret, &found.v[i]);
	ptc_device_clear(&found);
	if (all && room)
		return 1;
	m->descriptor = false;
	by_rank(m, low, high, "memory of cuMemMap whose handles cannot be shared by descriptors, or too many");
	snprintf(why, why_size, "out of memory");
	return ptc_device_add(ret, m) ? 1 : -1;
}

int ptc_device_export(const struct device_memory *m)
{
	CUmemGenericAllocationHandle handle;
	CUcontext before;
	int fd = -1;

	if (cu.cuCtxPushCurrent(m->context) != CUDA_SUCCESS)
		return -1;
	if (cu.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)m->address) == CUDA_SUCCESS) {
		if (cu.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) !=
		    CUDA_SUCCESS)
			fd = -1;
		cu.cuMemRelease(handle);
	}
	cu.cuCtxPopCurrent(&before);
	return fd;
}

int ptc_device_find(uint64_t low, uint64_t high, struct device_list *ret, char *why, size_t why_size)
{
	struct device_memory m = { 0 };
	unsigned long long id = 0;
	CUcontext context = NULL;
	struct pointer p;
	int rc;

	/* What the driver knows nothing of is the host's; so is all of it where the thread has no context. */
	if (!ptc_device_driver_loaded() || cu.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context ||
	    ask(low, &p) != CUDA_SUCCESS || p.type != CU_MEMORYTYPE_DEVICE)
		return 0;
	m.context = p.context ? p.context : context; /* memory of cuMemMap belongs to none: the caller's will do */
	m.buffer = p.buffer;
	if (cu.cuCtxGetId(context, &id) == CUDA_SUCCESS)
		m.context_id = id;
	rc = name_device(p.ordinal, m.uuid, why, why_size);
	if (!rc && p.managed)
		by_rank(&m, low, high, "managed memory cannot be shared");
	else if (!rc && p.pool)
		by_rank(&m, low, high, "memory of a stream-ordered pool cannot be shared by handle");
	else if (!rc && p.ipc)
		rc = share(&m, low, high, why, why_size);
	else if (!rc && p.mapping_bytes)
		return share_handles(&m, low, high, ret, why, why_size);
	else if (!rc)
		by_rank(&m, low, high, "the driver offers no handle for this memory");
	snprintf(why, rc ? 0 : why_size, "out of memory");
	return rc ? rc : ptc_device_add(ret, &m) ? 1 : -1;
}

/* ---- copies ---- */

CUresult ptc_device_in_context(void *context, CUresult (*fn)(void *arg), void *arg)
{
	CUcontext before;
	CUresult result = cu.cuCtxPushCurrent(context);

	if (result)
		return result;
	result = fn(arg);
	cu.cuCtxPopCurrent(&before);
	return result;
}

struct copy {
	void *host;
	const void *from;
	uint64_t device, bytes;
};

static CUresult do_read(void *arg)
{
	const struct copy *c = arg;

	return cu.cuMemcpyDtoH(c->host, c->device, c->bytes);
}

static CUresult do_write(void *arg)
{
	const struct copy *c = arg;

	return cu.cuMemcpyHtoD(c->device, c->from, c->bytes);
}

int ptc_device_read(const struct device_memory *m, void *to, uint64_t from, uint64_t bytes)
{
	struct copy c = { .host = to, .device = from, .bytes = bytes };

	return ptc_device_in_context(m->context, do_read, &c) ? -1 : 0;
}

int ptc_device_write(const struct device_memory *m, uint64_t to, const void *from, uint64_t bytes)
{
	struct copy c = { .from = from, .device = to, .bytes = bytes };

	return ptc_device_in_context(m->context, do_write, &c) ? -1 : 0;
}

/* ---- lists ---- */

/* The last that begins at or before the address. */
static size_t place(const struct device_list *l, uint64_t address)
{
	size_t low = 0, high = l->n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (l->v[mid].address <= address)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

const struct device_memory *ptc_device_at(const struct device_list *l, uint64_t address)
{
	size_t i = place(l, address);

	return i && address - l->v[i - 1].address < l->v[i - 1].bytes ? &l->v[i - 1] : NULL;
}

/* Overlapping ranges that only the rank can copy are one, or a look-up by address could miss one that reaches over
 * others. */
static bool joined(struct device_list *l, size_t i)
{
	struct device_memory *a = &l->v[i], *b = &l->v[i + 1];
	uint64_t end = b->address + b->bytes;

	if (!a->why[0] || !b->why[0] || a->context != b->context || b->address - a->address >= a->bytes)
		return false;
	if (end > a->address + a->bytes)
		a->bytes = end - a->address;
	memmove(b, b + 1, (l->n - i - 2) * sizeof *b);
	l->n--;
	return true;
}

bool ptc_device_add(struct device_list *l, const struct device_memory *m)
{
	size_t i = place(l, m->address);

	/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): i is at most n, and n entries have memory */
	if (i && l->v[i - 1].address == m->address && l->v[i - 1].bytes >= m->bytes)
		return true;
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 16;
		struct device_memory *v = l->n < PTC_LOCAL_DEVICES_MAX ? realloc(l->v, cap * sizeof *v) : NULL;

		if (!v)
			return false;
		l->v = v;
		l->cap = cap;
	}
	memmove(&l->v[i + 1], &l->v[i], (l->n - i) * sizeof *l->v);
	l->v[i] = *m;
	l->n++;
	while (i && joined(l, i - 1))
		i--;
	while (i + 1 < l->n && joined(l, i))
		;
	return true;
}

void ptc_device_clear(struct device_list *l)
{
	free(l->v);
	memset(l, 0, sizeof *l);
}
