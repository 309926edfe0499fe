/* SPDX-License-Identifier: Apache-2.0 */
/* What a job's ranks do: its record, what its controller says, and what the nodes of its committed generation say.
 *
 * Threads: handlers'. Calls block: they ask the loop, and wait up to two seconds for nodes. Failure modes: a node that
 * does not answer shows its ranks as unknown; out of memory, members are missing. */
#pragma once

#include "daemon/api/caller/caller.h"
#include "formats/ranks/rank_rows.h"
#include "daemon/controller/recovery/stragglers.h"

/* A rank of the committed generation. */
struct ptc_run_rank {
	uint32_t rank, device;
	const char *node;
	bool heard;                     /* its node has answered */
	const struct ptc_rank_row *row; /* in that answer; NULL: it has none */
	char health[PTC_HEALTH_BYTES];  /* of its device; "": it is well */
};
/* Borrows the view that it was made of. */
struct ptc_run_state {
	const char *state;
	uint64_t incarnation;
	struct ptc_slow_devices left; /* devices that the job has left, because its ranks were slow there */
	struct ptc_stragglers_said stragglers;
	const char *cause; /* why ranks were started again: "node", "program", "hang"; NULL: they were not */
	uint64_t reached, restarts;
	char waits[1024];           /* why the job does not go on; "": it does, or nobody says */
	char stays[400];            /* why the job does not grow, although devices are free; "": as with `waits` */
	char failed[1024];          /* on which node the job has failed, and why; "": it has not */
	char gave_up[1024];         /* why it is not started again; "": it is, or nobody has said */
	bool live;                  /* the next ones are known */
	struct ptc_run_rank *ranks; /* ascending */
	size_t nranks, nnodes;
	char *const *nodes;         /* their names */
	struct ptc_rank_rows *said; /* the rows of each node of the generation; empty if it has not answered */
};

/* run_state.c. v: the job's committed generation; NULL: it has none. */
void ptc_run_state_find(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v,
			struct ptc_run_state *ret);
void ptc_run_state_done(struct ptc_run_state *run);
/* [loop] Which node the job has failed on, and why. arg: a struct ptc_run_failure. */
struct ptc_run_failure {
	struct ptc_daemon *d;
	const struct ptc_target *t;
	char text[1024]; /* unchanged: it has not failed */
};
void ptc_run_find_failure(void *arg);
/* Asks a node for the job's ranks there. False: there is no answer. */
bool ptc_run_ask_node(struct ptc_daemon *d, const char *uuid, const char *node, const char *address,
		      struct ptc_rank_rows *ret);
/* Asks the nodes of the committed generation. Gives the answer of each, by its number there, and in `heard` whether
 * there is one; ptc_run_answers_free. NULL: out of memory. */
struct ptc_rank_rows *ptc_run_ask_nodes(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v,
					bool *heard);
void ptc_run_answers_free(struct ptc_rank_rows *said, size_t n);

/* run_doc.c: docs/control.md, `run`. Pure. NULL: out of memory. */
json_t *ptc_run_state_json(const struct ptc_run_state *run);
