/* SPDX-License-Identifier: Apache-2.0 */
/* What plans promise, stated: changes that must move nothing, releases that
 * cost nothing, states that do not go together, who sends how much and when,
 * and every allocation failing in turn. */
#include "base/alloc.h"
#include "reshard/place/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_RANKS 64

static struct ptc_tensor tensors[] = { { "h.0.w", PTC_BF16, 2, { 16, 24 } },
				       { "h.1.w", PTC_BF16, 2, { 16, 24 } },
				       { "h.2.w", PTC_BF16, 2, { 16, 24 } },
				       { "h.3.w", PTC_BF16, 2, { 16, 24 } },
				       { "wte", PTC_BF16, 2, { 64, 24 } } };
static struct ptc_field fields[] = { { "exp_avg", PTC_F32, false } };
static struct ptc_rule rules[] = {
	{ .match = "h.*", .splits[0].axis = PTC_AXIS_TP, .place = PTC_PLACE_LAYER, .layer = "h.{}.w" },
	{ .match = "wte", .splits[0].axis = PTC_AXIS_TP, .place = PTC_PLACE_ENDS },
};
static const struct ptc_spec spec = {
	.name = "job",
	.tensors = tensors,
	.ntensors = 5,
	.fields = fields,
	.nfields = 1,
	.rules = rules,
	.nrules = 2,
};

static struct ptc_layout *layout_of(const struct ptc_spec *s, const char *config)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_layout *l = NULL;
	struct ptc_config c;

	if (ptc_config_parse(config, &c, &err) || ptc_layout_new(s, &c, &l, &err))
		fail_msg("%s: %s", config, err.text);
	return l;
}

static struct ptc_place_opts cluster(struct ptc_device *v, uint32_t nodes, uint32_t per_node)
{
	for (uint32_t i = 0; i < nodes * per_node; i++)
		v[i] = (struct ptc_device){ i / per_node, i % per_node };
	return (struct ptc_place_opts){ .devices = v, .ndevices = (size_t)nodes * per_node, .nnodes = nodes };
}

/* Places and plans from ranks on devices in pairs that are `step` pairs apart. */
static struct ptc_plan *switched(const char *from, const char *to, uint32_t nodes, uint32_t per_node, uint32_t step,
				 int64_t *ret_gap)
{
	struct ptc_layout *a = layout_of(&spec, from), *b = layout_of(&spec, to);
	struct ptc_device all[MAX_RANKS], was[MAX_RANKS];
	struct ptc_place_opts opts = cluster(all, nodes, per_node);
	struct ptc_allocation old = { was, ptc_layout_world(a) }, new = { 0 };
	static const struct ptc_plan_opts count_only;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_change *c = NULL;
	struct ptc_plan *p = NULL;

	for (uint32_t r = 0; r < old.world; r++)
		was[r] = all[(r / 2 * step % (opts.ndevices / 2)) * 2 + r % 2];
	if (ptc_change_new(a, b, &c, &err) || ptc_change_place(c, &old, &opts, &new, ret_gap, &err) ||
	    ptc_plan_stream(c, &old, &new, nodes, NULL, &count_only, &p, &err))
		fail_msg("%s to %s: %s", from, to, err.text);
	ptc_change_free(c);
	ptc_allocation_done(&new);
	ptc_layout_free(a);
	ptc_layout_free(b);
	return p;
}

static void changes_that_move_nothing(void **state)
{
	static const char *const pairs[][2] = {
		{ "tp=2,pp=2,dp=4,micro_batch=1,global_batch=8", "tp=2,pp=2,dp=4,micro_batch=4,global_batch=8" },
		{ "tp=2,pp=2,dp=4,zero=1", "tp=2,pp=2,dp=2,cp=2,zero=1" },
		{ "tp=2,pp=2,dp=2,cp=2,zero=1", "tp=2,pp=2,dp=1,cp=4,zero=1" },
		{ "tp=2,pp=2,dp=4", "tp=2,pp=2,dp=1,cp=4" },
		{ "tp=2,pp=2,cp=4,zero=3,shard=dim0", "tp=2,pp=2,dp=4,zero=3,shard=dim0" },
	};

	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
		for (uint32_t step = 1; step < 6; step += 2) {
			int64_t gap;
			struct ptc_plan *p = switched(pairs[i][0], pairs[i][1], 4, 4, step, &gap);

			if (p->between_nodes || p->within_node || p->nbetween || p->nwithin || gap || !p->kept)
				fail_msg("%s to %s: %lld between nodes, %lld within", pairs[i][0], pairs[i][1],
					 (long long)p->between_nodes, (long long)p->within_node);
			ptc_plan_free(p);
		}
}

/* Ranks whose nodes have been decided lie there, on devices that are theirs alone; and each node gets just the bytes
 * that ptc_change_set_bytes says of the set of its ranks. */
static void decided_nodes(void **state)
{
	static const char *const pairs[][2] = { { "tp=2,pp=2,dp=2,zero=1", "tp=1,pp=4,dp=2,zero=1" },
						{ "tp=4,pp=2,dp=1", "tp=2,pp=1,dp=3,zero=3,shard=dim0" },
						{ "tp=1,pp=1,dp=1", "tp=2,pp=4,dp=1" },
						{ "tp=2,pp=4,dp=2", "tp=2,pp=4,dp=2,order=dp-tp-cp-ep-pp" } };
	static const struct ptc_plan_opts count_only;

	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
		for (uint32_t turn = 0; turn < 4; turn++) {
			struct ptc_layout *a = layout_of(&spec, pairs[i][0]), *b = layout_of(&spec, pairs[i][1]);
			struct ptc_device all[MAX_RANKS], was[MAX_RANKS];
			struct ptc_place_opts opts = cluster(all, 4, 4);
			struct ptc_allocation old = { was, ptc_layout_world(a) }, new = { 0 };
			uint32_t node[MAX_RANKS], set[MAX_RANKS], world = ptc_layout_world(b);
			int64_t bytes[4 * 4], gap = 1;
			bool taken[16] = { false };
			struct ptc_change *c = NULL;
			struct ptc_plan *p = NULL;

			for (uint32_t r = 0; r < old.world; r++)
				was[r] = all[(r * 5 + turn) % 16];
			for (uint32_t r = 0; r < world; r++) {
				set[r] = r / 2 % 4;
				node[r] = (set[r] * 3 + turn) % 4;
			}
			opts.node_of_rank = node;
			if (ptc_change_new(a, b, &c, NULL) || ptc_change_place(c, &old, &opts, &new, &gap, NULL) ||
			    ptc_change_set_bytes(c, &old, &opts, set, 4, bytes, NULL) ||
			    ptc_plan_stream(c, &old, &new, 4, NULL, &count_only, &p, NULL))
				fail_msg("%s to %s", pairs[i][0], pairs[i][1]);
			assert_int_equal(0, gap);
			for (uint32_t r = 0; r < world; r++) {
				uint32_t at = new.ranks[r].node * 4 + new.ranks[r].index;

				assert_int_equal(node[r], new.ranks[r].node);
				assert_false(taken[at]);
				taken[at] = true;
			}
			for (uint32_t s = 0; s < 4 && s * 2 < world; s++)
				assert_int_equal(p->in_bytes[(s * 3 + turn) % 4], bytes[s * 4 + (s * 3 + turn) % 4]);
			ptc_plan_free(p);
			ptc_change_free(c);
			ptc_allocation_done(&new);
			ptc_layout_free(a);
			ptc_layout_free(b);
		}
}

/* Whole replicas go: of those that stay nothing moves, wherever ranks were, on few blocks and on many. */
static void whole_replicas_are_released_for_nothing(void **state)
{
	static const struct {
		const char *from, *to;
		uint32_t nodes, per_node;
	} cases[] = {
		{ "tp=2,pp=2,dp=4", "tp=2,pp=2,dp=2", 4, 4 },
		{ "tp=2,pp=2,dp=4", "tp=2,pp=2,dp=1", 8, 2 },
		{ "tp=2,pp=4,dp=8", "tp=2,pp=4,dp=5", 16, 4 },
		{ "tp=4,pp=2,dp=8", "tp=4,pp=2,dp=7", 8, 8 },
		{ "tp=1,pp=4,dp=16", "tp=1,pp=4,dp=15", 16, 4 },
		{ "tp=2,pp=4,cp=2,dp=4", "tp=2,pp=4,cp=2,dp=3", 16, 4 },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int64_t gap;
		struct ptc_plan *p = switched(cases[i].from, cases[i].to, cases[i].nodes, cases[i].per_node, 1, &gap);

		if (p->between_nodes || p->within_node || gap)
			fail_msg("%s to %s: %lld between nodes, %lld within, gap %lld", cases[i].from, cases[i].to,
				 (long long)p->between_nodes, (long long)p->within_node, (long long)gap);
		ptc_plan_free(p);
	}
}

static void other_states_are_refused(void **state)
{
	struct ptc_tensor other[5];
	struct ptc_field more[2] = { fields[0], { "exp_avg_sq", PTC_F32, false } };
	struct ptc_spec now = spec;
	struct ptc_layout *a = layout_of(&spec, "tp=2"), *b;
	static const struct {
		const char *words[2];
	} want[] = { { { "\"h.1.w\"", "F32 [16, 24]" } },
		     { { "\"h.1.w\"", "[16, 25]" } },
		     { { "\"h.1.w\" is not in the new state", "" } },
		     { { "\"h.4.w\" is not in the old state", "" } },
		     { { "field 2", "exp_avg_sq" } } };

	for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_change *c = NULL;

		memcpy(other, tensors, sizeof other);
		now = spec;
		now.tensors = other;
		if (i == 0)
			other[1].dtype = PTC_F32;
		if (i == 1)
			other[1].shape[1] = 25;
		if (i == 2) {
			memmove(&other[1], &other[2], 3 * sizeof *other);
			now.ntensors = 4;
		}
		if (i == 3)
			other[4].name = "h.4.w";
		if (i == 4) {
			now.fields = more;
			now.nfields = 2;
		}
		b = layout_of(&now, "tp=2");
		assert_int_equal(ptc_change_new(a, b, &c, &err), PTC_ELAYOUT);
		for (int k = 0; k < 2; k++)
			if (!strstr(err.text, want[i].words[k]))
				fail_msg("\"%s\" is not in: %s", want[i].words[k], err.text);
		assert_null(c);
		ptc_layout_free(b);
	}
	ptc_layout_free(a);
}

struct turns {
	uint32_t nodes;
	uint64_t moves;
	bool sends[MAX_RANKS][MAX_RANKS]; /* turn, source */
	uint32_t to[MAX_RANKS][MAX_RANKS];
};

static int in_turn(void *arg, const struct ptc_move *m)
{
	struct turns *t = arg;
	uint32_t turn;

	if (m->kind != PTC_MOVE_BETWEEN)
		return 0;
	turn = ptc_move_turn(m, t->nodes);
	assert_true(turn > 0 && turn < t->nodes);
	assert_true(!t->sends[turn][m->src_node] || t->to[turn][m->src_node] == m->dst_node);
	t->sends[turn][m->src_node] = true;
	t->to[turn][m->src_node] = m->dst_node;
	t->moves++;
	return 0;
}

static int stop(void *arg, const struct ptc_move *m)
{
	return 42;
}

static void turns_senders_and_time(void **state)
{
	struct ptc_layout *a = layout_of(&spec, "tp=2,pp=2,dp=4"), *b = layout_of(&spec, "tp=2,pp=2,dp=8");
	struct ptc_device all[MAX_RANKS];
	struct ptc_place_opts opts = cluster(all, 16, 2);
	struct ptc_allocation old = { all, 16 }, new = { 0 };
	static struct turns turns = { .nodes = 16 };
	struct ptc_plan_opts take = { .fn = in_turn, .arg = &turns }, give_up = { .fn = stop };
	struct ptc_rates rates = { 0 };
	struct ptc_change *c = NULL;
	struct ptc_plan *p = NULL;
	int64_t gap, busiest = 0;

	assert_int_equal(ptc_change_new(a, b, &c, NULL), 0);
	assert_int_equal(ptc_change_place(c, &old, &opts, &new, &gap, NULL), 0);
	assert_int_equal(ptc_plan_stream(c, &old, &new, 16, NULL, &give_up, &p, NULL), 42);
	assert_int_equal(ptc_plan_stream(c, &old, &new, 16, NULL, &take, &p, NULL), 0);
	assert_true(turns.moves == p->nbetween && turns.moves > 0);
	for (uint32_t n = 0; n < 16; n++)
		busiest = p->out_bytes[n] > busiest ? p->out_bytes[n] : busiest;
	assert_true(busiest * 8 <= p->between_nodes + p->between_nodes / 4); /* eight nodes had something */
	assert_int_equal(ptc_plan_time_ns(p, &rates), 0);
	rates.node_out = 1000;
	assert_int_equal(ptc_plan_time_ns(p, &rates), busiest * 1000000);
	ptc_plan_free(p);
	ptc_change_free(c);
	ptc_allocation_done(&new);
	ptc_layout_free(a);
	ptc_layout_free(b);
}

/* A replica that begins elsewhere in the buffer of each tp rank: what nodes need is cut for all of them alike, so that
 * what one says of a box can be held against the others. */
static void nodes_cut_alike(void **state)
{
	struct ptc_tensor two[] = { { "a", PTC_U8, 1, { 5 } }, { "b", PTC_U8, 3, { 3, 3, 4 } } };
	struct ptc_rule split[] = {
		{ .match = "a", .splits[0] = { .axis = PTC_AXIS_TP, .kind = PTC_SPLIT_CEIL } },
	};
	struct ptc_spec s = { .name = "job", .tensors = two, .ntensors = 2, .rules = split, .nrules = 1 };
	struct ptc_layout *l = layout_of(&s, "tp=2,dp=3,zero=3,shard=buffer");
	struct ptc_device all[6];
	struct ptc_allocation a = { all, 6 };
	struct ptc_needs needs[6];
	uint32_t overlapping = 0;
	int64_t bytes = 0;

	cluster(all, 6, 1);
	for (uint32_t n = 0; n < 6; n++)
		assert_int_equal(ptc_layout_node_needs(l, &a, n, &needs[n], NULL), 0);
	for (uint32_t n = 0; n < 6; n++) {
		for (uint32_t k = 0; k < n; k++)
			for (size_t i = 0; i < needs[n].n * needs[k].n; i++) {
				const struct ptc_need *x = &needs[n].v[i / needs[k].n],
						      *y = &needs[k].v[i % needs[k].n];
				struct ptc_box common;

				if (x->item != y->item || !ptc_box_intersect(&x->box, &y->box, &common))
					continue;
				assert_true(ptc_box_equal(&x->box, &y->box));
				overlapping++;
			}
		bytes += needs[n].bytes;
	}
	assert_true(overlapping > 3);
	assert_int_equal(bytes, 5 + 2 * 36);
	for (uint32_t n = 0; n < 6; n++)
		ptc_needs_done(&needs[n]);
	ptc_layout_free(l);
}

/* The same job, whose moments are reset, and with them whatever is asked for. */
static struct ptc_rule reset_rules[] = {
	{ .match = "*", .splits[0].axis = PTC_AXIS_TP, .fields = "exp_avg", .carry = PTC_CARRY_RESET },
	{ .match = "*", .splits[0].axis = PTC_AXIS_TP },
};

static struct ptc_spec with_resets(void)
{
	struct ptc_spec s = spec;

	s.rules = reset_rules;
	return s;
}

static int is_parameter(void *arg, const struct ptc_move *m)
{
	bool *any = arg;

	assert_int_equal(m->item % 2, 0);
	*any = true;
	return 0;
}

/* Nobody is asked for what is reset, whether anybody has it or not; a first generation has all of it from outside. */
static void what_is_reset_moves_nothing(void **state)
{
	const int64_t elements = (4 * 16 + 64) * 24;
	const struct ptc_spec reset_spec = with_resets();
	struct ptc_layout *a = layout_of(&reset_spec, "tp=2"), *b = layout_of(&reset_spec, "tp=1,dp=2");
	struct ptc_device all[MAX_RANKS];
	struct ptc_allocation at = { all, 2 }, new = { 0 };
	struct ptc_place_opts place = cluster(all, 2, 1);
	static const bool lost[2] = { true, false };
	bool any = false;
	struct ptc_plan_opts opts = { .fn = is_parameter, .arg = &any, .keep = true };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_change *c = NULL;
	struct ptc_plan *p = NULL;
	int64_t gap = -1;

	assert_int_equal(ptc_change_new(a, b, &c, NULL), 0);
	assert_int_equal(ptc_plan_stream(c, &at, &at, 2, NULL, &opts, &p, NULL), 0);
	assert_true(any && p->between_nodes == elements * 2 && p->in_place == elements * 2);
	assert_int_equal(p->reset, 2 * elements * 4);
	for (int n = 0; n < 2; n++) /* half of the old state, half of the parameters, new moments */
		assert_int_equal(p->peak_bytes[n], elements * (2 + 4) / 2 + elements * 2 / 2 + elements * 4);
	ptc_plan_free(p);
	assert_int_equal(ptc_plan_stream(c, &at, &at, 2, lost, &opts, &p, &err), PTC_ELOST);
	assert_non_null(strstr(err.text, "tensor \"h.0.w\""));
	ptc_change_free(c);
	assert_int_equal(ptc_change_new(NULL, b, &c, NULL), 0);
	assert_int_equal(ptc_plan_stream(c, &at, &at, 2, NULL, &opts, &p, NULL), 0);
	assert_true(p->reset == 0 && p->in_bytes[0] == elements * 6 && p->in_bytes[1] == elements * 6);
	ptc_plan_free(p);
	ptc_change_free(c);
	reset_rules[1].carry = PTC_CARRY_RESET;
	assert_int_equal(ptc_change_new(a, b, &c, NULL), 0);
	assert_int_equal(ptc_change_place(c, &at, &place, &new, &gap, NULL), 0);
	any = false;
	assert_int_equal(ptc_plan_stream(c, &at, &new, 2, lost, &opts, &p, NULL), 0);
	reset_rules[1].carry = PTC_CARRY;
	assert_true(!any && !gap && !p->nbetween && !p->nwithin && p->reset == 2 * elements * 6);
	ptc_plan_free(p);
	ptc_change_free(c);
	ptc_allocation_done(&new);
	ptc_layout_free(a);
	ptc_layout_free(b);
}

/* The same job, whose parameters are made from what is now their master. */
static struct ptc_rule derive_rules[] = {
	{ .match = "*", .splits[0].axis = PTC_AXIS_TP, .carry = PTC_CARRY_DERIVE, .master = "exp_avg" },
};
static const struct ptc_spec derive_spec = {
	.name = "job",
	.tensors = tensors,
	.ntensors = 5,
	.fields = fields,
	.nfields = 1,
	.rules = derive_rules,
	.nrules = 1,
};

static int is_master(void *arg, const struct ptc_move *m)
{
	bool *any = arg;

	assert_true(m->item % 2 == 1 || m->kind == PTC_MOVE_KEEP || m->kind == PTC_MOVE_WITHIN);
	*any |= m->item % 2 == 1;
	return 0;
}

/* What nodes lack of a parameter enters none: its master does. What they have stays; nothing is lost with the last
 * copy. */
static void what_is_derived_enters_no_node(void **state)
{
	const int64_t elements = (4 * 16 + 64) * 24;
	static const bool lost[2] = { true, false };
	struct ptc_layout *a = layout_of(&derive_spec, "tp=2"), *b = layout_of(&derive_spec, "tp=1,dp=2");
	struct ptc_layout *zero = layout_of(&derive_spec, "tp=1,dp=2,zero=1");
	struct ptc_device all[MAX_RANKS];
	struct ptc_allocation at = { all, 2 };
	struct ptc_plan_opts opts = { .fn = is_master };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_change *c = NULL;
	struct ptc_plan *p = NULL;
	bool any = false;

	opts.arg = &any;
	cluster(all, 2, 1);
	assert_int_equal(ptc_change_new(a, b, &c, NULL), 0);
	assert_int_equal(ptc_plan_stream(c, &at, &at, 2, NULL, &opts, &p, NULL), 0);
	assert_true(any && p->between_nodes == elements * 4 && p->in_place == elements * (2 + 4));
	assert_int_equal(p->derived, elements * 2);
	for (int n = 0; n < 2; n++) /* half of the old state, half of the masters, half of the parameters */
		assert_int_equal(p->peak_bytes[n], elements * (2 + 4) / 2 + elements * (2 + 4) / 2);
	ptc_plan_free(p);
	assert_int_equal(ptc_plan_stream(c, &at, &at, 2, lost, &opts, &p, &err), PTC_ELOST);
	assert_non_null(strstr(err.text, "tensor \"h.0.w:exp_avg\""));
	ptc_change_free(c);
	assert_int_equal(ptc_change_new(NULL, b, &c, NULL), 0); /* a first generation has all of them from outside */
	assert_int_equal(ptc_plan_stream(c, &at, &at, 2, NULL, &opts, &p, NULL), 0);
	assert_true(!p->derived && p->in_bytes[0] == elements * 6);
	ptc_plan_free(p);
	ptc_change_free(c);
	assert_false(
		ptc_layout_derives(zero, 0)); /* ranks have half of the masters, and whole parameters: these move */
	assert_int_equal(ptc_change_new(a, zero, &c, NULL), 0);
	opts.fn = NULL;
	assert_int_equal(ptc_plan_stream(c, &at, &at, 2, NULL, &opts, &p, NULL), 0);
	assert_true(!p->derived && p->between_nodes == elements * 2);
	ptc_plan_free(p);
	ptc_change_free(c);
	ptc_layout_free(a);
	ptc_layout_free(b);
	ptc_layout_free(zero);
}

/* Everything once, with constraints; the first failure's code. */
static int whole_run(const struct ptc_spec *s)
{
	struct ptc_layout *a = NULL, *b = NULL;
	struct ptc_device all[MAX_RANKS];
	struct ptc_place_opts opts = cluster(all, 8, 2);
	struct ptc_allocation old = { all, 16 }, new = { 0 };
	static const bool pinned[8] = { false, true, false, false, false, false, true };
	static const uint32_t racks[8] = { 0, 0, 0, 0, 1, 1, 1, 1 };
	static struct turns turns;
	struct ptc_plan_opts keep = { .fn = NULL, .keep = true };
	struct ptc_config ca, cb;
	struct ptc_change *c = NULL;
	struct ptc_plan *p = NULL;
	int64_t gap;
	struct ptc_groups groups;
	int rc;

	memset(&turns, 0, sizeof turns);
	assert_int_equal(ptc_config_parse("tp=2,pp=2,dp=4,zero=1", &ca, NULL), 0);
	assert_int_equal(ptc_config_parse("tp=4,pp=1,dp=3,zero=1", &cb, NULL), 0);
	opts.pinned = pinned;
	opts.racks = racks;
	rc = ptc_layout_new(s, &ca, &a, NULL);
	if (!rc)
		rc = ptc_layout_new(s, &cb, &b, NULL);
	if (!rc)
		rc = ptc_change_new(a, b, &c, NULL);
	if (!rc)
		rc = ptc_change_place(c, &old, &opts, &new, &gap, NULL);
	if (!rc)
		rc = ptc_place_groups(&cb, &new, &opts, &groups, NULL);
	if (!rc)
		rc = ptc_plan_stream(c, &old, &new, 8, NULL, &keep, &p, NULL);
	ptc_plan_free(p);
	ptc_change_free(c);
	ptc_allocation_done(&new);
	ptc_layout_free(a);
	ptc_layout_free(b);
	return rc;
}

static void every_allocation_fails_in_turn(void **state)
{
	const struct ptc_spec reset_spec = with_resets();
	int64_t live = ptc_alloc_live();
	uint64_t failed = 0;
	int rc = PTC_ENOMEM;

	for (uint64_t n = 1; rc; n++) {
		ptc_alloc_fail_at(n);
		rc = whole_run(&spec);
		if (rc == 0)
			rc = whole_run(&reset_spec);
		if (rc == 0)
			rc = whole_run(&derive_spec);
		ptc_alloc_fail_at(0);
		assert_true(rc == 0 || rc == PTC_ENOMEM);
		assert_int_equal(ptc_alloc_live(), live);
		failed += rc != 0;
	}
	print_message("%llu allocations failed in turn\n", (unsigned long long)failed);
	assert_true(failed > 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(changes_that_move_nothing),
		cmocka_unit_test(decided_nodes),
		cmocka_unit_test(whole_replicas_are_released_for_nothing),
		cmocka_unit_test(other_states_are_refused),
		cmocka_unit_test(turns_senders_and_time),
		cmocka_unit_test(nodes_cut_alike),
		cmocka_unit_test(what_is_reset_moves_nothing),
		cmocka_unit_test(what_is_derived_enters_no_node),
		cmocka_unit_test(every_allocation_fails_in_turn),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
