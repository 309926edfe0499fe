/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, counts and times of the agent, each with its reason. */
#pragma once

#include "base/limits.h"

#define PTC_AGENT_STAGING_MIN    (16u << 20)
#define PTC_AGENT_RECV_TICKET    (2u * PTC_BULK_MESSAGE_BYTES)
#define PTC_AGENT_PUSH_BYTES     (16u << 20) /* copies on their way to other nodes; a part of the transport's share */
#define PTC_AGENT_PULL_THREADS   8
#define PTC_AGENT_LANES          2
#define PTC_AGENT_REQUEST_BYTES  (64 << 20) /* of one Fetch by Pull: small enough to share sources between threads */
#define PTC_AGENT_REQUEST_BOXES  16384
#define PTC_AGENT_DIGEST_THREADS 2
#define PTC_AGENT_TICK_MS        200
#define PTC_AGENT_STALL_MS       60000      /* see ptc_agent_env.stall_ms */
#define PTC_AGENT_GEOMETRIES     8          /* geometries' shapes (geometry_shape.h) kept between calls */
#define PTC_AGENT_FILL_BOXES     (1u << 16) /* missing boxes kept from Prepare to Pull, of a job: 9 MiB of work */
#define PTC_AGENT_REPLICAS_KEPT  (1u << 17) /* boxes of all nodes kept with a geometry's shape: 19 MiB of work */
#define PTC_AGENT_MERGE_BOXES    (1u << 14) /* boxes, and items, of a window of a merge of digests: 3 MiB of work */
#define PTC_AGENT_PLAN_MOVES     (1u << 16) /* of a plan kept with a geometry's shape: 11 MiB of work */
#define PTC_AGENT_BEAT_MS        1000       /* how often a call about ranks says that it goes on */
#define PTC_AGENT_NEAR           24         /* calls that wait until a near node has read; further ones send bytes */
#define PTC_AGENT_NEAR_MS        2000       /* ... at most so long; then it reads without the table being kept for it */
#define PTC_AGENT_RENDEZVOUS     16         /* calls that may wait for a key; further ones have to ask again */
#define PTC_AGENT_RENDEZVOUS_MS  5000       /* the longest wait for a key */
#define PTC_AGENT_RECONCILE_MS   45000 /* a request's wait for ranks that are being brought up; below its own limit */
#define PTC_AGENT_FINISH_MS      15000 /* see ptc_agent_env.finish_wait_ms */
