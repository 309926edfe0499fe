/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of switches: from a request to a feasible switch (plan/). Blocking, so not on the loop, unless a function says
 * otherwise.
 *
 * Failure modes: more devices asked for than are known (PTC_ENODEVICES), a rule that does not fit (PTC_ELAYOUT), bytes
 * without a live source (PTC_ELOST), a request that contradicts itself (PTC_EINVAL), memory. */
#pragma once

#include "daemon/controller/controller.h"

struct ptc_plan_request {
	const char *config; /* NULL or "": the job's table or the planner chooses one for gpus */
	uint32_t gpus;
	double horizon_s; /* for the planner; 0: what the job's changes say (docs/planner.md) */
	int objective;    /* for the planner: enum ptc_objective */
	bool or_same;     /* without config and gpus: as the job is, or the largest of its table that fits ... */
	bool or_one;      /* ... or, if none fits, one rank */
	bool at_rest;     /* no rank runs: nodes are asked whether they have the record's table */
	bool runs;        /* a person wants ranks to run there: the job's min_gpus and max_gpus hold */
	bool ranks;       /* ranks will run there: on devices only that no other job has */
	bool unattended;  /* nobody has asked for it, and nobody reads what a program refuses */
	char **nodes;
	size_t nnodes;                      /* use only these nodes; 0: any */
	bool (*gone)(const void *gone_arg); /* true: nobody waits for advice any more; may be NULL */
	const void *gone_arg;
	enum ptc_devices_lack *ret_lack; /* set with PTC_ENODEVICES, if it is so for others' devices; may be NULL */
};
struct ptc_planned {
	struct ptc_generation_doc to;
	char *json; /* docs/control.md describes it */
	struct ptc_plan_choice choice;
	bool stays; /* the planner finds that no switch pays; `to` is the present generation */
	/* Nodes that are up and have lost the copies that the document names there: the plan counts on none of these.
	 */
	char (*emptied)[PTC_NAME_MAX + 1];
	size_t nemptied;
	char why[PTC_PLANNING_WHY_MAX];
};
void ptc_planned_done(struct ptc_planned *p);
/* Plans a switch. v has from (or generation 0). Blocking; not on the loop. */
int ptc_plan_switch(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_plan_request *req,
		    struct ptc_planned *ret_planned, struct ptc_error *err);
/* Gives the planner's advice for req->gpus devices or, with `first`, for each number from there on: JSON
 * (docs/control.md). Blocking; not on the loop. */
int ptc_plan_advise(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_plan_request *req,
		    uint32_t first, json_t **ret_json, struct ptc_error *err);

/* The plan of a switch, made again once the layout of v->to is known. Its bounds are over the devices of the pool. */
struct ptc_plan_pool; /* made on the loop; NULL: out of memory */
struct ptc_plan_pool *ptc_plan_pool_new(struct ptc_controllers *all, const struct ptc_view *v);
struct ptc_plan_pool *ptc_plan_pool_free(struct ptc_plan_pool *p); /* NULL ok */
/* v: as given to ptc_plan_pool_new. planned: the first plan, whose choice stays; NULL: there is none. Blocking; any
 * thread but the loop. */
int ptc_plan_of_layout(const struct ptc_plan_pool *pool, const struct ptc_view *v, const char *planned, char **ret_json,
		       struct ptc_error *err);
