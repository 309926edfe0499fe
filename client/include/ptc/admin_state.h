/* SPDX-License-Identifier: Apache-2.0 */
/* libptcadmin: the bytes of a job's state, and the bytes of samples of datasets. An import sends state; an export
 * describes committed state and reads it.
 *
 * An item is one tensor, or one field of a tensor such as an optimizer's moment; <ptc/admin_plan.h> lists the items of
 * a job's description. Offsets in an item count its bytes row-major over its global shape. Errors, threads, ownership
 * and compatibility: <ptc/admin.h>. */
#ifndef PTC_ADMIN_STATE_H
#define PTC_ADMIN_STATE_H

#include <ptc/admin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PTC_ADMIN_CHUNK_BYTES (2u << 20)  /* most bytes of one ptc_admin_import_send */
#define PTC_ADMIN_HEADERS_MAX (16u << 20) /* most bytes of imported headers that are kept */

/* A safetensors file of an import. The job keeps its header, so an export of unchanged state gives a file with the same
 * hash. */
struct ptc_admin_file {
	const char *field; /* "param" or a field's name */
	const char *name;  /* without directories */
	const void *header;
	size_t header_len;
	const uint32_t *items; /* in the order of the file's data */
	size_t nitems;
};

/* ---- import ---------------------------------------------------------------------- */

/* An import that has begun. The daemon aborts it if the program ends before the commit. */
struct ptc_admin_import {
	size_t size;
	uint64_t id;
	const char *config; /* the configuration that the daemon chose */
	const char *spec;   /* canonical JSON of the job, spec_len bytes */
	size_t spec_len;
	bool resumes; /* ptc_admin_import_resume (<ptc/admin_resume.h>) is possible; false: the daemon is older */
};
/* Reserves room for the whole state. PTC_ENOSPC: there is too little. PTC_ESTATE: the job runs, or a switch or an
 * import of it is under way. */
PTC_ADMIN_API int ptc_admin_import_begin(struct ptc_admin *a, const struct ptc_admin_target *target,
					 struct ptc_admin_import **ret_import, struct ptc_error *err);
/* Releases the import, and aborts it if its commit has not ended. NULL ok. Always returns NULL. */
PTC_ADMIN_API struct ptc_admin_import *ptc_admin_import_done(struct ptc_admin_import *import);

struct ptc_admin_stream;
/* Opens a stream. Several streams may send parts of one import. */
PTC_ADMIN_API int ptc_admin_import_open(struct ptc_admin *a, const char *job, uint64_t import_id,
					struct ptc_admin_stream **ret_stream, struct ptc_error *err);
/* Sends at most PTC_ADMIN_CHUNK_BYTES inside one item. Blocks while the daemon is behind. On return the caller may
 * change data. */
PTC_ADMIN_API int ptc_admin_import_send(struct ptc_admin_stream *s, uint32_t item, uint64_t offset, const void *data,
					size_t len, struct ptc_error *err);
/* Waits until the daemon has taken everything that the stream sent. */
PTC_ADMIN_API int ptc_admin_import_finish(struct ptc_admin_stream *s, uint64_t *ret_bytes, struct ptc_error *err);
/* Cancels a stream that is not finished. NULL ok. Always returns NULL. */
PTC_ADMIN_API struct ptc_admin_stream *ptc_admin_import_close(struct ptc_admin_stream *s);
/* digests: for each item, ptc_admin_digest over all its bytes. If the headers of all files together exceed
 * PTC_ADMIN_HEADERS_MAX, the job keeps none of them. PTC_EDIGEST: the daemons received other bytes. */
PTC_ADMIN_API int ptc_admin_import_commit(struct ptc_admin *a, const char *job, uint64_t import_id,
					  const uint64_t *digests, size_t ndigests, const struct ptc_admin_file *files,
					  size_t nfiles, ptc_admin_progress_fn fn, void *arg, struct ptc_error *err);
/* The digest of an item's bytes: begin with before = 0 and give the bytes in order, in any number of parts. Pure; any
 * thread. */
PTC_ADMIN_API uint64_t ptc_admin_digest(uint64_t before, const void *data, size_t len);

/* ---- export ----------------------------------------------------------------------- */

/* One committed state. The library allocates the struct, and ptc_admin_export_done frees it. */
struct ptc_admin_export {
	size_t size;
	uint64_t generation, snapshot;
	const char *config;
	const void *spec; /* canonical JSON of the job, spec_len bytes */
	size_t spec_len;
	const uint64_t *digests; /* one per item */
	size_t ndigests;
	const struct ptc_admin_file *files; /* files of the import, if the state is unchanged since */
	size_t nfiles;
	const char *uuid; /* of the job; "": the daemon is older, and reads use the job's name */
	uint64_t step;
	int64_t created_ms;      /* when the job was made, since 1970 */
	int64_t as_of_ms;        /* since when the daemon has not reached etcd; 0: it reaches etcd */
	const char *ranks_json;  /* [{rank, node, device}] */
	bool declared;           /* ranks declared their tensors; so spec and config give no layout */
	const void *layout_json; /* with declared: the layout (docs/layout.md), layout_len bytes */
	size_t layout_len;
	/* With ptc_admin_export_resume (<ptc/admin_resume.h>); NULL: there is none, or the daemon is older. */
	const void *state; /* the ranks' states: blobs and cursors, state_len bytes */
	size_t state_len;
	const void *ledger; /* the samples that were consumed, ledger_len bytes */
	size_t ledger_len;
};
/* PTC_ESTATE: the job has no state yet. */
PTC_ADMIN_API int ptc_admin_export_info(struct ptc_admin *a, const char *job, struct ptc_admin_export **ret_export,
					struct ptc_error *err);
/* NULL ok. Always returns NULL. */
PTC_ADMIN_API struct ptc_admin_export *ptc_admin_export_done(struct ptc_admin_export *e);
/* Keeps the state readable for ttl_ms more (at most two minutes), even if the job moves on; ttl_ms 0 ends this. reader:
 * a random name of the caller. PTC_ESTATE: the job has moved on already. */
PTC_ADMIN_API int ptc_admin_pin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
				const char *reader, uint32_t ttl_ms, struct ptc_error *err);

/* Receives bytes of a read, in order. Returns 0 to go on; otherwise the call returns that code, and the callback fills
 * err. */
typedef int (*ptc_admin_data_fn)(void *arg, const void *data, size_t len, struct ptc_error *err);
/* Reads exactly the bytes [offset, offset + length) of an item. PTC_ESTATE: the job has moved on. */
PTC_ADMIN_API int ptc_admin_read(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e, uint32_t item,
				 uint64_t offset, uint64_t length, ptc_admin_data_fn fn, void *arg,
				 struct ptc_error *err);
/* Reads bytes of a rank's local tensor of an item, from that rank's own node. Padding reads as zeros. */
PTC_ADMIN_API int ptc_admin_read_rank(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
				      uint32_t rank, uint32_t item, uint64_t offset, uint64_t length,
				      ptc_admin_data_fn fn, void *arg, struct ptc_error *err);

/* ---- several reads at once ----------------------------------------------------------- */

/* A read in two calls: one begins it, the other takes its bytes. Each read costs a round trip, which is nearly all the
 * time of a small item. So begin several before you take the first. Of each read that has begun, at most 4 MiB wait in
 * the transport until you take it. */
struct ptc_admin_reading;
PTC_ADMIN_API int ptc_admin_read_begin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
				       uint32_t item, uint64_t offset, uint64_t length,
				       struct ptc_admin_reading **ret_reading, struct ptc_error *err);
PTC_ADMIN_API int ptc_admin_read_rank_begin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
					    uint32_t rank, uint32_t item, uint64_t offset, uint64_t length,
					    struct ptc_admin_reading **ret_reading, struct ptc_error *err);
/* Gives all bytes of a reading to fn. Call this once for a reading. */
PTC_ADMIN_API int ptc_admin_read_take(struct ptc_admin_reading *r, ptc_admin_data_fn fn, void *arg,
				      struct ptc_error *err);
/* Releases a reading, and cancels it if it was not taken. Call this before ptc_admin_close. NULL ok. Always returns
 * NULL. */
PTC_ADMIN_API struct ptc_admin_reading *ptc_admin_read_end(struct ptc_admin_reading *r);

struct ptc_admin_range {
	bool ranked; /* a range of the local tensor of `rank`; false: of the item */
	uint32_t rank, item;
	uint64_t offset, length;
};
/* Reads many ranges by one call: at most 8192 and 1 MiB together, none ranked and none empty. PTC_EVERSION: the daemon
 * is older and has no such call. */
PTC_ADMIN_API int ptc_admin_read_many_begin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
					    const struct ptc_admin_range *ranges, size_t n,
					    struct ptc_admin_reading **ret_reading, struct ptc_error *err);
struct ptc_admin_ranges_fn {
	size_t size;
	int (*data)(void *arg, size_t range, const void *data, size_t len, struct ptc_error *err);
	int (*end)(void *arg, size_t range, struct ptc_error *err); /* the range is complete; may be NULL */
	bool (*stop)(void *arg); /* asked before the call waits for a daemon that is too busy; may be NULL */
	unsigned ahead;          /* most calls that are open at once; 0: 16 */
	void *arg;
};
/* Reads ranges one after the other. The library asks for small ranges ahead, and for many of them by one call. */
PTC_ADMIN_API int ptc_admin_read_ranges(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
					const struct ptc_admin_range *ranges, size_t n,
					const struct ptc_admin_ranges_fn *fn, struct ptc_error *err);

/* ---- samples of datasets: docs/dataset.md --------------------------------------------- */

/* The samples that a program wants: at most 8192 (1024 with names) and 1 MiB in one call. The daemon reads them as the
 * dataset's owner. If every node has the dataset's files, ask the daemon of this node, by its socket. If only one node
 * has them (`here`), any daemon will do. */
struct ptc_admin_samples {
	size_t size;
	const char *dataset, *source; /* the dataset's name; the source that it must have (32 hex digits) */
	const uint64_t *samples;
	const uint64_t *offsets; /* NULL, like lengths: the program asks for sizes only */
	const uint32_t *lengths;
	size_t n;
	uid_t uid;  /* the user to read for, which only root may set; 0: the caller */
	bool names; /* also give names of files */
	bool ahead; /* only fetch ahead: the daemon fetches at most 1024 samples and answers nothing; fn is not called
		     */
};
struct ptc_admin_sample { /* borrowed for the callback */
	size_t size;
	uint64_t bytes;   /* of the whole sample */
	const char *name; /* of the file, relative to the dataset; name_len bytes without a NUL; NULL: not asked for */
	size_t name_len;
	const uint8_t *data; /* len bytes from the offset on, at most `length`, fewer at the sample's end */
	size_t len;
};
/* Receives each sample, in order, once the whole answer is there. Returns 0 to go on; otherwise the call returns that
 * code, and the callback fills err. */
typedef int (*ptc_admin_sample_fn)(void *arg, size_t i, const struct ptc_admin_sample *sample, struct ptc_error *err);
PTC_ADMIN_API int ptc_admin_dataset_read(struct ptc_admin *a, const struct ptc_admin_samples *what,
					 ptc_admin_sample_fn fn, void *arg, struct ptc_error *err);

#ifdef __cplusplus
}
#endif
#endif
