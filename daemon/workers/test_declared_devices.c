/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that ranks give, as far as they are kept. */
#include "daemon/workers/state/rank_declarations.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* Adds allocations with this descriptor; returns how many descriptors are kept. */
static size_t add_handles(struct declared *d, int fd, uint64_t n)
{
	static const uint8_t ipc[PTC_LOCAL_IPC_BYTES];
	size_t kept = 0;

	for (uint64_t i = 0; i < n; i++) {
		const struct ptc_local_device m = { .address = 4096 * (i + 1),
						    .bytes = 4096,
						    .uuid = "GPU-none",
						    .why = "",
						    .ipc = ipc,
						    .descriptor = 1 };

		assert_int_equal(ptc_declared_add_device(d, &m, fd, NULL), 0);
	}
	for (size_t i = 0; i < d->ndevices; i++) {
		kept += d->devices[i].fd >= 0;
		assert_int_equal(d->devices[i].fd < 0, d->devices[i].why[0] != '\0');
	}
	return kept;
}

/* However many ranks there are, most descriptors stay for connections. */
static void test_handles_leave_descriptors(void **state)
{
	struct declared *a = ptc_declared_new(), *b = ptc_declared_new();
	int fd = memfd_create("handle", MFD_CLOEXEC);
	struct rlimit was, few;

	(void)state;
	assert_true(a && b && fd >= 0 && getrlimit(RLIMIT_NOFILE, &was) == 0);
	few = (struct rlimit){ 256, was.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	assert_int_equal(add_handles(a, fd, 40), 40);
	assert_int_equal(add_handles(b, fd, 40), 24);
	ptc_declared_unref(a);
	a = ptc_declared_new();
	assert_int_equal(add_handles(a, fd, 100), 40); /* what was given back may be had again */
	ptc_declared_unref(a);
	ptc_declared_unref(b);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_handles_leave_descriptors) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
