/* SPDX-License-Identifier: Apache-2.0 */
/* Files of a set, and the dumps that ranks have written for their user. Happy path: each dump is read with the user's
 * rights, and written beside the set's texts. Failure modes: a file that fails leaves nothing; a dump that fails is
 * named in the text, and fails nothing else. Threads: any. For daemon/workers/evidence only. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

struct ptc_evidence_dump {
	uint32_t rank;
	const char *path; /* borrowed */
};
struct ptc_evidence_file {
	char *data; /* ptc_free it */
	size_t len;
	int64_t size; /* of the file, which may be more */
	time_t written;
};
/* Writes dir/name, which only the user may read. A file that is written in part is removed. */
int ptc_evidence_write(const char *dir, uid_t uid, const char *name, const void *data, size_t len,
		       struct ptc_error *err);
/* Reads the first max bytes of a regular file with the user's rights, not ptcd's, for the path is the user's to choose.
 * until_ns: of ptc_sys_now_ns. Returns 0 or an errno. ETIMEDOUT: the file system has not answered. EBUSY: the file
 * system of an earlier read still does not answer. */
int ptc_evidence_read_as(uid_t uid, const char *path, size_t max, int64_t until_ns, struct ptc_evidence_file *ret);
/* Keeps dumps as dir/dump-RANK, `room` bytes in all, and adds a line for each to said. A few seconds at most. */
void ptc_evidence_dumps(const char *dir, uid_t uid, const struct ptc_evidence_dump *dumps, size_t n, size_t room,
			struct ptc_buf *said);
