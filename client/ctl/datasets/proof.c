/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl dataset proof: which samples a job's ranks said that they consumed, and whether each came once an epoch. The
 * ledger (formats/dataset/ledger.h) says which positions each step had. From these, the samples and the ranks that had
 * them are computed again (client/ctl/datasets/consumed.h) and counted. If ranks divided batches by length, only they
 * know which rank had which sample: then the samples are known by step. Samples that a rollback has
 * skipped (--skip-data) came to no rank. They are named, and they count for their epoch as consumed ones do.
 *
 * Happy path: entries join up, every slot of every step is looked at, and each finished epoch is counted: with a bit
 * for each sample, or, if there are too many samples, by the inverse of the order. Each dataset of a mixture has epochs
 * of its own.
 *
 * Failure modes: PTC_ECORRUPT if a sample was missed or came twice, if entries do not join up, or if the order is not
 * that of the job's data. PTC_EINVAL if a cursor's tag does not say its order. PTC_ESTATE if no rank said anything and
 * --counted is not given: ptcd has counted steps, which does not show that ranks had the samples. The other cursors are
 * proved all the same. It is an error, too, if there is nothing to prove. */
#include "client/ctl/datasets/consumed.h"
#include "client/ctl/datasets/datasets.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

static const struct ctl_option options[] = {
	{ "cursor", "NAME", "only this cursor; default: every cursor of the job" },
	{ "steps", "A-B", "instead of the proof, print the samples of each rank in these steps" },
	{ "counted", NULL, "accept steps that only ptcd counted (global_batch samples per step)" },
};

struct part {
	uint64_t since;           /* epochs from the first whole one after as many are counted */
	uint64_t epochs, samples; /* found whole; counted in the one at hand */
	unsigned char *seen;      /* a bit per sample; NULL: too many */
};
struct proof {
	const struct ptc_ledger *ledger;
	const json_t *data;
	const char *cursor;
	struct ctl_consumed at; /* of the entry at hand */
	struct part part[PTC_MIX_MAX];
	uint64_t since, position; /* looked at so far */
	uint64_t skipped;         /* of these, samples that no rank had */
	json_t *problems;
	uint64_t wrong;
	bool counted;  /* of some steps no rank said that it had the samples */
	bool compared; /* with the job's data */
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

static void epoch_wrong(struct proof *p, uint32_t part, uint64_t epoch, const char *what, uint64_t number)
{
	const char *dataset = p->at.dataset[part];

	wrong(p, "cursor %s%s%s: epoch %" PRIu64 " has %s %" PRIu64, p->cursor, dataset ? ", dataset " : "",
	      dataset ? dataset : "", epoch, what, number);
}

/* One sample more, at p->position. */
static void count(struct proof *p)
{
	struct ptc_mix_sample at = ptc_mix_at(&p->at.mix, p->position++);
	const struct ptc_order *order = &p->at.mix.order[at.part];
	struct part *part = &p->part[at.part];
	uint64_t n = order->nsamples, epoch = at.before / n, i = at.before % n, x = at.sample;

	if (epoch * n < part->since)
		return;
	if (part->seen ? part->seen[x / 8] >> x % 8 & 1 : ptc_order_find(order, epoch, x) != i)
		epoch_wrong(p, at.part, epoch, "twice sample", x);
	else
		part->samples++;
	if (part->seen)
		part->seen[x / 8] |= (unsigned char)(1u << x % 8);
	if (i + 1 < n)
		return;
	if (part->samples != n)
		epoch_wrong(p, at.part, epoch, "not all its samples, only", part->samples);
	part->epochs++;
	part->samples = 0;
	if (part->seen)
		memset(part->seen, 0, n / 8 + 1);
}

/* Nothing is known of the samples before the first entry. */
static int begin(struct proof *p, uint64_t position, struct ptc_error *err)
{
	const struct ptc_mix *mix = &p->at.mix;

	p->position = p->since = position;
	for (uint32_t i = 0; i < mix->nparts; i++) {
		p->part[i].since = ptc_mix_count(mix, i, position);
		if (mix->nsamples > CTL_BITS_MAX)
			continue;
		p->part[i].seen = ptc_calloc(1, mix->order[i].nsamples / 8 + 1);
		if (!p->part[i].seen)
			return ptc_nomem(err);
	}
	return 0;
}

/* Every slot of every rank: each sample of the batch is real once. All steps of an entry are divided alike. */
static int check_division(struct proof *p, const struct ptc_ledger_entry *e, const struct ptc_batch *b,
			  struct ptc_error *err)
{
	ptc_auto_free unsigned char *had = ptc_calloc(1, b->global / 8 + 1);
	uint64_t offset, real = 0;

	if (!had)
		return ptc_nomem(err);
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

/* Words of a tag count also after its ';', and what was reserved is for one order. */
static bool same_order(const struct ptc_ledger_order *a, const struct ptc_ledger_order *b)
{
	return a->n == b->n && a->seed == b->seed && a->block == b->block && a->sequential == b->sequential &&
	       strcmp(a->mix, b->mix) == 0;
}

/* was: the order of the entry before. */
static void check_joins(struct proof *p, const struct ptc_ledger_entry *before, const struct ptc_ledger_order *was,
			const struct ptc_ledger_entry *e)
{
	uint64_t steps = e->end_step - e->first_step, had = e->end - e->first;

	if (before && (before->end != e->first || before->end_step != e->first_step))
		wrong(p,
		      "cursor %s: generation %" PRIu64 " begins at position %" PRIu64
		      ", the one before ends at %" PRIu64,
		      p->cursor, e->generation, e->first, before->end);
	if (before && (!same_order(was, &p->at.how) ||
		       strncmp(before->tag, e->tag, PTC_MAX(strcspn(before->tag, ";"), strcspn(e->tag, ";")))))
		wrong(p, "cursor %s: generation %" PRIu64 " has the order \"%s\", before it was \"%s\"", p->cursor,
		      e->generation, e->tag, before->tag);
	if (ptc_ledger_skipped(e) && (steps || e->end < e->first))
		wrong(p,
		      "cursor %s, generation %" PRIu64 ": positions %" PRIu64 " to %" PRIu64
		      " are skipped in steps %" PRIu64 " to %" PRIu64,
		      p->cursor, e->generation, e->first, e->end, e->first_step, e->end_step);
	if (ptc_ledger_skipped(e))
		return;
	if (e->end_step < e->first_step || e->end < e->first || steps != had / e->batch || had % e->batch)
		wrong(p,
		      "cursor %s, generation %" PRIu64 ": steps %" PRIu64 " to %" PRIu64 " of %" PRIu64
		      " samples are not positions %" PRIu64 " to %" PRIu64,
		      p->cursor, e->generation, e->first_step, e->end_step, e->batch, e->first, e->end);
}

static int check_entry(struct proof *p, const struct ptc_ledger_entry *before, const struct ptc_ledger_entry *e,
		       struct ptc_error *err)
{
	const struct ptc_ledger_order was = p->at.how;
	struct ptc_error why = PTC_ERROR_INIT;
	int rc = ctl_consumed_of(e, p->data, &p->at, err);

	if (!rc && !before)
		rc = begin(p, e->first, err);
	if (rc)
		return rc;
	check_joins(p, before, &was, e);
	if (ptc_ledger_skipped(e))
		p->skipped += e->end - e->first;
	else
		p->counted |= p->at.how.counted;
	if (ctl_consumed_compare(e, &p->at, p->data, &p->compared, &why))
		wrong(p, "%s", why.text);
	if (p->wrong)
		return 0; /* what does not join up is not counted */
	rc = ptc_ledger_skipped(e) ? 0 : check_division(p, e, &p->at.batch, err);
	while (!rc && p->position < e->end && !ctl_interrupted())
		count(p);
	return rc;
}

static bool by_length(const char *tag)
{
	struct ptc_ledger_order how;

	return ptc_ledger_tag(tag, &how) && how.by_length;
}

/* The entries of this cursor, out of all that the daemon gave. */
static json_t *entries_json(const char *cursor, const json_t *all)
{
	json_t *entries = json_array(), *row;
	size_t i;

	json_array_foreach(all, i, row) {
		if (strcmp(json_string_value(json_object_get(row, "cursor")), cursor) != 0)
			continue;
		row = json_copy(row);
		json_object_set_new(row, "by_length",
				    json_boolean(by_length(json_string_value(json_object_get(row, "tag")))));
		json_object_set_new(row, "skipped", json_boolean(!ptc_json_count(row, "dp")));
		json_array_append_new(entries, row);
	}
	return entries;
}

/* The datasets that have epochs of their own. */
static json_t *part_json(const struct proof *p, uint32_t i)
{
	const struct ptc_order *o = &p->at.mix.order[i];

	return json_pack("{s:I, s:I, s:b, s:I}", "samples", (json_int_t)o->nsamples, "block", (json_int_t)o->block,
			 "sequential", (int)!o->shuffled, "epochs_finished", (json_int_t)p->part[i].epochs);
}

static json_t *mixture_json(const struct proof *p)
{
	json_t *parts = json_array(), *part;

	for (uint32_t i = 0; i < p->at.mix.nparts; i++) {
		part = json_pack("{s:s, s:I}", "dataset", p->at.dataset[i], "weight", (json_int_t)p->at.mix.weight[i]);
		json_object_update_new(part, part_json(p, i));
		json_array_append_new(parts, part);
	}
	return json_pack("{s:I, s:o}", "samples", (json_int_t)p->at.how.n, "parts", parts);
}

static json_t *proof_json(const struct proof *p, const json_t *all)
{
	json_t *root = json_pack("{s:s}", "cursor", p->cursor);

	json_object_update_new(root, p->at.how.mix[0] ? mixture_json(p) : part_json(p, 0));
	json_object_update_new(root, json_pack("{s:I, s:I, s:I, s:I, s:s, s:b, s:b, s:O, s:o}", "seed",
					       (json_int_t)p->at.how.seed, "since", (json_int_t)p->since, "position",
					       (json_int_t)p->position, "skipped", (json_int_t)p->skipped, "said_by",
					       p->counted ? "counts" : "ranks", "compared", (int)p->compared,
					       "exactly_once", (int)!p->wrong, "problems", p->problems, "generations",
					       entries_json(p->cursor, all)));
	return root;
}

static void print_entries(const struct proof *p)
{
	bool starred = false;

	printf("%-12s %-16s %-20s %4s %12s %12s\n", "GENERATION", "STEPS", "POSITIONS", "DP", "MICRO BATCH",
	       "GLOBAL BATCH");
	for (size_t i = 0; i < p->ledger->n; i++) {
		const struct ptc_ledger_entry *e = &p->ledger->v[i];
		char steps[48], at[48];
		bool star;

		if (strcmp(e->cursor, p->cursor) != 0 || e->end == e->first)
			continue;
		if (ptc_ledger_skipped(e)) {
			snprintf(at, sizeof at, "%" PRIu64 "-%" PRIu64, e->first, e->end - 1);
			printf("%-12" PRIu64
			       " %-16s %-20s no rank had these: ptcctl rollback --skip-data at step %" PRIu64 "\n",
			       e->generation, "skipped", at, e->first_step);
			continue;
		}
		star = by_length(e->tag);
		starred = starred || star;
		snprintf(steps, sizeof steps, "%" PRIu64 "-%" PRIu64, e->first_step, e->end_step - 1);
		snprintf(at, sizeof at, "%" PRIu64 "-%" PRIu64, e->first, e->end - 1);
		printf("%-12" PRIu64 " %-16s %-20s %4" PRIu32 " %12" PRIu32 " %12" PRIu64 "%s\n", e->generation, steps,
		       at, e->dp, e->micro, e->batch, star ? " *" : "");
	}
	if (starred)
		printf("* divided by the samples' lengths: which rank had which sample is not recorded, but which each "
		       "step had\n");
}

static const char *shuffled(const struct ptc_order *o)
{
	return !o->shuffled ? ", not shuffled" : o->block ? ", shuffled within blocks" : "";
}

static void print_epochs(const struct proof *p, uint32_t i)
{
	const struct ptc_order *o = &p->at.mix.order[i];
	const struct part *part = &p->part[i];

	if (p->at.how.mix[0])
		printf("dataset %s: weight %" PRIu32 ", %" PRIu64 " samples%s: ", p->at.dataset[i], p->at.mix.weight[i],
		       o->nsamples, shuffled(o));
	printf("%" PRIu64 " epoch%s finished, each sample once in each%s; %" PRIu64 " of %" PRIu64
	       " samples of the next\n",
	       part->epochs, part->epochs == 1 ? "" : "s", p->skipped ? ", or skipped" : "",
	       ptc_mix_count(&p->at.mix, i, p->position) % o->nsamples, o->nsamples);
}

static void print_proof(const struct proof *p)
{
	const struct ptc_ledger_order *how = &p->at.how;
	json_t *line;
	size_t i;

	if (how->mix[0])
		printf("cursor %s: %" PRIu64 " samples of %" PRIu32 " datasets, seed %" PRIu64 "\n", p->cursor, how->n,
		       p->at.mix.nparts, how->seed);
	else
		printf("cursor %s: %" PRIu64 " samples, seed %" PRIu64 "%s\n", p->cursor, how->n, how->seed,
		       shuffled(&p->at.mix.order[0]));
	print_entries(p);
	puts(p->counted
		     ? "no rank said that it had these samples: ptcd counted global_batch a step, which shows how "
		       "they are divided, not that they were read"
		     : "each rank said at each snapshot how far it had come; that it read those samples is its word");
	if (!p->compared)
		printf("the job's description has no data: %s to compare this order with\n", p->cursor);
	if (p->since)
		printf("what came before position %" PRIu64 " is not recorded any more\n", p->since);
	if (p->skipped)
		printf("%" PRIu64
		       " samples were skipped by ptcctl rollback --skip-data: the state has not been trained on "
		       "them\n",
		       p->skipped);
	json_array_foreach(p->problems, i, line)
		printf("%s\n", json_string_value(line));
	for (uint32_t k = 0; k < p->at.mix.nparts && !p->wrong; k++)
		print_epochs(p, k);
}

/* A cursor that cannot be proved is shown, too, with the reason. */
static void show_unproved(const struct ctl *c, const char *cursor, const json_t *all, const char *why, json_t *list)
{
	if (c->json)
		json_array_append_new(list, json_pack("{s:s, s:b, s:[s], s:o}", "cursor", cursor, "exactly_once", 0,
						      "problems", why, "generations", entries_json(cursor, all)));
	else
		printf("%s\n", why);
}

static int no_rank_said(const char *cursor, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ESTATE,
			     "cursor %s: no rank said that it had the samples, so nothing is shown; --counted takes "
			     "ptcd's count of steps for it",
			     cursor);
}

static int prove(const struct ctl *c, const struct ptc_ledger *ledger, const char *cursor, const json_t *doc,
		 json_t *list, struct ptc_error *err)
{
	const json_t *all = json_object_get(json_object_get(doc, "ledger"), "entries");
	struct proof p = {
		.ledger = ledger, .data = json_object_get(doc, "data"), .cursor = cursor, .problems = json_array()
	};
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
	if (rc)
		show_unproved(c, cursor, all, err->text, list);
	else if (c->json)
		json_array_append_new(list, proof_json(&p, all));
	else
		print_proof(&p);
	if (!rc && p.wrong)
		rc = ptc_error_set(err, PTC_ECORRUPT, "%s", json_string_value(json_array_get(p.problems, 0)));
	if (!rc && p.counted && !ctl_option(c, "counted"))
		rc = no_rank_said(cursor, err);
	for (size_t i = 0; i < PTC_MIX_MAX; i++)
		ptc_free(p.part[i].seen);
	json_decref(p.problems);
	return rc;
}

/* ---- which samples ---- */

/* A rank's real samples of one step, in the order it had them (all that the step has, in the global order, where that
 * is not known); printed as they come, for there may be many. */
static void print_rank(const struct ctl *c, const struct ptc_ledger_entry *e, const struct ctl_consumed *how,
		       const char *cursor, uint64_t step, uint32_t rank)
{
	const struct ptc_batch *b = &how->batch;
	uint64_t begin = e->first + (step - e->first_step) * b->global, offset;
	const char *comma = "";
	char name[24];

	if (!how->how.by_length)
		snprintf(name, sizeof name, "%" PRIu32, rank);
	else
		snprintf(name, sizeof name, "%s", c->json ? "null" : "not known");
	printf(c->json ? "{\"cursor\":%s,\"step\":%" PRIu64 ",\"generation\":%" PRIu64 ",\"dp_rank\":%s,\"samples\":["
		       : "cursor %s step %" PRIu64 " generation %" PRIu64 " dp rank %s: ",
	       cursor, step, e->generation, name);
	for (uint64_t m = 0; m < b->n_micro; m++)
		for (uint32_t k = 0; k < b->micro; k++) {
			if (!ptc_batch_slot(b, m, rank, k, &offset))
				continue;
			printf("%s%" PRIu64, comma, ptc_mix_at(&how->mix, begin + offset).id);
			comma = c->json ? "," : " ";
		}
	puts(c->json ? "]}" : "");
}

/* Adds to ret_printed. If the steps prove nothing, they are no list of the ranks' samples either; words and status are
 * the same. */
static int print_steps(const struct ctl *c, const struct ptc_ledger *l, const char *cursor, const json_t *doc,
		       const uint64_t steps[2], uint64_t *ret_printed, struct ptc_error *err)
{
	struct ptc_buf name = PTC_BUF_INIT; /* as the lines have it */
	const json_t *data = json_object_get(doc, "data");
	struct ctl_consumed how;
	bool counted = false, compared;
	int rc = 0;

	if (c->json)
		ptc_json_put_string(&name, cursor);
	else
		ptc_buf_puts(&name, cursor);
	if (ptc_buf_failed(&name))
		return ptc_nomem(err);
	for (size_t i = 0; i < l->n && !rc; i++) {
		const struct ptc_ledger_entry *e = &l->v[i];

		if (strcmp(e->cursor, cursor) != 0 || ptc_ledger_skipped(e))
			continue;
		rc = ctl_consumed_of(e, data, &how, err);
		if (!rc)
			rc = ctl_consumed_compare(e, &how, data, &compared, err);
		for (uint64_t s = PTC_MAX(e->first_step, steps[0]); !rc && s < e->end_step && s <= steps[1]; s++) {
			++*ret_printed;
			counted |= how.how.counted;
			for (uint32_t rank = 0; rank < how.batch.dp && !ctl_interrupted(); rank++)
				print_rank(c, e, &how, name.data, s, rank);
		}
	}
	ptc_buf_done(&name);
	return !rc && counted && !ctl_option(c, "counted") ? no_rank_said(cursor, err) : rc;
}

/* "3", "3-9". */
static int parse_steps(const char *text, uint64_t steps[2], struct ptc_error *err)
{
	ptc_auto_free char *first = ptc_strndup(text, strcspn(text, "-"));
	const char *dash = strchr(text, '-');
	int rc = first ? ctl_number("--steps", first, 0, UINT64_MAX, &steps[0], err) : ptc_nomem(err);

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

/* If several cursors fail, each has a line. */
static int fail_too(int rc, int its, const struct ptc_error *why, struct ptc_error *err)
{
	char before[PTC_ERROR_MAX];

	if (!its || !rc)
		return its ? ptc_error_set(err, its, "%s", why->text) : rc;
	memcpy(before, err->text, sizeof before);
	return ptc_error_set(err, rc, "%s; %s", before, why->text);
}

static int each_cursor(struct ctl *c, const struct ptc_ledger *l, const uint64_t steps[2], const json_t *doc,
		       json_t *list, struct ptc_error *err)
{
	const char *only = ctl_option(c, "cursor"), *job = c->args[0];
	bool any = false, by_step = ctl_option(c, "steps");
	uint64_t printed = 0;
	int rc = 0;

	for (size_t i = 0; i < l->n && !ctl_interrupted(); i++) {
		const char *cursor = l->v[i].cursor;
		struct ptc_error why = PTC_ERROR_INIT;

		if (!is_first(l, i) || (only && strcmp(only, cursor) != 0))
			continue;
		any = true;
		rc = fail_too(rc,
			      by_step ? print_steps(c, l, cursor, doc, steps, &printed, &why)
				      : prove(c, l, cursor, doc, list, &why),
			      &why, err);
	}
	if (!any)
		return ptc_error_set(
			err, PTC_ENOTFOUND,
			"the state of job \"%s\" has no cursor%s%s: no snapshot of running ranks that set one", job,
			only ? " " : "", only ? only : "");
	if (!rc && by_step && !printed)
		return ptc_error_set(err, PTC_ENOTFOUND,
				     "the job's state has none of these steps; choose others with --steps");
	return rc;
}

static int show(struct ctl *c, const json_t *doc, const uint64_t steps[2], struct ptc_error *err)
{
	json_t *ledger = json_object_get(doc, "ledger"), *list = json_array(), *root;
	struct ptc_ledger l = { 0 };
	int rc = ptc_ledger_from_json(ledger, &l);

	if (rc)
		rc = ptc_error_set(err, rc == PTC_ENOMEM ? rc : PTC_EPEER,
				   "the daemon's answer is not a ledger; use the ptcctl of the daemon's package");
	else
		rc = each_cursor(c, &l, steps, doc, list, err);
	/* The document has the problems, too. */
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
	.args = "[JOB]",
	.about = "Show the samples that a job has consumed, and check that each came once per epoch",
	.help = "The counts come from the cursors of the job's ranks, as each snapshot has them. For each\n"
		"generation, ptcctl shows its steps, the positions of the order that these steps consumed,\n"
		"and how ranks divided the samples. It counts each finished epoch sample by sample. Steps\n"
		"that were trained and then lost do not count. If ranks divided batches by length (marked *),\n"
		"ptcctl knows the samples of each step, but not those of each rank. For a mixture it counts\n"
		"each dataset's epochs, and numbers the samples of all datasets consecutively. It names\n"
		"positions that ptcctl rollback --skip-data has skipped; they count for their epoch.\n"
		"The exit status is 1 in these cases:\n"
		"  a sample was missed, or came twice in an epoch\n"
		"  the order of the samples differs from the order that `data:` of the job gives\n"
		"  a cursor's tag does not say the order (ptcctl checks the other cursors all the same)\n"
		"  no rank sets a cursor, so only ptcd has counted the steps (--counted accepts this)\n"
		"With --steps and --format json, ptcctl prints a line for each rank of each step. If the\n"
		"order differs from that of `data:`, it prints no lines.\n",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.job_missing = ctl_job_missing,
	.run = run,
};
