/* SPDX-License-Identifier: Apache-2.0 */
/* What is remembered of names. The name server is decided here: it answers, says that it does not know a name, or says
 * nothing at all. */
#include "daemon/cluster/loss/addresses.h"

#include "base/sys/sys.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define PATIENCE_S 60

static struct {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool answers;
	unsigned asked, waiting;
} server = { .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER };

int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret)
{
	if (hints->ai_flags & AI_NUMERICHOST)
		return __real_getaddrinfo(host, port, hints, ret);
	pthread_mutex_lock(&server.lock);
	server.asked++;
	server.waiting++;
	while (!server.answers)
		pthread_cond_wait(&server.wake, &server.lock);
	server.waiting--;
	pthread_mutex_unlock(&server.lock);
	return strcmp(host, "unknown") == 0 ? EAI_NONAME : __real_getaddrinfo("192.0.2.7", port, hints, ret);
}

static void server_answers(bool answers)
{
	pthread_mutex_lock(&server.lock);
	server.answers = answers;
	pthread_cond_broadcast(&server.wake);
	pthread_mutex_unlock(&server.lock);
}

static unsigned of_server(const unsigned *number)
{
	unsigned n;

	pthread_mutex_lock(&server.lock);
	n = *number;
	pthread_mutex_unlock(&server.lock);
	return n;
}

static void until(bool (*holds)(void *arg), void *arg)
{
	int64_t end = ptc_sys_now_ns() + PATIENCE_S * INT64_C(1000000000);

	while (!holds(arg)) {
		assert_true(ptc_sys_now_ns() < end);
		poll(NULL, 0, 1);
	}
}

static struct ptc_addresses *book;
static char n0[] = "n0:7460";

static bool is_known(void *address)
{
	struct ptc_machine_at at;

	return ptc_addresses_know(book, address, &at);
}

static bool is_waiting(void *arg)
{
	(void)arg;
	return of_server(&server.waiting) > 0;
}

static bool asks_again(void *before)
{
	return of_server(&server.asked) > *(unsigned *)before;
}

static void assert_at(const char *address, const char *host, unsigned port)
{
	struct ptc_machine_at at;
	char text[INET_ADDRSTRLEN];

	assert_true(ptc_addresses_know(book, address, &at));
	assert_int_equal(at.n, 1);
	assert_false(at.more);
	assert_string_equal(inet_ntop(AF_INET, &at.v->v4.sin_addr, text, sizeof text), host);
	assert_int_equal(ntohs(at.v->v4.sin_port), port);
}

/* ---- tests ---- */

static int setup(void **state)
{
	(void)state;
	server_answers(true);
	book = ptc_addresses_new();
	return book ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	server_answers(true);
	book = ptc_addresses_free(book);
	return 0;
}

static void digits_need_no_server(void **state)
{
	struct ptc_machine_at at;
	unsigned before = of_server(&server.asked);

	(void)state;
	ptc_addresses_want(book, "127.0.0.1:7460");
	ptc_addresses_want(book, "unix:/run/ptc/peer.sock");
	ptc_addresses_want(book, "no-port");
	assert_at("127.0.0.1:7460", "127.0.0.1", 7460);
	assert_true(ptc_addresses_know(book, "[::1]:7460", &at));
	assert_int_equal(at.v->v6.sin6_family, AF_INET6);
	assert_false(ptc_addresses_know(book, "unix:/run/ptc/peer.sock", &at));
	assert_false(ptc_addresses_know(book, "no-port", &at));
	assert_int_equal(of_server(&server.asked), before);
}

/* Who asks is never kept waiting, and neither is the end. */
static void a_server_that_says_nothing(void **state)
{
	struct ptc_machine_at at;

	(void)state;
	ptc_addresses_want(book, n0);
	until(is_known, n0);
	server_answers(false);
	ptc_addresses_want(book, "n1:7460");
	until(is_waiting, NULL);
	ptc_addresses_want(book, "n2:7460");
	assert_at(n0, "192.0.2.7", 7460);
	assert_false(ptc_addresses_know(book, "n1:7460", &at));
	assert_int_equal(at.n, 0);
	book = ptc_addresses_free(book);
}

/* A name that nobody knows keeps no other one waiting. */
static void a_name_that_is_unknown(void **state)
{
	struct ptc_machine_at at;
	unsigned before = of_server(&server.asked);

	(void)state;
	ptc_addresses_want(book, "unknown:7460");
	until(asks_again, &before);
	ptc_addresses_want(book, n0);
	until(is_known, n0);
	assert_false(ptc_addresses_know(book, "unknown:7460", &at));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(digits_need_no_server, setup, teardown),
		cmocka_unit_test_setup_teardown(a_server_that_says_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(a_name_that_is_unknown, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
