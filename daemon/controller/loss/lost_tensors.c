/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors of the committed generation no live node has any more, and where they were last.
 *
 * Happy path: every node of the generation is up and has its table; one empty fetch from each shows that.
 *
 * Failure modes: a node that is down, or that is up without the table (its store was lost, or is new), counts as having
 * nothing. A node that does not answer counts as having its table. */
#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "daemon/controller/internal.h"
#include "daemon/controller/loss/copied_layout.h"
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
	req.snapshot = ptc_view_table(v, v->nodes[node]);
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
	struct ptc_lost *lost = NULL;
	struct ptc_copied_layout h;
	size_t n = 0;
	int rc = ptc_copied_layout_init(&h, all, v, spec, &declared, err);

	if (!rc)
		rc = ptc_layout_lost(h.with.layout, &h.with.at, (uint32_t)v->nnodes, usable, &lost, &n, err);
	if (!rc)
		*ret_lost = n ? list_json(spec, v->nodes, lost, n) : NULL;
	ptc_free(lost);
	ptc_copied_layout_done(&h);
	return rc;
}

int ptc_lost_covered(struct ptc_controllers *all, const struct ptc_view *v, const bool *usable, struct ptc_error *err)
{
	const struct ptc_declared *declared = NULL;
	const struct ptc_job_desc *desc = NULL;
	const struct ptc_spec *spec;
	struct ptc_lost *lost = NULL;
	struct ptc_copied_layout h = { 0 };
	void *ref = NULL;
	size_t n = 0;
	int rc = v->from.layout_hash[0]
			 ? 0
			 : ptc_specs_get(all->docs.specs, v->meta.uuid, v->meta.spec_hash, &desc, &ref, err);

	if (!rc)
		rc = ptc_copied_layout_init(&h, all, v, desc ? &desc->spec : NULL, &declared, err);
	spec = declared ? &declared->spec : desc ? &desc->spec : NULL;
	if (!rc)
		rc = ptc_layout_lost(h.with.layout, &h.with.at, (uint32_t)v->nnodes, usable, &lost, &n, err);
	if (!rc && n)
		rc = ptc_lost_error(v, spec, h.with.layout, &h.with.at, (uint32_t)v->nnodes, usable, v->nodes, err);
	ptc_free(lost);
	ptc_copied_layout_done(&h);
	if (ref)
		ptc_specs_release(ref);
	return rc;
}

/* How a node that lacks what the layout says it has comes to lack it. */
struct absent {
	struct ptc_controllers *all;
	const struct ptc_view *v;
	const struct ptc_record_doc *record;
	const bool *usable;
	json_t *rows;
};

static uint64_t tensors_of(const json_t *lost, const char *node)
{
	uint64_t n = 0;
	size_t i, k;
	json_t *row, *name;

	json_array_foreach(json_object_get(lost, "list"), i, row)
		json_array_foreach(json_object_get(row, "nodes"), k, name)
			n += strcmp(json_string_value(name), node) == 0;
	return n;
}

static char *means(const char *state, const struct ptc_record_doc *record, const json_t *lost, const char *node,
		   size_t items)
{
	uint64_t n = tensors_of(lost, node);
	bool more = ptc_json_count(lost, "tensors") > json_array_size(json_object_get(lost, "list"));
	const char *what = lost ? "what it had" : "every tensor";

	if (n)
		return ptc_asprintf("bytes of %s%llu of %zu tensors were on no other node: what needs them is refused "
				    "until it is back",
				    more ? "at least " : "", (unsigned long long)n, items);
	if (record->run == PTC_RUN_LIVE)
		return ptc_asprintf("%s is on other nodes; the job's ranks run, and switches wait for the node", what);
	if (strcmp(state, "down") != 0)
		return ptc_asprintf("%s is on other nodes; switches go on without it", what);
	return ptc_asprintf("%s is on other nodes; switches wait for the node until it is lost%s", what,
			    record->run == PTC_RUN_NONE || record->recovery
				    ? ""
				    : ": of a job that has had ranks, an operator says that (`ptcctl node lost`)");
}

/* Loop thread. */
static void list_absent(void *arg)
{
	struct absent *a = arg;
	struct ptc_cluster *c = a->all->cluster;

	for (size_t i = 0; i < a->v->nnodes; i++) {
		const struct ptc_node *n;
		const char *state;
		uint32_t at;

		if (a->usable[i] || !ptc_cluster_find_node(c, a->v->nodes[i], &at))
			continue;
		n = ptc_cluster_node(c, at);
		state = !ptc_view_placed(a->v, a->v->nodes[i]) ? "left out"
			: n->up                                ? "without its bytes"
			: ptc_node_lost_for(n, a->record)      ? "lost"
							       : "down";
		json_array_append_new(a->rows,
				      json_pack("{s:s, s:s, s:f}", "node", a->v->nodes[i], "state", state, "down_s",
						n->up ? 0.0 : (double)(ptc_sys_now_ns() - n->down_ns) / 1e9));
	}
}

static int add_absent(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_record_doc *record,
		      const bool *usable, const json_t *lost, size_t items, json_t **ret_absent, struct ptc_error *err)
{
	struct absent a = { .all = all, .v = v, .record = record, .usable = usable, .rows = json_array() };
	int rc = ptc_loop_call(all->loop, list_absent, &a);
	json_t *row;
	size_t i;

	if (rc) {
		json_decref(a.rows);
		return ptc_error_set(err, rc, "the daemon is stopping");
	}
	json_array_foreach(a.rows, i, row) {
		char *text = means(json_string_value(json_object_get(row, "state")), record, lost,
				   json_string_value(json_object_get(row, "node")), items);

		json_object_set_new(row, "means", json_string(text ? text : ""));
		ptc_free(text);
	}
	*ret_absent = a.rows;
	return 0;
}

void ptc_lost_ask(struct ptc_controllers *all, const struct ptc_view *v, bool *ret_has)
{
	for (size_t i = 0; i < v->nnodes; i++)
		ret_has[i] = !v->down[i] && has_table(all, v, i);
}

int ptc_lost_find(struct ptc_controllers *all, const struct ptc_view *v, const bool *has, const struct ptc_spec *spec,
		  const struct ptc_record_doc *record, json_t **ret_lost, json_t **ret_absent, struct ptc_error *err)
{
	bool complete = true;
	int rc;

	for (size_t i = 0; i < v->nnodes; i++)
		complete = complete && has[i];
	*ret_lost = *ret_absent = NULL;
	if (complete)
		return 0;
	rc = find(all, v, spec, has, ret_lost, err);
	if (!rc)
		rc = add_absent(all, v, record, has, *ret_lost, ptc_spec_items(spec), ret_absent, err);
	if (rc) {
		json_decref(*ret_lost);
		*ret_lost = NULL;
	}
	return rc;
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
