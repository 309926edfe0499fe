/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ptc_buf_done(struct ptc_buf *b)
{
	ptc_free(b->data);
	*b = (struct ptc_buf)PTC_BUF_INIT;
}

void ptc_buf_reset(struct ptc_buf *b)
{
	b->len = 0;
	if (b->data)
		b->data[0] = '\0';
}

void *ptc_buf_extend(struct ptc_buf *b, size_t len)
{
	size_t need, cap;
	char *data;

	if (b->failed)
		return NULL;
	if (ptc_ckd_add(&need, b->len, len) || ptc_ckd_add(&need, need, 1))
		goto fail;
	if (need > b->cap) {
		cap = b->cap ? b->cap : 64;
		while (cap < need)
			if (ptc_ckd_mul(&cap, cap, 2))
				goto fail;
		data = ptc_realloc(b->data, cap);
		if (!data)
			goto fail;
		b->data = data;
		b->cap = cap;
	}
	data = b->data + b->len;
	b->len += len;
	b->data[b->len] = '\0';
	return data;
fail:
	b->failed = true;
	return NULL;
}

void ptc_buf_append(struct ptc_buf *b, const void *data, size_t len)
{
	void *to = ptc_buf_extend(b, len);

	if (to && len)
		memcpy(to, data, len);
}

void ptc_buf_puts(struct ptc_buf *b, const char *s)
{
	ptc_buf_append(b, s, strlen(s));
}

void ptc_buf_printf(struct ptc_buf *b, const char *fmt, ...)
{
	va_list ap;
	char *to;
	int len;

	va_start(ap, fmt);
	len = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	to = len < 0 ? NULL : ptc_buf_extend(b, (size_t)len);
	if (!to)
		return;
	va_start(ap, fmt);
	vsnprintf(to, (size_t)len + 1, fmt, ap);
	va_end(ap);
}

char *ptc_buf_steal(struct ptc_buf *b, size_t *ret_len)
{
	char *data = b->data;

	if (b->failed) {
		ptc_buf_done(b);
		return NULL;
	}
	if (ret_len)
		*ret_len = b->len;
	*b = (struct ptc_buf)PTC_BUF_INIT;
	return data;
}
