/* SPDX-License-Identifier: Apache-2.0 */
/* Prints JSON documents as tables. One renderer for all of them. An array of objects becomes a table with a column for
 * each key. An object becomes a list of its scalars, and then a section for each array or object in the object. Keys
 * that end in "bytes" or "_ms" are shown with units. Failure: PTC_EPEER for a document that is not JSON, PTC_ENOMEM. */
#include "client/ctl/show/show.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "formats/json.h"

#include <inttypes.h>
#include <string.h>

#define MAX_COLUMNS 48
#define MAX_DEPTH   4 /* sections inside sections */

const char *ctl_bytes(uint64_t bytes, char *buf, size_t size)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double v = (double)bytes;
	size_t u = 0;

	while (v >= 1024 && u + 1 < PTC_ARRAY_LEN(units)) {
		v /= 1024;
		u++;
	}
	if (u)
		snprintf(buf, size, v < 10 ? "%.2f %s" : v < 100 ? "%.1f %s" : "%.0f %s", v, units[u]);
	else
		snprintf(buf, size, "%" PRIu64 " B", bytes);
	return buf;
}

static bool ends_with(const char *s, const char *suffix)
{
	size_t n = strlen(s), k = strlen(suffix);

	return n >= k && !strcmp(s + n - k, suffix);
}

/* Control characters would let a document write on the terminal. */
static void put_text(struct ptc_buf *b, const char *s)
{
	for (; *s; s++)
		ptc_buf_append(b, (unsigned char)*s < 0x20 || *s == 0x7f ? "?" : s, 1);
}

static void put_integer(struct ptc_buf *b, const char *key, json_int_t v)
{
	char text[32];

	if (v >= 0 && ends_with(key, "bytes"))
		ptc_buf_puts(b, ctl_bytes((uint64_t)v, text, sizeof(text)));
	else if (v >= 0 && v < 86400000 && ends_with(key, "_ms"))
		ptc_buf_printf(b, v < 10000 ? "%.3f s" : "%.1f s", (double)v / 1e3);
	else
		ptc_buf_printf(b, "%" JSON_INTEGER_FORMAT, v);
}

/* A value on one line; lists and objects inside it are joined. */
static void put_value(struct ptc_buf *b, const char *key, json_t *v, int depth)
{
	const char *name;
	json_t *inner;
	size_t i, n = 0;

	if (json_is_string(v)) {
		put_text(b, json_string_value(v));
	} else if (json_is_integer(v)) {
		put_integer(b, key, json_integer_value(v));
	} else if (json_is_real(v)) {
		ptc_buf_printf(b, "%.3g", json_real_value(v));
	} else if (json_is_boolean(v)) {
		ptc_buf_puts(b, json_is_true(v) ? "yes" : "no");
	} else if (json_is_null(v) || depth == MAX_DEPTH) {
		ptc_buf_puts(b, "-");
	} else {
		json_array_foreach(v, i, inner) {
			ptc_buf_puts(b, n++ ? "," : "");
			put_value(b, key, inner, depth + 1);
		}
		json_object_foreach(v, name, inner) {
			ptc_buf_puts(b, n++ ? " " : "");
			put_text(b, name);
			ptc_buf_puts(b, "=");
			put_value(b, name, inner, depth + 1);
		}
	}
}

static char *value_text(const char *key, json_t *v)
{
	struct ptc_buf b = PTC_BUF_INIT;

	ptc_buf_append(&b, "", 0);
	if (v)
		put_value(&b, key, v, 0);
	if (!b.len)
		ptc_buf_puts(&b, "-");
	return ptc_buf_steal(&b, NULL);
}

/* Printed columns of UTF-8 text, one per character. */
static size_t width(const char *s)
{
	size_t n = 0;

	for (; *s; s++)
		n += (*s & 0xc0) != 0x80;
	return n;
}

static void pad(size_t n)
{
	while (n--)
		putchar(' ');
}

struct table {
	const char *keys[MAX_COLUMNS];
	size_t widths[MAX_COLUMNS];
	bool number[MAX_COLUMNS];
	size_t ncolumns;
	char **cells; /* row by row */
};

static void add_column(struct table *t, const char *key)
{
	for (size_t i = 0; i < t->ncolumns; i++)
		if (!strcmp(t->keys[i], key))
			return;
	if (t->ncolumns == MAX_COLUMNS)
		return;
	t->widths[t->ncolumns] = width(key);
	t->number[t->ncolumns] = true;
	t->keys[t->ncolumns++] = key;
}

static int fill_table(struct table *t, json_t *rows, struct ptc_error *err)
{
	const char *key;
	json_t *row, *v;
	size_t i;

	json_array_foreach(rows, i, row)
		json_object_foreach(row, key, v)
			add_column(t, key);
	t->cells = ptc_calloc(json_array_size(rows) * t->ncolumns + 1, sizeof *t->cells);
	if (!t->cells)
		return ptc_nomem(err);
	json_array_foreach(rows, i, row) {
		for (size_t k = 0; k < t->ncolumns; k++) {
			char *text;

			v = json_object_get(row, t->keys[k]);
			text = value_text(t->keys[k], v);
			if (!text)
				return ptc_nomem(err);
			t->cells[i * t->ncolumns + k] = text;
			t->widths[k] = PTC_MAX(t->widths[k], width(text));
			t->number[k] &= !v || json_is_number(v) || json_is_null(v);
		}
	}
	return 0;
}

static void print_row(const struct table *t, const char *const *cells, int indent)
{
	pad((size_t)indent);
	for (size_t k = 0; k < t->ncolumns; k++) {
		size_t space = t->widths[k] - width(cells[k]);

		if (k)
			pad(2);
		if (t->number[k])
			pad(space);
		fputs(cells[k], stdout);
		if (!t->number[k] && k + 1 < t->ncolumns)
			pad(space);
	}
	putchar('\n');
}

static int print_table(json_t *rows, int indent, struct ptc_error *err)
{
	struct table t = { 0 };
	size_t n = json_array_size(rows);
	int rc = fill_table(&t, rows, err);

	if (!rc && t.ncolumns) {
		print_row(&t, t.keys, indent);
		for (size_t i = 0; i < n; i++)
			print_row(&t, (const char *const *)&t.cells[i * t.ncolumns], indent);
	}
	for (size_t i = 0; t.cells && i < n * t.ncolumns; i++)
		ptc_free(t.cells[i]);
	ptc_free(t.cells);
	return rc;
}

static bool is_table(json_t *v)
{
	return json_is_array(v) && json_is_object(json_array_get(v, 0));
}

static bool is_section(json_t *v, int depth)
{
	return depth < MAX_DEPTH && (is_table(v) || (json_is_object(v) && json_object_size(v)));
}

static int print_object(json_t *object, int depth, struct ptc_error *err)
{
	int indent = 2 * depth, rc = 0;
	size_t widest = 0;
	const char *key;
	json_t *v;

	json_object_foreach(object, key, v)
		if (!is_section(v, depth))
			widest = PTC_MAX(widest, width(key));
	json_object_foreach(object, key, v) {
		char *text;

		if (is_section(v, depth))
			continue;
		text = value_text(key, v);
		if (!text)
			return ptc_nomem(err);
		pad((size_t)indent);
		printf("%s", key);
		pad(widest - width(key) + 2);
		puts(text);
		ptc_free(text);
	}
	json_object_foreach(object, key, v) {
		if (rc || !is_section(v, depth))
			continue;
		printf("\n%*s%s:\n", indent, "", key);
		rc = is_table(v) ? print_table(v, indent + 2, err) : print_object(v, depth + 1, err);
	}
	return rc;
}

int ctl_print(const struct ctl *c, const char *text, struct ptc_error *err)
{
	json_t *json = NULL, *only;
	int rc;

	if (c->json) {
		puts(text);
		return 0;
	}
	rc = ptc_json_load("the daemon's answer", text, strlen(text), &json, err);
	if (rc)
		return rc == PTC_ENOMEM
			       ? rc
			       : ptc_error_set(
					 err, PTC_EPEER,
					 "the daemon's answer is not JSON; use the ptcctl of the daemon's package");
	/* an object that only wraps one list is that list */
	only = json_object_size(json) == 1 ? json_object_iter_value(json_object_iter(json)) : NULL;
	if (is_table(json) || is_table(only))
		rc = print_table(is_table(json) ? json : only, 0, err);
	else if (json_is_object(json) && !(json_is_array(only) && !json_array_size(only)))
		rc = print_object(json, 0, err);
	else if (!json_array_size(json) && !json_array_size(only))
		puts("none");
	json_decref(json);
	return rc;
}
