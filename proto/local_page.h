/* SPDX-License-Identifier: Apache-2.0 */
/* The page of memory that a rank and its node's ptcd share: a memfd of PTC_LOCAL_PAGE bytes made by ptcd, sealed
 * against shrinking and growing. It lives as long as the rank, so a ptcd of another version may find it. So members are
 * never moved, and new ones are added behind the others, where pages of earlier versions are zero. Any thread of either
 * end; nothing here blocks or fails. Needs libc only. */
#pragma once

#include "base/number/versions.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PTC_LOCAL_REPORTS        8
#define PTC_LOCAL_REPORT_NAME    32  /* with its NUL */
#define PTC_LOCAL_BROKEN_WHY     256 /* likewise */
#define PTC_LOCAL_PAGE           4096
#define PTC_LOCAL_NO_STOP        UINT64_MAX
#define PTC_LOCAL_STEP_MAX       (UINT64_MAX / 4)
#define PTC_LOCAL_PAGE_VERSION   PTC_VERSION_NUMBER(1u) /* of the page, whatever protocol is spoken */
#define PTC_LOCAL_PAGE_OLDEST    1u
#define PTC_LOCAL_STAGE_FREE     0u
#define PTC_LOCAL_STAGE_FILLING  1u /* by the rank */
#define PTC_LOCAL_STAGE_READING  2u /* by ptcd */
#define PTC_LOCAL_MARKS_NONE     0u /* no stream was given: devices are waited for */
#define PTC_LOCAL_MARKS_PROVEN   1u /* between two marks of `device` nothing else changes declared memory there */
#define PTC_LOCAL_MARKS_UNPROVEN 2u /* the program has another way: a second stream, or an update in a CUDA graph */
#define PTC_LOCAL_LEAVE_ASKS     1u /* the rank waits in ptc_leave */
#define PTC_LOCAL_LEAVE_GO       2u /* ptcd's answer: its memory is not wanted, or not any more */
#define PTC_LOCAL_LEAVE_UPDATES                                                                                        \
	3u /* ptcd's answer to a rank that is `ready`: end the update, and come to the boundary */

struct ptc_local_report {
	char name[PTC_LOCAL_REPORT_NAME]; /* written before `nreports` counts it; then constant */
	_Atomic uint64_t bits;            /* of a double */
};
/* Blobs and cursors, in the rank's memory: frames of a uint32_t type (PTC_LOCAL_BLOB, PTC_LOCAL_CURSOR), a uint32_t
 * length, and the message. */
struct ptc_local_published {
	_Atomic uint64_t from; /* step + 1 of the first boundary for which it counts; 0: it is none, or being written */
	_Atomic uint64_t address, bytes;
};
/* Where the memfd that came with KEEPS lies in the rank's address space. If `published` of the page names an address in
 * this range, its bytes are in the memfd. ptcd has it as long as the rank's slot, so it can read what a killed rank has
 * published. */
struct ptc_local_keeps {
	uint64_t address, bytes;
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
	/* The rank's device's: as `state`, but written by the device itself, in the order of the stream whose work
	 * changes declared memory. 0: nothing yet. */
	_Alignas(64) _Atomic uint64_t device;
	/* The rank's: whether `device` counts (PTC_LOCAL_MARKS_...). */
	_Alignas(64) _Atomic uint32_t marks;
	/* ptcd's: for how many milliseconds it waits for this rank now; 0: it has not said. */
	_Alignas(64) _Atomic uint64_t patience_ms;
	/* ptcd's: 1: no update begins. */
	_Alignas(64) _Atomic uint32_t hold;
	_Atomic uint32_t knows_survivors; /* ptcd's: 1: it holds ranks, and answers LEAVES */
	_Atomic uint32_t leaving;         /* PTC_LOCAL_LEAVE_; 0: the rank does not leave */
	/* The rank's: 1: its memory stays what its marks say, and its blobs and cursors are published (ptc_survive). */
	_Alignas(64) _Atomic uint32_t survives;
	_Atomic uint64_t marked; /* step + 1 of the boundary after which an update began last; 0: none */
	struct ptc_local_published published[2]; /* of those whose `from` is reached, the later one counts */
	/* ptcd's, with `hold`: no update begins after the boundary of this step or of a later one; those before may. */
	_Alignas(64) _Atomic uint64_t hold_from;
	/* The rank's: 1: it has all that its next update needs, and waits for other ranks only (ptc_update_alone). */
	_Atomic uint32_t ready;
	/* The rank's: step + 1 of the last boundary after which pieces of its memory were as before when the update
	 * began (sampled), and of the last one at which its program's own checks passed (checked); 0: none yet. */
	_Alignas(64) _Atomic uint64_t sampled, checked;
	/* The rank's: 1: its memory was found not to be what its marks say. It promises nothing until its next
	 * generation. */
	_Atomic uint32_t broken;
	char broken_why[PTC_LOCAL_BROKEN_WHY]; /* written before `broken` is set; then constant for the generation */
#if PTC_VERSION_RAISED
	_Alignas(64) uint64_t added;
#endif
};
_Static_assert(sizeof(struct ptc_local_page) <= PTC_LOCAL_PAGE, "the page's size is part of the protocol");

/* The values of `state` and `device` at a step. */
static inline uint64_t ptc_local_mark(uint64_t step, bool whole)
{
	return ((step + 1) << 1) | whole;
}
/* The rank publishes its step, then reads the stop; ptcd exchanges the stop, then reads the step. All of it is
 * sequentially consistent, so at least one of the two sees what the other has done: either the rank waits, or ptcd
 * knows that it has passed. (A plain store to publish loses arms: the read may be done before the store is seen.) */
static inline bool ptc_local_boundary(struct ptc_local_page *p, uint64_t step)
{
	atomic_exchange(&p->state, ptc_local_mark(step, true));
	return atomic_load(&p->stop) > step; /* true: go on */
}
/* Whether `hold` lets the update begin that follows the boundary at this step. */
static inline bool ptc_local_may_update(const struct ptc_local_page *p, uint64_t step)
{
	return __builtin_expect(atomic_load(&p->hold) == 0, 1) || step < atomic_load(&p->hold_from);
}
/* The rank takes its mark back, then reads `hold`; ptcd exchanges `hold`, then reads the mark. So where ptcd sees whole
 * state of a step from `hold_from` on after it has set `hold`, no update begins before it clears that. An update that
 * has begun, such as with another optimizer, is not held: its state is not whole. False: held, and the state is whole;
 * ask again. */
static inline bool ptc_local_update_begin(struct ptc_local_page *p, uint64_t step)
{
	if (atomic_load_explicit(&p->state, memory_order_relaxed) == ptc_local_mark(step, false)) /* our own */
		return true;
	atomic_exchange(&p->state, ptc_local_mark(step, false));
	if (!ptc_local_may_update(p, step)) {
		atomic_exchange(&p->state, ptc_local_mark(step, true));
		return false;
	}
	atomic_store_explicit(&p->marked, step + 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release); /* seen before any change of the state that follows */
	return true;
}
/* Of `sampled` or `checked`. false: none yet. */
static inline bool ptc_local_of_step(const _Atomic uint64_t *word, uint64_t *ret_step)
{
	uint64_t v = atomic_load(word);

	*ret_step = v ? v - 1 : 0;
	return v != 0;
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
/* The last step at which the device has said anything; false: it says nothing that counts. */
static inline bool ptc_local_device_step(const struct ptc_local_page *p, uint64_t *ret_step)
{
	uint64_t v = atomic_load(&p->device);

	if (atomic_load(&p->marks) != PTC_LOCAL_MARKS_PROVEN || v < 2)
		return false;
	*ret_step = (v >> 1) - 1;
	return true;
}
/* Whether all declared memory is whole at the step that the rank has published: that on its device too, if the device
 * says. */
static inline bool ptc_local_all_whole(const struct ptc_local_page *p)
{
	uint64_t v = atomic_load(&p->state);

	return (v & 1) && (atomic_load(&p->marks) != PTC_LOCAL_MARKS_PROVEN || atomic_load(&p->device) == v);
}
/* Returns the stop before; *ret_published, *ret_step: as ptc_local_step says after the exchange. */
static inline uint64_t ptc_local_arm(struct ptc_local_page *p, uint64_t stop, bool *ret_published, uint64_t *ret_step)
{
	uint64_t old = atomic_exchange(&p->stop, stop);

	*ret_published = ptc_local_step(p, ret_step);
	return old;
}
