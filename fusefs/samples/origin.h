/* SPDX-License-Identifier: Apache-2.0 */
/* Where samples come from: a source opened here, or the daemon, as the job's
 * owner. Functions block; they return 0 or a code of base/status.h. */
#pragma once

#include "base/limits.h"
#include "dataset/source.h"
#include "formats/dataset/dataset_doc.h"
#include "fusefs/source/fs_source.h"

#include <sys/types.h>

struct fs_part;

/* Where a dataset's samples come from. */
struct fs_origin {
	struct ptc_source *source; /* NULL: not ours to open, or not here, and the daemon is asked by these names */
	char dataset[PTC_NAME_MAX + 1], id[33];
	uid_t uid;     /* for whom the daemon is asked; 0: for us */
	bool far_away; /* on another node: the daemon can read ahead */
	uint64_t samples;
	uint64_t fixed_bytes; /* of every sample; 0: they differ */
	char *names;          /* of files, where there is no source: each with its NUL, and where each begins */
	uint64_t *name_at;
};
/* len bytes of a sample from offset on; zeros where it has ended. */
struct fs_want {
	uint32_t part; /* of the mixture */
	uint64_t sample, offset;
	unsigned char *buf;
	size_t len;    /* 0: only the size is asked for */
	uint64_t size; /* of the sample, once fetched */
};

/* here: the daemon's node; uid: whose job reads it, who alone decides what may be opened. */
int fs_origin_open(const struct ptc_fs_source *from, const char *here, uid_t uid, const struct ptc_dataset_doc *doc,
		   struct fs_origin *ret, struct ptc_error *err);
void fs_origin_close(struct fs_origin *o);
const char *fs_origin_name(const struct fs_origin *o, uint64_t sample); /* of a file; borrowed */
/* They are wanted next. */
void fs_origin_ahead(const struct fs_part *p, uint32_t part, const uint64_t *samples, size_t n);
int fs_part_fetch(const struct fs_part *p, struct fs_want *v, size_t n, struct ptc_error *err);
