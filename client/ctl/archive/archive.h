/* SPDX-License-Identifier: Apache-2.0 */
/* A directory with checkpoints of a job, the newest of which are kept: its archive (docs/archive.md).
 *
 *   DIR/JOB-step-STEP-HASH/       a checkpoint; HASH names the job's uuid, generation and snapshot
 *   DIR/JOB-step-STEP-HASH.tmp-*  one that is being written, or was left behind by a kill
 *   DIR/JOB.newest                the name of the newest checkpoint that was verified, on one line
 *   DIR/JOB.lock                  locked by the process that writes
 *
 * Happy path of a round: lock; remove what kills left; write and verify a checkpoint of what is committed, if there is
 * none; name the newest in JOB.newest; remove the oldest ones, never the one that is named there. Every step is whole
 * or absent after a kill, and the next round goes on. Failure modes: PTC_ESTATE (another process has the lock), and
 * those of checkpoint.h. */
#pragma once

#include "client/ctl/checkpoint/checkpoint.h"

#define CTL_ARCHIVE_NAME_MAX 160

struct ctl_archive_round {
	const char *job;   /* as calls name it: name or uuid */
	const char *name;  /* of its files */
	const char *dir;   /* is made if only its last component is missing */
	uint64_t keep;     /* checkpoints; at least 1 */
	uint64_t rate;     /* bytes a second at most; 0: no limit */
	uint64_t every_ms; /* nothing is written before the newest is that old */
};
struct ctl_archived {
	char name[CTL_ARCHIVE_NAME_MAX + 1];
	uint64_t step, generation, snapshot, bytes;
	bool fresh;       /* written by this round; else it was there */
	size_t removed;   /* older ones */
	int64_t time_ms;  /* when it was written */
	uint64_t wait_ms; /* not 0: the newest, which `name` is, is too new for another one; it is old enough then */
};
/* The path of the checkpoint of `name` that DIR/JOB.newest names, or else of the newest one; ptc_free it.
 * PTC_ENOTFOUND: DIR has none. */
int ctl_archive_find(const char *dir, const char *name, char **ret_path, struct ptc_error *err);
int ctl_archive(struct ctl *c, const struct ctl_archive_round *round, struct ctl_archived *ret, struct ptc_error *err);
