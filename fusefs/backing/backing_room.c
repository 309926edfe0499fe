/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which backing files stay: the budget, the memory or folder they lie in, and whether their bytes are still
 * right. */
#include "fusefs/backing/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/memory/machine_memory.h"
#include "base/number/digest.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define LEFT_FREE  16 /* a 16th of the memory, or of the folder, is left to others */
#define SCRUB_PART (256u << 10)
#define ROOM_MS    500

/* ---- what is there ---- */

void fs_backing_to_trash_locked(struct fs_backings *b, struct fs_backing *f)
{
	struct fs_backing **at = &b->files;

	while (*at != f)
		at = &(*at)->next;
	*at = f->next;
	f->next = b->trash;
	b->trash = f;
}

void fs_making_free(struct fs_making *m)
{
	if (m)
		ptc_free(m->sums);
	ptc_free(m);
}

void fs_backing_empty_trash(struct fs_backings *b)
{
	struct fs_backing *f, *next;

	pthread_mutex_lock(&b->lock);
	f = b->trash;
	b->trash = NULL;
	pthread_mutex_unlock(&b->lock);
	for (; f; f = next) {
		next = f->next;
		if (f->number > 0)
			b->opts.detach(b->opts.arg, f->number);
		ptc_close(&f->fd);
		fs_making_free(f->making);
		ptc_free(f->ends);
		ptc_free(f->digests);
		ptc_free(f);
	}
}

void fs_backing_free_if_gone_locked(struct fs_backings *b, struct fs_backing *f)
{
	if ((f->gone || f->bad) && !f->users && !f->making)
		fs_backing_to_trash_locked(b, f);
}

/* Takes room, or will: also a file that is being made, once there is room for it. */
static bool takes_room(const struct fs_backing *f)
{
	return f->ready || (f->making && f->making->counted);
}

static void usage_locked(const struct fs_backings *b, struct ptc_fs_backing_usage *ret)
{
	*ret = (struct ptc_fs_backing_usage){ 0 };
	for (const struct fs_backing *f = b->files; f; f = f->next) {
		ret->bytes += takes_room(f) ? f->size : 0;
		ret->files += f->ready;
		ret->open += f->ready && f->users ? f->size : 0;
	}
	for (const struct fs_backing *f = b->trash; f; f = f->next)
		ret->bytes += f->fd >= 0 ? f->size : 0;
}

void fs_backings_usage(struct fs_backings *b, struct ptc_fs_backing_usage *ret)
{
	pthread_mutex_lock(&b->lock);
	usage_locked(b, ret);
	pthread_mutex_unlock(&b->lock);
}

/* ---- room ---- */

/* Whether there is room for one more of that size beside all that take room now. */
static bool fits_locked(const struct fs_backings *b, uint64_t size)
{
	uint64_t bytes = size;
	size_t files = 1;

	for (const struct fs_backing *f = b->files; f; f = f->next) {
		bytes += takes_room(f) ? f->size : 0;
		files += takes_room(f);
	}
	return bytes <= b->opts.budget && files <= b->opts.most_files;
}

/* Bytes that files which are being made will still take. */
static uint64_t to_come(struct fs_backings *b)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&b->lock);
	for (const struct fs_backing *f = b->files; f; f = f->next)
		bytes += f->making && f->making->counted ? f->size - f->making->next_at : 0;
	pthread_mutex_unlock(&b->lock);
	return bytes;
}

/* Drops the least recently used file that nobody uses. false: there is none. */
static bool evict_locked(struct fs_backings *b)
{
	struct fs_backing *oldest = NULL;

	for (struct fs_backing *f = b->files; f; f = f->next)
		if (f->ready && !f->users && (!oldest || f->used_ns < oldest->used_ns))
			oldest = f;
	if (oldest)
		fs_backing_to_trash_locked(b, oldest);
	return oldest != NULL;
}

static bool evict(struct fs_backings *b)
{
	bool one;

	pthread_mutex_lock(&b->lock);
	one = evict_locked(b);
	pthread_mutex_unlock(&b->lock);
	fs_backing_empty_trash(b);
	return one;
}

static void room_in_all(const struct fs_backings *b, uint64_t *ret_total, uint64_t *ret_free)
{
	struct statvfs st;

	*ret_total = *ret_free = 0;
	if (b->opts.room) {
		b->opts.room(b->opts.arg, ret_total, ret_free);
	} else if (!b->opts.dir) {
		*ret_total = ptc_machine_memory();
		*ret_free = ptc_machine_memory_available();
	} else if (!fstatvfs(b->dir_fd, &st)) { /* not by its path, which may have become another folder's */
		*ret_total = (uint64_t)st.f_blocks * st.f_frsize;
		*ret_free = (uint64_t)st.f_bavail * st.f_frsize;
	}
}

static const char *place(const struct fs_backings *b)
{
	return b->opts.dir ? b->opts.dir : "memory";
}

static int no_budget(const struct fs_backings *b, const struct fs_backing *f, struct ptc_error *err)
{
	struct ptc_fs_backing_usage now;

	usage_locked(b, &now);
	if (f->size <= b->opts.budget && now.bytes <= b->opts.budget - f->size)
		return ptc_error_set(err, PTC_ENOSPC, "programs have %" PRIu64 " backing files open, which is the most",
				     now.files);
	return ptc_error_set(err, PTC_ENOSPC,
			     "a file of %" PRIu64 " bytes does not fit into the budget of %" PRIu64
			     " bytes beside those in use",
			     f->size, b->opts.budget);
}

int fs_backing_room(struct fs_backings *b, struct fs_backing *f, struct ptc_error *err)
{
	struct ptc_fs_backing_usage now;
	uint64_t total, left;
	bool fits;
	int rc = 0;

	pthread_mutex_lock(&b->lock);
	do
		fits = fits_locked(b, f->size);
	while (!fits && f->size <= b->opts.budget && evict_locked(b));
	f->making->counted = fits;
	if (!fits)
		rc = no_budget(b, f, err);
	pthread_mutex_unlock(&b->lock);
	fs_backing_empty_trash(b);
	if (rc)
		return rc;
	do {
		room_in_all(b, &total, &left);
		fits = left >= to_come(b) + total / LEFT_FREE;
	} while (!fits && evict(b));
	if (fits)
		return 0;
	pthread_mutex_lock(&b->lock);
	f->making->counted = false;
	usage_locked(b, &now);
	pthread_mutex_unlock(&b->lock);
	return ptc_error_set(err, PTC_ENOSPC,
			     "a file of %" PRIu64 " bytes would leave too little room in %s; open ones take %" PRIu64
			     " bytes",
			     f->size, place(b), now.open);
}

/* What nobody uses is freed already. What is being made is not worth more memory now; open ones cannot be freed. */
static void still_short_locked(struct fs_backings *b)
{
	struct ptc_fs_backing_usage now;

	for (struct fs_backing *f = b->files; f; f = f->next)
		if (f->making && f->making->counted && f->making->phase != FS_MAKING_ENDS && !f->making->rc)
			f->making->rc = ptc_error_set(&f->making->err, PTC_ENOSPC, "%s became short while it was made",
						      place(b));
	pthread_cond_broadcast(&b->work);
	usage_locked(b, &now);
	if (now.open && !b->too_short)
		ptc_warn("fuse",
			 "%s is short, and programs have backing files of %" PRIu64
			 " bytes open, which stay until they are closed; no new ones are made",
			 place(b), now.open);
	b->too_short = now.open > 0;
}

static void yield(struct fs_backings *b)
{
	struct ptc_fs_backing_usage now;
	uint64_t total, left;
	bool is_short = false;

	fs_backings_usage(b, &now);
	if (now.bytes) {
		do {
			room_in_all(b, &total, &left);
			is_short = left < total / LEFT_FREE;
		} while (is_short && evict(b));
	}
	pthread_mutex_lock(&b->lock);
	if (is_short)
		still_short_locked(b);
	else
		b->too_short = false;
	pthread_mutex_unlock(&b->lock);
}

void *fs_backing_room_main(void *arg)
{
	struct fs_backings *b = arg;

	pthread_mutex_lock(&b->lock);
	while (!atomic_load(&b->stopping)) {
		ptc_cond_wait_ms(&b->rest, &b->lock, ROOM_MS);
		pthread_mutex_unlock(&b->lock);
		yield(b);
		pthread_mutex_lock(&b->lock);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

/* ---- scrubbing ---- */

/* The file to go on with, with a user; NULL: none. After the last comes the first again. */
static struct fs_backing *scrubbed_locked(struct fs_backings *b)
{
	struct fs_backing *first = NULL, *f = b->files;

	for (; f && f->id != b->scrub_id; f = f->next)
		first = first ? first : f->ready && !f->bad ? f : NULL;
	if (!f || !f->ready || f->bad || b->scrub_at >= f->size) { /* the next, from its beginning */
		for (f = f ? f->next : NULL; f && (!f->ready || f->bad); f = f->next)
			;
		f = f ? f : first;
		b->scrub_id = f ? f->id : 0;
		b->scrub_at = f ? f->head_len : 0;
		b->scrub_item = 0;
		b->scrub_run = 0;
	}
	if (f)
		f->users++;
	return f;
}

/* Takes bytes at b->scrub_at into account. false: an item that has ended is not what it was. */
static bool compare(struct fs_backings *b, const struct fs_backing *f, const uint8_t *data, size_t len)
{
	while (len) {
		size_t n = (size_t)PTC_MIN((uint64_t)len, f->ends[b->scrub_item] - b->scrub_at);

		b->scrub_run = ptc_digest_append(b->scrub_run, data, n);
		b->scrub_at += n;
		data += n;
		len -= n;
		for (; b->scrub_item < f->nitems && f->ends[b->scrub_item] <= b->scrub_at; b->scrub_item++) {
			if (n && b->scrub_run != f->digests[b->scrub_item])
				return false;
			b->scrub_run = 0;
			n = 0; /* what follows and ends here, too, is empty */
		}
	}
	return true;
}

void fs_backing_scrub(struct fs_backings *b, uint64_t bytes)
{
	ptc_auto_free uint8_t *buf = bytes ? ptc_malloc(SCRUB_PART) : NULL;
	struct fs_backing *f = NULL;
	bool fine = true;

	if (!buf)
		return;
	pthread_mutex_lock(&b->lock);
	f = scrubbed_locked(b);
	pthread_mutex_unlock(&b->lock);
	while (f && fine && bytes && b->scrub_at < f->size && !atomic_load(&b->stopping)) {
		size_t len = (size_t)PTC_MIN(PTC_MIN(bytes, (uint64_t)SCRUB_PART), f->size - b->scrub_at);
		ssize_t n = pread(f->fd, buf, len, (off_t)b->scrub_at);

		if (n < 0 && errno == EINTR)
			continue;
		fine = n > 0 && compare(b, f, buf, (size_t)n);
		bytes -= n > 0 ? (uint64_t)n : 0;
	}
	if (f && !fine) {
		ptc_error_log("fuse", "a backing file of %" PRIu64 " bytes has changed; it is not used any more",
			      f->size);
		pthread_mutex_lock(&b->lock);
		f->bad = true;
		pthread_mutex_unlock(&b->lock);
	}
	if (!f)
		return;
	pthread_mutex_lock(&b->lock);
	f->users--; /* not a reader: it does not count as used */
	fs_backing_free_if_gone_locked(b, f);
	pthread_mutex_unlock(&b->lock);
}
