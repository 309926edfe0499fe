/* SPDX-License-Identifier: Apache-2.0 */
/* Globs over tensor names. Patterns come from users and names from files, so
 * matching backtracks only to the last star (pattern times text steps) and
 * knows no locale. An unterminated [ matches nothing; ptc_glob_valid refuses it. */
#include "reshard/spec/glob.h"

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

/* Where after *at the rest of a pattern, behind a *, may begin to match; false: nowhere. */
static bool next_start(const char *p, size_t n, const char *s, size_t ns, size_t *at)
{
	const char *found = NULL;

	++*at;
	if (!n || *p == '[' || *p == '?' || *p == '*')
		return true;
	if (*at < ns)
		found = memchr(s + *at, *p, ns - *at);
	if (found)
		*at = (size_t)(found - s);
	return found != NULL;
}

/* Most patterns of a rule set end in the name of another kind of tensor: that is seen before anything is searched. */
static bool tail_differs(const char *p, size_t np, const char *s, size_t ns)
{
	for (; np; np--, ns--) {
		char c = p[np - 1];

		if (c == '*' || c == '?' || c == '[' || c == ']')
			return false;
		if (!ns || c != s[ns - 1])
			return true;
	}
	return false;
}

bool ptc_glob_match(const char *p, size_t np, const char *s, size_t ns)
{
	size_t pi = 0, si = 0, star = SIZE_MAX, star_si = 0, used;

	if (np == 1 && *p == '*')
		return true;
	if (tail_differs(p, np, s, ns))
		return false;
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
		} else if (star != SIZE_MAX && next_start(p + star, np - star, s, ns, &star_si)) {
			pi = star;
			si = star_si;
		} else {
			return false;
		}
	}
	while (pi < np && p[pi] == '*')
		pi++;
	return pi == np;
}

/* Characters of the pattern's first token: a set, or one. */
static size_t token_len(const char *p, size_t n)
{
	size_t len = *p == '[' ? set_len(p, n) : 1;

	return len ? len : 1;
}

/* Does the token at o, of *ret_len characters, match all that the token t of another pattern does? */
static bool token_contains(const char *o, size_t n, const char *t, size_t len, size_t *ret_len)
{
	if (!n || *o == '*')
		return false;
	*ret_len = token_len(o, n);
	if (*o == '?')
		return *t != '*';
	if (*t == '*' || *t == '?')
		return false;
	for (int c = 1; c < 256; c++)
		if (match_one(t, len, (char)c) && !match_one(o, n, (char)c))
			return false;
	return true;
}

bool ptc_glob_contains(const char *outer, const char *inner)
{
	size_t no = strlen(outer), ni = strlen(inner), o = 0, i = 0, star = SIZE_MAX, star_i = 0, used = 0;

	while (i < ni) {
		size_t len = token_len(inner + i, ni - i);

		if (o < no && outer[o] == '*') {
			star = ++o;
			star_i = i;
		} else if (o < no && token_contains(outer + o, no - o, inner + i, len, &used)) {
			o += used;
			i += len;
		} else if (star != SIZE_MAX) {
			o = star;
			star_i += token_len(inner + star_i, ni - star_i);
			i = star_i;
		} else {
			return false;
		}
	}
	while (o < no && outer[o] == '*')
		o++;
	return o == no;
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

bool ptc_holes_match(const char *pattern, const char *name, int64_t *ret_numbers)
{
	const char *hole = strstr(pattern, "{}");
	size_t n = strlen(name), head;

	if (!hole)
		return ptc_glob_match(pattern, strlen(pattern), name, n);
	head = (size_t)(hole - pattern);
	for (size_t i = 0; i < n;) {
		size_t j = i;

		while (j < n && is_digit(name[j]))
			j++;
		if (j == i) {
			i++;
			continue;
		}
		if (ptc_glob_match(pattern, head, name, i) && ptc_holes_match(hole + 2, name + j, ret_numbers + 1))
			return parse_index(name + i, j - i, ret_numbers);
		i = j;
	}
	return false;
}

bool ptc_layer_number(const char *pattern, const char *name, int64_t *ret_layer)
{
	return strstr(pattern, "{}") && ptc_holes_match(pattern, name, ret_layer);
}
