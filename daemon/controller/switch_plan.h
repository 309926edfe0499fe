/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of switches: from a request to a feasible switch (plan/). Blocking, so not on the loop, unless a function says
 * otherwise.
 *
 * Failure modes: more devices asked for than are known (PTC_ENODEVICES), a rule that does not fit (PTC_ELAYOUT), bytes
 * without a live source (PTC_ELOST), a request that contradicts itself (PTC_EINVAL), memory. */
#pragma once

#include "daemon/cluster/events/event_doc.h"
#include "daemon/documents/documents.h"
#include "daemon/planning/planning.h"
#include "reshard/place/place.h"

struct ptc_controllers;

/* Who has chosen the configuration, and why. */
struct ptc_plan_chosen {
	struct ptc_plan_choice choice; /* by NULL: it was given */
	/* by the planner; else zeros */
	char why[PTC_PLANNING_WHY_MAX];
	bool calibrated, profiled; /* as in the advice */
	struct ptc_advice_row row; /* the candidate; owned */
};
enum ptc_plan_mode { PTC_PLAN_UNASKED, PTC_PLAN_START, PTC_PLAN_RESTART, PTC_PLAN_REBUILD };
/* A node of the cluster, or one that only the job's documents name. */
struct ptc_plan_node {
	char name[PTC_NAME_MAX + 1];
	const char *state; /* "up", "drained" or "down"; static */
	uint32_t devices;
	bool counted; /* the rest is known: bytes that enter it and leave it, that it will hold, and may hold */
	int64_t in_bytes, out_bytes, held_bytes;
	uint64_t ceiling_bytes;
};
/* How far new ranks of a job with `build: ahead` get before the old ones stop. */
struct ptc_plan_build {
	const char
		*level; /* "memory": they build; "imports": they build once the old ones have ended; NULL: not asked */
	char why[240];
};
/* What a plan says about a switch. Its owner frees it with ptc_plan_report_free. */
struct ptc_plan_report {
	char job[PTC_NAME_MAX + 1];
	bool has_from; /* a generation has the job's state now */
	struct ptc_generation_doc from, to;
	enum ptc_plan_mode *modes; /* of each rank of `to`, what happens to the process there */
	struct ptc_plan_node *nodes;
	size_t nnodes;
	struct ptc_groups groups;
	bool counted; /* totals are known, because what the ranks will hold is */
	struct ptc_plan_totals totals;
	struct ptc_blobs_review blobs; /* text "": nothing, or not asked for */
	struct ptc_plan_chosen chosen;
	struct ptc_plan_build build;
	struct ptc_planning_leaves leaves; /* warning_s 0: not asked for, or not known */
	/* A node without room for the bridge of a job with copies (docs/failures.md, "The window"); "": none is known
	 */
	char window[PTC_NAME_MAX + 1];
};
struct ptc_plan_report *ptc_plan_report_free(struct ptc_plan_report *r); /* NULL ok */
/* As JSON (docs/control.md). NULL: out of memory. */
json_t *ptc_plan_report_json(const struct ptc_plan_report *r);
/* Where the ranks of a generation are, as JSON. modes: what happens to the process of each; NULL: nothing is said of
 * it. NULL: out of memory. */
json_t *ptc_plan_ranks_json(const struct ptc_generation_doc *g, const enum ptc_plan_mode *modes);

struct ptc_plan_request {
	const char *config; /* NULL or "": the job's table or the planner chooses one for gpus */
	uint32_t gpus;
	double horizon_s; /* for the planner; 0: what the job's changes say (docs/planner.md) */
	int objective;    /* for the planner: enum ptc_objective */
	bool or_same;     /* without config and gpus: as the job is, or the largest of its table that fits ... */
	bool or_one;      /* ... or, if none fits, one rank */
	bool trains;     /* ranks run, and others are to take their place: with `build: ahead`, whether there is room */
	bool at_rest;    /* no rank runs: nodes are asked whether they have the record's table ... */
	const bool *has; /* ... unless they were: the answers of ptc_lost_ask on the view; NULL: they were not */
	bool runs;       /* a person wants ranks to run there: the job's min_gpus and max_gpus hold */
	bool ranks;      /* ranks will run there: on devices only that no other job has */
	bool packed;     /* an import: where a layout is known, a device may have the bytes of several ranks */
	bool unattended; /* no person has asked for the plan, so no person would read why a program refuses a
			    configuration */
	char **nodes;
	size_t nnodes;                      /* use only these nodes; 0: any */
	bool (*gone)(const void *gone_arg); /* true: nobody waits for advice any more; may be NULL */
	const void *gone_arg;
	enum ptc_devices_lack *ret_lack; /* set with PTC_ENODEVICES: whether other jobs have the devices; may be NULL */
};
struct ptc_planned {
	struct ptc_generation_doc to;
	struct ptc_plan_report *plan; /* NULL: there is none */
	bool stays;                   /* the planner finds that no switch pays; `to` is the present generation */
	/* Nodes that are up and have lost the copies that the document names there: the plan counts on none of these.
	 */
	char (*emptied)[PTC_NAME_MAX + 1];
	size_t nemptied;
};
void ptc_planned_done(struct ptc_planned *p);
/* Plans a switch. v->from is set, or v's generation is 0. Blocking; not on the loop. */
int ptc_plan_switch(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_plan_request *req,
		    struct ptc_planned *ret_planned, struct ptc_error *err);
/* Gives the planner's advice for req->gpus devices or, with `first`, for each number from there on. The caller ends it
 * with ptc_advice_done. Blocking; not on the loop. */
int ptc_plan_advise(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_plan_request *req,
		    uint32_t first, struct ptc_advice *ret, struct ptc_error *err);

/* The plan of a switch, made again once the layout of v->to is known. Its bounds are over the devices of the pool. */
struct ptc_plan_pool; /* made on the loop; NULL: out of memory */
struct ptc_plan_pool *ptc_plan_pool_new(struct ptc_controllers *all, const struct ptc_view *v);
struct ptc_plan_pool *ptc_plan_pool_free(struct ptc_plan_pool *p); /* NULL ok */
/* v: as given to ptc_plan_pool_new. The new plan says nothing about who has chosen, about processes, and about blobs.
 * Blocking; any thread but the loop. */
int ptc_plan_of_layout(const struct ptc_plan_pool *pool, const struct ptc_view *v, struct ptc_plan_report **ret,
		       struct ptc_error *err);
/* Whether a plan (NULL ok) says that new ranks build before the old ones stop. */
bool ptc_plan_builds_ahead(const struct ptc_plan_report *r);
/* Moves `chosen`, who has chosen the configuration, and `build` out of `from` (NULL ok) into `to`. */
void ptc_plan_report_inherit(struct ptc_plan_report *to, struct ptc_plan_report *from);

/* older/older_target.c: `from` of an older snapshot's view on other nodes, for a rollback where nodes of the job are
 * lost: each part stays where it is, or goes to a usable node (by v's numbers). Pure. PTC_ENODEVICES, memory. */
int ptc_older_target(const struct ptc_view *v, const bool *usable, struct ptc_generation_doc *ret,
		     struct ptc_error *err);
