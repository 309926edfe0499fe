/* SPDX-License-Identifier: Apache-2.0 */
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
	struct ptc_ledger_entry copy = *e;

	if (!PTC_MORE(l->v, l->n))
		return PTC_ENOMEM;
	copy.cursor = ptc_strdup(e->cursor);
	copy.tag = ptc_strdup(e->tag);
	if (!copy.cursor || !copy.tag) {
		entry_done(&copy);
		return PTC_ENOMEM;
	}
	l->v[l->n++] = copy;
	if (l->n <= PTC_LEDGER_MAX)
		return 0;
	entry_done(&l->v[0]);
	memmove(l->v, l->v + 1, --l->n * sizeof *l->v);
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
	return !ptc_ledger_skipped(a) && a->generation == b->generation && a->dp == b->dp && a->micro == b->micro &&
	       a->batch == b->batch && b->end_step >= a->end_step && b->end >= a->end && strcmp(a->tag, b->tag) == 0;
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

bool ptc_ledger_ends_at(const struct ptc_ledger *l, const char *cursor, uint64_t position)
{
	const struct ptc_ledger_entry *e = newest(l, cursor);

	return e && e->end == position;
}

/* The oldest entry that is known. */
static const struct ptc_ledger_entry *oldest(const struct ptc_ledger *l, const char *cursor)
{
	size_t i = 0;

	while (strcmp(l->v[i].cursor, cursor) != 0)
		i++;
	return &l->v[i];
}

int ptc_ledger_skip(struct ptc_ledger *l, const struct ptc_ledger *now, uint64_t generation, uint64_t step)
{
	int rc = 0;

	for (size_t i = 0; i < now->n && !rc; i++) {
		const struct ptc_ledger_entry *last = &now->v[i], *had = newest(l, last->cursor);
		struct ptc_ledger_entry e = { .cursor = last->cursor,
					      .tag = last->tag,
					      .generation = generation,
					      .first_step = had ? had->end_step : step,
					      .first = had ? had->end : oldest(now, last->cursor)->first,
					      .end = last->end };

		e.end_step = e.first_step;
		if (newest(now, last->cursor) == last && e.end > e.first)
			rc = append(l, &e);
	}
	return rc;
}

#define AS(key, member, ...) PTC_ROW(struct ptc_ledger_entry, key, member, __VA_ARGS__)
/* Two numbers that stand behind each other. */
#define PAIR(key, first, kind)                                                                                         \
	{                                                                                                              \
		key, PTC_IS_##kind, .offset = offsetof(struct ptc_ledger_entry, first), .size = 2 * sizeof(uint64_t)   \
	}

static const struct ptc_member entry_rows[] = {
	AS("cursor", cursor, STRING, .max = TEXT_MAX),
	AS("generation", generation, U64, .min = 1),
	PAIR("steps", first_step, U64),
	PAIR("positions", first, I64), /* all 64 bits of them, which JSON has with a sign */
	AS("dp", dp, U32),
	AS("micro_batch", micro, U32),
	AS("global_batch", batch, U64),
	AS("tag", tag, STRING, .max = TEXT_MAX),
};
static const struct ptc_members entry_members = PTC_MEMBERS(entry_rows, struct ptc_ledger_entry);
static const struct ptc_member ledger_rows[] = {
	{ "forgotten", PTC_IS_U64, PTC_AT(struct ptc_ledger, forgotten) },
	{ "entries", PTC_IS_LIST, PTC_AT(struct ptc_ledger, v), PTC_COUNT(struct ptc_ledger, n), .max = PTC_LEDGER_MAX,
	  .of = &entry_members },
};
const struct ptc_members ptc_ledger_members = PTC_MEMBERS(ledger_rows, struct ptc_ledger);

int ptc_ledger_from_json(const json_t *root, struct ptc_ledger *ret_ledger)
{
	struct ptc_ledger l = { 0 };
	int rc = ptc_members_from_json("ledger", &ptc_ledger_members, root, &l, NULL);

	if (rc)
		ptc_ledger_done(&l);
	else
		*ret_ledger = l;
	return rc;
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
	} known[] = { { "n", &o.n, UINT64_MAX },          { "seed", &o.seed, UINT64_MAX },
		      { "block", &o.block, UINT64_MAX },  { "sequential", &sequential, 1 },
		      { "batch", &o.batch, UINT64_MAX },  { "micro", &micro, UINT32_MAX },
		      { "by_length", &by_length, 1 },     { "linear", &o.linear, UINT64_MAX },
		      { "square", &o.square, UINT64_MAX } };

	for (const char *p = tag; *p;) {
		size_t n = strcspn(p, ",;"), key = strcspn(p, "=,;");

		o.counted |= n == strlen("counted") && !strncmp(p, "counted", n);
		if (key == 3 && n == key + sizeof o.mix && !strncmp(p, "mix", key))
			memcpy(o.mix, p + key + 1, sizeof o.mix - 1);
		if (key == strlen("micro_steps") && key < n && !strncmp(p, "micro_steps", key) &&
		    !ptc_micro_runs_parse(p + key + 1, n - key - 1, &o.micro_steps))
			return false;
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
