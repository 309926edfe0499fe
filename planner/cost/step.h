/* SPDX-License-Identifier: Apache-2.0 */
/* One configuration's step time and memory, in closed form. A caller fills a struct ptc_work once
 * (what is trained, on what, by which program) and asks for as many candidates as it likes.
 * Everything is plain data; pure, any thread. Formulas and their sources: docs/planner.md. */
#pragma once

#include "planner/devices.h"
#include "planner/model.h"

#include <stddef.h>

enum ptc_recompute { PTC_RECOMPUTE_NONE, PTC_RECOMPUTE_SELECTIVE, PTC_RECOMPUTE_FULL };
enum ptc_schedule {
	PTC_SCHEDULE_1F1B,  /* interleaved where vpp > 1 */
	PTC_SCHEDULE_GPIPE, /* all forward, then all backward: holds every micro-batch */
	PTC_SCHEDULE_ZB1P   /* zero bubble, ZB1P: 1F1B's memory, a third of its bubble */
};

/* A configuration as the search sees it; rank order tp-cp-ep-dp-pp. All degrees are at least 1. */
struct ptc_cand {
	uint32_t tp, cp, dp, pp, ep, etp, vpp, micro_batch;
	uint8_t zero, recompute; /* 0..3; enum ptc_recompute, of the first kind of layers */
	/* Two bits for each kind of layers after the first: 0: as the first, else enum ptc_recompute + 1, but never
	 * what the first has. */
	uint16_t recompute_others;
};
static inline enum ptc_recompute ptc_cand_recompute(const struct ptc_cand *c, uint32_t kind)
{
	unsigned own = kind ? c->recompute_others >> (2 * (kind - 1)) & 3 : 0;

	return (enum ptc_recompute)(own ? own - 1 : c->recompute);
}
static inline uint32_t ptc_cand_devices(const struct ptc_cand *c)
{
	return c->tp * c->cp * c->dp * c->pp;
}
#define PTC_CAND_TEXT_MAX 192
/* "tp=8,pp=2,dp=4,zero=1,micro_batch=2,recompute=full": a configuration's text, then what it lacks;
 * "recompute=none/full": of the first and the second kind of layers. */
void ptc_cand_format(const struct ptc_cand *c, char buf[PTC_CAND_TEXT_MAX]);

/* What multiplies the model's terms. Each is a physical quantity; fit/fit.h finds them. */
enum ptc_coef {
	PTC_COEF_GEMM,          /* share of peak FLOP/s that large matrices reach */
	PTC_COEF_SMALL,         /* how fast that share falls with small matrices */
	PTC_COEF_LAUNCH,        /* seconds that a layer takes at least, forward */
	PTC_COEF_BYTES,         /* passes of elementwise kernels over activations */
	PTC_COEF_INTRA,         /* share of the profile's bandwidth reached within a node */
	PTC_COEF_INTRA_LATENCY, /* times the profile's latency */
	PTC_COEF_NODE,          /* the same between nodes */
	PTC_COEF_NODE_LATENCY,
	PTC_COEF_FIXED,     /* seconds of a step that nothing above explains */
	PTC_COEF_OPTIMIZER, /* times reading and writing the states once */
	PTC_COEF_DP,        /* share of gradient traffic that is not hidden */
	PTC_COEFS
};
struct ptc_coefs {
	double v[PTC_COEFS];
};
/* What A100 and H100 systems with Megatron-like programs come to; nothing of it was measured here. */
void ptc_coefs_default(struct ptc_coefs *ret);
extern const char *const ptc_coef_names[PTC_COEFS];

/* Bytes the program keeps, and what it takes besides. Measured peaks correct it: fit/peaks.h. */
struct ptc_memory_rules {
	double weight_bytes, grad_bytes, optim_bytes; /* of one parameter, unsharded */
	double logit_bytes;                           /* of one logit: copies that live at once */
	double activations;                           /* times the formulas' activations */
	double reserve_bytes;                         /* of each device: context, communicators, buckets of gradients */
	double waste; /* share of the activations that the allocator holds besides; it gives that back when memory is
			 short */
};
/* bf16 weights, fp32 gradients, master weights and Adam's moments: 2 + 4 + 12 bytes; PTC_MEMORY_RESERVE
 * besides, PTC_MEMORY_WASTE of activations on top of a peak. */
#define PTC_MEMORY_RESERVE 2e9
#define PTC_MEMORY_WASTE   0.15
void ptc_memory_rules_default(struct ptc_memory_rules *ret);

struct ptc_work {
	const struct ptc_model *model;
	const struct ptc_cluster_profile *cluster;
	struct ptc_coefs coefs;
	struct ptc_memory_rules memory;
	uint32_t global_batch;
	double reduce_bytes; /* of one gradient on the wire (2 for bf16) */
	enum ptc_schedule schedule;
	enum ptc_math dtype;    /* for who reads the cluster: whose peaks its kinds have */
	bool uneven_batch;      /* replicas on faster devices may take more micro-batches */
	bool sequence_parallel; /* norms and dropout are cut over tp, too */
	bool uneven;            /* stages are cut by time; else the first ones get the extra layer */
	const uint32_t *stages; /* NULL, or layers of each of pp * vpp stages, given */
	uint32_t nstages;
};

/* Which kinds of devices a candidate takes, of a cluster that has several: one, or two, of which the first
 * stages or the first replicas are of kind[0]. A stage of a replica is of one kind. Zeroes: the only one. */
struct ptc_on_kinds {
	uint8_t kind[2];
	bool by_data;              /* replicas differ; else stages */
	uint32_t first;            /* stages or replicas of kind[0]; 0: all */
	uint32_t micro_batches[2]; /* of a replica of each; by_data only */
};

struct ptc_estimate {
	struct ptc_on_kinds place;
	double step_s;
	/* Of step_s: the busiest device's computing and its traffic, what it waits for in the pipeline,
	 * and what ends the step. */
	double compute_s, tp_s, cp_s, ep_s, pp_s, bubble_s, dp_s, optimizer_s, fixed_s;
	double memory_bytes;                  /* that the fullest device needs, reserve included */
	double peak_bytes;                    /* and what its driver shows at most: with the allocator's waste */
	double state_bytes, activation_bytes; /* of that device */
	uint32_t fullest_stage, micro_batches;
};

/* PTC_EINVAL: the candidate cannot be (tp does not divide heads, more stages than layers ...). */
int ptc_estimate(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_estimate *ret, struct ptc_error *err);
/* Peak of each device along the pipeline, bytes: pp values into ret; the largest is the estimate's. */
int ptc_pipe_memory(const struct ptc_work *w, const struct ptc_cand *c, double *ret, struct ptc_error *err);
/* Layers of each of pp * vpp stages as the estimate cuts them; ret has room for as many. */
int ptc_stage_layers(const struct ptc_work *w, const struct ptc_cand *c, uint32_t *ret, struct ptc_error *err);
/* Activation bytes of one layer for one micro-batch on one device (Korthikanti et al.). */
double ptc_layer_activations(const struct ptc_model *m, const struct ptc_layer_kind *k, uint32_t tp, uint32_t cp,
			     uint32_t micro_batch, bool sequence_parallel, enum ptc_recompute r);
