/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: the order of samples (order/order.h), for programs. Happy path: arithmetic. Failure modes: arguments out of
 * range; for ptc_balance_step no memory to work with, and costs that are too large. */
#include "client/lib/internal.h"

#include "order/order.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* What a generation of this process says of unequal micro steps. Never freed, so that readers need no lock, also in a
 * child after fork; there are as many as configurations that differ. */
struct division {
	struct division *next;
	uint32_t dp, micro_batch;
	uint64_t global_batch;
	struct ptc_micro_runs runs;
};
static _Atomic(struct division *) divisions;
static _Atomic(const struct division *) newest; /* of the process's last generation; NULL: equal micro steps */

const char *ptc_client_config_value(const char *config, const char *key, size_t *ret_len)
{
	size_t n, len = strlen(key);

	for (const char *p = config; p && *p; p += n + (p[n] != '\0')) {
		n = strcspn(p, ",");
		if (n > len && !strncmp(p, key, len) && p[len] == '=') {
			*ret_len = n - len - 1;
			return p + len + 1;
		}
	}
	return NULL;
}

/* The configuration's micro steps. false: they are none, which ptcd never says. */
static bool micro_runs(const char *config, struct ptc_micro_runs *ret)
{
	size_t n;
	const char *text = ptc_client_config_value(config, "micro_steps", &n);

	*ret = (struct ptc_micro_runs){ 0 };
	return !text || ptc_micro_runs_parse(text, n, ret);
}

static bool same_division(const struct division *a, const struct division *b)
{
	return a->dp == b->dp && a->micro_batch == b->micro_batch && a->global_batch == b->global_batch &&
	       !memcmp(&a->runs, &b->runs, sizeof a->runs);
}

/* Without memory: no division is known, and what a program computes is what it would be without this. */
void ptc_client_sampling_is(const ptc_client *c)
{
	const struct ptc_local_generation *g = &c->generation;
	struct division d = { .dp = g->degrees[2], .micro_batch = g->micro_batch, .global_batch = g->global_batch };
	struct division *p = NULL;

	if (micro_runs(c->config, &d.runs) && d.runs.n > 1) {
		for (p = atomic_load(&divisions); p && !same_division(p, &d); p = p->next)
			;
		if (!p && (p = malloc(sizeof *p)) != NULL) {
			*p = d;
			p->next = atomic_load(&divisions);
			while (!atomic_compare_exchange_weak(&divisions, &p->next, p))
				;
		}
	}
	atomic_store(&newest, p);
}

/* A program that names no configuration means the one that it runs. false: it divides the same batch in another way, so
 * that ranks would compute samples twice, and others never. */
static bool own_runs(const struct ptc_sampling *s, struct ptc_micro_runs *ret)
{
	const struct division *d = atomic_load(&newest);

	*ret = (struct ptc_micro_runs){ 0 };
	if (!d || d->dp != s->dp || d->global_batch != s->global_batch)
		return true;
	*ret = d->runs;
	return d->micro_batch == s->micro_batch;
}

#define OUT_OF_RANGE                                                                                                   \
	"an argument is out of range, or micro_batch is not that of the configuration, whose micro_steps divide the "  \
	"batch"

static bool sampling(const struct ptc_sampling *s, struct ptc_order *ret_order, struct ptc_batch *ret_batch)
{
	struct ptc_micro_runs runs;
	const char *config = s && s->size >= sizeof *s ? s->config : NULL;

	if (!s || s->size < offsetof(struct ptc_sampling, config) ||
	    !(config ? micro_runs(config, &runs) : own_runs(s, &runs)))
		return false;
	return (s->sequential ? ptc_order_init_sequential(ret_order, s->samples)
			      : ptc_order_init(ret_order, s->samples, s->seed)) &&
	       ptc_batch_init_runs(ret_batch, s->global_batch, s->micro_batch, s->dp, &runs);
}

uint64_t ptc_micro_steps(const struct ptc_sampling *s)
{
	struct ptc_order order;
	struct ptc_batch batch;

	return sampling(s, &order, &batch) ? batch.n_micro : 0;
}

uint64_t ptc_rank_micro_steps(const struct ptc_sampling *s, uint32_t dp_rank)
{
	struct ptc_order order;
	struct ptc_batch batch;

	return sampling(s, &order, &batch) ? ptc_batch_steps(&batch, dp_rank) : 0;
}

int ptc_micro_batch(const struct ptc_sampling *s, uint64_t position, uint64_t micro_step, uint32_t dp_rank,
		    uint64_t *ret_samples, float *ret_weights)
{
	struct ptc_order order;
	struct ptc_batch batch;

	if (!ret_samples || !ret_weights || !sampling(s, &order, &batch) ||
	    !ptc_batch_fill(&batch, &order, position, micro_step, dp_rank, ret_samples, ret_weights))
		return ptc_client_fail(NULL, PTC_R_INVALID, "ptc_micro_batch: " OUT_OF_RANGE);
	return 0;
}

int ptc_balance_step(const struct ptc_sampling *s, const uint64_t *lengths, uint64_t linear, uint64_t square,
		     uint64_t *ret_slots, struct ptc_balance *ret_balance)
{
	struct ptc_order order;
	struct ptc_batch batch;
	struct ptc_batch_cost cost;
	struct ptc_balance_item *work;
	bool fits;

	if (!lengths || !ret_slots || (ret_balance && ret_balance->size < sizeof *ret_balance) ||
	    !sampling(s, &order, &batch))
		return ptc_client_fail(NULL, PTC_R_INVALID, "ptc_balance_step: " OUT_OF_RANGE);
	if (batch.runs.n)
		return ptc_client_fail(NULL, PTC_R_INVALID,
				       "ptc_balance_step: samples are not assigned by length where ranks compute "
				       "unequally many micro steps");
	work = ptc_balance_work(&batch) ? calloc(ptc_balance_work(&batch), sizeof *work) : NULL;
	if (!work)
		return ptc_client_fail(NULL, PTC_R_MEMORY, "ptc_balance_step: no memory for %llu samples",
				       (unsigned long long)batch.global);
	fits = ptc_batch_balance(&batch, lengths, (struct ptc_cost){ linear, square }, work, ret_slots, &cost);
	free(work);
	if (!fits)
		return ptc_client_fail(NULL, PTC_R_LIMIT,
				       "ptc_balance_step: lengths or coefficients so large that the costs of %llu "
				       "samples do not fit 64 bits when added up",
				       (unsigned long long)batch.global);
	if (ret_balance)
		*ret_balance = (struct ptc_balance){ .size = ret_balance->size,
						     .max = cost.max,
						     .total = cost.total,
						     .count_max = cost.count_max,
						     .count_total = cost.count_total };
	return 0;
}

int ptc_sequence_slice(uint64_t length, uint32_t cp, uint32_t cp_rank, int zigzag, struct ptc_slice ret_slices[2])
{
	struct ptc_chunk chunks[2];
	uint32_t n = ret_slices ? ptc_order_chunks(length, cp, cp_rank, zigzag != 0, chunks) : 0;

	for (uint32_t i = 0; i < n; i++)
		ret_slices[i] = (struct ptc_slice){ chunks[i].first, chunks[i].length, chunks[i].real };
	return n ? (int)n : ptc_client_fail(NULL, PTC_R_INVALID, "ptc_sequence_slice: an argument is out of range");
}
