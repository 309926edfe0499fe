/* SPDX-License-Identifier: Apache-2.0 */
/* Reading what somebody else has (chunk_file.h, direct.c), who takes it back whenever he likes: no byte but the right
 * ones is ever answered. The chunk_server is a memfd laid out as a job's chunk file, the kernel's side a socket
 * (test_peer.h). */
#include "base/number/digest.h"
#include "base/limits.h"
#include "base/test_seed.h"
#include "fusefs/serve/test_peer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>

#define PITCH  (1u << 20)
#define HEAD   64 /* of a chunk; its count of uses are the last 8 bytes of it */
#define CHUNK  PTC_CHUNK_BYTES
#define BLOCK  PTC_BLOCK_BYTES
#define CHUNKS 16
#define BASE   4 /* chunks that one item takes */
#define SECOND INT64_C(1000000000)
#define DATA   ((3u << 20) + 24) /* bytes of a, b, c/d */

static struct {
	pthread_mutex_t lock;
	int fd;
	uint8_t *map;
	uint64_t sums[CHUNKS][16];
	unsigned turn;          /* items begin at chunk turn % CHUNKS */
	_Atomic unsigned parts; /* spans are at most this long, 0: as they come */
	_Atomic bool refuses;
	_Atomic int asked;
} chunk_server = { .lock = PTHREAD_MUTEX_INITIALIZER };

static uint64_t chunk_of(unsigned turn, uint32_t item, uint64_t off)
{
	return (turn + item / 2 * BASE + off / CHUNK) % CHUNKS;
}

static _Atomic uint64_t *use_of(uint64_t chunk)
{
	return (void *)(chunk_server.map + chunk * PITCH + HEAD - 8);
}

/* As the store does: the count, then other bytes. */
static void take_back(uint64_t chunk)
{
	atomic_fetch_add(use_of(chunk), 1);
	atomic_thread_fence(memory_order_seq_cst);
	memset(chunk_server.map + chunk * PITCH + HEAD, 0xee, CHUNK);
}

/* Where parameter i (the items between are fields) lies in what all are together. */
static const uint64_t starts[MEM_TENSORS + 1] = { 0, 3u << 20, (3u << 20) + 4, DATA };
static uint8_t want[DATA];

static void fill(unsigned turn)
{
	for (uint32_t i = 0; i < MEM_TENSORS; i++)
		for (uint64_t off = 0, bytes = starts[i + 1] - starts[i], n; off < bytes; off += n) {
			n = PTC_MIN(bytes - off, CHUNK - off % CHUNK);
			memcpy(chunk_server.map + chunk_of(turn, 2 * i, off) * PITCH + HEAD + off % CHUNK,
			       want + starts[i] + off, n);
		}
	for (uint64_t c = 0; c < CHUNKS; c++)
		for (size_t i = 0; i * BLOCK < CHUNK; i++)
			chunk_server.sums[c][i] = ptc_checksum(chunk_server.map + c * PITCH + HEAD + i * BLOCK,
							       PTC_MIN((size_t)BLOCK, CHUNK - i * BLOCK));
}

/* All chunks are told of each time: chunk i is the i-th of them. */
static int add_spans(const struct ptc_fs_range *r, struct ptc_fs_span *v, size_t max, size_t *n)
{
	for (uint64_t at = r->offset, end = r->offset + r->length, len; at < end; at += len) {
		uint64_t chunk = chunk_of(chunk_server.turn, r->item, at);

		len = PTC_MIN(end - at, CHUNK - at % CHUNK);
		if (chunk_server.parts)
			len = PTC_MIN(len, (uint64_t)chunk_server.parts);
		if (*n == max)
			return PTC_ELIMIT;
		v[(*n)++] = (struct ptc_fs_span){ chunk * PITCH + HEAD + at % CHUNK, len, (uint32_t)chunk, 0 };
	}
	return 0;
}

static int locate(void *arg, const struct ptc_fs_state *state, const struct ptc_fs_range *ranges, size_t n,
		  struct ptc_fs_spans **ret, struct ptc_error *err)
{
	const size_t max = 8192;
	struct ptc_fs_span *v = ptc_calloc(max, sizeof *v);
	struct ptc_chunk_sums *chunks = ptc_calloc(CHUNKS, sizeof *chunks);
	struct ptc_fs_chunk_file *f = ptc_fs_chunk_file_get(state->uuid);
	size_t got = 0;
	int rc = !v || !chunks ? PTC_ENOMEM : chunk_server.refuses ? PTC_ENOTFOUND : 0;

	chunk_server.asked++;
	pthread_mutex_lock(&chunk_server.lock);
	for (size_t i = 0; i < n && !rc; i++)
		rc = add_spans(&ranges[i], v, max, &got);
	for (uint64_t i = 0; i < CHUNKS && !rc; i++) {
		chunks[i] = (struct ptc_chunk_sums){
			i * PITCH + HEAD, i * PITCH + HEAD - 8, atomic_load(use_of(i)), { 0 }
		};
		memcpy(chunks[i].sums, chunk_server.sums[i], sizeof(chunk_server.sums[i]));
	}
	pthread_mutex_unlock(&chunk_server.lock);
	if (!f && !rc)
		f = ptc_fs_chunk_file_new(state->uuid, fcntl(chunk_server.fd, F_DUPFD_CLOEXEC, 3), 0, 0);
	if (rc || !f) {
		ptc_fs_chunk_file_unref(f);
		ptc_free(v);
		ptc_free(chunks);
		return rc ? rc : PTC_ENOMEM;
	}
	*ret = ptc_fs_spans_new(f, v, got, chunks, CHUNKS);
	return *ret ? 0 : PTC_ENOMEM;
}

struct fixture {
	struct memory m;
	struct peer p;
	uint64_t node, fh, head;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	uint64_t head;

	memory_init(&f->m);
	f->m.locate = locate;
	chunk_server.fd = memfd_create("chunk_server", MFD_CLOEXEC);
	ptc_require(chunk_server.fd >= 0 && !ftruncate(chunk_server.fd, CHUNKS * PITCH));
	chunk_server.map = mmap(NULL, CHUNKS * PITCH, PROT_READ | PROT_WRITE, MAP_SHARED, chunk_server.fd, 0);
	ptc_require(chunk_server.map != MAP_FAILED);
	for (uint64_t i = 0; i < CHUNKS; i++)
		atomic_store(use_of(i), 1);
	chunk_server.turn = 0;
	chunk_server.parts = 0;
	chunk_server.refuses = false;
	chunk_server.asked = 0;
	for (uint32_t i = 0; i < MEM_TENSORS; i++)
		for (uint64_t off = 0; off < starts[i + 1] - starts[i]; off++)
			want[starts[i] + off] = memory_byte(&f->m, 2 * i, off);
	fill(0);
	peer_start(&f->p, &f->m, 20000, 8u << 20);
	f->node = peer_walk(&f->p, "job/state/snap-1-step-7/model.safetensors", NULL);
	f->fh = peer_open(&f->p, f->node, false);
	ptc_require(f->fh && !peer_read(&f->p, f->node, f->fh, 0, 8) && f->p.len == 8);
	memcpy(&head, f->p.reply, 8);
	f->head = head + 8;
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	peer_stop(&f->p);
	munmap(chunk_server.map, CHUNKS * PITCH);
	close(chunk_server.fd);
	free(f);
	return ptc_alloc_live() == 0 ? 0 : -1;
}

/* The answer to a read is the file's bytes: its head (taken as it comes), a, b, c/d. */
static void expect_bytes(struct fixture *f, uint64_t off)
{
	size_t skip = (size_t)PTC_MIN(f->head - PTC_MIN(f->head, off), (uint64_t)f->p.len);

	for (size_t i = skip; i < f->p.len; i++)
		if (f->p.reply[i] != want[off + i - f->head])
			fail_msg("byte %llu is %02x", (unsigned long long)off + i, f->p.reply[i]);
}

static void read_some(struct fixture *f, uint64_t at, uint32_t size)
{
	uint64_t end = f->head + DATA, off = at % end;

	assert_int_equal(peer_read(&f->p, f->node, f->fh, off, size), 0);
	assert_int_equal(f->p.len, PTC_MIN((uint64_t)size, end - off));
	expect_bytes(f, off);
}

static void read_at_random(struct fixture *f, unsigned *seed)
{
	read_some(f, (uint64_t)rand_r(seed), 1 + (uint32_t)rand_r(seed) % (1u << (rand_r(seed) % 21)));
}

static unsigned seed_new(void)
{
	return (unsigned)ptc_test_seed();
}

/* Nothing comes from the source itself, and where it lies is asked for once. */
static void reads_there(void **state)
{
	struct fixture *f = *state;
	unsigned seed = seed_new();

	for (uint64_t at = 0; at < f->head; at += 16) /* reading the head in order asks for nothing ahead */
		read_some(f, at, 16);
	for (int i = 0; i < 300; i++)
		read_at_random(f, &seed);
	assert_int_equal(f->m.reads, 0);
	assert_int_equal(chunk_server.asked, 1);
}

static void reads_small_spans(void **state)
{
	struct fixture *f = *state;
	unsigned seed = seed_new();

	chunk_server.parts = 777;
	for (int i = 0; i < 100; i++)
		read_at_random(f, &seed);
	assert_int_equal(f->m.reads, 0);
}

/* What was mapped is reused, and not mapped again: the source itself is read. */
static void taken_back(void **state)
{
	struct fixture *f = *state;
	unsigned seed = seed_new();

	for (int i = 0; i < 20; i++)
		read_at_random(f, &seed);
	chunk_server.refuses = true;
	for (uint64_t i = 0; i < CHUNKS; i++)
		take_back(i);
	for (int i = 0; i < 100; i++)
		read_at_random(f, &seed);
	assert_true(f->m.reads > 0);
	assert_int_equal(chunk_server.asked, 2); /* not again and again */
}

static _Atomic bool moving;

/* Moves all of it on by one chunk, again and again, and what it leaves behind is overwritten. */
static void *move_main(void *arg)
{
	while (moving) {
		pthread_mutex_lock(&chunk_server.lock); /* nothing is mapped meanwhile; what was, is read */
		for (uint32_t i = 0; i < 2 * BASE + 1; i++)
			take_back((chunk_server.turn + i) % CHUNKS);
		fill(++chunk_server.turn);
		pthread_mutex_unlock(&chunk_server.lock);
		usleep(500);
	}
	return NULL;
}

static void taken_back_all_the_time(void **state)
{
	struct fixture *f = *state;
	unsigned seed = seed_new();
	int64_t begin = ptc_sys_now_ns();
	pthread_t mover;

	moving = true;
	assert_int_equal(pthread_create(&mover, NULL, move_main, &f->m), 0);
	while (ptc_sys_now_ns() < begin + SECOND ||
	       (chunk_server.asked <= 10 && ptc_sys_now_ns() < begin + 60 * SECOND))
		read_some(f, (uint64_t)rand_r(&seed), 1u << 20); /* long ones, so that much happens meanwhile */
	moving = false;
	pthread_join(mover, NULL);
	assert_true(chunk_server.asked > 10);
}

/* The same without a file system in between: nearly all of the time is spent copying. */
static void copies_are_right_or_refused(void **state)
{
	static uint8_t got[1u << 20];
	const struct ptc_fs_range range = { .length = starts[1] };
	const struct ptc_fs_state s = { .uuid = "00000000-0000-4000-8000-000000000009" };
	struct ptc_fs_spans *spans = NULL;
	int64_t begin = ptc_sys_now_ns();
	unsigned seed = seed_new();
	int refused = 0;
	pthread_t mover;

	moving = true;
	assert_int_equal(pthread_create(&mover, NULL, move_main, NULL), 0);
	while (ptc_sys_now_ns() < begin + SECOND || (refused < 10 && ptc_sys_now_ns() < begin + 60 * SECOND)) {
		uint64_t off = (uint64_t)rand_r(&seed) % (starts[1] - sizeof(got));

		if (!spans)
			assert_int_equal(locate(NULL, &s, &range, 1, &spans, NULL), 0);
		if (ptc_fs_spans_read(spans, off, got, sizeof(got))) {
			assert_memory_equal(got, want + off, sizeof(got));
			continue;
		}
		refused++;
		ptc_fs_spans_unref(spans);
		spans = NULL;
	}
	moving = false;
	pthread_join(mover, NULL);
	ptc_fs_spans_unref(spans);
	assert_true(refused >= 10);
}

/* A bit flips in what was mapped and had been read: nobody gets its block from there again, whatever the read begins
 * and ends with, but what lies beside it. */
static void a_bit_flips(void **state)
{
	struct fixture *f = *state;
	const uint64_t bad = BLOCK + 100; /* of a, in its first chunk */
	int64_t begin = ptc_sys_now_ns();
	unsigned seed = seed_new();
	int reads;

	for (int i = 0; i < 50; i++)
		read_at_random(f, &seed);
	chunk_server.map[chunk_of(0, 0, bad) * PITCH + HEAD + bad] ^= 1;
	for (uint64_t at = 0; at < 3 * BLOCK; at += 4096)
		read_some(f, f->head + at, 4096); /* the source itself has it right */
	read_some(f, f->head, 1u << 20);
	read_some(f, f->head + BLOCK, BLOCK);
	assert_true(f->m.reads > 0);
	chunk_server.map[chunk_of(0, 0, bad) * PITCH + HEAD + bad] ^= 1;
	do { /* what was asked for ahead meanwhile may still come */
		reads = f->m.reads;
		for (uint64_t at = 0; at < DATA; at += 65536)
			read_some(f, f->head + at, 8192);
	} while (f->m.reads != reads && ptc_sys_now_ns() < begin + 60 * SECOND);
	assert_int_equal(f->m.reads, reads);
}

/* A file that ends early. */
static void cut_short(void **state)
{
	struct fixture *f = *state;
	unsigned seed = seed_new();

	read_at_random(f, &seed);
	chunk_server.refuses = true;
	assert_int_equal(ftruncate(chunk_server.fd, PITCH / 2), 0);
	for (int i = 0; i < 50; i++)
		read_at_random(f, &seed);
	assert_true(f->m.reads > 0);
	assert_int_equal(ftruncate(chunk_server.fd, CHUNKS * PITCH), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(reads_there, setup, teardown),
		cmocka_unit_test_setup_teardown(reads_small_spans, setup, teardown),
		cmocka_unit_test_setup_teardown(taken_back, setup, teardown),
		cmocka_unit_test_setup_teardown(taken_back_all_the_time, setup, teardown),
		cmocka_unit_test_setup_teardown(copies_are_right_or_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(a_bit_flips, setup, teardown),
		cmocka_unit_test_setup_teardown(cut_short, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
