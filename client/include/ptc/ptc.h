/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: what a training process says to its node's ptcd. Needs libc only.
 *
 * A rank's life:
 *
 *     ptc_open(NULL, &c);
 *     while (ptc_next(c, &gen) == 1) {            // waits until there is a generation to run
 *             build(gen.rank, gen.world, ...);    // meet the other ranks with ptc_rendezvous_put/get
 *             ptc_tensor_declare(c, &tensor);     // for each tensor this rank holds a part of
 *             ptc_restore(c);                     // fills them, if there is state
 *             for (step = gen.start_step; ; step++) {
 *                     if (ptc_boundary(c, step))  // the generation has ended: tear down, ask for the next
 *                             break;
 *                     if (step == last) { ptc_finish(c, step); break; }
 *                     compute gradients ...
 *                     ptc_update_begin(c);        // before the first in-place change of declared memory
 *                     update in place ...
 *             }
 *     }
 *     ptc_close(c);
 *
 * State is whole at step s from ptc_boundary(s) until ptc_update_begin().
 *
 * Returns: 0 or a positive answer, or a negative code (enum ptc_result). ptc_error_text() has one line for a person.
 * Threads: one thread at a time may use a client. ptc_open starts one thread of its own, which blocks all signals, keeps
 * the connection, and makes it anew when ptcd was restarted; training goes on meanwhile. Not usable in a child after fork.
 * While training goes on, that thread asks the kernel to put declared memory into huge pages (PTC_HUGE_PAGES=0: not): it is copied
 * in little more than half the time then.
 * Ownership: strings and arrays passed in are copied unless a function says otherwise; tensor memory stays the caller's and
 * must stay where it is until ptc_boundary or ptc_finish has returned nonzero, or ptc_close.
 * Descriptors: the library keeps four open (close-on-exec). A program that closes descriptors it has not opened (closefrom,
 * os.closerange) ends its client: every call returns PTC_R_SYSTEM and says so.
 * Which samples a rank computes needs no client: ptc/sampling.h, which this header includes.
 * Compatibility: structs begin with `size`; set it to sizeof. Later versions add members at the end. */
#ifndef PTC_PTC_H
#define PTC_PTC_H

#include <ptc/result.h>
#include <ptc/sampling.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PTC_DIMS_MAX 8

typedef struct ptc_client ptc_client;

struct ptc_open_options {
	size_t size;
	const char *socket;  /* NULL: $PTC_WORKER_SOCKET, which ptcd sets for processes it starts */
	const char *token;   /* NULL: $PTC_WORKER_TOKEN: names the slot this process was started for */
	uint32_t timeout_ms; /* 0: 30000 */
};

/* options NULL: all from the environment. The job's name is in $PTC_JOB there, and its seed, a decimal number, in $PTC_SEED: what a program
 * derives from it is the same wherever and whenever a rank is started (docs/job.md, Random streams). PTC_R_LOST when there is no ptcd (text says which variable or socket). */
PTC_API int ptc_open(const struct ptc_open_options *options, ptc_client **ret_client);
/* NULL ok. Without ptc_finish before it the rank counts as gone. Always returns NULL. */
PTC_API ptc_client *ptc_close(ptc_client *c);
/* Of the last call on c that failed (NULL: of the last ptc_open of this thread). Valid until the next call. */
PTC_API const char *ptc_error_text(const ptc_client *c);
PTC_API const char *ptc_version(void);

/* ---- generations ------------------------------------------------------------ */

struct ptc_generation {
	size_t size;
	uint64_t generation, incarnation;
	uint64_t start_step; /* step of the snapshot that ptc_restore will give; 0 if there is none */
	int32_t has_state;   /* 1: ptc_restore fills; 0: the program's own initial values count */
	uint32_t rank, world, local_rank, local_world, node_rank, nodes;
	uint32_t device;                             /* index on this node */
	uint32_t tp, pp, dp, cp, ep, etp;            /* degrees */
	uint32_t tp_rank, pp_rank, dp_rank, cp_rank; /* coordinates */
	uint32_t zero;                               /* as the configuration says: 0, 1, ... */
	uint32_t micro_batch, global_batch;          /* 0: unset */
	const char *config; /* canonical text, e.g. "tp=2,pp=2,dp=2"; valid until the next ptc_next or ptc_close */
	const char *job;    /* the job's name; likewise */
};

/* Blocks until this process has a generation to run (1), or is not needed any more (0: exit with status 0). Ends whatever the
 * last generation declared. */
PTC_API int ptc_next(ptc_client *c, struct ptc_generation *ret_generation);

/* Keys of at most 255 bytes and values of at most 4096, seen by all ranks of this generation and incarnation. get blocks until
 * somebody has put it. *ret_len: the value's length, also when it did not fit (PTC_R_LIMIT). */
PTC_API int ptc_rendezvous_put(ptc_client *c, const char *key, const void *value, size_t len);
PTC_API int ptc_rendezvous_get(ptc_client *c, const char *key, void *buffer, size_t capacity, size_t *ret_len,
			       uint32_t timeout_ms);

/* ---- state ------------------------------------------------------------------- */

/* One box of a tensor's global index space and where this rank has it. All in elements, but for data_offset and stride. */
struct ptc_shard_box {
	int64_t offset[PTC_DIMS_MAX]; /* first ndim count */
	int64_t extent[PTC_DIMS_MAX];
	uint64_t data_offset;         /* bytes from the tensor's `data` to the box's first element */
	int64_t stride[PTC_DIMS_MAX]; /* bytes; all 0: row-major and compact */
};

enum ptc_tensor_flags {
	PTC_TENSOR_TIED = 1, /* this name is on several pipeline stages on purpose, with equal bytes */
	/* `data` is device memory. It is recognised without this; with it, memory that the CUDA driver knows nothing of is INVALID. */
	PTC_TENSOR_DEVICE = 2,
};

struct ptc_tensor_desc {
	size_t size;
	const char *name;     /* the same on every rank and under every configuration; at most 1023 bytes */
	const char *field;    /* NULL: the parameter (or buffer) itself; else e.g. "exp_avg"; at most 63 bytes */
	const char *dtype;    /* as in safetensors: "F32", "BF16", "I64", "BOOL", ... whole bytes only */
	uint32_t ndim;        /* 0: a scalar, with one box without offsets */
	const int64_t *shape; /* global */
	const struct ptc_shard_box *boxes;
	size_t nboxes; /* 0: the name exists, and this rank holds nothing of it */
	void *data;    /* memory of this process: the host's, or a device's whose context is current on this thread */
	uint32_t flags;
};
/* Between ptc_next and ptc_restore. Boxes of one rank must not overlap. */
PTC_API int ptc_tensor_declare(ptc_client *c, const struct ptc_tensor_desc *desc);

enum ptc_blob_scope {
	PTC_BLOB_RANK = 1, /* restored on the rank with the same coordinates, where these still exist */
	PTC_BLOB_JOB = 2,  /* one for all; rank 0's counts */
	/* As PTC_BLOB_RANK, and a rank that has none is given that of the ranks whose coordinates differ from its own in tp only,
	 * where these have equal bytes: what has to be the same throughout a tensor-parallel group, such as the random state
	 * that residual dropout draws from. */
	PTC_BLOB_TP = 3,
}; /* "blobs" of job.yaml may say otherwise, by name (docs/job.md) */
#define PTC_BLOB_MAX (256u << 10)
/* What a snapshot is to carry beside tensors; set it before each boundary at which it has changed. At most 64 names. */
PTC_API int ptc_blob_set(ptc_client *c, const char *name, enum ptc_blob_scope scope, const void *data, size_t len);
/* Of the snapshot that ptc_restore will give, from ptc_next on: what does not fit this program can be refused (by exiting)
 * while the generation before can still go on, which is as long as a rank has not called ptc_restore. *ret_len: its length, also when it did not fit (PTC_R_LIMIT). 0: there is none; 1: found. */
PTC_API int ptc_blob_get(ptc_client *c, const char *name, enum ptc_blob_scope scope, void *buffer, size_t capacity,
			 size_t *ret_len);

/* How far the job has consumed a dataset, in samples since its start; `tag` (at most 255 bytes) says what else has to be
 * the same for the number to mean the same, e.g. "n=1000,seed=7". Ranks that set a cursor must set the same. With a tag
 * "n=N,seed=S" (",block=B" or ",sequential=1" where that is so), then ";batch=G,micro=M", `ptcctl dataset proof` can show what was
 * consumed and that it was each sample once an epoch; with ",by_length=1" at the end (ptc_balance_step) by step, not by rank. */
PTC_API int ptc_cursor_set(ptc_client *c, const char *name, uint64_t position, const char *tag);
/* 1: found; 0: none in the snapshot. tag_buffer may be NULL. */
PTC_API int ptc_cursor_get(ptc_client *c, const char *name, uint64_t *ret_position, char *tag_buffer,
			   size_t tag_capacity);

/* All declarations are made. Blocks until the generation is committed. 1: the declared memory, blobs and cursors are those of
 * the snapshot at start_step; 0: there is no state yet. PTC_R_STALE: it came to nothing; ask ptc_next. */
PTC_API int ptc_restore(ptc_client *c);

/* ---- training -------------------------------------------------------------------- */

/* fn runs in the thread of ptc_boundary or ptc_finish when that is about to wait, before the state is taken: the place to
 * set blobs and cursors without doing so at each step. It may call ptc_blob_set, ptc_cursor_set, ptc_stop_refuse,
 * ptc_stop_later and ptc_stop_holds only. Where it returns nonzero the state must not be taken: whoever asked for it is told that this rank refused, the switch comes to
 * nothing, and ptc_boundary returns 0 as if it had not been asked; ptc_finish returns PTC_R_REFUSED at once. NULL: none. Lasts
 * until the next ptc_next. */
PTC_API int ptc_on_stop(ptc_client *c, int (*fn)(void *arg, uint64_t step), void *arg);
/* From that function, before it returns nonzero: why, in a line; what is beyond 255 bytes is cut off. */
PTC_API int ptc_stop_refuse(ptc_client *c, const char *why);
/* From that function, before it returns nonzero: the state cannot be taken at this boundary, but at a later one, for example while
 * gradients of several micro-steps add up. The stop moves to the next boundary, on every rank. After 1024 such moves in a row
 * whoever asked for the state is told the rank and `why`. ptc_finish has no later boundary: there it is a refusal. */
PTC_API int ptc_stop_later(ptc_client *c, const char *why);
/* From that function: 1 while the stop is still at this step; 0 once it has moved on because another rank was past it, which may
 * therefore never come here: whoever waits for another rank in that function asks, and returns nonzero then. Within ptc_finish 1. */
PTC_API int ptc_stop_holds(ptc_client *c);

/* The declared state is whole after `step` steps. 0: go on. 1: the generation has ended here; nothing declared may be used as
 * state any more; call ptc_next. Tens of nanoseconds when nothing is pending; else blocks while the state is taken. Steps
 * grow by one (or stay, for the first boundary after ptc_restore: start_step). */
PTC_API int ptc_boundary(ptc_client *c, uint64_t step);
/* Declared memory is about to be changed in place: until the next boundary the state is not whole. (Whether it is, is published beside
 * the step; `ptcctl status --format json` has it as `whole`. A job still goes on from its last snapshot when a rank dies: that the
 * state of ranks which live on is taken where it is whole at one step comes later, and needs this call.) */
PTC_API void ptc_update_begin(ptc_client *c);
/* Training is over after `step` steps. Blocks until all ranks have come here and the state is committed (0), or this process is
 * needed in another generation (1: call ptc_next). */
PTC_API int ptc_finish(ptc_client *c, uint64_t step);
/* A number for `ptcctl status`, e.g. "loss". Cheap; kept in memory shared with ptcd. At most 8 names of 31 bytes. */
PTC_API int ptc_report(ptc_client *c, const char *name, double value);

#ifdef __cplusplus
}
#endif
#endif
