/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: evidence_dumps.h. After the first file system that does not answer, the other dumps
 * are left out: they are likely to lie there, too. */
#include "daemon/workers/evidence/evidence_dumps.h"
#include "daemon/workers/evidence/evidence.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DUMPS_MS 3000 /* for all dumps of a set together */

static int write_all(int fd, uid_t uid, const char *path, const char *data, size_t len, struct ptc_error *err)
{
	ssize_t n;

	for (size_t at = 0; at < len; at += (size_t)n) {
		n = write(fd, data + at, len - at);
		if (n <= 0)
			return ptc_error_errno(err, n ? errno : EIO, "%s", path);
	}
	if (geteuid() == 0 && fchown(fd, uid, (gid_t)-1) != 0)
		return ptc_error_errno(err, errno, "%s", path);
	return 0;
}

int ptc_evidence_write(const char *dir, uid_t uid, const char *name, const void *data, size_t len,
		       struct ptc_error *err)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	char path[PATH_MAX];
	ptc_auto_close int fd = -1;
	int rc;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400);
	if (fd < 0)
		return ptc_error_errno(err, errno, "%s", path);
	rc = write_all(fd, uid, path, data, len, err);
	if (rc)
		(void)ptc_sys_unlink(path, "workers.evidence-gone", &ignored);
	return rc;
}

/* *room: less what is kept. Returns the errno of the read. */
static int keep_dump(const char *dir, uid_t uid, const struct ptc_evidence_dump *d, int64_t until_ns, size_t *room,
		     struct ptc_buf *said)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_evidence_file file;
	char name[32], when[32];
	struct tm tm;
	int failed = ptc_evidence_read_as(uid, d->path, PTC_MIN(*room, (size_t)PTC_EVIDENCE_DUMP_MAX), until_ns, &file);

	if (failed) {
		ptc_buf_printf(said, "the flight recorder's dump of rank %u, %s: %s\n", d->rank, d->path,
			       failed == EBUSY
				       ? "an earlier one is still being read, from a file system that does not answer"
				       : strerror(failed));
		return failed;
	}
	snprintf(name, sizeof name, "dump-%u", d->rank);
	strftime(when, sizeof when, "%FT%TZ", gmtime_r(&file.written, &tm));
	if (ptc_evidence_write(dir, uid, name, file.data, file.len, &err) != 0) {
		ptc_buf_printf(said, "the flight recorder's dump of rank %u, %s, is not kept: %s\n", d->rank, d->path,
			       err.text);
	} else {
		ptc_buf_printf(
			said,
			"the flight recorder's dump of rank %u, %s, written at %s, is kept as %s: %zu of %lld bytes\n",
			d->rank, d->path, when, name, file.len, (long long)file.size);
		*room -= file.len;
	}
	ptc_free(file.data);
	return 0;
}

void ptc_evidence_dumps(const char *dir, uid_t uid, const struct ptc_evidence_dump *dumps, size_t n, size_t room,
			struct ptc_buf *said)
{
	int64_t until = ptc_sys_now_ns() + DUMPS_MS * INT64_C(1000000);
	int failed = 0;

	for (size_t i = 0; i < n; i++) {
		bool stuck = failed == ETIMEDOUT || failed == EBUSY;

		if (room && !stuck)
			failed = keep_dump(dir, uid, &dumps[i], until, &room, said);
		else
			ptc_buf_printf(said, "the flight recorder's dump of rank %u, %s, is left out: %s\n",
				       dumps[i].rank, dumps[i].path,
				       stuck ? "a file system does not answer" : "there is no room for more dumps");
	}
}
