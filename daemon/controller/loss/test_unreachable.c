/* SPDX-License-Identifier: Apache-2.0 */
/* That each machine is looked at, however many there are, and that no look waits for a name server. The cluster is
 * decided here; the connections are the kernel's, to a port of 127.0.0.2 at which nobody listens. */
#include "daemon/controller/internal.h"

#include "base/check.h"
#include "base/sys/sys.h"
#include "daemon/cluster/loss/addresses.h"
#include "daemon/cluster/loss/node_loss.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define NODES      100
#define AT_A_LOOK  32
#define PATIENCE_S 60

static struct {
	struct ptc_node nodes[NODES];
	void (*run)(void *arg, struct ptc_etcd *etcd); /* the look under way */
	void (*done)(void *arg);
	void *arg;
	unsigned looks;
} t;

static struct ptc_addresses *addresses;
static struct ptc_controllers all;
static struct ptc_controller job, *jobs[] = { &job };

/* ---- the rooms below ---- */

bool ptc_cluster_find_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index)
{
	(void)c;
	*ret_index = (uint32_t)atoi(name + 1);
	return *ret_index < NODES;
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

void ptc_cluster_watch_lease(struct ptc_cluster *c, uint32_t node)
{
	(void)c, (void)node;
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

const struct ptc_generation_doc *ptc_controller_current(const struct ptc_controller *ctl)
{
	return &ctl->view.from;
}

bool ptc_controller_is_new(const struct ptc_controller *ctl, const char *node)
{
	(void)ctl, (void)node;
	return false;
}

struct ptc_controller *ptc_controller_ref(struct ptc_controller *ctl)
{
	return ctl;
}

void ptc_controller_unref(struct ptc_controller *ctl)
{
	(void)ctl;
}

void ptc_controller_tell_lost(struct ptc_controller *ctl)
{
	(void)ctl;
}

void ptc_leaving_tick(struct ptc_controller *ctl)
{
	(void)ctl;
}

void ptc_recovery_tick(struct ptc_controller *ctl)
{
	(void)ctl;
}

/* ---- names ---- */

static pthread_t looks; /* the thread on which the tests and the looks run */

/* The name "one" is 127.0.0.2, and no other name is known. */
int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret)
{
	if (hints->ai_flags & AI_NUMERICHOST)
		return __real_getaddrinfo(host, port, hints, ret);
	assert_false(pthread_equal(pthread_self(), looks));
	return strcmp(host, "one") == 0 ? __real_getaddrinfo("127.0.0.2", port, hints, ret) : EAI_NONAME;
}

/* ---- tests ---- */

static uint16_t refusing_port(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof at;

	assert_int_equal(0, bind(fd, (struct sockaddr *)&at, sizeof at));
	assert_int_equal(0, getsockname(fd, (struct sockaddr *)&at, &len));
	close(fd);
	return ntohs(at.sin_port);
}

/* So many are down, and have ranks of the job. The first has that name. */
static void begin(char names[NODES][24], char *list[NODES], size_t n, const char *first)
{
	uint16_t port = refusing_port();

	looks = pthread_self();
	addresses = ptc_addresses_new();
	memset(&t, 0, sizeof t);
	for (size_t i = 0; i < n; i++) {
		snprintf(names[i], sizeof names[i], "n%zu", i);
		list[i] = names[i];
		t.nodes[i].down_ns = ptc_sys_now_ns();
		snprintf(t.nodes[i].doc.address, sizeof t.nodes[i].doc.address, "%s:%u", i ? "127.0.0.2" : first, port);
	}
	job.has_record = true;
	job.record.run = PTC_RUN_LIVE;
	job.view.from.nodes = list;
	job.view.from.nnodes = n;
	all.list = jobs;
	all.n = PTC_ARRAY_LEN(jobs);
}

/* Ends the look that a tick has begun; true: there was one. */
static bool tick(void)
{
	void (*done)(void *);

	ptc_unreachable_tick(&all);
	done = t.done;
	if (!done)
		return false;
	t.run(t.arg, NULL);
	t.done = NULL;
	done(t.arg);
	t.looks++;
	return true;
}

static size_t seen(void)
{
	size_t n = 0;

	for (size_t i = 0; i < NODES; i++)
		n += t.nodes[i].refusals.last_ns > t.nodes[i].down_ns;
	return n;
}

static bool are_closed(size_t n)
{
	bool closed = true;

	for (size_t i = 0; i < n; i++)
		closed &= t.nodes[i].closed;
	return closed;
}

static void until_closed(size_t n)
{
	int64_t until = ptc_sys_now_ns() + PATIENCE_S * INT64_C(1000000000);

	while (!are_closed(n)) {
		assert_true(ptc_sys_now_ns() < until);
		if (!tick())
			poll(NULL, 0, 1);
	}
}

static void end(void)
{
	ptc_unreachable_free(&all);
	addresses = ptc_addresses_free(addresses);
}

static void test_all_are_looked_at(void **state)
{
	char names[NODES][24], *list[NODES];

	(void)state;
	begin(names, list, NODES, "127.0.0.2");
	while (seen() < NODES) { /* one look after the other, and each is of others */
		assert_true(tick());
		assert_int_equal(seen(), PTC_MIN(t.looks * AT_A_LOOK, (unsigned)NODES));
	}
	until_closed(NODES);
	end();
}

/* A name is looked up on another thread, and nothing is told of a machine whose name is not known. */
static void test_names(void **state)
{
	char names[NODES][24], *list[NODES];

	(void)state;
	begin(names, list, 1, "one");
	until_closed(1);
	end();
	begin(names, list, 2, "unknown");
	t.nodes[0].closed = true; /* until a look */
	while (t.nodes[0].closed || !t.nodes[1].closed)
		if (!tick())
			poll(NULL, 0, 1);
	assert_false(t.nodes[0].unreachable);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_all_are_looked_at), cmocka_unit_test(test_names) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
