/* SPDX-License-Identifier: Apache-2.0 */
/* Unpacks data that zlib compressed. Pure; any thread. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

/* Unpacks the `len` bytes at `data`, a stream in zlib's format, and appends the result to b. PTC_EINVAL: the bytes are
 * no such stream, or are cut off; PTC_ELIMIT: the result has more than `max` bytes; PTC_ENOMEM. */
int ptc_inflate(const void *data, size_t len, size_t max, struct ptc_buf *b, struct ptc_error *err);
