/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of imports, with clients that keep to proto/direct_read.h and clients that do not: the window cannot be
 * made shorter, or get holes once it is taken; what a client says of a part is checked. */
#include "daemon/agent/tables/import_window.h"

#include "proto/direct_read.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define UID     1000
#define PARTS   200
#define PER_UID 16

struct client {
	int conn, fd;
	uint8_t *map, key[PTC_IMPORT_WINDOW_KEY];
};

/* False: none was offered. */
static bool client_open(struct ptc_import_windows *w, struct client *ret, uid_t uid)
{
	struct ptc_import_window_reply reply;
	struct iovec iov = { &reply, sizeof reply };
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes
	};
	struct cmsghdr *c;
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
	ptc_import_windows_offer(w, fds[1], uid);
	ret->conn = fds[0];
	if (recvmsg(fds[0], &msg, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof reply) {
		close(fds[0]);
		return false;
	}
	c = CMSG_FIRSTHDR(&msg);
	assert_non_null(c);
	if (c)
		memcpy(&ret->fd, CMSG_DATA(c), sizeof(int));
	memcpy(ret->key, reply.key, sizeof ret->key);
	assert_int_equal(reply.magic, PTC_IMPORT_WINDOW_MAGIC);
	assert_int_equal(reply.bytes, PTC_IMPORT_WINDOW_BYTES);
	ret->map = mmap(NULL, PTC_IMPORT_WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, ret->fd, 0);
	assert_true(ret->map != MAP_FAILED);
	return true;
}

static void client_seal(const struct client *c)
{
	assert_int_equal(fallocate(c->fd, 0, 0, PTC_IMPORT_WINDOW_BYTES), 0);
	assert_int_equal(fcntl(c->fd, F_ADD_SEALS, PTC_IMPORT_WINDOW_SEALS), 0);
}

static void client_close(struct client *c)
{
	munmap(c->map, PTC_IMPORT_WINDOW_BYTES);
	close(c->fd);
	close(c->conn);
}

static struct ptc_import_window *client_begin(struct ptc_import_windows *w, struct client *c)
{
	struct ptc_import_window *window = NULL;

	assert_true(client_open(w, c, UID));
	client_seal(c);
	assert_int_equal(ptc_import_window_take(w, c->key, sizeof c->key, UID, &window, NULL), 0);
	return window;
}

static void say(const struct client *c, uint32_t at, uint32_t bytes, uint64_t offset)
{
	struct ptc_import_window_part part = { PTC_IMPORT_WINDOW_MAGIC, 7, offset, at, bytes };

	assert_int_equal(send(c->conn, &part, sizeof part, 0), sizeof part);
}

/* Random places and lengths, among them the whole window and its last byte. */
static void test_parts(void **state)
{
	struct ptc_import_windows *w = ptc_import_windows_new();
	struct client c;
	struct ptc_import_window *window = client_begin(w, &c);
	struct ptc_import_window_taken taken;
	struct ptc_import_part part;

	(void)state;
	srand(7);
	for (size_t i = 0; i < PTC_IMPORT_WINDOW_BYTES; i++)
		c.map[i] = (uint8_t)rand();
	assert_int_equal(ptc_import_window_next(window, &part, NULL), PTC_ETIMEOUT);
	for (uint32_t i = 0; i < PARTS; i++) {
		uint32_t at = i == 0   ? 0
			      : i == 1 ? PTC_IMPORT_WINDOW_BYTES - 1
				       : (uint32_t)rand() % PTC_IMPORT_WINDOW_BYTES;
		uint32_t most = PTC_IMPORT_WINDOW_BYTES - at, bytes = i == 0 ? most : 1 + (uint32_t)rand() % most;

		say(&c, at, bytes, UINT64_MAX - i);
		assert_int_equal(ptc_import_window_next(window, &part, NULL), 0);
		assert_int_equal(part.item, 7);
		assert_int_equal(part.offset, UINT64_MAX - i);
		assert_int_equal(part.len, bytes);
		assert_memory_equal(part.data, c.map + at, bytes);
		assert_int_equal(ptc_import_window_taken(window, &part, NULL), 0);
		assert_int_equal(recv(c.conn, &taken, sizeof taken, 0), sizeof taken);
		assert_int_equal(taken.bytes, bytes);
	}
	shutdown(c.conn, SHUT_WR);
	assert_int_equal(ptc_import_window_next(window, &part, NULL), 0);
	assert_int_equal(part.len, 0);
	ptc_import_window_free(window);
	client_close(&c);
	ptc_import_windows_free(w);
}

static void test_malformed(void **state)
{
	static const struct ptc_import_window_part wrong[] = {
		{ PTC_IMPORT_WINDOW_MAGIC, 0, 0, 0, 0 },
		{ PTC_IMPORT_WINDOW_MAGIC, 0, 0, 0, PTC_IMPORT_WINDOW_BYTES + 1 },
		{ PTC_IMPORT_WINDOW_MAGIC, 0, 0, 1, PTC_IMPORT_WINDOW_BYTES },
		{ PTC_IMPORT_WINDOW_MAGIC, 0, 0, PTC_IMPORT_WINDOW_BYTES, 1 },
		{ PTC_IMPORT_WINDOW_MAGIC, 0, 0, UINT32_MAX, 2 },
		{ PTC_IMPORT_WINDOW_MAGIC, 0, 0, 2, UINT32_MAX },
		{ PTC_IMPORT_WINDOW_MAGIC + 1, 0, 0, 0, 1 },
	};
	static const uint8_t long_one[sizeof wrong[0] + 1];
	struct ptc_import_windows *w = ptc_import_windows_new();
	struct client c;
	struct ptc_import_window *window = client_begin(w, &c);
	struct ptc_import_part part;

	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		send(c.conn, &wrong[i], sizeof wrong[i], 0);
		assert_int_equal(ptc_import_window_next(window, &part, NULL), PTC_EINVAL);
	}
	send(c.conn, &wrong[0], sizeof wrong[0] - 1, 0);
	assert_int_equal(ptc_import_window_next(window, &part, NULL), PTC_EINVAL);
	send(c.conn, long_one, sizeof long_one, 0);
	assert_int_equal(ptc_import_window_next(window, &part, NULL), PTC_EINVAL);
	client_close(&c); /* killed: the part that it had said is the last one */
	assert_int_equal(ptc_import_window_next(window, &part, NULL), 0);
	assert_int_equal(part.len, 0);
	ptc_import_window_free(window);
	ptc_import_windows_free(w);
}

/* A client that reads no answers fills the socket, and is told so, instead of holding the thread. */
static void test_no_answers_taken(void **state)
{
	struct ptc_import_windows *w = ptc_import_windows_new();
	struct client c;
	struct ptc_import_window *window = client_begin(w, &c);
	struct ptc_import_part part;
	int rc = 0;

	(void)state;
	for (int i = 0; i < 1000000 && !rc; i++) {
		say(&c, 0, 1, 0);
		assert_int_equal(ptc_import_window_next(window, &part, NULL), 0);
		rc = ptc_import_window_taken(window, &part, NULL);
	}
	assert_int_equal(rc, PTC_EPEER);
	ptc_import_window_free(window);
	client_close(&c);
	ptc_import_windows_free(w);
}

/* Every way to take pages from under the daemon. */
static void test_sealed(void **state)
{
	struct ptc_import_windows *w = ptc_import_windows_new();
	struct ptc_import_window *window;
	struct ptc_import_part part;
	struct client c;
	struct stat st;

	(void)state;
	assert_true(client_open(w, &c, UID));
	assert_int_equal(ftruncate(c.fd, 0), -1);
	assert_int_equal(ftruncate(c.fd, 2 * PTC_IMPORT_WINDOW_BYTES), -1);
	assert_int_equal(ptc_import_window_take(w, c.key, sizeof c.key, UID, &window, NULL), PTC_EINVAL);
	client_close(&c);

	assert_true(client_open(w, &c, UID));
	memset(c.map, 1, PTC_IMPORT_WINDOW_BYTES);
	assert_int_equal(fallocate(c.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
	assert_int_equal(fcntl(c.fd, F_ADD_SEALS, PTC_IMPORT_WINDOW_SEALS), 0);
	assert_int_equal(ptc_import_window_take(w, c.key, sizeof c.key, UID, &window, NULL),
			 PTC_EINVAL); /* a page lacks */
	client_close(&c);

	assert_true(client_open(w, &c, UID));
	client_seal(&c);
	assert_int_equal(ptc_import_window_take(w, c.key, sizeof c.key, UID, &window, NULL), 0);
	assert_int_equal(fstat(c.fd, &st), 0);
	assert_true((uint64_t)st.st_blocks * 512 >= PTC_IMPORT_WINDOW_BYTES);
	assert_int_equal(ftruncate(c.fd, 0), -1);
	assert_int_equal(fallocate(c.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
	assert_int_equal(madvise(c.map, 4096, MADV_REMOVE), -1);
	assert_int_equal(write(c.fd, "x", 1), -1);
	assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, c.fd, 0) == MAP_FAILED);
	say(&c, 0, PTC_IMPORT_WINDOW_BYTES, 0);
	assert_int_equal(ptc_import_window_next(window, &part, NULL), 0);
	for (size_t i = 0; i < part.len; i++)
		assert_int_equal(((const uint8_t *)part.data)[i], 0);
	ptc_import_window_free(window);
	client_close(&c);
	ptc_import_windows_free(w);
}

static void test_whose(void **state)
{
	struct ptc_import_windows *w = ptc_import_windows_new();
	struct client c[PER_UID], more;
	struct ptc_import_window *window;
	uint8_t wrong[PTC_IMPORT_WINDOW_KEY];

	(void)state;
	for (size_t i = 0; i < PER_UID; i++)
		assert_true(client_open(w, &c[i], UID));
	assert_false(client_open(w, &more, UID));
	assert_true(client_open(w, &more, UID + 1)); /* room for others */
	client_seal(&more);
	memcpy(wrong, more.key, sizeof wrong);
	wrong[0] ^= 1;
	assert_int_equal(ptc_import_window_take(w, wrong, sizeof wrong, UID + 1, &window, NULL), PTC_ESTATE);
	assert_int_equal(ptc_import_window_take(w, more.key, 15, UID + 1, &window, NULL), PTC_ESTATE);
	assert_int_equal(ptc_import_window_take(w, more.key, sizeof more.key, UID, &window, NULL), PTC_ESTATE);
	assert_int_equal(ptc_import_window_take(w, more.key, sizeof more.key, UID + 1, &window, NULL), 0);
	ptc_import_window_free(window);
	assert_int_equal(ptc_import_window_take(w, more.key, sizeof more.key, UID + 1, &window, NULL), PTC_ESTATE);
	client_close(&more);

	for (size_t i = 0; i < PER_UID; i++)
		client_close(&c[i]);
	assert_false(ptc_import_windows_expire(w)); /* their clients have gone */
	assert_true(client_open(w, &more, UID));
	assert_true(ptc_import_windows_expire(w));
	ptc_import_windows_free(w);
	client_close(&more);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts),
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_no_answers_taken),
		cmocka_unit_test(test_sealed),
		cmocka_unit_test(test_whose),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
