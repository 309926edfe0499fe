/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that declare, from start to restore, between agents in one process:
 * random tensors, cut at random between ranks, in memory with random strides;
 * Build and the merge of what they declare, Capture, a switch to another cut,
 * Finish. What each rank's memory must hold is computed element by element.
 * Then replicas that differ, of which one or the greatest counts, answers asked for twice, tables left from an
 * attempt before, memory, ranks that have to be started again.
 * PTC_TEST_SEED and PTC_CASES override; the seed is printed. */
#include "base/test_seed.h"
#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/memory/prefetch.h"
#include "daemon/agent/ranks/ranks.h"
#include "daemon/agent/switch/switch.h"
#include "daemon/agent/test_ranks.h"
#include "daemon/store/store.h"
#include "daemon/workers/types/worker_event.h"

#include "formats/state/layout_doc.h"

#define ELEMENTS 6000

static uint64_t seed, cases = 12;

/* ---- the state ---- */

struct tensor {
	char name[32];
	enum ptc_dtype dtype;
	uint32_t ndim;
	int64_t shape[3], elements, esize;
	uint8_t *truth;
};

struct cell {
	int64_t off[3], ext[3];
};
struct hold {
	size_t n;
	struct cell cells[MAX_REGIONS];
};
/* Who holds what under one configuration. */
struct cut {
	struct gen gen;
	struct hold holds[32][MAX_TENSORS];
};

struct doc {
	char hash[40];
	char *json;
	size_t len;
	struct ptc_declared d;
	struct ptc_layout *l;
};

struct live {
	struct world w;
	struct ptc_workers workers[NODES];
	struct tensor tensors[MAX_TENSORS];
	size_t ntensors;
	struct cut *cuts[8]; /* of generations */
	size_t ncuts;
	struct doc docs[8];
	size_t ndocs;
	struct ptc_job_desc job;
	char *argv[2], cwd[2];
	char *state;
	size_t state_len;
	unsigned event;
	char event_text[1024];
};

/* What the test does and what agents' threads do come one after the other by calls over a socket, which no sanitizer
 * sees. */
static void in_order(struct live *l)
{
	pthread_mutex_lock(&l->w.lock);
	pthread_mutex_unlock(&l->w.lock);
	for (int i = 0; i < NODES; i++) {
		pthread_mutex_lock(&l->workers[i].lock);
		pthread_mutex_unlock(&l->workers[i].lock);
	}
}

static void in_order_here(void)
{
	struct live *l = world_hook_arg;

	pthread_mutex_lock(&l->w.lock);
	pthread_mutex_unlock(&l->w.lock);
}

static struct tensor *tensor_named(struct live *l, const char *name)
{
	for (size_t i = 0; i < l->ntensors; i++)
		if (!strcmp(l->tensors[i].name, name))
			return &l->tensors[i];
	fail_msg("no tensor %s", name);
	abort();
}

static void random_tensors(struct live *l, bool big)
{
	static const enum ptc_dtype dtypes[] = { PTC_F32, PTC_U8, PTC_BF16, PTC_F64 };
	static const char *const names[MAX_TENSORS] = { "w", "w:exp_avg", "a.step", "zz", "b" };

	l->ntensors = 2 + rnd(MAX_TENSORS - 1);
	for (size_t i = 0; i < l->ntensors; i++) {
		struct tensor *t = &l->tensors[i];

		*t = (struct tensor){ .dtype = dtypes[rnd(4)], .ndim = (uint32_t)rnd(4), .elements = 1 };
		strcpy(t->name, names[i]);
		if (i == 0) {
			t->ndim = 2;
			t->dtype = PTC_F32;
		}
		for (uint32_t d = 0; d < t->ndim; d++)
			t->elements *= t->shape[d] = 1 + (int64_t)rnd(i || !big ? 17 : 60);
		t->esize = ptc_dtype_bits(t->dtype) / 8;
		assert_true(t->elements <= ELEMENTS);
		t->truth = malloc((size_t)(t->elements * t->esize));
		for (int64_t k = 0; k < t->elements * t->esize; k++)
			t->truth[k] = (uint8_t)rnd(256);
	}
}

/* ---- who holds what ---- */

static void deal(struct cut *c, const struct tensor *t, size_t number, const struct cell *cell)
{
	uint32_t given = 0;

	while (!given)
		for (uint32_t r = 0; r < c->gen.world; r++)
			if (rnd(3) == 0 && c->holds[r][number].n < MAX_REGIONS) {
				c->holds[r][number].cells[c->holds[r][number].n++] = *cell;
				given++;
			}
}

static void split(struct cut *c, const struct tensor *t, size_t number, struct cell cell, int depth)
{
	uint32_t d = t->ndim ? (uint32_t)rnd(t->ndim) : 0;
	struct cell other = cell;
	int64_t at;

	if (!depth || !t->ndim || cell.ext[d] < 2) {
		deal(c, t, number, &cell);
		return;
	}
	at = 1 + (int64_t)rnd((uint64_t)cell.ext[d] - 1);
	cell.ext[d] = at;
	other.off[d] += at;
	other.ext[d] -= at;
	split(c, t, number, cell, depth - 1);
	split(c, t, number, other, depth - 1);
}

static struct cut *random_cut(struct live *l, uint64_t number, const char *config, unsigned nodes)
{
	struct cut *c = calloc(1, sizeof *c);

	assert_non_null(c);
	gen_make(&c->gen, number, config, nodes);
	c->gen.snapshot = 0;
	c->gen.incarnation = 1;
	for (size_t t = 0; t < l->ntensors; t++) {
		struct cell all = { { 0 }, { 1, 1, 1 } };

		memcpy(all.ext, l->tensors[t].shape, l->tensors[t].ndim * sizeof(int64_t));
		split(c, &l->tensors[t], t, all, (int)rnd(4));
	}
	l->cuts[l->ncuts++] = c;
	return c;
}

static struct cut *cut_of(struct live *l, uint64_t generation)
{
	for (size_t i = 0; i < l->ncuts; i++)
		if (l->cuts[i]->gen.number == generation)
			return l->cuts[i];
	return NULL;
}

/* ---- what a rank declares ---- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct ptc_slot_tensor *)a)->name, ((const struct ptc_slot_tensor *)b)->name);
}

static int by_offset(const void *a, const void *b)
{
	const struct ptc_slot_region *x = a, *y = b;

	for (uint32_t d = 0; d < x->box.ndim; d++)
		if (x->box.off[d] != y->box.off[d])
			return x->box.off[d] < y->box.off[d] ? -1 : 1;
	return 0;
}

/* Strides as of a transposed or padded buffer, or compact; returns the bytes it spans. */
static int64_t random_strides(const struct tensor *t, struct ptc_slot_region *r)
{
	uint32_t order[3] = { 0, 1, 2 }, n = t->ndim;
	int64_t stride = t->esize, last = 0;

	for (uint32_t i = n; i-- > 1 && rnd(3) == 0;) {
		uint32_t k = (uint32_t)rnd(i + 1), swap = order[i];

		order[i] = order[k];
		order[k] = swap;
	}
	for (uint32_t i = n; i-- > 0;) {
		uint32_t d = order[i];

		r->stride[d] = stride;
		last += (r->box.ext[d] - 1) * stride;
		stride *= r->box.ext[d] + (rnd(3) == 0 ? (int64_t)rnd(3) : 0);
	}
	return last + t->esize;
}

static void declare(void *arg, struct rank_process *p)
{
	struct live *l = arg;
	struct cut *c;
	uint64_t at;
	size_t n = 0;

	in_order_here();
	c = cut_of(l, p->key.generation);
	at = p->base + 64 * rnd(5);
	assert_non_null(c);
	for (size_t t = 0; t < l->ntensors; t++) {
		const struct hold *h = &c->holds[p->view.rank.rank][t];
		struct ptc_slot_tensor *to = &p->tensors[n];

		if (!h->n && rnd(2))
			continue;
		strcpy(p->names[n], l->tensors[t].name);
		*to = (struct ptc_slot_tensor){ .name = p->names[n],
						.dtype = l->tensors[t].dtype,
						.ndim = l->tensors[t].ndim,
						.tied = true,
						.regions = p->regions[n],
						.nregions = h->n };
		memcpy(to->shape, l->tensors[t].shape, sizeof(l->tensors[t].shape));
		for (size_t k = 0; k < h->n; k++) {
			struct ptc_slot_region *r = &to->regions[k];

			*r = (struct ptc_slot_region){ .address = at, .box = { .ndim = to->ndim } };
			memcpy(r->box.off, h->cells[k].off, sizeof(h->cells[k].off));
			memcpy(r->box.ext, h->cells[k].ext, sizeof(h->cells[k].ext));
			at += (uint64_t)random_strides(&l->tensors[t], r) + rnd(40);
		}
		qsort(to->regions, to->nregions, sizeof *to->regions, by_offset);
		n++;
	}
	assert_true(at < p->base + RANK_BYTES);
	qsort(p->tensors, n, sizeof *p->tensors, by_name);
	p->view.tensors = p->tensors;
	p->view.ntensors = n;
}

/* Each element of a tensor that a rank holds: its number in the tensor, and where it lies in the rank's memory. */
static void each_element(const struct rank_process *p, const struct ptc_slot_tensor *t,
			 void (*fn)(void *arg, int64_t element, uint64_t where), void *arg)
{
	for (size_t k = 0; k < t->nregions; k++) {
		const struct ptc_slot_region *r = &t->regions[k];

		for (int64_t e = 0; e < ptc_box_volume(&r->box); e++) {
			int64_t rest = e, global = 0, idx[3] = { 0 };
			uint64_t where = r->address - p->base;

			for (uint32_t d = t->ndim; d-- > 0; rest /= r->box.ext[d])
				idx[d] = rest % r->box.ext[d];
			for (uint32_t d = 0; d < t->ndim; d++) {
				global = global * t->shape[d] + r->box.off[d] + idx[d];
				where += (uint64_t)(idx[d] * r->stride[d]);
			}
			fn(arg, global, where);
		}
	}
}

struct imaging {
	const struct tensor *is;
	uint8_t *image;
};

static void image_element(void *arg, int64_t element, uint64_t where)
{
	const struct imaging *i = arg;

	memcpy(i->image + where, i->is->truth + element * i->is->esize, (size_t)i->is->esize);
}

/* The memory of a rank as it must be: bytes of the state where declared, else what was there. */
static void image_make(struct live *l, const struct rank_process *p, uint8_t *image)
{
	memset(image, 0xa5, RANK_BYTES);
	for (size_t i = 0; i < p->view.ntensors; i++) {
		struct imaging im = { tensor_named(l, p->view.tensors[i].name), image };

		each_element(p, &p->view.tensors[i], image_element, &im);
	}
}

static uint8_t image[RANK_BYTES], memory[RANK_BYTES];

/* ---- what agents ask ---- */

static int layout_get(void *arg, const char *uuid, const char *hash, const struct ptc_spec **ret_spec,
		      const struct ptc_layout **ret_layout, void **ret_ref, struct ptc_error *err)
{
	struct live *l = world_hook_arg;

	in_order_here();
	for (size_t i = 0; i < l->ndocs; i++)
		if (!strcmp(l->docs[i].hash, hash)) {
			*ret_spec = &l->docs[i].d.spec;
			*ret_layout = l->docs[i].l;
			*ret_ref = &l->docs[i];
			return 0;
		}
	return ptc_error_set(err, PTC_ENOTFOUND, "no layout %s", hash);
}

static void layout_release(void *arg, void *ref)
{
}

static int job_get(void *arg, const char *uuid, const char *hash, const struct ptc_job_desc **ret_job, void **ret_ref,
		   struct ptc_error *err)
{
	struct live *l = world_hook_arg;

	in_order_here();
	*ret_job = &l->job;
	*ret_ref = l;
	return 0;
}

static int blob_get(void *arg, const char *uuid, const char *hash, char **ret, size_t *ret_len, struct ptc_error *err)
{
	struct live *l = world_hook_arg;

	in_order_here();
	*ret = ptc_strdup(l->state);
	*ret_len = l->state_len;
	return 0;
}

static void event(void *arg, const struct ptc_worker_event *n)
{
	struct live *l = world_hook_arg;

	in_order_here();
	snprintf(l->event_text, sizeof(l->event_text), "%s", n->text);
	__atomic_add_fetch(&l->event, 1, __ATOMIC_SEQ_CST);
}

static int64_t since = 500;

static int64_t store_since(void *arg)
{
	return since;
}

static void hook(struct world *w, struct node *n, struct ptc_agent_env *env)
{
	struct live *l = w->hook_arg;

	env->layout_get = layout_get;
	env->layout_release = layout_release;
	env->job_get = job_get;
	env->job_release = layout_release;
	env->blob_get = blob_get;
	env->event = event;
	env->store_since = store_since;
	env->finish_wait_ms = l->workers[0].hold_ms ? 300 : 0;
	env->workers = &l->workers[n - w->nodes];
}

static struct live *live_up(bool big)
{
	struct live *l = calloc(1, sizeof *l);

	assert_non_null(l);
	for (int i = 0; i < NODES; i++) {
		pthread_mutex_init(&l->workers[i].lock, NULL);
		l->workers[i].declare = declare;
		l->workers[i].arg = l;
	}
	l->cwd[0] = '/';
	l->argv[0] = (char *)(uintptr_t) "/bin/true";
	l->job.has_run = true;
	l->job.run = (struct ptc_job_run){ .argv = l->argv, .argc = 1, .cwd = l->cwd };
	world_hook = hook;
	world_hook_arg = l;
	world_up(&l->w, NODES, false);
	random_tensors(l, big);
	return l;
}

static void live_down(struct live *l)
{
	world_down(&l->w);
	for (int i = 0; i < NODES; i++) {
		for (size_t k = 0; k < l->workers[i].n; k++)
			slot_free(l->workers[i].slots[k]);
		pthread_mutex_destroy(&l->workers[i].lock);
	}
	for (size_t i = 0; i < l->ntensors; i++)
		free(l->tensors[i].truth);
	for (size_t i = 0; i < l->ncuts; i++)
		free(l->cuts[i]);
	for (size_t i = 0; i < l->ndocs; i++) {
		ptc_layout_free(l->docs[i].l);
		ptc_declared_done(&l->docs[i].d);
		ptc_free(l->docs[i].json);
	}
	ptc_free(l->state);
	free(l);
}

/* ---- the controller ---- */

static void request(Ptc__V1__WorkersRequest *req, struct info *info)
{
	ptc__v1__workers_request__init(req);
	req->version = 1;
	req->info = &info->pb;
}

/* Reads WorkersReply to the end; the last one. */
static int last_workers(struct ptc_rpc_stream *s, Ptc__V1__WorkersReply **ret, unsigned *ret_beats,
			struct ptc_error *err)
{
	struct ptc_rpc_message *msg;
	ProtobufCMessage *last = NULL;
	unsigned n = 0;
	int rc;

	while (!(rc = ptc_rpc_stream_recv(s, &msg, err)) && msg) {
		size_t len = ptc_rpc_message_len(msg);
		void *data = ptc_malloc(len + 1);

		ptc_pb_free(last);
		last = NULL;
		n++;
		assert_int_equal(ptc_rpc_message_read(msg, data, len), len);
		rc = ptc_pb_decode(&ptc__v1__workers_reply__descriptor, data, len, &last, err);
		ptc_free(data);
		ptc_rpc_message_done(msg);
		if (rc)
			break;
	}
	if (rc == 0)
		rc = ptc_rpc_stream_finish(s, err);
	if (!rc && !((Ptc__V1__WorkersReply *)last)->finished)
		rc = ptc_error_set(err, PTC_EPEER, "no last reply");
	if (rc) {
		ptc_pb_free(last);
		last = NULL;
	}
	*ret = (Ptc__V1__WorkersReply *)last;
	if (ret_beats)
		*ret_beats = n ? n - 1 : 0;
	return rc;
}

static int stream(struct live *l, uint32_t node, const char *method, const ProtobufCMessage *req,
		  Ptc__V1__WorkersReply **ret, struct ptc_error *err)
{
	struct ptc_rpc_stream *s = NULL;
	int rc;

	in_order(l);
	rc = open_call(&l->w, node, method, req, &s, err);
	if (rc == 0)
		rc = last_workers(s, ret, NULL, err);
	ptc_rpc_stream_free(s);
	in_order(l);
	return rc;
}

static void start_all(struct live *l, struct info *info, struct gen *g)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__WorkersRequest req;
	ProtobufCMessage *reply;

	request(&req, info);
	in_order(l);
	for (uint32_t i = 0; i < NODES; i++)
		if (gen_has(g, i)) {
			OK(unary(&l->w, i, "/ptc.v1.Peer/Start", &req.base, &ptc__v1__workers_reply__descriptor, &reply,
				 &err));
			ptc_pb_free(reply);
		}
}

/* Build everywhere, merge, write down: the generation then has its layout. */
static void build_all(struct live *l, struct info *info, struct gen *g)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_declared_merge *m;
	struct ptc_declared merged;
	Ptc__V1__WorkersRequest req;
	struct doc *doc = &l->docs[l->ndocs++];
	static char state_hash[] = "state";

	request(&req, info);
	req.has_state = g->snapshot != 0;
	if (req.has_state)
		req.state_hash = state_hash;
	OK(ptc_declared_merge_new(&g->c, &m, &err));
	for (uint32_t i = NODES; i-- > 0;) {
		Ptc__V1__WorkersReply *reply;

		if (!gen_has(g, i))
			continue;
		OK(stream(l, i, "/ptc.v1.Peer/Build", &req.base, &reply, &err));
		for (size_t k = 0; k < reply->n_ranks; k++)
			OK(ptc_agent_declared_add(m, reply->ranks[k], &err));
		ptc_pb_free(&reply->base);
	}
	OK(ptc_declared_merge_finish(m, &merged, &err));
	ptc_declared_merge_free(m);
	OK(ptc_layout_doc_encode(&merged, &doc->json, &doc->len, &err));
	ptc_declared_done(&merged);
	ptc_content_hash(doc->json, doc->len, doc->hash);
	OK(ptc_layout_doc_decode(doc->json, doc->len, &doc->d, &err));
	OK(ptc_layout_declared_new(&doc->d, &doc->l, &err));
	strcpy(g->layout_hash, doc->hash);
}

static int finish_live(struct live *l, uint32_t node, struct gen *g, bool state, struct ptc_error *err)
{
	static char state_hash[] = "state";
	Ptc__V1__FinishRequest req;
	Ptc__V1__TableKey key = PTC__V1__TABLE_KEY__INIT, *keys[1] = { &key };
	ProtobufCMessage *reply = NULL;
	struct info info;
	int rc;

	ptc__v1__finish_request__init(&req);
	info_make(&info, &l->w, g, g);
	req.version = 1;
	req.uuid = uuid_text;
	req.fence = l->w.fence;
	key.generation = g->number;
	key.snapshot = g->snapshot;
	req.keep = keys;
	req.n_keep = g->snapshot != 0;
	req.live = true;
	req.info = &info.pb;
	req.start_step = 7;
	if (state)
		req.state_hash = state_hash;
	in_order(l);
	rc = unary(&l->w, node, "/ptc.v1.Peer/Finish", &req.base, &ptc__v1__finish_reply__descriptor, &reply, err);
	ptc_pb_free(reply);
	in_order(l);
	return rc;
}

static int do_capture(struct live *l, uint32_t node, struct gen *g, uint64_t snapshot, uint64_t step, uint64_t id,
		      bool release, Ptc__V1__PullReply **ret, struct ptc_error *err)
{
	Ptc__V1__CaptureRequest req = PTC__V1__CAPTURE_REQUEST__INIT;
	Ptc__V1__TableKey key = PTC__V1__TABLE_KEY__INIT;
	struct ptc_rpc_stream *s = NULL;
	struct info info;
	int rc;

	info_make(&info, &l->w, g, g);
	info.pb.id = id;
	req.version = 1;
	req.info = &info.pb;
	key.generation = g->number;
	key.snapshot = snapshot;
	req.to = &key;
	req.step = step;
	req.release = release;
	*ret = NULL;
	in_order(l);
	rc = open_call(&l->w, node, "/ptc.v1.Peer/Capture", &req.base, &s, err);
	if (rc == 0)
		rc = last_reply(s, ret, err);
	ptc_rpc_stream_free(s);
	in_order(l);
	return rc;
}

/* Digests of the state, in the order of the layout's items. */
static void digests(struct live *l, const struct ptc_spec *spec, uint64_t *ret)
{
	for (size_t i = 0; i < spec->ntensors; i++) {
		struct tensor *t = tensor_named(l, spec->tensors[i].name);

		ret[i] = ptc_digest_run(t->truth, (size_t)(t->elements * t->esize));
	}
}

struct collected {
	struct ptc_geometry g;
	struct ptc_digests *d;
	struct ptc_state state;
};

static void collect_begin(struct live *l, struct collected *c, struct gen *g)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct info info;

	*c = (struct collected){ 0 };
	info_make(&info, &l->w, g, g);
	OK(ptc_agent_geometry(l->w.nodes[0].agent, &info.pb, &info.from, &c->g, &err));
	OK(ptc_digests_new(&c->g, &c->d, &err));
}

static void collect(struct collected *c, uint32_t node, struct gen *g, Ptc__V1__PullReply *reply)
{
	struct ptc_error err = PTC_ERROR_INIT;

	OK(ptc_digests_add(c->d, node, reply->need_index, reply->digests, reply->n_digests, &err));
	for (size_t k = 0; k < reply->n_ranks; k++)
		OK(ptc_agent_state_add(&c->state, &g->c, reply->ranks[k], &err));
	ptc_pb_free(&reply->base);
}

static void collect_end(struct live *l, struct collected *c)
{
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t want[MAX_TENSORS], got[MAX_TENSORS];

	digests(l, c->g.spec, want);
	OK(ptc_digests_merge(c->d, want, got, &err));
	ptc_digests_free(c->d);
	ptc_geometry_done(&c->g);
	ptc_free(l->state);
	OK(ptc_state_doc_encode(&c->state, &l->state, &l->state_len, &err));
	ptc_state_done(&c->state);
}

/* ---- ranks, by the test's hand ---- */

static struct rank_process *rank_of(struct live *l, struct gen *g, uint32_t rank)
{
	struct ptc_group_key key = { .uuid = UUID, .generation = g->number, .incarnation = g->incarnation };

	return slot_find(&l->workers[g->nodes[rank]], &key, rank);
}

/* Every rank holds the state and waits at a step. */
static void train_to(struct live *l, struct gen *g, uint64_t step)
{
	pthread_mutex_lock(&l->workers[0].lock); /* of the node somebody may wait on (test_streams) */
	for (uint32_t r = 0; r < g->world; r++) {
		struct rank_process *p = rank_of(l, g, r);

		image_make(l, p, image);
		memory_set(p, image);
		p->view.state = PTC_SLOT_STOPPED;
		p->view.step = step;
		p->blobs[0] = (struct ptc_slot_blob){ (char *)(uintptr_t) "rng", 1, p->names[0], 1 + r % 3 };
		p->blobs[1] = (struct ptc_slot_blob){ (char *)(uintptr_t) "sched", 2, (void *)(uintptr_t) "once", 4 };
		p->cursors[0] =
			(struct ptc_slot_cursor){ (char *)(uintptr_t) "train", (char *)(uintptr_t) "n=9", 100 + step };
		p->view.blobs = p->blobs;
		p->view.nblobs = 2;
		p->view.cursors = p->cursors;
		p->view.ncursors = 1;
	}
	pthread_mutex_unlock(&l->workers[0].lock);
}

static void check_memory(struct live *l, struct gen *g)
{
	for (uint32_t r = 0; r < g->world; r++) {
		struct rank_process *p = rank_of(l, g, r);

		assert_non_null(p);
		assert_true(p->went && p->restored);
		image_make(l, p, image);
		memory_get(p, memory);
		if (memcmp(image, memory, RANK_BYTES))
			fail_msg("seed %llu: rank %u was restored wrongly", (unsigned long long)seed, r);
	}
}

static void check_gathered(struct live *l, struct gen *g)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_geometry geo;
	struct info info;

	info_make(&info, &l->w, g, g);
	OK(ptc_agent_geometry(l->w.nodes[0].agent, &info.pb, &info.from, &geo, &err));
	for (uint32_t i = 0; i < geo.spec->ntensors; i++) {
		struct tensor *t = tensor_named(l, geo.spec->tensors[i].name);
		struct ptc_buf b = PTC_BUF_INIT;
		size_t n = (size_t)(t->elements * t->esize);

		for (int as_it_lies = 0; as_it_lies < 2; as_it_lies++) {
			ptc_buf_reset(&b);
			OK(ptc_agent_gather(l->w.nodes[0].agent, &geo, UUID, i, 0, n, to_buf,
					    as_it_lies ? parts_to_buf : NULL, &b, NULL, &err));
			assert_int_equal(b.len, n);
			assert_memory_equal(b.data, t->truth, n);
		}
		ptc_buf_done(&b);
	}
	ptc_geometry_done(&geo);
}

/* A rank's export: its boxes by offset, each row-major. */
static void check_exported(struct live *l, struct gen *g, uint32_t rank)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct rank_process *p = rank_of(l, g, rank);
	struct ptc_geometry geo;
	struct info info;

	info_make(&info, &l->w, g, g);
	OK(ptc_agent_geometry(l->w.nodes[0].agent, &info.pb, &info.from, &geo, &err));
	for (uint32_t i = 0; i < geo.spec->ntensors; i++) {
		struct ptc_buf got = PTC_BUF_INIT, want = PTC_BUF_INIT;
		const struct ptc_slot_tensor *t = NULL;
		int rc = ptc_agent_gather_rank(l->w.nodes[0].agent, &geo, &info.pb,
					       &(struct ptc_rank_range){ rank, i, 0, 0 }, to_buf, &got, NULL, &err);

		for (size_t k = 0; k < p->view.ntensors; k++)
			if (!strcmp(p->view.tensors[k].name, geo.spec->tensors[i].name))
				t = &p->view.tensors[k];
		assert_int_equal(rc, t ? 0 : PTC_ENOTFOUND);
		for (size_t k = 0; t && k < t->nregions; k++) {
			const struct ptc_box *b = &t->regions[k].box;
			struct tensor *is = tensor_named(l, t->name);

			for (int64_t e = 0; e < ptc_box_volume(b); e++) {
				int64_t rest = e, global = 0, idx[3] = { 0 };

				for (uint32_t d = t->ndim; d-- > 0; rest /= b->ext[d])
					idx[d] = rest % b->ext[d];
				for (uint32_t d = 0; d < t->ndim; d++)
					global = global * t->shape[d] + b->off[d] + idx[d];
				ptc_buf_append(&want, is->truth + global * is->esize, (size_t)is->esize);
			}
		}
		assert_int_equal(got.len, want.len);
		if (want.len)
			assert_memory_equal(got.data, want.data, want.len);
		ptc_buf_done(&got);
		ptc_buf_done(&want);
	}
	ptc_geometry_done(&geo);
}

static void capture_all(struct live *l, struct gen *g, uint64_t snapshot, uint64_t step, uint64_t id, bool release)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct collected c;

	collect_begin(l, &c, g);
	for (uint32_t i = 0; i < NODES; i++) {
		Ptc__V1__PullReply *reply;

		if (!gen_has(g, i))
			continue;
		OK(do_capture(l, i, g, snapshot, step, id, release, &reply, &err));
		assert_int_equal(reply->wire_bytes, 0);
		collect(&c, i, g, reply);
	}
	collect_end(l, &c);
}

/* Generation 1 runs, and waits at step 7. */
static struct cut *run_cut(struct live *l, struct cut *c)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct info info;

	info_make(&info, &l->w, NULL, &c->gen);
	start_all(l, &info, &c->gen);
	build_all(l, &info, &c->gen);
	for (uint32_t i = 0; i < NODES; i++)
		OK(finish_live(l, i, &c->gen, false, &err));
	for (uint32_t r = 0; r < c->gen.world; r++) {
		assert_true(rank_of(l, &c->gen, r)->went);
		assert_false(rank_of(l, &c->gen, r)->restored);
	}
	train_to(l, &c->gen, 7);
	for (int i = 0; i < NODES; i++)
		l->workers[i].releases = 0; /* what Finish took back */
	return c;
}

static struct cut *run_first(struct live *l, const char *config)
{
	return run_cut(l, random_cut(l, 1, config, NODES));
}

static void random_world(char *config, size_t size)
{
	snprintf(config, size, "tp=%u,pp=%u,dp=%u", 1 + (unsigned)rnd(3), 1 + (unsigned)rnd(2), 1 + (unsigned)rnd(3));
}

/* From a generation that waits at its stop, and was captured, to the next, which runs. */
static void switch_on(struct live *l, struct cut *from, struct cut *to)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__TableKey key = PTC__V1__TABLE_KEY__INIT, *keep[1] = { &key };
	Ptc__V1__WorkersRequest req;
	Ptc__V1__WorkersReply *ended;
	struct collected c;
	struct info info;
	uint64_t snapshot = to->gen.number;

	from->gen.snapshot = snapshot;
	check_gathered(l, &from->gen);
	check_exported(l, &from->gen, (uint32_t)rnd(from->gen.world));
	info_make(&info, &l->w, &from->gen, &to->gen);
	request(&req, &info);
	req.from = true;
	key.generation = from->gen.number;
	key.snapshot = snapshot;
	req.keep = keep;
	req.n_keep = 1;
	for (uint32_t i = 0; i < NODES; i++)
		if (gen_has(&from->gen, i)) {
			OK(stream(l, i, "/ptc.v1.Peer/End", &req.base, &ended, &err));
			ptc_pb_free(&ended->base);
		}
	start_all(l, &info, &to->gen);
	to->gen.snapshot = snapshot;
	build_all(l, &info, &to->gen);
	info_make(&info, &l->w, &from->gen, &to->gen);
	prepare_all(&l->w, &info, &to->gen);
	collect_begin(l, &c, &to->gen);
	for (uint32_t i = 0; i < NODES; i++) {
		Ptc__V1__PullReply *reply;

		if (!gen_has(&to->gen, i))
			continue;
		OK(do_pull(&l->w, i, &info, false, &reply, &err));
		collect(&c, i, &to->gen, reply);
	}
	c.state = (struct ptc_state){ 0 };
	OK(ptc_state_doc_decode(l->state, l->state_len, &c.state,
				&err)); /* Pull carries none; that of the capture stays */
	collect_end(l, &c);
	for (uint32_t i = 0; i < NODES; i++)
		OK(finish_live(l, i, &to->gen, true, &err));
}

static void switch_to(struct live *l, struct cut *from, struct cut *to)
{
	capture_all(l, &from->gen, to->gen.number, 7, 40 + to->gen.number, false);
	switch_on(l, from, to);
}

/* What ptc_blob_get and ptc_cursor_get answer: the blobs of the same coordinates, rank 0's for the job; known before a
 * rank declares. */
static void check_rank_state(struct live *l, struct gen *from, struct gen *to)
{
	for (uint32_t r = 0; r < to->world; r++) {
		struct ptc_coords k = ptc_config_coords(&to->c, r);
		struct rank_process *p = rank_of(l, to, r);
		bool there = k.tp < from->c.tp && k.pp < from->c.pp && k.dp < from->c.dp;

		assert_non_null(strstr(p->got.data, "sched/2=once;"));
		assert_non_null(strstr(p->got.data, "train@107(n=9);"));
		assert_int_equal(strstr(p->got.data, "rng/1=") != NULL, there);
		assert_true(p->told.data && strcmp(p->told.data, p->got.data) == 0);
	}
}

static void test_switches(void **state)
{
	uint64_t first = seed;

	for (uint64_t i = 0; i < cases; i++) {
		struct cut *from, *to;
		struct live *l;
		char config[64];

		seed = first + i;
		rng = seed * 7919 + 1;
		l = live_up(i % 3 == 0);
		random_world(config, sizeof(config));
		from = run_first(l, config);
		for (uint64_t number = 2; number < 4; number++) {
			random_world(config, sizeof(config));
			to = random_cut(l, number, config, 1 + (unsigned)rnd(NODES));
			switch_to(l, from, to);
			check_memory(l, &to->gen);
			check_rank_state(l, &from->gen, &to->gen);
			train_to(l, &to->gen, 7);
			from = to;
		}
		assert_int_equal(l->event, 0);
		live_down(l);
	}
	seed = first;
}

/* ---- snapshots ---- */

/* Each rank has everything; the last is on node `last`, all others on node 0. */
static struct cut *replicas_on(struct live *l, uint32_t last)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct cut *c = calloc(1, sizeof *c);
	struct info info;

	gen_make(&c->gen, 1, "dp=3", 1);
	c->gen.snapshot = 0;
	c->gen.incarnation = 1;
	c->gen.nodes[2] = last;
	for (uint32_t r = 0; r < 3; r++)
		for (size_t t = 0; t < l->ntensors; t++) {
			c->holds[r][t].n = 1;
			c->holds[r][t].cells[0] = (struct cell){ { 0 }, { 1, 1, 1 } };
			memcpy(c->holds[r][t].cells[0].ext, l->tensors[t].shape, l->tensors[t].ndim * sizeof(int64_t));
		}
	l->cuts[l->ncuts++] = c;
	info_make(&info, &l->w, NULL, &c->gen);
	start_all(l, &info, &c->gen);
	build_all(l, &info, &c->gen);
	for (uint32_t n = 0; n <= last; n++) {
		OK(finish_live(l, n, &c->gen, false, &err));
		l->workers[n].releases = 0;
	}
	train_to(l, &c->gen, 7);
	return c;
}

static struct cut *replicas(struct live *l)
{
	return replicas_on(l, 0);
}

static void count_tables(void *arg, const struct ptc_table_key *key, bool sealed, int64_t bytes)
{
	++*(unsigned *)arg;
}

static unsigned tables(struct live *l, uint32_t node)
{
	struct ptc_error err = PTC_ERROR_INIT;
	unsigned n = 0;

	OK(ptc_store_tables(l->w.nodes[node].store, UUID, count_tables, &n, &err));
	return n;
}

/* Changes a byte of a region, or changes it back. */
static void spoil_region(struct rank_process *p, size_t tensor, size_t region)
{
	uint8_t byte;
	struct iovec here = { &byte, 1 }, there = { NULL, 1 };

	there.iov_base = (void *)(uintptr_t)p->view.tensors[tensor].regions[region].address;
	assert_int_equal(process_vm_readv(p->view.pid, &here, 1, &there, 1, 0), 1);
	byte ^= 4;
	assert_int_equal(process_vm_writev(p->view.pid, &here, 1, &there, 1, 0), 1);
}

/* Of a rank's last tensor. */
static void spoil(struct live *l, struct cut *c, uint32_t rank)
{
	struct rank_process *p = rank_of(l, &c->gen, rank);

	spoil_region(p, p->view.ntensors - 1, 0);
}

static void test_replicas_differ(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PullReply *reply;
	struct rank_process *p;
	struct live *l;
	struct cut *c;

	rng = seed + 11;
	l = live_up(false);
	c = replicas(l);
	p = rank_of(l, &c->gen, 2);
	spoil(l, c, 2);
	assert_int_equal(do_capture(l, 0, &c->gen, 5, 7, 1, true, &reply, &err), PTC_EDIGEST);
	assert_non_null(strstr(err.text, p->view.tensors[p->view.ntensors - 1].name));
	assert_non_null(strstr(err.text, "ranks 0 and 2"));
	assert_int_equal(tables(l, 0), 0);           /* what was begun is gone */
	assert_int_equal(l->workers[0].releases, 0); /* and nobody went on */
	spoil(l, c, 2);
	OK(do_capture(l, 0, &c->gen, 5, 7, 1, true, &reply, &err));
	ptc_pb_free(&reply->base);
	live_down(l);
}

/* By a rule dp 1 counts: the others may differ, and their bytes are not taken. With no such rank, all must agree. */
static void test_primary(void **state)
{
	struct ptc_rule rules[2] = {
		{ .match = "nothing" },
		{ .match = "*", .carry = PTC_CARRY_REPLICATE, .primary = PTC_AXIS_DP, .primary_at = 1 }
	};
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PullReply *reply;
	uint64_t want[MAX_TENSORS];
	unsigned wrong = 0;
	struct live *l;
	struct cut *c;

	rng = seed + 12;
	l = live_up(false);
	c = replicas(l);
	l->job.spec.rules = rules;
	l->job.spec.nrules = 2;
	spoil(l, c, 0);
	spoil(l, c, 2);
	capture_all(l, &c->gen, 5, 7, 1, false);
	rules[1].primary_at = 3;
	assert_int_equal(do_capture(l, 0, &c->gen, 6, 7, 2, false, &reply, &err), PTC_EDIGEST);
	assert_non_null(strstr(err.text, "ranks 0 and 1"));
	rules[1].primary_at = 0;
	err = (struct ptc_error)PTC_ERROR_INIT;
	OK(do_capture(l, 0, &c->gen, 6, 7, 3, false, &reply, &err));
	digests(l, &l->docs[0].d.spec, want);
	for (size_t i = 0; i < reply->n_digests; i++) /* each tensor is one box */
		wrong += reply->digests[i] != want[i];
	assert_int_equal(wrong, 1);
	ptc_pb_free(&reply->base);
	l->job.spec = (struct ptc_spec){ 0 };
	live_down(l);
}

/* Does a rank that counts hold this region? Regions of one tensor are equal or disjoint. */
static bool counts_elsewhere(struct live *l, struct cut *c, const struct ptc_rule *rule, const char *name,
			     const struct ptc_box *box)
{
	for (uint32_t r = 0; r < c->gen.world; r++) {
		const struct rank_process *p = rank_of(l, &c->gen, r);

		for (size_t t = 0; ptc_rule_is_primary(rule, &c->gen.c, r) && t < p->view.ntensors; t++)
			for (size_t k = 0; k < p->view.tensors[t].nregions; k++)
				if (!strcmp(p->view.tensors[t].name, name) &&
				    ptc_box_equal(&p->view.tensors[t].regions[k].box, box))
					return true;
	}
	return false;
}

/* Every replica that need not agree is made to differ. */
static unsigned spoil_all(struct live *l, struct cut *c, const struct ptc_rule *rule)
{
	unsigned n = 0;

	for (uint32_t r = 0; r < c->gen.world; r++) {
		struct rank_process *p = rank_of(l, &c->gen, r);

		for (size_t t = 0; !ptc_rule_is_primary(rule, &c->gen.c, r) && t < p->view.ntensors; t++)
			for (size_t k = 0; k < p->view.tensors[t].nregions; k++)
				if (counts_elsewhere(l, c, rule, p->view.tensors[t].name,
						     &p->view.tensors[t].regions[k].box)) {
					spoil_region(p, t, k);
					n++;
				}
	}
	return n;
}

struct capturer {
	pthread_t thread;
	struct live *l;
	struct gen *g;
	uint32_t node;
	uint64_t snapshot, step, id;
	bool release;
	Ptc__V1__PullReply *reply;
	struct ptc_error err;
	int rc;
};

static void *capturer_run(void *arg)
{
	struct capturer *x = arg;

	x->rc = do_capture(x->l, x->node, x->g, x->snapshot, x->step, x->id, x->release, &x->reply, &x->err);
	return NULL;
}

static void capturer_start(struct capturer *x, struct live *l, struct gen *g, uint32_t node, uint64_t snapshot,
			   uint64_t step, uint64_t id, bool release)
{
	*x = (struct capturer){ .l = l,
				.g = g,
				.node = node,
				.snapshot = snapshot,
				.step = step,
				.id = id,
				.release = release,
				.err = PTC_ERROR_INIT };
	assert_int_equal(pthread_create(&x->thread, NULL, capturer_run, x), 0);
}

/* All nodes at once, `first` some time before the others: each may need what another has, and that one what it has.
 * Returns bytes that they asked each other for. */
static uint64_t capture_from(struct live *l, struct gen *g, uint32_t first, uint64_t snapshot, uint64_t step,
			     uint64_t id, bool release)
{
	struct capturer x[NODES];
	struct collected c;
	uint64_t wire = 0;

	for (uint32_t n = 0, i = first; n < NODES; n++, i = (i + 1) % NODES) {
		if (!gen_has(g, i))
			continue;
		capturer_start(&x[i], l, g, i, snapshot, step, id, release);
		usleep(first ? 60000 : 0);
	}
	collect_begin(l, &c, g);
	for (uint32_t i = 0; i < NODES; i++) {
		if (!gen_has(g, i))
			continue;
		assert_int_equal(pthread_join(x[i].thread, NULL), 0);
		if (x[i].rc)
			fail_msg("node %u: %s", i, x[i].err.text);
		wire += x[i].reply->wire_bytes;
		collect(&c, i, g, x[i].reply);
	}
	collect_end(l, &c); /* every node has digested the truth */
	return wire;
}

static uint64_t capture_together(struct live *l, struct gen *g, bool release)
{
	return capture_from(l, g, 0, 5, 7, 1, release);
}

static void test_primary_elsewhere(void **state)
{
	uint64_t first = seed, wire = 0;
	unsigned spoilt = 0;

	for (uint64_t i = 0; i < cases; i++) {
		struct ptc_rule rule = { .match = "*",
					 .carry = PTC_CARRY_REPLICATE,
					 .primary = i % 2 ? PTC_AXIS_DP : PTC_AXIS_TP,
					 .primary_at = (uint32_t)(i / 2 % 2) };
		struct live *l;
		struct cut *c;

		rng = (seed = first + i) + 40;
		l = live_up(i % 3 == 0);
		c = run_first(l, i % 4 < 2 ? "tp=3,dp=3" : "tp=2,dp=4");
		l->job.spec.rules = &rule;
		l->job.spec.nrules = 1;
		spoilt += spoil_all(l, c, &rule);
		wire += capture_together(l, &c->gen, i % 5 < 2);
		l->job.spec = (struct ptc_spec){ 0 };
		live_down(l);
	}
	seed = first;
	printf("%u replicas differed, %llu bytes came from other nodes\n", spoilt, (unsigned long long)wire);
	assert_true(spoilt > cases && wire);
}

static void add_fetches(void *arg, const char *method, uint64_t calls, uint64_t errors)
{
	if (strcmp(method, "/ptc.v1.Peer/Fetch") == 0)
		*(uint64_t *)arg += calls;
}

/* That nodes have answered. */
static uint64_t fetches(const struct live *l)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < NODES; i++)
		if (l->w.nodes[i].server)
			ptc_rpc_server_methods(l->w.nodes[i].server, add_fetches, &n);
	return n;
}

/* Until another node was asked for what a node lacks, and has said that it has not got it yet. */
static void await_fetches(const struct live *l, uint64_t before)
{
	for (int i = 0; i < 60000 && fetches(l) == before; i++)
		usleep(1000);
	assert_true(fetches(l) > before);
}

/* What node 1 waits for never comes: whoever ends the switch ends the wait, and nothing is left. */
static void test_primary_never(void **state)
{
	struct ptc_rule rule = { .match = "*", .carry = PTC_CARRY_REPLICATE, .primary = PTC_AXIS_DP, .primary_at = 1 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct capturer x;
	struct live *l;
	struct cut *c;
	uint64_t before;

	rng = seed + 13;
	l = live_up(false);
	c = replicas_on(l, 1);
	l->job.spec.rules = &rule;
	l->job.spec.nrules = 1;
	before = fetches(l);
	capturer_start(&x, l, &c->gen, 1, 5, 7, 1, false);
	while (!tables(l, 1))
		usleep(1000);
	await_fetches(l, before);
	OK(do_finish(&l->w, 1, NULL, false, &err));
	assert_int_equal(pthread_join(x.thread, NULL), 0);
	assert_int_equal(x.rc, PTC_ECANCELED);
	assert_int_equal(tables(l, 1), 0);
	l->job.spec = (struct ptc_spec){ 0 };
	live_down(l);
}

/* ---- the greatest counts ---- */

/* Of what ranks hold of an element, found by value. */
struct best {
	bool any, same, nan;
	uint64_t first, best;
};

static double number(enum ptc_dtype t, uint64_t v)
{
	uint32_t wide = (uint32_t)(t == PTC_BF16 ? v << 16 : v);
	double d;
	float f;

	memcpy(&d, &v, sizeof(d));
	memcpy(&f, &wide, sizeof(f));
	return t == PTC_U8 ? (double)v : t == PTC_F64 ? d : (double)f;
}

static void best_add(struct best *b, enum ptc_dtype t, uint64_t v)
{
	double is = number(t, v), was = number(t, b->best);

	if (!b->any)
		*b = (struct best){ .any = true, .same = true, .nan = is != is, .first = v, .best = v };
	b->same &= v == b->first;
	b->nan |= is != is;
	if (is > was || (is == was && v < b->best)) /* of both zeros the one without a sign */
		b->best = v;
}

static uint64_t best_of(const struct best *b, enum ptc_dtype t)
{
	static const uint64_t quiet[PTC_DTYPE_COUNT] = {
		[PTC_BF16] = 0x7fc0, [PTC_F32] = 0x7fc00000, [PTC_F64] = 0x7ff8000000000000
	};

	assert_true(b->any);
	return b->same ? b->first : b->nan ? quiet[t] : b->best;
}

static struct best bests[MAX_TENSORS][ELEMENTS];

struct differing {
	const struct tensor *is;
	struct best *best;
	uint8_t *image;
	unsigned differ;
};

static void differing_element(void *arg, int64_t element, uint64_t where)
{
	struct differing *d = arg;
	uint64_t v =
		d->best[element].any && rnd(3) == 0 ? d->best[element].first : rnd(1ull << 32) << 32 | rnd(1ull << 32);

	if (rnd(8) == 0) /* zeros */
		v = rnd(2) << (8 * d->is->esize - 1);
	if (d->is->esize < 8)
		v &= (1ull << (8 * d->is->esize)) - 1;
	memcpy(d->image + where, &v, (size_t)d->is->esize);
	best_add(&d->best[element], d->is->dtype, v);
	d->differ += !d->best[element].same;
}

/* Every rank waits at a step with elements of its own; the truth is the greatest of them. Returns how many differ. */
static unsigned train_apart(struct live *l, struct gen *g, uint64_t step)
{
	unsigned differ = 0;

	train_to(l, g, step);
	memset(bests, 0, sizeof(bests));
	for (uint32_t r = 0; r < g->world; r++) {
		struct rank_process *p = rank_of(l, g, r);

		memory_get(p, image);
		for (size_t i = 0; i < p->view.ntensors; i++) {
			struct tensor *is = tensor_named(l, p->view.tensors[i].name);
			struct differing d = { is, bests[is - l->tensors], image, 0 };

			each_element(p, &p->view.tensors[i], differing_element, &d);
			differ += d.differ;
		}
		memory_set(p, image);
	}
	for (size_t t = 0; t < l->ntensors; t++)
		for (int64_t e = 0; e < l->tensors[t].elements; e++) {
			uint64_t v = best_of(&bests[t][e], l->tensors[t].dtype);

			memcpy(l->tensors[t].truth + e * l->tensors[t].esize, &v, (size_t)l->tensors[t].esize);
		}
	return differ;
}

/* Each rank holds a box of its own of each tensor, whatever others hold; one holds all. */
static struct cut *overlapping_cut(struct live *l, uint64_t number, const char *config)
{
	struct cut *c = calloc(1, sizeof *c);

	assert_non_null(c);
	gen_make(&c->gen, number, config, NODES);
	c->gen.snapshot = 0;
	c->gen.incarnation = 1;
	for (size_t t = 0; t < l->ntensors; t++) {
		uint32_t all = (uint32_t)rnd(c->gen.world);

		for (uint32_t r = 0; r < c->gen.world; r++) {
			struct hold *h = &c->holds[r][t];

			h->n = 1;
			h->cells[0] = (struct cell){ { 0 }, { 1, 1, 1 } };
			for (uint32_t d = 0; d < l->tensors[t].ndim; d++) {
				int64_t size = l->tensors[t].shape[d],
					off = r == all ? 0 : (int64_t)rnd((uint64_t)size);

				h->cells[0].off[d] = off;
				h->cells[0].ext[d] = r == all ? size : 1 + (int64_t)rnd((uint64_t)(size - off));
			}
		}
	}
	l->cuts[l->ncuts++] = c;
	return c;
}

static struct ptc_rule max_rule = { .match = "*", .carry = PTC_CARRY_MAX, .shard = PTC_SHARD_NONE };

static void take_max(struct live *l)
{
	l->job.spec.rules = &max_rule;
	l->job.spec.nrules = 1;
}

static void max_down(struct live *l)
{
	l->job.spec = (struct ptc_spec){ 0 };
	live_down(l);
}

static void finish_all(struct live *l, struct gen *g)
{
	struct ptc_error err = PTC_ERROR_INIT;

	for (uint32_t i = 0; i < NODES; i++)
		if (gen_has(g, i)) {
			OK(finish_live(l, i, g, true, &err));
			assert_int_equal(tables(l, i), 1);
		}
}

/* The snapshot has the greatest of what ranks of all nodes hold; they themselves go on with what they have, until the
 * next switch. */
static void test_max(void **state)
{
	unsigned differ = 0, exposed = 0;
	uint64_t first = seed, wire = 0;

	for (uint64_t i = 0; i < cases; i++) {
		const char *config = i % 4 < 2 ? "tp=3,dp=3" : "tp=2,dp=4";
		struct rank_process *p;
		struct cut *c, *to;
		struct live *l;

		rng = (seed = first + i) + 60;
		l = live_up(i % 3 == 0);
		take_max(l);
		c = i % 2 ? run_cut(l, overlapping_cut(l, 1, config)) : run_first(l, config);
		differ += train_apart(l, &c->gen, 7);
		p = rank_of(l, &c->gen, (uint32_t)rnd(c->gen.world));
		memory_get(p, image);
		if (i % 3 == 1) /* as a snapshot between; ranks' stops are the test's */
			wire += capture_from(l, &c->gen, 0, 2, 7, 42, true);
		else
			wire += capture_from(l, &c->gen, (uint32_t)rnd(NODES), 2, 7, 42, false);
		for (uint32_t n = 0; n < NODES; n++)
			exposed += gen_has(&c->gen, n) && tables(l, n) == 2;
		memory_get(p, memory);
		assert_memory_equal(image, memory, RANK_BYTES);
		to = random_cut(l, 2, "tp=2,dp=2", 1 + (unsigned)rnd(NODES));
		switch_on(l, c, to);
		check_memory(l, &to->gen);
		for (uint32_t n = 0; n < NODES; n++)
			assert_true(tables(l, n) <= 1);
		max_down(l);
	}
	seed = first;
	printf("%u elements differed, %llu bytes came from other nodes, %u exposed\n", differ, (unsigned long long)wire,
	       exposed);
	assert_true(differ > cases && wire && exposed);
}

struct others {
	uint64_t snapshot;
	struct ptc_table_key v[4];
	size_t n;
};

static void other_table(void *arg, const struct ptc_table_key *key, bool sealed, int64_t bytes)
{
	struct others *o = arg;

	assert_true(o->n < PTC_ARRAY_LEN(o->v));
	if (key->snapshot != o->snapshot)
		o->v[o->n++] = *key;
}

/* As if the daemon had been killed before it was sealed. */
static void drop_snapshot(struct live *l, uint32_t node, uint64_t snapshot)
{
	struct others o = { .snapshot = snapshot };
	struct ptc_error err = PTC_ERROR_INIT;

	in_order(l);
	OK(ptc_store_tables(l->w.nodes[node].store, UUID, other_table, &o, &err));
	OK(ptc_store_keep(l->w.nodes[node].store, UUID, o.v, o.n, &err));
}

/* A daemon that is killed at any moment makes the same again, with what the others expose; of another attempt nothing
 * is taken. */
static void test_max_again(void **state)
{
	struct live *l;
	struct cut *c;

	rng = seed + 61;
	l = live_up(true);
	take_max(l);
	c = run_cut(l, overlapping_cut(l, 1, "tp=3,dp=3"));
	assert_true(train_apart(l, &c->gen, 7) > 0);
	capture_from(l, &c->gen, 0, 5, 7, 1, false);
	for (uint32_t i = 0; i < NODES; i++) { /* whoever merges, or exposes */
		struct capturer x;

		if (!gen_has(&c->gen, i))
			continue;
		for (uint32_t n = 0; n < NODES; n++) {
			node_down(&l->w, &l->w.nodes[n]);
			node_up(&l->w, &l->w.nodes[n]);
		}
		drop_snapshot(l, i, 5);
		capturer_start(&x, l, &c->gen, i, 5, 7, 1, false);
		assert_int_equal(pthread_join(x.thread, NULL), 0);
		if (x.rc)
			fail_msg("node %u: %s", i, x.err.text);
		ptc_pb_free(&x.reply->base);
		capture_from(l, &c->gen, 0, 5, 7, 1, false); /* answered as before, and it is the truth */
	}
	/* nothing came of it: another attempt, in which some node is much earlier than the others */
	for (uint32_t i = 1; i < NODES; i++) {
		assert_true(train_apart(l, &c->gen, 7 + i) > 0);
		for (uint32_t n = 0; n < NODES;
		     n++) /* else what is remote may be read of the attempt before: refused by digest */
			drop_snapshot(l, n, 5);
		capture_from(l, &c->gen, i, 5, 7 + i, 1 + i, i % 2);
	}
	c->gen.snapshot = 5;
	check_gathered(l, &c->gen);
	finish_all(l, &c->gen);
	max_down(l);
}

/* What is waited for never comes, for who merges and for who exposes: whoever ends the switch ends the wait, and
 * nothing is left. */
static void test_max_never(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;

	for (uint32_t node = 0; node < 2; node++) {
		struct capturer x;
		struct live *l;
		struct cut *c;
		uint64_t before;

		rng = seed + 62;
		l = live_up(false);
		c = replicas_on(l, 1);
		take_max(l);
		train_apart(l, &c->gen, 7);
		before = fetches(l);
		capturer_start(&x, l, &c->gen, node, 5, 7, 1, false);
		while (tables(l, node) < 1 + node)
			usleep(1000);
		await_fetches(l, before);
		OK(do_finish(&l->w, node, NULL, false, &err));
		assert_int_equal(pthread_join(x.thread, NULL), 0);
		assert_int_equal(x.rc, PTC_ECANCELED);
		assert_int_equal(tables(l, node), 0);
		max_down(l);
	}
}

/* Before anything is reserved, copied or released: what has no greatest. */
static void test_max_of_none(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PullReply *reply;
	struct live *l;
	struct cut *c;

	rng = seed + 63;
	l = live_up(false);
	l->tensors[1].dtype = PTC_F8_E4M3;
	l->tensors[1].esize = 1;
	c = replicas(l);
	take_max(l);
	for (uint32_t r = 0; r < c->gen.world; r++)
		rank_of(l, &c->gen, r)->view.staged = true;
	assert_int_equal(do_capture(l, 0, &c->gen, 5, 7, 1, true, &reply, &err), PTC_ELAYOUT);
	assert_non_null(strstr(err.text, "tensor \"w:exp_avg\" (F8_E4M3): rule \"*\" takes the greatest"));
	assert_int_equal(tables(l, 0), 0);
	assert_int_equal(l->workers[0].releases, 0);
	/* of a job of an earlier version, where it was cut as any other: carried */
	max_rule.shard = PTC_SHARD_CONFIG;
	OK(do_capture(l, 0, &c->gen, 5, 7, 1, false, &reply, &err));
	ptc_pb_free(&reply->base);
	spoil(l, c, 2);
	assert_int_equal(do_capture(l, 0, &c->gen, 6, 7, 2, false, &reply, &err), PTC_EDIGEST);
	max_rule.shard = PTC_SHARD_NONE;
	max_down(l);
}

/* What is exposed has its memory, before anything is copied. */
static void test_max_memory(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PullReply *reply;
	struct live *l;
	struct cut *c;

	rng = seed + 64;
	l = live_up(false);
	node_down(&l->w, &l->w.nodes[1]);
	l->w.nodes[1].ceiling = PTC_CHUNK_BYTES + PTC_CHUNK_BYTES / 2; /* the snapshot fits */
	node_up(&l->w, &l->w.nodes[1]);
	c = replicas_on(l, 1);
	take_max(l);
	assert_int_equal(do_capture(l, 1, &c->gen, 5, 7, 1, true, &reply, &err), PTC_ENOSPC);
	assert_non_null(strstr(err.text, "n1"));
	assert_int_equal(tables(l, 1), 0);
	assert_int_equal(l->workers[1].releases, 0);
	max_down(l);
}

static void test_again(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PullReply *a, *b;
	struct live *l;
	struct cut *c;

	rng = seed + 12;
	l = live_up(false);
	c = replicas(l);
	assert_int_equal(do_capture(l, 0, &c->gen, 5, 8, 1, true, &a, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "does not wait at step 8"));
	OK(do_capture(l, 0, &c->gen, 5, 7, 1, true, &a, &err));
	assert_int_equal(rank_of(l, &c->gen, 1)->view.state, PTC_SLOT_RUNNING);
	/* the answer was lost: the same once more, though the ranks have gone on and changed */
	memset(image, 0, RANK_BYTES);
	memory_set(rank_of(l, &c->gen, 0), image);
	OK(do_capture(l, 0, &c->gen, 5, 7, 1, true, &b, &err));
	assert_int_equal(a->n_digests, b->n_digests);
	assert_memory_equal(a->digests, b->digests, a->n_digests * sizeof *a->digests);
	assert_int_equal(b->n_ranks, 3);
	assert_int_equal(b->ranks[2]->cursors[0]->position, 107);
	ptc_pb_free(&a->base);
	ptc_pb_free(&b->base);
	/* that attempt came to nothing; another one, of the same number, is of other bytes */
	for (int64_t k = 0; k < l->tensors[0].elements * l->tensors[0].esize; k++)
		l->tensors[0].truth[k] ^= 0x55;
	assert_int_equal(do_capture(l, 0, &c->gen, 5, 9, 2, false, &b, &err), PTC_ESTATE);
	train_to(l, &c->gen, 9);
	capture_all(l, &c->gen, 5, 9, 2, false);
	/* so does one that was started anew in between: what was committed may be that very table */
	for (uint32_t r = 0; r < c->gen.world; r++)
		memory_set(rank_of(l, &c->gen, r), image);
	node_down(&l->w, &l->w.nodes[0]);
	node_up(&l->w, &l->w.nodes[0]);
	capture_all(l, &c->gen, 5, 9, 2, false);
	/* of another switch it is not believed */
	train_to(l, &c->gen, 9);
	for (int64_t k = 0; k < l->tensors[0].elements * l->tensors[0].esize; k++)
		l->tensors[0].truth[k] ^= 0x55;
	train_to(l, &c->gen, 9);
	capture_all(l, &c->gen, 5, 9, 3, false);
	assert_int_equal(tables(l, 0), 1);
	live_down(l);
}

/* Nobody finishes the switch of a job that was deleted meanwhile: what the capture has kept goes with the job. */
static void test_deleted(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_store_stats stats;
	struct live *l;
	struct cut *c;

	rng = seed + 12;
	l = live_up(false);
	c = replicas(l);
	capture_all(l, &c->gen, 5, 7, 1, false);
	ptc_store_stats(l->w.nodes[0].store, &stats);
	assert_true(stats.chunks_used > 0);
	OK(ptc_agent_job_delete(l->w.nodes[0].agent, UUID, &err));
	ptc_store_stats(l->w.nodes[0].store, &stats);
	assert_int_equal(stats.chunks_used, 0);
	assert_int_equal(stats.chunks_free, 0);
	live_down(l);
}

static bool chunks_gone(struct live *l, uint32_t node)
{
	struct ptc_error err = PTC_ERROR_INIT;
	unsigned n = 0;

	return ptc_store_tables(l->w.nodes[node].store, UUID, count_tables, &n, &err) == PTC_ELOST;
}

/* Chunks are gone, and ranks have outlived them: what these have becomes a table in new ones. */
static void test_chunks_gone(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PullReply *reply;
	char chunks[240];
	struct live *l;
	struct cut *c;

	rng = seed + 21;
	l = live_up(false);
	c = replicas(l);
	capture_all(l, &c->gen, 5, 7, 1, false);
	capture_all(l, &c->gen, 6, 7, 2, false);
	assert_int_equal(tables(l, 0), 2); /* chunks that are there stay */
	snprintf(chunks, sizeof(chunks), "%s/chunks/" UUID, l->w.nodes[0].dir);
	node_down(&l->w, &l->w.nodes[0]);
	OK(ptc_sys_remove_tree(chunks, "test.remove", &err));
	node_up(&l->w, &l->w.nodes[0]);
	assert_true(chunks_gone(l, 0));
	/* ranks that do not wait there have nothing to give, and the store stays as it is */
	assert_int_equal(do_capture(l, 0, &c->gen, 7, 8, 3, false, &reply, &err), PTC_ESTATE);
	assert_true(chunks_gone(l, 0));
	capture_all(l, &c->gen, 7, 7, 3, false);
	assert_int_equal(tables(l, 0), 1);
	/* the same request once more finds that table */
	capture_all(l, &c->gen, 7, 7, 3, false);
	assert_int_equal(tables(l, 0), 1);
	capture_all(l, &c->gen, 8, 7, 4, false);
	assert_int_equal(tables(l, 0), 2);
	live_down(l);
}

static void test_memory(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PullReply *reply;
	struct live *l;
	struct cut *c;

	rng = seed + 13;
	l = live_up(true);
	node_down(&l->w, &l->w.nodes[0]);
	l->w.nodes[0].ceiling = 512u << 10; /* less than one chunk */
	node_up(&l->w, &l->w.nodes[0]);
	c = replicas(l);
	assert_int_equal(do_capture(l, 0, &c->gen, 5, 7, 1, true, &reply, &err), PTC_ENOSPC);
	assert_non_null(strstr(err.text, "n0"));
	assert_int_equal(tables(l, 0), 0);
	assert_int_equal(l->workers[0].releases, 0);
	live_down(l);
}

/* Ranks that have copied their memory themselves go on before anything else is done, even what may fail; all of them or
 * none. */
static void test_staged(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__PullReply *reply;
	struct live *l;
	struct cut *c;

	rng = seed + 14;
	l = live_up(true);
	node_down(&l->w, &l->w.nodes[0]);
	l->w.nodes[0].ceiling = 512u << 10; /* less than one chunk */
	node_up(&l->w, &l->w.nodes[0]);
	c = replicas(l);
	for (uint32_t r = 0; r < c->gen.world; r++) {
		assert_int_equal(do_capture(l, 0, &c->gen, 5, 7, 1, true, &reply, &err), PTC_ENOSPC);
		assert_int_equal(l->workers[0].releases, 0);
		rank_of(l, &c->gen, r)->view.staged = true;
	}
	assert_int_equal(do_capture(l, 0, &c->gen, 5, 7, 1, false, &reply, &err), PTC_ENOSPC);
	assert_int_equal(l->workers[0].releases, 0); /* in a switch they stay */
	assert_int_equal(do_capture(l, 0, &c->gen, 5, 7, 1, true, &reply, &err), PTC_ENOSPC);
	assert_int_equal(l->workers[0].releases, 1);
	live_down(l);
}

/* ---- Finish ---- */

static void wait_for(unsigned *what, unsigned value)
{
	for (int i = 0; i < 1000 && __atomic_load_n(what, __ATOMIC_SEQ_CST) < value; i++)
		usleep(20000);
	assert_int_equal(__atomic_load_n(what, __ATOMIC_SEQ_CST), value);
	in_order(world_hook_arg);
}

static void test_revive(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_workers *w;
	struct live *l;
	struct cut *c;

	rng = seed + 14;
	l = live_up(false);
	w = &l->workers[0];
	c = replicas(l);
	capture_all(l, &c->gen, 5, 7, 1, false);
	c->gen.snapshot = 5;
	/* they wait at the stop: they go on, and nothing is restored */
	OK(finish_live(l, 0, &c->gen, true, &err));
	assert_int_equal(w->releases, 1);
	assert_int_equal(w->starts, 1);
	assert_false(rank_of(l, &c->gen, 0)->restored);
	/* they run, perhaps towards a stop that is no more: only that is taken back */
	OK(finish_live(l, 0, &c->gen, true, &err));
	assert_int_equal(w->releases, 2);
	assert_int_equal(w->starts, 1);
	/* the next incarnation: the old ones are ended, new ones started, built, restored */
	c->gen.incarnation = 2;
	OK(finish_live(l, 0, &c->gen, true, &err));
	assert_int_equal(w->n, 3);
	assert_int_equal(w->starts, 2);
	check_memory(l, &c->gen);
	check_rank_state(l, &c->gen, &c->gen);
	assert_int_equal(w->reports_again, 0);
	rank_of(l, &c->gen, 1)->view.state = PTC_SLOT_EXITED;
	OK(finish_live(l, 0, &c->gen, true, &err));
	assert_int_equal(w->reports_again, 1);
	/* they went on and are gone with the machine: others are on their way without them, so none is started anew */
	slots_drop(w, UUID, NULL, 0);
	node_down(&l->w, &l->w.nodes[0]);
	node_up(&l->w, &l->w.nodes[0]);
	OK(finish_live(l, 0, &c->gen, true, &err));
	wait_for(&l->event, 1);
	assert_non_null(strstr(l->event_text, "no longer run on this node"));
	assert_true(strncmp(l->event_text, "node ", 5) != 0); /* whoever tells it puts that before it */
	assert_int_equal(w->starts, 2);
	assert_int_equal(w->n, 0);
	/* ranks that declare something else than what the generation was laid out by are not given anything */
	c->gen.incarnation = 3;
	c->holds[1][0].cells[0].ext[0]--;
	OK(finish_live(l, 0, &c->gen, true, &err));
	wait_for(&l->event, 2);
	assert_non_null(strstr(l->event_text, "the declaration of rank 1 differs"));
	assert_false(rank_of(l, &c->gen, 0)->went);
	/* not live: all end */
	in_order(l);
	OK(do_finish(&l->w, 0, NULL, false, &err));
	in_order(l);
	assert_int_equal(w->n, 0);
	live_down(l);
}

/* A controller that has taken the switch over does not know what was built. Where the store is newer than the switch,
 * it may have been. */
static void started_in_a_new_store(struct live *l, Ptc__V1__WorkersRequest *req)
{
	const unsigned starts = l->workers[0].starts;
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__WorkersReply *built = NULL;
	ProtobufCMessage *reply = NULL;

	req->built = false;
	req->resumed = 499;
	since = 0; /* its daemon takes calls before it knows: asked again later */
	in_order(l);
	assert_int_equal(unary(&l->w, 0, "/ptc.v1.Peer/Start", &req->base, &ptc__v1__workers_reply__descriptor, &reply,
			       &err),
			 PTC_ECOORD);
	assert_int_equal(stream(l, 0, "/ptc.v1.Peer/Build", &req->base, &built, &err), PTC_ECOORD);
	assert_int_equal(l->workers[0].starts, starts);
	since = 500;
	in_order(l);
	assert_int_equal(unary(&l->w, 0, "/ptc.v1.Peer/Start", &req->base, &ptc__v1__workers_reply__descriptor, &reply,
			       &err),
			 PTC_ELOST);
	assert_int_equal(stream(l, 0, "/ptc.v1.Peer/Build", &req->base, &built, &err), PTC_ELOST);
	assert_int_equal(l->workers[0].starts, starts);
	req->resumed = 500; /* of the same transaction at the latest */
	in_order(l);
	OK(unary(&l->w, 0, "/ptc.v1.Peer/Start", &req->base, &ptc__v1__workers_reply__descriptor, &reply, &err));
	ptc_pb_free(reply);
	assert_int_equal(l->workers[0].starts, starts + 1);
	/* they are there now: so it does not matter */
	req->resumed = 499;
	in_order(l);
	OK(unary(&l->w, 0, "/ptc.v1.Peer/Start", &req->base, &ptc__v1__workers_reply__descriptor, &reply, &err));
	ptc_pb_free(reply);
}

/* Orders to rank 1 that are spoilt, from 1 on. */
static struct {
	unsigned first, last, orders;
} spoilt;

static bool spoils(const struct ptc_slot_order *order)
{
	unsigned now = ++spoilt.orders;

	return now >= spoilt.first && now <= spoilt.last;
}

/* All ranks go on, or it was told why not. */
static bool ends(struct live *l, struct cut *c)
{
	bool went = true;

	in_order(l);
	if (__atomic_load_n(&l->event, __ATOMIC_SEQ_CST))
		return true;
	pthread_mutex_lock(&l->workers[0].lock);
	for (uint32_t r = 0; r < c->gen.world; r++) {
		const struct rank_process *p = rank_of(l, &c->gen, r);

		went = went && p && p->went;
	}
	pthread_mutex_unlock(&l->workers[0].lock);
	return went;
}

/* Restores it into ranks of a new incarnation. Returns how often rank 1 was told to read. */
static unsigned restored_with(struct live *l, struct cut *c, unsigned first, unsigned last)
{
	struct ptc_error err = PTC_ERROR_INIT;

	spoilt.first = first;
	spoilt.last = last;
	spoilt.orders = 0;
	c->gen.incarnation++;
	in_order(l);
	OK(finish_live(l, 0, &c->gen, true, &err));
	for (int i = 0; i < 1000 && !ends(l, c); i++) /* Finish may be answered earlier */
		usleep(20000);
	in_order(l);
	return spoilt.orders;
}

/* A bit flips after this node has said where the bytes are, while a rank reads them: it is found, and the rank reads
 * them again, or at last they are written into it. tests/test_damage.py has bits that stay wrong. */
static void test_flips_while_read(void **state)
{
	char *before = getenv("TMPDIR") ? strdup(getenv("TMPDIR")) : NULL;
	unsigned once;
	struct live *l;
	struct cut *c;

	rng = seed + 22;
	setenv("TMPDIR", "/dev/shm", 1);
	l = live_up(false);
	if (before)
		setenv("TMPDIR", before, 1);
	else
		unsetenv("TMPDIR");
	c = replicas(l);
	capture_all(l, &c->gen, 5, 7, 1, false);
	c->gen.snapshot = 5;
	spoils_read = spoils;
	once = restored_with(l, c, 0, 0);
	assert_true(once > 0);
	check_memory(l, &c->gen);
	assert_int_equal(restored_with(l, c, 1, 1), 2 * once);
	check_memory(l, &c->gen);
	assert_int_equal(restored_with(l, c, 1, once + 1), 3 * once);
	check_memory(l, &c->gen);
	assert_int_equal(restored_with(l, c, 1, 3 * once), 3 * once); /* and then written */
	check_memory(l, &c->gen);
	assert_int_equal(l->event, 0);
	spoils_read = NULL;
	free(before);
	live_down(l);
}

/* Ranks that were built, and have gone with the machine before they went on: others have met them, so none is started
 * in their place, whoever asks. A store that knows nothing of it takes the controller's word. */
static void test_built_and_gone(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__WorkersReply *built = NULL;
	Ptc__V1__WorkersRequest req;
	ProtobufCMessage *reply = NULL;
	struct ptc_workers *w;
	struct info info;
	struct live *l;
	struct cut *c;
	unsigned starts;

	rng = seed + 19;
	l = live_up(false);
	w = &l->workers[0];
	c = replicas(l);
	capture_all(l, &c->gen, 5, 7, 1, false);
	c->gen.snapshot = 5;
	c->gen.incarnation = 2;
	info_make(&info, &l->w, NULL, &c->gen);
	start_all(l, &info, &c->gen);
	build_all(l, &info, &c->gen);
	/* only ptcd was restarted: they are there, and say the same */
	request(&req, &info);
	req.built = true;
	OK(stream(l, 0, "/ptc.v1.Peer/Build", &req.base, &built, &err));
	assert_int_equal(built->n_ranks, 3);
	ptc_pb_free(&built->base);
	slots_drop(w, UUID, NULL, 0);
	node_down(&l->w, &l->w.nodes[0]);
	node_up(&l->w, &l->w.nodes[0]);
	starts = w->starts;
	for (int i = 0; i < 2; i++) {
		req.built = i;
		in_order(l);
		assert_int_equal(unary(&l->w, 0, "/ptc.v1.Peer/Start", &req.base, &ptc__v1__workers_reply__descriptor,
				       &reply, &err),
				 PTC_ELOST);
		assert_int_equal(stream(l, 0, "/ptc.v1.Peer/Build", &req.base, &built, &err), PTC_ELOST);
		assert_non_null(strstr(err.text, "ranks of other nodes have met them"));
	}
	OK(finish_live(l, 0, &c->gen, true, &err));
	wait_for(&l->event, 1);
	assert_non_null(strstr(l->event_text, "no longer run on this node"));
	assert_int_equal(w->starts, starts);
	assert_int_equal(w->n, 0);
	c->gen.incarnation = 3;
	info_make(&info, &l->w, NULL, &c->gen);
	request(&req, &info);
	req.built = true;
	in_order(l);
	assert_int_equal(unary(&l->w, 0, "/ptc.v1.Peer/Start", &req.base, &ptc__v1__workers_reply__descriptor, &reply,
			       &err),
			 PTC_ELOST);
	started_in_a_new_store(l, &req);
	live_down(l);
}

/* A node that has never heard of the job, or lost all it had: of a generation without a snapshot no rank starts there,
 * for it was begun elsewhere or before; of others they would start, but that what they need is not there is told first.
 */
static void test_fresh_node(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct live *l;
	struct cut *c;

	rng = seed + 18;
	l = live_up(false);
	c = replicas(l);
	capture_all(l, &c->gen, 5, 7, 1, false);
	for (uint32_t r = 0; r < 3; r++)
		c->gen.nodes[r] = 2;
	c->gen.incarnation = 2;
	OK(finish_live(l, 2, &c->gen, false, &err));
	wait_for(&l->event, 1);
	assert_non_null(strstr(l->event_text, "no longer run on this node"));
	assert_int_equal(l->workers[2].n, 0);
	c->gen.incarnation = 3;
	c->gen.snapshot = 5;
	OK(finish_live(l, 2, &c->gen, true, &err));
	wait_for(&l->event, 2);
	assert_non_null(strstr(l->event_text, "not-found"));
	assert_int_equal(l->workers[2].n, 0);
	live_down(l);
}

/* A later request ends what still goes on behind Finish's answer; so does the end of the daemon. */
static void test_overtaken(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct live *l;
	struct cut *c;

	rng = seed + 15;
	l = live_up(false);
	c = replicas(l);
	capture_all(l, &c->gen, 5, 7, 1, false);
	c->gen.incarnation = 2;
	c->gen.snapshot = 5;
	l->workers[0].hold_ms = 60000;
	node_down(&l->w, &l->w.nodes[0]);
	node_up(&l->w, &l->w.nodes[0]);
	OK(finish_live(l, 0, &c->gen, false, &err)); /* answers before the build has ended */
	assert_int_equal(l->workers[0].builds, 1);
	assert_int_equal(l->workers[0].looks_again, 0);
	in_order(l);
	OK(do_finish(&l->w, 0, NULL, false, &err));
	assert_int_equal(l->workers[0].looks_again, 1); /* who waits for ranks need not look by itself */
	in_order(l);
	assert_int_equal(l->workers[0].n, 0);
	assert_int_equal(l->event, 0);
	c->gen.incarnation = 3;
	OK(finish_live(l, 0, &c->gen, false, &err));
	live_down(l);
}

/* Ranks that are brought up behind Finish's answer are not lost to whoever asks for something meanwhile: that waits. */
static void test_waited_for(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__WorkersRequest req;
	ProtobufCMessage *armed;
	struct info info;
	struct live *l;
	struct cut *c;

	rng = seed + 19;
	l = live_up(false);
	c = replicas(l);
	capture_all(l, &c->gen, 5, 7, 1, false);
	c->gen.snapshot = 5;
	c->gen.incarnation = 2;
	l->workers[0].hold_ms = 1500;
	node_down(&l->w, &l->w.nodes[0]);
	node_up(&l->w, &l->w.nodes[0]);
	OK(finish_live(l, 0, &c->gen, true, &err)); /* answers before the build has ended */
	assert_int_equal(l->workers[0].builds, 1);
	info_make(&info, &l->w, &c->gen, &c->gen);
	request(&req, &info);
	req.from = true;
	req.warm = true;
	OK(unary(&l->w, 0, "/ptc.v1.Peer/Arm", &req.base, &ptc__v1__workers_reply__descriptor, &armed, &err));
	ptc_pb_free(armed);
	assert_int_equal(l->workers[0].builds, 2);
	assert_true(rank_of(l, &c->gen, 0)->went);
	check_memory(l, &c->gen);
	assert_int_equal(l->event, 0);
	live_down(l);
}

/* ---- memory for the next generation ---- */

static void place(struct gen *g, uint64_t number, const char *config, const uint32_t *nodes)
{
	gen_make(g, number, config, NODES);
	for (uint32_t i = 0; i < g->world; i++) {
		g->nodes[i] = nodes[i];
		g->devices[i] = i;
	}
}

static int64_t bytes_of(struct live *l, uint32_t node, struct gen *from, struct gen *to)
{
	struct info info;

	info_make(&info, &l->w, from, to);
	info.pb.spec_hash = (char *)(uintptr_t) "of a job whose tensors only ranks declare";
	return ptc_warm_bytes(l->w.nodes[node].agent, &info.pb, &info.to);
}

/* Before its ranks have declared, a generation's bytes on a node are estimated from what the node holds of the one
 * before: by the shards that it has of each. */
static void test_bytes_of_next(void **state)
{
	static const uint32_t four[] = { 0, 0, 1, 2 }, two[] = { 0, 3 }, eight[] = { 0, 1, 0, 1, 1, 0, 2, 2 };
	struct live *l;
	struct gen next;
	struct cut *c;
	int64_t has;

	rng = seed + 23;
	l = live_up(false);
	c = random_cut(l, 1, "tp=4", NODES);
	memcpy(c->gen.nodes, four, sizeof four);
	for (uint32_t i = 0; i < c->gen.world; i++)
		c->gen.devices[i] = i;
	run_cut(l, c);
	has = bytes_of(l, 0, &c->gen, &c->gen);
	assert_true(has > 0);
	place(&next, 2, "tp=2", two);
	assert_int_equal(bytes_of(l, 0, &c->gen, &next), has); /* half of the shards, as now */
	assert_int_equal(bytes_of(l, 1, &c->gen, &next), 0);   /* no ranks there */
	assert_int_equal(bytes_of(l, 3, &c->gen, &next), 0);   /* nothing there to estimate from */
	place(&next, 2, "tp=2,pp=2,dp=2", eight);
	assert_int_equal(bytes_of(l, 0, &c->gen, &next), has); /* ranks 0 and 2 are replicas, 5 is not */
	live_down(l);
}

static bool is_read_ahead(const struct live *l)
{
	struct ptc_agent *agent = l->w.nodes[0].agent;
	bool yes;

	pthread_mutex_lock(&agent->shared.lock);
	yes = agent->shared.prefetched != NULL;
	pthread_mutex_unlock(&agent->shared.lock);
	return yes;
}

/* Reads the snapshot ahead, as if ranks of the same cut were built. */
static void read_ahead(struct live *l, struct cut *c)
{
	struct ptc_agent *agent = l->w.nodes[0].agent;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_geometry_ref *ref;
	struct info info;

	info_make(&info, &l->w, &c->gen, &c->gen);
	OK(ptc_geometry_get(agent, &info.pb, &info.from, &ref, &err));
	agent->env.prefetch_bytes = 1 << 20;
	ptc_prefetch_begin(agent, &ref->g, &ref->g, "GPU-none");
	ptc_geometry_put(ref);
	assert_true(is_read_ahead(l));
}

/* What was read ahead of a restore that never comes goes with the Finish that says so, whether ranks go on or not. */
static void test_read_for_nothing(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct live *l;
	struct cut *c;

	rng = seed + 20;
	l = live_up(false);
	c = replicas(l);
	capture_all(l, &c->gen, 5, 7, 1, false);
	c->gen.snapshot = 5;
	read_ahead(l, c);
	OK(finish_live(l, 0, &c->gen, true, &err));
	assert_false(is_read_ahead(l));
	read_ahead(l, c);
	OK(do_finish(&l->w, 0, &c->gen, false, &err));
	assert_false(is_read_ahead(l));
	live_down(l);
}

static void test_streams(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__WorkersRequest req;
	Ptc__V1__WorkersReply *reply;
	ProtobufCMessage *armed;
	struct ptc_rpc_stream *s;
	struct info info;
	unsigned beats;
	struct live *l;
	struct cut *c;

	rng = seed + 16;
	l = live_up(false);
	c = replicas(l);
	info_make(&info, &l->w, &c->gen, &c->gen);
	request(&req, &info);
	req.from = true;
	req.stop = 3;
	for (int warm = 1; warm >= 0; warm--) { /* making memory for a switch arms nothing */
		req.warm = warm;
		OK(unary(&l->w, 0, "/ptc.v1.Peer/Arm", &req.base, &ptc__v1__workers_reply__descriptor, &armed, &err));
		assert_int_equal(((Ptc__V1__WorkersReply *)armed)->passed, !warm);
		assert_int_equal(((Ptc__V1__WorkersReply *)armed)->step, warm ? 0 : 5);
		ptc_pb_free(armed);
	}
	req.stop = 9;
	OK(open_call(&l->w, 0, "/ptc.v1.Peer/Stop", &req.base, &s, &err));
	sleep(2);
	train_to(l, &c->gen, 9);
	OK(last_workers(s, &reply, &beats, &err));
	assert_true(beats > 0);
	ptc_pb_free(&reply->base);
	ptc_rpc_stream_free(s);
	/* the job says how long; it is no failure that is worth another try */
	l->job.run.boundary_timeout_ms = 1000;
	req.stop = 12;
	OK(open_call(&l->w, 0, "/ptc.v1.Peer/Stop", &req.base, &s, &err));
	assert_int_equal(last_workers(s, &reply, &beats, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "boundary_timeout of 1 s is over stop: rank 2 is late"));
	ptc_rpc_stream_free(s);
	live_down(l);
}

/* Appends what comes next to text; false: the stream has ended. */
static bool more_log(struct ptc_rpc_stream *s, char *text, size_t size)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_message *msg;
	static uint8_t part[70000];
	Ptc__V1__Data *data;
	uint64_t len;

	OK(ptc_rpc_stream_recv(s, &msg, &err));
	if (!msg)
		return false;
	len = ptc_rpc_message_len(msg);
	assert_true(len < sizeof(part));
	ptc_rpc_message_read(msg, part, (size_t)len);
	ptc_rpc_message_done(msg);
	data = ptc__v1__data__unpack(NULL, (size_t)len, part);
	assert_non_null(data);
	assert_true(data->data.len < size - strlen(text));
	assert_null(memchr(data->data.data, 0, data->data.len));
	strncat(text, (const char *)data->data.data, data->data.len);
	ptc__v1__data__free_unpacked(data, NULL);
	return true;
}

static void test_log(void **state)
{
	static const char after[] = "half of a line\nwhole\n";
	struct ptc_error err = PTC_ERROR_INIT;
	Ptc__V1__LogRequest req;
	static char text[200000];
	char path[256];
	struct ptc_rpc_stream *s;
	struct live *l;
	FILE *f;

	rng = seed + 17;
	l = live_up(false);
	l->workers[0].arg = l->w.dir;
	snprintf(path, sizeof(path), "%s/log.4", l->w.dir);
	f = fopen(path, "w");
	for (int i = 0; i < 10000; i++)
		fprintf(f, "line %d\n", i);
	fflush(f);
	ptc__v1__log_request__init(&req);
	req.version = 1;
	req.uuid = uuid_text;
	req.rank = 4;
	req.lines = 2;
	req.follow = true;
	in_order(l);
	OK(open_call(&l->w, 0, "/ptc.v1.Peer/Log", &req.base, &s, &err));
	while (!strstr(text, "9999\n"))
		assert_true(more_log(s, text, sizeof(text)));
	fprintf(f, "more\n");
	while (ftell(f) % 65536 != 65535)
		fputc('.', f);
	fprintf(f, "h"); /* the end of a block of whatever file system */
	fflush(f);
	while (!strstr(text, ".h"))
		assert_true(more_log(s, text, sizeof(text)));
	assert_non_null(strstr(text, "line 9998\nline 9999\nmore\n"));
	assert_null(strstr(text, "line 9997"));
	/* one write makes a hole where the reader is, as one that is slower than the program finds it */
	assert_int_equal(pwrite(fileno(f), after, strlen(after), ftell(f) + (1 << 20)), strlen(after));
	while (!strstr(text, "whole\n"))
		assert_true(more_log(s, text, sizeof(text)));
	assert_non_null(strstr(text, ".h\nptc: 1048591 bytes are left out here"));
	assert_non_null(strstr(text, "read\nwhole\n"));
	/* the process has ended: everything, and no more */
	assert_int_equal(pwrite(fileno(f), "last\n", 5, lseek(fileno(f), 0, SEEK_END)), 5);
	test_log_over = true;
	while (more_log(s, text, sizeof(text)))
		;
	assert_non_null(strstr(text, "whole\nlast\n"));
	test_log_over = false;
	fclose(f);
	ptc_rpc_stream_free(s);
	live_down(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_switches),
		cmocka_unit_test(test_replicas_differ),
		cmocka_unit_test(test_primary),
		cmocka_unit_test(test_primary_elsewhere),
		cmocka_unit_test(test_primary_never),
		cmocka_unit_test(test_max),
		cmocka_unit_test(test_max_again),
		cmocka_unit_test(test_max_never),
		cmocka_unit_test(test_max_of_none),
		cmocka_unit_test(test_max_memory),
		cmocka_unit_test(test_again),
		cmocka_unit_test(test_deleted),
		cmocka_unit_test(test_chunks_gone),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_staged),
		cmocka_unit_test(test_revive),
		cmocka_unit_test(test_built_and_gone),
		cmocka_unit_test(test_fresh_node),
		cmocka_unit_test(test_overtaken),
		cmocka_unit_test(test_waited_for),
		cmocka_unit_test(test_streams),
		cmocka_unit_test(test_bytes_of_next),
		cmocka_unit_test(test_log),
		cmocka_unit_test(test_read_for_nothing),
		cmocka_unit_test(test_flips_while_read),
	};
	const char *c = getenv("PTC_CASES");
	int rc;

	seed = ptc_test_seed();
	cases = c ? strtoull(c, NULL, 0) : cases;
	ptc_rpc_init();
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	ptc_rpc_shutdown();
	return rc;
}
