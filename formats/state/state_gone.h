/* SPDX-License-Identifier: Apache-2.0 */
/* Which blobs a snapshot of held ranks lacks: each rank's own end with its process, and those of a tensor-parallel
 * group end with its last rank. Pure; no failure modes. */
#pragma once

#include "formats/state/state_doc.h"

#include <stdbool.h>
#include <stddef.h>

/* spoke: for each rank of the world, whether s has all blobs that it set. The blobs of the other ranks are not known;
 * they are taken to be those of the ranks that spoke. text: "" if nothing is missing, else as "blobs of rank 1 (rng,
 * where)". */
void ptc_state_gone_text(const struct ptc_state *s, const struct ptc_config *config, uint32_t world, const bool *spoke,
			 char *text, size_t size);
