/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the ranks' blobs are listed by name, then rank. Each name is looked at once, by its rule. If the rule
 * changes the blobs that ranks get, the new state document is written rank by rank. The work is blobs times their
 * logarithm, and ranks for each name. Failure modes: see blob_rules.h; nothing is left allocated by what failed. */
#include "formats/job/blob_rules.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/number/search.h"
#include "reshard/spec/glob.h"
#include "reshard/spec/spec.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_SAID    3  /* in a line ... */
#define NAME_SAID     64 /* ... and bytes of each */
#define RANKS_SAID    6
#define MIN_BLOB_TEXT 32 /* bytes a blob takes in a state document at least, beside its name and data */

const char *ptc_blob_fate_name(enum ptc_blob_fate fate)
{
	static const char *const names[] = { NULL, "carry", "replicate", "reset", "refuse" };

	return names[fate];
}

void ptc_blob_rules_done(struct ptc_blob_rules *r)
{
	for (size_t i = 0; r && r->v && i < r->n; i++)
		ptc_free(r->v[i].match);
	if (r) {
		ptc_free(r->v);
		*r = (struct ptc_blob_rules){ 0 };
	}
}

/* Stars and other characters only, and it fits the later pattern's own text: each wildcard there falls into a star
 * here. What is between brackets there stands for less than it says, so nothing is said of those. */
bool ptc_blob_rule_shadows(const char *earlier, const char *later)
{
	return !strcmp(earlier, later) || (!strpbrk(earlier, "?[") && !strchr(later, '[') &&
					   ptc_glob_match(earlier, strlen(earlier), later, strlen(later)));
}

static const struct ptc_blob_rule *rule_of(const struct ptc_blob_rules *rules, const char *name)
{
	for (size_t i = 0; i < rules->n; i++)
		if (ptc_glob_match(rules->v[i].match, strlen(rules->v[i].match), name, strlen(name)))
			return &rules->v[i];
	return NULL;
}

static enum ptc_blob_fate fate_of(const struct ptc_blob_rules *rules, const char *name)
{
	const struct ptc_blob_rule *r = rule_of(rules, name);

	return r ? r->fate : PTC_FATE_NONE;
}

int ptc_blobs_check(const struct ptc_blob_rules *rules, const struct ptc_state *s, struct ptc_error *err)
{
	for (size_t i = 0; rules->n && i < s->nranks; i++)
		for (size_t k = 0; k < s->ranks[i].nblobs; k++) {
			const char *name = s->ranks[i].blobs[k].name;
			const struct ptc_blob_rule *r = rule_of(rules, name);

			if (r && r->fate == PTC_FATE_REFUSE)
				return ptc_error_set(err, PTC_ESTATE,
						     "blob \"%.255s\" of rank %u must not be given (rule \"%.255s\": "
						     "refuse); do not set it, or give it another state in \"blobs\"",
						     name, s->ranks[i].rank, r->match);
		}
	return 0;
}

/* ---- the ranks' blobs, by name ---- */

static bool has_place(const struct ptc_config *c, const struct ptc_coords *at)
{
	return at->tp < c->tp && at->pp < c->pp && at->dp < c->dp && at->cp < c->cp;
}

struct one {
	const struct ptc_state_blob *blob;
	size_t rank; /* index into the state's ranks */
	uint32_t to; /* number in the new configuration, or PTC_MAX_RANKS: it has no place there */
	bool is_new, gone;
};
/* A copy that a rank is given. */
struct copy {
	uint32_t to;
	const struct ptc_state_blob *blob;
};
/* What ranks that differ in tp only have of a blob of scope PTC_STATE_TP. */
struct tp_group {
	const struct ptc_state_blob *blob; /* NULL: nothing */
	bool differ;
};
struct blob_work {
	const struct ptc_blobs_switch *sw;
	struct one *v; /* by name, then scope, then rank */
	size_t n;
	uint32_t world, nnew; /* of the new configuration; of its ranks, those that are new */
	uint32_t *mark;       /* per new rank: the number of the name that it was last seen to have ... */
	uint32_t *names;      /* ... and of how many names that are not asked to be given it has one */
	uint32_t nnames;      /* of those */
	struct copy *copies;  /* by name, then rank */
	size_t ncopies;
	uint64_t copies_bytes;
	struct tp_group *groups; /* of the new configuration, for the name at hand */
	size_t ngroups;
	struct ptc_blobs_review *review;
	struct said {
		struct ptc_buf text;
		const char *last;
		size_t n;
	} gone, without, replicated, reset, group; /* names */
};

static void blob_work_done(struct blob_work *c)
{
	struct said *said[] = { &c->gone, &c->without, &c->replicated, &c->reset, &c->group };

	ptc_free(c->groups);
	ptc_free(c->v);
	ptc_free(c->mark);
	ptc_free(c->names);
	ptc_free(c->copies);
	for (size_t i = 0; i < PTC_ARRAY_LEN(said); i++)
		ptc_buf_done(&said[i]->text);
}

/* Names come in order, so that one is said once; a long one not whole, but in whole characters. */
static void say(struct said *s, const char *name)
{
	size_t len = strnlen(name, NAME_SAID);

	if (s->last && !strcmp(s->last, name))
		return;
	while (name[len] && ((unsigned char)name[len] & 0xc0) == 0x80) /* inside of one */
		len--;
	if (s->n < NAMES_SAID)
		ptc_buf_printf(&s->text, "%s%.*s", s->n ? ", " : "", (int)len, name);
	else if (s->n == NAMES_SAID)
		ptc_buf_puts(&s->text, ", ...");
	s->last = name;
	s->n++;
}

PTC_COMPARE(compare, struct one,
	    PTC_THEN(strcmp(a->blob->name, b->blob->name),
		     PTC_THEN(PTC_ORDER(a->blob->scope, b->blob->scope), PTC_ORDER(a->rank, b->rank))))

static int list(struct blob_work *c, struct ptc_error *err)
{
	const struct ptc_state *s = c->sw->state;
	size_t n = 0;

	for (size_t i = 0; i < s->nranks; i++)
		n += s->ranks[i].nblobs;
	c->v = ptc_calloc(n + 1, sizeof *c->v);
	c->mark = ptc_calloc(c->world, sizeof *c->mark);
	c->names = ptc_calloc(c->world, sizeof *c->names);
	c->ngroups = c->world / c->sw->to->tp;
	c->groups = ptc_calloc(c->ngroups, sizeof *c->groups);
	if (!c->v || !c->mark || !c->names || !c->groups)
		return ptc_nomem(err);
	for (size_t i = 0; i < s->nranks; i++) {
		const struct ptc_coords *at = &s->ranks[i].at;
		bool was = has_place(c->sw->from, at), is = has_place(c->sw->to, at);
		uint32_t to = is ? ptc_config_rank(c->sw->to, at) : PTC_MAX_RANKS;

		for (size_t k = 0; k < s->ranks[i].nblobs; k++)
			c->v[c->n++] = (struct one){ &s->ranks[i].blobs[k], i, to, is && !was, was && !is };
	}
	if (c->n > 1)
		qsort(c->v, c->n, sizeof *c->v, compare);
	return 0;
}

/* ---- one name ---- */

/* One name of one scope. v: the n ranks that have it. */
struct group {
	const struct one *v;
	size_t n, gone, new_with;
	uint32_t number; /* its own, from 1 */
};

static void put_number(struct ptc_buf *b, size_t i, uint32_t rank)
{
	if (i < RANKS_SAID)
		ptc_buf_printf(b, "%s%" PRIu32, i ? ", " : "", rank);
}

static void put_rest(struct ptc_buf *b, size_t n)
{
	if (n > RANKS_SAID)
		ptc_buf_printf(b, " and %zu more", n - RANKS_SAID);
}

/* Why a blob that is to be carried cannot be. */
static int no_place(struct blob_work *c, const struct group *g, struct ptc_error *err)
{
	const char *name = g->v[0].blob->name;
	struct ptc_buf ranks = PTC_BUF_INIT;
	bool gone = g->gone != 0;
	size_t n = 0;
	int rc;

	for (size_t i = 0; i < g->n; i++)
		if (gone && g->v[i].gone)
			put_number(&ranks, n++, c->sw->state->ranks[g->v[i].rank].rank);
	for (uint32_t r = 0; !gone && r < c->world; r++) {
		struct ptc_coords at = ptc_config_coords(c->sw->to, r);

		if (!has_place(c->sw->from, &at) && c->mark[r] != g->number)
			put_number(&ranks, n++, r);
	}
	put_rest(&ranks, n);
	rc = ptc_error_set(err, PTC_ESTATE,
			   "blob \"%.255s\" must be carried (rule \"%.255s\"), but %s %s %s; choose a configuration "
			   "with the same coordinates, or another state in \"blobs\"",
			   name, rule_of(c->sw->rules, name)->match, n == 1 ? "rank" : "ranks",
			   ptc_buf_failed(&ranks) ? "?" : ranks.data,
			   gone ? "with one would be gone" : "of the new configuration would have none");
	ptc_buf_done(&ranks);
	return rc;
}

static int push_copy(struct blob_work *c, uint32_t to, const struct ptc_state_blob *blob, struct ptc_error *err)
{
	if (!PTC_MORE(c->copies, c->ncopies))
		return ptc_nomem(err);
	c->copies[c->ncopies++] = (struct copy){ to, blob };
	c->copies_bytes += MIN_BLOB_TEXT + strlen(blob->name) + (blob->len + 2) / 3 * 4;
	if (c->copies_bytes > PTC_STATE_DOC_MAX_BYTES) /* before they take memory */
		return ptc_error_set(err, PTC_ELIMIT,
				     "blob \"%.255s\": replicas of it for %" PRIu32
				     " ranks come to more than the %u bytes that blobs of all ranks may have",
				     blob->name, c->world, PTC_STATE_DOC_MAX_BYTES);
	return 0;
}

/* The lowest rank's for all that have none. */
static int replicate(struct blob_work *c, const struct group *g, struct ptc_error *err)
{
	size_t before = c->ncopies;

	for (uint32_t r = 0; r < c->world; r++) {
		int rc = c->mark[r] == g->number ? 0 : push_copy(c, r, g->v[0].blob, err);

		if (rc)
			return rc;
	}
	if (c->ncopies > before)
		say(&c->replicated, g->v[0].blob->name);
	return 0;
}

/* That of the new configuration with these coordinates; NULL: it has none. */
static struct tp_group *group_at(const struct blob_work *c, const struct ptc_coords *at)
{
	const struct ptc_config *to = c->sw->to;

	if (at->pp >= to->pp || at->dp >= to->dp || at->cp >= to->cp)
		return NULL;
	return &c->groups[((size_t)at->pp * to->dp + at->dp) * to->cp + at->cp];
}

/* As ptc_state_group_blob decides when ranks ask: who has none of its own has its group's, where that is one. What a
 * rank that is gone had lives on in its group then. */
static void share(struct blob_work *c, struct group *g)
{
	uint64_t before = c->review->group;

	memset(c->groups, 0, c->ngroups * sizeof *c->groups);
	for (size_t i = 0; i < g->n; i++) {
		const struct ptc_state_blob *b = g->v[i].blob;
		struct tp_group *t = group_at(c, &c->sw->state->ranks[g->v[i].rank].at);

		if (t && !t->blob)
			t->blob = b;
		else if (t && (t->blob->len != b->len || (b->len && memcmp(t->blob->data, b->data, b->len))))
			t->differ = true;
	}
	for (size_t i = 0; i < g->n; i++) {
		const struct tp_group *t = group_at(c, &c->sw->state->ranks[g->v[i].rank].at);

		g->gone -= g->v[i].gone && t && !t->differ;
	}
	for (uint32_t r = 0; r < c->world; r++) {
		struct ptc_coords at = ptc_config_coords(c->sw->to, r);
		const struct tp_group *t = group_at(c, &at);

		if (c->mark[r] == g->number || !t->blob || t->differ)
			continue;
		c->mark[r] = g->number;
		c->review->group++;
		g->new_with += !has_place(c->sw->from, &at);
	}
	if (c->review->group > before)
		say(&c->group, g->v[0].blob->name);
}

static void place(struct blob_work *c, const struct group *g)
{
	for (uint32_t r = 0; r < c->world; r++)
		c->names[r] += c->mark[r] == g->number;
	c->nnames++;
	if (g->new_with < c->nnew)
		say(&c->without, g->v[0].blob->name);
}

static int decide(struct blob_work *c, struct group *g, struct ptc_error *err)
{
	const struct ptc_state_blob *first = g->v[0].blob;
	enum ptc_blob_fate fate = fate_of(c->sw->rules, first->name);

	if (fate == PTC_FATE_RESET) {
		c->review->reset += g->n;
		say(&c->reset, first->name);
	}
	if (fate == PTC_FATE_RESET || first->scope == PTC_STATE_JOB)
		return 0;
	for (size_t i = 0; i < g->n; i++) {
		g->gone += g->v[i].gone;
		g->new_with += g->v[i].is_new;
		if (g->v[i].to < c->world)
			c->mark[g->v[i].to] = g->number;
	}
	if (first->scope == PTC_STATE_TP)
		share(c, g);
	if (fate == PTC_FATE_CARRY && (g->gone || g->new_with < c->nnew))
		return no_place(c, g, err);
	c->review->gone += g->gone;
	if (g->gone)
		say(&c->gone, first->name);
	if (fate == PTC_FATE_REPLICATE)
		return replicate(c, g, err);
	place(c, g);
	return 0;
}

static int decide_all(struct blob_work *c, struct ptc_error *err)
{
	uint32_t number = 0;
	int rc = 0;

	for (size_t i = 0, n; i < c->n && !rc; i += n) {
		struct group g = { .v = c->v + i, .number = ++number };

		for (n = 1; i + n < c->n && c->v[i].blob->scope == c->v[i + n].blob->scope &&
			    !strcmp(c->v[i].blob->name, c->v[i + n].blob->name);)
			n++;
		g.n = n;
		rc = decide(c, &g, err);
	}
	return rc;
}

/* ---- what ranks of the new generation are given ---- */

PTC_COMPARE(by_rank, struct copy, PTC_THEN(PTC_ORDER(a->to, b->to), strcmp(a->blob->name, b->blob->name)))

/* What of its own a rank keeps; r NULL: it had nothing. */
static size_t keep(const struct blob_work *c, const struct ptc_state_rank *r, struct ptc_state_blob *to)
{
	size_t n = 0;

	for (size_t i = 0; r && i < r->nblobs; i++)
		if (fate_of(c->sw->rules, r->blobs[i].name) != PTC_FATE_RESET)
			to[n++] = r->blobs[i];
	return n;
}

/* index: per new rank 1 + its place in the state's ranks, 0: it has none. */
static int write_ranks(const struct blob_work *c, const size_t *index, struct ptc_state *to, struct ptc_error *err)
{
	const struct ptc_state *s = c->sw->state;
	struct ptc_state_blob v[PTC_STATE_BLOBS];
	size_t at = 0;
	int rc = 0;

	for (uint32_t r = 0; r < c->world && !rc; r++) {
		size_t n = keep(c, index[r] ? &s->ranks[index[r] - 1] : NULL, v);

		for (; at < c->ncopies && c->copies[at].to == r && !rc; at++) {
			if (n == PTC_STATE_BLOBS)
				rc = ptc_error_set(err, PTC_ELIMIT,
						   "blob \"%.255s\": rank %u has %d others, and no room for a replica",
						   c->copies[at].blob->name, r, PTC_STATE_BLOBS);
			else
				v[n++] = *c->copies[at].blob;
		}
		if (rc == 0)
			rc = ptc_state_add(to, c->sw->to, r, v, n, s->cursors, r ? 0 : s->ncursors, err);
	}
	return rc;
}

static int write_others(const struct blob_work *c, struct ptc_state *to, struct ptc_error *err)
{
	const struct ptc_state *s = c->sw->state;
	struct ptc_state_blob v[PTC_STATE_BLOBS];
	uint32_t number = c->world;
	int rc = 0;

	for (size_t i = 0; i < s->nranks && number < PTC_MAX_RANKS && !rc; i++)
		if (!has_place(c->sw->to, &s->ranks[i].at)) {
			size_t n = keep(c, &s->ranks[i], v);

			rc = n ? ptc_state_put(to, number++, &s->ranks[i].at, v, n, err) : 0;
		}
	return rc;
}

static int write_state(struct blob_work *c, struct ptc_state *ret, struct ptc_error *err)
{
	const struct ptc_state *s = c->sw->state;
	size_t *index = ptc_calloc(c->world, sizeof *index);
	struct ptc_state to = { 0 };
	int rc = index ? 0 : ptc_nomem(err);

	for (size_t i = 0; !rc && i < s->nranks; i++)
		if (has_place(c->sw->to, &s->ranks[i].at))
			index[ptc_config_rank(c->sw->to, &s->ranks[i].at)] = i + 1;
	if (c->ncopies > 1)
		qsort(c->copies, c->ncopies, sizeof *c->copies, by_rank);
	if (rc == 0)
		rc = write_ranks(c, index, &to, err);
	if (rc == 0)
		rc = write_others(c, &to, err);
	ptc_free(index);
	if (rc)
		ptc_state_done(&to);
	else
		*ret = to;
	return rc;
}

/* ---- the whole ---- */

static const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

static void put_review(struct blob_work *c, struct ptc_buf *b)
{
	const struct ptc_blobs_review *r = c->review;

	if (r->gone)
		ptc_buf_printf(b, "; %" PRIu64 " per-rank blob%s of ranks that are gone (%s) %s not carried", r->gone,
			       plural(r->gone), c->gone.text.data, r->gone == 1 ? "is" : "are");
	if (r->without)
		ptc_buf_printf(b, "; %" PRIu32 " new rank%s %s none (%s)", r->without, plural(r->without),
			       r->without == 1 ? "has" : "have", c->without.text.data);
	if (r->group)
		ptc_buf_printf(b, "; %" PRIu64 " per-rank blob%s %s the tensor-parallel group's (%s)", r->group,
			       plural(r->group), r->group == 1 ? "is" : "are", c->group.text.data);
	if (r->replicated)
		ptc_buf_printf(b, "; %" PRIu64 " per-rank blob%s %s the lowest rank's (%s)", r->replicated,
			       plural(r->replicated), r->replicated == 1 ? "is" : "are", c->replicated.text.data);
	if (r->reset)
		ptc_buf_printf(b, "; %" PRIu64 " blob%s %s reset (%s)", r->reset, plural(r->reset),
			       r->reset == 1 ? "is" : "are", c->reset.text.data);
}

static bool said_failed(const struct blob_work *c)
{
	return ptc_buf_failed(&c->gone.text) || ptc_buf_failed(&c->without.text) ||
	       ptc_buf_failed(&c->replicated.text) || ptc_buf_failed(&c->reset.text) || ptc_buf_failed(&c->group.text);
}

static int review(struct blob_work *c, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	int rc = 0;

	for (uint32_t r = 0; c->without.n && r < c->world; r++) {
		struct ptc_coords at = ptc_config_coords(c->sw->to, r);

		c->review->without += c->names[r] < c->nnames && !has_place(c->sw->from, &at);
	}
	c->review->replicated = c->ncopies;
	if (said_failed(c))
		return ptc_nomem(err);
	put_review(c, &b);
	if (ptc_buf_failed(&b))
		rc = ptc_nomem(err);
	else if (b.len)
		snprintf(c->review->text, sizeof c->review->text, "%s", b.data + strlen("; "));
	ptc_buf_done(&b);
	return rc;
}

/* Ranks of one configuration whose coordinates the other has, too. */
static uint32_t common(const struct ptc_config *a, const struct ptc_config *b)
{
	return PTC_MIN(a->tp, b->tp) * PTC_MIN(a->pp, b->pp) * PTC_MIN(a->dp, b->dp) * PTC_MIN(a->cp, b->cp);
}

int ptc_blobs_apply(const struct ptc_blobs_switch *sw, struct ptc_blobs_review *ret_review, bool *ret_changed,
		    struct ptc_state *ret_state, struct ptc_error *err)
{
	struct ptc_blobs_review r = { 0 };
	struct blob_work c = { .sw = sw, .review = &r };
	bool changed = false;
	int rc = ptc_config_world(sw->to, &c.world, err);

	if (!rc)
		c.nnew = c.world - common(sw->from, sw->to);
	if (rc == 0)
		rc = list(&c, err);
	if (rc == 0)
		rc = decide_all(&c, err);
	if (rc == 0)
		rc = review(&c, err);
	changed = !rc && (r.reset || r.replicated);
	if (changed)
		rc = write_state(&c, ret_state, err);
	blob_work_done(&c);
	if (rc)
		return rc;
	*ret_review = r;
	*ret_changed = changed;
	return 0;
}
