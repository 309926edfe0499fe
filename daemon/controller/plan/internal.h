/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that plan a switch. Nothing here runs on the loop unless a function says so. */
#pragma once

#include "base/buf.h"
#include "daemon/controller/controller.h" /* and switch_plan.h */
#include "formats/ranks/rank_rows.h"
#include "reshard/place/place.h"

/* device_pool.c: the devices that a plan may use. Whoever plans owns it. It begins as zeros, except for the members
 * `all`, `req` and `v`. */
struct ptc_device_pool {
	struct ptc_controllers *all;
	const struct ptc_plan_request *req; /* NULL: any node */
	char **names;                       /* plan node number -> name; the view's nodes come first */
	size_t nnames, nall; /* names[nnames] to names[nall - 1] are down and have nothing of the job; plans do not
				number them */
	const char **states; /* of all: "up", "down", "drained"; NULL: the cluster knows it no longer */
	uint32_t *counts;    /* of all: devices */
	bool *usable;        /* as a source */
	uint64_t *ceilings;  /* of chunks; 0: not known, the node is down */
	struct ptc_planning_node *nodes; /* what those that are up say of their devices */
	uint32_t *rack_of;               /* of those that are up: its rack's number */
	const char **racks;              /* their names; nodes that name no rack are together in the rack "" */
	size_t nracks;
	struct ptc_device *devices;
	size_t ndevices;
	bool ranks, shares; /* ranks: no devices of other jobs; shares: but those that may be shared */
	struct {
		size_t n;
		enum ptc_devices_lack lack;
		char job[PTC_UUID_TEXT]; /* the last one named */
		struct ptc_buf text;     /* "job a has n0:0, n0:1; job b has n1:0" */
	} taken;
	struct ptc_buf ill; /* devices that are not well, for a message */
	const struct ptc_view *v;
	struct ptc_copies_doc copies; /* the job's; v has none of them if ranks run */
	const uint32_t *node_of_rank; /* the planner's choice; NULL: wherever the fewest bytes move */
	int rc;
};
/* [loop] arg: the pool. Sets its rc. */
void ptc_device_pool_collect(void *arg);
/* The same from another thread, and checks that the request's nodes are known. */
int ptc_device_pool_fill(struct ptc_controllers *all, struct ptc_device_pool *p, struct ptc_error *err);
void ptc_device_pool_done(struct ptc_device_pool *p);
/* Whether the device is in the pool and not used yet (used: by the pool's numbers); *ret: its number. */
bool ptc_device_pool_has(const struct ptc_device_pool *p, const bool *used, struct ptc_device want, size_t *ret);
/* Makes a copy of the pool without the devices of nodes that `leave` marks (NULL: none). ptc_free its `devices`; it
 * borrows everything else from p. */
int ptc_device_pool_without(const struct ptc_device_pool *p, const bool *leave, struct ptc_device_pool *ret);
/* Takes the devices of these nodes out of the pool. */
int ptc_device_pool_leave(struct ptc_device_pool *p, const bool *leave, struct ptc_error *err);
/* Options for placing: which devices may be used, and which racks keep TP groups together. Borrows from the pool. */
struct ptc_place_opts ptc_device_pool_opts(const struct ptc_device_pool *p);
/* Sets PTC_ENODEVICES, with a line that says which devices are not free, and why. */
int ptc_device_pool_too_few(const struct ptc_device_pool *p, uint32_t world, struct ptc_error *err);
/* For the planner, in the order of the pool's nodes. The caller ends it with ptc_planning_shape_done. */
int ptc_device_pool_shape(const struct ptc_device_pool *p, struct ptc_planning_shape *ret);

/* placing.c: the layouts of a switch, where its ranks are, and what moves. Begins as zeros. */
struct ptc_plan_layouts {
	const struct ptc_spec *spec;
	const struct ptc_layout *from, *to; /* to NULL: what the ranks will hold is not known yet */
	void *from_ref, *to_ref;
	struct ptc_allocation from_alloc, to_alloc;
	/* if there are copies: `from` then contains them (copies are sources, too), and copied_at says where it lies */
	struct ptc_allocation copied_at;
	struct ptc_view_copied copied;
	struct ptc_plan *plan;
	struct ptc_plan *need; /* the same layout brought to empty nodes: in_bytes is what each node will hold */
	struct ptc_groups groups;
	int64_t bound; /* no allocation needs fewer bytes between nodes */
	bool exact;
};
void ptc_plan_layouts_done(struct ptc_plan_layouts *l);
/* A layout that ranks have declared (layout_hash), or that of config by the job's rules (layout_hash ""). The caller
 * releases *ret_ref with ptc_layouts_release. */
int ptc_plan_layout_get(struct ptc_controllers *all, const struct ptc_view *v, const char *layout_hash,
			const char *config, const struct ptc_spec **ret_spec, const struct ptc_layout **ret_layout,
			void **ret_ref, struct ptc_error *err);
/* The layout that holds state now, if any does, and where its ranks are. */
int ptc_plan_layout_from(struct ptc_controllers *all, const struct ptc_view *v, struct ptc_plan_layouts *l,
			 struct ptc_error *err);
/* Places and counts; with l->to_alloc given, only counts. */
int ptc_plan_place(const struct ptc_device_pool *p, struct ptc_plan_layouts *l, struct ptc_error *err);
/* Places ranks whose shards are not known yet. They stay where they are, unless another placement has fewer TP groups
 * across racks or split over nodes. */
int ptc_plan_place_unknown(const struct ptc_device_pool *p, const struct ptc_config *c, uint32_t world,
			   struct ptc_plan_layouts *l, struct ptc_error *err);
/* Both layouts of a switch to config, placed and counted. *ret_known: the hash of the layout that its ranks declared
 * before, if they did; ptc_free it. */
int ptc_plan_layouts_make(struct ptc_controllers *all, const struct ptc_job_desc *desc, const struct ptc_view *v,
			  const struct ptc_config *config, const struct ptc_device_pool *p, struct ptc_plan_layouts *l,
			  char **ret_known, struct ptc_error *err);

/* pricing.c: what the planner asks about switches of one job. Begins as zeros, but for all, v, desc and p. */
struct ptc_pricer {
	struct ptc_controllers *all;
	const struct ptc_view *v;
	const struct ptc_job_desc *desc;
	const struct ptc_device_pool *p;
	struct ptc_plan_layouts now; /* what holds the state, once for all candidates */
	struct ptc_planning_shape shape;
	bool *now_leaves;
	uint32_t *now_nodes;
};
/* The question to the planner about the job on the pool's devices; it borrows from pr. End pr in any case. */
int ptc_pricer_ask(struct ptc_pricer *pr, const struct ptc_plan_request *req, struct ptc_planning_ask *ret,
		   struct ptc_error *err);
void ptc_pricer_done(struct ptc_pricer *pr);

/* choice.c: which configuration. *ret_chosen, of zeros before: who chose, and why. *ret_stays: the planner finds that
 * no switch pays. Nodes that the planner does not use are taken out of the pool. The pool also gets the nodes that the
 * planner chose for ranks (*ret_nodes, which the caller frees after the pool). A job without a model is scaled over dp,
 * as is one that has never said its batch. */
int ptc_plan_choose_config(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_job_desc *desc,
			   struct ptc_device_pool *p, const struct ptc_plan_request *req, struct ptc_config *ret_config,
			   struct ptc_plan_chosen *ret_chosen, bool *ret_stays, uint32_t **ret_nodes,
			   struct ptc_error *err);
/* Refuses a configuration beyond the job's min_gpus and max_gpus: the job would not be started again on it. */
int ptc_plan_check_size(const struct ptc_job_desc *desc, const struct ptc_config *config, struct ptc_error *err);

/* build_room.c: whether new ranks find memory beside the old ones, and what is known for that. */
struct ptc_build_node {
	const char *name;
	char address[256];      /* "": it is down */
	uint32_t before, after; /* number of old ranks there, and of new ones */
	uint64_t store;         /* bytes that these hold, each byte once: the switch may put so much into its store */
	struct ptc_rank_rows rows;       /* of the job's ranks there */
	struct Ptc__V1__RoomReply *room; /* NULL: it has not answered, or is of an earlier version ... */
	const char *silent;              /* ... "did not answer in time", or the like; NULL: it has answered */
};
/* The most that one rank has taken, or will hold; 0: not known. */
struct ptc_build_took {
	uint64_t host, device;                   /* the ranks that train: memory of the host, and of a device */
	uint64_t declared, declares;             /* bytes of tensors, before and after */
	uint64_t measured_host, measured_device; /* when the new configuration ran before */
	bool on_devices;                         /* tensors lie in memory of devices */
};
/* Adds what the node says of the ranks of that incarnation. */
void ptc_build_took_add(const struct ptc_build_node *n, uint64_t generation, uint64_t incarnation,
			struct ptc_build_took *t);
void ptc_build_decide(const struct ptc_build_node *nodes, size_t n, const struct ptc_build_took *took,
		      const struct ptc_generation_doc *to, struct ptc_plan_build *ret);
/* Asks the nodes, all at once, for at most some seconds. The ranks of the pool's view run. Any thread but the loop. */
void ptc_plan_build_room(const struct ptc_device_pool *p, const struct ptc_generation_doc *to,
			 const struct ptc_plan_layouts *l, struct ptc_plan_build *ret);

/* window.c: the name of a node that has no room for the bridge of a live job with copies; NULL: none is known. It
 * borrows from p. */
const char *ptc_plan_window(const struct ptc_device_pool *p, const struct ptc_view *v, const struct ptc_job_desc *desc,
			    const struct ptc_plan_layouts *l);

/* plan_answer.c: the document of the generation to come. It names only nodes that ranks use, in order of first use. */
int ptc_plan_doc(const struct ptc_device_pool *p, const struct ptc_config *config, const struct ptc_allocation *a,
		 struct ptc_generation_doc *ret_doc, struct ptc_error *err);
/* Fills in the report of a plan, except for who has chosen the configuration, and for blobs. desc NULL: nobody asks
 * what happens to processes. 0, or PTC_ENOMEM. */
int ptc_plan_report_fill(const struct ptc_device_pool *p, const struct ptc_view *v, const struct ptc_job_desc *desc,
			 const struct ptc_generation_doc *to, const struct ptc_plan_layouts *l,
			 struct ptc_plan_report *r);
