/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the promise of a rank that survives (ptc_survive) is kept: samples of its declared memory must not change
 * between a boundary and the update. Happy path: they are compared and are the same. Failure modes: one has changed, or
 * the program says that it broke the promise: ptcd takes nothing of this rank's memory any more in this generation. No
 * memory for samples: nothing is looked at. */
#include "client/lib/promise/promise.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

void ptc_promise_unpublish(struct promise *p, struct ptc_local_page *page)
{
	p->made = false;
	p->said_at = UINT64_MAX;
	if (!page)
		return;
	atomic_store(&page->survives, 0);
	atomic_store(&page->marked, 0);
	atomic_store(&page->leaving, 0);
	for (int i = 0; i < 2; i++)
		atomic_store(&page->published[i].from, 0);
}

void ptc_promise_break(struct promise *p, struct ptc_local_page *page, const char *why)
{
	if (p->broken)
		return;
	snprintf(p->why, sizeof p->why, "%s", why);
	for (char *at = p->why; *at; at++)
		if ((unsigned char)*at < 0x20 || *at == 0x7f)
			*at = ' ';
	ptc_promise_unpublish(p, page);
	p->broken = true;
	memcpy(page->broken_why, p->why, sizeof p->why);
	atomic_store(&page->broken, 1);
}

void ptc_promise_over(struct promise *p, struct ptc_local_page *page)
{
	ptc_promise_unpublish(p, page);
	ptc_samples_done(&p->samples);
	p->broken = false;
	if (!page)
		return;
	atomic_store(&page->broken, 0);
	atomic_store(&page->sampled, 0);
	atomic_store(&page->checked, 0);
}

void ptc_promise_compare(struct promise *p, struct ptc_local_page *page, uint64_t next_step)
{
	const struct sampled_box *changed;
	char why[PTC_LOCAL_BROKEN_WHY];

	if (ptc_samples_same(&p->samples, &changed)) {
		if (changed)
			atomic_store(&page->sampled, next_step);
		return;
	}
	snprintf(why, sizeof why,
		 "tensor \"%.120s%s%.60s\" changed after the boundary at step %llu without ptc_update_begin",
		 changed->name, *changed->field ? ":" : "", changed->field, (unsigned long long)next_step - 1);
	ptc_promise_break(p, page, why);
}
