/* SPDX-License-Identifier: Apache-2.0 */
/* Opening where there is no ptcd, or not the right one: an answer in time, one line that names variable or socket,
 * nothing left. */
#include "client/lib/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOKEN "0123456789abcdef0123456789abcdef"

static int count(const char *dir)
{
	DIR *d = opendir(dir);
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void refused(const struct ptc_open_options *o, int want, const char *text)
{
	int fds = count("/proc/self/fd"), threads = count("/proc/self/task");
	ptc_client *c = NULL;

	assert_int_equal(ptc_open(o, &c), want);
	assert_null(c);
	if (!strstr(ptc_error_text(NULL), text))
		print_error("%s\n", ptc_error_text(NULL));
	assert_non_null(strstr(ptc_error_text(NULL), text));
	assert_null(strchr(ptc_error_text(NULL), '\n'));
	assert_int_equal(count("/proc/self/fd"), fds);
	for (int i = 0; i < 5000 && count("/proc/self/task") > threads; i++)
		usleep(1000); /* a joined thread is still listed for a moment */
	assert_int_equal(count("/proc/self/task"), threads);
}

static void test_environment(void **state)
{
	(void)state;
	unsetenv("PTC_WORKER_SOCKET");
	unsetenv("PTC_WORKER_TOKEN");
	refused(NULL, PTC_R_LOST, "PTC_WORKER_SOCKET");
	setenv("PTC_WORKER_SOCKET", "/nowhere/s", 1);
	refused(NULL, PTC_R_LOST, "PTC_WORKER_TOKEN");
	setenv("PTC_WORKER_TOKEN", "short", 1);
	refused(NULL, PTC_R_INVALID, "32 hex digits");
	setenv("PTC_WORKER_TOKEN", "0123456789abcdef0123456789abcdeF", 1);
	refused(NULL, PTC_R_INVALID, "32 hex digits");
	unsetenv("PTC_WORKER_SOCKET");
	unsetenv("PTC_WORKER_TOKEN");
}

static void test_options(void **state)
{
	struct ptc_open_options o = { .size = 4 };

	(void)state;
	refused(&o, PTC_R_INVALID, "size");
	o = (struct ptc_open_options){ .size = sizeof o, .socket = "/nowhere/s", .token = TOKEN, .timeout_ms = 30 };
	refused(&o, PTC_R_LOST, "/nowhere/s");
	o.socket = "no-slash-and-much-longer-than-an-address-of-a-unix-socket-can-be-in-linux-which-is-one-hundred-and-"
		   "seven-bytes-only";
	refused(&o, PTC_R_LOST, "no-slash");
}

struct listener {
	char dir[256], path[300];
	int fd;
};

static void listen_there(struct listener *l)
{
	struct sockaddr_un a;
	int unused;

	l->fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	snprintf(l->dir, sizeof l->dir, "%s/ptc-open-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(l->dir));
	snprintf(l->path, sizeof l->path, "%s/s", l->dir);
	assert_int_equal(ptc_local_address(l->path, &a, &unused), 0);
	assert_int_equal(bind(l->fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(l->fd, 5), 0);
}

static void listen_no_more(struct listener *l)
{
	close(l->fd);
	unlink(l->path);
	rmdir(l->dir);
}

/* Somebody else answers. */
static void answered_by(const void *frame, size_t len, int want, const char *text)
{
	struct listener l;
	pid_t pid;
	int unused;
	struct ptc_open_options o = { .size = sizeof o, .socket = l.path, .token = TOKEN, .timeout_ms = 3000 };

	listen_there(&l);
	pid = fork();
	if (pid == 0) {
		alarm(60);
		for (;;) {
			int c = accept(l.fd, NULL, NULL);

			if (send(c, frame, len, MSG_NOSIGNAL) < 0)
				_exit(1);
			recv(c, &unused, sizeof unused, 0);
			recv(c, &unused, sizeof unused, 0); /* until it hangs up */
			close(c);
		}
	}
	refused(&o, want, text);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	listen_no_more(&l);
}

static void test_strange_daemon(void **state)
{
	struct ptc_local_out o = { .grow = realloc };
	struct ptc_local_header h = { .magic = PTC_LOCAL_MAGIC, .type = PTC_LOCAL_REFUSED };
	char frame[512];

	(void)state;
	answered_by("hello", 5, PTC_R_LOST, "s (from options)");
	ptc_local_put_refusal(&o, PTC_R_STALE, "over");
	h.length = (uint32_t)o.len;
	memcpy(frame, &h, sizeof h);
	memcpy(frame + sizeof h, o.data, o.len);
	answered_by(frame, sizeof h + o.len, PTC_R_STALE, "over");
	o.len = 0;
	ptc_local_put_welcome(&o, &(struct ptc_local_welcome){ .protocol = 99, .version = "9.9" });
	h.type = PTC_LOCAL_WELCOME;
	h.length = (uint32_t)o.len;
	memcpy(frame, &h, sizeof h);
	memcpy(frame + sizeof h, o.data, o.len);
	answered_by(frame, sizeof h + o.len, PTC_R_VERSION, "9.9");
	free(o.data);
}

/* ---- a caller that has failed ---- */

static sem_t sending, may_send;
static _Atomic bool watched;

/* libptc's own call: its thread stands where it sends a tensor for the first time. */
ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	const struct ptc_local_header *h = msg->msg_iov[0].iov_base;

	if (watched && msg->msg_iovlen == 2 && h->magic == PTC_LOCAL_MAGIC && h->type == PTC_LOCAL_TENSOR) {
		watched = false;
		sem_post(&sending);
		sem_wait(&may_send);
	}
	return syscall(SYS_sendmsg, fd, msg, flags);
}

static int page(void)
{
	int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	return ftruncate(fd, PTC_LOCAL_PAGE) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0 ? fd : -1;
}

/* A daemon of one rank, until that one hangs up. 0: the rank has not declared its memory. */
static int serve_rank(int listener)
{
	struct ptc_local_out o = { .grow = realloc };
	struct ptc_local_message m = { 0 };
	struct ptc_local_conn conn;
	size_t at = 0;
	bool more;
	int rc;

	ptc_local_conn_init(&conn, accept(listener, NULL, NULL), realloc);
	while ((rc = ptc_local_receive(&conn, &m, &more)) >= 0) {
		struct ptc_local_declared declared;

		if (rc == 0) {
			usleep(more ? 0 : 1000);
			continue;
		}
		at = o.len = 0;
		if (m.type == PTC_LOCAL_HELLO) {
			ptc_local_put_welcome(&o, &(struct ptc_local_welcome){ .protocol = PTC_LOCAL_PROTOCOL,
									       .version = "1",
									       .features = PTC_LOCAL_TAKES_LAYOUT });
			ptc_local_send(&conn, PTC_LOCAL_WELCOME, o.data, o.len, page(), &at);
		} else if (m.type == PTC_LOCAL_NEXT) {
			ptc_local_put_generation(&o, &(struct ptc_local_generation){
							     .generation = 1, .world = 1, .config = "", .job = "j" });
			ptc_local_send(&conn, PTC_LOCAL_GENERATION, o.data, o.len, -1, &at);
		} else if (m.type == PTC_LOCAL_DECLARED) {
			if (!ptc_local_get_declared(m.data, m.len, &declared) ||
			    declared.what == PTC_LOCAL_DECLARES_MEMORY)
				return 3;
		}
	}
	return 0;
}

/* Somebody closes our descriptors while its tensors are being said, and ptc_restore fails for it. The program may use
 * its memory for something else then, so ptcd does not hear where it lies. */
static void test_declares_no_more(void **state)
{
	struct listener l;
	int64_t shape = 16;
	struct ptc_shard_box box = { .extent = { 16 } };
	struct ptc_tensor_desc tensor = { .size = sizeof tensor,
					  .name = "w",
					  .dtype = "U8",
					  .ndim = 1,
					  .shape = &shape,
					  .boxes = &box,
					  .nboxes = 1 };
	struct ptc_open_options o = { .size = sizeof o, .socket = l.path, .token = TOKEN, .timeout_ms = 60000 };
	struct ptc_generation gen = { .size = sizeof gen };
	int status;
	ptc_client *c;
	pid_t pid;

	(void)state;
	listen_there(&l);
	pid = fork();
	if (pid == 0) {
		alarm(60);
		_exit(serve_rank(l.fd));
	}
	sem_init(&sending, 0, 0);
	sem_init(&may_send, 0, 0);
	assert_int_equal(ptc_open(&o, &c), 0);
	assert_int_equal(ptc_next(c, &gen), 1);
	tensor.data = l.path;
	assert_int_equal(ptc_tensor_declare(c, &tensor), 0);
	watched = true;
	assert_int_equal(ptc_declared(c), 0);
	sem_wait(&sending);
	close(c->wake[1].fd);
	assert_int_equal(ptc_restore(c), PTC_R_SYSTEM);
	sem_post(&may_send);
	ptc_close(c);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	listen_no_more(&l);
}

/* What a configuration says of ranks' micro steps counts, unless the caller's structure ends before it. */
static void test_unequal_steps(void)
{
	struct ptc_sampling s = { sizeof s, 100, 1, 10, 2, 3, 1, "tp=2,micro_steps=1x3:2x1,order=x" };
	uint64_t ids[2], slots[18], lengths[10] = { 0 };
	float w[2];

	assert_int_equal(ptc_micro_steps(&s), 3);
	assert_int_equal(ptc_rank_micro_steps(&s, 0), 3);
	assert_int_equal(ptc_rank_micro_steps(&s, 2), 1);
	assert_int_equal(ptc_rank_micro_steps(&s, 3), 0);
	assert_int_equal(ptc_micro_batch(&s, 20, 1, 0, ids, w), 0); /* slots 0 to 5 are of the first micro step */
	assert_true(ids[0] == 26 && ids[1] == 27 && w[0] == 1 && w[1] == 1);
	assert_int_equal(ptc_micro_batch(&s, 20, 1, 1, ids, w), 0);
	assert_true(w[0] == 0 && w[1] == 0 && ids[0] >= 20 && ids[0] < 30);
	assert_int_equal(ptc_balance_step(&s, lengths, 1, 0, slots, NULL), PTC_R_INVALID);
	assert_non_null(strstr(ptc_error_text(NULL), "unequally many micro steps"));
	s.size = offsetof(struct ptc_sampling, config); /* as a program compiled before there was one */
	assert_int_equal(ptc_micro_steps(&s), 2);
	assert_int_equal(ptc_rank_micro_steps(&s, 2), 2);
	s.size = sizeof s;
	s.config = NULL;
	assert_int_equal(ptc_micro_steps(&s), 2);
	s.config = "micro_steps=1x3:1x1"; /* of other ranks */
	assert_int_equal(ptc_micro_steps(&s), 0);
	s.config = "micro_steps=";
	assert_int_equal(ptc_micro_steps(&s), 0);
}

/* What needs no ptcd: each misuse is refused, in a line; what the numbers are is tested in order/ and tests/. */
static void test_samples(void **state)
{
	struct ptc_sampling s = { sizeof s, 100, 7, 5, 2, 2, 0 }, small = s, none = s;
	struct ptc_balance balance = { .size = sizeof balance }, short_one = { .size = 1 };
	uint64_t lengths[5] = { 9, 1, 1, 1, 3 }, slots[8], ids[2];
	struct ptc_slice slices[2];
	float weights[2];

	(void)state;
	small.size = 8;
	none.dp = 0;
	assert_int_equal(ptc_balance_step(&s, lengths, 1, 0, slots, &balance), 0);
	assert_true(balance.max == 12 && balance.total == 18 && balance.count_max == 22 && balance.count_total == 26);
	assert_int_equal(ptc_balance_step(&s, lengths, 1, 0, slots, NULL), 0);
	assert_int_equal(ptc_balance_step(NULL, lengths, 1, 0, slots, NULL), PTC_R_INVALID);
	assert_int_equal(ptc_balance_step(&small, lengths, 1, 0, slots, NULL), PTC_R_INVALID);
	assert_int_equal(ptc_balance_step(&none, lengths, 1, 0, slots, NULL), PTC_R_INVALID);
	assert_int_equal(ptc_balance_step(&s, NULL, 1, 0, slots, NULL), PTC_R_INVALID);
	assert_int_equal(ptc_balance_step(&s, lengths, 1, 0, NULL, NULL), PTC_R_INVALID);
	assert_int_equal(ptc_balance_step(&s, lengths, 1, 0, slots, &short_one), PTC_R_INVALID);
	assert_int_equal(ptc_balance_step(&s, lengths, UINT64_MAX / 9, 0, slots, NULL), PTC_R_LIMIT);
	assert_non_null(strstr(ptc_error_text(NULL), "the costs of 5 samples do not fit 64 bits"));
	s.global_batch = UINT64_C(1) << 62;
	assert_int_equal(ptc_balance_step(&s, lengths, 1, 0, slots, NULL), PTC_R_MEMORY);
	assert_int_equal(ptc_micro_steps(&none), 0);
	assert_int_equal(ptc_micro_batch(&s, 0, 0, 2, ids, weights), PTC_R_INVALID);
	test_unequal_steps();
	assert_int_equal(ptc_sequence_slice(10, 2, 1, 0, slices), 1);
	assert_true(slices[0].first == 5 && slices[0].length == 5 && slices[0].real == 5);
	assert_int_equal(ptc_sequence_slice(10, 2, 1, 1, slices), 2);
	assert_true(slices[0].first == 3 && slices[1].first == 6 && slices[1].length == 3 && slices[1].real == 3);
	assert_int_equal(ptc_sequence_slice(10, 2, 2, 1, slices), PTC_R_INVALID);
	assert_int_equal(ptc_sequence_slice(0, 2, 1, 1, slices), PTC_R_INVALID);
	assert_int_equal(ptc_sequence_slice(10, 2, 1, 1, NULL), PTC_R_INVALID);
}

static void *nothing(void *arg)
{
	return arg;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_environment),    cmocka_unit_test(test_options),
		cmocka_unit_test(test_strange_daemon), cmocka_unit_test(test_declares_no_more),
		cmocka_unit_test(test_samples),
	};

	pthread_t thread;

	/* A sanitizer starts a thread of its own with the first one of the program's, and keeps it. */
	if (pthread_create(&thread, NULL, nothing, NULL) == 0)
		pthread_join(thread, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
