/* SPDX-License-Identifier: Apache-2.0 */
/* Children of /bin/sh, which tell by a pipe what they have got. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/child.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define LONG_MS 60000

/* Runs a script and returns what it prints; its status. */
static int run(const char *script, struct ptc_child_args args, char *text, size_t size)
{
	char name[] = "sh", flag[] = "-c", body[1024];
	char *argv[] = { name, flag, body, NULL };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_child c;
	int fds[2], status;

	snprintf(body, sizeof body, "%s", script);
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	args.path = "/bin/sh";
	args.argv = argv;
	args.output = fds[1];
	assert_int_equal(ptc_child_start(&args, &c, &err), 0);
	close(fds[1]);
	assert_true(ptc_child_read(fds[0], LONG_MS, text, size) >= 0);
	close(fds[0]);
	assert_true(ptc_child_wait(&c, LONG_MS, &status));
	ptc_child_close(&c);
	assert_int_equal(c.pid, 0);
	assert_int_equal(c.pidfd, -1);
	return status;
}

static int start_sh(const char *script, struct ptc_child *ret)
{
	char name[] = "sh", flag[] = "-c", body[256];
	char *argv[] = { name, flag, body, NULL };

	snprintf(body, sizeof body, "%s", script);
	return ptc_child_start(&(struct ptc_child_args){ .path = "sh", .argv = argv }, ret, NULL);
}

static int file_with(const char *text)
{
	int fd = memfd_create("ptc", 0); /* not close-on-exec: only what is given may arrive */

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	return fd;
}

/* Given in an order in which each would be overwritten by the copy of the one before. */
static void descriptors_arrive_in_their_order(void **state)
{
	int a = file_with("first "), b = file_with("second "), c = file_with("third "), other = file_with("other");
	int low[] = { a, b, c }, fds[3];
	char text[256], script[256];

	for (size_t i = 0; i < 3; i++) /* sources 4, 5 and 3 for targets 3, 4 and 5 */
		assert_true((fds[i] = fcntl(low[i], F_DUPFD, 40)) >= 40);
	for (int i = 0; i < 3; i++)
		assert_int_equal(dup2(fds[i], 3 + (i + 1) % 3), 3 + (i + 1) % 3);
	assert_true((other = fcntl(other, F_DUPFD, 50)) >= 50);
	snprintf(script, sizeof script,
		 "cat <&3; cat <&4; cat <&5; for i in 6 40 %d; do test -e /proc/$$/fd/$i && echo more; done; cat",
		 other);
	assert_int_equal(run(script, (struct ptc_child_args){ .fds = (int[]){ 4, 5, 3 }, .nfds = 3 }, text,
			     sizeof text),
			 0);
	assert_string_equal(text, "first second third ");
}

static void a_program_that_cannot_run_is_an_error(void **state)
{
	char name[] = "none";
	char *argv[] = { name, NULL };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_child c = PTC_CHILD_NONE;
	struct ptc_child_args args = { .path = "/nonexistent/none", .argv = argv };

	assert_int_equal(ptc_child_start(&args, &c, &err), PTC_ENOTFOUND);
	assert_non_null(strstr(err.text, "cannot start /nonexistent/none: "));
	args = (struct ptc_child_args){ .path = "/bin/sh", .argv = argv, .dir = "/nonexistent" };
	assert_int_equal(ptc_child_start(&args, &c, &err), PTC_ENOTFOUND);
	assert_non_null(strstr(err.text, " in /nonexistent: "));
	args = (struct ptc_child_args){ .path = "/bin/sh", .argv = argv, .fds = (int[]){ 1000000 }, .nfds = 1 };
	assert_int_equal(ptc_child_start(&args, &c, &err), PTC_EIO);
	assert_int_equal(c.pidfd, -1);
	assert_true(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

static void an_end_is_told_once(void **state)
{
	struct ptc_child c;
	char text[64];
	int status = -1;

	assert_int_equal(run("exit 3", (struct ptc_child_args){ 0 }, text, sizeof text), 3 << 8);
	assert_int_equal(WTERMSIG(run("kill -SEGV $$", (struct ptc_child_args){ 0 }, text, sizeof text)), SIGSEGV);
	assert_int_equal(start_sh("read x; exit 5", &c), 0); /* /dev/null is at its end */
	assert_true(ptc_child_wait(&c, -1, &status));
	assert_int_equal(WEXITSTATUS(status), 5);
	assert_true(ptc_child_wait(&c, 0, &status));
	assert_int_equal(status, 0);
	ptc_child_signal(&c, SIGKILL); /* nothing happens, to nobody else either */
	ptc_child_close(&c);
	ptc_child_close(&c);
	assert_true(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

static void a_child_that_lasts_is_ended(void **state)
{
	struct ptc_child c;

	assert_int_equal(start_sh("while :; do sleep 1; done", &c), 0);
	assert_false(ptc_child_wait(&c, 0, NULL));
	assert_false(ptc_child_wait(&c, 20, NULL));
	ptc_child_end(&c, LONG_MS);
	assert_int_equal(start_sh("trap '' TERM; kill -STOP $$; while :; do sleep 1; done", &c), 0);
	ptc_child_end(&c, 50); /* stopped: SIGTERM does nothing */
	assert_true(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

static void note_end(void *arg)
{
	atomic_store((atomic_bool *)arg, true);
}

/* A thread ends it: its starter goes on at once. */
static void an_end_is_left_to_a_thread(void **state)
{
	atomic_bool ended = false;
	struct ptc_child c;

	assert_int_equal(start_sh("trap '' TERM; kill -STOP $$; while :; do sleep 1; done", &c), 0);
	ptc_child_end_later(&c, 50, note_end, &ended);
	assert_int_equal(c.pid, 0);
	assert_int_equal(c.pidfd, -1);
	while (!atomic_load(&ended))
		usleep(1000);
	assert_true(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

static unsigned long long mask_of(const char *text, const char *key)
{
	const char *line = strstr(text, key);

	assert_non_null(line);
	return strtoull(line + strlen(key), NULL, 16);
}

static void nothing_handle(int sig)
{
	(void)sig;
}

static void signals_are_as_asked(void **state)
{
	static const char script[] = "while read -r line; do echo \"$line\"; done </proc/$$/status";
	const unsigned long long usr1 = 1ULL << (SIGUSR1 - 1), usr2 = 1ULL << (SIGUSR2 - 1);
	char text[8192];
	sigset_t some, old;

	sigemptyset(&some);
	sigaddset(&some, SIGTERM);
	sigprocmask(SIG_BLOCK, &some, &old);
	signal(SIGUSR1, SIG_IGN);
	signal(SIGUSR2, nothing_handle);
	assert_int_equal(run(script, (struct ptc_child_args){ 0 }, text, sizeof text), 0);
	assert_int_equal(mask_of(text, "SigBlk:"), 0);
	assert_true(mask_of(text, "SigIgn:") & usr1);
	assert_false((mask_of(text, "SigIgn:") | mask_of(text, "SigCgt:")) & usr2);
	assert_int_equal(run(script, (struct ptc_child_args){ .default_signals = true }, text, sizeof text), 0);
	assert_int_equal(mask_of(text, "SigIgn:"), 0);
	sigprocmask(SIG_SETMASK, NULL, &some);
	assert_true(sigismember(&some, SIGTERM)); /* ours are as they were */
	sigprocmask(SIG_SETMASK, &old, NULL);
	signal(SIGUSR1, SIG_DFL);
	signal(SIGUSR2, SIG_DFL);
}

static void session_folder_and_environment(void **state)
{
	static char only[] = "ONLY=this";
	char dir[] = "/tmp/ptc_child.XXXXXX", text[512], expected[512];
	char *envp[] = { only, NULL };
	struct ptc_child_args args = { .session = true, .dir = dir, .envp = envp, .errors = -1 };

	assert_non_null(mkdtemp(dir));
	snprintf(expected, sizeof expected, "%s this unset 0077 own\n", dir);
	assert_int_equal(run("echo $(pwd) $ONLY ${HOME:-unset} $(umask) "
			     "$(read _ _ _ _ _ s _ </proc/$$/stat; test $s = $$ && echo own); echo x >&2",
			     args, text, sizeof text),
			 0);
	assert_string_equal(text, expected);
	assert_int_equal(rmdir(dir), 0);
}

/* As a daemon finds what an earlier one has left. */
static void a_pid_file_finds_the_process(void **state)
{
	char dir[] = "/tmp/ptc_child.XXXXXX", path[64], name[] = "sh", flag[] = "-c", body[] = "kill -STOP $$";
	char *argv[] = { name, flag, body, NULL }, *line;
	struct ptc_child_args args = { .path = "/bin/sh", .argv = argv, .dir = dir, .pid_file = "pid" };
	struct ptc_process_stat then, now;
	struct ptc_child c;
	size_t len;
	int fd;

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/pid", dir);
	assert_int_equal(ptc_child_start(&args, &c, NULL), 0);
	assert_int_equal(ptc_sys_read_file(path, 4096, &line, &len, NULL), 0);
	assert_true(ptc_process_stat_parse(line, &then));
	assert_int_equal(then.pid, c.pid);
	assert_int_equal(then.parent, getpid());
	fd = ptc_process_open(then.pid, then.start_time, &now);
	assert_true(fd >= 0);
	assert_int_equal(now.pid, c.pid);
	assert_string_equal(now.name, "sh");
	close(fd);
	assert_int_equal(ptc_process_open(then.pid, then.start_time + 1, &now), -1);
	ptc_child_end(&c, 0);
	assert_int_equal(ptc_process_open(then.pid, then.start_time, NULL), -1);
	assert_false(ptc_process_stat(then.pid, &now));
	ptc_free(line);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(dir), 0);
}

static void a_name_may_hold_anything(void **state)
{
	static const char line[] = "17 (a) (b\n) R 5 17 17 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876543210 1 2 3\n";
	struct ptc_process_stat s;

	assert_true(ptc_process_stat_parse(line, &s));
	assert_int_equal(s.pid, 17);
	assert_string_equal(s.name, "a) (b\n");
	assert_int_equal(s.state, 'R');
	assert_int_equal(s.parent, 5);
	assert_true(s.start_time == UINT64_C(9876543210));
	assert_false(ptc_process_stat_parse("17 (a) R 5", &s));
	assert_false(ptc_process_stat_parse("", &s));
}

static void reading_has_an_end(void **state)
{
	char text[8];
	int fds[2];

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	assert_int_equal(write(fds[1], "abc", 3), 3);
	assert_int_equal(ptc_child_read(fds[0], 20, text, sizeof text), -1);
	assert_int_equal(errno, ETIMEDOUT);
	assert_int_equal(write(fds[1], "0123456789", 10), 10);
	assert_int_equal(ptc_child_read(fds[0], LONG_MS, text, sizeof text), 7);
	assert_string_equal(text, "0123456");
	close(fds[1]);
	assert_int_equal(ptc_child_read(fds[0], LONG_MS, text, sizeof text), 3);
	assert_string_equal(text, "789");
	close(fds[0]);
	assert_int_equal(ptc_child_read(fds[0], LONG_MS, text, sizeof text), -1);
	assert_int_equal(errno, EBADF);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(descriptors_arrive_in_their_order),
		cmocka_unit_test(a_program_that_cannot_run_is_an_error),
		cmocka_unit_test(an_end_is_told_once),
		cmocka_unit_test(a_child_that_lasts_is_ended),
		cmocka_unit_test(an_end_is_left_to_a_thread),
		cmocka_unit_test(signals_are_as_asked),
		cmocka_unit_test(session_folder_and_environment),
		cmocka_unit_test(a_pid_file_finds_the_process),
		cmocka_unit_test(a_name_may_hold_anything),
		cmocka_unit_test(reading_has_an_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
