/* SPDX-License-Identifier: Apache-2.0 */
/* See durable.h. */
#include "daemon/documents/kept/durable.h"

#include "base/alloc.h"
#include "base/number/digest.h"
#include "formats/members.h"

#include <string.h>

#define LENGTH_BYTES 4 /* of the header, before it */

#define KEY(name, k, ...) PTC_ROW(struct ptc_durable, name, key[k], STRING, __VA_ARGS__)
#define IF(k)             PTC_IF(struct ptc_durable, key[k])

/* In the order of enum ptc_durable_key. */
static const struct ptc_member key_rows[PTC_DURABLE_KEYS] = {
	KEY("meta", PTC_DURABLE_META),
	KEY("record", PTC_DURABLE_RECORD),
	KEY("copies", PTC_DURABLE_COPIES, IF(PTC_DURABLE_COPIES)),
	KEY("older", PTC_DURABLE_OLDER, IF(PTC_DURABLE_OLDER)),
};
static const struct ptc_members key_members = PTC_MEMBERS(key_rows, struct ptc_durable);
static const struct ptc_member blob_rows[] = {
	PTC_ROW(struct ptc_kept_doc, NULL, hash, TEXT, .min = PTC_HASH_HEX - 1),
	PTC_ROW(struct ptc_kept_doc, NULL, len, U64),
};
static const struct ptc_members blob_members = PTC_TUPLE(blob_rows, struct ptc_kept_doc);
static const struct ptc_member base_rows[] = {
	PTC_ROW(struct ptc_durable_base, "epoch", epoch, U64),
	PTC_ROW(struct ptc_durable_base, "revision", revision, U64),
	PTC_ROW(struct ptc_durable_base, "blobs", blobs, LIST, PTC_COUNT(struct ptc_durable_base, nblobs),
		.of = &blob_members),
};
static const struct ptc_members base_members = PTC_MEMBERS(base_rows, struct ptc_durable_base);
struct header {
	struct ptc_durable d;
	struct ptc_kept_doc *blobs; /* without their bytes, which follow the header */
	size_t nblobs;
};
static const struct ptc_member header_rows[] = {
	PTC_ROW(struct header, "epoch", d.epoch, U64),
	PTC_ROW(struct header, "revision", d.revision, U64),
	PTC_ROW(struct header, "keys", d, MAP, .of = &key_members),
	PTC_ROW(struct header, "blobs", blobs, LIST, PTC_COUNT(struct header, nblobs), .of = &blob_members),
	PTC_ROW(struct header, "base", d.base, MAP, PTC_IF(struct header, d.base.revision), .of = &base_members),
};
static const struct ptc_members header_members = PTC_MEMBERS(header_rows, struct header);

const char *ptc_durable_key_name(enum ptc_durable_key key)
{
	return key_rows[key].key;
}

void ptc_durable_base_done(struct ptc_durable_base *b)
{
	ptc_free(b->blobs);
	*b = (struct ptc_durable_base){ 0 };
}

void ptc_durable_done(struct ptc_durable *d)
{
	for (size_t i = 0; i < PTC_DURABLE_KEYS; i++)
		ptc_free(d->key[i]);
	ptc_kept_job_free(d->own);
	ptc_durable_base_done(&d->base);
	*d = (struct ptc_durable){ 0 };
}

bool ptc_durable_later(const struct ptc_durable *a, const struct ptc_durable *b)
{
	return a->epoch != b->epoch ? a->epoch > b->epoch : a->revision > b->revision;
}

void ptc_durable_form_done(struct ptc_durable_form *f)
{
	ptc_free(f->parts);
	ptc_free(f->head);
	*f = (struct ptc_durable_form){ 0 };
}

static bool has(const struct ptc_durable_base *b, const char *hash)
{
	for (size_t i = 0; i < b->nblobs; i++)
		if (strcmp(b->blobs[i].hash, hash) == 0)
			return true;
	return false;
}

/* Deals the blobs out to the two lists of the header, which have room for all. */
static void deal(const struct ptc_durable *d, const struct ptc_durable_base *base, struct header *h)
{
	h->d.base = (struct ptc_durable_base){ base->epoch, base->revision, h->d.base.blobs, 0 };
	for (size_t i = 0; i < d->blobs->n; i++) {
		const struct ptc_kept_doc *blob = &d->blobs->v[i];

		if (has(base, blob->hash))
			h->d.base.blobs[h->d.base.nblobs++] = *blob;
		else
			h->blobs[h->nblobs++] = *blob;
	}
}

/* The header as text, and behind it the blobs of h. */
static int form(const struct header *h, struct ptc_durable_form *ret)
{
	struct ptc_durable_form f = { .nparts = 1 + h->nblobs };
	char *text = ptc_members_to_text((int)ptc_version_write(PTC_DOC_VERSION, PTC_DOC_VERSION), &header_members, h);
	size_t len = text ? strlen(text) : 0;

	f.head = text ? ptc_malloc(LENGTH_BYTES + len) : NULL;
	f.parts = ptc_calloc(f.nparts, sizeof *f.parts);
	if (!f.head || !f.parts) {
		ptc_free(text);
		ptc_durable_form_done(&f);
		return PTC_ENOMEM;
	}
	for (unsigned i = 0; i < LENGTH_BYTES; i++)
		f.head[i] = (char)(len >> (8 * i));
	memcpy(f.head + LENGTH_BYTES, text, len);
	ptc_free(text);
	f.parts[0] = (struct iovec){ f.head, LENGTH_BYTES + len };
	for (size_t i = 0; i < h->nblobs; i++)
		f.parts[1 + i] = (struct iovec){ h->blobs[i].data, h->blobs[i].len };
	for (size_t i = 0; i < f.nparts; i++)
		f.len += f.parts[i].iov_len;
	*ret = f;
	return 0;
}

int ptc_durable_form(const struct ptc_durable *d, const struct ptc_durable_base *base, struct ptc_durable_form *ret)
{
	static const struct ptc_durable_base none;
	struct header h = { .d = *d, .blobs = ptc_calloc(d->blobs->n, sizeof *h.blobs) };
	int rc;

	h.d.base.blobs = ptc_calloc(d->blobs->n, sizeof *h.d.base.blobs);
	rc = h.blobs && h.d.base.blobs ? 0 : PTC_ENOMEM;
	if (rc == 0) {
		deal(d, base ? base : &none, &h);
		rc = form(&h, ret);
	}
	ptc_free(h.blobs);
	ptc_free(h.d.base.blobs);
	return rc;
}

int ptc_durable_encode(const struct ptc_durable *d, char **ret_data, size_t *ret_len)
{
	struct ptc_durable_form f;
	int rc = ptc_durable_form(d, NULL, &f);
	char *data = rc ? NULL : ptc_malloc(f.len), *at = data;

	for (size_t i = 0; data && i < f.nparts; i++)
		at = mempcpy(at, f.parts[i].iov_base, f.parts[i].iov_len);
	*ret_data = data;
	*ret_len = rc ? 0 : f.len;
	if (rc == 0)
		ptc_durable_form_done(&f);
	return data ? 0 : PTC_ENOMEM;
}

static int corrupt(const char *what, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ECORRUPT, "%s: the committed documents that it keeps are damaged", what);
}

/* Takes the next len bytes as the blob with that hash. */
static int take_blob(const char *what, const char *hash, const char *data, size_t len, struct ptc_kept_job *j,
		     struct ptc_error *err)
{
	char found[PTC_HASH_HEX], *copy;
	int rc;

	ptc_content_hash(data, len, found);
	if (strcmp(found, hash) != 0)
		return corrupt(what, err);
	copy = ptc_malloc(len + 1); /* sealed ones hold any bytes, NULs too */
	if (copy) {
		memcpy(copy, data, len);
		copy[len] = '\0';
	}
	rc = copy ? ptc_kept_job_add(j, hash, copy, len) : PTC_ENOMEM;
	if (rc)
		ptc_free(copy);
	return rc ? ptc_nomem(err) : 0;
}

static int take_blobs(const char *what, const struct header *h, const char *data, size_t len, struct ptc_error *err)
{
	for (size_t i = 0; i < h->nblobs; i++) {
		const struct ptc_kept_doc *blob = &h->blobs[i];
		int rc = blob->len > len ? corrupt(what, err)
					 : take_blob(what, blob->hash, data, blob->len, h->d.own, err);

		if (rc)
			return rc;
		data += blob->len;
		len -= blob->len;
	}
	return len ? corrupt(what, err) : 0;
}

int ptc_durable_decode(const char *what, const void *data, size_t len, struct ptc_durable *ret, struct ptc_error *err)
{
	const uint8_t *p = data;
	const char *text = (const char *)data + LENGTH_BYTES;
	struct header h = { 0 };
	size_t head = 0;
	int rc;

	for (size_t i = 0; i < LENGTH_BYTES && len >= LENGTH_BYTES; i++)
		head |= (size_t)p[i] << (8 * i);
	if (len < LENGTH_BYTES || head > len - LENGTH_BYTES)
		return corrupt(what, err);
	rc = ptc_members_from_text(what, PTC_DOC_OLDEST, PTC_DOC_VERSION, &header_members, text, head, &h, err);
	if (rc)
		return rc;
	h.d.blobs = h.d.own = ptc_calloc(1, sizeof *h.d.own);
	rc = h.d.own ? take_blobs(what, &h, text + head, len - 4 - head, err) : ptc_nomem(err);
	ptc_free(h.blobs);
	if (rc)
		ptc_durable_done(&h.d);
	else
		*ret = h.d;
	return rc;
}

/* Moves the blobs that `later` names in its base from there to its own. */
static int take_from(const char *what, struct ptc_kept_job *from, const struct ptc_durable_base *names,
		     struct ptc_kept_job *to, struct ptc_error *err)
{
	for (size_t i = 0; i < names->nblobs; i++) {
		struct ptc_kept_doc *blob = NULL;

		for (size_t k = 0; k < from->n && !blob; k++)
			if (from->v[k].data && strcmp(from->v[k].hash, names->blobs[i].hash) == 0)
				blob = &from->v[k];
		if (!blob)
			return corrupt(what, err);
		if (ptc_kept_job_add(to, blob->hash, blob->data, blob->len))
			return ptc_nomem(err);
		blob->data = NULL;
	}
	return 0;
}

int ptc_durable_join(const char *what, struct ptc_durable *d, struct ptc_durable *later, struct ptc_error *err)
{
	int rc = 0;

	if (ptc_durable_later(later, d)) {
		if (later->base.epoch != d->epoch || later->base.revision != d->revision)
			rc = corrupt(what, err);
		else
			rc = take_from(what, d->own, &later->base, later->own, err);
		if (rc == 0) {
			struct ptc_durable both = *later;

			*later = *d;
			*d = both;
			ptc_durable_base_done(&d->base);
		}
	}
	ptc_durable_done(later);
	return rc;
}
