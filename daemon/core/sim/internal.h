/* SPDX-License-Identifier: Apache-2.0 */
/* The simulation's world, for sim.c (messages, etcd, nodes, controllers) and sim_ranks.c (what trains on the nodes). */
#pragma once

#include "daemon/core/sim/sim_model.h"

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
	struct ruin ruins[MAX_RUINS];
	uint32_t nruins;
	bool declared[SIM_NODES]; /* lost, by an operator */
	uint32_t given_up; /* nodes, a bit each, that an intent or a first commit has left out, and that no FINISH has
			    * reached since
			    */
	uint64_t moved_at; /* a rank of the record's incarnation has ended a step */
	bool bad;
};
/* A switch as the core is told of it; room for the nodes that have a part in it. */
struct told {
	struct ptc_switch s;
	uint32_t from[SIM_NODES];
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

void sim_node_crash(struct sim *s, uint32_t i);
void sim_restart_later(struct sim *s, uint32_t node, uint64_t delay);
void sim_ctl_feed(struct sim *s, int i, const struct ptc_job_event *e);
bool sim_layout_has(const uint32_t *nodes, uint32_t n, uint32_t layout, uint32_t item, uint32_t node);

/* sim_loss.c */
/* The machine and all that it has; or its tables alone, while it is down. */
void sim_machine_destroy(struct sim *s, uint32_t i, bool for_good);
void sim_tables_destroy(struct sim *s, uint32_t i);
/* One more fault, of those that only `lose` has. */
void sim_loss_fault(struct sim *s);
/* What a controller takes for lost, told to its core. */
void sim_loss_watch(struct sim *s, int i);
/* Whether a controller gives the ranks of the record up: a node of theirs is lost, and no step ends where it can see.
 */
bool sim_loss_gives_up(struct sim *s, int i);
/* That node had the record's table, with the right bytes, until a fault destroyed it. */
bool sim_ruined(const struct sim *s, uint32_t node, const struct record *r);
/* Some item of the record is nowhere any more, and faults have done that. */
bool sim_record_lost(const struct sim *s, const struct record *r);
/* Every item is on a node of the layout that is not one of `without`. */
bool sim_covered(const uint32_t *nodes, uint32_t n, uint32_t layout, uint32_t without);
/* The nodes of w that have no part in it any more, as the core sees it. */
uint32_t sim_left_out(const struct ctl *c, const struct sw *w);
/* Of the nodes v, those not in `without`. */
uint32_t sim_placed(const uint32_t *v, uint32_t n, uint32_t without, uint32_t *ret);

/* sim_ranks.c: operations return 0, a status, or 1: more to do */
uint64_t sim_item_value(uint32_t item, uint64_t id, uint64_t grown);
uint64_t sim_weight(uint64_t gen, uint64_t incarnation);
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
bool sim_ranks_has(const struct sim *s, uint32_t node);
/* The least step of that record's ranks on nodes with a key; UINT64_MAX: there are none. */
uint64_t sim_ranks_seen(const struct sim *s, const struct record *r);
