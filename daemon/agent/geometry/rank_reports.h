/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of other nodes say, at the controller: out of the wire into what is merged. Every
 * number from the wire is checked. */
#pragma once

#include "base/status.h"
#include "formats/state/state_doc.h"
#include "reshard/layout/declared.h"
#include "reshard/spec/config.h"

struct Ptc__V1__RankLayout;
struct Ptc__V1__RankState;
/* Of Build's reply into a merge; of Capture's last message into a state document. Check every number from the wire. */
int ptc_agent_declared_add(struct ptc_declared_merge *m, const struct Ptc__V1__RankLayout *rank, struct ptc_error *err);
int ptc_agent_state_add(struct ptc_state *s, const struct ptc_config *config, const struct Ptc__V1__RankState *rank,
			struct ptc_error *err);
