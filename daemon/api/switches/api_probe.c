/* SPDX-License-Identifier: Apache-2.0 */
/* Remembers a layout that `ptcctl probe` has found. Any daemon does it. Failure modes: the document is impossible, or
 * has other tensors than the job (the line names the first); PTC_EPERM; etcd's errors. */
#include "base/alloc.h"
#include "base/check.h"
#include "daemon/api/switches/switches.h"
#include "daemon/cluster/job_events.h"
#include "daemon/documents/probed/probed.h"
#include "formats/state/layout_doc.h"

#include <string.h>

static int check_job(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_error *err)
{
	const struct ptc_job_desc *desc;
	bool declares;
	void *ref;
	int rc = ptc_specs_get(d->docs.specs, t->meta.uuid, t->meta.spec_hash, &desc, &ref, err);

	if (rc)
		return rc;
	declares = desc->has_run && desc->spec.ntensors == 0;
	ptc_specs_release(ref);
	return declares ? 0
			: ptc_error_set(err, PTC_ESTATE,
					"job \"%s\" has rules for its tensors, which say what each rank holds; there "
					"is nothing to probe",
					t->meta.name);
}

/* What came of a probe. */
struct found {
	char *config;                /* owned */
	bool declared;               /* ranks have declared a layout under it, which counts */
	char differs[PTC_ERROR_MAX]; /* how theirs differs; "": it does not, or there is none */
};

static json_t *found_json(const struct found *f, const char *job)
{
	return json_pack("{s:i, s:s, s:s, s:s, s:s}", "version", 1, "job", job, "config", f->config, "known",
			 f->declared ? "declared" : "probed", "differs", f->differs);
}

/* With what ranks have declared: of the job, and under this configuration. differs: how; "": they do not, or have not.
 */
static int compare(struct ptc_daemon *d, const struct ptc_view *v, const struct ptc_declared *probed,
		   const char *config, char *differs, size_t size, struct ptc_error *err)
{
	const char *known = ptc_manifest_layout_find(&v->manifest, config);
	const struct ptc_declared *declared;
	const struct ptc_layout *layout;
	void *ref;
	int rc = 0;

	*differs = '\0';
	if (v->from.layout_hash[0]) {
		rc = ptc_layouts_get(d->docs.layouts, v->meta.uuid, v->from.layout_hash, &declared, &layout, &ref, err);
		if (rc)
			return rc;
		rc = ptc_declared_same(&declared->spec, &probed->spec, "the probed program", err);
		ptc_layouts_release(ref);
	}
	if (rc || !known)
		return rc;
	rc = ptc_layouts_get(d->docs.layouts, v->meta.uuid, known, &declared, &layout, &ref, err);
	if (rc == 0) {
		(void)ptc_declared_differ(declared, probed, differs, size);
		ptc_layouts_release(ref);
	}
	return rc;
}

static int remember(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v, const char *json,
		    size_t len, struct found *f, struct ptc_error *err)
{
	struct ptc_declared probed = { 0 };
	int rc = ptc_layout_doc_decode(json, len, &probed, err);

	if (rc)
		return ptc_error_wrap(err, "the probe's layout");
	f->config = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	if (!f->config || ptc_config_format(&probed.config, f->config, PTC_CONFIG_TEXT_MAX) != 0)
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = compare(d, v, &probed, f->config, f->differs, sizeof f->differs, err);
	f->declared = rc == 0 && ptc_manifest_layout_find(&v->manifest, f->config);
	if (rc == 0 && !f->declared)
		rc = ptc_probed_put(&d->docs, &t->meta, f->config, json, len, err);
	if (rc == 0 && *f->differs)
		ptc_event(d->cluster, t->meta.uuid, "probed",
			  "a probe of %.200s differs from what ranks have declared under it, which counts: %s",
			  f->config, f->differs);
	else if (rc == 0 && !f->declared)
		ptc_event(d->cluster, t->meta.uuid, "probed",
			  "%.200s: a probe or an archive says what its %u ranks would hold; plans and prices count "
			  "with it",
			  f->config, probed.world);
	ptc_declared_done(&probed);
	return rc;
}

PTC_API_HANDLER(ptc_api_probe)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__ProbeRequest *req;
	struct ptc_target t;
	struct ptc_view v;
	struct found found = { 0 };
	int rc = ptc_pb_call_recv(call, &ptc__v1__probe_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = req->layout.len > PTC_PROBED_MAX_BYTES
		     ? ptc_error_set(err, PTC_ELIMIT, "the probe's layout has %zu bytes, at most %u are kept",
				     req->layout.len, PTC_PROBED_MAX_BYTES)
		     : ptc_api_find(d, call, req->job, &t, err);
	if (rc == 0)
		rc = check_job(d, &t, err);
	if (rc == 0)
		rc = ptc_api_view(d, &t, false, false, &v, err);
	if (rc == 0) {
		rc = remember(d, &t, &v, (const char *)req->layout.data, req->layout.len, &found, err);
		ptc_view_done(&v);
	}
	ptc_pb_free(&req->base);
	if (rc == 0)
		rc = ptc_api_send_json(call, found_json(&found, t.meta.name), err);
	ptc_free(found.config);
	return rc;
}
