/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl report: a page about one job: its generations over time, how long
 * training stood still and for what, what moved between which nodes, and where
 * ranks were before and after. Made from the job's events and its status.
 *
 * Happy path: everything is read, the page is composed in memory and replaces
 * the file at once. One HTML file without scripts or anything from elsewhere.
 *
 * Failure modes: those of asking a daemon; the file cannot be written. Events that were dropped as too old are not on
 * the page; the page says from which time on it has events. */
#include "client/ctl/watch/watch.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "client/ctl/show/show.h"
#include "formats/json.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#define WIDTH        900
#define LEFT         230 /* of bars: their labels stand there */
#define SWITCHES_MAX 100 /* the newest; more would be a page that nobody reads */

static const struct ctl_option options[] = {
	{ "output", "FILE", "the page, an .html file; required", 'o' },
};

static const struct {
	const char *key, *name, *colour;
} parts[] = {
	{ "stop_ms", "wait for the boundary", "#54aeff" },
	{ "copy_ms", "copy out", "#0969da" },
	{ "commit_ms", "commit", "#8250df" },
	{ "end_ms", "end of old ranks", "#bf8700" },
	{ "build_ms", "start and build", "#2da44e" },
	{ "move_ms", "move", "#1b7c83" },
	{ "restore_ms", "restore", "#cf222e" },
};

struct page {
	struct ctl *c;
	struct ptc_buf b;
	json_t *events, *switches; /* arrays; switches: events with a member `switch`, the newest SWITCHES_MAX */
	json_t *job;               /* its row of status; borrowed from doc */
	json_t *doc;
};

static const char *string(const json_t *object, const char *key)
{
	const char *s = json_string_value(json_object_get(object, key));

	return s ? s : "";
}

static int64_t time_ms(const json_t *event)
{
	return json_integer_value(json_object_get(event, "time_ms"));
}

static void put_time(struct ptc_buf *b, int64_t ms)
{
	time_t t = (time_t)(ms / 1000);
	char text[32];
	struct tm tm;

	if (gmtime_r(&t, &tm) && strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm))
		ptc_buf_puts(b, text);
}

/* look: "start" or "middle", or "on", which starts there on a coloured bar. */
static void put_label(struct ptc_buf *b, double x, int y, const char *look, const char *text)
{
	ptc_buf_printf(b, "<text x=\"%.1f\" y=\"%d\" class=\"%s\">", x, y, look);
	ctl_put_escaped(b, text);
	ptc_buf_puts(b, "</text>");
}

static void put_bytes_cell(struct ptc_buf *b, const json_t *object, const char *key)
{
	char text[32];

	ptc_buf_printf(b, "<td>%s</td>",
		       json_is_integer(json_object_get(object, key))
			       ? ctl_bytes(ptc_json_count(object, key), text, sizeof(text))
			       : "");
}

/* "resize tp=2 → tp=4", "snapshot at tp=2" */
static void put_what(struct ptc_buf *b, const json_t *sw)
{
	ctl_put_escaped(b, string(sw, "kind"));
	ptc_buf_puts(b, " ");
	ctl_put_escaped(b, string(sw, "from"));
	if (strcmp(string(sw, "to"), string(sw, "from")) != 0) {
		ptc_buf_puts(b, " → ");
		ctl_put_escaped(b, string(sw, "to"));
	}
}

/* ---- generations over time ------------------------------------------------------------- */

/* The time in which the page's events lie. */
static void span(const struct page *p, int64_t *ret_first, int64_t *ret_last)
{
	size_t n = json_array_size(p->events);

	*ret_first = n ? time_ms(json_array_get(p->events, 0)) : 0;
	*ret_last = n ? time_ms(json_array_get(p->events, n - 1)) : 0;
	if (*ret_last <= *ret_first)
		*ret_last = *ret_first + 1;
}

static bool begins_generation(const json_t *sw)
{
	const char *kind = string(sw, "kind");

	return !strcmp(kind, "import") || !strcmp(kind, "run") || !strcmp(kind, "resize");
}

static void put_generation(struct page *p, const json_t *sw, double x, double end, unsigned row)
{
	static const char *const colours[] = { "#0969da", "#1b7c83", "#8250df", "#2da44e" };

	ptc_buf_printf(&p->b,
		       "<rect x=\"%.1f\" y=\"%u\" width=\"%.1f\" height=\"24\" fill=\"%s\"><title>generation %" PRIu64
		       ": ",
		       x, 8 + 30 * (row % 2), PTC_MAX(end - x, 1.0), colours[row % PTC_ARRAY_LEN(colours)],
		       ptc_json_count(sw, "generation"));
	ctl_put_escaped(&p->b, string(sw, "to"));
	ptc_buf_puts(&p->b, "</title></rect>");
	if (end - x > 8.0 * (double)strlen(string(sw, "to")))
		put_label(&p->b, x + 5, 24 + 30 * (int)(row % 2), "on", string(sw, "to"));
}

static void put_timeline(struct page *p)
{
	int64_t first, last;
	unsigned row = 0;
	size_t n = json_array_size(p->switches), i;
	json_t *event;

	span(p, &first, &last);
	ptc_buf_printf(&p->b, "<h2>Generations</h2><p>");
	put_time(&p->b, first);
	ptc_buf_puts(&p->b, " to ");
	put_time(&p->b, last);
	ptc_buf_printf(&p->b,
		       " UTC. Ticks: snapshots; crosses: switches that were aborted.</p><svg viewBox=\"0 0 %d 92\" "
		       "role=\"img\" "
		       "aria-label=\"generations over time\">",
		       WIDTH);
	for (i = 0; i < n; i++) {
		json_t *sw = json_object_get(json_array_get(p->switches, i), "switch");
		double x = (double)(time_ms(json_array_get(p->switches, i)) - first) / (double)(last - first) * WIDTH;
		double end = WIDTH;

		if (!begins_generation(sw))
			continue;
		for (size_t k = i + 1; k < n; k++) {
			json_t *next = json_array_get(p->switches, k);

			if (!begins_generation(json_object_get(next, "switch")))
				continue;
			end = (double)(time_ms(next) - first) / (double)(last - first) * WIDTH;
			break;
		}
		put_generation(p, sw, x, end, row++);
	}
	json_array_foreach(p->events, i, event) {
		double x = (double)(time_ms(event) - first) / (double)(last - first) * WIDTH;

		if (!strcmp(string(event, "kind"), "aborted"))
			put_label(&p->b, x, 86, "middle", "×");
		else if (json_object_get(event, "switch"))
			ptc_buf_printf(&p->b, "<line x1=\"%.1f\" y1=\"70\" x2=\"%.1f\" y2=\"78\" class=\"tick\"/>", x,
				       x);
	}
	ptc_buf_puts(&p->b, "</svg>");
}

/* ---- pauses --------------------------------------------------------------------------------- */

static double pause_ms(const json_t *event, const char *part)
{
	const json_t *pause = json_object_get(json_object_get(event, "switch"), "pause");

	return json_number_value(json_object_get(pause, part));
}

static void put_pause(struct page *p, const json_t *event, unsigned row, double longest)
{
	const double scale = (WIDTH - LEFT - 80) / longest;
	const int y = 6 + 28 * (int)row;
	double x = LEFT;

	ptc_buf_printf(&p->b, "<text x=\"%d\" y=\"%d\" class=\"end\">", LEFT - 10, y + 14);
	put_what(&p->b, json_object_get(event, "switch"));
	ptc_buf_puts(&p->b, "</text>");
	for (size_t i = 0; i < PTC_ARRAY_LEN(parts); i++) {
		double ms = pause_ms(event, parts[i].key);

		ptc_buf_printf(&p->b,
			       "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"18\" fill=\"%s\"><title>%s: %.0f "
			       "ms</title></rect>",
			       x, y, ms * scale, parts[i].colour, parts[i].name, ms);
		x += ms * scale;
	}
	ptc_buf_printf(&p->b, "<text x=\"%.1f\" y=\"%d\">%.2f s</text>", x + 6, y + 14,
		       pause_ms(event, "total_ms") / 1e3);
}

static void put_pauses(struct page *p)
{
	double longest = 0;
	unsigned rows = 0, row = 0;
	json_t *event;
	size_t i;

	json_array_foreach(p->switches, i, event) {
		longest = PTC_MAX(longest, pause_ms(event, "total_ms"));
		rows += pause_ms(event, "total_ms") > 0;
	}
	if (!rows)
		return;
	ptc_buf_printf(&p->b,
		       "<h2>How long training stood still</h2><p>Without the first step of the new ranks.</p><svg "
		       "viewBox=\"0 0 %d %u\" "
		       "role=\"img\" aria-label=\"pauses by part\">",
		       WIDTH, 28 * rows + 54);
	json_array_foreach(p->switches, i, event) {
		if (pause_ms(event, "total_ms") > 0)
			put_pause(p, event, row++, longest);
	}
	for (i = 0; i < PTC_ARRAY_LEN(parts); i++) {
		int x = LEFT + (int)(i % 4) * 160, y = (int)(28 * rows) + 14 + 18 * (int)(i / 4);

		ptc_buf_printf(&p->b, "<rect x=\"%d\" y=\"%d\" width=\"11\" height=\"11\" fill=\"%s\"/>", x, y,
			       parts[i].colour);
		put_label(&p->b, x + 16, y + 10, "start", parts[i].name);
	}
	ptc_buf_puts(&p->b, "</svg>");
}

/* ---- each switch ---------------------------------------------------------------------------- */

/* Ranks of a node in a list of {node, ranks}; "" where it has none. */
static const char *ranks_at(const json_t *list, const char *node)
{
	json_t *row;
	size_t i;

	json_array_foreach(list, i, row) {
		if (!strcmp(string(row, "node"), node))
			return string(row, "ranks");
	}
	return "";
}

static void put_node(struct page *p, const json_t *sw, const char *node)
{
	json_t *row, *found = NULL;
	size_t i;

	json_array_foreach(json_object_get(sw, "nodes"), i, row) {
		if (!strcmp(string(row, "node"), node))
			found = row;
	}
	ptc_buf_puts(&p->b, "<tr><td>");
	ctl_put_escaped(&p->b, node);
	ptc_buf_puts(&p->b, "</td><td>");
	ctl_put_escaped(&p->b, ranks_at(json_object_get(sw, "before"), node));
	ptc_buf_puts(&p->b, "</td><td>");
	ctl_put_escaped(&p->b, ranks_at(json_object_get(sw, "after"), node));
	ptc_buf_puts(&p->b, "</td>");
	put_bytes_cell(&p->b, found, "in_bytes");
	put_bytes_cell(&p->b, found, "out_bytes");
	ptc_buf_puts(&p->b, "</tr>");
}

/* Where ranks were and are, and what entered and left each node. */
static void put_nodes(struct page *p, const json_t *sw)
{
	static const char *const lists[] = { "before", "after", "nodes" };
	json_t *seen = json_object(), *row;
	size_t i;

	ptc_buf_puts(&p->b, "<table><tr><th>node</th><th>ranks before</th><th>ranks after</th><th>bytes "
			    "in</th><th>bytes out</th></tr>");
	for (size_t k = 0; k < PTC_ARRAY_LEN(lists); k++) {
		json_array_foreach(json_object_get(sw, lists[k]), i, row) {
			const char *node = string(row, "node");

			if (json_object_get(seen, node))
				continue;
			json_object_set_new(seen, node, json_true());
			put_node(p, sw, node);
		}
	}
	ptc_buf_puts(&p->b, "</table>");
	json_decref(seen);
}

static void put_switch(struct page *p, const json_t *event)
{
	const json_t *sw = json_object_get(event, "switch"), *totals = json_object_get(sw, "totals");
	char text[32];

	ptc_buf_puts(&p->b, "<details><summary>");
	put_time(&p->b, time_ms(event));
	ptc_buf_puts(&p->b, " &nbsp; ");
	put_what(&p->b, sw);
	ptc_buf_printf(&p->b, " &nbsp; generation %" PRIu64 ", snapshot %" PRIu64 ", step %" PRIu64 ", %.2f s",
		       ptc_json_count(sw, "generation"), ptc_json_count(sw, "snapshot"), ptc_json_count(sw, "step"),
		       json_number_value(json_object_get(sw, "seconds")));
	if (totals)
		ptc_buf_printf(&p->b, ", %s between nodes",
			       ctl_bytes(ptc_json_count(totals, "between_nodes"), text, sizeof(text)));
	ptc_buf_puts(&p->b, "</summary>");
	if (totals)
		ptc_buf_printf(&p->b, "<p>The least that any placement could send between nodes: %s%s.</p>",
			       json_is_true(json_object_get(totals, "bound_exact")) ? "" : "at least ",
			       ctl_bytes(ptc_json_count(totals, "bound_any_mapping"), text, sizeof(text)));
	put_nodes(p, sw);
	ptc_buf_puts(&p->b, "</details>");
}

static void compose(struct page *p)
{
	static const char style[] =
		":root{color-scheme:light dark;--ink:#1f2328;--soft:#6e7781;--line:#d0d7de;--paper:#fff}"
		"@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#8d96a0;--line:#30363d;--paper:#0d1117}}"
		"body{font:15px/1.5 "
		"system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:940px;margin:2rem "
		"auto;padding:0 1rem}h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.1rem;margin:2rem 0 .3rem}"
		"p{color:var(--soft);margin:.2rem 0 "
		".6rem}svg{width:100%;height:auto;display:block}text{fill:var(--ink);font-size:12px}"
		".tick{stroke:var(--soft)}.middle{text-anchor:middle}.end{text-anchor:end}.on{fill:#fff}table{border-"
		"collapse:collapse;width:100%;margin:."
		"4rem 0 1rem;"
		"font-variant-numeric:tabular-nums}th,td{text-align:left;padding:.2rem .5rem;border-bottom:1px solid "
		"var(--line)}"
		"th{color:var(--soft)}summary{cursor:pointer;padding:.2rem 0}";
	json_t *event;
	size_t i;

	ptc_buf_puts(&p->b, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
			    "content=\"width=device-width\"><title>ptc: job ");
	ctl_put_escaped(&p->b, p->c->args[0]);
	ptc_buf_printf(&p->b, "</title><style>%s</style></head><body><h1>Job ", style);
	ctl_put_escaped(&p->b, p->c->args[0]);
	ptc_buf_printf(&p->b, "</h1><p>Generation %" PRIu64 " (", ptc_json_count(p->job, "generation"));
	ctl_put_escaped(&p->b, string(p->job, "config"));
	ptc_buf_printf(&p->b, "), snapshot %" PRIu64 " of step %" PRIu64 ", ", ptc_json_count(p->job, "snapshot"),
		       ptc_json_count(p->job, "step"));
	ctl_put_escaped(&p->b, string(json_object_get(p->job, "run"), "state"));
	ptc_buf_puts(&p->b, ".</p>");
	put_timeline(p);
	put_pauses(p);
	ptc_buf_puts(&p->b, "<h2>Switches</h2>");
	json_array_foreach(p->switches, i, event)
		put_switch(p, event);
	if (!json_array_size(p->switches))
		ptc_buf_puts(&p->b, "<p>None yet.</p>");
	ptc_buf_puts(&p->b, "</body></html>\n");
}

/* ---- reading what it is made of ---------------------------------------------------------------- */

static int on_event(void *arg, const char *text)
{
	struct page *p = arg;
	json_t *event = NULL;

	if (ptc_json_load("event", text, strlen(text), &event, NULL) != 0)
		return 0;
	json_array_append(p->events, event);
	if (json_object_get(event, "switch")) {
		if (json_array_size(p->switches) == SWITCHES_MAX)
			json_array_remove(p->switches, 0);
		json_array_append(p->switches, event);
	}
	json_decref(event);
	return 0;
}

static int gather(struct page *p, struct ptc_error *err)
{
	char *json = NULL;
	int rc = ctl_connect(p->c, err);

	p->events = json_array();
	p->switches = json_array();
	if (!rc)
		rc = ptc_admin_status(p->c->admin, p->c->args[0], &json, err);
	if (!rc)
		rc = ptc_json_load("the daemon's answer", json, strlen(json), &p->doc, err);
	ptc_admin_free(json);
	if (rc)
		return rc;
	p->job = json_array_get(json_object_get(p->doc, "jobs"), 0);
	return ptc_admin_events(p->c->admin, p->c->args[0], false, 0, 0, on_event, p, err);
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *path = ctl_option(c, "output");
	struct page p = { .c = c, .b = PTC_BUF_INIT };
	int rc;

	if (!path)
		return ctl_usage(err, "needs --output FILE.html");
	rc = gather(&p, err);
	if (!rc) {
		compose(&p);
		rc = ptc_buf_failed(&p.b) ? ptc_nomem(err)
					  : ptc_sys_write_file(path, p.b.data, p.b.len, 0644, "ctl.report", err);
	}
	if (!rc && !c->json)
		printf("%s: %zu switches of job %s\n", path, json_array_size(p.switches), c->args[0]);
	else if (!rc)
		printf("{\"version\":1,\"job\":\"%s\",\"switches\":%zu}\n", c->args[0], json_array_size(p.switches));
	ptc_buf_done(&p.b);
	json_decref(p.events);
	json_decref(p.switches);
	json_decref(p.doc);
	return rc;
}

const struct ctl_verb ctl_report = {
	.name = "report",
	.args = "[JOB]",
	.about = "Write a page about a job: generations, pauses, moves",
	.help = "The page is one HTML file without scripts, and loads nothing from elsewhere. It shows the\n"
		"job's events. ptc keeps the newest thousand of them.\n",
	CTL_OPTIONS(options),
	.min_args = 1,
	.max_args = 1,
	.job_missing = ctl_job_missing,
	.run = run,
};
