/* SPDX-License-Identifier: Apache-2.0 */
#include "base/number/units.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct unit {
	const char *name;
	uint64_t factor;
};

/* Binary units first and largest first: the print functions take the first that divides. */
static const struct unit byte_units[] = {
	{ "PiB", UINT64_C(1) << 50 },         { "TiB", UINT64_C(1) << 40 },      { "GiB", UINT64_C(1) << 30 },
	{ "MiB", UINT64_C(1) << 20 },         { "KiB", UINT64_C(1) << 10 },      { "B", 1 },
	{ "PB", UINT64_C(1000000000000000) }, { "TB", UINT64_C(1000000000000) }, { "GB", UINT64_C(1000000000) },
	{ "MB", UINT64_C(1000000) },          { "KB", UINT64_C(1000) },          { "kB", UINT64_C(1000) },
};

static const struct unit time_units[] = {
	{ "d", UINT64_C(86400000) }, { "h", UINT64_C(3600000) }, { "m", UINT64_C(60000) },
	{ "s", UINT64_C(1000) },     { "ms", UINT64_C(1) },
};

/* Digits at *p; false for none or too many. *ret_count is their number. */
static bool take_digits(const char **p, uint64_t *ret_value, int *ret_count)
{
	uint64_t value = 0;
	int n = 0;

	for (; **p >= '0' && **p <= '9'; (*p)++, n++)
		if (ptc_ckd_mul(&value, value, 10u) || ptc_ckd_add(&value, value, (uint64_t)(**p - '0')))
			return false;
	*ret_value = value;
	*ret_count = n;
	return n > 0;
}

/* NUMBER[.FRACTION] as thousandths in *ret_whole and *ret_milli; p is left at the unit. */
static bool take_number(const char **p, uint64_t *ret_whole, uint64_t *ret_milli)
{
	int n;

	*ret_milli = 0;
	if (!take_digits(p, ret_whole, &n))
		return false;
	if (**p == '.') {
		(*p)++;
		if (!take_digits(p, ret_milli, &n) || n > 3)
			return false;
		for (; n < 3; n++)
			*ret_milli *= 10;
	}
	if (**p == ' ')
		(*p)++;
	return true;
}

static const struct unit *find_unit(const struct unit *units, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(units[i].name, name) == 0)
			return &units[i];
	return NULL;
}

/* whole.milli * factor; the part below one is returned in *ret_rest thousandths. */
static bool scale(uint64_t whole, uint64_t milli, uint64_t factor, uint64_t *ret_value, uint64_t *ret_rest)
{
	uint64_t part = factor / 1000 * milli + factor % 1000 * milli / 1000; /* both terms stay below 2^64 */

	*ret_rest = factor % 1000 * milli % 1000;
	return !ptc_ckd_mul(ret_value, whole, factor) && !ptc_ckd_add(ret_value, *ret_value, part);
}

int ptc_units_parse_bytes(const char *text, uint64_t *ret_bytes, struct ptc_error *err)
{
	const char *p = text;
	const struct unit *u;
	uint64_t whole, milli, value, rest;

	if (strcmp(text, "0") == 0) {
		*ret_bytes = 0;
		return 0;
	}
	if (!take_number(&p, &whole, &milli) || !(u = find_unit(byte_units, PTC_ARRAY_LEN(byte_units), p)))
		return ptc_error_set(err, PTC_EINVAL,
				     "\"%.40s\" is not a size: write a number and a unit, such as 8GiB or 500MB", text);
	if (!scale(whole, milli, u->factor, &value, &rest))
		return ptc_error_set(err, PTC_EINVAL, "size \"%.40s\" is too large", text);
	*ret_bytes = value;
	return 0;
}

int ptc_units_parse_ms(const char *text, uint64_t *ret_ms, struct ptc_error *err)
{
	const char *p = text;
	const struct unit *u;
	uint64_t whole, milli, value, rest;

	if (strcmp(text, "0") == 0) {
		*ret_ms = 0;
		return 0;
	}
	if (!take_number(&p, &whole, &milli) || !(u = find_unit(time_units, PTC_ARRAY_LEN(time_units), p)))
		return ptc_error_set(
			err, PTC_EINVAL,
			"\"%.40s\" is not a duration: write a number and one of ms, s, m, h, d, such as 5s or 250ms",
			text);
	if (!scale(whole, milli, u->factor, &value, &rest))
		return ptc_error_set(err, PTC_EINVAL, "duration \"%.40s\" is too large", text);
	if (rest)
		return ptc_error_set(err, PTC_EINVAL, "duration \"%.40s\" is not a whole number of milliseconds", text);
	*ret_ms = value;
	return 0;
}

const char *ptc_units_format_bytes(uint64_t bytes, char ret_text[PTC_UNITS_MAX])
{
	size_t i = 5; /* B */
	double v;

	while (i > 0 && bytes >= byte_units[i - 1].factor)
		i--;
	v = (double)bytes / (double)byte_units[i].factor;
	if (i == 5)
		snprintf(ret_text, PTC_UNITS_MAX, "%" PRIu64 " B", bytes);
	else
		snprintf(ret_text, PTC_UNITS_MAX, "%.*f %s", v < 9.995 ? 2 : v < 99.95 ? 1 : 0, v, byte_units[i].name);
	return ret_text;
}

static const char *print_exact(const struct unit *units, size_t n, uint64_t value, char *ret_text)
{
	size_t i = 0;

	while (value && i + 1 < n && value % units[i].factor != 0)
		i++;
	if (value)
		snprintf(ret_text, PTC_UNITS_MAX, "%" PRIu64 "%s", value / units[i].factor, units[i].name);
	else
		snprintf(ret_text, PTC_UNITS_MAX, "0");
	return ret_text;
}

const char *ptc_units_print_bytes(uint64_t bytes, char ret_text[PTC_UNITS_MAX])
{
	return print_exact(byte_units, 6, bytes, ret_text);
}

const char *ptc_units_print_ms(uint64_t ms, char ret_text[PTC_UNITS_MAX])
{
	return print_exact(time_units, PTC_ARRAY_LEN(time_units), ms, ret_text);
}
