/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends: ranks are real processes that the real helper starts and that use libptc.so. This program is also their
 * program (--rank). To play a ptcd that dies, the tests free the module and make it anew.
 *
 * What a rank trains: "w" F64 [64], split over ranks along dim 0; "m" F32 [4][16], split by columns, in a buffer with
 * other bytes between; "s" F64 scalar, on every rank. Element i of each is begin(i) + step. */
#include "daemon/workers/test_rank.h"
#include "daemon/workers/group/hold/group_hold.h"
#include "daemon/workers/group/rank_groups.h"
#include "daemon/workers/group/rank_slots.h"
#include "daemon/workers/group/rank_status.h"
#include "daemon/workers/session/rank_rendezvous.h"
#include "daemon/workers/state/worker_limits.h"
#include "daemon/workers/workers.h"
#include "proto/local_messages.h"
#include "proto/local_page.h"
#include "proto/local_rules.h"
#include "ptc/ptc.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/sys/child.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define UUID  "11111111-2222-3333-4444-555555555555"
#define NW    64
#define MROWS 4
#define MCOLS 16
#define PAGE  4096
#define WAIT  (&(struct ptc_wait){ .timeout_ms = 60000 })

/* ---- the rank ------------------------------------------------------------------------ */

struct rank {
	ptc_client *c;
	struct ptc_generation gen;
	double w[NW], s;
	float m[MROWS][2 * MCOLS]; /* a rank's columns, and as much that is not the job's */
	int updates;               /* rank_updates(); 0: none */
	void *page; /* "unmaps": where a fourth tensor, "p", lies until step 3; "guards": for reading only */
	int64_t nw, ncols;
};

static double w_begin(int64_t i)
{
	return (double)i;
}
static float m_begin(int64_t r, int64_t c)
{
	return (float)(1000 + 100 * r + c);
}

static void rank_check(bool ok, ptc_client *c, const char *what)
{
	if (ok)
		return;
	printf("rank: %s: %s\n", what, ptc_error_text(c));
	fflush(stdout);
	_exit(3);
}

static void declare(struct rank *r, const char *name, const char *dtype, uint32_t ndim, const int64_t *shape,
		    const struct ptc_shard_box *box, void *data)
{
	struct ptc_tensor_desc d = { .size = sizeof d,
				     .name = name,
				     .dtype = dtype,
				     .ndim = ndim,
				     .shape = shape,
				     .boxes = box,
				     .nboxes = 1,
				     .data = data };

	rank_check(ptc_tensor_declare(r->c, &d) == 0, r->c, "declare");
}

static void rank_build(struct rank *r)
{
	struct ptc_shard_box w = { .offset = { 0 } }, m = w, s = w;

	r->nw = NW / r->gen.world;
	r->ncols = MCOLS / r->gen.world;
	for (int64_t i = 0; i < r->nw; i++)
		r->w[i] = w_begin(r->nw * r->gen.rank + i);
	for (int64_t i = 0; i < MROWS; i++)
		for (int64_t j = 0; j < 2 * MCOLS; j++)
			r->m[i][j] = j < r->ncols ? m_begin(i, r->ncols * r->gen.rank + j) : -1;
	r->s = 7;
	w.offset[0] = r->nw * r->gen.rank;
	w.extent[0] = r->nw;
	m.offset[1] = r->ncols * r->gen.rank;
	m.extent[0] = MROWS;
	m.extent[1] = r->ncols;
	m.stride[0] = sizeof r->m[0];
	m.stride[1] = sizeof r->m[0][0];
	declare(r, "w", "F64", 1, (int64_t[]){ NW }, &w, r->w);
	declare(r, "m", "F32", 2, (int64_t[]){ MROWS, MCOLS }, &m, r->m);
	declare(r, "s", "F64", 0, NULL, &s, &r->s);
	if (r->page)
		declare(r, "p", "F64", 0, NULL, &s, r->page);
}

static void rank_update(struct rank *r)
{
	for (int64_t i = 0; i < r->nw; i++)
		r->w[i]++;
	for (int64_t i = 0; i < MROWS; i++)
		for (int64_t j = 0; j < r->ncols; j++)
			r->m[i][j]++;
	r->s++;
}

static void rank_rendezvous(struct rank *r)
{
	char key[32], value[32], got[32];
	size_t len;

	snprintf(key, sizeof key, "addr/%u", r->gen.rank);
	snprintf(value, sizeof value, "here-%u-%llu", r->gen.rank, (unsigned long long)r->gen.generation);
	rank_check(ptc_rendezvous_put(r->c, key, value, strlen(value)) == 0, r->c, "put");
	for (unsigned i = 0; i < r->gen.world; i++) {
		snprintf(key, sizeof key, "addr/%u", i);
		snprintf(value, sizeof value, "here-%u-%llu", i, (unsigned long long)r->gen.generation);
		rank_check(ptc_rendezvous_get(r->c, key, got, sizeof got, &len, 20000) == 0, r->c, "get");
		rank_check(len == strlen(value) && memcmp(got, value, len) == 0, r->c, "got");
	}
}

static void rank_restored(struct rank *r, bool restored)
{
	uint64_t position, step;
	char tag[64];
	size_t len;

	if (!restored)
		return;
	rank_check(ptc_cursor_get(r->c, "train", &position, tag, sizeof tag) == 1, r->c, "cursor");
	rank_check(position == 8 * r->gen.start_step && strcmp(tag, "n=100") == 0, r->c, "cursor value");
	rank_check(ptc_blob_get(r->c, "job", PTC_BLOB_JOB, &step, sizeof step, &len) == 1, r->c, "blob");
	rank_check(step == r->gen.start_step && len == sizeof step, r->c, "blob value");
}

static void rank_set_state(struct rank *r, uint64_t step)
{
	static uint8_t big[200000];

	memset(big, (int)step, sizeof big);
	rank_check(ptc_cursor_set(r->c, "train", 8 * step, "n=100") == 0, r->c, "cursor");
	rank_check(ptc_blob_set(r->c, "job", PTC_BLOB_JOB, &step, sizeof step) == 0, r->c, "blob");
	rank_check(ptc_blob_set(r->c, "rng", PTC_BLOB_RANK, big, sizeof big) == 0, r->c, "blob");
	rank_check(ptc_report(r->c, "loss", 1.0 / (double)(step + 1)) == 0, r->c, "report");
	rank_check(ptc_report(r->c, "g\xc3\xbcte", 2) == 0 && ptc_report(r->c, "cut\xc3", 3) == 0, r->c, "report");
}

static void nap_us(long us)
{
	nanosleep(&(struct timespec){ .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 }, NULL);
}

/* Closes what it has not opened, and takes the numbers for files of its own. Exits with 42 when it is told so, and
 * these are whole. */
static void rank_closes(struct rank *r, uint64_t step)
{
	int fds[40], rc = 0;

	closefrom(3);
	for (int i = 0; i < 40; i++)
		fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	while (!rc)
		rc = ptc_boundary(r->c, ++step);
	rank_check(rc == PTC_R_SYSTEM && strstr(ptc_error_text(r->c), "closed ptc's descriptors"), r->c, "boundary");
	rank_check(ptc_next(r->c, &r->gen) == PTC_R_SYSTEM, r->c, "next");
	ptc_close(r->c);
	for (int i = 0; i < 40; i++)
		rank_check(fds[i] >= 3 && fcntl(fds[i], F_GETFD) >= 0, NULL, "a file of its own");
	_exit(42);
}

/* The state of rank 1 can be taken at every third step only. */
static int rank_later(void *arg, uint64_t step)
{
	struct rank *r = arg;

	if (r->gen.rank != 1 || step % 3 == 0)
		return 0;
	rank_check(ptc_stop_later(r->c, "in between") == 0, r->c, "later");
	return 1;
}

/* Both have their gradients of the step, and wait for each other; rank 1 finds that it cannot reach rank 0. */
static void rank_waits(struct rank *r)
{
	char path[256];

	snprintf(path, sizeof path, "%s/met", getenv("PTC_TEST_DIR"));
	if (r->gen.rank == 0) {
		close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
		while (!ptc_update_alone(r->c, 0))
			nap_us(100);
		return;
	}
	while (access(path, F_OK) != 0)
		nap_us(100);
	rank_check(ptc_update_alone(r->c, 1) == 1, NULL, "update alone");
}

/* Gives up, and has freed its memory before it ends. */
static void rank_left(struct rank *r)
{
	char path[256];

	ptc_leave(r->c);
	r->s = -1;
	snprintf(path, sizeof path, "%s/left", getenv("PTC_TEST_DIR"));
	close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	for (;;)
		pause();
}

/* What it has published lies, as it says, where nothing answers. */
static void rank_strays(uint64_t step)
{
	struct ptc_local_page *page = NULL;
	char path[256], line[512];
	void *at, *hung;
	FILE *maps = fopen("/proc/self/maps", "r");
	int fd;

	rank_check(maps != NULL, NULL, "maps");
	while (!page && fgets(line, sizeof line, maps))
		if (strstr(line, "memfd:ptc-page") && sscanf(line, "%p", &at) == 1)
			page = at;
	fclose(maps);
	snprintf(path, sizeof path, "%s/fs/w", getenv("PTC_TEST_DIR"));
	fd = open(path, O_RDWR | O_CLOEXEC);
	hung = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	rank_check(page && fd >= 0 && hung != MAP_FAILED, NULL, "mmap");
	close(fd);
	for (int i = 0; i < 2; i++) {
		atomic_store(&page->published[i].address, (uint64_t)(uintptr_t)hung);
		atomic_store(&page->published[i].bytes, 8);
		atomic_store(&page->published[i].from, step + 1);
	}
	snprintf(path, sizeof path, "%s/strayed", getenv("PTC_TEST_DIR"));
	close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	for (;;)
		pause();
}

/* 1: the generation has ended */
static void rank_train(struct rank *r, const char *how, uint64_t last)
{
	for (uint64_t step = r->gen.start_step;; step++) {
		int rc;

		if (strcmp(how, "sets") != 0)
			rank_set_state(r, step);
		rc = ptc_boundary(r->c, step);
		rank_check(rc >= 0, r->c, "boundary");
		if (rc)
			return;
		if (step == last) {
			rank_check(ptc_finish(r->c, step) >= 0, r->c, "finish");
			return;
		}
		if (strcmp(how, "crash") == 0 && step == 5 && r->gen.rank == 1) {
			printf("about to crash\n");
			fflush(stdout);
			_exit(9);
		}
		if (strcmp(how, "unmaps") == 0 && step == 2 && r->gen.rank == 1)
			rank_check(munmap(r->page, PAGE) == 0, NULL, "munmap");
		if (strcmp(how, "closes") == 0 && step == 5)
			rank_closes(r, step);
		if (strcmp(how, "hang") == 0 && step == 5)
			pause();
		if (strcmp(how, "meets") == 0 && step == 5)
			rank_waits(r);
		if (((strcmp(how, "leaves") == 0 && step == 5) || (strcmp(how, "meets") == 0 && step == 6)) &&
		    r->gen.rank == 1) {
			ptc_leave(r->c);
			printf("it leaves\n");
			fflush(stdout);
			_exit(6);
		}
		if (strcmp(how, "left") == 0 && step == 5 && r->gen.rank == 1)
			rank_left(r);
		if (strcmp(how, "strays") == 0 && step == 5 && r->gen.rank == 0)
			rank_strays(step);
		if (strcmp(how, "stuck") == 0 && step == 5)
			printf("%d", *(volatile char *)r->page); /* until the file system has gone */
		nap_us(500);
		if (strcmp(how, "clips") == 0 && r->gen.rank == 1)
			for (int64_t i = 0; i < r->nw; i++)
				r->w[i] = r->w[i] + 1 < 3 ? r->w[i] + 1 : 3;
		ptc_update_begin(r->c);
		if (r->updates)
			rank_check(pwrite(r->updates, &step, sizeof step, 0) == sizeof step, NULL, "updates");
		if (strcmp(how, "hang-in-update") == 0 && step == 5)
			pause();
		rank_update(r);
		if (strcmp(how, "twice") == 0) { /* as by another optimizer */
			nap_us(2000);
			ptc_update_begin(r->c);
		}
	}
}

static void *flicker(void *page)
{
	for (;;) {
		munmap(page, PAGE);
		nap_us(20);
		mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		nap_us(20);
	}
	return NULL;
}

/* A page that comes and goes. */
static void rank_flickers(struct rank *r)
{
	pthread_t thread;

	r->page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	rank_check(r->page != MAP_FAILED && pthread_create(&thread, NULL, flicker, r->page) == 0, NULL, "mmap");
}

/* A page of a file on a file system that hangs; of rank 0 only, as far as its ranks can tell before they are told: of
 * the first. */
static void rank_maps(struct rank *r)
{
	char path[256];
	int fd;

	snprintf(path, sizeof path, "%s/fs/w", getenv("PTC_TEST_DIR"));
	fd = strcmp(getenv("RANK"), "0") ? memfd_create("w", MFD_CLOEXEC) : open(path, O_RDWR | O_CLOEXEC);
	rank_check(fd >= 0, NULL, "open");
	if (strcmp(getenv("RANK"), "0"))
		rank_check(ftruncate(fd, PAGE) == 0, NULL, "truncate");
	r->page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	rank_check(r->page != MAP_FAILED, NULL, "mmap");
	close(fd);
}

/* A file that has the step from which the last update has begun. */
static int rank_updates(void)
{
	char path[256];
	int fd;

	snprintf(path, sizeof path, "%s/updates-%s", getenv("PTC_TEST_DIR"), getenv("RANK"));
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	rank_check(fd >= 0, NULL, "open");
	return fd;
}

/* The kernel lets nobody stop a thread that waits until its child executes a program. That of rank 1 does so only once
 * somebody writes to the file. */
static void *spawn_slowly(void *arg)
{
	char name[] = "true", *argv[] = { name, NULL }, path[256];
	posix_spawn_file_actions_t files;
	pid_t pid = -1;

	(void)arg;
	snprintf(path, sizeof path, "%s/spawns", getenv("PTC_TEST_DIR"));
	rank_check(posix_spawn_file_actions_init(&files) == 0 &&
			   posix_spawn_file_actions_addopen(&files, 0, path, O_RDONLY, 0) == 0 &&
			   posix_spawnp(&pid, argv[0], &files, NULL, argv, environ) == 0,
		   NULL, "spawn");
	waitpid(pid, NULL, 0);
	return NULL;
}

static void rank_says(const struct rank *r)
{
	printf("generation %llu step %llu\n", (unsigned long long)r->gen.generation,
	       (unsigned long long)r->gen.start_step);
	fflush(stdout);
}

static bool rank_survives(const char *how)
{
	static const char *const those[] = {
		"survives", "leaves", "meets", "twice", "left", "spawns", "clips", "strays"
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(those); i++)
		if (strcmp(how, those[i]) == 0)
			return true;
	return false;
}

static int rank_main(int argc, char **argv)
{
	const char *how = argc > 2 ? argv[2] : "";
	uint64_t last = argc > 3 ? strtoull(argv[3], NULL, 10) : UINT64_MAX;
	static struct rank r;
	int rc;

	if (strcmp(how, "early") == 0) {
		printf("cannot start\n");
		return 4;
	}
	if (strcmp(how, "raw") == 0)
		return test_rank_raw();
	if (strcmp(how, "ranges") == 0)
		return test_rank_ranges();
	if (strcmp(how, "misuse") == 0)
		return test_rank_misuse();
	if (strcmp(how, "turns") == 0)
		return test_rank_turns();
	rank_check(ptc_open(NULL, &r.c) == 0, NULL, "open");
	if (strcmp(how, "deaf") == 0)
		signal(SIGTERM, SIG_IGN);
	if (strcmp(how, "unmaps") == 0) {
		r.page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		rank_check(r.page != MAP_FAILED, NULL, "mmap");
	}
	if (strcmp(how, "guards") == 0) {
		r.page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		rank_check(r.page != MAP_FAILED, NULL, "mmap");
	}
	if (strcmp(how, "flickers") == 0)
		rank_flickers(&r);
	if (strcmp(how, "maps") == 0 || strcmp(how, "stuck") == 0)
		rank_maps(&r);
	if (strcmp(how, "survives") == 0 && getenv("PTC_TEST_DIR"))
		r.updates = rank_updates();
	if (strcmp(how, "spawns") == 0 && strcmp(getenv("RANK"), "1") == 0)
		rank_check(pthread_create(&(pthread_t){ 0 }, NULL, spawn_slowly, NULL) == 0, NULL, "thread");
	r.gen.size = sizeof r.gen;
	while ((rc = ptc_next(r.c, &r.gen)) == 1) {
		rank_rendezvous(&r);
		rank_restored(&r, r.gen.has_state); /* known before anything is declared */
		rank_build(&r);
		if (strcmp(how, "sets") == 0) /* what it has read; nothing more after that */
			rank_set_state(&r, r.gen.start_step);
		if (strcmp(how, "nonsense") == 0 && r.gen.rank == 1)
			_exit(5);
		rc = ptc_restore(r.c);
		if (rc == PTC_R_STALE)
			continue;
		rank_check(rc >= 0, r.c, "restore");
		rank_check(ptc_start_step(r.c, &r.gen.start_step) == 0, r.c, "start step");
		rank_restored(&r, rc == 1);
		rank_says(&r);
		if (rank_survives(how))
			rank_check(ptc_survive(r.c, 1) == 0, r.c, "survive");
		if (strcmp(how, "later") == 0)
			rank_check(ptc_on_stop(r.c, rank_later, &r) == 0, r.c, "on_stop");
		rank_train(&r, how, last);
	}
	rank_check(rc == 0, r.c, "next");
	if (strcmp(how, "deaf") == 0)
		for (;;)
			pause();
	ptc_close(r.c);
	if (strcmp(how, "slow") == 0)
		nap_us(1500000);
	return 0;
}

/* ---- the daemon's side ------------------------------------------------------------------ */

#define EVENT_MAX 64
static struct {
	char dir[64];
	struct ptc_workers *w;
	pthread_mutex_t lock;
	struct ptc_worker_event event[EVENT_MAX];
	size_t nevents;
	const char *device_ids;
	int64_t live, stall_ms, copy_ms;
} t = { .lock = PTHREAD_MUTEX_INITIALIZER };

static char self[256];

static void on_event(void *arg, const struct ptc_worker_event *event)
{
	(void)arg;
	pthread_mutex_lock(&t.lock);
	if (t.nevents < EVENT_MAX)
		t.event[t.nevents++] = *event;
	pthread_mutex_unlock(&t.lock);
}

static bool has_event(enum ptc_worker_event_kind kind, struct ptc_worker_event *ret)
{
	bool found = false;

	for (int i = 0; i < 30000 && !found; i++) {
		pthread_mutex_lock(&t.lock);
		for (size_t j = 0; j < t.nevents; j++)
			if (t.event[j].kind == kind) {
				*ret = t.event[j];
				found = true;
			}
		pthread_mutex_unlock(&t.lock);
		if (!found)
			nap_us(1000);
	}
	return found;
}

static void forget_event(void)
{
	pthread_mutex_lock(&t.lock);
	t.nevents = 0;
	pthread_mutex_unlock(&t.lock);
}

static void ok(int rc, const struct ptc_error *err)
{
	if (rc)
		print_error("%s: %s\n", ptc_status_name(rc), err->text);
	assert_int_equal(rc, 0);
}

static void up(void)
{
	struct ptc_workers_env env = { .node = "n0",
				       .dir = t.dir,
				       .cgroup = "",
				       .device_ids = t.device_ids,
				       .stall_ms = t.stall_ms,
				       .copy_ms = t.copy_ms,
				       .event = on_event };
	struct ptc_error err = PTC_ERROR_INIT;

	ok(ptc_workers_new(&env, &t.w, &err), &err);
}

static int setup(void **state)
{
	(void)state;
	snprintf(t.dir, sizeof t.dir, "%s/ptc-workers-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(t.dir));
	t.nevents = 0;
	t.live = ptc_alloc_live();
	up();
	return 0;
}

static int setup_devices(void **state)
{
	t.device_ids = "GPU-0,GPU-1,GPU-2";
	return setup(state);
}

static int setup_stall(void **state)
{
	t.stall_ms = 300;
	return setup(state);
}

static bool processes_left(void)
{
	char *json = NULL;
	bool left;

	if (ptc_workers_json(t.w, UUID, &json, NULL))
		return true;
	left = strstr(json, "\"pid\"") != NULL; /* the others have only a log here */
	ptc_free(json);
	return left;
}

static unsigned ranks_in(const char *state)
{
	char *json = NULL, said[40];
	int len = snprintf(said, sizeof said, "\"state\":\"%s\"", state);
	unsigned n = 0;

	if (ptc_workers_json(t.w, UUID, &json, NULL))
		return 0;
	for (const char *at = json; (at = strstr(at, said)); at += len)
		n++;
	ptc_free(json);
	return n;
}

/* Every process that began has its end written down: none is left, nor a helper that still writes. */
static bool all_exited(void)
{
	char path[512];
	struct dirent *e;
	bool all = true;
	DIR *d;

	snprintf(path, sizeof path, "%s/" UUID "/processes", t.dir);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		snprintf(path, sizeof path, "%s/" UUID "/processes/%.32s/process", t.dir, e->d_name);
		if (access(path, F_OK) != 0)
			continue;
		snprintf(path, sizeof path, "%s/" UUID "/processes/%.32s/exit", t.dir, e->d_name);
		all &= access(path, F_OK) == 0;
	}
	if (d)
		closedir(d);
	return all;
}

static int teardown(void **state)
{
	int rc = -1;

	(void)state;
	ptc_workers_drop(t.w, UUID, NULL, 0, false);
	for (int i = 0; i < 30000 && (processes_left() || !all_exited()); i++)
		nap_us(1000);
	assert_false(processes_left());
	assert_true(all_exited());
	t.w = ptc_workers_free(t.w);
	t.device_ids = NULL;
	for (int i = 0; i < 1000 && rc; i++) {
		rc = ptc_sys_remove_tree(t.dir, "test", NULL);
		nap_us(1000);
	}
	assert_int_equal(rc, 0);
	assert_int_equal(ptc_alloc_live(), t.live);
	return 0;
}

struct group {
	struct ptc_group_desc desc;
	struct ptc_group_rank ranks[8];
	const char *argv[6], *env[3];
};

static struct group *group(unsigned world, uint64_t generation, enum ptc_worker_mode mode, const char *how,
			   const char *last)
{
	static struct group all[16];
	static size_t n;
	struct group *g = &all[n++ % 16];

	memset(g, 0, sizeof *g);
	g->argv[0] = self;
	g->argv[1] = "--rank";
	g->argv[2] = how;
	g->argv[3] = last;
	g->env[0] = "LANG=C";
	for (unsigned i = 0; i < world; i++)
		g->ranks[i] = (struct ptc_group_rank){ .rank = i, .local_rank = i, .device = i, .dp = i };
	g->desc = (struct ptc_group_desc){ .key = { UUID, generation, 1 },
					   .job = "test",
					   .uid = geteuid(),
					   .mode = mode,
					   .grace_ms = 4000,
					   .argv = g->argv,
					   .env = g->env,
					   .cwd = "/",
					   .config = "dp=2",
					   .degrees = { 1, 1, world, 1, 1, 1 },
					   .world = world,
					   .nodes = 1,
					   .ranks = g->ranks,
					   .nranks = world,
					   .rank0_node = "n0",
					   .rank0_address = "nowhere" };
	return g;
}

struct state {
	double w[NW], s;
	float m[MROWS][MCOLS];
	uint64_t blob_step, position;
	bool blobs, own; /* "job"; "rng" */
};

/* Memory that a process which copies can be given, for an operation of its own. */
struct room {
	struct ptc_slot_copying copying;
	uint8_t *map;
	size_t bytes;
};

static void room_open(struct room *r, const struct ptc_slot_view *v, size_t bytes)
{
	struct ptc_error err = PTC_ERROR_INIT;
	int fd = memfd_create("room", MFD_CLOEXEC);

	*r = (struct room){ .bytes = bytes };
	assert_true(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	r->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(r->map != MAP_FAILED);
	r->copying.memory[0] =
		(struct ptc_slot_memory){ .fd = fd, .writable = true, .once = true, .base = r->map, .bytes = bytes };
	r->copying.memory[1].fd = -1;
	ok(ptc_slot_copying_init(v, &r->copying, &err), &err);
}

static void room_close(struct room *r, const struct ptc_slot_view *v)
{
	ptc_slot_copying_done(v, &r->copying);
	munmap(r->map, r->bytes);
	close(r->copying.memory[0].fd);
}

static size_t bytes_of(const struct iovec *v, size_t n)
{
	size_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += v[i].iov_len;
	return sum;
}

/* Through such memory, where ours may be any. */
static int slot_io(const struct ptc_slot_view *v, const struct iovec *remote, size_t nremote, const struct iovec *local,
		   size_t nlocal, bool writing, struct ptc_error *err)
{
	struct iovec in[64];
	struct room r;
	uint8_t *at;
	int rc;

	assert_true(nlocal <= 64);
	room_open(&r, v, bytes_of(local, nlocal) + 1);
	at = r.map;
	for (size_t i = 0; i < nlocal; at += local[i++].iov_len) {
		in[i] = (struct iovec){ at, local[i].iov_len };
		memcpy(at, local[i].iov_base, local[i].iov_len);
	}
	rc = ptc_slot_copy(v, writing ? PTC_COPY_WRITE : PTC_COPY_READ, &r.copying, remote, nremote, in, nlocal,
			   writing ? PTC_PAGES_MAPPED : PTC_PAGES_NEW, err);
	for (size_t i = 0; i < nlocal; i++)
		memcpy(local[i].iov_base, in[i].iov_base, local[i].iov_len);
	room_close(&r, v);
	return rc;
}

static int slot_read(const struct ptc_slot_view *v, const struct iovec *remote, size_t nremote,
		     const struct iovec *local, size_t nlocal, struct ptc_error *err)
{
	return slot_io(v, remote, nremote, local, nlocal, false, err);
}

static int slot_write(const struct ptc_slot_view *v, const struct iovec *remote, size_t nremote,
		      const struct iovec *local, size_t nlocal, struct ptc_error *err)
{
	return slot_io(v, remote, nremote, local, nlocal, true, err);
}

static void touch(const struct ptc_slot_view *v, struct state *s, bool writing)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct iovec remote[64], local[64];
	size_t n = 0;

	for (size_t i = 0; i < v->ntensors; i++) {
		const struct ptc_slot_tensor *x = &v->tensors[i];
		const struct ptc_slot_region *r = &x->regions[0];

		assert_int_equal(x->nregions, 1);
		if (strcmp(x->name, "w") == 0) {
			remote[n] = (struct iovec){ (void *)(uintptr_t)r->address, (size_t)r->box.ext[0] * 8 };
			local[n++].iov_base = s->w + r->box.off[0];
		} else if (strcmp(x->name, "s") == 0) {
			assert_int_equal(x->ndim, 0);
			remote[n] = (struct iovec){ (void *)(uintptr_t)r->address, 8 };
			local[n++].iov_base = &s->s;
		} else {
			assert_string_equal(x->name, "m");
			assert_int_equal(r->stride[1], 4);
			for (int64_t row = 0; row < r->box.ext[0]; row++) {
				remote[n] = (struct iovec){ (void *)(uintptr_t)(r->address +
										(uint64_t)(row * r->stride[0])),
							    (size_t)r->box.ext[1] * 4 };
				local[n++].iov_base = &s->m[row][r->box.off[1]];
			}
		}
	}
	for (size_t i = 0; i < n; i++)
		local[i].iov_len = remote[i].iov_len;
	ok(writing ? slot_write(v, remote, n, local, n, &err) : slot_read(v, remote, n, local, n, &err), &err);
}

static int fill_rows(const struct ptc_slot_view *v, struct ptc_slot_filling *f, int fd,
		     const struct ptc_slot_rows *rows, size_t n, struct ptc_error *err)
{
	return ptc_slot_fill(v, f, fd, &(struct ptc_slot_order){ .rows = rows, .nrows = n }, NULL, err);
}

/* The rank compares what it reads with checksums: a bit that flips in the file, before it reads, is found. Then it
 * reads all of it once more. */
static void touch_summed(const struct ptc_slot_view *v, struct ptc_slot_filling *f, int rw,
			 const struct ptc_slot_rows *rows, size_t n)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_chunk_sums chunk = { .at = 0 };
	struct ptc_slot_order order = { rows, &chunk, n, 1 };
	uint8_t *bytes = calloc(1, PTC_CHUNK_BYTES), bad;

	assert_int_equal(ftruncate(rw, PTC_CHUNK_BYTES), 0);
	assert_int_equal(pread(rw, bytes, PTC_CHUNK_BYTES, 0), PTC_CHUNK_BYTES);
	for (size_t b = 0; b < PTC_ARRAY_LEN(chunk.sums); b++)
		chunk.sums[b] = ptc_checksum(bytes + b * PTC_BLOCK_BYTES,
					     PTC_MIN(PTC_BLOCK_BYTES, PTC_CHUNK_BYTES - b * PTC_BLOCK_BYTES));
	for (int round = 0; round < 3; round++) {
		bad = bytes[rows[0].offset] ^ (round == 1 ? 1 : 0);
		assert_int_equal(pwrite(rw, &bad, 1, (off_t)rows[0].offset), 1);
		ok(ptc_slot_fill(v, f, rw, &order, NULL, &err), &err);
		ok(ptc_slot_filled(v, f, NULL, &err), &err);
		assert_false(f->failed);
		assert_int_equal(f->damaged, round == 1);
	}
	free(bytes);
}

/* What `touch` writes, read by the rank out of a file: all that it has declared, m by its rows at once. */
static void touch_by_file(const struct ptc_slot_view *v, const struct state *s)
{
	struct ptc_slot_filling f = { 0 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_rows rows[4];
	char path[64];
	size_t n = 0;
	int rw = memfd_create("state", MFD_CLOEXEC), fd;

	assert_true(rw >= 0 && write(rw, s, sizeof *s) == (ssize_t)sizeof *s);
	snprintf(path, sizeof path, "/proc/self/fd/%d", rw);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	for (size_t i = 0; i < v->ntensors; i++) {
		const struct ptc_slot_tensor *x = &v->tensors[i];
		const struct ptc_slot_region *r = &x->regions[0];
		const void *from = strcmp(x->name, "w") == 0   ? (const void *)(s->w + r->box.off[0])
				   : strcmp(x->name, "s") == 0 ? (const void *)&s->s
							       : (const void *)&s->m[0][r->box.off[1]];

		rows[n] = (struct ptc_slot_rows){ .address = r->address,
						  .offset = (uint64_t)((const char *)from - (const char *)s),
						  .bytes = x->ndim == 1 ? (uint64_t)r->box.ext[0] * 8 : 8,
						  .count = 1 };
		if (x->ndim == 2) {
			rows[n].bytes = (uint64_t)r->box.ext[1] * 4;
			rows[n].count = (uint64_t)r->box.ext[0];
			rows[n].address_step = (uint64_t)r->stride[0];
			rows[n].offset_step = sizeof s->m[0];
		}
		n++;
	}
	for (size_t i = 0; i < n; i++) /* one message each, so that there are several on the way */
		ok(fill_rows(v, &f, fd, &rows[i], 1, &err), &err);
	ok(ptc_slot_filled(v, &f, NULL, &err), &err);
	assert_false(f.failed);
	rows[0].address += rows[0].bytes * (1u << 20);
	assert_int_equal(fill_rows(v, &f, fd, rows, 1, &err), PTC_EINTERNAL);
	close(fd);
	rows[0].address -= rows[0].bytes * (1u << 20);
	if (v->verifies)
		touch_summed(v, &f, rw, rows, n);
	/* What is behind the file's end is not there; the rank says so, and what we write then is what it has. */
	assert_int_equal(ftruncate(rw, 1), 0);
	ok(fill_rows(v, &f, rw, rows, 1, &err), &err);
	ok(ptc_slot_filled(v, &f, NULL, &err), &err);
	assert_true(f.failed);
	close(rw);
}

static void take_blobs(const struct ptc_slot_view *v, struct state *s)
{
	for (size_t i = 0; i < v->nblobs; i++)
		if (strcmp(v->blobs[i].name, "job") == 0) {
			memcpy(&s->blob_step, v->blobs[i].data, sizeof s->blob_step);
			s->blobs = true;
		} else {
			assert_int_equal(v->blobs[i].len, 200000);
			s->own = true;
		}
	for (size_t i = 0; i < v->ncursors; i++)
		s->position = v->cursors[i].position;
}

static void read_state(const struct group *g, enum ptc_slot_state expect, struct state *s)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *v;
	size_t n;

	memset(s, 0, sizeof *s);
	ok(ptc_workers_slots(t.w, &g->desc.key, &v, &n, &err), &err);
	assert_int_equal(n, g->desc.nranks);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(v[i].state, expect);
		assert_int_equal(v[i].ntensors, 3);
		touch(&v[i], s, false);
		take_blobs(&v[i], s);
	}
	ptc_workers_slots_done(t.w, v, n);
}

static void check_state(const struct state *s, uint64_t step)
{
	for (int64_t i = 0; i < NW; i++)
		assert_true(s->w[i] == w_begin(i) + (double)step);
	for (int64_t i = 0; i < MROWS; i++)
		for (int64_t j = 0; j < MCOLS; j++)
			assert_true(s->m[i][j] == m_begin(i, j) + (float)step);
	assert_true(s->s == 7 + (double)step);
}

#define WORLD_MAX 8
/* What ranks have carried at a step. Until the next call. */
static const struct ptc_rank_state *rank_states(const struct ptc_group_desc *desc, const struct state *s, uint64_t at)
{
	static char job[] = "job", train[] = "train", tag[] = "n=100";
	static struct ptc_rank_state of[WORLD_MAX];
	static struct ptc_slot_cursor cursor;
	static struct ptc_slot_blob blob;
	static uint64_t step;

	step = at;
	blob = (struct ptc_slot_blob){ .name = job, .scope = PTC_BLOB_JOB, .data = &step, .len = sizeof step };
	cursor = (struct ptc_slot_cursor){ .name = train, .tag = tag, .position = 8 * step };
	assert_true(desc->nranks <= WORLD_MAX);
	for (size_t i = 0; i < desc->nranks; i++)
		of[i] = (struct ptc_rank_state){ &blob, &cursor, 1, 1 };
	return s ? of : NULL;
}

/* What the agent does: fills what is declared, then lets the ranks go. */
static void go(const struct group *g, struct state *s, uint64_t step)
{
	struct ptc_error err = PTC_ERROR_INIT;
	const struct ptc_rank_state *of = rank_states(&g->desc, s, step);
	struct ptc_slot_view *v;
	size_t n;

	ok(ptc_workers_slots(t.w, &g->desc.key, &v, &n, &err), &err);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(v[i].state, PTC_SLOT_DECLARED);
		if (s && i % 2)
			touch_by_file(&v[i], s);
		else if (s)
			touch(&v[i], s, true);
		ok(ptc_slot_go(&v[i], s, of ? of->blobs : NULL, of ? 1 : 0, of ? of->cursors : NULL, of ? 1 : 0, &err),
		   &err);
	}
	ptc_workers_slots_done(t.w, v, n);
}

static void start_generation(const struct group *g, struct state *s, uint64_t step)
{
	struct ptc_error err = PTC_ERROR_INIT;

	ok(ptc_workers_start(t.w, &g->desc, WAIT, &err), &err);
	ok(ptc_workers_build(t.w, &g->desc, step, s, rank_states(&g->desc, s, step), WAIT, &err), &err);
	go(g, s, step);
}

/* Both rounds, as the controller makes them. Returns where all are held. */
static uint64_t stop(const struct group *g, uint64_t at)
{
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t step;
	bool passed;

	ok(ptc_workers_arm(t.w, &g->desc.key, at, &passed, &step, &err), &err);
	if (passed) {
		at = step + 1;
		ok(ptc_workers_arm(t.w, &g->desc.key, at, &passed, &step, &err), &err);
		assert_false(passed);
	}
	ok(ptc_workers_wait_stopped(t.w, &g->desc.key, at, NULL, WAIT, &err), &err);
	return at;
}

static void release_beyond(const struct group *g, uint64_t since, uint32_t leave_out)
{
	struct ptc_error err = PTC_ERROR_INIT;

	ok(ptc_workers_release(t.w, &g->desc.key, since, leave_out, &err), &err);
}

static void release(const struct group *g)
{
	release_beyond(g, 0, 0);
}

static void end(const struct group *g)
{
	struct ptc_error err = PTC_ERROR_INIT;

	ok(ptc_workers_end(t.w, &g->desc.key, WAIT, &err), &err);
}

/* ---- tests ------------------------------------------------------------------------------ */

static void life(enum ptc_worker_mode mode, bool fast)
{
	struct group *a = group(2, 1, mode, "", NULL), *b = group(4, 2, mode, "", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct state s;
	uint64_t at, later;

	a->desc.fast_copy = b->desc.fast_copy = fast;
	start_generation(a, NULL, 0);
	at = stop(a, 10);
	read_state(a, PTC_SLOT_STOPPED, &s);
	check_state(&s, at);
	assert_true(s.blobs && s.blob_step == at && s.position == 8 * at);
	release(a);
	ok(ptc_workers_start(t.w, &b->desc, WAIT, &err), &err); /* ahead: a still runs */
	later = stop(a, at + 1);
	assert_true(later > at);
	read_state(a, PTC_SLOT_STOPPED, &s);
	check_state(&s, later);
	end(a);
	ok(ptc_workers_build(t.w, &b->desc, later, true, rank_states(&b->desc, &s, later), WAIT, &err), &err);
	go(b, &s, later);
	at = stop(b, later + 7);
	read_state(b, PTC_SLOT_STOPPED, &s);
	check_state(&s, at);
	assert_int_equal(s.blob_step, at);
	/* and to fewer */
	a = group(1, 3, mode, "", NULL);
	ok(ptc_workers_start(t.w, &a->desc, WAIT, &err), &err);
	end(b);
	ok(ptc_workers_build(t.w, &a->desc, at, true, rank_states(&a->desc, &s, at), WAIT, &err), &err);
	go(a, &s, at);
	ptc_workers_drop(t.w, UUID, &a->desc.key, 1, false);
	at = stop(a, at + 5);
	read_state(a, PTC_SLOT_STOPPED, &s);
	check_state(&s, at);
	assert_int_equal(t.nevents, 0);
}

/* To fewer ranks and to more again, over and over: that a process which is not needed any more takes its time to exit
 * is nobody's failure. Groups come and go meanwhile, and get each other's memory. */
static void test_life_slow_exit(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "slow", NULL), *next;
	struct state s;
	uint64_t at = 0;
	char path[160];

	(void)state;
	start_generation(g, NULL, 0);
	for (uint64_t i = 2; i < 50; i++) {
		at = stop(g, at + 1);
		read_state(g, PTC_SLOT_STOPPED, &s);
		next = group(i % 4 == 3 ? 2 : i % 2 ? 4 : 1, i, PTC_MODE_REBUILD, "slow", NULL);
		ok(ptc_workers_start(t.w, &next->desc, WAIT, &err), &err);
		end(g);
		ok(ptc_workers_build(t.w, &next->desc, at, true, rank_states(&next->desc, &s, at), WAIT, &err), &err);
		go(next, &s, at);
		ptc_workers_drop(t.w, UUID, &next->desc.key, 1, false);
		snprintf(path, sizeof path, "%s/" UUID "/groups/%d-1", t.dir, (int)i - 1);
		for (int k = 0; k < 30000 && access(path, F_OK) == 0; k++)
			nap_us(1000);
		g = next;
	}
	at = stop(g, at + 1);
	read_state(g, PTC_SLOT_STOPPED, &s);
	check_state(&s, at);
}

static void test_life_restart(void **state)
{
	(void)state;
	life(PTC_MODE_RESTART, false);
}

static void test_life_rebuild(void **state)
{
	(void)state;
	life(PTC_MODE_REBUILD, false);
}

static void test_life_fast(void **state)
{
	(void)state;
	life(PTC_MODE_REBUILD, true);
}

/* The next generation is built, with the state of a first stop, while the first one trains on to a second. What it goes
 * on with is that of the second, and nothing of the first is left: neither what ranks were told while they built, nor
 * what they have set then. What no snapshot has stays as it was set. */
static void test_life_ahead(void **state)
{
	struct group *a = group(2, 1, PTC_MODE_RESTART, "", NULL), *b = group(4, 2, PTC_MODE_RESTART, "sets", NULL);
	struct ptc_group_key keep[2] = { a->desc.key, b->desc.key };
	struct ptc_error err = PTC_ERROR_INIT;
	struct state s;
	uint64_t at, later;
	char path[160];

	(void)state;
	start_generation(a, NULL, 0);
	at = stop(a, 5);
	read_state(a, PTC_SLOT_STOPPED, &s);
	release(a);
	ok(ptc_workers_start(t.w, &b->desc, WAIT, &err), &err);
	ok(ptc_workers_build(t.w, &b->desc, at, true, rank_states(&b->desc, &s, at), WAIT, &err), &err);
	ptc_workers_drop(t.w, UUID, keep, 2, false); /* as after a snapshot */
	later = stop(a, at + 5);
	assert_true(later > at);
	read_state(a, PTC_SLOT_STOPPED, &s);
	check_state(&s, later);
	ptc_workers_tell_end(t.w, &a->desc.key);
	ok(ptc_workers_start_step(t.w, &b->desc.key, later, &err), &err);
	go(b, &s, later);
	at = stop(b, later + 3);
	read_state(b, PTC_SLOT_STOPPED, &s);
	check_state(&s, at);
	assert_true(s.blobs && s.blob_step == later && s.position == 8 * later && s.own);
	snprintf(path, sizeof path, "%s/" UUID "/groups/1-1", t.dir);
	for (int k = 0; k < 30000 && access(path, F_OK) == 0; k++)
		nap_us(1000);
	assert_int_equal(access(path, F_OK), -1); /* its ranks have exited */
	assert_int_equal(ptc_workers_start_step(t.w, &a->desc.key, 1, &err), PTC_ENOTFOUND);
	assert_int_equal(ptc_workers_start_step(t.w, &b->desc.key, UINT64_MAX, &err), PTC_EINVAL);
	assert_int_equal(t.nevents, 0);
}

/* Ranks that go on from a step are to stop before they have come to their first boundary: that is where they stop. */
static void test_stop_before_first_boundary(void **state)
{
	struct group *a = group(2, 1, PTC_MODE_RESTART, "", NULL), *b = group(2, 2, PTC_MODE_RESTART, "", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t at, step;
	struct state s;
	bool passed;

	(void)state;
	start_generation(a, NULL, 0);
	at = stop(a, 5);
	read_state(a, PTC_SLOT_STOPPED, &s);
	end(a);
	ok(ptc_workers_start(t.w, &b->desc, WAIT, &err), &err);
	ok(ptc_workers_build(t.w, &b->desc, at, true, rank_states(&b->desc, &s, at), WAIT, &err), &err);
	ok(ptc_workers_arm(t.w, &b->desc.key, 0, &passed, &step, &err), &err);
	assert_true(passed);
	assert_int_equal(step, at - 1);
	go(b, &s, at);
	assert_int_equal(stop(b, step + 1), at);
	read_state(b, PTC_SLOT_STOPPED, &s);
	check_state(&s, at);
}

/* A stop at which the state of one rank cannot be taken moves on for all, by as many boundaries as it takes. */
static void test_life_later(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "later", NULL);
	char later[PTC_WORKERS_LATER_MAX];
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t at, first, step;
	struct state s;
	bool passed;

	(void)state;
	start_generation(g, NULL, 0);
	for (int moves = 0; moves < 6;) {
		ok(ptc_workers_arm(t.w, &g->desc.key, 1, &passed, &step, &err), &err);
		for (first = at = passed ? step + 1 : 1;; at++, moves++) {
			ok(ptc_workers_arm(t.w, &g->desc.key, at, &passed, &step, &err), &err);
			assert_false(passed);
			ok(ptc_workers_wait_stopped(t.w, &g->desc.key, at, later, WAIT, &err), &err);
			if (!*later)
				break;
			assert_string_equal(later, "rank 1: in between");
			assert_true(at % 3 != 0 && at < first + 2);
		}
		assert_int_equal(at % 3, 0);
		read_state(g, PTC_SLOT_STOPPED, &s);
		check_state(&s, at);
		release(g);
	}
	ok(ptc_workers_arm(t.w, &g->desc.key, 1, &passed, &step, &err), &err);
	at = step + 1;
	ok(ptc_workers_arm(t.w, &g->desc.key, at, &passed, &step, &err), &err);
	if (at % 3 == 0)
		at = stop(g, at) + 1;
	ok(ptc_workers_arm(t.w, &g->desc.key, at, &passed, &step, &err), &err);
	assert_false(passed);
	/* of a controller that does not move stops */
	assert_int_equal(ptc_workers_wait_stopped(t.w, &g->desc.key, at, NULL, WAIT, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "rank 1 refuses at step"));
	assert_non_null(strstr(err.text, ": in between"));
}

/* What was copied when the rank stopped is read while it trains on; at its next stop it waits for the reader. */
static void test_copied(void **state)
{
	struct group *g = group(1, 1, PTC_MODE_REBUILD, "", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *v = NULL;
	struct ptc_wait little = { .timeout_ms = 100 };
	uint64_t at = 0, step;
	struct state s;
	bool passed;
	size_t n = 0;

	(void)state;
	g->desc.fast_copy = true;
	start_generation(g, NULL, 0);
	for (int i = 0; i < 200 && !(v && v[0].copied); i++) { /* the memory is made in the background */
		if (v) {
			ptc_workers_slots_done(t.w, v, n);
			release(g);
		}
		at = stop(g, at + 3);
		ok(ptc_workers_slots(t.w, &g->desc.key, &v, &n, &err), &err);
	}
	assert_true(v[0].copied);
	release(g);
	ok(ptc_workers_arm(t.w, &g->desc.key, at + 20, &passed, &step, &err), &err);
	assert_int_equal(ptc_workers_wait_stopped(t.w, &g->desc.key, at + 20, NULL, &little, &err), PTC_ETIMEOUT);
	memset(&s, 0, sizeof s);
	touch(&v[0], &s, false);
	check_state(&s, at);
	ptc_workers_slots_done(t.w, v, n);
	ok(ptc_workers_wait_stopped(t.w, &g->desc.key, at + 20, NULL, WAIT, &err), &err);
	read_state(g, PTC_SLOT_STOPPED, &s);
	check_state(&s, at + 20);
}

/* A ptcd that dies and comes back, at any time; ranks take no notice. */
static void again(void)
{
	t.w = ptc_workers_free(t.w);
	up();
}

static void test_restarted_while_running(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "", NULL);
	struct state s;
	uint64_t at = 0;

	(void)state;
	start_generation(g, NULL, 0);
	for (int i = 0; i < 3; i++) {
		again();
		at = stop(g, at + 5);
		read_state(g, PTC_SLOT_STOPPED, &s);
		check_state(&s, at);
		assert_true(s.blobs && s.blob_step == at);
		release(g);
	}
	assert_int_equal(t.nevents, 0);
}

static pid_t pid_of(const struct group *g, size_t i)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *v;
	pid_t pid;
	size_t n;

	ok(ptc_workers_slots(t.w, &g->desc.key, &v, &n, &err), &err);
	pid = v[i].pid;
	ptc_workers_slots_done(t.w, v, n);
	return pid;
}

/* A rank's program may be started by another one, which stays. It is the program that takes memory of devices. */
static void test_launcher(void **state)
{
	struct group *g = group(1, 1, PTC_MODE_RESTART, "", NULL);
	char *json = NULL, said[64];

	(void)state;
	g->argv[0] = "/bin/sh";
	g->argv[1] = "-c";
	g->argv[2] = "\"$0\" --rank; exit $?";
	g->argv[3] = self;
	start_generation(g, NULL, 0);
	assert_int_equal(ptc_workers_json(t.w, UUID, &json, NULL), 0);
	snprintf(said, sizeof said, "\"program_pid\":%d,", (int)pid_of(g, 0));
	assert_non_null(strstr(json, said));
	snprintf(said, sizeof said, "\"pid\":%d,", (int)pid_of(g, 0));
	assert_non_null(strstr(json, "\"pid\":"));
	assert_null(strstr(json, said));
	ptc_free(json);
	end(g);
}

/* The next generation's ranks are on these devices. */
static void to_devices(struct group **g, const uint32_t *devices, unsigned n, struct state *s)
{
	struct group *next = group(n, (*g)->desc.key.generation + 1, PTC_MODE_REBUILD, "", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t at = stop(*g, s->blob_step + 2);

	read_state(*g, PTC_SLOT_STOPPED, s);
	for (unsigned i = 0; i < n; i++)
		next->ranks[i].device = devices[i];
	ok(ptc_workers_start(t.w, &next->desc, WAIT, &err), &err);
	end(*g);
	ok(ptc_workers_build(t.w, &next->desc, at, true, rank_states(&next->desc, s, at), WAIT, &err), &err);
	go(next, s, at);
	*g = next;
}

/* A process that has run on a device is a rank on that device only; another rank gets a new process. */
static void test_life_devices(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "", NULL);
	struct state s = { .blob_step = 0 };
	pid_t on[3] = { 0 };

	(void)state;
	start_generation(g, NULL, 0);
	on[0] = pid_of(g, 0);
	on[1] = pid_of(g, 1);
	to_devices(&g, (uint32_t[]){ 2, 1 }, 2, &s); /* device 0 becomes free, and its process stays until the drop */
	assert_int_equal(pid_of(g, 1), on[1]);
	on[2] = pid_of(g, 0);
	assert_true(on[2] != on[0] && on[2] != on[1]);
	ptc_workers_drop(t.w, UUID, &g->desc.key, 1, false);
	to_devices(&g, (uint32_t[]){ 1, 0, 2, 1 }, 4, &s);
	assert_int_equal(pid_of(g, 0), on[1]);
	assert_int_equal(pid_of(g, 2), on[2]);
	assert_true(pid_of(g, 1) != on[0]);
	on[0] = pid_of(g, 1);
	again(); /* a ptcd that starts anew knows where they run */
	to_devices(&g, (uint32_t[]){ 2 }, 1, &s);
	assert_int_equal(pid_of(g, 0), on[2]);
	to_devices(&g, (uint32_t[]){ 0, 1, 2, 0 }, 4, &s); /* two share a device */
	assert_int_equal(pid_of(g, 0), on[0]);
	assert_int_equal(pid_of(g, 1), on[1]);
	assert_int_equal(pid_of(g, 2), on[2]);
	again();
	to_devices(&g, (uint32_t[]){ 1 }, 1, &s);
	again(); /* of those that have no rank it does not know: they are not used */
	to_devices(&g, (uint32_t[]){ 1, 2 }, 2, &s);
	assert_int_equal(pid_of(g, 0), on[1]);
	assert_true(pid_of(g, 1) != on[0] && pid_of(g, 1) != on[2]);
	check_state(&s, s.blob_step);
	assert_int_equal(t.nevents, 0);
}

/* The file of a group as a ptcd would have written it that is `on` versions further on: with more behind what we know.
 */
static void rewrite_group(const struct ptc_group_desc *desc, uint32_t on)
{
	char path[256];
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t added = 0x1122334455667788, sum;
	uint32_t version;
	uint8_t *more;
	char *data;
	size_t len;

	snprintf(path, sizeof path, "%s/%s/groups/%llu-%llu", t.dir, desc->key.uuid,
		 (unsigned long long)desc->key.generation, (unsigned long long)desc->key.incarnation);
	ok(ptc_sys_read_file(path, 1 << 20, &data, &len, &err), &err);
	more = malloc(len + sizeof added);
	memcpy(more, data, len - sizeof sum);
	ptc_free(data);
	len -= sizeof sum;
	memcpy(&version, more + 8, sizeof version);
	version += on;
	memcpy(more + 8, &version, sizeof version);
	memcpy(more + len, &added, sizeof added);
	len += sizeof added;
	sum = ptc_checksum(more, len);
	memcpy(more + len, &sum, sizeof sum);
	len += sizeof sum;
	ok(ptc_sys_write_file(path, more, len, 0600, "test.group", &err), &err);
	free(more);
}

/* An upgrade, and back from it, under ranks: what the next version has written is read; the one after is refused by
 * name, and the ranks live on until a ptcd comes that reads it. */
static void test_restarted_by_another_version(void **state)
{
	struct ptc_workers_env env = { .node = "n0", .dir = t.dir, .cgroup = "", .event = on_event };
	struct ptc_error err = PTC_ERROR_INIT;
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "", NULL);
	struct ptc_workers *other = NULL;
	struct state s;
	uint64_t at;

	(void)state;
	start_generation(g, NULL, 0);
	t.w = ptc_workers_free(t.w);
	rewrite_group(&g->desc, 1);
	up();
	at = stop(g, 5);
	read_state(g, PTC_SLOT_STOPPED, &s);
	check_state(&s, at);
	release(g);
	t.w = ptc_workers_free(t.w);
	rewrite_group(&g->desc, 2);
	assert_int_equal(ptc_workers_new(&env, &other, &err), PTC_EVERSION);
	assert_non_null(strstr(err.text, "the file of a group of ranks has version"));
	assert_non_null(strstr(err.text, "its ranks still run"));
	rewrite_group(&g->desc, (uint32_t)-2);
	up();
	at = stop(g, at + 5);
	read_state(g, PTC_SLOT_STOPPED, &s);
	check_state(&s, at);
	release(g);
	assert_int_equal(t.nevents, 0);
}

/* A folder stands for the parent of cgroups: nothing runs in a cgroup there. */
static void test_started_where_cgroups_were_left(void **state)
{
	struct ptc_workers_env env = { .node = "n0", .dir = t.dir, .event = on_event };
	struct ptc_error err = PTC_ERROR_INIT;
	char parent[96], left[160], other[160];
	pid_t pid = fork();

	(void)state;
	if (pid == 0)
		_exit(0);
	assert_int_equal(waitpid(pid, NULL, 0), pid); /* the number of a process that is no more */
	t.w = ptc_workers_free(t.w);
	snprintf(parent, sizeof parent, "%.64s-cgroups", t.dir);
	snprintf(left, sizeof left, "%s/ptc-" UUID "-1.%d", parent, (int)pid);
	snprintf(other, sizeof other, "%s/somebody-else.%d", parent, (int)pid);
	assert_int_equal(mkdir(parent, 0700) || mkdir(left, 0700) || mkdir(other, 0700), 0);
	env.cgroup = parent;
	ok(ptc_workers_new(&env, &t.w, &err), &err);
	assert_int_equal(access(left, F_OK), -1);
	assert_int_equal(access(other, F_OK), 0);
	assert_int_equal(rmdir(other) || rmdir(parent), 0);
}

static void test_restarted_while_stopped(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_RESTART, "", NULL);
	struct state s;
	uint64_t at;

	(void)state;
	g->desc.fast_copy = true;
	start_generation(g, NULL, 0);
	at = stop(g, 5);
	for (int i = 0; i < 20; i++) {
		again();
		nap_us(2000 * (i % 3));
		read_state(g, PTC_SLOT_STOPPED, &s); /* stays where it was, and says again what it carries */
		check_state(&s, at);
		assert_true(s.blobs && s.blob_step == at);
	}
	release(g);
	at = stop(g, at + 3);
	read_state(g, PTC_SLOT_STOPPED, &s);
	check_state(&s, at);
}

static void test_restarted_while_declared(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_RESTART, "", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct state s;
	uint64_t at;

	(void)state;
	ok(ptc_workers_start(t.w, &g->desc, WAIT, &err), &err);
	again();
	ok(ptc_workers_start(t.w, &g->desc, WAIT, &err), &err);
	ok(ptc_workers_build(t.w, &g->desc, 0, false, NULL, WAIT, &err), &err);
	again();
	ok(ptc_workers_build(t.w, &g->desc, 0, false, NULL, WAIT, &err), &err);
	go(g, NULL, 0);
	at = stop(g, 3);
	read_state(g, PTC_SLOT_STOPPED, &s);
	check_state(&s, at);
	again();
	end(g);
}

static bool always(void *arg)
{
	(void)arg;
	return true;
}

/* A ptcd that is made anew after its ranks were told what they are and carry is told to build again. */
static void test_restarted_while_told(void **state)
{
	struct group *a = group(1, 1, PTC_MODE_RESTART, "", NULL), *b = group(2, 2, PTC_MODE_RESTART, "", NULL);
	struct ptc_wait no_wait = { .cancelled = always };
	struct ptc_error err = PTC_ERROR_INIT;
	struct state s;
	uint64_t at;

	(void)state;
	start_generation(a, NULL, 0);
	at = stop(a, 4);
	read_state(a, PTC_SLOT_STOPPED, &s);
	ok(ptc_workers_start(t.w, &b->desc, WAIT, &err), &err);
	end(a);
	assert_int_equal(ptc_workers_build(t.w, &b->desc, at, true, rank_states(&b->desc, &s, at), &no_wait, &err),
			 PTC_ECANCELED);
	again();
	ok(ptc_workers_build(t.w, &b->desc, at, true, rank_states(&b->desc, &s, at), WAIT, &err), &err);
	go(b, &s, at);
	at = stop(b, at + 2);
	read_state(b, PTC_SLOT_STOPPED, &s);
	check_state(&s, at);
	end(b);
}

static void rendezvous(const struct group *g, const char *name, const char *value)
{
	struct ptc_error err = PTC_ERROR_INIT;
	char buf[64];
	size_t len;

	ok(ptc_workers_rendezvous_get(t.w, &g->desc.key, name, buf, sizeof buf, &len,
				      &(struct ptc_wait){ .timeout_ms = 1 }, &err),
	   &err);
	assert_int_equal(len, strlen(value));
	assert_memory_equal(buf, value, len);
}

/* Keys that ranks of other nodes have put here are not put again; what a crash has cut off does not hide what comes
 * after. */
static void test_restarted_during_rendezvous(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_RESTART, "", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	char path[160];
	int fd;

	(void)state;
	snprintf(path, sizeof path, "%s/" UUID "/groups/1-1.rendezvous", t.dir);
	ok(ptc_workers_start(t.w, &g->desc, WAIT, &err), &err);
	ok(ptc_workers_rendezvous_put(t.w, &g->desc.key, "far/7", "here", 4, &err), &err);
	ok(ptc_workers_rendezvous_put(t.w, &g->desc.key, "far/8", "", 0, &err), &err);
	again();
	fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
	assert_true(fd >= 0 && write(fd, "half of a reco", 14) == 14);
	close(fd);
	again();
	ok(ptc_workers_rendezvous_put(t.w, &g->desc.key, "far/9", "there", 5, &err), &err);
	again();
	rendezvous(g, "far/7", "here");
	rendezvous(g, "far/8", "");
	rendezvous(g, "far/9", "there");
	ok(ptc_workers_rendezvous_put(t.w, &g->desc.key, "far/7", "here", 4, &err), &err);
	assert_int_equal(ptc_workers_rendezvous_put(t.w, &g->desc.key, "far/7", "else", 4, &err), PTC_EEXIST);
	end(g);
	ptc_workers_drop(t.w, UUID, NULL, 0, false);
	for (int i = 0; i < 30000 && access(path, F_OK) == 0; i++)
		nap_us(1000);
	assert_int_not_equal(access(path, F_OK), 0);
}

static void await_ranks_in(const char *state, unsigned n)
{
	for (int i = 0; i < 60000 && ranks_in(state) != n; i++)
		nap_us(1000);
	assert_int_equal(ranks_in(state), n);
}

/* Processes that wait without a rank. A start of another program leaves them alone. One of theirs takes them, whatever
 * its devices and ranks are. A ptcd that starts ends those that it finds. */
static void test_standby(void **state)
{
	struct group *a = group(2, 1, PTC_MODE_RESTART, "", NULL), *b = group(2, 2, PTC_MODE_RESTART, "", "1000000"),
		     *c = group(2, 3, PTC_MODE_RESTART, "", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	char *before = NULL, said[64];

	(void)state;
	a->desc.standby_ms = b->desc.standby_ms = c->desc.standby_ms = 30000;
	c->ranks[0].device = 2;
	start_generation(a, NULL, 0);
	ok(ptc_workers_standby(t.w, &a->desc, 2, &err), &err);
	await_ranks_in("standby", 2);
	ok(ptc_workers_json(t.w, UUID, &before, &err), &err);
	ok(ptc_workers_start(t.w, &b->desc, WAIT, &err), &err);
	assert_int_equal(ranks_in("standby"), 2);
	ptc_workers_drop(t.w, UUID, &a->desc.key, 1, false);
	assert_int_equal(ranks_in("standby"), 2);
	ok(ptc_workers_start(t.w, &c->desc, WAIT, &err), &err);
	assert_int_equal(ranks_in("standby"), 0);
	for (size_t i = 0; i < 2; i++) {
		snprintf(said, sizeof said, "\"standby\",\"pid\":%d,", (int)pid_of(c, i));
		assert_non_null(strstr(before, said));
	}
	ptc_free(before);
	end(a);
	ok(ptc_workers_build(t.w, &c->desc, 0, false, NULL, WAIT, &err), &err);
	go(c, NULL, 0);
	ok(ptc_workers_standby(t.w, &c->desc, 1, &err), &err);
	await_ranks_in("standby", 1);
	again();
	assert_int_equal(ranks_in("standby"), 0);
	assert_int_equal(ranks_in("waiting"), 0);
	assert_int_equal(t.nevents, 0);
}

/* Told that their generation has ended, they wait in ptc_next, and say so to a ptcd that did not tell them. */
static void test_restarted_while_ending(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "", NULL), *next;
	struct ptc_wait no_wait = { .cancelled = always };
	struct ptc_error err = PTC_ERROR_INIT;

	(void)state;
	start_generation(g, NULL, 0);
	stop(g, 5);
	assert_int_equal(ptc_workers_end(t.w, &g->desc.key, &no_wait, &err), PTC_ECANCELED);
	await_ranks_in("waiting", 2);
	again();
	await_ranks_in("waiting", 2);
	again();
	end(g);
	next = group(2, 2, PTC_MODE_REBUILD, "", NULL);
	start_generation(next, NULL, 0);
	stop(next, 3);
	end(next);
}

static void test_rank_fails(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "crash", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_worker_event event;
	uint64_t step;
	bool passed;
	int rc;

	(void)state;
	start_generation(g, NULL, 0);
	assert_true(has_event(PTC_WORKER_EVENT_FAILED, &event));
	assert_int_equal(event.rank, 1);
	assert_true(WIFEXITED(event.exit_status) && WEXITSTATUS(event.exit_status) == 9);
	assert_non_null(strstr(event.text, "about to crash"));
	rc = ptc_workers_arm(t.w, &g->desc.key, 1000, &passed, &step, &err);
	assert_int_equal(rc, PTC_ESTATE);
	assert_non_null(strstr(err.text, "rank 1"));
	/* told again after a switch that came to nothing */
	assert_int_not_equal(event.step, 0);
	step = event.step;
	forget_event();
	ptc_workers_report_again(t.w, &g->desc.key);
	assert_true(has_event(PTC_WORKER_EVENT_FAILED, &event));
	assert_int_equal(event.step, step);
	/* told again by the next ptcd */
	forget_event();
	again();
	assert_true(has_event(PTC_WORKER_EVENT_FAILED, &event));
	assert_int_equal(event.rank, 1);
}

/* Events go through what the owner may free first. A ptcd that ends leaves what came after to the next one. */
static void test_silence(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_worker_event event;
	uint64_t step;
	bool passed;
	int rc = 0;

	(void)state;
	start_generation(g, NULL, 0);
	ptc_workers_silence(t.w);
	ptc_workers_silence(t.w);
	assert_int_equal(kill(pid_of(g, 1), SIGKILL), 0);
	for (int i = 0; i < 30000 && rc == 0; i++, nap_us(1000))
		rc = ptc_workers_arm(t.w, &g->desc.key, PTC_LOCAL_STEP_MAX, &passed, &step, &err);
	assert_int_equal(rc, PTC_ESTATE); /* its end is known here */
	assert_non_null(strstr(err.text, "rank 1"));
	assert_int_equal(t.nevents, 0);
	again();
	assert_true(has_event(PTC_WORKER_EVENT_FAILED, &event));
	assert_int_equal(event.rank, 1);
}

/* It knows at once, and at the latest when it is to stop. */
static void test_rank_closes_descriptors(void **state)
{
	struct group *g = group(1, 1, PTC_MODE_RESTART, "closes", NULL);
	struct ptc_worker_event event;

	(void)state;
	start_generation(g, NULL, 0);
	assert_true(has_event(PTC_WORKER_EVENT_FAILED, &event));
	if (!WIFEXITED(event.exit_status) || WEXITSTATUS(event.exit_status) != 42)
		print_error("%s\n", event.text);
	assert_true(WIFEXITED(event.exit_status) && WEXITSTATUS(event.exit_status) == 42);
}

static void test_program_that_cannot_start(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_worker_event event;
	struct ptc_worker_log log;
	struct group *g;

	(void)state;
	for (int mode = 0; mode < 2; mode++) {
		g = group(2, 1 + (uint64_t)mode, mode ? PTC_MODE_REBUILD : PTC_MODE_RESTART, "early", NULL);
		assert_int_equal(ptc_workers_start(t.w, &g->desc, WAIT, &err), PTC_ESTATE);
		assert_non_null(strstr(err.text, "status 4"));
		assert_non_null(strstr(err.text, "cannot start"));
		assert_null(strchr(err.text, '\n'));
		assert_true(has_event(PTC_WORKER_EVENT_NOT_STARTED, &event));
		assert_int_equal(event.key.generation, 1 + mode);
		assert_non_null(strstr(event.text, "status 4; its log ends:\ncannot start\n"));
		forget_event();
	}
	g = group(1, 3, PTC_MODE_RESTART, "", NULL);
	g->argv[0] = "/nowhere/at/all";
	assert_int_equal(ptc_workers_start(t.w, &g->desc, WAIT, &err), PTC_EINVAL);
	g = group(2, 4, PTC_MODE_RESTART, "nonsense", NULL);
	ok(ptc_workers_start(t.w, &g->desc, WAIT, &err), &err);
	assert_int_equal(ptc_workers_build(t.w, &g->desc, 0, false, NULL, WAIT, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "rank 1"));
	assert_non_null(strstr(err.text, "status 5"));
	assert_true(has_event(PTC_WORKER_EVENT_NOT_STARTED,
			      &event)); /* once, and not as the failure of ranks that train as well */
	assert_int_equal(t.nevents, 1);
	/* the next ptcd knows whose the logs are, too */
	ptc_workers_drop(t.w, UUID, NULL, 0, false);
	while (processes_left())
		nap_us(1000);
	again();
	for (uint32_t rank = 0; rank < 2; rank++)
		ok(ptc_workers_log(t.w, UUID, rank, 1, &log, &err), &err);
	assert_true(log.over);
}

static void test_finish(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "", "6");
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_worker_event event;
	struct state s;
	uint64_t step;
	bool passed;

	(void)state;
	start_generation(g, NULL, 0);
	assert_true(has_event(PTC_WORKER_EVENT_FINISHED, &event));
	assert_int_equal(event.step, 6);
	/* a stop that comes too late */
	ok(ptc_workers_arm(t.w, &g->desc.key, 50, &passed, &step, &err), &err);
	assert_int_equal(ptc_workers_wait_stopped(t.w, &g->desc.key, 50, NULL, WAIT, &err), PTC_EFINISHED);
	assert_non_null(strstr(err.text, "finished"));
	/* Given up: they wait on, because nothing has been committed yet, and that is said again. */
	forget_event();
	release(g);
	assert_true(has_event(PTC_WORKER_EVENT_FINISHED, &event));
	forget_event();
	again();
	assert_true(has_event(PTC_WORKER_EVENT_FINISHED, &event));
	assert_int_equal(stop(g, 6), 6);
	read_state(g, PTC_SLOT_STOPPED, &s);
	check_state(&s, 6);
	/* needed in another generation after all */
	end(g);
	g = group(2, 2, PTC_MODE_REBUILD, "", "6");
	forget_event();
	start_generation(g, &s, 6);
	assert_true(has_event(PTC_WORKER_EVENT_FINISHED, &event));
	assert_int_equal(event.step, 6);
}

static void test_due(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "", "17");
	struct ptc_worker_event event;
	struct state s;

	(void)state;
	g->desc.snapshot_every = 5;
	start_generation(g, NULL, 0);
	for (uint64_t at = 5; at <= 15; at += 5) {
		assert_true(has_event(PTC_WORKER_EVENT_DUE, &event));
		assert_int_equal(event.step, at);
		if (at == 10) {
			forget_event();
			again();
			assert_true(has_event(PTC_WORKER_EVENT_DUE, &event));
			assert_int_equal(event.step, at);
		}
		assert_int_equal(stop(g, at), at);
		read_state(g, PTC_SLOT_STOPPED, &s);
		check_state(&s, at);
		forget_event();
		release(g);
	}
	assert_true(has_event(PTC_WORKER_EVENT_FINISHED, &event));
	assert_int_equal(event.step, 17);
}

/* Snapshots that are due are left out, as many as the controller says. Ranks that wait at one of them go on. */
static void test_due_left_out(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "", "42");
	struct ptc_worker_event event;

	(void)state;
	g->desc.snapshot_every = 5;
	start_generation(g, NULL, 0);
	for (uint64_t at = 5; at <= 20; at += 15) {
		assert_true(has_event(PTC_WORKER_EVENT_DUE, &event));
		assert_int_equal(event.step, at);
		assert_int_equal(stop(g, at), at);
		forget_event();
		release_beyond(g, at, 2); /* not at 10 and 15, not at 25 and 30 */
	}
	assert_true(has_event(PTC_WORKER_EVENT_DUE, &event));
	assert_int_equal(event.step, 35);
	forget_event();
	release_beyond(g, 35, UINT32_MAX);
	assert_true(has_event(PTC_WORKER_EVENT_FINISHED, &event));
	assert_int_equal(event.step, 42);
}

/* A rank that hangs is named; a rank that does not listen is killed. */
static void test_hang(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "hang", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_wait little = { .timeout_ms = 300 };
	uint64_t step;
	bool passed;

	(void)state;
	start_generation(g, NULL, 0);
	ok(ptc_workers_arm(t.w, &g->desc.key, 1000, &passed, &step, &err), &err);
	assert_int_equal(ptc_workers_wait_stopped(t.w, &g->desc.key, 1000, NULL, &little, &err), PTC_ETIMEOUT);
	assert_non_null(strstr(err.text, "rank 0"));
	assert_non_null(strstr(err.text, "step"));
	g->desc.grace_ms = 200;
	end(g);
}

/* A step that does not move is told, once, without a switch that waits for it; ranks that do not train yet have none.
 */
static void test_stall(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "hang", NULL);
	struct ptc_worker_event event;
	char *json = NULL, *at;
	size_t said = 0;
	long stalled = 0;

	(void)state;
	start_generation(g, NULL, 0);
	assert_true(has_event(PTC_WORKER_EVENT_STALLED, &event));
	assert_int_equal(event.step, 5);
	assert_non_null(strstr(event.text, "has been at step 5 for "));
	for (int i = 0; stalled < 1 && i < 20000; i++) { /* seconds go on being counted */
		assert_int_equal(ptc_workers_json(t.w, UUID, &json, NULL), 0);
		at = strstr(json, "\"stalled_s\":");
		assert_non_null(at);
		stalled = strtol(at + strlen("\"stalled_s\":"), NULL, 10);
		ptc_free(json);
		nap_us(1000);
	}
	assert_in_range(stalled, 1, 600);
	pthread_mutex_lock(&t.lock);
	for (size_t i = 0; i < t.nevents; i++)
		said += t.event[i].kind == PTC_WORKER_EVENT_STALLED;
	pthread_mutex_unlock(&t.lock);
	assert_int_equal(said, 1);
	g->desc.grace_ms = 200;
	end(g);
	t.stall_ms = 0;
}

struct waits {
	const struct group *g;
	atomic_int asked;
	atomic_bool cancel;
	int rc;
};

static bool wait_cancelled(void *arg)
{
	struct waits *w = arg;

	atomic_fetch_add(&w->asked, 1);
	return atomic_load(&w->cancel);
}

static void *wait_long(void *arg)
{
	struct waits *w = arg;
	struct ptc_wait wait = { .cancelled = wait_cancelled, .arg = w };
	struct ptc_error err = PTC_ERROR_INIT;

	w->rc = ptc_workers_wait_stopped(t.w, &w->g->desc.key, 1000000, NULL, &wait, &err);
	return NULL;
}

/* A call that waits asks each 100 ms whether it has to go on waiting, and at once when it is told to. Each time it is
 * told right after it has asked; that is 100 ms before it would ask by itself. */
static void test_look_again(void **state)
{
	struct group *g = group(1, 1, PTC_MODE_RESTART, "", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	int64_t took = INT64_MAX;
	uint64_t step;
	bool passed;

	(void)state;
	start_generation(g, NULL, 0);
	ok(ptc_workers_arm(t.w, &g->desc.key, 1000000, &passed, &step, &err), &err);
	for (int i = 0; i < 20; i++) {
		struct waits w = { .g = g };
		pthread_t thread;
		int64_t at;

		assert_int_equal(pthread_create(&thread, NULL, wait_long, &w), 0);
		while (atomic_load(&w.asked) < 2)
			nap_us(200);
		at = ptc_sys_now_ns();
		atomic_store(&w.cancel, true);
		ptc_workers_look_again(t.w);
		assert_int_equal(pthread_join(thread, NULL), 0);
		took = PTC_MIN(took, ptc_sys_now_ns() - at);
		assert_int_equal(w.rc, PTC_ECANCELED);
	}
	assert_in_range(took, 0, 50000000); /* the least, because the machine may be busy */
	end(g);
}

static void test_deaf(void **state)
{
	struct group *g = group(1, 1, PTC_MODE_RESTART, "deaf", NULL);

	(void)state;
	g->desc.grace_ms = 400;
	start_generation(g, NULL, 0);
	end(g);
}

static bool says(const char *what)
{
	char *json = NULL;
	bool yes;

	assert_int_equal(ptc_workers_json(t.w, UUID, &json, NULL), 0);
	yes = strstr(json, what) != NULL;
	ptc_free(json);
	return yes;
}

/* No rank is started beside those that have not exited yet; those that are given up have little time for it, however
 * much they had before. */
static void test_start_after_others(void **state)
{
	struct group *g, *next;
	struct ptc_error err;
	char who[64];
	pid_t pid;

	(void)state;
	for (uint64_t mode = 0; mode < 2; mode++) {
		err = (struct ptc_error)PTC_ERROR_INIT;
		g = group(1, 1 + 2 * mode, mode ? PTC_MODE_REBUILD : PTC_MODE_RESTART, "hang", NULL);
		next = group(1, 2 + 2 * mode, g->desc.mode, "", NULL);
		g->desc.grace_ms = 3600000;
		start_generation(g, NULL, 0);
		for (int i = 0; i < 30000 && !says("\"step\":5"); i++)
			nap_us(1000);
		pid = pid_of(g, 0);
		snprintf(who, sizeof who, "rank 0 (pid %d) of generation %d", (int)pid, (int)g->desc.key.generation);
		ptc_workers_drop(t.w, UUID, NULL, 0, false);
		assert_int_equal(ptc_workers_start(t.w, &next->desc, &(struct ptc_wait){ .timeout_ms = 500 }, &err),
				 PTC_ETIMEOUT);
		assert_non_null(strstr(err.text, who));
		assert_int_equal(kill(pid, 0), 0);
		ptc_workers_drop(t.w, UUID, NULL, 0, true);
		next = group(1, 2 + 2 * mode, g->desc.mode, "", NULL);
		next->desc.key.incarnation = 2;
		ok(ptc_workers_start(t.w, &next->desc, WAIT, &err), &err);
		assert_int_equal(kill(pid, 0), -1);
		ptc_workers_drop(t.w, UUID, NULL, 0, true);
	}
}

/* A rank that is given up, and whose step stands, comes to no boundary: it is not asked for half of its time to exit.
 * On a busy machine one of a few rounds shows it. */
static void test_stands_and_is_given_up(void **state)
{
	int64_t took = INT64_MAX, at;

	(void)state;
	for (uint64_t round = 1; round <= 5 && took >= WORKERS_GIVEN_UP_MS * INT64_C(500000); round++) {
		struct group *g = group(1, round, PTC_MODE_RESTART, "hang", NULL);

		start_generation(g, NULL, 0);
		for (int i = 0; i < 30000 && !says("\"step\":5"); i++)
			nap_us(1000);
		nap_us(1000000); /* it stands for longer than it has to */
		at = ptc_sys_now_ns();
		ptc_workers_drop(t.w, UUID, NULL, 0, true);
		for (int i = 0; i < 30000 && (processes_left() || !all_exited()); i++)
			nap_us(1000);
		took = PTC_MIN(took, ptc_sys_now_ns() - at);
	}
	assert_true(took < WORKERS_GIVEN_UP_MS * INT64_C(500000));
}

/* What is published of a rank that stands is whether its state is whole there: before an update it is, in one it is
 * not. */
static void test_whole(void **state)
{
	static const char *const hows[] = { "hang", "hang-in-update" }, *const says[] = { "true", "false" };
	char *json = NULL, expect[64];

	(void)state;
	for (size_t i = 0; i < PTC_ARRAY_LEN(hows); i++) {
		struct group *g = group(1, i + 1, PTC_MODE_RESTART, hows[i], NULL);
		bool found = false;

		start_generation(g, NULL, 0);
		snprintf(expect, sizeof expect, "\"step\":5,\"whole\":%s,", says[i]);
		for (int n = 0; !found && n < 20000; n++) {
			assert_int_equal(ptc_workers_json(t.w, UUID, &json, NULL), 0);
			found = strstr(json, expect) != NULL;
			ptc_free(json);
			nap_us(1000);
		}
		assert_true(found);
		g->desc.grace_ms = 200;
		end(g);
	}
}

/* What a group's ranks say of themselves while they are held: all of them at one step each, and its values. */
static void check_held(struct group *g, bool ended)
{
	struct ptc_slot_view *slots;
	struct ptc_error err = PTC_ERROR_INIT;
	size_t n;

	ok(ptc_workers_slots(t.w, &g->desc.key, &slots, &n, &err), &err);
	for (size_t i = 0; i < n; i++) {
		struct ptc_slot_copying copying = { .memory = { { .fd = -1 }, { .fd = -1 } } };
		uint64_t blob = 0;
		double *s = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		int fd = memfd_create("held", MFD_CLOEXEC);
		struct iovec here;

		if (ended) {
			assert_non_null(slots[i].not_held);
			continue;
		}
		assert_string_equal(slots[i].not_held ? slots[i].not_held : "", "");
		munmap(s, PAGE);
		assert_int_equal(ftruncate(fd, PAGE), 0);
		s = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		copying.memory[0] = (struct ptc_slot_memory){
			.fd = fd, .writable = true, .once = true, .base = (uint8_t *)s, .bytes = PAGE
		};
		ok(ptc_slot_copying_init(&slots[i], &copying, &err), &err);
		here = (struct iovec){ s, sizeof *s };
		for (size_t k = 0; k < slots[i].ntensors; k++)
			if (strcmp(slots[i].tensors[k].name, "s") == 0)
				ok(ptc_slot_copy(&slots[i], PTC_COPY_READ, &copying,
						 &(struct iovec){
							 (void *)(uintptr_t)slots[i].tensors[k].regions[0].address,
							 sizeof *s },
						 1, &here, 1, PTC_PAGES_NEW, &err),
				   &err);
		assert_true(*s == 7 + (double)slots[i].step); /* as rank_build and rank_update have it */
		for (size_t k = 0; k < slots[i].nblobs; k++)
			if (strcmp(slots[i].blobs[k].name, "job") == 0)
				memcpy(&blob, slots[i].blobs[k].data, sizeof blob);
		assert_int_equal(blob, slots[i].step);
		assert_true(slots[i].ncursors == 1 && slots[i].cursors[0].position == 8 * slots[i].step);
		ptc_slot_copying_done(&slots[i], &copying);
		munmap(s, PAGE);
		close(fd);
	}
	ptc_workers_slots_done(t.w, slots, n);
}

/* Until the group's slowest rank has come to another step. */
static void goes_on(void)
{
	struct ptc_workers_sum was = ptc_workers_sum(t.w, UUID);

	for (int i = 0; i < 20000 && ptc_workers_sum(t.w, UUID).step <= was.step; i++)
		nap_us(1000);
	assert_true(ptc_workers_sum(t.w, UUID).step > was.step);
}

/* Holds two ranks, when both have made steps. A ptcd that has begun anew holds those that it has found so far. */
static void hold_both(struct group *g, uint64_t held[2])
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *slots;
	bool both = false;
	size_t n;

	while (!both) {
		goes_on();
		ok(ptc_workers_hold(t.w, &g->desc.key, 60000, 0, WAIT, &err), &err);
		ok(ptc_workers_slots(t.w, &g->desc.key, &slots, &n, &err), &err);
		assert_int_equal(n, 2);
		both = true;
		for (size_t i = 0; i < n; i++) {
			held[i] = slots[i].step;
			both = both && !slots[i].not_held && slots[i].step > 0;
		}
		ptc_workers_slots_done(t.w, slots, n);
		if (!both)
			ok(ptc_workers_let_go(t.w, &g->desc.key, &err), &err);
	}
}

/* Ranks are frozen wherever they are, whole at one step each, and go on when they are let go, or ptcd ends. */
static void test_hold(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "survives", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t held[2];

	(void)state;
	start_generation(g, NULL, 0);
	for (int i = 0; i < 8; i++) {
		hold_both(g, held);
		check_held(g, false);
		if (i % 4 == 3)
			again(); /* another ptcd thaws what it finds */
		else
			ok(ptc_workers_let_go(t.w, &g->desc.key, &err), &err);
		check_held(g, true);
	}
	goes_on();
	ok(ptc_workers_hold(t.w, &g->desc.key, 50, 0, WAIT, &err),
	   &err); /* nobody asks again: they go on by themselves */
	goes_on();
	ok(ptc_workers_hold(t.w, &g->desc.key, 60000, 0, WAIT, &err), &err);
	end(g); /* frozen ranks are ended, too */
}

/* A rank that somebody else lets go on is no longer held: its program may change its memory while it is copied. */
static void test_hold_thawed(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "survives", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *slots;
	uint64_t held[2];
	size_t n;

	(void)state;
	start_generation(g, NULL, 0);
	hold_both(g, held);
	assert_int_equal(kill(pid_of(g, 1), SIGCONT), 0);
	ok(ptc_workers_slots(t.w, &g->desc.key, &slots, &n, &err), &err);
	assert_null(slots[0].not_held);
	assert_string_equal(slots[1].not_held, "its process is no longer frozen");
	ptc_workers_slots_done(t.w, slots, n);
	ok(ptc_workers_let_go(t.w, &g->desc.key, &err), &err);
	hold_both(g, held);
	check_held(g, false);
	end(g);
}

/* Whether a thread of the process waits in the kernel, uninterruptibly. */
static bool any_waits(pid_t pid)
{
	struct ptc_process_stat st = { .state = '?' };
	struct dirent *e;
	char path[64];
	DIR *d;

	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	d = opendir(path);
	assert_non_null(d);
	while (st.state != 'D' && (e = readdir(d)))
		(void)ptc_process_stat((pid_t)atoi(e->d_name), &st); /* of a thread it is the thread's */
	closedir(d);
	return st.state == 'D';
}

/* A controller waits no longer for an answer. */
static bool takes_long(void *until_ns)
{
	return ptc_sys_now_ns() > *(int64_t *)until_ns;
}

/* A rank that the kernel does not freeze is not held; the other is, and nobody waits for long. Once the kernel can
 * freeze the rank, it is held, too. */
static void test_hold_waits_in_kernel(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_RESTART, "spawns", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *slots;
	char env[96], path[128];
	int64_t until_ns;
	struct ptc_wait in_time = { .cancelled = takes_long, .arg = &until_ns };
	uint64_t held[2];
	size_t n;
	int fd;

	(void)state;
	snprintf(env, sizeof env, "PTC_TEST_DIR=%s", t.dir);
	snprintf(path, sizeof path, "%s/spawns", t.dir);
	g->env[1] = env;
	assert_int_equal(mkfifo(path, 0600), 0);
	start_generation(g, NULL, 0);
	goes_on();
	while (!any_waits(pid_of(g, 1)))
		nap_us(1000);
	until_ns = ptc_sys_now_ns() + INT64_C(15000000000);
	ok(ptc_workers_hold(t.w, &g->desc.key, 60000, 0, &in_time, &err), &err);
	ok(ptc_workers_slots(t.w, &g->desc.key, &slots, &n, &err), &err);
	assert_int_equal(n, 2);
	assert_null(slots[0].not_held);
	assert_string_equal(slots[1].not_held, "its process could not be frozen");
	ptc_workers_slots_done(t.w, slots, n);
	ok(ptc_workers_let_go(t.w, &g->desc.key, &err), &err);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	hold_both(g, held);
	check_held(g, false);
	close(fd);
	end(g);
}

/* Ranks that are given up while they are held begin no update any more: others go on from that step. */
static void test_hold_given_up(void **state)
{
	(void)state;
	for (uint64_t round = 1; round <= 4; round++) {
		struct group *g = group(2, round, PTC_MODE_RESTART, "survives", NULL);
		uint64_t held[2], begun;
		char env[96];

		snprintf(env, sizeof env, "PTC_TEST_DIR=%s", t.dir);
		g->env[1] = env;
		start_generation(g, NULL, 0);
		hold_both(g, held);
		ptc_workers_drop(t.w, UUID, NULL, 0, true);
		for (int i = 0; i < 30000 && (processes_left() || !all_exited()); i++)
			nap_us(1000);
		for (size_t i = 0; i < 2; i++) {
			char path[256];
			int fd;

			snprintf(path, sizeof path, "%s/updates-%zu", t.dir, i);
			fd = open(path, O_RDONLY | O_CLOEXEC);
			assert_int_equal(read(fd, &begun, sizeof begun), sizeof begun);
			close(fd);
			unlink(path);
			assert_int_equal(begun + 1, held[i]);
		}
	}
}

/* Where each of the group's ranks has come to when it was killed. */
static void check_left(struct group *g)
{
	struct ptc_slot_view *slots;
	struct ptc_error err = PTC_ERROR_INIT;
	size_t n;

	ok(ptc_workers_slots(t.w, &g->desc.key, &slots, &n, &err), &err);
	for (size_t i = 0; i < n; i++) {
		uint64_t blob = 0;

		assert_true(slots[i].outlived && slots[i].has_state && slots[i].published && slots[i].step > 0);
		assert_non_null(slots[i].not_held); /* its tensors have ended with it */
		assert_true(slots[i].nblobs > 0 && slots[i].ncursors == 1);
		for (size_t k = 0; k < slots[i].nblobs; k++)
			if (strcmp(slots[i].blobs[k].name, "job") == 0)
				memcpy(&blob, slots[i].blobs[k].data, sizeof blob);
		assert_int_equal(blob, slots[i].step);
		assert_int_equal(slots[i].cursors[0].position, 8 * slots[i].step);
	}
	ptc_workers_slots_done(t.w, slots, n);
}

/* All have ended. */
static bool all_left(struct group *g)
{
	struct ptc_slot_view *slots;
	struct ptc_error err = PTC_ERROR_INIT;
	bool all = true;
	size_t n;

	ok(ptc_workers_slots(t.w, &g->desc.key, &slots, &n, &err), &err);
	for (size_t i = 0; i < n; i++)
		all = all && slots[i].outlived;
	ptc_workers_slots_done(t.w, slots, n);
	return all;
}

/* Until a ptcd that has begun anew has heard of both ranks. */
static void find_both(struct group *g)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *slots;
	bool both = false;
	size_t n;

	while (!both) {
		ok(ptc_workers_slots(t.w, &g->desc.key, &slots, &n, &err), &err);
		both = n == 2 && slots[0].has_state && slots[1].has_state && slots[0].step > 0 && slots[1].step > 0;
		ptc_workers_slots_done(t.w, slots, n);
		nap_us(1000);
	}
}

/* What ranks that are killed at any moment have published outlives them: blobs and cursors of the step that they had
 * come to, read once and again. One hold is enough, whether their ends are known when it begins or become known in it.
 */
static void test_killed(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	uint32_t seed = (uint32_t)time(NULL);

	(void)state;
	printf("seed %u\n", seed);
	for (uint64_t round = 1; round <= 8; round++) {
		struct group *g = group(2, round, PTC_MODE_RESTART, "survives", NULL);
		struct ptc_worker_event event;
		struct ptc_slot_view *slots;
		pid_t pids[2];
		size_t n;

		forget_event();
		start_generation(g, NULL, 0);
		goes_on();
		if (round % 2 == 0) /* they have said it again, to another ptcd */
			again();
		find_both(g);
		goes_on();
		ok(ptc_workers_slots(t.w, &g->desc.key, &slots, &n, &err), &err);
		for (size_t i = 0; i < 2; i++)
			pids[i] = slots[i].pid;
		ptc_workers_slots_done(t.w, slots, n);
		nap_us(rand_r(&seed) % 20000);
		if (round % 4 == 3) /* also of ranks that are held as they end */
			ok(ptc_workers_hold(t.w, &g->desc.key, 60000, 0, WAIT, &err), &err);
		for (size_t i = 0; i < 2; i++)
			assert_int_equal(kill(pids[i], SIGKILL), 0);
		nap_us(rand_r(&seed) % 4000);
		for (int looks = 0; looks < 2; looks++) {
			ok(ptc_workers_hold(t.w, &g->desc.key, 60000, 0, WAIT, &err), &err);
			while (!all_left(g))
				nap_us(1000);
			check_left(g);
			ok(ptc_workers_let_go(t.w, &g->desc.key, &err), &err);
		}
		assert_true(has_event(PTC_WORKER_EVENT_FAILED, &event));
		end(g);
	}
}

/* Ranks at the step before the one that is asked for end that step, and no other; the others stay where they are. */
static void test_hold_goes_on(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "survives", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *slots;
	uint64_t held[2], to;
	size_t n;

	(void)state;
	start_generation(g, NULL, 0);
	for (int i = 0; i < 16; i++) {
		hold_both(g, held);
		for (int again = 0; again < 3; again++) {
			to = held[(i + again) % 2] + (again < 2); /* at last nobody is at the step before */
			if (again == 2 && (held[0] + 1 == to || held[1] + 1 == to))
				continue;
			for (size_t k = 0; k < 2; k++)
				held[k] += held[k] + 1 == to;
			ok(ptc_workers_hold(t.w, &g->desc.key, 60000, to, WAIT, &err), &err);
			ok(ptc_workers_slots(t.w, &g->desc.key, &slots, &n, &err), &err);
			for (size_t k = 0; k < 2; k++) {
				assert_true(slots[k].step == held[k] && !slots[k].not_held && slots[k].promises);
				assert_false(slots[k].stays);
			}
			ptc_workers_slots_done(t.w, slots, n);
			check_held(g, false);
		}
		if (i % 4 == 3)
			again(); /* another ptcd */
		else
			ok(ptc_workers_let_go(t.w, &g->desc.key, &err), &err);
	}
	goes_on();
	end(g);
}

/* One rank can reach the others no more, and another still waits for it; both have their gradients. */
static void test_update_alone(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_RESTART, "meets", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_worker_event event;
	struct ptc_slot_view *slots;
	char env[96];
	size_t n;

	(void)state;
	snprintf(env, sizeof env, "PTC_TEST_DIR=%s", t.dir);
	g->env[1] = env;
	start_generation(g, NULL, 0);
	assert_true(has_event(PTC_WORKER_EVENT_FAILED, &event));
	assert_true(event.rank == 1 && event.step == 5);
	for (uint64_t step = 5; step <= 7; step++) { /* at 6 rank 1 has given up for good, and rank 0 goes on alone */
		ok(ptc_workers_hold(t.w, &g->desc.key, 60000, step == 5 ? 0 : step, WAIT, &err), &err);
		ok(ptc_workers_slots(t.w, &g->desc.key, &slots, &n, &err), &err);
		for (size_t k = 0; k < 2; k++) {
			assert_null(slots[k].not_held);
			assert_int_equal(slots[k].step, k ? PTC_MIN(step, 6) : step);
			if (step != 6) /* it gives up for good at 6, before it is frozen or after */
				assert_int_equal(slots[k].stays, k == 1 && step == 7);
		}
		ptc_workers_slots_done(t.w, slots, n);
		check_held(g, false);
	}
	g->desc.grace_ms = 5000;
	end(g);
}

/* A program says more than once in a step that its update begins, and is held in between: it ends that update. */
static void test_hold_between(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "twice", NULL);
	struct ptc_error err = PTC_ERROR_INIT;

	(void)state;
	start_generation(g, NULL, 0);
	for (int i = 0; i < 16; i++) {
		goes_on();
		ok(ptc_workers_hold(t.w, &g->desc.key, 60000, 0, WAIT, &err), &err);
		check_held(g, false);
		ok(ptc_workers_let_go(t.w, &g->desc.key, &err), &err);
	}
	goes_on();
	end(g);
}

/* A rank that has given up, and whose memory was not wanted, has changed it since. So it is not taken later. */
static void test_left(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_RESTART, "left", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *slots;
	char env[96], path[128];
	size_t n;

	(void)state;
	snprintf(env, sizeof env, "PTC_TEST_DIR=%s", t.dir);
	snprintf(path, sizeof path, "%s/left", t.dir);
	g->env[1] = env;
	start_generation(g, NULL, 0);
	while (access(path, F_OK) != 0) {
		ok(ptc_workers_let_go(t.w, &g->desc.key, &err), &err);
		nap_us(10000);
	}
	ok(ptc_workers_hold(t.w, &g->desc.key, 60000, 0, WAIT, &err), &err);
	ok(ptc_workers_slots(t.w, &g->desc.key, &slots, &n, &err), &err);
	assert_int_equal(n, 2);
	assert_null(slots[0].not_held);
	assert_non_null(slots[1].not_held);
	ptc_workers_slots_done(t.w, slots, n);
	g->desc.grace_ms = 5000;
	end(g);
}

/* A rank that clips its weights before it says that its update begins is not taken; its row says why. */
static void test_hold_clipped(void **state)
{
	static const char said[] =
		"\"survives\":false,\"survives_not\":\"its promise is broken: tensor \\\"w\\\" changed "
		"after the boundary at step ";
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "clips", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *slots;
	bool known = false;
	size_t n;

	(void)state;
	start_generation(g, NULL, 0);
	for (int i = 0; i < 20000 && !known; i++) {
		char *json;

		ok(ptc_workers_json(t.w, UUID, &json, &err), &err);
		known = strstr(json, said) && strstr(json, "\"survives_broken\":true") &&
			strstr(json, "\"survives\":true,\"survives_sampled\":");
		ptc_free(json);
		nap_us(1000);
	}
	assert_true(known);
	goes_on();
	ok(ptc_workers_hold(t.w, &g->desc.key, 60000, 0, WAIT, &err), &err);
	ok(ptc_workers_slots(t.w, &g->desc.key, &slots, &n, &err), &err);
	assert_null(slots[0].not_held);
	assert_non_null(strstr(slots[1].not_held, "was found to be broken"));
	ptc_workers_slots_done(t.w, slots, n);
	ok(ptc_workers_let_go(t.w, &g->desc.key, &err), &err);
	goes_on();
	end(g);
}

/* A program that does not promise it is left alone. */
static void test_hold_unproven(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "", NULL);
	struct ptc_error err = PTC_ERROR_INIT;

	(void)state;
	start_generation(g, NULL, 0);
	goes_on();
	ok(ptc_workers_hold(t.w, &g->desc.key, 60000, 0, WAIT, &err), &err);
	check_held(g, true);
	goes_on();
	end(g);
}

/* One rank gives up: its node holds all of them, until they are ended; then it is told what has become of it. */
static void test_leave(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_RESTART, "leaves", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_worker_event event;

	(void)state;
	start_generation(g, NULL, 0);
	assert_true(has_event(PTC_WORKER_EVENT_FAILED, &event));
	assert_true(event.rank == 1 && event.step == 5);
	assert_non_null(strstr(event.text, "gives up; its memory is held"));
	ok(ptc_workers_hold(t.w, &g->desc.key, 60000, 0, WAIT, &err), &err);
	check_held(g, false);
	g->desc.grace_ms = 5000;
	end(g);
}

/* The peer that it has seen go was killed. That is told next: it is the cause, and how the rank that gave up ends is
 * told no more. */
static void test_leave_killed(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_RESTART, "leaves", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_worker_event event;

	(void)state;
	start_generation(g, NULL, 0);
	assert_true(has_event(PTC_WORKER_EVENT_FAILED, &event));
	assert_int_equal(event.rank, 1);
	assert_int_equal(kill(pid_of(g, 0), SIGKILL), 0);
	for (int i = 0; i < 30000 && event.rank == 1; i++) {
		nap_us(1000);
		assert_true(has_event(PTC_WORKER_EVENT_FAILED, &event));
	}
	assert_true(event.rank == 0 && WIFSIGNALED(event.exit_status) && WTERMSIG(event.exit_status) == SIGKILL);
	ok(ptc_workers_hold(t.w, &g->desc.key, 60000, 0, WAIT, &err), &err);
	ok(ptc_workers_let_go(t.w, &g->desc.key, &err), &err);
	for (int i = 0; i < 30000 && ranks_in("exited") < 2; i++)
		nap_us(1000);
	assert_int_equal(ranks_in("exited"), 2);
	nap_us(100000); /* events are handed over by a thread */
	assert_true(has_event(PTC_WORKER_EVENT_FAILED, &event));
	assert_int_equal(event.rank, 0);
	end(g);
}

static void test_status(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_REBUILD, "hang", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	uint64_t step;
	bool passed;
	char *json = NULL;
	struct ptc_workers_sum sum;
	struct ptc_worker_log log;

	(void)state;
	start_generation(g, NULL, 0);
	for (int i = 0; i < 20000; i++) {
		ok(ptc_workers_json(t.w, UUID, &json, &err), &err);
		if (strstr(json, "\"loss\":0.1666") && strstr(json, "\"step\":5"))
			break;
		ptc_free(json);
		nap_us(1000);
	}
	assert_non_null(strstr(json, "\"state\":\"running\""));
	assert_non_null(strstr(json, "\"g\xc3\xbcte\":2,\"cut?\":3"));
	ptc_free(json);
	sum = ptc_workers_sum(t.w, UUID);
	assert_true(sum.ranks == 2 && sum.stepped && sum.step <= 5);
	assert_int_equal(ptc_workers_sum(t.w, "no such job").ranks, 0);
	ok(ptc_workers_log(t.w, UUID, 1, 1, &log, &err), &err);
	assert_int_equal(access(log.path, R_OK), 0);
	assert_false(log.over);
	assert_int_equal(ptc_workers_log(t.w, UUID, 7, 1, &log, &err), PTC_ENOTFOUND);
	assert_int_equal(ptc_workers_log(t.w, UUID, 1, 9, &log, &err), PTC_ENOTFOUND);
	/* its own incarnation goes, another one's calls find nothing */
	g->desc.key.incarnation = 2;
	assert_int_equal(ptc_workers_arm(t.w, &g->desc.key, 9, &passed, &step, &err), PTC_ENOTFOUND);
	g->desc.key.incarnation = 1;
}

static void test_hostile_rank(void **state)
{
	struct group *g = group(1, 1, PTC_MODE_RESTART, "raw", NULL);
	struct ptc_error err = PTC_ERROR_INIT;

	(void)state;
	assert_int_equal(ptc_workers_start(t.w, &g->desc, WAIT, &err), PTC_ESTATE);
	if (!strstr(err.text, "status 0"))
		print_error("%s\n", err.text);
	assert_non_null(strstr(err.text, "status 0"));
}

/* Bytes that are read twice are of each range twice: more pieces than there are ranges and spans. */
static void test_many_device_ranges(void **state)
{
	struct group *g = group(1, 1, PTC_MODE_RESTART, "ranges", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	static char bytes[3 * TEST_RANGES_BYTES];
	struct iovec there[3], here = { bytes, sizeof bytes };
	struct ptc_slot_view *v;
	size_t n;

	(void)state;
	ok(ptc_workers_start(t.w, &g->desc, WAIT, &err), &err);
	ok(ptc_workers_build(t.w, &g->desc, 0, false, NULL, WAIT, &err), &err);
	ok(ptc_workers_slots(t.w, &g->desc.key, &v, &n, &err), &err);
	for (size_t i = 0; i < PTC_ARRAY_LEN(there); i++)
		there[i] = (struct iovec){ (void *)(uintptr_t)v[0].tensors[0].regions[0].address, TEST_RANGES_BYTES };
	assert_int_equal(slot_read(&v[0], there, PTC_ARRAY_LEN(there), &here, 1, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "has to copy its device memory itself"));
	ptc_workers_slots_done(t.w, v, n);
}

static void test_misuse(void **state)
{
	struct group *g = group(1, 1, PTC_MODE_RESTART, "misuse", NULL);
	struct ptc_worker_event event;

	(void)state;
	g->desc.config =
		"dp=2,micro_batch=2,global_batch=10,micro_steps=1x3:1x2,vpp=3,recompute=none/full,schedule=zb1p";
	g->desc.degrees[2] = 2;
	g->desc.micro_batch = 2;
	g->desc.global_batch = 10;
	g->desc.recomputes = g->desc.scheduled = true;
	start_generation(g, NULL, 0);
	assert_true(has_event(PTC_WORKER_EVENT_FAILED, &event)); /* it leaves without ptc_finish */
	if (event.exit_status)
		print_error("%s\n", event.text);
	assert_int_equal(event.exit_status, 0);
	assert_null(strstr(event.text, "misuse: "));
}

/* The token of a process in the hands of another. */
static void test_stolen_token(void **state)
{
	struct group *g = group(1, 1, PTC_MODE_RESTART, "", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	char path[64], *env = NULL, *token = NULL, socket[160];
	struct ptc_open_options o = { .size = sizeof o, .timeout_ms = 5000 };
	struct ptc_slot_view *v;
	ptc_client *c = NULL;
	size_t n, len;

	(void)state;
	start_generation(g, NULL, 0);
	ok(ptc_workers_slots(t.w, &g->desc.key, &v, &n, &err), &err);
	snprintf(path, sizeof path, "/proc/%d/environ", (int)v[0].pid);
	ok(ptc_sys_read_file(path, 1 << 20, &env, &len, &err), &err);
	for (char *p = env; p < env + len; p += strlen(p) + 1)
		if (strncmp(p, "PTC_WORKER_TOKEN=", 17) == 0)
			token = p + 17;
	assert_non_null(token);
	snprintf(socket, sizeof socket, "%s/" UUID "/s", t.dir);
	o.token = token;
	o.socket = socket;
	assert_int_equal(ptc_open(&o, &c), PTC_R_REFUSED);
	assert_non_null(strstr(ptc_error_text(NULL), "made for process"));
	/* What was borrowed of a rank that has ended cannot be read or written any more. */
	end(g);
	{
		struct iovec there = { (void *)(uintptr_t)v[0].tensors[0].regions[0].address, 4 };
		char buf[4] = { 0 };
		struct iovec here = { buf, 4 };

		assert_int_equal(slot_read(&v[0], &there, 1, &here, 1, &err), PTC_ESTATE);
		assert_int_equal(slot_write(&v[0], &there, 1, &here, 1, &err), PTC_ESTATE);
		assert_int_equal(ptc_slot_go(&v[0], false, NULL, 0, NULL, 0, &err), PTC_ESTATE);
	}
	ptc_workers_slots_done(t.w, v, n);
	ptc_free(env);
}

/* Only what is declared, of a rank that is held. */
static void test_memory_is_guarded(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_RESTART, "", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *v;
	char buf[64];
	struct iovec there, here = { buf, 8 };
	size_t n;

	(void)state;
	start_generation(g, NULL, 0);
	ok(ptc_workers_slots(t.w, &g->desc.key, &v, &n, &err), &err);
	there = (struct iovec){ (void *)(uintptr_t)v[0].tensors[1].regions[0].address, 8 };
	assert_int_equal(slot_read(&v[0], &there, 1, &here, 1, &err), PTC_ESTATE);
	ptc_workers_slots_done(t.w, v, n);
	stop(g, 3);
	ok(ptc_workers_slots(t.w, &g->desc.key, &v, &n, &err), &err);
	ok(slot_read(&v[0], &there, 1, &here, 1, &err), &err);
	/* the end of the last row of m: what follows is the rank's own */
	there.iov_base = (void *)(uintptr_t)(v[0].tensors[0].regions[0].address +
					     (MROWS - 1) * sizeof(float[2 * MCOLS]) + (MCOLS / 2 - 1) * sizeof(float));
	there.iov_len = here.iov_len = 4;
	ok(slot_read(&v[0], &there, 1, &here, 1, &err), &err);
	there.iov_len = here.iov_len = 8;
	assert_int_equal(slot_read(&v[0], &there, 1, &here, 1, &err), PTC_EINTERNAL);
	assert_int_equal(slot_write(&v[0], &there, 1, &here, 1, &err), PTC_EINTERNAL);
	here.iov_len = 4;
	there.iov_base = (char *)there.iov_base + 4;
	there.iov_len = 4;
	assert_int_equal(slot_read(&v[0], &there, 1, &here, 1, &err), PTC_EINTERNAL);
	there.iov_len = 0;
	assert_int_equal(slot_read(&v[0], &there, 1, &here, 1, &err), PTC_EINTERNAL); /* of unequal length */
	ptc_workers_slots_done(t.w, v, n);
}

/* A rank that has given back what it declared: said with tensor and rank, and as what will not mend. */
static void test_memory_is_gone(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_RESTART, "unmaps", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *v;
	char buf[8];
	struct iovec here = { buf, sizeof buf };
	size_t n;

	(void)state;
	start_generation(g, NULL, 0);
	stop(g, 3);
	ok(ptc_workers_slots(t.w, &g->desc.key, &v, &n, &err), &err);
	for (size_t i = 0; i < n; i++) {
		struct iovec there = { NULL, sizeof buf };

		for (size_t k = 0; k < v[i].ntensors; k++)
			if (strcmp(v[i].tensors[k].name, "p") == 0)
				there.iov_base = (void *)(uintptr_t)v[i].tensors[k].regions[0].address;
		assert_non_null(there.iov_base);
		assert_int_equal(slot_read(&v[i], &there, 1, &here, 1, &err), i == 1 ? PTC_ESTATE : 0);
		assert_int_equal(strncmp(err.text, "tensor \"p\" of rank 1 ", i == 1 ? 21 : 0), 0);
	}
	ptc_workers_slots_done(t.w, v, n);
}

/* A rank that cannot write where it has declared says so, and lives. */
static void test_memory_is_read_only(void **state)
{
	struct group *g = group(1, 1, PTC_MODE_RESTART, "guards", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_filling f = { 0 };
	struct ptc_slot_rows rows = { .bytes = 8, .count = 1 };
	struct ptc_slot_view *v;
	int fd = memfd_create("state", MFD_CLOEXEC);
	size_t n;

	(void)state;
	assert_true(fd >= 0 && write(fd, "12345678", 8) == 8);
	ok(ptc_workers_start(t.w, &g->desc, WAIT, &err), &err);
	ok(ptc_workers_build(t.w, &g->desc, 0, false, NULL, WAIT, &err), &err);
	ok(ptc_workers_slots(t.w, &g->desc.key, &v, &n, &err), &err);
	for (size_t k = 0; k < v[0].ntensors; k++)
		if (strcmp(v[0].tensors[k].name, "p") == 0)
			rows.address = v[0].tensors[k].regions[0].address;
	assert_true(rows.address);
	ok(fill_rows(&v[0], &f, fd, &rows, 1, &err), &err);
	ok(ptc_slot_filled(&v[0], &f, NULL, &err), &err);
	assert_true(f.failed);
	ok(ptc_slot_go(&v[0], false, NULL, 0, NULL, 0, &err), &err);
	ptc_workers_slots_done(t.w, v, n);
	close(fd);
	stop(g, 2);
	assert_int_equal(t.nevents, 0);
}

static void copy_program(const char *to, mode_t mode)
{
	struct ptc_error err = PTC_ERROR_INIT;
	char *data;
	size_t len;

	ok(ptc_sys_read_file(self, 1 << 30, &data, &len, &err), &err);
	ok(ptc_sys_write_file(to, data, len, mode, "test", &err), &err);
	assert_int_equal(chmod(to, mode), 0); /* the umask, and what a write takes away */
	ptc_free(data);
}

static void touch_file(const char *name)
{
	char path[128];
	int fd;

	snprintf(path, sizeof path, "%s/%s", t.dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	close(fd);
}

static void wait_for_file(const char *name)
{
	char path[128];

	snprintf(path, sizeof path, "%s/%s", t.dir, name);
	for (int i = 0; i < 30000 && access(path, F_OK) != 0; i++)
		nap_us(1000);
	assert_int_equal(access(path, F_OK), 0);
}

/* A rank of user nobody that will be root's program. false: there is no such thing here. */
static bool start_turning(struct group **ret, bool running)
{
	static char env[96];
	struct ptc_error err = PTC_ERROR_INIT;
	struct group *g = group(1, 1, PTC_MODE_RESTART, "turns", NULL);
	struct statvfs fs;
	char path[128];

	if (geteuid() != 0 || statvfs(t.dir, &fs) != 0 || fs.f_flag & ST_NOSUID)
		return false;
	assert_int_equal(chmod(t.dir, 0711), 0);
	snprintf(path, sizeof path, "%s/victim", t.dir);
	copy_program(path, 04755);
	snprintf(env, sizeof env, "PTC_TEST_DIR=%s", t.dir);
	g->env[1] = env;
	g->desc.uid = 65534;
	ok(ptc_workers_start(t.w, &g->desc, WAIT, &err), &err);
	ok(ptc_workers_build(t.w, &g->desc, 0, false, NULL, WAIT, &err), &err);
	if (running) {
		go(g, NULL, 0);
		stop(g, 3);
	}
	*ret = g;
	return true;
}

static char victims_first_byte(pid_t pid)
{
	char c = 0;
	struct iovec here = { &c, 1 }, there = { (void *)(uintptr_t)TEST_TURN_ADDRESS, 1 };

	assert_int_equal(process_vm_readv(pid, &here, 1, &there, 1, 0), 1);
	return c;
}

/* A rank whose process has become another user's program, while a child of its keeps the connection: nothing of that
 * program's memory is read into the job, and nothing of the job written into it. */
static void turned(bool writing)
{
	static char bytes[TEST_TURN_BYTES];
	struct iovec here = { bytes, sizeof bytes }, there = { (void *)(uintptr_t)TEST_TURN_ADDRESS, sizeof bytes };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *v;
	struct group *g = NULL;
	size_t n;
	int rc;

	if (!start_turning(&g, !writing))
		skip();
	memset(bytes, 'x', sizeof bytes);
	ok(ptc_workers_slots(t.w, &g->desc.key, &v, &n, &err), &err);
	touch_file("turn");
	wait_for_file("turned");
	rc = writing ? slot_write(&v[0], &there, 1, &here, 1, &err) : slot_read(&v[0], &there, 1, &here, 1, &err);
	assert_int_equal(bytes[0], 'x');
	assert_int_equal(victims_first_byte(v[0].pid), 's');
	assert_int_equal(rc, PTC_EPERM);
	assert_non_null(strstr(err.text, "rank 0 (pid "));
	ptc_workers_slots_done(t.w, v, n);
}

static void test_turned_is_not_read(void **state)
{
	(void)state;
	turned(false);
}

static void test_turned_is_not_written(void **state)
{
	(void)state;
	turned(true);
}

/* ---- copiers that die or hang ---- */

/* Where the tensor "p" of a slot lies. */
static struct iovec page_of(const struct ptc_slot_view *v)
{
	struct iovec at = { NULL, 8 };

	for (size_t i = 0; i < v->ntensors; i++)
		if (strcmp(v->tensors[i].name, "p") == 0)
			at.iov_base = (void *)(uintptr_t)v->tensors[i].regions[0].address;
	assert_non_null(at.iov_base);
	return at;
}

/* Each process that copies is killed in the middle of its second copy: all is read and written all the same. */
static void test_copier_is_killed(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_RESTART, "", NULL);
	struct state s;
	uint64_t at;

	(void)state;
	assert_int_equal(setenv("PTC_FAULT", "copy.middle@2", 1), 0);
	start_generation(g, NULL, 0);
	at = stop(g, 5);
	for (int i = 0; i < 5; i++) {
		read_state(g, PTC_SLOT_STOPPED, &s);
		check_state(&s, at);
	}
	end(g);
	g = group(4, 2, PTC_MODE_RESTART, "", NULL);
	start_generation(g, &s, at);
	at = stop(g, at + 3);
	read_state(g, PTC_SLOT_STOPPED, &s);
	check_state(&s, at);
	unsetenv("PTC_FAULT");
}

/* One that is killed in each of its copies: said in one line. */
static void test_copier_is_always_killed(void **state)
{
	struct group *g = group(1, 1, PTC_MODE_RESTART, "", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *v;
	struct iovec there, here = { (char[8]){ 0 }, 8 };
	struct state s;
	uint64_t at;
	size_t n;

	(void)state;
	start_generation(g, NULL, 0);
	at = stop(g, 5);
	ok(ptc_workers_slots(t.w, &g->desc.key, &v, &n, &err), &err);
	there = (struct iovec){ (void *)(uintptr_t)v[0].tensors[0].regions[0].address, 8 };
	assert_int_equal(setenv("PTC_FAULT", "copy.middle", 1), 0);
	assert_int_equal(slot_read(&v[0], &there, 1, &here, 1, &err), PTC_EIO);
	assert_non_null(strstr(err.text, "of rank 0 (pid "));
	assert_non_null(strstr(err.text, "was ended 5 times"));
	unsetenv("PTC_FAULT");
	read_state(g, PTC_SLOT_STOPPED, &s);
	check_state(&s, at);
	ptc_workers_slots_done(t.w, v, n);
}

/* Memory that comes and goes while it is copied: the copy is made, or said to be impossible. */
static void test_memory_flickers(void **state)
{
	struct group *g = group(1, 1, PTC_MODE_RESTART, "flickers", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	unsigned done = 0, refused = 0;
	struct ptc_slot_view *v;
	struct iovec there, here;
	struct room r;
	size_t n;

	(void)state;
	start_generation(g, NULL, 0);
	stop(g, 3);
	ok(ptc_workers_slots(t.w, &g->desc.key, &v, &n, &err), &err);
	there = page_of(&v[0]);
	room_open(&r, &v[0], 8);
	here = (struct iovec){ r.map, 8 };
	for (int i = 0; i < 100000 && (i < 1000 || !done || !refused); i++) {
		int rc = ptc_slot_copy(&v[0], PTC_COPY_READ, &r.copying, &there, 1, &here, 1, PTC_PAGES_MAPPED, &err);

		assert_true(rc == 0 || rc == PTC_ESTATE);
		done += rc == 0;
		refused += rc != 0;
	}
	assert_true(done && refused);
	room_close(&r, &v[0]);
	ptc_workers_slots_done(t.w, v, n);
}

static struct {
	pid_t pid;
	int input;
} hungfs;

static void hungfs_end(void)
{
	if (!hungfs.pid)
		return;
	close(hungfs.input);
	while (waitpid(hungfs.pid, NULL, 0) < 0 && errno == EINTR)
		;
	hungfs.pid = 0;
}

static bool hungfs_begin(void)
{
	char dir[96], file[112];
	int fds[2], status;

	snprintf(dir, sizeof dir, "%s/fs", t.dir);
	snprintf(file, sizeof file, "%s/fs/w", t.dir);
	assert_true(mkdir(dir, 0755) == 0 && pipe2(fds, O_CLOEXEC) == 0);
	hungfs.input = fds[1];
	hungfs.pid = fork();
	if (hungfs.pid == 0) {
		dup2(fds[0], 0);
		execl(self, self, "--hungfs", dir, NULL);
		_exit(1);
	}
	close(fds[0]);
	while (access(file, F_OK) != 0) {
		if (waitpid(hungfs.pid, &status, WNOHANG) == hungfs.pid) {
			hungfs.pid = 0;
			close(hungfs.input);
			return false;
		}
		nap_us(1000);
	}
	return true;
}

static int setup_hang(void **state)
{
	t.copy_ms = 300;
	return setup(state);
}

static int teardown_hang(void **state)
{
	t.copy_ms = 0;
	hungfs_end();
	return teardown(state);
}

static atomic_bool let_go;

static void on_let_go(struct ptc_slot_kept *k)
{
	(void)k;
	atomic_store(&let_go, true);
}

struct hang {
	struct group *g;
	struct ptc_slot_view *v;
	size_t n;
	struct room room;
	struct ptc_slot_kept kept;
	struct iovec there, here;
};

/* Two ranks that have stopped; the first one's "p" lies where nothing answers. false: no such file system can be
 * mounted. */
static bool hang_begin(struct hang *h)
{
	static char env[96];
	struct ptc_error err = PTC_ERROR_INIT;

	if (!hungfs_begin())
		return false;
	h->g = group(2, 1, PTC_MODE_RESTART, "maps", NULL);
	snprintf(env, sizeof env, "PTC_TEST_DIR=%s", t.dir);
	h->g->env[1] = env;
	start_generation(h->g, NULL, 0);
	stop(h->g, 3);
	ok(ptc_workers_slots(t.w, &h->g->desc.key, &h->v, &h->n, &err), &err);
	room_open(&h->room, &h->v[0], 8);
	atomic_store(&let_go, false);
	h->kept = (struct ptc_slot_kept){ .done = on_let_go };
	atomic_store(&h->kept.refs, 1);
	h->room.copying.kept = &h->kept;
	h->there = page_of(&h->v[0]);
	h->here = (struct iovec){ h->room.map, 8 };
	return true;
}

static void hang_end(struct hang *h)
{
	room_close(&h->room, &h->v[0]);
	ptc_slot_kept_unref(&h->kept);
	ptc_workers_slots_done(t.w, h->v, h->n);
}

/* Memory on a file system that hangs: found out in time and said by name, not tried again, others' is copied, the ranks
 * end; what it may still be copied to is kept until the kernel lets go. */
static void test_memory_hangs(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_worker_event event;
	struct iovec there;
	struct hang h;

	(void)state;
	if (!hang_begin(&h))
		skip();
	assert_int_equal(ptc_slot_copy(&h.v[0], PTC_COPY_READ, &h.room.copying, &h.there, 1, &h.here, 1,
				       PTC_PAGES_MAPPED, &err),
			 PTC_ESTATE);
	assert_non_null(strstr(err.text, "tensor \"p\" of rank 0 (pid "));
	assert_non_null(strstr(err.text, "has not answered for 0.3 s"));
	assert_int_equal(ptc_slot_copy(&h.v[0], PTC_COPY_READ, &h.room.copying, &h.there, 1, &h.here, 1,
				       PTC_PAGES_MAPPED, &err),
			 PTC_ESTATE);
	assert_non_null(strstr(err.text, "still hangs"));
	assert_true(says("\"hangs_s\":"));
	assert_true(has_event(PTC_WORKER_EVENT_HANGS, &event));
	assert_non_null(strstr(event.text, "rank 0 (pid "));
	there = page_of(&h.v[1]);
	ok(ptc_slot_copy(&h.v[1], PTC_COPY_READ, &h.room.copying, &there, 1, &h.here, 1, PTC_PAGES_MAPPED, &err), &err);
	hang_end(&h);
	end(h.g);
	assert_false(atomic_load(&let_go));
	hungfs_end();
	for (int i = 0; i < 30000 && !atomic_load(&let_go); i++)
		nap_us(1000);
	assert_true(atomic_load(&let_go));
}

/* A frozen rank whose blobs cannot be read is not held, and its row says why; the other is, and the controller's
 * patience for the node's answer is longer. */
static void test_hold_blobs_hang(void **state)
{
	struct group *g = group(2, 1, PTC_MODE_RESTART, "strays", NULL);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_slot_view *slots;
	char env[96], path[128];
	int64_t until_ns;
	size_t n;

	(void)state;
	if (!hungfs_begin())
		skip();
	snprintf(env, sizeof env, "PTC_TEST_DIR=%s", t.dir);
	snprintf(path, sizeof path, "%s/strayed", t.dir);
	g->env[1] = env;
	start_generation(g, NULL, 0);
	while (access(path, F_OK) != 0)
		nap_us(1000);
	until_ns = ptc_sys_now_ns() + INT64_C(15000000000); /* ASK_MS of daemon/controller/recovery */
	ok(ptc_workers_hold(t.w, &g->desc.key, 60000, 0, WAIT, &err), &err);
	assert_true(ptc_sys_now_ns() < until_ns);
	ok(ptc_workers_slots(t.w, &g->desc.key, &slots, &n, &err), &err);
	assert_int_equal(n, 2);
	assert_string_equal(slots[0].not_held, "its blobs and cursors could not be read");
	assert_null(slots[1].not_held);
	ptc_workers_slots_done(t.w, slots, n);
	end(g);
}

/* Its only rank is past step 5, and waits: it reads from the file system that hangs. */
static bool reads(const struct group *g)
{
	char path[64], line[512] = "", *state;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid_of(g, 0));
	f = fopen(path, "r");
	assert_true(f && fgets(line, sizeof line, f));
	fclose(f);
	state = strrchr(line, ')');
	return state && strncmp(state, ") R", 3) != 0;
}

/* A rank that no signal ends: none is started beside it, and it is named, until it has gone. */
static void test_start_beside_stuck(void **state)
{
	struct group *g = group(1, 1, PTC_MODE_RESTART, "stuck", NULL), *next;
	struct ptc_error err = PTC_ERROR_INIT;
	static char env[96];

	(void)state;
	if (!hungfs_begin())
		skip();
	snprintf(env, sizeof env, "PTC_TEST_DIR=%s", t.dir);
	g->env[1] = env;
	start_generation(g, NULL, 0);
	for (int i = 0; i < 30000 && !(says("\"step\":5") && reads(g)); i++)
		nap_us(1000);
	ptc_workers_drop(t.w, UUID, NULL, 0, true);
	next = group(1, 2, PTC_MODE_RESTART, "", NULL);
	assert_int_equal(ptc_workers_start(t.w, &next->desc, WAIT, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "rank 0 (pid "));
	assert_non_null(strstr(err.text, "of generation 1 was killed, and has not ended 5 s later"));
	hungfs_end();
	ok(ptc_workers_start(t.w, &next->desc, WAIT, &err), &err);
}

/* The same with a caller that gives up, and a daemon that ends meanwhile. */
static void test_memory_hangs_and_ptcd_ends(void **state)
{
	struct ptc_wait wait = { .cancelled = always };
	struct ptc_error err = PTC_ERROR_INIT;
	struct hang h;

	(void)state;
	if (!hang_begin(&h))
		skip();
	h.room.copying.wait = &wait;
	assert_int_equal(ptc_slot_copy(&h.v[0], PTC_COPY_READ, &h.room.copying, &h.there, 1, &h.here, 1,
				       PTC_PAGES_MAPPED, &err),
			 PTC_ECANCELED);
	h.room.copying.wait = NULL;
	assert_int_equal(ptc_slot_copy(&h.v[0], PTC_COPY_READ, &h.room.copying, &h.there, 1, &h.here, 1,
				       PTC_PAGES_MAPPED, &err),
			 PTC_ESTATE);
	hang_end(&h);
	assert_false(atomic_load(&let_go));
	t.w = ptc_workers_free(t.w);
	assert_true(atomic_load(&let_go));
	up();
	end(h.g);
}

static void test_text_as_one_line(void **state)
{
	static const struct {
		const char *text, *line;
	} cases[] = {
		{ "", "" },
		{ "rank 1: refused", "rank 1: refused" },
		{ "rank 1: two\nlines", "rank 1: two" },
		{ "rank 1 exited; its log ends:\n", "rank 1 exited" },
		{ "rank 1 exited; its log ends:\n \n\t\n", "rank 1 exited" },
		{ "rank 1 exited; its log ends:\nx", "rank 1 exited: x" },
		{ "rank 1 exited; its log ends:\nTraceback\n  a line\nValueError: bad\r\n\n",
		  "rank 1 exited: ValueError: bad" },
	};
	char line[64];

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		assert_string_equal(cases[i].line, ptc_worker_text_line(cases[i].text, line, sizeof line));
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_text_as_one_line),
	cmocka_unit_test_setup_teardown(test_life_restart, setup, teardown),
	cmocka_unit_test_setup_teardown(test_life_rebuild, setup, teardown),
	cmocka_unit_test_setup_teardown(test_life_devices, setup_devices, teardown),
	cmocka_unit_test_setup_teardown(test_launcher, setup, teardown),
	cmocka_unit_test_setup_teardown(test_life_fast, setup, teardown),
	cmocka_unit_test_setup_teardown(test_life_ahead, setup, teardown),
	cmocka_unit_test_setup_teardown(test_stop_before_first_boundary, setup, teardown),
	cmocka_unit_test_setup_teardown(test_life_later, setup, teardown),
	cmocka_unit_test_setup_teardown(test_life_slow_exit, setup, teardown),
	cmocka_unit_test_setup_teardown(test_copied, setup, teardown),
	cmocka_unit_test_setup_teardown(test_standby, setup_devices, teardown),
	cmocka_unit_test_setup_teardown(test_restarted_while_running, setup, teardown),
	cmocka_unit_test_setup_teardown(test_restarted_by_another_version, setup, teardown),
	cmocka_unit_test_setup_teardown(test_started_where_cgroups_were_left, setup, teardown),
	cmocka_unit_test_setup_teardown(test_restarted_while_stopped, setup, teardown),
	cmocka_unit_test_setup_teardown(test_restarted_while_declared, setup, teardown),
	cmocka_unit_test_setup_teardown(test_restarted_while_ending, setup, teardown),
	cmocka_unit_test_setup_teardown(test_restarted_while_told, setup, teardown),
	cmocka_unit_test_setup_teardown(test_restarted_during_rendezvous, setup, teardown),
	cmocka_unit_test_setup_teardown(test_rank_fails, setup, teardown),
	cmocka_unit_test_setup_teardown(test_silence, setup, teardown),
	cmocka_unit_test_setup_teardown(test_rank_closes_descriptors, setup, teardown),
	cmocka_unit_test_setup_teardown(test_program_that_cannot_start, setup, teardown),
	cmocka_unit_test_setup_teardown(test_finish, setup, teardown),
	cmocka_unit_test_setup_teardown(test_due, setup, teardown),
	cmocka_unit_test_setup_teardown(test_due_left_out, setup, teardown),
	cmocka_unit_test_setup_teardown(test_hang, setup, teardown),
	cmocka_unit_test_setup_teardown(test_stall, setup_stall, teardown),
	cmocka_unit_test_setup_teardown(test_whole, setup, teardown),
	cmocka_unit_test_setup_teardown(test_hold, setup, teardown),
	cmocka_unit_test_setup_teardown(test_killed, setup, teardown),
	cmocka_unit_test_setup_teardown(test_hold_waits_in_kernel, setup, teardown),
	cmocka_unit_test_setup_teardown(test_hold_thawed, setup, teardown),
	cmocka_unit_test_setup_teardown(test_hold_unproven, setup, teardown),
	cmocka_unit_test_setup_teardown(test_hold_clipped, setup, teardown),
	cmocka_unit_test_setup_teardown(test_hold_goes_on, setup, teardown),
	cmocka_unit_test_setup_teardown(test_hold_between, setup, teardown),
	cmocka_unit_test_setup_teardown(test_left, setup, teardown),
	cmocka_unit_test_setup_teardown(test_update_alone, setup, teardown),
	cmocka_unit_test_setup_teardown(test_hold_given_up, setup, teardown),
	cmocka_unit_test_setup_teardown(test_leave, setup, teardown),
	cmocka_unit_test_setup_teardown(test_leave_killed, setup, teardown),
	cmocka_unit_test_setup_teardown(test_look_again, setup, teardown),
	cmocka_unit_test_setup_teardown(test_deaf, setup, teardown),
	cmocka_unit_test_setup_teardown(test_start_after_others, setup, teardown),
	cmocka_unit_test_setup_teardown(test_stands_and_is_given_up, setup, teardown),
	cmocka_unit_test_setup_teardown(test_status, setup, teardown),
	cmocka_unit_test_setup_teardown(test_hostile_rank, setup, teardown),
	cmocka_unit_test_setup_teardown(test_many_device_ranges, setup, teardown),
	cmocka_unit_test_setup_teardown(test_misuse, setup, teardown),
	cmocka_unit_test_setup_teardown(test_stolen_token, setup, teardown),
	cmocka_unit_test_setup_teardown(test_memory_is_guarded, setup, teardown),
	cmocka_unit_test_setup_teardown(test_memory_is_gone, setup, teardown),
	cmocka_unit_test_setup_teardown(test_memory_is_read_only, setup, teardown),
	cmocka_unit_test_setup_teardown(test_copier_is_killed, setup, teardown),
	cmocka_unit_test_setup_teardown(test_copier_is_always_killed, setup, teardown),
	cmocka_unit_test_setup_teardown(test_memory_flickers, setup, teardown),
	cmocka_unit_test_setup_teardown(test_memory_hangs, setup_hang, teardown_hang),
	cmocka_unit_test_setup_teardown(test_hold_blobs_hang, setup, teardown_hang),
	cmocka_unit_test_setup_teardown(test_start_beside_stuck, setup_hang, teardown_hang),
	cmocka_unit_test_setup_teardown(test_memory_hangs_and_ptcd_ends, setup_hang, teardown_hang),
	cmocka_unit_test_setup_teardown(test_turned_is_not_read, setup, teardown),
	cmocka_unit_test_setup_teardown(test_turned_is_not_written, setup, teardown),
};

int main(int argc, char **argv)
{

	if (argc > 1 && strcmp(argv[1], "--rank") == 0)
		return rank_main(argc, argv);
	if (argc > 2 && strcmp(argv[1], "--hungfs") == 0)
		return test_hungfs(argv[2]);
	if (argc > 2 && strcmp(argv[1], "--victim") == 0)
		return test_victim(argv[2]);
	if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
		return 1;
	signal(SIGPIPE, SIG_IGN);
	ptc_fault_init();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
