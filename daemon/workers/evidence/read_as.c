/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a file that a user has named, with that user's rights. Happy path: a thread of its own takes the user's
 * file-system identity, which Linux keeps for each thread, reads the file, and ends. Failure modes: the file is not
 * there, is not the user's to read, or is no regular file; its file system does not answer in time. Such a file system
 * can keep the thread and its memory for any time. So there is only one such thread at a time, and nothing else is
 * read while a file system keeps it. */
#include "daemon/workers/evidence/evidence_dumps.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
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

/* The daemon's one such thread. STUCK: whoever has started it waits no more. */
enum helper { HELPER_NONE, HELPER_READS, HELPER_STUCK };

static struct {
	pthread_once_t once;
	pthread_mutex_t lock; /* may be taken while a reading's own is held */
	pthread_cond_t changed;
	enum helper is;
} helper = { .once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER };

static void init_helper(void)
{
	ptc_cond_init(&helper.changed);
}

/* Wakes those who wait for their turn. */
static void helper_becomes(enum helper is)
{
	pthread_mutex_lock(&helper.lock);
	helper.is = is;
	pthread_cond_broadcast(&helper.changed);
	pthread_mutex_unlock(&helper.lock);
}

struct reading {
	uid_t uid;
	char path[512];
	size_t max;
	struct ptc_evidence_file file;
	int failed;
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

static void leave(struct reading *o)
{
	if (!atomic_exchange(&o->left, true))
		return;
	ptc_free(o->file.data);
	pthread_cond_destroy(&o->ended);
	pthread_mutex_destroy(&o->lock);
	ptc_free(o);
}

static int read_file(const char *path, size_t max, struct ptc_evidence_file *ret)
{
	ptc_auto_close int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC);
	struct stat st;
	size_t want;

	if (fd < 0 || fstat(fd, &st) != 0)
		return errno;
	if (!S_ISREG(st.st_mode))
		return EINVAL;
	*ret = (struct ptc_evidence_file){ .size = st.st_size, .written = st.st_mtime };
	want = (size_t)PTC_MIN((uint64_t)st.st_size, (uint64_t)max);
	ret->data = ptc_malloc(want + 1);
	if (!ret->data)
		return ENOMEM;
	while (ret->len < want) {
		ssize_t n = read(fd, ret->data + ret->len, want - ret->len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno;
		if (n == 0)
			break; /* somebody cuts it */
		ret->len += (size_t)n;
	}
	return 0;
}

static void *read_it(void *arg)
{
	struct reading *o = arg;
	struct ptc_evidence_file file = { 0 };
	int failed = take_identity(o->uid) ? read_file(o->path, o->max, &file) : EPERM;

	pthread_mutex_lock(&o->lock);
	o->file = file;
	o->failed = failed;
	o->over = true;
	helper_becomes(HELPER_NONE);
	pthread_cond_signal(&o->ended);
	pthread_mutex_unlock(&o->lock);
	leave(o);
	return NULL;
}

static int await(struct reading *o, int64_t until_ns, struct ptc_evidence_file *ret)
{
	int failed;

	pthread_mutex_lock(&o->lock);
	while (!o->over && ptc_cond_wait_until(&o->ended, &o->lock, until_ns))
		;
	failed = o->over ? o->failed : ETIMEDOUT;
	if (!o->over)
		helper_becomes(HELPER_STUCK); /* it is ours until it is over */
	if (!failed) {
		*ret = o->file;
		o->file.data = NULL;
	}
	pthread_mutex_unlock(&o->lock);
	return failed;
}

/* Another set's dumps may be read just now. */
static int take_turn(int64_t until_ns)
{
	int rc;

	pthread_once(&helper.once, init_helper);
	pthread_mutex_lock(&helper.lock);
	while (helper.is == HELPER_READS && ptc_cond_wait_until(&helper.changed, &helper.lock, until_ns))
		;
	rc = helper.is == HELPER_NONE ? 0 : EBUSY;
	if (rc == 0)
		helper.is = HELPER_READS;
	pthread_mutex_unlock(&helper.lock);
	return rc;
}

int ptc_evidence_read_as(uid_t uid, const char *path, size_t max, int64_t until_ns, struct ptc_evidence_file *ret)
{
	struct reading *o;
	pthread_t thread;
	int failed;

	*ret = (struct ptc_evidence_file){ 0 };
	if (strlen(path) >= sizeof o->path)
		return ENAMETOOLONG;
	failed = take_turn(until_ns);
	if (failed)
		return failed;
	o = ptc_calloc(1, sizeof *o);
	if (!o) {
		helper_becomes(HELPER_NONE);
		return ENOMEM;
	}
	o->uid = uid;
	o->max = max;
	memcpy(o->path, path, strlen(path));
	pthread_mutex_init(&o->lock, NULL);
	ptc_cond_init(&o->ended);
	if (ptc_thread_start(&thread, "evidence", read_it, o, NULL) == 0) {
		pthread_detach(thread);
		failed = await(o, until_ns, ret);
	} else {
		failed = EAGAIN;
		helper_becomes(HELPER_NONE);
		leave(o);
	}
	leave(o);
	return failed;
}
