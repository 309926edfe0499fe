/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: tables write and read the members. Failure modes: leaving_answer.h. */
#include "daemon/controller/leaving/leaving_answer.h"

#include "formats/members.h"

#include <string.h>

#define VERSION 1

static const struct ptc_member rows[] = {
	PTC_ROW(struct ptc_leaving_answer, "job", job, TEXT),
	PTC_ROW(struct ptc_leaving_answer, "uuid", uuid, TEXT),
	PTC_ROW(struct ptc_leaving_answer, "over", over, BOOL),
	PTC_ROW(struct ptc_leaving_answer, "state", state, TEXT),
	PTC_ROW(struct ptc_leaving_answer, "snapshot", snapshot, U64),
	PTC_ROW(struct ptc_leaving_answer, "step", step, U64),
	PTC_ROW(struct ptc_leaving_answer, "why", why, TEXT),
	PTC_ROW(struct ptc_leaving_answer, "left_bytes", left_bytes, U64),
	PTC_ROW(struct ptc_leaving_answer, "left_tensors", left_tensors, U64),
};
static const struct ptc_members members = PTC_MEMBERS(rows, struct ptc_leaving_answer);

/* Of a job that has nothing on the node. The answer about any other job lacks "concerned". */
static const struct ptc_member other_rows[] = {
	PTC_ROW(struct ptc_leaving_answer, "job", job, TEXT),
	PTC_ROW(struct ptc_leaving_answer, "over", over, BOOL),
	PTC_ROW(struct ptc_leaving_answer, "concerned", concerned, BOOL, .optional = true),
};
static const struct ptc_members other_members = PTC_MEMBERS(other_rows, struct ptc_leaving_answer);

json_t *ptc_leaving_answer_json(const struct ptc_leaving_answer *a)
{
	return ptc_members_to_doc(VERSION, a->concerned ? &members : &other_members, a);
}

int ptc_leaving_answer_decode(const char *json, struct ptc_leaving_answer *ret, struct ptc_error *err)
{
	struct ptc_leaving_answer a = { .concerned = true };
	json_t *root = NULL;
	int rc = ptc_json_load("leave", json, strlen(json), &root, err);

	if (rc == 0)
		rc = ptc_members_from_json("leave", &other_members, root, &a, err);
	if (rc == 0 && a.concerned)
		rc = ptc_members_from_json("leave", &members, root, &a, err);
	json_decref(root);
	if (rc == 0)
		*ret = a;
	return rc;
}
