/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a generation consume of one of the job's data, as files:
 * computed and read as they are asked for. A part is immutable but for what its
 * lock guards; it is counted by whoever has a list of parts. Functions block
 * where they read samples; any thread. */
#pragma once

#include "fusefs/names/file_names.h"
#include "fusefs/samples/origin.h"
#include "order/order.h"

#include <pthread.h>

/* How far a rank has read in an epoch, in slots, and how far the daemon was told to read ahead. */
struct fs_ahead {
	uint32_t dp;
	uint64_t epoch, last, to;
};
#define FS_AHEADS 16
/* What the ranks of one generation consume of one of the job's data, from the generation's cursor on. */
struct fs_part {
	struct fs_part *next; /* all of them */
	unsigned refs;
	uid_t uid; /* the job's owner */
	char uuid[37], name[PTC_FIELD_NAME_MAX + 1];
	uint64_t generation, first_step, position; /* where it began */
	uint64_t tag_samples;                      /* of the order that its cursor says; 0: it does not */
	int64_t mtime_s;
	struct ptc_mix mix;
	struct ptc_batch batch;
	struct fs_origin origins[PTC_MIX_MAX];
	const struct ptc_fs_source *from; /* the daemon; borrowed from the file system */
	enum ptc_source_dtype dtype;
	uint64_t stride;         /* bytes between samples in samples.bin: of the longest */
	uint64_t fixed_bytes;    /* of every sample of all sources; 0: they differ */
	uint64_t slots_per_step; /* of a rank */
	bool files;              /* its samples are files */
	bool elsewhere;          /* some are asked of the daemon */
	pthread_mutex_t lock;    /* of what follows */
	struct fs_ahead ahead[FS_AHEADS];
	size_t naheads;
};
/* The steps that begin in one epoch. */
struct fs_window {
	uint64_t first, steps; /* first: of the generation's, counted from 0 */
	uint64_t slots;        /* of a rank */
};
enum fs_part_file {
	FS_PART_BIN,
	FS_PART_IDX,
	FS_PART_IDS,
	FS_PART_WEIGHTS,
	FS_PART_JSON,
	FS_PART_FILES, /* so many have names */
	FS_PART_SAMPLE /* of one slot */
};
#define FS_PART_JSON_MAX 1024
/* Where below a generation's directory; part counts as a reference. */
struct fs_place {
	struct fs_part *part;
	uint32_t dp;
	uint64_t epoch;
	enum fs_part_file which; /* FS_PART, with the next two */
	uint64_t slot;           /* FS_PART_SAMPLE */
	uint64_t size;
};

const char *fs_part_file_name(enum fs_part_file file);
/* json: the daemon's answer, "job data" of docs/control.md. uid, uuid: the job's. Opens the sources. */
int fs_part_new(const struct ptc_fs_source *from, const char *json, uid_t uid, const char *uuid, const char *name,
		uint64_t generation, struct fs_part **ret_part, struct ptc_error *err);
struct fs_part *fs_part_free(struct fs_part *p);
/* False: it was over when the generation began, or is beyond all numbers. */
bool fs_part_epoch(const struct fs_part *p, uint64_t epoch, struct fs_window *ret);
/* Of a file that has a name. */
uint64_t fs_part_size(const struct fs_place *at, const struct fs_window *w);
/* len bytes that lie in the file. */
int fs_part_read(const struct fs_place *at, uint64_t off, void *buf, size_t len, struct ptc_error *err);
/* Those bytes have been read: has the daemon get what comes next, where it is not here. */
void fs_part_read_ahead(const struct fs_place *at, uint64_t off, size_t len);
/* The name of slot i's sample, where samples are files: "000000012-cat.jpg". */
void fs_part_slot_name(const struct fs_place *at, const struct fs_window *w, uint64_t i, char ret[FS_NAME_MAX + 1]);
/* The slot of that name and how long its sample is. 0, PTC_ENOTFOUND, or what the source says. */
int fs_part_slot_find(const struct fs_place *at, const struct fs_window *w, const char *name, uint64_t *ret_slot,
		      uint64_t *ret_size, struct ptc_error *err);
