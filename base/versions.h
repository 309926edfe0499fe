/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of versions, and which of them a reader takes. docs/versions.md lists everything that has one.
 *
 * A reader of version n takes its OLDEST (n-1, or earlier) to n+1. A writer of n+1 only adds to what n wrote, behind what n
 * knows, so a reader of n passes the additions over. What a reader must not pass over raises the number by two, or is named
 * in a document's "needs".
 *
 * PTC_NEXT_VERSION is for tests of upgrades: the same tree with every number raised by one and an addition in everything
 * that it writes. Pure; any thread. Needs libc only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef PTC_NEXT_VERSION
#define PTC_VERSION_RAISED 1
#else
#define PTC_VERSION_RAISED 0
#endif
#define PTC_VERSION_NUMBER(n) ((n) + PTC_VERSION_RAISED)

/* The addition of a raised build: a number that says what it is where bytes are looked at. */
#define PTC_VERSION_ADDED UINT64_C(0x5a4e455854564552) /* "REVTXENZ" */

static inline bool ptc_version_reads(uint64_t version, uint64_t oldest, uint64_t ours)
{
	return version >= oldest && version <= ours + 1;
}
