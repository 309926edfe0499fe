/* SPDX-License-Identifier: Apache-2.0 */
/* A few agents in one process, each with its own store and its own server on
 * a unix socket, and a controller made of plain calls. The state is random
 * bytes; what each rank's buffer must hold is computed element by element
 * from the spec's meaning, without boxes (the oracle). */
#pragma once

#include "base/alloc.h"
#include "daemon/store/store.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/sys/sys.h"
#include "daemon/agent/agent.h"
#include "rpc/client/client.h"
#include "formats/job/job.h"
#include "daemon/agent/gateway/gateway.h"
#include "daemon/agent/geometry/digest_merge.h"
#include "daemon/agent/geometry/geometry.h"
#include "daemon/agent/geometry/rank_reports.h"
#include "daemon/agent/tables/direct_reads.h"
#include "daemon/agent/fill/fill_files.h"
#include "daemon/agent/tables/import_window.h"
#include "daemon/agent/tables/tables.h"
#include "proto/direct_read.h"
#include "proto/pb.h"
#include "reshard/spec/lint.h"
#include "proto/ptc.pb-c.h"

#include <pthread.h>
#include <stdatomic.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses some */

#define NODES  4
#define LANES  2
#define UUID   "01234567-89ab-cdef-0123-456789abcdef"
#define NITEMS (NTENSORS * (1 + NFIELDS))

enum { T_BIG, T_EMB, T_H0, T_H1, T_NORM, T_SCALAR, T_ZERO, NTENSORS };
#define NFIELDS 2

struct node {
	char name[16], dir[160], sock[160];
	struct ptc_store *store;
	struct ptc_agent *agent;
	struct ptc_rpc_server *server;
	struct ptc_import_windows *windows; /* this and the next two: with world_near */
	struct ptc_fill_files *files;
	struct ptc_direct_reads *direct;
	struct ptc_rpc_channel *channels[3]; /* bulk lanes, control */
	char channel_target[3][200];
	uint64_t ceiling;
};

struct world {
	char dir[128];
	struct node nodes[NODES];
	pthread_mutex_t lock;               /* of the next, and of the nodes' channels */
	const char *target_override[NODES]; /* a lying server's socket */
	struct ptc_tensor tensors[NTENSORS];
	struct ptc_field fields[NFIELDS];
	struct ptc_rule rules[8];
	struct ptc_spec spec;
	uint8_t *bytes[NITEMS];
	int64_t size[NITEMS];
	uint64_t digest[NITEMS];
	int64_t fence;
	int64_t blocks[2];
	void (*env_hook)(struct world *w, struct node *n, struct ptc_agent_env *env); /* before an agent is made */
	void *hook_arg;
	_Atomic unsigned spec_gets; /* how often an agent has begun to work out a layout */
};

/* One generation as the test knows it. */
struct gen {
	uint64_t number, snapshot;
	char config[128];
	struct ptc_config c;
	uint32_t world, nodes[64], devices[64];
	char layout_hash[40]; /* "": laid out by rules */
	uint64_t incarnation;
};

static uint64_t rng = 1;
static uint64_t rnd(uint64_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (rng >> 11) % n;
}

#define OK(x)                                                                                                          \
	do {                                                                                                           \
		int ok_ = (x);                                                                                         \
		if (ok_)                                                                                               \
			fail_msg("%s: %d (%s)", #x, ok_, err.text);                                                    \
	} while (0)

/* ---- environment of an agent ---- */

static int world_spec_get(void *arg, const char *uuid, const char *hash, const struct ptc_spec **ret_spec,
			  void **ret_ref, struct ptc_error *err)
{
	struct world *w = arg;

	if (strcmp(uuid, UUID) || strcmp(hash, "spec"))
		return ptc_error_set(err, PTC_ENOTFOUND, "no spec %s of job %s", hash, uuid);
	atomic_fetch_add(&w->spec_gets, 1);
	*ret_spec = &w->spec;
	*ret_ref = w;
	return 0;
}

static void world_spec_release(void *arg, void *ref)
{
	assert_ptr_equal(arg, ref);
}

static int world_channel(void *arg, const char *node, const char *address, bool bulk, unsigned lane,
			 struct ptc_rpc_channel **ret_channel, struct ptc_error *err)
{
	struct world *w = arg;
	unsigned slot = bulk ? lane : 2, i = 0;
	struct ptc_rpc_channel_opts opts = { .bulk = bulk };
	char target[200];
	int rc = 0;

	while (i < NODES && strcmp(w->nodes[i].name, node))
		i++;
	if (i == NODES || slot > 2)
		return ptc_error_set(err, PTC_EINVAL, "no node %s", node);
	pthread_mutex_lock(&w->lock);
	snprintf(target, sizeof(target), "unix:%s", w->target_override[i] ? w->target_override[i] : w->nodes[i].sock);
	if (w->nodes[i].channels[slot] && strcmp(target, w->nodes[i].channel_target[slot]))
		w->nodes[i].channels[slot] = ptc_rpc_channel_free(w->nodes[i].channels[slot]);
	opts.target = target;
	if (!w->nodes[i].channels[slot]) {
		rc = ptc_rpc_channel_new(&opts, &w->nodes[i].channels[slot], err);
		strcpy(w->nodes[i].channel_target[slot], target);
	}
	*ret_channel = w->nodes[i].channels[slot];
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* Nodes that are made from now on are near each other, if their chunks are in memory: TMPDIR. */
static bool world_near;

static void node_up(struct world *w, struct node *n)
{
	struct ptc_error err = PTC_ERROR_INIT;
	char meta[200], chunks[200], near[200];
	struct ptc_store_opts store = { .meta_dir = meta, .chunk_dir = chunks, .chunk_ceiling = n->ceiling };
	struct ptc_agent_env env = { .node = n->name,
				     .staging_bytes = 32u << 20,
				     .work_bytes = 1234,
				     .spec_get = world_spec_get,
				     .spec_release = world_spec_release,
				     .channel = world_channel,
				     .arg = w };
	struct ptc_rpc_server_opts opts = { .max_calls = 16 };

	snprintf(meta, sizeof(meta), "%s/meta", n->dir);
	snprintf(chunks, sizeof(chunks), "%s/chunks", n->dir);
	OK(ptc_store_open(&store, &n->store, &err));
	env.store = n->store;
	snprintf(near, sizeof(near), "%s" PTC_DIRECT_READ_SUFFIX, n->dir);
	env.near_socket = world_near ? near : NULL;
	if (w->env_hook)
		w->env_hook(w, n, &env);
	OK(ptc_agent_new(&env, &n->agent, &err));
	if (env.near_socket) {
		n->windows = ptc_import_windows_new();
		n->files = ptc_fill_files_new();
		assert_true(n->windows && n->files);
		OK(ptc_direct_reads_new(n->agent, n->windows, n->files, n->dir, &n->direct, &err));
	}
	OK(ptc_rpc_server_new(&opts, &n->server, &err));
	OK(ptc_agent_register(n->agent, n->server, &err));
	OK(ptc_rpc_server_listen_unix(n->server, n->sock, 0600, true, &err));
	OK(ptc_rpc_server_start(n->server, &err));
}

static void channels_drop(struct world *w, struct node *n)
{
	for (int i = 0; i < 3; i++)
		n->channels[i] = ptc_rpc_channel_free(n->channels[i]);
}

static void node_down(struct world *w, struct node *n)
{
	n->server = ptc_rpc_server_free(n->server, 1000);
	n->direct = ptc_direct_reads_free(n->direct);
	n->windows = ptc_import_windows_free(n->windows);
	n->files = ptc_fill_files_free(n->files);
	n->agent = ptc_agent_free(n->agent);
	n->store = ptc_store_close(n->store);
	channels_drop(w, n);
}

/* ---- the state ---- */

static void spec_make(struct world *w, bool big)
{
	static const char *const names[NTENSORS] = { "big", "emb", "h.0.w", "h.1.w", "norm", "scalar", "zero" };
	int64_t h = 4 * (int64_t)(1 + rnd(12));
	int64_t v = 1 + (int64_t)rnd(90);

	w->tensors[T_BIG] = (struct ptc_tensor){ .dtype = PTC_F32,
						 .ndim = 2,
						 .shape = { big ? 4096 : 32 + (int64_t)rnd(64), big ? 2048 : 1500 } };
	w->tensors[T_EMB] = (struct ptc_tensor){ .dtype = PTC_BF16, .ndim = 2, .shape = { v, h } };
	w->tensors[T_H0] = (struct ptc_tensor){ .dtype = PTC_F32, .ndim = 3, .shape = { 3, 12 * h, 5 } };
	w->tensors[T_H1] = w->tensors[T_H0];
	w->tensors[T_NORM] = (struct ptc_tensor){ .dtype = PTC_F64, .ndim = 1, .shape = { h } };
	w->tensors[T_SCALAR] = (struct ptc_tensor){ .dtype = PTC_I64 };
	w->tensors[T_ZERO] = (struct ptc_tensor){ .dtype = PTC_F32, .ndim = 2, .shape = { 0, 4 } };
	for (int i = 0; i < NTENSORS; i++)
		w->tensors[i].name = names[i];
	w->fields[0] = (struct ptc_field){ .name = "exp_avg", .dtype = PTC_F32 };
	w->fields[1] = (struct ptc_field){ .name = "half", .dtype = PTC_U8 };
	w->blocks[0] = 8 * h;
	w->blocks[1] = 4 * h;
	w->rules[0] = (struct ptc_rule){
		.match = "big", .splits[0].axis = PTC_AXIS_TP, .splits[0].dim = 1, .splits[0].kind = PTC_SPLIT_BALANCED
	};
	w->rules[1] = (struct ptc_rule){ .match = "emb",
					 .splits[0].axis = PTC_AXIS_TP,
					 .splits[0].dim = 0,
					 .splits[0].kind = PTC_SPLIT_EVEN,
					 .splits[0].pad_to = 8,
					 .place = PTC_PLACE_ENDS };
	if (rnd(2)) {
		w->rules[1].carry = PTC_CARRY_DERIVE;
		w->rules[1].master = "exp_avg";
	}
	w->rules[2] = (struct ptc_rule){ .match = "h.*",
					 .splits[0].axis = PTC_AXIS_TP,
					 .splits[0].dim = 1,
					 .splits[0].kind = PTC_SPLIT_EVEN,
					 .splits[0].blocks = w->blocks,
					 .splits[0].nblocks = 2,
					 .place = PTC_PLACE_LAYER,
					 .layer = "h.{}.*" };
	w->spec = (struct ptc_spec){ "job", w->tensors, NTENSORS, w->fields, NFIELDS, w->rules, 3 };
}

/* The nearer of the two BF16 around a number that is finite, and if none is the even one. */
static uint16_t nearest(uint32_t bits)
{
	uint32_t low = bits & 0xffff0000, high = low + 0x10000;
	float x, a, b;
	double below, above;

	memcpy(&x, &bits, 4);
	memcpy(&a, &low, 4);
	memcpy(&b, &high, 4);
	below = (double)x - (double)a;
	above = (double)b - (double)x;
	if (below < 0 || above < 0) { /* negative numbers */
		below = -below;
		above = -above;
	}
	return (uint16_t)((below < above || (below == above && !(low >> 16 & 1)) ? low : high) >> 16);
}

/* What is derived is what its master makes. */
static void derived_make(struct world *w)
{
	size_t param = (size_t)T_EMB * (1 + NFIELDS), master = param + 1;

	for (int64_t k = 0; w->rules[1].master && k < w->size[param] / 2; k++) {
		uint32_t bits;
		uint16_t half;

		w->bytes[master][4 * k + 3] &= 0xbf; /* finite */
		memcpy(&bits, w->bytes[master] + 4 * k, 4);
		half = nearest(bits);
		memcpy(w->bytes[param] + 2 * k, &half, 2);
	}
}

static void state_make(struct world *w)
{
	for (size_t i = 0; i < NITEMS; i++) {
		w->size[i] = ptc_item_bytes(&w->spec, i);
		w->bytes[i] = ptc_malloc((size_t)w->size[i] + 1);
		assert_non_null(w->bytes[i]);
		for (int64_t k = 0; k < w->size[i]; k++)
			w->bytes[i][k] = (uint8_t)rnd(256);
	}
	derived_make(w);
	for (size_t i = 0; i < NITEMS; i++)
		w->digest[i] = ptc_digest_run(w->bytes[i], (size_t)w->size[i]);
}

/* Set before world_up. */
static void (*world_hook)(struct world *w, struct node *n, struct ptc_agent_env *env);
static void *world_hook_arg;

static void world_up(struct world *w, unsigned nodes, bool big)
{
	struct ptc_error err = PTC_ERROR_INIT;
	const char *tmp = getenv("TMPDIR");
	char base[sizeof(w->dir)];

	*w = (struct world){ .fence = 1, .env_hook = world_hook, .hook_arg = world_hook_arg };
	pthread_mutex_init(&w->lock, NULL);
	snprintf(base, sizeof(base), "%.60s/ptc-agent-XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(base));
	strcpy(w->dir, base);
	spec_make(w, big);
	OK(ptc_spec_lint(&w->spec, &err));
	state_make(w);
	for (unsigned i = 0; i < NODES; i++) {
		struct node *n = &w->nodes[i];

		snprintf(n->name, sizeof(n->name), "n%u", i);
		snprintf(n->dir, sizeof(n->dir), "%s/n%u", base, i);
		snprintf(n->sock, sizeof(n->sock), "%s/n%u.sock", base, i);
		n->ceiling = 1u << 30;
		OK(ptc_sys_mkdirs(n->dir, 0700, &err));
		if (i < nodes)
			node_up(w, n);
	}
}

static void world_down(struct world *w)
{
	struct ptc_error err = PTC_ERROR_INIT;

	for (int i = 0; i < NODES; i++) /* no server is gone while another may still call it */
		w->nodes[i].server = ptc_rpc_server_free(w->nodes[i].server, 1000);
	for (int i = 0; i < NODES; i++)
		node_down(w, &w->nodes[i]);
	for (size_t i = 0; i < NITEMS; i++)
		ptc_free(w->bytes[i]);
	pthread_mutex_destroy(&w->lock);
	OK(ptc_sys_remove_tree(w->dir, "test.remove", &err));
}

/* ---- generations ---- */

static void gen_make(struct gen *g, uint64_t number, const char *config, unsigned nodes)
{
	struct ptc_error err = PTC_ERROR_INIT;
	bool used[NODES][32] = { { false } };

	*g = (struct gen){ .number = number, .snapshot = number };
	snprintf(g->config, sizeof(g->config), "%s", config);
	OK(ptc_config_parse(config, &g->c, &err));
	OK(ptc_config_world(&g->c, &g->world, &err));
	assert_true(g->world <= 64);
	for (uint32_t i = 0; i < g->world; i++) {
		do {
			g->nodes[i] = (uint32_t)rnd(nodes);
			g->devices[i] = (uint32_t)rnd(32);
		} while (used[g->nodes[i]][g->devices[i]]);
		used[g->nodes[i]][g->devices[i]] = true;
	}
}

static void random_config(char *buf, size_t size)
{
	static const char *const orders[] = { "", ",order=tp-cp-ep-dp-pp", ",order=pp-dp-tp-cp-ep" };

	snprintf(buf, size, "tp=%u,pp=%u,dp=%u%s%s", 1u << rnd(3), 1 + (unsigned)rnd(2), 1 + (unsigned)rnd(3),
		 rnd(2) ? ",zero=1" : "", orders[rnd(3)]);
}

static bool gen_has(const struct gen *g, uint32_t node)
{
	for (uint32_t i = 0; i < g->world; i++)
		if (g->nodes[i] == node)
			return true;
	return false;
}

/* ---- the oracle: what a rank's buffer holds ---- */

/* Global indices along the split dim of a tp rank, -1 for padding; n when not split. */
static int64_t split_indices(const struct world *w, int tensor, uint32_t tp, uint32_t of, int64_t *out)
{
	const struct ptc_tensor *t = &w->tensors[tensor];
	int64_t n = 0, at = 0;

	if (tensor == T_BIG) {
		int64_t dim = t->shape[1], each = dim / of, more = dim % of;
		int64_t first = tp * each + ((int64_t)tp < more ? tp : more);

		for (int64_t i = 0; i < each + ((int64_t)tp < more); i++)
			out[n++] = first + i;
	} else if (tensor == T_EMB) {
		int64_t unit = 8 * (int64_t)of, padded = (t->shape[0] + unit - 1) / unit * unit, each = padded / of;

		for (int64_t i = tp * each; i < (tp + 1) * each; i++)
			out[n++] = i < t->shape[0] ? i : -1;
	} else if (tensor == T_H0 || tensor == T_H1) {
		for (int b = 0; b < 2; at += w->blocks[b++])
			for (int64_t i = 0; i < w->blocks[b] / of; i++)
				out[n++] = at + tp * (w->blocks[b] / of) + i;
	}
	return n;
}

static bool on_stage(int tensor, const struct ptc_config *c, uint32_t pp)
{
	uint32_t h1 = c->pp > 1;

	switch (tensor) {
	case T_H0:
		return pp == 0;
	case T_H1:
		return pp == h1;
	case T_EMB:
		return pp == 0 || pp == c->pp - 1;
	default:
		return true;
	}
}

/* The rank's bytes of an item into buf; its length, or -1 when it has none. */
static int64_t oracle_rank(const struct world *w, const struct gen *g, uint32_t rank, uint32_t item,
			   struct ptc_buf *out)
{
	static int64_t idx[4096];
	int tensor = (int)(item / (1 + NFIELDS));
	bool field = item % (1 + NFIELDS) != 0;
	struct ptc_coords k = ptc_config_coords(&g->c, rank);
	const struct ptc_tensor *t = &w->tensors[tensor];
	size_t esize = ptc_dtype_bits(ptc_item_dtype(&w->spec, item)) / 8, skip = 0, take, total = 1;
	uint32_t dim = tensor == T_EMB ? 0 : 1;
	int64_t shape[4] = { 1, 1, 1, 1 }, n = split_indices(w, tensor, k.tp, g->c.tp, idx);
	bool split = tensor <= T_H1;

	if (!on_stage(tensor, &g->c, k.pp))
		return -1;
	for (uint32_t d = 0; d < t->ndim; d++)
		shape[d] = split && d == dim ? n : t->shape[d];
	for (int d = 0; d < 4; d++)
		total *= (size_t)shape[d];
	take = total;
	if (field && g->c.zero) {
		size_t each = (total + g->c.dp - 1) / g->c.dp;

		skip = PTC_MIN(each * k.dp, total);
		take = PTC_MIN(each, total - skip);
	}
	for (size_t i = skip; i < skip + take; i++) {
		int64_t at = 0, rest = (int64_t)i, x[4];
		static const uint8_t zeros[16];
		bool pad = false;

		for (int d = 3; d >= 0; d--) {
			x[d] = rest % shape[d];
			rest /= shape[d];
		}
		for (uint32_t d = 0; d < t->ndim; d++) {
			int64_t global = split && d == dim ? idx[x[d]] : x[d];

			pad = pad || global < 0;
			at = at * t->shape[d] + global;
		}
		ptc_buf_append(out, pad ? zeros : w->bytes[item] + at * (int64_t)esize, esize);
	}
	return (int64_t)(take * esize);
}

/* ---- the controller ---- */

struct info {
	Ptc__V1__SwitchInfo pb;
	Ptc__V1__Generation from, to;
	char *names[NODES], *addresses[NODES];
};

static void gen_pb(Ptc__V1__Generation *pb, struct gen *g)
{
	ptc__v1__generation__init(pb);
	pb->number = g->number;
	pb->snapshot = g->snapshot;
	pb->config = g->config;
	pb->n_nodes = pb->n_devices = g->world;
	pb->nodes = g->nodes;
	pb->devices = g->devices;
	pb->layout_hash = g->layout_hash;
	pb->incarnation = g->incarnation;
}

static char uuid_text[] = UUID, spec_text[] = "spec", job_text[] = "job";

static void info_make(struct info *i, struct world *w, struct gen *from, struct gen *to)
{
	ptc__v1__switch_info__init(&i->pb);
	i->pb.uuid = uuid_text;
	i->pb.job = job_text;
	i->pb.uid = getuid();
	i->pb.fence = w->fence;
	i->pb.id = 77;
	i->pb.spec_hash = spec_text;
	for (int k = 0; k < NODES; k++) {
		i->names[k] = w->nodes[k].name;
		i->addresses[k] = w->nodes[k].sock;
	}
	i->pb.n_nodes = i->pb.n_addresses = NODES;
	i->pb.nodes = i->names;
	i->pb.addresses = i->addresses;
	if (from) {
		gen_pb(&i->from, from);
		i->pb.from = &i->from;
	}
	gen_pb(&i->to, to);
	i->pb.to = &i->to;
}

static struct ptc_rpc_channel *control(struct world *w, uint32_t node)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_channel *c;

	OK(world_channel(w, w->nodes[node].name, "", false, 0, &c, &err));
	return c;
}

static int unary(struct world *w, uint32_t node, const char *method, const ProtobufCMessage *req,
		 const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret, struct ptc_error *err)
{
	void *data, *reply;
	size_t len, rlen;
	int rc = ptc_pb_encode(req, &data, &len, err);

	if (rc)
		return rc;
	rc = ptc_rpc_unary(control(w, node), method, data, len, 20000, NULL, 0, &reply, &rlen, err);
	ptc_free(data);
	if (rc)
		return rc;
	rc = ptc_pb_decode(type, reply, rlen, ret, err);
	ptc_free(reply);
	return rc;
}

/* yields: tables that may go if there is no room. */
static int do_prepare_tight(struct world *w, uint32_t node, struct info *info, bool dry, Ptc__V1__TableKey **yields,
			    size_t nyields, Ptc__V1__PrepareReply **ret, struct ptc_error *err)
{
	Ptc__V1__PrepareRequest req = PTC__V1__PREPARE_REQUEST__INIT;
	ProtobufCMessage *reply = NULL;
	int rc;

	req.version = 1;
	req.info = &info->pb;
	req.dry_run = dry;
	req.yields = yields;
	req.n_yields = nyields;
	rc = unary(w, node, "/ptc.v1.Peer/Prepare", &req.base, &ptc__v1__prepare_reply__descriptor, &reply, err);
	*ret = (Ptc__V1__PrepareReply *)reply;
	return rc;
}

static int do_prepare(struct world *w, uint32_t node, struct info *info, bool dry, Ptc__V1__PrepareReply **ret,
		      struct ptc_error *err)
{
	return do_prepare_tight(w, node, info, dry, NULL, 0, ret, err);
}

static int do_seal(struct world *w, uint32_t node, struct info *info, uint64_t gen, uint64_t a, uint64_t b,
		   struct ptc_error *err)
{
	Ptc__V1__SealRequest req = PTC__V1__SEAL_REQUEST__INIT;
	Ptc__V1__TableKey from = PTC__V1__TABLE_KEY__INIT, to = PTC__V1__TABLE_KEY__INIT;
	ProtobufCMessage *reply = NULL;
	int rc;

	req.version = 1;
	req.info = &info->pb;
	from.generation = to.generation = gen;
	from.snapshot = a;
	to.snapshot = b;
	req.from = &from;
	req.to = &to;
	rc = unary(w, node, "/ptc.v1.Peer/Seal", &req.base, &ptc__v1__seal_reply__descriptor, &reply, err);
	ptc_pb_free(reply);
	return rc;
}

static int do_finish(struct world *w, uint32_t node, const struct gen *keep, bool delete_job, struct ptc_error *err)
{
	Ptc__V1__FinishRequest req;
	Ptc__V1__TableKey key = PTC__V1__TABLE_KEY__INIT, *keys[1] = { &key };
	ProtobufCMessage *reply = NULL;
	int rc;

	ptc__v1__finish_request__init(&req);
	req.version = 1;
	req.uuid = uuid_text;
	req.fence = w->fence;
	if (keep) {
		key.generation = keep->number;
		key.snapshot = keep->snapshot;
		req.n_keep = 1;
		req.keep = keys;
	}
	req.delete_job = delete_job;
	rc = unary(w, node, "/ptc.v1.Peer/Finish", &req.base, &ptc__v1__finish_reply__descriptor, &reply, err);
	ptc_pb_free(reply);
	return rc;
}

/* Opens a server-streaming call with one request. */
static int open_call(struct world *w, uint32_t node, const char *method, const ProtobufCMessage *req,
		     struct ptc_rpc_stream **ret, struct ptc_error *err)
{
	struct ptc_rpc_part part = { 0 };
	void *data;
	int rc = ptc_rpc_stream_open(control(w, node), method, 60000, NULL, 0, ret, err);

	if (rc)
		return rc;
	rc = ptc_pb_encode(req, &data, &part.len, err);
	part.data = data;
	if (rc == 0)
		rc = ptc_rpc_stream_send(*ret, &part, 1, err);
	if (rc == 0)
		rc = ptc_rpc_stream_half_close(*ret, err);
	ptc_free(data);
	return rc;
}

/* Reads replies to the end; *ret is the last one. */
static int last_reply(struct ptc_rpc_stream *s, Ptc__V1__PullReply **ret, struct ptc_error *err)
{
	struct ptc_rpc_message *msg;
	ProtobufCMessage *last = NULL;
	int rc;

	while (!(rc = ptc_rpc_stream_recv(s, &msg, err)) && msg) {
		size_t len = ptc_rpc_message_len(msg);
		void *data = ptc_malloc(len + 1);

		ptc_pb_free(last);
		last = NULL;
		assert_int_equal(ptc_rpc_message_read(msg, data, len), len);
		rc = ptc_pb_decode(&ptc__v1__pull_reply__descriptor, data, len, &last, err);
		ptc_free(data);
		ptc_rpc_message_done(msg);
		if (rc)
			break;
	}
	if (rc == 0)
		rc = ptc_rpc_stream_finish(s, err);
	if (!rc && (!last || !((Ptc__V1__PullReply *)last)->finished))
		rc = ptc_error_set(err, PTC_EPEER, "no last reply");
	if (rc)
		ptc_pb_free(last);
	*ret = rc ? NULL : (Ptc__V1__PullReply *)last;
	return rc;
}

static int do_pull(struct world *w, uint32_t node, struct info *info, bool pushed, Ptc__V1__PullReply **ret,
		   struct ptc_error *err)
{
	Ptc__V1__PullRequest req = PTC__V1__PULL_REQUEST__INIT;
	struct ptc_rpc_stream *s = NULL;
	int rc;

	req.version = 1;
	req.info = &info->pb;
	req.pushed = pushed;
	*ret = NULL;
	rc = open_call(w, node, "/ptc.v1.Peer/Pull", &req.base, &s, err);
	if (rc == 0)
		rc = last_reply(s, ret, err);
	ptc_rpc_stream_free(s);
	return rc;
}

struct puller {
	struct world *w;
	uint32_t node;
	struct info *info;
	bool pushed;
	Ptc__V1__PullReply *reply;
	int rc;
	struct ptc_error err;
	pthread_t thread;
};

static void *puller_main(void *arg)
{
	struct puller *p = arg;

	p->rc = do_pull(p->w, p->node, p->info, p->pushed, &p->reply, &p->err);
	return NULL;
}

/* Prepare on every node of `to`; all agree on the plan. */
static void prepare_all(struct world *w, struct info *info, struct gen *to)
{
	struct ptc_error err = PTC_ERROR_INIT;
	char hash[40] = "";

	for (uint32_t i = 0; i < NODES; i++) {
		Ptc__V1__PrepareReply *dry, *real;

		if (!gen_has(to, i))
			continue;
		OK(do_prepare(w, i, info, true, &dry, &err));
		OK(do_prepare(w, i, info, false, &real, &err));
		assert_string_equal(dry->plan_hash, real->plan_hash);
		assert_int_equal(dry->missing_bytes, real->missing_bytes);
		assert_int_equal(dry->new_bytes, real->new_bytes);
		if (hash[0])
			assert_string_equal(hash, real->plan_hash);
		strcpy(hash, real->plan_hash);
		ptc_pb_free(&dry->base);
		ptc_pb_free(&real->base);
		OK(do_prepare(w, i, info, false, &real, &err)); /* again: nothing is reserved twice */
		assert_int_equal(real->new_bytes, 0);
		ptc_pb_free(&real->base);
	}
}

/* Pull on every node of `to` at once; checks digests; returns payload bytes received. */
static int64_t pull_all(struct world *w, struct info *info, struct gen *to, bool pushed)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct puller pullers[NODES] = { 0 };
	struct ptc_geometry g;
	struct ptc_digests *d;
	uint64_t merged[NITEMS];
	int64_t wire = 0;
	unsigned n = 0;

	for (uint32_t i = 0; i < NODES; i++)
		if (gen_has(to, i)) {
			pullers[n] = (struct puller){ .w = w, .node = i, .info = info, .pushed = pushed };
			pthread_create(&pullers[n].thread, NULL, puller_main, &pullers[n]);
			n++;
		}
	OK(ptc_agent_geometry(w->nodes[0].agent, &info->pb, &info->to, &g, &err));
	OK(ptc_digests_new(&g, &d, &err));
	for (unsigned i = 0; i < n; i++) {
		struct puller *p = &pullers[i];

		pthread_join(p->thread, NULL);
		err = p->err;
		OK(p->rc);
		wire += (int64_t)p->reply->wire_bytes;
		OK(ptc_digests_add(d, p->node, p->reply->need_index, p->reply->digests, p->reply->n_digests, &err));
		ptc_pb_free(&p->reply->base);
	}
	OK(ptc_digests_merge(d, w->digest, merged, &err));
	ptc_digests_free(d);
	ptc_geometry_done(&g);
	return wire;
}

static void import(struct world *w, struct gen *to, uint32_t gateway)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_geometry g;
	struct ptc_scatter *s;
	struct info info;

	info_make(&info, w, NULL, to);
	prepare_all(w, &info, to);
	OK(ptc_agent_geometry(w->nodes[gateway].agent, &info.pb, &info.to, &g, &err));
	OK(ptc_scatter_new(w->nodes[gateway].agent, &g, UUID, 77, NULL, &s, &err));
	for (uint32_t i = 0; i < NITEMS; i++)
		for (int64_t at = 0, len; at < w->size[i]; at += len) {
			len = 1 + (int64_t)rnd(1u << (1 + rnd(21)));
			len = PTC_MIN(len, w->size[i] - at);
			if (w->size[i] > (1 << 20) && len < (1 << 18))
				len = PTC_MIN(1 << 18, w->size[i] - at);
			OK(ptc_scatter_write(s, i, (uint64_t)at, w->bytes[i] + at, (size_t)len, &err));
		}
	OK(ptc_scatter_finish(s, &err));
	ptc_scatter_free(s);
	ptc_geometry_done(&g);
	assert_int_equal(pull_all(w, &info, to, true), 0);
	for (uint32_t i = 0; i < NODES; i++)
		if (w->nodes[i].server)
			OK(do_finish(w, i, to, false, &err));
}

static int to_buf(void *arg, const void *data, size_t len, struct ptc_error *err)
{
	ptc_buf_append(arg, data, len);
	return ptc_buf_failed(arg) ? ptc_error_set(err, PTC_ENOMEM, "test buffer") : 0;
}

static int parts_to_buf(void *arg, struct ptc_rpc_part *parts, size_t n, struct ptc_error *err)
{
	int rc = 0;

	for (size_t i = 1; i < n; i++) {
		if (rc == 0)
			rc = to_buf(arg, parts[i].data, parts[i].len, err);
		parts[i].release(parts[i].arg);
	}
	return rc;
}

/* Any ranges of any items, in any order, some empty; and what is too much, or none of them. */
static void check_gather_many(struct world *w, const struct ptc_geometry *geo, uint32_t gateway)
{
	struct ptc_agent *agent = w->nodes[gateway].agent;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_buf got = PTC_BUF_INIT, want = PTC_BUF_INIT;
	struct ptc_item_range ranges[40];
	size_t n = 1 + rnd(PTC_ARRAY_LEN(ranges));

	for (size_t i = 0; i < n; i++) {
		uint32_t item = (uint32_t)rnd(NITEMS);
		uint64_t size = (uint64_t)w->size[item], from = size ? rnd(size) : 0;
		uint64_t len = size ? rnd(PTC_MIN(size - from, PTC_READ_MANY_BYTES / PTC_ARRAY_LEN(ranges)) + 1) : 0;

		ranges[i] = (struct ptc_item_range){ item, from, len };
		if (len)
			ptc_buf_append(&want, w->bytes[item] + from, len);
	}
	OK(ptc_agent_gather_many(agent, geo, UUID, ranges, n, PTC_READ_MANY_BYTES, to_buf, &got, NULL, &err));
	assert_int_equal(want.len, got.len);
	if (want.len)
		assert_memory_equal(want.data, got.data, want.len);
	ranges[0] = (struct ptc_item_range){ NITEMS, 0, 1 };
	assert_int_equal(PTC_EINVAL, ptc_agent_gather_many(agent, geo, UUID, ranges, 1, PTC_READ_MANY_BYTES, to_buf,
							   &got, NULL, &err));
	ranges[0] = (struct ptc_item_range){ 0, (uint64_t)w->size[0], 1 };
	assert_int_equal(PTC_EINVAL, ptc_agent_gather_many(agent, geo, UUID, ranges, 1, PTC_READ_MANY_BYTES, to_buf,
							   &got, NULL, &err));
	ptc_buf_done(&got);
	ptc_buf_done(&want);
}

static void check_gather(struct world *w, struct gen *g, uint32_t gateway)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_geometry geo;
	struct info info;

	info_make(&info, w, g, g);
	OK(ptc_agent_geometry(w->nodes[gateway].agent, &info.pb, &info.from, &geo, &err));
	for (uint32_t i = 0; i < NITEMS; i++) {
		struct ptc_buf b = PTC_BUF_INIT;
		int64_t from = w->size[i] ? (int64_t)rnd((uint64_t)w->size[i]) : 0;
		int64_t len = w->size[i] ? (int64_t)rnd((uint64_t)(w->size[i] - from)) : 0;

		OK(ptc_agent_gather(w->nodes[gateway].agent, &geo, UUID, i, 0, (uint64_t)w->size[i], to_buf,
				    rnd(2) ? parts_to_buf : NULL, &b, NULL, &err));
		assert_int_equal(b.len, w->size[i]);
		if (b.len)
			assert_memory_equal(b.data, w->bytes[i], b.len);
		ptc_buf_reset(&b);
		OK(ptc_agent_gather(w->nodes[gateway].agent, &geo, UUID, i, (uint64_t)from, (uint64_t)len, to_buf,
				    rnd(2) ? parts_to_buf : NULL, &b, NULL, &err));
		assert_int_equal(b.len, len);
		if (b.len)
			assert_memory_equal(b.data, w->bytes[i] + from, b.len);
		ptc_buf_done(&b);
	}
	for (int i = 0; i < 5; i++)
		check_gather_many(w, &geo, gateway);
	ptc_geometry_done(&geo);
}

/* Any part of it, and what lies outside. */
static void check_rank_range(struct world *w, uint32_t gateway, struct ptc_geometry *geo, struct info *info,
			     uint32_t rank, uint32_t item, const struct ptc_buf *want)
{
	struct ptc_rank_range range = { rank, item, want->len ? rnd(want->len) : 0, 0 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_buf got = PTC_BUF_INIT;
	uint64_t len;

	range.length = want->len ? rnd(want->len - range.offset) : 0; /* 0: to the end */
	len = range.length ? range.length : want->len - range.offset;
	OK(ptc_agent_gather_rank(w->nodes[gateway].agent, geo, &info->pb, &range, to_buf, &got, NULL, &err));
	assert_int_equal(got.len, len);
	if (len)
		assert_memory_equal(got.data, want->data + range.offset, len);
	range.offset = want->len;
	range.length = 1;
	assert_int_equal(ptc_agent_gather_rank(w->nodes[gateway].agent, geo, &info->pb, &range, to_buf, &got, NULL,
					       &err),
			 PTC_EINVAL);
	ptc_buf_done(&got);
}

static void check_ranks(struct world *w, struct gen *g, uint32_t gateway)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_geometry geo;
	struct info info;

	info_make(&info, w, g, g);
	OK(ptc_agent_geometry(w->nodes[gateway].agent, &info.pb, &info.from, &geo, &err));
	for (uint32_t rank = 0; rank < g->world; rank++)
		for (uint32_t i = 0; i < NITEMS; i++) {
			struct ptc_buf got = PTC_BUF_INIT, want = PTC_BUF_INIT;
			int64_t n = oracle_rank(w, g, rank, i, &want);
			int rc = ptc_agent_gather_rank(w->nodes[gateway].agent, &geo, &info.pb,
						       &(struct ptc_rank_range){ rank, i, 0, 0 }, to_buf, &got, NULL,
						       &err);

			if (n < 0) {
				assert_int_equal(rc, PTC_ENOTFOUND);
			} else {
				OK(rc);
				assert_int_equal(got.len, n);
				if (n)
					assert_memory_equal(got.data, want.data, (size_t)n);
				check_rank_range(w, gateway, &geo, &info, rank, i, &want);
			}
			ptc_buf_done(&got);
			ptc_buf_done(&want);
		}
	ptc_geometry_done(&geo);
}

/* Seal, Prepare: everything before Pull. */
static void seal_and_prepare(struct world *w, struct info *info, struct gen *from, struct gen *to)
{
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t old = from->snapshot;

	from->snapshot = to->snapshot;
	info_make(info, w, from, to);
	for (uint32_t i = 0; i < NODES; i++)
		if (gen_has(from, i))
			OK(do_seal(w, i, info, from->number, old, to->snapshot, &err));
	prepare_all(w, info, to);
}
