/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of ranks on other nodes, at the controller: declarations and rank states, from the wire into merges. */
#pragma once

#include "base/status.h"
#include "formats/state/state_doc.h"
#include "reshard/layout/declared.h"
#include "reshard/spec/config.h"

struct Ptc__V1__RankLayout;
struct Ptc__V1__RankState;
/* Add a rank's declaration from Build's reply to a merge, and a rank's state from Capture's last message to a state
 * document. Both check every number from the wire. */
int ptc_agent_declared_add(struct ptc_declared_merge *m, const struct Ptc__V1__RankLayout *rank, struct ptc_error *err);
int ptc_agent_state_add(struct ptc_state *s, const struct ptc_config *config, const struct Ptc__V1__RankState *rank,
			struct ptc_error *err);
