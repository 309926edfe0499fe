/* SPDX-License-Identifier: Apache-2.0 */
/* Asks whether nodes still have the bridge. A node may drop its tables of the bridge for want of room. The node says
 * so until the controller knows, but forgets it if its ptcd is restarted. A node's chunks may also be gone.
 *
 * Happy path: each node that is up has its table. Failure modes: a node that is down, or does not answer, counts as
 * having it; if documents cannot be read now, all nodes count as having it. Blocks; any thread but the loop. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/log.h"

#include <stdio.h>

struct locate {
	struct ptc_view *v;
	struct ptc_cluster *cluster;
	int rc;
};

static void locate(void *arg)
{
	struct locate *l = arg;

	l->rc = ptc_view_locate(l->v, l->cluster);
}

/* The first node that is up and lacks its table, if the others do not have all without it. */
static int look(struct ptc_controllers *all, struct ptc_view *v, char ret_node[PTC_NAME_MAX + 1], struct ptc_error *err)
{
	struct locate l = { v, all->cluster, PTC_ECANCELED };
	ptc_auto_free bool *has = ptc_calloc(v->nnodes + 1, sizeof *has);
	const char *without = NULL;
	int rc;

	if (!has)
		return ptc_nomem(err);
	ptc_loop_call(all->loop, locate, &l);
	if (l.rc)
		return ptc_error_set(err, l.rc, "its nodes cannot be looked up");
	ptc_lost_ask(all, v, has);
	for (size_t i = 0; i < v->nnodes; i++) {
		if (!has[i] && !v->down[i] && ptc_view_placed(v, v->nodes[i]) && !without)
			without = v->nodes[i];
		has[i] = has[i] || v->down[i];
	}
	if (!without)
		return 0;
	rc = ptc_lost_covered(all, v, has, err);
	if (rc != PTC_ELOST)
		return rc;
	snprintf(ret_node, PTC_NAME_MAX + 1, "%s", without);
	return 0;
}

void ptc_older_ask_bridge(struct ptc_controllers *all, const struct ptc_meta_doc *meta, const struct ptc_older_doc *doc,
			  char ret_node[PTC_NAME_MAX + 1])
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_view v = { 0 };
	int rc;

	ret_node[0] = '\0';
	if (!doc->bridge.snapshot)
		return;
	rc = ptc_view_older(all->docs.kept, meta, doc, doc->bridge.snapshot, &v, &err);
	if (rc == 0) {
		rc = look(all, &v, ret_node, &err);
		ptc_view_done(&v);
	}
	if (rc)
		ptc_debug("job", "job=%s whether its bridge is there is not known: %s", meta->name, err.text);
}
