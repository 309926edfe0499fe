/* SPDX-License-Identifier: Apache-2.0 */
/* Whom a pull asks: nodes that lack the same do not begin with the same
 * source, nor go on with the same; streams, what is left, failures count. */
#include "daemon/agent/transfer/transfer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define NODES 13

/* What node `self` lacks lies on all others alike. */
static void everywhere(struct ptc_transfer_source *sources, uint32_t self)
{
	memset(sources, 0, NODES * sizeof *sources);
	for (uint32_t n = 0; n < NODES; n++)
		sources[n].end = n == self ? 0 : 4;
}

/* Takes one part from the source that is chosen, on its next lane; its number. */
static uint32_t ask(struct ptc_transfer_source *sources, uint32_t self)
{
	struct ptc_transfer_source *s = ptc_transfer_choose(sources, NODES, self);

	assert_non_null(s);
	assert_true(!s->failed && s->next < s->end && s - sources != self);
	s->next++;
	s->lanes = s->lanes << 1 | 1;
	return (uint32_t)(s - sources);
}

/* In each turn every destination has a source for itself, until each has asked all. */
static void destinations_begin_with_different_sources(void **state)
{
	static struct ptc_transfer_source sources[NODES][NODES];

	for (uint32_t self = 0; self < NODES; self++)
		everywhere(sources[self], self);
	for (uint32_t turn = 1; turn < NODES; turn++) {
		bool asked[NODES] = { false };

		for (uint32_t self = 0; self < NODES; self++) {
			uint32_t src = ask(sources[self], self);

			if (asked[src])
				fail_msg("turn %u: two nodes ask node %u", turn, src);
			asked[src] = true;
		}
	}
}

static void streams_come_first_then_what_is_left(void **state)
{
	struct ptc_transfer_source sources[NODES];

	everywhere(sources, 3);
	sources[1].end = 9;
	assert_int_equal(ask(sources, 3), 1); /* most left */
	assert_int_equal(ask(sources, 3), 4); /* though node 1 has more: a second stream of it is for later */
	for (uint32_t n = 0; n < NODES; n++)
		sources[n].lanes = 1;
	assert_int_equal(ask(sources, 3), 1);
	sources[5].lanes = 0;
	sources[5].failed = true;
	sources[6].lanes = 0;
	sources[6].next = sources[6].end;
	sources[8].lanes = 0;
	assert_int_equal(ask(sources, 3), 8); /* 5 failed, 6 has sent all */
}

static void nobody_is_asked_in_vain(void **state)
{
	struct ptc_transfer_source sources[NODES];

	everywhere(sources, 0);
	for (uint32_t n = 0; n < NODES; n++)
		sources[n].lanes = (1u << PTC_AGENT_LANES) - 1;
	assert_null(ptc_transfer_choose(sources, NODES, 0));
	for (uint32_t n = 0; n < NODES; n++)
		sources[n] = (struct ptc_transfer_source){ .end = 2, .failed = true };
	assert_null(ptc_transfer_choose(sources, NODES, 0));
	memset(sources, 0, sizeof sources);
	assert_null(ptc_transfer_choose(sources, NODES, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(destinations_begin_with_different_sources),
		cmocka_unit_test(streams_come_first_then_what_is_left),
		cmocka_unit_test(nobody_is_asked_in_vain),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
