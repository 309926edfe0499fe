/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the machine takes the connection or refuses it. Failure modes: it says nothing, or the network says that
 * it cannot be reached: nobody is there. */
#include "daemon/cluster/loss/machines.h"

#include "base/check.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MS INT64_C(1000000)

/* ---- addresses ---- */

static bool same_host(const struct sockaddr_storage *a, const struct sockaddr *b)
{
	if (a->ss_family != b->sa_family)
		return false;
	if (b->sa_family == AF_INET)
		return memcmp(&((const struct sockaddr_in *)(const void *)a)->sin_addr,
			      &((const struct sockaddr_in *)(const void *)b)->sin_addr, sizeof(struct in_addr)) == 0;
	return b->sa_family == AF_INET6 &&
	       memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
		      &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

static socklen_t length(const union ptc_machine_address *a)
{
	return a->any.sa_family == AF_INET ? sizeof a->v4 : sizeof a->v6;
}

static bool is_own(const union ptc_machine_address *a)
{
	int fd = socket(a->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_storage from = { 0 };
	socklen_t len = sizeof from;
	bool own;

	if (fd < 0)
		return false;
	own = connect(fd, &a->any, length(a)) == 0 && getsockname(fd, (struct sockaddr *)&from, &len) == 0 &&
	      same_host(&from, &a->any);
	close(fd);
	return own;
}

bool ptc_machine_is_own(const struct ptc_machine_at *at)
{
	for (unsigned k = 0; k < at->n; k++)
		if (is_own(&at->v[k]))
			return true;
	return false;
}

static void take(struct ptc_machine_at *at, const struct addrinfo *a)
{
	if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
		return;
	if (at->n == PTC_MACHINE_ADDRESSES)
		at->more = true;
	else
		memcpy(&at->v[at->n++], a->ai_addr, a->ai_family == AF_INET ? sizeof at->v->v4 : sizeof at->v->v6);
}

static bool look_up(const char *address, int flags, struct ptc_machine_at *ret)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags };
	const char *colon = strrchr(address, ':');
	bool bracket = address[0] == '[';
	struct addrinfo *list = NULL;
	size_t len = colon ? (size_t)(colon - address) : 0;
	char host[PTC_MACHINE_NAME_BYTES];

	*ret = (struct ptc_machine_at){ 0 };
	if (len >= sizeof host || len <= 2u * bracket)
		return false;
	memcpy(host, address + bracket, len - 2u * bracket);
	host[len - 2u * bracket] = '\0';
	if (getaddrinfo(host, colon + 1, &hints, &list) != 0)
		return false;
	for (const struct addrinfo *a = list; a; a = a->ai_next)
		take(ret, a);
	freeaddrinfo(list);
	return ret->n > 0;
}

bool ptc_machine_look_up(const char *address, struct ptc_machine_at *ret)
{
	return look_up(address, 0, ret);
}

bool ptc_machine_digits(const char *address, struct ptc_machine_at *ret)
{
	return look_up(address, AI_NUMERICHOST, ret);
}

/* ---- a connection ---- */

int ptc_machine_connect(const union ptc_machine_address *a, enum ptc_machine *ret)
{
	int fd = socket(a->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		*ret = PTC_MACHINE_UNKNOWN;
	if (fd >= 0 && connect(fd, &a->any, length(a)) != 0 && errno != EINPROGRESS) {
		if (errno == ECONNREFUSED)
			*ret = PTC_MACHINE_REFUSES;
		close(fd);
		fd = -1;
	}
	return fd;
}

enum ptc_machine ptc_machine_answered(int fd)
{
	socklen_t len = sizeof(int);
	int e = EIO;

	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len) != 0)
		return PTC_MACHINE_SILENT;
	return e == 0 ? PTC_MACHINE_TAKES : e == ECONNREFUSED ? PTC_MACHINE_REFUSES : PTC_MACHINE_SILENT;
}

/* ---- several machines at once ---- */

/* Of the machine, whether its answer can be another one yet. */
static bool is_open(const struct ptc_machine_asked *v, const struct pollfd *fds)
{
	bool pending = false;

	for (unsigned k = 0; k < PTC_MACHINE_ADDRESSES; k++)
		pending |= fds[k].fd >= 0;
	return v->answer == PTC_MACHINE_SILENT || (v->answer == PTC_MACHINE_REFUSES && v->at.n > 1 && pending);
}

static bool any_open(const struct ptc_machine_asked *v, size_t n, const struct pollfd *fds)
{
	bool any = false;

	for (size_t i = 0; i < n; i++)
		any |= is_open(&v[i], fds + PTC_MACHINE_ADDRESSES * i);
	return any;
}

static void take_ready(struct ptc_machine_asked *v, size_t n, struct pollfd *fds)
{
	for (size_t k = 0; k < PTC_MACHINE_ADDRESSES * n; k++) {
		struct ptc_machine_asked *m = &v[k / PTC_MACHINE_ADDRESSES];
		enum ptc_machine answer;

		if (fds[k].fd < 0 || !fds[k].revents)
			continue;
		answer = ptc_machine_answered(fds[k].fd);
		m->answer = PTC_MAX(m->answer, answer);
		close(fds[k].fd);
		fds[k].fd = -1;
	}
}

/* Looks at least once, and for that long: this thread may have stood still itself, and who has answered is there then.
 */
static void wait_ns(struct ptc_machine_asked *v, size_t n, struct pollfd *fds, int64_t ns)
{
	int64_t now = ptc_sys_now_ns(), until_ns = now + ns;

	if (!any_open(v, n, fds))
		return;
	do {
		int ms = (int)(PTC_MAX(until_ns - now + MS - 1, 0) / MS);

		if (poll(fds, (nfds_t)(PTC_MACHINE_ADDRESSES * n), ms) > 0)
			take_ready(v, n, fds);
		now = ptc_sys_now_ns();
	} while (any_open(v, n, fds) && now < until_ns);
}

/* The connections of that try; each address has had one after the last try. */
static void begin(struct ptc_machine_asked *v, struct pollfd *fds, unsigned t)
{
	unsigned n = PTC_MAX(v->at.n, PTC_MACHINE_TRIES);

	for (unsigned k = t; k < n; k += PTC_MACHINE_TRIES)
		if (v->answer == PTC_MACHINE_SILENT || (v->answer == PTC_MACHINE_REFUSES && k < v->at.n))
			fds[k].fd = ptc_machine_connect(&v->at.v[k % v->at.n], &v->answer);
}

void ptc_machines_ask(struct ptc_machine_asked *v, size_t n, struct pollfd *fds)
{
	for (size_t i = 0; i < n; i++)
		v[i].answer = v[i].at.n ? PTC_MACHINE_SILENT : PTC_MACHINE_UNKNOWN;
	for (size_t k = 0; k < PTC_MACHINE_ADDRESSES * n; k++)
		fds[k] = (struct pollfd){ -1, POLLOUT, 0 };
	for (unsigned t = 0; t < PTC_MACHINE_TRIES; t++) {
		for (size_t i = 0; i < n; i++)
			begin(&v[i], fds + PTC_MACHINE_ADDRESSES * i, t);
		wait_ns(v, n, fds, t + 1 < PTC_MACHINE_TRIES ? PTC_MACHINE_GAP_NS : PTC_MACHINE_LAST_NS);
	}
	for (size_t k = 0; k < PTC_MACHINE_ADDRESSES * n; k++)
		if (fds[k].fd >= 0)
			close(fds[k].fd);
	for (size_t i = 0; i < n; i++)
		if (v[i].at.more && v[i].answer != PTC_MACHINE_TAKES)
			v[i].answer = PTC_MACHINE_UNKNOWN;
}
