/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs, one per file. */
#pragma once

#include "client/ctl/ctl.h"

extern const struct ctl_verb ctl_nodes, ctl_status, ctl_job_create, ctl_job_delete, ctl_job_list, ctl_import,
	ctl_export, ctl_layout, ctl_plan, ctl_rules_lint, ctl_rules_show, ctl_resize, ctl_drain, ctl_abort,
	ctl_snapshots, ctl_verify, ctl_events, ctl_version, ctl_completion, ctl_help, ctl_run, ctl_stop, ctl_snapshot,
	ctl_logs, ctl_mount, ctl_umount, ctl_dataset_add, ctl_dataset_list, ctl_dataset_check, ctl_dataset_remove,
	ctl_dataset_inspect, ctl_dataset_proof, ctl_report, ctl_top, ctl_advise;
