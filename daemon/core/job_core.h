/* SPDX-License-Identifier: Apache-2.0 */
/* The job core: what the controller of one job does next. Pure: no I/O, no
 * clock, no threads; a step allocates (room for more nodes) before it changes anything. ptc_job_step(job, event)
 * returns updates which the shell (daemon/controller/controller.c, or the simulation) performs in the order given;
 * the outcome of each comes back as an event. Configurations, layouts and
 * bytes are the shell's; here are only numbers of nodes, generations and
 * snapshots.
 *
 *                      +--------- abort, error, node gone too long --------+
 *                      |         (before COMMIT2 is known to hold)         |
 *   IDLE -> CHECKING -> INTENT -> [STARTING] -> [ARMING] -> SEALING -> AGREEING -> COMMIT1 -> [ENDING] ->
 *    ^        (dry run)            run_to       run_from              run_from                 run_from
 *    |          [BUILDING] -> [LAYOUT] -> PREPARING -> FILLING -> DIGESTING -> COMMIT2 -> FINISHING -> IDLE
 *    |            run_to       run_to        import: from INTENT straight to PREPARING        |
 *    +------------- ABORTING (CLEAR, then FINISH: what the record says) <---------------------+ never from here
 *
 * Kinds (docs/decisions/0002-live-jobs.md)
 *   RESIZE    from one configuration to another. run_from: ranks run and are stopped; run_to: ranks are to run. With
 *             run_to and to_snapshot 0 (no snapshot yet, and no ranks that could give one) it is from nothing: no phase
 *             that moves state (SEALING to COMMIT1, ENDING, PREPARING to DIGESTING)
 *   IMPORT    a client sends the state
 *   SNAPSHOT  run_from; ends with COMMIT1, which deletes the intent in the same transaction. run_to unset: the job
 *             ends with it (the shell writes run: stopped or done)
 *   HALT      one transaction (in phase COMMIT2), no intent: same generation and snapshot, another run state. Then
 * FINISHING
 *
 * Durable truth is in etcd: the record (generation, snapshot) and the intent (the switch). Whatever happens to a
 * controller, START with what is written down resumes:
 *   no intent                                 -> IDLE, and every node is told what the record says
 *   intent, record.snapshot = from_snapshot   -> again from STARTING, ARMING or SEALING, whichever the switch has first
 *                                                (import: abort; its client is gone)
 *   intent, record.snapshot = to_snapshot     -> again from ENDING, BUILDING or PREPARING
 *   intent, from nothing                      -> again from STARTING
 * A controller that itself had stopped the ranks, and only lost a transaction's outcome, goes on from SEALING with the
 * same stop: COMMIT1 may still be on its way, so what it names must not be captured anew under another step.
 * COMMIT2 (and COMMIT1 of a SNAPSHOT) deletes the intent in the same transaction, so a record that is what the switch
 * wanted never meets its intent.
 * An unknown transaction outcome is not guessed: RELOAD, and the shell answers with START.
 *
 * What the shell owes: one ptc_job per tenure of the lock, and no answer meant for one reaches the next. One REPLY for
 * each SEND, at the latest when its deadline passes (after CANCEL or NODE_DOWN it may be left out). What a reply
 * carries (digests, captures, declarations) counts only if it answers the last SEND to that node and that was not
 * cancelled: a late copy is of an earlier attempt. NODE_DOWN then NODE_UP, or only NODE_UP, when a node's process is
 * another one than before. Every TXN compares the lock's create_revision, the record's mod_revision and the intent's
 * mod_revision (0: none) as last read or written, and never retries inside: a transaction whose outcome was unknown may
 * still be on its way, and has to fail once a later one succeeded. ABORT when a rank is reported as failed that others
 * of the switch may wait for (ARMING: of the record's incarnation; BUILDING: of the new one): STOP and BUILD have no
 * deadline.
 *
 * What a node owes: requests of a job carry (fence, seq). The highest fence seen is durable; the highest seq of that
 * fence is in memory. A request lower than the highest seen is refused (PTC_EFENCED). A higher one first ends what is
 * still running for the job. A request never reaches a later life of the process than the one it was sent to (no
 * wait-for-ready, no transparent retry). A sealed table is durable when the reply leaves. SEAL, PREPARE and PULL of
 * what is there already succeed. PULL without PREPARE in this life may answer PTC_ESTATE: PREPARE comes again.
 *
 * What a node with ranks owes besides. Ranks outlive its process (ptcd), not the machine.
 *   START    processes for each rank exist and wait in ptc_next; idempotent
 *   ARM      no rank goes past `stop`, or passed: some rank has published it or a later one (then each such rank is
 * held at its next boundary at the latest). A rank that already waits at that very stop is armed, not passed; one that
 *            waits at an earlier one goes on to it. A rank that has published nothing counts as at start_step - 1
 *   STOP     one answer, when all ranks wait at `stop`. PTC_ESTATE when one is past it. passed: the state of one of
 * them cannot be taken there; once all nodes have answered, a new round arms the step after it, PTC_JOB_MOVES_MAX times
 * at most CAPTURE  as SEAL, from ranks that wait at `stop` (else PTC_ESTATE). What is sealed already succeeds only if
 * it was captured by this switch at this stop; else it is dropped and captured anew. A SNAPSHOT with run_to releases
 * the ranks once copied END      answers when every rank of from_generation here, of any incarnation, has exited or
 * waits in ptc_next. Tables older than the new snapshot are dropped BUILD    answers when all ranks here have declared;
 * idempotent; PTC_ESTATE when a process is gone FINISH   makes what the record says: ranks of (generation, incarnation)
 * that wait with their declarations are restored and go; those that wait at a stop go on; all others end. Missing ones
 * are started only if this node never let that incarnation go (durable): one lost after that is reported as failed, for
 * it cannot join ranks that have gone on without it What a node reports of a failed rank is taken back once that rank's
 * process has been ended: an incarnation number can come again after an abort (only CLEAR with new_incarnation and
 * COMMIT2 raise the record's), and must not meet an old report.
 *
 * Node failures: a needed node that is down is waited for (node_wait_ms), then the switch aborts. Operations are
 * idempotent; a reply with an old sequence number is ignored; retriable failures are sent again with back-off.
 *
 * Lost nodes. The shell declares a node lost (NODE_LOST) that is down and will not be waited for; NODE_UP or NODE_FOUND
 * ends that. A switch whose ranks do not run (run_from unset) leaves a lost node out: it is neither cleaned nor asked
 * to seal. So is a node that answers SEAL with PTC_ENOTFOUND, PTC_ELOST or PTC_ECORRUPT: it does not have its table.
 * Left out stays left out for the life of the switch, since nobody has cleaned that node: the shell writes those that
 * ptc_job_gives does not name into the intent (INTENT: cleaning has left them out) and into the record's placement
 * (COMMIT1), and gives from_nodes and record_nodes without them. AGREE checks that the others hold every tensor. A lost
 * node that the switch was to put state on aborts it at once. Where ranks run, nothing is left out: their node is
 * waited for.
 */
#pragma once

#include "base/limits.h"
#include "base/status.h"
#include "daemon/core/job_switch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ptc_job_event_kind {
	PTC_EV_START,   /* lock held with `fence`; record and intent as just read */
	PTC_EV_SWITCH,  /* a request that the shell found feasible on paper */
	PTC_EV_FILLED,  /* import: the client has sent everything */
	PTC_EV_REPLY,   /* of a SEND */
	PTC_EV_TXN,     /* of a TXN */
	PTC_EV_DIGESTS, /* of CHECK_DIGESTS: status 0 or PTC_EDIGEST */
	PTC_EV_NODE_UP,
	PTC_EV_NODE_DOWN,
	PTC_EV_NODE_LOST,  /* it is down, and is not waited for any more */
	PTC_EV_NODE_FOUND, /* it is down, and is waited for again */
	PTC_EV_ABORT,      /* of the running switch: a person, or the import's client going away */
	PTC_EV_TIMER,      /* of SET_TIMER; carries its sequence number */
	PTC_EV_LOCK_LOST,
	PTC_EV_AGREED, /* of AGREE: status, text */
	PTC_EV_LAYOUT, /* of LAYOUT: status, text */
};
enum ptc_txn_outcome { PTC_TXN_OK, PTC_TXN_CONFLICT, PTC_TXN_UNKNOWN };

struct ptc_job_event {
	enum ptc_job_event_kind kind;
	/* START */
	int64_t fence;
	uint64_t generation, snapshot;   /* of the record; 0,0: none yet */
	const struct ptc_switch *intent; /* NULL: none */
	const uint32_t *record_nodes;    /* that have the record's table; the others are told to keep nothing. */
	uint32_t nrecord_nodes; /* 0 with a generation > 0: not known, all are told to keep the record's table */
	/* a HALT whose outcome was unknown: the record read has the run state that ptc_job_switch asks for. Leaving it
	 * out is safe: the transaction is sent again */
	bool halted;
	/* SWITCH */
	const struct ptc_switch *request;
	/* REPLY, NODE_UP, NODE_DOWN, NODE_LOST, NODE_FOUND */
	uint32_t node;
	/* REPLY of ARM: some rank is at or past the stop; the greatest step any rank here has published. REPLY of STOP:
	 * all wait, but the state of one (text: which, why) cannot be taken there */
	bool passed;
	uint64_t step;
	/* REPLY, TXN, TIMER, DIGESTS, AGREED, LAYOUT: of the update answered. START: of the RELOAD answered, or 0
	 * (first START, or a shell that sees to it itself that the read began after the RELOAD) */
	uint64_t seq;
	int status;                   /* REPLY, DIGESTS, AGREED, LAYOUT, ABORT: PTC_ code */
	enum ptc_txn_outcome outcome; /* TXN */
	const char *text;             /* error line for status != 0; borrowed */
};

enum ptc_job_update_kind {
	PTC_UP_SEND,          /* op to node; shell answers REPLY with seq */
	PTC_UP_TXN,           /* txn; TXN with seq */
	PTC_UP_CHECK_DIGESTS, /* merge the PULL replies' digests, compare; DIGESTS with seq */
	PTC_UP_RELOAD,        /* re-read lock, record and intent; then START, or LOCK_LOST */
	PTC_UP_DONE,          /* the switch `switch_id` ended: status, text, node to blame. 0: committed */
	PTC_UP_PHASE,         /* phase changed (progress, events) */
	PTC_UP_SET_TIMER,     /* ms; replaces an earlier one; TIMER with seq */
	PTC_UP_CANCEL,        /* stop what was sent to node with seq if still running (abort) */
	PTC_UP_STOPPED,       /* lock lost: perform nothing more for this job */
	PTC_UP_AGREE,  /* the nodes that give hold every tensor; run_from: compare replicas and cursors of all CAPTURE
			* replies, make the manifest. AGREED with seq */
	PTC_UP_LAYOUT, /* merge the BUILD replies' declarations, compare, write the layout; LAYOUT with seq */
};
struct ptc_job_update {
	enum ptc_job_update_kind kind;
	uint64_t seq;  /* grows over the life of the ptc_job */
	uint32_t node; /* SEND, CANCEL; DONE: whose failure it was, or PTC_JOB_NO_NODE */
	enum ptc_job_op op;
	enum ptc_job_txn txn;
	bool has_keep;
	uint64_t keep_generation, keep_snapshot; /* OP_FINISH */
	uint64_t stop;                           /* OP_ARM, OP_STOP, OP_CAPTURE */
	uint64_t step;                           /* TXN_COMMIT1 of run_from: the step all ranks waited at */
	bool new_incarnation;                    /* TXN_CLEAR */
	uint64_t switch_id;
	enum ptc_job_phase phase;
	uint32_t timer_ms;
	int status;
	uint32_t waited_ms; /* DONE, not 0: the switch ended because `node` stayed down for so long */
	bool lost;          /* DONE: the switch ended because `node`, which was to take state, is lost */
	char text[PTC_JOB_TEXT_MAX];
};
/* Valid until the next step. */
struct ptc_job_updates {
	const struct ptc_job_update *v;
	size_t n;
};

struct ptc_job;
struct ptc_job_opts {
	uint32_t node_wait_ms; /* 0: 30000 */
	uint32_t max_attempts; /* 0: 6. Also how many rounds arming may take */
};
int ptc_job_new(const struct ptc_job_opts *opts, struct ptc_job **ret_job, struct ptc_error *err);
struct ptc_job *ptc_job_free(struct ptc_job *job);
/* Never fails for reasons of protocol; 0 or PTC_ENOMEM (then nothing happened and the event may be given again).
 * A SWITCH while one is running is answered by DONE with PTC_ESTATE and the new id. */
int ptc_job_step(struct ptc_job *job, const struct ptc_job_event *event, struct ptc_job_updates *ret_updates);
enum ptc_job_phase ptc_job_phase(const struct ptc_job *job);
/* That node is down, and the switch cannot go on without it. Any number is allowed. */
bool ptc_job_awaits_down(const struct ptc_job *job, uint32_t node);
/* That node gives the running switch what it has: it is one of from_nodes, and was not left out. Any number is allowed.
 */
bool ptc_job_gives(const struct ptc_job *job, uint32_t node);
/* The running switch or NULL; borrowed until the next step. */
const struct ptc_switch *ptc_job_switch(const struct ptc_job *job);
/* A number for a request that is no switch's: after all before it, and before all later ones. */
uint64_t ptc_job_take_seq(struct ptc_job *job);
