/* SPDX-License-Identifier: Apache-2.0 */
/* See become.h. */
#include "base/sys/become.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static int take_user(uid_t uid, struct ptc_error *err)
{
	const struct passwd *pw = uid && geteuid() == 0 ? getpwuid(uid) : NULL;

	if (geteuid() == 0 && uid) {
		if (!pw)
			return ptc_error_set(err, PTC_EINVAL, "there is no user with uid %u on this node",
					     (unsigned)uid);
		if (initgroups(pw->pw_name, pw->pw_gid) || setresgid(pw->pw_gid, pw->pw_gid, pw->pw_gid) ||
		    setresuid(uid, uid, uid))
			return ptc_error_errno(err, errno, "cannot become user %u", (unsigned)uid);
	}
	if (geteuid() != uid)
		return ptc_error_set(err, PTC_EPERM,
				     "this process has uid %u and cannot become uid %u; start it as root",
				     (unsigned)geteuid(), (unsigned)uid);
	return 0;
}

/* Those that a service manager may have given a ptcd that is not root. */
static int drop_capabilities(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = { { 0 } };

	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
		return -1;
	return (int)syscall(SYS_capset, &head, none);
}

int ptc_become(uid_t uid, struct ptc_error *err)
{
	int rc = take_user(uid, err);

	if (rc)
		return rc;
	if (uid && drop_capabilities())
		return ptc_error_errno(err, errno, "cannot give up capabilities");
	setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return ptc_error_errno(err, errno, "prctl");
	return 0;
}
