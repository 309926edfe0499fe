/* SPDX-License-Identifier: Apache-2.0 */
/* A switch of a job in numbers: its phases, kinds and nodes, and the requests to nodes and to etcd. Plain data.
 * job_core.h explains the protocol and everybody's duties. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PTC_JOB_TEXT_MAX  512
#define PTC_JOB_NO_NODE   UINT32_MAX
/* A rank may ask for a stop one boundary later. A stop moves by so many at most; a step has fewer micro-steps. */
#define PTC_JOB_MOVES_MAX 1024

enum ptc_job_phase {
	PTC_JOB_NEW,
	PTC_JOB_IDLE,
	PTC_JOB_CHECKING,
	PTC_JOB_INTENT,
	PTC_JOB_STARTING, /* run_to: new processes get ready */
	PTC_JOB_WARMING,  /* run_from: nodes make memory for what follows; ranks still run */
	PTC_JOB_ARMING,   /* run_from: all ranks come to wait at one step */
	PTC_JOB_SEALING,  /* SEAL, or CAPTURE where ranks run */
	PTC_JOB_AGREEING, /* the nodes together hold every tensor; run_from: replicas and cursors are compared */
	PTC_JOB_COMMIT1,
	PTC_JOB_ENDING,   /* run_from: ranks of the old generation end */
	PTC_JOB_BUILDING, /* run_to: ranks of the new generation build and declare */
	PTC_JOB_LAYOUT,   /* run_to: declarations become the layout */
	PTC_JOB_PREPARING,
	PTC_JOB_FILLING,
	PTC_JOB_DIGESTING, /* digests are compared; the nodes of the new generation say that their tables are there */
	PTC_JOB_COMMIT2,
	PTC_JOB_FINISHING,
	PTC_JOB_ABORTING,
	PTC_JOB_RELOADING,
	PTC_JOB_STOPPED,
	PTC_JOB_PHASE_COUNT,
};
const char *ptc_job_phase_name(enum ptc_job_phase phase);

enum ptc_switch_kind { PTC_SWITCH_RESIZE, PTC_SWITCH_IMPORT, PTC_SWITCH_SNAPSHOT, PTC_SWITCH_HALT };

/* A switch. Node numbers are indices into a list that the shell keeps for the life of the ptc_job; nodes are only
 * added. */
struct ptc_switch {
	uint64_t id; /* random, not 0; names the switch in the intent */
	enum ptc_switch_kind kind;
	uint64_t from_generation, from_snapshot; /* the record when the switch began; 0,0: none yet */
	uint64_t to_generation;                  /* from_generation + 1; SNAPSHOT, HALT: from_generation */
	uint64_t to_snapshot;                    /* from_snapshot + 1; RESIZE from nothing: 0; HALT: from_snapshot */
	/* Nodes that have the record's table, without those that an intent, read from etcd, leaves out. */
	const uint32_t *from_nodes;
	uint32_t nfrom;           /* the core copies the list */
	const uint32_t *to_nodes; /* none for SNAPSHOT and HALT */
	uint32_t nto;
	bool run_from, run_to; /* ranks run before the switch; ranks shall run after it. HALT: neither counts */
	uint64_t stop;         /* run_from: stop step of the first round of arming; 0: as soon as possible */
	/* SNAPSHOT with run_from, without run_to: from_nodes hold ranks that have survived the loss of others. Nobody
	 * arms them: they are captured at `stop`. */
	bool held;
	/* IMPORT: nobody sends the state. It is that of an older snapshot, which from_nodes have. The switch waits for
	 * each of these nodes that is down. PREPARE and PULL name the snapshot. */
	bool stored;
};

/* A request to a node. Ranks outlive the node's process (ptcd), not the machine. A node withdraws its report of a
 * failed rank once that rank's process has been ended. The reason: START and FINISH may start the rank again in the
 * same incarnation, and the old report must not count for the new process. */
enum ptc_job_op {
	PTC_OP_CHECK, /* Prepare with dry_run, to to_nodes */
	/* To from_nodes: the table (from_generation, from_snapshot) becomes (from_generation, to_snapshot). */
	PTC_OP_SEAL,
	PTC_OP_PREPARE, /* to to_nodes: table (to_generation, to_snapshot) */
	PTC_OP_PULL,    /* to to_nodes: move the bytes or, for an import that a client sends, seal; replies digests */
	/* To any node: do what the record says; keep only the table `keep` (keep_snapshot 0: no table), or nothing.
	 * Ranks of the record's (generation, incarnation) that wait with their declarations are restored and go on.
	 * Ranks that wait at a stop go on. All others end. Missing ranks are started only if this node has never let
	 * ranks of that incarnation go on; a durable note says so. A rank lost after that is reported as failed,
	 * because it cannot join ranks that have gone on without it. */
	PTC_OP_FINISH,
	/* To to_nodes: a process for each rank exists and waits in ptc_next. Idempotent. update: built, resumed; see
	 * BUILD. */
	PTC_OP_START,
	/* To from_nodes: make pages for the tables that the switch will put here, as far as time and the ceiling allow;
	 * never an error because there is no room. If they were made while ranks stand still, this would take as long
	 * as several copies of the state. */
	PTC_OP_WARM,
	/* To from_nodes; update: stop; reply: passed, step. From now on no rank goes past `stop`. If some rank has
	 * published that step or a later one already, the node replies passed, and each such rank is held at its next
	 * boundary at the latest. A rank that already waits at `stop` is armed, not passed; one that waits at an
	 * earlier step goes on to it. A rank that has published nothing counts as at start_step - 1. */
	PTC_OP_ARM,
	/* To from_nodes; update: stop. One answer, when all ranks wait at `stop`; PTC_ESTATE if one is past it. passed:
	 * the state of one rank cannot be taken there. Once all nodes have answered, a new round arms `stop` + 1, at
	 * most PTC_JOB_MOVES_MAX times. STOP, END and BUILD may take minutes. */
	PTC_OP_STOP,
	/* To from_nodes, instead of SEAL where run_from; update: stop = the step. As SEAL, from ranks that wait at
	 * `stop` (else PTC_ESTATE). A table that is sealed already counts only if this switch captured it at this stop;
	 * otherwise it is dropped and captured again. A SNAPSHOT with run_to releases the ranks once they are copied.
	 * `held`: from ranks that the node holds and whose state is whole at `stop`; PTC_ELOST: these do not have all
	 * that the node's table needs. */
	PTC_OP_CAPTURE,
	/* To from_nodes: answers when every rank of from_generation here, of any incarnation, has exited or waits in
	 * ptc_next. Tables older than the new snapshot are dropped. */
	PTC_OP_END,
	/* To to_nodes: answers when all ranks here have declared; PTC_ESTATE when a process is gone. Idempotent.
	 * update: built: this node was asked for it before, so ranks of other nodes may have met the ranks that it had
	 * then. If they are gone, no others are started in their place: PTC_ELOST. A node also notes durably that
	 * ranks build, and neither START nor FINISH starts an incarnation again that has this note. A store that is
	 * gone has no note. So if the switch is resumed, a node whose store is newer than the intent counts as asked
	 * before. */
	PTC_OP_BUILD,
	/* To to_nodes, in DIGESTING beside the shell's comparison: the table (to_generation, to_snapshot) is here and
	 * sealed; else PTC_ENOTFOUND. Changes nothing, and is answered at once. COMMIT2 compares the nodes' keys, but
	 * a key outlives its machine by up to a lease. So a table that was lost before STAND is not committed, and the
	 * tables that gave its bytes stay (docs/decisions/0057-finish-in-two-rounds.md). */
	PTC_OP_STAND,
};

enum ptc_job_txn {
	PTC_TXN_INTENT, /* puts the intent */
	/* record := (from_generation, to_snapshot); run_from: its step := update.step. Deletes the intent for
	 * SNAPSHOT only. held: compares the keys that nodes had when they answered CAPTURE */
	PTC_TXN_COMMIT1,
	/* record := (to_generation, to_snapshot), manifest; deletes the intent. Compares node keys, too */
	PTC_TXN_COMMIT2,
	/* abort: deletes the intent, if there is one, and writes the barrier key (in the simulation: the record again).
	 * So an INTENT or COMMIT that is still under way fails. update.new_incarnation: the record also gets another
	 * incarnation, because ranks of the old generation may have ended */
	PTC_TXN_CLEAR,
	PTC_TXN_HALT, /* record := the same generation and snapshot with the requested run state */
};
