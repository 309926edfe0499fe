/* SPDX-License-Identifier: Apache-2.0 */
/* Options of ptcctl that were given, and the values of some, such as durations. Failure: CTL_USAGE with one line that
 * names the option. */
#include "client/ctl/line/ctl.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

int(ctl_usage)(struct ptc_error *err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	ptc_error_vset(err, PTC_EINVAL, fmt, ap);
	va_end(ap);
	return CTL_USAGE;
}

const char *ctl_option_next(const struct ctl *c, const char *name, size_t *at)
{
	while (*at < c->ngiven) {
		size_t i = (*at)++;

		if (!strcmp(c->given[i].option->name, name))
			return c->given[i].value;
	}
	return NULL;
}

const char *ctl_option(const struct ctl *c, const char *name)
{
	const char *value, *last = NULL;
	size_t at = 0;

	while ((value = ctl_option_next(c, name, &at)))
		last = value;
	return last;
}

/* Digits at the start of text; *ret_end points behind them. */
static bool digits(const char *text, uint64_t *ret, const char **ret_end)
{
	uint64_t v = 0;
	const char *p = text;

	for (; *p >= '0' && *p <= '9'; p++)
		if (ptc_ckd_mul(&v, v, 10u) || ptc_ckd_add(&v, v, (uint64_t)(*p - '0')))
			return false;
	*ret = v;
	*ret_end = p;
	return p > text;
}

int ctl_duration(const char *label, const char *text, int *ret_ms, struct ptc_error *err)
{
	static const struct {
		const char *unit;
		uint64_t ms;
	} units[] = { { "ms", 1 }, { "s", 1000 }, { "m", 60000 }, { "h", 3600000 } };
	const char *unit = text;
	uint64_t v = 0, ms;

	if (!digits(text, &v, &unit))
		return ctl_usage(err, "%s is a duration such as 500ms, 30s, 5m or 2h, not \"%.40s\"", label, text);
	if (!*unit)
		return ctl_usage(err, "%s needs a unit: %.40sms, %.40ss, %.40sm or %.40sh", label, text, text, text,
				 text);
	for (size_t i = 0; i < PTC_ARRAY_LEN(units); i++) {
		if (strcmp(units[i].unit, unit))
			continue;
		if (ptc_ckd_mul(&ms, v, units[i].ms) || !ms || ms > INT32_MAX)
			return ctl_usage(err, "%s must be above 0 and less than 24 days", label);
		*ret_ms = (int)ms;
		return 0;
	}
	return ctl_usage(err, "%s: unknown unit \"%.40s\" (ms, s, m, h)", label, unit);
}

int ctl_number(const char *label, const char *text, uint64_t min, uint64_t max, uint64_t *ret, struct ptc_error *err)
{
	const char *end = text;
	uint64_t v = 0;

	if (!digits(text, &v, &end) || *end || v < min || v > max)
		return ctl_usage(err, "%s is a number in %" PRIu64 "..%" PRIu64 ", not \"%.40s\"", label, min, max,
				 text);
	*ret = v;
	return 0;
}
