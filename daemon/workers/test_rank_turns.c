/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that turns into a program of root's: when it is asked to, a child keeps its connection to ptcd, and it
 * executes a setuid program, which has other memory at the addresses that the rank has declared. That program is this
 * one again. */
#include "daemon/workers/test_rank.h"
#include "ptc/ptc.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LIFE_S 60 /* of what a test that failed has left */

static void check(bool ok, const char *what)
{
	if (ok)
		return;
	printf("turns: %s: %s\n", what, ptc_error_text(NULL));
	fflush(stdout);
	_exit(3);
}

static void *map_page(void)
{
	void *p = mmap((void *)TEST_TURN_ADDRESS, TEST_TURN_BYTES, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	check(p == (void *)TEST_TURN_ADDRESS, "mmap");
	return p;
}

static void path_of(char path[256], const char *name)
{
	snprintf(path, 256, "%s/%s", getenv("PTC_TEST_DIR"), name);
}

static void *turn(void *arg)
{
	char path[256];

	(void)arg;
	path_of(path, "turn");
	while (access(path, F_OK) != 0)
		usleep(1000);
	if (fork() == 0) {
		alarm(LIFE_S);
		for (;;)
			pause();
	}
	path_of(path, "victim");
	execl(path, path, "--victim", getenv("PTC_TEST_DIR"), NULL);
	check(false, "exec");
	return NULL;
}

int test_rank_turns(void)
{
	struct ptc_generation gen = { .size = sizeof gen };
	struct ptc_shard_box box = { .extent = { TEST_TURN_BYTES } };
	struct ptc_tensor_desc d = { .size = sizeof d,
				     .name = "t",
				     .dtype = "U8",
				     .ndim = 1,
				     .shape = (int64_t[]){ TEST_TURN_BYTES },
				     .boxes = &box,
				     .nboxes = 1,
				     .data = map_page() };
	pthread_t thread;
	ptc_client *c;
	uint64_t step = 0;

	memset(d.data, 'r', TEST_TURN_BYTES);
	check(ptc_open(NULL, &c) == 0 && ptc_next(c, &gen) == 1, "open");
	check(ptc_tensor_declare(c, &d) == 0, "declare");
	check(pthread_create(&thread, NULL, turn, NULL) == 0, "thread");
	check(ptc_restore(c) >= 0, "restore");
	while (ptc_boundary(c, step++) == 0)
		;
	return 0;
}

int test_victim(const char *dir)
{
	char path[256];
	int fd;

	memset(map_page(), 's', TEST_TURN_BYTES);
	snprintf(path, sizeof path, "%s/turned", dir);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || geteuid() != 0)
		return 1;
	close(fd);
	alarm(LIFE_S);
	for (;;)
		pause();
}
