/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/sample_rules.h"

#include "base/check.h"

#include <string.h>

int ptc_samples_check(const Ptc__V1__SamplesRequest *q, struct ptc_error *err)
{
	uint64_t bytes = 0;

	size_t most = q->names ? PTC_SAMPLES_NAMES : q->ahead ? PTC_SAMPLES_AHEAD : PTC_SAMPLES_MAX;

	if (q->n_samples > most)
		return ptc_error_set(err, PTC_ELIMIT, "%zu samples in one request, at most %zu are read", q->n_samples,
				     most);
	if (!q->n_samples || q->n_offsets != q->n_lengths || (q->n_offsets && q->n_offsets != q->n_samples))
		return ptc_error_set(err, PTC_EINVAL,
				     "a request for samples whose numbers, offsets and lengths differ in "
				     "count");
	for (size_t i = 0; i < q->n_lengths; i++)
		bytes += q->lengths[i];
	if (bytes > PTC_SAMPLES_BYTES)
		return ptc_error_set(err, PTC_ELIMIT, "%llu bytes of samples in one request, at most %u are read",
				     (unsigned long long)bytes, PTC_SAMPLES_BYTES);
	return 0;
}

size_t ptc_samples_part(const Ptc__V1__SamplesRequest *q, size_t i, uint64_t size)
{
	if (!q->n_offsets || q->offsets[i] >= size)
		return 0;
	return (size_t)PTC_MIN(size - q->offsets[i], (uint64_t)q->lengths[i]);
}

static bool is_name(const ProtobufCBinaryData *b)
{
	return b->len && b->len <= PTC_SAMPLES_NAME && !memchr(b->data, '\0', b->len) && b->data[b->len - 1] != '/';
}

int ptc_samples_fits(const Ptc__V1__SamplesRequest *q, const Ptc__V1__SamplesReply *r, struct ptc_error *err)
{
	bool fits = r->n_sizes == q->n_samples && r->n_names == (q->names ? q->n_samples : 0);
	uint64_t bytes = 0;

	for (size_t i = 0; fits && i < q->n_samples; i++)
		bytes += ptc_samples_part(q, i, r->sizes[i]);
	for (size_t i = 0; fits && i < r->n_names; i++)
		fits = is_name(&r->names[i]);
	if (fits && bytes == r->data.len)
		return 0;
	return ptc_error_set(err, PTC_EPEER, "dataset %s: the answer is not what was asked for", q->dataset);
}
