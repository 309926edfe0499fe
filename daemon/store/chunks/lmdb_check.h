/* SPDX-License-Identifier: Apache-2.0 */
/* Whether LMDB can use a file: looks at every page that LMDB itself would follow. Failure modes: lmdb_check.c. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

/* What the records of a file look like. */
struct ptc_lmdb_kind {
	bool numbers;    /* the keys are numbers (MDB_INTEGERKEY) */
	bool skip_heads; /* the 16 bytes before a value of whole pages are not read: see lmdb_check.c */
};
/* No process may have the file open with LMDB. A file that is missing or empty is fine: LMDB makes it. */
int ptc_lmdb_check(const char *path, struct ptc_lmdb_kind kind, struct ptc_error *err);
