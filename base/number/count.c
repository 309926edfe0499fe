/* SPDX-License-Identifier: Apache-2.0 */
#include "base/number/count.h"

static atomic_uint_least64_t counts[PTC_COUNT_COUNT];

const double ptc_histogram_bounds[PTC_HISTOGRAM_BOUNDS] = { 0.001, 0.005, 0.02, 0.1, 0.5, 1, 5, 20, 60, 300 };
struct ptc_histogram ptc_etcd_times;

void ptc_count_add(enum ptc_count which, uint64_t n)
{
	atomic_fetch_add_explicit(&counts[which], n, memory_order_relaxed);
}

uint64_t ptc_count_get(enum ptc_count which)
{
	return atomic_load_explicit(&counts[which], memory_order_relaxed);
}

void ptc_histogram_add(struct ptc_histogram *h, int64_t ns)
{
	int i = 0;

	while (i < PTC_HISTOGRAM_BOUNDS && (double)ns > ptc_histogram_bounds[i] * 1e9)
		i++;
	atomic_fetch_add_explicit(&h->buckets[i], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&h->sum_ns, (uint64_t)(ns > 0 ? ns : 0), memory_order_relaxed);
}
