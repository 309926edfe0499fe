/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's planner: which configuration a job takes on so many devices. It feeds planner/ with the job's model, the
 * cluster's profile and the job's measured steps, and remembers what planner/ found.
 *
 * Threads: any but the loop, and no task that others wait for, unless a function says otherwise; functions read etcd
 * and compute, for up to a second. One struct ptc_planning per daemon; its owner frees it after all callers are gone.
 *
 * Failure modes: PTC_ENOTFOUND (the job has no model that is known and no measured step, or nothing says its global
 * batch: there is nothing to plan with), PTC_EINVAL (an impossible description or profile), PTC_ENODEVICES (nothing
 * fits). While etcd is unreachable the last profile and measurements that were read are used. */
#pragma once

#include "daemon/cluster/cluster.h"
#include "daemon/planning/advice/advice.h"
#include "daemon/planning/kinds/kinds.h"
#include "daemon/planning/links/links.h"
#include "formats/job/job.h"
#include "formats/json.h"

#include <stdatomic.h>

struct ptc_planning;
/* devices_file: of ptcd.yaml; NULL: the installed one. */
int ptc_planning_new(struct ptc_cluster *cluster, const char *devices_file, struct ptc_planning **ret_planning,
		     struct ptc_error *err);
struct ptc_planning *ptc_planning_free(struct ptc_planning *p); /* NULL ok */

/* The devices of a job. A shape is freed with ptc_planning_shape_done. */
struct ptc_planning_shape {
	struct ptc_planning_node *nodes;
	size_t nnodes;
	uint32_t per_node; /* devices of most nodes that have any */
	uint32_t devices;  /* of all */
};
/* [loop] Of all nodes that are up and not drained. Empty where memory is short. */
struct ptc_planning_shape ptc_planning_shape(struct ptc_cluster *c);
/* Fills in the sums. */
void ptc_planning_shape_sum(struct ptc_planning_shape *s);
void ptc_planning_shape_done(struct ptc_planning_shape *s);
/* Makes a ptc_planning_node of what the node says of its devices. devices: how many of them may be used. */
struct ptc_planning_node ptc_planning_node_of(const struct ptc_node_doc *doc, uint32_t devices);

/* Bytes per second: of a node's network each way, and within a node, all its devices together. */
struct ptc_planning_links {
	double node_bytes_s, within_bytes_s;
};
/* The bytes that a switch to a configuration moves. If they are not exact, bytes is an upper bound, and bytes_least a
 * lower one. */
struct ptc_planning_moves {
	double bytes, bytes_least; /* between nodes */
	double seconds;            /* of moving `bytes` */
	bool exact;
};
struct ptc_planning_where {
	const bool *leave;     /* of each node of the shape, whether it is not to be used; NULL: all may be */
	const uint32_t *nodes; /* of each rank, its node in the shape; NULL: wherever the fewest bytes move */
};
/* ret_nodes: of each rank, the node that it gets. 0, or an error: the configuration cannot be reached and is left out.
 */
typedef int (*ptc_planning_price_fn)(void *arg, const struct ptc_config *to, const struct ptc_planning_where *where,
				     const struct ptc_planning_links *links, struct ptc_planning_moves *ret,
				     uint32_t *ret_nodes);
/* For sets of ranks, the bytes that enter each node of the shape if it gets just that set: ret[set * nodes + node].
 * set_of: of each rank. An error: it is not known. */
typedef int (*ptc_planning_lacks_fn)(void *arg, const struct ptc_config *to, const uint32_t *set_of, uint32_t nsets,
				     double *ret);

struct ptc_planning_ask {
	const char *uuid, *spec_hash; /* of the job */
	const struct ptc_job_desc *desc;
	const struct ptc_spec
		*held;             /* what its ranks have declared, for a model that is to be inferred; NULL: nothing */
	const char *held_id;       /* identifies `held`; NULL: nothing */
	const char *now;           /* the configuration that holds the state; NULL: none does */
	bool may_stay;             /* the job may also go on with its present configuration */
	bool live;                 /* ranks are to run afterwards: starting them counts */
	bool unattended;           /* nobody has asked: virtual stages only if ranks have promised them before */
	const bool *now_leaves;    /* nodes of the shape that it does not use now; NULL: not known */
	const uint32_t *now_nodes; /* of each rank of `now`, its node in the shape; NULL: not known */
	struct ptc_planning_shape shape;
	uint32_t gpus;    /* at most so many devices, 1..shape.devices */
	double horizon_s; /* 0: what the job's changes say (docs/planner.md) */
	enum ptc_objective objective;
	ptc_planning_price_fn price; /* NULL: switches are free */
	ptc_planning_lacks_fn lacks; /* with price */
	void *arg;
	bool (*gone)(const void *gone_arg); /* nobody wants the answer any more; NULL: somebody does */
	const void *gone_arg;
};
/* Who has chosen a configuration, and what the planner predicts of the switch to it. Borrows nothing. */
struct ptc_plan_choice {
	const char *by;      /* PTC_CHOICE_BY_PLANNER, "table" or "scaling of dp"; NULL: it was given */
	bool predicted;      /* by the planner: the next three are known */
	double pause_s;      /* of the switch */
	double break_even_s; /* after this time the switch has paid its pause back; INFINITY: never */
	double horizon_s;    /* to the next change; 0: not known */
};
#define PTC_CHOICE_BY_PLANNER "planner"
/* Freed with ptc_planning_answer_done. */
struct ptc_planning_answer {
	struct ptc_config config;
	bool stays; /* it is what is now, and no switch pays */
	struct ptc_plan_choice choice;
	uint32_t *nodes; /* of each rank of config, its node in the shape; NULL: wherever */
	bool *leave;     /* of each node of the shape, whether it is not to be used; NULL: all may be */
	struct ptc_advice advice;
};
void ptc_planning_answer_done(struct ptc_planning_answer *a);
/* The choice of planner/ alone; who else has a say (--config, the job's table) is ptc_plan_switch's business. */
int ptc_planning_choose(struct ptc_planning *p, const struct ptc_planning_ask *ask, struct ptc_planning_answer *ret,
			struct ptc_error *err);
/* The best of each number of devices from `first` to ask->gpus, by the frontier. PTC_ECANCELED: ask->gone. */
int ptc_planning_range(struct ptc_planning *p, const struct ptc_planning_ask *ask, uint32_t first,
		       struct ptc_advice *ret, struct ptc_error *err);

/* What a sample costs by its length under a configuration, with the coefficients that measured steps have given. Both
 * 0: there is no model. gpus, price and what goes with them are not looked at. */
struct ptc_length_cost ptc_planning_length_cost(struct ptc_planning *p, const struct ptc_planning_ask *ask,
						const struct ptc_config *config);

/* Checks `model:` and `space:` of a description, if it has them. Pure. */
int ptc_planning_check(const struct ptc_job_desc *desc, struct ptc_error *err);
/* Computes ahead what later calls look up, until *stop. It reports no failures: the later calls do. */
void ptc_planning_prepare(struct ptc_planning *p, const char *uuid, const char *spec_hash,
			  const struct ptc_job_desc *desc, const struct ptc_planning_shape *shape,
			  const atomic_bool *stop);

/* One node measures at a time, for two would halve each other's links. PTC_ESTATE: another does, and which. A node that
 * loses its lease has lost the lock. node: this one. Blocking. */
int ptc_planning_profile_lock(struct ptc_planning *p, const char *node, int64_t *ret_created, struct ptc_error *err);
void ptc_planning_profile_unlock(struct ptc_planning *p, int64_t created);
struct ptc_planning_links_found {
	const struct ptc_links *pairs;     /* of ptc_links_measure */
	const struct ptc_link_node *nodes; /* the cluster's: links between them that were not measured now are kept */
	size_t nnodes;
};
/* The cluster's profile (links/links.h). _show gives an empty one if there is none. _put replaces the profile (text of
 * a file, which it checks) and the links (copied), each if it is not NULL. *ret_changed: links that differ from what
 * they were; ptc_free its v. */
int ptc_planning_profile_show(struct ptc_planning *p, struct ptc_profile_doc *ret, struct ptc_error *err);
int ptc_planning_profile_put(struct ptc_planning *p, const char *profile, const struct ptc_planning_links_found *found,
			     struct ptc_profile_doc *ret, struct ptc_link_changes *ret_changed, struct ptc_error *err);
/* Takes what n links gave in a switch, and changes the profile by the rule of ptc_links_saw. *ret_changed: ptc_free its
 * v. */
int ptc_planning_links_saw(struct ptc_planning *p, const struct ptc_link_use *uses, size_t n,
			   struct ptc_link_changes *ret_changed, struct ptc_error *err);
/* When links were last found to be otherwise in a switch, Unix time; 0: never. Blocking. */
int64_t ptc_planning_links_changed_ms(struct ptc_planning *p);
/* What has been measured of the job; blocking. Returns the document's text; ptc_free it. NULL: there is none. */
struct ptc_measured_doc;
char *ptc_planning_measured(struct ptc_planning *p, const char *uuid, struct ptc_measured_doc *ret);
/* For a node that may be taken away at short notice: the bytes that it alone has, and whether they can be copied in
 * time. */
struct ptc_planning_leaves {
	double warning_s; /* the time from the notice on; 0: nobody asks */
	char node[PTC_NAME_MAX + 1];
	int64_t bytes;
	double bytes_s, seconds; /* by measured links; 0: there are none */
	bool fits;
};
/* node: its name, or "a node". Blocking. */
struct ptc_planning_leaves ptc_planning_leaves(struct ptc_planning *p, const char *node, int64_t bytes,
					       uint64_t warning_ms);
/* {warning_s, node, bytes, bytes_s, seconds, fits, text}. Without measured links the last four are null. NULL: out of
 * memory. */
json_t *ptc_planning_leaves_json(const struct ptc_planning_leaves *l);
