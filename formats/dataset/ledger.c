// SPDX-License-Identifier: Apache-2.0
/* The ledger of consumed samples. Happy path: notes extend the newest entry of their cursor, or begin another. Failure
 * modes: see the header; a note that fails leaves the ledger as it was. */
#include "formats/dataset/ledger.h"

#include "base/alloc.h"
#include "base/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 255 /* of a name and a tag, as in formats/state/state_doc.h */

static void entry_done(struct ptc_ledger_entry *e)
{
	ptc_free(e->cursor);
	ptc_free(e->tag);
}

void ptc_ledger_done(struct ptc_ledger *l)
{
	for (size_t i = 0; i < l->n; i++)
		entry_done(&l->v[i]);
	ptc_free(l->v);
	memset(l, 0, sizeof *l);
}

static int append(struct ptc_ledger *l, const struct ptc_ledger_entry *e)
{
	struct ptc_ledger_entry copy = *e, *v = ptc_reallocarray(l->v, l->n + 1, sizeof *v);

	if (!v)
		return PTC_ENOMEM;
	l->v = v;
	copy.cursor = ptc_strdup(e->cursor);
	copy.tag = ptc_strdup(e->tag);
	if (!copy.cursor || !copy.tag) {
		entry_done(&copy);
		return PTC_ENOMEM;
	}
	v[l->n++] = copy;
	if (l->n <= PTC_LEDGER_MAX)
		return 0;
	entry_done(&v[0]);
	memmove(v, v + 1, --l->n * sizeof *v);
	l->forgotten++;
	return 0;
}

int ptc_ledger_copy(const struct ptc_ledger *l, struct ptc_ledger *ret_copy)
{
	struct ptc_ledger copy = { .forgotten = l->forgotten };

	for (size_t i = 0; i < l->n; i++)
		if (append(&copy, &l->v[i])) {
			ptc_ledger_done(&copy);
			return PTC_ENOMEM;
		}
	*ret_copy = copy;
	return 0;
}

static struct ptc_ledger_entry *newest(const struct ptc_ledger *l, const char *cursor)
{
	for (size_t i = l->n; i-- > 0;)
		if (strcmp(l->v[i].cursor, cursor) == 0)
			return &l->v[i];
	return NULL;
}

uint64_t ptc_ledger_position(const struct ptc_ledger *l, const char *cursor, uint64_t old_step, uint64_t step,
			     uint64_t batch)
{
	const struct ptc_ledger_entry *e = newest(l, cursor);

	return (e ? e->end : 0) + (step - (e ? e->end_step : old_step)) * batch;
}

/* The same ranks divide the same samples in the same way. */
static bool goes_on(const struct ptc_ledger_entry *a, const struct ptc_ledger_entry *b)
{
	return a->generation == b->generation && a->dp == b->dp && a->micro == b->micro && a->batch == b->batch &&
	       b->end_step >= a->end_step && b->end >= a->end && strcmp(a->tag, b->tag) == 0;
}

int ptc_ledger_note(struct ptc_ledger *l, const struct ptc_ledger_entry *now)
{
	struct ptc_ledger_entry *old = newest(l, now->cursor), e = *now;

	if (old && goes_on(old, now)) {
		old->end_step = now->end_step;
		old->end = now->end;
		return 0;
	}
	if (old) {
		e.first_step = old->end_step;
		e.first = old->end;
	}
	return append(l, &e);
}

json_t *ptc_ledger_to_json(const struct ptc_ledger *l)
{
	json_t *list = json_array();

	for (size_t i = 0; i < l->n; i++) {
		const struct ptc_ledger_entry *e = &l->v[i];
		json_t *row = json_pack("{s:s, s:I, s:[I,I], s:[I,I], s:I, s:I, s:I, s:s}", "cursor", e->cursor,
					"generation", (json_int_t)e->generation, "steps", (json_int_t)e->first_step,
					(json_int_t)e->end_step, "positions", (json_int_t)e->first, (json_int_t)e->end,
					"dp", (json_int_t)e->dp, "micro_batch", (json_int_t)e->micro, "global_batch",
					(json_int_t)e->batch, "tag", e->tag);

		if (json_array_append_new(list, row)) {
			json_decref(list);
			return NULL;
		}
	}
	return json_pack("{s:I, s:o}", "forgotten", (json_int_t)l->forgotten, "entries", list);
}

/* Numbers are 64 bits without a sign; JSON as we write it has them with one. */
static bool entry_from_json(json_t *row, struct ptc_ledger_entry *e)
{
	json_int_t generation = 0, steps[2] = { 0 }, at[2] = { 0 }, dp = 0, micro = 0, batch = 0;

	if (json_unpack(row, "{s:s, s:I, s:[I,I], s:[I,I], s:I, s:I, s:I, s:s}", "cursor", &e->cursor, "generation",
			&generation, "steps", &steps[0], &steps[1], "positions", &at[0], &at[1], "dp", &dp,
			"micro_batch", &micro, "global_batch", &batch, "tag", &e->tag) ||
	    generation < 1 || dp < 0 || dp > UINT32_MAX || micro < 0 || micro > UINT32_MAX || batch < 0 ||
	    steps[0] < 0 || steps[1] < 0 || strlen(e->cursor) > TEXT_MAX || strlen(e->tag) > TEXT_MAX)
		return false;
	e->generation = (uint64_t)generation;
	e->first_step = (uint64_t)steps[0];
	e->end_step = (uint64_t)steps[1];
	e->first = (uint64_t)at[0];
	e->end = (uint64_t)at[1];
	e->dp = (uint32_t)dp;
	e->micro = (uint32_t)micro;
	e->batch = (uint64_t)batch;
	return true;
}

int ptc_ledger_from_json(const json_t *root, struct ptc_ledger *ret_ledger)
{
	json_t *list = json_object_get(root, "entries"), *forgotten = json_object_get(root, "forgotten"), *row;
	struct ptc_ledger l = { 0 };
	size_t i;
	int rc = 0;

	if (!json_is_array(list) || json_array_size(list) > PTC_LEDGER_MAX || !json_is_integer(forgotten) ||
	    json_integer_value(forgotten) < 0)
		return PTC_EINVAL;
	l.forgotten = (uint64_t)json_integer_value(forgotten);
	json_array_foreach(list, i, row) {
		struct ptc_ledger_entry e = { 0 };

		rc = rc ? rc : entry_from_json(row, &e) ? append(&l, &e) : PTC_EINVAL;
	}
	if (rc) {
		ptc_ledger_done(&l);
		return rc;
	}
	*ret_ledger = l;
	return 0;
}

static bool number(const char *text, const char *end, uint64_t max, uint64_t *ret)
{
	uint64_t v = 0;

	if (text == end)
		return false;
	for (; text < end; text++)
		if (*text < '0' || *text > '9' || ptc_ckd_mul(&v, v, 10) || ptc_ckd_add(&v, v, (uint64_t)(*text - '0')))
			return false;
	*ret = v;
	return v <= max;
}

bool ptc_ledger_tag(const char *tag, struct ptc_ledger_order *ret_order)
{
	struct ptc_ledger_order o = { 0 };
	uint64_t sequential = 0, micro = 0, by_length = 0, seen = 0;
	const struct {
		const char *key;
		uint64_t *value, max;
	} known[] = { { "n", &o.n, UINT64_MAX },         { "seed", &o.seed, UINT64_MAX },
		      { "block", &o.block, UINT64_MAX }, { "sequential", &sequential, 1 },
		      { "batch", &o.batch, UINT64_MAX }, { "micro", &micro, UINT32_MAX },
		      { "by_length", &by_length, 1 } };

	for (const char *p = tag; *p;) {
		size_t n = strcspn(p, ",;"), key = strcspn(p, "=,;");

		o.counted |= n == strlen("counted") && !strncmp(p, "counted", n);
		if (key == 3 && n == key + sizeof o.mix && !strncmp(p, "mix", key))
			memcpy(o.mix, p + key + 1, sizeof o.mix - 1);
		for (size_t i = 0; i < PTC_ARRAY_LEN(known) && key < n; i++) {
			if (strlen(known[i].key) != key || strncmp(p, known[i].key, key) != 0)
				continue;
			if (!number(p + key + 1, p + n, known[i].max, known[i].value))
				return false;
			seen |= UINT64_C(1) << i;
		}
		p += n + (p[n] != '\0');
	}
	o.sequential = sequential;
	o.by_length = by_length;
	o.micro = (uint32_t)micro;
	if ((seen & 3) != (o.mix[0] ? 2 : 3) || !o.n == !o.mix[0]) /* seed, and n or a mixture */
		return false;
	*ret_order = o;
	return true;
}
