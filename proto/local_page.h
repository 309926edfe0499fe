/* SPDX-License-Identifier: Apache-2.0 */
/* The page of memory that a rank and its node's ptcd share: a memfd of PTC_LOCAL_PAGE bytes made by ptcd, sealed
 * against shrinking and growing. It lives as long as the rank, so a ptcd of another version finds it: members are added
 * behind the others, where pages of earlier versions are zero, and never moved. Any thread of either end; nothing here
 * blocks or fails. Needs libc only. */
#pragma once

#include "base/number/versions.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PTC_LOCAL_REPORTS       8
#define PTC_LOCAL_REPORT_NAME   32 /* with its NUL */
#define PTC_LOCAL_PAGE          4096
#define PTC_LOCAL_NO_STOP       UINT64_MAX
#define PTC_LOCAL_STEP_MAX      (UINT64_MAX / 4)
#define PTC_LOCAL_PAGE_VERSION  PTC_VERSION_NUMBER(1u) /* of the page, whatever protocol is spoken */
#define PTC_LOCAL_PAGE_OLDEST   1u
#define PTC_LOCAL_STAGE_FREE    0u
#define PTC_LOCAL_STAGE_FILLING 1u /* by the rank */
#define PTC_LOCAL_STAGE_READING 2u /* by ptcd */

struct ptc_local_report {
	char name[PTC_LOCAL_REPORT_NAME]; /* written before `nreports` counts it; then constant */
	_Atomic uint64_t bits;            /* of a double */
};
struct ptc_local_page {
	uint32_t magic, version;
	/* The rank's: 0 before the first boundary of a generation; then (step + 1) << 1, plus 1 while the state is
	 * whole. */
	_Alignas(64) _Atomic uint64_t state;
	/* ptcd's: a boundary at this step or a later one waits. */
	_Alignas(64) _Atomic uint64_t stop;
	/* Who has the staging memory. Taken and given back by compare-exchange. */
	_Alignas(64) _Atomic uint32_t staging;
	_Alignas(64) _Atomic uint32_t nreports;
	struct ptc_local_report reports[PTC_LOCAL_REPORTS];
#if PTC_VERSION_RAISED
	_Alignas(64) uint64_t added;
#endif
};
_Static_assert(sizeof(struct ptc_local_page) <= PTC_LOCAL_PAGE, "the page's size is part of the protocol");

/* The rank publishes its step, then reads the stop; ptcd exchanges the stop, then reads the step. All of it is
 * sequentially consistent, so at least one of the two sees what the other has done: either the rank waits, or ptcd
 * knows that it has passed. (A plain store to publish loses arms: the read may be done before the store is seen.) */
static inline bool ptc_local_boundary(struct ptc_local_page *p, uint64_t step)
{
	atomic_exchange(&p->state, ((step + 1) << 1) | 1);
	return atomic_load(&p->stop) > step; /* true: go on */
}
static inline void ptc_local_update_begin(struct ptc_local_page *p, uint64_t step)
{
	atomic_store_explicit(&p->state, (step + 1) << 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release); /* seen before any change of the state that follows */
}
/* false: no boundary yet. */
static inline bool ptc_local_step(const struct ptc_local_page *p, uint64_t *ret_step)
{
	uint64_t v = atomic_load(&p->state);

	if (v < 2)
		return false;
	*ret_step = (v >> 1) - 1;
	return true;
}
/* Whether the state is whole at that step. */
static inline bool ptc_local_whole(const struct ptc_local_page *p)
{
	return atomic_load(&p->state) & 1;
}
/* Returns the stop before; *ret_published, *ret_step: as ptc_local_step says after the exchange. */
static inline uint64_t ptc_local_arm(struct ptc_local_page *p, uint64_t stop, bool *ret_published, uint64_t *ret_step)
{
	uint64_t old = atomic_exchange(&p->stop, stop);

	*ret_published = ptc_local_step(p, ret_step);
	return old;
}
