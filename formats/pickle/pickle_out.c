/* SPDX-License-Identifier: Apache-2.0 */
/* Opcodes of protocol 2, which every Python 3 and PyTorch's own reader of weights take. Failure modes: the buffer's. */
#include "formats/pickle/pickle.h"

#include "base/check.h"

#include <string.h>

static void put_u32(struct ptc_buf *b, uint32_t n)
{
	uint8_t v[4];

	for (int i = 0; i < 4; i++)
		v[i] = (uint8_t)(n >> (8 * i));
	ptc_buf_append(b, v, sizeof v);
}

void ptc_pickle_begin(struct ptc_pickle_out *o, struct ptc_buf *b)
{
	*o = (struct ptc_pickle_out){ .b = b };
	ptc_buf_append(b, "\x80\x02", 2);
}

void ptc_pickle_end(struct ptc_pickle_out *o)
{
	ptc_buf_append(o->b, ".", 1);
}

void ptc_pickle_op(struct ptc_pickle_out *o, char opcode)
{
	ptc_buf_append(o->b, &opcode, 1);
}

void ptc_pickle_global(struct ptc_pickle_out *o, const char *name)
{
	for (unsigned i = 0; i < o->nknown; i++)
		if (o->known[i] == name) {
			char get[2] = { 'h', (char)i };

			ptc_buf_append(o->b, get, sizeof get);
			return;
		}
	ptc_buf_append(o->b, "c", 1);
	ptc_buf_puts(o->b, name);
	ptc_buf_append(o->b, "\n", 1);
	if (o->nknown < PTC_ARRAY_LEN(o->known)) {
		char put[2] = { 'q', (char)o->nknown };

		ptc_buf_append(o->b, put, sizeof put);
		o->known[o->nknown++] = name;
	}
}

void ptc_pickle_int(struct ptc_pickle_out *o, int64_t n)
{
	if (n >= 0 && n < 256) {
		uint8_t v[2] = { 'K', (uint8_t)n };

		ptc_buf_append(o->b, v, sizeof v);
	} else if (n >= INT32_MIN && n <= INT32_MAX) {
		ptc_buf_append(o->b, "J", 1);
		put_u32(o->b, (uint32_t)n);
	} else {
		ptc_buf_append(o->b, "\x8a\x08", 2);
		put_u32(o->b, (uint32_t)n);
		put_u32(o->b, (uint32_t)((uint64_t)n >> 32));
	}
}

void ptc_pickle_float(struct ptc_pickle_out *o, double f)
{
	uint64_t bits;
	uint8_t v[9] = { 'G' };

	memcpy(&bits, &f, sizeof bits);
	for (int i = 0; i < 8; i++)
		v[1 + i] = (uint8_t)(bits >> (56 - 8 * i));
	ptc_buf_append(o->b, v, sizeof v);
}

void ptc_pickle_text_n(struct ptc_pickle_out *o, const char *text, size_t len)
{
	ptc_buf_append(o->b, "X", 1);
	put_u32(o->b, (uint32_t)len);
	ptc_buf_append(o->b, text, len);
}

void ptc_pickle_text(struct ptc_pickle_out *o, const char *text)
{
	ptc_pickle_text_n(o, text, strlen(text));
}

void ptc_pickle_bool(struct ptc_pickle_out *o, bool truth)
{
	ptc_pickle_op(o, truth ? '\x88' : '\x89');
}

void ptc_pickle_none(struct ptc_pickle_out *o)
{
	ptc_pickle_op(o, 'N');
}
