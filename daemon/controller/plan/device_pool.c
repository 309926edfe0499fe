/* SPDX-License-Identifier: Apache-2.0 */
/* The devices that a plan may use: those of live nodes that are wanted, well, and not another job's.
 *
 * Failure modes: a named node that is not known or is down (PTC_ENOTFOUND), fewer devices than are needed
 * (PTC_ENODEVICES, which names whose the others are), memory. */
#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "daemon/controller/device_claim.h"
#include "daemon/controller/plan/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAKEN_TEXT 400 /* bytes of a message that name others' devices */

static bool wanted(const struct ptc_device_pool *p, const char *name)
{
	if (!p->req)
		return true;
	for (size_t i = 0; i < p->req->nnodes; i++)
		if (strcmp(p->req->nodes[i], name) == 0)
			return true;
	return p->req->nnodes == 0;
}

static uint32_t pool_name(struct ptc_device_pool *p, const char *name)
{
	for (size_t i = 0; i < p->nnames; i++)
		if (strcmp(p->names[i], name) == 0)
			return (uint32_t)i;
	p->names[p->nnames] = ptc_strdup(name);
	if (!p->names[p->nnames])
		p->rc = PTC_ENOMEM;
	return (uint32_t)p->nnames++;
}

static uint32_t pool_rack(struct ptc_device_pool *p, const char *name)
{
	for (size_t i = 0; i < p->nracks; i++)
		if (strcmp(p->racks[i], name) == 0)
			return (uint32_t)i;
	p->racks[p->nracks] = name;
	return (uint32_t)p->nracks++;
}

/* For people who look at a plan; no placement goes by it. */
static void collect_state(struct ptc_device_pool *p, const struct ptc_node *n)
{
	size_t i = 0;

	while (i < p->nall && strcmp(p->names[i], n->doc.name) != 0)
		i++;
	if (i == p->nall) {
		p->names[i] = ptc_strdup(n->doc.name);
		if (!p->names[i]) {
			p->rc = PTC_ENOMEM;
			return;
		}
		p->nall++;
	}
	p->states[i] = !n->up ? "down" : n->drained ? "drained" : "up";
	p->counts[i] = n->doc.devices;
}

static int compare_names(const void *a, const void *b)
{
	const struct ptc_node *const *x = a, *const *y = b;

	return strcmp((*x)->doc.name, (*y)->doc.name);
}

/* The cluster's nodes by name: it has them in the order in which they came, and a plan must not depend on that. NULL:
 * no memory. The caller frees it; its nodes are the loop's. */
static const struct ptc_node **by_name(struct ptc_cluster *c)
{
	uint32_t n = ptc_cluster_nnodes(c);
	const struct ptc_node **nodes = ptc_calloc(n + 1, sizeof *nodes);

	for (uint32_t i = 0; nodes && i < n; i++)
		nodes[i] = ptc_cluster_node(c, i);
	if (nodes)
		qsort(nodes, n, sizeof *nodes, compare_names);
	return nodes;
}

static void note_taken(struct ptc_device_pool *p, const char *node, uint32_t device, const struct ptc_job_view *by)
{
	bool leaves = !by->has_intent && by->record.run != PTC_RUN_LIVE && !by->record.recovery;
	bool same = p->taken.n && strcmp(p->taken.job, by->uuid) == 0;
	char who[PTC_NAME_MAX + 32];

	if (leaves || !p->taken.n)
		p->taken.lack = leaves ? PTC_DEVICES_LEAVING : PTC_DEVICES_TAKEN;
	if (p->taken.text.len < TAKEN_TEXT)
		ptc_buf_printf(&p->taken.text, "%s%s%s%s:%u",
			       same         ? ", "
			       : p->taken.n ? "; "
					    : "",
			       same ? "" : ptc_device_owner(&by->meta, p->v->meta.uid, who, sizeof who),
			       same ? "" : " has ", node, device);
	snprintf(p->taken.job, sizeof p->taken.job, "%s", by->uuid);
	p->taken.n++;
}

static void note_ill(struct ptc_device_pool *p, const char *node, uint32_t device, const char *health)
{
	if (p->ill.len < TAKEN_TEXT)
		ptc_buf_printf(&p->ill, "%s%s:%u is not well (%s)", p->ill.len ? ", " : "", node, device, health);
}

/* The job has left the device, because its ranks were slow there. */
static void note_left(struct ptc_device_pool *p, const char *node, uint32_t device)
{
	if (p->ill.len < TAKEN_TEXT)
		ptc_buf_printf(&p->ill,
			       "%sthe job's ranks were slow on %s:%u (`ptcctl device bad %s:%u --undo` gives it back)",
			       p->ill.len ? ", " : "", node, device, node, device);
}

/* Those of a node that may be used. */
static void collect_devices(struct ptc_device_pool *p, const struct ptc_node *n, uint32_t number)
{
	const struct ptc_job_view *by;
	char health[PTC_HEALTH_BYTES];

	for (uint32_t k = 0; k < n->doc.devices; k++)
		if (p->ranks && !ptc_node_device_well(n, k, health))
			note_ill(p, n->doc.name, k, health);
		else if (!p->ranks ||
			 ptc_cluster_device_free(p->all->cluster, n->doc.name, k, p->v->meta.uuid, p->shares, &by))
			p->devices[p->ndevices++] = (struct ptc_device){ number, k };
		else if (by)
			note_taken(p, n->doc.name, k, by);
		else
			note_left(p, n->doc.name, k);
}

/* Loop thread. */
void ptc_device_pool_collect(void *arg)
{
	struct ptc_device_pool *p = arg;
	struct ptc_cluster *c = p->all->cluster;
	const struct ptc_job_view *j = ptc_cluster_find_uuid(c, p->v->meta.uuid);
	ptc_auto_free const struct ptc_node **nodes = by_name(c);
	size_t most = ptc_cluster_nnodes(c) + p->v->nnodes, devices = 0;

	for (uint32_t i = 0; i < ptc_cluster_nnodes(c); i++)
		devices += ptc_cluster_node(c, i)->doc.devices;
	p->names = ptc_calloc(most, sizeof *p->names);
	p->states = ptc_calloc(most, sizeof *p->states);
	p->counts = ptc_calloc(most, sizeof *p->counts);
	p->usable = ptc_calloc(most, sizeof *p->usable);
	p->ceilings = ptc_calloc(most, sizeof *p->ceilings);
	p->nodes = ptc_calloc(most, sizeof *p->nodes);
	p->rack_of = ptc_calloc(most, sizeof *p->rack_of);
	p->racks = ptc_calloc(most, sizeof *p->racks);
	p->devices = ptc_calloc(devices, sizeof *p->devices);
	if (!nodes || !p->names || !p->states || !p->counts || !p->usable || !p->ceilings || !p->nodes || !p->rack_of ||
	    !p->racks || !p->devices) {
		p->rc = PTC_ENOMEM;
		return;
	}
	for (size_t i = 0; i < p->v->nnodes; i++)
		pool_name(p, p->v->nodes[i]);
	for (uint32_t i = 0; i < ptc_cluster_nnodes(c); i++) {
		const struct ptc_node *n = nodes[i];
		uint32_t number;

		if (!n->up || p->rc)
			continue;
		number = pool_name(p, n->doc.name);
		p->usable[number] = ptc_view_placed(p->v, n->doc.name);
		p->ceilings[number] = n->doc.ceiling_bytes;
		p->nodes[number] = ptc_planning_node_of(&n->doc, 0);
		p->rack_of[number] = pool_rack(p, n->doc.rack);
		if (n->drained || !wanted(p, n->doc.name))
			continue;
		collect_devices(p, n, number);
	}
	if (p->taken.text.len >= TAKEN_TEXT)
		ptc_buf_puts(&p->taken.text, ", ...");
	p->nall = p->nnames;
	for (uint32_t i = 0; i < ptc_cluster_nnodes(c) && !p->rc; i++)
		collect_state(p, nodes[i]);
	ptc_free(p->racks); /* what it points to is the loop's */
	p->racks = NULL;
	if (j && !p->rc)
		p->rc = ptc_copies_doc_copy(&j->copies, &p->copies);
}

void ptc_device_pool_done(struct ptc_device_pool *p)
{
	for (size_t i = 0; i < PTC_MAX(p->nnames, p->nall); i++)
		ptc_free(p->names[i]);
	ptc_free(p->names);
	ptc_free(p->states);
	ptc_free(p->counts);
	ptc_free(p->usable);
	ptc_free(p->ceilings);
	ptc_free(p->nodes);
	ptc_free(p->rack_of);
	ptc_free(p->racks);
	ptc_free(p->devices);
	ptc_copies_doc_done(&p->copies);
	ptc_buf_done(&p->taken.text);
	ptc_buf_done(&p->ill);
}

static int check_known(const struct ptc_device_pool *p, struct ptc_error *err)
{
	for (size_t i = 0; i < p->req->nnodes; i++) {
		bool found = false;

		for (size_t k = 0; k < p->nnames && !found; k++)
			found = strcmp(p->names[k], p->req->nodes[i]) == 0 && p->states[k] &&
				strcmp(p->states[k], "down") != 0;
		if (!found)
			return ptc_error_set(err, PTC_ENOTFOUND,
					     "node \"%s\" is not known or is down; see `ptcctl nodes`",
					     p->req->nodes[i]);
	}
	return 0;
}

int ptc_device_pool_fill(struct ptc_controllers *all, struct ptc_device_pool *p, struct ptc_error *err)
{
	int rc = ptc_loop_call(all->loop, ptc_device_pool_collect, p);

	if (rc == 0 && p->rc)
		rc = ptc_error_set(err, p->rc, "out of memory");
	if (rc == 0)
		rc = check_known(p, err);
	if (rc || !p->req->at_rest || !p->v->from_snapshot)
		return rc;
	if (p->req->has) /* the view's nodes are the pool's first */
		memcpy(p->usable, p->req->has, p->v->nnodes * sizeof *p->usable);
	else
		ptc_lost_ask(all, p->v, p->usable);
	return rc;
}

bool ptc_device_pool_has(const struct ptc_device_pool *p, const bool *used, struct ptc_device want, size_t *ret)
{
	for (size_t i = 0; i < p->ndevices; i++)
		if (!used[i] && p->devices[i].node == want.node && p->devices[i].index == want.index) {
			*ret = i;
			return true;
		}
	return false;
}

/* The devices of nodes that are not left; devices of *ret are the caller's. */
int ptc_device_pool_without(const struct ptc_device_pool *p, const bool *leave, struct ptc_device_pool *ret)
{
	struct ptc_device_pool q = *p;

	q.devices = ptc_calloc(p->ndevices + 1, sizeof *q.devices);
	q.ndevices = 0;
	if (!q.devices)
		return PTC_ENOMEM;
	for (size_t i = 0; i < p->ndevices; i++)
		if (!leave || !leave[p->devices[i].node])
			q.devices[q.ndevices++] = p->devices[i];
	*ret = q;
	return 0;
}

/* The planner does without these. */
int ptc_device_pool_leave(struct ptc_device_pool *p, const bool *leave, struct ptc_error *err)
{
	struct ptc_device_pool left;

	if (ptc_device_pool_without(p, leave, &left) != 0)
		return ptc_nomem(err);
	ptc_free(p->devices);
	p->devices = left.devices;
	p->ndevices = left.ndevices;
	return 0;
}

/* What may be used, and is to be kept together. */
struct ptc_place_opts ptc_device_pool_opts(const struct ptc_device_pool *p)
{
	return (struct ptc_place_opts){ .devices = p->devices,
					.ndevices = p->ndevices,
					.nnodes = (uint32_t)p->nnames,
					.usable = p->usable,
					.racks = p->nracks > 1 && !p->node_of_rank ? p->rack_of : NULL,
					.node_of_rank = p->node_of_rank };
}

int ptc_device_pool_too_few(const struct ptc_device_pool *p, uint32_t world, struct ptc_error *err)
{
	const char *ill = p->ill.data ? p->ill.data : "", *then = p->ill.data ? "; " : "";

	if (!p->taken.n)
		return ptc_error_set(err, PTC_ENODEVICES,
				     "%u devices are needed, %zu are known, up and not drained; %s%sadd nodes first "
				     "(`ptcctl nodes`)",
				     world, p->ndevices, ill, then);
	return ptc_error_set(err, PTC_ENODEVICES,
			     "%u devices are needed, free: %zu; %s; %s%sstop or resize another job, add nodes, or let "
			     "jobs share (`share_devices: true` in each job.yaml)",
			     world, p->ndevices, p->taken.text.data ? p->taken.text.data : "other jobs have the others",
			     ill, then);
}

/* In the order of the pool's nodes. */
int ptc_device_pool_shape(const struct ptc_device_pool *p, struct ptc_planning_shape *ret)
{
	ret->nodes = ptc_calloc(p->nnames + 1, sizeof *ret->nodes);
	if (!ret->nodes)
		return PTC_ENOMEM;
	ret->nnodes = p->nnames;
	for (size_t i = 0; i < p->nnames; i++) {
		ret->nodes[i] = p->nodes[i];
		snprintf(ret->nodes[i].name, sizeof ret->nodes[i].name, "%s", p->names[i]);
	}
	for (size_t i = 0; i < p->ndevices; i++)
		ret->nodes[p->devices[i].node].devices++;
	ptc_planning_shape_sum(ret);
	return 0;
}
