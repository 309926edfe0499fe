/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: one table reads a node's answer and writes its members again; the jobs that have its devices are added.
 * Failure modes: node_doc.h. */
#include "daemon/api/queries/node_doc.h"

#include "base/alloc.h"
#include "formats/members.h"

#include <string.h>

#define OF_GPU PTC_IF(struct ptc_node_device_said, uuid)

static const struct ptc_member process_rows[] = {
	PTC_ROW(struct ptc_node_process, "job", job, TEXT, PTC_IF_TEXT(struct ptc_node_process, job)),
	PTC_ROW(struct ptc_node_process, "uid", uid, I64, PTC_IF(struct ptc_node_process, has_uid)),
	PTC_ROW(struct ptc_node_process, "rank", rank, U32),
	PTC_ROW(struct ptc_node_process, "pid", pid, I64),
};
static const struct ptc_members process_members = PTC_MEMBERS(process_rows, struct ptc_node_process);
static const struct ptc_member device_rows[] = {
	PTC_ROW(struct ptc_node_device_said, "device", device, U32),
	PTC_ROW(struct ptc_node_device_said, "kind", kind, STRING),
	PTC_ROW(struct ptc_node_device_said, "health", health, STRING),
	PTC_ROW(struct ptc_node_device_said, "uuid", uuid, STRING, OF_GPU),
	PTC_ROW(struct ptc_node_device_said, "name", name, STRING, OF_GPU),
	PTC_ROW(struct ptc_node_device_said, "bus", bus, STRING, OF_GPU),
	PTC_ROW(struct ptc_node_device_said, "index", index, U32, OF_GPU),
	PTC_ROW(struct ptc_node_device_said, "memory_bytes", memory_bytes, U64, OF_GPU),
	PTC_ROW(struct ptc_node_device_said, "free_bytes", free_bytes, U64, OF_GPU),
	PTC_ROW(struct ptc_node_device_said, "processes", processes, U32, OF_GPU),
	PTC_ROW(struct ptc_node_device_said, "why", why, STRING, PTC_IF(struct ptc_node_device_said, why)),
	PTC_ROW(struct ptc_node_device_said, "ranks", ranks, LIST, PTC_COUNT(struct ptc_node_device_said, nranks),
		.of = &process_members),
};
static const struct ptc_members device_members = PTC_MEMBERS(device_rows, struct ptc_node_device_said);

#define BYTES(part, key, member) PTC_ROW(struct ptc_node_stat, key, part.member, U64)

static const struct ptc_member store_rows[] = {
	BYTES(store, "ceiling_bytes", ceiling),
	BYTES(store, "used_bytes", used),
	BYTES(store, "file_bytes", file),
	BYTES(store, "chunks_used", chunks_used),
	BYTES(store, "chunks_free", chunks_free),
	BYTES(store, "copied_bytes", copied),
	BYTES(store, "lost_jobs", lost_jobs),
	BYTES(store, "outside_bytes", outside),
	PTC_ROW(struct ptc_node_stat, "pinned_bytes", store.pinned, U64,
		PTC_IF(struct ptc_node_stat, store.has_pinned)),
};
static const struct ptc_member staging_rows[] = {
	BYTES(staging, "ceiling_bytes", ceiling),
	BYTES(staging, "peak_bytes", peak),
};
static const struct ptc_member memory_rows[] = {
	BYTES(memory, "ceiling_bytes", ceiling),     BYTES(memory, "chunks_bytes", chunks),
	BYTES(memory, "staging_bytes", staging),     BYTES(memory, "work_bytes", work),
	BYTES(memory, "transport_bytes", transport), BYTES(memory, "etcd_bytes", etcd),
	BYTES(memory, "tables_bytes", tables),
};
static const struct ptc_member heap_rows[] = {
	BYTES(heap, "used_bytes", used),
	BYTES(heap, "peak_bytes", peak),
};
static const struct ptc_members store_members = PTC_MEMBERS(store_rows, struct ptc_node_stat);
static const struct ptc_members staging_members = PTC_MEMBERS(staging_rows, struct ptc_node_stat);
static const struct ptc_members memory_members = PTC_MEMBERS(memory_rows, struct ptc_node_stat);
static const struct ptc_members heap_members = PTC_MEMBERS(heap_rows, struct ptc_node_stat);

/* Rows of the parts count from the whole struct. */
#define PART(key, members)                                                                                             \
	{                                                                                                              \
		key, PTC_IS_MAP, .of = &(members)                                                                      \
	}
static const struct ptc_member stat_rows[] = {
	PTC_ROW(struct ptc_node_stat, "version", version, U32),
	PART("store", store_members),
	PART("staging", staging_members),
	PART("memory", memory_members),
	PART("heap", heap_members),
};
static const struct ptc_members stat_members = PTC_MEMBERS(stat_rows, struct ptc_node_stat);
/* Apart, because each device gets the jobs that have it. */
static const struct ptc_member list_rows[] = {
	PTC_ROW(struct ptc_node_stat, "device_list", devices, LIST, PTC_COUNT(struct ptc_node_stat, ndevices),
		.of = &device_members),
};
static const struct ptc_members list_members = PTC_MEMBERS(list_rows, struct ptc_node_stat);

static void stat_done(struct ptc_node_stat *s)
{
	ptc_members_done(&list_members, s);
	memset(s, 0, sizeof *s);
}

/* Members that answers of older versions lack. */
static void note_newer(const json_t *root, struct ptc_node_stat *s)
{
	const json_t *list = json_object_get(root, "device_list");

	s->store.has_pinned = json_object_get(json_object_get(root, "store"), "pinned_bytes") != NULL;
	for (size_t i = 0; i < s->ndevices; i++) {
		const json_t *ranks = json_object_get(json_array_get(list, i), "ranks");

		for (size_t k = 0; k < s->devices[i].nranks; k++)
			s->devices[i].ranks[k].has_uid = json_object_get(json_array_get(ranks, k), "uid") != NULL;
	}
}

int ptc_node_stat_decode(const char *json, struct ptc_node_stat *ret, struct ptc_error *err)
{
	json_t *root = NULL;
	int rc = ptc_json_load("stat", json, strlen(json), &root, err);

	memset(ret, 0, sizeof *ret);
	if (rc == 0)
		rc = ptc_members_from_json("stat", &stat_members, root, ret, err);
	if (rc == 0)
		rc = ptc_members_from_json("stat", &list_members, root, ret, err);
	if (rc == 0)
		note_newer(root, ret);
	json_decref(root);
	if (rc)
		stat_done(ret);
	return rc;
}

/* ---- the row ---------------------------------------------------------------------------- */

static json_t *owner_json(const struct ptc_node_given *g)
{
	json_t *owner = json_pack("{s:I}", "uid", (json_int_t)g->uid);

	if (g->job[0])
		json_object_set_new(owner, "job", json_string(g->job));
	return owner;
}

/* The jobs that have the device. */
static json_t *owners_json(const struct ptc_node_listed *n, uint32_t device)
{
	json_t *owners = json_array();

	for (size_t i = 0; i < n->ngiven; i++)
		if (n->given[i].device == device)
			json_array_append_new(owners, owner_json(&n->given[i]));
	return owners;
}

static json_t *given_json(const struct ptc_node_listed *n)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < n->ngiven; i++)
		if (i == 0 || n->given[i].device != n->given[i - 1].device)
			json_array_append_new(rows, json_pack("{s:I, s:o}", "device", (json_int_t)n->given[i].device,
							      "jobs", owners_json(n, n->given[i].device)));
	return rows;
}

static void put_stat(json_t *row, const struct ptc_node_listed *n)
{
	json_t *devices = json_array();

	(void)ptc_members_put(row, &stat_members, &n->stat);
	for (size_t i = 0; i < n->stat.ndevices; i++) {
		json_t *device = ptc_members_to_json(&device_members, &n->stat.devices[i]);

		json_object_set_new(device, "jobs", owners_json(n, n->stat.devices[i].device));
		json_array_append_new(devices, device);
	}
	json_object_set_new(row, "device_list", devices);
}

json_t *ptc_node_listed_json(const struct ptc_node_listed *n)
{
	const struct ptc_node_doc *doc = &n->doc;
	json_t *row =
		json_pack("{s:s, s:s, s:s, s:b, s:I, s:s, s:I, s:I, s:s, s:b, s:I, s:I, s:b, s:o, s:I}", "node",
			  doc->name, "state", n->up ? n->drained ? "drained" : "up" : "down", "address", doc->address,
			  "drained", (int)n->drained, "devices", (json_int_t)doc->devices, "device_name",
			  doc->device_name, "device_bytes", (json_int_t)doc->device_bytes, "ceiling_bytes",
			  (json_int_t)doc->ceiling_bytes, "rack", doc->rack, "insecure", (int)doc->insecure, "pid",
			  (json_int_t)doc->pid, "documents", (json_int_t)doc->documents, "lost", (int)n->lost, "given",
			  given_json(n), "devices_free", (json_int_t)n->devices_free);

	if (n->unhealthy[0])
		json_object_set_new(row, "unhealthy", json_string(n->unhealthy));
	if (n->quarantined_s)
		json_object_set_new(row, "quarantined_s", json_integer(n->quarantined_s));
	if (n->answered)
		put_stat(row, n);
	return row;
}

void ptc_node_listed_done(struct ptc_node_listed *n)
{
	ptc_free(n->given);
	stat_done(&n->stat);
	memset(n, 0, sizeof *n);
}
