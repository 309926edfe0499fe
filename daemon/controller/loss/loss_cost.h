/* SPDX-License-Identifier: Apache-2.0 */
/* What the loss of one node would cost a job now, for `ptcctl status` (docs/failures.md, "What a loss would cost").
 *
 * Facts are found by a task, and kept until the job's nodes, layout or copies change, or the devices that it could use,
 * or which nodes it leaves. What ranks do is asked at each status call. The answer never promises more than is known:
 * `unknown` is one of its words.
 *
 * Failure modes: documents that cannot be read (the facts say so), memory. */
#pragma once

#include "daemon/controller/controller.h"

/* A node that alone has something, and of what; "": there is none. */
struct ptc_loss_alone {
	char node[PTC_NAME_MAX + 1];
	char tensor[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
};
/* Owned by the job's controller, flat. [loop] */
struct ptc_loss_facts {
	uint64_t key; /* of what they were found for */
	int64_t found_ns;
	bool finding, known;
	char why[200]; /* why they are not known; "": they are */
	struct ptc_job_elastic elastic;
	uint64_t snapshot_every;
	uint32_t copies;
	bool has_run;
	const char *not_taken;        /* why the job's rules let ranks' memory not be used; static; NULL: they do */
	struct ptc_loss_alone ranks;  /* among the ranks */
	struct ptc_loss_alone stored; /* among the nodes that have the snapshot */
	char stuck[PTC_NAME_MAX + 1], stuck_why[300]; /* without this node no plan is possible; "": one is */
	bool has_bridge;                              /* the bridge is whole without any one node */
	uint64_t bridge_step;
};
/* What the job does now. */
struct ptc_loss_now {
	bool live, recovering, switching, has_snapshot;
	uint64_t step, reached; /* the snapshot's; the greatest that a rank has published */
	bool has_reached;
	uint32_t ranks, told, survive; /* of ranks: how many say whether they survive, and how many do */
	uint32_t rank;                 /* the first that does not, and why, if told > survive */
	char rank_why[160];
};

/* loss_cost.c. Gives the facts for that state; *ret->known false: they are not found in time, or cannot be. has: of
 * each of v's nodes, whether it is up and has its table. Blocking, at most `ms`; not on the loop. */
void ptc_loss_facts_get(struct ptc_controllers *all, const struct ptc_view *v, const bool *has, int64_t ms,
			struct ptc_loss_facts *ret);
/* loss_key.c: a number of all that facts are found by, but for the snapshot's number: each would find the same. [loop]
 */
uint64_t ptc_loss_key(struct ptc_controllers *all, const struct ptc_controller *ctl, const struct ptc_view *v,
		      const bool *has);
/* loss_cost_said.c: `node_loss` of docs/control.md. Pure. NULL: out of memory. */
json_t *ptc_loss_json(const struct ptc_loss_facts *f, const struct ptc_loss_now *now);
/* described_loss.c: what the loss of a node will cost, as far as the job's description says it: a list of
 * one or two lines for a person. Pure. NULL: out of memory. */
json_t *ptc_loss_described(const struct ptc_job_desc *job);
