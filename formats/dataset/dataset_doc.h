/* SPDX-License-Identifier: Apache-2.0 */
/* The document of a registered dataset: where its source lies, and the source's properties when it was added. etcd
 * holds the JSON under /ptc/datasets/UID/NAME, and `ptcctl dataset list --format json` shows it (docs/control.md).
 *
 * Happy path: encode, decode. A decoded document is complete and within the limits of dataset/source.h, whoever wrote
 * it. Failure modes: PTC_EINVAL, which names the member; PTC_EVERSION; PTC_ENOMEM. Any thread. */
#pragma once

#include "base/limits.h"
#include "base/number/versions.h"
#include "dataset/source.h"
#include "formats/json.h"

#include <sys/types.h>

#define PTC_DATASET_DOC_VERSION PTC_VERSION_NUMBER(1)
#define PTC_DATASET_DOC_OLDEST  1
#define PTC_DATASET_DOC_SINCE   PTC_VERSION_NUMBER(1) /* the PTC_DOC_VERSION that brought the newest version */
#define PTC_DATASET_DOC_MAX     16384                 /* bytes; the path takes most of them */

struct ptc_dataset_doc {
	char name[PTC_NAME_MAX + 1];
	uid_t uid; /* the owner */
	int64_t created_ms;
	char node[PTC_NAME_MAX + 1];        /* the only node with the source; "": every node has it at `path` */
	char path[PTC_SOURCE_PATH_MAX + 1]; /* absolute */
	struct ptc_source_spec spec;        /* spec.path is not set; use ptc_dataset_doc_spec */
	struct ptc_source_info info;        /* from opening the source; left_out and memory_bytes are not kept */
	uint64_t longest_bytes;             /* bytes of the longest sample */
	struct ptc_source_print print;
};
/* Makes the JSON text; ptc_free it. NULL: out of memory. */
char *ptc_dataset_doc_encode(const struct ptc_dataset_doc *d);
int ptc_dataset_doc_decode(const char *json, size_t len, struct ptc_dataset_doc *ret_doc, struct ptc_error *err);
/* Encode and decode as a JSON tree. json_decref the result of the first. */
json_t *ptc_dataset_doc_to_json(const struct ptc_dataset_doc *d);
int ptc_dataset_doc_from_json(const json_t *root, struct ptc_dataset_doc *ret_doc, struct ptc_error *err);
/* A hash of the source, 32 hex digits and a NUL. It is equal for equal sources, whatever their name, owner and node.
 * Returns 0 or PTC_ENOMEM. */
int ptc_dataset_doc_source(const struct ptc_dataset_doc *d, char ret_hex[33]);
/* A hash of the source, its reader and its node, in the same form. So a user cannot reach another user's open source by
 * registering the same path. */
int ptc_dataset_doc_reader(const struct ptc_dataset_doc *d, char ret_hex[33]);
/* The spec to open the source with; borrows the path of d. */
struct ptc_source_spec ptc_dataset_doc_spec(const struct ptc_dataset_doc *d);
/* Opens the source and compares it with the document. PTC_ECORRUPT: the source has changed. */
int ptc_dataset_doc_open(const struct ptc_dataset_doc *d, struct ptc_source **ret_source, struct ptc_error *err);
