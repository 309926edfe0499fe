/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of sources that lie on this node, read as their owners: by ptc-source, a process for each source and reader
 * at work, which becomes the owner before it opens anything (docs/decisions/0006-sources.md).
 *
 * Happy path: new, read from any thread, free. A process that is there is used again; a process that has had nothing to
 * do for a minute is ended.
 *
 * Failure modes:
 * - The source's own errors (dataset/source.h).
 * - PTC_EPERM: ptcd is not root, and the source is another user's.
 * - PTC_ETIMEOUT: the source's file system does not answer. The process is killed. If it does not end, it counts until
 *   it has ended, so there are never more than PTC_SOURCES_MAX.
 * - PTC_ELIMIT: there are too many requests, or all processes hang; try later. */
#pragma once

#include "formats/dataset/dataset_doc.h"

#define PTC_SOURCES_MAX 16 /* processes */

struct ptc_sources;
struct ptc_sources *ptc_sources_new(void);                   /* NULL: out of memory */
struct ptc_sources *ptc_sources_free(struct ptc_sources *s); /* after the last read has returned; NULL ok */
/* Blocks for at most timeout_ms. request: an encoded SamplesRequest, checked. *ret_reply: the encoded SamplesReply of
 * ptc-source, unchecked. That process runs as the dataset's owner, who can make it answer anything about the owner's
 * own data. ptc_free the reply.
 */
int ptc_sources_read(struct ptc_sources *s, const struct ptc_dataset_doc *doc, const void *request, size_t len,
		     int timeout_ms, void **ret_reply, size_t *ret_len, struct ptc_error *err);
/* From time to time: ends processes that have nothing to do, forgets those that have ended. Does not block. */
void ptc_sources_expire(struct ptc_sources *s);
