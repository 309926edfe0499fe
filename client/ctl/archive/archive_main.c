/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-archive: one round of a job's archive, as the job's owner. ptcd starts this program. Before the program opens
 * anything, it becomes that user, so the kernel decides what may be written (root-squashed file systems included). It
 * asks ptcd at the control socket, as ptcctl would.
 *
 *   ptc-archive UID SOCKET JOB NAME DIR KEEP RATE EVERY
 *
 * Descriptor 3 gets one line of JSON: {"archive", "step", "generation",
 * "snapshot", "bytes", "fresh", "removed",
 * "time_ms", "wait_ms"}, or
 * {"status", "error"}. Failure modes: those of a round. */
#include "client/ctl/archive/archive.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/sys/become.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RESULT_FD    3
#define MEMORY_BYTES (UINT64_C(2) << 30) /* the plan of 10^6 tensors, and buffers */

static json_t *result(int rc, const struct ctl_archived *a, const struct ptc_error *err)
{
	if (rc)
		return json_pack("{s:i, s:s}", "status", rc, "error", err->text);
	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:I}", "archive", a->name, "step",
			 (json_int_t)a->step, "generation", (json_int_t)a->generation, "snapshot",
			 (json_int_t)a->snapshot, "bytes", (json_int_t)a->bytes, "fresh", a->fresh, "removed",
			 (json_int_t)a->removed, "time_ms", (json_int_t)a->time_ms, "wait_ms", (json_int_t)a->wait_ms);
}

/* Who does not hear it sees that we have ended without a word. */
static void tell(int rc, const struct ctl_archived *a, const struct ptc_error *err)
{
	json_t *doc = result(rc, a, err);
	ptc_auto_free char *text = doc ? ptc_json_text(doc) : NULL;
	ssize_t said = text ? write(RESULT_FD, text, strlen(text)) : 0;

	(void)said;
	json_decref(doc);
}

/* ptcd closes its end, or dies: what is not finished is not wanted. */
static void *watch(void *arg)
{
	char byte;

	(void)arg;
	while (read(RESULT_FD, &byte, 1) > 0)
		;
	kill(getpid(), SIGTERM);
	return NULL;
}

static int run(char **argv, struct ctl_archived *ret, struct ptc_error *err)
{
	const struct ctl_archive_round r = { .job = argv[3],
					     .name = argv[4],
					     .dir = argv[5],
					     .keep = strtoull(argv[6], NULL, 10),
					     .rate = strtoull(argv[7], NULL, 10),
					     .every_ms = strtoull(argv[8], NULL, 10) };
	struct ctl c = { .opts = { .size = sizeof c.opts, .socket = argv[2] } };
	pthread_t watcher;
	int rc = ptc_become((uid_t)strtoul(argv[1], NULL, 10), err);

	if (!rc)
		rc = ctl_connect(&c, err);
	ctl_catch_signals();
	if (!rc)
		rc = ptc_thread_start(&watcher, "ptc-archive-end", watch, NULL, err);
	if (!rc)
		rc = ctl_archive(&c, &r, ret, err);
	ptc_admin_close(c.admin);
	return rc;
}

int main(int argc, char **argv)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ctl_archived done = { .step = 0 };
	int rc;

	ptc_sys_standard_fds();
	if (argc != 9 || !argv[1][0] || argv[1][strspn(argv[1], "0123456789")]) {
		fputs("ptc-archive is started by ptcd; users call ptcctl archive\n", stderr);
		return 2;
	}
	ptc_fault_init();
	ptc_json_init();
	ptc_alloc_limit_set(MEMORY_BYTES);
	signal(SIGPIPE, SIG_IGN);
	rc = run(argv, &done, &err);
	tell(rc, &done, &err);
	return rc != 0;
}
