/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of a node's machine when the node's lease ends. Times are in milliseconds here. */
#include "daemon/cluster/loss/lease_end.h"

#include "base/check.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MS   INT64_C(1000000)
#define FILL 2 /* connections that a socket takes whose program takes none */

/* A port of this machine. It answers while nobody has filled it; then what is sent to it gets lost. */
struct machine {
	int listens, fills[FILL];
	char address[64];
};

static void machine_init(struct machine *m)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof a;

	m->listens = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(m->listens, (struct sockaddr *)&a, len), 0);
	assert_int_equal(listen(m->listens, 0), 0);
	assert_int_equal(getsockname(m->listens, (struct sockaddr *)&a, &len), 0);
	snprintf(m->address, sizeof m->address, "127.0.0.1:%u", (unsigned)ntohs(a.sin_port));
	memset(m->fills, -1, sizeof m->fills);
}

static struct ptc_machine_at address_of(const struct machine *m)
{
	struct ptc_machine_at at;

	assert_true(ptc_machine_digits(m->address, &at));
	return at;
}

/* The queue of a socket with a backlog of 0 has room for one connection, and the kernel drops what comes after it. */
static void fall_silent(struct machine *m)
{
	struct ptc_machine_at at = address_of(m);

	for (size_t i = 0; i < FILL; i++) {
		m->fills[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		(void)connect(m->fills[i], &at.v->any, sizeof at.v->v4);
		(void)poll(&(struct pollfd){ m->fills[i], POLLOUT, 0 }, 1, 50);
	}
}

static void come_back(struct machine *m)
{
	close(accept(m->listens, NULL, NULL));
}

static void machine_done(struct machine *m)
{
	for (size_t i = 0; i < FILL; i++)
		if (m->fills[i] >= 0)
			close(m->fills[i]);
	close(m->listens);
}

/* An answer may take the kernel a moment, which is none of the clock's here. */
static void look_until_answered(struct ptc_lease_end *e, int64_t from_ms)
{
	for (int64_t t = from_ms; ptc_lease_end_doubtful(e); t += 200) {
		ptc_lease_end_look(e, t * MS);
		(void)poll(NULL, 0, 5);
	}
}

static void begin(struct ptc_lease_end *e, const struct machine *m)
{
	struct ptc_machine_at at = address_of(m);

	assert_true(ptc_lease_end_heard(e, 7, 1, 5, &at, 0));
	assert_true(ptc_lease_end_doubtful(e));
}

static void near_its_end(void **state)
{
	(void)state;
	for (int64_t ttl = 2; ttl < 100; ttl++) /* after a renewal, or a third of the TTL after it, and a miss */
		assert_false(ptc_lease_end_is_near(ttl - ttl / 3 - 1, ttl));
	assert_true(ptc_lease_end_is_near(0, 2));
	assert_false(ptc_lease_end_is_near(1, 2));
	assert_true(ptc_lease_end_is_near(1, 5));
	assert_false(ptc_lease_end_is_near(2, 5));
	assert_true(ptc_lease_end_is_near(2, 60));
	assert_false(ptc_lease_end_is_near(3, 60));
	assert_true(ptc_lease_end_is_near(-1, 60)); /* it has ended */
}

/* Not so often while it is renewed, and at each tick near its end. */
static void etcd_is_asked(void **state)
{
	struct ptc_lease_end e = { 0 };
	struct ptc_machine_at at;
	struct machine m;

	(void)state;
	machine_init(&m);
	at = address_of(&m);
	assert_false(ptc_lease_end_heard(&e, 7, 4, 5, NULL, 1000 * MS));
	assert_int_equal(e.next_ns, 3000 * MS);
	assert_false(ptc_lease_end_heard(&e, 7, 2, 5, NULL, 3000 * MS));
	assert_int_equal(e.next_ns, 3000 * MS);
	assert_false(ptc_lease_end_heard(&e, 7, 1, 5, NULL, 3200 * MS)); /* nowhere to look */
	assert_int_equal(e.next_ns, 3200 * MS);
	assert_false(ptc_lease_end_doubtful(&e));
	assert_true(ptc_lease_end_heard(&e, 7, 1, 5, &at, 3400 * MS));
	assert_false(ptc_lease_end_heard(&e, 7, 0, 5, NULL, 3600 * MS)); /* it looks already */
	assert_true(ptc_lease_end_doubtful(&e));
	assert_false(ptc_lease_end_heard(&e, 7, 4, 5, NULL, 3800 * MS)); /* it has been renewed */
	assert_false(ptc_lease_end_doubtful(&e));
	assert_true(ptc_lease_end_heard(&e, 7, 1, 5, &at, 9000 * MS));
	assert_true(ptc_lease_end_heard(&e, 8, 1, 5, &at, 9200 * MS)); /* of another lease */
	ptc_lease_end_reset(&e);
	assert_false(ptc_lease_end_doubtful(&e));
	assert_false(ptc_lease_end_doubtful(NULL));
	machine_done(&m);
}

/* As many connections as a look has, of which the last has had as much time. */
static void silent(void **state)
{
	struct ptc_lease_end e = { 0 };
	struct machine m;

	(void)state;
	machine_init(&m);
	fall_silent(&m);
	begin(&e, &m);
	assert_false(ptc_lease_end_silent(&e, 0));
	for (int64_t t = 0; t <= 400; t += 100) /* a tick that comes too soon begins none */
		ptc_lease_end_look(&e, t * MS);
	assert_int_equal(e.n, 3);
	assert_false(ptc_lease_end_silent(&e, 699 * MS));
	assert_true(ptc_lease_end_silent(&e, 700 * MS));
	assert_false(ptc_lease_end_silent(&e, 5000 * MS)); /* too long ago */
	for (int64_t t = 5000; t <= 15000; t += 200)
		ptc_lease_end_look(&e, t * MS);
	assert_true(ptc_lease_end_silent(&e, 15000 * MS));
	ptc_lease_end_reset(&e);
	machine_done(&m);
}

/* Each of its addresses has had a connection, and a name with more addresses than can be asked is not asked. */
static void many_addresses(void **state)
{
	struct ptc_lease_end e = { 0 };
	struct ptc_machine_at at;
	struct machine m;

	(void)state;
	machine_init(&m);
	fall_silent(&m);
	at = address_of(&m);
	for (at.n = 1; at.n < 5; at.n++)
		at.v[at.n] = at.v[0];
	assert_true(ptc_lease_end_heard(&e, 7, 1, 5, &at, 0));
	for (int64_t t = 0; t <= 800; t += 200)
		ptc_lease_end_look(&e, t * MS);
	assert_int_equal(e.n, 5);
	assert_false(ptc_lease_end_silent(&e, 1099 * MS));
	assert_true(ptc_lease_end_silent(&e, 1100 * MS));
	ptc_lease_end_reset(&e);
	at.more = true;
	assert_false(ptc_lease_end_heard(&e, 7, 1, 5, &at, 0));
	ptc_lease_end_reset(&e);
	machine_done(&m);
}

/* Its ptcd is stopped, or restarted: its kernel takes the connection, or refuses it. */
static void its_kernel_answers(void **state)
{
	struct ptc_lease_end e = { 0 };
	struct machine m;

	(void)state;
	machine_init(&m);
	begin(&e, &m);
	look_until_answered(&e, 0);
	assert_false(ptc_lease_end_silent(&e, 700 * MS));
	close(m.listens);
	m.listens = -1;
	assert_false(ptc_lease_end_heard(&e, 7, 4, 5, NULL, 0));
	begin(&e, &m);
	look_until_answered(&e, 0);
	assert_false(ptc_lease_end_silent(&e, 700 * MS));
	ptc_lease_end_reset(&e);
	machine_done(&m);
}

/* It is there again a moment before its lease ends, and answers only the connection that was begun last. */
static void back_at_the_last_moment(void **state)
{
	struct ptc_lease_end e = { 0 };
	struct machine m;

	(void)state;
	machine_init(&m);
	fall_silent(&m);
	begin(&e, &m);
	for (int64_t t = 0; t <= 800; t += 200)
		ptc_lease_end_look(&e, t * MS);
	assert_true(ptc_lease_end_silent(&e, 900 * MS));
	come_back(&m);
	look_until_answered(&e, 1000);
	assert_false(ptc_lease_end_silent(&e, 1100 * MS));
	ptc_lease_end_reset(&e);
	machine_done(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(near_its_end),
		cmocka_unit_test(etcd_is_asked),
		cmocka_unit_test(silent),
		cmocka_unit_test(many_addresses),
		cmocka_unit_test(its_kernel_answers),
		cmocka_unit_test(back_at_the_last_moment),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
