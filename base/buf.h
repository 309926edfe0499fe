/* SPDX-License-Identifier: Apache-2.0 */
/* A growable byte buffer with a sticky error. After a failed allocation every append does nothing, so one check at the
 * end (ptc_buf_failed) is enough. If `data` is not NULL, a NUL follows its bytes, so text can be used directly. The
 * caller owns the buffer. Not thread-safe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_buf {
	char *data;
	size_t len; /* bytes, without the final NUL */
	size_t cap;
	bool failed;
};

#define PTC_BUF_INIT                                                                                                   \
	{                                                                                                              \
		NULL, 0, 0, false                                                                                      \
	}

void ptc_buf_done(struct ptc_buf *b);
void ptc_buf_reset(struct ptc_buf *b); /* sets len to 0; keeps the memory and the error */
void ptc_buf_append(struct ptc_buf *b, const void *data, size_t len);
void ptc_buf_puts(struct ptc_buf *b, const char *s);
void ptc_buf_printf(struct ptc_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Adds len bytes that the caller fills, and returns where they begin. NULL: out of memory. */
void *ptc_buf_extend(struct ptc_buf *b, size_t len);
static inline bool ptc_buf_failed(const struct ptc_buf *b)
{
	return b->failed;
}
/* Returns the data, which becomes the caller's (ptc_free it), and empties b. NULL: an append failed, or b is empty. */
char *ptc_buf_steal(struct ptc_buf *b, size_t *ret_len);
