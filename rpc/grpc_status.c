/* SPDX-License-Identifier: Apache-2.0 */
/* Turns our status codes into the core's and back, and makes error texts of calls.
 *
 * Happy path: a ptc peer's code comes in trailing metadata "ptc-status" as
 * decimal text and its error line as the status message; both are passed on.
 *
 * Failure modes: a status without that key comes from the core or a foreign
 * peer and is mapped by meaning, with the target named. Text from the wire is
 * cut to one line of printable bytes. */
#include "rpc/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	int code;
	grpc_status_code core;
} to_core[] = {
	{ PTC_OK, GRPC_STATUS_OK },
	{ PTC_EINVAL, GRPC_STATUS_INVALID_ARGUMENT },
	{ PTC_ENOTFOUND, GRPC_STATUS_NOT_FOUND },
	{ PTC_EEXIST, GRPC_STATUS_ALREADY_EXISTS },
	{ PTC_ELIMIT, GRPC_STATUS_RESOURCE_EXHAUSTED },
	{ PTC_EVERSION, GRPC_STATUS_UNIMPLEMENTED },
	{ PTC_EPERM, GRPC_STATUS_PERMISSION_DENIED },
	{ PTC_ESTATE, GRPC_STATUS_FAILED_PRECONDITION },
	{ PTC_EFINISHED, GRPC_STATUS_FAILED_PRECONDITION },
	{ PTC_ELAYOUT, GRPC_STATUS_INVALID_ARGUMENT },
	{ PTC_EDIGEST, GRPC_STATUS_DATA_LOSS },
	{ PTC_ENOSPC, GRPC_STATUS_RESOURCE_EXHAUSTED },
	{ PTC_ECORRUPT, GRPC_STATUS_DATA_LOSS },
	{ PTC_ELOST, GRPC_STATUS_DATA_LOSS },
	{ PTC_EIO, GRPC_STATUS_INTERNAL },
	{ PTC_EPEER, GRPC_STATUS_UNAVAILABLE },
	{ PTC_ETIMEOUT, GRPC_STATUS_DEADLINE_EXCEEDED },
	{ PTC_ECANCELED, GRPC_STATUS_CANCELLED },
	{ PTC_EFENCED, GRPC_STATUS_FAILED_PRECONDITION },
	{ PTC_ECOORD, GRPC_STATUS_UNAVAILABLE },
	{ PTC_ECONFLICT, GRPC_STATUS_FAILED_PRECONDITION },
	{ PTC_ENODEVICES, GRPC_STATUS_FAILED_PRECONDITION },
	{ PTC_ENOMEM, GRPC_STATUS_RESOURCE_EXHAUSTED },
	{ PTC_EINTERNAL, GRPC_STATUS_INTERNAL },
};

grpc_status_code ptc_rpc_status_to_core(int code, enum ptc_role role)
{
	if (code == PTC_EPERM && role == PTC_ROLE_NONE)
		return GRPC_STATUS_UNAUTHENTICATED;
	for (size_t i = 0; i < PTC_ARRAY_LEN(to_core); i++)
		if (to_core[i].code == code)
			return to_core[i].core;
	return GRPC_STATUS_UNKNOWN;
}

static int from_core(grpc_status_code code)
{
	switch (code) {
	case GRPC_STATUS_INVALID_ARGUMENT:
	case GRPC_STATUS_OUT_OF_RANGE:
		return PTC_EINVAL;
	case GRPC_STATUS_NOT_FOUND:
		return PTC_ENOTFOUND;
	case GRPC_STATUS_ALREADY_EXISTS:
		return PTC_EEXIST;
	case GRPC_STATUS_RESOURCE_EXHAUSTED:
		return PTC_ELIMIT;
	case GRPC_STATUS_UNIMPLEMENTED:
		return PTC_EVERSION;
	case GRPC_STATUS_PERMISSION_DENIED:
	case GRPC_STATUS_UNAUTHENTICATED:
		return PTC_EPERM;
	case GRPC_STATUS_FAILED_PRECONDITION:
		return PTC_ESTATE;
	case GRPC_STATUS_ABORTED:
		return PTC_ECONFLICT;
	case GRPC_STATUS_DATA_LOSS:
		return PTC_ECORRUPT;
	case GRPC_STATUS_DEADLINE_EXCEEDED:
		return PTC_ETIMEOUT;
	case GRPC_STATUS_CANCELLED:
		return PTC_ECANCELED;
	default: /* UNAVAILABLE, UNKNOWN, INTERNAL and numbers nobody defined */
		return PTC_EPEER;
	}
}

static bool peer_code(const grpc_metadata_array *trailing, int *ret_code)
{
	for (size_t i = 0; trailing && i < trailing->count; i++) {
		const grpc_metadata *m = &trailing->metadata[i];
		char text[16];
		size_t n = GRPC_SLICE_LENGTH(m->value);

		if (grpc_slice_str_cmp(m->key, PTC_RPC_STATUS_KEY) != 0 || n == 0 || n >= sizeof text)
			continue;
		memcpy(text, GRPC_SLICE_START_PTR(m->value), n);
		text[n] = '\0';
		*ret_code = ptc_status_from_wire(atoi(text));
		if (*ret_code == 0) /* a failure that calls itself success */
			*ret_code = PTC_EPEER;
		return true;
	}
	return false;
}

static void copy_line(char *dst, size_t cap, grpc_slice s)
{
	size_t n = PTC_MIN(GRPC_SLICE_LENGTH(s), cap - 1);
	const uint8_t *p = GRPC_SLICE_START_PTR(s);

	for (size_t i = 0; i < n; i++)
		dst[i] = p[i] < 0x20 || p[i] == 0x7f ? ' ' : (char)p[i];
	dst[n] = '\0';
}

/* A stream that the core ended for its quota, as this side and as the other side tell it. */
static bool no_room(grpc_status_code code, const char *text)
{
	return code == GRPC_STATUS_RESOURCE_EXHAUSTED &&
	       (strstr(text, "Buffers full") || strstr(text, "RST_STREAM with error code 11"));
}

/* "failed to connect to all addresses; last error: UNKNOWN: unix:/PATH: No such file or directory" and the like, as a
 * person says it; *text then is the reason alone. false: it is not about connecting. */
static bool not_reached(grpc_status_code code, const char **text, const char *target)
{
	static const char head[] = "failed to connect to all addresses; last error: ";
	const char *at = code == GRPC_STATUS_UNAVAILABLE ? strstr(*text, head) : NULL, *p;

	if (!at)
		return false;
	at += strlen(head);
	p = strstr(at, ": "); /* the core's name of the status */
	if (p && strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == (size_t)(p - at))
		at = p + 2;
	p = strstr(at, target);
	if (p && strncmp(p + strlen(target), ": ", 2) == 0)
		at = p + strlen(target) + 2;
	*text = at;
	return true;
}

bool ptc_rpc_status_closed_early(grpc_status_code code, grpc_slice details, const char *target)
{
	char text[PTC_ERROR_MAX];
	const char *reason = text;

	copy_line(text, sizeof text, details);
	return not_reached(code, &reason, target) &&
	       (strstr(reason, "recvmsg:") || strstr(reason, "Socket closed") || strstr(reason, "unavailable"));
}

static int connect_error(const char *reason, const char *target, struct ptc_error *err)
{
	bool local = strncmp(target, "unix:", 5) == 0;
	const char *name = target + (local ? 5 : 0);

	if (local && (strcmp(reason, "No such file or directory") == 0 || strcmp(reason, "Connection refused") == 0))
		return ptc_error_set(err, PTC_EPEER, "nobody listens at %s (%s); is ptcd running?", name, reason);
	if (local && strcmp(reason, "Permission denied") == 0)
		return ptc_error_set(err, PTC_EPEER, "%s: permission denied; that socket is not for this user", name);
	/* The kernel's queue of a listener that accepts nothing is full; the core then takes the socket for connected.
	 */
	if (local && (strstr(reason, "recvmsg:") || strstr(reason, "Socket closed") || strstr(reason, "unavailable")))
		return ptc_error_set(err, PTC_EPEER,
				     "%s: connection closed at once (%s): too many connections there; try again", name,
				     reason);
	return ptc_error_set(err, PTC_EPEER, "peer %s: cannot connect: %s", name, reason);
}

int ptc_rpc_status_from_core(grpc_status_code code, const grpc_metadata_array *trailing, grpc_slice details,
			     const char *target, struct ptc_error *err)
{
	char text[PTC_ERROR_MAX];
	const char *reason = text;
	int rc;

	if (code == GRPC_STATUS_OK)
		return 0;
	copy_line(text, sizeof text, details);
	if (peer_code(trailing, &rc))
		return ptc_error_set(err, rc, "%s", text);
	if (not_reached(code, &reason, target))
		return connect_error(reason, target, err);
	if (no_room(code, text))
		return ptc_error_set(err, PTC_ELIMIT,
				     "peer %s: its memory for transfers is in use; try fewer at a time", target);
	return ptc_error_set(err, from_core(code), "peer %s: %s", target,
			     *text ? text : "call failed without a reason");
}

int ptc_rpc_status_from_call_error(grpc_call_error e, const char *what, struct ptc_error *err)
{
	if (e == GRPC_CALL_ERROR_INVALID_METADATA)
		return ptc_error_set(err, PTC_EINVAL, "%s: metadata key or value is not legal", what);
	if (e == GRPC_CALL_ERROR_ALREADY_INVOKED || e == GRPC_CALL_ERROR_TOO_MANY_OPERATIONS)
		return ptc_error_set(err, PTC_ESTATE, "%s: the sending side is already closed", what);
	return ptc_error_set(err, PTC_EINTERNAL, "%s: %s", what, grpc_call_error_to_string(e));
}
