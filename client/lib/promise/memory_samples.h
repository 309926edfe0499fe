/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of declared memory, copied at a boundary and compared where the program says that its update begins: what has
 * changed between them breaks the promise that ptc_survive makes. Which pieces is chosen by a random generator, anew
 * each time: half of them from all bytes alike, half from all boxes alike, so that small tensors come up too. As many
 * as take at most 0.1 % of the time.
 *
 * Memory is read by a system call, for a program that breaks the promise may have unmapped it. Where there is no such
 * call (seccomp), nothing is compared. Memory on devices is never added. The caller's thread only; borrows names and
 * boxes until ptc_samples_done. Failure modes: memory (nothing is compared). Inside libptc. */
#pragma once

#include "proto/local_messages.h"

#define SAMPLE_BYTES 4096 /* of a piece; fewer where fewer lie side by side */
#define SAMPLES_MAX  256
#define SAMPLES_MIN  8 /* what is compared at fewer pieces is not worth its overhead */

struct sampled_box {
	const char *name, *field; /* field "": none */
	const struct ptc_local_box *box;
	uint32_t ndim, element_bytes;
	uint64_t end; /* bytes of all boxes up to this one */
};
struct sample {
	uint32_t box, bytes;
	uint64_t address;
};
struct samples {
	struct sampled_box *boxes;
	size_t nboxes, cap;
	struct sample taken[SAMPLES_MAX];
	unsigned ntaken;
	uint8_t *was, *is; /* of `taken`, one after the other */
	uint64_t random;   /* the generator's state */
	int64_t before_ns; /* when ptc_samples_take was called last; 0: never */
	int64_t credit_ns; /* CPU time that may be spent now */
	int64_t spent_ns;  /* for what is taken, until it is compared */
	int64_t piece_ns;  /* what one piece costs, copied and compared */
	bool off;          /* there is no system call */
};
/* One box of a tensor in host memory, before the first ptc_samples_take. false: out of memory. */
bool ptc_samples_add(struct samples *s, const char *name, const char *field, uint32_t ndim, uint32_t element_bytes,
		     const struct ptc_local_box *box);
void ptc_samples_begin(struct samples *s, uint64_t seed);
/* At a boundary. Forgets what was taken before. */
void ptc_samples_take(struct samples *s);
/* Compares what was taken, once. true: all of it is the same; *ret_changed NULL then means that nothing was taken.
 * false: *ret_changed is a box of which something has changed, or is not there any more. */
bool ptc_samples_same(struct samples *s, const struct sampled_box **ret_changed);
void ptc_samples_done(struct samples *s);
