/* SPDX-License-Identifier: Apache-2.0 */
/* Whether new ranks find memory beside those that train, for `build: ahead`, before any process is started.
 *
 * Happy path: all nodes are asked at once, and the loop hears the answers, while the planner's thread waits. Each says
 * what its ranks of this job have taken at most, and what it has left. A new rank takes what an old one has taken, with
 * the new one's declared bytes in the place of the old one's; or what a rank of that configuration took when it was
 * measured. For the switch the store may take what a node's ranks hold before and after, replicas once, but for the
 * job's free chunks, which have memory already. If each node has room for its new ranks beside that, they build ahead.
 * If one has not, they only import before the old ones end, and build after that.
 *
 * It is an estimate: what a rank takes beside its tensors may change with the configuration. Failure modes: what is not
 * known (a node of an earlier version, or one that does not answer in time, a layout that nobody has declared yet, a
 * driver that names no processes) is said, and does not keep ranks from building ahead. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "daemon/controller/plan/internal.h"
#include "daemon/planning/measured_doc.h"
#include "formats/ranks/rank_rows.h"
#include "reshard/copies/copies.h"
#include "rpc/pb/pb_asking.h"

#include "ptc.pb-c.h"

#include <stdio.h>
#include <string.h>

#define ANSWER_MS 2000 /* for all nodes together: a resize waits for it */
#define SPARE_MS  500  /* for the loop to hear of it */

/* ---- what is known ---- */

static const Ptc__V1__DeviceRoom *device_of(const struct ptc_build_node *n, int64_t device)
{
	return n->room && device >= 0 && (size_t)device < n->room->n_devices ? n->room->devices[device] : NULL;
}

static void took_on_device(const struct ptc_build_node *n, const struct ptc_rank_row *r, struct ptc_build_took *t)
{
	const Ptc__V1__DeviceRoom *d = r->on_device ? device_of(n, r->device) : NULL;
	const int64_t pid = r->program_pid ? r->program_pid : r->pid; /* earlier versions do not say the first */

	t->on_devices |= r->memory.copied_by != NULL;
	for (size_t i = 0; d && i < d->n_pids && i < d->n_used_bytes; i++)
		if (d->pids[i] == pid)
			t->device = PTC_MAX(t->device, d->used_bytes[i]);
}

void ptc_build_took_add(const struct ptc_build_node *n, uint64_t generation, uint64_t incarnation,
			struct ptc_build_took *t)
{
	for (size_t i = 0; i < n->rows.n; i++) {
		const struct ptc_rank_row *r = &n->rows.v[i];

		if (!r->slot || r->generation != generation || r->incarnation != incarnation)
			continue;
		t->host = PTC_MAX(t->host, r->memory_peak);
		took_on_device(n, r, t);
	}
}

/* ---- the decision ---- */

/* Of one new rank. */
struct need {
	uint64_t host, device;
};

static uint64_t exchanged(uint64_t took, uint64_t before, uint64_t after)
{
	return took - PTC_MIN(took, before) + after;
}

static struct need need_of(const struct ptc_build_took *t)
{
	struct need n = { .host = t->on_devices ? t->host : exchanged(t->host, t->declared, t->declares) };

	if (t->measured_host)
		n.host = t->measured_host;
	if (t->on_devices)
		n.device = t->device ? exchanged(t->device, t->declared, t->declares)
				     : PTC_MAX(t->declares, t->measured_device);
	return n;
}

/* False: no rank has said what it takes, nor whether that is memory of the host or of a device. What new ranks need is
 * then no estimate. */
static bool took_known(const struct ptc_build_took *t)
{
	return t->host || t->measured_host || t->on_devices;
}

static double mib(uint64_t bytes)
{
	return (double)bytes / (1 << 20);
}

/* False: it has no room, and b says so. */
static bool fits_host(const struct ptc_build_node *n, const struct need *need, struct ptc_plan_build *b)
{
	uint64_t wanted = n->after * need->host, store;

	if (!n->room || !n->room->memory_bytes)
		return true;
	store = n->store - PTC_MIN(n->store, n->room->free_bytes); /* free chunks have memory already */
	store = PTC_MIN(store, n->room->store_bytes);
	if (wanted + store <= n->room->memory_bytes)
		return true;
	snprintf(b->why, sizeof b->why,
		 "node %s has %.0f MiB of memory left, and its %u new ranks would take about %.0f MiB beside the old "
		 "ones and %.0f MiB in the store",
		 n->name, mib(n->room->memory_bytes), n->after, mib(wanted), mib(store));
	return false;
}

static bool fits_devices(const struct ptc_build_node *n, const struct need *need, const struct ptc_generation_doc *to,
			 struct ptc_plan_build *b)
{
	for (size_t i = 0; n->room && need->device && i < n->room->n_devices; i++) {
		const Ptc__V1__DeviceRoom *d = n->room->devices[i];
		uint64_t wanted = 0;

		for (uint32_t r = 0; r < to->world; r++)
			if (to->rank_device[r] == i && strcmp(to->nodes[to->rank_node[r]], n->name) == 0)
				wanted += need->device;
		if (!d->memory_bytes || wanted <= d->free_bytes)
			continue;
		snprintf(b->why, sizeof b->why,
			 "device %zu of node %s has %.0f MiB of memory left, and its new ranks would take about %.0f "
			 "MiB beside the old ones",
			 i, n->name, mib(d->free_bytes), mib(wanted));
		return false;
	}
	return true;
}

/* Of a device that a new rank gets. NULL: the nodes say what memory each has left. */
static const char *unknown_device(const struct ptc_build_node *nodes, size_t n, const struct ptc_generation_doc *to,
				  char *text, size_t size)
{
	for (uint32_t r = 0; r < to->world; r++) {
		const char *name = to->nodes[to->rank_node[r]];
		const Ptc__V1__DeviceRoom *d = NULL;

		for (size_t i = 0; i < n && !d; i++)
			d = strcmp(nodes[i].name, name) == 0 ? device_of(&nodes[i], to->rank_device[r]) : NULL;
		if (d && d->memory_bytes)
			continue;
		snprintf(text, size, "node %s does not say what memory its device %u has left", name,
			 to->rank_device[r]);
		return text;
	}
	return NULL;
}

/* NULL: enough is known. */
static const char *unknown(const struct ptc_build_node *nodes, size_t n, const struct ptc_build_took *t,
			   const struct ptc_generation_doc *to, char *text, size_t size)
{
	if (!t->declares && !t->measured_host)
		return "what ranks of this configuration hold is not known before they have built once";
	if (!t->host)
		return "what the ranks that train have taken is not known";
	for (size_t i = 0; i < n; i++)
		if (nodes[i].after && (!nodes[i].room || !nodes[i].room->memory_bytes)) {
			snprintf(text, size, "node %s %s", nodes[i].name,
				 nodes[i].silent ? nodes[i].silent : "does not say what memory it has left");
			return text;
		}
	if (t->on_devices && !t->device && !t->measured_device)
		return "what the ranks that train use of their devices is not known";
	return t->on_devices ? unknown_device(nodes, n, to, text, size) : NULL;
}

void ptc_build_decide(const struct ptc_build_node *nodes, size_t n, const struct ptc_build_took *took,
		      const struct ptc_generation_doc *to, struct ptc_plan_build *ret)
{
	const struct need need = need_of(took);
	char text[160];
	const char *lacks = unknown(nodes, n, took, to, text, sizeof text);

	*ret = (struct ptc_plan_build){ .level = "memory" };
	for (size_t i = 0; took_known(took) && i < n; i++) {
		if (nodes[i].after && fits_host(&nodes[i], &need, ret) && fits_devices(&nodes[i], &need, to, ret))
			continue;
		if (!nodes[i].after)
			continue;
		ret->level = "imports";
		return;
	}
	if (lacks)
		snprintf(ret->why, sizeof ret->why, "room was not checked: %s", lacks);
	else if (need.device)
		snprintf(ret->why, sizeof ret->why,
			 "there is room for what each new rank takes: about %.0f MiB, and %.0f MiB of a device",
			 mib(need.host), mib(need.device));
	else
		snprintf(ret->why, sizeof ret->why, "there is room for what each new rank takes: about %.0f MiB",
			 mib(need.host));
}

/* ---- questions ---- */

struct asking {
	struct ptc_controllers *all;
	const char *uuid;
	struct ptc_build_node *nodes;
	size_t n;
	struct ptc_pb_asking *answers; /* a question's number: twice the node's, and 1 more for Peer/Ranks */
};

static void ask_node(struct asking *a, size_t node)
{
	Ptc__V1__RoomRequest room = PTC__V1__ROOM_REQUEST__INIT;
	Ptc__V1__JobRequest job = PTC__V1__JOB_REQUEST__INIT;
	const struct ptc_build_node *n = &a->nodes[node];
	struct ptc_rpc_channel *channel;

	room.version = job.version = PTC_WIRE_VERSION;
	room.uuid = job.job = (char *)(uintptr_t)a->uuid; /* packing only reads */
	if (ptc_channels_get(a->all->channels, n->name, n->address, false, 0, &channel, NULL) != 0)
		return;
	(void)ptc_pb_ask(a->answers, channel, "/ptc.v1.Peer/Room", &room.base, ANSWER_MS, 2 * node);
	if (n->before)
		(void)ptc_pb_ask(a->answers, channel, "/ptc.v1.Peer/Ranks", &job.base, ANSWER_MS, 2 * node + 1);
}

/* Loop thread. */
static void ask_all(void *arg)
{
	struct asking *a = arg;
	uint32_t at;

	for (size_t i = 0; i < a->n; i++) {
		struct ptc_build_node *n = &a->nodes[i];

		if (!ptc_cluster_find_node(a->all->cluster, n->name, &at) || !ptc_cluster_node(a->all->cluster, at)->up)
			continue;
		snprintf(n->address, sizeof n->address, "%s", ptc_cluster_node(a->all->cluster, at)->doc.address);
		ask_node(a, i);
	}
}

static const char *no_room(const struct ptc_pb_answer *a)
{
	if (!a->there || a->status == PTC_ETIMEOUT)
		return "did not answer in time";
	return a->status == PTC_EPEER || a->status == PTC_ECANCELED ? "could not be asked" : NULL;
}

static void take(const struct ptc_pb_answer *a, struct ptc_build_node *n)
{
	const bool said = a->there && a->status == 0;
	ProtobufCMessage *reply = NULL;

	if (a->of % 2 == 0) {
		n->silent = no_room(a);
		if (said && ptc_pb_decode(&ptc__v1__room_reply__descriptor, a->data, a->len, &reply, NULL) == 0)
			n->room = (Ptc__V1__RoomReply *)reply;
		return;
	}
	if (said && ptc_pb_decode(&ptc__v1__document__descriptor, a->data, a->len, &reply, NULL) == 0)
		(void)ptc_rank_rows_decode(((Ptc__V1__Document *)reply)->json, &n->rows, NULL);
	ptc_pb_free(reply);
}

static int ask(struct ptc_controllers *all, const char *uuid, struct ptc_build_node *nodes, size_t n,
	       struct ptc_error *err)
{
	struct asking a = { all, uuid, nodes, n, ptc_pb_asking_new(all->client, 2 * n) };
	const struct ptc_pb_answer *answers;
	size_t nanswers;

	if (!a.answers)
		return ptc_nomem(err);
	for (size_t i = 0; i < n; i++)
		nodes[i].silent = "could not be asked";
	(void)ptc_loop_call(all->loop, ask_all, &a); /* the daemon stops: nobody is asked */
	answers = ptc_pb_asking_wait(a.answers, ANSWER_MS + SPARE_MS, all->stopping, &nanswers);
	for (size_t i = 0; i < nanswers; i++)
		take(&answers[i], &nodes[answers[i].of / 2]);
	ptc_pb_asking_free(a.answers);
	return 0;
}

/* The ranks of each node, before and after. */
static struct ptc_build_node *list_nodes(const struct ptc_view *v, const struct ptc_generation_doc *to, size_t *ret_n)
{
	struct ptc_build_node *nodes = ptc_calloc(v->from.nnodes + to->nnodes + 1, sizeof *nodes);
	size_t n = 0;

	for (size_t i = 0; nodes && i < v->from.nnodes; i++)
		nodes[n++].name = v->from.nodes[i];
	for (uint32_t r = 0; nodes && r < v->from.world; r++)
		nodes[v->from.rank_node[r]].before++;
	for (size_t i = 0; nodes && i < to->nnodes; i++) {
		size_t at = 0;

		while (at < n && strcmp(nodes[at].name, to->nodes[i]) != 0)
			at++;
		if (at == n)
			nodes[n++].name = to->nodes[i];
		for (uint32_t r = 0; r < to->world; r++)
			nodes[at].after += to->rank_node[r] == i;
	}
	*ret_n = n;
	return nodes;
}

/* What a rank took when the new configuration ran here before. */
static void find_measured(struct ptc_controllers *all, const char *uuid, const char *config, struct ptc_build_took *t)
{
	ptc_auto_free struct ptc_measured_doc *d = ptc_calloc(1, sizeof *d);

	if (!d || !all->planning)
		return;
	ptc_free(ptc_planning_measured(all->planning, uuid, d));
	for (size_t i = 0; i < d->nrows; i++)
		if (strcmp(d->rows[i].config, config) == 0) {
			t->measured_host = (uint64_t)d->rows[i].host_bytes;
			t->measured_device = (uint64_t)d->rows[i].peak_bytes;
		}
}

static uint64_t most_bytes(const struct ptc_layout *l)
{
	int64_t most = 0;

	return l && ptc_layout_rank_bytes(l, &most, NULL) == 0 ? (uint64_t)most : 0;
}

/* Adds what each node's ranks hold under the layout; replicas on one node count once. l NULL: it is not known. */
static int add_held(const struct ptc_device_pool *p, const struct ptc_layout *l, uint32_t world,
		    const struct ptc_allocation *at, struct ptc_build_node *nodes, size_t n, struct ptc_error *err)
{
	ptc_auto_free int64_t *held = ptc_calloc(p->nnames + 1, sizeof *held);
	int rc = held ? 0 : ptc_nomem(err);

	if (rc == 0 && l)
		rc = ptc_copies_held(l, world, at, (uint32_t)p->nnames, held, err);
	for (size_t i = 0; rc == 0 && i < p->nnames; i++)
		for (size_t k = 0; held[i] && k < n; k++)
			if (strcmp(nodes[k].name, p->names[i]) == 0)
				nodes[k].store += (uint64_t)held[i];
	return rc;
}

void ptc_plan_build_room(const struct ptc_device_pool *p, const struct ptc_generation_doc *to,
			 const struct ptc_plan_layouts *l, struct ptc_plan_build *ret)
{
	struct ptc_controllers *all = p->all;
	const struct ptc_view *v = p->v;
	struct ptc_build_took took = { .declared = most_bytes(l->from), .declares = most_bytes(l->to) };
	struct ptc_error err = PTC_ERROR_INIT;
	size_t n;
	struct ptc_build_node *nodes = list_nodes(v, to, &n);
	int rc = nodes ? 0 : ptc_nomem(&err);

	if (rc == 0)
		rc = add_held(p, l->from, v->from.world, &l->copied_at, nodes, n, &err);
	if (rc == 0)
		rc = add_held(p, l->to, to->world, &l->to_alloc, nodes, n, &err);
	if (rc == 0)
		rc = ask(all, v->meta.uuid, nodes, n, &err);
	if (rc) {
		*ret = (struct ptc_plan_build){ .level = "memory" };
		snprintf(ret->why, sizeof ret->why, "room was not checked: %.200s", err.text);
		ptc_free(nodes);
		return;
	}
	for (size_t i = 0; i < n; i++)
		ptc_build_took_add(&nodes[i], v->from_generation, v->from_incarnation, &took);
	find_measured(all, v->meta.uuid, to->config, &took);
	ptc_build_decide(nodes, n, &took, to, ret);
	for (size_t i = 0; i < n; i++) {
		ptc_rank_rows_done(&nodes[i].rows);
		if (nodes[i].room)
			ptc_pb_free(&nodes[i].room->base);
	}
	ptc_free(nodes);
}
