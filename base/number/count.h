/* SPDX-License-Identifier: Apache-2.0 */
/* What is counted in this process, wherever it happens; daemon/metrics/metrics.c shows it. Any thread; an addition is
 * one relaxed atomic one. Nothing here can fail, and nothing decides anything. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum ptc_count {
	PTC_COUNT_CHECKSUM_ERRORS, /* blocks of the store that did not match */
	PTC_COUNT_HEALED_BLOCKS,   /* of the store, whose bytes are right again */
	PTC_COUNT_ETCD_ERRORS,     /* requests to etcd that got no answer */
	PTC_COUNT_COUNT,
};
void ptc_count_add(enum ptc_count which, uint64_t n);
uint64_t ptc_count_get(enum ptc_count which);

/* Times by size. Bucket i counts those of at most ptc_histogram_bounds[i] seconds and more than the one before; the
 * last has the rest. */
#define PTC_HISTOGRAM_BOUNDS 10
extern const double ptc_histogram_bounds[PTC_HISTOGRAM_BOUNDS];
struct ptc_histogram {
	atomic_uint_least64_t buckets[PTC_HISTOGRAM_BOUNDS + 1], sum_ns;
};
void ptc_histogram_add(struct ptc_histogram *h, int64_t ns);
extern struct ptc_histogram ptc_etcd_times; /* requests to etcd that were answered */
