/* SPDX-License-Identifier: Apache-2.0 */
/* Seals bytes with AES-256-GCM: only those who have the key can read or make sealed bytes. The module lies here because
 * rpc/trust is where OpenSSL is used.
 *
 *   "PTCSEAL1" | id of the key, 8 bytes | nonce, 12 bytes | ciphertext | tag, 16 bytes
 *
 * The head and a name that both sides know (the job's uuid) are authenticated too. So bytes sealed for one name are
 * refused for another. Nonces are random, so a key may seal 2^32 messages at most; a cluster has thousands of jobs.
 *
 * Failure modes: the bytes are not sealed, have another key or another name, or were changed (PTC_ESTATE; the message
 * tells these apart as far as possible); no memory. Any thread. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_SEAL_KEY_BYTES 32
#define PTC_SEAL_ID_BYTES  8
#define PTC_SEAL_ID_TEXT   17 /* hex digits and a NUL */

struct ptc_seal_key {
	uint8_t bytes[PTC_SEAL_KEY_BYTES];
	char id[PTC_SEAL_ID_TEXT]; /* computed from the bytes; reveals nothing about them */
};

int ptc_seal_key_new(struct ptc_seal_key *ret_key, struct ptc_error *err);
/* Fills key->id. Returns 0 or PTC_ENOMEM. */
int ptc_seal_key_identify(struct ptc_seal_key *key);

bool ptc_seal_is(const void *data, size_t len);
/* *ret_data: ptc_free it. */
int ptc_seal(const struct ptc_seal_key *key, const char *name, const void *data, size_t len, char **ret_data,
	     size_t *ret_len, struct ptc_error *err);
/* Opens sealed bytes. ptc_free *ret_data; a NUL follows its *ret_len bytes. */
int ptc_seal_open(const struct ptc_seal_key *key, const char *name, const void *data, size_t len, char **ret_data,
		  size_t *ret_len, struct ptc_error *err);
