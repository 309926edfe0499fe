/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl mount and umount: one's jobs as files, by a ptc-fuse of one's own; no
 * privileges needed but fusermount3's. Failure: what ptc-fuse says. */
#include "client/ctl/files/files.h"

#include "base/cleanup.h"
#include "fusefs/launch/launch.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MOUNT_MS 15000

static const struct ctl_option mount_options[] = {
	{ "cache", "SIZE", "memory for file content (default 64MiB)" },
	{ "read-timeout", "DURATION", "if the daemon does not answer for this time, a read fails (default 30s)" },
	{ "others", NULL, "let other users in; each sees their own jobs (root only)" },
	{ "foreground", NULL, "stay in the foreground, and serve until interrupted" },
};

/* An absolute path without looking at the directory itself, which may be a mount that nobody serves. */
static int absolute(const char *dir, char ret[PATH_MAX], struct ptc_error *err)
{
	ptc_auto_free char *copy = ptc_strdup(dir);
	char parent[PATH_MAX];
	size_t n = strlen(dir);
	char *slash;

	while (copy && n > 1 && copy[n - 1] == '/')
		copy[--n] = '\0';
	slash = copy ? strrchr(copy, '/') : NULL;
	if (!copy)
		return ptc_nomem(err);
	if (!slash || !strcmp(slash + 1, ".") || !strcmp(slash + 1, "..") || !slash[1]) {
		if (slash || !strcmp(copy, ".") || !strcmp(copy, ".."))
			return realpath(copy, ret) ? 0 : ptc_error_errno(err, errno, "%s", dir);
		slash = copy - 1; /* a name here */
	}
	if (slash >= copy)
		*slash = '\0';
	if (!realpath(slash < copy ? "." : slash == copy ? "/" : copy, parent))
		return ptc_error_errno(err, errno, "%s", dir);
	n = (size_t)snprintf(ret, PATH_MAX, "%s/%s", parent[1] ? parent : "", slash + 1);
	return n < PATH_MAX ? 0
			    : ptc_error_set(err, PTC_ELIMIT, "%s: the path is too long; mount at a shorter one", dir);
}

static int run_mount(struct ctl *c, struct ptc_error *err)
{
	const char *cache = ctl_option(c, "cache"), *timeout = ctl_option(c, "read-timeout");
	const char *args[12];
	char dir[PATH_MAX];
	pid_t pid;
	size_t n = 0;
	int rc;

	if (c->opts.server)
		return ctl_usage(err, "a mount asks the daemon of this node: give --socket, not --server");
	rc = absolute(c->args[0], dir, err);
	if (rc)
		return rc;
	args[n++] = "--socket";
	args[n++] = c->opts.socket ? c->opts.socket : PTC_ADMIN_DEFAULT_SOCKET;
	if (cache) {
		args[n++] = "--cache";
		args[n++] = cache;
	}
	if (timeout) {
		args[n++] = "--timeout";
		args[n++] = timeout;
	}
	if (ctl_option(c, "others"))
		args[n++] = "--others";
	args[n++] = dir;
	args[n] = NULL;
	if (ctl_option(c, "foreground"))
		return ptc_fuse_exec(args, err);
	return ptc_fuse_launch(args, true, MOUNT_MS, &pid, err);
}

static int run_umount(struct ctl *c, struct ptc_error *err)
{
	const char *args[] = { "--unmount", NULL, NULL };
	char dir[PATH_MAX];
	int rc = absolute(c->args[0], dir, err);

	args[1] = dir;
	return rc ? rc : ptc_fuse_exec(args, err);
}

const struct ctl_verb ctl_mount = {
	.name = "mount",
	.args = "DIR",
	.about = "Show your jobs' state as files at a directory",
	.help = "DIR/JOB/state/latest/model.safetensors is the whole model. Its bytes are put together while\n"
		"a program reads the file. Beside it are the optimizer's state, every tensor as .npy, and the\n"
		"part of each rank (docs/files.md). All files are read-only. `ptcctl umount` ends the mount.\n"
		"An open file keeps its snapshot.\n",
	CTL_OPTIONS(mount_options),
	.min_args = 1,
	.max_args = 1,
	.run = run_mount,
};

const struct ctl_verb ctl_umount = {
	.name = "umount",
	.args = "DIR",
	.about = "End a mount of `ptcctl mount`, even if a program still reads files there",
	.min_args = 1,
	.max_args = 1,
	.run = run_umount,
};
