/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds of daemon/workers, for everything that a program or a user could make grow. */
#pragma once

#include <stdint.h>

#define WORKERS_JOBS_MAX      1024 /* on one node */
#define WORKERS_PROCESSES_MAX 1024 /* of one job on one node, with ended processes that are kept */
#define WORKERS_STRANGERS_MAX 64   /* connections of a job that have not said HELLO */
#define WORKERS_HELLO_MS      10000
#define WORKERS_LOGS_KEPT     32 /* ended processes of a job whose logs stay */
#define WORKERS_LABELS        8  /* earlier incarnations of a process that are remembered */
#define WORKERS_LOG_BYTES     (64u << 20)
#define WORKERS_TASKS_MAX     256
#define WORKERS_DECLARED_MAX  (512u << 20) /* memory for one worker's declarations */
#define WORKERS_CONNECTED_MS  15000        /* how long a call waits for ranks that connect again */
#define WORKERS_GRACE_MS      10000        /* in place of `grace: 0s`; of processes that no group of their job wants */
#define WORKERS_GIVEN_UP_MS   2000         /* of ranks that are given up, unless their job sets less */
#define WORKERS_KILLED_MS     5000         /* how long a start waits for a process that was killed */
#define WORKERS_HELD_MAX_MS   240000       /* how long ranks are held at most, if etcd answers; ptc-exec waits longer */
#define WORKERS_LEAVES_MS     20000        /* how long a rank that gives up is held by its node alone */
#define WORKERS_DECIDES_MS    60000        /* ... after etcd was unreachable, from when it answers again */
#define WORKERS_UPDATE_MS     2000 /* how long a rank in an update may take to its next boundary, beside steps */
#define WORKERS_FREEZE_MS     5000 /* how long the kernel may take to freeze a rank; then it counts as not held */
#define WORKERS_PUBLISHED_MS  2000 /* how long a frozen rank's blobs and cursors may take to be read; then likewise */
#define WORKERS_LAST_READ_MS  4000 /* .. if the first one's hang: until the last one's are begun with */
#define WORKERS_SAMPLE_MS     200
#define WORKERS_STEPS         15   /* last steps of a rank, of which the median is taken */
#define WORKERS_LOOK_MS       4    /* as WORKERS_SAMPLE_MS, while ranks are being frozen */
#define WORKERS_CGROUP_MS     1000 /* how long the kernel may keep a cgroup busy whose processes have ended */
#define WORKERS_LEFT_NS       INT64_C(2000000000)
#define WORKERS_FILE_MAX      (8u << 20)
#define WORKERS_QUEUE_READ    (1u << 20) /* if more bytes wait to be sent to a rank, ptcd does not read from the rank */
#define WORKERS_QUEUE_MAX                                                                                              \
	(64u << 20) /* if more bytes wait, the connection ends; a rank state takes 16 MiB, and may wait twice          \
		     */

/* Processes that wait for the job's next start (standby.c): how long ranks have trained before one is started; how long
 * until another is started in place of one that has ended, doubled up to the most; and how long one has waited that was
 * good. */
#define WORKERS_STANDBY_QUIET_MS 1000
#define WORKERS_STANDBY_AGAIN_MS 2000
#define WORKERS_STANDBY_MOST_MS  600000
#define WORKERS_STANDBY_GOOD_MS  60000
