/* SPDX-License-Identifier: Apache-2.0 */
/* The job core: decides what the controller of one job does next. ptc_job_step(job, event) returns updates. The shell
 * (daemon/controller/controller.c, or the simulation) performs them in the given order, and reports each outcome as an
 * event. The core knows only numbers of nodes, generations and snapshots; configurations, layouts and bytes are the
 * shell's. Pure: no I/O, no clock, no threads. A step allocates (room for more nodes) before it changes anything.
 *
 *                      +--------- abort, error, node gone too long --------+
 *                      |         (before COMMIT2 is known to hold)         |
 *   IDLE -> CHECKING -> INTENT -> [STARTING] -> [WARMING] -> [ARMING] -> SEALING -> AGREEING -> COMMIT1 ->
 *    ^        (dry run)            run_to        run_from     run_from
 *    |          [ENDING] -> [BUILDING] -> [LAYOUT] -> PREPARING -> FILLING -> DIGESTING -> COMMIT2 -> FINISHING -> IDLE
 *    |            run_to       run_to        import: from INTENT straight to PREPARING        |
 *    +------------- ABORTING (CLEAR, then FINISH: what the record says) <---------------------+ never from FINISHING
 *
 * Kinds (docs/decisions/0002-live-jobs.md)
 * - RESIZE: from one configuration to another. run_from: ranks run and are stopped. run_to: ranks shall run afterwards.
 *   With run_to and to_snapshot 0 there is no snapshot yet, and no ranks that could give one. Such a switch is from
 *   nothing: it has no phase that moves state (SEALING to COMMIT1, ENDING, PREPARING to DIGESTING).
 * - IMPORT: a client sends the state. With `stored` it is that of an older snapshot that the job keeps: a rollback.
 *   CHECKING then also waits until each of the record's nodes has ended its ranks, or is lost. FILLING then moves bytes
 *   as in a RESIZE. If the controller dies, another one can resume the switch. The record stays what it is until
 *   COMMIT2, so an abort loses nothing.
 * - SNAPSHOT: has run_from. It ends with COMMIT1, which deletes the intent in the same transaction. Without run_to, its
 *   ranks do not go on (the shell writes run: stopped or done). With `held`, it copies ranks that have survived a loss.
 *   Their nodes hold them, so the switch begins with SEALING. A node that is lost, or answers CAPTURE with PTC_ELOST or
 *   PTC_ENOTFOUND, is left out; AGREE says whether the others have all.
 * - HALT: one transaction (in phase COMMIT2) without an intent, for the same generation and snapshot with another run
 *   state; then FINISHING.
 *
 * Durable truth is in etcd: the record (generation, snapshot) and the intent (the switch). Whatever happens to a
 * controller, START with the record and the intent resumes the switch:
 * - no intent: IDLE, and every node is told what the record says.
 * - an intent, record.snapshot = from_snapshot: again from STARTING, WARMING or SEALING, the first that the switch has.
 *   An import aborts, because its client is gone; one that is `stored` goes on from PREPARING.
 * - an intent, record.snapshot = to_snapshot: again from ENDING, BUILDING or PREPARING.
 * - an intent from nothing: again from STARTING.
 * A held SNAPSHOT is resumed with the stop that its intent has. If the nodes hold the ranks no more by then, it aborts.
 * If a controller stopped the ranks itself and only lost a transaction's outcome, it goes on from SEALING with the same
 * stop. COMMIT1 may still be on its way, so the snapshot that it names must not be captured again at another step.
 * COMMIT2 (and COMMIT1 of a SNAPSHOT) deletes the intent in the same transaction. So a record that a switch has
 * completed never coexists with that switch's intent. The core does not guess an unknown outcome of a transaction: it
 * emits RELOAD, and the shell answers with START.
 *
 * Duties of the shell:
 * - It makes one ptc_job per tenure of the lock; an answer for one never reaches the next.
 * - It gives one REPLY for each SEND, at the latest at its deadline; after CANCEL or NODE_DOWN it may leave it out. The
 *   content of a reply (digests, captures, declarations) counts only if it answers the last SEND to that node that was
 *   not cancelled. A late reply belongs to an earlier attempt, and is ignored.
 * - It gives NODE_DOWN then NODE_UP, or only NODE_UP, when a node has a new process.
 * - Every TXN compares the lock's create_revision, and the mod_revisions of record, intent and barrier (0: none), as
 *   last read or written. The shell sends each TXN once: if its outcome is unknown, it may still be on its way, and
 *   must fail once a later one has succeeded.
 * - If a rank has failed and other ranks may wait for it, the shell gives ABORT, because STOP and BUILD have no
 *   deadline. In ARMING that is a rank of the record's incarnation, in BUILDING one of the new incarnation.
 *
 * Duties of a node; enum ptc_job_op has those that concern ranks:
 * - Requests of a job carry (fence, seq). The highest fence seen is durable; the highest seq of it is in memory. A
 *   request lower than the highest seen is refused (PTC_EFENCED). A higher one first ends the job's running request. A
 *   node with a new store has forgotten the fence. It asks the mirror of etcd, and refuses a fence below that of the
 *   lock which was held when the node came back.
 * - A request never reaches a later process of the node than the one it was sent to (no wait-for-ready, no transparent
 *   retry).
 * - A sealed table is durable when the reply leaves. SEAL, PREPARE and PULL succeed if their result is already there.
 *   PULL without PREPARE in this process may answer PTC_ESTATE; then PREPARE comes again.
 *
 * Node failures: the switch waits node_wait_ms for a needed node that is down, and then aborts. If it restarts before
 * COMMIT2, its requests since BUILDING are repeated; an import from a client aborts. Retriable failures are sent again.
 *
 * Lost nodes: if a node is down and should not be waited for, the shell declares it lost (NODE_LOST). NODE_UP or
 * NODE_FOUND ends that. A switch whose ranks do not run (run_from unset) leaves a lost node out: it neither cleans it
 * (FINISH in CHECKING) nor asks it to seal. A node that answers SEAL with PTC_ENOTFOUND, PTC_ELOST or PTC_ECORRUPT
 * does not have its table, and is left out, too. A node that is left out stays so until the switch ends, because it
 * was not cleaned; ptc_job_gives says which nodes are. The shell writes their names into the intent (with INTENT) and
 * into the record's placement (with COMMIT1); its from_nodes and record_nodes are without them. AGREE checks that the
 * other nodes hold every tensor. A lost node to which the switch was to bring state aborts the switch at once. Where
 * ranks run, no node is left out (but by a SNAPSHOT that is `held`); the switch waits for one that has such ranks.
 */
#pragma once

#include "base/limits.h"
#include "base/status.h"
#include "daemon/core/switch_terms.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ptc_job_event_kind {
	PTC_EV_START,   /* the lock is held with `fence`; record and intent as just read */
	PTC_EV_SWITCH,  /* a request that the shell found feasible from the documents */
	PTC_EV_FILLED,  /* import: the client has sent everything */
	PTC_EV_REPLY,   /* answers a SEND */
	PTC_EV_TXN,     /* answers a TXN */
	PTC_EV_DIGESTS, /* answers CHECK_DIGESTS: status 0 or PTC_EDIGEST */
	PTC_EV_NODE_UP,
	PTC_EV_NODE_DOWN,
	PTC_EV_NODE_LOST,  /* the node is down, and is no longer waited for */
	PTC_EV_NODE_FOUND, /* the node is down, and is waited for again */
	PTC_EV_ABORT, /* aborts the running switch: a person asked, an import's client has gone, or a rank failed */
	PTC_EV_TIMER, /* answers SET_TIMER; carries its sequence number */
	PTC_EV_LOCK_LOST,
	PTC_EV_AGREED, /* answers AGREE: status, text */
	PTC_EV_LAYOUT, /* answers LAYOUT: status, text */
};
enum ptc_txn_outcome { PTC_TXN_OK, PTC_TXN_CONFLICT, PTC_TXN_UNKNOWN };

struct ptc_job_event {
	enum ptc_job_event_kind kind;
	/* START */
	int64_t fence;
	uint64_t generation, snapshot;   /* of the record; 0,0: there is none yet */
	const struct ptc_switch *intent; /* NULL: there is none */
	const uint32_t *record_nodes;    /* nodes that have the record's table; the others are told to keep nothing */
	uint32_t nrecord_nodes; /* 0 with a generation > 0: not known; all are told to keep the record's table */
	/* After a HALT with an unknown outcome: the record has the run state that ptc_job_switch asks for. It is safe
	 * to leave it false: the transaction is then sent again. */
	bool halted;
	/* SWITCH */
	const struct ptc_switch *request;
	/* REPLY, NODE_UP, NODE_DOWN, NODE_LOST, NODE_FOUND */
	uint32_t node;
	/* REPLY of ARM: some rank is at or past the stop; `step` is the greatest step that any rank here has published.
	 * REPLY of STOP: all ranks wait, but the state of one cannot be taken there (text: which, why). */
	bool passed;
	uint64_t step;
	/* REPLY, TXN, TIMER, DIGESTS, AGREED, LAYOUT: that of the update answered. START: that of the RELOAD answered.
	 * It may be 0 for the first START, and if the shell ensures that the read began after the RELOAD. */
	uint64_t seq;
	int status;                   /* for REPLY, DIGESTS, AGREED, LAYOUT, ABORT: a PTC_ code */
	enum ptc_txn_outcome outcome; /* TXN */
	const char *text;             /* error line if status is not 0; borrowed */
};

enum ptc_job_update_kind {
	PTC_UP_SEND,          /* send `op` to `node`; answer: REPLY with seq */
	PTC_UP_TXN,           /* perform `txn`; answer: TXN with seq */
	PTC_UP_CHECK_DIGESTS, /* merge and compare the digests of the PULL replies; answer: DIGESTS with seq */
	PTC_UP_RELOAD,        /* read lock, record and intent again; answer: START, or LOCK_LOST */
	PTC_UP_DONE,          /* the switch `switch_id` ended: status (0: committed), text, node to blame */
	PTC_UP_PHASE,         /* the phase changed (for progress and events) */
	PTC_UP_SET_TIMER,     /* after timer_ms, answer TIMER with seq; replaces an earlier timer */
	PTC_UP_CANCEL,        /* stop the request to `node` with seq, if it still runs (abort) */
	PTC_UP_STOPPED,       /* the lock is lost: perform nothing more for this job */
	/* check that the giving nodes hold every tensor; run_from: also compare replicas and cursors of all CAPTURE
	 * replies, and make the manifest. Answer: AGREED with seq */
	PTC_UP_AGREE,
	/* merge and compare the declarations of the BUILD replies, and write the layout; answer: LAYOUT with seq */
	PTC_UP_LAYOUT,
};
struct ptc_job_update {
	enum ptc_job_update_kind kind;
	uint64_t seq;  /* grows over the life of the ptc_job */
	uint32_t node; /* for SEND, CANCEL; DONE: the node that failed, or PTC_JOB_NO_NODE */
	enum ptc_job_op op;
	enum ptc_job_txn txn;
	bool has_keep;
	uint64_t keep_generation, keep_snapshot; /* for PTC_OP_FINISH */
	uint64_t stop;                           /* for PTC_OP_ARM, PTC_OP_STOP, PTC_OP_CAPTURE */
	uint64_t step;               /* for PTC_TXN_COMMIT1 with run_from: the step at which all ranks waited */
	bool new_incarnation, built; /* for PTC_TXN_CLEAR; for PTC_OP_START and PTC_OP_BUILD */
	bool resumed; /* for these two: another controller began the switch, and nobody knows what it had asked */
	uint64_t switch_id;
	enum ptc_job_phase phase;
	uint32_t timer_ms;
	int status;
	uint32_t waited_ms; /* for DONE, not 0: the switch ended because `node` stayed down for this time */
	bool lost;          /* for DONE: the switch ended because `node`, which was to get state, is lost */
	char text[PTC_JOB_TEXT_MAX];
};
/* Valid until the next step. */
struct ptc_job_updates {
	const struct ptc_job_update *v;
	size_t n;
};

struct ptc_job;
#define PTC_JOB_NODE_WAIT_MS 30000 /* a switch waits so long for a node that is down (docs/timeouts.md) */
#define PTC_JOB_ATTEMPTS_MAX 6     /* how often a request is sent, at most; also new rounds of arming, and reloads */
/* 0 in a member: the number above, as in ptcd. Tests and the simulation set smaller ones. */
struct ptc_job_opts {
	uint32_t node_wait_ms, max_attempts;
};
int ptc_job_new(const struct ptc_job_opts *opts, struct ptc_job **ret_job, struct ptc_error *err);
struct ptc_job *ptc_job_free(struct ptc_job *job);
/* Gives an event to the core. Returns 0 or PTC_ENOMEM; then nothing happened, and the event may be given again. Errors
 * of the protocol are no failure. A SWITCH while one is running is answered by DONE with PTC_ESTATE and the new id. */
int ptc_job_step(struct ptc_job *job, const struct ptc_job_event *event, struct ptc_job_updates *ret_updates);
enum ptc_job_phase ptc_job_phase(const struct ptc_job *job);
/* Whether the switch waits for this node, which is down. `node` may be any number. */
bool ptc_job_awaits_down(const struct ptc_job *job, uint32_t node);
/* Whether the node gives its state to the running switch: it is one of from_nodes and was not left out. `node` may be
 * any number. */
bool ptc_job_gives(const struct ptc_job *job, uint32_t node);
/* Whether the node is up, has answered that it is as the record says, and has had no part since in a switch that starts
 * or moves ranks: the record's ranks are the only ones that it may still start. `node` may be any number. */
bool ptc_job_settled(const struct ptc_job *job, uint32_t node);
/* The running switch, or NULL; borrowed until the next step. */
const struct ptc_switch *ptc_job_switch(const struct ptc_job *job);
/* A sequence number for a request of no switch. It is greater than all earlier ones, and lower than all later ones. */
uint64_t ptc_job_take_seq(struct ptc_job *job);
