/* SPDX-License-Identifier: Apache-2.0 */
/* The fake driver: streams, events and copies (fake_cuda.h). What a stream is told is put into its queue and done when
 * somebody synchronizes with it, or by one step when somebody asks how far it is. Memory is checked again when the work
 * is done. */
#include "tests/gpu/fake_cuda.h"

#include <stdlib.h>
#include <string.h>

enum work { COPY, MARK, EVENT, FILL, KERNEL, WAIT, AFTER };

struct job {
	struct job *next;
	enum work work;
	CUDA_MEMCPY3D copy;
	CUdeviceptr word;
	uint64_t value; /* EVENT, AFTER: which record of the event */
	CUevent event;
	CUstream other; /* AFTER: where the event was recorded */
	size_t size;    /* FILL: of value at word */
	struct fake_launch *launch;
};

/* Work of a graph, which comes after `after`. */
struct CUgraphNode_st {
	struct CUgraphNode_st *next; /* of the graph */
	CUgraphNode after;           /* NULL: nothing */
	struct job job;
};

struct CUgraph_st {
	CUgraphNode nodes, end; /* end: what the capture ended with */
};

/* Its jobs in the order in which a launch does them. */
struct CUgraphExec_st {
	struct job *jobs;
	size_t n;
};

struct CUstream_st {
	struct CUstream_st *next; /* of all: what a program does not destroy is in the report, and no leak of ours */
	CUcontext context;
	struct job *first, **last;
	CUgraph capture;  /* NULL: none */
	CUgraphNode tail; /* of the capture: what comes next comes after it */
	unsigned waiters; /* threads that pause because it hangs */
	bool gone;        /* destroyed meanwhile: the last of them frees it */
};

struct CUevent_st {
	struct CUevent_st *next;
	CUcontext context;
	CUstream pending;           /* where its last record has not been reached; NULL: it has */
	uint64_t recorded, reached; /* records so far */
};

static CUstream streams;
static CUevent events;

static CUresult own(CUcontext context, const char *what)
{
	if (context == fake_current())
		return CUDA_SUCCESS;
	return fake_wrong(CUDA_ERROR_INVALID_HANDLE, "%s of another context", what);
}

static size_t span(size_t width, size_t height, size_t depth, size_t pitch, size_t rows)
{
	return (depth - 1) * pitch * rows + (height - 1) * pitch + width;
}

static CUresult side_check(CUmemorytype type, CUdeviceptr device, const void *host, size_t size, const char *when)
{
	if (type == CU_MEMORYTYPE_DEVICE)
		return fake_device_check(device, size, when);
	if (!fake_pinned(host, size) && (fake_pinned(host, 1) || fake_pinned((const char *)host + size - 1, 1)))
		return fake_wrong(CUDA_ERROR_INVALID_VALUE, "%s: host memory that is page-locked in part", when);
	if (!fake_pinned(host, size))
		fake.pageable++;
	return CUDA_SUCCESS;
}

static CUresult copy_check(const CUDA_MEMCPY3D *c, const char *when)
{
	size_t from = span(c->WidthInBytes, c->Height, c->Depth, c->srcPitch, c->srcHeight);
	size_t to = span(c->WidthInBytes, c->Height, c->Depth, c->dstPitch, c->dstHeight);
	const char *pitch = getenv("PTC_FAKE_GPU_PITCH");
	CUresult result;

	if (c->Height > 1 && (c->srcPitch < c->WidthInBytes || c->dstPitch < c->WidthInBytes))
		return fake_wrong(CUDA_ERROR_INVALID_VALUE, "%s: rows overlap", when);
	if (pitch && c->Height * c->Depth > 1 &&
	    (c->srcPitch > (size_t)atol(pitch) || c->dstPitch > (size_t)atol(pitch)))
		return fake_wrong(CUDA_ERROR_INVALID_VALUE, "%s: a pitch beyond the device's", when);
	if (c->Depth > 1 && (c->srcHeight < c->Height || c->dstHeight < c->Height))
		return fake_wrong(CUDA_ERROR_INVALID_VALUE, "%s: slices overlap", when);
	result = side_check(c->srcMemoryType, c->srcDevice, c->srcHost, from, when);
	return result ? result : side_check(c->dstMemoryType, c->dstDevice, c->dstHost, to, when);
}

static CUresult do_copy(const CUDA_MEMCPY3D *c)
{
	const char *from = c->srcMemoryType == CU_MEMORYTYPE_DEVICE ? fake_bytes(c->srcDevice) : c->srcHost;
	char *to = c->dstMemoryType == CU_MEMORYTYPE_DEVICE ? fake_bytes(c->dstDevice) : c->dstHost;
	CUresult result = copy_check(c, "a queued copy");

	for (size_t z = 0; result == CUDA_SUCCESS && z < c->Depth; z++)
		for (size_t y = 0; y < c->Height; y++)
			memcpy(to + z * c->dstPitch * c->dstHeight + y * c->dstPitch,
			       from + z * c->srcPitch * c->srcHeight + y * c->srcPitch, c->WidthInBytes);
	return result;
}

static CUgraphNode add_node(CUgraph graph, CUgraphNode after, struct job job)
{
	CUgraphNode node = calloc(1, sizeof *node);

	if (!node)
		abort();
	node->job = job;
	node->after = after;
	node->next = graph->nodes;
	graph->nodes = node;
	return node;
}

static void push(CUstream stream, struct job job)
{
	struct job *j;

	if (stream->capture) {
		stream->tail = add_node(stream->capture, stream->tail, job);
		return;
	}
	j = malloc(sizeof *j);
	if (!j)
		abort();
	*j = job;
	j->next = NULL;
	*stream->last = j;
	stream->last = &j->next;
}

static bool waits_for_other(const struct job *j)
{
	return j && j->work == AFTER && j->event->reached < j->value;
}

/* The oldest work waits for a value that nobody has written, so the stream hangs; or for another stream that does. */
static bool hangs(CUstream stream)
{
	const struct job *j = stream->first;

	if (waits_for_other(j))
		return hangs(j->other);
	return j && j->work == WAIT &&
	       __atomic_load_n((const uint64_t *)(uintptr_t)j->word, __ATOMIC_SEQ_CST) < j->value &&
	       !fake_file("unhang");
}

static void reach(const struct job *j)
{
	CUevent event = j->event;

	if (event->reached < j->value)
		event->reached = j->value;
	if (event->reached == event->recorded)
		event->pending = NULL;
}

/* Does the oldest work, if it can be done. */
static CUresult step(CUstream stream)
{
	struct job *j = stream->first;
	CUresult result = CUDA_SUCCESS;

	if (!j || hangs(stream))
		return CUDA_SUCCESS;
	if (waits_for_other(j))
		return step(j->other);
	stream->first = j->next;
	if (!stream->first)
		stream->last = &stream->first;
	if (j->work == COPY)
		result = do_copy(&j->copy);
	else if (j->work == MARK)
		__atomic_store_n((uint64_t *)(uintptr_t)j->word, j->value, __ATOMIC_SEQ_CST);
	else if (j->work == FILL && !(result = fake_device_check(j->word, j->size, "a queued cuMemsetD8Async")))
		memset(fake_bytes(j->word), (int)j->value, j->size);
	else if (j->work == KERNEL)
		result = fake_launch_do(j->launch);
	else if (j->work == EVENT)
		reach(j);
	free(j);
	return result;
}

/* Pauses while the stream hangs. False: somebody has destroyed it, and it may not be used any more. */
static bool outlast(CUstream stream)
{
	bool gone;

	stream->waiters++;
	while (!stream->gone && hangs(stream))
		fake_pause();
	stream->waiters--;
	gone = stream->gone;
	if (gone && !stream->waiters)
		free(stream);
	return !gone;
}

static CUresult run(CUstream stream)
{
	CUresult first = CUDA_SUCCESS;

	while (stream->first) {
		CUresult result = step(stream);

		first = first ? first : result;
		if (hangs(stream) && !outlast(stream))
			break;
	}
	return first;
}

CUresult fake_stream_launch(CUstream stream, struct fake_launch *launch)
{
	CUresult result = own(stream->context, "a stream");

	if (result == CUDA_SUCCESS)
		push(stream, (struct job){ .work = KERNEL, .launch = launch });
	return result;
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t size, CUstream stream)
{
	CUresult result;

	ENTER(cuMemsetD8Async, true);
	result = fake_device_check(address, size, "cuMemsetD8Async");
	if (result == CUDA_SUCCESS)
		push(stream, (struct job){ .work = FILL, .word = address, .value = value, .size = size });
	LEAVE(result);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	ENTER(cuStreamCreateWithPriority, true);
	*stream = calloc(1, sizeof **stream);
	if (!*stream)
		abort();
	(*stream)->context = fake_current();
	(*stream)->last = &(*stream)->first;
	(*stream)->next = streams;
	streams = *stream;
	fake.streams++;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuStreamDestroy(CUstream stream)
{
	ENTER(cuStreamDestroy, true);
	if (own(stream->context, "a stream"))
		LEAVE(CUDA_ERROR_INVALID_HANDLE);
	while (stream->first && !hangs(stream))
		(void)step(stream);
	while (stream->first) { /* it is not waited for */
		struct job *j = stream->first;

		stream->first = j->next;
		if (j->work == EVENT)
			reach(j);
		free(j);
	}
	for (CUstream *at = &streams; *at; at = &(*at)->next)
		if (*at == stream) {
			*at = stream->next;
			break;
		}
	if (stream->waiters)
		stream->gone = true;
	else
		free(stream);
	fake.streams--;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuStreamSynchronize(CUstream stream)
{
	CUresult result;

	ENTER(cuStreamSynchronize, true);
	result = own(stream->context, "a stream");
	if (result == CUDA_SUCCESS && stream->capture)
		result = fake_wrong(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream that captures is waited for");
	LEAVE(result ? result : run(stream));
}

CUresult cuStreamQuery(CUstream stream)
{
	CUresult result = CUDA_SUCCESS;

	ENTER(cuStreamQuery, true);
	if (stream->capture)
		LEAVE(fake_wrong(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream that captures is asked"));
	if (stream->first)
		result = step(stream);
	LEAVE(result ? result : stream->first ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
	ENTER(cuStreamWriteValue64, true);
	if (getenv("PTC_FAKE_GPU_NO_MARKS"))
		LEAVE(CUDA_ERROR_NOT_SUPPORTED);
	if (fake_file("capturing") || stream->capture)
		LEAVE(fake_wrong(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
				 "cuStreamWriteValue64 while a graph is captured"));
	if (!fake_pinned((void *)(uintptr_t)address, sizeof value) &&
	    fake_device_check(address, sizeof value, "cuStreamWriteValue64"))
		LEAVE(CUDA_ERROR_INVALID_VALUE);
	push(stream, (struct job){ .work = MARK, .word = address, .value = value });
	LEAVE(CUDA_SUCCESS);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
	ENTER(cuStreamWaitValue64, true);
	if (flags != CU_STREAM_WAIT_VALUE_GEQ || !fake_pinned((void *)(uintptr_t)address, sizeof value))
		LEAVE(CUDA_ERROR_INVALID_VALUE);
	push(stream, (struct job){ .work = WAIT, .word = address, .value = value });
	LEAVE(CUDA_SUCCESS);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	ENTER(cuStreamIsCapturing, true);
	*status = fake_file("capturing") || stream->capture;
	LEAVE(CUDA_SUCCESS);
}

/* ---- graphs ---- */

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
	ENTER(cuStreamBeginCapture, true);
	if (stream->capture)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "a capture within a capture"));
	stream->capture = calloc(1, sizeof *stream->capture);
	if (!stream->capture)
		abort();
	stream->tail = NULL;
	fake.graphs++;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	ENTER(cuStreamEndCapture, true);
	if (!stream->capture)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "the end of no capture"));
	*graph = stream->capture;
	(*graph)->end = stream->tail;
	stream->capture = NULL;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
				const CUgraphNode **dependencies, size_t *count)
{
	ENTER(cuStreamGetCaptureInfo, true);
	if (fake_file("capturing"))
		LEAVE(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	*status = stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
	*graph = stream->capture;
	*dependencies = &stream->tail;
	*count = stream->tail != NULL;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies, size_t count, unsigned flags)
{
	ENTER(cuStreamUpdateCaptureDependencies, true);
	if (!stream->capture || count != 1 || flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES)
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "other dependencies of a capture than a test makes"));
	stream->tail = dependencies[0];
	LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
				  const CUDA_BATCH_MEM_OP_NODE_PARAMS *parameters)
{
	const CUstreamBatchMemOpParams *p = parameters->paramArray;

	ENTER(cuGraphAddBatchMemOpNode, true);
	if (getenv("PTC_FAKE_GPU_NO_NODES"))
		LEAVE(CUDA_ERROR_NOT_SUPPORTED);
	if (parameters->count != 1 || p->operation != CU_STREAM_MEM_OP_WRITE_VALUE_64 || count > 1 ||
	    parameters->ctx != fake_current() ||
	    !fake_pinned((void *)(uintptr_t)p->writeValue.address, sizeof p->writeValue.value64))
		LEAVE(fake_wrong(CUDA_ERROR_INVALID_VALUE, "a node that is no write of a value"));
	*node = add_node(graph, count ? dependencies[0] : NULL,
			 (struct job){ .work = MARK, .word = p->writeValue.address, .value = p->writeValue.value64 });
	LEAVE(CUDA_SUCCESS);
}

static bool leads_to(CUgraphNode node, CUgraphNode end)
{
	while (end && end != node)
		end = end->after;
	return end != NULL;
}

/* What nothing orders could be done at any time: who wants a mark before what follows has forgotten that. */
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	size_t n = 0;

	ENTER(cuGraphInstantiateWithFlags, true);
	*exec = calloc(1, sizeof **exec);
	for (CUgraphNode node = graph->nodes; node; node = node->next)
		(*exec)->n++;
	if (*exec)
		(*exec)->jobs = calloc((*exec)->n + 1, sizeof *(*exec)->jobs);
	if (!*exec || !(*exec)->jobs)
		abort();
	for (CUgraphNode node = graph->end; node; node = node->after)
		n++;
	for (CUgraphNode node = graph->end; node; node = node->after)
		(*exec)->jobs[--n] = node->job;
	for (CUgraphNode node = graph->end; node; node = node->after)
		n++;
	for (CUgraphNode node = graph->nodes; node; node = node->next)
		if (!leads_to(node, graph->end)) {
			(*exec)->jobs[n++] = node->job;
			(void)fake_wrong(CUDA_SUCCESS, "work of a graph that nothing comes after");
		}
	fake.graphs++;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	CUresult result;

	ENTER(cuGraphLaunch, true);
	result = own(stream->context, "a stream");
	for (size_t i = 0; result == CUDA_SUCCESS && i < exec->n; i++)
		push(stream, exec->jobs[i]);
	LEAVE(result);
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	ENTER(cuGraphExecDestroy, true);
	free(exec->jobs);
	free(exec);
	fake.graphs--;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	ENTER(cuGraphDestroy, true);
	for (CUgraphNode node = graph->nodes, next; node; node = next) {
		next = node->next;
		free(node);
	}
	free(graph);
	fake.graphs--;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	ENTER(cuEventCreate, true);
	*event = calloc(1, sizeof **event);
	if (!*event)
		abort();
	(*event)->context = fake_current();
	(*event)->next = events;
	events = *event;
	fake.events++;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuEventDestroy(CUevent event)
{
	ENTER(cuEventDestroy, true);
	if (event->pending)
		run(event->pending);
	for (CUevent *at = &events; *at; at = &(*at)->next)
		if (*at == event) {
			*at = event->next;
			break;
		}
	free(event);
	fake.events--;
	LEAVE(CUDA_SUCCESS);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	ENTER(cuEventRecord, true);
	if (own(stream->context, "a stream") || own(event->context, "an event"))
		LEAVE(CUDA_ERROR_INVALID_HANDLE);
	event->pending = stream;
	push(stream, (struct job){ .work = EVENT, .event = event, .value = ++event->recorded });
	LEAVE(CUDA_SUCCESS);
}

/* For the last record so far. An event that was never recorded is waited for by nobody. */
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	ENTER(cuStreamWaitEvent, true);
	if (own(stream->context, "a stream") || own(event->context, "an event"))
		LEAVE(CUDA_ERROR_INVALID_HANDLE);
	if (event->pending && event->pending != stream)
		push(stream,
		     (struct job){ .work = AFTER, .event = event, .value = event->recorded, .other = event->pending });
	LEAVE(CUDA_SUCCESS);
}

CUresult cuEventSynchronize(CUevent event)
{
	CUresult first = CUDA_SUCCESS;

	ENTER(cuEventSynchronize, true);
	while (event->pending) {
		CUresult result = step(event->pending);

		first = first ? first : result;
		while (event->pending && hangs(event->pending))
			fake_pause();
	}
	LEAVE(first);
}

CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D *copy, CUstream stream)
{
	CUresult result;

	ENTER(cuMemcpy3DAsync, true);
	result = own(stream->context, "a stream");
	if (result == CUDA_SUCCESS)
		result = copy_check(copy, "cuMemcpy3DAsync");
	if (result == CUDA_SUCCESS)
		push(stream, (struct job){ .work = COPY, .copy = *copy });
	LEAVE(result);
}

static CUDA_MEMCPY3D flat(size_t size)
{
	return (CUDA_MEMCPY3D){ .srcPitch = size,
				.srcHeight = 1,
				.dstPitch = size,
				.dstHeight = 1,
				.WidthInBytes = size,
				.Height = 1,
				.Depth = 1 };
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
	CUDA_MEMCPY3D c = flat(size);
	CUresult result;

	ENTER(cuMemcpyDtoHAsync, true);
	c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
	c.srcDevice = from;
	c.dstMemoryType = CU_MEMORYTYPE_HOST;
	c.dstHost = to;
	result = copy_check(&c, "cuMemcpyDtoHAsync");
	if (result == CUDA_SUCCESS)
		push(stream, (struct job){ .work = COPY, .copy = c });
	LEAVE(result);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
	CUDA_MEMCPY3D c = flat(size);
	CUresult result;

	ENTER(cuMemcpyHtoDAsync, true);
	c.srcMemoryType = CU_MEMORYTYPE_HOST;
	c.srcHost = from;
	c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	c.dstDevice = to;
	result = copy_check(&c, "cuMemcpyHtoDAsync");
	if (result == CUDA_SUCCESS)
		push(stream, (struct job){ .work = COPY, .copy = c });
	LEAVE(result);
}

/* What of streams is under way is not waited for: a program that has not waited copies what is there. */
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size)
{
	CUresult result;

	ENTER(cuMemcpyDtoH, true);
	result = fake_device_check(from, size, "cuMemcpyDtoH");
	if (result == CUDA_SUCCESS)
		memcpy(to, fake_bytes(from), size);
	LEAVE(result);
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size)
{
	CUresult result;

	ENTER(cuMemcpyHtoD, true);
	result = fake_device_check(to, size, "cuMemcpyHtoD");
	if (result == CUDA_SUCCESS)
		memcpy(fake_bytes(to), from, size);
	LEAVE(result);
}

CUresult cuCtxSynchronize(void)
{
	CUresult first = CUDA_SUCCESS;

	ENTER(cuCtxSynchronize, true);
	fake_current()->waits++;
	for (CUstream s = streams; s;) {
		CUresult result;

		if (s->context != fake_current() || !s->first) {
			s = s->next;
			continue;
		}
		result = run(s);
		first = first ? first : result;
		s = streams; /* others may have come and gone */
	}
	fake_current()->waits--;
	LEAVE(first);
}
