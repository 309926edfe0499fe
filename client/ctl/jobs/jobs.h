/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs that create, run, change and end jobs, and what others need of them. */
#pragma once

#include "client/ctl/line/ctl.h"
#include "formats/json.h"

extern const struct ctl_verb ctl_job_create, ctl_job_delete, ctl_job_list, ctl_run, ctl_stop, ctl_snapshot,
	ctl_snapshots, ctl_rollback, ctl_resize, ctl_drain, ctl_abort, ctl_logs;

/* A description as daemons take it, and the job's name; ptc_free both. */
int ctl_job_read(struct ctl *c, const char *file, char **ret_name, char **ret_spec, size_t *ret_len,
		 struct ptc_error *err);

/* Tells a person what the daemon's answer says of the loss of a node. */
void ctl_job_note_loss(const struct ctl *c, const json_t *created);

int ctl_logs_show(struct ctl *c, const struct ptc_admin_logs *what, struct ptc_error *err);
