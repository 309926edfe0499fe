/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of the mount: finds names, lists directories, opens files, makes small texts and gives times of files. A
 * node's number is a hash of its identity (job uuid, snapshot, file). So if a name is used again for something else,
 * it is another node. Happy path: lookup finds or makes the node and answers how long its name may be believed.
 *
 * Failure modes: names that are not there (ENOENT), a source that does not
 * answer (EIO), two things with one hash (EIO, never the other's bytes). */
#include "fusefs/serve/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/number/digest.h"
#include "base/sys/sys.h"
#include "formats/json.h"
#include "formats/tensors/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define GENERATION_JSON "generation.json"
#define OPTIMIZER_NAME  "optimizer.safetensors"
#define STATUS_BYTES    (1u << 20) /* of /proc/PID/status: room for 65536 groups */

/* ---- what nodes are made of ---- */

/* A time that is the same on every node and after every start, and another one for each snapshot, for tools that
 * compare times. */
static int64_t time_of(const struct ptc_fs_state *s)
{
	return s->created_ms / 1000 + (int64_t)s->snapshot;
}

static int generation_file(const struct ptc_fs_state *s, struct ptc_state_file *ret)
{
	struct ptc_buf b = PTC_BUF_INIT;

	ptc_buf_puts(&b, "{\"version\": 1, \"job\": ");
	ptc_json_put_string(&b, s->job);
	ptc_buf_printf(&b,
		       ", \"uuid\": \"%s\", \"generation\": %" PRIu64 ", \"snapshot\": %" PRIu64 ", \"step\": %" PRIu64
		       ", \"config\": ",
		       s->uuid, s->generation, s->snapshot, s->step);
	ptc_json_put_string(&b, s->config);
	ptc_buf_printf(&b, ", \"ranks\": %s}\n", s->ranks_json[0] ? s->ranks_json : "[]");
	*ret = (struct ptc_state_file){ 0 };
	ret->head = ptc_buf_steal(&b, &ret->head_len);
	ptc_buf_done(&b);
	return ret->head ? 0 : PTC_ENOMEM;
}

static int items_file(const struct ptc_spec *spec, bool optimizer, struct ptc_state_file *ret, struct ptc_error *err)
{
	size_t n = ptc_spec_items(spec), k = 0;
	ptc_auto_free uint32_t *items = ptc_calloc(PTC_MAX(n, (size_t)1), sizeof *items);

	if (!items)
		return PTC_ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		if (fs_is_optimizer(spec, i) == optimizer)
			items[k++] = i;
	return ptc_state_file_items(spec, items, k, ret, err);
}

/* Tensors that are another one's field, which ranks declare so. */
static bool declared_fields(const struct ptc_spec *spec)
{
	for (size_t t = 0; t < spec->ntensors; t++)
		if (fs_is_optimizer(spec, (uint32_t)(t * (1 + spec->nfields))))
			return true;
	return false;
}

static bool has_optimizer(const struct ptc_spec *spec)
{
	return spec->nfields || declared_fields(spec);
}

/* A file that the job carries, whole as its head. */
static int carried_file(const struct ptc_fs_state *s, const char *name, struct ptc_state_file *ret)
{
	for (size_t i = 0; i < s->ncarried; i++)
		if (!strcmp(s->carried[i].name, name)) {
			*ret = (struct ptc_state_file){ .head = ptc_strdup(s->carried[i].text) };
			ret->head_len = strlen(s->carried[i].text);
			return ret->head ? 0 : PTC_ENOMEM;
		}
	return PTC_ENOTFOUND;
}

/* Which file of a snapshot's directory has that name: its bytes. ENOENT: none. */
static int content(const struct fs_node *dir, const struct ptc_fs_state *s, const char *name,
		   struct ptc_state_file *ret)
{
	const struct ptc_spec *spec = s->set.spec;
	uint32_t number;
	int rc = PTC_ENOTFOUND;

	if (dir->kind == FS_TENSORS && fs_tensor_find(spec, name, &number))
		rc = ptc_state_file_npy(spec, number, ret, NULL);
	else if (dir->kind == FS_RANKS && s->layout && s->generation == dir->generation &&
		 fs_rank_parse(name, ptc_layout_world(s->layout), &number))
		rc = ptc_state_file_rank_all(s->layout, spec, number, ret, NULL);
	else if (dir->kind == FS_SNAP && !strcmp(name, PTC_ST_MODEL_NAME) && declared_fields(spec))
		rc = items_file(spec, false, ret, NULL);
	else if (dir->kind == FS_SNAP && !strcmp(name, PTC_ST_MODEL_NAME))
		rc = ptc_state_file_field(&s->set, 0, ret, NULL);
	else if (dir->kind == FS_SNAP && !strcmp(name, OPTIMIZER_NAME) && has_optimizer(spec))
		rc = items_file(spec, true, ret, NULL);
	else if (dir->kind == FS_SNAP)
		rc = carried_file(s, name, ret);
	return rc == PTC_ELAYOUT ? ENOENT : fs_errno(rc);
}

/* ---- lookup ---- */

struct found {
	struct fs_node *node;
	double entry_s, attr_s;
};

/* What the parent of a request is, copied, with a reference to its snapshot. */
static int parent_of(struct ptc_fs *fs, fuse_ino_t ino, struct fs_node *ret)
{
	const struct fs_node *n;

	pthread_mutex_lock(&fs->lock);
	n = fs_node_find_locked(fs, ino);
	if (n) {
		*ret = *n;
		fs_snap_ref_locked(n->snap);
		if (n->at.part)
			n->at.part->refs++;
	}
	pthread_mutex_unlock(&fs->lock);
	return n ? 0 : ESTALE;
}

static void parent_done(struct ptc_fs *fs, struct fs_node *n)
{
	pthread_mutex_lock(&fs->lock);
	fs_snap_unref_locked(fs, n->snap);
	fs_part_unref_locked(fs, n->at.part);
	pthread_mutex_unlock(&fs->lock);
}

static int find_in_root(struct ptc_fs *fs, const struct fs_op *op, struct found *ret)
{
	struct ptc_fs_job job;
	int e = fs_job_find(fs, op->name, NULL, op->uid, &job);

	if (e)
		return e;
	ret->node = fs_node_new(FS_JOB, &job, fs_identity(FS_JOB, job.uuid, 0, 0, ""));
	if (!ret->node)
		return ENOMEM;
	ret->node->mtime_s = fs->start_s;
	ret->entry_s = ret->attr_s = fs_jobs_believed_s(fs, &job);
	return 0;
}

/* generation.json: its number is that of what it says, so each content is an inode of its own. */
static int find_generation(struct ptc_fs *fs, const struct ptc_fs_job *job, struct found *ret)
{
	struct fs_snap *snap = job->snapshot ? fs_snap_get(fs, job) : NULL;
	struct ptc_state_file sf;
	struct fs_view *view = NULL;
	int e = !job->snapshot ? ENOENT : snap ? fs_snap_view(fs, snap, false, &view) : ENOMEM;

	if (!e) {
		const struct ptc_fs_state *s = view->state;
		uint64_t id = fs_identity(FS_GENERATION, s->uuid, s->snapshot, s->generation, "");

		e = fs_errno(generation_file(s, &sf));
		ret->node = e ? NULL : fs_node_new(FS_GENERATION, job, id);
		if (ret->node) {
			ret->node->mtime_s = time_of(s);
			ret->node->file = fs_file_new(&sf, id, s->generation);
		} else if (!e) {
			ptc_state_file_done(&sf);
		}
		if (!e && (!ret->node || !ret->node->file))
			e = ENOMEM;
	}
	pthread_mutex_lock(&fs->lock);
	fs_view_unref_locked(fs, view);
	fs_snap_unref_locked(fs, snap);
	pthread_mutex_unlock(&fs->lock);
	return e == ESTALE ? ENOENT : e;
}

static int find_in_job(struct ptc_fs *fs, const struct fs_op *op, const struct fs_node *dir, struct found *ret)
{
	struct ptc_fs_job job;
	int e = fs_job_find(fs, NULL, dir->uuid, op->uid, &job);

	if (e)
		return e;
	if (!strcmp(op->name, GENERATION_JSON))
		return find_generation(fs, &job, ret);
	ret->entry_s = ret->attr_s = FS_FOREVER; /* of this job, whose own name is asked for each time */
	if (!strcmp(op->name, "data") && fs_data_shown(fs, &job))
		return fs_data_find(fs, dir, op->name, &ret->node);
	if (strcmp(op->name, "state"))
		return ENOENT;
	ret->node = fs_node_new(FS_STATE, &job, fs_identity(FS_STATE, job.uuid, 0, 0, ""));
	if (!ret->node)
		return ENOMEM;
	ret->node->mtime_s = dir->mtime_s;
	return 0;
}

static int find_latest(struct ptc_fs *fs, const struct ptc_fs_job *job, struct found *ret)
{
	char name[64];

	if (!job->snapshot)
		return ENOENT;
	fs_snap_name(job->snapshot, job->step, name);
	ret->node = fs_node_new(FS_LATEST, job, fs_identity(FS_LATEST, job->uuid, job->snapshot, 0, name));
	if (!ret->node)
		return ENOMEM;
	ret->node->mtime_s = fs->start_s;
	ret->entry_s = fs_jobs_believed_s(fs, job);
	ret->attr_s = FS_FOREVER; /* of a link to that snapshot: another one is another node */
	ret->node->link = ptc_strdup(name);
	return ret->node->link ? 0 : ENOMEM;
}

static int find_in_state(struct ptc_fs *fs, const struct fs_op *op, const struct fs_node *dir, struct found *ret)
{
	struct ptc_fs_job job;
	uint64_t number, step;
	struct fs_snap *snap;
	struct fs_view *view;
	int e = fs_job_find(fs, NULL, dir->uuid, op->uid, &job);

	if (e)
		return e;
	if (!strcmp(op->name, "latest"))
		return find_latest(fs, &job, ret);
	if (!fs_snap_parse(op->name, &number, &step))
		return ENOENT;
	if (number && fs_job_keeps(&job, number, step)) {
		job.snapshot = number;
		job.step = step;
	}
	snap = number && job.snapshot == number && job.step == step ? fs_snap_get(fs, &job)
								    : fs_snap_find(fs, job.uuid, number, step);
	if (!snap)
		return ENOENT;
	e = fs_snap_view(fs, snap, false, &view);
	ret->node = e ? NULL : fs_node_new(FS_SNAP, &job, fs_identity(FS_SNAP, job.uuid, number, 0, op->name));
	if (ret->node) {
		ret->node->snap = snap;
		ret->node->mtime_s = time_of(view->state);
		ret->entry_s = FS_SNAP_S;
		ret->attr_s = FS_FOREVER;
	}
	pthread_mutex_lock(&fs->lock);
	if (!e)
		fs_view_unref_locked(fs, view);
	if (!ret->node)
		fs_snap_unref_locked(fs, snap);
	pthread_mutex_unlock(&fs->lock);
	return e ? (e == ESTALE ? ENOENT : e) : ret->node ? 0 : ENOMEM;
}

static struct ptc_fs_job job_of(const struct fs_node *n)
{
	struct ptc_fs_job job = { .uid = n->uid, .shared = n->shared, .gid = n->gid };

	memcpy(job.name, n->job, sizeof(job.name));
	memcpy(job.uuid, n->uuid, sizeof(job.uuid));
	return job;
}

/* What is below a generation's directory ends with the generation: the same path never leads to another one's. */
static int make_directory(const struct fs_node *dir, const struct ptc_fs_state *s, const char *name, struct found *ret)
{
	struct ptc_fs_job job = job_of(dir);
	enum fs_kind kind = FS_TENSORS;
	uint64_t generation = 0;

	if (dir->kind == FS_SNAP && s->layout && fs_number_parse(name, "gen-", &generation))
		kind = FS_GEN;
	else if (dir->kind == FS_GEN && !strcmp(name, "ranks"))
		kind = FS_RANKS;
	else if (dir->kind != FS_SNAP || strcmp(name, "tensors"))
		return ENOENT;
	generation = kind == FS_RANKS ? dir->generation : generation;
	if (kind != FS_TENSORS && generation != s->generation)
		return ENOENT;
	ret->node = fs_node_new(kind, &job, fs_identity(kind, s->uuid, s->snapshot, generation, ""));
	if (!ret->node)
		return ENOMEM;
	ret->node->generation = generation;
	if (kind == FS_GEN)
		ret->entry_s = FS_SNAP_S;
	return 0;
}

static int make_file(struct ptc_fs *fs, const struct fs_node *dir, const struct ptc_fs_state *s, const char *name,
		     struct found *ret)
{
	struct ptc_fs_job job = job_of(dir);
	char path[FS_NAME_MAX + 32];
	struct ptc_state_file sf;
	uint64_t id;
	int e = content(dir, s, name, &sf);

	if (e)
		return e;
	snprintf(path, sizeof(path), "%d/%s", (int)dir->kind, name);
	id = fs_identity(FS_FILE, s->uuid, s->snapshot, dir->generation, path);
	ret->node = fs_node_new(FS_FILE, &job, id);
	if (!ret->node) {
		ptc_state_file_done(&sf);
		return ENOMEM;
	}
	ret->node->file = fs_file_new(&sf, id, dir->generation);
	if (ret->node->file && dir->kind == FS_TENSORS) {
		pthread_mutex_lock(&fs->lock);
		fs_file_pack_locked(dir->snap, s->set.spec, ret->node->file);
		pthread_mutex_unlock(&fs->lock);
	}
	return ret->node->file ? 0 : ENOMEM;
}

static int find_in_snap(struct ptc_fs *fs, const struct fs_op *op, const struct fs_node *dir, struct found *ret)
{
	struct fs_view *view;
	int e = 0;

	if (strlen(op->name) > FS_NAME_MAX)
		return ENAMETOOLONG;
	pthread_mutex_lock(&fs->lock);
	view = fs_view_ref_locked(op->view); /* whoever took the request may not wait for one */
	pthread_mutex_unlock(&fs->lock);
	if (!view)
		e = fs_snap_view(fs, dir->snap, false, &view);
	if (e)
		return e;
	ret->entry_s = ret->attr_s = FS_FOREVER;
	e = make_directory(dir, view->state, op->name, ret);
	if (e == ENOENT)
		e = make_file(fs, dir, view->state, op->name, ret);
	if (!e)
		ret->node->mtime_s = time_of(view->state);
	pthread_mutex_lock(&fs->lock);
	if (!e)
		ret->node->snap = fs_snap_ref_locked(dir->snap);
	fs_view_unref_locked(fs, view);
	pthread_mutex_unlock(&fs->lock);
	return e;
}

static int find(struct ptc_fs *fs, const struct fs_op *op, const struct fs_node *dir, struct found *ret)
{
	switch (dir->kind) {
	case FS_ROOT:
		return find_in_root(fs, op, ret);
	case FS_JOB:
		return find_in_job(fs, op, dir, ret);
	case FS_STATE:
		return find_in_state(fs, op, dir, ret);
	case FS_SNAP:
	case FS_TENSORS:
	case FS_GEN:
	case FS_RANKS:
		return find_in_snap(fs, op, dir, ret);
	case FS_DATA:
	case FS_DATASET:
	case FS_DATAGEN:
	case FS_DP:
	case FS_EPOCH:
	case FS_SLOTS:
		/* What a generation consumes is settled when it begins. A loader that opens a file for each sample
		 * walks all of this each time: the daemon must not be asked for it. */
		ret->attr_s = FS_FOREVER;
		ret->entry_s = dir->at.part ? FS_FOREVER : FS_SNAP_S;
		return fs_data_find(fs, dir, op->name, &ret->node);
	default:
		return ENOTDIR;
	}
}

void fs_run_lookup(struct ptc_fs *fs, struct fs_op *op)
{
	struct fuse_entry_param entry = { 0 };
	struct found found = { 0 };
	struct fs_node dir;
	uint64_t id = 0;
	int e = parent_of(fs, op->ino, &dir);

	if (!e) {
		e = find(fs, op, &dir, &found);
		parent_done(fs, &dir);
	}
	if (e && found.node) {
		pthread_mutex_lock(&fs->lock);
		fs_node_free_locked(fs, found.node);
		pthread_mutex_unlock(&fs->lock);
	}
	e = e ? e : fs_node_put(fs, found.node, &id, &entry.attr);
	if (e) {
		fs_op_fail(fs, op, e);
		return;
	}
	entry.ino = id;
	entry.entry_timeout = found.entry_s;
	entry.attr_timeout = found.attr_s;
	if (!fs_op_claim(fs, op) || fuse_reply_entry(op->req, &entry)) {
		pthread_mutex_lock(&fs->lock);
		fs_node_forget_locked(fs, id, 1); /* the kernel does not know of it */
		pthread_mutex_unlock(&fs->lock);
	}
	fs_op_unref(fs, op);
}

/* ---- handles ---- */

/* Returns 0 if no handle is free. */
static uint64_t handle_new_locked(struct ptc_fs *fs, struct fs_handle **ret)
{
	for (uint32_t n = 0; n < FS_HANDLES; n++) {
		uint32_t i = fs->next_handle++ % FS_HANDLES;
		struct fs_handle *h = &fs->handles[i];

		if (h->used)
			continue;
		*h = (struct fs_handle){ .used = true, .turn = h->turn + 1 };
		*ret = h;
		return (uint64_t)h->turn << 32 | (i + 1);
	}
	return 0;
}

/* ---- how an open file is read ---- */

/* All handles of one inode are read in one way: by requests to us, or by the kernel from a backing file. The kernel
 * refuses to mix them. Its own counts change before it sends us a release, so ours are never below them. */
enum way { WAY_ASK, WAY_BACKING, WAY_WAIT, WAY_ERROR };

/* Worth a backing file, and its bytes can be verified. */
static bool may_have_backing(const struct ptc_fs *fs, const struct fs_file *f, const struct fs_view *v)
{
	return fs->backings && f && v && f->size >= FS_BACKING_MIN && f->sf.n && !f->sf.ranked && v->state->digests;
}

/* Begins to make the file's backing file. It counts as a reader: a handle of its own keeps file and snapshot. */
static bool want_backing_locked(struct ptc_fs *fs, const struct fs_handle *h)
{
	struct fs_handle *own;
	uint64_t fh = handle_new_locked(fs, &own);
	struct fs_backing_of of;

	if (!fh)
		return false;
	own->file = fs_file_ref_locked(h->file);
	own->snap = fs_snap_ref_locked(h->snap);
	own->view = fs_view_ref_locked(h->view);
	own->view->opens++;
	of = (struct fs_backing_of){ .id = h->file->id,
				     .sf = &h->file->sf,
				     .start = h->file->start,
				     .size = h->file->size,
				     .state = h->view->state,
				     .keep = (void *)(uintptr_t)fh };
	if (fs_backings_want(fs->backings, &of))
		return true;
	fs_handle_close_locked(fs, fh);
	return false;
}

/* Decides it for a handle that is being opened. may_wait: it may become WAY_WAIT; nothing is decided then. */
static enum way way_locked(struct ptc_fs *fs, uint64_t ino, struct fs_handle *h, bool may_wait)
{
	struct fs_node *n = fs_node_find_locked(fs, ino);

	if (!n || !may_have_backing(fs, h->file, h->view))
		return WAY_ASK;
	if (!n->asked) {
		enum fs_backing_is is = fs_backings_find(fs->backings, h->file->id, &h->backing);

		if (is == FS_BACKING_READY)
			return WAY_BACKING;
		if (is == FS_BACKING_BAD)
			return WAY_ERROR;
		if (may_wait && (is == FS_BACKING_MAKING || (is == FS_BACKING_NONE && want_backing_locked(fs, h))))
			return WAY_WAIT;
	}
	h->ino = ino;
	h->asked = true;
	n->asked++;
	return WAY_ASK;
}

/* Whether an open can be answered at once: it need not wait for a backing file to be made. */
static bool way_known_locked(struct ptc_fs *fs, const struct fs_node *n, const struct fs_view *v)
{
	enum fs_backing_is is;

	if (!may_have_backing(fs, n->file, v) || n->asked)
		return true;
	is = fs_backings_find(fs->backings, n->file->id, NULL);
	return is == FS_BACKING_READY || is == FS_BACKING_REFUSED;
}

int fs_open_reply(struct ptc_fs *fs, fuse_req_t req, struct fuse_file_info *fi)
{
	uint8_t reply[FS_PASS_OPEN_BYTES];
	const struct fs_handle *h;
	int number = 0;

	pthread_mutex_lock(&fs->lock);
	h = fs_handle_get_locked(fs, fi->fh);
	if (h && h->backing)
		number = fs_backing_number(h->backing);
	pthread_mutex_unlock(&fs->lock);
	fi->keep_cache = 1;
	if (!number)
		return fuse_reply_open(req, fi);
	fs_pass_open_reply(fi->fh, number, reply);
	return fuse_reply_buf(req, (const char *)reply, sizeof(reply));
}

void fs_openings_kick_locked(struct ptc_fs *fs, uint64_t id, bool all)
{
	int64_t now = ptc_sys_now_ns();
	struct fs_op **at = &fs->opening, *op;

	while ((op = *at)) {
		if (!all && op->backing != id && op->until_ns > now && !op->answered) {
			at = &op->queued;
			continue;
		}
		*at = op->queued;
		op->queued = NULL;
		*fs->meta.tail = op;
		fs->meta.tail = &op->queued;
		pthread_cond_signal(&fs->meta.cond);
	}
}

/* Runs on a thread of the backing files. */
static void backing_done(void *arg, uint64_t id, void *keep)
{
	struct ptc_fs *fs = arg;

	pthread_mutex_lock(&fs->lock);
	fs_handle_close_locked(fs, (uint64_t)(uintptr_t)keep);
	fs_openings_kick_locked(fs, id, false);
	pthread_mutex_unlock(&fs->lock);
}

static int backing_attach(void *arg, int fd)
{
	return fs_pass_attach(((struct ptc_fs *)arg)->fd, fd);
}

static void backing_detach(void *arg, int number)
{
	fs_pass_detach(((struct ptc_fs *)arg)->fd, number);
}

/* Half of the descriptors; the others are for connections and chunk files. */
static size_t most_backings(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return 0;
	return (size_t)PTC_MIN(limit.rlim_cur / 2, (rlim_t)SIZE_MAX);
}

void fs_open_prepare(struct ptc_fs *fs)
{
	struct fs_backings_opts opts = { .source = fs->opts.source,
					 .budget = fs->opts.backing_bytes,
					 .most_files = most_backings(),
					 .dir = fs->opts.backing_dir,
					 .attach = backing_attach,
					 .detach = backing_detach,
					 .done = backing_done,
					 .arg = fs };
	struct ptc_error err = PTC_ERROR_INIT;
	struct fs_backings *b = NULL;

	if (!fs->opts.backing_bytes || fs->backings)
		return;
	if (!fs->pass.on)
		ptc_debug("fuse", "no backing files: %s",
			  fs->pass.offered ? "only root's mount can have them" : "this kernel has no FUSE passthrough");
	else if (fs_backings_new(&opts, &b, &err))
		ptc_warn("fuse", "no backing files: %s", err.text);
	pthread_mutex_lock(&fs->lock);
	fs->backings = b;
	pthread_mutex_unlock(&fs->lock);
}

/* ---- open ---- */

/* What a node is the name of: its file and snapshot, or its part of a dataset; references. */
static int opened_of(struct ptc_fs *fs, fuse_ino_t ino, struct fs_file **ret_file, struct fs_snap **ret_snap,
		     struct fs_place *ret_at)
{
	struct fs_node *n;
	int e = 0;

	pthread_mutex_lock(&fs->lock);
	n = fs_node_find_locked(fs, ino);
	e = !n || fs_file_stripped(n->file) ? ESTALE : !n->file && n->kind != FS_PART ? EISDIR : 0;
	if (!e && n->kind == FS_PART) {
		*ret_at = n->at;
		n->at.part->refs++;
	} else if (!e) {
		*ret_file = fs_file_ref_locked(n->file);
		*ret_snap = fs_snap_ref_locked(n->snap);
		n->opened = true;
	}
	pthread_mutex_unlock(&fs->lock);
	return e;
}

uint64_t fs_open_known_locked(struct ptc_fs *fs, uint64_t ino, struct fs_handle **ret, bool *ret_first)
{
	struct fs_node *n = fs_node_find_locked(fs, ino);
	struct fs_view *view;
	struct fs_handle *h;
	uint64_t fh;

	if (!n || !n->file || !n->snap || fs_file_stripped(n->file))
		return 0;
	view = fs_snap_open_known_locked(fs, n->snap, n->file->generation);
	if (view && !way_known_locked(fs, n, view)) {
		fs_view_close_locked(fs, view);
		view = NULL;
	}
	if (!view)
		return 0;
	fh = handle_new_locked(fs, &h);
	if (!fh) {
		fs_view_close_locked(fs, view);
		return 0;
	}
	h->file = fs_file_ref_locked(n->file);
	h->snap = fs_snap_ref_locked(n->snap);
	h->view = view;
	way_locked(fs, ino, h, false); /* not BAD, as way_known_locked has just seen */
	*ret = h;
	*ret_first = !n->opened;
	n->opened = true;
	return fh;
}

/* The handle is made, and it is known how it is read. */
static void answer_open(struct ptc_fs *fs, struct fs_op *op, enum way way)
{
	if (way == WAY_ERROR) {
		fs_op_fail(fs, op, EIO);
		return;
	}
	if (fs_op_claim(fs, op) && !fs_open_reply(fs, op->req, &op->fi))
		op->opened = 0; /* the kernel's */
	fs_op_unref(fs, op);
}

/* Its backing file was made, or not, or it has waited long enough. */
static void run_opened(struct ptc_fs *fs, struct fs_op *op)
{
	struct fs_handle *h;
	enum way way = WAY_ERROR;

	pthread_mutex_lock(&fs->lock);
	h = fs_handle_get_locked(fs, op->opened);
	if (h)
		way = way_locked(fs, op->ino, h, false);
	pthread_mutex_unlock(&fs->lock);
	answer_open(fs, op, way);
}

static void wait_for_backing_locked(struct ptc_fs *fs, struct fs_op *op, const struct fs_handle *h)
{
	int64_t ms = PTC_MIN((int64_t)FS_BACKING_MS, (int64_t)fs->opts.timeout_ms / 3);
	int64_t likely_ms = (int64_t)(FS_BACKING_LEAST_MS + h->file->size / FS_BACKING_RATE);

	op->run = run_opened;
	op->backing = h->file->id;
	op->until_ns = ptc_sys_now_ns() + PTC_MIN(ms, likely_ms) * 1000000;
	op->queued = fs->opening;
	fs->opening = op;
}

void fs_run_open(struct ptc_fs *fs, struct fs_op *op)
{
	enum way way = WAY_ASK;
	struct fs_handle *h = NULL;
	struct fs_file *file = NULL;
	struct fs_snap *snap = NULL;
	struct fs_view *view = NULL;
	struct fs_place at = { 0 };
	uint64_t fh = 0;
	int e = opened_of(fs, op->ino, &file, &snap, &at);

	if (!e && snap)
		e = fs_snap_open(fs, snap, file->generation, &view);
	pthread_mutex_lock(&fs->lock);
	if (!e) {
		fh = handle_new_locked(fs, &h);
		e = fh ? 0 : ENFILE;
	}
	if (!e && at.part && at.part->elsewhere && at.which == FS_PART_BIN)
		file = fs_file_of_place_locked(&at, op->ino); /* without one it is read piece by piece */
	if (!e) {
		h->file = file;
		h->snap = snap;
		h->view = view;
		h->at = at;
		op->opened = op->fi.fh = fh;
		way = way_locked(fs, op->ino, h, true);
		if (way == WAY_WAIT)
			wait_for_backing_locked(fs, op, h);
	} else {
		fs_part_unref_locked(fs, at.part);
		fs_view_close_locked(fs, view);
		fs_file_unref_locked(fs, file);
		fs_snap_unref_locked(fs, snap);
	}
	pthread_mutex_unlock(&fs->lock);
	if (e)
		fs_op_fail(fs, op, e);
	else if (way != WAY_WAIT)
		answer_open(fs, op, way);
}

/* ---- directories ---- */

/* His supplementary groups, as /proc has them while he waits for the answer: " 4 20 27 "; a request brings only the
 * first one. NULL: not known (he is in another pid namespace); ptc_free it. Decides which names are listed, never what
 * may be read. */
static char *groups_of(pid_t pid)
{
	ptc_auto_free char *status = NULL;
	char path[32], *at, *groups = NULL;
	size_t len;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	if (pid <= 0 || ptc_sys_read_file(path, STATUS_BYTES, &status, &len, NULL))
		return NULL;
	at = strstr(status, "\nGroups:");
	if (at) {
		at += strlen("\nGroups:");
		at[strcspn(at, "\n")] = '\0';
		groups = ptc_asprintf(" %s ", at + strspn(at, "\t"));
	}
	return groups;
}

static bool listed(const struct ptc_fs *fs, const struct fs_op *op, const char *groups, const struct ptc_fs_job *job)
{
	char gid[16];

	if (fs_may_see(fs, op->uid, job->uid))
		return true;
	snprintf(gid, sizeof(gid), " %u ", (unsigned)job->gid);
	return job->shared && (op->gid == job->gid || (groups && strstr(groups, gid)));
}

/* By its name where that leads the caller to it, else with its owner's number. */
static void list_job_name(const struct ptc_fs *fs, uid_t uid, const struct ptc_fs_job *job, struct fs_listing *l)
{
	char full[FS_JOB_NAME_MAX + 1];
	bool shares = job->uid != uid && fs_job_shares_name_locked(fs, job);

	fs_job_full_name(job, full);
	fs_list_add(l, shares ? full : job->name, fs_identity(FS_JOB, job->uuid, 0, 0, ""), S_IFDIR);
}

static int list_root(struct ptc_fs *fs, const struct fs_op *op, struct fs_listing *l)
{
	ptc_auto_free char *groups = op->uid && fs->opts.others ? groups_of(op->pid) : NULL;

	if (fs_jobs_refresh(fs, false))
		return EIO;
	pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < fs->njobs; i++)
		if (listed(fs, op, groups, &fs->jobs[i]))
			list_job_name(fs, op->uid, &fs->jobs[i], l);
	pthread_mutex_unlock(&fs->lock);
	return 0;
}

static int list_job(struct ptc_fs *fs, uid_t uid, const struct fs_node *dir, struct fs_listing *l)
{
	struct ptc_fs_job job;
	char name[64];
	int e = fs_job_find(fs, NULL, dir->uuid, uid, &job);

	if (e)
		return e;
	fs_snap_name(job.snapshot, job.step, name);
	if (dir->kind == FS_JOB) {
		if (job.snapshot)
			fs_list_add(l, GENERATION_JSON,
				    fs_identity(FS_GENERATION, job.uuid, job.snapshot, job.generation, ""), S_IFREG);
		if (fs_data_shown(fs, &job))
			fs_list_add(l, "data", fs_identity(FS_DATA, job.uuid, 0, 0, ""), S_IFDIR);
		fs_list_add(l, "state", fs_identity(FS_STATE, job.uuid, 0, 0, ""), S_IFDIR);
	} else if (job.snapshot) {
		fs_list_add(l, name, fs_identity(FS_SNAP, job.uuid, job.snapshot, 0, name), S_IFDIR);
		fs_list_add(l, "latest", fs_identity(FS_LATEST, job.uuid, job.snapshot, 0, name), S_IFLNK);
		for (size_t i = 0; i < job.nkept; i++) {
			fs_snap_name(job.kept[i].snapshot, job.kept[i].step, name);
			fs_list_add(l, name, fs_identity(FS_SNAP, job.uuid, job.kept[i].snapshot, 0, name), S_IFDIR);
		}
	}
	return 0;
}

static void list_file(struct fs_listing *l, const struct fs_node *dir, const struct ptc_fs_state *s, const char *name)
{
	char path[FS_NAME_MAX + 32];

	snprintf(path, sizeof(path), "%d/%s", (int)dir->kind, name);
	fs_list_add(l, name, fs_identity(FS_FILE, s->uuid, s->snapshot, dir->generation, path), S_IFREG);
}

static void list_state(const struct fs_node *dir, const struct ptc_fs_state *s, struct fs_listing *l)
{
	const struct ptc_spec *spec = s->set.spec;
	char text[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2], name[FS_NAME_MAX + 1];

	if (dir->kind == FS_SNAP) {
		list_file(l, dir, s, PTC_ST_MODEL_NAME);
		if (has_optimizer(spec))
			list_file(l, dir, s, OPTIMIZER_NAME);
		for (size_t i = 0; i < s->ncarried; i++)
			list_file(l, dir, s, s->carried[i].name);
		fs_list_add(l, "tensors", fs_identity(FS_TENSORS, s->uuid, s->snapshot, 0, ""), S_IFDIR);
	}
	if (dir->kind == FS_SNAP && s->layout) {
		snprintf(name, sizeof(name), "gen-%" PRIu64, s->generation);
		fs_list_add(l, name, fs_identity(FS_GEN, s->uuid, s->snapshot, s->generation, ""), S_IFDIR);
	}
	if (dir->kind == FS_GEN)
		fs_list_add(l, "ranks", fs_identity(FS_RANKS, s->uuid, s->snapshot, s->generation, ""), S_IFDIR);
	for (uint32_t i = 0; dir->kind == FS_TENSORS && i < ptc_spec_items(spec) && !l->failed; i++) {
		if (ptc_dtype_bits(ptc_item_dtype(spec, i)) % 8)
			continue; /* NumPy has no such elements */
		fs_tensor_name(ptc_item_name(spec, i, text, sizeof(text)), ".npy", name);
		list_file(l, dir, s, name);
		if (!l->failed)
			l->v[l->n - 1].item = i;
	}
	for (uint32_t r = 0; dir->kind == FS_RANKS && r < ptc_layout_world(s->layout) && !l->failed; r++) {
		snprintf(name, sizeof(name), "%" PRIu32 ".safetensors", r);
		list_file(l, dir, s, name);
	}
}

/* A directory's node, copied, for as long as it is open. NULL: out of memory; then its files are looked up one by one.
 */
static struct fs_node *dir_kept_locked(const struct fs_node *dir)
{
	struct fs_node *n = ptc_malloc(sizeof *n);

	if (!n)
		return NULL;
	*n = *dir;
	n->next = NULL;
	n->link = NULL;
	fs_snap_ref_locked(n->snap);
	return n;
}

/* The file of an item, as make_file makes it. NULL: out of memory. */
static struct fs_node *node_of_item_locked(const struct fs_node *dir, const struct ptc_fs_state *s,
					   const struct fs_dirent *entry)
{
	struct ptc_fs_job job = job_of(dir);
	struct ptc_state_file sf;
	struct fs_node *n;

	if (ptc_state_file_npy(s->set.spec, entry->item, &sf, NULL))
		return NULL;
	n = fs_node_new(FS_FILE, &job, entry->ino);
	if (!n) {
		ptc_state_file_done(&sf);
		return NULL;
	}
	n->file = fs_file_new(&sf, entry->ino, dir->generation);
	if (!n->file) {
		ptc_free(n);
		return NULL;
	}
	fs_file_pack_locked(dir->snap, s->set.spec, n->file);
	n->mtime_s = time_of(s);
	n->snap = fs_snap_ref_locked(dir->snap);
	return n;
}

uint64_t fs_entry_look_up_locked(struct ptc_fs *fs, const struct fs_handle *h, uint64_t i, struct stat *ret)
{
	struct fs_node *n;
	uint64_t id = 0;

	if (!h->dir || !h->dir_view || i >= h->nlist || h->list[i].type != S_IFREG)
		return 0;
	n = fs_node_find_locked(fs, h->list[i].ino);
	if (n && n->kind == FS_FILE && n->snap == h->dir->snap && !fs_file_stripped(n->file)) {
		n->nlookup++;
		fs_node_stat(fs, n, ret);
		return n->id;
	}
	if (fs->nnodes >= FS_PLUS_NODES)
		return 0;
	n = node_of_item_locked(h->dir, h->dir_view->state, &h->list[i]);
	return n && !fs_node_put_locked(fs, n, &id, ret) ? id : 0;
}

static int list_snap(struct ptc_fs *fs, const struct fs_node *dir, struct fs_listing *l)
{
	struct fs_view *view;
	int e = fs_snap_view(fs, dir->snap, false, &view);

	if (e)
		return e;
	if (dir->generation && dir->generation != view->state->generation)
		e = ENOENT; /* it has ended: an empty directory would be taken for one without ranks */
	else
		list_state(dir, view->state, l);
	pthread_mutex_lock(&fs->lock);
	if (!e && dir->kind == FS_TENSORS)
		l->view = fs_view_ref_locked(view);
	fs_view_unref_locked(fs, view);
	pthread_mutex_unlock(&fs->lock);
	return e;
}

static int list(struct ptc_fs *fs, const struct fs_op *op, const struct fs_node *dir, struct fs_listing *l)
{
	int e;

	fs_list_add(l, ".", dir->id, S_IFDIR);
	fs_list_add(l, "..", FUSE_ROOT_ID, S_IFDIR);
	switch (dir->kind) {
	case FS_ROOT:
		e = list_root(fs, op, l);
		break;
	case FS_JOB:
	case FS_STATE:
		e = list_job(fs, op->uid, dir, l);
		break;
	case FS_SNAP:
	case FS_TENSORS:
	case FS_GEN:
	case FS_RANKS:
		e = list_snap(fs, dir, l);
		break;
	case FS_DATA:
	case FS_DATASET:
	case FS_DATAGEN:
	case FS_DP:
	case FS_EPOCH:
	case FS_SLOTS:
		e = fs_data_list(fs, dir, l);
		break;
	default:
		e = ENOTDIR;
		break;
	}
	return e ? e : l->failed ? ENOMEM : 0;
}

void fs_run_opendir(struct ptc_fs *fs, struct fs_op *op)
{
	struct fs_handle *h = NULL;
	struct fs_listing l = { 0 };
	struct fs_node dir;
	uint64_t fh = 0;
	int e = parent_of(fs, op->ino, &dir);

	if (!e) {
		e = list(fs, op, &dir, &l);
		pthread_mutex_lock(&fs->lock);
		fh = e ? 0 : handle_new_locked(fs, &h);
		if (fh) {
			h->list = l.v;
			h->nlist = l.n;
		}
		if (fh && dir.kind == FS_SLOTS) {
			h->at = dir.at;
			h->at.part->refs++;
		}
		if (fh && l.view) {
			h->dir = dir_kept_locked(&dir);
			h->dir_view = l.view;
		} else {
			fs_view_unref_locked(fs, l.view);
		}
		pthread_mutex_unlock(&fs->lock);
		parent_done(fs, &dir);
		e = e ? e : fh ? 0 : ENFILE;
	}
	if (e) {
		fs_list_free(l.v, l.n);
		fs_op_fail(fs, op, e);
		return;
	}
	op->fi.fh = fh;
	if (dir.kind == FS_TENSORS) /* the same for ever */
		op->fi.cache_readdir = op->fi.keep_cache = 1;
	if (!fs_op_claim(fs, op) || fuse_reply_open(op->req, &op->fi)) {
		pthread_mutex_lock(&fs->lock);
		fs_handle_close_locked(fs, fh);
		pthread_mutex_unlock(&fs->lock);
	}
	fs_op_unref(fs, op);
}
