/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between ranks' device memory and memory of ptcd, by ptc-gpu (daemon/gpu/client).
 *
 * ptc-gpu maps a rank's allocation when an operation first copies from or to it, and unmaps it when the operation ends
 * (ptc_device_copying_done). The rank waits meanwhile, so it frees no mapped memory. ptc-gpu starts at the first call.
 *
 * Threads: any; calls block. Failure modes: the driver's error; the message says whether the device or the rank counts
 * as failed. If ptc-gpu ends during a call, it is started again and the call is repeated, a few times. If it neither
 * answers nor ends, the memory named as `kept` stays (PTC_ESTATE). */
#pragma once

#include "base/status.h"
#include "daemon/workers/copier/copy.h"
#include "daemon/workers/copier/slot_copying.h"
#include "daemon/workers/types/workers_env.h"

#include <sys/types.h>

struct ptc_device_copier;
struct ptc_device_copying;

/* Declared memory on a device: an allocation that ptc-gpu may map, or a range that only its rank can copy. */
struct ptc_device_range {
	uint64_t address, bytes; /* in the rank */
	uint64_t context, buffer;
	char uuid[48], why[96]; /* why: the reason why only the rank can copy it; "": ptc-gpu may */
	uint8_t ipc[64];
	int fd; /* of its handle; -1: ptc-gpu maps it by ipc */
};

/* Of env: pinned_bytes, pinned_take, pinned_give, copy_ms. The caller keeps it. */
int ptc_device_copier_new(const struct ptc_workers_env *env, struct ptc_device_copier **ret, struct ptc_error *err);
/* Call this once all callers and all mappings are gone. NULL ok. */
struct ptc_device_copier *ptc_device_copier_free(struct ptc_device_copier *d);
/* Bytes of page-locked memory that were taken by pinned_take: a ring for each device in use, and the memory of
 * ptc_device_pin_more. */
uint64_t ptc_device_copier_pinned(struct ptc_device_copier *d);

/* Finds out whether ptc-gpu can map a range, by mapping and unmapping it. */
int ptc_device_try(struct ptc_device_copier *d, const struct ptc_device_range *r, pid_t pid, struct ptc_error *err);

struct ptc_device_piece {
	const struct ptc_device_range *range;
	uint64_t address;
	uint8_t *here; /* in one of the two memories of the ptc_slot_copying */
	uint64_t bytes;
};
/* In the calls below, pid < 0 means that process -pid has ended; the range's handle (`fd`) keeps its memory. */
/* The word that a rank's device writes into a page that the rank shares, and the value that it must have before and
 * after each copy. */
struct ptc_device_guard {
	int page_fd; /* -1: there is none */
	uint64_t page_bytes, at, value;
};
/* guard, of a READ or a COMPARE: PTC_ECONFLICT if the word is another; NULL: none. *ret_differs, of a COMPARE: the
 * bytes differ. After a failed READ the memory has undefined bytes. */
int ptc_device_copy(struct ptc_device_copier *d, struct ptc_slot_copying *c, enum ptc_copy_op op, pid_t pid,
		    const struct ptc_device_piece *pieces, size_t n, const struct ptc_device_guard *guard,
		    bool *ret_differs, struct ptc_error *err);

/* ---- memory that ptc-gpu keeps on a device between a stop and the next restore ---- */

struct ptc_device_memory {
	char uuid[48]; /* "": none */
	uint32_t life, number;
};
/* n rows of the rank's memory, and of the kept memory from `kept` on. */
struct ptc_device_rows {
	uint64_t address, kept;
	uint64_t bytes, n, address_step, kept_step;
};
/* PTC_ENODEVICES: the device has no kernels for digests. Otherwise the driver's error, for example without memory. */
int ptc_device_keep(struct ptc_device_copier *d, const char *uuid, uint64_t bytes, struct ptc_device_memory *ret,
		    struct ptc_error *err);
void ptc_device_drop(struct ptc_device_copier *d, struct ptc_device_memory *m); /* {0} ok */
/* Copies on the device: op READ from the rank, WRITE to it. All rows lie in `range`. WRITE: `range` may be on another
 * device than m; PTC_ENODEVICES: that device cannot read m. */
int ptc_device_copy_kept(struct ptc_device_copier *d, struct ptc_slot_copying *c, const struct ptc_device_memory *m,
			 enum ptc_copy_op op, pid_t pid, const struct ptc_device_range *range,
			 const struct ptc_device_rows *rows, size_t n, struct ptc_error *err);
/* Gives the XOR of the rows' shares of a tensor's digest. Here rows.address is the number of the tensor's bytes after
 * the last row, and rows.address_step the distance of rows in the tensor. */
int ptc_device_digest_kept(struct ptc_device_copier *d, const struct ptc_device_memory *m,
			   const struct ptc_device_rows *rows, size_t n, uint64_t *ret_digest, struct ptc_error *err);

/* Does the same for rows of a rank's memory. Here rows.kept is the number of the tensor's bytes after the last row, and
 * rows.kept_step the distance of rows in the tensor.
 */
int ptc_device_digest_rank(struct ptc_device_copier *d, struct ptc_slot_copying *c, pid_t pid,
			   const struct ptc_device_range *range, const struct ptc_device_rows *rows, size_t n,
			   uint64_t *ret_digest, struct ptc_error *err);

/* ---- copies of an operation that stay on the device while the ranks go on (copy: async) ---- */

/* A part of a rank's declared memory within one range. */
struct ptc_device_span {
	const struct ptc_device_range *range;
	uint64_t address, bytes;
};
/* Copies a rank's spans, by address, to memory of ptc-gpu on the same devices: the shadow. guard: as of
 * ptc_device_copy. PTC_ENOSPC, PTC_ENOMEM: a device has no room for it beside the ranks. After any failure call
 * ptc_device_shadow_drop. */
int ptc_device_shadow(struct ptc_device_copier *d, struct ptc_slot_copying *c, pid_t pid,
		      const struct ptc_device_span *spans, size_t n, const struct ptc_device_guard *guard,
		      struct ptc_error *err);
/* The operation's READs and COMPAREs come from the shadow from now on, as the ranks are about to go on; their own
 * memory is unmapped. No copy may be under way. If ptc-gpu ends later, so does the shadow, and copies fail. */
void ptc_device_shadow_only(struct ptc_device_copier *d, struct ptc_slot_copying *c);
/* Whether the ptc-gpu that has the operation's shadow still runs: to be asked before ranks go on. */
bool ptc_device_shadow_lives(struct ptc_device_copier *d, const struct ptc_slot_copying *c);
bool ptc_device_is_shadow_only(const struct ptc_slot_copying *c);
/* Frees the shadow. */
void ptc_device_shadow_drop(struct ptc_device_copier *d, struct ptc_slot_copying *c);

/* ---- page-locked memory ---- */

struct ptc_device_pinned {
	uint32_t life, number; /* life 0: none */
	uint64_t bytes;        /* page-locked, from the begin of the file on */
	uint64_t step, whole;
	char uuid[48];
};
/* Maps a file in ptc-gpu, to be page-locked for a device in steps of so many bytes, a multiple of 4096. */
int ptc_device_pin_begin(struct ptc_device_copier *d, int fd, uint64_t bytes, uint64_t step, const char *uuid,
			 struct ptc_device_pinned *ret, struct ptc_error *err);
/* Page-locks the next step, after its bytes were taken by pinned_take. ptc-gpu serves other requests between two steps.
 * After a failure what was locked before stays. If ptc-gpu ends, so does the page-lock, and copies go through the ring.
 */
int ptc_device_pin_more(struct ptc_device_copier *d, struct ptc_device_pinned *p, struct ptc_error *err);
/* {0} ok. false: ptc-gpu hangs and may have the memory for ever; it stays counted. */
bool ptc_device_unpin(struct ptc_device_copier *d, struct ptc_device_pinned *p);

/* Call this after the operation's last copy. */
void ptc_device_copying_done(struct ptc_device_copier *d, struct ptc_slot_copying *c);
