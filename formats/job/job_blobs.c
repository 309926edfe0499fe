/* SPDX-License-Identifier: Apache-2.0 */
/* Rules for the blobs of a live job's ranks in a switch: "blobs". Happy path: a list of patterns, each with a state, in
 * order. Failure: file and line of the key at fault; a state that needs the meaning of bytes (max, derive); a rule to
 * which an earlier one leaves no blob. */
#include "formats/job/job_decode.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "formats/json.h"
#include "reshard/spec/glob.h"

#include <inttypes.h>
#include <string.h>

static const char *const keys[] = { "match", "state" };
/* Those that can be carried out in the order of enum ptc_blob_fate, less its first; then those that are of tensors
 * only. */
static const char *const states[] = { "carry", "replicate", "reset", "refuse", "max", "derive" };

static int get_match(struct ptc_job_decoder *d, const struct ptc_doc_node *map, struct ptc_blob_rule *r)
{
	const struct ptc_doc_node *node = ptc_doc_get(map, "match");
	const char *text = NULL;
	int rc = node ? ptc_doc_text(d->doc, node, "match", &text, d->err)
		      : ptc_doc_error(d->doc, map, d->err, PTC_EINVAL, "a rule of blobs has no \"match\"");

	if (rc)
		return rc;
	if (strlen(text) > PTC_STATE_NAME_MAX || !ptc_glob_valid(text))
		return ptc_doc_error(
			d->doc, node, d->err, PTC_EINVAL,
			"match \"%.80s\" is not a pattern for names of blobs: use at most %d bytes, and close each [",
			text, PTC_STATE_NAME_MAX);
	r->match = ptc_strdup(text);
	return r->match ? 0 : ptc_nomem(d->err);
}

/* A word. As a map, which rules of tensors know, it asks for what blobs cannot have either. */
static int get_state(struct ptc_job_decoder *d, const struct ptc_doc_node *map, struct ptc_blob_rule *r)
{
	const struct ptc_doc_node *node = ptc_doc_get(map, "state");
	size_t word = 0;
	int rc;

	if (!node)
		return ptc_doc_error(d->doc, map, d->err, PTC_EINVAL,
				     "a rule of blobs has no \"state\": carry, replicate, reset or refuse");
	if (node->kind == PTC_DOC_MAP && node->n == 1 && !strcmp(node->first->key, "replicate"))
		return ptc_doc_error(
			d->doc, node, d->err, PTC_EINVAL,
			"replicate takes no axis for blobs: a rank without the blob gets the lowest rank's");
	if (node->kind == PTC_DOC_MAP && node->n == 1 && !strcmp(node->first->key, "derive"))
		word = PTC_ARRAY_LEN(states) - 1;
	rc = word ? 0 : ptc_doc_word(d->doc, node, "state", states, PTC_ARRAY_LEN(states), &word, d->err);
	if (rc)
		return rc;
	if (word >= PTC_FATE_REFUSE)
		return ptc_doc_error(
			d->doc, node, d->err, PTC_EINVAL,
			"state %s is not for blobs: a blob is bytes that only the program can read; write carry, "
			"replicate, reset or refuse",
			states[word]);
	r->fate = (enum ptc_blob_fate)(PTC_FATE_CARRY + word);
	return 0;
}

static int get_rule(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_blob_rules *rules)
{
	struct ptc_blob_rule *r = &rules->v[rules->n++];
	int rc = ptc_doc_check_map(d->doc, node, "a rule of blobs", keys, PTC_ARRAY_LEN(keys), d->err);

	if (rc == 0)
		rc = get_match(d, node, r);
	if (rc == 0)
		rc = get_state(d, node, r);
	for (size_t i = 0; !rc && i + 1 < rules->n; i++)
		if (ptc_blob_rule_shadows(rules->v[i].match, r->match))
			rc = ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
					   "rule \"%.80s\" of blobs never applies: the earlier rule \"%.80s\" takes "
					   "every name that it matches",
					   r->match, rules->v[i].match);
	return rc;
}

int ptc_job_decode_blobs(struct ptc_job_decoder *d, const struct ptc_doc_node *root)
{
	const struct ptc_doc_node *list = ptc_doc_get(root, "blobs");
	struct ptc_blob_rules *rules = &d->job->blobs;

	if (!list)
		return 0;
	if (!d->job->has_run)
		return ptc_doc_error(d->doc, list, d->err, PTC_EINVAL,
				     "\"blobs\" is for jobs that run something; the job has no \"run\"");
	if (list->kind != PTC_DOC_LIST || !list->n || list->n > PTC_BLOB_RULES_MAX)
		return ptc_doc_error(d->doc, list, d->err, PTC_EINVAL, "blobs is a list of 1 to %d rules",
				     PTC_BLOB_RULES_MAX);
	rules->v = ptc_calloc(list->n, sizeof *rules->v);
	if (!rules->v)
		return ptc_nomem(d->err);
	for (const struct ptc_doc_node *n = list->first; n; n = n->next) {
		int rc = get_rule(d, n, rules);

		if (rc)
			return rc;
	}
	return 0;
}

void ptc_job_put_blobs(struct ptc_buf *b, const struct ptc_job_desc *job)
{
	for (size_t i = 0; i < job->blobs.n; i++) {
		ptc_buf_puts(b, i ? ",{\"match\":" : ",\"blobs\":[{\"match\":");
		ptc_json_put_string(b, job->blobs.v[i].match);
		ptc_buf_printf(b, ",\"state\":\"%s\"}", ptc_blob_fate_name(job->blobs.v[i].fate));
	}
	if (job->blobs.n)
		ptc_buf_puts(b, "]");
}
