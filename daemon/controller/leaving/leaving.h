/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that will be taken away within a stated time, and what one job does about it (`ptcctl drain --within`).
 *
 * Happy path: ranks that run stop at a boundary, and their state becomes a snapshot. Bytes of the committed state that
 * only leaving nodes have are then copied to other nodes, as fast as possible. After that the job starts again
 * elsewhere, or moves there if no ranks run. Where it cannot start elsewhere, ranks go on after the snapshot. From the
 * end of the copies on, the nodes may go at any instant: nothing is lost.
 *
 * Failure modes: if some bytes are not copied in time, the answer names them, and the job waits no longer. Only the
 * document of copies and the record are in etcd. So a controller that takes over does not know which nodes leave, until
 * it is told. [loop] for all of it. */
#pragma once

#include "base/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_controller;
struct ptc_error;
struct ptc_leaving_answer;

#define PTC_LEAVING_MAX 64 /* nodes of one job at a time */

struct ptc_leaving_node {
	char name[PTC_NAME_MAX + 1];
	int64_t until_ns;
	bool closed;
	bool down; /* it has gone; when it is back, it leaves no more */
};

enum ptc_leaving_phase {
	PTC_LEAVING_REST,
	PTC_LEAVING_BEGINS,   /* until a switch can begin */
	PTC_LEAVING_SNAPSHOT, /* that switch is under way */
	PTC_LEAVING_COPIES,   /* copies are made */
	PTC_LEAVING_MOVES,    /* no ranks run, and the layout is moved to other nodes */
	PTC_LEAVING_OVER,
};

/* The last result of the keeper of copies, for one record: bytes that only leaving nodes have. */
struct ptc_leaving_left {
	int64_t record_revision; /* 0: it has not looked yet */
	uint64_t epoch;          /* ptc_cluster_epoch when it began to look; absent nodes may be back since */
	bool out;                /* nothing is left */
	uint64_t bytes, nowhere; /* nowhere: the part of `bytes` that no other node can take */
	uint64_t gone;           /* bytes besides, which no node has any more */
	uint32_t tensors;
	char tensor[200];  /* one of them */
	char refused[400]; /* the last node that had no room for copies, and why; "": none */
};

struct ptc_leaving {
	struct ptc_leaving_node nodes[PTC_LEAVING_MAX];
	uint32_t n;
	enum ptc_leaving_phase phase;
	int64_t until_ns; /* of the node that goes first */
	uint64_t id;      /* of the switch under way */
	int64_t again_ns; /* not before */
	bool starts;      /* its ranks were stopped, and start elsewhere */
	bool moved;       /* nothing of the layout is on leaving nodes any more */
	struct ptc_leaving_left left;
	char why[512]; /* what stood in the way; "": nothing */
};

/* leaving.c */
/* The node goes `within_ms` from now, and *ret says how the job stands (leaving_answer.h). If the node leaves already,
 * its time stays, unless `begin` is set. closed: it is drained for all jobs; if that is undone, it does not leave. */
int ptc_leaving_ask(struct ptc_controller *ctl, const char *node, uint64_t within_ms, bool closed, bool begin,
		    struct ptc_leaving_answer *ret, struct ptc_error *err);
/* leaving_nodes.c */
bool ptc_leaving_any(const struct ptc_controller *ctl);
bool ptc_leaving_has(const struct ptc_controller *ctl, const char *node);
bool ptc_leaving_in_layout(const struct ptc_controller *ctl); /* the job's layout is on a node that leaves */
/* Whether a job whose ranks have stopped must not start yet, because bytes that only leaving nodes have are copied
 * first. */
bool ptc_leaving_holds(const struct ptc_controller *ctl);
/* Some node leaves, and more time changes nothing: no node can take the remaining bytes, or the nodes that had them are
 * lost. */
bool ptc_leaving_stuck(const struct ptc_controller *ctl);
/* Whether `left`, the last result of the keeper of copies, is still true. */
bool ptc_leaving_counted(const struct ptc_controller *ctl);
/* Whether the keeper of copies shall copy only bytes that leaving nodes alone have, and all others later. */
bool ptc_leaving_urgent(const struct ptc_controller *ctl);
/* The keeper of copies has looked. */
void ptc_leaving_looked(struct ptc_controller *ctl, const struct ptc_leaving_left *left);
