/* SPDX-License-Identifier: Apache-2.0 */
/* The server in ptc-gpu: it serves the requests of one socket (gpu_wire.h), with a thread for each device that they
 * name. gpu_serve.c reads requests and makes host maps. gpu_worker.c has a device's thread and its mapped allocations,
 * gpu_copiers.c the threads that copy for it. gpu_server.c has what all of them use.
 *
 * Locks: `hosts_lock` guards host maps, each worker's `lock` its queue, and its copiers' `lock` the copies under way.
 * Only a worker's thread changes its allocations, and no copy is under way then. Memory that a worker keeps (KEEP) is
 * read by other workers, too. It stays until they have given it back (share_lock). A worker that uses another one's
 * memory never waits for that worker. */
#pragma once

#include "daemon/gpu/gpu_wire.h"

#include <pthread.h>

struct ptc_gpu_server;

/* A host map. It stays while a request uses it (uses > 0). */
struct ptc_gpu_host_map {
	unsigned char *base; /* NULL: the place is free */
	uint64_t bytes;
	unsigned uses;
	bool ready;     /* requests may name it */
	bool read_only; /* its file is read-only, so nothing is copied out to it */
	/* Page-locked from the begin on, in pieces of `step` bytes, and counted against the budget. */
	_Atomic uint64_t locked;
	uint64_t step;
	unsigned worker; /* the worker whose device locked it, if any is locked */
};

/* A request on its way to a worker. */
struct ptc_gpu_job {
	struct ptc_gpu_job *next;
	struct ptc_gpu_head head;
	struct ptc_gpu_part *parts;
	int fds[PTC_GPU_FDS_MAX];
	unsigned nfds;
	struct ptc_gpu_host_map *host, *guard; /* the host maps that it uses, or NULL */
	struct ptc_gpu_worker *from;           /* COPY_WITHIN: the worker that has the allocation `host` */
	struct ptc_gpu_entry *entry;           /* of a copy, once it has been checked: the memory to copy from or to */
	bool kernels;                          /* of a copy: it may use kernels */
	bool again;                            /* it is done in part: at the end of the queue, it goes on */
};

/* A mapped allocation, shared by all who have bound it. */
struct ptc_gpu_entry {
	unsigned users; /* 0: the place is free */
	struct ptc_gpu_export e;
	struct ptc_gpu_memory *memory;
	uint64_t missing; /* VMM: handles that have not come yet */
	/* Under the worker's share_lock: other devices may read it; how many do. */
	bool shareable;
	unsigned readers;
};

struct ptc_gpu_worker;

struct ptc_gpu_copier_thread {
	struct ptc_gpu_worker *worker;
	unsigned number;
	pthread_t thread;
};

/* On a copier's thread. `begin` begins a copy that the worker's thread has checked; false: the copy failed, and is
 * answered. If the thread has no context, `f` has the reason, which becomes the answer. `end` ends the oldest copy that
 * has begun, and answers. */
struct ptc_gpu_copying {
	bool (*begin)(struct ptc_gpu_worker *w, unsigned copier, struct ptc_gpu_job *j, struct ptc_gpu_failure *f);
	void (*end)(struct ptc_gpu_worker *w, unsigned copier, struct ptc_gpu_job *j);
};

/* The threads that copy for a device; they start with its first copy. */
struct ptc_gpu_copiers {
	const struct ptc_gpu_copying *copying;
	struct ptc_gpu_copier_thread threads[PTC_GPU_COPIERS_MAX];
	unsigned n;
	enum ptc_gpu_op op; /* of the copies under way; the worker's thread alone uses it */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct ptc_gpu_job *next; /* handed over, and not taken yet */
	unsigned running;         /* copies handed over and not ended: two of each thread at most */
	unsigned idle;            /* threads that wait for one and have none under way */
	bool stop;
};

struct ptc_gpu_worker {
	struct ptc_gpu_server *server;
	unsigned index;
	pthread_t thread;
	char uuid[PTC_GPU_UUID_SIZE];
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct ptc_gpu_job *first, **last;
	unsigned queued;
	bool stop;
	bool is_broken;
	struct ptc_gpu_failure broken; /* sticky: the answer to every later request */
	struct ptc_gpu_copiers copiers;
	_Atomic uint64_t mapped_bytes, allocations;
	/* Other workers may borrow entries of the memory that it keeps. */
	pthread_mutex_t share_lock;
	pthread_cond_t returned;
	/* The members below belong to its thread, and copiers read them. While `entries` is moved, the thread has
	 * share_lock, because other workers look for shareable entries. */
	struct ptc_gpu *gpu; /* NULL: not attached yet */
	bool kernels_tried;  /* they are loaded, or the device works without */
	struct ptc_gpu_entry *entries;
	uint32_t nentries;
};

struct ptc_gpu_server {
	int socket;
	const struct ptc_gpu_ops *ops;
	unsigned ncopiers; /* copies of a device that run at once */
	struct ptc_gpu_budget budget;
	pthread_mutex_t send_lock, hosts_lock;
	struct ptc_gpu_host_map hosts[PTC_GPU_HOSTS_MAX];
	struct ptc_gpu_worker *workers[PTC_GPU_ATTACHED_MAX];
	unsigned nworkers; /* used by the reading thread only */
};

/* Serves until the socket is closed. copiers: how many copies of a device run at once, 1 to PTC_GPU_COPIERS_MAX.
 * Returns 0, or a status with err. */
int ptc_gpu_serve(int socket, uint64_t pinned_max, unsigned copiers, struct ptc_error *err);

/* ---- between the files ---- */

void ptc_gpu_server_answer(struct ptc_gpu_server *s, const struct ptc_gpu_answer *a);
/* Fills in an answer from a failure and sends it. */
void ptc_gpu_server_refuse(struct ptc_gpu_server *s, uint64_t id, const struct ptc_gpu_failure *f);
void ptc_gpu_server_job_free(struct ptc_gpu_server *s, struct ptc_gpu_job *j);
void ptc_gpu_server_host_ready(struct ptc_gpu_server *s, struct ptc_gpu_host_map *h);
/* Ends a host map; its number becomes free. */
void ptc_gpu_server_host_free(struct ptc_gpu_server *s, struct ptc_gpu_host_map *h);

int ptc_gpu_worker_new(struct ptc_gpu_server *s, unsigned index, const char *uuid, struct ptc_gpu_worker **ret,
		       struct ptc_error *err);
/* Queues a job and takes it over. Waits while the queue is full. */
void ptc_gpu_worker_push(struct ptc_gpu_worker *w, struct ptc_gpu_job *j);
/* Lets the request under way end, and detaches. */
void ptc_gpu_worker_stop(struct ptc_gpu_worker *w);
/* Drops queued jobs. All workers are stopped, for one may borrow from another. */
struct ptc_gpu_worker *ptc_gpu_worker_free(struct ptc_gpu_worker *w);
/* On the worker's thread. */
int ptc_gpu_copiers_start(struct ptc_gpu_worker *w, const struct ptc_gpu_copying *copying, struct ptc_error *err);
/* Hands over a copy. Waits while all threads have two. */
void ptc_gpu_copiers_give(struct ptc_gpu_copiers *c, struct ptc_gpu_job *j);
void ptc_gpu_copiers_wait(struct ptc_gpu_copiers *c); /* until no copy is under way */
void ptc_gpu_copiers_stop(struct ptc_gpu_copiers *c);
