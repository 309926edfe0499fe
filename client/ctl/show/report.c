/* SPDX-License-Identifier: Apache-2.0 */
/* What a person reads of the larger documents: chosen columns of a listing, a
 * plan, and the summary of a switch. --format json prints the document as it
 * came instead. Failure: PTC_EPEER for a document that is not JSON, PTC_ENOMEM. */
#include "client/ctl/show/show.h"

#include "base/alloc.h"
#include "base/check.h"
#include "formats/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static json_t *pick(const json_t *object, const struct ctl_column *columns, size_t n)
{
	json_t *row = json_object();

	for (size_t i = 0; row && i < n; i++) {
		const json_t *from = columns[i].in ? json_object_get(object, columns[i].in) : object;
		json_t *v = from ? json_object_get(from, columns[i].key) : NULL;

		if (v && !json_is_null(v))
			json_object_set(row, columns[i].name ? columns[i].name : columns[i].key, v);
	}
	return row;
}

void ctl_note_as_of(const struct ctl *c, int64_t as_of_ms)
{
	time_t t = (time_t)(as_of_ms / 1000);
	char text[32];
	struct tm tm;

	if (as_of_ms && !c->json && gmtime_r(&t, &tm) && strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm))
		fprintf(stderr, "the coordinator (etcd) is unreachable; this is as of %s, when it answered last\n",
			text);
}

int ctl_print_columns(const struct ctl *c, const char *json, const char *list, const struct ctl_column *columns,
		      size_t n, struct ptc_error *err)
{
	json_t *doc, *rows, *item;
	char *text;
	size_t i;
	int rc;

	if (c->json)
		return ctl_print(c, json, err);
	rc = ptc_json_load(list, json, strlen(json), &doc, err);
	if (rc)
		return rc;
	ctl_note_as_of(c, (int64_t)ptc_json_count(doc, "as_of_ms"));
	rows = json_array();
	json_array_foreach(json_object_get(doc, list), i, item) {
		json_array_append_new(rows, pick(item, columns, n));
	}
	text = ptc_json_text(rows);
	json_decref(rows);
	json_decref(doc);
	if (!text)
		return ptc_nomem(err);
	rc = ctl_print(c, text, err);
	ptc_free(text);
	return rc;
}

int ctl_print_inner(const struct ctl *c, const char *json, const char *list, const char *inner, const char *key,
		    const struct ctl_column *columns, size_t n, struct ptc_error *err)
{
	json_t *doc, *flat, *rows = json_array(), *outer, *item;
	char *text;
	size_t i, k;
	int rc = ptc_json_load(list, json, strlen(json), &doc, err);

	if (rc) {
		json_decref(rows);
		return rc;
	}
	json_array_foreach(json_object_get(doc, list), i, outer) {
		json_array_foreach(json_object_get(outer, inner), k, item) {
			json_object_set(item, key, json_object_get(outer, key));
			json_array_append(rows, item);
		}
	}
	flat = json_pack("{s:i, s:o}", "version", 1, inner, rows);
	text = ptc_json_text(flat);
	json_decref(flat);
	json_decref(doc);
	if (!text)
		return ptc_nomem(err);
	rc = ctl_print_columns(c, text, inner, columns, n, err);
	ptc_free(text);
	return rc;
}

/* Names in document order, one a line: for scripts and completions. */
int ctl_print_names(const char *json, const char *list, const char *key, struct ptc_error *err)
{
	json_t *doc, *item;
	size_t i;
	int rc = ptc_json_load(list, json, strlen(json), &doc, err);

	if (rc)
		return rc;
	json_array_foreach(json_object_get(doc, list), i, item) {
		const char *name = json_string_value(json_object_get(item, key));

		if (name)
			puts(name);
	}
	json_decref(doc);
	return 0;
}

/* ---- plans and summaries ------------------------------------------------------------ */

static const char *string(const json_t *object, const char *key)
{
	const char *s = json_string_value(json_object_get(object, key));

	return s && *s ? s : "nothing";
}

static void put_bytes(const char *label, uint64_t bytes, const char *note)
{
	char text[32];

	printf("  %-22s %12s%s%s\n", label, ctl_bytes(bytes, text, sizeof text), *note ? "  " : "", note);
}

static void put_totals(const json_t *plan)
{
	const json_t *t = json_object_get(plan, "totals");
	bool exact = json_is_true(json_object_get(t, "bound_exact"));

	if (json_is_null(t)) {
		printf("  what moves is known once ranks have been built with %s for the first time\n",
		       string(plan, "to"));
		return;
	}
	put_bytes("between nodes", ptc_json_count(t, "between_nodes"), "");
	put_bytes("lower bound", ptc_json_count(t, "bound_any_mapping"),
		  exact ? "no placement moves less" : "perhaps none reaches it");
	put_bytes("between devices", ptc_json_count(t, "within_node"), "inside nodes");
	put_bytes("already in place", ptc_json_count(t, "in_place"), "");
	if (ptc_json_count(t, "reset"))
		put_bytes("begins as zeros", ptc_json_count(t, "reset"), "reset by rules");
	if (ptc_json_count(t, "derived"))
		put_bytes("made from masters", ptc_json_count(t, "derived"), "derived by rules");
}

static void put_groups(const json_t *plan)
{
	const json_t *g = json_object_get(plan, "groups");
	uint64_t split = ptc_json_count(g, "split"), across = ptc_json_count(g, "across_racks");

	if (split)
		printf("  %-22s %12" PRIu64 " of %" PRIu64 " are on more nodes than one needs\n", "TP groups", split,
		       ptc_json_count(g, "count"));
	if (across)
		printf("  %-22s %12" PRIu64 " of %" PRIu64 " are in more than one rack\n", "TP groups", across,
		       ptc_json_count(g, "count"));
}

/* Those that have to do with the plan, and those that are down or drained. */
static void put_nodes(const json_t *plan)
{
	const json_t *node;
	char in[32], out[32];
	size_t i;

	json_array_foreach(json_object_get(plan, "nodes"), i, node) {
		const char *state = json_string_value(json_object_get(node, "state"));
		bool up = !state || !strcmp(state, "up");

		if (up && !ptc_json_count(node, "in_bytes") && !ptc_json_count(node, "out_bytes") &&
		    !ptc_json_count(node, "held_bytes"))
			continue;
		printf("  %-22s %12s in  %12s out%s%s\n", string(node, "node"),
		       ctl_bytes(ptc_json_count(node, "in_bytes"), in, sizeof in),
		       ctl_bytes(ptc_json_count(node, "out_bytes"), out, sizeof out), up ? "" : "  ", up ? "" : state);
	}
}

/* "n0: 0 1, n1: 2 3": ranks by node, in the order of their first rank. */
static void put_ranks(const json_t *plan)
{
	const json_t *ranks = json_object_get(plan, "ranks"), *rank;
	const char *node = NULL;
	size_t i;

	printf("ranks by node: ");
	json_array_foreach(ranks, i, rank) {
		const char *on = string(rank, "node");

		if (!node || strcmp(on, node) != 0)
			printf("%s%s:", i ? ", " : "", on);
		printf(" %" PRIu64, ptc_json_count(rank, "rank"));
		node = on;
	}
	putchar('\n');
}

/* "0-3 7" of the ranks with that mode. */
static void put_mode(const json_t *ranks, const char *mode)
{
	size_t n = json_array_size(ranks), first = n, i;

	printf("  %-22s ranks", mode);
	for (i = 0; i <= n; i++) {
		const char *m = i < n ? json_string_value(json_object_get(json_array_get(ranks, i), "mode")) : NULL;

		if (m && !strcmp(m, mode)) {
			first = first == n ? i : first;
			continue;
		}
		if (first == n)
			continue;
		printf(" %zu", first);
		if (i - first > 1)
			printf("-%zu", i - 1);
		first = n;
	}
	putchar('\n');
}

/* What happens to the processes, of a live job; ranks are listed in order. */
static void put_modes(const json_t *plan)
{
	static const char *const modes[] = { "restart", "rebuild", "keep", "start" };
	const json_t *ranks = json_object_get(plan, "ranks"), *rank;
	bool seen[PTC_ARRAY_LEN(modes)] = { false };
	size_t i;

	json_array_foreach(ranks, i, rank) {
		const char *mode = json_string_value(json_object_get(rank, "mode"));

		for (size_t m = 0; m < PTC_ARRAY_LEN(modes) && mode; m++)
			seen[m] |= !strcmp(mode, modes[m]);
	}
	for (size_t m = 0; m < PTC_ARRAY_LEN(modes); m++)
		if (seen[m])
			put_mode(ranks, modes[m]);
}

static int load(const char *json, json_t **ret_doc, struct ptc_error *err)
{
	return ptc_json_load("document", json, strlen(json), ret_doc, err);
}

/* What becomes of ranks' blobs otherwise than that each goes where it was. */
static void put_blobs(const json_t *doc)
{
	const json_t *blobs = json_object_get(doc, "blobs");

	if (json_is_object(blobs))
		printf("  %-22s %s\n", "blobs", string(blobs, "text"));
}

/* Who chose the configuration and, where it was the planner, by what. */
static void put_choice(const json_t *doc)
{
	const json_t *choice = json_object_get(doc, "choice");
	double memory = json_number_value(json_object_get(choice, "memory_bytes"));
	char bytes[32];

	if (!json_is_object(choice))
		return;
	printf("  %-22s %12s  %s\n", "chosen by", string(choice, "by"),
	       json_object_get(choice, "why") ? string(choice, "why") : "");
	if (!json_is_number(json_object_get(choice, "step_s")))
		return;
	printf("  %-22s %10.4g s  +- %.0f %%, %s\n", "predicted step",
	       json_number_value(json_object_get(choice, "step_s")),
	       100 * json_number_value(json_object_get(choice, "error")),
	       json_is_true(json_object_get(choice, "calibrated")) ? "by measured steps" : "uncalibrated");
	put_bytes("predicted memory", (uint64_t)memory, "of a device");
	printf("  %-22s %10.4g s", "predicted pause", json_number_value(json_object_get(choice, "pause_s")));
	if (json_number_value(json_object_get(choice, "break_even_s")) > 0)
		printf("  paid back after %.0f s", json_number_value(json_object_get(choice, "break_even_s")));
	putchar('\n');
	if (json_object_get(choice, "moved_exact") && !json_is_true(json_object_get(choice, "moved_exact")))
		printf("  %-22s %12s  estimated; at least %.0f bytes\n", "moves at most",
		       ctl_bytes((uint64_t)json_number_value(json_object_get(choice, "moved_bytes")), bytes,
				 sizeof bytes),
		       json_number_value(json_object_get(choice, "moved_bytes_least")));
}

static void put_leaves(const json_t *doc)
{
	const json_t *leaves = json_object_get(doc, "leaves"), *fits = json_object_get(leaves, "fits");

	if (!json_is_object(leaves))
		return;
	printf("  %-22s %12s  %s\n", "copied when warned",
	       json_is_null(fits)   ? "unknown"
	       : json_is_true(fits) ? "in time"
				    : "TOO LATE",
	       json_is_null(fits) ? "links are not measured (`ptcctl profile` does it)" : string(leaves, "text"));
}

static void put_window(const json_t *doc)
{
	const char *node = json_string_value(json_object_get(doc, "window"));

	if (node)
		printf("  %-22s %12s  has no room for the snapshot before beside the switch: until there are copies "
		       "again, "
		       "the loss of a node may cost the job its state\n",
		       "window of one copy", node);
}

/* Where the job says `build: ahead`. */
static void put_build(const json_t *plan)
{
	const json_t *b = json_object_get(plan, "build");

	if (json_is_object(b))
		printf("  %-22s %12s  %s\n", "new ranks build",
		       strcmp(string(b, "level"), "memory") == 0 ? "ahead" : "after the end", string(b, "why"));
}

int ctl_print_plan(const struct ctl *c, const char *json, struct ptc_error *err)
{
	json_t *doc;
	int rc;

	if (c->json)
		return ctl_print(c, json, err);
	rc = load(json, &doc, err);
	if (rc)
		return rc;
	printf("job %s: %s -> %s\n", string(doc, "job"), string(doc, "from"), string(doc, "to"));
	put_choice(doc);
	put_ranks(doc);
	put_modes(doc);
	put_totals(doc);
	put_groups(doc);
	put_nodes(doc);
	put_blobs(doc);
	put_leaves(doc);
	put_window(doc);
	put_build(doc);
	json_decref(doc);
	return 0;
}

static void put_phases(const json_t *doc)
{
	const json_t *phase;
	size_t i;

	printf("  %-22s", "time per phase, ms");
	json_array_foreach(json_object_get(doc, "phases"), i, phase) {
		printf("%s %s %.1f", i ? "," : "", string(phase, "phase"),
		       json_number_value(json_object_get(phase, "ms")));
	}
	putchar('\n');
}

/* How long nobody trained, and on what that was spent. */
void ctl_put_pause(const json_t *pause)
{
	static const struct {
		const char *key, *name;
	} parts[] = {
		{ "stop_ms", "stop at boundary" },
		{ "copy_ms", "copy out" },
		{ "commit_ms", "commit" },
		{ "end_ms", "end of old ranks" },
		{ "build_ms", "build of new ranks" },
		{ "move_ms", "move" },
		{ "restore_ms", "restore" },
		{ "first_step_ms", "first step" },
	};
	double total = json_number_value(json_object_get(pause, "total_ms"));

	if (!json_is_number(json_object_get(pause, "total_ms")))
		return;
	printf("  %-22s %9.1f ms\n", "training paused", total);
	for (size_t i = 0; i < PTC_ARRAY_LEN(parts); i++) {
		const json_t *ms = json_object_get(pause, parts[i].key);

		if (json_is_number(ms))
			printf("    %-20s %9.1f ms %4.0f %%\n", parts[i].name, json_number_value(ms),
			       total > 0 ? 100 * json_number_value(ms) / total : 0.0);
	}
	if (json_is_number(json_object_get(pause, "slowed_ms")))
		printf("  %-22s %9.1f ms  while new ranks built; %.1f ms of training lost in all\n", "training slowed",
		       json_number_value(json_object_get(pause, "slowed_ms")),
		       json_number_value(json_object_get(pause, "lost_ms")));
}

/* "has finished at step 12; its state is in snapshot 2": instead of what was asked for, which came too late. */
static void put_end(const json_t *doc)
{
	uint64_t snapshot = ptc_json_count(doc, "snapshot"), step = ptc_json_count(doc, "step");

	if (json_object_get(doc, "captured_bytes") && ptc_json_count(doc, "captured_bytes"))
		printf("has finished at step %" PRIu64 "; its state is in snapshot %" PRIu64 "\n", step, snapshot);
	else if (snapshot)
		printf("has finished, its ranks at different steps (`ptcctl events`); its state is in snapshot %" PRIu64
		       ", of step %" PRIu64 "\n",
		       snapshot, step);
	else
		puts("has finished, its ranks at different steps (`ptcctl events`); it has no snapshot");
}

/* "job gpt, resize: tp=2 -> tp=4, generation 3, snapshot 4, step 120, in 1.5 s" */
static void put_title(const json_t *doc, const char *kind)
{
	const json_t *step = json_object_get(doc, "step");

	printf("job %s%s ", string(doc, "job"), strcmp(kind, "finish") ? ":" : "");
	if (!strcmp(kind, "finish")) {
		put_end(doc);
		return;
	}
	if (!strcmp(kind, "snapshot") || !strcmp(kind, "stop"))
		printf("%s at %s", kind, string(doc, "from"));
	else
		printf("%s -> %s", string(doc, "from"), string(doc, "to"));
	printf(", generation %" PRIu64 ", snapshot %" PRIu64, ptc_json_count(doc, "generation"),
	       ptc_json_count(doc, "snapshot"));
	if (json_is_integer(step) && strcmp(kind, "import") != 0)
		printf(", step %" PRIu64, ptc_json_count(doc, "step"));
	printf(", in %.3f s\n", json_number_value(json_object_get(doc, "seconds")));
}

static void put_summary(const json_t *doc)
{
	const char *kind = string(doc, "kind");
	const json_t *plan = json_object_get(doc, "plan");
	bool moved = json_is_object(json_object_get(plan, "totals")) && strcmp(kind, "import") != 0;

	put_title(doc, kind);
	if (json_object_get(doc, "captured_bytes"))
		put_bytes("captured", ptc_json_count(doc, "captured_bytes"),
			  "from the memory of ranks, over all nodes");
	if (json_object_get(doc, "device_host_bytes")) {
		put_bytes("kept on devices", ptc_json_count(doc, "device_kept_bytes"), "");
		put_bytes("device to device", ptc_json_count(doc, "device_peer_bytes"), "within nodes");
		put_bytes("host to device", ptc_json_count(doc, "device_host_bytes"),
			  json_is_true(json_object_get(doc, "device_unfinished")) ? "more is being restored" : "");
	}
	if (moved) {
		put_totals(plan);
		put_bytes("received", ptc_json_count(doc, "received_bytes"), "");
		if (json_object_get(doc, "near_bytes"))
			put_bytes("of these, in memory", ptc_json_count(doc, "near_bytes"),
				  "between nodes of one machine");
		put_bytes("copied inside nodes", ptc_json_count(doc, "copied_bytes"),
			  "so that old memory could be freed");
	} else if (!json_object_get(doc, "captured_bytes")) {
		put_bytes("stored", ptc_json_count(doc, "verified_bytes"), "over all nodes");
	}
	printf("  %-22s %12" PRIu64, "digests verified", ptc_json_count(doc, "digests_verified"));
	if (json_object_get(doc, "preserved"))
		printf("  preserved: %s", string(doc, "preserved"));
	putchar('\n');
	put_blobs(doc);
	put_phases(doc);
	put_build(plan);
	if (json_is_number(json_object_get(doc, "built_ahead_ms")))
		printf("  %-22s %9.1f ms  while the old ranks trained\n", "built ahead",
		       json_number_value(json_object_get(doc, "built_ahead_ms")));
	ctl_put_pause(json_object_get(doc, "pause"));
}

static void put_verified(const struct ctl *c, const json_t *doc)
{
	char bytes[32];

	printf("job %s: snapshot %" PRIu64 " verified: %" PRIu64 " digests, %s\n", c->args[0],
	       ptc_json_count(doc, "snapshot"), ptc_json_count(doc, "digests_verified"),
	       ctl_bytes(ptc_json_count(doc, "bytes"), bytes, sizeof bytes));
}

int ctl_print_summary(const struct ctl *c, const char *json, struct ptc_error *err)
{
	json_t *doc;
	int rc;

	if (c->json)
		return ctl_print(c, json, err);
	rc = load(json, &doc, err);
	if (rc)
		return rc;
	ctl_note_as_of(c, (int64_t)ptc_json_count(doc, "as_of_ms"));
	if (json_is_integer(json_object_get(doc, "digests_verified")) && !json_object_get(doc, "phases")) {
		put_verified(c, doc);
		json_decref(doc);
		return 0;
	}
	if (!json_object_get(doc, "phases")) { /* of a drain: short as it is */
		json_decref(doc);
		return ctl_print(c, json, err);
	}
	put_summary(doc);
	json_decref(doc);
	return 0;
}
