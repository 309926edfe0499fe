/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: inflate.h. Output comes in windows, so a short input cannot ask for much at once. */
#include "base/pack/inflate.h"

#include "base/alloc.h"

#include <isa-l/igzip_lib.h>

#define WINDOW (64u << 10)

static int unpack(struct inflate_state *s, uint8_t *window, size_t max, struct ptc_buf *b, struct ptc_error *err)
{
	do {
		int status;

		s->next_out = window;
		s->avail_out = WINDOW;
		status = isal_inflate(s);
		if (status != ISAL_DECOMP_OK)
			return ptc_error_set(err, PTC_EINVAL, "compressed data is damaged");
		if (WINDOW - s->avail_out > max - b->len)
			return ptc_error_set(err, PTC_ELIMIT, "compressed data unpacks to more than %zu bytes", max);
		ptc_buf_append(b, window, WINDOW - s->avail_out);
	} while (s->block_state != ISAL_BLOCK_FINISH && (s->avail_in || !s->avail_out));
	if (s->block_state != ISAL_BLOCK_FINISH)
		return ptc_error_set(err, PTC_EINVAL, "compressed data is cut off");
	return ptc_buf_failed(b) ? ptc_nomem(err) : 0;
}

int ptc_inflate(const void *data, size_t len, size_t max, struct ptc_buf *b, struct ptc_error *err)
{
	struct inflate_state *s;
	uint8_t *window;
	int rc = PTC_ENOMEM;

	if (len > UINT32_MAX || b->len > max)
		return ptc_error_set(err, PTC_ELIMIT, "compressed data of %zu bytes", len);
	s = ptc_malloc(sizeof *s);
	window = ptc_malloc(WINDOW);
	if (s && window) {
		isal_inflate_init(s);
		s->crc_flag = ISAL_ZLIB;
		s->next_in = (uint8_t *)(uintptr_t)data;
		s->avail_in = (uint32_t)len;
		rc = unpack(s, window, max, b, err);
	} else {
		ptc_nomem(err);
	}
	ptc_free(s);
	ptc_free(window);
	return rc;
}
