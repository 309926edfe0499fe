/* SPDX-License-Identifier: Apache-2.0 */
/* Decides the content of a checkpoint: its keys, and which part lies in which file. Each item gets the key that a
 * state dict {"model": .., "optim": ..} gives it. It is cut into parts, and each part gets a place in the file.
 * Failure modes: PTC_ELAYOUT (PyTorch has no such dtype), PTC_EINVAL (two items would have one key), memory. */
#include "client/ctl/checkpoint/checkpoint_parts.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/search.h"
#include "formats/dcp/torch_file.h"

#include <stdlib.h>
#include <string.h>

void ctl_ck_plan_done(struct ctl_ck_plan *p)
{
	for (size_t i = 0; i < p->d.nentries && p->contents; i++)
		ptc_free(p->contents[i].data);
	ptc_free(p->contents);
	ptc_dcp_done(&p->d);
	*p = (struct ctl_ck_plan){ 0 };
}

int ctl_ck_plan_add(struct ctl_ck_plan *p, const char *const *names, unsigned n, struct ptc_dcp_entry **ret,
		    struct ctl_ck_content **ret_content, struct ptc_error *err)
{
	struct ptc_buf key = PTC_BUF_INIT;
	struct ptc_dcp_entry *e;

	if (!PTC_MORE(p->d.entries, p->d.nentries) || !PTC_MORE(p->contents, p->d.nentries))
		return ptc_nomem(err);
	e = &p->d.entries[p->d.nentries];
	*e = (struct ptc_dcp_entry){ .npath = (uint8_t)n };
	for (unsigned i = 0; i < n; i++) {
		ptc_buf_puts(&key, i ? "." : "");
		ptc_buf_puts(&key, names[i]);
		e->path[i] = (uint16_t)strlen(names[i]);
	}
	e->key = ptc_buf_steal(&key, NULL);
	if (!e->key)
		return ptc_nomem(err);
	p->contents[p->d.nentries] = (struct ctl_ck_content){ .item = CTL_CK_NO_ITEM };
	*ret = e;
	*ret_content = &p->contents[p->d.nentries++];
	return 0;
}

/* "NAME" is "model.NAME", "NAME:FIELD" is "optim.state.NAME.FIELD". */
static int add_item(struct ctl_ck_plan *p, const struct ptc_spec *spec, uint32_t item, struct ptc_error *err)
{
	const struct ptc_tensor *t = &spec->tensors[item / (1 + spec->nfields)];
	char text[PTC_ITEM_NAME_SIZE], *field;
	struct ctl_ck_content *content;
	struct ptc_dcp_entry *e;
	int rc;

	ptc_item_name(spec, item, text, sizeof text);
	field = strrchr(text, ':');
	if (field)
		*field++ = '\0';
	rc = field ? ctl_ck_plan_add(p, (const char *[]){ "optim", "state", text, field }, 4, &e, &content, err)
		   : ctl_ck_plan_add(p, (const char *[]){ "model", text }, 2, &e, &content, err);
	if (rc)
		return rc;
	content->item = item;
	e->dtype = ptc_item_dtype(spec, item);
	e->ndim = t->ndim;
	memcpy(e->shape, t->shape, sizeof e->shape);
	p->bytes += (uint64_t)ptc_item_bytes(spec, item);
	return ptc_dcp_cut(e, err);
}

static int compare_texts(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int check_keys(const struct ctl_ck_plan *p, struct ptc_error *err)
{
	ptc_auto_free char **keys = ptc_calloc(PTC_MAX(p->d.nentries, 1), sizeof *keys);

	if (!keys)
		return ptc_nomem(err);
	for (size_t i = 0; i < p->d.nentries; i++)
		keys[i] = p->d.entries[i].key;
	qsort(keys, p->d.nentries, sizeof *keys, compare_texts);
	for (size_t i = 1; i < p->d.nentries; i++)
		if (!strcmp(keys[i - 1], keys[i]))
			return ptc_error_set(err, PTC_EINVAL,
					     "two of the job's tensors would both be \"%.300s\" in a checkpoint",
					     keys[i]);
	return 0;
}

/* Parts lie one behind the other. */
static int place(struct ctl_ck_plan *p, struct ptc_error *err)
{
	uint64_t at = 0;

	for (size_t i = 0; i < p->d.nentries; i++) {
		struct ptc_dcp_entry *e = &p->d.entries[i];

		for (uint32_t k = 0; k < e->nparts; k++) {
			e->parts[k].at = at;
			e->parts[k].bytes = p->contents[i].data
						    ? p->contents[i].len
						    : ptc_torch_bytes(e->dtype, e->ndim, ptc_dcp_extent(e, k));
			if (!e->parts[k].bytes)
				return ptc_nomem(err);
			at += e->parts[k].bytes;
		}
	}
	return 0;
}

int ctl_ck_plan(struct ctl_ck_plan *p, const struct ptc_spec *spec, struct ptc_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < ptc_spec_items(spec) && !rc; i++)
		rc = add_item(p, spec, (uint32_t)i, err);
	if (!rc)
		rc = check_keys(p, err);
	if (!rc)
		rc = place(p, err);
	if (rc)
		return rc;
	p->d.files = ptc_calloc(1, sizeof(char *));
	p->d.nfiles = p->d.files ? 1 : 0;
	if (p->d.files)
		p->d.files[0] = ptc_strdup(CTL_CK_FILE);
	return p->d.files && p->d.files[0] ? 0 : ptc_nomem(err);
}
