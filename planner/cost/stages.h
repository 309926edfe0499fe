/* SPDX-License-Identifier: Apache-2.0 */
/* Estimates a step in three stages, so that a search repeats only what changes: layers, a pipeline of them, the end of
 * the step. Layers depend on tp, cp, ep, etp, micro-batch and recompute, the pipeline on pp and vpp, the end on dp and
 * zero. All functions need a candidate that ptc_cand_check accepts. Pure; any thread. */
#pragma once

#include "planner/cost/step.h"

/* The cost of one layer on one device, for one micro-batch, forward and backward: seconds, bytes, counts. */
struct ptc_layer_cost {
	double compute, tp, cp, ep;
	double dense, expert; /* parameters */
	double kept;          /* activations kept from forward to backward */
	double working;       /* more bytes while the layer computes */
};
struct ptc_layers {
	struct ptc_layer_cost kind[PTC_MODEL_MAX_KINDS];
	double hbm;                     /* memory bandwidth of these devices, bytes/s */
	double head_s, embedding, head; /* seconds of the last stage; parameters of the first and the last stage */
	double logits;                  /* bytes on the last stage */
	double boundary_bytes;          /* bytes that one stage sends to the next */
	double layer_params;            /* parameters of the largest layer, which ZeRO-3 gathers at once */
};
/* The terms of one device's memory. */
struct ptc_stage_point {
	double dense, expert, activations, working;
	uint32_t stage;
};
#define PTC_PIPE_POINTS 16
struct ptc_pipe {
	uint32_t stages; /* pp * vpp */
	/* for one micro-batch: the longest time of a device, and the sum of all */
	double busiest_s, all_s;
	double compute_s, tp_s, cp_s, ep_s;      /* of the busiest device */
	double dense_max, expert_max, dense_all; /* parameters of a device */
	/* the largest quotient, over devices, of parameters and memory bandwidth */
	double dense_hbm, expert_hbm;
	double kept[PTC_MODEL_MAX_LAYERS], working[PTC_MODEL_MAX_LAYERS]; /* per device 0..pp-1 */
	double dense[PTC_MODEL_MAX_LAYERS], expert[PTC_MODEL_MAX_LAYERS];
	struct ptc_stage_point full[PTC_PIPE_POINTS]; /* devices that may be the fullest, with the pipeline filled */
	uint32_t nfull;                               /* 0: there are too many to list */
	double logits, boundary_bytes, layer_params;
};

int ptc_cand_check(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_error *err);
void ptc_cost_layers(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_layers *ret);
void ptc_cost_pipe(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *l,
		   struct ptc_pipe *ret);
/* ptc_cost_pipe for devices that differ: device i of the pipeline computes as l[which[i]]. which NULL: all as l[0]. */
void ptc_cost_pipe_mixed(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *const *l,
			 const uint8_t *which, struct ptc_pipe *ret);
/* Writes the number of layers of each stage into cut[pp * vpp]. */
void ptc_cost_cut(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *l, uint32_t *cut);
/* The same for devices that differ, as in ptc_cost_pipe_mixed. */
void ptc_cost_cut_mixed(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *const *l,
			const uint8_t *which, uint32_t *cut);
/* Fills all members but memory. */
void ptc_cost_time(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p,
		   struct ptc_estimate *ret);
/* Fills the memory members. */
void ptc_cost_memory(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p,
		     struct ptc_estimate *ret);
/* ptc_cost_memory for device i of the pipeline alone. */
void ptc_cost_device_memory(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p, uint32_t i,
			    struct ptc_estimate *ret);
/* The number of micro-batches whose activations device i holds at once, in units of the device's layers. */
double ptc_cost_in_flight(const struct ptc_work *w, const struct ptc_cand *c, uint32_t device);
uint32_t ptc_cost_micro_batches(const struct ptc_work *w, const struct ptc_cand *c);
