/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-exec: starts one program for ptcd (user, cgroup, oom_score_adj), waits for its end, records its exit status and
 * keeps its log, so that neither's end is the other's.
 *
 *   ptcd --vfork, exec--> ptc-exec (reads the request, forks, ends: ptcd waits for it at once)
 *                            +--> the helper (a session of its own; child of init) --fork--> the program
 *
 * The helper puts the program into its cgroup, records pid and start time, lets the program begin, waits for its end,
 * and records how it ended. Once nothing runs in the cgroup any more, the helper removes it, and ends. The helper keeps
 * its own user, so the program's user can neither signal the helper nor write its files. The helper is in no cgroup of
 * the program, so it survives cgroup.kill.
 *
 * The program writes its log itself, straight into the file: were there a pipe, the helper's death would block or kill
 * the program. The helper only cuts the file: when its bytes exceed the limit, all but the newest become a hole, and
 * half of the limit is left. No line is lost in a race with the program, and no line moves. Room that the program
 * reserves without writing is freed as well, once it is as much as the limit. So the file may exceed the limit by the
 * bytes of some milliseconds, and its length is that of all bytes ever written. If the helper was killed, nobody cuts
 * the file.
 *
 * Happy path: request -> fork -> program makes its session, answers "ready" -> cgroup, `process` -> "go" -> exec ->
 * `exit`.
 *
 * Failure modes: until exec each ends in one line on the error pipe and in the log, and exit status 127. Killed before
 * "go": the program ends without having begun. Killed later: the program goes on, its exit status will be unknown. */
#include "daemon/workers/process/cgroup.h"
#include "daemon/workers/process/priority.h"
#include "daemon/workers/process/process.h"
#include "daemon/workers/process/spawn.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOT_BEGUN       127 /* as a shell says it */
#define LOG_MIN_BYTES   4096
#define HOLE_UNIT       65536              /* where data begins may be a block before what was kept */
#define BEHIND_BYTES    (INT64_C(1) << 42) /* what is freed behind the end: no file system refuses that as too far */
#define NAP_MAX_MS      100
#define BYTES_PER_MS    1000000 /* no program is expected to log faster */
#define EXIT_TRIES      50
#define EXIT_TRY_MS     100
#define CGROUP_MS       1000
#define LEFT_LOOK_MS    1000
#define PATH_BYTES      4096
#define WATCH_BUF_BYTES 4096
#define HELD_LOOK_MS    30000 /* how often it is looked whether the program is frozen, */
#define HELD_MAX_S      300   /* .. and for how long it may be: longer than WORKERS_HELD_MAX_MS */

struct helper {
	struct ptc_exec_request request;
	char *strings; /* owned; the others point into it */
	const char *token, *cgroup_parent, *cgroup_name, *cwd;
	char **argv, **env;
	char cgroup[PTC_EXEC_PATH_MAX]; /* "": none */
	const char *user;               /* NULL: stay who we are */
	gid_t gid;
	int log_fd; /* the program's: appends */
	int cut_fd; /* ours: does not append */
	uint64_t log_begin;
	int watch_fd;     /* tells of writes to the log, or -1 */
	int signal_fd;    /* tells of ended children */
	int with_program; /* ready, go */
	pid_t pid, self;
};

/* One line for whom it concerns: ptcd, and readers of the log, for ptcd may be killed before it has read it. */
static void report(const struct helper *h, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void report(const struct helper *h, int code, const char *fmt, ...)
{
	char text[PTC_ERROR_MAX - 32], line[PTC_ERROR_MAX];
	va_list ap;
	int n;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	n = snprintf(line, sizeof line, "%d %d %s", code, (int)h->self, text);
	if (h->log_fd >= 0)
		dprintf(h->log_fd, "ptc-exec: %s\n", text);
	if (write(PTC_EXEC_ERROR_FD, line, (size_t)n) != n)
		return; /* SIGPIPE is blocked */
}

/* ---- the request --------------------------------------------------------------- */

/* The next of the strings; NULL when there are no more. */
static char *next_string(char **at, const char *end)
{
	char *s = *at, *nul = s < end ? memchr(s, '\0', (size_t)(end - s)) : NULL;

	if (nul)
		*at = nul + 1;
	return nul ? s : NULL;
}

static char **next_list(char **at, const char *end, uint32_t n)
{
	char **list = ptc_calloc((size_t)n + 1, sizeof *list);

	for (uint32_t i = 0; list && i < n; i++) {
		list[i] = next_string(at, end);
		if (!list[i]) {
			ptc_free(list);
			return NULL;
		}
	}
	return list;
}

static bool parse_strings(struct helper *h)
{
	char *at = h->strings;
	const char *end = at + h->request.bytes;

	h->token = next_string(&at, end);
	h->cgroup_parent = next_string(&at, end);
	h->cgroup_name = next_string(&at, end);
	h->cwd = next_string(&at, end);
	h->argv = next_list(&at, end, h->request.argc);
	h->env = next_list(&at, end, h->request.envc);
	return h->cwd && h->argv && h->env && h->argv[0];
}

static bool read_request(struct helper *h)
{
	struct ptc_exec_request *r = &h->request;

	if (pread(PTC_EXEC_REQUEST_FD, r, sizeof *r, 0) != sizeof *r)
		return false;
	if (!ptc_version_reads(r->version, PTC_EXEC_OLDEST, PTC_EXEC_VERSION)) {
		report(h, PTC_EVERSION, "ptc-exec speaks version %d, ptcd %u: install both from one package",
		       PTC_EXEC_VERSION, r->version);
		return false;
	}
	if (r->bytes > PTC_EXEC_REQUEST_MAX || r->argc > PTC_EXEC_STRINGS_MAX || r->envc > PTC_EXEC_STRINGS_MAX)
		return false;
	h->strings = ptc_malloc(r->bytes ? r->bytes : 1);
	if (!h->strings || pread(PTC_EXEC_REQUEST_FD, h->strings, r->bytes, sizeof *r) != (ssize_t)r->bytes)
		return false;
	close(PTC_EXEC_REQUEST_FD);
	return parse_strings(h);
}

static void helper_done(struct helper *h)
{
	ptc_free(h->argv);
	ptc_free(h->env);
	ptc_free(h->strings);
}

/* ---- in the program's process, before it is the program ----------------------------- */

__attribute__((noreturn)) static void not_begun(const struct helper *h, int code, const char *what, const char *which,
						int errnum)
{
	if (errnum)
		report(h, code, "%s %s: %s", what, which, strerror(errnum));
	else
		report(h, code, "%s %s", what, which);
	_exit(NOT_BEGUN);
}

static void become_user(const struct helper *h)
{
	const uid_t uid = h->request.uid;

	if (!h->user)
		return;
	/* a container's root may lack the right to set groups, and needs none for itself */
	if (initgroups(h->user, h->gid) != 0 && uid != geteuid())
		not_begun(h, PTC_EIO, "cannot take the groups of", h->user, errno);
	if (setresgid(h->gid, h->gid, h->gid) != 0 || setresuid(uid, uid, uid) != 0)
		not_begun(h, PTC_EIO, "cannot become user", h->user, errno);
}

/* A daemon that is spared by the out-of-memory killer must not spare its programs. */
static void reset_oom_score(void)
{
	ptc_auto_close int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
	char text[16] = "";

	if (fd >= 0 && read(fd, text, sizeof text - 1) > 0 && text[0] == '-' && pwrite(fd, "0", 1, 0) != 1)
		return; /* no harm done: it only lives longer */
}

/* By system call: libc's own two, which posix_spawn leaves ignored, cannot be set through libc. */
static void reset_signals(void)
{
	static const char dfl[64]; /* all 0 is SIG_DFL with no flags, however the kernel lays it out */

	for (int sig = 1; sig <= SIGRTMAX; sig++)
		syscall(SYS_rt_sigaction, sig, dfl, NULL, _NSIG / 8);
}

static void redirect(const struct helper *h)
{
	int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(h->log_fd, 1) < 0 || dup2(h->log_fd, 2) < 0)
		not_begun(h, PTC_EIO, "cannot redirect", "standard input and output", errno);
}

/* ptcd raised its own; a program that uses select(2) relies on the usual limit. */
static void restore_files(void)
{
	const char *was = getenv("PTC_FILES");
	struct rlimit l;
	char *end;
	unsigned long long n = was ? strtoull(was, &end, 10) : 0;

	if (n && !*end && getrlimit(RLIMIT_NOFILE, &l) == 0 && n < l.rlim_cur) {
		l.rlim_cur = (rlim_t)n;
		(void)setrlimit(RLIMIT_NOFILE, &l);
	}
}

__attribute__((noreturn)) static void program(struct helper *h, int with_helper)
{
	sigset_t none, all;
	char go;
	int e;

	setsid();
	if (write(with_helper, "r", 1) != 1 || read(with_helper, &go, 1) != 1)
		_exit(NOT_BEGUN); /* the helper was killed, and nobody would know of us */
	umask(022);
	reset_oom_score();
	restore_files();
	reset_signals();
	redirect(h);
	become_user(h);
	if (chdir(h->cwd) != 0)
		not_begun(h, PTC_EINVAL, "cannot work in", h->cwd, errno);
	if (close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) != 0)
		not_begun(h, PTC_EIO, "cannot close", "descriptors", errno);
	environ = h->env; /* its PATH is searched */
	sigemptyset(&none);
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execvp(h->argv[0], h->argv);
	e = errno;
	sigprocmask(SIG_SETMASK, &all, NULL); /* nobody may listen any more: no SIGPIPE */
	not_begun(h, PTC_EINVAL, "cannot run", h->argv[0], e);
}

/* ---- the log ---------------------------------------------------------------------------- */

/* Where the line ends that `from` is in; `from` itself if it ends nowhere near. */
static uint64_t next_line(int fd, uint64_t from)
{
	char block[4096];
	ssize_t n = pread(fd, block, sizeof block, (off_t)from);
	const char *nl = n > 0 ? memchr(block, '\n', (size_t)n) : NULL;

	return nl ? from + (uint64_t)(nl - block) + 1 : from;
}

/* Room that is no part of what can be read: a program may have reserved it behind the end, or where we have cut. */
static void free_reserved(const struct helper *h)
{
	const uint64_t max =
		2 * h->request.log_bytes + HOLE_UNIT; /* a file system reserves some for what is appended */
	const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	struct stat st;

	if (fstat(h->cut_fd, &st) != 0 || (uint64_t)st.st_blocks * 512 <= max)
		return;
	/* at a distance from the end: the program may be appending there */
	if ((h->log_begin && fallocate(h->cut_fd, punch, 0, (off_t)h->log_begin) != 0) ||
	    fallocate(h->cut_fd, punch, st.st_size + (off_t)h->request.log_bytes, BEHIND_BYTES) != 0 ||
	    fstat(h->cut_fd, &st) != 0 || (uint64_t)st.st_blocks * 512 > max)
		/* file systems that punch nothing behind the end free it so; a line that is being written may be lost
		 */
		if (fstat(h->cut_fd, &st) != 0 || ftruncate(h->cut_fd, st.st_size) != 0)
			return; /* tried again when it is looked at next */
}

/* Cuts the log if it takes more room than asked. Returns for how many ms it cannot grow that much. */
static int look_at_log(struct helper *h)
{
	const uint64_t max = h->request.log_bytes;
	struct stat st;
	uint64_t len;
	off_t data;

	if (h->cut_fd < 0 || fstat(h->cut_fd, &st) != 0)
		return NAP_MAX_MS;
	data = lseek(h->cut_fd, 0, SEEK_DATA);
	if (data < 0 || (uint64_t)data + HOLE_UNIT < h->log_begin) /* its owner has cut it too, as by "> log" */
		h->log_begin = data < 0 ? (uint64_t)st.st_size : (uint64_t)data;
	len = (uint64_t)st.st_size - PTC_MIN(h->log_begin, (uint64_t)st.st_size);
	if (len > max) {
		h->log_begin = next_line(h->cut_fd, (uint64_t)st.st_size - max / 2);
		if (fallocate(h->cut_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)h->log_begin) != 0 &&
		    ftruncate(h->cut_fd, 0) == 0) /* a file system without holes: all of it, rather than a full disk */
			h->log_begin = 0;
		free_reserved(h);
		return 1;
	}
	free_reserved(h);
	return (int)PTC_MIN(PTC_MAX((max - len) / BYTES_PER_MS, 1), NAP_MAX_MS);
}

static int open_log(struct helper *h)
{
	struct stat st;

	h->log_fd = open("log", O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (h->log_fd < 0 || fstat(h->log_fd, &st) != 0 || !S_ISREG(st.st_mode) ||
	    (h->user && fchown(h->log_fd, h->request.uid, h->gid) != 0)) {
		report(h, PTC_EIO, "cannot open the log: %s", strerror(errno));
		return -1;
	}
	if (h->request.log_bytes == 0)
		return 0;
	h->request.log_bytes = PTC_MAX(h->request.log_bytes, LOG_MIN_BYTES);
	h->cut_fd = open("log", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	h->log_begin = h->cut_fd < 0 ? 0 : ptc_process_log_begin(h->cut_fd); /* it may hold an earlier program's */
	h->watch_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (h->watch_fd >= 0 && inotify_add_watch(h->watch_fd, "log", IN_MODIFY) < 0) {
		close(h->watch_fd);
		h->watch_fd = -1;
	}
	return 0;
}

/* ---- the helper ------------------------------------------------------------------------- */

static int find_user(struct helper *h)
{
	const uid_t uid = h->request.uid;
	struct passwd *pw;

	if (geteuid() != 0) {
		if (uid == geteuid())
			return 0;
		report(h, PTC_EPERM, "only root's ptcd can start processes of uid %u; this one is uid %u's",
		       (unsigned)uid, (unsigned)geteuid());
		return -1;
	}
	pw = getpwuid(uid);
	if (!pw && uid != 0) {
		report(h, PTC_EINVAL, "there is no user with uid %u on this node", (unsigned)uid);
		return -1;
	}
	h->user = pw ? pw->pw_name : "root"; /* getpwuid's memory: not called again */
	h->gid = pw ? pw->pw_gid : 0;
	return 0;
}

/* A helper that was left in ptcd's session, or on its standard error, would hold on to more than it needs. */
static int detach(struct helper *h)
{
	ptc_auto_close int null_fd = -1;
	sigset_t child;

	h->self = getpid();
	setsid();
	umask(077);
	if (fchdir(PTC_EXEC_DIR_FD) != 0) {
		report(h, PTC_EIO, "cannot enter the process's folder: %s", strerror(errno));
		return -1;
	}
	null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(null_fd, 1) < 0 || dup2(null_fd, 2) < 0) {
		report(h, PTC_EIO, "cannot open /dev/null: %s", strerror(errno));
		return -1;
	}
	/* what the program leaves behind is ours to wait for, not init's, which in a container may be anything */
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	h->signal_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
	if (h->signal_fd < 0)
		report(h, PTC_EIO, "signalfd: %s", strerror(errno));
	return h->signal_fd < 0 ? -1 : 0;
}

/* The file `cgroup` is written before the cgroup is made, so that it is found whenever we are killed. */
static void enter_cgroup(struct helper *h)
{
	char path[PTC_EXEC_PATH_MAX];

	/* our pid: another ptcd of this machine may use the same names below the same parent */
	if (!*h->cgroup_parent ||
	    snprintf(path, sizeof path, "%s/%s.%d", h->cgroup_parent, h->cgroup_name, (int)h->self) >=
		    (int)sizeof path ||
	    !ptc_process_cgroup_write(path))
		return;
	if (ptc_cgroup_make(path, NULL) == 0) {
		if (ptc_cgroup_enter(path, h->pid, NULL) == 0) {
			snprintf(h->cgroup, sizeof h->cgroup, "%s", path);
			return;
		}
		ptc_cgroup_remove(path, CGROUP_MS, NULL);
	}
	ptc_sys_unlink("cgroup", "process.cgroup", NULL); /* the process group serves */
}

static int fork_program(struct helper *h)
{
	int pair[2];
	char ready;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
		report(h, PTC_EIO, "socketpair: %s", strerror(errno));
		return -1;
	}
	h->pid = fork();
	if (h->pid == 0) {
		close(pair[0]);
		program(h, pair[1]);
	}
	close(pair[1]);
	h->with_program = pair[0];
	if (h->pid < 0)
		report(h, PTC_EIO, "cannot fork: %s", strerror(errno));
	return h->pid > 0 && read(pair[0], &ready, 1) == 1 ? 0 : -1;
}

static int record(struct helper *h)
{
	struct ptc_process_record r = { .pid = h->pid, .helper = h->self };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_process_stat st;
	int rc = ptc_process_boot_id(r.boot, &err);

	snprintf(r.token, sizeof r.token, "%s", h->token);
	if (!rc && !ptc_process_stat(h->pid, &st))
		rc = ptc_error_set(&err, PTC_EIO, "/proc does not show process %d", (int)h->pid);
	r.start_time = rc ? 0 : st.start_time;
	if (!rc)
		rc = ptc_process_record_write("", &r, &err);
	if (rc)
		report(h, rc, "%s", err.text);
	return rc;
}

/* true: the program has ended. */
static bool reap(const struct helper *h, int *ret_status)
{
	struct signalfd_siginfo info[8];
	bool ended = false;
	int status;
	pid_t pid;

	while (read(h->signal_fd, info, sizeof info) > 0)
		;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid != h->pid)
			continue;
		ended = true;
		*ret_status = status;
	}
	return ended;
}

/* No ptcd is left that would thaw the program, and what it has started: none holds them for so long. ended: the program
 * has been waited for, so another process group may have its number. */
static void thaw_left(const struct helper *h, bool ended)
{
	if (ptc_process_held_s("") < HELD_MAX_S)
		return;
	if (*h->cgroup)
		(void)ptc_cgroup_freeze(h->cgroup, false);
	if (!ended)
		(void)killpg(h->pid, SIGCONT);
	else if (*h->cgroup)
		(void)ptc_cgroup_signal(h->cgroup, SIGCONT, NULL);
	(void)ptc_sys_unlink("held", "process.held", NULL);
}

/* Waits for the program's end, and looks at the log after it was written to, but no more often than is of use. */
static int wait_for_program(struct helper *h)
{
	char events[WATCH_BUF_BYTES];
	int nap_ms = 0, status = 0;

	while (!reap(h, &status)) {
		struct pollfd pfd[2] = { { h->signal_fd, POLLIN, 0 }, { h->watch_fd, POLLIN, 0 } };
		const bool blind = h->cut_fd >= 0 && h->watch_fd < 0;

		if (nap_ms > 0) {
			poll(pfd, 1, nap_ms);
			nap_ms = 0;
			continue;
		}
		if (poll(pfd, 2, blind ? 0 : HELD_LOOK_MS) == 0 && !blind)
			thaw_left(h, false);
		while (h->watch_fd >= 0 && read(h->watch_fd, events, sizeof events) > 0)
			;
		if (blind || pfd[1].revents)
			nap_ms = look_at_log(h);
	}
	return status;
}

static void write_exit(const struct helper *h, int status)
{
	struct ptc_error err = PTC_ERROR_INIT;

	for (int i = 0; i < EXIT_TRIES && access(".", W_OK) == 0; i++) { /* a full disk may have room again */
		if (ptc_process_exit_write("", status, &err) == 0)
			return;
		poll(NULL, 0, EXIT_TRY_MS);
	}
	dprintf(h->log_fd, "ptc-exec: %s\n", err.text);
}

/* Nobody else may be there to see to it. What the program has left running there is not ours to end, and may run on for
 * a moment or for long: ptcd ends it, or it ends by itself. Meanwhile it may write to the log. */
static void remove_cgroup(struct helper *h)
{
	int status, wait_ms = 1;

	while (ptc_cgroup_populated(h->cgroup)) {
		struct pollfd pfd = { h->signal_fd, POLLIN, 0 }; /* its processes are our children now */

		/* the kernel may take a moment more to see that one has ended */
		wait_ms = poll(&pfd, 1, wait_ms) > 0 ? 1 : PTC_MIN(2 * wait_ms, LEFT_LOOK_MS);
		(void)reap(h, &status);
		thaw_left(h, true); /* the program may have been killed while it was frozen */
		look_at_log(h);
	}
	ptc_cgroup_remove_empty(h->cgroup, CGROUP_MS);
}

static int supervise(struct helper *h)
{
	int status;

	if (detach(h) || find_user(h) || open_log(h) || fork_program(h))
		return 1;
	enter_cgroup(h);
	if (record(h)) {
		close(h->with_program);
		waitpid(h->pid, NULL, 0);
		if (*h->cgroup)
			ptc_cgroup_remove(h->cgroup, CGROUP_MS, NULL);
		return 1;
	}
	if (h->request.flags & PTC_EXEC_LOW)
		(void)ptc_priority_lower(h->pid, h->cgroup); /* else it is as quick as the others: no harm */
	if (write(h->with_program, "g", 1) != 1)             /* it was killed; that is recorded as of any program */
		report(h, PTC_EIO, "%s was killed before it had begun", h->argv[0]);
	close(PTC_EXEC_ERROR_FD);
	close(h->with_program);
	status = wait_for_program(h);
	look_at_log(h); /* before it is known to have ended: who reads it then reads what stays */
	write_exit(h, status);
	if (*h->cgroup)
		remove_cgroup(h);
	return 0;
}

/* ---- looking at a program's files ---------------------------------------------------------- */

static int look(char **argv)
{
	const uid_t uid = (uid_t)strtoul(argv[2], NULL, 10);
	const struct passwd *user = uid == geteuid() ? NULL : getpwuid(uid);

	if (uid != geteuid() &&
	    (!user || initgroups(user->pw_name, user->pw_gid) != 0 ||
	     setresgid(user->pw_gid, user->pw_gid, user->pw_gid) != 0 || setresuid(uid, uid, uid) != 0))
		return 1;
	for (char **path = argv + 3; *path; path++) {
		struct stat st = { 0 };

		if (stat(*path, &st) != 0 || !S_ISREG(st.st_mode))
			st = (struct stat){ 0 };
		printf("%llu %llu %llu %llu %llu\n", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino,
		       (unsigned long long)st.st_size, (unsigned long long)st.st_mtim.tv_sec,
		       (unsigned long long)st.st_mtim.tv_nsec);
	}
	return fflush(stdout) != 0;
}

int main(int argc, char **argv)
{
	struct helper h = { .log_fd = -1, .cut_fd = -1, .watch_fd = -1, .signal_fd = -1 };
	sigset_t all;
	pid_t pid;
	int rc;

	if (argc > 3 && strcmp(argv[1], PTC_EXEC_LOOK) == 0)
		return look(argv);
	if (fcntl(PTC_EXEC_REQUEST_FD, F_GETFD) < 0 || fcntl(PTC_EXEC_ERROR_FD, F_GETFD) < 0 ||
	    fcntl(PTC_EXEC_DIR_FD, F_GETFD) < 0) {
		fprintf(stderr, "ptc-exec: ptcd starts this, to run a job's processes; it is of no use by hand\n");
		return 2;
	}
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	ptc_fault_init();
	if (!read_request(&h)) {
		report(&h, PTC_EINTERNAL, "ptc-exec cannot read its request");
		helper_done(&h);
		return 1;
	}
	pid = fork();
	if (pid < 0)
		report(&h, PTC_EIO, "ptc-exec cannot fork: %s", strerror(errno));
	rc = pid == 0 ? supervise(&h) : pid < 0;
	helper_done(&h);
	return rc;
}
