/* SPDX-License-Identifier: Apache-2.0 */
/* Cleanup attributes: a local variable's memory, descriptor or stream is released when the variable goes out of scope.
 * Use them for locals that the function does not hand out. */
#pragma once

#include "base/alloc.h"

#include <stdio.h>
#include <unistd.h>

static inline void ptc_cleanup_free(void *p)
{
	ptc_free(*(void **)p);
}
static inline void ptc_cleanup_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}
/* Closes *fd unless it is -1, and sets it to -1. */
static inline void ptc_close(int *fd)
{
	ptc_cleanup_close(fd);
	*fd = -1;
}
static inline void ptc_cleanup_fclose(FILE **f)
{
	if (*f)
		fclose(*f);
}

#define ptc_auto_free   __attribute__((cleanup(ptc_cleanup_free)))
#define ptc_auto_close  __attribute__((cleanup(ptc_cleanup_close), unused))
#define ptc_auto_fclose __attribute__((cleanup(ptc_cleanup_fclose)))
