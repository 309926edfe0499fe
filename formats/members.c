/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: one pass over the table; lists and maps in it recurse into their own. Depth is that of the tables.
 * Failure modes: see members.h. */
#include "formats/members.h"

#include "base/alloc.h"
#include "base/check.h"
#include "formats/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of each kind of number. */
static const struct {
	size_t size;
	int64_t min, max;
} numbers[] = { [PTC_IS_U32] = { 4, 0, UINT32_MAX },
		[PTC_IS_U64] = { 8, 0, INT64_MAX },
		[PTC_IS_I64] = { 8, INT64_MIN, INT64_MAX },
		[PTC_IS_INT] = { 4, INT32_MIN, INT32_MAX } };

#define WHOLE_MAX 1e17 /* whole numbers below it are written without an exponent */

/* A number or a pointer of 4 or 8 bytes. */
static uint64_t load(const char *at, size_t size)
{
	uint64_t wide = 0;
	uint32_t narrow = 0;

	memcpy(size == sizeof wide ? (void *)&wide : (void *)&narrow, at, size);
	return size == sizeof wide ? wide : narrow;
}

static void store(char *at, size_t size, uint64_t wide)
{
	const uint32_t narrow = (uint32_t)wide;

	memcpy(at, size == sizeof wide ? (const void *)&wide : (const void *)&narrow, size);
}

static void *pointer(const char *at)
{
	return (void *)(uintptr_t)load(at, sizeof(void *));
}

static size_t count_of(const struct ptc_member *m, const char *base)
{
	return load(base + m->count_offset, m->count_size);
}

/* The JSON value is that of the only member. */
static bool is_alone(const struct ptc_members *t)
{
	return t->n == 1 && !t->v[0].key && !t->tuple;
}

static bool is_owned(const struct ptc_member *m)
{
	return m->kind == PTC_IS_LIST || m->kind == PTC_IS_KEYED;
}

/* Where the structs of a list, a keyed map or an array begin. */
static char *elements(const struct ptc_member *m, const char *base)
{
	return is_owned(m) ? pointer(base + m->offset) : (char *)(uintptr_t)base + m->offset;
}

/* Of the structs of a keyed map, what is not the key. */
static struct ptc_members value_of(const struct ptc_member *m)
{
	return (struct ptc_members){ m->of->v + 1, m->of->n - 1, m->of->size, false };
}

/* ---- writing ---------------------------------------------------------------------- */

static json_t *numbers_to_json(const struct ptc_member *m, const char *at)
{
	const size_t size = numbers[m->kind].size;
	json_t *list = m->size == size ? NULL : json_array();

	for (size_t i = 0; i < m->size; i += size) {
		uint64_t v = load(at + i, size);
		json_t *one = json_integer(m->kind == PTC_IS_INT ? (int32_t)v : (json_int_t)v);

		if (m->size == size)
			return one;
		if (json_array_append_new(list, one)) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

static json_t *list_to_json(const struct ptc_member *m, const char *base)
{
	const char *at = elements(m, base);
	json_t *list = json_array();

	for (size_t i = 0; i < count_of(m, base); i++)
		if (json_array_append_new(list, ptc_members_to_json(m->of, at + i * m->of->size))) {
			json_decref(list);
			return NULL;
		}
	return list;
}

static json_t *keyed_to_json(const struct ptc_member *m, const char *base)
{
	const struct ptc_member *key = &m->of->v[0];
	const struct ptc_members value = value_of(m);
	const char *at = elements(m, base);
	json_t *map = json_object();

	for (size_t i = 0; i < count_of(m, base); i++, at += m->of->size) {
		const char *text = at + key->offset;

		if (json_object_set_new(map, key->kind == PTC_IS_TEXT ? text : pointer(text),
					ptc_members_to_json(&value, at))) {
			json_decref(map);
			return NULL;
		}
	}
	return map;
}

static json_t *number_to_json(double v)
{
	if (!isfinite(v))
		return json_null();
	return v == trunc(v) && fabs(v) < WHOLE_MAX ? json_integer((json_int_t)v) : json_real(v);
}

static json_t *bytes_to_json(const uint8_t *v, size_t n)
{
	struct ptc_buf hex = PTC_BUF_INIT;
	json_t *text = NULL;

	for (size_t i = 0; i < n; i++)
		ptc_buf_printf(&hex, "%02x", v[i]);
	if (!ptc_buf_failed(&hex))
		text = json_string(hex.data ? hex.data : "");
	ptc_buf_done(&hex);
	return text;
}

static json_t *value_to_json(const struct ptc_member *m, const char *base)
{
	const char *at = base + m->offset;
	double real;

	switch (m->kind) {
	case PTC_IS_BOOL:
		return json_boolean(*at);
	case PTC_IS_REAL:
		return memcpy(&real, at, sizeof real), json_real(real);
	case PTC_IS_NUMBER:
		return memcpy(&real, at, sizeof real), number_to_json(real);
	case PTC_IS_WORD:
		return json_string(m->words[load(at, m->size)]);
	case PTC_IS_TEXT:
		return json_string(at);
	case PTC_IS_STRING:
		return json_string(pointer(at));
	case PTC_IS_HEX:
		return json_sprintf("%016" PRIx64, load(at, m->size));
	case PTC_IS_BYTES:
		return bytes_to_json(pointer(at), count_of(m, base));
	case PTC_IS_EMPTY:
		return json_object();
	case PTC_IS_MAP:
		return ptc_members_to_json(m->of, at);
	case PTC_IS_LIST:
	case PTC_IS_ARRAY:
		return list_to_json(m, base);
	case PTC_IS_KEYED:
		return keyed_to_json(m, base);
	default:
		return numbers_to_json(m, at);
	}
}

static bool is_there(const struct ptc_member *m, const char *base)
{
	for (uint32_t i = 0; i < m->if_size; i++)
		if (base[m->if_offset + i])
			return true;
	return !m->if_size;
}

/* null, if that stands for the member. */
static json_t *member_to_json(const struct ptc_member *m, const char *base)
{
	return m->null && !is_there(m, base) ? json_null() : value_to_json(m, base);
}

int ptc_members_put(json_t *map, const struct ptc_members *t, const void *from)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < t->n; i++) {
		const struct ptc_member *m = &t->v[i];
		const bool there = is_there(m, from);

		if (there && m->kind == PTC_IS_MAP && !m->key)
			rc = ptc_members_put(map, m->of, (const char *)from + m->offset);
		else if (there || m->null)
			rc = json_object_set_new(map, m->key, member_to_json(m, from));
	}
	return rc;
}

json_t *ptc_members_to_json(const struct ptc_members *t, const void *from)
{
	json_t *whole;
	int rc = 0;

	if (is_alone(t))
		return member_to_json(t->v, from);
	whole = t->tuple ? json_array() : json_object();
	for (size_t i = 0; t->tuple && !rc && i < t->n; i++)
		rc = json_array_append_new(whole, member_to_json(&t->v[i], from));
	if (!t->tuple)
		rc = ptc_members_put(whole, t, from);
	if (!rc)
		return whole;
	json_decref(whole);
	return NULL;
}

int ptc_members_put_list(json_t *map, const char *key, const struct ptc_members *t, const void *v, size_t n)
{
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, ptc_members_to_json(t, (const char *)v + i * t->size));
	return json_object_set_new(map, key, list);
}

json_t *ptc_members_to_doc(int version, const struct ptc_members *t, const void *from)
{
	json_t *root = json_pack("{s:i}", "version", version);

	if (root && ptc_members_put(root, t, from) == 0)
		return root;
	json_decref(root);
	return NULL;
}

char *ptc_members_to_text(int version, const struct ptc_members *t, const void *from)
{
	json_t *root = ptc_members_to_doc(version, t, from);
	char *text = root ? ptc_json_text(root) : NULL;

	json_decref(root);
	return text;
}

/* ---- reading ---------------------------------------------------------------------- */

struct reader {
	const char *what, *key; /* the innermost */
	struct ptc_error *err;
};

__attribute__((format(printf, 3, 4))) static int wrong(const struct reader *r, int code, const char *fmt, ...)
{
	char text[PTC_ERROR_MAX / 2];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return ptc_error_set(r->err, code, "%s: \"%s\" %s", r->what, r->key, text);
}

static int take_numbers(const struct reader *r, const struct ptc_member *m, const json_t *json, char *at)
{
	const size_t size = numbers[m->kind].size, n = m->size / size;
	const int64_t min = m->min ? m->min : numbers[m->kind].min, max = m->max ? m->max : numbers[m->kind].max;

	if (n > 1 && json_array_size(json) != n)
		return wrong(r, PTC_EINVAL, "must be a list of %zu numbers", n);
	for (size_t i = 0; i < n; i++) {
		const json_t *one = n == 1 ? json : json_array_get(json, i);
		const json_int_t v = json_integer_value(one);

		if (!json_is_integer(one) || v < min || v > max)
			return wrong(r, PTC_EINVAL, "must be a whole number in %" PRId64 "..%" PRId64, min, max);
		store(at + i * size, size, (uint64_t)v);
	}
	return 0;
}

static int take_real(const struct reader *r, const struct ptc_member *m, const json_t *json, char *at)
{
	const double v = json_number_value(json);

	if (m->max && (!json_is_number(json) || v < 0 || v > (double)m->max))
		return wrong(r, PTC_EINVAL, "must be a number in 0..%" PRId64, m->max);
	if (!json_is_number(json) || v < 0)
		return wrong(r, PTC_EINVAL, "must be a number, not negative");
	return memcpy(at, &v, sizeof v), 0;
}

static int take_word(const struct reader *r, const struct ptc_member *m, const json_t *json, char *at)
{
	const char *text = json_string_value(json);

	for (uint32_t i = 0; text && i <= m->max; i++)
		if (strcmp(m->words[i], text) == 0)
			return store(at, m->size, i), 0;
	return wrong(r, PTC_EINVAL, "is \"%.40s\", which is not a known word", text ? text : "");
}

/* text: NULL: it is none. */
static int take_text(const struct reader *r, const struct ptc_member *m, const char *text, char *at)
{
	const size_t most = m->kind == PTC_IS_TEXT ? m->size - 1 : m->max ? (size_t)m->max : SIZE_MAX;
	char *copy;

	if (!text || strlen(text) > most)
		return wrong(r, PTC_EINVAL, "must be a text of at most %zu bytes", most);
	if (strlen(text) < (size_t)m->min)
		return wrong(r, PTC_EINVAL, "must be a text of at least %" PRId64 " bytes", m->min);
	if (m->kind == PTC_IS_TEXT)
		return memcpy(at, text, strlen(text) + 1), 0;
	copy = ptc_strdup(text);
	store(at, sizeof copy, (uintptr_t)copy);
	return copy ? 0 : ptc_error_set(r->err, PTC_ENOMEM, "%s: out of memory", r->what);
}

static int take_hex(const struct reader *r, const json_t *json, char *at)
{
	const char *text = json_string_value(json);

	if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
		return wrong(r, PTC_EINVAL, "must be 16 hexadecimal digits");
	return store(at, sizeof(uint64_t), strtoull(text, NULL, 16)), 0;
}

static int take_bytes(const struct reader *r, const struct ptc_member *m, const json_t *json, char *base)
{
	const char *text = json_string_value(json);
	const size_t n = text ? strlen(text) / 2 : 0;
	uint8_t *v;

	if (!text || strlen(text) % 2 || strspn(text, "0123456789abcdef") != strlen(text) || n < (size_t)m->min)
		return wrong(r, PTC_EINVAL, "must be hexadecimal digits of %" PRId64 " bytes or more", m->min);
	v = ptc_malloc(PTC_MAX(n, 1u));
	if (!v)
		return ptc_error_set(r->err, PTC_ENOMEM, "%s: out of memory", r->what);
	for (size_t i = 0; i < n; i++)
		v[i] = (uint8_t)strtoul((char[]){ text[2 * i], text[2 * i + 1], 0 }, NULL, 16);
	store(base + m->offset, sizeof v, (uintptr_t)v);
	store(base + m->count_offset, m->count_size, n);
	return 0;
}

static int take_members(struct reader *r, const struct ptc_members *t, const json_t *json, char *to);

static int take_keyed(struct reader *r, const struct ptc_member *m, const json_t *json, char *at)
{
	const struct ptc_members value = value_of(m);
	const char *outer = r->key, *key;
	json_t *one;
	int rc = 0;

	json_object_foreach((json_t *)(uintptr_t)json, key, one) {
		rc = take_text(r, &m->of->v[0], key, at + m->of->v[0].offset);
		r->key = key;
		if (!rc)
			rc = take_members(r, &value, one, at);
		r->key = outer;
		if (rc)
			break;
		at += m->of->size;
	}
	return rc;
}

static int take_list(struct reader *r, const struct ptc_member *m, const json_t *json, char *base)
{
	const bool keyed = m->kind == PTC_IS_KEYED;
	const size_t n = keyed ? json_object_size(json) : json_array_size(json);
	const size_t most = m->kind == PTC_IS_ARRAY ? m->size / m->of->size : m->max ? (size_t)m->max : SIZE_MAX;
	char *v;
	int rc = 0;

	if (!(keyed ? json_is_object(json) : json_is_array(json)))
		return wrong(r, PTC_EINVAL, "must be a %s", keyed ? "map" : "list");
	if (n < (size_t)m->min)
		return wrong(r, PTC_EINVAL, "must be a %s of %" PRId64 " members or more", keyed ? "map" : "list",
			     m->min);
	if (n > most)
		return wrong(r, PTC_ELIMIT, "has more than %zu members", most);
	if (is_owned(m))
		store(base + m->offset, sizeof v, (uintptr_t)ptc_calloc(PTC_MAX(n, 1u), m->of->size));
	v = elements(m, base);
	if (!v)
		return ptc_error_set(r->err, PTC_ENOMEM, "%s: out of memory", r->what);
	store(base + m->count_offset, m->count_size, n);
	if (keyed)
		return take_keyed(r, m, json, v);
	for (size_t i = 0; !rc && i < n; i++)
		rc = take_members(r, m->of, json_array_get(json, i), v + i * m->of->size);
	return rc;
}

static int take_value(struct reader *r, const struct ptc_member *m, const json_t *json, char *base)
{
	const double real = json_number_value(json);
	char *at = base + m->offset;

	switch (m->kind) {
	case PTC_IS_BOOL:
		*(bool *)at = json_is_true(json);
		return json_is_boolean(json) ? 0 : wrong(r, PTC_EINVAL, "must be true or false");
	case PTC_IS_REAL:
		return take_real(r, m, json, at);
	case PTC_IS_NUMBER:
		memcpy(at, json_is_null(json) ? &(double){ NAN } : &real, sizeof real);
		return json_is_number(json) || json_is_null(json) ? 0 : wrong(r, PTC_EINVAL, "must be a number");
	case PTC_IS_WORD:
		return take_word(r, m, json, at);
	case PTC_IS_TEXT:
	case PTC_IS_STRING:
		return take_text(r, m, json_string_value(json), at);
	case PTC_IS_HEX:
		return take_hex(r, json, at);
	case PTC_IS_BYTES:
		return take_bytes(r, m, json, base);
	case PTC_IS_EMPTY:
		return 0;
	case PTC_IS_MAP:
		return take_members(r, m->of, json, at);
	case PTC_IS_LIST:
	case PTC_IS_KEYED:
	case PTC_IS_ARRAY:
		return take_list(r, m, json, base);
	default:
		return take_numbers(r, m, json, at);
	}
}

/* value NULL: it is missing. */
static int take_member(struct reader *r, const struct ptc_member *m, const json_t *value, char *to)
{
	if (m->null && json_is_null(value))
		value = NULL;
	if (m->seen)
		*(bool *)(to + m->if_offset) = value != NULL;
	if (value)
		return take_value(r, m, value, to);
	return m->if_size || m->optional ? 0 : wrong(r, PTC_EINVAL, "is missing");
}

static int take_members(struct reader *r, const struct ptc_members *t, const json_t *json, char *to)
{
	const char *outer = r->key;
	int rc = 0;

	if (is_alone(t))
		return take_member(r, t->v, json, to);
	if (t->tuple ? json_array_size(json) != t->n : !json_is_object(json))
		return wrong(r, PTC_EINVAL, "must be a %s of %zu members", t->tuple ? "list" : "map", t->n);
	for (size_t i = 0; !rc && i < t->n; i++) {
		const struct ptc_member *m = &t->v[i];
		const json_t *value = t->tuple ? json_array_get(json, i)
				      : m->key ? json_object_get(json, m->key)
					       : json;

		r->key = m->key ? m->key : outer;
		rc = take_member(r, m, value, to);
	}
	r->key = outer;
	return rc;
}

int ptc_members_from_json(const char *what, const struct ptc_members *t, const json_t *json, void *to,
			  struct ptc_error *err)
{
	return take_members(&(struct reader){ what, "the document", err }, t, json, to);
}

int ptc_members_from_text(const char *what, uint32_t oldest, uint32_t ours, const struct ptc_members *t,
			  const char *json, size_t len, void *to, struct ptc_error *err)
{
	json_t *root = NULL;
	int rc = ptc_json_load(what, json, len, &root, err);

	if (rc == 0 && ours)
		rc = ptc_json_version(what, root, oldest, ours, err);
	if (rc == 0)
		rc = ptc_members_from_json(what, t, root, to, err);
	json_decref(root);
	if (rc) {
		ptc_members_done(t, to);
		memset(to, 0, t->size);
	}
	return rc;
}

void ptc_members_done(const struct ptc_members *t, void *of)
{
	for (size_t i = 0; i < t->n; i++) {
		const struct ptc_member *m = &t->v[i];
		char *base = of, *at = base + m->offset;

		if (m->kind == PTC_IS_MAP)
			ptc_members_done(m->of, at);
		if (m->kind != PTC_IS_STRING && m->kind != PTC_IS_BYTES && !is_owned(m))
			continue;
		for (size_t k = 0; is_owned(m) && k < count_of(m, base); k++)
			ptc_members_done(m->of, elements(m, base) + k * m->of->size);
		if (m->kind != PTC_IS_STRING)
			store(base + m->count_offset, m->count_size, 0);
		ptc_free(pointer(at));
		memset(at, 0, m->size);
	}
}
