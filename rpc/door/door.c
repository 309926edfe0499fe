/* SPDX-License-Identifier: Apache-2.0 */
/* The listeners of a door and its thread: accepts, waits for what callers say, lets them in. waiting.c chooses. */
#include "rpc/door/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
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
#define PACE_MS         4    /* between looks at those who wait for their turn */
#define AT_ONCE         32   /* connections taken between looks at the others */
#define WAITING_PART    32   /* of all descriptors, at most, for each kind */
#define WAITING_MS      5000 /* how long one may take to say something, and then to be let in */
#define ADDRESS_MAX     300
/* Handshakes a second. One takes the server a millisecond of a core, or two. */
#define STRANGERS_RATE  250
#define MEMBERS_RATE    500 /* from members' hosts */
#define STRANGERS       0
#define MEMBERS         1
#define KINDS           2

struct ptc_door {
	struct ptc_door_opts opts;
	int fd[SOCKETS_MAX], nfds, stop_fd;
	bool thread_started;
	pthread_t thread;
	struct ptc_door_pool pools[KINDS]; /* the thread's */
	struct pollfd fds[1 + SOCKETS_MAX + KINDS * PTC_DOOR_WAITING_MAX];
};

/* ---- accepting ---------------------------------------------------------------------- */

static void caller_of(const struct sockaddr_storage *from, struct ptc_door_caller *ret)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)from;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;

	memset(ret, 0, sizeof *ret);
	if (from->ss_family == AF_INET) {
		ptc_door_v4_mapped(&v4->sin_addr, &ret->host);
		ret->port = ntohs(v4->sin_port);
	} else if (from->ss_family == AF_INET6) {
		ret->host = v6->sin6_addr;
		ret->port = ntohs(v6->sin6_port);
	}
	ret->share = ret->host;
	ret->from_member = ptc_door_is_member_host(&ret->host);
	if (!ret->from_member && !IN6_IS_ADDR_V4MAPPED(&ret->host))
		memset(&ret->share.s6_addr[8], 0, 8);
}

/* Until so many bytes are there, poll(2) does not tell. */
static void wait_for(int fd, int bytes)
{
	setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

static void take(struct ptc_door *d, int listener, int fd, const struct ptc_door_caller *caller)
{
	struct ptc_door_waiter w = { .caller = *caller, .listener = listener, .since_ns = ptc_sys_now_ns() };
	int wants = ptc_door_hello(fd, d->opts.tls);

	if (wants < 0) {
		close(fd);
		return;
	}
	w.ready = wants == 0;
	if (wants > 1)
		wait_for(fd, wants);
	if (ptc_door_pool_add(&d->pools[caller->from_member ? MEMBERS : STRANGERS], &w, fd))
		d->opts.dropped(d->opts.arg, false);
}

static void drop_any(struct ptc_door *d)
{
	for (int k = 0; k < KINDS; k++)
		if (d->pools[k].count) {
			ptc_door_pool_drop(&d->pools[k]);
			d->opts.dropped(d->opts.arg, false);
			return;
		}
}

/* false: no descriptor, or no memory. */
static bool accept_some(struct ptc_door *d, int listener)
{
	for (int i = 0; i < AT_ONCE; i++) {
		struct sockaddr_storage from = { .ss_family = AF_UNSPEC };
		socklen_t len = sizeof from;
		struct ptc_door_caller caller;
		int fd = accept4(listener, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC), e = errno;

		if (fd < 0 && e != EMFILE && e != ENFILE && e != ENOMEM && e != ENOBUFS)
			return true; /* no more, or that connection is over already */
		if (fd < 0) {
			drop_any(d);
			d->opts.exhausted(d->opts.arg, e);
			return false;
		}
		caller_of(&from, &caller);
		take(d, listener, fd, &caller);
	}
	return true;
}

/* ---- those who wait -------------------------------------------------------------------- */

/* false: he is gone. */
static bool look_at(struct ptc_door *d, struct ptc_door_pool *p, size_t i)
{
	const int fd = p->polled[i].fd;
	int wants = p->of[i].ready ? -1 : ptc_door_hello(fd, d->opts.tls);

	p->polled[i].revents = 0;
	if (wants > 0) {
		wait_for(fd, wants);
	} else if (wants == 0) {
		p->of[i].ready = true;
		p->ready++;
		p->polled[i].events = POLLRDHUP; /* he may give up */
	} else {
		close(fd);
		ptc_door_pool_remove(p, i);
		return false;
	}
	return true;
}

static void look_at_waiting(struct ptc_door *d, struct ptc_door_pool *p)
{
	const int64_t before = ptc_sys_now_ns() - WAITING_MS * INT64_C(1000000);

	for (size_t i = p->count; i-- > 0;) {
		if (p->polled[i].revents && !look_at(d, p, i))
			continue;
		if (p->of[i].since_ns < before) {
			close(p->polled[i].fd);
			ptc_door_pool_remove(p, i);
			d->opts.dropped(d->opts.arg, true);
		}
	}
}

static void let_in(struct ptc_door *d, struct ptc_door_pool *p)
{
	const int64_t now = ptc_sys_now_ns();
	size_t i;

	while (ptc_door_pool_next(p, now, &i)) {
		const struct ptc_door_waiter w = p->of[i];
		const int fd = p->polled[i].fd;

		ptc_door_pool_remove(p, i);
		wait_for(fd, 1);
		d->opts.enter(d->opts.arg, w.listener, fd, &w.caller);
	}
}

/* No more than needed: poll(2) takes no more descriptors than the process may have. */
static nfds_t polled(const struct ptc_door *d)
{
	const struct ptc_door_pool *last = &d->pools[d->pools[MEMBERS].count ? MEMBERS : STRANGERS];

	return (nfds_t)(last->polled - d->fds) + last->count;
}

static void *door_main(void *arg)
{
	struct ptc_door *d = arg;

	for (;;) {
		const bool waiting = d->pools[STRANGERS].ready || d->pools[MEMBERS].ready;
		int n = poll(d->fds, polled(d), waiting ? PACE_MS : LOOK_MS);
		bool room = n >= 0 || errno == EINTR;

		if (n > 0 && d->fds[0].revents)
			return NULL;
		for (int k = 0; n >= 0 && k < KINDS; k++)
			look_at_waiting(d, &d->pools[k]);
		for (int i = 1; n > 0 && i <= d->nfds; i++)
			if (d->fds[i].revents)
				room = accept_some(d, d->fds[i].fd) && room;
		for (int k = 0; k < KINDS; k++)
			let_in(d, &d->pools[k]);
		d->opts.look(d->opts.arg);
		if (!room)
			poll(d->fds, 1, ACCEPT_PAUSE_MS);
	}
}

int ptc_door_start(struct ptc_door *d, struct ptc_error *err)
{
	static const int rates[KINDS] = { STRANGERS_RATE, MEMBERS_RATE };
	struct rlimit lim = { .rlim_cur = 1024 };
	size_t max;
	int rc;

	getrlimit(RLIMIT_NOFILE, &lim);
	max = (size_t)PTC_MIN((rlim_t)PTC_DOOR_WAITING_MAX, PTC_MAX(lim.rlim_cur / WAITING_PART, (rlim_t)1));
	d->fds[0] = (struct pollfd){ .fd = d->stop_fd, .events = POLLIN };
	for (int i = 0; i < d->nfds; i++)
		d->fds[i + 1] = (struct pollfd){ .fd = d->fd[i], .events = POLLIN };
	for (size_t k = 0; k < KINDS; k++)
		ptc_door_pool_init(&d->pools[k], d->fds + 1 + d->nfds + k * max, max, rates[k]);
	rc = ptc_thread_start(&d->thread, d->opts.thread, door_main, d, err);
	d->thread_started = rc == 0;
	return rc;
}

struct ptc_door *ptc_door_free(struct ptc_door *d)
{
	if (!d)
		return NULL;
	if (d->thread_started) {
		eventfd_write(d->stop_fd, 1);
		pthread_join(d->thread, NULL);
	}
	for (int k = 0; k < KINDS; k++)
		ptc_door_pool_free(&d->pools[k]);
	for (int i = 0; i < d->nfds; i++)
		close(d->fd[i]);
	ptc_close(&d->stop_fd);
	ptc_free(d);
	return NULL;
}

/* ---- listening ---------------------------------------------------------------------- */

static uint16_t *port_of(struct sockaddr_storage *a)
{
	return a->ss_family == AF_INET ? &((struct sockaddr_in *)a)->sin_port : &((struct sockaddr_in6 *)a)->sin6_port;
}

/* What the accepted sockets inherit: small messages go at once, and what a peer does not acknowledge ends the
 * connection when its keepalive would. */
static int bind_socket(struct ptc_door *d, struct sockaddr_storage *a, socklen_t len, unsigned keepalive_ms)
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
	d->fd[d->nfds++] = fd;
	return 0;
}

/* Every address that the host has; one that can be bound is enough, but all get the same port. */
static int bind_all(struct ptc_door *d, const struct addrinfo *list, unsigned keepalive_ms, int *ret_port,
		    struct ptc_error *err)
{
	int e = EADDRNOTAVAIL;
	uint16_t port = 0;

	for (const struct addrinfo *ai = list; ai && d->nfds < SOCKETS_MAX; ai = ai->ai_next) {
		struct sockaddr_storage a = { .ss_family = AF_UNSPEC };
		int failed;

		memcpy(&a, ai->ai_addr, ai->ai_addrlen);
		if (port)
			*port_of(&a) = port;
		failed = bind_socket(d, &a, ai->ai_addrlen, keepalive_ms);
		if (!failed)
			port = *port_of(&a);
		else
			e = failed;
	}
	if (!d->nfds)
		return ptc_error_errno(err, e, "cannot listen on %s", d->opts.address);
	*ret_port = ntohs(port);
	return 0;
}

/* "0.0.0.0" is every address of either family where there is IPv6, as it was with the core's listener. */
static int resolve(const char *address, bool either_family, struct addrinfo **ret_list, struct ptc_error *err)
{
	const struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
					.ai_family = AF_UNSPEC,
					.ai_socktype = SOCK_STREAM };
	char host[ADDRESS_MAX], *colon;
	bool brackets = address[0] == '[';
	int e;

	snprintf(host, sizeof host, "%s", address); /* the caller has checked it */
	colon = strrchr(host, ':');
	*colon = '\0';
	if (brackets)
		colon[-1] = '\0';
	e = getaddrinfo(either_family ? "::" : host + brackets, colon + 1, &hints, ret_list);
	return e ? ptc_error_set(err, PTC_EIO, "cannot listen on %s: %s", address, gai_strerror(e)) : 0;
}

static int bind_address(struct ptc_door *d, bool either_family, unsigned keepalive_ms, int *ret_port,
			struct ptc_error *err)
{
	struct addrinfo *list;
	int rc = resolve(d->opts.address, either_family, &list, err);

	if (rc)
		return rc;
	rc = bind_all(d, list, keepalive_ms, ret_port, err);
	freeaddrinfo(list);
	return rc;
}

static int door_bind(struct ptc_door *d, unsigned keepalive_ms, int *ret_port, struct ptc_error *err)
{
	bool wildcard = strncmp(d->opts.address, "0.0.0.0:", 8) == 0;

	d->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (d->stop_fd < 0)
		return ptc_error_errno(err, errno, "cannot listen on %s", d->opts.address);
	if (wildcard && bind_address(d, true, keepalive_ms, ret_port, NULL) == 0)
		return 0;
	return bind_address(d, false, keepalive_ms, ret_port, err);
}

int ptc_door_open(const struct ptc_door_opts *opts, struct ptc_door **ret_door, int *ret_port, struct ptc_error *err)
{
	struct ptc_door *d = ptc_calloc(1, sizeof *d);
	int rc;

	if (!d)
		return ptc_nomem(err);
	d->opts = *opts;
	d->stop_fd = -1;
	rc = door_bind(d, opts->keepalive_ms, ret_port, err);
	if (rc)
		ptc_door_free(d);
	else
		*ret_door = d;
	return rc;
}
