/* SPDX-License-Identifier: Apache-2.0 */
/* libptcadmin: control of a ptc cluster through any of its daemons.
 *
 * One function per call of the service ptc.v1.Control (proto/ptc.proto).
 * Functions return 0 or a code of base/status.h and then fill err (which may
 * be NULL). Calls block; a handle may be used from several threads at once,
 * a stream by one. What a ret_ argument receives belongs to the caller:
 * strings are released with ptc_admin_free, structs with their _done.
 *
 * Happy path: open, calls, close. Failure modes: PTC_EPEER (no daemon there,
 * or it went away), PTC_ETIMEOUT, PTC_ECANCELED (a callback said stop), and
 * what the daemon answered. No call is repeated by the library.
 *
 * The bytes of a job's state, in and out: ptcadmin_state.h. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PTC_ADMIN_DEFAULT_SOCKET "/run/ptc/control.sock"
#define PTC_ADMIN_CHUNK_BYTES    (2u << 20)  /* most bytes of one message of an import */
#define PTC_ADMIN_HEADERS_MAX    (16u << 20) /* imported headers kept; more are left out */

struct ptc_admin;
struct ptc_admin_opts {
	const char *socket; /* path; used when server is NULL; NULL: PTC_ADMIN_DEFAULT_SOCKET */
	const char *server; /* HOST:PORT, mutual TLS with the three files below */
	const char *ca_path, *cert_path, *key_path;
	const char *member;    /* with server: the DNS name in certificates of its cluster's nodes; NULL: "ptc-node" */
	int timeout_ms;        /* of each call that is not a stream; 0: one minute */
	int stream_timeout_ms; /* of each stream; 0: none */
};
/* Connects with the first call. Fails for wrong options, and where fewer than 16 descriptors are free. */
int ptc_admin_open(const struct ptc_admin_opts *opts, struct ptc_admin **ret_admin, struct ptc_error *err);
struct ptc_admin *ptc_admin_close(struct ptc_admin *admin); /* after the last call returned; NULL is fine */
void ptc_admin_free(void *p);

/* ---- documents: JSON as in docs/control.md -------------------------------- */
int ptc_admin_nodes(struct ptc_admin *a, char **ret_json, struct ptc_error *err);
int ptc_admin_job_list(struct ptc_admin *a, char **ret_json, struct ptc_error *err);
/* job "" or NULL: all of the caller's. */
int ptc_admin_status(struct ptc_admin *a, const char *job, char **ret_json, struct ptc_error *err);
int ptc_admin_snapshots(struct ptc_admin *a, const char *job, char **ret_json, struct ptc_error *err);

/* ---- jobs ------------------------------------------------------------------- */
/* spec: canonical JSON (ptc_job_to_json). */
int ptc_admin_job_create(struct ptc_admin *a, const void *spec, size_t len, char **ret_uuid, char **ret_json,
			 struct ptc_error *err);
int ptc_admin_job_delete(struct ptc_admin *a, const char *job, struct ptc_error *err);
/* Ends a switch or an import before its commit. */
/* id: only that import; 0: whatever is under way. */
int ptc_admin_abort(struct ptc_admin *a, const char *job, uint64_t id, struct ptc_error *err);

/* ---- datasets: docs/dataset.md ------------------------------------------------- */
/* json: formats/dataset/dataset_doc.h; whose it is the daemon says. */
/* here: only the daemon's node has the source, and others read it from there; through its socket only. */
int ptc_admin_dataset_add(struct ptc_admin *a, const char *json, bool here, struct ptc_error *err);
int ptc_admin_dataset_remove(struct ptc_admin *a, const char *name, struct ptc_error *err);
int ptc_admin_dataset_list(struct ptc_admin *a, char **ret_json, struct ptc_error *err);
/* Bytes of samples of a dataset, read by the daemon as its owner; through the socket of a node that has it, or, where one node alone has
 * it, of any. At most 8192 samples (1024 with names) and 1 MiB a call. */
struct ptc_admin_samples {
	const char *dataset, *source; /* name; which it must be (32 hex digits) */
	const uint64_t *samples;
	const uint64_t *offsets; /* NULL, with lengths: only sizes are asked for */
	const uint32_t *lengths;
	size_t n;
	uid_t uid;  /* for whom; root's to say. 0: for who calls */
	bool names; /* of files */
	bool ahead; /* they are wanted next: the daemon is to get them (at most 1024), nothing is answered and fn not called */
};
struct ptc_admin_sample { /* borrowed for the callback */
	uint64_t size;    /* of the whole sample */
	const char *name; /* relative to the dataset; NULL: not asked for. name_len bytes, no NUL in them */
	size_t name_len;
	const uint8_t *data; /* from the offset, as far as the sample goes, at most `length` */
	size_t len;
};
/* Each of the samples, in order, once all of the answer is there. Not 0: the call returns that. */
typedef int (*ptc_admin_sample_fn)(void *arg, size_t i, const struct ptc_admin_sample *sample, struct ptc_error *err);
int ptc_admin_dataset_read(struct ptc_admin *a, const struct ptc_admin_samples *what, ptc_admin_sample_fn fn, void *arg,
			   struct ptc_error *err);
/* What a job's committed state has consumed. */
int ptc_admin_data(struct ptc_admin *a, const char *job, char **ret_json, struct ptc_error *err);

/* Where a job should run. config: "tp=2,pp=2" or NULL; gpus 0: from config; nodes NULL: any. */
struct ptc_admin_target {
	const char *job;
	const char *config;
	uint32_t gpus;
	const char *const *nodes;
	size_t nnodes;
};
/* What the planner says of target->gpus devices or, with first, of each number from there on. horizon_ms 0: the daemon's;
 * objective NULL: throughput. target->config is not looked at. */
struct ptc_admin_advice {
	uint32_t first, horizon_ms;
	const char *objective;
};
int ptc_admin_advise(struct ptc_admin *a, const struct ptc_admin_target *target, const struct ptc_admin_advice *ask,
		     char **ret_json, struct ptc_error *err);
/* The cluster's profile. action: show, measure, or set, with text, as a file has it. */
int ptc_admin_profile(struct ptc_admin *a, const char *action, const char *text, char **ret_json,
		      struct ptc_error *err);
int ptc_admin_plan(struct ptc_admin *a, const struct ptc_admin_target *target, char **ret_json, struct ptc_error *err);

/* ---- long work ---------------------------------------------------------------- */
struct ptc_admin_progress { /* borrowed for the callback */
	const char *phase;
	uint64_t bytes_done, bytes_total; /* total 0: not known */
	const char *text;
	bool finished;
	const char *summary; /* JSON, with finished */
};
/* Not 0: stop listening; the call returns PTC_ECANCELED, what was started goes on. */
typedef int (*ptc_admin_progress_fn)(void *arg, const struct ptc_admin_progress *progress);
/* Return 0 once the daemon has said that the work is finished. */
int ptc_admin_resize(struct ptc_admin *a, const struct ptc_admin_target *target, ptc_admin_progress_fn fn, void *arg,
		     struct ptc_error *err);
int ptc_admin_drain(struct ptc_admin *a, const char *node, const char *job, ptc_admin_progress_fn fn, void *arg,
		    struct ptc_error *err);
/* The node may get ranks again. */
int ptc_admin_undrain(struct ptc_admin *a, const char *node, ptc_admin_progress_fn fn, void *arg,
		      struct ptc_error *err);
int ptc_admin_verify(struct ptc_admin *a, const char *job, ptc_admin_progress_fn fn, void *arg, struct ptc_error *err);

/* ---- live jobs: docs/control.md, "Live jobs" ------------------------------------- */

/* Starts the job's ranks; finished once they go. config NULL and gpus 0: as the job ran last, or as its table says. */
int ptc_admin_run(struct ptc_admin *a, const struct ptc_admin_target *target, ptc_admin_progress_fn fn, void *arg,
		  struct ptc_error *err);
/* Makes a snapshot and ends the ranks. */
int ptc_admin_stop(struct ptc_admin *a, const char *job, bool now, ptc_admin_progress_fn fn, void *arg,
		   struct ptc_error *err);
/* Makes a snapshot; the ranks go on. */
int ptc_admin_snapshot(struct ptc_admin *a, const char *job, ptc_admin_progress_fn fn, void *arg,
		       struct ptc_error *err);

struct ptc_admin_logs {
	const char *job;
	bool all; /* of every rank, else of `rank` */
	uint32_t rank;
	bool follow;    /* until the job is not live any more */
	uint32_t lines; /* from so many before the end; 0: all */
};
/* Whole lines that one rank wrote, each with its newline; any bytes. Borrowed. Not 0: stop; the call returns PTC_ECANCELED. */
typedef int (*ptc_admin_log_fn)(void *arg, uint32_t rank, const void *data, size_t len);
int ptc_admin_logs(struct ptc_admin *a, const struct ptc_admin_logs *what, ptc_admin_log_fn fn, void *arg,
		   struct ptc_error *err);

/* ---- events ------------------------------------------------------------------------ */

typedef int (*ptc_admin_event_fn)(void *arg, const char *json);
/* Events with numbers above after, at most limit (0: all); follow: then waits for more. */
int ptc_admin_events(struct ptc_admin *a, const char *job, bool follow, uint64_t after, uint32_t limit,
		     ptc_admin_event_fn fn, void *arg, struct ptc_error *err);

#ifdef __cplusplus
}
#endif
