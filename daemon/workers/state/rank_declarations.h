/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations and rank state of ranks. They are checked when they come in. Once complete they are immutable, and
 * references to them are counted.
 *
 * Failure modes: rank_declarations.c. */
#pragma once

#include "daemon/workers/state/worker_state.h"

/* The lock of daemon/workers guards reference counts. */
struct declared *ptc_declared_new(void);
struct declared *ptc_declared_unref(struct declared *d);
/* Adds an allocation on a device. fd: of its handle, or -1; the caller keeps it. ptc_declared_finish sorts allocations
 * by address. PTC_ELIMIT: there are too many. */
int ptc_declared_add_device(struct declared *d, const struct ptc_local_device *m, int fd, struct ptc_error *err);
int ptc_declared_add(struct declared *d, struct ptc_local_tensor *t, struct ptc_error *err);
/* Call this after the last declaration: it sorts, refuses duplicates, and finds spans. */
int ptc_declared_finish(struct declared *d, struct ptc_error *err);
/* Both are finished. PTC_ELAYOUT: `now` has another tensor than `before`, or another part of a tensor. Addresses and
 * strides are not looked at. */
int ptc_declared_same_layout(const struct declared *before, const struct declared *now, struct ptc_error *err);
/* The span that contains [address, address + len). NULL: not all of it is declared. */
const struct ptc_local_span *ptc_declared_span(const struct declared *d, uint64_t address, uint64_t len);
/* The device range that contains the byte. NULL: the byte is in host memory. */
const struct ptc_device_range *ptc_declared_device(const struct declared *d, uint64_t address);
const char *ptc_declared_tensor_at(const struct declared *d, uint64_t address);
struct rank_state *ptc_rank_state_new(void);
struct rank_state *ptc_rank_state_ref(struct rank_state *k); /* NULL: NULL */
struct rank_state *ptc_rank_state_unref(struct rank_state *k);
int ptc_rank_state_make(const struct ptc_rank_state *of, struct rank_state **ret, struct ptc_error *err);
/* Add a blob or cursor to *k. If somebody else has a reference to *k, these functions replace *k by a copy first. */
int ptc_rank_state_set_blob(struct rank_state **k, const struct ptc_local_blob *b);
int ptc_rank_state_set_cursor(struct rank_state **k, const struct ptc_local_cursor *c);
