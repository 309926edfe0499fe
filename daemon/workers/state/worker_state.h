/* SPDX-License-Identifier: Apache-2.0 */
/* The state of daemon/workers, for workers.c and the rooms state, session, evidence and group only. One lock guards
 * everything here. One thread polls (workers.c). `changed` is signalled after every change that a caller may wait for.
 * The caller of a function that ends in _locked has the lock.
 *
 *   job      a job's socket, processes and groups on this node
 *   worker   a process: its token, its connection, its shared page, its declarations
 *   group    see workers.h; its slots point to workers
 *
 * A worker's last message sets its phase. One function decides which message ptcd sends next, from the phase and from
 * the group's state (ptc_worker_advance_locked in session.c). So a worker that connects again, to this ptcd or to a
 * later one, repeats its messages and comes to the same point. */
#pragma once

#include "daemon/workers/copier/copier.h"
#include "daemon/workers/state/rank_declared.h"
#include "daemon/workers/process/process.h"
#include "daemon/workers/process/spawn.h"
#include "daemon/workers/state/job_state.h"
#include "daemon/workers/state/worker_limits.h"
#include "daemon/workers/types/rank_slot.h"
#include "daemon/workers/types/workers_env.h"
#include "proto/local_messages.h"
#include "proto/local_page.h"
#include "proto/local_rules.h"

#include "base/sys/thread.h"

#include <pthread.h>
#include <stdatomic.h>

enum worker_phase {
	WORKER_ABSENT,    /* not connected, not in a generation */
	WORKER_CONNECTED, /* has not asked for a generation */
	WORKER_WAITING,
	WORKER_BUILDING,
	WORKER_DECLARED,
	WORKER_RUNNING,
	WORKER_STOPPED,
	WORKER_ENDING, /* told that its generation has ended */
};

struct staging {
	const struct ptc_workers *w;
	int refs, fd, readers;
	uint8_t *map;
	uint64_t bytes;
	uint8_t *room; /* the mapping that contains map */
	uint64_t room_bytes;
};

struct worker {
	struct worker *next;
	struct job *job;
	unsigned number; /* of its folder */
	struct ptc_process process;
	struct ptc_process_label label;
	struct ptc_process_label before[WORKERS_LABELS]; /* earlier labels, oldest first; for logs, not on disk */
	unsigned nbefore;
	bool spawning;                   /* a caller starts it without the lock */
	bool reaping;                    /* it has ended, and a task reads its status */
	bool ended, status_known, left;  /* left: said BYE, at left_ns */
	bool outlived, devices_outlived; /* killed, and device memory or blobs remain; device memory remains */
	int64_t left_ns;
	int status;
	struct conn *conn;
	pid_t pid; /* of the process that connected: the program or one of its session */
	int pidfd; /* of pid */
	struct ptc_local_page *page;
	int page_fd;
	struct kept_memory kept; /* of its generation */
	enum worker_phase phase;
	enum worker_phase resumes;        /* the phase to which it goes back after a new connection */
	uint64_t generation, incarnation; /* that the worker says it has; valid from BUILDING to ENDING */
	struct group *group;              /* that it works for; NULL: it is free */
	size_t slot;
	uint64_t spawned_generation, spawned_incarnation; /* of the group that it was started for; 0: any */
	uint32_t device, rank;                            /* of its last slot */
	bool ran;                                         /* it has had a generation */
	bool stale;                                       /* it claims a generation that it was not given */
	bool exit_wanted, said_hangs, low;                /* low: it may have a low priority still */
	bool standby;                   /* it waits without a rank, and is for no group yet (standby.c) */
	struct ptc_program_files files; /* of such a process: as its program's were before it was started */
	int64_t standby_ns, waits_ns;   /* of such a process: when it was started, and came to ptc_next; 0: not yet */
	int64_t term_ns, kill_ns;       /* times of the signals; 0: none, or sent */
	struct declared *declared;
	struct declared *layout; /* in BUILDING: what it has declared without memory; NULL: not yet */
	struct rank_state *rank_state, *restore;
	struct staging *staging;
	uint64_t stop_step;
	bool finished, staged;
	char refused[PTC_LOCAL_SHORT_MAX + 1]; /* why the rank refuses to give its state at the stop; "": it does not */
	bool later;                            /* it refuses at this boundary only: the stop moves to the next */
	bool takes_state;                      /* it takes blobs and cursors before its generation */
	bool go, restored;                     /* ptc_slot_go was called; its argument */
	struct {
		bool active;
		uint64_t id;
		char key[PTC_LOCAL_SHORT_MAX + 1];
		int64_t until_ns;
	} get;
	struct {
		bool can, verifies;
		uint64_t session;    /* number of connections on which it has said HELLO */
		uint64_t sent, done; /* ids on this connection */
		bool failed;         /* the worker could not carry out one of them */
		bool damaged;        /* a block did not match its checksum, since somebody has waited for all of them */
	} fill;
	bool leaving;   /* it gives up, and waits for us (ptc_leave) */
	int64_t bad_ns; /* its device has failed: it is ended from then on, once nobody reads its memory; 0: no */
	uint32_t bad_device;
	char bad_why[256];
	struct {                                        /* group_hold.c; of a group that is held */
		bool asked, frozen, failed, slow, read; /* slow: the kernel has not frozen it in time */
		int64_t asked_ns, again_ns;
		struct rank_state *published; /* its blobs and cursors at `step`; NULL: not read */
		uint64_t step, goes_to;       /* goes_to: the step that it was let on for; 0: none */
	} hold;
	uint64_t seen_step; /* sampling */
	uint64_t end_step;  /* once ended: what it had published; 0: nothing, or nobody saw it */
	bool seen;
	int64_t seen_ns;
	double step_seconds;              /* a mean in which the last steps count most */
	double last_steps[WORKERS_STEPS]; /* seconds a step, between samples; a ring */
	unsigned nsteps;                  /* number written to it, in all */
};

struct slot {
	struct ptc_group_rank rank;
	struct worker *worker; /* NULL: none yet, or none any more */
	unsigned number;       /* of its worker's folder, as on disk; 0: none */
	bool exited;
};
struct rendezvous_entry {
	char *key;
	void *value;
	size_t len;
};
struct group {
	struct group *next;
	struct job *job;
	int refs;
	struct ptc_group_desc desc; /* points into bytes, argv, env and ranks */
	uint8_t *bytes;
	const char **argv, **env;
	struct ptc_group_rank *ranks;
	struct slot *slots;
	bool started, built, ending, dropping, removed, spawning;
	int64_t held_from_ns, held_until_ns, goes_on_ns; /* group_hold.c; 0: it is not held; no rank was let on */
	int64_t held_most_ns;                            /* however long somebody copies them */
	bool wants_hold;                                 /* a rank of it leaves */
	bool holding;                                    /* some of its ranks are not frozen yet */
	unsigned viewed;                                 /* views of it (rank_slots.c) */
	bool given_up;   /* its ranks are not to be waited for: others are to be started in their place */
	unsigned waited; /* calls of start or build that wait, and report a process that ends */
	uint64_t start_step;
	bool has_state, given;           /* given: rank states are known: after a build, but not after a restart */
	struct rank_state **rank_states; /* of each slot until it has declared; NULL: none */
	uint64_t armed;                  /* the stop; PTC_LOCAL_NO_STOP: none */
	/* said_leaves: said_failed is about a rank that gives up; the cause may be told later */
	bool said_failed, said_leaves, said_finished, said_due, said_not_started, said_stalled;
	char refused[PTC_ERROR_MAX]; /* why a declaration was refused */
	struct {                     /* how its ranks' device memory was copied last (copy: async) */
		bool known, done;
		char why[256]; /* not done */
	} async;
	struct rendezvous_entry *rendezvous;
	size_t nrendezvous, rendezvous_cap;
};
struct event_item {
	struct event_item *next;
	struct ptc_worker_event event;
};
struct ptc_workers {
	struct ptc_workers_env env;
	char node[64];
	char *dir;
	char cgroup[256];
	pthread_t loop, reporter;
	bool loop_runs, reporter_runs, silent, quit;
	bool undecided; /* etcd is unreachable */
	int wake;       /* eventfd */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct job *jobs;
	size_t njobs;
	struct conn *conns;
	struct event_item *event, **event_end;
	struct ptc_thread_count tasks;
	struct ptc_copiers copiers;    /* has a lock of its own */
	struct ptc_device_copier *gpu; /* never replaced; has locks of its own; unused before the first device memory */
};
