/* SPDX-License-Identifier: Apache-2.0 */
/* A change, seen from its ranks: the classes each one needs or has. Placement
 * looks at nothing else. Failure mode: memory. */
#include "reshard/place/internal.h"

#include "base/alloc.h"

/* Of set number set(class), per rank: counts (list NULL) or lists the classes. */
static void walk(const struct ptc_change *c, bool from, size_t *next, uint32_t *list)
{
	const struct ptc_lists *sets = from ? &c->from.sets : &c->to.sets;

	for (uint32_t class = 0; class < c->classes.n; class ++) {
		uint32_t set = from ? ptc_class_from(c, class) : ptc_class_to(c, class);
		size_t n;
		const uint32_t *ranks = set == PTC_NOBODY ? NULL : ptc_lists_at(sets, set, &n);

		for (size_t i = 0; ranks && i < n && c->bytes[class]; i++) {
			if (list)
				list[next[ranks[i]]++] = class;
			else
				next[ranks[i]]++;
		}
	}
}

int ptc_class_lists_init(struct ptc_class_lists *l, const struct ptc_change *c, bool from, uint32_t world)
{
	size_t *first = ptc_calloc((size_t)world + 2, sizeof *first);

	l->first = first;
	if (!first)
		return PTC_ENOMEM;
	walk(c, from, first + 2, NULL);
	for (uint32_t r = 0; r < world; r++)
		first[r + 2] += first[r + 1];
	l->list = ptc_calloc(first[world + 1], sizeof *l->list);
	if (!l->list)
		return PTC_ENOMEM;
	walk(c, from, first + 1, l->list);
	return 0;
}

void ptc_class_lists_done(struct ptc_class_lists *l)
{
	ptc_free(l->first);
	ptc_free(l->list);
	*l = (struct ptc_class_lists){ 0 };
}
