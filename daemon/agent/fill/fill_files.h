/* SPDX-License-Identifier: Apache-2.0 */
/* Files of readers on this node into which calls write (proto/direct_read.h, "files that ptcd fills"). A reader hands a
 * descriptor over; calls find the file by its key. Counted; a file is closed, and then its connection, once the reader
 * has ended it and no call writes any more.
 *
 * Happy path: offer, end (the thread of direct reads); get, write, put (threads of calls). Failure modes: the asker is
 * neither root nor our user, or the file is not one that never makes a writer wait (PTC_EPERM, PTC_EINVAL); too many
 * files (PTC_ELIMIT); no file has that key, or it is another user's (PTC_ESTATE); a range that exceeds the file
 * (PTC_EINVAL); no room in it (PTC_ENOSPC). A file that its owner makes shorter meanwhile just grows again. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ptc_fill_files;
struct ptc_fill_files *ptc_fill_files_new(void);                      /* NULL: out of memory */
struct ptc_fill_files *ptc_fill_files_free(struct ptc_fill_files *f); /* all have ended. NULL ok */

struct ptc_fill_file;
/* Answers over conn whether the file is taken; conn and fd belong to the file then. Otherwise, or if the asker does not
 * take the answer, *ret_file is NULL, and both stay the caller's. Does not block. fd -1: none came with the question.
 */
void ptc_fill_files_offer(struct ptc_fill_files *f, int conn, uid_t uid, int fd, struct ptc_fill_file **ret_file);
/* Answers over conn whether that asker may offer files. False: it does not take the answer. Does not block. */
bool ptc_fill_files_greet(int conn, uid_t uid);
/* Nobody finds the file any more. */
void ptc_fill_files_end(struct ptc_fill_files *f, struct ptc_fill_file *file);

/* For a call that writes `bytes` at `at`; put it afterwards. */
int ptc_fill_file_get(struct ptc_fill_files *f, const void *key, size_t len, uid_t uid, uint64_t at, uint64_t bytes,
		      struct ptc_fill_file **ret_file, struct ptc_error *err);
void ptc_fill_file_put(struct ptc_fill_files *f, struct ptc_fill_file *file);
int ptc_fill_file_write(const struct ptc_fill_file *file, uint64_t at, const void *data, size_t len,
			struct ptc_error *err);
