/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's header: six bytes of magic, a version, a length, and a Python dict with three keys in any order. Happy path:
 * one pass over the text. Failure modes: PTC_EINVAL with the byte where it stops making sense; big-endian, structured
 * and Fortran-ordered arrays are refused by name. */
#include "dataset/internal.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

struct text {
	const char *what, *begin, *at, *end;
	struct ptc_error *err;
};

static int fail(struct text *t, const char *text)
{
	return ptc_error_set(t->err, PTC_EINVAL, "%s: byte %zu of its header: %s", t->what, (size_t)(t->at - t->begin),
			     text);
}

static void skip(struct text *t)
{
	while (t->at < t->end && (*t->at == ' ' || *t->at == '\n'))
		t->at++;
}

static bool is(struct text *t, const char *word)
{
	size_t n = strlen(word);

	skip(t);
	if ((size_t)(t->end - t->at) < n || memcmp(t->at, word, n))
		return false;
	t->at += n;
	return true;
}

static int string(struct text *t, char *ret, size_t size)
{
	char quote;
	size_t n = 0;

	skip(t);
	if (t->at == t->end || (*t->at != '\'' && *t->at != '"'))
		return fail(t, "a string is expected; structured arrays are not supported");
	quote = *t->at++;
	while (t->at < t->end && *t->at != quote && n + 1 < size)
		ret[n++] = *t->at++;
	if (t->at == t->end || *t->at != quote)
		return fail(t, "a string that does not end, or is too long");
	t->at++;
	ret[n] = '\0';
	return 0;
}

static int dtype(struct text *t, struct ptc_npy *npy)
{
	static const struct {
		const char *descr;
		enum ptc_source_dtype dtype;
	} known[] = {
		{ "u1", PTC_SOURCE_U8 },  { "i1", PTC_SOURCE_I8 },  { "i2", PTC_SOURCE_I16 }, { "i4", PTC_SOURCE_I32 },
		{ "i8", PTC_SOURCE_I64 }, { "f8", PTC_SOURCE_F64 }, { "f4", PTC_SOURCE_F32 }, { "u2", PTC_SOURCE_U16 },
		{ "u4", PTC_SOURCE_U32 }, { "u8", PTC_SOURCE_U64 }, { "f2", PTC_SOURCE_F16 },
	};
	char descr[16] = "";
	int rc = string(t, descr, sizeof descr);

	if (rc)
		return rc;
	if (descr[0] == '>')
		return fail(t, "its numbers are big-endian; little-endian ones are supported");
	for (size_t i = 0; i < PTC_ARRAY_LEN(known); i++)
		if ((descr[0] == '<' || (descr[0] == '|' && descr[2] == '1' && descr[1] != 'f')) &&
		    !strcmp(descr + 1, known[i].descr)) {
			npy->dtype = known[i].dtype;
			return 0;
		}
	return fail(t, "a dtype that is not supported");
}

static int size(struct text *t, uint64_t *ret)
{
	uint64_t v = 0;

	skip(t);
	if (t->at == t->end || *t->at < '0' || *t->at > '9')
		return fail(t, "a size is expected");
	if (*t->at == '0' && t->at + 1 < t->end && t->at[1] >= '0' && t->at[1] <= '9')
		return fail(t, "a size with leading zeros"); /* NumPy refuses it too */
	for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++)
		if (ptc_ckd_mul(&v, v, 10) || ptc_ckd_add(&v, v, (uint64_t)(*t->at - '0')))
			return fail(t, "a size that overflows");
	*ret = v;
	return 0;
}

static int shape(struct text *t, struct ptc_npy *npy)
{
	uint64_t dim = 0;
	int ndim = 0;

	if (!is(t, "("))
		return fail(t, "a shape is expected");
	npy->row = 1;
	for (; !is(t, ")"); ndim++) {
		int rc = size(t, &dim);

		if (rc)
			return rc;
		if (ndim && ptc_ckd_mul(&npy->row, npy->row, dim))
			return fail(t, "a shape that overflows");
		npy->rows = ndim ? npy->rows : dim;
		if (!is(t, ",") && !(is(t, ")") && t->at--))
			return fail(t, "a \",\" or \")\" is expected");
	}
	if (!ndim)
		return fail(t, "an array without dimensions has no samples");
	npy->flat = ndim == 1;
	return 0;
}

static int member(struct text *t, struct ptc_npy *npy, unsigned *seen, bool *ret_fortran)
{
	static const char *const keys[] = { "descr", "fortran_order", "shape" };
	char key[32] = "";
	unsigned k = 0;
	int rc = string(t, key, sizeof key);

	if (rc)
		return rc;
	while (k < 3 && strcmp(key, keys[k]))
		k++;
	if (k == 3 || *seen & 1u << k)
		return fail(t, "a key that is not known, or comes twice");
	*seen |= 1u << k;
	if (!is(t, ":"))
		return fail(t, "a \":\" is expected");
	if (k == 0)
		return dtype(t, npy);
	if (k == 2)
		return shape(t, npy);
	*ret_fortran = is(t, "True");
	return *ret_fortran || is(t, "False") ? 0 : fail(t, "True or False is expected");
}

static int dict(struct text *t, struct ptc_npy *npy)
{
	bool fortran = false;
	unsigned seen = 0;

	if (!is(t, "{"))
		return fail(t, "a \"{\" is expected");
	while (!is(t, "}")) {
		int rc = member(t, npy, &seen, &fortran);

		if (rc)
			return rc;
		if (!is(t, ",") && !(is(t, "}") && t->at--))
			return fail(t, "a \",\" or \"}\" is expected");
	}
	skip(t);
	if (t->at != t->end || seen != 7)
		return fail(t, seen != 7 ? "descr, fortran_order and shape are needed" : "something after the dict");
	if (fortran && !npy->flat)
		return fail(t, "it is in Fortran order; only C order has rows in one piece");
	return 0;
}

int ptc_npy_parse(const char *what, const void *data, size_t len, struct ptc_npy *ret_npy, struct ptc_error *err)
{
	const unsigned char *p = data;
	struct text t = { .what = what, .begin = data, .at = data, .end = (const char *)data + len, .err = err };
	struct ptc_npy npy = { 0 };
	size_t head, n;
	int rc;

	if (len < 12 || memcmp(p, "\x93NUMPY", 6))
		return ptc_error_set(err, PTC_EINVAL, "%s: it does not begin as a .npy file does", what);
	if (p[6] < 1 || p[6] > 3 || p[7])
		return ptc_error_set(err, PTC_EINVAL, "%s: version %d.%d of the .npy format is not supported", what,
				     p[6], p[7]);
	head = p[6] == 1 ? 10 : 12;
	n = p[8] | (size_t)p[9] << 8;
	if (p[6] > 1)
		n |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
	if (n > len - head)
		return ptc_error_set(err, PTC_EINVAL, "%s: its header has %zu bytes; %s", what, n,
				     len < PTC_NPY_HEADER_MAX ? "the file ends before" : "too many");
	t.at += head;
	t.end = t.at + n;
	rc = dict(&t, &npy);
	if (rc)
		return rc;
	npy.header_bytes = head + n;
	*ret_npy = npy;
	return 0;
}
