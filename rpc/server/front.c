/* SPDX-License-Identifier: Apache-2.0 */
/* TCP listeners. We accept, count (conns.c) and hand the connection to the core, which makes the TLS handshake.
 *
 * The core's own listener has no bound on connections, and the first accept(2) that fails for want of a descriptor ends
 * it for good (1.51, tcp_server_posix.cc, on_read). But the core takes connections from outside: a server whose port is
 * named "external:KEY" gets no socket; the channel argument of that name is a place where the core leaves a handler, a
 * C++ object of one method that takes a descriptor (what grpc++'s ExternalConnectionAcceptor uses). We call it through
 * its table of virtual functions, which the Itanium C++ ABI lays down for every compiler here: two destructors, then
 * Handle. Another version of the core may have another class; docs/decisions/0010-bounded-calls.md says what to look
 * at, and a server without a handler refuses to listen.
 *
 * Only a connection that has said something costs the core anything. Until then it waits here, a descriptor and no
 * more, in a pool of our own. Members speak at once. Whoever connects in a loop and says nothing pushes out his own
 * kind: of a few that are drawn at random from a full pool, one of the address that comes up most goes.
 *
 * Happy path: listen binds, start accepts on a thread of its own until the listener is freed.
 *
 * Failure modes: an address that cannot be bound or a certificate that the core does not take (PTC_EIO); no descriptor
 * at accept: the oldest stranger is shut down, callers wait in the kernel's queue, and the log says so. */
#include "rpc/server/internal.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOCKETS_MAX     4    /* "localhost" is an address of each family */
#define BACKLOG         1024 /* a burst of strangers must not keep members out of the queue */
#define ACCEPT_PAUSE_MS 100  /* after running out of descriptors */
#define LOOK_MS         1000 /* between looks for strangers out of time */
#define AT_ONCE         32   /* connections taken between looks at the others */
#define SILENT_MAX      256  /* that have said nothing yet */
#define SILENT_PART     16   /* of all descriptors, at most */
#define SILENT_MS       5000 /* how long one may say nothing */
#define DRAWN           8    /* at random, of a full pool */
#define KEY             "external:ptc0"

/* grpc_core::TcpServerFdHandler. */
struct ptc_rpc_fd_handler {
	const struct fd_handler_table {
		void (*destroy)(struct ptc_rpc_fd_handler *self);
		void (*destroy_and_free)(struct ptc_rpc_fd_handler *self);
		void (*handle)(struct ptc_rpc_fd_handler *self, int listener_fd, int fd, grpc_byte_buffer *pending);
	} * table;
};

struct silent {
	struct ptc_rpc_peer peer;
	int listener;
	int64_t since_ns;
};

struct ptc_rpc_front {
	struct ptc_rpc_front *next;
	struct ptc_rpc_fd_handler *handler; /* the core's, as long as its server is */
	char address[PTC_RPC_ADDRESS_MAX];
	int fd[SOCKETS_MAX], nfds, stop_fd;
	bool thread_started;
	pthread_t thread;
	/* the thread's; polled[i] is the descriptor of silent[i] */
	struct silent silent[SILENT_MAX];
	struct pollfd fds[1 + SOCKETS_MAX + SILENT_MAX], *polled;
	size_t nsilent, max_silent;
	unsigned dice;
};

/* ---- the core's side -------------------------------------------------------------- */

static void *place_copy(void *p)
{
	return p;
}

static void place_destroy(void *p)
{
	(void)p;
}

static int place_compare(void *a, void *b)
{
	return a < b ? -1 : a > b;
}

void ptc_rpc_args_fronts(struct ptc_rpc_args *a, struct ptc_rpc_fd_handler *handlers[PTC_RPC_FRONTS_MAX])
{
	static const grpc_arg_pointer_vtable vtable = { place_copy, place_destroy, place_compare };
	static char keys[PTC_RPC_FRONTS_MAX][sizeof KEY] = { "external:ptc0", "external:ptc1", "external:ptc2",
							     "external:ptc3" };

	for (int i = 0; i < PTC_RPC_FRONTS_MAX; i++) {
		ptc_require(a->count < PTC_RPC_MAX_ARGS);
		a->list[a->count++] = (grpc_arg){ .type = GRPC_ARG_POINTER,
						  .key = keys[i],
						  .value.pointer = { .p = &handlers[i], .vtable = &vtable } };
	}
}

static int core_listen(struct ptc_rpc_server *srv, struct ptc_rpc_front *f, grpc_server_credentials *creds,
		       struct ptc_error *err)
{
	char key[sizeof KEY] = KEY;

	key[sizeof key - 2] = (char)('0' + srv->nfronts);
	ptc_rpc_core_log_clear();
	grpc_server_add_http2_port(srv->core, key, creds);
	f->handler = srv->fd_handlers[srv->nfronts];
	if (f->handler && !*ptc_rpc_core_log())
		return 0;
	return ptc_error_set(err, PTC_EIO, "cannot listen on %s: %s", f->address,
			     *ptc_rpc_core_log() ? ptc_rpc_core_log() : "certificate not usable");
}

/* ---- accepting ---------------------------------------------------------------------- */

static void peer_of(const struct sockaddr_storage *from, struct ptc_rpc_peer *ret)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)from;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;

	*ret = (struct ptc_rpc_peer){ .kind = PTC_RPC_PEER_TCP };
	if (from->ss_family == AF_INET) {
		ptc_rpc_v4_mapped(&v4->sin_addr, &ret->host);
		ret->port = ntohs(v4->sin_port);
	} else if (from->ss_family == AF_INET6) {
		ret->host = v6->sin6_addr;
		ret->port = ntohs(v6->sin6_port);
	}
}

/* ---- connections that have said nothing yet ----------------------------------------- */

/* 1: it has said something; 0: not yet; -1: it is over. */
static int has_spoken(int fd)
{
	char byte;
	ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	return n > 0 ? 1 : -1;
}

static void to_core(struct ptc_rpc_front *f, int listener, int fd, const struct ptc_rpc_peer *peer)
{
	fd = ptc_rpc_conn_take(fd, peer);
	if (fd >= 0)
		f->handler->table->handle(f->handler, listener, fd, NULL);
}

/* The last one takes its place. */
static void forget(struct ptc_rpc_front *f, size_t i)
{
	f->nsilent--;
	f->silent[i] = f->silent[f->nsilent];
	f->polled[i] = f->polled[f->nsilent];
}

static void drop(struct ptc_rpc_front *f, size_t i, bool out_of_time)
{
	close(f->polled[i].fd);
	forget(f, i);
	ptc_rpc_conn_dropped(out_of_time);
}

static size_t draw(struct ptc_rpc_front *f)
{
	f->dice = f->dice * 1664525u + 1013904223u; /* seeded at start; the low bits are the poor ones */
	return (f->dice >> 12) % f->nsilent;
}

/* Of some at random, one of the address that is there most often. */
static void drop_one(struct ptc_rpc_front *f)
{
	size_t drawn[DRAWN], victim = 0;
	int most = 0;

	if (!f->nsilent)
		return;
	for (size_t i = 0; i < DRAWN; i++)
		drawn[i] = draw(f);
	for (size_t i = 0; i < DRAWN; i++) {
		int same = 0;

		for (size_t k = 0; k < DRAWN; k++)
			same += memcmp(&f->silent[drawn[i]].peer.host, &f->silent[drawn[k]].peer.host,
				       sizeof f->silent->peer.host) == 0;
		if (same > most) {
			most = same;
			victim = drawn[i];
		}
	}
	drop(f, victim, false);
}

static void listen_to(struct ptc_rpc_front *f, int listener, int fd, const struct ptc_rpc_peer *peer)
{
	int spoken = has_spoken(fd);

	if (spoken > 0) {
		to_core(f, listener, fd, peer);
		return;
	}
	if (spoken < 0) {
		close(fd);
		return;
	}
	if (f->nsilent >= f->max_silent)
		drop_one(f);
	f->polled[f->nsilent] = (struct pollfd){ .fd = fd, .events = POLLIN };
	f->silent[f->nsilent++] = (struct silent){ .peer = *peer, .listener = listener, .since_ns = ptc_sys_now_ns() };
}

/* Those that spoke go to the core, those that ended or took too long go. */
static void look_at_silent(struct ptc_rpc_front *f)
{
	const int64_t before = ptc_sys_now_ns() - SILENT_MS * INT64_C(1000000);

	for (size_t i = f->nsilent; i-- > 0;) {
		const struct silent s = f->silent[i];
		const int fd = f->polled[i].fd, spoken = f->polled[i].revents ? has_spoken(fd) : 0;

		f->polled[i].revents = 0;
		if (spoken > 0) {
			forget(f, i);
			to_core(f, s.listener, fd, &s.peer);
		} else if (spoken < 0) {
			close(fd);
			forget(f, i);
		} else if (s.since_ns < before) {
			drop(f, i, true);
		}
	}
}

static void silent_start(struct ptc_rpc_front *f)
{
	struct rlimit lim = { .rlim_cur = 1024 };

	getrlimit(RLIMIT_NOFILE, &lim);
	f->max_silent = (size_t)PTC_MIN((rlim_t)SILENT_MAX, PTC_MAX(lim.rlim_cur / SILENT_PART, (rlim_t)1));
	(void)ptc_sys_random(&f->dice, sizeof f->dice, NULL);
	f->fds[0] = (struct pollfd){ .fd = f->stop_fd, .events = POLLIN };
	for (int i = 0; i < f->nfds; i++)
		f->fds[i + 1] = (struct pollfd){ .fd = f->fd[i], .events = POLLIN };
	f->polled = f->fds + 1 + f->nfds;
}

/* false: no descriptor, or no memory. */
static bool accept_some(struct ptc_rpc_front *f, int listener)
{
	for (int i = 0; i < AT_ONCE; i++) {
		struct sockaddr_storage from = { .ss_family = AF_UNSPEC };
		socklen_t len = sizeof from;
		struct ptc_rpc_peer peer;
		int fd = accept4(listener, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC), e = errno;

		if (fd < 0 && e != EMFILE && e != ENFILE && e != ENOMEM && e != ENOBUFS)
			return true; /* no more, or that connection is over already */
		if (fd < 0) {
			drop_one(f);
			ptc_rpc_conn_exhausted(f->address, e);
			return false;
		}
		peer_of(&from, &peer);
		listen_to(f, listener, fd, &peer);
	}
	return true;
}

static void *accept_main(void *arg)
{
	struct ptc_rpc_front *f = arg;

	for (;;) {
		int n = poll(f->fds, (nfds_t)f->nfds + 1 + f->nsilent, LOOK_MS);
		bool room = true;

		if (n < 0 && errno != EINTR)
			return NULL;
		if (n > 0 && f->fds[0].revents)
			return NULL;
		if (n >= 0)
			look_at_silent(f);
		for (int i = 1; n > 0 && i <= f->nfds; i++)
			if (f->fds[i].revents)
				room = accept_some(f, f->fds[i].fd) && room;
		ptc_rpc_conn_expire();
		if (!room)
			poll(f->fds, 1, ACCEPT_PAUSE_MS);
	}
}

int ptc_rpc_front_start(struct ptc_rpc_front *list, struct ptc_error *err)
{
	for (struct ptc_rpc_front *f = list; f; f = f->next) {
		int rc;

		silent_start(f);
		rc = ptc_thread_start(&f->thread, "ptc-rpc-front", accept_main, f, err);

		if (rc)
			return rc;
		f->thread_started = true;
	}
	return 0;
}

struct ptc_rpc_front *ptc_rpc_front_free(struct ptc_rpc_front *list)
{
	while (list) {
		struct ptc_rpc_front *f = list;

		list = f->next;
		if (f->thread_started) {
			eventfd_write(f->stop_fd, 1);
			pthread_join(f->thread, NULL);
		}
		for (size_t i = 0; i < f->nsilent; i++)
			close(f->polled[i].fd);
		for (int i = 0; i < f->nfds; i++)
			close(f->fd[i]);
		ptc_close(&f->stop_fd);
		ptc_free(f);
	}
	return NULL;
}

/* ---- listening ---------------------------------------------------------------------- */

static uint16_t *port_of(struct sockaddr_storage *a)
{
	return a->ss_family == AF_INET ? &((struct sockaddr_in *)a)->sin_port : &((struct sockaddr_in6 *)a)->sin6_port;
}

/* What the accepted sockets inherit: small messages go at once, and what a peer does not acknowledge ends the
 * connection when its keepalive would. */
static int bind_socket(struct ptc_rpc_front *f, struct sockaddr_storage *a, socklen_t len, unsigned keepalive_ms)
{
	const int on = 1, off = 0;
	int fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return errno;
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &keepalive_ms, sizeof keepalive_ms);
	if (a->ss_family == AF_INET6) /* "[::]" is every address, of IPv4 too */
		(void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
	if (bind(fd, (struct sockaddr *)a, len) != 0 || listen(fd, BACKLOG) != 0 ||
	    getsockname(fd, (struct sockaddr *)a, &len) != 0) {
		int e = errno;

		close(fd);
		return e;
	}
	f->fd[f->nfds++] = fd;
	return 0;
}

/* Every address that the host has; one that can be bound is enough, but all get the same port. */
static int bind_all(struct ptc_rpc_front *f, const struct addrinfo *list, unsigned keepalive_ms, int *ret_port,
		    struct ptc_error *err)
{
	int e = EADDRNOTAVAIL;
	uint16_t port = 0;

	for (const struct addrinfo *ai = list; ai && f->nfds < SOCKETS_MAX; ai = ai->ai_next) {
		struct sockaddr_storage a = { .ss_family = AF_UNSPEC };
		int failed;

		memcpy(&a, ai->ai_addr, ai->ai_addrlen);
		if (port)
			*port_of(&a) = port;
		failed = bind_socket(f, &a, ai->ai_addrlen, keepalive_ms);
		if (!failed)
			port = *port_of(&a);
		else
			e = failed;
	}
	if (!f->nfds)
		return ptc_error_errno(err, e, "cannot listen on %s", f->address);
	*ret_port = ntohs(port);
	return 0;
}

/* "0.0.0.0" is every address of either family where there is IPv6, as it was with the core's listener. */
static int resolve(const char *address, bool either_family, struct addrinfo **ret_list, struct ptc_error *err)
{
	const struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
					.ai_family = AF_UNSPEC,
					.ai_socktype = SOCK_STREAM };
	char host[PTC_RPC_ADDRESS_MAX], *colon;
	bool brackets = address[0] == '[';
	int e;

	snprintf(host, sizeof host, "%s", address); /* ptc_rpc_address_check has seen it */
	colon = strrchr(host, ':');
	*colon = '\0';
	if (brackets)
		colon[-1] = '\0';
	e = getaddrinfo(either_family ? "::" : host + brackets, colon + 1, &hints, ret_list);
	return e ? ptc_error_set(err, PTC_EIO, "cannot listen on %s: %s", address, gai_strerror(e)) : 0;
}

static int bind_address(struct ptc_rpc_front *f, bool either_family, unsigned keepalive_ms, int *ret_port,
			struct ptc_error *err)
{
	struct addrinfo *list;
	int rc = resolve(f->address, either_family, &list, err);

	if (rc)
		return rc;
	rc = bind_all(f, list, keepalive_ms, ret_port, err);
	freeaddrinfo(list);
	return rc;
}

static int front_open(struct ptc_rpc_front *f, unsigned keepalive_ms, int *ret_port, struct ptc_error *err)
{
	bool wildcard = strncmp(f->address, "0.0.0.0:", 8) == 0;

	f->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (f->stop_fd < 0)
		return ptc_error_errno(err, errno, "cannot listen on %s", f->address);
	if (wildcard && bind_address(f, true, keepalive_ms, ret_port, NULL) == 0)
		return 0;
	return bind_address(f, false, keepalive_ms, ret_port, err);
}

int ptc_rpc_front_listen(struct ptc_rpc_server *srv, const char *address, grpc_server_credentials *creds, int *ret_port,
			 struct ptc_error *err)
{
	struct ptc_rpc_front *f;
	int port, rc;

	if (srv->started || srv->nfronts == PTC_RPC_FRONTS_MAX)
		return ptc_error_set(err, PTC_EIO, "cannot listen on %s: %s", address,
				     srv->started ? "the server has started" : "it has too many listeners");
	f = ptc_calloc(1, sizeof *f);
	if (!f)
		return ptc_nomem(err);
	f->stop_fd = -1;
	snprintf(f->address, sizeof f->address, "%s", address);
	rc = front_open(f, (unsigned)srv->keepalive_ms, &port, err);
	if (rc == 0)
		rc = core_listen(srv, f, creds, err);
	if (rc) {
		ptc_rpc_front_free(f);
		return rc;
	}
	f->next = srv->fronts;
	srv->fronts = f;
	srv->nfronts++;
	if (ret_port)
		*ret_port = port;
	return 0;
}
