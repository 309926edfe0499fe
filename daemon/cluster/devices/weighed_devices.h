/* SPDX-License-Identifier: Apache-2.0 */
/* /ptc/jobs/UUID/weighed: devices that a job's controller has considered for the job's growth (`on_join: grow`), by
 * node. {version, nodes: {NODE: devices}, stays, failed}; nodes without such devices are left out.
 *
 * Plain data of the caller, any thread. Failure modes: PTC_EINVAL (the document is malformed; the error names the
 * member), PTC_EVERSION, PTC_ENOMEM. */
#pragma once

#include "base/limits.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_weighed_node {
	char node[PTC_NAME_MAX + 1];
	uint32_t devices; /* how many */
};
struct ptc_weighed_doc {
	struct ptc_weighed_node *v;
	size_t n;
	char stays[400]; /* why the job does not grow, for status; "": nothing is known */
	bool failed;     /* what was considered is tried again once nodes have changed */
};
char *ptc_weighed_doc_encode(const struct ptc_weighed_doc *d); /* ptc_free it; NULL: out of memory */
int ptc_weighed_doc_decode(const char *json, size_t len, struct ptc_weighed_doc *ret, struct ptc_error *err);
void ptc_weighed_doc_done(struct ptc_weighed_doc *d);
