/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of one job's committed state: what is in fewer failure domains than the job asks for is brought to other
 * nodes, in the background.
 *
 * Happy path: LOOKING (what lacks, and where it should go), PUSHING (each of these nodes pulls its part, from whoever
 * has it), CHECKING (what they got has the manifest's digests), NAMING (the document in etcd names their tables), and
 * looking again, until nothing lacks. Then the document no longer names tables of older states' copies, and nodes drop
 * these, and the bridge (../older/) with its own.
 *
 * It works only while no switch is under way. A switch that begins ends the copying; nodes keep the boxes that have
 * arrived until a Finish drops them. A node that fails is tried again after ever longer waits. A new controller looks,
 * and goes on.
 *
 * Failure modes: a node without room (an event; the bridge goes first, then tables of older copies, then other nodes
 * are tried), too few domains (an event), digests that differ (an event; the tables are dropped).
 *
 * Threads: the loop. Only tasks run elsewhere, and they have copies of the data that they use. */
#pragma once

#include "daemon/controller/internal.h"
#include "daemon/controller/leaving/leaving.h"
#include "reshard/copies/copies.h"

enum ptc_copy_keeper_phase {
	PTC_KEEPER_REST,
	PTC_KEEPER_LOOKING,
	PTC_KEEPER_PUSHING,
	PTC_KEEPER_CHECKING,
	PTC_KEEPER_NAMING,
};

/* The nodes that may have copies: first those of a view, in its order, then all others. */
struct ptc_copy_keeper_nodes {
	char **names;
	uint32_t n, *own, *rack;         /* each node's domain: in own the node itself, in rack its rack */
	bool *usable, *target, *leaving; /* leaving: bytes on such a node do not count as a copy; NULL: none leaves */
};
void ptc_copy_keeper_nodes_done(struct ptc_copy_keeper_nodes *nodes);
/* looking.c. [loop] up: only nodes that are up count; else those too that may come back. 0 or PTC_ENOMEM. */
int ptc_copy_keeper_nodes(struct ptc_controllers *all, const struct ptc_view *v, bool up,
			  struct ptc_copy_keeper_nodes *ret);
/* What there is, and what lacks. Blocking, not on the loop. *ret_config: what the job asks for. left: not NULL: looks
 * only for bytes that only leaving nodes have, and sets *left. */
int ptc_copy_keeper_find(struct ptc_controllers *all, const struct ptc_view *v,
			 const struct ptc_copy_keeper_nodes *nodes, struct ptc_leaving_left *left,
			 struct ptc_job_copies *ret_config, struct ptc_copies_found *ret, struct ptc_error *err);

/* A node that is to get copies. */
struct ptc_copy_keeper_push {
	struct ptc_copy_keeper *c;
	struct ptc_rpc_async *rpc; /* while it runs */
	char node[PTC_NAME_MAX + 1];
	bool more;              /* it gets no copies; it is only asked for digests of boxes that it has */
	bool finished, stuck;   /* stuck: it has moved no byte for so long that it was ended */
	_Atomic uint64_t moved; /* bytes by now */
	uint64_t moved_seen;    /* at moved_ns */
	int64_t moved_ns;
	uint32_t *index;
	uint64_t *digests;
	size_t n;
	int status;
	struct ptc_error err;
};

struct ptc_copy_keeper_seen;
struct ptc_copy_keeper {
	struct ptc_controller *ctl; /* its owner */
	enum ptc_copy_keeper_phase phase;
	bool urgent;  /* this round copies only bytes that no other node has than leaving ones */
	bool stopped; /* what is under way ends, and counts for nothing */
	/* rested: the last look found nothing to do; it saw this epoch and these revisions */
	bool rested;
	bool bridged;      /* .. for all copies are there that there can be, on nodes that are up */
	uint64_t complete; /* the newest snapshot of which a look has found as many copies as are asked for, on nodes
			      that are up; 0: none is known */
	uint64_t epoch;
	int64_t record_revision, copies_revision;
	int64_t next_ns;              /* not before */
	unsigned failures;            /* rounds in a row, of this record */
	unsigned failed;              /* .. of any: of many in a row an event tells */
	struct ptc_job_copies config; /* count 0: not known yet */
	bool told_short, told_full, brought, checking_more;
	uint64_t round;                 /* makes new numbers for tables of copies of the same record */
	char (*full)[PTC_NAME_MAX + 1]; /* had no room, or no chunk files: not asked before full_until_ns */
	size_t nfull;
	char refused[400]; /* the last of them, and why */
	int64_t full_until_ns;
	/* Targets that turned out to have no chunks, while documents name only tables of earlier states there: these
	 * may start with new ones. Until the record or a node's state changes. */
	char (*emptied)[PTC_NAME_MAX + 1];
	size_t nemptied;
	/* the round under way */
	struct ptc_copies_doc next;        /* what the document is to be */
	char (*without)[PTC_NAME_MAX + 1]; /* as in ptc_copy_keeper_seen: this round does not read from them, and they
					      may start with new chunks */
	size_t nwithout;
	int64_t bytes;
	struct ptc_copy_keeper_push **pushes;
	size_t npushes, running;
	/* copy_keeper.c's, for the files below it */
	void (*looked)(struct ptc_copy_keeper *c, struct ptc_copy_keeper_seen *seen); /* takes what it needs */
	void (*pushed)(struct ptc_copy_keeper *c);
	void (*checked)(struct ptc_copy_keeper *c, int status, const char *why);
	void (*named)(struct ptc_copy_keeper *c, bool fine, const char *why);
	void (*read)(struct ptc_copy_keeper *c, bool fine, const char *why);
	/* with `steps`: the record's step; so many of the next snapshots are left out; ranks have been told not to any
	 * more; until held_ns they are not told, because the last snapshot has used the budget */
	uint64_t step;
	uint32_t leave;
	bool told_on, quiet; /* quiet: the last copies have come; of those of each further step no event tells */
	int64_t held_ns;
	/* how long the last snapshots have stopped ranks, of what time, and when the newest of them began */
	double stopped_ns, passed_ns;
	int64_t stop_ns, last_ns; /* last_ns: so long it has stopped them */
	uint64_t incarnation;     /* of these ranks */
	double step_ns;           /* of training between the last two; 0: not known */
};

/* looking.c: [loop] starts the task; then c->looked. */
void ptc_copy_keeper_look(struct ptc_copy_keeper *c);
struct ptc_copy_keeper_seen {
	int status;
	struct ptc_error err;
	struct ptc_job_copies config;
	bool urgent; /* only bytes that no other node has than leaving ones were looked for; `left` has the result */
	struct ptc_leaving_left left;
	bool spare; /* nothing lacks; the document names copies that are not needed any more, and next does not */
	bool down;  /* a node counts that is down, and may come back */
	bool elsewhere_down; /* some node of the cluster is down and not lost: copies may go there later */
	struct ptc_copies_found found;
	struct ptc_older bridge;          /* the job's then; snapshot 0: it had none */
	char unbridged[PTC_NAME_MAX + 1]; /* a node without its part of it, as ptc_older_ask_bridge says; "": none */
	struct ptc_copies_doc next;
	char **targets; /* of next: nodes that get copies */
	size_t ntargets;
	/* Nodes that are up and lack tables that the documents name there. Empty if no other node has some bytes: the
	 * lost tables may then be the only copy. */
	char (*without)[PTC_NAME_MAX + 1];
	size_t nwithout;
};
/* pushing.c: [loop] nodes pull what c->next says; then c->pushed, with how each ended in c->pushes. */
void ptc_copy_keeper_push(struct ptc_copy_keeper *c, char *const *targets, size_t n);
void ptc_copy_keeper_cancel(struct ptc_copy_keeper *c);
void ptc_copy_keeper_cancel_push(struct ptc_copy_keeper_push *p);
void ptc_copy_keeper_pushes_done(struct ptc_copy_keeper *c);
/* Compares the digests of the nodes that succeeded with the manifest's. If a digest needs other nodes' boxes, these
 * give theirs. Then c->checked. */
void ptc_copy_keeper_check(struct ptc_copy_keeper *c);
/* naming.c: [loop] writes c->next; then c->named. The second only reads what etcd has; then c->read. */
void ptc_copy_keeper_name(struct ptc_copy_keeper *c), ptc_copy_keeper_read(struct ptc_copy_keeper *c);
