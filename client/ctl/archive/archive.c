/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of an archive. A name alone proves nothing: a directory counts as a checkpoint if it has .metadata. That file
 * is written last, and the directory gets its name after that. A checkpoint that is removed gets another name first, so
 * a kill in between leaves nothing that looks whole. Failure modes: archive.h. */
#include "client/ctl/archive/archive.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "base/number/search.h"
#include "base/sys/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define APART_NS INT64_C(1000000) /* of times that bring_back() sets */

struct entry {
	char *name;
	int64_t time_ns; /* of its ptc.json */
	bool whole;
};
struct archive {
	const struct ctl_archive_round *round;
	struct entry *v;
	size_t n;
	int lock;
};

/* ---- names ---- */

static void name_of(const struct ctl_archive_round *r, const struct ptc_admin_export *info, char *ret, size_t size)
{
	char text[256], hash[33];
	int n = snprintf(text, sizeof text, "%s %" PRIu64 " %" PRIu64, info->uuid, info->generation, info->snapshot);

	ptc_content_hash(text, (size_t)n, hash);
	snprintf(ret, size, "%s-step-%" PRIu64 "-%.8s", r->name, info->step, hash);
}

/* JOB-step-DIGITS-8 hexadecimal digits, then nothing or ".tmp-...". */
static bool is_ours(const char *job, const char *name, bool *ret_whole)
{
	static const char step[] = "-step-";
	size_t n = strlen(job), digits, hex;

	if (strncmp(name, job, n) != 0 || strncmp(name + n, step, sizeof step - 1) != 0)
		return false;
	name += n + sizeof step - 1;
	digits = strspn(name, "0123456789");
	if (!digits || name[digits] != '-')
		return false;
	name += digits + 1;
	hex = strspn(name, "0123456789abcdef");
	*ret_whole = !name[hex];
	return hex == 8 && (!name[hex] || !strncmp(name + hex, ".tmp-", 5));
}

/* ---- what is there ---- */

PTC_COMPARE(newest_first, struct entry, PTC_THEN(-PTC_ORDER(a->time_ns, b->time_ns), strcmp(b->name, a->name)))

static int add_entry(struct archive *a, const char *name, bool whole, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/%s/" CTL_CK_DOCUMENT, a->round->dir, name);
	struct stat sb;

	if (!path || !PTC_MORE(a->v, a->n))
		return ptc_nomem(err);
	a->v[a->n] = (struct entry){ .name = ptc_strdup(name), .whole = whole };
	if (!a->v[a->n].name)
		return ptc_nomem(err);
	if (!stat(path, &sb))
		a->v[a->n].time_ns = (int64_t)sb.st_mtim.tv_sec * 1000000000 + sb.st_mtim.tv_nsec;
	a->n++;
	return 0;
}

static int list(struct archive *a, struct ptc_error *err)
{
	const struct dirent *entry;
	DIR *d = opendir(a->round->dir);
	bool whole;
	int rc = 0;

	if (!d)
		return ptc_error_errno(err, errno, "%s", a->round->dir);
	while (!rc && (entry = readdir(d)))
		if (is_ours(a->round->name, entry->d_name, &whole))
			rc = add_entry(a, entry->d_name, whole, err);
	closedir(d);
	if (!rc && a->n)
		qsort(a->v, a->n, sizeof *a->v, newest_first);
	return rc;
}

/* Their order is that of the times of ptc.json. After the clock was set back, those written before would count as newer
 * than all that follow, and as too new for another one. So a time to come becomes now. The oldest goes first, so that a
 * kill in between leaves the order as it was. What may not be changed stays. */
static void bring_back(struct archive *a)
{
	int64_t limit = ptc_sys_realtime_ms() * 1000000;
	size_t n = 0;

	for (; n < a->n && a->v[n].time_ns > limit; limit -= APART_NS)
		a->v[n++].time_ns = limit;
	while (n-- > 0) {
		ptc_auto_free char *path = ptc_asprintf("%s/%s/" CTL_CK_DOCUMENT, a->round->dir, a->v[n].name);
		const struct timespec t = { a->v[n].time_ns / 1000000000, a->v[n].time_ns % 1000000000 };

		if (path)
			(void)utimensat(AT_FDCWD, path, (const struct timespec[]){ t, t }, 0);
	}
}

static void list_done(struct archive *a)
{
	for (size_t i = 0; i < a->n; i++)
		ptc_free(a->v[i].name);
	ptc_free(a->v);
	a->v = NULL;
	a->n = 0;
}

/* ---- the lock and the marker ---- */

/* One text for each cause, whatever call finds it and whichever of several numbers the file system gives it. */
static int cannot_write(const struct archive *a, int e, struct ptc_error *err)
{
	if (e == EPERM)
		e = EACCES;
	if (e == ENOSYS || e == EOPNOTSUPP)
		e = EROFS;
	return ptc_error_errno(err, e, "uid %u cannot write to the archive's directory %s", (unsigned)geteuid(),
			       a->round->dir);
}

static int lock(struct archive *a, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/%s.lock", a->round->dir, a->round->name);

	if (!path)
		return ptc_nomem(err);
	if (mkdir(a->round->dir, 0777) && errno != EEXIST)
		return cannot_write(a, errno, err);
	a->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (a->lock < 0)
		return cannot_write(a, errno, err);
	if (!flock(a->lock, LOCK_EX | LOCK_NB))
		return 0;
	if (errno == EWOULDBLOCK)
		return ptc_error_set(err, PTC_ESTATE, "%s is locked: another process archives the job now", path);
	return ptc_error_errno(err, errno, "cannot lock %s", path);
}

static int mark(const struct archive *a, const char *name, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/%s.newest", a->round->dir, a->round->name);
	ptc_auto_free char *text = ptc_asprintf("%s\n", name);

	if (!path || !text)
		return ptc_nomem(err);
	return ptc_sys_write_file(path, text, strlen(text), 0644, "archive.mark", err);
}

/* A round that was killed before it marked may have left the marker behind. */
static bool is_marked(const struct archive *a, const char *name)
{
	ptc_auto_free char *path = ptc_asprintf("%s/%s.newest", a->round->dir, a->round->name), *text = NULL;
	size_t n = strlen(name), len;

	return path && !ptc_sys_read_file(path, CTL_ARCHIVE_NAME_MAX + 1, &text, &len, NULL) && len == n + 1 &&
	       !memcmp(text, name, n) && text[n] == '\n';
}

/* ---- a round ---- */

static int discard(const struct archive *a, const char *name, bool whole, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/%s", a->round->dir, name);
	ptc_auto_free char *gone = ptc_asprintf("%s/%s%s", a->round->dir, name, whole ? ".tmp-removed" : "");
	int rc;

	if (!path || !gone)
		return ptc_nomem(err);
	rc = whole ? ptc_sys_rename_dir(path, gone, "archive.retire", err) : 0;
	return rc ? rc : ptc_sys_remove_tree(gone, "archive.remove", err);
}

/* Nobody else writes: we have the lock. */
static int remove_leftovers(const struct archive *a, struct ptc_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < a->n && !rc; i++)
		if (!a->v[i].whole)
			rc = discard(a, a->v[i].name, false, err);
	return rc;
}

/* All but the newest `keep`, and never the one that the marker names. */
static int retire(struct archive *a, const char *newest, size_t *ret_removed, struct ptc_error *err)
{
	size_t kept = 0;
	int rc;

	list_done(a);
	rc = list(a, err);
	for (size_t i = 0; i < a->n && !rc; i++) {
		bool named = !strcmp(a->v[i].name, newest);

		if (!a->v[i].whole || named || kept + 1 < a->round->keep) {
			kept += a->v[i].whole && !named;
			continue;
		}
		rc = discard(a, a->v[i].name, true, err);
		*ret_removed += !rc;
	}
	return rc;
}

static bool is_there(const struct archive *a, const char *name)
{
	for (size_t i = 0; i < a->n; i++)
		if (a->v[i].whole && !strcmp(a->v[i].name, name))
			return true;
	return false;
}

static int write_newest(struct ctl *c, struct archive *a, struct ctl_archived *ret, struct ptc_error *err)
{
	const struct ctl_ck_write_opts opts = { .rate = a->round->rate };
	ptc_auto_free char *path = NULL;
	struct ptc_admin_export *info;
	struct ctl_ck_written w;
	int rc = ptc_admin_export_resume(c->admin, a->round->job, &info, err);

	if (rc)
		return rc;
	*ret = (struct ctl_archived){ .step = info->step, .generation = info->generation, .snapshot = info->snapshot };
	name_of(a->round, info, ret->name, sizeof ret->name);
	ret->fresh = !is_there(a, ret->name);
	path = ptc_asprintf("%s/%s", a->round->dir, ret->name);
	if (!path) {
		ptc_admin_export_done(info);
		return ptc_nomem(err);
	}
	if (!ret->fresh) {
		ptc_admin_export_done(info);
		return 0;
	}
	rc = ctl_ck_write_info(c, a->round->job, path, info, &opts, &w, err);
	if (rc == PTC_ENOSPC)
		(void)ptc_error_wrap(err,
				     "the archive's file system is full; make room there, or keep fewer checkpoints");
	ret->bytes = rc ? 0 : w.bytes;
	ret->time_ms = ptc_sys_realtime_ms();
	return rc;
}

/* The newest is too new. */
static bool is_early(const struct archive *a, struct ctl_archived *ret)
{
	int64_t now_ms = ptc_sys_realtime_ms(), age_ms;

	for (size_t i = 0; i < a->n; i++) {
		if (!a->v[i].whole)
			continue;
		age_ms = PTC_MAX(now_ms - a->v[i].time_ns / 1000000, INT64_C(0));
		if ((uint64_t)age_ms >= a->round->every_ms)
			return false;
		snprintf(ret->name, sizeof ret->name, "%s", a->v[i].name);
		ret->step = strtoull(a->v[i].name + strlen(a->round->name) + strlen("-step-"), NULL, 10);
		ret->time_ms = a->v[i].time_ns / 1000000;
		ret->wait_ms = a->round->every_ms - (uint64_t)age_ms;
		return true;
	}
	return false;
}

int ctl_archive(struct ctl *c, const struct ctl_archive_round *round, struct ctl_archived *ret, struct ptc_error *err)
{
	struct archive a = { .round = round, .lock = -1 };
	struct ctl_archived done = { .step = 0 };
	bool early;
	int rc = lock(&a, err);

	if (!rc)
		rc = list(&a, err);
	if (!rc)
		rc = remove_leftovers(&a, err);
	if (!rc)
		bring_back(&a);
	early = !rc && round->every_ms && is_early(&a, &done);
	if (!rc && !early)
		rc = write_newest(c, &a, &done, err);
	if (!rc && !is_marked(&a, done.name))
		rc = mark(&a, done.name, err);
	if (!rc && !early)
		rc = retire(&a, done.name, &done.removed, err);
	list_done(&a);
	ptc_close(&a.lock);
	if (!rc)
		*ret = done;
	return rc;
}

/* ---- for readers ---- */

/* Of which jobs there are archives instead, for who has asked for another. */
static int none(const char *dir, const char *name, struct ptc_error *err)
{
	static const char suffix[] = ".newest";
	const struct dirent *entry;
	struct ptc_buf b = PTC_BUF_INIT;
	DIR *d = opendir(dir);
	int rc;

	while (d && (entry = readdir(d)) && b.len < 200) {
		size_t n = strlen(entry->d_name), tail = sizeof suffix - 1;

		if (n > tail && !strcmp(entry->d_name + n - tail, suffix))
			ptc_buf_printf(&b, "%s%.*s", b.len ? ", " : "; it is an archive of ", (int)(n - tail),
				       entry->d_name);
	}
	if (d)
		closedir(d);
	rc = ptc_error_set(err, PTC_ENOTFOUND, "%s is no checkpoint, and has no checkpoint of job %s%.300s", dir, name,
			   b.len && !ptc_buf_failed(&b) ? b.data : "");
	ptc_buf_done(&b);
	return rc;
}

int ctl_archive_find(const char *dir, const char *name, char **ret_path, struct ptc_error *err)
{
	const struct ctl_archive_round round = { .name = name, .dir = dir };
	struct archive a = { .round = &round, .lock = -1 };
	ptc_auto_free char *found = NULL;
	int rc = list(&a, err);

	for (size_t i = 0; i < a.n && !rc; i++) {
		char *path = a.v[i].whole ? ptc_asprintf("%s/%s", dir, a.v[i].name) : NULL;

		if (path && ctl_ck_is(path) && (!found || is_marked(&a, a.v[i].name))) {
			ptc_free(found);
			found = path;
			continue;
		}
		ptc_free(path);
	}
	list_done(&a);
	if (!rc && !found)
		rc = none(dir, name, err);
	if (rc)
		return rc;
	*ret_path = found;
	found = NULL;
	return 0;
}
