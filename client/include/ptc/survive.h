/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: a rank's memory outlives the loss of other ranks. ptc/ptc.h includes this header.
 *
 *     ptc_survive(c, 1);                 // after ptc_restore
 *     while (step < steps) {
 *             if (ptc_boundary(c, step)) ...
 *             ... forward, backward, gradients of other ranks ...
 *             ptc_update_begin(c);
 *             ... the optimizer ...
 *             step++;
 *     }
 *     if (others cannot be reached)      // before memory is freed or changed
 *             ptc_leave(c);
 *
 * If a node is lost, the job goes on from the memory of the ranks that are left, if these have all of the state at one
 * step (docs/failures.md). Failure modes: ptcd is of a version that holds no ranks, or is away: ptc_leave and
 * ptc_update_alone return within 5 s. If ptcd went away while it held the rank, they wait for up to 5 min more. The job
 * then goes on from its newest snapshot. Threads: as ptc/ptc.h. */
#ifndef PTC_SURVIVE_H
#define PTC_SURVIVE_H

#include <ptc/result.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ptc_client ptc_client;

/* With `yes` = 1 the program promises: from each boundary to ptc_update_begin all state is in declared memory, blobs
 * and cursors. If a node is lost, the job then goes on from this memory. The promise holds until ptc_next, or until a
 * call with `yes` = 0.
 * libptc looks whether it is kept: it copies pieces of declared host memory at boundaries, and compares them in
 * ptc_update_begin. The pieces are chosen anew each time, and as many as take at most 0.1 % of the time. If one has
 * changed, the promise is broken until ptc_next: training goes on, `ptcctl status` shows why, and a call with `yes` = 1
 * returns PTC_R_REFUSED. Memory on devices is not compared. */
PTC_API int ptc_survive(ptc_client *c, int yes);
/* The program's own checks of its promise have passed for the boundary to come. `ptcctl status` shows its step. */
PTC_API int ptc_survive_checked(ptc_client *c);
/* Why the promise is broken in this generation; NULL: it is not. The text is valid until ptc_next. With `why` (one
 * line) the program takes its promise back for this generation. ptcd keeps 255 bytes of the first such text. */
PTC_API const char *ptc_survive_broken(ptc_client *c, const char *why);
/* Call this before a rank gives up and frees memory. Waits until ptcd has copied the memory or does not want it, at
 * most 5 min, not counting time in which the rank is frozen. */
PTC_API void ptc_leave(ptc_client *c);
/* Asks ptcd whether this rank has to make its update without the other ranks. This is for programs that change the
 * state of a step on every rank or on none. In such a program, a rank that has all gradients of its step waits before
 * ptc_update_begin until all other ranks have theirs; call this while the rank waits. When a node is lost, some ranks
 * may have begun the update while others still wait. A waiting rank cannot know this, so ptcd says it.
 * gone 0: the rank still waits; the call only asks, and returns within nanoseconds. gone 1: the others cannot be
 * reached; the call waits until it is decided, as ptc_leave does.
 * Returns 1: call ptc_update_begin, change the state, and come to the next boundary. If `gone` was 0, a 0 means: not
 * decided yet, go on waiting. If `gone` was 1, a 0 means: exit; ptcd does not want the memory any more, and ptc_leave
 * would return at once. */
PTC_API int ptc_update_alone(ptc_client *c, int gone);
#ifdef __cplusplus
}
#endif
#endif
