/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/trust/seal.h"

#include "base/alloc.h"
#include "base/sys/sys.h"

#include <limits.h>
#include <openssl/evp.h>
#include <openssl/err.h>
#include <stdio.h>
#include <string.h>

#define MAGIC_BYTES 8
#define NONCE_BYTES 12
#define TAG_BYTES   16
#define HEAD_BYTES  (MAGIC_BYTES + PTC_SEAL_ID_BYTES + NONCE_BYTES)
#define EXTRA_BYTES (HEAD_BYTES + TAG_BYTES)

static const uint8_t magic[MAGIC_BYTES] = { 'P', 'T', 'C', 'S', 'E', 'A', 'L', '1' };
static const char id_label[] = "ptc: id of a key";

int ptc_seal_key_identify(struct ptc_seal_key *key)
{
	uint8_t text[sizeof id_label + PTC_SEAL_KEY_BYTES], digest[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	int ok;

	memcpy(text, id_label, sizeof id_label);
	memcpy(text + sizeof id_label, key->bytes, PTC_SEAL_KEY_BYTES);
	ok = EVP_Digest(text, sizeof text, digest, &n, EVP_sha256(), NULL);
	explicit_bzero(text, sizeof text);
	if (ok != 1)
		return PTC_ENOMEM;
	for (size_t i = 0; i < PTC_SEAL_ID_BYTES; i++)
		snprintf(key->id + 2 * i, 3, "%02x", digest[i]);
	return 0;
}

int ptc_seal_key_new(struct ptc_seal_key *ret_key, struct ptc_error *err)
{
	int rc = ptc_sys_random(ret_key->bytes, sizeof ret_key->bytes, err);

	if (rc == 0 && ptc_seal_key_identify(ret_key) != 0)
		rc = ptc_nomem(err);
	return rc;
}

static void id_bytes(const struct ptc_seal_key *key, uint8_t *ret_id)
{
	for (size_t i = 0; i < PTC_SEAL_ID_BYTES; i++) {
		unsigned v = 0;

		sscanf(key->id + 2 * i, "%2x", &v);
		ret_id[i] = (uint8_t)v;
	}
}

bool ptc_seal_is(const void *data, size_t len)
{
	return len >= EXTRA_BYTES && memcmp(data, magic, MAGIC_BYTES) == 0;
}

/* One pass over `from`; with sealing, the tag is written, else compared. */
static bool run(const struct ptc_seal_key *key, const char *name, const uint8_t *head, const uint8_t *from, size_t len,
		uint8_t *to, uint8_t *tag, bool sealing)
{
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
	int n;
	bool ok = c && EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, key->bytes, head + HEAD_BYTES - NONCE_BYTES,
					 sealing) == 1;

	ok = ok && EVP_CipherUpdate(c, NULL, &n, head, HEAD_BYTES) == 1;
	ok = ok && EVP_CipherUpdate(c, NULL, &n, (const uint8_t *)name, (int)strlen(name)) == 1;
	ok = ok && (len == 0 || (EVP_CipherUpdate(c, to, &n, from, (int)len) == 1 && n == (int)len));
	ok = ok && (sealing || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, TAG_BYTES, tag) == 1);
	ok = ok && EVP_CipherFinal_ex(c, to + len, &n) == 1;
	ok = ok && (!sealing || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, TAG_BYTES, tag) == 1);
	EVP_CIPHER_CTX_free(c);
	ERR_clear_error();
	return ok;
}

int ptc_seal(const struct ptc_seal_key *key, const char *name, const void *data, size_t len, char **ret_data,
	     size_t *ret_len, struct ptc_error *err)
{
	uint8_t *out;
	int rc;

	if (len > INT_MAX - EXTRA_BYTES)
		return ptc_error_set(err, PTC_ELIMIT, "%zu bytes are too many to be sealed", len);
	out = ptc_malloc(len + EXTRA_BYTES);
	if (!out)
		return ptc_nomem(err);
	memcpy(out, magic, MAGIC_BYTES);
	id_bytes(key, out + MAGIC_BYTES);
	rc = ptc_sys_random(out + HEAD_BYTES - NONCE_BYTES, NONCE_BYTES, err);
	if (rc == 0 && !run(key, name, out, data, len, out + HEAD_BYTES, out + HEAD_BYTES + len, true))
		rc = ptc_nomem(err);
	if (rc) {
		ptc_free(out);
		return rc;
	}
	*ret_data = (char *)out;
	*ret_len = len + EXTRA_BYTES;
	return 0;
}

int ptc_seal_open(const struct ptc_seal_key *key, const char *name, const void *data, size_t len, char **ret_data,
		  size_t *ret_len, struct ptc_error *err)
{
	const uint8_t *in = data;
	uint8_t id[PTC_SEAL_ID_BYTES], tag[TAG_BYTES], *out;
	size_t n = len - EXTRA_BYTES;

	if (!ptc_seal_is(data, len) || n > INT_MAX)
		return ptc_error_set(err, PTC_ESTATE, "these bytes are not sealed");
	id_bytes(key, id);
	if (memcmp(in + MAGIC_BYTES, id, sizeof id) != 0)
		return ptc_error_set(err, PTC_ESTATE, "it was sealed with another key than %s", key->id);
	out = ptc_malloc(n + 1);
	if (!out)
		return ptc_nomem(err);
	memcpy(tag, in + HEAD_BYTES + n, sizeof tag);
	if (!run(key, name, in, in + HEAD_BYTES, n, out, tag, false)) {
		explicit_bzero(out, n);
		ptc_free(out);
		return ptc_error_set(err, PTC_ESTATE, "the sealed bytes were changed, or moved to another key");
	}
	out[n] = '\0';
	*ret_data = (char *)out;
	*ret_len = n;
	return 0;
}
