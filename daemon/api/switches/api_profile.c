/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's profile: shown to anybody, measured and put in by root. Measuring takes a second for each round of
 * disjoint pairs; one measures at a time in the cluster, for two would halve each other's links. Failure modes: a node
 * that does not answer keeps the links that it had; PTC_ESTATE while another client measures; nothing is stored if the
 * client goes, or this daemon stops, before the end. */
#include "base/alloc.h"
#include "base/check.h"
#include "daemon/api/switches/switches.h"
#include "daemon/cluster/job_events.h"
#include "daemon/planning/links/links.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct up_nodes {
	struct ptc_daemon *d;
	struct ptc_link_node *v;
	size_t n;
	struct ptc_link_node *all; /* also those that are down */
	size_t nall;
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
	u->all = ptc_calloc(all + 1, sizeof *u->all);
	for (uint32_t i = 0; u->v && u->all && i < all; i++) {
		const struct ptc_node *n = ptc_cluster_node(c, i);
		struct ptc_link_node *to = &u->all[u->nall++];

		snprintf(to->name, sizeof to->name, "%s", n->doc.name);
		snprintf(to->address, sizeof to->address, "%s", n->doc.address);
		if (n->up)
			u->v[u->n++] = *to;
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

/* ---- measuring ---- */

struct answer {
	struct ptc_profile_doc doc;
	struct ptc_link_changes changed; /* of a measurement, and failed too */
	struct ptc_links failed;
};

static void answer_done(struct answer *a)
{
	ptc_profile_doc_done(&a->doc);
	ptc_free(a->changed.v);
	ptc_free(a->failed.v);
}

/* Once nobody else measures. */
static int measure_locked(struct ptc_daemon *d, const struct ptc_rpc_call *call, const struct up_nodes *u,
			  struct answer *ret, struct ptc_error *err)
{
	struct ptc_links pairs = { 0 };
	const struct ptc_planning_links_found found = { &pairs, u->all, u->nall };
	int64_t created;
	int rc = ptc_planning_profile_lock(d->controllers.planning, d->config.node, &created, err);

	if (rc)
		return rc;
	rc = ptc_links_measure(d->channels, d->client, call, u->v, u->n, &pairs, &ret->failed, err);
	if (rc == 0 && !pairs.n)
		rc = ptc_error_set(err, PTC_EPEER, "no node could pull from another; see the daemons' logs");
	if (rc == 0)
		rc = ptc_planning_profile_put(d->controllers.planning, NULL, &found, &ret->doc, &ret->changed, err);
	ptc_planning_profile_unlock(d->controllers.planning, created);
	ptc_free(pairs.v);
	return rc;
}

static int measure(struct ptc_daemon *d, struct ptc_rpc_call *call, struct answer *ret, struct ptc_error *err)
{
	static atomic_bool busy;
	struct up_nodes u = { .d = d };
	int rc;

	if (atomic_exchange(&busy, true))
		return ptc_error_set(err, PTC_ESTATE, "another call is measuring links; try again later");
	rc = ptc_api_listed(d, call, err);
	if (rc == 0)
		rc = ptc_loop_call(d->loop, list_up, &u);
	if (rc == 0 && (!u.v || !u.all || !u.jobs))
		rc = ptc_nomem(err);
	if (rc == 0 && u.n < 2)
		rc = ptc_error_set(err, PTC_ENODEVICES, "%zu node is up, and a link is between two; start another node",
				   u.n);
	if (rc == 0)
		rc = measure_locked(d, call, &u, ret, err);
	if (rc == 0)
		tell(&u, &ret->changed);
	ptc_free(u.all);
	ptc_free(u.v);
	ptc_free(u.jobs);
	atomic_store(&busy, false);
	return rc;
}

static int act(struct ptc_daemon *d, struct ptc_rpc_call *call, const Ptc__V1__ProfileRequest *req, struct answer *ret,
	       struct ptc_error *err)
{
	if (strcmp(req->action, "show") == 0)
		return ptc_planning_profile_show(d->controllers.planning, &ret->doc, err);
	if (ptc_api_uid(call) != 0)
		return ptc_error_set(err, PTC_EPERM, "only root may measure links or store a profile");
	if (strcmp(req->action, "measure") == 0)
		return measure(d, call, ret, err);
	if (strcmp(req->action, "set") != 0)
		return ptc_error_set(err, PTC_EINVAL, "action is show, measure or set, not \"%.40s\"", req->action);
	return ptc_planning_profile_put(d->controllers.planning, req->text, NULL, &ret->doc, &ret->changed, err);
}

PTC_API_HANDLER(ptc_api_profile)
{
	struct answer a = { 0 };
	Ptc__V1__ProfileRequest *req;
	char *text = NULL;
	bool measures;
	int rc = ptc_pb_call_recv(call, &ptc__v1__profile_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = act(arg, call, req, &a, err);
	measures = strcmp(req->action, "measure") == 0;
	ptc_pb_free(&req->base);
	if (rc == 0) {
		text = ptc_profile_doc_encode(&a.doc, measures ? &a.changed : NULL, measures ? &a.failed : NULL);
		rc = text ? ptc_api_send_text(call, text, err) : ptc_nomem(err);
	}
	ptc_free(text);
	answer_done(&a);
	return rc;
}
