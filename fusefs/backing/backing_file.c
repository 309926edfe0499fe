/* SPDX-License-Identifier: Apache-2.0 */
/* Makes one backing file: filled, verified, sealed. It never has a name, so nothing is left behind, however this
 * process ends. Bytes come straight out of the node's chunk files where they lie there, else from the source. */
#include "fusefs/backing/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/number/digest.h"
#include "base/sys/sys.h"
#include "fusefs/source/file_ranges.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#define PART                                                                                                           \
	PTC_HUGE_PAGE_BYTES /* bytes that are written at a time: a huge page that is written whole is not cleared */

int fs_backing_tmpfs(void)
{
	int fs = fsopen("tmpfs", FSOPEN_CLOEXEC), mnt = -1;

	if (fs >= 0 && !fsconfig(fs, FSCONFIG_SET_STRING, "huge", "within_size", 0) &&
	    !fsconfig(fs, FSCONFIG_SET_STRING, "size", "0", 0) && !fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		mnt = fsmount(fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	ptc_close(&fs);
	return mnt;
}

int fs_backing_create(int dir, bool reserve, uint64_t size, int *ret_fd, struct ptc_error *err)
{
	int fd = dir >= 0 ? openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0400)
			  : memfd_create("ptc-backing", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int e = 0;

	if (fd < 0)
		return ptc_error_errno(err, errno, "cannot make a backing file");
	if (reserve)
		e = posix_fallocate(fd, 0, (off_t)size);
	else if (ftruncate(fd, (off_t)size))
		e = errno;
	if (e) {
		close(fd);
		return ptc_error_errno(err, e, "cannot make a backing file of %" PRIu64 " bytes", size);
	}
	*ret_fd = fd;
	return 0;
}

int fs_backing_seal(int dir, int *fd, struct ptc_error *err)
{
	char path[64];
	int again;

	if (dir < 0 && fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL))
		return ptc_error_errno(err, errno, "cannot seal a backing file");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", *fd);
	again = open(path, O_RDONLY | O_CLOEXEC);
	if (again < 0)
		return ptc_error_errno(err, errno, "cannot open a backing file for reading");
	close(*fd);
	*fd = again;
	return 0;
}

static int write_all(int fd, const void *data, size_t len, uint64_t at, struct ptc_error *err)
{
	const uint8_t *from = data;

	while (len) {
		ssize_t n = pwrite(fd, from, len, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return ptc_error_errno(err, n ? errno : EIO, "cannot write a backing file");
		from += n;
		at += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

int fs_backing_head(const struct fs_making *m, int fd, struct ptc_error *err)
{
	return write_all(fd, m->of.sf->head, m->of.sf->head_len, 0, err);
}

/* A segment on its way, and the run of one item that was copied last. */
struct segment {
	struct fs_making *m;
	int fd;
	uint64_t at, end;
	size_t item;  /* in which the next byte lies */
	uint64_t run; /* the digest of its bytes in this segment, up to here */
	bool has_run;
};

/* The run has ended: its share of the item's digest. */
static void run_ends(struct segment *s)
{
	uint64_t after = s->m->of.start[s->item + 1] - s->at;

	if (s->has_run)
		atomic_fetch_xor(&s->m->sums[s->item], ptc_digest_shift(s->run, after));
	s->has_run = false;
	s->run = 0;
}

static void digest(struct segment *s, const uint8_t *data, size_t len)
{
	const uint64_t *start = s->m->of.start;

	while (len) {
		size_t n;

		while (start[s->item + 1] <= s->at) { /* also past empty items */
			run_ends(s);
			s->item++;
		}
		n = (size_t)PTC_MIN((uint64_t)len, start[s->item + 1] - s->at);
		s->run = s->has_run ? ptc_digest_append(s->run, data, n) : ptc_digest_run(data, n);
		s->has_run = true;
		s->at += n;
		data += n;
		len -= n;
	}
}

static int take(void *arg, const void *data, size_t len, struct ptc_error *err)
{
	struct segment *s = arg;
	int rc;

	if (len > s->end - s->at)
		return ptc_error_set(err, PTC_EPEER, "the source returned more bytes than requested");
	if (atomic_load(s->m->stopping))
		return ptc_error_set(err, PTC_ECANCELED, "the file system is stopping");
	rc = write_all(s->fd, data, len, s->at, err);
	if (!rc)
		digest(s, data, len);
	return rc;
}

/* 0: all of the segment is copied. Another value: its bytes from s->at on are not here, or not as they should be; the
 * daemon knows better. */
static int from_chunks(const struct ptc_fs_source *source, struct segment *s, const struct ptc_fs_range *ranges,
		       size_t n, struct ptc_error *err)
{
	ptc_auto_free uint8_t *buf = source->locate && n <= FS_BACKING_ITEMS ? ptc_malloc(PART) : NULL;
	uint64_t begin = s->at;
	struct ptc_fs_spans *spans = NULL;
	int rc = buf ? source->locate(source->arg, s->m->of.state, ranges, n, &spans, NULL) : PTC_ENOTFOUND;

	if (!rc && spans->bytes != s->end - begin)
		rc = PTC_ENOTFOUND;
	while (!rc && s->at < s->end) {
		size_t len = (size_t)(PTC_MIN(s->end, (s->at / PART + 1) * PART) - s->at);

		if (!ptc_fs_spans_read(spans, s->at - begin, buf, len))
			rc = PTC_ENOTFOUND;
		else
			rc = take(s, buf, len, err);
	}
	ptc_fs_spans_unref(spans);
	return rc;
}

void fs_backing_fill_begin(const struct ptc_fs_source *source, struct fs_making *m, int fd)
{
	if (source->fill_begin && source->fill_begin(source->arg, fd, &m->fill, NULL))
		m->fill = NULL;
}

int fs_backing_fill_end(const struct ptc_fs_source *source, struct fs_making *m, struct ptc_error *err)
{
	struct ptc_admin_fill *fill = m->fill;

	m->fill = NULL;
	return fill ? source->fill_end(source->arg, fill, err) : 0;
}

/* Whether a call that failed so has ended at the other end, so that its bytes can be read instead. */
static bool has_ended(int rc)
{
	return rc != PTC_EPEER && rc != PTC_ETIMEOUT && rc != PTC_ECANCELED;
}

/* The rest of the segment, written by the source. PTC_ENOTFOUND: it is to be read. */
static int filled(const struct ptc_fs_source *source, struct segment *s, const struct ptc_fs_range *ranges, size_t n,
		  struct ptc_error *err)
{
	struct fs_making *m = s->m;
	ptc_auto_free uint64_t *digests = NULL;
	int rc;

	if (!m->fill || atomic_load(&m->reads) || n > FS_BACKING_ITEMS)
		return PTC_ENOTFOUND;
	digests = ptc_calloc(n, sizeof *digests);
	rc = digests ? source->fill(source->arg, m->of.state, m->fill, s->at, ranges, n, digests, err) : PTC_ENOMEM;
	if (rc && has_ended(rc)) {
		atomic_store(&m->reads, rc != PTC_ELIMIT); /* many others ask, too */
		return PTC_ENOTFOUND;
	}
	for (size_t i = 0; !rc && i < n; i++) {
		while (m->of.start[s->item + 1] <= s->at) {
			run_ends(s);
			s->item++;
		}
		run_ends(s);
		s->at += ranges[i].length;
		s->run = digests[i];
		s->has_run = true;
	}
	return rc;
}

int fs_backing_segment(const struct ptc_fs_source *source, struct fs_making *m, int fd, uint64_t off, uint64_t end,
		       struct ptc_error *err)
{
	struct segment s = { .m = m, .fd = fd, .at = PTC_MAX(off, (uint64_t)m->of.sf->head_len), .end = end };
	ptc_auto_free struct ptc_fs_range *ranges = NULL;
	size_t n = 0;
	int rc = 0;

	if (s.at >= end)
		return 0;
	s.item = ptc_fs_item_at(m->of.sf, m->of.start, s.at);
	rc = ptc_fs_ranges_of(m->of.sf, m->of.start, s.at, end, &ranges, &n) ? ptc_nomem(err) : 0;
	if (!rc && from_chunks(source, &s, ranges, n, NULL) && s.at < end) {
		ptc_free(ranges);
		ranges = NULL;
		rc = ptc_fs_ranges_of(m->of.sf, m->of.start, s.at, end, &ranges, &n) ? ptc_nomem(err) : 0;
		if (!rc)
			rc = filled(source, &s, ranges, n, err);
		if (rc == PTC_ENOTFOUND)
			rc = source->read(source->arg, m->of.state, ranges, n, take, &s, err);
	}
	if (!rc && s.at != end)
		rc = ptc_error_set(err, PTC_EPEER, "the source returned fewer bytes than requested");
	if (!rc)
		run_ends(&s);
	return rc;
}

int fs_backing_verify(const struct fs_making *m, struct ptc_error *err)
{
	for (size_t i = 0; i < m->of.sf->n; i++)
		if (m->of.sf->bytes[i] && atomic_load(&m->sums[i]) != m->of.state->digests[m->of.sf->items[i]])
			return ptc_error_set(err, PTC_EDIGEST, "item %" PRIu32 " has not the digest of the manifest",
					     m->of.sf->items[i]);
	return 0;
}
