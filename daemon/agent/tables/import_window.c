/* SPDX-License-Identifier: Apache-2.0 */
/* See import_window.h. */
#include "daemon/agent/tables/import_window.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "proto/direct_read.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAITING          64
#define WAITING_PER_USER 16 /* streams of one import */
#define WAIT_NS          INT64_C(60000000000)
#define NEXT_MS          20

struct ptc_import_window {
	int conn, fd; /* -1: none */
	uid_t uid;
	int64_t since_ns;
	uint8_t key[PTC_IMPORT_WINDOW_KEY];
	const uint8_t *map; /* NULL: nobody has taken it yet */
};

struct ptc_import_windows {
	pthread_mutex_t lock;
	size_t n;
	struct ptc_import_window *v[WAITING];
};

struct ptc_import_windows *ptc_import_windows_new(void)
{
	struct ptc_import_windows *w = ptc_calloc(1, sizeof *w);

	if (w)
		ptc_require(!pthread_mutex_init(&w->lock, NULL));
	return w;
}

struct ptc_import_windows *ptc_import_windows_free(struct ptc_import_windows *w)
{
	if (!w)
		return NULL;
	while (w->n)
		ptc_import_window_free(w->v[--w->n]);
	pthread_mutex_destroy(&w->lock);
	ptc_free(w);
	return NULL;
}

struct ptc_import_window *ptc_import_window_free(struct ptc_import_window *w)
{
	if (!w)
		return NULL;
	if (w->map)
		munmap((void *)(uintptr_t)w->map, PTC_IMPORT_WINDOW_BYTES);
	ptc_close(&w->conn);
	ptc_close(&w->fd);
	ptc_free(w);
	return NULL;
}

/* ---- offered ---- */

/* The seal of writing is the client's, who maps the window before. */
static int window_make(struct ptc_import_window *w, struct ptc_error *err)
{
	w->fd = memfd_create("ptc-import", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (w->fd < 0 || ftruncate(w->fd, PTC_IMPORT_WINDOW_BYTES) ||
	    fcntl(w->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		return ptc_error_errno(err, errno, "cannot make a window for an import");
	return ptc_sys_random(w->key, sizeof w->key, err);
}

static bool window_send(const struct ptc_import_window *w)
{
	struct ptc_import_window_reply reply = { .magic = PTC_IMPORT_WINDOW_MAGIC, .bytes = PTC_IMPORT_WINDOW_BYTES };
	struct iovec iov = { &reply, sizeof reply };
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes
	};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	memcpy(reply.key, w->key, sizeof reply.key);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &w->fd, sizeof(int));
	return sendmsg(w->conn, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof reply;
}

/* Takes the window over. It waits before the client knows of it, for the client may be fast. */
static void keep(struct ptc_import_windows *w, struct ptc_import_window *window)
{
	size_t same = 0;
	bool kept;

	pthread_mutex_lock(&w->lock);
	for (size_t i = 0; i < w->n; i++)
		same += w->v[i]->uid == window->uid;
	kept = w->n < WAITING && same < WAITING_PER_USER && window_send(window);
	if (kept)
		w->v[w->n++] = window;
	pthread_mutex_unlock(&w->lock);
	if (!kept)
		ptc_import_window_free(window);
}

void ptc_import_windows_offer(struct ptc_import_windows *w, int conn, uid_t uid)
{
	struct ptc_import_window *window = ptc_calloc(1, sizeof *window);
	struct ptc_error err = PTC_ERROR_INIT;

	if (!window) {
		close(conn);
		return;
	}
	*window = (struct ptc_import_window){ .conn = conn, .fd = -1, .uid = uid, .since_ns = ptc_sys_now_ns() };
	if (window_make(window, &err)) {
		ptc_debug("agent", "no window for uid %u: %s", (unsigned)uid, err.text);
		ptc_import_window_free(window);
		return;
	}
	keep(w, window);
}

static bool is_over(const struct ptc_import_window *w, int64_t now)
{
	struct pollfd p = { .fd = w->conn };

	return now - w->since_ns > WAIT_NS || (poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR));
}

bool ptc_import_windows_expire(struct ptc_import_windows *w)
{
	int64_t now = ptc_sys_now_ns();
	bool some;

	pthread_mutex_lock(&w->lock);
	for (size_t i = w->n; i-- > 0;)
		if (is_over(w->v[i], now)) {
			ptc_import_window_free(w->v[i]);
			w->v[i] = w->v[--w->n];
		}
	some = w->n;
	pthread_mutex_unlock(&w->lock);
	return some;
}

/* ---- taken ---- */

static struct ptc_import_window *find(struct ptc_import_windows *w, const void *key, uid_t uid)
{
	struct ptc_import_window *found = NULL;

	pthread_mutex_lock(&w->lock);
	for (size_t i = 0; i < w->n && !found; i++)
		if (w->v[i]->uid == uid && !memcmp(w->v[i]->key, key, PTC_IMPORT_WINDOW_KEY)) {
			found = w->v[i];
			w->v[i] = w->v[--w->n];
		}
	pthread_mutex_unlock(&w->lock);
	return found;
}

/* Once it is sealed, no page goes away any more that is there. */
static int window_open(struct ptc_import_window *w, struct ptc_error *err)
{
	int seals = fcntl(w->fd, F_GET_SEALS);
	struct stat st;
	void *map;

	if (seals < 0 || (seals & PTC_IMPORT_WINDOW_SEALS) != PTC_IMPORT_WINDOW_SEALS)
		return ptc_error_set(err, PTC_EINVAL, "the window of an import is not sealed");
	if (fstat(w->fd, &st) ||
	    (uint64_t)st.st_blocks * 512 < PTC_IMPORT_WINDOW_BYTES) /* else ptcd would pay for it */
		return ptc_error_set(err, PTC_EINVAL, "the window of an import is not allocated");
	map = mmap(NULL, PTC_IMPORT_WINDOW_BYTES, PROT_READ, MAP_SHARED, w->fd, 0);
	if (map == MAP_FAILED)
		return ptc_error_errno(err, errno, "cannot map the window of an import");
	w->map = map;
	ptc_close(&w->fd);
	return 0;
}

int ptc_import_window_take(struct ptc_import_windows *w, const void *key, size_t len, uid_t uid,
			   struct ptc_import_window **ret_window, struct ptc_error *err)
{
	struct ptc_import_window *window = len == PTC_IMPORT_WINDOW_KEY ? find(w, key, uid) : NULL;
	int rc;

	if (!window)
		return ptc_error_set(err, PTC_ESTATE, "the window of an import is not here any more; import again");
	rc = window_open(window, err);
	if (rc) {
		ptc_import_window_free(window);
		return rc;
	}
	*ret_window = window;
	return 0;
}

int ptc_import_window_next(struct ptc_import_window *w, struct ptc_import_part *ret_part, struct ptc_error *err)
{
	struct pollfd p = { .fd = w->conn, .events = POLLIN };
	struct ptc_import_window_part part;
	ssize_t n = poll(&p, 1, NEXT_MS) > 0 ? recv(w->conn, &part, sizeof part, MSG_DONTWAIT | MSG_TRUNC) : -1;

	if (n < 0 && (!p.revents || errno == EAGAIN || errno == EINTR))
		return ptc_error_set(err, PTC_ETIMEOUT, "the client of an import has sent nothing yet");
	*ret_part = (struct ptc_import_part){ 0 };
	if (n <= 0)
		return 0; /* whether that was all, the stream knows */
	if (n != (ssize_t)sizeof part || part.magic != PTC_IMPORT_WINDOW_MAGIC || !part.bytes ||
	    part.bytes > PTC_IMPORT_WINDOW_BYTES || part.at > PTC_IMPORT_WINDOW_BYTES - part.bytes)
		return ptc_error_set(err, PTC_EINVAL, "malformed part of an import: it does not lie in its window");
	*ret_part = (struct ptc_import_part){ part.item, part.offset, w->map + part.at, part.bytes };
	return 0;
}

int ptc_import_window_taken(struct ptc_import_window *w, const struct ptc_import_part *part, struct ptc_error *err)
{
	const struct ptc_import_window_taken taken = { PTC_IMPORT_WINDOW_MAGIC, (uint32_t)part->len };

	if (send(w->conn, &taken, sizeof taken, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof taken ||
	    errno == EPIPE || errno == ECONNRESET) /* the stream knows */
		return 0;
	return ptc_error_set(err, PTC_EPEER, "the client of an import does not take answers");
}
