/* SPDX-License-Identifier: Apache-2.0 */
/* Records in meta: the store's id, jobs, notes, tables. Each function is one commit or one read.
 * Failure modes: record.c. */
#pragma once

#include "base/buf.h"
#include "daemon/store/chunks/store_state.h"

struct key {
	uint8_t b[KEY_MAX_BYTES];
	size_t len;
};
int ptc_store_rec_put(MDB_txn *txn, MDB_dbi dbi, const struct key *k, struct ptc_buf *payload, struct ptc_error *err);
int ptc_store_rec_store(struct ptc_store *s, struct ptc_error *err); /* reads or writes the store id */
enum job_state { JOB_CREATING = 1, JOB_READY, JOB_DELETING };
int ptc_store_rec_job_put(struct ptc_store *s, const struct job *j, enum job_state state, struct ptc_error *err);
/* Removes every record of the job, the job's own included. */
int ptc_store_rec_job_del(struct ptc_store *s, const char *uuid, struct ptc_error *err);
typedef int (*ptc_store_rec_job_fn)(void *arg, const char *uuid, uid_t uid, int64_t fence, enum job_state state,
				    struct ptc_error *err);
int ptc_store_rec_jobs(struct ptc_store *s, ptc_store_rec_job_fn fn, void *arg, struct ptc_error *err);
int ptc_store_rec_note_put(struct ptc_store *s, const char *uuid, const char *name, const void *data, size_t len,
			   struct ptc_error *err);
int ptc_store_rec_note_get(struct ptc_store *s, const char *uuid, const char *name, void **ret_data, size_t *ret_len,
			   struct ptc_error *err);
int ptc_store_rec_tables_load(struct job *j, struct ptc_error *err); /* fills j->tables and chunk states */
struct table_save {
	size_t first_piece, first_chunk; /* what is not in meta yet */
	bool seal;
};
/* Everything of t from first_piece, first_chunk on, its header, its fill state, and sums: one commit. */
int ptc_store_rec_table_save(struct ptc_table *t, const struct table_save *what, struct chunk *const *sums,
			     size_t nsums, struct ptc_error *err);
/* Removes tables and the sums of chunks: one commit. */
int ptc_store_rec_tables_del(struct job *j, struct ptc_table *const *tables, size_t n, struct chunk *const *chunks,
			     size_t nchunks, struct ptc_error *err);
