/* SPDX-License-Identifier: Apache-2.0 */
/* Notes in the store about the ranks that were here: the last incarnation that was begun, and the last that may have
 * gone on. They are durable, so a machine that has lost its processes knows which of them may be started again.
 *
 * Failure modes: those of the store. A store that is new has no notes: nothing was begun there. */
#include "daemon/agent/ranks/internal.h"
#include "daemon/store/store.h"

#include "base/alloc.h"

#include <string.h>

static const char *const names[] = { [PTC_RANKS_BEGUN] = "begun", [PTC_RANKS_GONE_ON] = "gone" };

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
