/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a checkpoint's directory (ptcctl export --dcp, and archives). Steps: pin the state; plan; write the file of
 * parts as bytes come; ".metadata" and documents; fsync; read back (checkpoint_verify.c); rename. ".metadata" is
 * written last in the temporary directory, so that a directory that a kill left behind is no checkpoint to anybody.
 * Memory: one buffer, and the plan. Failure modes: checkpoint.h. */
#include "client/ctl/checkpoint/checkpoint_parts.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "formats/dcp/torch_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define BUFFER_BYTES (1u << 20)
#define PIN_MS       120000
#define RENEW_NS     INT64_C(30000000000)

struct writer {
	struct ctl *c;
	const char *job;
	struct ptc_admin_export *info;
	struct ptc_job_desc desc;
	struct ctl_ck_plan plan;
	struct ctl_progress progress;
	char *tmp, *path; /* the directory being written, and its file */
	int fd;
	struct ptc_buf buffer;
	uint64_t done, at; /* tensors' bytes; of the file */
	/* the part that comes */
	struct {
		uint32_t entry, part;
	} * ranges; /* which part a range is */
	size_t nranges;
	bool begun;
	uint32_t crc;
	uint64_t digest, part_bytes;
	char reader[37];
	int64_t pinned_ns, began_ns;
	uint64_t rate; /* bytes a second; 0: any */
};

/* ---- the file ---- */

static int flush(struct writer *w, struct ptc_error *err)
{
	for (size_t done = 0; done < w->buffer.len;) {
		ssize_t n = write(w->fd, w->buffer.data + done, w->buffer.len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ptc_error_errno(err, errno, "cannot write %s", w->path);
		done += (size_t)n;
	}
	ptc_buf_reset(&w->buffer);
	return 0;
}

static int put(struct writer *w, const void *data, size_t len, struct ptc_error *err)
{
	ptc_buf_append(&w->buffer, data, len);
	w->at += len;
	if (ptc_buf_failed(&w->buffer))
		return ptc_nomem(err);
	return w->buffer.len >= BUFFER_BYTES ? flush(w, err) : 0;
}

static int put_edge(struct writer *w, const struct ptc_dcp_entry *e, uint32_t part, bool tail, struct ptc_error *err)
{
	size_t before = w->buffer.len;
	int rc = tail ? ptc_torch_tail(&w->buffer, e->dtype, e->ndim, ptc_dcp_extent(e, part), w->crc, err)
		      : ptc_torch_head(&w->buffer, e->dtype, e->ndim, ptc_dcp_extent(e, part), err);

	if (rc)
		return rc;
	w->at += w->buffer.len - before;
	return w->buffer.len >= BUFFER_BYTES ? flush(w, err) : 0;
}

/* ---- tensors ---- */

static int pin(struct writer *w, uint32_t ttl_ms, struct ptc_error *err)
{
	w->pinned_ns = ptc_sys_now_ns();
	return ptc_admin_pin(w->c->admin, w->job, w->info, w->reader, ttl_ms, err);
}

/* An older daemon, or one that is short of pins, does without: then a switch may end the reading, which says so. */
static void renew(struct writer *w)
{
	if (w->reader[0] && ptc_sys_now_ns() - w->pinned_ns > RENEW_NS)
		pin(w, PIN_MS, NULL);
}

/* Sleeps for as long as what was written is ahead of the rate; pins are renewed meanwhile. */
static int pace(struct writer *w, struct ptc_error *err)
{
	while (w->rate) {
		double due = (double)w->done / (double)w->rate, is = (double)(ptc_sys_now_ns() - w->began_ns) / 1e9;
		const struct timespec pause = { 0, 20000000 };

		if (is >= due)
			return 0;
		if (ctl_interrupted())
			return ptc_error_set(err, PTC_ECANCELED, "interrupted");
		renew(w);
		nanosleep(&pause, NULL);
	}
	return 0;
}

static int begin_part(struct writer *w, size_t range, struct ptc_error *err)
{
	w->begun = true;
	w->crc = 0;
	w->part_bytes = 0;
	return put_edge(w, &w->plan.d.entries[w->ranges[range].entry], w->ranges[range].part, false, err);
}

static int on_data(void *arg, size_t range, const void *data, size_t len, struct ptc_error *err)
{
	struct writer *w = arg;
	int rc = w->begun ? 0 : begin_part(w, range, err);

	if (!rc && ctl_interrupted())
		return ptc_error_set(err, PTC_ECANCELED, "interrupted");
	if (rc)
		return rc;
	w->crc = ptc_crc32(w->crc, data, len);
	w->digest = ptc_digest_append(w->digest, data, len);
	w->part_bytes += len;
	w->done += len;
	renew(w);
	ctl_progress_show(&w->progress, "writing", w->done, w->plan.bytes, NULL);
	rc = pace(w, err);
	return rc ? rc : put(w, data, len, err);
}

/* The last part of an item ends its digest. */
static int on_end(void *arg, size_t range, struct ptc_error *err)
{
	struct writer *w = arg;
	const struct ptc_dcp_entry *e = &w->plan.d.entries[w->ranges[range].entry];
	uint32_t part = w->ranges[range].part, item = w->plan.contents[w->ranges[range].entry].item;
	uint64_t first, want = ptc_dcp_part_elements(e, part, &first) * (ptc_dtype_bits(e->dtype) / 8);
	int rc = w->begun ? 0 : begin_part(w, range, err);

	if (!rc && w->part_bytes != want)
		return ptc_error_set(err, PTC_EPEER, "tensor \"%s\": its nodes sent %" PRIu64 " bytes of %" PRIu64,
				     e->key, w->part_bytes, want);
	if (!rc)
		rc = put_edge(w, e, part, true, err);
	w->begun = false;
	if (rc || part + 1 < e->nparts)
		return rc;
	if (w->digest != w->info->digests[item])
		return ptc_error_set(err, PTC_EDIGEST,
				     "tensor \"%s\": digest %016" PRIx64 ", committed was %016" PRIx64, e->key,
				     w->digest, w->info->digests[item]);
	w->digest = 0;
	return 0;
}

static bool on_wait(void *arg)
{
	(void)arg;
	return ctl_interrupted();
}

static int write_tensors(struct writer *w, struct ptc_error *err)
{
	const struct ptc_admin_ranges_fn fn = {
		.size = sizeof fn, .data = on_data, .end = on_end, .stop = on_wait, .arg = w
	};
	ptc_auto_free struct ptc_admin_range *ranges = NULL;
	size_t n = 0;

	for (size_t i = 0; i < w->plan.d.nentries; i++)
		n += w->plan.d.entries[i].nparts;
	ranges = ptc_calloc(PTC_MAX(n, 1), sizeof *ranges);
	w->ranges = ptc_calloc(PTC_MAX(n, 1), sizeof *w->ranges);
	if (!ranges || !w->ranges)
		return ptc_nomem(err);
	for (size_t i = 0; i < w->plan.d.nentries; i++) {
		const struct ptc_dcp_entry *e = &w->plan.d.entries[i];
		uint64_t size = ptc_dtype_bits(e->dtype) / 8, first;

		for (uint32_t k = 0; k < e->nparts && w->plan.contents[i].item != CTL_CK_NO_ITEM; k++) {
			uint64_t elements = ptc_dcp_part_elements(e, k, &first);

			w->ranges[w->nranges].entry = (uint32_t)i;
			w->ranges[w->nranges].part = k;
			ranges[w->nranges++] = (struct ptc_admin_range){ false, 0, w->plan.contents[i].item,
									 first * size, elements * size };
		}
	}
	return ptc_admin_read_ranges(w->c->admin, w->job, w->info, ranges, w->nranges, &fn, err);
}

/* Values come first: they are in memory. */
static int write_parts(struct writer *w, struct ptc_error *err)
{
	int rc = 0;

	w->fd = open(w->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (w->fd < 0)
		return ptc_error_errno(err, errno, "cannot create %s", w->path);
	for (size_t i = 0; i < w->plan.d.nentries && !rc; i++)
		if (w->plan.contents[i].data)
			rc = put(w, w->plan.contents[i].data, w->plan.contents[i].len, err);
	if (!rc)
		rc = write_tensors(w, err);
	if (!rc)
		rc = flush(w, err);
	if (!rc)
		rc = ptc_sys_flush(w->fd, w->path, "checkpoint.flush", err);
	if (!rc)
		posix_fadvise(w->fd, 0, 0, POSIX_FADV_DONTNEED); /* so that what is read back comes from the disk */
	ptc_close(&w->fd);
	return rc;
}

/* ---- the directory ---- */

static int write_metadata(struct writer *w, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/" PTC_DCP_METADATA, w->tmp);
	struct ptc_buf b = PTC_BUF_INIT;
	int rc = path ? ptc_dcp_write(&w->plan.d, &b, err) : ptc_nomem(err);

	if (!rc)
		rc = ctl_ck_write_documents(w->tmp, w->job, w->info, &w->plan, b.data, b.len, err);
	if (!rc)
		rc = ptc_sys_write_file(path, b.data, b.len, 0644, "checkpoint.metadata", err);
	ptc_buf_done(&b);
	return rc;
}

static int write_all(struct writer *w, const char *dir, struct ptc_error *err)
{
	int rc = ptc_job_from_json(w->info->spec, w->info->spec_len, &w->desc, err);

	if (!rc && w->info->ndigests != ptc_spec_items(&w->desc.spec))
		rc = ptc_error_set(err, PTC_EPEER,
				   "the daemon sent %zu digests, but the job has %zu items; use the ptcctl of the "
				   "daemon's package",
				   w->info->ndigests, ptc_spec_items(&w->desc.spec));
	if (!rc)
		rc = ctl_ck_plan_options(&w->plan, w->info, err);
	if (!rc)
		rc = ctl_ck_plan(&w->plan, &w->desc.spec, err);
	ctl_progress_init(&w->progress);
	if (!rc)
		rc = write_parts(w, err);
	if (!rc)
		rc = write_metadata(w, err);
	if (!rc)
		rc = ctl_ck_verify(w->tmp, &w->plan, w->info, &w->progress, err);
	ctl_progress_end(&w->progress);
	return rc ? rc : ptc_sys_rename_dir(w->tmp, dir, "checkpoint.rename", err);
}

/* Beside its place, so that a rename is all that is left. */
static int make_tmp(struct writer *w, const char *dir, struct ptc_error *err)
{
	size_t n = strlen(dir);
	uint32_t id;
	int rc;

	while (n > 1 && dir[n - 1] == '/')
		n--;
	rc = ptc_sys_random(&id, sizeof id, err);
	if (rc)
		return rc;
	w->tmp = ptc_asprintf("%.*s.tmp-%08" PRIx32, (int)n, dir, id);
	if (!w->tmp)
		return ptc_nomem(err);
	if (mkdir(w->tmp, 0777)) {
		rc = ptc_error_errno(err, errno, "cannot create the directory %s", w->tmp);
		ptc_free(w->tmp);
		w->tmp = NULL;
		return rc;
	}
	w->path = ptc_asprintf("%s/" CTL_CK_FILE, w->tmp);
	return w->path ? 0 : ptc_nomem(err);
}

/* A checkpoint is never mixed with what is there. */
static int check_free(const char *dir, struct ptc_error *err)
{
	const struct dirent *entry;
	DIR *d = opendir(dir);
	bool empty = true;

	if (!d && errno == ENOENT)
		return 0;
	if (!d)
		return ptc_error_errno(err, errno, "%s", dir);
	while ((entry = readdir(d)))
		empty = empty && (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."));
	closedir(d);
	return empty ? 0
		     : ptc_error_set(err, PTC_EEXIST, "%s is not empty; give a checkpoint a directory of its own", dir);
}

static void writer_done(struct writer *w)
{
	if (w->reader[0] && w->info)
		pin(w, 0, NULL);
	ptc_close(&w->fd);
	if (w->tmp)
		ptc_sys_remove_tree(w->tmp, "checkpoint.discard", NULL); /* renamed: it is not there */
	ptc_free(w->tmp);
	ptc_free(w->path);
	ptc_free(w->ranges);
	ptc_buf_done(&w->buffer);
	ctl_ck_plan_done(&w->plan);
	ptc_job_desc_done(&w->desc);
	ptc_admin_export_done(w->info);
}

int ctl_ck_write_info(struct ctl *c, const char *job, const char *dir, struct ptc_admin_export *info,
		      const struct ctl_ck_write_opts *opts, struct ctl_ck_written *ret, struct ptc_error *err)
{
	struct writer w = { .c = c, .job = job, .info = info, .fd = -1, .rate = opts->rate };
	int rc = check_free(dir, err);

	if (!rc)
		rc = make_tmp(&w, dir, err);
	if (!rc && (ptc_sys_uuid(w.reader, NULL) || pin(&w, PIN_MS, NULL)))
		w.reader[0] = '\0';
	w.began_ns = ptc_sys_now_ns();
	if (!rc)
		rc = write_all(&w, dir, err);
	if (!rc)
		*ret = (struct ctl_ck_written){ w.info->generation, w.info->snapshot, w.info->step, w.at };
	writer_done(&w);
	return rc;
}
