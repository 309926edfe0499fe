/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: tables write the members in the order in which docs/control.md has them. Failure modes: status_doc.h. */
#include "daemon/api/queries/status_doc.h"

#include "formats/members.h"

/* ---- a job ---- */

#define JOB(key, member, ...) PTC_ROW(struct ptc_status_job, key, member, __VA_ARGS__)
#define IF(member)            PTC_IF(struct ptc_status_job, member)

static const struct ptc_member kept_rows[] = {
	PTC_ROW(struct ptc_older, NULL, snapshot, U64),
	PTC_ROW(struct ptc_older, NULL, step, U64),
};
static const struct ptc_members kept_members = PTC_TUPLE(kept_rows, struct ptc_older);
static const struct ptc_member bridge_rows[] = {
	PTC_ROW(struct ptc_older, "snapshot", snapshot, U64),
	PTC_ROW(struct ptc_older, "generation", generation, U64),
	PTC_ROW(struct ptc_older, "step", step, U64),
};
static const struct ptc_members bridge_members = PTC_MEMBERS(bridge_rows, struct ptc_older);
static const struct ptc_member run_rows[] = {
	JOB("state", run, STRING),
	JOB("incarnation", incarnation, U64),
};
static const struct ptc_members run_members = PTC_MEMBERS(run_rows, struct ptc_status_job);
static const struct ptc_member job_rows[] = {
	JOB("job", name, STRING),
	JOB("uuid", uuid, STRING),
	JOB("uid", uid, U64),
	JOB("controller", controller, STRING),
	JOB("phase", phase, STRING),
	JOB("has_state", has_state, BOOL),
	JOB("generation", generation, U64),
	JOB("snapshot", snapshot, U64),
	JOB("step", step, U64),
	JOB("bytes_done", bytes_done, U64),
	JOB("bytes_total", bytes_total, U64),
};
static const struct ptc_members job_members = PTC_MEMBERS(job_rows, struct ptc_status_job);
/* After the archive, which has a table of its own (daemon/controller/archiving/archive_said.c). */
static const struct ptc_member rest_rows[] = {
	JOB("kept", kept, LIST, IF(nkept), PTC_COUNT(struct ptc_status_job, nkept), .of = &kept_members),
	JOB("bridge", bridge, MAP, IF(bridge.snapshot), .of = &bridge_members),
	JOB("no_bridge", no_bridge, STRING, IF(no_bridge)),
	JOB("unreadable", unreadable, STRING, IF(unreadable)),
	JOB("files_group", files_group, U64, IF(shared)),
	{ "run", PTC_IS_MAP, .of = &run_members },
};
static const struct ptc_members rest_members = PTC_MEMBERS(rest_rows, struct ptc_status_job);

json_t *ptc_status_job_json(const struct ptc_status_job *j)
{
	json_t *row = ptc_members_to_json(&job_members, j);

	if (row && (!j->archive || json_object_set(row, "archive", j->archive) == 0) &&
	    ptc_members_put(row, &rest_members, j) == 0)
		return row;
	json_decref(row);
	return NULL;
}

/* ---- the daemon ---- */

#define SCRUB(key, member, kind) PTC_ROW(struct ptc_scrub_progress, key, member, kind)
#define DAEMON(key, member, ...) PTC_ROW(struct ptc_status_daemon, key, member, __VA_ARGS__)

static const struct ptc_member scrub_rows[] = {
	SCRUB("rate", rate, U64),
	SCRUB("bytes", bytes, U64),
	SCRUB("rounds", rounds, U64),
	SCRUB("round_bytes", round_bytes, U64),
	SCRUB("round_left_bytes", round_left, U64),
	SCRUB("round_ended_ms", round_ended_ms, I64),
	SCRUB("found_blocks", found, U64),
	SCRUB("healed_blocks", healed, U64),
	SCRUB("damaged_blocks", damaged, U64),
	SCRUB("paused", paused, BOOL),
};
static const struct ptc_members scrub_members = PTC_MEMBERS(scrub_rows, struct ptc_scrub_progress);
static const struct ptc_member daemon_rows[] = {
	PTC_ROW(struct ptc_status_daemon, "scrub", scrub, MAP, .of = &scrub_members),
	DAEMON("node", node, STRING),
	DAEMON("version", version, STRING),
	DAEMON("coordinator_ok", coordinator_ok, BOOL),
	DAEMON("insecure", insecure, BOOL),
	DAEMON("coordinator_bytes", coordinator_bytes, U64),
	DAEMON("coordinator_used_bytes", coordinator_used, U64),
	DAEMON("coordinator_limit_bytes", coordinator_limit, U64),
	DAEMON("coordinator_full", coordinator_full, BOOL),
	DAEMON("kept_jobs", kept_jobs, U64),
	DAEMON("kept_bytes", kept_bytes, U64),
	DAEMON("certificate_ends_ms", certificate_ends_ms, I64, PTC_IF(struct ptc_status_daemon, certificate_ends_ms)),
};
static const struct ptc_members daemon_members = PTC_MEMBERS(daemon_rows, struct ptc_status_daemon);

json_t *ptc_status_daemon_json(const struct ptc_status_daemon *d)
{
	return ptc_members_to_json(&daemon_members, d);
}
