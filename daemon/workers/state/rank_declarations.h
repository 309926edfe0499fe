/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks declare and carry: checked when it comes in, immutable and counted once it is whole.
 * Failure modes: rank_declarations.c. */
#pragma once

#include "daemon/workers/state/worker_state.h"

/* Reference counts are guarded by the module's lock. */
struct declared *ptc_declared_new(void);
struct declared *ptc_declared_unref(struct declared *d);
/* fd: of its handle, or -1; the caller's. Once all are added, by ptc_declared_finish, they are in address order. PTC_ELIMIT: too many. */
int ptc_declared_add_device(struct declared *d, const struct ptc_local_device *m, int fd, struct ptc_error *err);
int ptc_declared_add(struct declared *d, struct ptc_local_tensor *t, struct ptc_error *err);
/* After the last: sorts, refuses doubles, finds spans. */
int ptc_declared_finish(struct declared *d, struct ptc_error *err);
/* NULL: [address, address + len) is not all declared. */
const struct ptc_local_span *ptc_declared_span(const struct declared *d, uint64_t address, uint64_t len);
/* What holds that byte; NULL: memory of the host. */
const struct ptc_device_range *ptc_declared_device(const struct declared *d, uint64_t address);
const char *ptc_declared_tensor_at(const struct declared *d, uint64_t address);
struct rank_state *ptc_rank_state_new(void);
struct rank_state *ptc_rank_state_ref(struct rank_state *k); /* NULL: NULL */
struct rank_state *ptc_rank_state_unref(struct rank_state *k);
int ptc_rank_state_make(const struct ptc_rank_state *of, struct rank_state **ret, struct ptc_error *err);
/* *k gets the blob or cursor; copied first when it is referred to elsewhere. */
int ptc_rank_state_set_blob(struct rank_state **k, const struct ptc_local_blob *b);
int ptc_rank_state_set_cursor(struct rank_state **k, const struct ptc_local_cursor *c);
