/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks' memory and state, slot by slot: what the agent reads at a stop and restores before ranks
 * go on.
 *
 * Threads: every function may be called from any thread. Slots are borrowed between
 * ptc_workers_slots and ptc_workers_slots_done; while they are, the group stays, though a process
 * may still die. Failure modes: rank_slots.c. */
#pragma once

#include "daemon/workers/copier/slot_copying.h"
#include "daemon/workers/types/rank_slot.h"
#include "base/status.h"

struct ptc_workers;

/* PTC_ENOTFOUND: no such group here. */
int ptc_workers_slots(struct ptc_workers *w, const struct ptc_group_key *key, struct ptc_slot_view **ret_slots,
		      size_t *ret_n, struct ptc_error *err);
void ptc_workers_slots_done(struct ptc_workers *w, struct ptc_slot_view *slots, size_t n);
/* Copies from or to the process's memory (addresses of its declared regions only; a STOPPED or DECLARED slot). A process of the job's user
 * makes the copy (copier.h), so that the kernel refuses it when the rank's process has become another user's program: PTC_EPERM.
 * Memory on a device is copied by ptc-gpu (device/device_copier.h). Memory that does not answer: PTC_ESTATE naming tensor and rank. Counts of bytes must be equal, spans at most PTC_SLOT_SPANS_MAX on either
 * side, and those here all in one of the two memories of `copying`. */
#define PTC_SLOT_SPANS_MAX 1024
/* Fills in dev, ino and copier. slot: any of those that will be copied. PTC_EIO: the descriptors are of no use. */
int ptc_slot_copying_init(const struct ptc_slot_view *slot, struct ptc_slot_copying *c, struct ptc_error *err);
/* After the last copy. The descriptors are the caller's. */
void ptc_slot_copying_done(const struct ptc_slot_view *slot, struct ptc_slot_copying *c);
/* fresh: our side's memory is likely not to be mapped in the process that copies yet. */
int ptc_slot_read(const struct ptc_slot_view *slot, struct ptc_slot_copying *copying, const struct iovec *remote,
		  size_t nremote, const struct iovec *local, size_t nlocal, bool fresh, struct ptc_error *err);
int ptc_slot_write(const struct ptc_slot_view *slot, struct ptc_slot_copying *copying, const struct iovec *remote,
		   size_t nremote, const struct iovec *local, size_t nlocal, struct ptc_error *err);
/* As a read, but only looks whether the bytes here are the same: PTC_EDIGEST if not. */
int ptc_slot_compare(const struct ptc_slot_view *slot, struct ptc_slot_copying *copying, const struct iovec *remote,
		     size_t nremote, const struct iovec *local, size_t nlocal, struct ptc_error *err);
/* Has the rank read bytes of a file to its declared memory itself: that does not cost the kernel a look-up for each page, and a
 * processor of its own does it. fd: open for reading only; borrowed. Returns when the rank has been told; waits first while it has
 * much to do. ptc_slot_filled waits until it has done all it was told, also for callers before who gave up. Either may return
 * PTC_ECANCELED because `wait` says so; then the rank may still be reading, and the file must keep these bytes until it has
 * been waited for or is gone. A filling is of one slot and several fills, zeroed before; `failed`, as ptc_slot_filled leaves it: the rank's libptc
 * cannot, or did not do it all, and ptc_slot_write has to. */
struct ptc_slot_rows {
	uint64_t address, offset; /* of the first row, in the process and in the file */
	uint64_t bytes, count;    /* of one row, of rows; neither is 0 */
	uint64_t address_step, offset_step;
};
struct ptc_slot_filling {
	uint64_t session; /* guarded by ptc_workers, as is: */
	bool failed;
};
#define PTC_SLOT_ROWS_MAX 1024
int ptc_slot_fill(const struct ptc_slot_view *slot, struct ptc_slot_filling *f, int fd,
		  const struct ptc_slot_rows *rows, size_t n, const struct ptc_wait *wait, struct ptc_error *err);
int ptc_slot_filled(const struct ptc_slot_view *slot, struct ptc_slot_filling *f, const struct ptc_wait *wait,
		    struct ptc_error *err);
/* Blobs and cursors are those of ptc_workers_build; then the slot may go: ptc_restore returns. */
int ptc_slot_go(const struct ptc_slot_view *slot, bool restored, const struct ptc_slot_blob *blobs, size_t nblobs,
		const struct ptc_slot_cursor *cursors, size_t ncursors, struct ptc_error *err);
