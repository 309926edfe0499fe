/* SPDX-License-Identifier: Apache-2.0 */
/* A file that a user has named, opened with that user's rights. Happy path: a thread of its own takes the user's
 * file-system identity, which Linux keeps for each thread, opens the file, and ends. Failure modes: the file is not
 * there, is not the user's to read, or is no regular file, or its file
 * system does not answer in time (errno). */
#include "daemon/workers/evidence/process_evidence.h"

#include "base/alloc.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NO_GROUP 65534 /* what the rank has written is its user's */

#define OPEN_MS 2000 /* a file system that does not answer keeps the thread, and not us */

struct opening {
	uid_t uid;
	char path[512];
	int fd, failed;
	atomic_bool left; /* by the one of the two that goes first; the other one frees it */
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool over;
};

/* glibc's own would take the groups from all threads. */
static bool take_identity(uid_t uid)
{
	if (geteuid() != 0)
		return geteuid() == uid; /* a ptcd that is not root has ranks of its own user only */
	if (syscall(SYS_setgroups, 0, NULL) != 0)
		return false;
	(void)setfsgid(NO_GROUP);
	(void)setfsuid(uid);
	return (uid_t)setfsuid((uid_t)-1) == uid && (gid_t)setfsgid((gid_t)-1) == NO_GROUP;
}

static void leave(struct opening *o)
{
	if (!atomic_exchange(&o->left, true))
		return;
	if (o->fd >= 0)
		close(o->fd);
	pthread_cond_destroy(&o->ended);
	pthread_mutex_destroy(&o->lock);
	ptc_free(o);
}

static void *open_it(void *arg)
{
	struct opening *o = arg;
	struct stat st;
	int fd = -1, failed = EPERM;

	if (take_identity(o->uid)) {
		fd = open(o->path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC);
		failed = fd < 0 ? errno : fstat(fd, &st) ? errno : S_ISREG(st.st_mode) ? 0 : EINVAL;
	}
	pthread_mutex_lock(&o->lock);
	o->fd = fd;
	o->failed = failed;
	o->over = true;
	pthread_cond_signal(&o->ended);
	pthread_mutex_unlock(&o->lock);
	leave(o);
	return NULL;
}

static int await(struct opening *o, int *ret_failed)
{
	int64_t until = ptc_sys_now_ns() + OPEN_MS * INT64_C(1000000);
	int fd = -1;

	pthread_mutex_lock(&o->lock);
	while (!o->over && ptc_cond_wait_until(&o->ended, &o->lock, until))
		;
	*ret_failed = o->over ? o->failed : ETIMEDOUT;
	if (o->over && !o->failed) {
		fd = o->fd;
		o->fd = -1;
	}
	pthread_mutex_unlock(&o->lock);
	return fd;
}

int ptc_evidence_open_as(uid_t uid, const char *path)
{
	struct opening *o = strlen(path) < sizeof o->path ? ptc_calloc(1, sizeof *o) : NULL;
	int failed = o ? EAGAIN : strlen(path) < sizeof o->path ? ENOMEM : ENAMETOOLONG, fd = -1;
	pthread_t thread;

	if (o) {
		o->uid = uid;
		o->fd = -1;
		memcpy(o->path, path, strlen(path));
		pthread_mutex_init(&o->lock, NULL);
		ptc_cond_init(&o->ended);
		if (ptc_thread_start(&thread, "evidence", open_it, o, NULL) == 0) {
			pthread_detach(thread);
			fd = await(o, &failed);
		} else {
			leave(o);
		}
		leave(o);
	}
	errno = failed;
	return fd;
}
