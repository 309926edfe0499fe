/* SPDX-License-Identifier: Apache-2.0 */
/* A job's committed state for healing: the loop's mirror names the documents, which are read as any reader of the state
 * reads them. Failure modes: no such job, nothing committed (PTC_ENOTFOUND); documents that cannot be read (their
 * code). */
#include "daemon/scrub/scrub.h"

#include "base/alloc.h"

#include <string.h>

struct committed {
	struct ptc_view view;
	struct ptc_geometry geometry;
	/* of the loop */
	const struct ptc_documents *docs;
	const char *uuid;
	struct ptc_meta_doc meta;
	struct ptc_record_doc record;
	bool found;
	int located;
};

static void find_on_loop(void *arg)
{
	struct committed *c = arg;
	const struct ptc_job_view *j = ptc_cluster_find_uuid(c->docs->cluster, c->uuid);

	c->found = j && j->has_meta && j->has_record && j->record.snapshot;
	if (c->found) {
		c->meta = j->meta;
		c->record = j->record;
	}
}

static void locate_on_loop(void *arg)
{
	struct committed *c = arg;

	c->located = ptc_view_find_copies(&c->view, c->docs->cluster);
	if (c->located == 0)
		c->located = ptc_view_locate(&c->view, c->docs->cluster);
}

static int load(struct committed *c, struct ptc_agent *agent, struct ptc_error *err)
{
	struct ptc_loop *loop = ptc_cluster_loop(c->docs->cluster);
	int rc = ptc_loop_call(loop, find_on_loop, c);

	if (rc)
		return ptc_error_set(err, rc, "the daemon is stopping");
	if (!c->found)
		return ptc_error_set(err, PTC_ENOTFOUND, "nothing is committed of job %s", c->uuid);
	rc = ptc_view_load(c->docs->kept, &c->meta, &c->record, NULL, &c->view, err);
	if (rc)
		return rc;
	rc = ptc_loop_call(loop, locate_on_loop, c);
	if (rc == 0)
		rc = c->located;
	if (rc)
		ptc_error_set(err, rc, "cannot locate the nodes of job %s", c->uuid);
	if (rc == 0)
		rc = ptc_view_geometry(agent, &c->view, false, &c->geometry, err);
	if (rc)
		ptc_view_done(&c->view);
	return rc;
}

int ptc_committed_get(const struct ptc_documents *docs, struct ptc_agent *agent, const char *uuid,
		      struct ptc_agent_committed *ret, struct ptc_error *err)
{
	struct committed *c = ptc_calloc(1, sizeof *c);
	int rc;

	if (!c)
		return ptc_nomem(err);
	c->docs = docs;
	c->uuid = uuid;
	rc = load(c, agent, err);
	if (rc) {
		ptc_free(c);
		return rc;
	}
	*ret = (struct ptc_agent_committed){
		.g = &c->geometry, .digests = c->view.manifest.digests, .ndigests = c->view.manifest.ndigests, .ref = c
	};
	return 0;
}

void ptc_committed_release(struct ptc_agent_committed *committed)
{
	struct committed *c = committed->ref;

	ptc_geometry_done(&c->geometry);
	ptc_view_done(&c->view);
	ptc_free(c);
}
