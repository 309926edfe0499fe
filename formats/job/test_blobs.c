/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of ranks' blobs in a switch: each state when ranks go and come,
 * what is said of it, what the new generation is given, and every allocation
 * failing in turn; random switches against counting by coordinates. */
#include "base/alloc.h"
#include "base/limits.h"
#include "formats/job/blob_rules.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct ptc_config config_of(const char *text)
{
	struct ptc_config c;

	assert_int_equal(ptc_config_parse(text, &c, NULL), 0);
	return c;
}

static char *text_of(const char *text)
{
	return (char *)(uintptr_t)text;
}

/* Each rank gives rng and seen (its own number), rank 0 the job's sched, and all ranks of tp 1 `part`. */
static void fill(struct ptc_state *s, const char *config)
{
	struct ptc_config c = config_of(config);
	struct ptc_state_cursor cursor = { text_of("train"), text_of("n=7"), 12, 0 };
	uint32_t world = 0;

	assert_int_equal(ptc_config_world(&c, &world, NULL), 0);
	for (uint32_t r = 0; r < world; r++) {
		char own[16];
		struct ptc_state_blob v[] = {
			{ text_of("rng"), PTC_STATE_RANK, own, (size_t)snprintf(own, sizeof own, "rng of %u", r) },
			{ text_of("seen"), PTC_STATE_RANK, own, 1 },
			{ text_of("sched"), PTC_STATE_JOB, own, 2 },
			{ text_of("part"), PTC_STATE_RANK, own, 3 },
		};

		assert_int_equal(ptc_state_add(s, &c, r, v, 3 + (ptc_config_coords(&c, r).tp == 1), &cursor, 1, NULL),
				 0);
	}
}

/* "rng=carry seen=reset" */
static void parse(const char *text, struct ptc_blob_rules *ret)
{
	char copy[256];

	*ret = (struct ptc_blob_rules){ .v = ptc_calloc(8, sizeof *ret->v) };
	snprintf(copy, sizeof copy, "%s", text);
	for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
		char *state = strchr(word, '=');

		*state++ = '\0';
		ret->v[ret->n].match = ptc_strdup(word);
		for (enum ptc_blob_fate f = PTC_FATE_CARRY; f <= PTC_FATE_REFUSE; f++)
			if (!strcmp(ptc_blob_fate_name(f), state))
				ret->v[ret->n].fate = f;
		assert_true(ret->v[ret->n++].fate);
	}
}

struct tried {
	struct ptc_blobs_review review;
	bool changed;
	struct ptc_state state;
	int rc;
	struct ptc_error err;
};

static void try_on(struct tried *t, const struct ptc_state *s, const char *rules, const char *from, const char *to)
{
	struct ptc_config a = config_of(from), b = config_of(to);
	struct ptc_blob_rules r;
	struct ptc_blobs_switch sw = { &r, s, &a, &b };

	*t = (struct tried){ 0 };
	parse(rules, &r);
	t->rc = ptc_blobs_apply(&sw, &t->review, &t->changed, &t->state, &t->err);
	ptc_blob_rules_done(&r);
}

static void try(struct tried *t, const char *rules, const char *from, const char *to)
{
	struct ptc_state s = { 0 };

	fill(&s, from);
	try_on(t, &s, rules, from, to);
	ptc_state_done(&s);
}

static void said(const char *rules, const char *from, const char *to, const char *text)
{
	struct tried t;

	try(&t, rules, from, to);
	if (t.rc)
		fail_msg("%s", t.err.text);
	assert_string_equal(t.review.text, text);
	ptc_state_done(&t.state);
}

static void refused(const char *rules, const char *from, const char *to, const char *text)
{
	int64_t live = ptc_alloc_live();
	struct tried t;

	try(&t, rules, from, to);
	assert_int_equal(t.rc, PTC_ESTATE);
	if (!strstr(t.err.text, text))
		fail_msg("%s", t.err.text);
	assert_int_equal(ptc_alloc_live(), live);
}

/* As fill(), and `agree` and `apart` of scope PTC_STATE_TP: the first is the same in a tensor-parallel group, the
 * second in none. */
static void fill_groups(struct ptc_state *s, const char *config)
{
	struct ptc_config c = config_of(config);
	uint32_t world = 0;

	assert_int_equal(ptc_config_world(&c, &world, NULL), 0);
	for (uint32_t r = 0; r < world; r++) {
		struct ptc_coords at = ptc_config_coords(&c, r);
		char same[64], own[16];
		struct ptc_state_blob v[] = {
			{ text_of("agree"), PTC_STATE_TP, same,
			  (size_t)snprintf(same, sizeof same, "pp %u dp %u cp %u", at.pp, at.dp, at.cp) },
			{ text_of("apart"), PTC_STATE_TP, own, (size_t)snprintf(own, sizeof own, "rank %u", r) },
			{ text_of("rng"), PTC_STATE_RANK, own, 4 },
		};

		assert_int_equal(ptc_state_add(s, &c, r, v, 3, NULL, 0, NULL), 0);
	}
}

/* What the rank with these coordinates is given of this name; "": nothing. */
static const char *given(const struct ptc_state *s, struct ptc_coords at, const char *name)
{
	static char text[64];
	struct ptc_state_blob *v = NULL;
	size_t n = 0;

	text[0] = '\0';
	assert_int_equal(ptc_state_blobs(s, &at, &v, &n, NULL), 0);
	for (size_t i = 0; i < n; i++)
		if (!strcmp(v[i].name, name))
			snprintf(text, sizeof text, "%.*s", (int)v[i].len, (const char *)v[i].data);
	ptc_free(v);
	return text;
}

static void no_rule(void **state)
{
	struct tried t;

	said("", "tp=2,dp=2", "tp=2,dp=2", "");
	said("", "tp=2,dp=2", "tp=2,dp=2,order=pp-dp-ep-cp-tp", "");
	said("", "dp=4", "dp=2", "4 per-rank blobs of ranks that are gone (rng, seen) are not carried");
	said("", "dp=2", "dp=3", "1 new rank has none (rng, seen)");
	said("x=reset", "dp=2", "tp=2",
	     "2 per-rank blobs of ranks that are gone (rng, seen) are not carried; 1 new rank has none (rng, seen)");
	said("", "tp=2", "tp=1", "3 per-rank blobs of ranks that are gone (part, rng, seen) are not carried");
	said("", "tp=2", "tp=2,pp=2", "2 new ranks have none (part, rng, seen)");
	try(&t, "*=carry", "tp=2,dp=2", "tp=2,dp=2,order=pp-dp-ep-cp-tp");
	assert_int_equal(t.rc, 0);
	assert_false(t.changed);
	try(&t, "", "dp=4", "dp=1"); /* what has no place stays in the state document */
	assert_false(t.changed);
	assert_int_equal(t.review.gone, 6);
}

static void carried(void **state)
{
	said("rng=carry", "dp=2", "dp=2", "");
	said("sched=carry", "dp=4", "dp=1", "6 per-rank blobs of ranks that are gone (rng, seen) are not carried");
	refused("rng=carry", "dp=4", "dp=2",
		"blob \"rng\" must be carried (rule \"rng\"), but ranks 2, 3 with one would be gone; choose a "
		"configuration with the same coordinates, or another state in \"blobs\"");
	refused("r[n]?*=carry", "dp=2", "dp=3",
		"(rule \"r[n]?*\"), but rank 2 of the new configuration would have none");
	refused("*=carry", "dp=16", "dp=1", "ranks 1, 2, 3, 4, 5, 6 and 9 more with one would be gone");
	refused("part=carry", "tp=2", "tp=2,dp=2", "blob \"part\" must be carried (rule \"part\"), but ranks 2, 3 of");
	refused("x=carry rng=carry", "dp=2", "tp=2", "rank 1 with one would be gone");
}

static void replicated(void **state)
{
	struct ptc_coords at = { 0 };
	struct tried t;

	try(&t, "rng=replicate part=replicate", "tp=2", "tp=2,dp=2");
	assert_int_equal(t.rc, 0);
	assert_string_equal(t.review.text,
			    "2 new ranks have none (seen); 5 per-rank blobs are the lowest rank's (part, rng)");
	assert_true(t.changed);
	assert_int_equal(t.state.nranks, 4);
	assert_int_equal(t.state.ncursors, 1);
	assert_string_equal(given(&t.state, at, "part"),
			    "rng"); /* tp 1 has the lowest: rank 0 had none before either */
	assert_string_equal(given(&t.state, at, "sched"), "rn");
	at = (struct ptc_coords){ .tp = 1 };
	assert_string_equal(given(&t.state, at, "rng"), "rng of 1");
	at.dp = 1;
	assert_string_equal(given(&t.state, at, "rng"), "rng of 0");
	assert_string_equal(given(&t.state, at, "part"), "rng");
	assert_string_equal(given(&t.state, at, "seen"), "");
	ptc_state_done(&t.state);
	try(&t, "rng=replicate", "dp=3", "dp=1");
	assert_string_equal(t.review.text, "4 per-rank blobs of ranks that are gone (rng, seen) are not carried");
	assert_false(t.changed);
}

static void said_of_groups(const char *rules, const char *from, const char *to, const char *text)
{
	struct ptc_state s = { 0 };
	struct tried t;

	fill_groups(&s, from);
	try_on(&t, &s, rules, from, to);
	assert_string_equal(t.rc ? t.err.text : t.review.text, text);
	assert_int_equal(t.rc, strstr(text, "must be carried") ? PTC_ESTATE : 0);
	ptc_state_done(&t.state);
	ptc_state_done(&s);
}

/* What a tensor-parallel group has in common is that of its new ranks too, and lives on in any of them. */
static void groups(void **state)
{
	struct ptc_coords at = { .tp = 1 };
	struct ptc_state s = { 0 };
	struct tried t;

	said_of_groups("", "tp=2,dp=2", "tp=2,dp=2,order=pp-dp-ep-cp-tp", "");
	said_of_groups("", "tp=1", "tp=2", /* one rank's is nobody's apart */
		       "1 new rank has none (rng); 2 per-rank blobs are the tensor-parallel group's (agree, apart)");
	said_of_groups("", "tp=2", "tp=4",
		       "2 new ranks have none (apart, rng); 2 per-rank blobs are the tensor-parallel group's (agree)");
	said_of_groups("", "tp=2", "tp=1", "2 per-rank blobs of ranks that are gone (apart, rng) are not carried");
	said_of_groups("", "tp=2,dp=2", "tp=1",
		       "8 per-rank blobs of ranks that are gone (agree, apart, rng) are not carried");
	said_of_groups("rng=reset apart=reset", "dp=2", "tp=2,dp=3",
		       "2 new ranks have none (agree); 2 per-rank blobs are the tensor-parallel group's (agree); 4 "
		       "blobs are reset "
		       "(apart, rng)");
	said_of_groups("agree=carry rng=reset apart=reset", "tp=2,pp=2", "tp=1,pp=2", "8 blobs are reset (apart, rng)");
	said_of_groups(
		"agree=carry", "tp=2,dp=2", "tp=2",
		"blob \"agree\" must be carried (rule \"agree\"), but ranks 2, 3 with one would be gone; choose a "
		"configuration with the same coordinates, or another state in \"blobs\"");
	said_of_groups("a*=carry", "tp=2", "tp=3",
		       "blob \"apart\" must be carried (rule \"a*\"), but rank 2 of the new configuration would have "
		       "none; choose a "
		       "configuration with the same coordinates, or another state in \"blobs\"");
	fill_groups(&s, "dp=2");
	try_on(&t, &s, "*=replicate", "dp=2", "tp=2,dp=3");
	assert_string_equal(t.review.text,
			    "4 per-rank blobs are the tensor-parallel group's (agree, apart); 8 per-rank blobs are the "
			    "lowest rank's (agree, apart, rng)");
	assert_string_equal(given(&t.state, at, "agree"), "pp 0 dp 0 cp 0");
	at.dp = 1;
	assert_string_equal(given(&t.state, at, "agree"), "pp 0 dp 1 cp 0");
	assert_string_equal(given(&s, at, "agree"),
			    "pp 0 dp 1 cp 0"); /* also of a state document that was left as it was */
	assert_string_equal(given(&s, at, "rng"), "");
	at.dp = 2;
	assert_string_equal(given(&t.state, at, "agree"), "pp 0 dp 0 cp 0");
	assert_string_equal(given(&s, at, "agree"), "");
	ptc_state_done(&t.state);
	ptc_state_done(&s);
}

/* A state document whose ranks are those of more than one configuration: what had no place comes back, with its own. */
static void kept(void **state)
{
	struct ptc_coords last = { .dp = 3 };
	struct tried t, back;
	char *json = NULL;
	size_t len = 0;
	struct ptc_state again = { 0 };

	try(&t, "seen=reset rng=replicate", "dp=4", "tp=2");
	assert_int_equal(t.rc, 0);
	assert_string_equal(t.review.text,
			    "3 per-rank blobs of ranks that are gone (rng) are not carried; 1 per-rank blob is "
			    "the lowest rank's (rng); 4 blobs are reset (seen)");
	assert_int_equal(t.state.nranks, 5);
	assert_int_equal(ptc_state_doc_encode(&t.state, &json, &len, NULL), 0);
	assert_int_equal(ptc_state_doc_decode(json, len, &again, NULL), 0); /* as any other */
	ptc_free(json);
	try_on(&back, &again, "seen=reset rng=replicate", "tp=2", "dp=4");
	assert_int_equal(back.rc, 0);
	assert_false(back.changed);
	assert_string_equal(given(&again, last, "rng"), "rng of 3");
	assert_string_equal(given(&again, last, "seen"), "");
	ptc_state_done(&t.state);
	ptc_state_done(&again);
}

static void reset(void **state)
{
	struct ptc_coords at = { .dp = 1 };
	struct tried t;

	try(&t, "s*=reset", "dp=2", "dp=2"); /* each generation begins without, also at the same configuration */
	assert_int_equal(t.rc, 0);
	assert_string_equal(t.review.text, "3 blobs are reset (sched, seen)");
	assert_true(t.changed);
	assert_string_equal(given(&t.state, at, "sched"), "");
	assert_string_equal(given(&t.state, at, "seen"), "");
	assert_string_equal(given(&t.state, at, "rng"), "rng of 1");
	ptc_state_done(&t.state);
	try(&t, "*=reset", "dp=2", "dp=4");
	assert_string_equal(t.review.text, "5 blobs are reset (rng, sched, seen)");
	assert_int_equal(t.state.nranks, 0);
	assert_int_equal(t.state.ncursors, 1);
	ptc_state_done(&t.state);
}

static void refuse(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_blob_rules r;
	struct ptc_state s = { 0 };

	fill(&s, "dp=2");
	parse("rng=carry sched=refuse", &r);
	assert_int_equal(ptc_blobs_check(&r, &s, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "blob \"sched\" of rank 0 must not be given (rule \"sched\": refuse)"));
	ptc_blob_rules_done(&r);
	parse("rng=carry seen=reset sched=replicate *=refuse", &r); /* the first that fits */
	assert_int_equal(ptc_blobs_check(&r, &s, NULL), 0);
	ptc_blob_rules_done(&r);
	assert_int_equal(ptc_blobs_check(&r, &s, NULL), 0);
	ptc_state_done(&s);
}

static void shadows(void **state)
{
	assert_true(ptc_blob_rule_shadows("rng", "rng"));
	assert_true(ptc_blob_rule_shadows("*", "r[0-9]*") == false); /* cannot be told */
	assert_true(ptc_blob_rule_shadows("rng*", "rng.*"));
	assert_true(ptc_blob_rule_shadows("*", "a?c"));
	assert_true(ptc_blob_rule_shadows("r[0-9]", "r[0-9]"));
	assert_false(ptc_blob_rule_shadows("*b*", "[abc]"));
	assert_false(ptc_blob_rule_shadows("a?", "a*"));
	assert_false(ptc_blob_rule_shadows("rng.*", "rng*"));
}

/* Long names are cut between characters, and many are not all said. */
static void long_names(void **state)
{
	struct ptc_config c = config_of("dp=2");
	struct ptc_state s = { 0 };
	struct ptc_state_blob v[5];
	char names[5][PTC_STATE_NAME_MAX + 1];
	struct tried t;

	for (size_t i = 0; i < 5; i++) {
		snprintf(names[i], sizeof names[i], "%zu", i);
		for (size_t k = 0; k < 63; k++)
			memcpy(names[i] + 1 + 4 * k, "\xf0\x9f\x98\x80", 5);
		v[i] = (struct ptc_state_blob){ names[i], PTC_STATE_RANK, names[i], 1 };
	}
	assert_int_equal(ptc_state_add(&s, &c, 1, v, 5, NULL, 0, NULL), 0);
	try_on(&t, &s, "", "dp=2", "tp=3");
	assert_int_equal(t.rc, 0);
	assert_non_null(strstr(t.review.text, "\x80, ...) are not carried; 2 new ranks have none (0"));
	assert_int_equal(strlen(t.review.text),
			 2 * (3 * 61 + 2 * 2 + 5) + strlen("5 per-rank blobs of ranks that are gone () are "
							   "not carried; 2 new ranks have none ()"));
	ptc_state_done(&s);
}

/* A state document that would be too large is refused before it is made. */
static void too_large(void **state)
{
	struct ptc_config c = config_of("dp=2");
	struct ptc_state s = { 0 };
	void *data = ptc_calloc(1, PTC_STATE_BLOB_BYTES);
	struct ptc_state_blob b = { text_of("rng"), PTC_STATE_RANK, data, PTC_STATE_BLOB_BYTES };
	struct tried t;

	assert_int_equal(ptc_state_add(&s, &c, 1, &b, 1, NULL, 0, NULL), 0);
	try_on(&t, &s, "*=replicate", "dp=2", "dp=1024");
	assert_int_equal(t.rc, PTC_ELIMIT);
	assert_non_null(strstr(t.err.text, "blob \"rng\": replicas of it for 1024 ranks"));
	ptc_free(data);
	ptc_state_done(&s);
}

/* ---- random switches ---- */

/* What ranks are given of their groups, and how many of them, by looking at coordinates alone. */
static void check_groups(const struct tried *t, const struct ptc_state *s, const struct ptc_config *a,
			 const struct ptc_config *b)
{
	const struct ptc_state *now = t->changed ? &t->state : s;
	uint32_t world = 0, group = 0;
	uint64_t gone = 0;

	assert_int_equal(ptc_config_world(b, &world, NULL), 0);
	for (uint32_t r = 0; r < world; r++) {
		struct ptc_coords at = ptc_config_coords(b, r);
		bool had = at.pp < a->pp && at.dp < a->dp && at.cp < a->cp, was = had && at.tp < a->tp;
		char agree[64] = "", apart[64] = "";

		if (had)
			snprintf(agree, sizeof agree, "pp %u dp %u cp %u", at.pp, at.dp, at.cp);
		if (had && (was || a->tp == 1)) {
			struct ptc_coords from = { was ? at.tp : 0, at.pp, at.dp, at.cp };

			snprintf(apart, sizeof apart, "rank %u", ptc_config_rank(a, &from));
		}
		assert_string_equal(given(now, at, "agree"), agree);
		assert_string_equal(given(now, at, "apart"), apart);
		group += had && !was ? 1 + (a->tp == 1) : 0;
	}
	assert_int_equal(ptc_config_world(a, &world, NULL), 0);
	for (uint32_t r = 0; r < world; r++) {
		struct ptc_coords at = ptc_config_coords(a, r);
		bool goes = at.pp >= b->pp || at.dp >= b->dp || at.cp >= b->cp;

		gone += goes + (goes || at.tp >= b->tp); /* agree; apart, which is reset of none */
	}
	assert_int_equal(t->review.group, group);
	assert_int_equal(t->review.gone, gone);
}

static uint64_t seed = 1;

static uint32_t below(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % n;
}

static void random_config(char *text, size_t size)
{
	snprintf(text, size, "tp=%u,pp=%u,dp=%u,cp=%u%s", 1 + below(3), 1 + below(2), 1 + below(4), 1 + below(2),
		 below(2) ? "" : ",order=pp-dp-ep-cp-tp");
}

/* Every rank of the new configuration has what the rules say, by looking at coordinates alone. */
static void check_one(const struct tried *t, const struct ptc_state *s, const struct ptc_config *a,
		      const struct ptc_config *b)
{
	const struct ptc_state *now = t->changed ? &t->state : s;
	uint32_t world = 0, without = 0, copies = 0;

	assert_int_equal(ptc_config_world(b, &world, NULL), 0);
	for (uint32_t r = 0; r < world; r++) {
		struct ptc_coords at = ptc_config_coords(b, r);
		bool was = at.tp < a->tp && at.pp < a->pp && at.dp < a->dp && at.cp < a->cp;
		char own[32] = "rng of 0", seen[32] = "";

		if (was) {
			snprintf(own, sizeof own, "rng of %u", ptc_config_rank(a, &at));
			snprintf(seen, sizeof seen, "%.1s", own);
		}
		assert_string_equal(given(now, at, "rng"), own);
		assert_string_equal(given(now, at, "seen"), seen);
		assert_string_equal(given(now, at, "sched"), "");
		without += !was;
		copies += !was;
	}
	assert_int_equal(t->review.without, without);
	assert_int_equal(t->review.replicated, copies);
	assert_int_equal(t->review.reset, 1);
}

static void switch_at_random(void (*give)(struct ptc_state *, const char *), const char *rules,
			     void (*check)(const struct tried *, const struct ptc_state *, const struct ptc_config *,
					   const struct ptc_config *))
{
	for (int i = 0; i < 500; i++) {
		char from[64], to[64];
		struct ptc_config a, b;
		struct ptc_state s = { 0 };
		struct tried t;

		random_config(from, sizeof from);
		random_config(to, sizeof to);
		a = config_of(from);
		b = config_of(to);
		give(&s, from);
		try_on(&t, &s, rules, from, to);
		if (t.rc)
			fail_msg("%s -> %s: %s", from, to, t.err.text);
		check(&t, &s, &a, &b);
		ptc_state_done(&t.state);
		ptc_state_done(&s);
	}
}

static void random_switches(void **state)
{
	switch_at_random(fill, "rng=replicate sched=reset", check_one);
}

static void random_groups(void **state)
{
	switch_at_random(fill_groups, "rng=reset", check_groups);
}

static void out_of_memory(void **state)
{
	struct ptc_state s = { 0 };
	int failures = 0, rc = PTC_ENOMEM;
	struct ptc_config a = config_of("dp=2"), b = config_of("tp=2,dp=2");
	struct ptc_blob_rules r;
	struct ptc_blobs_switch sw = { &r, &s, &a, &b };
	int64_t live;

	fill(&s, "dp=2");
	parse("rng=replicate sched=reset", &r);
	live = ptc_alloc_live();
	for (uint64_t at = 1; rc; at++, failures++) {
		struct ptc_blobs_review review;
		struct ptc_state to = { 0 };
		bool changed;

		ptc_alloc_fail_at(at);
		rc = ptc_blobs_apply(&sw, &review, &changed, &to, NULL);
		ptc_alloc_fail_at(0);
		assert_true(rc == PTC_ENOMEM || (!rc && strstr(review.text, "1 blob is reset (sched)")));
		ptc_state_done(&to);
		assert_int_equal(ptc_alloc_live(), live);
	}
	assert_true(failures > 20);
	ptc_blob_rules_done(&r);
	ptc_state_done(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_rule),       cmocka_unit_test(carried),
		cmocka_unit_test(replicated),    cmocka_unit_test(kept),
		cmocka_unit_test(reset),         cmocka_unit_test(refuse),
		cmocka_unit_test(shadows),       cmocka_unit_test(long_names),
		cmocka_unit_test(too_large),     cmocka_unit_test(random_switches),
		cmocka_unit_test(groups),        cmocka_unit_test(random_groups),
		cmocka_unit_test(out_of_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
