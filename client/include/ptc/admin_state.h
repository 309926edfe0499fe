/* SPDX-License-Identifier: Apache-2.0 */
/* libptcadmin: the bytes of a job's state. An import sends them; an export says what there is, and reads it.
 * Also the bytes of samples of datasets.
 *
 * An item is one tensor, or one field of a tensor such as an optimizer's moment; <ptc/admin_plan.h> lists the items of a
 * job's description. Bytes of an item are counted row-major over its global shape.
 * Errors, threads, ownership and compatibility: <ptc/admin.h>. */
#ifndef PTC_ADMIN_STATE_H
#define PTC_ADMIN_STATE_H

#include <ptc/admin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PTC_ADMIN_CHUNK_BYTES (2u << 20)  /* most bytes of one ptc_admin_import_send */
#define PTC_ADMIN_HEADERS_MAX (16u << 20) /* most bytes of imported headers that are kept */

/* A safetensors file of an import. Its header is kept, so that an export of the unchanged state has the file's hash. */
struct ptc_admin_file {
	const char *field; /* "param" or a field's name */
	const char *name;  /* without directories */
	const void *header;
	size_t header_len;
	const uint32_t *items; /* in the order of the file's data */
	size_t nitems;
};

/* ---- import ---------------------------------------------------------------------- */

/* An import that has begun. The daemon ends it when the program ends or releases it. */
struct ptc_admin_import {
	size_t size;
	uint64_t id;
	const char *config; /* that the daemon chose */
	const char *spec;   /* canonical JSON of the job, spec_len bytes */
	size_t spec_len;
};
/* Reserves room for the whole state. PTC_ENOSPC: there is too little. PTC_ESTATE: the job runs, or something is under way. */
PTC_ADMIN_API int ptc_admin_import_begin(struct ptc_admin *a, const struct ptc_admin_target *target,
					 struct ptc_admin_import **ret_import, struct ptc_error *err);
/* Releases it. Before the commit has ended this aborts the import. NULL ok. Always returns NULL. */
PTC_ADMIN_API struct ptc_admin_import *ptc_admin_import_done(struct ptc_admin_import *import);

struct ptc_admin_stream;
/* Several streams may send parts of one import. */
PTC_ADMIN_API int ptc_admin_import_open(struct ptc_admin *a, const char *job, uint64_t import_id,
					struct ptc_admin_stream **ret_stream, struct ptc_error *err);
/* At most PTC_ADMIN_CHUNK_BYTES inside one item. Blocks while the daemon is behind. data may be changed on return. */
PTC_ADMIN_API int ptc_admin_import_send(struct ptc_admin_stream *s, uint32_t item, uint64_t offset, const void *data,
					size_t len, struct ptc_error *err);
/* Waits until the daemon has taken everything that the stream sent. */
PTC_ADMIN_API int ptc_admin_import_finish(struct ptc_admin_stream *s, uint64_t *ret_bytes, struct ptc_error *err);
/* Cancels a stream that is not finished. NULL ok. Always returns NULL. */
PTC_ADMIN_API struct ptc_admin_stream *ptc_admin_import_close(struct ptc_admin_stream *s);
/* digests: one per item, ptc_admin_digest over all its bytes. Files whose headers pass PTC_ADMIN_HEADERS_MAX together are
 * left out. PTC_EDIGEST: the daemons received other bytes. */
PTC_ADMIN_API int ptc_admin_import_commit(struct ptc_admin *a, const char *job, uint64_t import_id,
					  const uint64_t *digests, size_t ndigests, const struct ptc_admin_file *files,
					  size_t nfiles, ptc_admin_progress_fn fn, void *arg, struct ptc_error *err);
/* The digest of an item's bytes: begin with 0 and give the bytes in order, in as many parts as you like. Pure; any thread. */
PTC_ADMIN_API uint64_t ptc_admin_digest(uint64_t before, const void *data, size_t len);

/* ---- export ----------------------------------------------------------------------- */

/* One committed state. The library allocates it; readable until ptc_admin_export_done. */
struct ptc_admin_export {
	size_t size;
	uint64_t generation, snapshot;
	const char *config;
	const void *spec; /* canonical JSON of the job, spec_len bytes */
	size_t spec_len;
	const uint64_t *digests; /* one per item */
	size_t ndigests;
	const struct ptc_admin_file *files; /* of the import that it comes from unchanged */
	size_t nfiles;
	const char *uuid; /* of the job; "": an older daemon does not say, and reads are of the job that has the name */
	uint64_t step;
	int64_t created_ms;      /* when the job was made, since 1970 */
	int64_t as_of_ms;        /* the daemon cannot reach its coordinator since then; 0: it can */
	const char *ranks_json;  /* [{rank, node, device}] */
	bool declared;           /* ranks declared what they hold, so that no layout follows from spec and config */
	const void *layout_json; /* with declared: the layout (docs/layout.md), layout_len bytes */
	size_t layout_len;
};
/* PTC_ESTATE: the job has no state yet. */
PTC_ADMIN_API int ptc_admin_export_info(struct ptc_admin *a, const char *job, struct ptc_admin_export **ret_export,
					struct ptc_error *err);
/* NULL ok. Always returns NULL. */
PTC_ADMIN_API struct ptc_admin_export *ptc_admin_export_done(struct ptc_admin_export *e);
/* Keeps the state readable for ttl_ms more (at most two minutes), whatever becomes of the job; 0 gives it up. reader: a
 * random name of the caller. PTC_ESTATE: the job has moved on. */
PTC_ADMIN_API int ptc_admin_pin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
				const char *reader, uint32_t ttl_ms, struct ptc_error *err);

/* Bytes of a read, in order. Not 0: the call ends with that code; fill err. */
typedef int (*ptc_admin_data_fn)(void *arg, const void *data, size_t len, struct ptc_error *err);
/* Exactly the bytes [offset, offset + length) of an item. PTC_ESTATE: the job has moved on. */
PTC_ADMIN_API int ptc_admin_read(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e, uint32_t item,
				 uint64_t offset, uint64_t length, ptc_admin_data_fn fn, void *arg,
				 struct ptc_error *err);
/* The same of a rank's local tensor of an item, from that rank's own node. Padding reads as zeros. */
PTC_ADMIN_API int ptc_admin_read_rank(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
				      uint32_t rank, uint32_t item, uint64_t offset, uint64_t length,
				      ptc_admin_data_fn fn, void *arg, struct ptc_error *err);

/* ---- several reads at once ----------------------------------------------------------- */

/* A read in two halves. Each read costs a round trip, which for a small item is nearly all of its time; so begin several
 * before you take the first. At most 4 MiB of each wait in the transport. */
struct ptc_admin_reading;
PTC_ADMIN_API int ptc_admin_read_begin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
				       uint32_t item, uint64_t offset, uint64_t length,
				       struct ptc_admin_reading **ret_reading, struct ptc_error *err);
PTC_ADMIN_API int ptc_admin_read_rank_begin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
					    uint32_t rank, uint32_t item, uint64_t offset, uint64_t length,
					    struct ptc_admin_reading **ret_reading, struct ptc_error *err);
/* Gives all of its bytes to fn. Once for a reading. */
PTC_ADMIN_API int ptc_admin_read_take(struct ptc_admin_reading *r, ptc_admin_data_fn fn, void *arg,
				      struct ptc_error *err);
/* Cancels what was not taken; before ptc_admin_close. NULL ok. Always returns NULL. */
PTC_ADMIN_API struct ptc_admin_reading *ptc_admin_read_end(struct ptc_admin_reading *r);

struct ptc_admin_range {
	bool ranked; /* of the local tensor of `rank` */
	uint32_t rank, item;
	uint64_t offset, length;
};
/* One call for many ranges, none ranked, none empty, at most 8192 and 1 MiB together. PTC_EVERSION: the daemon is older. */
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
/* Ranges one after the other. The library asks for small ones ahead, and for many of them with one call. */
PTC_ADMIN_API int ptc_admin_read_ranges(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
					const struct ptc_admin_range *ranges, size_t n,
					const struct ptc_admin_ranges_fn *fn, struct ptc_error *err);

/* ---- samples of datasets: docs/dataset.md --------------------------------------------- */

/* Which samples a program wants: at most 8192 (1024 with names), and 1 MiB, in one call. The daemon reads them as the
 * dataset's owner. Ask the socket of a node that has the dataset; where only one node has it, any node. */
struct ptc_admin_samples {
	size_t size;
	const char *dataset, *source; /* its name; the source that it must be (32 hex digits) */
	const uint64_t *samples;
	const uint64_t *offsets; /* NULL, like lengths: the program asks for sizes only */
	const uint32_t *lengths;
	size_t n;
	uid_t uid;  /* for which user; only root may say. 0: for the caller */
	bool names; /* of files, too */
	bool ahead; /* the program wants them next: the daemon fetches at most 1024, answers nothing and fn is not called */
};
struct ptc_admin_sample { /* borrowed for the callback */
	size_t size;
	uint64_t bytes;   /* of the whole sample */
	const char *name; /* relative to the dataset, name_len bytes without a NUL among them; NULL: not asked for */
	size_t name_len;
	const uint8_t *data; /* len bytes from the offset on, at most `length`, fewer at the sample's end */
	size_t len;
};
/* Called for each sample, in order, once the whole answer is there. Not 0: the call returns that code; fill err. */
typedef int (*ptc_admin_sample_fn)(void *arg, size_t i, const struct ptc_admin_sample *sample, struct ptc_error *err);
PTC_ADMIN_API int ptc_admin_dataset_read(struct ptc_admin *a, const struct ptc_admin_samples *what,
					 ptc_admin_sample_fn fn, void *arg, struct ptc_error *err);

#ifdef __cplusplus
}
#endif
#endif
