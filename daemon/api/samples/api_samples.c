/* SPDX-License-Identifier: Apache-2.0 */
/* ptc.v1.Control.DatasetRead: samples for readers that cannot open the source. There are two cases. One node alone has
 * the source. Or the owner may open the source, and the reader, which serves the owner as root, must not. Nothing here
 * opens a source: the node that has it starts a process of the owner (daemon/sources/), and other nodes ask that node.
 *
 * Happy path: a reader asks its own daemon. The daemon looks the dataset up. It checks that the user for whom the
 * reader asks may see the dataset, and that the dataset is still the one that the reader means. If the source is here,
 * its process is asked. Otherwise peer_samples.c gets the samples that this node does not have yet.
 *
 * Failure modes: there is no such dataset, or it is another one; the error of its process or its node; neither answers
 * (daemon/samples/peer_samples.h). */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "daemon/api/samples/samples.h"
#include "daemon/samples/peer_samples.h"
#include "proto/sample_rules.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define SOURCE_MS 8000       /* for the source's answer, on its node: so that node can still say what is wrong */
#define DOC_NS    2000000000 /* how long a dataset's document is believed, and longer while etcd does not answer */

/* ---- which dataset ---- */

/* What is known of it, if it is the one; max_ns: not longer since it was asked for. */
static bool recall(struct ptc_samples *s, const char *name, uid_t uid, int64_t max_ns, struct ptc_dataset_doc *ret)
{
	bool found = false;

	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < PTC_SAMPLES_DOCS && !found; i++) {
		const struct ptc_samples_known *k = &s->known[i];

		found = k->doc && k->uid == uid && !strcmp(k->name, name) && ptc_sys_now_ns() - k->asked_ns < max_ns;
		if (found)
			*ret = *k->doc;
	}
	pthread_mutex_unlock(&s->lock);
	return found;
}

static void remember(struct ptc_samples *s, const char *name, uid_t uid, const struct ptc_dataset_doc *doc)
{
	struct ptc_samples_known *k = NULL;

	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < PTC_SAMPLES_DOCS && !k; i++)
		if (s->known[i].doc && s->known[i].uid == uid && !strcmp(s->known[i].name, name))
			k = &s->known[i];
	if (!k)
		k = &s->known[s->next_known++ % PTC_SAMPLES_DOCS];
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

/* For whom it is: root asks for others, too, so that he serves them no more than what is theirs. */
static int for_whom(const struct ptc_rpc_call *call, const Ptc__V1__SamplesRequest *q, uid_t *ret,
		    struct ptc_error *err)
{
	uid_t caller = ptc_api_uid(call);

	if (q->uid && caller && q->uid != caller)
		return ptc_error_set(err, PTC_EPERM, "uid %u reads for uid %u, which only root may do",
				     (unsigned)caller, (unsigned)q->uid);
	*ret = q->uid ? q->uid : caller;
	return 0;
}

/* The dataset that the request means. Readers go on while etcd does not answer. */
static int find(struct ptc_daemon *d, const Ptc__V1__SamplesRequest *q, uid_t uid, struct ptc_dataset_doc *doc,
		struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	char source[33];
	int rc = 0;

	if (!recall(d->samples, q->dataset, uid, DOC_NS, doc)) {
		rc = ptc_api_dataset(d, q->dataset, uid, doc, &why);
		if (!rc)
			remember(d->samples, q->dataset, uid, doc);
		else if (rc == PTC_ECOORD && recall(d->samples, q->dataset, uid, INT64_MAX, doc)) {
			remember(d->samples, q->dataset, uid, doc); /* etcd is not waited for at each call */
			rc = 0;
		}
	}
	if (rc)
		return ptc_error_set(err, rc, "%s", why.text);
	if (ptc_dataset_doc_source(doc, source))
		return ptc_nomem(err);
	if (strcmp(source, q->source) != 0)
		return ptc_error_set(err, PTC_ECORRUPT,
				     "dataset %s has another source than the request says; open it again", doc->name);
	return 0;
}

static int read_elsewhere(struct ptc_daemon *d, struct ptc_rpc_call *call, const Ptc__V1__SamplesRequest *q, uid_t uid,
			  const struct ptc_dataset_doc *doc, void **ret_reply, size_t *ret_len, struct ptc_error *err)
{
	struct ptc_samples_reader r = {
		.doc = doc, .uid = uid, .call = call, .end_ns = ptc_sys_now_ns() + PTC_SAMPLES_NODE_NS
	};
	Ptc__V1__SamplesReply nothing = PTC__V1__SAMPLES_REPLY__INIT;

	if (ptc_rpc_call_meta(call, "ptc-forwarded"))
		return ptc_error_set(err, PTC_ESTATE, "dataset %s lies on node %s, not here", doc->name, doc->node);
	if (!q->ahead)
		return ptc_samples_get(d->samples, &r, q, ret_reply, ret_len, err);
	ptc_samples_ahead(d->samples, &r, q->samples, q->n_samples);
	nothing.version = PTC_WIRE_VERSION;
	return ptc_pb_encode(&nothing.base, ret_reply, ret_len, err);
}

static int read_here(struct ptc_daemon *d, const Ptc__V1__SamplesRequest *q, const struct ptc_dataset_doc *doc,
		     void **ret_reply, size_t *ret_len, struct ptc_error *err)
{
	void *request;
	size_t len;
	int rc = q->ahead ? ptc_error_set(err, PTC_EINVAL, "nothing is read ahead of dataset %s, which lies here",
					  doc->name)
			  : ptc_pb_encode(&q->base, &request, &len, err);

	if (rc)
		return rc;
	rc = ptc_sources_read(d->samples->sources, doc, request, len, SOURCE_MS, ret_reply, ret_len, err);
	ptc_free(request);
	return rc;
}

static int read_samples(struct ptc_daemon *d, struct ptc_rpc_call *call, const Ptc__V1__SamplesRequest *q,
			void **ret_reply, size_t *ret_len, struct ptc_error *err)
{
	struct ptc_dataset_doc *doc = ptc_malloc(sizeof *doc);
	uid_t uid = 0;
	int rc = doc ? for_whom(call, q, &uid, err) : ptc_nomem(err);

	if (!rc)
		rc = find(d, q, uid, doc, err);
	if (!rc && !doc->node[0] && ptc_rpc_call_identity(call)->role != PTC_ROLE_USER)
		rc = ptc_error_set(err, PTC_ESTATE, "dataset %s lies at %.600s on every node: read it there", doc->name,
				   doc->path);
	if (!rc)
		rc = doc->node[0] && strcmp(doc->node, d->config.node)
			     ? read_elsewhere(d, call, q, uid, doc, ret_reply, ret_len, err)
			     : read_here(d, q, doc, ret_reply, ret_len, err);
	ptc_free(doc);
	return rc;
}

PTC_API_HANDLER(ptc_api_dataset_read)
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
