/* SPDX-License-Identifier: Apache-2.0 */
/* An operator says that a node is lost, or a device is bad, or takes that back. Happy path: a key under
 * /ptc/nodes-lost/ or /ptc/nodes-bad/, which every daemon sees.
 *
 * Failure modes: a node or device nobody knows (PTC_ENOTFOUND), a lost node that is up (PTC_ESTATE), somebody else than
 * root (PTC_EPERM). */
#include "daemon/api/switches/switches.h"
#include "base/check.h"
#include "formats/names.h"

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
		rc = ptc_loop_call(d->loop, look, &k);
	if (rc == 0 && !k.yes)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "node \"%s\" is not known; see `ptcctl nodes`", req->node);
	if (rc == 0)
		rc = ptc_cluster_declare_lost(d->cluster, req->node, !req->undo, err);
	ptc_pb_free(&req->base);
	ack.version = PTC_WIRE_VERSION;
	return rc ? rc : ptc_pb_call_send(call, &ack.base, err);
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
		rc = ptc_loop_call(d->loop, look, &k);
	if (rc == 0 && !k.yes)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "node \"%s\" is not known; see `ptcctl nodes`", req->node);
	if (rc == 0 && !req->undo && req->device >= k.devices) /* a mark outlives the device that it is of */
		rc = ptc_error_set(err, PTC_ENOTFOUND,
				   "node %s has %u devices, from 0 on; see `ptcctl nodes --devices`", req->node,
				   k.devices);
	if (rc == 0)
		rc = ptc_cluster_mark_device(d->cluster, req->node, req->device, !req->undo, err);
	ptc_pb_free(&req->base);
	ack.version = PTC_WIRE_VERSION;
	return rc ? rc : ptc_pb_call_send(call, &ack.base, err);
}
