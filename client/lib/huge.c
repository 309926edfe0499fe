/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: moves declared memory to huge pages. Happy path: while the program trains, our thread asks the kernel, 2 MiB
 * at a time, to put declared memory into huge pages. At a stop, copying from them takes little more than half the
 * time, because no page has to be looked up each 4 KiB. Addresses and bytes do not change. Failure modes: none that
 * anybody sees. Memory that cannot move (pinned, shared, too little left, a limit reached) stays as it is. A kernel
 * that does not know the request (before 6.1) is not asked again. $PTC_HUGE_PAGES=0 turns all of it off. */
#include "client/lib/link.h"

#include <errno.h>
#include <linux/mman.h> /* MADV_COLLAPSE, which glibc 2.36 lacks */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void ptc_client_huge_init(ptc_client *c)
{
	const char *s = getenv("PTC_HUGE_PAGES");

	c->huge.off = s && !strcmp(s, "0");
}

/* The next whole huge page of a declared box; 0: there is none. */
static uint64_t next_locked(ptc_client *c)
{
	for (; c->huge.tensor < c->ntensors; c->huge.tensor++, c->huge.box = 0) {
		const struct tensor *t = &c->tensors[c->huge.tensor];

		for (; c->huge.box < t->nboxes; c->huge.box++) {
			uint64_t low, high, at;

			ptc_local_box_span(t->ndim, t->element_bytes, &t->boxes[c->huge.box], &low, &high);
			if (ptc_device_at(&c->devices, low))
				continue;
			at = (low + CLIENT_HUGE_BYTES - 1) & ~(CLIENT_HUGE_BYTES - 1);
			if (at < c->huge.at)
				at = c->huge.at;
			if (at >= low && at + CLIENT_HUGE_BYTES <= high) {
				c->huge.at = at + CLIENT_HUGE_BYTES;
				return at;
			}
			c->huge.at = 0;
		}
	}
	return 0;
}

bool ptc_client_huge_step(ptc_client *c)
{
	uint64_t at = 0;

	pthread_mutex_lock(&c->lock);
	if (!c->huge.off && c->phase == PHASE_RUNNING)
		at = next_locked(c);
	pthread_mutex_unlock(&c->lock);
	if (!at)
		return false;
	/* Memory that is another's by now comes to no harm either. */
	if (madvise((void *)(uintptr_t)at, CLIENT_HUGE_BYTES, MADV_COLLAPSE) != 0 && errno == EINVAL && !c->huge.works)
		c->huge.off = ++c->huge.refused == 8;
	else
		c->huge.works = true;
	return true;
}
