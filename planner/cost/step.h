/* SPDX-License-Identifier: Apache-2.0 */
/* The step time and the memory of one configuration, in closed form. A caller fills a struct ptc_work once (the model,
 * the cluster, the program) and asks for any number of candidates. Everything is plain data. Pure; any thread. Formulas
 * and their sources: docs/planner.md. */
#pragma once

#include "planner/devices.h"
#include "planner/model.h"
#include "reshard/spec/config.h"

#include <stddef.h>

/* A configuration as the search sees it. The rank order is tp-cp-ep-dp-pp. All degrees are at least 1. */
struct ptc_cand {
	uint32_t tp, cp, dp, pp, ep, etp, vpp, micro_batch;
	uint8_t zero, recompute; /* 0..3; enum ptc_recompute, for the first kind of layers */
	/* Two bits for each kind of layers after the first. 0: as the first kind; else enum ptc_recompute + 1, but
	 * never the first kind's value. */
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
/* Writes "tp=8,pp=2,dp=4,zero=1,micro_batch=2,recompute=full": a configuration's text, then the candidate's other
 * members. "recompute=none/full" is for the first and the second kind of layers. */
void ptc_cand_format(const struct ptc_cand *c, char buf[PTC_CAND_TEXT_MAX]);

/* The coefficients of the cost model. Each is a physical quantity; fit/fit.h finds them. */
enum ptc_coef {
	PTC_COEF_GEMM,          /* share of peak FLOP/s that large matrices reach */
	PTC_COEF_SMALL,         /* how fast that share falls with small matrices */
	PTC_COEF_LAUNCH,        /* least seconds of a layer, forward */
	PTC_COEF_BYTES,         /* passes of elementwise kernels over activations */
	PTC_COEF_INTRA,         /* share of the profile's bandwidth reached within a node */
	PTC_COEF_INTRA_LATENCY, /* factor of the profile's latency */
	PTC_COEF_NODE,          /* the same two between nodes */
	PTC_COEF_NODE_LATENCY,
	PTC_COEF_FIXED,     /* seconds of a step that the other terms do not explain */
	PTC_COEF_OPTIMIZER, /* factor of the time to read and write the states once */
	PTC_COEF_DP,        /* share of gradient traffic that is not hidden */
	PTC_COEFS
};
struct ptc_coefs {
	double v[PTC_COEFS];
};
/* Typical values for A100 and H100 systems with Megatron-like programs. They were not measured here. */
void ptc_coefs_default(struct ptc_coefs *ret);

/* The bytes that the program keeps, and its further memory. Measured peaks correct these rules: ptc_fit_peaks in
 * fit/fit.h. */
struct ptc_memory_rules {
	double weight_bytes, grad_bytes, optim_bytes; /* of one parameter, unsharded */
	double logit_bytes;                           /* bytes per logit: all copies that live at once */
	double activations;                           /* factor of the formulas' activations */
	double reserve_bytes;                         /* of each device: context, communicators, gradient buckets */
	/* further share of the activations that the allocator holds; it returns this memory when memory is short */
	double waste;
};
/* bf16 weights, fp32 gradients, master weights and Adam's moments: 2 + 4 + 12 bytes. PTC_MEMORY_RESERVE is added. To a
 * peak, the share PTC_MEMORY_WASTE of the activations is added, too. */
#define PTC_MEMORY_RESERVE 2e9
#define PTC_MEMORY_WASTE   0.15
void ptc_memory_rules_default(struct ptc_memory_rules *ret);

struct ptc_work {
	const struct ptc_model *model;
	const struct ptc_cluster_profile *cluster;
	struct ptc_coefs coefs;
	struct ptc_memory_rules memory;
	uint32_t global_batch;
	double reduce_bytes; /* bytes of one gradient on the wire (2 for bf16) */
	enum ptc_schedule schedule;
	enum ptc_math dtype; /* selects the peaks of the cluster's kinds when the profile is read */
	/* replicas on faster devices may take more micro-batches, if replicas wait for each other once a step only */
	bool uneven_batch;
	bool sequence_parallel; /* norms and dropout are cut over tp, too */
	bool uneven;            /* stages are cut by time; otherwise the first ones get the extra layer */
	bool encoder_apart;     /* no stage has layers of both encoder and decoder, if there are several stages */
	const uint32_t *stages; /* NULL, or the given number of layers of each of pp * vpp stages */
	uint32_t nstages;
};

/* The kinds of devices that a candidate takes, on a cluster with several: one kind, or two. With two, the first stages
 * or the first replicas are of kind[0]. A stage of a replica has one kind. All zero: the cluster's only kind. */
struct ptc_on_kinds {
	uint8_t kind[2];
	bool by_data;              /* replicas differ in kind; otherwise stages */
	uint32_t first;            /* number of stages or replicas of kind[0]; 0: all */
	uint32_t micro_batches[2]; /* of a replica of each kind; for by_data only */
};

struct ptc_estimate {
	struct ptc_on_kinds place;
	double step_s;
	/* The parts of step_s: computation and traffic of the busiest device, its waiting in the pipeline, and the end
	 * of the step. */
	double compute_s, tp_s, cp_s, ep_s, pp_s, bubble_s, dp_s, optimizer_s, fixed_s;
	double memory_bytes;                  /* needed by the fullest device, reserve included */
	double peak_bytes;                    /* greatest value that its driver shows, with the allocator's waste */
	double state_bytes, activation_bytes; /* of that device */
	uint32_t fullest_stage, micro_batches;
};

/* Estimates a candidate. PTC_EINVAL: it is impossible (tp does not divide heads, more stages than layers, ...). */
int ptc_estimate(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_estimate *ret, struct ptc_error *err);
/* Writes the peak of each device along the pipeline, in bytes: pp values into ret. The largest is the estimate's. */
int ptc_pipe_memory(const struct ptc_work *w, const struct ptc_cand *c, double *ret, struct ptc_error *err);
/* Writes the number of layers of each of pp * vpp stages, as the estimate cuts them, into ret. */
int ptc_stage_layers(const struct ptc_work *w, const struct ptc_cand *c, uint32_t *ret, struct ptc_error *err);
/* What a sample of s tokens costs, linear * s + square * s * s, as docs/order.md divides batches; only the ratio has a
 * meaning. Fitted by least squares to micro-batches of the same tokens, in sequences of the model's length, its half,
 * quarter and eighth. A sequence of the model's length costs about 2^40 (2^48 beyond 65,536 tokens), so that the costs
 * of a batch can be added up. Both 0: not known. The candidate has to be possible. */
struct ptc_length_cost {
	uint64_t linear, square;
};
struct ptc_length_cost ptc_length_cost(const struct ptc_work *w, const struct ptc_cand *c);
/* Activation bytes of one layer for one micro-batch on one device (Korthikanti et al.). */
double ptc_layer_activations(const struct ptc_model *m, const struct ptc_layer_kind *k, uint32_t tp, uint32_t cp,
			     uint32_t micro_batch, bool sequence_parallel, enum ptc_recompute r);
