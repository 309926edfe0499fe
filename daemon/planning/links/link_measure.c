/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the links between nodes. Happy path: the coordinating daemon asks one node of each pair to pull from the
 * other, first one way and then the other. The pairs of a round do so at once, PTC_LINK_CALLS of them at a time. The
 * puller opens as many streams as a switch has connections to a node, and counts the bytes of the best of three windows
 * of 120 ms.
 *
 * Failure modes: a node that does not answer within MEASURE_MS leaves that pair out, and after a few such rounds all of
 * its pairs. If the caller goes, or the daemon stops, the round ends without answers, and is the last one. */
#include "daemon/planning/links/links.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define LANES       2 /* connections that a switch has to a node: PTC_AGENT_LANES */
#define PINGS       5
#define WINDOWS     3
#define WINDOW_NS   INT64_C(120000000)
#define LOOK_NS     INT64_C(5000000)
#define STREAM_MS   3000
#define MEASURE_MS  5000
#define SPARE_MS    1000                 /* for the loop to hear of answers */
#define CALLER_NS   INT64_C(100000000)   /* how often we look whether the caller is still there */
#define STREAM_MAX  (UINT64_C(16) << 30) /* more than any link brings in that time */
#define PIECE_BYTES (128u << 10)         /* a slow link brings some in that time, too */
#define SLOW_NS     INT64_C(2000000000)  /* a link that has brought nothing by then is none */

/* ---- the sender ---- */

static int serve_stream(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	static const uint8_t nothing[PIECE_BYTES];
	Ptc__V1__StreamRequest *req;
	uint64_t left;
	int rc = ptc_pb_call_recv(call, &ptc__v1__stream_request__descriptor, (ProtobufCMessage **)&req, err);

	(void)arg;
	if (rc)
		return rc;
	left = PTC_MIN(req->bytes, STREAM_MAX);
	ptc_pb_free(&req->base);
	while (rc == 0 && left && !ptc_rpc_call_cancelled(call)) {
		struct ptc_rpc_part part = { .data = nothing, .len = PTC_MIN(left, (uint64_t)PIECE_BYTES) };

		rc = ptc_rpc_call_send(call, &part, 1, err);
		left -= part.len;
	}
	return rc;
}

/* ---- the puller ---- */

struct lane {
	struct ptc_rpc_channel *channel;
	pthread_t thread;
	bool started;
	atomic_uint_fast64_t *bytes; /* of all lanes */
	atomic_bool *stop;
	int rc;
};

static int open_stream(struct ptc_rpc_channel *channel, uint64_t bytes, struct ptc_rpc_stream **ret)
{
	Ptc__V1__StreamRequest req = PTC__V1__STREAM_REQUEST__INIT;
	void *data = NULL;
	size_t len = 0;
	int rc;

	req.version = PTC_WIRE_VERSION;
	req.bytes = bytes;
	rc = ptc_pb_encode(&req.base, &data, &len, NULL);
	if (rc == 0)
		rc = ptc_rpc_stream_open(channel, "/ptc.v1.Peer/Stream", STREAM_MS, NULL, 0, ret, NULL);
	if (rc == 0)
		rc = ptc_rpc_stream_send(*ret, &(struct ptc_rpc_part){ .data = data, .len = len }, 1, NULL);
	if (rc == 0)
		rc = ptc_rpc_stream_half_close(*ret, NULL);
	ptc_free(data);
	return rc;
}

static void *pull(void *arg)
{
	struct lane *l = arg;
	struct ptc_rpc_stream *s = NULL;
	struct ptc_rpc_message *m = NULL;

	l->rc = open_stream(l->channel, STREAM_MAX, &s);
	while (l->rc == 0 && !atomic_load(l->stop) && (l->rc = ptc_rpc_stream_recv(s, &m, NULL)) == 0 && m) {
		atomic_fetch_add(l->bytes, ptc_rpc_message_len(m));
		ptc_rpc_message_done(m);
	}
	ptc_rpc_stream_free(s);
	return NULL;
}

static void wait_ns(int64_t ns)
{
	const struct timespec nap = { ns / 1000000000, ns % 1000000000 };

	nanosleep(&nap, NULL);
}

/* The fastest of a few empty answers: there and back. */
static double latency_of(struct ptc_rpc_channel *channel)
{
	double least = 0;

	for (int i = 0; i < PINGS; i++) {
		int64_t began = ptc_sys_now_ns();
		struct ptc_rpc_stream *s = NULL;
		int rc = open_stream(channel, 0, &s);
		double took;

		if (rc == 0)
			rc = ptc_rpc_stream_finish(s, NULL);
		ptc_rpc_stream_free(s);
		took = (double)(ptc_sys_now_ns() - began) / 1e9;
		if (rc == 0 && (least <= 0 || took < least))
			least = took;
	}
	return least / 2;
}

static int start_lanes(struct ptc_channels *channels, const Ptc__V1__MeasureRequest *req, struct lane *lanes,
		       struct ptc_error *err)
{
	int rc = 0;

	for (unsigned i = 0; i < LANES && rc == 0; i++) {
		rc = ptc_channels_get(channels, req->node, req->address, true, i, &lanes[i].channel, err);
		if (rc == 0)
			lanes[i].started = ptc_thread_start(&lanes[i].thread, "ptc-link", pull, &lanes[i], NULL) == 0;
	}
	return rc;
}

/* Bytes per second in the best of a few windows, from the first message on: who else uses the processor or the link for
 * a moment does not count. 0: nothing came. */
static double time_lanes(atomic_uint_fast64_t *bytes)
{
	int64_t began = ptc_sys_now_ns();
	double best = 0;

	while (!atomic_load(bytes) && ptc_sys_now_ns() - began < SLOW_NS)
		wait_ns(LOOK_NS);
	if (!atomic_load(bytes))
		return 0;
	for (int i = 0; i < WINDOWS; i++) {
		uint64_t before = atomic_load(bytes);
		int64_t from = ptc_sys_now_ns();

		wait_ns(WINDOW_NS);
		best = PTC_MAX(best, (double)(atomic_load(bytes) - before) / ((double)(ptc_sys_now_ns() - from) / 1e9));
	}
	return best;
}

static int measure(struct ptc_channels *channels, const Ptc__V1__MeasureRequest *req, Ptc__V1__MeasureReply *reply,
		   struct ptc_error *err)
{
	atomic_uint_fast64_t bytes = 0;
	atomic_bool stop = false;
	struct lane lanes[LANES];
	int rc;

	for (unsigned i = 0; i < LANES; i++)
		lanes[i] = (struct lane){ .bytes = &bytes, .stop = &stop };
	rc = start_lanes(channels, req, lanes, err);
	if (rc == 0)
		reply->bytes_s = time_lanes(&bytes);
	atomic_store(&stop, true);
	for (unsigned i = 0; i < LANES; i++)
		if (lanes[i].started)
			pthread_join(lanes[i].thread, NULL);
	if (rc == 0 && !(reply->bytes_s > 0))
		rc = ptc_error_set(err, PTC_EPEER, "node %s sent no bytes in time; see its log", req->node);
	if (rc == 0)
		reply->latency_s = latency_of(lanes[0].channel);
	return rc;
}

static int serve_measure(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__MeasureReply reply = PTC__V1__MEASURE_REPLY__INIT;
	Ptc__V1__MeasureRequest *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__measure_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	reply.version = PTC_WIRE_VERSION;
	rc = measure(arg, req, &reply, err);
	ptc_pb_free(&req->base);
	return rc ? rc : ptc_pb_call_send(call, &reply.base, err);
}

int ptc_links_register(struct ptc_rpc_server *peers, struct ptc_channels *channels, struct ptc_error *err)
{
	int rc = ptc_rpc_server_method(peers, "/ptc.v1.Peer/Stream", 1u << PTC_ROLE_NODE, serve_stream, NULL, err);

	if (rc == 0)
		rc = ptc_rpc_server_method(peers, "/ptc.v1.Peer/Measure", 1u << PTC_ROLE_NODE, serve_measure, channels,
					   err);
	return rc;
}

/* ---- who coordinates ---- */

struct pair {
	struct round *of;
	struct ptc_link_node a, b; /* an answer may come when the caller's are gone */
	size_t ia, ib;             /* of the caller's nodes */
	bool asked, back;          /* back: the first way was answered, or never will be */
	struct result {
		double bytes_s, latency_s; /* 0: not measured */
	} ab, ba;                          /* bytes going from a to b, and back */
};

/* The coordinator's thread waits for the answers, which the loop hears. It goes when the time is over, also if an
 * answer comes later, or never as the daemon stops. So it has a reference, and so does each place, which is a call at a
 * time. */
struct round {
	pthread_mutex_t lock; /* guards everything but what pairs are of */
	pthread_cond_t cond;
	size_t refs, places, next, n;
	bool over;
	struct ptc_channels *channels;
	struct ptc_rpc_client *client;
	struct pair pairs[];
};

static void round_unref(struct round *r)
{
	bool last;

	pthread_mutex_lock(&r->lock);
	last = --r->refs == 0;
	pthread_mutex_unlock(&r->lock);
	if (!last)
		return;
	pthread_cond_destroy(&r->cond);
	pthread_mutex_destroy(&r->lock);
	ptc_free(r);
}

static void answered(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len);

/* Has `to` pull from `from`. False: it cannot be asked. */
static bool ask(struct pair *p, const struct ptc_link_node *from, const struct ptc_link_node *to)
{
	Ptc__V1__MeasureRequest req = PTC__V1__MEASURE_REQUEST__INIT;
	struct ptc_rpc_channel *channel;
	ptc_auto_free void *data = NULL;
	size_t len;

	req.version = PTC_WIRE_VERSION;
	req.node = (char *)(uintptr_t)from->name; /* packing only reads */
	req.address = (char *)(uintptr_t)from->address;
	if (ptc_channels_get(p->of->channels, to->name, to->address, false, 0, &channel, NULL) != 0 ||
	    ptc_pb_encode(&req.base, &data, &len, NULL) != 0)
		return false;
	ptc_rpc_unary_async(p->of->client, channel, "/ptc.v1.Peer/Measure", data, len, MEASURE_MS, answered, p);
	return true;
}

/* A place is free: the next pair has it. */
static void go_on(struct round *r)
{
	struct pair *p;

	do {
		p = NULL;
		pthread_mutex_lock(&r->lock);
		if (!r->over && r->next < r->n)
			p = &r->pairs[r->next++];
		else if (--r->places == 0)
			pthread_cond_signal(&r->cond);
		pthread_mutex_unlock(&r->lock);
	} while (p && (!p->asked || !ask(p, &p->a, &p->b)));
	if (!p)
		round_unref(r);
}

static struct result result_of(const void *reply, size_t len)
{
	struct result r = { 0 };
	ProtobufCMessage *m;

	if (ptc_pb_decode(&ptc__v1__measure_reply__descriptor, reply, len, &m, NULL) != 0)
		return r;
	r.bytes_s = ((Ptc__V1__MeasureReply *)m)->bytes_s;
	r.latency_s = ((Ptc__V1__MeasureReply *)m)->latency_s;
	ptc_pb_free(m);
	return r;
}

/* Loop thread. If the first way has failed, one of them hangs, which takes as long the other way round. */
static void answered(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len)
{
	struct pair *p = arg;
	struct round *r = p->of;
	struct result got = { 0 };
	bool back;

	(void)err;
	if (status == 0)
		got = result_of(reply, len);
	pthread_mutex_lock(&r->lock);
	back = !r->over && !p->back && got.bytes_s > 0;
	if (!r->over && p->back)
		p->ba = got;
	else if (!r->over)
		p->ab = got;
	p->back = true;
	pthread_mutex_unlock(&r->lock);
	if (!back || !ask(p, &p->b, &p->a))
		go_on(r);
}

size_t ptc_link_opponent(size_t n, size_t round, size_t i)
{
	size_t last = n - 1, other;

	if (i == last) /* it stays where it is, the others go around it */
		return round % 2 ? ((round + last) / 2) % last : (round / 2) % last;
	other = (round + last - i) % last;
	return other == i ? last : other;
}

struct tournament {
	struct ptc_channels *channels;
	struct ptc_rpc_client *client;
	const struct ptc_rpc_call *call;
	const struct ptc_link_node *nodes;
	size_t n;
	unsigned *silent; /* of each node: rounds without any answer; UINT_MAX: it has answered once */
	struct ptc_links out, failed;
};

static bool gives_up(const struct tournament *t, size_t node)
{
	return t->silent[node] >= PTC_LINK_SILENT && t->silent[node] != UINT_MAX;
}

static int put(struct tournament *t, const struct ptc_link_node *from, const struct ptc_link_node *to,
	       const struct result *r)
{
	struct ptc_links *list = r->bytes_s > 0 ? &t->out : &t->failed;
	struct ptc_link *l;

	if (!PTC_MORE(list->v, list->n))
		return PTC_ENOMEM;
	l = &list->v[list->n++];
	*l = (struct ptc_link){ .bytes_s = r->bytes_s, .latency_s = r->latency_s };
	memcpy(l->from, from->name, sizeof l->from);
	memcpy(l->to, to->name, sizeof l->to);
	return 0;
}

/* Which of two nodes did not answer nobody knows; another partner shows it. */
static int take(struct tournament *t, const struct pair *p)
{
	bool any = p->ab.bytes_s > 0 || p->ba.bytes_s > 0;
	unsigned *of[] = { &t->silent[p->ia], &t->silent[p->ib] };
	int rc = put(t, &p->a, &p->b, &p->ab);

	if (rc == 0)
		rc = put(t, &p->b, &p->a, &p->ba);
	for (size_t i = 0; p->asked && i < PTC_ARRAY_LEN(of); i++)
		*of[i] = any ? UINT_MAX : *of[i] == UINT_MAX ? UINT_MAX : *of[i] + 1;
	return rc;
}

static struct round *round_new(struct tournament *t, size_t round)
{
	size_t even = t->n + t->n % 2;
	struct round *r = ptc_calloc(1, sizeof *r + (t->n / 2 + 1) * sizeof *r->pairs);

	if (!r)
		return NULL;
	ptc_require(!pthread_mutex_init(&r->lock, NULL));
	ptc_cond_init(&r->cond);
	r->channels = t->channels;
	r->client = t->client;
	for (size_t i = 0; i < t->n; i++) {
		size_t k = ptc_link_opponent(even, round, i);

		if (k <= i || k >= t->n)
			continue;
		r->pairs[r->n++] = (struct pair){ .of = r,
						  .a = t->nodes[i],
						  .b = t->nodes[k],
						  .ia = i,
						  .ib = k,
						  .asked = !gives_up(t, i) && !gives_up(t, k) };
	}
	r->places = PTC_MIN(r->n, (size_t)PTC_LINK_CALLS);
	r->refs = r->places + 1;
	return r;
}

/* Once the daemon stops, the loop hears of no answer any more. */
static bool waits_locked(const struct tournament *t, struct round *r, int64_t until)
{
	int64_t now = ptc_sys_now_ns();

	if (!r->places || now >= until || ptc_rpc_call_cancelled(t->call))
		return false;
	ptc_cond_wait_until(&r->cond, &r->lock, PTC_MIN(until, now + CALLER_NS));
	return true;
}

static int run_round(struct tournament *t, size_t round)
{
	struct round *r = round_new(t, round);
	size_t turns = r ? (r->n + PTC_LINK_CALLS - 1) / PTC_LINK_CALLS : 0, places = r ? r->places : 0;
	int64_t until = ptc_sys_now_ns() + (int64_t)(turns * 2 * MEASURE_MS + SPARE_MS) * 1000000;
	int rc = 0;

	if (!r)
		return PTC_ENOMEM;
	while (places--)
		go_on(r);
	pthread_mutex_lock(&r->lock);
	while (waits_locked(t, r, until))
		;
	r->over = true;
	if (ptc_rpc_call_cancelled(t->call))
		rc = PTC_ECANCELED;
	for (size_t i = 0; i < r->n && rc == 0; i++)
		rc = take(t, &r->pairs[i]);
	pthread_mutex_unlock(&r->lock);
	round_unref(r);
	return rc;
}

int ptc_links_measure(struct ptc_channels *channels, struct ptc_rpc_client *client, const struct ptc_rpc_call *call,
		      const struct ptc_link_node *nodes, size_t n, struct ptc_links *ret, struct ptc_links *ret_failed,
		      struct ptc_error *err)
{
	struct tournament t = { .channels = channels,
				.client = client,
				.call = call,
				.nodes = nodes,
				.n = n,
				.silent = ptc_calloc(n + 1, sizeof *t.silent) };
	size_t rounds = n + n % 2;
	int rc = t.silent ? 0 : PTC_ENOMEM;

	for (size_t r = 0; rc == 0 && r + 1 < rounds && r < PTC_LINK_ROUNDS && r * n < PTC_LINK_PAIRS; r++)
		rc = run_round(&t, r);
	ptc_free(t.silent);
	if (rc) {
		ptc_free(t.out.v);
		ptc_free(t.failed.v);
		return rc == PTC_ECANCELED ? ptc_error_set(err, rc,
							   "the caller has gone, or this daemon stops, so the links "
							   "were not measured to the end")
					   : ptc_nomem(err);
	}
	*ret = t.out;
	*ret_failed = t.failed;
	return 0;
}
