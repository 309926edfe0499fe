/* SPDX-License-Identifier: Apache-2.0 */
#include "fusefs/source/file_ranges.h"

#include "base/alloc.h"
#include "base/check.h"

size_t ptc_fs_item_at(const struct ptc_state_file *sf, const uint64_t *start, uint64_t off)
{
	size_t lo = 0, hi = sf->n;

	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;

		if (start[mid] <= off)
			lo = mid;
		else
			hi = mid;
	}
	while (lo < sf->n && start[lo + 1] <= off)
		lo++; /* empty ones */
	return lo;
}

int ptc_fs_ranges_of(const struct ptc_state_file *sf, const uint64_t *start, uint64_t off, uint64_t end,
		     struct ptc_fs_range **ret, size_t *ret_n)
{
	size_t first = ptc_fs_item_at(sf, start, off), n = 0;
	struct ptc_fs_range *v;

	while (first + n < sf->n && start[first + n] < end)
		n++;
	v = ptc_calloc(PTC_MAX(n, (size_t)1), sizeof *v);
	if (!v)
		return PTC_ENOMEM;
	*ret_n = 0;
	for (size_t i = first; i < first + n; i++) {
		uint64_t from = PTC_MAX(off, start[i]), to = PTC_MIN(end, start[i + 1]);

		if (from < to)
			v[(*ret_n)++] =
				(struct ptc_fs_range){ sf->ranked, sf->rank, sf->items[i], from - start[i], to - from };
	}
	*ret = v;
	return 0;
}
