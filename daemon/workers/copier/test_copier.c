/* SPDX-License-Identifier: Apache-2.0 */
/* Many callers with more memories than a copier maps, some of which cannot be mapped: each is answered, and what it is
 * told is about its own. The copier is this program too, which maps nothing and says of each request whether the map
 * that it names is the one it was given. The real ptc-copy, which $PTC_COPY names, maps pages before it writes them. */
#include "daemon/workers/copier/copier.h"

#include "base/check.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define TSAN 1
#else
#define TSAN 0
#endif

#define THREADS  8
#define CALLS    2000
#define MEMORIES 40 /* the size in pages tells them apart */
#define PAGE     4096u
#define WAIT_S   120
#define NO_MAP   ENOMEM
#define WRONG    EBADF

/* ---- the copier ---- */

static struct {
	pthread_mutex_t lock;
	uint64_t bytes[PTC_COPY_MAPS]; /* 0: not mapped */
	unsigned asked;
} maps = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Every second map cannot be had. A copy says in its first address how large the memory is that it is meant for. */
static int32_t answer_to(const struct ptc_copy_request *q)
{
	int32_t error = 0;

	pthread_mutex_lock(&maps.lock);
	if (q->head.map >= PTC_COPY_MAPS)
		error = WRONG;
	else if (q->head.op == PTC_COPY_MAP && ++maps.asked % 2 == 0)
		error = NO_MAP;
	else if (q->head.op == PTC_COPY_MAP)
		maps.bytes[q->head.map] = q->head.bytes;
	else if (q->head.op == PTC_COPY_UNMAP)
		maps.bytes[q->head.map] = 0;
	else if (maps.bytes[q->head.map] != q->spans[0].at)
		error = WRONG;
	pthread_mutex_unlock(&maps.lock);
	return error;
}

static void *serve(void *arg)
{
	struct ptc_copy_answer a = { .version = PTC_COPY_VERSION };
	struct ptc_copy_request q;
	int fd = PTC_COPY_FD + (int)(intptr_t)arg;

	while (recv(fd, &q, sizeof q, 0) > 0) { /* descriptors that come with it are dropped */
		a.error = answer_to(&q);
		if (send(fd, &a, sizeof a, MSG_NOSIGNAL) != sizeof a)
			break;
	}
	return NULL;
}

static int copier_main(int n)
{
	struct ptc_copy_answer ready = { .version = PTC_COPY_VERSION };
	const char *late = getenv("PTC_TEST_LATE_MS");
	pthread_t threads[PTC_COPY_THREADS];

	if (late) /* as where groups come from another machine */
		usleep((useconds_t)atoi(late) * 1000);
	if (n < 1 || n > PTC_COPY_THREADS || send(PTC_COPY_FD, &ready, sizeof ready, 0) != sizeof ready)
		return 1;
	for (int i = 0; i < n; i++)
		if (pthread_create(&threads[i], NULL, serve, (void *)(intptr_t)i) != 0)
			return 1;
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

/* ---- its callers ---- */

struct caller {
	struct ptc_copiers *copiers;
	pthread_t thread;
	unsigned number, done, refused, wrong, failed;
};

/* Of one span of our own memory. */
static struct ptc_copy_call read_of(const struct iovec *there, const struct iovec *here,
				    struct ptc_slot_copying *copying)
{
	return (struct ptc_copy_call){ .uuid = "u",
				       .uid = getuid(),
				       .pid = getpid(),
				       .op = PTC_COPY_READ,
				       .there = there,
				       .here = here,
				       .nthere = 1,
				       .nhere = 1,
				       .copying = copying };
}

static void call(struct caller *c, const uint8_t *base, const struct ptc_slot_memory *memory)
{
	struct ptc_slot_copying copying = { .memory = { *memory, { .fd = -1 } } };
	struct iovec there = { (void *)(uintptr_t)memory->bytes, 8 }, here = { (void *)(uintptr_t)base, 8 };
	struct ptc_copy_call q = read_of(&there, &here, &copying);
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t moved;
	int error;

	if (ptc_copiers_call(c->copiers, &q, &error, &moved, &err))
		c->failed++;
	else if (error == NO_MAP)
		c->refused++;
	else
		*(error ? &c->wrong : &c->done) += 1;
}

static void *caller_main(void *arg)
{
	static const uint8_t base[8]; /* nobody copies there */
	struct caller *c = arg;
	int fd = memfd_create("test", MFD_CLOEXEC);

	for (unsigned i = 0; fd >= 0 && i < CALLS; i++) {
		unsigned which = (i * 7 + c->number * 5) % MEMORIES;
		struct ptc_slot_memory m = {
			.fd = fd, .base = base, .bytes = (which + 1) * PAGE, .dev = 1, .ino = which + 1
		};

		call(c, base, &m);
		if (i % 3 == 0)
			ptc_copiers_forget(c->copiers, "u", &m);
	}
	if (fd >= 0)
		close(fd);
	return NULL;
}

static bool unwanted(void *arg, const char *uuid)
{
	(void)arg, (void)uuid;
	return false;
}

static void end_all(struct ptc_copiers *cs)
{
	ptc_copiers_end(cs, unwanted, NULL);
	for (int i = 0; i < 500 && ptc_copiers_look(cs); i++)
		usleep(10000);
	assert_false(ptc_copiers_look(cs));
	ptc_copiers_done(cs);
}

static void maps_are_given_back(void **state)
{
	struct caller callers[THREADS] = { 0 };
	struct ptc_copiers cs;
	unsigned done = 0, refused = 0;

	alarm(WAIT_S); /* of callers who wait for ever */
	ptc_copiers_init(&cs, 0);
	for (unsigned i = 0; i < THREADS; i++) {
		callers[i] = (struct caller){ .copiers = &cs, .number = i };
		assert_int_equal(pthread_create(&callers[i].thread, NULL, caller_main, &callers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(callers[i].thread, NULL);
		assert_int_equal(callers[i].wrong, 0);
		assert_int_equal(callers[i].failed, 0);
		done += callers[i].done;
		refused += callers[i].refused;
	}
	print_message("%u copies, %u of memory that cannot be mapped\n", done, refused);
	assert_int_equal(done + refused, THREADS * CALLS);
	assert_true(done > 0 && refused > 0);
	end_all(&cs);
	alarm(0);
}

static void a_copy_without_memory_here_is_refused(void **state)
{
	struct ptc_slot_copying copying = { .memory = { { .fd = -1 }, { .fd = -1 } } };
	uint8_t byte = 0;
	struct iovec there = { &byte, 1 };
	struct ptc_copy_call q = { .uuid = "u",
				   .uid = getuid(),
				   .pid = getpid(),
				   .op = PTC_COPY_READ,
				   .there = &there,
				   .nthere = 1,
				   .copying = &copying };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_copiers cs;
	uint64_t moved;
	int error;

	ptc_copiers_init(&cs, 0);
	assert_int_equal(ptc_copiers_call(&cs, &q, &error, &moved, &err), PTC_EINTERNAL);
	assert_non_null(strstr(err.text, "uses no memory"));
	assert_false(ptc_copiers_look(&cs)); /* and no process was started for it */
	ptc_copiers_done(&cs);
}

/* The first copy starts a copier, which may take longer than the copy may. */
static void a_start_has_a_time_of_its_own(void **state)
{
	static const uint8_t base[8]; /* nobody copies there */
	int fd = memfd_create("test", MFD_CLOEXEC), error, rc[2];
	struct ptc_error err[2] = { PTC_ERROR_INIT, PTC_ERROR_INIT };

	(void)state;
	assert_true(fd >= 0 && setenv("PTC_TEST_LATE_MS", "4000", 1) == 0);
	for (int i = 0; i < 2; i++) {
		struct ptc_slot_memory m = { .fd = fd, .base = base, .bytes = PAGE, .dev = 1, .ino = 1 };
		struct ptc_slot_copying copying = { .memory = { m, { .fd = -1 } },
						    .hang_ms = i ? 60000 : 3000,
						    .start_ms = i ? 1 : 60000 };
		struct iovec there = { (void *)(uintptr_t)m.bytes, 8 }, here = { (void *)(uintptr_t)base, 8 };
		struct ptc_copy_call q = read_of(&there, &here, &copying);
		struct ptc_copiers cs;
		uint64_t moved;

		ptc_copiers_init(&cs, 60000);
		rc[i] = ptc_copiers_call(&cs, &q, &error, &moved, &err[i]);
		end_all(&cs);
	}
	unsetenv("PTC_TEST_LATE_MS");
	close(fd);
	assert_int_equal(rc[0], 0);
	assert_int_equal(rc[1], PTC_ETIMEOUT);
	assert_non_null(strstr(err[1].text, "has not become ready"));
}

/* ---- ptc-copy itself ---- */

#define ROOM_BYTES (16u << 20)

static const char *real_copier; /* its path; NULL: none was given */
static char *self;

/* Has a new ptc-copy read `from`, which is ours, to memory whose pages are in the file. Returns its page faults. */
static long faults_of(const uint8_t *from, enum ptc_copy_pages pages)
{
	int fd = memfd_create("room", MFD_CLOEXEC);
	uint8_t *room = MAP_FAILED;
	struct ptc_slot_copying copying = { .memory = { { .fd = fd, .writable = true, .bytes = ROOM_BYTES, .ino = 1 },
							{ .fd = -1 } } };
	struct iovec there = { (void *)(uintptr_t)from, ROOM_BYTES }, here = { NULL, ROOM_BYTES };
	struct ptc_copy_call q = read_of(&there, &here, &copying);
	struct ptc_error err = PTC_ERROR_INIT;
	struct rusage before, after;
	struct ptc_copiers cs;
	uint64_t moved;
	int error;

	if (fd >= 0 && ftruncate(fd, ROOM_BYTES) == 0)
		room = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(room != MAP_FAILED);
	memset(room, 1, ROOM_BYTES);
	copying.memory[0].base = here.iov_base = room;
	q.pages = pages;
	getrusage(RUSAGE_CHILDREN, &before);
	ptc_copiers_init(&cs, 0);
	assert_int_equal(ptc_copiers_call(&cs, &q, &error, &moved, &err), 0);
	assert_int_equal(error, 0);
	assert_int_equal(moved, ROOM_BYTES);
	end_all(&cs);
	getrusage(RUSAGE_CHILDREN, &after);
	assert_memory_equal(room, from, ROOM_BYTES);
	munmap(room, ROOM_BYTES);
	close(fd);
	return after.ru_minflt - before.ru_minflt;
}

/* Nobody but the kernel knows how many it maps at once, but it is more than one. */
static void pages_that_are_there_are_mapped_many_at_once(void **state)
{
	uint8_t *from = malloc(ROOM_BYTES);
	long one_by_one, many;

	(void)state;
	if (!real_copier) {
		free(from);
		skip();
	}
	assert_non_null(from);
	for (size_t i = 0; i < ROOM_BYTES; i++)
		from[i] = (uint8_t)(i * 31 >> 3);
	(void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* ptc-copy is our child, and reads our memory */
	setenv("PTC_COPY", real_copier, 1);
	one_by_one = faults_of(from, PTC_PAGES_NEW);
	many = faults_of(from, PTC_PAGES_THERE);
	setenv("PTC_COPY", self, 1);
	free(from);
	print_message("%ld page faults one by one, %ld many at once\n", one_by_one, many);
	assert_true(many <= one_by_one);
	if (!TSAN) /* which has pages of its own for each of the copier's */
		assert_true(many < (long)(ROOM_BYTES / PAGE / 2));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(a_copy_without_memory_here_is_refused),
					    cmocka_unit_test(maps_are_given_back),
					    cmocka_unit_test(a_start_has_a_time_of_its_own),
					    cmocka_unit_test(pages_that_are_there_are_mapped_many_at_once) };
	const char *given = getenv("PTC_COPY");

	if (argc == 3 && strcmp(argv[0], "ptc-copy") == 0)
		return copier_main(atoi(argv[2]));
	self = realpath("/proc/self/exe", NULL);
	real_copier = given ? strdup(given) : NULL; /* the environment's may go */
	if (!self || setenv("PTC_COPY", self, 1) != 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
