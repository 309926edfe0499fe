/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer's param_groups. ptc.torch keeps them as a blob "optimizer" of the job (client/python/ptc/_values.py has
 * its form), and in the blob "model" which group has which parameter. In a checkpoint each option is a value,
 * "optim.param_groups.0.lr", and "params" is the list of the group's parameters, as
 * torch.distributed.checkpoint.state_dict makes it. A state without these blobs, with another version of them, or with
 * several optimizers has no param_groups. Failure modes: memory. */
#include "client/ctl/checkpoint/checkpoint_parts.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/pack/inflate.h"
#include "formats/dcp/torch_file.h"
#include "formats/state/state_doc.h"

#include <inttypes.h>
#include <string.h>

#define DEPTH_MAX 16
#define MODEL_MAX (256u << 20)

/* A member of an object that is written as {"dict": [[key, value], ..]}. */
static const json_t *member(const json_t *value, const char *key)
{
	const json_t *pairs = json_object_get(value, "dict"), *pair;
	size_t i;

	json_array_foreach(pairs, i, pair) {
		const char *name = json_string_value(json_array_get(pair, 0));

		if (name && !strcmp(name, key))
			return json_array_get(pair, 1);
	}
	return NULL;
}

static bool put_value(struct ptc_pickle_out *o, const json_t *v, int depth);

static bool put_items(struct ptc_pickle_out *o, const json_t *list, int depth)
{
	const json_t *v;
	bool fine = true;
	size_t i;

	ptc_pickle_op(o, PTC_PICKLE_MARK);
	json_array_foreach(list, i, v)
		fine = fine && put_value(o, v, depth);
	return fine;
}

static bool put_pairs(struct ptc_pickle_out *o, const json_t *pairs, int depth)
{
	const json_t *pair;
	bool fine = true;
	size_t i;

	ptc_pickle_op(o, PTC_PICKLE_EMPTY_DICT);
	ptc_pickle_op(o, PTC_PICKLE_MARK);
	json_array_foreach(pairs, i, pair)
		fine = fine && json_array_size(pair) == 2 && put_value(o, json_array_get(pair, 0), depth) &&
		       put_value(o, json_array_get(pair, 1), depth);
	ptc_pickle_op(o, PTC_PICKLE_SETITEMS);
	return fine;
}

/* False: a value that is none of the plain ones (a tensor inside of a list, say). */
static bool put_value(struct ptc_pickle_out *o, const json_t *v, int depth)
{
	const json_t *list = json_object_get(v, "list"), *tuple = json_object_get(v, "tuple"),
		     *dict = json_object_get(v, "dict");
	bool fine;

	if (depth == DEPTH_MAX)
		return false;
	if (json_is_null(v))
		ptc_pickle_none(o);
	else if (json_is_boolean(v))
		ptc_pickle_bool(o, json_is_true(v));
	else if (json_is_integer(v))
		ptc_pickle_int(o, json_integer_value(v));
	else if (json_is_real(v))
		ptc_pickle_float(o, json_real_value(v));
	else if (json_is_string(v))
		ptc_pickle_text_n(o, json_string_value(v), json_string_length(v));
	else if (list || tuple) {
		if (list)
			ptc_pickle_op(o, PTC_PICKLE_EMPTY_LIST);
		fine = put_items(o, list ? list : tuple, depth + 1);
		ptc_pickle_op(o, list ? PTC_PICKLE_APPENDS : PTC_PICKLE_TUPLE);
		return fine;
	} else
		return dict && put_pairs(o, dict, depth + 1);
	return true;
}

/* A scalar tensor, {"tensor": "F32", "value": 0.001}. Its place in the state dict is a tensor's. */
static bool put_tensor(struct ptc_buf *b, const json_t *v, struct ptc_dcp_entry *e)
{
	const char *name = json_string_value(json_object_get(v, "tensor"));
	double value = json_number_value(json_object_get(v, "value"));
	int64_t whole = json_integer_value(json_object_get(v, "value"));
	float single = (float)value;
	const void *data;
	size_t len;

	if (!name || !ptc_dtype_parse(name, &e->dtype))
		return false;
	switch (e->dtype) {
	case PTC_F32:
		data = &single;
		len = sizeof single;
		break;
	case PTC_F64:
		data = &value;
		len = sizeof value;
		break;
	case PTC_I64:
		data = &whole;
		len = sizeof whole;
		break;
	default:
		return false;
	}
	if (ptc_torch_head(b, e->dtype, 0, NULL, NULL))
		return false;
	ptc_buf_append(b, data, len);
	return !ptc_torch_tail(b, e->dtype, 0, NULL, ptc_crc32(0, data, len), NULL);
}

static int add(struct ctl_ck_plan *p, unsigned group, const char *option, struct ptc_buf *part,
	       const struct ptc_dcp_entry *tensor, struct ptc_error *err)
{
	char number[16];
	struct ctl_ck_content *content;
	struct ptc_dcp_entry *e;
	int rc;

	snprintf(number, sizeof number, "%u", group);
	rc = ctl_ck_plan_add(p, (const char *[]){ "optim", "param_groups", number, option }, 4, &e, &content, err);
	if (rc)
		return rc;
	e->numbers = 1 << 2;
	e->is_value = !tensor;
	e->dtype = tensor ? tensor->dtype : 0;
	content->data = ptc_buf_steal(part, &content->len);
	e->parts = ptc_calloc(1, sizeof *e->parts);
	e->boxes = ptc_calloc(2, sizeof *e->boxes);
	e->nparts = 1;
	return content->data && e->parts && e->boxes ? 0 : ptc_nomem(err);
}

/* What torch.save writes of the value that was pickled. */
static int add_value(struct ctl_ck_plan *p, unsigned group, const char *option, struct ptc_buf *pickle,
		     struct ptc_error *err)
{
	struct ptc_buf part = PTC_BUF_INIT;
	int rc;

	ptc_torch_value(&part, pickle->data, pickle->len);
	rc = ptc_buf_failed(pickle) || ptc_buf_failed(&part) ? ptc_nomem(err) : add(p, group, option, &part, NULL, err);
	ptc_buf_done(&part);
	return rc;
}

static int add_option(struct ctl_ck_plan *p, unsigned group, const char *option, const json_t *v, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT, part = PTC_BUF_INIT;
	struct ptc_dcp_entry tensor = { 0 };
	struct ptc_pickle_out o;
	int rc = 0;

	if (json_object_get(v, "tensor")) {
		if (put_tensor(&part, v, &tensor))
			rc = add(p, group, option, &part, &tensor, err);
		ptc_buf_done(&part);
		return rc;
	}
	ptc_pickle_begin(&o, &b);
	if (put_value(&o, v, 0)) {
		ptc_pickle_end(&o);
		rc = add_value(p, group, option, &b, err);
	}
	ptc_buf_done(&b);
	return rc;
}

/* Whether the model's description says that the parameter is in that group: [trained, {kind of optimizer: group}]. */
static bool in_group(const json_t *about, unsigned group)
{
	const json_t *at = member(json_array_get(json_object_get(about, "list"), 1), "optimizer");

	return json_is_integer(at) && json_integer_value(at) == group;
}

static int add_params(struct ctl_ck_plan *p, unsigned group, json_t *model, struct ptc_error *err)
{
	json_t *about;
	struct ptc_buf b = PTC_BUF_INIT;
	struct ptc_pickle_out o;
	const char *name;
	int rc;

	ptc_pickle_begin(&o, &b);
	ptc_pickle_op(&o, PTC_PICKLE_EMPTY_LIST);
	ptc_pickle_op(&o, PTC_PICKLE_MARK);
	json_object_foreach(json_object_get(model, "parameters"), name, about)
		if (in_group(about, group))
			ptc_pickle_text(&o, name);
	ptc_pickle_op(&o, PTC_PICKLE_APPENDS);
	ptc_pickle_end(&o);
	rc = add_value(p, group, "params", &b, err);
	ptc_buf_done(&b);
	return rc;
}

static int add_groups(struct ctl_ck_plan *p, const json_t *optimizer, json_t *model, struct ptc_error *err)
{
	const json_t *groups = json_object_get(member(optimizer, "groups"), "list"), *group, *pair;
	size_t i, k;
	int rc = 0;

	json_array_foreach(groups, i, group) {
		json_array_foreach(json_object_get(group, "dict"), k, pair) {
			const char *option = json_string_value(json_array_get(pair, 0));

			if (option && strlen(option) < 256 && !rc)
				rc = add_option(p, (unsigned)i, option, json_array_get(pair, 1), err);
		}
		if (!rc && model)
			rc = add_params(p, (unsigned)i, model, err);
	}
	return rc;
}

/* ---- blobs ---- */

static const struct ptc_state_blob *blob_of(const struct ptc_state *s, const char *name)
{
	for (size_t i = 0; i < s->nranks; i++)
		for (size_t k = 0; k < s->ranks[i].nblobs; k++)
			if (s->ranks[i].blobs[k].scope == PTC_STATE_JOB && !strcmp(s->ranks[i].blobs[k].name, name))
				return &s->ranks[i].blobs[k];
	return NULL;
}

static json_t *json_of(const void *data, size_t len)
{
	json_t *v = NULL;

	if (len)
		ptc_json_load("a blob", data, len, &v, NULL);
	return v;
}

/* "model" has the number of its parts, "model/N", which are one compressed text; as client/python/ptc/torch.py writes
 * it.
 */
static json_t *model_of(const struct ptc_state *s)
{
	const struct ptc_state_blob *count = blob_of(s, "model"), *part;
	struct ptc_buf all = PTC_BUF_INIT, text = PTC_BUF_INIT;
	char name[32];
	json_t *v = NULL;

	for (unsigned i = 0; count && i < PTC_STATE_BLOBS; i++) {
		snprintf(name, sizeof name, "model/%u", i);
		part = blob_of(s, name);
		if (!part)
			break;
		ptc_buf_append(&all, part->data, part->len);
	}
	if (all.len && !ptc_inflate(all.data, all.len, MODEL_MAX, &text, NULL))
		v = json_of(text.data, text.len);
	ptc_buf_done(&text);
	ptc_buf_done(&all);
	return v;
}

int ctl_ck_plan_options(struct ctl_ck_plan *p, const struct ptc_admin_export *info, struct ptc_error *err)
{
	const struct ptc_state_blob *blob;
	struct ptc_state s = { 0 };
	json_t *optimizer, *model;
	int rc = info->state_len ? ptc_state_doc_decode(info->state, info->state_len, &s, err) : 0;

	if (rc || !info->state_len)
		return rc;
	blob = blob_of(&s, "optimizer");
	optimizer = blob ? json_of(blob->data, blob->len) : NULL;
	model = optimizer ? model_of(&s) : NULL;
	if (optimizer)
		rc = add_groups(p, optimizer, model, err);
	json_decref(optimizer);
	json_decref(model);
	ptc_state_done(&s);
	return rc;
}
