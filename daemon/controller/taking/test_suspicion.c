/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a node that does not answer loses its lease, by what other machines answer, and when this node gives its
 * locks back. The cluster is decided here; the connections are the kernel's. A machine is an address of 127.0.0.0/8 but
 * 127.0.0.1, which is our own. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "daemon/cluster/loss/addresses.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/cluster/loss/test_ports.h"

#define NODES      12
#define PATIENCE_S 60
#define TTL_MS     100

static struct {
	struct ptc_node nodes[NODES];
	size_t nnodes;
	void (*run)(void *arg, struct ptc_etcd *etcd); /* the look under way */
	void (*done)(void *arg);
	void *arg;
	void (*probed)(void *arg, int status, const struct ptc_error *err); /* the question under way */
	void *probe;
	unsigned looks, revoked;
} t;

static struct ptc_addresses *addresses;
static atomic_bool stopping;
static struct ptc_controllers all = { .node = "n0", .stopping = &stopping, .lease_ttl_ms = TTL_MS };
static struct ptc_controller job = { .all = &all }, *jobs[] = { &job };

/* ---- the rooms below ---- */

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

struct ptc_addresses *ptc_cluster_addresses(const struct ptc_cluster *c)
{
	(void)c;
	return addresses;
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

int ptc_cluster_run(struct ptc_cluster *c, const char *lane, void (*work)(void *arg, struct ptc_etcd *etcd),
		    void (*done)(void *arg), void *arg)
{
	(void)c, (void)work;
	assert_string_equal(lane, "revoke");
	t.revoked++;
	done(arg);
	return 0;
}

int ptc_etcd_revoke(struct ptc_etcd *e, int64_t lease, struct ptc_error *err)
{
	(void)e, (void)lease, (void)err;
	return 0;
}

int ptc_controller_probe(struct ptc_controllers *of, const struct ptc_node *n,
			 void (*done)(void *arg, int status, const struct ptc_error *err), void *arg)
{
	(void)of, (void)n;
	t.probed = done;
	t.probe = arg;
	return 0;
}

/* ---- machines ---- */

static void place(size_t node, const char *host, uint16_t port)
{
	snprintf(t.nodes[node].doc.address, sizeof t.nodes[node].doc.address, "%s:%u", host, port);
}

static void add(const char *host, uint16_t port)
{
	struct ptc_node *n = &t.nodes[t.nnodes];

	n->up = true;
	n->lease = (int64_t)t.nnodes + 1;
	snprintf(n->doc.name, sizeof n->doc.name, "n%zu", t.nnodes);
	place(t.nnodes++, host, port);
}

/* Ends the look that has begun, if one has. */
static void finish_look(void)
{
	void (*done)(void *) = t.done;

	if (!done)
		return;
	t.run(t.arg, NULL);
	t.done = NULL;
	t.looks++;
	done(t.arg);
}

static void suspect(uint32_t node, int status)
{
	ptc_controller_suspect(&job, node, t.nodes[node].lease);
	t.probed(t.probe, status, &(struct ptc_error){ .text = "no answer" });
	finish_look();
}

static void tick_until(unsigned looks)
{
	int64_t until = ptc_sys_now_ns() + PATIENCE_S * INT64_C(1000000000);

	while (t.looks < looks) {
		assert_true(ptc_sys_now_ns() < until);
		ptc_suspicion_tick(&all);
		finish_look();
		poll(NULL, 0, 1);
	}
}

static void tick_until_yields(bool yields)
{
	int64_t until = ptc_sys_now_ns() + PATIENCE_S * INT64_C(1000000000);

	while (ptc_suspicion_yields(&all) != yields) {
		assert_true(ptc_sys_now_ns() < until);
		tick_until(t.looks + 1);
	}
}

/* ---- tests ---- */

static int setup(void **state)
{
	(void)state;
	memset(&t, 0, sizeof t);
	addresses = ptc_addresses_new();
	all.list = jobs;
	all.n = PTC_ARRAY_LEN(jobs);
	add("127.0.0.1", refusing_port); /* ourselves */
	ptc_suspicion_tick(&all);
	return addresses ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	ptc_suspicion_free(&all);
	addresses = ptc_addresses_free(addresses);
	return 0;
}

/* Another machine answers, so the network works; or the node's own, whose ptcd has gone. */
static void another_answers(void **state)
{
	(void)state;
	add("127.0.0.2", silent_port);
	add("127.0.0.2", silent_port);
	add("127.0.0.2", refusing_port);
	suspect(1, PTC_ETIMEOUT);
	assert_int_equal(t.revoked, 1);
	suspect(3, PTC_EPEER);
	assert_int_equal(t.revoked, 2);
	suspect(2, 0); /* it answers the second question */
	assert_int_equal(t.revoked, 2);
	assert_int_equal(t.looks, 2);
}

/* Its lease may have ended, and another life begun, while others were asked. */
static void another_life(void **state)
{
	(void)state;
	add("127.0.0.2", refusing_port);
	ptc_controller_suspect(&job, 1, t.nodes[1].lease);
	t.probed(t.probe, PTC_EPEER, &(struct ptc_error){ .text = "no answer" });
	t.nodes[1].lease++;
	finish_look();
	assert_int_equal(t.looks, 1);
	assert_int_equal(t.revoked, 0);
}

/* No network leads to a node on this machine, and it shows nothing about the network. */
static void on_this_machine(void **state)
{
	(void)state;
	add("127.0.0.1", refusing_port);
	snprintf(t.nodes[1].doc.address, sizeof t.nodes[1].doc.address, "unix:/run/ptc/peer.sock");
	add("127.0.0.1", refusing_port);
	add("127.0.0.2", silent_port);
	suspect(1, PTC_EPEER);
	suspect(2, PTC_EPEER);
	assert_int_equal(t.revoked, 2);
	suspect(3, PTC_ETIMEOUT);
	assert_int_equal(t.revoked, 2);
}

/* Nobody answers, and all renew their leases: this node's network has failed. Once a machine answers again, it takes
 * locks again. */
static void own_network_has_failed(void **state)
{
	(void)state;
	for (size_t i = 1; i < NODES; i++)
		add("127.0.0.2", silent_port);
	suspect(1, PTC_ETIMEOUT);
	suspect(2, PTC_ETIMEOUT);
	assert_false(ptc_suspicion_yields(&all)); /* they may have died */
	tick_until_yields(true);
	place(NODES - 1, "127.0.0.2", refusing_port);
	suspect(1, PTC_ETIMEOUT); /* it was asked before, and may answer now */
	tick_until_yields(false);
	assert_int_equal(t.revoked, 0);
	suspect(1, PTC_ETIMEOUT);
	assert_int_equal(t.revoked, 1);
}

/* They have died, and this node goes on with the jobs; or there is one other, and either network may have failed. */
static void too_few_are_up(void **state)
{
	(void)state;
	add("127.0.0.2", silent_port);
	add("127.0.0.2", silent_port);
	suspect(1, PTC_ETIMEOUT);
	t.nodes[1].up = false;
	tick_until(4);
	assert_false(ptc_suspicion_yields(&all));
	t.nodes[2].up = false;
	tick_until(5);
	assert_false(ptc_suspicion_yields(&all));
	assert_int_equal(t.revoked, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(another_answers, setup, teardown),
		cmocka_unit_test_setup_teardown(another_life, setup, teardown),
		cmocka_unit_test_setup_teardown(on_this_machine, setup, teardown),
		cmocka_unit_test_setup_teardown(own_network_has_failed, setup, teardown),
		cmocka_unit_test_setup_teardown(too_few_are_up, setup, teardown),
	};

	return cmocka_run_group_tests(tests, open_ports, close_ports);
}
