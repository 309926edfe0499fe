/* SPDX-License-Identifier: Apache-2.0 */
/* Files that ptcd fills, with readers that keep to proto/direct_read.h and readers that do not. */
#include "daemon/agent/fill/fill_files.h"

#include "proto/direct_read.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cmocka.h>
#include <linux/magic.h>

#define SIZE  100000
#define FILES 16 /* at once */

struct reader {
	int conn, fd; /* its own ends */
	uint8_t key[PTC_FILL_KEY];
	struct ptc_fill_file *file; /* of ptcd */
};

static int memory_file(void)
{
	int fd = memfd_create("fill", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(0, ftruncate(fd, SIZE));
	return fd;
}

/* Offers fd, which is taken over, and returns the status of the answer. */
static int offer(struct ptc_fill_files *f, struct reader *r, int fd, uid_t uid)
{
	struct ptc_fill_reply reply;
	int ends[2];

	assert_int_equal(0, socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	ptc_fill_files_offer(f, ends[1], uid, fd, &r->file);
	assert_int_equal(sizeof reply, recv(ends[0], &reply, sizeof reply, 0));
	assert_int_equal(PTC_FILL_MAGIC, reply.magic);
	assert_int_equal(reply.status == 0, r->file != NULL);
	r->conn = ends[0];
	memcpy(r->key, reply.key, sizeof r->key);
	if (reply.status) { /* both are still ours */
		close(ends[0]);
		close(ends[1]);
		assert_true(fd < 0 || !close(fd));
	}
	return reply.status;
}

static struct ptc_fill_files *begin(struct reader *r)
{
	struct ptc_fill_files *f = ptc_fill_files_new();

	assert_non_null(f);
	r->fd = memory_file();
	assert_int_equal(0, offer(f, r, dup(r->fd), geteuid()));
	return f;
}

static bool has_ended(const struct reader *r)
{
	char byte;

	return recv(r->conn, &byte, 1, MSG_DONTWAIT) == 0;
}

static void end(struct ptc_fill_files *f, struct reader *r)
{
	ptc_fill_files_end(f, r->file);
	assert_true(has_ended(r));
	close(r->conn);
	close(r->fd);
	assert_null(ptc_fill_files_free(f));
}

static int get(struct ptc_fill_files *f, const struct reader *r, uint64_t at, uint64_t bytes,
	       struct ptc_fill_file **ret)
{
	return ptc_fill_file_get(f, r->key, sizeof r->key, geteuid(), at, bytes, ret, NULL);
}

static void test_write(void **state)
{
	struct reader r;
	struct ptc_fill_files *f = begin(&r);
	struct ptc_fill_file *file;
	char got[4];

	(void)state;
	assert_int_equal(0, get(f, &r, SIZE - 3, 3, &file));
	assert_int_equal(0, ptc_fill_file_write(file, SIZE - 3, "abc", 3, NULL));
	ptc_fill_file_put(f, file);
	assert_int_equal(3, pread(r.fd, got, sizeof got, SIZE - 3));
	assert_memory_equal("abc", got, 3);
	end(f, &r);
}

/* A reader that has seen the end of its connection knows that nobody writes any more. */
static void test_end_waits(void **state)
{
	struct reader r;
	struct ptc_fill_files *f = begin(&r);
	struct ptc_fill_file *file, *again;

	(void)state;
	assert_int_equal(0, get(f, &r, 0, 1, &file));
	ptc_fill_files_end(f, r.file);
	assert_int_equal(PTC_ESTATE, get(f, &r, 0, 1, &again));
	assert_false(has_ended(&r));
	assert_int_equal(0, ptc_fill_file_write(file, 0, "x", 1, NULL));
	ptc_fill_file_put(f, file);
	assert_true(has_ended(&r));
	close(r.conn);
	close(r.fd);
	assert_null(ptc_fill_files_free(f));
}

static void test_ranges(void **state)
{
	struct reader r;
	struct ptc_fill_files *f = begin(&r);
	struct ptc_fill_file *file;

	(void)state;
	assert_int_equal(PTC_EINVAL, get(f, &r, SIZE - 3, 4, &file));
	assert_int_equal(PTC_EINVAL, get(f, &r, SIZE + 1, 0, &file));
	assert_int_equal(PTC_EINVAL, get(f, &r, UINT64_MAX, 2, &file));
	assert_int_equal(PTC_EINVAL, get(f, &r, 1, UINT64_MAX, &file));
	assert_int_equal(PTC_ESTATE, ptc_fill_file_get(f, r.key, 3, geteuid(), 0, 1, &file, NULL));
	assert_int_equal(PTC_ESTATE, ptc_fill_file_get(f, r.key, sizeof r.key, geteuid() + 1, 0, 1, &file, NULL));
	r.key[5] ^= 1;
	assert_int_equal(PTC_ESTATE, get(f, &r, 0, 1, &file));
	end(f, &r);
}

/* Files that could make ptcd wait, that it cannot write to, or that are not the asker's to give. */
static void test_refused(void **state)
{
	struct reader r, other;
	struct ptc_fill_files *f = begin(&r);
	char path[64], name[] = "fill-XXXXXX";
	int pipes[2], fd = mkstemp(name);
	struct statfs fs;

	(void)state;
	assert_int_equal(PTC_EINVAL, offer(f, &other, -1, 0));
	assert_int_equal(0, pipe(pipes));
	close(pipes[0]);
	assert_int_equal(PTC_EINVAL, offer(f, &other, pipes[1], 0));
	snprintf(path, sizeof path, "/proc/self/fd/%d", r.fd);
	assert_int_equal(PTC_EINVAL, offer(f, &other, open(path, O_RDONLY), 0));
	assert_int_equal(PTC_EINVAL, offer(f, &other, open(path, O_RDWR | O_APPEND), 0));
	assert_int_equal(PTC_EPERM, offer(f, &other, memory_file(), geteuid() + 1));
	assert_true(fd >= 0 && !unlink(name) && !fstatfs(fd, &fs));
	if (fs.f_type != TMPFS_MAGIC)
		assert_int_equal(PTC_EINVAL, offer(f, &other, fd, 0));
	else
		close(fd);
	if (geteuid() == 0) {
		fd = memory_file();
		assert_int_equal(0, fchown(fd, 1000, 1000));
		assert_int_equal(PTC_EPERM, offer(f, &other, fd, 0));
	}
	end(f, &r);
}

static void test_limit(void **state)
{
	struct reader r[FILES], other;
	struct ptc_fill_files *f = begin(&r[0]);

	(void)state;
	for (size_t i = 1; i < FILES; i++)
		assert_int_equal(0, offer(f, &r[i], r[i].fd = memory_file(), 0));
	assert_int_equal(PTC_ELIMIT, offer(f, &other, memory_file(), 0));
	for (size_t i = 1; i < FILES; i++) {
		ptc_fill_files_end(f, r[i].file);
		close(r[i].conn);
	}
	end(f, &r[0]);
}

/* No room, or a file that its owner has sealed meanwhile: an error, never a signal. One that was made shorter grows. */
static void test_cannot_write(void **state)
{
	struct ptc_fill_files *f = ptc_fill_files_new();
	struct reader r = { .fd = memfd_create("fill", MFD_CLOEXEC | MFD_ALLOW_SEALING) };
	struct ptc_fill_file *file;

	(void)state;
	assert_true(f && r.fd >= 0 && !ftruncate(r.fd, SIZE));
	assert_int_equal(0, offer(f, &r, dup(r.fd), geteuid()));
	assert_int_equal(0, get(f, &r, 0, SIZE, &file));
	assert_int_equal(0, ftruncate(r.fd, 0));
	assert_int_equal(0, ptc_fill_file_write(file, SIZE - 1, "x", 1, NULL));
	assert_int_equal(0, fcntl(r.fd, F_ADD_SEALS, F_SEAL_WRITE));
	assert_true(ptc_fill_file_write(file, 0, "x", 1, NULL) < 0);
	ptc_fill_file_put(f, file);
	end(f, &r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_write),   cmocka_unit_test(test_end_waits), cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_refused), cmocka_unit_test(test_limit),     cmocka_unit_test(test_cannot_write),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
