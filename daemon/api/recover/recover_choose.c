/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the commit of a job with which the cluster goes on (`ptcctl cluster recover`).
 *
 * Happy path: all nodes keep the same commit, and have its tables. If a commit was under way, some nodes keep the
 * commit before it. A node drops tables of the earlier commit only after it keeps the later one, so one of the two is
 * complete.
 *
 * Failure modes: the nodes lack tensors of every commit. The newest is taken all the same, and the line says which
 * tensors are missing and where they were. If a node comes back, its tables count again. */
#include "daemon/api/recover/recover_work.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"

#include <inttypes.h>
#include <string.h>

struct candidate {
	const char *uuid;
	size_t node;
	struct ptc_durable at; /* epoch and revision only */
};

static bool has_table(const struct ptc_inventory *has, const char *uuid, uint64_t generation, uint64_t snapshot)
{
	const struct ptc_inventory_job *j = ptc_inventory_find(has, uuid);

	for (size_t i = 0; j && i < j->ntables; i++)
		if (j->tables[i].generation == generation && j->tables[i].snapshot == snapshot)
			return true;
	return false;
}

static const struct ptc_recover_node *find_node(const struct ptc_recover_set *s, const char *name)
{
	for (size_t i = 0; i < s->n; i++)
		if (strcmp(s->v[i].name, name) == 0)
			return &s->v[i];
	return NULL;
}

/* Which nodes have their tables of what v describes. */
static void find_usable(const struct ptc_recover_set *s, const struct ptc_view *v, bool *usable)
{
	for (size_t i = 0; i < v->nnodes; i++) {
		const struct ptc_recover_node *n = find_node(s, v->nodes[i]);

		usable[i] = n && ptc_view_placed(v, v->nodes[i]) &&
			    has_table(&n->has, v->meta.uuid, v->from_generation, ptc_view_table(v, v->nodes[i]));
	}
}

static void tell(struct ptc_recover_choice *c, const struct ptc_view *v, const bool *usable, const char *missing)
{
	struct ptc_buf b = PTC_BUF_INIT, absent = PTC_BUF_INIT;

	for (size_t i = 0; i < v->nnodes; i++)
		if (!usable[i])
			ptc_buf_printf(&absent, "%s%s", absent.len ? ", " : "", v->nodes[i]);
	ptc_buf_printf(&b, "job %s (%s): generation %" PRIu64 ", snapshot %" PRIu64 ", step %" PRIu64 ": ", c->name,
		       c->uuid, c->generation, c->snapshot, c->step);
	if (!c->complete)
		ptc_buf_printf(&b, "INCOMPLETE: %s; its bytes count again when %s come back", missing,
			       absent.data ? absent.data : "nodes");
	else if (absent.len)
		ptc_buf_printf(&b, "complete without %s", absent.data);
	else
		ptc_buf_puts(&b, "complete");
	ptc_buf_done(&absent);
	c->line = ptc_buf_steal(&b, NULL);
}

/* The view of what was kept, with its copies. */
static int load(const struct ptc_recover_set *s, struct ptc_durable *d, const struct ptc_meta_doc *meta,
		const struct ptc_record_doc *record, struct ptc_view *ret, struct ptc_error *err)
{
	const char *text = d->key[PTC_DURABLE_COPIES];
	struct ptc_copies_doc copies = { 0 };
	int rc;

	memcpy(d->own->uuid, meta->uuid, sizeof d->own->uuid);
	d->own->revision = d->revision;
	ptc_kept_install(s->d->docs.kept, d->own);
	d->blobs = d->own = NULL;
	rc = ptc_view_load(s->d->docs.kept, meta, record, NULL, ret, err);
	if (rc)
		return rc;
	if (text && ptc_copies_doc_decode(text, strlen(text), &copies, NULL) == 0) /* else no copies are known */
		rc = ptc_view_copies(ret, &copies) ? ptc_nomem(err) : 0;
	ptc_copies_doc_done(&copies);
	return rc;
}

static int judge(const struct ptc_recover_set *s, struct ptc_durable *d, const struct ptc_meta_doc *meta,
		 const struct ptc_record_doc *record, struct ptc_recover_choice *c, struct ptc_error *err)
{
	struct ptc_controllers all = { .docs = s->d->docs };
	struct ptc_error missing = PTC_ERROR_INIT;
	struct ptc_view v = { 0 };
	bool *usable = NULL;
	int rc = 0;

	if (record->manifest_hash[0]) {
		rc = load(s, d, meta, record, &v, err);
		usable = rc ? NULL : ptc_calloc(v.nnodes ? v.nnodes : 1, sizeof *usable);
		if (rc == 0 && !usable)
			rc = ptc_nomem(err);
		if (rc == 0) {
			find_usable(s, &v, usable);
			rc = record->snapshot ? ptc_lost_covered(&all, &v, usable, &missing) : 0;
		}
	}
	c->complete = rc == 0;
	if (rc && rc != PTC_ELOST && !missing.code)
		snprintf(missing.text, sizeof missing.text, "%s", err->text);
	if (usable || !record->manifest_hash[0])
		tell(c, &v, usable, missing.text);
	else
		c->line = ptc_asprintf("job %s (%s): which of its bytes these nodes have cannot be found out: %s",
				       c->name, c->uuid, missing.text);
	ptc_free(usable);
	ptc_view_done(&v);
	return c->line ? 0 : ptc_nomem(err);
}

/* Judges the documents that one node keeps. */
static int examine(const struct ptc_recover_set *s, const struct candidate *from, struct ptc_recover_choice *ret,
		   struct ptc_error *err)
{
	struct ptc_recover_choice c = { .node = from->node, .epoch = from->at.epoch, .revision = from->at.revision };
	struct ptc_durable d = { 0 };
	struct ptc_record_doc record;
	struct ptc_meta_doc meta;
	int rc = ptc_recover_fetch(s, from->node, from->uuid, &d, err);

	if (rc == 0)
		rc = ptc_meta_doc_decode(d.key[PTC_DURABLE_META], strlen(d.key[PTC_DURABLE_META]), &meta, err);
	if (rc == 0)
		rc = ptc_record_doc_decode(d.key[PTC_DURABLE_RECORD], strlen(d.key[PTC_DURABLE_RECORD]), &record, err);
	if (rc == 0) {
		memcpy(c.uuid, meta.uuid, sizeof c.uuid);
		memcpy(c.name, meta.name, sizeof c.name);
		c.generation = record.generation;
		c.snapshot = record.snapshot;
		c.step = record.step;
		rc = judge(s, &d, &meta, &record, &c, err);
	}
	ptc_durable_done(&d);
	if (rc == 0)
		*ret = c;
	return rc;
}

/* The latest of what the nodes keep of the job, before `before` (NULL: of all). */
static bool next(const struct ptc_recover_set *s, const char *uuid, const struct ptc_durable *before,
		 struct candidate *ret)
{
	bool found = false;

	for (size_t i = 0; i < s->n; i++) {
		const struct ptc_inventory_job *j = ptc_inventory_find(&s->v[i].has, uuid);
		struct ptc_durable at = { .epoch = j ? j->epoch : 0, .revision = j ? (int64_t)j->revision : 0 };

		if (!at.revision || (before && !ptc_durable_later(before, &at)) ||
		    (found && !ptc_durable_later(&at, &ret->at)))
			continue;
		*ret = (struct candidate){ uuid, i, at };
		found = true;
	}
	return found;
}

static int choose_one(const struct ptc_recover_set *s, const char *uuid, struct ptc_recover_choice *ret,
		      struct ptc_error *err)
{
	struct ptc_recover_choice first = { 0 }, c;
	struct candidate at;
	int rc = next(s, uuid, NULL, &at) ? examine(s, &at, &first, err) : PTC_ENOTFOUND;

	*ret = first;
	while (rc == 0 && !ret->complete && next(s, uuid, &at.at, &at)) {
		rc = examine(s, &at, &c, err);
		if (rc == 0 && c.complete) {
			char *line = ptc_asprintf("%s; the commit after it lacks bytes: %s", c.line, first.line);

			ptc_free(c.line);
			c.line = line;
			ptc_free(first.line);
			*ret = c;
		} else if (rc == 0) {
			ptc_free(c.line);
		}
	}
	if (rc && rc != PTC_ENOTFOUND)
		ptc_free(first.line);
	return rc;
}

static bool seen(const struct ptc_recover_set *s, size_t node, const char *uuid)
{
	for (size_t i = 0; i < node; i++)
		if (ptc_inventory_find(&s->v[i].has, uuid))
			return true;
	return false;
}

static int later_first(const void *a, const void *b)
{
	const struct ptc_recover_choice *x = a, *y = b;
	const struct ptc_durable p = { .epoch = x->epoch, .revision = x->revision },
				 q = { .epoch = y->epoch, .revision = y->revision };

	return ptc_durable_later(&p, &q) ? -1 : ptc_durable_later(&q, &p);
}

int ptc_recover_choose(const struct ptc_recover_set *s, struct ptc_recover_choice **ret_v, size_t *ret_n,
		       struct ptc_error *err)
{
	struct ptc_recover_choice *v = NULL;
	size_t n = 0;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < s->n; i++)
		for (size_t k = 0; rc == 0 && k < s->v[i].has.njobs; k++) {
			const char *uuid = s->v[i].has.jobs[k].uuid;

			if (seen(s, i, uuid))
				continue;
			rc = PTC_MORE(v, n) ? choose_one(s, uuid, &v[n], err) : ptc_nomem(err);
			n += rc == 0;
			rc = rc == PTC_ENOTFOUND ? 0 : rc; /* bytes of which no node keeps documents */
		}
	if (n)
		qsort(v, n, sizeof *v, later_first);
	*ret_v = v;
	*ret_n = n;
	return rc;
}
