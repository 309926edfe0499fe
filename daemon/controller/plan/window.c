/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the nodes' ceilings leave room for the bridge (docs/decisions/0058-bridges.md) while ranks that train are
 * resized. Happy path: each node is to hold the committed snapshot, its copies, the snapshot that the ranks stop with,
 * and the new bytes. Other jobs are not counted.
 *
 * Failure modes: memory, or a layout that cannot be read: then nothing is known. */
#include "base/alloc.h"
#include "base/cleanup.h"
#include "daemon/controller/loss/copied_layout.h"
#include "daemon/controller/plan/internal.h"
#include "reshard/copies/copies.h"

#include <string.h>

/* What a plan of a live job does not have in its view: there, copies are no sources. */
static int with_copies(const struct ptc_device_pool *p, const struct ptc_view *v, struct ptc_view *ret)
{
	*ret = (struct ptc_view){ .meta = v->meta,
				  .from_generation = v->from_generation,
				  .from_snapshot = v->from_snapshot,
				  .manifest = v->manifest };
	return ptc_generation_doc_copy(&v->from, &ret->from) == 0 ? ptc_view_copies(ret, &p->copies) : PTC_ENOMEM;
}

static void with_copies_done(struct ptc_view *with)
{
	with->manifest = (struct ptc_manifest_doc){ 0 }; /* borrowed */
	ptc_view_done(with);
}

static void add(const struct ptc_device_pool *p, const struct ptc_view *with, const int64_t *bytes, int64_t *sum)
{
	for (size_t i = 0; i < with->nnodes; i++)
		for (size_t k = 0; k < p->nnames; k++)
			if (strcmp(with->nodes[i], p->names[k]) == 0)
				sum[k] += bytes[i];
}

/* Adds what each node holds of the committed snapshot with its copies, and of the one that the ranks stop with. */
static int add_snapshots(const struct ptc_device_pool *p, const struct ptc_view *v, const struct ptc_job_desc *desc,
			 int64_t *sum)
{
	const uint32_t worlds[] = { UINT32_MAX, v->from.world };
	const struct ptc_declared *declared;
	struct ptc_copied_layout h = { 0 };
	struct ptc_view with;
	int rc = with_copies(p, v, &with);
	ptc_auto_free int64_t *bytes = ptc_calloc(with.nnodes + 1, sizeof *bytes);

	if (rc == 0)
		rc = bytes ? ptc_copied_layout_init(&h, p->all, &with, &desc->spec, &declared, NULL) : PTC_ENOMEM;
	for (size_t i = 0; rc == 0 && i < 2; i++) {
		rc = ptc_copies_held(h.with.layout, worlds[i], &h.with.at, (uint32_t)with.nnodes, bytes, NULL);
		if (rc == 0)
			add(p, &with, bytes, sum);
	}
	ptc_copied_layout_done(&h);
	with_copies_done(&with);
	return rc;
}

const char *ptc_plan_window(const struct ptc_device_pool *p, const struct ptc_view *v, const struct ptc_job_desc *desc,
			    const struct ptc_plan_layouts *l)
{
	ptc_auto_free int64_t *sum = ptc_calloc(p->nnames + 1, sizeof *sum),
			      *had = ptc_calloc(p->nnames + 1, sizeof *had);

	if (!desc || desc->copies.count < 2 || !v->from_incarnation || !v->from_snapshot || !l->plan || !l->from ||
	    !sum || !had || add_snapshots(p, v, desc, sum) != 0 ||
	    ptc_copies_held(l->from, UINT32_MAX, &l->copied_at, (uint32_t)p->nnames, had, NULL) != 0)
		return NULL;
	for (size_t i = 0; i < p->nnames; i++) {
		int64_t bytes = sum[i] + l->plan->peak_bytes[i] - had[i]; /* the plan's peak has the old layout in it */

		if (p->ceilings[i] && (uint64_t)bytes > p->ceilings[i])
			return p->names[i];
	}
	return NULL;
}
