/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/documents/kept/durable.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/number/digest.h"
#include "formats/json.h"

#include <string.h>

const char *ptc_durable_key_name(enum ptc_durable_key key)
{
	static const char *const names[PTC_DURABLE_KEYS] = { "meta", "record", "copies", "older" };

	return names[key];
}

void ptc_durable_done(struct ptc_durable *d)
{
	for (size_t i = 0; i < PTC_DURABLE_KEYS; i++)
		ptc_free(d->key[i]);
	ptc_kept_job_free(d->own);
	*d = (struct ptc_durable){ 0 };
}

bool ptc_durable_later(const struct ptc_durable *a, const struct ptc_durable *b)
{
	return a->epoch != b->epoch ? a->epoch > b->epoch : a->revision > b->revision;
}

/* NULL: out of memory. */
static char *header(const struct ptc_durable *d)
{
	json_t *keys = json_object(), *blobs = json_array(), *root;
	char *text;
	bool ok = keys && blobs;

	for (size_t i = 0; ok && i < PTC_DURABLE_KEYS; i++)
		if (d->key[i])
			ok = json_object_set_new(keys, ptc_durable_key_name((enum ptc_durable_key)i),
						 json_string(d->key[i])) == 0;
	for (size_t i = 0; ok && i < d->blobs->n; i++)
		ok = json_array_append_new(blobs, json_pack("[s, I]", d->blobs->v[i].hash,
							    (json_int_t)d->blobs->v[i].len)) == 0;
	root = json_pack("{s:i, s:I, s:I, s:o, s:o}", "version",
			 (int)ptc_version_write(PTC_DOC_VERSION, PTC_DOC_VERSION), "epoch", (json_int_t)d->epoch,
			 "revision", (json_int_t)d->revision, "keys", keys, "blobs", blobs);
	text = root && ok ? ptc_json_text(root) : NULL;
	json_decref(root);
	return text;
}

int ptc_durable_encode(const struct ptc_durable *d, char **ret_data, size_t *ret_len)
{
	struct ptc_buf b = PTC_BUF_INIT;
	char *text = header(d);
	size_t len = text ? strlen(text) : 0;
	uint8_t le[4];

	if (!text)
		return PTC_ENOMEM;
	for (unsigned i = 0; i < sizeof le; i++)
		le[i] = (uint8_t)(len >> (8 * i));
	ptc_buf_append(&b, le, sizeof le);
	ptc_buf_append(&b, text, len);
	for (size_t i = 0; i < d->blobs->n; i++)
		ptc_buf_append(&b, d->blobs->v[i].data, d->blobs->v[i].len);
	ptc_free(text);
	if (ptc_buf_failed(&b)) {
		ptc_buf_done(&b);
		return PTC_ENOMEM;
	}
	*ret_data = ptc_buf_steal(&b, ret_len);
	return 0;
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

static int take_blobs(const char *what, const json_t *list, const char *data, size_t len, struct ptc_kept_job *j,
		      struct ptc_error *err)
{
	json_t *row;
	size_t i;
	int rc = 0;

	json_array_foreach(list, i, row) {
		const char *hash = json_string_value(json_array_get(row, 0));
		json_int_t bytes = json_integer_value(json_array_get(row, 1));

		if (!hash || strlen(hash) != PTC_HASH_HEX - 1 || bytes < 0 || (uint64_t)bytes > len)
			return corrupt(what, err);
		rc = take_blob(what, hash, data, (size_t)bytes, j, err);
		if (rc)
			return rc;
		data += bytes;
		len -= (size_t)bytes;
	}
	return len ? corrupt(what, err) : 0;
}

static int take_keys(const char *what, const json_t *root, struct ptc_durable *d, struct ptc_error *err)
{
	const json_t *keys = json_object_get(root, "keys");

	d->epoch = ptc_json_count(root, "epoch");
	d->revision = (int64_t)ptc_json_count(root, "revision");
	for (size_t i = 0; i < PTC_DURABLE_KEYS; i++) {
		const char *v = json_string_value(json_object_get(keys, ptc_durable_key_name((enum ptc_durable_key)i)));

		d->key[i] = v ? ptc_strdup(v) : NULL;
		if (v && !d->key[i])
			return ptc_nomem(err);
	}
	return d->key[PTC_DURABLE_META] && d->key[PTC_DURABLE_RECORD] ? 0 : corrupt(what, err);
}

int ptc_durable_decode(const char *what, const void *data, size_t len, struct ptc_durable *ret, struct ptc_error *err)
{
	struct ptc_durable d = { 0 };
	const uint8_t *p = data;
	json_t *root = NULL;
	size_t head = 0;
	int rc;

	for (size_t i = 0; i < 4 && len >= 4; i++)
		head |= (size_t)p[i] << (8 * i);
	if (len < 4 || head > len - 4)
		return corrupt(what, err);
	rc = ptc_json_load(what, p + 4, head, &root, err);
	if (rc == 0)
		rc = ptc_json_version(what, root, PTC_DOC_OLDEST, PTC_DOC_VERSION, err);
	if (rc == 0)
		rc = take_keys(what, root, &d, err);
	if (rc == 0) {
		d.own = ptc_calloc(1, sizeof *d.own);
		rc = d.own ? take_blobs(what, json_object_get(root, "blobs"), (const char *)data + 4 + head,
					len - 4 - head, d.own, err)
			   : ptc_nomem(err);
		d.blobs = d.own;
	}
	json_decref(root);
	if (rc) {
		ptc_durable_done(&d);
		return rc;
	}
	*ret = d;
	return 0;
}
