/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the ranks room, shared by its rooms state, session, group and its floor, and by
 * nobody else. One lock guards everything here; one thread polls (workers.c); `changed` is
 * signalled whenever something a caller may wait for has changed. Functions that end in _locked
 * want the lock.
 *
 *   job      a job's socket, processes and groups on this node
 *   worker   a process: its token, its connection, its shared page, what it has declared
 *   group    see workers.h; its slots point to workers
 *
 * A worker's phase is what it has said last; what it is told next follows from the phase and from
 * what its group is to do, in one place (session.c, ptc_worker_advance_locked). So a worker that
 * connects anew, to us or to a later ptcd, comes to the same point by saying the same things again.
 */
#pragma once

#include "daemon/workers/copier/copier.h"
#include "daemon/workers/state/rank_declared.h"
#include "daemon/workers/process/process.h"
#include "daemon/workers/process/spawn.h"
#include "daemon/workers/state/worker_limits.h"
#include "daemon/workers/types/rank_slot.h"
#include "daemon/workers/types/workers_env.h"
#include "proto/local_messages.h"
#include "proto/local_page.h"
#include "proto/local_rules.h"

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
	uint8_t *room; /* what map lies in */
	uint64_t room_bytes;
};

struct worker {
	struct worker *next;
	struct job *job;
	unsigned number; /* its folder */
	struct ptc_process process;
	struct ptc_process_label label;
	struct ptc_process_label before[WORKERS_LABELS]; /* what it was, oldest first: for logs, not on disk */
	unsigned nbefore;
	bool spawning;                  /* by a caller that has let go of the lock */
	bool reaping;                   /* it has ended; how is being found out */
	bool ended, status_known, left; /* left: said BYE, at left_ns */
	int64_t left_ns;
	int status;
	struct conn *conn;
	pid_t pid; /* who connected: the process or one of its session */
	int pidfd; /* of pid */
	struct ptc_local_page *page;
	int page_fd;
	enum worker_phase phase;
	enum worker_phase resumes;        /* where it was when it connected: it is on its way there */
	uint64_t generation, incarnation; /* what it believes; valid from BUILDING to ENDING */
	struct group *group;              /* what it is for; NULL: free */
	size_t slot;
	uint64_t spawned_generation, spawned_incarnation; /* for which group; 0: it is not told apart any more */
	uint32_t device, rank;                            /* of its last slot */
	bool ran;                                         /* has had a generation */
	bool stale;                                       /* claims a generation that it was not given */
	bool exit_wanted;
	bool said_hangs;
	int64_t term_ns, kill_ns; /* when to signal; 0: not, or done */
	struct declared *declared;
	struct rank_state *rank_state;
	struct staging *staging;
	uint64_t stop_step;
	bool finished, staged;
	char refused[PTC_LOCAL_SHORT_MAX + 1]; /* why the state must not be taken at the stop; "": it may */
	bool later;                            /* refused at this boundary only: the stop is to move to the next */
	bool takes_state;                      /* takes blobs and cursors before its generation */
	bool go, restored;                     /* ptc_slot_go was called, and with what */
	struct rank_state *restore;
	struct {
		bool active;
		uint64_t id;
		char key[PTC_LOCAL_SHORT_MAX + 1];
		int64_t until_ns;
	} get;
	struct {
		bool can;
		uint64_t session;    /* connections it has said HELLO on */
		uint64_t sent, done; /* ids on this connection */
		bool failed;         /* one of them could not be done */
	} fill;
	uint64_t seen_step; /* sampling */
	bool seen;
	int64_t seen_ns;
	double step_seconds;
};

struct slot {
	struct ptc_group_rank rank;
	struct worker *worker; /* NULL: none yet, or no more */
	unsigned number;       /* its worker's folder, as on disk; 0: none */
	int exit_status;       /* of a worker that has ended */
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
	unsigned waited; /* by start or build, which will tell of a process that ends */
	uint64_t start_step;
	bool has_state;
	bool given;                      /* rank state is known: by each build, but not after a restart */
	struct rank_state **rank_states; /* of each slot until it has declared; NULL: nothing */
	uint64_t armed;                  /* PTC_LOCAL_NO_STOP: not */
	bool said_failed, said_finished, said_due, said_not_started, said_stalled;
	char refused[PTC_ERROR_MAX]; /* why a declaration was */
	struct rendezvous_entry *rendezvous;
	size_t nrendezvous, rendezvous_cap;
};
struct job {
	struct job *next;
	char uuid[37];
	uid_t uid;
	char *dir, *socket;
	int listen;
	struct worker *workers;
	struct group *groups;
	size_t nworkers;
	unsigned last_number;
	unsigned held;  /* by groups, listed or only referred to */
	bool forgotten; /* deleted: goes when nothing of it is left */
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
	bool loop_runs, reporter_runs, quit;
	int wake; /* eventfd */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct job *jobs;
	size_t njobs;
	struct conn *conns;
	struct event_item *event, **event_end;
	size_t ntasks;
	struct ptc_copiers copiers; /* has a lock of its own */
	struct ptc_device_copier
		*gpu; /* constant; has locks of its own; makes no calls before the first device memory */
};
