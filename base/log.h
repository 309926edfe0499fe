/* SPDX-License-Identifier: Apache-2.0 */
/* Logging, one line at a time: lower case, key facts in the text, a group tag. Each line goes to stderr as
 * "HH:MM:SS.mmm <level> <group>: text", in UTC. If JOURNAL_STREAM is set, a line begins with sd-daemon's "<N>" instead
 * of the time.
 *
 * Threads: any; a line is one write. Libraries do not log above debug: an error is logged once, where code decides what
 * the error means. */
#pragma once

#include <stdbool.h>

enum ptc_log_level { PTC_LOG_ERROR, PTC_LOG_WARN, PTC_LOG_INFO, PTC_LOG_DEBUG };

void ptc_log_level_set(enum ptc_log_level level); /* default: info; PTC_LOG=debug in the environment overrides it */
bool ptc_log_enabled(enum ptc_log_level level);
void ptc_log(enum ptc_log_level level, const char *group, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define ptc_error_log(group, ...) ptc_log(PTC_LOG_ERROR, group, __VA_ARGS__)
#define ptc_warn(group, ...)      ptc_log(PTC_LOG_WARN, group, __VA_ARGS__)
#define ptc_info(group, ...)      ptc_log(PTC_LOG_INFO, group, __VA_ARGS__)
#define ptc_debug(group, ...)                                                                                          \
	do {                                                                                                           \
		if (ptc_log_enabled(PTC_LOG_DEBUG))                                                                    \
			ptc_log(PTC_LOG_DEBUG, group, __VA_ARGS__);                                                    \
	} while (0)
