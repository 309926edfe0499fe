/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's header on older systems (Debian 12) has neither the flags nor the calls, so they are repeated here. They
 * are part of the kernel's stable interface. */
#include "fusefs/backing/passthrough.h"

#include <errno.h>
#include <linux/fuse.h>
#include <string.h>
#include <sys/ioctl.h>

#define INIT_EXT       (1u << 30) /* of flags: flags2 counts */
#define PASSTHROUGH_2  (1u << 5)  /* of flags2: FUSE_PASSTHROUGH, bit 37 of all flags */
#define OPEN_PASS      (1u << 7)  /* FOPEN_PASSTHROUGH */
#define STACK_DEPTH    1          /* a backing file may lie on a file system that is stacked on no other */
#define FLAGS2_AT      32         /* bytes of the reply to INIT before flags2, and before max_stack_depth */
#define STACK_DEPTH_AT 36

struct backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};
#define BACKING_OPEN  _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

struct open_reply {
	uint64_t handle;
	uint32_t flags;
	int32_t number;
};
_Static_assert(sizeof(struct open_reply) == FS_PASS_OPEN_BYTES, "as struct fuse_open_out");

void fs_pass_request(struct fs_pass *p, const void *request, ssize_t len)
{
	struct fuse_in_header h;
	struct fuse_init_in in = { 0 };

	if (len < (ssize_t)sizeof(h))
		return;
	memcpy(&h, request, sizeof(h));
	if (h.opcode != FUSE_INIT)
		return;
	len -= (ssize_t)sizeof(h);
	memcpy(&in, (const uint8_t *)request + sizeof(h), len < (ssize_t)sizeof(in) ? (size_t)len : sizeof(in));
	p->init = h.unique;
	p->offered = (in.flags & INIT_EXT) && (in.flags2 & PASSTHROUGH_2);
}

/* libfuse writes a reply as a header and a body. */
void fs_pass_reply(struct fs_pass *p, const struct iovec *iov, int count)
{
	struct fuse_out_header h;
	uint32_t flags2, depth = STACK_DEPTH;
	struct fuse_init_out out;

	if (!p->init || count != 2 || iov[0].iov_len < sizeof(h))
		return;
	memcpy(&h, iov[0].iov_base, sizeof(h));
	if (h.unique != p->init)
		return;
	p->init = 0;
	if (!p->offered || h.error || iov[1].iov_len < sizeof(out))
		return;
	memcpy(&out, iov[1].iov_base, sizeof(out));
	out.flags |= INIT_EXT;
	memcpy(&flags2, (uint8_t *)&out + FLAGS2_AT, sizeof(flags2));
	flags2 |= PASSTHROUGH_2;
	memcpy((uint8_t *)&out + FLAGS2_AT, &flags2, sizeof(flags2));
	memcpy((uint8_t *)&out + STACK_DEPTH_AT, &depth, sizeof(depth));
	memcpy(iov[1].iov_base, &out, sizeof(out));
	p->on = true;
}

int fs_pass_attach(int device, int fd)
{
	struct backing_map map = { .fd = fd };
	int number = ioctl(device, BACKING_OPEN, &map);

	return number > 0 ? number : number < 0 ? -errno : -EIO;
}

void fs_pass_detach(int device, int number)
{
	uint32_t which = (uint32_t)number;

	ioctl(device, BACKING_CLOSE,
	      &which); /* fails only where the connection has ended, with which all is detached */
}

void fs_pass_open_reply(uint64_t handle, int number, uint8_t ret[FS_PASS_OPEN_BYTES])
{
	struct open_reply reply = { handle, OPEN_PASS, number };

	memcpy(ret, &reply, sizeof(reply));
}
