/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the layout document of a generation from its ranks' declarations.
 *
 * Happy path: the declarations of all ranks are merged; the tensors are those that the record's state has; the document
 * is encoded. Failure modes: declarations that contradict each other, the old generation or a rule (PTC_ELAYOUT); etcd
 * does not answer (PTC_ECOORD); memory. */
#include "daemon/agent/geometry/rank_reports.h"
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "formats/job/job.h"
#include "formats/state/layout_doc.h"

#include "ptc.pb-c.h"

#include <stdio.h>

struct declared_ask {
	struct ptc_controllers *all;
	const struct ptc_view *view; /* from: the old generation, with its state; to: the new one */
	Ptc__V1__WorkersReply *const *replies;
	size_t nreplies;
	struct ptc_error *err;
};

static int merge_layout(const struct declared_ask *l, struct ptc_declared *ret_declared)
{
	struct ptc_declared_merge *m = NULL;
	struct ptc_config config;
	int rc = ptc_config_parse(l->view->to.config, &config, l->err);

	if (rc == 0)
		rc = ptc_declared_merge_new(&config, &m, l->err);
	for (size_t i = 0; rc == 0 && i < l->nreplies; i++)
		for (size_t k = 0; rc == 0 && k < l->replies[i]->n_ranks; k++)
			rc = ptc_agent_declared_add(m, l->replies[i]->ranks[k], l->err);
	if (rc == 0)
		rc = ptc_declared_merge_finish(m, ret_declared, l->err);
	ptc_declared_merge_free(m);
	return rc;
}

/* What a rule takes the greatest of has one. */
static int check_max(const struct declared_ask *l, const struct ptc_spec *rules, const struct ptc_spec *now)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && rules->nrules && i < now->ntensors; i++)
		rc = ptc_rule_check_max(ptc_spec_rule_named(rules, now->tensors[i].name), now->tensors[i].name,
					now->tensors[i].dtype, l->err);
	return rc;
}

/* With what the job's description says: rules, and of a job that was imported its tensors. */
static int compare_described(const struct declared_ask *l, const struct ptc_declared *now)
{
	bool imported = l->view->to_snapshot && !l->view->from.layout_hash[0];
	const struct ptc_job_desc *desc;
	void *ref;
	int rc = ptc_specs_get(l->all->docs.specs, l->view->meta.uuid, l->view->meta.spec_hash, &desc, &ref, l->err);

	if (rc)
		return rc;
	if (imported)
		rc = ptc_declared_same(&desc->spec, &now->spec, "the job's ranks", l->err);
	if (rc == 0)
		rc = check_max(l, &desc->spec, &now->spec);
	ptc_specs_release(ref);
	return rc;
}

/* State can only go on into the same tensors. */
static int compare(const struct declared_ask *l, const struct ptc_declared *now)
{
	const struct ptc_declared *before;
	const struct ptc_layout *layout;
	char text[PTC_ERROR_MAX];
	void *ref;
	int rc = compare_described(l, now);

	if (rc || l->view->to_snapshot == 0 || !l->view->from.layout_hash[0])
		return rc;
	rc = ptc_layouts_get(l->all->docs.layouts, l->view->meta.uuid, l->view->from.layout_hash, &before, &layout,
			     &ref, l->err);
	if (rc)
		return rc;
	snprintf(text, sizeof text, "configuration %.200s", l->view->to.config);
	rc = ptc_declared_same(&before->spec, &now->spec, text, l->err);
	ptc_layouts_release(ref);
	return rc;
}

/* What was planned with was declared before, or probed: what ranks say now counts, and a difference is told. */
static void tell_difference(const struct declared_ask *l, const struct ptc_declared *now)
{
	const struct ptc_declared *planned;
	const struct ptc_layout *layout;
	char text[PTC_ERROR_MAX];
	void *ref;

	if (!l->view->to.layout_hash[0] || ptc_layouts_get(l->all->docs.layouts, l->view->meta.uuid,
							   l->view->to.layout_hash, &planned, &layout, &ref, NULL) != 0)
		return;
	if (ptc_declared_differ(planned, now, text, sizeof text))
		ptc_event(l->all->cluster, l->view->meta.uuid, "layout",
			  "ranks declare under %.200s something else than was known before, by a probe or an earlier "
			  "run; what they declare counts: %s",
			  l->view->to.config, text);
	ptc_layouts_release(ref);
}

int ptc_declared_document(struct ptc_controllers *all, const struct ptc_view *v,
			  struct Ptc__V1__WorkersReply *const *replies, size_t nreplies, char **ret, size_t *ret_len,
			  struct ptc_error *err)
{
	const struct declared_ask ask = { all, v, replies, nreplies, err };
	struct ptc_declared declared = { 0 };
	int rc = merge_layout(&ask, &declared);

	if (rc)
		return rc;
	rc = compare(&ask, &declared);
	if (rc == 0) {
		tell_difference(&ask, &declared);
		rc = ptc_layout_doc_encode(&declared, ret, ret_len, err);
	}
	ptc_declared_done(&declared);
	return rc;
}

/* ---- written down before a switch ---------------------------------------------------- */

struct writing {
	struct ptc_controller *ctl;
	struct ptc_view view;
	int64_t fence;
	struct Ptc__V1__WorkersReply *const *replies;
	size_t nreplies;
	void (*done)(void *arg, int status, const char *why, const char *hash);
	void *arg;
	int status;
	struct ptc_error err;
	char *document;
	size_t len;
	char hash[PTC_HASH_HEX];
};

static void writing_merge(void *arg, struct ptc_etcd *e)
{
	struct writing *w = arg;

	(void)e;
	w->status =
		ptc_declared_document(w->ctl->all, &w->view, w->replies, w->nreplies, &w->document, &w->len, &w->err);
}

static void writing_put(void *arg, struct ptc_etcd *e)
{
	struct writing *w = arg;

	if (w->status == 0)
		w->status = ptc_quota_document(w->ctl->all->cluster, w->view.meta.uid, w->len,
					       "what the ranks declared", &w->err);
	if (w->status == 0)
		w->status =
			ptc_controller_put_blob(w->view.meta.uuid, w->fence, e, w->document, w->len, w->hash, &w->err);
}

static void writing_done(void *arg)
{
	struct writing *w = arg;

	w->done(w->arg, w->status, w->err.text, w->hash);
	ptc_free(w->document);
	ptc_view_done(&w->view);
	ptc_controller_unref(w->ctl);
	ptc_free(w);
}

void ptc_declared_write(struct ptc_controller *ctl, struct ptc_view *v, struct Ptc__V1__WorkersReply *const *replies,
			size_t nreplies, void (*done)(void *arg, int status, const char *why, const char *hash),
			void *arg)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_COMPUTE, writing_merge },
						      { PTC_TASK_ETCD, writing_put },
						      { 0 } };
	struct writing *w = ptc_calloc(1, sizeof *w);

	ptc_require(w);
	*w = (struct writing){ .ctl = ptc_controller_ref(ctl),
			       .view = *v,
			       .fence = ctl->fence,
			       .replies = replies,
			       .nreplies = nreplies,
			       .done = done,
			       .arg = arg,
			       .err = PTC_ERROR_INIT };
	*v = (struct ptc_view){ 0 };
	ptc_require(ptc_cluster_steps(ctl->all->cluster, ctl->uuid, steps, writing_done, w) == 0);
}
