/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gpu/client/test_gpu_world.h"

#include "base/alloc.h"
#include "base/check.h"

#include <dirent.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char *in(const struct world *w, const char *file, char *ret, size_t size)
{
	snprintf(ret, size, "%s/%s", w->dir, file);
	return ret;
}

static int before(const char *text, const char *part)
{
	const char *at = strstr(text, part);

	return (int)(at ? (size_t)(at - text) : strlen(text));
}

/* What a sanitizer says of a process that we start goes into the folder, where world_end looks for it. */
static void sanitizer_log(const char *variable, const char *dir)
{
	const char *options = getenv(variable) ? getenv(variable) : "";
	char all[1024];

	snprintf(all, sizeof all, "%.*s:log_path=%s/sanitizer", before(options, ":log_path="), options, dir);
	setenv(variable, all, 1);
}

void world_kernels(const char *value)
{
	setenv("PTC_GPU_KERNELS", value, 1);
}

/* tests/gpu/fake_cuda.h has this text too. */
static void write_image(struct world *w)
{
	char path[128];
	FILE *f = fopen(in(w, "image", path, sizeof path), "w");

	assert_non_null(f);
	fputs("kernels of the fake driver\n", f);
	fclose(f);
	world_kernels(path);
}

struct world *world_begin(const struct ptc_gpu_client_config *config)
{
	struct ptc_gpu_client_config usual = { .pinned_max = 64 << 20, .copiers = 2, .hang_ms = 60000 };
	struct world *w = calloc(1, sizeof *w);

	snprintf(w->dir, sizeof w->dir, "/tmp/ptc-gpu-XXXXXX");
	assert_non_null(mkdtemp(w->dir));
	setenv("PTC_FAKE_GPU", w->dir, 1);
	write_image(w);
	sanitizer_log("ASAN_OPTIONS", w->dir);
	sanitizer_log("TSAN_OPTIONS", w->dir);
	w->chunks_fd = -1;
	assert_int_equal(ptc_gpu_client_new(config ? config : &usual, &w->c, &w->err), 0);
	return w;
}

void world_faults(struct world *w, const char *rules)
{
	char path[128];
	FILE *f = fopen(in(w, "faults", path, sizeof path), "w");

	assert_non_null(f);
	fputs(rules, f);
	fclose(f);
}

bool world_has(struct world *w, const char *file)
{
	char path[128];

	return access(in(w, file, path, sizeof path), F_OK) == 0;
}

void world_touch(struct world *w, const char *file)
{
	char path[128];
	FILE *f = fopen(in(w, file, path, sizeof path), "w");

	assert_non_null(f);
	fclose(f);
}

unsigned world_reported(struct world *w, pid_t pid, const char *line)
{
	char name[64], path[128], text[512];
	size_t len = strlen(line);
	unsigned number = 0;
	FILE *f;

	snprintf(name, sizeof name, "report-%d", (int)pid);
	f = fopen(in(w, name, path, sizeof path), "r");
	if (!f)
		return 0;
	while (fgets(text, sizeof text, f))
		if (strncmp(text, line, len) == 0 && text[len] == ' ')
			number = (unsigned)atoi(text + len);
	fclose(f);
	return number;
}

/* Lines "left THING 0" and "count THING 0" are right; after "count wrong" comes text. */
static void check_report(const char *path, bool may_leave)
{
	char text[512];
	FILE *f = fopen(path, "r");
	bool bad = false;

	assert_non_null(f);
	while (fgets(text, sizeof text, f)) {
		unsigned number = 0;

		if (strncmp(text, "call ", 5) == 0 || (may_leave && strncmp(text, "left ", 5) == 0))
			continue;
		if (sscanf(text, "left %*s %u", &number) != 1 && sscanf(text, "count %*s %u", &number) != 1)
			number = 1;
		if (number)
			print_error("%s: %s", path, text);
		bad |= number != 0;
	}
	fclose(f);
	if (bad)
		fail_msg("the fake driver complains: %s", path);
}

static void check_and_remove(struct world *w)
{
	DIR *d = opendir(w->dir);
	struct dirent *e;
	char path[512];

	assert_non_null(d);
	while ((e = readdir(d))) {
		snprintf(path, sizeof path, "%s/%s", w->dir, e->d_name);
		if (strncmp(e->d_name, "report-", 7) == 0)
			check_report(path, w->may_leave);
		if (strncmp(e->d_name, "sanitizer", 9) == 0)
			fail_msg("a sanitizer complains: %s", path);
		if (e->d_name[0] != '.')
			unlink(path);
	}
	closedir(d);
	assert_int_equal(rmdir(w->dir), 0);
}

void world_end(struct world *w)
{
	ptc_gpu_client_free(w->c);
	for (unsigned i = 0; i < w->nranks; i++)
		rank_end(&w->ranks[i], 0);
	if (w->chunks)
		munmap(w->chunks, w->chunk_bytes);
	if (w->chunks_fd >= 0)
		close(w->chunks_fd);
	check_and_remove(w);
	free(w);
}

void world_map_chunks(struct world *w, bool pinned)
{
	const char *uuid = pinned ? "GPU-d0d0d0d0-d0d0-d0d0-d0d0-d0d0d0d0d0d0" : NULL;
	int rc = ptc_gpu_client_map_host(w->c, w->chunks_fd, w->chunk_bytes, uuid, &w->host, &w->o, &w->err);

	if (rc)
		fail_msg("map_host: %s", w->err.text);
}

void world_chunks(struct world *w, uint64_t bytes, bool pinned)
{
	w->chunk_bytes = bytes;
	w->chunks_fd = memfd_create("chunks", MFD_CLOEXEC);
	assert_true(w->chunks_fd >= 0);
	assert_int_equal(ftruncate(w->chunks_fd, (off_t)bytes), 0);
	w->chunks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, w->chunks_fd, 0);
	assert_ptr_not_equal(w->chunks, MAP_FAILED);
	world_map_chunks(w, pinned);
}

/* ---- ranks ---- */

struct test_rank *world_rank(struct world *w, int device)
{
	struct test_rank *r = &w->ranks[w->nranks++];
	char ordinal[16];
	int fds[2];

	assert_true(w->nranks <= WORLD_RANKS);
	snprintf(ordinal, sizeof ordinal, "%d", device);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
	r->pid = fork();
	assert_true(r->pid >= 0);
	if (r->pid == 0) {
		if (fds[1] == PTC_GPU_FD || dup2(fds[1], PTC_GPU_FD) < 0)
			_exit(1);
		setenv("PTC_FAKE_GPU_SOUND", "1", 1);
		execl("/proc/self/exe", "rank", "--rank", ordinal, NULL);
		_exit(1);
	}
	close(fds[1]);
	r->socket = fds[0];
	return r;
}

struct test_rank_reply rank_do(struct test_rank *r, const struct test_rank_order *q, int *ret_fds)
{
	int fds[PTC_GPU_FDS_MAX];
	struct test_rank_reply a;
	unsigned nfds;

	assert_int_equal(ptc_gpu_send(r->socket, q, sizeof *q, NULL, 0, NULL, 0), 0);
	assert_int_equal(ptc_gpu_receive(r->socket, &a, sizeof a, ret_fds ? ret_fds : fds, &nfds), sizeof a);
	return a;
}

uint64_t rank_alloc(struct test_rank *r, enum test_rank_kind kind, uint64_t bytes, uint64_t handle_bytes, uint64_t seed)
{
	struct test_rank_order q = {
		.op = RANK_ALLOC, .kind = kind, .bytes = bytes, .handle_bytes = handle_bytes, .value = seed
	};

	return rank_do(r, &q, NULL).address;
}

void rank_free(struct test_rank *r, uint64_t address)
{
	struct test_rank_order q = { .op = RANK_FREE, .address = address };

	assert_int_equal(rank_do(r, &q, NULL).rc, 0);
}

struct ptc_gpu_export rank_export(struct test_rank *r, uint64_t address, uint64_t bytes)
{
	struct test_rank_order q = { .op = RANK_EXPORT, .address = address, .bytes = bytes };
	struct test_rank_reply a = rank_do(r, &q, NULL);

	if (a.rc)
		fail_msg("export: %s", a.text);
	return a.e;
}

bool rank_has(struct test_rank *r, uint64_t address, uint64_t bytes, uint64_t seed)
{
	struct test_rank_order q = { .op = RANK_CHECK, .address = address, .bytes = bytes, .value = seed };

	return rank_do(r, &q, NULL).rc == 0;
}

void rank_end(struct test_rank *r, int signal)
{
	int status;

	if (!r->pid)
		return;
	if (signal)
		kill(r->pid, signal);
	close(r->socket);
	assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
	assert_true(signal ? WIFSIGNALED(status) : status == 0);
	r->pid = 0;
}

/* ---- binding ---- */

int world_bind(struct world *w, struct test_rank *r, uint64_t address, const struct ptc_gpu_export *e,
	       struct ptc_gpu_ref *ret)
{
	uint32_t missing;
	int rc = ptc_gpu_client_bind(w->c, e, ret, &missing, &w->o, &w->err);

	for (uint64_t first = 0; rc == 0 && missing; first = e->handles - missing) {
		struct test_rank_order q = { .op = RANK_FDS, .address = address, .e = *e, .first = first };
		int fds[PTC_GPU_FDS_MAX];

		q.count = PTC_MIN(missing, PTC_GPU_FDS_MAX);
		assert_int_equal(rank_do(r, &q, fds).rc, 0);
		rc = ptc_gpu_client_handles(w->c, *ret, fds, q.count, &missing, &w->o, &w->err);
		for (unsigned i = 0; i < q.count; i++)
			close(fds[i]);
	}
	return rc;
}

struct ptc_gpu_part world_flat(uint64_t device_at, uint64_t other_at, uint64_t bytes)
{
	return (struct ptc_gpu_part){ device_at, other_at, bytes, 1, 1, bytes, bytes, bytes, bytes };
}
