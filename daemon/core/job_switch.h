/* SPDX-License-Identifier: Apache-2.0 */
/* A switch of a job in numbers: its phases, kinds and nodes, what nodes and etcd are asked for it.
 * Plain data; what it all means and who owes what is said in job_core.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PTC_JOB_TEXT_MAX 512
#define PTC_JOB_NO_NODE  UINT32_MAX
#define PTC_JOB_MOVES_MAX                                                                                              \
	1024 /* boundaries a stop moves on, for ranks that ask for it: more micro-steps than a step is made of */

enum ptc_job_phase {
	PTC_JOB_NEW,
	PTC_JOB_IDLE,
	PTC_JOB_CHECKING,
	PTC_JOB_INTENT,
	PTC_JOB_STARTING, /* run_to: new processes get ready */
	PTC_JOB_ARMING,   /* run_from: ranks are brought to wait at one step */
	PTC_JOB_SEALING,  /* SEAL, or CAPTURE where ranks run */
	PTC_JOB_AGREEING, /* every tensor is covered; run_from: replicas and cursors are compared */
	PTC_JOB_COMMIT1,
	PTC_JOB_ENDING,   /* run_from: ranks of the old generation end */
	PTC_JOB_BUILDING, /* run_to: ranks of the new one build and declare */
	PTC_JOB_LAYOUT,   /* run_to: declarations become the layout */
	PTC_JOB_PREPARING,
	PTC_JOB_FILLING,
	PTC_JOB_DIGESTING,
	PTC_JOB_COMMIT2,
	PTC_JOB_FINISHING,
	PTC_JOB_ABORTING,
	PTC_JOB_RELOADING,
	PTC_JOB_STOPPED,
	PTC_JOB_PHASE_COUNT,
};
const char *ptc_job_phase_name(enum ptc_job_phase phase);

enum ptc_switch_kind { PTC_SWITCH_RESIZE, PTC_SWITCH_IMPORT, PTC_SWITCH_SNAPSHOT, PTC_SWITCH_HALT };

/* Node numbers are indices into a list the shell keeps for the life of this ptc_job (nodes are only added). */
struct ptc_switch {
	uint64_t id; /* random, not 0, names the switch in the intent */
	enum ptc_switch_kind kind;
	uint64_t from_generation, from_snapshot; /* the record when it began; 0,0: nothing yet */
	uint64_t to_generation;                  /* from_generation + 1; SNAPSHOT, HALT: from_generation */
	uint64_t to_snapshot;                    /* from_snapshot + 1; RESIZE from nothing: 0; HALT: from_snapshot */
	const uint32_t
		*from_nodes;      /* that have the record's table, and of an intent found: whom it did not leave out */
	uint32_t nfrom;           /* copied by the core */
	const uint32_t *to_nodes; /* SNAPSHOT, HALT: none */
	uint32_t nto;
	bool run_from, run_to; /* ranks run before, are to run after. HALT: neither counts */
	uint64_t stop;         /* run_from: first round of arming; 0: as soon as possible */
};

enum ptc_job_op {
	PTC_OP_CHECK,   /* Prepare dry_run, to_nodes */
	PTC_OP_SEAL,    /* from_nodes: (from_generation, from_snapshot) -> (from_generation, to_snapshot) */
	PTC_OP_PREPARE, /* to_nodes: table (to_generation, to_snapshot) */
	PTC_OP_PULL,    /* to_nodes: move or (import) seal; replies digests */
	PTC_OP_FINISH,  /* any node: make what the record says; keep only `keep` (keep_snapshot 0: no table), or nothing
			 */
	PTC_OP_START,   /* to_nodes */
	PTC_OP_ARM,     /* from_nodes; update: stop; reply: passed, step */
	PTC_OP_STOP,    /* from_nodes; update: stop. May take minutes, as END and BUILD */
	PTC_OP_CAPTURE, /* from_nodes, instead of SEAL where run_from; update: stop = the step */
	PTC_OP_END,     /* from_nodes */
	PTC_OP_BUILD,   /* to_nodes */
};

enum ptc_job_txn {
	PTC_TXN_INTENT,  /* put intent */
	PTC_TXN_COMMIT1, /* record := (from_generation, to_snapshot); run_from: its step := update.step. The intent
			  * stays; SNAPSHOT: deletes it */
	PTC_TXN_COMMIT2, /* record := (to_generation, to_snapshot), manifest; delete intent. Compares node keys as well
			  */
	/* abort: delete the intent, if there, and put the record again as it is (0,0 if none), so that its mod_revision
	 * grows and an INTENT or COMMIT still on its way fails. update.new_incarnation: the record's incarnation grows
	 * by one, because ranks of the old generation may have ended */
	PTC_TXN_CLEAR,
	PTC_TXN_HALT, /* record := the same generation and snapshot with the run state asked for */
};
