/* SPDX-License-Identifier: Apache-2.0 */
/* Counts how many copies a snapshot has, for status and snapshots. Happy path: it counts as looking.c does, but only on
 * nodes that are up. Failure modes: a document cannot be read. */
#include "daemon/controller/copies/counting.h"

#include "daemon/controller/copies/copy_keeper.h"

#include "base/check.h"

struct collect {
	struct ptc_controllers *all;
	const struct ptc_view *v;
	struct ptc_copy_keeper_nodes nodes;
	int rc;
};

static void collect_on_loop(void *arg)
{
	struct collect *c = arg;

	c->rc = ptc_copy_keeper_nodes(c->all, c->v, true, &c->nodes);
}

int ptc_copies_count(struct ptc_controllers *all, const struct ptc_view *v, const bool *has,
		     struct ptc_copies_count *ret, struct ptc_error *err)
{
	struct collect c = { .all = all, .v = v };
	struct ptc_copies_found found = { 0 };
	struct ptc_job_copies config;
	int rc = ptc_loop_call(all->loop, collect_on_loop, &c);

	if (rc)
		return ptc_error_set(err, rc, "the daemon is stopping");
	for (size_t i = 0; !c.rc && i < v->nnodes; i++)
		c.nodes.usable[i] = c.nodes.usable[i] && has[i];
	rc = c.rc ? ptc_nomem(err) : ptc_copy_keeper_find(all, v, &c.nodes, NULL, &config, &found, err);
	if (rc == 0)
		*ret = (struct ptc_copies_count){ config.count, config.racks, found.fewest, found.bytes,
						  found.nowhere };
	ptc_copies_found_done(&found);
	ptc_copy_keeper_nodes_done(&c.nodes);
	return rc;
}

json_t *ptc_copies_count_json(const struct ptc_copies_count *c)
{
	return json_pack("{s:I, s:s, s:I, s:I, s:I}", "count", (json_int_t)c->count, "across",
			 c->racks ? "rack" : "node", "fewest", (json_int_t)c->fewest, "bytes_left",
			 (json_int_t)c->bytes_left, "bytes_without_place", (json_int_t)c->bytes_without_place);
}

json_t *ptc_copied_json(const struct ptc_controller *ctl)
{
	const struct ptc_copy_keeper *c = ctl->keeper;
	const struct ptc_older *bridge = &ctl->older.doc.bridge;
	const uint64_t complete = c ? c->complete : 0;
	json_t *copied = c && ctl->has_record && c->config.count > 1 ? json_object() : NULL;

	if (copied && complete && complete == ctl->record.snapshot)
		json_object_set_new(copied, "step", json_integer((json_int_t)ctl->record.step));
	else if (copied && complete && complete == bridge->snapshot)
		json_object_set_new(copied, "step", json_integer((json_int_t)bridge->step));
	if (copied && c->passed_ns > 0)
		json_object_set_new(copied, "stopped", json_real(PTC_MIN(c->stopped_ns / c->passed_ns, 1.0)));
	return copied;
}
