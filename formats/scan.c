/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: one pass over the bytes. Strings with escapes or other than
 * ASCII go through jansson, so that one place knows what is valid. */
#include "formats/scan.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/number/versions.h"
#include "formats/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int(ptc_scan_fail)(struct ptc_scan *s, int code, const char *fmt, ...)
{
	char text[PTC_ERROR_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return ptc_error_set(s->err, code, "%s: byte %td: %s", s->what, s->at - s->begin, text);
}

bool ptc_scan_is(struct ptc_scan *s, const char *text)
{
	size_t n = strlen(text);

	if ((size_t)(s->end - s->at) < n || memcmp(s->at, text, n))
		return false;
	s->at += n;
	return true;
}

int ptc_scan_text(struct ptc_scan *s, const char *text)
{
	return ptc_scan_is(s, text) ? 0 : ptc_scan_fail(s, PTC_EINVAL, "%s is expected here", text);
}

static int scan_end(struct ptc_scan *s)
{
	return s->at == s->end ? 0 : ptc_scan_fail(s, PTC_EINVAL, "the end of the document is expected here");
}

int ptc_scan_number(struct ptc_scan *s, uint64_t max, uint64_t *ret)
{
	const char *from = s->at;
	uint64_t n = 0;

	for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++)
		if (ptc_ckd_mul(&n, n, 10u) || ptc_ckd_add(&n, n, (uint64_t)(*s->at - '0')) || n > max)
			return ptc_scan_fail(s, PTC_ELIMIT, "the number is above %llu", (unsigned long long)max);
	if (s->at == from || (*from == '0' && s->at - from > 1))
		return ptc_scan_fail(s, PTC_EINVAL, "a number is expected here");
	*ret = n;
	return 0;
}

/* The string is written as we would write it. */
static bool is_canonical(const char *text, const char *literal, size_t len)
{
	struct ptc_buf b = PTC_BUF_INIT;
	bool same;

	ptc_json_put_string(&b, text);
	same = !ptc_buf_failed(&b) && b.len == len && !memcmp(b.data, literal, len);
	ptc_buf_done(&b);
	return same;
}

static int decode_string(struct ptc_scan *s, const char *literal, size_t len, char **ret)
{
	json_t *json;
	int rc = ptc_json_load(s->what, literal, len, &json, s->err);

	if (rc)
		return rc;
	*ret = ptc_strdup(json_string_value(json));
	json_decref(json);
	if (!*ret)
		return ptc_error_set(s->err, PTC_ENOMEM, "%s: out of memory", s->what);
	if (is_canonical(*ret, literal, len))
		return 0;
	ptc_free(*ret);
	*ret = NULL;
	return ptc_scan_fail(s, PTC_EINVAL, "the string is not in canonical form");
}

int ptc_scan_string(struct ptc_scan *s, size_t max, char **ret)
{
	const char *from = s->at;
	bool plain = true;
	char *text = NULL;
	int rc = ptc_scan_text(s, "\"");

	if (rc)
		return rc;
	for (; s->at < s->end && *s->at != '"'; s->at++) {
		plain = plain && *s->at >= 0x20 && *s->at < 0x7f && *s->at != '\\';
		if (*s->at == '\\' && s->at + 1 < s->end)
			s->at++;
		if ((size_t)(s->at - from) > 6 * max + 1)
			return ptc_scan_fail(s, PTC_ELIMIT, "a string of more than %zu bytes", max);
	}
	rc = ptc_scan_text(s, "\"");
	if (rc)
		return rc;
	if (plain) {
		text = ptc_strndup(from + 1, (size_t)(s->at - from) - 2);
		rc = text ? 0 : ptc_error_set(s->err, PTC_ENOMEM, "%s: out of memory", s->what);
	} else {
		rc = decode_string(s, from, (size_t)(s->at - from), &text);
	}
	if (!rc && strlen(text) > max) {
		ptc_free(text);
		return ptc_scan_fail(s, PTC_ELIMIT, "a string of more than %zu bytes", max);
	}
	if (!rc)
		*ret = text;
	return rc;
}

int ptc_scan_version(struct ptc_scan *s, uint64_t oldest, uint64_t ours, uint64_t *ret_version)
{
	int rc = ptc_scan_text(s, "{\"version\":");

	if (rc == 0)
		rc = ptc_scan_number(s, UINT32_MAX, ret_version);
	if (!rc && !ptc_version_reads(*ret_version, oldest, ours))
		rc = ptc_error_set(
			s->err, PTC_EVERSION,
			"%s: version %llu; this ptc %s reads %llu to %llu: use a version next to the one that "
			"wrote it",
			s->what, (unsigned long long)*ret_version, PTC_VERSION, (unsigned long long)oldest,
			(unsigned long long)ours + 1);
	return rc;
}

/* After the comma behind the last member that we know. */
static int pass_over(struct ptc_scan *s)
{
	struct ptc_buf b = PTC_BUF_INIT;
	json_t *rest = NULL;
	int rc;

	ptc_buf_puts(&b, "{");
	ptc_buf_append(&b, s->at, (size_t)(s->end - s->at));
	rc = ptc_buf_failed(&b) ? ptc_error_set(s->err, PTC_ENOMEM, "%s: out of memory", s->what)
				: ptc_json_load(s->what, b.data, b.len, &rest, s->err);
	if (!rc)
		rc = ptc_json_needs(s->what, rest, s->err);
	json_decref(rest);
	ptc_buf_done(&b);
	s->at = s->end;
	return rc;
}

int ptc_scan_close(struct ptc_scan *s, bool later)
{
	int rc;

	if (later && ptc_scan_is(s, ","))
		return pass_over(s);
	rc = ptc_scan_text(s, "}");
	return rc ? rc : scan_end(s);
}
