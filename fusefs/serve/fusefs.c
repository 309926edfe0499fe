/* SPDX-License-Identifier: Apache-2.0 */
/* Starts and stops the file system, and has its threads. Before 3.18, libfuse's own loops do not end when they are told
 * to, as long as no request comes. So the clock sends the threads that take requests a signal, which ends their reads,
 * until they have seen stop. Stopping: no request is taken any more, the descriptor is closed, by which the kernel ends
 * what waits for an answer, and the mount is detached; readers get ENOTCONN and nothing waits for them. */
#include "fusefs/serve/internal.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <poll.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SHORT_READ  (64u << 10)
#define WAKE_SIGNAL SIGURG /* does nothing where it is not expected */
#define CLOCK_MS    100
#define TEND_MS     500
#define SCRUB_RATE  (16u << 20) /* bytes of backing files that are read in a second: 0.2 % of a processor */
#define JOBS_TENDS  4           /* with backing files the list of jobs is read each so many times */

/* ---- the threads ---- */

static void work(struct ptc_fs *fs, struct fs_queue *q)
{
	bool over;

	pthread_mutex_lock(&fs->lock);
	while (!atomic_load(&fs->stopping) || q->head) {
		struct fs_op *op = q->head;

		if (!op) {
			pthread_cond_wait(&q->cond, &fs->lock);
			continue;
		}
		q->head = op->queued;
		if (!q->head)
			q->tail = &q->head;
		over = op->answered || atomic_load(&fs->stopping);
		pthread_mutex_unlock(&fs->lock);
		if (over)
			fs_op_fail(fs, op, EIO); /* nobody waits for it any more */
		else
			op->run(fs, op);
		pthread_mutex_lock(&fs->lock);
	}
	pthread_mutex_unlock(&fs->lock);
}

static void *meta_main(void *arg)
{
	struct ptc_fs *fs = arg;

	work(fs, &fs->meta);
	return NULL;
}

static void *reads_main(void *arg)
{
	struct ptc_fs *fs = arg;

	work(fs, &fs->reads);
	return NULL;
}

/* One that is over, claimed, with a reference; NULL: none. */
static struct fs_op *over_locked(struct ptc_fs *fs, bool all, int *ret_error)
{
	int64_t now = ptc_sys_now_ns();

	for (struct fs_op *op = fs->ops; op; op = op->next) {
		if (op->starting || !(all || op->interrupted || op->deadline_ns <= now))
			continue;
		*ret_error = op->interrupted ? EINTR : EIO;
		if (!op->interrupted && op->file)
			fs_timed_out_note_locked(fs, op);
		fs_op_claim_locked(fs, op);
		op->refs++;
		return op;
	}
	return NULL;
}

/* Reads that have waited long enough for a block of many tensors, of which some may be on a node that hangs. */
static void part_from_packs(struct ptc_fs *fs)
{
	int64_t patience_ns = (int64_t)PTC_MIN((uint32_t)FS_PACK_MS, fs->opts.timeout_ms / 3) * 1000000;
	int64_t late_ns = ptc_sys_now_ns() + (int64_t)fs->opts.timeout_ms * 1000000 - patience_ns;

	pthread_mutex_lock(&fs->lock);
	for (struct fs_op *op = fs->ops; op && op->deadline_ns <= late_ns; op = op->next)
		if (op->small && !op->starting && fs_cache_leave_locked(fs, op))
			fs_read_apart_locked(fs, op);
	pthread_mutex_unlock(&fs->lock);
}

static void answer_over(struct ptc_fs *fs, bool all)
{
	struct fs_op *op;
	int error;

	pthread_mutex_lock(&fs->lock);
	while ((op = over_locked(fs, all, &error))) {
		pthread_mutex_unlock(&fs->lock);
		fuse_reply_err(op->req, error);
		pthread_mutex_lock(&fs->lock);
		fs_op_unref_locked(fs, op);
	}
	pthread_mutex_unlock(&fs->lock);
}

/* Waits for cond or for so long; at once when it is all over. */
static void rest(struct ptc_fs *fs, pthread_cond_t *cond, long ms)
{
	pthread_mutex_lock(&fs->lock);
	if (!atomic_load(&fs->stopping))
		ptc_cond_wait_ms(cond, &fs->lock, ms);
	fs_cache_kick_locked(fs);
	pthread_mutex_unlock(&fs->lock);
}

/* Stop may be called in a signal handler, and before a thread begins to read. So it is told again until it has ended.
 */
static void wake_takers(struct ptc_fs *fs)
{
	pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; atomic_load(&fs->told_to_stop) && i < fs->ntakers; i++)
		pthread_kill(fs->takers[i], WAKE_SIGNAL);
	pthread_mutex_unlock(&fs->lock);
}

static void *clock_main(void *arg)
{
	struct ptc_fs *fs = arg;

	while (!atomic_load(&fs->stopping)) {
		rest(fs, &fs->clock_cond, CLOCK_MS);
		wake_takers(fs);
		part_from_packs(fs);
		answer_over(fs, false);
		pthread_mutex_lock(&fs->lock);
		fs_openings_kick_locked(fs, 0, false);
		pthread_mutex_unlock(&fs->lock);
	}
	answer_over(fs, true);
	return NULL;
}

void ptc_fs_backings(struct ptc_fs *fs, struct ptc_fs_backing_usage *ret)
{
	*ret = (struct ptc_fs_backing_usage){ 0 };
	pthread_mutex_lock(&fs->lock);
	if (fs->backings)
		fs_backings_usage(fs->backings, ret);
	pthread_mutex_unlock(&fs->lock);
}

static bool snap_gone_locked(void *arg, const char *uuid, uint64_t snapshot, uint64_t step)
{
	const struct ptc_fs *fs = arg;

	for (size_t i = 0; i < fs->njobs; i++)
		if (!strcmp(fs->jobs[i].uuid, uuid))
			return (fs->jobs[i].snapshot != snapshot || fs->jobs[i].step != step) &&
			       !fs_job_keeps(&fs->jobs[i], snapshot, step);
	return fs->jobs_known;
}

/* Backing files end with their snapshots, also where nobody looks at the mount. */
static void tend_backings(struct ptc_fs *fs, unsigned turn)
{
	struct ptc_fs_backing_usage now;

	if (!fs->backings)
		return;
	ptc_fs_backings(fs, &now);
	if (now.bytes && turn % JOBS_TENDS == 0) /* entries of refused files wait until somebody looks at the mount */
		fs_jobs_refresh(fs, false);
	pthread_mutex_lock(&fs->lock);
	fs_backings_drop(fs->backings, snap_gone_locked, fs);
	pthread_mutex_unlock(&fs->lock);
	fs_backings_tend(fs->backings, SCRUB_RATE / 1000 * TEND_MS);
}

/* Leases: asks the source, which may take its time; the clock must not wait for that. */
static void *tend_main(void *arg)
{
	struct ptc_fs *fs = arg;

	for (unsigned turn = 0; !atomic_load(&fs->stopping); turn++) {
		fs_pins_tend(fs);
		fs_direct_sweep(fs);
		tend_backings(fs, turn);
		rest(fs, &fs->tend_cond, TEND_MS);
	}
	return NULL;
}

static int spawn(struct ptc_fs *fs, const char *name, void *(*body)(void *), struct ptc_error *err)
{
	int rc = ptc_thread_start(&fs->threads[fs->nthreads], name, body, fs, err);

	fs->nthreads += rc == 0;
	return rc;
}

static int threads_start(struct ptc_fs *fs, struct ptc_error *err)
{
	int rc = spawn(fs, "ptc-fuse-clock", clock_main, err);

	if (rc == 0)
		rc = spawn(fs, "ptc-fuse-leases", tend_main, err);
	for (int i = 0; !rc && i < FS_META_TASK_POOL; i++)
		rc = spawn(fs, "ptc-fuse-meta", meta_main, err);
	for (int i = 0; !rc && i < FS_READ_TASK_POOL; i++)
		rc = spawn(fs, "ptc-fuse-read", reads_main, err);
	for (int i = 0; !rc && i < FS_FETCH_TASK_POOL; i++)
		rc = spawn(fs, "ptc-fuse-fetch", fs_fetch_main, err);
	return rc;
}

static void threads_stop(struct ptc_fs *fs)
{
	atomic_store(&fs->stopping, true);
	pthread_mutex_lock(&fs->lock);
	pthread_cond_broadcast(&fs->clock_cond);
	pthread_cond_broadcast(&fs->tend_cond);
	pthread_cond_broadcast(&fs->meta.cond);
	pthread_cond_broadcast(&fs->reads.cond);
	pthread_cond_broadcast(&fs->cache.fetch_cond);
	pthread_mutex_unlock(&fs->lock);
	while (fs->nthreads)
		pthread_join(fs->threads[--fs->nthreads], NULL);
	if (fs->backings)
		fs_backings_stop(fs->backings);
	pthread_mutex_lock(&fs->lock);
	fs_openings_kick_locked(fs, 0, true);
	pthread_mutex_unlock(&fs->lock);
	fs_cache_drain(fs);
	fs_pins_tend(fs);
}

/* ---- life ---- */

static int session_new(struct ptc_fs *fs, struct ptc_error *err)
{
	char name[] = "ptc", flag[] = "-o", options[64];
	char *argv[] = { name, flag, options, NULL };
	struct fuse_args args = FUSE_ARGS_INIT(3, argv);

	snprintf(options, sizeof(options), "max_read=%u", FS_READ_MAX);
	fs->se = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), fs);
	fuse_opt_free_args(&args);
	return fs->se ? 0 : ptc_error_set(err, PTC_EIO, "libfuse cannot start");
}

int ptc_fs_new(const struct ptc_fs_opts *opts, struct ptc_fs **ret_fs, struct ptc_error *err)
{
	struct ptc_fs *fs;
	int rc;

	if (opts->cache_bytes < PTC_FS_CACHE_MIN || opts->timeout_ms < 100)
		return ptc_error_set(err, PTC_EINVAL, "a file system needs at least %uMiB of cache and 100ms of time",
				     PTC_FS_CACHE_MIN >> 20);
	fs = ptc_calloc(1, sizeof *fs);
	if (!fs)
		return ptc_nomem(err);
	fs->opts = *opts;
	fs->fd = -1;
	fs->start_s = time(NULL);
	fs->meta.tail = &fs->meta.head;
	fs->reads.tail = &fs->reads.head;
	ptc_require(!pthread_mutex_init(&fs->lock, NULL));
	ptc_require(!pthread_mutex_init(&fs->turn, NULL));
	ptc_cond_init(&fs->loaded);
	ptc_cond_init(&fs->meta.cond);
	ptc_cond_init(&fs->reads.cond);
	ptc_cond_init(&fs->clock_cond);
	ptc_cond_init(&fs->tend_cond);
	ptc_cond_init(&fs->cache.fetch_cond);
	rc = fs_cache_init(fs, opts->cache_bytes, err);
	if (rc == 0)
		rc = fs_direct_init(fs, err);
	if (rc == 0)
		rc = fs_node_init(fs, err);
	if (rc == 0)
		rc = session_new(fs, err);
	if (rc) {
		ptc_fs_free(fs);
		return rc;
	}
	*ret_fs = fs;
	return 0;
}

static void release_everything(struct ptc_fs *fs)
{
	for (uint32_t i = 0; i < FS_HANDLES; i++)
		if (fs->handles[i].used)
			fs_handle_close_locked(fs, (uint64_t)fs->handles[i].turn << 32 | (i + 1));
	fs_nodes_free(fs);
}

struct ptc_fs *ptc_fs_free(struct ptc_fs *fs)
{
	if (!fs)
		return NULL;
	threads_stop(fs);
	if (fs->cache.blocks && fs->nodes) {
		release_everything(fs);
		fs_pins_tend(fs);
	}
	fs->backings = fs_backings_free(fs->backings);
	fs_cache_done(fs);
	fs_direct_done(fs);
	if (fs->se)
		fuse_session_destroy(fs->se);
	ptc_free(fs->jobs);
	ptc_free(fs->dir);
	pthread_cond_destroy(&fs->loaded);
	pthread_cond_destroy(&fs->meta.cond);
	pthread_cond_destroy(&fs->reads.cond);
	pthread_cond_destroy(&fs->clock_cond);
	pthread_cond_destroy(&fs->tend_cond);
	pthread_cond_destroy(&fs->cache.fetch_cond);
	pthread_mutex_destroy(&fs->lock);
	pthread_mutex_destroy(&fs->turn);
	ptc_free(fs);
	return NULL;
}

/* libfuse's answer to INIT lacks what libfuse does not know. Root alone may use backing files. */
static ssize_t io_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	struct ptc_fs *fs = userdata;
	bool init = atomic_load(&fs->pass.init) != 0;
	ssize_t n;

	if (!init)
		return writev(fd, iov, count);
	/* no other request comes before this is written */
	if (fs->dir && geteuid() == 0 && fs->opts.backing_bytes)
		fs_pass_reply(&fs->pass, iov, count);
	atomic_store(&fs->pass.init, 0);
	fs_open_prepare(fs);
	n = writev(fd, iov, count);
	if (n >= 0 && fs->dir)
		fs_mountpoint_read_ahead(fs->source);
	if (n >= 0 && fs->backings)
		fs_backings_begin(fs->backings); /* from now on the kernel takes backing files */
	return n;
}

/* libfuse complains of every error but ENODEV, which a read meets after an unmount. A read that waited for the device's
 * lock while the mount ended gets ECONNABORTED: the same end. */
static ssize_t io_read(int fd, void *buf, size_t len, void *userdata)
{
	ssize_t n = read(fd, buf, len);

	fs_pass_request(&((struct ptc_fs *)userdata)->pass, buf, n);
	if (n < 0 && errno == ECONNABORTED)
		errno = ENODEV;
	return n;
}

static int serve(struct ptc_fs *fs, int fd)
{
	static const struct fuse_custom_io io = { .writev = io_writev, .read = io_read };

	if (fuse_session_custom_io(fs->se, &io, fd))
		return -1;
	fs->fd = fd;
	return 0;
}

int ptc_fs_mount(struct ptc_fs *fs, const char *dir, struct ptc_error *err)
{
	int fd, rc;

	fs->dir = ptc_strdup(dir);
	rc = fs->dir ? fs_mountpoint_open(dir, fs->opts.others, fs->opts.alone, fs->source, &fd, err) : ptc_nomem(err);
	if (rc) {
		ptc_free(fs->dir);
		fs->dir = NULL;
		return rc;
	}
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	if (serve(fs, fd)) {
		close(fd);
		fs_mountpoint_close(dir, fs->source);
		return ptc_error_set(err, PTC_EIO, "libfuse cannot serve the mount at %s", dir);
	}
	return 0;
}

bool ptc_fs_on_top(const struct ptc_fs *fs)
{
	return fs->dir && fs_mountpoint_on_top(fs->dir, fs->source);
}

int ptc_fs_serve_fd(struct ptc_fs *fs, int fd, struct ptc_error *err)
{
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	if (own < 0 || serve(fs, own))
		return ptc_error_errno(err, errno, "cannot serve a descriptor");
	return 0;
}

/* ---- taking requests ---- */

static bool is_waiting(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* A request that is answered in a few microseconds: another thread need not be woken for what comes next. A small read
 * is one while nothing else waits. */
static bool is_short(const struct ptc_fs *fs, const struct fuse_buf *buf)
{
	struct fuse_in_header h;
	struct fuse_read_in in;

	if (buf->size < sizeof(h))
		return true;
	memcpy(&h, buf->mem, sizeof(h));
	if (h.opcode == FUSE_READ && buf->size >= sizeof(h) + sizeof(in)) {
		memcpy(&in, (const uint8_t *)buf->mem + sizeof(h), sizeof(in));
		return in.size <= SHORT_READ && !is_waiting(fs->fd);
	}
	return h.opcode == FUSE_OPEN || h.opcode == FUSE_RELEASE || h.opcode == FUSE_FORGET ||
	       h.opcode == FUSE_BATCH_FORGET || h.opcode == FUSE_GETATTR;
}

/* The next request, taken by whoever has the turn. False: the end. It sleeps in read: to sleep in poll, for a second
 * descriptor too, took a tenth more for a small file. */
static bool take(struct ptc_fs *fs, struct fuse_buf *buf, bool *ret_brief)
{
	int64_t began_ns = ptc_sys_now_ns();
	int n = -EINTR;

	fs_eager_wait(&fs->eager, fs->fd, began_ns);
	while ((n == -EINTR || n == -EAGAIN) && !fuse_session_exited(fs->se) && !atomic_load(&fs->told_to_stop))
		n = fuse_session_receive_buf(fs->se, buf);
	if (n <= 0)
		return false; /* 0 and -ENODEV: unmounted */
	*ret_brief = is_short(fs, buf);
	fs_eager_came(&fs->eager, ptc_sys_now_ns() - began_ns, *ret_brief);
	return true;
}

/* Counted while it may wait in read, so that it is woken at the end. */
static void taking(struct ptc_fs *fs, bool begins)
{
	size_t i = 0;

	pthread_mutex_lock(&fs->lock);
	if (begins) {
		fs->takers[fs->ntakers++] = pthread_self();
	} else {
		while (!pthread_equal(fs->takers[i], pthread_self()))
			i++;
		fs->takers[i] = fs->takers[--fs->ntakers];
	}
	pthread_mutex_unlock(&fs->lock);
}

/* One thread waits for requests at a time. It answers short ones itself, and goes on waiting; before a long one it lets
 * the other wait. */
static void *take_main(void *arg)
{
	struct ptc_fs *fs = arg;
	struct fuse_buf buf = { 0 };
	sigset_t wake;
	bool brief;

	sigemptyset(&wake);
	sigaddset(&wake, WAKE_SIGNAL);
	pthread_sigmask(SIG_UNBLOCK, &wake, NULL);
	taking(fs, true);
	pthread_mutex_lock(&fs->turn);
	while (take(fs, &buf, &brief)) {
		if (!brief)
			pthread_mutex_unlock(&fs->turn);
		fuse_session_process_buf(fs->se, &buf);
		if (!brief)
			pthread_mutex_lock(&fs->turn);
	}
	pthread_mutex_unlock(&fs->turn);
	taking(fs, false);
	fuse_session_exit(fs->se);
	ptc_fs_stop(fs); /* the others, too */
	free(buf.mem);
	return NULL;
}

/* Whoever waits in the kernel goes on at once, whatever our threads wait for: nothing is behind the descriptor any
 * more. What they still answer goes nowhere. */
static void let_go(struct ptc_fs *fs)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (fs->fd >= 0 && null >= 0)
		dup3(null, fs->fd, O_CLOEXEC);
	ptc_close(&null);
}

static void on_wake(int signum)
{
}

int ptc_fs_run(struct ptc_fs *fs, struct ptc_error *err)
{
	const struct sigaction woken = { .sa_handler = on_wake };
	pthread_t takers[FS_TAKERS - 1];
	int n = 0, rc;

	sigaction(WAKE_SIGNAL, &woken, NULL);
	rc = threads_start(fs, err);
	while (!rc && n < FS_TAKERS - 1) {
		rc = ptc_thread_start(&takers[n], "ptc-fuse-take", take_main, fs, err);
		n += !rc;
	}
	if (!rc)
		take_main(fs);
	else
		ptc_fs_stop(fs);
	while (n)
		pthread_join(takers[--n], NULL);
	if (fs->dir)
		fs_mountpoint_close(fs->dir, fs->source);
	let_go(fs);
	threads_stop(fs);
	return rc;
}

void ptc_fs_stop(struct ptc_fs *fs)
{
	atomic_store(&fs->told_to_stop, true);
	shutdown(fs->fd, SHUT_RD); /* of a socket; who reads from the kernel is woken by the clock */
}
