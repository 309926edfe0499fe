/* SPDX-License-Identifier: Apache-2.0 */
/* Claims the devices of ranks that a switch is to start.
 *
 * Happy path: the document is read, no other job has one of the devices, and the transaction of the intent writes the
 * document anew if nobody has written it since. So if two jobs begin at the same moment, one of them finds the devices
 * of the other. Failure modes: a device is another job's (the switch is refused with PTC_ENODEVICES, naming the
 * devices, and the job if it is of the same user); the document is too long, or cannot be read. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/fence.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAMED_MAX 200 /* bytes of a message that name devices */

static int make(struct ptc_controller *ctl, const struct ptc_generation_doc *g, struct ptc_device_claim *ret)
{
	struct ptc_device_claim c = { .all = ctl->all, .meta = ctl->meta };

	c.want = ptc_calloc(g->world, sizeof *c.want);
	if (!c.want)
		return PTC_ENOMEM;
	for (; c.n < g->world; c.n++) {
		snprintf(c.want[c.n].node, sizeof c.want[c.n].node, "%s", g->nodes[g->rank_node[c.n]]);
		snprintf(c.want[c.n].uuid, sizeof c.want[c.n].uuid, "%s", ctl->uuid);
		c.want[c.n].device = g->rank_device[c.n];
	}
	ctl->devices.claims++;
	*ret = c;
	return 0;
}

int ptc_device_claim_make(struct ptc_controller *ctl, struct ptc_device_claim *ret)
{
	return ctl->intent.run_to && ctl->view.to.world ? make(ctl, &ctl->view.to, ret) : 0;
}

void ptc_device_claim_done(struct ptc_device_claim *c)
{
	ptc_free(c->want);
	ptc_free(c->json);
}

const char *ptc_device_owner(const struct ptc_meta_doc *job, uint64_t uid, char *buf, size_t size)
{
	if (job->uid == uid)
		snprintf(buf, size, "job %s", job->name);
	else
		snprintf(buf, size, "a job of user %" PRIu64, (uint64_t)job->uid);
	return buf;
}

static void refuse(struct ptc_device_claim *c, const struct ptc_devices_doc *d, const char *uuid,
		   const struct ptc_meta_doc *by)
{
	struct ptc_buf list = PTC_BUF_INIT;
	char who[PTC_NAME_MAX + 32];

	for (size_t i = 0; i < c->n && list.len < NAMED_MAX; i++)
		if (ptc_devices_has(d, c->want[i].node, c->want[i].device, uuid))
			ptc_buf_printf(&list, "%s%s:%u", list.len ? ", " : "", c->want[i].node, c->want[i].device);
	if (list.len >= NAMED_MAX)
		ptc_buf_puts(&list, ", ...");
	c->status = PTC_ENODEVICES;
	snprintf(c->text, sizeof c->text,
		 "%s has got devices of this switch meanwhile (%s); ask again, and others are chosen",
		 ptc_device_owner(by, c->meta.uid, who, sizeof who), list.data ? list.data : "");
	ptc_buf_done(&list);
}

/* What keeps the job from having what it wants; NULL: nothing. What it has from before is not looked at: an older
 * version may have given it to two jobs, and this switch may be the way out. */
static const struct ptc_device_given *obstacle(const struct ptc_device_claim *c, const struct ptc_devices_doc *d)
{
	const struct ptc_device_given *by = NULL;

	for (size_t i = 0; !by && i < c->n; i++)
		by = ptc_devices_taken(d, c->want[i].node, c->want[i].device, c->meta.uuid, c->want[i].shares);
	return by;
}

static int check(struct ptc_device_claim *c, struct ptc_etcd *e, struct ptc_devices_doc *d, struct ptc_error *err)
{
	ptc_auto_free struct ptc_meta_doc *m = ptc_calloc(1, sizeof *m);
	const struct ptc_device_given *by;
	char uuid[PTC_DEVICES_UUID];
	bool there;
	int rc = m ? 0 : ptc_nomem(err);

	while (rc == 0 && (by = obstacle(c, d))) {
		memcpy(uuid, by->uuid, sizeof uuid);
		rc = ptc_devices_job(e, uuid, &there, m, err);
		if (rc == 0 && there) {
			refuse(c, d, uuid, m);
			return 0;
		}
		if (rc == 0)
			ptc_devices_take(d, uuid, NULL, NULL); /* deleted a moment ago */
	}
	return rc;
}

int ptc_device_claim_read(struct ptc_device_claim *c, struct ptc_etcd *e, struct ptc_error *err)
{
	const struct ptc_job_desc *desc;
	struct ptc_devices_doc d = { 0 };
	void *ref = NULL;
	int rc;

	if (!c->n)
		return 0;
	ptc_free(c->json);
	c->json = NULL;
	rc = ptc_specs_get(c->all->docs.specs, c->meta.uuid, c->meta.spec_hash, &desc, &ref, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < c->n; i++)
		c->want[i].shares = desc->share_devices;
	ptc_specs_release(ref);
	rc = ptc_devices_read(c->all, e, &d, &c->revision, err);
	if (rc == 0)
		rc = check(c, e, &d, err);
	if (rc == 0 && !c->status && ptc_devices_add(&d, c->want, c->n) != 0)
		rc = ptc_nomem(err);
	if (rc == 0 && !c->status)
		rc = ptc_devices_text(c->all, &d, &c->json, err);
	ptc_devices_doc_done(&d);
	return rc;
}

bool ptc_device_claim_moved(const struct ptc_device_claim *c, struct ptc_etcd *e)
{
	return c->n && ptc_devices_moved(e, c->revision);
}

/* ---- before the intent ---------------------------------------------------------------- */

struct early {
	struct ptc_controller *ctl;
	struct ptc_device_claim claim;
	int64_t fence;
	void (*done)(void *arg, int status, const char *why);
	void *arg;
	int status;
	struct ptc_error err;
};

static void early_work(void *arg, struct ptc_etcd *e)
{
	struct early *y = arg;
	char lock[96];
	bool ok = false;

	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", y->claim.meta.uuid);
	for (unsigned tries = 0; y->status == 0 && !ok && tries < PTC_DEVICE_TRIES; tries++) {
		if (tries && !ptc_devices_moved(e, y->claim.revision))
			break; /* the lock is another's */
		y->status = ptc_device_claim_read(&y->claim, e, &y->err);
		if (y->status || y->claim.status)
			break;
		y->status = ptc_etcd_txn(e,
					 (const struct ptc_etcd_compare[]){
						 { lock, PTC_ETCD_CREATE_REV, ptc_fence_revision(y->fence) },
						 { PTC_DEVICES_KEY, PTC_ETCD_MOD_REV, y->claim.revision } },
					 2,
					 &(struct ptc_etcd_op){ .key = PTC_DEVICES_KEY,
								.value = y->claim.json,
								.len = strlen(y->claim.json) },
					 1, "etcd.devices", &ok, NULL, &y->err);
	}
	if (y->status == 0 && y->claim.status)
		y->status = ptc_error_set(&y->err, y->claim.status, "%s", y->claim.text);
	else if (y->status == 0 && !ok)
		y->status = ptc_error_set(&y->err, PTC_EFENCED, "another daemon controls the job now; ask again");
}

static void early_done(void *arg)
{
	struct early *y = arg;

	y->done(y->arg, y->status, y->err.text);
	ptc_device_claim_done(&y->claim);
	ptc_controller_unref(y->ctl);
	ptc_free(y);
}

void ptc_device_claim_early(struct ptc_controller *ctl, const struct ptc_generation_doc *g,
			    void (*done)(void *arg, int status, const char *why), void *arg)
{
	struct early *y = ptc_calloc(1, sizeof *y);

	ptc_require(y);
	*y = (struct early){ .ctl = ptc_controller_ref(ctl), .fence = ctl->fence, .done = done, .arg = arg };
	ptc_require(make(ctl, g, &y->claim) == 0 &&
		    ptc_cluster_run(ctl->all->cluster, ctl->uuid, early_work, early_done, y) == 0);
}
