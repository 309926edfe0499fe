/* SPDX-License-Identifier: Apache-2.0 */
/* A fence: a number that grows each time another controller takes a job's lock. Its low bits are the create_revision of
 * the lock in etcd. Its high bits are the coordination epoch: how often another etcd has taken the place of one that is
 * gone (`ptcctl cluster recover`). A new etcd's revisions begin at 1 again. In epoch 0 a fence is the revision alone,
 * as in versions before there were epochs. One integer, so comparing fences compares the epochs first. */
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
