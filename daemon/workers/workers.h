/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of live jobs on this node: their processes (spawn.h), their
 * connections (seat), and what a switch does with them. The agent's peer calls
 * are thin layers over this.
 *
 * Terms
 *   group    the ranks of one (job, generation, launch) on this node
 *   seat     one rank of a group: its process, its connection, its declarations
 *
 * A seat's states:
 *
 *   SPAWNED -> WAITING (in ptc_next) -> BUILDING (has its generation) -> DECLARED (in ptc_restore) -> RUNNING
 *      |                ^                                                                              |
 *      |                |                                    RUNNING (go on) <- STOPPED (at a boundary, or finished)
 *      |                +------------ ENDING (told that its generation is over) <----------------------+
 *      +-> any -> EXITED
 *
 * A process of mode `rebuild` that has ended its generation waits again and takes any seat of the next group; in mode `restart`
 * it is told to exit.
 *
 * Happy path, by call: start -> (training goes on) -> arm, arm, wait_stopped -> seats read by the agent -> end -> build ->
 * seats restored by the agent -> go.
 * Failure modes: a rank that exits (PTC_ESTATE naming rank, status and the end of its log), that never comes to a boundary
 * (the caller's wait ends: PTC_ETIMEOUT naming ranks), that declares nonsense (PTC_ELAYOUT naming tensor), that is not the process
 * the seat was made for (refused by token, uid and pid).
 *
 * Threads: every function may be called from any thread. Waiting ones take a `struct ptc_wait`. Seats are borrowed
 * between ptc_workers_seats and ptc_workers_seats_done; while they are, the group stays, though a process may still die. */
#pragma once

#include "base/status.h"
#include "reshard/spec/spec.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct ptc_workers;

struct ptc_wait {
	bool (*cancelled)(void *arg); /* asked at least every 100 ms; NULL: never */
	void *arg;
	int64_t timeout_ms; /* 0: none */
};

struct ptc_group_key {
	char uuid[37];
	uint64_t generation, launch;
};

enum ptc_worker_mode { PTC_MODE_RESTART, PTC_MODE_REBUILD };

struct ptc_group_rank {
	uint32_t rank, local_rank, device;
	uint32_t tp, pp, dp, cp; /* coordinates */
};

/* Everything a process needs to be started and to be told its generation. Borrowed during the call. */
struct ptc_group_desc {
	struct ptc_group_key key;
	const char *job;
	uid_t uid; /* the job's owner: processes run as this user, with its groups */
	enum ptc_worker_mode mode;
	bool fast_copy;                       /* copy: fast */
	uint64_t snapshot_every;              /* 0: never */
	uint32_t grace_ms;                    /* between asking to exit and SIGKILL */
	uint64_t log_bytes;                   /* of one rank's output, the newest; 0: 64 MiB */
	const char *const *argv, *const *env; /* NULL-terminated; env has NAME=VALUE */
	const char *cwd;
	const char *config;  /* canonical text */
	uint32_t degrees[6]; /* tp pp dp cp ep etp */
	uint32_t zero, micro_batch, global_batch;
	uint32_t world, node_rank, nodes;
	const struct ptc_group_rank *ranks; /* of this node */
	size_t nranks;
	char rank0_node[64], rank0_address[256]; /* who holds what ranks meet by */
};

/* NOT_STARTED: a process ended while ptc_workers_start or _build waited for it. The call says so as well, in one line; this has its log. */
enum ptc_worker_news_kind {
	PTC_NEWS_FAILED,
	PTC_NEWS_FINISHED,
	PTC_NEWS_DUE,
	PTC_NEWS_NOT_STARTED,
	PTC_NEWS_STALLED, /* the step has not moved for stall_ms; nothing is done about it ... */
	PTC_NEWS_MOVES,   /* ... and moves again */
	PTC_NEWS_HANGS,   /* a copy of the rank's memory has not answered, and its process cannot be ended ... */
	PTC_NEWS_ANSWERS, /* ... and has ended */
};
/* What the controller has to hear of; from a thread of ptc_workers, in order per group, repeated after a restart of ptcd. */
struct ptc_worker_news {
	struct ptc_group_key key;
	enum ptc_worker_news_kind kind;
	uint32_t rank;
	uint64_t step;
	int exit_status; /* as of wait(2) */
	char text[1024]; /* one line; for FAILED and NOT_STARTED then the end of the log; "" for FINISHED and DUE */
};
/* Such a text as one line: what happened, and the log's last line, which for most languages is the error. Returns buf. */
const char *ptc_worker_text_line(const char *text, char *buf, size_t size);

struct ptc_workers_env {
	const char *node; /* our name */
	const char *
		dir; /* 0711: a folder per job inside, its owner's: socket, logs; ours: what is needed to find processes again */
	const char *cgroup; /* where groups' cgroups are made; NULL: found from /proc/self/cgroup, or none */
	int64_t stall_ms;   /* STALLED is said after this long, and not before 30 times what a step took; 0: never */
	int64_t copy_ms;    /* a copy of at most 16 MiB that has not answered for so long hangs; 0: 30 s */
	void (*news)(void *arg, const struct ptc_worker_news *news);
	/* Bytes for a rank's staging memory (copy: fast) are taken, or given back; false: there is no room, its copies are lean then.
	 * take may block, give is called under a lock. NULL: there always is room. */
	bool (*staging_take)(void *arg, const char *job, uint64_t bytes);
	void (*staging_give)(void *arg, uint64_t bytes);
	/* Blocking: asks the daemon of rank 0's node for a key (it answers ptc_workers_meet_get); only for groups whose rank 0 is elsewhere. */
	int (*meet_get)(void *arg, const struct ptc_group_key *key, const char *node, const char *address,
			const char *name, void *buffer, size_t capacity, size_t *ret_len, const struct ptc_wait *wait,
			struct ptc_error *err);
	int (*meet_put)(void *arg, const struct ptc_group_key *key, const char *node, const char *address,
			const char *name, const void *value, size_t len, const struct ptc_wait *wait,
			struct ptc_error *err);
	void *arg;
};

/* Takes up again the processes an earlier ptcd has started: they connect anew by themselves. */
int ptc_workers_new(const struct ptc_workers_env *env, struct ptc_workers **ret_workers, struct ptc_error *err);
/* Whether processes that some ptcd has started with this `dir` still run: *ret_pid is one of them, or 0. Nothing there is nothing. */
int ptc_workers_running(const char *dir, pid_t *ret_pid, struct ptc_error *err);
/* Processes go on without us. */
struct ptc_workers *ptc_workers_free(struct ptc_workers *w);

/* Processes for every rank of the group exist and wait. Idempotent. rebuild: those of the job's running group that will be free count. */
int ptc_workers_start(struct ptc_workers *w, const struct ptc_group_desc *desc, const struct ptc_wait *wait,
		      struct ptc_error *err);
/* One round of arming. *ret_passed: some rank is at or past `stop`; *ret_step: the greatest step any rank has published; then
 * each such rank is held at its next boundary at the latest. Ranks that wait at an earlier stop go on to this one. */
int ptc_workers_arm(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t stop, bool *ret_passed,
		    uint64_t *ret_step, struct ptc_error *err);
/* Waits until every rank of the group waits at `stop`. A rank whose state cannot be taken there, but at a later boundary, is no
 * failure: ret_later, of PTC_WORKERS_LATER_MAX bytes, says which rank and why; "" when there is none. With ret_later NULL such a
 * rank is one that refuses. */
int ptc_workers_wait_stopped(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t stop, char *ret_later,
			     const struct ptc_wait *wait, struct ptc_error *err);
#define PTC_WORKERS_LATER_MAX 320 /* a rank's number and what libptc sends as the reason */
/* Ranks of the group that wait at a stop go on (0); ranks that run are left alone, and their stop is cleared. Finished ranks stay: the
 * end of the job (drop) or of the generation (end) lets them return from ptc_finish. */
int ptc_workers_release(struct ptc_workers *w, const struct ptc_group_key *key, struct ptc_error *err);
/* The group's generation is over: waits until every rank has exited or waits in ptc_next, killing after the grace time. */
int ptc_workers_end(struct ptc_workers *w, const struct ptc_group_key *key, const struct ptc_wait *wait,
		    struct ptc_error *err);
struct ptc_seat_carried;
/* Gives the group's ranks their generation; waits until all have declared. start_step and has_state: see ptc.h. carried:
 * with has_state, of each rank of desc; NULL: nothing. */
int ptc_workers_build(struct ptc_workers *w, const struct ptc_group_desc *desc, uint64_t start_step, bool has_state,
		      const struct ptc_seat_carried *carried, const struct ptc_wait *wait, struct ptc_error *err);
/* Ends every process of the job that is not of `keep` (NULL: all), in the background. */
void ptc_workers_drop(struct ptc_workers *w, const char *uuid, const struct ptc_group_key *keep);

/* The job has been deleted: as drop, and once nothing of it runs here its folder goes. Idempotent. */
void ptc_workers_forget(struct ptc_workers *w, const char *uuid);
/* Jobs that have a folder here. fn must not call back. */
void ptc_workers_jobs(struct ptc_workers *w, void (*fn)(void *arg, const char *uuid), void *arg);
/* Says again what is to be said of the group: what it said before may have been overwritten by what another group said. */
void ptc_workers_retell(struct ptc_workers *w, const struct ptc_group_key *key);

enum ptc_seat_state {
	PTC_SEAT_SPAWNED,
	PTC_SEAT_WAITING,
	PTC_SEAT_BUILDING,
	PTC_SEAT_DECLARED,
	PTC_SEAT_RUNNING,
	PTC_SEAT_STOPPED,
	PTC_SEAT_ENDING,
	PTC_SEAT_EXITED,
};

struct ptc_seat_region {
	struct ptc_box box;           /* elements */
	uint64_t address;             /* in the process, of the first element */
	int64_t stride[PTC_MAX_DIMS]; /* bytes, never all 0 here */
};
/* One declared tensor; name is "NAME" or "NAME:FIELD". Immutable once declared. */
struct ptc_seat_tensor {
	char *name;
	enum ptc_dtype dtype;
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];
	bool tied;
	struct ptc_seat_region *regions; /* row-major by offset, disjoint */
	size_t nregions;
};
struct ptc_seat_blob {
	char *name;
	int scope; /* enum ptc_blob_scope */
	void *data;
	size_t len;
};
struct ptc_seat_cursor {
	char *name, *tag;
	uint64_t position;
};
/* What ptc_blob_get and ptc_cursor_get answer on one rank. Borrowed during the call. */
struct ptc_seat_carried {
	const struct ptc_seat_blob *blobs;
	const struct ptc_seat_cursor *cursors;
	size_t nblobs, ncursors;
};
struct ptc_seat_view {
	struct ptc_group_rank rank;
	enum ptc_seat_state state;
	pid_t pid;
	uint64_t step;
	const struct ptc_seat_tensor *tensors; /* in name order; DECLARED and later */
	size_t ntensors;
	const struct ptc_seat_blob *blobs; /* as of the stop */
	size_t nblobs;
	const struct ptc_seat_cursor *cursors;
	size_t ncursors;
	bool staged; /* what ptc_seat_read reads is a copy the rank has made: it may go on meanwhile */
	void *opaque;
	/* copy: fast, STOPPED: its bytes have been copied to memory of ours. ptc_seat_read takes them from there, also after
	 * ptc_workers_release, until ptc_workers_seats_done. */
	bool copied;
};
/* PTC_ENOTFOUND: no such group here. */
int ptc_workers_seats(struct ptc_workers *w, const struct ptc_group_key *key, struct ptc_seat_view **ret_seats,
		      size_t *ret_n, struct ptc_error *err);
void ptc_workers_seats_done(struct ptc_workers *w, struct ptc_seat_view *seats, size_t n);
/* Copies from or to the process's memory (addresses of its declared regions only; a STOPPED or DECLARED seat). A process of the job's user
 * makes the copy (copier.h), so that the kernel refuses it when the rank's process has become another user's program: PTC_EPERM.
 * Memory that does not answer: PTC_ESTATE naming tensor and rank. Counts of bytes must be equal, spans at most PTC_SEAT_SPANS_MAX on either
 * side, and those here all in one of the two memories of `copying`. */
#define PTC_SEAT_SPANS_MAX 1024
/* A file of which [0, bytes) is mapped here at base. */
struct ptc_seat_memory {
	int fd; /* -1: none */
	bool writable;
	bool once; /* of this operation only: the process that copies gives it up with ptc_seat_copying_done */
	const uint8_t *base;
	uint64_t bytes;
	uint64_t dev, ino; /* as ptc_seat_copying_init finds them */
};
/* Stays as long as a copier that hangs may write to the memory it stands for: the caller's, in one of its own structs, with one
 * reference of the caller's. done is called without a lock, on any thread. */
struct ptc_seat_kept {
	_Atomic unsigned refs;
	void (*done)(struct ptc_seat_kept *k);
};
void ptc_seat_kept_unref(struct ptc_seat_kept *k); /* NULL: fine */
/* What the copies of one operation share; used by any number of threads. */
struct ptc_seat_copying {
	struct ptc_seat_memory memory[2];
	const struct ptc_wait *wait; /* `cancelled` is asked from threads that copy; NULL: never */
	struct ptc_seat_kept *kept;  /* NULL: nothing has to be kept */
	_Atomic uint64_t copier;     /* number of the process that copied last, never used twice; 0: none runs */
};
/* Fills in dev, ino and copier. seat: any of those that will be copied. PTC_EIO: the descriptors are of no use. */
int ptc_seat_copying_init(const struct ptc_seat_view *seat, struct ptc_seat_copying *c, struct ptc_error *err);
/* After the last copy. The descriptors are the caller's. */
void ptc_seat_copying_done(const struct ptc_seat_view *seat, const struct ptc_seat_copying *c);
/* fresh: our side's memory is likely not to be mapped in the process that copies yet. */
int ptc_seat_read(const struct ptc_seat_view *seat, struct ptc_seat_copying *copying, const struct iovec *remote,
		  size_t nremote, const struct iovec *local, size_t nlocal, bool fresh, struct ptc_error *err);
int ptc_seat_write(const struct ptc_seat_view *seat, struct ptc_seat_copying *copying, const struct iovec *remote,
		   size_t nremote, const struct iovec *local, size_t nlocal, struct ptc_error *err);
/* As a read, but only looks whether the bytes here are the same: PTC_EDIGEST if not. */
int ptc_seat_compare(const struct ptc_seat_view *seat, struct ptc_seat_copying *copying, const struct iovec *remote,
		     size_t nremote, const struct iovec *local, size_t nlocal, struct ptc_error *err);
/* Has the rank read bytes of a file to its declared memory itself: that does not cost the kernel a look-up for each page, and a
 * processor of its own does it. fd: open for reading only; borrowed. Returns when the rank has been told; waits first while it has
 * much to do. ptc_seat_filled waits until it has done all it was told, also for callers before who gave up. Either may return
 * PTC_ECANCELED because `wait` says so; then the rank may still be reading, and the file must keep these bytes until it has
 * been waited for or is gone. A filling is of one seat and several fills, zeroed before; `failed`, as ptc_seat_filled leaves it: the rank's libptc
 * cannot, or did not do it all, and ptc_seat_write has to. */
struct ptc_seat_rows {
	uint64_t address, offset; /* of the first row, in the process and in the file */
	uint64_t bytes, count;    /* of one row, of rows; neither is 0 */
	uint64_t address_step, offset_step;
};
struct ptc_seat_filling {
	uint64_t session; /* guarded by ptc_workers, as is: */
	bool failed;
};
#define PTC_SEAT_ROWS_MAX 1024
int ptc_seat_fill(const struct ptc_seat_view *seat, struct ptc_seat_filling *f, int fd,
		  const struct ptc_seat_rows *rows, size_t n, const struct ptc_wait *wait, struct ptc_error *err);
int ptc_seat_filled(const struct ptc_seat_view *seat, struct ptc_seat_filling *f, const struct ptc_wait *wait,
		    struct ptc_error *err);
/* Blobs and cursors are those of ptc_workers_build; then the seat may go: ptc_restore returns. */
int ptc_seat_go(const struct ptc_seat_view *seat, bool restored, const struct ptc_seat_blob *blobs, size_t nblobs,
		const struct ptc_seat_cursor *cursors, size_t ncursors, struct ptc_error *err);

/* What ranks of a group whose rank 0 is here meet by. get waits. */
int ptc_workers_meet_put(struct ptc_workers *w, const struct ptc_group_key *key, const char *name, const void *value,
			 size_t len, struct ptc_error *err);
int ptc_workers_meet_get(struct ptc_workers *w, const struct ptc_group_key *key, const char *name, void *buffer,
			 size_t capacity, size_t *ret_len, const struct ptc_wait *wait, struct ptc_error *err);

/* For status: JSON array of this job's seats here: [{rank, generation, launch, state, pid, step, whole, step_seconds, stalled_s, hangs_s, reports: {loss: ..}, cgroup, log}];
 * after them what has a log and no seat any more, [{rank, generation, launch, state}]. Where it is known, each has `world` and `since_ms`, when
 * its process became that rank. ptc_free it. */
int ptc_workers_json(struct ptc_workers *w, const char *uuid, char **ret_json, struct ptc_error *err);
/* A rank's log. */
struct ptc_worker_log {
	char path[320];
	uint64_t begin,
		end; /* of that launch; UINT64_MAX: where the file ends. A process may go through several launches. */
	bool over;   /* nothing more is written to it */
	unsigned number; /* private */
	uint64_t launch;
	uint32_t rank;
};
/* That of the rank's newest process in this launch (0: in any). PTC_ENOTFOUND. */
int ptc_workers_log(struct ptc_workers *w, const char *uuid, uint32_t rank, uint64_t launch,
		    struct ptc_worker_log *ret_log, struct ptc_error *err);
/* Brings end and over up to date. */
void ptc_workers_log_look(struct ptc_workers *w, const char *uuid, struct ptc_worker_log *log);
