/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the mount that are under way: deadlines, interrupts, and who answers. Every request that cannot be
 * answered at once is listed with a deadline. The thread that claims it first answers it: the worker that did it, or
 * the clock, which answers EIO at the deadline and EINTR once the caller has given up. So a process that was killed
 * does not wait for a peer.
 *
 * libfuse calls on_interrupt with a lock of the request held, and frees the request once it is answered. So
 * on_interrupt only marks the request, by its number, and the clock's thread answers. While `starting` is set,
 * on_interrupt is being registered, and only the thread that registers it may answer the request. */
#include "fusefs/serve/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

void fs_op_unref_locked(struct ptc_fs *fs, struct fs_op *op)
{
	if (--op->refs)
		return;
	fs_file_unref_locked(fs, op->file);
	fs_file_unref_locked(fs, op->small);
	fs_view_unref_locked(fs, op->view);
	fs_part_unref_locked(fs, op->at.part);
	if (op->opened)
		fs_handle_close_locked(fs, op->opened);
	ptc_free(op->name);
	ptc_free(op);
}

void fs_op_unref(struct ptc_fs *fs, struct fs_op *op)
{
	pthread_mutex_lock(&fs->lock);
	fs_op_unref_locked(fs, op);
	pthread_mutex_unlock(&fs->lock);
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
	fs_op_unref(fs, op);
}

struct fs_op *fs_op_new(struct ptc_fs *fs, fuse_req_t req, fuse_ino_t ino, const char *name,
			const struct fuse_file_info *fi)
{
	struct fs_op *op = ptc_calloc(1, sizeof *op);
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
	fs_op_unref(fs, op);
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
