/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: a port of 127.0.0.2 that drops every packet of a new connection, because its queue is full, and one at
 * which nobody listens. An address of 127.0.0.0/8 but 127.0.0.1 is another machine for ptc_machine_is_own. */
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#define TEST_BACKLOG 8 /* connections that surely fill the queue of a listener that takes none */

static int test_held[1 + TEST_BACKLOG]; /* a listener that takes no connection, and those that fill its queue */
static uint16_t silent_port, refusing_port;

static int test_bound(uint16_t *ret_port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	socklen_t len = sizeof at;

	assert_int_equal(0, bind(fd, (struct sockaddr *)&at, sizeof at));
	assert_int_equal(0, getsockname(fd, (struct sockaddr *)&at, &len));
	*ret_port = ntohs(at.sin_port);
	return fd;
}

/* These two are for cmocka_run_group_tests. */
static int open_ports(void **state)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1) };

	(void)state;
	close(test_bound(&refusing_port));
	test_held[0] = test_bound(&silent_port);
	assert_int_equal(0, listen(test_held[0], 0));
	at.sin_port = htons(silent_port);
	for (size_t i = 1; i <= TEST_BACKLOG; i++) {
		test_held[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		connect(test_held[i], (struct sockaddr *)&at, sizeof at);
	}
	return 0;
}

static int close_ports(void **state)
{
	(void)state;
	for (size_t i = 0; i <= TEST_BACKLOG; i++)
		close(test_held[i]);
	return 0;
}
