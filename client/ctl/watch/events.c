/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl events: one line per event, so that following works in both formats; the end of
 * a failed rank's log follows its event indented. */
#include "client/ctl/watch/watch.h"

#include "client/ctl/show/show.h"
#include "formats/json.h"

#include <string.h>
#include <time.h>

static const struct ctl_option options[] = {
	{ "follow", NULL, "also show new events as they come" },
	{ "after", "NUMBER", "only events after the event of this number" },
	{ "limit", "N", "at most this many events" },
};

/* "2026-01-02T03:04:05Z" for the key of that meaning; nothing where it is absent. */
static void put_time(json_t *event)
{
	json_t *ms = json_object_get(event, "time_ms");
	time_t t = (time_t)(json_integer_value(ms) / 1000);
	char text[32];
	struct tm tm;

	if (json_is_integer(ms) && gmtime_r(&t, &tm) && strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm))
		printf("%s  ", text);
}

static void put_value(const char *key, json_t *v)
{
	const char *s = json_string_value(v);
	char *text = s ? NULL : ptc_json_text(v);

	printf("%s%s", key ? key : "", key ? "=" : "");
	for (const char *p = s ? s : text ? text : "-"; *p; p++)
		putchar(*p == '\t' ? ' ' : (unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p);
	ptc_admin_free(text);
}

/* One line, then what follows it (the end of a failed rank's log) indented below. */
static void put_event(json_t *event)
{
	const char *text = json_string_value(json_object_get(event, "text")), *rest = text ? strchr(text, '\n') : NULL;
	json_t *first = json_stringn(text ? text : "", rest ? (size_t)(rest - text) : text ? strlen(text) : 0);

	put_time(event);
	put_value(NULL, json_object_get(event, "kind"));
	fputs("  ", stdout);
	put_value(NULL, first);
	fputs("  ", stdout);
	put_value("node", json_object_get(event, "node"));
	putchar('\n');
	json_decref(first);
	while (rest && *++rest) {
		size_t n = strcspn(rest, "\n");
		json_t *line = json_stringn(rest, n);

		fputs("    ", stdout);
		put_value(NULL, line);
		putchar('\n');
		json_decref(line);
		rest = rest[n] ? rest + n : NULL;
	}
}

static int on_event(void *arg, const char *text)
{
	struct ctl *c = arg;
	json_t *event = NULL;

	if (c->json || ptc_json_load("event", text, strlen(text), &event, NULL)) {
		puts(text);
	} else {
		if (!c->noted_as_of)
			ctl_note_as_of(c, (int64_t)ptc_json_count(event, "as_of_ms"));
		c->noted_as_of = true;
		put_event(event);
	}
	json_decref(event);
	return ctl_flush(c);
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *after = ctl_option(c, "after"), *limit = ctl_option(c, "limit");
	uint64_t first = 0, most = 0;
	int rc = 0;

	if (after)
		rc = ctl_number("--after", after, 0, UINT64_MAX, &first, err);
	if (!rc && limit)
		rc = ctl_number("--limit", limit, 1, UINT32_MAX, &most, err);
	if (!rc)
		rc = ctl_connect(c, err);
	return rc ? rc
		  : ptc_admin_events(c->admin, c->args[0], ctl_option(c, "follow") != NULL, first, (uint32_t)most,
				     on_event, c, err);
}

const struct ctl_verb ctl_events = {
	.name = "events",
	.args = "[JOB]",
	.about = "Show what happened to a job, one line per event",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.job_missing = ctl_job_missing,
	.run = run,
};
