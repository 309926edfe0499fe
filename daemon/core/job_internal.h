/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the job core only. Each file calls only those above it here: switch_phases.c, switch_nodes.c,
 * switch_moves.c, then switch_replies.c and switch_start.c; job_core.c calls them all. Nothing here fails: memory was
 * reserved before. */
#pragma once

#include "daemon/core/job_core.h"

struct ptc_job_node {
	uint64_t seq;        /* of the request that is not answered yet; 0: none */
	uint64_t up_seq;     /* of the last request to any node before this node came up */
	int op;              /* of the request `seq` */
	uint32_t attempts;   /* number of retriable failures in a row */
	uint32_t backoff;    /* ticks until the next attempt */
	uint32_t down_ticks; /* for so many ticks the switch has waited for it */
	uint32_t fenced;     /* refusals in a row, because the node has seen a later fence */
	uint32_t downs;      /* how often the node went down in this phase */
	uint32_t refills;    /* how often it has said in this switch that what it had pulled is not there */
	bool up;
	bool stale;   /* it may hold tables, or have ranks, other than the record's */
	bool settled; /* see ptc_job_settled */
	bool in_record;
	bool from, to;
	bool need;     /* the phase needs its answer */
	bool lost;     /* down, and declared lost: a switch of state goes on without it */
	bool left_out; /* this switch left it out: it gives no state, and was not cleaned */
	bool prepared; /* it answered PREPARE, and has not restarted since */
	bool armed;    /* it answered ARM for the current stop, and has not restarted since */
	bool built;    /* it was asked to BUILD: others may have met the ranks of this switch that it had then */
	bool again;    /* it has restarted since it answered BUILD, PREPARE or PULL, and is asked again */
};

struct ptc_job_reason {
	int status;
	uint32_t node;
	uint32_t waited_ms; /* not 0: the node is down, and was waited for so long */
	bool lost;          /* the node, which was to get state, is lost */
	char text[PTC_JOB_TEXT_MAX];
};

/* Arming: rounds of ARM until no node answers passed, then STOP. */
struct ptc_job_arming {
	uint64_t stop;     /* of the current round; with `done`, the snapshot's step */
	uint64_t greatest; /* greatest step that a node has reported in this round */
	uint32_t unarmed;  /* number of nodes that have not answered ARM for `stop` */
	uint32_t rounds;   /* rounds since the stop last moved because a rank asked for it */
	uint32_t moves;    /* how often the stop moved so */
	bool passed;       /* some node answered passed in this round */
	bool stopping;     /* a round ended without `passed`, and STOP is under way */
	bool done;         /* all ranks wait at `stop`, as their nodes have answered in this tenure of the lock */
};

struct ptc_job {
	uint32_t max_attempts, tick_ms, wait_ticks;
	enum ptc_job_phase phase;
	int64_t fence;
	uint64_t generation, snapshot; /* of the record */
	bool members_known;            /* in_record of the nodes is known */

	struct ptc_job_node *nodes;
	uint32_t nnodes;
	uint32_t pending; /* number of nodes with `need` */

	struct ptc_switch cur;
	bool has_switch;
	bool own;          /* the switch was requested in this life of the core */
	bool filled;       /* import: the client has sent everything */
	bool checked;      /* CHECKING is done: no node of the switch holds a table other than the record's */
	bool intent_held;  /* the intent is known to be, or to have been, in etcd */
	bool intent_there; /* whether the intent is in etcd, as last read or written */
	bool committed;    /* the switch's last transaction is known to have succeeded */
	struct ptc_job_arming arming;
	uint32_t *from_buf, *to_buf;
	uint32_t from_cap, to_cap;
	struct ptc_job_reason later; /* status != 0: in this round a rank of later.node asked for the next boundary */
	struct ptc_job_reason why;   /* status != 0: the switch will be aborted */
	uint64_t reported_id;        /* the last switch that got its DONE */

	uint32_t reloads;        /* number since a transaction last succeeded */
	uint32_t reload_backoff; /* ticks until RELOAD is emitted */
	uint64_t reload_seq;     /* of the RELOAD that is not answered yet */

	uint64_t seq, txn_seq, timer_seq;
	uint64_t local_seq; /* of AGREE, LAYOUT or CHECK_DIGESTS */
	struct ptc_job_update *updates;
	size_t nupdates, updates_cap;
};

/* ---- switch_phases.c: states, updates, what a switch is -------------------------------------- */

enum ptc_job_waits {
	PTC_JOB_WAITS_NODES,
	PTC_JOB_WAITS_TXN,
	PTC_JOB_WAITS_LOCAL
}; /* for what, beside nodes, a phase waits */
struct ptc_job_state {
	const char *name;
	uint32_t next;   /* phases that may follow: a bit per phase */
	bool has_switch; /* invariant of the phase */
	int waits;       /* enum ptc_job_waits; ABORTING waits for a transaction in its first half */
	bool from, to; /* the phase asks the from nodes, the to nodes. DIGESTING also waits for the shell (`update`) */
	int update;    /* for PTC_JOB_WAITS_LOCAL: the update that asks the shell */
};
const struct ptc_job_state *ptc_job_state(enum ptc_job_phase phase);
/* Aborts the process if an invariant does not hold. The O(1) checks run in every build, counts in debug builds. */
void ptc_job_check(const struct ptc_job *job);
struct ptc_job_update *ptc_job_push(struct ptc_job *job, enum ptc_job_update_kind kind);
void ptc_job_want_tick(struct ptc_job *job);
__attribute__((format(printf, 4, 5))) void ptc_job_reason_set(struct ptc_job_reason *r, int status, uint32_t node,
							      const char *fmt, ...);
void ptc_job_reason_lost(struct ptc_job_reason *r, uint32_t node);
void ptc_job_move(struct ptc_job *job, enum ptc_job_phase next);
void ptc_job_push_done(struct ptc_job *job, uint64_t id, const struct ptc_job_reason *r);
/* Reports the end of the current switch, once. The second function forgets the switch. */
void ptc_job_switch_report(struct ptc_job *job);
void ptc_job_switch_forget(struct ptc_job *job);
bool ptc_job_list_valid(const uint32_t *v, uint32_t n);
bool ptc_job_switch_has(const struct ptc_switch *s, enum ptc_job_phase phase);
bool ptc_job_record_is(const struct ptc_job *job, uint64_t generation, uint64_t snapshot);
/* Whether the switch's COMMIT1 has succeeded and its intent is still there. */
bool ptc_job_half_way(const struct ptc_job *job);
/* Whether a node of to_nodes has restarted, and has not been asked since whether all is still there. */
bool ptc_job_asks_again(const struct ptc_job *job);
/* Whether a client sends the state of the current switch. */
bool ptc_job_sent(const struct ptc_job *job);
/* Whether CLEAR must raise the incarnation: ranks of the old generation may have ended for this switch. */
bool ptc_job_needs_incarnation(const struct ptc_job *job);

/* ---- switch_nodes.c: what nodes are asked ---------------------------------------------------- */

/* Whether FINISH may be sent to any stale node: no intent is in etcd. (CHECKING sends it to nodes of its switch.) */
bool ptc_job_may_finish(const struct ptc_job *job);
/* Sends the node its next request, if there is one and the node can take it. */
void ptc_job_node_try(struct ptc_job *job, uint32_t i);
void ptc_job_nodes_try(struct ptc_job *job);
/* Drops the node's request: its answer is not wanted any more. */
void ptc_job_node_cancel(struct ptc_job *job, uint32_t i);
/* The phase needs the node's answer; the second function notes that it has answered. */
void ptc_job_node_want(struct ptc_job *job, struct ptc_job_node *n);
void ptc_job_node_answered(struct ptc_job *job, struct ptc_job_node *n);
/* Whether the phase needs this node: it needs its answer, or other nodes pull from it. */
bool ptc_job_node_awaited(const struct ptc_job *job, const struct ptc_job_node *n);
/* Notes that the node shall keep something else now, so the answer to a FINISH under way would prove nothing. */
void ptc_job_node_mark_stale(struct ptc_job *job, uint32_t i);
/* Notes that no node's answer is needed any more, and drops the requests. A FINISH under way stays valid until the
 * record changes (mark_stale), so it is dropped only with cancel_finish. */
void ptc_job_nodes_release(struct ptc_job *job, bool cancel_finish);
/* Leaves the node out: the switch goes on without its state, and the phase does not need its answer. */
void ptc_job_node_leave_out(struct ptc_job *job, uint32_t i);
/* Whether the switch goes on without this node once it is lost: the node has state, and no rank that is waited for. */
bool ptc_job_node_dispensable(const struct ptc_job *job, const struct ptc_job_node *n);
/* Whether the switch must still bring state to this node, so it cannot end well without it. */
bool ptc_job_node_indispensable(const struct ptc_job *job, const struct ptc_job_node *n);
/* Starts a phase that the from nodes or the to nodes must answer. */
void ptc_job_nodes_ask(struct ptc_job *job, bool from, bool to);
/* Starts ARMING: the first round, for the switch's stop. */
void ptc_job_arm(struct ptc_job *job);
/* Notes the begin of a round for `stop`; asks no node. */
void ptc_job_arming_round(struct ptc_job *job, uint64_t stop);
/* For FINISHING and the second half of ABORTING: cleans every node that is up, and waits for no other. */
void ptc_job_nodes_finish(struct ptc_job *job);

/* ---- switch_moves.c: from phase to phase ------------------------------------------------------ */

/* Moves to a phase and begins its work. */
void ptc_job_enter(struct ptc_job *job, enum ptc_job_phase phase);
/* Moves on from `phase` to the next phase that this switch has. */
void ptc_job_enter_after(struct ptc_job *job, enum ptc_job_phase phase);
/* Ends the phase if it waits for nothing any more. */
void ptc_job_advance(struct ptc_job *job);
/* Asks for record and intent to be read again. The first function waits, longer each time; the second asks at once. */
void ptc_job_reload(struct ptc_job *job);
void ptc_job_reload_send(struct ptc_job *job);
/* Makes the switch fail because of job->why. If a transaction is in flight, its outcome comes first. */
void ptc_job_switch_fail(struct ptc_job *job);

/* ---- switch_replies.c: answers of nodes, their coming and going ------------------------------- */

void ptc_job_on_reply(struct ptc_job *job, const struct ptc_job_event *ev);
void ptc_job_on_node_down(struct ptc_job *job, uint32_t i);
void ptc_job_on_node_up(struct ptc_job *job, uint32_t i);
/* Notes that a node, which is down, is lost (or no longer lost). */
void ptc_job_on_node_lost(struct ptc_job *job, uint32_t i, bool lost);
void ptc_job_node_tick(struct ptc_job *job, uint32_t i);

/* ---- switch_start.c: where a switch begins or goes on ------------------------------------------ */

void ptc_job_on_start(struct ptc_job *job, const struct ptc_job_event *ev);
void ptc_job_on_switch(struct ptc_job *job, const struct ptc_switch *s);
