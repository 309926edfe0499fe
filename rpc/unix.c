/* SPDX-License-Identifier: Apache-2.0 */
/* Unix listeners with an identity. We accept ourselves, read SO_PEERCRED and
 * hand the connection to the core, which then names it "fd:N" on each call.
 *
 * The descriptor's number is all a call tells us, and it is free for reuse as
 * soon as the core closes it, while calls of the old connection may still
 * wait. If another user's connection got the number, such a call would run
 * with that user's identity. So a number belongs to one identity for the life
 * of the process: accepted descriptors are moved (F_DUPFD) into a range of
 * their own, to a number nobody owns or that this identity owns already.
 *
 * Happy path: accept, identify, move, hand over.
 * Failure modes: path too long, no socket there, or live (EINVAL, EEXIST);
 * for as_node a directory others can enter (PTC_EPERM); a caller who may not
 * connect, or with too many connections, is closed at once. */
#include "rpc/internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define NUMBERS_MAX      4096 /* connections at a time, all users together */
#define NUMBERS_PER_USER 256  /* so that one user cannot take them all */
#define BACKLOG          128
#define ACCEPT_PAUSE_MS  100       /* after running out of descriptors */
#define PEER_SEND_BUFFER (1 << 20) /* bulk; the kernel's 208 KiB wake the other end ten times for a message of 2 MiB */

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

static struct {
	pthread_mutex_t lock;
	int base, count; /* count 0: not set up yet */
	struct {
		bool used;
		struct ptc_rpc_identity id;
	} owner[NUMBERS_MAX];
} numbers = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void numbers_setup_locked(void)
{
	struct rlimit lim = { .rlim_cur = 1024 };

	if (numbers.count > 0)
		return;
	getrlimit(RLIMIT_NOFILE, &lim);
	lim.rlim_cur = PTC_MIN(lim.rlim_cur, (rlim_t)1 << 20);
	numbers.base = (int)(lim.rlim_cur / 2);
	numbers.count = PTC_MIN(NUMBERS_MAX, (int)lim.rlim_cur - numbers.base);
}

static bool same(const struct ptc_rpc_identity *a, const struct ptc_rpc_identity *b)
{
	return a->role == b->role && a->uid == b->uid && a->gid == b->gid;
}

static int owned_locked(uid_t uid)
{
	int n = 0;

	for (int i = 0; i < numbers.count; i++)
		n += numbers.owner[i].used && numbers.owner[i].id.uid == uid;
	return n;
}

static bool claim_locked(int i, const struct ptc_rpc_identity *id)
{
	if (numbers.owner[i].used)
		return same(&numbers.owner[i].id, id);
	if (owned_locked(id->uid) >= NUMBERS_PER_USER)
		return false;
	numbers.owner[i].used = true;
	numbers.owner[i].id = *id;
	return true;
}

/* A duplicate of fd under a number of this identity; -1: none left. */
static int number_move(int fd, const struct ptc_rpc_identity *id)
{
	int got = -1;

	pthread_mutex_lock(&numbers.lock);
	numbers_setup_locked();
	for (int min = numbers.base; got < 0 && min < numbers.base + numbers.count;) {
		int n = fcntl(fd, F_DUPFD_CLOEXEC, min);

		if (n < 0)
			break;
		if (n < numbers.base + numbers.count && claim_locked(n - numbers.base, id))
			got = n;
		else
			close(n);
		min = n + 1;
	}
	pthread_mutex_unlock(&numbers.lock);
	return got;
}

bool ptc_rpc_unix_identity(const char *peer, struct ptc_rpc_identity *ret_id)
{
	bool found = false;
	char *end;
	long n;

	if (strncmp(peer, "fd:", 3) != 0)
		return false;
	n = strtol(peer + 3, &end, 10);
	pthread_mutex_lock(&numbers.lock);
	if (end != peer + 3 && *end == '\0' && n >= numbers.base && n < numbers.base + numbers.count &&
	    numbers.owner[n - numbers.base].used) {
		*ret_id = numbers.owner[n - numbers.base].id;
		found = true;
	}
	pthread_mutex_unlock(&numbers.lock);
	return found;
}

/* ---- accepting -------------------------------------------------------------------- */

static bool identify(const struct ptc_rpc_unix *u, int fd, struct ptc_rpc_identity *ret_id)
{
	struct ucred cred;
	socklen_t len = sizeof cred;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0)
		return false;
	*ret_id = (struct ptc_rpc_identity){ .role = PTC_ROLE_USER, .uid = cred.uid, .gid = cred.gid };
	if (u->as_node)
		*ret_id = (struct ptc_rpc_identity){ .role = PTC_ROLE_NODE };
	return !u->as_node || cred.uid == 0 || cred.uid == geteuid();
}

static void hand_over(struct ptc_rpc_unix *u, int fd)
{
	const int send_buffer = PEER_SEND_BUFFER;
	struct ptc_rpc_identity id;
	int n = -1;

	if (identify(u, fd, &id))
		n = number_move(fd, &id);
	else
		ptc_debug("rpc", "%s: refused a caller of another user", u->addr.sun_path);
	close(fd);
	if (n >= 0 && u->as_node) /* capped at net.core.wmem_max; what it is then does too */
		(void)setsockopt(n, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
	if (n >= 0)
		grpc_server_add_channel_from_fd(u->core, n, u->creds);
}

static void *accept_main(void *arg)
{
	struct ptc_rpc_unix *u = arg;
	struct pollfd p[2] = { { .fd = u->stop_fd, .events = POLLIN }, { .fd = u->fd, .events = POLLIN } };

	for (;;) {
		int fd, n = poll(p, 2, -1);

		if (n < 0 && errno != EINTR)
			return NULL;
		if (n > 0 && p[0].revents)
			return NULL;
		if (n <= 0 || !p[1].revents)
			continue;
		fd = accept4(u->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0)
			hand_over(u, fd);
		else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
			poll(p, 1, ACCEPT_PAUSE_MS);
	}
}

int ptc_rpc_unix_start(struct ptc_rpc_unix *list, struct ptc_error *err)
{
	for (struct ptc_rpc_unix *u = list; u; u = u->next) {
		int rc = ptc_rpc_thread_start(&u->thread, "ptc-rpc-accept", accept_main, u, err);

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
		if (u->fd >= 0)
			close(u->fd);
		if (u->stop_fd >= 0)
			close(u->stop_fd);
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
		return ptc_error_set(err, PTC_EPERM, "%s: must be ours and mode 0700 to hold a peer socket", dir);
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
		return ptc_error_set(err, PTC_ENOMEM, "out of memory for a listener");
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
