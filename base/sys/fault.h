/* SPDX-License-Identifier: Apache-2.0 */
/* Named crash points. Every durable effect (LMDB commit, msync, file rename,
 * unlink, etcd put/txn) has one before and one after it, and every fill and
 * receive one in its middle. In a normal process each costs one predictable
 * branch.
 *
 * Test-only environment: PTC_FAULT="point[@nth][=action][,...]" with action
 * "kill" (default: SIGKILL to ourselves), "fail" (the wrapped call reports
 * PTC_EIO without being made; at a point ".bytes", one bit of what came is
 * another one, and nothing reports it), "sleep" (this thread, for a second), "hold" (this thread, until rules
 * without it are renamed into place) or "stop" (SIGSTOP to ourselves: until a test has done what it wants to and sends
 * SIGCONT). PTC_FAULT_LIST=FILE appends each point's name to FILE the first time it is passed, so a test can enumerate
 * the points a scenario reaches. PTC_FAULT_FILE=FILE: rules in FILE (which a test renames into place while we run)
 * replace the others, and points are listed anew. */
#pragma once

#include <stdbool.h>

extern bool ptc_fault_armed; /* set once at start by ptc_fault_init */

void ptc_fault_init(void);            /* reads the environment; call before threads start */
bool ptc_fault_hit(const char *name); /* true: the caller must fail the operation */

/* Returns true when the test wants this operation to fail. */
#define ptc_fault(name) (__builtin_expect(ptc_fault_armed, 0) && ptc_fault_hit(name))
