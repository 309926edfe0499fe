// SPDX-License-Identifier: Apache-2.0
/* "model", "space" and "on_link_change" of a job: what planner/ is told (docs/planner.md), of which nothing here understands the first two. Happy path: each is a
 * map, kept as JSON; a config.json that "model" names is read now, of it what is a single value. What no JSON number of ours can be (a point,
 * true, null) is kept as a string. Failure: no map, too large, a file that cannot be read. */
#include "formats/job/job_decode.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "formats/json.h"

#include <string.h>

#define PLANNING_MAX    (64u << 10) /* bytes of one; published ones take 1 KiB */
#define CONFIG_JSON_MAX (4u << 20)

static bool is_count(const struct ptc_doc_node *node)
{
	size_t n = strlen(node->text);

	return node->plain && n && n < 16 && strspn(node->text, "0123456789") == n && (n == 1 || node->text[0] != '0');
}

static void put_node(struct ptc_buf *b, const struct ptc_doc_node *node, bool values);

/* values: of a map only what is a single value. */
static void put_children(struct ptc_buf *b, const struct ptc_doc_node *node, bool values)
{
	bool map = node->kind == PTC_DOC_MAP, begun = false;

	ptc_buf_puts(b, map ? "{" : "[");
	for (const struct ptc_doc_node *n = node->first; n; n = n->next) {
		if (values && n->kind != PTC_DOC_TEXT)
			continue;
		if (begun)
			ptc_buf_puts(b, ",");
		begun = true;
		if (map) {
			ptc_json_put_string(b, n->key);
			ptc_buf_puts(b, ":");
		}
		put_node(b, n, false);
	}
	ptc_buf_puts(b, map ? "}" : "]");
}

static void put_node(struct ptc_buf *b, const struct ptc_doc_node *node, bool values)
{
	if (node->kind != PTC_DOC_TEXT)
		put_children(b, node, values);
	else if (is_count(node))
		ptc_buf_puts(b, node->text);
	else
		ptc_json_put_string(b, node->text);
}

/* {config: PATH, ...} with the file's values in PATH's place. */
static int put_with_config(struct ptc_job_decoder *d, const struct ptc_doc_node *node,
			   const struct ptc_doc_node *config, struct ptc_buf *b)
{
	ptc_auto_free char *path = NULL, *text = NULL;
	struct ptc_doc doc = { 0 };
	size_t len = 0;
	int rc;

	if (!d->dir)
		return ptc_doc_error(d->doc, config, d->err, PTC_EINVAL,
				     "no file may be named here; write the model out");
	path = config->text[0] == '/' ? ptc_strdup(config->text) : ptc_asprintf("%s/%s", d->dir, config->text);
	if (!path)
		return ptc_error_set(d->err, PTC_ENOMEM, "out of memory");
	rc = ptc_sys_read_file(path, CONFIG_JSON_MAX, &text, &len, d->err);
	if (!rc)
		rc = ptc_doc_from_yaml(path, text, len, &doc, d->err);
	if (rc)
		return rc;
	if (doc.root->kind != PTC_DOC_MAP)
		rc = ptc_doc_error(&doc, doc.root, d->err, PTC_EINVAL, "the model's config is not a map");
	ptc_buf_puts(b, "{\"config\":");
	put_node(b, doc.root, true);
	for (const struct ptc_doc_node *n = node->first; n; n = n->next)
		if (n != config) {
			ptc_buf_puts(b, ",");
			ptc_json_put_string(b, n->key);
			ptc_buf_puts(b, ":");
			put_node(b, n, false);
		}
	ptc_buf_puts(b, "}");
	ptc_doc_done(&doc);
	return rc;
}

static int decode_one(struct ptc_job_decoder *d, const struct ptc_doc_node *root, const char *key, char **ret)
{
	const struct ptc_doc_node *node = ptc_doc_get(root, key), *config;
	struct ptc_buf b = PTC_BUF_INIT;
	int rc = 0;

	if (!node)
		return 0;
	if (node->kind != PTC_DOC_MAP)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "%s is not a map", key);
	config = ptc_doc_get(node, "config");
	if (config && config->kind == PTC_DOC_TEXT)
		rc = put_with_config(d, node, config, &b);
	else
		put_node(&b, node, false);
	if (!rc && b.len > PLANNING_MAX)
		rc = ptc_doc_error(d->doc, node, d->err, PTC_ELIMIT, "%s has %zu bytes, at most %u are kept", key,
				   b.len, PLANNING_MAX);
	if (!rc && !(*ret = ptc_buf_steal(&b, NULL)))
		rc = ptc_error_set(d->err, PTC_ENOMEM, "out of memory");
	ptc_buf_done(&b);
	return rc;
}

int ptc_job_decode_planning(struct ptc_job_decoder *d, const struct ptc_doc_node *root)
{
	static const char *const words[] = { "event", "replan" };
	const struct ptc_doc_node *node = ptc_doc_get(root, "on_link_change");
	size_t word = 0;
	int rc = decode_one(d, root, "model", &d->job->model);

	if (!rc)
		rc = decode_one(d, root, "space", &d->job->space);
	if (!rc && node)
		rc = ptc_doc_word(d->doc, node, "on_link_change", words, PTC_ARRAY_LEN(words), &word, d->err);
	if (!rc && word && !d->job->model)
		rc = ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				   "on_link_change: replan needs a model:, which the planner predicts steps by");
	d->job->replan_on_links = word == 1;
	return rc;
}

void ptc_job_put_planning(struct ptc_buf *b, const struct ptc_job_desc *job)
{
	if (job->model) {
		ptc_buf_puts(b, ",\"model\":");
		ptc_buf_puts(b, job->model);
	}
	if (job->space) {
		ptc_buf_puts(b, ",\"space\":");
		ptc_buf_puts(b, job->space);
	}
	if (job->replan_on_links)
		ptc_buf_puts(b, ",\"on_link_change\":\"replan\"");
}
