/* SPDX-License-Identifier: Apache-2.0 */
/* The lowest version that a daemon of the cluster announces is one number for the process: documents are encoded on
 * any thread, and a process is in one cluster. */
#include "base/number/versions.h"

#include <stdatomic.h>

static _Atomic uint32_t members = PTC_DOC_VERSION;

void ptc_version_members_set(uint32_t lowest)
{
	atomic_store(&members, lowest < PTC_DOC_VERSION ? lowest : PTC_DOC_VERSION);
}

uint32_t ptc_version_members(void)
{
	return atomic_load(&members);
}
