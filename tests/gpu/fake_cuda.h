/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA driver for tests: libcuda.so.1 over host memory. Never installed.
 *
 * "Device memory" is files and memfds, so that processes share it as they share a device's. A device address is where
 * this process has such memory mapped. Work of a stream is done late, when somebody waits for it or asks: the host runs
 * ahead of the device.
 *
 * PTC_FAKE_GPU=DIR            required: allocations, and what follows
 *   DIR/faults                lines "FUNCTION NTH ACTION...": the nth call of a process to it (0: each) fails. ACTION
 *                             is a CUresult, then any of: sticky (every later call fails, too), lost (the device is
 *                             lost for every process), once (removes the file). Or ACTION is "block": the call makes
 *                             DIR/blocked, and waits until DIR/unblock exists; or "block2": DIR/blocked2, DIR/unblock2
 *   DIR/lost-N                device N is lost
 *   DIR/ecc-N                 memory of device N cannot be copied out: uncorrectable errors, which NVML counts, too
 *   DIR/report-PID            written at exit: what was called, what is left, what was wrong
 *   DIR/capturing             every stream is capturing a graph, which nobody gets
 *   DIR/unhang                what waits by cuStreamWaitValue64 goes on
 * PTC_FAKE_GPU_DEVICES=N      default 2            PTC_FAKE_GPU_VERSION=V   default 13000; 0: a toolkit's stub
 * PTC_FAKE_GPU_MEMORY=BYTES   of a device for one process; default 256 MiB
 * PTC_FAKE_GPU_ROOM=BYTES     of a device for what all processes have by cuMemAlloc; default: any
 * PTC_FAKE_GPU_SOUND          set: this process is spared by DIR/faults
 * PTC_FAKE_GPU_PITCH=BYTES    the longest pitch of a strided copy
 * PTC_FAKE_GPU_WITHOUT=NAME   a function that the driver lacks
 * PTC_FAKE_GPU_NO_EXPORT     set: cuMemCreate makes no handles that can be exported
 * PTC_FAKE_GPU_NO_MARKS      set: streams write no values
 * PTC_FAKE_GPU_NO_PEERS      set: no device can read another one's memory
 * PTC_FAKE_GPU_NO_NODES      set: graphs write no values
 * PTC_FAKE_GPU_NO_IPC, PTC_FAKE_GPU_NO_FDS   memory that cannot be shared so
 * PTC_FAKE_GPU_APART          set: device addresses of cuMemAlloc and pools are no memory of the process, as on a
 *                             device. A process that reads or writes there other than through the driver fails
 * CUDA_VISIBLE_DEVICES        indices, or UUIDs in full */
#pragma once

#include "daemon/gpu/cuda/cuda_functions.h"
#include "daemon/gpu/cuda/cuda_types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_DEVICES_MAX 8
/* An image of kernels for the fake driver alone: where nvcc makes none, tests give ptc-gpu a file with this text. */
#define FAKE_IMAGE       "kernels of the fake driver\n"
#define FAKE_GRANULARITY ((size_t)64 << 10) /* of cuMemCreate */

#define FAKE_PROTOTYPE(name, version, parameters) CUresult name parameters;
PTC_CUDA_FUNCTIONS(FAKE_PROTOTYPE)
PTC_CUDA_CLIENT_FUNCTIONS(FAKE_PROTOTYPE)
PTC_CUDA_TRAINER_FUNCTIONS(FAKE_PROTOTYPE)

#define FAKE_NUMBER(name, version, parameters) FN_##name,
enum fake_function {
	PTC_CUDA_FUNCTIONS(FAKE_NUMBER) PTC_CUDA_CLIENT_FUNCTIONS(FAKE_NUMBER) PTC_CUDA_TRAINER_FUNCTIONS(FAKE_NUMBER)
		FN_COUNT
};

struct CUctx_st {
	struct CUctx_st *next; /* of fake.made; one that was destroyed stays there, to be known */
	int device, refs;
	unsigned waits; /* threads in cuCtxSynchronize */
	unsigned long long id;
};

/* The first page of an allocation that can be shared: whoever has it mapped sees that its owner has freed it. */
struct fake_header {
	_Atomic uint32_t freed;
	int32_t device;
	uint64_t size;
};

enum fake_kind { FAKE_ALLOC, FAKE_POOL, FAKE_IPC, FAKE_VMM, FAKE_HOST, FAKE_REGISTERED, FAKE_KINDS };

/* Memory that this process may use, by address. */
struct fake_range {
	struct fake_range *next;
	enum fake_kind kind;
	uintptr_t base;
	size_t size;
	CUcontext context;
	int device;
	unsigned long long buffer;
	struct fake_header *header; /* or NULL */
	char *apart;                /* where its bytes are; NULL: at base */
	bool access;                /* VMM: cuMemSetAccess was called */
	unsigned long long handle;  /* VMM: what is mapped there */
	char file[64];              /* ALLOC */
};

struct fake {
	char dir[256];
	int ndevices, version;
	int visible[FAKE_DEVICES_MAX];
	bool started, sound;
	CUresult dead;                                     /* sticky */
	struct CUctx_st contexts[FAKE_DEVICES_MAX], *made; /* primary ones; those of cuCtxCreate */
	bool peers[FAKE_DEVICES_MAX][FAKE_DEVICES_MAX];    /* the first one's context reads memory of the second one */
	struct fake_range *ranges;
	size_t used[FAKE_DEVICES_MAX], memory;
	unsigned long long next_id;
	unsigned calls[FN_COUNT];
	unsigned handles, reservations, streams, events, modules, graphs, pageable;
	unsigned nwrong;
	char wrong[4096];
};
extern struct fake fake;

/* Lets other threads of the process call the driver for a moment. */
void fake_pause(void);
/* Around every call: counts it, applies faults, takes the lock. 0: go on, and leave with fake_leave. */
CUresult fake_enter(enum fake_function f, bool needs_context);
CUresult fake_leave(CUresult result);
/* Something that no correct program does: goes into the report. Returns the result that the driver would give. */
CUresult fake_wrong(CUresult result, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
CUcontext fake_current(void);

struct fake_range *fake_range_add(enum fake_kind kind, void *base, size_t size);
struct fake_range *fake_range_at(uintptr_t address); /* that has this byte */
void fake_range_remove(struct fake_range *r);
/* What ends with a context: page-locking. */
void fake_context_ends(CUcontext context);
/* Whether DIR/NAME is there. */
bool fake_file(const char *name);
/* All bytes are memory of a device that may be used now; `when` says who asks. */
CUresult fake_device_check(CUdeviceptr at, size_t size, const char *when);
bool fake_pinned(const void *p, size_t size);
/* Where the bytes of a device address are in this process. */
void *fake_bytes(CUdeviceptr address);

/* A kernel's launch, put into a stream's queue, and its work. The queue owns it. */
struct fake_launch;
CUresult fake_stream_launch(CUstream stream, struct fake_launch *launch);
CUresult fake_launch_do(struct fake_launch *launch);

/* CUDA functions with a lock around them: ENTER(cuMemAlloc); ... LEAVE(result); */
#define ENTER(name, context)                                                                                           \
	do {                                                                                                           \
		CUresult entered = fake_enter(FN_##name, context);                                                     \
		if (entered)                                                                                           \
			return entered;                                                                                \
	} while (0)
#define LEAVE(result) return fake_leave(result)
