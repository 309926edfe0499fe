/* SPDX-License-Identifier: Apache-2.0 */
/* Who is let in: only those whose ClientHello is whole, each share of the callers as often as another, at a pace. */
#include "base/check.h"
#include "base/sys/sys.h"
#include "rpc/door/internal.h"

#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define SECOND  INT64_C(1000000000)
#define WAIT_MS 60000

static atomic_int entered, dropped;

static void enter(void *arg, int listener, int fd, const struct ptc_door_caller *caller)
{
	char whole[6];

	assert_int_equal(recv(fd, whole, sizeof whole, MSG_DONTWAIT), sizeof whole); /* nothing was taken from him */
	assert_int_equal(whole[5], 1);
	close(fd);
	atomic_fetch_add(&entered, 1);
}

static void look(void *arg)
{
}

static void drop(void *arg, bool out_of_time)
{
	atomic_fetch_add(&dropped, 1);
}

static void exhausted(void *arg, int errnum)
{
	fail();
}

static int caller(int port)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_port = htons((uint16_t)port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	return fd;
}

static void says(int fd, const void *bytes, size_t len)
{
	assert_int_equal(send(fd, bytes, len, MSG_NOSIGNAL), len);
}

/* A record of this type with a message of that type, which says that it is `claimed` bytes long. */
static size_t record(unsigned char *ret, int type, int message, size_t len, size_t claimed)
{
	memset(ret, 7, 5 + len);
	ret[0] = (unsigned char)type;
	ret[1] = 3;
	ret[3] = (unsigned char)(len >> 8);
	ret[4] = (unsigned char)len;
	ret[5] = (unsigned char)message;
	ret[6] = 0;
	ret[7] = (unsigned char)(claimed >> 8);
	ret[8] = (unsigned char)claimed;
	return 5 + len;
}

/* The door closes without a word. */
static void is_shut(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char byte;

	assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	assert_true(recv(fd, &byte, 1, 0) <= 0);
	close(fd);
}

static struct ptc_door *door_new(int *ret_port)
{
	const struct ptc_door_opts opts = { .address = "127.0.0.1:0",
					    .thread = "door",
					    .tls = true,
					    .enter = enter,
					    .look = look,
					    .dropped = drop,
					    .exhausted = exhausted };
	struct ptc_door *d;

	assert_int_equal(ptc_door_open(&opts, &d, ret_port, NULL), 0);
	assert_int_equal(ptc_door_start(d, NULL), 0);
	return d;
}

static void only_whole_words_open(void **state)
{
	static const struct {
		int type, message;
		size_t len, claimed;
	} wrong[] = {
		{ 23, 1, 200, 196 },     /* no handshake */
		{ 22, 2, 200, 196 },     /* a ServerHello */
		{ 22, 1, 200, 197 },     /* goes on in another record */
		{ 22, 1, 20, 16 },       /* too short to be one */
		{ 22, 1, 16385, 16381 }, /* longer than a record */
	};
	unsigned char bytes[17000];
	int port, slow;
	struct ptc_door *d = door_new(&port);
	size_t len;

	for (size_t i = 0; i < PTC_ARRAY_LEN(wrong); i++) {
		int fd = caller(port);

		says(fd, bytes, record(bytes, wrong[i].type, wrong[i].message, wrong[i].len, wrong[i].claimed));
		is_shut(fd);
	}
	slow = caller(port);
	says(slow, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
	is_shut(slow);
	assert_int_equal(atomic_load(&entered), 0);

	slow = caller(port);
	len = record(bytes, 22, 1, 300, 296);
	for (size_t i = 0; i < len; i++) {
		assert_int_equal(atomic_load(&entered), 0);
		says(slow, bytes + i, 1);
		usleep(i % 50 == 0 ? 1000 : 0);
	}
	for (int i = 0; i < WAIT_MS && !atomic_load(&entered); i++)
		usleep(1000);
	assert_int_equal(atomic_load(&entered), 1);
	close(slow);
	assert_int_equal(atomic_load(&dropped), 0);
	ptc_door_free(d);
}

static void put(struct ptc_door_pool *p, const char *host, bool network)
{
	struct ptc_door_waiter w = { .ready = true };

	assert_int_equal(inet_pton(AF_INET6, host, &w.caller.host), 1);
	w.caller.share = w.caller.host;
	if (network)
		memset(&w.caller.share.s6_addr[8], 0, 8);
	ptc_door_pool_add(p, &w, dup(0));
}

/* Two hundred of one share and one of another: he is among the first. */
static void shares_take_turns(void **state)
{
	static struct ptc_door_pool p;
	static struct pollfd polled[PTC_DOOR_WAITING_MAX];
	int worst = 0;

	for (int round = 0; round < 50; round++) {
		struct in6_addr one;
		int64_t now = ptc_sys_now_ns();
		char host[40];
		size_t at;
		int turn = 0;

		memset(&p, 0, sizeof p);
		ptc_door_pool_init(&p, polled, PTC_DOOR_WAITING_MAX, 250);
		for (int i = 0; i < 200; i++) {
			snprintf(host, sizeof host, "2001:db8::%x", i + 1); /* of one network */
			put(&p, host, true);
		}
		put(&p, "2001:db8:1::1", true);
		inet_pton(AF_INET6, "2001:db8:1::1", &one);
		for (bool found = false; !found; turn++) {
			now += SECOND / 100;
			assert_true(ptc_door_pool_next(&p, now, &at));
			found = memcmp(&p.of[at].caller.host, &one, sizeof one) == 0;
			close(p.polled[at].fd);
			ptc_door_pool_remove(&p, at);
		}
		worst = PTC_MAX(worst, turn);
		ptc_door_pool_free(&p);
	}
	print_message("his turn came as number %d at most\n", worst);
	assert_true(worst <= 40); /* 2^-40, fifty times */
}

/* In a full pool whoever has the most gives one up; the pace is kept, and rest does not save up. */
static void many_wait_at_a_pace(void **state)
{
	static struct ptc_door_pool p;
	static struct pollfd polled[PTC_DOOR_WAITING_MAX];
	int64_t now;
	size_t at, others = 0;
	int let_in = 0;

	ptc_door_pool_init(&p, polled, 100, 250);
	for (int i = 0; i < 20; i++) {
		char host[40];

		snprintf(host, sizeof host, "2001:db8:%x::1", i + 1);
		put(&p, host, true);
	}
	for (int i = 0; i < 1000; i++)
		put(&p, "2001:db8::1", true);
	assert_int_equal(p.count, 100);
	for (size_t i = 0; i < p.count; i++)
		others += p.of[i].caller.share.s6_addr[5] != 0;
	assert_true(others >= 15);

	now = ptc_sys_now_ns() + 3600 * SECOND;
	for (int ms = 0; ms <= 100; ms++, now += SECOND / 1000)
		while (ptc_door_pool_next(&p, now, &at)) {
			close(p.polled[at].fd);
			ptc_door_pool_remove(&p, at);
			let_in++;
		}
	assert_in_range(let_in, 32 + 24, 32 + 26);
	ptc_door_pool_free(&p);
}

static void hosts_of_members(void **state)
{
	struct in6_addr host;

	ptc_door_member_address("192.0.2.7:7460");
	ptc_door_member_address("[2001:db8::5]:7460");
	ptc_door_member_address("node.example:7460");
	ptc_door_member_address("");
	inet_pton(AF_INET6, "::ffff:192.0.2.7", &host);
	assert_true(ptc_door_is_member_host(&host));
	inet_pton(AF_INET6, "2001:db8::5", &host);
	assert_true(ptc_door_is_member_host(&host));
	inet_pton(AF_INET6, "2001:db8::6", &host);
	assert_false(ptc_door_is_member_host(&host));
	for (uint32_t i = 0; i < 2000; i++) { /* more than it remembers */
		const struct in_addr v4 = { htonl(0x0a000000u + i) };

		ptc_door_v4_mapped(&v4, &host);
		ptc_door_member_host(&host);
		assert_true(ptc_door_is_member_host(&host));
	}
	inet_pton(AF_INET6, "::ffff:192.0.2.7", &host);
	assert_false(ptc_door_is_member_host(&host));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_whole_words_open),
		cmocka_unit_test(shares_take_turns),
		cmocka_unit_test(many_wait_at_a_pace),
		cmocka_unit_test(hosts_of_members),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
