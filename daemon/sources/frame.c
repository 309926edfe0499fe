/* SPDX-License-Identifier: Apache-2.0 */
/* Frames: 4 bytes of status, 4 of length, in this machine's order, then the bytes. Failure modes: the header's. */
#include "daemon/sources/frame.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

struct head {
	int32_t status;
	uint32_t len;
};

static int await(int fd, short events, int64_t deadline_ns, struct ptc_error *err)
{
	int64_t left_ms = deadline_ns == PTC_FRAME_FOREVER ? -1 : (deadline_ns - ptc_sys_now_ns()) / 1000000;
	struct pollfd p = { .fd = fd, .events = events };

	if (deadline_ns != PTC_FRAME_FOREVER && left_ms <= 0)
		return ptc_error_set(err, PTC_ETIMEOUT, "no answer in time");
	if (poll(&p, 1, (int)PTC_MIN(left_ms, (int64_t)1000000)) < 0 && errno != EINTR)
		return ptc_error_errno(err, errno, "poll");
	return 0;
}

/* All of it, one way or the other. */
static int transfer(int fd, bool out, void *data, size_t len, int64_t deadline_ns, struct ptc_error *err)
{
	char *at = data;

	while (len) {
		ssize_t n = out ? send(fd, at, len, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(fd, at, len, MSG_DONTWAIT);
		int rc = 0;

		if (n > 0) {
			at += n;
			len -= (size_t)n;
		} else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
			rc = await(fd, out ? POLLOUT : POLLIN, deadline_ns, err);
		} else {
			rc = ptc_error_set(err, PTC_EPEER, "the other process has ended");
		}
		if (rc)
			return rc;
	}
	return 0;
}

int ptc_frame_send(int fd, int status, const void *data, size_t len, int64_t deadline_ns, struct ptc_error *err)
{
	struct head h = { status, (uint32_t)len };
	int rc = len == h.len ? transfer(fd, true, &h, sizeof h, deadline_ns, err)
			      : ptc_error_set(err, PTC_ELIMIT, "a frame of %zu bytes", len);

	return rc ? rc : transfer(fd, true, (void *)(uintptr_t)data, len, deadline_ns, err);
}

int ptc_frame_recv(int fd, size_t max, int64_t deadline_ns, int *ret_status, void **ret_data, size_t *ret_len,
		   struct ptc_error *err)
{
	struct head h;
	char *data = NULL;
	int rc = transfer(fd, false, &h, sizeof h, deadline_ns, err);

	if (!rc && h.len > max)
		rc = ptc_error_set(err, PTC_EPEER, "a frame has %u bytes; at most %zu are allowed", h.len, max);
	if (!rc && h.len) {
		data = ptc_malloc((size_t)h.len + 1);
		rc = data ? transfer(fd, false, data, h.len, deadline_ns, err) : ptc_nomem(err);
	}
	if (rc) {
		ptc_free(data);
		return rc;
	}
	if (data)
		data[h.len] = '\0';
	*ret_status = h.status;
	*ret_data = data;
	*ret_len = h.len;
	return 0;
}
