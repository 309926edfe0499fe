/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks' memory and state, slot by slot. The agent reads them at a stop, and restores them before ranks go on.
 *
 * Threads: any. Slots are borrowed between ptc_workers_slots and ptc_workers_slots_done. Meanwhile the group stays, but
 * a process may die. Failure modes: the files of slots/. */
#pragma once

#include "daemon/workers/copier/copy.h"
#include "daemon/workers/copier/slot_copying.h"
#include "daemon/workers/device/device_copier.h"
#include "daemon/workers/types/rank_slot.h"
#include "base/memory/chunk_read.h"
#include "base/status.h"

struct ptc_workers;

/* PTC_ENOTFOUND: there is no such group here. */
int ptc_workers_slots(struct ptc_workers *w, const struct ptc_group_key *key, struct ptc_slot_view **ret_slots,
		      size_t *ret_n, struct ptc_error *err);
void ptc_workers_slots_done(struct ptc_workers *w, struct ptc_slot_view *slots, size_t n);
/* Copies from or to the process's memory, for a STOPPED, DECLARED or held slot and addresses of its declared regions
 * only. The job's copier makes the copy (copier.h). So the kernel refuses it if the rank's process has become another
 * user's program: PTC_EPERM. ptc-gpu copies memory on a device (device/device_copier.h). PTC_ESTATE: the memory does
 * not answer; the line names tensor and rank. Both sides have equal bytes and at most PTC_SLOT_SPANS_MAX spans. The
 * spans here all lie in one of the two memories of `copying`. */
#define PTC_SLOT_SPANS_MAX 1024
/* Fills in dev, ino and copier. slot: any of the slots to copy. PTC_EIO: a descriptor is not usable. */
int ptc_slot_copying_init(const struct ptc_slot_view *slot, struct ptc_slot_copying *c, struct ptc_error *err);
/* Call this after the last copy. The caller keeps the descriptors. */
void ptc_slot_copying_done(const struct ptc_slot_view *slot, struct ptc_slot_copying *c);
/* op: PTC_COPY_READ from the process, _WRITE to it, or _COMPARE, which only compares its bytes with those here
 * (PTC_EDIGEST: they differ). pages, for a READ: what is known of the memory here. */
int ptc_slot_copy(const struct ptc_slot_view *slot, enum ptc_copy_op op, struct ptc_slot_copying *copying,
		  const struct iovec *remote, size_t nremote, const struct iovec *local, size_t nlocal,
		  enum ptc_copy_pages pages, struct ptc_error *err);
/* The UUID of the device that has the declared memory at this address, as long as the view lives; NULL: the host has
 * it. */
const char *ptc_slot_device(const struct ptc_slot_view *slot, uint64_t address);
/* Whether ptc-gpu copies the slot's device memory; else the rank does, or it has none. */
bool ptc_slot_mapped(const struct ptc_slot_view *slot);
/* Memory that ptc-gpu keeps on a device for the next restore of a job (device/device_copier.h). ptc_slot_kept_copy
 * copies on the device between a slot's declared memory there (READ from it, WRITE to it) and kept memory. WRITE also
 * copies from another device's kept memory; PTC_ENODEVICES: the slot's device cannot read it. PTC_ENOTFOUND: the rows
 * do not lie on that device, or only the rank can copy them. ptc_slot_digest: the share of the slot's rows in a
 * tensor's digest; rows.kept is the number of the tensor's bytes after the last row. */
int ptc_workers_keep(struct ptc_workers *w, const char *uuid, uint64_t bytes, struct ptc_device_memory *ret,
		     struct ptc_error *err);
void ptc_workers_keep_drop(struct ptc_workers *w, struct ptc_device_memory *m);
int ptc_workers_keep_digest(struct ptc_workers *w, const struct ptc_device_memory *m,
			    const struct ptc_device_rows *rows, size_t n, uint64_t *ret_digest, struct ptc_error *err);
int ptc_slot_kept_copy(const struct ptc_slot_view *slot, struct ptc_slot_copying *copying, enum ptc_copy_op op,
		       const struct ptc_device_memory *m, const struct ptc_device_rows *rows, size_t n,
		       struct ptc_error *err);
int ptc_slot_digest(const struct ptc_slot_view *slot, struct ptc_slot_copying *copying,
		    const struct ptc_device_rows *rows, size_t n, uint64_t *ret_digest, struct ptc_error *err);
/* copy: async. ptc_slot_shadow copies what a STOPPED slot has on devices to memory of ptc-gpu there. When all slots
 * have a shadow, call ptc_slots_shadow_only; then the ranks may go on. From then until ptc_slot_copying_done, READs and
 * COMPAREs of ptc_slot_copy use the shadow, also if a rank has died; ranks' host memory is refused (PTC_EINTERNAL). If
 * a shadow failed, or does not live any more right before ranks are let go (its ptc-gpu has ended), drop it: the ranks
 * have to wait. */
int ptc_slot_shadow(const struct ptc_slot_view *slot, struct ptc_slot_copying *copying, struct ptc_error *err);
/* Whether ptc_slot_copy can read the declared memory at this address after ptc_slots_shadow_only. */
bool ptc_slot_has_shadow(const struct ptc_slot_view *slot, uint64_t address);
bool ptc_slots_shadow_lives(struct ptc_workers *w, const struct ptc_slot_copying *copying);
void ptc_slots_shadow_only(struct ptc_workers *w, struct ptc_slot_copying *copying);
void ptc_slots_shadow_drop(struct ptc_workers *w, struct ptc_slot_copying *copying);
/* For status: whether the group's ranks went on while their device memory was copied; why: if not. Returns whether that
 * is another answer than the last time. */
bool ptc_workers_copied_async(struct ptc_workers *w, const struct ptc_group_key *key, bool done, const char *why);
/* Page-locked memory for copies to and from devices, as a memory of ptc_slot_copying; in steps
 * (device/device_copier.h). */
int ptc_workers_pin_begin(struct ptc_workers *w, int fd, uint64_t bytes, uint64_t step, const char *uuid,
			  struct ptc_device_pinned *ret, struct ptc_error *err);
int ptc_workers_pin_more(struct ptc_workers *w, struct ptc_device_pinned *p, struct ptc_error *err);
bool ptc_workers_unpin(struct ptc_workers *w, struct ptc_device_pinned *p);
/* Lets the rank itself read bytes of a file to its declared memory. The kernel then looks up no pages, and the rank's
 * own processor copies. fd: open for reading only; borrowed. ptc_slot_fill sends the order to the rank, and first waits
 * if the rank has many. ptc_slot_filled waits until the rank has carried out all orders, also those of callers who gave
 * up. Both may return PTC_ECANCELED because of `wait`. The rank may then still read; so the file must keep these bytes
 * until ptc_slot_filled has returned 0 or the rank is gone. A filling is for one slot and several fills; set it to
 * zeros first. After ptc_slot_filled, `failed` says that the rank's libptc could not read everything; call
 * ptc_slot_copy then. `damaged` says that a block did not match its checksum since the last ptc_slot_filled; then the
 * rank may have wrong bytes of any order since, and has to be given all of them again.
 *
 * A slot that `verifies` can be given the chunks in which all rows lie. Its rank then compares the blocks with their
 * checksums as it copies them. For rows on a device it does not: verify them first. */
struct ptc_slot_rows {
	uint64_t address, offset; /* of the first row, in the process and in the file */
	uint64_t bytes, count;    /* of one row, of rows; neither is 0 */
	uint64_t address_step, offset_step;
};
struct ptc_slot_filling {
	uint64_t session; /* the lock of ptc_workers guards this and the next two members */
	bool failed, damaged;
};
#define PTC_SLOT_ROWS_MAX   1024
#define PTC_SLOT_CHUNKS_MAX 256
struct ptc_slot_order {
	const struct ptc_slot_rows *rows;
	const struct ptc_chunk_sums *chunks;
	size_t nrows, nchunks; /* nchunks 0: the caller has verified the bytes */
};
int ptc_slot_fill(const struct ptc_slot_view *slot, struct ptc_slot_filling *f, int fd,
		  const struct ptc_slot_order *order, const struct ptc_wait *wait, struct ptc_error *err);
int ptc_slot_filled(const struct ptc_slot_view *slot, struct ptc_slot_filling *f, const struct ptc_wait *wait,
		    struct ptc_error *err);
/* Lets ptc_restore return in the slot's rank. The blobs and cursors are those of ptc_workers_build. */
int ptc_slot_go(const struct ptc_slot_view *slot, bool restored, const struct ptc_slot_blob *blobs, size_t nblobs,
		const struct ptc_slot_cursor *cursors, size_t ncursors, struct ptc_error *err);
