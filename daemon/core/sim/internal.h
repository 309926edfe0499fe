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
	EV_SHED,
	EV_SHEDREP,
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
	uint64_t seq, a, step, intent_mod;
	int status;
	uint32_t node;
	enum ptc_txn_outcome outcome;
	bool timeout, passed;
	enum ptc_job_op op;
	struct table table;
	struct record rec;
	struct older older;
	union {
		struct req req;
		struct txn txn;
		struct sw sw;
	} u;
};
/* A switch as the core gets it, with room for its nodes. */
struct told {
	struct ptc_switch s;
	uint32_t from[SIM_NODES];
};
struct slot;
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
	bool calm, bad;
	uint64_t committed[MAX_ASKED * 4], failed[MAX_ASKED * 4];
	uint32_t ncommitted, nfailed, commits_at_calm, nruins, nyields;
	uint32_t script_at; /* for live jobs without random faults */
	uint64_t script_id;
	struct ruin ruins[MAX_RUINS];
	bool declared[SIM_NODES]; /* declared lost by an operator */
	/* a bit per node that an intent or a first commit has left out and that no FINISH has reached since */
	uint32_t given_up;
	uint64_t moved_at;         /* when a rank of the record's incarnation, whose ptcd is up, last ended a step */
	uint64_t live[2], over[2]; /* generation, incarnation: whose ranks the record last wanted, and those before */
	bool bridged; /* with `bridge`: a snapshot of the record has had its copy, and later ones may get one */
	struct {      /* tables of a bridge that a node has dropped for want of room, in which of its lives */
		uint32_t node, inc;
		uint64_t gen, snap;
	} yields[MAX_YIELDS];
	uint64_t left_since; /* since when ranks leave snapshots out although no copies come; 0: they do not */
};

/* sim_world.c */
uint64_t sim_rnd(struct sim *s);
uint32_t sim_below(struct sim *s, uint32_t n);
bool sim_chance(struct sim *s, uint32_t percent);
bool sim_unlucky(struct sim *s, uint32_t percent); /* as sim_chance, but only while random faults are on */
void sim_mix(struct sim *s, uint64_t v);           /* into the run's hash */
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
bool sim_is_copy(const struct record *o, const struct table *t, uint32_t node);
bool sim_is_part(const struct record *o, const struct table *t, uint32_t node); /* of the layout */
/* A table of the bridge there, but for a copy that the record has, too: Prepare may drop it. */
bool sim_is_bridge(const struct sim *s, const struct req *r, const struct table *t);
/* Whether that node has dropped that table for want of room; by_now: and has been up since. */
bool sim_yielded(const struct sim *s, uint32_t node, uint64_t gen, uint64_t snap, bool by_now);
bool sim_bridge_yielded(const struct sim *s, const struct record *b, bool by_now); /* some table of it, somewhere */

/* sim_ranks.c. An operation returns 0, a status, or 1 if it needs more time. */
uint64_t sim_item_value(uint32_t item, uint64_t id, uint64_t grown);
uint64_t sim_weight(const struct sim *s, uint64_t gen, uint64_t incarnation);
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
/* The least step of the record's ranks on those of its nodes that have a key; UINT64_MAX: there are none. */
uint64_t sim_ranks_seen(const struct sim *s, const struct record *r);
bool sim_ranks_leave_out(const struct sim *s); /* none of the record's ranks waits where the next snapshot is due */

/* sim_etcd.c */
void sim_on_etcd(struct sim *s, const struct ev *ev);
void sim_on_etcd_tick(struct sim *s);

/* sim_nodes.c. A machine's crash takes its ranks, too. */
void sim_node_crash(struct sim *s, uint32_t i);
void sim_machine_crash(struct sim *s, uint32_t i);
void sim_node_start(struct sim *s, uint32_t i);
void sim_on_node_tick(struct sim *s, uint32_t i);
void sim_on_node(struct sim *s, const struct ev *ev);

/* sim_loss.c */
/* Destroys a machine with all that it has; or only the tables of one that is down. */
void sim_machine_destroy(struct sim *s, uint32_t i, bool for_good);
void sim_tables_destroy(struct sim *s, uint32_t i);
void sim_loss_fault(struct sim *s); /* makes one more fault, of the kinds that only `lose` has */
void sim_loss_again(struct sim *s);
/* Whether a fault has destroyed the record's table there, whole and right, and no second commit could know of it. */
bool sim_ruined(const struct sim *s, uint32_t node, const struct record *r);
/* Whether faults have destroyed every copy of some item of the record. */
bool sim_record_lost(const struct sim *s, const struct record *r);
const struct table *sim_copy_of(const struct sim *s, const struct record *r); /* whole; NULL: there is none */
/* The nodes of w that have no part in it any more, by the core's answer. */
uint32_t sim_left_out(const struct ctl *c, const struct sw *w);

/* sim_bridge.c: what a controller with `bridge` does. */
void sim_copy_keeper(struct sim *s, struct ctl *c); /* makes the record's copy; once it is there, the bridge goes */
uint32_t sim_leaves_out(const struct sim *s, const struct ctl *c);     /* for FINISH */
uint32_t sim_will_leave_out(const struct sim *s, const struct ctl *c); /* for CAPTURE */
void sim_older_adopt(struct sim *s, struct ctl *c, const struct older *older, bool by_commit);
void sim_yield_heard(struct sim *s, struct ctl *c, uint32_t node, const struct table *t);
void sim_bridge_tick(struct sim *s, struct ctl *c); /* idle: the bridge of a node that has dropped it goes */
void sim_on_shedrep(struct sim *s, const struct ev *ev);
void sim_check_left(struct sim *s); /* in the end, snapshots are left out only while copies are on their way */

/* sim_ctls.c */
void sim_ctl_crash(struct sim *s, int i);
void sim_ctl_feed(struct sim *s, int i, const struct ptc_job_event *e);
/* The core's view of w; only nodes that have a part in it. */
void sim_switch_view(const struct sw *w, struct told *told);
/* Whether a controller gives the record's ranks up: one of their nodes is lost, and it sees no step end. */
bool sim_ctl_gives_up(struct sim *s, int i);
struct ctl *sim_leader(struct sim *s); /* NULL: nobody has the lock and knows it */
void sim_on_ctl(struct sim *s, const struct ev *ev);
void sim_on_ctl_tick(struct sim *s, int i);

/* sim_driver.c */
uint32_t sim_commits_wanted(const struct sim *s);
uint32_t sim_script_length(void);
void sim_on_driver(struct sim *s);
void sim_on_fault(struct sim *s);
void sim_on_restart(struct sim *s, const struct ev *ev);
