/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: what a training process says to its node's ptcd. Needs libc only.
 *
 * A rank's life:
 *
 *     ptc_open(NULL, &c);
 *     while ((r = ptc_next(c, &gen)) == 1) {      // waits until there is a generation to run
 *             build(gen.rank, gen.world, ...);    // meet the other ranks with ptc_rendezvous_put/get
 *             ptc_tensor_declare(c, &tensor);     // for each tensor this rank holds a part of
 *             ptc_restore(c);                     // fills the tensors, if there is state
 *             ptc_start_step(c, &step);           // that state's step; with `build: ahead` it may be > gen.start_step
 *             for (;; step++) {
 *                     if (ptc_boundary(c, step))  // not 0: tear down, and let ptc_next say what follows
 *                             break;
 *                     if (step == last) { ptc_finish(c, step); break; }
 *                     compute gradients ...
 *                     ptc_update_begin(c);        // before the first in-place change of declared memory
 *                     update in place ...
 *             }
 *     }
 *     ptc_close(c);                               // r < 0: print ptc_error_text(c) first, and exit with an error
 *
 * State is whole at step s from ptc_boundary(s) until ptc_update_begin().
 *
 * - Returns: 0 or a positive answer, or a negative code (enum ptc_result). ptc_error_text() has one line for a person.
 * - Threads: one thread at a time may use a client. A client is not usable in a child after fork. ptc_open starts a
 *   thread of the library, which blocks all signals and keeps the connection. When ptcd restarts, that thread connects
 *   again while training goes on. The thread also asks the kernel to put declared memory into huge pages, which
 *   nearly halves the time of a copy; PTC_HUGE_PAGES=0 in the environment turns this off.
 * - Ownership: the library copies strings and arrays passed in unless a function says otherwise. Tensor memory stays
 *   the caller's. It must stay in place until ptc_boundary returns 1, or ptc_finish returns 0 or 1. After a negative
 *   code it must stay until the program calls ptc_next or ptc_close.
 * - Descriptors: the library keeps four open (close-on-exec), five after ptc_survive. If the program closes descriptors
 *   that it did not open (closefrom, os.closerange), the client ends: every call returns PTC_R_SYSTEM and says so.
 * - Included: ptc/sampling.h (a rank's samples), ptc/gpu.h (CUDA), ptc/survive.h (memory that outlives other ranks).
 * - Compatibility: structs begin with `size`; set it to sizeof. Later versions add members at the end. */
#ifndef PTC_PTC_H
#define PTC_PTC_H

#include <ptc/gpu.h>
#include <ptc/result.h>
#include <ptc/sampling.h>
#include <ptc/survive.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#define PTC_DIMS_MAX 8
struct ptc_open_options {
	size_t size;
	const char *socket;  /* NULL: $PTC_WORKER_SOCKET, which ptcd sets for processes it starts */
	const char *token;   /* NULL: $PTC_WORKER_TOKEN; says for which rank this process was started */
	uint32_t timeout_ms; /* 0: 30000 */
};

/* options NULL: all values come from the environment. ptcd also sets $PTC_JOB to the job's name, and $PTC_SEED to the
 * job's seed, a decimal number that is the same at every start of every rank (docs/job.md, "Random streams").
 * PTC_R_LOST: no ptcd answers; the text names the variable or the socket. $PTC_PROBE: see docs/probe.md. */
PTC_API int ptc_open(const struct ptc_open_options *options, ptc_client **ret_client);
/* NULL ok. Calls ptc_leave first. Then the rank counts as gone, unless ptc_finish has succeeded. Returns NULL. */
PTC_API ptc_client *ptc_close(ptc_client *c);
/* One line about the last failed call on c; c NULL: about this thread's last ptc_open. Valid until the next call. */
PTC_API const char *ptc_error_text(const ptc_client *c);
PTC_API const char *ptc_version(void);

/* ---- generations ------------------------------------------------------------ */
struct ptc_generation {
	size_t size;
	uint64_t generation, incarnation; /* incarnation: a random number, new at each start of the ranks */
	uint64_t start_step; /* step of the snapshot that ptc_restore will give (see ptc_start_step), or 0 */
	int32_t has_state;   /* 1: ptc_restore fills tensors; 0: keep your own initial values */
	uint32_t rank, world, local_rank, local_world, node_rank, nodes;
	uint32_t device;                             /* index on this node */
	uint32_t tp, pp, dp, cp, ep, etp;            /* degrees */
	uint32_t tp_rank, pp_rank, dp_rank, cp_rank; /* coordinates */
	uint32_t zero;                               /* ZeRO stage of the configuration: 0, 1, ... */
	uint32_t micro_batch, global_batch;          /* 0: unset */
	const char *config; /* canonical text, e.g. "tp=2,pp=2,dp=2"; valid until the next ptc_next or ptc_close */
	const char *job;    /* the job's name; likewise */
};

/* Blocks until there is an answer. 1: this process has a generation to run. 0: no process is needed here any more; exit
 * with status 0. Drops all declarations of the previous generation. */
PTC_API int ptc_next(ptc_client *c, struct ptc_generation *ret_generation);

/* Keys (at most 255 bytes) and values (at most 4096 bytes), shared by all ranks that were started together (those of
 * one generation and `incarnation`). get waits until a rank has put the key. If nobody has put it after timeout_ms
 * (0: at once): PTC_R_TIMEOUT. *ret_len: the value's length, also if the buffer is too small (PTC_R_LIMIT). */
PTC_API int ptc_rendezvous_put(ptc_client *c, const char *key, const void *value, size_t len);
PTC_API int ptc_rendezvous_get(ptc_client *c, const char *key, void *buffer, size_t capacity, size_t *ret_len,
			       uint32_t timeout_ms);

/* ---- state ------------------------------------------------------------------- */
/* One box of a tensor's global index space, and its place in this rank's memory. Offsets and extents count elements. */
struct ptc_shard_box {
	int64_t offset[PTC_DIMS_MAX]; /* first ndim count */
	int64_t extent[PTC_DIMS_MAX];
	uint64_t data_offset;         /* bytes from the tensor's `data` to the box's first element */
	int64_t stride[PTC_DIMS_MAX]; /* bytes; all 0: row-major and compact */
};

enum ptc_tensor_flags {
	PTC_TENSOR_TIED = 1, /* this name is on several pipeline stages on purpose, with equal bytes */
	/* `data` must be memory that the CUDA driver knows. Without the flag libptc asks the driver whether it is. */
	PTC_TENSOR_DEVICE = 2,
};

struct ptc_tensor_desc {
	size_t size;
	const char *name;     /* the same on every rank and under every configuration; at most 1023 bytes */
	const char *field;    /* NULL: the parameter (or buffer) itself; else e.g. "exp_avg"; at most 63 bytes */
	const char *dtype;    /* as in safetensors: "F32", "BF16", "I64", "BOOL", ... whole bytes only */
	uint32_t ndim;        /* 0: a scalar; its one box has no offsets */
	const int64_t *shape; /* global */
	const struct ptc_shard_box *boxes;
	size_t nboxes; /* 0: the tensor exists, but this rank holds no part of it */
	void *data;    /* host memory, or that of a device whose context is current on this thread; NULL: not yet */
	uint32_t flags;
};
/* Call it between ptc_next and ptc_restore. Boxes of one rank must not overlap. If a tensor was declared with boxes and
 * without data, declare it again before ptc_restore, with data. Only data, data_offset and stride may then differ. */
PTC_API int ptc_tensor_declare(ptc_client *c, const struct ptc_tensor_desc *desc);
/* Says that all tensors have been declared, with data or without. Optional; does not block. If the rank builds ahead
 * (job.yaml, `build`), ptcd compares the declarations with the state, and finds a mismatch before memory is taken. */
PTC_API int ptc_declared(ptc_client *c);
/* Returns what the backward pass recomputes in layers of a kind: 0 nothing, 1 a part (selective), 2 all. kind: 0 for
 * the first kind of layers of the job's `model`, 1 for the second. By this call a program promises to recompute so. If
 * the configuration has `recompute`, ptcd refuses ranks that call ptc_declared or ptc_restore before this. */
PTC_API int ptc_recompute(ptc_client *c, uint32_t kind);
/* As ptc_recompute, for `schedule`, the order of micro-batches. 0: the program's own; 1: 1F1B; 2: all forward first
 * (GPipe); 3: zero bubble (ZB1P). *ret_stages: how many stages each rank has (vpp); the program promises both. */
PTC_API int ptc_schedule(ptc_client *c, uint32_t *ret_stages);
enum ptc_blob_scope {
	PTC_BLOB_RANK = 1, /* restored on the rank with the same coordinates, if they still exist */
	PTC_BLOB_JOB = 2,  /* one for all ranks, taken from rank 0 */
	/* As PTC_BLOB_RANK. A rank without a blob receives that of its tensor-parallel group, if all blobs there are
	 * equal. For state that must be the same in the whole group, such as the random state of residual dropout. */
	PTC_BLOB_TP = 3,
}; /* `blobs` in job.yaml may override the scope by name (docs/job.md) */
#define PTC_BLOB_MAX (256u << 10)
/* Bytes that snapshots keep beside tensors. If they change, set them before the next boundary. At most 64 names. */
PTC_API int ptc_blob_set(ptc_client *c, const char *name, enum ptc_blob_scope scope, const void *data, size_t len);
/* Reads a blob of the snapshot that ptc_restore will restore; callable from ptc_next on. 1: found; 0: there is none.
 * If the blob does not match this program, exit before you call ptc_restore: the previous generation then continues.
 * *ret_len: the blob's length, also if the buffer is too small (PTC_R_LIMIT). */
PTC_API int ptc_blob_get(ptc_client *c, const char *name, enum ptc_blob_scope scope, void *buffer, size_t capacity,
			 size_t *ret_len);
/* position: samples of a dataset that the job has consumed since its start. All ranks that set a cursor must set it
 * equally. tag: at most 255 bytes that say under which settings the position is valid, e.g. "n=1000,seed=7". If the tag
 * is "n=N,seed=S;batch=G,micro=M", `ptcctl dataset proof` can check that each epoch consumed every sample once. If
 * samples are shuffled in blocks, write ",block=B" before the semicolon; if not at all, ",sequential=1". If ranks use
 * ptc_balance_step, end the tag with ",by_length=1": the proof then checks each step as a whole, not each rank. */
PTC_API int ptc_cursor_set(ptc_client *c, const char *name, uint64_t position, const char *tag);
/* 1: found; 0: none. tag_buffer NULL ok. Do not compute the position from the step: a rollback may skip samples. */
PTC_API int ptc_cursor_get(ptc_client *c, const char *name, uint64_t *ret_position, char *tag_buffer,
			   size_t tag_capacity);
/* Call it after the last declaration. Blocks until the generation is committed. 1: declared memory, blobs and cursors
 * are those of the snapshot, whatever was set before. 0: no state yet. PTC_R_STALE: the switch failed; ptc_next. */
PTC_API int ptc_restore(ptc_client *c);
/* The step of the values that ptc_restore gave. It is greater than start_step of ptc_next if the old ranks have trained
 * meanwhile (job.yaml, `build: ahead`); blobs and cursors are then of that step, too. */
PTC_API int ptc_start_step(ptc_client *c, uint64_t *ret_step);

/* ---- training -------------------------------------------------------------------- */
/* Registers fn until the next ptc_next; NULL: none. If ptc_boundary or ptc_finish has to wait, it first calls fn, in
 * the same thread. The state is taken after fn returns, so fn can set blobs and cursors that need not be set at each
 * step. fn may call only ptc_blob_set, ptc_cursor_set, ptc_stop_refuse, ptc_stop_later and ptc_stop_holds. If fn
 * returns nonzero, this rank refuses the stop: the switch fails, and its caller is told. ptc_boundary then returns 0,
 * and ptc_finish PTC_R_REFUSED. */
PTC_API int ptc_on_stop(ptc_client *c, int (*fn)(void *arg, uint64_t step), void *arg);
/* For fn, before it returns nonzero: the reason in one line, cut off after 255 bytes. */
PTC_API int ptc_stop_refuse(ptc_client *c, const char *why);
/* fn calls this, and then returns nonzero, if the state cannot be taken here but at a later boundary, for example while
 * gradients of several micro-steps add up. The stop moves to the next boundary on every rank. After 1024 such moves in
 * a row the stop is refused with the rank and `why`. In ptc_finish this call has the effect of ptc_stop_refuse. */
PTC_API int ptc_stop_later(ptc_client *c, const char *why);
/* For fn. 1: the stop is still at this step (in ptc_finish: always). 0: another rank was past this step, so the stop
 * is at a later step: fn must return nonzero. While fn waits for other ranks, it must call this repeatedly. */
PTC_API int ptc_stop_holds(ptc_client *c);

/* Says that the declared state is whole after `step` steps. 0: go on. 1: the generation has ended here; do not use
 * declared memory as state any more, and call ptc_next. Blocks while the state is taken. If no stop is pending, takes
 * tens of nanoseconds; after ptc_stream microseconds; after ptc_survive also up to 0.1 % of the time. The first call
 * has the step of ptc_start_step, each later one the next. PTC_R_INVALID: `step` is another; nothing has changed. */
PTC_API int ptc_boundary(ptc_client *c, uint64_t step);
/* Says that the program is about to change declared memory in place: the state is not whole until the next boundary
 * (`whole` of `status --format json`). Blocks while ptcd holds the rank (ptc_survive): at most 5 minutes, not counting
 * frozen time. Call it also before each launch of a CUDA graph that was captured before ptc_stream (gpu.h). */
PTC_API void ptc_update_begin(ptc_client *c);
/* Says that training is over after `step`: the step of the last ptc_boundary, or the one after it. Blocks. 0: all is
 * committed. 1: call ptc_next. */
PTC_API int ptc_finish(ptc_client *c, uint64_t step);
/* A number for `ptcctl status`, e.g. "loss". Cheap; in memory shared with ptcd. At most 8 names of 31 bytes. */
PTC_API int ptc_report(ptc_client *c, const char *name, double value);
#ifdef __cplusplus
}
#endif
#endif
