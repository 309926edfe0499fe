/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: inventory.h. */
#include "daemon/api/recover/inventory.h"

#include "formats/members.h"

#include <string.h>

static const struct ptc_member table_rows[] = {
	PTC_ROW(struct ptc_inventory_table, NULL, generation, U64),
	PTC_ROW(struct ptc_inventory_table, NULL, snapshot, U64),
};
static const struct ptc_members table_members = PTC_TUPLE(table_rows, struct ptc_inventory_table);
static const struct ptc_member job_rows[] = {
	PTC_ROW(struct ptc_inventory_job, "uuid", uuid, TEXT),
	PTC_ROW(struct ptc_inventory_job, "tables", tables, LIST, PTC_COUNT(struct ptc_inventory_job, ntables),
		.of = &table_members),
	PTC_ROW(struct ptc_inventory_job, "name", name, TEXT, PTC_IF_TEXT(struct ptc_inventory_job, name)),
	PTC_ROW(struct ptc_inventory_job, "epoch", epoch, U64, PTC_IF(struct ptc_inventory_job, revision)),
	PTC_ROW(struct ptc_inventory_job, "revision", revision, U64, PTC_IF(struct ptc_inventory_job, revision)),
};
static const struct ptc_members job_members = PTC_MEMBERS(job_rows, struct ptc_inventory_job);
static const struct ptc_member rows[] = {
	PTC_ROW(struct ptc_inventory, "node", node, TEXT),
	PTC_ROW(struct ptc_inventory, "cluster", cluster, STRING),
	PTC_ROW(struct ptc_inventory, "waits", waits, BOOL),
	PTC_ROW(struct ptc_inventory, "old", old, STRING),
	PTC_ROW(struct ptc_inventory, "jobs", jobs, LIST, PTC_COUNT(struct ptc_inventory, njobs), .of = &job_members),
};
static const struct ptc_members members = PTC_MEMBERS(rows, struct ptc_inventory);

void ptc_inventory_done(struct ptc_inventory *v)
{
	ptc_members_done(&members, v);
}

char *ptc_inventory_encode(const struct ptc_inventory *v)
{
	return ptc_members_to_text(1, &members, v);
}

int ptc_inventory_decode(const char *what, const char *json, struct ptc_inventory *ret, struct ptc_error *err)
{
	struct ptc_inventory v = { 0 };
	int rc = ptc_members_from_text(what, 0, 0, &members, json, strlen(json), &v, err);

	if (rc == 0)
		*ret = v;
	return rc;
}

const struct ptc_inventory_job *ptc_inventory_find(const struct ptc_inventory *v, const char *uuid)
{
	for (size_t i = 0; i < v->njobs; i++)
		if (strcmp(v->jobs[i].uuid, uuid) == 0)
			return &v->jobs[i];
	return NULL;
}
