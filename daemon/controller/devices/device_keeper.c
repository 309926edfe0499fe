/* SPDX-License-Identifier: Apache-2.0 */
/* Gives devices back once nobody needs them.
 *
 * Happy path: no switch but a snapshot is under way, and the job has devices that ranks of the record do not need. Each
 * node of such devices that is settled (ptc_job_settled) is asked which of its processes live. The devices that none of
 * these processes has are taken out of the document. A job that waits to be started again keeps its devices. If ranks
 * have devices that the document lacks (an older version started them), these are written into it.
 *
 * Why nobody loses a device that a switch has just claimed: if a claim was made since the look began, the look is given
 * up. A later claim is written by a later task of the same lane, which reads the document anew. Claims of another
 * controller are kept apart by the lock, which the transaction compares.
 *
 * Failure modes: a node is down, or does not answer: its devices stay the job's until it is back and its ranks have
 * ended. Another job wrote the document at the same moment: it is written again. The lock is lost: nothing is written.
 */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/fence.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "formats/ranks/rank_rows.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

#include <stdio.h>
#include <string.h>

#define LOOK_NS        INT64_C(200000000)
#define ASK_TIMEOUT_MS 1000

/* A look at the job's devices: of those that it does not need, some are asked for, and some found free. Counted by the
 * answers that it waits for, and by whoever asks. */
struct ptc_device_look {
	struct ptc_controller *ctl;
	struct ptc_device_given *spare; /* by node */
	bool *free;                     /* of each of them */
	size_t n;
	struct ptc_device_given *lacks; /* needed, and not written down */
	size_t nlacks;
	unsigned awaited;
	uint64_t claims; /* of the controller, when it began */
	int64_t fence;
	struct ptc_meta_doc meta;
};

static void look_free(struct ptc_device_look *l)
{
	l->ctl->devices.busy = false;
	ptc_controller_unref(l->ctl);
	ptc_free(l->spare);
	ptc_free(l->free);
	ptc_free(l->lacks);
	ptc_free(l);
}

/* What the record's ranks need, or will need when they are started again. */
static struct ptc_devices_doc needed(const struct ptc_controller *ctl)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	bool any = ctl->record.run == PTC_RUN_LIVE || ctl->record.recovery;
	struct ptc_device_given *v = ptc_calloc(g->world, sizeof *v);
	struct ptc_devices_doc d = { 0 };

	ptc_require(v);
	for (uint32_t r = 0; any && r < g->world; r++) {
		snprintf(v[r].node, sizeof v[r].node, "%s", g->nodes[g->rank_node[r]]);
		memcpy(v[r].uuid, ctl->uuid, sizeof v[r].uuid);
		v[r].device = g->rank_device[r];
	}
	ptc_require(!any || ptc_devices_add(&d, v, g->world) == 0);
	ptc_free(v);
	return d;
}

/* ---- written down ---- */

static bool keeps(void *arg, const struct ptc_device_given *g)
{
	const struct ptc_device_look *l = arg;

	for (size_t i = 0; i < l->n; i++)
		if (l->free[i] && l->spare[i].device == g->device && strcmp(l->spare[i].node, g->node) == 0)
			return false;
	return true;
}

static int shares(struct ptc_device_look *l, struct ptc_error *err)
{
	const struct ptc_job_desc *desc;
	void *ref = NULL;
	int rc = ptc_specs_get(l->ctl->all->docs.specs, l->meta.uuid, l->meta.spec_hash, &desc, &ref, err);

	for (size_t i = 0; rc == 0 && i < l->nlacks; i++)
		l->lacks[i].shares = desc->share_devices;
	if (rc == 0)
		ptc_specs_release(ref);
	return rc;
}

/* *ret_ok: the document is as it should be. */
static int write_down(struct ptc_device_look *l, struct ptc_etcd *e, int64_t *ret_revision, bool *ret_ok,
		      struct ptc_error *err)
{
	struct ptc_devices_doc d = { 0 };
	char lock[96], *json = NULL;
	size_t before;
	bool changed = false;
	int rc = ptc_devices_read(l->ctl->all, e, &d, ret_revision, err);

	if (rc == 0) {
		changed = ptc_devices_take(&d, l->meta.uuid, keeps, l);
		before = d.n;
		rc = ptc_devices_add(&d, l->lacks, l->nlacks) ? ptc_nomem(err) : 0;
		changed |= d.n > before;
	}
	if (rc == 0 && changed)
		rc = ptc_devices_text(l->ctl->all, &d, &json, err);
	ptc_devices_doc_done(&d);
	*ret_ok = rc == 0 && !changed;
	if (rc || !changed)
		return rc;
	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", l->meta.uuid);
	rc = ptc_etcd_txn(e,
			  (const struct ptc_etcd_compare[]){
				  { lock, PTC_ETCD_CREATE_REV, ptc_fence_revision(l->fence) },
				  { PTC_DEVICES_KEY, PTC_ETCD_MOD_REV, *ret_revision } },
			  2, &(struct ptc_etcd_op){ .key = PTC_DEVICES_KEY, .value = json, .len = strlen(json) }, 1,
			  "etcd.devices", ret_ok, NULL, err);
	ptc_free(json);
	return rc;
}

static void write_work(void *arg, struct ptc_etcd *e)
{
	struct ptc_device_look *l = arg;
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = l->nlacks ? shares(l, &err) : 0;
	bool ok = false;
	int64_t revision = 0;

	for (unsigned tries = 0; rc == 0 && !ok && tries < PTC_DEVICE_TRIES; tries++) {
		if (tries && !ptc_devices_moved(e, revision))
			break; /* the lock is another's; or the next look tries again */
		rc = write_down(l, e, &revision, &ok, &err);
	}
	if (rc)
		ptc_warn("job", "job=%s its devices cannot be written down, trying again: %s", l->meta.name, err.text);
}

static void write_done(void *arg)
{
	look_free(arg);
}

/* The last answer has come. */
static void look_ends(struct ptc_device_look *l)
{
	struct ptc_controller *ctl = l->ctl;
	struct ptc_devices_doc need = needed(ctl);
	bool any = l->nlacks != 0;

	for (size_t i = 0; i < l->n; i++) {
		l->free[i] = l->free[i] && !ptc_devices_has(&need, l->spare[i].node, l->spare[i].device, l->meta.uuid);
		any |= l->free[i];
	}
	ptc_devices_doc_done(&need);
	if (!any || ctl->gone || ctl->ahead || ctl->devices.claims != l->claims) {
		look_free(l);
		return;
	}
	/* the job's own lane: after what its switches have written, and before what later ones will */
	ptc_require(ptc_cluster_run(ctl->all->cluster, ctl->uuid, write_work, write_done, l) == 0);
}

/* ---- asked for ---- */

struct ask {
	struct ptc_device_look *look;
	uint32_t node;
};

/* Whether the process of that rank may have the device. */
static bool may_have(const struct ptc_rank_row *row, uint32_t device)
{
	if (row->says_device)
		return row->on_device && row->device == (int64_t)device;
	return row->lives; /* an older version does not say on which */
}

static void take_rows(struct ptc_device_look *l, uint32_t node, const struct ptc_rank_rows *rows)
{
	const char *name = ptc_cluster_node(l->ctl->all->cluster, node)->doc.name;

	for (size_t i = 0; i < l->n; i++) {
		if (strcmp(l->spare[i].node, name) != 0)
			continue;
		l->free[i] = ptc_job_settled(l->ctl->core, node);
		for (size_t k = 0; k < rows->n; k++)
			if (may_have(&rows->v[k], l->spare[i].device))
				l->free[i] = false;
	}
}

static void answered(void *arg, int status, const struct ptc_error *err, const void *data, size_t len)
{
	struct ask *a = arg;
	struct ptc_device_look *l = a->look;
	ProtobufCMessage *msg = NULL;
	struct ptc_rank_rows rows;

	(void)err;
	if (status == 0)
		status = ptc_pb_decode(&ptc__v1__document__descriptor, data, len, &msg, NULL);
	if (status == 0 && !l->ctl->gone && ptc_rank_rows_decode(((Ptc__V1__Document *)msg)->json, &rows, NULL) == 0) {
		take_rows(l, a->node, &rows);
		ptc_rank_rows_done(&rows);
	}
	ptc_pb_free(msg);
	ptc_free(a);
	if (--l->awaited == 0)
		look_ends(l);
}

static void ask_node(struct ptc_device_look *l, const char *name)
{
	struct ptc_controllers *all = l->ctl->all;
	Ptc__V1__JobRequest req = PTC__V1__JOB_REQUEST__INIT;
	struct ptc_rpc_channel *channel;
	struct ask *a;
	uint32_t at;
	void *data;
	size_t len;

	if (!ptc_cluster_find_node(all->cluster, name, &at) || !ptc_job_settled(l->ctl->core, at))
		return;
	req.version = PTC_WIRE_VERSION;
	req.job = l->ctl->uuid;
	if (ptc_channels_get(all->channels, name, ptc_cluster_node(all->cluster, at)->doc.address, false, 0, &channel,
			     NULL) != 0 ||
	    ptc_pb_encode(&req.base, &data, &len, NULL) != 0)
		return;
	a = ptc_calloc(1, sizeof *a);
	ptc_require(a);
	*a = (struct ask){ l, at };
	l->awaited++;
	ptc_rpc_unary_async(all->client, channel, "/ptc.v1.Peer/Ranks", data, len, ASK_TIMEOUT_MS, answered, a);
	ptc_free(data);
}

/* ---- a look ---- */

static void add_spare(struct ptc_device_look *l, const struct ptc_devices_doc *d, const struct ptc_devices_doc *need)
{
	for (size_t i = 0; i < d->n; i++) {
		const struct ptc_device_given *g = &d->v[i];

		if (strcmp(g->uuid, l->meta.uuid) != 0 || ptc_devices_has(need, g->node, g->device, g->uuid))
			continue;
		ptc_require(PTC_MORE(l->spare, l->n));
		l->spare[l->n++] = *g;
	}
	l->free = ptc_calloc(l->n, sizeof *l->free);
	ptc_require(l->free);
}

static void add_lacks(struct ptc_device_look *l, const struct ptc_devices_doc *d, const struct ptc_devices_doc *need)
{
	for (size_t i = 0; l->ctl->record.run == PTC_RUN_LIVE && i < need->n; i++) {
		const struct ptc_device_given *g = &need->v[i];

		if (ptc_devices_has(d, g->node, g->device, g->uuid))
			continue;
		ptc_require(PTC_MORE(l->lacks, l->nlacks));
		l->lacks[l->nlacks++] = *g;
	}
}

/* Snapshots may follow each other closely. Ranks that build ahead have devices that the record does not name: until
 * their switch has ended nothing is given back. */
static bool may_look(const struct ptc_controller *ctl)
{
	if (ctl->ahead)
		return false;
	switch (ptc_job_phase(ctl->core)) {
	case PTC_JOB_IDLE:
		return true;
	case PTC_JOB_NEW:
	case PTC_JOB_RELOADING:
	case PTC_JOB_STOPPED:
		return false;
	default:
		return ctl->intent.kind == PTC_SWITCH_SNAPSHOT;
	}
}

void ptc_device_keeper_tick(struct ptc_controller *ctl)
{
	const struct ptc_devices_doc *d = ptc_cluster_devices(ctl->all->cluster);
	uint64_t writes = ptc_cluster_device_writes(ctl->all->cluster);
	struct ptc_devices_doc need;
	struct ptc_device_look *l;

	if (ctl->gone || ctl->devices.busy || !may_look(ctl) || ptc_sys_now_ns() - ctl->devices.looked_ns < LOOK_NS ||
	    (ctl->devices.right && ctl->devices.writes == writes && ctl->devices.revision == ctl->record_revision))
		return;
	l = ptc_calloc(1, sizeof *l);
	ptc_require(l);
	l->ctl = ptc_controller_ref(ctl);
	l->meta = ctl->meta;
	l->fence = ctl->fence;
	l->claims = ctl->devices.claims;
	need = needed(ctl);
	add_spare(l, d, &need);
	add_lacks(l, d, &need);
	ptc_devices_doc_done(&need);
	ctl->devices.looked_ns = ptc_sys_now_ns();
	ctl->devices.writes = writes;
	ctl->devices.revision = ctl->record_revision;
	ctl->devices.right = !l->n && !l->nlacks;
	ctl->devices.busy = true;
	l->awaited = 1;
	for (size_t i = 0; i < l->n; i++)
		if (!i || strcmp(l->spare[i - 1].node, l->spare[i].node) != 0)
			ask_node(l, l->spare[i].node);
	if (--l->awaited == 0)
		look_ends(l);
}
