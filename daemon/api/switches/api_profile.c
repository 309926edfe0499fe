/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's profile: shown to anybody, measured and put in by root. Measuring takes a second for each round of
 * disjoint pairs; one measures at a time here. Failure modes: a node that does not answer leaves its pairs out;
 * PTC_ESTATE while another client measures. */
#include "base/alloc.h"
#include "base/check.h"
#include "daemon/api/switches/switches.h"
#include "daemon/cluster/job_events.h"
#include "daemon/planning/links/links.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define REPLAN_MS 60000

struct up_nodes {
	struct ptc_daemon *d;
	struct ptc_link_node *v;
	size_t n;
	char (*jobs)[PTC_UUID_TEXT]; /* those that exist */
	size_t njobs;
};

static void list_up(void *arg)
{
	struct up_nodes *u = arg;
	struct ptc_cluster *c = u->d->cluster;
	size_t all = ptc_cluster_nnodes(c), jobs = ptc_cluster_njobs(c);

	u->v = ptc_calloc(all + 1, sizeof *u->v);
	u->jobs = ptc_calloc(jobs + 1, sizeof *u->jobs);
	for (uint32_t i = 0; u->v && i < all; i++) {
		const struct ptc_node *n = ptc_cluster_node(c, i);

		if (!n->up)
			continue;
		snprintf(u->v[u->n].name, sizeof u->v->name, "%s", n->doc.name);
		snprintf(u->v[u->n++].address, sizeof u->v->address, "%s", n->doc.address);
	}
	for (size_t i = 0; u->jobs && i < jobs; i++)
		if (ptc_cluster_job(c, i)->has_record)
			memcpy(u->jobs[u->njobs++], ptc_cluster_job(c, i)->uuid, sizeof u->jobs[0]);
}

/* One line in each job's log, of the change that is largest. */
static void tell(const struct up_nodes *u, const struct ptc_link_changes *changed)
{
	const struct ptc_link_change *worst = NULL;
	double most = 0;

	for (size_t i = 0; i < changed->n; i++) {
		const struct ptc_link_change *c = &changed->v[i];
		double times = PTC_MAX(c->was / c->is, c->is / c->was);

		if (times <= most)
			continue;
		most = times;
		worst = c;
	}
	for (size_t i = 0; worst && i < u->njobs; i++)
		ptc_event(u->d->cluster, u->jobs[i], "links",
			  "%zu links have changed, most of all from %s to %s: %.3g GB/s, it was %.3g GB/s; `ptcctl "
			  "advise` "
			  "says what that makes of the job",
			  changed->n, worst->from, worst->to, worst->is / 1e9, worst->was / 1e9);
}

/* ---- replan ---- */

static bool wants_replan(struct ptc_daemon *d, const struct ptc_target *t)
{
	const struct ptc_job_desc *desc;
	void *ref;
	bool yes;

	if (!t->has_record || t->record.run != PTC_RUN_LIVE ||
	    ptc_specs_get(d->docs.specs, t->meta.uuid, t->meta.spec_hash, &desc, &ref, NULL) != 0)
		return false;
	yes = desc->replan_on_links;
	ptc_specs_release(ref);
	return yes;
}

/* Asks the job's controller for a resize to as many devices as the job has; the first answer says whether it is made.
 */
static int ask_controller(struct ptc_daemon *d, const struct ptc_target *t, uint32_t gpus, struct ptc_error *err)
{
	Ptc__V1__ResizeRequest req = PTC__V1__RESIZE_REQUEST__INIT;
	const struct ptc_rpc_meta root = { "ptc-uid", "0" };
	struct ptc_rpc_channel *channel;
	struct ptc_rpc_message *m = NULL;
	struct ptc_rpc_stream *s = NULL;
	void *data = NULL;
	size_t len = 0;
	int rc = ptc_channels_get(d->channels, t->controller, t->address, false, 0, &channel, err);

	req.version = PTC_WIRE_VERSION;
	req.job = (char *)(uintptr_t)t->meta.uuid; /* packing only reads */
	req.gpus = gpus;
	if (rc == 0)
		rc = ptc_pb_encode(&req.base, &data, &len, err);
	if (rc == 0)
		rc = ptc_rpc_stream_open(channel, "/ptc.v1.Control/Resize", REPLAN_MS, &root, 1, &s, err);
	if (rc == 0)
		rc = ptc_rpc_stream_send(s, &(struct ptc_rpc_part){ .data = data, .len = len }, 1, err);
	if (rc == 0)
		rc = ptc_rpc_stream_half_close(s, err);
	if (rc == 0)
		rc = ptc_rpc_stream_recv(s, &m, err);
	if (rc == 0)
		ptc_rpc_message_done(m);
	ptc_rpc_stream_free(s); /* the switch is the controller's */
	ptc_free(data);
	return rc;
}

static void replan(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *uuid)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_target t;
	struct ptc_view v;
	uint32_t world;

	if (ptc_api_find(d, call, uuid, &t, NULL) != 0 || !wants_replan(d, &t) ||
	    ptc_api_view(d, &t, false, true, &v, NULL) != 0)
		return;
	world = v.from.world;
	ptc_view_done(&v);
	if (ask_controller(d, &t, world, &err) != 0)
		ptc_event(d->cluster, uuid, "links", "no new plan: %s", err.text);
}

static int measure(struct ptc_daemon *d, struct ptc_rpc_call *call, struct ptc_profile_doc *ret,
		   struct ptc_link_changes *ret_changed, struct ptc_error *err)
{
	static atomic_bool busy;
	struct up_nodes u = { .d = d };
	struct ptc_links pairs = { 0 };
	int rc;

	if (atomic_exchange(&busy, true))
		return ptc_error_set(err, PTC_ESTATE, "another call is measuring links; try again later");
	rc = ptc_loop_call(d->loop, list_up, &u);
	if (rc == 0 && (!u.v || !u.jobs))
		rc = ptc_nomem(err);
	if (rc == 0 && u.n < 2)
		rc = ptc_error_set(err, PTC_ENODEVICES, "%zu node is up; a link needs two", u.n);
	if (rc == 0)
		rc = ptc_links_measure(d->channels, u.v, u.n, &pairs, err);
	if (rc == 0 && !pairs.n)
		rc = ptc_error_set(err, PTC_EPEER, "no node could pull from another; see the daemons' logs");
	if (rc == 0)
		rc = ptc_planning_profile_put(d->controllers.planning, NULL, &pairs, ret, ret_changed, err);
	if (rc == 0)
		tell(&u, ret_changed);
	for (size_t i = 0; rc == 0 && ret_changed->n && i < u.njobs; i++)
		replan(d, call, u.jobs[i]);
	ptc_free(pairs.v);
	ptc_free(u.v);
	ptc_free(u.jobs);
	atomic_store(&busy, false);
	return rc;
}

static int act(struct ptc_daemon *d, struct ptc_rpc_call *call, const Ptc__V1__ProfileRequest *req,
	       struct ptc_profile_doc *ret, struct ptc_link_changes *ret_changed, struct ptc_error *err)
{
	if (strcmp(req->action, "show") == 0)
		return ptc_planning_profile_show(d->controllers.planning, ret, err);
	if (ptc_api_uid(call) != 0)
		return ptc_error_set(err, PTC_EPERM, "only root may measure links or store a profile");
	if (strcmp(req->action, "measure") == 0)
		return measure(d, call, ret, ret_changed, err);
	if (strcmp(req->action, "set") != 0)
		return ptc_error_set(err, PTC_EINVAL, "action is show, measure or set, not \"%.40s\"", req->action);
	return ptc_planning_profile_put(d->controllers.planning, req->text, NULL, ret, ret_changed, err);
}

PTC_API_HANDLER(ptc_api_profile)
{
	struct ptc_link_changes changed = { 0 };
	struct ptc_profile_doc doc = { 0 };
	Ptc__V1__ProfileRequest *req;
	char *text = NULL;
	bool measures;
	int rc = ptc_pb_call_recv(call, &ptc__v1__profile_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = act(arg, call, req, &doc, &changed, err);
	measures = strcmp(req->action, "measure") == 0;
	ptc_pb_free(&req->base);
	if (rc)
		return rc;
	text = ptc_profile_doc_encode(&doc, measures ? &changed : NULL);
	rc = text ? ptc_api_send_text(call, text, err) : ptc_nomem(err);
	ptc_free(text);
	ptc_free(changed.v);
	ptc_profile_doc_done(&doc);
	return rc;
}
