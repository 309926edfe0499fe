/* SPDX-License-Identifier: Apache-2.0 */
/* The call Pin: a reader keeps a committed generation readable. Happy path: this daemon keeps the generation's
 * documents and geometry. It asks all nodes that have a part of the generation at once to keep their tables. The
 * reader asks again before the lease ends, and at last gives the lease up.
 *
 * Failure modes: the job has moved on (PTC_ESTATE; tables that were not pinned are gone); a node that does not answer
 * within PEER_MS is left out (its bytes come from a replica, or reading them fails); the reader dies (the lease ends);
 * this daemon dies (the other nodes' leases end). */
#include "base/alloc.h"
#include "base/sys/sys.h"
#include "daemon/agent/calls/task_pool.h"
#include "daemon/api/reads/reads.h"
#include "daemon/agent/tables/tables.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define PEER_MS 3000

struct pinned {
	struct pinned *next;
	struct ptc_read_view *view;
	char reader[PTC_PIN_READER_MAX + 1];
	int64_t until_ns;
};

struct ptc_pins {
	pthread_mutex_t lock;
	struct pinned *list;
};

struct ptc_pins *ptc_pins_new(void)
{
	struct ptc_pins *h = ptc_calloc(1, sizeof *h);

	if (h)
		pthread_mutex_init(&h->lock, NULL);
	return h;
}

static void pin_free(struct pinned *h)
{
	ptc_read_view_put(h->view);
	ptc_free(h);
}

static void release_until(struct ptc_pins *h, int64_t now_ns)
{
	struct pinned *over = NULL, *e;

	pthread_mutex_lock(&h->lock);
	for (struct pinned **at = &h->list; (e = *at);) {
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
		pin_free(e);
	}
}

void ptc_pins_expire(struct ptc_pins *h)
{
	release_until(h, ptc_sys_now_ns());
}

struct ptc_pins *ptc_pins_free(struct ptc_pins *h)
{
	if (!h)
		return NULL;
	release_until(h, INT64_MAX);
	pthread_mutex_destroy(&h->lock);
	ptc_free(h);
	return NULL;
}

static struct pinned **find_locked(struct ptc_pins *h, const char *uuid, uint64_t generation, uint64_t snapshot,
				   const char *reader)
{
	struct pinned **at = &h->list;

	while (*at) {
		const struct ptc_view *v = &(*at)->view->view;

		if (v->from_generation == generation && v->from_snapshot == snapshot && !strcmp(v->meta.uuid, uuid) &&
		    (!reader || !strcmp((*at)->reader, reader)))
			break;
		at = &(*at)->next;
	}
	return at;
}

/* Gives a reference to a generation that a reader has pinned through this daemon. False: nobody has. */
static bool pinned_view(struct ptc_pins *h, const char *uuid, uint64_t generation, uint64_t snapshot,
			struct ptc_read_view **ret_view)
{
	struct pinned *e;

	pthread_mutex_lock(&h->lock);
	e = *find_locked(h, uuid, generation, snapshot, NULL);
	if (e) {
		ptc_read_view_ref(e->view);
		*ret_view = e->view;
	}
	pthread_mutex_unlock(&h->lock);
	return e != NULL;
}

static int remember(struct ptc_pins *h, const Ptc__V1__PinRequest *req, struct ptc_read_view *view,
		    struct ptc_error *err)
{
	int64_t until =
		ptc_sys_now_ns() + (int64_t)(req->ttl_ms < PTC_PIN_MAX_MS ? req->ttl_ms : PTC_PIN_MAX_MS) * 1000000;
	struct pinned *fresh = ptc_calloc(1, sizeof *fresh), *e;
	size_t n = 0;

	if (!fresh)
		return ptc_nomem(err);
	fresh->until_ns = until;
	snprintf(fresh->reader, sizeof fresh->reader, "%s", req->reader);
	pthread_mutex_lock(&h->lock);
	for (e = h->list; e; e = e->next)
		n++;
	e = *find_locked(h, view->view.meta.uuid, req->generation, req->snapshot, req->reader);
	if (e) {
		e->until_ns = until;
	} else if (n < PTC_MAX_PINS) {
		ptc_read_view_ref(view);
		fresh->view = view;
		fresh->next = h->list;
		h->list = fresh;
	}
	pthread_mutex_unlock(&h->lock);
	if (!fresh->view)
		ptc_free(fresh);
	return e || n < PTC_MAX_PINS
		       ? 0
		       : ptc_error_set(err, PTC_ELIMIT,
				       "readers pin %zu snapshots here already, which is the most; close some files",
				       n);
}

static void forget(struct ptc_pins *h, const char *uuid, const Ptc__V1__PinRequest *req)
{
	struct pinned **at, *e;

	pthread_mutex_lock(&h->lock);
	at = find_locked(h, uuid, req->generation, req->snapshot, req->reader);
	e = *at;
	if (e)
		*at = e->next;
	pthread_mutex_unlock(&h->lock);
	if (e)
		pin_free(e);
}

/* ---- every node ----------------------------------------------------------------- */

struct ask {
	struct ptc_daemon *d;
	const struct ptc_read_view *view;
	const char *reader;
	uint32_t ttl_ms;
	_Atomic unsigned pinned;
};

static int ask_node(void *arg, unsigned thread, size_t i, struct ptc_error *err)
{
	struct ask *a = arg;
	const struct ptc_geometry *g = &a->view->geometry;
	struct ptc_table_key key = { .generation = g->generation,
				     .snapshot = ptc_geometry_snapshot(g, (uint32_t)i, g->snapshot) };
	Ptc__V1__PinRequest req = PTC__V1__PIN_REQUEST__INIT;
	struct ptc_rpc_channel *channel = NULL;
	int rc;

	memcpy(key.uuid, g->uuid, sizeof key.uuid);
	req.version = PTC_WIRE_VERSION;
	req.uuid = key.uuid;
	req.generation = key.generation;
	req.snapshot = key.snapshot;
	req.reader = (char *)(uintptr_t)a->reader; /* packing only reads */
	req.ttl_ms = a->ttl_ms;
	if (!strcmp(g->nodes[i], a->d->config.node))
		rc = ptc_agent_pin(a->d->agent, &key, req.reader, req.ttl_ms, NULL);
	else if (!g->addresses[i][0])
		rc = PTC_EPEER;
	else
		rc = ptc_channels_get(a->d->channels, g->nodes[i], g->addresses[i], false, 0, &channel, NULL);
	if (!rc && channel)
		rc = ptc_pb_unary(channel, "/ptc.v1.Peer/Pin", &req.base, PEER_MS, NULL, 0, NULL, NULL, NULL);
	if (!rc)
		a->pinned++;
	return 0; /* one that is gone is no reason to let the others go */
}

int ptc_pins_nodes(struct ptc_daemon *d, const struct ptc_read_view *view, const char *reader, uint32_t ttl_ms,
		   unsigned *ret_pinned, struct ptc_error *err)
{
	struct ask a = { .d = d, .view = view, .reader = reader, .ttl_ms = ttl_ms };
	struct ptc_task_pool task_pool = { .ntasks = view->geometry.nnodes,
					   .threads = PTC_TASK_POOL_MAX,
					   .run = ask_node,
					   .arg = &a,
					   .what = "holding a snapshot" };
	int rc = ptc_task_pool_run(&task_pool, err);

	if (rc == 0)
		*ret_pinned = a.pinned;
	return rc;
}

static int moved_on(const char *job, uint64_t now, uint64_t was, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ESTATE,
			     "job %s is being switched: generation %llu was read, now it is at %llu; export again", job,
			     (unsigned long long)was, (unsigned long long)now);
}

/* The generation that the client's ExportInfo named, or an error that says it is gone. */
int ptc_api_read_view(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job, const char *uuid,
		      uint64_t generation, uint64_t snapshot, struct ptc_read_view **ret_view, struct ptc_error *err)
{
	struct ptc_target t;
	int rc = ptc_api_find(d, call, job, &t, err);

	if (rc)
		return rc;
	if (uuid[0] && strcmp(uuid, t.meta.uuid) != 0)
		return ptc_error_set(err, PTC_ESTATE,
				     "job \"%s\" was deleted, and another job now has its name; open it again", job);
	if (!t.has_record)
		return ptc_error_set(err, PTC_ESTATE, "job \"%s\" has no state yet; import or run it first", job);
	if ((t.record.generation != generation || t.record.snapshot != snapshot) &&
	    !ptc_api_go_back(d, &t, generation, snapshot))
		return pinned_view(d->pins, t.meta.uuid, generation, snapshot, ret_view)
			       ? 0
			       : moved_on(job, t.record.generation, generation, err);
	rc = ptc_read_view_get(d, &t, ret_view, err);
	if (rc == 0 &&
	    ((*ret_view)->view.from_generation != generation || (*ret_view)->view.from_snapshot != snapshot)) {
		struct ptc_read_view *newer = *ret_view;

		if (!pinned_view(d->pins, t.meta.uuid, generation, snapshot, ret_view))
			rc = moved_on(job, newer->view.from_generation, generation, err);
		ptc_read_view_put(newer);
	}
	return rc;
}

static int pin(struct ptc_daemon *d, struct ptc_rpc_call *call, const Ptc__V1__PinRequest *req, struct ptc_error *err)
{
	struct ptc_read_view *view;
	unsigned pinned = 0;
	int rc = ptc_api_read_view(d, call, req->job, req->uuid, req->generation, req->snapshot, &view, err);

	if (rc)
		return rc;
	if (req->ttl_ms)
		rc = remember(d->pins, req, view, err);
	else
		forget(d->pins, view->view.meta.uuid, req);
	if (!rc)
		rc = ptc_pins_nodes(d, view, req->reader, req->ttl_ms, &pinned, err);
	if (!rc && req->ttl_ms && !pinned)
		rc = ptc_error_set(err, PTC_ESTATE, "no node has snapshot %llu of job %s any more",
				   (unsigned long long)req->snapshot, req->job);
	ptc_read_view_put(view);
	return rc;
}

PTC_API_HANDLER(ptc_api_pin)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__Ack ack = PTC__V1__ACK__INIT;
	Ptc__V1__PinRequest *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__pin_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	if (!req->reader[0] || strlen(req->reader) > PTC_PIN_READER_MAX)
		rc = ptc_error_set(err, PTC_EINVAL, "the pin request has no reader's name, or one that is too long");
	if (rc == 0)
		rc = pin(d, call, req, err);
	ptc_pb_free(&req->base);
	ack.version = PTC_WIRE_VERSION;
	return rc ? rc : ptc_pb_call_send(call, &ack.base, err);
}
