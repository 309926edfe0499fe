/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of workers. One lock guards everything here; one thread polls (workers.c); `changed` is signalled whenever something a
 * caller may wait for has changed. Functions that end in _locked want the lock.
 *
 *   job      a job's socket, processes and groups on this node
 *   worker   a process: its token, its connection, its shared page, what it has declared
 *   group    see workers.h; its seats point to workers
 *
 * A worker's phase is what it has said last; what it is told next follows from the phase and from what its group is to do, in
 * one place (session.c, ptc_worker_advance_locked). So a worker that connects anew, to us or to a later ptcd, comes to the same point
 * by saying the same things again. */
#pragma once

#include "daemon/workers/copier.h"
#include "daemon/workers/process.h"
#include "daemon/workers/spawn.h"
#include "daemon/workers/workers.h"
#include "proto/local_messages.h"
#include "proto/local_page.h"
#include "proto/local_rules.h"

#include <pthread.h>
#include <stdatomic.h>

#define WORKERS_JOBS_MAX      1024 /* on one node */
#define WORKERS_PROCESSES_MAX 1024 /* of one job on one node, ended ones that are kept included */
#define WORKERS_STRANGERS_MAX 64   /* connections of a job that have not said who they are */
#define WORKERS_HELLO_MS      10000
#define WORKERS_LOGS_KEPT     32 /* ended processes of a job whose log stays */
#define WORKERS_LABELS        8  /* launches of a process that are remembered beside its last */
#define WORKERS_LOG_BYTES     (64u << 20)
#define WORKERS_TASKS_MAX     256
#define WORKERS_DECLARED_MAX  (512u << 20) /* bytes one worker's declarations may take here */
#define WORKERS_SETTLE_MS     15000        /* how long a call waits for ranks that connect anew */
#define WORKERS_SAMPLE_MS     200
#define WORKERS_CGROUP_MS     1000 /* how long the kernel may take to let go of a cgroup whose processes have ended */
#define WORKERS_LEFT_NS       INT64_C(2000000000)
#define WORKERS_FILE_MAX      (8u << 20)
#define WORKERS_QUEUE_READ                                                                                             \
	(1u << 20) /* bytes waiting to be sent to a rank from which no more is read until it has read */
#define WORKERS_QUEUE_MAX (64u << 20) /* with more its connection ends; what a rank carries takes 16 MiB, given twice */

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

/* Shared by a worker and the views of it. Immutable but for the worker's own while nobody else refers to it. */
struct carry {
	int refs;
	struct ptc_seat_blob *blobs;
	struct ptc_seat_cursor *cursors;
	size_t nblobs, ncursors;
};
struct declared {
	int refs;
	struct ptc_seat_tensor *tensors;
	size_t ntensors, cap, nregions, nspans;
	struct ptc_local_span *spans; /* all declared memory, in address order; offset: where in staging */
	uint64_t memory;              /* bytes this struct takes */
	uint64_t bytes, span_bytes;   /* of declared tensors; of spans */
};
struct staging {
	const struct ptc_workers *w;
	int refs, fd, readers;
	uint8_t *map;
	uint64_t bytes;
	uint8_t *room; /* what map lies in */
	uint64_t room_bytes;
};

struct outgoing {
	struct outgoing *next;
	uint16_t type;
	int fd; /* ours; -1: none */
	size_t len, offset;
	uint8_t *data;
};
struct conn {
	struct conn *next;
	struct job *job;
	struct worker *worker; /* NULL until HELLO */
	struct ptc_local_conn link;
	pid_t pid;
	uid_t uid;
	int64_t since_ns;
	struct outgoing *out, **out_end;
	size_t out_bytes; /* memory that `out` takes */
	bool broken;      /* closed by the loop */
	bool closing;     /* after what is queued was sent */
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
	enum worker_phase resumes;   /* where it was when it connected: it is on its way there */
	uint64_t generation, launch; /* what it believes; valid from BUILDING to ENDING */
	struct group *group;         /* what it is for; NULL: free */
	size_t seat;
	uint64_t spawned_generation, spawned_launch; /* for which group; 0: it is not told apart any more */
	uint32_t device, rank;                       /* of its last seat */
	bool ran;                                    /* has had a generation */
	bool stale;                                  /* claims a generation that it was not given */
	bool exit_wanted;
	bool said_hangs;
	int64_t term_ns, kill_ns; /* when to signal; 0: not, or done */
	struct declared *declared;
	struct carry *carry;
	struct staging *staging;
	uint64_t stop_step;
	bool finished, staged;
	char refused[PTC_LOCAL_SHORT_MAX + 1]; /* why the state must not be taken at the stop; "": it may */
	bool later;                            /* refused at this boundary only: the stop is to move to the next */
	bool carries;                          /* takes blobs and cursors before its generation */
	bool go, restored;                     /* ptc_seat_go was called, and with what */
	struct carry *restore;
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

struct seat {
	struct ptc_group_rank rank;
	struct worker *worker; /* NULL: none yet, or no more */
	unsigned number;       /* its worker's folder, as on disk; 0: none */
	int exit_status;       /* of a worker that has ended */
	bool exited;
};
struct meet_entry {
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
	struct seat *seats;
	bool started, built, ending, dropping, removed, spawning;
	unsigned waited; /* by start or build, which will tell of a process that ends */
	uint64_t start_step;
	bool has_state;
	bool given;             /* what ranks carry is known: by each build, but not after a restart */
	struct carry **carried; /* of each seat until it has declared; NULL: nothing */
	uint64_t armed;         /* PTC_LOCAL_NO_STOP: not */
	bool said_failed, said_finished, said_due, said_not_started, said_stalled;
	char refused[PTC_ERROR_MAX]; /* why a declaration was */
	struct meet_entry *meets;
	size_t nmeets, meets_cap;
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

struct news_item {
	struct news_item *next;
	struct ptc_worker_news news;
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
	struct news_item *news, **news_end;
	size_t ntasks;
	struct ptc_copiers copiers; /* has a lock of its own */
};

/* workers.c */
void ptc_workers_wake(struct ptc_workers *w);
void ptc_workers_changed_locked(struct ptc_workers *w); /* signals callers and the loop */
/* Waits for a change, at most 100 ms, then asks `wait`. deadline_ns: 0 or when it ends. */
int ptc_workers_pause_locked(struct ptc_workers *w, const struct ptc_wait *wait, int64_t deadline_ns,
			     struct ptc_error *err);
int64_t ptc_workers_deadline(const struct ptc_wait *wait);
/* Runs fn(w, arg) on a thread of its own; w stays until it has returned. false: too many, or no thread. */
bool ptc_workers_task_locked(struct ptc_workers *w, void (*fn)(struct ptc_workers *w, void *arg), void *arg);
struct job *ptc_workers_job_locked(struct ptc_workers *w, const char *uuid);
int ptc_workers_job_make_locked(struct ptc_workers *w, const char *uuid, uid_t uid, struct job **ret,
				struct ptc_error *err);
void ptc_workers_job_free(struct job *job);

/* conn.c */
void ptc_conn_accept_locked(struct ptc_workers *w, struct job *job);
void ptc_conn_read_locked(struct ptc_workers *w, struct conn *c);
static inline bool ptc_conn_reads(const struct conn *c)
{
	return c->out_bytes <= WORKERS_QUEUE_READ;
}
void ptc_conn_flush_locked(struct conn *c);
/* Takes fd. */
void ptc_conn_send_locked(struct conn *c, uint16_t type, const struct ptc_local_out *body, int fd);
void ptc_conn_refuse_locked(struct conn *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void ptc_conn_close_locked(struct ptc_workers *w, struct conn *c); /* frees it; it must be out of the list */
int ptc_conn_listen(struct job *job, struct ptc_error *err);

/* session.c */
/* false: not allowed now, or not decodable; the connection is refused. */
bool ptc_worker_message_locked(struct ptc_workers *w, struct worker *k, const struct ptc_local_message *m);
void ptc_worker_hello_locked(struct ptc_workers *w, struct conn *c, struct ptc_local_message *m);
void ptc_worker_advance_locked(struct ptc_workers *w, struct worker *k);
bool ptc_worker_ending(const struct worker *k);
void ptc_worker_exited_locked(struct ptc_workers *w, struct worker *k);
void ptc_worker_sample_locked(struct worker *k, int64_t now_ns);
/* How long its step has not moved, if that is longer than it may be; else 0. */
int64_t ptc_worker_stalled_ns(const struct ptc_workers *w, const struct worker *k, int64_t now_ns);
struct worker *ptc_worker_new_locked(struct job *job, unsigned number); /* not spawned yet; NULL: out of memory */
struct worker *ptc_worker_find_locked(struct ptc_workers *w, const char *uuid, unsigned number);
void ptc_worker_remove_locked(struct worker *k); /* from its job; frees it */
/* Takes it out of its group. */
void ptc_worker_detach_locked(struct worker *k);
void ptc_worker_want_exit_locked(struct ptc_workers *w, struct worker *k, uint32_t grace_ms);

/* declared.c */
/* Reference counts are guarded by the module's lock. */
struct declared *ptc_declared_new(void);
struct declared *ptc_declared_unref(struct declared *d);
int ptc_declared_add(struct declared *d, struct ptc_local_tensor *t, struct ptc_error *err);
/* After the last: sorts, refuses doubles, finds spans. */
int ptc_declared_finish(struct declared *d, struct ptc_error *err);
/* NULL: [address, address + len) is not all declared. */
const struct ptc_local_span *ptc_declared_span(const struct declared *d, uint64_t address, uint64_t len);
const char *ptc_declared_tensor_at(const struct declared *d, uint64_t address);
struct carry *ptc_carry_new(void);
struct carry *ptc_carry_ref(struct carry *k); /* NULL: NULL */
struct carry *ptc_carry_unref(struct carry *k);
int ptc_carry_make(const struct ptc_seat_carried *of, struct carry **ret, struct ptc_error *err);
/* *k gets the blob or cursor; copied first when it is referred to elsewhere. */
int ptc_carry_set_blob(struct carry **k, const struct ptc_local_blob *b);
int ptc_carry_set_cursor(struct carry **k, const struct ptc_local_cursor *c);

/* group.c */
struct group *ptc_group_find_locked(struct ptc_workers *w, const struct ptc_group_key *key);
struct group *ptc_group_ref(struct group *g);
void ptc_group_unref_locked(struct group *g);
bool ptc_group_is(const struct group *g, uint64_t generation, uint64_t launch);
/* Out of its job; freed with its last reference. Its file goes too. */
void ptc_group_remove_locked(struct ptc_workers *w, struct group *g);
int ptc_group_spawn_locked(struct ptc_workers *w, struct group *g, struct ptc_error *err);
/* ENOTFOUND err: there is no such group here. */
int ptc_group_missing(const struct ptc_group_key *key, struct ptc_error *err);
/* Live workers are connected, or the time is over. */
int ptc_group_settle_locked(struct ptc_workers *w, struct group *g, struct ptc_error *err);
/* It has exited, or has said BYE and lives on without us. One that has just said BYE is likely to exit, and then we know more. */
bool ptc_worker_gone(const struct worker *k);
void ptc_worker_left_locked(struct ptc_workers *w, struct worker *k, int64_t now_ns); /* from time to time */
/* Fills err when one of its processes has ended. */
int ptc_group_dead_locked(struct ptc_workers *w, struct group *g, struct ptc_error *err);
struct ptc_process_label ptc_group_label(const struct group *g, size_t seat); /* of a process that begins with it */
enum ptc_seat_state ptc_group_seat_state(const struct group *g, size_t i);

/* disk.c */
int ptc_group_new(const struct ptc_group_desc *desc, struct group **ret, struct ptc_error *err);
void ptc_group_free(struct group *g);
int ptc_group_save(const struct group *g, struct ptc_error *err);
void ptc_group_unsave(const struct group *g);
int ptc_group_load(const void *data, size_t len, struct group **ret, struct ptc_error *err);
int ptc_workers_adopt(struct ptc_workers *w, struct ptc_error *err);

/* stop.c */
/* Sets one rank's stop. Returns whether it is at or past `stop`, other than held there; then it is held at its next boundary at
 * the latest. *ret_step: what it has published, if it has. */
bool ptc_worker_arm(struct worker *k, uint64_t stop, bool *ret_published, uint64_t *ret_step);
void ptc_group_prearm_locked(struct group *g);
uint64_t ptc_group_first_stop(const struct group *g); /* of a rank that begins */

/* end.c */
uint32_t ptc_group_grace_ms(const struct group *g);
void ptc_group_end_locked(struct ptc_workers *w, struct group *g, bool dropping);
/* Of a group that was found ending at the start. */
void ptc_group_end_again_locked(struct ptc_workers *w, struct group *g);
void ptc_workers_signals_locked(struct ptc_workers *w, int64_t now_ns);
void ptc_workers_forgotten_locked(struct ptc_workers *w);

/* seat.c */
void ptc_worker_stage(struct ptc_workers *w, struct worker *k);
struct staging *ptc_staging_unref(struct staging *s);

/* meet.c */
void ptc_meet_message_locked(struct ptc_workers *w, struct worker *k, uint16_t type, const struct ptc_local_meet *m);
void ptc_meet_expire_locked(struct worker *k, int64_t now_ns);
/* 0: it is among the group's keys; 1: it was already. */
int ptc_meet_add(struct group *g, const char *key, const void *value, size_t len, struct ptc_error *err);

/* meet_file.c */
#define PTC_MEETS ".meets" /* ends such a file's name, in the folder of groups */
void ptc_meets_keep(const struct group *g, const struct meet_entry *e);
void ptc_meets_load(struct group *g);
void ptc_meets_unsave(const struct group *g);
/* Keys of a file's bytes; returns how many bytes of them are good. */
size_t ptc_meets_decode(struct group *g, const uint8_t *data, size_t len);

/* news.c */
void ptc_group_news_locked(struct ptc_workers *w, struct group *g);
void ptc_group_stalled_locked(struct ptc_workers *w, struct group *g, int64_t now_ns);
void ptc_group_hangs_locked(struct ptc_workers *w, struct group *g);
/* k NULL: it has none any more. what NULL: it has exited. */
void ptc_group_failed_locked(struct ptc_workers *w, struct group *g, const struct worker *k, size_t seat,
			     const char *what);
/* "rank 3 (pid 12) exited with status 1", and the end of its log on the lines that follow. */
/* PTC_ESTATE, with the obituary as one line. If start or build waits for that process, the whole of it becomes news, once. */
int ptc_group_not_started_locked(struct ptc_workers *w, struct group *g, const struct worker *k, uint32_t rank,
				 struct ptc_error *err);
void ptc_worker_obituary(const struct worker *k, uint32_t rank, char *buf, size_t size);
void *ptc_workers_reporter(void *workers);

static inline int ptc_grow_failed(struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ENOMEM, "out of memory");
}
