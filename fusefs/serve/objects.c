/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs and snapshots of the mount, owner and mode of files, leases, and how their bytes are read. Happy path: a
 * snapshot's object lives while the kernel knows a name of the snapshot, or a file of the snapshot is open. The
 * snapshot is read through a view of the newest generation that has it. While files are open the view is pinned, so
 * that no switch takes it away. The kernel knows objects by the numbers of nodes; a node keeps its object, and its
 * number is a hash of the object's identity.
 *
 * Failure modes: the source does not answer (known facts about jobs are used for a second; without a view: EIO); a
 * snapshot was replaced (ESTALE, upon which the kernel looks its path up again). */
#include "fusefs/serve/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/number/digest.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MS INT64_C(1000000)

int fs_errno(int rc)
{
	switch (rc) {
	case 0:
		return 0;
	case PTC_ENOTFOUND:
		return ENOENT;
	case PTC_ESTATE:
		return ESTALE;
	case PTC_ENOMEM:
		return ENOMEM;
	case PTC_EPERM:
		return EACCES;
	default:
		return EIO;
	}
}

/* ---- counting ---- */

struct fs_view *fs_view_ref_locked(struct fs_view *v)
{
	if (v)
		v->refs++;
	return v;
}

void fs_view_unref_locked(struct ptc_fs *fs, struct fs_view *v)
{
	if (!v || --v->refs)
		return;
	if (v->pinned) { /* the source is told first, by fs_pins_tend */
		v->over = fs->over;
		fs->over = v;
		return;
	}
	fs->opts.source.close(fs->opts.source.arg, v->state);
	ptc_free(v);
}

struct fs_snap *fs_snap_ref_locked(struct fs_snap *s)
{
	if (s)
		s->refs++;
	return s;
}

void fs_snap_unref_locked(struct ptc_fs *fs, struct fs_snap *s)
{
	struct fs_snap **at = &fs->snaps;

	if (!s || --s->refs)
		return;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	fs_view_unref_locked(fs, s->view);
	fs_file_unref_locked(fs, s->pack);
	ptc_free(s);
}

struct fs_file *fs_file_ref_locked(struct fs_file *f)
{
	if (f)
		f->refs++;
	return f;
}

void fs_file_unref_locked(struct ptc_fs *fs, struct fs_file *f)
{
	if (!f || --f->refs)
		return;
	fs_part_unref_locked(fs, f->at.part);
	fs_file_unref_locked(fs, f->pack);
	ptc_state_file_done(&f->sf);
	ptc_free(f->start);
	ptc_free(f);
}

struct fs_file *fs_file_of_place_locked(const struct fs_place *at, uint64_t id)
{
	struct fs_file *f = ptc_calloc(1, sizeof *f);

	if (!f)
		return NULL;
	f->refs = 1;
	f->id = id;
	f->size = at->size;
	f->at = *at;
	at->part->refs++;
	return f;
}

struct fs_file *fs_file_new(struct ptc_state_file *sf, uint64_t id, uint64_t generation)
{
	struct fs_file *f = ptc_calloc(1, sizeof *f);
	uint64_t *start = ptc_calloc(sf->n + 1, sizeof *start);
	uint64_t at = sf->head_len;

	if (!f || !start) {
		ptc_free(f);
		ptc_free(start);
		ptc_state_file_done(sf);
		return NULL;
	}
	for (size_t i = 0; i < sf->n; i++) {
		start[i] = at;
		at += sf->bytes[i];
	}
	start[sf->n] = at;
	*f = (struct fs_file){ .refs = 1, .id = id, .generation = generation, .sf = *sf, .start = start, .size = at };
	*sf = (struct ptc_state_file){ 0 };
	return f;
}

static size_t index_in(const struct ptc_state_file *sf, uint32_t item)
{
	size_t lo = 0, hi = sf->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (sf->items[mid] < item)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

void fs_file_pack_locked(struct fs_snap *s, const struct ptc_spec *spec, struct fs_file *f)
{
	struct ptc_state_file sf;
	size_t i;

	if (f->sf.n != 1 || !f->sf.bytes[0] || f->sf.bytes[0] > FS_SMALL)
		return;
	if (!s->pack && !ptc_state_file_small(spec, FS_SMALL, &sf, NULL))
		s->pack = fs_file_new(&sf, fs_identity(FS_TENSORS, s->uuid, s->number, 0, "bytes"), 0);
	if (!s->pack)
		return; /* it is read by itself */
	i = index_in(&s->pack->sf, f->sf.items[0]);
	if (i == s->pack->sf.n || s->pack->sf.items[i] != f->sf.items[0])
		return;
	f->pack = fs_file_ref_locked(s->pack);
	f->pack_at = s->pack->start[i];
}

/* ---- jobs ---- */

bool fs_may_see(const struct ptc_fs *fs, uid_t uid, uid_t owner)
{
	return !fs->opts.others || uid == 0 || uid == owner; /* to a mount of one's own nobody else comes */
}

/* What is known will do: it is fresh, or somebody has been waiting for an answer for a while and we need not, too. */
static bool jobs_will_do_locked(const struct ptc_fs *fs, int64_t now_ns)
{
	return fs->jobs_known &&
	       (now_ns < fs->jobs_until_ns || (fs->jobs_asked_ns && now_ns > fs->jobs_asked_ns + FS_PATIENCE_MS * MS));
}

int fs_jobs_refresh(struct ptc_fs *fs, bool now)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_fs_job *jobs = NULL;
	int64_t asked = ptc_sys_now_ns();
	size_t n = 0;
	bool known;
	int rc;

	pthread_mutex_lock(&fs->lock);
	known = !now && jobs_will_do_locked(fs, asked);
	if (!known && !fs->jobs_asked_ns)
		fs->jobs_asked_ns = asked;
	pthread_mutex_unlock(&fs->lock);
	if (known)
		return 0;
	rc = fs->opts.source.jobs(fs->opts.source.arg, &jobs, &n, &err);
	pthread_mutex_lock(&fs->lock);
	if (!rc) {
		ptc_free(fs->jobs);
		fs->jobs = jobs;
		fs->njobs = n;
		fs->jobs_known = true;
	}
	fs->jobs_asked_ns = 0;
	fs->jobs_until_ns = ptc_sys_now_ns() + (rc ? FS_STALE_MS : FS_FRESH_MS) * MS;
	rc = rc && fs->jobs_known && !now ? 0 : rc;
	pthread_mutex_unlock(&fs->lock);
	if (rc)
		ptc_debug("fuse", "jobs: %s", err.text);
	return rc;
}

/* For how long the list of jobs is still believed here: the kernel may, too, and need not ask each time it walks a
 * path. */
double fs_jobs_believed_s(struct ptc_fs *fs, const struct ptc_fs_job *job)
{
	int64_t left;

	pthread_mutex_lock(&fs->lock);
	left = fs_job_shares_name_locked(fs, job)
		       ? 0
		       : fs->jobs_until_ns - ptc_sys_now_ns(); /* whose it is, each caller asks */
	pthread_mutex_unlock(&fs->lock);
	return (double)PTC_MAX(PTC_MIN(left, FS_FRESH_MS * MS), INT64_C(0)) / 1e9;
}

/* The kernel knows its directory: somebody who may see it is there. To answer another one's lookup with ENOENT would
 * take the directory away from under him (his getcwd fails); its mode lets nobody else in. */
static bool in_use_locked(struct ptc_fs *fs, const struct ptc_fs_job *job)
{
	return fs_node_find_locked(fs, fs_identity(FS_JOB, job->uuid, 0, 0, "")) != NULL;
}

/* Whether the name is this job's: NAME or UID:NAME. */
static bool is_named(const struct ptc_fs_job *j, const char *name)
{
	char full[FS_JOB_NAME_MAX + 1];

	fs_job_full_name(j, full);
	return !strcmp(j->name, name) || !strcmp(full, name);
}

void fs_job_full_name(const struct ptc_fs_job *j, char ret[FS_JOB_NAME_MAX + 1])
{
	snprintf(ret, FS_JOB_NAME_MAX + 1, "%u:%s", (unsigned)j->uid, j->name);
}

/* Several users may have jobs of one name: a caller's own comes first, then what he may see, then what is only not
 * taken away from under another one. */
static int rank_locked(struct ptc_fs *fs, const struct ptc_fs_job *j, uid_t uid)
{
	if (j->uid == uid)
		return 4;
	if (fs_may_see(fs, uid, j->uid))
		return 3;
	return j->shared ? 2 : in_use_locked(fs, j) ? 1 : 0;
}

int fs_job_find(struct ptc_fs *fs, const char *name, const char *uuid, uid_t uid, struct ptc_fs_job *ret)
{
	int rc = fs_jobs_refresh(fs, false), best = 0;

	if (rc)
		return EIO;
	pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < fs->njobs; i++) {
		const struct ptc_fs_job *j = &fs->jobs[i];
		int rank = (name ? is_named(j, name) : !strcmp(j->uuid, uuid)) ? rank_locked(fs, j, uid) : 0;

		if (rank > best) {
			best = rank;
			*ret = *j;
		}
	}
	pthread_mutex_unlock(&fs->lock);
	return best ? 0 : ENOENT;
}

bool fs_job_shares_name_locked(const struct ptc_fs *fs, const struct ptc_fs_job *job)
{
	for (size_t i = 0; i < fs->njobs; i++)
		if (strcmp(fs->jobs[i].uuid, job->uuid) != 0 && !strcmp(fs->jobs[i].name, job->name))
			return true;
	return false;
}

/* ---- snapshots ---- */

static struct fs_snap *find_locked(struct ptc_fs *fs, const char *uuid, uint64_t number, uint64_t step)
{
	struct fs_snap *s = fs->snaps;

	while (s && (s->number != number || s->step != step || strcmp(s->uuid, uuid)))
		s = s->next;
	return s;
}

struct fs_snap *fs_snap_find(struct ptc_fs *fs, const char *uuid, uint64_t number, uint64_t step)
{
	int64_t now = ptc_sys_now_ns();
	struct fs_snap *s;

	pthread_mutex_lock(&fs->lock);
	s = find_locked(fs, uuid, number, step);
	if (s && (!s->view || s->view->pinned_until_ns < now))
		s = NULL;
	fs_snap_ref_locked(s);
	pthread_mutex_unlock(&fs->lock);
	return s;
}

struct fs_snap *fs_snap_get(struct ptc_fs *fs, const struct ptc_fs_job *job)
{
	struct fs_snap *s;

	pthread_mutex_lock(&fs->lock);
	s = find_locked(fs, job->uuid, job->snapshot, job->step);
	if (s) {
		s->refs++;
	} else {
		s = ptc_calloc(1, sizeof *s);
		if (s) {
			s->refs = 1;
			memcpy(s->job, job->name, sizeof(s->job));
			memcpy(s->uuid, job->uuid, sizeof(s->uuid));
			s->uid = job->uid;
			s->number = job->snapshot;
			s->step = job->step;
			s->next = fs->snaps;
			fs->snaps = s;
		}
	}
	pthread_mutex_unlock(&fs->lock);
	return s;
}

bool fs_job_keeps(const struct ptc_fs_job *job, uint64_t number, uint64_t step)
{
	for (size_t i = 0; i < job->nkept; i++)
		if (job->kept[i].snapshot == number && job->kept[i].step == step)
			return true;
	return false;
}

/* Still read as it is now: no newer generation of the job has the same snapshot. */
static bool current_locked(const struct ptc_fs *fs, const struct fs_snap *s)
{
	for (size_t i = 0; i < fs->njobs; i++)
		if (!strcmp(fs->jobs[i].uuid, s->uuid))
			return fs->jobs[i].snapshot != s->number ||
			       fs->jobs[i].generation == s->view->state->generation;
	return true;
}

struct fs_view *fs_snap_view_known_locked(const struct ptc_fs *fs, struct fs_snap *s)
{
	return s->view && !s->loading && current_locked(fs, s) ? fs_view_ref_locked(s->view) : NULL;
}

static int load(struct ptc_fs *fs, struct fs_snap *s, struct fs_view **ret)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct fs_view *v = ptc_calloc(1, sizeof *v);
	int rc = v ? fs->opts.source.open(fs->opts.source.arg, s->uuid, s->number, &v->state, &err) : PTC_ENOMEM;

	if (rc) {
		ptc_debug("fuse", "job %s: %s", s->job, err.text);
		ptc_free(v);
		return rc == PTC_ENOTFOUND ? ESTALE : fs_errno(rc);
	}
	if (strcmp(v->state->uuid, s->uuid) || v->state->snapshot != s->number) {
		fs->opts.source.close(fs->opts.source.arg, v->state);
		ptc_free(v);
		return ESTALE;
	}
	v->refs = 1;
	*ret = v;
	return 0;
}

int fs_snap_view(struct ptc_fs *fs, struct fs_snap *s, bool anew, struct fs_view **ret)
{
	struct fs_view *v = NULL;
	int rc = 0;

	pthread_mutex_lock(&fs->lock);
	while (s->loading)
		pthread_cond_wait(&fs->loaded, &fs->lock);
	if (!s->view || anew || !current_locked(fs, s)) {
		s->loading = true;
		pthread_mutex_unlock(&fs->lock);
		rc = load(fs, s, &v);
		pthread_mutex_lock(&fs->lock);
		s->loading = false;
		pthread_cond_broadcast(&fs->loaded);
		if (!rc && s->view && v->state->generation == s->view->state->generation) {
			fs_view_unref_locked(fs, v); /* nothing new: what is held stays held */
		} else if (!rc) {
			fs_view_unref_locked(fs, s->view);
			s->view = v;
		} else if (s->view && !anew && (rc != ESTALE || s->view->pinned_until_ns > ptc_sys_now_ns())) {
			rc = 0; /* what we know of it is still so */
		}
	}
	if (!rc)
		*ret = fs_view_ref_locked(s->view);
	pthread_mutex_unlock(&fs->lock);
	return rc;
}

/* ---- holding ---- */

static int pin_view(struct ptc_fs *fs, struct fs_view *v, uint32_t ttl_ms)
{
	struct ptc_error err = PTC_ERROR_INIT;
	int64_t asked = ptc_sys_now_ns();
	int rc = fs->opts.source.pin(fs->opts.source.arg, v->state, ttl_ms, &err);

	if (rc)
		ptc_debug("fuse", "job %s, snapshot %llu: %s", v->state->job, (unsigned long long)v->state->snapshot,
			  err.text);
	pthread_mutex_lock(&fs->lock);
	if (!rc) {
		v->pinned_until_ns = asked + ttl_ms * MS;
		v->pinned = ttl_ms > 0;
	}
	pthread_mutex_unlock(&fs->lock);
	return rc;
}

static bool held_for_long(const struct fs_view *v)
{
	return v->pinned_until_ns > ptc_sys_now_ns() + FS_PIN_MS / 3 * MS;
}

struct fs_view *fs_snap_open_known_locked(const struct ptc_fs *fs, struct fs_snap *s, uint64_t generation)
{
	struct fs_view *v = s->view;

	if (!v || !held_for_long(v) || (generation && v->state->generation != generation))
		return NULL;
	v = fs_snap_view_known_locked(fs, s);
	if (v)
		v->opens++;
	return v;
}

/* Held for some time to come, and counted as open. */
static int view_open(struct ptc_fs *fs, struct fs_view *v)
{
	bool fresh;
	int rc = 0;

	pthread_mutex_lock(&fs->lock);
	v->opens++;
	fresh = held_for_long(v);
	pthread_mutex_unlock(&fs->lock);
	if (!fresh)
		rc = pin_view(fs, v, FS_PIN_MS);
	if (rc == PTC_EPEER || rc == PTC_ETIMEOUT)
		rc = 0; /* nobody answers: what is in the cache can be read, and fs_pins_tend asks again */
	if (rc) {
		pthread_mutex_lock(&fs->lock);
		v->opens--;
		pthread_mutex_unlock(&fs->lock);
	}
	return rc;
}

int fs_snap_open(struct ptc_fs *fs, struct fs_snap *s, uint64_t generation, struct fs_view **ret)
{
	struct fs_view *v;
	int rc = 0;

	for (int attempt = 0; attempt < 3; attempt++) {
		int e;

		if (attempt && fs_jobs_refresh(fs, true))
			return EIO;
		e = fs_snap_view(fs, s, attempt > 0, &v);
		if (e)
			return e;
		rc = generation && v->state->generation != generation ? PTC_ESTATE : view_open(fs, v);
		if (!rc) {
			*ret = v;
			return 0;
		}
		pthread_mutex_lock(&fs->lock);
		fs_view_unref_locked(fs, v);
		pthread_mutex_unlock(&fs->lock);
		if (rc != PTC_ESTATE || generation)
			break;
	}
	return fs_errno(rc);
}

void fs_view_close_locked(struct ptc_fs *fs, struct fs_view *v)
{
	if (!v)
		return;
	if (!--v->opens) {
		v->closed_ns = ptc_sys_now_ns();
		if (!v->pinned)
			v->pinned_until_ns = 0; /* fs_pins_tend set it without an answer */
	}
	fs_view_unref_locked(fs, v);
}

/* The next view to be asked about, with a reference; *ret_ttl_ms what to ask for. */
static struct fs_view *due_locked(struct ptc_fs *fs, uint32_t *ret_ttl_ms)
{
	int64_t now = ptc_sys_now_ns();
	struct fs_view *over = fs->over;

	if (over) {
		fs->over = over->over;
		over->pinned = false;
		*ret_ttl_ms = 0;
		return fs_view_ref_locked(over);
	}
	for (size_t i = 0; i < FS_HANDLES; i++) {
		struct fs_view *v = fs->handles[i].used ? fs->handles[i].view : NULL;

		if (v && v->pinned_until_ns < now + FS_PIN_MS / 3 * 2 * MS && v->again_ns <= now) {
			v->again_ns = now + FS_STALE_MS * MS; /* whatever comes of it */
			v->pinned_until_ns = now + FS_PIN_MS / 3 * 2 * MS;
			*ret_ttl_ms = FS_PIN_MS;
			return fs_view_ref_locked(v);
		}
	}
	for (struct fs_snap *s = fs->snaps; s; s = s->next) {
		struct fs_view *v = s->view;

		if (v && v->pinned && !v->opens && now > v->closed_ns + FS_LINGER_MS * MS) {
			v->pinned = false;
			v->pinned_until_ns = 0;
			*ret_ttl_ms = 0;
			return fs_view_ref_locked(v);
		}
	}
	return NULL;
}

/* No job has it any more, nobody reads it. */
static bool gone_locked(const struct ptc_fs *fs, const struct fs_snap *s)
{
	if (!fs->jobs_known || s->loading || !s->view || s->view->opens || s->view->pinned)
		return false;
	for (size_t i = 0; i < fs->njobs; i++)
		if (!strcmp(fs->jobs[i].uuid, s->uuid))
			return fs->jobs[i].snapshot != s->number && !fs_job_keeps(&fs->jobs[i], s->number, s->step);
	return true;
}

/* Frees what the snapshot's files are made of, where nobody has them open. */
static void nodes_strip_locked(struct ptc_fs *fs, const struct fs_snap *s)
{
	for (size_t i = 0; i < fs->nbuckets; i++)
		for (struct fs_node *n = fs->nodes[i]; n; n = n->next)
			if (n->snap == s && n->file && n->file->refs == 1) {
				ptc_state_file_done(&n->file->sf);
				ptc_free(n->file->start);
				n->file->start = NULL;
				fs_file_unref_locked(fs, n->file->pack);
				n->file->pack = NULL;
			}
}

/* The kernel may know names of a snapshot long after it was replaced. What their files are made of (heads of large
 * models) need not stay: nothing can be opened any more, and if the job goes back to that snapshot, the next lookup
 * makes it anew. */
static void strip(struct ptc_fs *fs)
{
	pthread_mutex_lock(&fs->lock);
	for (struct fs_snap *s = fs->snaps; s; s = s->next) {
		if (!gone_locked(fs, s))
			continue;
		fs_view_unref_locked(fs, s->view);
		s->view = NULL;
		nodes_strip_locked(fs, s);
		fs_file_unref_locked(fs, s->pack);
		s->pack = NULL;
	}
	pthread_mutex_unlock(&fs->lock);
}

void fs_pins_tend(struct ptc_fs *fs)
{
	struct fs_view *v;
	uint32_t ttl_ms;

	do {
		pthread_mutex_lock(&fs->lock);
		v = due_locked(fs, &ttl_ms);
		pthread_mutex_unlock(&fs->lock);
		if (!v)
			break;
		pin_view(fs, v, ttl_ms);
		pthread_mutex_lock(&fs->lock);
		fs_view_unref_locked(fs, v);
		pthread_mutex_unlock(&fs->lock);
	} while (true);
	strip(fs);
}

void fs_part_unref_locked(struct ptc_fs *fs, struct fs_part *p)
{
	struct fs_part **at = &fs->parts;

	if (!p || --p->refs)
		return;
	while (*at && *at != p)
		at = &(*at)->next;
	if (*at)
		*at = p->next;
	fs_part_free(p);
}

/* ---- nodes ---- */

uint64_t fs_identity(enum fs_kind kind, const char *uuid, uint64_t number, uint64_t generation, const char *name)
{
	char text[512];
	uint64_t id;

	snprintf(text, sizeof(text), "%d/%s/%" PRIu64 "/%" PRIu64 "/%s", (int)kind, uuid, number, generation, name);
	id = ptc_checksum(text, strlen(text));
	return id > FUSE_ROOT_ID ? id : id + 2;
}

static struct fs_node **bucket(struct ptc_fs *fs, uint64_t id)
{
	return &fs->nodes[id & (fs->nbuckets - 1)];
}

struct fs_node *fs_node_find_locked(struct ptc_fs *fs, uint64_t id)
{
	struct fs_node *n = *bucket(fs, id);

	while (n && n->id != id)
		n = n->next;
	return n;
}

void fs_node_free_locked(struct ptc_fs *fs, struct fs_node *n)
{
	fs_snap_unref_locked(fs, n->snap);
	fs_file_unref_locked(fs, n->file);
	fs_part_unref_locked(fs, n->at.part);
	ptc_free(n->link);
	ptc_free(n);
}

void fs_node_forget_locked(struct ptc_fs *fs, uint64_t id, uint64_t count)
{
	struct fs_node **at = bucket(fs, id), *n;

	while (*at && (*at)->id != id)
		at = &(*at)->next;
	n = *at;
	if (!n || n->kind == FS_ROOT)
		return;
	n->nlookup -= PTC_MIN(n->nlookup, count);
	if (n->nlookup)
		return;
	*at = n->next;
	fs->nnodes--;
	fs_node_free_locked(fs, n);
}

static void grow_locked(struct ptc_fs *fs)
{
	size_t was = fs->nbuckets;
	struct fs_node **old = fs->nodes, **bigger = ptc_calloc(was * 2, sizeof *bigger);

	if (!bigger)
		return;
	fs->nodes = bigger;
	fs->nbuckets = was * 2;
	for (size_t i = 0; i < was; i++)
		for (struct fs_node *n = old[i], *next; n; n = next) {
			next = n->next;
			n->next = *bucket(fs, n->id);
			*bucket(fs, n->id) = n;
		}
	ptc_free(old);
}

static bool same_node(const struct fs_node *a, const struct fs_node *b)
{
	return a->kind == b->kind && !strcmp(a->uuid, b->uuid) &&
	       (a->snap ? a->snap->number : 0) == (b->snap ? b->snap->number : 0) &&
	       (a->file ? a->file->id : 0) == (b->file ? b->file->id : 0) && !strcmp(a->data, b->data) &&
	       (a->at.part ? a->at.part->generation : 0) == (b->at.part ? b->at.part->generation : 0) &&
	       a->at.dp == b->at.dp && a->at.epoch == b->at.epoch && a->at.which == b->at.which &&
	       a->at.slot == b->at.slot;
}

bool fs_file_stripped(const struct fs_file *f)
{
	return f && !f->start;
}

/* Takes fresh over: it is put in, or given up for the one that is there. Counts one lookup. */
int fs_node_put_locked(struct ptc_fs *fs, struct fs_node *fresh, uint64_t *ret_id, struct stat *ret_stat)
{
	struct fs_node *n = fs_node_find_locked(fs, fresh->id);
	int e = 0;

	if ((n && !same_node(n, fresh)) || (!n && fs->nnodes >= FS_NODES_MAX))
		e = n ? EIO : ENFILE;
	if (!n && !e) {
		if (fs->nnodes >= fs->nbuckets)
			grow_locked(fs);
		n = fresh;
		n->next = *bucket(fs, n->id);
		*bucket(fs, n->id) = n;
		fs->nnodes++;
		fresh = NULL;
	}
	if (!e) {
		if (fresh && fs_file_stripped(n->file)) {
			struct fs_file *old = n->file;

			n->file = fresh->file;
			fresh->file = old;
		}
		n->nlookup++;
		*ret_id = n->id;
		fs_node_stat(fs, n, ret_stat);
	}
	if (fresh)
		fs_node_free_locked(fs, fresh);
	return e;
}

int fs_node_put(struct ptc_fs *fs, struct fs_node *fresh, uint64_t *ret_id, struct stat *ret_stat)
{
	int e;

	pthread_mutex_lock(&fs->lock);
	e = fs_node_put_locked(fs, fresh, ret_id, ret_stat);
	pthread_mutex_unlock(&fs->lock);
	return e;
}

int fs_node_init(struct ptc_fs *fs, struct ptc_error *err)
{
	struct fs_node *root = ptc_calloc(1, sizeof *root);

	fs->nbuckets = 1024;
	fs->nodes = ptc_calloc(fs->nbuckets, sizeof *fs->nodes);
	if (!root || !fs->nodes) {
		ptc_free(root);
		return ptc_nomem(err);
	}
	root->id = FUSE_ROOT_ID;
	root->kind = FS_ROOT;
	root->mtime_s = fs->start_s;
	*bucket(fs, root->id) = root;
	fs->nnodes = 1;
	return 0;
}

void fs_nodes_free(struct ptc_fs *fs)
{
	for (size_t i = 0; fs->nodes && i < fs->nbuckets; i++)
		for (struct fs_node *n = fs->nodes[i], *next; n; n = next) {
			next = n->next;
			fs_node_free_locked(fs, n);
		}
	ptc_free(fs->nodes);
}

void fs_node_stat(const struct ptc_fs *fs, const struct fs_node *n, struct stat *ret)
{
	bool open = n->kind == FS_ROOT;
	mode_t group = n->shared ? 050 : 0;

	*ret = (struct stat){ .st_ino = n->id, .st_nlink = 1, .st_blksize = FS_READ_MAX, .st_uid = n->uid };
	ret->st_mtime = ret->st_ctime = ret->st_atime = n->mtime_s;
	if (n->kind == FS_LATEST) {
		ret->st_mode = S_IFLNK | 0777;
		ret->st_size = (off_t)strlen(n->link);
	} else if (n->file) {
		ret->st_mode = S_IFREG | 0400 | (group & 040);
		ret->st_size = (off_t)n->file->size;
		ret->st_blocks = (blkcnt_t)((n->file->size + 511) / 512);
	} else if (n->kind == FS_PART) {
		ret->st_mode = S_IFREG | 0400 | (group & 040);
		ret->st_size = (off_t)n->at.size;
		ret->st_blocks = (blkcnt_t)((n->at.size + 511) / 512);
	} else {
		ret->st_mode = S_IFDIR | (open && fs->opts.others ? 0555 : 0500 | group);
		ret->st_nlink = 2;
	}
	if (open && !fs->opts.others)
		ret->st_uid = geteuid();
	ret->st_gid = n->shared ? n->gid : n->uid == geteuid() ? getegid() : 0;
}

struct fs_node *fs_node_new(enum fs_kind kind, const struct ptc_fs_job *job, uint64_t id)
{
	struct fs_node *n = ptc_calloc(1, sizeof *n);

	if (!n)
		return NULL;
	n->kind = kind;
	n->id = id;
	n->uid = job->uid;
	n->shared = job->shared;
	n->gid = job->gid;
	memcpy(n->uuid, job->uuid, sizeof(n->uuid));
	memcpy(n->job, job->name, sizeof(n->job));
	return n;
}

void fs_list_add(struct fs_listing *l, const char *name, uint64_t ino, mode_t type)
{
	if (!PTC_ROOM(l->v, l->n + 1, l->cap)) {
		l->failed = true;
		return;
	}
	l->v[l->n] = (struct fs_dirent){ .name = ptc_strdup(name), .ino = ino, .type = type };
	if (l->v[l->n].name)
		l->n++;
	else
		l->failed = true;
}

void fs_list_free(struct fs_dirent *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		ptc_free(list[i].name);
	ptc_free(list);
}

/* ---- handles ---- */

struct fs_handle *fs_handle_get_locked(struct ptc_fs *fs, uint64_t fh)
{
	uint32_t i = (uint32_t)fh - 1;

	return i < FS_HANDLES && fs->handles[i].used && fs->handles[i].turn == fh >> 32 ? &fs->handles[i] : NULL;
}

void fs_handle_close_locked(struct ptc_fs *fs, uint64_t fh)
{
	struct fs_handle *h = fs_handle_get_locked(fs, fh);

	if (!h)
		return;
	if (h->asked) {
		struct fs_node *n = fs_node_find_locked(fs, h->ino);

		if (n && n->asked)
			n->asked--;
	}
	if (h->backing)
		fs_backing_unref(fs->backings, h->backing);
	fs_view_close_locked(fs, h->view);
	fs_snap_unref_locked(fs, h->snap);
	fs_file_unref_locked(fs, h->file);
	fs_part_unref_locked(fs, h->at.part);
	fs_view_unref_locked(fs, h->dir_view);
	if (h->dir)
		fs_node_free_locked(fs, h->dir);
	fs_list_free(h->list, h->nlist);
	*h = (struct fs_handle){ .turn = h->turn };
}
