/* SPDX-License-Identifier: Apache-2.0 */
/* The file of the cache of samples: a page that says how it is divided, the heads of all pieces, the pieces. The heads
 * of the places that a piece may have lie together, so one read finds the piece. Writers do not wait for each other or
 * for readers. If two writers mix their bytes in one place, the bytes do not match the checksum in the head of the
 * place.
 *
 * Failure modes: the header's. A file that is divided otherwise is emptied. */
#include "daemon/sources/cache.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PAGE_BYTES 4096
#define SPARE      (256u << 20) /* bytes that are left free on the disk: ptcd's own state is there, too */
#define LOOK       256          /* puts between two looks at how much is free */

struct head {
	uint64_t checksum; /* of the rest, but for the stamp, and of the bytes */
	uint64_t stamp;    /* when it was put: greater is later */
	char reader[32];
	uint64_t sample, piece, size;
	uint32_t uid, len;
};
_Static_assert(sizeof(struct head) == 80, "no padding, which a checksum would take in");

struct division {
	char magic[8];
	uint64_t piece_bytes, ways, sets;
};

struct ptc_cache {
	int fd;
	struct division division;
	_Atomic uint64_t stamp, puts;
	_Atomic bool full;
};

static int divide(struct ptc_cache *c, uint64_t bytes, const char *path, struct ptc_error *err)
{
	const uint64_t set = PTC_CACHE_WAYS * (PTC_CACHE_PIECE + sizeof(struct head));
	struct division *d = &c->division, was = { 0 };
	struct stat st;

	*d = (struct division){ "ptcsmpl", PTC_CACHE_PIECE, PTC_CACHE_WAYS, (bytes - PAGE_BYTES) / set };
	if (fstat(c->fd, &st) != 0)
		return ptc_error_errno(err, errno, "cannot look at %s", path);
	if (pread(c->fd, &was, sizeof was, 0) == (ssize_t)sizeof was && !memcmp(&was, d, sizeof was) &&
	    (uint64_t)st.st_size == PAGE_BYTES + d->sets * set)
		return 0;
	if (ftruncate(c->fd, 0) || ftruncate(c->fd, (off_t)(PAGE_BYTES + d->sets * set)) ||
	    pwrite(c->fd, d, sizeof *d, 0) != (ssize_t)sizeof *d)
		return ptc_error_errno(err, errno, "cannot make %s", path);
	return 0;
}

int ptc_cache_open(const char *dir, uint64_t bytes, struct ptc_cache **ret_cache, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/samples", dir);
	struct ptc_cache *c = ptc_calloc(1, sizeof *c);
	struct stat st;
	int rc = c && path ? ptc_sys_mkdirs(dir, 0700, err) : ptc_nomem(err);

	if (!rc && bytes < PTC_CACHE_MIN)
		rc = ptc_error_set(err, PTC_EINVAL, "a cache of samples needs %u bytes", PTC_CACHE_MIN);
	if (rc) {
		ptc_free(c);
		return rc;
	}
	c->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (c->fd < 0)
		rc = ptc_error_errno(err, errno, "cannot open %s", path);
	else if (flock(c->fd, LOCK_EX | LOCK_NB))
		rc = ptc_error_set(err, PTC_EEXIST, "another process uses %s; give each ptcd a directory of its own",
				   path);
	else if (fstat(c->fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_nlink != 1 ||
		 (st.st_mode & 077))
		rc = ptc_error_set(
			err, PTC_EPERM,
			"%s has samples of all users, so it must belong to ptcd's user with mode 0600; remove it",
			path);
	if (!rc)
		rc = divide(c, bytes, path, err);
	if (rc) {
		ptc_cache_close(c);
		return rc;
	}
	c->stamp = (uint64_t)ptc_sys_realtime_ms() << 20; /* later than what an earlier life has put, by most clocks */
	*ret_cache = c;
	return 0;
}

struct ptc_cache *ptc_cache_close(struct ptc_cache *c)
{
	if (c && c->fd >= 0)
		close(c->fd);
	ptc_free(c);
	return NULL;
}

/* ---- places ---- */

static struct head head_of(const struct ptc_cache_name *name, uint64_t size, size_t len)
{
	struct head h = {
		.sample = name->sample, .piece = name->piece, .size = size, .uid = name->uid, .len = (uint32_t)len
	};

	memcpy(h.reader, name->reader, sizeof h.reader);
	return h;
}

static bool same_name(const struct head *a, const struct head *b)
{
	return a->sample == b->sample && a->piece == b->piece && a->uid == b->uid &&
	       !memcmp(a->reader, b->reader, sizeof a->reader);
}

static uint64_t set_of(const struct ptc_cache *c, const struct head *h)
{
	struct head name =
		head_of(&(struct ptc_cache_name){ .uid = h->uid, .sample = h->sample, .piece = h->piece }, 0, 0);

	memcpy(name.reader, h->reader, sizeof name.reader);
	return ptc_checksum(&name, sizeof name) % c->division.sets;
}

static off_t head_at(uint64_t set, unsigned way)
{
	return (off_t)(PAGE_BYTES + (set * PTC_CACHE_WAYS + way) * sizeof(struct head));
}

static off_t piece_at(const struct ptc_cache *c, uint64_t set, unsigned way)
{
	return head_at(c->division.sets, 0) + (off_t)((set * PTC_CACHE_WAYS + way) * PTC_CACHE_PIECE);
}

static uint64_t checksum_of(const struct head *h, const void *data)
{
	struct {
		struct head head;
		uint64_t data;
	} all = { .head = *h, .data = ptc_checksum(data, h->len) };

	all.head.checksum = all.head.stamp = 0;
	return ptc_checksum(&all, sizeof all);
}

/* ---- put, get ---- */

static bool disk_full(struct ptc_cache *c)
{
	struct statvfs st;
	bool full;

	if (atomic_fetch_add(&c->puts, 1) % LOOK != 0)
		return c->full;
	full = fstatvfs(c->fd, &st) == 0 && (uint64_t)st.f_bavail * st.f_frsize < SPARE;
	if (full && !atomic_exchange(&c->full, true))
		ptc_warn("samples", "less than %u MiB are free where samples are cached: no more are put there",
			 SPARE >> 20);
	if (!full)
		c->full = false;
	return full;
}

void ptc_cache_put(struct ptc_cache *c, const struct ptc_cache_name *name, uint64_t size, const void *data, size_t len)
{
	struct head h = head_of(name, size, len), v[PTC_CACHE_WAYS];
	uint64_t set = set_of(c, &h), now = atomic_fetch_add(&c->stamp, 1);
	unsigned way = 0;

	if (disk_full(c) || pread(c->fd, v, sizeof v, head_at(set, 0)) != (ssize_t)sizeof v)
		return;
	for (unsigned i = 0; i < PTC_CACHE_WAYS; i++) {
		if (same_name(&v[i], &h)) {
			way = i;
			break;
		}
		v[i].stamp = v[i].stamp < now ? v[i].stamp : 0; /* a damaged one must not keep its place for ever */
		way = v[i].stamp < v[way].stamp ? i : way;
	}
	h.checksum = checksum_of(&h, data);
	h.stamp = now;
	/* in whichever order they get to the disk, one without the other is nothing */
	if (pwrite(c->fd, data, len, piece_at(c, set, way)) == (ssize_t)len &&
	    pwrite(c->fd, &h, sizeof h, head_at(set, way)) != (ssize_t)sizeof h)
		ptc_debug("samples", "a sample cannot be cached");
}

bool ptc_cache_get(struct ptc_cache *c, const struct ptc_cache_name *name, void *buf, size_t *ret_len,
		   uint64_t *ret_size)
{
	struct head h = head_of(name, 0, 0), v[PTC_CACHE_WAYS];
	uint64_t set = set_of(c, &h);

	if (pread(c->fd, v, sizeof v, head_at(set, 0)) != (ssize_t)sizeof v)
		return false;
	for (unsigned i = 0; i < PTC_CACHE_WAYS; i++) {
		if (!same_name(&v[i], &h) || v[i].len > PTC_CACHE_PIECE ||
		    pread(c->fd, buf, v[i].len, piece_at(c, set, i)) != (ssize_t)v[i].len ||
		    checksum_of(&v[i], buf) != v[i].checksum)
			continue;
		*ret_len = v[i].len;
		*ret_size = v[i].size;
		return true;
	}
	return false;
}

bool ptc_cache_peek(struct ptc_cache *c, const struct ptc_cache_name *name, uint64_t *ret_size)
{
	struct head h = head_of(name, 0, 0), v[PTC_CACHE_WAYS];

	if (pread(c->fd, v, sizeof v, head_at(set_of(c, &h), 0)) != (ssize_t)sizeof v)
		return false;
	for (unsigned i = 0; i < PTC_CACHE_WAYS; i++)
		if (same_name(&v[i], &h)) {
			*ret_size = v[i].size;
			return true;
		}
	return false;
}
