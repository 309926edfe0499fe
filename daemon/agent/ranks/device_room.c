/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the next generation's ranks find room on this node's devices. Happy path: a tensor that a rank here has
 * declared on a device will be on a device again; the next layout says how many bytes of it each rank will have. These
 * bytes have to fit into the device's free memory plus the memory that the job's own processes use there, because these
 * processes free this memory before the new ranks take theirs. New ranks that were built ahead have taken theirs: what
 * they use is no longer free, and must not be wanted a second time.
 *
 * A rank needs more than it declares (activations, buffers of its libraries), and nobody knows how much. So the sum is
 * a lower bound, and a switch is refused only if it certainly does not fit. Failure modes: a device that is too small
 * (PTC_ENOSPC), memory. Where the driver does not say what processes use (containers), the device's whole memory counts
 * as free.
 *
 * The file also answers Peer/Room: what memory this node has left, for who plans ranks that build beside others, and
 * which free chunks the store has for the job. */
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/ranks/internal.h"
#include "daemon/gpu/node/node_devices.h"
#include "daemon/store/store.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/memory/machine_memory.h"
#include "base/sys/fault.h"

#include <string.h>

static const struct ptc_slot_tensor *find_tensor(const struct ptc_slot_view *slot, const char *name)
{
	size_t from = 0, to = slot->ntensors;

	while (from < to) {
		size_t mid = from + (to - from) / 2;
		int order = strcmp(slot->tensors[mid].name, name);

		if (order == 0)
			return &slot->tensors[mid];
		if (order < 0)
			from = mid + 1;
		else
			to = mid;
	}
	return NULL;
}

/* A rank here has it in a device's memory now. */
static bool on_device(const struct ptc_group *now, const char *name)
{
	for (size_t i = 0; i < now->n; i++) {
		const struct ptc_slot_tensor *t = find_tensor(&now->v[i], name);

		for (size_t k = 0; t && k < t->nregions; k++)
			if (!ptc_box_empty(&t->regions[k].box) && ptc_slot_device(&now->v[i], t->regions[k].address))
				return true;
	}
	return false;
}

/* *ret_any: a tensor of the next generation is on a device. */
static int items_on_device(const struct ptc_geometry *next, const struct ptc_group *now, bool **ret, bool *ret_any,
			   struct ptc_error *err)
{
	size_t n = ptc_spec_items(next->spec);
	bool *v = ptc_calloc(n ? n : 1, sizeof *v);
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];

	if (!v)
		return ptc_nomem(err);
	*ret_any = false;
	for (size_t i = 0; i < n; i++) {
		v[i] = on_device(now, ptc_geometry_item_name(next, (uint32_t)i, name, sizeof name));
		*ret_any |= v[i];
	}
	*ret = v;
	return 0;
}

/* Adds what a rank will declare on its device. */
static int add_rank(const struct ptc_geometry *next, uint32_t rank, const bool *items, uint64_t *sum,
		    struct ptc_error *err)
{
	struct ptc_rank_layout l = { 0 };
	int rc = ptc_layout_rank(next->layout, rank, &l, err);

	for (size_t i = 0; !rc && i < l.nregions; i++) {
		struct ptc_box bytes;

		if (!items[l.regions[i].item])
			continue;
		rc = ptc_item_byte_box(next->spec, l.regions[i].item, &l.regions[i].box, &bytes, err);
		*sum += rc ? 0 : (uint64_t)ptc_box_volume(&bytes);
	}
	ptc_rank_layout_done(&l);
	return rc;
}

static const struct ptc_node_device_use *find_use(const struct ptc_node_device *d, int64_t pid)
{
	for (size_t i = 0; i < d->nuses; i++)
		if (d->uses[i].pid == pid)
			return &d->uses[i];
	return NULL;
}

static bool rank_uses(const struct ptc_slot_view *slot, const char *uuid)
{
	for (size_t i = 0; i < slot->ntensors; i++)
		for (size_t k = 0; k < slot->tensors[i].nregions; k++) {
			const char *has = ptc_slot_device(slot, slot->tensors[i].regions[k].address);

			if (has && strcmp(has, uuid) == 0)
				return true;
		}
	return false;
}

/* Adds what a group's ranks use of the device. False: nobody knows. */
static bool add_uses(const struct ptc_node_device *d, const struct ptc_group *group, uint64_t *sum)
{
	for (size_t i = 0; i < group->n; i++) {
		const struct ptc_node_device_use *use;

		if (group->v[i].pid <= 0 || !rank_uses(&group->v[i], d->uuid))
			continue;
		use = find_use(d, group->v[i].pid);
		if (!use || !use->known || ptc_ckd_add(sum, *sum, use->bytes))
			return false;
	}
	return true;
}

/* At most so much can be the next ranks' once those of now have freed theirs. */
static uint64_t can_be_theirs(const struct ptc_node_device *d, const struct ptc_rank_groups *groups)
{
	uint64_t sum = d->free_bytes;

	return add_uses(d, &groups->now, &sum) && add_uses(d, &groups->next, &sum) ? PTC_MIN(sum, d->memory_bytes)
										   : d->memory_bytes;
}

static int check_device(struct ptc_agent *agent, size_t i, uint64_t need, const struct ptc_rank_groups *groups,
			struct ptc_error *err)
{
	struct ptc_node_device d;
	uint64_t room;

	ptc_node_devices_get(agent->env.devices, i, &d);
	room = can_be_theirs(&d, groups);
	if (!d.memory_bytes || need <= room) /* one that does not answer says no size */
		return 0;
	return ptc_error_set(
		err, PTC_ENOSPC,
		"node %s, device %zu (%s): the next ranks' tensors need %llu bytes of its memory; beside what "
		"other processes use, %llu of %llu bytes can be free; end those processes, or choose a "
		"configuration with less on a device",
		agent->node, i, d.uuid, (unsigned long long)need, (unsigned long long)room,
		(unsigned long long)d.memory_bytes);
}

static int check_devices(struct ptc_agent *agent, const struct ptc_geometry *next, uint32_t self, const bool *items,
			 const struct ptc_rank_groups *groups, struct ptc_error *err)
{
	size_t n = ptc_node_devices_count(agent->env.devices);
	uint64_t *need = ptc_calloc(n, sizeof *need);
	struct ptc_error why = PTC_ERROR_INIT;
	int rc = need ? 0 : ptc_nomem(err);

	for (uint32_t r = 0; !rc && r < next->allocation.world; r++) {
		const struct ptc_device *at = &next->allocation.ranks[r];

		if (at->node == self && at->index < n)
			rc = add_rank(next, r, items, &need[at->index], err);
	}
	if (!rc && ptc_node_devices_refresh(agent->env.devices, &why) != 0) {
		ptc_warn("agent", "room on devices is not checked before a switch: %s", why.text);
		n = 0;
	}
	for (size_t i = 0; !rc && i < n; i++)
		rc = need[i] ? check_device(agent, i, need[i], groups, err) : 0;
	ptc_free(need);
	return rc;
}

int ptc_device_room(struct ptc_agent *agent, const struct ptc_geometry *next, uint32_t self,
		    const struct ptc_rank_groups *groups, struct ptc_error *err)
{
	bool *items = NULL, any;
	int rc;

	if (!agent->env.devices || !ptc_node_devices_ids(agent->env.devices))
		return 0; /* virtual devices: nobody knows on which a rank will be */
	rc = items_on_device(next, &groups->now, &items, &any, err);
	if (!rc && any)
		rc = check_devices(agent, next, self, items, groups, err);
	ptc_free(items);
	return rc;
}

/* ---- Room ---- */

struct room {
	Ptc__V1__RoomReply reply;
	Ptc__V1__DeviceRoom devices[PTC_NODE_DEVICES_MAX], *list[PTC_NODE_DEVICES_MAX];
	int64_t pids[PTC_NODE_DEVICES_MAX][PTC_NODE_DEVICE_USES_MAX];
	uint64_t used[PTC_NODE_DEVICES_MAX][PTC_NODE_DEVICE_USES_MAX];
};

static void say_device(struct room *r, size_t i, const struct ptc_node_device *d)
{
	Ptc__V1__DeviceRoom *to = r->list[i] = &r->devices[i];

	ptc__v1__device_room__init(to);
	to->memory_bytes = d->memory_bytes;
	to->free_bytes = d->free_bytes;
	to->pids = r->pids[i];
	to->used_bytes = r->used[i];
	for (size_t k = 0; k < d->nuses; k++)
		if (d->uses[k].known) {
			to->pids[to->n_pids++] = d->uses[k].pid;
			to->used_bytes[to->n_used_bytes++] = d->uses[k].bytes;
		}
}

static void say_devices(struct ptc_agent *agent, struct room *r)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_node_device d;

	if (!agent->env.devices || !ptc_node_devices_ids(agent->env.devices))
		return; /* virtual devices have no memory */
	if (ptc_node_devices_refresh(agent->env.devices, &why) != 0) {
		ptc_warn("agent", "what memory devices have left is not known: %s", why.text);
		return;
	}
	r->reply.devices = r->list;
	r->reply.n_devices = ptc_node_devices_count(agent->env.devices);
	for (size_t i = 0; i < r->reply.n_devices; i++) {
		ptc_node_devices_get(agent->env.devices, i, &d);
		say_device(r, i, &d);
	}
}

static void say_host(struct ptc_agent *agent, const char *uuid, Ptc__V1__RoomReply *r)
{
	struct ptc_store_stats s;

	ptc_store_stats(agent->env.store, &s);
	/* 0 would be that it is not known; a group at its limit has nothing left */
	if (ptc_machine_memory())
		r->memory_bytes = ptc_fault("agent.room") ? 1 : PTC_MAX(ptc_machine_memory_available(), UINT64_C(1));
	if (s.in_memory)
		r->store_bytes = s.ceiling - PTC_MIN(s.ceiling, s.file_bytes);
	/* of this job only: it takes others' chunks only once the ceiling is reached */
	r->free_bytes = ptc_store_job_free_bytes(agent->env.store, uuid);
}

int ptc_agent_on_room(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct room *r = ptc_calloc(1, sizeof *r);
	ProtobufCMessage *msg = NULL;
	const Ptc__V1__RoomRequest *req;
	int rc = r ? ptc_agent_request(call, &ptc__v1__room_request__descriptor, &msg, err) : ptc_nomem(err);

	req = (const Ptc__V1__RoomRequest *)msg;
	if (rc == 0)
		rc = ptc_pb_version(req->version, err);
	if (rc == 0) {
		ptc__v1__room_reply__init(&r->reply);
		r->reply.version = PTC_WIRE_VERSION;
		say_host(arg, req->uuid, &r->reply);
		say_devices(arg, r);
		rc = ptc_agent_reply(call, &r->reply.base, err);
	}
	ptc_pb_free(msg);
	ptc_free(r);
	return rc;
}
