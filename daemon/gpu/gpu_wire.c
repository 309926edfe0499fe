/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: one sendmsg or recvmsg per message. Failure modes: gpu_wire.h. Descriptors of a message that is refused
 * here are closed here. */
#include "daemon/gpu/gpu_wire.h"

#include "base/check.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void take_fds(struct msghdr *m, int *ret_fds, unsigned *ret_nfds)
{
	unsigned n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t bytes;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		bytes = c->cmsg_len - CMSG_LEN(0);
		memcpy(ret_fds + n, CMSG_DATA(c), bytes); /* the kernel sends at most PTC_GPU_FDS_MAX */
		n += (unsigned)(bytes / sizeof(int));
	}
	*ret_nfds = n;
}

long ptc_gpu_receive(int socket, void *ret, size_t max, int ret_fds[PTC_GPU_FDS_MAX], unsigned *ret_nfds)
{
	union {
		char bytes[CMSG_SPACE(PTC_GPU_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = { ret, max };
	struct msghdr m = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
	};
	ssize_t got;

	*ret_nfds = 0;
	do {
		got = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
	} while (got < 0 && errno == EINTR);
	if (got < 0)
		return errno == ECONNRESET ? 0 : PTC_EPEER;
	take_fds(&m, ret_fds, ret_nfds);
	if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		for (unsigned i = 0; i < *ret_nfds; i++)
			close(ret_fds[i]);
		*ret_nfds = 0;
		return PTC_EPEER;
	}
	return got;
}

int ptc_gpu_send(int socket, const void *head, size_t head_size, const void *body, size_t body_size, const int *fds,
		 unsigned nfds)
{
	union {
		char bytes[CMSG_SPACE(PTC_GPU_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec parts[] = { { (void *)(uintptr_t)head, head_size }, { (void *)(uintptr_t)body, body_size } };
	struct msghdr m = { .msg_iov = parts, .msg_iovlen = body_size ? 2 : 1 };
	ssize_t sent;

	ptc_require(nfds <= PTC_GPU_FDS_MAX);
	if (nfds) {
		struct cmsghdr *c = &control.align;

		memset(&control, 0, sizeof control);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
	}
	do {
		sent = sendmsg(socket, &m, MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)(head_size + body_size) ? 0 : PTC_EPEER;
}

static bool has_parts(uint32_t op)
{
	return op == PTC_GPU_COPY_OUT || op == PTC_GPU_COPY_IN || op == PTC_GPU_DIGEST || op == PTC_GPU_COPY_WITHIN ||
	       op == PTC_GPU_SHADOW;
}

static int check_bind(const struct ptc_gpu_export *e, struct ptc_error *err)
{
	uint64_t bytes;

	if (!memchr(e->uuid, '\0', sizeof e->uuid) || !memchr(e->why, '\0', sizeof e->why) || !e->uuid[0])
		return ptc_error_set(err, PTC_EINVAL, "the request to bind memory names no device");
	if (e->path == PTC_GPU_PATH_TRAINER)
		return ptc_error_set(err, PTC_ESTATE,
				     "memory of process %" PRIu32 " on %s can be copied by it alone: %s", e->pid,
				     e->uuid, e->why);
	if (e->bytes == 0 || e->offset >= e->bytes)
		return ptc_error_set(err, PTC_EINVAL, "a binding of %" PRIu64 " bytes at %" PRIu64, e->bytes,
				     e->offset);
	if (e->path == PTC_GPU_PATH_IPC)
		return 0;
	if (e->path != PTC_GPU_PATH_VMM || e->handles == 0 || e->handles > PTC_GPU_HANDLES_MAX ||
	    ptc_ckd_mul(&bytes, e->handles, e->handle_bytes) || bytes != e->bytes)
		return ptc_error_set(err, PTC_EINVAL,
				     "a binding of %" PRIu64 " handles of %" PRIu64 " bytes, path %" PRIu32, e->handles,
				     e->handle_bytes, e->path);
	return 0;
}

static unsigned fds_wanted(uint32_t op, unsigned nfds)
{
	if (op == PTC_GPU_MAP_HOST)
		return 1;
	if (op == PTC_GPU_HANDLES)
		return nfds ? nfds : 1;
	return 0;
}

unsigned ptc_gpu_copiers(void)
{
	return PTC_MIN(PTC_MAX(ptc_thread_processors() / 2, 2u), (unsigned)PTC_GPU_COPIERS_MAX);
}

int ptc_gpu_request_check(const struct ptc_gpu_request *q, size_t size, unsigned nfds, struct ptc_error *err)
{
	const struct ptc_gpu_head *h = &q->head;
	uint32_t nparts;

	if (size < sizeof q->head)
		return ptc_error_set(err, PTC_EINVAL, "a request of %zu bytes", size);
	nparts = h->nparts;
	if (!ptc_version_reads(h->version, PTC_GPU_OLDEST, PTC_GPU_VERSION))
		return ptc_error_set(err, PTC_EVERSION,
				     "a request of version %" PRIu32
				     ", this ptc-gpu speaks %u to %u: install both from "
				     "one package",
				     h->version, PTC_GPU_OLDEST, PTC_GPU_VERSION + 1);
	if (h->op < PTC_GPU_MAP_HOST || h->op > PTC_GPU_LOCK || h->id == 0)
		return ptc_error_set(err, PTC_EINVAL, "a request of kind %" PRIu32 ", number %" PRIu64, h->op, h->id);
	if (nparts > PTC_GPU_PARTS_MAX || size != sizeof q->head + nparts * sizeof q->parts[0] ||
	    (nparts > 0) != has_parts(h->op))
		return ptc_error_set(err, PTC_EINVAL,
				     "a request of kind %" PRIu32 " with %" PRIu32 " boxes in %zu bytes", h->op, nparts,
				     size);
	if (nfds != fds_wanted(h->op, nfds))
		return ptc_error_set(err, PTC_EINVAL, "a request of kind %" PRIu32 " with %u descriptors", h->op, nfds);
	if (h->op == PTC_GPU_BIND)
		return check_bind(&h->bind, err);
	if (h->op == PTC_GPU_MAP_HOST &&
	    (h->bytes == 0 || h->bytes > INT64_MAX || !memchr(h->bind.uuid, '\0', sizeof h->bind.uuid)))
		return ptc_error_set(err, PTC_EINVAL, "a host map of %" PRIu64 " bytes", h->bytes);
	if (h->op == PTC_GPU_KEEP && (h->bytes == 0 || h->bytes > INT64_MAX || !h->bind.uuid[0] ||
				      !memchr(h->bind.uuid, '\0', sizeof h->bind.uuid)))
		return ptc_error_set(err, PTC_EINVAL, "%" PRIu64 " bytes to keep, or no device is named", h->bytes);
	if (h->op == PTC_GPU_LOCK && (h->bytes == 0 || h->bytes > INT64_MAX || h->bytes % PTC_GPU_PAGE_BYTES ||
				      !h->bind.uuid[0] || !memchr(h->bind.uuid, '\0', sizeof h->bind.uuid)))
		return ptc_error_set(err, PTC_EINVAL, "%" PRIu64 " bytes to page-lock, or no device is named",
				     h->bytes);
	return 0;
}

/* Whether a box whose first byte lies at `at` ends within `bytes`, and whether its rows do not overlap. */
static bool side_fits(const struct ptc_gpu_part *p, uint64_t at, uint64_t row, uint64_t slice, uint64_t bytes)
{
	uint64_t rows = 0, slices = 0, end;

	if ((p->height > 1 && row < p->width) || ptc_ckd_mul(&rows, p->height - 1, row) ||
	    ptc_ckd_add(&end, rows, p->width))
		return false;
	if ((p->depth > 1 && slice < end) || ptc_ckd_mul(&slices, p->depth - 1, slice) ||
	    ptc_ckd_add(&end, end, slices) || ptc_ckd_add(&end, end, at))
		return false;
	return end <= bytes;
}

int ptc_gpu_part_check(const struct ptc_gpu_part *p, uint64_t device_bytes, uint64_t host_bytes, struct ptc_error *err)
{
	if (p->width == 0 || p->height == 0 || p->depth == 0)
		return ptc_error_set(err, PTC_EINVAL, "an empty box");
	if (!side_fits(p, p->device_at, p->device_row, p->device_slice, device_bytes))
		return ptc_error_set(err, PTC_EINVAL,
				     "a box of %" PRIu64 " x %" PRIu64 " x %" PRIu64 " bytes at %" PRIu64
				     " is not within %" PRIu64 " bytes of device memory",
				     p->depth, p->height, p->width, p->device_at, device_bytes);
	if (!side_fits(p, p->other_at, p->other_row, p->other_slice, host_bytes))
		return ptc_error_set(err, PTC_EINVAL,
				     "a box of %" PRIu64 " x %" PRIu64 " x %" PRIu64 " bytes at %" PRIu64
				     " is not within %" PRIu64 " bytes of the other side",
				     p->depth, p->height, p->width, p->other_at, host_bytes);
	return 0;
}
