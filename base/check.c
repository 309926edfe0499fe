/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"

#include "base/log.h"

#include <stdlib.h>

void ptc_check_abort(const char *file, int line, const char *func, const char *what)
{
	ptc_error_log("check", "%s:%d %s: requirement failed: %s", file, line, func, what);
	abort();
}

void ptc_check_note(const char *file, int line, const char *func, const char *what)
{
	ptc_error_log("check", "%s:%d %s: does not hold: %s", file, line, func, what);
}
