/* SPDX-License-Identifier: Apache-2.0 */
/* For daemon/planning only: a job as planner/ sees it, made once of its description, the cluster's profile and measured
 * steps. Once made it never changes, except for what ptc_job_work_search remembers under a lock of its own. References
 * are counted. */
#pragma once

#include "base/cache/counted_cache.h"
#include "daemon/planning/links/links.h"
#include "daemon/planning/measured_doc.h"
#include "daemon/planning/places/places.h"
#include "daemon/planning/planning.h"
#include "planner/infer.h"
#include "planner/io/plan_doc.h"
#include "planner/search/scaled.h"

#define PTC_WORK_KEEP 16 /* candidates remembered for a number of devices */

#define PTC_WORK_FRONTIER 2048 /* a frontier of more devices takes megabytes */
/* Sets of nodes that are searched: those of each kind, and subsets of these without the slowest links. */
#define PTC_WORK_SETS     8

/* Nodes that may be used, and what links between them allow. */
struct ptc_job_set {
	bool *leave; /* of each node of the shape */
	uint32_t devices;
	struct ptc_cluster_profile cluster;
	struct ptc_work work; /* the job's, on this cluster */
	/* The search of this set counts every link as the median one; then ranks are placed by the measured links.
	 * Kinds of devices may be mixed. */
	bool placed;
	struct ptc_frontier *frontier;
};
/* A candidate, and the set that it is for. */
struct ptc_job_found {
	struct ptc_choice choice;
	unsigned set;
};
struct ptc_job_work {
	struct ptc_cached cached;
	struct ptc_model model;
	struct ptc_plan_profile profile;
	struct ptc_space space;
	struct ptc_work work;        /* points to model and profile.cluster */
	struct ptc_calibration *cal; /* NULL: no measured step */
	size_t nsteps, npeaks;
	char inferred[PTC_INFER_TEXT_MAX]; /* the model, where tensors say it; else "" */
	/* Without a model: the reason, and the measured configurations that are used instead. */
	struct ptc_error no_model; /* code 0: there is a model */
	struct ptc_scaled_row *rows;
	char **row_configs; /* the configuration of each of the nsteps rows; NULL: as its candidate says */
	struct ptc_kinds kinds;
	uint8_t *kind_of;            /* of each node of the shape, its place in kinds */
	bool assumed;                /* nothing says what the devices are */
	bool linked;                 /* links between nodes are of a profile, or were measured */
	struct ptc_link_sets *links; /* NULL: none was measured */
	double *bytes_s;             /* of the links between all nodes of the shape; NULL: too many nodes */
	uint32_t *devices;           /* of each node of the shape */
	size_t nnodes;
	struct ptc_job_set sets[PTC_WORK_SETS]; /* the first: all nodes of the first kind */
	unsigned nsets;
	/* Configurations must say what is recomputed, because the space permits several ways, or some configuration of
	 * the job names one. False: the program knows it without being told. */
	bool told_recompute;
	/* told_schedule: each planned configuration with a pipeline names the order of micro-batches, because some
	 * configuration of the job does. told_stages: those with virtual stages name it, because the space permits such
	 * stages. */
	bool told_schedule, told_stages;
	bool plain; /* the space permits virtual stages, and they are left out (ptc_job_work_opts.unattended) */
	double pause_s, horizon_s;
	struct ptc_measured_loss losses[PTC_MEASURED_LOSSES]; /* of devices that have gone */
	size_t nlosses;
	/* private */
	struct ptc_job_work_memory *memory;
};
struct ptc_job_work_opts {
	const struct ptc_job_desc *desc;
	const struct ptc_spec *held;             /* what ranks have declared; NULL: nothing */
	const struct ptc_plan_devices *known;    /* devices by name; NULL: those that the program knows */
	const char *now;                         /* the configuration that holds the state; NULL: none */
	const char *profile;                     /* as a file has it; NULL: there is none */
	const struct ptc_links *pairs;           /* measured links; NULL: none */
	const struct ptc_measured_doc *measured; /* NULL: nothing */
	const struct ptc_planning_shape *shape;
	bool unattended; /* no person would read a refusal, so virtual stages are planned only if ranks have promised
			    them before */
};
/* PTC_ENOTFOUND: there is neither a model nor a measured step, or nothing says the global batch. */
int ptc_job_work_new(const struct ptc_job_work_opts *opts, struct ptc_job_work **ret, struct ptc_error *err);
struct ptc_job_work *ptc_job_work_free(struct ptc_job_work *w); /* NULL ok */
/* The best few for at most n devices, remembered: best first, at most PTC_WORK_KEEP into ret. Any thread. */
int ptc_job_work_search(struct ptc_job_work *w, uint32_t n, struct ptc_job_found *ret, size_t *ret_n,
			struct ptc_error *err);
/* The fastest candidate for at most n devices. It comes from the sets' frontiers, which are made once; for more than
 * PTC_WORK_FRONTIER devices, from a search. False: nothing fits, or memory is short. *ret_set (may be NULL): of which
 * set it is. */
bool ptc_job_work_best(struct ptc_job_work *w, uint32_t n, struct ptc_frontier_point *ret, unsigned *ret_set);
/* What is remembered: the numbers of devices that were searched, and whether the sets' frontiers are made. `searches`
 * grows with each search and each frontier, and never where an answer was remembered. Any thread. */
struct ptc_job_work_memo {
	uint32_t devices;
	bool frontier;
	uint64_t searches;
};
struct ptc_job_work_memo ptc_job_work_memo(const struct ptc_job_work *w);
/* Makes the configuration of this job for a candidate. manner: a configuration of the job, as ptc_job_manner gives it.
 * The result takes the order of ranks and the sharding kind from it, and names a batch only if manner does. */
int ptc_job_work_config(const struct ptc_job_work *w, const struct ptc_config *manner, const struct ptc_job_found *f,
			struct ptc_config *ret, struct ptc_error *err);
/* A configuration of this job with its predicted step. nodes: the node (in the shape) of each rank (by the
 * configuration's numbers). NULL: not known; then it predicts for the nodes that `leave` does not mark (NULL: all).
 * PTC_EINVAL: the model cannot be cut so. */
int ptc_job_work_predict(const struct ptc_job_work *w, const struct ptc_config *config, const bool *leave,
			 const uint32_t *nodes, struct ptc_choice *ret, struct ptc_error *err);
/* What a sample costs by its length; both 0: there is no model, or it cannot be cut so. */
struct ptc_length_cost ptc_job_work_length_cost(const struct ptc_job_work *w, const struct ptc_config *config);
/* Makes the question about the places of a candidate's ranks. kind and devices have room for w->nnodes entries, and
 * have to outlive *ret. False: links or nodes are not known. */
bool ptc_job_work_places(const struct ptc_job_work *w, const struct ptc_job_found *f, uint8_t *kind, uint32_t *devices,
			 struct ptc_places_ask *ret);
/* Reorder `nodes` from ranks in the configuration's order to ranks with tp fastest, and back; world entries each. */
void ptc_job_ranks_to(const struct ptc_config *c, uint32_t world, const uint32_t *nodes, uint32_t *ret);
void ptc_job_ranks_from(const struct ptc_config *c, uint32_t world, const uint32_t *nodes, uint32_t *ret);

/* job_space.c: reads `model:` at doc.root, or infers it from parameters. PTC_ENOTFOUND: of a family that is not known,
 * or nothing says what parameters there are. */
int ptc_job_model_read(const struct ptc_doc *doc, const struct ptc_spec *tensors, struct ptc_job_work *w,
		       struct ptc_error *err);
/* Gives the configuration that others of this job shall resemble: the one that runs now, else the last that ran, else
 * the first of its table. */
int ptc_job_manner(const struct ptc_job_work_opts *opts, struct ptc_config *ret, struct ptc_error *err);
/* Reads `space:`. Without it, makes a space of the configurations that the job has had or lists, with any dp. Fills
 * w->space, and what the space says of w->work. */
int ptc_job_space(const struct ptc_job_work_opts *opts, struct ptc_job_work *w, struct ptc_error *err);
