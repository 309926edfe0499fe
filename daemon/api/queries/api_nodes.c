/* SPDX-License-Identifier: Apache-2.0 */
/* The call behind `ptcctl nodes`: the nodes of the cluster. Happy path: the mirror says which nodes there are, and
 * each node that is up reports its state. Failure modes: if a node does not answer within a second, the list lacks
 * what only this node knows. */
#include "daemon/api/queries/node_doc.h"
#include "daemon/api/queries/queries.h"

#include "base/alloc.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

#define STAT_TIMEOUT_MS 1000
#define S_NS            INT64_C(1000000000)

struct node_list {
	struct ptc_daemon *d;
	uid_t uid; /* of the caller */
	struct ptc_node_listed *v;
	size_t n;
	bool failed; /* out of memory */
};

/* The name of another user's job is not said; 0 is root. */
static bool may_name(const struct node_list *l, int64_t owner)
{
	return l->uid == 0 || (int64_t)l->uid == owner;
}

/* The node's devices that jobs have. */
static bool find_given(const struct node_list *l, struct ptc_node_listed *to)
{
	size_t n;
	const struct ptc_device_given *g = ptc_devices_of_node(ptc_cluster_devices(l->d->cluster), to->doc.name, &n);

	for (size_t i = 0; i < n; i++) {
		const struct ptc_job_view *j = ptc_cluster_find_uuid(l->d->cluster, g[i].uuid);
		struct ptc_node_owner job = { 0 };

		if (!j || !j->has_meta)
			continue;
		job.uid = (int64_t)j->meta.uid;
		if (may_name(l, job.uid))
			snprintf(job.job, sizeof job.job, "%s", j->meta.name);
		if (ptc_node_given_add(to, g[i].device, &job) != 0)
			return false;
	}
	return true;
}

/* How many nobody has, of those that are well. */
static uint32_t free_devices(const struct ptc_node *n, const struct ptc_node_listed *of)
{
	uint32_t free = 0;

	for (uint32_t k = 0; k < n->doc.devices; k++) {
		bool has = false;

		for (size_t i = 0; i < of->ngiven; i++)
			has |= of->given[i].device == k;
		free += !has && ptc_node_device_well(n, k, NULL);
	}
	return free;
}

/* As struct ptc_node_doc has it, with what operators say. */
static void unhealthy_text(const struct ptc_node *n, char ret[PTC_UNHEALTHY_BYTES])
{
	char health[PTC_HEALTH_BYTES];
	size_t len = 0;

	ret[0] = '\0';
	for (uint32_t k = 0; k < n->doc.devices && len + 24 < PTC_UNHEALTHY_BYTES; k++)
		if (!ptc_node_device_well(n, k, health))
			len += (size_t)snprintf(ret + len, PTC_UNHEALTHY_BYTES - len, "%s%u:%s", len ? "," : "", k,
						health);
}

static void list_on_loop(void *arg)
{
	struct node_list *l = arg;

	for (uint32_t i = 0; i < ptc_cluster_nnodes(l->d->cluster) && !l->failed; i++) {
		const struct ptc_node *n = ptc_cluster_node(l->d->cluster, i);
		struct ptc_node_listed *to;

		if (!ptc_node_listed(n))
			continue;
		if (!PTC_MORE(l->v, l->n)) {
			l->failed = true;
			return;
		}
		to = &l->v[l->n++];
		*to = (struct ptc_node_listed){ .doc = n->doc,
						.up = n->up,
						.drained = n->drained,
						.lost = n->lost,
						.unreachable = n->unreachable };
		if (n->up)
			to->quarantined_s = (ptc_quarantine_left(&n->quarantine, ptc_sys_now_ns()) + S_NS - 1) / S_NS;
		l->failed = !find_given(l, to);
		to->devices_free = free_devices(n, to);
		unhealthy_text(n, to->unhealthy);
	}
}

/* Asks the node itself for what only it knows. */
static void ask_stat(const struct node_list *l, struct ptc_node_listed *n)
{
	Ptc__V1__ListRequest req = PTC__V1__LIST_REQUEST__INIT;
	struct ptc_rpc_channel *channel;
	ProtobufCMessage *reply = NULL;

	req.version = PTC_WIRE_VERSION;
	if (!n->up || ptc_channels_get(l->d->channels, n->doc.name, n->doc.address, false, 0, &channel, NULL) != 0 ||
	    ptc_pb_unary(channel, "/ptc.v1.Peer/Stat", &req.base, STAT_TIMEOUT_MS, NULL, 0,
			 &ptc__v1__document__descriptor, &reply, NULL) != 0)
		return;
	n->answered = ptc_node_stat_decode(((Ptc__V1__Document *)reply)->json, &n->stat, NULL) == 0;
	ptc_pb_free(reply);
	for (size_t i = 0; i < n->stat.ndevices; i++)
		for (size_t k = 0; k < n->stat.devices[i].nranks; k++) {
			struct ptc_node_process *p = &n->stat.devices[i].ranks[k];

			if (!may_name(l, p->has_uid ? p->uid : -1))
				p->job[0] = '\0';
		}
}

static json_t *list_json(struct node_list *l)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < l->n; i++) {
		ask_stat(l, &l->v[i]);
		json_array_append_new(rows, ptc_node_listed_json(&l->v[i]));
	}
	return json_pack("{s:i, s:o}", "version", 1, "nodes", rows);
}

PTC_API_HANDLER(ptc_api_nodes)
{
	struct ptc_daemon *d = arg;
	struct node_list l = { .d = d, .uid = ptc_api_uid(call) };
	int rc = ptc_api_list(d, call, list_on_loop, &l, err);

	if (rc == 0)
		rc = l.failed ? ptc_nomem(err) : ptc_api_send_json(call, ptc_api_dated(d, list_json(&l)), err);
	for (size_t i = 0; i < l.n; i++)
		ptc_node_listed_done(&l.v[i]);
	ptc_free(l.v);
	return rc;
}
