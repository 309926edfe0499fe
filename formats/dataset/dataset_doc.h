/* SPDX-License-Identifier: Apache-2.0 */
/* A registered dataset: where its source lies, what it was when it was added. The JSON is what etcd holds under
 * /ptc/datasets/NAME and what `ptcctl dataset list --format json` shows (docs/control.md).
 *
 * Happy path: encode, decode. Failure modes: PTC_EINVAL naming the member, PTC_EVERSION, PTC_ENOMEM. A decoded document
 * is complete and within the limits of dataset/source.h, whoever has written it. */
#pragma once

#include "base/limits.h"
#include "base/number/versions.h"
#include "dataset/source.h"

#include <sys/types.h>

#include <jansson.h>

#define PTC_DATASET_DOC_VERSION PTC_VERSION_NUMBER(1)
#define PTC_DATASET_DOC_OLDEST  1
#define PTC_DATASET_DOC_SINCE   PTC_VERSION_NUMBER(1) /* of PTC_DOC_VERSION */
#define PTC_DATASET_DOC_MAX     16384                 /* bytes; a path takes most of it */

struct ptc_dataset_doc {
	char name[PTC_NAME_MAX + 1];
	uid_t uid; /* whose it is */
	int64_t created_ms;
	char node[PTC_NAME_MAX + 1];        /* that alone has the source; "": every node finds it at path */
	char path[PTC_SOURCE_PATH_MAX + 1]; /* absolute */
	struct ptc_source_spec spec;        /* its path: not set, see ptc_dataset_doc_spec */
	struct ptc_source_info info;        /* as it was opened; left_out and memory_bytes are not kept */
	uint64_t longest_bytes;             /* of the longest sample */
	struct ptc_source_print print;
};
/* ptc_free it; NULL when out of memory. */
char *ptc_dataset_doc_encode(const struct ptc_dataset_doc *d);
int ptc_dataset_doc_decode(const char *json, size_t len, struct ptc_dataset_doc *ret_doc, struct ptc_error *err);
/* The same on a tree; what names the document in errors. */
json_t *ptc_dataset_doc_to_json(const struct ptc_dataset_doc *d);
int ptc_dataset_doc_from_json(const json_t *root, struct ptc_dataset_doc *ret_doc, struct ptc_error *err);
/* 32 hex digits and a NUL: equal for equal sources, whatever name, owner and node. 0 or PTC_ENOMEM. */
int ptc_dataset_doc_source(const struct ptc_dataset_doc *d, char ret_hex[33]);
/* The same for who reads it from where: what one may read nobody else gets by saying the same of his. */
int ptc_dataset_doc_reader(const struct ptc_dataset_doc *d, char ret_hex[33]);
/* What to open; borrows the path of d. */
struct ptc_source_spec ptc_dataset_doc_spec(const struct ptc_dataset_doc *d);
/* Opens the source and compares it with what it was: PTC_ECORRUPT. */
int ptc_dataset_doc_open(const struct ptc_dataset_doc *d, struct ptc_source **ret_source, struct ptc_error *err);
