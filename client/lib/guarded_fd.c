/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a client may still be used: forks, fatal errors, and our descriptors in a program that closes descriptors
 * which it has not opened (closefrom, os.closerange). Happy path: the client belongs to this process, and each
 * descriptor still is the file that it was. Failure modes: a descriptor is another file now. It is then never used
 * again, not even to close it, and the client ends: without the shared page no new connection is possible. */
#include "client/lib/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static _Thread_local char open_error[PTC_LOCAL_TEXT_MAX + 1];
atomic_uint ptc_client_forks;

bool ptc_client_guard_fd(struct guarded_fd *o, int fd)
{
	struct stat st;

	if (fstat(fd, &st) != 0) {
		close(fd);
		return false;
	}
	*o = (struct guarded_fd){ fd, st.st_dev, st.st_ino };
	return true;
}

bool ptc_client_fd_is_ours(const struct guarded_fd *o)
{
	struct stat st;

	return o->fd < 0 || (fstat(o->fd, &st) == 0 && st.st_dev == o->dev && st.st_ino == o->ino);
}

void ptc_client_close_guarded(struct guarded_fd *o)
{
	if (o->fd >= 0 && ptc_client_fd_is_ours(o))
		close(o->fd);
	o->fd = -1;
}

void ptc_client_set_fatal_locked(ptc_client *c, int code, const char *text)
{
	c->fatal = code;
	snprintf(c->fatal_text, sizeof c->fatal_text, "%s", text);
	if (c->page)
		atomic_exchange(&c->page->stop, 0); /* its next boundary asks us */
	pthread_cond_broadcast(&c->changed);
}

bool ptc_client_fds_closed_locked(ptc_client *c)
{
	if (ptc_client_fd_is_ours(&c->wake[0]) && ptc_client_fd_is_ours(&c->wake[1]) &&
	    ptc_client_fd_is_ours(&c->page_fd))
		return false;
	if (!c->fatal)
		ptc_client_set_fatal_locked(c, PTC_R_SYSTEM,
					    "somebody has closed ptc's descriptors in this process (closefrom, "
					    "os.closerange?): close only what you have opened");
	return true;
}

int ptc_client_fail(ptc_client *c, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(c ? c->error : open_error, sizeof open_error, fmt, ap);
	va_end(ap);
	return code;
}

int ptc_client_enter(ptc_client *c)
{
	if (!c)
		return ptc_client_fail(NULL, PTC_R_INVALID, "the client is NULL");
	if (ptc_client_forked(c))
		return ptc_client_fail(c, PTC_R_INVALID,
				       "this process was forked after ptc_open; call ptc_open in this process");
	return 0;
}

int ptc_client_fatal_locked(ptc_client *c)
{
	return c->fatal ? ptc_client_fail(c, c->fatal, "%s", c->fatal_text) : 0;
}

const char *ptc_error_text(const ptc_client *c)
{
	return c ? c->error : open_error;
}
