/* SPDX-License-Identifier: Apache-2.0 */
/* Which snapshot a command line means: a step or snap-N (`rollback --to`, `export --snapshot`). Happy path: the
 * daemon's list has it. Failure modes: neither a step nor snap-N (wrong usage); none of that number or step
 * (PTC_ENOTFOUND, with those that there are). */
#include "client/ctl/line/ctl.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "formats/json.h"

#include <inttypes.h>
#include <string.h>

/* What there is, for who has asked for another one. */
static int none(const json_t *rows, const char *job, const char *text, bool kept, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	size_t n = 0;

	for (size_t i = kept; i < json_array_size(rows); i++)
		ptc_buf_printf(&b, "%ssnap-%" PRIu64 " (step %" PRIu64 ")", n++ ? ", " : "",
			       ptc_json_count(json_array_get(rows, i), "snapshot"),
			       ptc_json_count(json_array_get(rows, i), "step"));
	ptc_error_set(err, PTC_ENOTFOUND, "job %s has no%s snapshot %.80s; it has %.800s%s", job, kept ? " older" : "",
		      text, n ? b.data : "none", n || !kept ? "" : ": write keep: {last: N} in job.yaml (docs/job.md)");
	ptc_buf_done(&b);
	return PTC_ENOTFOUND;
}

int ctl_snapshot_choose(struct ctl *c, const char *job, const char *text, bool kept, uint64_t *ret_snapshot,
			struct ptc_error *err)
{
	const bool number = !strncmp(text, "snap-", 5);
	ptc_auto_free char *json = NULL;
	json_t *root = NULL, *rows;
	uint64_t wanted = 0, found = 0;
	int rc = ctl_number(number ? "the snapshot" : "the step", number ? text + 5 : text, 0, INT64_MAX, &wanted, err);

	if (rc == 0)
		rc = ctl_connect(c, err);
	if (rc == 0)
		rc = ptc_admin_snapshots(c->admin, job, &json, err);
	if (rc == 0)
		rc = ptc_json_load("the list of snapshots", json, strlen(json), &root, err);
	rows = json_object_get(root, "snapshots");
	for (size_t i = kept; rc == 0 && !found && i < json_array_size(rows); i++) /* the committed one is first */
		if (ptc_json_count(json_array_get(rows, i), number ? "snapshot" : "step") == wanted)
			found = ptc_json_count(json_array_get(rows, i), "snapshot");
	if (rc == 0 && !found)
		rc = none(rows, job, text, kept, err);
	json_decref(root);
	if (rc == 0)
		*ret_snapshot = found;
	return rc;
}
