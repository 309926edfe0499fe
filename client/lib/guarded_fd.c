// SPDX-License-Identifier: Apache-2.0
/* Our descriptors in a program that closes some it has not opened (closefrom, os.closerange). Happy path: each still is the file
 * that it was. Failure modes: it is not; then it is never used again, not even to close it, and the client is over: without the
 * shared page no connection can be made anew. */
#include "client/lib/internal.h"

#include <sys/stat.h>
#include <unistd.h>

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
