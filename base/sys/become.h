/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a helper process into its user. ptcd starts the helper as itself; the helper calls ptc_become before it starts
 * a thread and before it is given anything.
 *
 * Happy path: the process gets the user's uid, gid and groups. Unless the user is root, it also gives up every
 * capability. It cannot gain more by exec and leaves no core. The user can neither trace it nor read its memory. So the
 * user cannot reach anything that ptcd gives the helper later. For root nothing changes: the kernel lets only processes
 * with as many capabilities trace root's helper.
 *
 * Failure modes: the node has no such user (PTC_EINVAL); ptcd is not root and the user is another one (PTC_EPERM); a
 * system call failed (PTC_EIO). */
#pragma once

#include "base/status.h"

#include <sys/types.h>

int ptc_become(uid_t uid, struct ptc_error *err);
