/* SPDX-License-Identifier: Apache-2.0 */
/* When a node that has no lease ends its ranks, by which other machines answer. The cluster and the ranks are decided
 * here; the connections are the kernel's. A machine is an address of 127.0.0.0/8 but 127.0.0.1, which is our own. */
#include "daemon/ptcd.h"
#include "daemon/cluster/loss/addresses.h"
#include "daemon/workers/group/rank_groups.h"

#include "base/sys/sys.h"

#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/cluster/loss/test_ports.h"

#define MACHINES   40 /* more than one look asks */
#define LOOKS      2  /* that ask all of them */
#define PATIENCE_S 60
#define UUID       "0195f1f0-0000-7000-8000-000000000001"

static struct {
	int64_t lease;
	struct ptc_node nodes[MACHINES + 1];
	size_t nnodes;
	unsigned looks;                                /* at machines */
	unsigned ended, standby_ended;                 /* jobs whose ranks were */
	unsigned back;                                 /* the look at which the lease is back; 0: none */
	void (*run)(void *arg, struct ptc_etcd *etcd); /* the look under way */
	void (*done)(void *arg);
	void *arg;
	struct ptc_addresses *addresses;
} t;

/* ---- the rooms below ---- */

struct ptc_addresses *ptc_cluster_addresses(const struct ptc_cluster *c)
{
	(void)c;
	return t.addresses;
}

int64_t ptc_cluster_lease(struct ptc_cluster *c)
{
	(void)c;
	return t.lease;
}

const char *ptc_cluster_self(const struct ptc_cluster *c)
{
	(void)c;
	return "self";
}

size_t ptc_cluster_nnodes(const struct ptc_cluster *c)
{
	(void)c;
	return t.nnodes;
}

struct ptc_node *ptc_cluster_node(struct ptc_cluster *c, uint32_t index)
{
	(void)c;
	return &t.nodes[index];
}

int ptc_cluster_steps(struct ptc_cluster *c, const char *lane, const struct ptc_task_step *steps,
		      void (*done)(void *arg), void *arg)
{
	(void)c, (void)lane;
	assert_null(t.done);
	t.run = steps[0].run;
	t.done = done;
	t.arg = arg;
	return 0;
}

void ptc_workers_jobs(struct ptc_workers *w, void (*fn)(void *arg, const char *uuid), void *arg)
{
	(void)w;
	fn(arg, UUID);
}

void ptc_workers_drop(struct ptc_workers *w, const char *uuid, const struct ptc_group_key *keep, size_t n,
		      bool given_up)
{
	(void)w, (void)keep, (void)n;
	assert_string_equal(uuid, UUID);
	assert_true(given_up);
	t.ended++;
}

/* The processes that wait for the job's next start end with its ranks. */
void ptc_workers_standby_end(struct ptc_workers *w, const char *uuid)
{
	(void)w;
	assert_string_equal(uuid, UUID);
	assert_int_equal(++t.standby_ended, t.ended);
}

/* ---- machines ---- */

static struct ptc_daemon d;
static struct ptc_cut_off *o;
static const char *second; /* address of "two" */

/* ---- names ---- */

/* The name server says nothing while it is gone. */
static pthread_mutex_t server_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t server_wake = PTHREAD_COND_INITIALIZER;
static bool server_gone;

static void server_answers(bool answers)
{
	pthread_mutex_lock(&server_lock);
	server_gone = !answers;
	pthread_cond_broadcast(&server_wake);
	pthread_mutex_unlock(&server_lock);
}

/* The name "two" has two addresses. At the first one every port is silent that is so at 127.0.0.2, as at the only one
 * of the name "one". No other name is known. */
int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret)
{
	const bool two = strcmp(host, "two") == 0, name = two || strcmp(host, "one") == 0;
	int rc;

	if (hints->ai_flags & AI_NUMERICHOST)
		return __real_getaddrinfo(host, port, hints, ret);
	pthread_mutex_lock(&server_lock);
	while (server_gone)
		pthread_cond_wait(&server_wake, &server_lock);
	pthread_mutex_unlock(&server_lock);
	if (!name)
		return EAI_NONAME;
	rc = __real_getaddrinfo("127.0.0.2", port, hints, ret);
	return rc || !two ? rc : __real_getaddrinfo(second, port, hints, &(*ret)->ai_next);
}

static int setup(void **state)
{
	(void)state;
	memset(&t, 0, sizeof t);
	d.config.coordinator.local = true;
	t.addresses = ptc_addresses_new();
	d.config.cut_off_after_ms = 1;
	return t.addresses ? ptc_cut_off_new(&d, &o, NULL) : -1;
}

static int teardown(void **state)
{
	(void)state;
	o = ptc_cut_off_free(o);
	server_answers(true);
	t.addresses = ptc_addresses_free(t.addresses);
	return 0;
}

static void add(const char *host, uint16_t port)
{
	struct ptc_node *n = &t.nodes[t.nnodes];

	n->up = true;
	snprintf(n->doc.name, sizeof n->doc.name, "n%zu", t.nnodes++);
	snprintf(n->doc.address, sizeof n->doc.address, "%s:%u", host, port);
}

static void add_silent(void)
{
	for (size_t i = 0; i < MACHINES; i++)
		add("127.0.0.2", silent_port);
}

static void finish_look(void)
{
	void (*done)(void *) = t.done;

	t.run(t.arg, NULL);
	if (++t.looks == t.back)
		t.lease = 1;
	t.done = NULL;
	done(t.arg);
}

/* Until there have been so many looks, or the ranks were ended. */
static void tick(unsigned looks)
{
	int64_t until = ptc_sys_now_ns() + PATIENCE_S * INT64_C(1000000000);

	while (t.looks < looks && !t.ended) {
		assert_true(ptc_sys_now_ns() < until);
		ptc_cut_off_tick(o);
		if (t.done)
			finish_look();
		else
			poll(NULL, 0, 1);
	}
}

/* The node has its lease until the addresses of all nodes are known, but those of the last `unknown`. */
static void learn(size_t unknown)
{
	int64_t until = ptc_sys_now_ns() + PATIENCE_S * INT64_C(1000000000);
	struct ptc_machine_at at;

	t.lease = 1;
	for (size_t i = 0; i + unknown < t.nnodes;) {
		assert_true(ptc_sys_now_ns() < until);
		ptc_cut_off_tick(o);
		if (ptc_addresses_know(t.addresses, t.nodes[i].doc.address, &at))
			i++;
		else
			poll(NULL, 0, 1);
	}
	t.lease = 0;
}

/* ---- tests ---- */

static void test_all_silent(void **state)
{
	(void)state;
	add_silent();
	tick(LOOKS + 1);
	assert_int_equal(1, t.ended);
	assert_int_equal(LOOKS, t.looks); /* all were asked */
}

static void test_last_answers(void **state)
{
	(void)state;
	add_silent();
	add("127.0.0.2", refusing_port);
	tick(2 * LOOKS);
	assert_int_equal(0, t.ended);
}

/* It answers at the second address of its name only. */
static void test_second_address(void **state)
{
	(void)state;
	add("two", silent_port);
	second = "127.0.0.3"; /* where nobody listens */
	learn(0);
	tick(LOOKS);
	assert_int_equal(0, t.ended);
}

static void test_second_address_silent(void **state)
{
	(void)state;
	add("two", silent_port);
	second = "127.0.0.2";
	learn(0);
	tick(LOOKS);
	assert_int_equal(1, t.ended);
}

/* An address of ours makes the machine our own: it is no other one. */
static void test_second_address_own(void **state)
{
	(void)state;
	add("two", silent_port);
	second = "127.0.0.1";
	learn(0);
	tick(LOOKS);
	assert_int_equal(0, t.ended);
}

/* A node that is cut off reaches no name server, and does not wait for one. */
static void test_name_server_gone(void **state)
{
	(void)state;
	add("one", silent_port);
	learn(0);
	server_answers(false);
	add("new", silent_port); /* it has come since */
	tick(1);
	assert_int_equal(0, t.ended); /* nothing can be told of as many as are silent */
	add("one", silent_port);
	tick(2);
	assert_int_equal(1, t.ended);
}

/* The name server and etcd have gone together; the other machine is there. */
static void test_name_server_gone_alone(void **state)
{
	(void)state;
	add("one", refusing_port);
	learn(0);
	server_answers(false);
	tick(LOOKS);
	assert_int_equal(0, t.ended);
}

/* Machines of which no address was ever known are not silent. */
static void test_never_known(void **state)
{
	(void)state;
	for (size_t i = 0; i < MACHINES; i++)
		add("unknown", silent_port);
	learn(MACHINES);
	tick(2 * LOOKS);
	assert_int_equal(0, t.ended);
	add("127.0.0.2", silent_port);
	tick(4 * LOOKS);
	assert_int_equal(0, t.ended);
}

/* A machine that is our own is no other one, also where a look finds nobody else. */
static void test_own(void **state)
{
	(void)state;
	for (size_t i = 0; i < MACHINES; i++)
		add("127.0.0.1", refusing_port);
	tick(2 * LOOKS);
	assert_int_equal(0, t.ended);
	snprintf(t.nodes[0].doc.address, sizeof t.nodes[0].doc.address, "127.0.0.2:%u", silent_port);
	tick(4 * LOOKS);
	assert_int_equal(1, t.ended);
}

/* The lease comes back between two looks, and is lost again: all are asked anew. */
static void test_lease_between(void **state)
{
	(void)state;
	add_silent();
	t.back = 1;
	tick(1);
	assert_int_equal(0, t.ended);
	ptc_cut_off_tick(o);
	t.lease = 0;
	tick(1 + LOOKS);
	assert_int_equal(1 + LOOKS, t.looks);
	assert_int_equal(1, t.ended);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_all_silent, setup, teardown),
		cmocka_unit_test_setup_teardown(test_last_answers, setup, teardown),
		cmocka_unit_test_setup_teardown(test_second_address, setup, teardown),
		cmocka_unit_test_setup_teardown(test_second_address_silent, setup, teardown),
		cmocka_unit_test_setup_teardown(test_second_address_own, setup, teardown),
		cmocka_unit_test_setup_teardown(test_name_server_gone, setup, teardown),
		cmocka_unit_test_setup_teardown(test_name_server_gone_alone, setup, teardown),
		cmocka_unit_test_setup_teardown(test_never_known, setup, teardown),
		cmocka_unit_test_setup_teardown(test_own, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lease_between, setup, teardown),
	};

	return cmocka_run_group_tests(tests, open_ports, close_ports);
}
