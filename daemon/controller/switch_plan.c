/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: a request becomes a configuration (given, from the job's table,
 * or the default), the live devices it may use are listed, reshard/ places the
 * ranks and counts what moves. Failure modes: more devices asked for than are
 * known (PTC_ENODEVICES: only a scheduler grants nodes), a rule that does not
 * fit (PTC_ELAYOUT naming the tensor), bytes without a live source (PTC_ELOST).
 * Who has a say in the configuration, in this order: --config, the job's table, the planner (daemon/planning), dp
 * scaling. A job whose ranks declare their tensors is placed by the layout they had under that configuration before;
 * the first time there is none, and ranks stay where they are, if TP groups are kept together there as well as
 * anywhere. TP groups stay in one rack where they fit; where they do not, racks are no matter: a job that goes on is
 * worth more. */
#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "daemon/controller/internal.h"
#include "formats/json.h"
#include "reshard/copies/copies.h"
#include "reshard/place/place.h"

#include <stdio.h>
#include <string.h>

#define TAKEN_TEXT 400 /* bytes of a message that name others' devices */

void ptc_planned_done(struct ptc_planned *p)
{
	ptc_generation_doc_done(&p->to);
	ptc_free(p->json);
	ptc_free(p->emptied);
	memset(p, 0, sizeof *p);
}

/* ---- which configuration -------------------------------------------------------- */

/* No --config and nothing in the table: keep tp and pp when they divide n, else dp alone. */
static int default_config(const char *current, uint32_t gpus, struct ptc_config *ret_config, struct ptc_error *err)
{
	struct ptc_config c;
	char text[32];
	int rc;

	if (current && ptc_config_parse(current, &c, NULL) == 0 && c.tp * c.pp * c.cp != 0 &&
	    gpus % (c.tp * c.pp * c.cp) == 0) {
		c.dp = gpus / (c.tp * c.pp * c.cp);
		*ret_config = c;
		return 0;
	}
	snprintf(text, sizeof text, "dp=%u", gpus);
	rc = ptc_config_parse(text, ret_config, err);
	return rc;
}

/* Nothing asked for: as it was, or, for a job that has nothing yet, the largest of its table that these devices can
 * have. Bytes alone need no more than one rank, which keeps them once; a program is not started where nobody said how.
 */
static int same_config(const struct ptc_job_desc *desc, const char *current, const struct ptc_plan_request *req,
		       size_t ndevices, struct ptc_config *ret_config, struct ptc_error *err)
{
	if (current)
		return ptc_config_parse(current, ret_config, err);
	for (size_t i = desc->ngpus; i-- > 0;)
		if (desc->gpus[i].n <= ndevices) {
			*ret_config = desc->gpus[i].config;
			return 0;
		}
	if (req->or_one)
		return ptc_config_parse("tp=1", ret_config, err);
	return ptc_error_set(err, PTC_EINVAL,
			     "give a configuration or a number of devices: --config CONFIG or --gpus N");
}

/* ---- which devices ---------------------------------------------------------------- */

struct pool {
	struct ptc_controllers *all;
	const struct ptc_plan_request *req; /* NULL: any node */
	char **names;                       /* plan node number -> name; the view's nodes come first */
	size_t nnames, nall; /* from nnames to nall: down, without anything of the job; no numbers of a plan */
	const char **states; /* of all: "up", "down", "drained"; NULL: the cluster knows it no longer */
	uint32_t *counts;    /* of all: devices */
	bool *usable;        /* as a source */
	uint64_t *ceilings;  /* of chunks; 0: not known, the node is down */
	struct ptc_planning_node *nodes; /* what those that are up say of their devices */
	uint32_t *rack_of;               /* of those that are up: its rack's number */
	const char **racks;              /* their names, of documents; "" of nodes that name none is one like others */
	size_t nracks;
	struct ptc_device *devices;
	size_t ndevices;
	bool ranks, shares; /* devices of other jobs are left out, but for those that may be shared */
	struct {
		size_t n;
		enum ptc_devices_lack lack;
		char job[PTC_UUID_TEXT]; /* the last one named */
		struct ptc_buf text;     /* "job a has n0:0, n0:1; job b has n1:0" */
	} taken;
	struct ptc_buf ill; /* devices that are not well, for a message */
	const struct ptc_view *v;
	const uint32_t *node_of_rank; /* that the planner has decided; NULL: wherever the fewest bytes move */
	int rc;
};

static bool wanted(const struct pool *p, const char *name)
{
	if (!p->req)
		return true;
	for (size_t i = 0; i < p->req->nnodes; i++)
		if (strcmp(p->req->nodes[i], name) == 0)
			return true;
	return p->req->nnodes == 0;
}

static uint32_t pool_name(struct pool *p, const char *name)
{
	for (size_t i = 0; i < p->nnames; i++)
		if (strcmp(p->names[i], name) == 0)
			return (uint32_t)i;
	p->names[p->nnames] = ptc_strdup(name);
	if (!p->names[p->nnames])
		p->rc = PTC_ENOMEM;
	return (uint32_t)p->nnames++;
}

static uint32_t pool_rack(struct pool *p, const char *name)
{
	for (size_t i = 0; i < p->nracks; i++)
		if (strcmp(p->racks[i], name) == 0)
			return (uint32_t)i;
	p->racks[p->nracks] = name;
	return (uint32_t)p->nracks++;
}

/* For people who look at a plan; no placement goes by it. */
static void collect_state(struct pool *p, const struct ptc_node *n)
{
	size_t i = 0;

	while (i < p->nall && strcmp(p->names[i], n->doc.name) != 0)
		i++;
	if (i == p->nall) {
		p->names[i] = ptc_strdup(n->doc.name);
		if (!p->names[i]) {
			p->rc = PTC_ENOMEM;
			return;
		}
		p->nall++;
	}
	p->states[i] = !n->up ? "down" : n->drained ? "drained" : "up";
	p->counts[i] = n->doc.devices;
}

static int compare_names(const void *a, const void *b)
{
	const struct ptc_node *const *x = a, *const *y = b;

	return strcmp((*x)->doc.name, (*y)->doc.name);
}

/* The cluster's nodes by name: it has them in the order in which they came, and a plan must not depend on that. NULL:
 * no memory. The caller frees it; its nodes are the loop's. */
static const struct ptc_node **by_name(struct ptc_cluster *c)
{
	uint32_t n = ptc_cluster_nnodes(c);
	const struct ptc_node **nodes = ptc_calloc(n + 1, sizeof *nodes);

	for (uint32_t i = 0; nodes && i < n; i++)
		nodes[i] = ptc_cluster_node(c, i);
	if (nodes)
		qsort(nodes, n, sizeof *nodes, compare_names);
	return nodes;
}

static void note_taken(struct pool *p, const char *node, uint32_t device, const struct ptc_job_view *by)
{
	bool leaves = !by->has_intent && by->record.run != PTC_RUN_LIVE && !by->record.recovery;
	bool same = p->taken.n && strcmp(p->taken.job, by->uuid) == 0;
	char who[PTC_NAME_MAX + 32];

	if (leaves || !p->taken.n)
		p->taken.lack = leaves ? PTC_DEVICES_LEAVING : PTC_DEVICES_TAKEN;
	if (p->taken.text.len < TAKEN_TEXT)
		ptc_buf_printf(&p->taken.text, "%s%s%s%s:%u",
			       same         ? ", "
			       : p->taken.n ? "; "
					    : "",
			       same ? "" : ptc_device_owner(&by->meta, p->v->meta.uid, who, sizeof who),
			       same ? "" : " has ", node, device);
	snprintf(p->taken.job, sizeof p->taken.job, "%s", by->uuid);
	p->taken.n++;
}

static void note_ill(struct pool *p, const char *node, uint32_t device, const char *health)
{
	if (p->ill.len < TAKEN_TEXT)
		ptc_buf_printf(&p->ill, "%s%s:%u is not well (%s)", p->ill.len ? ", " : "", node, device, health);
}

/* Those of a node that may be used. */
static void collect_devices(struct pool *p, const struct ptc_node *n, uint32_t number)
{
	const struct ptc_job_view *by;
	char health[PTC_HEALTH_BYTES];

	for (uint32_t k = 0; k < n->doc.devices; k++)
		if (p->ranks && !ptc_node_device_well(n, k, health))
			note_ill(p, n->doc.name, k, health);
		else if (!p->ranks ||
			 ptc_cluster_device_free(p->all->cluster, n->doc.name, k, p->v->meta.uuid, p->shares, &by))
			p->devices[p->ndevices++] = (struct ptc_device){ number, k };
		else
			note_taken(p, n->doc.name, k, by);
}

/* Loop thread. */
static void collect(void *arg)
{
	struct pool *p = arg;
	struct ptc_cluster *c = p->all->cluster;
	ptc_auto_free const struct ptc_node **nodes = by_name(c);
	size_t most = ptc_cluster_nnodes(c) + p->v->nnodes, devices = 0;

	for (uint32_t i = 0; i < ptc_cluster_nnodes(c); i++)
		devices += ptc_cluster_node(c, i)->doc.devices;
	p->names = ptc_calloc(most, sizeof *p->names);
	p->states = ptc_calloc(most, sizeof *p->states);
	p->counts = ptc_calloc(most, sizeof *p->counts);
	p->usable = ptc_calloc(most, sizeof *p->usable);
	p->ceilings = ptc_calloc(most, sizeof *p->ceilings);
	p->nodes = ptc_calloc(most, sizeof *p->nodes);
	p->rack_of = ptc_calloc(most, sizeof *p->rack_of);
	p->racks = ptc_calloc(most, sizeof *p->racks);
	p->devices = ptc_calloc(devices, sizeof *p->devices);
	if (!nodes || !p->names || !p->states || !p->counts || !p->usable || !p->ceilings || !p->nodes || !p->rack_of ||
	    !p->racks || !p->devices) {
		p->rc = PTC_ENOMEM;
		return;
	}
	for (size_t i = 0; i < p->v->nnodes; i++)
		pool_name(p, p->v->nodes[i]);
	for (uint32_t i = 0; i < ptc_cluster_nnodes(c); i++) {
		const struct ptc_node *n = nodes[i];
		uint32_t number;

		if (!n->up || p->rc)
			continue;
		number = pool_name(p, n->doc.name);
		p->usable[number] = ptc_view_placed(p->v, n->doc.name);
		p->ceilings[number] = n->doc.ceiling_bytes;
		p->nodes[number] = ptc_planning_node_of(&n->doc, 0);
		p->rack_of[number] = pool_rack(p, n->doc.rack);
		if (n->drained || !wanted(p, n->doc.name))
			continue;
		collect_devices(p, n, number);
	}
	if (p->taken.text.len >= TAKEN_TEXT)
		ptc_buf_puts(&p->taken.text, ", ...");
	p->nall = p->nnames;
	for (uint32_t i = 0; i < ptc_cluster_nnodes(c) && !p->rc; i++)
		collect_state(p, nodes[i]);
	ptc_free(p->racks); /* what it points to is the loop's */
	p->racks = NULL;
}

static void pool_done(struct pool *p)
{
	for (size_t i = 0; i < PTC_MAX(p->nnames, p->nall); i++)
		ptc_free(p->names[i]);
	ptc_free(p->names);
	ptc_free(p->states);
	ptc_free(p->counts);
	ptc_free(p->usable);
	ptc_free(p->ceilings);
	ptc_free(p->nodes);
	ptc_free(p->rack_of);
	ptc_free(p->racks);
	ptc_free(p->devices);
	ptc_buf_done(&p->taken.text);
	ptc_buf_done(&p->ill);
}

static int check_known(const struct pool *p, struct ptc_error *err)
{
	for (size_t i = 0; i < p->req->nnodes; i++) {
		bool found = false;

		for (size_t k = 0; k < p->nnames && !found; k++)
			found = strcmp(p->names[k], p->req->nodes[i]) == 0 && p->states[k] &&
				strcmp(p->states[k], "down") != 0;
		if (!found)
			return ptc_error_set(err, PTC_ENOTFOUND,
					     "node \"%s\" is not known or is down; see `ptcctl nodes`",
					     p->req->nodes[i]);
	}
	return 0;
}

/* ---- the plan ------------------------------------------------------------------------ */

struct layouts {
	const struct ptc_spec *spec;
	const struct ptc_layout *from, *to; /* to NULL: what the ranks will hold is not known yet */
	void *from_ref, *to_ref;
	struct ptc_allocation from_alloc, to_alloc;
	/* with copies, which are sources like any other: `from` is that layout, and this where it is */
	struct ptc_allocation copied_at;
	struct ptc_view_copied copied;
	struct ptc_plan *plan;
	struct ptc_plan *need; /* the same layout brought to empty nodes: in_bytes is what each node will hold */
	struct ptc_groups groups;
	int64_t bound; /* no allocation needs fewer bytes between nodes */
	bool exact;
};

static void layouts_done(struct layouts *l)
{
	ptc_layouts_release(l->from_ref);
	ptc_layouts_release(l->to_ref);
	ptc_view_copied_done(&l->copied);
	ptc_allocation_done(&l->from_alloc);
	ptc_allocation_done(&l->to_alloc);
	ptc_plan_free(l->plan);
	ptc_plan_free(l->need);
}

/* Laid out by what ranks have declared, or by the job's rules. */
static int one_layout(struct ptc_controllers *all, const struct ptc_view *v, const char *layout_hash,
		      const char *config, const struct ptc_spec **ret_spec, const struct ptc_layout **ret_layout,
		      void **ret_ref, struct ptc_error *err)
{
	const struct ptc_declared *declared;
	int rc;

	if (!layout_hash[0])
		return ptc_layouts_of_rules(&all->docs, v->meta.uuid, v->meta.spec_hash, config, ret_spec, ret_layout,
					    ret_ref, err);
	rc = ptc_layouts_get(all->docs.layouts, v->meta.uuid, layout_hash, &declared, ret_layout, ret_ref, err);
	if (rc == 0)
		*ret_spec = &declared->spec;
	return rc;
}

/* The layout that holds state now, if any does, and where its ranks are. */
static int from_layout(struct ptc_controllers *all, const struct ptc_view *v, struct layouts *l, struct ptc_error *err)
{
	int rc;

	if (!v->from_generation)
		return 0;
	if (ptc_view_allocation(v, &v->from, &l->from_alloc) != 0)
		return ptc_nomem(err);
	l->copied_at = l->from_alloc;
	/* live ranks hold state before their first snapshot, and have declared what */
	if (!v->from_snapshot && !v->from.layout_hash[0])
		return 0;
	rc = one_layout(all, v, v->from.layout_hash, v->from.config, &l->spec, &l->from, &l->from_ref, err);
	if (rc || !v->copies.nparts)
		return rc;
	rc = ptc_view_copied(v, l->from, &l->copied, err);
	if (rc == 0) {
		l->from = l->copied.layout;
		l->copied_at = l->copied.at;
	}
	return rc;
}

static bool device_free(const struct pool *p, const bool *used, struct ptc_device want, size_t *ret)
{
	for (size_t i = 0; i < p->ndevices; i++)
		if (!used[i] && p->devices[i].node == want.node && p->devices[i].index == want.index) {
			*ret = i;
			return true;
		}
	return false;
}

/* Without a layout nothing says which mapping moves least: ranks stay where a rank of that number is, others take the
 * devices in node order. */
static int stay(const struct pool *p, const struct ptc_allocation *from, uint32_t world, struct ptc_allocation *ret,
		struct ptc_error *err)
{
	struct ptc_device *ranks = ptc_calloc(world, sizeof *ranks);
	ptc_auto_free bool *used = ptc_calloc(p->ndevices, sizeof *used), *placed = ptc_calloc(world, sizeof *placed);
	size_t at = 0;

	if (!ranks || !used || !placed) {
		ptc_free(ranks);
		return ptc_nomem(err);
	}
	for (uint32_t r = 0; r < world && r < from->world; r++)
		if (device_free(p, used, from->ranks[r], &at)) {
			ranks[r] = p->devices[at];
			used[at] = placed[r] = true;
		}
	at = 0;
	for (uint32_t r = 0; r < world; r++) {
		if (placed[r])
			continue;
		while (used[at])
			at++;
		ranks[r] = p->devices[at];
		used[at] = true;
	}
	*ret = (struct ptc_allocation){ ranks, world };
	return 0;
}

/* What may be used, and is to be kept together. */
static struct ptc_place_opts place_opts(const struct pool *p)
{
	return (struct ptc_place_opts){ .devices = p->devices,
					.ndevices = p->ndevices,
					.nnodes = (uint32_t)p->nnames,
					.usable = p->usable,
					.racks = p->nracks > 1 && !p->node_of_rank ? p->rack_of : NULL,
					.node_of_rank = p->node_of_rank };
}

/* Within racks, if that is possible. */
static int place_ranks(const struct pool *p, const struct ptc_change *change, const struct ptc_allocation *from,
		       struct ptc_allocation *ret, int64_t *ret_gap, struct ptc_error *err)
{
	struct ptc_place_opts opts = place_opts(p);
	int rc = opts.racks ? ptc_change_place(change, from, &opts, ret, ret_gap, NULL) : PTC_ENODEVICES;

	if (rc == PTC_ENODEVICES || rc == PTC_ELIMIT) {
		opts.racks = NULL;
		rc = ptc_change_place(change, from, &opts, ret, ret_gap, err);
	} else if (rc) {
		ptc_error_set(err, rc, "out of memory");
	}
	return rc;
}

static int count_groups(const struct pool *p, const struct ptc_config *c, const struct ptc_allocation *a,
			struct ptc_groups *ret, struct ptc_error *err)
{
	struct ptc_place_opts opts = place_opts(p);

	return ptc_place_groups(c, a, &opts, ret, err);
}

/* As for a job without state: TP groups are kept together, and nothing else counts. */
static int place_empty(const struct pool *p, const struct ptc_config *c, struct ptc_allocation *ret,
		       struct ptc_error *err)
{
	static const struct ptc_spec nothing = { .name = "nothing" };
	struct ptc_layout *layout = NULL;
	struct ptc_change *change = NULL;
	int64_t gap;
	int rc = ptc_layout_new(&nothing, c, &layout, err);

	if (rc == 0)
		rc = ptc_change_new(NULL, layout, &change, err);
	if (rc == 0)
		rc = place_ranks(p, change, NULL, ret, &gap, err);
	ptc_change_free(change);
	ptc_layout_free(layout);
	return rc;
}

/* The planner has decided on nodes. */
static int place_decided(const struct pool *p, const struct ptc_config *c, struct layouts *l, struct ptc_error *err)
{
	int rc = place_empty(p, c, &l->to_alloc, err);

	return rc ? rc : count_groups(p, c, &l->to_alloc, &l->groups, err);
}

/* Ranks stay, unless fewer TP groups are split, or across racks, when they do not. */
static int place_unknown(const struct pool *p, const struct ptc_config *c, uint32_t world, struct layouts *l,
			 struct ptc_error *err)
{
	struct ptc_allocation anew = { 0 };
	struct ptc_groups other;
	int rc;

	if (p->node_of_rank)
		return place_decided(p, c, l, err);
	rc = stay(p, &l->from_alloc, world, &l->to_alloc, err);

	if (rc == 0)
		rc = count_groups(p, c, &l->to_alloc, &l->groups, err);
	if (rc || (!l->groups.split && !l->groups.across))
		return rc;
	rc = place_empty(p, c, &anew, err);
	if (rc == 0)
		rc = count_groups(p, c, &anew, &other, err);
	if (rc == 0 &&
	    (other.across < l->groups.across || (other.across == l->groups.across && other.split < l->groups.split))) {
		struct ptc_allocation old = l->to_alloc;

		l->to_alloc = anew;
		l->groups = other;
		anew = old;
	}
	ptc_allocation_done(&anew);
	return rc;
}

/* The plan between two layouts, without a list of its moves. */
static int sum_moves(const struct pool *p, const struct ptc_change *change, const struct layouts *l, const bool *usable,
		     struct ptc_plan **ret, struct ptc_error *err)
{
	static const struct ptc_plan_opts count_only;

	return ptc_plan_stream(change, &l->copied_at, &l->to_alloc, (uint32_t)p->nnames, usable, &count_only, ret, err);
}

static int count_moves(const struct pool *p, const struct ptc_change *change, struct layouts *l, struct ptc_error *err)
{
	struct ptc_change *alone = NULL;
	int rc = sum_moves(p, change, l, p->usable, &l->plan, err);

	if (rc == PTC_ELOST && l->from) /* the plan knows nodes by number only */
		rc = ptc_lost_error(p->v, l->spec, l->from, &l->copied_at, (uint32_t)p->nnames, p->usable, p->names,
				    err);
	if (rc == 0)
		rc = ptc_change_new(NULL, l->to, &alone, err);
	if (rc == 0)
		rc = sum_moves(p, alone, l, NULL, &l->need, err);
	ptc_change_free(alone);
	return rc;
}

/* What the best mapping of those ranks moves, which the planner has not taken. */
static int bound_of(const struct pool *p, const struct ptc_change *change, struct layouts *l, struct ptc_error *err)
{
	struct layouts best = { .spec = l->spec, .from = l->from, .to = l->to, .copied_at = l->copied_at };
	struct pool any = *p;
	int64_t gap = 0;
	int rc;

	any.node_of_rank = NULL;
	rc = place_ranks(&any, change, &l->copied_at, &best.to_alloc, &gap, err);
	if (rc == 0)
		rc = sum_moves(&any, change, &best, any.usable, &best.plan, err);
	if (rc == 0) {
		l->bound = best.plan->between_nodes - gap;
		l->exact = false;
	}
	ptc_allocation_done(&best.to_alloc);
	ptc_plan_free(best.plan);
	return rc;
}

/* Places and counts; with l->to_alloc given, only counts. */
static int place(const struct pool *p, struct layouts *l, struct ptc_error *err)
{
	struct ptc_change *change;
	bool placed = l->to_alloc.ranks != NULL;
	int64_t gap = 0;
	int rc = ptc_change_new(l->from, l->to, &change, err);

	if (rc)
		return rc;
	if (!placed)
		rc = place_ranks(p, change, &l->copied_at, &l->to_alloc, &gap, err);
	if (rc == 0)
		rc = count_groups(p, ptc_layout_config(l->to), &l->to_alloc, &l->groups, err);
	if (rc == 0)
		rc = count_moves(p, change, l, err);
	if (rc == 0 && !placed && !p->node_of_rank) {
		l->bound = l->plan->between_nodes - gap;
		l->exact = gap == 0;
	} else if (rc == 0 && !placed) {
		rc = bound_of(p, change, l, err);
	}
	ptc_change_free(change);
	return rc;
}

static int too_few(const struct pool *p, uint32_t world, struct ptc_error *err)
{
	const char *ill = p->ill.data ? p->ill.data : "", *then = p->ill.data ? "; " : "";

	if (!p->taken.n)
		return ptc_error_set(err, PTC_ENODEVICES,
				     "%u devices are needed, %zu are known, up and not drained; %s%sadd nodes first "
				     "(`ptcctl nodes`)",
				     world, p->ndevices, ill, then);
	return ptc_error_set(err, PTC_ENODEVICES,
			     "%u devices are needed, free: %zu; %s; %s%sstop or resize another job, add nodes, or let "
			     "jobs share (`share_devices: true` in each job.yaml)",
			     world, p->ndevices, p->taken.text.data ? p->taken.text.data : "other jobs have the others",
			     ill, then);
}

static int make_layouts(struct ptc_controllers *all, const struct ptc_job_desc *desc, const struct ptc_view *v,
			const struct ptc_config *config, const struct pool *p, struct layouts *l, char **ret_known,
			struct ptc_error *err)
{
	ptc_auto_free char *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	bool declared = desc->spec.ntensors == 0;
	const char *known = NULL;
	uint32_t world;
	int rc = ptc_config_world(config, &world, err);

	if (rc == 0 && world > p->ndevices) /* before a layout is made, which for many ranks is large */
		rc = too_few(p, world, err);
	if (rc == 0 && (!text || ptc_config_format(config, text, PTC_CONFIG_TEXT_MAX) != 0))
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = from_layout(all, v, l, err);
	if (rc)
		return rc;
	if (declared)
		known = ptc_manifest_layout_find(&v->manifest, text);
	if (declared && !known)
		return place_unknown(p, config, world, l, err);
	rc = one_layout(all, v, known ? known : "", text, &l->spec, &l->to, &l->to_ref, err);
	if (rc == 0 && known && !(*ret_known = ptc_strdup(known)))
		rc = ptc_nomem(err);
	return rc ? rc : place(p, l, err);
}

/* ---- the choke point: which configuration ------------------------------------------------- */

struct pricer {
	struct ptc_controllers *all;
	const struct ptc_view *v;
	const struct ptc_job_desc *desc;
	const struct pool *p;
	struct layouts now; /* what holds the state, once for all candidates */
	struct ptc_planning_shape shape;
	bool *now_leaves;
	uint32_t *now_nodes;
};

/* The layout of a configuration that differs from this one in its batch at most: a price needs no more. */
static int known_layout(const struct ptc_manifest_doc *m, const struct ptc_config *config, const char **ret_hash)
{
	ptc_auto_free struct ptc_config *other = ptc_calloc(1, sizeof *other);
	ptc_auto_free char *want = ptc_malloc(PTC_CONFIG_TEXT_MAX), *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	int rc = other && want && text ? ptc_config_format(config, want, PTC_CONFIG_TEXT_MAX) : PTC_ENOMEM;

	*ret_hash = NULL;
	for (size_t i = 0; rc == 0 && i < m->nlayouts && !*ret_hash; i++) {
		if (ptc_config_parse(m->layouts[i].config, other, NULL) != 0)
			continue;
		other->micro_batch = config->micro_batch;
		other->global_batch = config->global_batch;
		other->micro_steps = config->micro_steps;
		if (ptc_config_format(other, text, PTC_CONFIG_TEXT_MAX) == 0 && strcmp(text, want) == 0)
			*ret_hash = m->layouts[i].layout_hash;
	}
	return rc;
}

/* Nobody has declared what ranks hold under it: a node needs of each replica what its ranks are of it, and has none of
 * it or all. */
static void estimate_moves(const struct pricer *pr, const struct ptc_config *to, const struct ptc_allocation *a,
			   const struct ptc_planning_links *links, struct ptc_planning_moves *ret)
{
	ptc_auto_free uint32_t *ranks = ptc_calloc(pr->p->nnames + 1, sizeof *ranks);
	double state = 0, busiest = 0;

	for (size_t i = 0; pr->now.from && i < ptc_spec_items(pr->now.spec); i++)
		state += (double)ptc_item_bytes(pr->now.spec, i);
	for (uint32_t r = 0; ranks && r < a->world; r++)
		ranks[a->ranks[r].node]++;
	*ret = (struct ptc_planning_moves){ .exact = state == 0 };
	for (size_t n = 0; ranks && n < pr->p->nnames; n++) {
		double need = state * PTC_MIN(1.0, ranks[n] / ((double)to->tp * to->pp));
		bool has = false;

		for (uint32_t r = 0; r < pr->now.from_alloc.world && !has; r++)
			has = pr->now.from_alloc.ranks[r].node == n;
		ret->bytes += need;
		ret->bytes_least += has ? 0 : need;
		busiest = PTC_MAX(busiest, need);
	}
	ret->seconds = busiest / links->node_bytes_s;
}

/* A node's store must hold what it needs afterwards, and during the switch what it has of the old state as well.
 * Copies count to that, but would be given up: where there are some, only what is needed afterwards is compared. */
static int fits_stores(const struct pool *p, const struct layouts *l)
{
	bool copies = l->copied_at.ranks != l->from_alloc.ranks;

	for (size_t n = 0; n < p->nnames; n++) {
		int64_t bytes = copies ? l->need->in_bytes[n] : PTC_MAX(l->need->in_bytes[n], l->plan->peak_bytes[n]);

		if (p->ceilings[n] && (uint64_t)bytes > p->ceilings[n])
			return PTC_ENOSPC;
	}
	return 0;
}

/* The devices of nodes that are not left; devices of *ret are the caller's. */
static int pool_without(const struct pool *p, const bool *leave, struct pool *ret)
{
	struct pool q = *p;

	q.devices = ptc_calloc(p->ndevices + 1, sizeof *q.devices);
	q.ndevices = 0;
	if (!q.devices)
		return PTC_ENOMEM;
	for (size_t i = 0; i < p->ndevices; i++)
		if (!leave || !leave[p->devices[i].node])
			q.devices[q.ndevices++] = p->devices[i];
	*ret = q;
	return 0;
}

static int price_layout(const struct pricer *pr, const struct ptc_config *to, const char *known, struct layouts *l,
			const struct ptc_planning_links *links, struct ptc_planning_moves *ret)
{
	struct ptc_rates rates = { (int64_t)links->node_bytes_s, (int64_t)links->node_bytes_s,
				   (int64_t)links->within_bytes_s };
	ptc_auto_free char *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	int rc = text && ptc_config_format(to, text, PTC_CONFIG_TEXT_MAX) == 0 ? 0 : PTC_ENOMEM;

	if (rc == 0)
		rc = one_layout(pr->all, pr->v, known ? known : "", text, &l->spec, &l->to, &l->to_ref, NULL);
	if (rc == 0)
		rc = place(pr->p, l, NULL);
	if (rc == 0)
		rc = fits_stores(pr->p, l);
	if (rc == 0)
		*ret = (struct ptc_planning_moves){ .bytes = (double)l->plan->between_nodes,
						    .bytes_least = (double)l->plan->between_nodes,
						    .seconds = (double)ptc_plan_time_ns(l->plan, &rates) / 1e9,
						    .exact = true };
	return rc;
}

/* The layout of a configuration, if it is known what its ranks hold. */
static int candidate_layout(const struct pricer *pr, const struct ptc_config *to, const char **ret_known)
{
	*ret_known = NULL;
	return pr->desc->spec.ntensors ? 0 : known_layout(&pr->v->manifest, to, ret_known);
}

static struct layouts from_now(const struct pricer *pr)
{
	return (struct layouts){ .spec = pr->now.spec,
				 .from = pr->now.from,
				 .from_alloc = pr->now.from_alloc,
				 .copied_at = pr->now.copied_at };
}

static void to_done(struct layouts *l)
{
	l->from_alloc = (struct ptc_allocation){ 0 }; /* the pricer's */
	layouts_done(l);
}

static int price_config(void *arg, const struct ptc_config *to, const struct ptc_planning_where *where,
			const struct ptc_planning_links *links, struct ptc_planning_moves *ret, uint32_t *ret_nodes)
{
	const struct pricer *all = arg;
	struct pricer pr = *all;
	struct layouts l = from_now(all);
	struct pool left;
	const char *known = NULL;
	uint32_t world;
	int rc = ptc_config_world(to, &world, NULL);

	if (rc == 0)
		rc = candidate_layout(&pr, to, &known);
	if (rc == 0)
		rc = pool_without(all->p, where->leave, &left);
	if (rc)
		return rc;
	left.node_of_rank = where->nodes;
	pr.p = &left;
	if (world > left.ndevices) {
		rc = PTC_ENODEVICES;
	} else if (known || pr.desc->spec.ntensors) {
		rc = price_layout(&pr, to, known, &l, links, ret);
	} else {
		rc = place_unknown(&left, to, world, &l, NULL);
		if (rc == 0)
			estimate_moves(&pr, to, &l.to_alloc, links, ret);
	}
	ptc_require(rc != 0 || l.to_alloc.ranks);
	for (uint32_t r = 0; rc == 0 && r < world; r++)
		ret_nodes[r] = l.to_alloc.ranks[r].node;
	to_done(&l);
	ptc_free(left.devices);
	return rc;
}

/* What nodes lack for sets of ranks, where it is known what the ranks will hold. */
static int lacks_config(void *arg, const struct ptc_config *to, const uint32_t *set_of, uint32_t nsets, double *ret)
{
	const struct pricer *pr = arg;
	struct layouts l = from_now(pr);
	struct ptc_place_opts opts = place_opts(pr->p);
	struct ptc_change *change = NULL;
	ptc_auto_free char *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	ptc_auto_free int64_t *bytes = ptc_calloc((size_t)nsets * pr->p->nnames + 1, sizeof *bytes);
	const char *known = NULL;
	int rc = text && bytes && ptc_config_format(to, text, PTC_CONFIG_TEXT_MAX) == 0 ? 0 : PTC_ENOMEM;

	if (rc == 0)
		rc = candidate_layout(pr, to, &known);
	if (rc == 0 && !known && !pr->desc->spec.ntensors)
		rc = PTC_ENOTFOUND;
	if (rc == 0)
		rc = one_layout(pr->all, pr->v, known ? known : "", text, &l.spec, &l.to, &l.to_ref, NULL);
	if (rc == 0)
		rc = ptc_change_new(l.from, l.to, &change, NULL);
	if (rc == 0)
		rc = ptc_change_set_bytes(change, &l.copied_at, &opts, set_of, nsets, bytes, NULL);
	for (size_t i = 0; rc == 0 && i < (size_t)nsets * pr->p->nnames; i++)
		ret[i] = (double)bytes[i];
	ptc_change_free(change);
	to_done(&l);
	return rc;
}

/* Whether every rank is on a device that may be used. */
static bool ranks_may_stay(const struct pool *p, const struct ptc_allocation *from)
{
	ptc_auto_free bool *used = ptc_calloc(p->ndevices + 1, sizeof *used);
	bool yes = used && from->world;
	size_t at;

	for (uint32_t r = 0; yes && r < from->world; r++)
		yes = device_free(p, used, from->ranks[r], &at);
	return yes;
}

/* In the order of the pool's nodes. */
static int shape_of(const struct pool *p, struct ptc_planning_shape *ret)
{
	ret->nodes = ptc_calloc(p->nnames + 1, sizeof *ret->nodes);
	if (!ret->nodes)
		return PTC_ENOMEM;
	ret->nnodes = p->nnames;
	for (size_t i = 0; i < p->nnames; i++) {
		ret->nodes[i] = p->nodes[i];
		snprintf(ret->nodes[i].name, sizeof ret->nodes[i].name, "%s", p->names[i]);
	}
	for (size_t i = 0; i < p->ndevices; i++)
		ret->nodes[p->devices[i].node].devices++;
	ptc_planning_shape_sum(ret);
	return 0;
}

/* Of each node, whether no rank is there; NULL: none runs, or memory is short. */
static bool *nodes_left(const struct pool *p, const struct ptc_allocation *from)
{
	bool *leave = from->world ? ptc_calloc(p->nnames + 1, sizeof *leave) : NULL;

	for (size_t i = 0; leave && i < p->nnames; i++)
		leave[i] = true;
	for (uint32_t r = 0; leave && r < from->world; r++)
		leave[from->ranks[r].node] = false;
	return leave;
}

/* Of each rank, the node that it has now; NULL: none runs, or memory is short. */
static uint32_t *nodes_now(const struct ptc_allocation *from)
{
	uint32_t *nodes = from->world ? ptc_calloc(from->world, sizeof *nodes) : NULL;

	for (uint32_t r = 0; nodes && r < from->world; r++)
		nodes[r] = from->ranks[r].node;
	return nodes;
}

/* What is asked of the planner, of a job on the devices of a pool. done: pricer_done. */
static int planner_ask(struct pricer *pr, const struct ptc_plan_request *req, struct ptc_planning_ask *ret,
		       struct ptc_error *err)
{
	struct ptc_planning_ask ask = { .uuid = pr->v->meta.uuid,
					.spec_hash = pr->v->meta.spec_hash,
					.desc = pr->desc,
					.now = pr->v->from.config,
					.live = pr->desc->has_run,
					.gpus = req->gpus,
					.horizon_s = req->horizon_s,
					.objective = (enum ptc_objective)req->objective,
					.price = price_config,
					.lacks = lacks_config,
					.arg = pr,
					.gone = req->gone,
					.gone_arg = req->gone_arg };
	int rc = from_layout(pr->all, pr->v, &pr->now, err);

	if (rc == 0 && shape_of(pr->p, &pr->shape) != 0)
		rc = ptc_nomem(err);
	pr->now_leaves = rc ? NULL : nodes_left(pr->p, &pr->now.from_alloc);
	ask.shape = pr->shape;
	ask.now_leaves = pr->now_leaves;
	pr->now_nodes = rc ? NULL : nodes_now(&pr->now.from_alloc);
	ask.now_nodes = pr->now_nodes;
	ask.held = rc == 0 && pr->v->from.layout_hash[0] ? pr->now.spec : NULL;
	ask.held_id = ask.held ? pr->v->from.layout_hash : NULL;
	ask.may_stay = rc == 0 && !req->or_same && ranks_may_stay(pr->p, &pr->now.from_alloc);
	*ret = ask;
	return rc;
}

static int by_planner(struct pricer *pr, const struct ptc_plan_request *req, struct ptc_config *ret_config,
		      struct ptc_planned *ret, json_t **ret_choice, bool **ret_leave, uint32_t **ret_nodes,
		      struct ptc_error *err)
{
	struct ptc_planning_ask ask;
	ptc_auto_free struct ptc_planning_answer *a = ptc_calloc(1, sizeof *a);
	json_t *first;
	int rc = a ? planner_ask(pr, req, &ask, err) : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_planning_choose(pr->all->planning, &ask, a, err);
	if (rc)
		return rc;
	*ret_config = a->config;
	ret->stays = a->stays;
	snprintf(ret->why, sizeof ret->why, "%s", a->why);
	first = json_array_get(json_object_get(a->json, "candidates"), 0);
	*ret_choice = first ? json_copy(first) : json_object();
	json_object_set_new(*ret_choice, "by", json_string("planner"));
	json_object_set_new(*ret_choice, "why", json_string(a->why));
	json_object_set(*ret_choice, "calibrated", json_object_get(a->json, "calibrated"));
	json_object_set(*ret_choice, "profiled", json_object_get(a->json, "profiled"));
	json_object_set(*ret_choice, "horizon_s", json_object_get(a->json, "horizon_s"));
	json_decref(a->json);
	*ret_leave = a->leave;
	*ret_nodes = a->nodes;
	return 0;
}

static void pricer_done(struct pricer *pr)
{
	layouts_done(&pr->now);
	ptc_planning_shape_done(&pr->shape);
	ptc_free(pr->now_leaves);
	ptc_free(pr->now_nodes);
}

/* The planner does without these. */
static int leave_nodes(struct pool *p, const bool *leave, struct ptc_error *err)
{
	struct pool left;

	if (pool_without(p, leave, &left) != 0)
		return ptc_nomem(err);
	ptc_free(p->devices);
	p->devices = left.devices;
	p->ndevices = left.ndevices;
	return 0;
}

static int given_config(const struct ptc_plan_request *req, struct ptc_config *ret_config, struct ptc_error *err)
{
	uint32_t world;
	int rc = ptc_config_parse(req->config, ret_config, err);

	if (rc == 0)
		rc = ptc_config_world(ret_config, &world, err);
	if (rc == 0 && req->gpus && world != req->gpus)
		rc = ptc_error_set(err, PTC_EINVAL, "--config %s needs %u devices, --gpus says %u", req->config, world,
				   req->gpus);
	return rc;
}

/* *ret_choice: who chose, and why; NULL where nobody had to. The pool loses nodes that the planner does without, and is
 * told where it has ranks (*ret_nodes, which the caller frees after the pool). A job without a model is scaled over dp,
 * as is one that has never said its batch. */
static int choose_config(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_job_desc *desc,
			 struct pool *p, const struct ptc_plan_request *req, struct ptc_config *ret_config,
			 struct ptc_planned *ret, json_t **ret_choice, uint32_t **ret_nodes, struct ptc_error *err)
{
	bool *leave = NULL;
	struct pricer pr = { .all = all, .v = v, .desc = desc, .p = p };
	const struct ptc_config *known = req->gpus ? ptc_job_config_for(desc, req->gpus) : NULL;
	const char *by = "table";
	int rc = PTC_ENOTFOUND;

	if (req->config && req->config[0])
		return given_config(req, ret_config, err);
	if (req->gpus == 0)
		return req->or_same
			       ? same_config(desc, v->from.config, req, p->ndevices, ret_config, err)
			       : ptc_error_set(
					 err, PTC_EINVAL,
					 "give a configuration or a number of devices: --config CONFIG or --gpus N");
	if (known) {
		*ret_config = *known;
		rc = 0;
	} else if ((desc->model || desc->space) && all->planning) {
		rc = by_planner(&pr, req, ret_config, ret, ret_choice, &leave, ret_nodes, err);
		pricer_done(&pr);
		if (rc == 0 && leave)
			rc = leave_nodes(p, leave, err);
		ptc_free(leave);
		p->node_of_rank = rc == 0 ? *ret_nodes : NULL;
		if (rc != PTC_ENOTFOUND)
			return rc;
	}
	if (rc) {
		by = "scaling of dp";
		rc = default_config(v->from.config, req->gpus, ret_config, err);
	}
	*ret_choice = rc ? NULL : json_pack("{s:s}", "by", by);
	return rc;
}

/* What the job would not be started again on, it is not started on. */
static int check_size(const struct ptc_job_desc *desc, const struct ptc_config *config, struct ptc_error *err)
{
	const struct ptc_job_elastic *e = &desc->elastic;
	char text[PTC_CONFIG_TEXT_MAX] = "";
	uint32_t world;
	int rc = ptc_config_world(config, &world, err);

	if (rc || (world >= e->min_gpus && (!e->max_gpus || world <= e->max_gpus)))
		return rc;
	(void)ptc_config_format(config, text, sizeof text);
	return ptc_error_set(err, PTC_EINVAL,
			     "%.200s needs %u devices, and the job's `elastic` says %s: %u; choose another "
			     "configuration, or create the job with another %s",
			     text, world, world < e->min_gpus ? "min_gpus" : "max_gpus",
			     world < e->min_gpus ? e->min_gpus : e->max_gpus,
			     world < e->min_gpus ? "min_gpus" : "max_gpus");
}

/* Names only nodes that ranks use, in order of first use. */
static int make_doc(const struct pool *p, const struct ptc_config *config, const struct ptc_allocation *a,
		    struct ptc_generation_doc *ret_doc, struct ptc_error *err)
{
	struct ptc_generation_doc g = { 0 };
	ptc_auto_free uint32_t *number = ptc_malloc(p->nnames * sizeof *number);
	ptc_auto_free char *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);

	g.nodes = ptc_calloc(p->nnames, sizeof *g.nodes);
	g.rank_node = ptc_calloc(a->world, sizeof *g.rank_node);
	g.rank_device = ptc_calloc(a->world, sizeof *g.rank_device);
	if (!number || !text || !g.nodes || !g.rank_node || !g.rank_device)
		goto nomem;
	memset(number, 0xff, p->nnames * sizeof *number);
	if (ptc_config_format(config, text, PTC_CONFIG_TEXT_MAX) != 0 || !(g.config = ptc_strdup(text)))
		goto nomem;
	g.world = a->world;
	for (uint32_t r = 0; r < a->world; r++) {
		uint32_t n = a->ranks[r].node;

		if (number[n] == UINT32_MAX) {
			number[n] = (uint32_t)g.nnodes;
			g.nodes[g.nnodes] = ptc_strdup(p->names[n]);
			if (!g.nodes[g.nnodes++])
				goto nomem;
		}
		g.rank_node[r] = number[n];
		g.rank_device[r] = a->ranks[r].index;
	}
	*ret_doc = g;
	return 0;
nomem:
	ptc_generation_doc_done(&g);
	return ptc_nomem(err);
}

/* Of every node of the cluster, and those that have something of the job; what moves, where it is known. */
static json_t *node_rows(const struct pool *p, const struct layouts *l)
{
	const struct ptc_plan *plan = l->plan;
	json_t *rows = json_array();

	for (size_t i = 0; i < p->nall; i++) {
		json_t *row = json_pack("{s:s, s:s, s:I}", "node", p->names[i], "state",
					p->states[i] ? p->states[i] : "down", "devices", (json_int_t)p->counts[i]);

		if (plan && i < p->nnames) {
			json_object_set_new(row, "in_bytes", json_integer(plan->in_bytes[i]));
			json_object_set_new(row, "out_bytes", json_integer(plan->out_bytes[i]));
			json_object_set_new(row, "held_bytes", json_integer(l->need->in_bytes[i]));
			json_object_set_new(row, "ceiling_bytes", json_integer((json_int_t)p->ceilings[i]));
		}
		json_array_append_new(rows, row);
	}
	return rows;
}

/* Where the ranks are now. */
static json_t *from_ranks(const struct ptc_view *v)
{
	json_t *rows = json_array();

	for (uint32_t r = 0; v->from_generation && r < v->from.world; r++)
		json_array_append_new(rows, json_pack("{s:I, s:s, s:I}", "rank", (json_int_t)r, "node",
						      v->from.nodes[v->from.rank_node[r]], "device",
						      (json_int_t)v->from.rank_device[r]));
	return rows;
}

/* Nothing, while what the ranks will hold is not known. */
static json_t *totals(const struct layouts *l)
{
	const struct ptc_plan *plan = l->plan;

	if (!plan)
		return json_null();
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:I}", "in_place", (json_int_t)plan->in_place,
			 "within_node", (json_int_t)plan->within_node, "between_nodes", (json_int_t)plan->between_nodes,
			 "bound_this_mapping", (json_int_t)plan->bound_mapping, "bound_any_mapping",
			 (json_int_t)l->bound, "bound_exact", (int)l->exact, "gap",
			 (json_int_t)(plan->between_nodes - l->bound), "reset", (json_int_t)plan->reset, "derived",
			 (json_int_t)plan->derived);
}

static json_t *groups(const struct layouts *l)
{
	return json_pack("{s:I, s:I, s:I}", "count", (json_int_t)l->groups.n, "split", (json_int_t)l->groups.split,
			 "across_racks", (json_int_t)l->groups.across);
}

/* What happens to the process of a rank that is to run there; NULL: the job has none. desc NULL: not asked for. */
static const char *rank_mode(const struct ptc_job_desc *desc, const struct ptc_view *v, const char *node,
			     uint32_t device)
{
	if (!desc || !desc->has_run)
		return NULL;
	for (uint32_t r = 0; v->from_incarnation && r < v->from.world; r++)
		if (v->from.rank_device[r] == device && strcmp(v->from.nodes[v->from.rank_node[r]], node) == 0)
			return desc->mode == PTC_JOB_REBUILD ? "rebuild" : "restart";
	return "start";
}

/* Of the node that alone has most: whether that can be copied between a warning and its end. NULL: not asked for, or
 * the layout is not known. */
static json_t *leaves(const struct pool *p, const struct ptc_job_desc *desc, const struct layouts *l)
{
	ptc_auto_free int64_t *bytes = ptc_calloc(p->nnames + 1, sizeof *bytes);
	size_t most = 0;

	if (!desc || !desc->warning_ms || !l->to || !p->nnames || !bytes ||
	    ptc_copies_alone(l->to, &l->to_alloc, (uint32_t)p->nnames, bytes, NULL) != 0)
		return NULL;
	for (size_t i = 0; i < p->nnames; i++)
		most = bytes[i] > bytes[most] ? i : most;
	return ptc_planning_leaves(p->all->planning, p->names[most], bytes[most], desc->warning_ms);
}

/* blobs: what becomes of ranks' blobs; NULL: not asked for. choice: who chose the configuration; NULL: it was given. */
static char *plan_json(const struct pool *p, const struct ptc_view *v, const struct ptc_job_desc *desc,
		       const struct ptc_generation_doc *to, const struct layouts *l,
		       const struct ptc_blobs_review *blobs, json_t *choice)
{
	json_t *ranks = json_array(), *root, *leaving;
	char *text;

	for (uint32_t r = 0; r < to->world; r++) {
		const char *node = to->nodes[to->rank_node[r]], *mode = rank_mode(desc, v, node, to->rank_device[r]);
		json_t *row = json_pack("{s:I, s:s, s:I}", "rank", (json_int_t)r, "node", node, "device",
					(json_int_t)to->rank_device[r]);

		if (mode)
			json_object_set_new(row, "mode", json_string(mode));
		json_array_append_new(ranks, row);
	}
	root = json_pack("{s:i, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "version", 1, "job", v->meta.name, "from",
			 v->from.config ? v->from.config : "", "to", to->config, "from_ranks", from_ranks(v), "ranks",
			 ranks, "nodes", node_rows(p, l), "groups", groups(l), "totals", totals(l));
	if (root && blobs && blobs->text[0])
		json_object_set_new(root, "blobs", ptc_rank_states_json(blobs));
	if (root && choice)
		json_object_set(root, "choice", choice);
	leaving = root ? leaves(p, desc, l) : NULL;
	if (leaving)
		json_object_set_new(root, "leaves", leaving);
	text = root ? ptc_json_text(root) : NULL;
	json_decref(root);
	return text;
}

/* By what the last snapshot carries, which is what ranks will give again, if not with more beside it: a rank keeps its
 * blobs for as long as its generation lives. */
static int plan_rank_states(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_generation_doc *to,
			    struct ptc_rank_states *ret, struct ptc_error *err)
{
	struct ptc_rank_states_ask ask = { .docs = &all->docs,
					   .meta = &v->meta,
					   .from = v->from.config,
					   .to = to->config,
					   .hash = v->manifest.state_hash };

	return v->from.config && v->manifest.state_hash[0] ? ptc_rank_states_switch(&ask, NULL, NULL, ret, err) : 0;
}

/* What ranks divide batches by, if they divide them by length. */
static void tell_cost(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_job_desc *desc,
		      const struct pool *p, const struct layouts *l, const struct ptc_config *config,
		      struct ptc_generation_doc *to)
{
	struct ptc_planning_ask ask = {
		.uuid = v->meta.uuid, .spec_hash = v->meta.spec_hash, .desc = desc, .now = v->from.config
	};
	struct ptc_length_cost cost;

	if (!all->planning || !desc->model || !desc->has_run || shape_of(p, &ask.shape) != 0)
		return;
	if (l->from && v->from.layout_hash[0]) {
		ask.held = l->spec;
		ask.held_id = v->from.layout_hash;
	}
	cost = ptc_planning_length_cost(all->planning, &ask, config);
	ptc_planning_shape_done(&ask.shape);
	to->cost_linear = cost.linear;
	to->cost_square = cost.square;
}

static int collect_pool(struct ptc_controllers *all, struct pool *p, struct ptc_error *err)
{
	int rc = ptc_loop_call(all->loop, collect, p);

	if (rc == 0 && p->rc)
		rc = ptc_error_set(err, p->rc, "out of memory");
	if (rc == 0)
		rc = check_known(p, err);
	if (rc == 0 && p->req->at_rest && p->v->from_snapshot) /* the view's nodes are the pool's first */
		ptc_lost_ask(all, p->v, p->usable);
	return rc;
}

/* The document of copies still names them: the copy keeper has not looked since. */
static int note_emptied(const struct pool *p, struct ptc_planned *planned)
{
	for (size_t i = 0; i < p->v->nnodes; i++) {
		const char *node = p->v->nodes[i];

		if (p->usable[i] || p->v->down[i] || !ptc_copies_keeper(&p->v->copies, node))
			continue;
		if (!PTC_MORE(planned->emptied, planned->nemptied))
			return PTC_ENOMEM;
		snprintf(planned->emptied[planned->nemptied++], sizeof *planned->emptied, "%s", node);
	}
	return 0;
}

int ptc_plan_switch(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_plan_request *req,
		    struct ptc_planned *ret_planned, struct ptc_error *err)
{
	struct pool p = { .all = all, .req = req, .v = v };
	struct ptc_planned planned = { 0 };
	struct layouts l = { 0 };
	struct ptc_rank_states rank_states = { 0 };
	const struct ptc_job_desc *desc;
	ptc_auto_free char *known = NULL;
	ptc_auto_free uint32_t *nodes = NULL;
	struct ptc_config config;
	json_t *choice = NULL;
	void *ref = NULL;
	int rc = req->nnodes > PTC_MAX_NODES
			 ? ptc_error_set(err, PTC_ELIMIT, "%zu nodes are named; at most %u exist", req->nnodes,
					 PTC_MAX_NODES)
			 : ptc_specs_get(all->docs.specs, v->meta.uuid, v->meta.spec_hash, &desc, &ref, err);

	p.ranks = req->ranks;
	p.shares = rc == 0 && desc->share_devices;
	if (rc == 0)
		rc = collect_pool(all, &p, err);
	if (rc == 0 && note_emptied(&p, &planned) != 0)
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = choose_config(all, v, desc, &p, req, &config, &planned, &choice, &nodes, err);
	if (rc == 0 && req->runs)
		rc = check_size(desc, &config, err);
	if (rc == 0)
		rc = make_layouts(all, desc, v, &config, &p, &l, &known, err);
	if (rc == 0)
		rc = make_doc(&p, &config, &l.to_alloc, &planned.to, err);
	if (rc == 0)
		tell_cost(all, v, desc, &p, &l, &config, &planned.to);
	if (rc == 0)
		rc = plan_rank_states(all, v, &planned.to, &rank_states, err);
	if (rc == 0) {
		if (known)
			memcpy(planned.to.layout_hash, known, strlen(known) + 1);
		planned.json = plan_json(&p, v, desc, &planned.to, &l, &rank_states.review, choice);
		rc = planned.json ? 0 : ptc_nomem(err);
	}
	if (rc == PTC_ENODEVICES && req->ret_lack)
		*req->ret_lack = p.taken.lack;
	json_decref(choice);
	layouts_done(&l);
	pool_done(&p);
	ptc_specs_release(ref);
	if (rc) {
		ptc_planned_done(&planned);
		return rc;
	}
	*ret_planned = planned;
	return 0;
}

int ptc_plan_advise(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_plan_request *req,
		    uint32_t first, json_t **ret_json, struct ptc_error *err)
{
	struct pool p = { .all = all, .req = req, .v = v };
	struct pricer pr = { .all = all, .v = v, .p = &p };
	ptc_auto_free struct ptc_planning_answer *a = ptc_calloc(1, sizeof *a);
	struct ptc_planning_ask ask;
	void *ref = NULL;
	int rc = a ? ptc_specs_get(all->docs.specs, v->meta.uuid, v->meta.spec_hash, &pr.desc, &ref, err)
		   : ptc_nomem(err);

	p.ranks = req->ranks;
	p.shares = rc == 0 && pr.desc->share_devices;
	if (rc == 0)
		rc = collect_pool(all, &p, err);
	if (rc == 0)
		rc = planner_ask(&pr, req, &ask, err);
	if (rc == 0 && first)
		rc = ptc_planning_range(all->planning, &ask, first, ret_json, err);
	else if (rc == 0 && (rc = ptc_planning_choose(all->planning, &ask, a, err)) == 0)
		*ret_json = a->json;
	ptc_free(a ? a->leave : NULL);
	ptc_free(a ? a->nodes : NULL);
	pricer_done(&pr);
	pool_done(&p);
	ptc_specs_release(ref);
	return rc;
}

/* The best that these devices allow, beside what the mapping chosen before the layout was known comes to. */
static int plan_of_layout(const struct pool *p, struct layouts *l, struct ptc_error *err)
{
	struct layouts best = {
		.spec = l->spec, .from = l->from, .to = l->to, .from_alloc = l->from_alloc, .copied_at = l->copied_at
	};
	int rc = place(p, l, err);

	if (rc)
		return rc;
	rc = place(p, &best, err);
	l->bound = best.bound;
	l->exact = best.exact;
	ptc_allocation_done(&best.to_alloc);
	ptc_plan_free(best.plan);
	ptc_plan_free(best.need);
	return rc;
}

struct ptc_plan_pool {
	struct pool pool;
};

struct ptc_plan_pool *ptc_plan_pool_new(struct ptc_controllers *all, const struct ptc_view *v)
{
	struct ptc_plan_pool *p = ptc_calloc(1, sizeof *p);

	if (!p)
		return NULL;
	p->pool = (struct pool){ .all = all, .v = v };
	collect(&p->pool);
	return p->pool.rc ? ptc_plan_pool_free(p) : p;
}

struct ptc_plan_pool *ptc_plan_pool_free(struct ptc_plan_pool *p)
{
	if (p)
		pool_done(&p->pool);
	ptc_free(p);
	return NULL;
}

int ptc_plan_of_layout(const struct ptc_plan_pool *pool, const struct ptc_view *v, const char *planned, char **ret_json,
		       struct ptc_error *err)
{
	const struct pool *p = &pool->pool;
	struct layouts l = { 0 };
	json_t *before = NULL;
	int rc = from_layout(p->all, v, &l, err);

	if (rc == 0)
		rc = one_layout(p->all, v, v->to.layout_hash, v->to.config, &l.spec, &l.to, &l.to_ref, err);
	if (rc == 0 && ptc_view_allocation(v, &v->to, &l.to_alloc) != 0)
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = plan_of_layout(p, &l, err);
	if (rc == 0 && planned)
		rc = ptc_json_load("plan", planned, strlen(planned), &before, err);
	if (rc == 0) {
		*ret_json = plan_json(p, v, NULL, &v->to, &l, NULL, json_object_get(before, "choice"));
		rc = *ret_json ? 0 : ptc_nomem(err);
	}
	json_decref(before);
	layouts_done(&l);
	return rc;
}
