/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a configuration for a number of devices, with the planner. Happy path: the best few by step time, all within
 * 10 % of the best, are priced exactly, and the one that makes the most of the horizon wins; staying is one of them
 * where that is possible. Failure: the errors of making a work and of searching; a candidate that cannot be reached is
 * left out. */
#include "daemon/planning/remembered.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "planner/cost/on_kinds.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NAMED      3    /* nodes in the sentence that says why */
#define HARDLY     0.01 /* of what is worth more: not worth other nodes than those with the fewest bytes */
#define PRICED_MAX 8    /* laying out a large model takes tens of milliseconds */

/* A candidate where it is to be, with what planner/ takes no part in. */
struct settled {
	struct ptc_job_found found;
	struct ptc_planning_moves moves;
	struct ptc_switch_price price;
	uint32_t *nodes; /* of each rank, by the configuration's numbers; NULL: wherever */
	bool known;      /* bytes_s is of where it is */
	double bytes_s[PTC_LINK_CLASSES], gap;
};
struct pricer {
	const struct ptc_planning_ask *ask;
	struct ptc_job_work *work;
	struct ptc_config manner;
	struct ptc_config config; /* of the candidate at hand */
	uint8_t *kind;            /* both for ptc_job_work_places */
	uint32_t *devices;
	struct settled v[PRICED_MAX];
	size_t n;
	size_t no_room;                                      /* candidates for which a node's store has no room */
	uint32_t nodes[PTC_MAX_RANKS], ranks[PTC_MAX_RANKS]; /* scratch */
};

static struct pricer *pricer_free(struct pricer *p)
{
	for (size_t i = 0; p && i < p->n; i++)
		ptc_free(p->v[i].nodes);
	if (p) {
		ptc_free(p->kind);
		ptc_free(p->devices);
	}
	ptc_free(p);
	return NULL;
}

static struct settled *settled_of(struct pricer *p, const struct ptc_cand *c)
{
	for (size_t i = 0; i < p->n; i++)
		if (!ptc_cand_compare(&p->v[i].found.choice.cand, c))
			return &p->v[i];
	return NULL;
}

static struct ptc_planning_links links_of(const struct ptc_job_set *s)
{
	const struct ptc_cluster_profile *c = &s->cluster;

	return (struct ptc_planning_links){ c->node_bytes_s, c->intra_bytes_s * c->per_node };
}

static double horizon(const struct pricer *p)
{
	return p->ask->horizon_s > 0 ? p->ask->horizon_s : p->work->horizon_s;
}

static double pause_of(const struct pricer *p)
{
	return p->ask->live ? p->work->pause_s : 0;
}

static double worth(const struct pricer *p, const struct settled *s)
{
	return PTC_MAX(0.0, horizon(p) - s->price.down_s) / s->found.choice.est.step_s;
}

/* ---- where a candidate's ranks are to be ---- */

/* Prices p->config where its ranks are to be (nodes NULL: wherever the fewest bytes move), and estimates the step that
 * these places give. */
static int price_at(struct pricer *p, const struct ptc_job_found *f, const uint32_t *nodes, struct settled *ret)
{
	const struct ptc_job_set *set = &p->work->sets[f->set];
	struct ptc_planning_where where = { set->leave, nodes };
	struct ptc_planning_links links = links_of(set);
	uint32_t world = ptc_cand_devices(&f->choice.cand);
	struct ptc_places_ask ask;
	struct ptc_places places;
	int rc;

	*ret = (struct settled){ .found = *f, .moves.exact = true };
	rc = p->ask->price ? p->ask->price(p->ask->arg, &p->config, &where, &links, &ret->moves, p->nodes) : 0;
	if (rc)
		return rc;
	ret->price = (struct ptc_switch_price){ .down_s = pause_of(p) + ret->moves.seconds, .bytes = ret->moves.bytes };
	if (!p->ask->price || !(p->work->links || p->work->kinds.n > 1) ||
	    !ptc_job_work_places(p->work, f, p->kind, p->devices, &ask))
		return 0;
	ptc_job_ranks_to(&p->config, world, p->nodes, p->ranks);
	if (ptc_places_estimate(&ask, p->ranks, &places, NULL) != 0)
		return PTC_EINVAL;
	ret->known = true;
	ret->found.choice.est = places.est;
	ret->found.choice.sd = places.sd;
	memcpy(ret->bytes_s, places.bytes_s, sizeof ret->bytes_s);
	return 0;
}

struct lacking {
	struct pricer *p;
	uint32_t world;
};

/* Sets are of ranks with tp fastest. */
static int lacks(void *arg, const uint32_t *set_of, uint32_t nsets, double *ret)
{
	struct lacking *l = arg;

	ptc_job_ranks_from(&l->p->config, l->world, set_of, l->p->ranks);
	return l->p->ask->lacks(l->p->ask->arg, &l->p->config, l->p->ranks, nsets, ret);
}

/* Where links and bytes together make the most of the horizon. */
static int price_placed(struct pricer *p, const struct ptc_job_found *f, struct settled *ret)
{
	struct lacking l = { p, ptc_cand_devices(&f->choice.cand) };
	uint32_t *nodes = ptc_calloc((size_t)l.world + 1, sizeof *nodes);
	struct ptc_places_ask ask;
	struct ptc_places places;
	int rc = PTC_ENODEVICES;

	if (nodes && p->ask->price && ptc_job_work_places(p->work, f, p->kind, p->devices, &ask)) {
		ask.lacks = p->ask->lacks ? lacks : NULL;
		ask.arg = &l;
		ask.lacks_bytes_s = p->work->sets[f->set].cluster.node_bytes_s;
		ask.horizon_s = horizon(p);
		ask.pause_s = pause_of(p);
		rc = ptc_places_find(&ask, &places, NULL);
	}
	if (rc == 0) {
		ptc_job_ranks_from(&p->config, l.world, places.node, nodes);
		ptc_free(places.node);
		rc = price_at(p, f, nodes, ret);
		ret->gap = places.gap;
	}
	if (rc) {
		ptc_free(nodes);
		return rc;
	}
	ret->nodes = nodes;
	return 0;
}

/* The fewest bytes, or nodes by their links, whichever makes more of the horizon. Kinds of devices that are mixed are
 * in their places only there. */
static void take_candidate(struct pricer *p, const struct ptc_job_found *f)
{
	struct settled *s = &p->v[p->n], other;
	bool mixed = p->work->kinds.n > 1 && p->work->sets[f->set].placed;
	int rc;

	if (ptc_cand_devices(&f->choice.cand) > PTC_MAX_RANKS ||
	    ptc_job_work_config(p->work, &p->manner, f, &p->config, NULL) != 0)
		return;
	rc = mixed ? PTC_ENODEVICES : price_at(p, f, NULL, s);
	if (rc) {
		int placed = price_placed(p, f, s);

		p->n += placed == 0;
		p->no_room += placed && (rc == PTC_ENOSPC || placed == PTC_ENOSPC);
		return;
	}
	p->n++;
	if (!p->work->links || price_placed(p, f, &other) != 0)
		return;
	if (worth(p, &other) > worth(p, s) * (1 + HARDLY))
		*s = other;
	else
		ptc_free(other.nodes);
}

static int price(void *arg, const struct ptc_cand *to, struct ptc_switch_price *ret)
{
	const struct settled *s = settled_of(arg, to);

	if (!s)
		return PTC_ENOTFOUND;
	*ret = s->price;
	return 0;
}

static int config_of(struct pricer *p, const struct ptc_ranked *r, struct ptc_error *err)
{
	const struct settled *s = r->stays ? NULL : settled_of(p, &r->choice.cand);

	return s ? ptc_job_work_config(p->work, &p->manner, &s->found, &p->config, err)
		 : ptc_config_parse(p->ask->now, &p->config, err);
}

/* ---- what is said ---- */

static struct ptc_advice_parts parts(const struct ptc_estimate *e)
{
	return (struct ptc_advice_parts){ .compute_s = e->compute_s,
					  .tp_s = e->tp_s,
					  .cp_s = e->cp_s,
					  .ep_s = e->ep_s,
					  .pp_s = e->pp_s,
					  .bubble_s = e->bubble_s,
					  .dp_s = e->dp_s,
					  .optimizer_s = e->optimizer_s,
					  .fixed_s = e->fixed_s };
}

/* The text of p->config; ptc_free it. NULL: out of memory. */
static char *config_text(const struct pricer *p)
{
	ptc_auto_free char *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);

	return text && ptc_config_format(&p->config, text, PTC_CONFIG_TEXT_MAX) == 0 ? ptc_strdup(text) : NULL;
}

/* False: there is nothing to say of it. */
static bool fill_row(struct pricer *p, const struct ptc_ranked *r, struct ptc_advice_row *ret)
{
	const struct ptc_estimate *e = &r->choice.est;
	const struct settled *s = r->stays ? NULL : settled_of(p, &r->choice.cand);
	char *text = config_of(p, r, NULL) == 0 ? config_text(p) : NULL;

	if (!text)
		return false;
	*ret = (struct ptc_advice_row){ .config = text,
					.devices = ptc_cand_devices(&r->choice.cand),
					.step_s = e->step_s,
					.error = r->choice.sd,
					.samples_s = p->work->work.global_batch / e->step_s,
					.memory_bytes = e->memory_bytes,
					.state_bytes = e->state_bytes,
					.activation_bytes = e->activation_bytes,
					.micro_batches = e->micro_batches,
					.parts = parts(e),
					.pause_s = r->price.down_s,
					.runs_now = r->stays,
					.priced = s && p->ask->price,
					.is_placed = s && s->known,
					.pays = isfinite(r->break_even_s),
					.break_even_s = r->break_even_s };
	if (ret->priced) {
		ret->moved_bytes = s->moves.bytes;
		ret->moved_bytes_least = s->moves.bytes_least;
		ret->moved_exact = s->moves.exact;
	}
	if (ret->is_placed) {
		ret->placed.by = s->nodes ? PTC_PLACED_BY_LINKS : PTC_PLACED_BY_BYTES;
		memcpy(ret->placed.bytes_s, s->bytes_s, sizeof ret->placed.bytes_s);
		ret->placed.gap = s->gap;
	}
	return true;
}

static int fill_rows(struct pricer *p, const struct ptc_ranked *v, size_t n, struct ptc_advice *ret,
		     struct ptc_error *err)
{
	ret->rows = ptc_calloc(n + 1, sizeof *ret->rows);
	if (!ret->rows)
		return ptc_nomem(err);
	for (size_t i = 0; i < n; i++)
		ret->nrows += fill_row(p, &v[i], &ret->rows[ret->nrows]);
	return 0;
}

/* What has been measured of the job. */
static int fill_measured(struct ptc_planning *p, const char *uuid, struct ptc_advice *ret, struct ptc_error *err)
{
	ptc_auto_free struct ptc_measured_doc *d = ptc_calloc(1, sizeof *d);

	ret->measured = ptc_calloc(PTC_MEASURED_ROWS, sizeof *ret->measured);
	if (!d || !ret->measured)
		return ptc_nomem(err);
	ptc_free(ptc_planning_measured(p, uuid, d));
	for (size_t i = 0; i < d->nrows; i++) {
		struct ptc_advice_measured m = { .config = ptc_strdup(d->rows[i].config),
						 .step_s = d->rows[i].step_s,
						 .steps = d->rows[i].steps,
						 .time_ms = d->rows[i].time_ms };

		if (!m.config)
			return ptc_nomem(err);
		ret->measured[ret->nmeasured++] = m;
	}
	return 0;
}

static int fill_kinds(const struct ptc_job_work *w, const struct ptc_planning_ask *ask, struct ptc_advice *ret,
		      struct ptc_error *err)
{
	ret->kinds = ptc_calloc(w->kinds.n + 1u, sizeof *ret->kinds);
	if (!ret->kinds)
		return ptc_nomem(err);
	for (uint32_t k = 0; k < w->kinds.n; k++) {
		struct ptc_advice_kind *kind = &ret->kinds[ret->nkinds++];

		*kind = (struct ptc_advice_kind){ .memory_known = w->kinds.memory_known,
						  .memory_bytes = w->kinds.v[k].memory_bytes,
						  .price_hour = w->kinds.v[k].price_hour };
		snprintf(kind->name, sizeof kind->name, "%s", w->kinds.v[k].name);
		for (size_t i = 0; i < ask->shape.nnodes; i++)
			kind->devices += w->kind_of[i] == k ? ask->shape.nodes[i].devices : 0;
	}
	return 0;
}

static double horizon_of(const struct ptc_planning_ask *ask, const struct ptc_job_work *w)
{
	return ask->horizon_s > 0 ? ask->horizon_s : w->horizon_s;
}

static int fill_head(const struct ptc_job_work *w, const struct ptc_planning_ask *ask, struct ptc_advice *ret,
		     struct ptc_error *err)
{
	const struct ptc_job_work_memo memo = ptc_job_work_memo(w);

	ret->gpus = ask->gpus;
	ret->calibrated = w->cal != NULL;
	ret->measured_steps = w->nsteps;
	ret->profiled = !w->assumed;
	ret->links_known = w->linked;
	ret->horizon_s = horizon_of(ask, w);
	ret->model = w->no_model.code ? PTC_MODEL_NONE : w->inferred[0] ? PTC_MODEL_INFERRED : PTC_MODEL_DESCRIBED;
	ret->remembered.devices = memo.devices;
	ret->remembered.frontier = memo.frontier;
	ret->remembered.searches = memo.searches;
	return fill_kinds(w, ask, ret, err);
}

/* ---- choosing ---- */

static struct ptc_choose_rules rules_of(const struct ptc_planning_ask *ask, const struct ptc_job_work *w,
					struct pricer *p)
{
	struct ptc_choose_rules r = { .objective = ask->objective,
				      .horizon_s = horizon_of(ask, w),
				      .price_hour = w->profile.cluster.kinds[0].price_hour,
				      .price = ask->price || ask->live ? price : NULL,
				      .arg = p,
				      .forced_down_s = ask->live ? w->pause_s : 0,
				      .available = ask->gpus };

	ptc_measured_losses_mean(w->losses, w->nlosses, ptc_sys_realtime_ms(), &r.loss_every_s, &r.loss_devices);
	return r;
}

/* What runs now as a candidate; false: it has to leave, or the model does not know it. */
static bool can_stay(const struct ptc_planning_ask *ask, struct pricer *p, struct ptc_choice *ret)
{
	return ask->may_stay && ask->now && ptc_config_parse(ask->now, &p->config, NULL) == 0 &&
	       ptc_job_work_predict(p->work, &p->config, ask->now_leaves, ask->now_nodes, ret, NULL) == 0 &&
	       ptc_cand_devices(&ret->cand) <= ask->gpus;
}

/* "; on devices of kind H100-80GB alone; without n3, whose links are slow" */
static void name_left(const struct ptc_planning_ask *ask, const struct ptc_job_work *w, const bool *leave,
		      struct ptc_buf *b)
{
	uint8_t kind = PTC_KIND_NONE;
	bool others = false;
	size_t left = 0;

	for (size_t i = 0; leave && i < ask->shape.nnodes; i++)
		if (!leave[i] && ask->shape.nodes[i].devices)
			kind = w->kind_of[i];
	for (size_t i = 0; leave && i < ask->shape.nnodes; i++)
		others |= leave[i] && ask->shape.nodes[i].devices && w->kind_of[i] != kind;
	if (others && kind != PTC_KIND_NONE)
		ptc_buf_printf(b, "; on devices of kind %s alone", w->kinds.v[kind].name);
	for (size_t i = 0; leave && i < ask->shape.nnodes; i++)
		if (leave[i] && ask->shape.nodes[i].devices && w->kind_of[i] == kind && left++ < NAMED)
			ptc_buf_printf(b, "%s%s", left > 1 ? ", " : "; without ", ask->shape.nodes[i].name);
	if (left > NAMED)
		ptc_buf_printf(b, " and %zu more", left - NAMED);
	if (left)
		ptc_buf_puts(b, ", whose links are slow");
}

/* "; ranks are placed by links: the slowest, 0.1 GB/s, carries pp" */
static void name_places(const struct settled *s, struct ptc_buf *b)
{
	static const char *const classes[PTC_LINK_CLASSES] = { "tp", "cp", "ep", "dp", "pp" };
	double least = 0;
	bool begun = false;

	if (!s || !s->nodes || !s->known)
		return;
	for (int k = 0; k < PTC_LINK_CLASSES; k++)
		if (s->bytes_s[k] > 0 && (least <= 0 || s->bytes_s[k] < least))
			least = s->bytes_s[k];
	if (least <= 0)
		return;
	ptc_buf_printf(b, "; ranks are placed by links: the slowest that is crossed, %.3g GB/s, carries", least / 1e9);
	for (int k = 0; k < PTC_LINK_CLASSES; k++)
		if (s->bytes_s[k] > 0 && s->bytes_s[k] <= least) {
			ptc_buf_printf(b, "%s%s", begun ? ", " : " ", classes[k]);
			begun = true;
		}
}

/* "; stages 1-2 on H100-80GB, 3-4 on A100-80GB" */
static void name_kinds(const struct pricer *p, const struct ptc_ranked *first, struct ptc_buf *b)
{
	const struct settled *s = first->stays ? NULL : settled_of((struct pricer *)(uintptr_t)p, &first->choice.cand);
	char text[PTC_PLACED_TEXT_MAX];

	if (!s || !s->found.choice.est.place.first)
		return;
	ptc_placed_format(&p->work->sets[s->found.set].cluster, &first->choice.cand, &s->found.choice.est.place, text);
	ptc_buf_printf(b, "; %s", text);
}

static void explain(const struct ptc_planning_ask *ask, const struct pricer *p, const struct ptc_ranked *first,
		    const char *why, char ret[PTC_PLANNING_WHY_MAX])
{
	const struct ptc_job_work *w = p->work;
	const struct settled *s = first->stays ? NULL : settled_of((struct pricer *)(uintptr_t)p, &first->choice.cand);
	const struct ptc_planning_moves *m = s ? &s->moves : NULL;
	struct ptc_buf b = PTC_BUF_INIT;

	ptc_buf_puts(&b, why);
	name_left(ask, w, s ? w->sets[s->found.set].leave : NULL, &b);
	name_kinds(p, first, &b);
	name_places(s, &b);
	if (m && !m->exact)
		ptc_buf_puts(&b, "; bytes are estimated");
	if (w->no_model.code)
		ptc_buf_printf(&b, "; %.300s: steps are as measured or scaled by dp, memory is not known",
			       w->no_model.text);
	else if (!w->cal)
		ptc_buf_puts(&b, "; step times are uncalibrated");
	if (w->plain)
		ptc_buf_puts(&b, "; without virtual stages, for the program has not promised them yet (ptc_schedule)");
	if (w->inferred[0])
		ptc_buf_printf(&b, "; the model is inferred from its tensors: %s", w->inferred);
	if (w->kinds.said[0])
		ptc_buf_printf(&b, "; %s", w->kinds.said);
	if (!w->kinds.memory_known && !w->no_model.code)
		ptc_buf_puts(&b, "; without a profile of the devices their memory is not compared");
	snprintf(ret, PTC_PLANNING_WHY_MAX, "%s", ptc_buf_failed(&b) ? why : b.data);
	ptc_buf_done(&b);
}

/* Of the chosen candidate: nodes that it does without, and those of its ranks. */
static int keep_places(const struct ptc_planning_ask *ask, struct pricer *p, const struct ptc_ranked *first,
		       struct ptc_planning_answer *ret, struct ptc_error *err)
{
	struct settled *s = first->stays ? NULL : settled_of(p, &first->choice.cand);
	bool any = false;

	ret->leave = NULL;
	ret->nodes = NULL;
	if (!s)
		return 0;
	for (size_t i = 0; i < ask->shape.nnodes; i++)
		any |= p->work->sets[s->found.set].leave[i];
	ret->nodes = s->nodes; /* the answer's from here on */
	s->nodes = NULL;
	if (!any)
		return 0;
	ret->leave = ptc_calloc(ask->shape.nnodes + 1, sizeof *ret->leave);
	if (!ret->leave)
		return ptc_nomem(err);
	memcpy(ret->leave, p->work->sets[s->found.set].leave, ask->shape.nnodes * sizeof *ret->leave);
	return 0;
}

static int answer(const struct ptc_planning_ask *ask, struct pricer *p, const struct ptc_ranked *v, size_t n,
		  const char *why, struct ptc_planning_answer *ret, struct ptc_error *err)
{
	int rc = config_of(p, &v[0], err);

	ret->config = p->config;
	ret->stays = v[0].stays;
	ret->choice = (struct ptc_plan_choice){ .by = PTC_CHOICE_BY_PLANNER,
						.predicted = true,
						.pause_s = v[0].price.down_s,
						.break_even_s = v[0].break_even_s,
						.horizon_s = horizon_of(ask, p->work) };
	if (rc == 0)
		rc = fill_rows(p, v, n, &ret->advice, err);
	if (rc == 0)
		rc = fill_head(p->work, ask, &ret->advice, err);
	if (rc)
		return rc;
	explain(ask, p, &v[0], why, ret->advice.why);
	return keep_places(ask, p, &v[0], ret, err);
}

static int new_pricer(const struct ptc_planning_ask *ask, struct ptc_job_work *w, struct pricer **ret,
		      struct ptc_error *err)
{
	struct ptc_job_work_opts opts = { .desc = ask->desc, .now = ask->now };
	struct pricer *p = ptc_calloc(1, sizeof *p);
	int rc = p ? ptc_job_manner(&opts, &p->manner, err) : ptc_nomem(err);

	if (rc == 0 && (!(p->kind = ptc_calloc(w->nnodes + 1, sizeof *p->kind)) ||
			!(p->devices = ptc_calloc(w->nnodes + 1, sizeof *p->devices))))
		rc = ptc_nomem(err);
	if (rc) {
		pricer_free(p);
		return rc;
	}
	p->ask = ask;
	p->work = w;
	*ret = p;
	return 0;
}

/* The configuration that runs is among those found, on other nodes than now, or faster on others of its nodes: to leave
 * a slow link it need not be another. */
static bool runs_elsewhere(struct pricer *p, const struct ptc_choice *now)
{
	const struct ptc_planning_ask *ask = p->ask;
	const struct settled *s = settled_of(p, &now->cand);

	if (s && s->known && s->found.choice.est.step_s < now->est.step_s * (1 - HARDLY))
		return true;
	for (size_t i = 0; s && ask->now_leaves && i < ask->shape.nnodes; i++)
		if (p->work->sets[s->found.set].leave[i] && !ask->now_leaves[i])
			return true;
	return false;
}

static int rank(struct pricer *p, const struct ptc_choice *v, size_t n, struct ptc_ranked *ranked, size_t *ret_n,
		char why[PTC_WHY_MAX], struct ptc_error *err)
{
	struct ptc_choose_rules rules = rules_of(p->ask, p->work, p);
	struct ptc_choice now;
	bool stays = can_stay(p->ask, p, &now);
	int rc;

	if (stays && !runs_elsewhere(p, &now))
		rules.now = &now;
	rc = ptc_choose(v, n, &rules, ranked, ret_n, why, err);
	if (!stays || rules.now || (rc == 0 && ranked[0].steps > rules.horizon_s / now.est.step_s))
		return rc;
	rules.now = &now; /* moving does not pay */
	return ptc_choose(v, n, &rules, ranked, ret_n, why, err);
}

static int choose(const struct ptc_planning_ask *ask, struct ptc_job_work *w, struct ptc_planning_answer *ret,
		  struct ptc_error *err)
{
	ptc_auto_free struct ptc_job_found *found = ptc_calloc(PTC_WORK_KEEP, sizeof *found);
	ptc_auto_free struct ptc_ranked *ranked = ptc_calloc(PRICED_MAX + 1, sizeof *ranked);
	struct pricer *p = NULL;
	struct ptc_choice v[PRICED_MAX];
	char why[PTC_WHY_MAX];
	size_t n = 0;
	int rc = found && ranked ? new_pricer(ask, w, &p, err) : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_job_work_search(w, ask->gpus, found, &n, err);
	for (size_t i = 0; rc == 0 && i < n && p->n < PRICED_MAX && i < PRICED_MAX + p->no_room; i++)
		take_candidate(p, &found[i]);
	if (rc == 0 && !p->n && p->no_room)
		rc = ptc_error_set(err, PTC_ENOSPC,
				   "for none of %zu candidates have the nodes' stores room for what they hold and what "
				   "would come; raise memory.ceiling, or name a smaller --gpus",
				   p->no_room);
	else if (rc == 0 && !p->n)
		rc = ptc_error_set(err, PTC_ENODEVICES, "no candidate can be reached from the present state");
	for (size_t i = 0; rc == 0 && i < p->n; i++)
		v[i] = p->v[i].found.choice;
	if (rc == 0)
		rc = rank(p, v, p->n, ranked, &n, why, err);
	if (rc == 0)
		rc = answer(ask, p, ranked, n, why, ret, err);
	pricer_free(p);
	return rc;
}

static int check_ask(const struct ptc_planning_ask *ask, struct ptc_error *err)
{
	if (!ask->gpus)
		return ptc_error_set(err, PTC_EINVAL, "write a number of devices of at least 1");
	if (ask->gpus > ask->shape.devices)
		return ptc_error_set(
			err, PTC_ENODEVICES,
			"%u devices are asked for, %u are known, up and not drained; add nodes first (`ptcctl nodes`)",
			ask->gpus, ask->shape.devices);
	return 0;
}

int ptc_planning_choose(struct ptc_planning *p, const struct ptc_planning_ask *ask, struct ptc_planning_answer *ret,
			struct ptc_error *err)
{
	struct ptc_job_work *w = NULL;
	struct ptc_planning_answer *a = ptc_calloc(1, sizeof *a);
	int rc = a ? check_ask(ask, err) : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_planning_work(p, ask, &w, err);
	if (rc == 0)
		rc = choose(ask, w, a, err);
	if (rc == 0)
		rc = fill_measured(p, ask->uuid, &a->advice, err);
	ptc_planning_work_release(w);
	if (rc == 0)
		*ret = *a;
	else if (a)
		ptc_planning_answer_done(a);
	ptc_free(a);
	return rc;
}

void ptc_planning_answer_done(struct ptc_planning_answer *a)
{
	ptc_free(a->nodes);
	ptc_free(a->leave);
	ptc_advice_done(&a->advice);
	memset(a, 0, sizeof *a);
}

/* ---- ranges ---- */

static void fill_count(struct pricer *p, uint32_t n, struct ptc_advice_count *ret)
{
	struct ptc_job_found found = { 0 };
	struct ptc_frontier_point at;
	struct settled s;

	ret->gpus = n;
	if (!ptc_job_work_best(p->work, n, &at, &found.set))
		return;
	found.choice.cand = at.cand;
	if (ptc_job_work_config(p->work, &p->manner, &found, &p->config, NULL) != 0 ||
	    ptc_job_work_predict(p->work, &p->config, NULL, NULL, &found.choice, NULL) != 0)
		return;
	ret->config = config_text(p);
	ret->devices = ptc_cand_devices(&at.cand);
	ret->step_s = at.step_s;
	ret->error = found.choice.sd;
	ret->samples_s = p->work->work.global_batch / at.step_s;
	ret->memory_bytes = at.memory_bytes;
	if (!ret->config || !p->ask->price || ret->devices > PTC_MAX_RANKS || price_at(p, &found, NULL, &s) != 0)
		return;
	ret->priced = true;
	ret->pause_s = s.price.down_s;
	ret->moved_bytes = s.moves.bytes;
	ret->moved_exact = s.moves.exact;
}

static int range(const struct ptc_planning_ask *ask, struct ptc_job_work *w, uint32_t first, struct ptc_advice *ret,
		 struct ptc_error *err)
{
	struct pricer *p = NULL;
	int rc = new_pricer(ask, w, &p, err);

	if (rc)
		return rc;
	ret->counts = ptc_calloc((size_t)ask->gpus - first + 1, sizeof *ret->counts);
	if (!ret->counts)
		rc = ptc_nomem(err);
	for (uint32_t n = first; rc == 0 && n <= ask->gpus; n++) {
		fill_count(p, n, &ret->counts[ret->ncounts++]);
		if (ask->gone && ask->gone(ask->gone_arg))
			rc = ptc_error_set(err, PTC_ECANCELED, "nobody waits for the advice any more");
	}
	pricer_free(p);
	return rc ? rc : fill_head(w, ask, ret, err);
}

int ptc_planning_range(struct ptc_planning *p, const struct ptc_planning_ask *ask, uint32_t first,
		       struct ptc_advice *ret, struct ptc_error *err)
{
	struct ptc_job_work *w = NULL;
	struct ptc_advice a = { 0 };
	int rc = check_ask(ask, err);

	if (rc == 0 && (!first || first > ask->gpus))
		rc = ptc_error_set(err, PTC_EINVAL, "gpus %u-%u: the range is empty", first, ask->gpus);
	if (rc == 0)
		rc = ptc_planning_work(p, ask, &w, err);
	if (rc == 0)
		rc = range(ask, w, first, &a, err);
	ptc_planning_work_release(w);
	if (rc)
		ptc_advice_done(&a);
	else
		*ret = a;
	return rc;
}
