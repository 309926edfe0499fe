/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what happens to the ranks on this node into etcd, ends ranks on devices that are not well, and asks other
 * nodes for rendezvous keys.
 *
 * Happy path: the worker events of a node's ranks are written under the job's keys, where any controller of the job
 * sees them; rendezvous keys are asked for at the daemon of rank 0's node.
 *
 * Failure modes: etcd is unreachable (the event waits until etcd answers, and the job's later events wait behind it; a
 * restarted daemon reports the event again), a job that is gone (its worker event is dropped), rank 0's daemon
 * unreachable (asked again until the caller's time is over), a run_dir that is not the one ranks were started with
 * (ptcd does not start). */
#include "daemon/ptcd.h"
#include "daemon/gpu/node/node_devices.h"
#include "daemon/workers/group/rank_groups.h"
#include "daemon/workers/session/rank_rendezvous.h"
#include "daemon/workers/workers.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "rpc/pb/pbcall.h"
#include "daemon/store/store.h"

#include "ptc.pb-c.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EVENT_RETRY_MS       500
#define TOLD_MS              50
#define TOLD_WAITS           200 /* so often: then the failure is more important */
#define RENDEZVOUS_POLL_US   100000
#define RENDEZVOUS_CALL_MS   2000 /* of one question; the caller's wait may be longer */
#define RENDEZVOUS_ANSWER_MS 10000

/* ---- worker events ------------------------------------------------------------------------ */

struct event {
	struct ptc_daemon *d;
	struct ptc_worker_event event;
	bool again, judged, told;
	uint64_t bad; /* devices of its ranks that are not well: the cluster has to know that first */
	unsigned waits;
	struct event *next; /* d->events: those that are not written yet, of all jobs, in their order */
};

/* Compares the job's meta, or what a deleted job's last rank has to say would stay for ever. */
static int put_event(struct event *n, struct ptc_etcd *e, struct ptc_error *err)
{
	static const enum ptc_worker_state states[] = { [PTC_WORKER_EVENT_FAILED] = PTC_WORKER_FAILED,
							[PTC_WORKER_EVENT_FINISHED] = PTC_WORKER_FINISHED,
							[PTC_WORKER_EVENT_DUE] = PTC_WORKER_DUE };
	struct ptc_worker_doc doc = { .generation = n->event.key.generation,
				      .incarnation = n->event.key.incarnation,
				      .state = states[n->event.kind],
				      .rank = n->event.rank,
				      .step = n->event.step,
				      .exit_status = n->event.exit_status,
				      .gone = n->event.gone };
	char key[160], meta[96], *json;
	struct ptc_etcd_compare cmp = { meta, PTC_ETCD_VERSION, 1 };
	bool ok;
	int rc;

	memcpy(doc.text, n->event.text, sizeof doc.text);
	json = ptc_worker_doc_encode(&doc);
	if (!json)
		return ptc_nomem(err);
	snprintf(meta, sizeof meta, "/ptc/jobs/%s/meta", n->event.key.uuid);
	snprintf(key, sizeof key, "/ptc/jobs/%s/worker/%s", n->event.key.uuid, n->d->config.node);
	rc = ptc_etcd_txn(e, &cmp, 1, &(struct ptc_etcd_op){ .key = key, .value = json, .len = strlen(json) }, 1,
			  "etcd.worker-event", &ok, NULL, err);
	ptc_free(json);
	return rc;
}

static const char *name_of(const struct ptc_node_device *v)
{
	return v->uuid[0] ? v->uuid : v->kind;
}

/* A rank that has failed beside a device that is not well has failed for it: its program is not to blame. */
static void judge_devices(struct event *n)
{
	struct ptc_node_devices *found = n->d->config.found;
	size_t count = ptc_node_devices_count(found);
	char text[sizeof n->event.text];

	n->judged = true;
	if (!n->event.gone)
		(void)ptc_node_devices_refresh(found, NULL); /* what is known may be from before the failure */
	for (size_t i = 0; i < count; i++) {
		struct ptc_node_device v;

		ptc_node_devices_get(found, i, &v);
		if (!(n->event.devices >> i & 1) || strcmp(v.health, "ok") == 0)
			continue;
		n->bad |= UINT64_C(1) << i;
		if (n->event.gone)
			continue;
		n->event.gone = true;
		memcpy(text, n->event.text, sizeof text);
		snprintf(n->event.text, sizeof n->event.text, "device %zu (%s) is not well: %s (%s); %.700s", i,
			 name_of(&v), v.health, v.why, text);
	}
}

/* Whoever starts the ranks again would give them the same device otherwise. */
static bool is_told(const struct event *n)
{
	uint32_t at;

	if (!ptc_cluster_find_node(n->d->cluster, n->d->config.node, &at))
		return false;
	for (uint32_t i = 0; i < 64; i++)
		if (n->bad >> i & 1 && ptc_node_device_well(ptc_cluster_node(n->d->cluster, at), i, NULL))
			return false;
	return true;
}

static void event_work(void *arg, struct ptc_etcd *e)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct event *n = arg;

	if (n->event.kind == PTC_WORKER_EVENT_FAILED && !n->judged && n->d->config.found)
		judge_devices(n);
	n->again = n->bad && !n->told;
	if (n->again)
		return;
	n->again = put_event(n, e, &err) != 0;
	if (n->again)
		ptc_warn("worker", "job=%s cannot tell what its ranks have come to, trying again: %s",
			 n->event.key.uuid, err.text);
}

/* The first of the job's events that are not written. NULL: there is none. */
static struct event *first_of(const struct ptc_daemon *d, const char *uuid)
{
	struct event *n = d->events;

	while (n && strcmp(n->event.key.uuid, uuid) != 0)
		n = n->next;
	return n;
}

static void take_out(struct event *n)
{
	struct event **at = &n->d->events;

	while (*at != n)
		at = &(*at)->next;
	*at = n->next;
}

static void event_done(void *arg);

/* They lie under one key, so a job's events are written one after another: one that has to be tried again would come
 * upon a later one. n: the first of its job; NULL: none. */
static void write_event(struct event *n)
{
	while (n && ptc_cluster_run(n->d->cluster, n->event.key.uuid, event_work, event_done, n) != 0) {
		struct event *failed = n;

		take_out(n);
		n = first_of(n->d, n->event.key.uuid);
		ptc_free(failed);
	}
}

static void event_done(void *arg)
{
	struct event *n = arg, *later;
	bool tells = n->bad && !n->told;

	if (tells) {
		ptc_live_devices(n->d);
		n->told = is_told(n) || ++n->waits > TOLD_WAITS;
	}
	if (n->again && !atomic_load(&n->d->stopping) &&
	    ptc_cluster_run_later(n->d->cluster, n->event.key.uuid, tells ? TOLD_MS : EVENT_RETRY_MS, event_work,
				  event_done, n) == 0)
		return;
	take_out(n);
	later = first_of(n->d, n->event.key.uuid);
	ptc_free(n);
	write_event(later);
}

static void enter_event(void *arg)
{
	struct event *n = arg, *before = first_of(n->d, n->event.key.uuid), **end = &n->d->events;

	while (*end)
		end = &(*end)->next;
	*end = n;
	if (!before)
		write_event(n);
}

/* Something has failed: not only at the next look. */
static void look_at_devices(struct ptc_daemon *d)
{
	if (d->config.found)
		ptc_node_devices_look(d->config.found, 0);
}

void ptc_live_event(void *arg, const struct ptc_worker_event *event)
{
	struct ptc_daemon *d = arg;
	struct event *n;

	if (event->kind == PTC_WORKER_EVENT_STALLED ||
	    event->kind == PTC_WORKER_EVENT_MOVES) { /* for people: what to do is theirs to say */
		ptc_event(d->cluster, event->key.uuid, event->kind == PTC_WORKER_EVENT_MOVES ? "moves" : "stalled",
			  "node %s: %s", d->config.node, event->text);
		return;
	}
	if (event->kind == PTC_WORKER_EVENT_HANGS || event->kind == PTC_WORKER_EVENT_ANSWERS) {
		ptc_event(d->cluster, event->key.uuid, event->kind == PTC_WORKER_EVENT_HANGS ? "hangs" : "answers",
			  "node %s: %s", d->config.node, event->text);
		return;
	}
	if (event->kind == PTC_WORKER_EVENT_STANDBY) { /* the job goes on; it starts more slowly without it */
		ptc_event(d->cluster, event->key.uuid, "standby", "node %s: %s", d->config.node, event->text);
		return;
	}
	if (event->kind == PTC_WORKER_EVENT_NOT_STARTED) { /* the switch hears of it as the answer to its call */
		ptc_event(d->cluster, event->key.uuid, "failed", "node %s: %s", d->config.node, event->text);
		return;
	}
	n = ptc_calloc(1, sizeof *n);

	ptc_require(n); /* a failure that nobody hears of would hang the job */
	if (event->kind == PTC_WORKER_EVENT_FAILED)
		look_at_devices(d); /* it may be for one of them */
	n->d = d;
	n->event = *event;
	if (ptc_loop_post(d->loop, enter_event, n) != 0)
		ptc_free(n);
}

/* ---- rendezvous ---------------------------------------------------------------------- */

static bool given_up(const struct ptc_wait *wait, int64_t waited_ms)
{
	if (!wait)
		return false;
	return (wait->cancelled && wait->cancelled(wait->arg)) || (wait->timeout_ms && waited_ms >= wait->timeout_ms);
}

static int rendezvous_call(struct ptc_daemon *d, const struct ptc_group_key *key, const char *node, const char *address,
			   Ptc__V1__RendezvousRequest *req, Ptc__V1__RendezvousReply **ret_reply, struct ptc_error *err)
{
	struct ptc_rpc_channel *channel;
	ProtobufCMessage *reply = NULL;
	int rc = ptc_channels_get(d->channels, node, address, false, 0, &channel, err);

	req->version = PTC_WIRE_VERSION;
	req->uuid = (char *)(uintptr_t)key->uuid; /* packing only reads */
	req->generation = key->generation;
	req->incarnation = key->incarnation;
	req->timeout_ms = RENDEZVOUS_CALL_MS;
	if (rc == 0)
		rc = ptc_pb_unary(channel, "/ptc.v1.Peer/Rendezvous", &req->base, RENDEZVOUS_ANSWER_MS, NULL, 0,
				  &ptc__v1__rendezvous_reply__descriptor, &reply, err);
	if (rc == 0)
		*ret_reply = (Ptc__V1__RendezvousReply *)reply;
	return rc;
}

static bool rendezvous_again(int rc)
{
	return rc == PTC_ETIMEOUT || rc == PTC_EPEER || rc == PTC_ENOTFOUND;
}

static int rendezvous_get(void *arg, const struct ptc_group_key *key, const char *node, const char *address,
			  const char *name, void *buffer, size_t capacity, size_t *ret_len, const struct ptc_wait *wait,
			  struct ptc_error *err)
{
	Ptc__V1__RendezvousRequest req = PTC__V1__RENDEZVOUS_REQUEST__INIT;
	int64_t waited = 0;

	req.key = (char *)(uintptr_t)name;
	for (;;) {
		Ptc__V1__RendezvousReply *reply;
		int rc = rendezvous_call(arg, key, node, address, &req, &reply, err);

		if (rc == 0) {
			*ret_len = reply->value.len;
			if (reply->value.len <= capacity)
				memcpy(buffer, reply->value.data, reply->value.len);
			else
				rc = ptc_error_set(err, PTC_ELIMIT, "the value of \"%s\" has %zu bytes", name,
						   reply->value.len);
			ptc_pb_free(&reply->base);
			return rc;
		}
		waited += rc == PTC_ETIMEOUT ? RENDEZVOUS_CALL_MS : RENDEZVOUS_POLL_US / 1000;
		if (!rendezvous_again(rc) || given_up(wait, waited))
			return rc;
		usleep(RENDEZVOUS_POLL_US); /* a thread of the workers: waiting is its job */
	}
}

static int rendezvous_put(void *arg, const struct ptc_group_key *key, const char *node, const char *address,
			  const char *name, const void *value, size_t len, const struct ptc_wait *wait,
			  struct ptc_error *err)
{
	Ptc__V1__RendezvousRequest req = PTC__V1__RENDEZVOUS_REQUEST__INIT;
	Ptc__V1__RendezvousReply *reply;
	int64_t waited = 0;
	int rc;

	req.key = (char *)(uintptr_t)name;
	req.value.data = (uint8_t *)(uintptr_t)value;
	req.value.len = len;
	req.put = true;
	while ((rc = rendezvous_call(arg, key, node, address, &req, &reply, err)) != 0) { /* twice is as once */
		waited += RENDEZVOUS_POLL_US / 1000;
		if (!rendezvous_again(rc) || given_up(wait, waited))
			return rc;
		usleep(RENDEZVOUS_POLL_US); /* a thread of the workers: waiting is its job */
	}
	ptc_pb_free(&reply->base);
	return 0;
}

/* ---- memory beside chunks: staging, page-locked -------------------------------------- */

static bool staging_take(void *arg, const char *job, uint64_t bytes)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_daemon *d = arg;

	if (ptc_store_outside_take(d->store, bytes, &err) == 0)
		return true;
	ptc_warn("worker", "job=%s copy: fast has no room within memory.ceiling here, so a rank's copies are lean: %s",
		 job, err.text);
	return false;
}

static void staging_give(void *arg, uint64_t bytes)
{
	struct ptc_daemon *d = arg;

	ptc_store_outside_give(d->store, bytes);
}

static int pinned_take(void *arg, uint64_t bytes, struct ptc_error *err)
{
	struct ptc_daemon *d = arg;

	return ptc_store_outside_take(d->store, bytes, err);
}

/* ---- devices that are not well ------------------------------------------------------- */

static void tell_jobs(struct ptc_daemon *d, uint32_t device, const struct ptc_node_device *now)
{
	bool well = strcmp(now->health, "ok") == 0;
	const struct ptc_device_given *g;
	const char *id = name_of(now);
	size_t n;

	if (well)
		ptc_info("gpu", "device %u (%s) is well again, and may be given to ranks", device, id);
	else
		ptc_warn("gpu", "device %u (%s) is not well: %s (%s); it is given to no ranks until it is", device, id,
			 now->health, now->why);
	g = ptc_devices_of_node(ptc_cluster_devices(d->cluster), d->config.node, &n);
	for (size_t i = 0; i < n; i++) {
		if (g[i].device != device || !ptc_cluster_find_uuid(d->cluster, g[i].uuid))
			continue;
		if (well)
			ptc_event(d->cluster, g[i].uuid, "device", "node %s: device %u (%s) is well again",
				  d->config.node, device, id);
		else
			ptc_event(d->cluster, g[i].uuid, "device",
				  "node %s: device %u (%s), which the job has, is not well: %s (%s); the next switch "
				  "goes without it",
				  d->config.node, device, id, now->health, now->why);
	}
}

_Static_assert(PTC_NODE_DEVICES_MAX <= 64, "d->unwell has a bit for each");

/* A rank has this device, and cannot use it any more. */
static void end_ranks(struct ptc_daemon *d, uint32_t device, const struct ptc_node_device *v, pid_t pid)
{
	char why[256];

	snprintf(why, sizeof why, "its device %u (%s) has failed: %s (%s); the rank is ended", device, name_of(v),
		 v->health, v->why);
	ptc_workers_device_failed(d->workers, device, pid, why);
}

/* The driver's word alone is not enough: the next copy may succeed. If the device's own state says the same, nothing of
 * the rank can be read any more. */
static void device_failed(void *arg, const char *uuid, pid_t pid)
{
	struct ptc_daemon *d = arg;
	size_t n = ptc_node_devices_count(d->config.found);

	(void)ptc_node_devices_refresh(d->config.found, NULL);
	for (uint32_t i = 0; i < n; i++) {
		struct ptc_node_device v;

		ptc_node_devices_get(d->config.found, i, &v);
		if (strcmp(v.uuid, uuid) == 0 && strcmp(v.health, "ok") != 0 && strcmp(v.health, "check") != 0)
			end_ranks(d, i, &v, pid);
	}
}

void ptc_live_devices(struct ptc_daemon *d)
{
	char text[PTC_UNHEALTHY_BYTES];
	size_t n = ptc_node_devices_count(d->config.found);

	if (!ptc_cluster_synced(d->cluster))
		return;
	for (uint32_t i = 0; i < n; i++) {
		struct ptc_node_device now;
		bool well;

		ptc_node_devices_get(d->config.found, i, &now);
		well = strcmp(now.health, "ok") == 0;
		if (well != !(d->unwell >> i & 1))
			tell_jobs(d, i, &now);
		if (now.dead)
			end_ranks(d, i, &now, 0);
		d->unwell = well ? d->unwell & ~(UINT64_C(1) << i) : d->unwell | UINT64_C(1) << i;
	}
	ptc_node_devices_unhealthy(d->config.found, text, sizeof text);
	ptc_cluster_tell_unhealthy(d->cluster, text);
}

/* ---- life --------------------------------------------------------------------------- */

static bool same_folder(const char *a, const char *b)
{
	struct stat x, y;

	return strcmp(a, b) == 0 ||
	       (stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino);
}

/* Ranks are found again below run_dir only, so one that has been changed must not leave some behind, unlisted and
 * training. */
static int left_nothing(const struct ptc_daemon_config *c, const char *was, struct ptc_error *err)
{
	ptc_auto_free char *dir = ptc_asprintf("%s/workers", was);
	pid_t pid = 0;
	int rc = dir ? ptc_workers_running(dir, &pid, err) : ptc_nomem(err);

	if (rc || !pid)
		return rc;
	return ptc_error_set(err, PTC_ESTATE,
			     "run_dir: is %s, but ranks that ptcd started with %s still run (for example pid %d), and "
			     "ptcd would not find them; start ptcd with that run_dir, or stop their jobs first",
			     c->run_dir, was, (int)pid);
}

/* state_dir/run-dir has the run_dir of the life before. */
static int check_run_dir(const struct ptc_daemon_config *c, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/run-dir", c->state_dir);
	ptc_auto_free char *was = NULL;
	int rc = path ? ptc_sys_read_file(path, PATH_MAX, &was, NULL, err) : ptc_nomem(err);

	if (rc == 0 && strcmp(was, c->run_dir) == 0)
		return 0;
	if (rc == 0 && !same_folder(was, c->run_dir))
		rc = left_nothing(c, was, err);
	if (rc && rc != PTC_ENOTFOUND)
		return rc;
	return ptc_sys_write_file(path, c->run_dir, strlen(c->run_dir), 0600, "live.run-dir", err);
}

int ptc_live_start(struct ptc_daemon *d, struct ptc_error *err)
{
	ptc_auto_free char *dir = ptc_asprintf("%s/workers", d->config.run_dir);
	struct ptc_workers_env env = { .node = d->config.node,
				       .dir = dir,
				       .device_ids = ptc_node_devices_ids(d->config.found),
				       .devices = (unsigned)d->config.devices,
				       .pinned_bytes = d->config.prefetch,
				       .stall_ms = (int64_t)d->config.stall_after_ms,
				       .copy_ms = (int64_t)d->config.copy_timeout_ms,
				       .event = ptc_live_event,
				       .staging_take = staging_take,
				       .staging_give = staging_give,
				       .pinned_take = pinned_take,
				       .pinned_give = staging_give,
				       .device_failed = device_failed,
				       .rendezvous_get = rendezvous_get,
				       .rendezvous_put = rendezvous_put,
				       .arg = d };

	int rc = dir ? check_run_dir(&d->config, err) : ptc_nomem(err);

	return rc ? rc : ptc_workers_new(&env, &d->workers, err);
}

void ptc_live_stop(struct ptc_daemon *d)
{
	d->workers = ptc_workers_free(d->workers);
}
