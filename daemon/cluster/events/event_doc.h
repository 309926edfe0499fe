/* SPDX-License-Identifier: Apache-2.0 */
/* /ptc/events/UUID/NUMBER: a line of a job's event log, and the end of a switch that such an event may be about
 * (docs/control.md). A daemon writes all members of an event. It reads few, and hands the text on as it is, so that
 * members of another version are not lost.
 *
 * Plain data of the caller, any thread. Failure modes: PTC_EINVAL (the document is malformed; the error names the
 * member), PTC_ENOMEM. */
#pragma once

#include "base/limits.h"
#include "formats/members.h"

/* How long ranks stood still, and in which phases; 0: the switch did not have that phase. */
struct ptc_switch_pause {
	double total_ms, stop_ms, copy_ms, commit_ms, end_ms, build_ms, move_ms, restore_ms;
	bool has_slowed, has_lost, has_first_step; /* whether the next ones are known */
	double slowed_ms, lost_ms, first_step_ms;
};
/* Bytes by the plan. */
struct ptc_plan_totals {
	int64_t in_place, within_node, between_nodes, reset, derived;
	int64_t bound_mapping, bound_any; /* of bytes between nodes: for this mapping, for any */
	bool bound_exact;
	int64_t gap; /* between_nodes - bound_any */
};
extern const struct ptc_members ptc_plan_totals_members;
struct ptc_switch_moved {
	char node[PTC_NAME_MAX + 1];
	int64_t in_bytes, out_bytes;
};
struct ptc_switch_placed {
	char node[PTC_NAME_MAX + 1];
	char *ranks; /* "0-3,8" */
};
struct ptc_switch_end {
	uint64_t id;
	/* of one that was aborted */
	int status;
	const char *why; /* NULL: it was committed */
	/* of one that was committed */
	char kind[16]; /* "resize", "snapshot", ...; "": it was aborted */
	uint64_t generation, snapshot, step, received_bytes, copied_bytes, digests_verified;
	uint64_t near_bytes; /* of received_bytes: read in the memory of daemons of the same machine */
	char *from, *to;     /* configurations; "": there is none */
	char preserved[16];
	double seconds;
	bool ran; /* ranks ran before it: the next two are known */
	uint64_t captured_bytes;
	struct ptc_switch_pause pause;
	bool on_devices, unfinished; /* something was restored to devices: from where; not all of it */
	uint64_t device_kept_bytes, device_peer_bytes, device_host_bytes;
	bool ahead; /* ranks built ahead */
	double built_ahead_ms;
	bool counted; /* totals and nodes are known */
	struct ptc_plan_totals totals;
	struct ptc_switch_moved *nodes;
	struct ptc_switch_placed *before, *after;
	size_t nnodes, nbefore, nafter;
};
/* Adds the members of a committed switch that its summary has, too: all but totals, nodes, before and after. Returns 0;
 * -1: out of memory. */
int ptc_switch_end_put(json_t *root, const struct ptc_switch_end *e);
void ptc_switch_end_done(struct ptc_switch_end *e);

struct ptc_event_doc {
	uint64_t number; /* of its key; in texts from other nodes only, else 0 */
	int64_t time_ms;
	const char *node, *kind, *text;
	struct ptc_switch_end end; /* id 0: of no switch */
};
/* The document in etcd; ptc_free it. If it would be longer than PTC_EVENT_MAX_BYTES, its text is cut. If a switch's
 * texts are not UTF-8, it lacks the switch. NULL: out of memory, or another text is not UTF-8. */
char *ptc_event_doc_encode(const struct ptc_event_doc *d);
/* Reads number and kind, and of its switch id, status and why. A member that is missing is 0 or NULL. On failure *ret
 * is empty. */
int ptc_event_doc_decode(const char *json, size_t len, struct ptc_event_doc *ret, struct ptc_error *err);
void ptc_event_doc_done(struct ptc_event_doc *d); /* of a document that was read */

/* Events as `events` answers them: whole, with their numbers. */
struct ptc_read_event {
	uint64_t number;
	json_t *json;
};
struct ptc_read_events {
	struct ptc_read_event *v;
	size_t n;
};
/* Reads one and adds it, or skips it if it cannot be read. number 0: the text says it. Returns 0 or PTC_ENOMEM. */
int ptc_read_events_add(struct ptc_read_events *to, uint64_t number, const char *text, size_t len);
/* Leaves each event once, in the order of their numbers, without those up to `after`. */
void ptc_read_events_sort(struct ptc_read_events *e, uint64_t after);
void ptc_read_events_done(struct ptc_read_events *e);
