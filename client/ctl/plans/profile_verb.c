/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl profile: measures the links between nodes, shows what is known of them, or puts a profile of devices and links
 * in. Failure: CTL_USAGE for options that exclude each other, else what the daemon says. */
#include "client/ctl/plans/plans.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "client/ctl/show/show.h"
#include "formats/json.h"

#include <string.h>
#include <time.h>

#define FILE_MAX (1u << 20)

static const struct ctl_option options[] = {
	{ "show", NULL, "show the present profile, and measure nothing" },
	{ "file", "FILE", "store this profile of devices and links (docs/planner.md), and measure nothing", 'f' },
};

static const char *date(const json_t *doc, const char *key, char *buf, size_t size)
{
	time_t t = (time_t)(ptc_json_count(doc, key) / 1000);
	struct tm tm;

	if (!t || !gmtime_r(&t, &tm) || !strftime(buf, size, "%Y-%m-%dT%H:%M:%SZ", &tm))
		snprintf(buf, size, "never");
	return buf;
}

static void put_links(const json_t *doc)
{
	const json_t *pairs = json_object_get(doc, "pairs"), *p, *c;
	size_t i;

	if (json_array_size(pairs))
		printf("%-24s %-24s %10s %12s\n", "FROM", "TO", "GB/S", "LATENCY");
	json_array_foreach(pairs, i, p) {
		const char *from = json_string_value(json_object_get(p, "from"));
		const char *to = json_string_value(json_object_get(p, "to"));
		const json_t *at = json_object_get(p, "measured_ms"), *last = json_object_get(doc, "measured_ms");

		printf("%-24s %-24s %10.3g %9.0f us%s\n", from ? from : "", to ? to : "",
		       json_number_value(json_object_get(p, "bytes_s")) / 1e9,
		       json_number_value(json_object_get(p, "latency_s")) * 1e6,
		       at && json_integer_value(at) < json_integer_value(last) ? "  (measured before)" : "");
	}
	json_array_foreach(json_object_get(doc, "failed"), i, p) {
		const char *from = json_string_value(json_object_get(p, "from"));
		const char *to = json_string_value(json_object_get(p, "to"));

		printf("not measured: from %s to %s, for one of them did not answer; see `ptcctl nodes`\n",
		       from ? from : "", to ? to : "");
	}
	json_array_foreach(json_object_get(doc, "changed"), i, c) {
		const char *from = json_string_value(json_object_get(c, "from"));
		const char *to = json_string_value(json_object_get(c, "to"));

		printf("changed: from %s to %s, it was %.3g GB/s\n", from ? from : "", to ? to : "",
		       json_number_value(json_object_get(c, "was")) / 1e9);
	}
}

static int put_table(const char *json, struct ptc_error *err)
{
	json_t *doc = NULL;
	const char *profile;
	char buf[32];
	int rc = ptc_json_load("profile", json, strlen(json), &doc, err);

	if (rc)
		return rc;
	profile = json_string_value(json_object_get(doc, "profile"));
	if (profile)
		printf("devices and links as put in (%s):\n%s%s", date(doc, "set_ms", buf, sizeof buf), profile,
		       profile[0] && profile[strlen(profile) - 1] == '\n' ? "" : "\n");
	else
		puts("no profile of devices was put in (`ptcctl profile -f FILE`): device memory is not compared");
	printf("links measured: %s\n", date(doc, "measured_ms", buf, sizeof buf));
	put_links(doc);
	json_decref(doc);
	return 0;
}

static int run(struct ctl *c, struct ptc_error *err)
{
	const char *file = ctl_option(c, "file");
	ptc_auto_free char *text = NULL;
	char *json = NULL;
	size_t len = 0;
	int rc = 0;

	if (file && ctl_option(c, "show"))
		return ctl_usage(err, "--show and -f exclude each other");
	if (file)
		rc = ptc_sys_read_file(file, FILE_MAX, &text, &len, err);
	if (!rc && file && strlen(text) != len)
		rc = ptc_error_set(err, PTC_EINVAL, "%s: it has a NUL byte, so it is no text", file);
	if (!rc)
		rc = ctl_connect(c, err);
	if (!rc)
		rc = ptc_admin_profile(c->admin,
				       file                    ? "set"
				       : ctl_option(c, "show") ? "show"
							       : "measure",
				       text, &json, err);
	if (!rc)
		rc = c->json ? ctl_print(c, json, err) : put_table(json, err);
	ptc_admin_free(json);
	return rc;
}

const struct ctl_verb ctl_profile = {
	.name = "profile",
	.args = "[--show | -f FILE]",
	.about = "Measure the links between nodes, for the planner",
	.help = "Every node pulls bytes from every other node, over as many connections as a switch uses.\n"
		"The measurement has rounds of about one second; in each round no node is in two pairs. The\n"
		"cluster keeps the results with their date. If a link has changed by more than a quarter,\n"
		"each job gets an event. Only root may measure, or store a profile.\n",
	CTL_OPTIONS(options),
	.min_args = 0,
	.max_args = 0,
	.run = run,
};
