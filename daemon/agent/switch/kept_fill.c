/* SPDX-License-Identifier: Apache-2.0 */
/* The boxes that Prepare has found missing, kept for the Pull of the same switch, which would otherwise compute them
 * again.
 *
 * Happy path: Prepare keeps the list at the job, with a reference to the table in which it has reserved room. The first
 * Pull takes the list out. It uses the list if the switch, the old table and the new table are the same. The next
 * Prepare and Finish drop the list. Only operations of the job touch it, and these run one at a time
 * (calls/operation.h).
 *
 * Failure modes: if there is no memory for the list, or the list is long, nothing is kept, and Pull computes it. Pull
 * also does so after a restart, and when it is asked again, because extents may be filled by then. */
#include "daemon/agent/switch/internal.h"

#include "daemon/store/store_table.h"

#include "base/alloc.h"

#include <string.h>

struct ptc_kept_fill {
	struct ptc_fill fill;
	uint64_t switch_id;
	struct ptc_table_key from;
	struct ptc_table *table;
	bool used; /* it counts once: extents may be filled since */
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
	if (!v->from || fill->missing.n > PTC_AGENT_FILL_BOXES)
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

bool ptc_kept_fill_use(struct ptc_kept_fill *k, uint64_t switch_id, const struct ptc_switch_view *v,
		       const struct ptc_table *table, struct ptc_fill *ret)
{
	struct ptc_table_key from;

	if (!k || k->used || k->table != table || k->switch_id != switch_id || !v->from)
		return false;
	from = ptc_geometry_key(&v->from->g);
	if (!ptc_table_key_same(&k->from, &from))
		return false;
	*ret = k->fill;
	ret->copied_bytes = ret->new_bytes = 0; /* Prepare has said them */
	k->fill = (struct ptc_fill){ 0 };
	k->used = true;
	return true;
}
