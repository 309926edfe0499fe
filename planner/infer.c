/* SPDX-License-Identifier: Apache-2.0 */
/* Finds layers by the first number in a tensor's name. The hidden size is the size that most of their matrices share;
 * matrices of attention, of the feed-forward part and of experts are summed up by their names. Fails where a layer is
 * missing or has neither part. */
#include "planner/infer.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZES 64 /* different sizes of dimensions that are counted */

struct layer {
	double attention, out, ffn, expert; /* elements of matrices; out: of the projection that ends attention */
	uint32_t experts;
	bool gate, seen;
};
struct stack {
	struct layer l[PTC_MODEL_MAX_LAYERS];
	uint32_t layers;
	int64_t hidden;
	bool bias;
};

static bool has(const char *name, const char *const *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strstr(name, words[i]))
			return true;
	return false;
}
#define HAS(name, ...)                                                                                                 \
	has(name, (const char *const[]){ __VA_ARGS__ }, sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(char *))

/* The number between dots after which `ret_rest` starts; -1: none. */
static long number_in(const char *name, const char **ret_rest)
{
	for (const char *at = name; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL) {
		size_t n = strspn(at, "0123456789");

		if (n && n < 7 && (at[n] == '.' || !at[n])) {
			*ret_rest = at + n;
			return strtol(at, NULL, 10);
		}
	}
	return -1;
}

static double elements(const struct ptc_tensor *t)
{
	double e = 1;

	for (uint32_t d = 0; d < t->ndim; d++)
		e *= (double)t->shape[d];
	return e;
}

/* What most matrices of layers share. */
static int64_t most_shared(const struct ptc_tensor *v, size_t n)
{
	int64_t size[SIZES], best = 0;
	uint32_t count[SIZES], used = 0, most = 0;
	const char *rest;

	for (size_t i = 0; i < n; i++) {
		const struct ptc_tensor *t = &v[i];

		if (t->ndim < 2 || number_in(t->name, &rest) < 0)
			continue;
		for (uint32_t d = t->ndim - 2; d < t->ndim; d++) {
			uint32_t k = 0;

			if (d == t->ndim - 1 && t->shape[d] == t->shape[d - 1])
				continue;
			while (k < used && size[k] != t->shape[d])
				k++;
			if (k == SIZES)
				continue;
			if (k == used) {
				size[used] = t->shape[d];
				count[used++] = 0;
			}
			if (++count[k] > most || (count[k] == most && t->shape[d] < best)) {
				most = count[k];
				best = t->shape[d];
			}
		}
	}
	return best;
}

static void add_expert(struct layer *l, const struct ptc_tensor *t, const char *rest)
{
	const char *after;
	long k = number_in(rest, &after);
	uint32_t experts = k >= 0 ? (uint32_t)k + 1 : t->ndim == 3 ? (uint32_t)t->shape[0] : 0;

	if (!experts) /* a router */
		return;
	l->experts = PTC_MAX(l->experts, experts);
	l->expert += elements(t);
	l->gate = l->gate || HAS(rest, "gate", "w3");
}

static int add(struct stack *s, const struct ptc_tensor *t, struct ptc_error *err)
{
	const char *rest;
	long at = number_in(t->name, &rest);
	struct layer *l;

	if (at < 0)
		return 0;
	if (at >= PTC_MODEL_MAX_LAYERS)
		return ptc_error_set(err, PTC_EINVAL, "tensor %s: there are more than %d layers", t->name,
				     PTC_MODEL_MAX_LAYERS);
	l = &s->l[at];
	l->seen = true;
	s->layers = PTC_MAX(s->layers, (uint32_t)at + 1);
	if (t->ndim < 2) {
		s->bias = s->bias || (HAS(rest, "bias") && HAS(rest, "attn", "attention", "mlp", "ffn"));
		return 0;
	}
	if (HAS(rest, "expert") && !HAS(rest, "shared"))
		add_expert(l, t, rest);
	else if (HAS(rest, "attn", "attention")) {
		l->attention += elements(t);
		if (HAS(rest, "o_proj", "out", "c_proj", "dense", "wo", ".proj") &&
		    !HAS(rest, "qkv", "query_key_value"))
			l->out += elements(t);
	} else if (HAS(rest, "mlp", "ffn", "feed_forward", "fc", "dense", "shared")) {
		l->ffn += elements(t);
		l->gate = l->gate || HAS(rest, "gate_proj", "gate_up", "w3");
	}
	return 0;
}

/* The nearest whole number; what is too large stays so, for the check of the model. */
static uint32_t whole(double v)
{
	return v < 4e9 ? (uint32_t)(v + 0.5) : UINT32_MAX;
}

static uint32_t head_dim_of(uint32_t q, uint32_t heads)
{
	if (heads && q % heads == 0)
		return q / heads;
	if (q >= 2048 && q % 128 == 0)
		return 128;
	return q % 64 == 0 ? 64 : q;
}

static struct ptc_layer_kind kind_of(const struct stack *s, const struct layer *l, const struct ptc_infer_given *given)
{
	struct ptc_layer_kind k = { 0 };
	double h = (double)s->hidden, mats = l->gate ? 3 : 2, kv;
	uint32_t q;

	if (l->attention > 0) {
		q = PTC_MAX(1u, whole((l->out > 0 ? l->out : h * h) / h));
		kv = l->attention / h / 2 - q;
		k.head_dim = head_dim_of(q, given->heads);
		k.heads = q / k.head_dim;
		k.kv_heads = kv > 0 ? whole(kv / k.head_dim) : 0;
		if (!k.kv_heads || k.kv_heads > k.heads || k.heads % k.kv_heads)
			k.kv_heads = k.heads;
	}
	k.glu = l->gate;
	k.ffn = whole(l->ffn / h / mats);
	k.experts = l->experts;
	if (k.experts) {
		k.topk = PTC_MIN(k.experts, given->topk ? given->topk : 2);
		k.expert_ffn = whole(l->expert / h / mats / k.experts);
	}
	return k;
}

static int take_layers(const struct stack *s, const struct ptc_infer_given *given, struct ptc_model *m,
		       struct ptc_error *err)
{
	bool attention = false;

	for (uint32_t i = 0; i < s->layers; i++) {
		struct ptc_layer_kind k = kind_of(s, &s->l[i], given);
		uint32_t at = 0;

		if (!s->l[i].seen)
			return ptc_error_set(err, PTC_EINVAL, "no tensor belongs to layer %u of %u", i, s->layers);
		attention = attention || k.heads;
		while (at < m->nkinds && !ptc_layer_kind_same(&m->kinds[at], &k))
			at++;
		if (at == PTC_MODEL_MAX_KINDS)
			return ptc_error_set(err, PTC_EINVAL, "the layers have more than %d kinds",
					     PTC_MODEL_MAX_KINDS);
		if (at == m->nkinds)
			m->kinds[m->nkinds++] = k;
		m->kind[i] = (uint8_t)at;
	}
	if (!attention)
		return ptc_error_set(err, PTC_EINVAL, "no tensor's name belongs to a layer's attention");
	return 0;
}

/* The embedding has the most rows of what is outside layers; as many rows again are the head. */
static void take_ends(const struct ptc_tensor *v, size_t n, struct ptc_model *m)
{
	uint32_t found = 0;
	const char *rest;

	for (int pass = 0; pass < 2; pass++)
		for (size_t i = 0; i < n; i++) {
			const struct ptc_tensor *t = &v[i];
			int64_t rows = t->ndim == 2 ? (t->shape[0] == m->hidden ? t->shape[1] : t->shape[0]) : 0;
			bool wide = t->ndim == 2 && (t->shape[0] == m->hidden || t->shape[1] == m->hidden);

			if (!wide || number_in(t->name, &rest) >= 0 || rows > 1 << 24)
				continue;
			if (HAS(t->name, "pos", "wpe"))
				m->positions = true;
			else if (!pass)
				m->vocab = PTC_MAX(m->vocab, (uint32_t)rows);
			else
				found += rows == m->vocab;
		}
	m->tied = found < 2;
}

int ptc_model_infer(const struct ptc_tensor *v, size_t n, const struct ptc_infer_given *given, struct ptc_model *ret,
		    char what[PTC_INFER_TEXT_MAX], struct ptc_error *err)
{
	struct stack s = { .hidden = most_shared(v, n) };
	struct ptc_error why = PTC_ERROR_INIT;
	const struct ptc_layer_kind *k = &ret->kinds[0];
	int rc = 0;

	memset(ret, 0, sizeof *ret);
	if (s.hidden <= 0 || s.hidden > 1 << 20)
		rc = ptc_error_set(&why, PTC_EINVAL, "no layers with matrices");
	for (size_t i = 0; i < n && !rc; i++)
		rc = add(&s, &v[i], &why);
	ret->hidden = (uint32_t)s.hidden;
	ret->layers = s.layers;
	ret->seq = given->seq;
	ret->bias = s.bias;
	ret->flash = true;
	if (!rc)
		rc = take_layers(&s, given, ret, &why);
	if (!rc)
		take_ends(v, n, ret);
	if (!rc)
		rc = ptc_model_check(ret, &why);
	if (rc)
		return ptc_error_set(
			err, PTC_EINVAL,
			"the tensors do not look like a transformer (%s); describe the model with \"model:\"",
			why.text);
	while (!k->heads)
		k++;
	snprintf(what, PTC_INFER_TEXT_MAX,
		 "%u layers of %u kind%s, hidden %u, %u heads of %u%s, ffn %u, vocab %u, %s%.3g parameters",
		 ret->layers, ret->nkinds, ret->nkinds == 1 ? "" : "s", ret->hidden, k->heads, k->head_dim,
		 given->heads ? "" : " (the width taken as usual)", k->ffn, ret->vocab,
		 k->experts && !given->topk ? "2 experts for a token (taken as usual), " : "", ptc_model_params(ret));
	return 0;
}
