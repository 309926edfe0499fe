/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of parts of what a Capture has copied, kept for the Pull of the same switch. So that Pull need not read the
 * bytes again which stay at their place in the chunks.
 *
 *   c = ptc_captured_new(PTC_CAPTURED_BAND, PTC_CAPTURED_RUN);
 *   ptc_captured_digest(c, ...) for each part that is there, in place of ptc_digest_part
 *   ptc_captured_seal(c, table);                                   once the table is sealed
 *   ptc_captured_known(&known, ...) is the `known` of a ptc_digest_job over a table that is derived from it
 *   ptc_captured_free(c);
 *
 * A tensor's digest is the XOR of those of its parts, so parts are cut by a grid that depends on the tensor's shape
 * only: bands of rows, whose number is a power of two, and columns. A later layout mostly cuts along the same lines.
 *
 * Threads: ptc_captured_digest from any; the others from one at a time. Failure modes: captured_digests.c. */
#pragma once

#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/geometry/geometry.h"
#include "daemon/agent/tables/node_digest.h"

#define PTC_CAPTURED_BAND (256 << 10) /* bytes of a band: at most, unless one row has more */
#define PTC_CAPTURED_RUN  1024        /* bytes of a row in one column, at least: shorter runs cost more to digest */

struct ptc_captured;
struct ptc_captured *ptc_captured_new(int64_t band, int64_t run); /* NULL: no memory; nothing is kept then */
struct ptc_captured *ptc_captured_free(struct ptc_captured *c);   /* NULL ok */
/* Digests one part as ptc_digest_part does, and keeps what it finds. c NULL: keeps nothing. */
int ptc_captured_digest(struct ptc_captured *c, const struct ptc_digest_fill *f, uint32_t extent, uint32_t item,
			const struct ptc_box *part, struct ptc_error *err);
/* No more parts come. Takes a reference to the table, which is sealed. */
void ptc_captured_seal(struct ptc_captured *c, struct ptc_table *table);

/* What a ptc_digest_job asks with. */
struct ptc_captured_known {
	const struct ptc_captured *captured; /* sealed */
	struct ptc_table *table;             /* of the job */
	const struct ptc_geometry *g;
	int64_t bytes; /* whose digests were known */
};
int ptc_captured_known(void *arg, uint32_t item, const struct ptc_box *box, uint64_t *digest, struct ptc_boxes *rest);

/* Of a job, from its Capture to its Finish. Only the running operation may call them. */
void ptc_captured_keep(struct ptc_agent_job *job, struct ptc_captured *c); /* in place of an earlier one; NULL ok */
/* What is kept, if it is of the table with that key; borrowed until the next Capture or Finish. */
const struct ptc_captured *ptc_captured_of(const struct ptc_agent_job *job, const struct ptc_table_key *key);
