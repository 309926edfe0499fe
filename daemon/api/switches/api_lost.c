/* SPDX-License-Identifier: Apache-2.0 */
/* An operator says that a node is lost, or a device is bad, or takes that back. Happy path: a key under
 * /ptc/nodes-lost/ or /ptc/nodes-bad/, which every daemon sees.
 *
 * A device that is good again is also given back to jobs that have left it, because their ranks were slow there.
 *
 * Failure modes: a node or device nobody knows (PTC_ENOTFOUND), a lost node that is up (PTC_ESTATE), somebody else than
 * root (PTC_EPERM). */
#include "daemon/api/switches/switches.h"
#include "base/alloc.h"
#include "base/check.h"
#include "daemon/cluster/job_events.h"
#include "formats/names.h"

#include <stdio.h>
#include <string.h>

struct known {
	struct ptc_daemon *d;
	const char *node;
	bool yes;
	uint32_t devices;
};

static void look(void *arg)
{
	struct known *k = arg;
	uint32_t i;

	k->yes = ptc_cluster_find_node(k->d->cluster, k->node, &i);
	k->devices = k->yes ? ptc_cluster_node(k->d->cluster, i)->doc.devices : 0;
}

PTC_API_HANDLER(ptc_api_node_lost)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__Ack ack = PTC__V1__ACK__INIT;
	struct known k = { .d = d };
	Ptc__V1__NodeLostRequest *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__node_lost_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	k.node = req->node;
	rc = ptc_name_check_job(req->node, err);
	if (rc == 0 && ptc_api_uid(call) != 0)
		rc = ptc_error_set(err, PTC_EPERM, "only root may declare a node lost");
	if (rc == 0)
		rc = ptc_api_listed(d, call, err);
	if (rc == 0)
		rc = ptc_loop_call(d->loop, look, &k);
	if (rc == 0 && !k.yes)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "node \"%s\" is not known; see `ptcctl nodes`", req->node);
	if (rc == 0)
		rc = ptc_cluster_declare_lost(d->cluster, req->node, !req->undo, err);
	ptc_pb_free(&req->base);
	ack.version = PTC_WIRE_VERSION;
	return rc ? rc : ptc_pb_call_send(call, &ack.base, err);
}

struct slow_there {
	struct ptc_daemon *d;
	const struct ptc_slow_device *device;
	char (*uuids)[PTC_UUID_TEXT]; /* of jobs that have left the device */
	size_t n;
	bool failed;
};

static void find_slow(void *arg)
{
	struct slow_there *s = arg;

	for (size_t i = 0; i < ptc_cluster_njobs(s->d->cluster) && !s->failed; i++) {
		const struct ptc_job_view *j = ptc_cluster_job(s->d->cluster, i);

		if (!ptc_slow_device_find(&j->slow, s->device->node, s->device->device, 0))
			continue;
		s->failed = !PTC_MORE(s->uuids, s->n);
		if (!s->failed)
			memcpy(s->uuids[s->n++], j->uuid, PTC_UUID_TEXT);
	}
}

static int give_back(struct ptc_daemon *d, const char *node, uint32_t device, struct ptc_error *err)
{
	struct ptc_slow_device at = { .device = device };
	struct slow_there s = { .d = d, .device = &at };
	char key[64 + PTC_SLOW_LEAF_BYTES], leaf[PTC_SLOW_LEAF_BYTES];
	int rc;

	snprintf(at.node, sizeof at.node, "%s", node);
	ptc_slow_device_key(&at, leaf);
	rc = ptc_loop_call(d->loop, find_slow, &s);
	if (rc == 0 && s.failed)
		rc = ptc_nomem(err);
	for (size_t i = 0; rc == 0 && i < s.n; i++) {
		snprintf(key, sizeof key, "/ptc/jobs/%s/%s", s.uuids[i], leaf);
		rc = ptc_etcd_delete(ptc_cluster_etcd(d->cluster), key, false, "etcd.slow", err);
		if (rc == 0)
			ptc_event(d->cluster, s.uuids[i], "straggler_over",
				  "the job may have %s:%u again, which it has left as slow: an operator says so", node,
				  device);
	}
	ptc_free(s.uuids);
	return rc;
}

PTC_API_HANDLER(ptc_api_device_bad)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__Ack ack = PTC__V1__ACK__INIT;
	struct known k = { .d = d };
	Ptc__V1__DeviceBadRequest *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__device_bad_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	k.node = req->node;
	rc = ptc_name_check_job(req->node, err);
	if (rc == 0 && ptc_api_uid(call) != 0)
		rc = ptc_error_set(err, PTC_EPERM, "only root may mark a device");
	if (rc == 0)
		rc = ptc_api_listed(d, call, err);
	if (rc == 0)
		rc = ptc_loop_call(d->loop, look, &k);
	if (rc == 0 && !k.yes)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "node \"%s\" is not known; see `ptcctl nodes`", req->node);
	if (rc == 0 && !req->undo && req->device >= k.devices) /* a mark outlives the device that it is of */
		rc = ptc_error_set(err, PTC_ENOTFOUND,
				   "node %s has %u devices, from 0 on; see `ptcctl nodes --devices`", req->node,
				   k.devices);
	if (rc == 0)
		rc = ptc_cluster_mark_device(d->cluster, req->node, req->device, !req->undo, err);
	if (rc == 0 && req->undo)
		rc = give_back(d, req->node, req->device, err);
	ptc_pb_free(&req->base);
	ack.version = PTC_WIRE_VERSION;
	return rc ? rc : ptc_pb_call_send(call, &ack.base, err);
}
