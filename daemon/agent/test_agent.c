/* SPDX-License-Identifier: Apache-2.0 */
/* Whole switches between agents in one process: import, several random
 * switches, export by item and by rank against the oracle; resuming a pull
 * that was cancelled or whose daemon was restarted; replicas; refusals.
 * PTC_TEST_SEED and PTC_CASES override; the seed is printed. */
#include "daemon/agent/test_world.h"
#include "daemon/store/store.h"
#include "daemon/store/store_table.h"
#include "reshard/plan/plan.h"
#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/switch/switch.h"
#include "daemon/agent/tables/tables.h"

#include "base/number/count.h"
#include "base/test_seed.h"

#include <sys/stat.h>

static uint64_t seed, cases = 3;

/* Bytes the plan says enter nodes. */
static int64_t planned(struct world *w, struct info *info)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_geometry a, b;
	struct ptc_plan *plan;
	int64_t bytes;

	OK(ptc_agent_geometry(w->nodes[0].agent, &info->pb, &info->from, &a, &err));
	OK(ptc_agent_geometry(w->nodes[0].agent, &info->pb, &info->to, &b, &err));
	OK(ptc_plan_new(&w->spec, a.layout, &a.allocation, b.layout, &b.allocation, NODES, NULL, &plan, &err));
	bytes = plan->between_nodes;
	ptc_plan_free(plan);
	ptc_geometry_done(&a);
	ptc_geometry_done(&b);
	return bytes;
}

static void verify_node(struct world *w, struct gen *g, uint32_t node)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__DigestRequest req = PTC__V1__DIGEST_REQUEST__INIT;
	Ptc__V1__PullReply *reply;
	struct ptc_rpc_stream *s;
	struct info info;

	info_make(&info, w, g, g);
	req.version = 1;
	req.info = &info.pb;
	OK(open_call(w, node, "/ptc.v1.Peer/Digest", &req.base, &s, &err));
	OK(last_reply(s, &reply, &err));
	assert_true(reply->verified_bytes > 0);
	ptc_pb_free(&reply->base);
	ptc_rpc_stream_free(s);
}

static void one_case(void)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct world w;
	struct gen now, next;
	struct info info;
	char config[128];

	world_up(&w, NODES, false);
	random_config(config, sizeof(config));
	gen_make(&now, 1, config, NODES);
	import(&w, &now, (uint32_t)rnd(NODES));
	check_gather(&w, &now, (uint32_t)rnd(NODES));
	check_ranks(&w, &now, (uint32_t)rnd(NODES));
	for (uint64_t number = 2; number < 5; number++) {
		int64_t wire;

		random_config(config, sizeof(config));
		gen_make(&next, number, config, 1 + (unsigned)rnd(NODES));
		seal_and_prepare(&w, &info, &now, &next);
		wire = pull_all(&w, &info, &next, false);
		assert_int_equal(wire, planned(&w, &info));
		for (uint32_t i = 0; i < NODES; i++)
			OK(do_finish(&w, i, gen_has(&next, i) ? &next : NULL, false, &err));
		now = next;
		check_gather(&w, &now, (uint32_t)rnd(NODES));
		check_ranks(&w, &now, (uint32_t)rnd(NODES));
		verify_node(&w, &now, now.nodes[0]);
	}
	for (uint32_t i = 0; i < NODES; i++)
		OK(do_finish(&w, i, NULL, true, &err));
	world_down(&w);
}

static void test_cycles(void **state)
{
	for (uint64_t i = 0; i < cases; i++) {
		rng = seed + i * 7919 + 1;
		one_case();
	}
}

/* The same, but nodes read each other's chunks in memory. */
static void test_near_cycles(void **state)
{
	const uint64_t before = ptc_count_get(PTC_COUNT_NEAR_BYTES), failures = ptc_count_get(PTC_COUNT_NEAR_FAILURES);

	(void)state;
	setenv("TMPDIR", "/dev/shm", 1);
	world_near = true;
	for (uint64_t i = 0; i < cases; i++) {
		rng = seed + i * 7919 + 2;
		one_case();
	}
	world_near = false;
	assert_true(ptc_count_get(PTC_COUNT_NEAR_BYTES) > before);
	assert_int_equal(ptc_count_get(PTC_COUNT_NEAR_FAILURES), failures);
}

/* ---- what the calls of a switch share ---- */

/* Two geometries: their layouts are one, this node's boxes are those that the layout gives. */
static void same_shape(struct world *w, struct info *info, bool expect)
{
	struct ptc_error err = PTC_ERROR_INIT;
	const struct ptc_needs *needs;
	struct ptc_needs fresh;
	struct ptc_geometry a, b;

	OK(ptc_agent_geometry(w->nodes[1].agent, &info->pb, &info->from, &a, &err));
	OK(ptc_agent_geometry(w->nodes[1].agent, &info->pb, &info->to, &b, &err));
	assert_int_equal(a.layout == b.layout, expect);
	assert_int_equal(a.generation, info->from.number);
	assert_int_equal(b.generation, info->to.number);
	assert_int_equal(b.snapshot, info->to.snapshot);
	OK(ptc_geometry_needs(&b, true, &needs, &err));
	OK(ptc_layout_node_needs(b.copied, &b.copied_at, 1, &fresh, &err));
	assert_int_equal(needs->n, fresh.n);
	assert_int_equal(needs->bytes, fresh.bytes);
	for (size_t i = 0; i < fresh.n; i++) {
		assert_int_equal(needs->v[i].item, fresh.v[i].item);
		assert_true(ptc_box_equal(&needs->v[i].box, &fresh.v[i].box));
	}
	ptc_needs_done(&fresh);
	ptc_geometry_done(&a);
	ptc_geometry_done(&b);
}

/* A plan is known of the two that it is of, with these sources, and of no others. */
static void plan_known_of(struct world *w, struct info *info)
{
	struct ptc_error err = PTC_ERROR_INIT;
	bool usable[NODES], known[5];
	struct ptc_geometry a, b;
	char hash[33] = "", other[33] = "of other sources";

	memset(usable, true, sizeof usable);
	OK(ptc_agent_geometry(w->nodes[1].agent, &info->pb, &info->from, &a, &err));
	OK(ptc_agent_geometry(w->nodes[1].agent, &info->pb, &info->to, &b, &err));
	known[0] = ptc_geometry_plan_known(&a, &b, usable, hash);
	known[1] = ptc_geometry_plan_known(&b, &b, usable, hash);
	known[2] = ptc_geometry_plan_known(NULL, &b, usable, hash);
	usable[2] = false;
	known[3] = ptc_geometry_plan_known(&a, &b, usable, hash);
	ptc_geometry_plan_note(&a, &b, usable, other);
	usable[2] = true;
	known[4] = ptc_geometry_plan_known(&a, &b, usable, hash);
	ptc_geometry_done(&a);
	ptc_geometry_done(&b);
	assert_true(known[0]);
	assert_false(known[1] || known[2] || known[3] || known[4]);
}

/* Layouts are worked out once for Check, Prepare and Pull, and not at all where a later switch has them again. */
static void test_shared_work(void **state)
{
	static const char *const configs[] = { "tp=2,dp=2", "tp=4" };
	struct world w;
	struct gen now, next, again;
	struct info info;
	unsigned before;

	world_up(&w, NODES, false);
	rng = seed + 31;
	gen_make(&now, 1, configs[0], NODES);
	import(&w, &now, 0);
	gen_make(&next, 2, configs[1], NODES);
	next.nodes[0] = 1; /* so that it has a part; on a device that gen_make gives to nobody */
	next.devices[0] = 32;
	seal_and_prepare(&w, &info, &now, &next);
	same_shape(&w, &info, false);
	plan_known_of(&w, &info);
	pull_all(&w, &info, &next, false);
	for (uint64_t number = 3; number < 7; number++) {
		again = number % 2 ? now : next; /* the ranks of before the switch, under new numbers */
		again.number = again.snapshot = number;
		before = atomic_load(&w.spec_gets);
		seal_and_prepare(&w, &info, number % 2 ? &next : &now, &again);
		pull_all(&w, &info, &again, false);
		if (number > 3) /* one node may have had no part in the first one there */
			assert_int_equal(atomic_load(&w.spec_gets), before);
		*(number % 2 ? &now : &next) = again;
		check_gather(&w, &again, 0);
	}
	now.number++; /* other numbers, all else alike */
	now.snapshot++;
	again = now;
	again.number = again.snapshot = 77;
	info_make(&info, &w, &now, &again);
	same_shape(&w, &info, true);
	world_down(&w);
}

/* ---- resuming ---- */

/* Starts a Pull, takes its first message, drops it. */
static void pull_and_drop(struct world *w, uint32_t node, struct info *info)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PullRequest req = PTC__V1__PULL_REQUEST__INIT;
	struct ptc_rpc_message *msg;
	struct ptc_rpc_stream *s;

	req.version = 1;
	req.info = &info->pb;
	OK(open_call(w, node, "/ptc.v1.Peer/Pull", &req.base, &s, &err));
	OK(ptc_rpc_stream_recv(s, &msg, &err));
	assert_non_null(msg);
	ptc_rpc_message_done(msg);
	ptc_rpc_stream_cancel(s);
	ptc_rpc_stream_free(s);
}

static void test_resume(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct world w;
	struct gen now, next;
	struct info info;
	int64_t wire;

	rng = seed + 3;
	world_up(&w, NODES, true);
	gen_make(&now, 1, "tp=1", 1);
	import(&w, &now, 3);
	gen_make(&next, 2, "tp=2", 1);
	next.nodes[0] = 1;
	next.nodes[1] = 2;
	seal_and_prepare(&w, &info, &now, &next);
	for (int i = 0; i < 5; i++)
		pull_and_drop(&w, 1, &info);
	node_down(&w, &w.nodes[2]); /* prepared, restarted: pull goes on without another prepare */
	node_up(&w, &w.nodes[2]);
	pull_and_drop(&w, 2, &info);
	wire = pull_all(&w, &info, &next, false);
	assert_true(wire <= planned(&w, &info));
	assert_int_equal(pull_all(&w, &info, &next, false), 0); /* sealed: only the digests again */
	for (uint32_t i = 0; i < NODES; i++)
		OK(do_finish(&w, i, gen_has(&next, i) ? &next : NULL, false, &err));
	check_gather(&w, &next, 0);
	world_down(&w);
}

/* ---- what Prepare has found missing ---- */

static struct ptc_kept_fill *kept(struct world *w, uint32_t node)
{
	const struct ptc_agent_job *job = w->nodes[node].agent->shared.jobs;

	return job ? job->fill : NULL;
}

/* It serves the Pull of its switch, but not one that finds another table, and it is dropped with the switch. */
static void test_kept_fill(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_table_key key;
	struct world w;
	struct gen now, next;
	struct info info;

	rng = seed + 4;
	world_up(&w, NODES, true);
	gen_make(&now, 1, "tp=1", 1);
	import(&w, &now, 3);
	assert_null(kept(&w, now.nodes[0]));
	gen_make(&next, 2, "tp=2", 1);
	next.nodes[0] = 1;
	next.nodes[1] = 2;
	seal_and_prepare(&w, &info, &now, &next);
	assert_true(kept(&w, 1) && kept(&w, 2));
	key = (struct ptc_table_key){ .generation = next.number, .snapshot = next.snapshot };
	snprintf(key.uuid, sizeof key.uuid, "%s", info.pb.uuid);
	OK(ptc_agent_table_drop(w.nodes[1].agent, &key, &err)); /* the table goes; a new one has no extents yet */
	assert_int_equal(pull_all(&w, &info, &next, false), planned(&w, &info));
	assert_true(!kept(&w, 1) && !kept(&w, 2));
	for (uint32_t i = 0; i < NODES; i++)
		OK(do_finish(&w, i, gen_has(&next, i) ? &next : NULL, false, &err));
	check_gather(&w, &next, 0);
	now = next;
	gen_make(&next, 3, "tp=2", 1);
	next.nodes[0] = 1; /* it lacks nothing, which its Pull need not find out again */
	next.nodes[1] = 0;
	seal_and_prepare(&w, &info, &now, &next);
	assert_true(kept(&w, 0) && kept(&w, 1));
	assert_int_equal(pull_all(&w, &info, &next, false), planned(&w, &info));
	assert_true(!kept(&w, 0) && !kept(&w, 1));
	for (uint32_t i = 0; i < NODES; i++)
		OK(do_finish(&w, i, gen_has(&next, i) ? &next : NULL, false, &err));
	check_gather(&w, &next, 0);
	now = next;
	gen_make(&next, 4, "tp=1", 1);
	next.nodes[0] = 2;
	seal_and_prepare(&w, &info, &now, &next);
	assert_non_null(kept(&w, 2));
	OK(do_finish(&w, 2, NULL, false, &err)); /* the switch is given up */
	assert_null(kept(&w, 2));
	prepare_all(&w, &info, &next); /* left behind when the agent ends */
	assert_non_null(kept(&w, 2));
	world_down(&w);
}

/* ---- a job that is gone ---- */

static void nothing_left(struct world *w, uint32_t node)
{
	struct ptc_store_stats stats;

	ptc_store_stats(w->nodes[node].store, &stats);
	assert_int_equal(stats.chunks_used, 0);
	assert_int_equal(stats.chunks_free, 0);
	assert_null(kept(w, node));
}

static bool busy(struct world *w, uint32_t node)
{
	struct ptc_agent *agent = w->nodes[node].agent;
	bool yes;

	pthread_mutex_lock(&agent->shared.lock);
	yes = agent->shared.jobs && agent->shared.jobs->busy;
	pthread_mutex_unlock(&agent->shared.lock);
	return yes;
}

/* What a Prepare has kept holds no chunk of it, and a Pull that runs is stopped. */
static void test_deleted(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct world w;
	struct gen now, next;
	struct puller p;
	struct info info;
	bool over = false;

	rng = seed + 4;
	world_up(&w, NODES, true);
	gen_make(&now, 1, "tp=1", 1);
	import(&w, &now, 0);
	gen_make(&next, 2, "tp=2", 1);
	next.nodes[0] = 1;
	next.nodes[1] = 2;
	seal_and_prepare(&w, &info, &now, &next);
	assert_true(kept(&w, 1) && kept(&w, 2));
	OK(ptc_agent_job_delete(w.nodes[2].agent, UUID, &err));
	nothing_left(&w, 2);
	p = (struct puller){ .w = &w, .node = 1, .info = &info };
	pthread_create(&p.thread, NULL, puller_main, &p);
	while (!over && !busy(&w, 1))
		over = pthread_tryjoin_np(p.thread, NULL) == 0;
	OK(ptc_agent_job_delete(w.nodes[1].agent, UUID, &err));
	if (!over)
		pthread_join(p.thread, NULL);
	if (!p.rc)
		ptc_pb_free(&p.reply->base);
	nothing_left(&w, 1);
	OK(ptc_agent_job_delete(w.nodes[1].agent, UUID, &err));
	world_down(&w);
}

/* ---- Finish stops a running pull ---- */

static void test_finish_cancels(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct world w;
	struct gen now, next;
	struct puller p;
	struct info info;
	struct ptc_store_stats stats;

	rng = seed + 4;
	world_up(&w, NODES, true);
	gen_make(&now, 1, "tp=1", 1);
	import(&w, &now, 0);
	gen_make(&next, 2, "tp=1", 1);
	next.nodes[0] = 1;
	seal_and_prepare(&w, &info, &now, &next);
	p = (struct puller){ .w = &w, .node = 1, .info = &info };
	pthread_create(&p.thread, NULL, puller_main, &p);
	OK(do_finish(&w, 1, NULL, false, &err));
	pthread_join(p.thread, NULL);
	/* Before, beside or after the pull: nothing of the old attempt may be left once a last finish came. */
	if (p.rc)
		assert_true(p.rc == PTC_ECANCELED || p.rc == PTC_ESTATE || p.rc == PTC_EPEER);
	else
		ptc_pb_free(&p.reply->base);
	OK(do_finish(&w, 1, NULL, false, &err));
	ptc_store_stats(w.nodes[1].store, &stats);
	assert_int_equal(stats.used_bytes, 0);
	world_down(&w);
}

/* ---- liars ---- */

/* Up to NLIES those that break the protocol; what is wrong only in its bytes is seen by nobody who has not the digests.
 */
enum lie { LIE_SHORT, LIE_LONG, LIE_GARBAGE, LIE_LENGTH, LIE_VERSION, LIE_STATUS, LIE_NOTHING, NLIES, LIE_WRONG_BYTES };

struct liar {
	_Atomic enum lie lie; /* the test changes it while the server runs */
	struct ptc_rpc_server *server;
	char sock[200];
};

static int liar_send(struct ptc_rpc_call *call, const void *head, size_t len, size_t payload, struct ptc_error *err)
{
	static uint8_t zeros[1 << 20];
	struct ptc_rpc_part parts[2] = { { .data = head, .len = len }, { .data = zeros, .len = payload } };

	return ptc_rpc_call_send(call, parts, payload ? 2 : 1, err);
}

/* Zeros, as many bytes as were asked for. */
static int liar_wrong_bytes(struct ptc_rpc_call *call, struct ptc_rpc_message *asked, struct ptc_error *err)
{
	ProtobufCMessage *msg;
	const Ptc__V1__FetchRequest *req;
	uint64_t left = 0;
	int rc = ptc_wire_decode(asked, &ptc__v1__fetch_request__descriptor, &msg, err);

	if (rc)
		return rc;
	req = (const Ptc__V1__FetchRequest *)msg;
	for (size_t i = 0; i < req->n_boxes; i++) {
		uint64_t bytes = 1;

		for (size_t d = 0; d < req->boxes[i]->n_extent; d++)
			bytes *= (uint64_t)req->boxes[i]->extent[d];
		left += bytes;
	}
	ptc_pb_free(msg);
	while (!rc && left) {
		uint64_t n = PTC_MIN(left, 1u << 20);
		uint8_t head[16];

		rc = liar_send(call, head, ptc_wire_data_head(head, n), n, err);
		left -= n;
	}
	return rc;
}

static int liar_fetch(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	static const uint8_t ok[] = { 8, 1, 122, 16 }, version[] = { 8, 9, 122, 16 }, length[] = { 8, 1, 122, 99 };
	static const uint8_t garbage[] = { 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1 };
	static const uint8_t megabyte[] = { 8, 1, 122, 128, 128, 64 };
	struct ptc_rpc_message *msg;
	const enum lie lie = ((struct liar *)arg)->lie;
	int rc = ptc_rpc_call_recv(call, &msg, err);

	if (!rc && lie == LIE_WRONG_BYTES) {
		rc = liar_wrong_bytes(call, msg, err);
		ptc_rpc_message_done(msg);
		return rc;
	}
	ptc_rpc_message_done(rc ? NULL : msg);
	switch (lie) {
	case LIE_SHORT:
		return liar_send(call, ok, sizeof(ok), 16, err);
	case LIE_LONG:
		for (int i = 0; !rc && i < 400; i++)
			rc = liar_send(call, megabyte, sizeof(megabyte), 1 << 20, err);
		return rc;
	case LIE_GARBAGE:
		return liar_send(call, garbage, sizeof(garbage), 16, err);
	case LIE_LENGTH:
		return liar_send(call, length, sizeof(length), 16, err);
	case LIE_VERSION:
		return liar_send(call, version, sizeof(version), 16, err);
	case LIE_STATUS:
		return ptc_error_set(err, PTC_ECORRUPT, "a block that does not verify");
	default:
		return 0;
	}
}

static void liar_up(struct liar *l, struct world *w)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_server_opts opts = { .max_calls = 4 };

	snprintf(l->sock, sizeof(l->sock), "%s/liar.sock", w->dir);
	OK(ptc_rpc_server_new(&opts, &l->server, &err));
	OK(ptc_rpc_server_method(l->server, "/ptc.v1.Peer/Fetch", 1u << PTC_ROLE_NODE, liar_fetch, l, &err));
	OK(ptc_rpc_server_listen_unix(l->server, l->sock, 0600, true, &err));
	OK(ptc_rpc_server_start(l->server, &err));
}

/* Whoever asks that node asks there, from now on; NULL: the node. */
static void ask_instead(struct world *w, uint32_t node, const char *sock)
{
	pthread_mutex_lock(&w->lock);
	w->target_override[node] = sock;
	pthread_mutex_unlock(&w->lock);
}

static void test_liars(void **state)
{
	struct world w;
	struct gen now, next;
	struct info info;
	struct liar liar = { .lie = LIE_SHORT };

	rng = seed + 5;
	world_up(&w, NODES, false);
	gen_make(&now, 1, "tp=1", 1);
	now.nodes[0] = 1;
	import(&w, &now, 0);
	gen_make(&next, 2, "tp=2", 1);
	seal_and_prepare(&w, &info, &now, &next);
	liar_up(&liar, &w);
	ask_instead(&w, 1, liar.sock);
	for (int i = 0; i < NLIES; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		Ptc__V1__PullReply *reply;

		liar.lie = (enum lie)i;
		if (do_pull(&w, 0, &info, false, &reply, &err) != PTC_EPEER)
			fail_msg("lie %d: %s", i, err.text);
		assert_non_null(strstr(err.text, "node n1"));
		OK(do_finish(&w, 0, NULL, false, &err)); /* as the controller does: what a liar sent is dropped */
		prepare_all(&w, &info, &next);
	}
	ask_instead(&w, 1, NULL);
	pull_all(&w, &info, &next, false);
	check_ranks(&w, &next, 0);
	ptc_rpc_server_free(liar.server, 100);
	world_down(&w);
}

/* What a node says it has, against what was imported (or nothing, NULL). */
static int merge_of(struct world *w, struct info *info, uint32_t node, const Ptc__V1__PullReply *reply,
		    const uint64_t *expected, struct ptc_error *ret_err)
{
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t merged[NITEMS];
	struct ptc_digests *d;
	struct ptc_geometry g;
	int rc;

	OK(ptc_agent_geometry(w->nodes[0].agent, &info->pb, &info->to, &g, &err));
	OK(ptc_digests_new(&g, &d, &err));
	OK(ptc_digests_add(d, node, reply->need_index, reply->digests, reply->n_digests, &err));
	rc = ptc_digests_merge(d, expected, merged, ret_err);
	ptc_digests_free(d);
	ptc_geometry_done(&g);
	return rc;
}

/* Bytes that are other ones get past every check but the last. */
static void test_wrong_bytes(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PullReply *reply;
	struct world w;
	struct gen now, next;
	struct info info;
	struct liar liar = { .lie = LIE_WRONG_BYTES };

	rng = seed + 12;
	world_up(&w, NODES, false);
	gen_make(&now, 1, "tp=1", 1);
	now.nodes[0] = 1;
	import(&w, &now, 0);
	gen_make(&next, 2, "tp=1", 1);
	seal_and_prepare(&w, &info, &now, &next);
	liar_up(&liar, &w);
	ask_instead(&w, 1, liar.sock);
	OK(do_pull(&w, 0, &info, false, &reply, &err));
	OK(merge_of(&w, &info, 0, reply, NULL, &err));
	assert_int_equal(merge_of(&w, &info, 0, reply, w.digest, &err), PTC_EDIGEST);
	assert_non_null(strstr(err.text, "\" has digest 0000000000000000 instead of "));
	ptc_pb_free(&reply->base);
	OK(do_finish(&w, 0, NULL, false, &err)); /* as the controller does */
	ask_instead(&w, 1, NULL);
	prepare_all(&w, &info, &next);
	pull_all(&w, &info, &next, false);
	check_ranks(&w, &next, 0);
	ptc_rpc_server_free(liar.server, 100);
	world_down(&w);
}

/* A replica that lies or is gone is replaced by one that does not. */
static void test_replicas(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct world w;
	struct gen now, next;
	struct info info;
	struct liar liar = { .lie = LIE_GARBAGE };

	rng = seed + 6;
	world_up(&w, NODES, false);
	gen_make(&now, 1, "tp=1,dp=3", 1);
	for (uint32_t i = 0; i < 3; i++)
		now.nodes[i] = i;
	import(&w, &now, 3);
	gen_make(&next, 2, "tp=2", 1);
	next.nodes[0] = next.nodes[1] = 3;
	seal_and_prepare(&w, &info, &now, &next);
	liar_up(&liar, &w);
	ask_instead(&w, 1, liar.sock);
	node_down(&w, &w.nodes[0]);
	check_gather(&w, &now, 3);
	{
		Ptc__V1__PullReply *reply, *again;

		/* The first digests what came as it came, and what a source that failed sent does not count; the second
		 * reads. */
		OK(do_pull(&w, 3, &info, false, &reply, &err));
		OK(do_pull(&w, 3, &info, false, &again, &err));
		assert_int_equal(reply->n_digests, again->n_digests);
		assert_true(reply->n_digests > 0);
		assert_memory_equal(reply->digests, again->digests, reply->n_digests * sizeof(uint64_t));
		ptc_pb_free(&reply->base);
		ptc_pb_free(&again->base);
	}
	ask_instead(&w, 1, NULL);
	check_ranks(&w, &next, 3);
	ptc_rpc_server_free(liar.server, 100);
	world_down(&w);
}

/* What readers hold outlives its table, on every node, until the last of them gives it up or is gone. */
static void test_pins(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_table_key key = { .uuid = UUID, .generation = 1, .snapshot = 1 };
	struct ptc_table *table;
	struct ptc_store_stats stats;
	struct world w;
	struct gen now;

	rng = seed + 11;
	world_up(&w, 2, false);
	gen_make(&now, 1, "tp=2", 2);
	now.nodes[0] = 0;
	now.nodes[1] = 1;
	import(&w, &now, 0);
	for (uint32_t i = 0; i < 2; i++) {
		OK(ptc_agent_pin(w.nodes[i].agent, &key, "a", 60000, &err));
		OK(ptc_agent_pin(w.nodes[i].agent, &key, "b", 60000, &err));
		OK(ptc_store_keep(w.nodes[i].store, UUID, NULL, 0, &err));
		assert_int_equal(ptc_table_open(w.nodes[i].store, &key, &table, NULL), PTC_ENOTFOUND);
		OK(ptc_agent_pin(w.nodes[i].agent, &key, "a", 0, &err));
		OK(ptc_agent_pin(w.nodes[i].agent, &key, "b", 60000, &err)); /* renewed, though the table is dropped */
		OK(ptc_agent_pin(w.nodes[i].agent, &key, "nobody", 0, &err));
	}
	check_gather(&w, &now, 0);
	check_gather(&w, &now, 1);
	check_ranks(&w, &now, 1);
	for (uint32_t i = 0; i < 2; i++) {
		OK(ptc_agent_pin(w.nodes[i].agent, &key, "b", 1, &err));
		do {
			ptc_agent_pins_expire(w.nodes[i].agent);
			ptc_store_stats(w.nodes[i].store, &stats);
		} while (stats.used_bytes);
		assert_int_equal(ptc_agent_pin(w.nodes[i].agent, &key, "c", 60000, &err), PTC_ENOTFOUND);
	}
	assert_int_equal(ptc_agent_pin(w.nodes[0].agent, &key, "", 1, &err), PTC_EINVAL);
	world_down(&w);
}

/* ---- refusals ---- */

static void test_memory(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_store_stats before, after;
	Ptc__V1__PrepareReply *reply;
	struct world w;
	struct gen now, next;
	struct info info;

	rng = seed + 7;
	world_up(&w, NODES, true);
	gen_make(&now, 1, "tp=1", 1);
	import(&w, &now, 0);
	node_down(&w, &w.nodes[2]);
	w.nodes[2].ceiling = 16u << 20;
	node_up(&w, &w.nodes[2]);
	gen_make(&next, 2, "tp=1", 1);
	next.nodes[0] = 2;
	info_make(&info, &w, &now, &next);
	ptc_store_stats(w.nodes[2].store, &before);
	assert_int_equal(do_prepare(&w, 2, &info, true, &reply, &err), PTC_ENOSPC);
	assert_non_null(strstr(err.text, "n2"));
	assert_int_equal(do_prepare(&w, 2, &info, false, &reply, &err), PTC_ENOSPC);
	ptc_store_stats(w.nodes[2].store, &after);
	assert_int_equal(before.used_bytes, after.used_bytes);
	check_gather(&w, &now, 1);
	world_down(&w);
}

/* ---- no room beside the bridge ---- */

#define COPIES_TABLE (UINT64_C(1) << 62 | 5)

/* Node 2 has half of the record's snapshot (generation 2, whose other half is on node 0), under that number and as the
 * table with its copies; and the bridge, in which its other half is, too. It is full. The next generation is all there.
 */
struct tight {
	struct world w;
	struct gen first, now, bridge, next;
	struct info info;
	Ptc__V1__Copies copies;
	uint32_t nodes[1], keepers[1], ranks[1], sets[1];
	uint64_t snapshots[1];
	ProtobufCBinaryData items[1];
	uint8_t bits[NITEMS / 8 + 1];
	uint64_t seq;                           /* as a controller's requests have it */
	Ptc__V1__TableKey named[4], *yields[4]; /* the source, the target, the bridge, the source's copies */
};

static struct ptc_table_key table_of(uint64_t generation, uint64_t snapshot)
{
	struct ptc_table_key key = { .generation = generation, .snapshot = snapshot };

	snprintf(key.uuid, sizeof key.uuid, "%s", UUID);
	return key;
}

static bool has_table(struct tight *t, uint64_t generation, uint64_t snapshot)
{
	struct ptc_table_key key = table_of(generation, snapshot);
	struct ptc_error err = PTC_ERROR_INIT;
	bool there = false;

	OK(ptc_agent_table_there(t->w.nodes[2].agent, &key, &there, &err));
	return there;
}

static void tight_copies(struct tight *t)
{
	const uint32_t scalar = T_SCALAR * (1 + NFIELDS);

	ptc__v1__copies__init(&t->copies);
	t->nodes[0] = 2;
	t->snapshots[0] = COPIES_TABLE;
	t->ranks[0] = 0;
	t->bits[scalar / 8] = (uint8_t)(1u << scalar % 8);
	t->items[0] = (ProtobufCBinaryData){ sizeof t->bits, t->bits };
	t->copies.n_nodes = t->copies.n_snapshots = t->copies.n_keepers = t->copies.n_ranks = t->copies.n_sets =
		t->copies.n_items = 1;
	t->copies.nodes = t->nodes;
	t->copies.snapshots = t->snapshots;
	t->copies.keepers = t->keepers;
	t->copies.ranks = t->ranks;
	t->copies.sets = t->sets;
	t->copies.items = t->items;
	t->info.from.copies = &t->copies;
}

static void tight_up(struct tight *t)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_store_stats stats;
	struct world *w = &t->w;

	memset(t, 0, sizeof *t);
	rng = seed + 11;
	world_up(w, NODES, true);
	gen_make(&t->first, 1, "tp=1", 1);
	import(w, &t->first, 0);
	gen_make(&t->now, 2, "tp=2", 1);
	t->now.nodes[1] = 2;
	seal_and_prepare(w, &t->info, &t->first, &t->now);
	pull_all(w, &t->info, &t->now, false);
	gen_make(&t->bridge, 3, "tp=1", 1);
	t->bridge.nodes[0] = 2;
	seal_and_prepare(w, &t->info, &t->now, &t->bridge);
	pull_all(w, &t->info, &t->bridge, false);
	gen_make(&t->next, 4, "tp=1", 1);
	t->next.nodes[0] = 2;
	info_make(&t->info, w, &t->now, &t->next);
	OK(do_seal(w, 2, &t->info, 2, t->now.snapshot, COPIES_TABLE, &err));
	ptc_store_stats(w->nodes[2].store, &stats);
	node_down(w, &w->nodes[2]);
	w->nodes[2].ceiling = stats.used_bytes + (1 << 20);
	node_up(w, &w->nodes[2]);
	for (int i = 0; i < 4; i++) {
		ptc__v1__table_key__init(&t->named[i]);
		t->named[i].generation = (uint64_t[]){ 2, 4, 3, 2 }[i];
		t->named[i].snapshot = (uint64_t[]){ t->now.snapshot, 4, 3, COPIES_TABLE }[i];
		t->yields[i] = &t->named[i];
	}
}

static int prepare_tight(struct tight *t, size_t nyields, Ptc__V1__PrepareReply **ret, struct ptc_error *err)
{
	t->info.pb.seq = ++t->seq;
	return do_prepare_tight(&t->w, 2, &t->info, false, t->yields, nyields, ret, err);
}

/* What a Finish says that was dropped; with_bridge: it names the bridge beside the record. */
static uint64_t finish_says(struct tight *t, bool with_bridge)
{
	Ptc__V1__FinishRequest req;
	Ptc__V1__TableKey *keep[3] = { t->yields[0], t->yields[3], t->yields[2] };
	struct ptc_error err = PTC_ERROR_INIT;
	const Ptc__V1__FinishReply *reply;
	ProtobufCMessage *msg;
	uint64_t said;

	ptc__v1__finish_request__init(&req);
	req.version = 1;
	req.uuid = uuid_text;
	req.fence = t->w.fence;
	req.seq = ++t->seq;
	req.keep = keep;
	req.n_keep = with_bridge ? 3 : 2;
	OK(unary(&t->w, 2, "/ptc.v1.Peer/Finish", &req.base, &ptc__v1__finish_reply__descriptor, &msg, &err));
	reply = (const Ptc__V1__FinishReply *)msg;
	said = reply->yielded ? reply->yielded->generation : 0;
	ptc_pb_free(msg);
	return said;
}

/* A Prepare without room drops tables of the bridge that its request names, and says so again and again until a Finish
 * names them no longer. It spares source and target of the switch, whoever names them. */
static void test_yields(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PrepareReply *reply;
	static struct tight t;

	tight_up(&t);
	assert_int_equal(prepare_tight(&t, 0, &reply, &err), PTC_ENOSPC); /* nothing may go */
	assert_true(has_table(&t, 3, 3));
	OK(prepare_tight(&t, 3, &reply, &err));
	assert_non_null(reply->yielded);
	assert_true(reply->yielded->generation == 3 && reply->yielded->snapshot == 3);
	ptc_pb_free(&reply->base);
	assert_true(has_table(&t, 2, t.now.snapshot) && has_table(&t, 4, 4) && !has_table(&t, 3, 3));
	OK(prepare_tight(&t, 3, &reply, &err)); /* the answer was lost */
	assert_true(reply->yielded && reply->yielded->generation == 3);
	ptc_pb_free(&reply->base);
	assert_int_equal(finish_says(&t, true), 3); /* the switch is given up, and the controller does not know it */
	assert_int_equal(finish_says(&t, true), 3);
	assert_int_equal(finish_says(&t, false), 0);
	assert_int_equal(finish_says(&t, true), 0); /* nobody expects it here any more */
	assert_true(has_table(&t, 2, t.now.snapshot) && has_table(&t, 2, COPIES_TABLE) && !has_table(&t, 4, 4));
	world_down(&t.w);
}

/* The record's copies are sources, where ranks do not run: their table stays, and so does that of the node's own part.
 * There is no room even without the bridge, so only a Finish can say that it is gone. */
static void test_yields_no_copies(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PrepareReply *reply;
	static struct tight t;

	tight_up(&t);
	tight_copies(&t);
	OK(do_seal(&t.w, 2, &t.info, 3, 3, 9, &err)); /* so its chunks stay */
	assert_int_equal(prepare_tight(&t, 4, &reply, &err), PTC_ENOSPC);
	assert_true(has_table(&t, 2, t.now.snapshot) && has_table(&t, 2, COPIES_TABLE) && !has_table(&t, 3, 3));
	assert_int_equal(finish_says(&t, true), 3);
	node_down(&t.w, &t.w.nodes[2]);
	node_up(&t.w, &t.w.nodes[2]);
	assert_int_equal(finish_says(&t, true), 0); /* a daemon that restarts has forgotten it */
	world_down(&t.w);
}

static void heap_up(struct world *w, struct gen *now, struct gen *next, struct info *info)
{
	rng = seed + 9;
	world_up(w, 2, true);
	gen_make(now, 1, "tp=1", 1);
	import(w, now, 0);
	gen_make(next, 2, "tp=2", 2);
	info_make(info, w, now, next);
}

/* A heap that is full refuses with the key to change, and nothing is lost or left. The allocation that fails may be one
 * of the RPC layer's own that it can do without: then the node was prepared, and another one is tried in a world of its
 * own. */
static void test_heap(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PrepareReply *reply;
	unsigned refused = 0;
	struct world w;
	struct gen now, next;
	struct info info;
	int rc = PTC_ENOMEM;

	heap_up(&w, &now, &next, &info);
	for (uint64_t k = 1; (rc || !refused) && k < 5000; k += 3) {
		if (!rc) {
			world_down(&w);
			heap_up(&w, &now, &next, &info);
		}
		ptc_alloc_fail_at(k);
		rc = do_prepare(&w, 1, &info, true, &reply, &err);
		ptc_alloc_fail_at(0);
		refused += rc && strstr(err.text, "memory.work of 1234 bytes");
		if (!rc)
			ptc_pb_free(&reply->base);
	}
	assert_int_equal(rc, 0);
	assert_true(refused > 0);
	check_gather(&w, &now, 1);
	world_down(&w);
}

static int64_t least;

static int least_fence(void *arg, const char *uuid, int64_t *ret_fence)
{
	(void)arg;
	assert_string_equal(uuid, UUID);
	*ret_fence = least;
	return 0;
}

static void least_hook(struct world *w, struct node *n, struct ptc_agent_env *env)
{
	(void)w;
	(void)n;
	env->least_fence = least_fence;
}

/* A node that knows nothing of a job, because its store is new, refuses a controller that has lost the lock. */
static void test_fence_of_a_new_store(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PrepareReply *reply;
	struct world w;
	struct gen now, next;
	struct info info;

	rng = seed + 12;
	least = 0;
	world_hook = least_hook;
	world_up(&w, 2, false);
	world_hook = NULL;
	w.fence = 10;
	gen_make(&now, 1, "tp=2", 1);
	import(&w, &now, 1);
	gen_make(&next, 2, "tp=2", 2);
	info_make(&info, &w, &now, &next);
	least = 11;
	assert_int_equal(do_prepare(&w, 1, &info, true, &reply, &err), PTC_EFENCED);
	assert_non_null(strstr(err.text, "has lost the job's lock (fence 10, and 11 is the least now)"));
	info.pb.fence = 11;
	OK(do_prepare(&w, 1, &info, false, &reply, &err));
	ptc_pb_free(&reply->base);
	least = 30; /* it knows of one itself by now, and nobody is asked */
	info.pb.fence = 12;
	OK(do_prepare(&w, 1, &info, false, &reply, &err));
	ptc_pb_free(&reply->base);
	world_down(&w);
}

static void test_fences_and_numbers(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT, forgotten = PTC_ERROR_INIT;
	Ptc__V1__PrepareReply *reply;
	struct world w;
	struct gen now, next;
	struct info info;
	uint32_t keep;

	rng = seed + 8;
	world_up(&w, 2, false);
	w.fence = 10;
	gen_make(&now, 1, "tp=2", 1);
	import(&w, &now, 1);
	gen_make(&next, 2, "tp=2", 2);
	info_make(&info, &w, &now, &next);
	info.pb.fence = 9;
	assert_int_equal(do_prepare(&w, 0, &info, false, &reply, &err), PTC_EFENCED);
	node_down(&w, &w.nodes[0]);
	node_up(&w, &w.nodes[0]); /* what it remembers is in its store */
	assert_int_equal(do_prepare(&w, 0, &info, false, &reply, &forgotten), PTC_EFENCED);
	assert_non_null(strstr(forgotten.text, "has obeyed a controller"));
	info.pb.fence = 10;
	keep = next.nodes[1];
	next.nodes[1] = NODES;
	assert_int_equal(do_prepare(&w, 0, &info, false, &reply, &err), PTC_EINVAL);
	next.nodes[1] = next.nodes[0];
	next.devices[1] = next.devices[0];
	assert_int_equal(do_prepare(&w, 0, &info, false, &reply, &err), PTC_EINVAL);
	next.nodes[1] = keep;
	next.devices[1] = 63;
	info.to.n_devices = 1;
	assert_int_equal(do_prepare(&w, 0, &info, false, &reply, &err), PTC_EINVAL);
	info.to.n_devices = 2;
	strcpy(next.config, "tp=4");
	assert_int_equal(do_prepare(&w, 0, &info, false, &reply, &err), PTC_EINVAL);
	strcpy(next.config, "tp=2");
	info.names[1] = info.names[0];
	assert_int_equal(do_prepare(&w, 0, &info, false, &reply, &err), PTC_EINVAL);
	world_down(&w);
}

static int try_fetch(struct world *w, uint32_t item, size_t noff, int64_t *off, size_t next, int64_t *ext,
		     uint32_t version, struct ptc_error *err)
{
	Ptc__V1__Box box = PTC__V1__BOX__INIT, *boxes[1] = { &box };
	Ptc__V1__FetchRequest req;
	struct ptc_rpc_message *msg;
	struct ptc_rpc_stream *s;
	int rc;

	ptc__v1__fetch_request__init(&req);
	req.version = version;
	req.uuid = uuid_text;
	req.generation = req.snapshot = 1;
	req.n_boxes = 1;
	req.boxes = boxes;
	box.item = item;
	box.n_offset = noff;
	box.offset = off;
	box.n_extent = next;
	box.extent = ext;
	rc = open_call(w, 0, "/ptc.v1.Peer/Fetch", &req.base, &s, err);
	while (!rc && !(rc = ptc_rpc_stream_recv(s, &msg, err)) && msg)
		ptc_rpc_message_done(msg);
	if (rc == 0)
		rc = ptc_rpc_stream_finish(s, err);
	ptc_rpc_stream_free(s);
	return rc;
}

static int try_put(struct world *w, uint64_t id, uint32_t item, int64_t off, int64_t ext, size_t payload,
		   struct ptc_error *err)
{
	static uint8_t data[4096];
	Ptc__V1__PutChunk chunk;
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *msg;
	int rc;

	ptc__v1__put_chunk__init(&chunk);
	chunk.version = 1;
	chunk.uuid = uuid_text;
	chunk.import_id = id;
	chunk.item = item;
	chunk.n_offset = chunk.n_extent = 1;
	chunk.offset = &off;
	chunk.extent = &ext;
	chunk.data.data = data;
	chunk.data.len = payload;
	rc = open_call(w, 0, "/ptc.v1.Peer/Put", &chunk.base, &s, err);
	if (rc == 0)
		rc = ptc_rpc_stream_recv(s, &msg, err);
	if (!rc)
		ptc_rpc_message_done(msg);
	if (rc == 0)
		rc = ptc_rpc_stream_finish(s, err);
	ptc_rpc_stream_free(s);
	return rc;
}

static void test_wire_numbers(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	int64_t zero[9] = { 0 }, huge[9] = { INT64_MAX, INT64_MAX }, one[9] = { 1, 8 }, minus[9] = { -1, 0 };
	const uint32_t norm = T_NORM * (1 + NFIELDS);
	struct info info;
	struct world w;
	struct gen now;

	rng = seed + 9;
	world_up(&w, 1, false);
	gen_make(&now, 1, "tp=1", 1);
	import(&w, &now, 0);
	OK(try_fetch(&w, norm, 1, zero, 1, one, 1, &err));
	OK(try_fetch(&w, norm, 1, zero, 1, one, 2, &err));
	assert_int_equal(try_fetch(&w, norm, 1, zero, 1, one, 3, &err), PTC_EVERSION);
	assert_int_equal(try_fetch(&w, NITEMS + 5, 1, zero, 1, one, 1, &err), PTC_ENOTFOUND);
	assert_int_equal(try_fetch(&w, norm, 1, zero, 1, huge, 1, &err), PTC_ENOTFOUND);
	assert_int_equal(try_fetch(&w, norm, 2, zero, 2, huge, 1, &err), PTC_EINVAL);
	assert_int_equal(try_fetch(&w, norm, 2, one, 2, huge, 1, &err), PTC_EINVAL);
	assert_int_equal(try_fetch(&w, norm, 1, minus, 1, one, 1, &err), PTC_EINVAL);
	assert_int_equal(try_fetch(&w, norm, 9, zero, 9, one, 1, &err), PTC_EINVAL);
	assert_int_equal(try_fetch(&w, norm, 1, zero, 2, one, 1, &err), PTC_EINVAL);
	assert_int_equal(try_fetch(&w, norm, 0, zero, 0, one, 1, &err), PTC_EINVAL);
	assert_int_equal(try_put(&w, 77, norm, 0, 8, 8, &err), PTC_ESTATE); /* finished */
	now.number = now.snapshot = 2;
	info_make(&info, &w, NULL, &now);
	prepare_all(&w, &info, &now);
	OK(try_put(&w, 77, norm, 0, 8, 8, &err));
	assert_int_equal(try_put(&w, 78, norm, 0, 8, 8, &err), PTC_ESTATE);
	assert_int_equal(try_put(&w, 77, norm, 0, 8, 9, &err), PTC_EPEER);
	assert_int_equal(try_put(&w, 77, norm, 0, 4000, 8, &err), PTC_EPEER);
	assert_int_equal(try_put(&w, 77, norm, -8, 8, 8, &err), PTC_EINVAL);
	try_put(&w, 77, norm, 1 << 20, 8, 8, &err); /* outside every extent: touches nothing */
	try_put(&w, 77, NITEMS + 1, INT64_MAX - 8, 8, 8, &err);
	world_down(&w);
}

/* ---- what memory a node has left ---- */

static _Atomic uint64_t machine_bytes, machine_left; /* 0: not known; nothing */

uint64_t __wrap_ptc_machine_memory(void);
uint64_t __wrap_ptc_machine_memory_available(void);

uint64_t __wrap_ptc_machine_memory(void)
{
	return machine_bytes;
}

uint64_t __wrap_ptc_machine_memory_available(void)
{
	return machine_left;
}

static Ptc__V1__RoomReply ask_room(struct world *w, char *uuid)
{
	struct ptc_error err = PTC_ERROR_INIT;
	ProtobufCMessage *reply = NULL;
	Ptc__V1__RoomRequest req;
	Ptc__V1__RoomReply ret;

	ptc__v1__room_request__init(&req);
	req.version = PTC_WIRE_VERSION;
	req.uuid = uuid;
	OK(unary(w, 0, "/ptc.v1.Peer/Room", &req.base, &ptc__v1__room_reply__descriptor, &reply, &err));
	ret = *(Ptc__V1__RoomReply *)reply;
	ptc_pb_free(reply);
	return ret; /* its numbers */
}

/* A node with nothing left, as one whose control group is at its limit, is not one that says nothing. Of free chunks
 * only those of the job count. */
static void test_room(void **state)
{
	static char other[] = "11234567-89ab-cdef-0123-456789abcdef", none[] = "";
	struct ptc_error err = PTC_ERROR_INIT;
	static struct world w;

	(void)state;
	world_up(&w, 1, false);
	assert_int_equal(ask_room(&w, uuid_text).memory_bytes, 0);
	machine_bytes = 1 << 30;
	assert_int_equal(ask_room(&w, uuid_text).memory_bytes, 1);
	machine_left = 4096;
	assert_int_equal(ask_room(&w, uuid_text).memory_bytes, 4096);
	assert_int_equal(ask_room(&w, uuid_text).free_bytes, 0);
	OK(ptc_store_job_create(w.nodes[0].store, UUID, getuid(), &err));
	OK(ptc_store_job_create(w.nodes[0].store, other, getuid(), &err));
	OK(ptc_store_warm(w.nodes[0].store, other, 4 * PTC_CHUNK_BYTES, &err));
	assert_int_equal(ask_room(&w, uuid_text).free_bytes, 0);
	OK(ptc_store_warm(w.nodes[0].store, UUID, 2 * PTC_CHUNK_BYTES, &err));
	assert_true(ask_room(&w, uuid_text).free_bytes >= 2 * PTC_CHUNK_BYTES);
	assert_true(ask_room(&w, other).free_bytes >= 4 * PTC_CHUNK_BYTES);
	assert_int_equal(ask_room(&w, none).free_bytes, 0); /* as an earlier version asks */
	world_down(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shared_work),    cmocka_unit_test(test_cycles),
		cmocka_unit_test(test_resume),         cmocka_unit_test(test_kept_fill),
		cmocka_unit_test(test_finish_cancels), cmocka_unit_test(test_liars),
		cmocka_unit_test(test_replicas),       cmocka_unit_test(test_pins),
		cmocka_unit_test(test_memory),         cmocka_unit_test(test_heap),
		cmocka_unit_test(test_yields),         cmocka_unit_test(test_yields_no_copies),
		cmocka_unit_test(test_wire_numbers),   cmocka_unit_test(test_fences_and_numbers),
		cmocka_unit_test(test_wrong_bytes),    cmocka_unit_test(test_fence_of_a_new_store),
		cmocka_unit_test(test_room),           cmocka_unit_test(test_deleted),
		cmocka_unit_test(test_near_cycles), /* sets TMPDIR */
	};
	const char *text = getenv("PTC_CASES");
	int rc;

	seed = ptc_test_seed();
	cases = text ? strtoull(text, NULL, 0) : cases;
	ptc_rpc_init();
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	ptc_rpc_shutdown();
	return rc;
}
