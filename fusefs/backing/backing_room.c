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

#include <errno.h>
#include <inttypes.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define LEFT_FREE  16 /* a 16th of the memory, or of the folder, is left to others */
#define SCRUB_PART (256u << 10)

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

void fs_backings_usage(struct fs_backings *b, uint64_t *ret_bytes, uint64_t *ret_files)
{
	*ret_bytes = *ret_files = 0;
	pthread_mutex_lock(&b->lock);
	for (const struct fs_backing *f = b->files; f; f = f->next) {
		*ret_bytes += f->ready || f->making ? f->size : 0;
		*ret_files += f->ready;
	}
	for (const struct fs_backing *f = b->trash; f; f = f->next)
		*ret_bytes += f->fd >= 0 ? f->size : 0;
	pthread_mutex_unlock(&b->lock);
}

/* ---- room ---- */

/* Bytes of all files in the list, also of those that are being made. */
static uint64_t committed_locked(const struct fs_backings *b)
{
	uint64_t bytes = 0;

	for (const struct fs_backing *f = b->files; f; f = f->next)
		bytes += f->making || f->ready ? f->size : 0;
	return bytes;
}

/* Bytes that files which are being made will still take. */
static uint64_t to_come(struct fs_backings *b)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&b->lock);
	for (const struct fs_backing *f = b->files; f; f = f->next)
		bytes += f->making ? f->size - f->making->next_at : 0;
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
	if (!b->opts.dir) {
		*ret_total = ptc_machine_memory();
		*ret_free = ptc_machine_memory_available();
	} else if (!statvfs(b->opts.dir, &st)) {
		*ret_total = (uint64_t)st.f_blocks * st.f_frsize;
		*ret_free = (uint64_t)st.f_bavail * st.f_frsize;
	}
}

int fs_backing_room(struct fs_backings *b, uint64_t size, struct ptc_error *err)
{
	uint64_t total, left;
	bool fits;

	pthread_mutex_lock(&b->lock);
	do
		fits = committed_locked(b) <= b->opts.budget;
	while (!fits && size <= b->opts.budget && evict_locked(b));
	pthread_mutex_unlock(&b->lock);
	fs_backing_empty_trash(b);
	if (!fits)
		return ptc_error_set(err, PTC_ENOSPC,
				     "a file of %" PRIu64 " bytes does not fit into the budget of %" PRIu64
				     " bytes beside those in use",
				     size, b->opts.budget);
	do {
		room_in_all(b, &total, &left);
		fits = left >= to_come(b) + total / LEFT_FREE;
	} while (!fits && evict(b));
	return fits ? 0
		    : ptc_error_set(err, PTC_ENOSPC, "a file of %" PRIu64 " bytes would leave too little room in %s",
				    size, b->opts.dir ? b->opts.dir : "memory");
}

void fs_backing_yield(struct fs_backings *b)
{
	uint64_t total, left, bytes, files;

	fs_backings_usage(b, &bytes, &files);
	if (!files)
		return;
	do
		room_in_all(b, &total, &left);
	while (left < total / LEFT_FREE && evict(b));
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
