/* SPDX-License-Identifier: Apache-2.0 */
/* The order and the division of the samples of an entry of the ledger. Happy path: the entry's tag says both. For a
 * mixture, the tag names it, and the job's description says what it consists of. Failure modes: PTC_EINVAL if the tag
 * says no order, or if the description has another mixture. (Another job may have that name now, or an old daemon
 * created the job and does not tell the mixture.) */
#include "client/ctl/datasets/consumed.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "formats/job/job.h"

#include <inttypes.h>
#include <string.h>

static bool one_order(struct ctl_consumed *c)
{
	struct ptc_mix_part part = { .nsamples = c->how.n,
				     .weight = 1,
				     .block = c->how.sequential ? 0 : c->how.block,
				     .sequential = c->how.sequential };

	return ptc_mix_init(&c->mix, &part, 1, c->how.seed);
}

/* A part as the job's description has it, for its name, and as it is drawn from. */
static bool take_part(const json_t *row, struct ptc_job_part *part, struct ptc_mix_part *drawn)
{
	const char *pinned = json_string_value(json_object_get(row, "pinned"));
	uint64_t weight = ptc_json_count(row, "weight");

	if (!pinned || strlen(pinned) >= sizeof part->source || weight > UINT32_MAX)
		return false;
	*part = (struct ptc_job_part){ .weight = (uint32_t)weight,
				       .block = ptc_json_count(row, "block"),
				       .sequential = json_is_true(json_object_get(row, "sequential")) };
	memcpy(part->source, pinned, strlen(pinned) + 1);
	*drawn = (struct ptc_mix_part){ .nsamples = ptc_json_count(row, "samples"),
					.weight = part->weight,
					.block = part->block,
					.sequential = part->sequential };
	return true;
}

static const json_t *data_of(const json_t *data, const char *cursor)
{
	json_t *row;
	size_t i;

	json_array_foreach(data, i, row) {
		const char *name = json_string_value(json_object_get(row, "name"));

		if (name && strcmp(name, cursor) == 0)
			return row;
	}
	return NULL;
}

static bool mixed_order(struct ctl_consumed *c, const char *cursor, const json_t *data)
{
	ptc_auto_free struct ptc_job_part *parts = ptc_calloc(PTC_MIX_MAX, sizeof *parts);
	struct ptc_mix_part drawn[PTC_MIX_MAX];
	const json_t *rows = json_object_get(data_of(data, cursor), "parts");
	size_t i, n = json_array_size(rows);
	json_t *row;
	char mix[33];

	if (!parts || n < 2 || n > PTC_MIX_MAX)
		return false;
	json_array_foreach(rows, i, row) {
		c->dataset[i] = json_string_value(json_object_get(row, "dataset"));
		if (!c->dataset[i] || !take_part(row, &parts[i], &drawn[i]))
			return false;
	}
	if (ptc_job_data_mix(&(struct ptc_job_data){ .parts = parts, .nparts = (uint32_t)n }, mix) ||
	    strcmp(mix, c->how.mix) != 0)
		return false;
	return ptc_mix_init(&c->mix, drawn, (uint32_t)n, c->how.seed);
}

/* Of one dataset: of a mixture the tag's hash has been compared, but for the seed. */
static bool same_dataset(const struct ptc_ledger_order *how, const json_t *parts)
{
	const json_t *part = json_array_get(parts, 0);
	bool sequential = json_is_true(json_object_get(part, "sequential"));

	return json_array_size(parts) == 1 && ptc_json_count(part, "samples") == how->n &&
	       how->sequential == sequential && (sequential || ptc_json_count(part, "block") == how->block);
}

int ctl_consumed_compare(const struct ptc_ledger_entry *e, const struct ctl_consumed *c, const json_t *data,
			 bool *ret_there, struct ptc_error *err)
{
	const json_t *row = data_of(data, e->cursor), *parts = json_object_get(row, "parts");
	uint64_t seed = ptc_json_count(row, "seed"), n = 0;

	*ret_there = row != NULL;
	if (!row || (seed == c->how.seed && (c->how.mix[0] || same_dataset(&c->how, parts))))
		return 0;
	for (size_t i = 0; i < json_array_size(parts); i++)
		n += ptc_json_count(json_array_get(parts, i), "samples");
	return ptc_error_set(err, PTC_ECORRUPT,
			     "cursor %s, generation %" PRIu64
			     ": ranks consumed by \"%.100s\", the job's data has %" PRIu64
			     " samples of %zu dataset%s, seed %" PRIu64 ", or shuffles them otherwise",
			     e->cursor, e->generation, e->tag, n, json_array_size(parts),
			     json_array_size(parts) == 1 ? "" : "s", seed);
}

int ctl_consumed_of(const struct ptc_ledger_entry *e, const json_t *data, struct ctl_consumed *ret,
		    struct ptc_error *err)
{
	struct ctl_consumed c = { 0 };

	if (!ptc_ledger_tag(e->tag, &c.how) || (!c.how.mix[0] && !one_order(&c)))
		return ptc_error_set(err, PTC_EINVAL,
				     "cursor %s: its tag \"%s\" does not say its order as \"n=N,seed=S\" does",
				     e->cursor, e->tag);
	if (c.how.mix[0] && !mixed_order(&c, e->cursor, data))
		return ptc_error_set(err, PTC_EINVAL,
				     "cursor %s: its tag \"%s\" is of another mixture than the job's data", e->cursor,
				     e->tag);
	c.how.n = c.mix.nsamples;
	if (!ptc_ledger_skipped(e) &&
	    (!ptc_batch_init_runs(&c.batch, e->batch, e->micro, e->dp, &c.how.micro_steps) || e->batch > CTL_BITS_MAX))
		return ptc_error_set(err, PTC_EINVAL,
				     "cursor %s, generation %" PRIu64 ": neither its tag \"%s\" nor the configuration "
				     "says the global and the micro batch",
				     e->cursor, e->generation, e->tag);
	if (c.how.by_length && !ptc_ledger_skipped(e))
		ptc_batch_init(&c.batch, e->batch, 1, 1);
	*ret = c;
	return 0;
}
