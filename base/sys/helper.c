/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: takes the first place that has the program. Failure modes: base/sys/helper.h. */
#include "base/sys/helper.h"

#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The folder this program is in; "" when that is unknown. */
static void own_folder(char *ret_dir, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", ret_dir, size - 1);
	char *slash;

	ret_dir[n > 0 ? n : 0] = '\0';
	slash = strrchr(ret_dir, '/');
	if (slash)
		*slash = '\0';
}

bool ptc_helper_beside(const char *name, char ret_path[PTC_HELPER_PATH])
{
	static const char *const beside[] = { "", "/../daemon", PTC_LIBEXEC_FROM_BIN };
	char own[PTC_HELPER_PATH / 2], path[PTC_HELPER_PATH];

	own_folder(own, sizeof own);
	for (size_t i = 0; i <= PTC_ARRAY_LEN(beside); i++) {
		if (i < PTC_ARRAY_LEN(beside))
			snprintf(path, sizeof path, "%s%s/%s", own, beside[i], name);
		else
			snprintf(path, sizeof path, "%s/%s", PTC_LIBEXEC_INSTALLED, name);
		if (access(path, X_OK) == 0) {
			memcpy(ret_path, path, sizeof path);
			return true;
		}
	}
	return false;
}

int ptc_helper_find(const char *name, const char *env, char ret_path[PTC_HELPER_PATH], struct ptc_error *err)
{
	const char *told = getenv(env);
	char path[PTC_HELPER_PATH];

	if (told && *told) {
		snprintf(path, sizeof path, "%s", told);
		if (access(path, X_OK) != 0)
			return ptc_error_errno(err, errno, "%s: cannot run %s", env, path);
		memcpy(ret_path, path, sizeof path);
		return 0;
	}
	if (ptc_helper_beside(name, ret_path))
		return 0;
	return ptc_error_set(err, PTC_ENOTFOUND,
			     "no %s beside this program and none at " PTC_LIBEXEC_INSTALLED ": install it, or set %s",
			     name, env);
}
