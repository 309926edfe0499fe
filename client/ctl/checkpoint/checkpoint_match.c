/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the entry of a checkpoint for each of the job's items. Failure modes: PTC_EINVAL, which names the key: it is
 * missing, it has another dtype or shape, or no item has it. */
#include "client/ctl/checkpoint/checkpoint.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "reshard/spec/lint.h"

#include <string.h>

#define KEY_MAX (PTC_ITEM_NAME_SIZE + 512)

static void key_of(const struct ptc_spec *spec, size_t item, const struct ctl_ck_prefixes *p, char *key, size_t size)
{
	char text[PTC_ITEM_NAME_SIZE], *field;

	ptc_item_name(spec, item, text, sizeof text);
	field = strrchr(text, ':');
	if (field)
		*field++ = '\0';
	if (field)
		snprintf(key, size, "%sstate.%s.%s", p->optim, text, field);
	else
		snprintf(key, size, "%s%s", p->model, text);
}

static int check(const struct ctl_ck_source *s, const struct ptc_spec *spec, size_t item, const struct ptc_dcp_entry *e,
		 const char *key, struct ptc_error *err)
{
	const struct ptc_tensor *t = &spec->tensors[item / (1 + spec->nfields)];
	enum ptc_dtype dtype = ptc_item_dtype(spec, item);
	char is[256], says[256];

	if (!e)
		return ptc_error_set(
			err, PTC_EINVAL,
			"%s has no \"%s\"; if its state dict has other names, say where the model's and the "
			"optimizer's begin (--model, --optim)",
			s->dir, key);
	if (e->is_value)
		return ptc_error_set(err, PTC_EINVAL, "%s: \"%s\" is a Python value, no tensor", s->dir, key);
	if (e->dtype != dtype)
		return ptc_error_set(err, PTC_EINVAL, "%s: \"%s\" is %s, the job says %s", s->dir, key,
				     ptc_dtype_name(e->dtype), ptc_dtype_name(dtype));
	if (e->ndim == t->ndim && !memcmp(e->shape, t->shape, t->ndim * sizeof t->shape[0]))
		return 0;
	return ptc_error_set(err, PTC_EINVAL, "%s: \"%s\" is %s, the job says %s", s->dir, key,
			     ptc_shape_text(e->ndim, e->shape, is, sizeof is),
			     ptc_shape_text(t->ndim, t->shape, says, sizeof says));
}

/* A tensor of the model that the job has not would be lost without a word. */
static int check_rest(const struct ctl_ck_source *s, const bool *used, const struct ctl_ck_prefixes *p,
		      struct ptc_error *err)
{
	ptc_auto_free char *state = ptc_asprintf("%sstate.", p->optim);

	if (!state)
		return ptc_nomem(err);
	for (size_t i = 0; i < s->d.nentries; i++) {
		const struct ptc_dcp_entry *e = &s->d.entries[i];
		bool model = p->model[0] && !strncmp(e->key, p->model, strlen(p->model));

		if (!used[i] && !e->is_value && (model || !strncmp(e->key, state, strlen(state))))
			return ptc_error_set(err, PTC_EINVAL, "%s: tensor \"%s\" is not one of the job's", s->dir,
					     e->key);
	}
	return 0;
}

int ctl_ck_match(const struct ctl_ck_source *s, const struct ptc_spec *spec, const struct ctl_ck_prefixes *prefixes,
		 const struct ptc_dcp_entry ***ret, struct ptc_error *err)
{
	size_t items = ptc_spec_items(spec);
	const struct ptc_dcp_entry **v = ptc_calloc(PTC_MAX(items, 1), sizeof *v);
	ptc_auto_free bool *used = ptc_calloc(PTC_MAX(s->d.nentries, 1), sizeof *used);
	char key[KEY_MAX];
	int rc = v && used ? 0 : ptc_nomem(err);

	for (size_t i = 0; i < items && !rc; i++) {
		key_of(spec, i, prefixes, key, sizeof key);
		v[i] = ptc_dcp_find(&s->d, key);
		rc = check(s, spec, i, v[i], key, err);
		if (!rc)
			used[v[i] - s->d.entries] = true;
	}
	if (!rc)
		rc = check_rest(s, used, prefixes, err);
	if (rc)
		ptc_free(v);
	else
		*ret = v;
	return rc;
}
