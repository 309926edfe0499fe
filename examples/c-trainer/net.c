/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define RENDEZVOUS_MS 60000

static int move_all(int fd, void *data, size_t len, int out)
{
	char *p = data;

	while (len > 0) {
		ssize_t n = out ? send(fd, p, len, MSG_NOSIGNAL) : recv(fd, p, len, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			errno = ECONNRESET;
		if (n <= 0)
			return -1;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

static int no_delay(int fd)
{
	int one = 1;

	return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* Where others reach this host: $C_TRAINER_HOST, or this machine only. */
static const char *my_host(void)
{
	const char *host = getenv("C_TRAINER_HOST");

	return host ? host : "127.0.0.1";
}

/* Listens at a free port, says so, and takes the others; each begins with its index. */
static int be_first(struct group *g, ptc_client *c, const char *name)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t len = sizeof a;
	char where[300];
	int fd = socket(AF_INET, SOCK_STREAM, 0), rc = -1;

	if (strcmp(my_host(), "127.0.0.1") == 0)
		a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, GROUP_MAX) != 0 ||
	    getsockname(fd, (struct sockaddr *)&a, &len) != 0)
		goto out;
	snprintf(where, sizeof where, "%s %u", my_host(), ntohs(a.sin_port));
	if (ptc_rendezvous_put(c, name, where, strlen(where)) != 0)
		goto out;
	for (unsigned i = 1; i < g->size; i++) {
		int one = accept(fd, NULL, NULL);
		uint32_t index;

		if (one < 0 || move_all(one, &index, sizeof index, 0) != 0 || index == 0 || index >= g->size ||
		    g->fd[index] >= 0 || no_delay(one) != 0)
			goto out;
		g->fd[index] = one;
	}
	rc = 0;
out:
	if (fd >= 0)
		close(fd);
	return rc;
}

static int call_first(struct group *g, ptc_client *c, const char *name)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found = NULL;
	char where[300], *port;
	uint32_t index = g->index;
	size_t len;
	int rc = -1;

	if (ptc_rendezvous_get(c, name, where, sizeof where - 1, &len, RENDEZVOUS_MS) != 0)
		return -1;
	where[len] = '\0';
	port = strchr(where, ' ');
	if (!port)
		return -1;
	*port++ = '\0';
	if (getaddrinfo(where, port, &hints, &found) != 0)
		return -1;
	g->fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (g->fd[0] >= 0 && connect(g->fd[0], found->ai_addr, found->ai_addrlen) == 0 && no_delay(g->fd[0]) == 0)
		rc = move_all(g->fd[0], &index, sizeof index, 1);
	freeaddrinfo(found);
	return rc;
}

int group_join(struct group *g, ptc_client *c, const char *name, unsigned index, unsigned size)
{
	g->index = index;
	g->size = size;
	g->waited_s = 0;
	for (unsigned i = 0; i < GROUP_MAX; i++)
		g->fd[i] = -1;
	if (size > GROUP_MAX)
		return -1;
	if (size < 2)
		return 0;
	return index == 0 ? be_first(g, c, name) : call_first(g, c, name);
}

static int sum(struct group *g, double *v, size_t n)
{
	double *other;

	if (g->index > 0)
		return move_all(g->fd[0], v, n * sizeof *v, 1) || move_all(g->fd[0], v, n * sizeof *v, 0) ? -1 : 0;
	other = malloc(n * sizeof *other);
	if (!other)
		return -1;
	for (unsigned i = 1; i < g->size; i++) {
		if (move_all(g->fd[i], other, n * sizeof *other, 0)) {
			free(other);
			return -1;
		}
		for (size_t k = 0; k < n; k++)
			v[k] += other[k];
	}
	free(other);
	for (unsigned i = 1; i < g->size; i++)
		if (move_all(g->fd[i], v, n * sizeof *v, 1))
			return -1;
	return 0;
}

double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int group_sum(struct group *g, double *v, size_t n)
{
	double began = seconds_now();
	int rc = g->size < 2 || n == 0 ? 0 : sum(g, v, n);

	g->waited_s += seconds_now() - began;
	return rc;
}

void group_leave(struct group *g)
{
	for (unsigned i = 0; i < GROUP_MAX; i++)
		if (g->fd[i] >= 0)
			close(g->fd[i]);
}
