/* SPDX-License-Identifier: Apache-2.0 */
/* How far new ranks get beside those that train: by what nodes say of their memory and of their ranks. Where nodes are
 * asked, the calls, the loop and the clock are the test's: no node answers before all were asked. */
#include "base/alloc.h"
#include "base/check.h"
#include "daemon/controller/plan/internal.h"
#include "proto/pb.h"

#include "ptc.pb-c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MIB  UINT64_C(1048576)
#define UUID "01234567-89ab-cdef-0123-456789abcdef"

/* Two nodes; the first has two old ranks, and each is to have two new ones, on its devices 0 and 1. */
static struct world {
	struct ptc_build_node nodes[2];
	Ptc__V1__RoomReply rooms[2];
	Ptc__V1__DeviceRoom devices[2][2], *lists[2][2];
	int64_t pids[2];
	uint64_t used[2];
	struct ptc_generation_doc to;
	struct ptc_build_took took;
	struct ptc_plan_build said;
} w;
static char first[] = "n0", second[] = "n1", *names[] = { first, second };
static uint32_t rank_node[] = { 0, 0, 1, 1 }, rank_device[] = { 0, 1, 0, 1 };

static int setup(void **state)
{
	(void)state;
	memset(&w, 0, sizeof w);
	w.to = (struct ptc_generation_doc){
		.nodes = names, .nnodes = 2, .world = 4, .rank_node = rank_node, .rank_device = rank_device
	};
	for (int i = 0; i < 2; i++) {
		ptc__v1__room_reply__init(&w.rooms[i]);
		w.rooms[i].memory_bytes = 1000 * MIB;
		w.rooms[i].store_bytes = 10000 * MIB;
		w.rooms[i].devices = w.lists[i];
		w.rooms[i].n_devices = 2;
		for (int k = 0; k < 2; k++) {
			ptc__v1__device_room__init(w.lists[i][k] = &w.devices[i][k]);
			w.devices[i][k].memory_bytes = 1000 * MIB;
			w.devices[i][k].free_bytes = 500 * MIB;
		}
		w.nodes[i] = (struct ptc_build_node){
			.name = names[i], .after = 2, .store = 100 * MIB, .room = &w.rooms[i]
		};
	}
	w.nodes[0].before = 2;
	w.nodes[0].store = 300 * MIB;
	/* of 300 MiB, 100 are tensors; new ranks have 50 of them */
	w.took = (struct ptc_build_took){ .host = 300 * MIB, .declared = 100 * MIB, .declares = 50 * MIB };
	return 0;
}

static const char *decide(const char *level)
{
	ptc_build_decide(w.nodes, 2, &w.took, &w.to, &w.said);
	assert_string_equal(level, w.said.level);
	return w.said.why;
}

static void test_host(void **state)
{
	(void)state;
	assert_string_equal("there is room for what each new rank takes: about 250 MiB", decide("memory"));
	w.rooms[0].memory_bytes = 800 * MIB; /* 2 * 250, and the store's */
	decide("memory");
	w.rooms[0].memory_bytes--;
	assert_string_equal("node n0 has 800 MiB of memory left, and its 2 new ranks would take about 500 MiB beside "
			    "the old ones and 300 MiB in the store",
			    decide("imports"));
	w.rooms[0].store_bytes = 299 * MIB; /* that is all the store may take */
	decide("memory");
	w.rooms[1].memory_bytes = 599 * MIB; /* no old ranks are there */
	assert_non_null(strstr(decide("imports"), "node n1 has 599 MiB"));
	w.nodes[1].after = 0; /* and none go there */
	decide("memory");
}

/* What the store has already is not wanted again; of the rest it takes no more than it may. */
static void test_free_chunks(void **state)
{
	(void)state;
	w.rooms[0].memory_bytes = 700 * MIB;
	assert_non_null(strstr(decide("imports"), "about 500 MiB beside the old ones and 300 MiB in the store"));
	w.rooms[0].free_bytes = 100 * MIB;
	decide("memory");
	w.rooms[0].memory_bytes--;
	assert_non_null(strstr(decide("imports"), "about 500 MiB beside the old ones and 200 MiB in the store"));
	w.rooms[0].store_bytes = 150 * MIB;
	w.rooms[0].memory_bytes = 650 * MIB;
	decide("memory");
	w.rooms[0].memory_bytes--;
	assert_non_null(strstr(decide("imports"), "and 150 MiB in the store"));
	w.rooms[0].free_bytes = 400 * MIB; /* more than the switch takes */
	w.rooms[0].memory_bytes = 500 * MIB;
	decide("memory");
	w.rooms[0].memory_bytes--;
	assert_non_null(strstr(decide("imports"), "and 0 MiB in the store"));
}

/* What ran before is known better than by an estimate. */
static void test_measured(void **state)
{
	(void)state;
	w.took.measured_host = 360 * MIB;
	assert_non_null(strstr(decide("imports"), "would take about 720 MiB"));
	w.took.measured_host = 100 * MIB;
	decide("memory");
}

static void test_devices(void **state)
{
	(void)state;
	w.took.on_devices = true;
	w.took.device = 400 * MIB;
	assert_string_equal("there is room for what each new rank takes: about 300 MiB, and 350 MiB of a device",
			    decide("memory"));
	w.devices[1][1].free_bytes = 349 * MIB;
	assert_string_equal("device 1 of node n1 has 349 MiB of memory left, and its new ranks would take about 350 "
			    "MiB beside the old ones",
			    decide("imports"));
	w.took.device = 0; /* the driver does not say: the tensors at least */
	assert_string_equal("room was not checked: what the ranks that train use of their devices is not known",
			    decide("memory"));
	w.devices[1][1].free_bytes = 49 * MIB;
	decide("imports");
	w.devices[1][1].memory_bytes = 0; /* it does not answer */
	decide("memory");
	w.took.measured_device = 200 * MIB; /* the program has said it */
	assert_string_equal("room was not checked: node n1 does not say what memory its device 1 has left",
			    decide("memory"));
	w.devices[1][1].memory_bytes = 1000 * MIB;
	w.devices[1][1].free_bytes = 200 * MIB;
	assert_non_null(strstr(decide("memory"), "there is room for what each new rank takes: "));
	w.rooms[0].n_devices = 0;
	assert_non_null(strstr(decide("memory"), "node n0 does not say what memory its device 0 has left"));
	w.took.on_devices = false; /* nothing of them is wanted */
	assert_non_null(strstr(decide("memory"), "there is room for what each new rank takes: "));
}

/* It is said, and ranks build ahead. */
static void test_unknown(void **state)
{
	(void)state;
	w.nodes[1].room = NULL;
	assert_string_equal("room was not checked: node n1 does not say what memory it has left", decide("memory"));
	w.took.host = 0;
	assert_non_null(strstr(decide("memory"), "what the ranks that train have taken is not known"));
	w.rooms[0].memory_bytes = 399 * MIB; /* the tensors may lie on devices, so two times 50 MiB are no estimate */
	assert_non_null(strstr(decide("memory"), "what the ranks that train have taken is not known"));
	w.took.measured_host = 50 * MIB; /* now they are one */
	decide("imports");
	w.took.measured_host = 0;
	w.took.on_devices = true; /* so are the store's bytes, and the devices' */
	w.rooms[0].memory_bytes = 300 * MIB;
	assert_non_null(strstr(decide("memory"), "what the ranks that train have taken is not known"));
	w.rooms[0].memory_bytes--;
	decide("imports");
	w.took.on_devices = false;
	w.took.declares = 0;
	assert_non_null(strstr(decide("memory"), "not known before they have built once"));
}

static void test_took(void **state)
{
	struct ptc_rank_row rows[] = {
		{ .slot = true, .generation = 3, .incarnation = 9, .memory_peak = 200, .pid = 70, .on_device = true },
		{ .slot = true,
		  .generation = 3,
		  .incarnation = 9,
		  .memory_peak = 300,
		  .pid = 5, /* a script that has started it, and uses the device itself */
		  .program_pid = 71,
		  .on_device = true,
		  .device = 1,
		  .memory.copied_by = "rank" },
		{ .slot = true, .generation = 4, .incarnation = 9, .memory_peak = 900 },
		{ .slot = true, .generation = 3, .incarnation = 8, .memory_peak = 900 },
		{ .slot = true, .generation = 3, .incarnation = 9, .pid = 72, .on_device = true, .device = 7 },
	};
	struct ptc_build_took took = { 0 };

	(void)state;
	w.pids[0] = 5;
	w.pids[1] = 71;
	w.used[0] = 999;
	w.used[1] = 50;
	w.devices[0][1].pids = w.pids;
	w.devices[0][1].used_bytes = w.used;
	w.devices[0][1].n_pids = w.devices[0][1].n_used_bytes = 2;
	w.nodes[0].rows = (struct ptc_rank_rows){ rows, 5 };
	ptc_build_took_add(&w.nodes[0], 3, 9, &took);
	assert_int_equal(300, took.host);
	assert_int_equal(50, took.device);
	assert_true(took.on_devices);
	rows[1].pid = 71; /* as an earlier version says it */
	rows[1].program_pid = 0;
	took = (struct ptc_build_took){ 0 };
	ptc_build_took_add(&w.nodes[0], 3, 9, &took);
	assert_int_equal(50, took.device);
}

/* ---- the questions ---- */

#define N 4

/* Mostly old ranks are on n0 and n1, and new ones come to n1, n2 and n3. So there are four questions for memory, and
 * two for ranks. */
static struct cluster {
	struct ptc_node nodes[N];
	int status[N];                                  /* of the answer to Room */
	bool never;                                     /* n3 does not answer */
	int ranks;                                      /* the status of answers to Ranks */
	uint64_t memory_bytes, store_bytes, free_bytes; /* that each has left */
	struct call {
		ptc_rpc_done_fn cb;
		void *arg;
		size_t node;
		bool ranks;
	} calls[2 * N];
	size_t ncalls, all, last, waits;
	int64_t now_ns;
	atomic_bool stopping;
} c;

int __wrap_ptc_loop_call(struct ptc_loop *loop, void (*fn)(void *arg), void *arg);
bool __wrap_ptc_cluster_find_node(struct ptc_cluster *cluster, const char *name, uint32_t *ret);
struct ptc_node *__wrap_ptc_cluster_node(struct ptc_cluster *cluster, uint32_t node);
int __wrap_ptc_channels_get(struct ptc_channels *channels, const char *node, const char *address, bool bulk,
			    unsigned lane, struct ptc_rpc_channel **ret, struct ptc_error *err);
void __wrap_ptc_rpc_unary_async(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel, const char *method,
				const void *request, size_t len, int timeout_ms, ptc_rpc_done_fn cb, void *arg);
bool __wrap_ptc_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ns);
int64_t __wrap_ptc_sys_now_ns(void);

int __wrap_ptc_loop_call(struct ptc_loop *loop, void (*fn)(void *arg), void *arg)
{
	(void)loop;
	fn(arg);
	return 0;
}

bool __wrap_ptc_cluster_find_node(struct ptc_cluster *cluster, const char *name, uint32_t *ret)
{
	(void)cluster;
	*ret = (uint32_t)(name[1] - '0');
	return true;
}

struct ptc_node *__wrap_ptc_cluster_node(struct ptc_cluster *cluster, uint32_t node)
{
	(void)cluster;
	return &c.nodes[node];
}

int __wrap_ptc_channels_get(struct ptc_channels *channels, const char *node, const char *address, bool bulk,
			    unsigned lane, struct ptc_rpc_channel **ret, struct ptc_error *err)
{
	(void)channels, (void)address, (void)bulk, (void)lane, (void)err;
	c.last = (size_t)(node[1] - '0');
	*ret = NULL;
	return 0;
}

int64_t __wrap_ptc_sys_now_ns(void)
{
	return c.now_ns;
}

bool __wrap_ptc_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ns)
{
	(void)cond, (void)lock;
	assert_true(until_ns > c.now_ns);
	c.now_ns = until_ns;
	c.waits++;
	return false;
}

static void reply(const struct call *to)
{
	static char rows[] = "[{\"rank\": 0, \"generation\": 3, \"incarnation\": 9, \"state\": \"running\", "
			     "\"pid\": 7, \"memory_peak_bytes\": 314572800}]";
	Ptc__V1__RoomReply room;
	Ptc__V1__Document ranks;
	const int status = to->ranks ? c.ranks : c.status[to->node];
	void *data = NULL;
	size_t len = 0;

	ptc__v1__room_reply__init(&room);
	ptc__v1__document__init(&ranks);
	room.version = PTC_WIRE_VERSION;
	room.memory_bytes = c.memory_bytes;
	room.store_bytes = c.store_bytes;
	room.free_bytes = c.free_bytes;
	ranks.json = rows;
	if (status == 0)
		assert_int_equal(0, ptc_pb_encode(to->ranks ? &ranks.base : &room.base, &data, &len, NULL));
	to->cb(to->arg, status, NULL, data, len);
	ptc_free(data);
}

static void expect_job(const void *request, size_t len)
{
	ProtobufCMessage *m = NULL;

	assert_int_equal(0, ptc_pb_decode(&ptc__v1__room_request__descriptor, request, len, &m, NULL));
	assert_string_equal(UUID, ((Ptc__V1__RoomRequest *)m)->uuid);
	ptc_pb_free(m);
}

static bool is_silent(const struct call *k)
{
	return c.never && k->node == 3;
}

void __wrap_ptc_rpc_unary_async(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel, const char *method,
				const void *request, size_t len, int timeout_ms, ptc_rpc_done_fn cb, void *arg)
{
	const bool ranks = strcmp(method, "/ptc.v1.Peer/Ranks") == 0;

	(void)client, (void)channel;
	assert_true(timeout_ms <= 2000);
	if (!ranks)
		expect_job(request, len);
	c.calls[c.ncalls++] = (struct call){ cb, arg, c.last, ranks };
	for (size_t i = c.ncalls; c.ncalls == c.all && i-- > 0;)
		if (!is_silent(&c.calls[i]))
			reply(&c.calls[i]);
}

static int setup_questions(void **state)
{
	(void)state;
	memset(&c, 0, sizeof c);
	for (size_t i = 0; i < N; i++)
		c.nodes[i].up = true;
	c.all = 6;
	c.now_ns = 1;
	c.memory_bytes = 1000 * MIB;
	return 0;
}

/* Ranks that hold 100 MiB each, all the same. */
static struct ptc_layout *replicas(uint32_t n)
{
	static struct ptc_tensor all[] = { { "w", PTC_U8, 1, { 100 * MIB } } };
	static const struct ptc_spec spec = { .name = "job", .tensors = all, .ntensors = 1 };
	struct ptc_layout *l = NULL;
	struct ptc_config config;
	char text[16];

	snprintf(text, sizeof text, "dp=%u", n);
	assert_int_equal(0, ptc_config_parse(text, &config, NULL));
	assert_int_equal(0, ptc_layout_new(&spec, &config, &l, NULL));
	return l;
}

#define RANKS 4

/* The nodes of the ranks, by number. */
static const char *ask_about(const uint32_t *from, uint32_t nfrom, const uint32_t *to, uint32_t nto, const char *level)
{
	static char node[N][3] = { "n0", "n1", "n2", "n3" };
	static char *all_nodes[] = { node[0], node[1], node[2], node[3] };
	static struct ptc_plan_build said;
	struct ptc_device before[RANKS] = { 0 }, after[RANKS] = { 0 };
	uint32_t from_at[RANKS], to_at[RANKS], device[RANKS] = { 0 };
	char *from_nodes[RANKS], *to_nodes[RANKS];
	const int64_t live = ptc_alloc_live();
	struct ptc_controllers all = { .stopping = &c.stopping };
	struct ptc_view v = { .from = { .nodes = from_nodes, .world = nfrom, .rank_node = from_at },
			      .from_generation = 3,
			      .from_incarnation = 9,
			      .meta.uuid = UUID };
	struct ptc_generation_doc next = { .nodes = to_nodes, .world = nto, .rank_node = to_at, .rank_device = device };
	const struct ptc_device_pool p = { .all = &all, .v = &v, .names = all_nodes, .nnames = N };
	struct ptc_layout *held = replicas(nfrom), *wanted = replicas(nto);
	const struct ptc_plan_layouts l = {
		.from = held, .to = wanted, .copied_at = { before, nfrom }, .to_alloc = { after, nto }
	};

	for (uint32_t i = 0; i < nfrom; i++) { /* nodes come in the order of their ranks */
		if (i == 0 || from[i] != from[i - 1])
			from_nodes[v.from.nnodes++] = node[from[i]];
		from_at[i] = (uint32_t)v.from.nnodes - 1;
		before[i].node = from[i];
	}
	for (uint32_t i = 0; i < nto; i++) {
		if (i == 0 || to[i] != to[i - 1])
			to_nodes[next.nnodes++] = node[to[i]];
		to_at[i] = (uint32_t)next.nnodes - 1;
		after[i].node = to[i];
	}
	ptc_plan_build_room(&p, &next, &l, &said);
	for (size_t i = 0; i < c.ncalls; i++) /* too late, or as the daemon stops */
		if (is_silent(&c.calls[i]) || c.ncalls < c.all)
			reply(&c.calls[i]);
	ptc_layout_free(held);
	ptc_layout_free(wanted);
	assert_int_equal(live, ptc_alloc_live());
	assert_string_equal(level, said.level);
	return said.why;
}

static const char *ask(void)
{
	static const uint32_t from[] = { 0, 1 }, to[] = { 1, 2, 3 };

	return ask_about(from, 2, to, 3, "memory");
}

/* The store of a node has the bytes of its replicas once. */
static void test_replicas(void **state)
{
	static const uint32_t from[] = { 0, 0, 0, 0 }, to[] = { 0, 1 };

	for (int enough = 1; enough >= 0; enough--) {
		setup_questions(state);
		c.all = 3;
		c.store_bytes = 10000 * MIB;
		c.memory_bytes = 500 * MIB - !enough; /* a new rank's 300, and 100 of the store for each generation */
		if (enough)
			assert_string_equal("there is room for what each new rank takes: about 300 MiB",
					    ask_about(from, 4, to, 2, "memory"));
		else
			assert_string_equal("node n0 has 500 MiB of memory left, and its 1 new ranks would take about "
					    "300 MiB beside the old ones and 200 MiB in the store",
					    ask_about(from, 4, to, 2, "imports"));
	}
	setup_questions(state);
	c.all = 3;
	c.store_bytes = 10000 * MIB;
	c.free_bytes = 60 * MIB;
	c.memory_bytes = 440 * MIB;
	ask_about(from, 4, to, 2, "memory");
}

static void test_all_at_once(void **state)
{
	(void)state;
	assert_string_equal("there is room for what each new rank takes: about 300 MiB", ask());
	assert_int_equal(6, c.ncalls);
	assert_int_equal(0, c.waits);
}

/* Who says nothing is said to be silent, and not to be of an earlier version. */
static void test_silent(void **state)
{
	static const struct {
		int status;
		const char *said;
	} cases[] = {
		{ PTC_ETIMEOUT, "room was not checked: node n3 did not answer in time" },
		{ PTC_EPEER, "room was not checked: node n3 could not be asked" },
		{ PTC_EVERSION, "room was not checked: node n3 does not say what memory it has left" },
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		setup_questions(state);
		c.status[3] = cases[i].status;
		assert_string_equal(cases[i].said, ask());
	}
	setup_questions(state);
	c.never = true;
	assert_string_equal("room was not checked: node n3 did not answer in time", ask());
	assert_true(c.waits > 0 && c.now_ns <= INT64_C(3000000000));
	setup_questions(state);
	c.nodes[3].up = false;
	c.all = 5;
	assert_string_equal("room was not checked: node n3 could not be asked", ask());
}

/* Whether their tensors lie in memory of the host is not known then, so they are not counted as if they did. */
static void test_no_ranks(void **state)
{
	(void)state;
	c.ranks = PTC_ETIMEOUT;
	c.memory_bytes = 99 * MIB;
	assert_string_equal("room was not checked: what the ranks that train have taken is not known", ask());
}

/* The daemon waits for whoever asks, and no answer is told any more. */
static void test_daemon_stops(void **state)
{
	(void)state;
	c.all = 7; /* none answers */
	c.stopping = true;
	assert_string_equal("room was not checked: what the ranks that train have taken is not known", ask());
	assert_int_equal(0, c.waits);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_host, setup),
		cmocka_unit_test_setup(test_free_chunks, setup),
		cmocka_unit_test_setup(test_measured, setup),
		cmocka_unit_test_setup(test_devices, setup),
		cmocka_unit_test_setup(test_unknown, setup),
		cmocka_unit_test_setup(test_took, setup),
		cmocka_unit_test_setup(test_all_at_once, setup_questions),
		cmocka_unit_test(test_replicas),
		cmocka_unit_test(test_silent),
		cmocka_unit_test_setup(test_no_ranks, setup_questions),
		cmocka_unit_test_setup(test_daemon_stops, setup_questions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
