/* SPDX-License-Identifier: Apache-2.0 */
/* A switch as a picture (SVG): each node a row, before on the left and after on
 * the right, a cell per device with its rank. The same drawing for a plan made
 * of a file and for one that a daemon made; the latter knows bytes by node only.
 * Nothing here is kept: all pointers are the caller's. Failure: PTC_ELIMIT where
 * there are too many nodes for a picture, PTC_ENOMEM. */
#pragma once

#include "base/status.h"
#include "reshard/spec/config.h"

#define CTL_PICTURE_NODES 256 /* rows; a picture of more says nothing */

struct ctl_picture_node {
	const char *name; /* any text */
	enum { CTL_NODE_UP, CTL_NODE_DOWN, CTL_NODE_DRAINED } state;
	int64_t in_bytes, out_bytes; /* drawn where lines is NULL */
};
struct ctl_picture_rank {
	uint32_t node, device;
	int64_t parts[3]; /* bytes after the switch: green, yellow, red; of no matter before it */
};
struct ctl_picture {
	const char *job;                    /* NULL: not said */
	const char *before, *after;         /* headings */
	const struct ptc_config *from, *to; /* of the ranks' coordinates; from NULL: there are none before */
	const char *note, *colours;         /* the lines below: sums, and what the three colours mean */
	uint32_t nnodes, per_node;          /* per_node: the most devices that one of them has */
	struct ctl_picture_node *nodes;
	const uint32_t *devices; /* per node; NULL: per_node each */
	const bool *failed;      /* nnodes * per_node: devices that failed on nodes that are up; NULL: none */
	uint32_t nwas, nnow;
	struct ctl_picture_rank *was, *now;
	const int64_t *lines; /* bytes, src * nnodes + dst; NULL: only each node's sums are known */
};
/* To stdout. */
int ctl_picture_print(const struct ctl_picture *p, struct ptc_error *err);
/* picture_live.c: of the document that a daemon answers `plan` with; PTC_EPEER where it is none. */
int ctl_picture_of_plan(const char *json, struct ptc_error *err);
