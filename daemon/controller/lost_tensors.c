/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors of the committed generation no live node has any more, and where they were last.
 *
 * Happy path: every node of the generation is up and has its table; one empty fetch from each shows that.
 * Failure modes: a node that is down, or up without the table (its store was lost, or is a new one), has nothing; one
 * that does not answer is taken to have what it had. */
#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "daemon/controller/controller.h"
#include "rpc/pb/pbcall.h"
#include "formats/json.h"

#include "ptc.pb-c.h"

#include <string.h>

#define ASK_TIMEOUT_MS 1000
#define LIST_MAX       100 /* items named; of the others only number and bytes are told */
#define ITEM_NAME_SIZE (PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2)

/* A fetch of nothing, from the table that the generation is on this node. */
static int fetch_nothing(struct ptc_controllers *all, const struct ptc_view *v, size_t node)
{
	Ptc__V1__FetchRequest req = PTC__V1__FETCH_REQUEST__INIT;
	struct ptc_rpc_channel *channel;
	struct ptc_rpc_stream *s = NULL;
	struct ptc_rpc_message *m = NULL;
	ptc_auto_free void *data = NULL;
	size_t len = 0;
	int rc;

	req.version = PTC_WIRE_VERSION;
	req.uuid = (char *)(uintptr_t)v->meta.uuid; /* packing only reads */
	req.generation = v->from_generation;
	req.snapshot = v->from_snapshot;
	rc = ptc_channels_get(all->channels, v->nodes[node], v->addresses[node], false, 0, &channel, NULL);
	if (!rc)
		rc = ptc_pb_encode(&req.base, &data, &len, NULL);
	if (!rc)
		rc = ptc_rpc_stream_open(channel, "/ptc.v1.Peer/Fetch", ASK_TIMEOUT_MS, NULL, 0, &s, NULL);
	if (rc)
		return rc;
	rc = ptc_rpc_stream_send(s, &(struct ptc_rpc_part){ .data = data, .len = len }, 1, NULL);
	if (!rc)
		rc = ptc_rpc_stream_half_close(s, NULL);
	if (!rc)
		rc = ptc_rpc_stream_recv(s, &m, NULL);
	if (!rc)
		rc = ptc_rpc_stream_finish(s, NULL);
	ptc_rpc_message_done(m);
	ptc_rpc_stream_free(s);
	return rc;
}

static bool has_table(struct ptc_controllers *all, const struct ptc_view *v, size_t node)
{
	int rc = fetch_nothing(all, v, node);

	return rc != PTC_ENOTFOUND && rc != PTC_ELOST && rc != PTC_ECORRUPT;
}

static json_t *list_json(const struct ptc_spec *spec, char *const *names, const struct ptc_lost *lost, size_t n)
{
	json_t *list = json_array();
	int64_t bytes = 0;

	for (size_t i = 0; i < n; i++) {
		char name[ITEM_NAME_SIZE];
		json_t *nodes;

		bytes += lost[i].bytes;
		if (i >= LIST_MAX)
			continue;
		nodes = json_array();
		for (uint32_t k = 0; k < lost[i].nnodes; k++)
			json_array_append_new(nodes, json_string(names[lost[i].nodes[k]]));
		json_array_append_new(list, json_pack("{s:s, s:I, s:o}", "tensor",
						      ptc_item_name(spec, lost[i].item, name, sizeof name), "bytes",
						      (json_int_t)lost[i].bytes, "nodes", nodes));
	}
	return json_pack("{s:I, s:I, s:o}", "tensors", (json_int_t)n, "bytes", (json_int_t)bytes, "list", list);
}

static int find(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_spec *spec, const bool *usable,
		json_t **ret_lost, struct ptc_error *err)
{
	const struct ptc_declared *declared;
	const struct ptc_layout *layout = NULL;
	struct ptc_allocation a = { 0 };
	struct ptc_layout *own = NULL;
	struct ptc_lost *lost = NULL;
	struct ptc_config config;
	void *ref = NULL;
	size_t n = 0;
	int rc = ptc_config_parse(v->from.config, &config, err);

	if (!rc && v->from.layout_hash[0])
		rc = ptc_layouts_get(all->docs.layouts, v->meta.uuid, v->from.layout_hash, &declared, &layout, &ref,
				     err);
	else if (!rc)
		rc = ptc_layout_new(spec, &config, &own, err);
	if (!rc && ptc_view_allocation(v, &v->from, &a) != 0)
		rc = ptc_error_set(err, PTC_ENOMEM, "out of memory");
	if (!rc)
		rc = ptc_layout_lost(own ? own : layout, &a, (uint32_t)v->nnodes, usable, &lost, &n, err);
	if (!rc)
		*ret_lost = n ? list_json(spec, v->nodes, lost, n) : NULL;
	ptc_free(lost);
	ptc_allocation_done(&a);
	ptc_layout_free(own);
	ptc_layouts_release(ref);
	return rc;
}

int ptc_lost_find(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_spec *spec, json_t **ret_lost,
		  struct ptc_error *err)
{
	ptc_auto_free bool *usable = ptc_calloc(v->nnodes, sizeof *usable);
	bool complete = true;

	if (!usable)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	for (size_t i = 0; i < v->nnodes; i++) {
		usable[i] = !v->down[i] && has_table(all, v, i);
		complete = complete && usable[i];
	}
	if (!complete)
		return find(all, v, spec, usable, ret_lost, err);
	*ret_lost = NULL;
	return 0;
}

int ptc_lost_error(const struct ptc_view *v, const struct ptc_spec *spec, const struct ptc_layout *l,
		   const struct ptc_allocation *a, uint32_t nnodes, const bool *usable, char *const *names,
		   struct ptc_error *err)
{
	struct ptc_lost *lost = NULL;
	char name[ITEM_NAME_SIZE];
	struct ptc_buf at = PTC_BUF_INIT;
	int64_t bytes = 0;
	size_t n = 0;
	int rc = ptc_layout_lost(l, a, nnodes, usable, &lost, &n, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++)
		bytes += lost[i].bytes;
	for (uint32_t k = 0; n && k < lost[0].nnodes; k++)
		ptc_buf_printf(&at, "%s%s", k ? ", " : "", names[lost[0].nodes[k]]);
	if (n == 0)
		rc = ptc_error_set(err, PTC_ELOST, "job %s needs bytes that no live node has", v->meta.name);
	else
		rc = ptc_error_set(err, PTC_ELOST,
				   "%zu tensors of job %s (%lld bytes) are on no live node; \"%s\" was last on %.200s; "
				   "`ptcctl status %s` lists them",
				   n, v->meta.name, (long long)bytes,
				   ptc_item_name(spec, lost[0].item, name, sizeof name), at.data ? at.data : "",
				   v->meta.name);
	ptc_buf_done(&at);
	ptc_free(lost);
	return rc;
}
