/* SPDX-License-Identifier: Apache-2.0 */
/* Direct reads: gives descriptors of chunk files to readers on this node (proto/direct_read.h): one thread, which polls
 * the listener and its connections and answers one question at a time. Happy path: who connects is known by
 * SO_PEERCRED; a question names a table, which is sealed or pinned; its ranges become spans, which go back with the
 * checksums of the chunks they lie in and a descriptor for reading only.
 *
 * Failure modes: a job that is not the caller's, or bytes that are not here (PTC_ENOTFOUND), too many spans
 * (PTC_ELIMIT): the reader then reads the bytes through the daemon instead. A malformed question, or a caller that does
 * not take its answer, ends the connection. If there are too many connections, the new one is closed. A reader cannot
 * make this daemon keep anything. */
#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/fill/fill_files.h"
#include "daemon/store/store.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"
#include "daemon/agent/tables/direct_reads.h"
#include "daemon/agent/tables/import_window.h"
#include "daemon/agent/tables/tables.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"
#include "proto/direct_read.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNS          96
#define CONNS_USERS    64 /* of which users have at most so many */
#define CONNS_PER_USER 8  /* without those of files to fill, which have a bound of their own */
#define BACKLOG        64
#define EXPIRE_MS      1000

#define REQUEST_MAX                                                                                                    \
	(sizeof(struct ptc_direct_read_request) + PTC_DIRECT_READ_RANGES_MAX * sizeof(struct ptc_direct_read_range))
#define REPLY_MAX                                                                                                      \
	(sizeof(struct ptc_direct_read_reply) + PTC_DIRECT_READ_SPANS_MAX * sizeof(struct ptc_direct_read_span) +      \
	 PTC_DIRECT_READ_CHUNKS_MAX * sizeof(struct ptc_direct_read_chunk))

_Static_assert(sizeof(struct ptc_direct_read_span) == sizeof(struct ptc_span), "spans go out as the store gives them");
_Static_assert(sizeof(struct ptc_direct_read_chunk) == sizeof(struct ptc_span_chunk), "and so do chunks");
/* NOLINTNEXTLINE(misc-redundant-expression): equal values under two names are what is asserted */
_Static_assert(PTC_DIRECT_READ_CHUNK_BYTES == PTC_CHUNK_BYTES && PTC_DIRECT_READ_BLOCK_BYTES == PTC_BLOCK_BYTES &&
		       PTC_DIRECT_READ_CHUNK_BLOCKS == PTC_CHUNK_BLOCKS,
	       "who reads knows where blocks lie");
_Static_assert(PTC_DIRECT_READ_DIMS == PTC_MAX_DIMS, "a range names every dim");

struct ptc_direct_reads {
	struct ptc_agent *agent;
	struct ptc_import_windows *windows;
	struct ptc_fill_files *files;
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
	int stop_fd;
	bool bound, started;
	pthread_t thread;
	size_t n;
	struct pollfd polls[2 + CONNS]; /* stop, listener, connections */
	uid_t uids[CONNS];
	struct ptc_fill_file *fills[CONNS];             /* the connection is this file's; NULL: it asks questions */
	_Alignas(uint64_t) uint8_t in[REQUEST_MAX + 1]; /* a struct ptc_direct_read_request */
	struct ptc_span spans[PTC_DIRECT_READ_SPANS_MAX];
	struct ptc_span_chunk chunks[PTC_DIRECT_READ_CHUNKS_MAX];
	/* Sent with spans and chunks, as far as they are used. Last: C allows a struct with a flexible array there
	 * only. */
	struct ptc_direct_read_reply reply;
};

/* ---- one question ---- */

static int range_boxes(const struct ptc_direct_read_range *r, uint64_t *bytes, struct ptc_boxes *ret,
		       struct ptc_error *err)
{
	int64_t volume = 1;
	bool fine = r->ndim && r->ndim <= PTC_DIRECT_READ_DIMS && r->length &&
		    r->length <= PTC_DIRECT_READ_BYTES_MAX - *bytes;

	for (uint32_t d = 0; fine && d < r->ndim; d++)
		fine = r->shape[d] > 0 && !ptc_ckd_mul(&volume, volume, r->shape[d]);
	if (!fine || r->offset > (uint64_t)volume || r->length > (uint64_t)volume - r->offset)
		return ptc_error_set(err, PTC_EINVAL,
				     "a range of an item in a direct read is empty, too long or outside the item");
	*bytes += r->length;
	return ptc_box_from_range(r->ndim, r->shape, (int64_t)r->offset, (int64_t)r->length, ret) ? ptc_nomem(err) : 0;
}

static int range_spans(struct ptc_table *t, const struct ptc_direct_read_range *r, uint64_t *bytes,
		       struct ptc_spans *spans, struct ptc_error *err)
{
	struct ptc_boxes boxes = { 0 };
	int rc = range_boxes(r, bytes, &boxes, err);

	for (size_t i = 0; !rc && i < boxes.n; i++)
		rc = ptc_table_spans(t, r->item, &boxes.v[i], spans, err);
	ptc_boxes_done(&boxes);
	return rc;
}

static int file_of(struct ptc_table *t, struct ptc_direct_read_reply *reply, int *ret_fd, struct ptc_error *err)
{
	const uint8_t *base;
	struct stat st;
	uint64_t bytes;
	int rc = ptc_table_file(t, ret_fd, &base, &bytes, err);

	if (rc)
		return rc;
	if (fstat(*ret_fd, &st) != 0) {
		rc = ptc_error_errno(err, errno, "chunks of a job");
		close(*ret_fd);
		return rc;
	}
	reply->dev = st.st_dev;
	reply->ino = st.st_ino;
	return 0;
}

static int answer(struct ptc_direct_reads *l, uid_t uid, int *ret_fd, struct ptc_error *err)
{
	const struct ptc_direct_read_request *q = (const void *)l->in;
	struct ptc_spans spans = { l->spans, 0, PTC_DIRECT_READ_SPANS_MAX, l->chunks, 0, PTC_DIRECT_READ_CHUNKS_MAX };
	struct ptc_table_key key = { .generation = q->generation, .snapshot = q->snapshot };
	struct ptc_table *table;
	uint64_t bytes = 0;
	uid_t owner;
	int rc;

	memcpy(key.uuid, q->uuid, sizeof key.uuid);
	if (ptc_store_job_owner(l->agent->env.store, key.uuid, &owner) ||
	    (uid != 0 && uid != owner && uid != geteuid()))
		return ptc_error_set(err, PTC_ENOTFOUND, "no such job here");
	rc = ptc_agent_table_open(l->agent, &key, &table, err);
	if (rc)
		return rc;
	for (uint32_t i = 0; !rc && i < q->nranges; i++)
		rc = range_spans(table, &q->ranges[i], &bytes, &spans, err);
	if (rc == 0)
		rc = file_of(table, &l->reply, ret_fd, err);
	ptc_table_unref(table);
	l->reply.nspans = rc ? 0 : (uint32_t)spans.n;
	l->reply.nchunks = rc ? 0 : (uint32_t)spans.nchunks;
	return rc;
}

static bool send_reply(struct ptc_direct_reads *l, int conn, int fd)
{
	struct iovec iov[] = { { &l->reply, sizeof l->reply },
			       { l->spans, l->reply.nspans * sizeof *l->spans },
			       { l->chunks, l->reply.nchunks * sizeof *l->chunks } };
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(sizeof fd)];
	} control = { 0 };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = PTC_ARRAY_LEN(iov) };
	struct cmsghdr *c;

	if (fd >= 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof control.bytes;
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
	}
	return sendmsg(conn, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) ==
	       (ssize_t)(iov[0].iov_len + iov[1].iov_len + iov[2].iov_len);
}

/* A question, and a descriptor that came with it (-1: none). */
static ssize_t receive(struct ptc_direct_reads *l, int conn, uid_t uid, int *ret_fd)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = { l->in, sizeof l->in };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *c;
	ssize_t n;

	if (uid == 0 || uid == geteuid()) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_LEN(sizeof(int)); /* of one; the kernel drops others */
	}
	n = recvmsg(conn, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	c = n < 0 ? NULL : CMSG_FIRSTHDR(&msg);
	*ret_fd = -1;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
	return n;
}

/* False: the connection is over; if *taken, it is a window's now. A file to fill may take it, and *given. */
static bool serve(struct ptc_direct_reads *l, int conn, uid_t uid, bool *taken, struct ptc_fill_file **fill)
{
	ptc_auto_close int given = -1;
	ssize_t len = receive(l, conn, uid, &given);
	const struct ptc_direct_read_request *q = (const void *)l->in;
	struct ptc_direct_read_reply *reply = &l->reply;
	struct ptc_error err = PTC_ERROR_INIT;
	int fd = -1;
	bool sent;

	if (len < 0)
		return errno == EAGAIN || errno == EINTR;
	if (len == (ssize_t)sizeof(struct ptc_import_window_request) && q->magic == PTC_IMPORT_WINDOW_MAGIC) {
		ptc_import_windows_offer(l->windows, conn, uid);
		*taken = true;
		return false;
	}
	if (len == (ssize_t)sizeof(struct ptc_fill_request) && q->magic == PTC_FILL_MAGIC) {
		if (ptc_fault("agent.fill.offer")) /* an older ptcd does not know the question */
			return false;
		if (given < 0)
			return ptc_fill_files_greet(conn, uid);
		ptc_fill_files_offer(l->files, conn, uid, given, fill);
		given = *fill ? -1 : given;
		return *fill;
	}
	if ((size_t)len < sizeof *q || q->magic != PTC_DIRECT_READ_MAGIC || q->nranges > PTC_DIRECT_READ_RANGES_MAX ||
	    (size_t)len != sizeof *q + q->nranges * sizeof(struct ptc_direct_read_range) ||
	    strnlen(q->uuid, sizeof q->uuid) != 36)
		return false;
	*reply = (struct ptc_direct_read_reply){ .magic = PTC_DIRECT_READ_MAGIC };
	reply->status = answer(l, uid, &fd, &err);
	if (reply->status)
		ptc_debug("agent", "no direct read for uid %u: %s", (unsigned)uid, err.text);
	sent = send_reply(l, conn, reply->dev == q->dev && reply->ino == q->ino ? -1 : fd);
	ptc_close(&fd);
	return sent;
}

/* ---- connections ---- */

static void accept_one(struct ptc_direct_reads *l)
{
	int fd = accept4(l->polls[1].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	const int buffer = (int)(2 * REPLY_MAX);
	struct ucred cred;
	socklen_t len = sizeof cred;
	size_t same = 0;
	bool ours;

	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE)
			poll(&l->polls[0], 1, 100);
		return;
	}
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) {
		close(fd);
		return;
	}
	ours = cred.uid == 0 || cred.uid == geteuid();
	for (size_t i = 0; i < l->n; i++)
		same += l->uids[i] == cred.uid && !l->fills[i];
	if (same >= CONNS_PER_USER || l->n >= (ours ? CONNS : CONNS_USERS)) {
		close(fd);
		return;
	}
	ptc_sys_take_descriptors(fd, ours); /* from users none, so that nothing of theirs is dropped here */
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
	l->uids[l->n] = cred.uid;
	l->fills[l->n] = NULL;
	l->polls[2 + l->n++] = (struct pollfd){ .fd = fd, .events = POLLIN };
}

static void forget(struct ptc_direct_reads *l, size_t i)
{
	l->polls[2 + i] = l->polls[2 + --l->n];
	l->uids[i] = l->uids[l->n];
	l->fills[i] = l->fills[l->n];
}

static void drop(struct ptc_direct_reads *l, size_t i)
{
	if (l->fills[i])
		ptc_fill_files_end(l->files, l->fills[i]); /* closes it when nobody writes any more */
	else
		close(l->polls[2 + i].fd);
	forget(l, i);
}

static void serve_at(struct ptc_direct_reads *l, size_t i)
{
	bool taken = false;

	if (!l->fills[i] && serve(l, l->polls[2 + i].fd, l->uids[i], &taken, &l->fills[i]))
		return; /* whatever comes over a file's connection ends it */
	if (taken)
		forget(l, i);
	else
		drop(l, i);
}

static void *direct_reads_main(void *arg)
{
	struct ptc_direct_reads *l = arg;

	while (!l->polls[0].revents) {
		if (poll(l->polls, 2 + l->n, ptc_import_windows_expire(l->windows) ? EXPIRE_MS : -1) < 0) {
			for (size_t i = 0; i < 2 + l->n; i++)
				l->polls[i].revents = 0;
			continue;
		}
		for (size_t i = l->n; i-- > 0;)
			if (l->polls[2 + i].revents)
				serve_at(l, i);
		if (l->polls[1].revents)
			accept_one(l);
	}
	return NULL;
}

/* ---- life ---- */

static int listen_at(struct ptc_direct_reads *l, const char *socket_path, struct ptc_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd, rc;

	if ((size_t)snprintf(l->path, sizeof l->path, "%s" PTC_DIRECT_READ_SUFFIX, socket_path) >= sizeof l->path)
		return ptc_error_set(err, PTC_ELIMIT, "the path of socket %s" PTC_DIRECT_READ_SUFFIX " is too long",
				     socket_path);
	memcpy(address.sun_path, l->path, sizeof l->path);
	rc = ptc_sys_unlink(l->path, "agent.direct.socket",
			    err); /* the control socket beside it is ours, so this one is, too */
	if (rc)
		return rc;
	fd = l->polls[1].fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || fchmod(fd, 0600) != 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) != 0)
		return ptc_error_errno(err, errno, "cannot bind %s", l->path);
	ptc_sys_take_descriptors(fd, false);
	l->bound = true;
	if (chmod(l->path, 0666) != 0 || listen(fd, BACKLOG) != 0)
		return ptc_error_errno(err, errno, "cannot listen on %s", l->path);
	return 0;
}

int ptc_direct_reads_new(struct ptc_agent *agent, struct ptc_import_windows *windows, struct ptc_fill_files *files,
			 const char *socket_path, struct ptc_direct_reads **ret_reads, struct ptc_error *err)
{
	struct ptc_direct_reads *l = ptc_calloc(1, sizeof *l);
	int rc;

	if (!l)
		return ptc_nomem(err);
	l->agent = agent;
	l->windows = windows;
	l->files = files;
	l->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	l->polls[0] = (struct pollfd){ .fd = l->stop_fd, .events = POLLIN };
	l->polls[1] = (struct pollfd){ .fd = -1, .events = POLLIN };
	rc = l->stop_fd < 0 ? ptc_error_errno(err, errno, "eventfd") : listen_at(l, socket_path, err);
	if (!rc)
		rc = ptc_thread_start(&l->thread, "ptc-direct", direct_reads_main, l, err);
	if (rc) {
		ptc_direct_reads_free(l);
		return rc;
	}
	l->started = true;
	*ret_reads = l;
	return 0;
}

struct ptc_direct_reads *ptc_direct_reads_free(struct ptc_direct_reads *l)
{
	if (!l)
		return NULL;
	if (l->started) {
		eventfd_write(l->stop_fd, 1);
		pthread_join(l->thread, NULL);
	}
	while (l->n)
		drop(l, l->n - 1);
	if (l->bound)
		ptc_sys_unlink(l->path, "agent.direct.socket", NULL);
	ptc_close(&l->polls[1].fd);
	ptc_close(&l->stop_fd);
	ptc_free(l);
	return NULL;
}
