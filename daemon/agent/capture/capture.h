/* SPDX-License-Identifier: Apache-2.0 */
/* Capture: a snapshot from ranks that wait at a boundary. Failure modes: capture.c. */
#pragma once

#include "rpc/server/server.h"

int ptc_agent_on_capture(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
