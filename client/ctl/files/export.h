/* SPDX-License-Identifier: Apache-2.0 */
/* Inside ptcctl export: files to write and where their bytes come from. */
#pragma once

#include "client/ctl/homes/homes.h"
#include "client/ctl/line/ctl.h"
#include "client/ctl/show/show.h"
#include "formats/job/job.h"
#include "formats/json.h"
#include "formats/state/state_files.h"

#include <ptc/admin_state.h>

struct ctl_export {
	struct ctl *c;
	const char *job;
	uint64_t snapshot; /* that one; 0: the committed one, also if it moves on */
	struct ptc_admin_export *info;
	struct ptc_job_desc desc;
	struct ptc_state_kept *kept; /* what info says was imported */
	/* of info, once large items are read */
	bool homes_sought;
	struct ptc_declared declared;
	struct ptc_layout *layout;
	struct ctl_homes *homes; /* NULL: none but the daemon */
	struct ctl_progress progress;
	uint64_t done_bytes, total_bytes;
	size_t finished, nth;     /* files that are written and need not be again; the file this attempt is at */
	uint64_t file_bytes;      /* done_bytes when that file began */
	char file[256];           /* its name, for a person */
	json_t *written;          /* [{file, bytes}]: those that are, but for indexes */
	int attempts, peer_tries; /* that ended in a switch; in a node that does not answer */
	uint32_t written_ranks;   /* --ranks: an attempt that came to nothing has written files of so many */
};

/* export_out.c. A file being written beside its place; bytes go through a digest. */
struct ctl_out {
	struct ctl_export *ex;
	char *path, *tmp;
	int fd;
	uint64_t digest, bytes; /* of the item being received */
};
/* Does nothing for a file that an earlier attempt has finished. */
int ctl_export_write(struct ctl_export *ex, const char *path, const struct ptc_state_file *file, struct ptc_error *err);
int ctl_out_open(struct ctl_out *out, struct ctl_export *ex, const char *path, struct ptc_error *err);
int ctl_out_write(struct ctl_out *out, const void *data, size_t len, struct ptc_error *err);
/* A ptc_admin_data_fn; arg: struct ctl_out. */
int ctl_out_receive(void *arg, const void *data, size_t len, struct ptc_error *err);
/* fsync and rename. */
int ctl_out_publish(struct ctl_out *out, struct ptc_error *err);
void ctl_out_done(struct ctl_out *out); /* removes what was not published */

/* All of the file's items, checked. */
int ctl_read_items(struct ctl_out *out, const struct ptc_state_file *file, struct ptc_error *err);
void ctl_export_homes_done(struct ctl_export *ex); /* before ex->desc or ex->info changes */

/* One field (0: the parameters) into one file, or into directory dir under the names it was imported with. */
int ctl_export_file(struct ctl_export *ex, size_t field, const char *path, struct ptc_error *err);
int ctl_export_directory(struct ctl_export *ex, size_t field, const char *dir, struct ptc_error *err);
/* rank-R.FIELD.safetensors for each rank and field into dir. */
int ctl_export_ranks(struct ctl_export *ex, const char *dir, struct ptc_error *err);
/* ex->kept from ex->info. */
int ctl_export_kept(struct ctl_export *ex, struct ptc_error *err);
