/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl status as a person reads it: a line per job, and of one job what its
 * ranks do. Failure: PTC_EPEER for a document that is not JSON, PTC_ENOMEM. */
#include "client/ctl/show/show.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "formats/json.h"

#include <string.h>

static const struct ctl_column job_columns[] = {
	{ "job", NULL, NULL },
	{ "state", "run", "run" },
	{ "phase", NULL, NULL },
	{ "generation", NULL, NULL },
	{ "snapshot", NULL, NULL },
	{ "step", NULL, NULL },
	{ "config", NULL, NULL },
	{ "state_bytes", NULL, NULL },
	{ "bytes_done", NULL, "moved_bytes" },
	{ "bytes_total", NULL, "of_bytes" },
	{ "controller", NULL, NULL },
};

static const struct ctl_column rank_columns[] = {
	{ "rank", NULL, NULL },       { "node", NULL, NULL },        { "device", NULL, NULL },
	{ "pid", NULL, NULL },        { "state", NULL, NULL },       { "step", NULL, NULL },
	{ "generation", NULL, NULL }, { "steps_per_s", NULL, NULL }, { "reports", NULL, NULL },
};

/* Control characters would let a program write on our terminal. */
static void put_text(const char *text)
{
	for (; *text; text++)
		putchar((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text);
}

/* "step 130, 12.5 steps/s, loss 3.21432", "step 130, has not moved for 612 s, loss 3.21432": what there is of it. */
static void put_pace(const json_t *run)
{
	const json_t *step = json_object_get(run, "step"), *rate = json_object_get(run, "steps_per_s"), *value;
	const json_t *stalled = json_object_get(run, "stalled_s"), *hangs = json_object_get(run, "hangs_s");
	json_t *reports = json_object_get(run, "reports");
	const char *name, *comma = "";

	if (!json_is_integer(step) && !json_is_number(rate) && !json_is_integer(hangs) && !json_object_size(reports))
		return;
	if (json_is_integer(step)) {
		printf("step %" JSON_INTEGER_FORMAT, json_integer_value(step));
		comma = ", ";
	}
	if (json_is_integer(stalled)) {
		printf("%shas not moved for %" JSON_INTEGER_FORMAT " s", comma, json_integer_value(stalled));
		comma = ", ";
	} else if (json_is_number(rate)) {
		printf("%s%.4g steps/s", comma, json_number_value(rate));
		comma = ", ";
	}
	if (json_is_integer(hangs)) {
		printf("%sa rank's memory hangs for %" JSON_INTEGER_FORMAT " s", comma, json_integer_value(hangs));
		comma = ", ";
	}
	json_object_foreach(reports, name, value) {
		if (!json_is_number(value))
			continue;
		fputs(comma, stdout);
		put_text(name);
		printf(" %.6g", json_number_value(value));
		comma = ", ";
	}
	putchar('\n');
}

/* "memory: compared at step 41, checked at step 40", of all ranks that say so. And where a promise is broken, of which
 * rank, and why. */
static void put_promises(const json_t *ranks)
{
	static const char *const keys[] = { "survives_sampled", "survives_checked" };
	static const char *const words[] = { "compared", "checked" };
	const json_t *k, *at, *first = NULL;
	json_int_t least[2] = { -1, -1 };
	const char *comma = "memory: ";
	size_t i, broken = 0;

	json_array_foreach(ranks, i, k) {
		for (size_t w = 0; w < PTC_ARRAY_LEN(keys); w++)
			if (json_is_integer(at = json_object_get(k, keys[w])))
				least[w] = least[w] < 0 ? json_integer_value(at)
							: PTC_MIN(least[w], json_integer_value(at));
		if (!json_is_true(json_object_get(k, "survives_broken")))
			continue;
		first = first ? first : k;
		broken++;
	}
	for (size_t w = 0; w < PTC_ARRAY_LEN(keys); w++) {
		if (least[w] < 0)
			continue;
		printf("%s%s at step %" JSON_INTEGER_FORMAT, comma, words[w], least[w]);
		comma = ", ";
	}
	if (least[0] >= 0 || least[1] >= 0)
		putchar('\n');
	if (!first)
		return;
	printf("memory of rank %" JSON_INTEGER_FORMAT " is not used if a node is lost: ",
	       json_integer_value(json_object_get(first, "rank")));
	put_text(json_string_value(json_object_get(first, "survives_not"))
			 ? json_string_value(json_object_get(first, "survives_not"))
			 : "?");
	if (broken > 1)
		printf(" (and that of %zu more)", broken - 1);
	putchar('\n');
}

/* One line of the ranks that are slow, and one where ranks cannot be compared. */
static void put_stragglers(const json_t *s)
{
	const char *text = json_string_value(json_object_get(s, "text"));
	json_int_t slow = json_integer_value(json_object_get(s, "slow"));
	const json_t *list = json_object_get(s, "list"), *k;
	size_t i;

	json_array_foreach(list, i, k) {
		printf("%srank %" JSON_INTEGER_FORMAT " of node ",
		       i ? ", " : "slow: ", json_integer_value(json_object_get(k, "rank")));
		put_text(json_string_value(json_object_get(k, "node")) ? json_string_value(json_object_get(k, "node"))
								       : "");
		printf(" (%.3g ms of own work a step, its stage's median %.3g ms)",
		       1e3 * json_number_value(json_object_get(k, "own_s")),
		       1e3 * json_number_value(json_object_get(k, "median_s")));
	}
	if (slow > (json_int_t)json_array_size(list))
		printf(" and %" JSON_INTEGER_FORMAT " more", slow - (json_int_t)json_array_size(list));
	if (slow)
		putchar('\n');
	if (text && *text) {
		put_text(text);
		putchar('\n');
	}
}

/* "left as slow: n1:0 for 3540 s more, n2:0 for 12 s more" */
static void put_left(const json_t *left)
{
	const json_t *k;
	size_t i;

	json_array_foreach(left, i, k) {
		const char *node = json_string_value(json_object_get(k, "node"));
		json_int_t ms = json_integer_value(json_object_get(k, "until_ms")) - ptc_sys_realtime_ms();

		fputs(i ? ", " : "left as slow: ", stdout);
		put_text(node ? node : "");
		printf(":%" JSON_INTEGER_FORMAT " for %" JSON_INTEGER_FORMAT " s more",
		       json_integer_value(json_object_get(k, "device")), ms > 0 ? (ms + 999) / 1000 : 0);
	}
	if (json_array_size(left))
		putchar('\n');
}

/* "standby: 2 of 3 processes wait for the next start" */
static void put_standby(const json_t *standby)
{
	size_t i, waiting = 0, n = json_array_size(standby);
	const json_t *k;

	json_array_foreach(standby, i, k) {
		const char *state = json_string_value(json_object_get(k, "state"));

		waiting += state && !strcmp(state, "waiting");
	}
	if (n)
		printf("standby: %zu of %zu processes wait for the next start\n", waiting, n);
}

static int put_run(const struct ctl *c, json_t *run, struct ptc_error *err)
{
	const char *state = json_string_value(json_object_get(run, "state"));
	const char *text = json_string_value(json_object_get(run, "text"));
	const char *isolation = json_string_value(json_object_get(run, "isolation"));
	char *rows;
	int rc = 0;

	if (!state || !strcmp(state, "none"))
		return 0;
	fputs("\nrun: ", stdout);
	put_text(state);
	printf(", incarnation %" JSON_INTEGER_FORMAT, json_integer_value(json_object_get(run, "incarnation")));
	if (isolation) {
		fputs(", ranks kept together by ", stdout);
		put_text(isolation);
	}
	putchar('\n');
	if (text && *text) {
		put_text(text);
		putchar('\n');
	}
	text = json_string_value(json_object_get(run, "gave_up"));
	if (text && *text) {
		fputs("given up: ", stdout);
		put_text(text);
		puts("\n`ptcctl run JOB` starts it, and the count of restarts begins anew");
	}
	text = json_string_value(json_object_get(json_object_get(run, "recovery"), "waits"));
	if (text && *text) {
		put_text(text);
		putchar('\n');
	}
	text = json_string_value(json_object_get(run, "stays"));
	if (text && *text) {
		put_text(text);
		putchar('\n');
	}
	put_pace(run);
	put_promises(json_object_get(run, "ranks"));
	put_stragglers(json_object_get(run, "stragglers"));
	put_left(json_object_get(run, "left_devices"));
	put_standby(json_object_get(run, "standby"));
	if (!json_array_size(json_object_get(run, "ranks")))
		return 0;
	putchar('\n');
	rows = ptc_json_text(run);
	if (!rows)
		return ptc_nomem(err);
	rc = ctl_print_columns(c, rows, "ranks", rank_columns, PTC_ARRAY_LEN(rank_columns), err);
	ptc_free(rows);
	return rc;
}

/* "devices: n0:0, n0:1" */
static void put_devices(json_t *devices)
{
	const char *node, *comma = "\ndevices: ";
	json_t *list, *device;
	size_t i;

	json_object_foreach(devices, node, list) {
		json_array_foreach(list, i, device) {
			fputs(comma, stdout);
			put_text(node);
			printf(":%" JSON_INTEGER_FORMAT, json_integer_value(device));
			comma = ", ";
		}
	}
	if (json_object_size(devices))
		putchar('\n');
}

/* A line of its own, if there is such a text. */
static void put_line(const char *before, const json_t *text)
{
	if (!json_is_string(text))
		return;
	printf("\n%s", before);
	put_text(json_string_value(text));
	putchar('\n');
}

/* "30 steps now: the job would go on ...": a number only where it says more than the words. */
static void put_cost(const json_t *cost)
{
	const char *costs = json_string_value(json_object_get(cost, "costs"));
	const char *why = json_string_value(json_object_get(cost, "why"));
	json_int_t steps = json_integer_value(json_object_get(cost, "steps"));

	if (costs && !strcmp(costs, "none"))
		fputs("no step: ", stdout);
	else if (steps > 0)
		printf("%" JSON_INTEGER_FORMAT " step%s now: ", steps, steps == 1 ? "" : "s");
	put_text(why ? why : "?");
	putchar('\n');
}

/* What the loss of a node would cost; and what if ranks' memory could not be used then. */
static void put_node_loss(const json_t *loss)
{
	const json_t *otherwise = json_object_get(loss, "otherwise");

	if (!loss)
		return;
	fputs("\nloss of a node: ", stdout);
	put_cost(loss);
	if (!otherwise)
		return;
	fputs("  if ranks' memory cannot be used: ", stdout);
	put_cost(otherwise);
}

/* How far behind the newest copies are, and what they cost. */
static void put_copied(const json_t *copied)
{
	const json_t *step = json_object_get(copied, "step"), *behind = json_object_get(copied, "behind");
	const json_t *stopped = json_object_get(copied, "stopped");
	json_int_t n = json_integer_value(behind);

	if (!copied)
		return;
	fputs("copied: ", stdout);
	if (step)
		printf("step %" JSON_INTEGER_FORMAT, json_integer_value(step));
	else
		fputs("nothing yet", stdout);
	if (behind)
		printf(", %" JSON_INTEGER_FORMAT " step%s behind", n, n == 1 ? "" : "s");
	if (stopped)
		printf("; snapshots stop ranks for %.1f %% of the time", 100.0 * json_real_value(stopped));
	putchar('\n');
}

static void put_resized(const json_t *resized)
{
	if (!resized)
		return;
	printf("\nlast resize: %s -> %s, generation %" JSON_INTEGER_FORMAT ", step %" JSON_INTEGER_FORMAT "\n",
	       json_string_value(json_object_get(resized, "from")), json_string_value(json_object_get(resized, "to")),
	       json_integer_value(json_object_get(resized, "generation")),
	       json_integer_value(json_object_get(resized, "step")));
	ctl_put_pause(json_object_get(resized, "pause"));
}

int ctl_print_status(const struct ctl *c, const char *json, bool one, struct ptc_error *err)
{
	json_t *doc = NULL, *job;
	int rc = ctl_print_columns(c, json, "jobs", job_columns, PTC_ARRAY_LEN(job_columns), err);

	if (rc || !one || c->json)
		return rc;
	rc = ptc_json_load("status", json, strlen(json), &doc, err);
	job = json_array_get(json_object_get(doc, "jobs"), 0);
	put_line("", json_object_get(job, "unreadable"));
	put_line("no bridge: ", json_object_get(job, "no_bridge"));
	put_copied(json_object_get(job, "copied"));
	if (!rc)
		rc = put_run(c, json_object_get(job, "run"), err);
	if (!rc)
		put_devices(json_object_get(job, "devices"));
	if (!rc)
		put_resized(json_object_get(job, "last_resize"));
	if (!rc)
		put_node_loss(json_object_get(job, "node_loss"));
	json_decref(doc);
	return rc;
}
