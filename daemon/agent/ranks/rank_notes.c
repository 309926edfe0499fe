/* SPDX-License-Identifier: Apache-2.0 */
/* Notes in the store about the ranks that were here: the last incarnation that was begun, the last whose ranks may have
 * met others, and the last that may have gone on. The notes are durable, so a machine that has lost its processes knows
 * which ranks may be started again.
 *
 * Failure modes: those of the store. A store that is new has no notes: nothing was begun there. */
#include "daemon/agent/ranks/internal.h"
#include "daemon/store/store.h"
#include "daemon/workers/group/rank_slots.h"

#include "base/alloc.h"

#include <string.h>

static const char *const names[] = {
	[PTC_RANKS_BEGUN] = "begun", [PTC_RANKS_BUILT] = "built", [PTC_RANKS_GONE_ON] = "gone"
};

int ptc_rank_note_write(struct ptc_agent *agent, enum ptc_rank_note what, const struct ptc_group_key *key,
			struct ptc_error *err)
{
	uint64_t which[2] = { key->generation, key->incarnation };

	return ptc_store_note_put(agent->env.store, key->uuid, names[what], which, sizeof(which), err);
}

int ptc_rank_note_is(struct ptc_agent *agent, enum ptc_rank_note what, const struct ptc_group_key *key, bool *ret_is,
		     struct ptc_error *err)
{
	uint64_t which[2] = { key->generation, key->incarnation };
	struct ptc_error why = PTC_ERROR_INIT;
	void *note;
	size_t len;
	int rc = ptc_store_note_get(agent->env.store, key->uuid, names[what], &note, &len, &why);

	if (rc && rc != PTC_ENOTFOUND)
		return ptc_error_set(err, rc, "%s", why.text);
	*ret_is = !rc && len == sizeof(which) && memcmp(note, which, len) == 0;
	if (!rc)
		ptc_free(note);
	return 0;
}

/* The pause of a switch has no write for ranks that were built ahead of it. */
int ptc_rank_built_note(struct ptc_agent *agent, const struct ptc_group_key *key, struct ptc_error *err)
{
	bool there = false;
	int rc = ptc_rank_note_is(agent, PTC_RANKS_BUILT, key, &there, err);

	return rc || there ? rc : ptc_rank_note_write(agent, PTC_RANKS_BUILT, key, err);
}

int ptc_rank_built_check(struct ptc_agent *agent, const struct ptc_group_key *key, bool built, struct ptc_error *err)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct ptc_slot_view *slots;
	size_t n;
	int rc = ptc_workers_slots(agent->env.workers, key, &slots, &n, &ignored);

	if (rc == 0)
		ptc_workers_slots_done(agent->env.workers, slots, n);
	if (rc != PTC_ENOTFOUND)
		return 0; /* they are here; whoever needs them says what is wrong with them */
	rc = built ? 0 : ptc_rank_note_is(agent, PTC_RANKS_BUILT, key, &built, err);
	if (rc || !built)
		return rc;
	return ptc_error_set(
		err, PTC_ELOST,
		"the ranks of generation %llu that were built no longer run on this node (was it restarted?), and "
		"ranks of other nodes have met them; they have to be started anew together",
		(unsigned long long)key->generation);
}
