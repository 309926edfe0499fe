/* SPDX-License-Identifier: Apache-2.0 */
/* What is trained: a stack of transformer layers, described by the numbers that decide its size,
 * its work and its memory. A layer is of a kind; kinds differ where layers do (dense and MoE,
 * encoder and decoder). Plain data that the caller owns; check it once, then everything that
 * planner/ computes from it is defined. Pure, any thread. Docs: docs/planner.md. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define PTC_MODEL_MAX_LAYERS 1024 /* as many as there may be stages */
#define PTC_MODEL_MAX_KINDS  8

struct ptc_layer_kind {
	uint32_t heads, kv_heads, head_dim; /* self-attention; heads 0: a layer without */
	uint32_t ffn;                       /* width of the dense feed-forward part; 0: none */
	uint32_t experts, topk, expert_ffn; /* experts 0: none; topk of them serve a token */
	uint32_t seq;                       /* tokens of a sample in this layer; 0: the model's */
	uint32_t q_rank, kv_rank,
		rope_dim; /* latent attention (DeepSeek): ranks of q (0: none) and of k and v; kv_rank 0: not so */
	uint32_t v_dim;   /* width of a head's values; 0: head_dim */
	uint32_t ssm_inner, ssm_wide; /* a state space (Mamba): width, and columns of its input projection; 0: none */
	uint32_t ssm_state, ssm_more; /* state of each column; parameters besides both projections */
	bool glu;                     /* gate and up, three matrices (SwiGLU); else two */
	bool cross;                   /* and a cross-attention of the same shape (decoder) */
};

struct ptc_model {
	uint32_t hidden, vocab, seq;
	uint32_t layers;
	uint8_t kind[PTC_MODEL_MAX_LAYERS]; /* of each layer, in order */
	uint32_t nkinds;
	struct ptc_layer_kind kinds[PTC_MODEL_MAX_KINDS];
	bool tied;      /* the head is the embedding */
	bool positions; /* a learned embedding of each position */
	bool bias;      /* of matrices; and norms have one */
	bool dropout;   /* masks are kept for the backward pass */
	bool flash;     /* attention keeps no scores and skips the masked half */
	bool eager_glu; /* no fused kernel: the gate's activation is kept beside gate, up and product */
};

/* A GPT of equal layers as in SC'21: biases, learned positions, dropout, tied head, full scores. */
void ptc_model_gpt(struct ptc_model *ret, uint32_t layers, uint32_t hidden, uint32_t heads, uint32_t ffn,
		   uint32_t vocab, uint32_t seq);
/* One line names the first number that cannot be, and what it may be. */
int ptc_model_check(const struct ptc_model *m, struct ptc_error *err);

/* Parameters of one layer, `expert` those of its experts. */
struct ptc_layer_params {
	double dense, expert;
};
struct ptc_layer_params ptc_layer_params(const struct ptc_model *m, const struct ptc_layer_kind *k);
/* Of the matrices alone: what is multiplied for each token, experts once per choice of topk. */
double ptc_layer_multiplied(const struct ptc_model *m, const struct ptc_layer_kind *k);
double ptc_model_embedding(const struct ptc_model *m); /* tokens and positions */
double ptc_model_head(const struct ptc_model *m);      /* 0 where tied */
double ptc_model_params(const struct ptc_model *m);
/* P = 12Lh^2 (1 + 13/12h + (V + s)/12Lh): Narayanan et al. (SC'21), equation 2. Of GPTs. */
double ptc_model_params_sc21(const struct ptc_model *m);

/* Model FLOPs of a training step for one token, forward and backward, without any recomputation;
 * of attention the half that is not masked. */
double ptc_model_flops_token(const struct ptc_model *m);
/* Multiplications and additions of the scores and of what they weigh, forward, for one sample. */
double ptc_layer_attention_flops(const struct ptc_model *m, const struct ptc_layer_kind *k);

static inline uint32_t ptc_layer_seq(const struct ptc_model *m, const struct ptc_layer_kind *k)
{
	return k->seq ? k->seq : m->seq;
}
