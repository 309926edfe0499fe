/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated cluster in one function: real job cores, a model of everything they talk to, and a checker. */
#pragma once

#include "daemon/core/job_core.h"

#define SIM_NODES 4
#define SIM_CTLS  3

/* Seeded bugs of the shell, the nodes or etcd, which the checker must find: proof that it can fail. */
enum sim_bug {
	SIM_BUG_NONE,
	SIM_BUG_EARLY_COMMIT,  /* the shell answers PULL and STAND before the node has */
	SIM_BUG_GUESS_UNKNOWN, /* the shell reports an unknown transaction as done */
	SIM_BUG_SKIP_FINISH,   /* the shell answers FINISH and sends nothing */
	SIM_BUG_NO_FENCE,      /* nodes accept requests of any fence */
	SIM_BUG_NO_SEQ,        /* nodes accept requests in any order */
	SIM_BUG_NO_COMPARE,    /* etcd accepts transactions without comparing */
	SIM_BUG_NO_TOUCH,      /* CLEAR leaves the record's revision: a late INTENT can land after it */
	SIM_BUG_OLD_LIFE,      /* a request reaches a later process of the node than the one it was sent to */
	SIM_BUG_UNSYNCED_SEAL, /* a node answers SEAL before the table is durable */
	/* only with `lose` */
	SIM_BUG_NO_COVER,        /* the shell commits tensors that no node holds */
	SIM_BUG_FORGET_LEFT_OUT, /* the intent does not name the nodes that cleaning has left out */
	SIM_BUG_PLACE_ALL,       /* the record's placement names nodes that were left out */
	SIM_BUG_PULL_LEFT_OUT,   /* a node that was left out is a source */
	SIM_BUG_SEAL_NOTHING,    /* a node whose tables are gone answers SEAL well */
	SIM_BUG_DROP_RETURNED,   /* a node that comes back has dropped its tables */
	SIM_BUG_COMMIT_LOST,     /* etcd makes the second commit without comparing the destinations' keys */
	SIM_BUG_COMMIT_RETURNED, /* the shell takes a destination's next life for the one that has answered */
	SIM_BUG_SKIP_STAND,      /* the shell answers STAND and sends nothing */
	SIM_BUG_DROP_FILLED,     /* a destination drops its old tables before the second commit */
	SIM_BUG_COUNT_RETURNED,  /* a node that was left out keeps its table, and counts again */
	SIM_BUG_SKIP_RETURNED,   /* the shell answers FINISH for a node that was left out, and sends nothing */
	/* only with `live` */
	SIM_BUG_NO_AGREE,               /* the shell does not compare the captures */
	SIM_BUG_ONE_ROUND,              /* a node answers armed when a rank has passed the stop */
	SIM_BUG_EARLY_STOP,             /* a node answers STOP at once, and captures ranks that run */
	SIM_BUG_OLD_CAPTURE,            /* a node uses the capture of an earlier attempt */
	SIM_BUG_EARLY_BUILD,            /* the shell answers END before the node has */
	SIM_BUG_NO_NEW_INCARNATION,     /* the shell does not raise the incarnation */
	SIM_BUG_FINISH_ANY_INCARNATION, /* FINISH lets ranks of another incarnation go on */
	SIM_BUG_START_LOST,             /* FINISH starts a rank again though the others have gone on without it */
	SIM_BUG_START_BUILT,            /* a node starts a rank again though the others have met the one before */
	/* only with both */
	SIM_BUG_NO_HALT,       /* remaining ranks are not ended before the job is started again */
	SIM_BUG_NOT_ASKED,     /* a node that is back is not asked whether the ranks that it had built are there */
	SIM_BUG_STORE_UNSEEN,  /* a resumed switch starts ranks in a new store: what its node had built is forgotten */
	SIM_BUG_LOST_TRAINS,   /* a node whose ranks train is given up by the clock alone */
	SIM_BUG_PASSED_NEEDED, /* what a node alone has is given up with it before it is lost, though it may live */
	SIM_BUG_FORGET_FENCE,  /* a node that comes back empty takes requests of a controller that has lost the lock */
	SIM_BUG_NOT_GIVEN_UP,  /* after a switch that a loss has aborted, its ranks are not given up */
	SIM_BUG_REVIVED,       /* the abort of a recovery has the ranks back that were given up */
	SIM_BUG_START_EMPTY,   /* FINISH starts a rank again though what it had is lost */
	SIM_BUG_OLD_RANKS,     /* FINISH lets the old ranks of a node go on that was left out, and counts them */
	SIM_BUG_CAPTURE_ANEW,  /* a node that has captured does so again when asked again, whether ranks wait or not */
	SIM_BUG_HELD_RUNS,     /* a node captures ranks of survivors that it does not hold any more */
	SIM_BUG_HELD_STEP,     /* a node captures ranks that it holds at whatever step they are */
	SIM_BUG_HELD_ALONE,    /* the shell commits what survivors held though some items are nowhere */
	SIM_BUG_HELD_PLACE,    /* the placement of what survivors held names the lost nodes */
	SIM_BUG_HELD_KEYS,     /* etcd makes the commit of what survivors held without comparing these nodes' keys */
	SIM_BUG_HELD_ANEW,     /* as CAPTURE_ANEW, of ranks that it held */
	SIM_BUG_LET_ON_EARLY,  /* ranks that are let on to the others' step count as there before they are */
	/* only with `keep` */
	SIM_BUG_OLDER_FORGOTTEN, /* requests have the list of older snapshots that was read when the lock was got */
	SIM_BUG_OLDER_LATE, /* a snapshot is put on the list after it was the record's, not with the same transaction */
	SIM_BUG_OLDER_RECORD, /* a rollback takes bytes of the record's snapshot */
	/* only with `bridge` */
	SIM_BUG_BRIDGE_EARLY,  /* the bridge goes before the record's snapshot has its copy */
	SIM_BUG_BRIDGE_NEWEST, /* the bridge is the newest snapshot, whether that has its copy or not */
	SIM_BUG_BRIDGE_COPY,   /* requests do not name the copy of the bridge, so it is dropped */
	SIM_BUG_BRIDGE_DOWN,   /* the bridge goes while the node that could take the copy is down */
	/* only with `tight`, too */
	SIM_BUG_YIELD_UNTOLD, /* only the answer to the Prepare that dropped tables of the bridge says so */
	SIM_BUG_YIELD_STAYS,  /* the controller hears that they were dropped, and leaves the bridge in the document */
	SIM_BUG_YIELD_MARK,   /* the controller's note that a node has dropped a bridge stays for the next bridge */
	SIM_BUG_YIELD_SOURCE, /* neither the controller nor the node spares the bridge that the job goes back to */
	SIM_BUG_YIELD_BLIND,  /* recovery goes back to the bridge without asking nodes whether they have it */
	SIM_BUG_BACK_SHED,    /* the job goes back to a bridge that is being taken out of the document */
	SIM_BUG_SHED_LATE,    /* etcd takes the bridge out of the document without comparing */
	/* and with `live` */
	SIM_BUG_YIELD_ANY,  /* whatever a node has dropped, the controller takes for a table of the present bridge */
	SIM_BUG_YIELD_COPY, /* Prepare names a copy that the record has, too */
	SIM_BUG_ASKS_ALL,   /* steps count of ranks on any node, not only on those of the record */
	/* only with `bridge` and `live`, and not with `tight` */
	SIM_BUG_DUE_FREE,    /* ranks that wait where a snapshot is due count as free before its switch arms them */
	SIM_BUG_LEAVE_MORE,  /* each time it is told, a node leaves snapshots out after those that it leaves out already
			      */
	SIM_BUG_LEAVE_STAYS, /* nobody says that the copies are complete, and snapshots are not left out any more */
	SIM_BUG_LEAVE_DOWN,  /* snapshots are left out while no node can take copies */
	/* only with `several` */
	SIM_BUG_FIRST_RANK, /* a node asks only the first of its ranks whether it waits at the stop */
	SIM_BUG_HELD_PART,  /* a node captures ranks that it holds though together they lack a part of what it has */
	SIM_BUG_COUNT,
};

enum sim_victim {
	/* numbers below: that node. This: the controller that performs the step */
	SIM_VICTIM_CTL = SIM_NODES,
	SIM_VICTIM_LOCK,                                  /* the lock is lost, and the controller does not notice */
	SIM_VICTIM_ABORT,                                 /* nothing crashes; a person aborts the switch */
	SIM_VICTIM_STATE,                                 /* number of victims without ranks */
	SIM_VICTIM_MACHINE = SIM_VICTIM_STATE,            /* this and the next numbers: that node and its ranks */
	SIM_VICTIM_RANK = SIM_VICTIM_MACHINE + SIM_NODES, /* the rank on that node fails */
	SIM_VICTIM_COUNT = SIM_VICTIM_RANK + SIM_NODES,
	SIM_VICTIM_GONE = SIM_VICTIM_COUNT,             /* with `lose`: that machine and its tables, for good */
	SIM_VICTIM_EMPTY = SIM_VICTIM_GONE + SIM_NODES, /* that node's tables; it comes back without them */
	SIM_VICTIM_LOSS_COUNT = SIM_VICTIM_EMPTY + SIM_NODES,
};

struct sim_opts {
	uint64_t seed;
	enum sim_bug bug;
	bool live;   /* the job has ranks; otherwise only state */
	bool lose;   /* machines are lost with their tables and ranks, tables are lost, nodes are declared lost */
	bool faults; /* random faults; otherwise only the one below */
	bool keep;   /* the job keeps older snapshots, and goes back to them */
	/* with lose: a copy of the record's snapshot is made on another node, in the background, and the snapshot
	 * before stays until then; at most one node is destroyed */
	bool bridge;
	bool tight;   /* with bridge: nodes have no room for it at times, so Prepare drops its tables */
	bool survive; /* with live, lose and faults: nodes are lost often whose ranks others can stand in for */
	bool several; /* with live: some nodes have two ranks, each with a half of what the node has, or with all of it
		       */
	/* step > 0: the fault comes at the step-th update that any controller performs, before or after it */
	uint64_t step;
	unsigned victim;
	bool after;
	uint32_t restart_ms;
	bool trace; /* to stdout */
};

struct sim_result {
	bool ok;
	char why[256];
	uint64_t steps;   /* updates performed */
	uint64_t events;  /* processed */
	uint64_t hash;    /* hash of all events, in order */
	uint64_t time_ms; /* virtual */
	uint32_t commits, aborts, conflicts, unknowns;
	uint32_t new_incarnations, disagreed;
	uint32_t destroyed, left_out,
		lost;               /* tables destroyed; commits without a node; records lost whole or in part */
	uint32_t recovered;         /* switches because a node whose ranks should train was given up */
	uint32_t rollbacks;         /* committed */
	uint32_t copies, went_back; /* copies that were made; rollbacks because the record's snapshot was lost */
	uint32_t survived, let_on;  /* of them, committed snapshots of what other ranks held; ranks let on for that */
	uint32_t yielded, yields_told; /* tables of a bridge that Prepare has dropped; bridges that went for it */
	uint32_t due, left_out_due;    /* snapshots that ranks asked for; those that they left out */
};

/* Runs one simulation. Deterministic: equal options give equal results. */
void sim_run(const struct sim_opts *opts, struct sim_result *ret_result);
