/* SPDX-License-Identifier: Apache-2.0 */
/* Named fault points, at which tests stop, slow down or kill a process. Every durable effect (LMDB commit, msync, file
 * rename, unlink, etcd put or transaction) has one before and one after it. Every fill and receive has one in its
 * middle. In a process without rules, each point costs one predictable branch.
 *
 * Environment, for tests only: PTC_FAULT="point[@nth][=action][,...]". A rule acts once, at the nth pass, by default
 * the first; "@*": at each. The actions are:
 * - kill, the default: SIGKILL to this process
 * - fail: the caller reports PTC_EIO without making its call; at a point ".bytes", one bit of the data is flipped
 *   instead, and nothing reports it
 * - sleep: this thread waits for a second
 * - hold: this thread waits until a test replaces PTC_FAULT_FILE by a file without this rule
 * - stop: SIGSTOP to this process, until a test sends SIGCONT
 *
 * PTC_FAULT_LIST=FILE appends each point's name to FILE when it is first passed. So a test can list the points that a
 * scenario reaches. PTC_FAULT_FILE=FILE: the rules in FILE, which a test renames into place while the process runs,
 * replace the others; points are then listed anew.
 *
 * Call ptc_fault_init before any thread starts; the others on any thread. No failure modes. */
#pragma once

#include <stdbool.h>

extern bool ptc_fault_armed; /* set once at start by ptc_fault_init */

void ptc_fault_init(void);            /* reads the environment */
bool ptc_fault_hit(const char *name); /* true: the caller must fail the operation */

/* true: a test wants this operation to fail. The caller then fails it. */
#define ptc_fault(name) (__builtin_expect(ptc_fault_armed, 0) && ptc_fault_hit(name))
