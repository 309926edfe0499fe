/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of an import: a few threads take tensors from a shared list, read them into a stream's room, digest and
 * send them. Each has a stream to each home (client/ctl/homes) that needs bytes of its tensors. So the memory is
 * threads times homes times the room of one stream, whatever the files' size. Failure: the first thread to fail keeps
 * its error, the others stop at their next window; an interrupt counts as a failure. A home that takes no stream is
 * left out: home 0 passes its bytes on. If home 0 has no room for one more call of this user, the thread ends its other
 * streams, so that it keeps nobody waiting, and sends its tensors again once there is room. */
#include "client/ctl/files/import.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/sys/sys.h"
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

#define MAX_STREAMS  16
#define SHOW_MS      200
#define NO_ROOM_MS   100                   /* between two questions for room */
#define NO_ROOM_LAST INT64_C(600000000000) /* ns; other imports may take their time */

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
	size_t failed;                                   /* the home whose stream has failed last */
	struct ctl_placed placed;                        /* the tensor that is sent */
	size_t *mine, nmine, cap;                        /* parts that this thread sends */
	uint64_t bytes;                                  /* of them, by these streams */
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
	r->failed = home; /* if it does */
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
		r->bytes += n;
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

/* Takes the thread's next part. False: there is none. */
static bool next_part(struct sender *s, struct reader *r, int *rc, struct ptc_error *err)
{
	size_t i = atomic_fetch_add(&s->next, 1);

	if (i >= s->im->nparts)
		return false;
	if (!PTC_ROOM(r->mine, r->nmine + 1, r->cap)) {
		*rc = ptc_nomem(err);
		return false;
	}
	r->mine[r->nmine++] = i;
	return true;
}

static int send_mine(struct sender *s, struct reader *r, struct ptc_error *err)
{
	int rc = ptc_admin_import_open(s->im->c->admin, s->im->job, s->import_id, &r->streams[0], err);

	r->failed = 0;
	for (size_t k = 0; !rc && (k < r->nmine || next_part(s, r, &rc, err)); k++) {
		const struct ctl_import_part *part = &s->im->parts[r->mine[k]];

		ctl_homes_place(s->homes, part->item, &r->placed);
		rc = (part->entry ? send_entry : send_part)(s, r, part, err);
		ctl_placed_done(&r->placed);
	}
	return rc;
}

/* Streams end in order, but for one that has failed: else the daemon would take the import for abandoned. */
static int end_streams(struct reader *r, int rc, struct ptc_error *err)
{
	const size_t failed = rc ? r->failed : CTL_HOMES_MAX;
	uint64_t bytes = 0;

	for (size_t i = 0; i < CTL_HOMES_MAX; i++) {
		if ((!rc || rc == PTC_ELIMIT) && r->streams[i] && i != failed) {
			struct ptc_error own = PTC_ERROR_INIT;
			int status = ptc_admin_import_finish(r->streams[i], &bytes, &own);

			if (status && (!rc || i == 0)) {
				rc = status;
				r->failed = i;
				*err = own;
			}
		}
		r->streams[i] = ptc_admin_import_close(r->streams[i]);
	}
	return rc;
}

/* After a stream was refused. True: the thread's parts are to be sent again. */
static bool again(struct sender *s, struct reader *r, int64_t until)
{
	const struct timespec pause = { 0, NO_ROOM_MS * 1000000L };

	atomic_fetch_sub(&s->bytes, r->bytes);
	r->bytes = 0;
	if (atomic_load(&s->stop) || ptc_sys_now_ns() > until)
		return false;
	if (r->failed)
		r->refused[r->failed] = true;
	else
		nanosleep(&pause, NULL);
	return true;
}

static int send_parts(struct sender *s, struct reader *r, struct ptc_error *err)
{
	const int64_t until = ptc_sys_now_ns() + NO_ROOM_LAST;
	struct ptc_error why = PTC_ERROR_INIT, refused;
	int rc;

	do {
		refused = why;
		why = (struct ptc_error)PTC_ERROR_INIT;
		rc = send_mine(s, r, &why);
		rc = end_streams(r, rc, &why);
	} while (rc == PTC_ELIMIT && again(s, r, until));
	if (rc) /* it was no want of room, if the import is over by now */
		*err = rc == PTC_ESTATE && refused.code ? refused : why;
	return rc ? err->code : 0;
}

static void *sender_thread(void *arg)
{
	struct sender *s = arg;
	struct reader r = { .fd = -1 };
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = send_parts(s, &r, &err);

	ptc_close(&r.fd);
	ptc_dcp_reader_free(r.dcp);
	ptc_free(r.mine);
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
