/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-fuse: serves the file system of a daemon's jobs at a directory. Started by ptcd (fuse.dir), by `ptcctl mount`, or
 * by hand. Happy path: takes the lock, mounts, writes a newline to --ready-fd, serves until SIGTERM or until it is
 * unmounted. Failure modes: one line to --ready-fd, or on standard error, and exit status 1 (2: usage). If the daemon
 * is unreachable, reads fail; if that lasts for longer than --linger, ptc-fuse ends. */
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/memory/machine_memory.h"
#include "base/sys/fault.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/number/units.h"
#include "base/sys/thread.h"
#include "formats/json.h"
#include "fusefs/mount/mountpoint.h"
#include "fusefs/serve/fusefs.h"
#include "fusefs/source/source_admin.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define WORK_BYTES   (256ull << 20) /* besides the cache: descriptions of jobs, heads of files, messages */
#define BACKING_PART 4              /* a quarter of the memory */
#define KEEP_BYTES   (16u << 20) /* of freed memory, besides those, for what daemons send next: in each of two arenas */

static const char usage[] =
	"usage: ptc-fuse [options] DIR\n"
	"\n"
	"  --socket PATH      the daemon's socket (default $PTC_SOCKET, else " PTC_ADMIN_DEFAULT_SOCKET ")\n"
	"  --cache BYTES      memory for file content (default 64MiB)\n"
	"  --backing BYTES    most memory for files kept whole, from which the kernel reads by itself; 0B: none\n"
	"                     (root only; default: a quarter of the memory)\n"
	"  --backing-dir DIR  keep these files in DIR instead of in memory\n"
	"  --timeout TIME     answer each request within this time, with an error if necessary (default 30s)\n"
	"  --others           let other users in; each sees their own jobs (root only)\n"
	"  --lock FILE        lock this file; a second process with the same file ends at once\n"
	"  --linger TIME      end once the daemon has not answered for this time (default: never)\n"
	"  --unmount          do not mount: detach the mount at DIR, if it is a ptc mount\n"
	"  --stale            with --unmount: only if no process serves it any more\n"
	"  --ready-fd N       write a newline to this descriptor once mounted, or a line with the reason why not\n"
	"\n"
	"exit status: 0 done, 1 failed, 2 usage\n";

struct options {
	const char *dir, *socket, *lock, *backing_dir;
	uint64_t cache_bytes, backing_bytes, timeout_ms, linger_ms;
	bool others, unmount, stale;
	int ready_fd;
};

struct process {
	struct options o;
	struct ptc_fs_admin *admin;
	struct ptc_fs_source source;
	struct ptc_fs *fs;
	int lock_fd;                      /* the lingering thread's while it runs; -1: not held */
	struct ptc_fs_backing_usage told; /* what the lock file says of the backing files */
};

static struct ptc_fs *_Atomic serving; /* read by the handler and by linger_main */

static void on_signal(int signum)
{
	struct ptc_fs *fs = serving;

	(void)signum;
	if (fs)
		ptc_fs_stop(fs);
}

static int option_value(int c, struct options *o, struct ptc_error *err)
{
	switch (c) {
	case 's':
		o->socket = optarg;
		return 0;
	case 'o':
		o->others = true;
		return 0;
	case 'u':
		o->unmount = true;
		return 0;
	case 'S':
		o->stale = true;
		return 0;
	case 'L':
		o->lock = optarg;
		return 0;
	case 'c':
		return ptc_units_parse_bytes(optarg, &o->cache_bytes, err);
	case 'b':
		return ptc_units_parse_bytes(optarg, &o->backing_bytes, err);
	case 'B':
		o->backing_dir = optarg;
		return 0;
	case 't':
		return ptc_units_parse_ms(optarg, &o->timeout_ms, err);
	case 'g':
		return ptc_units_parse_ms(optarg, &o->linger_ms, err);
	case 'r':
		o->ready_fd = atoi(optarg);
		return 0;
	case 'h':
		fputs(usage, stdout);
		exit(0);
	case 'v':
		puts("ptc-fuse " PTC_VERSION);
		exit(0);
	default:
		return PTC_EINVAL;
	}
}

static int parse(int argc, char **argv, struct options *o, struct ptc_error *err)
{
	static const struct option longs[] = {
		{ "socket", required_argument, NULL, 's' },   { "cache", required_argument, NULL, 'c' },
		{ "timeout", required_argument, NULL, 't' },  { "others", no_argument, NULL, 'o' },
		{ "backing", required_argument, NULL, 'b' },  { "backing-dir", required_argument, NULL, 'B' },
		{ "lock", required_argument, NULL, 'L' },     { "linger", required_argument, NULL, 'g' },
		{ "ready-fd", required_argument, NULL, 'r' }, { "unmount", no_argument, NULL, 'u' },
		{ "stale", no_argument, NULL, 'S' },          { "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'v' },        { NULL, 0, NULL, 0 },
	};
	int c, rc;

	*o = (struct options){ .socket = getenv("PTC_SOCKET"),
			       .cache_bytes = 64u << 20,
			       .timeout_ms = 30000,
			       .ready_fd = -1,
			       .backing_bytes = ptc_machine_memory() / BACKING_PART };
	while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
		rc = option_value(c, o, err);
		if (rc)
			return rc;
	}
	if (argc - optind != 1)
		return PTC_EINVAL;
	o->dir = argv[optind];
	if (o->dir[0] != '/')
		return ptc_error_set(err, PTC_EINVAL, "DIR must be an absolute path, not \"%.200s\"", o->dir);
	if (o->backing_dir && o->backing_dir[0] != '/')
		return ptc_error_set(err, PTC_EINVAL, "--backing-dir must be an absolute path, not \"%.200s\"",
				     o->backing_dir);
	if (o->timeout_ms < 1000 || o->timeout_ms > 600000)
		return ptc_error_set(err, PTC_EINVAL, "--timeout must lie between 1s and 600s");
	if (o->others && geteuid() != 0)
		return ptc_error_set(err, PTC_EPERM, "--others needs root");
	return 0;
}

/* An empty line: mounted. */
static void say_ready(const struct options *o, const char *text)
{
	if (o->ready_fd < 0) {
		if (text[0])
			fprintf(stderr, "ptc-fuse: %s\n", text);
		return;
	}
	dprintf(o->ready_fd, "%s\n", text);
	close(o->ready_fd);
}

static int take_lock(struct process *p, struct ptc_error *err)
{
	if (!p->o.lock)
		return 0;
	p->lock_fd = open(p->o.lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (p->lock_fd < 0)
		return ptc_error_errno(err, errno, "%s", p->o.lock);
	if (!flock(p->lock_fd, LOCK_EX | LOCK_NB)) {
		/* who has it and where he serves, for ptcd */
		if (ftruncate(p->lock_fd, 0) || dprintf(p->lock_fd, "%d %s\n", (int)getpid(), p->o.dir) < 0)
			return ptc_error_errno(err, errno, "%s", p->o.lock);
		return 0;
	}
	return ptc_error_set(err, PTC_EEXIST, "another ptc-fuse serves %s; unmount it first", p->o.lock);
}

/* Before anything is mounted: who is told to end as soon as the mount can be seen takes it away again. */
static void obey_signals(struct process *p)
{
	struct sigaction sa = { .sa_handler = on_signal };

	serving = p->fs;
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
}

static int start(struct process *p, struct ptc_error *err)
{
	struct ptc_admin_opts admin = { .size = sizeof admin,
					.socket = p->o.socket,
					.timeout_ms = (int)p->o.timeout_ms / 2,
					.stream_timeout_ms = (int)p->o.timeout_ms };
	struct ptc_fs_opts opts = { .cache_bytes = p->o.cache_bytes,
				    .timeout_ms = (uint32_t)p->o.timeout_ms,
				    .alone = p->o.lock != NULL,
				    .others = p->o.others,
				    .backing_bytes = p->o.backing_bytes,
				    .backing_dir = p->o.backing_dir };
	int rc = take_lock(p, err);

	ptc_alloc_limit_set(p->o.cache_bytes + WORK_BYTES);
	if (rc == 0)
		rc = ptc_fs_admin_new(&admin, &p->admin, err);
	if (rc)
		return rc;
	p->source = opts.source = ptc_fs_admin_source(p->admin);
	rc = ptc_fs_new(&opts, &p->fs, err);
	if (rc)
		return rc;
	obey_signals(p);
	return ptc_fs_mount(p->fs, p->o.dir, err);
}

static void drop_lock(struct process *p)
{
	ptc_close(&p->lock_fd);
}

/* Says in the lock file, behind its first line, what the backing files take, for ptcd's metrics. */
static void tell_backings(struct process *p)
{
	char line[96];
	struct ptc_fs_backing_usage now;
	off_t at = (off_t)snprintf(NULL, 0, "%d %s\n", (int)getpid(), p->o.dir);
	int n;

	ptc_fs_backings(p->fs, &now);
	if (p->lock_fd < 0 || !memcmp(&now, &p->told, sizeof(now)))
		return;
	n = snprintf(line, sizeof(line), "backing %20" PRIu64 " %20" PRIu64 " %20" PRIu64 "\n", now.bytes, now.files,
		     now.open); /* always as long */
	if (pwrite(p->lock_fd, line, (size_t)n, at) == n)
		p->told = now;
}

/* Ends the process's service when the daemon is gone for good. Keeps the lock file up to date. Unmounted by somebody,
 * it goes on for those who have files open, and gives up the lock, so that ptcd starts another one. */
static void *linger_main(void *arg)
{
	struct process *p = arg;
	int64_t heard_ns = ptc_sys_now_ns();

	for (;;) {
		struct ptc_fs_job *jobs = NULL;
		size_t n;

		if (!p->source.jobs(p->source.arg, &jobs, &n, NULL))
			heard_ns = ptc_sys_now_ns();
		ptc_free(jobs);
		if (p->o.linger_ms && ptc_sys_now_ns() - heard_ns > (int64_t)p->o.linger_ms * 1000000)
			break;
		if (!ptc_fs_on_top(p->fs))
			drop_lock(p);
		tell_backings(p);
		nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
		if (!serving)
			return NULL;
	}
	ptc_info("fuse", "the daemon has not answered for %" PRIu64 " ms: ending", p->o.linger_ms);
	ptc_fs_stop(p->fs);
	return NULL;
}

static int serve(struct process *p, struct ptc_error *err)
{
	pthread_t lingerer;
	bool lingers = false;
	int rc;

	say_ready(&p->o, "");
	if (p->o.linger_ms || p->o.lock)
		lingers = !ptc_thread_start(&lingerer, "ptc-fuse-linger", linger_main, p, NULL);
	rc = ptc_fs_run(p->fs, err);
	serving = NULL; /* the lingering thread sees it */
	if (lingers)
		pthread_join(lingerer, NULL);
	return rc;
}

/* Each backing file takes a descriptor. */
static void take_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit); /* where it fails, there are fewer backing files */
}

int main(int argc, char **argv)
{
	struct process p = { .lock_fd = -1 };
	struct ptc_error err = PTC_ERROR_INIT;
	int rc;

	ptc_sys_standard_fds();
	take_descriptors();
	rc = parse(argc, argv, &p.o, &err);
	if (rc) {
		if (err.text[0])
			fprintf(stderr, "ptc-fuse: %s\n", err.text);
		else
			fputs(usage, stderr);
		return 2;
	}
	ptc_fault_init();
	ptc_json_init();
	signal(SIGPIPE, SIG_IGN);
	if (p.o.unmount) {
		rc = ptc_fs_unmount(p.o.dir, p.o.stale, &err);
		if (rc)
			fprintf(stderr, "ptc-fuse: %s\n", err.text);
		return rc ? 1 : 0;
	}
	ptc_alloc_keep(KEEP_BYTES);
	rc = start(&p, &err);
	if (rc)
		say_ready(&p.o, err.text);
	else
		rc = serve(&p, &err);
	serving = NULL;
	p.fs = ptc_fs_free(p.fs);
	ptc_fs_admin_free(p.admin);
	drop_lock(&p);
	return rc ? 1 : 0;
}
