/* SPDX-License-Identifier: Apache-2.0 */
/* Hold: a reader keeps a committed generation readable. Happy path: this
 * daemon keeps the generation's documents and geometry, and asks every node
 * that has a part of it to keep its table, all at once; the reader asks again
 * before the lease ends, and gives it up at last.
 * Failure modes: the job has moved on (PTC_ESTATE; what was not held is gone);
 * a node that does not answer within PEER_MS is left out (its bytes come from
 * a replica, or reading them fails); the reader dies (the lease ends); this
 * daemon dies (the other nodes' leases end). */
#include "base/alloc.h"
#include "base/sys/sys.h"
#include "daemon/agent/calls/crew.h"
#include "daemon/api/reads/reads.h"
#include "daemon/agent/tables/tables.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define PEER_MS 3000

struct held {
	struct held *next;
	struct ptc_read_view *view;
	char holder[PTC_HOLDER_MAX + 1];
	int64_t until_ns;
};

struct ptc_holds {
	pthread_mutex_t lock;
	struct held *list;
};

struct ptc_holds *ptc_holds_new(void)
{
	struct ptc_holds *h = ptc_calloc(1, sizeof *h);

	if (h)
		pthread_mutex_init(&h->lock, NULL);
	return h;
}

static void held_free(struct held *h)
{
	ptc_read_view_put(h->view);
	ptc_free(h);
}

static void release_until(struct ptc_holds *h, int64_t now_ns)
{
	struct held *over = NULL, *e;

	pthread_mutex_lock(&h->lock);
	for (struct held **at = &h->list; (e = *at);) {
		if (e->until_ns > now_ns) {
			at = &e->next;
			continue;
		}
		*at = e->next;
		e->next = over;
		over = e;
	}
	pthread_mutex_unlock(&h->lock);
	while ((e = over)) {
		over = e->next;
		held_free(e);
	}
}

void ptc_holds_expire(struct ptc_holds *h)
{
	release_until(h, ptc_sys_now_ns());
}

struct ptc_holds *ptc_holds_free(struct ptc_holds *h)
{
	if (!h)
		return NULL;
	release_until(h, INT64_MAX);
	pthread_mutex_destroy(&h->lock);
	ptc_free(h);
	return NULL;
}

static struct held **find_locked(struct ptc_holds *h, const char *uuid, uint64_t generation, uint64_t snapshot,
				 const char *holder)
{
	struct held **at = &h->list;

	while (*at) {
		const struct ptc_view *v = &(*at)->view->view;

		if (v->from_generation == generation && v->from_snapshot == snapshot && !strcmp(v->meta.uuid, uuid) &&
		    (!holder || !strcmp((*at)->holder, holder)))
			break;
		at = &(*at)->next;
	}
	return at;
}

bool ptc_holds_view(struct ptc_holds *h, const char *uuid, uint64_t generation, uint64_t snapshot,
		    struct ptc_read_view **ret_view)
{
	struct held *e;

	pthread_mutex_lock(&h->lock);
	e = *find_locked(h, uuid, generation, snapshot, NULL);
	if (e) {
		ptc_read_view_ref(e->view);
		*ret_view = e->view;
	}
	pthread_mutex_unlock(&h->lock);
	return e != NULL;
}

static int remember(struct ptc_holds *h, const Ptc__V1__HoldRequest *req, struct ptc_read_view *view,
		    struct ptc_error *err)
{
	int64_t until =
		ptc_sys_now_ns() + (int64_t)(req->ttl_ms < PTC_HOLD_MAX_MS ? req->ttl_ms : PTC_HOLD_MAX_MS) * 1000000;
	struct held *fresh = ptc_calloc(1, sizeof *fresh), *e;
	size_t n = 0;

	if (!fresh)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	fresh->until_ns = until;
	snprintf(fresh->holder, sizeof fresh->holder, "%s", req->holder);
	pthread_mutex_lock(&h->lock);
	for (e = h->list; e; e = e->next)
		n++;
	e = *find_locked(h, view->view.meta.uuid, req->generation, req->snapshot, req->holder);
	if (e) {
		e->until_ns = until;
	} else if (n < PTC_MAX_HELD) {
		ptc_read_view_ref(view);
		fresh->view = view;
		fresh->next = h->list;
		h->list = fresh;
	}
	pthread_mutex_unlock(&h->lock);
	if (!fresh->view)
		ptc_free(fresh);
	return e || n < PTC_MAX_HELD ? 0 : ptc_error_set(err, PTC_ELIMIT, "readers hold %zu snapshots here already", n);
}

static void forget(struct ptc_holds *h, const char *uuid, const Ptc__V1__HoldRequest *req)
{
	struct held **at, *e;

	pthread_mutex_lock(&h->lock);
	at = find_locked(h, uuid, req->generation, req->snapshot, req->holder);
	e = *at;
	if (e)
		*at = e->next;
	pthread_mutex_unlock(&h->lock);
	if (e)
		held_free(e);
}

/* ---- every node ----------------------------------------------------------------- */

struct ask {
	struct ptc_daemon *d;
	const struct ptc_read_view *view;
	const char *holder;
	uint32_t ttl_ms;
	_Atomic unsigned held;
};

static int ask_node(void *arg, unsigned thread, size_t i, struct ptc_error *err)
{
	struct ask *a = arg;
	const struct ptc_geometry *g = &a->view->geometry;
	struct ptc_table_key key = { .generation = g->generation, .snapshot = g->snapshot };
	Ptc__V1__HoldRequest req = PTC__V1__HOLD_REQUEST__INIT;
	struct ptc_rpc_channel *channel;
	int rc;

	memcpy(key.uuid, g->uuid, sizeof key.uuid);
	req.version = PTC_WIRE_VERSION;
	req.uuid = key.uuid;
	req.generation = key.generation;
	req.snapshot = key.snapshot;
	req.holder = (char *)(uintptr_t)a->holder; /* packing only reads */
	req.ttl_ms = a->ttl_ms;
	if (!strcmp(g->nodes[i], a->d->config.node))
		rc = ptc_agent_hold(a->d->agent, &key, req.holder, req.ttl_ms, NULL);
	else if (!g->addresses[i][0])
		rc = PTC_EPEER;
	else
		rc = ptc_channels_get(a->d->channels, g->nodes[i], g->addresses[i], false, 0, &channel, NULL);
	if (!rc && strcmp(g->nodes[i], a->d->config.node) != 0)
		rc = ptc_pb_unary(channel, "/ptc.v1.Peer/Hold", &req.base, PEER_MS, NULL, 0, NULL, NULL, NULL);
	if (!rc)
		a->held++;
	return 0; /* one that is gone is no reason to let the others go */
}

int ptc_holds_nodes(struct ptc_daemon *d, const struct ptc_read_view *view, const char *holder, uint32_t ttl_ms,
		    unsigned *ret_held, struct ptc_error *err)
{
	struct ask a = { .d = d, .view = view, .holder = holder, .ttl_ms = ttl_ms };
	struct ptc_crew crew = { .ntasks = view->geometry.nnodes,
				 .threads = PTC_CREW_MAX,
				 .run = ask_node,
				 .arg = &a,
				 .what = "holding a snapshot" };
	int rc = ptc_crew_run(&crew, err);

	if (rc == 0)
		*ret_held = a.held;
	return rc;
}

static int hold(struct ptc_daemon *d, struct ptc_rpc_call *call, const Ptc__V1__HoldRequest *req, struct ptc_error *err)
{
	struct ptc_read_view *view;
	unsigned held = 0;
	int rc = ptc_control_read_view(d, call, req->job, req->uuid, req->generation, req->snapshot, &view, err);

	if (rc)
		return rc;
	if (req->ttl_ms)
		rc = remember(d->holds, req, view, err);
	else
		forget(d->holds, view->view.meta.uuid, req);
	if (!rc)
		rc = ptc_holds_nodes(d, view, req->holder, req->ttl_ms, &held, err);
	if (!rc && req->ttl_ms && !held)
		rc = ptc_error_set(err, PTC_ESTATE, "no node has snapshot %llu of job %s any more",
				   (unsigned long long)req->snapshot, req->job);
	ptc_read_view_put(view);
	return rc;
}

PTC_CONTROL_HANDLER(ptc_control_hold)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__Ack ack = PTC__V1__ACK__INIT;
	Ptc__V1__HoldRequest *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__hold_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	if (!req->holder[0] || strlen(req->holder) > PTC_HOLDER_MAX)
		rc = ptc_error_set(err, PTC_EINVAL, "a holder without a name, or with one that is too long");
	rc = rc ? rc : hold(d, call, req, err);
	ptc_pb_free(&req->base);
	ack.version = PTC_WIRE_VERSION;
	return rc ? rc : ptc_pb_call_send(call, &ack.base, err);
}
