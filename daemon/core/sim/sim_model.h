/* SPDX-License-Identifier: Apache-2.0 */
/* The simulation's model: etcd and its content, nodes with their tables and ranks, controllers, and their messages.
 * The files of this folder own all of it. */
#pragma once

#include "daemon/core/sim/sim.h"

#define ITEMS       10
#define MAX_TABLES  16
#define MAX_ASKED   512
#define TTL_MS      1000
#define RPC_MS      800
#define TXN_MS      500
#define FAULTS_MS   25000  /* random faults end here */
#define LIMIT_MS    400000 /* by this time the cluster must be quiet */
#define WANT_COMMIT 3      /* without random faults: import, two resizes */
#define MAX_RANKS   2      /* of an incarnation, on a node */
#define MAX_PROCS   (4 * MAX_RANKS)
#define LOST_MS     1500 /* a node whose key is gone for this time is declared lost */
#define ASKED_MS    100  /* ... where no ranks of a job that trains are, as soon as it has not answered either */
#define HELD_MS     1200 /* so long ranks are held at most that survive */
#define RELEASED_MS 300  /* within this time, ranks that a switch held show that they go on */
#define MAX_RUINS   256
#define MAX_OLDER   2
#define COPY_SNAP   (UINT64_C(1) << 62) /* in the snapshot's number of a table that is a copy */
#define INIT_ID     7                   /* content of a program's own initial values */
#define SNAP_EVERY  6                   /* with `bridge`, ranks: a snapshot is due each time after so many steps */
#define LEAVE_OUT   8                   /* of these, so many are left out while copies are on their way */
#define LEFT_MS     1500                /* in the end, within this time nodes hear that none are left out any more */
#define MAX_YIELDS  256

enum run { RUN_NONE, RUN_LIVE, RUN_STOPPED, RUN_FAILED };

struct record {
	uint64_t gen, snap, content; /* content: id of the switch that captured it */
	uint64_t grown;              /* added by training since `content`, see item_value */
	uint64_t step, incarnation, by;
	enum run run;
	bool recovers; /* its ranks were given up and will be started again */
	uint32_t n, nodes[SIM_NODES], layout;
	uint32_t without; /* the placement is the layout's nodes without these */
	uint64_t mod;
	/* of the second commit, or of the first one of ranks that were held: when, and the nodes' keys; at 0: another
	 * one made it */
	uint64_t at, key[SIM_NODES];
	uint64_t stood;     /* of the second commit: all nodes have said since then that their tables are there */
	uint32_t copy;      /* one more than the node that has a copy of all items; 0: there is none */
	uint64_t copy_snap; /* in the key of that copy's table; two snapshots of equal content have the same copy */
};
struct older { /* snapshots that are kept beside the record's, oldest first */
	uint32_t n;
	struct record v[MAX_OLDER];
	struct record bridge; /* snap 0: there is none */
	uint64_t mod;
};
struct sw { /* a switch as the intent and the requests carry it */
	uint64_t id;
	int kind;
	uint64_t from_gen, from_snap, to_gen, to_snap;
	uint32_t nfrom, nto, from[SIM_NODES], to[SIM_NODES];
	/* a bit per node of `from` that has no part in it: the record's, and those that cleaning left out */
	uint32_t without;
	uint32_t from_layout, to_layout;
	bool run_from, run_to;
	uint64_t stop, from_incarnation, to_incarnation;
	enum run run;  /* HALT, and SNAPSHOT without run_to: the run state that the record gets */
	bool recovers; /* because a node is given up */
	bool held;     /* SNAPSHOT of ranks that are held */
	bool stored;   /* IMPORT of an older snapshot */
	struct record source;
};
struct etcd {
	uint64_t rev;
	int lock_ctl;
	uint32_t lock_inc;
	uint64_t lock_rev, lock_until; /* rev 0: free */
	struct record rec, was;        /* was: SIM_BUG_OLDER_LATE's, to be put on the list */
	struct older older;
	struct sw intent;
	uint64_t intent_mod; /* 0: none */
	uint64_t key[SIM_NODES], key_until[SIM_NODES];
	struct {
		uint64_t gen, incarnation; /* the incarnation whose rank here has failed */
	} failed[SIM_NODES];
	struct {
		uint64_t gen, incarnation, step; /* whose rank here waits at a step where a snapshot is due */
	} due[SIM_NODES];
};
struct table {
	uint64_t gen, snap;
	bool sealed, durable;
	uint32_t has;
	uint64_t val[ITEMS];
	uint64_t cap_id, cap_stop; /* the switch and the stop that captured the table */
};
/* A sealed table that a fault has destroyed, when, and the node's key in etcd then. */
struct ruin {
	uint32_t node;
	struct table table;
	uint64_t at, key;
};
struct req { /* controller to node */
	int ctl;
	uint32_t ctl_inc, node, node_inc;
	uint64_t fence, seq;
	enum ptc_job_op op;
	bool has_keep, cancel;
	uint64_t keep_gen, keep_snap;
	uint64_t stop;
	bool built, yields; /* PREPARE: tables of the bridge may go */
	/* START, BUILD: the revision of the intent of a switch that another controller began; 0: this one began it */
	uint64_t resumed;
	uint32_t leave_out; /* CAPTURE, FINISH: so many of the next snapshots that are due */
	struct sw sw;
	struct record rec; /* FINISH: the record to carry out */
	struct older older;
};
/* A rank on a node. It outlives the node's ptcd, not the machine. */
struct proc {
	enum { PROC_NONE, PROC_WAITING, PROC_BUILT, PROC_RUN, PROC_STOPPED, PROC_FAILED } state;
	uint64_t gen, incarnation;
	uint32_t slot;                      /* its number among the ranks of its incarnation on the node */
	uint64_t life;                      /* which process it is */
	uint64_t met[SIM_NODES][MAX_RANKS]; /* those with which it was built; 0: none yet */
	uint64_t step;                      /* its values are complete after this many steps */
	int64_t pub;   /* greatest step published; before the first boundary, one less than `step` */
	bool building; /* has its generation and waits for its peers */
	bool in_step;  /* has left boundary(step) */
	bool ready;    /* in a step, with all that it needs of the others */
	bool has_stop, diverged;
	/* held until then, and in the middle of an update; 0: it is not held. `hold` tells one time from another */
	uint64_t held_until, hold;
	bool in_update;
	uint64_t stop, due, start;            /* due: the last stop was set because a snapshot is due there; else 0 */
	uint32_t left;                        /* due steps that it has passed since it last waited */
	uint32_t n, nodes[SIM_NODES], layout; /* the nodes with which it trains */
	uint64_t val[ITEMS];
};
struct node {
	uint64_t up_at; /* since when its ptcd runs */
	bool up, disk_full;
	bool gone; /* gone for good */
	/* There is room for new tables only beside no table of a bridge; only_less: not even then. */
	bool tight, only_less;
	uint32_t inc;
	bool store_new; /* its store has never been in the cluster */
	/* durable */
	uint64_t fence, store_rev; /* store_rev: etcd's revision when this store came into the cluster */
	struct table tables[MAX_TABLES];
	uint32_t ntables;
	uint64_t let_gen, let_incarnation;               /* greatest incarnation whose rank was let go here */
	uint64_t began_gen, began_incarnation;           /* the last one that START was for */
	uint64_t built_gen, built_incarnation, built_id; /* the last one that BUILD was for, and its switch */
	struct proc procs[MAX_PROCS];
	/* in memory */
	uint64_t seq, prepared_id;
	uint64_t copied_id, copied_stop; /* an unsealed capture is complete; held: half of it is */
	uint64_t copied_hold;
	uint64_t yielded_gen, yielded_snap,
		yielded_by; /* the last table that a request (seq) dropped for want of room */
	bool running;
	uint64_t token;
	struct req req;
};
struct asked {
	uint64_t id;
	bool told;
};
struct txn { /* controller to etcd, with the compared revisions */
	enum ptc_job_txn kind;
	uint64_t seq, lock_rev, rec_mod, intent_mod, older_mod, key[SIM_NODES];
	uint64_t step;
	bool new_incarnation;
	uint32_t without;        /* COMMIT1: nodes of `from` that gave nothing */
	uint32_t gave;           /* COMMIT1 of ranks that are held: nodes whose keys are compared */
	uint64_t compared_at;    /* COMMIT2: when its digests began to be compared */
	bool yielded, no_bridge; /* the bridge goes, for a node has dropped its tables; the record gets none */
	enum why_shed { SHED_COPIED, SHED_NOWHERE, SHED_ROOM, SHED_YIELDED } why; /* EV_SHED */
	struct sw sw;
};
struct ctl {
	bool alive;
	uint32_t inc;
	struct ptc_job *job;
	uint64_t fence;        /* the lock's create_revision; 0: not held, as far as the controller knows */
	bool reading;          /* a read is under way */
	uint64_t reload;       /* the RELOAD that it answers; 0: the first START */
	uint64_t answered_txn; /* the transaction whose outcome was reported, or given up on */
	struct record rec;
	struct older older;
	uint64_t intent_mod;
	struct sw sw;
	uint64_t sent[SIM_NODES];    /* seq of the last request to each node */
	uint64_t seen[SIM_NODES];    /* keys of nodes as reported to the core */
	uint64_t down_at[SIM_NODES]; /* since when a node is down, as far as the controller knows; 0: it is up */
	bool told_lost[SIM_NODES];
	bool held;                   /* its switch may hold the ranks at a stop */
	uint64_t ended_at;           /* when the last such switch ended */
	uint64_t compared_at;        /* when digests began to be compared for the last time */
	uint64_t least, still_since; /* the least visible step of the record's ranks, and since when it has not moved */
	struct table captured[SIM_NODES]; /* the table that the node reported as captured, and its key then */
	uint64_t captured_key[SIM_NODES];
	/* As daemon/controller/older has them: a node has dropped tables of the bridge (one more than its number); the
	 * record's generation gets no bridge; the bridge is being taken out (the request); nodes to be told anew. */
	uint32_t yielded, tell, shed_node;
	uint64_t no_room, shed;
	enum why_shed shed_why;
	struct record shed_gone;
	bool left_out; /* the last FINISH has said that snapshots are left out */
	struct asked asked[MAX_ASKED];
	uint32_t nasked;
};
