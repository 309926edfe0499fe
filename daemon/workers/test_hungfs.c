/* SPDX-License-Identifier: Apache-2.0 */
/* A file system that hangs: see test_rank.h. It speaks just enough of the kernel's FUSE protocol for one file to be
 * opened and mapped, and takes what is to be read of it without ever answering. So whoever reads waits in the kernel,
 * where no signal ends the wait. */
#include "daemon/workers/test_rank.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NODE 2

static char request[1 << 17] __attribute__((aligned(8)));

static void answer(int fd, const struct fuse_in_header *in, int error, const void *body, size_t len)
{
	struct fuse_out_header h = { .len = (uint32_t)(sizeof h + len), .error = error, .unique = in->unique };
	char out[512];

	memcpy(out, &h, sizeof h);
	if (len)
		memcpy(out + sizeof h, body, len);
	if (write(fd, out, h.len) < 0)
		return; /* who asked has given up */
}

static struct fuse_attr attr(uint64_t node)
{
	return (struct fuse_attr){ .ino = node,
				   .size = node == FILE_NODE ? TEST_HUNG_BYTES : 0,
				   .mode = node == FILE_NODE ? S_IFREG | 0666 : S_IFDIR | 0755,
				   .nlink = 1 };
}

static void serve(int fd, const struct fuse_in_header *in)
{
	struct fuse_entry_out entry = { .nodeid = FILE_NODE, .attr_valid = 3600, .entry_valid = 3600 };
	struct fuse_attr_out got = { .attr_valid = 3600, .attr = attr(in->nodeid) };
	struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION,
				      .minor = FUSE_KERNEL_MINOR_VERSION,
				      .max_write = 4096 }; /* reads are not asynchronous: they cannot be left */
	struct fuse_open_out open = { .fh = 1 };

	entry.attr = attr(FILE_NODE);
	switch (in->opcode) {
	case FUSE_INIT:
		answer(fd, in, 0, &init, sizeof init);
		break;
	case FUSE_LOOKUP:
		answer(fd, in, strcmp((const char *)(in + 1), "w") ? -ENOENT : 0, &entry,
		       strcmp((const char *)(in + 1), "w") ? 0 : sizeof entry);
		break;
	case FUSE_GETATTR:
		answer(fd, in, 0, &got, sizeof got);
		break;
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		answer(fd, in, 0, &open, sizeof open);
		break;
	case FUSE_READ:
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		answer(fd, in, 0, NULL, 0);
		break;
	default:
		answer(fd, in, -ENOSYS, NULL, 0);
	}
}

int test_hungfs(const char *dir)
{
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	char options[128];

	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd);
	if (fd < 0 || mount("ptc-test-hung", dir, "fuse", MS_NOSUID | MS_NODEV, options) != 0) {
		fprintf(stderr, "cannot mount %s: %s\n", dir, strerror(errno));
		return 77;
	}
	for (;;) {
		struct pollfd p[] = { { fd, POLLIN, 0 }, { 0, POLLIN, 0 } };
		ssize_t n;

		if (poll(p, 2, -1) < 0 || p[1].revents)
			break; /* whoever started us has ended, or wants us to */
		n = read(fd, request, sizeof request);
		if (n < 0 && errno == ENODEV)
			break;
		if (n >= (ssize_t)sizeof(struct fuse_in_header))
			serve(fd, (const struct fuse_in_header *)request);
	}
	umount2(dir, MNT_DETACH);
	return 0; /* the descriptor goes, and with it the connection: who waits gets an error */
}
