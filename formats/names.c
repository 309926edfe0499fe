/* SPDX-License-Identifier: Apache-2.0 */
/* Name checks and nearest words. Happy path: 0. Failure: PTC_EINVAL or
 * PTC_ELIMIT with the name cut to a printable length. */
#include "formats/names.h"

#include "base/check.h"
#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define SHOWN        80 /* bytes of a bad name shown in an error */
#define NEAREST_MAX  32 /* longest word compared */
#define NEAREST_EDIT 3  /* farthest word suggested */

static int check_length(const char *what, const char *name, size_t max, struct ptc_error *err)
{
	size_t n = strlen(name);

	if (!n)
		return ptc_error_set(err, PTC_EINVAL, "%s is empty", what);
	if (n > max)
		return ptc_error_set(err, PTC_ELIMIT, "%s \"%.*s...\" is %zu bytes long, at most %zu are allowed", what,
				     SHOWN, name, n, max);
	return 0;
}

bool ptc_name_is_utf8(const char *text)
{
	for (const unsigned char *p = (const unsigned char *)text; *p;) {
		uint32_t c = *p++;
		int more = c < 0x80 ? 0 : c < 0xc0 ? -1 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : c < 0xf8 ? 3 : -1;
		static const uint32_t least[] = { 0, 0x80, 0x800, 0x10000 };

		if (more < 0)
			return false;
		c &= more ? 0x3fu >> more : 0x7fu;
		for (int i = 0; i < more; i++, p++) {
			if ((*p & 0xc0) != 0x80)
				return false;
			c = c << 6 | (*p & 0x3f);
		}
		if (c < least[more] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
			return false;
	}
	return true;
}

int ptc_name_check_tensor(const char *name, struct ptc_error *err)
{
	int rc = check_length("tensor name", name, PTC_TENSOR_NAME_MAX, err);

	if (rc)
		return rc;
	for (const unsigned char *p = (const unsigned char *)name; *p; p++)
		if (*p < 0x20 || *p == 0x7f)
			return ptc_error_set(err, PTC_EINVAL,
					     "a tensor name has a control character (0x%02x at byte %td)", *p,
					     p - (const unsigned char *)name);
	if (!ptc_name_is_utf8(name))
		return ptc_error_set(err, PTC_EINVAL, "a tensor name is not UTF-8");
	if (strstr(name, ".."))
		return ptc_error_set(err, PTC_EINVAL, "tensor name \"%.*s\" contains \"..\"", SHOWN, name);
	if (name[0] == '/' || name[strlen(name) - 1] == '/' || strstr(name, "//"))
		return ptc_error_set(err, PTC_EINVAL, "tensor name \"%.*s\" has an empty path component", SHOWN, name);
	return 0;
}

static bool is_lower(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

int ptc_name_check_job(const char *name, struct ptc_error *err)
{
	int rc = check_length("name", name, PTC_NAME_MAX, err);

	if (rc)
		return rc;
	for (const char *p = name; *p; p++)
		if (!is_lower(*p) && (*p != '-' || p == name || !p[1]))
			return ptc_error_set(err, PTC_EINVAL,
					     "name \"%s\": only a-z, 0-9 and '-' between them are allowed", name);
	return 0;
}

int ptc_name_check_field(const char *name, struct ptc_error *err)
{
	int rc = check_length("field name", name, PTC_FIELD_NAME_MAX, err);

	if (rc)
		return rc;
	for (const char *p = name; *p; p++) {
		bool inner = *p == '-' || *p == '.';

		if (!is_lower(*p) && !(*p >= 'A' && *p <= 'Z') && *p != '_' && (!inner || p == name))
			return ptc_error_set(
				err, PTC_EINVAL,
				"field name \"%s\": only letters, digits, '_' and inner '-' and '.' are allowed", name);
	}
	if (strstr(name, ".."))
		return ptc_error_set(err, PTC_EINVAL, "field name \"%s\" contains \"..\"", name);
	/* the parameters' own names in files: an export would write one over the other */
	if (!strcmp(name, "param") || !strcmp(name, "model"))
		return ptc_error_set(err, PTC_EINVAL,
				     "field name \"%s\" is reserved for the files of parameters; choose another", name);
	return 0;
}

int ptc_name_check_rules(const char *name, struct ptc_error *err)
{
	int rc = check_length("rule set name", name, PTC_NAME_MAX, err);

	if (rc)
		return rc;
	for (const char *p = name; *p; p++)
		if (!is_lower(*p) && *p != '_' && *p != '-')
			return ptc_error_set(err, PTC_EINVAL,
					     "rule set name \"%s\": only a-z, 0-9, '_' and '-' are allowed", name);
	return 0;
}

/* Levenshtein distance with one row; both words are at most NEAREST_MAX long. */
static size_t distance(const char *a, const char *b)
{
	size_t row[NEAREST_MAX + 1], nb = strlen(b);

	for (size_t j = 0; j <= nb; j++)
		row[j] = j;
	for (size_t i = 0; a[i]; i++) {
		size_t diagonal = row[0];

		row[0] = i + 1;
		for (size_t j = 0; j < nb; j++) {
			size_t replaced = diagonal + (a[i] != b[j]);

			diagonal = row[j + 1];
			row[j + 1] = PTC_MIN(replaced, PTC_MIN(diagonal, row[j]) + 1);
		}
	}
	return row[nb];
}

const char *ptc_name_nearest(const char *word, const char *const *known, size_t nknown)
{
	const char *best = NULL;
	size_t n = strlen(word), best_distance = SIZE_MAX;

	if (!n || n > NEAREST_MAX)
		return NULL;
	for (size_t i = 0; i < nknown; i++) {
		size_t d, k = strlen(known[i]);

		if (k > NEAREST_MAX)
			continue;
		d = distance(word, known[i]);
		/* A word more than half of whose letters differ is not near. */
		if (d < best_distance && d <= NEAREST_EDIT && d * 2 <= PTC_MAX(n, k)) {
			best = known[i];
			best_distance = d;
		}
	}
	return best;
}
