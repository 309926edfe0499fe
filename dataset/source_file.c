/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by every kind of source: a regular file that is open for reading, and the report of a check. Happy path: a
 * file is opened, read at offsets and closed. Failure modes: internal.h. */
#include "dataset/internal.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

int ptc_source_file_open(const char *path, struct ptc_source_file *ret_file, struct ptc_error *err)
{
	struct ptc_source_file f = { .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) };
	struct stat st;

	if (f.fd < 0)
		return ptc_error_errno(err, errno, "cannot open %s", path);
	if (fstat(f.fd, &st) < 0) {
		int errnum = errno;

		close(f.fd);
		return ptc_error_errno(err, errnum, "cannot look at %s", path);
	}
	if (!S_ISREG(st.st_mode)) {
		close(f.fd);
		return ptc_error_set(err, PTC_EINVAL, "%s is not a regular file", path);
	}
	f.path = ptc_strdup(path);
	if (!f.path) {
		close(f.fd);
		return ptc_nomem(err);
	}
	f.bytes = (uint64_t)st.st_size;
	f.mtime_ns = ptc_source_mtime_ns(&st);
	*ret_file = f;
	return 0;
}

void ptc_source_file_done(struct ptc_source_file *f)
{
	if (f->path && f->fd >= 0)
		close(f->fd);
	ptc_free(f->path);
	f->path = NULL;
}

int ptc_source_file_read(const struct ptc_source_file *f, uint64_t offset, void *buf, size_t len, struct ptc_error *err)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = pread(f->fd, (char *)buf + done, len - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ptc_error_errno(err, errno, "cannot read %s at byte %" PRIu64, f->path, offset + done);
		if (n == 0)
			return ptc_error_set(err, PTC_EIO,
					     "%s ends at byte %" PRIu64 "; it had %" PRIu64 " bytes when it was opened",
					     f->path, offset + done, f->bytes);
		done += (size_t)n;
	}
	return 0;
}

void ptc_source_problem(struct ptc_source_report *r, const char *fmt, ...)
{
	char text[PTC_ERROR_MAX];
	va_list ap;

	r->checked.problems++;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (r->fn(r->arg, text))
		r->enough = true;
}
