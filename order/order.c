/* SPDX-License-Identifier: Apache-2.0 */
/* The order of samples is a permutation: a Feistel network over Z_rows x Z_columns with cycle walking (J. Round
 * functions are streams of SplitMix64 (G. Steele, D. Lea, C. Flood: Fast Splittable Pseudorandom Number Generators,
 * OOPSLA 2014), reduced to a range by the high half of a product (D. Lemire: Fast Random Integer Generation in an
 * Interval, 2019; without its rejection: the bias is below range / 2^64). Why these sizes: docs/order.md.
 *
 * Happy path: above 70 samples, rows * columns exceeds nsamples by less than rows, so a walk takes little more than one
 * turn. With fewer samples it takes rows * columns / nsamples turns on average, at most; 64 places are the fewest.
 * Failure modes: none; a walk returns to where it began at the latest. */
#include "order/internal.h"

#define ROUNDS   12
#define MIN_SIDE 8
#define GAMMA    UINT64_C(0x9E3779B97F4A7C15)

struct keys {
	uint64_t round[ROUNDS];
};

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

static uint64_t splitmix(uint64_t s, uint64_t i)
{
	return mix(s + (i + 1) * GAMMA);
}

uint64_t ptc_order_seed(uint64_t seed, uint64_t i)
{
	return splitmix(seed, 1 + i);
}

/* floor(z * n / 2^64) for n <= 2^32, without 128-bit arithmetic. */
static uint64_t scale(uint64_t z, uint64_t n)
{
	return ((z >> 32) * n + (((z & UINT32_MAX) * n) >> 32)) >> 32;
}

static struct keys epoch_keys(const struct ptc_order *order, uint64_t epoch)
{
	uint64_t key = mix(splitmix(order->seed, 0) + epoch);
	struct keys keys;

	for (uint64_t i = 0; i < ROUNDS; i++)
		keys.round[i] = splitmix(key, i);
	return keys;
}

static uint64_t forward(const struct ptc_order *o, const struct keys *keys, uint64_t x)
{
	do {
		uint64_t row = x / o->columns, column = x % o->columns;

		for (int i = 0; i < ROUNDS; i += 2) {
			row += scale(splitmix(keys->round[i], column), o->rows);
			row -= row >= o->rows ? o->rows : 0;
			column += scale(splitmix(keys->round[i + 1], row), o->columns);
			column -= column >= o->columns ? o->columns : 0;
		}
		x = row * o->columns + column;
	} while (x >= o->nsamples);
	return x;
}

static uint64_t backward(const struct ptc_order *o, const struct keys *keys, uint64_t x)
{
	do {
		uint64_t row = x / o->columns, column = x % o->columns;

		for (int i = ROUNDS - 2; i >= 0; i -= 2) {
			column += o->columns - scale(splitmix(keys->round[i + 1], row), o->columns);
			column -= column >= o->columns ? o->columns : 0;
			row += o->rows - scale(splitmix(keys->round[i], column), o->rows);
			row -= row >= o->rows ? o->rows : 0;
		}
		x = row * o->columns + column;
	} while (x >= o->nsamples);
	return x;
}

static uint64_t sqrt_ceil(uint64_t n)
{
	uint64_t root = 0;

	for (uint64_t bit = UINT64_C(1) << 31; bit; bit >>= 1)
		if ((root + bit) * (root + bit) < n)
			root += bit;
	return root + 1; /* the greatest root with root^2 < n, plus 1 */
}

bool ptc_order_init(struct ptc_order *ret_order, uint64_t nsamples, uint64_t seed)
{
	struct ptc_order o = { .nsamples = nsamples, .seed = seed, .shuffled = true };

	if (!nsamples || nsamples > PTC_ORDER_MAX)
		return false;
	o.rows = sqrt_ceil(nsamples);
	if (o.rows < MIN_SIDE)
		o.rows = MIN_SIDE;
	o.rows += o.rows & 1; /* an even side: otherwise all rounds are even permutations, and so is the result */
	o.columns = nsamples / o.rows + (nsamples % o.rows != 0);
	if (o.columns < MIN_SIDE)
		o.columns = MIN_SIDE;
	*ret_order = o;
	return true;
}

bool ptc_order_init_sequential(struct ptc_order *ret_order, uint64_t nsamples)
{
	if (!ptc_order_init(ret_order, nsamples, 0))
		return false;
	ret_order->shuffled = false;
	return true;
}

bool ptc_order_init_blocks(struct ptc_order *ret_order, uint64_t nsamples, uint64_t seed, uint64_t block)
{
	if (!block || !ptc_order_init(ret_order, nsamples, seed))
		return false;
	ret_order->block = block;
	return true;
}

/* The order of the block that holds sample or place i, and its first sample. */
static struct ptc_order block_order(const struct ptc_order *o, uint64_t i, uint64_t *ret_first)
{
	struct ptc_order inner;
	uint64_t first = i - i % o->block, left = o->nsamples - first;

	ptc_order_init(&inner, left < o->block ? left : o->block, ptc_order_seed(o->seed, i / o->block));
	*ret_first = first;
	return inner;
}

uint64_t ptc_order_at(const struct ptc_order *order, uint64_t epoch, uint64_t i)
{
	struct ptc_order inner;
	struct keys keys;
	uint64_t first;

	if (i >= order->nsamples)
		return PTC_ORDER_NONE;
	if (!order->shuffled)
		return i;
	if (order->block) {
		inner = block_order(order, i, &first);
		return first + ptc_order_at(&inner, epoch, i - first);
	}
	keys = epoch_keys(order, epoch);
	return forward(order, &keys, i);
}

uint64_t ptc_order_find(const struct ptc_order *order, uint64_t epoch, uint64_t sample)
{
	struct ptc_order inner;
	struct keys keys;
	uint64_t first;

	if (sample >= order->nsamples)
		return PTC_ORDER_NONE;
	if (!order->shuffled)
		return sample;
	if (order->block) {
		inner = block_order(order, sample, &first);
		return first + ptc_order_find(&inner, epoch, sample - first);
	}
	keys = epoch_keys(order, epoch);
	return backward(order, &keys, sample);
}

/* As ptc_order_fill, a block at a time: its keys are made once. */
static void fill_blocks(const struct ptc_order *o, uint64_t epoch, uint64_t i, uint64_t n, uint64_t *ret)
{
	while (n) {
		uint64_t first;
		struct ptc_order inner = block_order(o, i, &first);
		struct keys keys = epoch_keys(&inner, epoch);

		for (; n && i < first + inner.nsamples; n--, i++)
			*ret++ = first + forward(&inner, &keys, i - first);
		if (i == o->nsamples) {
			i = 0;
			epoch++;
		}
	}
}

bool ptc_order_fill(const struct ptc_order *order, uint64_t position, uint64_t n, uint64_t *ret_samples)
{
	uint64_t epoch = position / order->nsamples, i = position % order->nsamples;
	struct keys keys = epoch_keys(order, epoch);

	if (n > UINT64_MAX - position)
		return false;
	if (order->block) {
		fill_blocks(order, epoch, i, n, ret_samples);
		return true;
	}
	for (uint64_t k = 0; k < n; k++, i++) {
		if (i == order->nsamples) {
			i = 0;
			keys = epoch_keys(order, ++epoch);
		}
		ret_samples[k] = order->shuffled ? forward(order, &keys, i) : i;
	}
	return true;
}

bool ptc_batch_init(struct ptc_batch *ret_batch, uint64_t global, uint32_t micro, uint32_t dp)
{
	uint64_t width = (uint64_t)micro * dp;

	if (!global || !width || global > PTC_ORDER_MAX || width > PTC_ORDER_MAX)
		return false;
	*ret_batch = (struct ptc_batch){ .global = global,
					 .n_micro = global / width + (global % width != 0),
					 .width = width,
					 .micro = micro,
					 .dp = dp };
	return true;
}

/* The slot of the first of a rank's slots in a micro step that it computes: as many as all ranks have in the micro
 * steps before, and as those before it have in this one. false: it computes fewer micro steps. */
static bool slot_of_runs(const struct ptc_batch *b, uint64_t micro_step, uint32_t dp_rank, uint64_t *ret)
{
	uint64_t before = 0, first = 0;
	bool mine = false;

	for (uint32_t i = 0; i < b->runs.n; i++) {
		uint64_t ranks = b->runs.v[i].ranks, steps = b->runs.v[i].steps;
		bool has = steps > micro_step;

		before += ranks * (has ? micro_step : steps);
		if (dp_rank >= first + ranks)
			before += has ? ranks : 0;
		else if (dp_rank >= first) {
			before += has ? dp_rank - first : 0;
			mine = has;
		}
		first += ranks;
	}
	*ret = before * b->micro;
	return mine;
}

bool ptc_batch_slot(const struct ptc_batch *batch, uint64_t micro_step, uint32_t dp_rank, uint64_t k,
		    uint64_t *ret_offset)
{
	uint64_t slot;
	bool computes = true;

	if (micro_step >= batch->n_micro || dp_rank >= batch->dp || k >= batch->micro) {
		*ret_offset = PTC_ORDER_NONE;
		return false;
	}
	/* Less than global + width, so it fits. */
	slot = micro_step * batch->width + (uint64_t)dp_rank * batch->micro;
	if (batch->runs.n) /* where it does not compute, any sample will do */
		computes = slot_of_runs(batch, micro_step, dp_rank, &slot);
	slot += k;
	*ret_offset = slot % batch->global;
	return computes && slot < batch->global;
}

bool ptc_batch_fill(const struct ptc_batch *batch, const struct ptc_order *order, uint64_t position,
		    uint64_t micro_step, uint32_t dp_rank, uint64_t *ret_samples, float *ret_weights)
{
	uint64_t offset;

	if (micro_step >= batch->n_micro || dp_rank >= batch->dp || batch->global > UINT64_MAX - position)
		return false;
	/* Neighbouring slots are neighbours in the batch, but where padding starts over: up to there at a time. */
	for (uint64_t k = 0, n; k < batch->micro; k += n) {
		bool real = ptc_batch_slot(batch, micro_step, dp_rank, k, &offset);

		n = batch->global - offset;
		if (n > batch->micro - k)
			n = batch->micro - k;
		ptc_order_fill(order, position + offset, n, ret_samples + k);
		for (uint64_t j = k; j < k + n; j++)
			ret_weights[j] = real ? 1.0f : 0.0f;
	}
	return true;
}
