/* SPDX-License-Identifier: Apache-2.0 */
/* The simulation's world, shared by its files. A file calls only those that are listed below before it. */
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
	int who; /* the node or controller that gets the event */
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
	struct older older;
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
	uint32_t script_at; /* for live jobs without random faults */
	uint64_t script_id;
	struct ruin ruins[MAX_RUINS];
	uint32_t nruins;
	bool declared[SIM_NODES]; /* declared lost by an operator */
	/* a bit per node that an intent or a first commit has left out and that no FINISH has reached since */
	uint32_t given_up;
	uint64_t moved_at;         /* when a rank of the record's incarnation last ended a step */
	uint64_t live[2], over[2]; /* generation, incarnation: whose ranks the record last wanted, and those before */
	bool bridged; /* with `bridge`: a snapshot of the record has had its copy, and later ones may get one */
	bool bad;
};
static inline bool sim_is_copy(const struct record *o, const struct table *t, uint32_t node)
{
	return o->snap && o->copy == node + 1 && o->gen == t->gen && (o->snap | COPY_SNAP) == t->snap;
}
/* A switch as the core gets it, with room for its nodes. */
struct told {
	struct ptc_switch s;
	uint32_t from[SIM_NODES];
};

/* sim_world.c */
uint64_t sim_rnd(struct sim *s);
uint32_t sim_below(struct sim *s, uint32_t n);
bool sim_chance(struct sim *s, uint32_t percent);
/* As sim_chance, but only while random faults are on. */
bool sim_unlucky(struct sim *s, uint32_t percent);
void sim_mix(struct sim *s, uint64_t v); /* into the run's hash */
__attribute__((format(printf, 2, 3))) void sim_say(struct sim *s, const char *fmt, ...);
__attribute__((format(printf, 2, 3))) void sim_bad(struct sim *s, const char *fmt, ...);
struct ev *sim_post(struct sim *s, uint64_t delay, enum kind kind, int who);
struct ev *sim_pop(struct sim *s);
uint64_t sim_travel(struct sim *s);
void sim_restart_post(struct sim *s, enum kind kind, int who, uint64_t delay);
void sim_restart_later(struct sim *s, uint32_t node, uint64_t delay);
bool sim_listed(const uint64_t *v, uint32_t n, uint64_t id);
uint64_t sim_content(uint32_t item, uint64_t id);
bool sim_layout_has(const uint32_t *nodes, uint32_t n, uint32_t layout, uint32_t item, uint32_t node);
uint32_t sim_layout_needs(const uint32_t *nodes, uint32_t n, uint32_t layout, uint32_t node);
/* Whether every item is on a node of the layout that is not in `without`. */
bool sim_covered(const uint32_t *nodes, uint32_t n, uint32_t layout, uint32_t without);
/* The nodes of v that are not in `without`. */
uint32_t sim_placed(const uint32_t *v, uint32_t n, uint32_t without, uint32_t *ret);
struct table *sim_table_find(struct node *n, uint64_t gen, uint64_t snap);
struct table *sim_table_add(struct sim *s, struct node *n, uint64_t gen, uint64_t snap);
void sim_table_drop(struct node *n, uint32_t i);
bool sim_keeps(const struct req *r, const struct table *t); /* whether the request names the table: it stays */

/* sim_ranks.c. An operation returns 0, a status, or 1 if it needs more time. */
uint64_t sim_item_value(uint32_t item, uint64_t id, uint64_t grown);
uint64_t sim_weight(uint64_t gen, uint64_t incarnation);
int sim_op_start(struct sim *s, uint32_t i);
int sim_op_arm(struct sim *s, uint32_t i, bool *ret_passed, uint64_t *ret_step);
int sim_op_stop(struct sim *s, uint32_t i);
int sim_op_capture(struct sim *s, uint32_t i);
int sim_op_end(struct sim *s, uint32_t i);
/* Holds the ranks of r that can be seen. True: those at *ret_step have every item; *ret_without: a bit for each node of
 * r that has none of them. */
bool sim_ranks_hold(struct sim *s, const struct record *r, uint64_t *ret_step, uint32_t *ret_without);
int sim_op_build(struct sim *s, uint32_t i);
void sim_ranks_finish(struct sim *s, uint32_t i);
void sim_ranks_report(struct sim *s, uint32_t i);
void sim_ranks_train(struct sim *s, uint32_t i);
void sim_ranks_restarted(struct sim *s, uint32_t i);
/* Faults: the machine is lost; the rank exits with an error; the rank's values become wrong. */
void sim_ranks_lose(struct sim *s, uint32_t i);
void sim_ranks_kill(struct sim *s, uint32_t i);
void sim_ranks_diverge(struct sim *s, uint32_t i);
void sim_ranks_doom(struct sim *s, uint32_t i); /* ranks with wrong values notice it */
/* NULL, or the reason why the ranks do not match the record. */
const char *sim_ranks_not_quiet(const struct sim *s);
uint64_t sim_ranks_steps(const struct sim *s);
bool sim_ranks_has(const struct sim *s, uint32_t node);
/* The least step of the record's ranks on nodes with a key; UINT64_MAX: there are none. */
uint64_t sim_ranks_seen(const struct sim *s, const struct record *r);

/* sim_etcd.c */
void sim_on_etcd_txn(struct sim *s, const struct ev *ev);
void sim_on_etcd_acquire(struct sim *s, const struct ev *ev);
void sim_on_etcd_read(struct sim *s, const struct ev *ev);
void sim_on_etcd_tick(struct sim *s);

/* sim_nodes.c. A machine's crash takes its ranks, too. */
void sim_node_crash(struct sim *s, uint32_t i);
void sim_machine_crash(struct sim *s, uint32_t i);
void sim_node_start(struct sim *s, uint32_t i);
void sim_on_node_tick(struct sim *s, uint32_t i);
void sim_on_node_op(struct sim *s, const struct ev *ev);
void sim_on_node_req(struct sim *s, const struct ev *ev);

/* sim_loss.c */
/* Destroys a machine with all that it has; or only the tables of one that is down. */
void sim_machine_destroy(struct sim *s, uint32_t i, bool for_good);
void sim_tables_destroy(struct sim *s, uint32_t i);
/* Makes one more fault, of the kinds that only `lose` has. */
void sim_loss_fault(struct sim *s);
void sim_loss_again(struct sim *s);
/* Whether a fault has destroyed the record's table there, whole and right, and no second commit could know of it. */
bool sim_ruined(const struct sim *s, uint32_t node, const struct record *r);
/* Whether faults have destroyed every copy of some item of the record. */
bool sim_record_lost(const struct sim *s, const struct record *r);
/* With `bridge`: makes the copy of the record's snapshot or, once there is one, drops the bridge. */
void sim_copy_keeper(struct sim *s, struct ctl *c);
/* The nodes of w that have no part in it any more, by the core's answer. */
uint32_t sim_left_out(const struct ctl *c, const struct sw *w);

/* sim_ctls.c */
void sim_ctl_crash(struct sim *s, int i);
void sim_ctl_feed(struct sim *s, int i, const struct ptc_job_event *e);
/* The core's view of w; only nodes that have a part in it. */
void sim_switch_view(const struct sw *w, struct told *told);
/* Whether a controller gives the record's ranks up: one of their nodes is lost, and it sees no step end. */
bool sim_ctl_gives_up(struct sim *s, int i);
struct ctl *sim_leader(struct sim *s); /* NULL: nobody has the lock and knows it */
void sim_on_answer(struct sim *s, const struct ev *ev);
void sim_on_readrep(struct sim *s, const struct ev *ev);
void sim_on_txnrep(struct sim *s, const struct ev *ev);
void sim_on_acqrep(struct sim *s, const struct ev *ev);
void sim_on_ctl_tick(struct sim *s, int i);
void sim_on_client(struct sim *s, const struct ev *ev);

/* sim_driver.c */
uint32_t sim_commits_wanted(const struct sim *s);
uint32_t sim_script_length(void);
void sim_on_driver(struct sim *s);
void sim_on_fault(struct sim *s);
void sim_on_restart(struct sim *s, const struct ev *ev);
