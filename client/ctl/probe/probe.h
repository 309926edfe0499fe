/* SPDX-License-Identifier: Apache-2.0 */
/* Builds ranks of a configuration with the job's own program, here and as the caller, and puts together what they
 * declare. */
#pragma once

#include "formats/job/job.h"
#include "reshard/layout/declared.h"

struct ctl_probe {
	const struct ptc_job_desc *job; /* its run is resolved */
	const char *name;               /* of the job */
	const struct ptc_config *config;
	const char *config_text;
	uint32_t per_node;     /* ranks of a node */
	unsigned programs;     /* at most so many run at a time */
	uint64_t memory_bytes; /* of each */
	uint64_t limit_ms;     /* for starting, and for building one rank */
	bool all;              /* no rank is taken for a replica */
	bool show;             /* the programs' output goes to standard error */
	/* true: nobody wants it any more; it is asked several times a second */
	bool (*gone)(void);
	void (*progress)(void *arg, uint32_t done, uint32_t of);
	void *arg;
};
struct ctl_probed {
	struct ptc_declared declared;
	uint32_t built; /* ranks; the others are replicas of these */
};
/* ptc_declared_done(&ret->declared). PTC_ESTATE: a program has ended before it has declared, after its last lines were
 * written to standard error; PTC_ETIMEOUT; PTC_ECANCELED; PTC_ELAYOUT: what ranks declare does not fit together. */
int ctl_probe_run(const struct ctl_probe *p, struct ctl_probed *ret, struct ptc_error *err);
