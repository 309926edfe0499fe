/* SPDX-License-Identifier: Apache-2.0 */
/* Unix listeners of the server, which know the caller's user (SO_PEERCRED). We accept ourselves, read SO_PEERCRED and
 * hand the connection to the core, which then names it "fd:N" on each call; conns.c knows who N is.
 *
 * Happy path: accept, identify, take, hand over.
 *
 * Failure modes: the path is not absolute (PTC_EINVAL) or too long (PTC_ELIMIT). The path is no socket, or another
 * process listens there (PTC_EEXIST). For as_node: others can enter the directory (PTC_EPERM). A caller who may not
 * connect, or has too many connections, is closed at once. Without descriptors callers wait, and the log says so. */
#include "rpc/server/internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <grpc/grpc_posix.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG         4096 /* while it is full, callers are refused; whoever floods it must not manage that */
#define ACCEPT_PAUSE_MS 100  /* after running out of descriptors */
#define AT_ONCE         64   /* connections, between looks whether to stop */
#define PEER_SEND_BUFFER                                                                                               \
	(1 << 20) /* bulk; the kernel's 208 KiB wake the other end ten times for a message of 2 MiB                    \
		   */

struct ptc_rpc_unix {
	struct ptc_rpc_unix *next;
	grpc_server *core;
	grpc_server_credentials *creds;
	struct sockaddr_un addr;
	dev_t dev; /* of the socket file we made */
	ino_t ino;
	int fd, stop_fd;
	bool as_node, bound, thread_started;
	pthread_t thread;
};

/* ---- accepting -------------------------------------------------------------------- */

static bool identify(const struct ptc_rpc_unix *u, int fd, struct ptc_rpc_peer *ret)
{
	struct ucred cred;
	socklen_t len = sizeof cred;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0)
		return false;
	*ret = (struct ptc_rpc_peer){ .kind = u->as_node ? PTC_RPC_PEER_NODE : PTC_RPC_PEER_USER };
	ret->id = (struct ptc_rpc_identity){ .role = PTC_ROLE_NODE };
	if (!u->as_node)
		ret->id = (struct ptc_rpc_identity){ .role = PTC_ROLE_USER, .uid = cred.uid, .gid = cred.gid };
	return !u->as_node || cred.uid == 0 || cred.uid == geteuid();
}

/* Whoever connects in a loop has closed most of what waits in the queue, and must not cost more than that. */
static bool is_gone(int fd)
{
	struct pollfd p = { .fd = fd };

	return poll(&p, 1, 0) > 0 && (p.revents & POLLHUP);
}

static void hand_over(struct ptc_rpc_unix *u, int fd)
{
	const int send_buffer = PEER_SEND_BUFFER;
	struct ptc_rpc_peer peer;
	int n;

	if (is_gone(fd)) {
		close(fd);
		return;
	}
	if (!identify(u, fd, &peer)) {
		ptc_debug("rpc", "%s: refused a caller of another user", u->addr.sun_path);
		close(fd);
		return;
	}
	n = ptc_rpc_conn_take(fd, &peer);
	if (n < 0)
		return;
	if (u->as_node) /* capped at net.core.wmem_max; what it is then does too */
		(void)setsockopt(n, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
	grpc_server_add_channel_from_fd(u->core, n, u->creds);
}

/* Takes what waits, up to a number, so that we still see when to stop. 0, or why no more is there. */
static int accept_some(struct ptc_rpc_unix *u)
{
	for (int i = 0; i < AT_ONCE; i++) {
		int fd = accept4(u->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0)
			return errno;
		hand_over(u, fd);
	}
	return 0;
}

static void *accept_main(void *arg)
{
	struct ptc_rpc_unix *u = arg;
	struct pollfd p[2] = { { .fd = u->stop_fd, .events = POLLIN }, { .fd = u->fd, .events = POLLIN } };

	for (;;) {
		int e, n = poll(p, 2, -1);

		if (n < 0 && errno != EINTR)
			return NULL;
		if (n > 0 && p[0].revents)
			return NULL;
		if (n <= 0 || !p[1].revents)
			continue;
		e = accept_some(u);
		if (e != EMFILE && e != ENFILE && e != ENOMEM && e != ENOBUFS)
			continue;
		ptc_rpc_conn_exhausted(u->addr.sun_path, e);
		poll(p, 1, ACCEPT_PAUSE_MS);
	}
}

int ptc_rpc_unix_start(struct ptc_rpc_unix *list, struct ptc_error *err)
{
	for (struct ptc_rpc_unix *u = list; u; u = u->next) {
		int rc = ptc_thread_start(&u->thread, "ptc-rpc-accept", accept_main, u, err);

		if (rc)
			return rc;
		u->thread_started = true;
	}
	return 0;
}

static void remove_file(const struct ptc_rpc_unix *u)
{
	struct stat st;

	/* Somebody may have replaced it meanwhile; theirs stays. */
	if (u->bound && lstat(u->addr.sun_path, &st) == 0 && st.st_dev == u->dev && st.st_ino == u->ino)
		ptc_sys_unlink(u->addr.sun_path, "socket.remove", NULL);
}

struct ptc_rpc_unix *ptc_rpc_unix_free(struct ptc_rpc_unix *list)
{
	while (list) {
		struct ptc_rpc_unix *u = list;

		list = u->next;
		if (u->thread_started) {
			eventfd_write(u->stop_fd, 1);
			pthread_join(u->thread, NULL);
		}
		remove_file(u);
		ptc_close(&u->fd);
		ptc_close(&u->stop_fd);
		if (u->creds)
			grpc_server_credentials_release(u->creds);
		ptc_free(u);
	}
	return NULL;
}

/* ---- listening ------------------------------------------------------------------- */

static int check_directory(const char *path, struct ptc_error *err)
{
	char dir[sizeof((struct sockaddr_un *)NULL)->sun_path];
	struct stat st;
	char *slash;

	snprintf(dir, sizeof dir, "%s", path);
	slash = strrchr(dir, '/');
	slash[slash == dir ? 1 : 0] = '\0';
	if (stat(dir, &st) != 0)
		return ptc_error_errno(err, errno, "cannot stat %s", dir);
	if (st.st_uid != geteuid() || (st.st_mode & 0077) != 0)
		return ptc_error_set(err, PTC_EPERM,
				     "%s: must belong to ptcd's user with mode 0700, because it has a peer socket",
				     dir);
	return 0;
}

/* Removes a socket nobody listens on; a live one and other files are errors. */
static int clear_stale(const struct sockaddr_un *addr, struct ptc_error *err)
{
	ptc_auto_close int fd = -1;
	struct stat st;

	if (lstat(addr->sun_path, &st) != 0)
		return errno == ENOENT ? 0 : ptc_error_errno(err, errno, "cannot stat %s", addr->sun_path);
	if (!S_ISSOCK(st.st_mode))
		return ptc_error_set(err, PTC_EEXIST, "%s exists and is not a socket", addr->sun_path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return ptc_error_errno(err, errno, "socket");
	if (connect(fd, (const struct sockaddr *)addr, sizeof *addr) == 0 || errno != ECONNREFUSED)
		return ptc_error_set(err, PTC_EEXIST, "%s: another process listens there", addr->sun_path);
	return ptc_sys_unlink(addr->sun_path, "socket.stale", err);
}

static int bind_socket(struct ptc_rpc_unix *u, mode_t mode, struct ptc_error *err)
{
	const char *path = u->addr.sun_path;
	struct stat st;
	int rc = clear_stale(&u->addr, err);

	if (rc)
		return rc;
	u->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	u->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (u->fd < 0 || u->stop_fd < 0)
		return ptc_error_errno(err, errno, "socket for %s", path);
	ptc_sys_take_descriptors(u->fd, false);
	/* The file is born with the socket's mode: nobody else's until chmod. */
	if (fchmod(u->fd, 0600) != 0 || bind(u->fd, (const struct sockaddr *)&u->addr, sizeof u->addr) != 0)
		return ptc_error_errno(err, errno, "cannot bind %s", path);
	if (lstat(path, &st) == 0) {
		u->bound = true;
		u->dev = st.st_dev;
		u->ino = st.st_ino;
	}
	if (!u->bound || chmod(path, mode) != 0 || listen(u->fd, BACKLOG) != 0)
		return ptc_error_errno(err, errno, "cannot listen on %s", path);
	return 0;
}

int ptc_rpc_server_listen_unix(struct ptc_rpc_server *srv, const char *path, mode_t mode, bool as_node,
			       struct ptc_error *err)
{
	struct ptc_rpc_unix *u;
	int rc = 0;

	if (srv->started)
		return ptc_error_set(err, PTC_ESTATE, "%s: the server has started", path);
	if (path[0] != '/')
		return ptc_error_set(err, PTC_EINVAL, "socket path \"%s\" is not absolute", path);
	if (strlen(path) >= sizeof u->addr.sun_path)
		return ptc_error_set(err, PTC_ELIMIT, "socket path %s is longer than %zu bytes", path,
				     sizeof u->addr.sun_path - 1);
	if (as_node)
		rc = check_directory(path, err);
	if (rc)
		return rc;
	u = ptc_calloc(1, sizeof *u);
	if (!u)
		return ptc_nomem(err);
	*u = (struct ptc_rpc_unix){
		.core = srv->core, .addr.sun_family = AF_UNIX, .fd = -1, .stop_fd = -1, .as_node = as_node
	};
	snprintf(u->addr.sun_path, sizeof u->addr.sun_path, "%s", path);
	rc = bind_socket(u, mode, err);
	if (rc) {
		ptc_rpc_unix_free(u);
		return rc;
	}
	u->creds = grpc_insecure_server_credentials_create();
	u->next = srv->unix_listeners;
	srv->unix_listeners = u;
	return 0;
}
