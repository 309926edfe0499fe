/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in a view: which copies are valid for the view's bytes, where they are, and the layout together with the
 * copies. Also views of older snapshots; of these, a bridge has copies of its own. Failure modes: memory; a document of
 * other ranks or items than the generation has (PTC_EINVAL). */
#include "daemon/documents/view_copies.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

int ptc_view_copies(struct ptc_view *v, const struct ptc_copies_doc *copies)
{
	char content[PTC_COPIES_HASH];

	ptc_copies_doc_done(&v->copies);
	if (!copies->nkeepers || copies->generation != v->from_generation || !v->from_snapshot ||
	    strcmp(copies->generation_hash, v->manifest.generation_hash) != 0)
		return ptc_view_nodes(v);
	ptc_copies_content(v->manifest.digests, v->manifest.ndigests, content);
	if (strcmp(content, copies->content) == 0 && ptc_copies_doc_copy(copies, &v->copies) != 0)
		return PTC_ENOMEM;
	return ptc_view_nodes(v);
}

int ptc_view_find_copies(struct ptc_view *v, struct ptc_cluster *c)
{
	const struct ptc_job_view *j = ptc_cluster_find_uuid(c, v->meta.uuid);

	return j ? ptc_view_copies(v, &j->copies) : 0;
}

int ptc_view_copied(const struct ptc_view *v, const struct ptc_layout *base, struct ptc_view_copied *ret,
		    struct ptc_error *err)
{
	const struct ptc_copies_doc *d = &v->copies;
	struct ptc_view_copied h = { .layout = base };
	struct ptc_device *ranks;
	struct ptc_copy *copies;
	int rc = ptc_view_allocation(v, &v->from, &h.at) ? ptc_nomem(err) : 0;

	if (rc || !d->nparts) {
		*ret = h;
		return rc;
	}
	copies = ptc_calloc(d->nparts, sizeof *copies);
	ranks = ptc_reallocarray(h.at.ranks, h.at.world + d->nparts, sizeof *ranks);
	h.at.ranks = ranks ? ranks : h.at.ranks;
	rc = copies && ranks ? 0 : ptc_nomem(err);
	if (!rc && d->items[0].n != ptc_spec_items(ptc_layout_spec(base)) / 8 + 1)
		rc = ptc_error_set(err, PTC_EINVAL, "the document of copies is of other tensors");
	for (size_t i = 0; !rc && i < d->nparts; i++) {
		copies[i] = (struct ptc_copy){ d->parts[i].rank, d->items[d->parts[i].items].v };
		ranks[h.at.world + i] = (struct ptc_device){ ptc_view_number(v, d->keepers[d->parts[i].keeper].node),
							     PTC_MAX_DEVICES_PER_NODE + (uint32_t)i };
	}
	if (rc == 0)
		rc = ptc_layout_with_copies(base, copies, (uint32_t)d->nparts, &h.own, err);
	ptc_free(copies);
	if (rc) {
		ptc_view_copied_done(&h);
		return rc;
	}
	h.layout = h.own;
	h.at.world += (uint32_t)d->nparts;
	*ret = h;
	return 0;
}

void ptc_view_copied_done(struct ptc_view_copied *h)
{
	ptc_layout_free(h->own);
	ptc_allocation_done(&h->at);
	*h = (struct ptc_view_copied){ 0 };
}

/* ---- older snapshots ---- */

int ptc_bridge_copies(struct ptc_kept *k, const char *uuid, const struct ptc_older *bridge, struct ptc_copies_doc *ret,
		      struct ptc_error *err)
{
	char *json;
	size_t len;
	int rc = bridge->copies_hash[0]
			 ? ptc_document_get(k, uuid, bridge->copies_hash, PTC_COPIES_MAX_BYTES, &json, &len, err)
			 : PTC_ENOTFOUND;

	*ret = (struct ptc_copies_doc){ 0 };
	if (rc == PTC_ENOTFOUND) /* a version that does not know bridges may have removed it */
		return 0;
	if (rc)
		return rc;
	rc = ptc_copies_doc_decode(json, len, ret, err);
	ptc_free(json);
	return rc;
}

int ptc_view_older(struct ptc_kept *k, const struct ptc_meta_doc *meta, const struct ptc_older_doc *doc,
		   uint64_t snapshot, struct ptc_view *ret_view, struct ptc_error *err)
{
	const struct ptc_older *o = ptc_older_find(doc, snapshot);
	struct ptc_copies_doc copies = { 0 };
	struct ptc_record_doc record;
	int rc;

	if (!o)
		return ptc_error_set(err, PTC_ENOTFOUND, "job %s does not keep snapshot %llu", meta->name,
				     (unsigned long long)snapshot);
	record = (struct ptc_record_doc){ .generation = o->generation, .snapshot = o->snapshot, .step = o->step };
	memcpy(record.manifest_hash, o->manifest_hash, sizeof record.manifest_hash);
	rc = ptc_bridge_copies(k, meta->uuid, o, &copies, err);
	if (rc == 0)
		rc = ptc_view_load(k, meta, &record, NULL, ret_view, err);
	if (rc == 0 && ptc_view_copies(ret_view, &copies) != 0) {
		ptc_view_done(ret_view);
		rc = ptc_nomem(err);
	}
	ptc_copies_doc_done(&copies);
	return rc;
}
