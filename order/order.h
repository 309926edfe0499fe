/* SPDX-License-Identifier: Apache-2.0 */
/* Which samples a training job consumes, in which order, and which rank gets which of them: the one definition.
 *
 * Happy path: an order is made from the number of samples and a seed; the job's position counts the samples consumed
 * since its start; a step consumes the next global batch; each data-parallel rank asks for its micro batches of it.
 * Any element is computed from its index alone, so that a job goes on from its position under any parallelism.
 *
 * Failure modes: arguments out of range are refused (false, or PTC_ORDER_NONE); there is no other.
 *
 * What is computed here never changes, because jobs rely on it in every version; docs/order.md defines it exactly.
 * Pure, libc only, allocates nothing; all functions are thread-safe on objects that nobody writes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PTC_ORDER_MAX  (UINT64_C(1) << 63) /* samples, and slots of a batch: sums of two stay in 64 bits */
#define PTC_ORDER_NONE UINT64_MAX          /* no sample, position or offset */

/* The order of the samples in every epoch. In the caller's memory, no clean-up; the members are for order.c. */
struct ptc_order {
	uint64_t nsamples;
	uint64_t seed;
	uint64_t rows, columns;
	uint64_t block; /* 0: the samples are shuffled as one */
	bool shuffled;
};

/* A permutation of [0, nsamples) for each epoch, drawn by seed and epoch. false: nsamples is 0 or above PTC_ORDER_MAX.
 */
bool ptc_order_init(struct ptc_order *ret_order, uint64_t nsamples, uint64_t seed);
/* The same without shuffling: every epoch is 0, 1, 2 ... */
bool ptc_order_init_sequential(struct ptc_order *ret_order, uint64_t nsamples);

/* The same, shuffled only within blocks of `block` neighbouring samples (the last may have fewer): each block stays
 * where it is, so samples that are read together lie together. false: also for block 0. */
bool ptc_order_init_blocks(struct ptc_order *ret_order, uint64_t nsamples, uint64_t seed, uint64_t block);

/* The sample at place i of an epoch; PTC_ORDER_NONE unless i < nsamples. */
uint64_t ptc_order_at(const struct ptc_order *order, uint64_t epoch, uint64_t i);
/* The place of a sample in an epoch, the inverse of ptc_order_at; PTC_ORDER_NONE unless sample < nsamples. */
uint64_t ptc_order_find(const struct ptc_order *order, uint64_t epoch, uint64_t sample);
/* The n samples from a position of the job on: position p is place p % nsamples of epoch p / nsamples, so nothing is
 * dropped or repeated where an epoch ends. false, and nothing written: position + n exceeds 64 bits. */
bool ptc_order_fill(const struct ptc_order *order, uint64_t position, uint64_t n, uint64_t *ret_samples);

/* Several sets of samples (parts), drawn from by weight, each in its own order, interleaved evenly. Among the first p
 * samples, a part has at most one sample less than its share of p, and less than 1 + ln(number of parts) more. The
 * samples of all parts have one numbering: those of part j are first[j] .. first[j + 1] - 1. A mixture of one part is
 * that part's order with the seed of the mixture. In the caller's memory, no clean-up; the members are for mix.c. */
#define PTC_MIX_MAX 64
struct ptc_mix_part {
	uint64_t nsamples;
	uint32_t weight; /* at least 1; all together at most UINT32_MAX */
	uint64_t block;  /* as of ptc_order_init_blocks; 0: none */
	bool sequential;
};
struct ptc_mix {
	uint32_t nparts;
	uint64_t nsamples; /* of all parts */
	uint32_t weight[PTC_MIX_MAX], turn[PTC_MIX_MAX];
	uint64_t first[PTC_MIX_MAX + 1];
	uint64_t total;
	struct ptc_order order[PTC_MIX_MAX];
};
/* false: a number is out of range, or all samples are more than PTC_ORDER_MAX. */
bool ptc_mix_init(struct ptc_mix *ret_mix, const struct ptc_mix_part *parts, uint32_t nparts, uint64_t seed);
/* The sample at a position of the job, numbered through; its part, and how many of that part came before it. */
struct ptc_mix_sample {
	uint64_t id, sample, before; /* sample: its number in its part */
	uint32_t part;
};
struct ptc_mix_sample ptc_mix_at(const struct ptc_mix *mix, uint64_t position);
/* How many of the first `position` samples are of a part. */
uint64_t ptc_mix_count(const struct ptc_mix *mix, uint32_t part, uint64_t position);

/* How many micro steps of a step ranks compute, where some compute more than others: the first v[0].ranks ranks compute
 * v[0].steps each, the next v[1].ranks ranks v[1].steps, and so on. As text "2x6:4x3": 2 ranks 6 each, 4 ranks 3 each.
 */
#define PTC_MICRO_RUNS_MAX  8
#define PTC_MICRO_RANKS_MAX 99999
#define PTC_MICRO_STEPS_MAX 99999
#define PTC_MICRO_TEXT_MAX  (PTC_MICRO_RUNS_MAX * 12 + 1)
struct ptc_micro_runs {
	uint32_t n; /* 0: all ranks compute equally many */
	struct ptc_micro_run {
		uint32_t ranks, steps;
	} v[PTC_MICRO_RUNS_MAX];
};
/* false, and nothing written: not such a text, a number that is 0 or too large, more than PTC_MICRO_RUNS_MAX runs, or
 * neighbours with equal steps, which are one run. */
bool ptc_micro_runs_parse(const char *text, size_t len, struct ptc_micro_runs *ret_runs);
/* "" if n is 0. */
void ptc_micro_runs_format(const struct ptc_micro_runs *runs, char buf[PTC_MICRO_TEXT_MAX]);
uint32_t ptc_micro_runs_ranks(const struct ptc_micro_runs *runs); /* all together */

/* How a global batch is divided. In the caller's memory, no clean-up. A step has n_micro micro steps; in each, each of
 * dp ranks has micro slots. Read the members, do not write them. */
struct ptc_batch {
	uint64_t global;
	uint64_t n_micro; /* ceil(global / (micro * dp)), the same for all ranks; with runs the most of a rank */
	uint64_t width;   /* micro * dp */
	uint32_t micro;
	uint32_t dp;
	struct ptc_micro_runs runs; /* n 0: all ranks compute n_micro micro steps */
};

/* false: one of the numbers is 0, or global or micro * dp is above PTC_ORDER_MAX. */
bool ptc_batch_init(struct ptc_batch *ret_batch, uint64_t global, uint32_t micro, uint32_t dp);
/* The same with ranks that compute unequally many micro steps. After its own micro steps, all slots of a rank are
 * padding, so it does no harm if the rank computes all n_micro. runs->n 0 is ptc_batch_init. false: also if the runs
 * are not of dp ranks, or have fewer slots than the batch has samples. */
bool ptc_batch_init_runs(struct ptc_batch *ret_batch, uint64_t global, uint32_t micro, uint32_t dp,
			 const struct ptc_micro_runs *runs);
/* How many micro steps a rank has to compute: those after them are padding. 0: no such rank. */
uint64_t ptc_batch_steps(const struct ptc_batch *batch, uint32_t dp_rank);

/* Gives the sample in slot k of a rank in a micro step, as an offset in the global batch (0 .. global - 1). true: each
 * sample is in exactly one such slot. false: the slot is padding; it repeats a sample of the batch, with weight 0.
 * false with PTC_ORDER_NONE: micro step, rank or slot does not exist. */
bool ptc_batch_slot(const struct ptc_batch *batch, uint64_t micro_step, uint32_t dp_rank, uint64_t k,
		    uint64_t *ret_offset);

/* A rank's whole micro batch, when the global batch starts at a position of the job: batch->micro samples, and their
 * weights, 1 or 0. The loss of a step is the sum of weight * loss over all ranks and micro steps, divided by global
 * (never by the number or the weights of a rank's own slots: a micro batch can be all padding).
 * false, and nothing written: no such micro step or rank, or position + global exceeds 64 bits. */
bool ptc_batch_fill(const struct ptc_batch *batch, const struct ptc_order *order, uint64_t position,
		    uint64_t micro_step, uint32_t dp_rank, uint64_t *ret_samples, float *ret_weights);

/* What a sample of s tokens costs: linear * s + square * s * s. */
struct ptc_cost {
	uint64_t linear, square;
};
/* The caller's memory; the members are for balance.c. */
struct ptc_balance_item {
	uint64_t cost, count, index;
};
/* What a step costs, padding slots included. max: of the rank with the greatest cost; total: of all ranks. count_*: the
 * same if the batch is divided by count (ptc_batch_slot). The mean is total / dp. */
struct ptc_batch_cost {
	uint64_t max, total;
	uint64_t count_max, count_total;
};
/* The number of items that ptc_batch_balance needs as `work`. 0: the batch is empty or has runs, or the items' bytes
 * exceed 64 bits. */
uint64_t ptc_balance_work(const struct ptc_batch *batch);
/* Assigns the samples to the same number of slots by what they cost. lengths[i]: length of the sample at offset i of
 * the global batch. ret_slots has n_micro * width entries; slot k of rank d in micro step m is entry m * width + d *
 * micro + k. An entry is the offset of its sample, each once; for padding, it is global + the offset of a repeated
 * sample. If ranks have k slots each, the greatest cost of a rank is at most 2 - 1/k times that of the best assignment,
 * and never above that of a division by count. false, and nothing written: slots times the greatest cost exceed 64
 * bits, or ptc_balance_work gives 0.
 */
bool ptc_batch_balance(const struct ptc_batch *batch, const uint64_t *lengths, struct ptc_cost cost,
		       struct ptc_balance_item *work, uint64_t *ret_slots, struct ptc_batch_cost *ret_cost);

/* How a sequence is cut into equal chunks for cp ranks that share it (context parallelism). Plain: there are cp chunks,
 * and rank r has chunk r. Zig-zag: there are 2 * cp chunks, and rank r has chunk r and then chunk 2 * cp - 1 - r; so
 * ranks have equal work if tokens attend to earlier ones. A chunk has tokens first .. first + length - 1. The first
 * `real` of them are of the sequence, the others are padding. */
struct ptc_chunk {
	uint64_t first, length, real;
};
/* Gives a rank's chunks in their order, and returns their number, 1 or 2. A length that the number of chunks does not
 * divide is padded at its end to the next multiple. A caller that cannot pad refuses chunks with real < length. 0, and
 * nothing written: length is 0 or above PTC_ORDER_MAX, or there is no such rank. */
uint32_t ptc_order_chunks(uint64_t length, uint32_t cp, uint32_t cp_rank, bool zigzag, struct ptc_chunk ret_chunks[2]);

#ifdef __cplusplus
}
#endif
