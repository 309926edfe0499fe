/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that outlive us, with the real helper and real programs: each case with a cgroup of its own and with a
 * process group only. The place of ptcd is taken by this test, or by a child of it that is killed. Each case ends by
 * looking for what it may have left: folders, cgroups, processes, descriptors. */
#include "daemon/workers/process/cgroup.h"
#include "daemon/workers/process/freeze.h"
#include "daemon/workers/process/priority.h"
#include "daemon/workers/process/process.h"
#include "daemon/workers/process/spawn.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TOKEN "0123456789abcdef0123456789abcdef"

static struct {
	char root[64], dir[128], other[96]; /* dir: the process's folder; other: for files of the test's programs */
	char cgroup[200];                   /* "": none */
	char name[64];                      /* the process's cgroup */
	int fds;
} w;

static bool eventually(bool (*cond)(void *), void *arg)
{
	for (int i = 0; i < 30000; i++) {
		if (cond(arg))
			return true;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	return false;
}

static bool exists(void *path)
{
	return access(path, F_OK) == 0;
}

static bool gone(void *pid)
{
	struct ptc_process_stat st;

	return !ptc_process_stat(*(pid_t *)pid, &st) || st.state == 'Z';
}

static bool leads_its_group(void *pid)
{
	return getpgid(*(pid_t *)pid) == *(pid_t *)pid;
}

static int count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static int setup(bool with_cgroup)
{
	memset(&w, 0, sizeof w);
	strcpy(w.root, "/tmp/ptc-spawn-XXXXXX");
	if (!mkdtemp(w.root) || chmod(w.root, 0755) != 0)
		return -1;
	snprintf(w.dir, sizeof w.dir, "%s/p", w.root);
	snprintf(w.other, sizeof w.other, "%s/o", w.root);
	snprintf(w.name, sizeof w.name, "ptc-test-%d-", (int)getpid());
	if (mkdir(w.other, 0777) != 0 || chmod(w.other, 0777) != 0)
		return -1;
	if (with_cgroup)
		ptc_cgroup_find(w.cgroup, sizeof w.cgroup);
	w.fds = count_fds();
	return 0;
}

static int setup_group(void **state)
{
	(void)state;
	return setup(false);
}

static int setup_cgroup(void **state)
{
	(void)state;
	return setup(true);
}

/* Removes what a failed case left in the root; the number of such folders. */
static int remove_left(void)
{
	DIR *d = opendir(w.root);
	struct dirent *e;
	int n = 0;

	while ((e = readdir(d))) {
		struct ptc_process p;
		char dir[400];

		snprintf(dir, sizeof dir, "%s/%s", w.root, e->d_name);
		if (e->d_name[0] == '.' || strcmp(dir, w.other) == 0)
			continue;
		print_error("left: %s\n", dir);
		n++;
		if (ptc_process_adopt(dir, &p, NULL) == 0) {
			ptc_process_signal(&p, SIGKILL, NULL);
			ptc_process_remove(&p, false);
		}
	}
	closedir(d);
	return n;
}

/* Cgroups of this test, whatever the helper has added to their name; removed too if remove. */
static int count_cgroups(bool remove_them)
{
	DIR *d = *w.cgroup ? opendir(w.cgroup) : NULL;
	struct dirent *e;
	char path[600];
	int n = 0;

	while (d && (e = readdir(d))) {
		if (strncmp(e->d_name, w.name, strlen(w.name)) != 0)
			continue;
		n++;
		snprintf(path, sizeof path, "%s/%s", w.cgroup, e->d_name);
		if (remove_them)
			ptc_cgroup_remove(path, 1000, NULL);
	}
	if (d)
		closedir(d);
	return n;
}

static int teardown(void **state)
{
	int bad = remove_left();

	(void)state;
	if (count_cgroups(true) > 0) {
		print_error("left: cgroups\n");
		bad = 1;
	}
	if (waitpid(-1, NULL, WNOHANG) >= 0) {
		print_error("left: a child of ours\n");
		bad = 1;
	}
	if (count_fds() != w.fds) {
		print_error("left: %d descriptors\n", count_fds() - w.fds);
		bad = 1;
	}
	ptc_sys_remove_tree(w.root, "test", NULL);
	return bad ? -1 : 0;
}

/* ---- starting programs ----------------------------------------------------------- */

static const char *const some_env[] = { "PATH=/usr/local/bin:/usr/bin:/bin", "WORD=two words", NULL };

static struct ptc_spawn request(const char *const *argv)
{
	return (struct ptc_spawn){
		.dir = w.dir,
		.argv = argv,
		.env = some_env,
		.cwd = w.other,
		.uid = geteuid(),
		.token = TOKEN,
		.cgroup = *w.cgroup ? w.cgroup : NULL,
		.cgroup_name = w.name,
		.log_bytes = 1 << 20,
	};
}

static struct ptc_process run_as(const char *script, uid_t uid)
{
	const char *argv[] = { "sh", "-c", script, NULL };
	struct ptc_spawn s = request(argv);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_process p;

	s.uid = uid;
	if (ptc_process_spawn(&s, &p, &err))
		fail_msg("%s", err.text);
	return p;
}

static struct ptc_process run(const char *script)
{
	return run_as(script, geteuid());
}

static int status_of(const struct ptc_process *p)
{
	int status;

	assert_true(ptc_process_wait(p, -1));
	if (!ptc_process_status(p, &status))
		fail_msg("exit status is not known");
	return status;
}

static const char *tail(const struct ptc_process *p)
{
	static char buf[4096];

	ptc_process_log_tail(p, buf, sizeof buf);
	return buf;
}

static bool said_so(void *process_and_text)
{
	void **arg = process_and_text;

	return strstr(tail(arg[0]), arg[1]) != NULL;
}

/* Runs it to its end; what it has said. */
static const char *said(const char *script)
{
	struct ptc_process p = run(script);
	const char *text;

	assert_int_equal(status_of(&p), 0);
	text = tail(&p);
	ptc_process_remove(&p, false);
	return text;
}

static void touch(const char *name)
{
	char path[300];

	snprintf(path, sizeof path, "%s/%s", w.other, name);
	close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
}

static bool touched(const char *name)
{
	char path[300];

	snprintf(path, sizeof path, "%s/%s", w.other, name);
	return exists(path);
}

static pid_t helper_of(const struct ptc_process *p)
{
	struct ptc_process_record r;

	assert_int_equal(ptc_process_record_read(p->dir, &r, NULL), 0);
	return r.helper;
}

/* In a child that plays ptcd, with a fault armed for it and its helper. Returns how it ended. */
static int as_ptcd(const char *fault, void (*f)(void *), void *arg)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		if (fault) {
			close(2); /* it says that a fault is armed */
			open("/dev/null", O_WRONLY);
			setenv("PTC_FAULT", fault, 1);
			ptc_fault_init();
		}
		f(arg);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void do_spawn(void *script)
{
	const char *argv[] = { "sh", "-c", script, NULL };
	struct ptc_spawn s = request(argv);
	struct ptc_process p;

	if (ptc_process_spawn(&s, &p, NULL))
		_exit(1);
}

static void do_spawn_and_die(void *script)
{
	do_spawn(script);
	raise(SIGKILL);
}

static struct ptc_process adopt(void)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_process p;

	if (ptc_process_adopt(w.dir, &p, &err))
		fail_msg("%s", err.text);
	return p;
}

/* ---- how programs run and end --------------------------------------------------------- */

static void ends_and_says_how(void **state)
{
	struct ptc_process p = run("echo out; echo err >&2; sleep 0.1");

	(void)state;
	assert_true(p.pid > 1);
	assert_true(p.pidfd >= 0);
	assert_string_equal(p.token, TOKEN);
	assert_int_equal(*p.cgroup != 0, *w.cgroup != 0);
	assert_int_equal(status_of(&p), 0);
	assert_string_equal(tail(&p), "out\nerr\n");
	ptc_process_remove(&p, false);
	assert_false(exists(w.dir));

	p = run("exit 7");
	assert_int_equal(WEXITSTATUS(status_of(&p)), 7);
	ptc_process_remove(&p, false);

	p = run("kill -SEGV $$");
	assert_true(WIFSIGNALED(status_of(&p)) && WTERMSIG(status_of(&p)) == SIGSEGV);
	ptc_process_remove(&p, false);
}

static void starts_clean(void **state)
{
	char expect[600];
	sigset_t all, old;
	int fd = dup(0); /* not close-on-exec */

	(void)state;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &old);
	signal(SIGPIPE, SIG_IGN);
	assert_string_equal(said("ls /proc/$$/fd"), "0\n1\n2\n");
	assert_string_equal(said("readlink /proc/$$/fd/0"), "/dev/null\n");
	assert_string_equal(said("grep -E '^Sig(Blk|Ign)' /proc/self/status"),
			    "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
	signal(SIGPIPE, SIG_DFL);
	sigprocmask(SIG_SETMASK, &old, NULL);
	close(fd);
	snprintf(expect, sizeof expect, "%s\n0022\n", w.other);
	assert_string_equal(said("pwd; umask"), expect);
	assert_string_equal(said("env -u PWD"), "PATH=/usr/local/bin:/usr/bin:/bin\nWORD=two words\n");
	/* leader of its session and group; not a child of ours */
	assert_string_equal(said("read -r pid comm state ppid pgrp session rest </proc/$$/stat; [ $pid = $$ ] && "
				 "[ $pgrp = $$ ] && [ $session = $$ ] && echo leads"),
			    "leads\n");
}

static void is_in_its_cgroup(void **state)
{
	char path[300], expect[400];
	struct ptc_process p;

	(void)state;
	if (!*w.cgroup)
		skip();
	p = run("sed -n 's/^0:://p' /proc/self/cgroup; sleep 1000");
	snprintf(path, sizeof path, "%s/%s", w.cgroup, w.name);
	assert_memory_equal(p.cgroup, path, strlen(path));
	assert_true(exists(p.cgroup));
	snprintf(path, sizeof path, "%s", p.cgroup);
	snprintf(expect, sizeof expect, "%s\n", strrchr(path, '/'));
	assert_true(eventually(said_so, (void *[]){ &p, expect }));
	assert_int_equal(ptc_process_signal(&p, SIGTERM, NULL), 0);
	assert_int_equal(WTERMSIG(status_of(&p)), SIGTERM);
	ptc_process_remove(&p, false);
	assert_false(exists(path));
}

static void serves_without_a_cgroup_it_may_not_make(void **state)
{
	const char *argv[] = { "true", NULL };
	struct ptc_spawn s = request(argv);
	struct ptc_process p;

	(void)state;
	s.cgroup = "/proc/self"; /* nobody makes a directory there */
	assert_int_equal(ptc_process_spawn(&s, &p, NULL), 0);
	assert_string_equal(p.cgroup, "");
	assert_int_equal(status_of(&p), 0);
	ptc_process_remove(&p, false);
}

static void refuses(struct ptc_spawn s, int code, const char *what)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_process p;
	int rc = ptc_process_spawn(&s, &p, &err);

	if (rc != code || !strstr(err.text, what) || strchr(err.text, '\n'))
		fail_msg("%d \"%s\", expected %d with \"%s\"", rc, err.text, code, what);
	assert_false(exists(w.dir));
}

static void says_why_it_cannot_start(void **state)
{
	const char *none[] = { "no-such-program", NULL }, *dir[] = { "/tmp", NULL }, *ok[] = { "true", NULL },
		   *empty[] = { NULL };
	struct ptc_spawn s;
	char told[300];

	(void)state;
	snprintf(told, sizeof told, "%s", getenv("PTC_EXEC") ? getenv("PTC_EXEC") : "");
	refuses(request(none), PTC_EINVAL, "cannot run no-such-program: No such file or directory");
	refuses(request(dir), PTC_EINVAL, "cannot run /tmp: Permission denied");
	refuses(request(empty), PTC_EINVAL, "needs a program");
	s = request(ok);
	s.cwd = "/no/such/folder";
	refuses(s, PTC_EINVAL, "cannot work in /no/such/folder: No such file or directory");
	s.cwd = "relative";
	refuses(s, PTC_EINVAL, "absolute");
	s = request(ok);
	s.uid = 3999999999u;
	refuses(s, geteuid() == 0 ? PTC_EINVAL : PTC_EPERM, "3999999999");
	s = request(ok);
	s.token = "short";
	refuses(s, PTC_EINVAL, "token");
	s = request(ok);
	s.cgroup = "/sys/fs/cgroup";
	s.cgroup_name = "../x";
	refuses(s, PTC_EINVAL, "name without '/'");
	setenv("PTC_EXEC", "/no/helper", 1);
	refuses(request(ok), PTC_ENOTFOUND, "cannot run /no/helper");
	setenv("PTC_EXEC", told, 1);
}

static void bounds_what_it_is_given(void **state)
{
	static const char *argv[PTC_EXEC_STRINGS_MAX + 3] = { "true" };
	char *big = ptc_malloc(PTC_EXEC_REQUEST_MAX + 1);
	struct ptc_spawn s = request(argv);
	struct ptc_process p;

	(void)state;
	memset(big, 'x', PTC_EXEC_REQUEST_MAX);
	big[PTC_EXEC_REQUEST_MAX] = '\0';
	argv[1] = big;
	refuses(s, PTC_ELIMIT, "1048576 bytes");
	big[200000] = '\0'; /* the kernel's own bound is for each string */
	refuses(s, PTC_EINVAL, "Argument list too long");
	for (int i = 1; i <= PTC_EXEC_STRINGS_MAX; i++)
		argv[i] = "x";
	refuses(s, PTC_ELIMIT, "16384 entries");
	argv[PTC_EXEC_STRINGS_MAX] = NULL;
	assert_int_equal(ptc_process_spawn(&s, &p, NULL), 0);
	assert_int_equal(status_of(&p), 0);
	ptc_process_remove(&p, false);
	ptc_free(big);
}

static void a_folder_holds_one(void **state)
{
	struct ptc_process p = run("sleep 1000");
	const char *argv[] = { "true", NULL };
	struct ptc_spawn s = request(argv);
	struct ptc_process q;

	(void)state;
	assert_int_equal(ptc_process_spawn(&s, &q, NULL), PTC_EEXIST);
	assert_int_equal(ptc_process_signal(&p, SIGKILL, NULL), 0);
	assert_int_equal(WTERMSIG(status_of(&p)), SIGKILL);
	assert_int_equal(ptc_process_spawn(&s, &q, NULL), PTC_EEXIST);
	ptc_process_remove(&p, false);
	assert_int_equal(chmod(w.root, 0755), 0);
	assert_int_equal(mkdir(w.dir, 0755), 0);
	assert_int_equal(ptc_process_spawn(&s, &q, NULL), PTC_EPERM); /* others could look into it */
	assert_int_equal(rmdir(w.dir), 0);
}

/* ---- users ------------------------------------------------------------------------------- */

static void runs_as_the_owner(void **state)
{
	const struct passwd *pw = getpwnam("nobody");
	char expect[200], path[200];
	gid_t groups[32];
	int n = 32;
	size_t at;
	struct ptc_process p;
	struct stat st;

	(void)state;
	if (geteuid() != 0 || !pw)
		skip();
	assert_true(getgrouplist("nobody", pw->pw_gid, groups, &n) > 0);
	at = (size_t)snprintf(expect, sizeof expect, "%d\n%d\n", (int)pw->pw_uid, (int)pw->pw_gid);
	for (int i = 0; i < n; i++)
		at += (size_t)snprintf(expect + at, sizeof expect - at, "%s%d", i ? " " : "", (int)groups[i]);
	snprintf(expect + at, sizeof expect - at, "\n0\n");
	p = run_as("id -u; id -g; id -G; cat ../p/process 2>/dev/null | wc -c", pw->pw_uid);
	assert_int_equal(status_of(&p), 0);
	assert_string_equal(tail(&p), expect); /* and it cannot read what is recorded of it */
	snprintf(path, sizeof path, "%s/log", w.dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_uid, pw->pw_uid);
	assert_int_equal(st.st_mode & 07777, 0600);
	snprintf(path, sizeof path, "%s/process", w.dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_uid, 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	ptc_process_remove(&p, false);
}

static void do_as_nobody(void *arg)
{
	const char *argv[] = { "true", NULL };
	struct ptc_spawn s = request(argv);
	struct ptc_process p;
	int status;

	(void)arg;
	if (setgid(65534) != 0 || setuid(65534) != 0)
		_exit(2);
	prctl(PR_SET_DUMPABLE, 1);
	snprintf(w.dir, sizeof w.dir, "%s/p", w.other);
	s.uid = 0;
	if (ptc_process_spawn(&s, &p, NULL) != PTC_EPERM || exists(w.dir))
		_exit(3);
	s.uid = 65534;
	if (ptc_process_spawn(&s, &p, NULL) || !ptc_process_wait(&p, -1) || !ptc_process_status(&p, &status) || status)
		_exit(4);
	ptc_process_remove(&p, false);
	_exit(exists(w.dir) ? 5 : 0);
}

static void without_root_only_as_oneself(void **state)
{
	(void)state;
	if (geteuid() != 0)
		skip();
	assert_int_equal(as_ptcd(NULL, do_as_nobody, NULL), 0);
}

static void do_read_record(void *arg)
{
	struct ptc_process_record r;

	(void)arg;
	if (setgid(65534) != 0 || setuid(65534) != 0)
		_exit(2);
	_exit(ptc_process_record_read(w.dir, &r, NULL) == 0 ? 3 : 0);
}

static void another_user_cannot_read_the_token(void **state)
{
	struct ptc_process p;

	(void)state;
	if (geteuid() != 0)
		skip();
	p = run("true");
	assert_int_equal(status_of(&p), 0);
	assert_int_equal(as_ptcd(NULL, do_read_record, NULL), 0);
	ptc_process_remove(&p, false);
}

/* ---- the log ----------------------------------------------------------------------------- */

static off_t room_of_log(uint64_t *ret_begin)
{
	char path[200];
	struct stat st;
	int fd;

	snprintf(path, sizeof path, "%s/log", w.dir);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	*ret_begin = ptc_process_log_begin(fd);
	close(fd);
	return (off_t)st.st_blocks * 512;
}

/* Every line from where the log begins, and that nothing in it was lost or torn, up to the end. */
static void check_log_counts_to(long last, const char *end)
{
	char path[200], line[64];
	uint64_t begin;
	long n = 0, first = 0;
	FILE *f;

	room_of_log(&begin);
	snprintf(path, sizeof path, "%s/log", w.dir);
	f = fopen(path, "re");
	assert_non_null(f);
	assert_int_equal(fseek(f, (long)begin, SEEK_SET), 0);
	while (fgets(line, sizeof line, f) && strcmp(line, end) != 0) {
		if (first == 0)
			first = n = atol(line);
		assert_int_equal(atol(line), n++);
	}
	assert_int_equal(n, last + 1);
	assert_string_equal(line, end);
	assert_true(first > 1);
	fclose(f);
}

static void its_log_is_bounded(void **state)
{
	struct ptc_process p = run("seq 1 3000000; echo the end");
	off_t most = 0, room;
	uint64_t begin;

	(void)state;
	while (!ptc_process_wait(&p, 1)) {
		room = room_of_log(&begin);
		most = room > most ? room : most;
	}
	assert_int_equal(status_of(&p), 0);
	room = room_of_log(&begin);
	print_message("a log of 22888904 bytes takes %ld in the end, %ld at most\n", (long)room, (long)most);
	assert_true(room <= (1 << 20) + 8192);
	assert_true(begin > 20000000);
	check_log_counts_to(3000000, "the end\n");
	assert_non_null(strstr(tail(&p), "\n3000000\nthe end\n"));
	/* the folder with the log is not a process any more, and can be used again */
	ptc_process_remove(&p, true);
	assert_int_equal(ptc_process_adopt(w.dir, &p, NULL), PTC_ENOTFOUND);
	p = run("seq 1 200000; echo again");
	assert_int_equal(status_of(&p), 0);
	assert_true(room_of_log(&begin) <= (1 << 20) + 8192);
	assert_true(begin > 22888904);
	check_log_counts_to(200000, "again\n");
	ptc_process_remove(&p, false);
}

/* Whether the file system frees what was reserved behind the end without the file being truncated. */
static bool frees_behind_the_end(void)
{
	char path[200];
	struct stat st;
	int fd;

	snprintf(path, sizeof path, "%s/probe", w.other);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 2 << 20), 0);
	assert_int_equal(fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 1 << 20, 1 << 20), 0);
	assert_int_equal(fstat(fd, &st), 0);
	close(fd);
	assert_int_equal(unlink(path), 0);
	return st.st_blocks * 512 < 2 << 20;
}

/* Room is taken without a byte being written: behind the end, and where the log was cut. Where only truncating frees
 * it, what is written just then may be lost (free_reserved), so that is waited for. */
static void its_log_cannot_reserve_room(void **state)
{
	const bool waits = !frees_behind_the_end();
	char script[400];
	struct ptc_process p;
	uint64_t begin;

	(void)state;
	snprintf(script, sizeof script,
		 "exec 3>&1; reserve() { fallocate -n -l 64M /proc/self/fd/3 || return; i=%d; while [ $i -gt 0 ]; do "
		 "[ $(stat -L -c %%b /proc/self/fd/3) -gt 8192 ] || return 0; sleep 0.01; i=$((i - 1)); done; "
		 "return %d; }; reserve && seq 1 300000 && reserve && echo the end",
		 waits ? 3000 : 0, waits);
	p = run(script);
	assert_int_equal(status_of(&p), 0);
	assert_true(room_of_log(&begin) <= 2 * (1 << 20) + 65536 + 8192);
	check_log_counts_to(300000, "the end\n");
	ptc_process_remove(&p, false);
}

static void its_log_may_be_cut_by_its_owner(void **state)
{
	struct ptc_process p = run("seq 1 300000; : >/proc/self/fd/1; seq 1 300000; echo the end");
	uint64_t begin;

	(void)state;
	assert_int_equal(status_of(&p), 0);
	assert_true(room_of_log(&begin) <= (1 << 20) + 8192);
	check_log_counts_to(300000, "the end\n");
	ptc_process_remove(&p, false);
}

static void its_log_is_as_written(void **state)
{
	struct ptc_process p = run("seq 1 100000; printf 'a\\000b\\nlast'"); /* below the bound */
	char buf[32];
	struct stat st;
	char path[200];

	(void)state;
	assert_int_equal(status_of(&p), 0);
	snprintf(path, sizeof path, "%s/log", w.dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 588895 + 8);
	ptc_process_log_tail(&p, buf, 13); /* whole lines only */
	assert_string_equal(buf, "a?b\nlast");
	ptc_process_log_tail(&p, buf, 16);
	assert_string_equal(buf, "a?b\nlast");
	ptc_process_log_tail(&p, buf, 4); /* no line fits */
	assert_string_equal(buf, "ast");
	ptc_process_log_tail(&p, buf, 1);
	assert_string_equal(buf, "");
	ptc_process_remove(&p, false);
	ptc_process_log_tail(&p, buf, sizeof buf);
	assert_string_equal(buf, "");
}

/* ---- deaths ------------------------------------------------------------------------------- */

static void outlives_ptcd(void **state)
{
	char script[] = "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two; exit 3";
	struct ptc_process p;

	(void)state;
	assert_int_equal(WTERMSIG(as_ptcd(NULL, do_spawn_and_die, script)), SIGKILL);
	p = adopt();
	assert_true(p.pidfd >= 0);
	assert_false(ptc_process_wait(&p, 0));
	touch("go");
	assert_int_equal(WEXITSTATUS(status_of(&p)), 3);
	assert_string_equal(tail(&p), "one\ntwo\n");
	ptc_process_done(&p);
	p = adopt(); /* now it has ended */
	assert_int_equal(p.pidfd, -1);
	assert_int_equal(WEXITSTATUS(status_of(&p)), 3);
	assert_int_equal(ptc_process_signal(&p, SIGKILL, NULL), 0);
	ptc_process_remove(&p, false);
	assert_int_equal(ptc_process_adopt(w.dir, &p, NULL), PTC_ENOTFOUND);
}

static void outlives_its_helper(void **state)
{
	struct ptc_process p = run("echo one; while [ ! -e go ]; do sleep 0.01; done; seq 1 100000; echo two");
	pid_t helper = helper_of(&p);
	int status = 1;

	(void)state;
	assert_int_equal(kill(helper, SIGKILL), 0);
	assert_true(eventually(gone, &helper));
	assert_false(ptc_process_wait(&p, 0));
	touch("go");
	assert_true(ptc_process_wait(&p, -1));
	assert_non_null(strstr(tail(&p), "\n100000\ntwo\n"));
	assert_false(ptc_process_status(&p, &status));
	assert_int_equal(status, 0);
	ptc_process_remove(&p, false);
}

/* As if the file was last written so many seconds ago, by the file system's clock. */
static void age(const char *path, int64_t s)
{
	struct timespec then[2] = { { .tv_sec = time(NULL) - s }, { .tv_sec = time(NULL) - s } };

	assert_int_equal(utimensat(AT_FDCWD, path, then, 0), 0);
}

/* Whatever becomes of the wall clock; a file of an older ptcd has nothing but its time. */
static void it_is_known_for_how_long_it_is_frozen(void **state)
{
	struct ptc_process p = run("while [ ! -e go ]; do sleep 0.01; done");
	char path[400];
	FILE *f;

	(void)state;
	snprintf(path, sizeof path, "%s/held", p.dir);
	assert_int_equal(ptc_process_held_s(p.dir), -1);
	assert_int_equal(ptc_process_freeze(&p, NULL), 0);
	age(path, 3600);
	assert_in_range(ptc_process_held_s(p.dir), 0, 60);
	f = fopen(path, "w");
	fprintf(f, "since %lld\n", (long long)(ptc_sys_now_ns() / 1000000000 - 400));
	assert_int_equal(fclose(f), 0);
	assert_in_range(ptc_process_held_s(p.dir), 400, 460);
	ptc_process_stays_frozen(&p);
	assert_in_range(ptc_process_held_s(p.dir), 0, 60);
	assert_int_equal(truncate(path, 0), 0);
	age(path, 3600);
	assert_in_range(ptc_process_held_s(p.dir), 3600, 3660);
	ptc_process_thaw(&p);
	assert_int_equal(ptc_process_held_s(p.dir), -1);
	touch("go");
	assert_true(ptc_process_wait(&p, -1));
	ptc_process_remove(&p, false);
}

/* ptcd is killed at each of its points, and each time another finds the folder as it is. */
static void ptcd_is_killed_while_it_starts_one(void **state)
{
	char script[] = "echo began >>began; sleep 1000";
	struct ptc_process p;

	(void)state;
	assert_int_equal(WTERMSIG(as_ptcd("process.spawn.before", do_spawn, script)), SIGKILL);
	assert_true(exists(w.dir));
	assert_int_equal(ptc_process_adopt(w.dir, &p, NULL), PTC_ENOTFOUND);
	assert_false(exists(w.dir));
	assert_int_equal(WTERMSIG(as_ptcd("process.spawn.before", do_spawn, script)), SIGKILL);
	p = run("true"); /* the folder can also be used as it is */
	assert_int_equal(status_of(&p), 0);
	ptc_process_remove(&p, false);
	assert_false(touched("began"));

	assert_int_equal(WTERMSIG(as_ptcd("process.spawn.after", do_spawn, script)), SIGKILL);
	p = adopt(); /* waits for the helper, which goes on by itself */
	assert_true(p.pidfd >= 0);
	assert_int_equal(ptc_process_signal(&p, SIGKILL, NULL), 0);
	assert_int_equal(WTERMSIG(status_of(&p)), SIGKILL);
	ptc_process_remove(&p, false);
}

static void says_in_the_log_why_it_did_not_start(void **state)
{
	const char *expect = "ptc-exec: cannot work in";
	char script[] = "true";
	struct ptc_process p;

	(void)state;
	assert_int_equal(rmdir(w.other), 0); /* cwd */
	assert_int_equal(WTERMSIG(as_ptcd("process.spawn.after", do_spawn, script)), SIGKILL);
	p = adopt();
	assert_int_equal(WEXITSTATUS(status_of(&p)), 127);
	assert_memory_equal(tail(&p), expect, strlen(expect));
	ptc_process_remove(&p, false);
}

static void the_helper_is_killed(void **state)
{
	static const struct {
		const char *fault;
		int exit;          /* of ptcd's attempt */
		bool found, known; /* the process; its exit status */
		bool began;
	} cases[] = {
		{ "process.record.before", 1, false, false, false },
		{ "process.record.after", 0, true, false, false },
		{ "process.exit.before", 0, true, false, true },
		{ "process.exit.after", 0, true, true, true },
		{ "process.record.before=fail", 1, false, false, false },
	};
	char script[] = "touch began";

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ptc_process p;
		int status;
		char path[300];

		assert_int_equal(WEXITSTATUS(as_ptcd(cases[i].fault, do_spawn, script)), cases[i].exit);
		if (cases[i].found) {
			p = adopt();
			assert_true(ptc_process_wait(&p, -1));
			assert_int_equal(ptc_process_status(&p, &status), cases[i].known);
			ptc_process_remove(&p, false);
		} else {
			assert_int_equal(ptc_process_adopt(w.dir, &p, NULL), PTC_ENOTFOUND);
		}
		assert_false(exists(w.dir));
		assert_int_equal(touched("began"), cases[i].began);
		snprintf(path, sizeof path, "%s/began", w.other);
		unlink(path);
	}
}

static void do_remove(void *arg)
{
	struct ptc_process p;

	(void)arg;
	if (ptc_process_adopt(w.dir, &p, NULL) == 0)
		ptc_process_remove(&p, false);
}

/* ptcd is killed at each point of a removal; another takes it up. */
static void ptcd_is_killed_while_it_removes_one(void **state)
{
	static const char *const points[] = { "process.cgroup_remove.before", "process.cgroup_remove.after",
					      "process.unlink.before",        "process.unlink.after",
					      "process.rmdir.before",         "process.rmdir.after" };
	int killed = 0;

	(void)state;
	for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
		for (int nth = 1, status = SIGKILL; WIFSIGNALED(status); nth++) {
			struct ptc_process p = run("sleep 1000 & exit 0");
			char fault[64];

			assert_int_equal(status_of(&p), 0);
			ptc_process_done(&p);
			snprintf(fault, sizeof fault, "%s@%d", points[i], nth);
			status = as_ptcd(fault, do_remove, NULL);
			killed += WIFSIGNALED(status);
			as_ptcd(NULL, do_remove, NULL);
			assert_false(exists(w.dir));
		}
	}
	print_message("killed at %d points\n", killed);
	assert_true(killed >= (*w.cgroup ? 16 : 14));
}

/* ---- a program's files ------------------------------------------------------------------------ */

static void write_script(const char *name, const char *text)
{
	char path[160];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", w.other, name);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

/* Which of its two files can be seen, as bits; and what they are. */
static unsigned look(const char *const *argv, uid_t uid, struct ptc_program_files *ret)
{
	static const uint64_t none[5];
	unsigned seen = 0;

	ptc_program_look(w.other, uid, argv, ret);
	for (unsigned i = 0; i < 2; i++)
		seen |= (unsigned)(memcmp(ret->of[i], none, sizeof none) != 0) << i;
	return seen;
}

static void sees_that_a_program_was_edited(void **state)
{
	static const char *const script[] = { "/bin/sh", "-e", "-u", "a.sh", "b.sh", NULL };
	static const struct {
		const char *argv[5];
		unsigned seen;
	} rows[] = {
		{ { "/bin/sh" }, 1 },          { { "sh", "a.sh" }, 2 },       { { "sh", "--norc", "a.sh" }, 0 },
		{ { "sh", "-c", "a.sh" }, 0 }, { { "sh", "-m", "a.sh" }, 0 }, { { "./a.sh", "b.sh" }, 3 },
		{ { "./none", "none" }, 0 },   { { "/bin/sh", "." }, 1 },
	};
	struct ptc_program_files a, b;
	char from[160], to[160];

	(void)state;
	write_script("a.sh", "exit 0\n");
	write_script("b.sh", "exit 1\n");
	for (size_t i = 0; i < PTC_ARRAY_LEN(rows); i++)
		assert_int_equal(look(rows[i].argv, geteuid(), &a), rows[i].seen);
	assert_int_equal(look(script, geteuid(), &a), 3);
	assert_int_equal(look(script, geteuid(), &b), 3);
	assert_memory_equal(&a, &b, sizeof a);
	write_script("b.sh", "exit 2 # an argument of the script\n");
	look(script, geteuid(), &b);
	assert_memory_equal(&a, &b, sizeof a);
	write_script("a.sh", "exit 1 \n");
	look(script, geteuid(), &b);
	assert_memory_equal(a.of[0], b.of[0], sizeof a.of[0]);
	assert_memory_not_equal(a.of[1], b.of[1], sizeof a.of[1]);
	snprintf(from, sizeof from, "%s/b.sh", w.other);
	snprintf(to, sizeof to, "%s/a.sh", w.other);
	assert_int_equal(rename(from, to), 0);
	look(script, geteuid(), &a);
	assert_memory_not_equal(a.of[1], b.of[1], sizeof a.of[1]);
	if (geteuid() == 0) { /* what the user cannot see, is not looked at for it */
		assert_int_equal(chmod(to, 0600) | chmod(w.other, 0700), 0);
		assert_int_equal(look(script, 65534, &a), 1);
		assert_int_equal(chmod(w.other, 0777), 0);
	}
	assert_int_equal(unlink(to), 0);
}

/* As where a file system does not answer: nothing is seen, and nothing of it stays. */
static void a_look_that_hangs_ends(void **state)
{
	static const char *const argv[] = { "/bin/sh", NULL };
	const char *const helper = getenv("PTC_EXEC");
	struct ptc_program_files files;
	char path[160], before[4096];

	(void)state;
	snprintf(before, sizeof before, "%s", helper ? helper : "");
	write_script("hangs", "#!/bin/sh\nexec sleep 1000\n");
	snprintf(path, sizeof path, "%s/hangs", w.other);
	assert_int_equal(chmod(path, 0755) | setenv("PTC_EXEC", path, 1), 0);
	assert_int_equal(look(argv, geteuid(), &files), 0);
	assert_int_equal(helper ? setenv("PTC_EXEC", before, 1) : unsetenv("PTC_EXEC"), 0);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(unlink(path), 0);
}

static bool no_child(void *arg)
{
	siginfo_t info;

	(void)arg;
	return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == -1 && errno == ECHILD;
}

static void look_and_let_hang(void *helper)
{
	static const char *const argv[] = { "/bin/sh", NULL };
	struct ptc_program_files files;
	char path[160], pid[16] = "";
	FILE *f;

	snprintf(path, sizeof path, "%s/pid", w.other);
	setenv("PTC_EXEC", helper, 1);
	if (look(argv, geteuid(), &files) || waitpid(-1, NULL, WNOHANG) != 0 || !(f = fopen(path, "r")))
		_exit(1);
	if (!fgets(pid, sizeof pid, f) || fclose(f) || kill((pid_t)atol(pid), SIGKILL))
		_exit(2);
	_exit(eventually(no_child, NULL) ? 0 : 3);
}

/* As where not even SIGKILL ends it: once it ends, it is reaped. */
static void a_look_that_cannot_be_killed_is_reaped(void **state)
{
	char path[160], script[256];

	(void)state;
	snprintf(script, sizeof script, "#!/bin/sh\necho $$ >%s/pid\nexec sleep 1000\n", w.other);
	write_script("hangs", script);
	snprintf(path, sizeof path, "%s/hangs", w.other);
	assert_int_equal(chmod(path, 0755), 0);
	assert_int_equal(as_ptcd("process.look.kill=fail", look_and_let_hang, path), 0);
	assert_int_equal(unlink(path), 0);
	snprintf(path, sizeof path, "%s/pid", w.other);
	assert_int_equal(unlink(path), 0);
}

/* ---- who is who ------------------------------------------------------------------------------ */

static void a_reused_pid_is_somebody_else(void **state)
{
	struct ptc_process_record r = { .token = TOKEN };
	struct ptc_process_stat st;
	struct ptc_process p;
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		setsid();
		for (;;)
			pause();
	}
	r.pid = r.helper = pid;
	assert_true(eventually(leads_its_group, &pid));
	assert_int_equal(ptc_process_boot_id(r.boot, NULL), 0);
	assert_true(ptc_process_stat(pid, &st));
	assert_int_equal(mkdir(w.dir, 0700), 0);

	r.start_time = st.start_time - 1;
	assert_int_equal(ptc_process_record_write(w.dir, &r, NULL), 0);
	p = adopt();
	assert_int_equal(p.pidfd, -1);
	assert_int_equal(ptc_process_signal(&p, SIGKILL, NULL), 0);

	r.start_time = st.start_time;
	r.boot[0] = r.boot[0] == '0' ? '1' : '0';
	assert_int_equal(ptc_process_record_write(w.dir, &r, NULL), 0);
	p = adopt(); /* from before the last boot */
	assert_int_equal(p.pidfd, -1);
	assert_int_equal(p.pid, 0);
	assert_int_equal(ptc_process_signal(&p, SIGKILL, NULL), 0);
	assert_int_equal(waitpid(pid, NULL, WNOHANG), 0); /* all that did it no harm */

	assert_int_equal(ptc_process_boot_id(r.boot, NULL), 0);
	assert_int_equal(ptc_process_record_write(w.dir, &r, NULL), 0);
	p = adopt();
	assert_true(p.pidfd >= 0);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_true(ptc_process_wait(&p, -1));
	ptc_process_done(&p);
	p = adopt(); /* a zombie has ended */
	assert_int_equal(p.pidfd, -1);
	ptc_process_remove(&p, false); /* as process 1 would, waits for it */
	assert_int_equal(waitpid(pid, NULL, WNOHANG), -1);
}

static void a_damaged_record_is_an_error(void **state)
{
	char path[200];
	struct ptc_process p;

	(void)state;
	assert_int_equal(mkdir(w.dir, 0700), 0);
	snprintf(path, sizeof path, "%s/process", w.dir);
	assert_int_equal(ptc_sys_write_file(path, "pid -1\n", 7, 0600, "test", NULL), 0);
	assert_int_equal(ptc_process_adopt(w.dir, &p, NULL), PTC_ECORRUPT);
	assert_true(exists(w.dir));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(w.dir), 0);
}

/* ---- children of the program ------------------------------------------------------------------ */

static void read_pids(const struct ptc_process *p, int n, pid_t *ret_pids)
{
	for (int i = 0; i < 30000; i++) {
		if (sscanf(tail(p), "%d %d", &ret_pids[0], &ret_pids[n - 1]) == n)
			return;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	fail_msg("no pids in the log: %s", tail(p));
}

static void its_children_are_killed_too(void **state)
{
	const int n = *w.cgroup ? 2 : 1; /* only a cgroup holds those that leave the session */
	struct ptc_process p = run(*w.cgroup ? "sleep 1000 & a=$!; setsid sleep 1000 & echo $a $!; wait"
					     : "sleep 1000 & echo $!; wait");
	pid_t pids[2];

	(void)state;
	read_pids(&p, n, pids);
	assert_int_equal(ptc_process_signal(&p, SIGKILL, NULL), 0);
	assert_int_equal(WTERMSIG(status_of(&p)), SIGKILL);
	for (int i = 0; i < n; i++)
		assert_true(eventually(gone, &pids[i]));
	ptc_process_remove(&p, false);
}

static void removal_kills_what_it_left_running(void **state)
{
	struct ptc_process p = run("sleep 1000 & echo $!");
	pid_t pid;

	(void)state;
	assert_int_equal(status_of(&p), 0);
	read_pids(&p, 1, &pid);
	assert_false(gone(&pid));
	ptc_process_remove(&p, false);
	assert_true(eventually(gone, &pid));
}

static void removal_takes_cgroups_of_its_own_with_it(void **state)
{
	char script[800];
	struct ptc_process p;
	pid_t pid;

	(void)state;
	if (!*w.cgroup)
		skip();
	snprintf(script, sizeof script,
		 "c=%s$(sed -n 's/^0:://p' /proc/self/cgroup | sed 's,.*/,/,'); mkdir -p $c/a/b; "
		 "(echo 0 >$c/a/b/cgroup.procs; exec sleep 1000) & echo $!",
		 w.cgroup);
	p = run(script);
	assert_int_equal(status_of(&p), 0);
	read_pids(&p, 1, &pid);
	ptc_process_remove(&p, false);
	assert_true(eventually(gone, &pid));
}

static bool no_cgroup_is_left(void *remove)
{
	if (remove)
		ptc_cgroup_remove_left(w.cgroup, 5000);
	return count_cgroups(false) == 0;
}

/* It has ended, or waits in poll. */
static bool waits_or_is_gone(void *helper)
{
	char path[64], text[32] = "";
	long number = -1;
	int fd;

	snprintf(path, sizeof path, "/proc/%d/syscall", (int)*(pid_t *)helper);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && read(fd, text, sizeof text - 1) > 0)
		sscanf(text, "%ld", &number);
	if (fd >= 0)
		close(fd);
	return gone(helper) || number == SYS_ppoll
#ifdef SYS_poll
	       || number == SYS_poll
#endif
		;
}

/* ptcd may be away, and what a program has left running may end long after it. */
static void its_cgroup_goes_with_the_last_process(void **state)
{
	struct ptc_process p = run("sleep 1000 & echo $!");
	pid_t pid, helper = helper_of(&p);

	(void)state;
	assert_int_equal(status_of(&p), 0);
	read_pids(&p, 1, &pid);
	assert_true(eventually(waits_or_is_gone, &helper)); /* so it has seen what is left */
	assert_int_equal(count_cgroups(false), *w.cgroup ? 1 : 0);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_true(eventually(no_cgroup_is_left, NULL));
	ptc_process_remove(&p, false);
}

/* As if it was frozen so long ago. */
static void held_for(const char *dir, int64_t s)
{
	char path[400];
	FILE *f;

	snprintf(path, sizeof path, "%s/held", dir);
	f = fopen(path, "w");
	assert_non_null(f);
	fprintf(f, "since %lld\n", (long long)(ptc_sys_now_ns() / 1000000000 - s));
	assert_int_equal(fclose(f), 0);
}

static bool frozen(void *process)
{
	const struct ptc_process *p = process;

	return ptc_cgroup_frozen(p->cgroup);
}

static bool thawed(void *process)
{
	const struct ptc_process *p = process;

	return ptc_process_held_s(p->dir) == -1 && !ptc_cgroup_frozen(p->cgroup);
}

/* ptcd may be away, and the program was killed while it was frozen, as by the kernel for want of memory. */
static void what_it_left_frozen_goes_on(void **state)
{
	struct ptc_process p;
	pid_t pid;

	(void)state;
	if (!*w.cgroup) /* the helper ends with the program */
		skip();
	p = run("sleep 1000 & echo $!; exec sleep 1000");
	read_pids(&p, 1, &pid);
	assert_int_equal(ptc_process_freeze(&p, NULL), 0);
	held_for(p.dir, 10); /* a ptcd may be there, and thaws it */
	assert_int_equal(kill(p.pid, SIGKILL), 0);
	assert_true(ptc_process_wait(&p, -1));
	assert_true(eventually(frozen, &p));
	held_for(p.dir, 3600);
	assert_true(eventually(thawed, &p));
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_true(eventually(no_cgroup_is_left, NULL));
	ptc_process_remove(&p, false);
}

/* The helper was killed, and then the folder has gone: nobody has the cgroup's name any more. */
static void what_nobody_knows_of_is_removed(void **state)
{
	struct ptc_process p = run("exec sleep 1000");
	pid_t helper = helper_of(&p);

	(void)state;
	assert_int_equal(kill(helper, SIGKILL), 0);
	assert_true(eventually(gone, &helper));
	assert_int_equal(ptc_sys_remove_tree(w.dir, "test", NULL), 0);
	ptc_cgroup_remove_left(w.cgroup, 5000);
	assert_int_equal(count_cgroups(false), *w.cgroup ? 1 : 0);
	assert_int_equal(kill(p.pid, SIGKILL), 0);
	assert_true(ptc_process_wait(&p, -1));
	assert_int_equal(count_cgroups(false), *w.cgroup ? 1 : 0);
	assert_true(eventually(no_cgroup_is_left, &p)); /* the kernel may take a moment to see it empty */
	ptc_process_done(&p);
}

/* ---- as process 1 of a container, torture ------------------------------------------------------- */

static void leaves_no_zombie_to_a_subreaper(void **state)
{
	const char *none[] = { "no-such-program", NULL };
	struct ptc_process p;
	pid_t helper;

	(void)state;
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
	p = run("true");
	assert_int_equal(status_of(&p), 0);
	ptc_process_remove(&p, false);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	refuses(request(none), PTC_EINVAL, "cannot run");
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	p = run("sleep 1000");
	helper = helper_of(&p);
	assert_int_equal(kill(helper, SIGKILL), 0);
	assert_int_equal(ptc_process_signal(&p, SIGKILL, NULL), 0);
	assert_true(ptc_process_wait(&p, -1));
	ptc_process_remove(&p, false);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0), 0);
}

static void each_allocation_may_fail(void **state)
{
	const char *argv[] = { "true", NULL };
	struct ptc_spawn s = request(argv);
	const int64_t live = ptc_alloc_live();
	int rc = PTC_ENOMEM, n;

	(void)state;
	for (n = 1; rc == PTC_ENOMEM; n++) {
		struct ptc_process p;

		ptc_alloc_fail_at((uint64_t)n);
		rc = ptc_process_spawn(&s, &p, NULL);
		ptc_alloc_fail_at(0);
		if (rc == 0) {
			assert_int_equal(status_of(&p), 0);
			ptc_process_remove(&p, false);
		}
		assert_false(exists(w.dir));
		assert_int_equal(ptc_alloc_live(), live);
	}
	assert_int_equal(rc, 0);
	assert_true(n > 2);
}

static void many_at_once(void **state)
{
	struct ptc_process p[16];

	(void)state;
	for (int i = 0; i < 16; i++) {
		const char *argv[] = { "sleep", "1000", NULL };
		struct ptc_spawn s = request(argv);
		char dir[200], name[80];

		snprintf(dir, sizeof dir, "%s/many-%d", w.root, i);
		snprintf(name, sizeof name, "%s-%d", w.name, i);
		s.dir = dir;
		s.cgroup_name = name;
		assert_int_equal(ptc_process_spawn(&s, &p[i], NULL), 0);
	}
	for (int i = 0; i < 16; i++)
		assert_int_equal(ptc_process_signal(&p[i], SIGKILL, NULL), 0);
	for (int i = 0; i < 16; i++) {
		assert_int_equal(WTERMSIG(status_of(&p[i])), SIGKILL);
		ptc_process_remove(&p[i], false);
		assert_false(exists(p[i].dir));
	}
}

/* As two ptcd of one machine may, with the same name below the same parent. */
static void shares_its_cgroup_with_nobody(void **state)
{
	const char *argv[] = { "sleep", "1000", NULL };
	struct ptc_spawn s = request(argv);
	struct ptc_process p[2];

	(void)state;
	for (int i = 0; i < 2; i++) {
		char dir[200];

		snprintf(dir, sizeof dir, "%s/same-%d", w.root, i);
		s.dir = dir;
		assert_int_equal(ptc_process_spawn(&s, &p[i], NULL), 0);
	}
	assert_int_equal(count_cgroups(false), *w.cgroup ? 2 : 0);
	assert_int_equal(ptc_process_signal(&p[0], SIGKILL, NULL), 0);
	assert_int_equal(WTERMSIG(status_of(&p[0])), SIGKILL);
	ptc_process_remove(&p[0], false);
	assert_false(ptc_process_wait(&p[1], 50));
	assert_int_equal(ptc_process_signal(&p[1], SIGKILL, NULL), 0);
	assert_int_equal(WTERMSIG(status_of(&p[1])), SIGKILL);
	ptc_process_remove(&p[1], false);
}

/* ---- memory ---------------------------------------------------------------------------------------- */

static void line_to(const char *name, const char *line)
{
	char path[300];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", w.other, name);
	f = fopen(path, "we");
	assert_non_null(f);
	assert_true(fputs(line, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

/* ThreadSanitizer has shadows of what is written, which are the process's own memory. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define SHADOWED true
#else
#define SHADOWED false
#endif

/* The greatest that a process has had to itself; a file that it maps is not its own. A directory of ours stands for a
 * cgroup whose memory the kernel counts. */
static void says_what_memory_was_taken(void **state)
{
	const size_t size = 64u << 20;
	uint64_t before = ptc_process_memory_peak(getpid(), ""), peak;
	char text[64];
	void *m;
	int fd;

	(void)state;
	if (SHADOWED)
		skip();
	assert_true(before > 0 && before < size);
	fd = memfd_create("shared", MFD_CLOEXEC);
	assert_true(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(m, MAP_FAILED);
	memset(m, 1, size);
	assert_true(ptc_process_memory_peak(getpid(), "") < before + size / 2);
	munmap(m, size);
	close(fd);
	m = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(m, MAP_FAILED);
	memset(m, 1, 2 * size);
	munmap(m, 2 * size);
	peak = ptc_process_memory_peak(getpid(), "");
	assert_true(peak >= 2 * size && peak < before + 3 * size);

	snprintf(text, sizeof text, "anon %zu\nfile 9\n", 8 * size);
	line_to("memory.stat", text); /* the others in it have the rest */
	assert_true(ptc_process_memory_peak(getpid(), w.other) > 9 * size);
	snprintf(text, sizeof text, "%zu\n", 3 * size);
	line_to("memory.peak", text); /* all of them together have not had more */
	assert_int_equal(3 * size, ptc_process_memory_peak(getpid(), w.other));
	assert_int_equal(0, ptc_process_memory_peak(0, ""));
}

/* ---- a low priority, and the way back ------------------------------------------------------------ */

static int oom_of(pid_t pid)
{
	char path[64];
	FILE *f;
	int n;

	snprintf(path, sizeof path, "/proc/%d/oom_score_adj", (int)pid);
	f = fopen(path, "re");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%d", &n), 1);
	fclose(f);
	return n;
}

static void number_to(const char *path, int n)
{
	FILE *f = fopen(path, "we");

	assert_non_null(f);
	assert_true(fprintf(f, "%d\n", n) > 0);
	assert_int_equal(fclose(f), 0);
}

static int number_in(const char *path)
{
	FILE *f = fopen(path, "re");
	int n;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%d", &n), 1);
	fclose(f);
	return n;
}

static pid_t pid_in(const char *name)
{
	char path[300];

	snprintf(path, sizeof path, "%s/%s", w.other, name);
	return (pid_t)number_in(path);
}

static int nice_of(pid_t pid)
{
	return getpriority(PRIO_PROCESS, (id_t)pid);
}

/* Tried, in a child. */
static bool nice_can_be_taken_back(void)
{
	const int now = nice_of(0);
	int status;
	pid_t pid = fork();

	if (pid == 0)
		_exit(setpriority(PRIO_PROCESS, 0, now + 1) != 0 || setpriority(PRIO_PROCESS, 0, now) != 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status == 0;
}

static bool all_wait(void *arg)
{
	(void)arg;
	return touched("ready");
}

/* With what it has started; what has chosen a value itself keeps it. Those who start it are as they were. */
static void begins_low_and_comes_back(void **state)
{
	const int nice = nice_of(0), oom = oom_of(getpid()) > 0 ? oom_of(getpid()) : 0;
	const int nice_low = !nice_can_be_taken_back() ? nice : nice + 10 < 19 ? nice + 10 : 19;
	const char *argv[] = { "sh", "-c",
			       "sleep 1000 & echo $! >child; (echo 900 >/proc/self/oom_score_adj; exec sleep 1000) & "
			       "echo $! >own; while [ $(cat /proc/$!/oom_score_adj) != 900 ]; do sleep 0.01; done; "
			       "touch ready; wait",
			       NULL };
	struct ptc_spawn s = request(argv);
	struct ptc_process p;

	(void)state;
	s.low = true;
	assert_int_equal(ptc_process_spawn(&s, &p, NULL), 0);
	assert_true(ptc_priority_is_low(&p));
	assert_true(eventually(all_wait, NULL));
	for (int i = 0; i < 2; i++) { /* raised twice is raised once */
		const pid_t of[] = { p.pid, pid_in("child"), pid_in("own") };

		for (int k = 0; k < 3; k++) {
			assert_int_equal(nice_of(of[k]), i ? nice : nice_low);
			assert_int_equal(oom_of(of[k]), k == 2 ? 900 : i ? oom : oom + 500);
		}
		assert_int_equal(nice_of(helper_of(&p)), nice);
		assert_int_equal(oom_of(helper_of(&p)), oom_of(getpid()));
		ptc_process_done(&p);
		p = adopt(); /* as by another ptcd */
		assert_int_equal(ptc_priority_is_low(&p), !i);
		ptc_priority_raise(&p);
	}
	assert_int_equal(ptc_process_signal(&p, SIGKILL, NULL), 0);
	status_of(&p);
	ptc_process_remove(&p, false);
	p = run("sleep 1000"); /* by default nothing is lowered */
	assert_int_equal(nice_of(p.pid), nice);
	assert_int_equal(oom_of(p.pid), oom);
	assert_false(ptc_priority_is_low(&p));
	assert_int_equal(ptc_process_signal(&p, SIGKILL, NULL), 0);
	status_of(&p);
	ptc_process_remove(&p, false);
}

/* It only has to exit, so others come first; where it does not exit and is killed, nobody has to wait for that. */
static void yields_at_its_end_until_it_is_killed(void **state)
{
	const int nice = nice_of(0);
	const char *argv[] = { "sh", "-c", "sleep 1000 & echo $! >child; touch ready; wait", NULL };
	struct ptc_spawn s = request(argv);
	struct ptc_process p;

	(void)state;
	assert_int_equal(ptc_process_spawn(&s, &p, NULL), 0);
	assert_true(eventually(all_wait, NULL));
	ptc_priority_yield(&p);
	for (int i = 0; i < 2; i++)
		assert_int_equal(nice_of(i ? pid_in("child") : p.pid),
				 nice_can_be_taken_back() || nice + 10 > 19 ? 19 : nice + 10);
	assert_int_equal(nice_of(helper_of(&p)), nice);
	ptc_priority_hurry(&p);
	for (int i = 0; i < 2 && nice_can_be_taken_back(); i++)
		assert_int_equal(nice_of(i ? pid_in("child") : p.pid), nice);
	assert_int_equal(ptc_process_signal(&p, SIGKILL, NULL), 0);
	status_of(&p);
	ptc_priority_yield(&p); /* nothing: its number may be another's */
	ptc_process_remove(&p, false);
}

/* A file system's folder in the place of a cgroup with the cpu controller, which a test cannot have. */
static void has_a_low_weight_where_its_cgroup_has_one(void **state)
{
	struct ptc_process p = { .pidfd = -1 };
	struct ptc_process_stat st;
	char path[300], here[300];
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		for (;;)
			pause();
	}
	assert_true(ptc_process_stat(pid, &st));
	p.pid = pid;
	p.start_time = st.start_time;
	snprintf(p.dir, sizeof p.dir, "%s", w.other);
	snprintf(p.cgroup, sizeof p.cgroup, "%s", w.other);
	snprintf(path, sizeof path, "%s/cgroup.procs", w.other);
	number_to(path, pid);
	snprintf(path, sizeof path, "%s/cpu.weight", w.other);
	number_to(path, 100);
	assert_non_null(getcwd(here, sizeof here));
	assert_int_equal(chdir(w.other), 0);
	assert_true(ptc_priority_lower(pid, w.other));
	assert_int_equal(chdir(here), 0);
	assert_true(number_in(path) < 100);
	assert_int_equal(nice_of(pid), nice_of(0)); /* the weight serves */
	assert_true(oom_of(pid) > oom_of(getpid()));
	ptc_priority_raise(&p);
	assert_int_equal(number_in(path), 100);
	ptc_priority_yield(&p);
	assert_int_equal(number_in(path), 1);
	assert_int_equal(nice_of(pid), nice_of(0));
	ptc_priority_hurry(&p);
	assert_int_equal(number_in(path), 100);
	assert_int_equal(oom_of(pid), oom_of(getpid()));
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* ---- main: whatever a failed case leaves running ends with us ------------------------------------- */

/* Some child of ours, or 0. */
static pid_t some_child(void)
{
	DIR *d = opendir("/proc");
	struct dirent *e;
	pid_t found = 0;

	while (!found && (e = readdir(d))) {
		struct ptc_process_stat st;
		const pid_t pid = (pid_t)atol(e->d_name);

		if (pid > 0 && ptc_process_stat(pid, &st) && st.parent == getpid())
			found = pid;
	}
	closedir(d);
	return found;
}

/* Helpers and programs become our children when their parents end, as they would become init's. */
static int watch_over(pid_t tests)
{
	int status = 0, result = 1, left = 0;
	pid_t pid;

	while (waitpid(-1, &status, 0) != tests)
		;
	result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	while ((pid = some_child())) {
		left += kill(pid, SIGKILL) == 0;
		waitpid(pid, NULL, 0);
	}
	if (result && left)
		fprintf(stderr, "killed %d processes that were left\n", left);
	return result;
}

#define BOTH(f)                                                                                                        \
	{ #f " (group)", f, setup_group, teardown, NULL },                                                             \
	{                                                                                                              \
#f " (cgroup)", f, setup_cgroup, teardown, NULL                                                        \
	}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		BOTH(ends_and_says_how),
		BOTH(starts_clean),
		BOTH(is_in_its_cgroup),
		BOTH(serves_without_a_cgroup_it_may_not_make),
		BOTH(bounds_what_it_is_given),
		BOTH(a_folder_holds_one),
		BOTH(runs_as_the_owner),
		BOTH(without_root_only_as_oneself),
		BOTH(another_user_cannot_read_the_token),
		BOTH(its_log_is_bounded),
		BOTH(its_log_may_be_cut_by_its_owner),
		BOTH(its_log_cannot_reserve_room),
		BOTH(its_log_is_as_written),
		BOTH(outlives_ptcd),
		BOTH(outlives_its_helper),
		BOTH(it_is_known_for_how_long_it_is_frozen),
		BOTH(ptcd_is_killed_while_it_starts_one),
		BOTH(says_in_the_log_why_it_did_not_start),
		BOTH(the_helper_is_killed),
		BOTH(ptcd_is_killed_while_it_removes_one),
		BOTH(sees_that_a_program_was_edited),
		BOTH(a_look_that_hangs_ends),
		BOTH(a_look_that_cannot_be_killed_is_reaped),
		BOTH(a_reused_pid_is_somebody_else),
		BOTH(a_damaged_record_is_an_error),
		BOTH(its_children_are_killed_too),
		BOTH(removal_kills_what_it_left_running),
		BOTH(removal_takes_cgroups_of_its_own_with_it),
		BOTH(its_cgroup_goes_with_the_last_process),
		BOTH(what_it_left_frozen_goes_on),
		BOTH(what_nobody_knows_of_is_removed),
		BOTH(leaves_no_zombie_to_a_subreaper),
		BOTH(each_allocation_may_fail),
		BOTH(many_at_once),
		BOTH(shares_its_cgroup_with_nobody),
		BOTH(says_why_it_cannot_start),
		BOTH(begins_low_and_comes_back),
		BOTH(yields_at_its_end_until_it_is_killed),
		{ "says_what_memory_was_taken", says_what_memory_was_taken, setup_group, teardown, NULL },
		{ "has_a_low_weight_where_its_cgroup_has_one", has_a_low_weight_where_its_cgroup_has_one, setup_group,
		  teardown, NULL },
	};
	pid_t pid;

	prctl(PR_SET_CHILD_SUBREAPER, 1);
	pid = fork();
	if (pid != 0)
		return watch_over(pid);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
