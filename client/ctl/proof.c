// SPDX-License-Identifier: Apache-2.0
/* ptcctl dataset proof: what a job's state has consumed, sample by sample, and that it was each once an epoch. The ledger
 * (formats/ledger.h) says which steps had which positions; which samples these are, and which rank had them, is computed
 * again (order/order.h) and counted. Where ranks divided by length, only they know which had which: by step then.
 *
 * Happy path: entries join up, every slot of every step is looked at, each finished epoch is counted in a bit per sample.
 * Failure modes: PTC_ECORRUPT when something was missed, had twice, or does not join up; PTC_EINVAL where a cursor's tag
 * does not say its order; nothing to prove is an error too. */
#include "client/ctl/verbs.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "formats/json.h"
#include "formats/ledger.h"
#include "order/order.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define MAX_BITS                                                                                                       \
	(UINT64_C(1) << 32) /* 512 MiB; above that, and for what is left of them, by the inverse of the order */

static const struct ctl_option options[] = {
	{ "cursor", "NAME", "only this one, where a job has several" },
	{ "steps", "A-B", "print which samples each rank had in these steps, instead" },
};

struct proof {
	const struct ptc_ledger *ledger;
	const char *cursor;
	struct ptc_ledger_order how; /* of the entry at hand */
	struct ptc_order order;
	uint64_t since, position; /* looked at so far; epochs from the first whole one after since are counted */
	uint64_t epochs, samples; /* found whole; counted in the one at hand */
	unsigned char *seen;      /* a bit per sample; NULL: too many */
	json_t *problems;
	uint64_t wrong;
};

static void wrong(struct proof *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void wrong(struct proof *p, const char *fmt, ...)
{
	struct ptc_error e = PTC_ERROR_INIT;
	va_list ap;

	va_start(ap, fmt);
	ptc_error_vset(&e, PTC_ECORRUPT, fmt, ap);
	va_end(ap);
	if (p->wrong++ < 100)
		json_array_append_new(p->problems, json_string(e.text));
}

static bool make_order(const struct ptc_ledger_order *how, struct ptc_order *ret)
{
	if (how->sequential)
		return ptc_order_init_sequential(ret, how->n);
	return how->block ? ptc_order_init_blocks(ret, how->n, how->seed, how->block)
			  : ptc_order_init(ret, how->n, how->seed);
}

/* The order and the division of an entry; by length: as one rank that has all, for nobody but the ranks knows the lengths. */
static int take_entry(const struct ptc_ledger_entry *e, struct ptc_ledger_order *ret_how, struct ptc_order *ret_order,
		      struct ptc_batch *ret_batch, struct ptc_error *err)
{
	if (!ptc_ledger_tag(e->tag, ret_how) || !make_order(ret_how, ret_order))
		return ptc_error_set(err, PTC_EINVAL,
				     "cursor %s: its tag \"%s\" does not say its order as \"n=N,seed=S\" does",
				     e->cursor, e->tag);
	if (!ptc_batch_init(ret_batch, e->batch, e->micro, e->dp) || e->batch > MAX_BITS)
		return ptc_error_set(err, PTC_EINVAL,
				     "cursor %s, generation %" PRIu64 ": neither its tag \"%s\" nor the configuration "
				     "says the global and the micro batch",
				     e->cursor, e->generation, e->tag);
	if (ret_how->by_length)
		ptc_batch_init(ret_batch, e->batch, 1, 1);
	return 0;
}

/* One sample more, at p->position. */
static void count(struct proof *p)
{
	uint64_t n = p->how.n, epoch = p->position / n, i = p->position % n, x = ptc_order_at(&p->order, epoch, i);
	bool whole = epoch * n >= p->since;

	p->position++;
	if (!whole)
		return;
	if (p->seen ? p->seen[x / 8] >> x % 8 & 1 : ptc_order_find(&p->order, epoch, x) != i)
		wrong(p, "cursor %s: epoch %" PRIu64 " has sample %" PRIu64 " twice", p->cursor, epoch, x);
	else
		p->samples++;
	if (p->seen)
		p->seen[x / 8] |= (unsigned char)(1u << x % 8);
	if (i + 1 < n)
		return;
	if (p->samples != n)
		wrong(p, "cursor %s: epoch %" PRIu64 " has %" PRIu64 " of its %" PRIu64 " samples", p->cursor, epoch,
		      p->samples, n);
	p->epochs++;
	p->samples = 0;
	if (p->seen)
		memset(p->seen, 0, n / 8 + 1);
}

/* Every slot of every rank: each sample of the batch is real once. All steps of an entry are divided alike. */
static int check_division(struct proof *p, const struct ptc_ledger_entry *e, const struct ptc_batch *b,
			  struct ptc_error *err)
{
	ptc_auto_free unsigned char *had = ptc_calloc(1, b->global / 8 + 1);
	uint64_t offset, real = 0;

	if (!had)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	for (uint64_t m = 0; m < b->n_micro; m++)
		for (uint32_t rank = 0; rank < b->dp; rank++)
			for (uint32_t k = 0; k < b->micro; k++) {
				if (!ptc_batch_slot(b, m, rank, k, &offset))
					continue;
				real += !(had[offset / 8] >> offset % 8 & 1);
				had[offset / 8] |= (unsigned char)(1u << offset % 8);
			}
	if (real != b->global)
		wrong(p, "cursor %s, generation %" PRIu64 ": ranks had %" PRIu64 " of %" PRIu64 " samples of a step",
		      p->cursor, e->generation, real, b->global);
	return 0;
}

static void check_joins(struct proof *p, const struct ptc_ledger_entry *before, const struct ptc_ledger_entry *e)
{
	uint64_t steps = e->end_step - e->first_step, had = e->end - e->first;

	if (before && (before->end != e->first || before->end_step != e->first_step))
		wrong(p,
		      "cursor %s: generation %" PRIu64 " begins at position %" PRIu64
		      ", the one before ends at %" PRIu64,
		      p->cursor, e->generation, e->first, before->end);
	if (before && strncmp(before->tag, e->tag, PTC_MAX(strcspn(before->tag, ";"), strcspn(e->tag, ";"))))
		wrong(p, "cursor %s: generation %" PRIu64 " has the order \"%s\", before it was \"%s\"", p->cursor,
		      e->generation, e->tag, before->tag);
	if (e->end_step < e->first_step || e->end < e->first || steps != had / e->batch || had % e->batch)
		wrong(p,
		      "cursor %s, generation %" PRIu64 ": steps %" PRIu64 " to %" PRIu64 " of %" PRIu64
		      " samples are not positions %" PRIu64 " to %" PRIu64,
		      p->cursor, e->generation, e->first_step, e->end_step, e->batch, e->first, e->end);
}

static int check_entry(struct proof *p, const struct ptc_ledger_entry *before, const struct ptc_ledger_entry *e,
		       struct ptc_error *err)
{
	struct ptc_batch batch;
	int rc = take_entry(e, &p->how, &p->order, &batch, err);

	if (!rc && !before) {
		p->position = p->since = e->first;
		p->seen = p->how.n <= MAX_BITS ? ptc_calloc(1, p->how.n / 8 + 1) : NULL;
		if (!p->seen && p->how.n <= MAX_BITS)
			rc = ptc_error_set(err, PTC_ENOMEM, "out of memory for a bit per sample");
	}
	if (rc)
		return rc;
	check_joins(p, before, e);
	if (p->wrong)
		return 0; /* what does not join up is not counted */
	rc = check_division(p, e, &batch, err);
	while (!rc && p->position < e->end && !ctl_interrupted())
		count(p);
	return rc;
}

static bool by_length(const json_t *tag)
{
	struct ptc_ledger_order how;

	return ptc_ledger_tag(json_string_value(tag), &how) && how.by_length;
}

/* Of all entries, as the daemon gave them, this cursor's. */
static json_t *proof_json(const struct proof *p, const json_t *all)
{
	json_t *entries = json_array(), *row;
	size_t i;

	json_array_foreach(all, i, row) {
		if (strcmp(json_string_value(json_object_get(row, "cursor")), p->cursor) != 0)
			continue;
		row = json_copy(row);
		json_object_set_new(row, "by_length", json_boolean(by_length(json_object_get(row, "tag"))));
		json_array_append_new(entries, row);
	}
	return json_pack("{s:s, s:I, s:I, s:I, s:b, s:I, s:I, s:I, s:b, s:O, s:o}", "cursor", p->cursor, "samples",
			 (json_int_t)p->how.n, "seed", (json_int_t)p->how.seed, "block", (json_int_t)p->how.block,
			 "sequential", (int)p->how.sequential, "since", (json_int_t)p->since, "position",
			 (json_int_t)p->position, "epochs_finished", (json_int_t)p->epochs, "exactly_once",
			 (int)!p->wrong, "problems", p->problems, "generations", entries);
}

static void print_proof(const struct proof *p)
{
	uint64_t n = p->how.n;
	bool starred = false;
	json_t *line;
	size_t i;

	printf("cursor %s: %" PRIu64 " samples, seed %" PRIu64 "%s\n", p->cursor, n, p->how.seed,
	       p->how.sequential ? ", not shuffled"
	       : p->how.block    ? ", shuffled within blocks"
				 : "");
	printf("%-12s %-16s %-20s %4s %12s %12s\n", "GENERATION", "STEPS", "POSITIONS", "DP", "MICRO BATCH",
	       "GLOBAL BATCH");
	for (i = 0; i < p->ledger->n; i++) {
		const struct ptc_ledger_entry *e = &p->ledger->v[i];
		struct ptc_ledger_order how = { 0 };
		char steps[48], at[48];

		if (strcmp(e->cursor, p->cursor) != 0 || e->end == e->first)
			continue;
		ptc_ledger_tag(e->tag, &how);
		starred = starred || how.by_length;
		snprintf(steps, sizeof steps, "%" PRIu64 "-%" PRIu64, e->first_step, e->end_step - 1);
		snprintf(at, sizeof at, "%" PRIu64 "-%" PRIu64, e->first, e->end - 1);
		printf("%-12" PRIu64 " %-16s %-20s %4" PRIu32 " %12" PRIu32 " %12" PRIu64 "%s\n", e->generation, steps,
		       at, e->dp, e->micro, e->batch, how.by_length ? " *" : "");
	}
	if (starred)
		printf("* divided by the samples' lengths: which rank had which sample is not recorded, but which each "
		       "step had\n");
	if (p->since)
		printf("what came before position %" PRIu64 " is not recorded any more\n", p->since);
	json_array_foreach(p->problems, i, line)
		printf("%s\n", json_string_value(line));
	if (!p->wrong)
		printf("%" PRIu64 " epoch%s finished, each sample once in each; %" PRIu64 " of %" PRIu64
		       " samples of the next\n",
		       p->epochs, p->epochs == 1 ? "" : "s", p->position % n, n);
}

static int prove(const struct ctl *c, const struct ptc_ledger *ledger, const char *cursor, const json_t *all,
		 json_t *list, struct ptc_error *err)
{
	struct proof p = { .ledger = ledger, .cursor = cursor, .problems = json_array() };
	const struct ptc_ledger_entry *before = NULL;
	int rc = 0;

	for (size_t i = 0; i < ledger->n && !rc; i++) {
		const struct ptc_ledger_entry *e = &ledger->v[i];

		if (strcmp(e->cursor, cursor) != 0)
			continue;
		rc = check_entry(&p, before, e, err);
		before = e;
	}
	if (!rc && ctl_interrupted())
		rc = ptc_error_set(err, PTC_ECANCELED, "interrupted");
	if (!rc && c->json)
		json_array_append_new(list, proof_json(&p, all));
	else if (!rc)
		print_proof(&p);
	if (!rc && p.wrong)
		rc = ptc_error_set(err, PTC_ECORRUPT, "%s", json_string_value(json_array_get(p.problems, 0)));
	ptc_free(p.seen);
	json_decref(p.problems);
	return rc;
}

/* ---- which samples ---- */

/* A rank's real samples of one step, in the order it had them (all that the step has, in the global order, where that is not
 * known); printed as they come, for there may be many. */
static void print_rank(const struct ctl *c, const struct ptc_ledger_entry *e, const struct ptc_batch *b,
		       const struct ptc_order *o, uint64_t step, uint32_t rank, bool known)
{
	uint64_t begin = e->first + (step - e->first_step) * b->global, offset;
	const char *comma = "";
	char name[24];

	if (known)
		snprintf(name, sizeof name, "%" PRIu32, rank);
	else
		snprintf(name, sizeof name, "%s", c->json ? "null" : "not known");
	printf(c->json ? "{\"step\":%" PRIu64 ",\"generation\":%" PRIu64 ",\"dp_rank\":%s,\"samples\":["
		       : "step %" PRIu64 " generation %" PRIu64 " dp rank %s: ",
	       step, e->generation, name);
	for (uint64_t m = 0; m < b->n_micro; m++)
		for (uint32_t k = 0; k < b->micro; k++) {
			uint64_t at;

			if (!ptc_batch_slot(b, m, rank, k, &offset))
				continue;
			at = begin + offset;
			printf("%s%" PRIu64, comma, ptc_order_at(o, at / o->nsamples, at % o->nsamples));
			comma = c->json ? "," : " ";
		}
	puts(c->json ? "]}" : "");
}

static int print_steps(const struct ctl *c, const struct ptc_ledger *l, const char *cursor, const uint64_t steps[2],
		       struct ptc_error *err)
{
	uint64_t printed = 0;

	for (size_t i = 0; i < l->n; i++) {
		const struct ptc_ledger_entry *e = &l->v[i];
		struct ptc_ledger_order how;
		struct ptc_order order;
		struct ptc_batch batch;
		int rc = strcmp(e->cursor, cursor) ? 0 : take_entry(e, &how, &order, &batch, err);

		if (rc)
			return rc;
		if (strcmp(e->cursor, cursor) != 0)
			continue;
		for (uint64_t s = PTC_MAX(e->first_step, steps[0]); s < e->end_step && s <= steps[1]; s++, printed++)
			for (uint32_t rank = 0; rank < batch.dp && !ctl_interrupted(); rank++)
				print_rank(c, e, &batch, &order, s, rank, !how.by_length);
	}
	return printed ? 0
		       : ptc_error_set(err, PTC_ENOTFOUND, "cursor %s: none of these steps is in the job's state",
				       cursor);
}

/* "3", "3-9". */
static int parse_steps(const char *text, uint64_t steps[2], struct ptc_error *err)
{
	ptc_auto_free char *first = ptc_strndup(text, strcspn(text, "-"));
	const char *dash = strchr(text, '-');
	int rc = first ? ctl_number("--steps", first, 0, UINT64_MAX, &steps[0], err)
		       : ptc_error_set(err, PTC_ENOMEM, "out of memory");

	steps[1] = steps[0];
	if (!rc && dash)
		rc = ctl_number("--steps", dash + 1, 0, UINT64_MAX, &steps[1], err);
	if (!rc && steps[1] < steps[0])
		rc = ctl_usage(err, "--steps is A-B, A the first and B the last, not \"%.60s\"", text);
	return rc;
}

static bool is_first(const struct ptc_ledger *l, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (strcmp(l->v[k].cursor, l->v[i].cursor) == 0)
			return false;
	return true;
}

static int each_cursor(struct ctl *c, const struct ptc_ledger *l, const uint64_t steps[2], const json_t *all,
		       json_t *list, struct ptc_error *err)
{
	const char *only = ctl_option(c, "cursor"), *job = c->args[0];
	int rc = 0;
	bool any = false;

	for (size_t i = 0; i < l->n && !rc; i++) {
		if (!is_first(l, i) || (only && strcmp(only, l->v[i].cursor) != 0))
			continue;
		any = true;
		rc = ctl_option(c, "steps") ? print_steps(c, l, l->v[i].cursor, steps, err)
					    : prove(c, l, l->v[i].cursor, all, list, err);
	}
	if (!any)
		rc = ptc_error_set(
			err, PTC_ENOTFOUND,
			"the state of job \"%s\" has no cursor%s%s: no snapshot of running ranks that set one", job,
			only ? " " : "", only ? only : "");
	return rc;
}

static int show(struct ctl *c, const json_t *doc, const uint64_t steps[2], struct ptc_error *err)
{
	json_t *ledger = json_object_get(doc, "ledger"), *list = json_array(), *root;
	struct ptc_ledger l = { 0 };
	int rc = ptc_ledger_from_json(ledger, &l);

	if (rc)
		rc = ptc_error_set(err, rc == PTC_ENOMEM ? rc : PTC_EPEER, "the daemon's answer is no ledger");
	else
		rc = each_cursor(c, &l, steps, json_object_get(ledger, "entries"), list, err);
	/* What is wrong is in the document too. */
	if (c->json && json_array_size(list)) {
		ptc_auto_free char *text = NULL;

		root = json_pack("{s:i, s:O, s:O, s:O}", "version", 1, "job", json_object_get(doc, "job"), "step",
				 json_object_get(doc, "step"), "cursors", list);
		text = root ? ptc_json_text(root) : NULL;
		json_decref(root);
		if (text)
			puts(text);
	}
	json_decref(list);
	ptc_ledger_done(&l);
	return rc;
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *text = ctl_option(c, "steps");
	uint64_t steps[2] = { 0 };
	json_t *doc = NULL;
	char *json = NULL;
	int rc = text ? parse_steps(text, steps, err) : 0;

	if (!rc)
		rc = ctl_connect(c, err);
	if (!rc)
		rc = ptc_admin_data(c->admin, c->args[0], &json, err);
	if (!rc)
		rc = ptc_json_load("the daemon's answer", json, strlen(json), &doc, err);
	ctl_catch_signals();
	if (!rc)
		rc = show(c, doc, steps, err);
	json_decref(doc);
	ptc_admin_free(json);
	return rc;
}

const struct ctl_verb ctl_dataset_proof = {
	.name = "dataset proof",
	.args = "JOB",
	.about = "Show what a job's state has consumed, and that it was each sample once an epoch",
	.help = "Of each generation: its steps, the positions of the order they consumed, and how ranks divided them. "
		"Each finished\nepoch is counted sample by sample. Steps that were trained and lost again are in no "
		"state, and not counted.\nWhere ranks divided by length (*), which rank had which sample is not "
		"recorded, but which each "
		"step had.\nWith --steps and --format json, a line for each rank of each step.\n",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.run = run,
};
