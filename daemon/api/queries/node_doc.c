/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: one table reads a node's answer and writes its members again, with the jobs that have its devices.
 * Failure modes: node_doc.h. */
#include "daemon/api/queries/node_doc.h"

#include "base/alloc.h"
#include "formats/members.h"

#include <string.h>

#define OF_GPU PTC_IF(struct ptc_node_device_said, uuid)

static const struct ptc_member process_rows[] = {
	PTC_ROW(struct ptc_node_process, "job", job, TEXT, PTC_IF_TEXT(struct ptc_node_process, job)),
	PTC_ROW(struct ptc_node_process, "uid", uid, I64, PTC_SEEN(struct ptc_node_process, has_uid)),
	PTC_ROW(struct ptc_node_process, "rank", rank, U32),
	PTC_ROW(struct ptc_node_process, "pid", pid, I64),
};
static const struct ptc_members process_members = PTC_MEMBERS(process_rows, struct ptc_node_process);
static const struct ptc_member owner_rows[] = {
	PTC_ROW(struct ptc_node_owner, "uid", uid, I64),
	PTC_ROW(struct ptc_node_owner, "job", job, TEXT, PTC_IF_TEXT(struct ptc_node_owner, job)),
};
static const struct ptc_members owner_members = PTC_MEMBERS(owner_rows, struct ptc_node_owner);
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
#define SAID 12 /* what the node says */
	PTC_ROW(struct ptc_node_device_said, "jobs", jobs, LIST, PTC_COUNT(struct ptc_node_device_said, njobs),
		.of = &owner_members),
};
static const struct ptc_members device_members = PTC_MEMBERS(device_rows, struct ptc_node_device_said);
static const struct ptc_members said_members = { device_rows, SAID, sizeof(struct ptc_node_device_said), false };

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
		PTC_SEEN(struct ptc_node_stat, store.has_pinned)),
};
static const struct ptc_member staging_rows[] = {
	BYTES(staging, "ceiling_bytes", ceiling),
	BYTES(staging, "peak_bytes", peak),
};
static const struct ptc_member memory_rows[] = {
	BYTES(memory, "ceiling_bytes", ceiling),
	BYTES(memory, "chunks_bytes", chunks),
	BYTES(memory, "staging_bytes", staging),
	BYTES(memory, "work_bytes", work),
	BYTES(memory, "transport_bytes", transport),
	BYTES(memory, "etcd_bytes", etcd),
	BYTES(memory, "tables_bytes", tables),
	PTC_ROW(struct ptc_node_stat, "backing_bytes", memory.backing, U64,
		PTC_SEEN(struct ptc_node_stat, memory.has_backing)),
	PTC_ROW(struct ptc_node_stat, "backing_open_bytes", memory.backing_open, U64,
		PTC_SEEN(struct ptc_node_stat, memory.has_backing)),
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
static const struct ptc_member answer_rows[] = {
	PART(NULL, stat_members),
	PTC_ROW(struct ptc_node_stat, "device_list", devices, LIST, PTC_COUNT(struct ptc_node_stat, ndevices),
		.of = &said_members),
};
static const struct ptc_members answer_members = PTC_MEMBERS(answer_rows, struct ptc_node_stat);

int ptc_node_stat_decode(const char *json, struct ptc_node_stat *ret, struct ptc_error *err)
{
	memset(ret, 0, sizeof *ret);
	return ptc_members_from_text("stat", 0, 0, &answer_members, json, strlen(json), ret, err);
}

/* ---- the row ---------------------------------------------------------------------------- */

#define ROW(key, member, ...) PTC_ROW(struct ptc_node_listed, key, member, __VA_ARGS__)
#define IF(member)            PTC_IF(struct ptc_node_listed, member)

static const struct ptc_member given_rows[] = {
	PTC_ROW(struct ptc_node_given, "device", device, U32),
	PTC_ROW(struct ptc_node_given, "jobs", jobs, LIST, PTC_COUNT(struct ptc_node_given, njobs),
		.of = &owner_members),
};
static const struct ptc_members given_members = PTC_MEMBERS(given_rows, struct ptc_node_given);
static const struct ptc_member listed_rows[] = {
	ROW("node", doc.name, TEXT),
	ROW("state", state, STRING),
	ROW("address", doc.address, TEXT),
	ROW("drained", drained, BOOL),
	ROW("devices", doc.devices, U32),
	ROW("device_name", doc.device_name, TEXT),
	ROW("device_bytes", doc.device_bytes, U64),
	ROW("ceiling_bytes", doc.ceiling_bytes, U64),
	ROW("rack", doc.rack, TEXT),
	ROW("insecure", doc.insecure, BOOL),
	ROW("pid", doc.pid, INT),
	ROW("documents", doc.documents, U32),
	ROW("lost", lost, BOOL),
	ROW("unreachable", unreachable, BOOL, IF(unreachable)),
	ROW("given", given, LIST, PTC_COUNT(struct ptc_node_listed, ngiven), .of = &given_members),
	ROW("devices_free", devices_free, U32),
	ROW("unhealthy", unhealthy, TEXT, PTC_IF_TEXT(struct ptc_node_listed, unhealthy)),
	ROW("quarantined_s", quarantined_s, I64, IF(quarantined_s)),
	ROW(NULL, stat, MAP, IF(answered), .of = &stat_members),
	ROW("device_list", stat.devices, LIST, IF(answered), PTC_COUNT(struct ptc_node_listed, stat.ndevices),
	    .of = &device_members),
};
static const struct ptc_members listed_members = PTC_MEMBERS(listed_rows, struct ptc_node_listed);

int ptc_node_given_add(struct ptc_node_listed *n, uint32_t device, const struct ptc_node_owner *job)
{
	struct ptc_node_given *g;

	if (!n->ngiven || n->given[n->ngiven - 1].device != device) {
		if (!PTC_MORE(n->given, n->ngiven))
			return PTC_ENOMEM;
		n->given[n->ngiven++] = (struct ptc_node_given){ .device = device };
	}
	g = &n->given[n->ngiven - 1];
	if (!PTC_MORE(g->jobs, g->njobs))
		return PTC_ENOMEM;
	g->jobs[g->njobs++] = *job;
	return 0;
}

/* The jobs that have the device. */
static void find_jobs(const struct ptc_node_listed *n, struct ptc_node_device_said *to)
{
	for (size_t i = 0; i < n->ngiven; i++)
		if (n->given[i].device == to->device) {
			to->jobs = n->given[i].jobs;
			to->njobs = n->given[i].njobs;
		}
}

json_t *ptc_node_listed_json(struct ptc_node_listed *n)
{
	n->state = n->up ? n->drained ? "drained" : "up" : "down";
	for (size_t i = 0; i < n->stat.ndevices; i++)
		find_jobs(n, &n->stat.devices[i]);
	return ptc_members_to_json(&listed_members, n);
}

void ptc_node_listed_done(struct ptc_node_listed *n)
{
	for (size_t i = 0; i < n->ngiven; i++)
		ptc_members_done(&given_members, &n->given[i]);
	ptc_free(n->given);
	ptc_members_done(&answer_members, &n->stat);
	memset(n, 0, sizeof *n);
}
