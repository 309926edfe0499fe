/* SPDX-License-Identifier: Apache-2.0 */
/* Reads samples of other nodes ahead: a reader knows which samples come next and says so; one thread puts them into
 * the cache, in their order.
 *
 * Happy path: if samples differ in length, their lengths are asked for first; then the samples, as many at once as one
 * answer holds. Failure modes: the node is unreachable, or there are too many lists: the list is dropped, and a reader
 * that wants a sample asks for it by itself. */
#include "daemon/samples/peer_samples.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"
#include "proto/pb.h"

#include <string.h>

#define AHEAD_NS INT64_C(3000000000) /* for one answer: a daemon that stops waits so long at most */

static int get(struct ptc_samples *s, const struct ptc_samples_job *j, Ptc__V1__SamplesRequest *q,
	       ProtobufCMessage **ret_reply)
{
	struct ptc_samples_reader r = { .doc = &j->doc, .uid = j->uid, .end_ns = ptc_sys_now_ns() + AHEAD_NS };
	struct ptc_error err = PTC_ERROR_INIT;
	void *raw = NULL;
	size_t len;
	int rc = ptc_samples_get(s, &r, q, &raw, &len, &err);

	if (!rc && ret_reply)
		rc = ptc_pb_decode(&ptc__v1__samples_reply__descriptor, raw, len, ret_reply, &err);
	if (rc)
		ptc_debug("samples", "dataset %s: not read ahead: %s", j->doc.name, err.text);
	ptc_free(raw);
	return rc;
}

static int sizes_of(struct ptc_samples *s, struct ptc_samples_job *j, Ptc__V1__SamplesRequest *q, uint32_t *ret)
{
	const uint64_t fixed = j->doc.info.record * ptc_source_dtype_bytes(j->doc.info.dtype);
	ProtobufCMessage *reply = NULL;
	int rc = fixed ? 0 : get(s, j, q, &reply);

	for (size_t i = 0; !rc && i < j->n; i++) {
		uint64_t size = fixed ? fixed : ((Ptc__V1__SamplesReply *)reply)->sizes[i];

		ret[i] = (uint32_t)PTC_MIN(size, (uint64_t)PTC_SAMPLES_BYTES); /* of a longer one the beginning */
	}
	ptc_pb_free(reply);
	return rc;
}

static bool is_here(struct ptc_samples *s, struct ptc_cache_name *name)
{
	uint64_t size = 1;

	for (name->piece = 0; name->piece * PTC_CACHE_PIECE < PTC_MIN(size, (uint64_t)PTC_SAMPLES_BYTES); name->piece++)
		if (!ptc_cache_peek(s->cache, name, &size))
			return false;
	return true;
}

/* What is here already is not read again. */
static void leave_out(struct ptc_samples *s, struct ptc_samples_job *j)
{
	struct ptc_cache_name name = { .uid = j->doc.uid };
	size_t n = 0;

	if (ptc_dataset_doc_reader(&j->doc, name.reader))
		return;
	for (size_t i = 0; i < j->n; i++) {
		name.sample = j->samples[i];
		if (!is_here(s, &name))
			j->samples[n++] = j->samples[i];
	}
	j->n = n;
}

static bool stopping(struct ptc_samples *s)
{
	bool it;

	pthread_mutex_lock(&s->lock);
	it = s->stopping;
	pthread_mutex_unlock(&s->lock);
	return it;
}

static void run(struct ptc_samples *s, struct ptc_samples_job *j)
{
	uint64_t offsets[PTC_SAMPLES_AHEAD] = { 0 };
	uint32_t lengths[PTC_SAMPLES_AHEAD];
	Ptc__V1__SamplesRequest q = PTC__V1__SAMPLES_REQUEST__INIT;
	char source[33];
	size_t from = 0;

	leave_out(s, j);
	if (!j->n)
		return;
	q.version = PTC_WIRE_VERSION;
	q.dataset = j->doc.name;
	q.source = source;
	q.samples = j->samples;
	q.n_samples = j->n;
	if (ptc_dataset_doc_source(&j->doc, source) || sizes_of(s, j, &q, lengths))
		return;
	while (from < j->n && !stopping(s)) {
		size_t n = 0, bytes = 0;

		while (from + n < j->n && bytes + lengths[from + n] <= PTC_SAMPLES_BYTES)
			bytes += lengths[from + n++];
		q.samples = j->samples + from;
		q.offsets = offsets;
		q.lengths = lengths + from;
		q.n_samples = q.n_offsets = q.n_lengths = n;
		if (get(s, j, &q, NULL))
			return;
		from += n;
	}
}

static void *main_of(void *arg)
{
	struct ptc_samples *s = arg;

	pthread_mutex_lock(&s->lock);
	while (!s->stopping) {
		struct ptc_samples_job *j = s->jobs;

		if (!j) {
			pthread_cond_wait(&s->work, &s->lock);
			continue;
		}
		s->jobs = j->next;
		if (!s->jobs)
			s->jobs_tail = &s->jobs;
		s->njobs--;
		pthread_mutex_unlock(&s->lock);
		run(s, j);
		ptc_free(j);
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

void ptc_samples_ahead(struct ptc_samples *s, const struct ptc_samples_reader *r, const uint64_t *samples, size_t n)
{
	struct ptc_samples_job *j = ptc_samples_cache(s) && n ? ptc_calloc(1, sizeof *j) : NULL;

	if (!j)
		return;
	j->doc = *r->doc;
	j->uid = r->uid;
	j->n = PTC_MIN(n, (size_t)PTC_SAMPLES_AHEAD);
	memcpy(j->samples, samples, j->n * sizeof *samples);
	pthread_mutex_lock(&s->lock);
	if (!s->thread_runs && !s->stopping)
		s->thread_runs = !ptc_thread_start(&s->thread, "ptc-ahead", main_of, s, NULL);
	if (s->thread_runs && !s->stopping && s->njobs < PTC_SAMPLES_JOBS) {
		*s->jobs_tail = j;
		s->jobs_tail = &j->next;
		s->njobs++;
		j = NULL;
		pthread_cond_signal(&s->work);
	}
	pthread_mutex_unlock(&s->lock);
	ptc_free(j);
}

void ptc_samples_ahead_stop(struct ptc_samples *s)
{
	struct ptc_samples_job *j;

	pthread_mutex_lock(&s->lock);
	s->stopping = true;
	pthread_cond_signal(&s->work);
	pthread_mutex_unlock(&s->lock);
	if (s->thread_runs)
		pthread_join(s->thread, NULL);
	while ((j = s->jobs)) {
		s->jobs = j->next;
		ptc_free(j);
	}
}
