/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers are the kernel's, so only what must hold between them is checked. */
#include "base/memory/machine_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <unistd.h>

static void test_bounds(void **state)
{
	uint64_t physical = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t total = ptc_machine_memory(), available = ptc_machine_memory_available();

	(void)state;
	assert_true(total > 0 && total <= physical);
	assert_true(available > 0 && available <= total);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_bounds) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
