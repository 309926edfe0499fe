/* SPDX-License-Identifier: Apache-2.0 */
/* What one data-parallel rank of one generation consumes in one epoch, as an indexed dataset (docs/files.md). All sizes
 * and places follow from a few numbers; bytes are read from the sources as they are asked for.
 *
 * Happy path: made of the daemon's answer (docs/control.md, "job data"), its sources opened and compared with what they
 * were; then reads, by any thread. Failure modes: there is no such generation (PTC_ENOTFOUND); nothing says the batch
 * sizes; sources have different dtypes; a source has changed or cannot be read. The log says so once, and the reader
 * gets EIO. */
#include "fusefs/samples/part.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "formats/dataset/dataset_doc.h"
#include "formats/json.h"
#include "formats/dataset/ledger.h"
#include "reshard/spec/config.h"

#include <inttypes.h>
#include <string.h>

#define IDX_HEAD 34
#define NPY_HEAD 128
#define BATCH    1024 /* slots that are looked at together */

#define FLOAT_ONE 0x3F800000 /* 1.0f */

static const char *const names[FS_PART_FILES] = { "samples.bin", "samples.idx", "ids.npy", "weights.npy",
						  "partition.json" };

const char *fs_part_file_name(enum fs_part_file file)
{
	return names[file];
}

struct fs_part *fs_part_free(struct fs_part *p)
{
	for (uint32_t i = 0; p && i < p->mix.nparts; i++)
		fs_origin_close(&p->origins[i]);
	if (p) {
		fs_division_free(p->division);
		pthread_mutex_destroy(&p->lock);
	}
	ptc_free(p);
	return NULL;
}

/* ---- the daemon's answer ---- */

static const json_t *data_of(const json_t *root, const char *name)
{
	json_t *rows = json_object_get(root, "data"), *row;
	size_t i;

	json_array_foreach(rows, i, row) {
		const char *its = json_string_value(json_object_get(row, "name"));

		if (its && strcmp(its, name) == 0)
			return row;
	}
	return NULL;
}

/* By length where that generation's snapshots say so, with what samples cost there; of the newest, as its data and its
 * configuration say. What samples cost in an older one whose ranks set the cursor themselves is not known any more.
 * said: what the tag of its snapshots says, all 0 if there is none. Unequal micro steps divide by count. */
static int division_of(const json_t *root, const json_t *data, const char *tag, const struct ptc_ledger_order *said,
		       bool newest, struct fs_part *p, struct ptc_error *err)
{
	bool wanted = json_is_true(json_object_get(data, "by_length"));
	struct ptc_cost cost = { 0 };

	p->tag_samples = said->n;
	if (p->batch.runs.n)
		return 0;
	if (said->by_length && (said->linear || said->square))
		cost = (struct ptc_cost){ said->linear, said->square };
	else if (wanted && newest)
		cost = (struct ptc_cost){ ptc_json_count(root, "cost_linear"), ptc_json_count(root, "cost_square") };
	else if (said->by_length || (wanted && tag && !said->counted))
		return ptc_error_set(err, PTC_EINVAL,
				     "the ranks divided batches by the samples' lengths, which they alone know; "
				     "which rank had which is in no file");
	if (!cost.linear && !cost.square)
		return 0;
	if (p->batch.global > FS_DIVISION_SLOTS || p->batch.n_micro * p->batch.width > FS_DIVISION_SLOTS)
		return ptc_error_set(err, PTC_ELIMIT, "batches of more than %u slots are not divided by length",
				     FS_DIVISION_SLOTS);
	p->division = fs_division_new(cost);
	return p->division ? 0 : ptc_nomem(err);
}

/* Where a generation began to consume, and how it divides: as its snapshots have it, or, of the newest that has none
 * yet, as its configuration says. */
static int generation_of(const json_t *root, const char *name, uint64_t generation, struct fs_part *p,
			 struct ptc_error *err)
{
	const char *text = json_string_value(json_object_get(root, "config"));
	const json_t *data = data_of(root, name);
	struct ptc_ledger_entry e = { .first_step = ptc_json_count(root, "step") };
	ptc_auto_free char *tag = NULL;
	struct ptc_ledger_order said = { 0 };
	struct ptc_config config = { 0 };
	struct ptc_ledger l = { 0 };
	bool known = false;
	int rc = ptc_ledger_from_json(json_object_get(root, "ledger"), &l);

	if (rc || !data || !text)
		return ptc_error_set(err, data ? PTC_EPEER : PTC_ENOTFOUND, "the job has no data \"%s\"", name);
	for (size_t i = 0; i < l.n && !known; i++) {
		if (strcmp(l.v[i].cursor, name) != 0)
			continue;
		known = l.v[i].generation == generation && !ptc_ledger_skipped(&l.v[i]);
		e = known ? l.v[i] : (struct ptc_ledger_entry){ .first = l.v[i].end, .first_step = l.v[i].end_step };
	}
	if (!known && generation == ptc_json_count(root, "generation"))
		rc = ptc_config_parse(text, &config, err);
	else if (!known)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "generation %" PRIu64 " is not known any more", generation);
	if (!known && !rc) {
		e.dp = config.dp;
		e.micro = config.micro_batch;
		e.batch = config.global_batch;
	}
	if (known && !rc && !(tag = ptc_strdup(e.tag)))
		rc = ptc_nomem(err);
	ptc_ledger_done(&l);
	if (rc)
		return rc;
	p->position = e.first;
	p->first_step = e.first_step;
	e.micro = e.micro ? e.micro : (uint32_t)ptc_json_count(data, "micro_batch");
	e.batch = e.batch ? e.batch : ptc_json_count(data, "global_batch");
	if (tag)
		ptc_ledger_tag(tag, &said);
	if (!ptc_batch_init_runs(&p->batch, e.batch, e.micro, e.dp, known ? &said.micro_steps : &config.micro_steps))
		return ptc_error_set(err, PTC_EINVAL,
				     "data %s: neither the configuration nor the job says its global and micro batch",
				     name);
	return division_of(root, data, tag, &said, generation == ptc_json_count(root, "generation"), p, err);
}

static int open_source(struct fs_part *p, uint32_t i, const char *here, json_t *row, struct ptc_mix_part *ret,
		       struct ptc_error *err)
{
	ptc_auto_free struct ptc_dataset_doc *doc = ptc_calloc(1, sizeof *doc);
	const char *error = json_string_value(json_object_get(row, "error"));
	enum ptc_source_dtype dtype;
	int rc = doc ? 0 : ptc_nomem(err);

	if (!rc && error)
		rc = ptc_error_set(err, PTC_ECORRUPT, "%.900s", error);
	if (!rc)
		rc = ptc_dataset_doc_from_json(json_object_get(row, "source"), doc, err);
	if (!rc && p->division && doc->info.kind == PTC_SOURCE_FILES)
		rc = ptc_error_set(err, PTC_EINVAL,
				   "by_length: the samples of dataset %s are files, which have no length in tokens",
				   doc->name);
	if (!rc)
		rc = fs_origin_open(p->from, here, p->uid, doc, &p->origins[i], err);
	if (rc)
		return rc;
	dtype = doc->info.kind == PTC_SOURCE_FILES ? PTC_SOURCE_U8 : doc->info.dtype;
	if (i && dtype != p->dtype)
		return ptc_error_set(err, PTC_EINVAL, "dataset %s is of %s, those before it of %s", doc->name,
				     ptc_source_dtype_name(dtype), ptc_source_dtype_name(p->dtype));
	p->dtype = dtype;
	p->fixed_bytes = i && p->fixed_bytes != p->origins[i].fixed_bytes ? 0 : p->origins[i].fixed_bytes;
	p->elsewhere |= !p->origins[i].source;
	p->files = (p->files || !i) && doc->info.kind == PTC_SOURCE_FILES;
	p->stride = PTC_MAX(p->stride, PTC_MAX(doc->longest_bytes, 1));
	*ret = (struct ptc_mix_part){ .nsamples = doc->info.samples,
				      .weight = (uint32_t)ptc_json_count(row, "weight"),
				      .block = ptc_json_count(row, "block"),
				      .sequential = json_is_true(json_object_get(row, "sequential")) };
	return 0;
}

static int open_sources(struct fs_part *p, const char *here, const json_t *data, struct ptc_error *err)
{
	struct ptc_mix_part parts[PTC_MIX_MAX];
	json_t *rows = json_object_get(data, "parts"), *row;
	size_t i, n = json_array_size(rows);
	int rc =
		n && n <= PTC_MIX_MAX ? 0 : ptc_error_set(err, PTC_EPEER, "the daemon named no datasets for this data");

	json_array_foreach(rows, i, row) {
		if (rc)
			break;
		rc = open_source(p, (uint32_t)i, here ? here : "", row, &parts[i], err);
		p->mix.nparts = (uint32_t)i + 1; /* so many to close */
	}
	if (!rc && !ptc_mix_init(&p->mix, parts, (uint32_t)n, ptc_json_count(data, "seed")))
		rc = ptc_error_set(err, PTC_ELIMIT, "an order has at most 2^63 samples");
	return rc;
}

int fs_part_new(const struct ptc_fs_source *from, const char *json, uid_t uid, const char *uuid, const char *name,
		uint64_t generation, struct fs_part **ret_part, struct ptc_error *err)
{
	struct fs_part *p = ptc_calloc(1, sizeof *p);
	const char *its;
	json_t *root = NULL;
	int rc = p ? ptc_json_load("the daemon's answer", json, strlen(json), &root, err) : ptc_nomem(err);

	if (p) {
		p->from = from;
		p->uid = uid;
		pthread_mutex_init(&p->lock, NULL);
	}
	its = json_string_value(json_object_get(root, "uuid"));
	if (!rc && (!its || strcmp(its, uuid) != 0))
		rc = ptc_error_set(err, PTC_ENOTFOUND, "the job was deleted, and another job now has its name");
	if (!rc)
		rc = generation_of(root, name, generation, p, err);
	if (!rc)
		rc = open_sources(p, json_string_value(json_object_get(root, "node")), data_of(root, name), err);
	if (!rc && p->tag_samples && p->tag_samples != p->mix.nsamples)
		rc = ptc_error_set(err, PTC_EINVAL,
				   "data %s has %" PRIu64 " samples, the cursor of that name is of %" PRIu64, name,
				   p->mix.nsamples, p->tag_samples);
	if (!rc) {
		p->refs = 1;
		p->generation = generation;
		p->mtime_s = (int64_t)(ptc_json_count(root, "created_ms") / 1000 + generation);
		snprintf(p->uuid, sizeof p->uuid, "%s", uuid);
		snprintf(p->name, sizeof p->name, "%s", name);
		p->slots_per_step = p->batch.n_micro * p->batch.micro;
	}
	json_decref(root);
	if (rc) {
		fs_part_free(p);
		return rc;
	}
	*ret_part = p;
	return 0;
}

/* ---- places ---- */

/* How many steps begin before that position. */
static uint64_t steps_before(const struct fs_part *p, uint64_t position)
{
	uint64_t left = position > p->position ? position - p->position : 0;

	return left / p->batch.global + (left % p->batch.global != 0);
}

bool fs_part_epoch(const struct fs_part *p, uint64_t epoch, struct fs_window *ret)
{
	struct fs_window w = { 0 };
	uint64_t end, slots, bytes;

	if (epoch < p->position / p->mix.nsamples || ptc_ckd_mul(&end, epoch + 1, p->mix.nsamples) ||
	    end > PTC_ORDER_MAX)
		return false;
	w.first = steps_before(p, end - p->mix.nsamples);
	w.steps = steps_before(p, end) - w.first;
	if (ptc_ckd_mul(&slots, w.steps, p->slots_per_step) || ptc_ckd_mul(&bytes, slots, p->stride) ||
	    bytes > INT64_MAX / 2 || slots > INT64_MAX / 64)
		return false;
	w.slots = slots;
	*ret = w;
	return true;
}

/* What slot i has. Fails only where batches are divided by length, whose samples are no files. */
struct slot {
	uint64_t position;
	bool real; /* else padding */
};

static int slot_at(const struct fs_part *p, const struct fs_window *w, uint32_t dp, uint64_t i, struct slot *ret,
		   struct ptc_error *err)
{
	const struct ptc_batch *b = &p->batch;
	uint64_t step = w->first + i / p->slots_per_step, in_step = i % p->slots_per_step, offset;
	int rc = 0;

	if (!p->division) {
		ret->real = ptc_batch_slot(b, in_step / b->micro, dp, in_step % b->micro, &offset);
	} else {
		uint64_t of_all = in_step / b->micro * b->width + (uint64_t)dp * b->micro + in_step % b->micro;

		rc = fs_division_slot(p, step, of_all, &offset, err);
		if (rc)
			return rc;
		ret->real = offset < b->global;
		offset -= ret->real ? 0 : b->global;
	}
	ret->position = p->position + step * b->global + offset;
	return 0;
}

static int sample_at(const struct fs_part *p, const struct fs_window *w, uint32_t dp, uint64_t i,
		     struct ptc_mix_sample *ret, struct ptc_error *err)
{
	struct slot s;
	int rc = slot_at(p, w, dp, i, &s, err);

	if (!rc)
		*ret = ptc_mix_at(&p->mix, s.position);
	return rc;
}

/* Of slot i's sample, without any bytes of it. */
static int want(const struct fs_part *p, const struct fs_window *w, uint32_t dp, uint64_t i, struct fs_want *ret,
		struct ptc_error *err)
{
	struct ptc_mix_sample s;
	int rc = sample_at(p, w, dp, i, &s, err);

	if (!rc)
		*ret = (struct fs_want){ .part = s.part, .sample = s.sample };
	return rc;
}

static int json_text(const struct fs_part *p, const struct fs_window *w, uint32_t dp, uint64_t epoch, char *buf,
		     size_t size)
{
	return snprintf(buf, size,
			"{\"version\": 1, \"generation\": %" PRIu64 ", \"dp_rank\": %u, \"dp\": %u, \"epoch\": %" PRIu64
			", \"first_step\": %" PRIu64 ", \"steps\": %" PRIu64 ", \"position\": %" PRIu64
			", \"micro_steps\": %" PRIu64 ", \"micro_batch\": %u, \"global_batch\": %" PRIu64
			", \"slots\": %" PRIu64 ", \"stride_bytes\": %" PRIu64 ", \"dtype\": \"%s\"}\n",
			p->generation, dp, p->batch.dp, epoch, p->first_step + w->first, w->steps,
			p->position + w->first * p->batch.global, p->batch.n_micro, p->batch.micro, p->batch.global,
			w->slots, p->stride, ptc_source_dtype_name(p->dtype));
}

uint64_t fs_part_size(const struct fs_place *at, const struct fs_window *w)
{
	char text[FS_PART_JSON_MAX];

	switch (at->which) {
	case FS_PART_BIN:
		return w->slots * at->part->stride;
	case FS_PART_IDX:
		return IDX_HEAD + 12 * w->slots + 8 * (w->slots + 1);
	case FS_PART_IDS:
		return NPY_HEAD + 8 * w->slots;
	case FS_PART_WEIGHTS:
		return NPY_HEAD + 4 * w->slots;
	default:
		return (uint64_t)json_text(at->part, w, at->dp, at->epoch, text, sizeof text);
	}
}

/* ---- bytes ---- */

static void put_le(unsigned char *to, uint64_t v, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		to[i] = (unsigned char)(v >> (8 * i));
}

static void npy_head(const char *descr, uint64_t n, unsigned char *head)
{
	int len;

	memset(head, ' ', NPY_HEAD);
	memcpy(head, (const char[8]){ "\x93NUMPY\1" }, 8);
	put_le(head + 8, NPY_HEAD - 10, 2);
	len = snprintf((char *)head + 10, NPY_HEAD - 10,
		       "{'descr': '%s', 'fortran_order': False, 'shape': (%" PRIu64 ",), }", descr, n);
	head[10 + len] = ' ';
	head[NPY_HEAD - 1] = '\n';
}

static void idx_head(const struct fs_part *p, uint64_t n, unsigned char *head)
{
	enum ptc_source_dtype dtype = p->dtype;

	/* Those that an index has no code for, by one of the same width. */
	if (dtype == PTC_SOURCE_U32 || dtype == PTC_SOURCE_U64)
		dtype = dtype == PTC_SOURCE_U32 ? PTC_SOURCE_I32 : PTC_SOURCE_I64;
	else if (dtype == PTC_SOURCE_F16)
		dtype = PTC_SOURCE_I16;
	memcpy(head, (const char[9]){ "MMIDIDX" }, 9);
	put_le(head + 9, 1, 8);
	head[17] = (unsigned char)dtype;
	put_le(head + 18, n, 8);
	put_le(head + 26, n + 1, 8);
}

/* Arrays one after the other behind a head, each of n little-endian numbers. */
struct array {
	unsigned width;
	uint64_t n;
	enum { SIZES, POINTERS, MARKS, IDS, WEIGHTS } what;
};

static int sizes(const struct fs_part *p, const struct fs_window *w, uint32_t dp, uint64_t first, size_t n,
		 uint64_t *ret, struct ptc_error *err)
{
	ptc_auto_free struct fs_want *v = ptc_calloc(n, sizeof *v);
	int rc = v ? 0 : ptc_nomem(err);

	for (size_t i = 0; !rc && i < n; i++)
		rc = want(p, w, dp, first + i, &v[i], err);
	if (!rc)
		rc = fs_part_fetch(p, v, n, err);
	for (size_t i = 0; !rc && i < n; i++)
		ret[i] = v[i].size / ptc_source_dtype_bytes(p->dtype);
	return rc;
}

/* n elements of an array from first on. Only what needs it asks which sample a slot has: that takes ten times as long
 * as the rest. */
static int elements(const struct fs_part *p, const struct fs_window *w, uint32_t dp, const struct array *a,
		    uint64_t first, size_t n, uint64_t *ret, struct ptc_error *err)
{
	struct ptc_mix_sample sample;
	struct slot slot;
	int rc = 0;

	if (a->what == SIZES && !p->fixed_bytes)
		return sizes(p, w, dp, first, n, ret, err);
	for (size_t k = 0; !rc && k < n; k++, ret++) {
		const uint64_t i = first + k;

		switch (a->what) {
		case SIZES:
			*ret = p->fixed_bytes / ptc_source_dtype_bytes(p->dtype);
			break;
		case POINTERS:
			*ret = i * p->stride;
			break;
		case MARKS:
			*ret = i;
			break;
		case IDS:
			rc = sample_at(p, w, dp, i, &sample, err);
			*ret = rc ? 0 : sample.id;
			break;
		case WEIGHTS:
			rc = slot_at(p, w, dp, i, &slot, err);
			*ret = !rc && slot.real ? FLOAT_ONE : 0;
			break;
		}
	}
	return rc;
}

struct request {
	const struct fs_part *p;
	const struct fs_window *w;
	uint32_t dp;
	uint64_t off; /* in the file */
	unsigned char *buf;
	size_t len, done;
};

/* What of [at, at + n) is asked for, copied out of data. */
static void overlap(struct request *r, uint64_t at, const unsigned char *data, uint64_t n)
{
	uint64_t want = r->off + r->done;

	if (want < at || want >= at + n || r->done == r->len)
		return;
	n = PTC_MIN(at + n - want, r->len - r->done);
	memcpy(r->buf + r->done, data + (want - at), n);
	r->done += n;
}

static int read_array(struct request *r, uint64_t at, const struct array *a, struct ptc_error *err)
{
	while (r->done < r->len && r->off + r->done < at + a->n * a->width) {
		uint64_t first = (r->off + r->done - at) / a->width, values[BATCH];
		uint64_t left = (r->len - r->done + 2 * a->width - 2) / a->width; /* those that are begun, too */
		size_t n = (size_t)PTC_MIN(PTC_MIN(a->n - first, left), (uint64_t)BATCH);
		int rc = elements(r->p, r->w, r->dp, a, first, n, values, err);

		for (size_t i = 0; !rc && i < n; i++) {
			unsigned char bytes[8];

			put_le(bytes, values[i], a->width);
			overlap(r, at + (first + i) * a->width, bytes, a->width);
		}
		if (rc)
			return rc;
	}
	return 0;
}

static int read_arrays(struct request *r, const unsigned char *head, uint64_t head_len, const struct array *arrays,
		       size_t n, struct ptc_error *err)
{
	uint64_t at = head_len;
	int rc = 0;

	overlap(r, 0, head, head_len);
	for (size_t k = 0; !rc && k < n; at += arrays[k].n * arrays[k].width, k++)
		rc = read_array(r, at, &arrays[k], err);
	return rc;
}

static int read_samples(struct request *r, struct ptc_error *err)
{
	ptc_auto_free struct fs_want *v = ptc_calloc(BATCH, sizeof *v);
	int rc = v ? 0 : ptc_nomem(err);

	while (!rc && r->done < r->len) {
		size_t n = 0;

		for (; n < BATCH && r->done < r->len; n++) {
			uint64_t at = r->off + r->done;

			rc = want(r->p, r->w, r->dp, at / r->p->stride, &v[n], err);
			if (rc)
				return rc;
			v[n].offset = at % r->p->stride;
			v[n].buf = r->buf + r->done;
			v[n].len = (size_t)PTC_MIN(r->p->stride - v[n].offset, r->len - r->done);
			r->done += v[n].len;
		}
		rc = fs_part_fetch(r->p, v, n, err);
	}
	return rc;
}

/* ---- files ---- */

void fs_part_slot_name(const struct fs_place *at, const struct fs_window *w, uint64_t i, char ret[FS_NAME_MAX + 1])
{
	struct ptc_mix_sample s = { 0 };
	const char *path, *slash, *name;
	int n = snprintf(ret, FS_NAME_MAX + 1, "%09" PRIu64 "-", i);

	sample_at(at->part, w, at->dp, i, &s, NULL);
	path = fs_origin_name(&at->part->origins[s.part], s.sample);
	slash = strrchr(path, '/');
	name = slash ? slash + 1 : path;
	if (strlen(name) > (size_t)(FS_NAME_MAX - n)) { /* its end says what it is */
		name += strlen(name) - (size_t)(FS_NAME_MAX - n);
		while ((*name & 0xC0) == 0x80)
			name++;
	}
	snprintf(ret + n, FS_NAME_MAX + 1 - (size_t)n, "%s", name);
}

int fs_part_slot_find(const struct fs_place *at, const struct fs_window *w, const char *name, uint64_t *ret_slot,
		      uint64_t *ret_size, struct ptc_error *err)
{
	char its[FS_NAME_MAX + 1];
	struct fs_want it;
	uint64_t i = 0;
	int rc;

	for (const char *c = name; *c != '-'; c++) {
		if (*c < '0' || *c > '9' || c - name > 18)
			return PTC_ENOTFOUND;
		i = i * 10 + (uint64_t)(*c - '0');
	}
	if (i >= w->slots)
		return PTC_ENOTFOUND;
	fs_part_slot_name(at, w, i, its);
	if (strcmp(name, its) != 0)
		return PTC_ENOTFOUND;
	rc = want(at->part, w, at->dp, i, &it, err);
	if (!rc)
		rc = fs_part_fetch(at->part, &it, 1, err);
	if (rc)
		return rc;
	*ret_slot = i;
	*ret_size = it.size;
	return 0;
}

static int read_slot(struct request *r, uint64_t i, struct ptc_error *err)
{
	struct fs_want it;
	int rc = want(r->p, r->w, r->dp, i, &it, err);

	if (rc)
		return rc;
	it.offset = r->off;
	it.buf = r->buf;
	it.len = r->len;
	rc = fs_part_fetch(r->p, &it, 1, err);
	if (!rc && (r->off > it.size || r->len > it.size - r->off))
		rc = ptc_error_set(err, PTC_ECORRUPT, "sample %" PRIu64 " of dataset %s has %" PRIu64 " bytes now",
				   it.sample, r->p->origins[it.part].dataset, it.size);
	return rc;
}

int fs_part_read(const struct fs_place *at, uint64_t off, void *buf, size_t len, struct ptc_error *err)
{
	const struct fs_part *p = at->part;
	struct fs_window window, *w = &window;
	struct request r = { p, w, at->dp, off, buf, len, 0 };
	unsigned char head[NPY_HEAD];
	char text[FS_PART_JSON_MAX];

	if (!fs_part_epoch(p, at->epoch, w))
		return ptc_error_set(err, PTC_EINTERNAL, "the epoch has already ended");
	switch (at->which) {
	case FS_PART_SAMPLE:
		return read_slot(&r, at->slot, err);
	case FS_PART_BIN:
		return read_samples(&r, err);
	case FS_PART_IDX:
		idx_head(p, w->slots, head);
		return read_arrays(&r, head, IDX_HEAD,
				   (struct array[]){ { 4, w->slots, SIZES },
						     { 8, w->slots, POINTERS },
						     { 8, w->slots + 1, MARKS } },
				   3, err);
	case FS_PART_IDS:
		npy_head("<u8", w->slots, head);
		return read_arrays(&r, head, NPY_HEAD, &(struct array){ 8, w->slots, IDS }, 1, err);
	case FS_PART_WEIGHTS:
		npy_head("<f4", w->slots, head);
		return read_arrays(&r, head, NPY_HEAD, &(struct array){ 4, w->slots, WEIGHTS }, 1, err);
	default:
		overlap(&r, 0, (unsigned char *)text, (uint64_t)json_text(p, w, at->dp, at->epoch, text, sizeof text));
		return 0;
	}
}

/* ---- what comes next ---- */

#define AHEAD_BYTES (16u << 20)
#define AHEAD_MIN   8
#define AHEAD_MAX   1024 /* slots; the daemon takes as many samples */

static struct fs_ahead *ahead_locked(struct fs_part *p, const struct fs_place *at)
{
	struct fs_ahead *a;

	for (size_t i = 0; i < PTC_MIN(p->naheads, (size_t)FS_AHEADS); i++)
		if (p->ahead[i].dp == at->dp && p->ahead[i].epoch == at->epoch)
			return &p->ahead[i];
	a = &p->ahead[p->naheads++ % FS_AHEADS];
	*a = (struct fs_ahead){ .dp = at->dp, .epoch = at->epoch };
	return a;
}

/* Slots [first, end) have been read. Those that are to be got now: none where reading is not in order, or enough is
 * under way. */
static uint64_t next_slots(const struct fs_place *at, uint64_t first, uint64_t end, uint64_t slots, uint64_t *ret_from)
{
	struct fs_part *p = at->part;
	uint64_t window = PTC_MIN(PTC_MAX(AHEAD_BYTES / p->stride, (uint64_t)AHEAD_MIN), (uint64_t)AHEAD_MAX), n = 0;
	struct fs_ahead *a;
	bool in_order;

	pthread_mutex_lock(&p->lock);
	a = ahead_locked(p, at);
	in_order = first <= a->last + window && first + window >= a->last;
	a->last = end;
	if (!in_order || a->to < end || a->to > end + window)
		a->to = end;
	if (in_order && a->to - end <= window / 2) {
		*ret_from = a->to;
		n = PTC_MIN(end + window, slots) - PTC_MIN(a->to, slots);
		a->to += n;
	}
	pthread_mutex_unlock(&p->lock);
	return n;
}

void fs_part_read_ahead(const struct fs_place *at, uint64_t off, size_t len)
{
	const struct fs_part *p = at->part;
	uint64_t samples[AHEAD_MAX], first = at->slot, end = at->slot + 1, from = 0, n, known = 0;
	struct fs_want it;
	uint64_t all[AHEAD_MAX];
	uint32_t part[AHEAD_MAX];
	struct fs_window w;

	if (!p->elsewhere || !len || (at->which != FS_PART_BIN && at->which != FS_PART_SAMPLE) ||
	    !fs_part_epoch(p, at->epoch, &w))
		return;
	if (at->which == FS_PART_BIN) {
		first = off / p->stride;
		end = (off + len - 1) / p->stride + 1;
	}
	n = next_slots(at, first, end, w.slots, &from);
	/* Each slot once, not once for each dataset: by length there are more steps in these than are remembered. */
	for (; known < n && want(p, &w, at->dp, from + known, &it, NULL) == 0; known++) {
		all[known] = it.sample; /* what fails is said when it is asked for */
		part[known] = it.part;
	}
	for (uint32_t k = 0; known && k < p->mix.nparts; k++) {
		size_t of_it = 0;

		for (uint64_t i = 0; i < known; i++)
			if (part[i] == k)
				samples[of_it++] = all[i];
		fs_origin_ahead(p, k, samples, of_it);
	}
}
