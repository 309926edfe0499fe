/* SPDX-License-Identifier: Apache-2.0 */
/* Makes views: all that a switch or a read needs of its generations. Happy path: record and intent name blobs; they
 * are fetched and decoded, the nodes both generations use are collected, and the whole is turned into the message
 * every peer call carries or into a geometry. Failure modes: a blob that is missing from etcd (PTC_ENOTFOUND naming
 * it), or neither kept here nor to be had (PTC_ECOORD), out of memory. */
#include "base/alloc.h"
#include "base/sys/fault.h"
#include "daemon/documents/view_copies.h"

#include "ptc.pb-c.h"

#include <stdio.h>
#include <string.h>

#define GENERATION_MAX_BYTES (64u << 20)

void ptc_view_done(struct ptc_view *v)
{
	for (size_t i = 0; i < v->nnodes; i++) {
		ptc_free(v->nodes[i]);
		ptc_free(v->addresses ? v->addresses[i] : NULL);
	}
	ptc_free(v->nodes);
	ptc_free(v->addresses);
	ptc_free(v->down);
	ptc_generation_doc_done(&v->from);
	ptc_generation_doc_done(&v->to);
	ptc_manifest_doc_done(&v->manifest);
	ptc_copies_doc_done(&v->copies);
	memset(v, 0, sizeof *v);
}

static int load_generation(struct ptc_kept *k, const char *uuid, const char *hash, struct ptc_generation_doc *ret_doc,
			   struct ptc_error *err)
{
	char *json;
	size_t len;
	int rc = ptc_document_get(k, uuid, hash, GENERATION_MAX_BYTES, &json, &len, err);

	if (rc)
		return rc;
	rc = ptc_generation_doc_decode(json, len, ret_doc, err);
	ptc_free(json);
	return rc;
}

static int load_manifest(struct ptc_kept *k, const char *uuid, const char *hash, struct ptc_manifest_doc *ret_doc,
			 struct ptc_error *err)
{
	char *json;
	size_t len;
	int rc = ptc_document_get(k, uuid, hash, GENERATION_MAX_BYTES, &json, &len, err);

	if (rc)
		return rc;
	rc = ptc_fault("job.manifest")
		     ? ptc_error_set(err, PTC_EVERSION, "a test wants a manifest that this node cannot read")
		     : ptc_manifest_doc_decode(json, len, ret_doc, err);
	ptc_free(json);
	return rc;
}

int ptc_view_load(struct ptc_kept *k, const struct ptc_meta_doc *meta, const struct ptc_record_doc *record,
		  const struct ptc_intent_doc *intent, struct ptc_view *ret_view, struct ptc_error *err)
{
	struct ptc_view v = { .meta = *meta };
	int rc = 0;

	if (record) {
		v.from_generation = record->generation;
		v.from_snapshot = record->snapshot;
		v.from_incarnation = record->incarnation;
		rc = load_manifest(k, meta->uuid, record->manifest_hash, &v.manifest, err);
		if (rc == 0)
			rc = load_generation(k, meta->uuid, v.manifest.generation_hash, &v.from, err);
	}
	if (rc == 0 && intent) {
		v.switch_id = intent->id;
		v.to_generation = intent->to_generation;
		v.to_snapshot = intent->to_snapshot;
		v.to_incarnation = intent->run_to ? intent->id : 0;
	}
	if (rc == 0 && intent && intent->generation_hash[0]) /* a snapshot or a halt has no new generation */
		rc = load_generation(k, meta->uuid, intent->generation_hash, &v.to, err);
	if (rc == 0 && ptc_view_nodes(&v) != 0)
		rc = ptc_nomem(err);
	if (rc) {
		ptc_view_done(&v);
		return rc;
	}
	*ret_view = v;
	return 0;
}

static int add_node(struct ptc_view *v, const char *name)
{
	for (size_t i = 0; i < v->nnodes; i++)
		if (strcmp(v->nodes[i], name) == 0)
			return 0;
	v->nodes[v->nnodes] = ptc_strdup(name);
	v->addresses[v->nnodes] = ptc_strdup("");
	v->nnodes++;
	return v->nodes[v->nnodes - 1] && v->addresses[v->nnodes - 1] ? 0 : PTC_ENOMEM;
}

static int add_nodes(struct ptc_view *v, const struct ptc_generation_doc *g)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < g->nnodes; i++)
		rc = add_node(v, g->nodes[i]);
	return rc;
}

int ptc_view_nodes(struct ptc_view *v)
{
	size_t most = v->from.nnodes + v->to.nnodes + v->copies.nkeepers + (v->more ? v->more->nkeepers : 0);
	int rc;

	for (size_t i = 0; i < v->nnodes; i++) {
		ptc_free(v->nodes[i]);
		ptc_free(v->addresses[i]);
	}
	ptc_free(v->nodes);
	ptc_free(v->addresses);
	ptc_free(v->down);
	v->nnodes = 0;
	v->nodes = ptc_calloc(most, sizeof *v->nodes);
	v->addresses = ptc_calloc(most, sizeof *v->addresses);
	v->down = ptc_calloc(most, sizeof *v->down);
	if (!v->nodes || !v->addresses || !v->down)
		return PTC_ENOMEM;
	rc = add_nodes(v, &v->from);
	if (rc == 0)
		rc = add_nodes(v, &v->to);
	for (size_t i = 0; !rc && i < v->copies.nkeepers; i++)
		rc = add_node(v, v->copies.keepers[i].node);
	for (size_t i = 0; !rc && v->more && i < v->more->nkeepers; i++)
		rc = add_node(v, v->more->keepers[i].node);
	return rc;
}

int ptc_view_locate(struct ptc_view *v, struct ptc_cluster *c)
{
	for (size_t i = 0; i < v->nnodes; i++) {
		uint32_t n;
		bool up = ptc_cluster_find_node(c, v->nodes[i], &n) && ptc_cluster_node(c, n)->up;
		bool placed = ptc_view_placed(v, v->nodes[i]);
		/* a node that was left out is asked for no bytes; a switch may still put some there */
		char *address = ptc_strdup(up && (placed || v->to.world) ? ptc_cluster_node(c, n)->doc.address : "");

		if (!address)
			return PTC_ENOMEM;
		ptc_free(v->addresses[i]);
		v->addresses[i] = address;
		v->down[i] = !up || !placed;
	}
	return 0;
}

int ptc_view_allocation(const struct ptc_view *v, const struct ptc_generation_doc *g, struct ptc_allocation *ret_alloc)
{
	struct ptc_device *ranks = ptc_calloc(g->world, sizeof *ranks);

	if (!ranks)
		return PTC_ENOMEM;
	for (uint32_t r = 0; r < g->world; r++)
		ranks[r] = (struct ptc_device){ ptc_view_number(v, g->nodes[g->rank_node[r]]), g->rank_device[r] };
	*ret_alloc = (struct ptc_allocation){ ranks, g->world };
	return 0;
}

/* ---- the message ------------------------------------------------------------ */

struct info_memory {
	Ptc__V1__SwitchInfo info;
	Ptc__V1__Generation from, to;
	uint32_t *from_nodes, *to_nodes, *lost;
	Ptc__V1__Copies copies, more;
};

static int fill_generation(const struct ptc_view *v, const struct ptc_generation_doc *g, uint64_t number,
			   uint64_t snapshot, uint64_t incarnation, Ptc__V1__Generation *pb, uint32_t **ret_nodes)
{
	struct ptc_allocation a;
	static char empty[] = "";

	ptc__v1__generation__init(pb);
	pb->number = number;
	pb->snapshot = snapshot;
	pb->incarnation = incarnation;
	pb->config = g->config ? g->config : empty;
	pb->layout_hash = (char *)(uintptr_t)g->layout_hash;
	pb->cost_linear = g->cost_linear;
	pb->cost_square = g->cost_square;
	if (number == 0)
		return 0;
	if (ptc_view_allocation(v, g, &a) != 0)
		return PTC_ENOMEM;
	*ret_nodes = ptc_calloc(g->world, sizeof **ret_nodes);
	if (!*ret_nodes) {
		ptc_allocation_done(&a);
		return PTC_ENOMEM;
	}
	for (uint32_t r = 0; r < g->world; r++)
		(*ret_nodes)[r] = a.ranks[r].node;
	ptc_allocation_done(&a);
	pb->n_nodes = pb->n_devices = g->world;
	pb->nodes = *ret_nodes;
	pb->devices = g->rank_device;
	return 0;
}

static void info_free(struct info_memory *m)
{
	if (!m)
		return;
	ptc_free(m->from_nodes);
	ptc_free(m->to_nodes);
	ptc_free(m->lost);
	ptc_view_copies_info_done(&m->copies);
	ptc_view_copies_info_done(&m->more);
	ptc_free(m);
}

int ptc_view_info(const struct ptc_view *v, struct ptc_info *ret_info, struct ptc_error *err)
{
	struct info_memory *m = ptc_calloc(1, sizeof *m);
	Ptc__V1__SwitchInfo *pb;
	int rc = m ? 0 : PTC_ENOMEM;

	if (rc == 0)
		rc = fill_generation(v, &v->from, v->from_generation, v->from_snapshot, v->from_incarnation, &m->from,
				     &m->from_nodes);
	if (rc == 0)
		rc = fill_generation(v, &v->to, v->to_generation, v->to_snapshot, v->to_incarnation, &m->to,
				     &m->to_nodes);
	if (rc == 0) {
		m->lost = ptc_calloc(v->nnodes, sizeof *m->lost);
		rc = m->lost ? ptc_view_copies_info(v, &v->copies, &m->copies) : PTC_ENOMEM;
	}
	if (rc == 0 && v->more)
		rc = ptc_view_copies_info(v, v->more, &m->more);
	if (rc) {
		info_free(m);
		return ptc_error_set(err, rc, "out of memory for a switch message");
	}
	pb = &m->info;
	ptc__v1__switch_info__init(pb);
	/* protobuf-c's structs are not const-correct; packing only reads */
	pb->uuid = (char *)(uintptr_t)v->meta.uuid;
	pb->job = (char *)(uintptr_t)v->meta.name;
	pb->spec_hash = (char *)(uintptr_t)v->meta.spec_hash;
	pb->uid = v->meta.uid;
	pb->fence = v->fence;
	pb->id = v->switch_id;
	pb->seq = v->seq;
	pb->n_nodes = pb->n_addresses = v->nnodes;
	pb->nodes = v->nodes;
	pb->addresses = v->addresses;
	pb->from = &m->from;
	if (v->copies.nparts)
		m->from.copies = &m->copies;
	if (v->more)
		m->to.copies = &m->more;
	pb->to = &m->to;
	for (size_t i = 0; i < v->nnodes; i++)
		if (v->down[i])
			m->lost[pb->n_lost++] = (uint32_t)i;
	pb->lost = m->lost;
	*ret_info = (struct ptc_info){ pb, m };
	return 0;
}

void ptc_info_done(struct ptc_info *info)
{
	info_free(info->memory);
	*info = (struct ptc_info){ NULL, NULL };
}

int ptc_view_geometry(struct ptc_agent *agent, const struct ptc_view *v, bool to, struct ptc_geometry *ret_geometry,
		      struct ptc_error *err)
{
	struct ptc_info info;
	int rc = ptc_view_info(v, &info, err);

	if (rc)
		return rc;
	rc = ptc_agent_geometry(agent, info.pb, to ? info.pb->to : info.pb->from, ret_geometry, err);
	ptc_info_done(&info);
	return rc;
}
