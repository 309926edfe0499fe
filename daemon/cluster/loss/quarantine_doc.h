/* SPDX-License-Identifier: Apache-2.0 */
/* /ptc/nodes-losses/NAME: how often the node was lost, and until when it is quarantined. A daemon that knows more than
 * the document writes it anew, by a transaction that compares what it has seen of it, and its own node's key.
 *
 * The document has wall-clock times, so daemons whose clocks differ see a quarantine end earlier or later by so much;
 * never later than the longest one from now.
 *
 * Plain data; no thread. Failure modes: PTC_EINVAL (malformed), memory. */
#pragma once

#include "base/status.h"
#include "daemon/cluster/loss/quarantine.h"

#include <stddef.h>

/* JSON for ptc_free; NULL: out of memory. now_ms: Unix time at now_ns. */
char *ptc_quarantine_encode(const struct ptc_quarantine *q, int64_t now_ns, int64_t now_ms);
int ptc_quarantine_decode(const char *json, size_t len, int64_t now_ns, int64_t now_ms, struct ptc_quarantine *ret,
			  struct ptc_error *err);
