/* SPDX-License-Identifier: Apache-2.0 */
/* Another node's samples. They come from this node's disk, and the rest from that node. Happy path and failure modes:
 * peer_samples.h. */
#include "daemon/samples/peer_samples.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"
#include "rpc/pb/pbcall.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define CALLS          8
#define UNREACHABLE_NS 1000000000
#define SILENT_NS      INT64_C(9000000000) /* a node says earlier that it is its source that does not answer */
#define RETRY_MS       50
#define RUN_PIECES     32 /* of one sample asked for together */

struct ptc_cache *ptc_samples_cache(struct ptc_samples *s)
{
	const struct ptc_daemon_config *config = s->o.config;
	struct ptc_error err = PTC_ERROR_INIT;

	pthread_mutex_lock(&s->lock);
	if (!s->cache_tried && config->sources.cache &&
	    ptc_cache_open(config->sources.dir, config->sources.cache, &s->cache, &err))
		ptc_warn("samples", "nothing of other nodes' datasets is kept here: %s", err.text);
	s->cache_tried = true;
	pthread_mutex_unlock(&s->lock);
	return s->cache;
}

/* ---- asking the node ---- */

static int enter(struct ptc_samples *s, const struct ptc_samples_reader *r, struct ptc_error *err)
{
	int64_t now;
	bool in;

	pthread_mutex_lock(&s->lock);
	while (s->calls >= CALLS && (now = ptc_sys_now_ns()) < r->end_ns &&
	       !(r->call && ptc_rpc_call_cancelled(r->call))) {
		ptc_cond_wait_until(&s->turn, &s->lock, now + 100000000);
	}
	in = s->calls < CALLS;
	s->calls += in;
	pthread_mutex_unlock(&s->lock);
	return in ? 0
		  : ptc_error_set(
			    err, PTC_ETIMEOUT,
			    "%d reads of other nodes' datasets are under way and none ends; see the other nodes' logs",
			    CALLS);
}

static void leave(struct ptc_samples *s)
{
	pthread_mutex_lock(&s->lock);
	s->calls--;
	pthread_cond_signal(&s->turn);
	pthread_mutex_unlock(&s->lock);
}

struct locate {
	struct ptc_cluster *cluster;
	const char *node;
	char address[256];
};

static void locate_on_loop(void *arg)
{
	struct locate *l = arg;
	uint32_t i;

	if (ptc_cluster_find_node(l->cluster, l->node, &i) && ptc_cluster_node(l->cluster, i)->up)
		snprintf(l->address, sizeof l->address, "%s", ptc_cluster_node(l->cluster, i)->doc.address);
}

static bool is_unreachable(struct ptc_samples *s, const char *node)
{
	bool unreachable;

	pthread_mutex_lock(&s->lock);
	unreachable = s->unreachable_until_ns > ptc_sys_now_ns() && !strcmp(s->unreachable, node);
	pthread_mutex_unlock(&s->lock);
	return unreachable;
}

static void note_unreachable(struct ptc_samples *s, const char *node)
{
	pthread_mutex_lock(&s->lock);
	snprintf(s->unreachable, sizeof s->unreachable, "%s", node);
	s->unreachable_until_ns = ptc_sys_now_ns() + UNREACHABLE_NS;
	pthread_mutex_unlock(&s->lock);
}

static int gather(struct ptc_rpc_message *m, void **ret, size_t *ret_len, struct ptc_error *err)
{
	size_t len = m ? ptc_rpc_message_len(m) : 0;
	void *data = ptc_malloc(PTC_MAX(len, (size_t)1));
	int rc = !m ? ptc_error_set(err, PTC_EPEER, "no answer") : data ? 0 : ptc_nomem(err);

	if (rc) {
		ptc_free(data);
		return rc;
	}
	*ret_len = ptc_rpc_message_read(m, data, len);
	*ret = data;
	return 0;
}

/* One call, given up when nobody waits for it any more. */
static int call_once(struct ptc_rpc_channel *channel, const struct ptc_samples_reader *r, int timeout_ms,
		     const void *request, size_t len, void **ret_reply, size_t *ret_len, struct ptc_error *err)
{
	struct ptc_rpc_stream *stream = NULL;
	struct ptc_rpc_message *m = NULL;
	void *reply = NULL;
	size_t n = 0;
	char uid[16];
	int rc;

	snprintf(uid, sizeof uid, "%u", (unsigned)r->uid);
	rc = ptc_rpc_stream_open(channel, "/ptc.v1.Control/DatasetRead", timeout_ms,
				 (struct ptc_rpc_meta[]){ { "ptc-uid", uid }, { "ptc-forwarded", "1" } }, 2, &stream,
				 err);
	if (rc)
		return rc;
	if (r->call)
		ptc_rpc_stream_follow(stream, r->call);
	rc = ptc_rpc_stream_send(stream, &(struct ptc_rpc_part){ .data = request, .len = len }, 1, err);
	if (!rc)
		rc = ptc_rpc_stream_half_close(stream, err);
	if (!rc)
		rc = ptc_rpc_stream_recv(stream, &m, err);
	if (!rc)
		rc = gather(m, &reply, &n, err);
	ptc_rpc_message_done(m);
	if (!rc)
		rc = ptc_rpc_stream_finish(stream, err);
	ptc_rpc_stream_free(stream);
	if (rc) {
		ptc_free(reply);
		return rc;
	}
	*ret_reply = reply;
	*ret_len = n;
	return 0;
}

/* Until it answers: one that has too much to do is asked again. */
static int call_node(struct ptc_rpc_channel *channel, const struct ptc_samples_reader *r, const void *request,
		     size_t len, void **ret_reply, size_t *ret_len, struct ptc_error *err)
{
	for (;;) {
		struct ptc_error why = PTC_ERROR_INIT;
		int left_ms = (int)((r->end_ns - ptc_sys_now_ns()) / 1000000);
		int rc = call_once(channel, r, PTC_MAX(left_ms, 1), request, len, ret_reply, ret_len, &why);

		if (rc != PTC_ELIMIT || left_ms < 2 * RETRY_MS)
			return rc ? ptc_error_set(err, rc, "%s", why.text) : 0;
		nanosleep(&(struct timespec){ .tv_nsec = RETRY_MS * 1000000 }, NULL); /* no thread of the loop's */
	}
}

static int ask(struct ptc_samples *s, const struct ptc_samples_reader *r, const Ptc__V1__SamplesRequest *q,
	       void **ret_reply, size_t *ret_len, struct ptc_error *err)
{
	const struct ptc_dataset_doc *doc = r->doc;
	struct locate l = { .cluster = s->o.cluster, .node = doc->node };
	struct ptc_rpc_channel *channel;
	void *request = NULL;
	size_t len = 0;
	int rc = ptc_loop_call(s->o.loop, locate_on_loop, &l);

	if (rc)
		return ptc_error_set(err, rc, "the daemon is stopping");
	if (!l.address[0] || is_unreachable(s, doc->node))
		return ptc_error_set(err, PTC_EPEER, "node %s, which alone has dataset %s, %s", doc->node, doc->name,
				     l.address[0] ? "has not answered" : "is down");
	rc = ptc_channels_get(s->o.channels, doc->node, l.address, true, 0, &channel, err);
	if (!rc)
		rc = ptc_pb_encode(&q->base, &request, &len, err);
	if (!rc)
		rc = enter(s, r, err);
	if (!rc) {
		int64_t asked_ns = ptc_sys_now_ns();

		rc = call_node(channel, r, request, len, ret_reply, ret_len, err);
		leave(s);
		if (rc == PTC_ETIMEOUT && ptc_sys_now_ns() - asked_ns > SILENT_NS)
			note_unreachable(s, doc->node);
		if (rc)
			ptc_error_wrap(err, "dataset %s, which lies on node %s", doc->name, doc->node);
	}
	ptc_free(request);
	return rc;
}

/* ---- what is here, and the rest ---- */

/* Pieces of one sample that are asked for together. */
struct run {
	uint32_t want; /* which of the request's */
	uint64_t first, n;
};

struct getting {
	struct ptc_samples *s;
	const struct ptc_samples_reader *r;
	const Ptc__V1__SamplesRequest *q;
	struct ptc_cache_name name;
	Ptc__V1__SamplesReply reply;
	size_t *at; /* where the bytes of each are put, as far apart as they may be */
	struct run *runs;
	size_t cap, nruns, npieces;
	uint8_t piece[PTC_CACHE_PIECE];
};

/* What of [from, from + len) of a sample is asked for goes to its place. */
static void take(struct getting *g, size_t i, uint64_t from, const uint8_t *data, size_t len)
{
	uint64_t want = g->q->offsets[i], end = want + g->q->lengths[i];
	uint64_t lo = PTC_MAX(want, from), hi = PTC_MIN(end, from + len);

	if (lo < hi)
		memcpy(g->reply.data.data + g->at[i] + (lo - want), data + (lo - from), hi - lo);
}

static void keep(struct getting *g, const struct run *run, uint64_t size, const uint8_t *data)
{
	g->name.sample = g->q->samples[run->want];
	for (uint64_t k = 0; k < run->n; k++) {
		uint64_t from = (run->first + k) * PTC_CACHE_PIECE;

		g->name.piece = run->first + k;
		if (from < size || !from)
			ptc_cache_put(g->s->cache, &g->name, size, data + k * PTC_CACHE_PIECE,
				      (size_t)PTC_MIN(size - from, (uint64_t)PTC_CACHE_PIECE));
	}
}

/* A file of a directory may grow between two answers, or since a piece of it was kept. */
static int size_is(struct getting *g, size_t i, uint64_t size, struct ptc_error *err)
{
	if (g->reply.sizes[i] != UINT64_MAX && g->reply.sizes[i] != size)
		return ptc_error_set(err, PTC_ECORRUPT,
				     "dataset %s: sample %llu has another size than before: its file was changed; add "
				     "the dataset again",
				     g->r->doc->name, (unsigned long long)g->q->samples[i]);
	g->reply.sizes[i] = size;
	return 0;
}

/* The answer to what the runs ask for. */
static int take_runs(struct getting *g, const Ptc__V1__SamplesRequest *q, const Ptc__V1__SamplesReply *r,
		     struct ptc_error *err)
{
	const uint8_t *data = r->data.len ? r->data.data : (const uint8_t *)"";

	for (size_t i = 0; i < g->nruns; i++) {
		const struct run *run = &g->runs[i];
		size_t len = ptc_samples_part(q, i, r->sizes[i]);
		int rc = size_is(g, run->want, r->sizes[i], err);

		if (rc)
			return rc;
		if (run->n) {
			take(g, run->want, run->first * PTC_CACHE_PIECE, data, len);
			keep(g, run, r->sizes[i], data);
		}
		data += len;
	}
	return 0;
}

static int ask_runs(struct getting *g, struct ptc_error *err)
{
	Ptc__V1__SamplesRequest q = *g->q;
	ProtobufCMessage *reply = NULL;
	void *raw = NULL;
	size_t len = 0;
	int rc;

	if (!g->nruns)
		return 0;
	q.n_samples = g->nruns;
	q.n_offsets = q.n_lengths = g->npieces ? g->nruns : 0;
	q.samples = ptc_calloc(g->nruns, sizeof *q.samples);
	q.offsets = ptc_calloc(g->nruns, sizeof *q.offsets);
	q.lengths = ptc_calloc(g->nruns, sizeof *q.lengths);
	rc = q.samples && q.offsets && q.lengths ? 0 : ptc_nomem(err);
	for (size_t i = 0; !rc && i < g->nruns; i++) {
		q.samples[i] = g->q->samples[g->runs[i].want];
		q.offsets[i] = g->runs[i].first * PTC_CACHE_PIECE;
		q.lengths[i] = (uint32_t)(g->runs[i].n * PTC_CACHE_PIECE);
	}
	if (rc == 0)
		rc = ask(g->s, g->r, &q, &raw, &len, err);
	if (rc == 0)
		rc = ptc_pb_decode(&ptc__v1__samples_reply__descriptor, raw, len, &reply, err);
	if (rc == 0)
		rc = ptc_samples_fits(&q, (Ptc__V1__SamplesReply *)reply, err);
	if (!rc)
		rc = take_runs(g, &q, (Ptc__V1__SamplesReply *)reply, err);
	g->nruns = g->npieces = 0;
	ptc_pb_free(reply);
	ptc_free(raw);
	ptc_free(q.samples);
	ptc_free(q.offsets);
	ptc_free(q.lengths);
	return rc;
}

/* One more piece is missing; pieces 0: only how long the sample is. */
static int miss(struct getting *g, size_t i, uint64_t piece, unsigned pieces, struct ptc_error *err)
{
	struct run *last = g->nruns ? &g->runs[g->nruns - 1] : NULL;
	int rc = 0;

	if (g->nruns && pieces && last->want == i && last->first + last->n == piece && last->n < RUN_PIECES &&
	    (g->npieces + 1) * PTC_CACHE_PIECE <= PTC_SAMPLES_BYTES) {
		last->n++;
		g->npieces++;
		return 0;
	}
	if (g->nruns == g->cap || (g->npieces + pieces) * PTC_CACHE_PIECE > PTC_SAMPLES_BYTES)
		rc = ask_runs(g, err);
	g->runs[g->nruns++] = (struct run){ (uint32_t)i, piece, pieces };
	g->npieces += pieces;
	return rc;
}

static int get_one(struct getting *g, size_t i, struct ptc_error *err)
{
	uint64_t offset = g->q->n_offsets ? g->q->offsets[i] : 0, len = g->q->n_offsets ? g->q->lengths[i] : 0;
	uint64_t end = (offset + PTC_MAX(len, 1) - 1) / PTC_CACHE_PIECE;
	int rc = 0;

	for (uint64_t k = offset / PTC_CACHE_PIECE; !rc && k <= end; k++) {
		uint64_t size;
		size_t n;

		g->name.sample = g->q->samples[i];
		g->name.piece = k;
		if (!ptc_cache_get(g->s->cache, &g->name, g->piece, &n, &size)) {
			rc = miss(g, i, k, len != 0, err);
			continue;
		}
		rc = size_is(g, i, size, err);
		if (!rc && len)
			take(g, i, k * PTC_CACHE_PIECE, g->piece, n);
		if ((k + 1) * PTC_CACHE_PIECE >= size)
			break;
	}
	return rc;
}

static int getting_new(struct getting *g, struct ptc_error *err)
{
	size_t n = g->q->n_samples, bytes = 0;

	ptc__v1__samples_reply__init(&g->reply);
	g->reply.version = PTC_WIRE_VERSION;
	g->reply.n_sizes = n;
	g->reply.sizes = ptc_malloc(PTC_MAX(n, (size_t)1) * sizeof *g->reply.sizes);
	for (size_t i = 0; g->reply.sizes && i < n; i++)
		g->reply.sizes[i] = UINT64_MAX; /* not known yet */
	g->at = ptc_calloc(n, sizeof *g->at);
	g->cap = PTC_MIN(2 * n + PTC_SAMPLES_BYTES / PTC_CACHE_PIECE, (size_t)PTC_SAMPLES_MAX);
	g->runs = ptc_calloc(g->cap, sizeof *g->runs);
	for (size_t i = 0; g->at && i < g->q->n_lengths; i++) {
		g->at[i] = bytes;
		bytes += g->q->lengths[i];
	}
	g->reply.data.data = ptc_calloc(1, PTC_MAX(bytes, (size_t)1)); /* what nobody fills must not be somebody's */
	g->name.uid = g->r->doc->uid;
	if (!g->reply.sizes || !g->at || !g->runs || !g->reply.data.data ||
	    ptc_dataset_doc_reader(g->r->doc, g->name.reader))
		return ptc_nomem(err);
	return 0;
}

static void getting_free(struct getting *g)
{
	ptc_free(g->reply.sizes);
	ptc_free(g->reply.data.data);
	ptc_free(g->at);
	ptc_free(g->runs);
	ptc_free(g);
}

/* The bytes of all samples, one after the other: where one is shorter than was asked for, those behind it move up. */
static int encode(struct getting *g, void **ret, size_t *ret_len, struct ptc_error *err)
{
	ProtobufCBinaryData *data = &g->reply.data;

	for (size_t i = 0; i < g->q->n_lengths; i++) {
		size_t len = ptc_samples_part(g->q, i, g->reply.sizes[i]);

		memmove(data->data + data->len, data->data + g->at[i], len);
		data->len += len;
	}
	return ptc_pb_encode(&g->reply.base, ret, ret_len, err);
}

int ptc_samples_get(struct ptc_samples *s, const struct ptc_samples_reader *r, const Ptc__V1__SamplesRequest *q,
		    void **ret_reply, size_t *ret_len, struct ptc_error *err)
{
	struct getting *g;
	int rc;

	if (q->names || !ptc_samples_cache(s))
		return ask(s, r, q, ret_reply, ret_len, err); /* goes through as it comes: who asked checks it */
	g = ptc_calloc(1, sizeof *g);
	if (!g)
		return ptc_nomem(err);
	g->s = s;
	g->r = r;
	g->q = q;
	rc = getting_new(g, err);
	for (size_t i = 0; !rc && i < q->n_samples; i++)
		rc = get_one(g, i, err);
	if (rc == 0)
		rc = ask_runs(g, err);
	if (rc == 0)
		rc = encode(g, ret_reply, ret_len, err);
	getting_free(g);
	return rc;
}
