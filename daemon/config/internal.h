/* SPDX-License-Identifier: Apache-2.0 */
/* Between config.c and config_check.c. */
#pragma once

#include "daemon/config/daemon_config.h"

struct ptc_daemon_address {
	bool local;     /* "unix:PATH" */
	bool loopback;  /* of this machine only; unix counts */
	bool wildcard;  /* 0.0.0.0 or [::]: fine to listen on, not to connect to */
	const char *at; /* borrowed: PATH or HOST:PORT */
};
int ptc_daemon_address_parse(const char *text, struct ptc_daemon_address *ret_address, struct ptc_error *err);

/* "FILE:LINE:COL: KEY: text", or without line where the key is not in the file. */
int ptc_daemon_config_error(const struct ptc_daemon_config *cfg, const char *name, struct ptc_error *err, int code,
			    const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Is the key in the file? */
bool ptc_daemon_config_given(const struct ptc_daemon_config *cfg, const char *name);
