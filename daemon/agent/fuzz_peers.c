/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point: calls of ptc.v1.Peer, one after the other. Each is a byte that chooses the call, two bytes for the
 * length of its message, and the message. A whole agent with committed state and a store of its own gets them over a
 * socket, as from a node. Whatever they say, the agent answers, and committed bytes do not change as long as they are
 * there. */
#include "daemon/agent/test_world.h"

#include "daemon/store/store_read.h"
#include "daemon/store/store_table.h"
#include "daemon/workers/workers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define CALL_MS    300 /* some calls wait for what never comes */
#define REPLIES    64
#define CALLS      8
#define INPUTS_MAX 512 /* until the world is made anew: what refused calls leave, such as fences, adds up */

static const struct {
	const char *name;
	bool changes; /* committed or begun state, where it succeeds */
} calls[] = {
	{ "Seal", true },       { "Prepare", true }, { "Pull", true },  { "Put", true },     { "Finish", true },
	{ "Fetch", false },     { "Digest", false }, { "Stat", false }, { "Capture", true }, { "Start", true },
	{ "FetchRank", false }, { "Arm", true },     { "Stop", true },  { "End", true },     { "Build", true },
	{ "Meet", false },      { "Ranks", false },  { "Log", false },  { "Pin", false },    { "Near", false },
};

static struct world *w;
static struct gen committed;
static struct ptc_workers *workers;
static unsigned inputs; /* of this world */

/* Nobody else is there: an address in a message is not called. */
static int no_channel(void *arg, const char *node, const char *address, bool bulk, unsigned lane,
		      struct ptc_rpc_channel **ret_channel, struct ptc_error *err)
{
	(void)arg, (void)address, (void)bulk, (void)lane, (void)ret_channel;
	return ptc_error_set(err, PTC_EPEER, "node %s is not there", node);
}

/* It has a place for ranks. How a job's are started it does not know: a message starts no process. */
static void hook(struct world *world, struct node *n, struct ptc_agent_env *env)
{
	struct ptc_error err = PTC_ERROR_INIT;
	char dir[200];
	struct ptc_workers_env ranks = { .node = n->name, .dir = dir };

	snprintf(dir, sizeof(dir), "%s/workers", n->dir);
	OK(ptc_sys_mkdirs(dir, 0711, &err));
	OK(ptc_workers_new(&ranks, &workers, &err));
	env->workers = workers;
	env->channel = no_channel;
	env->near_socket = "/nowhere"; /* a Fetch that names the chunk file gets places in it */
	env->finish_wait_ms = 100;
	(void)world;
}

static void down(void)
{
	if (!workers)
		return;
	world_down(w);
	ptc_free(w);
	workers = ptc_workers_free(workers);
}

static void end(void)
{
	down();
	ptc_rpc_shutdown();
}

static void up(void)
{
	down();
	rng = 1;
	world_hook = hook;
	w = ptc_calloc(1, sizeof *w);
	assert_non_null(w);
	world_up(w, 1, false);
	gen_make(&committed, 1, "tp=2", 1);
	committed.devices[0] = 0;
	committed.devices[1] = 1;
	import(w, &committed, 0);
	inputs = 0;
}

/* false: it is not there any more. */
static bool is_whole(void)
{
	const struct ptc_table_key key = { UUID, 1, 1 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_table *t;

	if (ptc_agent_table_open(w->nodes[0].agent, &key, &t, NULL) != 0)
		return false;
	for (uint32_t i = 0; i < NITEMS; i++) {
		int64_t shape[PTC_MAX_DIMS];
		struct ptc_box whole;
		uint64_t digest;
		uint32_t ndim;

		OK(ptc_item_byte_shape(&w->spec, i, &ndim, shape, &err));
		whole = ptc_box_whole(ndim, shape);
		OK(ptc_table_digest(t, i, &whole, ndim, shape, &digest, &err));
		ptc_require(digest == w->digest[i]);
	}
	ptc_table_unref(t);
	return true;
}

static int call(const char *name, const uint8_t *data, size_t len)
{
	struct ptc_rpc_part p = { .data = data, .len = len };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_message *m;
	struct ptc_rpc_stream *s;
	char method[64];
	int rc;

	snprintf(method, sizeof(method), "/ptc.v1.Peer/%s", name);
	OK(ptc_rpc_stream_open(control(w, 0), method, CALL_MS, NULL, 0, &s, &err));
	rc = ptc_rpc_stream_send(s, &p, 1, &err);
	if (rc == 0)
		rc = ptc_rpc_stream_half_close(s, &err);
	for (int i = 0; !rc && i < REPLIES; i++) {
		rc = ptc_rpc_stream_recv(s, &m, &err);
		if (rc || !m)
			break;
		ptc_rpc_message_done(m);
	}
	if (rc == 0)
		rc = ptc_rpc_stream_finish(s, &err);
	ptc_rpc_stream_free(s);
	if (getenv("PTC_FUZZ_SHOW"))
		fprintf(stderr, "%s of %zu bytes: %d %s\n", name, len, rc, err.text);
	ptc_require(!strchr(err.text, '\n'));
	return rc;
}

static void check(void)
{
	Ptc__V1__ListRequest req = PTC__V1__LIST_REQUEST__INIT;
	struct ptc_error err = PTC_ERROR_INIT;
	ProtobufCMessage *reply;

	req.version = 1;
	OK(unary(w, 0, "/ptc.v1.Peer/Stat", &req.base, &ptc__v1__document__descriptor, &reply, &err));
	ptc_pb_free(reply);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	bool changed = false;

	if (!workers) {
		ptc_rpc_init();
		ptc_require(setenv("TMPDIR", "/dev/shm", 1) == 0 && atexit(end) == 0); /* worlds come and go */
		up();
	}
	for (int i = 0; i < CALLS && len >= 3; i++) {
		size_t which = data[0] % PTC_ARRAY_LEN(calls), n = PTC_MIN(len - 3, data[1] | (size_t)data[2] << 8);

		changed |= call(calls[which].name, data + 3, n) == 0 && calls[which].changes;
		data += 3 + n;
		len -= 3 + n;
	}
	check();
	if (!is_whole() || changed || ++inputs == INPUTS_MAX)
		up();
	return 0;
}
