/* SPDX-License-Identifier: Apache-2.0 */
/* A wait for a device that is given up, and a program that then ends its context. Each case is a process of its own on
 * the fake driver, which counts as wrong: each use of a context that has ended, and the end of a context while a thread
 * is in cuCtxSynchronize. */
#include "client/lib/device/driver.h"

#include "daemon/gpu/cuda/cuda_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FIELD(name, version, parameters) CUresult(*name) parameters;
static struct {
	PTC_CUDA_CLIENT_FUNCTIONS(FIELD)
	PTC_CUDA_TRAINER_FUNCTIONS(FIELD)
} more;
static const struct ptc_cuda *cu;

#define need(x) ((x) ? (void)0 : fails(__LINE__, #x))

static pthread_t caller;
static atomic_bool late;      /* other threads than the caller's wait before their push */
static atomic_uint elsewhere; /* their pushes */

static void fails(int line, const char *what)
{
	fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, line, what);
	_exit(1);
}

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static CUresult push(CUcontext context)
{
	if (pthread_equal(pthread_self(), caller))
		return more.cuCtxPushCurrent(context);
	while (atomic_load(&late))
		nap();
	atomic_fetch_add(&elsewhere, 1);
	return more.cuCtxPushCurrent(context);
}

static bool never(void *arg, char *why, size_t size)
{
	snprintf(why, size, "given up");
	return false;
}

static bool always(void *arg, char *why, size_t size)
{
	return true;
}

static int settle(const struct device_memory *m, bool (*goes_on)(void *, char *, size_t))
{
	const struct device_patience p = { goes_on, NULL };
	char why[256] = "";
	int rc = ptc_device_settle(m, &p, why, sizeof why);

	need(rc == 0 || strcmp(why, "given up") == 0);
	return rc;
}

static bool active(void)
{
	unsigned flags;
	int yes;

	need(!more.cuDevicePrimaryCtxGetState(0, &flags, &yes));
	return yes;
}

static void begin(void)
{
	struct ptc_error err = PTC_ERROR_INIT;

	need(!ptc_cuda_open(&cu, &err));
#define RESOLVE(name, version, parameters) need(!ptc_cuda_resolve(#name, version, (void **)&more.name, &err));
	PTC_CUDA_CLIENT_FUNCTIONS(RESOLVE)
	PTC_CUDA_TRAINER_FUNCTIONS(RESOLVE)
	need(ptc_device_driver_loaded());
	caller = pthread_self();
	ptc_device_driver.cuCtxPushCurrent = push;
}

static struct device_memory primary(void)
{
	CUcontext context;

	if (!cu)
		begin();
	need(!cu->cuDevicePrimaryCtxRetain(&context, 0) && !cu->cuCtxSetCurrent(context));
	return (struct device_memory){ .context = context };
}

static void release(void)
{
	need(!cu->cuCtxSetCurrent(NULL) && !cu->cuDevicePrimaryCtxRelease(0));
}

/* The device does nothing more until the word is set. */
static volatile uint64_t *hang(void)
{
	CUstream stream;
	CUdeviceptr at = 0;
	uint64_t *word;

	need(!cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	need(!cu->cuMemHostAlloc((void **)&word, 4096, 0) && !cu->cuMemHostGetDevicePointer(&at, word, 0));
	*word = 0;
	need(!more.cuStreamWaitValue64(stream, at, 1, CU_STREAM_WAIT_VALUE_GEQ));
	return word;
}

/* ---- the cases ---- */

static void done_in_time(void)
{
	struct device_memory m = primary();

	need(settle(&m, always) == 0 && settle(&m, always) == 0);
	need(atomic_load(&elsewhere) == 2);
	release();
	need(!active()); /* at once: the threads have given their references back */
}

static void thread_not_begun(void)
{
	struct device_memory m = primary();

	atomic_store(&late, true);
	need(settle(&m, never) == -1);
	need(settle(&m, never) == -1); /* that waits for the first one's thread */
	release();
	atomic_store(&late, false);
	while (!atomic_load(&elsewhere) || active())
		nap();
	need(atomic_load(&elsewhere) == 1);
}

static void thread_in_its_call(void)
{
	struct device_memory m = primary();
	volatile uint64_t *word = hang();

	need(settle(&m, never) == -1);
	while (!atomic_load(&elsewhere))
		nap();
	release();
	*word = 1;
	while (active())
		nap();
}

static void context_taken_again(void)
{
	struct device_memory m = primary(), again;
	volatile uint64_t *word = hang();

	need(settle(&m, never) == -1);
	release();
	need(active());
	again = primary();
	need(again.context == m.context && settle(&again, never) == -1);
	*word = 1;
	need(settle(&again, always) == 0);
	need(atomic_load(&elsewhere) == 2);
	release();
	need(!active());
}

/* No thread waits, and the primary context is as it was. */
static void own_context(void)
{
	struct device_memory m = { 0 };
	CUcontext context;

	begin();
	for (int beside = 0; beside < 2; beside++) {
		if (beside)
			(void)primary();
		need(!more.cuCtxCreate(&context, 0, 0));
		m.context = context;
		need(settle(&m, never) == 0 && !atomic_load(&elsewhere) && active() == (beside == 1));
		need(!more.cuCtxDestroy(context));
	}
	release();
	need(!active());
}

/* ---- processes ---- */

static void check_report(const char *dir, pid_t pid)
{
	char path[128], line[256];
	bool known = false;
	FILE *f;

	snprintf(path, sizeof path, "%s/report-%d", dir, (int)pid);
	f = fopen(path, "re");
	assert_non_null(f);
	while (fgets(line, sizeof line, f)) {
		known = known || strcmp(line, "count wrong 0\n") == 0;
		if (strncmp(line, "count wrong", 11) == 0 || strncmp(line, "left context", 12) == 0)
			assert_string_equal(strrchr(line, ' '), " 0\n");
	}
	assert_true(known);
	fclose(f);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(dir), 0);
}

static void run_case(void **state)
{
	void (**fn)(void) = *state;
	char dir[] = "/tmp/test_settle.XXXXXX";
	int status = -1;
	pid_t pid;

	assert_non_null(mkdtemp(dir));
	setenv("PTC_FAKE_GPU", dir, 1);
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		alarm(60);
		(*fn)();
		exit(0);
	}
	assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
	assert_int_equal(status, 0);
	check_report(dir, pid);
}

int main(void)
{
	static void (*cases[])(void) = { done_in_time, thread_not_begun, thread_in_its_call, context_taken_again,
					 own_context };
	const struct CMUnitTest tests[] = {
		{ "done_in_time", run_case, NULL, NULL, &cases[0] },
		{ "thread_not_begun", run_case, NULL, NULL, &cases[1] },
		{ "thread_in_its_call", run_case, NULL, NULL, &cases[2] },
		{ "context_taken_again", run_case, NULL, NULL, &cases[3] },
		{ "own_context", run_case, NULL, NULL, &cases[4] },
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
