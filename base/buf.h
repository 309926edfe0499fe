/* SPDX-License-Identifier: Apache-2.0 */
/* A growable byte buffer with a sticky error: after a failed allocation every
 * append is a no-op, and one check at the end (ptc_buf_failed) is enough.
 * Always NUL-terminated when data is not NULL, so text can be used directly.
 * Not thread-safe; the caller owns it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_buf {
	char *data;
	size_t len; /* bytes, terminating NUL not counted */
	size_t cap;
	bool failed;
};

#define PTC_BUF_INIT                                                                                                   \
	{                                                                                                              \
		NULL, 0, 0, false                                                                                      \
	}

void ptc_buf_done(struct ptc_buf *b);
void ptc_buf_reset(struct ptc_buf *b); /* len = 0, memory and error state kept */
void ptc_buf_append(struct ptc_buf *b, const void *data, size_t len);
void ptc_buf_puts(struct ptc_buf *b, const char *s);
void ptc_buf_printf(struct ptc_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Room for len more bytes at the returned place, already counted in len; NULL when out of memory. */
void *ptc_buf_extend(struct ptc_buf *b, size_t len);
static inline bool ptc_buf_failed(const struct ptc_buf *b)
{
	return b->failed;
}
/* Hands the memory over (ptc_free it); b is empty again. NULL if failed or empty. */
char *ptc_buf_steal(struct ptc_buf *b, size_t *ret_len);
