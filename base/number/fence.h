/* SPDX-License-Identifier: Apache-2.0 */
/* A fence: the number of a controller's tenure, which grows. It is the create_revision of the lock in etcd, and above
 * it the coordination epoch: how often etcd has been replaced by another one (`ptcctl cluster recover`), whose
 * revisions begin at 1 again. In epoch 0 a fence is the revision alone, as in versions before there were epochs. One
 * integer, so comparing fences compares the epochs first. */
#pragma once

#include <stdint.h>

#define PTC_FENCE_REVISION_BITS 44 /* 55 years of 10,000 writes a second */
#define PTC_EPOCH_MAX           ((INT64_C(1) << (62 - PTC_FENCE_REVISION_BITS)) - 1)

static inline int64_t ptc_fence(int64_t epoch, int64_t revision)
{
	return epoch << PTC_FENCE_REVISION_BITS | revision;
}

static inline int64_t ptc_fence_revision(int64_t fence)
{
	return fence & ((INT64_C(1) << PTC_FENCE_REVISION_BITS) - 1);
}

static inline int64_t ptc_fence_epoch(int64_t fence)
{
	return fence >> PTC_FENCE_REVISION_BITS;
}
