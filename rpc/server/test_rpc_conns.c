/* SPDX-License-Identifier: Apache-2.0 */
/* Which connection goes when there is no room for another: of callers that nobody has called with yet. The other end of
 * each is ours, so we see which one is shut down. */
#include "base/check.h"
#include "base/sys/sys.h"
#include "rpc/server/internal.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define FILES     2048
#define STRANGERS 256 /* of so many descriptors */
#define USERS     512
#define ARRIVALS  128
#define SHARE     (USERS / 4)
#define MINE      (USERS + STRANGERS)

/* Connections, in the order they came. */
static struct line {
	int ours, number; /* number -1: refused */
	unsigned who;
	bool member;
} lines[MINE];
static int nlines;

static struct ptc_rpc_peer stranger(unsigned who)
{
	struct ptc_rpc_peer p = { .kind = PTC_RPC_PEER_TCP, .tcp.port = (uint16_t)(1000 + nlines) };
	struct in_addr v4 = { htonl(0x0a000000u + who) };

	ptc_door_v4_mapped(&v4, &p.tcp.host);
	p.tcp.share = p.tcp.host;
	return p;
}

static struct ptc_rpc_peer user(unsigned uid)
{
	return (struct ptc_rpc_peer){ .kind = PTC_RPC_PEER_USER, .id = { .role = PTC_ROLE_USER, .uid = uid } };
}

/* Number of the new line; its number is -1 where it was refused. */
static int come(struct ptc_rpc_peer p, unsigned who)
{
	int fds[2];

	assert_true(nlines < MINE);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	lines[nlines] = (struct line){ .ours = fds[0], .number = ptc_rpc_conn_take(fds[1], &p), .who = who };
	return nlines++;
}

static bool is_shut(const struct line *l)
{
	char byte;

	return l->number >= 0 && recv(l->ours, &byte, 1, MSG_DONTWAIT) == 0;
}

/* As the core does with what was shut down: it closes the descriptor. -1: nothing was; more than one fails. */
static int who_went(void)
{
	int went = -1;

	for (int i = 0; i < nlines; i++)
		if (is_shut(&lines[i])) {
			assert_int_equal(went, -1);
			went = i;
			close(lines[i].number);
			lines[i].number = -1;
		}
	return went;
}

static int end_all(void **state)
{
	for (int i = 0; i < nlines; i++) {
		close(lines[i].ours);
		if (lines[i].number >= 0)
			close(lines[i].number);
	}
	nlines = 0;
	usleep(20000); /* longer than between two looks at all of them */
	return 0;
}

static int come_stranger(unsigned who)
{
	return come(stranger(who), who);
}

/* Of whoever has the most, the oldest; also where somebody else's are older. Members are nobody's victims. */
static void strangers_with_the_most_go(void **state)
{
	int oldest, member;

	for (unsigned i = 0; i < 100; i++)
		come_stranger(i); /* each one, and older than what follows */
	oldest = come_stranger(200);
	for (unsigned i = 101; i < STRANGERS; i++)
		come_stranger(i % 2 ? 200 : 300 + i); /* 200 has half of these */
	assert_int_equal(who_went(), -1);
	for (int k = 0; k < 10; k++) {
		assert_true(lines[come_stranger(1000 + (unsigned)k)].number >= 0);
		assert_int_equal(who_went(), oldest);
		do
			oldest++;
		while (lines[oldest].who != 200);
	}
	end_all(state);

	member = come_stranger(7);
	ptc_rpc_conn_known("ipv4:10.0.0.7:1000"); /* it made a call with a certificate */
	for (unsigned i = 0; i < STRANGERS; i++)
		come_stranger(7 + i / 100);
	assert_int_equal(who_went(), -1); /* it does not count among strangers */
	come_stranger(500);
	assert_int_equal(who_went(), member + 1);
}

/* Who comes from a member's host takes nothing from other strangers, nor they from him. */
static void hosts_of_members_have_their_own(void **state)
{
	struct ptc_rpc_peer p;
	int first;

	for (unsigned i = 0; i < STRANGERS; i++)
		come_stranger(i);
	assert_int_equal(who_went(), -1);
	p = stranger(9000);
	p.tcp.from_member = true;
	first = come(p, 9000);
	for (unsigned i = 1; i < ARRIVALS / 2; i++) {
		p.tcp.port++;
		come(p, 9000);
	}
	assert_int_equal(who_went(), -1);
	come(p, 9000); /* one host has half of them */
	assert_int_equal(who_went(), first);
	come_stranger(10000);
	assert_int_equal(who_went(), 0);
}

/* Two have equally many: the oldest of both goes, so that they take turns. */
static void of_equals_the_oldest_goes(void **state)
{
	for (unsigned i = 0; i < STRANGERS; i++)
		come_stranger(3 - i % 4); /* whoever came first has the last address */
	for (int k = 0; k < 20; k++) {
		come_stranger(100 + (unsigned)k);
		assert_int_equal(who_went(), k);
	}
}

/* An address with half of all gets in, in place of its own oldest. */
static void one_address_has_half_at_most(void **state)
{
	for (unsigned i = 0; i < STRANGERS / 2; i++)
		come_stranger(1);
	for (int k = 0; k < 5; k++) {
		assert_true(lines[come_stranger(1)].number >= 0);
		assert_int_equal(who_went(), k);
	}
}

/* Users: whoever has more than the newcomer would have gives one up; nobody with as many, nor root; a user at his share
 * is refused. */
static void users_share(void **state)
{
	int first[4] = { -1, -1, -1, -1 };

	for (unsigned i = 0; i < 8; i++)
		come(user(0), 0);
	for (unsigned i = 0; i < USERS - USERS / 16; i++) {
		int at = come(user(1 + i % 4), 1 + i % 4);

		assert_true(lines[at].number >= 0);
		first[i % 4] = first[i % 4] < 0 ? at : first[i % 4];
	}
	assert_int_equal(who_went(), -1);
	for (int k = 0; k < 4; k++) { /* each has 120 */
		assert_true(lines[come(user(100), 100)].number >= 0);
		assert_int_equal(who_went(), first[k]);
	}
	assert_true(lines[come(user(1), 1)].number < 0); /* who has the most is refused */
	assert_int_equal(who_went(), -1);
	assert_true(lines[come(user(0), 0)].number >= 0);
	assert_int_equal(who_went(), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(strangers_with_the_most_go, end_all),
		cmocka_unit_test_teardown(hosts_of_members_have_their_own, end_all),
		cmocka_unit_test_teardown(of_equals_the_oldest_goes, end_all),
		cmocka_unit_test_teardown(one_address_has_half_at_most, end_all),
		cmocka_unit_test_teardown(users_share, end_all),
	};
	struct rlimit lim;

	/* the bounds are parts of it, and looked up once */
	if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_max < FILES)
		return 77;
	lim.rlim_cur = FILES;
	if (setrlimit(RLIMIT_NOFILE, &lim) != 0)
		return 77;
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
