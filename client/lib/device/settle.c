/* SPDX-License-Identifier: Apache-2.0 */
/* Waits until a device has done its work, and reads the marks of steps there.
 *
 * Without marks the whole device is waited for. cuCtxSynchronize does not return while a kernel hangs, for example in a
 * collective whose peer has gone; so a thread of our own makes the call, and is left behind if it takes too long. The
 * program may then release its primary context, perhaps before that thread has run at all. So each such thread has a
 * reference to the primary context, taken before it is started: the context ends when the last of both is released.
 *
 * The driver counts no references to a context of cuCtxCreate, and nobody may use one while it is destroyed. There the
 * calling thread waits, for as long as the device takes; after the job's time ptcd gives up the stop.
 *
 * With marks this thread waits for one word. Once the word is there, declared memory is complete, even if work on other
 * streams hangs.
 *
 * Failure modes: device.h. A thread that is left behind ends when its call does. The next wait for the same context
 * first waits for that thread, so each context has at most one. */
#include "client/lib/device/driver.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define cu ptc_device_driver

#define LOOK_NS       200000 /* between two looks at a call that another thread makes */
#define MARK_SPINS    200    /* looks at a mark before the first sleep: most are there at once */
#define MARK_SLEEP_NS 50000
#define STACK_BYTES   ((size_t)512 << 10)

/* A call of cuCtxSynchronize on a thread of its own. Whoever is last frees it. */
struct call {
	struct call *next;
	void *context;
	CUdevice device;
	bool held; /* with a reference to the device's primary context, which `context` is */
	unsigned refs;
	bool done;
	CUresult result;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct call *calls; /* that have not returned; under lock */

static void nap(long ns)
{
	nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}

static void unref_locked(struct call *c)
{
	if (--c->refs == 0)
		free(c);
}

static CUresult do_settle(void *arg)
{
	(void)arg;
	return cu.cuCtxSynchronize();
}

/* In the call's context. The primary context is not made where there is none: it takes some hundred MiB. */
static CUresult do_hold(void *arg)
{
	struct call *c = arg;
	CUcontext primary = NULL;
	unsigned flags = 0;
	int active = 0;
	CUresult result = cu.cuCtxGetDevice(&c->device);

	result = result ? result : cu.cuDevicePrimaryCtxGetState(c->device, &flags, &active);
	if (result || !active)
		return result;
	result = cu.cuDevicePrimaryCtxRetain(&primary, c->device);
	if (result)
		return result;
	c->held = primary == c->context;
	return c->held ? CUDA_SUCCESS : cu.cuDevicePrimaryCtxRelease(c->device);
}

static void let_go(struct call *c)
{
	if (c->held)
		cu.cuDevicePrimaryCtxRelease(c->device);
	c->held = false;
}

static void *settle_thread(void *arg)
{
	struct call *c = arg;
	CUresult result = ptc_device_in_context(c->context, do_settle, NULL);

	let_go(c); /* before anybody hears of the end: who has waited may release the context's last reference */
	pthread_mutex_lock(&lock);
	c->result = result;
	c->done = true;
	for (struct call **at = &calls; *at; at = &(*at)->next)
		if (*at == c) {
			*at = c->next;
			break;
		}
	unref_locked(c);
	pthread_mutex_unlock(&lock);
	return NULL;
}

static int start_locked(struct call *c)
{
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t thread;
	int e;

	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	e = pthread_create(&thread, &attr, settle_thread, c);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	if (e == 0) {
		c->next = calls;
		calls = c;
	}
	return e;
}

/* One that was left behind for this context, with a reference; else `mine`, which has begun now. NULL: no thread for
 * it. *ret_began: which. */
static struct call *call_for(struct call *mine, bool *ret_began)
{
	struct call *c;

	pthread_mutex_lock(&lock);
	for (c = calls; c && c->context != mine->context; c = c->next)
		;
	if (c)
		c->refs++;
	else if (start_locked(mine) == 0)
		c = mine;
	*ret_began = c == mine;
	pthread_mutex_unlock(&lock);
	return c;
}

static bool ended(struct call *c, CUresult *ret)
{
	bool done;

	pthread_mutex_lock(&lock);
	done = c->done;
	*ret = c->result;
	pthread_mutex_unlock(&lock);
	return done;
}

static int wait_for(struct call *c, const struct device_patience *p, CUresult *ret, char *why, size_t why_size)
{
	int rc = 0;

	while (!ended(c, ret) && !rc) {
		if (p->goes_on(p->arg, why, why_size))
			nap(LOOK_NS);
		else
			rc = -1;
	}
	pthread_mutex_lock(&lock);
	unref_locked(c);
	pthread_mutex_unlock(&lock);
	return rc;
}

static int settle_apart(struct call *mine, const struct device_patience *p, CUresult *ret, char *why, size_t why_size)
{
	bool began = false;
	int rc = 0;

	while (!rc && !began) { /* one that began before says nothing of later work */
		struct call *c = call_for(mine, &began);

		if (c) {
			rc = wait_for(c, p, ret, why, why_size);
		} else {
			snprintf(why, why_size, "wait for the device: no thread for it");
			rc = -1;
		}
	}
	if (!began) {
		let_go(mine);
		free(mine);
	}
	return rc;
}

int ptc_device_settle(const struct device_memory *m, const struct device_patience *p, char *why, size_t why_size)
{
	struct call *c = calloc(1, sizeof *c);
	CUresult result;

	if (!c) {
		snprintf(why, why_size, "wait for the device: no memory");
		return -1;
	}
	c->context = m->context;
	c->refs = 2; /* the thread's, and ours */
	result = ptc_device_in_context(c->context, do_hold, c);
	if (!result && c->held) {
		if (settle_apart(c, p, &result, why, why_size) != 0)
			return -1;
	} else {
		result = result ? result : ptc_device_in_context(c->context, do_settle, NULL);
		free(c);
	}
	return result ? ptc_device_failed("wait for the device", result, why, why_size) : 0;
}

/* ---- marks ---- */

int ptc_device_marks_begin(struct device_marks *m, void *stream, void *page, size_t bytes, _Atomic uint64_t *word,
			   char *why, size_t why_size)
{
	CUcontext context = NULL;
	CUdeviceptr at = 0;
	CUresult result;

	if (!ptc_device_driver_loaded() || cu.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) {
		snprintf(why, why_size, "no device is current on this thread");
		return 0;
	}
	result = cu.cuMemHostRegister(page, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) /* by an earlier generation */
		result = CUDA_SUCCESS;
	m->registered |= result == CUDA_SUCCESS;
	result = result ? result : cu.cuMemHostGetDevicePointer(&at, (void *)(uintptr_t)word, 0);
	if (result) {
		(void)ptc_device_failed("register a page for marks", result, why, why_size);
		return 0;
	}
	m->on = true;
	m->stream = stream;
	m->context = context;
	m->word = at;
	if (ptc_device_mark(m, 0, why, why_size) == 1)
		return 1;
	m->on = false;
	return 0;
}

struct mark {
	const struct device_marks *m;
	uint64_t value;
	bool captured;
};

static CUresult do_mark(void *arg)
{
	struct mark *k = arg;
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = cu.cuStreamIsCapturing(k->m->stream, &status);

	k->captured = result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
		      (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE);
	if (k->captured)
		return CUDA_SUCCESS;
	return result ? result
		      : cu.cuStreamWriteValue64(k->m->stream, k->m->word, k->value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

int ptc_device_mark(const struct device_marks *m, uint64_t value, char *why, size_t why_size)
{
	struct mark k = { .m = m, .value = value };
	CUresult result = ptc_device_in_context(m->context, do_mark, &k);

	if (result)
		return ptc_device_failed("write a mark in the stream's order", result, why, why_size);
	if (k.captured)
		snprintf(why, why_size, "the program's work goes into a CUDA graph");
	return !k.captured;
}

/* ---- in a graph ---- */

struct graph_mark {
	const struct device_marks *m;
	CUstream stream;
	bool captured;
};

/* A node of its own: the call that writes to a stream is refused while that is captured. */
static CUresult do_graph_mark(void *arg)
{
	struct graph_mark *k = arg;
	CUstreamBatchMemOpParams write = { .writeValue = { .operation = CU_STREAM_MEM_OP_WRITE_VALUE_64,
							   .address = k->m->word,
							   .value64 = 0,
							   .flags = CU_STREAM_WRITE_VALUE_DEFAULT } };
	CUDA_BATCH_MEM_OP_NODE_PARAMS parameters = { .ctx = k->m->context, .count = 1, .paramArray = &write };
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	const CUgraphNode *before = NULL;
	CUgraphNode node;
	CUgraph graph;
	size_t n = 0;
	CUresult result = cu.cuStreamGetCaptureInfo(k->stream, &status, NULL, &graph, &before, &n);

	k->captured = result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
	if (!k->captured)
		return result;
	result = cu.cuGraphAddBatchMemOpNode(&node, graph, before, n, &parameters);
	return result ? result
		      : cu.cuStreamUpdateCaptureDependencies(k->stream, &node, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
}

int ptc_device_mark_in_graph(const struct device_marks *m, void *stream, char *why, size_t why_size)
{
	struct graph_mark k = { .m = m, .stream = stream };
	CUresult result = ptc_device_in_context(m->context, do_graph_mark, &k);

	if (result)
		return ptc_device_failed("add a mark to a CUDA graph", result, why, why_size);
	if (!k.captured)
		snprintf(why, why_size, "the stream captures no CUDA graph");
	return k.captured;
}

static CUresult do_query(void *arg)
{
	return cu.cuStreamQuery(arg);
}

static bool there(const _Atomic uint64_t *word, uint64_t value)
{
	return atomic_load_explicit(word, memory_order_acquire) == value;
}

/* The stream is asked too: a device that has failed writes nothing any more. */
int ptc_device_marks_wait(const struct device_marks *m, const _Atomic uint64_t *word, uint64_t value,
			  const struct device_patience *p, char *why, size_t why_size)
{
	for (unsigned i = 0; !there(word, value); i++) {
		CUresult result = ptc_device_in_context(m->context, do_query, m->stream);

		if (result == CUDA_SUCCESS && !there(word, value)) {
			snprintf(why, why_size, "the stream's work is done, but its mark has not come");
			return -1;
		}
		if (result && result != CUDA_ERROR_NOT_READY)
			return ptc_device_failed("wait for the stream", result, why, why_size);
		if (result && !p->goes_on(p->arg, why, why_size))
			return -1;
		if (result && i >= MARK_SPINS)
			nap(MARK_SLEEP_NS);
	}
	return 0;
}
