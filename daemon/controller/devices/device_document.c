/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes the document of devices, for a controller.
 *
 * Happy path: the document is read with the mod_revision that a transaction is to compare, and without the devices of
 * deleted jobs. Failure modes: it cannot be read; it is too long. If it is too long, devices of nodes that are not up
 * are left out. Such a node, once it is back, starts no rank beside another job's (daemon/workers/group). */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <stdio.h>
#include <string.h>

/* What the mirror shows of the entries' jobs, or of their nodes. */
struct shown {
	struct ptc_controllers *all;
	const struct ptc_devices_doc *d;
	bool nodes;
	bool *v; /* of each entry: its job is known; with `nodes`: its node is up */
};

static void shown_on_loop(void *arg)
{
	struct shown *s = arg;
	uint32_t at;

	for (size_t i = 0; i < s->d->n; i++) {
		const struct ptc_device_given *g = &s->d->v[i];
		const struct ptc_job_view *j = s->nodes ? NULL : ptc_cluster_find_uuid(s->all->cluster, g->uuid);

		s->v[i] = s->nodes ? ptc_cluster_find_node(s->all->cluster, g->node, &at) &&
					     ptc_cluster_node(s->all->cluster, at)->up
				   : j && j->has_meta;
	}
}

/* *ret: of each entry; for ptc_free. */
static int shown(struct ptc_controllers *all, const struct ptc_devices_doc *d, bool nodes, bool **ret,
		 struct ptc_error *err)
{
	struct shown s = { all, d, nodes, ptc_calloc(d->n, sizeof *s.v) };
	int rc = s.v ? ptc_loop_call(all->loop, shown_on_loop, &s) : ptc_nomem(err);

	if (rc) {
		ptc_free(s.v);
		return rc;
	}
	*ret = s.v;
	return 0;
}

int ptc_devices_job(struct ptc_etcd *e, const char *uuid, bool *ret_there, struct ptc_meta_doc *ret_meta,
		    struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	char key[96];
	int rc;

	snprintf(key, sizeof key, "/ptc/jobs/%s/meta", uuid);
	rc = ptc_etcd_get(e, key, false, 1, &kvs, err);
	if (rc == 0 && kvs.n)
		rc = ptc_meta_doc_decode(kvs.kv[0].value, kvs.kv[0].len, ret_meta, err);
	if (rc == 0)
		*ret_there = kvs.n != 0;
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

/* Jobs that the mirror does not show: each once, in *ret (ptc_free it). */
static int absent_jobs(struct ptc_controllers *all, const struct ptc_devices_doc *d, struct ptc_device_given **ret,
		       size_t *ret_n, struct ptc_error *err)
{
	ptc_auto_free bool *there = NULL;
	struct ptc_device_given *v = NULL;
	size_t n = 0, k;
	int rc = shown(all, d, false, &there, err);

	for (size_t i = 0; rc == 0 && i < d->n; i++) {
		for (k = 0; k < n && strcmp(v[k].uuid, d->v[i].uuid) != 0; k++)
			;
		if (there[i] || k < n)
			continue;
		if (!PTC_MORE(v, n))
			rc = ptc_nomem(err);
		else
			v[n++] = d->v[i];
	}
	*ret = v;
	*ret_n = n;
	return rc;
}

/* The mirror may be behind etcd, which has the last word. A uuid never comes again. */
static int take_deleted(struct ptc_controllers *all, struct ptc_etcd *e, struct ptc_devices_doc *d,
			struct ptc_error *err)
{
	ptc_auto_free struct ptc_meta_doc *m = ptc_calloc(1, sizeof *m);
	ptc_auto_free struct ptc_device_given *v = NULL;
	size_t n = 0;
	bool there;
	int rc = m ? absent_jobs(all, d, &v, &n, err) : ptc_nomem(err);

	for (size_t i = 0; rc == 0 && i < n; i++) {
		rc = ptc_devices_job(e, v[i].uuid, &there, m, err);
		if (rc == 0 && !there)
			ptc_devices_take(d, v[i].uuid, NULL, NULL);
	}
	return rc;
}

int ptc_devices_read(struct ptc_controllers *all, struct ptc_etcd *e, struct ptc_devices_doc *ret,
		     int64_t *ret_revision, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	struct ptc_devices_doc d = { 0 };
	int rc = ptc_etcd_get(e, PTC_DEVICES_KEY, false, 1, &kvs, err);

	*ret = d;
	*ret_revision = rc == 0 && kvs.n ? kvs.kv[0].mod_revision : 0;
	if (rc == 0 && kvs.n)
		rc = ptc_devices_doc_decode(kvs.kv[0].value, kvs.kv[0].len, &d, err);
	ptc_etcd_kvs_done(&kvs);
	if (rc == 0)
		rc = take_deleted(all, e, &d, err);
	if (rc) {
		ptc_devices_doc_done(&d);
		return rc;
	}
	*ret = d;
	return 0;
}

bool ptc_devices_moved(struct ptc_etcd *e, int64_t revision)
{
	struct ptc_etcd_kvs kvs = { 0 };
	bool moved = ptc_etcd_get(e, PTC_DEVICES_KEY, false, 1, &kvs, NULL) == 0 &&
		     (kvs.n ? kvs.kv[0].mod_revision : 0) != revision;

	ptc_etcd_kvs_done(&kvs);
	return moved;
}

static int leave_out_down(struct ptc_controllers *all, struct ptc_devices_doc *d, struct ptc_error *err)
{
	ptc_auto_free bool *up = NULL;
	size_t n = 0;
	int rc = shown(all, d, true, &up, err);

	for (size_t i = 0; rc == 0 && i < d->n; i++)
		if (up[i])
			d->v[n++] = d->v[i];
	d->n = rc ? d->n : n;
	return rc;
}

int ptc_devices_text(struct ptc_controllers *all, struct ptc_devices_doc *d, char **ret_json, struct ptc_error *err)
{
	char *json = ptc_devices_doc_encode(d);
	int rc;

	if (json && strlen(json) > PTC_DEVICES_MAX_BYTES) {
		ptc_free(json);
		rc = leave_out_down(all, d, err);
		if (rc)
			return rc;
		json = ptc_devices_doc_encode(d);
	}
	if (!json)
		return ptc_nomem(err);
	if (strlen(json) > PTC_DEVICES_MAX_BYTES) {
		ptc_free(json);
		return ptc_error_set(err, PTC_ELIMIT,
				     "which job has which devices takes more than %u bytes to write down; "
				     "stop another job first",
				     PTC_DEVICES_MAX_BYTES);
	}
	*ret_json = json;
	return 0;
}
