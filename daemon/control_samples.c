/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of datasets that lie on one node only, for readers on any. Nothing here opens a source: the node that has it starts a
 * process of the owner's (daemon/sources/), others ask that node.
 *
 * Happy path: a reader asks its own daemon; that looks the dataset up, whether the caller may see it and whether it is still
 * the one he means; here, its process is asked, elsewhere, the call is handed on with the caller's uid. The answer goes through
 * as it came: who asked checks it.
 * Failure modes: the node is down (PTC_EPEER, at once) or does not answer (PTC_ETIMEOUT, after NODE_MS; then for AWAY_MS at once), what
 * its process says. A bounded number of answers of up to a megabyte are waited for at once, others wait for their turn, at most
 * NODE_MS; a node that has too much to do says so, and is asked again. What this node answers itself is bounded by its processes, so that
 * two nodes that ask each other never wait for themselves. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys.h"
#include "daemon/control.h"
#include "daemon/sources/sources.h"
#include "proto/samples.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define CALLS     8
#define NODE_MS   10000 /* for another node's answer */
#define SOURCE_MS 8000  /* for the source's, on its node: so that node can still say what is wrong */
#define AWAY_MS   1000
#define RETRY_MS  50
#define DOCS      64
#define DOC_NS    2000000000 /* how long a dataset's document is believed, and longer while etcd does not answer */

struct known {
	char name[PTC_NAME_MAX + 1];
	uid_t uid; /* who asked */
	int64_t asked_ns;
	struct ptc_dataset_doc *doc;
};

struct ptc_samples {
	struct ptc_sources *sources;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	size_t calls;
	struct known known[DOCS];
	size_t next_known;
	char away[PTC_NAME_MAX + 1]; /* a node that has just not answered */
	int64_t away_until_ns;
};

struct ptc_samples *ptc_samples_new(void)
{
	struct ptc_samples *s = ptc_calloc(1, sizeof *s);
	pthread_condattr_t attr;

	if (s)
		s->sources = ptc_sources_new();
	if (!s || !s->sources) {
		ptc_free(s);
		return NULL;
	}
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	ptc_require(!pthread_mutex_init(&s->lock, NULL) && !pthread_cond_init(&s->cond, &attr));
	pthread_condattr_destroy(&attr);
	return s;
}

struct ptc_samples *ptc_samples_free(struct ptc_samples *s)
{
	if (!s)
		return NULL;
	ptc_sources_free(s->sources);
	for (size_t i = 0; i < DOCS; i++)
		ptc_free(s->known[i].doc);
	pthread_cond_destroy(&s->cond);
	pthread_mutex_destroy(&s->lock);
	ptc_free(s);
	return NULL;
}

void ptc_samples_expire(struct ptc_samples *s)
{
	ptc_sources_expire(s->sources);
}

/* ---- whose turn it is, of the calls that another node answers ---- */

static int enter(struct ptc_samples *s, const struct ptc_rpc_call *call, int64_t end_ns, struct ptc_error *err)
{
	int64_t now;
	bool in;

	pthread_mutex_lock(&s->lock);
	while (s->calls >= CALLS && (now = ptc_sys_now_ns()) < end_ns && !ptc_rpc_call_cancelled(call)) {
		int64_t until_ns = now + 100000000;
		struct timespec until = { until_ns / 1000000000, until_ns % 1000000000 };

		pthread_cond_timedwait(&s->cond, &s->lock, &until);
	}
	in = s->calls < CALLS;
	s->calls += in;
	pthread_mutex_unlock(&s->lock);
	return in ? 0
		  : ptc_error_set(err, PTC_ETIMEOUT, "%d reads of datasets are under way here, none of which ends",
				  CALLS);
}

static void leave(struct ptc_samples *s)
{
	pthread_mutex_lock(&s->lock);
	s->calls--;
	pthread_cond_signal(&s->cond);
	pthread_mutex_unlock(&s->lock);
}

/* ---- which dataset ---- */

/* What is known of it, if it is the one; max_ns: not longer since it was asked for. */
static bool recall(struct ptc_samples *s, const char *name, uid_t uid, int64_t max_ns, struct ptc_dataset_doc *ret)
{
	bool found = false;

	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < DOCS && !found; i++) {
		const struct known *k = &s->known[i];

		found = k->doc && k->uid == uid && !strcmp(k->name, name) && ptc_sys_now_ns() - k->asked_ns < max_ns;
		if (found)
			*ret = *k->doc;
	}
	pthread_mutex_unlock(&s->lock);
	return found;
}

static void remember(struct ptc_samples *s, const char *name, uid_t uid, const struct ptc_dataset_doc *doc)
{
	struct known *k = NULL;

	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < DOCS && !k; i++)
		if (s->known[i].doc && s->known[i].uid == uid && !strcmp(s->known[i].name, name))
			k = &s->known[i];
	if (!k)
		k = &s->known[s->next_known++ % DOCS];
	if (!k->doc)
		k->doc = ptc_malloc(sizeof *k->doc);
	if (k->doc) {
		*k->doc = *doc;
		k->uid = uid;
		k->asked_ns = ptc_sys_now_ns();
		snprintf(k->name, sizeof k->name, "%s", name);
	}
	pthread_mutex_unlock(&s->lock);
}

/* The dataset that the request means, for who asks. Readers go on while etcd does not answer. */
static int find(struct ptc_daemon *d, const Ptc__V1__SamplesRequest *q, uid_t uid, struct ptc_dataset_doc *doc,
		struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	char source[33];
	int rc = 0;

	if (!recall(d->samples, q->dataset, uid, DOC_NS, doc)) {
		rc = ptc_control_dataset(d, q->dataset, uid, doc, &why);
		if (!rc)
			remember(d->samples, q->dataset, uid, doc);
		else if (rc == PTC_ECOORD && recall(d->samples, q->dataset, uid, INT64_MAX, doc))
			rc = 0;
	}
	if (rc)
		return ptc_error_set(err, rc, "%s", why.text);
	if (ptc_dataset_doc_source(doc, source))
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	if (strcmp(source, q->source) != 0)
		return ptc_error_set(err, PTC_ECORRUPT, "dataset %s is another one than is asked for", doc->name);
	if (!doc->node[0])
		return ptc_error_set(err, PTC_ESTATE, "dataset %s lies at %.600s on every node: read it there",
				     doc->name, doc->path);
	return 0;
}

/* ---- elsewhere ---- */

struct locate {
	struct ptc_daemon *d;
	const char *node;
	char address[256];
};

static void locate_on_loop(void *arg)
{
	struct locate *l = arg;
	uint32_t i;

	if (ptc_cluster_find_node(l->d->cluster, l->node, &i) && ptc_cluster_node(l->d->cluster, i)->up)
		snprintf(l->address, sizeof l->address, "%s", ptc_cluster_node(l->d->cluster, i)->doc.address);
}

static bool is_away(struct ptc_samples *s, const char *node)
{
	bool away;

	pthread_mutex_lock(&s->lock);
	away = s->away_until_ns > ptc_sys_now_ns() && !strcmp(s->away, node);
	pthread_mutex_unlock(&s->lock);
	return away;
}

static void note_away(struct ptc_samples *s, const char *node)
{
	pthread_mutex_lock(&s->lock);
	snprintf(s->away, sizeof s->away, "%s", node);
	s->away_until_ns = ptc_sys_now_ns() + (int64_t)AWAY_MS * 1000000;
	pthread_mutex_unlock(&s->lock);
}

/* Until it answers: one that has too much to do is asked again. */
static int ask_node(struct ptc_rpc_channel *channel, uid_t uid, const void *request, size_t len, int64_t end_ns,
		    void **ret_reply, size_t *ret_len, struct ptc_error *err)
{
	char text[16];
	int rc;

	snprintf(text, sizeof text, "%u", (unsigned)uid);
	for (;;) {
		struct ptc_error why = PTC_ERROR_INIT;
		int left_ms = (int)((end_ns - ptc_sys_now_ns()) / 1000000);

		rc = ptc_rpc_unary(channel, "/ptc.v1.Control/DatasetRead", request, len, PTC_MAX(left_ms, 1),
				   (struct ptc_rpc_meta[]){ { "ptc-uid", text }, { "ptc-forwarded", "1" } }, 2,
				   ret_reply, ret_len, &why);
		if (rc != PTC_ELIMIT || left_ms < 2 * RETRY_MS)
			return rc ? ptc_error_set(err, rc, "%s", why.text) : 0;
		nanosleep(&(struct timespec){ .tv_nsec = RETRY_MS * 1000000 },
			  NULL); /* a server thread: waiting is its job */
	}
}

static int read_there(struct ptc_daemon *d, const struct ptc_dataset_doc *doc, struct ptc_rpc_call *call,
		      const void *request, size_t len, void **ret_reply, size_t *ret_len, struct ptc_error *err)
{
	int64_t end_ns = ptc_sys_now_ns() + (int64_t)NODE_MS * 1000000;
	struct locate l = { .d = d, .node = doc->node };
	struct ptc_rpc_channel *channel;
	int rc = ptc_loop_call(d->loop, locate_on_loop, &l);

	if (rc)
		return ptc_error_set(err, rc, "the daemon is stopping");
	if (!l.address[0] || is_away(d->samples, doc->node))
		return ptc_error_set(err, PTC_EPEER, "node %s, which alone has dataset %s, %s", doc->node, doc->name,
				     l.address[0] ? "has not answered" : "is down");
	rc = ptc_channels_get(d->channels, doc->node, l.address, true, 0, &channel, err);
	if (rc)
		return rc;
	rc = enter(d->samples, call, end_ns, err);
	if (rc)
		return rc;
	rc = ask_node(channel, ptc_control_uid(call), request, len, end_ns, ret_reply, ret_len, err);
	leave(d->samples);
	if (rc == PTC_ETIMEOUT)
		note_away(d->samples, doc->node);
	if (rc)
		ptc_error_wrap(err, "dataset %s, which lies on node %s", doc->name, doc->node);
	return rc;
}

static int read_samples(struct ptc_daemon *d, struct ptc_rpc_call *call, const Ptc__V1__SamplesRequest *q,
			void **ret_reply, size_t *ret_len, struct ptc_error *err)
{
	struct ptc_dataset_doc *doc = ptc_malloc(sizeof *doc);
	uid_t uid = ptc_control_uid(call);
	void *request = NULL;
	size_t len = 0;
	int rc = doc ? find(d, q, uid, doc, err) : ptc_error_set(err, PTC_ENOMEM, "out of memory");

	if (!rc)
		rc = ptc_pb_encode(&q->base, &request, &len, err);
	if (!rc && !strcmp(doc->node, d->config.node))
		rc = ptc_sources_read(d->samples->sources, doc, request, len, SOURCE_MS, ret_reply, ret_len, err);
	else if (!rc && ptc_rpc_call_meta(call, "ptc-forwarded"))
		rc = ptc_error_set(err, PTC_ESTATE, "dataset %s lies on node %s, not here", doc->name, doc->node);
	else if (!rc)
		rc = read_there(d, doc, call, request, len, ret_reply, ret_len, err);
	ptc_free(request);
	ptc_free(doc);
	return rc;
}

PTC_CONTROL_HANDLER(ptc_control_dataset_read)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__SamplesRequest *q;
	void *reply = NULL;
	size_t len = 0;
	int rc = ptc_pb_call_recv(call, &ptc__v1__samples_request__descriptor, (ProtobufCMessage **)&q, err);

	if (rc)
		return rc;
	rc = ptc_samples_check(q, err);
	if (!rc)
		rc = read_samples(d, call, q, &reply, &len, err);
	if (!rc)
		rc = ptc_rpc_call_send(call, &(struct ptc_rpc_part){ .data = reply, .len = len }, 1, err);
	ptc_pb_free(&q->base);
	ptc_free(reply);
	return rc;
}
