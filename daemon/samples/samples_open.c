/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and frees a daemon's objects for samples that lie on other nodes. Happy path: new, use by any thread, free.
 *
 * Failure modes: memory. */
#include "daemon/samples/peer_samples.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/thread.h"

#include <time.h>

struct ptc_samples *ptc_samples_new(const struct ptc_samples_opts *opts)
{
	struct ptc_samples *s = ptc_calloc(1, sizeof *s);

	if (s)
		s->sources = ptc_sources_new();
	if (!s || !s->sources) {
		ptc_free(s);
		return NULL;
	}
	s->o = *opts;
	s->jobs_tail = &s->jobs;
	ptc_require(!pthread_mutex_init(&s->lock, NULL));
	ptc_cond_init(&s->turn);
	ptc_cond_init(&s->work);
	return s;
}

struct ptc_samples *ptc_samples_free(struct ptc_samples *s)
{
	if (!s)
		return NULL;
	ptc_samples_ahead_stop(s);
	ptc_sources_free(s->sources);
	ptc_cache_close(s->cache);
	for (size_t i = 0; i < PTC_SAMPLES_DOCS; i++)
		ptc_free(s->known[i].doc);
	pthread_cond_destroy(&s->turn);
	pthread_cond_destroy(&s->work);
	pthread_mutex_destroy(&s->lock);
	ptc_free(s);
	return NULL;
}

void ptc_samples_expire(struct ptc_samples *s)
{
	ptc_sources_expire(s->sources);
}
