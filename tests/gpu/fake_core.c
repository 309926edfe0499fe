/* SPDX-License-Identifier: Apache-2.0 */
/* The fake driver: start, faults, devices, contexts, the report (fake_cuda.h). */
#include "tests/gpu/fake_cuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct fake fake;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread CUcontext current;

#define EXPORT __attribute__((visibility("default")))

#define FAKE_NAME(name, version, parameters) #name,
static const char *const names[] = { PTC_CUDA_FUNCTIONS(FAKE_NAME) PTC_CUDA_CLIENT_FUNCTIONS(FAKE_NAME)
					     PTC_CUDA_TRAINER_FUNCTIONS(FAKE_NAME) };

static const char *path(const char *name, char *ret, size_t size)
{
	snprintf(ret, size, "%s/%s", fake.dir, name);
	return ret;
}

static bool lost(int device)
{
	char name[32];

	snprintf(name, sizeof name, "lost-%d", device);
	return fake_file(name);
}

static bool ecc(int device)
{
	char name[32];

	snprintf(name, sizeof name, "ecc-%d", device);
	return fake_file(name);
}

static void touch(const char *name)
{
	char file[512];
	FILE *f = fopen(path(name, file, sizeof file), "we");

	if (f)
		fclose(f);
}

/* ---- faults ---- */

bool fake_file(const char *name)
{
	char file[512];

	return access(path(name, file, sizeof file), F_OK) == 0;
}

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
}

static void block(const char *which)
{
	char name[64];

	snprintf(name, sizeof name, "blocked%s", which);
	touch(name);
	snprintf(name, sizeof name, "unblock%s", which);
	while (!fake_file(name))
		nap();
}

void fake_pause(void)
{
	pthread_mutex_unlock(&lock);
	nap();
	pthread_mutex_lock(&lock);
}

/* A rule for this call: its result, 0 for none. after: what the rule has behind the word block. */
static CUresult rule(enum fake_function f, unsigned nth, bool *ret_block, char after[32])
{
	char file[512], line[256], name[64], action[32], rest[128];
	CUresult result = CUDA_SUCCESS;
	FILE *in = fopen(path("faults", file, sizeof file), "re");
	unsigned number;

	while (in && fgets(line, sizeof line, in)) {
		rest[0] = '\0';
		if (sscanf(line, "%63s %u %31s %127[^\n]", name, &number, action, rest) < 3 ||
		    strcmp(name, names[f]) != 0 || (number && number != nth))
			continue;
		*ret_block = strncmp(action, "block", 5) == 0;
		if (*ret_block)
			snprintf(after, 32, "%s", action + 5);
		result = (CUresult)strtol(action, NULL, 10);
		if (strstr(rest, "once"))
			unlink(file);
		if (strstr(rest, "sticky"))
			fake.dead = result;
		if (strstr(rest, "lost") && current) {
			snprintf(name, sizeof name, "lost-%d", current->device);
			touch(name);
		}
		break;
	}
	if (in)
		fclose(in);
	return result;
}

CUresult fake_enter(enum fake_function f, bool needs_context)
{
	bool blocked = false;
	char which[32] = "";
	CUresult result;

	pthread_mutex_lock(&lock);
	fake.calls[f]++;
	result = fake.sound ? CUDA_SUCCESS : rule(f, fake.calls[f], &blocked, which);
	if (blocked) {
		pthread_mutex_unlock(&lock);
		block(which);
		pthread_mutex_lock(&lock);
	}
	if (result == CUDA_SUCCESS && !fake.started && f != FN_cuInit && f != FN_cuGetErrorName)
		result = fake_wrong(CUDA_ERROR_NOT_INITIALIZED, "%s before cuInit", names[f]);
	if (result == CUDA_SUCCESS && needs_context) {
		if (fake.dead)
			result = fake.dead;
		else if (!current)
			result = fake_wrong(CUDA_ERROR_INVALID_CONTEXT, "%s without a context", names[f]);
		else if (current->refs == 0)
			result =
				fake_wrong(CUDA_ERROR_CONTEXT_IS_DESTROYED, "%s in a context that has ended", names[f]);
		else if (lost(current->device))
			result = fake.dead = CUDA_ERROR_UNKNOWN;
		else if (!fake.sound && f == FN_cuMemcpyDtoHAsync && ecc(current->device))
			result = fake.dead = CUDA_ERROR_ECC_UNCORRECTABLE;
	}
	if (result)
		pthread_mutex_unlock(&lock);
	return result;
}

CUresult fake_leave(CUresult result)
{
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult fake_wrong(CUresult result, const char *fmt, ...)
{
	size_t at = strlen(fake.wrong);
	va_list ap;

	fake.nwrong++;
	if (at + 2 >= sizeof fake.wrong)
		return result;
	va_start(ap, fmt);
	vsnprintf(fake.wrong + at, sizeof fake.wrong - at - 1, fmt, ap);
	va_end(ap);
	at = strlen(fake.wrong);
	fake.wrong[at] = '\n';
	fake.wrong[at + 1] = '\0';
	return result;
}

/* ---- start and devices ---- */

static void read_settings(void)
{
	const char *dir = getenv("PTC_FAKE_GPU"), *n = getenv("PTC_FAKE_GPU_DEVICES");
	const char *version = getenv("PTC_FAKE_GPU_VERSION"), *memory = getenv("PTC_FAKE_GPU_MEMORY");
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	int all = n ? atoi(n) : 2;

	if (!dir || all > FAKE_DEVICES_MAX) {
		fprintf(stderr, "fake driver: set PTC_FAKE_GPU to a folder\n");
		abort();
	}
	snprintf(fake.dir, sizeof fake.dir, "%s", dir);
	fake.version = version ? atoi(version) : 13000;
	fake.memory = memory ? strtoull(memory, NULL, 10) : (size_t)256 << 20;
	fake.sound = getenv("PTC_FAKE_GPU_SOUND") != NULL;
	fake.ndevices = 0;
	for (int i = 0; !visible && i < all; i++)
		fake.visible[fake.ndevices++] = i;
	while (visible && *visible && fake.ndevices < all) {
		char *number;
		const char *end;
		long i = strtol(visible, &number, 10);

		end = number;
		if (strncmp(visible, "GPU-d", 5) == 0) { /* as fake_nvml.c has them */
			end = visible + strcspn(visible, ",");
			i = visible[5] - '0';
		}
		if (end == visible || i < 0 || i >= all)
			break;
		fake.visible[fake.ndevices++] = (int)i;
		visible = *end == ',' ? end + 1 : end;
	}
}

__attribute__((constructor)) static void start(void)
{
	read_settings();
}

EXPORT CUresult cuDriverGetVersion(int *version);
CUresult cuDriverGetVersion(int *version)
{
	*version = fake.version;
	return fake.version ? CUDA_SUCCESS : CUDA_ERROR_STUB_LIBRARY;
}

CUresult cuInit(unsigned flags)
{
	ENTER(cuInit, false);
	if (fake.ndevices == 0)
		LEAVE(CUDA_ERROR_NO_DEVICE);
	fake.started = true;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
#define NAMED(number, value) { #number, value },
	static const struct {
		const char *name;
		int value;
	} numbers[] = { PTC_CUDA_NUMBERS(NAMED) };

	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
		if (numbers[i].value == error && strncmp(numbers[i].name, "CUDA_", 5) == 0) {
			*name = numbers[i].name;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count)
{
	ENTER(cuDeviceGetCount, false);
	*count = fake.ndevices;
	LEAVE(CUDA_SUCCESS);
}

/* A CUdevice is the node's number here, so that processes with other visible devices mean the same by it. */
CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	ENTER(cuDeviceGet, false);
	if (ordinal < 0 || ordinal >= fake.ndevices)
		LEAVE(CUDA_ERROR_INVALID_DEVICE);
	*device = fake.visible[ordinal];
	LEAVE(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	ENTER(cuDeviceGetUuid, false);
	memset(uuid->bytes, 0xd0 + device, sizeof uuid->bytes);
	LEAVE(CUDA_SUCCESS);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	const char *pitch = getenv("PTC_FAKE_GPU_PITCH");

	ENTER(cuDeviceGetAttribute, false);
	if (attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
		*value = 3;
	else if (attribute == CU_DEVICE_ATTRIBUTE_MAX_PITCH)
		*value = pitch ? atoi(pitch) : INT32_MAX;
	else
		LEAVE(CUDA_ERROR_INVALID_VALUE);
	LEAVE(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CUcontext c = &fake.contexts[device];

	ENTER(cuDevicePrimaryCtxRetain, false);
	if (lost(device))
		LEAVE(CUDA_ERROR_DEVICE_UNAVAILABLE);
	if (c->refs++ == 0) {
		c->device = device;
		c->id = ++fake.next_id;
	}
	*context = c;
	LEAVE(CUDA_SUCCESS);
}

/* Nobody may be in a call that uses it. */
static CUresult context_ends(CUcontext context, const char *by)
{
	fake_context_ends(context);
	return context->waits ? fake_wrong(CUDA_ERROR_INVALID_CONTEXT, "%s while a thread waits for the context", by)
			      : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	CUresult result = CUDA_SUCCESS;

	ENTER(cuDevicePrimaryCtxRelease, false);
	if (fake.contexts[device].refs == 0)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_CONTEXT, "context %d released once too often", device));
	if (--fake.contexts[device].refs == 0) {
		result = context_ends(&fake.contexts[device], "cuDevicePrimaryCtxRelease");
		for (int i = 0; i < FAKE_DEVICES_MAX; i++)
			fake.peers[device][i] = fake.peers[i][device] = false;
	}
	LEAVE(result);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	ENTER(cuDevicePrimaryCtxGetState, false);
	*flags = 0;
	*active = fake.contexts[device].refs > 0;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	ENTER(cuDeviceCanAccessPeer, false);
	*can = device != peer && !getenv("PTC_FAKE_GPU_NO_PEERS");
	LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	ENTER(cuCtxEnablePeerAccess, true);
	if (!peer || peer->refs == 0 || peer == current || flags || getenv("PTC_FAKE_GPU_NO_PEERS"))
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_CONTEXT, "cuCtxEnablePeerAccess of what is no peer"));
	if (fake.peers[current->device][peer->device])
		LEAVE(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	fake.peers[current->device][peer->device] = true;
	LEAVE(CUDA_SUCCESS);
}

CUcontext fake_current(void)
{
	return current;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	ENTER(cuCtxSetCurrent, false);
	if (context && context->refs == 0)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_CONTEXT, "a released context was made current"));
	current = context;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	ENTER(cuCtxGetCurrent, false);
	*context = current;
	LEAVE(CUDA_SUCCESS);
}

#define PUSHED_MAX 8
static __thread CUcontext pushed[PUSHED_MAX];
static __thread unsigned npushed;

CUresult cuCtxPushCurrent(CUcontext context)
{
	ENTER(cuCtxPushCurrent, false);
	if (!context || context->refs == 0 || npushed == PUSHED_MAX)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_CONTEXT, "cuCtxPushCurrent of no context"));
	pushed[npushed++] = current;
	current = context;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
	ENTER(cuCtxPopCurrent, false);
	if (npushed == 0)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_CONTEXT, "cuCtxPopCurrent without a push"));
	*context = current;
	current = pushed[--npushed];
	LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	ENTER(cuCtxGetDevice, true);
	*device = current->device;
	LEAVE(CUDA_SUCCESS);
}

/* It is current on the thread afterwards. */
CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
	CUcontext c;

	ENTER(cuCtxCreate, false);
	if (lost(device))
		LEAVE(CUDA_ERROR_DEVICE_UNAVAILABLE);
	c = calloc(1, sizeof *c);
	if (!c || npushed == PUSHED_MAX)
		abort();
	*c = (struct CUctx_st){ .next = fake.made, .device = device, .refs = 1, .id = ++fake.next_id };
	fake.made = c;
	pushed[npushed++] = current;
	*context = current = c;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxDestroy(CUcontext context)
{
	ENTER(cuCtxDestroy, false);
	if (context->refs == 0)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_CONTEXT, "a context was destroyed twice"));
	context->refs = 0;
	if (current == context)
		current = npushed ? pushed[--npushed] : NULL;
	LEAVE(context_ends(context, "cuCtxDestroy"));
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
	ENTER(cuCtxGetId, false);
	*id = context ? context->id : 0;
	LEAVE(CUDA_SUCCESS);
}

/* ---- symbols ---- */

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **ret, int version, cuuint64_t flags,
				    CUdriverProcAddressQueryResult *status);
CUresult cuGetProcAddress_v2(const char *symbol, void **ret, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
#define FAKE_SYMBOL(name, since, parameters) { #name, since, (void *)name },
	static const struct {
		const char *name;
		int since;
		void *function;
	} symbols[] = { PTC_CUDA_FUNCTIONS(FAKE_SYMBOL) PTC_CUDA_CLIENT_FUNCTIONS(FAKE_SYMBOL)
				PTC_CUDA_TRAINER_FUNCTIONS(FAKE_SYMBOL) };
	const char *without = getenv("PTC_FAKE_GPU_WITHOUT");

	for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
		if (strcmp(symbols[i].name, symbol) != 0 || (without && strcmp(without, symbol) == 0))
			continue;
		if (version < symbols[i].since) {
			*status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
			return CUDA_ERROR_NOT_FOUND;
		}
		*status = CU_GET_PROC_ADDRESS_SUCCESS;
		*ret = symbols[i].function;
		return CUDA_SUCCESS;
	}
	*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_ERROR_NOT_FOUND;
}

/* ---- report ---- */

/* Lines "KIND NAME NUMBER", and "wrong TEXT". After a sticky error nothing could be given back: nothing counts as left.
 */
__attribute__((destructor)) static void report(void)
{
	static const char *const kinds[] = { "alloc", "pool", "ipc", "vmm", "host", "registered" };
	unsigned left[FAKE_KINDS] = { 0 }, contexts = 0;
	char name[64], file[512];
	FILE *f;

	snprintf(name, sizeof name, "report-%d", (int)getpid());
	f = fopen(path(name, file, sizeof file), "we");
	if (!f)
		return;
	for (struct fake_range *r = fake.ranges; r; r = r->next)
		left[r->kind]++;
	for (int i = 0; i < FAKE_DEVICES_MAX; i++)
		contexts += (unsigned)fake.contexts[i].refs;
	for (CUcontext c = fake.made; c; c = c->next)
		contexts += (unsigned)c->refs;
	for (int i = 0; i < FN_COUNT; i++)
		if (fake.calls[i])
			fprintf(f, "call %s %u\n", names[i], fake.calls[i]);
	for (int i = 0; i < FAKE_KINDS; i++)
		fprintf(f, "left %s %u\n", kinds[i], fake.dead ? 0 : left[i]);
	fprintf(f,
		"left context %u\nleft handle %u\nleft reservation %u\nleft stream %u\nleft event %u\n"
		"left module %u\nleft graph %u\n",
		fake.dead ? 0 : contexts, fake.dead ? 0 : fake.handles, fake.dead ? 0 : fake.reservations,
		fake.dead ? 0 : fake.streams, fake.dead ? 0 : fake.events, fake.dead ? 0 : fake.modules,
		fake.dead ? 0 : fake.graphs);
	fprintf(f, "count pageable %u\ncount wrong %u\n%s", fake.pageable, fake.nwrong, fake.wrong);
	fclose(f);
}
