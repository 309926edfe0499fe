/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048

static atomic_int current = -1;

static const struct {
	const char *name;
	int syslog; /* sd-daemon priority */
} levels[] = { { "error", 3 }, { "warn", 4 }, { "info", 6 }, { "debug", 7 } };

static int level_now(void)
{
	int level = atomic_load_explicit(&current, memory_order_relaxed);
	const char *env;

	if (level >= 0)
		return level;
	level = PTC_LOG_INFO;
	env = getenv("PTC_LOG");
	for (int i = 0; env && i <= PTC_LOG_DEBUG; i++)
		if (strcmp(env, levels[i].name) == 0)
			level = i;
	atomic_store(&current, level);
	return level;
}

void ptc_log_level_set(enum ptc_log_level level)
{
	atomic_store(&current, getenv("PTC_LOG") ? level_now() : (int)level);
}

bool ptc_log_enabled(enum ptc_log_level level)
{
	return (int)level <= level_now();
}

/* The journal stamps lines itself; a plain file needs the time (UTC). */
static int stamp(char *line, size_t size, enum ptc_log_level level, const char *group)
{
	struct timespec now;
	struct tm tm;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	return snprintf(line, size, "%02d:%02d:%02d.%03ld %s %s: ", tm.tm_hour, tm.tm_min, tm.tm_sec,
			now.tv_nsec / 1000000, levels[level].name, group);
}

void ptc_log(enum ptc_log_level level, const char *group, const char *fmt, ...)
{
	char line[LINE_MAX_BYTES];
	va_list ap;
	int n, m;

	if (!ptc_log_enabled(level))
		return;
	if (getenv("JOURNAL_STREAM"))
		n = snprintf(line, sizeof line, "<%d>%s: ", levels[level].syslog, group);
	else
		n = stamp(line, sizeof line, level, group);
	va_start(ap, fmt);
	m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
	va_end(ap);
	n += m < 0 ? 0 : m;
	if (n > (int)sizeof line - 2)
		n = (int)sizeof line - 2;
	line[n++] = '\n';
	/* a log line that cannot be written has nowhere else to go */
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		return;
}
