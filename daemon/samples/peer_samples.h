/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of datasets that lie on other nodes: this node's cache of them, asking the node that has them, and reading
 * ahead.
 *
 * Happy path: samples on disk are taken from there (daemon/sources/cache.h). The rest is asked for in whole pieces,
 * which are kept. A thread of its own fetches the samples that a reader will want next. Failure modes: the node is down
 * (PTC_EPEER, at once); it does not answer (PTC_ETIMEOUT after PTC_SAMPLES_NODE_NS; within the next second, other reads
 * fail at once); its own errors. Without a cache, because none is configured or it cannot be opened (said once),
 * everything is asked for and nothing is read ahead.
 *
 * An answer has up to a megabyte. This node waits for a bounded number of answers at once; other requests wait for
 * their turn. A node that has too much to do says so, and is asked again. Answers that this node gives to others do not
 * count, so two nodes that ask each other never block each other. */
#pragma once

#include "daemon/cluster/channels.h"
#include "daemon/cluster/cluster.h"
#include "daemon/config/daemon_config.h"
#include "daemon/sources/cache.h"
#include "daemon/sources/sources.h"
#include "proto/sample_rules.h"

#include <pthread.h>

#define PTC_SAMPLES_DOCS    64
#define PTC_SAMPLES_NODE_NS 10000000000 /* for another node's answer */
#define PTC_SAMPLES_JOBS    16          /* lists of samples that wait to be read ahead */

struct ptc_samples_known {
	char name[PTC_NAME_MAX + 1];
	uid_t uid; /* who asked */
	int64_t asked_ns;
	struct ptc_dataset_doc *doc;
};

/* Borrowed, and outlives the samples. */
struct ptc_samples_opts {
	const struct ptc_daemon_config *config;
	struct ptc_loop *loop;
	struct ptc_cluster *cluster;
	struct ptc_channels *channels;
};

/* The reader and the dataset of a call. Borrowed for the call. */
struct ptc_samples_reader {
	const struct ptc_dataset_doc *doc;
	uid_t uid;
	const struct ptc_rpc_call *call; /* NULL: nobody waits */
	int64_t end_ns;
};

struct ptc_samples_job {
	struct ptc_samples_job *next;
	struct ptc_dataset_doc doc;
	uid_t uid;
	size_t n;
	uint64_t samples[PTC_SAMPLES_AHEAD];
};

struct ptc_samples {
	struct ptc_samples_opts o;
	struct ptc_sources *sources; /* what lies here */
	pthread_mutex_t lock;
	pthread_cond_t turn, work;
	struct ptc_samples_known known[PTC_SAMPLES_DOCS]; /* api_samples.c */
	size_t next_known;
	size_t calls;                       /* answers that are waited for */
	char unreachable[PTC_NAME_MAX + 1]; /* a node that has just not answered */
	int64_t unreachable_until_ns;
	struct ptc_cache *cache;
	bool cache_tried;
	struct ptc_samples_job *jobs, **jobs_tail;
	size_t njobs;
	bool thread_runs, stopping;
	pthread_t thread;
};

struct ptc_samples *ptc_samples_new(const struct ptc_samples_opts *opts); /* NULL: out of memory */
struct ptc_samples *ptc_samples_free(struct ptc_samples *s);              /* after the servers; NULL ok */
void ptc_samples_expire(struct ptc_samples *s);                           /* [loop] from time to time */
/* peer_samples.c: an encoded SamplesReply to q, which is checked; ptc_free it. */
int ptc_samples_get(struct ptc_samples *s, const struct ptc_samples_reader *r, const Ptc__V1__SamplesRequest *q,
		    void **ret_reply, size_t *ret_len, struct ptc_error *err);
/* NULL: there is none. */
struct ptc_cache *ptc_samples_cache(struct ptc_samples *s);
/* samples_ahead.c: at most PTC_SAMPLES_AHEAD samples are put into the cache when there is time; dropped where too much
 * waits. */
void ptc_samples_ahead(struct ptc_samples *s, const struct ptc_samples_reader *r, const uint64_t *samples, size_t n);
void ptc_samples_ahead_stop(struct ptc_samples *s);
