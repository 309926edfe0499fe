/* SPDX-License-Identifier: Apache-2.0 */
/* Declared memory of a rank as runs with strides, and copies between these runs and extents of the store. Pure, but for
 * ptc_iov_batch, which asks the copier. */
#pragma once

#include "daemon/workers/group/rank_slots.h"
#include "reshard/spec/spec.h"

#include <sys/uio.h>

#define PTC_IOV_BATCH_SPANS 1024      /* of one call; the kernel's bound (IOV_MAX) */
#define PTC_IOV_BATCH_BYTES (8 << 20) /* of one call; few, so that a stop is seen soon */

/* Where the bytes of a box lie in a process. */
struct ptc_strided {
	struct ptc_box box; /* in bytes, as ptc_item_byte_box (spec.h) gives it */
	uint64_t address;   /* of the box's first byte */
	/* bytes from one index to the next; in the last dim, from one run of `step` bytes to the next */
	int64_t stride[PTC_MAX_DIMS];
	int64_t step; /* bytes of a contiguous run in the last dim; 0: the whole dim is one run */
};
/* PTC_ELAYOUT: memory of a sub-byte dtype is not compact; the line names the tensor. */
int ptc_strided_init(struct ptc_strided *p, const struct ptc_spec *spec, uint32_t item,
		     const struct ptc_slot_region *region, struct ptc_error *err);
/* Calls fn for each longest run of `cut` that is contiguous both in the rank's memory and in compact memory that holds
 * `other`: len bytes at `address` in the rank, and at `off` in the other. cut lies in both boxes and is not empty. */
typedef int (*ptc_strided_fn)(void *arg, uint64_t address, int64_t off, int64_t len, struct ptc_error *err);
int ptc_strided_runs(const struct ptc_strided *p, const struct ptc_box *other, const struct ptc_box *cut,
		     ptc_strided_fn fn, void *arg, struct ptc_error *err);
/* Does the same, but tells runs that repeat with equal steps by one call. */
struct ptc_strided_rows {
	uint64_t address;
	int64_t off, len, n; /* n: number of runs */
	int64_t there, here; /* steps of address and of off */
};
typedef int (*ptc_strided_rows_fn)(void *arg, const struct ptc_strided_rows *rows, struct ptc_error *err);
int ptc_strided_each_rows(const struct ptc_strided *p, const struct ptc_box *other, const struct ptc_box *cut,
			  ptc_strided_rows_fn fn, void *arg, struct ptc_error *err);

/* Collects runs and copies them in large calls. */
struct ptc_iov_batch {
	const struct ptc_slot_view *slot;
	struct ptc_slot_copying *copying;
	enum ptc_copy_op way;      /* PTC_COPY_READ from the process, _WRITE to it, _COMPARE with it */
	enum ptc_copy_pages pages; /* of the destination of reads */
	size_t nremote, nlocal, bytes;
	size_t moved; /* bytes so far */
	struct iovec remote[PTC_IOV_BATCH_SPANS], local[PTC_IOV_BATCH_SPANS];
};
/* Adds a run of len bytes at `address` in the rank, and from byte `off` on in the spans. */
int ptc_iov_batch_add(struct ptc_iov_batch *m, uint64_t address, const struct iovec *spans, int nspans, int64_t off,
		      int64_t len, struct ptc_error *err);
int ptc_iov_batch_flush(struct ptc_iov_batch *m, struct ptc_error *err);
