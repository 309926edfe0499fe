/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include "base/alloc.h"
#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
	int code;
	const char *name;
} names[] = {
	{ PTC_OK, "ok" },
	{ PTC_EINVAL, "invalid" },
	{ PTC_ENOTFOUND, "not-found" },
	{ PTC_EEXIST, "exists" },
	{ PTC_ELIMIT, "limit" },
	{ PTC_EVERSION, "version" },
	{ PTC_EPERM, "permission" },
	{ PTC_ESTATE, "state" },
	{ PTC_EFINISHED, "finished" },
	{ PTC_ELAYOUT, "layout" },
	{ PTC_EDIGEST, "digest" },
	{ PTC_ENOSPC, "no-space" },
	{ PTC_ECORRUPT, "corrupt" },
	{ PTC_ELOST, "lost" },
	{ PTC_EIO, "io" },
	{ PTC_EPEER, "peer" },
	{ PTC_ETIMEOUT, "timeout" },
	{ PTC_ECANCELED, "canceled" },
	{ PTC_EFENCED, "fenced" },
	{ PTC_ECOORD, "coordinator" },
	{ PTC_ECONFLICT, "conflict" },
	{ PTC_ENODEVICES, "no-devices" },
	{ PTC_ENOMEM, "no-memory" },
	{ PTC_EINTERNAL, "internal" },
};

const char *ptc_status_name(int code)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(names); i++)
		if (names[i].code == code)
			return names[i].name;
	return "unknown";
}

int ptc_status_from_wire(int code)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(names); i++)
		if (names[i].code == code)
			return code;
	return PTC_EINTERNAL;
}

int(ptc_error_vset)(struct ptc_error *err, int code, const char *fmt, va_list ap)
{
	if (err) {
		err->code = code;
		vsnprintf(err->text, sizeof err->text, fmt, ap);
	}
	return code;
}

int(ptc_error_set)(struct ptc_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	ptc_error_vset(err, code, fmt, ap);
	va_end(ap);
	return code;
}

static int code_of_errno(int errnum)
{
	switch (errnum) {
	case ENOSPC:
	case EDQUOT:
		return PTC_ENOSPC;
	case ENOMEM:
		return PTC_ENOMEM;
	case EACCES:
	case EPERM:
		return PTC_EPERM;
	case ENOENT:
		return PTC_ENOTFOUND;
	case EEXIST:
		return PTC_EEXIST;
	default:
		return PTC_EIO;
	}
}

int(ptc_error_errno)(struct ptc_error *err, int errnum, const char *fmt, ...)
{
	va_list ap;
	size_t len;
	int code = code_of_errno(errnum);

	if (!err)
		return code;
	va_start(ap, fmt);
	ptc_error_vset(err, code, fmt, ap);
	va_end(ap);
	len = strlen(err->text);
	snprintf(err->text + len, sizeof err->text - len, ": %s", strerror(errnum));
	return code;
}

int(ptc_error_wrap)(struct ptc_error *err, const char *fmt, ...)
{
	char context[PTC_ERROR_MAX];
	char text[PTC_ERROR_MAX];
	va_list ap;

	if (!err)
		return PTC_EINTERNAL;
	va_start(ap, fmt);
	vsnprintf(context, sizeof context, fmt, ap);
	va_end(ap);
	memcpy(text, err->text, sizeof text);
	snprintf(err->text, sizeof err->text, "%.*s: %.*s", PTC_ERROR_MAX / 2 - 2, context, PTC_ERROR_MAX / 2 - 2,
		 text);
	return err->code;
}

int(ptc_nomem)(struct ptc_error *err)
{
	struct ptc_alloc_refusal r;

	if (!ptc_alloc_refused(&r)) /* or a callee has said it already */
		return err && err->code == PTC_ENOMEM && strstr(err->text, "more bytes are needed")
			       ? PTC_ENOMEM
			       : ptc_error_set(err, PTC_ENOMEM, "out of memory");
	return ptc_error_set(err, PTC_ENOMEM, "out of memory: %llu more bytes are needed, %llu of %llu are free",
			     (unsigned long long)r.size, (unsigned long long)r.free, (unsigned long long)r.limit);
}
