/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of an import: a few threads take tensors from a shared list, read them into a stream's room, digest and
 * send them. Each has a stream to each home (client/ctl/homes) that needs bytes of its tensors. So memory is threads
 * times homes times that room, whatever the files' size. Failure: the first thread to fail keeps its error, the others
 * stop at their next window; an interrupt counts as a failure. A home that takes no stream is left out: home 0 passes
 * its bytes on. */
#include "client/ctl/files/import.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/sys/thread.h"
#include "client/admin/admin_locate.h"
#include "client/ctl/homes/homes.h"
#include "client/ctl/show/show.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define MAX_STREAMS 16
#define SHOW_MS     200

struct sender {
	struct ctl_import *im;
	uint64_t import_id;
	struct ctl_homes *homes; /* NULL: none but home 0 */
	atomic_size_t next;
	_Atomic uint64_t bytes;
	atomic_bool stop;
	atomic_uint running;
	pthread_mutex_t lock; /* of rc and err */
	int rc;
	struct ptc_error err;
};

/* One thread's descriptor, and its streams. */
struct reader {
	const struct ptc_st_file *file;
	int fd;
	struct ptc_dcp_reader *dcp;                      /* of a checkpoint */
	struct ptc_admin_stream *streams[CTL_HOMES_MAX]; /* of homes; NULL: not opened yet */
	bool refused[CTL_HOMES_MAX];                     /* it takes none */
	struct ctl_placed placed;                        /* the tensor that is sent */
};

static int open_file(struct reader *r, const struct ptc_st_file *file, struct ptc_error *err)
{
	int rc;

	if (r->file == file)
		return 0;
	ptc_close(&r->fd);
	r->file = NULL;
	r->fd = -1;
	rc = ptc_st_reopen(file->path, &file->st, &r->fd, err);
	if (!rc)
		r->file = file;
	return rc;
}

static int read_part(const struct reader *r, int64_t offset, char *buf, size_t len, struct ptc_error *err)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = pread(r->fd, buf + done, len - done, (off_t)(offset + (int64_t)done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ptc_error_errno(err, errno, "%s", r->file->path);
		if (!n)
			return ptc_error_set(err, PTC_EINVAL, "%s became shorter while it was read", r->file->path);
		done += (size_t)n;
	}
	return 0;
}

/* The stream to the home of the tensor's next bytes, and room for *ret_len of them, at most `left`. */
static int next_room(struct sender *s, struct reader *r, uint64_t done, uint64_t left,
		     struct ptc_admin_stream **ret_stream, void **ret_room, size_t *ret_len, struct ptc_error *err)
{
	size_t home = ctl_placed_at(&r->placed, done, &left);
	int rc = 0;

	if (atomic_load(&s->stop))
		return ptc_error_set(err, PTC_ECANCELED, "stopped");
	if (home && !r->streams[home] && !r->refused[home])
		r->refused[home] = ptc_admin_import_open(ctl_homes_admin(s->homes, home), s->im->job, s->import_id,
							 &r->streams[home], NULL) != 0;
	home = r->refused[home] ? 0 : home;
	rc = ptc_admin_import_room(r->streams[home], ret_room, ret_len, err);
	*ret_len = (size_t)PTC_MIN(left, (uint64_t)*ret_len);
	*ret_stream = r->streams[home];
	return rc;
}

/* at: where they begin in the file; a checkpoint's reader knows that itself. */
static int send_bytes(struct sender *s, struct reader *r, const struct ctl_import_part *part, int64_t at, uint64_t size,
		      struct ptc_error *err)
{
	uint64_t digest = 0;
	int rc = 0;

	for (uint64_t done = 0; done < size && !rc;) {
		struct ptc_admin_stream *stream = NULL;
		void *room;
		size_t n;

		rc = next_room(s, r, done, size - done, &stream, &room, &n, err);
		if (rc)
			break;
		rc = part->entry ? ptc_dcp_reader_read(r->dcp, room, n, err)
				 : read_part(r, at + (int64_t)done, room, n, err);
		if (rc)
			break;
		digest = ptc_digest_append(digest, room, n);
		rc = ptc_admin_import_send(stream, part->item, done, room, n, err);
		done += n;
		atomic_fetch_add(&s->bytes, n);
	}
	if (!rc)
		s->im->digests[part->item] = digest;
	return rc;
}

static int send_entry(struct sender *s, struct reader *r, const struct ctl_import_part *part, struct ptc_error *err)
{
	const uint64_t size = (uint64_t)ptc_item_bytes(&s->im->desc.spec, part->item);
	int rc = r->dcp ? 0 : ptc_dcp_reader_new(&s->im->checkpoint.d, s->im->checkpoint.dir, &r->dcp, err);

	if (!rc)
		rc = ptc_dcp_reader_begin(r->dcp, part->entry, err);
	return rc ? rc : send_bytes(s, r, part, 0, size, err);
}

static int send_part(struct sender *s, struct reader *r, const struct ctl_import_part *part, struct ptc_error *err)
{
	const uint64_t size = (uint64_t)(part->tensor->end - part->tensor->begin);
	int rc = open_file(r, part->file, err);

	if (!rc)
		rc = send_bytes(s, r, part, part->file->st.data_start + part->tensor->begin, size, err);
	return rc ? rc : ptc_st_unchanged(r->fd, r->file->path, &r->file->st, err);
}

static int send_parts(struct sender *s, struct reader *r, struct ptc_error *err)
{
	uint64_t bytes = 0;
	int rc = ptc_admin_import_open(s->im->c->admin, s->im->job, s->import_id, &r->streams[0], err);

	while (!rc) {
		size_t i = atomic_fetch_add(&s->next, 1);

		if (i >= s->im->nparts)
			break;
		ctl_homes_place(s->homes, s->im->parts[i].item, &r->placed);
		rc = (s->im->parts[i].entry ? send_entry : send_part)(s, r, &s->im->parts[i], err);
		ctl_placed_done(&r->placed);
	}
	for (size_t i = 0; i < CTL_HOMES_MAX; i++) {
		if (!rc && r->streams[i])
			rc = ptc_admin_import_finish(r->streams[i], &bytes, err);
		ptc_admin_import_close(r->streams[i]);
	}
	return rc;
}

static void *sender_thread(void *arg)
{
	struct sender *s = arg;
	struct reader r = { .fd = -1 };
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = send_parts(s, &r, &err);

	ptc_close(&r.fd);
	ptc_dcp_reader_free(r.dcp);
	if (rc) {
		pthread_mutex_lock(&s->lock);
		if (!s->rc) {
			s->rc = rc;
			s->err = err;
		}
		pthread_mutex_unlock(&s->lock);
		atomic_store(&s->stop, true);
	}
	atomic_fetch_sub(&s->running, 1);
	return NULL;
}

/* Shows progress until every thread has ended. */
static void watch(struct sender *s)
{
	const struct timespec pause = { 0, SHOW_MS / 4 * 1000000L };
	struct ctl_progress progress;
	bool interrupted = false;

	ctl_progress_init(&progress);
	while (atomic_load(&s->running)) {
		if (ctl_interrupted() && !interrupted) {
			interrupted = true;
			pthread_mutex_lock(&s->lock);
			if (!s->rc)
				s->rc = ptc_error_set(&s->err, PTC_ECANCELED, "interrupted");
			pthread_mutex_unlock(&s->lock);
			atomic_store(&s->stop, true);
		}
		ctl_progress_show(&progress, "importing", atomic_load(&s->bytes), s->im->total_bytes, NULL);
		nanosleep(&pause, NULL);
	}
	ctl_progress_end(&progress);
}

static int run_threads(struct sender *s, unsigned nstreams, struct ptc_error *err)
{
	pthread_t threads[MAX_STREAMS];
	unsigned n = 0;

	for (; n < nstreams; n++) {
		int rc;

		atomic_fetch_add(&s->running, 1);
		rc = ptc_thread_start(&threads[n], "ptc-import", sender_thread, s, n ? NULL : err);
		if (!rc)
			continue;
		atomic_fetch_sub(&s->running, 1);
		if (!n)
			return rc;
		break;
	}
	watch(s);
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	if (s->rc && err)
		*err = s->err;
	return s->rc;
}

int ctl_import_send(struct ctl_import *im, uint64_t import_id, unsigned nstreams, struct ptc_error *err)
{
	const struct ctl_homes_of of = { .c = im->c, .job = im->job, .spec = &im->desc.spec, .import_id = import_id };
	struct sender s = { .im = im, .import_id = import_id, .lock = PTHREAD_MUTEX_INITIALIZER };
	int rc;

	s.homes = im->total_bytes >= CTL_HOMES_RUN ? ctl_homes_new(&of) : NULL;
	rc = run_threads(&s, PTC_MAX(1u, PTC_MIN(nstreams, (unsigned)MAX_STREAMS)), err);
	ctl_homes_free(s.homes);
	return rc;
}
