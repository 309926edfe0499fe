// SPDX-License-Identifier: Apache-2.0
/* ptcctl nodes: prints the daemon's document; as a table, what a person looks for first. */
#include "client/ctl/verbs.h"

#include "base/alloc.h"
#include "base/check.h"
#include "formats/json.h"

#include <string.h>

/* Columns of the table: a member, or a member of a member. */
static const struct {
	const char *column, *in, *key;
} columns[] = {
	{ "node", NULL, "node" },
	{ "state", NULL, "state" },
	{ "devices", NULL, "devices" },
	{ "used_bytes", "store", "used_bytes" },
	{ "ceiling_bytes", NULL, "ceiling_bytes" },
	{ "staging_peak_bytes", "staging", "peak_bytes" },
	{ "rack", NULL, "rack" },
	{ "address", NULL, "address" },
};

static json_t *row(const json_t *node)
{
	json_t *r = json_object();

	for (size_t i = 0; r && i < PTC_ARRAY_LEN(columns); i++) {
		const json_t *from = columns[i].in ? json_object_get(node, columns[i].in) : node;
		json_t *v = from ? json_object_get(from, columns[i].key) : NULL;

		json_object_set(r, columns[i].column, v ? v : json_null());
	}
	return r;
}

static int print_table(struct ctl *c, const char *json, struct ptc_error *err)
{
	json_t *doc, *rows = json_array(), *node;
	char *text;
	size_t i;
	int rc = ptc_json_load("nodes", json, strlen(json), &doc, err);

	if (rc) {
		json_decref(rows);
		return rc;
	}
	json_array_foreach(json_object_get(doc, "nodes"), i, node) {
		json_array_append_new(rows, row(node));
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

static int run(struct ctl *c, struct ptc_error *err)
{
	char *json = NULL;
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_nodes(c->admin, &json, err);
	if (!rc)
		rc = c->json ? ctl_print(c, json, err) : print_table(c, json, err);
	ptc_admin_free(json);
	return rc;
}

const struct ctl_verb ctl_nodes = {
	.name = "nodes",
	.args = "",
	.about = "List the nodes, their devices and memory",
	.run = run,
};
