/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-gpu, its client and what a rank exports, on the fake driver: every path, and every failure of every call. */
#include "daemon/gpu/client/test_gpu_world.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/log.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)

#define ok(w, call)                                                                                                    \
	do {                                                                                                           \
		if (call)                                                                                              \
			fail_msg("%s: %s", #call, (w)->err.text);                                                      \
	} while (0)
#define says(w, words)                                                                                                 \
	do {                                                                                                           \
		if (!strstr((w)->err.text, words))                                                                     \
			fail_msg("\"%s\" does not say \"%s\"", (w)->err.text, words);                                  \
	} while (0)

static int copy(struct world *w, enum ptc_gpu_direction direction, struct ptc_gpu_ref m, struct ptc_gpu_part p)
{
	return ptc_gpu_client_copy(w->c, direction, m, w->host, &p, 1, NULL, &w->o, &w->err);
}

static bool is_seed(const unsigned char *p, uint64_t first, uint64_t bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < bytes; i++)
		if (p[i] != test_gpu_byte(seed, first + i))
			return false;
	return true;
}

static pid_t gpu_pid(struct world *w, struct ptc_gpu_stats *ret)
{
	struct ptc_gpu_stats s;

	ok(w, ptc_gpu_client_stats(w->c, &s, &w->o, &w->err));
	if (ret)
		*ret = s;
	return s.pid;
}

/* ---- copies ---- */

static void out_and_in(bool pinned)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t bytes = 18 * MIB + 12345, address = rank_alloc(r, RANK_PLAIN, bytes, 0, 7), digest;
	struct ptc_gpu_export e = rank_export(r, address + 100, bytes - 200);
	struct ptc_gpu_part p = world_flat(100, 64, bytes - 200);
	struct ptc_gpu_ref m;

	assert_int_equal(e.path, PTC_GPU_PATH_IPC);
	assert_int_equal(e.offset, 100);
	assert_int_equal(e.bytes, bytes);
	world_chunks(w, 20 * MIB, pinned);
	ok(w, world_bind(w, r, address, &e, &m));
	ok(w, copy(w, PTC_GPU_OUT, m, p));
	assert_true(is_seed(w->chunks + 64, 100, bytes - 200, 7));
	assert_int_equal(w->chunks[63] | w->chunks[64 + bytes - 200], 0);

	p.other_at = 0; /* of a digest: bytes after the box */
	ok(w, ptc_gpu_client_digest(w->c, m, &p, 1, &digest, &w->o, &w->err));
	assert_int_equal(digest, ptc_digest_run(w->chunks + 64, bytes - 200));

	for (uint64_t i = 0; i < bytes; i++)
		w->chunks[i] = test_gpu_byte(8, i);
	ok(w, copy(w, PTC_GPU_IN, m, world_flat(0, 0, bytes)));
	assert_true(rank_has(r, address, bytes, 8));
	ok(w, ptc_gpu_client_close(w->c, m, &w->o, &w->err));
	rank_free(r, address);
	ok(w, ptc_gpu_client_unmap_host(w->c, w->host, 0, &w->o, &w->err));
	world_end(w);
}

static void test_ring(void **state)
{
	out_and_in(false);
}

static void test_pinned(void **state)
{
	out_and_in(true);
}

static uint64_t below(uint64_t *seed, uint64_t n)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (*seed >> 33) % n;
}

/* A box that fits into `room` bytes on both sides, gaps and all. */
static struct ptc_gpu_part random_box(uint64_t *seed, uint64_t room)
{
	for (;;) {
		struct ptc_gpu_part p = { .width = 1 + below(seed, below(seed, 2) ? 3000 : 100),
					  .height = 1 + below(seed, 40),
					  .depth = 1 + below(seed, 6) };
		uint64_t device, other;

		p.device_row = p.width + (below(seed, 2) ? below(seed, 500) : 0);
		p.other_row = p.width + (below(seed, 2) ? below(seed, 500) : 0);
		p.device_slice = p.device_row * (p.height + below(seed, 3)) + (below(seed, 3) ? 0 : below(seed, 99));
		p.other_slice = p.other_row * (p.height + below(seed, 3)) + (below(seed, 3) ? 0 : below(seed, 99));
		device = p.device_slice * p.depth;
		other = p.other_slice * p.depth;
		if (device >= room || other >= room)
			continue;
		p.device_at = below(seed, room - device);
		p.other_at = below(seed, room - other);
		return p;
	}
}

/* What the box is by its definition, byte by byte. */
static void apply(const struct ptc_gpu_part *p, const unsigned char *device, unsigned char *other)
{
	for (uint64_t z = 0; z < p->depth; z++)
		for (uint64_t y = 0; y < p->height; y++)
			for (uint64_t x = 0; x < p->width; x++)
				other[p->other_at + z * p->other_slice + y * p->other_row + x] =
					device[p->device_at + z * p->device_slice + y * p->device_row + x];
}

/* XOR of each byte's contribution, of a tensor in which the box lies as it lies on the other side. */
static uint64_t digest_of(const struct ptc_gpu_part *p, const unsigned char *device)
{
	uint64_t sum = 0;

	for (uint64_t z = 0; z < p->depth; z++)
		for (uint64_t y = 0; y < p->height; y++) {
			uint64_t after =
				p->other_at + (p->depth - 1 - z) * p->other_slice + (p->height - 1 - y) * p->other_row;

			sum ^= ptc_digest_shift(ptc_digest_run(device + p->device_at + z * p->device_slice +
								       y * p->device_row,
							       p->width),
						after);
		}
	return sum;
}

/* How often ptc-gpu has called a function. It ends for this, as the report is written at exit. */
static unsigned calls_of(struct world *w, const char *function)
{
	pid_t pid = gpu_pid(w, NULL);
	char line[80];

	ptc_gpu_client_free(w->c);
	w->c = NULL;
	snprintf(line, sizeof line, "call %s", function);
	return world_reported(w, pid, line);
}

static void boxes(bool pinned, bool kernels, uint64_t seed)
{
	enum { ROOM = 1 << 20, N = 150 };
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_PLAIN, ROOM, 0, seed);
	struct ptc_gpu_export e = rank_export(r, address, ROOM);
	unsigned char *device = malloc(ROOM), *want = calloc(1, ROOM);
	struct ptc_gpu_ref m;

	if (!kernels)
		world_kernels("off");
	print_message("seed %" PRIu64 "\n", seed);
	for (uint64_t i = 0; i < ROOM; i++)
		device[i] = test_gpu_byte(seed, i);
	world_chunks(w, ROOM, pinned);
	ok(w, world_bind(w, r, address, &e, &m));
	for (int i = 0; i < N; i++) {
		struct ptc_gpu_part p[3];
		uint64_t digest, sum = 0;

		for (int k = 0; k < 3; k++) {
			p[k] = random_box(&seed, ROOM);
			apply(&p[k], device, want);
			sum ^= digest_of(&p[k], device);
		}
		ok(w, ptc_gpu_client_copy(w->c, PTC_GPU_OUT, m, w->host, p, 3, NULL, &w->o, &w->err));
		assert_memory_equal(w->chunks, want, ROOM);
		ok(w, ptc_gpu_client_digest(w->c, m, p, 3, &digest, &w->o, &w->err));
		assert_int_equal(digest, sum);
	}
	memset(w->chunks, 0, ROOM);
	memset(device, 0, ROOM);
	for (int i = 0; i < N; i++) { /* the other way: what was read comes back */
		struct ptc_gpu_part p = random_box(&seed, ROOM);

		apply(&p, device, w->chunks);
		for (uint64_t k = 0; k < 97; k++)
			w->chunks[p.other_at + (k * 31) % p.width] = (unsigned char)(seed >> 20);
		ok(w, copy(w, PTC_GPU_IN, m, p));
		memset(want, 0, ROOM);
		memcpy(want, w->chunks, ROOM);
		ok(w, copy(w, PTC_GPU_OUT, m, p));
		assert_memory_equal(w->chunks, want, ROOM);
	}
	free(device);
	free(want);
	assert_int_equal(calls_of(w, "cuLaunchKernel") > 0, kernels);
	world_end(w);
}

static void test_boxes_ring(void **state)
{
	boxes(false, false, 11);
	boxes(false, true, 15);
}

static void test_boxes_pinned(void **state)
{
	boxes(true, false, 12);
	boxes(true, true, 16);
}

/* A device that copies no rows further apart than 1000 bytes. */
static void test_boxes_pitch(void **state)
{
	setenv("PTC_FAKE_GPU_PITCH", "1000", 1);
	boxes(false, false, 13);
	boxes(true, false, 14);
	boxes(true, true, 17);
	unsetenv("PTC_FAKE_GPU_PITCH");
}

/* Random boxes between a rank's memory and kept memory, in both directions; the digest of what is kept. */
static void within(uint64_t seed)
{
	enum { ROOM = 1 << 20, N = 60 };
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0), *other = world_rank(w, 1);
	uint64_t address = rank_alloc(r, RANK_PLAIN, ROOM, 0, seed), there = rank_alloc(other, RANK_PLAIN, ROOM, 0, 1);
	struct ptc_gpu_export e = rank_export(r, address, ROOM), f = rank_export(other, there, ROOM);
	unsigned char *side[2] = { malloc(ROOM), malloc(ROOM) }; /* the rank's, the kept */
	struct ptc_gpu_part whole = world_flat(0, 0, ROOM), p;
	struct ptc_gpu_ref m[2], far;

	print_message("seed %" PRIu64 "\n", seed);
	for (uint64_t i = 0; i < ROOM; i++)
		side[0][i] = test_gpu_byte(seed, i);
	world_chunks(w, ROOM, false);
	ok(w, world_bind(w, r, address, &e, &m[0]));
	ok(w, world_bind(w, other, there, &f, &far));
	ok(w, ptc_gpu_client_keep(w->c, e.uuid, ROOM, false, &m[1], &w->o, &w->err));
	ok(w, ptc_gpu_client_copy_within(w->c, m[1], m[0], &whole, 1, &w->o, &w->err));
	memcpy(side[1], side[0], ROOM);
	for (int i = 0; i < N; i++) {
		int to = (int)below(&seed, 2);
		uint64_t digest;
		struct ptc_gpu_part q;

		p = random_box(&seed, ROOM);
		q = (struct ptc_gpu_part){ p.other_at,  p.device_at,   p.width,      p.height,      p.depth,
					   p.other_row, p.other_slice, p.device_row, p.device_slice };
		apply(&q, side[!to], side[to]);
		ok(w, ptc_gpu_client_copy_within(w->c, m[to], m[!to], &p, 1, &w->o, &w->err));
		ok(w, copy(w, PTC_GPU_OUT, m[to], whole));
		assert_memory_equal(w->chunks, side[to], ROOM);
		ok(w, ptc_gpu_client_digest(w->c, m[1], &p, 1, &digest, &w->o, &w->err));
		assert_int_equal(digest, digest_of(&p, side[1]));
	}
	assert_int_equal(ptc_gpu_client_copy_within(w->c, m[1], m[1], &whole, 1, &w->o, &w->err), PTC_EINVAL);
	assert_int_equal(ptc_gpu_client_copy_within(w->c, m[1], far, &whole, 1, &w->o, &w->err), PTC_EINVAL);
	whole.width++;
	assert_int_equal(ptc_gpu_client_copy_within(w->c, m[1], m[0], &whole, 1, &w->o, &w->err), PTC_EINVAL);
	assert_int_equal(ptc_gpu_client_keep(w->c, e.uuid, UINT64_C(1) << 40, false, &far, &w->o, &w->err), PTC_ENOMEM);
	rank_end(r, SIGKILL);
	assert_int_equal(ptc_gpu_client_copy_within(w->c, m[1], m[0], &p, 1, &w->o, &w->err), PTC_ELOST);
	ok(w, copy(w, PTC_GPU_OUT, m[1], p)); /* what is kept does not end with the rank */
	ok(w, ptc_gpu_client_close(w->c, m[1], &w->o, &w->err));
	assert_int_equal(copy(w, PTC_GPU_OUT, m[1], p), PTC_ENOTFOUND);
	w->may_leave = true; /* the rank has not freed its memory */
	free(side[0]);
	free(side[1]);
	world_end(w);
}

/* Random boxes from what one device keeps to a rank's memory on another one. Both ways, so that either borrows. */
static void peers(uint64_t seed)
{
	enum { ROOM = 1 << 20, N = 30 };
	struct world *w = world_begin(NULL);
	struct test_rank *r[2] = { world_rank(w, 0), world_rank(w, 1) };
	struct ptc_gpu_part whole = world_flat(0, 0, ROOM), p;
	unsigned char *has[2] = { malloc(ROOM), malloc(ROOM) }, *kept[2] = { malloc(ROOM), malloc(ROOM) };
	struct ptc_gpu_ref m[2], k[2];
	struct ptc_gpu_stats s;
	pid_t pid;

	print_message("seed %" PRIu64 "\n", seed);
	world_chunks(w, ROOM, false);
	for (uint64_t d = 0; d < 2; d++) {
		uint64_t address = rank_alloc(r[d], RANK_PLAIN, ROOM, 0, seed + d);
		struct ptc_gpu_export e = rank_export(r[d], address, ROOM);

		for (uint64_t i = 0; i < ROOM; i++)
			has[d][i] = kept[d][i] = test_gpu_byte(seed + d, i);
		ok(w, world_bind(w, r[d], address, &e, &m[d]));
		ok(w, ptc_gpu_client_keep(w->c, e.uuid, ROOM, false, &k[d], &w->o, &w->err));
		ok(w, ptc_gpu_client_copy_within(w->c, k[d], m[d], &whole, 1, &w->o, &w->err));
	}
	for (int i = 0; i < N; i++) {
		int to = (int)below(&seed, 2);
		struct ptc_gpu_part q;

		p = random_box(&seed, ROOM);
		q = (struct ptc_gpu_part){ p.other_at,  p.device_at,   p.width,      p.height,      p.depth,
					   p.other_row, p.other_slice, p.device_row, p.device_slice };
		apply(&q, kept[!to], has[to]);
		ok(w, ptc_gpu_client_copy_within(w->c, m[to], k[!to], &p, 1, &w->o, &w->err));
		ok(w, copy(w, PTC_GPU_OUT, m[to], whole));
		assert_memory_equal(w->chunks, has[to], ROOM);
	}
	/* what a rank has is not read so, nor what is no more kept */
	assert_int_equal(ptc_gpu_client_copy_within(w->c, m[0], m[1], &whole, 1, &w->o, &w->err), PTC_EINVAL);
	says(w, "only what is kept is copied to other devices");
	ok(w, ptc_gpu_client_close(w->c, k[1], &w->o, &w->err));
	assert_int_equal(ptc_gpu_client_copy_within(w->c, m[0], k[1], &whole, 1, &w->o, &w->err), PTC_EINVAL);
	whole.width++;
	assert_int_equal(ptc_gpu_client_copy_within(w->c, m[1], k[0], &whole, 1, &w->o, &w->err), PTC_EINVAL);
	pid = gpu_pid(w, &s);
	for (int d = 0; d < 2; d++) {
		free(has[d]);
		free(kept[d]);
	}
	w->c = ptc_gpu_client_free(w->c);
	assert_int_equal(world_reported(w, pid, "call cuCtxEnablePeerAccess"), 2);
	w->may_leave = true; /* the ranks have not freed their memory */
	world_end(w);
}

static void test_peers(void **state)
{
	peers(31);
	setenv("PTC_FAKE_GPU_PITCH", "1000", 1);
	peers(32);
	unsetenv("PTC_FAKE_GPU_PITCH");
}

/* Devices that cannot read each other's memory, or whose driver refuses at the last moment: the request fails, and
 * copies within each device work. */
static void test_no_peers(void **state)
{
	for (int refused = 0; refused < 2; refused++) {
		struct world *w;
		struct test_rank *r;
		uint64_t address;
		struct ptc_gpu_export e;
		struct ptc_gpu_part p = world_flat(0, 0, MIB);
		struct ptc_gpu_ref m, k[2];

		if (!refused)
			setenv("PTC_FAKE_GPU_NO_PEERS", "1", 1);
		w = world_begin(NULL);
		if (refused)
			world_faults(w, "cuCtxEnablePeerAccess 0 217\n");
		r = world_rank(w, 1);
		address = rank_alloc(r, RANK_PLAIN, MIB, 0, 1);
		e = rank_export(r, address, MIB);
		world_chunks(w, MIB, false);
		ok(w, world_bind(w, r, address, &e, &m));
		ok(w, ptc_gpu_client_keep(w->c, e.uuid, MIB, false, &k[1], &w->o, &w->err));
		ok(w, ptc_gpu_client_copy_within(w->c, k[1], m, &p, 1, &w->o, &w->err));
		rank_end(r, 0);
		r = world_rank(w, 0);
		address = rank_alloc(r, RANK_PLAIN, MIB, 0, 2);
		e = rank_export(r, address, MIB);
		ok(w, world_bind(w, r, address, &e, &m));
		assert_int_equal(ptc_gpu_client_copy_within(w->c, m, k[1], &p, 1, &w->o, &w->err), PTC_ENODEVICES);
		assert_int_equal(w->o.blame, PTC_GPU_BLAME_REQUEST);
		says(w, refused ? "PEER_ACCESS_UNSUPPORTED" : "cannot read the memory");
		assert_true(rank_has(r, address, MIB, 2));
		ok(w, ptc_gpu_client_keep(w->c, e.uuid, MIB, false, &k[0], &w->o, &w->err));
		ok(w, ptc_gpu_client_copy_within(w->c, k[0], m, &p, 1, &w->o, &w->err));
		w->may_leave = true;
		world_end(w);
		unsetenv("PTC_FAKE_GPU_NO_PEERS");
	}
}

static void test_within(void **state)
{
	within(21);
	setenv("PTC_FAKE_GPU_PITCH", "1000", 1);
	within(22);
	unsetenv("PTC_FAKE_GPU_PITCH");
}

/* A device that takes no such image, or has no memory for buffers, works without kernels. */
static void without_kernels(const char *variable, const char *value)
{
	struct ptc_gpu_part box = { 0, 0, 100, 50, 3, 200, 20000, 100, 5000 };
	struct world *w = world_begin(NULL);
	unsigned char *device = malloc(MIB), *want = calloc(1, MIB);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_PLAIN, MIB, 0, 3), digest;
	struct ptc_gpu_export e = rank_export(r, address, MIB);
	struct ptc_gpu_ref m;

	setenv(variable, value, 1);
	for (uint64_t i = 0; i < MIB; i++)
		device[i] = test_gpu_byte(3, i);
	world_chunks(w, MIB, false);
	ok(w, world_bind(w, r, address, &e, &m));
	ok(w, copy(w, PTC_GPU_OUT, m, box));
	apply(&box, device, want);
	assert_memory_equal(w->chunks, want, MIB);
	ok(w, ptc_gpu_client_digest(w->c, m, &box, 1, &digest, &w->o, &w->err));
	assert_int_equal(digest, digest_of(&box, device));
	assert_int_equal(calls_of(w, "cuLaunchKernel"), 0);
	unsetenv(variable);
	free(device);
	free(want);
	world_end(w);
}

static void test_without_kernels(void **state)
{
	without_kernels("PTC_GPU_KERNELS", "/proc/self/exe"); /* no image */
	without_kernels("PTC_GPU_KERNELS", "/nonexistent");
	without_kernels("PTC_FAKE_GPU_MEMORY", "2000000");
}

/* Rows longer than a slot of the ring, in slices. */
static void test_long_rows(void **state)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t bytes = 40 * MIB, address = rank_alloc(r, RANK_PLAIN, bytes, 0, 3), digest;
	struct ptc_gpu_export e = rank_export(r, address, bytes);
	struct ptc_gpu_part p = { 5, 9, 5 * MIB, 2, 2, 6 * MIB, 13 * MIB, 5 * MIB + 3, 11 * MIB };
	unsigned char *want = calloc(1, 32 * MIB), *device = malloc(bytes);
	struct ptc_gpu_ref m;

	for (uint64_t i = 0; i < bytes; i++)
		device[i] = test_gpu_byte(3, i);
	world_chunks(w, 32 * MIB, false);
	ok(w, world_bind(w, r, address, &e, &m));
	ok(w, copy(w, PTC_GPU_OUT, m, p));
	apply(&p, device, want);
	assert_memory_equal(w->chunks, want, 32 * MIB);
	ok(w, ptc_gpu_client_digest(w->c, m, &p, 1, &digest, &w->o, &w->err));
	assert_int_equal(digest, digest_of(&p, device));
	free(want);
	free(device);
	world_end(w);
}

/* ---- binding ---- */

static unsigned open_fds(pid_t pid)
{
	char path[64];
	unsigned n = 0;
	DIR *d;

	snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
	d = opendir(path);
	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Two ranges in the middle of 600 handles: three messages of descriptors, none of which stays open. */
static void test_vmm(void **state)
{
	enum { HANDLE = 64 << 10, COUNT = 600 };
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_VMM, (uint64_t)COUNT * HANDLE, HANDLE, 5);
	struct ptc_gpu_export e = rank_export(r, address + 1000, (uint64_t)COUNT * HANDLE - 1000);
	struct ptc_gpu_ref m;
	struct ptc_gpu_stats s;
	unsigned before;
	pid_t pid;

	assert_int_equal(e.path, PTC_GPU_PATH_VMM);
	assert_int_equal(e.handles, COUNT);
	world_chunks(w, (uint64_t)COUNT * HANDLE, false);
	pid = gpu_pid(w, NULL);
	before = open_fds(pid);
	ok(w, world_bind(w, r, address + 1000, &e, &m));
	/* The fake driver keeps one descriptor for each mapped handle; ours are closed. */
	assert_in_range(open_fds(pid), before, before + COUNT + 8);
	ok(w, copy(w, PTC_GPU_OUT, m, world_flat(e.offset, 0, (uint64_t)COUNT * HANDLE - 1000)));
	assert_true(is_seed(w->chunks, 1000, (uint64_t)COUNT * HANDLE - 1000, 5));
	gpu_pid(w, &s);
	assert_int_equal(s.mapped_bytes, (uint64_t)COUNT * HANDLE);
	ok(w, ptc_gpu_client_close(w->c, m, &w->o, &w->err));
	rank_free(r, address);
	assert_in_range(open_fds(pid), before, before + 8);

	/* Of another range of the same segment: other handles, so another mapping. */
	address = rank_alloc(r, RANK_VMM, 4 * HANDLE, HANDLE, 6);
	e = rank_export(r, address + HANDLE + 1, HANDLE);
	assert_int_equal(e.handles, 2);
	ok(w, world_bind(w, r, address + HANDLE + 1, &e, &m));
	ok(w, copy(w, PTC_GPU_OUT, m, world_flat(e.offset, 0, HANDLE)));
	assert_true(is_seed(w->chunks, HANDLE + 1, HANDLE, 6));
	world_end(w);
}

/* Handles that stop coming, come twice, or are none. */
static void test_vmm_misuse(void **state)
{
	enum { HANDLE = 64 << 10 };
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_VMM, 4 * HANDLE, HANDLE, 5);
	struct ptc_gpu_export e = rank_export(r, address, 4 * HANDLE), wrong;
	struct ptc_gpu_ref m, other;
	uint32_t missing;
	int fds[3];

	world_chunks(w, 4 * HANDLE, false);
	ok(w, ptc_gpu_client_bind(w->c, &e, &m, &missing, &w->o, &w->err));
	assert_int_equal(missing, 4);
	assert_int_equal(copy(w, PTC_GPU_OUT, m, world_flat(0, 0, 1)), PTC_ESTATE);
	says(w, "4 handles have not come yet");
	assert_int_equal(ptc_gpu_client_bind(w->c, &e, &other, &missing, &w->o, &w->err), PTC_ESTATE);
	says(w, "being bound");
	fds[0] = fds[1] = fds[2] = w->chunks_fd; /* no memory of a device */
	assert_int_equal(ptc_gpu_client_handles(w->c, m, fds, 3, &missing, &w->o, &w->err), PTC_EIO);
	assert_int_equal(copy(w, PTC_GPU_OUT, m, world_flat(0, 0, 1)), PTC_ENOTFOUND); /* it was unbound */

	ok(w, world_bind(w, r, address, &e, &m));
	assert_int_equal(ptc_gpu_client_handles(w->c, m, fds, 1, &missing, &w->o, &w->err), PTC_EINVAL);
	ok(w, copy(w, PTC_GPU_OUT, m, world_flat(0, 0, 4 * HANDLE))); /* that changed nothing */
	assert_true(is_seed(w->chunks, 0, 4 * HANDLE, 5));

	wrong = e;
	wrong.handles = 3;
	assert_int_equal(ptc_gpu_client_bind(w->c, &wrong, &m, &missing, &w->o, &w->err), PTC_EINVAL);
	wrong = e;
	wrong.handle_bytes = UINT64_MAX / 2;
	assert_int_equal(ptc_gpu_client_bind(w->c, &wrong, &m, &missing, &w->o, &w->err), PTC_EINVAL);
	world_end(w);
}

/* An allocation is mapped once, whoever binds it; an address that is used again is another one. */
static void test_cache(void **state)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_PLAIN, MIB, 0, 1), again;
	struct ptc_gpu_export e = rank_export(r, address, 1000), f = rank_export(r, address + 5000, 1000);
	struct ptc_gpu_ref a, b;
	struct ptc_gpu_stats s;
	pid_t pid;

	world_chunks(w, MIB, false);
	ok(w, world_bind(w, r, address, &e, &a));
	ok(w, world_bind(w, r, address, &f, &b));
	assert_int_equal(a.number, b.number);
	pid = gpu_pid(w, &s);
	assert_int_equal(s.allocations, 1);
	ok(w, ptc_gpu_client_close(w->c, a, &w->o, &w->err));
	ok(w, copy(w, PTC_GPU_OUT, b, world_flat(f.offset, 0, 1000)));
	assert_true(is_seed(w->chunks, 5000, 1000, 1));
	ok(w, ptc_gpu_client_close(w->c, b, &w->o, &w->err));
	assert_int_equal(ptc_gpu_client_close(w->c, b, &w->o, &w->err), PTC_ENOTFOUND);
	gpu_pid(w, &s);
	assert_int_equal(s.allocations | s.mapped_bytes, 0);

	/* Another one of the same size, while the first is bound. */
	ok(w, world_bind(w, r, address, &e, &a));
	again = rank_alloc(r, RANK_PLAIN, MIB, 0, 3);
	f = rank_export(r, again, 1000);
	ok(w, world_bind(w, r, again, &f, &b));
	assert_int_not_equal(a.number, b.number);
	ok(w, copy(w, PTC_GPU_OUT, b, world_flat(0, 0, MIB)));
	assert_true(is_seed(w->chunks, 0, MIB, 3));
	ok(w, ptc_gpu_client_close(w->c, a, &w->o, &w->err));
	ok(w, ptc_gpu_client_close(w->c, b, &w->o, &w->err));
	rank_free(r, again);

	rank_free(r, address);
	again = rank_alloc(r, RANK_PLAIN, MIB, 0, 2); /* at the same address, as a rule */
	f = rank_export(r, again, 1000);
	assert_int_not_equal(f.buffer, e.buffer);
	ok(w, world_bind(w, r, again, &f, &b));
	ok(w, copy(w, PTC_GPU_OUT, b, world_flat(0, 0, MIB)));
	assert_true(is_seed(w->chunks, 0, MIB, 2));
	ptc_gpu_client_free(w->c);
	w->c = NULL;
	assert_int_equal(world_reported(w, pid, "call cuIpcOpenMemHandle"), 4);
	assert_int_equal(world_reported(w, pid, "call cuIpcCloseMemHandle"), 4);
	world_end(w);
}

static void refused(struct world *w, const struct ptc_gpu_export *e, const char *why)
{
	struct ptc_gpu_ref m;
	uint32_t missing;

	assert_int_equal(e->path, PTC_GPU_PATH_TRAINER);
	assert_int_equal(ptc_gpu_client_bind(w->c, e, &m, &missing, &w->o, &w->err), PTC_ESTATE);
	assert_int_equal(w->o.blame, PTC_GPU_BLAME_REQUEST);
	says(w, why);
}

/* What cannot be shared says so, and why. */
static void test_trainer_path(void **state)
{
	struct test_rank_order q = { .op = RANK_EXPORT, .bytes = 10 };
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_POOL, MIB, 0, 1);
	struct ptc_gpu_export e = rank_export(r, address, MIB);
	struct test_rank_reply a;

	refused(w, &e, "stream-ordered pool");
	q.address = (uint64_t)(uintptr_t)w;
	a = rank_do(r, &q, NULL);
	assert_int_equal(a.rc, PTC_EINVAL);
	assert_non_null(strstr(a.text, "are no device memory"));
	q.address = rank_alloc(r, RANK_PLAIN, 100, 0, 1) + 95;
	a = rank_do(r, &q, NULL);
	assert_int_equal(a.rc, PTC_EINVAL);
	assert_non_null(strstr(a.text, "beyond their allocation of 100 bytes"));

	setenv("PTC_FAKE_GPU_NO_IPC", "1", 1);
	setenv("PTC_FAKE_GPU_NO_FDS", "1", 1);
	r = world_rank(w, 0);
	unsetenv("PTC_FAKE_GPU_NO_IPC");
	unsetenv("PTC_FAKE_GPU_NO_FDS");
	e = rank_export(r, rank_alloc(r, RANK_PLAIN, MIB, 0, 1), MIB);
	refused(w, &e, "gives no IPC handle");
	e = rank_export(r, rank_alloc(r, RANK_VMM, MIB, MIB, 1), MIB);
	refused(w, &e, "POSIX_FILE_DESCRIPTOR");
	world_end(w);
}

static void test_bad_requests(void **state)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_PLAIN, 1000, 0, 1);
	struct ptc_gpu_export e = rank_export(r, address, 1000);
	struct ptc_gpu_part p = world_flat(0, 0, 1000);
	struct ptc_gpu_ref m, none = { 1, 77 };
	uint64_t digest;

	world_chunks(w, 2000, false);
	ok(w, world_bind(w, r, address, &e, &m));
	assert_int_equal(copy(w, PTC_GPU_OUT, m, world_flat(1, 0, 1000)), PTC_EINVAL);
	says(w, "not within 1000 bytes of device memory");
	assert_int_equal(copy(w, PTC_GPU_OUT, m, world_flat(0, 1001, 1000)), PTC_EINVAL);
	says(w, "not within 2000 bytes of the other side");
	p.height = 2;
	assert_int_equal(copy(w, PTC_GPU_OUT, m, p), PTC_EINVAL);
	p.device_row = UINT64_MAX - 1;
	assert_int_equal(copy(w, PTC_GPU_IN, m, p), PTC_EINVAL);
	p = (struct ptc_gpu_part){ 0, 0, 10, 10, 1, 9, 0, 10, 0 }; /* rows that overlap */
	assert_int_equal(copy(w, PTC_GPU_OUT, m, p), PTC_EINVAL);
	p = (struct ptc_gpu_part){ 0 };
	assert_int_equal(copy(w, PTC_GPU_OUT, m, p), PTC_EINVAL);
	says(w, "an empty box");
	assert_int_equal(ptc_gpu_client_digest(w->c, none, &p, 1, &digest, &w->o, &w->err), PTC_ENOTFOUND);
	assert_int_equal(ptc_gpu_client_digest(w->c, m, &p, 0, &digest, &w->o, &w->err), PTC_EINVAL);
	assert_int_equal(ptc_gpu_client_unmap_host(w->c, none, 0, &w->o, &w->err), PTC_ENOTFOUND);
	assert_int_equal(ptc_gpu_client_map_host(w->c, w->chunks_fd, 2001, NULL, &none, &w->o, &w->err), PTC_EINVAL);
	ok(w, ptc_gpu_client_close(w->c, m, &w->o, &w->err));
	e.bytes = 1001; /* a rank that lies */
	assert_int_equal(world_bind(w, r, address, &e, &m), PTC_EINVAL);
	assert_int_equal(w->o.blame, PTC_GPU_BLAME_RANK);
	says(w, "binds 1001 bytes of an allocation of 1000");
	e.bytes = 1000;
	ok(w, world_bind(w, r, address, &e, &m)); /* it was not left open */
	snprintf(e.uuid, sizeof e.uuid, "GPU-nobody");
	assert_int_equal(world_bind(w, r, address, &e, &m), PTC_ENODEVICES);
	assert_int_equal(w->o.blame, PTC_GPU_BLAME_DEVICE);
	says(w, "no device GPU-nobody");
	world_end(w);
}

/* ---- marks ---- */

static void mark(struct test_rank *r, uint64_t value, unsigned steps)
{
	struct test_rank_order q = { .op = RANK_MARK, .value = value };

	assert_int_equal(rank_do(r, &q, NULL).rc, 0);
	q.op = RANK_STEP;
	while (steps--)
		assert_int_equal(rank_do(r, &q, NULL).rc, 0);
}

/* A page that the rank's device writes marks to; 5 is expected there. */
static struct ptc_gpu_guard guard_of(struct world *w, struct test_rank *r)
{
	struct test_rank_order q = { .op = RANK_PAGE };
	struct ptc_gpu_guard guard = { .value = 5 };
	int page;

	assert_int_equal(rank_do(r, &q, &page).rc, 0);
	ok(w, ptc_gpu_client_map_host(w->c, page, 4096, NULL, &guard.host, &w->o, &w->err));
	close(page);
	return guard;
}

/* The host runs ahead of the device: a mark counts when the stream has come to it, and a copy over a later mark is
 * discarded. */
static void test_marks(void **state)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_PLAIN, MIB, 0, 1);
	struct ptc_gpu_export e = rank_export(r, address, MIB);
	struct ptc_gpu_part p = world_flat(0, 0, MIB);
	struct ptc_gpu_guard guard;
	struct ptc_gpu_ref m;

	world_chunks(w, MIB, false);
	ok(w, world_bind(w, r, address, &e, &m));
	guard = guard_of(w, r);

	mark(r, 5, 0);
	assert_int_equal(ptc_gpu_client_copy(w->c, PTC_GPU_OUT, m, w->host, &p, 1, &guard, &w->o, &w->err),
			 PTC_ECONFLICT);
	says(w, "was 0 before the copy, not 5");
	mark(r, 6, 1);
	ok(w, ptc_gpu_client_copy(w->c, PTC_GPU_OUT, m, w->host, &p, 1, &guard, &w->o, &w->err));
	assert_true(is_seed(w->chunks, 0, MIB, 1));
	mark(r, 7, 1);
	assert_int_equal(ptc_gpu_client_copy(w->c, PTC_GPU_OUT, m, w->host, &p, 1, &guard, &w->o, &w->err),
			 PTC_ECONFLICT);
	guard.at = 4;
	assert_int_equal(ptc_gpu_client_copy(w->c, PTC_GPU_OUT, m, w->host, &p, 1, &guard, &w->o, &w->err), PTC_EINVAL);
	guard.at = 4096;
	assert_int_equal(ptc_gpu_client_copy(w->c, PTC_GPU_OUT, m, w->host, &p, 1, &guard, &w->o, &w->err), PTC_EINVAL);
	world_end(w);
}

/* A copy on the device beside a rank that goes on, under its mark; kernels are not needed for it. */
static void test_shadow(void **state)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_PLAIN, MIB, 0, 1);
	struct ptc_gpu_export e = rank_export(r, address, MIB);
	struct ptc_gpu_part p = world_flat(0, 0, MIB);
	struct ptc_gpu_guard guard;
	struct ptc_gpu_ref m, shadow, refused;

	world_kernels("off");
	world_chunks(w, MIB, false);
	ok(w, world_bind(w, r, address, &e, &m));
	guard = guard_of(w, r);
	assert_int_equal(ptc_gpu_client_keep(w->c, e.uuid, MIB, false, &refused, &w->o, &w->err), PTC_ENODEVICES);
	/* 256 MiB in all, 16 of them for the ranks */
	assert_int_equal(ptc_gpu_client_keep(w->c, e.uuid, 240 * MIB + 1, true, &refused, &w->o, &w->err), PTC_ENOSPC);
	says(w, "have to stay so for the ranks");
	ok(w, ptc_gpu_client_keep(w->c, e.uuid, 240 * MIB, true, &shadow, &w->o, &w->err));
	assert_int_equal(ptc_gpu_client_keep(w->c, e.uuid, 1, true, &refused, &w->o, &w->err), PTC_ENOSPC);

	assert_int_equal(ptc_gpu_client_shadow(w->c, shadow, m, &p, 1, &guard, &w->o, &w->err), PTC_ECONFLICT);
	says(w, "was 0 before the copy, not 5");
	mark(r, 5, 1);
	ok(w, ptc_gpu_client_shadow(w->c, shadow, m, &p, 1, &guard, &w->o, &w->err));
	assert_int_equal(ptc_gpu_client_shadow(w->c, shadow, shadow, &p, 1, NULL, &w->o, &w->err), PTC_EINVAL);
	guard.at = 4096;
	assert_int_equal(ptc_gpu_client_shadow(w->c, shadow, m, &p, 1, &guard, &w->o, &w->err), PTC_EINVAL);
	ok(w, ptc_gpu_client_close(w->c, m, &w->o, &w->err));
	rank_free(r, address); /* the rank has gone on */
	ok(w, copy(w, PTC_GPU_OUT, shadow, p));
	assert_true(is_seed(w->chunks, 0, MIB, 1));
	ok(w, ptc_gpu_client_close(w->c, shadow, &w->o, &w->err));
	assert_int_equal(ptc_gpu_client_shadow(w->c, shadow, m, &p, 1, NULL, &w->o, &w->err), PTC_ENOTFOUND);
	world_end(w);
}

/* ---- failures ---- */

struct background {
	struct world *w;
	struct ptc_gpu_ref m, host;
	const struct ptc_gpu_guard *guard;
	uint64_t bytes;
	struct ptc_gpu_outcome o;
	struct ptc_error err;
	int rc;
	pthread_t thread;
};

static void *copy_in_background(void *arg)
{
	struct background *b = arg;
	struct ptc_gpu_part p = world_flat(0, 4096, b->bytes);

	b->rc = ptc_gpu_client_copy(b->w->c, PTC_GPU_OUT, b->m, b->w->host, &p, 1, b->guard, &b->o, &b->err);
	return NULL;
}

static void await_block(struct world *w)
{
	while (!world_has(w, "blocked"))
		usleep(1000);
}

/* The mark moves while the copy is under way. */
static void test_mark_moves(void **state)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_PLAIN, MIB, 0, 1);
	struct ptc_gpu_export e = rank_export(r, address, MIB);
	struct ptc_gpu_guard guard;
	struct background b = { .w = w, .guard = &guard, .bytes = MIB };

	world_faults(w, "cuEventSynchronize 1 block\n");
	world_chunks(w, 2 * MIB, false);
	ok(w, world_bind(w, r, address, &e, &b.m));
	guard = guard_of(w, r);
	mark(r, 5, 1);
	pthread_create(&b.thread, NULL, copy_in_background, &b);
	await_block(w);
	mark(r, 6, 1);
	assert_int_equal(ptc_gpu_client_unmap_host(w->c, w->host, 0, &w->o, &w->err), PTC_ESTATE);
	says(w, "in use by 1 requests");
	world_touch(w, "unblock");
	pthread_join(b.thread, NULL);
	assert_int_equal(b.rc, PTC_ECONFLICT);
	assert_non_null(strstr(b.err.text, "was 6 after the copy, not 5"));
	world_end(w);
}

static void test_rank_dead(void **state)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0), *other = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_PLAIN, MIB, 0, 1), kept = rank_alloc(other, RANK_PLAIN, MIB, 0, 2);
	uint64_t vmm = rank_alloc(r, RANK_VMM, MIB, MIB, 3);
	struct ptc_gpu_export e = rank_export(r, address, MIB), f = rank_export(other, kept, MIB);
	struct ptc_gpu_export g = rank_export(r, vmm, MIB);
	struct background b = { .w = w, .bytes = MIB };
	struct ptc_gpu_ref m, n;
	struct ptc_gpu_stats s;

	world_faults(w, "cuEventSynchronize 1 block\n");
	world_chunks(w, 2 * MIB, false);
	ok(w, world_bind(w, r, address, &e, &b.m));
	ok(w, world_bind(w, r, vmm, &g, &m));
	ok(w, world_bind(w, other, kept, &f, &n));
	pthread_create(&b.thread, NULL, copy_in_background, &b);
	await_block(w);
	rank_end(r, SIGKILL);
	world_touch(w, "unblock");
	pthread_join(b.thread, NULL);
	assert_int_equal(b.rc, PTC_ELOST);
	assert_int_equal(b.o.blame, PTC_GPU_BLAME_RANK);
	assert_non_null(strstr(b.err.text, "has ended during the copy"));
	assert_int_equal(copy(w, PTC_GPU_OUT, m, world_flat(0, 0, MIB)), PTC_ELOST);
	says(w, "has ended before the copy");
	ok(w, ptc_gpu_client_close(w->c, b.m, &w->o, &w->err));
	ok(w, ptc_gpu_client_close(w->c, m, &w->o, &w->err));
	gpu_pid(w, &s);
	assert_int_equal(s.allocations, 1);
	assert_int_equal(world_bind(w, other, address, &e, &m), PTC_ELOST);
	assert_int_equal(w->o.blame, PTC_GPU_BLAME_RANK);
	ok(w, copy(w, PTC_GPU_OUT, n, world_flat(0, 0, MIB)));
	assert_true(is_seed(w->chunks, 0, MIB, 2));
	world_end(w);
}

struct borrowing {
	struct world *w;
	struct ptc_gpu_ref to, from;
	struct ptc_gpu_outcome o;
	struct ptc_error err;
	_Atomic bool done;
	int rc;
};

static void *copy_to_peer(void *arg)
{
	struct borrowing *l = arg;
	struct ptc_gpu_part p = world_flat(0, 0, MIB);

	l->rc = ptc_gpu_client_copy_within(l->w->c, l->to, l->from, &p, 1, &l->o, &l->err);
	return NULL;
}

static void *close_borrowed(void *arg)
{
	struct borrowing *l = arg;

	l->rc = ptc_gpu_client_close(l->w->c, l->from, &l->o, &l->err);
	l->done = true;
	return NULL;
}

/* What one device copies from another one is not freed meanwhile. */
static void test_borrowed(void **state)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r[2] = { world_rank(w, 0), world_rank(w, 1) };
	struct borrowing copies = { .w = w }, closes;
	struct ptc_gpu_part p = world_flat(0, 0, MIB);
	struct ptc_gpu_ref source;
	pthread_t threads[2];
	uint64_t address[2];

	world_chunks(w, MIB, false);
	for (int d = 0; d < 2; d++) {
		struct ptc_gpu_export e;

		address[d] = rank_alloc(r[d], RANK_PLAIN, MIB, 0, (uint64_t)d);
		e = rank_export(r[d], address[d], MIB);
		ok(w, world_bind(w, r[d], address[d], &e, d ? &copies.to : &source));
		if (d == 0)
			ok(w, ptc_gpu_client_keep(w->c, e.uuid, MIB, false, &copies.from, &w->o, &w->err));
	}
	ok(w, ptc_gpu_client_copy_within(w->c, copies.from, source, &p, 1, &w->o, &w->err));
	closes = copies;
	world_faults(w, "cuMemcpy3DAsync 2 block\n");
	pthread_create(&threads[0], NULL, copy_to_peer, &copies);
	await_block(w);
	pthread_create(&threads[1], NULL, close_borrowed, &closes);
	for (int i = 0; i < 100 && !closes.done; i++) /* it has every chance to free too early */
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	assert_false(closes.done);
	world_touch(w, "unblock");
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	ok(w, copies.rc);
	ok(w, closes.rc);
	assert_true(rank_has(r[1], address[1], MIB, 0));
	assert_int_equal(ptc_gpu_client_copy_within(w->c, copies.to, copies.from, &p, 1, &w->o, &w->err), PTC_EINVAL);
	w->may_leave = true; /* the ranks have not freed their memory */
	world_end(w);
}

/* The first page of the chunks is sealed: nothing that goes wrong with a copy beside it may change it. */
static void seal(struct world *w)
{
	for (unsigned i = 0; i < 4096; i++)
		w->chunks[i] = test_gpu_byte(99, i);
}

static void works_again(struct world *w, struct test_rank *r, uint64_t address, uint64_t bytes)
{
	struct ptc_gpu_export e = rank_export(r, address, bytes);
	struct ptc_gpu_ref m;

	world_map_chunks(w, false);
	ok(w, world_bind(w, r, address, &e, &m));
	memset(w->chunks + 4096, 0, bytes);
	ok(w, copy(w, PTC_GPU_OUT, m, world_flat(0, 4096, bytes)));
	assert_true(is_seed(w->chunks + 4096, 0, bytes, 1));
	assert_true(is_seed(w->chunks, 0, 4096, 99));
}

static void test_killed(void **state)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t bytes = 24 * MIB, address = rank_alloc(r, RANK_PLAIN, bytes, 0, 1);
	struct ptc_gpu_export e = rank_export(r, address, bytes);
	struct background b = { .w = w, .bytes = bytes };
	struct ptc_gpu_part p = world_flat(0, 0, 1);
	struct ptc_gpu_ref host;
	struct ptc_gpu_stats s;
	uint64_t digest;
	pid_t pid;

	world_faults(w, "cuMemcpyDtoHAsync 6 block once\n");
	world_chunks(w, 32 * MIB, false);
	seal(w);
	ok(w, world_bind(w, r, address, &e, &b.m));
	pid = gpu_pid(w, NULL);
	pthread_create(&b.thread, NULL, copy_in_background, &b);
	await_block(w);
	assert_true(is_seed(w->chunks + 4096, 0, 2 * MIB, 1)); /* in the middle: some of it is there */
	assert_false(is_seed(w->chunks + 4096, 0, bytes, 1));
	kill(pid, SIGKILL);
	pthread_join(b.thread, NULL);
	assert_int_equal(b.rc, PTC_EIO);
	assert_false(b.o.unsafe);
	assert_non_null(strstr(b.err.text, "was killed by signal 9"));
	assert_true(is_seed(w->chunks, 0, 4096, 99));

	/* What the dead process had mapped: refused where it would be used, done where it would be ended. */
	host = w->host;
	works_again(w, r, address, bytes);
	assert_int_equal(copy(w, PTC_GPU_OUT, b.m, world_flat(0, 4096, 1)), PTC_ESTATE);
	says(w, "bind it again");
	assert_int_equal(ptc_gpu_client_digest(w->c, b.m, &p, 1, &digest, &w->o, &w->err), PTC_ESTATE);
	says(w, "bind it again");
	ok(w, ptc_gpu_client_close(w->c, b.m, &w->o, &w->err));
	ok(w, ptc_gpu_client_unmap_host(w->c, host, 0, &w->o, &w->err));
	assert_int_not_equal(gpu_pid(w, &s), pid);
	assert_int_equal(s.life, 2);
	world_end(w);
}

/* In the middle of a copy through the ring its process is killed, or the copy fails: the caller is told, and it works
 * again. */
enum way { WAY_OUT, WAY_IN, WAY_DIGEST };

static int go(struct world *w, enum way way, struct ptc_gpu_ref m, uint64_t bytes, uint64_t *ret_digest)
{
	struct ptc_gpu_part p = world_flat(0, way == WAY_DIGEST ? 0 : 4096, bytes);

	if (way == WAY_DIGEST)
		return ptc_gpu_client_digest(w->c, m, &p, 1, ret_digest, &w->o, &w->err);
	return copy(w, way == WAY_OUT ? PTC_GPU_OUT : PTC_GPU_IN, m, p);
}

static void in_the_middle(enum way way, bool killed)
{
	uint64_t bytes = 24 * MIB, address, digest = 0;
	struct ptc_gpu_export e;
	struct test_rank *r;
	struct ptc_gpu_ref m;
	struct world *w;

	setenv("PTC_FAULT", killed ? "gpu.copy.middle@2" : "gpu.copy.middle@2=fail",
	       1); /* after the third tile of six */
	w = world_begin(NULL);
	if (way == WAY_DIGEST) /* with kernels the bytes stay on the device, and nothing goes through the ring */
		setenv("PTC_GPU_KERNELS", "/nonexistent", 1);
	r = world_rank(w, 0);
	address = rank_alloc(r, RANK_PLAIN, bytes, 0, 1);
	e = rank_export(r, address, bytes);
	world_chunks(w, 32 * MIB, false);
	seal(w);
	for (uint64_t i = 0; way == WAY_IN && i < bytes; i++)
		w->chunks[4096 + i] = test_gpu_byte(2, i);
	ok(w, world_bind(w, r, address, &e, &m));
	assert_int_equal(go(w, way, m, bytes, &digest), PTC_EIO);
	says(w, killed ? "was killed by signal 9" : "a test's failure");
	assert_false(w->o.unsafe);
	assert_false(rank_has(r, address, bytes, 2)); /* of all tiles, none or some are there */
	if (way == WAY_OUT)
		assert_false(is_seed(w->chunks + 4096, 0, bytes, 1));
	assert_int_equal(digest, 0);

	unsetenv("PTC_FAULT");
	if (killed) {
		e = rank_export(r, address, bytes);
		world_map_chunks(w, false);
		ok(w, world_bind(w, r, address, &e, &m));
	}
	ok(w, go(w, way, m, bytes, &digest));
	assert_true(rank_has(r, address, bytes, way == WAY_IN ? 2 : 1));
	if (way == WAY_OUT)
		assert_true(is_seed(w->chunks + 4096, 0, bytes, 1));
	for (uint64_t i = 0; i < bytes; i++)
		w->chunks[4096 + i] = test_gpu_byte(1, i);
	if (way == WAY_DIGEST)
		assert_int_equal(digest, ptc_digest_run(w->chunks + 4096, bytes));
	assert_true(is_seed(w->chunks, 0, 4096, 99));
	unsetenv("PTC_GPU_KERNELS");
	world_end(w);
}

static void test_middle(void **state)
{
	for (enum way way = WAY_OUT; way <= WAY_DIGEST; way++)
		for (int killed = 0; killed < 2; killed++)
			in_the_middle(way, killed);
}

/* A process that does not answer is killed, and the caller told. */
static void test_hangs(void **state)
{
	struct ptc_gpu_client_config config = { .pinned_max = 64 * MIB, .copiers = 2, .hang_ms = 6000 };
	struct world *w = world_begin(&config);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_PLAIN, MIB, 0, 1);
	struct ptc_gpu_export e = rank_export(r, address, MIB);
	struct ptc_gpu_ref m;

	world_faults(w, "cuEventSynchronize 1 block once\n");
	world_chunks(w, 2 * MIB, false);
	seal(w);
	ok(w, world_bind(w, r, address, &e, &m));
	assert_int_equal(copy(w, PTC_GPU_OUT, m, world_flat(0, 4096, MIB)), PTC_EIO);
	says(w, "it did not answer to \"copy out\"");
	assert_false(w->o.unsafe);
	works_again(w, r, address, MIB);
	world_end(w);
}

/* Of daemon/workers/test_hungfs.c: mounts a file system whose only file, "w" of so many bytes, hangs whoever reads it.
 */
int test_hungfs(const char *dir);
#define HUNG_BYTES 65536

/* A file system that hangs, below the world's folder, and its only file. -1: none can be mounted here. */
static int hang_begin(struct world *w, pid_t *ret_pid, int *ret_input)
{
	char dir[96], file[112], own[512] = "";
	int fds[2], status;

	snprintf(dir, sizeof dir, "%s/fs", w->dir);
	snprintf(file, sizeof file, "%s/fs/w", w->dir);
	assert_true(readlink("/proc/self/exe", own, sizeof own - 1) > 0);
	assert_true(mkdir(dir, 0755) == 0 && pipe2(fds, O_CLOEXEC) == 0);
	*ret_input = fds[1];
	*ret_pid = fork();
	if (*ret_pid == 0) {
		dup2(fds[0], 0);
		execl(own, own, "--hungfs", dir, NULL);
		_exit(1);
	}
	close(fds[0]);
	while (access(file, F_OK) != 0) {
		if (waitpid(*ret_pid, &status, WNOHANG) == *ret_pid) {
			close(*ret_input);
			rmdir(dir);
			return -1;
		}
		usleep(1000);
	}
	return open(file, O_RDWR | O_CLOEXEC);
}

/* ptc-gpu waits in the kernel, where no signal reaches it: the caller is told in time that it may still write, and
 * keeps its memory. What a rank has bound stays bound. The next process works. */
static void test_cannot_be_ended(void **state)
{
	struct ptc_gpu_client_config config = { .pinned_max = 64 * MIB, .copiers = 2, .hang_ms = 6000 };
	struct world *w = world_begin(&config);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_PLAIN, HUNG_BYTES, 0, 1);
	struct ptc_gpu_export e = rank_export(r, address, HUNG_BYTES);
	struct ptc_gpu_ref m, host;
	pid_t pid, fs;
	char dir[96];
	int input, fd = hang_begin(w, &fs, &input);

	if (fd < 0) {
		world_end(w);
		skip();
	}
	ok(w, ptc_gpu_client_map_host(w->c, fd, HUNG_BYTES, NULL, &host, &w->o, &w->err));
	close(fd);
	world_chunks(w, 2 * MIB, false);
	seal(w);
	ok(w, world_bind(w, r, address, &e, &m));
	pid = gpu_pid(w, NULL);
	w->host = host;
	assert_int_equal(copy(w, PTC_GPU_OUT, m, world_flat(0, 0, HUNG_BYTES)), PTC_EIO);
	assert_true(w->o.unsafe);
	says(w, "does not end: it hangs in the driver: it did not answer to \"copy out\"");
	assert_int_equal(ptc_gpu_client_close(w->c, m, &w->o, &w->err), PTC_ETIMEOUT);
	assert_true(w->o.unsafe);
	says(w, "may have the memory mapped; keep it");
	works_again(w, r, address, HUNG_BYTES);
	assert_int_not_equal(gpu_pid(w, NULL), pid);

	close(input); /* the file system goes, and the process with it */
	assert_int_equal(waitpid(fs, NULL, 0), fs);
	while (ptc_gpu_client_close(w->c, m, &w->o, &w->err) == PTC_ETIMEOUT)
		usleep(1000);
	assert_false(w->o.unsafe);
	snprintf(dir, sizeof dir, "%s/fs", w->dir);
	assert_int_equal(rmdir(dir), 0);
	world_end(w);
}

struct failure {
	const char *rules;
	int status;
	enum ptc_gpu_blame blame;
	bool new_life;
	const char *says;
};

/* A copy of five tiles, in which something goes wrong. */
static void one_failure(const struct failure *f)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t bytes = 10 * MIB, address = rank_alloc(r, RANK_PLAIN, bytes, 0, 1);
	struct ptc_gpu_export e = rank_export(r, address, bytes);
	struct ptc_gpu_ref m = { 0 };
	struct ptc_gpu_stats s;
	int rc;

	world_chunks(w, 16 * MIB, false);
	seal(w);
	world_faults(w, f->rules);
	rc = world_bind(w, r, address, &e, &m);
	if (rc == 0)
		rc = copy(w, PTC_GPU_OUT, m, world_flat(0, 4096, bytes));
	if (rc != f->status || w->o.blame != f->blame)
		fail_msg("%s: %d (%s), blame %d", f->rules, rc, w->err.text, (int)w->o.blame);
	says(w, f->says);
	assert_true(is_seed(w->chunks, 0, 4096, 99));
	if (!world_has(w, "lost-0")) {
		works_again(w, r, address, bytes);
		gpu_pid(w, &s);
		assert_int_equal(s.life, f->new_life ? 2 : 1);
	} else {
		rank_end(r, SIGKILL); /* it could free nothing */
	}
	world_end(w);
}

static void test_failures(void **state)
{
	static const struct failure failures[] = {
		{ "cuDevicePrimaryCtxRetain 1 2 once", PTC_ENOMEM, PTC_GPU_BLAME_REQUEST, false, "OUT_OF_MEMORY (2)" },
		{ "cuMemHostAlloc 3 2 once", PTC_ENOMEM, PTC_GPU_BLAME_REQUEST, false, "pin 2097152 bytes" },
		{ "cuIpcOpenMemHandle 1 400 once", PTC_ESTATE, PTC_GPU_BLAME_RANK, false, "process has ended" },
		{ "cuIpcOpenMemHandle 1 801 once", PTC_ESTATE, PTC_GPU_BLAME_REQUEST, false, "does not support" },
		{ "cuMemcpyDtoHAsync 2 1 once", PTC_EIO, PTC_GPU_BLAME_REQUEST, false, "INVALID_VALUE (1)" },
		{ "cuEventSynchronize 2 214 sticky once", PTC_EIO, PTC_GPU_BLAME_DEVICE, true, "ECC_UNCORRECTABLE" },
		{ "cuEventSynchronize 1 700 sticky once", PTC_EIO, PTC_GPU_BLAME_REQUEST, true, "ILLEGAL_ADDRESS" },
		{ "cuMemcpyDtoHAsync 3 719 sticky once", PTC_EIO, PTC_GPU_BLAME_REQUEST, true, "LAUNCH_FAILED" },
		{ "cuEventRecord 1 12345 once", PTC_EIO, PTC_GPU_BLAME_REQUEST, false, "CUDA error (12345)" },
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(failures); i++)
		one_failure(&failures[i]);
}

/* The device goes away in the middle: its requests fail, in this process and the next; the other device goes on. */
static void test_lost(void **state)
{
	static const struct failure lost = { "cuEventSynchronize 2 999 lost sticky once", PTC_EIO, PTC_GPU_BLAME_DEVICE,
					     true, "see the kernel log for Xid" };
	struct world *w;
	struct test_rank *r;
	struct ptc_gpu_export e, f;
	struct ptc_gpu_ref m;
	uint64_t address;

	one_failure(&lost);

	w = world_begin(NULL);
	r = world_rank(w, 0);
	address = rank_alloc(r, RANK_PLAIN, MIB, 0, 1);
	e = rank_export(r, address, MIB);
	world_touch(w, "lost-0");
	assert_int_equal(world_bind(w, r, address, &e, &m), PTC_EIO);
	assert_int_equal(w->o.blame, PTC_GPU_BLAME_DEVICE);
	says(w, "DEVICE_UNAVAILABLE");
	rank_end(r, SIGKILL); /* its own calls fail too */
	world_chunks(w, 2 * MIB, false);
	r = world_rank(w, 1);
	address = rank_alloc(r, RANK_PLAIN, MIB, 0, 4);
	f = rank_export(r, address, MIB);
	assert_string_not_equal(f.uuid, e.uuid);
	ok(w, world_bind(w, r, address, &f, &m));
	ok(w, copy(w, PTC_GPU_OUT, m, world_flat(0, 0, MIB)));
	assert_true(is_seed(w->chunks, 0, MIB, 4));
	world_end(w);
}

/* ---- every call fails in turn ---- */

/* Whatever ptc-gpu does, once. The first status that is not 0; with a status, everything that has begun is ended. */
static int everything(struct world *w, struct test_rank *r, uint64_t plain, uint64_t vmm)
{
	struct ptc_gpu_export e = rank_export(r, plain, 9 * MIB), f = rank_export(r, vmm, MIB);
	struct ptc_gpu_part box = { 0, 4096, 1000, 20, 3, 2000, 50000, 1000, 20000 };
	struct ptc_gpu_part run = world_flat(0, 0, 100000), rows = { 0, 4096, 20000, 3, 1, 30000, 0, 40000, 0 };
	struct ptc_gpu_ref m = { 0 }, n = { 0 }, pinned = { 0 };
	struct ptc_gpu_outcome o;
	uint64_t digest;
	int rc, first = world_bind(w, r, plain, &e, &m);

	rc = world_bind(w, r, vmm, &f, &n);
	first = first ? first : rc;
	rc = ptc_gpu_client_map_host(w->c, w->chunks_fd, w->chunk_bytes, e.uuid, &pinned, &o, &w->err);
	first = first ? first : rc;
	if (m.life) {
		rc = copy(w, PTC_GPU_OUT, m, world_flat(0, 4096, 9 * MIB));
		first = first ? first : rc;
		for (uint64_t i = 0; i < 9 * MIB && first; i++) /* what was not read is not to be written */
			w->chunks[4096 + i] = test_gpu_byte(1, i);
		rc = copy(w, PTC_GPU_IN, m, world_flat(0, 4096, 9 * MIB));
		first = first ? first : rc;
		rc = ptc_gpu_client_digest(w->c, m, &box, 1, &digest, &o, &w->err);
		first = first ? first : rc;
	}
	if (m.life && pinned.life) {
		rc = ptc_gpu_client_copy(w->c, PTC_GPU_OUT, m, pinned, &box, 1, NULL, &o, &w->err);
		first = first ? first : rc;
		rc = ptc_gpu_client_copy(w->c, PTC_GPU_OUT, m, pinned, &rows, 1, NULL, &o, &w->err);
		first = first ? first : rc;
		rc = ptc_gpu_client_digest(w->c, m, &run, 1, &digest, &o, &w->err);
		first = first ? first : rc;
	}
	rc = pinned.life ? ptc_gpu_client_unmap_host(w->c, pinned, 0, &o, &w->err) : 0;
	first = first ? first : rc;
	rc = m.life ? ptc_gpu_client_close(w->c, m, &o, &w->err) : 0;
	first = first ? first : rc;
	rc = n.life ? ptc_gpu_client_close(w->c, n, &o, &w->err) : 0;
	return first ? first : rc == PTC_ENOTFOUND ? 0 : rc;
}

static bool among(const char *function, const char *const *names)
{
	for (; *names; names++)
		if (strcmp(*names, function) == 0)
			return true;
	return false;
}

/* Calls that end something: what they fail to end is left. */
static const char *const ends[] = { "cuDevicePrimaryCtxRelease",
				    "cuMemFreeHost",
				    "cuEventDestroy",
				    "cuStreamDestroy",
				    "cuMemRelease",
				    "cuIpcCloseMemHandle",
				    "cuMemUnmap",
				    "cuMemAddressFree",
				    "cuMemHostUnregister",
				    "cuMemFree",
				    "cuModuleUnload",
				    NULL };
/* Fails the nth call to a function, if it makes so many: nothing is lost but what was asked for. */
/* With several, which one takes a copy, and so the number of the driver's calls, is different each time. */
static const struct ptc_gpu_client_config one_copier = { .pinned_max = 64 * MIB, .copiers = 1, .hang_ms = 60000 };

static void torture(const char *function, unsigned nth, bool sticky)
{
	struct world *w = world_begin(&one_copier);
	struct test_rank *r = world_rank(w, 0);
	uint64_t plain = rank_alloc(r, RANK_PLAIN, 9 * MIB, 0, 1), vmm = rank_alloc(r, RANK_VMM, MIB, MIB / 4, 2);
	char rule[128];
	int rc;

	snprintf(rule, sizeof rule, "%s %u %s once\n", function, nth, sticky ? "719 sticky" : "1");
	world_faults(w, rule);
	w->may_leave = among(function, ends);
	world_chunks(w, 10 * MIB, false);
	seal(w);
	rc = everything(w, r, plain, vmm);
	/* What ptc-gpu did not end has ended with it. */
	if (!world_has(w, "faults") && rc == 0 && !among(function, ends) && strcmp(function, "cuGetErrorName") != 0)
		fail_msg("%s: nobody noticed", rule);
	if (rc && !w->err.text[0])
		fail_msg("%s: no word on why", rule);
	assert_true(is_seed(w->chunks, 0, 4096, 99));
	works_again(w, r, plain, 9 * MIB);
	world_end(w);
}

struct count {
	char function[64];
	unsigned calls;
};

/* What ptc-gpu calls when nothing fails. */
static size_t clean_run(struct count *ret, size_t max)
{
	struct world *w = world_begin(&one_copier);
	struct test_rank *r = world_rank(w, 0);
	uint64_t plain = rank_alloc(r, RANK_PLAIN, 9 * MIB, 0, 1), vmm = rank_alloc(r, RANK_VMM, MIB, MIB / 4, 2);
	char path[128];
	size_t n = 0;
	pid_t pid;
	FILE *f;

	world_chunks(w, 10 * MIB, false);
	seal(w);
	ok(w, everything(w, r, plain, vmm));
	pid = gpu_pid(w, NULL);
	ptc_gpu_client_free(w->c);
	w->c = NULL;
	snprintf(path, sizeof path, "%s/report-%d", w->dir, (int)pid);
	f = fopen(path, "r");
	assert_non_null(f);
	while (n < max && fscanf(f, "call %63s %u\n", ret[n].function, &ret[n].calls) == 2)
		n++;
	fclose(f);
	world_end(w);
	return n;
}

/* With TSan a copy takes seconds; which call fails makes no difference to the order of threads. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define TORTURED_CALLS 1u
#else
#define TORTURED_CALLS UINT_MAX
#endif

static void test_torture(void **state)
{
	struct count counts[64];
	size_t n = clean_run(counts, PTC_ARRAY_LEN(counts));
	unsigned runs = 0;

	assert_in_range(n, 25, 60);
	ptc_log_level_set(PTC_LOG_ERROR); /* each sticky one is told, rightly */
	for (size_t i = 0; i < n; i++)
		for (unsigned nth = 1; nth <= PTC_MIN(counts[i].calls, TORTURED_CALLS);
		     nth += nth < 3 ? 1 : counts[i].calls / 3) {
			torture(counts[i].function, nth, false);
			torture(counts[i].function, nth, true);
			runs += 2;
		}
	ptc_log_level_set(PTC_LOG_INFO);
	print_message("%zu functions, %u failures\n", n, runs);
}

/* ---- limits and the rest ---- */

static void test_budget(void **state)
{
	struct ptc_gpu_client_config config = { .pinned_max = 20 * MIB, .copiers = 2, .hang_ms = 60000 };
	struct world *w = world_begin(&config);
	struct test_rank *r = world_rank(w, 0), *s = world_rank(w, 1);
	uint64_t address = rank_alloc(r, RANK_PLAIN, MIB, 0, 1), there = rank_alloc(s, RANK_PLAIN, MIB, 0, 2);
	struct ptc_gpu_export e = rank_export(r, address, MIB), f = rank_export(s, there, MIB);
	struct ptc_gpu_ref m, pinned;
	struct ptc_gpu_stats stats;

	world_chunks(w, 5 * MIB, false);
	ok(w, world_bind(w, r, address, &e, &m));
	gpu_pid(w, &stats);
	assert_int_equal(stats.pinned_bytes, 16 * MIB);
	assert_int_equal(ptc_gpu_client_map_host(w->c, w->chunks_fd, 5 * MIB, e.uuid, &pinned, &w->o, &w->err),
			 PTC_ENOSPC);
	says(w, "raise the ceiling of pinned memory");
	ok(w, ptc_gpu_client_map_host(w->c, w->chunks_fd, 4 * MIB, e.uuid, &pinned, &w->o, &w->err));
	gpu_pid(w, &stats);
	assert_int_equal(stats.pinned_bytes, 20 * MIB);
	assert_int_equal(world_bind(w, s, there, &f, &m), PTC_ENOSPC); /* no room for the other device's ring */
	ok(w, ptc_gpu_client_unmap_host(w->c, pinned, 0, &w->o, &w->err));
	gpu_pid(w, &stats);
	assert_int_equal(stats.pinned_bytes, 16 * MIB);
	world_end(w);
}

/* Page-locked step by step, as it is used: a copy that crosses the end of a step, or of what is locked, has every byte.
 */
static void test_lock(void **state)
{
	struct ptc_gpu_client_config config = { .pinned_max = 16 * MIB + 9 * MIB, .copiers = 2, .hang_ms = 60000 };
	struct world *w = world_begin(&config);
	struct test_rank *r = world_rank(w, 0);
	const uint64_t bytes = 13 * MIB, step = 4 * MIB;
	uint64_t address = rank_alloc(r, RANK_PLAIN, bytes, 0, 9), locked = 0;
	struct ptc_gpu_export e = rank_export(r, address, bytes);
	struct ptc_gpu_part rows = { 0, MIB + 100, 3000, 900, 3, 3000, 2700000, 4000, 4000 * 950 };
	struct ptc_gpu_part wide = { 0, 12345, 2 * MIB, 5, 1, 2 * MIB, 10 * MIB, 2 * MIB + 4096, 10 * MIB + 5 * 4096 };
	struct ptc_gpu_stats stats;
	struct ptc_gpu_ref m;

	world_chunks(w, bytes, false);
	ok(w, world_bind(w, r, address, &e, &m));
	assert_int_equal(ptc_gpu_client_lock(w->c, w->host, e.uuid, 100, &locked, &w->o, &w->err), PTC_EINVAL);
	for (unsigned n = 0; n <= 2; n++) {
		const struct ptc_gpu_part *each[] = { &rows, &wide };

		gpu_pid(w, &stats);
		assert_int_equal(stats.pinned_bytes, 16 * MIB + n * step);
		for (size_t i = 0; i < PTC_ARRAY_LEN(each); i++) {
			const struct ptc_gpu_part *p = each[i];

			memset(w->chunks, 0, bytes);
			ok(w, copy(w, PTC_GPU_OUT, m, *p));
			for (uint64_t row = 0; row < p->height * p->depth; row++) {
				uint64_t z = row / p->height, y = row % p->height;

				assert_true(is_seed(w->chunks + p->other_at + z * p->other_slice + y * p->other_row,
						    p->device_at + z * p->device_slice + y * p->device_row, p->width,
						    9));
			}
			ok(w, copy(w, PTC_GPU_IN, m, *p));
			assert_true(rank_has(r, address, bytes, 9));
		}
		if (n < 2)
			ok(w, ptc_gpu_client_lock(w->c, w->host, e.uuid, step, &locked, &w->o, &w->err));
		assert_int_equal(locked, PTC_MIN(n + 1, 2u) * step);
	}
	assert_int_equal(ptc_gpu_client_lock(w->c, w->host, e.uuid, step, &locked, &w->o, &w->err), PTC_ENOSPC);
	says(w, "raise the ceiling of pinned memory");
	assert_int_equal(ptc_gpu_client_lock(w->c, w->host, e.uuid, 2 * step, &locked, &w->o, &w->err), PTC_EINVAL);
	ok(w, copy(w, PTC_GPU_OUT, m, world_flat(0, 0, bytes)));
	assert_true(is_seed(w->chunks, 0, bytes, 9));
	ok(w, ptc_gpu_client_unmap_host(w->c, w->host, 0, &w->o, &w->err));
	gpu_pid(w, &stats);
	assert_int_equal(stats.pinned_bytes, 16 * MIB);
	ok(w, ptc_gpu_client_close(w->c, m, &w->o, &w->err));
	world_end(w);
}

static void *unmap_in_background(void *arg)
{
	struct background *b = arg;

	b->rc = ptc_gpu_client_unmap_host(b->w->c, b->w->host, b->bytes, &b->o, &b->err);
	return NULL;
}

/* Through another map of the chunks. */
static void *copy_meanwhile(void *arg)
{
	struct background *b = arg;
	struct ptc_gpu_part p = world_flat(0, 0, b->bytes);

	b->rc = ptc_gpu_client_copy(b->w->c, PTC_GPU_OUT, b->m, b->host, &p, 1, NULL, &b->o, &b->err);
	world_touch(b->w, "copied");
	return NULL;
}

/* Page-locked memory is given back step by step: a copy that comes meanwhile does not wait for all of it. */
static void test_unlock(void **state)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_PLAIN, MIB, 0, 3), locked = 0;
	struct ptc_gpu_export e = rank_export(r, address, MIB);
	struct background u = { .w = w, .bytes = 12 * MIB }, k = { .w = w, .bytes = MIB };
	struct ptc_gpu_stats stats;

	world_chunks(w, 12 * MIB, false);
	ok(w, ptc_gpu_client_map_host(w->c, w->chunks_fd, w->chunk_bytes, NULL, &k.host, &w->o, &w->err));
	ok(w, world_bind(w, r, address, &e, &k.m));
	for (unsigned i = 1; i <= 3; i++)
		ok(w, ptc_gpu_client_lock(w->c, w->host, e.uuid, 4 * MIB, &locked, &w->o, &w->err));
	assert_int_equal(locked, 12 * MIB);
	world_faults(w, "cuMemHostUnregister 1 block\ncuMemHostUnregister 2 block2\n");
	pthread_create(&u.thread, NULL, unmap_in_background, &u);
	await_block(w);
	pthread_create(&k.thread, NULL, copy_meanwhile, &k);
	nanosleep(&(struct timespec){ .tv_nsec = 500000000 }, NULL); /* it is in the queue, which nothing shows */
	world_touch(w, "unblock");
	for (int i = 0; i < 60000 && !(world_has(w, "copied") && world_has(w, "blocked2")); i++)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	assert_true(world_has(w, "copied"));
	gpu_pid(w, &stats);
	assert_int_equal(stats.pinned_bytes, 16 * MIB + 8 * MIB);
	/* Nobody else gets a map that is about to go. */
	assert_int_equal(copy(w, PTC_GPU_OUT, k.m, world_flat(0, 0, MIB)), PTC_ENOTFOUND);
	world_touch(w, "unblock2");
	pthread_join(u.thread, NULL);
	pthread_join(k.thread, NULL);
	assert_int_equal(u.rc | k.rc, 0);
	assert_true(is_seed(w->chunks, 0, MIB, 3));
	gpu_pid(w, &stats);
	assert_int_equal(stats.pinned_bytes, 16 * MIB);
	ok(w, ptc_gpu_client_unmap_host(w->c, k.host, 0, &w->o, &w->err));
	ok(w, ptc_gpu_client_close(w->c, k.m, &w->o, &w->err));
	world_end(w);
}

/* What a ptc-gpu of an older package does not know is not asked of it: refusals of this one mean what they say. */
static void test_older(void **state)
{
	struct world *w;
	struct test_rank *r;
	struct ptc_gpu_ref m, kept, other;
	struct ptc_gpu_part p = world_flat(0, 0, MIB);
	struct ptc_gpu_export e;
	uint64_t address, locked;

	for (unsigned older = 0; older < 2; older++) {
		if (older)
			setenv("PTC_FAULT", "gpu.version.bytes=fail", 1);
		w = world_begin(NULL);
		r = world_rank(w, 0);
		address = rank_alloc(r, RANK_PLAIN, MIB, 0, 5);
		e = rank_export(r, address, MIB);
		world_chunks(w, MIB, false);
		ok(w, world_bind(w, r, address, &e, &m));
		ok(w, ptc_gpu_client_keep(w->c, e.uuid, MIB, false, &kept, &w->o, &w->err));
		r = world_rank(w, 1);
		e = rank_export(r, rank_alloc(r, RANK_PLAIN, MIB, 0, 6), MIB);
		ok(w, ptc_gpu_client_keep(w->c, e.uuid, MIB, false, &other, &w->o, &w->err));
		ok(w, ptc_gpu_client_copy_within(w->c, kept, m, &p, 1, &w->o, &w->err));
		/* Nonsense is nonsense to both. */
		assert_int_equal(ptc_gpu_client_copy_within(w->c, kept, kept, &p, 1, &w->o, &w->err), PTC_EINVAL);
		assert_int_equal(ptc_gpu_client_copy_within(w->c, other, kept, &p, 1, &w->o, &w->err),
				 older ? PTC_ENODEVICES : 0);
		assert_int_equal(ptc_gpu_client_shadow(w->c, kept, m, &p, 1, NULL, &w->o, &w->err),
				 older ? PTC_EVERSION : 0);
		assert_int_equal(ptc_gpu_client_lock(w->c, w->host, e.uuid, MIB, &locked, &w->o, &w->err),
				 older ? PTC_EVERSION : 0);
		if (older)
			says(w, "page-lock host memory: ptc-gpu is of an older package than ptcd, and cannot");
		w->may_leave = true;
		world_end(w);
		unsetenv("PTC_FAULT");
	}
}

/* A hundred times: nothing grows. */
static void test_cycles(void **state)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	struct ptc_gpu_stats first, last;
	unsigned fds = 0;
	pid_t pid = 0;

	world_chunks(w, MIB, false);
	for (unsigned i = 0; i < 100; i++) {
		enum test_rank_kind kind = i % 2 ? RANK_PLAIN : RANK_VMM;
		uint64_t address = rank_alloc(r, kind, MIB, MIB / 4, i);
		struct ptc_gpu_export e = rank_export(r, address, MIB);
		struct ptc_gpu_ref m;

		ok(w, world_bind(w, r, address, &e, &m));
		ok(w, copy(w, PTC_GPU_OUT, m, world_flat(0, 0, MIB)));
		assert_true(is_seed(w->chunks, 0, MIB, i));
		ok(w, ptc_gpu_client_close(w->c, m, &w->o, &w->err));
		rank_free(r, address);
		pid = gpu_pid(w, i ? &last : &first);
		if (i == 0)
			fds = open_fds(pid);
	}
	assert_memory_equal(&first, &last, sizeof first);
	assert_int_equal(open_fds(pid), fds);
	world_end(w);
}

struct copier {
	struct world *w;
	struct ptc_gpu_ref m;
	uint64_t at, seed;
	pthread_t thread;
};

static void *copy_often(void *arg)
{
	struct copier *c = arg;
	struct ptc_gpu_part p = world_flat(0, c->at, MIB);
	struct ptc_gpu_outcome o;
	struct ptc_error err = PTC_ERROR_INIT;

	for (int i = 0; i < 50; i++) {
		memset(c->w->chunks + c->at, 0, MIB);
		if (ptc_gpu_client_copy(c->w->c, PTC_GPU_OUT, c->m, c->w->host, &p, 1, NULL, &o, &err) ||
		    !is_seed(c->w->chunks + c->at, 0, MIB, c->seed))
			return c;
	}
	return NULL;
}

/* Callers of one client on two devices, at once. */
static void test_threads(void **state)
{
	enum { N = 8 };
	struct world *w = world_begin(NULL);
	struct test_rank *r[2] = { world_rank(w, 0), world_rank(w, 1) };
	struct copier copiers[N];

	world_chunks(w, N * MIB, false);
	for (unsigned i = 0; i < N; i++) {
		uint64_t address = rank_alloc(r[i % 2], RANK_PLAIN, MIB, 0, i);
		struct ptc_gpu_export e = rank_export(r[i % 2], address, MIB);

		copiers[i] = (struct copier){ .w = w, .at = i * MIB, .seed = i };
		ok(w, world_bind(w, r[i % 2], address, &e, &copiers[i].m));
	}
	for (unsigned i = 0; i < N; i++)
		pthread_create(&copiers[i].thread, NULL, copy_often, &copiers[i]);
	for (unsigned i = 0; i < N; i++) {
		void *wrong;

		pthread_join(copiers[i].thread, &wrong);
		assert_null(wrong);
	}
	world_end(w);
}

struct beside {
	struct world *w;
	struct ptc_gpu_ref m;
	enum ptc_gpu_direction direction;
	const char *says; /* the failure */
	uint64_t at, bytes;
	unsigned failed;
	pthread_t thread;
};

/* Out: what is there afterwards is the rank's. A failed copy is made again, as the store does. */
static void *copy_with_a_failure(void *arg)
{
	struct beside *b = arg;
	struct ptc_gpu_part p = world_flat(b->at, b->at, b->bytes);
	struct ptc_gpu_outcome o;
	struct ptc_error err = PTC_ERROR_INIT;

	for (int i = 0; i < 12; i++) {
		int rc;

		if (b->direction == PTC_GPU_OUT)
			memset(b->w->chunks + b->at, 0, b->bytes);
		rc = ptc_gpu_client_copy(b->w->c, b->direction, b->m, b->w->host, &p, 1, NULL, &o, &err);
		if (rc && (rc != PTC_EIO || !strstr(err.text, b->says)))
			return b;
		b->failed += rc != 0;
		if (!rc && b->direction == PTC_GPU_OUT && !is_seed(b->w->chunks + b->at, b->at, b->bytes, 1))
			return b;
	}
	return NULL;
}

/* A copier begins a copy while the last tiles of the one before are under way. One of them fails: in the middle, or
 * where a rule of the fake driver says so. The others do not, and have all of their bytes. */
static void fails_beside(enum ptc_gpu_direction direction, const char *rule)
{
	enum { N = 4 };
	static const uint64_t sizes[N] = { 9 * MIB, 1 * MIB, 5 * MIB + 4096, 8 * MIB };
	struct ptc_gpu_client_config config = { .pinned_max = 64 * MIB, .copiers = 1, .hang_ms = 60000 };
	struct beside beside[N];
	struct world *w;
	struct test_rank *r;
	struct ptc_gpu_export e;
	struct ptc_gpu_ref m;
	uint64_t address, at = 0, bytes = 24 * MIB;
	unsigned failed = 0;

	if (!rule)
		setenv("PTC_FAULT", "gpu.copy.middle@40=fail", 1);
	w = world_begin(&config);
	world_faults(w, rule ? rule : "");
	r = world_rank(w, 0);
	address = rank_alloc(r, RANK_PLAIN, bytes, 0, direction == PTC_GPU_OUT ? 1 : 5);
	e = rank_export(r, address, bytes);
	world_chunks(w, bytes, false);
	for (uint64_t i = 0; direction == PTC_GPU_IN && i < bytes; i++)
		w->chunks[i] = test_gpu_byte(1, i);
	ok(w, world_bind(w, r, address, &e, &m));
	for (unsigned i = 0; i < N; at += sizes[i++]) {
		beside[i] = (struct beside){ .w = w, .m = m, .direction = direction, .at = at, .bytes = sizes[i] };
		beside[i].says = rule ? "refused by the driver" : "a test's failure";
		pthread_create(&beside[i].thread, NULL, copy_with_a_failure, &beside[i]);
	}
	for (unsigned i = 0; i < N; i++) {
		void *wrong;

		pthread_join(beside[i].thread, &wrong);
		assert_null(wrong);
		failed += beside[i].failed;
	}
	assert_int_equal(failed, 1);
	if (direction == PTC_GPU_IN)
		assert_true(rank_has(r, address, at, 1));
	unsetenv("PTC_FAULT");
	world_end(w);
}

static void test_fails_beside(void **state)
{
	static const char *const rules[] = { NULL, "cuEventSynchronize 4 1 once\n", "cuEventSynchronize 17 1 once\n",
					     "cuEventSynchronize 30 1 once\n", "cuEventRecord 23 1 once\n" };

	for (size_t i = 0; i < PTC_ARRAY_LEN(rules); i++) {
		fails_beside(PTC_GPU_OUT, rules[i]);
		fails_beside(PTC_GPU_IN, rules[i]);
	}
}

/* A program that ends at once is not started for ever. */
static void test_ends_at_once(void **state)
{
	struct ptc_gpu_client_config config = { .program = "/bin/false", .hang_ms = 60000 };
	struct world *w = world_begin(&config);
	struct ptc_gpu_stats s;

	for (int i = 0; i < 5; i++) {
		assert_int_equal(ptc_gpu_client_stats(w->c, &s, &w->o, &w->err), PTC_EIO);
		says(w, "ended with status 1");
	}
	assert_int_equal(ptc_gpu_client_stats(w->c, &s, &w->o, &w->err), PTC_ESTATE);
	says(w, "ended 5 times in 60 s");
	world_end(w);
}

/* Nodes without a driver that we can use. */
static void no_driver(const char *variable, const char *value, int status, const char *words)
{
	struct world *w = world_begin(NULL);
	struct test_rank *r = world_rank(w, 0);
	uint64_t address = rank_alloc(r, RANK_PLAIN, MIB, 0, 1);
	struct ptc_gpu_export e = rank_export(r, address, MIB);
	char before[512];
	struct ptc_gpu_ref m;

	snprintf(before, sizeof before, "%s", getenv(variable) ? getenv(variable) : "");
	setenv(variable, value, 1);
	assert_int_equal(world_bind(w, r, address, &e, &m), status);
	assert_int_equal(w->o.blame, PTC_GPU_BLAME_NODE);
	says(w, words);
	if (before[0])
		setenv(variable, before, 1);
	else
		unsetenv(variable);
	world_end(w);
}

static void test_no_driver(void **state)
{
	no_driver("LD_LIBRARY_PATH", "/nonexistent", PTC_ENODEVICES, "no NVIDIA driver on this node");
	no_driver("PTC_FAKE_GPU_VERSION", "11040", PTC_EVERSION, "supports CUDA 11.4; install one that supports 12.0");
	no_driver("PTC_FAKE_GPU_VERSION", "0", PTC_ENODEVICES, "is a toolkit's stub; install the NVIDIA driver");
	no_driver("PTC_FAKE_GPU_WITHOUT", "cuMemMap", PTC_EVERSION, "has no cuMemMap of CUDA 10.2");
	no_driver("CUDA_VISIBLE_DEVICES", "-1", PTC_ENODEVICES, "the driver shows no device");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ring),
		cmocka_unit_test(test_pinned),
		cmocka_unit_test(test_lock),
		cmocka_unit_test(test_unlock),
		cmocka_unit_test(test_older),
		cmocka_unit_test(test_boxes_ring),
		cmocka_unit_test(test_boxes_pinned),
		cmocka_unit_test(test_boxes_pitch),
		cmocka_unit_test(test_without_kernels),
		cmocka_unit_test(test_within),
		cmocka_unit_test(test_peers),
		cmocka_unit_test(test_no_peers),
		cmocka_unit_test(test_borrowed),
		cmocka_unit_test(test_long_rows),
		cmocka_unit_test(test_vmm),
		cmocka_unit_test(test_vmm_misuse),
		cmocka_unit_test(test_cache),
		cmocka_unit_test(test_trainer_path),
		cmocka_unit_test(test_bad_requests),
		cmocka_unit_test(test_marks),
		cmocka_unit_test(test_mark_moves),
		cmocka_unit_test(test_rank_dead),
		cmocka_unit_test(test_killed),
		cmocka_unit_test(test_middle),
		cmocka_unit_test(test_hangs),
		cmocka_unit_test(test_cannot_be_ended),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_lost),
		cmocka_unit_test(test_torture),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_cycles),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_fails_beside),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_ends_at_once),
		cmocka_unit_test(test_no_driver),
		cmocka_unit_test(test_shadow),
	};

	if (argc == 3 && strcmp(argv[1], "--rank") == 0)
		return test_rank_main(atoi(argv[2]));
	if (argc == 3 && strcmp(argv[1], "--hungfs") == 0)
		return test_hungfs(argv[2]);
	if (argc == 2)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
