/* SPDX-License-Identifier: Apache-2.0 */
/* Backing files of a source in memory: their bytes, and when there are none. */
#include "fusefs/backing/backings.h"

#include "base/check.h"
#include "base/number/digest.h"
#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB   (1u << 20)
#define HEAD  100
#define ITEMS 4
#define FILES 3
#define NAPS  4000 /* of 5 ms: polls give up then */

/* One file: a head, and items of unequal sizes, one of them empty. All files have the same items; ids differ. */
static struct world {
	uint8_t *bytes; /* of the whole file */
	uint64_t sizes[ITEMS], start[ITEMS + 1], digests[ITEMS];
	uint32_t items[ITEMS];
	struct ptc_state_file sf;
	struct ptc_fs_state state;
	/* what the source and the kernel do */
	pthread_mutex_t lock;
	int read_rc, attach_rc, fds[FILES + 8], attached, detached, done, reads;
	bool fills;                     /* the source can write into a file of ours */
	int fill_rc, fill_end_rc;       /* of each call but the first; of the end */
	int fill_fd, filled, fill_ends; /* -1: no file is filled; calls; ends */
	bool fill_lies;                 /* a byte that is written is not the one that is digested */
	void *kept;
	_Atomic uint64_t total, left; /* the machine's memory */
	atomic_uint asked;            /* how often it was asked for */
	atomic_bool held, came;       /* whether the first call to the source waits; and has come */
} w = { .sizes = { 5 * MIB + 17, 0, 9 * MIB + 1, 3 }, .items = { 2, 0, 3, 1 }, .lock = PTHREAD_MUTEX_INITIALIZER };

/* Bytes of the item, in unequal pieces. */
static int source_read(void *arg, const struct ptc_fs_state *state, const struct ptc_fs_range *ranges, size_t n,
		       ptc_fs_data_fn fn, void *fn_arg, struct ptc_error *err)
{
	int rc = w.read_rc ? ptc_error_set(err, w.read_rc, "the source fails") : 0;

	(void)arg;
	assert_ptr_equal(&w.state, state);
	if (!atomic_exchange(&w.came, true))
		while (atomic_load(&w.held))
			usleep(1000);
	pthread_mutex_lock(&w.lock);
	w.reads++;
	pthread_mutex_unlock(&w.lock);
	for (size_t i = 0; !rc && i < n; i++) {
		size_t k = 0;

		while (w.items[k] != ranges[i].item)
			k++;
		for (uint64_t at = 0, part = 1000; !rc && at < ranges[i].length; at += part) {
			part = PTC_MIN(part * 3, ranges[i].length - at);
			rc = fn(fn_arg, w.bytes + w.start[k] + ranges[i].offset + at, (size_t)part, err);
		}
	}
	return rc;
}

static int fill_begin(void *arg, int fd, struct ptc_admin_fill **ret_fill, struct ptc_error *err)
{
	(void)arg;
	if (!w.fills)
		return ptc_error_set(err, PTC_EPEER, "an older source");
	w.fill_fd = dup(fd);
	*ret_fill = (struct ptc_admin_fill *)&w;
	return 0;
}

/* Writes the bytes of ranges, which follow each other in the file. */
static int fill(void *arg, const struct ptc_fs_state *state, struct ptc_admin_fill *f, uint64_t at,
		const struct ptc_fs_range *ranges, size_t n, uint64_t *ret_digests, struct ptc_error *err)
{
	int rc;

	(void)arg;
	assert_ptr_equal(&w.state, state);
	assert_ptr_equal(&w, f);
	pthread_mutex_lock(&w.lock);
	rc = w.filled++ ? w.fill_rc : 0;
	pthread_mutex_unlock(&w.lock);
	for (size_t i = 0; i < n && !(rc && i); i++) { /* one that fails has written something */
		const uint8_t *from;
		size_t k = 0;

		while (w.items[k] != ranges[i].item)
			k++;
		from = w.bytes + w.start[k] + ranges[i].offset;
		assert_int_equal(at, w.start[k] + ranges[i].offset);
		assert_int_equal(ranges[i].length, pwrite(w.fill_fd, rc ? w.bytes : from, ranges[i].length, (off_t)at));
		ret_digests[i] = ptc_digest_run(from, ranges[i].length) ^ w.fill_lies;
		at += ranges[i].length;
	}
	return rc ? ptc_error_set(err, rc, "the source cannot write") : 0;
}

static int fill_end(void *arg, struct ptc_admin_fill *f, struct ptc_error *err)
{
	(void)arg;
	assert_ptr_equal(&w, f);
	close(w.fill_fd);
	w.fill_fd = -1;
	w.fill_ends++;
	return w.fill_end_rc ? ptc_error_set(err, w.fill_end_rc, "the source still has the file") : 0;
}

static int attach(void *arg, int fd)
{
	int number;

	(void)arg;
	pthread_mutex_lock(&w.lock);
	number = w.attach_rc ? w.attach_rc : ++w.attached;
	if (number > 0)
		w.fds[number] = fd;
	pthread_mutex_unlock(&w.lock);
	return number;
}

static void detach(void *arg, int number)
{
	(void)arg;
	(void)number;
	pthread_mutex_lock(&w.lock);
	w.detached++;
	pthread_mutex_unlock(&w.lock);
}

static void done(void *arg, uint64_t id, void *keep)
{
	(void)arg;
	(void)id;
	pthread_mutex_lock(&w.lock);
	w.done++;
	w.kept = keep;
	pthread_mutex_unlock(&w.lock);
}

static int setup(void **state)
{
	uint64_t at = HEAD, seed = 1;

	(void)state;
	w.fills = w.fill_lies = false;
	w.fill_rc = w.fill_end_rc = w.filled = w.fill_ends = 0;
	w.fill_fd = -1;
	w.read_rc = w.attach_rc = w.attached = w.detached = w.done = w.reads = 0;
	atomic_store(&w.total, UINT64_C(64) << 30);
	atomic_store(&w.left, UINT64_C(64) << 30);
	atomic_store(&w.held, false);
	atomic_store(&w.came, false);
	for (size_t i = 0; i < ITEMS; i++) {
		w.start[i] = at;
		at += w.sizes[i];
	}
	w.start[ITEMS] = at;
	w.bytes = malloc(at);
	assert_non_null(w.bytes);
	for (uint64_t i = 0; i < at; i++) {
		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
		w.bytes[i] = (uint8_t)(seed >> 33);
	}
	for (size_t i = 0; i < ITEMS; i++)
		w.digests[w.items[i]] = ptc_digest_run(w.bytes + w.start[i], w.sizes[i]);
	w.sf = (struct ptc_state_file){
		.head = w.bytes, .head_len = HEAD, .items = w.items, .bytes = w.sizes, .n = ITEMS
	};
	w.state = (struct ptc_fs_state){ .job = "j", .uuid = "u", .snapshot = 7, .step = 3, .digests = w.digests };
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(w.bytes);
	return 0;
}

static void room(void *arg, uint64_t *ret_total, uint64_t *ret_free)
{
	(void)arg;
	atomic_fetch_add(&w.asked, 1);
	*ret_total = atomic_load(&w.total);
	*ret_free = atomic_load(&w.left);
}

static struct fs_backings *not_begun(uint64_t budget, size_t most_files, const char *dir)
{
	struct fs_backings_opts opts = {
		.source = { .read = source_read, .fill_begin = fill_begin, .fill = fill, .fill_end = fill_end },
		.budget = budget,
		.most_files = most_files,
		.dir = dir,
		.attach = attach,
		.detach = detach,
		.done = done,
		.room = dir ? NULL : room
	};
	struct fs_backings *b;

	assert_int_equal(0, fs_backings_new(&opts, &b, NULL));
	return b;
}

/* The kernel has taken a small file; numbers begin after it. */
static struct fs_backings *backings(uint64_t budget, const char *dir)
{
	struct fs_backings *b = not_begun(budget, FILES, dir);

	fs_backings_begin(b);
	assert_int_equal(1, w.attached);
	assert_int_equal(1, w.detached);
	w.attached = w.detached = 0;
	return b;
}

static bool want(struct fs_backings *b, uint64_t id)
{
	struct fs_backing_of of = {
		.id = id, .sf = &w.sf, .start = w.start, .size = w.start[ITEMS], .state = &w.state, .keep = &w
	};

	return fs_backings_want(b, &of);
}

/* Waits until `done` has been called so many times in all. */
static void await(int calls)
{
	bool there = false;

	for (int i = 0; i < NAPS && !there; i++) {
		pthread_mutex_lock(&w.lock);
		there = w.done >= calls;
		pthread_mutex_unlock(&w.lock);
		usleep(there ? 0 : 5000);
	}
	assert_true(there);
	assert_int_equal(calls, w.done);
	assert_ptr_equal(&w, w.kept);
}

static struct fs_backing *ready(struct fs_backings *b, uint64_t id)
{
	struct fs_backing *f = NULL;

	assert_int_equal(FS_BACKING_READY, fs_backings_find(b, id, &f));
	return f;
}

static uint64_t used(struct fs_backings *b)
{
	struct ptc_fs_backing_usage now;

	fs_backings_usage(b, &now);
	assert_int_equal(now.bytes, now.files * w.start[ITEMS]);
	return now.files;
}

static uint64_t open_bytes(struct fs_backings *b)
{
	struct ptc_fs_backing_usage now;

	fs_backings_usage(b, &now);
	return now.open;
}

static void bytes_are_right(int fd)
{
	size_t size = w.start[ITEMS];
	uint8_t *got = malloc(size + 1);

	assert_non_null(got);
	assert_int_equal(size, pread(fd, got, size + 1, 0));
	assert_memory_equal(w.bytes, got, size);
	free(got);
}

static void cannot_change(int fd)
{
	assert_int_equal(O_RDONLY, fcntl(fd, F_GETFL) & O_ACCMODE);
	assert_int_equal(-1, pwrite(fd, "x", 1, 0));
	assert_int_equal(-1, ftruncate(fd, 0));
}

static void made_in(const char *dir)
{
	struct fs_backings *b = backings(64 * MIB, dir);
	struct fs_backing *f;

	assert_int_equal(FS_BACKING_NONE, fs_backings_find(b, 5, NULL));
	assert_true(want(b, 5));
	await(1);
	assert_false(want(b, 5)); /* it is there */
	f = ready(b, 5);
	assert_int_equal(1, fs_backing_number(f));
	bytes_are_right(w.fds[1]);
	cannot_change(w.fds[1]);
	assert_int_equal(1, used(b));
	fs_backing_unref(b, f);
	fs_backings_free(b);
	assert_int_equal(1, w.detached);
}

static void test_bytes(void **state)
{
	(void)state;
	made_in(NULL);
}

static void test_folder(void **state)
{
	char dir[] = "/tmp/ptc-backings-XXXXXX";

	(void)state;
	assert_non_null(mkdtemp(dir));
	made_in(dir);
	assert_int_equal(0, rmdir(dir)); /* nothing was left in it */
}

static void refused(uint64_t budget)
{
	struct fs_backings *b = backings(budget, NULL);

	assert_true(want(b, 5));
	await(1);
	assert_int_equal(FS_BACKING_REFUSED, fs_backings_find(b, 5, NULL));
	assert_false(want(b, 5)); /* not for a while */
	assert_int_equal(0, used(b));
	fs_backings_free(b);
}

static void test_digest(void **state)
{
	(void)state;
	w.digests[3] ^= 1;
	refused(64 * MIB);
	assert_int_equal(0, w.attached);
}

static void test_source_fails(void **state)
{
	(void)state;
	w.read_rc = PTC_EPEER;
	refused(64 * MIB);
}

/* The source writes all of it, and nothing is read. */
static void test_filled(void **state)
{
	(void)state;
	w.fills = true;
	made_in(NULL);
	assert_true(w.filled > 1);
	assert_int_equal(0, w.reads);
	assert_int_equal(1, w.fill_ends);
}

/* A folder may lie on a disk, which the source must not wait for. */
static void test_folder_is_not_filled(void **state)
{
	w.fills = true;
	test_folder(state);
	assert_int_equal(0, w.filled);
}

/* Files whose items are cut at random, by a source that fills, or stops filling after its first call. */
static void test_filled_at_random(void **state)
{
	const uint64_t before[] = { w.sizes[0], w.sizes[1], w.sizes[2], w.sizes[3] };

	srand(20261128);
	for (int round = 0; round < 20; round++) {
		teardown(state);
		for (size_t i = 0; i < ITEMS; i++)
			w.sizes[i] = rand() % 4 ? (uint64_t)rand() % (6 * MIB) : (uint64_t)rand() % 3;
		setup(state);
		w.fills = true;
		w.fill_rc = round % 2 ? PTC_ELIMIT : 0;
		made_in(NULL);
		assert_true(w.filled > 0);
	}
	memcpy(w.sizes, before, sizeof before);
}

/* The source refuses in the middle, and what it had begun to write is wrong: the rest is read. */
static void test_filled_in_part(void **state)
{
	(void)state;
	w.fills = true;
	w.fill_rc = PTC_ESTATE;
	made_in(NULL);
	assert_true(w.filled > 1 && w.filled <= 5); /* nobody asks again, but threads that have begun */
	assert_true(w.reads > 0);
	assert_int_equal(1, w.fill_ends);
}

/* Nobody knows whether it still writes. */
static void test_fill_is_lost(void **state)
{
	(void)state;
	w.fills = true;
	w.fill_rc = PTC_EPEER;
	refused(64 * MIB);
	assert_int_equal(0, w.reads);
	assert_int_equal(1, w.fill_ends);
}

static void test_fill_does_not_end(void **state)
{
	(void)state;
	w.fills = true;
	w.fill_end_rc = PTC_EPEER;
	refused(64 * MIB);
	assert_int_equal(0, w.attached);
}

static void test_fill_is_wrong(void **state)
{
	(void)state;
	w.fills = w.fill_lies = true;
	refused(64 * MIB);
	assert_int_equal(0, w.attached);
}

/* It took the small file, but not this one. */
static void test_kernel_refuses(void **state)
{
	struct fs_backings *b = backings(64 * MIB, NULL);

	(void)state;
	w.attach_rc = -ELOOP;
	assert_true(want(b, 5));
	await(1);
	assert_int_equal(FS_BACKING_REFUSED, fs_backings_find(b, 5, NULL));
	fs_backings_free(b);
}

/* Nothing is copied for a kernel that would not take it, whether it was wanted before that was known or afterwards. */
static void test_kernel_takes_none(void **state)
{
	struct fs_backings *b = not_begun(64 * MIB, FILES, NULL);

	(void)state;
	w.attach_rc = -EPERM;
	assert_true(want(b, 5));
	assert_int_equal(FS_BACKING_MAKING, fs_backings_find(b, 5, NULL));
	fs_backings_begin(b);
	await(1);
	assert_int_equal(FS_BACKING_REFUSED, fs_backings_find(b, 5, NULL));
	assert_int_equal(FS_BACKING_REFUSED, fs_backings_find(b, 6, NULL));
	assert_false(want(b, 6));
	assert_int_equal(0, w.reads);
	assert_int_equal(0, used(b));
	fs_backings_free(b);
}

/* Wanted at the same time, with room for one: the first is made, whatever the second would take. */
static void test_two_at_once(void **state)
{
	struct fs_backings *b = not_begun(w.start[ITEMS], FILES, NULL);

	(void)state;
	assert_true(want(b, 1));
	assert_true(want(b, 2));
	atomic_store(&w.held, true); /* the first is still being made when the second is looked at */
	fs_backings_begin(b);
	await(1);
	assert_int_equal(FS_BACKING_REFUSED, fs_backings_find(b, 2, NULL));
	atomic_store(&w.held, false);
	await(2);
	fs_backing_unref(b, ready(b, 1));
	assert_int_equal(1, used(b));
	fs_backings_free(b);
}

/* So many descriptors: one that nobody uses makes room, one in use does not. */
static void test_most_files(void **state)
{
	struct fs_backings *b = not_begun(64 * MIB, 1, NULL);
	struct fs_backing *f;

	(void)state;
	fs_backings_begin(b);
	for (int id = 1; id <= 2; id++) {
		assert_true(want(b, (uint64_t)id));
		await(id);
		assert_int_equal(1, used(b));
	}
	f = ready(b, 2);
	assert_true(want(b, 3));
	await(3);
	assert_int_equal(FS_BACKING_REFUSED, fs_backings_find(b, 3, NULL));
	fs_backing_unref(b, f);
	fs_backings_free(b);
}

static void await_usage(struct fs_backings *b, uint64_t files, uint64_t open)
{
	bool there = false;

	for (int i = 0; i < NAPS && !there; i++) {
		there = used(b) == files && open_bytes(b) == open;
		usleep(there ? 0 : 5000);
	}
	assert_true(there);
}

/* While memory is short, files that nobody uses go by themselves, whatever else the caller waits for. One that is open
 * stays, and no new one is made. */
static void test_short(void **state)
{
	struct fs_backings *b = backings(64 * MIB, NULL);
	struct fs_backing *f;

	(void)state;
	for (int id = 1; id <= 2; id++) {
		assert_true(want(b, (uint64_t)id));
		await(id);
	}
	f = ready(b, 1);
	assert_int_equal(w.start[ITEMS], open_bytes(b));
	atomic_store(&w.left, 1);
	await_usage(b, 1, w.start[ITEMS]);
	assert_true(want(b, 3));
	await(3);
	assert_int_equal(FS_BACKING_REFUSED, fs_backings_find(b, 3, NULL));
	fs_backing_unref(b, f);
	await_usage(b, 0, 0);
	fs_backings_free(b);
}

/* Memory that becomes short ends what is being made. */
static void test_short_meanwhile(void **state)
{
	struct fs_backings *b = backings(64 * MIB, NULL);

	(void)state;
	atomic_store(&w.held, true);
	assert_true(want(b, 1));
	for (int i = 0; i < NAPS && !atomic_load(&w.came); i++)
		usleep(5000);
	assert_true(atomic_load(&w.came)); /* there was room for it */
	atomic_store(&w.left, 1);
	atomic_store(&w.asked, 0);
	for (int i = 0; i < NAPS && atomic_load(&w.asked) < 2; i++)
		usleep(5000);
	assert_true(atomic_load(&w.asked) >= 2); /* what came of the first time is done at the second */
	atomic_store(&w.held, false);
	await(1);
	assert_int_equal(FS_BACKING_REFUSED, fs_backings_find(b, 1, NULL));
	assert_int_equal(0, used(b));
	fs_backings_free(b);
}

/* The folder's room is asked of the folder, also when its path leads elsewhere. */
static void test_folder_moved(void **state)
{
	char dir[] = "/tmp/ptc-backings-XXXXXX", moved[sizeof(dir) + 8];
	struct fs_backings *b;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(moved, sizeof(moved), "%s.moved", dir);
	b = backings(64 * MIB, dir);
	assert_int_equal(0, rename(dir, moved));
	assert_true(want(b, 1));
	await(1);
	fs_backing_unref(b, ready(b, 1));
	fs_backings_free(b);
	assert_int_equal(0, rmdir(moved));
}

static void test_too_large(void **state)
{
	(void)state;
	refused(w.start[ITEMS] - 1);
}

/* Room for two: the one that was used longest ago goes, one in use never. */
static void test_eviction(void **state)
{
	struct fs_backings *b = backings(2 * w.start[ITEMS], NULL);
	struct fs_backing *f;

	(void)state;
	for (int id = 1; id <= 2; id++) {
		assert_true(want(b, (uint64_t)id));
		await(id);
	}
	fs_backing_unref(b, ready(b, 1)); /* so 2 is older */
	assert_true(want(b, 3));
	await(3);
	assert_int_equal(FS_BACKING_NONE, fs_backings_find(b, 2, NULL));
	assert_int_equal(2, used(b));
	f = ready(b, 1);
	assert_true(want(b, 2));
	await(4);
	assert_int_equal(FS_BACKING_NONE, fs_backings_find(b, 3, NULL));
	fs_backing_unref(b, ready(b, 2));
	fs_backing_unref(b, f);
	fs_backings_free(b);
}

static void test_all_in_use(void **state)
{
	struct fs_backings *b = backings(w.start[ITEMS], NULL);
	struct fs_backing *f;

	(void)state;
	assert_true(want(b, 1));
	await(1);
	f = ready(b, 1);
	assert_true(want(b, 2));
	await(2);
	assert_int_equal(FS_BACKING_REFUSED, fs_backings_find(b, 2, NULL));
	fs_backing_unref(b, f);
	fs_backings_free(b);
}

static bool gone(void *arg, const char *uuid, uint64_t snapshot, uint64_t step)
{
	assert_string_equal("u", uuid);
	assert_true(snapshot == 7 && step == 3);
	return *(bool *)arg;
}

/* A file ends with its snapshot, or with its last reader if that is later. */
static void test_gone(void **state)
{
	struct fs_backings *b = backings(64 * MIB, NULL);
	struct fs_backing *f;
	bool is = false;

	(void)state;
	assert_true(want(b, 1));
	await(1);
	f = ready(b, 1);
	fs_backings_drop(b, gone, &is);
	assert_int_equal(1, used(b));
	is = true;
	fs_backings_drop(b, gone, &is);
	bytes_are_right(w.fds[1]);
	fs_backing_unref(b, ready(b, 1)); /* others may come while it is open */
	fs_backing_unref(b, f);
	fs_backings_tend(b, 0);
	assert_int_equal(FS_BACKING_NONE, fs_backings_find(b, 1, NULL));
	assert_int_equal(0, used(b));
	assert_int_equal(1, w.detached);
	fs_backings_free(b);
}

/* The scrubber goes round in small steps. Bytes that change in memory are noticed, and nobody opens them any more. */
static void test_scrub(void **state)
{
	struct fs_backings *b = backings(64 * MIB, NULL);
	struct fs_backing *f;
	char path[64];
	int fd;

	(void)state;
	for (int id = 1; id <= 2; id++) {
		assert_true(want(b, (uint64_t)id));
		await(id);
	}
	for (int i = 0; i < 100; i++)
		fs_backings_tend(b, MIB);
	assert_int_equal(2, used(b));
	f = ready(b, 2);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", w.fds[fs_backing_number(f)]);
	fd = open(path, O_RDWR | O_CLOEXEC); /* as root: the file has no other name */
	if (fd < 0 || pwrite(fd, "x", 1, 11 * MIB) != 1) {
		if (fd >= 0)
			close(fd);
		fs_backing_unref(b, f);
		fs_backings_free(b);
		skip(); /* a memfd, which is sealed, or not root */
	}
	close(fd);
	for (int i = 0; i < 100; i++)
		fs_backings_tend(b, MIB);
	assert_int_equal(FS_BACKING_BAD, fs_backings_find(b, 2, NULL));
	assert_int_equal(FS_BACKING_READY, fs_backings_find(b, 1, NULL));
	fs_backing_unref(b, f);
	fs_backings_tend(b, 0);
	assert_int_equal(FS_BACKING_NONE, fs_backings_find(b, 2, NULL));
	fs_backings_free(b);
}

static void test_stop(void **state)
{
	struct fs_backings *b = backings(64 * MIB, NULL);

	(void)state;
	assert_true(want(b, 1));
	fs_backings_stop(b);
	await(1);
	assert_false(want(b, 2));
	fs_backings_free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_bytes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_folder, setup, teardown),
		cmocka_unit_test_setup_teardown(test_digest, setup, teardown),
		cmocka_unit_test_setup_teardown(test_source_fails, setup, teardown),
		cmocka_unit_test_setup_teardown(test_filled, setup, teardown),
		cmocka_unit_test_setup_teardown(test_folder_is_not_filled, setup, teardown),
		cmocka_unit_test_setup_teardown(test_filled_at_random, setup, teardown),
		cmocka_unit_test_setup_teardown(test_filled_in_part, setup, teardown),
		cmocka_unit_test_setup_teardown(test_fill_is_lost, setup, teardown),
		cmocka_unit_test_setup_teardown(test_fill_does_not_end, setup, teardown),
		cmocka_unit_test_setup_teardown(test_fill_is_wrong, setup, teardown),
		cmocka_unit_test_setup_teardown(test_kernel_refuses, setup, teardown),
		cmocka_unit_test_setup_teardown(test_kernel_takes_none, setup, teardown),
		cmocka_unit_test_setup_teardown(test_two_at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_most_files, setup, teardown),
		cmocka_unit_test_setup_teardown(test_short, setup, teardown),
		cmocka_unit_test_setup_teardown(test_short_meanwhile, setup, teardown),
		cmocka_unit_test_setup_teardown(test_folder_moved, setup, teardown),
		cmocka_unit_test_setup_teardown(test_too_large, setup, teardown),
		cmocka_unit_test_setup_teardown(test_eviction, setup, teardown),
		cmocka_unit_test_setup_teardown(test_all_in_use, setup, teardown),
		cmocka_unit_test_setup_teardown(test_gone, setup, teardown),
		cmocka_unit_test_setup_teardown(test_scrub, setup, teardown),
		cmocka_unit_test_setup_teardown(test_stop, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
