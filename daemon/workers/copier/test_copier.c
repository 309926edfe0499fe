/* SPDX-License-Identifier: Apache-2.0 */
/* Many callers with more memories than a copier maps, some of which cannot be mapped: each is answered, and what it is
 * told is about its own. The copier is this program too, which maps nothing and says of each request whether the map
 * that it names is the one it was given. */
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

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
	pthread_t threads[PTC_COPY_THREADS];

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

static void call(struct caller *c, const uint8_t *base, const struct ptc_slot_memory *memory)
{
	struct ptc_slot_copying copying = { .memory = { *memory, { .fd = -1 } } };
	struct iovec there = { (void *)(uintptr_t)memory->bytes, 8 }, here = { (void *)(uintptr_t)base, 8 };
	struct ptc_copy_call q = { .uuid = "u",
				   .uid = getuid(),
				   .pid = getpid(),
				   .op = PTC_COPY_READ,
				   .there = &there,
				   .here = &here,
				   .nthere = 1,
				   .nhere = 1,
				   .copying = &copying };
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
	ptc_copiers_end(&cs, unwanted, NULL);
	for (int i = 0; i < 500 && ptc_copiers_look(&cs); i++)
		usleep(10000);
	assert_false(ptc_copiers_look(&cs));
	ptc_copiers_done(&cs);
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

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(a_copy_without_memory_here_is_refused),
					    cmocka_unit_test(maps_are_given_back) };
	char self[4096];

	if (argc == 3 && strcmp(argv[0], "ptc-copy") == 0)
		return copier_main(atoi(argv[2]));
	if (!realpath("/proc/self/exe", self) || setenv("PTC_COPY", self, 1) != 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
