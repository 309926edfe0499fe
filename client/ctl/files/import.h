/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of ptcctl import: the files that were read, and the bytes of them that are sent. */
#pragma once

#include "client/ctl/checkpoint/checkpoint.h"
#include "client/ctl/line/ctl.h"
#include "formats/job/job.h"
#include "formats/tensors/safetensors.h"

#include <ptc/admin_state.h>

struct ctl_import {
	struct ctl *c;
	const char *job;
	struct ptc_job_desc desc;
	struct ptc_st_set *sets; /* one per field, 0 the parameters */
	size_t nsets;
	struct ctl_import_part {
		const struct ptc_st_file *file;
		const struct ptc_st_tensor *tensor;
		const struct ptc_dcp_entry *entry; /* of a checkpoint, instead */
		uint32_t item;
	} * parts; /* in the order of the bytes in the files */
	size_t nparts;
	struct ctl_ck_source checkpoint;      /* what is imported instead of files, if `dir` is not NULL */
	const struct ptc_dcp_entry **entries; /* of items */
	uint64_t *digests;                    /* per item */
	uint64_t total_bytes;
	bool committing; /* ImportCommit was sent */
	bool to_run; /* by ptcctl run, whose configuration is for the ranks, and which prints what there is to say */
};

/* Fills target->t.job from a checkpoint, and takes that over. If ranks declare the job's tensors, the state lies as the
 * checkpoint's layout says, and the target's configuration does not count. */
int ctl_import_checkpoint(struct ctl *c, const struct ctl_target *target, struct ctl_ck_source *checkpoint,
			  struct ptc_error *err);

/* Streams every part to the daemon over nstreams streams and fills digests. */
int ctl_import_send(struct ctl_import *im, uint64_t import_id, unsigned nstreams, struct ptc_error *err);
