/* SPDX-License-Identifier: Apache-2.0 */
/* Where samples come from: a source that this process has opened, or the daemon. The daemon is asked in two cases. The
 * files are on another node alone, which the daemon asks. Or the job belongs to another user than this process, so that
 * a process of that user must open the source (docs/decisions/0006-sources.md). For a reader the two are the same.
 *
 * Happy path: many samples are read at once; the daemon gets one call for as many as it answers. Failure modes: the
 * source cannot be opened, is not the one that was added, or is written while it is read; the daemon, or the node that
 * has the source, is unreachable: their error. */
#include "fusefs/samples/part.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CALL_SAMPLES 8192 /* ptc_admin_dataset_read's bounds */
#define CALL_NAMES   1024
#define CALL_BYTES   FS_READ_MAX
#define BUSY_TRIES   100
#define BUSY_MS      50

/* ---- the daemon ---- */

/* Until it answers: one that has too much to do is asked again. Whoever waits is told by the clock (op.c) when it has
 * been too long. */
static int call(const struct ptc_fs_source *from, const struct ptc_admin_samples *what, ptc_admin_sample_fn fn,
		void *arg, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	int rc = from->samples(from->arg, what, fn, arg, &why);

	for (int i = 0; rc == PTC_ELIMIT && i < BUSY_TRIES; i++) {
		nanosleep(&(struct timespec){ .tv_nsec = BUSY_MS * 1000000 }, NULL);
		rc = from->samples(from->arg, what, fn, arg, &why);
	}
	return rc ? ptc_error_set(err, rc, "%s", why.text) : 0;
}

struct asking {
	const struct fs_origin *o;
	const struct ptc_fs_source *from;
	struct fs_want *wants;
	uint32_t at[CALL_SAMPLES]; /* which of the wants */
	uint64_t samples[CALL_SAMPLES], offsets[CALL_SAMPLES];
	uint32_t lengths[CALL_SAMPLES];
	size_t n, bytes;
};

static int take(void *arg, size_t i, const struct ptc_admin_sample *s, struct ptc_error *err)
{
	const struct asking *c = arg;
	struct fs_want *w = &c->wants[c->at[i]];

	w->size = s->bytes;
	if (!w->len)
		return 0;
	memcpy(w->buf, s->data, s->len);
	memset(w->buf + s->len, 0, w->len - s->len);
	return 0;
}

static int flush(struct asking *c, struct ptc_error *err)
{
	struct ptc_admin_samples what = { .size = sizeof what,
					  .dataset = c->o->dataset,
					  .source = c->o->id,
					  .samples = c->samples,
					  .n = c->n,
					  .uid = c->o->uid };
	int rc;

	if (!c->n)
		return 0;
	if (c->bytes) {
		what.offsets = c->offsets;
		what.lengths = c->lengths;
	}
	rc = call(c->from, &what, take, c, err);
	c->n = c->bytes = 0;
	return rc;
}

static int ask(const struct ptc_fs_source *from, const struct fs_origin *o, uint32_t part, struct fs_want *v, size_t n,
	       struct ptc_error *err)
{
	ptc_auto_free struct asking *c = ptc_malloc(sizeof *c);
	int rc = c ? 0 : ptc_nomem(err);

	if (rc)
		return rc;
	c->o = o;
	c->from = from;
	c->wants = v;
	c->n = c->bytes = 0;
	for (size_t i = 0; !rc && i < n; i++) {
		if (v[i].part != part)
			continue;
		v[i].size = o->fixed_bytes;
		if (!v[i].len && o->fixed_bytes)
			continue; /* known without asking */
		if (c->n == CALL_SAMPLES || c->bytes + v[i].len > CALL_BYTES)
			rc = flush(c, err);
		c->at[c->n] = (uint32_t)i;
		c->samples[c->n] = v[i].sample;
		c->offsets[c->n] = v[i].offset;
		c->lengths[c->n++] = (uint32_t)v[i].len;
		c->bytes += v[i].len;
	}
	return rc ? rc : flush(c, err);
}

/* ---- names of files that the daemon reads ---- */

struct names {
	struct fs_origin *o;
	uint64_t first, bytes, cap;
};

static int take_name(void *arg, size_t i, const struct ptc_admin_sample *s, struct ptc_error *err)
{
	struct names *n = arg;
	const size_t need = n->bytes + s->name_len + 1;

	if (need > 2 * PTC_SOURCE_NAMES_BYTES || !PTC_ROOM(n->o->names, need, n->cap))
		return ptc_nomem(err);
	n->o->name_at[n->first + i] = n->bytes;
	memcpy(n->o->names + n->bytes, s->name, s->name_len);
	n->bytes += s->name_len;
	n->o->names[n->bytes++] = '\0';
	return 0;
}

static int ask_names(const struct ptc_fs_source *from, struct fs_origin *o, struct ptc_error *err)
{
	uint64_t samples[CALL_NAMES];
	struct names n = { .o = o };
	int rc = 0;

	o->name_at = ptc_calloc(o->samples, sizeof *o->name_at);
	if (!o->name_at)
		return ptc_nomem(err);
	for (; !rc && n.first < o->samples; n.first += CALL_NAMES) {
		struct ptc_admin_samples what = { .size = sizeof what,
						  .dataset = o->dataset,
						  .source = o->id,
						  .samples = samples,
						  .uid = o->uid,
						  .names = true };

		what.n = (size_t)PTC_MIN(o->samples - n.first, (uint64_t)CALL_NAMES);
		for (size_t i = 0; i < what.n; i++)
			samples[i] = n.first + i;
		rc = call(from, &what, take_name, &n, err);
	}
	return rc;
}

/* ---- what others see ---- */

/* It is asked for something at once: whether it is there, and what was added, is to be known when it is opened. */
static int open_by_daemon(const struct ptc_fs_source *from, const struct ptc_dataset_doc *doc, struct fs_origin *o,
			  struct ptc_error *err)
{
	unsigned char byte;
	struct fs_want first = { .buf = &byte, .len = 1 };

	if (!from->samples)
		return ptc_error_set(err, PTC_ESTATE, "dataset %s cannot be read: no node serves its samples",
				     doc->name);
	if (doc->info.kind == PTC_SOURCE_FILES && doc->info.samples > PTC_SOURCE_FILES_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "dataset %s has too many files", doc->name);
	return doc->info.kind == PTC_SOURCE_FILES ? ask_names(from, o, err) : ask(from, o, 0, &first, 1, err);
}

int fs_origin_open(const struct ptc_fs_source *from, const char *here, uid_t uid, const struct ptc_dataset_doc *doc,
		   struct fs_origin *ret, struct ptc_error *err)
{
	struct fs_origin o = { .samples = doc->info.samples, .uid = uid == geteuid() ? 0 : uid };
	int rc = ptc_dataset_doc_source(doc, o.id);

	if (rc)
		return ptc_error_set(err, rc, "out of memory");
	memcpy(o.dataset, doc->name, sizeof o.dataset);
	o.fixed_bytes = doc->info.record * ptc_source_dtype_bytes(doc->info.dtype);
	o.far_away = doc->node[0] && strcmp(doc->node, here) != 0;
	rc = o.far_away || o.uid ? open_by_daemon(from, doc, &o, err) : ptc_dataset_doc_open(doc, &o.source, err);
	if (rc) {
		fs_origin_close(&o);
		return rc;
	}
	*ret = o;
	return 0;
}

void fs_origin_close(struct fs_origin *o)
{
	ptc_source_close(o->source);
	ptc_free(o->names);
	ptc_free(o->name_at);
	*o = (struct fs_origin){ 0 };
}

const char *fs_origin_name(const struct fs_origin *o, uint64_t sample)
{
	return o->source ? ptc_source_file(o->source, sample) : o->names + o->name_at[sample];
}

void fs_origin_ahead(const struct fs_part *p, uint32_t part, const uint64_t *samples, size_t n)
{
	const struct fs_origin *o = &p->origins[part];
	struct ptc_admin_samples what = { .size = sizeof what,
					  .dataset = o->dataset,
					  .source = o->id,
					  .samples = samples,
					  .n = n,
					  .uid = o->uid,
					  .ahead = true };

	if (o->far_away && n) /* in vain: then they are read when they are asked for */
		p->from->samples(p->from->arg, &what, NULL, NULL, NULL);
}

static int read_here(const struct fs_origin *o, struct fs_want *w, struct ptc_error *err)
{
	struct ptc_source_sample at;
	size_t n = 0;
	int rc;

	if (w->len)
		rc = ptc_source_read_up_to(o->source, w->sample, w->offset, w->buf, w->len, &n, &w->size, err);
	else if (!(rc = ptc_source_sample(o->source, w->sample, &at, err)))
		w->size = at.length;
	if (rc)
		return rc;
	if (w->len > n)
		memset(w->buf + n, 0, w->len - n);
	return 0;
}

static int fetch_from(const struct fs_part *p, uint32_t part, struct fs_want *v, size_t n, struct ptc_error *err)
{
	const struct fs_origin *o = &p->origins[part];
	bool any = false;
	int rc = 0;

	for (size_t i = 0; i < n && !any; i++)
		any = v[i].part == part;
	if (!any)
		return 0;
	if (!o->source)
		return ask(p->from, o, part, v, n, err);
	for (size_t i = 0; i < n && !rc; i++)
		if (v[i].part == part)
			rc = read_here(o, &v[i], err);
	return rc ? rc : ptc_source_unchanged(o->source, err);
}

int fs_part_fetch(const struct fs_part *p, struct fs_want *v, size_t n, struct ptc_error *err)
{
	int rc = 0;

	for (uint32_t k = 0; !rc && k < p->mix.nparts; k++)
		rc = fetch_from(p, k, v, n, err);
	for (size_t i = 0; !rc && i < n; i++)
		if (v[i].size > p->stride)
			rc = ptc_error_set(err, PTC_ECORRUPT,
					   "dataset %s: sample %" PRIu64 " has %" PRIu64
					   " bytes; when it was added the longest had %" PRIu64,
					   p->origins[v[i].part].dataset, v[i].sample, v[i].size, p->stride);
	return rc;
}
