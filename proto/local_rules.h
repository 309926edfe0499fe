/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that both ends check: libptc to name a mistake at its call, ptcd because it trusts nobody. Pure; any thread.
 * Needs libc only. */
#pragma once

#include "proto/local_messages.h"

/* Of what `published` names at one time. */
#define PTC_LOCAL_PUBLISHED_MAX                                                                                        \
	((uint64_t)PTC_LOCAL_BLOBS_MAX * (PTC_LOCAL_BLOB_MAX + 2 * PTC_LOCAL_SHORT_MAX) +                              \
	 (uint64_t)PTC_LOCAL_CURSORS_MAX * 4 * PTC_LOCAL_SHORT_MAX)

/* Bytes of an element; 0: unknown, or not whole bytes. */
uint32_t ptc_local_dtype_bytes(const char *dtype);
/* NULL: fine; else what is wrong with it. */
const char *ptc_local_name_error(const char *name);
const char *ptc_local_field_error(const char *field);
const char *
ptc_local_short_error(const char *name); /* of a blob, a cursor, a key: 1..255 bytes, no control characters */
const char *ptc_local_shape_error(uint32_t ndim, const int64_t *shape, uint32_t element_bytes);
/* A box with at least one element: inside of shape, with memory that does not wrap and elements that do not lie on each
 * other. */
const char *ptc_local_box_error(uint32_t ndim, const int64_t *shape, uint32_t element_bytes,
				const struct ptc_local_box *b);
/* First address and the one after the last byte. */
void ptc_local_box_span(uint32_t ndim, uint32_t element_bytes, const struct ptc_local_box *b, uint64_t *ret_low,
			uint64_t *ret_high);
/* Puts boxes into row-major order of their offsets; false and two of them when they overlap. */
bool ptc_local_boxes_disjoint(uint32_t ndim, struct ptc_local_box *boxes, size_t n, size_t *ret_a, size_t *ret_b);
/* local_codec.c: all of this of a tensor that was decoded, but for its dtype, whose elements have element_bytes (0: it
 * is unknown). NULL: fine; then boxes, which has room for nboxes, has its boxes in that order. */
const char *ptc_local_tensor_error(struct ptc_local_tensor *t, uint32_t element_bytes, struct ptc_local_box *boxes);
