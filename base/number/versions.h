/* SPDX-License-Identifier: Apache-2.0 */
/* Version numbers, and which of them a reader accepts. docs/versions.md lists every format and protocol with a version.
 *
 * A reader of version n accepts its OLDEST (n - 1, or an earlier one) to n + 1. A writer of n + 1 only adds to the
 * content of version n, behind the content that n knows. So a reader of n skips the additions. An addition that a
 * reader must not skip raises the number by two, or is named in a document's "needs".
 *
 * PTC_NEXT_VERSION is for tests of upgrades: it builds the same tree with every number raised by one, and with an
 * addition in everything that the build writes. Pure; any thread; needs libc only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef PTC_NEXT_VERSION
#define PTC_VERSION_RAISED 1
#else
#define PTC_VERSION_RAISED 0
#endif
#define PTC_VERSION_NUMBER(n)            ((n) + PTC_VERSION_RAISED)
/* Whether a document of `version` may have members that this program does not know; `ours` is its newest version. A
 * raised build does not know the additions of its own version either. */
#define PTC_VERSION_LATER(version, ours) ((version) > (ours)-PTC_VERSION_RAISED)

/* The addition that a raised build writes: a number that a reader of raw bytes recognizes. */
#define PTC_VERSION_ADDED UINT64_C(0x5a4e455854564552) /* "REVTXENZ" */

/* The documents that nodes share in etcd have one version for the whole cluster, beside each format's own. A node
 * announces the newest version that it writes (daemon/cluster). All nodes write the lowest announced version. So a node
 * that goes back to its earlier release can still read the documents. */
#define PTC_DOC_VERSION PTC_VERSION_NUMBER(1)
#define PTC_DOC_OLDEST  1

/* The lowest version that a member announces. It begins as ours, for a program that is in no cluster. */
void ptc_version_members_set(uint32_t lowest);
uint32_t ptc_version_members(void);
/* Returns the version in which to write a document. `newest` is the newest version of the document's format; it came
 * with version `since` of the cluster's documents. */
static inline uint32_t ptc_version_write(uint32_t newest, uint32_t since)
{
	return ptc_version_members() >= since ? newest : newest - 1;
}
/* Whether this build writes its addition now: it is a raised build, and all members announce its version. */
static inline bool ptc_version_adds(void)
{
	return PTC_VERSION_RAISED && ptc_version_members() >= PTC_DOC_VERSION;
}

static inline bool ptc_version_reads(uint64_t version, uint64_t oldest, uint64_t ours)
{
	return version >= oldest && version <= ours + 1;
}
