/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: one pass over the text that knows strings and how deep it is. A member counts by its name and place; its
 * value counts when each of its bytes is as we write it. Failure modes: none of the search; memory. */
#include "formats/state/long_values.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/status.h"

#include <string.h>

#define HEX_DIGITS 16 /* of a digest */

/* Where a string ends that may be digests, which its reader sees; NULL: it is none. */
static const char *digests_end(const char *at, const char *end)
{
	const char *to = at < end ? memchr(at, '"', (size_t)(end - at)) : NULL;

	return to && (to - at) % HEX_DIGITS == 0 ? to : NULL;
}

/* Goes past a number as we write it, of at most 32 bits. */
static const char *number_end(const char *at, const char *end, uint32_t *ret)
{
	const char *from = at;
	uint64_t n = 0;

	for (; at < end && *at >= '0' && *at <= '9'; at++) {
		n = n * 10 + (uint64_t)(*at - '0');
		if (n > UINT32_MAX)
			return NULL;
	}
	if (at == from || (*from == '0' && at - from > 1))
		return NULL;
	*ret = (uint32_t)n;
	return at;
}

static const char *items_end(const char *at, const char *end)
{
	uint32_t n;

	if (at < end && *at == ']')
		return at;
	for (;; at++) {
		at = number_end(at, end, &n);
		if (!at || at == end || (*at != ',' && *at != ']'))
			return NULL;
		if (*at == ']')
			return at;
	}
}

/* Goes past a string. False: it has no end. */
static bool string_end(struct ptc_long_scan *s)
{
	while (++s->at < s->end && *s->at != '"')
		if (*s->at == '\\' && s->at + 1 < s->end)
			s->at++;
	if (s->at >= s->end)
		return false;
	s->at++;
	return true;
}

/* A string; true if it is the name of a long value. */
static bool member(struct ptc_long_scan *s, struct ptc_long_value *ret)
{
	const char *name = s->at, *to;
	size_t len;
	bool digests;

	if (!string_end(s) || s->end - s->at < 2 || *s->at != ':')
		return false;
	len = (size_t)(s->at - name);
	s->at++;
	if (s->depth == 1)
		s->in_files = *s->at == '[' && len == 7 && memcmp(name, "\"files\"", 7) == 0;
	digests = s->depth == 1 && *s->at == '"' && len == 9 && memcmp(name, "\"digests\"", 9) == 0;
	if (!digests &&
	    (s->depth != 3 || !s->in_files || *s->at != '[' || len != 7 || memcmp(name, "\"items\"", 7) != 0))
		return false;
	to = digests ? digests_end(s->at + 1, s->end) : items_end(s->at + 1, s->end);
	if (!to)
		return false;
	*ret = (struct ptc_long_value){ digests, digests ? 0 : s->nfiles - 1, s->at + 1, to };
	s->at = to + 1;
	return true;
}

bool ptc_long_next(struct ptc_long_scan *s, struct ptc_long_value *ret)
{
	while (s->at < s->end)
		switch (*s->at) {
		case '{':
		case '[':
			s->depth++;
			s->nfiles += *s->at == '{' && s->in_files && s->depth == 3;
			s->at++;
			break;
		case '}':
		case ']':
			s->depth -= s->depth > 0;
			s->in_files = s->in_files && s->depth > 1;
			s->at++;
			break;
		case '"':
			if (member(s, ret))
				return true;
			break;
		default:
			s->at++;
		}
	return false;
}

/* 16: not a digit as we write it */
static unsigned digit(char c)
{
	return c >= '0' && c <= '9' ? (unsigned)(c - '0') : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10) : 16;
}

static bool digest(const char *at, uint64_t *ret)
{
	unsigned all = 0;
	uint64_t v = 0;

	for (int i = 0; i < HEX_DIGITS; i++) {
		const unsigned one = digit(at[i]);

		all |= one;
		v = v << 4 | (one & 15);
	}
	*ret = v;
	return all < 16;
}

int ptc_long_digests(const struct ptc_long_value *v, uint64_t **ret, size_t *ret_n)
{
	const size_t n = (size_t)(v->to - v->from) / HEX_DIGITS;
	uint64_t *digests = ptc_reallocarray(NULL, PTC_MAX(n, 1u), sizeof *digests);

	if (!digests)
		return PTC_ENOMEM;
	for (size_t i = 0; i < n; i++)
		if (!digest(v->from + HEX_DIGITS * i, &digests[i])) {
			ptc_free(digests);
			return PTC_EINVAL;
		}
	*ret = digests;
	*ret_n = n;
	return 0;
}

int ptc_long_items(const struct ptc_long_value *v, uint32_t **ret, size_t *ret_n)
{
	size_t n = v->from < v->to, used = 0;
	uint32_t *items;

	for (const char *at = v->from; at < v->to; at++)
		n += *at == ',';
	items = ptc_reallocarray(NULL, PTC_MAX(n, 1u), sizeof *items);
	if (!items)
		return PTC_ENOMEM;
	for (const char *at = v->from; at && at < v->to && used < n; at += at && at < v->to)
		at = number_end(at, v->to, &items[used++]);
	*ret = items;
	*ret_n = n;
	return 0;
}

void ptc_long_put_digests(struct ptc_buf *b, const uint64_t *v, size_t n)
{
	char *at = n ? ptc_buf_extend(b, HEX_DIGITS * n) : NULL;

	for (size_t i = 0; at && i < n; i++)
		for (int k = HEX_DIGITS; k-- > 0;)
			*at++ = "0123456789abcdef"[v[i] >> 4 * k & 15];
}

void ptc_long_put_items(struct ptc_buf *b, const uint32_t *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char text[12], *at = text + sizeof text;
		uint32_t left = v[i];

		do
			*--at = (char)('0' + left % 10);
		while ((left /= 10));
		if (i)
			*--at = ',';
		ptc_buf_append(b, at, (size_t)(text + sizeof text - at));
	}
}
