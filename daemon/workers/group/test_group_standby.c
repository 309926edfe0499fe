/* SPDX-License-Identifier: Apache-2.0 */
/* Which process that waits is taken for a start. The loop does not run in this test. So a process may have ended
 * without ptcd having noticed, as in the moment before the loop sees it. */
#include "daemon/workers/group/internal.h"

#include "base/sys/sys.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const argv[] = { "/bin/true", NULL }, *const env[] = { NULL };

struct world {
	struct job job;
	struct group like, g;
	struct worker workers[3];
};

/* Its process lives until it is killed; nobody reaps it before the test's end. */
static void begin(struct world *s, size_t i, enum worker_phase phase)
{
	struct worker *k = &s->workers[i];
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* also where the test fails */
		for (;;)
			pause();
	}
	assert_true(pid > 0);
	k->process.pid = pid;
	k->process.pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	assert_true(k->process.pidfd >= 0);
	k->standby = true;
	k->phase = phase;
	k->next = s->job.workers;
	s->job.workers = k;
}

static void kill_one(struct world *s, size_t i)
{
	siginfo_t info;

	assert_int_equal(kill(s->workers[i].process.pid, SIGKILL), 0);
	assert_int_equal(waitid(P_PID, (id_t)s->workers[i].process.pid, &info, WEXITED | WNOWAIT), 0);
}

static void one_that_has_ended_is_not_taken(void **state)
{
	struct world *s = calloc(1, sizeof *s);

	(void)state;
	s->like.desc.cwd = s->g.desc.cwd = "/";
	s->like.desc.argv = s->g.desc.argv = argv;
	s->like.desc.env = s->g.desc.env = env;
	s->like.job = s->g.job = &s->job;
	s->job.standby.like = &s->like;
	assert_null(ptc_group_find_standby_locked(&s->g));
	begin(s, 0, WORKER_ABSENT);
	begin(s, 1, WORKER_WAITING);
	begin(s, 2, WORKER_WAITING);
	assert_ptr_equal(ptc_group_find_standby_locked(&s->g), &s->workers[2]);
	kill_one(s, 2);
	assert_ptr_equal(ptc_group_find_standby_locked(&s->g), &s->workers[1]);
	kill_one(s, 1);
	assert_ptr_equal(ptc_group_find_standby_locked(&s->g), &s->workers[0]); /* it imports still */
	kill_one(s, 0);
	assert_null(ptc_group_find_standby_locked(&s->g)); /* so another is started */
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(waitpid(s->workers[i].process.pid, NULL, 0), s->workers[i].process.pid);
		close(s->workers[i].process.pidfd);
	}
	free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(one_that_has_ended_is_not_taken) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
