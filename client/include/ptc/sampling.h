/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: computes which samples of a global batch a rank reads, in which order, and which tokens of a sequence.
 * Functions need no client and no ptcd, run in any thread, and allocate nothing for the caller. Structs begin with
 * `size`; set it to sizeof. ptc/ptc.h includes this header. */
#ifndef PTC_SAMPLING_H
#define PTC_SAMPLING_H

#include <ptc/result.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The settings of a job's sampling. They give the same global order under any parallelism (docs/order.md). */
struct ptc_sampling {
	size_t size;
	uint64_t samples, seed; /* samples of the dataset; seed of their order (`data` in job.yaml), not of the job */
	uint64_t global_batch;  /* samples a step consumes */
	uint32_t micro_batch;   /* slots of a rank in a micro step */
	uint32_t dp;            /* data-parallel ranks */
	int32_t sequential;     /* 1: no shuffling */
	/* ptc_generation.config, whose "micro_steps=" gives faster replicas more of a step (docs/order.md, "Unequal
	 * micro steps"). Borrowed. "": all ranks compute equally many micro steps. NULL (also if `size` does not
	 * include this member): the library looks at the generation that ptc_next gave to this process. If dp and
	 * global_batch are those of that generation, its configuration counts, and micro_batch must be the
	 * generation's, too. Otherwise NULL means the same as "". */
	const char *config;
};
/* The number of micro steps in a step, equal on every rank; 0: an argument is out of range. */
PTC_API uint64_t ptc_micro_steps(const struct ptc_sampling *s);
/* The number of micro steps that a rank has to compute. In the further micro steps, up to ptc_micro_steps, all its
 * slots have weight 0. The rank may leave these steps out if no other rank waits for it in them. 0: an argument is out
 * of range. */
PTC_API uint64_t ptc_rank_micro_steps(const struct ptc_sampling *s, uint32_t dp_rank);
/* Computes one micro batch of a rank, for the step that begins at `position` (samples consumed since the job's start).
 * Both arrays take micro_batch entries. A slot of the global batch has weight 1. Slots beyond the batch repeat a sample
 * of it, and have weight 0. The loss of a step is the sum of weight * loss over all ranks and micro steps, divided by
 * global_batch. Returns 0 or PTC_R_INVALID. */
PTC_API int ptc_micro_batch(const struct ptc_sampling *s, uint64_t position, uint64_t micro_step, uint32_t dp_rank,
			    uint64_t *ret_samples, float *ret_weights);

/* Assigns the samples of a step to ranks by cost instead of by count (docs/order.md). The step has the same samples.
 * Only the assignment of samples to ranks changes. A sample costs linear * length + square * length^2. lengths[i] is
 * the length of the i-th sample of the global batch; all ranks must pass equal lengths. ptcd publishes the two
 * coefficients under the key "ptc.length_cost" (ptc_rendezvous_get): the value is "A B", or empty if ptcd has no model
 * of the job. To get the numbers of the samples of the global batch, in the order of lengths[], call ptc_micro_batch
 * with micro_batch = global_batch and dp = 1. ret_slots has micro steps * dp * micro_batch entries. Slot k of a rank in
 * a micro step is at index (micro_step * dp + dp_rank) * micro_batch + k. A value v < global_batch there means sample v
 * of the batch, with weight 1. A value v >= global_batch means padding: sample v - global_batch, with weight 0.
 * ret_balance may be NULL. Returns 0, PTC_R_INVALID (also if the configuration has unequal micro steps), PTC_R_MEMORY,
 * or PTC_R_LIMIT: the sum of costs does not fit 64 bits. */
struct ptc_balance {
	size_t size;
	/* Costs of a step. max: of the busiest rank. total: of all ranks, with padding. The mean is total / dp. */
	uint64_t max, total;
	uint64_t count_max, count_total; /* the same if the samples are assigned by count */
};
PTC_API int ptc_balance_step(const struct ptc_sampling *s, const uint64_t *lengths, uint64_t linear, uint64_t square,
			     uint64_t *ret_slots, struct ptc_balance *ret_balance);

/* Computes the slices of a sequence of `length` tokens that a context-parallel rank has. A slice has tokens first to
 * first + length - 1; the first `real` of them lie inside the sequence, and the others are padding.
 * zigzag 0: the rank has chunk cp_rank of cp equal chunks. zigzag 1: it has chunks cp_rank and 2 * cp - 1 - cp_rank of
 * 2 * cp chunks, which gives all ranks equal work under causal attention. All slices have the same length. Returns the
 * number of slices, 1 or 2, or PTC_R_INVALID. */
struct ptc_slice {
	uint64_t first, length, real;
};
PTC_API int ptc_sequence_slice(uint64_t length, uint32_t cp, uint32_t cp_rank, int zigzag,
			       struct ptc_slice ret_slices[2]);

#ifdef __cplusplus
}
#endif
#endif
