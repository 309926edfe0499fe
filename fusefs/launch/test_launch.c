/* SPDX-License-Identifier: Apache-2.0 */
/* Scripts that take the part of ptc-fuse. */
#include "fusefs/launch/launch.h"

#include "base/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const no_words[] = { NULL };

static int launch(const char *script, int timeout_ms, struct ptc_error *err)
{
	char path[] = "/tmp/ptc-launch-XXXXXX";
	int fd = mkstemp(path), rc;
	FILE *f = fdopen(fd, "w");
	pid_t pid;

	assert_non_null(f);
	fprintf(f, "#!/bin/sh\n%s\n", script);
	assert_int_equal(fchmod(fd, 0700), 0);
	fclose(f);
	setenv("PTC_FUSE", path, 1);
	rc = ptc_fuse_launch(no_words, true, timeout_ms, &pid, err);
	unlink(path);
	return rc;
}

/* Nobody else reaps here: a zombie would stay. */
static void await_no_child(void)
{
	siginfo_t info;

	while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0)
		usleep(1000);
	assert_int_equal(errno, ECHILD);
}

static void one_that_is_late_is_reaped(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;

	(void)state;
	/* it ends some time after it was told to */
	assert_int_equal(launch("trap 'sleep 0.1; exit 0' TERM; while :; do sleep 0.01; done", 50, &err), PTC_ETIMEOUT);
	assert_non_null(strstr(err.text, "has not mounted within 50 ms"));
	await_no_child();
}

static void one_that_cannot_mount_says_why(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;

	(void)state;
	assert_int_equal(launch("echo 'no such directory' >&3", 60000, &err), PTC_EIO);
	assert_string_equal(err.text, "no such directory");
	await_no_child();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_that_is_late_is_reaped),
		cmocka_unit_test(one_that_cannot_mount_says_why),
	};

	alarm(120); /* a zombie stays for ever */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
