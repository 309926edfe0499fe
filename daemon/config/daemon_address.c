/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses as the configuration writes them: HOST:PORT or unix:PATH. Failure modes: PTC_EINVAL with what to write. */
#include "daemon/config/internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool is_host(const char *s, size_t len)
{
	if (len > 2 && s[0] == '[' && s[len - 1] == ']')
		return strspn(s + 1, "0123456789abcdefABCDEF:.") == len - 2;
	if (len == 0 || len > 253 || s[0] == '-' || s[0] == '.')
		return false;
	for (size_t i = 0; i < len; i++)
		if (!isalnum((unsigned char)s[i]) && s[i] != '-' && s[i] != '.')
			return false;
	return true;
}

static int parse_tcp(const char *text, struct ptc_daemon_address *ret, struct ptc_error *err)
{
	const char *colon = strrchr(text, ':');
	size_t host = colon ? (size_t)(colon - text) : 0;
	long port = 0;

	if (colon && strlen(colon + 1) <= 5 && strspn(colon + 1, "0123456789") == strlen(colon + 1))
		port = strtol(colon + 1, NULL, 10);
	if (!is_host(text, host) || port < 1 || port > 65535)
		return ptc_error_set(err, PTC_EINVAL,
				     "\"%.200s\": write HOST:PORT with a port of 1 to 65535 ([ADDRESS]:PORT for IPv6), "
				     "or unix:PATH",
				     text);
	ret->wildcard = strncmp(text, "0.0.0.0:", 8) == 0 || strncmp(text, "[::]:", 5) == 0;
	ret->loopback = strncmp(text, "127.", 4) == 0 || strncmp(text, "[::1]:", 6) == 0 ||
			strncmp(text, "localhost:", 10) == 0;
	return 0;
}

int ptc_daemon_address_parse(const char *text, struct ptc_daemon_address *ret_address, struct ptc_error *err)
{
	struct ptc_daemon_address a = { .local = strncmp(text, "unix:", 5) == 0, .at = text };
	int rc = 0;

	if (a.local) {
		a.at = text + 5;
		a.loopback = true;
		if (a.at[0] != '/' || strstr(a.at, "/../") || strlen(a.at) > PTC_SOCKET_PATH_MAX)
			rc = ptc_error_set(err, PTC_EINVAL,
					   "\"%.200s\": write unix: and an absolute path of at most %zu bytes", text,
					   PTC_SOCKET_PATH_MAX);
	} else {
		rc = parse_tcp(text, &a, err);
	}
	if (rc == 0)
		*ret_address = a;
	return rc;
}
