/* SPDX-License-Identifier: Apache-2.0 */
/* Between daemon_config.c, daemon_config_check.c and daemon_address.c. */
#pragma once

#include "daemon/config/daemon_config.h"

#include <sys/un.h>

/* Bytes of a socket's path, without the NUL. */
#define PTC_SOCKET_PATH_MAX (sizeof((struct sockaddr_un *)0)->sun_path - 1)

struct ptc_daemon_address {
	bool local;     /* "unix:PATH" */
	bool loopback;  /* of this machine only; unix counts */
	bool wildcard;  /* 0.0.0.0 or [::]: fine to listen on, not to connect to */
	const char *at; /* borrowed: PATH or HOST:PORT */
};
/* PTC_EINVAL: text is neither HOST:PORT nor unix:PATH. */
int ptc_daemon_address_parse(const char *text, struct ptc_daemon_address *ret_address, struct ptc_error *err);

/* "FILE:LINE:COL: KEY: text", or without line where the key is not in the file. */
int ptc_daemon_config_error(const struct ptc_daemon_config *cfg, const char *name, struct ptc_error *err, int code,
			    const char *fmt, ...) __attribute__((format(printf, 5, 6)));
#ifdef __clang_analyzer__
#define ptc_daemon_config_error(...) PTC_NEVER_0(ptc_daemon_config_error(__VA_ARGS__))
#endif

/* Is the key in the file? */
bool ptc_daemon_config_given(const struct ptc_daemon_config *cfg, const char *name);
