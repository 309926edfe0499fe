/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts that probes have found (`ptcctl probe`), by configuration, in etcd beside the job's record:
 * /ptc/jobs/UUID/probed names their documents, which are blobs. Plans and prices use one where no rank has declared
 * the layout of that configuration. At most PTC_PROBED_MAX; the oldest goes first.
 *
 * Whoever removes blobs keeps those that the list names, and compares the list's revision as it removes others. Earlier
 * versions know nothing of the list and may remove them: a name without a blob counts as none.
 *
 * Failure modes: PTC_ECOORD; a document cannot be read (its own code); PTC_ELIMIT; PTC_ECONFLICT: the job changes again
 * and again. Threads: any but the loop; all functions but `done` block. */
#pragma once

#include "daemon/documents/documents.h"

#define PTC_PROBED_MAX       32
#define PTC_PROBED_MAX_BYTES (16u << 20) /* of one document: its parts are compared in one transaction */
#define PTC_PROBED_KEY       64

struct ptc_probed {
	struct ptc_known_layout *v; /* oldest first */
	size_t n;
	int64_t revision; /* of the key; 0: there is none */
};
/* Pure. The document, for ptc_free (NULL: out of memory); a text as the list, whose revision is then 0. */
char *ptc_probed_encode(const struct ptc_probed *p);
int ptc_probed_decode(const char *json, size_t len, struct ptc_probed *ret, struct ptc_error *err);
/* Adds one as the newest, in place of an earlier one of that configuration. Returns 0 or PTC_ENOMEM. */
int ptc_probed_add(struct ptc_probed *p, const char *config, const char *hash);
void ptc_probed_key(const char *uuid, char ret_key[PTC_PROBED_KEY]);
int ptc_probed_read(struct ptc_etcd *e, const char *uuid, struct ptc_probed *ret, struct ptc_error *err);
void ptc_probed_done(struct ptc_probed *p); /* a zeroed one is fine */
/* Writes a layout document, and names it in the list in place of an earlier one of that configuration. */
int ptc_probed_put(const struct ptc_documents *docs, const struct ptc_meta_doc *meta, const char *config,
		   const char *json, size_t len, struct ptc_error *err);
/* Adds to v's manifest the layouts of configurations of which it has none. While etcd is unreachable it adds none. */
void ptc_probed_join(const struct ptc_documents *docs, struct ptc_view *v);
