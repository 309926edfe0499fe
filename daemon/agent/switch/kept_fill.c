/* SPDX-License-Identifier: Apache-2.0 */
/* What Prepare has found missing, kept for the Pull of the same switch, which would find the same with as much work.
 *
 * Happy path: Prepare keeps it at the job, with a reference to the table that it reserved in. The first Pull takes it
 * out, and it is used if the switch, the old table and the new table are the same ones; the next Prepare and Finish
 * drop it. Only operations of the job touch it, which run one at a time (calls/operation.h).
 *
 * Failure modes: without memory for it, or where the list is long, nothing is kept, and Pull finds out anew. So it does
 * after a restart, and when it is asked again: extents may be filled by then. */
#include "daemon/agent/switch/internal.h"

#include "daemon/store/store_table.h"

#include "base/alloc.h"

#include <string.h>

struct ptc_kept_fill {
	struct ptc_fill fill;
	uint64_t switch_id;
	struct ptc_table_key from;
	struct ptc_table *table;
};

struct ptc_kept_fill *ptc_kept_fill_free(struct ptc_kept_fill *k)
{
	if (!k)
		return NULL;
	ptc_fill_done(&k->fill);
	ptc_table_unref(k->table);
	ptc_free(k);
	return NULL;
}

void ptc_fill_forget(struct ptc_agent_job *job)
{
	job->fill = ptc_kept_fill_free(job->fill);
}

void ptc_fill_keep(struct ptc_agent_job *job, uint64_t switch_id, const struct ptc_switch_view *v,
		   struct ptc_table *table, struct ptc_fill *fill)
{
	struct ptc_kept_fill *k;

	ptc_fill_forget(job);
	/* of an import, which has no state before, bytes are written before the Pull */
	if (!v->from || !fill->missing.n || fill->missing.n > PTC_AGENT_FILL_BOXES)
		return;
	k = ptc_calloc(1, sizeof *k);
	if (!k)
		return;
	k->fill = *fill;
	k->switch_id = switch_id;
	k->from = ptc_geometry_key(&v->from->g);
	k->table = ptc_table_ref(table);
	*fill = (struct ptc_fill){ 0 };
	job->fill = k;
}

struct ptc_kept_fill *ptc_fill_take(struct ptc_agent_job *job)
{
	struct ptc_kept_fill *k = job->fill;

	job->fill = NULL;
	return k;
}

static bool same_key(const struct ptc_table_key *a, const struct ptc_table_key *b)
{
	return a->generation == b->generation && a->snapshot == b->snapshot && !strcmp(a->uuid, b->uuid);
}

bool ptc_kept_fill_use(struct ptc_kept_fill *k, uint64_t switch_id, const struct ptc_switch_view *v,
		       const struct ptc_table *table, struct ptc_fill *ret)
{
	struct ptc_table_key from;

	if (!k || !k->fill.missing.n || k->table != table || k->switch_id != switch_id || !v->from)
		return false;
	from = ptc_geometry_key(&v->from->g);
	if (!same_key(&k->from, &from))
		return false;
	*ret = k->fill;
	ret->copied_bytes = ret->new_bytes = 0; /* Prepare has said them */
	k->fill = (struct ptc_fill){ 0 };
	return true;
}
