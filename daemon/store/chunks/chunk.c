/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks environment of one job: LMDB values of CHUNK_VALUE bytes under ids from 1, and key 0, which says whose it
 * is.
 *
 * Happy path: take() hands out free chunks, those with touched pages first, and makes new ones in one short transaction
 * after the file's blocks have been reserved. A chunk is never deleted alone: when nothing refers to it, it is free. It
 * keeps its blocks (warm) until trim() punches them out of the file, except for the page with LMDB's header (cold). So
 * a value's pages never move, LMDB's free list never has to find 256 neighbouring pages, and the file's blocks follow
 * what is used.
 *
 * Failure modes: ceiling, map or file system full is PTC_ENOSPC with nothing changed; a directory that is missing or
 * carries another store's id is PTC_ELOST, and so is an environment whose pages are damaged or whose values lie at
 * impossible places: its data file is set aside. */
#include "daemon/store/chunks/chunk.h"
#include "daemon/store/chunks/lmdb_env.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define NEW_BATCH   4096u        /* chunks made by one transaction */
#define NEW_STEP    CHUNKS_GRAIN /* the file grows by this many chunks at least, where the ceiling allows */
#define SLACK_PAGES 64u          /* LMDB's own pages per transaction, beside one leaf page per 64 chunks */

/* LMDB 0.9's page header, the 16 bytes before a value. Only used to learn, and always checked against the file, where
 * in the file a chunk lies. */
struct page_header {
	uint64_t pgno;
	uint16_t pad, flags;
	uint32_t pages;
};
#define P_OVERFLOW 0x04

struct identity {
	char magic[8];
	uint32_t version, reserved;
	char store_id[STORE_UUID_LEN], job[STORE_UUID_LEN];
};
static const char magic[8] = "ptcchunk";

/* the directory of its chunks; the caller frees it; NULL: no memory */
static char *job_dir(const struct job *j)
{
	return ptc_asprintf("%s/%s", j->s->chunk_dir, j->uuid);
}

static MDB_val key_of(size_t *id)
{
	MDB_val v = { sizeof *id, id };

	return v;
}

static uint64_t map_size(const struct job *j)
{
	uint64_t chunks = j->s->ceiling / PTC_CHUNK_BYTES + NEW_STEP;

	return (chunks * CHUNK_SPAN + chunks / 16 * 4096 + (16 << 20)) & ~UINT64_C(0xffff);
}

/* errno, or 0 */
static int punch_range(struct job *j, uint64_t off, uint64_t bytes)
{
	int e = 0;

	pthread_mutex_lock(&j->s->huge.blocks);
	if (fallocate(j->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)bytes) != 0)
		e = errno;
	pthread_mutex_unlock(&j->s->huge.blocks);
	return e;
}

/* Blocks for everything the next transaction can touch: it may write any page up to the end and pages for n chunks. */
static int grow_file(struct job *j, size_t n, struct ptc_error *err)
{
	uint64_t pages = n * (CHUNK_SPAN / j->page) + SLACK_PAGES + n / 64, end;
	MDB_envinfo info;
	int rc;

	mdb_env_info(j->env, &info);
	end = (info.me_last_pgno + 1 + pages) * j->page;
	if (end > j->map_bytes)
		return ptc_error_set(err, PTC_ENOSPC, "chunk map of job %s is full (%llu bytes)", j->uuid,
				     (unsigned long long)j->map_bytes);
	if (end <= j->alloc_end)
		return 0;
	ptc_store_huge_fill(j, j->alloc_end, end - j->alloc_end);
	rc = ptc_store_file_alloc(j->fd, j->alloc_end, end - j->alloc_end, err);
	if (rc) /* what there was room for helps nobody */
		(void)punch_range(j, j->alloc_end, end - j->alloc_end);
	else
		j->alloc_end = end;
	return rc;
}

static int attach(struct job *j, struct ptc_error *err)
{
	struct statfs fs;
	MDB_envinfo info;
	MDB_stat st;
	int rc = mdb_env_get_fd(j->env, &j->fd);

	if (rc)
		return ptc_store_lmdb_error(err, rc, "chunks of job %s", j->uuid);
	if (fstatfs(j->fd, &fs) != 0)
		return ptc_error_errno(err, errno, "chunks of job %s", j->uuid);
	j->volatile_fs = fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC;
	mdb_env_stat(j->env, &st);
	j->page = st.ms_psize;
	mdb_env_info(j->env, &info);
	j->map_bytes = info.me_mapsize;
	j->alloc_end = (info.me_last_pgno + 1) * j->page;
	return 0;
}

static int write_identity(struct job *j, struct ptc_error *err)
{
	struct {
		struct identity id;
#if PTC_VERSION_RAISED
		uint64_t added;
#endif
	} own = { .id.version = RECORD_VERSION };
	size_t zero = 0;
	MDB_val k = key_of(&zero), v = { sizeof own, &own };
	MDB_txn *txn;
	int rc = grow_file(j, 0, err);

	memcpy(own.id.magic, magic, sizeof magic);
	memcpy(own.id.store_id, j->s->id, STORE_UUID_LEN);
	memcpy(own.id.job, j->uuid, STORE_UUID_LEN);
	if (!rc)
		rc = ptc_store_begin(j->env, true, &txn, err);
	if (rc)
		return rc;
	rc = mdb_put(txn, j->dbi, &k, &v, 0);
	if (rc) {
		mdb_txn_abort(txn);
		return ptc_store_lmdb_error(err, rc, "cannot mark the chunks of job %s", j->uuid);
	}
	return ptc_store_commit(txn, STORE_CHUNKS, err);
}

static int make_dir(struct job *j, const char *dir, struct ptc_error *err)
{
	int fd, rc;

	rc = ptc_sys_remove_tree(dir, "store.job.remove",
				 err); /* what an older store or a crash left under this name */
	if (rc)
		return rc;
	if (mkdir(dir, 0700) != 0)
		return ptc_error_errno(err, errno, "cannot create %s", dir);
	if (geteuid() == 0 && chown(dir, j->uid, (gid_t)-1) != 0)
		return ptc_error_errno(err, errno, "cannot give %s to uid %u", dir, (unsigned)j->uid);
	fd = open(j->s->chunk_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (ptc_fault("store.dir.before"))
		rc = ptc_error_set(err, PTC_EIO, "cannot sync %s: fault injected", j->s->chunk_dir);
	else if (fd < 0 || fsync(fd) != 0)
		rc = ptc_error_errno(err, errno, "cannot sync %s", j->s->chunk_dir);
	(void)ptc_fault("store.dir.after");
	ptc_close(&fd);
	return rc;
}

int ptc_store_chunks_create(struct job *j, struct ptc_error *err)
{
	char *dir = job_dir(j);
	int rc;

	if (!dir)
		return ptc_nomem(err);
	rc = make_dir(j, dir, err);
	if (!rc)
		rc = ptc_store_env_open(dir, STORE_CHUNKS, map_size(j), &j->env, &j->dbi, err);
	if (!rc)
		rc = attach(j, err);
	if (!rc)
		rc = write_identity(j, err);
	ptc_free(dir);
	if (rc)
		ptc_store_chunks_close(j);
	return rc;
}

static void start_use(struct chunk *c)
{
	c->unfilled = 0;
	c->used = 0;
	c->damaged = 0;
	c->dirty = ALL_BLOCKS;
	c->early = 0;
	c->closed = c->claimed = c->saved = c->ahead = false;
	atomic_store(&c->summed, false);
}

static int add_chunk(struct job *j, void *ptr, struct ptc_error *err)
{
	struct chunk *c;

	if (!PTC_ROOM(j->chunks, j->nchunks + 1, j->cap))
		return ptc_nomem(err);
	c = ptc_calloc(1, sizeof *c);
	if (!c)
		return ptc_nomem(err);
	c->ptr = (uint8_t *)ptr + CHUNK_PAD;
	j->chunks[j->nchunks++] = c;
	c->id = (uint32_t)j->nchunks;
	start_use(c);
	return 0;
}

static int check_identity(struct job *j, MDB_cursor *cur, struct ptc_error *err)
{
	struct identity id;
	MDB_val k, v;
	int rc = mdb_cursor_get(cur, &k, &v, MDB_FIRST);

	if (rc == 0 && k.mv_size == sizeof(size_t) && v.mv_size >= sizeof id) { /* a later version says more */
		memcpy(&id, v.mv_data, sizeof id);
		if (memcmp(id.magic, magic, sizeof magic) == 0 &&
		    !ptc_version_reads(id.version, RECORD_OLDEST, RECORD_VERSION))
			return ptc_error_set(err, PTC_EVERSION,
					     "its chunks are of version %u, this ptcd %s reads %d to %d: start a ptcd "
					     "next to the one that wrote them",
					     id.version, PTC_VERSION, RECORD_OLDEST, RECORD_VERSION + 1);
		if (memcmp(id.magic, magic, sizeof magic) == 0 && memcmp(id.store_id, j->s->id, STORE_UUID_LEN) == 0 &&
		    memcmp(id.job, j->uuid, STORE_UUID_LEN) == 0)
			return 0;
	}
	if (rc && rc != MDB_NOTFOUND)
		return ptc_store_lmdb_error(err, rc, "cannot read its identity");
	return ptc_error_set(err, PTC_ELOST, "another store made these chunks");
}

/* Every value must be one of ours, in order, where LMDB's layout says it can be. */
static int load_chunks(struct job *j, MDB_cursor *cur, struct ptc_error *err)
{
	MDB_val k, v;
	size_t id;
	int rc;

	while ((rc = mdb_cursor_get(cur, &k, &v, MDB_NEXT)) == 0) {
		if (k.mv_size != sizeof id)
			break;
		memcpy(&id, k.mv_data, sizeof id);
		if (id != j->nchunks + 1 || v.mv_size != CHUNK_VALUE ||
		    ((uintptr_t)v.mv_data - PAGE_HEADER) % j->page != 0)
			break;
		rc = add_chunk(j, v.mv_data, err);
		if (rc)
			return rc;
	}
	if (rc == MDB_NOTFOUND)
		return 0;
	return rc ? ptc_store_lmdb_error(err, rc, "cannot list chunks")
		  : ptc_error_set(err, PTC_ECORRUPT, "chunk %zu is not at its place in the file", j->nchunks + 1);
}

/* LMDB extends a file that was cut short with zeros; look at the length before it does. */
static int check_file(const char *dir, off_t *ret_size, struct ptc_error *err)
{
	struct stat st;
	char path[4096];
	bool aside;

	if (lstat(dir, &st) != 0 || !S_ISDIR(st.st_mode))
		return ptc_error_set(err, PTC_ELOST, "directory %s is gone", dir);
	snprintf(path, sizeof path, "%s/" STORE_ASIDE, dir);
	aside = lstat(path, &st) == 0;
	snprintf(path, sizeof path, "%s/data.mdb", dir);
	if (aside && lstat(path, &st) != 0)
		return ptc_error_set(err, PTC_ELOST, "%s was damaged, and is set aside", path);
	if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
		return ptc_error_set(err, PTC_ELOST, "file %s is gone", path);
	*ret_size = st.st_size;
	return 0;
}

static int open_env(struct job *j, const char *dir, off_t size, struct ptc_error *err)
{
	MDB_cursor *cur = NULL;
	MDB_txn *txn;
	int rc = ptc_store_env_open(dir, STORE_CHUNKS, map_size(j), &j->env, &j->dbi, err);

	if (!rc)
		rc = attach(j, err);
	if (!rc && (uint64_t)size < j->alloc_end)
		rc = ptc_error_set(err, PTC_ELOST, "%s/data.mdb was cut short", dir);
	if (!rc)
		rc = ptc_store_begin(j->env, false, &txn, err);
	if (rc)
		return rc;
	rc = mdb_cursor_open(txn, j->dbi, &cur);
	if (rc)
		rc = ptc_store_lmdb_error(err, rc, "cannot list chunks");
	if (!rc)
		rc = check_identity(j, cur, err);
	if (!rc)
		rc = load_chunks(j, cur, err);
	if (cur)
		mdb_cursor_close(cur);
	mdb_txn_abort(txn);
	return rc;
}

/* LMDB's own, whatever has become of its name: what is opened anew has rights and locks of its own. */
int ptc_store_chunks_reopen(const struct job *j, int flags)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/self/fd/%d", j->fd);
	return open(path, flags | O_CLOEXEC);
}

/* Whether a process that an earlier life has given the file may still write to it (ptc_table_file_writable). One that
 * is alive ends a moment after us, one that hangs in the kernel may take for ever. */
static bool others_write(const struct job *j)
{
	int fd = ptc_store_chunks_reopen(j, O_RDWR);
	bool others = fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0;

	ptc_close(&fd);
	return others;
}

static int no_others(struct job *j, struct ptc_error *err)
{
	if (!j->others || !(j->others = others_write(j)))
		return 0;
	return ptc_error_set(err, PTC_ESTATE,
			     "job %s: a process (ptc-copy) of a ptcd that was killed is stuck copying a rank's memory, "
			     "and may still "
			     "write to this node's chunks of the job; none is handed out until it has ended",
			     j->uuid);
}

int ptc_store_chunks_open(struct job *j, struct ptc_error *err)
{
	ptc_auto_free char *dir = job_dir(j);
	struct ptc_error e = PTC_ERROR_INIT;
	off_t size = 0;
	int rc;

	if (!dir)
		return ptc_nomem(err);
	rc = check_file(dir, &size, err);
	if (rc)
		return rc;
	rc = open_env(j, dir, size, &e);
	if (rc) {
		ptc_store_chunks_close(j);
		if (rc == PTC_ECORRUPT) { /* for the job its chunks are gone */
			rc = ptc_store_set_aside(dir, e.text, err);
			if (rc == 0)
				rc = PTC_ELOST;
		}
		return ptc_error_set(err, rc, "%s", e.text);
	}
	j->others = others_write(j);
	pthread_mutex_lock(&j->s->lock);
	j->nwarm = j->nchunks;
	j->s->nwarm += j->nchunks;
	pthread_mutex_unlock(&j->s->lock);
	return 0;
}

static _Atomic uint64_t *use_of(struct chunk *c)
{
	return (void *)(c->ptr - sizeof(uint64_t));
}

/* Its bytes are about to become others'. Readers of the file (ptc_table_spans) look at the count after they have
 * copied: the new one is seen before any new byte is. It lies in the file, so it holds for readers that a ptcd before
 * us has let in, too. */
static void use_anew(struct chunk *c)
{
	atomic_fetch_add(use_of(c), 1);
	atomic_thread_fence(memory_order_seq_cst);
}

void ptc_store_chunk_parts_drop_locked(struct chunk *c, uint32_t at, uint32_t end)
{
	for (struct chunk_part **p = &c->parts; *p;) {
		struct chunk_part *gone = *p;

		if (gone->at >= end || gone->at + gone->bytes <= at) {
			p = &gone->next;
			continue;
		}
		*p = gone->next;
		ptc_free(gone);
	}
}

void ptc_store_chunks_close(struct job *j)
{
	pthread_mutex_lock(&j->s->lock);
	j->s->nused -= j->nused;
	j->s->nwarm -= j->nwarm;
	pthread_mutex_unlock(&j->s->lock);
	for (size_t i = 0; j->env && j->deleted && i < j->nchunks; i++)
		use_anew(j->chunks[i]); /* a punch leaves out for a while what somebody is just reading, counts among it
					 */
	for (size_t i = 0; i < j->nchunks; i++) {
		ptc_store_chunk_parts_drop_locked(j->chunks[i], 0, PTC_CHUNK_BYTES);
		ptc_free(j->chunks[i]);
	}
	ptc_free(j->chunks);
	if (j->env && j->deleted) /* a reader that has the file open keeps no memory by it, and finds no count */
		(void)fallocate(j->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)j->map_bytes);
	if (j->env)
		mdb_env_close(j->env);
	j->env = NULL;
	j->chunks = NULL;
	j->warm = j->cold = NULL;
	j->nchunks = j->cap = j->nwarm = j->nused = j->nahead = 0;
}

struct chunk_counts ptc_store_chunks_count(struct ptc_store *s, const struct job *j_or_null)
{
	struct chunk_counts n;

	pthread_mutex_lock(&s->lock);
	n = j_or_null ? (struct chunk_counts){ j_or_null->nused, j_or_null->nwarm }
		      : (struct chunk_counts){ s->nused, s->nwarm };
	pthread_mutex_unlock(&s->lock);
	return n;
}

static size_t warm_of(const struct job *j)
{
	return ptc_store_chunks_count(j->s, j).warm;
}

/* With blocks, of all jobs. */
static uint64_t all_of(struct ptc_store *s)
{
	struct chunk_counts n = ptc_store_chunks_count(s, NULL);

	return (uint64_t)n.used + n.warm;
}

void ptc_store_chunk_put_locked(struct job *j, struct chunk *c)
{
	if (--c->refs > 0)
		return;
	ptc_store_chunk_parts_drop_locked(c, 0, PTC_CHUNK_BYTES);
	c->next = j->warm;
	j->warm = c;
	j->nwarm++;
	j->s->nwarm++;
	j->nused--;
	j->s->nused--;
}

void ptc_store_chunk_use_locked(struct job *j, struct chunk *c)
{
	if (c->refs++ > 0)
		return;
	j->nused++;
	j->s->nused++;
	j->nwarm--;
	j->s->nwarm--;
}

uint64_t ptc_store_chunk_use(struct chunk *c)
{
	uint64_t none = 0; /* of a store from before chunks were counted */

	atomic_compare_exchange_strong(use_of(c), &none, 1);
	return atomic_load(use_of(c));
}

/* Proven by its page header being there in both views. */
int ptc_store_chunk_page(const struct job *j, const struct chunk *c, uint64_t *ret_off, struct ptc_error *err)
{
	struct page_header mem, file;
	uint64_t off;

	memcpy(&mem, c->ptr - CHUNK_PAD - sizeof mem, sizeof mem);
	off = mem.pgno * j->page;
	if (mem.pgno > j->map_bytes / j->page || !(mem.flags & P_OVERFLOW) || mem.pages != CHUNK_SPAN / j->page ||
	    pread(j->fd, &file, sizeof file, (off_t)off) != (ssize_t)sizeof file ||
	    memcmp(&mem, &file, sizeof mem) != 0)
		return ptc_error_set(err, PTC_ECORRUPT, "job %s: chunk %u has a bad page header", j->uuid, c->id);
	*ret_off = off;
	return 0;
}

static int punch(struct job *j, struct chunk *c, struct ptc_error *err)
{
	uint64_t off;
	int rc = ptc_store_chunk_page(j, c, &off, err), e;

	if (rc)
		return rc;
	(void)ptc_fault("store.punch.before");
	use_anew(c);
	atomic_store(&c->mapped, false);
	atomic_store(&c->mapped_by, 0);
	e = punch_range(j, off + j->page, CHUNK_SPAN - j->page);
	if (e) {
		j->no_punch = e == EOPNOTSUPP || e == ENOSYS;
		return ptc_error_errno(err, e, "job %s: cannot free chunk %u", j->uuid, c->id);
	}
	(void)ptc_fault("store.punch.after");
	return 0;
}

static struct chunk *pop(struct job *j, struct chunk **list)
{
	struct chunk *c;

	pthread_mutex_lock(&j->s->lock);
	c = *list;
	if (c)
		*list = c->next;
	pthread_mutex_unlock(&j->s->lock);
	return c;
}

static void push(struct job *j, struct chunk **list, struct chunk *c)
{
	pthread_mutex_lock(&j->s->lock);
	c->next = *list;
	*list = c;
	pthread_mutex_unlock(&j->s->lock);
}

/* A chunk that has got its blocks. */
static void push_made(struct job *j, struct chunk *c)
{
	c->ahead = j->makes_ahead;
	j->nahead += c->ahead;
	push(j, &j->warm, c);
}

static void count_warm(struct job *j, int64_t delta)
{
	pthread_mutex_lock(&j->s->lock);
	j->nwarm += (size_t)delta;
	j->s->nwarm += (uint64_t)delta;
	pthread_mutex_unlock(&j->s->lock);
}

/* A free chunk that is in no list gets into that of the cold ones, or back among the warm ones. */
static int cool(struct job *j, struct chunk *c, struct ptc_error *err)
{
	int rc = punch(j, c, err);

	push(j, rc ? &j->warm : &j->cold, c);
	if (rc)
		return rc;
	count_warm(j, -1);
	j->nahead -= c->ahead;
	c->ahead = false;
	return 0;
}

int ptc_store_chunks_trim(struct job *j, size_t leave, struct ptc_error *err)
{
	while (warm_of(j) > leave && !j->no_punch) {
		struct chunk *c = pop(j, &j->warm);
		int rc = c ? cool(j, c, err) : 0;

		if (!c || rc)
			return j->no_punch ? 0 : rc;
	}
	return 0;
}

void ptc_store_chunks_behind(struct job *j, size_t n)
{
	struct chunk *found = NULL, **at;

	pthread_mutex_lock(&j->s->lock);
	at = &j->warm;
	while (n > 0 && *at) {
		struct chunk *c = *at;

		if (c->ahead) {
			*at = c->next;
			c->next = found;
			found = c;
			n--;
		} else {
			at = &c->next;
		}
	}
	pthread_mutex_unlock(&j->s->lock);
	while (found) {
		struct chunk *c = found;

		found = c->next;
		(void)cool(j, c, NULL);
	}
}

/* What tables refer to is known now: the rest is free. Which of that still has blocks is not, so none will. */
int ptc_store_chunks_finalize(struct job *j, struct ptc_error *err)
{
	uint64_t off;
	int rc = 0;

	for (size_t i = j->nchunks; i-- > 0;) {
		struct chunk *c = j->chunks[i];

		if (c->refs == 0) {
			c->next = j->warm;
			j->warm = c;
		} else if (c->unfilled > 0) { /* a power cut may have undone the reservation of its blocks */
			rc = ptc_store_chunk_page(j, c, &off, err);
			if (!rc)
				rc = ptc_store_file_alloc(j->fd, off + j->page, CHUNK_SPAN - j->page, err);
			if (rc)
				return rc;
		}
	}
	/* Blocks reserved for chunks that a crash kept from being made. A file that a higher ceiling has let grow ends
	 * where its map ends. */
	if (j->map_bytes > j->alloc_end &&
	    fallocate(j->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)j->alloc_end,
		      (off_t)(j->map_bytes - j->alloc_end)) != 0 &&
	    errno != EOPNOTSUPP && errno != ENOSYS)
		return ptc_error_errno(err, errno, "cannot free what a crash reserved");
	return ptc_store_chunks_trim(j, 0, err);
}

uint64_t ptc_store_chunks_max(const struct ptc_store *s)
{
	return (s->ceiling - PTC_MIN(s->ceiling, s->outside)) / PTC_CHUNK_BYTES;
}

void ptc_store_chunks_yield(struct ptc_store *s, const struct job *but, uint64_t max)
{
	for (struct job *o = s->jobs; o; o = o->next) {
		uint64_t all = all_of(s), warm = warm_of(o);

		if (all <= max)
			return;
		if (o != but && o->env)
			(void)ptc_store_chunks_trim(o, warm > all - max ? (size_t)(warm - (all - max)) : 0, NULL);
	}
}

/* Room under the ceiling for n more chunks with blocks; other jobs' free ones go first. */
static int make_room(struct job *j, size_t n, struct ptc_error *err)
{
	struct ptc_store *s = j->s;
	uint64_t max = ptc_store_chunks_max(s), all;
	struct chunk_counts has;

	ptc_store_chunks_yield(s, j, max - PTC_MIN(max, n));
	has = ptc_store_chunks_count(s, NULL);
	all = (uint64_t)has.used + has.warm + n;
	if (all <= max)
		return 0;
	return ptc_error_set(
		err, PTC_ENOSPC,
		"the store is full: %llu of %llu chunks are in use, and %zu more are needed (ceiling %llu bytes): "
		"raise memory.ceiling by at least %llu MiB, or delete jobs or snapshots on this node",
		(unsigned long long)has.used, (unsigned long long)max, n + warm_of(j), (unsigned long long)s->ceiling,
		(unsigned long long)ptc_store_raise_mib((all - max) * PTC_CHUNK_BYTES));
}

static int put_values(struct job *j, MDB_txn *txn, size_t n, void **ptrs)
{
	for (size_t i = 0; i < n; i++) {
		size_t id = j->nchunks + 1 + i;
		MDB_val k = key_of(&id), v = { CHUNK_VALUE, NULL };
		int rc = mdb_put(txn, j->dbi, &k, &v, MDB_RESERVE | MDB_NOOVERWRITE | MDB_APPEND);

		if (rc)
			return rc;
		ptrs[i] = v.mv_data;
	}
	return 0;
}

/* Adds n chunks as free ones with blocks. The memory that describes them is allocated before the commit. */
static int make_new(struct job *j, size_t n, struct ptc_error *err)
{
	void **ptrs = ptc_malloc(n * sizeof *ptrs);
	size_t before = j->nchunks;
	MDB_txn *txn;
	int rc = ptrs ? grow_file(j, n, err) : ptc_nomem(err);

	if (!rc)
		rc = ptc_store_begin(j->env, true, &txn, err);
	if (rc) {
		ptc_free(ptrs);
		return rc;
	}
	rc = put_values(j, txn, n, ptrs);
	if (rc)
		rc = ptc_store_lmdb_error(err, rc, "cannot reserve %zu chunks for job %s", n, j->uuid);
	for (size_t i = 0; i < n && !rc; i++)
		rc = add_chunk(j, ptrs[i], err);
	if (rc)
		mdb_txn_abort(txn);
	else
		rc = ptc_store_commit(txn, STORE_CHUNKS, err);
	ptc_free(ptrs);
	while (rc && j->nchunks > before)
		ptc_free(j->chunks[--j->nchunks]);
	for (size_t i = j->nchunks; i-- > before;)
		push_made(j, j->chunks[i]);
	count_warm(j, (int64_t)(j->nchunks - before));
	return rc;
}

struct cold {
	uint64_t off;
	struct chunk *c;
};

static int by_place(const void *a, const void *b)
{
	const struct cold *l = a, *r = b;

	return l->off < r->off ? -1 : l->off > r->off;
}

/* Huge pages span chunks, so chunks that follow each other in the file are filled together. Between two of them may be
 * pages of LMDB, which have their blocks, but no chunk that is to stay cold. */
static void fill_runs(struct job *j, const struct cold *v, size_t n)
{
	for (size_t i = 0, next; i < n; i = next) {
		for (next = i + 1; next < n && v[next].off - v[next - 1].off < 2 * CHUNK_SPAN; next++)
			;
		ptc_store_huge_fill(j, v[i].off, v[next - 1].off + CHUNK_SPAN - v[i].off);
	}
}

/* The first n free chunks without blocks get theirs. If there is no room for all, some may have got them. */
static int warm_up(struct job *j, size_t n, struct ptc_error *err)
{
	struct cold *v = ptc_malloc(n * sizeof *v);
	bool filled = false;
	size_t k = 0;
	int rc = v ? 0 : ptc_nomem(err);

	for (; !rc && k < n && (v[k].c = pop(j, &j->cold)); k++)
		rc = ptc_store_chunk_page(j, v[k].c, &v[k].off, err);
	if (!rc) {
		qsort(v, k, sizeof *v, by_place);
		fill_runs(j, v, k);
		filled = true;
	}
	while (k-- > 0) { /* those in front are taken first afterwards */
		if (!rc)
			rc = ptc_store_file_alloc(j->fd, v[k].off + j->page, CHUNK_SPAN - j->page, err);
		if (!rc)
			count_warm(j, 1);
		else if (filled)
			(void)punch_range(j, v[k].off + j->page, CHUNK_SPAN - j->page);
		if (rc)
			push(j, &j->cold, v[k].c);
		else
			push_made(j, v[k].c);
	}
	ptc_free(v);
	return rc;
}

static int supply_more(struct job *j, size_t n, struct ptc_error *err)
{
	uint64_t max = ptc_store_chunks_max(j->s);
	size_t warm = warm_of(j);

	if (warm < n && j->cold) {
		int rc = warm_up(j, n - warm, err);

		if (rc)
			return rc;
	}
	for (warm = warm_of(j); warm < n; warm = warm_of(j)) {
		size_t need = PTC_MIN(n - warm, NEW_BATCH);
		uint64_t room = max - PTC_MIN(max, all_of(j->s));
		size_t step = PTC_MAX(need, (size_t)PTC_MIN((need + NEW_STEP - 1) / NEW_STEP * NEW_STEP, room));
		int rc = make_new(j, step, err);

		if (rc == PTC_ENOSPC && step > need)
			rc = make_new(j, need, err);
		if (rc)
			return rc;
	}
	return 0;
}

/* At least n free chunks with blocks. */
static int supply(struct job *j, size_t n, struct ptc_error *err)
{
	const size_t warm = warm_of(j);
	int rc = n > warm ? make_room(j, n - warm, err) : 0;
	bool trimmed = false;

	if (rc)
		return rc;
	rc = supply_more(j, n, err);
	if (rc != PTC_ENOSPC)
		return rc;
	/* The file system is fuller than our ceiling says: what other jobs keep warm is worth less than this. */
	for (struct job *o = j->s->jobs; o; o = o->next) {
		if (o == j || !o->env || warm_of(o) == 0)
			continue;
		trimmed = true;
		(void)ptc_store_chunks_trim(o, 0, NULL);
	}
	return trimmed ? supply_more(j, n, err) : rc;
}

void ptc_store_huge_changed(struct job *j, bool chunks)
{
	atomic_store(&j->s->huge.busy_ns, ptc_sys_now_ns());
	if (chunks && j->s->huge.runs && j->volatile_fs) {
		j->huge_todo = true;
		j->huge_at = 0;
	}
}

void ptc_store_huge_read(struct job *j)
{
	atomic_store_explicit(&j->s->huge.read_ns, ptc_sys_now_ns(), memory_order_relaxed);
}

int ptc_store_chunks_take(struct job *j, size_t n, struct chunk **ret_chunks, struct ptc_error *err)
{
	int rc;

	ptc_store_huge_changed(j, n > warm_of(j) || j->nahead);
	rc = no_others(j, err);
	if (rc == 0)
		rc = supply(j, n, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&j->s->lock);
	for (size_t i = 0; i < n; i++) {
		struct chunk *c = j->warm;

		j->warm = c->next;
		j->nahead -= c->ahead;
		start_use(c);
		ptc_store_chunk_use_locked(j, c);
		ret_chunks[i] = c;
	}
	pthread_mutex_unlock(&j->s->lock);
	for (size_t i = 0; i < n; i++) /* its page may have to come from a disk */
		use_anew(ret_chunks[i]);
	return 0;
}

/* Kernels before 5.14 do not know the request, and take a fault for each page. */
void ptc_store_chunk_map(struct chunk *c)
{
	if (atomic_exchange(&c->mapped, true))
		return;
	(void)madvise(c->ptr - CHUNK_PAD - PAGE_HEADER, CHUNK_SPAN, MADV_POPULATE_WRITE);
}

/* The chunks behind it stay as they are while the caller has wlock: others only put some in front. */
static struct chunk *first_warm(struct job *j)
{
	struct chunk *c;

	pthread_mutex_lock(&j->s->lock);
	c = j->warm;
	pthread_mutex_unlock(&j->s->lock);
	return c;
}

int ptc_store_chunks_warm(struct job *j, size_t n, struct ptc_error *err)
{
	size_t i = 0;
	int rc;

	if (n <= warm_of(j))
		return 0;
	ptc_store_huge_changed(j, true);
	rc = supply(j, n, err);
	for (struct chunk *c = rc ? NULL : first_warm(j); c && i < n; c = c->next, i++)
		ptc_store_chunk_map(c);
	return rc;
}

size_t ptc_store_chunks_ahead(struct job *j, size_t n)
{
	const size_t had = j->nahead;
	size_t made;

	if (j->no_punch || no_others(j, NULL))
		return 0;
	j->makes_ahead = true;
	(void)supply_more(j, warm_of(j) + n, NULL); /* some may be there even so */
	j->makes_ahead = false;
	made = j->nahead - had;
	n = made;
	for (struct chunk *c = first_warm(j); c && n; c = c->next)
		if (c->ahead && !atomic_load(&c->mapped)) {
			ptc_store_chunk_map(c);
			n--;
		}
	return made;
}

static void sum_block(struct chunk *c, unsigned b)
{
	size_t off = (size_t)b * PTC_BLOCK_BYTES;

	c->sum[b] = ptc_checksum(c->ptr + off, PTC_MIN(PTC_BLOCK_BYTES, PTC_CHUNK_BYTES - off));
}

void ptc_store_chunk_sum_early(struct chunk *c, uint16_t blocks)
{
	blocks &= (uint16_t)~atomic_load_explicit(&c->early, memory_order_relaxed);
	for (unsigned b = 0; b < CHUNK_BLOCKS; b++)
		if (blocks & (1u << b))
			sum_block(c, b);
	atomic_fetch_or(&c->early, blocks);
}

void ptc_store_chunk_part(struct job *j, struct chunk *c, uint32_t at, uint32_t bytes)
{
	struct chunk_part *p = ptc_malloc(sizeof *p);

	if (!p)
		return;
	*p = (struct chunk_part){ .at = at, .bytes = bytes, .sum = ptc_checksum(c->ptr + at, bytes) };
	pthread_mutex_lock(&j->s->lock);
	p->next = c->parts;
	c->parts = p;
	pthread_mutex_unlock(&j->s->lock);
}

bool ptc_store_chunk_sum(struct chunk *c)
{
	uint16_t blocks = (uint16_t)(c->dirty & ~atomic_load(&c->early));
	bool same = true;

	for (unsigned b = 0; b < CHUNK_BLOCKS; b++)
		if (blocks & (1u << b))
			sum_block(c, b);
	for (const struct chunk_part *p = c->parts; p; p = p->next) /* after the block's sum */
		same = ptc_checksum(c->ptr + p->at, p->bytes) == p->sum && same;
	ptc_store_chunk_parts_drop_locked(c, 0, PTC_CHUNK_BYTES); /* ours alone, as it is claimed */
	c->dirty = 0;
	c->early = 0;
	return same;
}
