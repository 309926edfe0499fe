/* SPDX-License-Identifier: Apache-2.0 */
/* Inside ptcctl export: files to write and where their bytes come from. */
#pragma once

#include "client/ctl/ctl.h"
#include "formats/job.h"
#include "formats/safetensors.h"

struct ctl_export {
	struct ctl *c;
	const char *job;
	struct ptc_admin_export info;
	struct ptc_job_desc desc;
	struct ctl_progress progress;
	uint64_t done_bytes, total_bytes;
};

/* A file being written beside its place; bytes go through a digest. */
struct ctl_out {
	struct ctl_export *ex;
	char *path, *tmp;
	int fd;
	uint64_t digest, bytes; /* of the item being received */
};
int ctl_out_open(struct ctl_out *out, struct ctl_export *ex, const char *path, struct ptc_error *err);
int ctl_out_write(struct ctl_out *out, const void *data, size_t len, struct ptc_error *err);
/* A ptc_admin_data_fn; arg: struct ctl_out. */
int ctl_out_receive(void *arg, const void *data, size_t len, struct ptc_error *err);
/* fsync and rename. */
int ctl_out_publish(struct ctl_out *out, struct ptc_error *err);
void ctl_out_done(struct ctl_out *out); /* removes what was not published */

/* One field (0: the parameters) into one file, or into directory dir under the names it was imported with. */
int ctl_export_file(struct ctl_export *ex, size_t field, const char *path, struct ptc_error *err);
int ctl_export_directory(struct ctl_export *ex, size_t field, const char *dir, struct ptc_error *err);
/* rank-R.FIELD.safetensors for each rank and field into dir. */
int ctl_export_ranks(struct ctl_export *ex, const char *dir, struct ptc_error *err);
const char *ctl_export_field_name(const struct ctl_export *ex, size_t field); /* "param" for 0 */
