/* SPDX-License-Identifier: Apache-2.0 */
/* Where the file system gets jobs and bytes from. The real one asks a daemon
 * (source_admin.c); tests and the fuzzer have one in memory. Functions block,
 * but no longer than the time limit the source was made with; any thread.
 * They return 0 or a code of base/status.h. */
#pragma once

#include "base/limits.h"
#include <ptc/admin_state.h>
#include "formats/job/job.h"
#include "formats/state/state_files.h"
#include "fusefs/source/chunk_file.h"

#include <sys/types.h>

#define FS_READ_MAX (1u << 20) /* most bytes of one request */

struct ptc_fs_job {
	char name[PTC_NAME_MAX + 1];
	char uuid[37];
	uid_t uid;   /* its owner */
	bool shared; /* with members of group gid, too */
	gid_t gid;
	uint64_t generation, snapshot, step; /* committed; snapshot 0: none yet */
};

/* One committed (generation, snapshot). Immutable; freed with source.close. */
struct ptc_fs_state {
	char job[PTC_NAME_MAX + 1];
	char uuid[37];
	uint64_t generation, snapshot, step;
	int64_t created_ms;                    /* the job */
	const char *config;                    /* "tp=2,pp=1" */
	const char *ranks_json;                /* [{rank, node, device}] */
	struct ptc_state_set set;              /* spec and imported headers */
	struct ptc_layout *layout;             /* NULL: not known; then there are no files of ranks */
	const struct ptc_job_carried *carried; /* files beside it */
	size_t ncarried;
};

struct ptc_fs_range { /* of an item, or of a rank's local tensor of it */
	bool ranked;
	uint32_t rank, item;
	uint64_t offset, length; /* length > 0 */
};
/* Bytes of the ranges, in order. Not 0: reading ends with that code. */
typedef int (*ptc_fs_data_fn)(void *arg, const void *data, size_t len, struct ptc_error *err);

struct ptc_fs_source {
	/* All jobs the source may see. *ret: ptc_free it. */
	int (*jobs)(void *arg, struct ptc_fs_job **ret, size_t *ret_n, struct ptc_error *err);
	/* What is committed of a job (its uuid) now. PTC_ENOTFOUND: no such job; PTC_ESTATE: no snapshot. */
	int (*open)(void *arg, const char *uuid, struct ptc_fs_state **ret, struct ptc_error *err);
	void (*close)(void *arg, struct ptc_fs_state *state);
	/* The state stays readable for ttl_ms more; 0: need not any longer. PTC_ESTATE: it is not there any more. */
	int (*pin)(void *arg, const struct ptc_fs_state *state, uint32_t ttl_ms, struct ptc_error *err);
	int (*read)(void *arg, const struct ptc_fs_state *state, const struct ptc_fs_range *ranges, size_t n,
		    ptc_fs_data_fn fn, void *fn_arg, struct ptc_error *err);
	void *arg;
	/* What the job consumes (docs/control.md, "job data"); ptc_free it. NULL: no data is shown. */
	int (*data)(void *arg, const char *uuid, char **ret_json, struct ptc_error *err);
	/* Where the bytes of ranges (none ranked) lie in a file of this node; a reference. PTC_ENOTFOUND, PTC_ELIMIT,
	 * PTC_ESTATE: they do not, or not so that it would help. NULL: nothing does. */
	int (*locate)(void *arg, const struct ptc_fs_state *state, const struct ptc_fs_range *ranges, size_t n,
		      struct ptc_fs_spans **ret, struct ptc_error *err);
	/* Samples of a dataset that we cannot or must not open, as ptc_admin_dataset_read. NULL: such are not shown. */
	int (*samples)(void *arg, const struct ptc_admin_samples *what, ptc_admin_sample_fn fn, void *fn_arg,
		       struct ptc_error *err);
};
