/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and work of a model, counted from its matrices. Fails only in ptc_model_check, on numbers
 * that cannot be; every other function takes a checked model. */
#include "planner/model.h"

#include "base/check.h"

#include <string.h>

#define MAX_DIM (1u << 20) /* hidden, ffn, seq, vocab: a product of three stays exact in a double */

/* Member by member: a struct that was returned may have anything between its members. */
bool ptc_layer_kind_same(const struct ptc_layer_kind *a, const struct ptc_layer_kind *b)
{
	return a->heads == b->heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->ffn == b->ffn &&
	       a->experts == b->experts && a->topk == b->topk && a->expert_ffn == b->expert_ffn && a->seq == b->seq &&
	       a->q_rank == b->q_rank && a->kv_rank == b->kv_rank && a->rope_dim == b->rope_dim &&
	       a->v_dim == b->v_dim && a->ssm_inner == b->ssm_inner && a->ssm_wide == b->ssm_wide &&
	       a->ssm_state == b->ssm_state && a->ssm_more == b->ssm_more && a->glu == b->glu && a->cross == b->cross;
}

void ptc_model_gpt(struct ptc_model *ret, uint32_t layers, uint32_t hidden, uint32_t heads, uint32_t ffn,
		   uint32_t vocab, uint32_t seq)
{
	memset(ret, 0, sizeof *ret);
	ret->hidden = hidden;
	ret->vocab = vocab;
	ret->seq = seq;
	ret->layers = layers;
	ret->nkinds = 1;
	ret->kinds[0] = (struct ptc_layer_kind){
		.heads = heads, .kv_heads = heads, .head_dim = heads ? hidden / heads : 0, .ffn = ffn
	};
	ret->tied = ret->positions = ret->bias = ret->dropout = true;
}

static int bad(struct ptc_error *err, const char *what, uint32_t value, const char *may)
{
	return ptc_error_set(err, PTC_EINVAL, "model: %s is %u; %s", what, value, may);
}

static int check_attention(const struct ptc_layer_kind *k, struct ptc_error *err)
{
	if (!k->heads)
		return k->kv_heads || k->head_dim || k->cross
			       ? bad(err, "heads", 0, "a layer without attention has no kv_heads, no head_dim")
			       : 0;
	if (k->heads > MAX_DIM)
		return bad(err, "heads", k->heads, "at most 1048576");
	if (!k->kv_heads || k->kv_heads > k->heads || k->heads % k->kv_heads)
		return bad(err, "kv_heads", k->kv_heads, "it must divide heads");
	if (!k->head_dim || k->head_dim > MAX_DIM)
		return bad(err, "head_dim", k->head_dim, "it must be in 1..1048576");
	if (k->v_dim > MAX_DIM || k->q_rank > MAX_DIM || k->kv_rank > MAX_DIM)
		return bad(err, "a rank or width of attention", PTC_MAX(k->v_dim, PTC_MAX(k->q_rank, k->kv_rank)),
			   "at most 1048576");
	if (k->rope_dim > k->head_dim || (!k->kv_rank && (k->q_rank || k->rope_dim)))
		return bad(err, "rope_dim", k->rope_dim, "it is a part of head_dim, of latent attention alone");
	return 0;
}

static int check_ssm(const struct ptc_layer_kind *k, struct ptc_error *err)
{
	if (k->ssm_inner > MAX_DIM || k->ssm_wide > 4 * MAX_DIM || k->ssm_more > (1u << 30))
		return bad(err, "the width of a state space", k->ssm_inner, "at most 1048576");
	if (k->ssm_state > (1u << 16) || (!k->ssm_inner && (k->ssm_wide || k->ssm_state || k->ssm_more)))
		return bad(err, "the state of a state space", k->ssm_state, "at most 65536, of layers that have one");
	return 0;
}

static int check_kind(const struct ptc_layer_kind *k, struct ptc_error *err)
{
	int rc = check_attention(k, err);

	if (!rc)
		rc = check_ssm(k, err);
	if (rc)
		return rc;
	if (k->ffn > MAX_DIM)
		return bad(err, "ffn", k->ffn, "at most 1048576");
	if (k->seq > (1u << 24))
		return bad(err, "seq of a layer", k->seq, "at most 16777216");
	if (!k->experts)
		return k->topk || k->expert_ffn ? bad(err, "experts", 0, "a layer with topk or expert_ffn has experts")
						: 0;
	if (k->experts > 4096)
		return bad(err, "experts", k->experts, "at most 4096");
	if (!k->topk || k->topk > k->experts)
		return bad(err, "topk", k->topk, "it must be in 1..experts");
	if (!k->expert_ffn || k->expert_ffn > MAX_DIM)
		return bad(err, "expert_ffn", k->expert_ffn, "it must be in 1..1048576");
	return 0;
}

int ptc_model_check(const struct ptc_model *m, struct ptc_error *err)
{
	if (!m->layers || m->layers > PTC_MODEL_MAX_LAYERS)
		return bad(err, "layers", m->layers, "it must be in 1..1024");
	if (!m->hidden || m->hidden > MAX_DIM)
		return bad(err, "hidden", m->hidden, "it must be in 1..1048576");
	if (m->vocab > (1u << 24))
		return bad(err, "vocab", m->vocab, "at most 16777216");
	if (!m->seq || m->seq > (1u << 24))
		return bad(err, "seq", m->seq, "it must be in 1..16777216");
	if (!m->nkinds || m->nkinds > PTC_MODEL_MAX_KINDS)
		return bad(err, "the number of kinds of layers", m->nkinds, "it must be in 1..8");
	for (uint32_t i = 0; i < m->layers; i++)
		if (m->kind[i] >= m->nkinds)
			return bad(err, "a layer's kind", m->kind[i], "it must be one of those described");
	for (uint32_t i = 0; i < m->nkinds; i++) {
		int rc = check_kind(&m->kinds[i], err);

		if (rc)
			return rc;
	}
	return 0;
}

static double v_dim(const struct ptc_layer_kind *k)
{
	return k->v_dim ? k->v_dim : k->head_dim;
}

/* Down to the ranks and up again (DeepSeek-V2, section 2.1); the part of keys with positions is one for all heads. */
static double latent_matrices(double h, const struct ptc_layer_kind *k)
{
	double heads = k->heads, wide = heads * k->head_dim;
	double q = k->q_rank ? k->q_rank * (h + wide) : h * wide;

	return q + h * (k->kv_rank + (double)k->rope_dim) +
	       k->kv_rank * heads * (k->head_dim - (double)k->rope_dim + v_dim(k)) + heads * v_dim(k) * h;
}

static double attention_matrices(const struct ptc_model *m, const struct ptc_layer_kind *k)
{
	double h = m->hidden, q = (double)k->heads * k->head_dim, kv = (double)k->kv_heads * k->head_dim;
	double v = (double)k->kv_heads * v_dim(k), out = (double)k->heads * v_dim(k);

	return (k->kv_rank ? latent_matrices(h, k) : h * (q + kv + v + out)) * (k->cross ? 2 : 1);
}

static double ssm_matrices(const struct ptc_model *m, const struct ptc_layer_kind *k)
{
	return (double)m->hidden * (k->ssm_wide + (double)k->ssm_inner);
}

static double ffn_matrices(const struct ptc_layer_kind *k)
{
	return k->glu ? 3 : 2;
}

struct ptc_layer_params ptc_layer_params(const struct ptc_model *m, const struct ptc_layer_kind *k)
{
	struct ptc_layer_params p = { attention_matrices(m, k), 0 };
	double h = m->hidden, norms = !!k->heads + k->cross + !!k->ssm_inner + (k->ffn || k->experts);

	p.dense += ssm_matrices(m, k) + k->ssm_more + (k->kv_rank ? k->q_rank + (double)k->kv_rank : 0);
	p.dense += ffn_matrices(k) * h * k->ffn + norms * h * (m->bias ? 2 : 1) + h * k->experts;
	p.expert = k->experts * ffn_matrices(k) * h * k->expert_ffn;
	if (m->bias) {
		double q = (double)k->heads * k->head_dim, kv = (double)k->kv_heads * k->head_dim;

		p.dense += (q + 2 * kv + (k->heads ? h : 0)) * (k->cross ? 2 : 1);
		p.dense += k->ffn ? (ffn_matrices(k) - 1) * k->ffn + h : 0;
		p.expert += k->experts * ((ffn_matrices(k) - 1) * k->expert_ffn + h);
	}
	return p;
}

double ptc_layer_multiplied(const struct ptc_model *m, const struct ptc_layer_kind *k)
{
	double h = m->hidden, mats = ffn_matrices(k);

	return attention_matrices(m, k) + mats * h * k->ffn + mats * h * k->expert_ffn * k->topk + h * k->experts +
	       ssm_matrices(m, k) + 3.0 * k->ssm_inner * k->ssm_state; /* six operations of a scan each */
}

double ptc_model_embedding(const struct ptc_model *m)
{
	return ((double)m->vocab + (m->positions ? m->seq : 0)) * m->hidden;
}

/* 0 where tied */
static double output_head(const struct ptc_model *m)
{
	return m->tied ? 0 : (double)m->vocab * m->hidden;
}

double ptc_model_params(const struct ptc_model *m)
{
	double sum = ptc_model_embedding(m) + output_head(m) + (double)m->hidden * (m->bias ? 2 : 1);

	for (uint32_t i = 0; i < m->layers; i++) {
		struct ptc_layer_params p = ptc_layer_params(m, &m->kinds[m->kind[i]]);

		sum += p.dense + p.expert;
	}
	return sum;
}

double ptc_model_params_sc21(const struct ptc_model *m)
{
	double L = m->layers, h = m->hidden, V = m->vocab, s = m->seq;

	return 12 * L * h * h * (1 + 13 / (12 * h) + (V + s) / (12 * L * h));
}

double ptc_layer_attention_flops(const struct ptc_model *m, const struct ptc_layer_kind *k)
{
	double s = ptc_layer_seq(m, k);

	return 2 * s * s * k->heads * (k->head_dim + v_dim(k)) * (k->cross ? 2 : 1);
}

double ptc_model_flops_token(const struct ptc_model *m)
{
	double sum = 6 * (double)m->vocab * m->hidden;

	for (uint32_t i = 0; i < m->layers; i++) {
		const struct ptc_layer_kind *k = &m->kinds[m->kind[i]];
		double s = ptc_layer_seq(m, k), share = s / m->seq;

		sum += 6 * ptc_layer_multiplied(m, k) * share;
		sum += 3 * ptc_layer_attention_flops(m, k) / 2 / m->seq;
	}
	return sum;
}

uint32_t ptc_model_encoder(const struct ptc_model *m)
{
	for (uint32_t i = 0; i < m->layers; i++)
		if (m->kinds[m->kind[i]].cross)
			return i;
	return 0;
}
