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
 * what the daemon answered. No call is repeated by the library. */
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
/* Connects with the first call. */
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
/* json: formats/dataset_doc.h; whose it is the daemon says. */
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

/* ---- import ---------------------------------------------------------------------- */
struct ptc_rpc_stream;
struct ptc_admin_import {
	uint64_t id;
	char *config; /* chosen */
	char *spec;   /* canonical JSON */
	size_t spec_len;
	struct ptc_rpc_stream *held; /* its end tells the daemon that we are gone */
};
/* A file whose header is kept, so that an unchanged export has its hash. */
struct ptc_admin_file {
	const char *field; /* "param" or a field's name */
	const char *name;  /* without directories */
	const void *header;
	size_t header_len;
	const uint32_t *items; /* in the file's data order */
	size_t nitems;
};
int ptc_admin_import_begin(struct ptc_admin *a, const struct ptc_admin_target *target,
			   struct ptc_admin_import *ret_import, struct ptc_error *err);
/* After the commit has ended. Before that it aborts the import. */
void ptc_admin_import_done(struct ptc_admin_import *import);
struct ptc_admin_stream;
int ptc_admin_import_open(struct ptc_admin *a, const char *job, uint64_t import_id,
			  struct ptc_admin_stream **ret_stream, struct ptc_error *err);
/* At most PTC_ADMIN_CHUNK_BYTES inside one item. data may be reused on return. Blocks for flow control. */
int ptc_admin_import_send(struct ptc_admin_stream *s, uint32_t item, uint64_t offset, const void *data, size_t len,
			  struct ptc_error *err);
/* Ends the stream and waits until the daemon has taken everything. */
int ptc_admin_import_finish(struct ptc_admin_stream *s, uint64_t *ret_bytes, struct ptc_error *err);
/* Cancels when not finished; NULL is fine. */
struct ptc_admin_stream *ptc_admin_import_close(struct ptc_admin_stream *s);
/* digests: one per item (base/digest.h), of what was read. Files are left out when their headers pass
 * PTC_ADMIN_HEADERS_MAX together. */
int ptc_admin_import_commit(struct ptc_admin *a, const char *job, uint64_t import_id, const uint64_t *digests,
			    size_t ndigests, const struct ptc_admin_file *files, size_t nfiles,
			    ptc_admin_progress_fn fn, void *arg, struct ptc_error *err);

/* ---- export ----------------------------------------------------------------------- */
struct ptc_admin_export {
	uint64_t generation, snapshot;
	const char *config;
	const void *spec; /* canonical JSON */
	size_t spec_len;
	const uint64_t *digests; /* per item */
	size_t ndigests;
	struct ptc_admin_file *files;
	size_t nfiles;
	const char *uuid; /* "": an older daemon does not say; then reads are of whichever job has the name */
	uint64_t step;
	int64_t created_ms;      /* the job */
	int64_t as_of_ms;        /* the coordinator is away, and answered last then; 0: it is there */
	const char *ranks_json;  /* [{rank, node, device}] */
	bool declared;           /* ranks declared what they hold: no layout follows from spec and config, but ... */
	const void *layout_json; /* ... this is it (formats/layout_doc.h) */
	size_t layout_len;
	void *owner; /* the reply everything points into */
};
int ptc_admin_export_info(struct ptc_admin *a, const char *job, struct ptc_admin_export *ret_export,
			  struct ptc_error *err);
void ptc_admin_export_done(struct ptc_admin_export *e);
/* Not 0: the call ends with that code; fill err. */
typedef int (*ptc_admin_data_fn)(void *arg, const void *data, size_t len, struct ptc_error *err);
/* Bytes [offset, offset + length) of an item, row-major over its logical shape, in order; exactly length of them. */
int ptc_admin_read(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e, uint32_t item,
		   uint64_t offset, uint64_t length, ptc_admin_data_fn fn, void *arg, struct ptc_error *err);
/* The same of a rank's local tensor of an item, from that rank's own node; padding as zeros. */
int ptc_admin_read_rank(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e, uint32_t rank,
			uint32_t item, uint64_t offset, uint64_t length, ptc_admin_data_fn fn, void *arg,
			struct ptc_error *err);

/* The same in two halves, so that several reads can be on their way: each costs a round trip, which for small items is
 * nearly all of it. What the daemon sends ahead of the second half waits in the transport, at most 4 MiB for each. */
struct ptc_admin_reading;
int ptc_admin_read_begin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e, uint32_t item,
			 uint64_t offset, uint64_t length, struct ptc_admin_reading **ret_reading,
			 struct ptc_error *err);
int ptc_admin_read_rank_begin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e, uint32_t rank,
			      uint32_t item, uint64_t offset, uint64_t length, struct ptc_admin_reading **ret_reading,
			      struct ptc_error *err);
/* Everything to fn, in order. Once. */
int ptc_admin_read_take(struct ptc_admin_reading *r, ptc_admin_data_fn fn, void *arg, struct ptc_error *err);
/* Cancels what was not taken; NULL is fine. Before ptc_admin_close. */
struct ptc_admin_reading *ptc_admin_read_end(struct ptc_admin_reading *r);

/* Several ranges one after the other, small ones asked for ahead. */
struct ptc_admin_range {
	bool ranked;
	uint32_t rank, item;
	uint64_t offset, length;
};
struct ptc_admin_ranges_fn {
	int (*data)(void *arg, size_t range, const void *data, size_t len, struct ptc_error *err);
	int (*end)(void *arg, size_t range, struct ptc_error *err); /* all of its bytes have come; may be NULL */
	bool (*stop)(void *arg); /* asked before waiting for a daemon that is too busy; may be NULL */
	unsigned ahead;          /* calls open at once, at most; 0: 16 */
	void *arg;
};
int ptc_admin_read_ranges(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
			  const struct ptc_admin_range *ranges, size_t n, const struct ptc_admin_ranges_fn *fn,
			  struct ptc_error *err);

/* Where bytes of items lie on the daemon's node, which must be this one, for who reads them there himself. */
struct ptc_admin_piece { /* bytes [offset, offset + length) of an item, row-major; length > 0 */
	uint32_t item, ndim;
	int64_t shape[8]; /* of the item, the last dim in bytes */
	uint64_t offset, length;
};
struct ptc_admin_span {
	uint64_t at, bytes;       /* of the file */
	uint32_t chunk, reserved; /* which one it lies in */
};
struct ptc_admin_chunk { /* what was read is right if each block it was taken from has its checksum (proto/lend.h) ... */
	uint64_t at;
	uint64_t use_at, use; /* ... and the 8 bytes at use_at are then (a fence between) still use */
	uint64_t sums[16];
};
struct ptc_admin_spans {
	struct ptc_admin_span *v; /* of all pieces, in order; ptc_admin_free it */
	size_t n;
	struct ptc_admin_chunk *chunks; /* ptc_admin_free it */
	size_t nchunks;
	uint64_t dev, ino; /* the file's. Before: of the one that the caller has open; 0: none */
	int fd;            /* it, for reading only, the caller's; -1: he has it */
};
/* PTC_ENOTFOUND: not all of it is there; PTC_ELIMIT: it is in too many pieces; PTC_ESTATE: it is not in memory. Any code: read it as
 * usual. Takes two seconds at most; a daemon that did not answer is not asked again for one. Nothing is held by it. */
int ptc_admin_locate(struct ptc_admin *a, const struct ptc_admin_export *e, const struct ptc_admin_piece *pieces,
		     size_t n, struct ptc_admin_spans *spans, struct ptc_error *err);

/* What e describes stays readable for ttl_ms more (at most two minutes), whatever becomes of the job; 0 gives it up. holder: a
 * random name of the caller. PTC_ESTATE: the job has moved on. */
int ptc_admin_hold(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e, const char *holder,
		   uint32_t ttl_ms, struct ptc_error *err);

#ifdef __cplusplus
}
#endif
