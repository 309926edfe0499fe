/* SPDX-License-Identifier: Apache-2.0 */
/* libptcadmin: the bytes of a job's state. Import sends them; export tells what there is, and reads it whole, by ranges,
 * or where it lies on this node. Ownership, threads and failure modes as in ptcadmin.h. */
#pragma once

#include "client/admin/ptcadmin.h"

#ifdef __cplusplus
extern "C" {
#endif

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
/* digests: one per item (base/number/digest.h), of what was read. Files are left out when their headers pass
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
	int64_t as_of_ms;        /* the coordinator is unreachable, and answered last then; 0: it is there */
	const char *ranks_json;  /* [{rank, node, device}] */
	bool declared;           /* ranks declared what they hold: no layout follows from spec and config, but ... */
	const void *layout_json; /* ... this is it (formats/state/layout_doc.h) */
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

/* Several ranges one after the other, small ones asked for ahead, and many of them with one call. */
struct ptc_admin_range {
	bool ranked;
	uint32_t rank, item;
	uint64_t offset, length;
};
/* The bytes of all of them, none ranked, none empty, at most 8192 and 1 MiB together, with one call; for ptc_admin_read_take.
 * PTC_EVERSION: the daemon is older than that call. */
int ptc_admin_read_many_begin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
			      const struct ptc_admin_range *ranges, size_t n, struct ptc_admin_reading **ret_reading,
			      struct ptc_error *err);
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
struct ptc_admin_chunk { /* what was read is right if each block it was taken from has its checksum (proto/direct_read.h) ... */
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

/* What e describes stays readable for ttl_ms more (at most two minutes), whatever becomes of the job; 0 gives it up. reader: a
 * random name of the caller. PTC_ESTATE: the job has moved on. */
int ptc_admin_pin(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e, const char *reader,
		  uint32_t ttl_ms, struct ptc_error *err);

#ifdef __cplusplus
}
#endif
