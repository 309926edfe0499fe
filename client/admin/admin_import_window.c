/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of imports from the client's side (proto/direct_read.h). Happy path: open, slot and send in turns, finish,
 * done. Failure modes: a daemon that is older, on another node or out of windows gives none; one that ends the window
 * says why in the stream; one that refuses the stream does not look at the window at all. */
#include "client/admin/internal.h"

#include "base/cleanup.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "proto/direct_read.h"
#include "rpc/client/client.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define LOOK_US 100000 /* between looks at the stream */

_Static_assert(sizeof(((struct ptc_admin_window *)NULL)->key) == PTC_IMPORT_WINDOW_KEY, "keys are handed on");

/* Sealed as the daemon wants it: nobody maps it for writing after us. */
static bool map_window(struct ptc_admin_window *w, int fd)
{
	void *map;

	if (fallocate(fd, 0, 0, PTC_IMPORT_WINDOW_BYTES))
		return false; /* bytes go in messages */
	map = mmap(NULL, PTC_IMPORT_WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		return false;
	w->map = map;
	return !fcntl(fd, F_ADD_SEALS, PTC_IMPORT_WINDOW_SEALS);
}

static bool ask(struct ptc_admin_window *w)
{
	const struct ptc_import_window_request q = { .magic = PTC_IMPORT_WINDOW_MAGIC };
	struct ptc_import_window_reply reply;
	ptc_auto_close int fd = -1;
	ssize_t n;

	if (send(w->fd, &q, sizeof q, MSG_NOSIGNAL) != (ssize_t)sizeof q)
		return false;
	do
		n = ptc_admin_direct_receive(w->fd, &reply, sizeof reply, &fd);
	while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof reply || reply.magic != PTC_IMPORT_WINDOW_MAGIC || reply.status || fd < 0 ||
	    reply.bytes != PTC_IMPORT_WINDOW_BYTES)
		return false;
	memcpy(w->key, reply.key, sizeof w->key);
	return map_window(w, fd);
}

bool ptc_admin_window_open(struct ptc_admin *a, struct ptc_rpc_stream *stream, int timeout_ms,
			   struct ptc_admin_window *ret)
{
	const struct timeval look = { .tv_usec = LOOK_US };
	struct ptc_admin_window w = { .fd = -1, .deadline_ns = INT64_MAX, .stream = stream };

	pthread_mutex_lock(&a->direct_read.lock);
	if (!ptc_admin_direct_connect_locked(a, &w.fd) &&
	    (!ask(&w) || setsockopt(w.fd, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof look)))
		ptc_admin_window_done(&w);
	pthread_mutex_unlock(&a->direct_read.lock);
	if (timeout_ms)
		w.deadline_ns = ptc_sys_now_ns() + (int64_t)timeout_ms * 1000000;
	*ret = w;
	return w.fd >= 0;
}

/* One answer more; the socket's own time limit bounds each try. Before its end nothing comes over the stream. */
static int await(struct ptc_admin_window *w, struct ptc_error *err)
{
	struct ptc_import_window_taken taken;
	ssize_t n;

	while ((n = recv(w->fd, &taken, sizeof taken, 0)) < 0 && (errno == EAGAIN || errno == EINTR)) {
		if (ptc_sys_now_ns() > w->deadline_ns)
			return ptc_error_set(err, PTC_ETIMEOUT, "the daemon does not take the bytes of an import");
		if (ptc_rpc_stream_ready(w->stream))
			return ptc_error_set(err, PTC_EPEER, "the daemon has ended the stream of an import");
	}
	if (n != (ssize_t)sizeof taken || taken.magic != PTC_IMPORT_WINDOW_MAGIC)
		return ptc_error_set(err, PTC_EPEER, "the daemon has ended the window of an import");
	w->taken++;
	return 0;
}

int ptc_admin_window_slot(struct ptc_admin_window *w, void **ret_slot, size_t *ret_len, struct ptc_error *err)
{
	int rc = w->sent - w->taken < PTC_IMPORT_WINDOW_SLOTS ? 0 : await(w, err);

	if (rc)
		return rc;
	*ret_slot = w->map + w->sent % PTC_IMPORT_WINDOW_SLOTS * PTC_IMPORT_WINDOW_SLOT;
	*ret_len = PTC_IMPORT_WINDOW_SLOT;
	return 0;
}

int ptc_admin_window_send(struct ptc_admin_window *w, uint32_t item, uint64_t offset, size_t len, struct ptc_error *err)
{
	const struct ptc_import_window_part part = {
		.magic = PTC_IMPORT_WINDOW_MAGIC,
		.item = item,
		.offset = offset,
		.at = (uint32_t)(w->sent % PTC_IMPORT_WINDOW_SLOTS * PTC_IMPORT_WINDOW_SLOT),
		.bytes = (uint32_t)len,
	};
	ssize_t n;

	while ((n = send(w->fd, &part, sizeof part, MSG_NOSIGNAL)) < 0 && (errno == EAGAIN || errno == EINTR))
		if (ptc_sys_now_ns() > w->deadline_ns)
			return ptc_error_set(err, PTC_ETIMEOUT, "the daemon does not take the bytes of an import");
	if (n != (ssize_t)sizeof part)
		return ptc_error_set(err, PTC_EPEER, "the daemon has ended the window of an import");
	w->sent++;
	return 0;
}

void ptc_admin_window_finish(struct ptc_admin_window *w)
{
	if (w->fd >= 0)
		shutdown(w->fd, SHUT_WR);
}

void ptc_admin_window_done(struct ptc_admin_window *w)
{
	if (w->map)
		munmap(w->map, PTC_IMPORT_WINDOW_BYTES);
	w->map = NULL;
	ptc_close(&w->fd);
}
