/* SPDX-License-Identifier: Apache-2.0 */
/* Counters and time histograms of this process, which any room may add to. daemon/metrics/metrics.c exports them. No
 * code decides anything by them. Threads: any; an addition is one relaxed atomic one. There are no failure modes. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum ptc_count {
	PTC_COUNT_CHECKSUM_ERRORS, /* blocks of the store that did not match their checksum */
	PTC_COUNT_HEALED_BLOCKS,   /* blocks of the store that were damaged and are right again */
	PTC_COUNT_ETCD_ERRORS,     /* requests to etcd without an answer */
	/* bytes of ranks' device memory that were restored: from the same device, from another one, from the host */
	PTC_COUNT_DEVICE_KEPT_BYTES,
	PTC_COUNT_DEVICE_PEER_BYTES,
	PTC_COUNT_DEVICE_HOST_BYTES,
	PTC_COUNT_NEAR_BYTES,    /* read in the memory of daemons of the same machine */
	PTC_COUNT_NEAR_FAILURES, /* such a daemon's bytes came over the network after all */
	PTC_COUNT_COUNT,
};
void ptc_count_add(enum ptc_count which, uint64_t n);
uint64_t ptc_count_get(enum ptc_count which);

/* A histogram of times. Bucket i counts times of at most ptc_histogram_bounds[i] seconds, and more than the bound
 * before. The last bucket counts the longer ones. */
#define PTC_HISTOGRAM_BOUNDS 10
extern const double ptc_histogram_bounds[PTC_HISTOGRAM_BOUNDS];
struct ptc_histogram {
	atomic_uint_least64_t buckets[PTC_HISTOGRAM_BOUNDS + 1], sum_ns;
};
void ptc_histogram_add(struct ptc_histogram *h, int64_t ns);
extern struct ptc_histogram ptc_etcd_times; /* times of requests to etcd that were answered */
