/* SPDX-License-Identifier: Apache-2.0 */
/* Lending chunk files to readers on this node: proto/lend.h. */
#pragma once

#include "base/status.h"
#include "daemon/agent/calls/agent_env.h"

/* Listens beside socket_path, with a thread of its own. Free before the agent. */
struct ptc_lend;
int ptc_lend_new(struct ptc_agent *agent, const char *socket_path, struct ptc_lend **ret_lend, struct ptc_error *err);
struct ptc_lend *ptc_lend_free(struct ptc_lend *l); /* NULL ok */
