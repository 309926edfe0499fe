/* SPDX-License-Identifier: Apache-2.0 */
/* Globs over tensor names. Patterns come from users and names from files, so
 * matching backtracks only to the last star (pattern times text steps) and
 * knows no locale. An unterminated [ matches nothing; ptc_glob_valid refuses it. */
#include "reshard/internal.h"

#include "base/check.h"

#include <string.h>

/* Length of the set that opens at p[0] == '[', brackets included; 0 if it never closes. */
static size_t set_len(const char *p, size_t n)
{
	size_t i = 1;

	if (i < n && p[i] == '!')
		i++;
	if (i < n && p[i] == ']')
		i++;
	while (i < n && p[i] != ']')
		i++;
	return i < n ? i + 1 : 0;
}

static bool set_has(const char *set, size_t len, unsigned char c)
{
	size_t i = 1, end = len - 1;
	bool negated = set[1] == '!', hit = false;

	if (negated)
		i++;
	for (; i < end; i++) {
		unsigned char lo = (unsigned char)set[i], hi = lo;

		if (i + 2 < end && set[i + 1] == '-') {
			hi = (unsigned char)set[i + 2];
			i += 2;
		}
		hit |= lo <= c && c <= hi;
	}
	return hit != negated;
}

/* Pattern characters that stand for one text character c; 0 when they do not match it. */
static size_t match_one(const char *p, size_t n, char c)
{
	size_t len;

	if (n == 0)
		return 0;
	if (*p == '?')
		return 1;
	if (*p != '[')
		return *p == c;
	len = set_len(p, n);
	return len && set_has(p, len, (unsigned char)c) ? len : 0;
}

bool ptc_glob_match(const char *p, size_t np, const char *s, size_t ns)
{
	size_t pi = 0, si = 0, star = SIZE_MAX, star_si = 0, used;

	while (si < ns) {
		if (pi < np && p[pi] == '*') {
			star = ++pi;
			star_si = si;
			continue;
		}
		used = match_one(p + pi, np - pi, s[si]);
		if (used) {
			pi += used;
			si++;
		} else if (star != SIZE_MAX) {
			pi = star;
			si = ++star_si;
		} else {
			return false;
		}
	}
	while (pi < np && p[pi] == '*')
		pi++;
	return pi == np;
}

bool ptc_glob_valid(const char *p)
{
	size_t n = strlen(p), len;

	for (size_t i = 0; i < n; i++) {
		if (p[i] != '[')
			continue;
		len = set_len(p + i, n - i);
		if (!len)
			return false;
		i += len - 1;
	}
	return n > 0;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool parse_index(const char *s, size_t n, int64_t *ret)
{
	int64_t v = 0;

	for (size_t i = 0; i < n; i++)
		if (ptc_ckd_mul(&v, v, 10) || ptc_ckd_add(&v, v, s[i] - '0'))
			return false;
	*ret = v;
	return true;
}

bool ptc_layer_match(const char *pattern, const char *name, int64_t *ret_layer)
{
	const char *hole = strstr(pattern, "{}");
	size_t n = strlen(name), head, tail;

	if (!hole)
		return false;
	head = (size_t)(hole - pattern);
	tail = strlen(hole + 2);
	for (size_t i = 0; i < n;) {
		size_t j = i;

		while (j < n && is_digit(name[j]))
			j++;
		if (j == i) {
			i++;
			continue;
		}
		if (ptc_glob_match(pattern, head, name, i) && ptc_glob_match(hole + 2, tail, name + j, n - j))
			return parse_index(name + i, j - i, ret_layer);
		i = j;
	}
	return false;
}
