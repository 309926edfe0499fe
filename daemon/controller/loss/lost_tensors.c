/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors of the committed generation no live node has any more, and where they were last.
 *
 * Happy path: every node of the generation is up and has its table. One empty fetch from each shows that; all nodes are
 * asked at once, and the loop hears the answers, while the asker's thread waits.
 *
 * Failure modes: a node that is down, or that is up without the table (its store was lost, or is new), counts as having
 * nothing. A node that does not answer counts as having its table. */
#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "daemon/controller/internal.h"
#include "daemon/controller/loss/copied_layout.h"
#include "rpc/pb/pb_asking.h"

#include "ptc.pb-c.h"

#include <string.h>

#define ASK_TIMEOUT_MS 1000 /* for all nodes together */
#define ASK_SPARE_MS   500  /* for the loop to hear of it */
#define ITEM_NAME_SIZE (PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2)

/* ---- who has its table ---- */

struct asking {
	struct ptc_controllers *all;
	const struct ptc_view *v;
	struct ptc_pb_asking *answers; /* a question's number: the node's in the view */
};

/* A fetch of nothing, from the table that the generation is on this node. A node that cannot be asked counts as one
 * that does not answer. */
static void ask_node(struct asking *a, size_t node)
{
	Ptc__V1__FetchRequest req = PTC__V1__FETCH_REQUEST__INIT;
	const struct ptc_view *v = a->v;
	struct ptc_rpc_channel *channel;

	req.version = PTC_WIRE_VERSION;
	req.uuid = (char *)(uintptr_t)v->meta.uuid; /* packing only reads */
	req.generation = v->from_generation;
	req.snapshot = ptc_view_table(v, v->nodes[node]);
	if (ptc_channels_get(a->all->channels, v->nodes[node], v->addresses[node], false, 0, &channel, NULL) == 0)
		(void)ptc_pb_ask(a->answers, channel, "/ptc.v1.Peer/Fetch", &req.base, ASK_TIMEOUT_MS, node);
}

/* Loop thread. */
static void ask_all(void *arg)
{
	struct asking *a = arg;

	for (size_t i = 0; i < a->v->nnodes; i++)
		if (!a->v->down[i])
			ask_node(a, i);
}

/* Its answer is a stream without a message: only the status counts. */
static bool lacks(const struct ptc_pb_answer *a)
{
	return a->there && (a->status == PTC_ENOTFOUND || a->status == PTC_ELOST || a->status == PTC_ECORRUPT);
}

void ptc_lost_ask(struct ptc_controllers *all, const struct ptc_view *v, bool *ret_has)
{
	struct asking a = { all, v, ptc_pb_asking_new(all->client, v->nnodes) };
	const struct ptc_pb_answer *answers;
	size_t n;

	for (size_t i = 0; i < v->nnodes; i++)
		ret_has[i] = !v->down[i];
	if (!a.answers)
		return;                              /* no node can be asked */
	(void)ptc_loop_call(all->loop, ask_all, &a); /* the daemon stops: nobody is asked */
	answers = ptc_pb_asking_wait(a.answers, ASK_TIMEOUT_MS + ASK_SPARE_MS, all->stopping, &n);
	for (size_t i = 0; i < n; i++)
		if (lacks(&answers[i]))
			ret_has[answers[i].of] = false;
	ptc_pb_asking_free(a.answers);
}

/* ---- what is lost ---- */

#define TENSOR(key, member, ...) PTC_ROW(struct ptc_lost_tensor, key, member, __VA_ARGS__)
#define ABSENT(member, kind)     PTC_ROW(struct ptc_absent_node, #member, member, kind)
#define REPORT(key, member, ...) PTC_ROW(struct ptc_lost_report, key, member, __VA_ARGS__)
#define COUNT(member)            PTC_COUNT(struct ptc_lost_report, member)
#define IF(member)               PTC_IF(struct ptc_lost_report, member)

static const struct ptc_member name_rows[] = { { NULL, PTC_IS_STRING, .size = sizeof(char *) } };
static const struct ptc_members name_members = PTC_MEMBERS(name_rows, char *);
static const struct ptc_member tensor_rows[] = {
	TENSOR("tensor", name, TEXT), TENSOR("bytes", bytes, I64),
	TENSOR("nodes", nodes, ARRAY, PTC_COUNT(struct ptc_lost_tensor, nnodes), .of = &name_members)
};
static const struct ptc_members tensor_members = PTC_MEMBERS(tensor_rows, struct ptc_lost_tensor);
static const struct ptc_member absent_rows[] = { ABSENT(node, STRING), ABSENT(state, STRING), ABSENT(down_s, REAL),
						 ABSENT(means, STRING) };
static const struct ptc_members absent_members = PTC_MEMBERS(absent_rows, struct ptc_absent_node);
static const struct ptc_member lost_rows[] = { REPORT("tensors", ntensors, U64), REPORT("bytes", bytes, I64),
					       REPORT("list", listed, LIST, COUNT(nlisted), .of = &tensor_members) };
static const struct ptc_members lost_members = PTC_MEMBERS(lost_rows, struct ptc_lost_report);
static const struct ptc_member report_rows[] = {
	REPORT("absent", absent, LIST, IF(absent), COUNT(nabsent), .of = &absent_members),
	{ "lost", PTC_IS_MAP, IF(ntensors), .of = &lost_members }, /* offset 0: of the whole */
};
const struct ptc_members ptc_lost_report_members = PTC_MEMBERS(report_rows, struct ptc_lost_report);

/* Takes into the report what there is room for. */
static int take_lost(const struct ptc_view *v, const struct ptc_spec *spec, const struct ptc_lost *lost, size_t n,
		     struct ptc_lost_report *r)
{
	r->ntensors = n;
	r->listed = n ? ptc_calloc(PTC_MIN(n, (size_t)PTC_LOST_LISTED), sizeof *r->listed) : NULL;
	if (n && !r->listed)
		return PTC_ENOMEM;
	for (size_t i = 0; i < n; i++) {
		struct ptc_lost_tensor *to;

		r->bytes += lost[i].bytes;
		if (i >= PTC_LOST_LISTED)
			continue;
		to = &r->listed[r->nlisted++];
		(void)ptc_item_name(spec, lost[i].item, to->name, sizeof to->name);
		to->bytes = lost[i].bytes;
		to->nnodes = lost[i].nnodes;
		for (uint32_t k = 0; k < to->nnodes; k++)
			to->nodes[k] = v->nodes[lost[i].nodes[k]];
	}
	return 0;
}

static int find(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_spec *spec, const bool *usable,
		struct ptc_lost_report *r, struct ptc_error *err)
{
	const struct ptc_declared *declared;
	struct ptc_lost *lost = NULL;
	struct ptc_copied_layout h;
	size_t n = 0;
	int rc = ptc_copied_layout_init(&h, all, v, spec, &declared, err);

	if (!rc)
		rc = ptc_layout_lost(h.with.layout, &h.with.at, (uint32_t)v->nnodes, usable, &lost, &n, err);
	if (!rc && take_lost(v, spec, lost, n, r) != 0)
		rc = ptc_nomem(err);
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
	struct ptc_lost_report *r;
	int rc;
};

static uint64_t tensors_of(const struct ptc_lost_report *r, const char *node)
{
	uint64_t n = 0;

	for (size_t i = 0; i < r->nlisted; i++)
		for (uint32_t k = 0; k < r->listed[i].nnodes; k++)
			n += r->listed[i].nodes[k] == node;
	return n;
}

static char *means(const struct ptc_absent_node *of, const struct ptc_record_doc *record,
		   const struct ptc_lost_report *r, size_t items)
{
	uint64_t n = tensors_of(r, of->node);
	bool more = r->ntensors > r->nlisted;
	const char *what = r->ntensors ? "what it had" : "every tensor";

	if (n)
		return ptc_asprintf("bytes of %s%llu of %zu tensors were on no other node: what needs them is refused "
				    "until it is back",
				    more ? "at least " : "", (unsigned long long)n, items);
	if (record->run == PTC_RUN_LIVE)
		return ptc_asprintf("%s is on other nodes; the job's ranks run, and switches wait for the node", what);
	if (strcmp(of->state, "passed by") == 0)
		return ptc_asprintf("%s is on other nodes; nothing there answers, and the job goes on without it",
				    what);
	if (strcmp(of->state, "down") != 0)
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
	const struct ptc_controller *ctl = ptc_controller_find(a->all, a->v->meta.uuid); /* others do not know */
	struct ptc_cluster *c = a->all->cluster;

	a->r->absent = ptc_calloc(a->v->nnodes, sizeof *a->r->absent);
	a->rc = a->r->absent ? 0 : PTC_ENOMEM;
	for (uint32_t i = 0; a->rc == 0 && i < a->v->nnodes; i++) {
		const struct ptc_node *n;
		const char *state;
		uint32_t at;

		if (a->usable[i] || !ptc_cluster_find_node(c, a->v->nodes[i], &at))
			continue;
		n = ptc_cluster_node(c, at);
		state = !ptc_view_placed(a->v, a->v->nodes[i])  ? "left out"
			: n->up                                 ? "without its bytes"
			: ptc_node_lost_for(n, a->record)       ? "lost"
			: ctl && ptc_controller_passes(ctl, at) ? "passed by"
								: "down";
		a->r->absent[a->r->nabsent++] = (struct ptc_absent_node){
			.node = a->v->nodes[i],
			.state = state,
			.down_s = n->up ? 0.0 : (double)(ptc_sys_now_ns() - n->down_ns) / 1e9,
		};
	}
}

static int add_absent(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_record_doc *record,
		      const bool *usable, size_t items, struct ptc_lost_report *r, struct ptc_error *err)
{
	struct absent a = { .all = all, .v = v, .record = record, .usable = usable, .r = r };
	int rc = ptc_loop_call(all->loop, list_absent, &a);

	if (rc)
		return ptc_error_set(err, rc, "the daemon is stopping");
	for (size_t i = 0; i < r->nabsent && a.rc == 0; i++) {
		r->absent[i].means = means(&r->absent[i], record, r, items);
		a.rc = r->absent[i].means ? 0 : PTC_ENOMEM;
	}
	return a.rc ? ptc_nomem(err) : 0;
}

void ptc_lost_report_done(struct ptc_lost_report *r)
{
	for (size_t i = 0; i < r->nabsent; i++)
		ptc_free(r->absent[i].means);
	ptc_free(r->absent);
	ptc_free(r->listed);
	memset(r, 0, sizeof *r);
}

int ptc_lost_find(struct ptc_controllers *all, const struct ptc_view *v, const bool *has, const struct ptc_spec *spec,
		  const struct ptc_record_doc *record, struct ptc_lost_report *ret, struct ptc_error *err)
{
	struct ptc_lost_report r = { 0 };
	bool complete = true;
	int rc = 0;

	for (size_t i = 0; i < v->nnodes; i++)
		complete = complete && has[i];
	if (!complete)
		rc = find(all, v, spec, has, &r, err);
	if (rc == 0 && !complete)
		rc = add_absent(all, v, record, has, ptc_spec_items(spec), &r, err);
	if (rc) {
		ptc_lost_report_done(&r);
		return rc;
	}
	*ret = r;
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
