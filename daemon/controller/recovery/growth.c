/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a job that trains larger when devices join (`on_join: grow`): a node has joined or come back, or offers more,
 * or another job has given some back.
 *
 * Happy path: a node offers more devices than the last decision about growth took into account. When nothing more has
 * joined for the waiting time, a switch to as many devices as there are is planned, at most max_gpus. If the switch
 * pays, it is made. The devices that this decision took into account ("weighed") are then kept in etcd, so that any
 * controller goes on from there.
 *
 * Failure modes:
 * - No switch pays, or none is possible: an event says why, and the same devices are not weighed again.
 * - The switch aborts: it is tried again after ever longer waits, TRIES_MAX times; after that, once more each time
 *   nodes change. An event and status say so.
 * - A node is lost: recovery.c goes first, and nothing is weighed meanwhile.
 * - A node comes and goes: it offers nothing while it is quarantined, and an event says so.
 * - The controller dies before it has decided: the next one weighs the same devices.
 * - etcd is unreachable or full: asked again after 1 s, 2 s, 4 s, then each 8 s.
 *
 * Loop thread. */
#include "daemon/cluster/devices/weighed_devices.h"
#include "daemon/controller/internal.h"
#include "daemon/controller/recovery/straggler_drain.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/number/fence.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MS        INT64_C(1000000)
#define WAITS_MAX 6 /* waiting times: nodes that come and go do not put it off for longer */
#define COUNT_NS  (1000 * MS)
#define RETRY_NS  (10000 * MS)
#define TRIES_MAX 4
#define ETCD_NS   (1000 * MS)
#define ETCD_LOG2 3
#define PAYS      2 /* times over within the horizon: what is predicted is not exact, and devices may leave again */
#define KEY_MAX   64

static void key_of(const struct ptc_controller *ctl, char key[KEY_MAX])
{
	snprintf(key, KEY_MAX, "/ptc/jobs/%s/weighed", ctl->uuid);
}

/* ---- what is there ----------------------------------------------------------------- */

/* Of those that are well. */
static uint32_t devices_of(const struct ptc_node *n)
{
	uint32_t devices = 0;

	for (uint32_t k = 0; n->up && !n->drained && k < n->doc.devices; k++)
		devices += ptc_node_device_well(n, k, NULL);
	return devices;
}

/* Those of a node that the job has, or may have: nobody else has them, and it has not left them as slow. A device that
 * was left is offered again only when it has been given back: its time may be over while its ranks still leave it. */
static uint32_t free_of(const struct ptc_controller *ctl, const struct ptc_node *n)
{
	struct ptc_cluster *c = ctl->all->cluster;
	const struct ptc_job_view *job = ptc_cluster_find_uuid(c, ctl->uuid);
	uint32_t well = devices_of(n), devices = 0;

	for (uint32_t k = 0; well && k < n->doc.devices; k++)
		devices += ptc_node_device_well(n, k, NULL) &&
			   !(job && ptc_slow_device_find(&job->slow, n->doc.name, k, INT64_MIN)) &&
			   ptc_cluster_device_free(c, n->doc.name, k, ctl->uuid, ctl->recovery.shares, NULL);
	return devices;
}

/* Nodes are only added to the cluster. */
static uint32_t *more(uint32_t *v, size_t was, size_t n)
{
	v = ptc_reallocarray(v, n, sizeof *v);
	ptc_require(v);
	memset(v + was, 0, (n - was) * sizeof *v);
	return v;
}

static void make_room(struct ptc_controller *ctl)
{
	struct ptc_growth *g = &ctl->recovery.growth;
	size_t n = ptc_cluster_nnodes(ctl->all->cluster);

	if (n <= g->nseen)
		return;
	g->offers = more(g->offers, g->nseen, n);
	g->seen = more(g->seen, g->nseen, n);
	g->planned = more(g->planned, g->nseen, n);
	g->quarantined = more(g->quarantined, g->nseen, n);
	g->nseen = n;
}

/* Devices of each node that the job has, for ptc_free. */
static uint32_t *own_devices(const struct ptc_controller *ctl)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	size_t nseen = ctl->recovery.growth.nseen;
	uint32_t *own = ptc_calloc(nseen + 1, sizeof *own), *ranks = ptc_calloc(g->nnodes + 1, sizeof *ranks), at;

	ptc_require(own && ranks);
	for (uint32_t r = 0; r < g->world; r++)
		ranks[g->rank_node[r]]++;
	for (size_t i = 0; i < g->nnodes; i++)
		if (ptc_cluster_find_node(ctl->all->cluster, g->nodes[i], &at) && at < nseen)
			own[at] = ranks[i];
	ptc_free(ranks);
	return own;
}

/* A switch is under way after which the job may have other devices. */
static bool moves(const struct ptc_controller *ctl)
{
	return ctl->ahead || (!ptc_controller_idle(ctl) && ctl->intent.kind != PTC_SWITCH_SNAPSHOT);
}

/* Once for each loss. */
static void tell_quarantined(struct ptc_controller *ctl)
{
	struct ptc_growth *g = &ctl->recovery.growth;
	int64_t now = ptc_sys_now_ns();

	for (uint32_t i = 0; i < g->nseen; i++) {
		const struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, i);
		int64_t left = ptc_quarantine_left(&n->quarantine, now);

		if (!left)
			g->quarantined[i] = 0;
		if (!left || !n->up || n->quarantine.losses == g->quarantined[i] ||
		    ptc_controller_ranks_on(ctl, n->doc.name))
			continue;
		g->quarantined[i] = n->quarantine.losses;
		ptc_event(ctl->all->cluster, ctl->uuid, "quarantined",
			  "node %s is back, and was lost %u times: the job does not move there by itself for %.0f s",
			  n->doc.name, n->quarantine.losses, (double)left / 1e9);
	}
}

/* What nodes offer is counted anew when a node or somebody's devices have changed, or the job's ranks have moved; that
 * a job was deleted, or that a quarantine has ended, is seen with the next second. What the job has does not join, but
 * what its ranks are leaving does: it may be the job's to have again before they have left. */
static void count_offers(struct ptc_controller *ctl)
{
	struct ptc_growth *g = &ctl->recovery.growth;
	struct ptc_cluster *c = ctl->all->cluster;
	uint64_t changes = ptc_cluster_epoch(c) + ptc_cluster_device_writes(c);
	int64_t now = ptc_sys_now_ns();
	bool leaves = moves(ctl), more = leaves;
	uint32_t *own;

	make_room(ctl);
	if (g->counted_ns && changes == g->changes && leaves == g->leaves && now - g->counted_ns < COUNT_NS)
		return;
	g->changes = changes;
	g->leaves = leaves;
	g->counted_ns = now;
	own = own_devices(ctl);
	for (uint32_t i = 0; i < g->nseen; i++) {
		g->offers[i] = free_of(ctl, ptc_cluster_node(c, i));
		if (ptc_quarantine_left(&ptc_cluster_node(c, i)->quarantine, now)) /* no more than the job has */
			g->offers[i] = PTC_MIN(g->offers[i], own[i]);
		if (!leaves)
			g->seen[i] = PTC_MAX(g->seen[i], PTC_MIN(g->offers[i], own[i]));
		more |= g->offers[i] > own[i];
	}
	ptc_free(own);
	if (!more)
		g->stays[0] = '\0';
}

/* Sums of all that is there, as a number that differs when something does. */
static uint64_t fingerprint(const struct ptc_controller *ctl)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (uint32_t i = 0; i < ctl->recovery.growth.nseen; i++)
		h = (h ^ (ctl->recovery.growth.offers[i] + 1)) * UINT64_C(0x100000001b3);
	return h;
}

/* What has left, or has become another job's, is forgotten, so that it joins when it comes back; also if that is before
 * what it was planned with counts as weighed. */
static void forget(struct ptc_growth *g)
{
	for (uint32_t i = 0; i < g->nseen; i++) {
		if (g->offers[i] < g->seen[i]) {
			g->unkept = true;
			g->stays[0] = '\0';
		}
		g->seen[i] = PTC_MIN(g->seen[i], g->offers[i]);
		g->outdated |= g->offers[i] < g->planned[i];
		g->planned[i] = PTC_MIN(g->planned[i], g->offers[i]);
	}
}

/* How many devices have joined; their nodes' names go into g->joined. */
static uint32_t joined(struct ptc_controller *ctl)
{
	struct ptc_growth *g = &ctl->recovery.growth;
	uint32_t devices = 0, nodes = 0;
	size_t at = 0;

	g->joined[0] = '\0';
	for (uint32_t i = 0; i < g->nseen; i++) {
		const struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, i);

		if (g->offers[i] <= g->seen[i])
			continue;
		devices += g->offers[i] - g->seen[i];
		if (nodes++ < 3 && at < sizeof g->joined - PTC_NAME_MAX)
			at += (size_t)snprintf(g->joined + at, sizeof g->joined - at, "%s%s", at ? ", " : "",
					       n->doc.name);
	}
	if (nodes > 3 && at < sizeof g->joined)
		snprintf(g->joined + at, sizeof g->joined - at, " and %u more", nodes - 3);
	return devices;
}

/* ---- in etcd ------------------------------------------------------------------------ */

struct kept {
	struct ptc_controller *ctl;
	char key[KEY_MAX], lock[96];
	int64_t fence;
	char *text; /* to be written, or read; NULL: none */
	int rc;
};

static void kept_done(struct kept *k)
{
	ptc_free(k->text);
	ptc_controller_unref(k->ctl);
	ptc_free(k);
}

static struct kept *kept_new(struct ptc_controller *ctl)
{
	struct kept *k = ptc_calloc(1, sizeof *k);

	ptc_require(k);
	k->ctl = ptc_controller_ref(ctl);
	k->fence = ctl->fence;
	key_of(ctl, k->key);
	snprintf(k->lock, sizeof k->lock, "/ptc/jobs/%s/lock", ctl->uuid);
	return k;
}

static void write_work(void *arg, struct ptc_etcd *etcd)
{
	struct kept *k = arg;
	struct ptc_etcd_op op = { .key = k->key, .value = k->text, .len = strlen(k->text) };
	bool ok = false;

	k->rc = ptc_etcd_txn(etcd,
			     &(struct ptc_etcd_compare){ k->lock, PTC_ETCD_CREATE_REV, ptc_fence_revision(k->fence) },
			     1, &op, 1, "etcd.weighed", &ok, NULL, NULL);
}

/* After each failure in a row it is longer until etcd is asked again. */
static void answered(struct ptc_growth *g, int rc)
{
	if (rc)
		g->etcd_ns = ptc_sys_now_ns() + (ETCD_NS << PTC_MIN(g->fails, (uint32_t)ETCD_LOG2));
	g->fails = rc ? g->fails + 1 : 0;
}

static void written(void *arg)
{
	struct kept *k = arg;

	k->ctl->recovery.growth.writing = false;
	k->ctl->recovery.growth.unkept |= k->rc != 0;
	answered(&k->ctl->recovery.growth, k->rc);
	if (k->rc && !k->ctl->gone)
		ptc_debug("job", "job=%s what it was weighed with is not kept: %s", k->ctl->meta.name,
			  ptc_status_name(k->rc));
	kept_done(k);
}

/* What is lost with a crash before it is written is weighed again. */
static void keep(struct ptc_controller *ctl)
{
	struct ptc_growth *g = &ctl->recovery.growth;
	struct ptc_weighed_doc doc = { .v = ptc_calloc(g->nseen + 1, sizeof *doc.v), .failed = g->failed_ns != 0 };
	struct kept *k = kept_new(ctl);

	ptc_require(doc.v);
	snprintf(doc.stays, sizeof doc.stays, "%s", g->stays);
	for (uint32_t i = 0; i < g->nseen; i++) {
		if (!g->seen[i])
			continue;
		snprintf(doc.v[doc.n].node, sizeof doc.v->node, "%s", ptc_cluster_node(ctl->all->cluster, i)->doc.name);
		doc.v[doc.n++].devices = g->seen[i];
	}
	k->text = ptc_weighed_doc_encode(&doc);
	ptc_weighed_doc_done(&doc);
	if (!k->text) {
		kept_done(k);
		return;
	}
	g->writing = true;
	g->unkept = false;
	ptc_require(ptc_cluster_run(ctl->all->cluster, ctl->uuid, write_work, written, k) == 0);
}

static void read_work(void *arg, struct ptc_etcd *etcd)
{
	struct kept *k = arg;
	struct ptc_etcd_kvs kvs = { 0 };

	k->rc = ptc_etcd_get(etcd, k->key, false, 1, &kvs, NULL);
	if (k->rc == 0 && kvs.n && !(k->text = ptc_strndup(kvs.kv[0].value, kvs.kv[0].len)))
		k->rc = PTC_ENOMEM;
	ptc_etcd_kvs_done(&kvs);
}

/* Changes of nodes and their marks: what jobs do with devices is none. */
static uint64_t node_changes(const struct ptc_controller *ctl)
{
	return ptc_cluster_epoch(ctl->all->cluster) - ptc_cluster_device_writes(ctl->all->cluster);
}

/* stays: as in struct ptc_growth. failed: what was weighed is tried again once nodes have changed. */
static void note_stays(struct ptc_controller *ctl, const char *stays, bool failed)
{
	struct ptc_growth *g = &ctl->recovery.growth;

	snprintf(g->stays, sizeof g->stays, "%s", stays ? stays : "");
	g->failed_ns = failed ? ptc_sys_now_ns() : 0;
	g->failed_at = node_changes(ctl);
}

/* Without a document (a new job, or one of an older version) what was there when the job was first seen to run has been
 * weighed. */
static void was_read(void *arg)
{
	struct kept *k = arg;
	struct ptc_controller *ctl = k->ctl;
	struct ptc_growth *g = &ctl->recovery.growth;
	struct ptc_weighed_doc doc = { 0 };
	uint32_t at;

	g->state = k->rc ? PTC_GROWTH_UNREAD : PTC_GROWTH_READ;
	answered(g, k->rc);
	if (k->rc || ctl->gone) {
		kept_done(k);
		return;
	}
	make_room(ctl);
	if (k->text && ptc_weighed_doc_decode(k->text, strlen(k->text), &doc, NULL) == 0) {
		memset(g->seen, 0, g->nseen * sizeof *g->seen);
		for (size_t i = 0; i < doc.n; i++)
			if (ptc_cluster_find_node(ctl->all->cluster, doc.v[i].node, &at) && at < g->nseen)
				g->seen[at] = doc.v[i].devices;
		note_stays(ctl, doc.stays, doc.failed);
	} else {
		keep(ctl);
	}
	ptc_weighed_doc_done(&doc);
	kept_done(k);
}

static void read_kept(struct ptc_controller *ctl)
{
	ctl->recovery.growth.state = PTC_GROWTH_READING;
	ptc_require(ptc_cluster_run(ctl->all->cluster, ctl->uuid, read_work, was_read, kept_new(ctl)) == 0);
}

/* What has not been read yet, or is not kept yet; not too soon after a failure. */
static void ask_etcd(struct ptc_controller *ctl)
{
	struct ptc_growth *g = &ctl->recovery.growth;

	if (g->fails && ptc_sys_now_ns() < g->etcd_ns)
		return;
	if (g->state == PTC_GROWTH_UNREAD)
		read_kept(ctl);
	else if (g->state == PTC_GROWTH_READ && g->unkept && !g->writing)
		keep(ctl);
}

bool ptc_growth_rests(const struct ptc_controller *ctl)
{
	return ptc_controller_idle(ctl) && !ctl->ahead;
}

/* ---- the decision --------------------------------------------------------------------- */

/* What was planned with has been weighed, and is not again until more joins; what has joined since has not. stays,
 * failed: as in note_stays. */
static void decided(struct ptc_controller *ctl, const char *stays, bool failed)
{
	struct ptc_growth *g = &ctl->recovery.growth;

	g->first_ns = g->since_ns = 0;
	g->switch_id = 0;
	g->tries = 0;
	g->counted_ns = 0; /* what the job has now may be more */
	memcpy(g->seen, g->planned, g->nseen * sizeof *g->seen);
	note_stays(ctl, stays, failed);
	keep(ctl);
}

static void stays(struct ptc_controller *ctl, const char *why, bool failed)
{
	char text[PTC_ERROR_MAX];

	snprintf(text, sizeof text, "more devices are free, of %s; the job stays as it is: %s%s",
		 ctl->recovery.growth.joined, why, failed ? "; it is tried again when nodes have changed" : "");
	ptc_event(ctl->all->cluster, ctl->uuid, "joined", "%s", text);
	decided(ctl, text, failed);
}

const char *ptc_growth_stays(const struct ptc_controller *ctl)
{
	return ctl->record.run == PTC_RUN_LIVE && ctl->recovery.elastic.grow ? ctl->recovery.growth.stays : "";
}

/* By the planner's figures. False: it would, or nothing is predicted. */
static bool hardly_pays(const struct ptc_planned *p, char *why, size_t size)
{
	const struct ptc_plan_choice *c = &p->plan->chosen.choice;

	if (!c->predicted || !(c->horizon_s > 0) || c->break_even_s * PAYS <= c->horizon_s)
		return false;
	if (isfinite(c->break_even_s))
		snprintf(
			why, size,
			"%.200s would pay its pause back after %.3g s, and has to do so %d times over in the %.0f s to "
			"the next change",
			p->to.config, c->break_even_s, PAYS, c->horizon_s);
	else
		snprintf(why, size, "no switch pays its pause back");
	return true;
}

static void try_later(struct ptc_growth *g)
{
	g->since_ns = ptc_sys_now_ns() + (RETRY_NS << PTC_MIN(g->tries, (uint32_t)TRIES_MAX));
	g->tries++;
}

/* The devices that ranks are to leave as slow are forgotten now: by the next count they may be given back. */
static void look_again(struct ptc_controller *ctl)
{
	struct ptc_growth *g = &ctl->recovery.growth;

	if (g->state != PTC_GROWTH_READ || g->anew)
		return;
	g->counted_ns = 0;
	count_offers(ctl);
	forget(g);
}

bool ptc_growth_submit(struct ptc_controller *ctl, struct ptc_recovery_plan *p, uint64_t *ret_id)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_switch_request r;
	int rc;

	ptc_controller_request(ctl, PTC_SWITCH_RESIZE, &r);
	r.run_from = r.run_to = true;
	r.ahead = ptc_plan_builds_ahead(p->planned.plan);
	r.end = PTC_RUN_STOPPED;
	ptc_switch_request_plan(&r, &p->planned);
	*ret_id = r.id;
	rc = ctl->submit(ctl, &r, &err);
	if (rc)
		ptc_warn("job", "job=%s %s", ctl->meta.name, err.text);
	else
		look_again(ctl);
	ptc_switch_request_done(&r);
	return rc == 0;
}

static void grow(struct ptc_controller *ctl, struct ptc_recovery_plan *p)
{
	struct ptc_growth *g = &ctl->recovery.growth;
	const char *by = p->planned.plan->chosen.choice.by;
	uint64_t id;
	char to[200], why[PTC_PLANNING_WHY_MAX];

	snprintf(to, sizeof to, "%s", p->planned.to.config); /* submit takes the plan */
	snprintf(why, sizeof why, "%s", p->planned.plan->chosen.why);
	if (!ptc_growth_submit(ctl, p, &id)) {
		try_later(g);
		return;
	}
	g->switch_id = id;
	g->stays[0] = '\0';
	ptc_event(ctl->all->cluster, ctl->uuid, "joined",
		  "more devices are free, of %s; the job goes from %s to %s, %s%s", g->joined, ctl->view.from.config,
		  to, why[0] ? "" : "by its ",
		  why[0] ? why
		  : by   ? by
			 : "table");
}

bool ptc_growth_passes(int status)
{
	return status == PTC_ECOORD || status == PTC_EPEER || status == PTC_ETIMEOUT || status == PTC_ECANCELED ||
	       status == PTC_ENOTFOUND; /* a node that was to be used has gone meanwhile */
}

static void planned(struct ptc_controller *ctl, struct ptc_recovery_plan *p)
{
	struct ptc_growth *g = &ctl->recovery.growth;
	char why[PTC_PLANNING_WHY_MAX];

	ptc_recovery_keep(ctl, p);
	if (!ptc_growth_rests(ctl) || ctl->record.run != PTC_RUN_LIVE || !g->since_ns)
		return; /* it is weighed again */
	if (!joined(ctl) || !ctl->recovery.elastic.grow || g->outdated)
		return;
	if (ptc_growth_passes(p->status) && g->tries < TRIES_MAX) {
		try_later(g);
		return;
	}
	if (p->status) {
		stays(ctl, p->err.text, ptc_growth_passes(p->status));
		return;
	}
	if (p->planned.stays) {
		stays(ctl, p->planned.plan->chosen.why, false);
		return;
	}
	if (hardly_pays(&p->planned, why, sizeof why))
		stays(ctl, why, false);
	else
		grow(ctl, p);
}

/* The switch of ours has ended: the ranks say how. */
static void ended(struct ptc_controller *ctl)
{
	struct ptc_growth *g = &ctl->recovery.growth;
	bool grew = ctl->record.incarnation == g->switch_id; /* a recovery meanwhile is another's */

	g->switch_id = 0;
	if (grew) {
		decided(ctl, "", false);
	} else if (g->tries >= TRIES_MAX) {
		stays(ctl, "the switch has failed too often", true);
	} else {
		try_later(g);
	}
}

/* Switches to what was weighed had failed too often, and nodes have changed since, which may have been the reason: one
 * more try, but not too soon. What joins is another matter: that counts as ever. */
static void try_anew(struct ptc_controller *ctl)
{
	struct ptc_growth *g = &ctl->recovery.growth;
	uint32_t *own;

	if (!g->failed_ns || g->failed_at == node_changes(ctl) ||
	    ptc_sys_now_ns() - g->failed_ns < RETRY_NS << TRIES_MAX)
		return;
	own = own_devices(ctl);
	for (uint32_t i = 0; i < g->nseen; i++)
		g->seen[i] = PTC_MIN(g->seen[i], own[i]);
	ptc_free(own);
	note_stays(ctl, "", false);
	g->unkept = true;
	g->tries = TRIES_MAX;
}

static bool quiet(struct ptc_controller *ctl)
{
	struct ptc_growth *g = &ctl->recovery.growth;
	uint64_t there = fingerprint(ctl);
	uint64_t ms = ctl->recovery.elastic.join_after_ms;
	int64_t now = ptc_sys_now_ns(), wait = (int64_t)(ms ? ms : PTC_JOB_JOIN_AFTER_MS) * MS;

	if (!joined(ctl)) {
		g->first_ns = g->since_ns = 0;
		g->tries = 0;
		return false;
	}
	if (!g->first_ns)
		g->first_ns = now;
	if (!g->since_ns || (there != g->there && now - g->first_ns < WAITS_MAX * wait))
		g->since_ns = now;
	g->there = there;
	return now - g->since_ns >= wait;
}

static void replanned(struct ptc_controller *ctl, struct ptc_recovery_plan *p)
{
	struct ptc_cluster *c = ctl->all->cluster;
	char why[PTC_PLANNING_WHY_MAX];
	uint64_t id;

	if (!ptc_growth_rests(ctl)) { /* after that */
		ctl->recovery.replan = true;
		return;
	}
	if (ctl->record.run != PTC_RUN_LIVE)
		return;
	snprintf(why, sizeof why, "%s", p->status ? p->err.text : p->planned.plan->chosen.why);
	if (p->status)
		ptc_event(c, ctl->uuid, "links", "no new plan: %s", why);
	else if (p->planned.stays)
		ptc_event(c, ctl->uuid, "links", "no new plan: the job stays as it is: %s", why);
	else if (ptc_growth_submit(ctl, p, &id))
		ptc_event(c, ctl->uuid, "links", "a new plan: %s", why);
}

void ptc_growth_replan(struct ptc_controller *ctl)
{
	ptc_recovery_plan(ctl, PTC_RECOVERY_AGAIN, replanned);
}

void ptc_growth_note(struct ptc_controller *ctl)
{
	struct ptc_growth *g = &ctl->recovery.growth;

	if (g->noted)
		return;
	g->noted = true;
	make_room(ctl);
	for (uint32_t i = 0; i < g->nseen; i++) /* whoever has them: it is not known yet with whom the job shares */
		g->seen[i] = devices_of(ptc_cluster_node(ctl->all->cluster, i));
}

void ptc_growth_forget_absent(struct ptc_controller *ctl)
{
	struct ptc_growth *g = &ctl->recovery.growth;

	if (!ctl->recovery.has_elastic || !ctl->recovery.elastic.grow || g->anew)
		return;
	if (g->state == PTC_GROWTH_UNREAD)
		ask_etcd(ctl);
	if (g->state != PTC_GROWTH_READ)
		return;
	make_room(ctl);
	for (uint32_t i = 0; i < g->nseen; i++)
		g->offers[i] = devices_of(ptc_cluster_node(ctl->all->cluster, i));
	forget(g);
	g->counted_ns = 0;
	ask_etcd(ctl);
}

void ptc_growth_tick(struct ptc_controller *ctl)
{
	struct ptc_growth *g = &ctl->recovery.growth;

	if (g->state != PTC_GROWTH_READ && !g->anew) {
		ask_etcd(ctl);
		return;
	}
	count_offers(ctl);
	tell_quarantined(ctl);
	if (g->anew && g->state != PTC_GROWTH_READING && !g->writing) {
		g->anew = false;
		g->state = PTC_GROWTH_READ;
		memcpy(g->planned, g->offers, g->nseen * sizeof *g->planned);
		decided(ctl, "", false);
	}
	forget(g); /* during a switch too: a device may be back by its end */
	ask_etcd(ctl);
	if (!ptc_growth_rests(ctl))
		return;
	if (g->switch_id) {
		ended(ctl);
		return;
	}
	try_anew(ctl);
	if (!quiet(ctl))
		return;
	memcpy(g->planned, g->offers, g->nseen * sizeof *g->planned);
	g->outdated = false;
	ptc_recovery_plan(ctl, PTC_RECOVERY_GROW, planned);
}
