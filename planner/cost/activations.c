/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of one layer's activations, as in Korthikanti et al., "Reducing Activation Recomputation in Large
 * Transformer Models" (2022). Their terms are taken apart, so that grouped queries, gated feed-forward parts, experts
 * and kernels without scores each change only their own term. For a GPT the sum is theirs: sbh (10 + 24/t + 5as/ht),
 * with sequence parallelism sbh (34 + 5as/h) / t. Cannot fail. */
#include "planner/cost/layer_terms.h"

struct terms {
	double everywhere; /* on each rank of tp, unless sequence parallelism cuts them */
	double cut;        /* over tp */
	double scores;     /* over tp; selective recomputation drops them */
};

/* 2-byte values: an input of a norm and of the matrices after it; masks are one byte. */
static void attention_terms(const struct ptc_model *m, const struct ptc_layer_kind *k, double tokens, double samples,
			    struct terms *t)
{
	double h = m->hidden, q = (double)k->heads * k->head_dim, kv = (double)k->kv_heads * k->head_dim;
	double s = ptc_layer_seq(m, k), times = k->cross ? 2 : 1,
	       out = (double)k->heads * (k->v_dim ? k->v_dim : k->head_dim);

	if (!k->heads)
		return;
	t->everywhere += times * tokens * h * (2 + 2 + (m->dropout ? 1 : 0));
	if (k->kv_rank) { /* latents, the same on each rank, and all heads' keys and values */
		t->everywhere += times * tokens * 2 * (k->q_rank + (double)k->kv_rank + k->rope_dim);
		kv = (q + out) / 2;
	} else if (k->v_dim) {
		kv = (kv + (double)k->kv_heads * k->v_dim) / 2;
	}
	t->cut += times * tokens * (2 * q + 4 * kv + 2 * out);
	if (!m->flash) /* softmax out, its mask, the masked scores */
		t->scores += times * samples * s * s * k->heads * (m->dropout ? 5 : 4) * (tokens / (samples * s));
}

static void ffn_terms(const struct ptc_model *m, const struct ptc_layer_kind *k, double tokens, struct terms *t)
{
	double h = m->hidden, width = k->ffn + (double)k->topk * k->expert_ffn;

	if (!width)
		return;
	t->everywhere += tokens * h * (2 + 2 + (m->dropout ? 1 : 0));
	t->cut += tokens * 2 * width * (k->glu ? m->eager_glu ? 4 : 3 : 2);
	if (k->experts) /* tokens as they reach the experts, and come back */
		t->cut += tokens * 2 * h * 2 * k->topk;
}

/* Inputs of the norm and of the projection; what that puts out, after the convolution again, the scan's output and the
 * gated one. */
static void ssm_terms(const struct ptc_model *m, const struct ptc_layer_kind *k, double tokens, struct terms *t)
{
	if (!k->ssm_inner)
		return;
	t->everywhere += tokens * m->hidden * (2 + 2 + (m->dropout ? 1 : 0));
	t->cut += tokens * 2 * (2.0 * k->ssm_wide + 2.0 * k->ssm_inner);
}

static struct terms layer_terms(const struct ptc_model *m, const struct ptc_layer_kind *k, uint32_t cp, uint32_t mb)
{
	struct terms t = { 0 };
	double tokens = (double)mb * ptc_layer_seq(m, k) / cp;

	attention_terms(m, k, tokens, mb, &t);
	ssm_terms(m, k, tokens, &t);
	ffn_terms(m, k, tokens, &t);
	return t;
}

double ptc_layer_scores(const struct ptc_model *m, const struct ptc_layer_kind *k, uint32_t tp, uint32_t cp,
			uint32_t micro_batch)
{
	return layer_terms(m, k, cp, micro_batch).scores / tp;
}

double ptc_layer_activations(const struct ptc_model *m, const struct ptc_layer_kind *k, uint32_t tp, uint32_t cp,
			     uint32_t micro_batch, bool sequence_parallel, enum ptc_recompute r)
{
	struct terms t = layer_terms(m, k, cp, micro_batch);
	double everywhere = sequence_parallel ? t.everywhere / tp : t.everywhere;

	if (r == PTC_RECOMPUTE_FULL) /* the layer's input alone */
		return 2.0 * micro_batch * ptc_layer_seq(m, k) / cp * m->hidden / (sequence_parallel ? tp : 1);
	return everywhere + t.cut / tp + (r == PTC_RECOMPUTE_SELECTIVE ? 0 : t.scores / tp);
}
