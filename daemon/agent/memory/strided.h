/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes in a process, where it has declared them, and moving them from and to
 * extents of the store. Pure but for ptc_iov_batch, which calls the process. */
#pragma once

#include "daemon/workers/group/rank_slots.h"
#include "reshard/spec/spec.h"

#include <sys/uio.h>

#define PTC_IOV_BATCH_SPANS 1024      /* of one call: the kernel's bound (IOV_MAX) */
#define PTC_IOV_BATCH_BYTES (8 << 20) /* of one call: so that a stop is seen soon */

/* Where the bytes of a box lie in a process. */
struct ptc_strided {
	struct ptc_box box;           /* bytes, as spec.h's ptc_item_byte_box has it */
	uint64_t address;             /* of the first one */
	int64_t stride[PTC_MAX_DIMS]; /* bytes from one index to the next; of the last dim: from one step to the next */
	int64_t step;                 /* bytes together in the last dim; 0: all of it */
};
/* PTC_ELAYOUT naming the tensor where memory of a sub-byte dtype is not compact. */
int ptc_strided_init(struct ptc_strided *p, const struct ptc_spec *spec, uint32_t item,
		     const struct ptc_slot_region *region, struct ptc_error *err);
/* Calls fn for each longest run of cut that is contiguous both there and in compact memory that holds `other`: len bytes at
 * address there, and at off in the other. cut lies in both boxes and is not empty. */
typedef int (*ptc_strided_fn)(void *arg, uint64_t address, int64_t off, int64_t len, struct ptc_error *err);
int ptc_strided_runs(const struct ptc_strided *p, const struct ptc_box *other, const struct ptc_box *cut,
		     ptc_strided_fn fn, void *arg, struct ptc_error *err);
/* The same, runs that repeat with equal steps told at once. */
struct ptc_strided_rows {
	uint64_t address;
	int64_t off, len, n; /* n: how often */
	int64_t there, here; /* steps of address and of off */
};
typedef int (*ptc_strided_rows_fn)(void *arg, const struct ptc_strided_rows *rows, struct ptc_error *err);
int ptc_strided_each_rows(const struct ptc_strided *p, const struct ptc_box *other, const struct ptc_box *cut,
			  ptc_strided_rows_fn fn, void *arg, struct ptc_error *err);

/* Collects runs and copies them in large calls. */
struct ptc_iov_batch {
	const struct ptc_slot_view *slot;
	struct ptc_slot_copying *copying;
	enum {
		PTC_IOV_BATCH_READ,
		PTC_IOV_BATCH_WRITE,
		PTC_IOV_BATCH_COMPARE
	} way;      /* from the process, to it, with it */
	bool fresh; /* what is read goes to memory that the process which copies may not have mapped yet */
	size_t nremote, nlocal, bytes;
	size_t moved; /* in all */
	struct iovec remote[PTC_IOV_BATCH_SPANS], local[PTC_IOV_BATCH_SPANS];
};
/* Memory as spans, from byte off on: room for len bytes. */
int ptc_iov_batch_add(struct ptc_iov_batch *m, uint64_t address, const struct iovec *spans, int nspans, int64_t off,
		      int64_t len, struct ptc_error *err);
int ptc_iov_batch_flush(struct ptc_iov_batch *m, struct ptc_error *err);
