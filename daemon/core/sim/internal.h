/* SPDX-License-Identifier: Apache-2.0 */
/* The simulation's world, for sim.c (messages, etcd, nodes, controllers) and sim_ranks.c (what trains on the nodes). */
#pragma once

#include "daemon/core/sim/sim.h"

#define ITEMS       10
#define MAX_TABLES  8
#define MAX_ASKED   512
#define TTL_MS      1000
#define RPC_MS      800
#define TXN_MS      500
#define FAULTS_MS   25000  /* random faults end here */
#define LIMIT_MS    400000 /* by then it has to be quiet */
#define WANT_COMMIT 3      /* without random faults: import, two resizes */
#define MAX_PROCS   4
#define INIT_ID     7 /* content of a program's own initial values */

enum run { RUN_NONE, RUN_LIVE, RUN_STOPPED, RUN_FAILED };

struct sw { /* a switch as the intent and the requests carry it */
	uint64_t id;
	int kind;
	uint64_t from_gen, from_snap, to_gen, to_snap;
	uint32_t nfrom, nto, from[SIM_NODES], to[SIM_NODES];
	uint32_t from_layout, to_layout;
	bool run_from, run_to;
	uint64_t stop, from_launch, to_launch;
	enum run run; /* HALT, and SNAPSHOT without run_to: what the record says then */
};
struct record {
	uint64_t gen, snap, content; /* content: id of the switch that captured it */
	uint64_t grown;              /* what training has added since `content`, see item_value */
	uint64_t step, launch, by;
	enum run run;
	uint32_t n, nodes[SIM_NODES], layout;
	uint64_t mod;
};
struct etcd {
	uint64_t rev;
	int lock_ctl;
	uint32_t lock_inc;
	uint64_t lock_rev, lock_until; /* rev 0: free */
	struct record rec;
	struct sw intent;
	uint64_t intent_mod; /* 0: none */
	uint64_t key[SIM_NODES], key_until[SIM_NODES];
	struct {
		uint64_t gen, launch; /* whose rank here has ended badly */
	} failed[SIM_NODES];
};
struct table {
	uint64_t gen, snap;
	bool sealed, durable;
	uint32_t has;
	uint64_t val[ITEMS];
	uint64_t cap_id, cap_stop; /* captured by that switch, at that stop */
};
struct req { /* controller to node */
	int ctl;
	uint32_t ctl_inc, node, node_inc;
	uint64_t fence, seq;
	enum ptc_job_op op;
	bool has_keep, cancel;
	uint64_t keep_gen, keep_snap;
	uint64_t stop;
	struct sw sw;
	struct record rec; /* FINISH: to be made so */
};
/* The rank on a node. Outlives the node's ptcd, not the machine. */
struct proc {
	enum { PROC_NONE, PROC_WAITING, PROC_BUILT, PROC_RUN, PROC_STOPPED, PROC_FAILED } state;
	uint64_t gen, launch;
	uint64_t step; /* its values are whole after so many */
	int64_t pub;   /* greatest step published; before the first boundary one less than that */
	bool building; /* has its generation and waits for its peers */
	bool in_step;  /* has left boundary(step) */
	bool has_stop, diverged;
	uint64_t stop;
	uint32_t n, nodes[SIM_NODES], layout; /* those it trains with */
	uint64_t val[ITEMS];
};
struct node {
	bool up, disk_full;
	uint32_t inc;
	/* durable */
	uint64_t fence;
	struct table tables[MAX_TABLES];
	uint32_t ntables;
	uint64_t let_gen, let_launch; /* greatest launch whose rank was let go here */
	struct proc procs[MAX_PROCS];
	/* in memory */
	uint64_t seq, prepared_id;
	uint64_t copied_id, copied_stop; /* an unsealed capture is whole */
	bool running;
	uint64_t token;
	struct req req;
};
struct asked {
	uint64_t id;
	bool told;
};
struct txn { /* controller to etcd, with what it compares */
	enum ptc_job_txn kind;
	uint64_t seq, lock_rev, rec_mod, intent_mod, key[SIM_NODES];
	uint64_t step;
	bool relaunch;
	struct sw sw;
};
struct ctl {
	bool alive;
	uint32_t inc;
	struct ptc_job *job;
	uint64_t fence;        /* the lock's create_revision, 0: not held as far as we know */
	bool reading;          /* a read is under way */
	uint64_t reload;       /* for this RELOAD; 0: the first START */
	uint64_t answered_txn; /* its outcome was told, or given up on */
	struct record rec;
	uint64_t intent_mod;
	struct sw sw;
	uint64_t sent[SIM_NODES];         /* what it was asked last */
	uint64_t seen[SIM_NODES];         /* keys of nodes as told to the core */
	uint64_t answered[SIM_NODES];     /* key of the node when it answered PULL */
	struct table captured[SIM_NODES]; /* what it said to have captured */
	struct asked asked[MAX_ASKED];
	uint32_t nasked;
};

enum kind {
	EV_REQ,
	EV_OP,
	EV_REP,
	EV_TXN,
	EV_TXNREP,
	EV_READ,
	EV_READREP,
	EV_ACQUIRE,
	EV_ACQREP,
	EV_TIMER,
	EV_DIGESTS,
	EV_CTL_TICK,
	EV_NODE_TICK,
	EV_TRAIN,
	EV_ETCD_TICK,
	EV_DRIVER,
	EV_FAULT,
	EV_CLIENT,
	EV_ABORT,
	EV_DOOM,
	EV_RESTART_NODE,
	EV_RESTART_CTL,
};
struct ev {
	enum kind kind;
	int who; /* node or controller it is for */
	uint32_t inc;
	uint64_t seq, a;
	int status;
	uint32_t node;
	enum ptc_txn_outcome outcome;
	bool timeout, passed;
	enum ptc_job_op op;
	uint64_t step;
	struct table table;
	struct record rec;
	uint64_t intent_mod;
	union {
		struct req req;
		struct txn txn;
		struct sw sw;
	} u;
};
struct slot {
	uint64_t at, order;
	struct ev *ev;
};
struct sim {
	struct sim_opts o;
	struct sim_result *res;
	uint64_t rng, now, order, token, next_id, restarts_left;
	struct slot *heap;
	size_t nheap, cap;
	struct etcd etcd;
	struct node nodes[SIM_NODES];
	struct ctl ctls[SIM_CTLS];
	bool cut_cn[SIM_CTLS][SIM_NODES], cut_ce[SIM_CTLS], cut_ne[SIM_NODES], cut_nn[SIM_NODES][SIM_NODES];
	bool calm;
	uint64_t committed[MAX_ASKED * 4], failed[MAX_ASKED * 4];
	uint32_t ncommitted, nfailed, commits_at_calm;
	uint32_t script_at; /* live, without random faults */
	uint64_t script_id;
	bool bad;
};

/* sim.c */
uint64_t sim_rnd(struct sim *s);
uint32_t sim_below(struct sim *s, uint32_t n);
bool sim_chance(struct sim *s, uint32_t percent);
/* Only while random faults are on. */
bool sim_unlucky(struct sim *s, uint32_t percent);
__attribute__((format(printf, 2, 3))) void sim_say(struct sim *s, const char *fmt, ...);
__attribute__((format(printf, 2, 3))) void sim_bad(struct sim *s, const char *fmt, ...);
struct ev *sim_post(struct sim *s, uint64_t delay, enum kind kind, int who);
uint64_t sim_content(uint32_t item, uint64_t id);
uint32_t sim_layout_needs(const uint32_t *nodes, uint32_t n, uint32_t layout, uint32_t node);
struct table *sim_table_find(struct node *n, uint64_t gen, uint64_t snap);
struct table *sim_table_add(struct sim *s, struct node *n, uint64_t gen, uint64_t snap);
void sim_table_drop(struct node *n, uint32_t i);

/* sim_ranks.c: operations return 0, a status, or 1: more to do */
uint64_t sim_item_value(uint32_t item, uint64_t id, uint64_t grown);
uint64_t sim_weight(uint64_t gen, uint64_t launch);
int sim_op_start(struct sim *s, uint32_t i);
int sim_op_arm(struct sim *s, uint32_t i, bool *ret_passed, uint64_t *ret_step);
int sim_op_stop(struct sim *s, uint32_t i);
int sim_op_capture(struct sim *s, uint32_t i);
int sim_op_end(struct sim *s, uint32_t i);
int sim_op_build(struct sim *s, uint32_t i);
void sim_ranks_finish(struct sim *s, uint32_t i);
void sim_ranks_report(struct sim *s, uint32_t i);
void sim_ranks_train(struct sim *s, uint32_t i);
void sim_ranks_restarted(struct sim *s, uint32_t i);
/* The machine is lost, the rank exits with an error, its values go wrong. */
void sim_ranks_lose(struct sim *s, uint32_t i);
void sim_ranks_kill(struct sim *s, uint32_t i);
void sim_ranks_diverge(struct sim *s, uint32_t i);
void sim_ranks_doom(struct sim *s, uint32_t i); /* who has gone wrong notices */
/* NULL, or why the ranks are not what the record says. */
const char *sim_ranks_not_quiet(const struct sim *s);
uint64_t sim_ranks_steps(const struct sim *s);
