/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a test program: every block of memory has been given back. */
#pragma once

#include "base/alloc.h"

#include <stdio.h>

/* What main returns: what the cases returned, or 1 and a line, if memory is left that somebody took. */
static inline int test_leaks(int failed)
{
	int64_t live = ptc_alloc_live();

	if (failed || live == 0)
		return failed;
	fprintf(stderr, "%lld blocks leaked\n", (long long)live);
	return 1;
}
