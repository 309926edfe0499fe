/* SPDX-License-Identifier: Apache-2.0 */
/* A controller's answer to Leave: how far its job is from having left a node (docs/control.md, drain). Daemons send it
 * to each other as JSON, and `ptcctl drain` shows it. Plain data of the caller, any thread.
 *
 * Failure modes: PTC_EINVAL (it is no such answer; the error names the member), PTC_ENOMEM. */
#pragma once

#include "base/status.h"
#include "daemon/cluster/records.h"
#include "formats/json.h"

#include <stdbool.h>
#include <stdint.h>

struct ptc_leaving_answer {
	char job[PTC_NAME_MAX + 1];
	bool over;                /* more time changes nothing */
	bool concerned;           /* the node has something of the job; false: the rest is empty */
	char uuid[PTC_UUID_TEXT]; /* of the job */
	char state[16];           /* "late", "starts", "moved", "copied" */
	uint64_t snapshot, step;
	char why[512];
	uint64_t left_bytes, left_tensors; /* only leaving nodes have these bytes, or no node any more */
};

/* NULL: out of memory. */
json_t *ptc_leaving_answer_json(const struct ptc_leaving_answer *a);
int ptc_leaving_answer_decode(const char *json, struct ptc_leaving_answer *ret, struct ptc_error *err);
