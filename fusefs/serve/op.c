// SPDX-License-Identifier: Apache-2.0
/* Requests under way. Every one that cannot be answered at once is listed with
 * a deadline; whoever claims it first answers it: the worker that did it, or
 * the clock, which answers EIO at the deadline and EINTR once its caller has
 * given up. So a process that was killed does not wait for a peer.
 *
 * libfuse calls on_interrupt with a lock of the request held, and frees the
 * request when it is answered: so the callback only marks it, by number, and
 * the clock's thread answers; between registering the callback and being
 * queued (`starting`) nobody but the registering thread may answer. */
#include "fusefs/serve/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define CLOCK_MS 100
#define TEND_MS  500

void fs_op_unref_locked(struct ptc_fs *fs, struct fs_op *op)
{
	if (--op->refs)
		return;
	fs_file_unref_locked(fs, op->file);
	fs_file_unref_locked(fs, op->small);
	fs_view_unref_locked(fs, op->view);
	fs_part_unref_locked(fs, op->at.part);
	ptc_free(op->name);
	ptc_free(op);
}

static void unlist_locked(struct ptc_fs *fs, struct fs_op *op)
{
	*(op->prev ? &op->prev->next : &fs->ops) = op->next;
	*(op->next ? &op->next->prev : &fs->ops_last) = op->prev;
	fs->nops--;
}

bool fs_op_claim_locked(struct ptc_fs *fs, struct fs_op *op)
{
	if (op->answered)
		return false;
	op->answered = true;
	unlist_locked(fs, op);
	return true;
}

bool fs_op_claim(struct ptc_fs *fs, struct fs_op *op)
{
	bool ours;

	pthread_mutex_lock(&fs->lock);
	ours = fs_op_claim_locked(fs, op);
	pthread_mutex_unlock(&fs->lock);
	return ours;
}

void fs_op_fail(struct ptc_fs *fs, struct fs_op *op, int error)
{
	if (fs_op_claim(fs, op))
		fuse_reply_err(op->req, error);
	pthread_mutex_lock(&fs->lock);
	fs_op_unref_locked(fs, op);
	pthread_mutex_unlock(&fs->lock);
}

struct fs_op *fs_op_new(struct ptc_fs *fs, fuse_req_t req, fuse_ino_t ino, const char *name,
			const struct fuse_file_info *fi)
{
	struct fs_op *op = ptc_calloc(1, sizeof(*op));
	bool room;

	if (op && name)
		op->name = ptc_strdup(name);
	if (!op || (name && !op->name)) {
		ptc_free(op);
		fuse_reply_err(req, ENOMEM);
		return NULL;
	}
	op->req = req;
	op->ino = ino;
	op->uid = fuse_req_ctx(req)->uid;
	op->gid = fuse_req_ctx(req)->gid;
	op->pid = fuse_req_ctx(req)->pid;
	op->refs = 1;
	op->starting = true;
	if (fi)
		op->fi = *fi;
	op->deadline_ns = ptc_sys_now_ns() + (int64_t)fs->opts.timeout_ms * 1000000;
	pthread_mutex_lock(&fs->lock);
	room = fs->nops < FS_OPS_MAX;
	if (room) {
		op->number = ++fs->op_number;
		op->prev = fs->ops_last;
		*(fs->ops_last ? &fs->ops_last->next : &fs->ops) = op;
		fs->ops_last = op;
		fs->nops++;
	}
	pthread_mutex_unlock(&fs->lock);
	if (room)
		return op;
	ptc_free(op->name);
	ptc_free(op);
	fuse_reply_err(req, EAGAIN);
	return NULL;
}

static void on_interrupt(fuse_req_t req, void *data)
{
	struct ptc_fs *fs = fuse_req_userdata(req);
	uint64_t number = (uint64_t)(uintptr_t)data;

	pthread_mutex_lock(&fs->lock);
	for (struct fs_op *op = fs->ops; op; op = op->next)
		if (op->number == number) {
			op->interrupted = true;
			pthread_cond_signal(&fs->clock_cond);
			break;
		}
	pthread_mutex_unlock(&fs->lock);
}

bool fs_op_start(struct ptc_fs *fs, struct fs_op *op)
{
	bool ended;

	fuse_req_interrupt_func(op->req, on_interrupt, (void *)(uintptr_t)op->number);
	pthread_mutex_lock(&fs->lock);
	op->starting = false;
	ended = op->interrupted && fs_op_claim_locked(fs, op);
	pthread_mutex_unlock(&fs->lock);
	if (!ended)
		return true;
	fuse_reply_err(op->req, EINTR);
	pthread_mutex_lock(&fs->lock);
	fs_op_unref_locked(fs, op);
	pthread_mutex_unlock(&fs->lock);
	return false;
}

void fs_op_queue(struct ptc_fs *fs, struct fs_queue *q, struct fs_op *op)
{
	pthread_mutex_lock(&fs->lock);
	op->queued = NULL;
	*q->tail = op;
	q->tail = &op->queued;
	pthread_cond_signal(&q->cond);
	pthread_mutex_unlock(&fs->lock);
}

/* ---- threads ---- */

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
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += ms * 1000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_mutex_lock(&fs->lock);
	if (!atomic_load(&fs->stopping))
		pthread_cond_timedwait(cond, &fs->lock, &until);
	fs_cache_kick_locked(fs);
	pthread_mutex_unlock(&fs->lock);
}

static void *clock_main(void *arg)
{
	struct ptc_fs *fs = arg;

	while (!atomic_load(&fs->stopping)) {
		rest(fs, &fs->clock_cond, CLOCK_MS);
		part_from_packs(fs);
		answer_over(fs, false);
	}
	answer_over(fs, true);
	return NULL;
}

/* Leases: asks the source, which may take its time; the clock must not wait for that. */
static void *tend_main(void *arg)
{
	struct ptc_fs *fs = arg;

	while (!atomic_load(&fs->stopping)) {
		fs_pins_tend(fs);
		fs_direct_sweep(fs);
		rest(fs, &fs->tend_cond, TEND_MS);
	}
	return NULL;
}

static int spawn(struct ptc_fs *fs, void *(*body)(void *), struct ptc_error *err)
{
	int e = pthread_create(&fs->threads[fs->nthreads], NULL, body, fs);

	if (e)
		return ptc_error_errno(err, e, "cannot start a thread");
	fs->nthreads++;
	return 0;
}

int fs_task_pool_start(struct ptc_fs *fs, struct ptc_error *err)
{
	int rc = spawn(fs, clock_main, err);

	rc = rc ? rc : spawn(fs, tend_main, err);
	for (int i = 0; !rc && i < FS_META_TASK_POOL; i++)
		rc = spawn(fs, meta_main, err);
	for (int i = 0; !rc && i < FS_READ_TASK_POOL; i++)
		rc = spawn(fs, reads_main, err);
	for (int i = 0; !rc && i < FS_FETCH_TASK_POOL; i++)
		rc = spawn(fs, fs_fetch_main, err);
	return rc;
}

void fs_task_pool_stop(struct ptc_fs *fs)
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
	fs_cache_drain(fs);
	fs_pins_tend(fs);
}
