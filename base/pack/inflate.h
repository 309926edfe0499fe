/* SPDX-License-Identifier: Apache-2.0 */
/* Data that zlib compressed. Pure; any thread. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

/* Appends what `len` bytes at `data`, a stream in zlib's format, unpack to. PTC_EINVAL: it is none, or is cut off;
 * PTC_ELIMIT: it unpacks to more than `max` bytes; PTC_ENOMEM. */
int ptc_inflate(const void *data, size_t len, size_t max, struct ptc_buf *b, struct ptc_error *err);
