/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a description that are only carried along: "carry" of "files", and "model", "space" and "on_link_change" of
 * a job. "carry" names files that a job's directories have beside its state; they are read now and kept as text. The
 * other keys are for planner/ (docs/planner.md); nothing here understands the first two of them.
 *
 * Happy path: each is a map, kept as JSON. If "model" names a config.json, it is read now, and its single values are
 * kept. A value that no JSON number of ours can express (a point, true, null) is kept as a string. Failure: not a map,
 * too large, a file that cannot be read. */
#include "formats/job/job_decode.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "base/number/search.h"
#include "formats/json.h"
#include "formats/names.h"
#include "formats/tensors/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
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
		return ptc_nomem(d->err);
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
		rc = ptc_nomem(d->err);
	ptc_buf_done(&b);
	return rc;
}

int ptc_job_decode_planning(struct ptc_job_decoder *d, const struct ptc_doc_node *root)
{
	int rc = decode_one(d, root, "model", &d->job->model);

	return rc ? rc : decode_one(d, root, "space", &d->job->space);
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
}

/* ---- carried files ---- */

void ptc_job_carried_done(struct ptc_job_files *files)
{
	for (size_t i = 0; i < files->ncarried; i++) {
		ptc_free(files->carried[i].name);
		ptc_free(files->carried[i].text);
	}
	ptc_free(files->carried);
	files->carried = NULL;
	files->ncarried = 0;
}

/* A name that a snapshot's directory has free for it. */
static int check_name(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const char *name)
{
	static const char *const taken[] = { PTC_ST_MODEL_NAME, "optimizer.safetensors", "tensors" };
	bool fine = name[0] && name[0] != '.' && strlen(name) <= PTC_JOB_CARRIED_NAME && !strchr(name, '/') &&
		    ptc_name_is_utf8(name);

	for (const char *p = name; fine && *p; p++)
		fine = (unsigned char)*p >= 0x20 && *p != 0x7f;
	if (!fine)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "\"%.130s\" cannot be the name of a carried file: it has 1 to %d bytes, begins "
				     "with no dot, and has no "
				     "slash or control character",
				     name, PTC_JOB_CARRIED_NAME);
	for (size_t i = 0; i < PTC_ARRAY_LEN(taken); i++)
		if (!strcmp(name, taken[i]) || !strncmp(name, "gen-", 4))
			return ptc_doc_error(
				d->doc, node, d->err, PTC_EINVAL,
				"\"%.130s\" is a name of the state's own files: carry it under another one", name);
	return 0;
}

/* Takes text over. */
static int add_carried(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const char *name, char *text)
{
	struct ptc_job_files *files = &d->job->files;
	struct ptc_job_carried c = { ptc_strdup(name), text };
	size_t bytes = strlen(text);
	int rc = check_name(d, node, name);

	for (size_t i = 0; i < files->ncarried; i++) {
		bytes += strlen(files->carried[i].text);
		if (!rc && !strcmp(files->carried[i].name, name))
			rc = ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "two carried files are named \"%.130s\"",
					   name);
	}
	if (!rc && !ptc_name_is_utf8(text))
		rc = ptc_doc_error(
			d->doc, node, d->err, PTC_EINVAL,
			"\"%.130s\" is not UTF-8 text: only small text files, such as config.json, are carried", name);
	if (!rc && bytes > PTC_JOB_CARRIED_BYTES)
		rc = ptc_doc_error(d->doc, node, d->err, PTC_ELIMIT,
				   "carried files have %zu bytes with \"%.130s\", at most %u: keep large ones, such as "
				   "a tokenizer's, beside "
				   "the job",
				   bytes, name, PTC_JOB_CARRIED_BYTES);
	if (!rc && !c.name)
		rc = ptc_nomem(d->err);
	if (rc) {
		ptc_free(c.name);
		ptc_free(c.text);
		return rc;
	}
	files->carried[files->ncarried++] = c;
	return 0;
}

/* A path, whose file is read now and has its own name. */
static int carry_path(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	const char *given, *slash;
	ptc_auto_free char *path = NULL;
	char *text = NULL;
	size_t len = 0;
	int rc = ptc_doc_text(d->doc, node, "carry", &given, d->err);

	if (rc)
		return rc;
	if (!d->dir)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "no file may be named here; write carry as NAME: TEXT");
	path = given[0] == '/' ? ptc_strdup(given) : ptc_asprintf("%s/%s", d->dir, given);
	if (!path)
		return ptc_nomem(d->err);
	rc = ptc_sys_read_file(path, PTC_JOB_CARRIED_BYTES, &text, &len, d->err);
	if (rc) {
		ptc_error_wrap(d->err, "%s:%u: carry", d->doc->what, node->line);
		return rc;
	}
	slash = strrchr(given, '/');
	if (strlen(text) != len) {
		ptc_free(text);
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "\"%.130s\" is not text: only small text files, such as config.json, are carried",
				     given);
	}
	return add_carried(d, node, slash ? slash + 1 : given, text);
}

static int carry_text(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	char *copy;

	if (node->kind != PTC_DOC_TEXT || !node->string)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "carry: \"%.130s\" is not text", node->key);
	copy = ptc_strdup(node->text);
	return copy ? add_carried(d, node, node->key, copy) : ptc_nomem(d->err);
}

PTC_BY_NAME(compare_carried, struct ptc_job_carried, name)

int ptc_job_decode_carried(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	struct ptc_job_files *files = &d->job->files;
	int rc = 0;

	if (node->kind == PTC_DOC_TEXT)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "carry is a list of paths, or a map of names to texts");
	if (!node->n || node->n > PTC_JOB_MAX_CARRIED)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "carry has %zu files: give 1 to %d", node->n,
				     PTC_JOB_MAX_CARRIED);
	files->carried = ptc_calloc(node->n, sizeof *files->carried);
	if (!files->carried)
		return ptc_nomem(d->err);
	for (const struct ptc_doc_node *n = node->first; !rc && n; n = n->next)
		rc = node->kind == PTC_DOC_LIST ? carry_path(d, n) : carry_text(d, n);
	qsort(files->carried, files->ncarried, sizeof *files->carried, compare_carried);
	return rc;
}

void ptc_job_put_carried(struct ptc_buf *b, const struct ptc_job_files *files)
{
	if (!files->ncarried)
		return;
	ptc_buf_puts(b, "\"carry\":");
	for (size_t i = 0; i < files->ncarried; i++) {
		ptc_buf_puts(b, i ? "," : "{");
		ptc_json_put_string(b, files->carried[i].name);
		ptc_buf_puts(b, ":");
		ptc_json_put_string(b, files->carried[i].text);
	}
	ptc_buf_puts(b, "}");
}
