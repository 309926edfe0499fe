/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of the mount from this node's chunk files, without ptcd. It is read there, by this process (chunk_file.h),
 * instead of through the daemon's socket. Happy path: this process asks once where a segment of a file lies, and
 * remembers the answer. A read within such segments is copied and answered by the thread that took it, which waits for
 * nothing.
 *
 * Failure modes: a segment that is not here, or in too many pieces, is read through the cache, and asked for again
 * after a while. The remembered answer may be out of date, because a snapshot was dropped or a daemon was killed;
 * copying notices that, as it notices damaged bytes. The remembered places are then forgotten and asked for anew, and
 * this read goes through the daemon. */
#include "fusefs/serve/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <string.h>

#define SECOND         INT64_C(1000000000)
#define FAR_NS         (5 * SECOND)
#define UNREACHABLE_NS SECOND
#define IDLE_NS        (30 * SECOND) /* then the file is closed: its snapshot may be gone long since */
#define SPANS_IN_ALL   (1u << 19)    /* remembered: 20 MiB */
#define SEGMENT_PARTS  1024          /* items in one segment, at most */

int fs_direct_init(struct ptc_fs *fs, struct ptc_error *err)
{
	fs->direct.v = ptc_calloc(FS_SEGMENTS, sizeof *fs->direct.v);
	return fs->direct.v ? 0 : ptc_nomem(err);
}

/* In spans. */
static size_t size_of(const struct ptc_fs_spans *s)
{
	return s ? s->n + s->nchunks * (sizeof *s->chunks / sizeof *s->v + 1) : 0;
}

static void forget_locked(struct ptc_fs *fs, struct fs_segment *s)
{
	fs->direct.nspans -= size_of(s->spans);
	ptc_fs_spans_unref(s->spans);
	*s = (struct fs_segment){ 0 };
}

void fs_direct_done(struct ptc_fs *fs)
{
	for (size_t i = 0; fs->direct.v && i < FS_SEGMENTS; i++)
		forget_locked(fs, &fs->direct.v[i]);
	while (fs->direct.nbufs)
		ptc_free(fs->direct.bufs[--fs->direct.nbufs]);
	ptc_free(fs->direct.v);
	fs->direct.v = NULL;
}

static struct fs_segment *slot(struct ptc_fs *fs, uint64_t file, uint64_t index)
{
	return &fs->direct.v[((file ^ index * UINT64_C(0x9e3779b97f4a7c15)) >> 20) % FS_SEGMENTS];
}

static struct fs_segment *find_locked(struct ptc_fs *fs, uint64_t file, uint64_t index)
{
	struct fs_segment *s = slot(fs, file, index);

	return s->known && s->file == file && s->index == index ? s : NULL;
}

/* What is known of it helps a reader through that generation: where it lies whoever has asked; that it is not here only
 * him. */
static bool known(const struct fs_segment *s, uint64_t generation, int64_t now_ns)
{
	return s && (s->spans || (s->generation == generation && now_ns < s->until_ns));
}

static void remember(struct ptc_fs *fs, uint64_t file, uint64_t index, uint64_t generation, struct ptc_fs_spans *spans,
		     int64_t until_ns)
{
	struct fs_segment *s = slot(fs, file, index);

	pthread_mutex_lock(&fs->lock);
	forget_locked(fs, s);
	while (spans && fs->direct.nspans && fs->direct.nspans + size_of(spans) > SPANS_IN_ALL)
		forget_locked(fs, &fs->direct.v[fs->direct.hand++ % FS_SEGMENTS]);
	*s = (struct fs_segment){ .known = true,
				  .file = file,
				  .index = index,
				  .generation = generation,
				  .spans = spans,
				  .until_ns = until_ns,
				  .used_ns = ptc_sys_now_ns() };
	fs->direct.nspans += size_of(spans);
	pthread_mutex_unlock(&fs->lock);
}

void fs_direct_sweep(struct ptc_fs *fs)
{
	int64_t now = ptc_sys_now_ns();

	pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < FS_SEGMENTS; i++)
		if (fs->direct.v[i].known && now > fs->direct.v[i].used_ns + IDLE_NS)
			forget_locked(fs, &fs->direct.v[i]);
	pthread_mutex_unlock(&fs->lock);
}

/* ---- a read ---- */

static uint64_t segment_begin(const struct fs_file *file, uint64_t index)
{
	return PTC_MAX(index * FS_SEGMENT, (uint64_t)file->sf.head_len);
}

enum fs_direct_state fs_direct_find_locked(struct ptc_fs *fs, const struct fs_file *file, const struct fs_view *view,
					   uint64_t off, size_t size, struct fs_direct_spans *ret)
{
	uint64_t first = PTC_MAX(off, (uint64_t)file->sf.head_len) / FS_SEGMENT, last = (off + size - 1) / FS_SEGMENT;
	int64_t now = ptc_sys_now_ns();
	struct fs_segment *found[2] = { NULL, NULL };

	if (!fs->opts.source.locate || file->sf.ranked || last - first > 1)
		return FS_REMOTE;
	for (uint64_t i = first; i <= last; i++) {
		struct fs_segment *s = found[i - first] = find_locked(fs, file->id, i);

		if (!known(s, view->state->generation, now))
			return FS_UNKNOWN;
		s->used_ns = now;
		if (!s->spans)
			return FS_REMOTE;
	}
	*ret = (struct fs_direct_spans){ .first = first };
	for (size_t i = 0; i < 2 && found[i]; i++) {
		ret->v[i] = found[i]->spans;
		ptc_fs_spans_ref(ret->v[i]);
	}
	return FS_DIRECT;
}

void fs_direct_put(struct fs_direct_spans *spans)
{
	ptc_fs_spans_unref(spans->v[0]);
	ptc_fs_spans_unref(spans->v[1]);
}

static void forget(struct ptc_fs *fs, const struct fs_file *file, uint64_t first)
{
	struct fs_segment *s;

	pthread_mutex_lock(&fs->lock);
	for (uint64_t i = first; i <= first + 1; i++) {
		s = find_locked(fs, file->id, i);
		if (s)
			forget_locked(fs, s);
	}
	pthread_mutex_unlock(&fs->lock);
}

void *fs_direct_buf(struct ptc_fs *fs)
{
	void *buf = NULL;

	pthread_mutex_lock(&fs->lock);
	if (fs->direct.nbufs)
		buf = fs->direct.bufs[--fs->direct.nbufs];
	pthread_mutex_unlock(&fs->lock);
	return buf ? buf : ptc_malloc(FS_READ_MAX);
}

void fs_direct_buf_put(struct ptc_fs *fs, void *buf)
{
	pthread_mutex_lock(&fs->lock);
	if (buf && fs->direct.nbufs < FS_DIRECT_BUFS) {
		fs->direct.bufs[fs->direct.nbufs++] = buf;
		buf = NULL;
	}
	pthread_mutex_unlock(&fs->lock);
	ptc_free(buf);
}

bool fs_direct_copy(struct ptc_fs *fs, const struct fs_file *file, const struct fs_direct_spans *spans, uint64_t off,
		    size_t size, uint8_t *buf)
{
	uint64_t end = off + size;

	if (off < file->sf.head_len) {
		size_t n = (size_t)(file->sf.head_len - off);

		memcpy(buf, (const uint8_t *)file->sf.head + off, n);
		buf += n;
		off += n;
	}
	for (size_t i = 0; off < end; i++) {
		uint64_t begin = segment_begin(file, spans->first + i);
		size_t n = (size_t)(PTC_MIN(end, (spans->first + i + 1) * FS_SEGMENT) - off);

		if (!ptc_fs_spans_read(spans->v[i], off - begin, buf, n)) {
			forget(fs, file, spans->first);
			return false;
		}
		buf += n;
		off += n;
	}
	return true;
}

/* ---- asking where ---- */

static void locate(struct ptc_fs *fs, const struct fs_file *file, const struct fs_view *view, uint64_t index)
{
	uint64_t begin = segment_begin(file, index), end = PTC_MIN((index + 1) * FS_SEGMENT, file->size);
	ptc_auto_free struct ptc_fs_range *ranges = NULL;
	struct ptc_fs_spans *spans = NULL;
	size_t n = 0;
	int rc = ptc_fs_ranges_of(&file->sf, file->start, begin, end, &ranges, &n);

	if (!rc && n > SEGMENT_PARTS)
		rc = PTC_ELIMIT;
	if (!rc)
		rc = fs->opts.source.locate(fs->opts.source.arg, view->state, ranges, n, &spans, NULL);
	if (!rc && spans->bytes != end - begin) {
		ptc_fs_spans_unref(spans);
		rc = PTC_ENOTFOUND;
	}
	remember(fs, file->id, index, view->state->generation, rc ? NULL : spans,
		 ptc_sys_now_ns() +
			 (rc == PTC_ENOTFOUND || rc == PTC_ELIMIT || rc == PTC_ESTATE ? FAR_NS : UNREACHABLE_NS));
}

static enum fs_direct_state find_or_ask(struct ptc_fs *fs, const struct fs_op *op, struct fs_direct_spans *ret)
{
	uint64_t first = PTC_MAX(op->off, (uint64_t)op->file->sf.head_len) / FS_SEGMENT;
	uint64_t last = (op->off + op->size - 1) / FS_SEGMENT;
	enum fs_direct_state state;

	for (uint64_t i = first; i <= last; i++) {
		bool ask;

		pthread_mutex_lock(&fs->lock);
		ask = !known(find_locked(fs, op->file->id, i), op->view->state->generation, ptc_sys_now_ns());
		pthread_mutex_unlock(&fs->lock);
		if (ask)
			locate(fs, op->file, op->view, i);
	}
	pthread_mutex_lock(&fs->lock);
	state = fs_direct_find_locked(fs, op->file, op->view, op->off, op->size, ret);
	pthread_mutex_unlock(&fs->lock);
	return state;
}

/* On a worker: the daemon may not answer. */
void fs_run_direct(struct ptc_fs *fs, struct fs_op *op)
{
	struct fs_direct_spans spans;
	uint8_t *buf = fs_direct_buf(fs);
	bool done = false;

	for (int attempt = 0; buf && !done && attempt < 2; attempt++) { /* again: what was remembered was out of date */
		if (find_or_ask(fs, op, &spans) != FS_DIRECT)
			break;
		done = fs_direct_copy(fs, op->file, &spans, op->off, op->size, buf);
		fs_direct_put(&spans);
	}
	if (done && fs_op_claim(fs, op))
		fuse_reply_buf(op->req, (const char *)buf, op->size);
	fs_direct_buf_put(fs, buf);
	if (!done) {
		fs_run_read(fs, op);
		return;
	}
	fs_op_unref(fs, op);
}
