/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the declaration of one rank of a probe from its messages into a merge (reshard/layout/declared.h). Every number
 * comes from a program and is checked.
 *
 * Happy path: add each TENSOR message, merge at DECLARED, clear for the next rank. Memory grows with what one rank
 * declares, up to CTL_DECLARATION_BYTES.
 *
 * Failure modes: PTC_ELAYOUT naming the tensor, PTC_EINVAL for what is no message, PTC_ELIMIT, PTC_ENOMEM. */
#pragma once

#include "reshard/layout/declared.h"

#define CTL_DECLARATION_BYTES (UINT64_C(256) << 20)

struct ctl_declaration {
	struct ctl_declared_tensor *tensors; /* private */
	size_t ntensors, tensors_cap;
	char *names; /* of all tensors, each with its NUL */
	size_t names_len, names_cap;
	int64_t *off, *ext; /* of all boxes */
	size_t nnumbers, off_cap, ext_cap;
	uint64_t memory; /* bytes of all this */
};
int ctl_declaration_add(struct ctl_declaration *d, const void *message, size_t len, struct ptc_error *err);
int ctl_declaration_merge(const struct ctl_declaration *d, struct ptc_declared_merge *m, uint32_t rank,
			  struct ptc_error *err);
void ctl_declaration_clear(struct ctl_declaration *d); /* keeps the memory */
void ctl_declaration_done(struct ctl_declaration *d);
