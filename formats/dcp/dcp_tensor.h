/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of one tensor of a checkpoint, in the row-major order of its global shape, out of parts in any number of
 * files. Parts are opened when their first element comes and closed after their last; the checksum that the part's
 * archive has of its bytes is compared then.
 *
 * Happy path: new, then for each tensor begin and read until all bytes have come, free. Memory: a buffer for each part
 * that is open, together about PTC_DCP_BUFFERS, and parts that are not stored row by row as a whole (bounded, too). Not
 * thread-safe; a reader per thread. Failure modes, each with path and key: PTC_EINVAL (parts that are not as the
 * metadata says, overlap, or end early), PTC_EDIGEST (a checksum differs), PTC_ELIMIT, PTC_ENOMEM, PTC_EIO. */
#pragma once

#include "formats/dcp/dcp.h"

#define PTC_DCP_BUFFERS    (64u << 20)
#define PTC_DCP_TRANSPOSED (512u << 20) /* most bytes of open parts that are not stored row by row */

struct ptc_dcp_reader;
/* d and dir are borrowed for as long as the reader lives. */
int ptc_dcp_reader_new(const struct ptc_dcp *d, const char *dir, struct ptc_dcp_reader **ret, struct ptc_error *err);
struct ptc_dcp_reader *ptc_dcp_reader_free(struct ptc_dcp_reader *r); /* NULL ok */
/* e: a tensor of d. If another tensor was being read, that is given up. */
int ptc_dcp_reader_begin(struct ptc_dcp_reader *r, const struct ptc_dcp_entry *e, struct ptc_error *err);
/* The next len bytes, a multiple of the element's size, and not more than are left. */
int ptc_dcp_reader_read(struct ptc_dcp_reader *r, void *data, size_t len, struct ptc_error *err);
