/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl advise JOB: the daemon that is asked knows the job's model, its devices and links, and what was measured.
 * Failure: CTL_USAGE for options that only make sense with -f, else what the daemon says. */
#include "client/ctl/plans/advise/advise.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "client/ctl/show/show.h"
#include "formats/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static double number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

static void put_head(const json_t *doc)
{
	uint64_t steps = ptc_json_count(doc, "measured_steps");

	if (json_is_true(json_object_get(doc, "calibrated")))
		printf("calibrated by %" PRIu64 " measured step%s\n", steps, steps == 1 ? "" : "s");
	else
		puts("uncalibrated: no step of this job's batch was measured; step times may be off by half or more");
	if (!json_is_true(json_object_get(doc, "profiled")))
		printf("devices are assumed, their memory is not compared (`ptcctl profile -f FILE`)%s\n",
		       json_is_true(json_object_get(doc, "links_known")) ? ""
									 : "; links are assumed (`ptcctl profile`)");
}

static void put_row(const json_t *r)
{
	char bytes[32];

	printf("%-48s %7" PRIu64 " %10.4g s %4.0f %% %9.1f", text(r, "config"), ptc_json_count(r, "devices"),
	       number(r, "step_s"), 100 * number(r, "error"), number(r, "samples_s"));
	printf(" %8.1f GB", number(r, "memory_bytes") / 1e9);
	if (json_object_get(r, "pause_s"))
		printf(" %11s%s %7.3g s", ctl_bytes((uint64_t)number(r, "moved_bytes"), bytes, sizeof bytes),
		       json_is_false(json_object_get(r, "moved_exact")) ? "?" : " ", number(r, "pause_s"));
	if (json_is_true(json_object_get(r, "runs_now")))
		fputs("  runs now", stdout);
	else if (number(r, "break_even_s") > 0)
		printf("  paid back after %.0f s", number(r, "break_even_s"));
	else if (json_object_get(r, "pause_s") && json_object_get(r, "runs_now") && !json_object_get(r, "break_even_s"))
		fputs("  never paid back", stdout);
	putchar('\n');
}

static int put_table(const char *json, struct ptc_error *err)
{
	json_t *doc = NULL, *row;
	bool range, estimated = false;
	size_t i;
	int rc = ptc_json_load("advice", json, strlen(json), &doc, err);

	if (rc)
		return rc;
	range = json_object_get(doc, "counts") != NULL;
	put_head(doc);
	printf("%s%-48s %7s %12s %6s %9s %11s %12s %9s\n", range ? "   GPUS " : "", "CONFIGURATION", "DEVICES", "STEP",
	       "ERROR", "SAMPLES/S", "MEMORY", "MOVES", "PAUSE");
	json_array_foreach(json_object_get(doc, range ? "counts" : "candidates"), i, row) {
		if (range)
			printf("%7" PRIu64 " ", ptc_json_count(row, "gpus"));
		if (json_object_get(row, "config"))
			put_row(row);
		else
			puts("nothing fits");
		estimated |= json_is_false(json_object_get(row, "moved_exact"));
	}
	if (estimated)
		puts("?: the most it can be; ranks have never had that configuration, and no probe of it is known "
		     "(`ptcctl probe`)");
	if (!range)
		puts(text(doc, "why"));
	json_decref(doc);
	return 0;
}

/* "8" or "4-8". */
static int take_range(const struct ctl *c, uint32_t *ret_first, uint32_t *ret_last, struct ptc_error *err)
{
	const char *gpus = ctl_option(c, "gpus"), *dash = gpus && *gpus ? strchr(gpus + 1, '-') : NULL;
	ptc_auto_free char *first = gpus ? ptc_strndup(gpus, dash ? (size_t)(dash - gpus) : strlen(gpus)) : NULL;
	uint64_t from = 0, to = 0;
	int rc;

	if (!gpus)
		return ctl_usage(err, "--gpus N is needed");
	rc = first ? ctl_number("--gpus", first, 1, PTC_MAX_RANKS, &from, err) : ptc_nomem(err);
	if (!rc)
		rc = ctl_number("--gpus", dash ? dash + 1 : gpus, 1, PTC_MAX_RANKS, &to, err);
	if (!rc && from > to)
		rc = ctl_usage(err, "--gpus %s: the range is empty", gpus);
	*ret_first = dash ? (uint32_t)from : 0;
	*ret_last = (uint32_t)to;
	return rc;
}

/* The first option that only makes sense with -f. */
static const char *stray(const struct ctl *c)
{
	static const char *const names[] = { "profile", "galvatron", "now", "pause" };

	for (size_t i = 0; i < PTC_ARRAY_LEN(names); i++)
		if (ctl_option(c, names[i]))
			return names[i];
	return NULL;
}

/* --nodes as ctl_target_get has it, without --gpus, which may be a range here. */
static int take_nodes(const struct ctl *c, struct ptc_admin_target *t, char **ret_names, const char ***ret_nodes,
		      struct ptc_error *err)
{
	const char *nodes = ctl_option(c, "nodes");
	char *save = NULL;
	size_t n = 1;

	if (!nodes)
		return 0;
	for (const char *p = nodes; *p; p++)
		n += *p == ',';
	*ret_names = ptc_strdup(nodes);
	*ret_nodes = ptc_calloc(n, sizeof **ret_nodes);
	if (!*ret_names || !*ret_nodes)
		return ptc_nomem(err);
	for (char *p = strtok_r(*ret_names, ",", &save); p; p = strtok_r(NULL, ",", &save))
		(*ret_nodes)[t->nnodes++] = p;
	t->nodes = *ret_nodes;
	return t->nnodes ? 0 : ctl_usage(err, "--nodes names no node");
}

int ctl_advise_online(struct ctl *c, struct ptc_error *err)
{
	struct ptc_admin_advice ask = { .size = sizeof ask, .objective = ctl_option(c, "objective") };
	struct ptc_admin_target t = { .size = sizeof t, .job = c->args[0] };
	const char *horizon = ctl_option(c, "horizon");
	ptc_auto_free const char **nodes = NULL;
	ptc_auto_free char *names = NULL;
	char *json = NULL;
	int ms = 0, rc;

	if (stray(c))
		return ctl_usage(err, "--%s needs -f FILE", stray(c));
	rc = take_range(c, &ask.first, &t.gpus, err);
	if (!rc && horizon)
		rc = ctl_duration("horizon", horizon, &ms, err);
	ask.horizon_ms = (uint32_t)ms;
	if (!rc)
		rc = take_nodes(c, &t, &names, &nodes, err);
	if (!rc)
		rc = ctl_connect(c, err);
	if (!rc)
		rc = ptc_admin_advise(c->admin, &t, &ask, &json, err);
	if (!rc)
		rc = c->json ? ctl_print(c, json, err) : c->svg ? ctl_advice_svg(json, err) : put_table(json, err);
	ptc_admin_free(json);
	return rc;
}
