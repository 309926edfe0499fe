/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of ranks that a switch is to start.
 *
 * Happy path: the document is read, no other job has one of the devices, and the transaction of the intent writes it
 * anew if nobody has written it since. So of two jobs that begin at one moment one finds what the other has. Failure
 * modes: a device is another job's (the switch is refused with PTC_ENODEVICES, naming job and devices); the document is
 * too long, or cannot be read. What jobs had that are deleted is taken from them here. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <stdio.h>
#include <string.h>

#define NAMED_MAX 200 /* bytes of a message that name devices */

int ptc_device_claim_make(struct ptc_controller *ctl, struct ptc_device_claim *ret)
{
	const struct ptc_generation_doc *g = &ctl->view.to;
	struct ptc_device_claim c = { .all = ctl->all, .meta = ctl->meta };

	if (!ctl->intent.run_to || !g->world)
		return 0;
	c.want = ptc_calloc(g->world, sizeof *c.want);
	if (!c.want)
		return PTC_ENOMEM;
	for (; c.n < g->world; c.n++) {
		snprintf(c.want[c.n].node, sizeof c.want[c.n].node, "%s", g->nodes[g->rank_node[c.n]]);
		snprintf(c.want[c.n].uuid, sizeof c.want[c.n].uuid, "%s", ctl->uuid);
		c.want[c.n].device = g->rank_device[c.n];
	}
	*ret = c;
	return 0;
}

void ptc_device_claim_done(struct ptc_device_claim *c)
{
	ptc_free(c->want);
	ptc_free(c->json);
}

int ptc_devices_read(struct ptc_etcd *e, struct ptc_devices_doc *ret, int64_t *ret_revision, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	int rc = ptc_etcd_get(e, PTC_DEVICES_KEY, false, 1, &kvs, err);

	*ret = (struct ptc_devices_doc){ 0 };
	*ret_revision = rc == 0 && kvs.n ? kvs.kv[0].mod_revision : 0;
	if (rc == 0 && kvs.n)
		rc = ptc_devices_doc_decode(kvs.kv[0].value, kvs.kv[0].len, ret, err);
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

int ptc_devices_text(const struct ptc_devices_doc *d, char **ret_json, struct ptc_error *err)
{
	char *json = ptc_devices_doc_encode(d);

	if (!json)
		return ptc_nomem(err);
	if (strlen(json) > PTC_DEVICES_MAX_BYTES) {
		ptc_free(json);
		return ptc_error_set(err, PTC_ELIMIT, "which job has which devices takes more than %u bytes to write down",
				     PTC_DEVICES_MAX_BYTES);
	}
	*ret_json = json;
	return 0;
}

/* *ret_name: "": the job does not exist any more. */
static int holder_name(struct ptc_etcd *e, const char *uuid, char ret_name[PTC_NAME_MAX + 1], struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	ptc_auto_free struct ptc_meta_doc *m = ptc_calloc(1, sizeof *m);
	char key[96];
	int rc;

	snprintf(key, sizeof key, "/ptc/jobs/%s/meta", uuid);
	rc = m ? ptc_etcd_get(e, key, false, 1, &kvs, err) : ptc_nomem(err);
	ret_name[0] = '\0';
	if (rc == 0 && kvs.n) {
		rc = ptc_meta_doc_decode(kvs.kv[0].value, kvs.kv[0].len, m, err);
		snprintf(ret_name, PTC_NAME_MAX + 1, "%s", m->name);
	}
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

static void refuse(struct ptc_device_claim *c, const struct ptc_devices_doc *d, const char *uuid, const char *name)
{
	struct ptc_buf list = PTC_BUF_INIT;

	for (size_t i = 0; i < c->n && list.len < NAMED_MAX; i++)
		if (ptc_devices_has(d, c->want[i].node, c->want[i].device, uuid))
			ptc_buf_printf(&list, "%s%s:%u", list.len ? ", " : "", c->want[i].node, c->want[i].device);
	c->status = PTC_ENODEVICES;
	snprintf(c->text, sizeof c->text,
		 "job %s has got devices of this switch meanwhile (%s%s); ask again, and others are chosen", name,
		 list.data ? list.data : "", list.len < NAMED_MAX ? "" : ", ...");
	ptc_buf_done(&list);
}

/* d: with what is wanted. */
static int check(struct ptc_device_claim *c, struct ptc_etcd *e, struct ptc_devices_doc *d, struct ptc_error *err)
{
	const struct ptc_device_given *by;
	char uuid[PTC_DEVICES_UUID], name[PTC_NAME_MAX + 1];
	int rc = 0;

	while (rc == 0 && (by = ptc_devices_conflict(d, c->meta.uuid))) {
		memcpy(uuid, by->uuid, sizeof uuid);
		rc = holder_name(e, uuid, name, err);
		if (rc == 0 && name[0]) {
			refuse(c, d, uuid, name);
			return 0;
		}
		if (rc == 0)
			ptc_devices_take(d, uuid, NULL, NULL);
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
	rc = ptc_devices_read(e, &d, &c->revision, err);
	if (rc == 0 && ptc_devices_add(&d, c->want, c->n) != 0)
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = check(c, e, &d, err);
	if (rc == 0 && !c->status)
		rc = ptc_devices_text(&d, &c->json, err);
	ptc_devices_doc_done(&d);
	return rc;
}

bool ptc_device_claim_moved(const struct ptc_device_claim *c, struct ptc_etcd *e)
{
	struct ptc_etcd_kvs kvs = { 0 };
	bool moved = c->n && ptc_etcd_get(e, PTC_DEVICES_KEY, false, 1, &kvs, NULL) == 0 &&
		     (kvs.n ? kvs.kv[0].mod_revision : 0) != c->revision;

	ptc_etcd_kvs_done(&kvs);
	return moved;
}
