/* SPDX-License-Identifier: Apache-2.0 */
/* ptcd's side of processes that outlive it; exec_main.c is the helper's side.
 *
 * Happy path: make and lock the folder, start the helper with the lock, read its pipe to the end (nothing: the program
 * has begun), read what it has recorded.
 *
 * Failure modes: a line on the pipe (the program has not begun; the folder goes again); a helper that is killed before
 * it has recorded (then the program never begins); one that does not come to the program's start, as where cwd hangs
 * (PTC_ETIMEOUT; the folder stays and can be adopted later). If ptcd is killed here, the folder tells the next ptcd
 * what has happened: `process` is there, or the helper still has the lock, or nothing has begun. */
#include "daemon/workers/process/spawn.h"

#include "daemon/workers/process/cgroup.h"
#include "daemon/workers/process/process.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/child.h"
#include "base/sys/fault.h"
#include "base/sys/helper.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_MS      30000 /* a cwd on a network file system may be slow */
#define HELPER_MS     5000  /* a helper writes one small file when its program has ended */
#define CGROUP_MS     5000
#define REAP_MS       1000
#define CGROUP_SUFFIX 13 /* "/" and ".PID" */
#define PATH_BYTES    4096

/* In the order of their numbers in the helper. */
enum { FD_REQUEST = PTC_EXEC_REQUEST_FD - PTC_CHILD_FD, FD_ERROR, FD_DIR, NFDS };

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static int in_dir(const char *dir, const char *name, char path[PATH_BYTES])
{
	return snprintf(path, PATH_BYTES, "%s/%s", dir, name);
}

/* ---- the folder ------------------------------------------------------------------ */

/* A helper that lives has the lock. PTC_ENOTFOUND: no folder. */
static int lock_dir(const char *dir, int timeout_ms, int *ret_fd, struct ptc_error *err)
{
	const int64_t deadline = ptc_sys_now_ns() + (int64_t)timeout_ms * 1000000;
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return ptc_error_errno(err, errno, "cannot open %s", dir);
	while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
		const int e = errno;

		if (e == EWOULDBLOCK && ptc_sys_now_ns() < deadline) {
			nap();
			continue;
		}
		close(fd);
		return e == EWOULDBLOCK ? ptc_error_set(err, PTC_ETIMEOUT, "%s: its helper ptc-exec is at work", dir)
					: ptc_error_errno(err, e, "cannot lock %s", dir);
	}
	*ret_fd = fd;
	return 0;
}

/* What is left of a process that has ended or never begun. A log with something in it stays if keep_log. */
static void clear(const char *dir, bool keep_log)
{
	static const char *const names[] = { "process.tmp", "process", "exit.tmp", "exit",
					     "cgroup",      "low",     "log",      "rank" };
	char path[PATH_BYTES], cgroup[PTC_EXEC_PATH_MAX];
	struct ptc_error err = PTC_ERROR_INIT;
	struct stat st;

	ptc_process_cgroup_read(dir, cgroup);
	if (*cgroup && ptc_cgroup_remove(cgroup, CGROUP_MS, &err))
		ptc_debug("workers", "%s", err.text);
	for (size_t i = 0; i < PTC_ARRAY_LEN(names); i++) {
		in_dir(dir, names[i], path);
		if (strcmp(names[i], "log") == 0 && keep_log && stat(path, &st) == 0 && st.st_size > 0)
			return;
		if (ptc_sys_unlink(path, "process.unlink", &err))
			ptc_debug("workers", "%s", err.text);
	}
	if (ptc_fault("process.rmdir.before"))
		return;
	if (rmdir(dir) != 0 && errno != ENOENT)
		ptc_debug("workers", "cannot remove %s: %s", dir, strerror(errno));
	(void)ptc_fault("process.rmdir.after");
}

/* Made, or left by an attempt that came to nothing; ours and nobody else's. */
static int make_dir(const char *dir, int *ret_fd, bool *ret_made, struct ptc_error *err)
{
	struct ptc_process_record r;
	ptc_auto_close int fd = -1;
	const bool made = mkdir(dir, 0700) == 0;
	struct stat st;
	int rc;

	if (!made && errno != EEXIST)
		return ptc_error_errno(err, errno, "cannot create %s", dir);
	rc = ptc_process_record_read(dir, &r, NULL);
	if (rc == PTC_ENOTFOUND) {
		rc = lock_dir(dir, HELPER_MS, &fd, err); /* an earlier attempt's helper may be about to record one */
		if (rc)
			return rc;
		rc = ptc_process_record_read(dir, &r, NULL);
	}
	if (rc != PTC_ENOTFOUND)
		return ptc_error_set(err, PTC_EEXIST, "%s has a process already", dir);
	if (fstat(fd, &st) != 0)
		return ptc_error_errno(err, errno, "%s", dir);
	if (st.st_uid != geteuid() || (st.st_mode & 077))
		return ptc_error_set(err, PTC_EPERM, "%s must belong to uid %d with mode 0700", dir, (int)geteuid());
	*ret_fd = fd;
	*ret_made = made;
	fd = -1;
	return 0;
}

/* ---- what the helper is told -------------------------------------------------------- */

static void put_string(struct ptc_buf *b, const char *s)
{
	ptc_buf_append(b, s ? s : "", strlen(s ? s : "") + 1);
}

static uint32_t put_list(struct ptc_buf *b, const char *const *list)
{
	uint32_t n = 0;

	for (; list && list[n] && n <= PTC_EXEC_STRINGS_MAX && b->len <= PTC_EXEC_REQUEST_MAX; n++)
		put_string(b, list[n]);
	return n;
}

static int check_request(const struct ptc_spawn *s, struct ptc_error *err)
{
	if (!s->dir || s->dir[0] != '/' || !s->cwd || s->cwd[0] != '/')
		return ptc_error_set(err, PTC_EINVAL, "a process's folder and cwd must be absolute paths");
	if (!s->argv || !s->argv[0] || !*s->argv[0])
		return ptc_error_set(err, PTC_EINVAL, "a process needs a program");
	if (!s->token || strlen(s->token) != 32)
		return ptc_error_set(err, PTC_EINVAL, "a process's token has 32 hex digits");
	if (strlen(s->dir) >= PTC_EXEC_PATH_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "%s: longer than %d bytes", s->dir, PTC_EXEC_PATH_MAX - 1);
	if (s->cgroup && *s->cgroup &&
	    (!s->cgroup_name || *s->cgroup_name == '.' || !*s->cgroup_name || strchr(s->cgroup_name, '/')))
		return ptc_error_set(err, PTC_EINVAL, "%s: a process's cgroup needs a name without '/'", s->cgroup);
	if (s->cgroup && s->cgroup_name &&
	    strlen(s->cgroup) + strlen(s->cgroup_name) + CGROUP_SUFFIX >= PTC_EXEC_PATH_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "the cgroup %s/%s: longer than %d bytes", s->cgroup,
				     s->cgroup_name, PTC_EXEC_PATH_MAX - CGROUP_SUFFIX);
	return 0;
}

static int encode(const struct ptc_spawn *s, struct ptc_buf *b, struct ptc_error *err)
{
	struct ptc_exec_request r = { .version = PTC_EXEC_VERSION, .uid = s->uid, .log_bytes = s->log_bytes };

	r.flags = s->low ? PTC_EXEC_LOW : 0;
	ptc_buf_append(b, &r, sizeof r);
	put_string(b, s->token);
	put_string(b, s->cgroup);
	put_string(b, s->cgroup_name);
	put_string(b, s->cwd);
	r.argc = put_list(b, s->argv);
	r.envc = put_list(b, s->env);
	if (ptc_buf_failed(b))
		return ptc_nomem(err);
	if (r.argc > PTC_EXEC_STRINGS_MAX || r.envc > PTC_EXEC_STRINGS_MAX || b->len > PTC_EXEC_REQUEST_MAX)
		return ptc_error_set(err, PTC_ELIMIT,
				     "%s: arguments and environment have more than %d entries or %u bytes", s->argv[0],
				     PTC_EXEC_STRINGS_MAX, PTC_EXEC_REQUEST_MAX);
	r.bytes = (uint32_t)(b->len - sizeof r);
	memcpy(b->data, &r, sizeof r);
	return 0;
}

static int make_request(const struct ptc_spawn *s, int *ret_fd, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	int fd = -1, rc = encode(s, &b, err);

	if (!rc && ((fd = memfd_create("ptc-exec", MFD_CLOEXEC)) < 0 || write(fd, b.data, b.len) != (ssize_t)b.len))
		rc = ptc_error_errno(err, fd < 0 ? errno : ENOMEM, "cannot make a memory file");
	if (!rc)
		*ret_fd = fd;
	else
		ptc_close(&fd);
	ptc_buf_done(&b);
	return rc;
}

/* ---- starting it ----------------------------------------------------------------------- */

/* Reads the pipe to its end: nothing, or "CODE HELPER text". */
static int await(int fd, const char *program, pid_t *ret_helper, struct ptc_error *err)
{
	char text[PTC_ERROR_MAX];
	ssize_t n = ptc_child_read(fd, START_MS, text, sizeof text);
	int code, at = 0;

	if (n < 0 && errno == ETIMEDOUT)
		return ptc_error_set(err, PTC_ETIMEOUT,
				     "%s has not begun after %d s: check that its working directory answers", program,
				     START_MS / 1000);
	if (n <= 0)
		return 0;
	if (sscanf(text, "%d %d %n", &code, ret_helper, &at) != 2)
		return ptc_error_set(err, PTC_EINTERNAL, "ptc-exec: %s", text);
	return ptc_error_set(err, ptc_status_from_wire(code), "%s", text + at);
}

/* Starts the helper and takes its first process, which has made the second and ends, off our hands. */
static int start(const struct ptc_spawn *s, const int *fds, struct ptc_error *err)
{
	char helper[PTC_HELPER_PATH], name[] = "ptc-exec", folder[PTC_EXEC_PATH_MAX];
	char *argv[] = { name, folder, NULL }; /* the folder is for people who read ps */
	struct ptc_child_args args = {
		.path = helper, .argv = argv, .fds = fds, .nfds = NFDS, .default_signals = true
	};
	struct ptc_child c;
	int rc = ptc_helper_find("ptc-exec", "PTC_EXEC", helper, err);

	if (rc)
		return rc;
	if (ptc_fault("process.spawn.before"))
		return ptc_error_errno(err, EIO, "cannot start %s", helper);
	snprintf(folder, sizeof folder, "%s", s->dir);
	rc = ptc_child_start(&args, &c, err);
	if (rc)
		return rc;
	(void)ptc_fault("process.spawn.after");
	ptc_child_wait(&c, -1, NULL);
	ptc_child_close(&c);
	return 0;
}

/* ---- a program's files ------------------------------------------------------------------ */

/* NULL: it runs none, or it is not known which. */
static const char *script(const char *const *argv)
{
	for (size_t i = 1; argv[i]; i++)
		if (argv[i][0] != '-')
			return argv[i];
		else if (argv[i][1] == '-' || strcmp(argv[i], "-c") == 0 || strcmp(argv[i], "-m") == 0)
			return NULL;
	return NULL;
}

/* "": there is none. */
static void full_path(const char *cwd, const char *file, char path[PATH_BYTES])
{
	if (!file ||
	    snprintf(path, PATH_BYTES, "%s%s%s", *file == '/' ? "" : cwd, *file == '/' ? "" : "/", file) >= PATH_BYTES)
		path[0] = '\0';
}

static void read_files(const char *text, struct ptc_program_files *ret)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(ret->of); i++) {
		uint64_t *v = ret->of[i];
		int at = 0;

		if (sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 "%n", &v[0], &v[1], &v[2],
			   &v[3], &v[4], &at) != 5)
			memset(v, 0, sizeof ret->of[i]);
		text += at;
	}
}

void ptc_program_look(const char *cwd, uid_t uid, const char *const *argv, struct ptc_program_files *ret)
{
	char helper[PTC_HELPER_PATH], program[PATH_BYTES], file[PATH_BYTES], text[256], user[16];
	char name[] = "ptc-exec", look[] = PTC_EXEC_LOOK;
	char *args[] = { name, look, user, program, file, NULL };
	struct ptc_child_args how = { .path = helper, .argv = args, .errors = -1, .default_signals = true };
	struct ptc_child c;
	int fds[2];

	*ret = (struct ptc_program_files){ 0 };
	snprintf(user, sizeof user, "%lu", (unsigned long)uid);
	full_path(cwd, strchr(argv[0], '/') ? argv[0] : NULL, program);
	full_path(cwd, script(argv), file);
	if ((!*program && !*file) || ptc_helper_find("ptc-exec", "PTC_EXEC", helper, NULL) != 0 ||
	    pipe2(fds, O_CLOEXEC) != 0)
		return;
	how.output = fds[1];
	if (ptc_child_start(&how, &c, NULL) == 0) {
		ptc_close(&fds[1]);
		if (ptc_child_read(fds[0], PTC_PROGRAM_LOOK_MS, text, sizeof text) > 0)
			read_files(text, ret);
		if (!ptc_fault("process.look.kill"))
			ptc_child_signal(&c, SIGKILL); /* it has nothing more to say */
		if (ptc_child_wait(&c, REAP_MS, NULL))
			ptc_child_close(&c);
		else
			ptc_child_leave(&c);
	}
	ptc_close(&fds[0]);
	ptc_close(&fds[1]);
}

static void close_fds(int *fds)
{
	for (size_t i = 0; i < NFDS; i++)
		ptc_close(&fds[i]);
}

/* Where ptcd is process 1, or a subreaper, what its helpers leave behind is its to wait for; elsewhere these find no
 * child of ours. Only for what ends. */
static void reap_helper(pid_t pid)
{
	struct ptc_process_stat st;

	if (ptc_process_stat(pid, &st) && st.parent == getpid() && strcmp(st.name, "ptc-exec") == 0)
		waitpid(pid, NULL, 0);
}

static void reap_group(const struct ptc_process *p)
{
	struct ptc_process_stat st;
	pid_t pid;

	if (p->pid <= 1 || (ptc_process_stat(p->pid, &st) && st.start_time != p->start_time))
		return;
	for (int i = 0; i < REAP_MS && (pid = waitpid(-p->pid, NULL, WNOHANG)) >= 0; i++)
		if (pid == 0)
			nap();
}

/* After a start that failed. The helper may need a moment to end; if it hangs, the folder stays. */
static void give_up(const char *dir, pid_t helper, bool keep_log)
{
	int fd;

	if (lock_dir(dir, HELPER_MS, &fd, NULL))
		return;
	if (helper)
		reap_helper(helper);
	clear(dir, keep_log);
	close(fd);
}

int ptc_process_spawn(const struct ptc_spawn *s, struct ptc_process *ret_process, struct ptc_error *err)
{
	int fds[NFDS] = { -1, -1, -1 };
	ptc_auto_close int from_helper = -1;
	int pipe_fds[2], rc = check_request(s, err);
	pid_t helper = 0;
	bool made = false;

	if (rc)
		return rc;
	rc = make_dir(s->dir, &fds[FD_DIR], &made, err);
	if (rc)
		return rc;
	rc = make_request(s, &fds[FD_REQUEST], err);
	if (!rc && pipe2(pipe_fds, O_CLOEXEC) != 0)
		rc = ptc_error_errno(err, errno, "cannot make a pipe");
	if (!rc) {
		from_helper = pipe_fds[0];
		fds[FD_ERROR] = pipe_fds[1];
		rc = start(s, fds, err);
	}
	close_fds(fds); /* ours: the pipe ends with the helper's */
	if (!rc)
		rc = await(from_helper, s->argv[0], &helper, err);
	if (!rc) {
		rc = ptc_process_adopt(s->dir, ret_process, err);
		if (rc == PTC_ENOTFOUND)
			rc = ptc_error_set(err, PTC_EIO, "ptc-exec was killed before %s had begun", s->argv[0]);
		return rc;
	}
	if (rc != PTC_ETIMEOUT)
		give_up(s->dir, helper, !made); /* an earlier process's log stays */
	return rc;
}

/* ---- finding it again --------------------------------------------------------------------- */

/* `process`, which a helper may be about to write. Where none will be, the rest of the attempt is cleared away. */
static int find_record(const char *dir, struct ptc_process_record *ret_record, struct ptc_error *err)
{
	const int64_t deadline = ptc_sys_now_ns() + (int64_t)START_MS * 1000000;
	int fd, rc;

	for (;;) {
		rc = ptc_process_record_read(dir, ret_record, err);
		if (rc != PTC_ENOTFOUND)
			return rc;
		rc = lock_dir(dir, 1, &fd, err);
		if (rc == 0)
			break;
		if (rc != PTC_ETIMEOUT || ptc_sys_now_ns() >= deadline)
			return rc;
	}
	rc = ptc_process_record_read(dir, ret_record, err); /* it may have written, and ended, since we looked */
	if (rc == PTC_ENOTFOUND)
		clear(dir, true);
	close(fd);
	return rc == PTC_ENOTFOUND ? ptc_error_set(err, rc, "%s: no process was started in this folder", dir) : rc;
}

/* -1: it has ended. */
static int open_process(const struct ptc_process_record *r)
{
	struct ptc_process_stat st;
	int fd = ptc_process_open(r->pid, r->start_time, &st);

	if (fd < 0 || (st.state != 'Z' && st.state != 'X'))
		return fd;
	close(fd);
	return -1;
}

int ptc_process_adopt(const char *dir, struct ptc_process *ret_process, struct ptc_error *err)
{
	struct ptc_process p = { .pidfd = -1 };
	struct ptc_process_record r;
	char boot[37];
	int rc;

	if (strlen(dir) >= sizeof p.dir)
		return ptc_error_set(err, PTC_ELIMIT, "%s: longer than %zu bytes", dir, sizeof p.dir - 1);
	rc = ptc_process_boot_id(boot, err);
	if (!rc)
		rc = find_record(dir, &r, err);
	if (rc)
		return rc;
	snprintf(p.dir, sizeof p.dir, "%s", dir);
	snprintf(p.token, sizeof p.token, "%s", r.token);
	p.start_time = r.start_time;
	if (strcmp(boot, r.boot) == 0) { /* else its numbers mean nothing any more */
		p.pid = r.pid;
		p.pidfd = open_process(&r);
		ptc_process_cgroup_read(dir, p.cgroup);
	}
	*ret_process = p;
	return 0;
}

/* ---- what one does with it ------------------------------------------------------------------ */

bool ptc_process_wait(const struct ptc_process *p, int timeout_ms)
{
	return p->pidfd < 0 || ptc_child_ended(p->pidfd, timeout_ms);
}

bool ptc_process_status(const struct ptc_process *p, int *ret_status)
{
	const int64_t deadline = ptc_sys_now_ns() + (int64_t)HELPER_MS * 1000000;
	int fd, rc = PTC_ETIMEOUT;

	*ret_status = 0;
	while (!ptc_process_exit_read(p->dir, ret_status)) {
		if (rc != PTC_ETIMEOUT || ptc_sys_now_ns() >= deadline)
			return false;
		/* the helper is about to write it, or gone; once it has, it may live on for what is left in the cgroup
		 */
		rc = lock_dir(p->dir, 1, &fd, NULL);
		if (rc == 0)
			close(fd);
	}
	return true;
}

int ptc_process_signal(const struct ptc_process *p, int sig, struct ptc_error *err)
{
	struct ptc_process_stat st;

	if (*p->cgroup)
		return ptc_cgroup_signal(p->cgroup, sig, err);
	/* The number of a process that has ended is not given to another while its group has members: if it has been,
	 * the group is gone. */
	if (p->pid <= 1 || (ptc_process_stat(p->pid, &st) && st.start_time != p->start_time))
		return 0;
	if (killpg(p->pid, sig) != 0 && errno != ESRCH)
		return ptc_error_errno(err, errno, "cannot signal process group %d", (int)p->pid);
	return 0;
}

/* The last bytes of a log, at most size. */
static size_t read_end(int fd, char *buf, size_t size, bool *ret_cut)
{
	const off_t begin = (off_t)ptc_process_log_begin(fd), end = lseek(fd, 0, SEEK_END);
	const off_t from = end - begin > (off_t)size ? end - (off_t)size : begin;
	size_t len = 0;
	ssize_t n;

	*ret_cut = from > begin;
	while (len < size && (n = pread(fd, buf + len, size - len, from + (off_t)len)) > 0)
		len += (size_t)n;
	return len;
}

void ptc_process_log_tail(const struct ptc_process *p, char *buf, size_t size)
{
	char path[PATH_BYTES], *line;
	ptc_auto_close int fd = -1;
	bool cut = false;
	size_t len = 0;

	if (size == 0)
		return;
	in_dir(p->dir, "log", path);
	fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0)
		len = read_end(fd, buf, size - 1, &cut);
	buf[len] = '\0';
	for (size_t i = 0; i < len; i++)
		if (buf[i] == '\0')
			buf[i] = '?';
	line = cut ? memchr(buf, '\n', len) : NULL;
	if (line && line[1])
		memmove(buf, line + 1, strlen(line + 1) + 1);
}

void ptc_process_remove(struct ptc_process *p, bool keep_log)
{
	struct ptc_process_record r;
	struct ptc_error err = PTC_ERROR_INIT;
	const bool recorded = ptc_process_record_read(p->dir, &r, NULL) == 0;
	int fd = -1;

	if (*p->cgroup ? ptc_cgroup_remove(p->cgroup, CGROUP_MS, &err) : ptc_process_signal(p, SIGKILL, &err))
		ptc_debug("workers", "%s", err.text);
	if (lock_dir(p->dir, HELPER_MS, &fd, &err) == PTC_ETIMEOUT)
		ptc_debug("workers", "%s", err.text); /* stopped by somebody; it finds no folder to write to */
	if (fd >= 0 && recorded && p->pid > 1) {
		reap_helper(r.helper); /* before its children, which are ours only then */
		reap_group(p);
	}
	clear(p->dir, keep_log);
	ptc_close(&fd);
	ptc_process_done(p);
}

void ptc_process_done(struct ptc_process *p)
{
	ptc_close(&p->pidfd);
}
