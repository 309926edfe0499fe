/* SPDX-License-Identifier: Apache-2.0 */
/* Where bytes lie in the daemon's chunk files: proto/direct_read.h from the asking side. Happy path: one connection, a
 * question and its answer at a time. Failure modes: there is no daemon, it does not answer in time, its answer is
 * malformed, or the socket is not the daemon's (PTC_EPEER). The connection is then closed, and not made again for a
 * second. An error that the daemon answers is passed on unchanged.
 *
 * And files that the daemon fills: open, fill (any number of threads), close. A daemon that is older, on another node,
 * or does not take the file fills none: the reader then reads the bytes, and writes them itself. */
#include "client/admin/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "proto/direct_read.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define TIMEOUT_S      2
#define UNREACHABLE_NS INT64_C(1000000000)
#define REPLY_MAX                                                                                                      \
	(sizeof(struct ptc_direct_read_reply) + PTC_DIRECT_READ_SPANS_MAX * sizeof(struct ptc_direct_read_span) +      \
	 PTC_DIRECT_READ_CHUNKS_MAX * sizeof(struct ptc_direct_read_chunk))

_Static_assert(sizeof(struct ptc_direct_read_span) == sizeof(struct ptc_admin_span),
	       "spans are handed on as they come");
_Static_assert(sizeof(struct ptc_direct_read_chunk) == sizeof(struct ptc_admin_chunk), "and so are chunks");
_Static_assert(PTC_ADMIN_FILL_BYTES == PTC_FILL_BYTES, "so much in one call");
_Static_assert(PTC_ADMIN_LOCATE_BYTES == PTC_DIRECT_READ_BYTES_MAX, "so much in one question");
_Static_assert(sizeof(struct ptc_direct_read_range) == sizeof(struct ptc_admin_piece), "pieces are sent as they are");

/* Whoever owns the control socket must be who listens beside it: what he says goes into files. */
static bool is_daemon(int fd, const char *control)
{
	struct ucred cred;
	socklen_t len = sizeof cred;
	struct stat st;

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) && !stat(control, &st) && cred.uid == st.st_uid;
}

int ptc_admin_direct_connect_locked(struct ptc_admin *a, int *ret_fd)
{
	const struct timeval limit = { .tv_sec = TIMEOUT_S };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd;

	if (!a->direct_read.control || ptc_sys_now_ns() < a->direct_read.not_before ||
	    (size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s" PTC_DIRECT_READ_SUFFIX,
			     a->direct_read.control) >= sizeof address.sun_path)
		return PTC_EPEER;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return PTC_EPEER;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) || /* of connect, too */
	    connect(fd, (const struct sockaddr *)&address, sizeof address) || !is_daemon(fd, a->direct_read.control)) {
		close(fd);
		a->direct_read.not_before = ptc_sys_now_ns() + UNREACHABLE_NS;
		return PTC_EPEER;
	}
	*ret_fd = fd;
	return 0;
}

ssize_t ptc_admin_direct_receive(int from, void *buf, size_t size, int *ret_fd)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = { buf, size };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes
	};
	ssize_t n = recvmsg(from, &msg, MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&msg);

	*ret_fd = -1;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
	return n;
}

static const struct ptc_direct_read_chunk *chunks_of(const struct ptc_direct_read_reply *r)
{
	return (const struct ptc_direct_read_chunk *)(r->spans + r->nspans);
}

static bool spans_fit(const struct ptc_direct_read_reply *r)
{
	for (uint32_t i = 0; i < r->nspans; i++) {
		const struct ptc_direct_read_span *s = &r->spans[i];
		uint64_t off = s->chunk < r->nchunks ? s->at - chunks_of(r)[s->chunk].at : PTC_DIRECT_READ_CHUNK_BYTES;

		if (off >= PTC_DIRECT_READ_CHUNK_BYTES || !s->bytes || s->bytes > PTC_DIRECT_READ_CHUNK_BYTES - off)
			return false;
	}
	return true;
}

static bool is_reply(const struct ptc_direct_read_reply *r, ssize_t n, int fd, const struct ptc_direct_read_request *q)
{
	struct stat st;

	if (n < (ssize_t)sizeof *r || r->magic != PTC_DIRECT_READ_MAGIC || r->status > 0 ||
	    r->nspans > PTC_DIRECT_READ_SPANS_MAX || r->nchunks > PTC_DIRECT_READ_CHUNKS_MAX ||
	    (size_t)n != sizeof *r + r->nspans * sizeof(struct ptc_direct_read_span) +
				 r->nchunks * sizeof(struct ptc_direct_read_chunk) ||
	    !spans_fit(r))
		return false;
	if (r->status)
		return true;
	if (fd < 0)
		return r->dev == q->dev && r->ino == q->ino;
	return !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_dev == r->dev && st.st_ino == r->ino;
}

/* False: *ret_dead when nobody is at the other end any more. */
static bool exchange(int conn, const struct ptc_direct_read_request *q, struct ptc_direct_read_reply *reply,
		     int *ret_fd, bool *ret_dead)
{
	size_t len = sizeof *q + q->nranges * sizeof(struct ptc_direct_read_range);
	ssize_t n;

	*ret_fd = -1;
	do
		n = send(conn, q, len, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n == (ssize_t)len)
		do
			n = ptc_admin_direct_receive(conn, reply, REPLY_MAX, ret_fd);
		while (n < 0 && errno == EINTR);
	*ret_dead = n == 0 || (n < 0 && (errno == EPIPE || errno == ECONNRESET));
	if (n > 0 && is_reply(reply, n, *ret_fd, q))
		return true;
	if (*ret_fd >= 0)
		close(*ret_fd);
	*ret_fd = -1;
	return false;
}

static int ask_locked(struct ptc_admin *a, const struct ptc_direct_read_request *q, struct ptc_direct_read_reply *reply,
		      int *ret_fd)
{
	bool again, dead;

	do {
		again = a->direct_read.fd >= 0; /* an old connection: the daemon may have been started anew since */
		if (!again && ptc_admin_direct_connect_locked(a, &a->direct_read.fd))
			return PTC_EPEER;
		if (exchange(a->direct_read.fd, q, reply, ret_fd, &dead))
			return reply->status;
		close(a->direct_read.fd); /* a late answer must not be taken for the next one */
		a->direct_read.fd = -1;
	} while (again && dead);
	a->direct_read.not_before = ptc_sys_now_ns() + UNREACHABLE_NS;
	return PTC_EPEER;
}

static int more(struct ptc_admin_spans *s, const struct ptc_direct_read_reply *r)
{
	struct ptc_admin_span *v = ptc_reallocarray(s->v, PTC_MAX(s->n + r->nspans, (size_t)1), sizeof *v);
	struct ptc_admin_chunk *chunks;

	if (!v)
		return PTC_ENOMEM;
	s->v = v;
	chunks = ptc_reallocarray(s->chunks, PTC_MAX(s->nchunks + r->nchunks, (size_t)1), sizeof *chunks);
	if (!chunks)
		return PTC_ENOMEM;
	s->chunks = chunks;
	memcpy(v + s->n, r->spans, r->nspans * sizeof *v);
	memcpy(chunks + s->nchunks, chunks_of(r), r->nchunks * sizeof *chunks);
	for (uint32_t i = 0; i < r->nspans; i++)
		v[s->n + i].chunk += (uint32_t)s->nchunks;
	s->n += r->nspans;
	s->nchunks += r->nchunks;
	return 0;
}

/* All of the file that the first answer named. */
static int take(struct ptc_admin_spans *s, const struct ptc_direct_read_reply *r, int fd, bool first)
{
	if (fd >= 0 && s->fd >= 0)
		close(s->fd);
	s->fd = fd >= 0 ? fd : s->fd;
	if (!first && (s->dev != r->dev || s->ino != r->ino))
		return PTC_EPEER; /* anew, if at all */
	s->dev = r->dev;
	s->ino = r->ino;
	return more(s, r);
}

int ptc_admin_locate(struct ptc_admin *a, const struct ptc_admin_export *e, const struct ptc_admin_piece *pieces,
		     size_t n, struct ptc_admin_spans *spans, struct ptc_error *err)
{
	struct ptc_admin_spans s = { .dev = spans->dev, .ino = spans->ino, .fd = -1 };
	ptc_auto_free struct ptc_direct_read_request *q =
		ptc_calloc(1, sizeof *q + PTC_DIRECT_READ_RANGES_MAX * sizeof(struct ptc_direct_read_range));
	ptc_auto_free struct ptc_direct_read_reply *reply = ptc_malloc(REPLY_MAX);
	int rc = q && reply ? 0 : PTC_ENOMEM, fd = -1;

	if (!rc && strlen(e->uuid) >= sizeof q->uuid)
		rc = PTC_EINVAL;
	for (size_t at = 0; !rc && at < n; at += q->nranges) {
		*q = (struct ptc_direct_read_request){ .magic = PTC_DIRECT_READ_MAGIC,
						       .nranges = (uint32_t)PTC_MIN(n - at,
										    (size_t)PTC_DIRECT_READ_RANGES_MAX),
						       .generation = e->generation,
						       .snapshot = e->snapshot,
						       .dev = s.dev,
						       .ino = s.ino };
		memcpy(q->uuid, e->uuid, strlen(e->uuid) + 1);
		memcpy(q->ranges, pieces + at, q->nranges * sizeof *pieces);
		pthread_mutex_lock(&a->direct_read.lock);
		rc = ask_locked(a, q, reply, &fd);
		pthread_mutex_unlock(&a->direct_read.lock);
		if (rc)
			break;
		rc = take(&s, reply, fd, at == 0);
	}
	if (rc) {
		ptc_close(&s.fd);
		ptc_free(s.v);
		ptc_free(s.chunks);
		return ptc_error_set(err, rc, "the daemon does not say where it lies");
	}
	*spans = s;
	return 0;
}

/* ---- files that the daemon fills ---- */

struct ptc_admin_fill {
	struct ptc_admin *a;
	int conn;
	uint8_t key[PTC_FILL_KEY];
};

static bool send_file(int conn, int fd) /* -1: no file */
{
	struct ptc_fill_request q = { .magic = PTC_FILL_MAGIC };
	struct iovec iov = { &q, sizeof q };
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(sizeof fd)];
	} control = { 0 };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes
	};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (fd < 0) {
		msg.msg_control = NULL;
		msg.msg_controllen = 0;
	}
	return sendmsg(conn, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof q;
}

/* -1: asks whether a file would be taken. */
static int offer(struct ptc_admin_fill *f, int fd, struct ptc_error *err)
{
	struct ptc_fill_reply reply;
	ssize_t n;

	if (!send_file(f->conn, fd))
		return ptc_error_set(err, PTC_EPEER, "no daemon of this node takes files to fill");
	do
		n = recv(f->conn, &reply, sizeof reply, 0);
	while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof reply || reply.magic != PTC_FILL_MAGIC || reply.status > 0)
		return ptc_error_set(err, PTC_EPEER, "the daemon does not take files to fill");
	if (reply.status)
		return ptc_error_set(err, reply.status, "the daemon does not take the file to fill");
	memcpy(f->key, reply.key, sizeof f->key);
	return 0;
}

int ptc_admin_fill_open(struct ptc_admin *a, int fd, struct ptc_admin_fill **ret_fill, struct ptc_error *err)
{
	struct ptc_admin_fill *f = ptc_calloc(1, sizeof *f);
	int rc;

	if (!f)
		return ptc_nomem(err);
	*f = (struct ptc_admin_fill){ .a = a, .conn = -1 };
	pthread_mutex_lock(&a->direct_read.lock);
	rc = ptc_admin_direct_connect_locked(a, &f->conn);
	pthread_mutex_unlock(&a->direct_read.lock);
	if (rc)
		rc = ptc_error_set(err, rc, "no daemon of this node takes files to fill");
	if (!rc)
		rc = offer(f, -1, err);
	if (!rc)
		rc = offer(f, fd, err);
	if (rc) {
		ptc_close(&f->conn);
		ptc_free(f);
		return rc;
	}
	*ret_fill = f;
	return 0;
}

int ptc_admin_fill_close(struct ptc_admin_fill *f, struct ptc_error *err)
{
	char byte;
	ssize_t n;

	shutdown(f->conn, SHUT_WR);
	do
		n = recv(f->conn, &byte, sizeof byte, 0);
	while (n < 0 && errno == EINTR);
	n = n < 0 && errno == ECONNRESET ? 0 : n; /* the daemon is gone, and its descriptors */
	ptc_close(&f->conn);
	ptc_free(f);
	return n ? ptc_error_set(err, PTC_EPEER, "the daemon still has the file that it has filled") : 0;
}

int ptc_admin_fill(struct ptc_admin_fill *f, const char *job, const struct ptc_admin_export *e, uint64_t at,
		   const struct ptc_admin_range *ranges, size_t n, uint64_t *ret_digests, struct ptc_error *err)
{
	ptc_auto_free uint32_t *items = ptc_calloc(n, sizeof *items);
	ptc_auto_free uint64_t *offsets = ptc_calloc(n, sizeof *offsets), *lengths = ptc_calloc(n, sizeof *lengths);
	Ptc__V1__ReadIntoRequest request;
	ProtobufCMessage *reply = NULL;
	const Ptc__V1__ReadIntoReply *r;
	int rc;

	if (!items || !offsets || !lengths)
		return ptc_nomem(err);
	for (size_t i = 0; i < n; i++) {
		items[i] = ranges[i].item;
		offsets[i] = ranges[i].offset;
		lengths[i] = ranges[i].length;
	}
	ptc__v1__read_into_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(job);
	request.generation = e->generation;
	request.snapshot = e->snapshot;
	request.uuid = ptc_admin_borrow(e->uuid);
	request.file = (ProtobufCBinaryData){ .data = f->key, .len = sizeof f->key };
	request.at = at;
	request.items = items;
	request.offsets = offsets;
	request.lengths = lengths;
	request.n_items = request.n_offsets = request.n_lengths = n;
	rc = ptc_admin_call(f->a, "/ptc.v1.Control/ReadInto", &request.base, &ptc__v1__read_into_reply__descriptor,
			    &reply, err);
	if (rc)
		return rc;
	r = (const Ptc__V1__ReadIntoReply *)reply;
	if (r->n_digests == n)
		memcpy(ret_digests, r->digests, n * sizeof *ret_digests);
	else
		rc = ptc_error_set(err, PTC_EPEER, "the daemon gave %zu digests of %zu ranges", r->n_digests, n);
	ptc_admin_reply_free(reply);
	return rc;
}
