/* SPDX-License-Identifier: Apache-2.0 */
/* The committed documents of one job as a node keeps them in its store: what is needed to go on with the job when etcd
 * and all its data are gone. Keys of etcd are kept as they are there, blobs by the hash of their content.
 *
 * As bytes: the length of a JSON header, 4 bytes, little-endian; the header; the bytes of the blobs. The header is
 * {version, epoch, revision, keys: {meta, record, copies, older}, blobs: [[hash, bytes], ...]}.
 *
 * Most of a job's documents stay as they are from one commit to the next. So a node may keep a later commit beside a
 * complete one, in a second note: with all keys, and with those blobs only that the complete note, its base, lacks. Its
 * header has one member more, base: {epoch, revision, blobs: [[hash, bytes], ...]}: which note that is, and which of
 * its blobs the later commit needs. A version that does not know the second note has the earlier commit, as whole as
 * ever.
 *
 * Plain data of whoever has it; no thread. Failure modes: PTC_ECORRUPT for bytes that are cut off or whose blobs do not
 * have the hashes that are named; PTC_EINVAL for a header with a wrong member, which the error names; PTC_EVERSION;
 * memory. */
#pragma once

#include "daemon/documents/kept/kept_jobs.h"

#include <sys/uio.h>

#define PTC_DURABLE_NOTE      "committed"      /* the name of the note in the store */
#define PTC_DURABLE_LATER     "committedlater" /* that of the second note; of no bytes: there is none */
#define PTC_DURABLE_MAX_BYTES (64u << 20)      /* of a job's blobs; a larger job is not kept, and the log says so */

enum ptc_durable_key {
	PTC_DURABLE_META,
	PTC_DURABLE_RECORD,
	PTC_DURABLE_COPIES,
	PTC_DURABLE_OLDER,
	PTC_DURABLE_KEYS,
};
const char *ptc_durable_key_name(enum ptc_durable_key key); /* its last part in etcd */

/* A complete note, and some of its blobs (those have no data). */
struct ptc_durable_base {
	uint64_t epoch;
	int64_t revision; /* 0: there is none */
	struct ptc_kept_doc *blobs;
	size_t nblobs;
};
void ptc_durable_base_done(struct ptc_durable_base *b);

struct ptc_durable {
	uint64_t epoch;                   /* of the etcd that they are from (base/number/fence.h) */
	int64_t revision;                 /* the greatest mod_revision of the keys */
	char *key[PTC_DURABLE_KEYS];      /* values; NULL: there is no such key; meta and record are there */
	const struct ptc_kept_job *blobs; /* borrowed by an encoder */
	struct ptc_kept_job *own;         /* what decode has made */
	struct ptc_durable_base base;     /* what decode has found; an encoder gets it as an argument */
};
void ptc_durable_done(struct ptc_durable *d); /* one of zeros is fine */
/* Whether a comes after b: by epoch, then by revision. */
bool ptc_durable_later(const struct ptc_durable *a, const struct ptc_durable *b);
/* The bytes, as parts one after another: blobs are megabytes, and are copied only where they are written. */
struct ptc_durable_form {
	struct iovec *parts; /* those of blobs are borrowed */
	size_t nparts, len;  /* len: of all */
	char *head;          /* owned, as parts is */
};
/* base: NULL, or one with which it is a second note: blobs that the base has are left out. 0 or PTC_ENOMEM. */
int ptc_durable_form(const struct ptc_durable *d, const struct ptc_durable_base *base, struct ptc_durable_form *ret);
void ptc_durable_form_done(struct ptc_durable_form *f);
/* Every blob is checked against its hash. what: the job and the node, for messages. */
int ptc_durable_decode(const char *what, const void *data, size_t len, struct ptc_durable *ret, struct ptc_error *err);
/* Makes *d, the complete note, what both notes together say, and frees the other. A second note that is not later than
 * the complete one is of an earlier base, and does not count. PTC_ECORRUPT: a blob is missing; *d is of no use
 * then. */
int ptc_durable_join(const char *what, struct ptc_durable *d, struct ptc_durable *later, struct ptc_error *err);
/* The form as one piece; ptc_free *ret_data. 0 or PTC_ENOMEM. */
int ptc_durable_encode(const struct ptc_durable *d, char **ret_data, size_t *ret_len);
