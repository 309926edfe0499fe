/* SPDX-License-Identifier: Apache-2.0 */
/* Becoming the user for whom a helper process works. For helpers that ptcd starts as itself, before their first thread
 * and before they are given anything.
 *
 * Happy path: the process has the user's uid, gid and groups, and for any user but root no capability. It cannot get
 * more by exec, leaves no core, and the user can neither trace it nor read its memory. What ptcd hands it from then on
 * stays out of the user's reach. A helper of root's own stays as it was: the kernel lets only those at root's processes
 * who have as many capabilities.
 *
 * Failure modes: no such user on this node (PTC_EINVAL), a ptcd that is not root and another user (PTC_EPERM), the
 * kernel (PTC_EIO). */
#pragma once

#include "base/status.h"

#include <sys/types.h>

int ptc_become(uid_t uid, struct ptc_error *err);
