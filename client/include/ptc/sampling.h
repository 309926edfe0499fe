/* SPDX-License-Identifier: Apache-2.0 */
/* Which samples of a global batch a rank computes, in which order, and which tokens of a sequence: the arithmetic of
 * libptc's part in reading data. Needs no client and no ptcd; pure, any thread. Nothing is allocated for the caller.
 * Structs begin with `size`; set it to sizeof. ptc/ptc.h includes this header. */
#ifndef PTC_SAMPLING_H
#define PTC_SAMPLING_H

#include <ptc/result.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which samples a data-parallel rank computes: the same global order under any parallelism (docs/order.md). Needs no
 * client; pure, any thread. */
struct ptc_sampling {
	size_t size;
	uint64_t samples, seed; /* of the dataset; of the job */
	uint64_t global_batch;  /* samples a step consumes */
	uint32_t micro_batch;   /* slots of a rank in a micro step */
	uint32_t dp;            /* data-parallel ranks */
	int32_t sequential;     /* 1: no shuffling */
};
/* Micro steps of a step, the same on every rank; 0: an argument is out of range. */
PTC_API uint64_t ptc_micro_steps(const struct ptc_sampling *s);
/* A rank's micro batch, where a step begins at `position` (samples consumed since the job's start): micro_batch sample numbers
 * and their weights, 1, or 0 for slots beyond the global batch, which name a sample of it all the same. The loss of a
 * step is the sum of weight * loss over all ranks and micro steps, divided by global_batch. 0 or PTC_R_INVALID. */
PTC_API int ptc_micro_batch(const struct ptc_sampling *s, uint64_t position, uint64_t micro_step, uint32_t dp_rank,
			    uint64_t *ret_samples, float *ret_weights);

/* The same step assigned by what samples cost, linear * length + square * length^2, instead of by count: who computes a sample, never
 * which samples (docs/order.md). lengths[i]: that of the i-th sample of the global batch; ptc_micro_batch gives these in order where
 * micro_batch is global_batch and dp 1. All ranks must give the same. ret_slots has micro steps * dp * micro_batch entries: slot k
 * of a rank in a micro step at (micro_step * dp + dp_rank) * micro_batch + k is sample i of the batch, weight 1, where it is
 * i < global_batch; else sample i - global_batch, weight 0. ret_balance may be NULL. 0, PTC_R_INVALID, PTC_R_MEMORY, or
 * PTC_R_LIMIT: costs do not fit 64 bits when added up. */
struct ptc_balance {
	size_t size;
	uint64_t max, total; /* of a step: the rank that has most to do; all, padding too. The mean is total / dp */
	uint64_t count_max, count_total; /* assigned by count */
};
PTC_API int ptc_balance_step(const struct ptc_sampling *s, const uint64_t *lengths, uint64_t linear, uint64_t square,
			     uint64_t *ret_slots, struct ptc_balance *ret_balance);

/* What a context-parallel rank has of a sequence of `length` tokens: tokens first .. first + length - 1, of which those
 * from the sequence's end on are padding; `real` of them are not. zigzag 0: chunk cp_rank of cp equal ones; 1: chunks cp_rank and
 * 2 * cp - 1 - cp_rank of 2 * cp, which causal attention needs for equal work. Pieces of all ranks have the same length. Returns
 * how many there are, 1 or 2, or PTC_R_INVALID. */
struct ptc_slice {
	uint64_t first, length, real;
};
PTC_API int ptc_sequence_slice(uint64_t length, uint32_t cp, uint32_t cp_rank, int zigzag,
			       struct ptc_slice ret_slices[2]);

#ifdef __cplusplus
}
#endif
#endif
