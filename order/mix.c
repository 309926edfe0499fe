/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures: which part each position is drawn from. Parts take positions in order of falling weight. Each part takes
 * its share of the positions that earlier parts have left. A part takes the i-th of these positions if floor(i * w /
 * rest) grows there, as Bresenham draws a line. w is the part's weight, and rest is the weight of this part and all
 * later ones. Counts follow from a position alone, so nothing is kept.
 *
 * Happy path: a division per part. Failure modes: none after ptc_mix_init. */
#include "order/internal.h"

/* floor(p * w / rest) for w <= rest < 2^32. */
static uint64_t share(uint64_t p, uint64_t w, uint64_t rest)
{
	return p / rest * w + p % rest * w / rest;
}

static bool init_order(struct ptc_order *ret, const struct ptc_mix_part *p, uint64_t seed)
{
	if (p->sequential)
		return !p->block && ptc_order_init_sequential(ret, p->nsamples);
	return p->block ? ptc_order_init_blocks(ret, p->nsamples, seed, p->block)
			: ptc_order_init(ret, p->nsamples, seed);
}

/* By falling weight, equal ones as they were given. */
static void take_turns(struct ptc_mix *m)
{
	for (uint32_t i = 0; i < m->nparts; i++) {
		uint32_t k = i;

		for (; k && m->weight[m->turn[k - 1]] < m->weight[i]; k--)
			m->turn[k] = m->turn[k - 1];
		m->turn[k] = i;
	}
}

bool ptc_mix_init(struct ptc_mix *ret_mix, const struct ptc_mix_part *parts, uint32_t nparts, uint64_t seed)
{
	struct ptc_mix m = { .nparts = nparts };

	if (!nparts || nparts > PTC_MIX_MAX)
		return false;
	for (uint32_t i = 0; i < nparts; i++) {
		if (!parts[i].weight ||
		    !init_order(&m.order[i], &parts[i], nparts > 1 ? ptc_order_seed(seed, i) : seed))
			return false;
		m.weight[i] = parts[i].weight;
		m.total += parts[i].weight;
		m.first[i] = m.nsamples;
		m.nsamples += parts[i].nsamples;
		if (m.nsamples > PTC_ORDER_MAX)
			return false;
	}
	m.first[nparts] = m.nsamples;
	take_turns(&m);
	if (m.total > UINT32_MAX)
		return false;
	*ret_mix = m;
	return true;
}

uint64_t ptc_mix_count(const struct ptc_mix *mix, uint32_t part, uint64_t position)
{
	uint64_t rest = mix->total;

	for (uint32_t k = 0; k < mix->nparts; k++) {
		uint32_t i = mix->turn[k];
		uint64_t taken = share(position, mix->weight[i], rest);

		if (i == part)
			return taken;
		position -= taken;
		rest -= mix->weight[i];
	}
	return 0;
}

struct ptc_mix_sample ptc_mix_at(const struct ptc_mix *mix, uint64_t position)
{
	struct ptc_mix_sample s = { 0 };
	uint64_t rest = mix->total, p = position;

	for (uint32_t k = 0; k < mix->nparts; k++) {
		const uint32_t i = mix->turn[k];
		const struct ptc_order *o = &mix->order[i];
		uint64_t before = share(p, mix->weight[i], rest);
		/* As one more than p may not fit, by the remainder: the share grows where w more reaches the next
		 * multiple. */
		bool here = p % rest * mix->weight[i] % rest + mix->weight[i] >= rest;

		if (here) {
			s.part = i;
			s.before = before;
			s.sample = ptc_order_at(o, before / o->nsamples, before % o->nsamples);
			s.id = mix->first[i] + s.sample;
			return s;
		}
		p -= before;
		rest -= mix->weight[i];
	}
	return s; /* not reached: the last part takes whatever is left */
}
