/* SPDX-License-Identifier: Apache-2.0 */
/* Parts: the samples that the ranks of one generation consume from one of the job's data, as files that are computed
 * and read on demand. A part is immutable except for the members that its lock guards. References to it are counted
 * under the file system's lock. Functions block where they read samples; any thread. */
#pragma once

#include "fusefs/names/file_names.h"
#include "fusefs/samples/origin.h"
#include "order/order.h"

#include <pthread.h>

/* How far a rank has read in an epoch, in slots, and how far the daemon was asked to read ahead. */
struct fs_ahead {
	uint32_t dp;
	uint64_t epoch, last, to;
};
#define FS_AHEADS 16
/* The samples that the ranks of one generation consume from one of the job's data, from the generation's cursor on. */
struct fs_part {
	struct fs_part *next; /* next in the list of all parts */
	unsigned refs;
	uid_t uid; /* the job's owner */
	char uuid[37], name[PTC_FIELD_NAME_MAX + 1];
	uint64_t generation, first_step, position; /* where the generation began */
	/* number of samples in the order that its cursor names; 0: the cursor names none */
	uint64_t tag_samples;
	int64_t mtime_s;
	struct ptc_mix mix;
	struct ptc_batch batch;
	struct fs_division *division; /* batches are divided by length; NULL: by count */
	struct fs_origin origins[PTC_MIX_MAX];
	const struct ptc_fs_source *from; /* the daemon; borrowed from the file system */
	enum ptc_source_dtype dtype;
	uint64_t stride;         /* distance of samples in samples.bin: the bytes of the longest */
	uint64_t fixed_bytes;    /* bytes of every sample of all sources; 0: they differ */
	uint64_t slots_per_step; /* of a rank */
	bool files;              /* the samples are files */
	bool elsewhere;          /* the daemon is asked for some samples */
	pthread_mutex_t lock;    /* guards the members below */
	struct fs_ahead ahead[FS_AHEADS];
	size_t naheads;
};
/* How batches are divided by length (docs/order.md, "Batches by length"). The division of a few steps is remembered;
 * steps are counted from the generation's begin. A step of all ranks has at most FS_DIVISION_SLOTS slots. */
#define FS_DIVISION_SLOTS (1u << 17)
struct fs_division *fs_division_new(struct ptc_cost cost);
struct fs_division *fs_division_free(struct fs_division *d); /* NULL ok */
/* Finds what slot i of a step's n_micro * width slots holds, as ptc_batch_balance says it: an offset, or for padding
 * global + an offset. Looks at the lengths of the step's samples, unless the step is remembered. */
int fs_division_slot(const struct fs_part *p, uint64_t step, uint64_t i, uint64_t *ret_offset, struct ptc_error *err);
/* The steps that begin in one epoch. */
struct fs_window {
	/* first: number of the first of these steps, counted from 0 at the generation's begin */
	uint64_t first, steps;
	uint64_t slots; /* of a rank */
};
enum fs_part_file {
	FS_PART_BIN,
	FS_PART_IDX,
	FS_PART_IDS,
	FS_PART_WEIGHTS,
	FS_PART_JSON,
	FS_PART_FILES, /* number of the files with fixed names */
	FS_PART_SAMPLE /* the sample of one slot */
};
#define FS_PART_JSON_MAX 1024
/* A place below a generation's directory. `part` counts as a reference. */
struct fs_place {
	struct fs_part *part;
	uint32_t dp;
	uint64_t epoch;
	enum fs_part_file which; /* for FS_PART, with the next two */
	uint64_t slot;           /* for FS_PART_SAMPLE */
	uint64_t size;
};

const char *fs_part_file_name(enum fs_part_file file);
/* Makes a part, and opens its sources. json: the daemon's answer, "job data" of docs/control.md. uid, uuid: the job's.
 */
int fs_part_new(const struct ptc_fs_source *from, const char *json, uid_t uid, const char *uuid, const char *name,
		uint64_t generation, struct fs_part **ret_part, struct ptc_error *err);
struct fs_part *fs_part_free(struct fs_part *p);
/* false: the epoch was over when the generation began, or its numbers overflow. */
bool fs_part_epoch(const struct fs_part *p, uint64_t epoch, struct fs_window *ret);
/* The size of a file with a fixed name. */
uint64_t fs_part_size(const struct fs_place *at, const struct fs_window *w);
/* Reads len bytes, which must lie inside the file. */
int fs_part_read(const struct fs_place *at, uint64_t off, void *buf, size_t len, struct ptc_error *err);
/* Notes that those bytes were read. The daemon then fetches the next ones, if they are on another node. */
void fs_part_read_ahead(const struct fs_place *at, uint64_t off, size_t len);
/* The name of slot i's sample, if samples are files: "000000012-cat.jpg". */
void fs_part_slot_name(const struct fs_place *at, const struct fs_window *w, uint64_t i, char ret[FS_NAME_MAX + 1]);
/* Finds the slot of that name and its sample's size. Returns 0, PTC_ENOTFOUND, or the source's code. */
int fs_part_slot_find(const struct fs_place *at, const struct fs_window *w, const char *name, uint64_t *ret_slot,
		      uint64_t *ret_size, struct ptc_error *err);
