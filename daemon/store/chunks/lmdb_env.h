/* SPDX-License-Identifier: Apache-2.0 */
/* LMDB's environments and transactions; its codes as codes of ptc; files whose blocks are allocated before they are
 * written. Failure modes: lmdb.c. */
#pragma once

#include "base/status.h"

#include <lmdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int ptc_store_lmdb_error(struct ptc_error *err, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#ifdef __clang_analyzer__
#define ptc_store_lmdb_error(...) PTC_NEVER_0(ptc_store_lmdb_error(__VA_ARGS__))
#endif
#define STORE_ASIDE "data.mdb.damaged" /* the name of a data file that was set aside */
enum store_env { STORE_META, STORE_CHUNKS };
/* PTC_ECORRUPT: LMDB could not use the data file, and has not touched it. */
int ptc_store_env_open(const char *dir, enum store_env kind, uint64_t map_bytes, MDB_env **ret_env, MDB_dbi *ret_dbi,
		       struct ptc_error *err);
/* Gives a damaged data file of a directory another name, and logs `why`. Nobody has the file open. */
int ptc_store_set_aside(const char *dir, const char *why, struct ptc_error *err);
int ptc_store_begin(MDB_env *env, bool write, MDB_txn **ret_txn, struct ptc_error *err);
int ptc_store_commit(MDB_txn *txn, enum store_env kind, struct ptc_error *err); /* ends txn in every case */
int ptc_store_msync(void *p, size_t len, struct ptc_error *err);
int ptc_store_file_alloc(int fd, uint64_t off, uint64_t len, struct ptc_error *err);
