/* SPDX-License-Identifier: Apache-2.0 */
/* The state document: rank state (blobs and cursors,
 * client/include/ptc/ptc.h), as canonical JSON that a snapshot's manifest
 * names by its content hash.
 *
 *   {"version":1,
 *    "ranks":[{"rank":0,"tp":0,"pp":0,"dp":0,"cp":0,"blobs":[{"name":"rng","scope":1,"data":"AAECAw=="}]}],
 *    "cursors":[{"name":"train","position":4096,"tag":"n=1000,seed=7"}]}
 *
 * Ranks ascending, without those that have no blobs; blobs by name, then
 * scope; cursors by name. Scope 1 is a rank's own, restored where its
 * coordinates exist; 2 is the job's, of which rank 0's counts and only that is
 * kept; 3 is a tensor-parallel group's: as 1, and a rank that has none is given
 * that of the ranks which differ from it in tp only, where these are equal. A
 * document with a blob of scope 3 is of version 2, any other of version 1. Ranks that set a cursor must agree: the
 * first that does not is refused (PTC_ESTATE naming cursor and ranks). Only the canonical form is read, all of it
 * bounded; members that a later version has added before its end are passed over. Failure modes: PTC_EINVAL saying
 * where, PTC_ELIMIT, PTC_EVERSION, PTC_ENOMEM. Pure. */
#pragma once

#include "base/number/versions.h"
#include "reshard/spec/config.h"

#include <stdbool.h>

#define PTC_STATE_DOC_VERSION   PTC_VERSION_NUMBER(2)
#define PTC_STATE_DOC_OLDEST    1
#define PTC_STATE_DOC_SINCE     PTC_VERSION_NUMBER(1) /* of PTC_DOC_VERSION */
#define PTC_STATE_DOC_MAX_BYTES (64u << 20)
#define PTC_STATE_BLOBS         64 /* of one rank; as in ptc.h, with the next three */
#define PTC_STATE_BLOB_BYTES    (256u << 10)
#define PTC_STATE_NAME_MAX      255 /* of a blob, a cursor, a cursor's tag */
#define PTC_STATE_CURSORS       64

enum ptc_state_scope { PTC_STATE_RANK = 1, PTC_STATE_JOB = 2, PTC_STATE_TP = 3 }; /* enum ptc_blob_scope in ptc.h */

struct ptc_state_blob {
	char *name;
	uint32_t scope;
	void *data;
	size_t len;
};
struct ptc_state_cursor {
	char *name, *tag;
	uint64_t position;
	uint32_t rank; /* that set it first; not in the document */
};
struct ptc_state_rank {
	uint32_t rank;
	struct ptc_coords at;
	struct ptc_state_blob *blobs;
	size_t nblobs;
};
struct ptc_state {
	struct ptc_state_rank *ranks; /* ascending */
	size_t nranks;
	struct ptc_state_cursor *cursors; /* by name */
	size_t ncursors;
};
void ptc_state_done(struct ptc_state *s); /* NULL ok; zeroes it */

/* Adds what one rank carries, in any order of ranks; copies all of it. Once per rank. */
int ptc_state_add(struct ptc_state *s, const struct ptc_config *config, uint32_t rank,
		  const struct ptc_state_blob *blobs, size_t nblobs, const struct ptc_state_cursor *cursors,
		  size_t ncursors, struct ptc_error *err);
/* Adds the blobs of a rank whose coordinates some other configuration has; the same otherwise. */
int ptc_state_put(struct ptc_state *s, uint32_t rank, const struct ptc_coords *at, const struct ptc_state_blob *blobs,
		  size_t nblobs, struct ptc_error *err);
/* A cursor that is counted for the ranks: its tag has PTC_STATE_COUNTED. One of that name that a rank has set wins; one
 * that was counted before, and that ranks only carried on, is replaced. */
#define PTC_STATE_COUNTED ";counted"
int ptc_state_count(struct ptc_state *s, const struct ptc_state_cursor *cursor, struct ptc_error *err);
/* Of the ranks that differ from `at` in tp only and have the blob of this name and scope PTC_STATE_TP: the first one's,
 * where all have the same bytes. NULL: none has one, or they differ. Borrowed from s. */
const struct ptc_state_blob *ptc_state_group_blob(const struct ptc_state *s, const struct ptc_coords *at,
						  const char *name);
/* The blobs of the rank with these coordinates, of its tensor-parallel group where it has none of its own, and of the
 * job, borrowed from s: what a rank there is given. The array is ptc_free'd by the caller. */
int ptc_state_blobs(const struct ptc_state *s, const struct ptc_coords *at, struct ptc_state_blob **ret_blobs,
		    size_t *ret_n, struct ptc_error *err);
/* A state of nothing gives a document too. ptc_free it. */
int ptc_state_doc_encode(const struct ptc_state *s, char **ret_json, size_t *ret_len, struct ptc_error *err);
int ptc_state_doc_decode(const void *data, size_t len, struct ptc_state *ret_state, struct ptc_error *err);
