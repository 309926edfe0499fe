/* SPDX-License-Identifier: Apache-2.0 */
/* What is read of processes, of the kernel's log, and of files that a user names. Whole sets: tests/test_hang.py. */
#include "daemon/workers/evidence/evidence_dumps.h"
#include "daemon/workers/evidence/process_evidence.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/child.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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

		prctl(PR_SET_PDEATHSIG, SIGKILL); /* also if the test fails */
		signal(SIGURG, nothing);
		child = fork();
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
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

/* The text of the program has about `all` bytes. */
static void limits(pid_t pid, size_t all)
{
	static const char said[] = "\nthe rest is left out\n";
	static const char before[] = "what it has told\n";

	for (size_t max = 100; max < all / 2; max += 37) {
		struct ptc_buf b = PTC_BUF_INIT;

		ptc_buf_puts(&b, before);
		ptc_evidence_process(&b, pid, max);
		assert_in_range(b.len, 1, max);
		assert_int_equal(b.len, strlen(b.data));
		assert_memory_equal(b.data, before, strlen(before));
		assert_string_equal(b.data + b.len - strlen(said), said);
		assert_int_equal(count(b.data, "left out"), 1);
		ptc_buf_done(&b);
	}
}

static void test_process(void **state)
{
	struct ptc_buf b = PTC_BUF_INIT;
	struct ptc_process_stat st;
	char line[64];
	pid_t child, pid = start(&child);

	for (int i = 0; i < 10000 && (!b.len || !strstr(b.data, " second: S (sleeping)\n")); i++) {
		ptc_buf_reset(&b); /* the second thread is on its way to its name, and to sleep */
		ptc_evidence_process(&b, pid, SIZE_MAX);
	}
	assert_int_equal(count(b.data, "\n  thread "), 3);
	assert_non_null(strstr(b.data, " second: S (sleeping)\n"));
	snprintf(line, sizeof line, "\n  thread %d ", (int)child);
	assert_non_null(strstr(b.data, line));
	assert_non_null(strstr(strstr(b.data, line), ": T (stopped)\n"));
	assert_null(strstr(b.data, "left out"));
	limits(pid, b.len);
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
	ptc_evidence_process(&b, pid, SIZE_MAX);
	assert_non_null(strstr(b.data, "has ended"));
	ptc_buf_done(&b);
}

/* ---- files that a user names --------------------------------------------------------------------------- */

static int64_t soon(void)
{
	return ptc_sys_now_ns() + INT64_C(60000000000);
}

static void opens(uid_t uid, const char *name, int failure)
{
	struct ptc_evidence_file file;

	assert_int_equal(ptc_evidence_read_as(uid, at(name), 4, soon(), &file), failure);
	if (failure) {
		assert_null(file.data);
		return;
	}
	assert_int_equal(file.len, 4);
	assert_in_range(file.size, 5, 100);
	assert_memory_equal(file.data, file.size == 7 ? "secr" : "dump", 4);
	ptc_free(file.data);
}

static bool reads_busy(void)
{
	struct ptc_evidence_file file;
	int failed = ptc_evidence_read_as(geteuid(), at("ours"), 4, soon(), &file);

	ptc_free(file.data);
	return failed == EBUSY;
}

struct reader {
	pthread_t thread;
	const char *path;
	int failed;
};

static void *read_often(void *arg)
{
	struct reader *r = arg;

	for (int i = 0; i < 50 && !r->failed; i++) {
		struct ptc_evidence_file file;

		r->failed = ptc_evidence_read_as(geteuid(), r->path, 4, soon(), &file);
		ptc_free(file.data);
	}
	return NULL;
}

/* Who has to wait for its turn is woken, and gets it: nobody sleeps until the time of its wait is over. */
static void test_read_in_turn(void **state)
{
	const int64_t end = soon();
	struct reader readers[4] = { 0 };

	(void)state;
	put("ours", "secret\n", 1);
	for (size_t i = 0; i < PTC_ARRAY_LEN(readers); i++) {
		readers[i].path = at("ours");
		assert_int_equal(pthread_create(&readers[i].thread, NULL, read_often, &readers[i]), 0);
	}
	for (size_t i = 0; i < PTC_ARRAY_LEN(readers); i++) {
		assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
		assert_int_equal(readers[i].failed, 0);
	}
	assert_true(ptc_sys_now_ns() < end);
}

static void test_read_as(void **state)
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
	opens(geteuid(), "", EINVAL);   /* the folder */
	for (int i = 0; i < 100; i++) { /* who waits no more does not keep the next one from reading */
		struct ptc_evidence_file file;
		int failed = ptc_evidence_read_as(geteuid(), at("ours"), 4, 0, &file);

		if (failed != ETIMEDOUT && failed != EBUSY)
			assert_int_equal(failed, 0);
		ptc_free(file.data);
	}
	while (reads_busy())
		sched_yield();
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

/* ---- dumps ----------------------------------------------------------------------------------------------- */

static void holds(const char *name, const char *like, size_t len)
{
	char a[4096], b[4096];
	FILE *f = fopen(at(name), "r"), *g;
	struct stat st;

	assert_non_null(f);
	assert_int_equal(fstat(fileno(f), &st), 0);
	assert_int_equal(st.st_size, len);
	assert_int_equal(st.st_mode & 07777, 0400);
	g = fopen(at(like), "r");
	assert_non_null(g);
	for (size_t n; len; len -= n) {
		n = PTC_MIN(len, sizeof a);
		assert_int_equal(fread(a, 1, n, f), n);
		assert_int_equal(fread(b, 1, n, g), n);
		assert_memory_equal(a, b, n);
	}
	fclose(f);
	fclose(g);
}

/* A disk that gets full while a dump is written (here: the size that a file may have) costs that dump, and no other. */
static void test_dumps(void **state)
{
	static const char *const names[] = { "small", "large", "not there", "third", "cut", "late" };
	struct ptc_evidence_dump dumps[PTC_ARRAY_LEN(names)];
	struct ptc_buf said = PTC_BUF_INIT;
	struct rlimit was, less;
	char paths[PTC_ARRAY_LEN(names)][128];

	put("small", "%08zu", 1000);
	put("large", "%08zu", 20000);
	put("third", "third%03zu", 1000);
	put("cut", "cut%05zu", 1000);
	put("late", "late%04zu", 1);
	for (size_t i = 0; i < PTC_ARRAY_LEN(names); i++) {
		snprintf(paths[i], sizeof paths[i], "%s", at(names[i]));
		dumps[i] = (struct ptc_evidence_dump){ .rank = (uint32_t)i, .path = paths[i] };
	}
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	less = (struct rlimit){ .rlim_cur = 10000, .rlim_max = was.rlim_max };
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &less), 0);
	ptc_evidence_dumps(dir, geteuid(), dumps, PTC_ARRAY_LEN(names), 8000 + 8000 + 5000, &said);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
	signal(SIGXFSZ, SIG_DFL);
	holds("dump-0", "small", 8000);
	holds("dump-3", "third", 8000);
	holds("dump-4", "cut", 5000);
	assert_int_equal(access(at("dump-1"), F_OK), -1); /* not half of it */
	assert_int_equal(access(at("dump-2"), F_OK), -1);
	assert_int_equal(access(at("dump-5"), F_OK), -1);
	assert_int_equal(count(said.data, "\n"), PTC_ARRAY_LEN(names));
	assert_non_null(strstr(said.data, "is kept as dump-3: 8000 of 8000 bytes\n"));
	assert_non_null(strstr(said.data, "is kept as dump-4: 5000 of 8000 bytes\n"));
	assert_non_null(strstr(said.data, "/large, is not kept: "));
	assert_non_null(strstr(said.data, "/not there: No such file or directory\n"));
	assert_non_null(strstr(said.data, "/late, is left out: there is no room for more dumps\n"));
	ptc_buf_done(&said);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_kernel, make_dir, remove_dir),
		cmocka_unit_test(test_process),
		cmocka_unit_test_setup_teardown(test_read_as, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_read_in_turn, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_dumps, make_dir, remove_dir),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
