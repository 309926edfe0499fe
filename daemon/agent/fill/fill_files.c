/* SPDX-License-Identifier: Apache-2.0 */
/* See fill_files.h. */
#include "daemon/agent/fill/fill_files.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "proto/direct_read.h"

#include <errno.h>
#include <linux/magic.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define FILES_MAX 16 /* a reader makes a few at a time; each takes two descriptors */

struct ptc_fill_file {
	unsigned refs; /* one is the reader's, until it ends the file */
	int conn, fd;
	uid_t uid;
	uint8_t key[PTC_FILL_KEY];
};

struct ptc_fill_files {
	pthread_mutex_t lock;
	size_t n;                           /* of v: those that can be found */
	size_t open;                        /* also those that calls still write to */
	struct ptc_fill_file *v[FILES_MAX]; /* and their references */
};

struct ptc_fill_files *ptc_fill_files_new(void)
{
	struct ptc_fill_files *f = ptc_calloc(1, sizeof *f);

	if (f)
		ptc_require(!pthread_mutex_init(&f->lock, NULL));
	return f;
}

struct ptc_fill_files *ptc_fill_files_free(struct ptc_fill_files *f)
{
	if (!f)
		return NULL;
	ptc_require(!f->open);
	pthread_mutex_destroy(&f->lock);
	ptc_free(f);
	return NULL;
}

/* ---- the reader's side ---- */

static int check(uid_t uid, int fd, struct ptc_error *err)
{
	int flags = fd < 0 ? -1 : fcntl(fd, F_GETFL);
	struct statfs fs;
	struct stat st;

	if (uid != 0 && uid != geteuid())
		return ptc_error_set(err, PTC_EPERM, "only root and the user of ptcd have files filled");
	if (flags < 0 || fstat(fd, &st) || fstatfs(fd, &fs))
		return ptc_error_set(err, PTC_EINVAL, "no file came with the question");
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return ptc_error_set(err, PTC_EPERM, "the file to fill is user %u's", (unsigned)st.st_uid);
	if (!S_ISREG(st.st_mode) || fs.f_type != TMPFS_MAGIC || (flags & O_ACCMODE) == O_RDONLY ||
	    flags & (O_APPEND | O_PATH))
		return ptc_error_set(err, PTC_EINVAL, "the file to fill does not lie on a tmpfs, open for writing");
	return 0;
}

static bool send_reply(int conn, const struct ptc_fill_reply *reply)
{
	return send(conn, reply, sizeof *reply, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof *reply;
}

bool ptc_fill_files_greet(int conn, uid_t uid)
{
	const struct ptc_fill_reply reply = { .magic = PTC_FILL_MAGIC,
					      .status = uid == 0 || uid == geteuid() ? 0 : PTC_EPERM };

	return send_reply(conn, &reply);
}

/* Lock held, so that the reader's first call waits until the file can be found. */
static int offer_locked(struct ptc_fill_files *f, struct ptc_fill_file *file, struct ptc_error *err)
{
	struct ptc_fill_reply reply = { .magic = PTC_FILL_MAGIC };
	int rc = f->open < FILES_MAX ? ptc_sys_random(file->key, sizeof file->key, err)
				     : ptc_error_set(err, PTC_ELIMIT, "ptcd fills %d files already", FILES_MAX);

	if (rc)
		return rc;
	memcpy(reply.key, file->key, sizeof reply.key);
	if (!send_reply(file->conn, &reply))
		return ptc_error_set(err, PTC_EPEER, "the reader does not take the answer");
	f->v[f->n++] = file;
	f->open++;
	return 0;
}

void ptc_fill_files_offer(struct ptc_fill_files *f, int conn, uid_t uid, int fd, struct ptc_fill_file **ret_file)
{
	struct ptc_fill_file *file = ptc_calloc(1, sizeof *file);
	struct ptc_fill_reply refused = { .magic = PTC_FILL_MAGIC };
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = file ? check(uid, fd, &err) : PTC_ENOMEM;

	*ret_file = NULL;
	if (!rc) {
		*file = (struct ptc_fill_file){ .refs = 1, .conn = conn, .fd = fd, .uid = uid };
		pthread_mutex_lock(&f->lock);
		rc = offer_locked(f, file, &err);
		pthread_mutex_unlock(&f->lock);
	}
	if (!rc) {
		*ret_file = file;
		return;
	}
	ptc_debug("agent", "no file is filled for uid %u: %s", (unsigned)uid, err.text);
	refused.status = rc;
	(void)send_reply(conn, &refused);
	ptc_free(file);
}

void ptc_fill_files_end(struct ptc_fill_files *f, struct ptc_fill_file *file)
{
	size_t i = 0;

	pthread_mutex_lock(&f->lock);
	while (f->v[i] != file)
		i++;
	f->v[i] = f->v[--f->n];
	pthread_mutex_unlock(&f->lock);
	ptc_fill_file_put(f, file);
}

/* ---- calls ---- */

int ptc_fill_file_get(struct ptc_fill_files *f, const void *key, size_t len, uid_t uid, uint64_t at, uint64_t bytes,
		      struct ptc_fill_file **ret_file, struct ptc_error *err)
{
	struct ptc_fill_file *found = NULL;
	struct stat st;

	pthread_mutex_lock(&f->lock);
	for (size_t i = 0; len == PTC_FILL_KEY && i < f->n && !found; i++)
		if (f->v[i]->uid == uid && !memcmp(f->v[i]->key, key, PTC_FILL_KEY)) {
			found = f->v[i];
			found->refs++;
		}
	pthread_mutex_unlock(&f->lock);
	if (!found)
		return ptc_error_set(err, PTC_ESTATE, "the file to fill is not here any more");
	if (fstat(found->fd, &st) || at > (uint64_t)st.st_size || bytes > (uint64_t)st.st_size - at) {
		ptc_fill_file_put(f, found);
		return ptc_error_set(err, PTC_EINVAL, "the bytes exceed the file to fill");
	}
	*ret_file = found;
	return 0;
}

void ptc_fill_file_put(struct ptc_fill_files *f, struct ptc_fill_file *file)
{
	bool last;

	pthread_mutex_lock(&f->lock);
	last = --file->refs == 0;
	f->open -= last;
	pthread_mutex_unlock(&f->lock);
	if (!last)
		return;
	ptc_close(&file->fd);
	ptc_close(&file->conn); /* after the file: its end tells the reader that nobody writes any more */
	ptc_free(file);
}

int ptc_fill_file_write(const struct ptc_fill_file *file, uint64_t at, const void *data, size_t len,
			struct ptc_error *err)
{
	const uint8_t *from = data;

	while (len) {
		ssize_t n = pwrite(file->fd, from, len, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return ptc_error_errno(err, n ? errno : EIO, "cannot write into a reader's file");
		from += n;
		at += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}
