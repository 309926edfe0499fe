/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this room: a transaction under way, and the state that a switch brings. */
#pragma once

#include "daemon/controller/internal.h"

#define MAX_NODE_COMPARES 100 /* keys of nodes in one Txn, with room for the transaction's other compares */

/* Made on the loop and used by the job's lane; it comes back to the loop with its outcome, which may be "unknown". */
struct txn {
	struct ptc_controller *ctl;
	uint64_t seq;
	enum ptc_job_txn kind;
	char uuid[PTC_UUID_TEXT];
	int64_t fence, record_revision, intent_revision, barrier_revision;
	struct ptc_intent_doc intent;
	struct ptc_record_doc record;
	struct ptc_manifest_doc manifest; /* shares nothing with the controller */
	char *manifest_json;              /* of a commit */
	char *generation_json;
	struct ptc_event_line *event; /* of a commit; NULL: none */
	bool new_incarnation;
	/* a commit after which the record's table is not the record's any more: what the document of older snapshots
	 * is to be; and what becomes the bridge, if the job has copies (snapshot 0: nothing may), with its copies */
	bool supersedes;
	struct ptc_older_doc older;
	struct ptc_older bridge;
	struct ptc_copies_doc copies;
	char *copies_json; /* NULL: it has none */
	char *older_json;  /* NULL: there is no such document afterwards */
	size_t older_most;
	struct ptc_job_copies asked; /* count 0: not known */
	int64_t older_revision;
	bool goes_back;   /* INTENT of a rollback: nothing has taken its snapshot from that document meanwhile ... */
	bool source_gone; /* ... or something has */
	bool too_many;    /* more nodes were left out than the intent can name */
	struct ptc_device_claim claim;
	/* INTENT of a job whose ranks do not run: the rank state of the new ranks is already known */
	struct ptc_meta_doc meta;
	char state_hash[PTC_HASH_HEX], data_hash[PTC_HASH_HEX], *from_config, *to_config;
	struct ptc_rank_states rank_states;
	struct {
		char key[128];
		int64_t revision;
	} * nodes;
	size_t nnodes;
	/* outcome */
	enum ptc_txn_outcome outcome;
	int64_t revision;
	char said[256];
};

/* The view whose state the switch brings: the record's, or for a rollback that of the older snapshot. */
static inline const struct ptc_view *ptc_switch_source(const struct ptc_controller *ctl)
{
	return ctl->intent.source ? &ctl->source : &ctl->view;
}

/* A client sends the state. */
static inline bool ptc_switch_is_sent(const struct ptc_controller *ctl)
{
	return ctl->intent.kind == PTC_SWITCH_IMPORT && !ctl->intent.source;
}

/* txn_content.c: fills the members that its kind needs. [loop] */
int ptc_txn_fill(struct ptc_controller *ctl, struct txn *t, const struct ptc_job_update *up);
