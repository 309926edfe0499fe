/* SPDX-License-Identifier: Apache-2.0 */
/* Bits that flip in the stores of four agents under random layouts: all are found, all are healed where another node
 * has the bytes, none is healed into something else, switches go on from what is right. The oracle is the imported
 * state itself, and, for whether a copy exists, reading single bytes at the other nodes. PTC_TEST_SEED and PTC_CASES
 * override; the seed is printed. */
#include "daemon/agent/test_world.h"
#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/healing/heal.h"
#include "daemon/store/store_read.h"
#include "daemon/store/store_table.h"

#include "base/test_seed.h"

#include <fcntl.h>
#include <stdatomic.h>

#define ROUNDS     6
#define FLIPS      5 /* of a round, at most */
#define SPANS      65536
#define CHUNKS_MAX 1024

static uint64_t seed, cases = 3;
static struct gen *committed; /* what the nodes are told is committed */
static unsigned total_flips, total_healed, total_left, total_switches;

/* ---- what the agents ask ---- */

struct lasting {
	struct ptc_geometry g;
	struct info info;
};

static int world_committed(void *arg, const char *uuid, struct ptc_agent_committed *ret, struct ptc_error *err)
{
	struct world *w = arg;
	struct lasting *l;
	int up = 0, r;

	if (strcmp(uuid, UUID) || !committed)
		return ptc_error_set(err, PTC_ENOTFOUND, "no job %s", uuid);
	while (!w->nodes[up].agent)
		up++;
	l = ptc_calloc(1, sizeof *l);
	assert_non_null(l);
	info_make(&l->info, w, committed, committed);
	r = ptc_agent_geometry(w->nodes[up].agent, &l->info.pb, &l->info.from, &l->g, err);
	if (r) {
		ptc_free(l);
		return r;
	}
	*ret = (struct ptc_agent_committed){ .g = &l->g, .digests = w->digest, .ndigests = NITEMS, .ref = l };
	return 0;
}

static void world_committed_release(void *arg, struct ptc_agent_committed *c)
{
	struct lasting *l = c->ref;

	ptc_geometry_done(&l->g);
	ptc_free(l);
}

static _Atomic unsigned said_healed, said_digests, said_left;

static void world_healed(void *arg, const struct ptc_agent_healed *h)
{
	assert_true(h->text[0] != '\0' && h->what->text[0] != '\0');
	if (getenv("PTC_SHOW"))
		printf("%d %s: %s\n", h->status, h->what->text, h->text);
	if (h->status)
		said_left++;
	else
		said_healed++;
	if (!h->status && strstr(h->text, "digests"))
		said_digests++;
}

static void hook(struct world *w, struct node *n, struct ptc_agent_env *env)
{
	env->committed_get = world_committed;
	env->committed_release = world_committed_release;
	env->healed = world_healed;
}

/* ---- places in a node's chunk file ---- */

struct place {
	struct ptc_span_chunk chunks[CHUNKS_MAX];
	struct ptc_span spans[SPANS];
	struct ptc_spans s;
	uint64_t bytes; /* of the spans */
};

/* All live bytes of the node's table, by where they lie. */
static void place_make(struct place *p, struct world *w, uint32_t node)
{
	struct ptc_table_key key = { .uuid = UUID, .generation = committed->number, .snapshot = committed->snapshot };
	struct ptc_error err = PTC_ERROR_INIT;
	const struct ptc_piece *pieces;
	struct ptc_table *t;
	size_t n;

	p->s = (struct ptc_spans){ .v = p->spans, .max = SPANS, .chunks = p->chunks, .max_chunks = CHUNKS_MAX };
	p->bytes = 0;
	OK(ptc_table_open(w->nodes[node].store, &key, &t, &err));
	pieces = ptc_table_all_pieces(t, &n);
	for (size_t i = 0; i < n; i++)
		OK(ptc_table_spans(t, pieces[i].item, &pieces[i].live, &p->s, &err));
	ptc_table_unref(t);
	for (size_t i = 0; i < p->s.n; i++)
		p->bytes += p->spans[i].bytes;
}

static bool is_live(const struct place *p, uint64_t at)
{
	for (size_t i = 0; i < p->s.n; i++)
		if (at >= p->spans[i].at && at < p->spans[i].at + p->spans[i].bytes)
			return true;
	return false;
}

static uint64_t live_at(const struct place *p, uint64_t i)
{
	size_t k = 0;

	while (i >= p->spans[k].bytes)
		i -= p->spans[k++].bytes;
	return p->spans[k].at + i;
}

/* A byte that no table lists, in a block in which one does: 0 where there seems to be none. */
static uint64_t dead_at(const struct place *p)
{
	for (int tries = 0; tries < 4000; tries++) {
		uint64_t live = live_at(p, rnd(p->bytes)), end = live + rnd(PTC_BLOCK_BYTES);

		for (size_t i = 0; i < p->s.nchunks; i++) {
			uint64_t at = p->chunks[i].at;

			if (live < at || live >= at + PTC_CHUNK_BYTES || end >= at + PTC_CHUNK_BYTES ||
			    (live - at) / PTC_BLOCK_BYTES != (end - at) / PTC_BLOCK_BYTES)
				continue;
			if (!is_live(p, end))
				return end;
		}
	}
	return 0;
}

/* ---- flips ---- */

struct flip {
	uint32_t node;
	uint64_t at;
	uint8_t was;
};
struct flips {
	struct flip v[4 * FLIPS];
	unsigned n;
};

static int chunks_of(struct world *w, uint32_t node)
{
	char path[256];
	int fd;

	snprintf(path, sizeof path, "%s/chunks/" UUID "/data.mdb", w->nodes[node].dir);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

static void write_byte(struct world *w, uint32_t node, uint64_t at, uint8_t byte)
{
	int fd = chunks_of(w, node);

	assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
	close(fd);
}

static void flip(struct world *w, struct flips *all, uint32_t node, uint64_t at)
{
	struct flip f = { .node = node, .at = at };
	int fd = chunks_of(w, node);

	for (unsigned i = 0; i < all->n; i++)
		if (all->v[i].node == node && all->v[i].at == at) {
			close(fd);
			return;
		}
	assert_int_equal(pread(fd, &f.was, 1, (off_t)at), 1);
	close(fd);
	write_byte(w, node, at, f.was ^ (uint8_t)(1u << rnd(8)));
	all->v[all->n++] = f;
	total_flips++;
}

/* A live byte, or a dead one, or both in neighbouring places. */
static void flip_random(struct world *w, struct flips *all, struct place *p, uint32_t node)
{
	uint64_t dead = 0;

	place_make(p, w, node);
	if (!p->bytes)
		return;
	if (rnd(3) == 0)
		dead = dead_at(p);
	if (dead)
		flip(w, all, node, dead);
	if (!dead || rnd(2))
		flip(w, all, node, live_at(p, rnd(p->bytes)));
}

/* Where the flip's block begins, and whether its bytes in the file are not what they were summed as. */
static uint64_t block_of(struct world *w, const struct place *p, const struct flip *f, bool *ret_bad)
{
	static uint8_t bytes[PTC_BLOCK_BYTES];

	for (size_t c = 0; c < p->s.nchunks; c++) {
		uint64_t at = p->chunks[c].at, block;
		size_t len;
		int fd;

		if (f->at < at || f->at >= at + PTC_CHUNK_BYTES)
			continue;
		block = (f->at - at) / PTC_BLOCK_BYTES;
		len = PTC_MIN(PTC_BLOCK_BYTES, PTC_CHUNK_BYTES - block * PTC_BLOCK_BYTES);
		fd = chunks_of(w, f->node);
		assert_int_equal(pread(fd, bytes, len, (off_t)(at + block * PTC_BLOCK_BYTES)), len);
		close(fd);
		*ret_bad = ptc_checksum(bytes, len) != p->chunks[c].sums[block];
		return at + block * PTC_BLOCK_BYTES;
	}
	fail_msg("a flip outside of all chunks");
	return 0;
}

/* How many blocks of the node were flipped. */
static unsigned blocks_of(struct world *w, const struct flips *all, uint32_t node, struct place *p)
{
	uint64_t seen[4 * FLIPS];
	unsigned n = 0;

	place_make(p, w, node);
	for (unsigned i = 0; i < all->n; i++) {
		unsigned k = 0;
		bool bad;

		if (all->v[i].node != node)
			continue;
		seen[n] = block_of(w, p, &all->v[i], &bad);
		assert_true(bad);
		while (seen[k] != seen[n])
			k++;
		n += k == n;
	}
	return n;
}

/* ---- finding and healing ---- */

static unsigned scrub(struct world *w, uint32_t node)
{
	struct ptc_scrub *c = ptc_scrub_new();
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_scrub_step step = { .bytes = 0 };
	unsigned found = 0;

	assert_non_null(c);
	while (!step.round) {
		OK(ptc_scrub_step(w->nodes[node].store, c, 1 + rnd(3u << 20), &step, &err));
		found += step.damaged;
	}
	ptc_scrub_free(c);
	return found;
}

static bool byte_elsewhere(struct world *w, uint32_t node, uint32_t item, const struct ptc_box *one)
{
	struct ptc_table_key key = { .uuid = UUID, .generation = committed->number, .snapshot = committed->snapshot };
	bool there = false;

	for (uint32_t m = 0; m < NODES && !there; m++) {
		struct ptc_table *t;
		uint8_t byte;

		if (m == node || !w->nodes[m].store || ptc_table_open(w->nodes[m].store, &key, &t, NULL))
			continue;
		there = ptc_table_read(t, item, one, &byte, NULL) == 0;
		ptc_table_unref(t);
	}
	return there;
}

/* Every byte of the block can be had of another node. */
static bool has_copy(struct world *w, uint32_t node, const struct ptc_store_damage *d)
{
	struct ptc_error err = PTC_ERROR_INIT;
	const struct ptc_store_box *parts;
	struct ptc_block *b;
	bool there = true;
	size_t n;

	OK(ptc_block_open(w->nodes[node].store, d, NULL, &b, &err));
	assert_non_null(b);
	parts = ptc_block_parts(b, &n);
	assert_true(n > 0);
	for (size_t i = 0; i < n && there; i++)
		for (int64_t k = 0; k < ptc_box_volume(&parts[i].box) && there; k++) {
			struct ptc_box one = parts[i].box;
			int64_t rest = k;

			for (uint32_t dim = one.ndim; dim-- > 0;) {
				one.off[dim] += rest % parts[i].box.ext[dim];
				rest /= parts[i].box.ext[dim];
				one.ext[dim] = 1;
			}
			there = byte_elsewhere(w, node, parts[i].item, &one);
		}
	ptc_block_free(b);
	return there;
}

/* Until nothing more comes of it: one node's block may wait for another's. Returns how many are left. */
static unsigned heal_all(struct world *w)
{
	unsigned left = 0, before = UINT32_MAX;

	while (left != before) {
		before = left;
		left = 0;
		for (uint32_t node = 0; node < NODES; node++) {
			struct ptc_error err = PTC_ERROR_INIT;
			struct ptc_heal_counts counts;

			if (!gen_has(committed, node))
				continue;
			OK(ptc_agent_heal(w->nodes[node].agent, UUID, &counts, &err));
			left += counts.left;
			total_healed += counts.healed;
		}
	}
	return left;
}

/* What is left damaged has no copy, or lies in a tensor of which other bytes have none, so that its digest proves
 * nothing; where blocks of several nodes were damaged, some of them may have been each other's copies. It is put right
 * by hand. */
static void check_left(struct world *w, const struct flips *all, struct place *p, unsigned left, bool several)
{
	unsigned found = 0, none = 0;
	bool live = false;

	for (uint32_t node = 0; node < NODES; node++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_store_damage *v;
		size_t n;

		if (!gen_has(committed, node))
			continue;
		OK(ptc_store_damaged(w->nodes[node].store, UUID, &v, &n, &err));
		for (size_t i = 0; i < n; i++)
			none += !has_copy(w, node, &v[i]);
		found += (unsigned)n;
		ptc_free(v);
	}
	for (uint32_t node = 0; node < NODES; node++) {
		if (!gen_has(committed, node))
			continue;
		place_make(p, w, node);
		for (unsigned i = 0; i < all->n; i++) {
			bool bad;

			if (all->v[i].node != node || !block_of(w, p, &all->v[i], &bad) || !bad)
				continue;
			live |= is_live(p, all->v[i].at);
			write_byte(w, node, all->v[i].at, all->v[i].was);
		}
	}
	assert_int_equal(found, left);
	assert_true(!left || none || several);
	assert_true(left != 1 || live); /* where dead bytes alone were hit, the digests prove the node's own */
	total_left += left;
}

static void round_of_flips(struct world *w, struct place *p)
{
	uint32_t only = committed->nodes[rnd(committed->world)];
	struct flips all = { .n = 0 };
	bool several = rnd(4) == 0;
	unsigned left;

	for (uint64_t n = 1 + rnd(FLIPS); n > 0; n--)
		flip_random(w, &all, p, several ? committed->nodes[rnd(committed->world)] : only);
	for (uint32_t node = 0; node < NODES; node++)
		if (gen_has(committed, node))
			assert_int_equal(blocks_of(w, &all, node, p), scrub(w, node));
	left = heal_all(w);
	check_left(w, &all, p, left, several);
	for (uint32_t node = 0; node < NODES; node++)
		if (gen_has(committed, node))
			assert_int_equal(scrub(w, node), 0);
	check_gather(w, committed, (uint32_t)rnd(NODES));
	check_ranks(w, committed, (uint32_t)rnd(NODES));
}

/* One flip in a source whose bytes other nodes have; false: there was none such. */
static bool spoil_source(struct world *w, struct place *p, struct flips *all)
{
	for (int tries = 0; tries < 20; tries++) {
		uint32_t node = committed->nodes[rnd(committed->world)];
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_store_damage *v;
		bool copies = true;
		size_t n;

		all->n = 0;
		flip_random(w, all, p, node);
		if (!all->n)
			continue;
		assert_int_equal(scrub(w, node), blocks_of(w, all, node, p));
		OK(ptc_store_damaged(w->nodes[node].store, UUID, &v, &n, &err));
		for (size_t i = 0; i < n; i++)
			copies = copies && has_copy(w, node, &v[i]);
		ptc_free(v);
		if (copies)
			return true;
		for (unsigned i = 0; i < all->n; i++)
			write_byte(w, node, all->v[i].at, all->v[i].was);
		assert_int_equal(scrub(w, node), 0);
	}
	return false;
}

static void one_layout(struct place *p)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct world w;
	struct gen now, next;
	struct info info;
	char config[128];

	world_up(&w, NODES, false);
	committed = &now;
	random_config(config, sizeof(config));
	gen_make(&now, 1, config, NODES);
	import(&w, &now, (uint32_t)rnd(NODES));
	for (uint64_t number = 2; number < 4; number++) {
		struct flips all;

		for (int i = 0; i < ROUNDS; i++)
			round_of_flips(&w, p);
		random_config(config, sizeof(config));
		gen_make(&next, number, config, 1 + (unsigned)rnd(NODES));
		total_switches += spoil_source(&w, p, &all);
		seal_and_prepare(&w, &info, &now, &next);
		pull_all(&w, &info, &next, false);
		for (uint32_t i = 0; i < NODES; i++)
			OK(do_finish(&w, i, gen_has(&next, i) ? &next : NULL, false, &err));
		now = next;
		check_gather(&w, &now, (uint32_t)rnd(NODES));
		check_ranks(&w, &now, (uint32_t)rnd(NODES));
	}
	for (int i = 0; i < ROUNDS; i++)
		round_of_flips(&w, p);
	world_down(&w);
}

static void test_random_flips(void **state)
{
	struct place *p = ptc_malloc(sizeof *p);

	assert_non_null(p);
	world_hook = hook;
	for (uint64_t i = 0; i < cases; i++) {
		rng = seed + i * 7919 + 1;
		one_layout(p);
	}
	ptc_free(p);
	printf("%u flips: %u blocks healed, %u of them by digests, %u had no copy; %u switches from damaged sources\n",
	       total_flips, total_healed, (unsigned)said_digests, total_left, total_switches);
	assert_true(said_healed >= total_healed); /* switches heal besides */
	assert_true(total_flips >= 20 * cases && total_healed > 0);
	assert_true(cases < 10 || total_switches > 0); /* two of three, by chance */
}

/* Block after block that nobody else has: few readers try what others tried in vain a moment ago; whoever must, does.
 */
static void read_in_vain(struct world *w)
{
	struct ptc_heal_tries must = { .now = true };
	unsigned before = said_left;

	for (int i = 0; i < 50; i++) {
		struct ptc_heal_tries tries = { .n = 0 };

		assert_false(ptc_agent_heals(w->nodes[0].agent, UUID, PTC_ECORRUPT, &tries));
	}
	assert_true(said_left < before + 25);
	before = said_left;
	assert_false(ptc_agent_heals(w->nodes[0].agent, UUID, PTC_ECORRUPT, &must));
	assert_int_equal(said_left, before + 1);
}

/* Readers heal: a rank's file, the whole, a Fetch of another node, verify with repair. */
static void test_readers_heal(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct place *p = ptc_malloc(sizeof *p);
	struct world w;
	struct gen now;

	assert_non_null(p);
	rng = seed + 5;
	world_hook = hook;
	world_up(&w, NODES, false);
	committed = &now;
	gen_make(&now, 1, "tp=1,dp=2", 1);
	now.nodes[0] = 0;
	now.nodes[1] = 1;
	import(&w, &now, 3);
	for (uint32_t gateway = 0; gateway < 3; gateway++) {
		struct flips all = { .n = 0 };

		for (int i = 0; i < 4; i++) {
			place_make(p, &w, 0);
			flip(&w, &all, 0, live_at(p, rnd(p->bytes)));
		}
		check_ranks(&w, &now, gateway);
		assert_int_equal(scrub(&w, 0), 0);
		for (int i = 0; i < 4; i++) {
			place_make(p, &w, 0);
			flip(&w, &all, 0, live_at(p, rnd(p->bytes)));
		}
		check_gather(&w, &now, gateway);
		check_gather(&w, &now, 0);
		assert_int_equal(scrub(&w, 0), 0);
	}
	/* nobody else has it: refused, and told */
	node_down(&w, &w.nodes[1]);
	{
		struct flips all = { .n = 0 };
		struct ptc_heal_counts counts;
		unsigned before = said_left;

		place_make(p, &w, 0);
		flip(&w, &all, 0, live_at(p, rnd(p->bytes)));
		assert_int_equal(scrub(&w, 0), 1);
		OK(ptc_agent_heal(w.nodes[0].agent, UUID, &counts, &err));
		assert_int_equal(counts.left, 1);
		assert_int_equal(counts.healed, 0);
		assert_int_equal(said_left, before + 1);
		read_in_vain(&w);
		node_up(&w, &w.nodes[1]);
		for (int i = 0; i < 600 && counts.left; i++) { /* a channel that failed tries again after a while */
			OK(ptc_agent_heal(w.nodes[0].agent, UUID, &counts, &err));
			usleep(50000);
		}
		assert_int_equal(counts.left, 0);
		assert_int_equal(counts.healed, 1);
	}
	check_ranks(&w, &now, 2);
	world_down(&w);
	ptc_free(p);
}

/* ---- all at once ---- */

struct reader {
	struct world *w;
	const struct ptc_geometry *g;
	uint32_t gateway;
	pthread_t thread;
	unsigned reads;
	struct ptc_error err;
};
static atomic_bool readers_stop;
/* A bit that flips between a block's checksum and its copy is seen by nobody: here bits flip between reads. */
static pthread_rwlock_t reading = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

/* Every item, again and again; stops at the first byte that is wrong, or that cannot be had. */
static void *reader_main(void *arg)
{
	struct reader *r = arg;

	for (uint32_t item = 0; !r->err.code && !atomic_load(&readers_stop); item = (item + 1) % NITEMS, r->reads++) {
		uint64_t size = (uint64_t)r->w->size[item];
		struct ptc_buf got = PTC_BUF_INIT;
		int rc;

		pthread_rwlock_rdlock(&reading);
		rc = ptc_agent_gather(r->w->nodes[r->gateway].agent, r->g, UUID, item, 0, size, to_buf, NULL, &got,
				      NULL, &r->err);
		pthread_rwlock_unlock(&reading);
		if (!rc && (got.len != size || (size && memcmp(got.data, r->w->bytes[item], size) != 0)))
			ptc_error_set(&r->err, PTC_EDIGEST, "item %u has other bytes", item);
		ptc_buf_done(&got);
	}
	return NULL;
}

static void *scrubber_main(void *arg)
{
	const struct node *n = arg;
	struct ptc_scrub *c = ptc_scrub_new();
	struct ptc_heal_counts counts;
	struct ptc_scrub_step step;

	while (c && !atomic_load(&readers_stop) && ptc_scrub_step(n->store, c, 1u << 20, &step, NULL) == 0)
		if (step.round)
			ptc_agent_heal(n->agent, UUID, &counts, NULL);
	ptc_scrub_free(c);
	return NULL;
}

/* Bits flip on two nodes while several threads read there and heal what they meet, and a third node has it all. */
static void test_readers_beside_each_other(void **state)
{
	static const uint32_t gateways[] = { 0, 0, 1, 3 };
	struct reader readers[PTC_ARRAY_LEN(gateways)];
	struct place *p = ptc_malloc(sizeof *p);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_geometry g;
	pthread_t scrubber;
	struct info info;
	struct world w;
	struct gen now;

	assert_non_null(p);
	rng = seed + 7;
	world_hook = hook;
	world_up(&w, NODES, false);
	committed = &now;
	gen_make(&now, 1, "tp=1,dp=3", 1);
	for (uint32_t i = 0; i < 3; i++)
		now.nodes[i] = i;
	import(&w, &now, 3);
	info_make(&info, &w, &now, &now);
	OK(ptc_agent_geometry(w.nodes[3].agent, &info.pb, &info.from, &g, &err));
	atomic_store(&readers_stop, false);
	for (size_t i = 0; i < PTC_ARRAY_LEN(readers); i++) {
		readers[i] = (struct reader){ .w = &w, .g = &g, .gateway = gateways[i], .err = PTC_ERROR_INIT };
		assert_int_equal(pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]), 0);
	}
	assert_int_equal(pthread_create(&scrubber, NULL, scrubber_main, &w.nodes[0]), 0);
	for (int i = 0; i < 40; i++) {
		struct flips all = { .n = 0 };
		uint32_t node = (uint32_t)rnd(2);

		pthread_rwlock_wrlock(&reading);
		place_make(p, &w, node);
		for (uint64_t n = 1 + rnd(4); n > 0; n--)
			flip(&w, &all, node, live_at(p, rnd(p->bytes)));
		pthread_rwlock_unlock(&reading);
		usleep(20000);
	}
	atomic_store(&readers_stop, true);
	pthread_join(scrubber, NULL);
	for (size_t i = 0; i < PTC_ARRAY_LEN(readers); i++) {
		pthread_join(readers[i].thread, NULL);
		if (readers[i].err.code)
			fail_msg("reader %zu, after %u items: %s", i, readers[i].reads, readers[i].err.text);
	}
	for (uint32_t node = 0; node < 3; node++)
		(void)scrub(&w, node);
	assert_int_equal(heal_all(&w), 0);
	for (uint32_t node = 0; node < 3; node++)
		assert_int_equal(scrub(&w, node), 0);
	ptc_geometry_done(&g);
	world_down(&w);
	ptc_free(p);
}

/* What the scrubber asks: from Prepare to Finish, or until the job is deleted, which no Finish need tell. */
static void test_busy(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct world w;
	struct gen now, next;
	struct info info;

	rng = seed + 6;
	world_hook = hook;
	world_up(&w, NODES, false);
	committed = &now;
	gen_make(&now, 1, "tp=1", 1);
	now.nodes[0] = 0;
	import(&w, &now, 0);
	assert_false(ptc_agent_busy(w.nodes[1].agent));
	gen_make(&next, 2, "tp=2", 1);
	next.nodes[0] = 1;
	next.nodes[1] = 2;
	seal_and_prepare(&w, &info, &now, &next);
	assert_true(ptc_agent_busy(w.nodes[1].agent));
	assert_true(ptc_agent_busy(w.nodes[2].agent));
	assert_false(ptc_agent_busy(w.nodes[3].agent));
	OK(do_finish(&w, 1, NULL, false, &err));
	assert_false(ptc_agent_busy(w.nodes[1].agent));
	OK(ptc_store_job_delete(w.nodes[2].store, UUID, &err));
	assert_false(ptc_agent_busy(w.nodes[2].agent));
	world_down(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_flips),
		cmocka_unit_test(test_readers_heal),
		cmocka_unit_test(test_readers_beside_each_other),
		cmocka_unit_test(test_busy),
	};
	const char *text = getenv("PTC_CASES");
	int rc;

	if (access("/dev/shm", W_OK) == 0)
		setenv("TMPDIR", "/dev/shm", 1); /* places are asked for where reading them waits for nothing */
	seed = ptc_test_seed();
	cases = text ? strtoull(text, NULL, 0) : ptc_test_size(cases, 10, 40);
	ptc_rpc_init();
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	ptc_rpc_shutdown();
	return rc;
}
