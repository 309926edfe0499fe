/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-bench-floor FROM DIR: a file system that does as little as one can. It reads the files of the directory FROM into
 * memory, mounts itself at DIR, writes a newline, and serves them until SIGTERM. One thread, no libfuse, no locks: what
 * a reader of small files takes here is what the kernel takes, for any server that is asked for each file. As ptc-fuse
 * does, it looks files up while it lists them, stores a file's bytes into the kernel's pages before it answers the
 * first open, and waits awake while requests come quickly.
 *
 * Needs root. Failure: a line on standard error, exit status 1. It leaves no mount behind, but by SIGKILL. */
#include "base/sys/sys.h"
#include "fusefs/eager/eager.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/uio.h>
#include <unistd.h>

#define ROOM      ((1u << 20) + 4096) /* the largest request, and the largest answer */
#define FILE_MAX  4096                /* bytes of a file: a page */
#define FILES_MAX 65536
#define FOREVER   (1u << 30)
#define NOTHING   (-1000) /* the request wants no answer */

static struct file {
	char name[256], data[FILE_MAX];
	uint32_t size;
	bool stored;
} * files;
static uint64_t nfiles; /* file i is node i + 2; node 1 is the root */
static int device;
static const char *mounted;

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "ptc-bench-floor: %s: %s\n", what, strerror(errno));
	if (mounted)
		umount2(mounted, MNT_DETACH);
	exit(1);
}

static void on_signal(int signum)
{
	umount2(mounted, MNT_DETACH);
	_exit(0);
}

static void read_file(int dir, const char *name, struct file *f)
{
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, f->data, sizeof(f->data));

	if (n < 0)
		fail(name);
	snprintf(f->name, sizeof(f->name), "%s", name);
	f->size = (uint32_t)n;
	close(fd);
}

static void read_files(const char *from)
{
	DIR *d = opendir(from);

	files = calloc(FILES_MAX, sizeof *files); /* what is not touched takes no memory */
	if (!d || !files)
		fail(from);
	for (const struct dirent *e; (e = readdir(d)) && nfiles < FILES_MAX;)
		if (e->d_name[0] != '.')
			read_file(dirfd(d), e->d_name, &files[nfiles++]);
	closedir(d);
}

static long put(char *out, const void *body, size_t len)
{
	memcpy(out, body, len);
	return (long)len;
}

static struct fuse_attr attr_of(uint64_t node)
{
	if (node == FUSE_ROOT_ID)
		return (struct fuse_attr){ .ino = node, .mode = S_IFDIR | 0755, .nlink = 2 };
	return (struct fuse_attr){ .ino = node, .mode = S_IFREG | 0444, .nlink = 1, .size = files[node - 2].size };
}

static struct fuse_entry_out entry_of(uint64_t node)
{
	return (struct fuse_entry_out){ node, 0, FOREVER, FOREVER, 0, 0, attr_of(node) };
}

static long init(char *out)
{
	uint32_t flags = FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS | FUSE_DO_READDIRPLUS;
	struct fuse_init_out o = { .major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION, .flags = flags };

	o.max_write = 4096;
	return put(out, &o, sizeof(o));
}

static long look_up(const char *name, char *out)
{
	struct fuse_entry_out e;
	uint64_t i = 0;

	while (i < nfiles && strcmp(files[i].name, name))
		i++;
	if (i == nfiles)
		return -ENOENT;
	e = entry_of(i + 2);
	return put(out, &e, sizeof(e));
}

static long list(const struct fuse_read_in *in, char *out)
{
	size_t room = in->size < ROOM ? in->size : ROOM, used = 0;

	for (uint64_t i = in->offset; i < nfiles; i++) {
		size_t len = strlen(files[i].name), all = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET_DIRENTPLUS + len);
		struct fuse_direntplus d = { .entry_out = entry_of(i + 2) };

		if (used + all > room)
			break;
		d.dirent = (struct fuse_dirent){ .ino = i + 2, .off = i + 1, .namelen = (uint32_t)len, .type = DT_REG };
		memset(out + used, 0, all);
		memcpy(out + used, &d, FUSE_NAME_OFFSET_DIRENTPLUS);
		memcpy(out + used + FUSE_NAME_OFFSET_DIRENTPLUS, files[i].name, len);
		used += all;
	}
	return (long)used;
}

static void store(uint64_t node)
{
	struct file *f = &files[node - 2];
	struct fuse_notify_store_out o = { .nodeid = node, .size = f->size };
	struct fuse_out_header h = { .len = (uint32_t)(sizeof(h) + sizeof(o) + f->size), .error = FUSE_NOTIFY_STORE };
	struct iovec v[3] = { { &h, sizeof(h) }, { &o, sizeof(o) }, { f->data, f->size } };

	if (!f->stored && writev(device, v, 3) < 0)
		fail("FUSE_NOTIFY_STORE");
	f->stored = true;
}

static long open_node(uint64_t node, bool is_dir, char *out)
{
	struct fuse_open_out o = { .open_flags = FOPEN_KEEP_CACHE };

	if (is_dir)
		o.open_flags |= FOPEN_CACHE_DIR;
	else
		store(node);
	return put(out, &o, sizeof(o));
}

static long read_node(uint64_t node, const struct fuse_read_in *in, char *out)
{
	const struct file *f = &files[node - 2];
	size_t n = in->offset < f->size ? f->size - in->offset : 0;

	n = n < in->size ? n : in->size;
	return put(out, f->data + (n ? in->offset : 0), n);
}

/* Returns the length of the answer's body, or -errno. */
static long answer(const struct fuse_in_header *h, const void *body, char *out)
{
	struct fuse_attr_out attr = { .attr_valid = FOREVER };

	switch (h->opcode) {
	case FUSE_INIT:
		return init(out);
	case FUSE_LOOKUP:
		return look_up(body, out);
	case FUSE_GETATTR:
		attr.attr = attr_of(h->nodeid);
		return put(out, &attr, sizeof(attr));
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		return open_node(h->nodeid, h->opcode == FUSE_OPENDIR, out);
	case FUSE_READDIRPLUS:
		return list(body, out);
	case FUSE_READ:
		return read_node(h->nodeid, body, out);
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		return 0;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return NOTHING;
	default:
		return -ENOSYS;
	}
}

static void serve(char *in, char *out)
{
	struct fs_eager eager = { 0 };

	for (;;) {
		const struct fuse_in_header *h = (const void *)in;
		int64_t began_ns = ptc_sys_now_ns();
		struct fuse_out_header o = { .len = sizeof(o) };
		struct iovec v[2] = { { &o, sizeof(o) }, { out, 0 } };
		long n;

		fs_eager_wait(&eager, device, began_ns);
		n = read(device, in, ROOM);
		if (n < 0 && errno == ENODEV) /* unmounted */
			return;
		if (n < 0)
			continue;
		fs_eager_came(&eager, ptc_sys_now_ns() - began_ns, h->opcode != FUSE_READDIRPLUS);
		n = answer(h, h + 1, out);
		o.unique = h->unique;
		o.error = n < 0 ? (int)n : 0;
		v[1].iov_len = n < 0 ? 0 : (size_t)n;
		o.len += (uint32_t)v[1].iov_len;
		if (n != NOTHING && writev(device, v, 2) < 0 && errno != ENOENT)
			fail("an answer");
	}
}

int main(int argc, char **argv)
{
	char options[128], *in = malloc(ROOM), *out = malloc(ROOM);

	if (argc != 3 || !in || !out) {
		fputs("usage: ptc-bench-floor FROM DIR\n", stderr);
		return 2;
	}
	read_files(argv[1]);
	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (device < 0)
		fail("/dev/fuse");
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions", device);
	if (mount("ptc-bench-floor", argv[2], "fuse.ptc-bench-floor", MS_RDONLY | MS_NOSUID | MS_NODEV, options))
		fail(argv[2]);
	mounted = argv[2];
	signal(SIGTERM, on_signal);
	if (write(STDOUT_FILENO, "\n", 1) != 1)
		fail("standard output");
	serve(in, out);
	return 0;
}
