/* SPDX-License-Identifier: Apache-2.0 */
/* The file system of this node's jobs, if the configuration names a directory for it. A thread of its own looks after a
 * ptc-fuse process. That process outlives ptcd, so that readers of its files go on while ptcd is restarted. A later
 * ptcd finds it by its lock.
 *
 * Happy path: nobody has the lock, so ptc-fuse is started; if it dies, another one is. Failure modes: it cannot mount
 * (said once, tried again after a while); it serves another directory, or none is configured any more: it is ended.
 * Nothing here touches the mount itself. */
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/check.h"
#include "base/log.h"
#include "base/memory/machine_memory.h"
#include "base/sys/sys.h"
#include "base/number/units.h"
#include "base/sys/thread.h"
#include "daemon/ptcd.h"
#include "fusefs/launch/launch.h"

#include <pthread.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_S       1
#define BACKING_PART 4  /* fuse.backing: auto is a quarter */
#define RETRY_S      30 /* after a failure */
#define MOUNT_MS     15000
#define LINGER       "5m" /* how long it serves without us: a restart takes seconds */
#define DIR_BYTES    4097

struct ptc_mount {
	const struct ptc_daemon_config *config;
	char *lock_path;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool stopping;
	pid_t child; /* [thread] the one we started; 0: none */
	char said[PTC_ERROR_MAX];
};

/* A directory that is there already is fine, also one that cannot be looked at: a mount whose server is gone. */
static void make_directory(const char *dir)
{
	struct stat st;

	if (stat(dir, &st) && errno == ENOENT)
		ptc_sys_mkdirs(dir, 0755, NULL);
}

/* Bytes for backing files: the memory that memory.ceiling may take is not theirs. */
static uint64_t backing_bytes(const struct ptc_daemon_config *c)
{
	uint64_t all = ptc_machine_memory();

	if (c->fuse.backing != PTC_FUSE_BACKING_AUTO)
		return c->fuse.backing;
	return (all - PTC_MIN(all, c->memory.ceiling)) / BACKING_PART;
}

static int start(struct ptc_mount *m, struct ptc_error *err)
{
	const struct ptc_daemon_config *c = m->config;
	char cache[PTC_UNITS_MAX], timeout[PTC_UNITS_MAX], backing[PTC_UNITS_MAX];
	const char *args[18] = { "--socket",  c->control_socket, "--lock",    m->lock_path, "--cache",  cache,
				 "--timeout", timeout,           "--backing", backing,      "--linger", LINGER };
	size_t n = 12;

	if (c->fuse.backing_dir) {
		args[n++] = "--backing-dir";
		args[n++] = c->fuse.backing_dir;
	}
	if (geteuid() == 0)
		args[n++] = "--others";
	args[n++] = c->fuse.dir;
	ptc_units_print_bytes(backing_bytes(c), backing);
	ptc_units_print_bytes(c->fuse.cache, cache);
	ptc_units_print_ms(c->fuse.timeout_ms, timeout);
	make_directory(c->fuse.dir);
	return ptc_fuse_launch(args, false, MOUNT_MS, &m->child, err);
}

/* False: try again later rather than soon. */
static bool look_after(struct ptc_mount *m)
{
	struct ptc_error err = PTC_ERROR_INIT;
	const char *want = m->config->fuse.dir;
	char dir[DIR_BYTES];
	pid_t pid;

	if (m->child && waitpid(m->child, NULL, WNOHANG))
		m->child = 0;
	if (ptc_fuse_lock_held(m->lock_path, &pid, dir, sizeof(dir))) {
		if (pid > 0 && dir[0] && (!want || strcmp(dir, want)))
			kill(pid, SIGTERM); /* it has the lock, so it is this one */
		return true;
	}
	if (!want)
		return true;
	if (!start(m, &err)) {
		ptc_info("fuse", "jobs' files are at %s (process %d)", want, (int)m->child);
		m->said[0] = '\0';
		return true;
	}
	if (strcmp(m->said, err.text))
		ptc_warn("fuse", "no files at %s: %s", want, err.text);
	memcpy(m->said, err.text, sizeof(m->said));
	return false;
}

static void *mount_main(void *arg)
{
	struct ptc_mount *m = arg;

	pthread_mutex_lock(&m->lock);
	while (!m->stopping) {
		bool soon;

		pthread_mutex_unlock(&m->lock);
		soon = look_after(m);
		pthread_mutex_lock(&m->lock);
		if (!m->stopping)
			ptc_cond_wait_ms(&m->cond, &m->lock, 1000 * (soon ? LOOK_S : RETRY_S));
	}
	pthread_mutex_unlock(&m->lock);
	return NULL;
}

int ptc_mount_start(const struct ptc_daemon_config *config, struct ptc_mount **ret_mount, struct ptc_error *err)
{
	struct ptc_mount *m = ptc_calloc(1, sizeof *m);
	int rc;

	if (m)
		m->lock_path = ptc_asprintf("%s/fuse.lock", config->run_dir);
	if (!m || !m->lock_path) {
		ptc_free(m);
		return ptc_nomem(err);
	}
	m->config = config;
	pthread_mutex_init(&m->lock, NULL);
	ptc_cond_init(&m->cond);
	rc = ptc_thread_start(&m->thread, "ptc-mount", mount_main, m, err);
	if (rc) {
		ptc_free(m->lock_path);
		ptc_free(m);
		return rc;
	}
	*ret_mount = m;
	return 0;
}

struct ptc_mount *ptc_mount_stop(struct ptc_mount *m)
{
	if (!m)
		return NULL;
	pthread_mutex_lock(&m->lock);
	m->stopping = true;
	pthread_cond_signal(&m->cond);
	pthread_mutex_unlock(&m->lock);
	pthread_join(m->thread, NULL);
	pthread_cond_destroy(&m->cond);
	pthread_mutex_destroy(&m->lock);
	ptc_free(m->lock_path);
	ptc_free(m);
	return NULL;
}
