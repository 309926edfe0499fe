/* SPDX-License-Identifier: Apache-2.0 */
/* Bulk streams through rpc/, the way daemons move state: parts of PTC_BULK_MESSAGE_BYTES alias the sender's memory, the
 * receiver copies them into place. One connection and one thread per stream.
 *
 * Happy path: a server in this process, a channel per stream (connected before the clock starts), run, free.
 *
 * Failure modes: whatever rpc/ reports; fewer bytes than asked for is PTC_EPEER. */
#include "tests/bench/measure.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define METHOD  "/ptc.bench.Bulk/Fetch"
#define TIMEOUT 10000

struct request {
	int64_t bytes;
	uint32_t stream;
};

struct stream {
	struct measure_rpc *r;
	pthread_t thread;
	struct ptc_rpc_channel *channel;
	uint32_t index;
	int64_t bytes;
	int status;
	struct ptc_error err;
};

struct measure_rpc {
	const struct measure_memory *m;
	size_t part;
	struct ptc_rpc_server *server;
	int streams;
	struct stream v[MEASURE_STREAMS_MAX];
};

static void nothing(void *arg)
{
	(void)arg;
}

static int request_read(struct ptc_rpc_call *call, struct request *ret, struct ptc_error *err)
{
	struct ptc_rpc_message *msg = NULL;
	int rc = ptc_rpc_call_recv(call, &msg, err);

	if (!rc && (!msg || ptc_rpc_message_read(msg, ret, sizeof *ret) != sizeof *ret))
		rc = ptc_error_set(err, PTC_EINVAL, "a request of another size");
	return rc;
}

static int serve(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct measure_rpc *r = arg;
	struct request q;
	int rc = request_read(call, &q, err);

	if (!rc && q.stream >= (uint32_t)r->streams)
		rc = ptc_error_set(err, PTC_EINVAL, "no such stream");
	for (int64_t done = 0; !rc && done < q.bytes;) {
		size_t at = (size_t)done % r->part;
		size_t n = (size_t)PTC_MIN((int64_t)PTC_MIN(r->part - at, PTC_BULK_MESSAGE_BYTES), q.bytes - done);
		struct ptc_rpc_part p = { r->m->src + (size_t)q.stream * r->part + at, n, nothing, NULL };

		rc = ptc_rpc_call_send(call, &p, 1, err);
		done += (int64_t)n;
	}
	return rc;
}

static int64_t receive(struct stream *s, struct ptc_rpc_message *msg, int64_t done)
{
	uint8_t *dst = s->r->m->dst + (size_t)s->index * s->r->part;
	const void *span;
	size_t n;

	while ((n = ptc_rpc_message_next(msg, &span)) > 0) {
		for (size_t k = 0; k < n;) {
			size_t at = (size_t)done % s->r->part, now = PTC_MIN(n - k, s->r->part - at);

			memcpy(dst + at, (const uint8_t *)span + k, now);
			k += now;
			done += (int64_t)now;
		}
	}
	return done;
}

static int fetch(struct stream *s, struct ptc_error *err)
{
	struct request q = { .bytes = s->bytes, .stream = s->index };
	struct ptc_rpc_part p = { .data = &q, .len = sizeof q };
	struct ptc_rpc_stream *stream = NULL;
	struct ptc_rpc_message *msg;
	int64_t done = 0;
	int rc = ptc_rpc_stream_open(s->channel, METHOD, 0, NULL, 0, &stream, err);

	if (!rc)
		rc = ptc_rpc_stream_send(stream, &p, 1, err);
	if (!rc)
		rc = ptc_rpc_stream_half_close(stream, err);
	while (!rc && (rc = ptc_rpc_stream_recv(stream, &msg, err)) == 0 && msg)
		done = receive(s, msg, done);
	ptc_rpc_stream_free(stream);
	if (!rc && done != s->bytes)
		rc = ptc_error_set(err, PTC_EPEER, "%lld of %lld bytes came", (long long)done, (long long)s->bytes);
	return rc;
}

static void *fetch_thread(void *arg)
{
	struct stream *s = arg;

	s->status = fetch(s, &s->err);
	return NULL;
}

static int channels_open(struct measure_rpc *r, const struct ptc_rpc_channel_opts *opts, struct ptc_error *err)
{
	int rc = 0;

	for (int i = 0; !rc && i < r->streams; i++) {
		struct stream *s = &r->v[i];
		void *reply = NULL;
		size_t len;

		s->r = r;
		s->index = (uint32_t)i;
		rc = ptc_rpc_channel_new(opts, &s->channel, err);
		if (!rc) /* connects and shakes hands */
			rc = ptc_rpc_unary(s->channel, "/grpc.health.v1.Health/Check", "", 0, TIMEOUT, NULL, 0, &reply,
					   &len, err);
		ptc_free(reply);
	}
	return rc;
}

static int listen_on(struct measure_rpc *r, enum measure_transport t, const char *dir, struct ptc_error *err)
{
	char path[3][256], target[300];
	struct ptc_rpc_tls tls = { .ca_path = path[0], .cert_path = path[1], .key_path = path[2] };
	struct ptc_rpc_channel_opts opts = { .target = target,
					     .bulk = true,
					     .max_message_bytes = PTC_BULK_MESSAGE_MAX };
	int port = 0, rc;

	snprintf(path[0], sizeof path[0], "%s/ca.crt", dir);
	snprintf(path[1], sizeof path[1], "%s/n0.crt", dir);
	snprintf(path[2], sizeof path[2], "%s/n0.key", dir);
	if (t == MEASURE_UNIX) {
		snprintf(target, sizeof target, "unix:%s/bulk.sock", dir);
		rc = ptc_rpc_server_listen_unix(r->server, target + strlen("unix:"), 0600, true, err);
	} else if (t == MEASURE_TLS) {
		opts.tls = &tls;
		opts.expect_node = "n0";
		rc = ptc_rpc_server_listen_tls(r->server, "127.0.0.1:0", &tls, &port, err);
	} else {
		opts.insecure = true;
		rc = ptc_rpc_server_listen_insecure(r->server, "127.0.0.1:0", &port, err);
	}
	if (t != MEASURE_UNIX)
		snprintf(target, sizeof target, "127.0.0.1:%d", port);
	if (!rc)
		rc = ptc_rpc_server_start(r->server, err);
	return rc ? rc : channels_open(r, &opts, err);
}

int measure_rpc_new(enum measure_transport t, const char *dir, const struct measure_memory *m, int streams,
		    struct measure_rpc **ret, struct ptc_error *err)
{
	struct measure_rpc *r = ptc_calloc(1, sizeof *r);
	const struct ptc_rpc_server_opts opts = { 0 };
	int rc;

	if (!r)
		return ptc_nomem(err);
	r->m = m;
	r->streams = streams;
	r->part = m->bytes / (size_t)streams;
	rc = ptc_rpc_server_new(&opts, &r->server, err);
	if (!rc)
		rc = ptc_rpc_server_method(r->server, METHOD, 1u << PTC_ROLE_NODE, serve, r, err);
	if (!rc) {
		ptc_rpc_server_serving(r->server, true);
		rc = listen_on(r, t, dir, err);
	}
	if (rc) {
		measure_rpc_free(r);
		return rc;
	}
	*ret = r;
	return 0;
}

int measure_rpc_run(struct measure_rpc *r, int64_t bytes, struct measured *ret, struct ptc_error *err)
{
	struct measure_clock c = measure_start();
	int started = 0, rc = 0;

	for (; started < r->streams; started++) {
		struct stream *s = &r->v[started];

		s->bytes = bytes / r->streams;
		if (pthread_create(&s->thread, NULL, fetch_thread, s) != 0)
			break;
	}
	if (started < r->streams)
		rc = ptc_error_set(err, PTC_EIO, "no thread for a stream");
	for (int i = 0; i < started; i++) {
		pthread_join(r->v[i].thread, NULL);
		if (!rc && r->v[i].status)
			rc = ptc_error_set(err, r->v[i].status, "%s", r->v[i].err.text);
	}
	if (!rc)
		*ret = measure_end(&c, bytes / r->streams * r->streams);
	return rc;
}

struct measure_rpc *measure_rpc_free(struct measure_rpc *r)
{
	if (!r)
		return NULL;
	for (int i = 0; i < r->streams; i++)
		ptc_rpc_channel_free(r->v[i].channel);
	ptc_rpc_server_free(r->server, 1000);
	ptc_free(r);
	return NULL;
}
