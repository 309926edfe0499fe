/* SPDX-License-Identifier: Apache-2.0 */
/* What `status` and `jobs` say of a job, and `status` of the daemon that was asked, as docs/control.md describes it.
 * What a job's documents say is added to the row by api_query.c.
 *
 * Plain data of the caller, any thread; pointers are borrowed. Failure modes: out of memory, which gives NULL. */
#pragma once

#include "daemon/cluster/cluster.h"
#include "daemon/scrub/scrub.h"
#include "formats/json.h"

struct ptc_status_job {
	const char *name, *uuid, *controller, *phase;
	uint64_t uid, generation, snapshot, step, bytes_done, bytes_total;
	bool has_state;
	json_t *archive;              /* borrowed; NULL: this node makes none */
	const struct ptc_older *kept; /* oldest first */
	size_t nkept;
	struct ptc_older bridge; /* snapshot 0: there is none */
	const char *no_bridge;   /* why there is none; NULL: there is one, or none is needed */
	const char *unreadable;  /* why this node cannot take the job's lock; NULL: it can */
	bool shared;
	uint64_t files_group; /* if shared */
	const char *run;
	uint64_t incarnation;
};
json_t *ptc_status_job_json(const struct ptc_status_job *j);

struct ptc_status_daemon {
	struct ptc_scrub_progress scrub;
	const char *node, *version;
	bool coordinator_ok, insecure, coordinator_full;
	uint64_t coordinator_bytes, coordinator_used, coordinator_limit;
	uint64_t kept_jobs, kept_bytes;
	int64_t certificate_ends_ms; /* 0: it has none */
};
json_t *ptc_status_daemon_json(const struct ptc_status_daemon *d);
