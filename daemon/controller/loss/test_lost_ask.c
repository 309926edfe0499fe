/* SPDX-License-Identifier: Apache-2.0 */
/* Asks nodes whether they have their tables. The calls, and the loop, are the test's: no node answers before all that
 * are up were asked. */
#include "daemon/controller/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define N 7

static char names[N][8], addresses[N][8];
static char *node[N], *address[N];
static const int status[N] = { 0, PTC_ENOTFOUND, PTC_ETIMEOUT, PTC_ELOST, 0, PTC_EPEER, PTC_ECORRUPT };
static bool down[N];
static struct {
	ptc_rpc_done_fn cb;
	void *arg;
	size_t node;
} calls[N];
static size_t ncalls, nup, last;

int __wrap_ptc_loop_call(struct ptc_loop *loop, void (*fn)(void *arg), void *arg);
int __wrap_ptc_channels_get(struct ptc_channels *c, const char *name, const char *at, bool bulk, unsigned lane,
			    struct ptc_rpc_channel **ret, struct ptc_error *err);
void __wrap_ptc_rpc_unary_async(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel, const char *method,
				const void *request, size_t len, int timeout_ms, ptc_rpc_done_fn cb, void *arg);

int __wrap_ptc_loop_call(struct ptc_loop *loop, void (*fn)(void *arg), void *arg)
{
	(void)loop;
	fn(arg);
	return 0;
}

int __wrap_ptc_channels_get(struct ptc_channels *c, const char *name, const char *at, bool bulk, unsigned lane,
			    struct ptc_rpc_channel **ret, struct ptc_error *err)
{
	(void)c, (void)at, (void)bulk, (void)lane, (void)err;
	for (last = 0; strcmp(node[last], name) != 0;)
		last++;
	*ret = NULL;
	return 0;
}

void __wrap_ptc_rpc_unary_async(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel, const char *method,
				const void *request, size_t len, int timeout_ms, ptc_rpc_done_fn cb, void *arg)
{
	(void)client, (void)channel, (void)request;
	assert_string_equal(method, "/ptc.v1.Peer/Fetch");
	assert_true(len > 0 && timeout_ms == 1000);
	calls[ncalls].cb = cb;
	calls[ncalls].arg = arg;
	calls[ncalls++].node = last;
	for (size_t i = ncalls; ncalls == nup && i-- > 0;)
		calls[i].cb(calls[i].arg, status[calls[i].node], NULL, NULL, 0);
}

static void ask(bool ret_has[N])
{
	struct ptc_view v = { .nodes = node, .addresses = address, .down = down, .nnodes = N };
	struct ptc_controllers all = { .loop = NULL };

	ncalls = nup = 0;
	for (size_t i = 0; i < N; i++)
		nup += !down[i];
	ptc_lost_ask(&all, &v, ret_has);
	assert_int_equal(ncalls, nup);
}

/* One that does not answer counts as having its table; one that is down does not. */
static void test_all_at_once(void **state)
{
	bool has[N];

	(void)state;
	ask(has);
	for (size_t i = 0; i < N; i++)
		assert_int_equal(has[i], status[i] == 0 || status[i] == PTC_ETIMEOUT || status[i] == PTC_EPEER);
	down[0] = down[3] = true;
	ask(has);
	for (size_t i = 0; i < N; i++)
		assert_int_equal(has[i], i == 2 || i == 4 || i == 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_all_at_once) };

	for (size_t i = 0; i < N; i++) {
		snprintf(names[i], sizeof names[i], "n%zu", i);
		node[i] = names[i];
		address[i] = addresses[i];
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
