/* SPDX-License-Identifier: Apache-2.0 */
/* libptcadmin: control of a ptc cluster through any of its daemons.
 *
 *     struct ptc_admin_opts opts = { .size = sizeof opts };      // the daemon of this node
 *     struct ptc_error err = PTC_ERROR_INIT;
 *     struct ptc_admin *a;
 *     char *json;
 *     if (ptc_admin_open(&opts, &a, &err) || ptc_admin_status(a, "gpt", &json, &err))
 *             fail(err.text);
 *     puts(json);                                                 // docs/control.md has its members
 *     ptc_admin_free(json);
 *     ptc_admin_close(a);
 *
 * This header has the handle, documents, jobs, datasets and events. <ptc/admin_state.h> has the bytes of a job's state.
 * <ptc/admin_plan.h> reads job files and plans switches; for these a program needs no daemon and no handle.
 *
 * Returns: 0, or a negative code of <ptc/error.h>; then `err` has one line for a person. `err` may be NULL. A ret_
 * argument is set on success only. Every call can fail with PTC_EINVAL (a wrong argument; nothing changed), PTC_EPEER
 * (no daemon answers, or the connection broke), PTC_ETIMEOUT, PTC_EVERSION (the daemon speaks another version),
 * PTC_EPERM, PTC_ENOMEM, and with the code that the daemon answers. Only ptc_admin_read_ranges repeats a call.
 *
 * Threads: calls block. Several threads may use one handle at once; one thread at a time may use a stream or a reading.
 * Callbacks run in the thread of the call. A child after fork cannot use its parent's handle.
 *
 * Ownership: the library borrows strings and arrays for the time of the call. Text in a ret_ argument belongs to the
 * caller, who releases it with ptc_admin_free. A callback borrows its arguments until it returns.
 *
 * Compatibility: a struct begins with `size`. Before a call, the program sets `size` to sizeof, and members that it
 * does not use to zero. In a struct that the library fills, `size` counts the bytes that the library knows. Later
 * versions add members at the end. A struct without `size` is an element of an array and never grows. PTC_EVERSION: the
 * program sets a member that this version of the library does not know. */
#ifndef PTC_ADMIN_H
#define PTC_ADMIN_H
#include <ptc/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PTC_ADMIN_DEFAULT_SOCKET "/run/ptc/control.sock"

/* ---- handles ---------------------------------------------------------------- */

struct ptc_admin;
struct ptc_admin_opts {
	size_t size;
	const char *socket; /* path of the daemon's socket; NULL: PTC_ADMIN_DEFAULT_SOCKET; ignored if server is set */
	const char *server; /* HOST:PORT, by mutual TLS with the next three files; NULL: the socket */
	const char *ca_path, *cert_path, *key_path;
	const char *member; /* with server: the DNS name in the certificates of the cluster's nodes; NULL: "ptc-node" */
	int timeout_ms;     /* limit of each call that is not a stream; 0: one minute, to measure links ten */
	int stream_timeout_ms; /* limit of each stream; 0: none */
};
/* Makes a handle. The handle connects at its first call, so a missing daemon is no error here. opts NULL: all defaults.
 * PTC_EIO: a TLS file cannot be read, or fewer than 16 descriptors are free. */
PTC_ADMIN_API int ptc_admin_open(const struct ptc_admin_opts *opts, struct ptc_admin **ret_admin,
				 struct ptc_error *err);
/* Call this after the last call on the handle has returned. NULL ok. Always returns NULL. */
PTC_ADMIN_API struct ptc_admin *ptc_admin_close(struct ptc_admin *admin);
/* Releases text of a ret_ argument. NULL ok. */
PTC_ADMIN_API void ptc_admin_free(void *p);
PTC_ADMIN_API const char *ptc_admin_version(void); /* the library's, e.g. "0.1.0"; static memory */

/* ---- documents: JSON as docs/control.md describes it -------------------------- */

PTC_ADMIN_API int ptc_admin_nodes(struct ptc_admin *a, char **ret_json, struct ptc_error *err);
PTC_ADMIN_API int ptc_admin_job_list(struct ptc_admin *a, char **ret_json, struct ptc_error *err);
/* job "" or NULL: every job of the caller. PTC_ENOTFOUND, wherever a job is named: there is no such job. */
PTC_ADMIN_API int ptc_admin_status(struct ptc_admin *a, const char *job, char **ret_json, struct ptc_error *err);
PTC_ADMIN_API int ptc_admin_snapshots(struct ptc_admin *a, const char *job, char **ret_json, struct ptc_error *err);
/* How far the committed state of a job has consumed each of its datasets. */
PTC_ADMIN_API int ptc_admin_data(struct ptc_admin *a, const char *job, char **ret_json, struct ptc_error *err);

/* ---- jobs --------------------------------------------------------------------- */

/* spec: canonical JSON, len bytes, as ptc_admin_spec_json (<ptc/admin_plan.h>) makes it of a job file. ret_json: the
 * job's status. PTC_EEXIST: the name is taken. */
PTC_ADMIN_API int ptc_admin_job_create(struct ptc_admin *a, const void *spec, size_t len, char **ret_uuid,
				       char **ret_json, struct ptc_error *err);
/* PTC_ESTATE: the job runs, or a switch of it is under way. */
PTC_ADMIN_API int ptc_admin_job_delete(struct ptc_admin *a, const char *job, struct ptc_error *err);
/* Ends a switch or an import before its last commit (a resize has two). id: the number of an import; 0: the switch or
 * import under way. PTC_ESTATE: nothing is under way, or the last commit has begun. */
PTC_ADMIN_API int ptc_admin_abort(struct ptc_admin *a, const char *job, uint64_t id, struct ptc_error *err);
/* Counts a node that is down as lost: no switch waits for it. undo: reverts that. Root only. PTC_ESTATE: it is up. */
PTC_ADMIN_API int ptc_admin_node_lost(struct ptc_admin *a, const char *node, bool undo, struct ptc_error *err);
/* Takes a node that is gone for good out of the list. Root only. PTC_ESTATE: it is up, or a job is laid out on it. */
PTC_ADMIN_API int ptc_admin_node_forget(struct ptc_admin *a, const char *node, struct ptc_error *err);
/* Marks a device bad: ranks that are started do not get it. undo: takes the mark back. Root only. */
PTC_ADMIN_API int ptc_admin_device_bad(struct ptc_admin *a, const char *node, uint32_t device, bool undo,
				       struct ptc_error *err);
/* The devices and the configuration that a job is to have. */
struct ptc_admin_target {
	size_t size;
	const char *job;
	const char *config;       /* e.g. "tp=2,pp=2"; NULL: the daemon chooses one for `gpus` devices (docs/job.md) */
	uint32_t gpus;            /* number of devices; 0: as many as config needs */
	const char *const *nodes; /* only these; NULL: any */
	size_t nnodes;
};
/* What ptc_admin_resize would do, as JSON; nothing changes. */
PTC_ADMIN_API int ptc_admin_plan(struct ptc_admin *a, const struct ptc_admin_target *target, char **ret_json,
				 struct ptc_error *err);

/* Asks the planner about target->gpus devices; if `first` is not 0, about each number from `first` to target->gpus. */
struct ptc_admin_advice {
	size_t size;
	uint32_t first, horizon_ms; /* horizon_ms 0: the daemon's own */
	const char *objective;      /* throughput, money or state-bytes; NULL: throughput */
};
/* Answers with JSON (docs/control.md). The daemon ignores target->config. */
PTC_ADMIN_API int ptc_admin_advise(struct ptc_admin *a, const struct ptc_admin_target *target,
				   const struct ptc_admin_advice *ask, char **ret_json, struct ptc_error *err);
/* The profile of the cluster, as JSON. action: "show", "measure", or "set" with the text of a profile's file. */
PTC_ADMIN_API int ptc_admin_profile(struct ptc_admin *a, const char *action, const char *text, char **ret_json,
				    struct ptc_error *err);
/* Gives the daemon a probe's layout document of a job (docs/probe.md). *ret_json says whether plans use it. */
PTC_ADMIN_API int ptc_admin_probe(struct ptc_admin *a, const char *job, const void *layout, size_t len, char **ret_json,
				  struct ptc_error *err);

/* ---- long work ------------------------------------------------------------------ */

struct ptc_admin_progress { /* borrowed for the callback */
	size_t size;
	const char *phase;
	uint64_t bytes_done, bytes_total; /* total 0: not known */
	const char *text;                 /* a line for a person; "": none */
	bool finished;                    /* this is the last call */
	const char *summary;              /* JSON, with finished */
};
/* Returns 0 to go on. Otherwise the call returns PTC_ECANCELED, but the work that it started goes on. */
typedef int (*ptc_admin_progress_fn)(void *arg, const struct ptc_admin_progress *progress);
/* Each of the next functions returns 0 once the daemon says that the work is finished. fn may be NULL. */
PTC_ADMIN_API int ptc_admin_resize(struct ptc_admin *a, const struct ptc_admin_target *target, ptc_admin_progress_fn fn,
				   void *arg, struct ptc_error *err);
/* Moves `job` off `node`. job NULL: all jobs; if root does this, the node gets no ranks until ptc_admin_undrain. */
PTC_ADMIN_API int ptc_admin_drain(struct ptc_admin *a, const char *node, const char *job, ptc_admin_progress_fn fn,
				  void *arg, struct ptc_error *err);
/* Does the same for a node that goes within_ms from now. The summary names each job that needs more time. */
PTC_ADMIN_API int ptc_admin_drain_within(struct ptc_admin *a, const char *node, const char *job, uint64_t within_ms,
					 ptc_admin_progress_fn fn, void *arg, struct ptc_error *err);
PTC_ADMIN_API int ptc_admin_undrain(struct ptc_admin *a, const char *node, ptc_admin_progress_fn fn, void *arg,
				    struct ptc_error *err);
/* Reads every stored byte of a job and compares the digests. PTC_EDIGEST: some differ. */
PTC_ADMIN_API int ptc_admin_verify(struct ptc_admin *a, const char *job, ptc_admin_progress_fn fn, void *arg,
				   struct ptc_error *err);
/* Does the same, and heals damaged blocks from other nodes' copies. PTC_ECORRUPT: a damaged block has no copy. */
PTC_ADMIN_API int ptc_admin_repair(struct ptc_admin *a, const char *job, ptc_admin_progress_fn fn, void *arg,
				   struct ptc_error *err);

/* ---- live jobs: docs/control.md, "Live jobs" --------------------------------------- */

/* Starts the ranks of a job, and finishes once they run. config NULL and gpus 0: takes the configuration that the job
 * had last, or one of its table. */
PTC_ADMIN_API int ptc_admin_run(struct ptc_admin *a, const struct ptc_admin_target *target, ptc_admin_progress_fn fn,
				void *arg, struct ptc_error *err);
/* Takes a snapshot and ends the ranks. now: ends them without a snapshot. */
PTC_ADMIN_API int ptc_admin_stop(struct ptc_admin *a, const char *job, bool now, ptc_admin_progress_fn fn, void *arg,
				 struct ptc_error *err);
/* Takes a snapshot; the ranks go on. */
PTC_ADMIN_API int ptc_admin_snapshot(struct ptc_admin *a, const char *job, ptc_admin_progress_fn fn, void *arg,
				     struct ptc_error *err);

struct ptc_admin_logs {
	size_t size;
	const char *job;
	bool all; /* lines of every rank; false: of `rank` */
	uint32_t rank;
	bool follow;        /* wait for more lines while the job's ranks run */
	uint32_t lines;     /* begin this many lines before the end; 0: begin at the start */
	bool evidence, now; /* instead: the nodes' records of ranks that hung; now: make new ones of live ranks first */
};
/* data: whole lines of one rank, with newlines; any bytes. Returns 0 to go on; else the call returns PTC_ECANCELED. */
typedef int (*ptc_admin_log_fn)(void *arg, uint32_t rank, const void *data, size_t len);
PTC_ADMIN_API int ptc_admin_logs(struct ptc_admin *a, const struct ptc_admin_logs *what, ptc_admin_log_fn fn, void *arg,
				 struct ptc_error *err);

/* ---- datasets: docs/dataset.md ------------------------------------------------------- */

/* json: a dataset's document. The caller becomes the dataset's owner. here: only the daemon's node has the files, and
 * other nodes read them from there; this needs the daemon's socket. */
PTC_ADMIN_API int ptc_admin_dataset_add(struct ptc_admin *a, const char *json, bool here, struct ptc_error *err);
PTC_ADMIN_API int ptc_admin_dataset_remove(struct ptc_admin *a, const char *name, struct ptc_error *err);
PTC_ADMIN_API int ptc_admin_dataset_list(struct ptc_admin *a, char **ret_json, struct ptc_error *err);
/* ---- events ---------------------------------------------------------------------------- */

/* json: one event. Returns 0 to go on; otherwise the call returns PTC_ECANCELED. */
typedef int (*ptc_admin_event_fn)(void *arg, const char *json);
/* Gives fn the newest `limit` events (0: all) with numbers above `after`. follow: and all later ones. job NULL: any. */
PTC_ADMIN_API int ptc_admin_events(struct ptc_admin *a, const char *job, bool follow, uint64_t after, uint32_t limit,
				   ptc_admin_event_fn fn, void *arg, struct ptc_error *err);

#ifdef __cplusplus
}
#endif
#endif
