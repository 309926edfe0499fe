/* SPDX-License-Identifier: Apache-2.0 */
/* What every use of LMDB here shares: how an environment is opened, how a transaction begins and ends, and the one
 * place where its codes become ours.
 *
 * Happy path: open (flags by purpose), begin, the caller's puts, commit between two fault points.
 *
 * Failure modes: a full disk, map or file system is PTC_ENOSPC; a damaged file PTC_ECORRUPT; a file of another LMDB
 * PTC_EVERSION; the rest PTC_EIO. A transaction has ended after ptc_store_commit whatever it returns. */
#include "daemon/store/chunks/lmdb_env.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/memory/huge_map.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "daemon/store/chunks/lmdb_check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#define LOCK_FILE_BYTES 16384u /* LMDB 0.9 wants 8 KiB for 126 readers and uses what is there */

static int code_of(int rc)
{
	switch (rc) {
	case MDB_MAP_FULL:
	case MDB_TXN_FULL:
	case ENOSPC:
	case EDQUOT:
		return PTC_ENOSPC;
	case MDB_CORRUPTED:
	case MDB_PAGE_NOTFOUND:
	case MDB_INVALID:
	case MDB_BAD_VALSIZE:
		return PTC_ECORRUPT;
	case MDB_VERSION_MISMATCH:
	case MDB_INCOMPATIBLE:
		return PTC_EVERSION;
	case MDB_NOTFOUND:
		return PTC_ENOTFOUND;
	case ENOMEM:
		return PTC_ENOMEM;
	case EACCES:
	case EPERM:
		return PTC_EPERM;
	default:
		return PTC_EIO;
	}
}

int(ptc_store_lmdb_error)(struct ptc_error *err, int rc, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return ptc_error_set(err, code_of(rc), "%s: %s", text, mdb_strerror(rc));
}

/* LMDB 0.9 leaves its data descriptor open across exec, and a worker of another user would inherit the store. */
static int close_on_exec(const char *dir, struct ptc_error *err)
{
	DIR *d = opendir("/proc/self/fd");
	char want[4096], got[4096], link[320];
	struct dirent *e;
	ssize_t n;

	if (!d)
		return ptc_error_errno(err, errno, "cannot list /proc/self/fd");
	if (!realpath(dir, want)) {
		closedir(d);
		return ptc_error_errno(err, errno, "cannot resolve %s", dir);
	}
	while ((e = readdir(d))) {
		snprintf(link, sizeof link, "/proc/self/fd/%s", e->d_name);
		n = readlink(link, got, sizeof got - 1);
		if (n < 0)
			continue;
		got[n] = '\0';
		if (strncmp(got, want, strlen(want)) == 0 && got[strlen(want)] == '/' &&
		    fcntl(atoi(e->d_name), F_SETFD, FD_CLOEXEC) != 0) {
			n = errno;
			closedir(d);
			return ptc_error_errno(err, (int)n, "cannot set close-on-exec on %s", got);
		}
	}
	closedir(d);
	return 0;
}

static int open_dbi(MDB_env *env, enum store_env kind, MDB_dbi *ret_dbi)
{
	MDB_txn *txn;
	int rc = mdb_txn_begin(env, NULL, 0, &txn);

	if (rc)
		return rc;
	rc = mdb_dbi_open(txn, NULL, kind == STORE_CHUNKS ? MDB_INTEGERKEY : 0, ret_dbi);
	if (rc) {
		mdb_txn_abort(txn);
		return rc;
	}
	(void)ptc_fault("store.open.before");
	rc = mdb_txn_commit(txn);
	(void)ptc_fault("store.open.after");
	return rc;
}

/* LMDB maps its lock file and writes to it: on a full file system that is SIGBUS too, unless it has its blocks. Must be
 * closed before LMDB opens it, whose fcntl locks a later close would drop. */
static int make_lock_file(const char *dir, struct ptc_error *err)
{
	char path[4096];
	int fd, rc;

	if (snprintf(path, sizeof path, "%s/lock.mdb", dir) >= (int)sizeof path)
		return ptc_error_set(err, PTC_ELIMIT, "%s: path too long", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return ptc_error_errno(err, errno, "cannot create %s", path);
	rc = ptc_store_file_alloc(fd, 0, LOCK_FILE_BYTES, err);
	close(fd);
	return rc;
}

/* A damaged page would end the process inside LMDB. */
static int check_data(const char *dir, enum store_env kind, struct ptc_error *err)
{
	struct ptc_lmdb_kind k = { .numbers = kind == STORE_CHUNKS };
	ptc_auto_free char *path = ptc_asprintf("%s/data.mdb", dir);
	struct statfs fs;

	if (!path)
		return ptc_nomem(err);
	if (statfs(dir, &fs) != 0)
		return ptc_error_errno(err, errno, "cannot open %s", dir);
	k.skip_heads = k.numbers && fs.f_type != TMPFS_MAGIC && fs.f_type != RAMFS_MAGIC;
	return ptc_lmdb_check(path, k, err);
}

int ptc_store_set_aside(const char *dir, const char *why, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/data.mdb", dir);
	ptc_auto_free char *aside = ptc_asprintf("%s/" STORE_ASIDE, dir);
	ptc_auto_close int fd = path ? open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
	int rc;

	if (!path || !aside)
		return ptc_nomem(err);
	rc = fd < 0 ? ptc_error_errno(err, errno, "cannot open %s", path)
		    : ptc_sys_publish(fd, path, aside, "store.aside", err);
	if (!rc)
		ptc_error_log("store", "%s; it is set aside as %s", why, aside);
	return rc;
}

/* meta is the truth: plain synced commits. chunks must be writable through the map after the commit, hence WRITEMAP;
 * its commits are synced too (on tmpfs that costs nothing), because after unsynced ones a power cut leaves pages of
 * different transactions mixed. NOTLS: transactions belong to whoever holds our lock, not to a thread. */
int ptc_store_env_open(const char *dir, enum store_env kind, uint64_t map_bytes, MDB_env **ret_env, MDB_dbi *ret_dbi,
		       struct ptc_error *err)
{
	unsigned flags = MDB_NOTLS | MDB_NORDAHEAD | (kind == STORE_CHUNKS ? MDB_WRITEMAP : 0);
	struct ptc_huge_aim aim = { 0 };
	MDB_env *env = NULL;
	int rc, dead;

	if (ptc_fault("store.env.open"))
		return ptc_error_set(err, PTC_EIO, "cannot open %s: asked to fail", dir);
	rc = check_data(dir, kind, err);
	if (!rc)
		rc = make_lock_file(dir, err);
	if (rc)
		return rc;
	rc = mdb_env_create(&env);
	if (rc)
		return ptc_store_lmdb_error(err, rc, "cannot open %s", dir);
	rc = mdb_env_set_mapsize(env, map_bytes);
	if (kind == STORE_CHUNKS) /* LMDB maps the file, and huge pages of chunks shall be huge pages of ours */
		aim = ptc_huge_aim(map_bytes);
	if (!rc)
		rc = mdb_env_open(env, dir, flags, 0600);
	ptc_huge_unaim(aim);
	if (!rc)
		rc = mdb_reader_check(env, &dead);
	if (!rc)
		rc = open_dbi(env, kind, ret_dbi);
	if (rc) {
		mdb_env_close(env);
		return ptc_store_lmdb_error(err, rc, "cannot open %s", dir);
	}
	rc = close_on_exec(dir, err);
	if (rc) {
		mdb_env_close(env);
		return rc;
	}
	*ret_env = env;
	return 0;
}

int ptc_store_begin(MDB_env *env, bool write, MDB_txn **ret_txn, struct ptc_error *err)
{
	int rc = mdb_txn_begin(env, NULL, write ? 0 : MDB_RDONLY, ret_txn);

	if (rc == MDB_READERS_FULL) {
		int dead;

		mdb_reader_check(env, &dead);
		rc = mdb_txn_begin(env, NULL, write ? 0 : MDB_RDONLY, ret_txn);
	}
	return rc ? ptc_store_lmdb_error(err, rc, "cannot begin a transaction") : 0;
}

int ptc_store_commit(MDB_txn *txn, enum store_env kind, struct ptc_error *err)
{
	const char *path = "the store";
	bool fail =
		kind == STORE_META ? ptc_fault("store.meta.commit.before") : ptc_fault("store.chunks.commit.before");
	int rc;

	if (fail) {
		mdb_txn_abort(txn);
		return ptc_error_set(err, PTC_EIO, "commit: asked to fail");
	}
	(void)mdb_env_get_path(mdb_txn_env(txn), &path); /* the transaction is gone after it */
	rc = mdb_txn_commit(txn);
	if (rc)
		return ptc_store_lmdb_error(err, rc, "cannot commit to %s", path);
	if (kind == STORE_META)
		(void)ptc_fault("store.meta.commit.after");
	else
		(void)ptc_fault("store.chunks.commit.after");
	return 0;
}

int ptc_store_msync(void *p, size_t len, struct ptc_error *err)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = (uintptr_t)p & ~(page - 1);

	if (ptc_fault("store.msync.before"))
		return ptc_error_set(err, PTC_EIO, "msync: asked to fail");
	if (msync((void *)first, (uintptr_t)p + len - first, MS_SYNC) != 0)
		return ptc_error_errno(err, errno, "cannot write filled chunks to disk");
	(void)ptc_fault("store.msync.after");
	return 0;
}

/* For file systems without fallocate. The range is free, so zeros do no harm. */
static int write_zeros(int fd, uint64_t off, uint64_t len)
{
	static const char zeros[64 << 10];

	while (len > 0) {
		ssize_t n = pwrite(fd, zeros, (size_t)PTC_MIN(len, sizeof zeros), (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno;
		off += (uint64_t)n;
		len -= (uint64_t)n;
	}
	return 0;
}

static const char *path_of(int fd, char *ret_path, size_t size)
{
	char link[64];
	ssize_t n;

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	n = readlink(link, ret_path, size - 1);
	if (n < 0)
		return "a file of the store";
	ret_path[n] = '\0';
	return ret_path;
}

int ptc_store_file_alloc(int fd, uint64_t off, uint64_t len, struct ptc_error *err)
{
	const uint64_t step = 64 << 20; /* tmpfs starts over when a signal interrupts it, so in parts */
	const uint64_t all = len;
	char path[512];
	int e = ptc_fault("store.fallocate") ? ENOSPC : 0;

	while (!e && len > 0) {
		uint64_t now = PTC_MIN(len, step);

		if (fallocate(fd, 0, (off_t)off, (off_t)now) != 0) {
			if (errno == EINTR)
				continue;
			e = errno == EOPNOTSUPP || errno == ENOSYS ? write_zeros(fd, off, now) : errno;
		}
		off += now;
		len -= now;
	}
	if (e == ENOSPC || e == EDQUOT)
		return ptc_error_set(err, PTC_ENOSPC,
				     "cannot reserve %llu bytes for chunks in %s: %s: make room on its file system, or "
				     "delete jobs or snapshots on this node",
				     (unsigned long long)all, path_of(fd, path, sizeof path), strerror(e));
	return e ? ptc_error_errno(err, e, "cannot reserve %llu bytes for chunks in %s", (unsigned long long)all,
				   path_of(fd, path, sizeof path))
		 : 0;
}
