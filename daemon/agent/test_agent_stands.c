/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that stand: they accept a call, and then neither send nor take anything. Whoever reads from them, or writes to
 * them, for a client gives up after a while, or when the client goes. */
#include "daemon/agent/test_world.h"

#include <pthread.h>
#include <unistd.h>

#define STALL_MS 200
#define HANGS_S  120 /* the program is killed: a call has waited for ever */

/* ---- a node that stands ---- */

struct stander {
	struct ptc_rpc_server *server;
	char sock[200];
	atomic_uint calls; /* that stand, or have stood */
};

static int stand(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct stander *s = arg;

	atomic_fetch_add(&s->calls, 1);
	while (!ptc_rpc_call_cancelled(call))
		usleep(1000);
	return ptc_error_set(err, PTC_ECANCELED, "nobody waits");
}

static void stander_up(struct stander *s, struct world *w, uint32_t node)
{
	static const char *const methods[] = { "/ptc.v1.Peer/Fetch", "/ptc.v1.Peer/FetchRank", "/ptc.v1.Peer/Put" };
	struct ptc_rpc_server_opts opts = { .max_calls = 8 };
	struct ptc_error err = PTC_ERROR_INIT;

	atomic_init(&s->calls, 0);
	snprintf(s->sock, sizeof s->sock, "%s/stander.sock", w->dir);
	OK(ptc_rpc_server_new(&opts, &s->server, &err));
	for (size_t i = 0; i < PTC_ARRAY_LEN(methods); i++)
		OK(ptc_rpc_server_method(s->server, methods[i], 1u << PTC_ROLE_NODE, stand, s, &err));
	OK(ptc_rpc_server_listen_unix(s->server, s->sock, 0600, true, &err));
	OK(ptc_rpc_server_start(s->server, &err));
	pthread_mutex_lock(&w->lock);
	w->target_override[node] = s->sock;
	pthread_mutex_unlock(&w->lock);
}

static void stander_down(struct stander *s, struct world *w, uint32_t node)
{
	pthread_mutex_lock(&w->lock);
	w->target_override[node] = NULL;
	pthread_mutex_unlock(&w->lock);
	ptc_rpc_server_free(s->server, 100);
}

/* ---- a client ---- */

/* What it asks node 0 for. */
enum want { WANT_RANGE, WANT_RANK, WANT_IMPORT };

struct client {
	struct world *w;
	struct gen *g;
	enum want want;
	struct ptc_rpc_server *server;
	char sock[200];
	pthread_mutex_t lock;
	bool ended;
	int rc; /* of what was done for it */
	char why[1024];
	struct ptc_buf got;
};

static int scatter_all(struct client *c, const struct ptc_geometry *to, struct ptc_rpc_call *call,
		       struct ptc_error *err)
{
	static uint8_t zeros[1 << 20];
	struct ptc_scatter *s;
	int rc = ptc_scatter_new(c->w->nodes[0].agent, to, UUID, 77, call, &s, err);

	/* far more than the transport takes for a node that reads nothing */
	for (int i = 0; !rc && i < 1000; i++)
		rc = ptc_scatter_write(s, 0, 0, zeros, (size_t)PTC_MIN(c->w->size[0], (int64_t)sizeof zeros), err);
	ptc_scatter_free(s);
	return rc;
}

static int serve(struct client *c, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_agent *agent = c->w->nodes[0].agent;
	struct ptc_rank_range range = { 0, 0, 0, 0 };
	struct ptc_geometry g;
	struct info info;
	int rc;

	info_make(&info, c->w, c->g, c->g);
	rc = ptc_agent_geometry(agent, &info.pb, &info.from, &g, err);
	if (rc)
		return rc;
	if (c->want == WANT_RANGE)
		rc = ptc_agent_gather(agent, &g, UUID, 0, 0, (uint64_t)c->w->size[0], to_buf, NULL, &c->got, call, err);
	else if (c->want == WANT_RANK)
		rc = ptc_agent_gather_rank(agent, &g, &info.pb, &range, to_buf, &c->got, call, err);
	else
		rc = scatter_all(c, &g, call, err);
	ptc_geometry_done(&g);
	return rc;
}

static int client_handler(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct client *c = arg;
	int rc = serve(c, call, &why);

	pthread_mutex_lock(&c->lock);
	c->rc = rc;
	snprintf(c->why, sizeof c->why, "%s", why.text);
	c->ended = true;
	pthread_mutex_unlock(&c->lock);
	return rc ? ptc_error_set(err, rc, "%s", why.text) : 0;
}

static bool client_ended(struct client *c)
{
	bool ended;

	pthread_mutex_lock(&c->lock);
	ended = c->ended;
	pthread_mutex_unlock(&c->lock);
	return ended;
}

/* Asks, and goes as soon as a node stands, if it is not to wait. */
static void client_ask(struct client *c, struct world *w, struct gen *g, enum want want, struct stander *goes)
{
	struct ptc_rpc_server_opts opts = { .max_calls = 2 };
	struct ptc_rpc_channel_opts to = { .target = NULL };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_channel *channel;
	struct ptc_rpc_stream *stream;
	char target[210];

	*c = (struct client){ .w = w, .g = g, .want = want, .got = PTC_BUF_INIT };
	pthread_mutex_init(&c->lock, NULL);
	snprintf(c->sock, sizeof c->sock, "%s/client.sock", w->dir);
	OK(ptc_rpc_server_new(&opts, &c->server, &err));
	OK(ptc_rpc_server_method(c->server, "/test/Ask", 1u << PTC_ROLE_NODE, client_handler, c, &err));
	OK(ptc_rpc_server_listen_unix(c->server, c->sock, 0600, true, &err));
	OK(ptc_rpc_server_start(c->server, &err));
	snprintf(target, sizeof target, "unix:%s", c->sock);
	to.target = target;
	OK(ptc_rpc_channel_new(&to, &channel, &err));
	OK(ptc_rpc_stream_open(channel, "/test/Ask", 0, NULL, 0, &stream, &err));
	OK(ptc_rpc_stream_half_close(stream, &err));
	while (goes && !atomic_load(&goes->calls))
		usleep(1000);
	if (goes)
		ptc_rpc_stream_cancel(stream);
	while (!client_ended(c))
		usleep(1000);
	ptc_rpc_stream_free(stream);
	ptc_rpc_channel_free(channel);
	ptc_rpc_server_free(c->server, 1000);
	pthread_mutex_destroy(&c->lock);
}

/* ---- the tests ---- */

static void short_stall(struct world *w, struct node *n, struct ptc_agent_env *env)
{
	env->stall_ms = STALL_MS;
}

/* A generation whose rank 0 is on node 1, which stands; with a replica, rank 1 is on node 2. */
static void up(struct world *w, struct gen *g, struct stander *s, bool replica, bool stalls)
{
	world_hook = stalls ? short_stall : NULL;
	world_up(w, NODES, false);
	world_hook = NULL;
	gen_make(g, 1, replica ? "tp=1,dp=2" : "tp=1", 1);
	g->nodes[0] = 1;
	g->nodes[1] = 2;
	g->devices[1] = 0;
	import(w, g, 0);
	stander_up(s, w, 1);
}

static void down(struct world *w, struct stander *s, struct client *c)
{
	stander_down(s, w, 1);
	ptc_buf_done(&c->got);
	world_down(w);
}

/* Another node has the bytes. */
static void test_replica(void **state)
{
	struct stander s;
	struct client c;
	struct world w;
	struct gen g;

	(void)state;
	up(&w, &g, &s, true, true);
	for (enum want want = WANT_RANGE; want <= WANT_RANK; want++) {
		client_ask(&c, &w, &g, want, NULL);
		if (c.rc)
			fail_msg("%s", c.why);
		assert_true(atomic_exchange(&s.calls, 0) > 0); /* it was asked */
		assert_int_equal(c.got.len, w.size[0]);
		assert_memory_equal(c.got.data, w.bytes[0], c.got.len);
		ptc_buf_reset(&c.got);
		if (want == WANT_RANGE)
			ptc_buf_done(&c.got);
	}
	down(&w, &s, &c);
}

/* Nobody else has them, or can take them: the message names the node. */
static void test_alone(void **state)
{
	struct stander s;
	struct client c;
	struct world w;
	struct gen g;

	(void)state;
	up(&w, &g, &s, false, true);
	for (enum want want = WANT_RANGE; want <= WANT_IMPORT; want++) {
		client_ask(&c, &w, &g, want, NULL);
		assert_int_equal(c.rc, want == WANT_IMPORT ? PTC_ETIMEOUT : PTC_EPEER);
		assert_non_null(strstr(c.why, "node n1"));
		assert_non_null(strstr(c.why, want == WANT_IMPORT ? "has taken nothing" : "has said nothing"));
		assert_int_equal(c.got.len, 0);
	}
	down(&w, &s, &c);
}

/* The client goes, long before the minute is over. Then no other node is asked either. */
static void goes(enum want first, enum want last, bool replica)
{
	struct stander s;
	struct client c;
	struct world w;
	struct gen g;

	up(&w, &g, &s, replica, false);
	for (enum want want = first; want <= last; want++) {
		atomic_store(&s.calls, 0);
		client_ask(&c, &w, &g, want, &s);
		if (c.rc != PTC_ECANCELED)
			fail_msg("%d: %d (%s)", (int)want, c.rc, c.why);
		assert_int_equal(c.got.len, 0);
	}
	down(&w, &s, &c);
}

static void test_reader_goes(void **state)
{
	(void)state;
	goes(WANT_RANGE, WANT_RANK, true);
}

static void test_importer_goes(void **state)
{
	(void)state;
	goes(WANT_IMPORT, WANT_IMPORT, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_replica),
		cmocka_unit_test(test_alone),
		cmocka_unit_test(test_reader_goes),
		cmocka_unit_test(test_importer_goes),
	};
	int rc;

	alarm(HANGS_S);
	ptc_rpc_init();
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	ptc_rpc_shutdown();
	return rc;
}
