/* SPDX-License-Identifier: Apache-2.0 */
/* An estimate in three stages, so that a search repeats only what changes: layers (depends on tp,
 * cp, ep, etp, micro-batch, recompute), a pipeline of them (pp, vpp), the finish (dp, zero). All
 * three are defined for candidates that ptc_cand_check accepts. */
#pragma once

#include "planner/cost/step.h"

/* Of one layer on one device, for one micro-batch, forward and backward. Seconds, bytes, counts. */
struct ptc_layer_cost {
	double compute, tp, cp, ep;
	double dense, expert; /* parameters */
	double kept;          /* activations held from forward to backward */
	double working;       /* and while the layer is at work */
};
struct ptc_layers {
	struct ptc_layer_cost kind[PTC_MODEL_MAX_KINDS];
	double hbm;                     /* of the devices that these are for, bytes/s */
	double head_s, embedding, head; /* seconds of the last stage; parameters of first and last */
	double logits;                  /* bytes on the last stage */
	double boundary_bytes;          /* what one stage hands the next */
	double layer_params;            /* of the largest layer: what ZeRO-3 gathers at once */
};
/* What decides a device's memory. */
struct ptc_stage_point {
	double dense, expert, activations, working;
	uint32_t stage;
};
#define PTC_PIPE_POINTS 16
struct ptc_pipe {
	uint32_t stages;                         /* pp * vpp */
	double busiest_s, all_s;                 /* of devices, one micro-batch: the longest, and the sum */
	double compute_s, tp_s, cp_s, ep_s;      /* of the busiest */
	double dense_max, expert_max, dense_all; /* parameters of a device */
	double dense_hbm, expert_hbm;            /* the largest over devices of parameters / speed of memory */
	double kept[PTC_MODEL_MAX_LAYERS], working[PTC_MODEL_MAX_LAYERS]; /* per device 0..pp-1 */
	double dense[PTC_MODEL_MAX_LAYERS], expert[PTC_MODEL_MAX_LAYERS];
	struct ptc_stage_point full[PTC_PIPE_POINTS]; /* devices that may be the fullest, pipeline filled */
	uint32_t nfull;                               /* 0: too many to list */
	double logits, boundary_bytes, layer_params;
};

int ptc_cand_check(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_error *err);
void ptc_cost_layers(const struct ptc_work *w, const struct ptc_cand *c, struct ptc_layers *ret);
void ptc_cost_pipe(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *l,
		   struct ptc_pipe *ret);
/* Where devices differ: device i of the pipeline computes as l[which[i]]; which NULL: all as l[0]. */
void ptc_cost_pipe_mixed(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *const *l,
			 const uint8_t *which, struct ptc_pipe *ret);
/* Layers per stage into cut[pp * vpp]. */
void ptc_cost_cut(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_layers *l, uint32_t *cut);
/* Fills all but memory. */
void ptc_cost_time(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p,
		   struct ptc_estimate *ret);
/* Fills memory. */
void ptc_cost_memory(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p,
		     struct ptc_estimate *ret);
/* The same of device i of the pipeline alone. */
void ptc_cost_device_memory(const struct ptc_work *w, const struct ptc_cand *c, const struct ptc_pipe *p, uint32_t i,
			    struct ptc_estimate *ret);
/* Micro-batches whose activations device i holds at once, in units of the device's layers. */
double ptc_cost_in_flight(const struct ptc_work *w, const struct ptc_cand *c, uint32_t device);
uint32_t ptc_cost_micro_batches(const struct ptc_work *w, const struct ptc_cand *c);
