/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the machine takes the connection or refuses it. Failure modes: it says nothing, or the network says that
 * it cannot be reached: nobody is there. */
#include "daemon/cluster/loss/machines.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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

bool ptc_machine_is_own(const struct addrinfo *a)
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
