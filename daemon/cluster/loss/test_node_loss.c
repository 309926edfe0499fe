/* SPDX-License-Identifier: Apache-2.0 */
/* When a node that is down counts as lost. Times are in seconds here. */
#include "daemon/cluster/loss/machines.h"
#include "daemon/cluster/loss/node_loss.h"

#include "base/check.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define S INT64_C(1000000000)

/* Ticks once a second, etcd heard. */
static void run(struct ptc_loss *l, int64_t from, int64_t to)
{
	for (int64_t t = from; t <= to; t++)
		ptc_loss_tick(l, true, t * S);
}

static void by_the_clock(void **state)
{
	struct ptc_loss l = { .after_ns = 10 * S };

	run(&l, 1, 100);
	ptc_loss_node_ended(&l, 3, 100 * S);
	for (int64_t t = 100; t < 110; t++) {
		ptc_loss_tick(&l, true, t * S);
		assert_false(ptc_loss_is(&l, 100 * S, false, t * S));
		assert_true(ptc_loss_is(&l, 100 * S, true, t * S)); /* an operator says so */
	}
	ptc_loss_tick(&l, true, 110 * S);
	assert_true(ptc_loss_is(&l, 100 * S, false, 110 * S));
}

/* A daemon that has just started has not seen anybody for long, and all may have lost power with it: they have three
 * times as long, also those that it sees end. */
static void at_our_start(void **state)
{
	struct ptc_loss l = { .after_ns = 10 * S };

	assert_false(ptc_loss_is(&l, 1 * S, false, 100 * S));
	run(&l, 100, 105);
	ptc_loss_node_ended(&l, 3, 105 * S); /* one of four */
	for (int64_t t = 105; t < 130; t++) {
		ptc_loss_tick(&l, true, t * S);
		assert_false(ptc_loss_is(&l, 1 * S, false, t * S));
		assert_false(ptc_loss_is(&l, 105 * S, false, t * S));
		assert_true(ptc_loss_is(&l, 1 * S, true, t * S)); /* an operator says so */
	}
	run(&l, 130, 130);
	assert_true(ptc_loss_is(&l, 1 * S, false, 130 * S));
	assert_true(ptc_loss_is(&l, 105 * S, false, 130 * S));
}

static void while_etcd_is_unreachable(void **state)
{
	struct ptc_loss l = { .after_ns = 10 * S };

	run(&l, 1, 100);
	for (int64_t t = 101; t < 200; t++) {
		ptc_loss_tick(&l, false, t * S);
		assert_false(ptc_loss_is(&l, 50 * S, false, t * S));
		assert_true(ptc_loss_is(&l, 50 * S, true, t * S));
	}
	run(&l, 200, 209);
	assert_false(ptc_loss_is(&l, 50 * S, false, 209 * S));
	run(&l, 210, 210);
	assert_true(ptc_loss_is(&l, 50 * S, false, 210 * S));
}

/* We were stopped: what has come back meanwhile we have not heard of yet. */
static void after_a_pause(void **state)
{
	struct ptc_loss l = { .after_ns = 10 * S };

	run(&l, 1, 100);
	ptc_loss_node_ended(&l, 3, 100 * S);
	run(&l, 160, 169);
	assert_false(ptc_loss_is(&l, 100 * S, false, 169 * S));
	run(&l, 170, 170);
	assert_true(ptc_loss_is(&l, 100 * S, false, 170 * S));
}

/* Most end together: they have three times as long, from the last of them. */
static void most_together(void **state)
{
	struct ptc_loss l = { .after_ns = 10 * S };

	run(&l, 1, 100);
	ptc_loss_node_ended(&l, 3, 100 * S); /* one of four */
	ptc_loss_node_ended(&l, 2, 101 * S); /* two of four */
	assert_true(ptc_loss_is(&l, 91 * S, false, 101 * S));
	ptc_loss_node_ended(&l, 1, 105 * S); /* three of four */
	run(&l, 101, 134);
	for (int64_t t = 105; t < 135; t++)
		assert_false(ptc_loss_is(&l, 91 * S, false, t * S));
	assert_true(ptc_loss_is(&l, 100 * S, true, 120 * S));
	run(&l, 135, 135);
	assert_true(ptc_loss_is(&l, 100 * S, false, 135 * S));
}

/* One after the other, each long after the one before. */
static void most_in_turn(void **state)
{
	struct ptc_loss l = { .after_ns = 10 * S };

	run(&l, 1, 100);
	for (uint32_t up = 4; up-- > 1;) {
		int64_t at = 100 + 20 * (3 - (int64_t)up);

		ptc_loss_node_ended(&l, up, at * S);
		run(&l, at, at + 10);
		assert_true(ptc_loss_is(&l, at * S, false, (at + 10) * S));
	}
}

/* One of two is not most. */
static void one_of_two(void **state)
{
	struct ptc_loss l = { .after_ns = 10 * S };

	run(&l, 1, 100);
	ptc_loss_node_ended(&l, 1, 100 * S);
	run(&l, 101, 110);
	assert_true(ptc_loss_is(&l, 100 * S, false, 110 * S));
}

/* Who has ended may be passed by before it is lost: once etcd has answered for a while, and not if most have ended. */
static void early(void **state)
{
	struct ptc_loss l = { .after_ns = 3600 * S };

	assert_false(ptc_loss_early(&l, 1 * S));
	run(&l, 1, 10);
	assert_false(ptc_loss_early(&l, 10 * S));
	run(&l, 11, 11); /* though all have three hours after our start */
	assert_true(ptc_loss_early(&l, 11 * S));
	ptc_loss_tick(&l, false, 12 * S);
	assert_false(ptc_loss_early(&l, 12 * S));
	run(&l, 13, 22);
	assert_false(ptc_loss_early(&l, 22 * S));
	run(&l, 23, 23);
	assert_true(ptc_loss_early(&l, 23 * S));
	run(&l, 60, 69); /* we were stopped */
	assert_false(ptc_loss_early(&l, 69 * S));
	run(&l, 70, 100);
	ptc_loss_node_ended(&l, 3, 100 * S); /* one of four, two of four */
	ptc_loss_node_ended(&l, 2, 100 * S);
	assert_true(ptc_loss_early(&l, 100 * S));
	ptc_loss_node_ended(&l, 1, 101 * S);
	assert_false(ptc_loss_early(&l, 101 * S));

	l = (struct ptc_loss){ .after_ns = 2 * S }; /* who counts as lost after less need not be passed by */
	run(&l, 1, 3);
	assert_true(ptc_loss_early(&l, 3 * S));
}

/* One of four nodes has ended, and two of the others have not renewed their leases either: most may have gone. */
static void early_if_others_end(void **state)
{
	struct ptc_loss l = { .after_ns = 10 * S };

	(void)state;
	run(&l, 1, 100);
	ptc_loss_node_ended(&l, 3, 100 * S);
	assert_true(ptc_loss_early(&l, 100 * S));
	assert_true(ptc_loss_early_if(&l, 3, 0, 100 * S));
	assert_true(ptc_loss_early_if(&l, 3, 1, 100 * S)); /* two of four */
	assert_false(ptc_loss_early_if(&l, 3, 2, 100 * S));
	assert_true(ptc_loss_early(&l, 100 * S)); /* nothing has been noted */
	assert_false(ptc_loss_early_if(&l, 2, 3, 100 * S));
}

/* How long steps stand until a job goes on without a node. */
static void steps_stand(void **state)
{
	(void)state;
	assert_int_equal(ptc_loss_stand_ns(10 * S, false, false, 0.1), 10 * S);
	assert_int_equal(ptc_loss_stand_ns(10 * S, false, false, 5), 15 * S);
	assert_int_equal(ptc_loss_stand_ns(10 * S, true, false, 5), S);
	assert_int_equal(ptc_loss_stand_ns(10 * S, false, true, 0.1), S / 2);
	assert_int_equal(ptc_loss_stand_ns(10 * S, false, true, 1), 3 * S);
	assert_int_equal(ptc_loss_stand_ns(10 * S, false, true, 5), 15 * S);
	/* its first step may take long, or nobody is left who could say a step */
	assert_int_equal(ptc_loss_stand_ns(10 * S, false, true, 0), 10 * S);
	assert_int_equal(ptc_loss_stand_ns(10 * S, true, true, 0), S);
}

/* A machine refuses connections at looks, which end at these milliseconds. */
static bool refused(struct ptc_refusals *r, int64_t from_ms, int64_t to_ms, int64_t each_ms)
{
	bool closed = false;

	for (int64_t t = from_ms; t <= to_ms; t += each_ms)
		closed = ptc_refusals_saw(r, true, t * (S / 1000));
	return closed;
}

static void refusals(void **state)
{
	struct ptc_refusals r = { 0 };

	(void)state;
	assert_false(refused(&r, 10000, 11400, 200));
	assert_true(refused(&r, 11600, 11600, 200));
	assert_false(ptc_refusals_saw(&r, false, 12 * S)); /* a ptcd listens again, or the machine is silent */
	assert_false(refused(&r, 12200, 13600, 200));
	assert_true(refused(&r, 13800, 13800, 200));
	assert_true(refused(&r, 14800, 18000, 1000)); /* whoever looks does so less often by then */
	assert_false(refused(&r, 40000, 40000, 200)); /* nobody looked meanwhile */

	r = (struct ptc_refusals){ 0 };
	assert_false(refused(&r, 1000, 3000, 1000)); /* three looks are too few, whatever the time */
	assert_true(refused(&r, 4000, 4000, 1000));
}

/* An address of this machine; *ret_fd listens there, or is closed and nobody does. */
static struct sockaddr_in address(bool listens, int *ret_fd)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof a;

	*ret_fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(*ret_fd, (struct sockaddr *)&a, len), 0);
	assert_int_equal(getsockname(*ret_fd, (struct sockaddr *)&a, &len), 0);
	if (listens)
		assert_int_equal(listen(*ret_fd, 8), 0);
	return a;
}

static struct ptc_machine_at machine(const struct sockaddr_in *list, unsigned n)
{
	struct ptc_machine_at at = { .n = n };

	for (unsigned i = 0; i < n; i++)
		at.v[i].v4 = list[i];
	return at;
}

/* A name may stand for several addresses, and a ptcd listens at one of them. */
static void one_of_several_addresses(void **state)
{
	int refuses, takes;
	struct sockaddr_in at[2] = { address(false, &refuses), address(true, &takes) };
	struct ptc_machine_asked v[4] = { { machine(&at[0], 1) }, { machine(&at[1], 1) }, { machine(NULL, 0) } };
	struct pollfd fds[4 * PTC_MACHINE_ADDRESSES];

	(void)state;
	ptc_machines_ask(v, 3, fds);
	assert_int_equal(v[0].answer, PTC_MACHINE_REFUSES);
	assert_int_equal(v[1].answer, PTC_MACHINE_TAKES);
	assert_int_equal(v[2].answer, PTC_MACHINE_UNKNOWN);
	v[0].at = v[3].at = machine(at, 2);
	ptc_machines_ask(v, 4, fds);
	assert_int_equal(v[0].answer, PTC_MACHINE_TAKES);
	assert_int_equal(v[3].answer, PTC_MACHINE_TAKES);
	at[1] = at[0]; /* nobody listens anywhere */
	v[0].at = machine(at, 2);
	ptc_machines_ask(v, 1, fds);
	assert_int_equal(v[0].answer, PTC_MACHINE_REFUSES);
	close(refuses);
	close(takes);
}

/* Each address is asked, also the last of as many as are remembered. */
static void the_last_of_many_addresses(void **state)
{
	struct sockaddr_in at[PTC_MACHINE_ADDRESSES];
	struct pollfd fds[PTC_MACHINE_ADDRESSES];
	struct ptc_machine_asked v;
	int refuses, takes;

	(void)state;
	at[0] = address(false, &refuses);
	for (unsigned i = 1; i + 1 < PTC_MACHINE_ADDRESSES; i++)
		at[i] = at[0];
	at[PTC_MACHINE_ADDRESSES - 1] = address(true, &takes);
	v.at = machine(at, PTC_MACHINE_ADDRESSES);
	ptc_machines_ask(&v, 1, fds);
	assert_int_equal(v.answer, PTC_MACHINE_TAKES);
	at[PTC_MACHINE_ADDRESSES - 1] = at[0];
	v.at = machine(at, PTC_MACHINE_ADDRESSES);
	v.at.more = true; /* than these, of which no one answers */
	ptc_machines_ask(&v, 1, fds);
	assert_int_equal(v.answer, PTC_MACHINE_UNKNOWN);
	close(refuses);
	close(takes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_the_clock),
		cmocka_unit_test(at_our_start),
		cmocka_unit_test(while_etcd_is_unreachable),
		cmocka_unit_test(after_a_pause),
		cmocka_unit_test(most_together),
		cmocka_unit_test(most_in_turn),
		cmocka_unit_test(one_of_two),
		cmocka_unit_test(early),
		cmocka_unit_test(early_if_others_end),
		cmocka_unit_test(steps_stand),
		cmocka_unit_test(refusals),
		cmocka_unit_test(one_of_several_addresses),
		cmocka_unit_test(the_last_of_many_addresses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
