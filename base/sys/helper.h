/* SPDX-License-Identifier: Apache-2.0 */
/* Where our own helper programs are (ptc-copy, ptc-exec, ptc-fuse, ptc-source): nobody runs them by name, so they are
 * in no PATH.
 *
 * Looked for, in this order: what the variable `env` names; beside this program; beside ptcd in a build tree; in
 * libexec, as far from this program as it is installed, wherever that tree has been moved; in libexec where it was to
 * be installed.
 *
 * Failure modes: the variable names what cannot be run; it is in none of these places: PTC_ENOTFOUND, with what to do.
 * Any thread. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

#define PTC_HELPER_PATH 4096

/* Whether one of these places but the variable has a program called that; a program that others may have in PATH as
 * well. */
bool ptc_helper_beside(const char *name, char ret_path[PTC_HELPER_PATH]);
int ptc_helper_find(const char *name, const char *env, char ret_path[PTC_HELPER_PATH], struct ptc_error *err);
