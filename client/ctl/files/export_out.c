/* SPDX-License-Identifier: Apache-2.0 */
/* A file that `ptcctl export` writes. It has a temporary name in the same folder, and gets its own name once all of it
 * is written. Happy path: open, receive items, publish, done. Failure: what the file system says (PTC_EIO and the
 * like, with the path); done removes what was not published. */
#include "client/ctl/files/export.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/number/digest.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <unistd.h>

int ctl_out_open(struct ctl_out *out, struct ctl_export *ex, const char *path, struct ptc_error *err)
{
	*out = (struct ctl_out){ .ex = ex, .fd = -1, .path = ptc_strdup(path) };
	if (!out->path)
		return ptc_nomem(err);
	return ptc_sys_create_beside(path, 0644, &out->fd, &out->tmp, err);
}

int ctl_out_write(struct ctl_out *out, const void *data, size_t len, struct ptc_error *err)
{
	const char *p = data;

	while (len) {
		ssize_t n = write(out->fd, p, len);

		if (n < 0 && errno == EINTR && !ctl_interrupted())
			continue;
		if (n < 0)
			return ptc_error_errno(err, errno, "cannot write %s", out->path);
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int ctl_out_receive(void *arg, const void *data, size_t len, struct ptc_error *err)
{
	struct ctl_out *out = arg;
	struct ctl_export *ex = out->ex;

	if (ctl_interrupted())
		return ptc_error_set(err, PTC_ECANCELED, "export interrupted");
	out->digest = ptc_digest_append(out->digest, data, len);
	out->bytes += len;
	ex->done_bytes += len;
	ctl_progress_show(&ex->progress, "exporting", ex->done_bytes, ex->total_bytes, NULL);
	return ctl_out_write(out, data, len, err);
}

int ctl_out_publish(struct ctl_out *out, struct ptc_error *err)
{
	int rc = ptc_sys_publish(out->fd, out->tmp, out->path, "export.rename", err);

	if (!rc) {
		ptc_free(out->tmp);
		out->tmp = NULL;
	}
	return rc;
}

void ctl_out_done(struct ctl_out *out)
{
	ptc_close(&out->fd);
	if (out->tmp)
		ptc_sys_unlink(out->tmp, "export.discard", NULL);
	ptc_free(out->tmp);
	ptc_free(out->path);
	*out = (struct ctl_out){ .fd = -1 };
}
