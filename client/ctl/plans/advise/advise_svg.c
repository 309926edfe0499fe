/* SPDX-License-Identifier: Apache-2.0 */
/* Advice as a picture: a bar for each candidate's step time, in its parts, with the calibration's error; of a range, a
 * bar of samples a second for each number of devices. Failure: a document that is none of ours. */
#include "client/ctl/plans/advise/advise.h"

#include "base/check.h"
#include "formats/json.h"

#include <string.h>

#define ROW   26
#define LEFT  330
#define BARS  520
#define RIGHT 330
#define TOP   44

static const struct {
	const char *key, *colour;
} parts[] = { { "compute", "#6b9bd1" }, { "tp", "#e0a458" },        { "cp", "#c77dba" },
	      { "ep", "#8f7ee0" },      { "pp", "#d46a6a" },        { "bubble", "#cccccc" },
	      { "dp", "#6fb98f" },      { "optimizer", "#999966" }, { "fixed", "#777777" } };

static double number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static void put_text(double x, double y, int size, const char *anchor, const char *s)
{
	printf("<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\">", x, y, size, anchor);
	for (; *s; s++)
		if (*s == '<' || *s == '&')
			fputs(*s == '<' ? "&lt;" : "&amp;", stdout);
		else
			putchar(*s);
	puts("</text>");
}

static void put_bar(double x, double y, double width, const char *colour, const char *what)
{
	if (width > 0)
		printf("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"16\" "
		       "fill=\"%s\"><title>%s</title></rect>\n",
		       x, y, width, colour, what);
}

/* Parts fill the bar in their order; parts that a calibration has corrected are drawn to the step's length. */
static void put_step(const json_t *row, double y, double scale)
{
	const json_t *of = json_object_get(row, "parts_s");
	double step = number(row, "step_s"), error = step * number(row, "error"), sum = 0, x = LEFT;

	for (size_t i = 0; i < PTC_ARRAY_LEN(parts); i++)
		sum += number(of, parts[i].key);
	for (size_t i = 0; i < PTC_ARRAY_LEN(parts) && sum > 0; i++) {
		double width = number(of, parts[i].key) / sum * step * scale;

		put_bar(x, y, width, parts[i].colour, parts[i].key);
		x += width;
	}
	if (sum == 0) /* only measured as a whole */
		put_bar(x, y, step * scale, parts[0].colour, "step");
	printf("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#333\"/>\n",
	       LEFT + PTC_MAX(0.0, step - error) * scale, y + 8, LEFT + (step + error) * scale, y + 8);
}

/* Adds what a switch moves, if that is said. */
static void put_moves(const json_t *row, char *text, size_t size)
{
	size_t len = strlen(text);

	if (json_is_true(json_object_get(row, "runs_now")))
		snprintf(text + len, size - len, ", runs now");
	else if (json_object_get(row, "moved_bytes"))
		snprintf(text + len, size - len, ", moves %s%.3g GB in %.3g s",
			 json_is_false(json_object_get(row, "moved_exact")) ? "at most " : "",
			 number(row, "moved_bytes") / 1e9, number(row, "pause_s"));
}

static void put_candidate(const json_t *row, double y, double scale)
{
	const char *config = json_string_value(json_object_get(row, "config"));
	char text[160];
	size_t len;

	put_text(LEFT - 8, y + 12, 11, "end", config ? config : "");
	put_step(row, y, scale);
	len = (size_t)snprintf(text, sizeof text, "%.4g s", number(row, "step_s"));
	if (json_object_get(row, "memory_bytes"))
		snprintf(text + len, sizeof text - len, ", %.1f GB", number(row, "memory_bytes") / 1e9);
	put_moves(row, text, sizeof text);
	put_text(LEFT + BARS + 12, y + 12, 11, "start", text);
}

static void put_count(const json_t *row, double y, double scale)
{
	const char *config = json_string_value(json_object_get(row, "config"));
	char text[256];

	snprintf(text, sizeof text, "%.0f", number(row, "gpus"));
	put_text(LEFT - 8, y + 12, 11, "end", text);
	put_bar(LEFT, y, number(row, "samples_s") * scale, "#6b9bd1", config ? config : "nothing fits");
	snprintf(text, sizeof text, "%.180s", config ? config : "nothing fits");
	put_moves(row, text, sizeof text);
	put_text(LEFT + BARS + 12, y + 12, 11, "start", text);
}

static void put_legend(double y)
{
	double x = LEFT;

	for (size_t i = 0; i < PTC_ARRAY_LEN(parts); i++) {
		put_bar(x, y, 10, parts[i].colour, parts[i].key);
		put_text(x + 13, y + 12, 10, "start", parts[i].key);
		x += 20 + 7.0 * (double)strlen(parts[i].key);
	}
}

int ctl_advice_svg(const char *json, struct ptc_error *err)
{
	json_t *doc = NULL, *rows, *row;
	const char *why;
	bool range;
	double most = 0;
	size_t i;
	int rc = ptc_json_load("advice", json, strlen(json), &doc, err);

	if (rc)
		return rc;
	range = json_object_get(doc, "counts") != NULL;
	rows = json_object_get(doc, range ? "counts" : "candidates");
	why = json_string_value(json_object_get(doc, "why"));
	json_array_foreach(rows, i, row) {
		most = PTC_MAX(most,
			       range ? number(row, "samples_s") : number(row, "step_s") * (1 + number(row, "error")));
	}
	printf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%zu\" font-family=\"sans-serif\">\n",
	       LEFT + BARS + RIGHT, TOP + (json_array_size(rows) + 1) * ROW + 20);
	puts("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>");
	put_text(10, 24, 13, "start", range ? "samples a second by number of devices" : why ? why : "");
	json_array_foreach(rows, i, row) {
		double scale = most > 0 ? BARS / most : 0;

		(range ? put_count : put_candidate)(row, TOP + (double)i * ROW, scale);
	}
	if (!range)
		put_legend(TOP + (double)json_array_size(rows) * ROW + 6);
	puts("</svg>");
	json_decref(doc);
	return 0;
}
