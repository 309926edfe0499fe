/* SPDX-License-Identifier: Apache-2.0 */
/* What backing files take, as ptc-fuse says it and ptcd reports it. */
#pragma once

#include <stdint.h>

struct ptc_fs_backing_usage {
	uint64_t bytes; /* also of files that are being made */
	uint64_t files; /* that are ready */
	uint64_t open;  /* bytes of those that a program has open: they cannot be freed before it closes them */
};
