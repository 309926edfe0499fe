/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the store and its jobs.
 *
 * Happy path: open takes the lock file, makes meta if there is none, reads the store's id, opens each job's chunks,
 * loads its tables and so knows which chunks are free. job_create records its intent (creating), makes the environment,
 * records that it is ready; job_delete records its intent (deleting), removes the directory, removes the records. So
 * open finishes or undoes a step that a crash has interrupted.
 *
 * Failure modes: the chunks of a job are gone or belong to another store, or its records do not verify. Then the job
 * stays in the list as lost, every use of it gives the reason, and the other jobs work. A damaged data file is set
 * aside: without its chunks a job is lost, and without meta the store is a new one. A second process is refused. */
#include "daemon/store/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/fault.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define META_MAP_BYTES (UINT64_C(64) << 30) /* address space, not disk */

static int check_uuid(const char *uuid, struct ptc_error *err)
{
	size_t n = strnlen(uuid, STORE_UUID_LEN + 1);

	for (size_t i = 0; i < n; i++)
		if (!isxdigit((unsigned char)uuid[i]) && uuid[i] != '-')
			n = 0;
	return n == STORE_UUID_LEN ? 0 : ptc_error_set(err, PTC_EINVAL, "\"%.64s\" is not a job uuid", uuid);
}

static struct job *job_find(struct ptc_store *s, const char *uuid)
{
	struct job *j;

	pthread_mutex_lock(&s->lock);
	j = ptc_store_job_find_locked(s, uuid);
	pthread_mutex_unlock(&s->lock);
	return j;
}

static struct job *job_new(struct ptc_store *s, const char *uuid, uid_t uid, int64_t fence)
{
	struct job *j = ptc_calloc(1, sizeof *j);

	if (!j)
		return NULL;
	j->s = s;
	j->uid = uid;
	j->fence = fence;
	j->refs = 1;
	j->fd = -1;
	memcpy(j->uuid, uuid, STORE_UUID_LEN);
	return j;
}

static void job_register(struct job *j)
{
	pthread_mutex_lock(&j->s->lock);
	j->next = j->s->jobs;
	j->s->jobs = j;
	pthread_mutex_unlock(&j->s->lock);
}

static int remove_job(struct ptc_store *s, const char *uuid, struct ptc_error *err)
{
	char *dir = ptc_asprintf("%s/%s", s->chunk_dir, uuid);
	int rc = dir ? ptc_sys_remove_tree(dir, "store.job.remove", err) : ptc_nomem(err);

	ptc_free(dir);
	return rc ? rc : ptc_store_rec_job_del(s, uuid, err);
}

/* Takes every table out of the registry; what somebody still holds lives on, unlisted. */
static void forget_tables(struct job *j)
{
	for (;;) {
		struct ptc_table *t;

		pthread_mutex_lock(&j->s->lock);
		t = j->tables;
		if (t) {
			j->tables = t->next;
			t->dropped = true;
			for (size_t i = 0; i < t->nchunks; i++)
				t->chunks[i]->stored--;
		}
		pthread_mutex_unlock(&j->s->lock);
		if (!t)
			return;
		ptc_table_unref(t);
	}
}

static int load_job(struct job *j, struct ptc_error *err)
{
	int rc = ptc_store_chunks_open(j, err);

	if (!rc)
		rc = ptc_store_rec_tables_load(j, err);
	return rc ? rc : ptc_store_chunks_finalize(j, err);
}

static int open_job(void *arg, const char *uuid, uid_t uid, int64_t fence, enum job_state state, struct ptc_error *err)
{
	struct ptc_store *s = arg;
	struct ptc_error e = PTC_ERROR_INIT;
	struct job *j;
	int rc;

	if (check_uuid(uuid, &e)) { /* its key is damaged */
		ptc_error_log("store", "a job is left out: the key of its record in meta is damaged");
		return 0;
	}
	if (state != JOB_READY)
		return remove_job(s, uuid, err);
	j = job_new(s, uuid, uid, fence);
	if (!j)
		return ptc_nomem(err);
	job_register(j);
	rc = load_job(j, &e);
	if (rc == PTC_ENOMEM)
		return ptc_error_set(err, rc, "job %s: %s", uuid, e.text);
	if (rc) {
		forget_tables(j);
		ptc_store_chunks_close(j);
		j->bad = rc == PTC_ECORRUPT || rc == PTC_EVERSION || rc == PTC_ENOSPC ? rc : PTC_ELOST;
		snprintf(j->why, sizeof j->why, "its chunks cannot be used: %.200s", e.text);
		ptc_debug("store", "job %s is lost: %s", uuid, j->why);
	}
	return 0;
}

static int make_dir(const char *path, struct ptc_error *err)
{
	struct stat st;
	int rc = ptc_sys_mkdirs(path, 0700, err);

	if (rc)
		return rc;
	if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
		return ptc_error_set(err, PTC_EINVAL, "%s is not a directory", path);
	if (st.st_uid != geteuid() || (st.st_mode & 077))
		return ptc_error_set(err, PTC_EPERM, "%s must belong to uid %u with mode 0700: chown and chmod it",
				     path, (unsigned)geteuid());
	return 0;
}

/* Stores with tables of their own may have been given one folder for chunks: of the same job each would overwrite the
 * other's. */
static int take_locks(struct ptc_store *s, struct ptc_error *err)
{
	char *path = ptc_asprintf("%s/lock", s->meta_dir);

	if (!path)
		return ptc_nomem(err);
	s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	ptc_free(path);
	if (s->lock_fd < 0)
		return ptc_error_errno(err, errno, "cannot open the lock file in %s", s->meta_dir);
	if (flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0)
		return ptc_error_set(
			err, PTC_ESTATE,
			"another process uses the store %s; stop it, or give each daemon a directory of its own",
			s->meta_dir);
	s->chunk_lock_fd = open(s->chunk_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->chunk_lock_fd < 0)
		return ptc_error_errno(err, errno, "cannot open %s", s->chunk_dir);
	if (flock(s->chunk_lock_fd, LOCK_EX | LOCK_NB) != 0)
		return ptc_error_set(err, PTC_ESTATE,
				     "another process uses the chunks in %s; give each daemon a chunk_dir of its own",
				     s->chunk_dir);
	return 0;
}

/* LMDB writes the first pages of a new file without syncing them: after a power cut they may be half there, and then
 * nobody can tell a store that was never used from one that is damaged. So it is made beside and renamed when whole. */
static int make_meta(struct ptc_store *s, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/data.mdb", s->meta_dir);
	ptc_auto_free char *dir = ptc_asprintf("%s/new", s->meta_dir);
	ptc_auto_free char *made = ptc_asprintf("%s/new/data.mdb", s->meta_dir);
	ptc_auto_close int fd = -1;
	struct stat st;
	MDB_env *env;
	MDB_dbi dbi;
	int rc;

	if (!path || !dir || !made)
		return ptc_nomem(err);
	if (lstat(path, &st) == 0)
		return 0;
	rc = ptc_sys_remove_tree(dir, "store.new.remove", err);
	if (!rc)
		rc = ptc_sys_mkdirs(dir, 0700, err);
	if (!rc)
		rc = ptc_store_env_open(dir, STORE_META, META_MAP_BYTES, &env, &dbi, err);
	if (rc)
		return rc;
	mdb_env_close(env);
	fd = open(made, O_RDWR | O_CLOEXEC);
	rc = fd < 0 ? ptc_error_errno(err, errno, "cannot open %s", made)
		    : ptc_sys_publish(fd, made, path, "store.new", err);
	return rc ? rc : ptc_sys_remove_tree(dir, "store.new.remove", err);
}

static int open_meta(struct ptc_store *s, struct ptc_error *err)
{
	int rc = make_meta(s, err);

	if (!rc)
		rc = ptc_store_env_open(s->meta_dir, STORE_META, META_MAP_BYTES, &s->meta, &s->dbi, err);
	return rc ? rc : ptc_store_rec_store(s, err);
}

/* A node whose meta is damaged is worth as much as a new one: the bytes come from other nodes. */
static int open_meta_or_anew(struct ptc_store *s, struct ptc_error *err)
{
	struct ptc_error e = PTC_ERROR_INIT;
	int rc = open_meta(s, &e);

	if (rc != PTC_ECORRUPT)
		return rc ? ptc_error_set(err, rc, "%s", e.text) : 0;
	if (s->meta)
		mdb_env_close(s->meta);
	s->meta = NULL;
	rc = ptc_store_set_aside(s->meta_dir, e.text, err);
	return rc ? rc : open_meta(s, err);
}

static int open_parts(struct ptc_store *s, struct ptc_error *err)
{
	int rc = make_dir(s->meta_dir, err);

	if (!rc)
		rc = make_dir(s->chunk_dir, err);
	if (!rc)
		rc = take_locks(s, err);
	if (!rc)
		rc = open_meta_or_anew(s, err);
	return rc ? rc : ptc_store_rec_jobs(s, open_job, s, err);
}

int ptc_store_open(const struct ptc_store_opts *opts, struct ptc_store **ret_store, struct ptc_error *err)
{
	struct ptc_store *s = ptc_calloc(1, sizeof *s);
	int rc;

	if (!s)
		return ptc_nomem(err);
	s->lock_fd = s->chunk_lock_fd = -1;
	s->ceiling = opts->chunk_ceiling;
	s->cushion = opts->cushion_bytes;
	s->damaged = opts->damaged;
	s->damaged_arg = opts->damaged_arg;
	pthread_mutex_init(&s->wlock, NULL);
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->huge.blocks, NULL);
	s->meta_dir = ptc_strdup(opts->meta_dir);
	s->chunk_dir = ptc_strdup(opts->chunk_dir);
	rc = s->meta_dir && s->chunk_dir ? open_parts(s, err) : ptc_nomem(err);
	if (rc) {
		ptc_store_close(s);
		return rc;
	}
	ptc_store_huge_begin(s);
	*ret_store = s;
	return 0;
}

struct ptc_store *ptc_store_close(struct ptc_store *s)
{
	if (!s)
		return NULL;
	ptc_store_huge_end(s);
	while (s->jobs) {
		struct job *j = s->jobs;

		forget_tables(j);
		s->jobs = j->next;
		ptc_require(j->refs == 1); /* a reference to a table outlives the store */
		ptc_store_job_free(j);
	}
	if (s->meta)
		mdb_env_close(s->meta);
	ptc_close(&s->lock_fd);
	ptc_close(&s->chunk_lock_fd);
	pthread_mutex_destroy(&s->wlock);
	pthread_mutex_destroy(&s->lock);
	pthread_mutex_destroy(&s->huge.blocks);
	ptc_free(s->meta_dir);
	ptc_free(s->chunk_dir);
	ptc_free(s);
	return NULL;
}

const char *ptc_store_id(const struct ptc_store *s)
{
	return s->id;
}

static uint64_t blocks_of(MDB_env *env)
{
	struct stat st;
	int fd;

	if (!env || mdb_env_get_fd(env, &fd) || fstat(fd, &st) != 0)
		return 0;
	return (uint64_t)st.st_blocks * 512;
}

void ptc_store_stats(struct ptc_store *s, struct ptc_store_stats *ret_stats)
{
	struct ptc_store_stats r = { .ceiling = s->ceiling };

	pthread_mutex_lock(&s->lock);
	r.file_bytes = blocks_of(s->meta);
	for (struct job *j = s->jobs; j; j = j->next) {
		r.file_bytes += blocks_of(j->env);
		r.lost_jobs += j->bad != 0;
		r.in_memory |= j->volatile_fs;
	}
	r.chunks_used = s->nused;
	r.chunks_free = s->nwarm;
	r.used_bytes = s->nused * PTC_CHUNK_BYTES;
	r.copied_bytes = s->copied_bytes;
	r.huge_bytes = atomic_load(&s->huge.bytes);
	r.outside_bytes = s->outside;
	r.short_mib = r.used_bytes > r.ceiling ? ptc_store_raise_mib(r.used_bytes - r.ceiling) : 0;
	pthread_mutex_unlock(&s->lock);
	*ret_stats = r;
}

int ptc_store_outside_take(struct ptc_store *s, uint64_t bytes, struct ptc_error *err)
{
	uint64_t room, used, want;
	int rc = 0;

	pthread_mutex_lock(&s->wlock);
	used = ptc_store_chunks_count(s, NULL).used * (uint64_t)PTC_CHUNK_BYTES;
	room = s->ceiling - PTC_MIN(s->ceiling, used);
	if (ptc_ckd_add(&want, s->outside, bytes) || want > room / 2) {
		rc = ptc_error_set(
			err, PTC_ENOSPC,
			"%llu bytes are needed beside the %llu that are taken for other memory than chunks, and "
			"as much again for chunks: %llu of %llu bytes are free",
			(unsigned long long)bytes, (unsigned long long)s->outside, (unsigned long long)room,
			(unsigned long long)s->ceiling);
	} else {
		pthread_mutex_lock(&s->lock);
		s->outside = want;
		pthread_mutex_unlock(&s->lock);
		ptc_store_chunks_yield(s, NULL, ptc_store_chunks_max(s));
	}
	pthread_mutex_unlock(&s->wlock);
	return rc;
}

void ptc_store_outside_give(struct ptc_store *s, uint64_t bytes)
{
	pthread_mutex_lock(&s->lock);
	s->outside -= bytes;
	pthread_mutex_unlock(&s->lock);
}

int ptc_store_warm(struct ptc_store *s, const char *uuid, uint64_t bytes, struct ptc_error *err)
{
	struct job *j;
	int rc;

	pthread_mutex_lock(&s->wlock);
	j = job_find(s, uuid);
	rc = ptc_store_job_usable(j, uuid, err);
	if (!rc)
		rc = ptc_store_chunks_warm(j, bytes / PTC_CHUNK_BYTES + 2, err); /* what is begun, and extents' ends */
	pthread_mutex_unlock(&s->wlock);
	return rc;
}

static int create_locked(struct ptc_store *s, const char *uuid, uid_t uid, struct ptc_error *err)
{
	struct job *j = job_find(s, uuid);
	int rc;

	if (j && j->uid != uid)
		return ptc_error_set(err, PTC_EPERM, "job %s belongs to uid %u", uuid, (unsigned)j->uid);
	if (j)
		return 0;
	j = job_new(s, uuid, uid, 0);
	if (!j)
		return ptc_nomem(err);
	rc = ptc_store_rec_job_put(s, j, JOB_CREATING, err);
	if (!rc)
		rc = ptc_store_chunks_create(j, err);
	if (!rc)
		rc = ptc_store_rec_job_put(s, j, JOB_READY, err);
	if (!rc) {
		job_register(j);
		return 0;
	}
	ptc_store_job_free(j);
	(void)remove_job(s, uuid, NULL); /* else the next open does */
	return rc;
}

int ptc_store_job_create(struct ptc_store *s, const char *uuid, uid_t uid, struct ptc_error *err)
{
	int rc = check_uuid(uuid, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&s->wlock);
	rc = create_locked(s, uuid, uid, err);
	pthread_mutex_unlock(&s->wlock);
	return rc;
}

/* In this order: cut off anywhere, the next open finds chunks that cannot be used, or none and no table that has any.
 */
static int anew_locked(struct job *j, struct ptc_error *err)
{
	struct ptc_store *s = j->s;
	char *dir = ptc_asprintf("%s/%s", s->chunk_dir, j->uuid);
	int rc = dir ? ptc_sys_remove_tree(dir, "store.job.anew", err) : ptc_nomem(err);

	ptc_free(dir);
	if (!rc)
		rc = ptc_store_rec_job_empty(s, j->uuid, err);
	if (!rc)
		rc = ptc_store_chunks_create(j, err);
	if (rc)
		return rc;
	j->bad = 0;
	j->why[0] = '\0';
	return 0;
}

int ptc_store_job_anew(struct ptc_store *s, const char *uuid, struct ptc_error *err)
{
	struct job *j;
	int rc = 0;

	pthread_mutex_lock(&s->wlock);
	j = job_find(s, uuid);
	if (j && (j->bad == PTC_ELOST || j->bad == PTC_ECORRUPT))
		rc = anew_locked(j, err);
	else if (j)
		rc = ptc_store_job_usable(j, uuid, err);
	pthread_mutex_unlock(&s->wlock);
	return rc;
}

static void unlist(struct job *j)
{
	struct ptc_store *s = j->s;
	struct job *last;

	pthread_mutex_lock(&s->lock);
	for (struct job **p = &s->jobs; *p; p = &(*p)->next)
		if (*p == j) {
			*p = j->next;
			break;
		}
	pthread_mutex_unlock(&s->lock);
	forget_tables(j);
	pthread_mutex_lock(&s->lock);
	last = ptc_store_job_unref_locked(j);
	pthread_mutex_unlock(&s->lock);
	ptc_store_job_free(last);
}

int ptc_store_job_delete(struct ptc_store *s, const char *uuid, struct ptc_error *err)
{
	int rc = check_uuid(uuid, err);
	struct job *j;

	if (rc)
		return rc;
	pthread_mutex_lock(&s->wlock);
	j = job_find(s, uuid);
	rc = j ? ptc_store_rec_job_put(s, j, JOB_DELETING, err) : 0;
	if (!rc && j) {
		j->deleted = true;
		unlist(j);
	}
	if (!rc) /* also without j: an earlier delete may have failed half-way */
		rc = remove_job(s, uuid, err);
	pthread_mutex_unlock(&s->wlock);
	return rc;
}

int ptc_store_jobs(struct ptc_store *s, ptc_store_job_fn fn, void *arg, struct ptc_error *err)
{
	pthread_mutex_lock(&s->wlock);
	for (struct job *j = s->jobs; j; j = j->next)
		fn(arg, j->uuid, j->uid, j->bad != 0);
	pthread_mutex_unlock(&s->wlock);
	return 0;
}

int ptc_store_job_owner(struct ptc_store *s, const char *uuid, uid_t *ret_uid)
{
	struct job *j;

	pthread_mutex_lock(&s->lock);
	j = ptc_store_job_find_locked(s, uuid);
	if (j)
		*ret_uid = j->uid;
	pthread_mutex_unlock(&s->lock);
	return j ? 0 : PTC_ENOTFOUND;
}

uint64_t ptc_store_job_free_bytes(struct ptc_store *s, const char *uuid)
{
	const struct job *j;
	uint64_t bytes;

	pthread_mutex_lock(&s->lock);
	j = ptc_store_job_find_locked(s, uuid);
	bytes = j ? j->nwarm * PTC_CHUNK_BYTES : 0;
	pthread_mutex_unlock(&s->lock);
	return bytes;
}

int ptc_store_fence(struct ptc_store *s, const char *uuid, int64_t fence, struct ptc_error *err)
{
	struct job *j;
	int64_t before;
	int rc = 0;

	pthread_mutex_lock(&s->wlock);
	j = job_find(s, uuid);
	before = j ? j->fence : 0;
	if (!j) {
		rc = ptc_error_set(err, PTC_ENOTFOUND, "job %.36s has no state here", uuid);
	} else if (fence < before) {
		rc = ptc_error_set(
			err, PTC_EFENCED,
			"it has obeyed a controller of job %s with fencing token %lld, and this one has %lld; if "
			"that goes on, etcd was replaced or restored from an older copy (docs/troubleshooting.md)",
			uuid, (long long)before, (long long)fence);
	} else if (fence > before) {
		j->fence = fence;
		rc = ptc_store_rec_job_put(s, j, JOB_READY, err);
		if (rc)
			j->fence = before;
	}
	pthread_mutex_unlock(&s->wlock);
	return rc;
}

static int note_check(const char *name, struct ptc_error *err)
{
	size_t len = strlen(name);

	if (!len || len > PTC_NOTE_NAME_MAX || strspn(name, "abcdefghijklmnopqrstuvwxyz") != len)
		return ptc_error_set(err, PTC_EINVAL, "a note's name must have 1 to %d letters", PTC_NOTE_NAME_MAX);
	return 0;
}

int ptc_store_note_put_parts(struct ptc_store *s, const char *uuid, const char *name, const struct iovec *parts,
			     size_t nparts, struct ptc_error *err)
{
	int rc = note_check(name, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&s->wlock);
	rc = job_find(s, uuid) ? ptc_store_rec_note_put(s, uuid, name, parts, nparts, err)
			       : ptc_error_set(err, PTC_ENOTFOUND, "job %.36s has no state here", uuid);
	pthread_mutex_unlock(&s->wlock);
	return rc;
}

int ptc_store_note_put(struct ptc_store *s, const char *uuid, const char *name, const void *data, size_t len,
		       struct ptc_error *err)
{
	struct iovec part = { (void *)(uintptr_t)data, len }; /* only read */

	return ptc_store_note_put_parts(s, uuid, name, &part, 1, err);
}

int ptc_store_note_get(struct ptc_store *s, const char *uuid, const char *name, void **ret_data, size_t *ret_len,
		       struct ptc_error *err)
{
	int rc = note_check(name, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&s->wlock);
	rc = job_find(s, uuid) ? ptc_store_rec_note_get(s, uuid, name, ret_data, ret_len, err)
			       : ptc_error_set(err, PTC_ENOTFOUND, "job %.36s has no state here", uuid);
	pthread_mutex_unlock(&s->wlock);
	return rc;
}

int ptc_store_tables(struct ptc_store *s, const char *uuid, ptc_table_fn fn, void *arg, struct ptc_error *err)
{
	struct job *j;
	int rc;

	pthread_mutex_lock(&s->wlock);
	j = job_find(s, uuid);
	rc = ptc_store_job_usable(j, uuid, err);
	for (struct ptc_table *t = rc ? NULL : j->tables; t; t = t->next)
		fn(arg, &t->key, t->sealed, t->live_bytes);
	pthread_mutex_unlock(&s->wlock);
	return rc;
}

static bool wanted(const struct ptc_table_key *k, const struct ptc_table_key *keep, size_t nkeep)
{
	for (size_t i = 0; i < nkeep; i++)
		if (keep[i].generation == k->generation && keep[i].snapshot == k->snapshot)
			return true;
	return false;
}

/* Chunks whose sums meta needs no longer: every table that lists them is in tables. */
static int orphans(struct job *j, struct ptc_table *const *tables, size_t n, struct chunk ***ret_v, size_t *ret_n)
{
	size_t total = 0, found = 0;
	struct chunk **v;

	for (size_t i = 0; i < n; i++)
		total += tables[i]->nchunks;
	v = ptc_malloc((total + 1) * sizeof(struct chunk *));
	if (!v)
		return PTC_ENOMEM;
	pthread_mutex_lock(&j->s->lock);
	for (size_t i = 0; i < n; i++)
		for (size_t c = 0; c < tables[i]->nchunks; c++)
			if (--tables[i]->chunks[c]->stored == 0)
				v[found++] = tables[i]->chunks[c];
	for (size_t i = 0; i < n; i++) /* counted out only to find them; the drop itself may still fail */
		for (size_t c = 0; c < tables[i]->nchunks; c++)
			tables[i]->chunks[c]->stored++;
	pthread_mutex_unlock(&j->s->lock);
	*ret_v = v;
	*ret_n = found;
	return 0;
}

static void drop(struct job *j, struct ptc_table *t)
{
	pthread_mutex_lock(&j->s->lock);
	for (struct ptc_table **p = &j->tables; *p; p = &(*p)->next)
		if (*p == t) {
			*p = t->next;
			break;
		}
	t->dropped = true;
	for (size_t i = 0; i < t->nchunks; i++)
		if (--t->chunks[i]->stored == 0)
			t->chunks[i]->saved = false;
	pthread_mutex_unlock(&j->s->lock);
	ptc_table_unref(t);
}

static int drop_others(struct job *j, const struct ptc_table_key *keep, size_t nkeep, struct ptc_error *err)
{
	size_t n = 0, max = 0, nchunks = 0;
	struct chunk **chunks = NULL;
	struct ptc_table **v;
	int rc = 0;

	for (struct ptc_table *t = j->tables; t; t = t->next)
		max++;
	v = ptc_malloc((max + 1) * sizeof(struct ptc_table *));
	if (!v)
		return ptc_nomem(err);
	for (struct ptc_table *t = j->tables; t; t = t->next)
		if (!wanted(&t->key, keep, nkeep))
			v[n++] = t;
	if (n > 0 && orphans(j, v, n, &chunks, &nchunks))
		rc = ptc_nomem(err);
	if (n > 0 && !rc)
		rc = ptc_store_rec_tables_del(j, v, n, chunks, nchunks, err);
	for (size_t i = 0; i < n && !rc; i++)
		drop(j, v[i]);
	ptc_free(v);
	ptc_free(chunks);
	return rc;
}

int ptc_store_keep(struct ptc_store *s, const char *uuid, const struct ptc_table_key *keep, size_t nkeep,
		   struct ptc_error *err)
{
	struct job *j;
	size_t before = 0;
	int rc;

	pthread_mutex_lock(&s->wlock);
	j = job_find(s, uuid);
	rc = ptc_store_job_usable(j, uuid, err);
	if (!rc) {
		before = ptc_store_chunks_count(s, j).used;
		rc = drop_others(j, keep, nkeep, err);
	}
	if (!rc) {
		const size_t used = ptc_store_chunks_count(s, j).used;
		uint64_t cushion =
			s->cushion ? s->cushion : PTC_MAX(CUSHION_DEFAULT, used * (uint64_t)PTC_CHUNK_BYTES / 10);

		j->freed = j->freed || used < before;
		rc = ptc_store_chunks_trim(j, (size_t)(cushion / PTC_CHUNK_BYTES), err);
	}
	pthread_mutex_unlock(&s->wlock);
	return rc;
}
