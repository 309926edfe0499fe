/* SPDX-License-Identifier: Apache-2.0 */
/* What is read of processes, of the kernel's log, and of files that a user names. Whole sets: tests/test_hang.py. */
#include "daemon/workers/evidence/process_evidence.h"

#include "base/sys/child.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static int make_dir(void **state)
{
	snprintf(dir, sizeof dir, "/tmp/ptc-evidence-XXXXXX");
	return mkdtemp(dir) && chmod(dir, 0755) == 0 ? 0 : -1;
}

static int remove_dir(void **state)
{
	char command[128];

	snprintf(command, sizeof command, "rm -r %s", dir);
	return system(command);
}

static const char *at(const char *name)
{
	static char path[128];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

static void put(const char *name, const char *text, size_t times)
{
	FILE *f = fopen(at(name), "w");

	for (size_t i = 0; i < times; i++)
		fprintf(f, text, i);
	assert_int_equal(fclose(f), 0);
}

static size_t count(const char *text, const char *what)
{
	size_t n = 0;

	for (const char *p = strstr(text, what); p; p = strstr(p + 1, what))
		n++;
	return n;
}

static void test_kernel(void **state)
{
	struct ptc_buf b = PTC_BUF_INIT;

	put("one",
	    "6,10,5000001,-;usb 1-1: new device\n SUBSYSTEM=usb\n"
	    "4,11,7000002,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n",
	    1);
	ptc_evidence_kernel(&b, at("one"));
	assert_string_equal(b.data,
			    "the kernel's log has 1 lines about errors of devices (Xid):\n"
			    "  7.000002 s after boot: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n");
	ptc_buf_reset(&b);
	put("none", "6,10,5000001,-;usb 1-1: new device\n", 1);
	ptc_evidence_kernel(&b, at("none"));
	assert_string_equal(b.data, "the kernel's log has 0 lines about errors of devices (Xid)\n");
	ptc_buf_reset(&b);
	put("many", "4,1,1,-;NVRM: Xid number %zu.\n", 250);
	ptc_evidence_kernel(&b, at("many"));
	assert_int_equal(count(b.data, "NVRM: Xid number"), 100);
	assert_non_null(strstr(b.data, "NVRM: Xid number 249."));
	assert_null(strstr(b.data, "NVRM: Xid number 149."));
	ptc_buf_reset(&b);
	ptc_evidence_kernel(&b, at("not there"));
	assert_non_null(strstr(b.data, "No such file or directory"));
	ptc_buf_done(&b);
}

/* ---- processes ---------------------------------------------------------------------------------- */

static void *wait_for_ever(void *arg)
{
	prctl(PR_SET_NAME, "second");
	if (write(*(int *)arg, "t", 1) == 1)
		pause();
	return NULL;
}

static void nothing(int sig)
{
	(void)sig;
}

/* A program with two threads, a handler for SIGURG and a child that is stopped. Returns its pid; *ret_child: that
 * one's.
 */
static pid_t start(pid_t *ret_child)
{
	int fds[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		pid_t child;
		pthread_t t;

		signal(SIGURG, nothing);
		child = fork();
		if (child == 0) {
			signal(SIGURG, SIG_DFL);
			raise(SIGSTOP);
			_exit(0);
		}
		waitpid(child, NULL, WUNTRACED);
		if (write(fds[1], &child, sizeof child) != sizeof child ||
		    pthread_create(&t, NULL, wait_for_ever, &fds[1]) != 0)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(fds[0], ret_child, sizeof *ret_child), sizeof *ret_child);
	assert_int_equal(read(fds[0], &byte, 1), 1);
	close(fds[0]);
	close(fds[1]);
	return pid;
}

static void test_process(void **state)
{
	struct ptc_buf b = PTC_BUF_INIT;
	struct ptc_process_stat st;
	char line[64];
	pid_t child, pid = start(&child);

	ptc_evidence_process(&b, pid);
	assert_int_equal(count(b.data, "\n  thread "), 3);
	assert_non_null(strstr(b.data, " second: S (sleeping)\n"));
	snprintf(line, sizeof line, "\n  thread %d ", (int)child);
	assert_non_null(strstr(b.data, line));
	assert_non_null(strstr(strstr(b.data, line), ": T (stopped)\n"));
	assert_true(ptc_evidence_catches(pid, SIGURG));
	assert_false(ptc_evidence_catches(pid, SIGUSR1));
	assert_false(ptc_evidence_catches(child, SIGURG));
	assert_int_equal(kill(child, SIGURG), 0); /* who has no handler is not ended by being asked */
	assert_true(ptc_process_stat(child, &st));
	assert_int_equal(st.state, 'T');
	kill(child, SIGKILL);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_false(ptc_evidence_catches(pid, SIGURG));
	ptc_buf_reset(&b);
	ptc_evidence_process(&b, pid);
	assert_non_null(strstr(b.data, "has ended"));
	ptc_buf_done(&b);
}

/* ---- files that a user names --------------------------------------------------------------------------- */

static void opens(uid_t uid, const char *name, int failure)
{
	int fd = ptc_evidence_open_as(uid, at(name));
	int why = errno;

	assert_int_equal(fd >= 0, failure == 0);
	if (failure)
		assert_int_equal(why, failure);
	if (fd >= 0)
		close(fd);
}

static void test_open_as(void **state)
{
	char target[128];
	const uid_t somebody = 65534;

	put("ours", "secret\n", 1);
	assert_int_equal(chmod(at("ours"), 0600), 0);
	snprintf(target, sizeof target, "%s", at("ours"));
	assert_int_equal(symlink(target, at("link")), 0);
	assert_int_equal(mkfifo(at("fifo"), 0666), 0);
	opens(geteuid(), "ours", 0);
	opens(geteuid(), "fifo", EINVAL);
	opens(geteuid(), "link", ELOOP);
	opens(geteuid(), "not there", ENOENT);
	opens(geteuid(), "", EINVAL); /* the folder */
	if (geteuid() != 0) {
		opens(somebody, "ours", EPERM);
		return;
	}
	opens(somebody, "ours", EACCES);
	put("theirs", "dump\n", 1);
	assert_int_equal(chmod(at("theirs"), 0400) | chown(at("theirs"), somebody, 0), 0);
	opens(somebody, "theirs", 0);
	assert_int_equal(chmod(at("ours"), 0060), 0); /* our group's, which they do not have */
	opens(somebody, "ours", EACCES);
	opens(geteuid(), "ours", 0); /* we are who we were */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_kernel, make_dir, remove_dir),
		cmocka_unit_test(test_process),
		cmocka_unit_test_setup_teardown(test_open_as, make_dir, remove_dir),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
