/* SPDX-License-Identifier: Apache-2.0 */
/* Where samples come from: a source opened here, or the daemon, asked with the rights of the job's owner. Functions
 * block. They return 0 or a code of base/status.h. */
#pragma once

#include "base/limits.h"
#include "dataset/source.h"
#include "formats/dataset/dataset_doc.h"
#include "fusefs/source/fs_source.h"

#include <sys/types.h>

struct fs_part;

/* Where the samples of one dataset come from. */
struct fs_origin {
	/* NULL: the source is not here or may not be opened; the daemon is asked by these names */
	struct ptc_source *source;
	char dataset[PTC_NAME_MAX + 1], id[33];
	uid_t uid;     /* the user for whom the daemon is asked; 0: for us */
	bool far_away; /* the source is on another node, so the daemon can read ahead */
	uint64_t samples;
	uint64_t fixed_bytes; /* bytes of every sample; 0: they differ */
	/* names of files, where there is no source, each with its NUL; name_at: where each begins */
	char *names;
	uint64_t *name_at;
};
/* A wanted range: len bytes of a sample from `offset` on; zeros follow the sample's end. */
struct fs_want {
	uint32_t part; /* its dataset's number in the mixture */
	uint64_t sample, offset;
	unsigned char *buf;
	size_t len;    /* 0: only the size is wanted */
	uint64_t size; /* of the sample, set when it is fetched */
};

/* Opens an origin. here: the daemon's node. uid: the owner of the reading job; this user's rights alone decide which
 * sources may be opened. */
int fs_origin_open(const struct ptc_fs_source *from, const char *here, uid_t uid, const struct ptc_dataset_doc *doc,
		   struct fs_origin *ret, struct ptc_error *err);
void fs_origin_close(struct fs_origin *o);
const char *fs_origin_name(const struct fs_origin *o, uint64_t sample); /* a file's name; borrowed */
/* Tells the daemon which samples are wanted next. */
void fs_origin_ahead(const struct fs_part *p, uint32_t part, const uint64_t *samples, size_t n);
int fs_part_fetch(const struct fs_part *p, struct fs_want *v, size_t n, struct ptc_error *err);
