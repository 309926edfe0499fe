/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds of the ranks room, each of something that a program or a user could make grow. */
#pragma once

#include <stdint.h>

#define WORKERS_JOBS_MAX      1024 /* on one node */
#define WORKERS_PROCESSES_MAX 1024 /* of one job on one node, ended ones that are kept included */
#define WORKERS_STRANGERS_MAX 64   /* connections of a job that have not said who they are */
#define WORKERS_HELLO_MS      10000
#define WORKERS_LOGS_KEPT     32 /* ended processes of a job whose log stays */
#define WORKERS_LABELS        8  /* incarnations of a process that are remembered beside its last */
#define WORKERS_LOG_BYTES     (64u << 20)
#define WORKERS_TASKS_MAX     256
#define WORKERS_DECLARED_MAX  (512u << 20) /* bytes one worker's declarations may take here */
#define WORKERS_CONNECTED_MS  15000        /* how long a call waits for ranks that connect anew */
#define WORKERS_GRACE_MS      10000        /* of a job that does not say */
#define WORKERS_SAMPLE_MS     200
#define WORKERS_CGROUP_MS     1000 /* how long the kernel may take to let go of a cgroup whose processes have ended */
#define WORKERS_LEFT_NS       INT64_C(2000000000)
#define WORKERS_FILE_MAX      (8u << 20)
#define WORKERS_QUEUE_READ                                                                                             \
	(1u << 20) /* bytes waiting to be sent to a rank from which no more is read until it has read */
#define WORKERS_QUEUE_MAX (64u << 20) /* with more its connection ends; what a rank carries takes 16 MiB, given twice */
