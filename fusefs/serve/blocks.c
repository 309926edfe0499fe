/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of blocks of the mount (fuse.cache), and reading ahead: a few threads ask the source for runs of blocks.
 * Happy path: a read pins its blocks. The threads ask for the missing ones, and the read is answered when the last
 * block is there. If a reader reads in order, the next megabytes are asked for ahead. Reads do not deadlock over
 * memory: a read pins all of its blocks or none, and holds them only until the source has answered, for which there is
 * a time limit. Reads without room wait in order. Failure modes: the source fails (the blocks not filled are
 * forgotten, and their readers get its error); a block that is pinned by a call whose result nobody wants any more
 * stays until the call ends. */
#include "fusefs/serve/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

static struct fs_block **bucket(struct fs_cache *c, uint64_t file, uint64_t index)
{
	return &c->buckets[((file ^ index * UINT64_C(0x9e3779b97f4a7c15)) >> 16) % c->nbuckets];
}

static struct fs_block *find_locked(struct fs_cache *c, uint64_t file, uint64_t index)
{
	struct fs_block *b = *bucket(c, file, index);

	while (b && (b->file != file || b->index != index))
		b = b->hash;
	return b;
}

static void unhash_locked(struct fs_cache *c, struct fs_block *b)
{
	struct fs_block **at = bucket(c, b->file, b->index);

	while (*at != b)
		at = &(*at)->hash;
	*at = b->hash;
}

static void lru_remove(struct fs_cache *c, struct fs_block *b)
{
	b->prev->next = b->next;
	b->next->prev = b->prev;
	c->nlru--;
}

/* at: before this one; &c->lru: as the most recently used. */
static void lru_insert(struct fs_cache *c, struct fs_block *at, struct fs_block *b)
{
	b->next = at;
	b->prev = at->prev;
	b->prev->next = b;
	at->prev = b;
	c->nlru++;
}

int fs_cache_init(struct ptc_fs *fs, uint64_t bytes, struct ptc_error *err)
{
	struct fs_cache *c = &fs->cache;

	c->n = bytes / FS_BLOCK;
	c->nbuckets = c->n * 2 + 1;
	c->blocks = ptc_calloc(c->n, sizeof *c->blocks);
	c->buckets = ptc_calloc(c->nbuckets, sizeof *c->buckets);
	c->lru.prev = c->lru.next = &c->lru;
	c->starved_tail = &c->starved;
	c->fetches_tail = &c->fetches;
	if (!c->blocks || !c->buckets)
		return ptc_nomem(err);
	for (size_t i = 0; i < c->n; i++)
		lru_insert(c, &c->lru, &c->blocks[i]);
	return 0;
}

static void fetch_free_locked(struct ptc_fs *fs, struct fs_fetch *f)
{
	fs_file_unref_locked(fs, f->file);
	fs_view_unref_locked(fs, f->view);
	ptc_free(f);
}

void fs_cache_done(struct ptc_fs *fs)
{
	struct fs_cache *c = &fs->cache;

	for (size_t i = 0; c->blocks && i < c->n; i++)
		ptc_free(c->blocks[i].data);
	ptc_free(c->blocks);
	ptc_free(c->buckets);
}

/* ---- blocks ---- */

static void pin_locked(struct fs_cache *c, struct fs_block *b)
{
	if (!b->pins++)
		lru_remove(c, b);
}

static void unpin_locked(struct ptc_fs *fs, struct fs_block *b)
{
	struct fs_cache *c = &fs->cache;

	if (--b->pins)
		return;
	lru_insert(c, b->state == FS_FREE ? c->lru.next : &c->lru, b);
}

void fs_cache_unpin_locked(struct ptc_fs *fs, struct fs_block *const *blocks, size_t n)
{
	for (size_t i = 0; i < n; i++)
		unpin_locked(fs, blocks[i]);
	if (fs->cache.starved)
		fs_cache_kick_locked(fs);
}

/* An unpinned block for that content, pinned once, being loaded; NULL: there is no memory. */
static struct fs_block *take_locked(struct fs_cache *c, const struct fs_file *file, uint64_t index)
{
	struct fs_block *b = c->lru.next;
	uint64_t left = file->size - index * FS_BLOCK;

	if (b == &c->lru)
		return NULL;
	if (!b->data)
		b->data = ptc_malloc(FS_BLOCK);
	if (!b->data)
		return NULL;
	if (b->state != FS_FREE)
		unhash_locked(c, b);
	pin_locked(c, b);
	b->state = FS_LOADING;
	b->file = file->id;
	b->index = index;
	b->len = (size_t)PTC_MIN(left, (uint64_t)FS_BLOCK);
	b->waits = NULL;
	b->hash = *bucket(c, b->file, b->index);
	*bucket(c, b->file, b->index) = b;
	return b;
}

bool fs_cache_ready_locked(struct ptc_fs *fs, uint64_t file, uint64_t first, size_t n, struct fs_block **ret)
{
	struct fs_cache *c = &fs->cache;

	for (size_t i = 0; i < n; i++) {
		ret[i] = find_locked(c, file, first + i);
		if (!ret[i] || ret[i]->state != FS_READY)
			return false;
	}
	for (size_t i = 0; i < n; i++)
		pin_locked(c, ret[i]);
	return true;
}

static void fetch_queue_locked(struct ptc_fs *fs, struct fs_fetch *f)
{
	f->next = NULL;
	*fs->cache.fetches_tail = f;
	fs->cache.fetches_tail = &f->next;
	pthread_cond_signal(&fs->cache.fetch_cond);
}

/* A block that is being loaded goes to the call after its predecessor, or to a new one. False: out of memory. */
static bool fetch_add_locked(struct ptc_fs *fs, struct fs_fetch **at, struct fs_file *file, struct fs_view *view,
			     struct fs_block *b)
{
	struct fs_fetch *f = *at;

	if (f && (f->n == FS_RUN_BLOCKS || f->first + f->n != b->index)) {
		fetch_queue_locked(fs, f);
		f = NULL;
	}
	if (!f) {
		f = ptc_calloc(1, sizeof *f);
		if (f) {
			f->file = fs_file_ref_locked(file);
			f->view = fs_view_ref_locked(view);
			f->first = b->index;
		}
	}
	*at = f;
	if (f)
		f->blocks[f->n++] = b;
	return f != NULL;
}

/* What was taken for a call that could not be made. */
static void give_back_locked(struct ptc_fs *fs, struct fs_block *b)
{
	unhash_locked(&fs->cache, b);
	b->state = FS_FREE;
	unpin_locked(fs, b);
}

static size_t missing_locked(struct fs_cache *c, const struct fs_op *op)
{
	size_t n = 0;

	for (size_t i = 0; i < op->nblocks; i++) {
		struct fs_block *b = find_locked(c, op->file->id, op->first + i);

		n += !b || !b->pins; /* those there, too: once pinned they are not in the list any more */
	}
	return n;
}

static void wait_for_locked(struct fs_op *op, size_t i)
{
	struct fs_wait *w = &op->waits[i];

	w->op = op;
	w->next = op->blocks[i]->waits;
	op->blocks[i]->waits = w;
	op->waiting++;
	op->refs++;
}

/* Pins the op's blocks and asks for the missing ones; later, if no block is free. */
static void begin_locked(struct ptc_fs *fs, struct fs_op *op)
{
	struct fs_cache *c = &fs->cache;
	struct fs_fetch *f = NULL;
	size_t i;

	if (missing_locked(c, op) > c->nlru) {
		op->queued = NULL;
		op->refs++;
		*c->starved_tail = op;
		c->starved_tail = &op->queued;
		return;
	}
	/* first what is there, so that making room for the rest does not take it away */
	for (i = 0; i < op->nblocks; i++) {
		op->blocks[i] = find_locked(c, op->file->id, op->first + i);
		if (op->blocks[i])
			pin_locked(c, op->blocks[i]);
	}
	for (i = 0; i < op->nblocks; i++) {
		struct fs_block *b = op->blocks[i];

		if (!b) {
			b = take_locked(c, op->file, op->first + i);
			if (!b || !fetch_add_locked(fs, &f, op->file, op->view, b)) {
				if (b)
					give_back_locked(fs, b);
				op->error = ENOMEM;
				continue;
			}
			b->pins++; /* the call's own */
			op->blocks[i] = b;
		}
		if (b->state == FS_LOADING)
			wait_for_locked(op, i);
	}
	if (f)
		fetch_queue_locked(fs, f);
}

void fs_cache_ahead_locked(struct ptc_fs *fs, struct fs_file *file, struct fs_view *view, uint64_t first, uint64_t n)
{
	struct fs_cache *c = &fs->cache;
	uint64_t blocks = (file->size + FS_BLOCK - 1) / FS_BLOCK;
	struct fs_fetch *f = NULL;

	for (uint64_t i = first; i < first + n && i < blocks; i++) {
		struct fs_block *b;

		if (c->starved || c->nlru < c->n / 2)
			break;
		if (find_locked(c, file->id, i))
			continue;
		b = take_locked(c, file, i);
		if (!b)
			break;
		if (!fetch_add_locked(fs, &f, file, view, b)) {
			give_back_locked(fs, b);
			break;
		}
	}
	if (f)
		fetch_queue_locked(fs, f);
}

/* ---- in vain ---- */

void fs_timed_out_note_locked(struct ptc_fs *fs, const struct fs_op *op)
{
	struct fs_timed_out *v = &fs->cache.timed_out[fs->cache.next_timed_out++ % FS_TIMED_OUT];

	*v = (struct fs_timed_out){ op->file->id, op->first, op->nblocks,
				    ptc_sys_now_ns() + (int64_t)FS_STALE_MS * 1000000 };
}

bool fs_timed_out_locked(const struct ptc_fs *fs, uint64_t file, uint64_t first, uint64_t n)
{
	int64_t now = ptc_sys_now_ns();

	for (size_t i = 0; i < FS_TIMED_OUT; i++) {
		const struct fs_timed_out *v = &fs->cache.timed_out[i];

		if (v->file == file && v->until_ns > now && first < v->first + v->n && v->first < first + n)
			return true;
	}
	return false;
}

/* ---- answering ---- */

void fs_read_reply(fuse_req_t req, struct iovec head, struct fs_block *const *blocks, uint64_t first, uint64_t off,
		   size_t size)
{
	struct iovec iov[FS_READ_SPAN + 1];
	int n = 0;

	if (head.iov_len)
		iov[n++] = head;
	while (size) {
		uint64_t index = off / FS_BLOCK;
		size_t skip = (size_t)(off % FS_BLOCK), len = PTC_MIN(size, FS_BLOCK - skip);

		iov[n++] = (struct iovec){ blocks[index - first]->data + skip, len };
		off += len;
		size -= len;
	}
	fuse_reply_iov(req, iov, n);
}

static size_t pinned_of(const struct fs_op *op, struct fs_block **ret)
{
	size_t n = 0;

	for (size_t i = 0; i < op->nblocks; i++)
		if (op->blocks[i])
			ret[n++] = op->blocks[i];
	return n;
}

bool fs_cache_leave_locked(struct ptc_fs *fs, struct fs_op *op)
{
	struct fs_block *pinned[FS_READ_SPAN];

	if (!op->waiting)
		return false;
	for (size_t i = 0; i < op->nblocks; i++) {
		struct fs_wait **at = op->blocks[i] ? &op->blocks[i]->waits : NULL;

		while (at && *at && *at != &op->waits[i])
			at = &(*at)->next;
		if (!at || !*at)
			continue;
		*at = (*at)->next;
		op->waiting--;
		op->refs--;
	}
	fs_cache_unpin_locked(fs, pinned, pinned_of(op, pinned));
	op->nblocks = 0;
	return true;
}

void fs_read_apart_locked(struct ptc_fs *fs, struct fs_op *op)
{
	struct fs_file *pack = op->file;

	pack->apart_until_ns = ptc_sys_now_ns() + (int64_t)FS_APART_MS * 1000000;
	op->file = op->small; /* with its reference */
	op->small = NULL;
	op->off = op->small_off;
	op->size += op->small_head;
	op->first = op->off / FS_BLOCK;
	op->nblocks = (size_t)((op->off + op->size - 1) / FS_BLOCK - op->first + 1);
	op->error = 0;
	memset(op->blocks, 0, sizeof(op->blocks));
	fs_file_unref_locked(fs, pack);
	op->run = op->apart;
	op->queued = NULL;
	*fs->meta.tail = op;
	fs->meta.tail = &op->queued;
	pthread_cond_signal(&fs->meta.cond);
}

/* Some of the many tensors cannot be read, perhaps not this one. */
static bool go_apart(struct ptc_fs *fs, struct fs_op *op)
{
	struct fs_block *pinned[FS_READ_SPAN];
	bool yes;

	pthread_mutex_lock(&fs->lock);
	yes = op->small && op->error == EIO && !op->answered && !atomic_load(&fs->stopping);
	if (yes) {
		fs_cache_unpin_locked(fs, pinned, pinned_of(op, pinned));
		op->nblocks = 0;
		fs_read_apart_locked(fs, op);
	}
	pthread_mutex_unlock(&fs->lock);
	return yes;
}

/* The op's last block came, or its first failed. Lock not held; consumes the reference of one wait. */
static void answer_read(struct ptc_fs *fs, struct fs_op *op)
{
	struct fs_block *pinned[FS_READ_SPAN];
	struct iovec head = { NULL, 0 };
	bool ours;
	size_t n;

	if (go_apart(fs, op))
		return;
	ours = fs_op_claim(fs, op);
	if (op->small)
		head = (struct iovec){ (uint8_t *)op->small->sf.head + op->small_off, op->small_head };
	if (ours && op->error)
		fuse_reply_err(op->req, op->error);
	else if (ours)
		fs_read_reply(op->req, head, op->blocks, op->first, op->off, op->size);
	n = pinned_of(op, pinned);
	pthread_mutex_lock(&fs->lock);
	op->nblocks = 0;
	fs_cache_unpin_locked(fs, pinned, n);
	fs_op_unref_locked(fs, op); /* the list's, given up with the answer */
	pthread_mutex_unlock(&fs->lock);
}

/* The block is full, or (error) will not be. Returns ops that nothing is missing of, chained. */
static struct fs_op *settle_locked(struct ptc_fs *fs, struct fs_block *b, int error)
{
	struct fs_op *done = NULL;

	if (error) {
		unhash_locked(&fs->cache, b);
		b->state = FS_FREE;
	} else {
		b->state = FS_READY;
	}
	for (struct fs_wait *w = b->waits; w; w = w->next) {
		struct fs_op *op = w->op;

		op->error = op->error ? op->error : error;
		op->refs--; /* its waits; the list's reference is left, and goes to answer_read */
		if (!--op->waiting) {
			op->queued = done;
			done = op;
		}
	}
	b->waits = NULL;
	unpin_locked(fs, b);
	return done;
}

static void settle(struct ptc_fs *fs, struct fs_block *b, int error)
{
	struct fs_op *done, *next;

	pthread_mutex_lock(&fs->lock);
	done = settle_locked(fs, b, error);
	if (fs->cache.starved)
		fs_cache_kick_locked(fs);
	pthread_mutex_unlock(&fs->lock);
	for (; done; done = next) {
		next = done->queued;
		answer_read(fs, done);
	}
}

/* There may be room for those that wait for it. One whose blocks are all there by now goes through the queue of the
 * workers: it is answered without the lock. */
void fs_cache_kick_locked(struct ptc_fs *fs)
{
	struct fs_cache *c = &fs->cache;

	while (c->starved) {
		struct fs_op *op = c->starved;

		if (!op->answered && missing_locked(c, op) > c->nlru)
			return;
		c->starved = op->queued;
		if (!c->starved)
			c->starved_tail = &c->starved;
		op->refs--;
		if (op->answered) {
			fs_op_unref_locked(fs, op);
			continue;
		}
		op->queued = NULL;
		*fs->meta.tail = op;
		fs->meta.tail = &op->queued;
		pthread_cond_signal(&fs->meta.cond);
		return; /* the next when this one has taken its room */
	}
}

/* ---- filling ---- */

struct filling {
	struct ptc_fs *fs;
	struct fs_fetch *f;
	uint64_t at, end; /* of the file: the next byte, the last of the run */
	size_t settled;   /* blocks of it that are full */
};

static int fill(void *arg, const void *data, size_t len, struct ptc_error *err)
{
	struct filling *w = arg;
	const uint8_t *from = data;

	if (len > w->end - w->at)
		return ptc_error_set(err, PTC_EPEER, "the source returned more bytes than requested");
	while (len) {
		size_t i = (size_t)(w->at / FS_BLOCK - w->f->first), skip = (size_t)(w->at % FS_BLOCK);
		struct fs_block *b = w->f->blocks[i];
		size_t part = PTC_MIN(len, b->len - skip);

		memcpy(b->data + skip, from, part);
		w->at += part;
		from += part;
		len -= part;
		if (skip + part == b->len) {
			w->settled = i + 1;
			settle(w->fs, b, 0);
		}
	}
	return atomic_load(&w->fs->stopping) ? ptc_error_set(err, PTC_ECANCELED, "the file system is stopping") : 0;
}

static void say(const struct fs_fetch *f, const struct ptc_error *err)
{
	if (f->view)
		ptc_warn("fuse", "job %s, snapshot %llu: cannot read: %s", f->view->state->job,
			 (unsigned long long)f->view->state->snapshot, err->text);
	else if (f->file->at.part)
		ptc_warn("fuse", "data %s gen-%llu: %s", f->file->at.part->name,
			 (unsigned long long)f->file->at.part->generation, err->text);
}

/* Samples that lie elsewhere. */
static int fill_from_part(struct filling *w, struct ptc_error *err)
{
	const struct fs_place *at = &w->f->file->at;
	ptc_auto_free char *buf = ptc_malloc(FS_READ_MAX);
	int rc = buf ? 0 : ptc_nomem(err);

	while (!rc && w->at < w->end) {
		uint64_t off = w->at;
		size_t n = (size_t)PTC_MIN(w->end - off, (uint64_t)FS_READ_MAX);

		rc = fs_part_read(at, off, buf, n, err);
		if (!rc)
			rc = fill(w, buf, n, err);
		if (!rc)
			fs_part_read_ahead(at, off, n);
	}
	return rc;
}

static void fetch_run(struct ptc_fs *fs, struct fs_fetch *f)
{
	const struct fs_file *file = f->file;
	struct filling w = { .fs = fs, .f = f, .at = f->first * FS_BLOCK };
	ptc_auto_free struct ptc_fs_range *ranges = NULL;
	struct ptc_error err = PTC_ERROR_INIT;
	size_t n = 0;
	int rc = 0;

	w.end = PTC_MIN((f->first + f->n) * FS_BLOCK, file->size);
	if (file->at.part)
		rc = fill_from_part(&w, &err);
	else if (w.at < file->sf.head_len)
		rc = fill(&w, (const uint8_t *)file->sf.head + w.at,
			  (size_t)(PTC_MIN(w.end, (uint64_t)file->sf.head_len) - w.at), &err);
	if (!rc && w.at < w.end)
		rc = ptc_fs_ranges_of(&file->sf, file->start, w.at, w.end, &ranges, &n);
	if (!rc && n)
		rc = fs->opts.source.read(fs->opts.source.arg, f->view->state, ranges, n, fill, &w, &err);
	if (!rc && w.at != w.end)
		rc = ptc_error_set(&err, PTC_EPEER, "the source returned fewer bytes than requested");
	if (rc && rc != PTC_ECANCELED)
		say(f, &err);
	for (size_t i = w.settled; i < f->n; i++)
		settle(fs, f->blocks[i], rc == PTC_ENOMEM ? ENOMEM : EIO);
}

/* The oldest, but for samples while enough of them are waited for: who does looks again when he has his. */
static struct fs_fetch *fetch_next_locked(struct fs_cache *c)
{
	struct fs_fetch **at = &c->fetches, *f;

	while (*at && (*at)->file->at.part && c->data_fetches >= FS_DATA_FETCH)
		at = &(*at)->next;
	f = *at;
	if (!f)
		return NULL;
	*at = f->next;
	if (!f->next)
		c->fetches_tail = at;
	return f;
}

void *fs_fetch_main(void *arg)
{
	struct ptc_fs *fs = arg;
	struct fs_cache *c = &fs->cache;

	pthread_mutex_lock(&fs->lock);
	while (!atomic_load(&fs->stopping)) {
		struct fs_fetch *f = fetch_next_locked(c);
		bool data = f && f->file->at.part;

		if (!f) {
			pthread_cond_wait(&c->fetch_cond, &fs->lock);
			continue;
		}
		c->data_fetches += data;
		pthread_mutex_unlock(&fs->lock);
		fetch_run(fs, f);
		pthread_mutex_lock(&fs->lock);
		c->data_fetches -= data;
		fetch_free_locked(fs, f);
	}
	pthread_mutex_unlock(&fs->lock);
	return NULL;
}

static void drain(struct ptc_fs *fs, struct fs_queue *q)
{
	struct fs_op *op;

	while ((op = q->head)) {
		q->head = op->queued;
		fs_op_fail(fs, op, EIO);
	}
	q->tail = &q->head;
}

/* After the threads have ended: whoever waits is answered. */
void fs_cache_drain(struct ptc_fs *fs)
{
	struct fs_cache *c = &fs->cache;
	struct fs_fetch *f;
	struct fs_op *op;

	while ((f = c->fetches)) {
		c->fetches = f->next;
		for (size_t i = 0; i < f->n; i++)
			settle(fs, f->blocks[i], EIO);
		pthread_mutex_lock(&fs->lock);
		fetch_free_locked(fs, f);
		pthread_mutex_unlock(&fs->lock);
	}
	while ((op = c->starved)) {
		c->starved = op->queued;
		op->refs--;
		fs_op_fail(fs, op, EIO);
	}
	c->starved_tail = &c->starved;
	drain(fs, &fs->meta);
	drain(fs, &fs->reads);
}

void fs_run_read(struct ptc_fs *fs, struct fs_op *op)
{
	bool done;

	pthread_mutex_lock(&fs->lock);
	op->refs++;
	begin_locked(fs, op);
	done = !op->waiting && (op->blocks[0] || op->error); /* else it waits, for blocks or for room */
	op->refs--;
	pthread_mutex_unlock(&fs->lock);
	if (done)
		answer_read(fs, op);
}
