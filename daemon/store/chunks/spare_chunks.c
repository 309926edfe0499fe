/* SPDX-License-Identifier: Apache-2.0 */
/* Free chunks that are made ahead of the next switch or snapshot. The kernel needs longer to allocate and clear the
 * memory of a chunk than the store to fill it, and a switch is rare: the first one is the one that counts. So the
 * thread of huge_chunks.c makes them while the store has had no other work for a while: for each job as many as the job
 * uses, but at most cushion_bytes. A switch or snapshot frees the chunks of the state before it, and the next one takes
 * these. So from then on none are made for the job, and those that were left over go back.
 *
 * They belong to nobody: they count against the ceiling as all free chunks do, and another job that lacks room gets
 * them. They take no room from other jobs, and end with the store as all free chunks do.
 *
 * Happy path: steps of a few MiB, each under wlock. Failure modes: none that anybody sees. No room under the ceiling,
 * in the file system or in the machine: nothing more is made. If the machine or the file system gets short, what was
 * made ahead and is still unused goes back. */
#include "daemon/store/chunks/chunk.h"

#include "base/check.h"
#include "base/memory/machine_memory.h"
#include "base/sys/sys.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#define STEP_CHUNKS 32u /* whoever else wants wlock waits for one step; the ends of a step are no huge pages */
#define BACK_CHUNKS 64u /* to give one back takes a tenth of the time */
#define MORE_PART   8   /* this part of all memory stays free */
#define LESS_PART   16  /* less than this is short */
#define AGAIN_NS    INT64_C(10000000000)

enum spare ptc_store_spare_of(uint64_t total, uint64_t left)
{
	if (left < total / LESS_PART || !total)
		return SPARE_LESS;
	return left < total / MORE_PART ? SPARE_SAME : SPARE_MORE;
}

enum spare ptc_store_spare_look(const struct ptc_store *s)
{
	enum spare machine, files = SPARE_MORE;
	struct statfs fs;

	if (statfs(s->chunk_dir, &fs) != 0 || (fs.f_type != TMPFS_MAGIC && fs.f_type != RAMFS_MAGIC))
		return SPARE_SAME; /* chunks on a disk are not made ahead */
	if (fs.f_blocks)           /* else without a limit of its own */
		files = ptc_store_spare_of(fs.f_blocks, fs.f_bavail);
	machine = ptc_store_spare_of(ptc_machine_memory(), ptc_machine_memory_available());
	return PTC_MIN(files, machine);
}

/* false: nothing is made for this job, or given back. Else the number of free chunks up to which some are made, and of
 * those that it has. */
static bool may_have(const struct job *j, size_t *ret_want, size_t *ret_warm)
{
	const struct chunk_counts has = ptc_store_chunks_count(j->s, j);

	*ret_want = PTC_MIN(j->s->cushion / PTC_CHUNK_BYTES, has.used);
	*ret_warm = has.warm;
	return j->env && !j->bad && j->volatile_fs;
}

bool ptc_store_spare_due(struct ptc_store *s)
{
	bool due = false;
	size_t want, warm;

	if (pthread_mutex_trylock(&s->wlock) != 0)
		return false;
	for (struct job *j = s->jobs; j && !due; j = j->next)
		due = may_have(j, &want, &warm) && (j->nahead || (!j->freed && warm + CHUNKS_GRAIN <= want));
	pthread_mutex_unlock(&s->wlock);
	return due;
}

static bool make(struct job *j, size_t n)
{
	struct ptc_store *s = j->s;
	const struct chunk_counts has = ptc_store_chunks_count(s, NULL);
	uint64_t max = ptc_store_chunks_max(s), all = (uint64_t)has.used + has.warm;
	size_t made;

	n = PTC_MIN(PTC_MIN(n, STEP_CHUNKS), (size_t)(max - PTC_MIN(max, all)));
	n -= n % CHUNKS_GRAIN;
	if (!n || ptc_sys_now_ns() < s->huge.ahead_ns)
		return false;
	made = ptc_store_chunks_ahead(j, n);
	if (!made)
		s->huge.ahead_ns = ptc_sys_now_ns() + AGAIN_NS;
	return made > 0;
}

static bool give_back(struct job *j)
{
	const size_t had = j->nahead;

	ptc_store_chunks_behind(j, BACK_CHUNKS);
	return j->nahead < had;
}

bool ptc_store_spare_step(struct ptc_store *s, enum spare allowed)
{
	bool did = false;

	if (pthread_mutex_trylock(&s->wlock) != 0)
		return false;
	for (struct job *j = s->jobs; j && !did; j = j->next) {
		size_t want, warm;

		if (!may_have(j, &want, &warm))
			continue;
		if (allowed == SPARE_LESS || j->freed)
			did = give_back(j);
		else if (warm < want && allowed == SPARE_MORE)
			did = make(j, want - warm);
	}
	pthread_mutex_unlock(&s->wlock);
	return did;
}
