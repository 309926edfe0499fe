/* SPDX-License-Identifier: Apache-2.0 */
/* Rules and the gpus table. A rule's "fields" map becomes one rule per field before the rule itself. So the files that
 * use rules see flat ones only. Happy path: rules in document order. Failure: file and line of the key at fault. */
#include "formats/job/job_decode.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "base/number/search.h"
#include "formats/names.h"
#include "reshard/spec/glob.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RULES_FILE_MAX (1u << 20) /* a rule set is a few KiB */

static const char *const set_keys[] = { "version", "parameters", "rules", "buffers" };
static const char *const rule_keys[] = { "match",  "split", "layer", "expert", "shard",
					 "fields", "state", "when",  "unless" };
static const char *const layer_keys[] = { "match", "offset", "after", "at", "with" };
static const char *const override_keys[] = { "split", "layer", "expert", "shard", "state" };
static const char *const state_keys[] = { "derive", "replicate" };
static const char *const primary_keys[] = { "tp", "dp", "cp" };
static const enum ptc_axis primary_axes[] = { PTC_AXIS_TP, PTC_AXIS_DP, PTC_AXIS_CP };
static const char *const config_keys[] = { "tp",       "pp",    "dp",      "cp",          "ep",           "etp",
					   "zero",     "order", "stages",  "micro_batch", "global_batch", "vpp",
					   "replicas", "shard", "experts", "micro_steps", "recompute",    "schedule" };
const char *const ptc_job_states[PTC_JOB_STATES] = { "carry", "max", "replicate", "derive", "reset", "refuse" };

static char *own(const char *s)
{
	return s ? ptc_strdup(s) : NULL;
}

/* A pattern with one {}, for the whole name. */
static int layer_pattern(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const char **ret_text)
{
	const char *text = NULL, *mark;
	int rc = ptc_doc_text(d->doc, node, "layer", &text, d->err);

	if (rc)
		return rc;
	mark = strstr(text, "{}");
	if (!mark || strstr(mark + 2, "{}") || strlen(text) > PTC_TENSOR_NAME_MAX)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "layer must be first, last, ends or a pattern of the whole name with one {} where "
				     "the layer's number stands, such as \"h.{}.*\", not \"%.80s\"",
				     text);
	*ret_text = text;
	return 0;
}

/* 1 + the greatest number that the pattern finds in a name of the job's tensors. */
static int count_layers(struct ptc_job_decoder *d, const struct ptc_doc_node *node, int64_t *ret_n)
{
	const struct ptc_spec *spec = &d->job->spec;
	const char *pattern = NULL;
	int64_t number, n = 0;
	int rc = layer_pattern(d, node, &pattern);

	for (size_t i = 0; i < spec->ntensors && !rc; i++)
		if (ptc_layer_number(pattern, spec->tensors[i].name, &number) && number < PTC_MAX_TENSORS)
			n = PTC_MAX(n, number + 1);
	*ret_n = n;
	return rc;
}

/* {match: PATTERN, offset: N}, {match: PATTERN, after: PATTERN}, {at: N} or {with: PATTERN}. */
static int decode_layer_map(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_rule *r)
{
	const struct ptc_doc_node *match = ptc_doc_get(node, "match"), *at = ptc_doc_get(node, "at"),
				  *with = ptc_doc_get(node, "with"), *offset = ptc_doc_get(node, "offset"),
				  *after = ptc_doc_get(node, "after");
	const char *text = NULL;
	int rc = ptc_doc_check_map(d->doc, node, "layer", layer_keys, PTC_ARRAY_LEN(layer_keys), d->err);

	if (rc)
		return rc;
	if (match ? at || with || (offset && after) : node->n != 1 || (!at && !with))
		return ptc_doc_error(
			d->doc, node, d->err, PTC_EINVAL,
			"layer must have \"match\" and one of \"offset\" and \"after\", or \"at\" or \"with\" alone");
	r->place = PTC_PLACE_LAYER;
	if (at || offset)
		rc = ptc_doc_int(d->doc, at ? at : offset, at ? "at" : "offset", 0, PTC_MAX_TENSORS - 1,
				 &r->layer_offset, d->err);
	else if (after || with)
		rc = count_layers(d, after ? after : with, &r->layer_offset);
	if (with && r->layer_offset)
		r->layer_offset--; /* the last of them */
	if (rc || !match)
		return rc;
	rc = layer_pattern(d, match, &text);
	if (rc)
		return rc;
	r->layer = ptc_strdup(text);
	return r->layer ? 0 : ptc_nomem(d->err);
}

static int decode_layer(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_rule *r)
{
	static const struct {
		const char *word;
		enum ptc_place place;
	} words[] = { { "first", PTC_PLACE_FIRST }, { "last", PTC_PLACE_LAST }, { "ends", PTC_PLACE_ENDS } };
	const char *text = NULL;
	int rc;

	if (node->kind == PTC_DOC_MAP)
		return decode_layer_map(d, node, r);
	rc = ptc_doc_text(d->doc, node, "layer", &text, d->err);
	if (rc)
		return rc;
	for (size_t i = 0; i < PTC_ARRAY_LEN(words); i++)
		if (!strcmp(text, words[i].word)) {
			r->place = words[i].place;
			return 0;
		}
	rc = layer_pattern(d, node, &text);
	if (rc)
		return rc;
	r->place = PTC_PLACE_LAYER;
	r->layer = ptc_strdup(text);
	return r->layer ? 0 : ptc_nomem(d->err);
}

/* layer, or base's. */
static int decode_place(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const struct ptc_rule *base,
			struct ptc_rule *r)
{
	if (node)
		return decode_layer(d, node, r);
	if (!base)
		return 0;
	r->place = base->place;
	r->layer_offset = base->layer_offset;
	r->layer = own(base->layer);
	return base->layer && !r->layer ? ptc_nomem(d->err) : 0;
}

static int check_declared(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const char *field)
{
	const struct ptc_spec *spec = &d->job->spec;
	const char *known[PTC_MAX_FIELDS], *near;

	for (size_t i = 0; i < spec->nfields; i++) {
		known[i] = spec->fields[i].name;
		if (!strcmp(known[i], field))
			return 0;
	}
	near = ptc_name_nearest(field, known, spec->nfields);
	return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "field \"%.63s\" is not one of the job's fields%s%s%s",
			     field, near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

/* {axis: index} of the replica that counts. */
static int decode_primary(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_rule *r)
{
	int64_t at = 0;
	int rc = ptc_doc_check_map(d->doc, node, "replicate", primary_keys, PTC_ARRAY_LEN(primary_keys), d->err);

	if (!rc && node->n != 1)
		rc = ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "replicate must name one axis");
	if (rc == 0)
		rc = ptc_doc_int(d->doc, node->first, node->first->key, 0, UINT32_MAX, &at, d->err);
	if (rc)
		return rc;
	r->carry = PTC_CARRY_REPLICATE;
	r->primary_at = (uint32_t)at;
	for (size_t i = 0; i < PTC_ARRAY_LEN(primary_keys); i++)
		if (!strcmp(node->first->key, primary_keys[i]))
			r->primary = primary_axes[i];
	return 0;
}

static int decode_master(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_rule *r)
{
	const char *text = NULL;
	int rc = ptc_doc_text(d->doc, node, "a field", &text, d->err);

	if (rc == 0)
		rc = check_declared(d, node, text);
	if (rc)
		return rc;
	r->carry = PTC_CARRY_DERIVE;
	r->master = ptc_strdup(text);
	return r->master ? 0 : ptc_nomem(d->err);
}

/* A word, {derive: field} or {replicate: {axis: index}}. Of fields, which are what parameters are derived from, a
 * rule's derive says nothing. */
static int decode_state(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const struct ptc_rule *base,
			struct ptc_rule *r)
{
	size_t word = PTC_CARRY;
	int rc;

	if (!node) {
		r->carry = base && !base->master ? base->carry : PTC_CARRY;
		r->primary = base ? base->primary : PTC_AXIS_NONE;
		r->primary_at = base ? base->primary_at : 0;
		return 0;
	}
	if (node->kind != PTC_DOC_MAP) {
		rc = ptc_doc_word(d->doc, node, "state", ptc_job_states, PTC_JOB_STATES, &word, d->err);
		r->carry = (enum ptc_carry)word;
		return rc;
	}
	rc = ptc_doc_check_map(d->doc, node, "state", state_keys, PTC_ARRAY_LEN(state_keys), d->err);
	if (!rc && node->n != 1)
		rc = ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				   "state must have one of \"derive\" and \"replicate\"");
	if (rc)
		return rc;
	return strcmp(node->first->key, "derive") ? decode_primary(d, node->first, r)
						  : decode_master(d, node->first, r);
}

/* split, layer, expert, shard and state of node into r, which has none yet; absent keys come from base (NULL:
 * defaults). */
static int decode_placement(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const struct ptc_rule *base,
			    struct ptc_rule *r)
{
	int rc = ptc_job_decode_splits(d, ptc_doc_get(node, "split"), base, r);

	if (!rc)
		rc = decode_place(d, ptc_doc_get(node, "layer"), base, r);
	if (!rc)
		rc = ptc_job_decode_expert(d, ptc_doc_get(node, "expert"), base, r);
	if (!rc)
		rc = ptc_job_decode_shard(d, ptc_doc_get(node, "shard"), base, r);
	if (!rc)
		rc = decode_state(d, ptc_doc_get(node, "state"), base, r);
	if (!rc && d->yaml && (r->carry == PTC_CARRY_REPLICATE || r->carry == PTC_CARRY_MAX) &&
	    r->shard == PTC_SHARD_CONFIG)
		r->shard = PTC_SHARD_NONE;
	return rc;
}

/* NULL: the rule's state is carried out. */
static const char *state_wrong(const struct ptc_job_desc *job, const struct ptc_rule *r)
{
	if (r->carry == PTC_CARRY_DERIVE && !r->master)
		return "is for parameters and must name the field that they are made from: {derive: FIELD}";
	if (job->has_run && !job->spec.ntensors && r->primary == PTC_AXIS_NONE && r->carry != PTC_CARRY_MAX)
		return "is not for tensors that ranks declare: rules of a live job without \"tensors\" only choose the "
		       "primary replica, {replicate: {AXIS: INDEX}}, or the greatest value, max";
	if (!job->has_run && r->primary != PTC_AXIS_NONE)
		return "with an axis needs ranks that declare their tensors; without ranks, replicas do not differ";
	if ((r->carry == PTC_CARRY_REPLICATE || r->carry == PTC_CARRY_MAX) && !ptc_rule_is_whole(r))
		return "needs tensors that every rank has whole; leave out split, expert and any shard but none";
	if ((r->carry == PTC_CARRY_RESET || r->carry == PTC_CARRY_DERIVE) && job->has_run)
		return "is not supported in a live job, whose ranks declare their tensors; leave it out";
	return NULL;
}

/* What a job lists has a greatest, where a rule says so. What ranks declare is looked at when they do. */
static int check_max(const struct ptc_spec *spec, struct ptc_error *err)
{
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	bool any = false;
	int rc = 0;

	for (size_t i = 0; i < spec->nrules; i++)
		any |= ptc_rule_takes_max(&spec->rules[i]);
	for (size_t i = 0; any && !rc && i < ptc_spec_items(spec); i++)
		rc = ptc_rule_check_max(ptc_spec_rule(spec, i), ptc_item_name(spec, i, name, sizeof(name)),
					ptc_item_dtype(spec, i), err);
	return rc;
}

int ptc_job_check_states(const struct ptc_job_desc *job, struct ptc_error *err)
{
	for (size_t i = 0; i < job->spec.nrules; i++) {
		const struct ptc_rule *r = &job->spec.rules[i];
		const char *wrong = state_wrong(job, r);

		if (wrong)
			return ptc_error_set(err, PTC_EINVAL, "rule \"%.300s\"%s%.200s: state %s %s", r->match,
					     r->fields ? ", fields " : "", r->fields ? r->fields : "",
					     ptc_job_states[r->carry], wrong);
	}
	return check_max(&job->spec, err);
}

/* A zeroed rule at the end of the spec. The pointer lives until the next call. */
static int push_rule(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_rule **ret_rule)
{
	struct ptc_spec *spec = &d->job->spec;

	if (spec->nrules == PTC_MAX_RULES)
		return ptc_doc_error(d->doc, node, d->err, PTC_ELIMIT, "more than %d rules", PTC_MAX_RULES);
	if (!PTC_ROOM(spec->rules, spec->nrules + 1, d->rules_cap))
		return ptc_nomem(d->err);
	*ret_rule = &spec->rules[spec->nrules++];
	memset(*ret_rule, 0, sizeof **ret_rule);
	(*ret_rule)->of_set = d->in_set;
	return 0;
}

/* fields: [a, b]: the rule is for these fields only. */
static int decode_field_list(struct ptc_job_decoder *d, const struct ptc_doc_node *node, char **ret_fields)
{
	struct ptc_buf b = PTC_BUF_INIT;
	int rc = 0;

	if (!node->n || node->n > PTC_MAX_FIELDS)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "fields must name 1 to %d fields",
				     PTC_MAX_FIELDS);
	for (const struct ptc_doc_node *n = node->first; n && !rc; n = n->next) {
		const char *text = NULL;

		rc = ptc_doc_text(d->doc, n, "a field", &text, d->err);
		if (!rc)
			rc = check_declared(d, n, text);
		if (!rc)
			ptc_buf_printf(&b, "%s%s", b.len ? "," : "", text);
	}
	if (!rc && ptc_buf_failed(&b))
		rc = ptc_nomem(d->err);
	if (!rc)
		*ret_fields = ptc_buf_steal(&b, NULL);
	ptc_buf_done(&b);
	return rc;
}

/* fields: {a: {...}}: one rule per field, ahead of the rule they override. */
static int decode_overrides(struct ptc_job_decoder *d, const struct ptc_doc_node *fields, const struct ptc_rule *base)
{
	for (const struct ptc_doc_node *n = fields->first; n; n = n->next) {
		struct ptc_rule *r = NULL;
		int rc = check_declared(d, n, n->key);

		if (!rc)
			rc = ptc_doc_check_map(d->doc, n, "a field of a rule", override_keys,
					       PTC_ARRAY_LEN(override_keys), d->err);
		if (!rc)
			rc = push_rule(d, n, &r);
		if (rc)
			return rc;
		r->match = own(base->match);
		r->fields = own(n->key);
		if (!r->match || !r->fields)
			return ptc_nomem(d->err);
		rc = decode_placement(d, n, base, r);
		if (rc)
			return rc;
	}
	return 0;
}

/* Fills r, which belongs to no spec yet; overrides go into the spec ahead of it. */
static int decode_rule_into(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_rule *r)
{
	const struct ptc_doc_node *match, *fields;
	const char *text = NULL;
	char *list = NULL;
	int rc;

	rc = ptc_doc_check_map(d->doc, node, "a rule", rule_keys, PTC_ARRAY_LEN(rule_keys), d->err);
	if (rc)
		return rc;
	match = ptc_doc_get(node, "match");
	fields = ptc_doc_get(node, "fields");
	if (!match)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "a rule has no \"match\"");
	rc = ptc_doc_text(d->doc, match, "match", &text, d->err);
	if (!rc && strlen(text) > PTC_TENSOR_NAME_MAX)
		rc = ptc_doc_error(d->doc, match, d->err, PTC_ELIMIT, "match is longer than %d bytes",
				   PTC_TENSOR_NAME_MAX);
	if (rc)
		return rc;
	r->match = own(text);
	if (!r->match)
		return ptc_nomem(d->err);
	rc = decode_placement(d, node, NULL, r);
	if (rc || !fields)
		return rc;
	if (fields->kind == PTC_DOC_MAP)
		return decode_overrides(d, fields, r);
	if (fields->kind != PTC_DOC_LIST)
		return ptc_doc_error(d->doc, fields, d->err, PTC_EINVAL,
				     "fields of a rule must be a list of names or a map");
	rc = decode_field_list(d, fields, &list);
	r->fields = list;
	return rc;
}

/* First NAME.yaml on the search path; NULL when there is none. */
static char *find_rules(const char *rules_path, const char *name)
{
	for (const char *p = rules_path; p && *p;) {
		size_t n = strcspn(p, ":");
		char *path = n ? ptc_asprintf("%.*s/%s.yaml", (int)n, p, name) : NULL;

		if (path && !access(path, R_OK))
			return path;
		ptc_free(path);
		p += n + (p[n] == ':');
	}
	return NULL;
}

static int decode_rule_list(struct ptc_job_decoder *d, const struct ptc_doc_node *node);

/* The rule set's parameters, with the values that `use` gives. */
static int decode_parameters(struct ptc_job_decoder *d, const struct ptc_doc *set, const struct ptc_doc_node *map,
			     const struct ptc_doc_node *use)
{
	const char *known[PTC_MAX_PARAMETERS + 1] = { "use" };
	size_t n = 0;

	if (map && (map->kind != PTC_DOC_MAP || map->n > PTC_MAX_PARAMETERS))
		return ptc_doc_error(set, map, d->err, PTC_EINVAL, "parameters must be a map of at most %d numbers",
				     PTC_MAX_PARAMETERS);
	for (const struct ptc_doc_node *p = map ? map->first : NULL; p; p = p->next) {
		const struct ptc_doc_node *given = use->kind == PTC_DOC_MAP ? ptc_doc_get(use, p->key) : NULL;
		int rc = ptc_doc_int(given ? d->doc : set, given ? given : p, p->key, 1, INT64_MAX,
				     &d->parameters[n].value, d->err);

		if (rc)
			return rc;
		d->parameters[n++].name = p->key;
		known[n] = p->key;
	}
	d->nparameters = n;
	return use->kind != PTC_DOC_MAP ? 0 : ptc_doc_check_map(d->doc, use, "a rule set's use", known, n + 1, d->err);
}

static int decode_rule_text(struct ptc_job_decoder *d, const struct ptc_doc_node *use, const char *what,
			    const char *data, size_t len)
{
	const char *const path = d->rules_path;
	const struct ptc_doc *outer = d->doc;
	const struct ptc_doc_node *version, *rules;
	struct ptc_doc doc = { 0 };
	int64_t number = 0;
	int rc = ptc_doc_from_yaml(what, data, len, &doc, d->err);

	if (rc)
		return rc;
	rc = ptc_doc_check_map(&doc, doc.root, "a rule set", set_keys, PTC_ARRAY_LEN(set_keys), d->err);
	if (!rc)
		rc = decode_parameters(d, &doc, ptc_doc_get(doc.root, "parameters"), use);
	d->doc = &doc;
	d->rules_path = NULL; /* a rule set names no other */
	d->in_set = true;
	version = ptc_doc_get(doc.root, "version");
	rules = ptc_doc_get(doc.root, "rules");
	if (!rc && (!version || !rules))
		rc = ptc_doc_error(&doc, doc.root, d->err, PTC_EINVAL,
				   "a rule set must have \"version\" and \"rules\"");
	if (!rc)
		rc = ptc_doc_int(&doc, version, "version", 0, INT64_MAX, &number, d->err);
	if (!rc && (number < PTC_JOB_OLDEST || number > PTC_JOB_VERSION))
		rc = ptc_doc_error(&doc, version, d->err, PTC_EVERSION,
				   "version %" PRId64 " is not supported, %d to %d are", number, PTC_JOB_OLDEST,
				   PTC_JOB_VERSION);
	if (!rc)
		rc = decode_rule_list(d, rules);
	if (!rc)
		rc = ptc_job_decode_buffers(d, ptc_doc_get(doc.root, "buffers"));
	d->doc = outer;
	d->rules_path = path;
	d->in_set = false;
	d->nparameters = 0;
	ptc_doc_done(&doc);
	return rc;
}

static int decode_rule_file(struct ptc_job_decoder *d, const struct ptc_doc_node *use, const char *path)
{
	ptc_auto_free char *data = NULL;
	size_t len = 0;
	int rc = ptc_sys_read_file(path, RULES_FILE_MAX, &data, &len, d->err);

	return rc ? rc : decode_rule_text(d, use, path, data, len);
}

static int no_rule_set(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	const char *known[64], *near;
	size_t n = 0;

	for (const struct ptc_rule_set *s = ptc_rule_sets; s->name && n < PTC_ARRAY_LEN(known); s++)
		known[n++] = s->name;
	near = ptc_name_nearest(node->text, known, n);
	return ptc_doc_error(d->doc, node, d->err, PTC_ENOTFOUND,
			     "no rule set \"%s\": neither built in nor a file in %s%s%s%s", node->text,
			     *d->rules_path ? d->rules_path : "$PTC_RULES_DIR", near ? "; did you mean \"" : "",
			     near ? near : "", near ? "\"?" : "");
}

/* By name, or {use: name, and its parameters}: a file on the path, else one that is built in. */
static int decode_rule_set(struct ptc_job_decoder *d, const struct ptc_doc_node *use)
{
	const struct ptc_doc_node *node = use->kind == PTC_DOC_MAP ? ptc_doc_get(use, "use") : use;
	ptc_auto_free char *path = NULL;
	const char *name = NULL;
	int rc;

	if (!d->rules_path)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "rules must be a list here, not a name");
	rc = ptc_doc_text(d->doc, node, "use", &name, d->err);
	if (rc)
		return rc;
	rc = ptc_name_check_rules(name, d->err);
	if (rc) {
		ptc_error_wrap(d->err, "%s:%" PRIu32, d->doc->what, node->line);
		return rc;
	}
	path = find_rules(d->rules_path, name);
	if (path)
		return decode_rule_file(d, use, path);
	for (const struct ptc_rule_set *s = ptc_rule_sets; s->name; s++)
		if (!strcmp(s->name, name))
			return decode_rule_text(d, use, s->name, s->text, strlen(s->text));
	return no_rule_set(d, node);
}

static bool names_set(const struct ptc_doc_node *n)
{
	return n->kind == PTC_DOC_TEXT || (n->kind == PTC_DOC_MAP && ptc_doc_get(n, "use"));
}

static int fits_tensor(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const char *key, bool *found)
{
	const struct ptc_spec *spec = &d->job->spec;
	const char *text = NULL;
	int rc = ptc_doc_text(d->doc, node, key, &text, d->err);

	if (rc)
		return rc;
	if (strlen(text) > PTC_TENSOR_NAME_MAX || !ptc_glob_valid(text))
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "%s is empty, too long or has an open [", key);
	for (size_t i = 0; i < spec->ntensors && !*found; i++)
		*found = ptc_glob_match(text, strlen(text), spec->tensors[i].name, strlen(spec->tensors[i].name));
	return 0;
}

/* when and unless, a pattern or a list of them: does the job have a tensor whose name fits one? An absent key leaves
 * *ret as it is. */
static int has_tensor(struct ptc_job_decoder *d, const struct ptc_doc_node *node, bool *ret)
{
	bool list = node && node->kind == PTC_DOC_LIST, found = false;
	int rc = 0;

	if (!node)
		return 0;
	for (const struct ptc_doc_node *n = list ? node->first : node; n && !rc; n = list ? n->next : NULL)
		rc = fits_tensor(d, n, node->key, &found);
	*ret = found;
	return rc;
}

/* A rule set's name, or a rule. One whose when or unless says that it is not for this job is decoded all the same, for
 * the mistakes in it, and dropped: nothing below this file knows of conditions. */
static int decode_list_entry(struct ptc_job_decoder *d, const struct ptc_doc_node *n)
{
	struct ptc_spec *spec = &d->job->spec;
	size_t before = spec->nrules;
	struct ptc_rule rule = { 0 }, *place = NULL;
	bool when = true, unless = false;
	int rc;

	if (names_set(n))
		return decode_rule_set(d, n);
	rc = decode_rule_into(d, n, &rule);
	if (!rc)
		rc = has_tensor(d, ptc_doc_get(n, "when"), &when);
	if (!rc)
		rc = has_tensor(d, ptc_doc_get(n, "unless"), &unless);
	if (!rc && when && !unless)
		rc = push_rule(d, n, &place);
	rule.of_set = d->in_set;
	if (place)
		*place = rule;
	else
		ptc_rule_done(&rule);
	while (!rc && !place && spec->nrules > before)
		ptc_rule_done(&spec->rules[--spec->nrules]);
	return rc;
}

static int decode_rule_list(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	int rc = 0;

	if (node->kind != PTC_DOC_LIST || !node->n)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "rules must be a name or a list of rules and names");
	for (const struct ptc_doc_node *n = node->first; n && !rc; n = n->next)
		rc = decode_list_entry(d, n);
	return rc;
}

int ptc_job_decode_rules(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	return names_set(node) ? decode_rule_set(d, node) : decode_rule_list(d, node);
}

/* gpus */

/* "4:3:3" from a list of stages or experts. */
static int put_list(struct ptc_job_decoder *d, const struct ptc_doc_node *node, size_t max, struct ptc_buf *b)
{
	if (!node->n || node->n > max)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "%s must be a list of 1 to %zu numbers",
				     node->key, max);
	for (const struct ptc_doc_node *n = node->first; n; n = n->next) {
		int64_t layers = 0;
		int rc = ptc_doc_int(d->doc, n, node->key, 0, UINT32_MAX, &layers, d->err);

		if (rc)
			return rc;
		ptc_buf_printf(b, "%s%" PRId64, n == node->first ? "" : ":", layers);
	}
	return 0;
}

/* A configuration written as a map, as the text ptc_config_parse takes. */
static int config_text(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_buf *b)
{
	int rc = ptc_doc_check_map(d->doc, node, "a configuration", config_keys, PTC_ARRAY_LEN(config_keys), d->err);

	for (const struct ptc_doc_node *n = node->first; n && !rc; n = n->next) {
		int64_t value = 0;
		const char *text = NULL;

		ptc_buf_printf(b, "%s%s=", b->len ? "," : "", n->key);
		if (n->kind == PTC_DOC_LIST && !strcmp(n->key, "stages")) {
			rc = put_list(d, n, PTC_MAX_STAGES, b);
		} else if (n->kind == PTC_DOC_LIST && !strcmp(n->key, "experts")) {
			rc = put_list(d, n, PTC_MAX_EXPERTS, b);
		} else if (!strcmp(n->key, "order") || !strcmp(n->key, "shard") || !strcmp(n->key, "micro_steps") ||
			   !strcmp(n->key, "recompute") || !strcmp(n->key, "schedule")) {
			rc = ptc_doc_text(d->doc, n, n->key, &text, d->err);
			ptc_buf_puts(b, text ? text : "");
		} else {
			rc = ptc_doc_int(d->doc, n, n->key, 0, UINT32_MAX, &value, d->err);
			ptc_buf_printf(b, "%" PRId64, value);
		}
	}
	if (!rc && !b->len)
		rc = ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "an empty configuration");
	return rc;
}

static int decode_config(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_job_gpus *g)
{
	struct ptc_buf b = PTC_BUF_INIT;
	uint32_t world = 0;
	int rc = 0;

	if (node->kind == PTC_DOC_TEXT)
		ptc_buf_puts(&b, node->text);
	else
		rc = config_text(d, node, &b);
	if (!rc && ptc_buf_failed(&b))
		rc = ptc_nomem(d->err);
	if (!rc) {
		rc = ptc_config_parse(b.data ? b.data : "", &g->config, d->err);
		if (!rc)
			rc = ptc_config_world(&g->config, &world, d->err);
		if (rc && node->line)
			ptc_error_wrap(d->err, "%s:%" PRIu32, d->doc->what, node->line);
		else if (rc)
			ptc_error_wrap(d->err, "%s: gpus %s", d->doc->what, node->key);
	}
	ptc_buf_done(&b);
	if (!rc && world != g->n)
		rc = ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				   "the configuration for %" PRIu32 " devices has %" PRIu32 " ranks", g->n, world);
	return rc;
}

PTC_BY(compare_gpus, struct ptc_job_gpus, n)

int ptc_job_decode_gpus(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	struct ptc_job_desc *job = d->job;

	if (node->kind != PTC_DOC_MAP || !node->n || node->n > PTC_JOB_MAX_GPUS)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "gpus must be a map from 1 to %d numbers of devices to configurations",
				     PTC_JOB_MAX_GPUS);
	job->gpus = ptc_calloc(node->n, sizeof *job->gpus);
	if (!job->gpus)
		return ptc_nomem(d->err);
	for (const struct ptc_doc_node *n = node->first; n; n = n->next) {
		struct ptc_doc_node key = { .kind = PTC_DOC_TEXT, .plain = true, .line = n->line, .text = n->key };
		int64_t devices = 0;
		int rc = ptc_doc_int(d->doc, &key, "a number of devices", 1, PTC_MAX_RANKS, &devices, d->err);

		if (rc)
			return rc;
		job->gpus[job->ngpus].n = (uint32_t)devices;
		rc = decode_config(d, n, &job->gpus[job->ngpus++]);
		if (rc)
			return rc;
	}
	qsort(job->gpus, job->ngpus, sizeof *job->gpus, compare_gpus);
	return 0;
}
