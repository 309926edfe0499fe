/* SPDX-License-Identifier: Apache-2.0 */
/* Devices go back once nobody needs them.
 *
 * Happy path: no switch is under way, and the job has devices that ranks of the record do not need. Each of their nodes
 * that is as the record says is asked which of its processes live. The devices that none of them has are taken out of
 * the document. A job that waits to be started again keeps what it had. Failure modes: a node is down, or does not
 * answer: what it has stays the job's until it is back and its ranks have ended; a compare fails: all is looked at
 * again. Devices that ranks have and the document lacks (an older version started them) are written down. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "formats/json.h"
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
	int64_t fence, record_revision;
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

static int write_down(struct ptc_device_look *l, struct ptc_etcd *e, const struct ptc_devices_doc *d, int64_t revision,
		      struct ptc_error *err)
{
	char lock[96], record[96], intent[96], *json;
	const struct ptc_etcd_compare cmp[] = { { lock, PTC_ETCD_CREATE_REV, l->fence },
						{ record, PTC_ETCD_MOD_REV, l->record_revision },
						{ intent, PTC_ETCD_MOD_REV, 0 },
						{ PTC_DEVICES_KEY, PTC_ETCD_MOD_REV, revision } };
	bool ok;
	int rc = ptc_devices_text(d, &json, err);

	if (rc)
		return rc;
	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", l->meta.uuid);
	snprintf(record, sizeof record, "/ptc/jobs/%s/record", l->meta.uuid);
	snprintf(intent, sizeof intent, "/ptc/jobs/%s/intent", l->meta.uuid);
	rc = ptc_etcd_txn(e, cmp, PTC_ARRAY_LEN(cmp),
			  &(struct ptc_etcd_op){ .key = PTC_DEVICES_KEY, .value = json, .len = strlen(json) }, 1,
			  "etcd.devices", &ok, NULL, err); /* not ok: the next look begins anew */
	ptc_free(json);
	return rc;
}

static void write_work(void *arg, struct ptc_etcd *e)
{
	struct ptc_device_look *l = arg;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_devices_doc d = { 0 };
	int64_t revision;
	size_t before;
	bool took;
	int rc = l->nlacks ? shares(l, &err) : 0;

	if (rc == 0)
		rc = ptc_devices_read(e, &d, &revision, &err);
	if (rc == 0) {
		took = ptc_devices_take(&d, l->meta.uuid, keeps, l);
		before = d.n;
		if (ptc_devices_add(&d, l->lacks, l->nlacks) != 0)
			rc = ptc_nomem(&err);
		else if (took || d.n > before)
			rc = write_down(l, e, &d, revision, &err);
	}
	ptc_devices_doc_done(&d);
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
	bool any = l->nlacks != 0;

	for (size_t i = 0; i < l->n; i++)
		any |= l->free[i];
	if (!any || ctl->gone || !ptc_controller_idle(ctl) || ctl->record_revision != l->record_revision) {
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

static void take_rows(struct ptc_device_look *l, uint32_t node, const json_t *rows)
{
	const char *name = ptc_cluster_node(l->ctl->all->cluster, node)->doc.name;
	const json_t *row;
	size_t k;

	for (size_t i = 0; i < l->n; i++) {
		if (strcmp(l->spare[i].node, name) != 0)
			continue;
		l->free[i] = ptc_job_settled(l->ctl->core, node);
		json_array_foreach(rows, k, row) {
			const json_t *on = json_object_get(row, "on_device");

			if (json_is_integer(on) && json_integer_value(on) == (json_int_t)l->spare[i].device)
				l->free[i] = false;
		}
	}
}

static void answered(void *arg, int status, const struct ptc_error *err, const void *data, size_t len)
{
	struct ask *a = arg;
	struct ptc_device_look *l = a->look;
	ProtobufCMessage *msg = NULL;
	json_t *rows = NULL;
	const char *text;

	(void)err;
	if (status == 0)
		status = ptc_pb_decode(&ptc__v1__document__descriptor, data, len, &msg, NULL);
	text = status == 0 ? ((Ptc__V1__Document *)msg)->json : "";
	if (status == 0 && !l->ctl->gone && ptc_json_load("ranks", text, strlen(text), &rows, NULL) == 0)
		take_rows(l, a->node, rows);
	json_decref(rows);
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

static bool needs(const struct ptc_controller *ctl, const char *node, uint32_t device)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	bool any = ctl->record.run == PTC_RUN_LIVE || ctl->record.recovery;

	for (uint32_t r = 0; any && r < g->world; r++)
		if (g->rank_device[r] == device && strcmp(g->nodes[g->rank_node[r]], node) == 0)
			return true;
	return false;
}

static void add_spare(struct ptc_device_look *l, const struct ptc_devices_doc *d)
{
	for (size_t i = 0; i < d->n; i++)
		if (strcmp(d->v[i].uuid, l->meta.uuid) == 0 && !needs(l->ctl, d->v[i].node, d->v[i].device)) {
			ptc_require(PTC_MORE(l->spare, l->n));
			l->spare[l->n++] = d->v[i];
		}
	l->free = ptc_calloc(l->n, sizeof *l->free);
	ptc_require(l->free);
}

static void add_lacks(struct ptc_device_look *l, const struct ptc_devices_doc *d)
{
	const struct ptc_generation_doc *g = ptc_controller_current(l->ctl);

	for (uint32_t r = 0; l->ctl->record.run == PTC_RUN_LIVE && r < g->world; r++) {
		struct ptc_device_given lacks = { .device = g->rank_device[r] };

		snprintf(lacks.node, sizeof lacks.node, "%s", g->nodes[g->rank_node[r]]);
		memcpy(lacks.uuid, l->meta.uuid, sizeof lacks.uuid);
		if (ptc_devices_has(d, lacks.node, lacks.device, lacks.uuid))
			continue;
		ptc_require(PTC_MORE(l->lacks, l->nlacks));
		l->lacks[l->nlacks++] = lacks;
	}
}

void ptc_device_keeper_tick(struct ptc_controller *ctl)
{
	const struct ptc_devices_doc *d = ptc_cluster_devices(ctl->all->cluster);
	uint64_t epoch = ptc_cluster_epoch(ctl->all->cluster);
	struct ptc_device_look *l;

	if (ctl->gone || ctl->devices.busy || !ptc_controller_ready(ctl) ||
	    ptc_sys_now_ns() - ctl->devices.looked_ns < LOOK_NS ||
	    (ctl->devices.right && ctl->devices.epoch == epoch && ctl->devices.revision == ctl->record_revision))
		return;
	l = ptc_calloc(1, sizeof *l);
	ptc_require(l);
	l->ctl = ptc_controller_ref(ctl);
	l->meta = ctl->meta;
	l->fence = ctl->fence;
	l->record_revision = ctl->record_revision;
	add_spare(l, d);
	add_lacks(l, d);
	ctl->devices.looked_ns = ptc_sys_now_ns();
	ctl->devices.epoch = epoch;
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
