/* SPDX-License-Identifier: Apache-2.0 */
/* The state document: the rank state of all ranks (blobs and cursors, client/include/ptc/ptc.h), as canonical JSON. A
 * snapshot's manifest names it by its content hash.
 *
 *   {"version":1,
 *    "ranks":[{"rank":0,"tp":0,"pp":0,"dp":0,"cp":0,"blobs":[{"name":"rng","scope":1,"data":"AAECAw=="}]}],
 *    "cursors":[{"name":"train","position":4096,"tag":"n=1000,seed=7"}]}
 *
 * Ranks are ascending; ranks without blobs are left out. Blobs are sorted by name, then scope; cursors by name. The
 * scopes:
 * - 1: the rank's own, restored where its coordinates exist.
 * - 2: the job's; rank 0's counts, and only that one is kept.
 * - 3: the tensor-parallel group's. As 1, but a rank without one gets that of the ranks that differ from it in tp only,
 *   if all of these are equal. A document with such a blob has version 2; any other has version 1.
 *
 * Ranks that set a cursor must agree. The first that does not is refused (PTC_ESTATE, which names cursor and ranks).
 *
 * Only the canonical form is read, and everything is bounded. Members that a later version has added before the end are
 * skipped. Failure modes: PTC_EINVAL with the place, PTC_ELIMIT, PTC_EVERSION, PTC_ENOMEM. Pure. */
#pragma once

#include "base/number/versions.h"
#include "reshard/spec/config.h"

#include <stdbool.h>

#define PTC_STATE_DOC_VERSION   PTC_VERSION_NUMBER(2)
#define PTC_STATE_DOC_OLDEST    1
#define PTC_STATE_DOC_SINCE     PTC_VERSION_NUMBER(1) /* the PTC_DOC_VERSION that brought the newest version */
#define PTC_STATE_DOC_MAX_BYTES (64u << 20)
#define PTC_STATE_BLOBS         64 /* blobs of one rank; this and the next three are as in ptc.h */
#define PTC_STATE_BLOB_BYTES    (256u << 10)
#define PTC_STATE_NAME_MAX      255 /* bytes of a blob's name, a cursor's name or a cursor's tag */
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
	uint32_t rank; /* the first rank that set it; not in the document */
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
	struct ptc_state_cursor *cursors; /* in name order */
	size_t ncursors;
};
void ptc_state_done(struct ptc_state *s); /* NULL ok; zeroes it */

/* Adds one rank's blobs and cursors, and copies them. Call it once per rank, in any order of ranks. */
int ptc_state_add(struct ptc_state *s, const struct ptc_config *config, uint32_t rank,
		  const struct ptc_state_blob *blobs, size_t nblobs, const struct ptc_state_cursor *cursors,
		  size_t ncursors, struct ptc_error *err);
/* Adds and copies the blobs of a rank that has given coordinates, which may be those of another configuration. */
int ptc_state_put(struct ptc_state *s, uint32_t rank, const struct ptc_coords *at, const struct ptc_state_blob *blobs,
		  size_t nblobs, struct ptc_error *err);
/* Adds a cursor that is counted for the ranks: its tag gets PTC_STATE_COUNTED. A cursor of that name that a rank has
 * set stays. A cursor that was counted before, and that ranks only passed on, is replaced. */
#define PTC_STATE_COUNTED ";counted"
int ptc_state_count(struct ptc_state *s, const struct ptc_state_cursor *cursor, struct ptc_error *err);
/* Makes s, a state that a job goes back to, go on in the data where `now` has come to. Each cursor of `now` that is
 * ahead takes the place of that of s, and so do the states of loaders: the job's blobs named PTC_STATE_LOADER...
 * (ptc.torch, External). PTC_ESTATE: s has the cursor with another order (its tag up to the ';'), or `now` has neither
 * cursors nor states of loaders. */
#define PTC_STATE_LOADER "loader/"
int ptc_state_go_on(struct ptc_state *s, const struct ptc_state *now, struct ptc_error *err);
/* The blob of a tensor-parallel group: name and scope PTC_STATE_TP, of the ranks that differ from `at` in tp only. It
 * is the first rank's, if all that have one have the same bytes. NULL: none has one, or they differ. Borrowed from s.
 */
const struct ptc_state_blob *ptc_state_group_blob(const struct ptc_state *s, const struct ptc_coords *at,
						  const char *name);
/* The blobs that a rank at these coordinates gets: its own, its tensor-parallel group's where it has none, and the
 * job's. They are borrowed from s; the caller ptc_frees the array. */
int ptc_state_blobs(const struct ptc_state *s, const struct ptc_coords *at, struct ptc_state_blob **ret_blobs,
		    size_t *ret_n, struct ptc_error *err);
/* Makes the document, also of an empty state. ptc_free *ret_json. */
int ptc_state_doc_encode(const struct ptc_state *s, char **ret_json, size_t *ret_len, struct ptc_error *err);
int ptc_state_doc_decode(const void *data, size_t len, struct ptc_state *ret_state, struct ptc_error *err);
