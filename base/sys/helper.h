/* SPDX-License-Identifier: Apache-2.0 */
/* Finds our own helper programs (ptc-archive, ptc-copy, ptc-etcd-door, ptc-exec, ptc-fuse, ptc-gpu, ptc-source). Users
 * do not run them by name, so they are in no PATH.
 *
 * The search looks at these places, in this order: the path in the variable `env`; the folder of this program; the
 * folder of ptcd in a build tree; libexec, at its usual distance from this program, so that an installed tree may be
 * moved; libexec as configured at build time.
 *
 * Failure modes: the variable names a file that cannot be run (the code of the errno); no place has the program
 * (PTC_ENOTFOUND, and the message says what to do). Any thread. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

#define PTC_HELPER_PATH 4096

/* Whether one of these places has a program `name`; the variable is not looked at. For a program that may also be in
 * PATH. */
bool ptc_helper_beside(const char *name, char ret_path[PTC_HELPER_PATH]);
int ptc_helper_find(const char *name, const char *env, char ret_path[PTC_HELPER_PATH], struct ptc_error *err);
