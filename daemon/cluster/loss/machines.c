/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the machine takes the connection or refuses it. Failure modes: it says nothing, or the network says that
 * it cannot be reached: nobody is there. */
#include "daemon/cluster/loss/machines.h"

#include "base/check.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MS INT64_C(1000000)

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

static bool is_own(const struct addrinfo *a)
{
	int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_storage from = { 0 };
	socklen_t len = sizeof from;
	bool own;

	if (fd < 0)
		return false;
	own = connect(fd, a->ai_addr, a->ai_addrlen) == 0 && getsockname(fd, (struct sockaddr *)&from, &len) == 0 &&
	      same_host(&from, a->ai_addr);
	close(fd);
	return own;
}

bool ptc_machine_is_own(const struct addrinfo *a)
{
	while (a && !is_own(a))
		a = a->ai_next;
	return a != NULL;
}

struct addrinfo *ptc_machine_look_up(const char *address)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
	const char *colon = strrchr(address, ':');
	bool bracket = address[0] == '[';
	struct addrinfo *list = NULL;
	size_t len = colon ? (size_t)(colon - address) : 0;
	char host[256];

	if (len >= sizeof host || len <= 2u * bracket)
		return NULL;
	memcpy(host, address + bracket, len - 2u * bracket);
	host[len - 2u * bracket] = '\0';
	return getaddrinfo(host, colon + 1, &hints, &list) == 0 ? list : NULL;
}

int ptc_machine_connect(const struct addrinfo *a, enum ptc_machine *ret)
{
	int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		*ret = PTC_MACHINE_TAKES; /* nothing can be told */
	if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
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

static const struct addrinfo *in_turn(const struct addrinfo *list, unsigned k)
{
	const struct addrinfo *a = list;

	while (k--)
		a = a->ai_next ? a->ai_next : list;
	return a;
}

static bool has_address(const struct addrinfo *list, unsigned k)
{
	while (list && k--)
		list = list->ai_next;
	return list != NULL;
}

/* Of the machine, whether its answer can be another one yet. */
static bool is_open(const struct ptc_machine_asked *v, const struct pollfd *fds)
{
	bool pending = false;

	for (unsigned t = 0; t < PTC_MACHINE_TRIES; t++)
		pending |= fds[t].fd >= 0;
	return v->answer == PTC_MACHINE_SILENT || (v->answer == PTC_MACHINE_REFUSES && v->at->ai_next && pending);
}

static bool any_open(const struct ptc_machine_asked *v, size_t n, const struct pollfd *fds)
{
	bool any = false;

	for (size_t i = 0; i < n; i++)
		any |= is_open(&v[i], fds + PTC_MACHINE_TRIES * i);
	return any;
}

static void take_ready(struct ptc_machine_asked *v, size_t n, struct pollfd *fds)
{
	for (size_t k = 0; k < PTC_MACHINE_TRIES * n; k++) {
		struct ptc_machine_asked *m = &v[k / PTC_MACHINE_TRIES];
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

		if (poll(fds, (nfds_t)(PTC_MACHINE_TRIES * n), ms) > 0)
			take_ready(v, n, fds);
		now = ptc_sys_now_ns();
	} while (any_open(v, n, fds) && now < until_ns);
}

void ptc_machines_ask(struct ptc_machine_asked *v, size_t n, struct pollfd *fds)
{
	for (size_t i = 0; i < n; i++)
		v[i].answer = v[i].at ? PTC_MACHINE_SILENT : PTC_MACHINE_TAKES;
	for (size_t k = 0; k < PTC_MACHINE_TRIES * n; k++)
		fds[k] = (struct pollfd){ -1, POLLOUT, 0 };
	for (unsigned t = 0; t < PTC_MACHINE_TRIES; t++) {
		for (size_t i = 0; i < n; i++)
			if (v[i].answer == PTC_MACHINE_SILENT ||
			    (v[i].answer == PTC_MACHINE_REFUSES && has_address(v[i].at, t)))
				fds[PTC_MACHINE_TRIES * i + t].fd =
					ptc_machine_connect(in_turn(v[i].at, t), &v[i].answer);
		wait_ns(v, n, fds, t + 1 < PTC_MACHINE_TRIES ? PTC_MACHINE_GAP_NS : PTC_MACHINE_LAST_NS);
	}
	for (size_t k = 0; k < PTC_MACHINE_TRIES * n; k++)
		if (fds[k].fd >= 0)
			close(fds[k].fd);
}
