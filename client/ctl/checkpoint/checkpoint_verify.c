/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a checkpoint's written directory back, as a reader does who knows nothing but the directory. It compares each
 * tensor with its committed digest, and each value with the value that was to be written. Failure modes: PTC_EDIGEST,
 * and those of reading. */
#include "client/ctl/checkpoint/checkpoint_parts.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

#define WINDOW_BYTES (1u << 20)

static int verify_tensor(struct ptc_dcp_reader *r, const struct ptc_dcp_entry *e, uint64_t want, char *window,
			 struct ctl_progress *progress, uint64_t *done, uint64_t total, struct ptc_error *err)
{
	uint64_t left = ptc_dtype_bits(e->dtype) / 8, digest = 0;
	int rc = ptc_dcp_reader_begin(r, e, err);

	for (uint32_t d = 0; d < e->ndim; d++)
		left *= (uint64_t)e->shape[d];
	while (left && !rc) {
		size_t n = (size_t)PTC_MIN(left, (uint64_t)WINDOW_BYTES);

		if (ctl_interrupted())
			return ptc_error_set(err, PTC_ECANCELED, "interrupted");
		rc = ptc_dcp_reader_read(r, window, n, err);
		if (rc)
			return rc;
		digest = ptc_digest_append(digest, window, n);
		left -= n;
		*done += n;
		ctl_progress_show(progress, "verifying", *done, total, NULL);
	}
	if (!rc && digest != want)
		return ptc_error_set(err, PTC_EDIGEST,
				     "tensor \"%s\" has digest %016" PRIx64
				     " when it is read back, committed was %016" PRIx64,
				     e->key, digest, want);
	return rc;
}

/* Parts of values lie at the file's begin. */
static int verify_value(int fd, const char *path, const struct ptc_dcp_part *p, const struct ctl_ck_content *content,
			struct ptc_error *err)
{
	ptc_auto_free char *data = ptc_malloc(PTC_MAX(content->len, (size_t)1));
	ssize_t n;

	if (!data)
		return ptc_nomem(err);
	n = pread(fd, data, content->len, (off_t)p->at);
	if (n < 0)
		return ptc_error_errno(err, errno, "%s", path);
	if ((size_t)n != content->len ||
	    ptc_digest_run(data, content->len) != ptc_digest_run(content->data, content->len))
		return ptc_error_set(err, PTC_EDIGEST, "%s has other bytes at %" PRIu64 " when it is read back", path,
				     p->at);
	return 0;
}

static int verify_entries(const char *path, const struct ctl_ck_plan *p, const struct ctl_ck_source *s,
			  const struct ptc_admin_export *info, struct ctl_progress *progress, struct ptc_error *err)
{
	ptc_auto_free char *window = ptc_malloc(WINDOW_BYTES);
	ptc_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct ptc_dcp_reader *r = NULL;
	uint64_t done = 0;
	int rc = window ? ptc_dcp_reader_new(&s->d, s->dir, &r, err) : ptc_nomem(err);

	if (!rc && fd < 0)
		rc = ptc_error_errno(err, errno, "%s", path);
	for (size_t i = 0; i < p->d.nentries && !rc; i++) {
		const struct ptc_dcp_entry *e = ptc_dcp_find(&s->d, p->d.entries[i].key);

		if (!e)
			rc = ptc_error_set(err, PTC_EDIGEST, "\"%s\" is missing when %s is read back",
					   p->d.entries[i].key, s->dir);
		else if (p->contents[i].data)
			rc = verify_value(fd, path, e->parts, &p->contents[i], err);
		else
			rc = verify_tensor(r, e, info->digests[p->contents[i].item], window, progress, &done, p->bytes,
					   err);
	}
	ptc_dcp_reader_free(r);
	return rc;
}

int ctl_ck_verify(const char *dir, const struct ctl_ck_plan *p, const struct ptc_admin_export *info,
		  struct ctl_progress *progress, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/" CTL_CK_FILE, dir);
	struct ctl_ck_source s = { 0 };
	int rc = path ? ctl_ck_open(dir, &s, err) : ptc_nomem(err);

	if (!rc)
		rc = verify_entries(path, p, &s, info, progress, err);
	ctl_ck_close(&s);
	return rc;
}
