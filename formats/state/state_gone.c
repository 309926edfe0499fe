/* SPDX-License-Identifier: Apache-2.0 */
/* Which blobs a snapshot of held ranks lacks. Happy path: state_gone.h. There are no failure modes. */
#include "formats/state/state_gone.h"

#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define RANKS 4 /* that are named */
#define NAMES 4

struct names {
	const char *v[NAMES];
	size_t n, more;
};

static void add_name(struct names *names, const char *name)
{
	for (size_t i = 0; i < names->n; i++)
		if (strcmp(names->v[i], name) == 0)
			return;
	if (names->n < NAMES)
		names->v[names->n++] = name;
	else
		names->more = 1;
}

/* Whether a rank there lacks something: names grow. */
static bool lacks(const struct ptc_state *s, const struct ptc_coords *at, struct names *names)
{
	bool any = false;

	for (size_t r = 0; r < s->nranks; r++)
		for (size_t i = 0; i < s->ranks[r].nblobs; i++) {
			const struct ptc_state_blob *b = &s->ranks[r].blobs[i];

			if (b->scope == PTC_STATE_JOB ||
			    (b->scope == PTC_STATE_TP && ptc_state_group_blob(s, at, b->name)))
				continue;
			add_name(names, b->name);
			any = true;
		}
	return any;
}

__attribute__((format(printf, 4, 5))) static void put(char *text, size_t size, size_t *len, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(text + *len, size - *len, fmt, ap);
	va_end(ap);
	*len = PTC_MIN(*len + (size_t)PTC_MAX(n, 0), size - 1);
}

void ptc_state_gone_text(const struct ptc_state *s, const struct ptc_config *config, uint32_t world, const bool *spoke,
			 char *text, size_t size)
{
	struct names names = { .n = 0 };
	uint32_t ranks[RANKS], n = 0;
	size_t len = 0;

	text[0] = '\0';
	for (uint32_t r = 0; r < world; r++) {
		struct ptc_coords at = ptc_config_coords(config, r);

		if (spoke[r] || !lacks(s, &at, &names))
			continue;
		if (n < RANKS)
			ranks[n] = r;
		n++;
	}
	if (!n)
		return;
	put(text, size, &len, "blobs of rank%s", n == 1 ? "" : "s");
	for (uint32_t i = 0; i < n && i < RANKS; i++)
		put(text, size, &len, "%s %u", i ? "," : "", ranks[i]);
	if (n > RANKS)
		put(text, size, &len, " and %u more", n - RANKS);
	for (size_t i = 0; i < names.n; i++)
		put(text, size, &len, "%s%.40s", i ? ", " : " (", names.v[i]);
	put(text, size, &len, "%s)", names.more ? ", ..." : "");
}
