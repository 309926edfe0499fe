/* SPDX-License-Identifier: Apache-2.0 */
/* Homes: the daemons of this machine whose nodes have bytes of a job's state. ptcctl hands an import's bytes to the
 * home that needs them, and reads an export's bytes in the home's chunk file, so they do not cross a socket between two
 * daemons.
 *
 * Happy path: the daemon names the near nodes (ptc_admin_near_ask), each home says that it is that node, and the layout
 * says which bytes a home has. Home 0 is the daemon that ptcctl talks to. It can give and take every byte.
 *
 * What is known of homes may be wrong or out of date. So it only chooses the way: each daemon passes on what is not its
 * own, and what is read is verified and digested. Failure modes: without near nodes, or if anything about them fails,
 * there are no homes, and home 0 does everything.
 *
 * Ownership: the caller keeps c, spec and layout as long as the homes. Threads: any may place items at the same time.
 */
#pragma once

#include "client/ctl/line/ctl.h"
#include "reshard/layout/layout.h"

#define CTL_HOMES_MAX 16
#define CTL_HOMES_RUN (64u << 10) /* shorter runs of a home are better given and taken by home 0 */

struct ctl_homes;
struct ctl_homes_of {
	struct ctl *c;
	const char *job;
	const struct ptc_spec *spec;
	uint64_t import_id; /* of an import that has begun; 0: of committed state, of which the next two are */
	const struct ptc_layout *layout;
	const char *ranks_json; /* [{rank, node, device}] */
};
/* NULL: there is no home but home 0. */
struct ctl_homes *ctl_homes_new(const struct ctl_homes_of *of);
struct ctl_homes *ctl_homes_free(struct ctl_homes *h); /* NULL ok */
struct ptc_admin *ctl_homes_admin(const struct ctl_homes *h, size_t home);

/* Where the bytes of an item are. */
struct ctl_placed {
	const struct ctl_homes *homes; /* NULL: all at home 0 */
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];
	uint64_t bytes;
	struct ptc_needs needs[CTL_HOMES_MAX];
};
/* h may be NULL. ctl_placed_done *ret. */
void ctl_homes_place(const struct ctl_homes *h, uint32_t item, struct ctl_placed *ret);
void ctl_placed_done(struct ctl_placed *p); /* accepts one of zeros */
/* The home of the bytes from offset on. *length: at most so many; then, how many lie there. */
size_t ctl_placed_at(const struct ctl_placed *p, uint64_t offset, uint64_t *length);
/* How many bytes from `offset` on lie in the box in one run; 0: the first does not. Pure. */
uint64_t ctl_run_in_box(const struct ptc_box *box, uint32_t ndim, const int64_t *shape, uint64_t offset);
