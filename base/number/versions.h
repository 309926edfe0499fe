/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of versions, and which of them a reader takes. docs/versions.md lists everything that has one.
 *
 * A reader of version n takes its OLDEST (n-1, or earlier) to n+1. A writer of n+1 only adds to what n wrote, behind
 * what n knows, so a reader of n passes the additions over. What a reader must not pass over raises the number by two,
 * or is named in a document's "needs".
 *
 * PTC_NEXT_VERSION is for tests of upgrades: the same tree with every number raised by one and an addition in
 * everything that it writes. Pure; any thread. Needs libc only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef PTC_NEXT_VERSION
#define PTC_VERSION_RAISED 1
#else
#define PTC_VERSION_RAISED 0
#endif
#define PTC_VERSION_NUMBER(n)            ((n) + PTC_VERSION_RAISED)
/* Whether a reader whose newest version is `ours` meets members that it does not know: those of a raised build neither
 * it knows. */
#define PTC_VERSION_LATER(version, ours) ((version) > (ours)-PTC_VERSION_RAISED)

/* The addition of a raised build: a number that says what it is where bytes are looked at. */
#define PTC_VERSION_ADDED UINT64_C(0x5a4e455854564552) /* "REVTXENZ" */

/* What nodes share, the documents in etcd, has one version for the whole cluster beside each format's own. A node
 * announces the newest it writes (daemon/cluster), and all write the lowest that any announces: so one that goes back
 * still reads. */
#define PTC_DOC_VERSION PTC_VERSION_NUMBER(1)
#define PTC_DOC_OLDEST  1

/* The lowest that a member announces; at first ours, for a program that is in no cluster. */
void ptc_version_members_set(uint32_t lowest);
uint32_t ptc_version_members(void);
/* The version to write a document in, whose format's newest version came with version `since` of the cluster's
 * documents. */
static inline uint32_t ptc_version_write(uint32_t newest, uint32_t since)
{
	return ptc_version_members() >= since ? newest : newest - 1;
}
/* Whether a raised build writes its addition now. */
static inline bool ptc_version_adds(void)
{
	return PTC_VERSION_RAISED && ptc_version_members() >= PTC_DOC_VERSION;
}

static inline bool ptc_version_reads(uint64_t version, uint64_t oldest, uint64_t ours)
{
	return version >= oldest && version <= ours + 1;
}
