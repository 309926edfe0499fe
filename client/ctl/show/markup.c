/* SPDX-License-Identifier: Apache-2.0 */
/* Escapes text that comes from users (names, events) before it goes into HTML and SVG. Failure: memory, which the
 * buffer remembers. */
#include "client/ctl/show/show.h"

#include "base/buf.h"

void ctl_put_escaped(struct ptc_buf *b, const char *s)
{
	for (; s && *s; s++) {
		switch (*s) {
		case '&':
			ptc_buf_puts(b, "&amp;");
			break;
		case '<':
			ptc_buf_puts(b, "&lt;");
			break;
		case '>':
			ptc_buf_puts(b, "&gt;");
			break;
		case '"':
			ptc_buf_puts(b, "&quot;");
			break;
		default:
			ptc_buf_append(b, (unsigned char)*s < 0x20 || *s == 0x7f ? " " : s, 1);
		}
	}
}
