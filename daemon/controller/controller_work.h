/* SPDX-License-Identifier: Apache-2.0 */
/* The controller's work off the loop: tasks for one step of the core, and comparing the digests of nodes' answers. A
 * task owns copies of everything that it needs, because the loop may end the switch meanwhile. Failure modes: the core
 * hears a step's failure. If there is no memory for a task itself, the daemon ends (ptc_ctl_task_new). */
#pragma once

#include "daemon/agent/geometry/geometry.h"
#include "daemon/cluster/cluster.h"
#include "daemon/core/job_core.h"
#include "daemon/documents/documents.h"

struct ptc_controller;
struct ptc_controllers;
struct Ptc__V1__PullReply;
struct Ptc__V1__WorkersReply;

/* A node's answer to Pull, Capture or Build. */
struct ptc_pull_result {
	uint32_t node; /* cluster number */
	uint32_t *need_index;
	uint64_t *digests; /* both move to the thread that compares them */
	size_t n;
	uint64_t wire_bytes, near_bytes, copied_bytes, verified_bytes;
	struct ptc_link_use *links; /* of Pull: without `to`, which is the node */
	size_t nlinks;
	struct Ptc__V1__PullReply *capture;   /* of Capture: its last message, for rank states */
	struct Ptc__V1__WorkersReply *layout; /* of Build: the declarations of the node's ranks */
};

/* Work for one step of the core, off the loop. It is the first member of a struct with copies of everything it needs.
 */
struct ptc_ctl_task {
	struct ptc_controller *ctl;
	uint64_t seq; /* of the core's request */
	int status;   /* of the first step that failed; later steps do nothing */
	struct ptc_error err;
	enum ptc_job_event_kind answer;
	void (*adopt)(struct ptc_ctl_task *t);   /* on the loop, after success: gives the results to the controller */
	void (*failed)(struct ptc_ctl_task *t);  /* on the loop, after a failure; NULL: nothing is to be done */
	void (*release)(struct ptc_ctl_task *t); /* on the loop: frees everything but the task itself */
};
/* Makes a task of that size, all zero. Never NULL: without the step the job would stop for good, so the daemon ends,
 * and its restart resumes the job. */
void *ptc_ctl_task_new(struct ptc_controller *ctl, size_t size, uint64_t seq);
/* Runs the steps in the job's lane, and then gives the core the answer. */
void ptc_ctl_task_run(struct ptc_ctl_task *t, const struct ptc_task_step *steps);

/* controller_state.c: makes the core's switch from that intent, all but `stored`. `to`: nodes of the view's `to`. The
 * switch borrows `from` and `to`. */
struct ptc_switch ptc_controller_switch(const struct ptc_controller *ctl, const struct ptc_intent_doc *in,
					uint32_t *from, uint32_t nfrom, uint32_t *to);

/* taking/lock_taking.c: which node gets a job's lock. */
struct ptc_lock_tenure {
	int64_t since_ns; /* when it was seen that this node cannot read the job's description; 0: it was not */
	unsigned up;      /* nodes, as last seen */
	bool gives_back;  /* the lock is being given back */
};
void ptc_locks_tick(struct ptc_controllers *all); /* every 200 ms: tries for free locks */
/* Called when the documents that the controller needs have been read, or could not be. If the status says that this
 * node cannot read them at all, the lock is given back, and the result is true. */
void ptc_lock_readable(struct ptc_controller *ctl);
bool ptc_lock_unreadable(struct ptc_controller *ctl, int status, const char *why);

/* controller_state.c:
 * - is_new: whether the switch under way starts ranks of a job that trains on the node, where it has none.
 * - gave_up: whether the job's ranks on the node were given up, and the job is to start again.
 * - passes: whether such a node is down and silent (a new one: or lost), or one whose held ranks are copied.
 * - unreachable: whether the job trains, has ranks on the node, which is down, and nobody is there: its ranks may be
 * given up if no step ends. due: ranks wait for a snapshot, which waits for the node; then its ptcd, if it says nothing
 * at PTC_SILENT_PROBES questions, is like a machine that is not there. loss/silent_nodes.c asks the ptcd of such nodes,
 * and aborts switches that wait for a silent one; loss/unreachable.c asks their machines. Call both each 200 ms. */
#define PTC_SILENT_PROBES 3
bool ptc_controller_is_new(const struct ptc_controller *ctl, const char *node);
bool ptc_controller_gave_up(const struct ptc_controller *ctl, const char *node);
bool ptc_controller_passes(const struct ptc_controller *ctl, uint32_t node);
bool ptc_controller_unreachable(const struct ptc_controller *ctl, uint32_t node, bool due);
void ptc_silent_nodes_tick(struct ptc_controller *ctl); /* may free ctl */
void ptc_unreachable_tick(struct ptc_controllers *all);
void ptc_unreachable_free(struct ptc_controllers *all);

/* older/older.c: snapshots that the job keeps beside the committed one. */
struct ptc_older_kept {
	struct ptc_older_doc doc;     /* as last read or written */
	struct ptc_copies_doc copies; /* of its bridge */
	int64_t revision;             /* mod_revision of its key; 0: there is none */
	size_t most;                  /* so many older snapshots fit, as the last switch that found no room has shown */
	/* Generations of the record that get no bridge: there was no room for one; each region is on as many nodes as
	 * `copies` asks for, without copies. 0: none. */
	uint64_t no_room, bare;
	uint64_t unnamed; /* that generation has no bridge because of long names, and an event has said so */
	int64_t copied;   /* mod_revision of a record whose copies are complete */
	uint32_t asked;   /* copies that the job asks for, as the keeper has seen; 0: not known yet */
	bool dropping;    /* the bridge is being taken from the document */
	bool left_out;    /* the last Finish has said that snapshots are left out */
	/* A node that dropped its tables of the bridge for want of room, or with `gone` nobody knows why; "": none */
	char yielded[PTC_NAME_MAX + 1];
	bool gone;
	/* tell.nodes: may still have tables of dropped snapshots, as no Finish told them. tell_all: too many to name */
	struct ptc_older tell;
	bool tell_all;
};
/* Takes a document that etcd has now. Nodes drop tables that it no longer names. copies: of its bridge, if this is
 * another one than before; they are taken. */
void ptc_older_adopt(struct ptc_controller *ctl, const struct ptc_older_doc *doc, int64_t revision,
		     struct ptc_copies_doc *copies);
/* The tables that the document names on that node, with those that have copies of the bridge. */
void ptc_older_tables(const struct ptc_older_kept *k, const char *node, ptc_copies_table_fn fn, void *arg);
/* Of these, the bridge's that are no entry's. */
void ptc_older_bridge_tables(const struct ptc_older_kept *k, const char *node, ptc_copies_table_fn fn, void *arg);
/* Of these, those that a Prepare of the switch may drop: none that the record's copies name, and none if the switch
 * goes back to the bridge. */
void ptc_older_yields(const struct ptc_controller *ctl, const char *node, ptc_copies_table_fn fn, void *arg);
size_t ptc_older_tables_max(const struct ptc_older_kept *k);
/* The snapshot of the present record, as an entry; snapshot 0: it cannot be kept. */
struct ptc_older ptc_older_of_record(const struct ptc_controller *ctl);
/* Whether the job keeps that snapshot, and it is not a bridge that is being taken from the document. */
bool ptc_older_kept(const struct ptc_controller *ctl, uint64_t snapshot);
/* Prunes by the job's description. If that cannot be read now, everything stays. *ret_copies: its `copies`; count 0:
 * not known. May block; not on the loop. */
void ptc_older_keep(const struct ptc_documents *docs, const struct ptc_meta_doc *meta, size_t most,
		    struct ptc_older_doc *doc, struct ptc_job_copies *ret_copies);
/* A switch has found no room on that node, which has dropped its tables of the bridge: the bridge goes once the job is
 * idle, or with the next commit. The key: one of these tables; nothing is done if the bridge has no such one. */
void ptc_older_yielded(struct ptc_controller *ctl, const char *node, uint64_t generation, uint64_t snapshot);
/* older/bridge_there.c: names a node that is up and has lost its part of the bridge, if the other nodes, with those
 * that are down, do not have all of it; "": none. Blocks; any thread but the loop. */
void ptc_older_ask_bridge(struct ptc_controllers *all, const struct ptc_meta_doc *meta, const struct ptc_older_doc *doc,
			  char ret_node[PTC_NAME_MAX + 1]);
/* That has been found: the bridge goes once the job is idle, or with the next commit, unless it is another one now. */
void ptc_older_bridge_gone(struct ptc_controller *ctl, const struct ptc_older *bridge, const char *node);
/* The nodes with ranks get another Finish once the job is idle. */
void ptc_older_tell_ranks(struct ptc_controller *ctl);
/* The record's generation gets no bridge, for the names of its nodes are too long for the list. */
void ptc_older_no_bridge(struct ptc_controller *ctl);
/* `asked` and `bare` are known for the record: if that is so, it is said. */
void ptc_older_check_names(struct ptc_controller *ctl);
/* The record's copies are complete, or no node is left for more: the bridge goes. Try again if it stays. */
void ptc_older_bridged(struct ptc_controller *ctl);
/* A node has no room for the record's copies: the bridge goes before they are there. False: there is none. */
bool ptc_older_bridge_yields(struct ptc_controller *ctl, const char *node);
/* For a rollback: gives the switch's new generation the content of ctl->source. 0 or PTC_ENOMEM. */
int ptc_older_aim(struct ptc_controller *ctl);
/* The nodes that have the snapshot which a rollback goes back to; ptc_free it. NULL: out of memory. */
uint32_t *ptc_older_sources(struct ptc_controller *ctl, uint32_t *ret_n);
/* Every 200 ms while no new ranks build ahead: if the job is idle, tells the nodes in `tell`. May free ctl. */
void ptc_older_tick(struct ptc_controller *ctl);
/* A switch has failed for want of room on that node (cluster number). Drops the bridge, or else the oldest snapshot
 * that is kept beside the committed one, and appends that to the text. Does nothing if neither is on that node. */
void ptc_older_make_room(struct ptc_controller *ctl, uint32_t node, char *text, size_t size);

/* copies/copy_keeper.c: for Finish. While copies of the record's snapshot are on their way, so many of the snapshots
 * that are due are left out: the next one would begin the copies anew, and the bridge would get older and older. */
uint32_t ptc_copy_keeper_leaves_out(const struct ptc_controller *ctl);
/* The same for Capture, whose ranks go on before the commit: as if copies were then on their way. */
uint32_t ptc_copy_keeper_will_leave_out(const struct ptc_controller *ctl);
/* After a commit, before its Finish. asked: what the job asks for; count 0: not known. */
void ptc_copy_keeper_saw_commit(struct ptc_controller *ctl, const struct ptc_job_copies *asked);

/* controller_state.c: writes a blob while the lock with that fence is held. May wait. */
int ptc_controller_put_blob(const char *uuid, int64_t fence, struct ptc_etcd *e, const char *data, size_t len,
			    char ret_hash[PTC_HASH_HEX], struct ptc_error *err);

/* Compares the digests of nodes, by their answers to Pull or Capture. Takes the answers. */
struct ptc_digests;
struct ptc_merge {
	struct answer {
		char node[PTC_NAME_MAX + 1];
		uint32_t *need_index;
		uint64_t *digests;
		size_t n;
	} * answers; /* owned, because the loop may end the switch meanwhile */
	size_t nanswers;
	bool some; /* nodes that have not answered are left out; the others have to hold every tensor */
};
void ptc_merge_take(struct ptc_merge *m, struct ptc_controller *ctl);
void ptc_merge_done(struct ptc_merge *m);
/* What nodes have answered, for ptc_digests_free. */
int ptc_merge_collect(const struct ptc_merge *m, const struct ptc_geometry *g, struct ptc_digests **ret,
		      struct ptc_error *err);
/* ret_items: a digest for each item of g's spec; ptc_free it. */
int ptc_merge_digests(const struct ptc_merge *m, const struct ptc_geometry *g, const uint64_t *expected,
		      size_t nexpected, uint64_t **ret_items, size_t *ret_nitems, struct ptc_error *err);

/* ahead/declared_layout.c: the layout document of what v's new ranks have declared; ptc_free it. PTC_ELAYOUT: the
 * declarations contradict each other, the record's state or the job's description. May wait. */
int ptc_declared_document(struct ptc_controllers *all, const struct ptc_view *v,
			  struct Ptc__V1__WorkersReply *const *replies, size_t nreplies, char **ret, size_t *ret_len,
			  struct ptc_error *err);
/* Makes that document and writes it down, in the job's lane. Takes what v owns; borrows replies until done runs, on the
 * loop, with the document's hash if status is 0. */
void ptc_declared_write(struct ptc_controller *ctl, struct ptc_view *v, struct Ptc__V1__WorkersReply *const *replies,
			size_t nreplies, void (*done)(void *arg, int status, const char *why, const char *hash),
			void *arg);

/* recovery/recovery_plan.c: whether the job could be started again if that node was lost, and other nodes had its
 * bytes. v is the record's, with its nodes; their addresses are found anew. PTC_ENODEVICES and others, as
 * ptc_recovery_plan says. May wait. */
int ptc_recovery_without(struct ptc_controller *ctl, const struct ptc_job_desc *desc, struct ptc_view *v,
			 const char *node, struct ptc_error *err);
