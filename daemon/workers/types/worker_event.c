/* SPDX-License-Identifier: Apache-2.0 */
/* The text of worker events in one line. Happy path: what happened, and the last line of the log after it.
 * No failure modes: a text that is too long is cut. */
#include "daemon/workers/types/worker_event.h"

#include <stdio.h>
#include <string.h>

const char *ptc_worker_text_line(const char *text, char *buf, size_t size)
{
	const char *ends = strstr(text, PTC_WORKER_LOG_ENDS), *last, *end;

	if (!ends) {
		snprintf(buf, size, "%.*s", (int)strcspn(text, "\n"), text);
		return buf;
	}
	end = text + strlen(text);
	while (end > ends + strlen(PTC_WORKER_LOG_ENDS) && strchr(" \t\r\n", end[-1]))
		end--;
	for (last = end; last[-1] != '\n';)
		last--;
	if (last == end) /* nothing but blanks */
		snprintf(buf, size, "%.*s", (int)(ends - text), text);
	else
		snprintf(buf, size, "%.*s: %.*s", (int)(ends - text), text, (int)(end - last), last);
	return buf;
}
