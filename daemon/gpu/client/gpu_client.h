/* SPDX-License-Identifier: Apache-2.0 */
/* ptcd's client of ptc-gpu: starts the process, sends it requests and replaces it.
 *
 *   struct ptc_gpu_ref host, memory;
 *   ptc_gpu_client_map_host(c, fd, bytes, NULL, &host, &o, &err);    the chunks' file
 *   ptc_gpu_client_bind(c, &e, &memory, &missing, &o, &err);         memory that a rank exported
 *   ptc_gpu_client_copy(c, PTC_GPU_OUT, memory, host, parts, n, NULL, &o, &err);
 *   ptc_gpu_client_close(c, memory, &o, &err);                       the rank may free it now
 *
 * ptc-gpu starts at the first call that needs it. It may end by a signal or a sticky error, or be killed because it did
 * not answer. Then requests under way fail with one line that says why, and the next call starts another process: a new
 * life. A reference belongs to one life; in a later life it is refused (PTC_ESTATE), so map and bind again. Closing it
 * succeeds, because the mapping ended with its process. Bytes that were copied before stay.
 *
 * Threads: any; calls block until they are answered. Owner: the caller of _new, who calls _free when no call is under
 * way. */
#pragma once

#include "daemon/gpu/gpu_wire.h"

struct ptc_gpu_client;

struct ptc_gpu_client_config {
	const char *program; /* NULL: found like the other helpers (PTC_GPU in the environment, beside ptcd, libexec) */
	uint64_t pinned_max; /* bytes of page-locked memory, for all devices */
	unsigned copiers;    /* copies of a device that run at once; 0: ptc_gpu_copiers() */
	int64_t hang_ms; /* a request without an answer in this time, plus its bytes at 100 MB/s, ends the process */
};

struct ptc_gpu_ref {
	uint32_t life, number; /* life 0: none */
};

struct ptc_gpu_outcome {
	enum ptc_gpu_blame blame; /* whom a failure concerns */
	/* ptc-gpu could not be ended and may still write to this request's host memory, so keep that memory */
	bool unsafe;
};

/* A word of a rank's shared page. It has `value` as long as the rank's memory stays unchanged. */
struct ptc_gpu_guard {
	struct ptc_gpu_ref host;
	uint64_t at, value;
};

struct ptc_gpu_stats {
	uint64_t mapped_bytes, pinned_bytes;
	uint32_t allocations;
	uint32_t life; /* number of processes started so far */
	int32_t pid;
};

int ptc_gpu_client_new(const struct ptc_gpu_client_config *config, struct ptc_gpu_client **ret, struct ptc_error *err);
struct ptc_gpu_client *ptc_gpu_client_free(struct ptc_gpu_client *c);

/* Maps `bytes` of a file for copies. pin_uuid: page-locked for that device; NULL: not page-locked. */
int ptc_gpu_client_map_host(struct ptc_gpu_client *c, int fd, uint64_t bytes, const char *pin_uuid,
			    struct ptc_gpu_ref *ret, struct ptc_gpu_outcome *o, struct ptc_error *err);
/* Page-locks the next `step` bytes of a host map for a device, the same number each time; *ret_locked: bytes of the map
 * that are page-locked now. Others' requests are served between two steps. PTC_EVERSION: an older ptc-gpu, which does
 * not know it. */
int ptc_gpu_client_lock(struct ptc_gpu_client *c, struct ptc_gpu_ref host, const char *uuid, uint64_t step,
			uint64_t *ret_locked, struct ptc_gpu_outcome *o, struct ptc_error *err);
/* locked: how much of it is page-locked, which takes longer to be given back. */
int ptc_gpu_client_unmap_host(struct ptc_gpu_client *c, struct ptc_gpu_ref host, uint64_t locked,
			      struct ptc_gpu_outcome *o, struct ptc_error *err);

/* Binds a rank's allocation. *ret_missing: the number of handles to give by _handles before anything else; 0 if the
 * allocation was mapped already. */
int ptc_gpu_client_bind(struct ptc_gpu_client *c, const struct ptc_gpu_export *e, struct ptc_gpu_ref *ret,
			uint32_t *ret_missing, struct ptc_gpu_outcome *o, struct ptc_error *err);
/* Gives the next n descriptors (at most PTC_GPU_FDS_MAX), which stay the caller's. A failure unbinds the allocation. */
int ptc_gpu_client_handles(struct ptc_gpu_client *c, struct ptc_gpu_ref memory, const int *fds, unsigned n,
			   uint32_t *ret_missing, struct ptc_gpu_outcome *o, struct ptc_error *err);
/* Copies at most PTC_GPU_PARTS_MAX boxes. guard may be NULL. After a failed copy out, the boxes' host bytes are
 * undefined. */
int ptc_gpu_client_copy(struct ptc_gpu_client *c, enum ptc_gpu_direction direction, struct ptc_gpu_ref memory,
			struct ptc_gpu_ref host, const struct ptc_gpu_part *parts, uint32_t nparts,
			const struct ptc_gpu_guard *guard, struct ptc_gpu_outcome *o, struct ptc_error *err);
int ptc_gpu_client_digest(struct ptc_gpu_client *c, struct ptc_gpu_ref memory, const struct ptc_gpu_part *parts,
			  uint32_t nparts, uint64_t *ret_digest, struct ptc_gpu_outcome *o, struct ptc_error *err);
/* Memory of ptc-gpu's own on a device, to be closed as a bound one. Its life ends with its process. beside: a trainer
 * goes on beside it, so a sixteenth of the device has to stay free (PTC_ENOSPC). */
int ptc_gpu_client_keep(struct ptc_gpu_client *c, const char *uuid, uint64_t bytes, bool beside,
			struct ptc_gpu_ref *ret, struct ptc_gpu_outcome *o, struct ptc_error *err);
/* Copies from one allocation to another of the same device, or from what is kept on another one: PTC_ENODEVICES if this
 * one cannot read it, or ptc-gpu is an older one. In a part, device_* is the side of `to`. */
int ptc_gpu_client_copy_within(struct ptc_gpu_client *c, struct ptc_gpu_ref to, struct ptc_gpu_ref from,
			       const struct ptc_gpu_part *parts, uint32_t nparts, struct ptc_gpu_outcome *o,
			       struct ptc_error *err);
/* As copy_within; guard may be NULL. PTC_EVERSION: an older ptc-gpu. */
int ptc_gpu_client_shadow(struct ptc_gpu_client *c, struct ptc_gpu_ref to, struct ptc_gpu_ref from,
			  const struct ptc_gpu_part *parts, uint32_t nparts, const struct ptc_gpu_guard *guard,
			  struct ptc_gpu_outcome *o, struct ptc_error *err);
int ptc_gpu_client_close(struct ptc_gpu_client *c, struct ptc_gpu_ref memory, struct ptc_gpu_outcome *o,
			 struct ptc_error *err);
/* Whether the ptc-gpu that has the reference still runs. It may end right after. Asks it. */
bool ptc_gpu_client_lives(struct ptc_gpu_client *c, struct ptc_gpu_ref ref);
int ptc_gpu_client_stats(struct ptc_gpu_client *c, struct ptc_gpu_stats *ret, struct ptc_gpu_outcome *o,
			 struct ptc_error *err);
