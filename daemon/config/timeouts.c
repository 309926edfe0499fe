/* SPDX-License-Identifier: Apache-2.0 */
/* Finds timeouts of a configuration that contradict each other, or built-in ones (docs/timeouts.md). Happy path: there
 * are none. There are no failure modes: ptcd says which timeouts contradict each other, and starts all the same. */
#include "daemon/config/internal.h"

#include "base/check.h"
#include "base/number/units.h"
#include "daemon/core/job_core.h"

#include <stdio.h>

/* As built in; tests/test_timeouts.py compares them with where they are. */
#define NOTICED_MS  25000  /* a node that hangs has been noticed by its connections, and another one asked */
#define LEAVES_MS   20000  /* a rank that gives up is held for so long by its node alone */
#define HELD_MAX_MS 240000 /* ranks are held so long at most, after the loss of a node */

struct rule {
	const char *key, *than, *why, *write;
	uint64_t value, limit;
	bool least; /* limit is the least that is right; else the most */
};

bool ptc_daemon_config_timeout_clash(const struct ptc_daemon_config *cfg, size_t i, char *buf, size_t size)
{
	const struct rule rules[] = {
		{ "lease_ttl", "a rank that gives up is held",
		  "if a node is lost while etcd is unreachable, ranks are let go before their node has noticed it",
		  "at most", cfg->lease_ttl_ms, LEAVES_MS, false },
		{ "node_lost_after", "a switch waits for a node that is down",
		  "a switch gives up before it can go on without the node", "at most", cfg->node_lost_after_ms,
		  PTC_JOB_NODE_WAIT_MS, false },
		{ "fuse.timeout", "it takes to notice a node that hangs",
		  "reads fail that a replica on another node could have answered", "at least", cfg->fuse.timeout_ms,
		  cfg->fuse.dir ? NOTICED_MS : 0, true },
		{ "copy_timeout", "ranks are held after the loss of a node",
		  "one rank whose memory hangs costs the state of all", "at most", cfg->copy_timeout_ms, HELD_MAX_MS,
		  false },
	};
	char value[PTC_UNITS_MAX], limit[PTC_UNITS_MAX];

	for (size_t k = 0; k < PTC_ARRAY_LEN(rules); k++) {
		const struct rule *r = &rules[k];

		if ((r->least ? r->value >= r->limit : r->value <= r->limit) || i--)
			continue;
		snprintf(buf, size, "%s: %s is %s than %s (%s), so %s; write %s %s (docs/timeouts.md)", r->key,
			 ptc_units_print_ms(r->value, value), r->least ? "shorter" : "longer", r->than,
			 ptc_units_print_ms(r->limit, limit), r->why, r->write, limit);
		return true;
	}
	return false;
}
