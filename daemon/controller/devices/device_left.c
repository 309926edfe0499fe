/* SPDX-License-Identifier: Apache-2.0 */
/* Writes down which devices a job has left, or that it may have them again. Happy path: a key for each device
 * (daemon/cluster/devices/slow_devices.h), in transactions that compare the job's lock. Failure modes: the lock is
 * another's (nothing more is written, and no error); etcd does not answer; memory. */
#include "daemon/controller/device_claim.h"
#include "daemon/cluster/cluster.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/fence.h"

#include <stdio.h>
#include <string.h>

#define OPS_MAX 100 /* of one transaction; etcd takes 128 */

static int write_some(struct ptc_etcd *e, const char *uuid, int64_t fence, const struct ptc_slow_device *v, size_t n,
		      bool left, bool *ret_ok)
{
	const size_t size = 64 + PTC_SLOW_LEAF_BYTES;
	ptc_auto_free struct ptc_etcd_op *ops = ptc_calloc(n, sizeof *ops);
	ptc_auto_free char *keys = ptc_calloc(n, size);
	char lock[96], leaf[PTC_SLOW_LEAF_BYTES];
	int rc = ops && keys ? 0 : PTC_ENOMEM;
	size_t made = 0;

	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", uuid);
	for (; rc == 0 && made < n; made++) {
		char *text = left ? ptc_slow_device_encode(&v[made]) : NULL;

		ptc_slow_device_key(&v[made], leaf);
		snprintf(keys + made * size, size, "/ptc/jobs/%s/%s", uuid, leaf);
		ops[made] = (struct ptc_etcd_op){ .key = keys + made * size,
						  .value = text,
						  .len = text ? strlen(text) : 0 };
		if (left && !text)
			rc = PTC_ENOMEM;
	}
	if (rc == 0)
		rc = ptc_etcd_txn(e, &(struct ptc_etcd_compare){ lock, PTC_ETCD_CREATE_REV, ptc_fence_revision(fence) },
				  1, ops, n, "etcd.slow", ret_ok, NULL, NULL);
	for (size_t i = 0; ops && i < made; i++)
		ptc_free((void *)(uintptr_t)ops[i].value);
	return rc;
}

int ptc_devices_left_write(struct ptc_etcd *e, const char *uuid, int64_t fence, const struct ptc_slow_device *v,
			   size_t n, bool left, bool *ret_ok)
{
	int rc = 0;

	*ret_ok = true;
	for (size_t at = 0; at < n && *ret_ok && rc == 0; at += OPS_MAX)
		rc = write_some(e, uuid, fence, v + at, PTC_MIN(n - at, (size_t)OPS_MAX), left, ret_ok);
	return rc;
}
