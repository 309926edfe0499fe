/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of the store in memory. Happy path: found by uuid; freed, with its chunks' environment, with
 * the last reference. Failure modes: a job that is not here, or that cannot be used: its code and
 * why. */
#include "daemon/store/chunks/chunk.h"

#include "base/alloc.h"

#include <string.h>

struct job *ptc_store_job_find_locked(struct ptc_store *s, const char *uuid)
{
	for (struct job *j = s->jobs; j; j = j->next)
		if (strcmp(j->uuid, uuid) == 0)
			return j;
	return NULL;
}

int ptc_store_job_usable(const struct job *j, const char *uuid, struct ptc_error *err)
{
	if (!j)
		return ptc_error_set(err, PTC_ENOTFOUND, "job %.36s has no state here", uuid);
	return j->bad ? ptc_error_set(err, j->bad, "job %s: %s", j->uuid, j->why) : 0;
}

void ptc_store_job_free(struct job *j)
{
	if (!j)
		return;
	ptc_store_chunks_close(j);
	ptc_free(j);
}

struct job *ptc_store_job_unref_locked(struct job *j)
{
	return --j->refs == 0 ? j : NULL;
}
