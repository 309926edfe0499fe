/* SPDX-License-Identifier: Apache-2.0 */
/* The model: a stack of transformer layers, described by the numbers that determine its size, its work and its memory.
 * Each layer has a kind; kinds differ where layers do (dense and MoE, encoder and decoder). Plain data that the caller
 * owns. Check it once; then everything that planner/ computes from it is defined. Pure; any thread. Docs:
 * docs/planner.md. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define PTC_MODEL_MAX_LAYERS 1024 /* equal to the greatest number of stages */
#define PTC_MODEL_MAX_KINDS  8

struct ptc_layer_kind {
	uint32_t heads, kv_heads, head_dim; /* self-attention; heads 0: the layer has none */
	uint32_t ffn;                       /* width of the dense feed-forward part; 0: none */
	uint32_t experts, topk, expert_ffn; /* experts 0: none; topk of them serve a token */
	uint32_t seq;                       /* tokens of a sample in this layer; 0: the model's */
	uint32_t q_rank, kv_rank,
		rope_dim; /* latent attention (DeepSeek): ranks of q (0: none) and of k and v; kv_rank 0: not used */
	uint32_t v_dim;   /* width of a head's values; 0: head_dim */
	uint32_t ssm_inner, ssm_wide; /* a state space (Mamba): width, and columns of its input projection; 0: none */
	uint32_t ssm_state, ssm_more; /* state of each column; parameters besides both projections */
	bool glu;                     /* gate and up, so three matrices (SwiGLU); otherwise two */
	bool cross;                   /* has a cross-attention of the same shape, too (decoder) */
};
bool ptc_layer_kind_same(const struct ptc_layer_kind *a, const struct ptc_layer_kind *b);

struct ptc_model {
	uint32_t hidden, vocab, seq;
	uint32_t layers;
	uint8_t kind[PTC_MODEL_MAX_LAYERS]; /* the kind of each layer, in order */
	uint32_t nkinds;
	struct ptc_layer_kind kinds[PTC_MODEL_MAX_KINDS];
	bool tied;      /* the head is the embedding */
	bool positions; /* a learned embedding of each position */
	bool bias;      /* matrices and norms have a bias */
	bool dropout;   /* masks are kept for the backward pass */
	bool flash;     /* attention keeps no scores and skips the masked half */
	bool eager_glu; /* no fused kernel: the gate's activation is kept beside gate, up and product */
};

/* A GPT of equal layers as in SC'21: biases, learned positions, dropout, tied head, full scores. */
void ptc_model_gpt(struct ptc_model *ret, uint32_t layers, uint32_t hidden, uint32_t heads, uint32_t ffn,
		   uint32_t vocab, uint32_t seq);
/* PTC_EINVAL: one line names the first invalid number, and the permitted values. */
int ptc_model_check(const struct ptc_model *m, struct ptc_error *err);

/* Parameters of one layer; `expert`: those of its experts. */
struct ptc_layer_params {
	double dense, expert;
};
struct ptc_layer_params ptc_layer_params(const struct ptc_model *m, const struct ptc_layer_kind *k);
/* Parameters of matrices that multiply each token; an expert counts once per choice of topk. */
double ptc_layer_multiplied(const struct ptc_model *m, const struct ptc_layer_kind *k);
double ptc_model_embedding(const struct ptc_model *m); /* tokens and positions */
double ptc_model_params(const struct ptc_model *m);
/* P = 12Lh^2 (1 + 13/12h + (V + s)/12Lh), for GPTs: Narayanan et al. (SC'21), equation 2. */
double ptc_model_params_sc21(const struct ptc_model *m);

/* Model FLOPs of a training step for one token, forward and backward, without recomputation. Of attention, only the
 * half that is not masked counts. */
double ptc_model_flops_token(const struct ptc_model *m);
/* Multiplications and additions of the scores and of their weighted sums, forward, for one sample. */
double ptc_layer_attention_flops(const struct ptc_model *m, const struct ptc_layer_kind *k);

/* Number of first layers that are an encoder's: those before the first layer with cross-attention. 0: there is none.
 */
uint32_t ptc_model_encoder(const struct ptc_model *m);

static inline uint32_t ptc_layer_seq(const struct ptc_model *m, const struct ptc_layer_kind *k)
{
	return k->seq ? k->seq : m->seq;
}
