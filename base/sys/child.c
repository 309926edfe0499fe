/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: child.h. Children start by vfork. fork would not do, because gRPC's threads hold locks
 * that a forked child could never release. posix_spawn would not do, because it writes no pid file; if the parent wrote
 * the file, it would be missing when the parent is killed in between. */
#include "base/cleanup.h"
#include "base/sys/child.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define STANDARD_FDS 3

struct start {
	const struct ptc_child_args *args;
	volatile int failed; /* errno of what went wrong in the child; vfork shares it with us */
};

/* ---- in the child of vfork: system calls only, nothing that allocates, locks or returns ---- */

static void reset_signals(bool ignored_too)
{
	struct sigaction old, dfl = { .sa_handler = SIG_DFL };
	sigset_t none;

	for (int sig = 1; sig < NSIG; sig++)
		if (sigaction(sig, NULL, &old) == 0 && (ignored_too || old.sa_handler != SIG_IGN))
			sigaction(sig, &dfl, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static bool write_pid_file(const char *path)
{
	char stat[1024];
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, stat, sizeof stat);

	if (n <= 0)
		return false;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	return fd >= 0 && write(fd, stat, (size_t)n) == n;
}

/* First each is copied above all numbers that are given away, so that none is overwritten before it is used. */
static bool place_fds(const struct ptc_child_args *a)
{
	int from[STANDARD_FDS + PTC_CHILD_FDS_MAX], n = STANDARD_FDS + (int)a->nfds;
	int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	from[STDIN_FILENO] = null_fd;
	from[STDOUT_FILENO] = a->output > 0 ? a->output : null_fd;
	from[STDERR_FILENO] = a->errors > 0 ? a->errors : null_fd;
	for (unsigned i = 0; i < a->nfds; i++)
		from[PTC_CHILD_FD + i] = a->fds[i];
	for (int i = 0; i < n; i++)
		if ((from[i] = fcntl(from[i], F_DUPFD_CLOEXEC, (int)PTC_ARRAY_LEN(from))) < 0)
			return false;
	for (int i = 0; i < n; i++)
		if ((i != STDERR_FILENO || a->errors) && dup2(from[i], i) < 0)
			return false;
	return close_range((unsigned)n, ~0U, 0) == 0;
}

__attribute__((noreturn)) static void become(struct start *s)
{
	const struct ptc_child_args *a = s->args;

	reset_signals(a->default_signals);
	if (a->ends_with_us)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (a->session)
		setsid();
	if (a->dir)
		umask(077);
	if ((!a->dir || chdir(a->dir) == 0) && (!a->pid_file || write_pid_file(a->pid_file)) && place_fds(a))
		execvpe(a->path, a->argv, a->envp ? a->envp : environ);
	s->failed = errno ? errno : EIO;
	_exit(127);
}

/* ---- starting and ending ---- */

static int start(struct start *s, pid_t *ret_pid)
{
	sigset_t all, old;
	pid_t pid;
	int e;

	/* signals wait: a handler must not run in the child, on our memory */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	/* NOLINTBEGIN(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork): it makes system calls only
	 */
	pid = vfork();
	if (pid == 0)
		become(s);
	/* NOLINTEND(clang-analyzer-security.insecureAPI.vfork,clang-analyzer-unix.Vfork) */
	e = pid < 0 ? errno : 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	*ret_pid = pid;
	return e;
}

int ptc_child_start(const struct ptc_child_args *args, struct ptc_child *ret_child, struct ptc_error *err)
{
	struct start s = { .args = args };
	struct ptc_child c;
	int e;

	ptc_require(args->nfds <= PTC_CHILD_FDS_MAX);
	e = start(&s, &c.pid);
	if (e)
		return ptc_error_errno(err, e, "cannot start %s", args->path);
	c.pidfd = pidfd_open(c.pid, 0); /* ours and not waited for: the pid stays valid */
	e = s.failed ? s.failed : c.pidfd < 0 ? errno : 0;
	if (e) {
		kill(c.pid, SIGKILL);
		waitpid(c.pid, NULL, 0);
		ptc_close(&c.pidfd);
		return ptc_error_errno(err, e, "cannot start %s%s%s", args->path, args->dir ? " in " : "",
				       args->dir ? args->dir : "");
	}
	*ret_child = c;
	return 0;
}

static int64_t end_of(int timeout_ms)
{
	return ptc_sys_now_ns() + (int64_t)timeout_ms * 1000000;
}

/* Waits until fd is readable. */
static bool readable(int fd, int64_t until_ns, bool for_ever)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int n;

	do {
		int64_t left_ms = (until_ns - ptc_sys_now_ns() + 999999) / 1000000;

		n = poll(&p, 1, for_ever ? -1 : (int)PTC_MAX(left_ms, 0));
	} while (n < 0 && errno == EINTR);
	return n > 0;
}

bool ptc_child_ended(int pidfd, int timeout_ms)
{
	return readable(pidfd, end_of(timeout_ms), timeout_ms < 0);
}

bool ptc_child_wait(const struct ptc_child *c, int timeout_ms, int *ret_status)
{
	siginfo_t end = { .si_pid = 0 };

	if (!ptc_child_ended(c->pidfd, timeout_ms))
		return false;
	/* by the descriptor: the number may have gone to another child of ours since an earlier call */
	if (waitid(P_PIDFD, (id_t)c->pidfd, &end, WEXITED | WNOHANG) != 0)
		end.si_pid = 0;
	if (ret_status && end.si_pid)
		*ret_status = end.si_code == CLD_EXITED ? W_EXITCODE(end.si_status, 0) : end.si_status;
	else if (ret_status)
		*ret_status = 0;
	return true;
}

void ptc_child_signal(const struct ptc_child *c, int sig)
{
	pidfd_send_signal(c->pidfd, sig, NULL, 0);
}

void ptc_child_close(struct ptc_child *c)
{
	ptc_close(&c->pidfd);
	*c = PTC_CHILD_NONE;
}

static void end(const struct ptc_child *c, int term_ms)
{
	ptc_child_signal(c, SIGTERM);
	if (ptc_child_wait(c, term_ms, NULL))
		return;
	ptc_child_signal(c, SIGKILL);
	(void)ptc_fault("child.killed"); /* while a test holds it here, it is a child that hangs in the kernel */
	ptc_child_wait(c, -1, NULL);
}

void ptc_child_end(struct ptc_child *c, int term_ms)
{
	end(c, term_ms);
	ptc_child_close(c);
}

/* ---- ends that nobody waits for ---- */

struct left {
	struct ptc_child child;
	int term_ms; /* < 0: it was killed already */
	void (*ended)(void *arg);
	void *arg;
};

static atomic_int nleft;

static void *reap_main(void *arg)
{
	struct left *l = arg;

	if (l->term_ms < 0)
		ptc_child_wait(&l->child, -1, NULL);
	else
		end(&l->child, l->term_ms);
	ptc_child_close(&l->child);
	if (l->ended)
		l->ended(l->arg);
	ptc_free(l);
	atomic_fetch_sub(&nleft, 1);
	return NULL;
}

/* False: too many are left already, or there is no memory, or no thread. */
static bool leave(const struct left *what)
{
	struct left *l = atomic_fetch_add(&nleft, 1) < PTC_CHILD_LEFT_MAX ? ptc_malloc(sizeof *l) : NULL;
	pthread_t thread;

	if (l)
		*l = *what;
	if (l && ptc_thread_start(&thread, "ptc-reap", reap_main, l, NULL) == 0) {
		pthread_detach(thread);
		return true;
	}
	ptc_free(l);
	atomic_fetch_sub(&nleft, 1);
	return false;
}

void ptc_child_leave(struct ptc_child *c)
{
	if (!leave(&(struct left){ .child = *c, .term_ms = -1 }))
		ptc_child_close(c);
	*c = PTC_CHILD_NONE;
}

void ptc_child_end_later(struct ptc_child *c, int term_ms, void (*ended)(void *arg), void *arg)
{
	if (!leave(&(struct left){ .child = *c, .term_ms = term_ms, .ended = ended, .arg = arg })) {
		ptc_child_signal(c, SIGKILL);
		ptc_child_close(c);
		ended(arg);
	}
	*c = PTC_CHILD_NONE;
}

ssize_t ptc_child_read(int fd, int timeout_ms, char *text, size_t size)
{
	const int64_t until_ns = end_of(timeout_ms);
	size_t len = 0;
	ssize_t n = 1;

	while (n && len < size - 1) {
		if (!readable(fd, until_ns, false)) {
			errno = ETIMEDOUT;
			return -1;
		}
		n = read(fd, text + len, size - 1 - len);
		if (n < 0 && errno != EINTR)
			return -1;
		len += n > 0 ? (size_t)n : 0;
	}
	text[len] = '\0';
	return (ssize_t)len;
}

/* ---- a process by its number ---- */

bool ptc_process_stat_parse(const char *line, struct ptc_process_stat *ret_stat)
{
	struct ptc_process_stat s = { .name = "" };
	const char *from = strchr(line, '('),
		   *to = strrchr(line, ')'); /* the name may hold anything, and nothing after it a ')' */

	if (!from || !to || sscanf(line, "%d", &s.pid) != 1 ||
	    sscanf(to + 1, " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64,
		   &s.state, &s.parent, &s.start_time) != 3)
		return false;
	snprintf(s.name, sizeof s.name, "%.*s", (int)(to - from - 1), from + 1);
	*ret_stat = s;
	return true;
}

bool ptc_process_stat(pid_t pid, struct ptc_process_stat *ret_stat)
{
	char path[64], line[4096];
	ssize_t n;
	int fd;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
	ptc_close(&fd);
	line[PTC_MAX(n, 0)] = '\0';
	return ptc_process_stat_parse(line, ret_stat);
}

int ptc_process_open(pid_t pid, uint64_t start_time, struct ptc_process_stat *ret_stat)
{
	int fd = pidfd_open(pid, 0); /* before the check: afterwards it can only mean that process */
	struct ptc_process_stat s;

	if (fd >= 0 && (!ptc_process_stat(pid, &s) || s.start_time != start_time)) {
		close(fd);
		return -1;
	}
	if (fd >= 0 && ret_stat)
		*ret_stat = s;
	return fd;
}
