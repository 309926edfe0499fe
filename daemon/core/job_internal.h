/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the job core share. Each calls only those above it here: job_state.c, job_nodes.c, job_moves.c,
 * then job_replies.c and job_start.c; job_core.c calls them all. Nobody else includes it. Nothing here fails: room was
 * reserved before. */
#pragma once

#include "daemon/core/job_core.h"

struct ptc_job_node {
	uint64_t seq;        /* of the request not answered yet; 0: none */
	uint64_t up_seq;     /* of the last request to any node before this one came up */
	int op;              /* of that request */
	uint32_t attempts;   /* retriable failures in a row */
	uint32_t backoff;    /* ticks until the next attempt */
	uint32_t down_ticks; /* waited for it this long */
	uint32_t downs;      /* how often it went down in this phase */
	bool up;
	bool stale; /* may hold tables, or have ranks, other than the record's */
	bool in_record;
	bool from, to;
	bool need;     /* the phase ends only when it has answered */
	bool lost;     /* down, and declared lost: a switch of state goes on without it */
	bool left_out; /* of this switch: it is not one that gives, and was not cleaned for it */
	bool prepared; /* answered PREPARE, and has not restarted since */
	bool armed;    /* answered ARM for the present stop, and has not restarted since */
};

struct ptc_job_reason {
	int status;
	uint32_t node;
	uint32_t waited_ms; /* not 0: the node is down, and was waited for that long */
	bool lost;          /* the node, which was to take state, is lost */
	char text[PTC_JOB_TEXT_MAX];
};

/* Arming: rounds of ARM until no node says passed, then STOP. */
struct ptc_job_arming {
	uint64_t stop;     /* of the present round; with `done` the step the snapshot is of */
	uint64_t greatest; /* step any node has told in this round */
	uint32_t unarmed;  /* nodes that have not answered ARM for `stop` */
	uint32_t rounds;   /* since the stop last moved because a rank asked for it */
	uint32_t moves;    /* how often it did */
	bool passed;       /* some node said so in this round */
	bool stopping;     /* a round ended without `passed`: STOP is under way */
	bool done;         /* all ranks have answered from `stop`, in this tenure of the lock */
};

struct ptc_job {
	uint32_t max_attempts, tick_ms, wait_ticks;
	enum ptc_job_phase phase;
	int64_t fence;
	uint64_t generation, snapshot; /* the record */
	bool members_known;            /* in_record of the nodes is meaningful */

	struct ptc_job_node *nodes;
	uint32_t nnodes;
	uint32_t pending; /* nodes with need */

	struct ptc_switch cur;
	bool has_switch;
	bool own;          /* asked for in this life */
	bool filled;       /* import: the client has sent everything */
	bool checked;      /* CHECKING is done: no node of it holds a table that is not the record's */
	bool intent_held;  /* known to be, or to have been, in etcd */
	bool intent_there; /* as last read or written */
	bool committed;    /* the last transaction of the switch is known to hold */
	struct ptc_job_arming arming;
	uint32_t *from_buf, *to_buf;
	uint32_t from_cap, to_cap;
	struct ptc_job_reason
		later;             /* status != 0: in this round a rank of that node has asked for the next boundary */
	struct ptc_job_reason why; /* status != 0: the switch is to be aborted */
	uint64_t reported_id;      /* the last switch that got its DONE */

	uint32_t reloads;        /* since a transaction last succeeded */
	uint32_t reload_backoff; /* ticks until RELOAD is emitted */
	uint64_t reload_seq;     /* of the RELOAD not answered yet */

	uint64_t seq, txn_seq, timer_seq;
	uint64_t local_seq; /* of AGREE, LAYOUT or CHECK_DIGESTS */
	struct ptc_job_update *updates;
	size_t nupdates, updates_cap;
};

/* ---- job_state.c: states, updates, what a switch is -------------------------------------- */

enum ptc_job_waits {
	PTC_JOB_WAITS_NODES,
	PTC_JOB_WAITS_TXN,
	PTC_JOB_WAITS_LOCAL
}; /* whom beside nodes a phase waits for */
struct ptc_job_state {
	const char *name;
	uint32_t next;   /* allowed moves: a bit per phase */
	bool has_switch; /* invariant */
	int waits;       /* enum ptc_job_waits; ABORTING: for a transaction in its first half */
	bool from, to;   /* asks these nodes */
	int update;      /* LOCAL: that asks the shell */
};
const struct ptc_job_state *ptc_job_state(enum ptc_job_phase phase);
/* Aborts the process where an invariant does not hold. The O(1) part holds in every build, the counts in debug builds.
 */
void ptc_job_check(const struct ptc_job *job);
struct ptc_job_update *ptc_job_push(struct ptc_job *job, enum ptc_job_update_kind kind);
void ptc_job_want_tick(struct ptc_job *job);
__attribute__((format(printf, 4, 5))) void ptc_job_reason_set(struct ptc_job_reason *r, int status, uint32_t node,
							      const char *fmt, ...);
void ptc_job_reason_lost(struct ptc_job_reason *r, uint32_t node);
void ptc_job_move(struct ptc_job *job, enum ptc_job_phase next);
void ptc_job_push_done(struct ptc_job *job, uint64_t id, const struct ptc_job_reason *r);
/* The end of the current switch, told once; then it is forgotten. */
void ptc_job_switch_report(struct ptc_job *job);
void ptc_job_switch_forget(struct ptc_job *job);
bool ptc_job_list_valid(const uint32_t *v, uint32_t n);
bool ptc_job_switch_has(const struct ptc_switch *s, enum ptc_job_phase phase);
bool ptc_job_record_is(const struct ptc_job *job, uint64_t generation, uint64_t snapshot);
/* COMMIT1 of the switch holds, and the intent is still there. */
bool ptc_job_half_way(const struct ptc_job *job);
/* CLEAR has to raise the incarnation: ranks of the old generation may have ended for this switch. */
bool ptc_job_needs_incarnation(const struct ptc_job *job);

/* ---- job_nodes.c: what nodes are asked ---------------------------------------------------- */

/* FINISH may be sent: no intent is held. */
bool ptc_job_may_finish(const struct ptc_job *job);
/* Sends the node what it is to do next, if anything and if it can take it. */
void ptc_job_node_try(struct ptc_job *job, uint32_t i);
void ptc_job_nodes_try(struct ptc_job *job);
/* The answer to what it was asked is not wanted any more. */
void ptc_job_node_cancel(struct ptc_job *job, uint32_t i);
/* The phase ends only when it has answered; it has. */
void ptc_job_node_want(struct ptc_job *job, struct ptc_job_node *n);
void ptc_job_node_answered(struct ptc_job *job, struct ptc_job_node *n);
/* The phase cannot end without it, or goes badly without it. */
bool ptc_job_node_awaited(const struct ptc_job *job, const struct ptc_job_node *n);
/* What it is to keep has changed: the answer to a FINISH under way would say nothing. */
void ptc_job_node_mark_stale(struct ptc_job *job, uint32_t i);
/* Nobody is needed any more. A FINISH may go on: it is right until the record changes (mark_stale). */
void ptc_job_nodes_release(struct ptc_job *job, bool cancel_finish);
/* The switch goes on without what that node has. The phase does not need its answer. */
void ptc_job_node_leave_out(struct ptc_job *job, uint32_t i);
/* It goes on without this one as soon as that is lost: it has state, and no rank that is waited for. */
bool ptc_job_node_dispensable(const struct ptc_job *job, const struct ptc_job_node *n);
/* The switch is to put state on it, and has not done with it: without it, it cannot end well. */
bool ptc_job_node_indispensable(const struct ptc_job *job, const struct ptc_job_node *n);
/* Starts a phase that the from or the to nodes have to answer. */
void ptc_job_nodes_ask(struct ptc_job *job, bool from, bool to);
/* Starts ARMING: the first round, for the switch's stop. */
void ptc_job_arm(struct ptc_job *job);
/* Notes the beginning of a round for `stop`; asks nobody. */
void ptc_job_arming_round(struct ptc_job *job, uint64_t stop);
/* FINISHING and the second half of ABORTING: whoever is up is cleaned; nobody else is waited for. */
void ptc_job_nodes_finish(struct ptc_job *job);

/* ---- job_moves.c: from phase to phase ------------------------------------------------------ */

/* Moves to a phase and begins what it does. */
void ptc_job_enter(struct ptc_job *job, enum ptc_job_phase phase);
/* The first phase after that one which this switch has. */
void ptc_job_enter_after(struct ptc_job *job, enum ptc_job_phase phase);
/* Ends the phase if it waits for nobody any more. */
void ptc_job_advance(struct ptc_job *job);
/* To be read again what is written down: when the wait that grows with each time is over, and at once. */
void ptc_job_reload(struct ptc_job *job);
void ptc_job_reload_send(struct ptc_job *job);
/* The switch goes wrong for job->why. With a transaction in flight its outcome comes first. */
void ptc_job_switch_fail(struct ptc_job *job);

/* ---- job_replies.c: answers of nodes, their coming and going ------------------------------- */

void ptc_job_on_reply(struct ptc_job *job, const struct ptc_job_event *ev);
void ptc_job_on_node_down(struct ptc_job *job, uint32_t i);
void ptc_job_on_node_up(struct ptc_job *job, uint32_t i);
/* lost: from now on; else not any more. Of a node that is down. */
void ptc_job_on_node_lost(struct ptc_job *job, uint32_t i, bool lost);
void ptc_job_node_tick(struct ptc_job *job, uint32_t i);

/* ---- job_start.c: where a switch begins or goes on ------------------------------------------ */

void ptc_job_on_start(struct ptc_job *job, const struct ptc_job_event *ev);
void ptc_job_on_switch(struct ptc_job *job, const struct ptc_switch *s);
