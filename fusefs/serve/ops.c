/* SPDX-License-Identifier: Apache-2.0 */
/* Requests as libfuse hands them over, on the threads that take them, which never wait: a request is answered here if
 * the answer is known; all others go to workers. All that would change something is EROFS. */
#include "fusefs/serve/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

static void on_init(void *userdata, struct fuse_conn_info *conn)
{
	conn->max_read = FS_READ_MAX;
	conn->max_background = 64;
	conn->congestion_threshold = 48;
	conn->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
				  FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_IOCTL_DIR);
	/* Not READDIRPLUS_AUTO: who lists a directory whole and then opens what is in it would look each file up. */
	conn->want |= conn->capable & (unsigned)(FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_READDIRPLUS |
						 FUSE_CAP_CACHE_SYMLINKS);
}

static enum fs_kind kind_of(struct ptc_fs *fs, fuse_ino_t ino)
{
	const struct fs_node *n;
	enum fs_kind kind;

	pthread_mutex_lock(&fs->lock);
	n = fs_node_find_locked(fs, ino);
	kind = n ? n->kind : FS_ROOT;
	pthread_mutex_unlock(&fs->lock);
	return kind;
}

static void to_worker(fuse_req_t req, fuse_ino_t ino, const char *name, const struct fuse_file_info *fi,
		      void (*run)(struct ptc_fs *fs, struct fs_op *op))
{
	struct ptc_fs *fs = fuse_req_userdata(req);
	struct fs_op *op = fs_op_new(fs, req, ino, name, fi);

	if (!op)
		return;
	op->run = run;
	if (fs_op_start(fs, op))
		fs_op_queue(fs, kind_of(fs, ino) >= FS_DATA ? &fs->reads : &fs->meta,
			    op); /* data may be on a dead disk */
}

/* How a tensor's directory is read, where nobody need be asked, and the name says which tensor it is. */
static struct fs_view *view_known(struct ptc_fs *fs, fuse_ino_t parent, const char *name)
{
	struct fs_view *view = NULL;
	struct fs_node *n;

	if (strchr(name, '~'))
		return NULL;
	pthread_mutex_lock(&fs->lock);
	n = fs_node_find_locked(fs, parent);
	if (n && n->kind == FS_TENSORS)
		view = fs_snap_view_known_locked(fs, n->snap);
	pthread_mutex_unlock(&fs->lock);
	return view;
}

static void on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct ptc_fs *fs = fuse_req_userdata(req);
	struct fs_view *view = view_known(fs, parent, name);
	struct fs_op *op;

	if (!view) {
		to_worker(req, parent, name, NULL, fs_run_lookup);
		return;
	}
	op = fs_op_new(fs, req, parent, name, NULL);
	if (op)
		op->view = view;
	if (op && fs_op_start(fs, op))
		fs_run_lookup(fs, op);
	if (op)
		return;
	pthread_mutex_lock(&fs->lock);
	fs_view_unref_locked(fs, view);
	pthread_mutex_unlock(&fs->lock);
}

static void forget(struct ptc_fs *fs, uint64_t ino, uint64_t n)
{
	pthread_mutex_lock(&fs->lock);
	fs_node_forget_locked(fs, ino, n);
	pthread_mutex_unlock(&fs->lock);
}

static void on_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
	forget(fuse_req_userdata(req), ino, n);
	fuse_reply_none(req);
}

static void on_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		forget(fuse_req_userdata(req), forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

/* What never changes about it: what a snapshot or a job's data has, and the root, which every path begins at. */
static bool settled(const struct fs_node *n)
{
	return n->snap || n->kind == FS_ROOT || n->kind == FS_STATE || n->kind == FS_LATEST || n->kind >= FS_DATA;
}

static void on_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ptc_fs *fs = fuse_req_userdata(req);
	const struct fs_node *n;
	double keep = 0;
	struct stat st;

	pthread_mutex_lock(&fs->lock);
	n = fs_node_find_locked(fs, ino);
	if (n) {
		fs_node_stat(fs, n, &st);
		keep = settled(n) ? FS_FOREVER : 0;
	}
	pthread_mutex_unlock(&fs->lock);
	if (n)
		fuse_reply_attr(req, &st, keep);
	else
		fuse_reply_err(req, ESTALE);
}

static void on_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct ptc_fs *fs = fuse_req_userdata(req);
	const struct fs_node *n;
	char link[FS_NAME_MAX + 1] = "";

	pthread_mutex_lock(&fs->lock);
	n = fs_node_find_locked(fs, ino);
	if (n && n->link)
		snprintf(link, sizeof(link), "%s", n->link);
	pthread_mutex_unlock(&fs->lock);
	if (link[0])
		fuse_reply_readlink(req, link);
	else
		fuse_reply_err(req, EINVAL);
}

/* All of a small tensor's file; false: it is none, or not here. */
static bool small_content_locked(struct ptc_fs *fs, const struct fs_file *f, uint8_t *ret, size_t *ret_len)
{
	struct fs_block *blocks[2];
	size_t head = f->sf.head_len, at = 0;
	uint64_t off = f->pack_at, end, first = off / FS_BLOCK;
	size_t n;

	if (!f->pack || head > FS_SMALL_HEAD || f->size - head > FS_SMALL)
		return false;
	end = off + (f->size - head);
	n = (size_t)((end - 1) / FS_BLOCK - first + 1);
	if (!fs_cache_ready_locked(fs, f->pack->id, first, n, blocks))
		return false;
	memcpy(ret, f->sf.head, head);
	for (; off < end; at++) {
		size_t skip = (size_t)(off % FS_BLOCK), len = (size_t)PTC_MIN(end - off, (uint64_t)(FS_BLOCK - skip));

		memcpy(ret + f->size - (end - off), blocks[at]->data + skip, len);
		off += len;
	}
	fs_cache_unpin_locked(fs, blocks, n);
	*ret_len = (size_t)f->size;
	return true;
}

/* A small file's bytes go into the kernel's pages before its first open is answered: whoever opens it will read it, and
 * need not ask again. Only then: a page that is being read is locked until we answer, for which nobody might be left.
 */
static void store(struct ptc_fs *fs, fuse_ino_t ino, uint8_t *data, size_t len)
{
	struct fuse_bufvec buf = FUSE_BUFVEC_INIT(len);

	buf.buf[0].mem = data;
	fuse_lowlevel_notify_store(fs->se, ino, 0, &buf, 0); /* where it fails, it is read */
}

static bool open_known(struct ptc_fs *fs, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	uint8_t data[FS_SMALL + FS_SMALL_HEAD];
	bool first = false;
	struct fs_handle *h;
	size_t len = 0;
	uint64_t fh;

	pthread_mutex_lock(&fs->lock);
	fh = fs_open_known_locked(fs, ino, &h, &first);
	first = fh && first && small_content_locked(fs, h->file, data, &len);
	pthread_mutex_unlock(&fs->lock);
	if (!fh)
		return false;
	if (first)
		store(fs, ino, data, len);
	fi->fh = fh;
	if (!fs_open_reply(fs, req, fi))
		return true;
	pthread_mutex_lock(&fs->lock);
	fs_handle_close_locked(fs, fh);
	pthread_mutex_unlock(&fs->lock);
	return true;
}

/* A file of a dataset is opened on this thread: no source is asked, and loaders open a file for each sample. */
static void on_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ptc_fs *fs = fuse_req_userdata(req);
	struct fs_op *op;

	if ((fi->flags & O_ACCMODE) != O_RDONLY) {
		fuse_reply_err(req, EROFS);
	} else if (open_known(fs, req, ino, fi)) {
		return;
	} else if (kind_of(fs, ino) == FS_PART) {
		op = fs_op_new(fs, req, ino, NULL, fi);
		if (op && fs_op_start(fs, op))
			fs_run_open(fs, op);
	} else {
		to_worker(req, ino, NULL, fi, fs_run_open);
	}
}

static void on_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ptc_fs *fs = fuse_req_userdata(req);

	pthread_mutex_lock(&fs->lock);
	fs_handle_close_locked(fs, fi->fh);
	pthread_mutex_unlock(&fs->lock);
	fuse_reply_err(req, 0);
}

static void on_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	to_worker(req, ino, NULL, fi, fs_run_opendir);
}

/* Entry i of an open directory; false: there are no more. */
static bool entry_of(const struct fs_handle *h, uint64_t i, char ret_name[FS_NAME_MAX + 1], struct stat *ret)
{
	uint64_t ino;

	*ret = (struct stat){ .st_mode = S_IFREG };
	if (i < h->nlist) {
		snprintf(ret_name, FS_NAME_MAX + 1, "%s", h->list[i].name);
		ret->st_ino = h->list[i].ino;
		ret->st_mode = h->list[i].type;
		return true;
	}
	if (!h->at.part || !fs_data_slot(&h->at, i - h->nlist, ret_name, &ino))
		return false;
	ret->st_ino = ino;
	return true;
}

static void on_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct ptc_fs *fs = fuse_req_userdata(req);
	size_t used = 0, room = PTC_MIN(size, (size_t)FS_READ_MAX);
	const struct fs_handle *h;
	char *buf = ptc_malloc(PTC_MAX(room, (size_t)1)), name[FS_NAME_MAX + 1];
	struct stat st;
	int e = buf ? 0 : ENOMEM;

	pthread_mutex_lock(&fs->lock);
	h = fs_handle_get_locked(fs, fi->fh);
	if (!e && (!h || !h->list || off < 0))
		e = EBADF;
	for (uint64_t i = (uint64_t)off; !e && entry_of(h, i, name, &st); i++) {
		size_t n = fuse_add_direntry(req, buf + used, room - used, name, &st, (off_t)i + 1);

		if (n > room - used)
			break;
		used += n;
	}
	pthread_mutex_unlock(&fs->lock);
	if (e)
		fuse_reply_err(req, e);
	else
		fuse_reply_buf(req, buf, used);
	ptc_free(buf);
}

/* As readdir, and each tensor's file is looked up: whoever opens all of them need not ask for each. */
static void on_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct ptc_fs *fs = fuse_req_userdata(req);
	size_t used = 0, room = PTC_MIN(size, (size_t)FS_READ_MAX), n, made = 0;
	char *buf = ptc_malloc(PTC_MAX(room, (size_t)1)), name[FS_NAME_MAX + 1];
	uint64_t nodes[FS_PLUS_MAX];
	const struct fs_handle *h;
	struct fuse_entry_param e;
	int error = buf ? 0 : ENOMEM;

	pthread_mutex_lock(&fs->lock);
	h = fs_handle_get_locked(fs, fi->fh);
	if (!error && (!h || !h->list || off < 0))
		error = EBADF;
	e = (struct fuse_entry_param){ .entry_timeout = FS_FOREVER, .attr_timeout = FS_FOREVER };
	for (uint64_t i = (uint64_t)off; !error && made < FS_PLUS_MAX && entry_of(h, i, name, &e.attr); i++) {
		n = fuse_add_direntry_plus(req, NULL, 0, name, NULL, 0);
		if (n > room - used)
			break;
		e.ino = fs_entry_look_up_locked(fs, h, i, &e.attr);
		if (e.ino)
			nodes[made++] = e.ino;
		used += fuse_add_direntry_plus(req, buf + used, room - used, name, &e, (off_t)i + 1);
	}
	pthread_mutex_unlock(&fs->lock);
	if (error)
		fuse_reply_err(req, error);
	else if (fuse_reply_buf(req, buf, used))
		while (made)
			forget(fs, nodes[--made], 1); /* the kernel does not know of them */
	ptc_free(buf);
}

/* ---- reading ---- */

struct reading {
	struct fs_file *file;
	struct fs_view *view;
	uint64_t off, first;
	size_t size, nblocks;
	struct fs_file *small; /* as those of struct fs_op */
	uint64_t small_off;
	size_t small_head;
};

static bool in_order(const struct fs_handle *h, uint64_t off, uint64_t end)
{
	return off <= h->next_off + FS_READ_MAX && end + FS_READ_MAX >= h->next_off && (off || h->next_off);
}

/* In order so far? Then more is asked for ahead, in large pieces. */
static void ahead_locked(struct ptc_fs *fs, struct fs_handle *h, const struct reading *r)
{
	uint64_t end = r->off + r->size, want;

	if (!in_order(h, r->off, end)) {
		h->window = 0;
		h->next_off = end;
		h->ahead_to = 0;
		return;
	}
	h->window = PTC_MIN(PTC_MAX(h->window * 2, (uint64_t)FS_READ_MAX), (uint64_t)FS_AHEAD_MAX);
	h->window = PTC_MIN(h->window, fs->cache.n * FS_BLOCK / 4);
	if (h->at.part) /* the daemon reads ahead; this only makes calls larger, and more than one at once */
		h->window = PTC_MIN(h->window, (uint64_t)4 * FS_READ_MAX);
	h->next_off = PTC_MAX(h->next_off, end);
	want = (end + h->window + FS_BLOCK - 1) / FS_BLOCK;
	h->ahead_to = PTC_MAX(h->ahead_to, (end + FS_BLOCK - 1) / FS_BLOCK);
	if (want < h->ahead_to + h->window / 2 / FS_BLOCK)
		return;
	fs_cache_ahead_locked(fs, h->file, h->view, h->ahead_to, want - h->ahead_to);
	h->ahead_to = want;
}

static void reading_done(struct ptc_fs *fs, const struct reading *r)
{
	pthread_mutex_lock(&fs->lock);
	fs_file_unref_locked(fs, r->file);
	fs_file_unref_locked(fs, r->small);
	fs_view_unref_locked(fs, r->view);
	pthread_mutex_unlock(&fs->lock);
}

/* far: it is known that it has to come through the cache. */
static void read_slowly(struct ptc_fs *fs, fuse_req_t req, fuse_ino_t ino, const struct reading *r, bool far)
{
	struct fs_op *op = fs_op_new(fs, req, ino, NULL, NULL);

	if (!op) {
		reading_done(fs, r);
		return;
	}
	op->run = far ? fs_run_read : fs_run_direct;
	op->apart = fs->opts.source.locate ? fs_run_direct : fs_run_read;
	op->file = r->file;
	op->view = r->view;
	op->off = r->off;
	op->size = r->size;
	op->first = r->first;
	op->nblocks = r->nblocks;
	op->small = r->small;
	op->small_off = r->small_off;
	op->small_head = r->small_head;
	if (!fs_op_start(fs, op))
		return;
	if (far)
		fs_run_read(fs, op);
	else
		fs_op_queue(fs, &fs->meta, op);
}

static void read_direct(struct ptc_fs *fs, fuse_req_t req, fuse_ino_t ino, const struct reading *r,
			struct fs_direct_spans *spans)
{
	uint8_t *buf = fs_direct_buf(fs);
	bool fine = buf && fs_direct_copy(fs, r->file, spans, r->off, r->size, buf);

	fs_direct_put(spans);
	if (fine)
		fuse_reply_buf(req, (const char *)buf, r->size);
	fs_direct_buf_put(fs, buf);
	if (fine)
		reading_done(fs, r);
	else
		read_slowly(fs, req, ino, r, false);
}

/* Of a small tensor's file: its bytes are read where those of others are, too. */
static void read_packed(struct reading *r)
{
	struct fs_file *f = r->file;
	uint64_t head = f->sf.head_len;

	if (!f->pack || r->off + r->size <= head || ptc_sys_now_ns() < f->pack->apart_until_ns)
		return;
	r->small = f;
	r->small_off = r->off;
	r->small_head = (size_t)(head - PTC_MIN(r->off, head));
	r->file = f->pack;
	r->off = f->pack_at + (r->off + r->small_head - head);
	r->size -= r->small_head;
}

/* What is to be read, from where. 0, or an error; size 0: nothing. */
static int reading_of(struct ptc_fs *fs, const struct fs_handle *h, size_t size, off_t off, struct reading *ret)
{
	if (!h || !h->file)
		return EBADF;
	if (off < 0)
		return EINVAL;
	*ret = (struct reading){ .file = h->file, .view = h->view, .off = (uint64_t)off };
	if (ret->off >= h->file->size)
		return 0;
	ret->size = (size_t)PTC_MIN(PTC_MIN(size, (size_t)FS_READ_MAX), h->file->size - ret->off);
	if (ret->size)
		read_packed(ret);
	ret->first = ret->off / FS_BLOCK;
	ret->nblocks = (size_t)((ret->off + ret->size - 1) / FS_BLOCK - ret->first + 1);
	return 0;
}

/* Samples that lie elsewhere go through the cache where they are read in order: few large calls. Others are not worth a
 * block each. */
static bool through_cache_locked(struct fs_handle *h, uint64_t off, size_t size)
{
	bool yes = h->file && h->next_off && off < h->at.size && in_order(h, off, off + size);

	if (!yes)
		h->next_off = off + size;
	return yes;
}

/* Of a dataset's part? Then a worker reads it. */
static bool read_part(struct ptc_fs *fs, fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, uint64_t fh)
{
	struct fs_handle *h, at = { 0 };
	struct fs_op *op;

	pthread_mutex_lock(&fs->lock);
	h = fs_handle_get_locked(fs, fh);
	if (h && h->at.part && (off < 0 || !through_cache_locked(h, (uint64_t)off, size))) {
		at = *h;
		h->at.part->refs++;
	}
	pthread_mutex_unlock(&fs->lock);
	if (!at.at.part)
		return false;
	if (off < 0 || (uint64_t)off >= at.at.size)
		op = (off < 0 ? fuse_reply_err(req, EINVAL) : fuse_reply_buf(req, NULL, 0), NULL);
	else
		op = fs_op_new(fs, req, ino, NULL, NULL);
	if (!op) {
		pthread_mutex_lock(&fs->lock);
		fs_part_unref_locked(fs, at.at.part);
		pthread_mutex_unlock(&fs->lock);
		return true;
	}
	op->run = fs_run_part_read;
	op->at = at.at;
	op->off = (uint64_t)off;
	op->size = (size_t)PTC_MIN(PTC_MIN(size, (size_t)FS_READ_MAX), at.at.size - op->off);
	if (fs_op_start(fs, op))
		fs_op_queue(fs, &fs->reads, op);
	return true;
}

/* How a read is answered, decided with the lock held. */
enum how { HOW_ERROR, HOW_HEAD, HOW_DIRECT, HOW_READY, HOW_ASK, HOW_FETCH };
struct answer {
	enum how how;
	int error;
	struct fs_block *blocks[FS_READ_SPAN]; /* HOW_READY: pinned */
	struct fs_direct_spans spans;          /* HOW_DIRECT */
};

/* References to file and view are r's but with HOW_ERROR and HOW_READY; to small but with HOW_ERROR. */
static void decide_locked(struct ptc_fs *fs, struct fs_handle *h, struct reading *r, struct answer *a)
{
	enum fs_direct_state direct = FS_REMOTE;

	a->how = HOW_ERROR; /* error 0: nothing to read */
	if (a->error || !r->size)
		return;
	if (r->off + r->size <= r->file->sf.head_len)
		a->how = HOW_HEAD;
	else if (r->view && !r->small)
		direct = fs_direct_find_locked(fs, r->file, r->view, r->off, r->size, &a->spans);
	if (a->how != HOW_HEAD) {
		a->how = direct == FS_DIRECT                                                       ? HOW_DIRECT
			 : fs_cache_ready_locked(fs, r->file->id, r->first, r->nblocks, a->blocks) ? HOW_READY
			 : fs_timed_out_locked(fs, r->file->id, r->first, r->nblocks)              ? HOW_ERROR
			 : direct == FS_UNKNOWN                                                    ? HOW_ASK
												   : HOW_FETCH;
		a->error = a->how == HOW_ERROR ? EIO : 0;
	}
	if (a->how != HOW_READY && a->how != HOW_ERROR) {
		fs_file_ref_locked(r->file);
		if (r->view)
			fs_view_ref_locked(r->view);
	}
	if (a->how != HOW_ERROR)
		fs_file_ref_locked(r->small);
	if (r->small) {
		if (a->how == HOW_FETCH)
			fs_cache_ahead_locked(fs, r->file, r->view, r->first + r->nblocks, FS_PACK_AHEAD);
	} else if ((r->view || r->file->at.part) &&
		   (a->how == HOW_READY || a->how == HOW_FETCH)) /* what is near needs none */
		ahead_locked(fs, h, r);
}

static void on_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct ptc_fs *fs = fuse_req_userdata(req);
	struct iovec head = { NULL, 0 };
	struct reading r = { 0 };
	struct fs_handle *h;
	struct answer a;

	if (read_part(fs, req, ino, size, off, fi->fh))
		return;
	pthread_mutex_lock(&fs->lock);
	h = fs_handle_get_locked(fs, fi->fh);
	a.error = reading_of(fs, h, size, off, &r);
	decide_locked(fs, h, &r, &a);
	pthread_mutex_unlock(&fs->lock);
	switch (a.how) {
	case HOW_ERROR:
		if (a.error)
			fuse_reply_err(req, a.error);
		else
			fuse_reply_buf(req, NULL, 0);
		break;
	case HOW_HEAD:
		fuse_reply_buf(req, (const char *)r.file->sf.head + r.off, r.size);
		reading_done(fs, &r);
		break;
	case HOW_DIRECT:
		read_direct(fs, req, ino, &r, &a.spans);
		break;
	case HOW_READY:
		head = r.small ? (struct iovec){ (uint8_t *)r.small->sf.head + r.small_off, r.small_head } : head;
		fs_read_reply(req, head, a.blocks, r.first, r.off, r.size);
		pthread_mutex_lock(&fs->lock);
		fs_cache_unpin_locked(fs, a.blocks, r.nblocks);
		fs_file_unref_locked(fs, r.small);
		pthread_mutex_unlock(&fs->lock);
		break;
	case HOW_ASK:
	case HOW_FETCH:
		read_slowly(fs, req, ino, &r, a.how == HOW_FETCH);
		break;
	}
}

static void on_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct ptc_fs *fs = fuse_req_userdata(req);
	struct statvfs st = { .f_bsize = FS_READ_MAX, .f_frsize = 4096, .f_namemax = FS_NAME_MAX };

	pthread_mutex_lock(&fs->lock);
	st.f_files = fs->nnodes;
	for (const struct fs_snap *s = fs->snaps; s; s = s->next) {
		const struct ptc_spec *spec = s->view ? s->view->state->set.spec : NULL;
		uint64_t bytes = 0;

		for (size_t i = 0; spec && i < ptc_spec_items(spec); i++)
			bytes += (uint64_t)ptc_item_bytes(spec, i);
		st.f_blocks += (bytes + 4095) / 4096;
	}
	pthread_mutex_unlock(&fs->lock);
	fuse_reply_statfs(req, &st);
}

/* ---- what would change something ---- */

static void on_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
	fuse_reply_err(req, EROFS);
}

static void on_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	fuse_reply_err(req, EROFS);
}

static void on_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	fuse_reply_err(req, EROFS);
}

static void on_remove(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	fuse_reply_err(req, EROFS);
}

static void on_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
	fuse_reply_err(req, EROFS);
}

static void on_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent, const char *newname,
		      unsigned flags)
{
	fuse_reply_err(req, EROFS);
}

static void on_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname)
{
	fuse_reply_err(req, EROFS);
}

static void on_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off, struct fuse_file_info *fi)
{
	fuse_reply_err(req, EROFS);
}

static void on_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
	fuse_reply_err(req, EROFS);
}

static void on_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags)
{
	fuse_reply_err(req, EROFS);
}

static void on_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	fuse_reply_err(req, EROFS);
}

static void on_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len, struct fuse_file_info *fi)
{
	fuse_reply_err(req, EROFS);
}

const struct fuse_lowlevel_ops fs_ops = {
	.init = on_init,
	.lookup = on_lookup,
	.forget = on_forget,
	.forget_multi = on_forget_multi,
	.getattr = on_getattr,
	.readlink = on_readlink,
	.open = on_open,
	.read = on_read,
	.release = on_release,
	.opendir = on_opendir,
	.readdir = on_readdir,
	.readdirplus = on_readdirplus,
	.releasedir = on_release,
	.statfs = on_statfs,
	.setattr = on_setattr,
	.mknod = on_mknod,
	.mkdir = on_mkdir,
	.unlink = on_remove,
	.rmdir = on_remove,
	.symlink = on_symlink,
	.rename = on_rename,
	.link = on_link,
	.write = on_write,
	.create = on_create,
	.setxattr = on_setxattr,
	.removexattr = on_removexattr,
	.fallocate = on_fallocate,
};
