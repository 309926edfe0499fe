// SPDX-License-Identifier: Apache-2.0
/* What a person reads of the larger documents: chosen columns of a listing, a
 * plan, and the summary of a switch. --format json prints the document as it
 * came instead. Failure: PTC_EPEER for a document that is not JSON, PTC_ENOMEM. */
#include "client/ctl/ctl.h"

#include "base/alloc.h"
#include "formats/json.h"

#include <inttypes.h>
#include <string.h>

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
	rows = json_array();
	json_array_foreach(json_object_get(doc, list), i, item) {
		json_array_append_new(rows, pick(item, columns, n));
	}
	text = ptc_json_text(rows);
	json_decref(rows);
	json_decref(doc);
	if (!text)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	rc = ctl_print(c, text, err);
	ptc_free(text);
	return rc;
}

/* ---- plans and summaries ------------------------------------------------------------ */

static uint64_t number(const json_t *object, const char *key)
{
	json_int_t v = json_integer_value(json_object_get(object, key));

	return v > 0 ? (uint64_t)v : 0;
}

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

	put_bytes("between nodes", number(t, "between_nodes"), "");
	put_bytes("lower bound", number(t, "bound_any_mapping"),
		  exact ? "no placement moves less" : "perhaps none reaches it");
	put_bytes("between devices", number(t, "within_node"), "inside nodes");
	put_bytes("already in place", number(t, "in_place"), "");
}

static void put_nodes(const json_t *plan)
{
	const json_t *node;
	char in[32], out[32];
	size_t i;

	json_array_foreach(json_object_get(plan, "nodes"), i, node) {
		printf("  %-22s %12s in  %12s out\n", string(node, "node"),
		       ctl_bytes(number(node, "in_bytes"), in, sizeof in),
		       ctl_bytes(number(node, "out_bytes"), out, sizeof out));
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
		printf(" %" PRIu64, number(rank, "rank"));
		node = on;
	}
	putchar('\n');
}

static int load(const char *json, json_t **ret_doc, struct ptc_error *err)
{
	return ptc_json_load("document", json, strlen(json), ret_doc, err);
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
	put_ranks(doc);
	put_totals(doc);
	put_nodes(doc);
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
		       json_real_value(json_object_get(phase, "ms")));
	}
	putchar('\n');
}

static void put_summary(const json_t *doc)
{
	bool import = strcmp(string(doc, "kind"), "import") == 0;

	printf("job %s: %s -> %s, generation %" PRIu64 ", snapshot %" PRIu64 ", in %.3f s\n", string(doc, "job"),
	       string(doc, "from"), string(doc, "to"), number(doc, "generation"), number(doc, "snapshot"),
	       json_real_value(json_object_get(doc, "seconds")));
	if (!import)
		put_totals(json_object_get(doc, "plan"));
	put_bytes(import ? "stored" : "received", number(doc, import ? "verified_bytes" : "received_bytes"),
		  import ? "over all nodes" : "");
	if (!import)
		put_bytes("copied inside nodes", number(doc, "copied_bytes"), "so that old memory could be freed");
	printf("  %-22s %12" PRIu64 "  preserved: %s\n", "digests verified", number(doc, "digests_verified"),
	       string(doc, "preserved"));
	put_phases(doc);
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
	if (!json_object_get(doc, "phases")) { /* of a drain or a verification: short as it is */
		json_decref(doc);
		return ctl_print(c, json, err);
	}
	put_summary(doc);
	json_decref(doc);
	return 0;
}
