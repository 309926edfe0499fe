/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that only holders of a key can read, and nobody else can have written: AES-256-GCM. Here because OpenSSL is.
 *
 *   "PTCSEAL1" | id of the key, 8 bytes | nonce, 12 bytes | ciphertext | tag, 16 bytes
 *
 * The head and a name that both sides know (the job's uuid) are authenticated too, so that sealed bytes cannot stand in
 * for others. A key seals 2^32 messages at most, for nonces are random; jobs come by the thousand.
 *
 * Failure modes: not sealed, another key, another name or changed bytes (PTC_ESTATE, in words that tell them apart as
 * far as can be); no memory. Any thread. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_SEAL_KEY_BYTES 32
#define PTC_SEAL_ID_BYTES  8
#define PTC_SEAL_ID_TEXT   17 /* in hex, with its NUL */

struct ptc_seal_key {
	uint8_t bytes[PTC_SEAL_KEY_BYTES];
	char id[PTC_SEAL_ID_TEXT]; /* of the bytes, and tells nothing of them */
};

int ptc_seal_key_new(struct ptc_seal_key *ret_key, struct ptc_error *err);
/* Fills key->id. 0 or PTC_ENOMEM. */
int ptc_seal_key_identify(struct ptc_seal_key *key);

bool ptc_seal_is(const void *data, size_t len);
/* *ret_data: ptc_free it. */
int ptc_seal(const struct ptc_seal_key *key, const char *name, const void *data, size_t len, char **ret_data,
	     size_t *ret_len, struct ptc_error *err);
/* *ret_data: ptc_free it; a NUL follows its *ret_len bytes. */
int ptc_seal_open(const struct ptc_seal_key *key, const char *name, const void *data, size_t len, char **ret_data,
		  size_t *ret_len, struct ptc_error *err);
