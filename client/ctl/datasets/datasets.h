/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of datasets, and the datasets that a job consumes. */
#pragma once

#include "client/ctl/line/ctl.h"

extern const struct ctl_verb ctl_dataset_add, ctl_dataset_list, ctl_dataset_check, ctl_dataset_remove,
	ctl_dataset_inspect, ctl_dataset_proof;

struct ptc_dataset_doc;
struct ptc_job_desc;
/* Looks up the datasets that a job consumes, and writes down which they are. */
int ctl_dataset_pin(struct ctl *c, struct ptc_job_desc *job, struct ptc_error *err);
