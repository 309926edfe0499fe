/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the local connection. Happy path: a message is cut into frames, sent, and put together again. Failure
 * modes: a frame out of order, too long, of another kind than the message it continues, or a message that grows beyond
 * its bound ends the connection (-EPROTO); descriptors that came with it are closed. */
#include "proto/local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS_MAX 4 /* taken from a frame so that they can be closed; one is the most that is used */

void ptc_local_conn_init(struct ptc_local_conn *c, int fd, ptc_local_realloc grow)
{
	*c = (struct ptc_local_conn){ .fd = fd, .grow = grow, .rx_fd = -1 };
}

void ptc_local_conn_done(struct ptc_local_conn *c, void (*release)(void *p))
{
	release(c->rx);
	if (c->rx_fd >= 0)
		close(c->rx_fd);
	c->rx = NULL;
	c->rx_len = c->rx_cap = 0;
	c->rx_fd = -1;
}

static void attach_fd(struct msghdr *msg, char *control, size_t size, int fd)
{
	struct cmsghdr *cm;

	memset(control, 0, size);
	msg->msg_control = control;
	msg->msg_controllen = CMSG_SPACE(sizeof(int));
	cm = CMSG_FIRSTHDR(msg);
	cm->cmsg_level = SOL_SOCKET;
	cm->cmsg_type = SCM_RIGHTS;
	cm->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cm), &fd, sizeof fd);
}

static int send_frame(struct ptc_local_conn *c, struct ptc_local_header *h, const uint8_t *data, int pass_fd)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
	union {
		const void *from;
		void *iov;
	} payload = { .from = data };
	struct iovec iov[2] = { { h, sizeof *h }, { payload.iov, h->length } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = h->length ? 2 : 1 };
	ssize_t n;

	if (pass_fd >= 0)
		attach_fd(&msg, control, sizeof control, pass_fd);
	do
		n = sendmsg(c->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN || errno == ENOBUFS ? 0 : -errno;
	return 1;
}

int ptc_local_send(struct ptc_local_conn *c, uint16_t type, const void *data, size_t len, int pass_fd, size_t *offset)
{
	bool first = *offset == 0;

	while (first || *offset < len) {
		size_t left = len - *offset, n = left < PTC_LOCAL_PAYLOAD_MAX ? left : PTC_LOCAL_PAYLOAD_MAX;
		struct ptc_local_header h = { .magic = PTC_LOCAL_MAGIC,
					      .type = type,
					      .flags = n < left ? PTC_LOCAL_MORE : 0,
					      .length = (uint32_t)n,
					      .seq = c->tx_seq };
		int rc = send_frame(c, &h, (const uint8_t *)data + *offset, first ? pass_fd : -1);

		if (rc <= 0)
			return rc;
		c->tx_seq++;
		*offset += n;
		first = false;
	}
	return 1;
}

static bool frame_ok(const struct ptc_local_conn *c, const struct ptc_local_header *h, size_t payload, int fd)
{
	if (h->magic != PTC_LOCAL_MAGIC || h->length != payload || h->seq != c->rx_seq || h->flags > PTC_LOCAL_MORE)
		return false;
	if ((h->flags & PTC_LOCAL_MORE) && !payload)
		return false; /* would let a message go on for ever */
	if (c->rx_more && (h->type != c->rx_type || fd >= 0))
		return false;
	return c->rx_len + payload <= PTC_LOCAL_MESSAGE_MAX;
}

static int keep_payload(struct ptc_local_conn *c, const void *data, size_t len)
{
	if (c->rx_len + len > c->rx_cap) {
		size_t cap = c->rx_cap ? c->rx_cap : 4096;
		uint8_t *p;

		while (cap < c->rx_len + len)
			cap *= 2;
		p = c->grow(c->rx, cap);
		if (!p)
			return -ENOMEM;
		c->rx = p;
		c->rx_cap = cap;
	}
	if (len)
		memcpy(c->rx + c->rx_len, data, len);
	c->rx_len += len;
	return 0;
}

int ptc_local_feed(struct ptc_local_conn *c, const void *frame, size_t len, int fd, struct ptc_local_message *ret)
{
	struct ptc_local_header h;
	int rc = -EPROTO;

	if (!c->rx_more)
		c->rx_len = 0;
	if (len >= sizeof h) {
		memcpy(&h, frame, sizeof h);
		if (frame_ok(c, &h, len - sizeof h, fd))
			rc = keep_payload(c, (const uint8_t *)frame + sizeof h, len - sizeof h);
	}
	if (rc) {
		if (fd >= 0)
			close(fd);
		return rc;
	}
	c->rx_seq++;
	if (!c->rx_more)
		c->rx_fd = fd;
	c->rx_type = h.type;
	c->rx_more = h.flags & PTC_LOCAL_MORE;
	if (c->rx_more)
		return 0;
	*ret = (struct ptc_local_message){ .type = h.type, .data = c->rx, .len = c->rx_len, .fd = c->rx_fd };
	c->rx_fd = -1;
	return 1;
}

/* The one descriptor that came with a frame, or -1; *ret_bad: more than one. */
static int take_fd(struct msghdr *msg, bool *ret_bad)
{
	int fds[FDS_MAX], fd = -1;

	*ret_bad = msg->msg_flags & (MSG_TRUNC | MSG_CTRUNC);
	for (struct cmsghdr *cm = CMSG_FIRSTHDR(msg); cm; cm = CMSG_NXTHDR(msg, cm)) {
		size_t n = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
			continue;
		n = n < FDS_MAX ? n : FDS_MAX;
		memcpy(fds, CMSG_DATA(cm), n * sizeof(int));
		for (size_t i = 0; i < n; i++) {
			if (fd < 0) {
				fd = fds[i];
				continue;
			}
			close(fds[i]);
			*ret_bad = true;
		}
	}
	if (*ret_bad && fd >= 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

int ptc_local_receive(struct ptc_local_conn *c, struct ptc_local_message *ret, bool *ret_more_frames)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(FDS_MAX * sizeof(int))];
	_Alignas(8) uint8_t frame[PTC_LOCAL_FRAME_MAX];
	struct iovec iov = { frame, sizeof frame };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
	};
	ssize_t n;
	bool bad;
	int fd, rc;

	*ret_more_frames = false;
	do
		n = recvmsg(c->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN ? 0 : -errno;
	fd = take_fd(&msg, &bad);
	if (bad)
		return -EPROTO;
	if (n == 0) {
		if (fd >= 0)
			close(fd);
		return -ECONNRESET;
	}
	rc = ptc_local_feed(c, frame, (size_t)n, fd, ret);
	*ret_more_frames = rc == 0;
	return rc;
}

int ptc_local_address(const char *path, struct sockaddr_un *ret, int *ret_dir)
{
	const char *slash = strrchr(path, '/');
	char dir[4096];
	int fd;

	*ret_dir = -1;
	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (strlen(path) < sizeof ret->sun_path) {
		memcpy(ret->sun_path, path, strlen(path) + 1);
		return 0;
	}
	if (!slash || (size_t)(slash - path) >= sizeof dir || strlen(slash) > 32)
		return -ENAMETOOLONG;
	memcpy(dir, path, (size_t)(slash - path));
	dir[slash - path] = '\0';
	fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	snprintf(ret->sun_path, sizeof ret->sun_path, "/proc/self/fd/%d%.32s", fd, slash);
	*ret_dir = fd;
	return 0;
}
