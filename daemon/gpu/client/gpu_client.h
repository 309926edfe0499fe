/* SPDX-License-Identifier: Apache-2.0 */
/* ptcd's side of ptc-gpu: starts it, asks it, replaces it.
 *
 *   struct ptc_gpu_ref host, memory;
 *   ptc_gpu_client_map_host(c, fd, bytes, NULL, &host, &o, &err);    the chunks' file
 *   ptc_gpu_client_bind(c, &e, &memory, &missing, &o, &err);         what a rank exported
 *   ptc_gpu_client_copy(c, PTC_GPU_OUT, memory, host, parts, n, NULL, &o, &err);
 *   ptc_gpu_client_close(c, memory, &o, &err);                       the rank may free it now
 *
 * ptc-gpu starts at the first call that needs it. When it ends, by a signal, a sticky error or because it did not
 * answer and was killed, requests under way fail with one line that says why, and the next call starts another one: a
 * new life. References belong to one life. One of an earlier life is refused (PTC_ESTATE): map and bind again. Closing
 * it succeeds, for the mapping went with its process. What was copied before is not touched by any of this.
 *
 * Thread: any; calls block until they are answered. Owner: the caller of _new, who calls _free when no call is under
 * way. */
#pragma once

#include "daemon/gpu/gpu_wire.h"

struct ptc_gpu_client;

struct ptc_gpu_client_config {
	const char
		*program; /* NULL: found as the other helpers are (PTC_GPU in the environment, beside ptcd, libexec) */
	uint64_t pinned_max; /* bytes of page-locked memory, of all devices */
	int64_t hang_ms; /* a request that is not answered in this time, plus its bytes at 100 MB/s, ends the process */
};

struct ptc_gpu_ref {
	uint32_t life, number; /* life 0: none */
};

struct ptc_gpu_outcome {
	enum ptc_gpu_blame blame; /* of a failure */
	bool unsafe; /* ptc-gpu could not be ended: it may still write to the host memory of this request, so keep that
		      */
};

/* The word of a rank's shared page that has `value` as long as its memory stays unchanged. */
struct ptc_gpu_guard {
	struct ptc_gpu_ref host;
	uint64_t at, value;
};

struct ptc_gpu_stats {
	uint64_t mapped_bytes, pinned_bytes;
	uint32_t allocations;
	uint32_t life; /* how many processes there have been */
	int32_t pid;
};

int ptc_gpu_client_new(const struct ptc_gpu_client_config *config, struct ptc_gpu_client **ret, struct ptc_error *err);
struct ptc_gpu_client *ptc_gpu_client_free(struct ptc_gpu_client *c);

/* What `ptc-gpu --list` prints (gpu_devices.h); ptc_free it. Runs in a process of its own. */
int ptc_gpu_client_devices(struct ptc_gpu_client *c, char **ret_json, struct ptc_error *err);

/* Maps `bytes` of a file to copy to and from; pin_uuid: page-locked for that device, NULL: not. */
int ptc_gpu_client_map_host(struct ptc_gpu_client *c, int fd, uint64_t bytes, const char *pin_uuid,
			    struct ptc_gpu_ref *ret, struct ptc_gpu_outcome *o, struct ptc_error *err);
int ptc_gpu_client_unmap_host(struct ptc_gpu_client *c, struct ptc_gpu_ref host, struct ptc_gpu_outcome *o,
			      struct ptc_error *err);

/* *ret_missing: handles to hand over by _handles before anything else; 0 where the allocation was mapped already. */
int ptc_gpu_client_bind(struct ptc_gpu_client *c, const struct ptc_gpu_export *e, struct ptc_gpu_ref *ret,
			uint32_t *ret_missing, struct ptc_gpu_outcome *o, struct ptc_error *err);
/* The next n descriptors (at most PTC_GPU_FDS_MAX), which stay the caller's. A failure unbinds the allocation. */
int ptc_gpu_client_handles(struct ptc_gpu_client *c, struct ptc_gpu_ref memory, const int *fds, unsigned n,
			   uint32_t *ret_missing, struct ptc_gpu_outcome *o, struct ptc_error *err);
/* At most PTC_GPU_PARTS_MAX boxes. guard may be NULL. A failed copy out has left any bytes in the boxes. */
int ptc_gpu_client_copy(struct ptc_gpu_client *c, enum ptc_gpu_direction direction, struct ptc_gpu_ref memory,
			struct ptc_gpu_ref host, const struct ptc_gpu_part *parts, uint32_t nparts,
			const struct ptc_gpu_guard *guard, struct ptc_gpu_outcome *o, struct ptc_error *err);
int ptc_gpu_client_digest(struct ptc_gpu_client *c, struct ptc_gpu_ref memory, const struct ptc_gpu_part *parts,
			  uint32_t nparts, uint64_t *ret_digest, struct ptc_gpu_outcome *o, struct ptc_error *err);
int ptc_gpu_client_close(struct ptc_gpu_client *c, struct ptc_gpu_ref memory, struct ptc_gpu_outcome *o,
			 struct ptc_error *err);
/* A process has ended: unmaps what it had bound. */
int ptc_gpu_client_forget(struct ptc_gpu_client *c, uint32_t pid, uint64_t process_start, uint64_t *ret_closed,
			  struct ptc_gpu_outcome *o, struct ptc_error *err);
int ptc_gpu_client_stats(struct ptc_gpu_client *c, struct ptc_gpu_stats *ret, struct ptc_gpu_outcome *o,
			 struct ptc_error *err);
