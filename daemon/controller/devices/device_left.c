/* SPDX-License-Identifier: Apache-2.0 */
/* Writes down which devices a job has left, or that it may have them again. Happy path: a key for each device
 * (daemon/cluster/devices/slow_devices.h), in transactions that compare the job's lock. Failure modes: the lock is
 * another's (nothing more is written, and no error); etcd does not answer (what is given back is tried again). Loop
 * thread; the writing is a task of the job's lane. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/number/fence.h"

#include <stdio.h>
#include <string.h>

#define OPS_MAX  100 /* of one transaction; etcd takes 128 */
#define RETRY_MS 1000

struct writing {
	struct ptc_controller *ctl;
	int64_t fence;
	struct ptc_slow_device *v;
	size_t n;
	bool left, ok;
	int rc;
	ptc_devices_left_fn done;
};

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

static void write_all(void *arg, struct ptc_etcd *e)
{
	struct writing *w = arg;

	w->rc = 0;
	w->ok = true;
	for (size_t at = 0; at < w->n && w->ok && w->rc == 0; at += OPS_MAX)
		w->rc = write_some(e, w->ctl->uuid, w->fence, w->v + at, PTC_MIN(w->n - at, (size_t)OPS_MAX), w->left,
				   &w->ok);
}

/* What is given back has been told as such, so it is tried until etcd has it. What is left is decided anew. */
static void was_written(void *arg)
{
	struct writing *w = arg;

	if (w->rc && !w->ctl->gone)
		ptc_debug("job", "job=%s which devices it leaves is not written: etcd is unreachable",
			  w->ctl->meta.name);
	if (w->rc && !w->ctl->gone && !w->left &&
	    ptc_cluster_run_later(w->ctl->all->cluster, w->ctl->uuid, RETRY_MS, write_all, was_written, w) == 0)
		return;
	if (w->done)
		w->done(w->ctl, w->rc == 0 && w->ok);
	ptc_controller_unref(w->ctl);
	ptc_free(w->v);
	ptc_free(w);
}

void ptc_devices_left_write(struct ptc_controller *ctl, struct ptc_slow_device *v, size_t n, bool left,
			    ptc_devices_left_fn done)
{
	struct writing *w = ptc_calloc(1, sizeof *w);

	ptc_require(w);
	*w = (struct writing){
		.ctl = ptc_controller_ref(ctl), .fence = ctl->fence, .v = v, .n = n, .left = left, .done = done
	};
	ptc_require(ptc_cluster_run(ctl->all->cluster, ctl->uuid, write_all, was_written, w) == 0);
}
