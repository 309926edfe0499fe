/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's questions about documents, answered from the caches.
 *
 * Failure modes: those of daemon/documents/documents.h. */
#include "daemon/ptcd.h"
#include "daemon/agent/calls/agent_env.h"
#include "daemon/scrub/scrub.h"

static int layout_get(void *arg, const char *uuid, const char *hash, const struct ptc_spec **ret_spec,
		      const struct ptc_layout **ret_layout, void **ret_ref, struct ptc_error *err)
{
	struct ptc_daemon *d = arg;
	const struct ptc_declared *declared;
	int rc = ptc_layouts_get(d->docs.layouts, uuid, hash, &declared, ret_layout, ret_ref, err);

	if (rc == 0)
		*ret_spec = &declared->spec;
	return rc;
}

static void layout_release(void *arg, void *ref)
{
	(void)arg;
	ptc_layouts_release(ref);
}

static int job_get(void *arg, const char *uuid, const char *spec_hash, const struct ptc_job_desc **ret_job,
		   void **ret_ref, struct ptc_error *err)
{
	struct ptc_daemon *d = arg;

	return ptc_specs_get(d->docs.specs, uuid, spec_hash, ret_job, ret_ref, err);
}

static void job_release(void *arg, void *ref)
{
	(void)arg;
	ptc_specs_release(ref);
}

static int blob_get(void *arg, const char *uuid, const char *hash, char **ret_data, size_t *ret_len,
		    struct ptc_error *err)
{
	struct ptc_daemon *d = arg;

	return ptc_document_get(d->docs.kept, uuid, hash, PTC_SPEC_MAX_BYTES, ret_data, ret_len, err);
}

static int committed_get(void *arg, const char *uuid, struct ptc_agent_committed *ret, struct ptc_error *err)
{
	struct ptc_daemon *d = arg;

	return ptc_committed_get(&d->docs, d->agent, uuid, ret, err);
}

static void committed_release(void *arg, struct ptc_agent_committed *committed)
{
	(void)arg;
	ptc_committed_release(committed);
}

static int keep_committed(void *arg, const char *uuid, struct ptc_error *err)
{
	struct ptc_daemon *d = arg;

	return ptc_kept_now(d->docs.kept, uuid, err);
}

struct least_fence {
	struct ptc_daemon *d;
	const char *uuid;
	int64_t fence;
};

static void least_fence_on_loop(void *arg)
{
	struct least_fence *l = arg;

	l->fence = ptc_cluster_least_fence(l->d->cluster, l->uuid);
}

static int least_fence(void *arg, const char *uuid, int64_t *ret_fence)
{
	struct least_fence l = { .d = arg, .uuid = uuid };
	int rc = ptc_loop_call(l.d->loop, least_fence_on_loop, &l);

	*ret_fence = l.fence;
	return rc;
}

static int64_t store_since(void *arg)
{
	return ptc_cluster_store_since(((struct ptc_daemon *)arg)->cluster);
}

void ptc_layouts_agent_env(struct ptc_agent_env *env)
{
	env->layout_get = layout_get;
	env->layout_release = layout_release;
	env->job_get = job_get;
	env->job_release = job_release;
	env->blob_get = blob_get;
	env->least_fence = least_fence;
	env->store_since = store_since;
	env->keep_committed = keep_committed;
	env->committed_get = committed_get;
	env->committed_release = committed_release;
	env->healed = ptc_healed;
}
