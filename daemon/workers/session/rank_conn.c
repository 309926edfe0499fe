/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets and connections of ranks. Happy path: accept, identify the caller (SO_PEERCRED), queue messages to it.
 * Failure modes: a caller of another user, or one too many, is closed. A message that cannot be sent is queued, and
 * dropped with the connection. If a rank does not read, nothing is read from it either. */
#include "daemon/workers/session/internal.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BACKLOG 128

int ptc_conn_listen(struct job *job, struct ptc_error *err)
{
	struct sockaddr_un address;
	int dir, fd, e, rc;

	rc = ptc_sys_unlink(job->socket, "workers.socket", err);
	if (rc)
		return rc;
	e = ptc_local_address(job->socket, &address, &dir);
	if (e)
		return ptc_error_errno(err, -e, "socket %s", job->socket);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0)
		e = errno;
	ptc_close(&dir);
	/* The folder is ours, so nobody can put anything else here in between. */
	if (!e && (chmod(job->socket, 0600) != 0 ||
		   (job->uid != geteuid() && chown(job->socket, job->uid, (gid_t)-1) != 0) || listen(fd, BACKLOG) != 0))
		e = errno;
	if (e) {
		ptc_close(&fd);
		return ptc_error_errno(err, e, "cannot listen at %s", job->socket);
	}
	job->listen = fd;
	return 0;
}

/* Too many that have not said who they are: the oldest goes. Newest come first in the list. */
static void limit_strangers(struct ptc_workers *w, const struct job *job)
{
	struct conn *oldest = NULL;
	size_t n = 0;

	for (struct conn *c = w->conns; c; c = c->next)
		if (c->job == job && !c->worker && !c->broken) {
			oldest = c;
			n++;
		}
	if (n > WORKERS_STRANGERS_MAX)
		oldest->broken = true;
}

static void add_conn_locked(struct ptc_workers *w, struct job *job, int fd)
{
	struct ucred cred;
	socklen_t len = sizeof cred;
	struct conn *c;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0 || (cred.uid != job->uid && cred.uid != 0) ||
	    !(c = ptc_calloc(1, sizeof *c))) {
		close(fd);
		return;
	}
	c->job = job;
	c->pid = cred.pid;
	c->uid = cred.uid;
	c->since_ns = ptc_sys_now_ns();
	c->out_end = &c->out;
	ptc_local_conn_init(&c->link, fd, ptc_realloc);
	c->next = w->conns;
	w->conns = c;
	limit_strangers(w, job);
}

void ptc_conn_accept_locked(struct ptc_workers *w, struct job *job)
{
	for (;;) {
		int fd = accept4(job->listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			add_conn_locked(w, job, fd);
		} else if (errno != EINTR && errno != ECONNABORTED) {
			if (errno == EMFILE || errno == ENFILE)
				ptc_warn("workers", "job %s: cannot accept a rank's connection: %s", job->uuid,
					 strerror(errno));
			return;
		}
	}
}

/* The first of the queue. */
static void drop_outgoing(struct conn *c)
{
	struct outgoing *o = c->out;

	c->out = o->next;
	if (!c->out)
		c->out_end = &c->out;
	c->out_bytes -= sizeof *o + o->len;
	ptc_close(&o->fd);
	ptc_free(o->data);
	ptc_free(o);
}

void ptc_conn_close_locked(struct ptc_workers *w, struct conn *c)
{
	if (c->worker && c->worker->conn == c) {
		enum worker_phase phase = c->worker->phase;

		/* In a generation it stays where it is: it comes back. */
		if (phase < WORKER_BUILDING || phase == WORKER_ENDING)
			c->worker->phase = WORKER_ABSENT;
		c->worker->conn = NULL;
		c->worker->get.active = false;
		pthread_cond_broadcast(&w->changed);
	}
	while (c->out)
		drop_outgoing(c);
	close(c->link.fd);
	ptc_local_conn_done(&c->link, ptc_free);
	ptc_free(c);
}

void ptc_conn_flush_locked(struct conn *c)
{
	while (c->out && !c->broken) {
		struct outgoing *o = c->out;
		int rc = ptc_local_send(&c->link, o->type, o->data, o->len, o->fd, &o->offset);

		if (rc == 0)
			return;
		if (rc < 0)
			c->broken = true;
		drop_outgoing(c);
	}
}

void ptc_conn_send_locked(struct conn *c, uint16_t type, const struct ptc_local_out *body, int fd)
{
	struct outgoing *o = ptc_calloc(1, sizeof *o);

	if (o && body && body->len)
		o->data = ptc_malloc(body->len);
	if (!o || (body && (body->failed || (body->len && !o->data)))) {
		ptc_close(&fd);
		ptc_free(o);
		c->broken = true; /* it connects anew, and is told anew */
		return;
	}
	if (body && body->len) {
		memcpy(o->data, body->data, body->len);
		o->len = body->len;
	}
	o->type = type;
	o->fd = fd;
	*c->out_end = o;
	c->out_end = &o->next;
	c->out_bytes += sizeof *o + o->len;
	ptc_conn_flush_locked(c);
	if (c->out_bytes > WORKERS_QUEUE_MAX && !c->broken) {
		ptc_warn("workers", "job %s: pid %d does not read what it is told: its connection is closed",
			 c->job->uuid, (int)c->pid);
		c->broken = true;
	}
}

void ptc_conn_refuse_locked(struct conn *c, int code, const char *fmt, ...)
{
	struct ptc_local_out out = { .grow = ptc_realloc };
	char text[PTC_LOCAL_TEXT_MAX + 1];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	ptc_debug("workers", "job %s: pid %d refused: %s", c->job->uuid, (int)c->pid, text);
	ptc_local_put_refusal(&out, code, text);
	ptc_conn_send_locked(c, PTC_LOCAL_REFUSED, &out, -1);
	ptc_free(out.data);
	c->closing = true;
}
