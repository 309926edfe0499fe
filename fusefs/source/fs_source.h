/* SPDX-License-Identifier: Apache-2.0 */
/* The source from which the file system gets jobs and bytes. The real one asks a daemon (source_admin.c); tests and the
 * fuzzer have one in memory. Functions block, but at most for the time limit that the source was made with. Any thread.
 * They return 0 or a code of base/status.h. */
#pragma once

#include "base/limits.h"
#include <ptc/admin_state.h>
#include "formats/job/job.h"
#include "formats/state/state_files.h"
#include "fusefs/source/chunk_file.h"

#include <sys/types.h>

#define FS_READ_MAX   (1u << 20) /* greatest number of bytes of one request */
#define FS_FILL_BYTES (8u << 20) /* and of one call of fill */

struct ptc_admin_fill; /* client/admin/admin_locate.h */

struct ptc_fs_job {
	char name[PTC_NAME_MAX + 1];
	char uuid[37];
	uid_t uid;   /* its owner */
	bool shared; /* members of group gid may read it, too */
	gid_t gid;
	uint64_t generation, snapshot, step; /* the committed ones; snapshot 0: none yet */
	/* older snapshots that the job keeps beside the committed one */
	struct {
		uint64_t snapshot, step;
	} kept[PTC_JOB_KEEP_MAX];
	size_t nkept;
};

/* One committed (generation, snapshot). Immutable; freed with `close`. */
struct ptc_fs_state {
	char job[PTC_NAME_MAX + 1];
	char uuid[37];
	uint64_t generation, snapshot, step;
	int64_t created_ms;                    /* when the job was created */
	const char *config;                    /* "tp=2,pp=1" */
	const char *ranks_json;                /* [{rank, node, device}] */
	struct ptc_state_set set;              /* the spec and the imported files' headers */
	struct ptc_layout *layout;             /* NULL: unknown; then ranks have no files */
	const struct ptc_job_carried *carried; /* files beside the state */
	size_t ncarried;
	const uint64_t *digests; /* of all bytes of each item of the spec (base/number/digest.h); NULL: not known */
};

struct ptc_fs_range { /* a range of an item, or of a rank's local tensor of the item */
	bool ranked;
	uint32_t rank, item;
	uint64_t offset, length; /* length > 0 */
};
/* Gets the bytes of the ranges, in order. A value other than 0 ends the reading with that code. */
typedef int (*ptc_fs_data_fn)(void *arg, const void *data, size_t len, struct ptc_error *err);

struct ptc_fs_source {
	/* Lists all jobs that the source may see; ptc_free *ret. */
	int (*jobs)(void *arg, struct ptc_fs_job **ret, size_t *ret_n, struct ptc_error *err);
	/* Opens a snapshot of the job with this uuid: the committed one, or one that it keeps. The caller checks which
	 * one it has got. PTC_ENOTFOUND: there is none, or no such job. PTC_ESTATE: it has no snapshot at all. */
	int (*open)(void *arg, const char *uuid, uint64_t snapshot, struct ptc_fs_state **ret, struct ptc_error *err);
	void (*close)(void *arg, struct ptc_fs_state *state);
	/* Keeps the state readable for ttl_ms more; 0: no longer. PTC_ESTATE: the state is gone. */
	int (*pin)(void *arg, const struct ptc_fs_state *state, uint32_t ttl_ms, struct ptc_error *err);
	int (*read)(void *arg, const struct ptc_fs_state *state, const struct ptc_fs_range *ranges, size_t n,
		    ptc_fs_data_fn fn, void *fn_arg, struct ptc_error *err);
	void *arg;
	/* The data that the job consumes (docs/control.md, "job data"); ptc_free *ret_json. NULL: no data is shown. */
	int (*data)(void *arg, const char *uuid, char **ret_json, struct ptc_error *err);
	/* Finds where the bytes of ranges (none ranked) lie in a file of this node; *ret is a reference. PTC_ENOTFOUND,
	 * PTC_ELIMIT, PTC_ESTATE: they are not here, or a direct read would not help. NULL: no bytes lie here. */
	int (*locate)(void *arg, const struct ptc_fs_state *state, const struct ptc_fs_range *ranges, size_t n,
		      struct ptc_fs_spans **ret, struct ptc_error *err);
	/* Reads samples of a dataset that this process cannot or must not open, as ptc_admin_dataset_read does. NULL:
	 * such samples are not shown. */
	int (*samples)(void *arg, const struct ptc_admin_samples *what, ptc_admin_sample_fn fn, void *fn_arg,
		       struct ptc_error *err);
	/* Has the source write bytes into a file of ours, so that they need not come to this process. All three or
	 * none. fill_begin: fd is open for writing; fails if the source cannot. */
	int (*fill_begin)(void *arg, int fd, struct ptc_admin_fill **ret_fill, struct ptc_error *err);
	/* The ranges (none ranked, at most FS_FILL_BYTES together) follow each other from `at` on. ret_digests: of each
	 * range's bytes as they were written (base/number/digest.h). PTC_EPEER, PTC_ETIMEOUT and PTC_ECANCELED: the
	 * source may still write. After other codes it does not. */
	int (*fill)(void *arg, const struct ptc_fs_state *state, struct ptc_admin_fill *fill, uint64_t at,
		    const struct ptc_fs_range *ranges, size_t n, uint64_t *ret_digests, struct ptc_error *err);
	/* 0: the source does not write into the file any more. Frees fill in any case. */
	int (*fill_end)(void *arg, struct ptc_admin_fill *fill, struct ptc_error *err);
};
