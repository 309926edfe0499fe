/* SPDX-License-Identifier: Apache-2.0 */
/* Opening where there is no ptcd, or not the right one: an answer in time, one line that names variable or socket, nothing left. */
#include "client/lib/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Somebody else answers. */
static void answered_by(const void *frame, size_t len, int want, const char *text)
{
	char dir[256], path[300];
	pid_t pid;
	struct sockaddr_un a;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), unused;
	struct ptc_open_options o = { .size = sizeof o, .socket = path, .token = TOKEN, .timeout_ms = 3000 };

	snprintf(dir, sizeof dir, "%s/ptc-open-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/s", dir);
	assert_int_equal(ptc_local_address(path, &a, &unused), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(fd, 5), 0);
	pid = fork();
	if (pid == 0) {
		alarm(60);
		for (;;) {
			int c = accept(fd, NULL, NULL);

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
	close(fd);
	unlink(path);
	rmdir(dir);
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

static void *nothing(void *arg)
{
	return arg;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_environment),
		cmocka_unit_test(test_options),
		cmocka_unit_test(test_strange_daemon),
	};

	pthread_t thread;

	/* A sanitizer starts a thread of its own with the first one of the program's, and keeps it. */
	if (pthread_create(&thread, NULL, nothing, NULL) == 0)
		pthread_join(thread, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
